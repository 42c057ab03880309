//! The local socket: one unix stream each for many short-lived and forking processes.
//!
//! Each connection has a task, which reads frames in order and starts calls. A writing call enters
//! `intake` before the next frame is read, so one peer's writes keep their order. Answers are sent
//! in order of completion (`stream.rs`). A peer that breaks the protocol gets an error and is
//! disconnected; other connections are not affected.
//!
//! # Limits
//!
//! Memory for a frame is reserved from [`SOCKET_BYTES_IN_FLIGHT`] before the frame is read, in
//! lanes by size, so a slow peer with a large frame does not block small calls. A tiny frame is
//! read first, so a stalled peer blocks no one. Answers waiting to be read have at most
//! [`ANSWER_BYTES_WAITING`]. Every step has a timeout except one: between two frames a peer may be
//! silent indefinitely. The searches of a peer that is gone end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::budget::{Budget, BudgetLimits, Budgets, Client};
use super::call::{CallHandler, Caller, Ctx, find};
use super::stream::{AnswerWriter, Incoming, OutgoingAnswer};
use super::submit::submit;
use crate::base::limits::{
    ANSWER_BYTES_WAITING, HTTP_PROCESSOR_TIME, PEER_CALLS_IN_FLIGHT, PEER_TIMEOUT,
    PREAMBLE_TIMEOUT, SOCKET_BYTES_IN_FLIGHT, SOCKET_CALL_WAIT, SOCKET_CALLS_MAX,
    SOCKET_CALLS_OF_ONE, SOCKET_PEERS_MAX, TINY_FRAME_BYTES, WIRE_FRAME_BYTES_MAX,
};
use crate::model::{FrameBatch, Right};
use crate::store::{Done, Intake};
use crate::wire::call::{
    CallError, Request, VERSION, into_answer_frame, read_preamble, refusal_frame, version_frame,
};
use crate::wire::unix_listener::Listener;

/// Largest frame of the lane for small frames.
const SMALL_FRAME_BYTES: usize = 1024 * 1024;

/// Bytes per permit of a lane.
const PERMIT_BYTES: usize = 1024;

/// State shared by all connections.
struct SocketServer {
    ctx: Arc<Ctx>,
    intake: Intake,
    lanes: Lanes,
    answer_bytes: AtomicUsize,
    /// The budgets of users.
    budgets: Budgets,
}

impl SocketServer {
    fn new(ctx: Arc<Ctx>, intake: Intake) -> Arc<Self> {
        Arc::new(Self {
            ctx,
            intake,
            lanes: Lanes::new(SOCKET_BYTES_IN_FLIGHT, PEER_TIMEOUT),
            answer_bytes: AtomicUsize::new(0),
            budgets: Budgets::new(BudgetLimits {
                workers: (SOCKET_CALLS_OF_ONE, SOCKET_CALLS_MAX),
                // Answers, connections and streams have limits of their own.
                bytes: (ANSWER_BYTES_WAITING, ANSWER_BYTES_WAITING),
                streams: (0, 0),
                connections: SOCKET_PEERS_MAX,
                processor_time: None,
                wait: SOCKET_CALL_WAIT,
            }),
        })
    }
}

/// Budgets for bytes of frames in flight, in lanes by size, and the timeout of a frame.
struct Lanes {
    tiny: Arc<Semaphore>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    timeout: Duration,
}

impl Lanes {
    /// A third of `bytes` for each lane.
    fn new(bytes: usize, timeout: Duration) -> Self {
        let lane = || Arc::new(Semaphore::new(bytes / 3 / PERMIT_BYTES));
        Self {
            tiny: lane(),
            small: lane(),
            large: lane(),
            timeout,
        }
    }
}

