//! The pending work, as a fold over the log up to a position. A start reads it from the settings, see
//! [`saved`].

pub(crate) mod open;
pub(crate) mod saved;

use std::collections::{BTreeMap, BTreeSet};

use self::open::OpenEvents;
use super::record::{Mark, RecordSummary, rule_hash};
use crate::model::SeqNo;

/// Open events, rules and mode, as a fold over the log up to the cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Position: all entries before it are included.
    pub(crate) cursor: SeqNo,
    pub(crate) open: OpenEvents,
    /// Hashes of the rules, with the first event to which each applies: events from before its
    /// configuration are ignored.
    rules: BTreeMap<u64, SeqNo>,
    /// First event whose calls are made, because Salt's reactor handled the earlier ones; `None` in
    /// shadow.
    acting_from: Option<SeqNo>,
    /// Events that changed since the last [`Checkpoint::take_changed_blocks`], and whether they were
    /// open then.
    changed: BTreeMap<SeqNo, bool>,
}

impl Checkpoint {
    /// No pending work before `cursor`.
    pub(crate) fn at(cursor: SeqNo) -> Self {
        Self {
            cursor,
            ..Self::default()
        }
    }

    /// Opens an event that `rule_count` rules matched. Moves the cursor past it, because a
    /// checkpoint may be written at any time.
    pub(crate) fn opened(&mut self, event: SeqNo, rule_count: usize) {
        self.cursor = self.cursor.max(event.next());
        self.changes(event);
        self.open
            .insert(event, u32::try_from(rule_count).unwrap_or(u32::MAX));
    }

    /// Applies a record. Moves the cursor past it, because its marks must not count twice.
    pub(crate) fn apply_record(&mut self, record: SeqNo, summary: &RecordSummary) {
        self.cursor = self.cursor.max(record.next());
        // Progress is kept only for open events, because closing an event is what removes it.
        let Some(rule_count) = self.open.of(summary.event) else {
            return;
        };

        self.changes(summary.event);
        let progress = self.open.progress_mut(summary.event);

        if let Some(marks) = &summary.marks {
            for (mark, key) in marks {
                match mark {
                    Mark::Started => progress.started.push(*key),
                    // Only one, because a later start of the same call may have been made.
                    Mark::Withdrawn => {
                        if let Some(index) =
                            progress.started.iter().position(|started| started == key)
                        {
                            progress.started.remove(index);
                        }
                    }
                }
            }
            return;
        }

        for rule in &summary.rules {
            if !progress.done.contains(rule) {
                progress.done.push(*rule);
            }
        }

        // The rules may have changed since the event was opened; the record has their number.
        if progress.done.len() >= summary.rule_count.min(rule_count as usize) {
            self.open.remove(summary.event);
        }
    }

    /// True if the event is complete for this rule.
    pub(crate) fn is_done(&self, event: SeqNo, rule: &str) -> bool {
        !self.open.contains(event) || self.open.progress(event).done.contains(&rule_hash(rule))
    }

    fn changes(&mut self, event: SeqNo) {
        let is_open = self.open.contains(event);
        self.changed.entry(event).or_insert(is_open);
    }

    /// Closes an event without a record.
    pub(crate) fn forget(&mut self, event: SeqNo) {
        self.changes(event);
        self.open.remove(event);
    }

    /// The blocks of open events that have changed since the last call.
    pub(crate) fn take_changed_blocks(&mut self) -> BTreeSet<u64> {
        let changed = std::mem::take(&mut self.changed);
        // An event that was opened and closed since is not saved.
        let is_saved = |(event, was_open): (SeqNo, bool)| {
            (was_open || self.open.contains(event)).then(|| open::block_of(event))
        };
        changed.into_iter().filter_map(is_saved).collect()
    }

    /// Sets the rules. New rules apply to events from `from` on. Removed rules are forgotten, so
    /// that they are new when added again.
    pub(crate) fn set_rules<'a>(&mut self, rules: impl Iterator<Item = &'a str>, from: SeqNo) {
        let since = |rule: &str| {
            let hash = rule_hash(rule);
            (hash, self.rules.get(&hash).copied().unwrap_or(from))
        };
        self.rules = rules.map(since).collect();
    }

    /// True if a rule applies to an event. Rules added by `salt-run reactor.add` apply to all
    /// events.
    pub(crate) fn takes(&self, rule: &str, event: SeqNo) -> bool {
        self.rules
            .get(&rule_hash(rule))
            .is_none_or(|since| event >= *since)
    }

    /// Sets the mode. When shadow ends, calls are made for events from `from` on.
    pub(crate) fn set_mode(&mut self, shadow: bool, from: SeqNo) {
        if self.acting_from.is_none() != shadow {
            self.acting_from = (!shadow).then_some(from);
        }
    }

    /// The first event whose calls are made; `None` in shadow.
    pub(crate) fn acting_from(&self) -> Option<SeqNo> {
        self.acting_from
    }
}

#[cfg(test)]
mod tests;
