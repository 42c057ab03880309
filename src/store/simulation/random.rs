//! Random operations against the model.
//!
//! `RUNS=n` tries so many; `SIMULATION_SEED=n` is one random_run again, as its failure said. What failed is made smaller before it is
//! shown, with `SHRINK=n` tries at most.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::operations::{Op, op};
use super::{Durability, Limits, Simulated, TINY};
use crate::limits::{DEDUPE_WINDOW, NUMBERS_AHEAD};
use crate::store::vfs::faults::Act;

/// How the store of a random_run is set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// Answers leave before the sync.
    pub(super) written: bool,
    /// Segments are larger than what a random_run writes.
    pub(super) roomy: bool,
    /// Sequence numbers and fingerprints are used up within a random_run.
    pub(super) numbers_ahead: u64,
    pub(super) dedupe_window: usize,
}

impl Setup {
    fn limits(self) -> Limits {
        let mut limits = TINY;
        if self.written {
            // Longer than any random_run: only a stop or a full segment syncs.
            limits.durability = Durability::Written { within: Duration::from_secs(3600) };
        }
        if self.roomy {
            (limits.segment_bytes_max, limits.segment_entries_max) = (1 << 20, 1_000_000);
        }
        let Self { numbers_ahead, dedupe_window, .. } = self;
        Limits { dedupe_window, numbers_ahead, ..limits }
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

/// The random_run of a seed, which can be made smaller.
fn of_seed(seed: u64) -> impl ValueTree<Value = RandomRun> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    one_run().new_tree(&mut TestRunner::new_with_rng(ProptestConfig::default(), rng)).unwrap()
}

fn carry_out(RandomRun { setup, ops }: RandomRun, lie: Option<Act>) {
    let mut house = Simulated::lied_to(setup.limits(), lie);
    for op in &ops {
        house.apply(op);
    }
    house.check();
    house.reopen();
    house.check();
    house.close();
}

/// What a random_run fails with.
fn failure(random_run: RandomRun) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| carry_out(random_run, None))).err()?;
    let words = panic.downcast_ref::<String>().map(String::as_str);
    Some(words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned())
}

/// Looks for a smaller random_run that fails, too.
fn smaller(seed: u64, first: String) -> (RandomRun, String) {
    let mut tree = of_seed(seed);
    let mut found = (tree.current(), first);
    let mut moved = tree.simplify();
    for _ in 0..setting("SHRINK").unwrap_or(150) {
        if !moved {
            break;
        }
        let random_run = tree.current();
        moved = match failure(random_run.clone()) {
            Some(words) => {
                found = (random_run, words);
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
    found
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text}")))
}

#[test]
fn whatever_happens_what_was_answered_is_there_once() {
    let (simulation, seed) = (setting("RUNS"), setting("SIMULATION_SEED"));
    let any = crate::model::secret_seed() >> 16;
    let from = seed.unwrap_or(any);
    let count = if seed.is_some() { simulation.unwrap_or(1) } else { simulation.unwrap_or(24) };
    let threads =
        if simulation.is_some() { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    let next = AtomicU64::new(from);
    let failed = std::sync::Mutex::new(Vec::new());
    let work = || {
        while let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < from + count && failed.lock().unwrap().is_empty()).then_some(next + 1)
        }) {
            if let Some(words) = failure(of_seed(seed).current()) {
                failed.lock().unwrap().push((seed, words));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    if let Some((seed, words)) = failed.into_inner().unwrap().pop() {
        let (random_run, words_of_it) = smaller(seed, words.clone());
        panic!(
            "SIMULATION_SEED={seed}: {words}\nsmaller: {words_of_it}\n{:?}\n{:#?}",
            random_run.setup,
            Short(&random_run.ops)
        );
    }
}

/// One operation a line.
struct Short<'a>(&'a [Op]);

impl std::fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|op| writeln!(f, "    {op:?}"))
    }
}

/// The same simulation, on a disk whose syncs do nothing: if they did not fail, they would show nothing.
#[test]
fn a_disk_that_lies_is_noticed() {
    for lie in [Act::Sync, Act::SyncDir] {
        let noticed = (0..200).any(|seed| {
            let random_run = of_seed(seed).current();
            catch_unwind(AssertUnwindSafe(|| carry_out(random_run, Some(lie)))).is_err()
        });
        assert!(noticed, "{lie:?} may do nothing and nobody notices");
    }
}
