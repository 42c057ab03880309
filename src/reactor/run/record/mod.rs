//! Records: the outcome of an event, as an entry of the log.
//!
//! ```text
//! tag    saltcellar/reaction/<tag of the event>               minion   of the event
//! body   msgpack map
//!        event     sequence number of the event               at       its arrival, microseconds since 1970
//!        state     `begun`, done, failed, partial, dead,
//!                  skipped                                why      if `skipped`: too_old, debounced, once_per, rate, ...
//!        rules     patterns of the rules of this record       of       number of rules that matched the event
//!        content   hash of the event's data without its stamp: the reactor of another master knows its own copy of the event by it
//!        began     time of the first turn                     ended    time of the end
//!        files     list of [file, rendered text]              chunks   the low chunks
//!        calls     list of [calls with their outcome](crate::reactor::call)
//!        depth     length of the chain of reactions that led to the event, unless 0
//!        notes     list of [level, text]                      replay   sequence number of the replayed record
//!        failures  list of maps: file, line, rendered, cause; only if a part failed to render
//!
//! `done`: everything was rendered, and all calls were made. `failed`: rendering failed, and no call was made. `dead`: all calls were
//! dead-lettered. `partial`: some calls were made; the others were dead-lettered, or failed to render.
//!
//! A `skipped` record contains no files, chunks and calls, unless a throttle skipped the event in shadow: it was rendered then.
//! ```
//!
//! An entry with the state `mode` belongs to no event: it records whether the reactor is in shadow
//! (`shadow`) and has just been started (`started`); see `reactor/shadow`. An entry with the state
//! `begun` is a mark: `keys` names a call that is about to be made and must not be repeated, `back`
//! a call that was certainly not made. Both lack the flag of a reaction, so they are not part of
//! the history. All other records are, one per event and group of rules.

pub(crate) mod recorder;

use std::collections::HashSet;

use salt_sls::Value;
use serde::Serialize as _;

use super::events::content_of;
use super::{Event, ReactionPlan};
use crate::base::clock::Micros;
use crate::base::limits::{REACTOR_CHUNKS_BYTES_MAX, REACTOR_TEXT_BYTES_MAX};
use crate::base::named::Named as _;
use crate::model::{Batch, Entry, Flags, Kind, REACTION_TAG, ReactionFailure, SeqNo, Source};
use crate::reactor::call::{CallRecord, cut};
use crate::reactor::master::{Call, pack};
use crate::reactor::stored::{SkipReason, State};
use crate::wire::msgpack::{Writer, as_int, as_text, elements, get};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReactionState {
    Done,
    /// Rendering failed, and no call was made; can be replayed.
    Failed,
    /// Some calls were made, the others failed; can be replayed.
    Partial,
    /// All calls failed; can be replayed.
    Dead,
    /// Skipped, for that reason.
    Skipped(SkipReason),
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) event: Event,
    pub(crate) rules: Vec<std::sync::Arc<str>>,
    pub(crate) rule_count: usize,
    pub(crate) state: ReactionState,
    /// Time of the first turn.
    pub(crate) started_at: Micros,
    pub(crate) ended: Micros,
    pub(crate) plan: ReactionPlan,
    pub(crate) calls: Vec<CallRecord>,
    /// The record that this record replays.
    pub(crate) replay: Option<SeqNo>,
    /// Length of the chain of reactions that led to the event.
    pub(crate) depth: u32,
}

impl Record {
    pub(crate) fn skipped(
        event: Event,
        rules: Vec<std::sync::Arc<str>>,
        rule_count: usize,
        why: SkipReason,
        now: Micros,
    ) -> Self {
        // Nothing can follow from an event that made no call, so its depth is not needed.
        Self {
            event,
            rules,
            rule_count,
            state: ReactionState::Skipped(why),
            started_at: now,
            ended: now,
            plan: ReactionPlan::default(),
            calls: Vec::new(),
            replay: None,
            depth: 0,
        }
    }

    /// The entry, in a separate batch.
    pub(crate) fn batch(&self, now: Micros) -> Batch {
        entry(&self.event, Flags::REACTION, now, &self.body())
    }

