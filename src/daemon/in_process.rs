//! The daemon of a test, without a process: a store in a directory of its own, the parts that calls
//! reach, and connections that are pairs within this process. It has no sources and no listeners,
//! and no threads except for its store and its sinks.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use rmpv::Value;
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Made, engines, policy, runtime, store_options};
use crate::api::call::{Ctx, SharedHistory};
use crate::api::client::{Client, ClientError};
pub(crate) use crate::api::http::in_process::Answer;
use crate::api::http::in_process::{HOST, Visitor, open, routes, visit};
use crate::api::socket::Pairs;
use crate::base::clock::Clock;
use crate::base::limits::SOCKET_CALLS_MAX;
use crate::base::metrics::Metrics;
use crate::bus::fire::Firer;
use crate::cluster::Cluster;
use crate::cluster::peers::Peers;
use crate::config::{CliOverrides, Config, Environment};
use crate::engines::settings::of_config;
use crate::model::Batch;
use crate::store::{FreeSpace, Intake, Options, Store};
use crate::testkit::entries::Asks;
pub(crate) use crate::testkit::entries::{list, map};
pub(crate) use crate::testkit::wait_for;
use crate::testkit::{DEADLINE, receive};

/// A daemon in process; it ends when it is dropped.
pub(crate) struct Cellar {
    pub(crate) dir: TempDir,
    config: Config,
    running: Option<Running>,
}

struct Running {
    ctx: Arc<Ctx>,
    /// With `cluster.nats`. Nothing connects to it.
    peers: Option<Arc<Peers>>,
    intake: Intake,
    pairs: Pairs,
    routes: axum::Router,
    stop: watch::Sender<bool>,
    runtime: Runtime,
    store_threads: Vec<JoinHandle<()>>,
}

/// Free space that any disk has.
const NO_GUARD: FreeSpace = FreeSpace {
    low: Some(0),
    min: Some(0),
};

impl Cellar {
    /// Starts in a new directory.
    pub(crate) fn start() -> Self {
        Self::start_configured("")
    }

    /// Starts with the text of a configuration file.
    pub(crate) fn start_configured(yaml: &str) -> Self {
        let mut cellar = Self {
            dir: tempfile::tempdir().unwrap(),
            config: Config::default(),
            running: None,
        };
        cellar.configure(yaml);
        cellar.restart();
        cellar
    }

    /// Replaces the configuration file, in which `DIR` stands for the directory; the next start
    /// reads it.
    pub(crate) fn configure(&mut self, yaml: &str) {
        let dir = self.dir.path();
        let file = dir.join("c.yaml");
        std::fs::write(&file, yaml.replace("DIR", dir.to_str().unwrap())).unwrap();

        let given = CliOverrides {
            config: Some(file),
            state_dir: Some(dir.join("state")),
            socket: Some(dir.join("s.sock")),
            ..CliOverrides::default()
        };
        self.config = Config::load(&given, &Environment::default()).unwrap();
    }

    /// Stops it, and starts it again with its existing state.
    pub(crate) fn restart(&mut self) {
        self.terminate();
        self.running = Some(Running::start(&self.config));
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn ctx(&self) -> &Arc<Ctx> {
        &self.running().ctx
    }

    /// A connection of this user.
    pub(crate) fn client(&self) -> Client {
        self.client_of(Some(rustix::process::geteuid().as_raw()))
    }

    /// A connection of another user.
    pub(crate) fn client_of(&self, uid: Option<u32>) -> Client {
        Client::over(self.connect_as(uid)).unwrap()
    }

    /// The end of a connection of this user, on which nothing was sent.
    pub(crate) fn connect(&self) -> UnixStream {
        self.connect_as(Some(rustix::process::geteuid().as_raw()))
    }

    fn connect_as(&self, uid: Option<u32>) -> UnixStream {
        let running = self.running();
        running.pairs.connect(running.runtime.handle(), uid)
    }

    /// Makes connections of this user.
    pub(crate) fn connector(&self) -> Box<dyn Fn() -> Client> {
        let (pairs, runtime) = (
            self.running().pairs.clone(),
            self.running().runtime.handle().clone(),
        );
        let uid = rustix::process::geteuid().as_raw();
        Box::new(move || Client::over(pairs.connect(&runtime, Some(uid))).unwrap())
    }

    /// Makes one call on a new connection.
    pub(crate) fn call(&self, name: &str, args: Vec<(&str, Value)>) -> Result<Value, ClientError> {
        self.client().call(name, map(args))
    }

    /// Stores entries that no call can store.
    pub(crate) fn store(&self, batch: Batch) {
        let (sender, stored) = sync_channel(1);
        let done = Box::new(move |result| sender.send(result).unwrap());
        self.running().intake.submit(batch, Some(done)).unwrap();
        receive(&stored).unwrap();
    }

    /// What it knows of the other masters, on a daemon with `cluster.nats`.
    pub(crate) fn peers(&self) -> &Peers {
        let peers = self.running().peers.as_deref();
        peers.expect("cluster.nats is configured")
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.ctx().archive.metrics.all();
        let found = all.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Stops it, and stores what was accepted.
    pub(crate) fn terminate(&mut self) -> bool {
        if let Some(running) = self.running.take() {
            running.stop();
        }
        true
    }
}

impl Asks for Cellar {
    fn ask(&self, call: &str, args: Vec<(&str, Value)>) -> Value {
        self.call(call, args).unwrap()
    }
}

/// The routes of a daemon, without a listener.
#[derive(Clone)]
pub(crate) struct Http {
    routes: axum::Router,
    runtime: Handle,
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOST)
    }
}

