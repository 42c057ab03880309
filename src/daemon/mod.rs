//! The daemon: builds all parts from a configuration, runs them, and stops them in order.
//!
//! ```text
//! start: store -> local socket bound -> appender, committer, sealer, retainer -> buses -> reactor
//!        -> sinks -> ZeroMQ -> scripts -> HTTP -> local socket served -> ready
//! stop:  ZeroMQ (PULL: messages received; PUB: events published) -> socket, HTTP (calls finish)
//!        -> scripts -> sinks -> buses (memory stored or spilled) -> reactor -> appender (all
//!        acknowledged, synced) -> committer -> sealer -> retainer -> lock released
//! ```
//!
//! The command line is a client of it, and only starts it.
//!
//! # Invariant
//!
//! Every accepted entry is stored and acknowledged before the process ends.

mod engines;
mod history;
#[cfg(test)]
pub(crate) mod in_process;
mod logs;
mod permissions;
mod reload;
#[cfg(test)]
mod tests;
mod watchdog;
pub(crate) mod zeromq;

pub(crate) use self::engines::master_id;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use salt_sls::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use self::history::History;
use crate::api::call::running::RunningConfig;
use crate::api::call::{
    Acceptor, Archive, Ctx, JidMaker, OwnMaster, Process, Reacting, Rights, SharedHistory,
};
use crate::api::http;
use crate::api::monitor::{ListenerMonitor, ZmqSocketStatus};
use crate::api::query::Digest;
use crate::api::sign_in::SignIn;
use crate::api::sign_in::sessions::Sessions;
use crate::api::sign_in::tokens::Tokens;
use crate::api::socket::serve;
use crate::base::advice::TOO_FEW_FILES;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{
    DRAIN_TIMEOUT, ELECTION_RENEWAL, HOOK_CALLS_MAX, HTTP_CALLS_MAX, HTTPS_ASKING_MAX,
    JOBS_READ_AT_ONCE, LOCK_TIMEOUT, METRICS_CALLS_MAX, SOCKET_CALLS_MAX,
};
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::base::{threads, umask};
use crate::bus::fire::Firer;
use crate::bus::firing::Firing;
use crate::config::Config;
use crate::config::salt_master::{SALT_MASTER_FILE, SaltMaster};
use crate::engines::runtime::Engines;
use crate::engines::script::{self, Scripts};
use crate::engines::settings::of_config;
use crate::ingest::bus::{Bus, BusMonitor};
use crate::ingest::gather::Readers;
use crate::ingest::spill::{BusDependencies, drain_orphaned_spills};
use crate::model::{JidKey, Kind};
use crate::policy::Policy;
use crate::policy::master_keys::MasterKeys;
use crate::reactor::service::ReactorService;
use crate::store::index::job_summary::rank;
use crate::store::vfs::{self, Disk};
use crate::store::{Classes, FreeSpace, Intake, Limits, Opened, Options, Store, StoreError};
use crate::wire::unix_listener::{Listener, ListenerSpec};

struct Daemon {
    store: Store,
    drain: Drain,
    firer: Arc<Firer>,
    stop: watch::Sender<bool>,
    runtime: tokio::runtime::Runtime,
    socket: tokio::task::JoinHandle<()>,
    /// HTTP has separate threads, because network traffic must not delay the master.
    http: Option<(tokio::runtime::Runtime, tokio::task::JoinHandle<()>)>,
    buses: Vec<JoinHandle<()>>,
    zeromq: zeromq::ZmqSockets,
    reactor: Option<ReactorService>,
    /// Its stop signal, and its thread with `reactor.election`.
    election: (Drain, Option<JoinHandle<()>>),
    engines: Arc<Engines>,
    scripts: Arc<Scripts>,
    store_threads: Vec<JoinHandle<()>>,
    signals: UnixSignals,
    /// The configuration in effect, which `status` and `doctor` ask for.
    running: Arc<RunningConfig>,
}

