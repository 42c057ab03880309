//! The thread of a sink: fetches events, encodes them, delivers them on its lanes, and acknowledges them together.
//!
//! A *lane* is one of the parallel deliveries. With the order `minion`, all events of a minion take the same lane.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::Redact;
use super::backoff::Backoff;
use super::deliver::{Batch, DeliverContext};
use super::state::{Interrupt, Phase};
use crate::base::limits::{SINK_BATCH_BYTES_MAX, SINK_IDLE};
use crate::engines::event::Event;
use crate::engines::feed::{Feed, FeedError};
use crate::engines::settings::SinkOrder;
use crate::engines::transport::{Item, Transport};
use crate::model::SeqNo;
use crate::store::StoredEntry;

/// A sink, as its thread owns it.
pub(super) struct Sink {
    pub(super) context: DeliverContext,
    pub(super) feed: Arc<dyn Feed>,
    /// One per lane.
    pub(super) lanes: Vec<Box<dyn Transport>>,
    pub(super) redact: Option<Redact>,
    pub(super) master_id: Arc<str>,
    /// For the names of the lanes' threads.
    pub(super) thread_name: String,
}

impl Sink {
    /// Delivers until a stop is requested.
    pub(super) fn run(mut self) {
        let mut backoff = Backoff::new(self.context.settings.retry);
        loop {
            let moves = self.context.state.moves();
            match self.step(&mut backoff, moves) {
                Ok(()) | Err(Interrupt::Moved) => {}
                Err(Interrupt::Stop) => break,
            }
        }
        self.feed.release();
    }

    fn step(&mut self, backoff: &mut Backoff, moves: u64) -> Result<(), Interrupt> {
        let (state, clock) = (self.context.state.clone(), self.context.clock.clone());
        state.wait(&clock, Duration::ZERO, moves)?;
        if state.take_reopen() {
            self.lanes.iter_mut().for_each(|lane| lane.reopen());
        }
        let retries = state.take_retries();
        if !retries.is_empty() {
            self.retry(&retries, moves)?;
        }
        match self.fetch(moves)? {
            Ok(entries) if entries.is_empty() => {
                backoff.reset();
                state.recovered();
                self.lanes.iter_mut().for_each(|lane| lane.idle());
            }
            Ok(entries) => {
                state.set_phase(Phase::Delivering);
                let last = entries.last().map(|entry| entry.seq);
                let events: Vec<_> = entries.into_iter().map(|entry| self.event(entry)).collect();
                self.deliver(events, moves)?;
                // Refused after a seek, or if another process has taken the name: both make the batch void.
                if let Some(Err(error)) = last.map(|last| self.feed.ack(last)) {
                    self.feed_failed(&error, backoff, moves)?;
                }
                backoff.reset();
            }
            Err(error) => self.feed_failed(&error, backoff, moves)?,
        }
        Ok(())
    }

    fn feed_failed(&self, error: &FeedError, backoff: &mut Backoff, moves: u64) -> Result<(), Interrupt> {
        let (state, clock) = (&self.context.state, &self.context.clock);
        if state.failed(clock.now(), &error.to_string()) {
            tracing::warn!(sink = self.context.settings.name, %error, "events not available, retrying");
        }
        state.wait(clock, backoff.next(None), moves)
    }

    /// The next events: as many as the lanes take, or those that arrive within the batch's time.
    fn fetch(&self, moves: u64) -> Result<Result<Vec<StoredEntry>, FeedError>, Interrupt> {
        let settings = &self.context.settings;
        let state = &self.context.state;
        let count = settings.limits.count.saturating_mul(self.lanes.len());
        let bytes = settings.limits.bytes.saturating_mul(self.lanes.len()).min(SINK_BATCH_BYTES_MAX);
        let fetch = |wait| self.feed.fetch(count, bytes, wait);
        let first = match fetch(SINK_IDLE) {
            Ok(fetched) if fetched.is_paused => {
                state.set_phase(Phase::Paused);
                state.wait(&self.context.clock, SINK_IDLE, moves)?;
                return Ok(Ok(Vec::new()));
            }
            Ok(fetched) => fetched,
            Err(error) => return Ok(Err(error)),
        };
        if first.entries.is_empty() {
            state.set_phase(Phase::Idle);
            return Ok(Ok(first.entries));
        }
        let size: usize = first.entries.iter().map(|entry| entry.tag.len() + entry.body.len()).sum();
        let is_full = first.entries.len() >= count || size >= bytes;
        if is_full || settings.limits.time.is_zero() {
            return Ok(Ok(first.entries));
        }
        state.wait(&self.context.clock, settings.limits.time, moves)?;
        Ok(fetch(Duration::ZERO).map(|fetched| fetched.entries))
    }

