//! Random operations on spill files, compared with a plain list: killed processes, failing reads, flipped bits.
//!
//! `RUNS=n` runs n simulations; `SIMULATION_SEED=n` repeats one of them.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use rustix::io::Errno;

use super::file::DiskQueue;
use super::tests::{event, files};
use super::*;
use crate::store::vfs::Disk;
use crate::store::vfs::faults::{Act, Fault, Faults, Plan};
use crate::testkit::Random;

/// A spill and its expected contents.
struct Spill {
    dir: tempfile::TempDir,
    plan: Arc<Plan>,
    fs: Arc<dyn Fs>,
    queue: Option<DiskQueue>,
    next: u64,
    /// Added and not yet delivered for good.
    waiting: VecDeque<u64>,
    /// Delivered since the last start.
    out: BTreeSet<u64>,
    /// Flipped bits: each may cost one record, and must be reported.
    flips: u64,
    lost: u64,
    reported: u64,
}

impl Spill {
    fn new() -> Self {
        let plan = Arc::new(Plan::default());
        let fs: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let mut spill = Self {
            dir: tempfile::tempdir().unwrap(),
            plan,
            fs,
            queue: None,
            next: 1,
            waiting: VecDeque::new(),
            out: BTreeSet::new(),
            flips: 0,
            lost: 0,
            reported: 0,
        };

        spill.start();
        spill
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("spill/bus")
    }

    /// Starts the next process, after killing the current one.
    fn start(&mut self) {
        self.settle();
        self.queue = None;
        let opened = DiskQueue::open(self.fs.clone(), &self.path(), super::tests::STORE);
        if let Ok((queue, found)) = opened {
            self.reported += u64::from(found.cut > 0) + found.quarantined;
            self.queue = Some(queue);
        }
        self.out.clear();
    }

    fn put(&mut self, events: u64) {
        let Some(queue) = &mut self.queue else { return };
        for _ in 0..events {
            if queue.append(&event(self.next, 300), self.next).is_ok() {
                self.waiting.push_back(self.next);
            }
            self.next += 1;
        }
    }

    /// Reads up to `pieces` chunks, and reports them stored.
    fn take(&mut self, pieces: usize) {
        for _ in 0..pieces {
            let Some(queue) = &mut self.queue else { return };
            // A read error is returned to the caller; the affected events must follow later.
            let Ok(Some(piece)) = queue.next_piece() else {
                return;
            };

            self.reported += u64::from(piece.hole.is_some());
            for (entry, _) in piece.batch.entries() {
                let tag = std::str::from_utf8(entry.tag).unwrap();
                let n: u64 = tag.strip_prefix("test/").unwrap().parse().unwrap();
                assert!(
                    self.out.last().is_none_or(|last| *last < n),
                    "{n} came after {:?}",
                    self.out.last()
                );
                assert!(
                    self.out.insert(n) && n < self.next,
                    "{n} was never spilled, or came twice"
                );
            }

            queue.stored(piece.file);
        }
    }

    /// Everything delivered since the start counts as stored; skipped events count as lost.
    fn settle(&mut self) {
        if let Some(last) = self.out.last().copied() {
            while self.waiting.front().is_some_and(|n| *n <= last) {
                let n = self.waiting.pop_front().unwrap();
                self.lost += u64::from(!self.out.contains(&n));
            }
        }
    }

    fn flip(&mut self, dice: &mut Random) {
        self.queue = None;
        let files = files(&self.path());
        if let Some(path) = files.get(dice.index(files.len())) {
            let mut bytes = std::fs::read(path).unwrap();
            // After the file's header.
            if bytes.len() > 64 {
                let at = 64 + dice.index(bytes.len() - 64);
                bytes[at] ^= 1 << dice.index(8);
                std::fs::write(path, bytes).unwrap();
                self.flips += 1;
            }
        }
        self.start();
    }

    fn read_error(&mut self, dice: &mut Random) {
        self.plan.add(Fault {
            from: 1 + dice.below(3),
            lasting: dice.coin(),
            within: "spill".to_owned(),
            ..Fault::once(Act::Read, Errno::IO)
        });
        self.start();
        self.take(dice.index(3));
        self.settle();
        self.plan.heal();
        self.start();
    }

    /// Checks that everything undamaged is delivered.
    fn finish(mut self) {
        self.start();
        assert!(
            self.queue.is_some(),
            "the disk works, but the spill does not open"
        );
        self.take(usize::MAX);
        self.settle();

        let left = self.waiting.len() as u64;
        let lost = self.lost + left;

        assert!(
            lost <= self.flips,
            "{lost} events lost by {} flipped bits",
            self.flips
        );
        assert!(
            left == 0 || self.flips > 0 && left <= self.flips,
            "{left} not delivered"
        );
        assert!(
            lost == 0 || self.reported > 0,
            "{lost} events lost without a report"
        );
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number: {text}"))
    })
}

#[test]
fn spilled_events_are_delivered_despite_kills_read_errors_and_flipped_bits() {
    let seed = setting("SIMULATION_SEED");
    let from = seed.unwrap_or_else(|| crate::model::secret_seed() >> 16);

    let count = setting("RUNS").unwrap_or(if seed.is_some() { 1 } else { 100 });
    for seed in from..from + count {
        let run = || one_run(seed);
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("SIMULATION_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn one_run(seed: u64) {
    let mut dice = Random::new(seed);
    let mut spill = Spill::new();
    for _ in 0..=dice.index(12) {
        let what = dice.index(8);
        match what {
            0..=2 => spill.put(dice.below(40)),
            3 => spill.take(dice.index(3)),
            4 | 5 => spill.start(),
            6 => spill.read_error(&mut dice),
            7 => {
                spill.settle();
                spill.flip(&mut dice);
            }
            _ => {}
        }
    }

    spill.finish();
}
