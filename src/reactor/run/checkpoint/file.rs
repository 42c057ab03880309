//! The file `REACTOR`: a checkpoint at most a second old, so that a start does not read the whole
//! log.
//!
//! # On disk
//!
//! Text, in batches of lines. The last line of a batch is `cursor`, with a checksum: XXH3 (64 bits)
//! of the batch up to the checksum, seeded with the checksum of the previous batch (0 for the
//! first). The title is part of the first batch.
//!
//! ```text
//! saltcellar reactor 2
//! mode acting <number>             the first event whose calls are made, because Salt's reactor handled earlier ones; or `mode shadow`
//! rule <hash> <number>             a rule, and the first event to which it applies
//! open <number> <of> [done=<hash>,..] [begun=<hash>,..]   an open event: number of rules, completed rules, started calls
//! closed <number>                  an event that was closed
//! cursor <number> <checksum>       all entries before it are included
//! ```
//!
//! The first batch is the whole checkpoint, each further one the changes since the previous batch.
//! A batch whose checksum does not match (an incomplete write, damage) and everything after it are
//! ignored: the batches before it are an earlier checkpoint, and the log has the rest. The file is
//! rewritten at each start, and when it has grown to twice its first batch.
//!
//! Without the file the reactor starts with the next event, because events from before the reactor
//! was configured, or from a restored backup, must not cause reactions. A start without a reactor
//! removes it.

use std::fmt::Write as _;
use std::io;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::Checkpoint;
use super::open::EventProgress;
use crate::base::limits::REACTOR_FILE_GROWTH;
use crate::model::SeqNo;

const TITLE: &str = "saltcellar reactor 2";

#[derive(Debug, Default)]
pub(crate) struct CheckpointFile {
    /// Length in bytes; 0 if the file must be rewritten.
    len: u64,
    /// Bytes of its first batch.
    first: u64,
    /// The checksum of its last batch.
    checksum: u64,
    cursor: SeqNo,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Replace the file, with [`CheckpointFile::write_whole`].
    Whole(Checkpoint),
    /// Append at this offset, the end of the file.
    Append(u64, String),
}

/// Bytes per write.
const PIECE_BYTES: usize = 64 * 1024;

impl CheckpointFile {
    /// The write that brings the file up to date; `None` if there are no changes.
    pub(crate) fn update(&mut self, checkpoint: &mut Checkpoint) -> Option<Update> {
        let changes = checkpoint.take_changes();

        // The content is unknown, rules or mode have changed, or the file has grown too much.
        if self.len == 0 || changes.is_none() || self.len > 2 * self.first + REACTOR_FILE_GROWTH {
            return Some(Update::Whole(checkpoint.clone()));
        }

        let mut text = String::new();
        for seq in changes.into_iter().flatten() {
            match checkpoint.open.of(seq) {
                Some(rule_count) => {
                    put_open(&mut text, seq, rule_count, checkpoint.open.progress(seq));
                }
                None => drop(writeln!(text, "closed {}", seq.0)),
            }
        }

        if text.is_empty() && self.cursor == checkpoint.cursor {
            return None;
        }

        let offset = self.len;
        self.end(&mut text, checkpoint.cursor, Xxh3::with_seed(self.checksum));
        Some(Update::Append(offset, text))
    }

    /// Writes the file of a checkpoint to `put`, in pieces.
    pub(crate) fn write_whole(
        &mut self,
        checkpoint: &Checkpoint,
        put: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut text, mut checksum) = (format!("{TITLE}\n"), Xxh3::with_seed(0));
        self.len = 0;

        // Writing to a string cannot fail, here and below.
        match checkpoint.acting_from() {
            Some(seq) => writeln!(text, "mode acting {}", seq.0),
            None => writeln!(text, "mode shadow"),
        }
        .unwrap_or_default();

        for (rule, since) in checkpoint.rules() {
            let _ = writeln!(text, "rule {rule:016x} {}", since.0);
        }

        for (seq, rule_count) in checkpoint.open.iter() {
            put_open(&mut text, seq, rule_count, checkpoint.open.progress(seq));
            // A million open events must not become one text in memory.
            if text.len() >= PIECE_BYTES {
                put(&text)?;
                checksum.update(text.as_bytes());
                self.len += text.len() as u64;
                text.clear();
            }
        }