/// What is made of a configuration before calls can be answered.
struct Made<'a> {
    store: Store,
    clock: Clock,
    metrics: Arc<Metrics>,
    started: Micros,
    policy: Arc<Policy>,
    firer: Arc<Firer>,
    buses: Vec<BusMonitor>,
    reactor: Option<&'a ReactorService>,
    engines: Arc<Engines>,
    zeromq: Vec<ZmqSocketStatus>,
    shared: Option<SharedHistory>,
}

impl Made<'_> {
    /// The parts that calls reach.
    fn into_ctx(self, config: &Config) -> anyhow::Result<Ctx> {
        let archive = Archive {
            store: self.store,
            state_dir: config.state_dir.as_path().into(),
            clock: self.clock,
            metrics: self.metrics,
            master: OwnMaster::new(&engines::master_id(config)),
            shared: self.shared,
            digest: Digest::default(),
        };

        // New job ids continue after the newest stored one even if the clock was set back.
        let newest = newest_jid(&archive.store, self.started).context("find the newest job")?;

        let monitor = |listen: Option<SocketAddr>| listen.map(|_| ListenerMonitor::default());
        let http = monitor(config.http.listen);
        // Minions may share the HTTP listener instead of having one of their own.
        let shared = http.clone().filter(|_| config.http.minions);

        let tokens = Tokens::open(archive.store.settings().clone());

        Ok(Ctx {
            acceptor: Acceptor {
                archive: archive.clone(),
                policy: self.policy,
                jids: JidMaker::after(newest, config.cluster.slot),
                entry_bytes_max: config.store.entry_bytes_max,
            },
            firing: Firing {
                firer: self.firer,
                store: archive.store.clone(),
                clock: archive.clock.clone(),
                metrics: archive.metrics.clone(),
            },
            reacting: Reacting {
                handle: self.reactor.map(ReactorService::handle),
                buses: self.buses.clone(),
                archive: archive.clone(),
            },
            engines: self.engines,
            rights: Rights::new(
                rustix::process::geteuid().as_raw(),
                config.socket_peers,
                self.buses,
                archive.metrics.clone(),
            ),
            sign_in: SignIn {
                tokens: Arc::new(tokens),
                sessions: Sessions::new(config.http.tls.is_some()),
                page: http.clone(),
                clock: archive.clock.clone(),
                store: archive.store.clone(),
            },
            process: Process {
                started: self.started,
                socket: config.socket.clone(),
                slot: config.cluster.slot,
                config: Arc::new(RunningConfig::new(
                    config,
                    self.reactor.map(ReactorService::reloader),
                )),
                spools: config.spools.clone(),
                unread_bus: unread_bus(config),
                https: monitor(config.https.listen).or(shared),
                http,
                scripts: Arc::default(),
                zeromq: self.zeromq,
            },
            archive,
        })
    }
}

/// Signal handlers. An unhandled signal ends the process.
struct UnixSignals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl UnixSignals {
    /// Must run inside a tokio runtime. SIGTERM and SIGINT end a start that is not complete, so they
    /// are handled from here on only.
    fn listen(hup: Signal) -> anyhow::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            int: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            hup,
        })
    }
}

