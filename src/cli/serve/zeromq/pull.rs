//! The process of the PULL: passes events of any program with a ZeroMQ PUSH socket to the daemon.
//!
//! A message is one frame with tag, two newlines and a msgpack map, or two frames with tag and map.
//! Other messages are counted and ignored; the connection continues.
//!
//! # Backpressure
//!
//! One batch is sent to the daemon at a time, and nothing is read from peers until it is on disk.
//! Then the sockets' buffers fill, libzmq's PUSH reaches its high-water mark, and the sending
//! program is slowed: nothing is dropped. A full disk is waited for.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use zeromq::{PullSocket, Socket as _, SocketRecv as _, ZmqMessage};

use crate::api::client::{Client, ClientError};
use crate::base::limits::{
    WIRE_FRAME_BYTES_MAX, ZMQ_BATCH_BYTES, ZMQ_BATCH_EVENTS, ZMQ_LOG_INTERVAL, ZMQ_QUIET, ZMQ_RETRY,
};
use crate::wire::msgpack::Writer;
use crate::wire::salt_event;

/// Bytes of a call in addition to its message.
const CALL_BYTES: usize = 1024;

/// Messages that were not passed on, since the last report.
#[derive(Default)]
struct Ignored {
    malformed: u64,
    too_large: u64,
    /// Connections that ended with an error.
    peers: u64,
    logged: Option<Instant>,
}

/// Events for one call, as an array of msgpack binaries.
#[derive(Default)]
struct Batch {
    events: usize,
    packed: Writer,
}

pub(super) async fn run(listener: UnixListener, daemon: &Path) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut socket = PullSocket::new();
    socket.bind_listener(listener).await.context("listen")?;

    let mut client = Client::connect(daemon)?;
    let mut ignored = Ignored::default();
    let mut stopping = false;

    loop {
        let mut batch = Batch::default();
        tokio::select! {
            received = socket.recv() => ignored.sort(received, &mut batch),
            _ = terminate.recv(), if !stopping => {
                stopping = true;
                continue;
            }
            // Everything that was written has been read.
            () = sleep(ZMQ_QUIET), if stopping => return Ok(()),
        }

        // Adds what has arrived meanwhile, so that a commit has many events.
        while batch.packed.len() < ZMQ_BATCH_BYTES && batch.events < ZMQ_BATCH_EVENTS {
            // Polls the socket once.
            let Ok(received) = timeout(Duration::ZERO, socket.recv()).await else {
                break;
            };
            ignored.sort(received, &mut batch);
        }

        if batch.events > 0 {
            store(&mut client, batch, stopping).await?;
        }

        ignored.report(&mut client)?;
    }
}

impl Ignored {
    /// Adds a message to the batch, or counts the reason against it.
    fn sort(&mut self, received: zeromq::ZmqResult<ZmqMessage>, batch: &mut Batch) {
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                self.peers += 1;
                return self.log(|| format!("a connection ended: {error}"));
            }
        };

        let frames = message.into_vec();
        let event = match frames.as_slice() {
            [event] => salt_event::split(event),
            [tag, data] => Some((&tag[..], &data[..])),
            _ => None,
        };

        let Some((tag, data)) = event.filter(|(tag, data)| salt_event::is_event(tag, data)) else {
            self.malformed += 1;
            return self.log(|| {
                let begins = frames.first().map(|first| first.slice(..first.len().min(40)));
                let begins = begins.unwrap_or_default().escape_ascii().to_string();
                format!(
                    "message ignored: expected one frame with tag, two newlines and a msgpack map, or two frames with tag and \
                     map, not {} with \"{begins}\"",
                    frames.len()
                )
            });
        };

        let bytes = tag.len() + data.len();
        if bytes + CALL_BYTES > WIRE_FRAME_BYTES_MAX {
            self.too_large += 1;
            return self.log(|| format!("an event of {bytes} bytes ignored"));
        }

        batch.events += 1;
        batch.packed.array(2).bin(tag).bin(data);
    }

    /// Writes at most one line in [`ZMQ_LOG_INTERVAL`], because thousands of messages can have the
    /// same problem.
    fn log(&mut self, line: impl FnOnce() -> String) {
        if self
            .logged
            .is_none_or(|at| at.elapsed() >= ZMQ_LOG_INTERVAL)
        {
            self.logged = Some(Instant::now());
            eprintln!("saltcellar: zeromq pull: {}", line());
        }
    }

    /// Adds the counts to the daemon's counters.
    fn report(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let Self {
            malformed,
            too_large,
            peers,
            logged,
        } = std::mem::take(self);
        // The log interval spans reports.
        self.logged = logged;

        if malformed + too_large + peers > 0 {
            let mut args = Writer::new();
            args.map(3)
                .str("malformed")
                .uint(malformed)
                .str("too_large")
                .uint(too_large);
            args.str("peers").uint(peers);
            client.post("zeromq_ignored", &args.into_bytes())?;
            client.next_answer()?.1?;
        }
        Ok(())
    }
}

/// Stores a batch. While the disk is full it retries, except during shutdown.
async fn store(client: &mut Client, batch: Batch, stopping: bool) -> anyhow::Result<()> {
    let mut args = Writer::new();
    args.map(1)
        .str("events")
        .array(batch.events)
        .raw(&batch.packed.into_bytes());
    let args = args.into_bytes();

    loop {
        client.post("zeromq_events", &args)?;
        match client.next_answer()?.1 {
            Ok(_) => return Ok(()),
            // A full disk or a busy store. Meanwhile nothing is read, which slows the senders.
            Err(ClientError::Refused { code, .. }) if code == "unavailable" && !stopping => {}
            // Any other error would occur again with the same batch.
            Err(error) => {
                eprintln!(
                    "saltcellar: zeromq pull: {} events lost: {error}",
                    batch.events
                );

                let mut args = Writer::new();
                args.map(1).str("lost").uint(batch.events as u64);
                client.post("zeromq_ignored", &args.into_bytes())?;
                client.next_answer()?.1?;
                return Ok(());
            }
        }
        sleep(ZMQ_RETRY).await;
    }
}