        self.end(&mut text, checkpoint.cursor, checksum);
        self.first = self.len;
        put(&text)
    }

    /// Ends a batch; `checksum` covers all of it but `text`.
    fn end(&mut self, text: &mut String, cursor: SeqNo, mut checksum: Xxh3) {
        let _ = write!(text, "cursor {}", cursor.0);
        checksum.update(text.as_bytes());
        self.checksum = checksum.digest();
        let _ = writeln!(text, " {:016x}", self.checksum);
        self.len += text.len() as u64;
        self.cursor = cursor;
    }

    /// Notes a failed write: the content of the file is unknown.
    pub(crate) fn failed(&mut self) {
        self.len = 0;
    }
}

fn put_open(text: &mut String, seq: SeqNo, rule_count: u32, progress: &EventProgress) {
    let _ = write!(text, "open {} {rule_count}", seq.0);
    for (name, hashes) in [("done", &progress.done), ("begun", &progress.started)] {
        if !hashes.is_empty() {
            let words: Vec<_> = hashes.iter().map(|hash| format!("{hash:016x}")).collect();
            let _ = write!(text, " {name}={}", words.join(","));
        }
    }
    text.push('\n');
}

/// Reads the file. Fails if its cursor is past `durable`, as in a file of another store or of a
/// later time. Returns the checkpoint and the number of ignored bytes at the end. An error names
/// the line.
pub(crate) fn parse(bytes: &[u8], durable: SeqNo) -> Result<(Checkpoint, usize), String> {
    let title = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    if title != TITLE.as_bytes() {
        return Err(format!(
            "line 1: expected `{TITLE}`; files of earlier releases are not supported"
        ));
    }

    let (mut checkpoint, mut checksum, mut used, mut number) = (None, 0, 0, 0);
    while let Some((batch, lines, cursor, len)) =
        next_batch(bytes.get(used..).unwrap_or_default(), checksum)
    {
        let mut next = checkpoint.unwrap_or_else(|| Checkpoint::at(SeqNo(0)));
        for line in lines {
            number += 1;
            // The checksum holds, so an invalid line is not damage but an unknown format.
            let is_title = used == 0 && number == 1;
            if !is_title && read_line(&mut next, line).is_none() {
                return Err(format!("line {number}: invalid line {line:?}"));
            }
        }

        number += 1;
        next.cursor = cursor;

        // The file belongs to another store, or is newer than a store that was restored.
        if cursor > durable {
            return Err(format!(
                "line {number}: cursor {} is past the end of the log, {}",
                cursor.0, durable.0
            ));
        }

        if let Some((seq, _)) = next
            .open
            .iter()
            .next_back()
            .filter(|(seq, _)| *seq >= cursor)
        {
            let problem = format!("open event {} is past the cursor, {}", seq.0, cursor.0);
            return Err(format!("line {number}: {problem}"));
        }

        (checkpoint, checksum, used) = (Some(next), batch, used + len);
    }

    let mut checkpoint = checkpoint.ok_or("line 2: the first batch is incomplete or damaged")?;
    // Reading has marked the events as changed.
    checkpoint.take_changes();
    Ok((checkpoint, bytes.len() - used))
}

