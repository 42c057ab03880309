//! The ZeroMQ sockets, on their own runtime, so that their traffic does not affect the local socket.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::threads;
use crate::api::zeromq::publish::Publish;
use crate::api::zeromq::pull::Pull;
use crate::base::clock::Clock;
use crate::base::limits::PEER_TIMEOUT;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::config::{Config, IpcPath, Mode};
use crate::ingest::policy::Policy;
use crate::store::{Intake, Store};
use crate::wire::unix_listener::{ListenerSpec, SocketStats};

/// The configured sockets.
pub(super) struct ZmqSockets {
    watches: Vec<SocketStats>,
    runtime: Runtime,
    stop_pull: watch::Sender<bool>,
    pull: Option<tokio::task::JoinHandle<()>>,
    publisher: Option<Publisher>,
}

struct Publisher {
    drain: Drain,
    follower: JoinHandle<()>,
    stop: watch::Sender<bool>,
    source: tokio::task::JoinHandle<()>,
}

/// The PUB, after the PULL has stopped.
pub(super) struct Publishing {
    runtime: Runtime,
    publisher: Option<Publisher>,
}

impl ZmqSockets {
    /// Opens the configured sockets; `None` and no runtime if there are none.
    pub(super) fn open(
        config: &Config,
        policy: &Arc<Policy>,
        store: &Store,
        intake: &Intake,
        clock: &Clock,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Self>> {
        let asked = &config.zeromq;
        if asked.pull.is_none() && asked.publish.is_none() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_name("sc-zmq")
            .enable_all()
            .build()
            .context("start the runtime of the ZeroMQ sockets")?;
        let inside = runtime.enter();
        let Mode(mode) = asked.mode.unwrap_or(config.socket_mode);
        let group = asked.group.as_ref();
        let group_key = if group.is_some() { "zeromq.group" } else { "socket_group" };
        let group = group.or(config.socket_group.as_ref()).map(String::as_str);
        let spec = |path, key| ListenerSpec { path, mode, group, key, group_key };
        let mut watches = Vec::new();
        let (stop_pull, pull_stops) = watch::channel(false);
        let mut pull = None;
        if let Some(IpcPath(path)) = &asked.pull {
            let ends = (intake.clone(), store.clone());
            let source =
                Pull::open(&spec(path, "zeromq.pull"), policy.clone(), ends, clock.clone(), metrics.clone())
                    .context("open the ZeroMQ PULL")?;
            watches.push(source.watch());
            pull = Some(runtime.spawn(source.serve(pull_stops)));
            tracing::info!(pull = %path.display(), "accepting events over ZeroMQ");
        }
        let mut publisher = None;
        if let Some(IpcPath(path)) = &asked.publish {
            let drain = Drain::new();
            let spec = spec(path, "zeromq.pub");
            let (source, follower) = Publish::open(&spec, store.clone(), metrics.clone(), drain.clone())
                .context("open the ZeroMQ PUB")?;
            watches.push(source.watch());
            let (stop, stops) = watch::channel(false);
            let follower = threads::spawn("sc-zmq-pub", || follower.run()).context("start the publisher")?;
            publisher = Some(Publisher { drain, follower, stop, source: runtime.spawn(source.serve(stops)) });
            tracing::info!(publish = %path.display(), "publishing events over ZeroMQ");
        }
        drop(inside);
        Ok(Some(Self { watches, runtime, stop_pull, pull, publisher }))
    }

    /// The counters of the sockets.
    pub(super) fn watches(&self) -> Vec<SocketStats> {
        self.watches.clone()
    }

    /// Closes the PULL after reading everything that was written to it.
    pub(super) fn stop_pull(self) -> Publishing {
        let Self { runtime, stop_pull, pull, publisher, .. } = self;
        let _ = stop_pull.send(true);
        if let Some(pull) = pull {
            let _ = runtime.block_on(pull);
        }
        Publishing { runtime, publisher }
    }
}

impl Publishing {
    /// Closes the PUB after publishing all durable events.
    pub(super) fn stop(self) {
        let Self { runtime, publisher } = self;
        if let Some(Publisher { drain, follower, stop, source }) = publisher {
            drain.stop();
            threads::join(follower);
            let _ = stop.send(true);
            let _ = runtime.block_on(source);
        }
        runtime.shutdown_timeout(PEER_TIMEOUT);
    }
}
