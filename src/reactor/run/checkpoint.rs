//! The file `REACTOR`: the ledger as of the last second, so that a start does not read the whole log.
//!
//! # On disk
//!
//! Text, in batches of lines. The last line of a batch is `cursor`, with a checksum: XXH3 (64 bits) of the batch up to the checksum,
//! seeded with the checksum of the batch before it (0 for the first). The title is part of the first batch.
//!
//! ```text
//! saltcellar reactor 2
//! mode acting <number>             calls for events before it are not made: Salt's reactor acted then; or `mode shadow`
//! rule <hash> <number>             a rule, and the first event that it takes
//! open <number> <of> [done=<hash>,..] [begun=<hash>,..]   an event that rules took: how many; which are done; calls begun
//! closed <number>                  an event that is no longer open
//! cursor <number> <checksum>       everything below has been folded
//! ```
//!
//! The first batch is the whole ledger, each further one has what changed since the batch before. A batch whose checksum does not match
//! (a write that a crash cut short, damage) and everything after it are ignored: the batches before it are the ledger of an
//! earlier time, and the log has the rest. The file is written anew at each start, and when it has grown to twice its first batch.
//!
//! Without the file the reactor begins with the next event: what an archive holds from before there was a reactor, or what was
//! brought back out of a backup, is nothing to react to. A start without a reactor removes it.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ledger::{Ledger, Open};
use crate::limits::REACTOR_FILE_GROWTH;
use crate::model::SeqNo;

const TITLE: &str = "saltcellar reactor 2";

/// What the file holds by now.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// Bytes of the file; 0 if it is to be written whole.
    len: u64,
    /// Bytes of its first batch.
    first: u64,
    /// The checksum of its last batch.
    checksum: u64,
    cursor: SeqNo,
}

/// What is to be written.
#[derive(Debug, PartialEq, Eq)]
pub enum Update {
    /// In place of the file.
    Whole(String),
    /// At this offset, the end of the file.
    Append(u64, String),
}

impl Checkpoint {
    /// What is to be written so that the file holds the ledger as it is; none if it does.
    pub fn update(&mut self, ledger: &mut Ledger) -> Option<Update> {
        let changes = ledger.take_changes();
        let is_whole = self.len == 0 || changes.is_none() || self.len > 2 * self.first + REACTOR_FILE_GROWTH;
        let mut text = String::new();
        if is_whole {
            (self.len, self.checksum) = (0, 0);
            let _ = writeln!(text, "{TITLE}");
            match ledger.acting_from() {
                Some(seq) => writeln!(text, "mode acting {}", seq.0),
                None => writeln!(text, "mode shadow"),
            }
            .unwrap_or_default();
            for (rule, since) in ledger.rules() {
                let _ = writeln!(text, "rule {rule:016x} {}", since.0);
            }
            for (seq, open) in &ledger.open {
                put_open(&mut text, *seq, open);
            }
        } else {
            for seq in changes.into_iter().flatten() {
                match ledger.open.get(&seq) {
                    Some(open) => put_open(&mut text, seq, open),
                    None => drop(writeln!(text, "closed {}", seq.0)),
                }
            }
            if text.is_empty() && self.cursor == ledger.cursor {
                return None;
            }
        }
        let _ = write!(text, "cursor {}", ledger.cursor.0);
        self.checksum = xxh3_64_with_seed(text.as_bytes(), self.checksum);
        let _ = writeln!(text, " {:016x}", self.checksum);
        let offset = self.len;
        self.len += text.len() as u64;
        self.cursor = ledger.cursor;
        if is_whole {
            self.first = self.len;
            return Some(Update::Whole(text));
        }
        Some(Update::Append(offset, text))
    }

    /// It could not be written, and nobody knows what the file holds.
    pub fn failed(&mut self) {
        self.len = 0;
    }
}

fn put_open(text: &mut String, seq: SeqNo, open: &Open) {
    let _ = write!(text, "open {} {}", seq.0, open.of());
    for (name, hashes) in [("done", open.done()), ("begun", open.begun())] {
        if !hashes.is_empty() {
            let words: Vec<_> = hashes.iter().map(|hash| format!("{hash:016x}")).collect();
            let _ = write!(text, " {name}={}", words.join(","));
        }
    }
    text.push('\n');
}