/// The next batch if it is complete: checksum, lines without the last one, cursor, and length in
/// bytes.
fn next_batch(bytes: &[u8], seed: u64) -> Option<(u64, Vec<&str>, SeqNo, usize)> {
    let (mut lines, mut at) = (Vec::new(), 0);
    loop {
        // A line that is incomplete, or is not UTF-8, ends the valid part.
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

fn read_line(checkpoint: &mut Checkpoint, line: &str) -> Option<()> {
    let (name, rest) = line.split_once(' ')?;
    let mut words = rest.split(' ');

    let number = |word: Option<&str>| word?.parse().ok().map(SeqNo);
    match name {
        "mode" if rest == "shadow" => checkpoint.restore_mode(None),
        "mode" => checkpoint.restore_mode(Some(SeqNo(rest.strip_prefix("acting ")?.parse().ok()?))),
        "rule" => {
            let (rule, since) = rest.split_once(' ')?;
            checkpoint.restore_rule(
                u64::from_str_radix(rule, 16).ok()?,
                SeqNo(since.parse().ok()?),
            );
        }
        "closed" => checkpoint.forget(number(words.next())?),
        "open" => {
            let seq = number(words.next())?;
            let rule_count = words.next()?.parse().ok()?;
            // A later batch has the complete state of the event.
            checkpoint.open.remove(seq);
            checkpoint.open.insert(seq, rule_count);

            for word in words {
                let (name, hashes) = word.split_once('=')?;
                let list = match name {
                    "done" => &mut checkpoint.open.progress_mut(seq).done,
                    "begun" => &mut checkpoint.open.progress_mut(seq).started,
                    _ => return None,
                };
                for hash in hashes.split(',') {
                    list.push(u64::from_str_radix(hash, 16).ok()?);
                }
            }
        }
        _ => return None,
    }

    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::run::record::{Mark, RecordSummary};

    const END: SeqNo = SeqNo(1_000_000);

    fn summary<'a>(event: u64, rules: &[&'a str], rule_count: usize) -> RecordSummary<'a> {
        RecordSummary {
            event: SeqNo(event),
            rules: rules.to_vec(),
            rule_count,
            marks: None,
        }
    }

    #[derive(Default)]
    struct Written {
        file: Vec<u8>,
        state: CheckpointFile,
    }

    impl Written {
        /// Applies the pending write; true if it was a whole file.
        fn write(&mut self, checkpoint: &mut Checkpoint) -> Option<bool> {
            Some(match self.state.update(checkpoint)? {
                Update::Whole(checkpoint) => {
                    self.file.clear();
                    let mut put = |text: &str| {
                        self.file.extend(text.as_bytes());
                        Ok(())
                    };
                    self.state.write_whole(&checkpoint, &mut put).unwrap();
                    true
                }
                Update::Append(offset, text) => {
                    assert_eq!(offset, self.file.len() as u64);
                    self.file.extend(text.into_bytes());
                    false
                }
            })
        }
    }

    fn checkpoint() -> Checkpoint {
        let mut checkpoint = Checkpoint::at(SeqNo(3));
        checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(3));
        checkpoint.set_mode(false, SeqNo(2));
        checkpoint
    }

    #[test]
    fn the_file_restores_the_checkpoint_after_each_batch_and_after_an_incomplete_write() {
        let (mut checkpoint, mut written) = (checkpoint(), Written::default());
        assert_eq!(written.write(&mut checkpoint), Some(true));
        assert_eq!(written.write(&mut checkpoint), None, "nothing has changed");
        let mut states = vec![(written.file.len(), checkpoint.clone())];
        let steps: [fn(&mut Checkpoint); 5] = [
            |checkpoint| {
                for seq in [5, 6, 7] {
                    checkpoint.opened(SeqNo(seq), 2);
                }
            },
            |checkpoint| checkpoint.apply_record(SeqNo(9), &summary(6, &["a"], 2)),
            |checkpoint| {
                checkpoint.apply_record(SeqNo(9), &summary(6, &["b"], 2));
                let marks = Some(vec![(Mark::Started, 1), (Mark::Started, u64::MAX)]);
                checkpoint.apply_record(
                    SeqNo(9),
                    &RecordSummary {
                        marks,
                        ..summary(7, &["c"], 3)
                    },
                );
            },
            // Opened and closed between two writes.
            |checkpoint| {
                checkpoint.opened(SeqNo(9), 1);
                checkpoint.apply_record(SeqNo(9), &summary(9, &["a"], 1));
                checkpoint.forget(SeqNo(5));
            },
            |_| {},
        ];
        for (n, step) in steps.into_iter().enumerate() {
            step(&mut checkpoint);
            checkpoint.cursor = SeqNo(10 + n as u64);
            assert_eq!(written.write(&mut checkpoint), Some(false));
            states.push((written.file.len(), checkpoint.clone()));
        }
        assert!(
            !String::from_utf8(written.file.clone())
                .unwrap()
                .contains(" 9 "),
            "it was never open in the file"
        );
        for cut in states[0].0..=written.file.len() {
            let (len, state) = states.iter().rev().find(|(len, _)| *len <= cut).unwrap();
            let (found, ignored) = parse(&written.file[..cut], END).unwrap();
            assert_eq!((&found, ignored), (state, cut - len), "cut at {cut}");
        }
        // A flipped bit ends the reading, at any position.
        for at in 0..written.file.len() {
            let mut bad = written.file.clone();
            bad[at] ^= 1;
            match parse(&bad, END) {
                Ok((found, ignored)) => {
                    let before = states.iter().rev().find(|(len, _)| *len <= at).unwrap();
                    assert_eq!(
                        (&found, written.file.len() - ignored),
                        (&before.1, before.0),
                        "turned at {at}"
                    );
                }
                Err(error) => assert!(at < states[0].0, "{at}: {error}"),
            }
        }
    }

    #[test]
    fn the_file_is_rewritten_after_growth_a_failed_write_or_a_change_of_rules() {
        let (mut checkpoint, mut written) = (checkpoint(), Written::default());
        assert_eq!(written.write(&mut checkpoint), Some(true));
        let mut wholes = 0;
        for n in 0..200_000 {
            checkpoint.cursor = SeqNo(10 + n);
            wholes += u32::from(written.write(&mut checkpoint).unwrap());
            assert!((written.file.len() as u64) < 2 * REACTOR_FILE_GROWTH);
        }
        assert!(wholes > 2 && wholes < 200, "{wholes}");
        written.state.failed();
        assert_eq!(written.write(&mut checkpoint), Some(true));
        checkpoint.set_rules(["a"].into_iter(), SeqNo(9));
        assert_eq!(written.write(&mut checkpoint), Some(true));
        checkpoint.set_mode(true, SeqNo(9));
        assert_eq!(written.write(&mut checkpoint), Some(true));
        assert_eq!(parse(&written.file, END).unwrap(), (checkpoint, 0));
    }

    #[test]
    fn a_large_checkpoint_is_written_in_pieces() {
        let (mut checkpoint, mut written) = (checkpoint(), Written::default());
        for seq in 3..20_000 {
            checkpoint.opened(SeqNo(seq), 1);
        }
        checkpoint.cursor = SeqNo(20_000);
        assert_eq!(written.write(&mut checkpoint), Some(true));
        assert!(written.file.len() > 2 * PIECE_BYTES);
        // A further batch continues the checksum of the pieces.
        checkpoint.forget(SeqNo(7));
        assert_eq!(written.write(&mut checkpoint), Some(false));
        assert_eq!(parse(&written.file, END).unwrap(), (checkpoint, 0));
    }

    #[test]
    fn a_cursor_past_the_end_of_the_log_is_rejected() {
        let (mut checkpoint, mut written) = (checkpoint(), Written::default());
        checkpoint.opened(SeqNo(2), 1);
        written.write(&mut checkpoint);
        assert_eq!(parse(&written.file, SeqNo(3)).unwrap().0, checkpoint);
        assert!(
            parse(&written.file, SeqNo(2))
                .unwrap_err()
                .contains("past the end of the log")
        );
        checkpoint.opened(SeqNo(3), 1);
        checkpoint.cursor = SeqNo(3);
        written.write(&mut checkpoint);
        assert!(parse(&written.file, END).unwrap_err().contains("event 3"));
    }

    #[test]
    fn an_invalid_file_is_rejected_with_its_line() {
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
            (
                sealed(&format!("{TITLE}\nopen 1 1\nopen 2 1 done=xyz\ncursor 9")),
                3,
            ),
            (sealed(&format!("{TITLE}\nopen 1 1 odd=1\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nmode asleep\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nrule x 1\ncursor 9")), 2),
            (sealed(&format!("{TITLE}\nodd 1\ncursor 9")), 2),
        ] {
            let error = parse(text.as_bytes(), END).unwrap_err();
            assert!(
                error.starts_with(&format!("line {line}:")),
                "{text:?}: {error}"
            );
        }
    }
}