    fn body(&self) -> Vec<u8> {
        let (state, why) = match self.state {
            ReactionState::Done => (State::Done, None),
            ReactionState::Failed => (State::Failed, None),
            ReactionState::Partial => (State::Partial, None),
            ReactionState::Dead => (State::Dead, None),
            ReactionState::Skipped(why) => (State::Skipped, Some(why)),
        };

        let mut w = Writer::new();
        // In shadow a skipped reaction may have been rendered, and has calls then.
        let is_rendered = why.is_none() || !self.calls.is_empty();
        let pairs = 9 + usize::from(why.is_some()) + 3 * usize::from(is_rendered);

        let failures = &self.plan.failures;
        // msgpack begins with the number of pairs, therefore each pair written below is counted
        // here.
        w.map(
            pairs
                + usize::from(self.replay.is_some())
                + usize::from(!failures.is_empty())
                + usize::from(self.depth > 0),
        );

        head(&mut w, &self.event, &self.rules, self.rule_count, state);
        w.str("began")
            .int(self.started_at.0)
            .str("ended")
            .int(self.ended.0);

        w.str("notes").array(self.plan.notes.len());
        for (level, text) in &self.plan.notes {
            w.array(2)
                .str(level.name())
                .str(cut(text, REACTOR_TEXT_BYTES_MAX).0);
        }

        if let Some(seq) = self.replay {
            w.str("replay").uint(seq.0);
        }
        if self.depth > 0 {
            w.str("depth").uint(self.depth.into());
        }

        if !failures.is_empty() {
            w.str("failures").array(failures.len());
        }
        for ReactionFailure { at, cause } in failures {
            w.map(4).str("file").str(&at.file).str("line");
            match at.line {
                Some(line) => w.uint(line.into()),
                None => w.nil(),
            };
            w.str("rendered")
                .bool(at.rendered)
                .str("cause")
                .str(cut(cause, REACTOR_TEXT_BYTES_MAX).0);
        }

        if let Some(why) = why {
            w.str("why").str(why.name());
        }

        if !is_rendered {
            return w.into_bytes();
        }

        w.str("files").array(self.plan.files.len());
        // One limit for all files together keeps a record small.
        let mut room = REACTOR_TEXT_BYTES_MAX;
        for (file, text) in &self.plan.files {
            let (text, whole) = cut(text, room);
            room -= text.len();
            w.array(if whole { 2 } else { 3 }).str(file).str(text);
            if !whole {
                w.str("cut");
            }
        }

        let chunks = pack::packed(&self.plan.chunks);
        w.str("chunks");
        if chunks.len() <= REACTOR_CHUNKS_BYTES_MAX {
            w.raw(&chunks)
        } else {
            w.nil()
        };

        w.str("calls").array(self.calls.len());
        for made in &self.calls {
            made.serialize(&mut w)
                .expect("each field of a call has a form in msgpack");
        }
        w.into_bytes()
    }
}

/// A mark of a call that must not be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The call is about to be made.
    Started,
    /// The call was certainly not made: cancels one `Started` of the same call.
    Withdrawn,
}

/// The entry of a mark; `key` is the call's [`call_key`].
pub(crate) fn mark(
    event: &Event,
    rules: &[std::sync::Arc<str>],
    rule_count: usize,
    mark: Mark,
    key: u64,
    now: Micros,
) -> Batch {
    let mut w = Writer::new();
    w.map(7);
    head(&mut w, event, rules, rule_count, State::Begun);

    let name = match mark {
        Mark::Started => "keys",
        Mark::Withdrawn => "back",
    };
    w.str(name).array(1).uint(key);

    // Without the flag of a reaction, because a mark is no outcome and the history must not show
    // it.
    entry(event, Flags::default(), now, &w.into_bytes())
}

/// Writes the first six pairs of each record.
fn head(
    w: &mut Writer,
    event: &Event,
    rules: &[std::sync::Arc<str>],
    rule_count: usize,
    state: State,
) {
    w.str("event")
        .uint(event.seq.0)
        .str("at")
        .int(event.at.0)
        .str("state")
        .str(state.name());

    w.str("rules").array(rules.len());
    for rule in rules {
        w.str(rule);
    }

    w.str("of").uint(rule_count as u64);
    w.str("content").uint(content_of(&event.body));
}

fn entry(event: &Event, flags: Flags, now: Micros, body: &[u8]) -> Batch {
    let tag = format!("{REACTION_TAG}{}", event.tag);

    Batch::of(&Entry {
        kind: Kind::Reaction,
        source: Source::Reactor,
        origin: "",
        number: 0,
        flags,
        at: now,
        tag: tag.as_bytes(),
        jid: "",
        minion: &event.minion,
        fun: "",
        retcode: 0,
        body,
    })
}