/// Reads the file, up to `durable`: the file may be of another store, or of a later time. Returns the ledger, and how many bytes at the
/// end were ignored. An error names the line.
pub fn parse(bytes: &[u8], durable: SeqNo) -> Result<(Ledger, usize), String> {
    let title = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if title != TITLE.as_bytes() {
        return Err(format!("line 1: expected `{TITLE}`; a file of an earlier release is not read"));
    }
    let (mut ledger, mut checksum, mut used, mut number) = (None, 0, 0, 0);
    while let Some((batch, lines, cursor, len)) = next_batch(bytes.get(used..).unwrap_or_default(), checksum)
    {
        let mut of = ledger.unwrap_or_else(|| Ledger::at(SeqNo(0)));
        for line in lines {
            number += 1;
            let is_title = used == 0 && number == 1;
            if !is_title && read_line(&mut of, line).is_none() {
                return Err(format!("line {number}: {line:?} cannot be read"));
            }
        }
        number += 1;
        of.cursor = cursor;
        if cursor > durable {
            return Err(format!("line {number}: {} lies behind the end of the log, {}", cursor.0, durable.0));
        }
        if let Some(seq) = of.open.keys().next_back().filter(|seq| **seq >= cursor) {
            let problem = format!("event {} is open and lies behind the cursor, {}", seq.0, cursor.0);
            return Err(format!("line {number}: {problem}"));
        }
        (ledger, checksum, used) = (Some(of), batch, used + len);
    }
    let mut ledger = ledger.ok_or("line 2: the first batch is incomplete or damaged")?;
    ledger.take_changes();
    Ok((ledger, bytes.len() - used))
}

/// The next batch, if it is whole: its checksum, its lines but for the last, the cursor, and how many bytes it has.
fn next_batch(bytes: &[u8], seed: u64) -> Option<(u64, Vec<&str>, SeqNo, usize)> {
    let (mut lines, mut at) = (Vec::new(), 0);
    loop {
        let rest = bytes.get(at..)?;
        let end = memchr::memchr(b'\n', rest)?;
        let line = std::str::from_utf8(rest.get(..end)?).ok()?;
        let Some(words) = line.strip_prefix("cursor ") else {
            lines.push(line);
            at += end + 1;
            continue;
        };
        let (cursor, checksum) = words.split_once(' ')?;
        let covered = bytes.get(..at + "cursor ".len() + cursor.len())?;
        let found = xxh3_64_with_seed(covered, seed);
        if u64::from_str_radix(checksum, 16).ok()? != found {
            return None;
        }
        return Some((found, lines, SeqNo(cursor.parse().ok()?), at + end + 1));
    }
}

