//! The daemon: builds everything out of a configuration, runs it, and stops it in order.
//!
//! ```text
//! start: store -> appender, committer, sealer, retainer -> buses -> ZeroMQ -> reactor -> socket, HTTPS -> ready
//! stop:  socket and HTTPS (calls under way finish) -> buses (backlog handed over) -> reactor -> ZeroMQ PULL (what was sent is handed
//!        over) -> appender (all answered, synced) -> committer -> sealer -> retainer -> ZeroMQ PUB (all published)
//!        -> lock released
//! ```
//!
//! # Invariant
//!
//! Whatever was taken before the stop is stored and answered before the process ends.

mod permissions;
mod reactor;
mod signatures;
mod threads;
mod watchdog;
mod zeromq;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::api::call::{Ctx, JidMaker, Rights, Watches};
use crate::api::https;
use crate::api::socket::serve;
use crate::clock::{Clock, Micros};
use crate::config::Config;
use crate::door::{Door, Place};
use crate::ingest::bus::Bus;
use crate::ingest::fire::Firer;
use crate::ingest::gate::Gate;
use crate::ingest::master_keys::MasterKeys;
use crate::ingest::spill::{Fittings, hand_over_leftovers};
use crate::limits::{BUS_GATHER, BUS_GATHER_TO_REACT, DRAIN_PATIENCE, JOBS_READ_AT_ONCE};
use crate::metrics::Metrics;
use crate::model::{JidKey, Kind};
use crate::shutdown::Drain;
use crate::store::medium::{self, Disk};
use crate::store::row::rank;
use crate::store::{Classes, FreeSpace, Limits, Options, Store};

/// A running daemon.
pub struct Daemon {
    store: Store,
    drain: Drain,
    /// Ends the waits of callers.
    waiting: Drain,
    stop: watch::Sender<bool>,
    runtime: tokio::runtime::Runtime,
    socket: tokio::task::JoinHandle<()>,
    /// The door for minions has threads of its own: what comes over a network does not keep the master waiting.
    https: Option<(tokio::runtime::Runtime, tokio::task::JoinHandle<()>)>,
    buses: Vec<JoinHandle<()>>,
    zeromq: Option<zeromq::Doors>,
    reactor: Option<reactor::Running>,
    store_threads: Vec<JoinHandle<()>>,
    signals: Signals,
}

/// The signals that mean something, from before anybody is let in: a SIGHUP that nobody listens for ends a process.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    /// In the runtime that has been entered.
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            int: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            hup: signal(SignalKind::hangup()).context("listen for SIGHUP")?,
        })
    }
}

