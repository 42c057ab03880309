//! What became of a call, where the master's answer alone does not tell.

use std::time::Duration;

use super::engine::Shared;
use super::queues::Rules;
use super::record::{Made, Outcome, client};
use super::scheduler::{Progress, Task, Unanswered};
use super::worker::Tried;
use super::{SeqNo, What, lock, micros};
use crate::clock::Micros;
use crate::limits::REACTOR_MASTER_RETRY;
use crate::master::Cmd;
use crate::model::Kind;
use crate::reactor::shadow::{self, Act};

/// A call that may have been carried out is not sent again. A job is, unless its rule says otherwise: minions run a jid once.
pub(super) fn is_made_once(task: &Task, what: &What) -> bool {
    let options = &task.options;
    options.at_most_once || (start_of(what).is_some() && !options.retry_unanswered)
}

/// What the master's event of its start shows of a runner or a wheel function; none for other calls.
pub(super) fn start_of(what: &What) -> Option<Act> {
    let What::Executor(call) = what else { return None };
    (call.cmd != Cmd::Publish).then(|| shadow::asked(client(what), &call.fun, Some(&call.load)))
}

impl Shared {
    /// The jid of a call that the log shows to have been carried out. A job has the same jid at each try, also after a start; it was
    /// published if a minion answered, or the master fired `publish`, which 3007 and 3008 do as they send it. Neither `new` nor the load in
    /// the job cache prove that: both come before, and a master that is killed then sends nothing; and `error` means that it refused.
    pub(super) fn is_there(&self, made: &Made, since: SeqNo) -> Option<String> {
        if let Some(act) = start_of(&made.wanted.what) {
            return lock(&self.starts).find(&act, since);
        }
        if made.jid.is_empty() {
            return None;
        }
        let publish = format!("salt/job/{}/publish", made.jid);
        let proves = |kind, tag: &[u8]| kind == Kind::Return || tag == publish.as_bytes();
        match self.store.job_entries_with(&made.jid, |_| false) {
            Ok(entries) => {
                entries.iter().any(|entry| proves(entry.kind, &entry.tag)).then(|| made.jid.clone())
            }
            Err(error) => {
                tracing::warn!(%error, jid = made.jid, "could not look whether a job is there already");
                None
            }
        }
    }

    /// A call that is not sent again although there is no answer.
    pub(super) fn unanswered(&self, why: String, search: Duration) -> Unanswered {
        Unanswered { why, until: Micros(self.clock.now().0 + micros(search)), end: None }
    }

    /// What became of a call that is not sent again. A busy master may start a runner long after the request, so the log is searched for a
    /// while.
    pub(super) fn settle(
        &self,
        task: &Task,
        progress: &mut Progress,
        mut made: Made,
        mut unanswered: Unanswered,
    ) -> Tried {
        let (now, read) = (self.clock.now(), lock(&self.checkpoint).cursor);
        made.tries = progress.tries;
        if let Some(jid) = self.is_there(&made, progress.since) {
            return self.found(task, made, jid);
        }
        let may_come = start_of(&made.wanted.what).is_some()
            && (now < unanswered.until || read < *unanswered.end.get_or_insert_with(|| self.store.durable()));
        if !may_come {
            return self.unknown(task, made, unanswered.why);
        }
        progress.unanswered = Some(unanswered);
        Tried::Again(Micros(now.0 + micros(REACTOR_MASTER_RETRY)))
    }

    pub(super) fn found(&self, task: &Task, mut made: Made, jid: String) -> Tried {
        lock(&self.job_depths).note(&jid, task.depth);
        tracing::info!(
            event = task.event.seq.0,
            id = made.wanted.id,
            jid,
            "a call without an answer was carried out"
        );
        if let What::Executor(call) = &made.wanted.what
            && call.cmd == Cmd::Runner
        {
            self.runner_found(&Rules::from(&*task.rules), &call.fun, &jid);
        }
        (made.jid, made.outcome) = (jid, Outcome::Found);
        Tried::Over(made)
    }

    pub(super) fn dead(&self, task: &Task, mut made: Made, why: String) -> Tried {
        self.metrics.reactor_calls_dead.add(1);
        let wanted = &made.wanted;
        let fun = match &wanted.what {
            What::Executor(call) => &call.fun,
            What::Caller { fun, .. } => fun,
        };
        // Salt's words, and ours behind them.
        tracing::error!(
            event = task.event.seq.0, tag = task.event.tag, sls = wanted.sls, rules = ?task.rules, why,
            "Reactor '{}' failed to execute {} '{fun}'", wanted.id, client(&wanted.what)
        );
        made.outcome = Outcome::Dead(why);
        Tried::Over(made)
    }

    pub(super) fn unknown(&self, task: &Task, mut made: Made, why: String) -> Tried {
        self.metrics.reactor_calls_unknown.add(1);
        tracing::error!(
            event = task.event.seq.0,
            tag = task.event.tag,
            sls = made.wanted.sls,
            id = made.wanted.id,
            why,
            "nobody knows whether a reaction's call was made; it is not made again"
        );
        made.outcome = Outcome::Unknown(why);
        Tried::Over(made)
    }
}
