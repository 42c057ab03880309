//! The ZeroMQ doors: a runtime of their own, so that a flood there takes nothing from the local socket.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::threads;
use crate::clock::Clock;
use crate::config::Config;
use crate::door::{Place, Watch};
use crate::ingest::gate::Gate;
use crate::limits::PEER_PATIENCE;
use crate::metrics::Metrics;
use crate::shutdown::Drain;
use crate::store::{Intake, Store};
use crate::zeromq::publish::Publish;
use crate::zeromq::pull::Pull;

/// The doors that the configuration asks for.
pub(super) struct Doors {
    watches: Vec<Watch>,
    runtime: Runtime,
    stop_pull: watch::Sender<bool>,
    pull: Option<tokio::task::JoinHandle<()>>,
    publisher: Option<Publisher>,
}

struct Publisher {
    drain: Drain,
    follower: JoinHandle<()>,
    stop: watch::Sender<bool>,
    door: tokio::task::JoinHandle<()>,
}

/// What is left once nothing is taken any more.
pub(super) struct Publishing {
    runtime: Runtime,
    publisher: Option<Publisher>,
}

impl Doors {
    /// Opens what is configured; `None` if nothing is, and then nothing runs.
    pub(super) fn open(
        config: &Config,
        gate: &Arc<Gate>,
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
            .context("start the runtime of the ZeroMQ doors")?;
        let inside = runtime.enter();
        let (mode, group) = (asked.mode.unwrap_or(config.socket_mode), asked.group.as_ref());
        let group_key = if group.is_some() { "zeromq.group" } else { "socket_group" };
        let group = group.or(config.socket_group.as_ref()).map(String::as_str);
        let place = |path, key| Place { path, mode, group, key, group_key };
        let mut watches = Vec::new();
        let (stop_pull, pull_stops) = watch::channel(false);
        let mut pull = None;
        if let Some(path) = &asked.pull {
            let ends = (intake.clone(), store.clone());
            let door =
                Pull::open(&place(path, "zeromq.pull"), gate.clone(), ends, clock.clone(), metrics.clone())
                    .context("open the ZeroMQ PULL")?;
            watches.push(door.watch());
            pull = Some(runtime.spawn(door.serve(pull_stops)));
            tracing::info!(pull = %path.display(), "taking events over ZeroMQ");
        }
        let mut publisher = None;
        if let Some(path) = &asked.publish {
            let drain = Drain::new();
            let place = place(path, "zeromq.pub");
            let (door, follower) = Publish::open(&place, store.clone(), metrics.clone(), drain.clone())
                .context("open the ZeroMQ PUB")?;
            watches.push(door.watch());
            let (stop, stops) = watch::channel(false);
            let follower = threads::spawn("sc-zmq-pub", || follower.run()).context("start the publisher")?;
            publisher = Some(Publisher { drain, follower, stop, door: runtime.spawn(door.serve(stops)) });
            tracing::info!(publish = %path.display(), "publishing events over ZeroMQ");
        }
        drop(inside);
        Ok(Some(Self { watches, runtime, stop_pull, pull, publisher }))
    }

    /// Views of how they stand.
    pub(super) fn watches(&self) -> Vec<Watch> {
        self.watches.clone()
    }

    /// Closes the PULL, with all that was written to it handed over.
    pub(super) fn stop_taking(self) -> Publishing {
        let Self { runtime, stop_pull, pull, publisher, .. } = self;
        let _ = stop_pull.send(true);
        if let Some(pull) = pull {
            let _ = runtime.block_on(pull);
        }
        Publishing { runtime, publisher }
    }
}

impl Publishing {
    /// Closes the PUB, with all that is durable published.
    pub(super) fn stop(self) {
        let Self { runtime, publisher } = self;
        if let Some(Publisher { drain, follower, stop, door }) = publisher {
            drain.stop();
            threads::join(follower);
            let _ = stop.send(true);
            let _ = runtime.block_on(door);
        }
        runtime.shutdown_timeout(PEER_PATIENCE);
    }
}
