//! Sequence numbers of a store that was made from a backup or from a damaged one.
//!
//! Its predecessor assigned numbers after the backup, and readers may remember them: the id of an
//! event contains its number. The new store therefore continues far behind. Where the numbers
//! continue, it contains a gap record, from which every reader of events learns that the events in
//! between are lost. No earlier segment is written to again.
//!
//! # The gap record
//!
//! ```text
//! bus          nil
//! cause        restore, salvage; as in the tag saltcellar/gap/<cause>
//! begin        everything up to here that is in the backup, or could be read, is stored
//! end          time of the restore
//! seconds      its length
//! lost         nil: the number is unknown
//! first, last  the sequence numbers that no event of this store has
//! ```

use std::path::Path;

use super::ToolError;
use super::class_writer::ClassWriter;
use super::files;
use crate::StoreError;
use crate::skipped::SkippedNumbers;
use crate::write::seqno::{SEQUENCE, SequenceFile};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{RENUMBER_AHEAD, RENUMBER_PER_SECOND};
use saltcellar_model::{Entry, Flags, GAP_TAG, Kind, SeqNo, Source};
use saltcellar_wire::msgpack::Writer;

/// The class of gap records, which always exists.
const CLASS: &str = "events";

/// Where the numbers of a new store continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renumbering {
    /// Why: `restore` or `salvage`.
    cause: &'static str,
    /// The time of the newest data of the predecessor that the new store has.
    since: Micros,
    now: Micros,
    pub(crate) skipped: SkippedNumbers,
}

impl Renumbering {
    /// `used` is the first number that the predecessor had not assigned, as far as is known.
    pub(crate) fn new(
        cause: &'static str,
        used: SeqNo,
        since: Micros,
        now: Micros,
    ) -> Result<Self, ToolError> {
        // A clock that is behind the newest data counts as no time at all; the fixed part is large
        // enough for days.
        let seconds = u64::try_from(now.0.saturating_sub(since.0) / 1_000_000).unwrap_or(0);
        let ahead = seconds
            .checked_mul(RENUMBER_PER_SECOND)
            .and_then(|ahead| ahead.checked_add(RENUMBER_AHEAD));

        let end = ahead.and_then(|ahead| used.0.checked_add(ahead));
        // The last number cannot be assigned.
        let end = end
            .filter(|end| *end < u64::MAX)
            .ok_or(StoreError::Broken("sequence numbers are exhausted"))?;

        let skipped = SkippedNumbers {
            first: used,
            end: SeqNo(end),
        };
        Ok(Self {
            cause,
            since,
            now,
            skipped,
        })
    }

    /// Writes the gap record and the file `SEQUENCE`; `before` are the numbers that the predecessor
    /// had skipped.
    pub(crate) fn write(
        &self,
        to: &Path,
        store_id: u64,
        before: &[SkippedNumbers],
    ) -> Result<(), StoreError> {
        // In a separate segment, because no segment of the backup may be written to again.
        let mut writer = ClassWriter::new(to, CLASS, store_id, self.now)?;

        let tag = format!("{GAP_TAG}/{}", self.cause);
        let body = self.body();
        // Not the present time: a clock that was set ahead must not become the time of the newest
        // entry.
        let entry = Entry {
            flags: Flags::ON_BUS,
            tag: tag.as_bytes(),
            ..Entry::new(Kind::Gap, Source::Bus, self.since, &body)
        };
        writer.push(self.skipped.end, &entry)?;
        writer.finish()?;

        // The reserved numbers of the predecessor end below, so the file has to know that none is
        // missing.
        let mut file = SequenceFile {
            end: self.skipped.end.next(),
            skipped: before.to_vec(),
        };
        file.skipped.push(self.skipped);
        files::write_small(&to.join(SEQUENCE), file.text())
    }

    fn body(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(8).str("bus").nil().str("cause").str(self.cause);
        w.str("begin").str(&self.since.iso());
        w.str("end").str(&self.now.iso());
        #[expect(
            clippy::cast_precision_loss,
            reason = "for people; the instants are exact"
        )]
        w.str("seconds")
            .float(self.now.0.saturating_sub(self.since.0) as f64 / 1e6);
        w.str("lost").nil();
        w.str("first").uint(self.skipped.first.0);
        w.str("last").uint(self.skipped.end.0 - 1);
        w.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_is_restored_twice_assigns_no_number_twice() {
        let at = |seconds: i64| Micros(seconds * 1_000_000);
        let first = Renumbering::new("restore", SeqNo(900), at(100), at(150)).unwrap();
        assert!(first.skipped.end.0 >= 900 + (1 << 32), "{first:?}");
        let again = Renumbering::new("restore", SeqNo(900), at(100), at(151)).unwrap();
        let numbers = again.skipped.end.0 - first.skipped.end.0;
        assert!(
            numbers >= 1_000_000,
            "at most {numbers} entries in that second"
        );
        // A clock that was set back.
        let back = Renumbering::new("restore", SeqNo(900), at(100), at(50)).unwrap();
        assert_eq!(back.skipped.end.0, 900 + (1 << 32));
        let error = Renumbering::new("restore", SeqNo(u64::MAX - 5), at(100), at(100));
        assert!(error.unwrap_err().to_string().contains("exhausted"));
        // Numbers stay exact in JSON for a century.
        let late = Renumbering::new("restore", SeqNo(1), at(0), at(100 * 366 * 86_400)).unwrap();
        assert!(late.skipped.end.0 < 1 << 53);
    }
}
