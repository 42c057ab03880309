//! Budgets: what one client may hold of what all clients share.
//!
//! A client is a token, or a user of this host. Its budget contains connections, event streams,
//! threads that carry out requests, and bytes of responses that are not read. Each is reserved before
//! the work or the memory is spent, from the client's share first and then from the whole.
//! Therefore a client whose share is used up waits without holding anything that other clients
//! need. A reservation is released when the *work* ends, even if the connection ended before; a
//! search whose client is gone ends at its next block ([`work`](crate::base::work)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::base::work::Work;
use crate::wire::call::CallError;

/// Bytes per permit of rooms.
const PERMIT_BYTES: usize = 1024;

/// The owner of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::api) enum Client {
    /// A token of the HTTP listener, by its name.
    Token(String),
    /// A user of this host; `None` if the kernel does not report it.
    User(Option<u32>),
    /// All peers without authentication together.
    Nobody,
}

/// The shares of one client, and the whole.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct BudgetLimits {
    /// Requests that are carried out at the same time: of one client, of all clients.
    pub(in crate::api) workers: (usize, usize),
    /// Bytes of unread responses: of one client, of all clients.
    pub(in crate::api) bytes: (usize, usize),
    /// Event streams: of one client, of all clients.
    pub(in crate::api) streams: (usize, usize),
    /// Connections of one client.
    pub(in crate::api) connections: usize,
    /// Processor time of one request.
    pub(in crate::api) processor_time: Option<Duration>,
    /// Timeout of a reservation.
    pub(in crate::api) wait: Duration,
}

/// A share of a client, and the whole that it is a part of.
#[derive(Debug, Clone)]
struct Pool {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    own_max: usize,
}

/// A reservation in both.
#[derive(Debug)]
pub(in crate::api) struct Reserved {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Pool {
    /// Reserves, first of the share: nothing of the whole is held meanwhile.
    async fn reserve(&self, count: usize) -> Option<Reserved> {
        // More than the whole share cannot be had: the request then takes all of it.
        let count = u32::try_from(count.min(self.own_max)).ok()?;
        let own = self.own.clone().acquire_many_owned(count).await.ok()?;
        let all = self.all.clone().acquire_many_owned(count).await.ok()?;
        Some(Reserved { own, all })
    }

    fn reserve_now(&self, count: usize) -> Option<Reserved> {
        let count = u32::try_from(count.min(self.own_max)).ok()?;
        let own = self.own.clone().try_acquire_many_owned(count).ok()?;
        let all = self.all.clone().try_acquire_many_owned(count).ok()?;
        Some(Reserved { own, all })
    }
}

/// The budgets of all clients of an interface.
pub(in crate::api) struct Budgets {
    limits: BudgetLimits,
    workers: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Lock order: no other lock is taken under it.
    clients: Mutex<HashMap<Client, Arc<Budget>>>,
}

impl Budgets {
    pub(in crate::api) fn new(limits: BudgetLimits) -> Self {
        let whole = |count| Arc::new(Semaphore::new(count));
        Self {
            limits,
            workers: whole(limits.workers.1),
            bytes: whole(limits.bytes.1 / PERMIT_BYTES),
            streams: whole(limits.streams.1),
            clients: Mutex::default(),
        }
    }

    /// The budget of a client, which exists while anything of it is in use.
    pub(in crate::api) fn of(&self, client: Client) -> Arc<Budget> {
        let mut clients = self.clients.lock();
        if let Some(known) = clients.get(&client) {
            return known.clone();
        }
        // A reservation outlives the request: a response that is not read, a connection between two
        // requests. Clients without a reservation are forgotten when a new client comes. Otherwise
        // old names would stay.
        clients.retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.is_unused());

        let pool = |own: usize, all: &Arc<Semaphore>| Pool {
            own: Arc::new(Semaphore::new(own)),
            all: all.clone(),
            own_max: own,
        };
        let limits = self.limits;
        let budget = Arc::new(Budget {
            workers: pool(limits.workers.0, &self.workers),
            bytes: pool(limits.bytes.0 / PERMIT_BYTES, &self.bytes),
            streams: pool(limits.streams.0, &self.streams),
            connections: Arc::new(Semaphore::new(limits.connections)),
            connections_max: limits.connections,
            processor_time: limits.processor_time,
            wait: limits.wait,
            activity: watch::Sender::default(),
        });
        clients.insert(client, budget.clone());
        budget
    }
}

/// The budget of one client.
#[derive(Debug)]
pub(in crate::api) struct Budget {
    workers: Pool,
    bytes: Pool,
    streams: Pool,
    connections: Arc<Semaphore>,
    connections_max: usize,
    processor_time: Option<Duration>,
    wait: Duration,
    activity: watch::Sender<Activity>,
}

