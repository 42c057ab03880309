//! The reactor with its own store in this process: events are submitted as if read from a bus, and a fake master receives the
//! requests.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::config::salt_master::SaltMaster;
use crate::limits::MASTER_READ_BYTES;
use crate::master::{Master, MasterAddress};
use crate::metrics::Metrics;
use crate::model::{Batch, Entry, ReactorSettings, Source};
use crate::reactor::run::Executor;
use crate::reactor::run::engine::{Handle, Parts, Reactor};
use crate::reactor::run::native::Native;
use crate::reactor::{NoSalt, Pipeline};
use crate::store::{Classes, FreeSpace, Intake, Limits, Opened, Options, Store, vfs};
use crate::wire::msgpack::{Writer, as_text, elements, get};
use crate::wire::salt_event::event_entry;
use crate::wire::zmtp::{self, Splitter, ZmtpItem};

/// A reaction whose argument is the tag of its event.
const SLS: &str = "\
bench_{{ data['id'] }}:
  local.state.apply:
    - tgt: {{ data['id'] }}
    - arg:
      - {{ tag }}
";

/// The ZMTP READY command of a master's socket.
const READY: &[u8] = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of events whose commit is pending.
const UNANSWERED_MAX: u64 = 20_000;

/// Creates a file with an old modification time, because the reactor does not cache recently changed files.
pub(super) fn old_file(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let make = || -> std::io::Result<PathBuf> {
        fs::create_dir_all(dir)?;
        let path = dir.join(name);
        fs::write(&path, text)?;
        let old = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(&path)?.set_modified(old)?;
        Ok(path)
    };
    make().context("create the files to render")
}

/// The store with its threads, and the reactor.
pub(super) struct Harness {
    pub(super) metrics: Arc<Metrics>,
    pub(super) handle: Handle,
    clock: Clock,
    store: Store,
    intake: Intake,
    reactor: Reactor,
    threads: Vec<JoinHandle<()>>,
    /// Submitted events. Of these, `answered` are committed or rejected.
    sent: u64,
    answered: Arc<AtomicU64>,
    rejected: Arc<AtomicU64>,
}

