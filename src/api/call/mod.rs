//! Calls: what can be asked over the local socket, one entry each in [`CALLS`]. `docs/WIRE.md` has the shapes.
//!
//! A reading call answers msgpack. A writing call makes entries to store, and the answer to give once they are on
//! disk. Neither waits for the disk itself, the socket does.

mod cache;
mod jobs;
mod lists;
mod reactor;
mod send;
mod shadow;
mod store;
mod writes;

pub use jobs::Watches;
pub use store::prune_answer;
pub(in crate::api) use writes::signed_return;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::https::Watch as HttpsWatch;
use crate::clock::{Clock, Micros};
use crate::door;
use crate::ingest::bus::Watch;
use crate::ingest::fire::Firer;
use crate::ingest::gate::Gate;
use crate::metrics::Metrics;
use crate::model::Drafts;
use crate::reactor::run::engine::Handle;
use crate::store::{Store, StoreError};
use crate::wire::call::{Args, CallError};

/// What calls work with.
pub struct Ctx {
    /// The store, for reading.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Makes jids.
    pub jids: JidMaker,
    /// The rules that entries pass on their way in.
    pub gate: Arc<Gate>,
    /// Bytes of the largest entry taken.
    pub entry_bytes_max: usize,
    /// The buses being read.
    pub buses: Vec<Watch>,
    /// Directories with spools of the extension.
    pub spools: Vec<PathBuf>,
    /// The HTTPS door, if there is one.
    pub https: Option<HttpsWatch>,
    /// Fires onto them.
    pub firer: Arc<Firer>,
    /// The reactor, if there is one.
    pub reactor: Option<Handle>,
    /// The ZeroMQ doors that are open.
    pub zeromq: Vec<door::Watch>,
    /// Callers that wait for news of a job.
    pub watches: Watches,
    /// When the daemon started.
    pub started: Micros,
    /// Where the store is.
    pub state_dir: PathBuf,
    /// Where the socket is.
    pub socket: PathBuf,
}

