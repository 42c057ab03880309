//! Replay of failed reactions on request.

use std::sync::Arc;

use salt_sls::{Map, Value};

use super::call_key;
use crate::base::clock::Micros;
use crate::model::SeqNo;
use crate::reactor::master::{Call, Client};
use crate::reactor::run::engine::Handle;
use crate::reactor::run::scheduler::{Task, TaskProgress};
use crate::reactor::run::{Event, PlannedCall, ReactionPlan};
use crate::store::StoredEntry;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("entry {0} is not a reaction")]
    NotAReaction(SeqNo),
    #[error(
        "reaction {0} has no dead-lettered call; --all repeats every call, --render renders the event again"
    )]
    NothingDeadLettered(SeqNo),
    #[error(
        "the record of reaction {0} lacks the calls, because they were too large; --render renders the event again"
    )]
    TooLarge(SeqNo),
    #[error("event {0} is no longer in the log")]
    EventGone(SeqNo),
    #[error("no current rule matches event {0}")]
    NoRule(SeqNo),
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
    calls: Vec<(PlannedCall, bool)>,
    whole: bool,
    failed: bool,
}

impl Handle {
    /// Makes the dead-lettered calls of a record, or `all` of its calls. If a part failed to
    /// render, it renders the record's rules again and omits the calls that were made.
    pub(crate) fn replay(&self, record: &StoredEntry, all: bool) -> Result<Replayed, ReplayError> {
        let source = read(record).ok_or(ReplayError::NotAReaction(record.seq))?;

        // Calls of the part that failed are known only once it is rendered again.
        if source.failed {
            let made = source
                .calls
                .iter()
                .filter(|(_, dead_lettered)| !dead_lettered && !all);
            let made: Vec<_> = made.map(|(planned, _)| call_key(planned)).collect();
            return self.render_again(record.seq, source.event.seq, Some(&source.rules), &made);
        }

        let calls: Vec<PlannedCall> = source
            .calls
            .into_iter()
            .filter(|(_, dead_lettered)| *dead_lettered || all)
            .map(|(planned, _)| planned)
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
    pub(crate) fn replay_event(&self, seq: SeqNo) -> Result<Replayed, ReplayError> {
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
        let event = self.0.load(seq)?.ok_or(ReplayError::EventGone(seq))?;

        let mut rules = self.matching(&event.tag);
        rules.retain(|rule| only.is_none_or(|only| only.contains(rule)));
        if rules.is_empty() {
            return Err(ReplayError::NoRule(seq));
        }

        let count = rules.len();
        let settings = self.0.settings();
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
        let settings = self.0.settings();
        let options = settings.options_of(&rules).clone();
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
    let Value::Map(map) = crate::wire::salt_value::from_msgpack(&record.body)? else {
        return None;
    };
    let number = |key: &str| match map.get(key) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    };

    let tag = std::str::from_utf8(&record.tag)
        .ok()?
        .strip_prefix(crate::model::REACTION_TAG)?;

    // Without its body: the calls are made as they were recorded.
    let event = Event {
        seq: SeqNo(u64::try_from(number("event")?).ok()?),
        at: Micros(number("at")?),
        tag: tag.to_owned(),
        minion: record.minion.clone(),
        ..Event::default()
    };

    let rules = map
        .get("rules")?
        .as_list()?
        .iter()
        .filter_map(Value::as_str)
        .map(Into::into)
        .collect();

    let failed = map
        .get("failures")
        .and_then(Value::as_list)
        .is_some_and(|failures| !failures.is_empty());
    let rule_count = usize::try_from(number("of")?).ok()?;

    let mut source = ReplaySource {
        event,
        rules,
        rule_count,
        calls: Vec::new(),
        whole: true,
        failed,
    };

    for call in map
        .get("calls")
        .and_then(Value::as_list)
        .unwrap_or_default()
    {
        match planned_call(call.as_map()?) {
            Some(planned) => source.calls.push(planned),
            // The record omits a load that was too large.
            None => source.whole = false,
        }
    }

    Some(source)
}

fn planned_call(call: &Map) -> Option<(PlannedCall, bool)> {
    let text = |key: &str| call.get(key).and_then(Value::as_str).map(str::to_owned);
    let (client, load) = (
        Client::named(&text("client")?)?,
        call.get("load")?.as_map()?.clone(),
    );

    let request = Call {
        client,
        fun: text("fun")?,
        load,
    };

    // A shadowed call was not made either, and this is how it can be made after the fact.
    let dead_lettered = matches!(text("outcome")?.as_str(), "dead" | "unknown" | "shadowed");

    Some((
        PlannedCall {
            id: text("id")?,
            sls: text("sls")?,
            request,
        },
        dead_lettered,
    ))
}
