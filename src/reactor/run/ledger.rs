//! What is left to do: a fold over the log up to a place.
//!
//! # On disk
//!
//! ```text
//! REACTOR    text, written whole
//!   saltcellar reactor 1
//!   cursor <number>                                   everything below has been folded
//!   open <number> <of> [done=<hash>,..] [begun=<hash>,..]   an event that rules took: how many; which are done; calls begun
//! ```
//!
//! Without the file the reactor begins with the next event: what an archive holds from before there was a reactor, or what was
//! brought back out of a backup, is nothing to react to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use super::record::{Mark, Told};
use crate::model::SeqNo;

/// An event that rules took, until all of them are through with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Open {
    /// How many rules took it.
    pub of: usize,
    /// Hashes of those that are through.
    pub done: Vec<u64>,
    /// Calls that may have been made already and must not be made twice; one as often as it was begun and not taken back.
    pub begun: Vec<u64>,
}

/// The fold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Everything below has been folded.
    pub cursor: SeqNo,
    /// What is left to do.
    pub open: BTreeMap<SeqNo, Open>,
}

const TITLE: &str = "saltcellar reactor 1";

/// A rule in the file.
pub fn rule_hash(rule: &str) -> u64 {
    xxh3_64(rule.as_bytes())
}

impl Ledger {
    /// Nothing is left to do before `cursor`.
    pub fn at(cursor: SeqNo) -> Self {
        Self { cursor, open: BTreeMap::new() }
    }

    /// Rules took an event.
    pub fn opened(&mut self, event: SeqNo, of: usize) {
        self.open.entry(event).or_default().of = of;
    }

    /// A record was read.
    pub fn told(&mut self, told: &Told<'_>) {
        let Some(open) = self.open.get_mut(&told.event) else { return };
        if let Some(marks) = &told.marks {
            for (mark, key) in marks {
                match mark {
                    Mark::Begun => open.begun.push(*key),
                    // One, and not all: what was begun once more may have been made then.
                    Mark::TakenBack => {
                        if let Some(place) = open.begun.iter().position(|begun| begun == key) {
                            open.begun.remove(place);
                        }
                    }
                }
            }
            return;
        }
        for rule in &told.rules {
            let hash = rule_hash(rule);
            if !open.done.contains(&hash) {
                open.done.push(hash);
            }
        }
        // The rules may be others by now than when it was opened; the record tells how many there were then.
        if open.done.len() >= open.of.min(told.of) {
            self.open.remove(&told.event);
        }
    }

    /// Is a rule through with an event?
    pub fn is_done(&self, event: SeqNo, rule: &str) -> bool {
        self.open.get(&event).is_none_or(|open| open.done.contains(&rule_hash(rule)))
    }

    /// As the file holds it.
    pub fn text(&self) -> String {
        let mut text = format!("{TITLE}\ncursor {}\n", self.cursor.0);
        for (seq, open) in &self.open {
            let _ = write!(text, "open {} {}", seq.0, open.of);
            for (name, hashes) in [("done", &open.done), ("begun", &open.begun)] {
                if !hashes.is_empty() {
                    let words: Vec<_> = hashes.iter().map(|hash| format!("{hash:016x}")).collect();
                    let _ = write!(text, " {name}={}", words.join(","));
                }
            }
            text.push('\n');
        }
        text
    }

    /// The same, if nothing in it lies behind what is stored: the file may be of another store, or of a later time.
    pub fn within(self, durable: SeqNo) -> Result<Self, String> {
        if self.cursor > durable {
            return Err(format!("line 2: {} lies behind the end of the log, {}", self.cursor.0, durable.0));
        }
        match self.open.keys().next_back().filter(|seq| **seq >= self.cursor) {
            Some(seq) => {
                Err(format!("event {} is open and lies behind the cursor, {}", seq.0, self.cursor.0))
            }
            None => Ok(self),
        }
    }

    /// Reads the file; an error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, line)| line != TITLE) {
            return Err(format!("line 1: expected `{TITLE}`"));
        }
        let cursor = lines.next().and_then(|(_, line)| line.strip_prefix("cursor ")?.parse().ok());
        let mut ledger = Self::at(SeqNo(cursor.ok_or("line 2: expected `cursor` and a number")?));
        for (number, line) in lines {
            let read = || {
                let mut words = line.strip_prefix("open ")?.split(' ');
                let seq = SeqNo(words.next()?.parse().ok()?);
                let mut open = Open { of: words.next()?.parse().ok()?, ..Open::default() };
                for word in words {
                    let (name, hashes) = word.split_once('=')?;
                    let place = match name {
                        "done" => &mut open.done,
                        "begun" => &mut open.begun,
                        _ => return None,
                    };
                    for hash in hashes.split(',') {
                        place.push(u64::from_str_radix(hash, 16).ok()?);
                    }
                }
                Some((seq, open))
            };
            let (seq, open) =
                read().ok_or_else(|| format!("line {number}: expected `open`, two numbers, hashes"))?;
            ledger.open.insert(seq, open);
        }
        Ok(ledger)
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
        let mut ledger = Ledger::at(SeqNo(5));
        ledger.opened(SeqNo(7), 2);
        ledger.told(&told(7, &["a"], 2));
        assert!(ledger.is_done(SeqNo(7), "a") && !ledger.is_done(SeqNo(7), "b"));
        ledger.told(&told(7, &["a"], 2));
        assert!(ledger.open.contains_key(&SeqNo(7)));
        ledger.told(&told(7, &["b"], 2));
        assert!(ledger.open.is_empty());
        ledger.told(&told(8, &["b"], 1));
        assert!(ledger.open.is_empty(), "a record without its event");
    }

    #[test]
    fn the_file_gives_back_the_fold() {
        let mut ledger = Ledger::at(SeqNo(99));
        for seq in [3, 7] {
            ledger.opened(SeqNo(seq), 3);
        }
        ledger.told(&told(7, &["a", "b"], 3));
        let marks = Some(vec![(Mark::Begun, 1), (Mark::Begun, u64::MAX)]);
        ledger.told(&Told { marks, ..told(7, &["c"], 3) });
        assert_eq!(Ledger::parse(&ledger.text()), Ok(ledger));
    }

    #[test]
    fn a_cursor_behind_the_end_of_the_log_passed_over_what_came_next() {
        let mut ledger = Ledger::at(SeqNo(5));
        ledger.opened(SeqNo(4), 1);
        assert_eq!(ledger.clone().within(SeqNo(5)), Ok(ledger.clone()));
        assert!(ledger.clone().within(SeqNo(4)).unwrap_err().starts_with("line 2:"));
        ledger.opened(SeqNo(5), 1);
        assert!(ledger.within(SeqNo(9)).unwrap_err().contains("event 5"));
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_line() {
        for (text, line) in [
            ("", 1),
            ("saltcellar reactor 2\ncursor 1\n", 1),
            ("saltcellar reactor 1\n", 2),
            ("saltcellar reactor 1\ncursor x\n", 2),
            ("saltcellar reactor 1\ncursor 1\nopen 1\n", 3),
            ("saltcellar reactor 1\ncursor 1\nopen 1 1\nopen 2 1 done=xyz\n", 4),
            ("saltcellar reactor 1\ncursor 1\nopen 1 1 odd=1\n", 3),
        ] {
            let error = Ledger::parse(text).unwrap_err();
            assert!(error.starts_with(&format!("line {line}:")), "{text:?}: {error}");
        }
    }
}
