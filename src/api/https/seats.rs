//! Seats: how many connections there may be, and which of them is closed when all are taken.
//!
//! A connection without a good signature so far is a stranger's. When no seat is free, the stranger that came first goes; where there are
//! no strangers, the connection that has been idle longest. A signer has at most [`HTTPS_PEERS_OF_ONE`] connections; one more closes
//! the one of its own that has been idle longest. A connection is idle between batches with a good signature, whatever else it asks.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::limits::{HTTPS_IDLE, HTTPS_PEERS_OF_ONE, HTTPS_STRANGER_PATIENCE};

/// How long a connection that was told to go may take for it.
const GOING: Duration = Duration::from_millis(500);

/// All seats.
pub(super) struct Seats {
    free: Arc<Semaphore>,
    all: usize,
    queues: Mutex<Queues>,
    taken: AtomicUsize,
    times: Times,
}

/// How long a connection may go without a good signature, and between batches.
#[derive(Clone, Copy)]
struct Times {
    stranger: Duration,
    idle: Duration,
}

/// Connections that can be told to go, in the order in which they would be.
#[derive(Default)]
struct Queues {
    next: u64,
    strangers: BTreeMap<u64, Arc<Notify>>,
    idle: BTreeMap<u64, (String, Arc<Notify>)>,
    /// Connections of each signer, busy or not.
    of_signer: HashMap<String, usize>,
}

impl Queues {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Tells the longest idle connection of a signer to go; false if all of them are busy.
    fn evict(&mut self, signer: &str) -> bool {
        let longest = self.idle.iter().find(|(_, (whose, _))| whose == signer).map(|(number, _)| *number);
        let Some((_, leave)) = longest.and_then(|number| self.idle.remove(&number)) else { return false };
        leave.notify_one();
        true
    }
}

/// What a connection is doing.
#[derive(Clone, Copy)]
enum State {
    /// No good signature so far.
    Stranger { number: u64, since: Instant },
    /// No batch under way.
    Idle { number: u64, since: Instant },
    /// A batch is under way, which has time limits of its own.
    Busy,
}

/// One taken seat; free again when dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    leave: Arc<Notify>,
    state: Mutex<State>,
    signer: OnceLock<String>,
    _permit: OwnedSemaphorePermit,
}

/// A signed batch under way on a connection, which is idle from when this is dropped.
pub(super) struct UnderWay<'a>(&'a Seat);

impl Seats {
    /// So many.
    pub(super) fn new(all: usize) -> Arc<Self> {
        Self::timed(all, Times { stranger: HTTPS_STRANGER_PATIENCE, idle: HTTPS_IDLE })
    }

    fn timed(all: usize, times: Times) -> Arc<Self> {
        let (free, queues) = (Arc::new(Semaphore::new(all)), Mutex::default());
        Arc::new(Self { free, all, queues, taken: AtomicUsize::new(0), times })
    }

    /// A seat for a stranger; `evicted` is called if another connection has to go for it. `None` if all are busy.
    pub(super) async fn take(self: &Arc<Self>, evicted: impl FnOnce()) -> Option<Seat> {
        let permit = if let Ok(permit) = self.free.clone().try_acquire_owned() {
            permit
        } else {
            let leave = {
                let mut queues = self.queues();
                let stranger = queues.strangers.pop_first().map(|(_, leave)| leave);
                stranger.or_else(|| queues.idle.pop_first().map(|(_, (_, leave))| leave))?
            };
            leave.notify_one();
            evicted();
            timeout(GOING, self.free.clone().acquire_owned()).await.ok()?.ok()?
        };
        let leave = Arc::new(Notify::new());
        let mut queues = self.queues();
        let number = queues.number();
        queues.strangers.insert(number, leave.clone());
        self.taken.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State::Stranger { number, since: Instant::now() });
        Some(Seat { seats: self.clone(), leave, state, signer: OnceLock::new(), _permit: permit })
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Waits until all are free.
    pub(super) async fn all_free(&self, patience: Duration) {
        let all = u32::try_from(self.all).unwrap_or(u32::MAX);
        let _ = timeout(patience, self.free.acquire_many(all)).await;
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Begins a batch whose signature holds. `None` if `signer` has too many connections, and all of them are busy.
    pub(super) fn begin(&self, signer: &str) -> Option<UnderWay<'_>> {
        let mut queues = self.seats.queues();
        match self.state() {
            State::Stranger { number, .. } => {
                let count = queues.of_signer.get(signer).copied().unwrap_or(0);
                if count >= HTTPS_PEERS_OF_ONE && !queues.evict(signer) {
                    return None;
                }
                queues.strangers.remove(&number);
                *queues.of_signer.entry(signer.to_owned()).or_default() += 1;
                // A stranger has no signer yet.
                let _ = self.signer.set(signer.to_owned());
            }
            State::Idle { number, .. } => drop(queues.idle.remove(&number)),
            State::Busy => {}
        }
        self.set(State::Busy);
        Some(UnderWay(self))
    }

