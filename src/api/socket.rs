//! The local socket: many short-lived and forking processes, one unix stream each.
//!
//! Each connection has a reader and a writer task. The reader takes frames in order and starts calls; a
//! writing call goes to `intake` before the next frame is looked at, so one peer's writes keep their order.
//! The writer sends answers as they come. A peer that breaks the protocol is told so and dropped; the others
//! and the daemon go on.
//!
//! # Bounds
//!
//! A frame's bytes are set aside out of [`SOCKET_BYTES_IN_FLIGHT`] before they are read, in lanes by size, so that a
//! peer with a slow giant holds up nobody's small calls; a tiny frame is read first, so that a peer that stalls
//! holds up nobody at all. Answers that wait to be read have at most [`ANSWER_BYTES_WAITING`]. Patience is bounded at
//! every step but one: between two frames a peer may be silent for as long as it likes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::call::{Ctx, Run, find};
use crate::channel::Refused;
use crate::limits::{
    ANSWER_BYTES_WAITING, INTAKE_PATIENCE, PEER_CALLS_IN_FLIGHT, PEER_PATIENCE, PREAMBLE_PATIENCE,
    SOCKET_BYTES_IN_FLIGHT, SOCKET_PEERS_MAX, TINY_FRAME_BYTES, WIRE_FRAME_BYTES_MAX,
};
use crate::model::Drafts;
use crate::store::{Done, Intake};
use crate::wire::call::{
    CallError, PREAMBLE_LEN, Request, VERSION, answer_frame, read_preamble, refusal_frame, version_frame,
};

/// A frame up to this size goes through the lane of small ones.
const SMALL_FRAME_BYTES: usize = 1024 * 1024;

/// Bytes that one permit of a lane stands for.
const PERMIT_BYTES: usize = 1024;

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers there already.
    #[error("another daemon answers at {}: stop it first, or give another --socket", .0.display())]
    InUse(PathBuf),
    /// Something is there that is no socket, and is left alone.
    #[error("{} exists and is no socket: move it away, or give another --socket", .0.display())]
    NoSocket(PathBuf),
    /// The operating system refused.
    #[error("{action} {}: {why}", path.display())]
    Io {
        /// Verb first.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The refusal.
        why: std::io::Error,
    },
    /// The group is not known on this machine.
    #[error("socket_group: there is no group `{0}` on this machine")]
    NoGroup(String),
}

/// The socket's file: bound, listening, removed when dropped.
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Door {
    /// Binds the socket, with a directory for it and its permissions. Must run inside a tokio runtime.
    pub fn open(path: &Path, mode: u32, group: Option<&str>) -> Result<Self, SocketError> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |why| SocketError::Io { action, path, why }
        };
        let gid = group
            .map(|name| group_id(name).ok_or_else(|| SocketError::NoGroup(name.to_owned())))
            .transpose()?;
        if let Some(parent) = path.parent()
            && !parent.is_dir()
        {
            use std::os::unix::fs::DirBuilderExt as _;
            let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(parent);
            made.map_err(io("create the directory", parent))?;
            if gid.is_some() {
                std::os::unix::fs::chown(parent, None, gid).map_err(io("change the group of", parent))?;
            }
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(SocketError::InUse(path.to_owned()));
            }
            // Nobody listens: a daemon that was killed left it behind.
            Ok(_) => fs::remove_file(path).map_err(io("remove the stale socket", path))?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(io("bind", path))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io("set the mode of", path))?;
        if gid.is_some() {
            std::os::unix::fs::chown(path, None, gid).map_err(io("change the group of", path))?;
        }
        Ok(Self { listener, path: path.to_owned() })
    }
}

