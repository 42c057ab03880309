//! Random operations against the model.
//!
//! `TRIALS=n` tries so many; `TRIAL_SEED=n` is one trial again, as its failure said. What failed is made smaller before it is
//! shown, with `SHRINK=n` tries at most.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::operations::{Op, op};
use super::{Durability, House, Limits, TINY};
use crate::limits::{DEDUPE_WINDOW, NUMBERS_AHEAD};
use crate::store::medium::faults::Act;

/// How the store of a trial is set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// Answers leave before the sync.
    pub(super) written: bool,
    /// Segments are larger than what a trial writes.
    pub(super) roomy: bool,
    /// Sequence numbers and fingerprints are used up within a trial.
    pub(super) numbers_ahead: u64,
    pub(super) dedupe_window: usize,
}

impl Setup {
    fn limits(self) -> Limits {
        let mut limits = TINY;
        if self.written {
            // Longer than any trial: only a stop or a full segment syncs.
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
struct Trial {
    setup: Setup,
    ops: Vec<Op>,
}

fn trial() -> impl Strategy<Value = Trial> {
    let numbers = prop_oneof![Just(NUMBERS_AHEAD), Just(7)];
    let window = prop_oneof![Just(DEDUPE_WINDOW), Just(16)];
    let setup = (prop::bool::weighted(0.25), any::<bool>(), numbers, window);
    let setup = setup.prop_map(|(written, roomy, numbers_ahead, dedupe_window)| Setup {
        written,
        roomy,
        numbers_ahead,
        dedupe_window,
    });
    (setup, prop::collection::vec(op(), 1..14)).prop_map(|(setup, ops)| Trial { setup, ops })
}

/// The trial of a seed, which can be made smaller.
fn of_seed(seed: u64) -> impl ValueTree<Value = Trial> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    trial().new_tree(&mut TestRunner::new_with_rng(ProptestConfig::default(), rng)).unwrap()
}

fn run(Trial { setup, ops }: Trial, lie: Option<Act>) {
    let mut house = House::lied_to(setup.limits(), lie);
    for op in &ops {
        house.apply(op);
    }
    house.check();
    house.reopen();
    house.check();
    house.close();
}

/// What a trial fails with.
fn failure(trial: Trial) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(trial, None))).err()?;
    let words = panic.downcast_ref::<String>().map(String::as_str);
    Some(words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned())
}

/// Looks for a smaller trial that fails, too.
fn smaller(seed: u64, first: String) -> (Trial, String) {
    let mut tree = of_seed(seed);
    let mut found = (tree.current(), first);
    let mut moved = tree.simplify();
    for _ in 0..setting("SHRINK").unwrap_or(150) {
        if !moved {
            break;
        }
        let trial = tree.current();
        moved = match failure(trial.clone()) {
            Some(words) => {
                found = (trial, words);
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
    let (trials, seed) = (setting("TRIALS"), setting("TRIAL_SEED"));
    let any = crate::model::secret_seed() >> 16;
    let from = seed.unwrap_or(any);
    let count = if seed.is_some() { trials.unwrap_or(1) } else { trials.unwrap_or(24) };
    let threads =
        if trials.is_some() { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
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
        let (trial, words_of_it) = smaller(seed, words.clone());
        panic!(
            "TRIAL_SEED={seed}: {words}\nsmaller: {words_of_it}\n{:?}\n{:#?}",
            trial.setup,
            Short(&trial.ops)
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

/// The same trials, on a disk whose syncs do nothing: if they did not fail, they would show nothing.
#[test]
fn a_disk_that_lies_is_noticed() {
    for lie in [Act::Sync, Act::SyncDir] {
        let noticed = (0..200).any(|seed| {
            let trial = of_seed(seed).current();
            catch_unwind(AssertUnwindSafe(|| run(trial, Some(lie)))).is_err()
        });
        assert!(noticed, "{lie:?} may do nothing and nobody notices");
    }
}
