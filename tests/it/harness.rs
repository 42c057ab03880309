//! A daemon in a child process, and a bus that a test plays.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rmpv::Value;
use saltcellar::api::client::{Client, ClientError};

use crate::fake_daemon::program;

use crate::testing::DEADLINE;
pub(crate) use crate::testing::wait_for;

/// Waits for the end of a process; one that does not end is killed, and the test fails.
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
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A running `saltcellar serve`; killed when dropped.
pub(crate) struct Cellar {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) child: Child,
    flags: Vec<String>,
}

/// Puts a directory in place of `DIR`, where that is a word: the name of a directory may have these letters in it.
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
    /// Starts one in a new directory.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more flags; `DIR` in them is its directory.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), flags)
    }

    /// Starts one on a disk that does what a plan says (`src/store/medium/faults.rs`); only a debug build can.
    pub(crate) fn start_on_disk(plan: &str) -> Self {
        Self::start_on_disk_with(plan, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_on_disk_with(plan: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        put_plan(dir.path(), plan);
        Self::start_in(dir, flags)
    }

    /// Starts one with a configuration file, in which `DIR` is its directory, and flags.
    pub(crate) fn start_configured(yaml: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("c.yaml"), in_dir(yaml, dir.path())).unwrap();
        Self::start_in(dir, &[&["--config", "DIR/c.yaml"], flags].concat())
    }

    /// The same, on a disk that does what a plan says.
    pub(crate) fn start_configured_on_disk(yaml: &str, plan: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        put_plan(dir.path(), plan);
        std::fs::write(dir.path().join("c.yaml"), in_dir(yaml, dir.path())).unwrap();
        Self::start_in(dir, &["--config", "DIR/c.yaml"])
    }

    /// Gives the disk another plan.
    pub(crate) fn plan_disk(&self, plan: &str) {
        put_plan(self.dir.path(), plan);
    }

    /// Starts one in a directory that was prepared.
    pub(crate) fn start_in(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let flags: Vec<_> = flags.iter().map(|f| in_dir(f, dir.path())).collect();
        let child = serve(dir.path(), &flags);
        let cellar = Self { dir, child, flags };
        cellar.wait_until_ready();
        cellar
    }

    /// Starts one in a directory whose `state` is there already.
    pub(crate) fn start_on(dir: tempfile::TempDir) -> Self {
        let child = serve(dir.path(), &[]);
        let cellar = Self { dir, child, flags: Vec::new() };
        cellar.wait_until_ready();
        cellar
    }

    /// Starts it again on what the last one left.
    pub(crate) fn restart(&mut self) {
        self.child = serve(self.dir.path(), &self.flags);
        self.wait_until_ready();
    }

    /// The same with other flags.
    pub(crate) fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restart();
    }

    fn wait_until_ready(&self) {
        wait_for("the daemon", || Client::connect(&self.socket()).ok()?.call("status", map(vec![])).ok());
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// One call on a connection of its own.
    pub(crate) fn call(&self, name: &str, args: Vec<(&str, Value)>) -> Result<Value, ClientError> {
        self.client().call(name, map(args))
    }

    /// A call that must succeed.
    pub(crate) fn ask(&self, name: &str, args: Vec<(&str, Value)>) -> Value {
        self.call(name, args).unwrap()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.ask("status", vec![])["counters"][name].as_u64().unwrap()
    }

    /// Waits until a counter has come to `count`, and sees that it has not gone further. What a peer hears may leave before
    /// it is counted.
    pub(crate) fn counted(&self, name: &str, count: u64) {
        let what = format!("{name} to come to {count}");
        let found = wait_for(&what, || Some(self.counter(name)).filter(|found| *found >= count));
        assert_eq!(found, count, "{name}");
    }

    /// Sends SIGTERM and waits; true if it ended with exit code 0.
    pub(crate) fn terminate(&mut self) -> bool {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        ended(&mut self.child).success()
    }

    /// kill -9
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

impl Drop for Cellar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(dir: &Path, flags: &[String]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = serve_command(dir);
    if dir.join("disk").exists() {
        command.env("SALTCELLAR_TEST_MEDIUM", dir.join("disk"));
    }
    command.args(flags).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// A plan takes another one's place at once, so that nobody reads half of it.
pub(crate) fn put_plan(dir: &Path, plan: &str) {
    std::fs::write(dir.join("disk.new"), plan).unwrap();
    std::fs::rename(dir.join("disk.new"), dir.join("disk")).unwrap();
}

/// `serve` on a directory, not yet started.
pub(crate) fn serve_command(dir: &Path) -> Command {
    let mut command = program();
    command.args(["serve", "--state-dir"]).arg(dir.join("state")).arg("--socket").arg(dir.join("s.sock"));
    command
}

/// A map of arguments.
pub(crate) fn map(pairs: Vec<(&str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

/// An array.
pub(crate) fn list<const N: usize>(items: [&str; N]) -> Value {
    Value::Array(items.into_iter().map(Value::from).collect())
}

/// A recorded bus: how its frames followed one another, and the frames.
pub(crate) fn recording(release: &str) -> (String, Vec<Vec<u8>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{release}.sbus"));
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.strip_prefix(b"SBUS1\n").unwrap();
    let mut take = |n: usize| {
        let (taken, after) = rest.split_at_checked(n)?;
        rest = after;
        Some(taken)
    };
    let u32_of = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap()) as usize;
    let head_len = u32_of(take(4).unwrap());
    let head: serde_json::Value = serde_json::from_slice(take(head_len).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(header) = take(12) {
        frames.push(take(u32_of(&header[8..])).unwrap().to_vec());
    }
    (head["pub_framing"].as_str().unwrap().to_owned(), frames)
}

/// A publisher's socket, played by the test.
pub(crate) struct FakeBus {
    path: PathBuf,
    listener: UnixListener,
}

impl FakeBus {
    /// Listens where a master's publisher would.
    pub(crate) fn in_dir(sock_dir: &Path) -> Self {
        Self::named(sock_dir, "master_event_pub.ipc")
    }

    /// Listens where a minion's publisher would: its name has a hash of the minion's id.
    pub(crate) fn of_minion_in_dir(sock_dir: &Path) -> Self {
        Self::named(sock_dir, "minion_event_6fbb1ab0cc_pub.ipc")
    }

    fn named(sock_dir: &Path, name: &str) -> Self {
        let path = sock_dir.join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        // So that nobody waits for a subscriber for ever.
        listener.set_nonblocking(true).unwrap();
        Self { path, listener }
    }

    /// Waits for a subscriber. One that comes but does not read is waited for no longer than one that does not come.
    pub(crate) fn subscriber(&self) -> UnixStream {
        let to =
            wait_for(&format!("a subscriber of {}", self.path.display()), || match self.listener.accept() {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
                accepted => Some(accepted.unwrap().0),
            });
        to.set_write_timeout(Some(DEADLINE)).unwrap();
        to
    }
}

/// Writes frames in a framing, in pieces that end anywhere.
pub(crate) fn publish(to: &mut UnixStream, framing: &str, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for frame in frames {
        if framing == "len32" {
            bytes.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_be_bytes());
        }
        bytes.extend_from_slice(frame);
    }
    for piece in bytes.chunks(5_003) {
        to.write_all(piece).unwrap_or_else(|e| panic!("the subscriber of the bus does not read: {e}"));
    }
}

/// Reads until the other side closes.
pub(crate) fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        // Closing with bytes of ours unread resets the connection, after its last words.
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        read => drop(read.unwrap()),
    }
    bytes
}
