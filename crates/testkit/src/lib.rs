//! Shared by benchmarks and tests: the load generator, the baseline, a fake master, a fake bus, a signing minion, entries, random numbers, the
//! resources of processes, executable files, and waiting with a deadline.

pub mod baseline;
pub mod bus;
pub mod entries;
pub mod job_cache;
pub mod limited;
pub mod load;
pub mod master;
pub mod minion;
pub mod rights;
pub mod usage;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Longest wait for anything. A host under load is slow, not wrong; a test that hangs must fail.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Polls until `look` returns a value; panics after [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The next message of a channel; panics after [`DEADLINE`].
pub fn receive<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(DEADLINE)
        .unwrap_or_else(|error| panic!("no message within {DEADLINE:?}: {error}"))
}

/// Reads until the peer closes the connection.
pub fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let deadline = stream.set_read_timeout(Some(DEADLINE));
    deadline.expect("a timeout can be set");
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        // A close with unread bytes resets the connection after its last message.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        read => drop(read.expect("the peer closes the connection in time")),
    }
    bytes
}

/// The next response on a connection to the local socket, without its header.
pub fn response(stream: &mut UnixStream) -> rmpv::Value {
    let mut header = [0; 4];
    stream.read_exact(&mut header).expect("a header");
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).expect("a body");
    rmpv::decode::read_value(&mut body.as_slice()).expect("msgpack")
}

/// Writes an executable file, with the directories above it.
pub fn program(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap_or(dir)).expect("the directory can be made");
    fs::write(&path, text).expect("the file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    path
}

/// Reports that the calling test is skipped because `what` is missing, which a host can have. Panics if `CI` is set.
///
/// For `cargo test` and nextest it passes, and what it prints is not shown. Therefore the line goes to the
/// log of the stage of `make test`, if this is one: `tests/run.py` counts it there.
pub fn missing(what: &str) {
    let stage_log = std::env::var_os("TEST_LOG").map(PathBuf::from);
    let is_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    skip(what, is_ci, stage_log.as_deref());
}

/// Reports that the calling test is skipped because this host forbids `what`. In CI as well: what a container may not do, no
/// package supplies.
pub fn forbidden(what: &str) {
    let stage_log = std::env::var_os("TEST_LOG").map(PathBuf::from);
    skip(what, false, stage_log.as_deref());
}

/// The Python of this host: the system's Python, or else the first in `PATH`.
pub fn python3() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(PathBuf::from("/usr/bin"))
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join("python3"))
        .find(|program| program.exists())
}

#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
fn skip(what: &str, is_ci: bool, stage_log: Option<&Path>) {
    assert!(!is_ci, "CI must have what this test needs: {what}");

    let line = format!("SKIPPED: needs {what}\n");
    let Some(path) = stage_log else {
        eprint!("{line}");
        return;
    };
    // Tests and the stage write to it concurrently, so each line is appended in one write.
    let log = fs::File::options().append(true).open(path);
    log.and_then(|mut log| log.write_all(line.as_bytes()))
        .expect("the log of the stage can be written");
}

/// A pseudorandom generator (`SplitMix64`); equal seeds give equal numbers.
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The `n`-th independent generator of a seed.
    pub fn of(seed: u64, n: u64) -> Self {
        Self(Self(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// An index into `len` items; 0 if there are none.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("less than `len`")
    }

    /// True or false.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }

    /// Incompressible bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes())
            .flatten()
            .take(len)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_told_in_the_log_of_its_stage_and_fails_in_ci() {
        let log = tempfile::NamedTempFile::new().unwrap();
        fs::write(log.path(), "begun\n").unwrap();
        for what in ["root", "a disk"] {
            skip(what, false, Some(log.path()));
        }
        let told = fs::read_to_string(log.path()).unwrap();
        assert_eq!(told, "begun\nSKIPPED: needs root\nSKIPPED: needs a disk\n");

        let in_ci = || skip("root", true, Some(log.path()));
        assert!(std::panic::catch_unwind(in_ci).is_err());
        assert_eq!(fs::read_to_string(log.path()).unwrap(), told);
    }

    /// A test that returns early by itself would count as passed.
    #[test]
    fn no_test_says_by_itself_that_it_is_skipped() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/it");
        for file in fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            // Of directories there is only the harness.
            let text = fs::read_to_string(&path).unwrap_or_default();
            let said = ["println!(\"skip", "print!(\"skip", "SKIPPED"];
            assert!(
                !said.iter().any(|said| text.contains(said)),
                "{}: use testkit::missing",
                path.display()
            );
        }
    }
}
