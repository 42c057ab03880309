//! Connection permits: the limit of concurrent connections, and which one is closed at the limit.
//!
//! A connection belongs to the first minion that signs a batch on it, and counts for this one.
//!
//! At the limit the oldest unauthenticated connection (without a valid signature or token so far)
//! is closed; without any, the minion's one idle for longest. A signer has at most
//! [`HTTPS_PEERS_OF_ONE`] connections; one more closes its own one idle for longest. A minion's
//! connection is idle between batches with a valid signature, regardless of other requests. One
//! with a token is kept, but for the last [`HTTP_PEERS_RESERVED`]: beyond that, a connection with a
//! token makes room like any other. Therefore peers without a token, such as health checks, always
//! get in.
//!
//! # Invariant
//!
//! No minion holds more than its share of connections. When all connections of an address are
//! taken, one without authentication or an idle one of a minion is closed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::monitor::Slots;
use crate::base::limits::{HTTP_PEERS_RESERVED, HTTPS_BATCHES_OF_ONE, HTTPS_PEERS_OF_ONE};

/// Time for an evicted connection to close. Its task only has to be polled once, so this is ample.
const EVICTION_TIME: Duration = Duration::from_millis(500);

pub(super) struct ConnectionPermits {
    slots: Slots,
    /// Lock order: before the state of a connection.
    queues: Mutex<EvictionQueues>,
    times: Times,
}

/// Timeouts for the first valid signature, if there is one, and between batches.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) unauthenticated: Option<Duration>,
    pub(super) idle: Duration,
}

/// Connections that can be evicted, in order of eviction.
#[derive(Default)]
struct EvictionQueues {
    next: u64,
    unauthenticated: BTreeMap<u64, Arc<Notify>>,
    idle: BTreeMap<u64, (String, Arc<Notify>)>,
    /// Connections that are kept from eviction.
    kept: usize,
    /// Connections of each signer, busy or not, and its permits for batches in flight.
    of_signer: HashMap<String, (usize, Arc<Semaphore>)>,
}

impl EvictionQueues {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn remove(&mut self, state: PermitState) {
        match state {
            PermitState::Unauthenticated { number, .. } => {
                drop(self.unauthenticated.remove(&number));
            }
            PermitState::Idle { number, .. } => drop(self.idle.remove(&number)),
            PermitState::Kept => self.kept -= 1,
            PermitState::Busy => {}
        }
    }

    /// Evicts the longest idle connection of a signer; false if all of them are busy.
    fn evict(&mut self, signer: &str) -> bool {
        let longest = self
            .idle
            .iter()
            .find(|(_, (whose, _))| whose == signer)
            .map(|(number, _)| *number);
        let Some((_, leave)) = longest.and_then(|number| self.idle.remove(&number)) else {
            return false;
        };
        leave.notify_one();
        true
    }
}

/// The state of a connection.
#[derive(Clone, Copy)]
enum PermitState {
    /// No valid signature so far.
    Unauthenticated { number: u64, since: Instant },
    /// No batch in flight.
    Idle { number: u64, since: Instant },
    /// A batch is in flight, with its own timeouts.
    Busy,
    /// It has a valid token.
    Kept,
}

/// The permit of one connection, released on drop.
pub(in crate::api::http) struct Permit {
    permits: Arc<ConnectionPermits>,
    leave: Arc<Notify>,
    /// Lock order: after the queues; no other lock is taken under it.
    state: Mutex<PermitState>,
    signer: OnceLock<String>,
    _slot: OwnedSemaphorePermit,
}

/// A verified batch in flight; the connection becomes idle when this is dropped.
pub(in crate::api::http) struct BatchInFlight<'a> {
    permit: &'a Permit,
    /// The permits for batches of its signer.
    pub(in crate::api::http) batches: Arc<Semaphore>,
}

impl ConnectionPermits {
    /// Permits for `all` connections.
    pub(super) fn new(all: usize, times: Times) -> Arc<Self> {
        Arc::new(Self {
            slots: Slots::new(all),
            queues: Mutex::default(),
            times,
        })
    }

