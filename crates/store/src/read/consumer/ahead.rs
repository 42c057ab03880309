//! Reading ahead: the batch behind a consumer's cursor is read while its holder still processes the
//! one before.

use std::time::Duration;

use super::{BatchLimits, Consumers};
use crate::error::StoreError;
use crate::read::StoredEntry;
use saltcellar_model::SeqNo;
use saltcellar_wire::filter::EntryFilter;

/// A part of the log that was read ahead. It becomes the consumer's next batch if the consumer is
/// still there.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadAhead {
    filter: EntryFilter,
    /// The cursor behind which it was read.
    pub(super) from: SeqNo,
    /// The last event.
    pub last: SeqNo,
    /// The position after it: no other event before matches.
    pub next: SeqNo,
}

impl Consumers {
    /// The events from `from` on for a consumer, without a lease and without a change of its state.
    /// `None` if the batch must be taken by [`Consumers::next_batch`]: there are no events, or
    /// something has to be reported.
    pub fn read_ahead(
        &self,
        name: &str,
        from: SeqNo,
        limits: BatchLimits,
    ) -> Result<Option<(Vec<StoredEntry>, ReadAhead)>, StoreError> {
        // Copied, so that the lock of the consumers is not held while the log is read.
        let filter = self.state.lock().of(name)?.record.filter.clone();
        let found = self.log.select(
            &filter,
            from,
            self.log.durable(),
            limits.events,
            limits.bytes,
        )?;

        // A filter that failed is reported by `next_batch`, which changes the record.
        Ok(match found.events.last().map(|event| event.seq) {
            Some(last) if found.too_costly.is_none() => Some((
                found.events,
                ReadAhead {
                    filter,
                    from,
                    last,
                    next: found.next,
                },
            )),
            _ => None,
        })
    }

    /// Makes what was read ahead the holder's batch, as [`Consumers::next_batch`] does. False if it
    /// must be read again: the consumer was moved, paused or given another filter, or retention has
    /// dropped entries of it.
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
        consumer.clear = Some((ahead.last.next(), ahead.next));
        Ok(true)
    }
}