/// Serves connections until `stop` turns true, then waits for calls in flight.
pub(crate) async fn serve(
    source: Listener,
    ctx: Arc<Ctx>,
    intake: Intake,
    stop: watch::Receiver<bool>,
) {
    let server = SocketServer::new(ctx, intake);

    let reject = |stream: UnixStream| {
        server
            .ctx
            .archive
            .metrics
            .socket_connections_closed_too_many
            .add(1);
        let error = CallError::Unavailable(format!(
            "all {SOCKET_PEERS_MAX} connections are in use; close one, or retry later"
        ));
        // The frame fits into the empty buffer of a new socket; if it does not, the peer sees only
        // the end.
        let _ = stream.try_write(&refusal_frame(None, &error));
    };

    let handle = |stream| {
        server.ctx.archive.metrics.socket_connections.add(1);
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            if let Err(error) = serve_peer(&server, stream, stop).await
                // Other errors are peers that went away, which is normal.
                && error.kind() == io::ErrorKind::TimedOut
            {
                server
                    .ctx
                    .archive
                    .metrics
                    .socket_connections_closed_not_reading
                    .add(1);
            }
        }
    };

    source
        .serve(SOCKET_PEERS_MAX, stop.clone(), reject, handle)
        .await;
}

/// The permit of a call in flight, and the bytes of its response in the total.
struct CallInFlight {
    _permit: OwnedSemaphorePermit,
    bytes: usize,
    server: Arc<SocketServer>,
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        self.server
            .answer_bytes
            .fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Makes connections of tests: pairs within this process, without a path.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct Pairs {
    server: Arc<SocketServer>,
    stop: watch::Receiver<bool>,
    /// Each connection has one.
    open: Arc<()>,
}

#[cfg(test)]
impl Pairs {
    pub(crate) fn new(ctx: Arc<Ctx>, intake: Intake, stop: watch::Receiver<bool>) -> Self {
        Self {
            server: SocketServer::new(ctx, intake),
            stop,
            open: Arc::default(),
        }
    }

    /// Whether all connections have ended, as `serve` waits for.
    pub(crate) fn have_ended(&self) -> bool {
        Arc::strong_count(&self.open) == 1
    }

