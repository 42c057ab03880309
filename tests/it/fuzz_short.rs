//! The short form of the fuzz targets, without coverage guidance and without external tools.
//!
//! Each target first gets the inputs in `fuzz/regressions/<target>/`, then its unchanged seeds, then mutations of them for
//! `FUZZ_SECONDS` (default 0; a third of it for targets outside [`UNTRUSTED`]). A failing input is printed and written to a
//! file. The mutations are the same in each run, so that a failure belongs to the change under test; another `FUZZ_SEED` gives
//! others, and `make fuzz` searches for new ones.

mod mutate;
mod seeds;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use self::mutate::Mutator;

/// Number of inputs between two checks of the time limit.
const ROUND: u32 = 32;

/// The targets that read untrusted input, which run for all of `FUZZ_SECONDS`.
const UNTRUSTED: &[&str] = &["frame", "salt_event", "call", "signed_batch", "nesting"];

/// Time limit of one input; the target hangs if it is exceeded.
const TIMEOUT: Duration = Duration::from_secs(120);

macro_rules! targets {
    ($($name:ident: $path:literal,)*) => {
        $(
            #[path = $path]
            mod $name;
        )*

        /// Each target with its seeds.
        const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] =
            &[$((stringify!($name), $name::$name, seeds::$name)),*];

        /// A test per target, so that they run beside each other.
        mod short {
            $(
                #[test]
                fn $name() {
                    super::run(stringify!($name));
                }
            )*
        }
    };
}

targets! {
    frame: "../../fuzz/targets/frame.rs",
    salt_event: "../../fuzz/targets/salt_event.rs",
    call: "../../fuzz/targets/call.rs",
    signed_batch: "../../fuzz/targets/signed_batch.rs",
    block: "../../fuzz/targets/block.rs",
    log: "../../fuzz/targets/log.rs",
    pages: "../../fuzz/targets/pages.rs",
    zmtp: "../../fuzz/targets/zmtp.rs",
    spill: "../../fuzz/targets/spill.rs",
    redact: "../../fuzz/targets/redact.rs",
    sls_yaml: "../../fuzz/targets/sls_yaml.rs",
    sls_jinja: "../../fuzz/targets/sls_jinja.rs",
    fnmatch: "../../fuzz/targets/fnmatch.rs",
    filter: "../../fuzz/targets/filter.rs",
    nesting: "../../fuzz/targets/nesting.rs",
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")),
    )
}

fn hex_digit(half: u8) -> char {
    char::from_digit(u32::from(half), 16).unwrap()
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The current input of a target, in a file that survives an abort.
struct Present {
    path: PathBuf,
    file: File,
}

impl Present {
    fn of(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("fuzz-{name}-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        Self { path, file }
    }

    fn is(&self, input: &[u8]) {
        self.file.set_len(input.len() as u64).unwrap();
        self.file.write_all_at(input, 0).unwrap();
    }
}

fn run(name: &str) {
    let (_, target, seeds) = *TARGETS.iter().find(|(known, ..)| *known == name).unwrap();
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let time = Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(0))
        / if UNTRUSTED.contains(&name) { 1 } else { 3 };
    let present = Present::of(name);
    let path = present.path.clone();
    println!(
        "{name}: FUZZ_SEED={seed}; the present input is in {}",
        path.display()
    );

    let known = regressions(name);
    let seeds = seeds();
    assert!(!seeds.is_empty());
    let done = Arc::new(AtomicU64::new(0));
    let counter = done.clone();
    let (done_tx, done_rx) = sync_channel(1);
    let worker = move || {
        let give = |input: &[u8], what: &str| {
            present.is(input);
            if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
                let hex: String = input
                    .iter()
                    .flat_map(|byte| [hex_digit(byte >> 4), hex_digit(byte & 15)])
                    .collect();
                return Err(format!("fails on {what}: {hex}"));
            }
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let all = || {
            for (file, input) in &known {
                give(input, file)?;
            }
            for input in &seeds {
                give(input, "a seed")?;
            }
            let mut mutator = Mutator::new(seed, &seeds);
            let begin = Instant::now();
            // One round always: the mutator belongs to the test.
            loop {
                for _ in 0..ROUND {
                    give(&mutator.input(), "an input")?;
                }
                if begin.elapsed() >= time {
                    return Ok(());
                }
            }
        };
        // Sending fails only if the test has ended.
        let _ = done_tx.send(all());
    };
    std::thread::Builder::new()
        .name(format!("fuzz-{name}"))
        .spawn(worker)
        .unwrap();
    let mut before = 0;
    let result = loop {
        match done_rx.recv_timeout(TIMEOUT) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Disconnected) => break Err("the thread has ended".to_owned()),
            Err(RecvTimeoutError::Timeout) => {
                let now = done.load(Ordering::Relaxed);
                if now == before {
                    break Err("hangs".to_owned());
                }
                before = now;
            }
        }
    };
    if let Err(what) = result {
        panic!(
            "{name} {what}\nFUZZ_SEED={seed}\nTo keep the input: cp {} fuzz/regressions/{name}/WHAT-IT-IS",
            path.display()
        );
    }
    println!("{name}: {} inputs", done.load(Ordering::Relaxed));
    let _ = fs::remove_file(path);
}

/// Inputs that failed once, with the names of their files.
fn regressions(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = fuzz_dir().join("regressions").join(name);
    let mut inputs: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|file| file.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect();
    inputs.sort();
    inputs
}

/// `make fuzz` uses this to pass the seeds to cargo-fuzz.
#[test]
#[ignore = "writes fuzz/corpus/; run by `make fuzz`"]
fn write_corpus() {
    for (name, _, seeds) in TARGETS {
        let dir = fuzz_dir().join("corpus").join(name);
        fs::create_dir_all(&dir).unwrap();
        for (n, seed) in seeds().iter().enumerate() {
            fs::write(dir.join(format!("seed-{n:04}")), seed).unwrap();
        }
    }
}

/// Both forms have the same targets, and every regression belongs to a target.
#[test]
fn cargo_fuzz_and_the_short_form_have_the_same_targets() {
    let mut names: Vec<_> = TARGETS
        .iter()
        .map(|(name, ..)| (*name).to_owned())
        .collect();
    names.sort();
    let listed = |dir: &str| {
        let name = |file: fs::DirEntry| {
            file.path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        let mut found: Vec<_> = fs::read_dir(fuzz_dir().join(dir))
            .unwrap()
            .map(|file| name(file.unwrap()))
            .collect();
        found.sort();
        found
    };
    assert_eq!(listed("targets"), names);
    assert_eq!(listed("fuzz_targets"), names);
    assert_eq!(listed("regressions"), names);
    let manifest = fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    let makefile = fs::read_to_string(fuzz_dir().join("../Makefile")).unwrap();
    let long: Vec<_> = makefile
        .lines()
        .find(|line| line.starts_with("FUZZ_TARGETS"))
        .unwrap()
        .split_whitespace()
        .collect();
    for name in names {
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name} in fuzz/Cargo.toml"
        );
        assert!(long.contains(&name.as_str()), "{name} in the Makefile");
    }
}