impl Harness {
    /// Starts the store and the reactor. `rules` are tag patterns, all with the same file.
    pub(super) fn start(
        dir: &Path,
        rules: &[&str],
        settings: ReactorSettings,
        (limits, classes): (Limits, Classes),
        executor: impl FnOnce(&Arc<Metrics>) -> Arc<dyn Executor>,
    ) -> anyhow::Result<Self> {
        crate::daemon::disable_huge_pages();
        let file = old_file(dir, "react.sls", SLS)?;
        let mut text = format!("root_dir: {}\nid: m_master\nreactor:\n", dir.display());
        for rule in rules {
            let _ = writeln!(text, "- '{rule}': [{}]", file.display());
        }
        let config = dir.join("master");
        fs::write(&config, text).context("write the configuration")?;
        let pipeline = Pipeline::new(&SaltMaster::read(&config), Arc::new(NoSalt));
        let (clock, metrics) = (Clock::real(), Arc::<Metrics>::default());
        let options = Options {
            dir: dir.join("state"),
            holder: "saltcellar bench".to_owned(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            limits,
            classes,
            free: FreeSpace::default(),
            fs: Arc::new(vfs::Disk),
        };
        let Opened { store, intake, appender, committer, sealer, retainer } =
            Store::open(&options).context("open the store")?;
        let mut threads = Vec::new();
        let mut spawn = |name: &str, work: Box<dyn FnOnce() + Send>| -> anyhow::Result<()> {
            threads.push(Builder::new().name(name.to_owned()).spawn(work).context("start a thread")?);
            Ok(())
        };
        spawn("sc-append", Box::new(|| appender.run()))?;
        spawn("sc-commit", Box::new(|| committer.run()))?;
        spawn("sc-seal", Box::new(|| sealer.run()))?;
        spawn("sc-retain", Box::new(|| retainer.run()))?;
        let reactor = Reactor::start(Parts {
            clean: Arc::new(|batch| batch),
            store: store.clone(),
            intake: intake.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            rules: Arc::new(Native::new(pipeline.into())),
            settings,
            executor: executor(&metrics),
        })
        .context("start the reactor")?;
        let handle = reactor.handle();
        Ok(Self {
            metrics,
            handle,
            clock,
            store,
            intake,
            reactor,
            threads,
            sent: 0,
            answered: Arc::default(),
            rejected: Arc::default(),
        })
    }

    /// Submits events, given by tag and minion, as a bus source does.
    pub(super) fn submit(&mut self, events: &[(String, String)]) -> anyhow::Result<()> {
        let mut batch = Batch::default();
        for (tag, minion) in events {
            let mut w = Writer::new();
            w.map(3).str("id").str(minion).str("act").str("accept").str("_stamp").str("2030-01-01T00:00:00");
            let body = w.into_bytes();
            let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
            batch.push(&Entry { minion, ..entry }, None);
        }
        let count = events.len() as u64;
        let (answered, rejected) = (self.answered.clone(), self.rejected.clone());
        let done = move |stored: Result<(), String>| {
            rejected.fetch_add(if stored.is_err() { count } else { 0 }, Ordering::Relaxed);
            answered.fetch_add(count, Ordering::Relaxed);
        };
        self.intake.submit(batch, Some(Box::new(done))).context("submit events")?;
        self.sent += count;
        self.wait("the store", |harness| {
            harness.sent - harness.answered.load(Ordering::Relaxed) < UNANSWERED_MAX
        })
    }

    /// Waits until all events are in the log and read by the reactor.
    pub(super) fn wait_until_read(&self) -> anyhow::Result<()> {
        self.wait("the log to be read", |harness| {
            harness.answered.load(Ordering::Relaxed) == harness.sent && harness.handle.status().behind == 0
        })
    }

    /// Waits until all events are handled.
    pub(super) fn wait_until_done(&self) -> anyhow::Result<()> {
        self.wait("the reactions", |harness| {
            let status = harness.handle.status();
            harness.answered.load(Ordering::Relaxed) == harness.sent
                && (status.behind, status.waiting, status.open) == (0, 0, 0)
        })?;
        ensure!(self.rejected.load(Ordering::Relaxed) == 0, "the store rejected events");
        Ok(())
    }

    pub(super) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + TIMEOUT;
        while !is_so(self) {
            if Instant::now() > until {
                bail!("wait for {what}: {:?}", self.handle.status());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Stops the reactor, then the store.
    pub(super) fn stop(self) {
        self.reactor.stop();
        drop((self.store, self.intake, self.handle));
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// The request port of a master that accepts every job and records the time of each request.
pub(super) struct FakeMaster {
    /// Tags, with the arrival time of their request.
    pub(super) requests: Arc<Mutex<Vec<(String, Instant)>>>,
    port: u16,
    cachedir: PathBuf,
}

impl FakeMaster {
    pub(super) fn start(dir: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("open a request port")?;
        let port = listener.local_addr().context("get the port")?.port();
        fs::write(dir.join(".root_key"), "the key").context("write a key")?;
        let requests: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
        let recorded = requests.clone();
        let serve = move || {
            for stream in listener.incoming() {
                let recorded = recorded.clone();
                let work = move || drop(stream.and_then(|stream| serve_client(stream, &recorded)));
                // On failure the connection is closed, and the reactor retries.
                drop(Builder::new().name("fake-master".to_owned()).spawn(work));
            }
        };
        // The threads run until the process exits.
        Builder::new().name("fake-master".to_owned()).spawn(serve).context("start the master")?;
        Ok(Self { requests, port, cachedir: dir.to_owned() })
    }

    /// A client of this master.
    pub(super) fn client(&self, metrics: &Arc<Metrics>) -> Arc<dyn Executor> {
        let place = MasterAddress {
            host: "127.0.0.1".to_owned(),
            port: self.port,
            cachedir: self.cachedir.clone(),
            user: "root".to_owned(),
        };
        Arc::new(Master::new(place, metrics.clone()))
    }
}

fn serve_client(mut stream: TcpStream, requests: &Mutex<Vec<(String, Instant)>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(&zmtp::greeting())?;
    stream.read_exact(&mut [0; zmtp::GREETING_LEN])?;
    stream.write_all(READY)?;
    let mut splitter = Splitter::new(1 << 20);
    let mut buffer = [0; MASTER_READ_BYTES];
    loop {
        let mut answer = Vec::new();
        match splitter.next_item().map_err(std::io::Error::other)? {
            Some(ZmtpItem::Message(message)) => {
                let load = message.second.and_then(|body| get(body, "load")).unwrap_or_default();
                let text = |value: Option<&[u8]>| value.and_then(as_text).unwrap_or_default().to_owned();
                let tag = text(get(load, "arg").and_then(|arg| elements(arg).next()));
                requests.lock().push((tag, Instant::now()));
                let mut w = Writer::new();
                w.map(1).str("load").map(3).str("jid").str(&text(get(load, "jid")));
                w.str("minions").array(1).str("web1").str("missing").array(0);
                zmtp::put_request(&mut answer, &w.into_bytes());
            }
            Some(ZmtpItem::Command(_)) => {}
            None => {
                let n = stream.read(&mut buffer)?;
                if n == 0 {
                    return Ok(());
                }
                splitter.feed(buffer.get(..n).unwrap_or_default());
            }
        }
        stream.write_all(&answer)?;
    }
}

/// CPU seconds of this process.
pub(super) fn own_cpu_s() -> anyhow::Result<f64> {
    crate::cli::bench::child::cpu_s(std::process::id())
}

/// Resident memory of this process in megabytes.
pub(super) fn own_rss_mb() -> anyhow::Result<f64> {
    memory_mb("VmRSS:")
}

/// Peak resident memory of this process in megabytes.
pub(super) fn peak_rss_mb() -> anyhow::Result<f64> {
    memory_mb("VmHWM:")
}

fn memory_mb(name: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let kb: f64 = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("read {name}"))?;
    Ok(kb / 1024.0)
}