impl Daemon {
    /// Opens the store and all sources.
    fn start(config: &Config) -> anyhow::Result<Self> {
        // Before anything is opened, because an error here ends the start.
        let sinks = of_config(config).context("read the configuration")?;
        let scripts = script::of_config(config).context("read the configuration")?;

        // Before the first thread: this changes environment variables.
        let inherited = watchdog::inherited(&config.socket);

        let runtime = runtime("sc-api", SOCKET_CALLS_MAX)?;

        // First of all, because opening the store can take long: a reload that somebody asks for
        // meanwhile must not end the process. It follows when the start is complete.
        let hup = {
            let _inside = runtime.enter();
            signal(SignalKind::hangup()).context("listen for SIGHUP")?
        };

        let clock = Clock::real();
        let metrics = Arc::new(Metrics::default());
        let started = clock.now();
        let holder = format!(
            "pid {} with socket {}",
            std::process::id(),
            config.socket.display()
        );

        let fs = vfs::faults::from_environment().map_err(anyhow::Error::msg)?;
        let options = Options {
            metrics: metrics.clone(),
            fs,
            ..store_options(config, holder, clock.clone())
        };
        let opened = Store::open(&options).context("open the store")?;

        // The lock of the store is held from here on, so no other daemon uses these files.
        permissions::restrict(&config.state_dir, config.umask())
            .context("restrict the permissions of the state directory")?;

        let (store, intake) = (opened.store, opened.intake);
        let (appender, committer) = (opened.appender, opened.committer);
        let (sealer, retainer) = (opened.sealer, opened.retainer);

        // Zero if the clock was set back meanwhile.
        let opened_in =
            Duration::from_micros(u64::try_from(clock.now().0 - started.0).unwrap_or(0));

        tracing::info!(
            state_dir = %config.state_dir.display(), next_seq = store.durable().0, ?opened_in, "store open"
        );

        // Connections are queued from here on; the socket is served last, when everything behind it
        // runs.
        let source = {
            let _inside = runtime.enter();
            let spec = ListenerSpec {
                path: &config.socket,
                mode: config.socket_mode.0,
                group: config.socket_group.as_deref(),
                key: "--socket",
                group_key: "socket_group",
            };
            let is_inherited = inherited.is_live();
            let mut source =
                Listener::open_or_inherit(&spec, inherited).context("open the local socket")?;

            // A passed socket is already in systemd's keeping.
            if !is_inherited {
                watchdog::store_socket(&mut source);
            }
            source
        };

        // The store depends on all four: a panic in one ends the process, rather than leave a
        // daemon that stores nothing or never frees space.
        let store_threads = vec![
            threads::spawn_critical("sc-append", move || appender.run())
                .context("start the appender")?,
            threads::spawn_critical("sc-commit", move || committer.run())
                .context("start the committer")?,
            threads::spawn_critical("sc-seal", move || sealer.run()).context("start the sealer")?,
            threads::spawn_critical("sc-retain", move || retainer.run())
                .context("start the retainer")?,
        ];

        let (policy, master_keys) = policy(config, &clock, &metrics);

        let drain = Drain::new();
        let mut watches = Vec::new();
        let mut buses = Vec::new();
        let reacts = config.reactor.of_whom().is_some();

        let deps = BusDependencies {
            intake: intake.clone(),
            policy: policy.clone(),
            spills: config.state_dir.join("spill"),
            spill_bytes_max: config.ingest.spill_bytes_max,
            fs: options.fs.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
            readers: Readers {
                reacts,
                store: store.clone(),
            },
        };

        let (keys, stops) = (master_keys.clone(), drain.clone());
        let follow_keys = move || keys.follow(&stops);
        let keys_thread =
            threads::spawn("sc-keys", follow_keys).context("follow the masters' keys")?;

        for (n, sock_dir) in config.bus.iter().enumerate() {
            let bus = Bus::new(n, sock_dir, deps.clone());
            watches.push(bus.watch());
            buses.push(
                threads::spawn(&format!("sc-bus-{n}"), move || bus.run())
                    .context("start a bus source")?,
            );
        }

        // Entries in the spill of a removed bus were accepted, so they are stored even though
        // nothing adds to them.
        let configured = config.bus.clone();
        let orphaned_spills = move || drain_orphaned_spills(&deps.spills, &configured, &deps);
        buses.push(threads::spawn("sc-orphans", orphaned_spills).context("drain orphaned spills")?);
        // It stops with the same drain, and is joined with the buses.
        buses.push(keys_thread);

        let links = watches.iter().map(|watch| watch.link().clone()).collect();
        let firer = Arc::new(Firer::new(links, clock.clone()));

        if let Some(master) = config.own_master()
            && master.id_is_of_function
        {
            tracing::warn!(
                file = %master.conf_file.display(),
                "the master's id is not known, because only Salt can run its `id_function`: events are shown without a master, set `id` as well"
            );
        }

        // Before the reactor, which asks the election whether it may act.
        let history = History::open(
            (config, &engines::master_id(config)),
            &store,
            &clock,
            &metrics,
        )?;
        let election = history.as_ref().and_then(History::election);
        let reactor = ReactorService::start(
            config,
            &store,
            &intake,
            firer.clone(),
            (master_keys, election),
            &clock,
            &metrics,
        )?;

        let engines = engines::start(config, sinks, &store, &options.fs, &clock, history.as_ref());
        if let Some(history) = &history {
            let inbox = history.inbox(&store, intake.clone(), &policy, &drain);
            // It stops with the buses.
            let thread = threads::spawn("sc-inbox", move || inbox.run());
            buses.push(thread.context("start reading the shared history")?);
        }

        // It ends first: another reactor then continues while this daemon stores what it has accepted.
        let elects = Drain::new();
        let election = history.as_ref().map(|history| history.elect(&elects));
        let election = election.transpose()?.flatten();

        let zeromq = {
            let _inside = runtime.enter();
            zeromq::ZmqSockets::start(config, &metrics)?
        };

        let made = Made {
            store: store.clone(),
            clock,
            metrics,
            started,
            policy,
            firer: firer.clone(),
            buses: watches,
            reactor: reactor.as_ref(),
            engines: engines.clone(),
            zeromq: zeromq.statuses(),
            shared: history.as_ref().map(History::shared),
        };
        let ctx = Arc::new(made.into_ctx(config)?);
        let running = ctx.process.config.clone();

        let scripts = engines::start_scripts(config, scripts, &ctx);

        let (stop, stopping) = watch::channel(false);
        let http = start_http(config, &ctx, &intake, &stopping)?;

        // Before `READY=1` is sent: afterwards a stop stores what was accepted first.
        let signals = {
            let _in = runtime.enter();
            UnixSignals::listen(hup)?
        };

        let socket = runtime.spawn(serve(source, ctx, intake, stopping));
        tracing::info!(socket = %config.socket.display(), "listening");

        Ok(Self {
            store,
            drain,
            firer,
            stop,
            runtime,
            socket,
            http,
            buses,
            zeromq,
            reactor,
            election: (elects, election),
            engines,
            scripts,
            store_threads,
            signals,
            running,
        })
    }

