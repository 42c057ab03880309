//! The process of the PULL: passes events of any program with a ZeroMQ PUSH socket to the daemon.
//!
//! A message is one frame with tag, two newlines and a msgpack map, or two frames with tag and map.
//! Other messages are counted and ignored; the connection continues.
//!
//! # Backpressure
//!
//! One batch is sent to the daemon at a time, and nothing is read from peers until it is on disk.
//! Then the sockets' buffers fill, libzmq's PUSH reaches its high-water mark, and the sending
//! program is slowed: nothing is dropped. A full disk is waited for, and so is the daemon: if a
//! connection to it ends before the response, the batch is sent over a new one. The daemon may have
//! stored it before, so an event can be stored twice, but none is lost.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use zeromq::{PullSocket, Socket as _, SocketRecv as _, ZmqMessage};

use crate::api::call::Call;
use crate::api::call::zeromq::{self as calls, EventsArgs, IgnoredArgs};
use crate::api::client::{Client, ClientError};
use crate::base::clock::Clock;
use crate::base::limits::{
    WIRE_FRAME_BYTES_MAX, ZMQ_ANSWER_TIMEOUT, ZMQ_BATCH_BYTES, ZMQ_BATCH_EVENTS, ZMQ_LOG_INTERVAL,
    ZMQ_QUIET, ZMQ_RETRY,
};
use crate::base::log_once::LogOnce;
use crate::wire::msgpack::{PackedArray, Writer};
use crate::wire::salt_event;

/// Bytes of a call in addition to its message.
const CALL_BYTES: usize = 1024;

/// Messages that were not passed on, since the last report.
struct Ignored {
    malformed: u64,
    too_large: u64,
    /// Connections that ended with an error.
    peers: u64,
    log: Log,
}

/// Writes a line to the daemon's log, unless it is about what has just been logged.
struct Log {
    once: LogOnce,
    clock: Clock,
}

impl Log {
    fn new() -> Self {
        Self {
            once: LogOnce::every(ZMQ_LOG_INTERVAL),
            clock: Clock::real(),
        }
    }

    fn line(&self, line: impl FnOnce() -> String) {
        if self.once.is_due((), self.clock.monotonic()) {
            eprintln!("saltcellar: zeromq pull: {}", line());
        }
    }
}

/// The daemon's local socket. This process lives no longer than the daemon, so a connection that
/// ends is replaced.
struct Daemon {
    path: PathBuf,
    client: Option<Client>,
    log: Log,
}

impl Daemon {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            client: None,
            log: Log::new(),
        }
    }

    /// Makes a call until a response comes. An error is an error of the call itself.
    async fn make<C: Call>(&mut self, args: &C::Args<'_>) -> Result<(), ClientError> {
        loop {
            match self.try_call::<C>(args) {
                Ok(answer) => return answer,
                Err(error) => {
                    // Nothing is known of what it still holds.
                    self.client = None;
                    self.log
                        .line(|| format!("the daemon does not respond, reconnecting: {error}"));
                }
            }
            sleep(ZMQ_RETRY).await;
        }
    }

    /// The response to a call, or an error of the connection.
    fn try_call<C: Call>(
        &mut self,
        args: &C::Args<'_>,
    ) -> Result<Result<(), ClientError>, ClientError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(Client::connect_within(&self.path, ZMQ_ANSWER_TIMEOUT)?),
        };

        client.start::<C>(args)?;
        // What it says is not read: any response means that the batch is stored.
        let (_, answer) = client.next_packed()?;
        Ok(answer.map(drop))
    }
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

    let mut daemon = Daemon::new(daemon);
    let mut ignored = Ignored::new();
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

        // Adds what has arrived meanwhile, because a commit of many events is cheaper for each.
        while batch.packed.len() < ZMQ_BATCH_BYTES && batch.events < ZMQ_BATCH_EVENTS {
            // Polls the socket once.
            let Ok(received) = timeout(Duration::ZERO, socket.recv()).await else {
                break;
            };
            ignored.sort(received, &mut batch);
        }

        if batch.events > 0 {
            store(&mut daemon, batch, stopping).await?;
        }

        ignored.report(&mut daemon).await?;
    }
}

