//! The daemon under test, its state directory, and everything sent to it.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use saltcellar::base::clock::Clock;
use saltcellar::wire::msgpack::{self, Writer, as_int, as_text};
use saltcellar_testkit::Random;

use crate::model::{Name, Sender, Source, entry, source};
use crate::wire::{Args, Wire};

/// Generous, for loaded machines.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Start of the times sent: an hour before the run, so that the daemon accepts them.
static TIMES_FROM: LazyLock<u64> =
    LazyLock::new(|| u64::try_from(Clock::real().now().0 - 3_600_000_000).unwrap_or(0));

/// Configurations, used in turn. Small segments, so that kills interrupt sealing. Entries acknowledged before their sync
/// survive a SIGKILL; classes come and go.
const CONFIGS: [&str; 3] = [
    "store:\n  segment_bytes_max: 1MiB\n",
    "store:\n  segment_bytes_max: 1MiB\n  durability: written 5s\n",
    "store:\n  segment_bytes_max: 1MiB\n  classes:\n    - {name: some, match: [{tag: crash/0/*}], keep: {age: forever}}\n    \
     - {name: answers, match: [{tag: salt/job/*/ret/m3*}], keep: {age: forever}}\n",
];

const SENDERS: u64 = 5;

/// Requests in flight per sender.
const WINDOW: usize = 4;

pub(crate) struct Server {
    pub(crate) dir: tempfile::TempDir,
    child: Option<Child>,
    /// Makes reads fail, see [`Server::start_with_a_bad_sector`]; `None` without a C compiler.
    bad_sector: Option<PathBuf>,
    pub(crate) seed: u64,
    pub(crate) senders: Vec<Mutex<Sender>>,
    /// Where each entry was found.
    found: HashMap<Name, u64>,
    /// All entries below were checked.
    checked: u64,
    kills: u64,
    rebuilt: u64,
    tails_cut: u64,
    replayed: u64,
    slowest_start: Duration,
    started: Instant,
}

/// An entry read back.
pub(crate) struct Found {
    pub(crate) seq: u64,
    pub(crate) name: Name,
}

impl Server {
    pub(crate) fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.yaml"), CONFIGS[0]).unwrap();
        let bad_sector = compiled(dir.path());
        Self {
            dir,
            child: None,
            bad_sector,
            seed,
            senders: (0..SENDERS).map(|_| Mutex::default()).collect(),
            found: HashMap::new(),
            checked: 0,
            kills: 0,
            rebuilt: 0,
            tails_cut: 0,
            replayed: 0,
            slowest_start: Duration::ZERO,
            started: Instant::now(),
        }
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Whether a class has a segment with its index on disk.
    pub(crate) fn is_sealed(&self, class: &str) -> bool {
        let segments = std::fs::read_dir(self.state_dir().join("log").join(class)).unwrap();
        segments
            .into_iter()
            .any(|segment| segment.unwrap().path().join("index").is_file())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }

    /// The log of the daemon since its last start.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sets the configuration for the next start.
    pub(crate) fn configure(&self, which: u64) {
        let config = CONFIGS[usize::try_from(which % CONFIGS.len() as u64).unwrap()];
        std::fs::write(self.dir.path().join("config.yaml"), config).unwrap();
    }

    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "a daemon is running");
        self.started = Instant::now();
        self.child = Some(serve(self.dir.path()).spawn().unwrap());
    }

    /// As [`Server::start`], but the disk cannot read a random sector of a log.
    pub(crate) fn start_with_a_bad_sector(&mut self, random: &mut Random) {
        let logs = logs(&self.state_dir());
        let (Some(library), false) = (&self.bad_sector, logs.is_empty()) else {
            return self.start();
        };
        let any = usize::try_from(random.below(logs.len() as u64)).unwrap();
        let path = logs[any].canonicalize().unwrap();
        let sectors = std::fs::metadata(&path).unwrap().len().div_ceil(4096);
        let from = random.below(sectors.max(1)) * 4096;
        let mut command = serve(self.dir.path());
        command
            .env("LD_PRELOAD", library)
            .env("BAD_PATH", path)
            .env("BAD_FROM", from.to_string())
            .env("BAD_TO", (from + 4096).to_string());
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until it answers, and checks that its log contains no errors.
    pub(crate) fn wait_until_ready(&mut self) {
        assert!(
            self.came_up(),
            "seed {}: the daemon did not start:\n{}",
            self.seed,
            self.log()
        );
        self.slowest_start = self.slowest_start.max(self.started.elapsed());
        let counters = self.counters();
        assert_eq!(
            counters["frames_damaged"],
            0,
            "seed {}:\n{}",
            self.seed,
            self.log()
        );
        self.rebuilt += counters["indexes_rebuilt"];
        self.tails_cut += u64::from(counters["tail_bytes_truncated"] > 0);
        let log = self.log();
        let odd = log
            .lines()
            .find(|line| line.contains("ERROR") || line.contains("panicked"));
        assert!(odd.is_none(), "seed {}: {odd:?}\n{log}", self.seed);
    }

    /// The output of `store verify` on the closed store.
    pub(crate) fn verify(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saltcellar"));
        command
            .args(["store", "verify", "--output", "json", "--state-dir"])
            .arg(self.state_dir());
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    /// Waits until it answers; false if it exits.
    pub(crate) fn came_up(&mut self) -> bool {
        let socket = self.socket();
        let child = self.child.as_mut().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // The socket of the previous daemon may still exist; only a response counts.
            if let Ok(mut wire) = Wire::connect(&socket)
                && let Ok(Ok(_)) = wire.ask("status", &Args::default())
            {
                return true;
            }
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "timeout waiting for the daemon");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        self.kills += 1;
    }

    /// The exit code of a daemon that exited.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.take().unwrap().wait().unwrap().code()
    }

    pub(crate) fn terminate(&mut self) {
        let mut child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(
            child.wait().unwrap().success(),
            "seed {}:\n{}",
            self.seed,
            self.log()
        );
    }

    pub(crate) fn counters(&self) -> HashMap<String, u64> {
        let mut wire = Wire::connect(&self.socket()).unwrap();
        let status = wire.ask("status", &Args::default()).unwrap().unwrap();
        let counters = msgpack::get(&status, "counters").unwrap();
        let number = |value| u64::try_from(as_int(value).unwrap()).unwrap();
        msgpack::pairs(counters)
            .map(|(k, v)| (as_text(k).unwrap().to_owned(), number(v)))
            .collect()
    }

    /// Loads the daemon from all senders, and kills it after `time`.
    pub(crate) fn load(&mut self, time: Duration, random: &mut Random) {
        let socket = self.socket();
        let (seed, senders) = (self.seed, &self.senders);
        let replayed = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, sender) in (0..).zip(senders) {
                let (socket, mut random) = (&socket, Random::new(random.next()));
                threads.push(scope.spawn(move || {
                    let mut sender = sender.lock();
                    let mut replayed = 0;
                    // The daemon's death ends it; only acknowledgements before that count.
                    let _ = send(
                        seed,
                        number,
                        &mut sender,
                        socket,
                        &mut random,
                        &mut replayed,
                    );
                    replayed
                }));
            }
            std::thread::sleep(time);
            let mut child = self.child.take().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<u64>()
        });
        self.kills += 1;
        self.replayed += replayed;
    }

    /// Checks everything stored since the last check.
    pub(crate) fn check_new(&mut self) {
        let (found, head) = self
            .read_back(self.checked)
            .unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        for Found { seq, name } in found {
            let before = self.found.insert(name, seq);
            assert!(
                before.is_none(),
                "seed {}: {name:?} is at {seq} and at {before:?}",
                self.seed
            );
        }
        self.checked = head;
        self.check_acknowledged();
        self.check_jobs();
    }

    /// Checks everything, and that no sequence number has changed.
    pub(crate) fn check_all(&mut self) {
        let (found, head) = self
            .read_back(0)
            .unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
        let before = std::mem::take(&mut self.found);
        let mut seqs = BTreeSet::new();
        for Found { seq, name } in found {
            assert!(
                seqs.insert(seq),
                "seed {}: {seq} was assigned twice",
                self.seed
            );
            let twice = self.found.insert(name, seq);
            assert!(
                twice.is_none(),
                "seed {}: {name:?} is at {seq} and at {twice:?}",
                self.seed
            );
            let moved = before.get(&name).filter(|known| **known != seq);
            assert!(
                moved.is_none(),
                "seed {}: {name:?} was at {moved:?} and is at {seq}",
                self.seed
            );
        }
        for name in before.keys() {
            assert!(
                self.found.contains_key(name),
                "seed {}: {name:?} was found before and is lost",
                self.seed
            );
        }
        self.checked = head;
        self.check_acknowledged();
    }

    fn check_acknowledged(&self) {
        for name in self.acknowledged() {
            assert!(
                self.found.contains_key(&name),
                "seed {}: {name:?} was acknowledged and is lost",
                self.seed
            );
        }
    }

    /// Checks that the job cache has the newest returns.
    fn check_jobs(&self) {
        let mut wire = Wire::connect(&self.socket()).unwrap();
        for (sender, state) in (0..).zip(&self.senders) {
            let state = state.lock();
            if source(sender) == Source::Events {
                continue;
            }
            let newest = (0..state.next).rev().filter(|n| state.was_acknowledged(*n));
            for n in newest.take(5) {
                let sent = entry(self.seed, (sender, n)).data;
                let [jid, id, answer] =
                    ["jid", "id", "return"].map(|key| msgpack::get(&sent, key).unwrap());
                let args = Args::default().with("jid", |w| {
                    w.raw(jid);
                });
                let returns = wire.ask("get_jid", &args).unwrap().unwrap();
                let one = msgpack::get(&returns, as_text(id).unwrap());
                let found = one.and_then(|one| msgpack::get(one, "return"));
                assert!(
                    found == Some(answer),
                    "seed {}: return {n} of {sender} is not in its job",
                    self.seed
                );
            }
        }
    }

    pub(crate) fn acknowledged(&self) -> Vec<Name> {
        let mut names = Vec::new();
        for (sender, state) in (0..).zip(&self.senders) {
            let state = state.lock();
            names.extend(
                (0..state.next)
                    .filter(|n| state.was_acknowledged(*n))
                    .map(|n| (sender, n)),
            );
        }
        names
    }

    /// Reads every entry from `from` on, and compares each with the data sent.
    pub(crate) fn read_back(&self, from: u64) -> Result<(Vec<Found>, u64), String> {
        let mut wire = Wire::connect(&self.socket()).map_err(|e| e.to_string())?;
        let status = wire.ask("status", &Args::default()).unwrap().unwrap();
        let head = msgpack::get(&status, "head").and_then(as_int).unwrap();
        let mut before = head;
        let mut found = Vec::new();
        loop {
            let args = Args::default()
                .with("limit", |w| {
                    w.uint(2_000);
                })
                .with("before", |w| {
                    w.int(before);
                });
            let page = wire
                .ask("events_list", &args)
                .map_err(|e| e.to_string())??;
            let events = msgpack::get(&page, "events").unwrap();
            for event in msgpack::elements(events) {
                let seq = msgpack::get(event, "seq").and_then(as_int).unwrap();
                assert!(
                    seq < before,
                    "seed {}: the list is not descending",
                    self.seed
                );
                before = seq;
                let seq = u64::try_from(seq).unwrap();
                if seq >= from {
                    found.push(Found {
                        seq,
                        name: self.compare(event),
                    });
                }
            }
            let more = msgpack::get(&page, "more")
                .and_then(msgpack::as_bool)
                .unwrap();
            if !more || u64::try_from(before).unwrap() <= from {
                return Ok((found, u64::try_from(head).unwrap()));
            }
        }
    }

    /// Checks that an entry equals the one sent; returns its name.
    fn compare(&self, event: &[u8]) -> Name {
        let data = msgpack::get(event, "data").unwrap();
        let number = |key| {
            msgpack::get(data, key)
                .and_then(as_int)
                .and_then(|n| u64::try_from(n).ok())
        };
        let (Some(who), Some(n)) = (number("who"), number("n")) else {
            panic!(
                "seed {}: garbage: {:x?}",
                self.seed,
                &event[..event.len().min(200)]
            );
        };
        let sent = entry(self.seed, (who, n));
        let tag = msgpack::get(event, "tag").and_then(as_text);
        assert_eq!(
            tag,
            Some(sent.tag.as_str()),
            "seed {}: the tag of {n} of {who}",
            self.seed
        );
        assert!(
            data == sent.data,
            "seed {}: the data of {n} of {who}",
            self.seed
        );
        (who, n)
    }

    pub(crate) fn summary(&self) -> String {
        let acknowledged = self.acknowledged().len();
        format!(
            "{} kills in all, {acknowledged} entries acknowledged, {} found, {} handed over again, \
             {} tails cut, {} indexes rebuilt, slowest start {} ms",
            self.kills,
            self.found.len(),
            self.replayed,
            self.tails_cut,
            self.rebuilt,
            self.slowest_start.as_millis()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// All logs in a state directory.
fn logs(state_dir: &Path) -> Vec<PathBuf> {
    let list = |dir: PathBuf| {
        let items = std::fs::read_dir(dir).into_iter().flatten().flatten();
        items.map(|item| item.path()).collect::<Vec<_>>()
    };
    let segments = list(state_dir.join("log")).into_iter().flat_map(list);
    let mut logs: Vec<_> = segments.map(|segment| segment.join("log")).collect();
    logs.retain(|log| log.is_file());
    logs.sort();
    logs
}

/// Compiles the library that makes reads fail.
fn compiled(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("bad_sector.c"), dir.join("bad_sector.so"));
    std::fs::write(&source, include_str!("../it/bad_sector.c")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl");
    match cc.status() {
        Ok(status) => {
            assert!(status.success());
            Some(library)
        }
        Err(error) => {
            eprintln!("no bad sectors: no C compiler as `cc`: {error}");
            None
        }
    }
}

fn serve(dir: &Path) -> Command {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_saltcellar"));
    command
        .args(["serve", "--log-level", "info", "--config"])
        .arg(dir.join("config.yaml"));
    command
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--socket")
        .arg(dir.join("s.sock"));
    for name in [
        "SALTCELLAR_SOCKET",
        "SALTCELLAR_STATE_DIR",
        "SALTCELLAR_LOG",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command
}

impl Server {
    /// Submits one event `times` times as a replay; returns the number of stored copies.
    pub(crate) fn replay(&mut self, times: usize, restart_between: bool) -> usize {
        for _ in 0..times {
            let mut wire = Wire::connect(&self.socket()).unwrap();
            let (call, args) = request(self.seed, 0, 0, 1, true);
            wire.send(call, &args).unwrap();
            wire.receive().unwrap().1.unwrap();
            if restart_between {
                self.kill();
                self.start();
                self.wait_until_ready();
            }
        }
        self.read_back(0).unwrap().0.len()
    }
}

/// Sends until the daemon is gone. Unacknowledged batches are replayed in the next round, or abandoned: then they may be
/// stored or not.
fn send(
    seed: u64,
    number: u64,
    sender: &mut Sender,
    socket: &Path,
    random: &mut Random,
    replayed: &mut u64,
) -> std::io::Result<()> {
    let mut wire = Wire::connect(socket)?;
    let mut under_way: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut again: Vec<(u64, u64)> = Vec::new();
    if random.below(2) == 0 {
        again = sender
            .open
            .iter()
            .map(|(first, count)| (*first, *count))
            .collect();
        again.reverse();
    } else {
        sender.open.clear();
    }
    loop {
        while under_way.len() < WINDOW {
            let replay = again.pop();
            let (first, count) = replay.unwrap_or_else(|| {
                let count = if source(number) == Source::Returner {
                    1
                } else {
                    1 + random.below(60)
                };
                (sender.next, count)
            });
            if replay.is_none() {
                sender.next = first + count;
            }
            sender.open.insert(first, count);
            let (call, args) = request(seed, number, first, count, replay.is_some());
            let id = wire.send(call, &args)?;
            under_way.insert(id, (first, count));
            *replayed += if replay.is_some() { count } else { 0 };
        }
        let (id, answer) = wire.receive()?;
        let (first, count) = under_way
            .remove(&id)
            .expect("a response to a request in flight");
        // A rejection during shutdown is not an acknowledgement.
        if answer.is_ok() {
            sender.open.remove(&first);
            sender.acknowledge(first, count);
        }
    }
}

fn request(
    seed: u64,
    number: u64,
    first: u64,
    count: u64,
    replay: bool,
) -> (&'static str, Vec<u8>) {
    // As in the extension, a replay carries the time of the original call.
    let mut args = Args::default().with("at", |w| {
        w.uint(*TIMES_FROM + first);
    });
    if replay {
        args = args.with("replay", |w| {
            w.bool(true);
        });
    }
    if source(number) == Source::Returner {
        let load = entry(seed, (number, first)).data;
        let args = args.with("load", |w| {
            w.raw(&load);
        });
        return ("returner", args.bytes());
    }
    let list = |w: &mut Writer| {
        w.array(usize::try_from(count).unwrap());
        for n in first..first + count {
            let event = entry(seed, (number, n));
            w.map(2)
                .str("tag")
                .str(&event.tag)
                .str("data")
                .raw(&event.data);
        }
    };
    ("event_return", args.with("events", list).bytes())
}