    /// The end of a client whose user is `uid`.
    pub(crate) fn connect(
        &self,
        runtime: &tokio::runtime::Handle,
        uid: Option<u32>,
    ) -> std::os::unix::net::UnixStream {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();

        let Self { server, stop, open } = self.clone();
        let caller = Caller {
            uid,
            pid: Some(std::process::id()),
            ..Caller::default()
        };
        runtime.spawn(async move {
            let ours = UnixStream::from_std(ours).unwrap();
            let served = serve_caller(&server, caller, ours, stop).await;
            drop(open);
            served
        });
        theirs
    }
}

async fn serve_peer(
    server: &Arc<SocketServer>,
    stream: UnixStream,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    // The user is read once: a connection that is passed on keeps the rights of its opener.
    let caller = stream.peer_cred().map_or_else(
        |_| Caller::default(),
        |who| Caller {
            uid: Some(who.uid()),
            pid: who.pid().and_then(|pid| u32::try_from(pid).ok()),
            ..Caller::default()
        },
    );
    serve_caller(server, caller, stream, stop).await
}

async fn serve_caller(
    server: &Arc<SocketServer>,
    caller: Caller,
    stream: UnixStream,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let (from, to) = stream.into_split();
    let mut from = Incoming::new(from);

    // Dropped with the connection, whatever its end: the searches of the peer end with it.
    let (open, ended) = watch::channel(());

    let peer = Peer {
        server: server.clone(),
        budget: server.budgets.of(Client::User(caller.uid)),
        caller,
        answers: Arc::new(AnswerWriter::new(to, PEER_TIMEOUT)),
        call_permits: Arc::new(Semaphore::new(PEER_CALLS_IN_FLIGHT)),
        ended,
        stop: stop.clone(),
    };

    let mut writing = pin!(peer.answers.write_out());
    let close_reason = tokio::select! {
        taken = peer.take_requests(&mut from, stop) => taken,
        // A peer that reads no responses is not served.
        gone = &mut writing => return gone,
    };

    let mut closing = pin!(peer.close(close_reason));
    tokio::select! {
        // The order matters: most peers close when they have all their responses, which is no
        // failure.
        biased;
        () = &mut closing => return Ok(()),
        gone = &mut writing => return gone,
        () = peer.answers.disconnected() => {}
    }
    // No response reaches the peer. Its searches end, its changes are waited for.
    drop(open);

    tokio::select! {
        () = closing => Ok(()),
        gone = writing => gone,
    }
}

/// The processor time of one search on the local socket, by the right of its user.
///
/// Administrators, who are root, the daemon's user and the master's, have no limit: Salt lists the
/// jobs of the whole cache in one call, and a job cache that gives up loses more than it saves.
/// `doctor`, exports and imports of root read the whole store. All of them can do the daemon greater
/// harm than a long search, so nothing would be gained. Changes of others are not limited either:
/// they are made as a whole or not at all.
fn search_time(right: Right) -> Option<Duration> {
    (right < Right::Admin).then_some(HTTP_PROCESSOR_TIME)
}

/// A connection as seen by its calls.
#[derive(Clone)]
struct Peer {
    server: Arc<SocketServer>,
    caller: Caller,
    /// The budget of the peer's user.
    budget: Arc<Budget>,
    answers: Arc<AnswerWriter<CallInFlight>>,
    /// One permit per call, held until its response is sent.
    call_permits: Arc<Semaphore>,
    /// The sender is dropped when the connection has ended.
    ended: watch::Receiver<()>,
    /// Turns true when the daemon stops.
    stop: watch::Receiver<bool>,
}

/// The reason why a connection ends.
#[derive(Debug)]
enum CloseReason {
    Error(CallError),
    Version(u16),
    Gone,
}

impl From<std::io::Error> for CloseReason {
    fn from(_: std::io::Error) -> Self {
        CloseReason::Gone
    }
}

fn protocol(what: impl Into<String>) -> CloseReason {
    CloseReason::Error(CallError::Protocol(what.into()))
}

impl Peer {
    async fn take_requests(
        &self,
        from: &mut Incoming,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), CloseReason> {
        // Everyone may connect who may open the socket, so a peer that says nothing holds a permit
        // only for a short time.
        let preamble = tokio::select! {
            read = timeout(PREAMBLE_TIMEOUT, from.exactly()) => read,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let Ok(preamble) = preamble else {
            return Err(protocol("timeout while reading the preamble"));
        };

        match read_preamble(preamble?) {
            Some(VERSION) => {}
            Some(theirs) => return Err(CloseReason::Version(theirs)),
            None => {
                return Err(protocol(
                    "the client does not speak saltcellar's protocol, which starts with SCWIRE and a version: is this the right socket?",
                ));
            }
        }

        loop {
            // Between frames a peer may be silent indefinitely; shutdown ends the wait.
            let header = tokio::select! {
                read = from.exactly() => read?,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };

            let len = u32::from_be_bytes(header) as usize;
            // Before memory is reserved.
            if len > WIRE_FRAME_BYTES_MAX {
                return Err(protocol(format!(
                    "a frame of {len} bytes exceeds the limit of {WIRE_FRAME_BYTES_MAX}"
                )));
            }

            // Half a frame is no call that anyone waits for: without this, a peer that stalls in it
            // would delay the stop by the time that a frame may take.
            let taken = tokio::select! {
                biased;
                taken = self.server.lanes.take_payload(from, len) => taken,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            };
            let (payload, bytes) = taken?;
            // A peer waits here when too many of its calls are in flight; other peers do not.
            let permit = self.permit().await?;
            self.server.ctx.archive.metrics.calls.add(1);
            // Awaited, because the next frame of this peer must not overtake it.
            start_call(self, payload, bytes, permit)
                .await
                .map_err(CloseReason::Error)?;
        }
    }

    /// A permit for a call. While there is none, nothing is read that would show that the peer is
    /// gone.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, CloseReason> {
        if let Ok(permit) = self.call_permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        tokio::select! {
            permit = self.call_permits.clone().acquire_owned() => permit.map_err(|_| CloseReason::Gone),
            () = self.answers.disconnected() => Err(CloseReason::Gone),
        }
    }

    /// Sends the reason for closing the connection, if any, and waits until every response is sent.
    async fn close(&self, close_reason: Result<(), CloseReason>) {
        let reason = match close_reason {
            Ok(()) | Err(CloseReason::Gone) => None,
            Err(CloseReason::Error(error)) => Some(refusal_frame(None, &error)),
            Err(CloseReason::Version(theirs)) => Some(version_frame(theirs)),
        };
        if let Some(frame) = reason {
            // The reason is a response as well and needs a permit, so it follows those that are due.
            self.server
                .ctx
                .archive
                .metrics
                .socket_connections_closed_protocol
                .add(1);
            let Ok(permit) = self.call_permits.clone().acquire_owned().await else {
                return;
            };

            self.send(frame, permit, 0);
        }

        // All permits are free when every response has been sent or dropped.
        let all = u32::try_from(PEER_CALLS_IN_FLIGHT).unwrap_or(u32::MAX);
        let _ = self.call_permits.acquire_many(all).await;
    }