    /// A permit for a new connection; `evicted` is called if another connection is closed for it.
    /// `None` if all are busy.
    pub(super) async fn take(self: &Arc<Self>, evicted: impl FnOnce()) -> Option<Permit> {
        let permit = if let Ok(permit) = self.slots.free.clone().try_acquire_owned() {
            permit
        } else {
            // Peers without a valid signature go first, because anyone can open such connections.
            let leave = {
                // The guard ends with this block: it must not be held while waiting for the slot.
                let mut queues = self.queues.lock();
                let oldest = queues.unauthenticated.pop_first().map(|(_, leave)| leave);
                oldest.or_else(|| queues.idle.pop_first().map(|(_, (_, leave))| leave))?
            };

            leave.notify_one();
            evicted();

            // The slot is free when the task of the evicted connection drops its permit. The limit
            // keeps the accept loop from waiting for a task that is stuck.
            timeout(EVICTION_TIME, self.slots.free.clone().acquire_owned())
                .await
                .ok()?
                .ok()?
        };

        let leave = Arc::new(Notify::new());

        // Numbers ascend, so a map's first key belongs to the connection that entered its queue
        // first.
        let mut queues = self.queues.lock();
        let number = queues.number();
        queues.unauthenticated.insert(number, leave.clone());

        let state = Mutex::new(PermitState::Unauthenticated {
            number,
            since: Instant::now(),
        });

        Some(Permit {
            permits: self.clone(),
            leave,
            state,
            signer: OnceLock::new(),
            _slot: permit,
        })
    }

    /// The connections, for a monitor.
    pub(super) fn slots(&self) -> Slots {
        self.slots.clone()
    }

    /// Waits until all permits are free, up to `wait`.
    pub(super) async fn all_free(&self, wait: Duration) {
        let all = u32::try_from(self.slots.all).unwrap_or(u32::MAX);
        let _ = timeout(wait, self.slots.free.acquire_many(all)).await;
    }
}

impl Permit {
    /// Starts a batch with a valid signature. `None` if `signer` has too many connections, all of
    /// them busy.
    pub(in crate::api::http) fn begin(&self, signer: &str) -> Option<BatchInFlight<'_>> {
        // The queues before a connection's state, everywhere: the state is one value, copied or set
        // under its own lock.
        let mut queues = self.permits.queues.lock();

        // A connection counts for its first signer. A proxy may send batches of others on it.
        if self.signer.get().is_none() {
            let count = queues.of_signer.get(signer).map_or(0, |(count, _)| *count);
            // The signer's own connection is closed, so no minion can evict the connections of
            // others here.
            if count >= HTTPS_PEERS_OF_ONE && !queues.evict(signer) {
                return None;
            }

            let of_signer = queues.of_signer.entry(signer.to_owned());
            of_signer
                .or_insert_with(|| (0, Arc::new(Semaphore::new(HTTPS_BATCHES_OF_ONE))))
                .0 += 1;
            // Requests of a connection are sequential. Therefore it has no signer yet, and `set`
            // cannot fail.
            let _ = self.signer.set(signer.to_owned());
        }

        let (_, batches) = self
            .signer
            .get()
            .and_then(|signer| queues.of_signer.get(signer))?;
        let batches = batches.clone();

        self.make_busy(&mut queues);
        Some(BatchInFlight {
            permit: self,
            batches,
        })
    }

    /// Keeps an authenticated connection from eviction, unless so many are kept that only the
    /// reserve is left. Called with each request, because a connection of the reserve can be kept
    /// later.
    pub(in crate::api::http) fn keep(&self) {
        let mut queues = self.permits.queues.lock();
        let is_kept = matches!(self.state(), PermitState::Kept);
        if is_kept || queues.kept >= self.permits.slots.all.saturating_sub(HTTP_PEERS_RESERVED) {
            return;
        }

        // It is in no queue then.
        queues.remove(self.state());
        queues.kept += 1;
        *self.state.lock() = PermitState::Kept;
    }

    fn make_busy(&self, queues: &mut EvictionQueues) {
        queues.remove(self.state());
        *self.state.lock() = PermitState::Busy;
    }

    /// Waits until the connection must be closed: evicted, or timed out.
    pub(super) async fn eviction_or_timeout(&self) {
        let times = self.permits.times;
        loop {
            let until = match self.state() {
                PermitState::Unauthenticated { since, .. } => {
                    times.unauthenticated.map(|time| since + time)
                }
                PermitState::Idle { since, .. } => Some(since + times.idle),
                PermitState::Busy | PermitState::Kept => None,
            };
            // Compared by the present state: the connection may have been busy while this task
            // slept.
            if until.is_some_and(|until| until <= Instant::now()) {
                return;
            }

            tokio::select! {
                () = self.leave.notified() => return,
                // A state without a timeout is looked at again later: nothing wakes this task when
                // the state changes.
                () = sleep_until(until.unwrap_or_else(|| Instant::now() + times.idle)) => {}
            }
        }
    }

    fn state(&self) -> PermitState {
        *self.state.lock()
    }
}

