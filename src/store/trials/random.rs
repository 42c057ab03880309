//! Random operations against the model. `TRIALS=n` tries so many; what once failed is kept under
//! `proptest-regressions/` and tried again first.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use rustix::io::Errno;

use super::model::{Shape, WHATS};
use super::{House, Left, TINY};
use crate::store::StoreError;
use crate::store::medium::faults::{Act, Fault};

#[derive(Debug, Clone)]
enum Op {
    /// Batches that are all under way at once.
    Put(Vec<Vec<Shape>>),
    /// Some of what was sent, once more by another door.
    Again(Vec<u16>),
    /// Whatever had no answer, once more, as out of a spool.
    HandOver,
    Reopen,
    /// The process dies after so many acts on the disk; the kernel lives.
    Kill(Vec<Vec<Shape>>, u8),
    /// The power goes after so many acts.
    Cut(Vec<Vec<Shape>>, u8, u64),
    /// The disk fails while these are sent, and is mended.
    Fault(Vec<Vec<Shape>>, Fault),
    /// As before, and the power goes before it is mended.
    FaultAndCut(Vec<Vec<Shape>>, Fault, u64),
    /// One of the jobs sent so far is held.
    Hold(u16),
    /// Retention leaves so many entries in a class, perhaps on a disk that fails.
    Prune(bool, u8, Option<Fault>),
    /// The disk fails during a start, which is tried again.
    FaultAtStart(Fault),
}

fn shape() -> impl Strategy<Value = Shape> {
    (0..WHATS, 0..6_u8, 0..4_u8, 1..700_u16).prop_map(|(what, job, minion, size)| Shape {
        what,
        job,
        minion,
        size,
    })
}

fn batches() -> impl Strategy<Value = Vec<Vec<Shape>>> {
    prop::collection::vec(prop::collection::vec(shape(), 1..8), 1..8)
}

fn fault() -> impl Strategy<Value = Fault> {
    let act = (0..Act::ALL.len()).prop_map(|at| Act::ALL[at].0);
    let errno = prop_oneof![Just(Errno::NOSPC), Just(Errno::IO)];
    (act, errno, 1..5_u64, any::<bool>(), 0..2000_usize).prop_map(|(act, errno, from, lasting, part)| Fault {
        from,
        lasting,
        part,
        ..Fault::once(act, errno)
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => batches().prop_map(Op::Put),
        2 => prop::collection::vec(any::<u16>(), 1..6).prop_map(Op::Again),
        2 => Just(Op::HandOver),
        1 => Just(Op::Reopen),
        1 => (batches(), any::<u8>()).prop_map(|(batches, acts)| Op::Kill(batches, acts % 30)),
        3 => (batches(), any::<u8>(), any::<u64>()).prop_map(|(batches, acts, seed)| Op::Cut(batches, acts % 30, seed)),
        2 => (batches(), fault()).prop_map(|(batches, fault)| Op::Fault(batches, fault)),
        1 => (batches(), fault(), any::<u64>()).prop_map(|(b, fault, seed)| Op::FaultAndCut(b, fault, seed)),
        1 => any::<u16>().prop_map(Op::Hold),
        2 => (any::<bool>(), any::<u8>(), prop::option::weighted(0.3, fault()))
            .prop_map(|(events, keep, fault)| Op::Prune(events, keep, fault)),
        1 => fault().prop_map(Op::FaultAtStart),
    ]
}

impl House {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(batches) => {
                let open = self.put(batches);
                assert!(open.is_empty(), "nothing was wrong and {open:?} were not stored");
                return;
            }
            Op::Again(numbers) => {
                let numbers: Vec<_> =
                    numbers.iter().filter_map(|n| self.model.foldable(usize::from(*n))).collect();
                assert!(self.put_again(&numbers).is_empty(), "nothing was wrong");
                return;
            }
            Op::HandOver => {
                let open = self.model.open();
                assert!(self.put_again(&open).is_empty(), "nothing was wrong");
                return;
            }
            Op::Reopen => self.reopen(),
            Op::Kill(batches, acts) => self.lose_power(batches, *acts, Left::All, 0),
            Op::Cut(batches, acts, seed) => self.lose_power(batches, *acts, Left::Some, *seed),
            Op::Fault(batches, fault) => {
                self.plan.add(fault.clone());
                self.put(batches);
                self.check();
                self.plan.heal();
            }
            Op::FaultAndCut(batches, fault, seed) => {
                self.plan.add(fault.clone());
                self.put(batches);
                self.check();
                self.cut(Left::Some, *seed);
                self.plan.heal();
                self.open();
            }
            Op::Hold(n) => {
                if let Some(jid) = self.model.hold(usize::from(*n)) {
                    self.rig().store.hold(&jid, "a trial").unwrap();
                }
            }
            Op::Prune(events, keep, fault) => {
                self.check();
                if let Some(fault) = fault {
                    self.plan.add(fault.clone());
                }
                self.prune(*events, u64::from(*keep));
                self.check();
                self.plan.heal();
            }
            Op::FaultAtStart(fault) => {
                self.close();
                self.plan.add(fault.clone());
                match self.try_open() {
                    Ok(()) => self.check(),
                    Err(StoreError::Io { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                self.close();
                self.plan.heal();
                self.open();
            }
        }
        self.check();
    }

    fn lose_power(&mut self, batches: &[Vec<Shape>], acts: u8, left: Left, seed: u64) {
        self.disk.let_power_go_after(u64::from(acts));
        self.put(batches);
        self.cut(left, seed);
        self.open();
    }
}

fn trial(ops: &[Op], lie: Option<Act>) -> House {
    let mut house = House::lied_to(TINY, lie);
    for op in ops {
        house.apply(op);
    }
    house.check();
    house.reopen();
    house.check();
    house
}

fn trials() -> u32 {
    std::env::var("TRIALS").ok().map_or(24, |text| text.parse().expect("TRIALS is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: trials(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_what_was_answered_is_there_once(ops in prop::collection::vec(op(), 1..14)) {
        trial(&ops, None).close();
    }
}

/// The same trials, on a disk whose syncs do nothing: if they did not fail, they would show nothing.
#[test]
fn a_disk_that_lies_is_noticed() {
    for lie in [Act::Sync, Act::SyncDir] {
        let mut runner = TestRunner::deterministic();
        let ops = prop::collection::vec(op(), 1..14);
        let noticed = (0..200).any(|_| {
            let ops = ops.new_tree(&mut runner).unwrap().current();
            catch_unwind(AssertUnwindSafe(|| trial(&ops, Some(lie)).close())).is_err()
        });
        assert!(noticed, "{lie:?} may do nothing and nobody notices");
    }
}
