//! What a spill holds, apart from the bytes on disk: the parts that change together, under one lock.
//!
//! Each part keeps its own invariant. Here is what follows from several of them.

use super::file::DiskQueue;
use super::losses::Losses;
use super::memory::Memory;
use super::offered::Offered;
use super::pending::PendingBatch;
use super::position::Position;

#[derive(Debug, Default)]
pub(super) struct SpillState {
    /// The oldest events: offered to the store, or to be offered again.
    pub(super) offered: Offered,
    /// Events on disk, newer than those.
    pub(super) disk: OnDisk,
    /// The newest events.
    pub(super) memory: Memory,
    pub(super) losses: Losses,
    /// The bus has been read up to here.
    pub(super) read: Position,
    /// The writer is closed.
    pub(super) closing: bool,
}

/// The disk as the drainer left it, which alone accesses it.
#[derive(Debug, Default)]
pub(super) struct OnDisk {
    has_events: bool,
    events: u64,
    bytes: u64,
}

impl OnDisk {
    /// Whether there may be undelivered events.
    pub(super) fn has_events(&self) -> bool {
        self.has_events
    }

    /// Undelivered events.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Bytes of files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Before the first write: from now on no newer event goes directly to the store.
    pub(super) fn begin(&mut self) {
        self.has_events = true;
    }

    /// After the last event was read: the store may go on with memory.
    pub(super) fn end(&mut self) {
        self.has_events = false;
    }

    /// Notes how much is there.
    pub(super) fn measure(&mut self, queue: &DiskQueue) {
        (self.events, self.bytes) = (queue.waiting(), queue.bytes());
    }
}

impl SpillState {
    /// Whether no event waits. Some may be in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.offered.queue().is_empty() && !self.disk.has_events() && self.memory.is_empty()
    }

    /// Whether new events can go directly to the store.
    pub(super) fn is_clear(&self) -> bool {
        self.is_empty() && !self.offered.is_held()
    }

    /// The position up to which everything is in the log or on disk.
    pub(super) fn safe(&self) -> Position {
        let mut batches = self.offered.batches().chain(self.memory.batches());

        // The oldest event that is only in memory limits what is safe; events read from a file are
        // still on disk.
        match batches.find(|pending_batch| pending_batch.file.is_none()) {
            Some(pending_batch) => Position {
                until: Some(pending_batch.at),
                number: pending_batch.first.saturating_sub(1),
            },
            None => Position {
                until: self.losses.begin().or(self.read.until),
                ..self.read
            },
        }
    }

    /// Whether memory has room for this many bytes.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.memory.fits(bytes, self.losses.is_losing())
    }

    /// Events that wait, except those on disk.
    pub(super) fn events_in_memory(&self) -> u64 {
        let queued = self.offered.queue().iter();
        queued
            .chain(self.memory.batches())
            .map(PendingBatch::events)
            .sum()
    }
}
