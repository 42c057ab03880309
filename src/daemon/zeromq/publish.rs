//! The process of the PUB: sends all events that the daemon stores to subscribers, in the order of
//! the log.
//!
//! The crate drops events for a subscriber that has 100,000 events unread, as ZeroMQ does. A program that
//! must miss none uses a consumer (docs/CONSUMERS.md).

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::api::call as calls;
use crate::api::call::events::{End, EventRow, FollowArgs};
use crate::api::client::Client;
use crate::base::limits::{ZMQ_BATCH_EVENTS, ZMQ_FLUSH_TIMEOUT, ZMQ_POLL, ZMQ_QUIET};
use crate::base::threads;

/// The task that accepts connections, which never ends.
const TASKS_OF_THE_LISTENER: usize = 1;

/// Batches between the thread that reads from the daemon and the socket.
const BATCHES_WAITING: usize = 2;

/// The thread that reads from the daemon.
const FOLLOWER: &str = "sc-zmq-follow";

pub(super) async fn run(listener: UnixListener, daemon: &Path) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut socket = PubSocket::new();
    socket.bind_listener(listener).await.context("listen")?;

    let stopping = Arc::new(AtomicBool::new(false));
    let (to, mut batches) = mpsc::channel(BATCHES_WAITING);
    let client = Client::connect(daemon)?;
    let stop = stopping.clone();

    let follower = std::thread::Builder::new()
        .name(FOLLOWER.to_owned())
        .spawn(move || follow(client, &to, &stop))
        .map_err(|why| threads::not_started(FOLLOWER, &why))?;

    loop {
        let batch: Option<Vec<ZmqMessage>> = tokio::select! {
            batch = batches.recv() => batch,
            _ = terminate.recv(), if !stopping.load(Ordering::Relaxed) => {
                // The loop goes on until the follower has read everything that is stored.
                stopping.store(true, Ordering::Relaxed);
                continue;
            }
        };

        let Some(batch) = batch else { break };

        for message in batch {
            socket.send(message).await.context("publish")?;
        }
        // The crate's own task distributes the messages.
        tokio::task::yield_now().await;
    }

    // Until that task has distributed the last messages.
    sleep(ZMQ_QUIET).await;

    // A handle that is dropped removes the socket's file, which is the daemon's.
    std::mem::forget(std::mem::take(socket.binds()));

    follower
        .join()
        .map_err(|_| anyhow::anyhow!("the follower panicked"))?
}

/// Reads events from the daemon until `stopping` is set and all are read.
fn follow(
    mut client: Client,
    to: &mpsc::Sender<Vec<ZmqMessage>>,
    stopping: &AtomicBool,
) -> anyhow::Result<()> {
    let mut call = FollowArgs {
        limit: Some(ZMQ_BATCH_EVENTS),
        ..FollowArgs::default()
    };
    // Subscribers get no history, as with any PUB.
    call.start.to = Some(End::Newest);

    loop {
        // Read before the request: an empty result after a stop proves that nothing is left.
        let is_last = stopping.load(Ordering::Relaxed);
        let wait_ms = if is_last { 0 } else { ZMQ_POLL.as_millis() };
        call.wait_ms = Some(u64::try_from(wait_ms)?);

        let found = client.make::<calls::events::Follow>(&call)?;

        let batch: Vec<ZmqMessage> = found.events.iter().map(message).collect();
        // An empty batch is sent as well, because only a send shows that the receiver is gone.
        let is_empty = batch.is_empty();
        // The receiver is gone, or everything is read.
        if to.blocking_send(batch).is_err() || is_last && is_empty {
            return Ok(());
        }

        call.start.to = None;
        call.start.seq = Some(found.next);
    }
}

/// Tag, two newlines and data.
fn message(event: &EventRow) -> ZmqMessage {
    let data = event.data.packed();
    let mut bytes = Vec::with_capacity(event.tag.len() + 2 + data.len());
    bytes.extend_from_slice(event.tag.as_bytes());
    bytes.extend_from_slice(b"\n\n");
    bytes.extend_from_slice(data);
    bytes.into()
}

/// Waits until subscribers have read what is queued for them: the crate's tasks end when their
/// queues are empty.
pub(super) fn flush(runtime: &Runtime) {
    let deadline = Instant::now() + ZMQ_FLUSH_TIMEOUT;
    while runtime.metrics().num_alive_tasks() > TASKS_OF_THE_LISTENER && Instant::now() < deadline {
        runtime.block_on(sleep(ZMQ_QUIET / 10));
    }
}