    /// Waits for SIGTERM or SIGINT, while feeding systemd's watchdog. SIGHUP rereads the
    /// configuration.
    fn wait_for_signal(&mut self, started_with: &Config) {
        let Self {
            runtime,
            store,
            reactor,
            engines,
            scripts,
            signals,
            running,
            ..
        } = self;

        let seen_s_ago = || store.appender_seen_ago().as_secs();

        runtime.block_on(async {
            let reload = async {
                while signals.hup.recv().await.is_some() {
                    watchdog::reloading();
                    let parts = reload::Parts {
                        started_with: started_with.clone(),
                        running: running.clone(),
                        reactor: reactor.as_ref().map(ReactorService::reloader),
                        engines: engines.clone(),
                        scripts: scripts.clone(),
                    };

                    // Off this thread, which must continue to feed the watchdog.
                    let work = move || reload::reload(&parts);
                    if let Err(error) = tokio::task::spawn_blocking(work).await {
                        tracing::error!(%error, "reload panicked, a part of it may be in effect: restart the daemon and report the backtrace above");
                    }
                    watchdog::ready(started_with);
                }

                // Not reached in practice: without further signals the daemon must keep running.
                std::future::pending::<()>().await;
            };

            let name = tokio::select! {
                _ = signals.term.recv() => "SIGTERM",
                _ = signals.int.recv() => "SIGINT",
                () = watchdog::feed(seen_s_ago) => "the watchdog ended",
                () = reload => "SIGHUP",
                () = engines::watch(engines.clone()) => "the watch of sinks ended",
            };

            tracing::info!(
                signal = name,
                "shutting down, storing accepted entries first"
            );
        });
    }

