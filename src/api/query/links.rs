//! Links between jobs and the jobs that started them.
//!
//! # The rule
//!
//! Salt's references, observed on masters of 3006.28 and 3008.3 (`salt/states/saltmod.py`,
//! `salt/modules/saltutil.py`):
//!
//! - An orchestration names the jobs that it started: each state of its result has the job's id in
//!   `__jid__`, for jobs of minions (`salt.state`, `salt.function`), of a runner or of a wheel. So
//!   they are known after its end. `salt.parallel_runners` names none.
//! - A nested orchestration names the outer one from its start: `orchestration_jid` in the
//!   arguments of `salt/run/<jid>/new`. In the outermost one this is its own jid.
//!
//! Other runners (`salt.execute`), `publish`, and the reactor leave no reference, and batches of
//! 3006 are independent jobs; such jobs have no links.

use super::job::Job;
use super::jobs::settled;
use crate::base::clock::Micros;
use crate::base::limits::{LINK_JOBS_SEEN, LINK_RUNS_READ, LINK_SPAN};
use crate::model::JidKey;
use crate::store::{StoreError, StoreView};
use crate::wire::msgpack::as_text;

answers! {
    /// A job started by a state of another one.
    Child {
        jid: String,
        id: String,
        /// The function of that state: `salt.state`, `salt.function`, `salt.runner`, `salt.wheel`.
        fun: String,
        /// The function that it ran, or the state's name.
        name: String,
        /// The result of that state.
        result: Option<bool>,
    }
}

/// The jobs that a job started, in order.
pub(crate) fn children(job: &Job) -> Vec<Child> {
    let mut found: Vec<Child> = Vec::new();
    // Only an orchestration starts jobs, and its result is a runner's.
    for answer in job
        .answers
        .values()
        .filter(|answer| super::answer::names_jobs(&answer.entry))
    {
        for row in answer.states() {
            // A job that names itself would be its own child.
            let Some(jid) = row.job.filter(|jid| !jid.is_empty() && *jid != job.jid) else {
                continue;
            };
            if found.iter().any(|known| known.jid == jid) {
                continue;
            }

            let (id, name) = (row.id.to_owned(), row.name.to_owned());
            found.push(Child {
                jid: jid.to_owned(),
                id,
                name,
                fun: row.fun.clone(),
                result: row.result,
            });
        }
    }
    found
}

/// The job that started this one: named in its own load, or else an orchestration that started at
/// most [`LINK_SPAN`] earlier and names it. Scans a limited number of jobs.
pub(crate) fn parent(store: &StoreView, job: &Job) -> Result<Option<String>, StoreError> {
    // A nested orchestration states its parent, which needs no search.
    if job.parent.is_some() {
        return Ok(job.parent.clone());
    }

    let key = JidKey::of(&job.jid);
    // Without a time in the jid there is no span to search.
    let Some(started) = key.time() else {
        return Ok(None);
    };

    let span = i64::try_from(LINK_SPAN.as_micros()).unwrap_or(i64::MAX);
    let oldest = Micros(started.0.saturating_sub(span));

    let mut read = 0;
    for (key, row) in store.jobs_before(Some(key), LINK_JOBS_SEEN)?.rows {
        if key.time().is_none_or(|at| at < oldest) || read == LINK_RUNS_READ {
            break;
        }
        let row = settled(store, row)?;
        // Nothing but an orchestration names the jobs that it started.
        if !as_text(&row.fun).is_some_and(|fun| fun.starts_with("runner.state.")) {
            continue;
        }

        read += 1;
        let Some(run) = Job::read_load(store, &row.jid)? else {
            continue;
        };

        if children(&run).iter().any(|child| child.jid == job.jid) {
            return Ok(Some(row.jid));
        }
    }

    Ok(None)
}
