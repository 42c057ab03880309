//! Shared by benchmarks and tests: the load generator, the baseline, a fake master, a fake bus, a signing minion, random numbers, the resources
//! of processes, executable files, and waiting with a deadline.

pub mod baseline;
pub mod bus;
pub mod load;
pub mod master;
pub mod minion;
pub mod usage;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Longest wait for anything. A machine under load is slow, not wrong; a test that hangs must fail.
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

/// Writes an executable file, with the directories above it.
pub fn program(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap_or(dir)).expect("the directory can be made");
    fs::write(&path, text).expect("the file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    path
}

/// Reports that the calling test is skipped because `what` is missing. Panics if `CI` is set.
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
pub fn missing(what: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "CI must have what this test needs: {what}"
    );
    eprintln!("skipped: needs {what}");
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

    /// A random element.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        usize::try_from(self.below(items.len() as u64))
            .ok()
            .and_then(|at| items.get(at))
    }

    /// Incompressible bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes())
            .flatten()
            .take(len)
            .collect()
    }
}
