//! What is scheduled: an event with the rules that are rendered together for it, and how far its reaction is.

use std::sync::Arc;

use crate::base::clock::Micros;
use crate::model::RuleOptions;
use crate::reactor::CallRecord;
use crate::reactor::run::record::recorder::PendingRecord;
use crate::reactor::run::{Event, ReactionPlan, SeqNo};
use crate::reactor::stored::SkipReason;

/// Patterns of rules that are rendered together.
pub(crate) type RuleSet = Arc<[Arc<str>]>;

/// An event with a set of matching rules.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// The event. Its body is empty in a replay of calls.
    pub(crate) event: Event,
    pub(crate) rules: Vec<Arc<str>>,
    /// Number of rules that matched the event, including rules of other tasks.
    pub(crate) rule_count: usize,
    /// Index of the first of `rules` among those.
    pub(crate) rule_index: usize,
    pub(crate) options: Arc<RuleOptions>,
    /// Length of the chain of reactions that led to the event.
    pub(crate) depth: u32,
    /// Keys of the calls that were started before the daemon's last start.
    pub(crate) started_calls: Vec<u64>,
    /// True if the daemon was restarted since the event arrived.
    pub(crate) resumed: bool,
    /// The record that this task replays.
    pub(crate) replay: Option<SeqNo>,
    /// Keys of the calls that the replayed record had made.
    pub(crate) already_made: Vec<u64>,
    /// In shadow: why the task would be skipped. It is rendered anyway, to explain calls that only
    /// Salt's reactor makes.
    pub(crate) skipped: Option<SkipReason>,
    /// Its state; `None` before its first turn.
    pub(crate) progress: Option<Box<TaskProgress>>,
}

impl Task {
    pub(crate) fn new(
        event: Event,
        rules: Vec<Arc<str>>,
        rule_count: usize,
        options: Arc<RuleOptions>,
    ) -> Self {
        Self {
            event,
            rules,
            rule_count,
            options,
            ..Self::default()
        }
    }
}

#[derive(Debug)]
pub(crate) struct TaskProgress {
    /// Time of its first turn.
    pub(crate) started_at: Micros,
    pub(crate) plan: ReactionPlan,
    pub(crate) made: Vec<CallRecord>,
    /// Number of tries of the next call.
    pub(crate) tries: u32,
    /// True if an earlier try of the next call may have reached the master.
    pub(crate) maybe_sent: bool,
    /// True if the log contains a mark that the next call was started.
    pub(crate) start_recorded: bool,
    /// Such a mark whose storage takes too long.
    pub(crate) mark: Option<PendingRecord>,
    /// End of the log when the next call was first sent.
    pub(crate) since: SeqNo,
    /// Set if the next call was sent, has no response, and must not be resent.
    pub(crate) unanswered: Option<Unanswered>,
}

/// A call that was sent once and has no response.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) why: String,
    /// End of the search for proof of execution in the log.
    pub(crate) until: Micros,
    /// End of the log at that time; the search ends when the log has been read up to it.
    pub(crate) end: Option<SeqNo>,
}

impl TaskProgress {
    pub(crate) fn of(
        event: &Event,
        started_at: Micros,
        plan: ReactionPlan,
        maybe_sent: bool,
    ) -> Self {
        let (made, since) = (Vec::new(), event.seq);

        // Where the log ended at a first try before a restart is not known, so the search for proof
        // begins at the event.
        Self {
            started_at,
            plan,
            made,
            tries: 0,
            maybe_sent,
            start_recorded: false,
            mark: None,
            since,
            unanswered: None,
        }
    }

    /// True if a call of the task may have been sent.
    pub(crate) fn may_have_sent(&self) -> bool {
        !self.made.is_empty() || self.maybe_sent || self.unanswered.is_some()
    }

    /// Adds a finished call. After a restart the next call may have been tried as well.
    pub(crate) fn finish_call(&mut self, made: CallRecord, task: &Task) {
        self.made.push(made);
        self.tries = 0;
        self.maybe_sent = task.resumed;
        self.start_recorded = false;
        self.mark = None;
        self.since = task.event.seq;
        self.unanswered = None;
    }
}
