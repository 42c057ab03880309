//! Calls of the daemon, one type each in [`CALLS`]: its name, right, arguments and response, and what
//! it does ([`Call`]). The local socket, HTTP, the OpenAPI document and the tables of
//! `docs/WIRE.md` follow from these types.
//!
//! Calls do not wait for the disk; the socket does.
//!
//! # Invariant
//!
//! No job id is made twice: the daemon uses the microseconds of its slot, or all even microseconds, and the extension the microseconds after them.

mod accept;
mod archive;
pub(crate) mod cache;
pub(crate) mod causes;
mod changing;
pub(crate) mod config;
pub(crate) mod consumers;
mod cursor;
mod definition;
mod document;
pub(crate) mod durations;
pub(crate) mod event_rates;
pub(crate) mod events;
pub(crate) mod fleet;
pub(crate) mod jobs;
pub(crate) mod minions;
pub(crate) mod page_link;
mod page_rows;
mod parts;
mod poll;
pub(crate) mod reactor;
mod read_ctx;
mod reading;
mod rights;
pub(crate) mod running;
pub(crate) mod send;
mod shared;
pub(crate) mod sinks;
pub(crate) mod status;
pub(crate) mod store;
mod store_error;
pub(crate) mod tokens;
pub(crate) mod writes;
pub(crate) mod zeromq;

pub(crate) use accept::{Acceptor, JidMaker};
pub(crate) use archive::{Archive, OwnMaster};
pub(crate) use cursor::Cursor;
pub(in crate::api) use cursor::seq;
pub(crate) use definition::CallEntry;
pub(crate) use definition::{Call, In, Limited, NoArgs, Run};
pub(in crate::api) use definition::{
    CallHandler, Changing, Raised, Save, Wait, Whole, answer, from_json,
};
pub use document::document;
pub(crate) use parts::{Ctx, Process, Reacting};
use reactor::no_events;
pub(crate) use read_ctx::ReadCtx;
use read_ctx::{OF_EVENTS, OF_JOBS, OF_MINIONS};
pub(crate) use rights::Rights;
pub(in crate::api) use rights::unapplied;
pub(crate) use shared::SharedHistory;
pub(in crate::api) use store_error::failed;
pub(in crate::api) use writes::signed_return;

pub(crate) use super::caller::Caller;

