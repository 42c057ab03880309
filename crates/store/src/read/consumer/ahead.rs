//! Reading without a consumer: what comes next for a filter is read once for several consumers, or
//! while a holder still processes the previous batch. A consumer then takes it as its batch.

use std::ops::Range;
use std::time::Duration;

use super::{BatchLimits, Consumers};
use crate::error::StoreError;
use crate::read::StoredEntry;
use saltcellar_model::SeqNo;
use saltcellar_wire::filter::EntryFilter;

/// A part of the log that was read for a filter. It becomes the next batch of a consumer that is
/// there, and has this filter.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadAhead {
    /// The filter.
    pub filter: EntryFilter,
    /// The cursor behind which it was read.
    pub from: SeqNo,
    /// The last event; `None` if no event matches.
    pub last: Option<SeqNo>,
    /// The position after it: no other event before matches.
    pub next: SeqNo,
}

impl Consumers {
    /// The events in a range that a filter selects, and the position after them. `None` if the batch
    /// must be taken by [`Consumers::next_batch`], which reports why.
    pub fn read(
        &self,
        filter: &EntryFilter,
        range: Range<SeqNo>,
        limits: BatchLimits,
    ) -> Result<Option<(Vec<StoredEntry>, SeqNo)>, StoreError> {
        let Range { start, end } = range;
        let found = self
            .log
            .select(filter, start, end, limits.events, limits.bytes)?;

        // A filter that failed is reported by `next_batch`, which changes the record. It also adds gap
        // records, which name the consumer.
        let is_usual = found.too_costly.is_none() && found.unread.is_empty();
        Ok(is_usual.then_some((found.events, found.next)))
    }

    /// The cursor of a consumer, behind which [`Consumers::read`] finds its next batch. `None` if the
    /// batch must be taken by [`Consumers::next_batch`]: the consumer is paused, or has lost entries.
    pub fn place(&self, name: &str) -> Result<Option<SeqNo>, StoreError> {
        let mut state = self.state.lock();
        let record = &state.of(name)?.record;
        let is_usual = !record.paused && record.lost.is_none();
        Ok(is_usual.then_some(record.cursor))
    }

    /// Whether the cursor was moved by a seek since the last batch was taken.
    pub fn is_moved(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.state.lock().of(name)?.moved)
    }

    /// Makes what was read the holder's batch, as [`Consumers::next_batch`] does. False if it must be
    /// reread: the consumer was moved, paused or given another filter, or retention has dropped
    /// entries of it.
    pub fn take_ahead(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        ahead: &ReadAhead,
    ) -> Result<bool, StoreError> {
        let mut state = self.state.lock();
        let consumer = state.of(name)?;
        let record = &consumer.record;

        // Everything that the batch depended on is compared with what it was read for.
        if record.paused
            || record.cursor != ahead.from
            || record.lost.is_some()
            || record.filter != ahead.filter
        {
            return Ok(false);
        }

        consumer.hold(holder, lease, self.log.clock.monotonic())?;
        consumer.pass(ahead.last, ahead.next);
        state.save_progress(name)?;
        Ok(true)
    }
}