/// What those do who use a budget.
#[derive(Debug, Default)]
struct Activity {
    /// Reservations that wait.
    waiting: usize,
    /// Tasks that are carried out.
    running: usize,
}

/// Something that is counted in [`Activity`] until it is dropped.
struct Counted<'a> {
    activity: &'a watch::Sender<Activity>,
    count: fn(&mut Activity) -> &mut usize,
}

impl<'a> Counted<'a> {
    fn new(budget: &'a Budget, count: fn(&mut Activity) -> &mut usize) -> Self {
        let activity = &budget.activity;
        activity.send_modify(|activity| *count(activity) += 1);
        Self { activity, count }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.activity
            .send_modify(|activity| *(self.count)(activity) -= 1);
    }
}

fn busy(what: &str) -> CallError {
    CallError::Unavailable(format!("{what}; retry later"))
}

/// Runs `task` on a thread for blocking work, and holds `reserved` until it ends. If this future is dropped, the task does not begin, or
/// ends at its next [`check`](crate::base::work::check).
pub(in crate::api) async fn on_worker<T: Send + 'static>(
    reserved: impl Send + 'static,
    processor_time: Option<Duration>,
    task: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    let work = Work::new(processor_time);
    // Dropped with this future: the task then ends at its next check.
    let _waiting = work.abandon_on_drop();
    let done = tokio::task::spawn_blocking(move || {
        // Held by the task and not by this future, which may end before.
        let _reserved = reserved;
        (!work.is_abandoned()).then(|| work.run(task))
    });

    // A panic is a bug; the client gets an error instead of a closed connection. Without a
    // result nobody waits here.
    match done.await {
        Ok(Some(done)) => Ok(done),
        Ok(None) | Err(_) => Err(CallError::Internal(
            "the request panicked, see the daemon's log".to_owned(),
        )),
    }
}

impl Budget {
    fn is_unused(&self) -> bool {
        let pools = [&self.workers, &self.bytes, &self.streams];
        pools
            .iter()
            .all(|pool| pool.own.available_permits() == pool.own_max)
            && self.connections.available_permits() == self.connections_max
    }

    /// The same shares, for a read of which [`Budget::stalled`] is to be known.
    pub(in crate::api) fn of_read(&self) -> Arc<Self> {
        Arc::new(Self {
            workers: self.workers.clone(),
            bytes: self.bytes.clone(),
            streams: self.streams.clone(),
            connections: self.connections.clone(),
            activity: watch::Sender::default(),
            ..*self
        })
    }

    /// Returns when a reservation waits and no task is carried out.
    pub(in crate::api) async fn stalled(&self) {
        let mut activity = self.activity.subscribe();
        let is_stalled = |now: &Activity| now.waiting > 0 && now.running == 0;
        // The sender is this budget's own.
        let _ = activity.wait_for(is_stalled).await;
    }

    /// Waits for a reservation; `None` after the timeout.
    async fn reserved<T>(&self, reserve: impl Future<Output = Option<T>>) -> Option<T> {
        let _waiting = Counted::new(self, |activity| &mut activity.waiting);
        timeout(self.wait, reserve).await.ok().flatten()
    }

    /// Runs `task` on a thread for blocking work, when one is free for this client. The thread
    /// stays reserved until the task ends. If this future is dropped, the task does not begin, or
    /// ends at its next [`check`](crate::base::work::check).
    pub(in crate::api) async fn carry_out<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        self.carry_out_within(self.processor_time, task).await
    }

    /// Like [`Budget::carry_out`], with a processor time of its own.
    pub(in crate::api) async fn carry_out_within<T: Send + 'static>(
        &self,
        processor_time: Option<Duration>,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        // The wait is for a worker of this client, or of all.
        let Some(reserved) = self.reserved(self.workers.reserve(1)).await else {
            return Err(busy("too many requests are being carried out"));
        };
        let _running = Counted::new(self, |activity| &mut activity.running);

        on_worker(reserved, processor_time, task).await
    }

    /// Reserves room for a response before it is made.
    pub(in crate::api) async fn room(&self, bytes: usize) -> Result<Room, CallError> {
        let reserved = self.bytes.reserve(bytes / PERMIT_BYTES + 1);
        match self.reserved(reserved).await {
            Some(reserved) => Ok(Room {
                pool: self.bytes.clone(),
                reserved,
                spare: bytes,
                held: 0,
            }),
            None => Err(busy("too many responses wait to be read")),
        }
    }

    /// Takes room of this client's share for the bytes of [`Room::share`], until it has read them:
    /// whoever made them, a slow reader uses up only its own.
    pub(in crate::api) async fn hold(&self, shared: Bytes) -> Result<Bytes, CallError> {
        let unavailable = || busy("too many responses wait to be read");
        // As in [`Pool::reserve`].
        let count = (shared.len() / PERMIT_BYTES + 1).min(self.bytes.own_max);
        let count = u32::try_from(count).map_err(|_| unavailable())?;
        let own = self.bytes.own.clone().acquire_many_owned(count);
        let reserved = self.reserved(async { own.await.ok() }).await;

        Ok(Bytes::from_owner(HeldBytes {
            bytes: shared,
            _reserved: reserved.ok_or_else(unavailable)?,
        }))
    }

    /// Reserves an event stream; `None` if there are too many.
    pub(in crate::api) fn stream(&self) -> Option<Reserved> {
        self.streams.reserve_now(1)
    }

    /// Reserves a connection; `None` if the client has too many.
    pub(in crate::api) fn connection(&self) -> Option<OwnedSemaphorePermit> {
        self.connections.clone().try_acquire_owned().ok()
    }
}

