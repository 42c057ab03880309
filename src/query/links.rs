//! Which job started which.
//!
//! # The rule
//!
//! What Salt says of it, found on masters of 3006.28 and 3008.3 (`salt/states/saltmod.py`, `salt/modules/saltutil.py`):
//!
//! - An orchestration names the jobs that it started: each state of its result has the job's id in `__jid__`, be it
//!   one of minions (`salt.state`, `salt.function`), of a runner or of a wheel. So they are known once it has ended.
//!   `salt.parallel_runners` names none.
//! - A nested orchestration names the one around it, from its start on: `orchestration_jid` in the arguments of
//!   `salt/run/<jid>/new`. In the outermost one that is its own jid.
//!
//! Other runners (`salt.execute`), `publish`, and the reactor leave no such word, and 3006's batches are jobs of their own;
//! such jobs stand alone.

use super::job::Job;
use super::states::state_rows;
use crate::clock::Micros;
use crate::limits::{LINK_JOBS_SEEN, LINK_RUNS_READ, LINK_SPAN};
use crate::model::{JidKey, Kind};
use crate::store::{Store, StoreError, StoredEntry};
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, as_text};

/// A job that another one started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Its id.
    pub jid: String,
    /// The id of the state that started it.
    pub id: String,
    /// What that state ran: `salt.state`, `salt.function`, `salt.runner`, `salt.wheel`.
    pub fun: String,
    /// What it was about: a function, or the state's name.
    pub name: String,
    /// What came of it.
    pub result: Option<bool>,
}

/// The jobs that a job says it started, in the order in which it did.
pub fn children(job: &Job) -> Vec<Child> {
    let mut found: Vec<Child> = Vec::new();
    for answer in job.answers.values().filter(|answer| super::answer::tells_by_body(&answer.entry)) {
        for row in state_rows(answer) {
            let Some(jid) = row.job.filter(|jid| !jid.is_empty() && *jid != job.jid) else { continue };
            if found.iter().any(|known| known.jid == jid) {
                continue;
            }
            let (id, name) = (row.id.to_owned(), row.name.to_owned());
            found.push(Child { jid: jid.to_owned(), id, name, fun: row.fun.clone(), result: row.result });
        }
    }
    found
}

/// The job around this one, as `fun_args` have it.
pub(super) fn parent_in_args(args: Option<&[u8]>, own: &str) -> Option<String> {
    let named = msgpack::elements(args?).filter_map(|arg| msgpack::get(arg, "orchestration_jid"));
    named.filter_map(id_text).find(|jid| jid != own)
}

/// The same of the event with which a runner starts or ends.
pub(super) fn parent_in_event(entry: &StoredEntry) -> Option<String> {
    let is_run = entry.kind == Kind::Event && entry.tag.starts_with(b"salt/run/");
    let args = msgpack::get(&entry.body, "fun_args").filter(|_| is_run);
    parent_in_args(args, &entry.jid)
}

/// The job that started this one: what it says itself, else an orchestration begun within [`LINK_SPAN`] before it that
/// names it. Looks at a bounded number of jobs.
pub fn parent(store: &Store, job: &Job) -> Result<Option<String>, StoreError> {
    if job.parent.is_some() {
        return Ok(job.parent.clone());
    }
    let key = JidKey::of(&job.jid);
    let Some(started) = key.time() else { return Ok(None) };
    let span = i64::try_from(LINK_SPAN.as_micros()).unwrap_or(i64::MAX);
    let oldest = Micros(started.0.saturating_sub(span));
    let mut read = 0;
    for (key, row) in store.jobs_before(Some(key), LINK_JOBS_SEEN)? {
        if key.time().is_none_or(|at| at < oldest) || read == LINK_RUNS_READ {
            break;
        }
        if !as_text(&row.fun).is_some_and(|fun| fun.starts_with("runner.state.")) {
            continue;
        }
        read += 1;
        let Some(run) = Job::read_load(store, &row.jid)? else { continue };
        if children(&run).iter().any(|child| child.jid == job.jid) {
            return Ok(Some(row.jid));
        }
    }
    Ok(None)
}
