//! The returns of jobs, segment by segment, for what a reader derives from them and keeps.
//!
//! # Invariant
//!
//! An entry never changes, and keeps its sequence number when its segment is sealed or rewritten. Therefore what was derived from a range of
//! numbers of a segment stays right until the segment is gone.

use std::ops::Range;
use std::sync::Arc;

use super::LogReader;
use crate::error::StoreError;
use crate::log::block::Rows;
use crate::segment::{Segment, with_same_numbers};
use saltcellar_base::clock::Micros;
use saltcellar_model::{Flags, Kind, SeqNo};

/// A segment that may hold returns.
#[derive(Debug, Clone)]
pub struct ReturnsIn {
    pub(crate) segment: Arc<Segment>,
}

/// A return as it is found: its columns, and its body on demand.
pub struct FoundReturn<'a> {
    /// The rows of its block.
    pub rows: Rows<'a>,
    /// Its row.
    pub at: usize,
    body: &'a dyn Fn() -> Option<&'a [u8]>,
}

impl<'a> FoundReturn<'a> {
    /// Its body; `None` if its block cannot be unpacked, which is noted as damage.
    pub fn body(&self) -> Option<&'a [u8]> {
        (self.body)()
    }

    /// Whether it failed, by its columns.
    pub fn failed(&self) -> bool {
        self.flags().failed(self.rows.retcode(self.at))
    }

    /// Its flags.
    pub fn flags(&self) -> Flags {
        self.rows.flags(self.at)
    }
}

/// A block of a segment: its sequence numbers, and the time of its latest entry.
#[derive(Debug, Clone)]
pub struct BlockSpan {
    /// The first number, and the number behind the last.
    pub seqs: Range<SeqNo>,
    /// The latest time of arrival.
    pub at_max: Micros,
    /// Entries.
    pub count: usize,
}

impl ReturnsIn {
    /// A name that no other segment of the store has.
    pub fn name(&self) -> (Arc<str>, SeqNo) {
        (self.segment.class_name.clone(), self.segment.first_seq)
    }
}

impl LogReader {
    /// The segments that have jobs, the newest entries first.
    pub fn segments_of_returns(&self) -> Vec<ReturnsIn> {
        let has_jobs = |segment: &Arc<Segment>| match segment.metadata() {
            Some(metadata) => metadata.jobs > 0,
            None => segment.memory().is_none_or(|index| index.jobs_len() > 0),
        };
        let mut found: Vec<ReturnsIn> = self
            .segments
            .all()
            .into_iter()
            .filter(has_jobs)
            .map(|segment| ReturnsIn { segment })
            .collect();

        found.sort_by_key(|one| std::cmp::Reverse(one.segment.totals().last_seq));
        found
    }

    /// The blocks of a segment, ascending.
    pub fn blocks_of_returns(&self, of: &ReturnsIn) -> Result<Vec<BlockSpan>, StoreError> {
        let ready = self.blocks.indexes().ready(&of.segment)?;
        let span = |meta: &crate::log::file::BlockMeta| BlockSpan {
            seqs: meta.first_seq..meta.last_seq.next(),
            at_max: meta.at_max,
            count: meta.count as usize,
        };
        Ok(ready.blocks().metas().iter().map(span).collect())
    }

    /// Calls `take` with the durable returns of a segment in a range of sequence numbers, ascending; with some of them twice if blocks get
    /// other numbers meanwhile.
    pub fn returns_in(
        &self,
        of: &ReturnsIn,
        range: Range<SeqNo>,
        mut take: impl FnMut(FoundReturn<'_>),
    ) -> Result<(), StoreError> {
        let range = range.start..range.end.min(self.durable());
        with_same_numbers(|| self.found_returns(&of.segment, &range, &mut take))
    }

    fn found_returns(
        &self,
        segment: &Arc<Segment>,
        range: &Range<SeqNo>,
        take: &mut impl FnMut(FoundReturn<'_>),
    ) -> Result<(), StoreError> {
        let numbers = {
            // Not held while blocks are read.
            let ready = self.blocks.indexes().ready(segment)?;
            let metas = ready.blocks().metas();
            let from = metas.partition_point(|meta| meta.last_seq < range.start);
            let upto = metas.partition_point(|meta| meta.first_seq < range.end);
            let number = |n: usize| u32::try_from(n).expect("the blocks of a segment have numbers");
            number(from)..number(upto.max(from))
        };

        for number in numbers {
            // Read once: it would displace the blocks of other readers.
            let Some(view) = self.blocks.block_once(segment, number)? else {
                continue;
            };
            let rows = view.rows();
            for at in 0..rows.len() {
                let is_meant = range.contains(&rows.seq(at));
                if is_meant && rows.kind(at) == Kind::Return {
                    let body = || self.blocks.body(segment, rows, at);
                    take(FoundReturn {
                        rows,
                        at,
                        body: &body,
                    });
                }
            }
        }
        Ok(())
    }
}
