//! What is left to do: a fold over the log up to a place. A start reads it from the file `REACTOR`, see `checkpoint`.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use super::open::OpenEvents;
use super::record::{Mark, Told};
use crate::model::SeqNo;

/// The fold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Everything below has been folded.
    pub cursor: SeqNo,
    /// What is left to do.
    pub open: OpenEvents,
    /// Hashes of the rules, and the first event that each takes: a rule does not act on what came before it was configured.
    rules: BTreeMap<u64, SeqNo>,
    /// Calls for earlier events are not made: Salt's reactor acted then. None in shadow.
    acting_from: Option<SeqNo>,
    /// Events that were opened, changed or closed since the last [`Checkpoint::take_changes`], and whether they were open then.
    changed: BTreeMap<SeqNo, bool>,
    /// Everything is to be written anew.
    changed_whole: bool,
}

/// A rule in the file.
pub fn rule_hash(rule: &str) -> u64 {
    xxh3_64(rule.as_bytes())
}

impl Checkpoint {
    /// Nothing is left to do before `cursor`.
    pub fn at(cursor: SeqNo) -> Self {
        Self { cursor, ..Self::default() }
    }

    /// Rules took an event, the next one in the log. The cursor is past it from now on, because a checkpoint may be written at any time.
    pub fn opened(&mut self, event: SeqNo, of: usize) {
        self.cursor = self.cursor.max(event.next());
        self.changes(event);
        self.open.insert(event, u32::try_from(of).unwrap_or(u32::MAX));
    }

    /// A record was read. The cursor is past it from now on: its marks must not count twice.
    pub fn told(&mut self, record: SeqNo, told: &Told<'_>) {
        self.cursor = self.cursor.max(record.next());
        let Some(of) = self.open.of(told.event) else { return };
        self.changes(told.event);
        let progress = self.open.progress_mut(told.event);
        if let Some(marks) = &told.marks {
            for (mark, key) in marks {
                match mark {
                    Mark::Begun => progress.begun.push(*key),
                    // One, and not all: what was begun once more may have been made then.
                    Mark::TakenBack => {
                        if let Some(place) = progress.begun.iter().position(|begun| begun == key) {
                            progress.begun.remove(place);
                        }
                    }
                }
            }
            return;
        }
        for rule in &told.rules {
            let hash = rule_hash(rule);
            if !progress.done.contains(&hash) {
                progress.done.push(hash);
            }
        }
        // The rules may be others by now than when it was opened; the record tells how many there were then.
        if progress.done.len() >= told.of.min(of as usize) {
            self.open.remove(told.event);
        }
    }

    /// Is a rule through with an event?
    pub fn is_done(&self, event: SeqNo, rule: &str) -> bool {
        !self.open.contains(event) || self.open.progress(event).done.contains(&rule_hash(rule))
    }

    fn changes(&mut self, event: SeqNo) {
        let is_open = self.open.contains(event);
        self.changed.entry(event).or_insert(is_open);
    }

    /// An event is open no longer, without a record.
    pub fn forget(&mut self, event: SeqNo) {
        self.changes(event);
        self.open.remove(event);
    }

    /// The events that the checkpoint has to write again; none if it has to write everything.
    pub fn take_changes(&mut self) -> Option<Vec<SeqNo>> {
        let changed = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.changed_whole) {
            return None;
        }
        // What was opened and closed since was never in the file.
        let is_of_file =
            |(event, was_open): (SeqNo, bool)| (was_open || self.open.contains(event)).then_some(event);
        Some(changed.into_iter().filter_map(is_of_file).collect())
    }

    /// These are the rules from now on. New ones take events from `from` on; those that are gone are forgotten, so that they are new when
    /// they come back.
    pub fn set_rules<'a>(&mut self, rules: impl Iterator<Item = &'a str>, from: SeqNo) {
        let since = |rule: &str| {
            let hash = rule_hash(rule);
            (hash, self.rules.get(&hash).copied().unwrap_or(from))
        };
        let rules = rules.map(since).collect();
        if self.rules != rules {
            (self.rules, self.changed_whole) = (rules, true);
        }
    }

    /// Does a rule take an event? One that is not configured (`salt-run reactor.add`) takes all that is read.
    pub fn takes(&self, rule: &str, event: SeqNo) -> bool {
        self.rules.get(&rule_hash(rule)).is_none_or(|since| event >= *since)
    }

    /// Whether calls are made from now on. At the end of shadow that begins with events from `from` on.
    pub fn set_mode(&mut self, shadow: bool, from: SeqNo) {
        if self.acting_from.is_none() != shadow {
            (self.acting_from, self.changed_whole) = ((!shadow).then_some(from), true);
        }
    }

    /// The first event whose calls are made; none in shadow.
    pub fn acting_from(&self) -> Option<SeqNo> {
        self.acting_from
    }

    /// Hashes of the rules, and the first event that each takes.
    pub fn rules(&self) -> impl Iterator<Item = (u64, SeqNo)> + '_ {
        self.rules.iter().map(|(rule, since)| (*rule, *since))
    }

    /// As the checkpoint has it.
    pub fn restore_mode(&mut self, acting_from: Option<SeqNo>) {
        self.acting_from = acting_from;
    }

    /// As the checkpoint has it.
    pub fn restore_rule(&mut self, rule: u64, since: SeqNo) {
        self.rules.insert(rule, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told<'a>(event: u64, rules: &[&'a str], of: usize) -> Told<'a> {
        Told { event: SeqNo(event), rules: rules.to_vec(), of, marks: None }
    }

    #[test]
    fn an_event_is_open_until_all_its_rules_are_through() {
        let mut checkpoint = Checkpoint::at(SeqNo(5));
        checkpoint.opened(SeqNo(7), 2);
        checkpoint.told(SeqNo(9), &told(7, &["a"], 2));
        assert!(checkpoint.is_done(SeqNo(7), "a") && !checkpoint.is_done(SeqNo(7), "b"));
        checkpoint.told(SeqNo(9), &told(7, &["a"], 2));
        assert!(checkpoint.open.contains(SeqNo(7)));
        checkpoint.told(SeqNo(9), &told(7, &["b"], 2));
        assert!(checkpoint.open.is_empty());
        checkpoint.told(SeqNo(9), &told(8, &["b"], 1));
        assert!(checkpoint.open.is_empty(), "a record without its event");
    }

    #[test]
    fn a_rule_that_came_back_took_what_had_come_in_between() {
        let mut checkpoint = Checkpoint::at(SeqNo(5));
        checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(5));
        checkpoint.set_rules(["b"].into_iter(), SeqNo(7));
        checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(9));
        assert_eq!([8, 9].map(|seq| checkpoint.takes("a", SeqNo(seq))), [false, true]);
        assert_eq!([4, 5].map(|seq| checkpoint.takes("b", SeqNo(seq))), [false, true]);
        assert!(checkpoint.takes("added while it runs", SeqNo(1)));
    }

    #[test]
    fn acting_begins_anew_at_the_end_of_each_shadow() {
        let mut checkpoint = Checkpoint::at(SeqNo(5));
        assert_eq!(checkpoint.acting_from(), None);
        for (shadow, from, acting) in
            [(false, 5, Some(5)), (false, 7, Some(5)), (true, 8, None), (false, 9, Some(9))]
        {
            checkpoint.set_mode(shadow, SeqNo(from));
            assert_eq!(checkpoint.acting_from(), acting.map(SeqNo));
        }
    }
}