    /// Sends a frame without waiting. It is written immediately if the peer has no other call in
    /// flight.
    fn send(&self, frame: Vec<u8>, permit: OwnedSemaphorePermit, bytes: usize) {
        // Only this call is in flight, so nothing can be queued behind or before its response.
        let alone = self.call_permits.available_permits() == PEER_CALLS_IN_FLIGHT - 1;

        let held = CallInFlight {
            _permit: permit,
            bytes,
            server: self.server.clone(),
        };
        self.answers.send(OutgoingAnswer { frame, held }, alone);
    }
}

impl Lanes {
    /// Reads a frame's payload, with memory reserved for it.
    async fn take_payload(
        &self,
        from: &mut Incoming,
        len: usize,
    ) -> Result<(Vec<u8>, OwnedSemaphorePermit), CloseReason> {
        // A large frame waits for memory before it is read. Until then its bytes stay with the
        // peer.
        if len > TINY_FRAME_BYTES {
            let bytes = self.reserve(len).await?;
            return Ok((self.read_payload(from, len).await?, bytes));
        }

        // A tiny frame is read first: a peer that stalls within it must not hold a part of the
        // lane.
        let payload = match from.at_hand(len) {
            Some(payload) => payload,
            None => self.read_payload(from, len).await?,
        };

        Ok((payload, self.reserve(len).await?))
    }