/// The number of a group, from `/etc/group`.
fn group_id(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// What all connections share.
struct House {
    ctx: Arc<Ctx>,
    intake: Intake,
    tiny: Arc<Semaphore>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    answer_bytes: AtomicUsize,
}

/// Serves connections until `stop` turns true, then lets calls under way finish.
pub async fn serve(door: Door, ctx: Arc<Ctx>, intake: Intake, mut stop: watch::Receiver<bool>) {
    let lane = || Arc::new(Semaphore::new(SOCKET_BYTES_IN_FLIGHT / 3 / PERMIT_BYTES));
    let house = Arc::new(House {
        ctx,
        intake,
        tiny: lane(),
        small: lane(),
        large: lane(),
        answer_bytes: AtomicUsize::new(0),
    });
    let peers = Arc::new(Semaphore::new(SOCKET_PEERS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = door.listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let Ok(seat) = peers.clone().try_acquire_owned() else {
                    house.ctx.metrics.peers_turned_away.add(1);
                    let error =
                        CallError::Unavailable(format!("{SOCKET_PEERS_MAX} connections are open already"));
                    // Into the socket's empty buffer, or not at all.
                    let _ = stream.try_write(&refusal_frame(None, &error));
                    continue;
                };
                house.ctx.metrics.peers.add(1);
                let (house, stop) = (house.clone(), stop.clone());
                tokio::spawn(async move {
                    serve_peer(&house, stream, stop).await;
                    drop(seat);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: connections that end will give some back.
                tracing::warn!(%error, "could not accept a connection");
                sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
    drop(door);
    // Every peer gives its seat back once its last answer is out.
    let all = u32::try_from(SOCKET_PEERS_MAX).unwrap_or(u32::MAX);
    let _ = timeout(PEER_PATIENCE, peers.acquire_many(all)).await;
}

/// An answer on its way out, with what it holds until it has left.
struct Outgoing {
    frame: Vec<u8>,
    held: Option<Held>,
}

/// The place of a call among those of its peer, and the bytes of its answer among all that wait.
struct Held {
    _place: OwnedSemaphorePermit,
    bytes: usize,
    house: Arc<House>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.house.answer_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

async fn serve_peer(house: &Arc<House>, stream: UnixStream, stop: watch::Receiver<bool>) {
    let (mut from, to) = stream.into_split();
    // Each call under way holds a place, so the queue of answers always has room for one more.
    let (answers, outgoing) = mpsc::channel(PEER_CALLS_IN_FLIGHT + 1);
    let mut writer = tokio::spawn(send_answers(to, outgoing));
    let farewell = tokio::select! {
        taken = take_requests(house, &mut from, &answers, stop) => taken,
        // A peer that takes no answers has nothing to ask either.
        _ = &mut writer => return,
    };
    let last_words = match farewell {
        Ok(()) | Err(Farewell::Gone) => None,
        Err(Farewell::Told(error)) => Some(refusal_frame(None, &error)),
        Err(Farewell::Version(theirs)) => Some(version_frame(theirs)),
    };
    if let Some(frame) = last_words {
        house.ctx.metrics.peers_dropped.add(1);
        let _ = answers.send(Outgoing { frame, held: None }).await;
    }
    drop(answers);
    let _ = writer.await;
}

/// Why a connection ends.
enum Farewell {
    Told(CallError),
    Version(u16),
    Gone,
}

impl From<std::io::Error> for Farewell {
    fn from(_: std::io::Error) -> Self {
        Farewell::Gone
    }
}

fn broke(what: impl Into<String>) -> Farewell {
    Farewell::Told(CallError::Protocol(what.into()))
}

async fn take_requests(
    house: &Arc<House>,
    from: &mut OwnedReadHalf,
    answers: &mpsc::Sender<Outgoing>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Farewell> {
    let mut preamble = [0_u8; PREAMBLE_LEN];
    match timeout(PREAMBLE_PATIENCE, from.read_exact(&mut preamble)).await {
        Err(_) => return Err(broke("no preamble came in time")),
        Ok(read) => read?,
    };
    match read_preamble(preamble) {
        Some(VERSION) => {}
        Some(theirs) => return Err(Farewell::Version(theirs)),
        None => {
            return Err(broke(
                "this socket speaks saltcellar's protocol, which begins with SCWIRE and a version",
            ));
        }
    }
    let places = Arc::new(Semaphore::new(PEER_CALLS_IN_FLIGHT));
    loop {
        let mut header = [0_u8; 4];
        // Between frames a peer may be silent for as long as it likes; the stop ends that.
        tokio::select! {
            read = from.read_exact(&mut header) => read?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let len = u32::from_be_bytes(header) as usize;
        if len > WIRE_FRAME_BYTES_MAX {
            return Err(broke(format!("a frame of {len} bytes exceeds the limit of {WIRE_FRAME_BYTES_MAX}")));
        }
        let (payload, bytes) = take_payload(house, from, len).await?;
        let Ok(place) = places.clone().acquire_owned().await else { return Err(Farewell::Gone) };
        house.ctx.metrics.calls.add(1);
        start_call(house, payload, bytes, place, answers).await.map_err(Farewell::Told)?;
    }
}

/// Reads a frame's payload, with its bytes set aside.
async fn take_payload(
    house: &House,
    from: &mut OwnedReadHalf,
    len: usize,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Farewell> {
    let set_aside = |lane: &Arc<Semaphore>| {
        let permits = u32::try_from(len / PERMIT_BYTES + 1).unwrap_or(u32::MAX);
        timeout(PEER_PATIENCE, lane.clone().acquire_many_owned(permits))
    };
    let overloaded = || {
        let words = "too many bytes of calls are under way; try again later".to_owned();
        Farewell::Told(CallError::Unavailable(words))
    };
    let mut payload = Vec::new();
    let mut bytes = None;
    if len > TINY_FRAME_BYTES {
        let lane = if len <= SMALL_FRAME_BYTES { &house.small } else { &house.large };
        bytes = Some(set_aside(lane).await.map_err(|_| overloaded())?.map_err(|_| Farewell::Gone)?);
    }
    // Not zeroed first, as `read_exact` would want it; the spare room keeps the end of the frame from growing it.
    payload.reserve_exact(len + 64);
    let mut frame = from.take(len as u64);
    match timeout(PEER_PATIENCE, frame.read_to_end(&mut payload)).await {
        Err(_) => return Err(broke("a frame that was begun did not end in time")),
        Ok(read) => {
            if read? < len {
                return Err(Farewell::Gone);
            }
        }
    }
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => set_aside(&house.tiny).await.map_err(|_| overloaded())?.map_err(|_| Farewell::Gone)?,
    };
    Ok((payload, bytes))
}

/// Starts a call; returns once its place among the peer's writes is settled.
async fn start_call(
    house: &Arc<House>,
    payload: Vec<u8>,
    bytes: OwnedSemaphorePermit,
    place: OwnedSemaphorePermit,
    answers: &mpsc::Sender<Outgoing>,
) -> Result<(), CallError> {
    let request = Request::read(&payload)?;
    let id = request.id;
    let reply = Reply { id, place, answers: answers.clone(), house: house.clone() };
    match find(request.call).map(|call| &call.run) {
        None => reply.send(Err(CallError::UnknownCall(request.call.to_owned()))),
        Some(Run::Read(run)) => {
            let house = house.clone();
            tokio::task::spawn_blocking(move || {
                // A panic is a fault of ours; the caller is told instead of left waiting.
                let work = || Request::read(&payload).and_then(|request| run(&house.ctx, &request.args));
                let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                    Err(CallError::Internal("the call ended by a panic, see the daemon's log".to_owned()))
                });
                drop((payload, bytes));
                reply.send(outcome);
            });
        }
        Some(Run::Write(run)) => {
            let mut drafts = Drafts::within(&payload);
            let made = run(&house.ctx, &request.args, &mut drafts);
            let loose = drafts.loose();
            match made {
                Err(error) => reply.send(Err(error)),
                Ok(answer) if loose.is_empty() => reply.send(Ok(answer)),
                Ok(answer) => submit(house, loose.into_batch(payload), answer, bytes, reply).await,
            }
        }
    }
    Ok(())
}

/// Hands entries to the appender, waiting for room within reason.
async fn submit(
    house: &House,
    mut batch: crate::model::Batch,
    answer: Vec<u8>,
    bytes: OwnedSemaphorePermit,
    reply: Reply,
) {
    let mut done: Option<Done> = Some(Box::new(move |stored: Result<(), String>| {
        drop(bytes);
        reply.send(stored.map(|()| answer).map_err(CallError::Unavailable));
    }));
    let deadline = Instant::now() + INTAKE_PATIENCE;
    loop {
        let words = match house.intake.try_submit(batch, done.take()) {
            Ok(()) => return,
            Err(Refused::Full((back, back_done))) if Instant::now() < deadline => {
                (batch, done) = (back, back_done);
                sleep(std::time::Duration::from_millis(1)).await;
                continue;
            }
            Err(Refused::Full((_, done))) => (done, "the disk cannot keep up; try again later"),
            Err(Refused::Closed((_, done))) => (done, "the daemon is stopping"),
        };
        if let (Some(done), why) = words {
            done(Err(why.to_owned()));
        }
        return;
    }
}

/// Where the answer of one call goes.
struct Reply {
    id: u64,
    place: OwnedSemaphorePermit,
    answers: mpsc::Sender<Outgoing>,
    house: Arc<House>,
}

impl Reply {
    /// Sends the answer; never waits. A peer that is gone gets none.
    fn send(self, outcome: Result<Vec<u8>, CallError>) {
        let Self { id, place, answers, house } = self;
        let refuse = |error: &CallError| {
            if !matches!(error, CallError::Refused(_) | CallError::TooLarge { .. }) {
                house.ctx.metrics.calls_failed.add(1);
            }
            refusal_frame(Some(id), error)
        };
        let mut frame = match outcome {
            Ok(value) => answer_frame(id, &value),
            Err(error) => refuse(&error),
        };
        let waiting = house.answer_bytes.fetch_add(frame.len(), Ordering::AcqRel);
        let mut bytes = frame.len();
        if waiting > 0 && waiting + bytes > ANSWER_BYTES_WAITING {
            house.answer_bytes.fetch_sub(bytes, Ordering::AcqRel);
            frame = refuse(&CallError::Unavailable(
                "too many answers wait to be read; try again later".to_owned(),
            ));
            bytes = 0;
        }
        let held = Held { _place: place, bytes, house: house.clone() };
        let _ = answers.try_send(Outgoing { frame, held: Some(held) });
    }
}

async fn send_answers(mut to: OwnedWriteHalf, mut outgoing: mpsc::Receiver<Outgoing>) {
    while let Some(first) = outgoing.recv().await {
        let mut frame = first.frame;
        let mut held = vec![first.held];
        // What else is ready goes out with it.
        while frame.len() < 64 * 1024 {
            let Ok(more) = outgoing.try_recv() else { break };
            frame.extend_from_slice(&more.frame);
            held.push(more.held);
        }
        match timeout(PEER_PATIENCE, to.write_all(&frame)).await {
            Ok(Ok(())) => {}
            // It does not read, or is gone.
            Ok(Err(_)) | Err(_) => break,
        }
    }
}