    /// Ends when the connection has to go: for another one, or because it took too long.
    pub(super) async fn must_go(&self) {
        let times = self.seats.times;
        loop {
            let until = match self.state() {
                State::Stranger { since, .. } => since + times.stranger,
                State::Idle { since, .. } => since + times.idle,
                // Looked at again then.
                State::Busy => Instant::now() + times.idle,
            };
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = self.leave.notified() => return,
                () = sleep_until(until) => {}
            }
        }
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut queues = self.0.seats.queues();
        let number = queues.number();
        let signer = self.0.signer.get().cloned().unwrap_or_default();
        queues.idle.insert(number, (signer, self.0.leave.clone()));
        self.0.set(State::Idle { number, since: Instant::now() });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut queues = self.seats.queues();
        match self.state() {
            State::Stranger { number, .. } => drop(queues.strangers.remove(&number)),
            State::Idle { number, .. } => drop(queues.idle.remove(&number)),
            State::Busy => {}
        }
        if let Some(signer) = self.signer.get()
            && let Some(count) = queues.of_signer.get_mut(signer)
        {
            *count -= 1;
            if *count == 0 {
                queues.of_signer.remove(signer);
            }
        }
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    fn no_eviction() {
        panic!("a connection was closed although seats are free");
    }

    /// Waits until a connection has to go, and ends it. The time limits of this file are longer than the deadline.
    async fn goes(seat: Seat) {
        timeout(Duration::from_secs(10), seat.must_go()).await.expect("the connection stays");
    }

    /// Has the connection been told to go?
    async fn is_told(seat: &Seat) -> bool {
        tokio::select! {
            biased;
            () = seat.must_go() => true,
            () = tokio::task::yield_now() => false,
        }
    }

    #[test]
    fn the_stranger_that_waits_longest_gives_way_and_then_the_longest_idle() {
        run(async {
            let seats = Seats::new(3);
            let [a, b, first] =
                [seats.take(no_eviction).await, seats.take(no_eviction).await, seats.take(no_eviction).await]
                    .map(Option::unwrap);
            drop(a.begin("a").unwrap());
            drop(b.begin("b").unwrap());
            // Its last batch is later than that of `b`.
            drop(a.begin("a").unwrap());
            let mut evicted = 0;
            let going = tokio::spawn(goes(first));
            let second = seats.take(|| evicted += 1).await.unwrap();
            going.await.unwrap();
            let going = tokio::spawn(goes(second));
            let third = seats.take(|| evicted += 1).await.unwrap();
            going.await.unwrap();
            let busy = (third.begin("c").unwrap(), a.begin("a").unwrap());
            let going = tokio::spawn(goes(b));
            let fourth = seats.take(|| evicted += 1).await.unwrap();
            going.await.unwrap();
            let also_busy = fourth.begin("d").unwrap();
            assert_eq!((evicted, seats.taken()), (3, 3));
            assert!(seats.take(no_eviction).await.is_none(), "all are busy");
            drop((busy, also_busy));
        });
    }

    #[test]
    fn one_signer_cannot_hold_all_connections() {
        run(async {
            let seats = Seats::new(HTTPS_PEERS_OF_ONE + 10);
            let mut held = Vec::new();
            for _ in 0..HTTPS_PEERS_OF_ONE {
                let seat = seats.take(no_eviction).await.unwrap();
                drop(seat.begin("greedy").unwrap());
                held.push(seat);
            }
            let other = seats.take(no_eviction).await.unwrap();
            drop(other.begin("other").unwrap());
            let [first, second] = [0, 1].map(|n| &held[n]);
            // Busy ones are not closed, however old they are.
            let busy = first.begin("greedy").unwrap();
            assert!(!is_told(second).await, "as many as the limit are kept");
            let more = seats.take(no_eviction).await.unwrap();
            drop(more.begin("greedy").unwrap());
            assert!(is_told(second).await && !is_told(first).await && !is_told(&other).await);
            drop(busy);
            held.push(more);
            held.remove(1);
            let all: Vec<_> = held.iter().map(|seat| seat.begin("greedy").unwrap()).collect();
            let one_more = seats.take(no_eviction).await.unwrap();
            assert!(one_more.begin("greedy").is_none(), "all of its connections are busy");
            assert!(one_more.begin("another").is_some());
            drop(all);
        });
    }

    #[test]
    fn a_connection_has_its_time_from_its_last_batch_on() {
        const LONG: Duration = Duration::from_secs(3600);
        const SHORT: Duration = Duration::from_millis(30);
        run(async {
            for (stranger, idle) in [(SHORT, LONG), (LONG, SHORT)] {
                let seats = Seats::timed(3, Times { stranger, idle });
                let [unknown, known, busy] = [
                    seats.take(no_eviction).await,
                    seats.take(no_eviction).await,
                    seats.take(no_eviction).await,
                ]
                .map(Option::unwrap);
                drop(known.begin("a").unwrap());
                let batch = busy.begin("b").unwrap();
                let (short, long) = if stranger == SHORT { (&unknown, &known) } else { (&known, &unknown) };
                // What else a peer asks for does not come here at all, so it prolongs nothing.
                tokio::select! {
                    () = short.must_go() => {}
                    () = long.must_go() => panic!("it has an hour"),
                    () = busy.must_go() => panic!("a batch is under way"),
                    () = tokio::time::sleep(Duration::from_secs(10)) => panic!("it stays"),
                }
                drop(batch);
            }
        });
    }

    #[test]
    fn a_seat_is_forgotten_with_its_connection() {
        run(async {
            let seats = Seats::new(2);
            for _ in 0..2 * HTTPS_PEERS_OF_ONE {
                let seat = seats.take(no_eviction).await.unwrap();
                let batch = seat.begin("a").unwrap();
                drop(batch);
                drop(seat);
                drop(seats.take(no_eviction).await);
            }
            let queues = seats.queues();
            assert!(queues.strangers.is_empty() && queues.idle.is_empty() && queues.of_signer.is_empty());
            assert_eq!(seats.taken(), 0);
        });
    }
}
