//! The thread of a sink: takes encoded events, delivers them on its lanes, and acknowledges them
//! together.
//!
//! A *lane* is one of the parallel deliveries. With the order `minion`, all events of a minion take
//! the same lane.

use std::collections::HashSet;
use std::io;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use super::deliver::{Batch, DeliverContext};
use super::reader::{Ahead, Encoded, Reader};
use super::state::{Interrupt, Phase};
use crate::base::backoff::Backoff;
use crate::base::limits::SINK_IDLE;
use crate::base::threads;
use crate::engines::feed::FeedError;
use crate::engines::transport::Transport;

/// A sink, as its thread owns it.
pub(super) struct Sink {
    pub(super) reader: Reader,
    /// One per lane.
    pub(super) lanes: Vec<Box<dyn Transport>>,
    /// For the names of the other threads.
    pub(super) thread_name: String,
    /// The batch after the last one, if it is known.
    pub(super) ahead: Option<Ahead>,
}

impl Sink {
    pub(super) fn run(mut self) {
        let mut backoff = self.reader.context.settings.retry.backoff();
        loop {
            // Read before everything else of the step: a seek after this point voids what the step
            // fetches.
            let moves = self.reader.context.state.moves();
            match self.step(&mut backoff, moves) {
                Ok(()) | Err(Interrupt::Moved) => {}
                Err(Interrupt::Stop) => break,
            }
        }
        self.reader.feed.release();
    }

    fn step(&mut self, backoff: &mut Backoff, moves: u64) -> Result<(), Interrupt> {
        let DeliverContext { state, clock, .. } = &self.reader.context;
        // Returns immediately unless the sink is stopped, moved or paused.
        state.wait(clock, Duration::ZERO, moves)?;
        // Between two batches, when no lane is in use.
        if state.take_reopen() {
            self.lanes.iter_mut().for_each(|lane| lane.reopen());
        }

        let shared = self.reader.context.shared.clone();
        let retries = shared.take_retries();
        if !retries.is_empty()
            && let Err(interrupt) = self.retry(&retries, moves)
        {
            // A seek or a stop is no reason to forget them: the caller was told that they are
            // delivered. The next step has them, or the sink that replaces this one.
            shared.add_retries(retries);
            return Err(interrupt);
        }

        let state = &self.reader.context.state;
        match self.reader.next(self.ahead.take(), moves)? {
            Ok(None) => {
                // No news is no failure: an earlier error of the feed is over.
                backoff.reset();
                state.recovered();
                self.lanes.iter_mut().for_each(|lane| lane.idle());
            }
            Ok(Some(batch)) => {
                state.set_phase(Phase::Delivering);

                let last = batch.last;
                let reader = &self.reader;
                let lanes = &mut self.lanes;
                let name = &self.thread_name;
                // The scope ends when both threads have ended, so they may borrow from the sink.
                let (delivered, ahead) = thread::scope(|scope| {
                    let ahead = batch.backlog.and_then(|from| {
                        let read = move || reader.ahead(from, moves);
                        // Without this thread the batch is read after the delivery.
                        spawn(scope, format!("{name}-r"), read).ok()
                    });

                    let delivered = deliver(&reader.context, lanes, name, batch.encoded, moves);
                    (delivered, ahead.and_then(joined))
                });
                // Kept even if the delivery failed: `Reader::next` checks that it still fits.
                self.ahead = ahead;
                // Everything is delivered or a durable dead letter. Otherwise this returns, and
                // nothing is acknowledged.
                delivered?;
                match self.reader.feed.ack(last) {
                    Ok(()) => backoff.reset(),
                    // Refused after a seek, or if another process has taken the name: both make the
                    // batch void.
                    Err(error) => self.feed_failed(&error, backoff, moves)?,
                }
            }

            Err(error) => self.feed_failed(&error, backoff, moves)?,
        }
        Ok(())
    }

