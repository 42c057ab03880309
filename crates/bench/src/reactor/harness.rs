//! The reactor with its own store in this process: events are submitted as if read from a bus, and
//! a fake master receives the requests.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use salt_sls::Value;
use saltcellar::base::clock::Clock;
use saltcellar::base::metrics::Metrics;
use saltcellar::config::salt_master::SaltMaster;
use saltcellar::model::{Batch, Entry, ReactorSettings, Source};
use saltcellar::policy::master_keys::MasterKeys;
use saltcellar::reactor::master::{Answer, Call, MasterError};
use saltcellar::reactor::run::Executor;
use saltcellar::reactor::run::engine::{Handle, Parts, Reactor};
use saltcellar::reactor::run::native::Native;
use saltcellar::reactor::{NoSalt, Pipeline};
use saltcellar::store::{Classes, FreeSpace, Intake, Limits, Options, Store, vfs};
use saltcellar::wire::msgpack::Writer;
use saltcellar::wire::salt_event::event_entry;
use saltcellar_testkit::usage::{Durations, own_cpu_s};

/// A reaction whose argument is the tag of its event.
const SLS: &str = "\
bench_{{ data['id'] }}:
  local.state.apply:
    - tgt: {{ data['id'] }}
    - arg:
      - {{ tag }}
";

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of events whose commit is pending.
const UNANSWERED_MAX: u64 = 20_000;

const MINIONS: u64 = 500;

