//! Calls of the local socket, one item each in [`CALLS`]. `docs/WIRE.md` defines arguments and
//! answers.
//!
//! A reading call returns msgpack. A writing call produces entries and the answer to send once they
//! are durable. Calls do not wait for the disk; the socket does.

mod cache;
pub(crate) mod config;
pub(crate) mod consumers;
mod cursor;
mod definition;
pub(crate) mod jobs;
mod lists;
mod poll;
pub(crate) mod reactor;
mod rights;
pub(crate) mod send;
pub(crate) mod sinks;
pub(crate) mod store;
mod writes;

pub(crate) use cursor::Cursor;
pub(in crate::api) use cursor::position;
pub(crate) use definition::{Call, In, Run};
pub(in crate::api) use definition::{ChangeCtx, Changing, Erased, Limited, NoArgs, Whole, typed};
pub(crate) use lists::ShowStatus;
pub(crate) use poll::Poll;
pub(in crate::api) use reactor::no_events;
pub(crate) use rights::{Caller, Rights};
pub(crate) use send::fire;
pub(in crate::api) use writes::signed_return;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde::Serialize;

use super::http::ListenerMonitor;
use super::http::sessions::{self, Sessions};
use super::http::tokens::{self, Tokens};
use super::zeromq::{self, ZmqSocketStatus};
use crate::base::clock::{Clock, Micros};
use crate::base::metrics::Metrics;
use crate::base::work::Ended;
use crate::engines::runtime::Engines;
use crate::ingest::bus::BusMonitor;
use crate::ingest::fire::Firer;
use crate::ingest::policy::Policy;
use crate::model::{FrameBatch, Limit, ReadLimits, Right};
use crate::reactor::run::engine::Handle;
use crate::store::{Store, StoreError, StoreView};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{EncodeError, encode};
use crate::wire::salt_codec::repaired;

/// The dependencies of calls.
pub struct Ctx {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) jids: JidMaker,
    pub(crate) rights: Rights,
    pub(crate) policy: Arc<Policy>,
    pub(crate) entry_bytes_max: usize,
    pub(crate) buses: Vec<BusMonitor>,
    /// The bus of this host's Salt master, if no event of it arrives.
    pub(crate) unread_bus: Option<PathBuf>,
    pub(crate) spools: Vec<PathBuf>,
    /// The HTTP listener, if `http.listen` is set.
    pub(crate) http: Option<ListenerMonitor>,
    /// The address that serves minions, if any: its own, or that of the HTTP listener.
    pub(crate) https: Option<ListenerMonitor>,
    pub(crate) firer: Arc<Firer>,
    pub(crate) reactor: Option<Handle>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) zeromq: Vec<ZmqSocketStatus>,
    pub(crate) started: Micros,
    pub(crate) state_dir: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) config: Arc<config::RunningConfig>,
}

/// The context of a call that applies the limits of its caller. Nothing else leads such a call to
/// the store, so none can forget them.
pub(crate) struct ReadCtx<'a> {
    /// The store as the caller may know it.
    pub(crate) store: StoreView,
    pub(crate) metrics: &'a Metrics,
    limits: Arc<ReadLimits>,
}

impl<'a> ReadCtx<'a> {
    pub(in crate::api) fn of(ctx: &'a Ctx, limits: &Arc<ReadLimits>) -> Self {
        Self {
            store: StoreView::new(&ctx.store, limits.clone()),
            metrics: &ctx.metrics,
            limits: limits.clone(),
        }
    }
}

