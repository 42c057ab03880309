//! The end of a reaction: counted, remembered if it failed, and recorded in the log.
//!
//! # Invariant
//!
//! Each task that ends is counted once and has one record, which closes its event.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Event;
use super::decide;
use super::failed::{FailedReaction, FailedReactions};
use super::record::recorder::Recorder;
use super::record::{ReactionState, Record};
use super::scheduler::task::{Task, TaskProgress};
use crate::base::clock::{Clock, Micros};
use crate::base::metrics::Metrics;
use crate::reactor::stored::{SkipReason, State};

pub(super) struct Endings {
    recorder: Arc<Recorder>,
    /// Lock order: no other lock is taken under it.
    failed: Mutex<FailedReactions>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Endings {
    pub(super) fn new(recorder: Arc<Recorder>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            recorder,
            failed: Mutex::default(),
            clock,
            metrics,
        }
    }

    /// True if too many records wait for the log for another reaction to start.
    pub(super) fn is_full(&self) -> bool {
        self.recorder.is_full()
    }

    /// Ends a reaction whose calls were made, or recorded only.
    pub(super) fn finish(&self, task: Task, progress: TaskProgress) {
        let made = progress.made.iter();
        // With calls whose outcome is unknown: both kinds are left to a replay.
        let dead = made.filter(|made| made.outcome.is_dead()).count();
        let has_failures = !progress.plan.failures.is_empty();
        let state = decide::state(task.skipped, has_failures, progress.made.len(), dead);
        let now = self.clock.now();
        self.count(&state);
        self.remember(&task, &state, now);

        let record = Record {
            event: task.event,
            rules: task.rules,
            rule_count: task.rule_count,
            state,
            started_at: progress.started_at,
            ended: now,
            plan: progress.plan,
            calls: progress.made,
            replay: task.replay,
            depth: task.depth,
        };

        self.recorder.write(record.batch(now));
    }

    /// Ends a task that is not rendered, for that reason.
    pub(super) fn skip(&self, task: Task, why: SkipReason) {
        self.count(&ReactionState::Skipped(why));

        // Only these reasons can mean that wanted work is lost.
        if why.may_lose_work() {
            tracing::warn!(
                event = task.event.seq.0, tag = task.event.tag, rules = ?task.rules, why = why.name(),
                "reaction skipped; run `saltcellar reactor replay EVENT` to make its calls"
            );
        }

        let now = self.clock.now();
        let mut record = Record::skipped(task.event, task.rules, task.rule_count, why, now);
        record.replay = task.replay;
        self.recorder.write(record.batch(now));
    }

    /// Ends an open event that no current rule matches.
    pub(super) fn skip_unmatched(&self, event: Event) {
        self.count(&ReactionState::Skipped(SkipReason::NoRule));
        let now = self.clock.now();
        let record = Record::skipped(event, Vec::new(), 0, SkipReason::NoRule, now);
        self.recorder.write(record.batch(now));
    }

    /// Counts an event that retention has deleted, which has no record.
    pub(super) fn skip_deleted(&self) {
        self.count(&ReactionState::Skipped(SkipReason::NoRule));
    }

    fn count(&self, state: &ReactionState) {
        let metrics = &self.metrics;
        match state {
            ReactionState::Done => &metrics.reactions_done,
            ReactionState::Partial => &metrics.reactions_partial,
            ReactionState::Failed => &metrics.reactions_failed,
            ReactionState::Dead => &metrics.reactions_dead,
            ReactionState::Skipped(why) => match why {
                SkipReason::TooOld => &metrics.reactions_skipped_too_old,
                SkipReason::Debounced => &metrics.reactions_skipped_debounced,
                SkipReason::OncePer => &metrics.reactions_skipped_once_per,
                SkipReason::Rate => &metrics.reactions_skipped_rate,
                SkipReason::Budget => &metrics.reactions_skipped_budget,
                SkipReason::Depth => &metrics.reactions_skipped_depth,
                SkipReason::NoRule => &metrics.reactions_skipped_no_rule,
                SkipReason::Peer => &metrics.reactor_events_ignored_other_master,
            },
        }
        .add(1);
    }

    /// Keeps the failed reactions for `status`.
    fn remember(&self, task: &Task, state: &ReactionState, now: Micros) {
        let mut failed = self.failed.lock();
        match state {
            ReactionState::Done => failed.succeeded(task.event.seq, &task.rules),
            ReactionState::Partial | ReactionState::Failed | ReactionState::Dead => {
                failed.add(FailedReaction {
                    at: now,
                    event: task.event.seq,
                    tag: task.event.tag.clone(),
                    rules: task.rules.clone(),
                });
            }
            ReactionState::Skipped(_) => {}
        }
    }

    /// The number of failed reactions of the last day that were not replayed, and the latest.
    pub(super) fn recently_failed(&self) -> Option<(u64, FailedReaction)> {
        self.failed.lock().recent(self.clock.now())
    }

    /// Number of reactions since the start, by final state: done, failed, partial, dead.
    pub(super) fn counts(&self) -> [(State, u64); 4] {
        let metrics = &self.metrics;
        [
            (State::Done, metrics.reactions_done.get()),
            (State::Failed, metrics.reactions_failed.get()),
            (State::Partial, metrics.reactions_partial.get()),
            (State::Dead, metrics.reactions_dead.get()),
        ]
    }
}