impl Drop for BatchInFlight<'_> {
    fn drop(&mut self) {
        let Permit {
            permits,
            signer,
            leave,
            state,
            ..
        } = self.permit;

        // A new number puts the connection at the end of the queue, because it has now been idle
        // for the shortest time.
        let mut queues = permits.queues.lock();
        let number = queues.number();
        queues.idle.insert(
            number,
            (signer.get().cloned().unwrap_or_default(), leave.clone()),
        );

        *state.lock() = PermitState::Idle {
            number,
            since: Instant::now(),
        };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queues = self.permits.queues.lock();
        // An evicted connection is in no queue any more, and removing it again does nothing.
        queues.remove(self.state());

        if let Some(signer) = self.signer.get()
            && let Some((count, _)) = queues.of_signer.get_mut(signer)
        {
            *count -= 1;
            // Otherwise the map would keep an entry of every minion that ever connected.
            if *count == 0 {
                queues.of_signer.remove(signer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn new(all: usize) -> Arc<ConnectionPermits> {
        ConnectionPermits::new(
            all,
            Times {
                unauthenticated: Some(HOUR),
                idle: HOUR,
            },
        )
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(work)
    }

    fn no_eviction() {
        panic!("a connection was evicted although permits are free");
    }

    /// Waits until a connection is evicted, and closes it. The timeouts of this file are longer than the deadline.
    async fn closes(connection: Permit) {
        timeout(Duration::from_secs(10), connection.eviction_or_timeout())
            .await
            .expect("the connection was not evicted");
    }

    /// Whether the connection must be closed.
    async fn is_evicted(connection: &Permit) -> bool {
        tokio::select! {
            biased;
            () = connection.eviction_or_timeout() => true,
            () = tokio::task::yield_now() => false,
        }
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted_then_the_longest_idle() {
        run(async {
            let permits = new(3);
            let [a, b, first] = [
                permits.take(no_eviction).await,
                permits.take(no_eviction).await,
                permits.take(no_eviction).await,
            ]
            .map(Option::unwrap);
            drop(a.begin("a").unwrap());
            drop(b.begin("b").unwrap());
            // Its last batch is later than that of `b`.
            drop(a.begin("a").unwrap());
            let mut evicted = 0;
            let closing = tokio::spawn(closes(first));
            let second = permits.take(|| evicted += 1).await.unwrap();
            closing.await.unwrap();
            let closing = tokio::spawn(closes(second));
            let third = permits.take(|| evicted += 1).await.unwrap();
            closing.await.unwrap();
            let busy = (third.begin("c").unwrap(), a.begin("a").unwrap());
            let closing = tokio::spawn(closes(b));
            let fourth = permits.take(|| evicted += 1).await.unwrap();
            closing.await.unwrap();
            let also_busy = fourth.begin("d").unwrap();
            assert_eq!((evicted, permits.slots().taken()), (3, 3));
            assert!(permits.take(no_eviction).await.is_none(), "all are busy");
            drop((busy, also_busy));
        });
    }

    #[test]
    fn a_connection_with_a_token_is_kept_and_counts_if_a_minion_signs_on_it() {
        run(async {
            let permits = new(HTTP_PEERS_RESERVED + 2);
            let [kept, other] = [
                permits.take(no_eviction).await,
                permits.take(no_eviction).await,
            ]
            .map(Option::unwrap);
            kept.keep();
            other.keep();
            drop(other.begin("a").unwrap());
            assert_eq!(
                permits
                    .queues
                    .lock()
                    .of_signer
                    .get("a")
                    .map(|(count, _)| *count),
                Some(1)
            );
            // All others are busy.
            let mut busy = Vec::new();
            for _ in 0..HTTP_PEERS_RESERVED {
                busy.push(permits.take(no_eviction).await.unwrap());
            }
            let busy: Vec<_> = busy.iter().map(|one| one.begin("b").unwrap()).collect();
            let closing = tokio::spawn(closes(other));
            assert!(
                permits.take(|| ()).await.is_some(),
                "a minion's connection between batches is idle"
            );
            closing.await.unwrap();
            assert!(!is_evicted(&kept).await);
            drop(busy);
        });
    }

    #[test]
    fn connections_with_tokens_leave_a_reserve_for_peers_without() {
        run(async {
            let permits = new(HTTP_PEERS_RESERVED + 3);
            let mut held = Vec::new();
            for _ in 0..HTTP_PEERS_RESERVED + 3 {
                let connection = permits.take(no_eviction).await.unwrap();
                connection.keep();
                connection.keep();
                held.push(connection);
            }
            assert_eq!(permits.queues.lock().kept, 3);

            // A peer without a token gets the place of the oldest that is not kept.
            let first = held.remove(3);
            let closing = tokio::spawn(closes(first));
            let probe = permits.take(|| ()).await.expect("a place of the reserve");
            closing.await.unwrap();
            drop(probe);

            // The end of a kept one lets another be kept.
            drop(held.remove(0));
            assert_eq!(permits.queues.lock().kept, 2);
            held.iter().for_each(Permit::keep);
            assert_eq!(permits.queues.lock().kept, 3);
            for kept in held.iter().take(2) {
                assert!(!is_evicted(kept).await);
            }
        });
    }

    #[test]
    fn one_signer_cannot_hold_all_connections() {
        run(async {
            let permits = new(HTTPS_PEERS_OF_ONE + 10);
            let mut held = Vec::new();
            for _ in 0..HTTPS_PEERS_OF_ONE {
                let connection = permits.take(no_eviction).await.unwrap();
                drop(connection.begin("greedy").unwrap());
                held.push(connection);
            }
            let other = permits.take(no_eviction).await.unwrap();
            drop(other.begin("other").unwrap());
            let [first, second] = [0, 1].map(|n| &held[n]);
            // Busy ones are not evicted, however old they are.
            let busy = first.begin("greedy").unwrap();
            assert!(
                !is_evicted(second).await,
                "connections up to the limit are kept"
            );
            let more = permits.take(no_eviction).await.unwrap();
            drop(more.begin("greedy").unwrap());
            assert!(
                is_evicted(second).await && !is_evicted(first).await && !is_evicted(&other).await
            );
            drop(busy);
            held.push(more);
            held.remove(1);
            let all: Vec<_> = held
                .iter()
                .map(|connection| connection.begin("greedy").unwrap())
                .collect();
            let one_more = permits.take(no_eviction).await.unwrap();
            assert!(
                one_more.begin("greedy").is_none(),
                "all of its connections are busy"
            );
            assert!(one_more.begin("another").is_some());
            drop(all);
        });
    }

    #[test]
    fn the_idle_timeout_starts_at_the_last_batch() {
        const SHORT: Duration = Duration::from_millis(30);
        run(async {
            for (unauthenticated, idle) in [(Some(SHORT), HOUR), (Some(HOUR), SHORT), (None, SHORT)]
            {
                let permits = ConnectionPermits::new(
                    3,
                    Times {
                        unauthenticated,
                        idle,
                    },
                );
                let [unknown, known, busy] = [
                    permits.take(no_eviction).await,
                    permits.take(no_eviction).await,
                    permits.take(no_eviction).await,
                ]
                .map(Option::unwrap);
                drop(known.begin("a").unwrap());
                let batch = busy.begin("b").unwrap();
                let (short, long) = if unauthenticated == Some(SHORT) {
                    (&unknown, &known)
                } else {
                    (&known, &unknown)
                };
                // Other requests do not reach the permit, so they extend nothing.
                tokio::select! {
                    () = short.eviction_or_timeout() => {}
                    () = long.eviction_or_timeout() => panic!("its timeout is an hour, or none"),
                    () = busy.eviction_or_timeout() => panic!("a batch is in flight"),
                    () = tokio::time::sleep(Duration::from_secs(10)) => panic!("not closed"),
                }
                drop(batch);
            }
        });
    }

    #[test]
    fn a_permit_is_forgotten_with_its_connection() {
        run(async {
            let permits = new(2);
            for _ in 0..2 * HTTPS_PEERS_OF_ONE {
                let connection = permits.take(no_eviction).await.unwrap();
                let batch = connection.begin("a").unwrap();
                drop(batch);
                drop(connection);
                drop(permits.take(no_eviction).await);
            }
            let queues = permits.queues.lock();
            assert!(
                queues.unauthenticated.is_empty()
                    && queues.idle.is_empty()
                    && queues.of_signer.is_empty()
            );
            assert_eq!(permits.slots().taken(), 0);
        });
    }
}