    /// Stops all parts in order.
    fn stop(self) {
        watchdog::stopping();

        // Ends the process even if a disk hangs; acknowledged entries are durable.
        let timeout = threads::spawn("sc-giveup", || {
            std::thread::sleep(DRAIN_TIMEOUT);
            tracing::error!(
                "shutdown timed out, exiting; acknowledged entries are durable: check the disk for errors"
            );
            std::process::exit(75);
        });
        if let Err(error) = timeout {
            tracing::warn!(%error, "cannot start the shutdown timer, shutdown may take arbitrarily long");
        }

        let (elects, election) = self.election;
        elects.stop();

        // Their processes use the local socket.
        self.zeromq.stop();

        // The listeners accept nothing more, and finish the calls in flight.
        let _ = self.stop.send(true);

        // Calls in flight do not wait for a master that hangs.
        self.firer.stop();
        let _ = self.runtime.block_on(self.socket);
        if let Some((runtime, served)) = self.http {
            let _ = runtime.block_on(served);
            runtime.shutdown_timeout(Duration::from_secs(5));
        }

        self.scripts.stop();
        // NATS may be away: the lease then ends by itself.
        let until = Instant::now() + ELECTION_RENEWAL;
        election.and_then(|thread| threads::join_until(thread, until));

        // They only read: what is not delivered now is delivered by the next start.
        self.engines.stop();

        self.drain.stop();
        self.buses.into_iter().for_each(threads::join);

        // After the buses: their last events are in the log, and the next start reacts to them.
        if let Some(reactor) = self.reactor {
            reactor.stop();
        }

        // The sources have dropped their senders of `intake`; calls waiting in the runtime hold the
        // others.
        self.runtime.shutdown_timeout(Duration::from_secs(5));
        self.store_threads.into_iter().for_each(threads::join);

        // Everything that writes into the state directory has ended.
        if let Err(error) = self.store.note_stop() {
            tracing::warn!(%error, "cannot record the clean stop, the next start cannot detect missing entries: check the disk, and run `saltcellar store verify`");
        }

        tracing::info!("stopped");
    }
}

/// What entries must be, and the keys of masters that none may have.
pub(crate) fn policy(
    config: &Config,
    clock: &Clock,
    metrics: &Arc<Metrics>,
) -> (Arc<Policy>, Arc<MasterKeys>) {
    let reacts_for = config.reactor.of_whom().map(|(role, path, _)| (role, path));
    let master_keys = Arc::new(MasterKeys::new(&config.ingest.masters, reacts_for));

    let policy = Policy::new(
        &config.ingest.filter,
        &config.ingest.redact,
        master_keys.clone(),
        config.store.entry_bytes_max,
        clock.clone(),
        metrics.clone(),
    );
    (Arc::new(policy), master_keys)
}

/// The bus of this host's Salt master, if the daemon neither reads it nor gets its events by
/// `event_return`.
fn unread_bus(config: &Config) -> Option<PathBuf> {
    if !config.bus.is_empty() {
        return None;
    }

    let master = SaltMaster::read(Path::new(SALT_MASTER_FILE));
    // Salt accepts one name or a list.
    let sends = match master.option("event_return") {
        Some(Value::Str(one)) => one == "saltcellar",
        Some(Value::List(all)) => all.iter().any(|one| one.as_str() == Some("saltcellar")),
        _ => false,
    };

    // Without files of a master there is no bus to miss on this host.
    let is_there = !master.files.is_empty();
    (is_there && !sends).then_some(master.sock_dir)
}

