//! Batches that wait in memory: newer than those on disk, and not offered to the store yet.
//!
//! # Invariant
//!
//! They are in the order of the bus, and take [`Memory::bytes`]: at most [`BUS_MEMORY_BYTES`], or a
//! single batch of any size.

use std::collections::VecDeque;
use std::time::Duration;

use super::pending::PendingBatch;
use crate::base::limits::{BUS_MEMORY_BYTES, BUS_RESUME_BYTES, BUS_WAITS_MAX};

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The oldest first.
    batches: VecDeque<PendingBatch>,
    bytes: usize,
    /// Remaining time for which the reader may wait for room.
    timeout: Duration,
}

impl Memory {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn batches(&self) -> impl Iterator<Item = &PendingBatch> {
        self.batches.iter()
    }

    /// The oldest batch.
    pub(super) fn front(&self) -> Option<&PendingBatch> {
        self.batches.front()
    }

    /// Whether the oldest batch has waited longer than this.
    pub(super) fn waits_longer_than(&self, limit: Duration) -> bool {
        self.front()
            .is_some_and(|pending_batch| pending_batch.since.elapsed() > limit)
    }

    /// Whether there is room. After a loss more room is required. Otherwise there could be a gap
    /// between any two events instead of a single gap.
    pub(super) fn fits(&self, bytes: usize, after_loss: bool) -> bool {
        let room = BUS_MEMORY_BYTES - if after_loss { BUS_RESUME_BYTES } else { 0 };
        self.batches.is_empty() || self.bytes + bytes <= room
    }

    pub(super) fn push(&mut self, pending_batch: PendingBatch) {
        self.bytes += pending_batch.batch.footprint();
        self.batches.push_back(pending_batch);
    }

    /// Removes the oldest batch.
    pub(super) fn pop_front(&mut self) {
        if let Some(pending_batch) = self.batches.pop_front() {
            self.bytes -= pending_batch.batch.footprint();
        }
    }

    /// Removes all batches, the oldest first.
    pub(super) fn take_all(&mut self) -> VecDeque<PendingBatch> {
        self.bytes = 0;
        std::mem::take(&mut self.batches)
    }

    /// Lets the reader wait for [`BUS_WAITS_MAX`] again if memory is half empty.
    pub(super) fn renew_timeout(&mut self) {
        if self.bytes < BUS_MEMORY_BYTES / 2 {
            self.timeout = BUS_WAITS_MAX;
        }
    }

    /// Whether the reader may still wait for room.
    pub(super) fn may_wait(&self) -> bool {
        !self.timeout.is_zero()
    }

    /// Takes a wait of the reader from its remaining time.
    pub(super) fn waited(&mut self, time: Duration) {
        self.timeout = self.timeout.saturating_sub(time);
    }
}