/// Room for a response, and for what a request holds in memory to make it.
pub(in crate::api) struct Room {
    pool: Pool,
    reserved: Reserved,
    /// What was reserved at first: for the next operation, whose size is known afterwards only.
    spare: usize,
    /// Bytes in memory.
    held: usize,
}

/// Bytes with their room, which is released when the connection has written them.
struct HeldBytes<B, R> {
    bytes: B,
    _reserved: R,
}

impl<B: AsRef<[u8]>, R> AsRef<[u8]> for HeldBytes<B, R> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Room {
    pub(in crate::api) fn held(&self) -> usize {
        self.held
    }

    /// States how many bytes the request holds in memory now. The room grows to them, and to the
    /// reserve for the next operation. It never shrinks before [`Room::fill`]: what a request has
    /// needed once, it may need again.
    pub(in crate::api) fn hold(&mut self, bytes: usize) -> Result<(), CallError> {
        self.held = bytes;

        // As in [`Pool::reserve`], more than the whole share cannot be had.
        let needed = (bytes.saturating_add(self.spare) / PERMIT_BYTES + 1).min(self.pool.own_max);
        let lacking = needed.saturating_sub(self.reserved.own.num_permits());
        if lacking > 0 {
            // No wait here, as in [`Room::fill`].
            let more = self.pool.reserve_now(lacking);
            self.add(more.ok_or_else(|| busy("too many responses wait to be read"))?);
        }
        Ok(())
    }

    /// Puts a response into its room. A response that is longer than the room gets the rest now, or
    /// is dropped: to wait would hold it outside the budget.
    pub(in crate::api) fn fill(mut self, bytes: Vec<u8>) -> Result<Bytes, CallError> {
        // No wait here: the caller holds the whole response in memory.
        let more = self.fit(&bytes);
        if more > 0 {
            let more = self.pool.reserve_now(more);
            self.add(more.ok_or_else(|| busy("too many responses wait to be read"))?);
        }
        Ok(self.filled(bytes))
    }

    /// Puts bytes into their room that several clients will hold at the same time, such as a piece of
    /// a stream. They exist once, so they keep room of the whole once, until the last client has read
    /// them; each client takes room of its share with [`Budget::hold`].
    ///
    /// An error is the length of bytes that lack room. They are dropped, because to wait would hold
    /// them outside the budget: the caller waits for a room of that size, and makes them again.
    pub(in crate::api) fn share(mut self, bytes: Vec<u8>) -> Result<Bytes, usize> {
        let more = self.fit(&bytes);
        if more > 0 {
            let more = self.pool.reserve_now(more);
            self.add(more.ok_or(bytes.len())?);
        }

        Ok(Bytes::from_owner(HeldBytes {
            bytes,
            _reserved: self.reserved.all,
        }))
    }

    /// Releases what the response does not need, or returns how much it lacks. A response that is
    /// longer than the share needs all of it.
    fn fit(&mut self, bytes: &[u8]) -> usize {
        let needed = (bytes.len() / PERMIT_BYTES + 1).min(self.pool.own_max);
        // The room that is not needed is free while the peer reads.
        let reserved = self.reserved.own.num_permits();
        if let Some(spare) = reserved.checked_sub(needed) {
            drop(self.reserved.own.split(spare));
            drop(self.reserved.all.split(spare));
        }
        needed.saturating_sub(reserved)
    }

    fn add(&mut self, more: Reserved) {
        self.reserved.own.merge(more.own);
        self.reserved.all.merge(more.all);
    }

    fn filled(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(HeldBytes {
            bytes,
            _reserved: self.reserved,
        })
    }
}

#[cfg(test)]
mod tests;
