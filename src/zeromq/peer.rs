//! What both doors share: accepting peers, greeting them, and telling them why they are turned away.

use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::door::{Door, Watch};
use crate::limits::{PREAMBLE_PATIENCE, ZMQ_PEERS_MAX, ZMQ_SAYS};
use crate::metrics::Metrics;
use crate::wire::zmtp::{self, Piece, SocketType, Splitter, ZmtpError};

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Farewell {
    /// The peer broke the protocol or a bound; it is told so.
    Told(String),
    /// It is gone, or this end stops.
    Gone,
}

impl From<std::io::Error> for Farewell {
    fn from(_: std::io::Error) -> Self {
        Farewell::Gone
    }
}

impl From<ZmtpError> for Farewell {
    fn from(error: ZmtpError) -> Self {
        Farewell::Told(error.to_string())
    }
}

/// Says something about peers at most every [`ZMQ_SAYS`]: thousands may be wrong in the same way.
#[derive(Debug, Default)]
pub(super) struct Says(std::sync::Mutex<(Option<std::time::Instant>, u64)>);

impl Says {
    /// How often it happened since it was said last, if it is time to say it again.
    pub(super) fn is_time(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (said, times) = &mut *state;
        *times += 1;
        if said.is_some_and(|said| said.elapsed() < ZMQ_SAYS) {
            return None;
        }
        *said = Some(std::time::Instant::now());
        Some(std::mem::take(times))
    }
}

/// What a door's connections share.
pub(super) struct Lobby {
    /// What this end is.
    pub(super) socket_type: SocketType,
    /// Bytes of a peer's largest message.
    pub(super) message_bytes_max: usize,
    pub(super) watch: Watch,
    pub(super) metrics: Arc<Metrics>,
    pub(super) says: Says,
}

impl Lobby {
    pub(super) fn new(
        socket_type: SocketType,
        message_bytes_max: usize,
        watch: Watch,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self { socket_type, message_bytes_max, watch, metrics, says: Says::default() })
    }

    /// Accepts peers until `stop` turns true and hands each, greeted, to `work`; returns when the last has ended.
    pub(super) async fn serve<F>(
        self: Arc<Self>,
        door: Door,
        stop: watch::Receiver<bool>,
        work: impl Fn(UnixStream, Splitter) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Farewell> + Send,
    {
        // libzmq connects again by itself, every 100 ms unless told otherwise.
        let turn_away = |_| self.metrics.zmq_peers_turned_away.add(1);
        let host = |stream| {
            self.metrics.zmq_peers.add(1);
            let (lobby, work, stop) = (self.clone(), work.clone(), stop.clone());
            async move {
                let _entered = lobby.watch.enter();
                lobby.host(stream, stop, work).await;
            }
        };
        door.serve(ZMQ_PEERS_MAX, stop.clone(), turn_away, host).await;
    }

    /// One connection from its greeting to its end.
    async fn host<F>(
        &self,
        mut stream: UnixStream,
        mut stop: watch::Receiver<bool>,
        work: impl Fn(UnixStream, Splitter) -> F,
    ) where
        F: Future<Output = Farewell>,
    {
        let greeted = tokio::select! {
            greeted = timeout(PREAMBLE_PATIENCE, self.greet(&mut stream)) => greeted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let farewell = match greeted {
            Ok(Ok(splitter)) => work(stream, splitter).await,
            Ok(Err(farewell)) => {
                if let Farewell::Told(why) = &farewell {
                    let _ = timeout(PREAMBLE_PATIENCE, stream.write_all(&zmtp::error(why))).await;
                }
                farewell
            }
            Err(_) => Farewell::Told("no greeting came in time".to_owned()),
        };
        if let Farewell::Told(why) = farewell {
            self.metrics.zmq_peers_dropped.add(1);
            if let Some(times) = self.says.is_time() {
                let door = self.watch.name();
                tracing::warn!(door, times, %why, "a ZeroMQ peer broke the protocol or a bound and was dropped");
            }
        }
    }

    /// Greetings and READYs. What came behind the peer's READY stays in the splitter.
    async fn greet(&self, stream: &mut UnixStream) -> Result<Splitter, Farewell> {
        stream.write_all(&zmtp::greeting()).await?;
        let mut theirs = [0; zmtp::GREETING_LEN];
        // The first byte decides: who speaks another language need not send 64 bytes of it, and one who waits for
        // our words would never.
        stream.read_exact(theirs.get_mut(..1).unwrap_or_default()).await?;
        if theirs.first() != Some(&0xff) {
            return Err(ZmtpError::NoGreeting.into());
        }
        stream.read_exact(theirs.get_mut(1..).unwrap_or_default()).await?;
        zmtp::check_greeting(&theirs)?;
        stream.write_all(&zmtp::ready(self.socket_type)).await?;
        let mut splitter = Splitter::new(self.message_bytes_max);
        loop {
            match splitter.next_piece()? {
                Some(Piece::Command(command)) => {
                    self.socket_type.check_ready(command)?;
                    return Ok(splitter);
                }
                Some(Piece::Message(_)) => {
                    return Err(ZmtpError::Malformed("a message before the READY").into());
                }
                None => {}
            }
            if splitter.waiting() + splitter.missing() > READY_BYTES_MAX {
                return Err(ZmtpError::Malformed("a READY of more bytes than one has").into());
            }
            if stream.read_buf(splitter.spare(READY_BYTES_MAX)).await? == 0 {
                return Err(Farewell::Gone);
            }
        }
    }
}

/// Room for a READY: a socket type, an identity of at most 255 bytes, properties of the application.
const READY_BYTES_MAX: usize = 4096;