/// How a call is carried out.
pub enum Run {
    /// Answers at once, from what is stored.
    Read(fn(&Ctx, &Args<'_>) -> Result<Vec<u8>, CallError>),
    /// As [`Run::Read`], and asks who the caller is.
    Act(fn(&Ctx, &Args<'_>, Caller) -> Result<Vec<u8>, CallError>),
    /// Puts entries to store into the drafts; the answer is given once they are on disk.
    Write(WriteCall),
}

/// Who makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user of the process that connected, if the kernel tells.
    pub uid: Option<u32>,
}

/// A writing call.
pub type WriteCall = fn(&Ctx, &Args<'_>, &mut Drafts<'_>) -> Result<Vec<u8>, CallError>;

/// One call.
pub struct Call {
    /// Its name on the wire.
    pub name: &'static str,
    /// What it does, in a line.
    pub doc: &'static str,
    /// How.
    pub run: Run,
}

const fn read(
    name: &'static str,
    doc: &'static str,
    run: fn(&Ctx, &Args<'_>) -> Result<Vec<u8>, CallError>,
) -> Call {
    Call { name, doc, run: Run::Read(run) }
}

const fn act(
    name: &'static str,
    doc: &'static str,
    run: fn(&Ctx, &Args<'_>, Caller) -> Result<Vec<u8>, CallError>,
) -> Call {
    Call { name, doc, run: Run::Act(run) }
}

const fn write(name: &'static str, doc: &'static str, run: WriteCall) -> Call {
    Call { name, doc, run: Run::Write(run) }
}

/// Every call there is.
pub const CALLS: &[Call] = &[
    write("prep_jid", "a jid for a job: the one passed, or a new one", writes::prep_jid),
    write("save_load", "keep a job as it was published", writes::save_load),
    write("save_minions", "add minions that a syndic reported for a job", writes::save_minions),
    write("returner", "keep one minion's return", writes::returner),
    write("update_endtime", "keep when a job ended", writes::update_endtime),
    write("event_return", "archive a batch of events", writes::event_return),
    write("save_reg", "keep Thorium's register", writes::save_reg),
    write("clean_old_jobs", "let go of jobs that are old enough", writes::clean_old_jobs),
    read("get_load", "a job as it was published, with its minions", cache::get_load),
    read("get_jid", "the returns of a job by minion", cache::get_jid),
    read("get_jids", "every job in short", cache::get_jids),
    read("get_jids_filter", "the newest jobs in short", cache::get_jids_filter),
    read("get_fun", "per minion the last job that ran a function", cache::get_fun),
    read("get_minions", "every minion that has returned a job", cache::get_minions),
    read("get_endtime", "when a job ended", cache::get_endtime),
    read("load_reg", "Thorium's register as kept last", cache::load_reg),
    read("status", "the daemon, its doors and its store", lists::status),
    read("events_list", "events, the latest first", lists::events_list),
    read("entries", "what is stored, entry by entry: of a job, or of the log", lists::entries),
    act("event_send", "fire an event onto Salt's bus", send::event_send),
    read("jobs_list", "jobs, the latest first", jobs::jobs_list),
    read("store_stats", "the store in figures", store::stats),
    read("store_prune", "let go of what exceeds bounds, or say what would go", store::prune),
    read("store_hold", "hold a job, or let go of it", store::hold),
    read("store_holds", "the jobs that are held", store::holds),
    read("reactor_list", "the reactor and its rules", reactor::list),
    read("reactor_history", "what the reactor did, the latest first", reactor::history),
    read("reactor_show", "one reaction, with what became of it", reactor::show),
    read("reactor_why", "which rules take a tag, and what was done about it", reactor::why),
    read("reactor_shadow", "calls of our reactor and of Salt's, to compare them", shadow::shadow),
    act("reactor_replay", "do again what was set aside", reactor::replay),
    read("job_show", "one job with its returns", jobs::job_show),
    read("job_states", "the states that a job ran, a row each", jobs::job_states),
    read("job_diff", "how two runs of a job differ", jobs::job_diff),
    read("job_watch", "what is new of a job, and a wait for it", jobs::job_watch),
];

/// The call of that name.
pub fn find(name: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.name == name)
}

/// What a store's error is to a caller.
fn failed(error: StoreError) -> CallError {
    match error {
        StoreError::Stopping => CallError::Unavailable(error.to_string()),
        error => {
            tracing::error!(%error, "a call could not be answered from the store");
            CallError::Internal(error.to_string())
        }
    }
}

/// Makes jids: the present time, or the next microsecond that has not been given out.
///
/// # Invariant
///
/// Only even microseconds. The odd ones belong to the extension, which makes jids itself while it cannot reach us
/// (`local_jid` in `salt/`): so no jid of one is ever made by the other, whatever the clocks do.
#[derive(Debug)]
pub struct JidMaker(AtomicI64);

impl JidMaker {
    /// Gives out nothing up to `last`.
    pub fn after(last: Micros) -> Self {
        Self(AtomicI64::new(last.0))
    }

    /// The instant of a new jid.
    pub fn next(&self, now: Micros) -> Micros {
        let after = |last: i64| {
            let at = now.0.max(last.saturating_add(1));
            at.saturating_add(at & 1)
        };
        let advance = |last: i64| Some(after(last));
        let last = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, advance).unwrap_or(now.0);
        Micros(after(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jids_are_unique_even_when_the_clock_stands_or_steps_back() {
        let maker = JidMaker::after(Micros(100));
        let made = [50, 50, 200, 200, 10, 207].map(|now| maker.next(Micros(now)).0);
        assert_eq!(made, [102, 104, 200, 202, 204, 208], "and even, for the odd ones are the extension's");
    }

    #[test]
    fn every_call_is_in_the_wire_page() {
        let page = include_str!("../../../docs/WIRE.md");
        for call in CALLS {
            assert!(
                page.contains(&format!("| `{}` |", call.name)),
                "{} is missing in docs/WIRE.md",
                call.name
            );
        }
        let calls = page.lines().skip_while(|l| *l != "## Calls of the returner");
        // Up to the next part of the page.
        let rows = calls.take_while(|l| !l.starts_with("# ")).filter(|l| l.starts_with("| `"));
        for row in rows {
            let name = row.trim_start_matches("| `").split('`').next().unwrap_or_default();
            assert!(find(name).is_some(), "docs/WIRE.md has a call {name} that does not exist");
        }
    }
}
