//! The ZeroMQ sockets, each served by a child process: this program with the hidden verb `zeromq`.
//!
//! The crate `zeromq` trusts the lengths that a peer announces, and keeps everything that it sends:
//! a hostile peer can end the process that uses it. Here that is a child, which holds no data of
//! its own. The daemon binds the sockets and keeps them open. No connection is rejected while a
//! child restarts.
//!
//! # Invariant
//!
//! No ZeroMQ peer can end the daemon; a child that ended is counted, logged and restarted.

mod publish;
mod pull;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal};

use crate::api::monitor::{ZmqKind, ZmqSocketStatus};
use crate::base::advice::TOO_FEW_FILES;
use crate::base::backoff::Backoff;
use crate::base::limits::{
    ZMQ_CHILD_BYTES_MAX, ZMQ_RESTART_PAUSE, ZMQ_RESTART_PAUSE_MAX, ZMQ_STABLE, ZMQ_STOP_TIMEOUT,
};
use crate::base::metrics::Metrics;
use crate::base::threads;
use crate::config::{Config, IpcPath, Mode};
use crate::wire::unix_listener::{Listener, ListenerSpec};

/// Runs the child process, which serves the socket on standard input until it is told to stop.
/// `daemon` is the local socket of the process `of`, which started it.
pub(crate) fn serve(daemon: Option<&Path>, kind: ZmqKind, of: u32) -> anyhow::Result<()> {
    let operation = match kind {
        ZmqKind::Pull => "serve the ZeroMQ socket of zeromq.pull",
        ZmqKind::Pub => "serve the ZeroMQ socket of zeromq.pub",
    };
    let daemon = daemon
        .context("find the daemon: --socket is missing")
        .context(operation)?;

    // Without its daemon it can store nothing, and the next daemon binds the socket's path again.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(operation)?;
    // The daemon may have ended before. Nothing would end this process then, and the next daemon
    // would find its socket in use.
    let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent.is_none_or(|parent| u32::try_from(parent.get()) != Ok(of)) {
        return Err(anyhow::anyhow!("the daemon, process {of}, has ended").context(operation));
    }

    limit_resources();
    let socket = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .with_context(|| format!("use the inherited socket, {TOO_FEW_FILES}"))
        .context(operation)?;

    let listener = std::os::unix::net::UnixListener::from(socket);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .with_context(|| format!("start a runtime, {TOO_FEW_FILES}"))
        .context(operation)?;

    match kind {
        ZmqKind::Pull => runtime.block_on(pull::run(listener, daemon)),
        ZmqKind::Pub => {
            runtime.block_on(publish::run(listener, daemon))?;
            publish::flush(&runtime);
            Ok(())
        }
    }
    .context(operation)
}

/// Bounds the memory, and makes this process the first to end if the host or the unit has none
/// left.
fn limit_resources() {
    let limit = |resource, limit| {
        let limited = rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(limit),
                maximum: Some(limit),
            },
        );
        if let Err(error) = limited {
            tracing::warn!(?resource, %error, "cannot limit the resources of the ZeroMQ process, running it without this limit");
        }
    };

    limit(Resource::Data, ZMQ_CHILD_BYTES_MAX);
    limit(Resource::Core, 0);

    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "1000") {
        tracing::warn!(%error, "cannot set the OOM score of the ZeroMQ process, the kernel may kill the daemon first");
    }
}

/// The configured sockets.
pub(super) struct ZmqSockets(Vec<ZmqSocket>);

/// One socket and its process.
struct ZmqSocket {
    status: ZmqSocketStatus,
    /// Lock order: no other lock is taken under it.
    process: Arc<Mutex<Option<OwnedFd>>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
    _listener: Listener,
}

impl ZmqSockets {
    /// Binds the configured sockets and starts their processes. Requires a tokio runtime.
    pub(super) fn start(config: &Config, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let asked = &config.zeromq;
        let Mode(mode) = asked.mode.unwrap_or(config.socket_mode);
        let group = asked.group.as_ref();
        // An error about the group must name the key that the operator set.
        let group_key = if group.is_some() {
            "zeromq.group"
        } else {
            "socket_group"
        };

        let group = group.or(config.socket_group.as_ref()).map(String::as_str);
        let sockets = [
            (ZmqKind::Pull, &asked.pull, "zeromq.pull"),
            (ZmqKind::Pub, &asked.publish, "zeromq.pub"),
        ];

        let mut started = Vec::new();
        for (kind, path, key) in sockets {
            let Some(IpcPath(path)) = path else { continue };

            let listener = Listener::open(&ListenerSpec {
                path,
                mode,
                group,
                key,
                group_key,
            })
            .with_context(|| format!("open the ZeroMQ socket `{key}`"))?;

            started.push(ZmqSocket::start(
                kind,
                path,
                listener,
                &config.socket,
                metrics.clone(),
            )?);
            tracing::info!(socket = %path.display(), kind = kind.name(), "serving ZeroMQ");
        }

        Ok(Self(started))
    }

    /// The state of each socket.
    pub(super) fn statuses(&self) -> Vec<ZmqSocketStatus> {
        self.0.iter().map(|socket| socket.status.clone()).collect()
    }

    /// Stops the processes: the PULL stores all data that was written to it, the PUB publishes all
    /// events stored so far.
    pub(super) fn stop(self) {
        self.0.into_iter().for_each(ZmqSocket::stop);
    }
}

