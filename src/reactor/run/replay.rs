//! Doing again what was dead-lettered, at the request of a person.

use std::sync::Arc;

use super::engine::Handle;
use super::record::call_key;
use super::scheduler::{Progress, Task};
use super::{Event, Reacted, Wanted, What};
use crate::clock::Micros;
use crate::master::{Call, Cmd, pack};
use crate::model::SeqNo;
use crate::sls::value::{Map, Value};
use crate::store::StoredEntry;

/// Why nothing is done again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The entry is no record of a reaction.
    #[error("number {0} is no reaction")]
    NoReaction(SeqNo),
    /// All of it was done.
    #[error(
        "reaction {0} has no call that was dead-lettered; --all makes every call again, --render begins with the event"
    )]
    NothingAside(SeqNo),
    /// What was wanted is not in the record.
    #[error(
        "reaction {0} does not hold what is to be called, because it was too large; --render begins with the event"
    )]
    TooLarge(SeqNo),
    /// The event is gone.
    #[error("the event {0} is no longer in the log")]
    EventGone(SeqNo),
    /// No rule takes the event.
    #[error("no rule takes the event {0} any more")]
    NoRule(SeqNo),
    /// The log could not be read.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
}

/// What is done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// So many calls are made.
    Calls(usize),
    /// So many rules are rendered, with the event.
    Rules(usize),
}

/// What a record says.
struct Found {
    event: Event,
    rules: Vec<Arc<str>>,
    of: usize,
    /// What was wanted, and whether it was dead-lettered.
    wanted: Vec<(Wanted, bool)>,
    whole: bool,
    /// A part of it failed to render.
    failed: bool,
}

impl Handle {
    /// Does what a record says was dead-lettered, or `all` of it. What failed to render is rendered again, by the rules of the record;
    /// then calls that were made are left out.
    pub fn replay(&self, record: &StoredEntry, all: bool) -> Result<Replayed, ReplayError> {
        let found = read(record).ok_or(ReplayError::NoReaction(record.seq))?;
        if found.failed {
            let made = found.wanted.iter().filter(|(_, aside)| !aside && !all);
            let made: Vec<_> = made.map(|(wanted, _)| call_key(wanted)).collect();
            return self.render_again(record.seq, found.event.seq, Some(&found.rules), &made);
        }
        let wanted: Vec<Wanted> =
            found.wanted.into_iter().filter(|(_, aside)| *aside || all).map(|(wanted, _)| wanted).collect();
        if wanted.is_empty() {
            return Err(if found.whole {
                ReplayError::NothingAside(record.seq)
            } else {
                ReplayError::TooLarge(record.seq)
            });
        }
        let (count, now) = (wanted.len(), self.0.clock.now());
        let reacted = Reacted { wanted, ..Reacted::default() };
        let progress = Progress::of(&found.event, now, reacted, false);
        self.again(found.event, found.rules, found.of, record.seq, Some(Box::new(progress)), Vec::new());
        Ok(Replayed::Calls(count))
    }

    /// Begins again with the event: the rules as they are now, rendered anew.
    pub fn replay_event(&self, seq: SeqNo) -> Result<Replayed, ReplayError> {
        self.render_again(seq, seq, None, &[])
    }

    /// Renders again what takes an event, of `only` these rules.
    fn render_again(
        &self,
        of: SeqNo,
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
            self.again(event.clone(), rules, count, of, None, already_made.to_vec());
        }
        Ok(Replayed::Rules(count))
    }

    fn again(
        &self,
        event: Event,
        rules: Vec<Arc<str>>,
        of: usize,
        record: SeqNo,
        progress: Option<Box<Progress>>,
        already_made: Vec<u64>,
    ) {
        let settings = self.0.settings();
        let options = settings.options_of(&rules).clone();
        let task = Task {
            event,
            rules,
            of,
            place: 0,
            options,
            depth: 0,
            begun: Vec::new(),
            resumed: false,
            replay: Some(record),
            already_made,
            left: None,
            progress,
        };
        self.0.offer(task);
    }
}

fn read(record: &StoredEntry) -> Option<Found> {
    let Value::Map(map) = pack::unpacked(&record.body)? else { return None };
    let number = |key: &str| match map.get(key) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    };
    let tag = std::str::from_utf8(&record.tag).ok()?.strip_prefix(crate::model::REACTION_TAG)?;
    let event = Event {
        seq: SeqNo(u64::try_from(number("event")?).ok()?),
        at: Micros(number("at")?),
        tag: tag.to_owned(),
        body: Arc::default(),
        minion: record.minion.clone(),
        has_key: false,
    };
    let rules = map.get("rules")?.as_list()?.iter().filter_map(Value::as_str).map(Into::into).collect();
    let failed = map.get("failures").and_then(Value::as_list).is_some_and(|failures| !failures.is_empty());
    let of = usize::try_from(number("of")?).ok()?;
    let mut found = Found { event, rules, of, wanted: Vec::new(), whole: true, failed };
    for call in map.get("calls").and_then(Value::as_list).unwrap_or_default() {
        match one(call.as_map()?) {
            Some(wanted) => found.wanted.push(wanted),
            None => found.whole = false,
        }
    }
    Some(found)
}

fn one(call: &Map) -> Option<(Wanted, bool)> {
    let text = |key: &str| call.get(key).and_then(Value::as_str).map(str::to_owned);
    let (fun, load) = (text("fun")?, call.get("load")?.as_map()?.clone());
    let cmd = match text("client")?.as_str() {
        "local" => Some(Cmd::Publish),
        "runner" => Some(Cmd::Runner),
        "wheel" => Some(Cmd::Wheel),
        _ => None,
    };
    let what = match cmd {
        Some(cmd) => What::Executor(Call { cmd, fun, load }),
        None => What::Caller {
            fun,
            args: load.get("args")?.as_list()?.to_vec(),
            kwargs: load.get("kwargs")?.clone(),
        },
    };
    let aside = matches!(text("outcome")?.as_str(), "dead" | "unknown" | "shadowed");
    Some((Wanted { id: text("id")?, sls: text("sls")?, what }, aside))
}