impl Ignored {
    fn new() -> Self {
        Self {
            malformed: 0,
            too_large: 0,
            peers: 0,
            log: Log::new(),
        }
    }

    /// Adds a message to the batch, or counts the reason against it.
    fn sort(&mut self, received: zeromq::ZmqResult<ZmqMessage>, batch: &mut Batch) {
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                self.peers += 1;
                return self.log.line(|| format!("a connection ended: {error}"));
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
            return self.log.line(|| {
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

        // The event must fit into one frame together with the call that carries it.
        if bytes + CALL_BYTES > WIRE_FRAME_BYTES_MAX {
            self.too_large += 1;
            return self
                .log
                .line(|| format!("an event of {bytes} bytes ignored"));
        }

        batch.events += 1;
        batch.packed.array(2).bin(tag).bin(data);
    }

    /// Adds the counts to the daemon's counters.
    async fn report(&mut self, daemon: &mut Daemon) -> Result<(), ClientError> {
        let counts = IgnoredArgs {
            malformed: std::mem::take(&mut self.malformed),
            too_large: std::mem::take(&mut self.too_large),
            peers: std::mem::take(&mut self.peers),
            lost: 0,
            ..IgnoredArgs::default()
        };

        if counts != IgnoredArgs::default() {
            daemon.make::<calls::Ignored>(&counts).await?;
        }
        Ok(())
    }
}

/// Stores a batch. While the disk is full it retries, except during shutdown.
async fn store(daemon: &mut Daemon, batch: Batch, stopping: bool) -> Result<(), ClientError> {
    let mut events = Writer::new();
    events.array(batch.events).raw(&batch.packed.into_bytes());
    let events = events.into_bytes();
    let args = EventsArgs {
        events: PackedArray(&events),
        ..EventsArgs::default()
    };

    loop {
        match daemon.make::<calls::Events>(&args).await {
            Ok(()) => return Ok(()),
            // A full disk or a busy store. Meanwhile nothing is read, which slows the senders.
            Err(ClientError::Refused { code, .. }) if code == "unavailable" && !stopping => {}
            // Any other error would occur again with the same batch.
            Err(error) => {
                eprintln!(
                    "saltcellar: zeromq pull: {} events lost: {error}",
                    batch.events
                );
                let lost = IgnoredArgs {
                    lost: batch.events as u64,
                    ..IgnoredArgs::default()
                };
                return daemon.make::<calls::Ignored>(&lost).await;
            }
        }
        sleep(ZMQ_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::wire::call::preamble;

    /// Reads a call; returns what follows its id: name and arguments.
    fn read_call(peer: &mut UnixStream) -> Vec<u8> {
        let mut header = [0; 4];
        peer.read_exact(&mut header).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(header) as usize];
        peer.read_exact(&mut frame).unwrap();
        // An array of three, and an id of one byte.
        frame.split_off(2)
    }

    fn accept(listener: &UnixListener) -> UnixStream {
        let (mut peer, _) = listener.accept().unwrap();
        let mut seen = preamble();
        peer.read_exact(&mut seen).unwrap();
        assert_eq!(seen, preamble());
        peer
    }

    #[test]
    fn a_batch_whose_connection_ends_is_stored_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon");
        let listener = UnixListener::bind(&path).unwrap();

        // Not scoped: it would wait for ever for a connection that a failed call does not open.
        let daemon = std::thread::Builder::new().spawn(move || {
            // One is closed before the call is read, one before it is answered.
            drop(accept(&listener));
            let mut second = accept(&listener);
            let seen = read_call(&mut second);
            drop(second);

            let mut third = accept(&listener);
            assert_eq!(read_call(&mut third), seen, "the same batch");
            // [1, true, nil]
            third.write_all(&[0, 0, 0, 4, 0x93, 1, 0xc3, 0xc0]).unwrap();
            seen
        });
        let daemon = daemon.unwrap();

        let mut batch = Batch {
            events: 1,
            ..Batch::default()
        };
        batch.packed.array(2).bin(b"tag").bin(&[0x80]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime
            .block_on(store(&mut Daemon::new(&path), batch, false))
            .unwrap();

        let seen = daemon.join().unwrap();
        assert!(seen.windows(3).any(|part| part == b"tag"), "{seen:?}");
    }
}
