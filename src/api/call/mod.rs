//! Calls: what can be asked over the local socket, one entry each in [`CALLS`]. `docs/WIRE.md` has the shapes.
//!
//! A reading call answers msgpack. A writing call makes entries to store, and the answer to give once they are on
//! disk. Neither waits for the disk itself, the socket does.

mod cache;
mod jobs;
mod lists;
mod reactor;
mod rights;
mod send;
mod shadow;
mod store;
mod writes;

pub use jobs::Watches;
pub use rights::{Caller, Rights};
pub use store::prune_answer;
pub(in crate::api) use writes::signed_return;

use std::borrow::Cow;
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
use crate::model::{Drafts, Right};
use crate::reactor::run::engine::Handle;
use crate::store::{Store, StoreError};
use crate::wire::call::{Args, CallError};
use crate::wire::salt_codec::repaired;

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
    /// What peers of the local socket may do.
    pub rights: Rights,
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
    Read(ReadCall),
    /// As [`Run::Read`], with a look at the caller's uid.
    Act(fn(&Ctx, &Args<'_>, Caller) -> Result<Vec<u8>, CallError>),
    /// Puts entries to store into the drafts; the answer is given once they are on disk.
    Write(WriteCall),
}

impl Run {
    /// The answer of a call that stores nothing. Values in it that Salt's codec cannot read are replaced: stores of earlier
    /// releases hold such values, and one of them makes the answer around it unreadable.
    pub(super) fn answer(&self, ctx: &Ctx, args: &Args<'_>, caller: Caller) -> Result<Vec<u8>, CallError> {
        let answer = match self {
            Run::Read(run) => run(ctx, args)?,
            Run::Act(run) => run(ctx, args, caller)?,
            Run::Write(_) => return Err(CallError::Internal("a writing call went astray".to_owned())),
        };
        match repaired(&answer) {
            Ok(Cow::Borrowed(_)) => Ok(answer),
            Ok(Cow::Owned(repaired)) => Ok(repaired),
            Err(error) => {
                tracing::error!(%error, "answer dropped: it contains a stored value that is not msgpack");
                Err(CallError::Internal(format!(
                    "the answer contains a stored value that is not msgpack: {error}"
                )))
            }
        }
    }
}

/// A writing call.
pub type WriteCall = fn(&Ctx, &Args<'_>, &mut Drafts<'_>) -> Result<Vec<u8>, CallError>;

/// One call.
pub struct Call {
    /// Its name on the wire.
    pub name: &'static str,
    /// What it does, in a line.
    pub doc: &'static str,
    /// The right that a peer of the local socket needs for it.
    pub right: Right,
    /// How.
    pub run: Run,
}

type ReadCall = fn(&Ctx, &Args<'_>) -> Result<Vec<u8>, CallError>;

const fn read(name: &'static str, doc: &'static str, right: Right, run: ReadCall) -> Call {
    Call { name, doc, right, run: Run::Read(run) }
}

const fn write(name: &'static str, doc: &'static str, right: Right, run: WriteCall) -> Call {
    Call { name, doc, right, run: Run::Write(run) }
}

use Right::{Admin, Read, Write};

/// Every call there is.
pub const CALLS: &[Call] = &[
    write("prep_jid", "a jid for a job: the one passed, or a new one", Write, writes::prep_jid),
    write("save_load", "keep a job as it was published", Write, writes::save_load),
    write("save_minions", "add minions that a syndic reported for a job", Write, writes::save_minions),
    write("returner", "keep one minion's return", Write, writes::returner),
    write("update_endtime", "keep when a job ended", Write, writes::update_endtime),
    write("event_return", "archive a batch of events", Write, writes::event_return),
    write("save_reg", "keep Thorium's register", Admin, writes::save_reg),
    write("clean_old_jobs", "let go of jobs that are old enough", Admin, writes::clean_old_jobs),
    read("get_load", "a job as it was published, with its minions", Read, cache::get_load),
    read("get_jid", "the returns of a job by minion", Read, cache::get_jid),
    read("get_jids", "every job in short", Read, cache::get_jids),
    read("get_jids_filter", "the newest jobs in short", Read, cache::get_jids_filter),
    read("get_fun", "per minion the last job that ran a function", Read, cache::get_fun),
    read("get_minions", "every minion that has returned a job", Read, cache::get_minions),
    read("get_endtime", "when a job ended", Read, cache::get_endtime),
    read("load_reg", "Thorium's register as kept last", Read, cache::load_reg),
    read("status", "the daemon, its doors and its store", Read, lists::status),
    read("events_list", "events, the latest first", Read, lists::events_list),
    read("entries", "what is stored, entry by entry: of a job, or of the log", Read, lists::entries),
    Call {
        name: "event_send",
        doc: "fire an event onto Salt's bus",
        right: Admin,
        run: Run::Act(send::event_send),
    },
    read("jobs_list", "jobs, the latest first", Read, jobs::jobs_list),
    read("store_stats", "the store in figures", Read, store::stats),
    read("store_prune", "let go of what exceeds bounds, or say what would go", Admin, store::prune),
    read("store_hold", "hold a job, or let go of it", Admin, store::hold),
    read("store_holds", "the jobs that are held", Read, store::holds),
    read("reactor_list", "the reactor and its rules", Read, reactor::list),
    read("reactor_history", "what the reactor did, the latest first", Read, reactor::history),
    read("reactor_show", "one reaction, with what became of it", Read, reactor::show),
    read("reactor_why", "which rules take a tag, and what was done about it", Read, reactor::why),
    read("reactor_shadow", "calls of our reactor and of Salt's, to compare them", Read, shadow::shadow),
    read("reactor_replay", "do again what was dead-lettered", Admin, reactor::replay),
    read("job_show", "one job with its returns", Read, jobs::job_show),
    read("job_states", "the states that a job ran, a row each", Read, jobs::job_states),
    read("job_diff", "how two runs of a job differ", Read, jobs::job_diff),
    read("job_watch", "what is new of a job, and a wait for it", Read, jobs::job_watch),
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
    fn every_call_is_in_the_wire_page_with_its_right() {
        let page = include_str!("../../../docs/WIRE.md");
        let calls = page.lines().skip_while(|l| *l != "## Calls of the returner");
        // Up to the next part of the page.
        let rows = calls.take_while(|l| !l.starts_with("# ")).filter(|l| l.starts_with("| `"));
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
            assert!(find(name).is_some(), "docs/WIRE.md has a call {name} that does not exist");
        }
    }
}