    fn feed_failed(
        &self,
        error: &FeedError,
        backoff: &mut Backoff,
        moves: u64,
    ) -> Result<(), Interrupt> {
        let DeliverContext {
            settings,
            state,
            clock,
            ..
        } = &self.reader.context;
        state.failed(clock.now(), &error.to_string());
        // Only the first failure is logged; the status shows the others. By the pauses and not by
        // the state: a delivery may succeed between two failed acknowledgements.
        if backoff.is_reset() {
            tracing::warn!(sink = settings.name, %error, "cannot read or acknowledge events for a sink, retrying");
        }

        state.wait(clock, backoff.next(), moves)
    }

    /// Redelivers dead letters. Letters that are rejected again stay.
    fn retry(&mut self, ids: &HashSet<String>, moves: u64) -> Result<(), Interrupt> {
        let context = &self.reader.context;
        let wanted = context
            .shared
            .dead_letters
            .all()
            .into_iter()
            .filter(|letter| ids.contains(&letter.id));

        let events: Vec<_> = wanted.map(|letter| letter.event()).collect();

        let tried: Vec<String> = events.iter().map(|event| event.id.clone()).collect();
        let encoded = self.reader.encode(events);

        let rejected = deliver(context, &mut self.lanes, &self.thread_name, encoded, moves)?;

        let accepted: Vec<String> = tried
            .into_iter()
            .filter(|id| !rejected.contains(id))
            .collect();

        // Removed only now: after a crash in between they are delivered twice, which at-least-once
        // permits.
        if let Err(error) = context.shared.dead_letters.remove(Some(&accepted)) {
            tracing::error!(sink = context.settings.name, %error, "cannot remove delivered dead letters, they will be redelivered: check the disk for errors and free space");
            context
                .state
                .failed(context.clock.now(), &error.to_string());
        }
        Ok(())
    }
}

/// Delivers events; returns the ids of the events that are dead letters now.
fn deliver(
    context: &DeliverContext,
    lanes: &mut [Box<dyn Transport>],
    name: &str,
    encoded: Encoded,
    moves: u64,
) -> Result<HashSet<String>, Interrupt> {
    let batch = &Batch {
        moves,
        ..Batch::default()
    };

    for (event, reason) in &encoded.failed {
        context.dead_letter(batch, event, reason)?;
    }

    let mut work: Vec<_> = lanes
        .iter_mut()
        .zip(encoded.items)
        .filter(|(_, items)| !items.is_empty())
        .collect();

    // One lane, the usual case, needs no further thread.
    if let [_] = work[..]
        && let Some((lane, items)) = work.pop()
    {
        context.deliver(&mut **lane, batch, items)?;
    }

    thread::scope(|scope| {
        let deliveries = (0..).zip(work).map(|(n, (lane, items))| {
            spawn(scope, format!("{name}-{n}"), move || {
                context.deliver(&mut **lane, batch, items)
            })
        });

        deliveries.collect::<Vec<_>>().into_iter().try_for_each(|thread| match thread {
            Ok(thread) => joined(thread),
            Err(error) => {
                tracing::error!(sink = context.settings.name, %error, "cannot start a thread, retrying the delivery: raise TasksMax of the unit");
                let why = threads::not_started(name, &error).to_string();
                context.state.failed(context.clock.now(), &why);
                context.state.wait(&context.clock, SINK_IDLE, moves)?;
                // Nothing is acknowledged, so all is fetched again.
                Err(Interrupt::Moved)
            }
        })
    })?;

    let rejected = batch.rejected.lock().clone();
    let (counters, undelivered) = (
        &context.state.counters,
        encoded.without_items + rejected.len() as u64,
    );

    counters.redacted.add(encoded.redacted);
    counters.without_items.add(encoded.without_items);
    counters
        .delivered
        .add(encoded.events.saturating_sub(undelivered));

    Ok(rejected)
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name(name).spawn_scoped(scope, work)
}

/// The result of a thread; its panic is passed on.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