    fn event(&self, mut entry: StoredEntry) -> Event {
        let redacted = self.redact.as_ref().and_then(|redact| redact(&entry.as_entry()));
        if let Some(body) = redacted {
            entry.body = body;
            self.context.state.counters.redacted.add(1);
        }
        let id = self.feed.id_of(&entry);
        Event::new(entry, id, &self.master_id)
    }

    /// Delivers dead letters again. Those that are rejected again stay.
    fn retry(&mut self, seqs: &[u64], moves: u64) -> Result<(), Interrupt> {
        let letters = self.context.dead_letters.clone();
        let wanted = letters.all().into_iter().filter(|letter| seqs.contains(&letter.seq));
        let events: Vec<_> = wanted.map(|letter| letter.event()).collect();
        let tried: Vec<u64> = events.iter().map(|event| event.seq.0).collect();
        let rejected = self.deliver(events, moves)?;
        let accepted: Vec<u64> = tried.into_iter().filter(|seq| !rejected.contains(&SeqNo(*seq))).collect();
        if let Err(error) = letters.remove(Some(&accepted)) {
            tracing::error!(sink = self.context.settings.name, %error, "delivered dead letters not removed");
            self.context.state.failed(self.context.clock.now(), &error.to_string());
        }
        Ok(())
    }

    /// Encodes and delivers events; returns those that are dead letters now.
    fn deliver(&mut self, events: Vec<Event>, moves: u64) -> Result<BTreeSet<SeqNo>, Interrupt> {
        let (context, lanes) = (&self.context, self.lanes.len());
        let mut items: Vec<Vec<Item>> = (0..lanes).map(|_| Vec::new()).collect();
        let mut failed = Vec::new();
        let (mut without_items, total) = (0, events.len() as u64);
        let mut encoded = Vec::new();
        for (n, event) in events.iter().enumerate() {
            match context.settings.encoder.1.encode(event, &mut encoded) {
                Ok(()) if encoded.is_empty() => without_items += 1,
                Ok(()) => {}
                Err(error) => {
                    encoded.clear();
                    failed.push((event.seq, error.to_string()));
                }
            }
            let lane = match context.settings.order {
                SinkOrder::Minion => lane_of(&event.minion, lanes),
                SinkOrder::None => n % lanes.max(1),
            };
            if let Some(lane) = items.get_mut(lane) {
                lane.extend(encoded.drain(..).map(|bytes| Item {
                    seq: event.seq,
                    hops: event.hops(),
                    bytes,
                }));
            }
        }
        let events: BTreeMap<SeqNo, Event> = events.into_iter().map(|event| (event.seq, event)).collect();
        let batch = Batch { events, rejected: Mutex::default(), moves };
        for (seq, reason) in failed {
            context.dead_letter(&batch, seq, &reason)?;
        }
        let mut work: Vec<_> =
            self.lanes.iter_mut().zip(items).filter(|(_, items)| !items.is_empty()).collect();
        if let [_] = work[..]
            && let Some((lane, items)) = work.pop()
        {
            context.deliver(&mut **lane, &batch, items)?;
        }
        let (batch_of_lanes, name) = (&batch, &self.thread_name);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(work)
                .map(|(n, (lane, items))| {
                    let work = move || context.deliver(&mut **lane, batch_of_lanes, items);
                    thread::Builder::new().name(format!("{name}-{n}")).spawn_scoped(scope, work)
                })
                .collect();
            threads.into_iter().try_for_each(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => {
                    tracing::error!(sink = context.settings.name, %error, "cannot start a thread, delivering again");
                    context.state.failed(context.clock.now(), &error.to_string());
                    context.state.wait(&context.clock, SINK_IDLE, moves)?;
                    // Nothing is acknowledged, so all is fetched again.
                    Err(Interrupt::Moved)
                }
            })
        })?;
        let rejected = batch.rejected.into_inner();
        let counters = &context.state.counters;
        counters.without_items.add(without_items);
        counters.delivered.add(total.saturating_sub(without_items).saturating_sub(rejected.len() as u64));
        Ok(rejected)
    }
}

fn lane_of(minion: &str, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    minion.hash(&mut hasher);
    let lanes = lanes.max(1) as u64;
    usize::try_from(hasher.finish() % lanes).unwrap_or(0)
}
