//! A daemon in a child process, and recorded buses.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rmpv::Value;
use saltcellar::api::client::{Client, ClientError};

use saltcellar_testkit::DEADLINE;
pub(crate) use saltcellar_testkit::bus::FakeBus;
use saltcellar_testkit::bus::read_recording;
pub(crate) use saltcellar_testkit::entries::{Asks, list, map};
use saltcellar_testkit::usage::Process;
pub(crate) use saltcellar_testkit::{read_to_end, wait_for};

use crate::fake_daemon::program;

/// Waits for a process to exit; kills it and fails the test after a timeout.
pub(crate) fn ended(child: &mut Child) -> std::process::ExitStatus {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if std::time::Instant::now() > deadline {
            child.kill().unwrap();
            panic!("process {} did not end within {DEADLINE:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A running `saltcellar serve`; killed when dropped.
pub(crate) struct Cellar {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) process: Process,
    pub(crate) flags: Vec<String>,
}

/// Replaces the word `DIR` by a directory, but not within longer names.
pub(crate) fn in_dir(text: &str, dir: &std::path::Path) -> String {
    let mut parts = text.split("DIR");
    let mut placed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let inside = placed.ends_with(|before: char| before.is_ascii_alphanumeric());
        placed += if inside { "DIR" } else { dir.to_str().unwrap() };
        placed += part;
    }
    placed
}

impl Cellar {
    /// Starts a daemon in a new directory.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a daemon with flags, in which `DIR` stands for its directory.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), flags)
    }

    /// Starts a daemon on a disk with planned faults (`crates/store/src/vfs/faults.rs`); requires a debug build.
    pub(crate) fn start_on_disk(plan: &str) -> Self {
        Self::start_on_disk_with(plan, &[])
    }

    /// Like [`Self::start_on_disk`], with flags.
    pub(crate) fn start_on_disk_with(plan: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        put_plan(dir.path(), plan);
        Self::start_in(dir, flags)
    }

    /// Starts a daemon with a configuration file, in which `DIR` stands for its directory, and flags.
    pub(crate) fn start_configured(yaml: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("c.yaml"), in_dir(yaml, dir.path())).unwrap();
        Self::start_in(dir, &[&["--config", "DIR/c.yaml"], flags].concat())
    }

    /// Like [`Self::start_configured`], on a disk with planned faults.
    pub(crate) fn start_configured_on_disk(yaml: &str, plan: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        put_plan(dir.path(), plan);
        std::fs::write(dir.path().join("c.yaml"), in_dir(yaml, dir.path())).unwrap();
        Self::start_in(dir, &["--config", "DIR/c.yaml"])
    }

    /// Replaces the fault plan of the disk.
    pub(crate) fn plan_disk(&self, plan: &str) {
        put_plan(self.dir.path(), plan);
    }

    /// Starts a daemon in a prepared directory.
    pub(crate) fn start_in(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let flags: Vec<_> = flags.iter().map(|f| in_dir(f, dir.path())).collect();
        let process = serve(dir.path(), &flags);
        let cellar = Self {
            dir,
            process,
            flags,
        };
        cellar.wait_until_ready();
        cellar
    }

    /// Starts a daemon in a directory with an existing `state`.
    pub(crate) fn start_on(dir: tempfile::TempDir) -> Self {
        let process = serve(dir.path(), &[]);
        let cellar = Self {
            dir,
            process,
            flags: Vec::new(),
        };
        cellar.wait_until_ready();
        cellar
    }

    /// Starts the daemon again with its existing state.
    pub(crate) fn restart(&mut self) {
        self.process = serve(self.dir.path(), &self.flags);
        self.wait_until_ready();
    }

    /// Like [`Self::restart`], with other flags.
    pub(crate) fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restart();
    }

    fn wait_until_ready(&self) {
        wait_for("the daemon", || {
            Client::connect(&self.socket())
                .ok()?
                .call("status", map(vec![]))
                .ok()
        });
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn client(&self) -> Client {
        // The host that tests run on may be busy.
        Client::connect_within(&self.socket(), Duration::from_secs(300)).unwrap()
    }

    /// Makes one call on a new connection.
    pub(crate) fn call(&self, name: &str, args: Vec<(&str, Value)>) -> Result<Value, ClientError> {
        self.client().call(name, map(args))
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.ask("status", vec![])["counters"][name]
            .as_u64()
            .unwrap()
    }

    /// Waits until a counter reaches `count`, and asserts that it is not exceeded. A response may arrive before it is counted.
    pub(crate) fn counted(&self, name: &str, count: u64) {
        let what = format!("{name} to come to {count}");
        let found = wait_for(&what, || {
            Some(self.counter(name)).filter(|found| *found >= count)
        });
        assert_eq!(found, count, "{name}");
    }

    /// Waits for a log message, which is written a moment after the counter and the status that report
    /// the same thing.
    pub(crate) fn logged(&self, words: &str) {
        wait_for(&format!("{words:?} in the log"), || {
            self.log().contains(words).then_some(())
        });
    }

    /// Sends SIGTERM and waits; returns whether the exit code was 0.
    pub(crate) fn terminate(&mut self) -> bool {
        self.process.terminate(DEADLINE).unwrap().0.success()
    }

    /// kill -9
    pub(crate) fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

impl Asks for Cellar {
    fn ask(&self, call: &str, args: Vec<(&str, Value)>) -> Value {
        self.call(call, args).unwrap()
    }
}

fn serve(dir: &Path, flags: &[String]) -> Process {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    let mut command = serve_command(dir);
    if dir.join("disk").exists() {
        command.env("SALTCELLAR_TEST_FS", dir.join("disk"));
    }
    Process(
        command
            .args(flags)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap(),
    )
}

/// Replaces a plan atomically.
pub(crate) fn put_plan(dir: &Path, plan: &str) {
    std::fs::write(dir.join("disk.new"), plan).unwrap();
    std::fs::rename(dir.join("disk.new"), dir.join("disk")).unwrap();
}

/// The command `serve` for a directory, not yet started.
pub(crate) fn serve_command(dir: &Path) -> Command {
    let mut command = program();
    command
        .args(["serve", "--state-dir"])
        .arg(dir.join("state"))
        .arg("--socket")
        .arg(dir.join("s.sock"));
    command
}

/// A recorded bus: its framing and its frames.
pub(crate) fn recording(release: &str) -> (String, Vec<Vec<u8>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{release}.sbus"));
    let bytes = std::fs::read(path).unwrap();
    let (header, frames) = read_recording(&bytes).unwrap();
    (
        header["pub_framing"].as_str().unwrap().to_owned(),
        frames.into_iter().map(<[u8]>::to_vec).collect(),
    )
}

/// The socket of a master's publisher.
pub(crate) fn master_bus(sock_dir: &Path) -> FakeBus {
    FakeBus::listen(&sock_dir.join("master_event_pub.ipc")).unwrap()
}

/// Writes frames in a framing, split at arbitrary positions: into a thousand pieces at most, because the daemon waits for more
/// after a small one.
pub(crate) fn publish(to: &mut UnixStream, framing: &str, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for frame in frames {
        if framing == "len32" {
            bytes.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_be_bytes());
        }
        bytes.extend_from_slice(frame);
    }
    for piece in bytes.chunks((bytes.len() / 1_000).max(5_003)) {
        to.write_all(piece)
            .unwrap_or_else(|e| panic!("the subscriber of the bus does not read: {e}"));
    }
}