/// Where requests are made.
pub(crate) fn address(cellar: &Cellar) -> Http {
    Http {
        routes: cellar.running().routes.clone(),
        runtime: cellar.running().runtime.handle().clone(),
    }
}

/// A request of a peer of the loopback address, with these header lines.
pub(crate) fn request(to: &Http, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let from = Visitor::Network;
    let answer = visit(to.routes.clone(), from, method, path, headers, body);
    to.runtime.block_on(answer)
}

pub(crate) fn get(to: &Http, path: &str, headers: &str) -> Answer {
    request(to, "GET", path, headers, b"")
}

/// A response that is read while it is made.
pub(crate) struct Stream {
    /// Without the body.
    pub(crate) answer: Answer,
    body: Body,
    runtime: Handle,
    /// Of the latest piece, for [`Read`].
    rest: Bytes,
}

/// A request with GET whose response is read while it is made.
pub(crate) fn stream(to: &Http, path: &str, headers: &str) -> Stream {
    let from = Visitor::Network;
    let opened = open(to.routes.clone(), from, "GET", path, headers, b"");
    let (answer, body) = to.runtime.block_on(opened);
    Stream {
        answer,
        body,
        runtime: to.runtime.clone(),
        rest: Bytes::new(),
    }
}

impl Stream {
    /// The next piece; none at the end.
    pub(crate) fn piece(&mut self) -> Option<Bytes> {
        let frame = async { timeout(DEADLINE, self.body.frame()).await };
        let frame = self.runtime.block_on(frame).expect("a piece in time")?;
        Some(frame.unwrap().into_data().unwrap())
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.piece().unwrap_or_default();
        }
        let count = to.len().min(self.rest.len());
        to[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// A request of this user over the unix socket.
pub(crate) fn local(cellar: &Cellar, method: &str, path: &str, body: &[u8]) -> Answer {
    let to = address(cellar);
    let from = Visitor::User(rustix::process::geteuid().as_raw());
    let answer = visit(to.routes, from, method, path, "", body);
    to.runtime.block_on(answer)
}

impl Drop for Cellar {
    fn drop(&mut self) {
        self.terminate();
    }
}

impl Running {
    fn start(config: &Config) -> Self {
        let clock = Clock::real();
        let metrics = Arc::new(Metrics::default());
        let started = clock.now();
        let options = Options {
            metrics: metrics.clone(),
            // The free space of the test's host must not matter.
            free: NO_GUARD,
            ..store_options(config, "the test".to_owned(), clock.clone())
        };
        let (store, intake, store_threads) = Store::open(&options).unwrap().on_threads();

        let (policy, _) = policy(config, &clock, &metrics);
        let sinks = of_config(config).unwrap();
        let engines = engines::start(config, sinks, &store, &options.fs, &clock, None);

        let cluster = Cluster::of(config, "").unwrap();
        let shared = cluster.map(|cluster| {
            let (name, settings) = (cluster.name, store.settings());
            let peers = Peers::new(name, None, "test".to_owned(), settings, clock.clone());
            // No inbox runs here, and the status must not report that.
            peers.receives(None);
            let peers = Arc::new(peers);
            let shared =
                SharedHistory::new(peers.clone(), cluster.subjects.stream(), cluster.window);
            (peers, shared)
        });
        let (peers, shared) = shared.unzip();

        let made = Made {
            store,
            clock,
            metrics,
            started,
            policy,
            firer: Arc::new(Firer::default()),
            buses: Vec::new(),
            reactor: None,
            engines,
            zeromq: Vec::new(),
            shared,
        };
        let ctx = Arc::new(made.into_ctx(config).unwrap());

        // Same as for the local socket, which has few threads for blocking work.
        let runtime = runtime("test", SOCKET_CALLS_MAX).unwrap();
        let (stop, stopping) = watch::channel(false);

        Self {
            pairs: Pairs::new(ctx.clone(), intake.clone(), stopping.clone()),
            routes: routes(config, ctx.clone(), stopping),
            ctx,
            peers,
            intake,
            stop,
            runtime,
            store_threads,
        }
    }

    /// Ends everything, and stores what was accepted.
    fn stop(self) {
        let Self {
            ctx,
            peers: _,
            intake,
            pairs,
            routes,
            stop,
            runtime,
            store_threads,
        } = self;

        let _ = stop.send(true);
        ctx.engines.stop();

        // In a test that failed, other handles may keep the threads of the store running.
        if std::thread::panicking() {
            return runtime.shutdown_background();
        }

        wait_for("the end of the connections", || {
            pairs.have_ended().then_some(())
        });

        let store = ctx.archive.store.clone();
        runtime.shutdown_timeout(DEADLINE);
        // The appender ends once every sender of `intake` is gone.
        drop((ctx, intake, pairs, routes));
        store.note_stop().unwrap();
        drop(store);
        for thread in store_threads {
            thread.join().unwrap();
        }
    }
}