pub(crate) enum CallHandler {
    /// Returns at once; its type says what it reaches.
    Typed(Erased),
    /// Returns at once what the caller may know of the stored data.
    Read(ReadCall),
    /// Returns at once something about the daemon, or about entries of any minion. Not for limited
    /// callers.
    Whole(WholeCall),
    /// Like [`CallHandler::Whole`], with access to the caller's uid.
    Act(fn(&Ctx, &Args<'_>, &Caller) -> Result<Vec<u8>, CallError>),
    /// Answers when there is something new that the caller may know, or after a time.
    Follow(FollowCall),
    /// Answers when there is something new, or after a time. Not for limited callers.
    Poll(PollCall),
    /// Adds entries to a batch; the answer is sent once they are durable.
    Write(WriteCall),
}

impl CallHandler {
    /// Runs a reading call. Values that Salt's codec cannot read are replaced: earlier releases
    /// could store such values, and one of them would make the whole answer unreadable.
    pub(super) fn answer(
        &self,
        ctx: &Ctx,
        args: &Args<'_>,
        caller: &Caller,
    ) -> Result<Vec<u8>, CallError> {
        let answer = match self {
            CallHandler::Typed(call) => return (call.msgpack)(ctx, caller, args),
            CallHandler::Read(run) => run(&ReadCtx::of(ctx, &caller.limits), args)?,
            CallHandler::Whole(run) => run(ctx, args)?,
            CallHandler::Act(run) => run(ctx, args, caller)?,
            // The socket and HTTP divide calls by their handler before, so only a bug leads here.
            CallHandler::Follow(_) | CallHandler::Poll(_) | CallHandler::Write(_) => {
                return Err(CallError::Internal(
                    "the call was run as a reading call".to_owned(),
                ));
            }
        };

        checked(answer)
    }

    /// Starts a call that waits; `None` for any other.
    pub(super) fn poll(
        &self,
        ctx: &Ctx,
        args: &Args<'_>,
        caller: &Caller,
    ) -> Option<Result<Poll, CallError>> {
        match self {
            CallHandler::Follow(run) => Some(run(&ReadCtx::of(ctx, &caller.limits), args)),
            CallHandler::Poll(run) => Some(run(ctx, args, caller)),
            _ => None,
        }
    }
}

/// Replaces values that Salt's codec cannot read.
fn checked(answer: Vec<u8>) -> Result<Vec<u8>, CallError> {
    match repaired(&answer) {
        Ok(Cow::Borrowed(_)) => Ok(answer),
        Ok(Cow::Owned(repaired)) => Ok(repaired),
        // A stored value that is not msgpack has no end, so nothing behind it can be repaired
        // either.
        Err(error) => {
            tracing::error!(%error, "answer dropped: it contains a stored value that is not msgpack");
            Err(CallError::Internal(format!(
                "the answer contains a stored value that is not msgpack: {error}"
            )))
        }
    }
}

pub(crate) type FollowCall = fn(&ReadCtx<'_>, &Args<'_>) -> Result<Poll, CallError>;

pub(crate) type PollCall = fn(&Ctx, &Args<'_>, &Caller) -> Result<Poll, CallError>;

pub(crate) type WriteCall = fn(&Ctx, &Args<'_>, &mut FrameBatch<'_>) -> Result<Vec<u8>, CallError>;

/// A call in the table of all calls.
pub struct CallEntry {
    /// The name on the wire.
    pub name: &'static str,
    /// A one-line description, in the imperative.
    pub doc: &'static str,
    /// The right that a peer of the local socket needs, unless [`CallEntry::needed`] raises it.
    pub right: Right,
    /// The limits of callers that it applies; a caller with another limit is rejected.
    pub applies: &'static [Limit],
    /// It changes the consumer in its argument `name`.
    changes_consumer: bool,
    pub(crate) run: CallHandler,
}

impl CallEntry {
    /// True if the call changes nothing, so that it may end when nobody waits for its answer any
    /// more. A call of another kind is carried out in any case.
    pub(super) fn only_reads(&self) -> bool {
        match self.run {
            CallHandler::Typed(call) => call.only_reads,
            CallHandler::Read(_) => true,
            // Whoever may only read changes nothing with it.
            CallHandler::Whole(_) => self.right == Right::Read,
            _ => false,
        }
    }
}

type ReadCall = fn(&ReadCtx<'_>, &Args<'_>) -> Result<Vec<u8>, CallError>;

type WholeCall = fn(&Ctx, &Args<'_>) -> Result<Vec<u8>, CallError>;

/// The entry of a call.
const fn of<C: Run>() -> CallEntry {
    CallEntry {
        applies: C::APPLIES,
        ..call(
            C::NAME,
            C::DOC,
            C::RIGHT,
            CallHandler::Typed(Erased::of::<C>()),
        )
    }
}

const fn call(name: &'static str, doc: &'static str, right: Right, run: CallHandler) -> CallEntry {
    CallEntry {
        name,
        doc,
        right,
        applies: &[],
        changes_consumer: false,
        run,
    }
}

const fn read(
    name: &'static str,
    doc: &'static str,
    applies: &'static [Limit],
    run: ReadCall,
) -> CallEntry {
    CallEntry {
        applies,
        ..call(name, doc, Right::Read, CallHandler::Read(run))
    }
}

const fn follow(
    name: &'static str,
    doc: &'static str,
    applies: &'static [Limit],
    run: FollowCall,
) -> CallEntry {
    CallEntry {
        applies,
        ..call(name, doc, Right::Read, CallHandler::Follow(run))
    }
}

const fn whole(name: &'static str, doc: &'static str, right: Right, run: WholeCall) -> CallEntry {
    call(name, doc, right, CallHandler::Whole(run))
}

const fn write(name: &'static str, doc: &'static str, right: Right, run: WriteCall) -> CallEntry {
    call(name, doc, right, CallHandler::Write(run))
}

/// A call that changes a consumer.
const fn consumer(name: &'static str, doc: &'static str, run: CallHandler) -> CallEntry {
    CallEntry {
        changes_consumer: true,
        ..call(name, doc, Right::Write, run)
    }
}

/// Jobs have no tags.
const OF_JOBS: &[Limit] = &[Limit::Minions, Limit::Functions];
const OF_MINIONS: &[Limit] = &[Limit::Minions];
const OF_EVENTS: &[Limit] = &Limit::ALL;

use Right::{Admin, Read, Write};

/// All calls.
pub const CALLS: &[CallEntry] = &[
    write(
        "prep_jid",
        "Return the passed jid, or a new one",
        Write,
        writes::prep_jid,
    ),
    write(
        "save_load",
        "Store a job as published",
        Write,
        writes::save_load,
    ),
    write(
        "save_minions",
        "Store minions that a syndic reported for a job",
        Write,
        writes::save_minions,
    ),
    write(
        "returner",
        "Store one minion's return",
        Write,
        writes::returner,
    ),
    write(
        "update_endtime",
        "Store the end time of a job",
        Write,
        writes::update_endtime,
    ),
    write(
        "event_return",
        "Store a batch of events",
        Write,
        writes::event_return,
    ),
    write(
        "zeromq_events",
        "Store events of the ZeroMQ PULL, for its process",
        Admin,
        zeromq::events,
    ),
    write(
        "save_reg",
        "Store Thorium's register",
        Admin,
        writes::save_reg,
    ),
    whole(
        "clean_old_jobs",
        "Delete expired jobs",
        Admin,
        writes::clean_old_jobs,
    ),
    read(
        "get_load",
        "Return a job as published, with its minions",
        OF_JOBS,
        cache::get_load,
    ),
    read(
        "get_jid",
        "Return the returns of a job by minion",
        OF_JOBS,
        cache::get_jid,
    ),
    read("get_jids", "List all jobs", OF_JOBS, cache::get_jids),
    read(
        "get_jids_filter",
        "List the newest jobs",
        OF_JOBS,
        cache::get_jids_filter,
    ),
    read(
        "get_fun",
        "Return the last job of a function per minion",
        OF_JOBS,
        cache::get_fun,
    ),
    read(
        "get_minions",
        "List the minions that have returned a job",
        OF_MINIONS,
        cache::get_minions,
    ),
    read(
        "get_endtime",
        "Return the end time of a job",
        OF_JOBS,
        cache::get_endtime,
    ),
    whole(
        "load_reg",
        "Return Thorium's register",
        Read,
        cache::load_reg,
    ),
    whole(
        "zeromq_ignored",
        "Count messages that the ZeroMQ PULL ignored",
        Admin,
        zeromq::ignored,
    ),
    of::<lists::ShowStatus>(),
    of::<config::Show>(),
    read(
        "events_list",
        "List events, the latest first",
        OF_EVENTS,
        lists::events_list,
    ),
    whole(
        "entries",
        "List stored entries of a job or of the log",
        Read,
        lists::entries,
    ),
    call(
        "event_send",
        "Fire an event onto Salt's bus",
        Admin,
        CallHandler::Act(send::event_send),
    ),
    of::<jobs::List>(),
    of::<store::Stats>(),
    of::<store::Prune>(),
    of::<store::HoldJob>(),
    of::<store::ListHolds>(),
    whole(
        "reactor_list",
        "Show the reactor and its rules",
        Read,
        reactor::list,
    ),
    whole(
        "reactor_history",
        "List reactions, the latest first",
        Read,
        reactor::history,
    ),
    whole(
        "reactor_show",
        "Show one reaction with the results of its calls",
        Read,
        reactor::show,
    ),
    whole(
        "reactor_why",
        "Show the rules that match a tag, and its latest reactions",
        Read,
        reactor::why,
    ),
    whole(
        "reactor_shadow",
        "List calls of our reactor and of Salt's for comparison",
        Read,
        reactor::shadow,
    ),
    whole(
        "reactor_replay",
        "Repeat dead-lettered calls",
        Admin,
        reactor::replay,
    ),
    whole(
        "reactor_lease",
        "Renew the reactor's lease, for the master's engine",
        Admin,
        reactor::lease,
    ),
    of::<jobs::Show>(),
    of::<jobs::Missing>(),
    of::<jobs::States>(),
    of::<jobs::Diff>(),
    of::<jobs::minions::List>(),
    of::<jobs::minions::Show>(),
    follow(
        "job_watch",
        "Wait for changes of a job",
        OF_JOBS,
        jobs::job_watch,
    ),
    of::<tokens::Create>(),
    of::<sessions::MakeLink>(),
    of::<tokens::List>(),
    of::<tokens::Revoke>(),
    follow(
        "events_follow",
        "Wait for events from a position on",
        OF_EVENTS,
        consumers::follow,
    ),
    read("events_count", "Count events", OF_EVENTS, consumers::count),
    whole(
        "consumers_list",
        "List consumers with their lag",
        Read,
        consumers::list,
    ),
    consumer(
        "consumer_create",
        "Create a consumer, or change its filter",
        CallHandler::Whole(consumers::create),
    ),
    consumer(
        "consumer_next",
        "Take the next events of a consumer",
        CallHandler::Poll(consumers::next),
    ),
    consumer(
        "consumer_ack",
        "Acknowledge events of a consumer",
        CallHandler::Whole(consumers::ack),
    ),
    consumer(
        "consumer_nack",
        "Report that events could not be processed",
        CallHandler::Whole(consumers::nack),
    ),
    consumer(
        "consumer_release",
        "End the lease of a consumer",
        CallHandler::Whole(consumers::release),
    ),
    consumer(
        "consumer_seek",
        "Move the cursor of a consumer",
        CallHandler::Whole(consumers::seek),
    ),
    consumer(
        "consumer_pause",
        "Pause a consumer",
        CallHandler::Whole(consumers::pause),
    ),
    consumer(
        "consumer_resume",
        "Resume a consumer",
        CallHandler::Whole(consumers::resume),
    ),
    consumer(
        "consumer_delete",
        "Delete a consumer",
        CallHandler::Whole(consumers::delete),
    ),
    whole(
        "sinks_list",
        "List sinks with their state and lag",
        Read,
        sinks::list,
    ),
    whole(
        "sinks_check",
        "Check that destinations of sinks are reachable",
        Write,
        sinks::check,
    ),
    whole(
        "sink_test",
        "Send the newest matching event to the destination of a sink",
        Admin,
        sinks::test,
    ),
    whole("sink_pause", "Pause a sink", Admin, sinks::pause),
    whole("sink_resume", "Resume a sink", Admin, sinks::resume),
    whole(
        "sink_seek",
        "Move the position of a sink",
        Admin,
        sinks::seek,
    ),
    whole(
        "sink_dead_letters",
        "List the dead letters of a sink",
        Read,
        sinks::dead_letters,
    ),
    whole(
        "sink_retry",
        "Deliver dead letters again",
        Admin,
        sinks::retry,
    ),
    whole("sink_drop", "Delete dead letters", Admin, sinks::drop),
    whole(
        "consumer_pin",
        "Keep unprocessed events of a consumer, or stop it",
        Admin,
        consumers::pin,
    ),
];

pub(crate) fn find(name: &str) -> Option<&'static CallEntry> {
    CALLS.iter().find(|call| call.name == name)
}

/// Encodes an answer without stored values. Answers that embed such values are written directly: a
/// document would not preserve their bytes.
pub(super) fn document(answer: &impl Serialize) -> Result<Vec<u8>, CallError> {
    Ok(encode(answer)?)
}

impl From<EncodeError> for CallError {
    fn from(error: EncodeError) -> Self {
        Self::Internal(error.to_string())
    }
}

/// Converts a store error for the caller, and logs it.
pub(in crate::api) fn failed(error: StoreError) -> CallError {
    match error {
        // The peer is gone, or the daemon stops: nobody has to look into it.
        StoreError::Stopping | StoreError::Ended(Ended::Abandoned) => {
            CallError::Unavailable(error.to_string())
        }
        // The client asked for too much work; the message says what to narrow.
        StoreError::Ended(Ended::TooLong(_)) => CallError::Refused(error.to_string()),
        error => {
            tracing::error!(%error, "cannot answer a call from the store");
            CallError::Internal(error.to_string())
        }
    }
}

/// Generates jids: the current time, or the next unused microsecond.
///
/// # Invariant
///
/// Only even microseconds. The odd ones are reserved for the extension, which generates jids while
/// the daemon is unreachable (`local_jid` in `salt/`). So the two never generate the same jid, even
/// if clocks are set.
#[derive(Debug)]
pub(crate) struct JidMaker(AtomicI64);

impl JidMaker {
    /// A generator for jids after `last`.
    pub(crate) fn after(last: Micros) -> Self {
        Self(AtomicI64::new(last.0))
    }

    /// The time of a new jid.
    pub(crate) fn next(&self, now: Micros) -> Micros {
        let after = |last: i64| {
            let at = now.0.max(last.saturating_add(1));
            at.saturating_add(at & 1)
        };
        let advance = |last: i64| Some(after(last));
        let last = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, advance)
            .unwrap_or(now.0);
        Micros(after(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jids_are_unique_even_when_the_clock_stops_or_steps_back() {
        let maker = JidMaker::after(Micros(100));
        let made = [50, 50, 200, 200, 10, 207].map(|now| maker.next(Micros(now)).0);
        assert_eq!(
            made,
            [102, 104, 200, 202, 204, 208],
            "all even: odd ones are the extension's"
        );
    }

    #[test]
    fn calls_apply_limits_exactly_if_they_read_through_a_view() {
        for call in CALLS {
            let has_view = match call.run {
                CallHandler::Read(_) | CallHandler::Follow(_) => true,
                // Checked when it is compiled.
                CallHandler::Typed(_) => continue,
                _ => false,
            };
            assert_eq!(has_view, !call.applies.is_empty(), "{}", call.name);
        }
    }

    #[test]
    fn searches_end_with_their_peer_and_changes_are_carried_out() {
        let only_reads = |name: &str| find(name).unwrap().only_reads();
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

    #[test]
    fn every_call_is_in_the_wire_page_with_its_right() {
        let page = include_str!("../../../docs/WIRE.md");
        let calls = page
            .lines()
            .skip_while(|l| *l != "## Calls of the returner");
        // Up to the next section of the page.
        let rows = calls
            .take_while(|l| !l.starts_with("# "))
            .filter(|l| l.starts_with("| `"));
        let documented: Vec<(&str, &str)> = rows
            .map(|row| {
                let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
                (cells.nth(1).unwrap(), cells.next().unwrap())
            })
            .collect();
        for call in CALLS {
            assert!(
                documented.contains(&(call.name, call.right.name())),
                "{} with the right {} is missing in docs/WIRE.md",
                call.name,
                call.right.name()
            );
        }
        for (name, _) in documented {
            assert!(
                find(name).is_some(),
                "docs/WIRE.md lists an unknown call {name}"
            );
        }
    }
}