    async fn reserve(&self, len: usize) -> Result<OwnedSemaphorePermit, CloseReason> {
        let lane = match len {
            n if n <= TINY_FRAME_BYTES => &self.tiny,
            n if n <= SMALL_FRAME_BYTES => &self.small,
            _ => &self.large,
        };

        let permits = u32::try_from(len / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
        // The connection ends, because a frame without memory for it cannot be skipped.
        let reserved = timeout(self.timeout, lane.clone().acquire_many_owned(permits))
            .await
            .map_err(|_| {
                let message = "too many bytes of calls are in flight; retry later".to_owned();
                CloseReason::Error(CallError::Unavailable(message))
            })?;

        reserved.map_err(|_| CloseReason::Gone)
    }

    async fn read_payload(&self, from: &mut Incoming, len: usize) -> Result<Vec<u8>, CloseReason> {
        match timeout(self.timeout, from.rest(len)).await {
            Err(_) => Err(protocol("timeout within a frame")),
            Ok(read) => Ok(read?),
        }
    }
}

/// Waits for the result of a reading call; `None` if its connection ends before, which ends the
/// call.
async fn while_open<T>(
    mut ended: watch::Receiver<()>,
    reading: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        done = reading => Some(done),
        // Nothing is ever sent.
        _ = ended.changed() => None,
    }
}

/// Starts a call; returns once its position among the peer's writes is fixed.
async fn start_call(
    peer: &Peer,
    payload: Vec<u8>,
    bytes: OwnedSemaphorePermit,
    permit: OwnedSemaphorePermit,
) -> Result<(), CallError> {
    let walks = |call: &str| find(call).is_some_and(|call| call.walks_last_argument);
    let request = Request::read_for(&payload, walks)?;
    let server = &peer.server;

    let mut reply = Reply {
        id: request.id,
        permit,
        peer: peer.clone(),
        started: Some(Instant::now()),
    };

    let Some(call) = find(request.call) else {
        reply.send(Err(CallError::UnknownCall(request.call.to_owned())));
        return Ok(());
    };

    let ctx = &server.ctx;
    if let Err(denied) = ctx
        .rights
        .check(call.name, (call.right, call.applies), &peer.caller)
    {
        reply.send(Err(denied));
        return Ok(());
    }

    match &call.run {
        CallHandler::Run(run) => {
            let server = server.clone();
            let caller = peer.caller.clone();
            let budget = peer.budget.clone();
            let is_search = call.only_reads;
            // With each call: the master's user is known once its bus exists.
            let search_time = search_time(ctx.rights.of(&peer.caller));
            let ended = reply.peer.ended.clone();
            let reply = OnceReply::new(reply);
            let by_worker = reply.clone();
            // The thread that made the response sends it, which saves a lone caller a thread
            // switch.
            let work = move || {
                // A second parse is cheaper than a copy of the arguments.
                let outcome = Request::read(&payload)
                    .and_then(|request| (run.msgpack)(&server.ctx, &caller, &request.args));
                // The memory of the frame is free before the response waits to be sent.
                drop((payload, bytes));
                by_worker.send(outcome);
            };

            // In a task, because the next frame of this peer is read while the call runs.
            tokio::spawn(async move {
                // A change is made even if nobody waits for its response.
                let carried_out = if is_search {
                    let search = budget.carry_out_within(search_time, work);
                    while_open(ended, search).await
                } else {
                    Some(budget.carry_out(work).await)
                };
                // It did not begin, or panicked.
                if let Some(Err(error)) = carried_out {
                    reply.send(Err(error));
                }
            });
        }
        CallHandler::Wait(run) => match (run.msgpack)(ctx, &peer.caller, &request.args) {
            Ok(poll) => {
                // The wait is the caller's wish, so its time says nothing about the daemon.
                reply.started = None;

                let archive = server.ctx.archive.clone();
                let stop = peer.stop.clone();
                let budget = peer.budget.clone();

                tokio::spawn(async move {
                    let ended = reply.peer.ended.clone();
                    let news = while_open(ended, poll.run(archive, &budget, stop));
                    if let Some(news) = news.await {
                        reply.send(news);
                    }
                });
            }
            Err(error) => reply.send(Err(error)),
        },
        CallHandler::Save(save) => {
            // On this task and not on a thread, because entries of a peer enter the queue in the
            // order of its frames.
            let mut batch = FrameBatch::within(&payload);
            let result = save(ctx, &peer.caller, &request.args, &mut batch);
            // Detached from the payload, which moves to the appender with them.
            let entries = batch.detach();

            match result {
                // The last argument is not what the frame announced, as if it had been walked above.
                Err(error @ CallError::Protocol(_)) => return Err(error),
                Err(error) => reply.send(Err(error)),
                // Nothing to store: the response needs no sync.
                Ok(answer) if entries.is_empty() => reply.send(Ok(answer)),
                Ok(answer) => {
                    let done: Done = Box::new(move |stored: Result<(), String>| {
                        // Called by the committer, once the entries are on disk.
                        drop(bytes);
                        reply.send(stored.map(|()| answer).map_err(CallError::Unavailable));
                    });
                    // A full queue makes this peer wait, and its next frames with it.
                    submit(&server.intake, entries.into_batch(payload), done).await;
                }
            }
        }
    }

    Ok(())
}

/// A [`Reply`] that the worker sends, or the task that waits for it; whoever is first.
#[derive(Clone)]
struct OnceReply {
    /// Lock order: no other lock is taken under it.
    reply: Arc<Mutex<Option<Reply>>>,
}

impl OnceReply {
    fn new(reply: Reply) -> Self {
        Self {
            reply: Arc::new(Mutex::new(Some(reply))),
        }
    }

    fn send(&self, outcome: Result<Vec<u8>, CallError>) {
        let reply = self.reply.lock().take();
        if let Some(reply) = reply {
            reply.send(outcome);
        }
    }
}

/// The destination of a call's response.
struct Reply {
    id: u64,
    permit: OwnedSemaphorePermit,
    peer: Peer,
    /// The time at which the request was read; `None` for a call that waits for news.
    started: Option<Instant>,
}

impl Reply {
    /// Sends the response without waiting; it is dropped if the peer has disconnected.
    fn send(self, outcome: Result<Vec<u8>, CallError>) {
        let Self {
            id,
            permit,
            peer,
            started,
        } = self;

        let server = &peer.server;

        if let Some(started) = started {
            server
                .ctx
                .archive
                .metrics
                .distributions
                .responses
                .observe(started.elapsed());
        }

        let refuse = |error: &CallError| {
            // A refusal is the caller's mistake and counted where it is decided.
            if !matches!(
                error,
                CallError::Refused(_) | CallError::Denied(_) | CallError::TooLarge { .. }
            ) {
                server.ctx.archive.metrics.calls_failed.add(1);
            }
            refusal_frame(Some(id), error)
        };

        let mut frame = match outcome {
            Ok(value) => into_answer_frame(id, value),
            Err(error) => refuse(&error),
        };

        // A response that is larger than the limit alone is sent if no other waits, or it could
        // never be read.
        let waiting = server.answer_bytes.fetch_add(frame.len(), Ordering::AcqRel);
        let mut bytes = frame.len();
        if waiting > 0 && waiting + bytes > ANSWER_BYTES_WAITING {
            server.answer_bytes.fetch_sub(bytes, Ordering::AcqRel);
            // The changes of a call are made nevertheless; its peer repeats it as a replay.
            frame = refuse(&CallError::Unavailable(
                "too many responses wait to be read; retry later".to_owned(),
            ));
            bytes = 0;
        }

        peer.send(frame, permit, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    const MIB: usize = 1024 * 1024;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        // A broken limit would make a test wait forever.
        runtime.block_on(async {
            timeout(Duration::from_secs(30), work)
                .await
                .expect("the test hangs")
        })
    }

    /// A peer that has sent `bytes` bytes of a frame, and the daemon's end of its connection.
    fn peer_that_sent(bytes: usize) -> (UnixStream, Incoming) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let sent = theirs.try_write(&vec![0; bytes]).unwrap();
        assert_eq!(sent, bytes, "the socket's buffer holds it");
        (theirs, Incoming::new(ours.into_split().0))
    }