impl Daemon {
    /// Opens the store and every door.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let clock = Clock::real();
        let metrics = Arc::new(Metrics::default());
        let started = clock.now();
        let holder = format!("pid {} with socket {}", std::process::id(), config.socket.display());
        let medium = medium::of_a_daemon().map_err(anyhow::Error::msg)?;
        let options =
            Options { metrics: metrics.clone(), medium, ..store_options(config, holder, clock.clone()) };
        let opened = Store::open(&options).context("open the store")?;
        permissions::restrict(&config.state_dir, config.umask()).context("restrict the state directory")?;
        let (store, intake) = (opened.store, opened.intake);
        let (appender, committer) = (opened.appender, opened.committer);
        let (sealer, retainer) = (opened.sealer, opened.retainer);
        let opened_in = Duration::from_micros(u64::try_from(clock.now().0 - started.0).unwrap_or(0));
        tracing::info!(
            state_dir = %config.state_dir.display(), next_seq = store.durable().0, ?opened_in, "the store is open"
        );
        let runtime = runtime("sc-api", 16)?;
        let door = {
            let _inside = runtime.enter();
            let place = Place {
                path: &config.socket,
                mode: config.socket_mode,
                group: config.socket_group.as_deref(),
                key: "--socket",
                group_key: "socket_group",
            };
            Door::open(&place).context("open the local socket")?
        };
        let store_threads = vec![
            threads::spawn_vital("sc-append", move || appender.run()).context("start the appender")?,
            threads::spawn_vital("sc-commit", move || committer.run()).context("start the committer")?,
            threads::spawn_vital("sc-seal", move || sealer.run()).context("start the sealer")?,
            threads::spawn_vital("sc-retain", move || retainer.run()).context("start the retainer")?,
        ];
        let reacts_for = config.reactor.of_whom().map(|(role, path, _)| (role, path));
        let master_keys = Arc::new(MasterKeys::new(&config.ingest.masters, reacts_for));
        let gate = Arc::new(Gate::new(
            &config.ingest.filter,
            &config.ingest.redact,
            master_keys.clone(),
            config.store.entry_bytes_max,
            clock.clone(),
            metrics.clone(),
        ));
        let drain = Drain::new();
        let mut watches = Vec::new();
        let mut buses = Vec::new();
        let fittings = Fittings {
            intake: intake.clone(),
            gate: gate.clone(),
            spills: config.state_dir.join("spill"),
            spill_bytes_max: config.ingest.spill_bytes_max,
            medium: options.medium.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
            gather: if config.reactor.of_whom().is_some() { BUS_GATHER_TO_REACT } else { BUS_GATHER },
        };
        let (keys, stops) = (master_keys.clone(), drain.clone());
        let follow_keys = move || keys.follow(&stops);
        let keys_thread = threads::spawn("sc-keys", follow_keys).context("follow the masters' keys")?;
        for (n, sock_dir) in config.bus.iter().enumerate() {
            let bus = Bus::new(n, sock_dir, fittings.clone());
            watches.push(bus.watch());
            buses
                .push(threads::spawn(&format!("sc-bus-{n}"), move || bus.run()).context("start a bus door")?);
        }
        let configured = config.bus.clone();
        let leftovers = move || hand_over_leftovers(&fittings.spills, &configured, &fittings);
        buses.push(threads::spawn("sc-leftovers", leftovers).context("hand over what is left in spills")?);
        buses.push(keys_thread);
        let zeromq = zeromq::Doors::open(config, &gate, &store, &intake, &clock, &metrics)?;
        let firer = Arc::new(Firer::new(watches.clone(), clock.clone()));
        let reactor =
            reactor::Running::start(config, &store, &intake, &firer, &master_keys, &clock, &metrics)?;
        let jids = JidMaker::after(newest_jid(&store, started).context("find the newest job")?);
        let waiting = Drain::new();
        let ctx = Arc::new(Ctx {
            store: store.clone(),
            clock: clock.clone(),
            metrics,
            jids,
            rights: Rights::new(rustix::process::geteuid().as_raw(), config.socket_peers, watches.clone()),
            gate,
            entry_bytes_max: config.store.entry_bytes_max,
            firer,
            reactor: reactor.as_ref().map(reactor::Running::handle),
            buses: watches,
            spools: config.spools.clone(),
            https: config.https.listen.map(|_| https::Watch::default()),
            zeromq: zeromq.as_ref().map(zeromq::Doors::watches).unwrap_or_default(),
            watches: Watches::until(waiting.clone()),
            started,
            state_dir: config.state_dir.clone(),
            socket: config.socket.clone(),
        });
        let (stop, stopping) = watch::channel(false);
        let https = match ctx.https.clone() {
            None => None,
            Some(watch) => {
                let runtime = self::runtime("sc-https", 4)?;
                let (config, ctx, intake) = (config.https.clone(), ctx.clone(), intake.clone());
                let served = runtime.spawn(https::serve(config, ctx, intake, watch, stopping.clone()));
                Some((runtime, served))
            }
        };
        let signals = {
            let _in = runtime.enter();
            Signals::listen()?
        };
        let socket = runtime.spawn(serve(door, ctx, intake, stopping));
        tracing::info!(socket = %config.socket.display(), "listening");
        Ok(Self {
            store,
            drain,
            waiting,
            stop,
            runtime,
            socket,
            https,
            buses,
            zeromq,
            reactor,
            store_threads,
            signals,
        })
    }

    /// Waits for SIGTERM or SIGINT, telling systemd's watchdog that all is well.
    pub fn wait_for_signal(&mut self) {
        let Self { runtime, store, reactor, signals, .. } = self;
        let seen_s_ago = || store.appender_seen_ago().as_secs();
        runtime.block_on(async {
            let reload = async {
                while signals.hup.recv().await.is_some() {
                    if let Some(reactor) = &*reactor {
                        reactor.reload();
                    }
                }
                std::future::pending::<()>().await;
            };
            let name = tokio::select! {
                _ = signals.term.recv() => "SIGTERM",
                _ = signals.int.recv() => "SIGINT",
                () = watchdog::feed(seen_s_ago) => "the watchdog ended",
                () = reload => "SIGHUP",
            };
            tracing::info!(signal = name, "stopping: what has arrived is stored first");
        });
    }

    /// Stops everything in order.
    pub fn stop(self) {
        watchdog::stopping();
        // Should a disk hang, the process still ends; what was acknowledged is on it.
        let given_up = threads::spawn("sc-giveup", || {
            std::thread::sleep(DRAIN_PATIENCE);
            tracing::error!("stopping took too long; ending without the rest");
            std::process::exit(75);
        });
        if let Err(error) = given_up {
            tracing::warn!(%error, "no bound on the time that stopping takes");
        }
        self.waiting.stop();
        let _ = self.stop.send(true);
        let _ = self.runtime.block_on(self.socket);
        if let Some((runtime, served)) = self.https {
            let _ = runtime.block_on(served);
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        self.drain.stop();
        self.buses.into_iter().for_each(threads::join);
        // Behind the buses: what they said last is in the log, and is reacted to after the next start if not now.
        if let Some(reactor) = self.reactor {
            reactor.stop();
        }
        let zeromq = self.zeromq.map(zeromq::Doors::stop_taking);
        // The last senders of `intake` went with the doors; calls that wait in the runtime hold the rest.
        self.runtime.shutdown_timeout(Duration::from_secs(5));
        self.store_threads.into_iter().for_each(threads::join);
        if let Some(publisher) = zeromq {
            publisher.stop();
        }
        tracing::info!("stopped");
    }
}

