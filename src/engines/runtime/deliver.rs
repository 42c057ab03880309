//! Delivery of one batch: requests of limited size, repeated until the destination has accepted or
//! rejected each item.
//!
//! # Invariant
//!
//! Whatever a destination accepts of a request: with the order `minion`, the last delivery of an
//! item comes after the destination has accepted all earlier items of its minion.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::shared::Shared;
use super::state::{Interrupt, SinkState};
use crate::base::backoff::Backoff;
use crate::base::clock::Clock;
use crate::cluster::OUTBOX;
use crate::engines::event::Event;
use crate::engines::settings::{SinkOrder, SinkSettings};
use crate::engines::transport::{DeliverError, Item, Rejected, RequestLimits, Transport};
use crate::model::Throttle;
use std::time::Duration;

pub(super) struct DeliverContext {
    pub(super) settings: Arc<SinkSettings>,
    pub(super) state: Arc<SinkState>,
    pub(super) shared: Arc<Shared>,
    /// Lock order: no other lock is taken under it.
    pub(super) throttle: Mutex<Throttle>,
    pub(super) clock: Clock,
}

#[derive(Default)]
pub(super) struct Batch {
    /// The ids of events that are dead letters now. Lock order: no other lock is taken under it.
    pub(super) rejected: Mutex<HashSet<String>>,
    /// The number of seeks when it was fetched.
    pub(super) moves: u64,
}

/// The items of a request that are redelivered, each in order.
#[derive(Default)]
struct Again {
    /// Not accepted for now.
    failed: Vec<Item>,
    /// After these.
    held: Vec<Item>,
    /// The destination's reason.
    reason: String,
}

/// Parts of the items within the limits of a request; an item over the limit of bytes is alone.
pub(super) fn requests(items: Vec<Item>, limits: RequestLimits) -> VecDeque<Vec<Item>> {
    let mut requests = VecDeque::new();

    let mut request = Vec::new();
    let mut bytes = 0;
    for item in items {
        let len = item.bytes.len();
        // An item over the limit of bytes is alone in its request: the destination decides.
        if !request.is_empty() && (request.len() >= limits.count || bytes + len > limits.bytes) {
            requests.push_back(std::mem::take(&mut request));
            bytes = 0;
        }
        bytes += len;
        request.push(item);
    }

    if !request.is_empty() {
        requests.push_back(request);
    }
    requests
}

impl DeliverContext {
    /// Delivers items in their order. Returns when each is accepted, or its event is a durable dead
    /// letter.
    pub(super) fn deliver(
        &self,
        transport: &mut dyn Transport,
        batch: &Batch,
        items: Vec<Item>,
    ) -> Result<(), Interrupt> {
        let mut backoff = self.settings.retry.backoff();
        let mut pending = requests(items, self.settings.limits);

        while let Some(request) = pending.pop_front() {
            // Before each request and not once for the batch, because the rate counts items.
            self.throttle(batch, request.len())?;
            match transport.deliver(&request, None) {
                Ok(rejected) => {
                    let after = self.sort_out(batch, request, rejected)?;
                    // Progress shows that the destination works, so the next failure begins with
                    // the first pause.
                    if after.held.is_empty() && after.failed.is_empty() {
                        backoff.reset();
                    }
                    // Pushed in reverse: the failed items are sent first, then those that wait for
                    // them.
                    if !after.held.is_empty() {
                        pending.push_front(after.held);
                    }

                    if !after.failed.is_empty() {
                        pending.push_front(after.failed);
                        self.fail(batch, &after.reason, &mut backoff, None)?;
                    }
                }
                // Nothing can be divided any more, so this item is the reason.
                Err(DeliverError::Refused { reason }) if request.len() == 1 => {
                    backoff.reset();
                    let item = request.first();
                    item.map_or(Ok(()), |item| self.dead_letter(batch, &item.event, &reason))?;
                }
                // One item of the request may be the reason. Halves find it in few requests, and no
                // pause is needed.
                Err(DeliverError::Refused { reason }) => {
                    tracing::debug!(
                        sink = self.settings.name,
                        reason,
                        items = request.len(),
                        "request rejected, splitting it"
                    );
                    self.state.counters.failures.add(1);

                    let mut first = request;
                    let second = first.split_off(first.len() / 2);
                    pending.push_front(second);
                    pending.push_front(first);
                }
                Err(DeliverError::Retry { reason, after }) => {
                    // The request returns to the front: its items keep their order.
                    pending.push_front(request);
                    self.fail(batch, &reason, &mut backoff, after)?;
                }
            }
        }
        Ok(())
    }

