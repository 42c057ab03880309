//! Replay of failed reactions on request.

use std::sync::Arc;

use super::record::call_key;
use super::scheduler::task::{Task, TaskProgress};
use super::tasks::Tasks;
use super::{Event, ReactionPlan, events};
use crate::base::clock::Micros;
use crate::model::SeqNo;
use crate::reactor::call::CallOutcome;
use crate::reactor::master::Call;
use crate::reactor::stored::StoredRecord;
use crate::store::StoredEntry;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("entry {0} is not a reaction: `saltcellar reactor history` lists reactions")]
    NotAReaction(SeqNo),
    #[error(
        "reaction {0} has no dead-lettered call; --include-done repeats every call, --render rerenders the event"
    )]
    NothingDeadLettered(SeqNo),
    #[error(
        "the record of reaction {0} lacks the calls, because they were too large; --render rerenders the event"
    )]
    TooLarge(SeqNo),
    #[error("event {0} is no longer in the log, and cannot be rendered: retention has deleted it")]
    EventGone(SeqNo),
    #[error("no current rule matches event {0}: `saltcellar reactor rules` shows the rules")]
    NoRule(SeqNo),
    #[error(
        "the reactor of the master {0} leads, and this one makes no calls: run the command there"
    )]
    Follows(String),
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replayed {
    Calls(usize),
    Rules(usize),
}

struct ReplaySource {
    event: Event,
    rules: Vec<Arc<str>>,
    rule_count: usize,
    /// Each with whether it was dead-lettered.
    calls: Vec<(Call, bool)>,
    whole: bool,
    failed: bool,
}

/// Queues reactions that were handled before.
#[derive(Clone)]
pub(super) struct Replays(pub(super) Arc<Tasks>);

impl Replays {
    /// Makes the dead-lettered calls of a record, or `all` of its calls. If a part failed to
    /// render, it renders the record's rules again and omits the calls that were made.
    pub(super) fn replay(&self, record: &StoredEntry, all: bool) -> Result<Replayed, ReplayError> {
        let source = read(record).ok_or(ReplayError::NotAReaction(record.seq))?;

        // Calls of the part that failed are known only once it is rerendered.
        if source.failed {
            let made = source
                .calls
                .iter()
                .filter(|(_, dead_lettered)| !dead_lettered && !all);
            let made: Vec<_> = made.map(|(call, _)| call_key(call)).collect();
            return self.render_again(record.seq, source.event.seq, Some(&source.rules), &made);
        }

        let calls: Vec<Call> = source
            .calls
            .into_iter()
            .filter(|(_, dead_lettered)| *dead_lettered || all)
            .map(|(call, _)| call)
            .collect();

        if calls.is_empty() {
            return Err(if source.whole {
                ReplayError::NothingDeadLettered(record.seq)
            } else {
                ReplayError::TooLarge(record.seq)
            });
        }

        let (count, now) = (calls.len(), self.0.clock.now());
        let plan = ReactionPlan {
            calls,
            ..ReactionPlan::default()
        };
        // A replay is a new job, so nothing of it can have been sent before.
        let progress = TaskProgress::of(&source.event, now, plan, false);
        self.queue_replay(
            source.event,
            source.rules,
            source.rule_count,
            record.seq,
            Some(Box::new(progress)),
            Vec::new(),
        );

        Ok(Replayed::Calls(count))
    }

    /// Renders an event again with all current rules.
    pub(super) fn replay_event(&self, seq: SeqNo) -> Result<Replayed, ReplayError> {
        self.render_again(seq, seq, None, &[])
    }

    /// Renders an event again with its current rules, or with those in `only`. `replayed` is the
    /// entry that the new records name as the replayed one.
    fn render_again(
        &self,
        replayed: SeqNo,
        event: SeqNo,
        only: Option<&[Arc<str>]>,
        already_made: &[u64],
    ) -> Result<Replayed, ReplayError> {
        let seq = event;
        let event = events::load(&self.0.log, seq)?.ok_or(ReplayError::EventGone(seq))?;

        // Unlike on arrival, rules that are newer than the event count: they are asked for now.
        let mut rules = self.0.in_use.rules().matching(&event.tag);
        rules.retain(|rule| only.is_none_or(|only| only.contains(rule)));
        if rules.is_empty() {
            return Err(ReplayError::NoRule(seq));
        }

        let count = rules.len();
        let settings = self.0.in_use.settings();
        for (rules, _) in settings.groups(rules) {
            self.queue_replay(
                event.clone(),
                rules,
                count,
                replayed,
                None,
                already_made.to_vec(),
            );
        }

        Ok(Replayed::Rules(count))
    }

    fn queue_replay(
        &self,
        event: Event,
        rules: Vec<Arc<str>>,
        rule_count: usize,
        record: SeqNo,
        progress: Option<Box<TaskProgress>>,
        already_made: Vec<u64>,
    ) {
        let settings = self.0.in_use.settings();
        let options = settings.options_of(&rules).clone();
        // Without the marks of earlier calls in the log, because a replay is a new job.
        let task = Task::new(event, rules, rule_count, options);

        self.0.offer(Task {
            replay: Some(record),
            already_made,
            progress,
            ..task
        });
    }
}

fn read(record: &StoredEntry) -> Option<ReplaySource> {
    let tag = std::str::from_utf8(&record.tag).ok()?;
    let tag = tag.strip_prefix(crate::model::REACTION_TAG)?;
    let stored = StoredRecord::read(&record.body).ok()?;
    let failed = stored.failures().next().is_some();

    // Without its body: the calls are made as they were recorded.
    let event = Event {
        seq: SeqNo(stored.event),
        at: Micros(stored.at),
        tag: tag.to_owned(),
        minion: record.minion.clone(),
        ..Event::default()
    };

    let mut source = ReplaySource {
        event,
        rules: stored.rules.into_iter().map(Into::into).collect(),
        rule_count: usize::try_from(stored.of).ok()?,
        calls: Vec::new(),
        whole: true,
        failed,
    };

    for made in stored.calls {
        // The record omits a load that was too large.
        if made.call.load.is_empty() {
            source.whole = false;
            continue;
        }

        // A shadowed call was not made either, and this is how it can be made after the fact.
        let dead_lettered = made.outcome.is_dead() || made.outcome == CallOutcome::Shadowed;
        source.calls.push((made.call, dead_lettered));
    }

    Some(source)
}