impl ZmqSocket {
    fn start(
        kind: ZmqKind,
        path: &Path,
        listener: Listener,
        daemon: &Path,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let status = ZmqSocketStatus::new(kind, path);

        let process = Arc::default();
        let (stop, stopped) = bounded(1);

        let child = ChildProcess {
            kind,
            // A duplicate, because the daemon keeps the socket open while a child restarts.
            socket: listener.as_fd().try_clone_to_owned().with_context(|| {
                format!(
                    "duplicate the socket of zeromq.{}, {TOO_FEW_FILES}",
                    kind.name()
                )
            })?,
            daemon: daemon.to_owned(),
            status: status.clone(),
            process: Arc::clone(&process),
            stopped,
            metrics,
        };

        let thread = threads::spawn(&format!("sc-zmq-{}", kind.name()), move || {
            child.supervise();
        })
        .with_context(|| format!("supervise the process of zeromq.{}", kind.name()))?;

        Ok(Self {
            status,
            process,
            stop,
            thread,
            _listener: listener,
        })
    }

    fn stop(self) {
        // Before the signal: a supervisor that starts a process in between looks here afterwards.
        // It may have ended already.
        let _ = self.stop.try_send(());
        signal(&self.process, Signal::TERM);

        let until = Instant::now() + ZMQ_STOP_TIMEOUT;
        if let Some(thread) = threads::join_until(self.thread, until) {
            tracing::warn!(
                kind = self.status.kind.name(),
                "ZeroMQ process does not stop, killing it: what it has not passed on is lost"
            );
            signal(&self.process, Signal::KILL);
            threads::join(thread);
        }
    }
}

fn signal(process: &Mutex<Option<OwnedFd>>, signal: Signal) {
    if let Some(process) = &*process.lock()
        && let Err(error) = pidfd_send_signal(process, signal)
    {
        tracing::debug!(%error, ?signal, "the ZeroMQ process has ended");
    }
}

/// Parameters for starting the process of one socket.
struct ChildProcess {
    kind: ZmqKind,
    socket: OwnedFd,
    daemon: PathBuf,
    status: ZmqSocketStatus,
    /// The running process, for signals. Lock order: no other lock is taken under it.
    process: Arc<Mutex<Option<OwnedFd>>>,
    stopped: Receiver<()>,
    metrics: Arc<Metrics>,
}

impl ChildProcess {
    /// Runs the process until the daemon stops.
    fn supervise(&self) {
        let mut backoff = Backoff::new(ZMQ_RESTART_PAUSE, ZMQ_RESTART_PAUSE_MAX);
        loop {
            let started = Instant::now();
            let ended = self.run_once();
            let socket = self.kind.name();

            // A process that ran for long is no sign of a lasting problem.
            if started.elapsed() > ZMQ_STABLE {
                backoff.reset();
            }
            let pause = backoff.next();

            match ended {
                Ok(status) if self.stopped.try_recv().is_ok() => {
                    if !status.success() {
                        tracing::warn!(socket, %status, "ZeroMQ process failed while stopping, what it has not passed on is lost: see its messages above, or `dmesg` if it was killed");
                    }
                    return;
                }
                Ok(status) => {
                    tracing::warn!(socket, %status, ?pause, "ZeroMQ process ended, restarting it: see its messages above, or `dmesg` if it was killed");
                }
                Err(error) => {
                    tracing::error!(socket, %error, ?pause, "cannot start the ZeroMQ process, retrying: restart the daemon if its executable was replaced, otherwise raise TasksMax and LimitNOFILE of the unit");
                }
            }

            self.metrics.zmq_restarts.add(1);
            self.status.count_restart();

            if self.stopped.recv_timeout(pause).is_ok() {
                return;
            }
        }
    }

    fn run_once(&self) -> std::io::Result<ExitStatus> {
        let child = Command::new(std::env::current_exe()?)
            .arg("--socket")
            .arg(&self.daemon)
            .args(["zeromq", self.kind.name()])
            // With this the child notices that its daemon has ended before it could ask to be told.
            .arg(std::process::id().to_string())
            .current_dir("/")
            // The allocator reserves a gibibyte: without this setting, all of it counts as used.
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .stdin(Stdio::from(self.socket.try_clone()?))
            .stdout(Stdio::null())
            .spawn()?;

        let ended = wait_watched(child, |child| self.watch(child));
        *self.process.lock() = None;
        self.status.set_pid(None);
        ended
    }

    /// Makes a process known to the code that stops it.
    fn watch(&self, child: &Child) -> std::io::Result<()> {
        // The kernel does not reuse the number before `wait`, so the descriptor refers to this
        // child.
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        *self.process.lock() = Some(process);
        self.status.set_pid(Some(child.id()));

        // A stop that came before the process could be signalled.
        if !self.stopped.is_empty()
            && let Some(process) = &*self.process.lock()
        {
            pidfd_send_signal(process, Signal::TERM)?;
        }
        Ok(())
    }
}

/// Waits until a process ends, after `watch` has made it known. If that fails, the process is ended:
/// nobody could stop it, and the next one would run at the same time.
fn wait_watched(
    mut child: Child,
    watch: impl FnOnce(&Child) -> std::io::Result<()>,
) -> std::io::Result<ExitStatus> {
    let watched = watch(&child);
    if watched.is_err() {
        // Fails only if it has been waited for.
        child.kill()?;
    }

    let status = child.wait()?;
    watched.map(|()| status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_cannot_be_watched_is_ended_and_waited_for() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(proc.exists());
        let failed = |_: &Child| Err(std::io::ErrorKind::Other.into());
        assert!(wait_watched(child, failed).is_err());
        assert!(!proc.exists(), "neither running nor a zombie");

        let child = Command::new("true").spawn().unwrap();
        assert!(wait_watched(child, |_| Ok(())).unwrap().success());
    }
}
