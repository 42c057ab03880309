//! Random operations on the files of a spill, against a plain list: killed processes, reads that fail, bits that flip.
//!
//! `TRIALS=n` runs n trials; `TRIAL_SEED=n` repeats one of them.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use rustix::io::Errno;

use super::file::DiskQueue;
use super::tests::{event, files};
use super::*;
use crate::store::medium::Disk;
use crate::store::medium::faults::{Act, Fault, Faults, Plan};
use crate::store::medium::power_cut::Dice;

/// A spill, and what must come out of it.
struct Spill {
    dir: tempfile::TempDir,
    plan: Arc<Plan>,
    medium: Arc<dyn Medium>,
    queue: Option<DiskQueue>,
    next: u64,
    /// Went in, and did not come out for good.
    waiting: VecDeque<u64>,
    /// Came out since the last start.
    out: BTreeSet<u64>,
    /// Bits that flipped: each may cost one record, and is told.
    flips: u64,
    lost: u64,
    told: u64,
}

impl Spill {
    fn new() -> Self {
        let plan = Arc::new(Plan::default());
        let medium: Arc<dyn Medium> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let mut spill = Self {
            dir: tempfile::tempdir().unwrap(),
            plan,
            medium,
            queue: None,
            next: 1,
            waiting: VecDeque::new(),
            out: BTreeSet::new(),
            flips: 0,
            lost: 0,
            told: 0,
        };
        spill.start();
        spill
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("spill/bus")
    }

    /// The next process, after a kill if there was one before.
    fn start(&mut self) {
        self.settle();
        self.queue = None;
        let opened = DiskQueue::open(self.medium.clone(), &self.path());
        if let Ok((queue, found)) = opened {
            self.told += u64::from(found.cut > 0) + found.aside;
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

    /// Takes so many pieces out, and says that they are stored.
    fn take(&mut self, pieces: usize) {
        for _ in 0..pieces {
            let Some(queue) = &mut self.queue else { return };
            // An error is told to whoever asks; what it hid must come later.
            let Ok(Some(piece)) = queue.next_piece() else { return };
            self.told += u64::from(piece.hole.is_some());
            for (entry, _) in piece.batch.entries() {
                let tag = std::str::from_utf8(entry.tag).unwrap();
                let n: u64 = tag.strip_prefix("test/").unwrap().parse().unwrap();
                assert!(self.out.last().is_none_or(|last| *last < n), "{n} came after {:?}", self.out.last());
                assert!(self.out.insert(n) && n < self.next, "{n} was never spilled, or came twice");
            }
            queue.stored(piece.file);
        }
    }

    /// All that has come out since the start is stored; what did not come in its place is lost.
    fn settle(&mut self) {
        if let Some(last) = self.out.last().copied() {
            while self.waiting.front().is_some_and(|n| *n <= last) {
                let n = self.waiting.pop_front().unwrap();
                self.lost += u64::from(!self.out.contains(&n));
            }
        }
    }

    fn flip(&mut self, dice: &mut Dice) {
        self.queue = None;
        let files = files(&self.path());
        if let Some(path) = files.get(dice.below(files.len())) {
            let mut bytes = std::fs::read(path).unwrap();
            // Behind the beginning of the file.
            if bytes.len() > 64 {
                let at = 64 + dice.below(bytes.len() - 64);
                bytes[at] ^= 1 << dice.below(8);
                std::fs::write(path, bytes).unwrap();
                self.flips += 1;
            }
        }
        self.start();
    }

    fn read_error(&mut self, dice: &mut Dice) {
        self.plan.add(Fault {
            from: 1 + dice.below(3) as u64,
            lasting: dice.below(2) == 0,
            within: "spill".to_owned(),
            ..Fault::once(Act::Read, Errno::IO)
        });
        self.start();
        self.take(dice.below(3));
        self.settle();
        self.plan.heal();
        self.start();
    }

    /// Everything comes out that is not damaged.
    fn finish(mut self) {
        self.start();
        assert!(self.queue.is_some(), "nothing is wrong with the disk, and the spill does not open");
        self.take(usize::MAX);
        self.settle();
        let left = self.waiting.len() as u64;
        let lost = self.lost + left;
        assert!(lost <= self.flips, "{lost} events are lost by {} flipped bits", self.flips);
        assert!(left == 0 || self.flips > 0 && left <= self.flips, "{left} did not come out");
        assert!(lost == 0 || self.told > 0, "{lost} events are lost, and nothing tells so");
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text}")))
}

#[test]
fn what_went_into_the_spill_comes_out_whatever_happens_to_its_files() {
    let seed = setting("TRIAL_SEED");
    let from = seed.unwrap_or_else(|| crate::model::secret_seed() >> 16);
    let count = setting("TRIALS").unwrap_or(if seed.is_some() { 1 } else { 100 });
    for seed in from..from + count {
        let trial = || trial(seed);
        if let Err(panic) = std::panic::catch_unwind(trial) {
            eprintln!("TRIAL_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn trial(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut spill = Spill::new();
    for _ in 0..=dice.below(12) {
        let what = dice.below(8);
        match what {
            0..=2 => spill.put(dice.below(40) as u64),
            3 => spill.take(dice.below(3)),
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