    fn error_of(outcome: Result<(Vec<u8>, OwnedSemaphorePermit), CloseReason>) -> String {
        match outcome {
            Err(CloseReason::Error(error)) => error.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_frame_is_not_read_until_there_is_memory_for_it() {
        const LEN: usize = 2 * MIB;
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_secs(20));
            let (_first_peer, mut first) = peer_that_sent(1000);
            let (mut second_peer, mut second) = peer_that_sent(1000);
            let mut first = Box::pin(lanes.take_payload(&mut first, LEN));
            let mut second = Box::pin(lanes.take_payload(&mut second, LEN));
            // The first one holds its reservation while it waits for more bytes.
            let rest = vec![0; LEN - 1000];
            let sending = second_peer.write_all(&rest);
            let mut sending = Box::pin(sending);
            for _ in 0..20_000 {
                tokio::select! {
                    biased;
                    _ = &mut first => panic!("the first frame is incomplete"),
                    _ = &mut second => panic!("the second frame was read without a reservation"),
                    _ = &mut sending => panic!("the second frame's bytes were read without a reservation"),
                    () = tokio::task::yield_now() => {}
                }
            }
            // It disconnects in the middle of its frame.
            drop(first);
            let (sent, taken) = tokio::join!(sending, second);
            sent.unwrap();
            assert_eq!(taken.unwrap().0.len(), LEN);
            assert_eq!(
                lanes.large.available_permits(),
                3 * MIB / PERMIT_BYTES,
                "all permits are released"
            );
        });
    }

    #[test]
    fn reservations_are_exact_to_one_permit() {
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_millis(20));
            let largest = 3 * MIB - 1;
            let all = lanes.reserve(largest).await.unwrap();
            assert_eq!(lanes.large.available_permits(), 0);
            let (_peer, mut from) = peer_that_sent(0);
            let error = error_of(lanes.take_payload(&mut from, SMALL_FRAME_BYTES + 1).await);
            assert!(
                error.contains("too many bytes of calls are in flight"),
                "{error}"
            );
            // Smaller frames have separate lanes.
            drop((
                lanes.reserve(SMALL_FRAME_BYTES).await.unwrap(),
                lanes.reserve(TINY_FRAME_BYTES).await.unwrap(),
            ));
            drop(all);
            let error = error_of(lanes.take_payload(&mut from, largest + 1).await);
            assert!(
                error.contains("too many bytes"),
                "more than the whole lane: {error}"
            );
        });
    }

    #[test]
    fn an_incomplete_frame_times_out() {
        run(async {
            let lanes = Lanes::new(9 * MIB, Duration::from_millis(20));
            for len in [10, TINY_FRAME_BYTES + 1, SMALL_FRAME_BYTES + 1] {
                let (_peer, mut from) = peer_that_sent(9);
                let error = error_of(lanes.take_payload(&mut from, len).await);
                assert!(error.contains("timeout within a frame"), "{len}: {error}");
                let (_peer, mut from) = peer_that_sent(0);
                let error = error_of(lanes.take_payload(&mut from, len).await);
                assert!(error.contains("timeout within a frame"), "{len}: {error}");
            }
        });
    }
}
