//! The common part of both sockets: accepting peers, handshakes, and errors.

use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::limits::{PREAMBLE_TIMEOUT, ZMQ_LOG_INTERVAL, ZMQ_PEERS_MAX};
use crate::base::metrics::Metrics;
use crate::wire::unix_listener::{Listener, SocketStats};
use crate::wire::zmtp::{self, Handshake, SocketType, Splitter, ZmtpError};

/// Why a connection is closed.
#[derive(Debug)]
pub(super) enum ZmtpCloseReason {
    /// The peer broke the protocol or a limit; it receives this message.
    Error(String),
    /// The peer disconnected, or this end shuts down.
    Gone,
}

impl From<std::io::Error> for ZmtpCloseReason {
    fn from(_: std::io::Error) -> Self {
        ZmtpCloseReason::Gone
    }
}

impl From<ZmtpError> for ZmtpCloseReason {
    fn from(error: ZmtpError) -> Self {
        ZmtpCloseReason::Error(error.to_string())
    }
}

/// Limits log lines about peers to one per [`ZMQ_LOG_INTERVAL`], because thousands of peers can have the same problem.
#[derive(Debug, Default)]
pub(super) struct LogThrottle(parking_lot::Mutex<(Option<std::time::Instant>, u64)>);

impl LogThrottle {
    /// Counts an occurrence; returns the number since the last log line if another one is due.
    pub(super) fn is_time(&self) -> Option<u64> {
        let mut state = self.0.lock();
        let (logged_at, times) = &mut *state;
        *times += 1;
        if logged_at.is_some_and(|at| at.elapsed() < ZMQ_LOG_INTERVAL) {
            return None;
        }
        *logged_at = Some(std::time::Instant::now());
        Some(std::mem::take(times))
    }
}

/// State shared by the connections of a socket.
pub(super) struct Connections {
    /// The type of this end.
    pub(super) socket_type: SocketType,
    /// Bytes of a peer's largest message.
    pub(super) message_bytes_max: usize,
    pub(super) watch: SocketStats,
    pub(super) metrics: Arc<Metrics>,
    pub(super) throttle: LogThrottle,
}

impl Connections {
    pub(super) fn new(
        socket_type: SocketType,
        message_bytes_max: usize,
        watch: SocketStats,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self { socket_type, message_bytes_max, watch, metrics, throttle: LogThrottle::default() })
    }

    /// Accepts peers until `stop` turns true and passes each to `work` after the handshake; returns when all have ended.
    pub(super) async fn serve<F>(
        self: Arc<Self>,
        source: Listener,
        stop: watch::Receiver<bool>,
        work: impl Fn(UnixStream, Splitter) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = ZmtpCloseReason> + Send,
    {
        // libzmq reconnects, by default every 100 ms.
        let reject = |_| self.metrics.zmq_peers_rejected.add(1);
        let handle = |stream| {
            self.metrics.zmq_peers.add(1);
            let (connections, work, stop) = (self.clone(), work.clone(), stop.clone());
            async move {
                let _entered = connections.watch.enter();
                connections.handle(stream, stop, work).await;
            }
        };
        source.serve(ZMQ_PEERS_MAX, stop.clone(), reject, handle).await;
    }

    /// One connection from its handshake to its end.
    async fn handle<F>(
        &self,
        mut stream: UnixStream,
        mut stop: watch::Receiver<bool>,
        work: impl Fn(UnixStream, Splitter) -> F,
    ) where
        F: Future<Output = ZmtpCloseReason>,
    {
        let greeted = tokio::select! {
            greeted = timeout(PREAMBLE_TIMEOUT, self.handshake(&mut stream)) => greeted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let close_reason = match greeted {
            Ok(Ok(splitter)) => work(stream, splitter).await,
            Ok(Err(close_reason)) => {
                if let ZmtpCloseReason::Error(why) = &close_reason {
                    let _ = timeout(PREAMBLE_TIMEOUT, stream.write_all(&zmtp::error(why))).await;
                }
                close_reason
            }
            Err(_) => ZmtpCloseReason::Error("timeout in the handshake".to_owned()),
        };
        if let ZmtpCloseReason::Error(why) = close_reason {
            self.metrics.zmq_peers_dropped.add(1);
            if let Some(times) = self.throttle.is_time() {
                let source = self.watch.name();
                tracing::warn!(source, times, %why, "ZeroMQ peer broke the protocol or a limit, disconnected");
            }
        }
    }

    /// Exchanges greeting and READY. Bytes after the peer's READY stay in the splitter.
    async fn handshake(&self, stream: &mut UnixStream) -> Result<Splitter, ZmtpCloseReason> {
        stream.write_all(&zmtp::greeting()).await?;
        let mut splitter = Splitter::new(self.message_bytes_max);
        loop {
            match splitter.handshake(self.socket_type)? {
                Handshake::Send(bytes) => stream.write_all(&bytes).await?,
                Handshake::Receive => {
                    if stream.read_buf(splitter.spare(HANDSHAKE_READ_BYTES)).await? == 0 {
                        return Err(ZmtpCloseReason::Gone);
                    }
                }
                Handshake::Done => return Ok(splitter),
            }
        }
    }
}

/// Bytes read at once in a handshake.
const HANDSHAKE_READ_BYTES: usize = 1024;