    /// Notes what a destination accepted, and makes dead letters of what it rejected for good. The
    /// rest is redelivered: first the items that it did not accept now, then the later items of
    /// their minions, although it may have accepted those. Otherwise the last delivery of an
    /// item could come before the delivery of an earlier item.
    fn sort_out(
        &self,
        batch: &Batch,
        request: Vec<Item>,
        rejected: Vec<Rejected>,
    ) -> Result<Again, Interrupt> {
        let is_ordered = self.settings.order == SinkOrder::Minion;
        let mut rejected: HashMap<usize, Rejected> =
            rejected.into_iter().map(|one| (one.index, one)).collect();

        let mut waiting: HashSet<String> = HashSet::new();
        let mut again = Again::default();
        let mut accepted = 0;
        let mut bytes = 0;

        for (index, item) in request.into_iter().enumerate() {
            let is_later = is_ordered && waiting.contains(&item.event.minion);
            match rejected.remove(&index) {
                // Rejected for good: the items after it need not wait.
                Some(one) if !one.is_temporary => {
                    self.dead_letter(batch, &item.event, &one.reason)?;
                }
                _ if is_later => again.held.push(item),
                Some(one) => {
                    waiting.insert(item.event.minion.clone());
                    again.reason = one.reason;
                    again.failed.push(item);
                }
                None => {
                    accepted += 1;
                    bytes += item.bytes.len() as u64;
                }
            }
        }

        let counters = &self.state.counters;
        counters.items.add(accepted);
        counters.bytes.add(bytes);

        let now = self.clock.now();
        // Either a success or a failed attempt, never both: a success would end the run of failures
        // that the repeated rejection of one item is.
        if again.failed.is_empty() {
            counters.requests.add(1);
            self.state.succeeded(now);
        } else if accepted > 0 {
            self.state.delivered_some(now);
        }

        Ok(again)
    }

    fn throttle(&self, batch: &Batch, items: usize) -> Result<(), Interrupt> {
        let now = self.clock.monotonic();
        let pause = self.settings.rate.map_or(Duration::ZERO, |rate| {
            self.throttle.lock().pause(rate, now, items)
        });
        self.state.wait(&self.clock, pause, batch.moves)
    }

    /// Notes a failed attempt and waits for the next one.
    fn fail(
        &self,
        batch: &Batch,
        reason: &str,
        backoff: &mut Backoff,
        after: Option<Duration>,
    ) -> Result<(), Interrupt> {
        // At least as long as the destination requests.
        let pause = backoff.next().max(after.unwrap_or_default());
        // Only the first failure after a success is logged; the status shows the others.
        let is_first = self.state.failed(self.clock.now(), reason);
        if is_first && self.settings.name == OUTBOX {
            // The daemon's own sink cannot be tested.
            tracing::warn!(
                error = reason,
                ?pause,
                "cannot publish to the shared history, retrying: `saltcellar doctor` checks NATS"
            );
        } else if is_first {
            tracing::warn!(
                sink = self.settings.name,
                error = reason,
                ?pause,
                "delivery failed, retrying: `saltcellar sinks test` shows the response"
            );
        }

        self.state.wait(&self.clock, pause, batch.moves)
    }

    /// Makes an event a dead letter, once. Waits while that is not possible.
    pub(super) fn dead_letter(
        &self,
        batch: &Batch,
        event: &Event,
        reason: &str,
    ) -> Result<(), Interrupt> {
        // An event can have several items, each rejected by itself.
        if !batch.rejected.lock().insert(event.id.clone()) {
            return Ok(());
        }

        let mut backoff = self.settings.retry.backoff();
        loop {
            match self
                .shared
                .dead_letters
                .add(event, reason, self.clock.now())
            {
                Ok(()) => break,
                Err(error) => {
                    // A full or failing file stops the sink: without its dead letter the event must
                    // not be acknowledged.
                    let stored = self.fail(batch, &error.to_string(), &mut backoff, None);
                    // If the wait is interrupted, the event is no dead letter yet.
                    stored.inspect_err(|_| _ = batch.rejected.lock().remove(&event.id))?;
                }
            }
        }

        self.state.counters.dead_lettered.add(1);
        tracing::warn!(
            sink = self.settings.name,
            id = event.id,
            tag = event.tag,
            reason,
            "event dead-lettered: correct the cause, then retry it with `saltcellar sinks dead-letters retry`"
        );
        Ok(())
    }
}