fn read_line(ledger: &mut Ledger, line: &str) -> Option<()> {
    let (name, rest) = line.split_once(' ')?;
    let mut words = rest.split(' ');
    let number = |word: Option<&str>| word?.parse().ok().map(SeqNo);
    match name {
        "mode" if rest == "shadow" => ledger.restore_mode(None),
        "mode" => ledger.restore_mode(Some(SeqNo(rest.strip_prefix("acting ")?.parse().ok()?))),
        "rule" => {
            let (rule, since) = rest.split_once(' ')?;
            ledger.restore_rule(u64::from_str_radix(rule, 16).ok()?, SeqNo(since.parse().ok()?));
        }
        "closed" => ledger.forget(number(words.next())?),
        "open" => {
            let seq = number(words.next())?;
            let mut open = Open::taken_by(words.next()?.parse().ok()?);
            for word in words {
                let (name, hashes) = word.split_once('=')?;
                let place = match name {
                    "done" => open.done_mut(),
                    "begun" => open.begun_mut(),
                    _ => return None,
                };
                for hash in hashes.split(',') {
                    place.push(u64::from_str_radix(hash, 16).ok()?);
                }
            }
            ledger.open.insert(seq, open);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Mark, Told};
    use super::*;

    const END: SeqNo = SeqNo(1_000_000);

    fn told<'a>(event: u64, rules: &[&'a str], of: usize) -> Told<'a> {
        Told { event: SeqNo(event), rules: rules.to_vec(), of, marks: None }
    }

    /// Writes what is to be written; whether that was a whole file.
    fn write(file: &mut Vec<u8>, checkpoint: &mut Checkpoint, ledger: &mut Ledger) -> Option<bool> {
        Some(match checkpoint.update(ledger)? {
            Update::Whole(text) => {
                *file = text.into_bytes();
                true
            }
            Update::Append(offset, text) => {
                assert_eq!(offset, file.len() as u64);
                file.extend(text.into_bytes());
                false
            }
        })
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::at(SeqNo(3));
        ledger.set_rules(["a", "b"].into_iter(), SeqNo(3));
        ledger.set_mode(false, SeqNo(2));
        ledger
    }

    #[test]
    fn the_file_gives_back_the_ledger_after_each_batch_and_after_a_write_that_was_cut_short() {
        let (mut ledger, mut checkpoint, mut file) = (ledger(), Checkpoint::default(), Vec::new());
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(true));
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), None, "nothing has changed");
        let mut states = vec![(file.len(), ledger.clone())];
        let steps: [fn(&mut Ledger); 5] = [
            |ledger| [5, 6, 7].into_iter().for_each(|seq| ledger.opened(SeqNo(seq), 2)),
            |ledger| ledger.told(SeqNo(9), &told(6, &["a"], 2)),
            |ledger| {
                ledger.told(SeqNo(9), &told(6, &["b"], 2));
                let marks = Some(vec![(Mark::Begun, 1), (Mark::Begun, u64::MAX)]);
                ledger.told(SeqNo(9), &Told { marks, ..told(7, &["c"], 3) });
            },
            // Opened and closed between two writes.
            |ledger| {
                ledger.opened(SeqNo(9), 1);
                ledger.told(SeqNo(9), &told(9, &["a"], 1));
                ledger.forget(SeqNo(5));
            },
            |_| {},
        ];
        for (n, step) in steps.into_iter().enumerate() {
            step(&mut ledger);
            ledger.cursor = SeqNo(10 + n as u64);
            assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(false));
            states.push((file.len(), ledger.clone()));
        }
        assert!(!String::from_utf8(file.clone()).unwrap().contains(" 9 "), "it was never open in the file");
        for cut in states[0].0..=file.len() {
            let (len, state) = states.iter().rev().find(|(len, _)| *len <= cut).unwrap();
            let (found, ignored) = parse(&file[..cut], END).unwrap();
            assert_eq!((&found, ignored), (state, cut - len), "cut at {cut}");
        }
        // A bit that has turned ends what is read, wherever it is.
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 1;
            match parse(&bad, END) {
                Ok((found, ignored)) => {
                    let before = states.iter().rev().find(|(len, _)| *len <= at).unwrap();
                    assert_eq!((&found, file.len() - ignored), (&before.1, before.0), "turned at {at}");
                }
                Err(error) => assert!(at < states[0].0, "{at}: {error}"),
            }
        }
    }

    #[test]
    fn the_file_is_written_whole_when_it_has_grown_or_could_not_be_written_or_rules_changed() {
        let (mut ledger, mut checkpoint, mut file) = (ledger(), Checkpoint::default(), Vec::new());
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(true));
        let mut wholes = 0;
        for n in 0..200_000 {
            ledger.cursor = SeqNo(10 + n);
            wholes += u32::from(write(&mut file, &mut checkpoint, &mut ledger).unwrap());
            assert!((file.len() as u64) < 2 * REACTOR_FILE_GROWTH);
        }
        assert!(wholes > 2 && wholes < 200, "{wholes}");
        checkpoint.failed();
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(true));
        ledger.set_rules(["a"].into_iter(), SeqNo(9));
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(true));
        ledger.set_mode(true, SeqNo(9));
        assert_eq!(write(&mut file, &mut checkpoint, &mut ledger), Some(true));
        assert_eq!(parse(&file, END).unwrap(), (ledger, 0));
    }

    #[test]
    fn a_cursor_behind_the_end_of_the_log_passed_over_what_came_next() {
        let (mut ledger, mut checkpoint, mut file) = (ledger(), Checkpoint::default(), Vec::new());
        ledger.opened(SeqNo(2), 1);
        write(&mut file, &mut checkpoint, &mut ledger);
        assert_eq!(parse(&file, SeqNo(3)).unwrap().0, ledger);
        assert!(parse(&file, SeqNo(2)).unwrap_err().contains("behind the end of the log"));
        ledger.opened(SeqNo(3), 1);
        ledger.cursor = SeqNo(3);
        write(&mut file, &mut checkpoint, &mut ledger);
        assert!(parse(&file, END).unwrap_err().contains("event 3"));
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_line() {
        let sealed = |text: &str| {
            let checksum = xxh3_64_with_seed(text.as_bytes(), 0);
            format!("{text} {checksum:016x}\n")
        };
        for (text, line) in [
            (String::new(), 1),
            ("saltcellar reactor 1\ncursor 1\n".to_owned(), 1),
            (format!("{TITLE}\n"), 2),
            (format!("{TITLE}\ncursor 1\n"), 2),
            (sealed(&format!("{TITLE}\nopen 1\ncursor 1")), 2),
            (sealed(&format!("{TITLE}\nopen 1 1\nopen 2 1 done=xyz\ncursor 9")), 3),
            (sealed(&format!("{TITLE}\nopen 1 1 odd=1\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nmode asleep\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nrule x 1\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nodd 1\ncursor 9")), 2),
        ] {
            let error = parse(text.as_bytes(), END).unwrap_err();
            assert!(error.starts_with(&format!("line {line}:")), "{text:?}: {error}");
        }
    }
}