/// Opens the HTTP listeners, if any is configured.
fn start_http(
    config: &Config,
    ctx: &Arc<Ctx>,
    intake: &Intake,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Option<(tokio::runtime::Runtime, tokio::task::JoinHandle<()>)>> {
    if !config.http.is_on() && !config.serves_minions() {
        return Ok(None);
    }

    // One blocking thread for every admitted call, because no kind of call may occupy the threads
    // of another.
    let runtime = runtime(
        "sc-http",
        HTTP_CALLS_MAX + METRICS_CALLS_MAX + HOOK_CALLS_MAX + HTTPS_ASKING_MAX,
    )?;

    let open = |path| {
        let _inside = runtime.enter();
        let (mode, group) = (config.socket_mode.0, config.socket_group.as_deref());
        Listener::open(&ListenerSpec {
            path,
            mode,
            group,
            key: "http.unix",
            group_key: "socket_group",
        })
    };

    let unix = config
        .http
        .unix
        .as_deref()
        .map(open)
        .transpose()
        .context("open the unix socket of the HTTP listener")?;

    let served = runtime.spawn(http::serve(
        config.clone(),
        unix,
        ctx.clone(),
        intake.clone(),
        stop.clone(),
    ));

    Ok(Some((runtime, served)))
}

/// A runtime with two named threads for tasks, and `blocking` threads for blocking work.
fn runtime(name: &str, blocking: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .max_blocking_threads(blocking)
        .thread_name(name)
        .enable_all();

    let runtime = builder.build();
    // A thread that cannot be started is a panic of tokio. What fails here is its event queue.
    runtime.with_context(|| format!("start the runtime {name}, {TOO_FEW_FILES}"))
}

/// The thresholds of free space of the state directory.
pub(crate) fn free_space(config: &Config) -> FreeSpace {
    FreeSpace {
        low: config.store.free_bytes_low.bytes(),
        min: config.store.free_bytes_min.bytes(),
    }
}

/// Opens the store for a command, with the store's warnings on standard error.
pub(crate) fn open_for_command(options: &Options) -> Result<Opened, StoreError> {
    logs::start_for_command();
    Store::open(options)
}

/// The options for opening the store of a configuration.
pub fn store_options(config: &Config, holder: String, clock: Clock) -> Options {
    let store = &config.store;
    Options {
        dir: config.state_dir.clone(),
        holder,
        lock_timeout: LOCK_TIMEOUT,
        clock,
        metrics: Arc::default(),
        limits: Limits {
            durability: store.durability,
            segment_bytes_max: store.segment_bytes_max,
            pin_bytes_max: store.pin_bytes_max,
            ..Limits::DEFAULT
        },
        classes: Classes::new(&store.classes).with_share(store.minion_share),
        free: free_space(config),
        fs: Arc::new(Disk),
    }
}

/// The time of the newest jid, at most an hour ahead: the clock may have been set back since that
/// jid was generated. Ahead of the clock only jobs with a load from the master count, because
/// minions can invent other jids.
fn newest_jid(store: &Store, now: Micros) -> anyhow::Result<Micros> {
    const HOUR: i64 = 3_600_000_000;

    // A jid from further ahead comes from a wrong clock and would make all new ids start there.
    let mut bound = JidKey::from_time(Micros(now.0.saturating_add(HOUR)), None);
    loop {
        let jobs = store.jobs_before(Some(bound), JOBS_READ_AT_ONCE)?;
        for (key, row) in &jobs {
            // Free-form jids have no time.
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

/// Runs the daemon until a signal stops it.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    // Before anything creates a file or a socket.
    umask::restrict(config.umask());
    logs::start(&config.log);

    raise_file_limit();
    disable_huge_pages();
    let mut daemon = Daemon::start(config)?;
    watchdog::ready(config);
    daemon.wait_for_signal(config);
    daemon.stop();
    Ok(())
}

/// Disables transparent huge pages. The daemon allocates and frees many tables and buffers, and a
/// huge page stays resident while any byte of it is in use: resident memory fell from 167 to 111 MB
/// with the same CPU time.
pub fn disable_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable transparent huge pages");
    }
}

/// Each peer needs a file descriptor; the soft limit of 1,024 exists for programs that use
/// select(2).
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };

    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files, many connections may be rejected: set LimitNOFILE in the unit");
    }
}