/// Creates a file with an old modification time, because the reactor does not cache recently
/// changed files.
pub(crate) fn old_file(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
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
pub(crate) struct Harness {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) handle: Handle,
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
    /// Starts the store and the reactor in a new directory. `rules` are tag patterns, all with the
    /// same file.
    pub(crate) fn start(
        dir: &Path,
        rules: &[&str],
        settings: ReactorSettings,
        (limits, classes): (Limits, Classes),
        executor: impl FnOnce(&Arc<Metrics>) -> Arc<dyn Executor>,
    ) -> anyhow::Result<Self> {
        // As in the daemon, because memory is measured.
        saltcellar::daemon::disable_huge_pages();

        let file = old_file(dir, "react.sls", SLS)?;

        let mut text = format!("root_dir: {}\nid: m_master\nreactor:\n", dir.display());
        for rule in rules {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- '{rule}': [{}]", file.display());
        }

        let config = dir.join("master");
        fs::write(&config, text).context("write the configuration")?;

        // Rules that Salt's Python would have to render are not measured here.
        let pipeline = Pipeline::new(&SaltMaster::read(&config), Arc::new(NoSalt));
        let clock = Clock::real();
        let metrics = Arc::<Metrics>::default();

        let options = Options {
            dir: dir.join("state"),
            holder: "saltcellar-bench".to_owned(),
            lock_timeout: Duration::ZERO,
            clock: clock.clone(),
            metrics: metrics.clone(),
            limits,
            classes,
            free: FreeSpace::default(),
            fs: Arc::new(vfs::Disk),
        };

        let (store, intake, threads) = Store::open(&options)
            .context("open the store")?
            .on_threads();

        let reactor = Reactor::start(Parts {
            // There are no keys of masters in these events.
            keys: Arc::new(MasterKeys::new(&[], None)),
            store: store.clone(),
            intake: intake.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            rules: Arc::new(Native::new(pipeline.into())),
            settings,
            jid_slot: None,
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

    /// Submits the events with these numbers as a bus source does. `event` returns the tag and the
    /// minion of each.
    pub(crate) fn submit(
        &mut self,
        numbers: Range<u64>,
        event: impl Fn(u64) -> (String, String),
    ) -> anyhow::Result<()> {
        let mut batch = Batch::default();
        let count = numbers.end - numbers.start;

        for (tag, minion) in numbers.map(event) {
            let mut w = Writer::new();
            w.map(3)
                .str("id")
                .str(&minion)
                .str("act")
                .str("accept")
                .str("_stamp")
                .str("2030-01-01T00:00:00");

            let body = w.into_bytes();

            let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
            batch.push(
                &Entry {
                    minion: &minion,
                    ..entry
                },
                None,
            );
        }

        let (answered, rejected) = (self.answered.clone(), self.rejected.clone());
        let done = move |stored: Result<(), String>| {
            // Before `answered`, because a thread may wait for that.
            rejected.fetch_add(if stored.is_err() { count } else { 0 }, Ordering::Relaxed);
            answered.fetch_add(count, Ordering::Relaxed);
        };

        self.intake
            .submit(batch, Some(Box::new(done)))
            .context("submit events")?;

        self.sent += count;

        // A bus source waits as well, instead of filling the memory of the store.
        self.wait("the store", |harness| {
            harness.sent - harness.answered.load(Ordering::Relaxed) < UNANSWERED_MAX
        })
    }

    /// Waits until all events are in the log and read by the reactor.
    pub(crate) fn wait_until_read(&self) -> anyhow::Result<()> {
        self.wait("the log to be read", |harness| {
            harness.answered.load(Ordering::Relaxed) == harness.sent
                && harness.handle.status().behind == 0
        })
    }

    pub(crate) fn wait_until_done(&self) -> anyhow::Result<()> {
        self.wait("the reactions", |harness| {
            let status = harness.handle.status();
            harness.answered.load(Ordering::Relaxed) == harness.sent
                && (status.behind, status.waiting, status.open) == (0, 0, 0)
        })?;

        ensure!(
            self.rejected.load(Ordering::Relaxed) == 0,
            "the store rejected events"
        );
        Ok(())
    }

    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + TIMEOUT;
        while !is_so(self) {
            if Instant::now() > until {
                bail!("wait for {what}: {:?}", self.handle.status());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Submits single events at a rate, after one that connects to the master and compiles the
    /// template. Event `n`, from 0, has the tag `hot/<n>` if `n` is a multiple of `one_of`, and
    /// `<other>/<n>` otherwise.
    pub(crate) fn submit_at_rate(
        &mut self,
        rate: u32,
        time: Duration,
        one_of: u64,
        other: &str,
    ) -> anyhow::Result<Schedule> {
        // Not measured: this event pays for the connection and the template.
        self.submit(0..1, |_| ("hot/first".to_owned(), "web0".to_owned()))?;
        self.wait_until_done()?;

        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of events"
        )]
        let events = (f64::from(rate) * time.as_secs_f64()) as u64;

        let each = Duration::from_secs(1) / rate.max(1);

        let mut schedule = Schedule {
            cpu_s: own_cpu_s()?,
            started: Instant::now(),
            each,
            events,
            rate: 0.0,
        };

        for n in 0..events {
            // By its due time, because a late event must not delay the following events.
            std::thread::sleep(schedule.due(n).saturating_duration_since(Instant::now()));

            let kind = if n.is_multiple_of(one_of) {
                "hot"
            } else {
                other
            };

            self.submit(n..n + 1, |n| {
                (format!("{kind}/{n}"), format!("web{}", n % MINIONS))
            })?;
        }

        schedule.rate = events as f64 / schedule.started.elapsed().as_secs_f64();
        Ok(schedule)
    }

    pub(crate) fn stop(self) {
        self.reactor.stop();

        drop((self.store, self.intake, self.handle));
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Events that were submitted at a rate.
pub(crate) struct Schedule {
    pub(crate) started: Instant,
    each: Duration,
    pub(crate) events: u64,
    pub(crate) rate: f64,
    /// CPU seconds of this process at the start.
    pub(crate) cpu_s: f64,
}

impl Schedule {
    fn due(&self, n: u64) -> Instant {
        self.started + self.each * u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Time from the due time of each event `hot/<n>` to its request. Requests are tags with their
    /// time.
    pub(crate) fn latencies(&self, requests: &[(String, Instant)]) -> Durations {
        let number = |tag: &str| tag.strip_prefix("hot/")?.parse::<u64>().ok();
        let latency =
            |tag, at: &Instant| Some(at.saturating_duration_since(self.due(number(tag)?)));
        requests
            .iter()
            .filter_map(|(tag, at)| latency(tag, at))
            .collect()
    }
}

/// A master in this process. `F` gets the tag and the minion of each request.
pub(crate) struct FakeMaster<F> {
    pub(crate) is_up: AtomicBool,
    pub(crate) answer: F,
}

impl<F: Fn(&str, &str) -> Result<(), MasterError>> FakeMaster<F> {
    pub(crate) fn new(is_up: bool, answer: F) -> Arc<Self> {
        Arc::new(Self {
            is_up: is_up.into(),
            answer,
        })
    }
}

impl<F: Fn(&str, &str) -> Result<(), MasterError> + Send + Sync> Executor for FakeMaster<F> {
    fn ask(&self, call: &Call, jid: &str, _timeout: Duration) -> Result<Answer, MasterError> {
        // A master that is down does not see the request.
        self.reach()?;

        let tag = call
            .load
            .get("arg")
            .and_then(Value::as_list)
            .and_then(|arg| arg.first()?.as_str());

        let minion = call
            .load
            .get("tgt")
            .and_then(Value::as_str)
            .unwrap_or_default();

        (self.answer)(tag.unwrap_or_default(), minion)?;

        let jid = jid.to_owned();
        let minions = vec![minion.to_owned()];
        Ok(Answer::Published {
            jid,
            minions,
            missing: Vec::new(),
        })
    }

    fn reach(&self) -> Result<(), MasterError> {
        if self.is_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(MasterError::Unreachable {
            place: "the benchmark".to_owned(),
            why: "it is down".to_owned(),
        })
    }
}