/// Two named threads for tasks, and some for what blocks.
fn runtime(name: &str, blocking: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(blocking).thread_name(name).enable_all();
    builder.build().context("start a runtime")
}

/// What the store of a configuration is opened with.
pub fn store_options(config: &Config, holder: String, clock: Clock) -> Options {
    let store = &config.store;
    Options {
        dir: config.state_dir.clone(),
        holder,
        clock,
        metrics: Arc::default(),
        limits: Limits {
            durability: store.durability,
            segment_bytes_max: store.segment_bytes_max,
            ..Limits::DEFAULT
        },
        classes: Classes::new(&store.classes),
        free: FreeSpace { low: store.free_bytes_low.bytes(), min: store.free_bytes_min.bytes() },
        medium: Arc::new(Disk),
    }
}

/// The time of the newest jid up to an hour ahead: the clock may have been set back since it was given out. Ahead of the clock a job counts
/// only if the master stored its load; all others a minion can make up.
fn newest_jid(store: &Store, now: Micros) -> anyhow::Result<Micros> {
    const HOUR: i64 = 3_600_000_000;
    let mut bound = JidKey::from_time(Micros(now.0.saturating_add(HOUR)), None);
    loop {
        let jobs = store.jobs_before(Some(bound), JOBS_READ_AT_ONCE)?;
        for (key, row) in &jobs {
            let Some(at) = key.time() else { continue };
            if at <= now || row.rank >= rank(Kind::Load) {
                return Ok(at);
            }
        }
        match jobs.last() {
            Some((last, _)) => bound = *last,
            None => return Ok(Micros::default()),
        }
    }
}

/// Runs the daemon until it is asked to stop.
pub fn run(config: &Config) -> anyhow::Result<()> {
    raise_file_limit();
    take_small_pages();
    let mut daemon = Daemon::start(config)?;
    watchdog::ready(config);
    daemon.wait_for_signal();
    daemon.stop();
    Ok(())
}

/// Tables and buffers come and go here, and a huge page stays resident as long as any byte of it is used: that cost 55 MB
/// and gained nothing (docs/DECISIONS.md).
pub(crate) fn take_small_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "transparent huge pages stay on");
    }
}

/// Each peer takes a file descriptor; the soft limit of 1,024 is for programs that use select(2).
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}
