//! Parts of the log as they travel to another store.
//!
//! # Invariant
//!
//! The blocks of a part have exactly its wanted entries, in the order of their sequence numbers across all classes. A block of the log
//! travels as it is only if all its entries are wanted and no entry of another class lies between them.

use std::ops::Range;
use std::sync::Arc;

use crate::error::StoreError;
use crate::log::block::Rows;
use crate::log::exchange::{TravelPacker, Travelling};
use crate::read::LogReader;
use crate::read::follow::{Visit, is_wanted};
use crate::segment::Segment;
use saltcellar_base::limits::{BLOCK_RAW_BYTES, SCAN_BYTES_MAX};
use saltcellar_model::{Kind, SeqNo};
use saltcellar_wire::filter::Entries;

/// Bodies of a block from which on it travels as it is. Smaller ones are merged, which compresses them better.
const COPIED_BYTES_MIN: usize = BLOCK_RAW_BYTES / 8;

/// A part of the log, packed.
#[derive(Debug)]
pub struct TravellingPart {
    /// In the order of their entries.
    pub blocks: Vec<Travelling>,
    /// The position to continue from: no other entry before is wanted.
    pub next: SeqNo,
}

impl LogReader {
    /// The entries of a range that are `entries` and that `is_wanted` accepts by kind and jid: until they have `bytes_max` bytes, and at most
    /// what one read looks at ([`SCAN_BYTES_MAX`]).
    pub fn travelling(
        &self,
        entries: Entries,
        range: Range<SeqNo>,
        bytes_max: usize,
        is_wanted: impl Fn(Kind, &str) -> bool,
    ) -> Result<TravellingPart, StoreError> {
        let packer = TravelPacker::new()
            .map_err(|error| StoreError::Failed(format!("cannot pack a block: {error}")))?;
        let mut packing = Packing {
            log: self,
            entries,
            is_wanted,
            bytes_max,
            packer,
            blocks: Vec::new(),
            bytes: 0,
            failed: None,
        };

        let upto = range.end.min(self.durable());
        let next = self.visit(range.start, upto, &mut packing)?;
        if let Some(error) = packing.failed {
            return Err(error);
        }
        packing.blocks.extend(packing.packer.finish()?);
        Ok(TravellingPart {
            blocks: packing.blocks,
            next,
        })
    }
}

struct Packing<'a, W> {
    log: &'a LogReader,
    entries: Entries,
    is_wanted: W,
    bytes_max: usize,
    packer: TravelPacker,
    blocks: Vec<Travelling>,
    /// Of wanted entries.
    bytes: usize,
    failed: Option<StoreError>,
}

impl<W: Fn(Kind, &str) -> bool> Packing<'_, W> {
    /// Counts the bytes of wanted entries; returns the cost of reading them.
    fn count(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        // The largest cost ends the walk.
        if self.bytes >= self.bytes_max {
            SCAN_BYTES_MAX
        } else {
            bytes
        }
    }

    fn fail(&mut self, error: StoreError) -> usize {
        self.failed = Some(error);
        SCAN_BYTES_MAX
    }
}

impl<W: Fn(Kind, &str) -> bool> Visit for Packing<'_, W> {
    fn row(&mut self, segment: &Arc<Segment>, rows: Rows<'_>, row: usize) -> usize {
        // Counts as read: a read must end even in a log without wanted entries. Their bodies are not unpacked.
        if !is_wanted(self.entries, rows, row) {
            return rows.body_len(row);
        }
        let jid = rows.jid(row);
        if !(self.is_wanted)(rows.kind(row), &jid) {
            return rows.body_len(row);
        }
        let Some(body) = self.log.blocks.body(segment, rows, row) else {
            return 0;
        };

        let (seq, tag) = (rows.seq(row), rows.tag(row));
        let entry = rows.entry(row, &tag, &jid, body);
        match self.packer.push(seq, &entry) {
            Ok(full) => self.blocks.extend(full),
            Err(error) => return self.fail(error),
        }
        self.count(entry.raw_len())
    }

    fn block(&mut self, rows: Rows<'_>) -> Option<usize> {
        let bodies: usize = (0..rows.len()).map(|row| rows.body_len(row)).sum();
        let is_whole = bodies >= COPIED_BYTES_MIN
            && (0..rows.len()).all(|row| is_wanted(self.entries, rows, row))
            && (0..rows.len()).all(|row| (self.is_wanted)(rows.kind(row), &rows.jid(row)));
        if !is_whole {
            return None;
        }

        // What was packed before comes first.
        let before = match self.packer.finish() {
            Ok(before) => before,
            Err(error) => return Some(self.fail(error)),
        };
        self.blocks.extend(before);
        match Travelling::copy_of(rows) {
            Ok(block) => {
                let bytes = usize::try_from(block.raw_bytes).unwrap_or(usize::MAX);
                self.blocks.push(block);
                Some(self.count(bytes))
            }
            Err(error) => Some(self.fail(error)),
        }
    }
}
