//! The outcome of calls whose response was lost.
//!
//! # Invariant
//!
//! A call without a response is `found` only if the log proves it: a return or `publish` of the job,
//! or an unclaimed start of the runner.

use std::time::Duration;

use super::super::decide::searches_on;
use super::super::scheduler::task::{RuleSet, Task, TaskProgress, Unanswered};
use super::{Calls, SeqNo, TryResult, start_of};
use crate::base::limits::REACTOR_MASTER_RETRY;
use crate::model::Kind;
use crate::reactor::master::{Call, Client};
use crate::reactor::{CallOutcome, CallRecord};

impl Calls {
    /// The jid of a call that was executed according to the log. A job has the same jid at each
    /// try, even after a restart. It is proved by a return, or by the event `publish`, which 3007
    /// and 3008 fire as they send it. Neither `new` nor the load in the job cache prove it: both
    /// come before, and a master that is killed in between sends nothing. `error` means that the
    /// master refused the job.
    pub(super) fn find_in_log(&self, made: &CallRecord, since: SeqNo) -> Option<String> {
        if let Some(start) = start_of(&made.call) {
            return self.traces.find(&start, since);
        }
        if made.jid.is_empty() {
            return None;
        }

        let publish = format!("salt/job/{}/publish", made.jid);
        let proves = |kind, tag: &[u8]| kind == Kind::Return || tag == publish.as_bytes();
        match self.log.job_entries_with(&made.jid, |_| false) {
            Ok(entries) => entries
                .iter()
                .any(|entry| proves(entry.kind, &entry.tag))
                .then(|| made.jid.clone()),
            // What cannot be read proves nothing. A further try is safe under the same jid.
            Err(error) => {
                tracing::warn!(%error, jid = made.jid, "cannot check whether a call's job exists, retrying the call under the same job id");
                None
            }
        }
    }

    /// The state of a call that has no response and is not resent.
    pub(super) fn unanswered(&self, why: String, search: Duration) -> Unanswered {
        Unanswered {
            why,
            until: self.clock.now().after(search),
            end: None,
        }
    }

    /// Searches the log for a call that is not resent. A busy master may start a runner long
    /// after the request, so the search is repeated until its end.
    pub(super) fn settle(
        &self,
        task: &Task,
        progress: &mut TaskProgress,
        mut made: CallRecord,
        mut unanswered: Unanswered,
    ) -> TryResult {
        // The position is read before the search: a start before it is certainly found.
        let (now, read) = (self.clock.now(), self.keeper.cursor());
        made.tries = progress.tries;

        if let Some(jid) = self.find_in_log(&made, progress.since) {
            return self.found(task, made, jid);
        }

        let may_start_late = made.call.client.is_of_master();
        let has_time = now < unanswered.until
            || read < *unanswered.end.get_or_insert_with(|| self.log.durable());
        if !searches_on(may_start_late, has_time) {
            return self.unknown(task, made, unanswered.why);
        }

        progress.unanswered = Some(unanswered);
        TryResult::Pause(now.after(REACTOR_MASTER_RETRY))
    }

    pub(super) fn found(&self, task: &Task, mut made: CallRecord, jid: String) -> TryResult {
        self.traces.found(&jid, task.depth);
        tracing::info!(
            event = task.event.seq.0,
            id = made.call.id,
            jid,
            "call without a response was executed"
        );

        // Its slot was freed when the response was lost.
        if made.call.client == Client::Runner {
            let rules = RuleSet::from(&*task.rules);
            self.slots.found(&rules, &made.call.fun, &jid);
        }

        made.jid = jid;
        made.outcome = CallOutcome::Found;
        TryResult::Finished(made)
    }

    pub(super) fn dead(&self, task: &Task, mut made: CallRecord, why: String) -> TryResult {
        self.metrics.reactor_calls_dead.add(1);
        let Call {
            id,
            sls,
            client,
            fun,
            ..
        } = &made.call;
        tracing::error!(
            event = task.event.seq.0, tag = task.event.tag, sls, id, client = client.name(), fun, rules = ?task.rules, why,
            "call of a reaction dead-lettered: correct the cause and run `saltcellar reactor replay EVENT`"
        );
        made.outcome = CallOutcome::Dead { why };
        TryResult::Finished(made)
    }

    pub(super) fn unknown(&self, task: &Task, mut made: CallRecord, why: String) -> TryResult {
        self.metrics.reactor_calls_unknown.add(1);
        tracing::error!(
            event = task.event.seq.0,
            tag = task.event.tag,
            sls = made.call.sls,
            id = made.call.id,
            why,
            "outcome of a call unknown, not retrying it: see `saltcellar reactor history --state dead`"
        );
        made.outcome = CallOutcome::Unknown { why };
        TryResult::Finished(made)
    }
}
