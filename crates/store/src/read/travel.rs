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
use saltcellar_model::{Entry, Flags, Kind, SeqNo};
use saltcellar_wire::filter::Entries;

/// A block with at least this many bytes of bodies travels as it is. Smaller blocks are merged,
/// which compresses them better.
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
    /// The entries of a range that are `entries`: until they have `bytes_max` bytes, and at most what one read looks at
    /// ([`SCAN_BYTES_MAX`]). An entry that says nothing of its function ([`Kind::lacks_fun`]) must be one of a job that `is_wanted`. A block
    /// in which that function is known is not asked for.
    pub fn travelling(
        &self,
        entries: Entries,
        range: Range<SeqNo>,
        bytes_max: usize,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<TravellingPart, StoreError> {
        let mut packing = Packing {
            log: self,
            entries,
            is_wanted,
            bytes_max,
            packer: None,
            blocks: Vec::new(),
            bytes: 0,
            failed: None,
        };

        let upto = range.end.min(self.durable());
        let next = self.visit(range.start, upto, &mut packing)?;
        if let Some(error) = packing.failed {
            return Err(error);
        }
        packing.finish()?;
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
    /// Made for the first entry that is packed: most parts of the log are whole blocks.
    packer: Option<TravelPacker>,
    blocks: Vec<Travelling>,
    /// Of wanted entries.
    bytes: usize,
    failed: Option<StoreError>,
}

impl<W: Fn(&str) -> bool> Packing<'_, W> {
    /// Packs an entry.
    fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) -> Result<(), StoreError> {
        let packer = match &mut self.packer {
            Some(packer) => packer,
            none => {
                let failed = |error| {
                    StoreError::Failed(format!(
                        "cannot pack a block: {error}; check the free memory of this host"
                    ))
                };
                none.insert(TravelPacker::new().map_err(failed)?)
            }
        };
        self.blocks.extend(packer.push(seq, entry)?);
        Ok(())
    }

    /// Ends the block of the entries that were packed.
    fn finish(&mut self) -> Result<(), StoreError> {
        if let Some(packer) = &mut self.packer {
            self.blocks.extend(packer.finish()?);
        }
        Ok(())
    }

    /// Whether all entries of a block are wanted. May be false where it is so, and then each is looked at.
    fn are_all_wanted(&self, rows: Rows<'_>) -> bool {
        if self.entries == Entries::Events || !rows.are_own() {
            return false;
        }
        // By the columns, because most blocks travel: no text is made of a jid for each entry.
        if rows.distinct_funs().contains(&Entries::QUESTION) {
            return false;
        }

        let jids = rows.jids();
        let mut has_fun = vec![false; jids.len() + 1];
        let mut unnamed = Vec::new();
        for ((kind, jid), fun) in rows.kinds().into_iter().zip(jids).zip(rows.funs()) {
            let kind = u8::try_from(kind).ok().and_then(Kind::from_number);
            let kind = kind.expect("kinds were checked");
            if !self.entries.have(kind, Flags::default(), "", jid > 0, true) {
                return false;
            }

            // 0 stands for none in both columns.
            let at = usize::try_from(jid).expect("jids were checked");
            if kind.lacks_fun() {
                unnamed.push(at);
            } else if let Some(has_fun) = has_fun.get_mut(at) {
                *has_fun |= fun > 0;
            }
        }

        // Usually the job's load or a return is in the block and names the function. Only the
        // remaining jobs must be asked about.
        unnamed.retain(|at| has_fun.get(*at) != Some(&true));
        unnamed.dedup();
        unnamed.into_iter().all(|at| {
            let jid = at.checked_sub(1).map(|at| rows.jid_text(at));
            (self.is_wanted)(&jid.unwrap_or_default())
        })
    }

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

impl<W: Fn(&str) -> bool> Visit for Packing<'_, W> {
    fn row(&mut self, segment: &Arc<Segment>, rows: Rows<'_>, row: usize) -> usize {
        // Counts as read: a read must end even in a log without wanted entries. Their bodies are not unpacked.
        if !is_wanted(self.entries, rows, row) {
            return rows.body_len(row);
        }
        let jid = rows.jid(row);
        if rows.kind(row).lacks_fun() && !(self.is_wanted)(&jid) {
            return rows.body_len(row);
        }
        let Some(body) = self.log.blocks.body(segment, rows, row) else {
            return 0;
        };

        let (seq, tag) = (rows.seq(row), rows.tag(row));
        let entry = rows.entry(row, &tag, &jid, body);
        if let Err(error) = self.push(seq, &entry) {
            return self.fail(error);
        }
        self.count(entry.raw_len())
    }

    fn block(&mut self, rows: Rows<'_>) -> Option<usize> {
        if rows.bodies_len() < COPIED_BYTES_MIN as u64 || !self.are_all_wanted(rows) {
            return None;
        }

        // What was packed before comes first.
        if let Err(error) = self.finish() {
            return Some(self.fail(error));
        }
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
