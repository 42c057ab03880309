//! Random operations, checked against the model.
//!
//! Environment variables: `RUNS=n` is the number of runs; `SIMULATION_SEED=n` repeats a failed run, whose message contains the
//! seed. A failed run is shrunk before it is printed, in at most `SHRINK=n` steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::operations::{Op, op};
use super::{Durability, Limits, Simulated, TINY};
use crate::vfs::faults::Act;
use saltcellar_base::limits::{DEDUPE_WINDOW, NUMBERS_AHEAD};

/// The configuration of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// Entries are acknowledged before the sync.
    pub(super) written: bool,
    /// One segment can hold all entries of a run.
    pub(super) roomy: bool,
    /// Small values exhaust reserved sequence numbers and fingerprints within a run.
    pub(super) numbers_ahead: u64,
    pub(super) dedupe_window: usize,
}

impl Setup {
    fn limits(self) -> Limits {
        let mut limits = TINY;
        if self.written {
            // Longer than any run: only a shutdown or a full segment syncs.
            limits.durability = Durability::Written {
                within: Duration::from_secs(3600),
            };
        }
        if self.roomy {
            limits.segment_bytes_max = 1 << 20;
            limits.segment_entries_max = 1_000_000;
        }
        let Self {
            numbers_ahead,
            dedupe_window,
            ..
        } = self;
        Limits {
            dedupe_window,
            numbers_ahead,
            ..limits
        }
    }
}

#[derive(Debug, Clone)]
struct RandomRun {
    setup: Setup,
    ops: Vec<Op>,
}

fn one_run() -> impl Strategy<Value = RandomRun> {
    let numbers = prop_oneof![Just(NUMBERS_AHEAD), Just(7)];
    let window = prop_oneof![Just(DEDUPE_WINDOW), Just(16)];
    let setup = (prop::bool::weighted(0.25), any::<bool>(), numbers, window);
    let setup = setup.prop_map(|(written, roomy, numbers_ahead, dedupe_window)| Setup {
        written,
        roomy,
        numbers_ahead,
        dedupe_window,
    });
    (setup, prop::collection::vec(op(), 1..14)).prop_map(|(setup, ops)| RandomRun { setup, ops })
}

/// The run of a seed, which can be shrunk.
fn of_seed(seed: u64) -> impl ValueTree<Value = RandomRun> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    one_run()
        .new_tree(&mut TestRunner::new_with_rng(
            ProptestConfig::default(),
            rng,
        ))
        .unwrap()
}

fn execute(RandomRun { setup, ops }: RandomRun, lie: Option<Act>) {
    let mut simulated = Simulated::on_lying_disk(setup.limits(), lie);
    for op in &ops {
        simulated.apply(op);
    }
    simulated.check();
    simulated.reopen();
    simulated.check();
    simulated.close();
}

/// The panic message of a run, if it fails.
fn failure(run: RandomRun) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| execute(run, None))).err()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    Some(
        message
            .or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without message")
            .to_owned(),
    )
}

/// Shrinks a failing run.
fn shrunk(seed: u64, first: String) -> (RandomRun, String) {
    let mut tree = of_seed(seed);
    let mut found = (tree.current(), first);
    let mut moved = tree.simplify();
    for _ in 0..setting("SHRINK").unwrap_or(150) {
        if !moved {
            break;
        }
        let run = tree.current();
        moved = match failure(run.clone()) {
            Some(message) => {
                found = (run, message);
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
    found
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}

#[test]
fn acknowledged_entries_are_present_exactly_once_after_random_operations() {
    let (simulation, seed) = (setting("RUNS"), setting("SIMULATION_SEED"));
    let any = saltcellar_model::secret_seed() >> 16;
    let from = seed.unwrap_or(any);
    let count = if seed.is_some() {
        simulation.unwrap_or(1)
    } else {
        simulation.unwrap_or(24)
    };
    let threads = if simulation.is_some() {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        1
    };
    let next = AtomicU64::new(from);
    let failed = parking_lot::Mutex::new(Vec::new());
    let work = || {
        while let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < from + count && failed.lock().is_empty()).then_some(next + 1)
        }) {
            if let Some(message) = failure(of_seed(seed).current()) {
                failed.lock().push((seed, message));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    if let Some((seed, message)) = failed.into_inner().pop() {
        let (run, shrunk_message) = shrunk(seed, message.clone());
        panic!(
            "SIMULATION_SEED={seed}: {message}\nshrunk: {shrunk_message}\n{:?}\n{:#?}",
            run.setup,
            Short(&run.ops)
        );
    }
}

/// Prints one operation per line.
struct Short<'a>(&'a [Op]);

impl std::fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|op| writeln!(f, "    {op:?}"))
    }
}

/// Control: the same runs must fail on a disk whose syncs do nothing.
#[test]
fn a_lying_disk_is_detected() {
    for lie in [Act::Sync, Act::SyncDir] {
        let noticed = (0..200).any(|seed| {
            let run = of_seed(seed).current();
            catch_unwind(AssertUnwindSafe(|| execute(run, Some(lie)))).is_err()
        });
        assert!(noticed, "no run fails although {lie:?} does nothing");
    }
}
