//! What the store was offered and has not accepted: batches in flight, and rejected batches.
//!
//! ```text
//! queue --offer--> in flight --stored--> released, in the order of the offers
//!   ^                  |
//!   +----rejected------+                 once the store has responded to all in flight
//! ```
//!
//! # Invariant
//!
//! A batch stays here until it and all that were offered before it are stored. The first one in
//! flight is never a stored one. After a rejection one batch is offered at a time, until the store
//! accepts it ([`Offered::is_held`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pending::PendingBatch;
use crate::base::limits::SPARE_BATCH_BYTES;
use crate::model::Batch;

/// A batch that was offered to the store.
#[derive(Debug)]
struct InFlight {
    pending_batch: PendingBatch,
    response: Response,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Response {
    Awaited,
    Stored,
    Rejected,
}

/// The store's responses to the batches in flight, once all are known.
pub(super) enum Settled {
    /// The store has not responded to all of them: one may still be stored, and a second offer would
    /// store it twice.
    NotYet,
    /// All of them are stored.
    Stored,
    /// Some were rejected, and are no longer in flight.
    Rejected {
        /// The oldest first.
        batches: Vec<PendingBatch>,
        /// Only one was in flight, so it is the cause itself.
        alone: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Offered {
    /// In the order of the offers.
    in_flight: VecDeque<InFlight>,
    /// The id of the first one in flight. Ids have no gaps.
    first_id: u64,
    /// Offered before everything that waits, the oldest first: rejected batches, and gaps.
    queue: VecDeque<PendingBatch>,
    /// Why the store rejected a batch; `None` once it accepts one again.
    refusal: Option<String>,
    /// Batches that were released.
    accepted: u64,
    /// When the last one was.
    accepted_at: Option<Instant>,
    /// The spill file of each stored chunk, until the drainer takes them.
    stored_files: Vec<u64>,
    /// The memory of a stored batch, for the next one.
    spare: Option<Batch>,
}

impl Offered {
    /// All batches, in the order of the bus.
    pub(super) fn batches(&self) -> impl Iterator<Item = &PendingBatch> {
        let in_flight = self.in_flight.iter().map(|flight| &flight.pending_batch);
        in_flight.chain(&self.queue)
    }

    // The queue.

    /// Batches to be offered before everything that waits.
    pub(super) fn queue(&self) -> &VecDeque<PendingBatch> {
        &self.queue
    }

    /// Queues a batch behind the others.
    pub(super) fn push_back(&mut self, pending_batch: PendingBatch) {
        self.queue.push_back(pending_batch);
    }

    /// Queues a batch before the others.
    pub(super) fn push_front(&mut self, pending_batch: PendingBatch) {
        self.queue.push_front(pending_batch);
    }

    /// Removes the first one of the queue, which is in flight now.
    pub(super) fn pop_front(&mut self) {
        self.queue.pop_front();
    }

    // Flights.

    /// The id of the next offer.
    pub(super) fn next_id(&self) -> u64 {
        self.first_id + self.in_flight.len() as u64
    }

    /// Notes the offer of a batch, with the id of [`Self::next_id`].
    pub(super) fn offered(&mut self, pending_batch: PendingBatch) {
        self.in_flight.push_back(InFlight {
            pending_batch,
            response: Response::Awaited,
        });
    }

    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Notes the store's response to an offer.
    pub(super) fn answered(&mut self, id: u64, outcome: Result<(), String>) {
        // The id gives the place. After `take_all` there is none.
        let at = usize::try_from(id.saturating_sub(self.first_id)).unwrap_or(usize::MAX);
        if let Some(flight) = self.in_flight.get_mut(at) {
            flight.response = match outcome {
                Ok(()) => Response::Stored,
                Err(_) => Response::Rejected,
            };
        }

        match outcome {
            Ok(()) => self.release(),
            Err(reason) => self.refusal = Some(reason),
        }
    }

    /// Releases stored batches, but none with an unanswered one before it: what is safe follows from
    /// the first one that is not released.
    fn release(&mut self) {
        while let Some(flight) = self
            .in_flight
            .pop_front_if(|flight| flight.response == Response::Stored)
        {
            self.first_id += 1;
            self.accepted += 1;
            self.accepted_at = Some(Instant::now());
            let PendingBatch { batch, file, .. } = flight.pending_batch;
            self.stored_files.extend(file);
            self.keep(batch);
        }

        // The store accepts the batch that it rejected before.
        if self.in_flight.is_empty() {
            self.refusal = None;
        }
    }

    /// Keeps the memory of a stored batch: an allocator would return it to the system between two batches, and each
    /// page of the next one would cost a fault.
    fn keep(&mut self, batch: Arc<Batch>) {
        if let Some(mut batch) = Arc::into_inner(batch)
            && batch.footprint() <= SPARE_BATCH_BYTES
        {
            batch.clear();
            self.spare = Some(batch);
        }
    }

    /// An empty batch, with the memory of a stored one if there is any.
    pub(super) fn empty_batch(&mut self) -> Batch {
        self.spare.take().unwrap_or_default()
    }

    /// Takes rejected batches out of flight, once the store has responded to all.
    pub(super) fn settle(&mut self) -> Settled {
        if self.in_flight.is_empty() {
            return Settled::Stored;
        }

        let is_awaited = |flight: &InFlight| flight.response == Response::Awaited;
        if self.in_flight.iter().any(is_awaited) {
            return Settled::NotYet;
        }

        let in_flight = std::mem::take(&mut self.in_flight);
        self.first_id += in_flight.len() as u64;
        let alone = in_flight.len() == 1;

        let mut batches = Vec::new();
        for InFlight {
            pending_batch,
            response,
        } in in_flight
        {
            if response == Response::Stored {
                self.stored_files.extend(pending_batch.file);
            } else {
                batches.push(pending_batch);
            }
        }
        Settled::Rejected { batches, alone }
    }

    /// Gives up a batch, whose file no longer waits for it.
    pub(super) fn dropped(&mut self, pending_batch: &PendingBatch) {
        self.stored_files.extend(pending_batch.file);
    }

    /// Removes all that is not stored, the oldest first. Later responses find nothing to change.
    pub(super) fn take_all(&mut self) -> Vec<PendingBatch> {
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        in_flight
            .filter(|flight| flight.response != Response::Stored)
            .map(|flight| flight.pending_batch)
            .chain(std::mem::take(&mut self.queue))
            .collect()
    }

    // What the store has told.

    /// Whether the store rejected a batch: one is offered at a time, until one is accepted.
    pub(super) fn is_held(&self) -> bool {
        self.refusal.is_some()
    }

    /// Why the store rejected the last batch; `None` once it accepts one again.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Batches that the store has accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Whether the store has accepted a batch in this last period.
    pub(super) fn accepted_within(&self, period: Duration) -> bool {
        self.accepted_at.is_some_and(|at| at.elapsed() <= period)
    }

    /// Whether the drainer has to be told of stored chunks.
    pub(super) fn has_stored_files(&self) -> bool {
        !self.stored_files.is_empty()
    }

    /// The spill file of each chunk stored since the last call.
    pub(super) fn take_stored_files(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.stored_files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;

    fn store(offered: &mut Offered, batch: Batch) {
        let id = offered.next_id();
        offered.offered(PendingBatch::new(batch, 1, Micros(1)));
        offered.answered(id, Ok(()));
    }

    #[test]
    fn the_memory_of_a_stored_batch_is_used_again_unless_it_is_large() {
        let mut offered = Offered::default();
        store(&mut offered, Batch::with_room(5_000));
        let batch = offered.empty_batch();
        assert!(batch.is_empty() && batch.footprint() >= 5_000);
        assert_eq!(offered.empty_batch().footprint(), 0, "used once");

        store(&mut offered, Batch::with_room(SPARE_BATCH_BYTES + 1));
        assert_eq!(offered.empty_batch().footprint(), 0);
    }

    #[test]
    fn a_batch_that_is_referred_to_is_not_used_again() {
        let mut offered = Offered::default();
        let pending_batch = PendingBatch::new(Batch::with_room(5_000), 1, Micros(1));
        let in_use = pending_batch.batch.clone();
        offered.offered(pending_batch);
        offered.answered(0, Ok(()));
        assert_eq!(offered.empty_batch().footprint(), 0);
        assert!(in_use.footprint() >= 5_000);
    }
}