/// The identity of a call within its event.
pub(crate) fn call_key(call: &Call) -> u64 {
    let Call { id, sls, fun, .. } = call;
    xxhash_rust::xxh3::xxh3_64([call.service(), fun, id, sls].join("\0").as_bytes())
}

pub(crate) fn jids(body: &[u8]) -> impl Iterator<Item = &str> {
    let calls = elements(get(body, "calls").unwrap_or_default());
    calls
        .filter_map(|call| as_text(get(call, "jid")?))
        .filter(|jid| !jid.is_empty())
}

/// Arrival of a record's event, if the event counted for a rule with `once_per`.
pub(crate) fn counted_once(body: &[u8], rule: &str) -> Option<Micros> {
    let is_of = |rule: &str| {
        elements(get(body, "rules").unwrap_or_default()).any(|one| as_text(one) == Some(rule))
    };

    let why = get(body, "why")
        .and_then(as_text)
        .and_then(SkipReason::named);
    let has_counted = why.is_none_or(SkipReason::has_counted_once);

    let counts = is_of(rule) && has_counted && get(body, "replay").is_none();
    counts
        .then(|| get(body, "at").and_then(as_int).map(Micros))
        .flatten()
}

/// The jobs and orchestrations of a record, each with the depth of the record's event.
pub(crate) fn jobs_of(body: &[u8]) -> impl Iterator<Item = (&str, u32)> {
    let depth = get(body, "depth")
        .and_then(as_int)
        .and_then(|depth| u32::try_from(depth).ok())
        .unwrap_or(0);

    // An orchestration has a second jid, which the events of its jobs name.
    let jids = |call| {
        let load = get(call, "load").and_then(|load| get(load, "kwarg"));
        let words = load.and_then(|both| get(both, "kwarg")).unwrap_or_default();
        [get(call, "jid"), get(words, "orchestration_jid")]
            .into_iter()
            .flatten()
            .filter_map(as_text)
    };

    elements(get(body, "calls").unwrap_or_default())
        .flat_map(jids)
        .map(move |jid| (jid, depth))
}

/// The part of a record that the checkpoint needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordSummary {
    pub(crate) event: SeqNo,
    /// Arrival of the event.
    pub(crate) at: Micros,
    /// See [`content_of`].
    pub(crate) content: u64,
    /// [`rule_hash`] of its rules.
    pub(crate) rules: Vec<u64>,
    pub(crate) rule_count: usize,
    /// Marks of calls; a record with marks closes no event.
    pub(crate) marks: Option<Vec<(Mark, u64)>>,
}

impl RecordSummary {
    /// Whether these records of one event close it.
    pub(crate) fn are_complete(records: &[Self]) -> bool {
        let closing = || records.iter().filter(|record| record.marks.is_none());
        let rules: HashSet<u64> = closing()
            .flat_map(|record| &record.rules)
            .copied()
            .collect();
        closing().any(|record| rules.len() >= record.rule_count)
    }
}

/// The identity of a rule among the settings and in records of one event.
pub(crate) fn rule_hash(rule: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(rule.as_bytes())
}

/// Reads a record. `None` for other entries, and for replays, which neither open nor close events.
pub(crate) fn read_summary(body: &[u8]) -> Option<RecordSummary> {
    if get(body, "replay").is_some() {
        return None;
    }

    let uint = |key| {
        get(body, key)
            .and_then(as_int)
            .and_then(|n| u64::try_from(n).ok())
    };

    // A key uses all 64 bits, and is read as a big integer above `i64::MAX`.
    let key = |key| match crate::wire::salt_value::from_msgpack(key)? {
        Value::Int(n) => u64::try_from(n).ok(),
        Value::BigInt(digits) => digits.parse().ok(),
        _ => None,
    };

    let marked = |name, mark| {
        let keys = elements(get(body, name).unwrap_or_default()).filter_map(key);
        keys.map(move |key| (mark, key))
    };

    let marks = (get(body, "state").and_then(as_text)? == "begun").then(|| {
        marked("keys", Mark::Started)
            .chain(marked("back", Mark::Withdrawn))
            .collect()
    });

    let rules = elements(get(body, "rules")?).filter_map(as_text);
    Some(RecordSummary {
        event: SeqNo(uint("event")?),
        at: Micros(get(body, "at").and_then(as_int)?),
        // Records of earlier builds have none; they are no other master's.
        content: get(body, "content").and_then(key).unwrap_or(0),
        rules: rules.map(rule_hash).collect(),
        rule_count: usize::try_from(uint("of")?).ok()?,
        marks,
    })
}