/// All calls.
pub const CALLS: &[CallEntry] = &[
    CallEntry::saves::<writes::PrepJid>(),
    CallEntry::saves::<writes::SaveLoad>(),
    CallEntry::saves::<writes::SaveMinions>(),
    CallEntry::saves::<writes::Returner>(),
    CallEntry::saves::<writes::UpdateEndtime>(),
    CallEntry::saves::<writes::EventReturn>(),
    CallEntry::saves::<writes::SaveReg>(),
    CallEntry::runs::<writes::CleanOldJobs>(),
    CallEntry::runs::<cache::GetLoad>(),
    CallEntry::runs::<cache::GetJid>(),
    CallEntry::runs::<cache::GetJids>(),
    CallEntry::runs::<cache::GetJidsFilter>(),
    CallEntry::runs::<cache::GetFun>(),
    CallEntry::runs::<cache::GetMinions>(),
    CallEntry::runs::<cache::GetEndtime>(),
    CallEntry::runs::<cache::LoadReg>(),
    CallEntry::runs::<status::Show>(),
    CallEntry::runs::<config::Show>(),
    CallEntry::runs::<jobs::List>(),
    CallEntry::runs::<jobs::Show>(),
    CallEntry::runs::<jobs::Missing>(),
    CallEntry::runs::<jobs::States>(),
    CallEntry::runs::<jobs::Diff>(),
    CallEntry::waits::<jobs::Watch>(),
    CallEntry::runs::<jobs::strip::Strip>(),
    CallEntry::runs::<causes::List>(),
    CallEntry::runs::<durations::OfJob>(),
    CallEntry::runs::<durations::OfTime>(),
    CallEntry::runs::<fleet::Show>(),
    CallEntry::runs::<minions::List>(),
    CallEntry::runs::<minions::Show>(),
    CallEntry::runs::<events::List>(),
    CallEntry::runs::<events::Count>(),
    CallEntry::runs::<event_rates::Rates>(),
    CallEntry::waits::<events::Follow>(),
    CallEntry::runs::<events::Entries>(),
    CallEntry::runs::<send::Send>(),
    CallEntry::runs::<consumers::List>(),
    CallEntry::runs::<consumers::Create>(),
    CallEntry::waits::<consumers::Next>(),
    CallEntry::runs::<consumers::Ack>(),
    CallEntry::runs::<consumers::Nack>(),
    CallEntry::runs::<consumers::Release>(),
    CallEntry::runs::<consumers::Seek>(),
    CallEntry::runs::<consumers::Pause>(),
    CallEntry::runs::<consumers::Resume>(),
    CallEntry::runs::<consumers::Pin>(),
    CallEntry::runs::<consumers::Delete>(),
    CallEntry::runs::<sinks::List>(),
    CallEntry::runs::<sinks::Check>(),
    CallEntry::runs::<sinks::Test>(),
    CallEntry::runs::<sinks::Pause>(),
    CallEntry::runs::<sinks::Resume>(),
    CallEntry::runs::<sinks::Seek>(),
    CallEntry::runs::<sinks::DeadLetters>(),
    CallEntry::runs::<sinks::Retry>(),
    CallEntry::runs::<sinks::Drop>(),
    CallEntry::runs::<store::Stats>(),
    CallEntry::runs::<store::Prune>(),
    CallEntry::runs::<store::HoldJob>(),
    CallEntry::runs::<store::ListHolds>(),
    CallEntry::runs::<store::AcceptLoss>(),
    CallEntry::runs::<reactor::List>(),
    CallEntry::runs::<reactor::History>(),
    CallEntry::runs::<reactor::Show>(),
    CallEntry::runs::<reactor::Explain>(),
    CallEntry::runs::<reactor::ReplayCalls>(),
    CallEntry::runs::<reactor::Lease>(),
    CallEntry::runs::<reactor::Shadow>(),
    CallEntry::runs::<tokens::Create>(),
    CallEntry::runs::<tokens::List>(),
    CallEntry::runs::<tokens::Revoke>(),
    CallEntry::runs::<page_link::MakeLink>(),
    CallEntry::saves::<zeromq::Events>(),
    CallEntry::runs::<zeromq::Ignored>(),
];

pub(crate) fn find(name: &str) -> Option<&'static CallEntry> {
    CALLS.iter().find(|call| call.name == name)
}

#[cfg(test)]
mod tests {
    use schemars::SchemaGenerator;

    use super::*;
    use crate::model::Right;

    /// The rights of such calls are checked with that argument alone.
    #[test]
    fn each_call_that_can_import_or_changes_a_consumer_is_raised_by_it() {
        for call in CALLS {
            let mut types = SchemaGenerator::default();
            let args = (call.args)(&mut types).to_value();
            // By its name among the types, or in place.
            let named = args["$ref"]
                .as_str()
                .and_then(|path| path.rsplit('/').next());
            let args = named.map_or(&args, |name| &types.definitions()[name]);
            let has = |name: &str| args["properties"].get(name).is_some();
            let changes = !call.only_reads && call.right < Right::Admin;
            let raised = match call.name {
                name if changes && name.starts_with("consumer_") => {
                    assert!(has("name"), "{name}: {args}");
                    Raised::ByConsumer
                }
                _ if has("import") => Raised::ByImport,
                _ => Raised::Never,
            };
            assert_eq!(call.raised, raised, "{}", call.name);
        }
    }

    #[test]
    fn searches_end_with_their_peer_and_changes_are_carried_out() {
        let only_reads = |name: &str| find(name).unwrap().only_reads;
        for search in [
            "events_list",
            "reactor_history",
            "reactor_shadow",
            "entries",
        ] {
            assert!(only_reads(search), "{search}");
        }
        // `page_link` needs no more than the right to read, and creates a link.
        for change in ["page_link", "token_create", "consumer_ack", "sink_seek"] {
            assert!(!only_reads(change), "{change}");
        }
    }
}
