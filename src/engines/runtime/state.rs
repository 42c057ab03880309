//! State shared by a sink's threads and the calls about it: requests, counters, the last error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::clock::{Clock, Micros};
use crate::base::limits::SINK_LAGS_KEPT;
use crate::base::metrics::Counter;
use crate::base::named::named;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The thread has not started yet.
    #[default]
    Starting,
    Idle,
    Delivering,
    /// The last delivery failed; it waits for the next attempt.
    Retrying,
    Paused,
    /// The thread has ended by a panic, or could not start.
    Failed,
}

named! {
    Phase {
        Starting: "starting",
        Idle: "idle",
        Delivering: "delivering",
        Retrying: "retrying",
        Paused: "paused",
        Failed: "failed",
    }
}

/// Counters of one sink since the start of the daemon.
#[derive(Debug, Default)]
pub(crate) struct SinkCounters {
    pub(crate) delivered: Counter,
    /// Items of these events.
    pub(crate) items: Counter,
    /// Bytes of these items.
    pub(crate) bytes: Counter,
    /// Events without an item for the destination.
    pub(crate) without_items: Counter,
    /// Successful requests or writes.
    pub(crate) requests: Counter,
    /// Failed attempts, each followed by another one.
    pub(crate) failures: Counter,
    pub(crate) dead_lettered: Counter,
    pub(crate) redacted: Counter,
}

impl SinkCounters {
    /// The present values.
    pub(crate) fn get(&self) -> SinkCounts {
        // Every field is named: a counter that is missing in the response then fails to compile.
        let Self {
            delivered,
            items,
            bytes,
            without_items,
            requests,
            failures,
            dead_lettered,
            redacted,
        } = self;

        SinkCounts {
            bytes: bytes.get(),
            dead_lettered: dead_lettered.get(),
            delivered: delivered.get(),
            failures: failures.get(),
            items: items.get(),
            redacted: redacted.get(),
            requests: requests.get(),
            without_items: without_items.get(),
        }
    }
}

/// Counters of a sink since the start of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SinkCounts {
    /// Bytes of accepted items.
    pub(crate) bytes: u64,
    /// Events that the destination rejected.
    pub(crate) dead_lettered: u64,
    /// Events that the destination accepted.
    pub(crate) delivered: u64,
    /// Failed attempts, each followed by another one.
    pub(crate) failures: u64,
    /// Accepted items.
    pub(crate) items: u64,
    /// Events with redacted values.
    pub(crate) redacted: u64,
    /// Successful requests or writes.
    pub(crate) requests: u64,
    /// Events without an item for the destination.
    pub(crate) without_items: u64,
}

/// The reason why a wait ended early, or a delivery was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    Stop,
    /// The position was moved: what was fetched is void.
    Moved,
}

/// Shared by a sink's threads and calls.
#[derive(Debug, Default)]
pub(crate) struct SinkState {
    /// Lock order: before `last`.
    requests: Mutex<Requests>,
    changed: Condvar,
    pub(crate) counters: SinkCounters,
    /// Lock order: after `requests`; no other lock is taken under it.
    last: Mutex<Last>,
    is_reopening: AtomicBool,
    /// The latest values of the lag, in seconds. Lock order: no other lock is taken under it.
    lags: Mutex<VecDeque<u64>>,
}

#[derive(Debug, Default)]
struct Requests {
    stop: bool,
    paused: bool,
    /// Number of seeks.
    moves: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) phase: Phase,
    pub(crate) delivered_at: Option<Micros>,
    /// The last error: time and text. Remains after a success.
    pub(crate) error: Option<(Micros, String)>,
    /// Failed attempts since the last success.
    pub(crate) failures: u32,
}

impl SinkState {
    pub(super) fn new(paused: bool) -> Arc<Self> {
        let state = Self::default();
        state.requests.lock().paused = paused;
        Arc::new(state)
    }

    pub(crate) fn last(&self) -> Last {
        self.last.lock().clone()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.last.lock().phase = phase;
    }

    pub(super) fn succeeded(&self, now: Micros) {
        let mut last = self.last.lock();
        last.delivered_at = Some(now);
        last.failures = 0;
        last.phase = Phase::Delivering;
    }

    /// Notes a failed attempt of which the destination accepted a part.
    pub(super) fn delivered_some(&self, now: Micros) {
        self.last.lock().delivered_at = Some(now);
    }

    /// Notes that there is nothing to deliver.
    pub(super) fn recovered(&self) {
        self.last.lock().failures = 0;
    }

    /// Notes a failed attempt; returns whether it is the first one since a success.
    pub(super) fn failed(&self, now: Micros, error: &str) -> bool {
        self.counters.failures.add(1);
        let mut last = self.last.lock();
        last.error = Some((now, error.to_owned()));
        last.failures = last.failures.saturating_add(1);
        last.phase = Phase::Retrying;
        last.failures == 1
    }

    pub(super) fn stop(&self) {
        self.requests.lock().stop = true;
        self.changed.notify_all();
    }

    pub(super) fn pause(&self, paused: bool) {
        self.requests.lock().paused = paused;
        self.changed.notify_all();
    }

    pub(super) fn moved(&self) {
        self.requests.lock().moves += 1;
        self.changed.notify_all();
    }

    /// The number of seeks so far, for [`SinkState::wait`].
    pub(super) fn moves(&self) -> u64 {
        self.requests.lock().moves
    }

    /// Notes the lag of now.
    pub(super) fn note_lag(&self, lag: Duration) {
        let mut lags = self.lags.lock();
        if lags.len() >= SINK_LAGS_KEPT {
            lags.pop_front();
        }
        lags.push_back(lag.as_secs());
    }

    /// The noted lags, the oldest first.
    pub(super) fn lags(&self) -> Vec<u64> {
        self.lags.lock().iter().copied().collect()
    }

    pub(super) fn reopen(&self) {
        self.is_reopening.store(true, Ordering::Release);
    }

    pub(super) fn take_reopen(&self) -> bool {
        self.is_reopening.swap(false, Ordering::AcqRel)
    }

    /// Whether [`SinkState::wait`] would not return as usual: at a stop, a pause, and a seek since
    /// `moves`.
    pub(super) fn is_interrupted(&self, moves: u64) -> bool {
        let requests = self.requests.lock();
        requests.stop || requests.paused || requests.moves != moves
    }

    /// Waits for `pause`, and on as long as the sink is paused. Ends early at a stop, and at a seek
    /// since `moves`.
    pub(super) fn wait(&self, clock: &Clock, pause: Duration, moves: u64) -> Result<(), Interrupt> {
        let until = clock.monotonic() + pause;
        // Locked before `last`, which `set_phase` locks.
        let mut requests = self.requests.lock();

        // A stop comes before a move, and a move before a pause: the first two void what the caller
        // is about to do.
        loop {
            if requests.stop {
                return Err(Interrupt::Stop);
            }
            if requests.moves != moves {
                return Err(Interrupt::Moved);
            }

            if requests.paused {
                // Without an end: a resume, a seek or a stop wakes it.
                self.set_phase(Phase::Paused);
                self.changed.wait(&mut requests);
                continue;
            }

            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Ok(());
            }
            // Woken for any change, so everything is looked at again.
            self.changed.wait_for(&mut requests, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lags_of_an_hour_are_kept() {
        let state = SinkState::new(false);
        let noted: Vec<u64> = (0..SINK_LAGS_KEPT as u64 + 5).collect();
        for lag in &noted {
            state.note_lag(Duration::from_secs(*lag));
        }
        assert_eq!(state.lags(), noted[5..]);
    }
}
