//! What is done to a store in a run.

use std::time::Duration;

use proptest::prelude::*;
use rustix::io::Errno;

use super::hostile::{self, FrameAt};
use super::model::{CLASS_NAMES, Shape, WHATS};
use super::{Dice, Left, Simulated, retention};
use crate::clock::Micros;
use crate::model::Source;
use crate::store::index::SealedIndex;
use crate::store::tools::backup::{self, backup};
use crate::store::tools::restore::restore;
use crate::store::tools::salvage::salvage;
use crate::store::tools::verify::{self, verify};
use crate::store::vfs::Disk;
use crate::store::vfs::faults::{Act, Fault};
use crate::store::{StoreError, format};

/// What becomes of the log around a hostile body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DropOutcome {
    Stored,
    /// The power goes after so many acts.
    Torn(u8),
    /// The process is killed, and a bit of the frame flips, or of the first one of its log.
    Damaged(bool),
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Batches that are all under way at once.
    Put(Vec<Vec<Shape>>),
    /// Some of what was sent, once more by another source.
    Again(Vec<u16>),
    /// A stop and a start, and the last items come again, as out of a spool.
    ReopenAndReplay(u8),
    /// Whatever had no answer, once more, as out of a spool.
    HandOver,
    Reopen,
    /// A start with other classes.
    Reconfigure(u8),
    /// The process dies after so many acts on the disk; the kernel lives.
    Kill(Vec<Vec<Shape>>, u8),
    /// The power goes after so many acts.
    Cut(Vec<Vec<Shape>>, u8, u64),
    /// The disk fails while these are sent, and is mended.
    Fault(Vec<Vec<Shape>>, Fault),
    /// As before, and the power goes before it is mended.
    FaultAndCut(Vec<Vec<Shape>>, Fault, u64),
    /// The disk fails while these are sent, and the process dies. What it did not answer comes again, and then the power goes.
    FaultAndKill(Vec<Vec<Shape>>, Fault, u8, u64),
    /// One of the jobs sent so far is held.
    Hold(u16),
    /// Retention leaves so many entries in a class, perhaps on a disk that fails.
    Prune(u8, u8, Option<Fault>),
    /// The disk fails during a start, which is tried again.
    FaultAtStart(Fault),
    /// A body that looks like frames.
    Hostile {
        kind: u8,
        outcome: DropOutcome,
        seed: u64,
    },
    /// A bit of a log flips while no process runs.
    Rot(u64),
    /// Equal events: so many of one source, of another, and of the first again.
    Equal([u16; 3]),
    /// The clock jumps ahead by so many days, and back.
    Clock(u8),
    /// The disk has so many blocks left, while these are sent and retention is to make room.
    FullDisk(Vec<Vec<Shape>>, u8),
    /// A piece of a finished segment cannot be read during a start.
    BadSector(u64),
    /// A backup while these are sent, which is restored; perhaps with time between any two renames.
    Backup {
        batches: Vec<Vec<Shape>>,
        delete: bool,
        racing: bool,
    },
    /// What can be saved becomes a store.
    Salvage,
    /// The power goes while these are sent, and the directory is verified before the next start.
    Verify(Vec<Vec<Shape>>, u8),
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
    // Of these all but the last: what cannot be read is no error of a writer.
    let act = (0..Act::ALL.len() - 1).prop_map(|at| Act::ALL[at].0);
    let errno = prop_oneof![Just(Errno::NOSPC), Just(Errno::IO)];
    (act, errno, 1..5_u64, any::<bool>(), 0..2000_usize).prop_map(|(act, errno, from, lasting, part)| Fault {
        from,
        lasting,
        part,
        ..Fault::once(act, errno)
    })
}

fn read_fault() -> impl Strategy<Value = Fault> {
    (1..40_u64, any::<bool>()).prop_map(|(from, lasting)| Fault {
        from,
        lasting,
        ..Fault::once(Act::Read, Errno::IO)
    })
}

fn sync_fault() -> impl Strategy<Value = Fault> {
    (1..3_u64).prop_map(|from| Fault { from, ..Fault::once(Act::Sync, Errno::IO) })
}

fn outcome() -> impl Strategy<Value = DropOutcome> {
    prop_oneof![
        1 => Just(DropOutcome::Stored),
        1 => (0..8_u8).prop_map(DropOutcome::Torn),
        2 => any::<bool>().prop_map(DropOutcome::Damaged),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let acts = || any::<u8>().prop_map(|acts| acts % 30);
    let as_ever = prop_oneof![
        6 => batches().prop_map(Op::Put),
        2 => prop::collection::vec(any::<u16>(), 1..6).prop_map(Op::Again),
        2 => Just(Op::HandOver),
        1 => Just(Op::Reopen),
        1 => (0..3_u8).prop_map(Op::Reconfigure),
        1 => (1..6_u8).prop_map(Op::ReopenAndReplay),
        2 => (batches(), acts()).prop_map(|(batches, acts)| Op::Kill(batches, acts)),
        3 => (batches(), acts(), any::<u64>()).prop_map(|(batches, acts, seed)| Op::Cut(batches, acts, seed)),
        1 => any::<u16>().prop_map(Op::Hold),
        2 => (0..5_u8, any::<u8>(), prop::option::weighted(0.3, fault()))
            .prop_map(|(class, keep, fault)| Op::Prune(class, keep, fault)),
    ];
    let broken = prop_oneof![
        2 => (batches(), fault()).prop_map(|(batches, fault)| Op::Fault(batches, fault)),
        1 => (batches(), fault(), any::<u64>()).prop_map(|(b, fault, seed)| Op::FaultAndCut(b, fault, seed)),
        1 => (batches(), sync_fault(), acts(), any::<u64>())
            .prop_map(|(b, fault, acts, seed)| Op::FaultAndKill(b, fault, acts, seed)),
        1 => prop_oneof![fault(), read_fault()].prop_map(Op::FaultAtStart),
        1 => any::<u64>().prop_map(Op::Rot),
        1 => any::<u64>().prop_map(Op::BadSector),
        1 => (batches(), 0..6_u8).prop_map(|(batches, blocks)| Op::FullDisk(batches, blocks)),
        2 => (0..hostile::KINDS, outcome(), any::<u64>())
            .prop_map(|(kind, outcome, seed)| Op::Hostile { kind, outcome, seed }),
    ];
    let rest = prop_oneof![
        2 => prop::array::uniform3(0..400_u16).prop_map(Op::Equal),
        2 => (1..60_u8).prop_map(Op::Clock),
        2 => (batches(), any::<bool>(), any::<bool>())
            .prop_map(|(batches, delete, racing)| Op::Backup { batches, delete, racing }),
        1 => Just(Op::Salvage),
        1 => (batches(), acts()).prop_map(|(batches, acts)| Op::Verify(batches, acts)),
    ];
    prop_oneof![20 => as_ever, 10 => broken, 5 => rest]
}

impl Simulated {
    pub(super) fn apply(&mut self, op: &Op) {
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
            Op::ReopenAndReplay(count) => {
                self.reopen();
                let recent = self.model.recent(usize::from(*count));
                assert!(self.put_again(&recent).is_empty(), "nothing was wrong");
            }
            Op::Reopen => self.reopen(),
            Op::Reconfigure(classes) => {
                self.close();
                self.classes = *classes;
                self.open();
            }
            Op::Kill(batches, acts) => {
                self.put_until(batches, *acts);
                self.kill();
                self.open();
            }
            Op::Cut(batches, acts, seed) => {
                self.put_until(batches, *acts);
                self.cut(Left::Some, *seed);
                self.open();
            }
            Op::Fault(batches, fault) => {
                self.plan.add(fault.clone());
                let refused = self.put(batches);
                self.check();
                let metrics = &self.rig().metrics;
                let counted = metrics.entries_failed.get() + metrics.entries_refused_disk_full.get();
                assert!(
                    refused.is_empty() || counted > 0,
                    "{refused:?} were refused, and nothing was counted"
                );
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
            Op::FaultAndKill(batches, fault, acts, seed) => {
                self.plan.add(fault.clone());
                self.put_until(batches, *acts);
                self.kill();
                self.plan.heal();
                self.open();
                self.check();
                let open = self.model.open();
                assert!(self.put_again(&open).is_empty(), "nothing was wrong");
                self.cut(Left::Some, *seed);
                self.open();
            }
            Op::Hold(n) => {
                if let Some(jid) = self.model.hold(usize::from(*n)) {
                    self.rig().store.hold(&jid, "a run").unwrap();
                }
            }
            Op::Prune(class, keep, fault) => {
                self.check();
                if let Some(fault) = fault {
                    self.plan.add(fault.clone());
                }
                self.prune(CLASS_NAMES[usize::from(*class)], u64::from(*keep));
                self.check();
                self.plan.heal();
            }
            Op::FaultAtStart(fault) => {
                self.close();
                self.plan.add(fault.clone());
                match self.try_open() {
                    // What cannot be read now is no loss.
                    Ok(()) if fault.act == Act::Read => {}
                    Ok(()) => self.check(),
                    Err(StoreError::Io { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                self.close();
                self.plan.heal();
                self.open();
            }
            Op::Hostile { kind, outcome, seed } => self.be_hostile(*kind, *outcome, &mut Dice::new(*seed)),
            Op::Rot(seed) => self.rot(&mut Dice::new(*seed)),
            Op::Equal([first, second, third]) => {
                let times = [first, second, third].map(|n| usize::from(*n));
                self.show_equal_events(times);
            }
            Op::Clock(days) => self.jump(i64::from(*days)),
            Op::FullDisk(batches, blocks) => self.fill_up(batches, u64::from(*blocks)),
            Op::BadSector(seed) => self.start_with_a_bad_sector(&mut Dice::new(*seed)),
            Op::Backup { batches, delete, racing } => self.back_up(batches, *delete, *racing),
            Op::Salvage => self.save(),
            Op::Verify(batches, acts) => {
                self.put_until(batches, *acts);
                self.cut(Left::Some, u64::from(*acts) + batches.len() as u64);
                self.verify();
                self.open();
            }
        }
        self.check();
    }

    /// Sends batches to a process that loses its disk after so many acts.
    fn put_until(&mut self, batches: &[Vec<Shape>], acts: u8) {
        self.disk.let_power_go_after(u64::from(acts));
        self.put(batches);
    }

    fn be_hostile(&mut self, kind: u8, outcome: DropOutcome, dice: &mut Dice) {
        self.check();
        let (next_seq, cellar) = (self.model.next_seq(), self.cellar());
        let blob = |begin| hostile::blob(kind, begin, next_seq, &cellar, dice);
        let (numbers, batch) = self.model.hostile(self.classes, blob);
        if let DropOutcome::Torn(acts) = outcome {
            self.disk.let_power_go_after(u64::from(acts));
        }
        let sent = self.send(numbers, batch);
        let open = self.wait(vec![sent]);
        match outcome {
            DropOutcome::Stored => assert!(open.is_empty(), "nothing was wrong"),
            DropOutcome::Torn(_) => {
                self.cut(Left::Some, u64::try_from(dice.below(1 << 30)).unwrap());
                self.open();
            }
            DropOutcome::Damaged(first) => {
                self.check();
                self.kill();
                let with_body = |frame: &FrameAt| frame.len > hostile::LEN as u64;
                let mut logs = hostile::logs(&self.cellar());
                logs.retain(|log| hostile::frames(log).iter().any(with_body));
                if let Some(log) = logs.get(dice.below(logs.len())) {
                    let frames = hostile::frames(log);
                    let at = if first { Some(0) } else { frames.iter().rposition(with_body) };
                    let frame = at.and_then(|at| frames.get(at)).cloned().expect("a frame");
                    // In its header, or its head.
                    self.damage(log, &frame.seqs, frame.offset + dice.below(200) as u64, dice);
                    return self.open_damaged(&frame.seqs);
                }
                self.open();
            }
        }
    }

    /// A start after damage: what it took is counted.
    fn open_damaged(&mut self, seqs: &[crate::model::SeqNo]) {
        self.open();
        self.check();
        let metrics = &self.rig().metrics;
        let counted = metrics.frames_damaged.get() + metrics.tail_bytes_cut.get();
        assert!(self.model.has_read(seqs) || counted > 0, "{seqs:?} are lost, and nothing was counted");
    }

    fn rot(&mut self, dice: &mut Dice) {
        self.check();
        if dice.below(2) == 0 {
            self.close();
        } else {
            self.kill();
        }
        let logs = hostile::logs(&self.cellar());
        if let Some(log) = logs.get(dice.below(logs.len())) {
            let frames = hostile::frames(log);
            match frames.get(dice.below(frames.len() + 1)) {
                Some(FrameAt { offset, len, seqs }) => {
                    let at = offset + dice.below(usize::try_from(*len).unwrap()) as u64;
                    self.damage(log, seqs, at, dice);
                    return self.open_damaged(seqs);
                }
                None => self.damage(log, &[], dice.below(64) as u64, dice),
            }
        }
        self.open();
    }

    /// Flips a bit of a log that nobody has open. Everything else is on disk from then on.
    fn damage(&mut self, log: &std::path::Path, seqs: &[crate::model::SeqNo], at: u64, dice: &mut Dice) {
        hostile::flip(log, at, dice);
        self.disk.adopt_file(log);
        self.model.damage(seqs);
    }

    fn show_equal_events(&mut self, [first, second, third]: [usize; 3]) {
        let sources = [(Source::Bus, first), (Source::EventReturn, second), (Source::Bus, third)];
        for (numbers, batch) in self.model.equal_events(&sources, self.classes) {
            if !batch.is_empty() {
                let sent = self.send(numbers, batch);
                assert!(self.wait(vec![sent]).is_empty(), "nothing was wrong");
            }
        }
    }

    /// A jump of the clock is no time that went by.
    fn jump(&mut self, days: i64) {
        let by = days * 86_400_000_000;
        let now = self.clock.now();
        for by in [by, 0] {
            self.clock.set(Micros(now.0 + by));
            let gone = self.rig().store.0.round();
            let gone: Vec<_> = gone.iter().filter(|going| going.reason == retention::Reason::Age).collect();
            assert!(gone.is_empty(), "the clock was set {by} microseconds ahead, and {gone:?} went");
        }
    }

    fn fill_up(&mut self, batches: &[Vec<Shape>], blocks: u64) {
        self.check();
        self.disk.leave_blocks(Some(blocks));
        self.put(batches);
        self.check();
        self.disk.leave_blocks(Some(0));
        let before = self.disk.blocks_used();
        for class in CLASS_NAMES {
            for outcome in self.prune(class, 0) {
                let failed = matches!(outcome, retention::DropOutcome::Failed(_));
                assert!(!failed, "a full disk, and nothing can go: {outcome:?}");
            }
        }
        assert!(self.disk.blocks_used() <= before, "what retention dropped took more room");
        self.check();
        self.disk.leave_blocks(None);
    }

    fn start_with_a_bad_sector(&mut self, dice: &mut Dice) {
        self.check();
        self.close();
        // A power cut tears indexes, which are not on the simulated disk. A log that has none, or one that does not cover it, has to
        // be read through.
        let sealed = |log: &std::path::PathBuf| {
            let bytes = std::fs::metadata(log).unwrap().len();
            SealedIndex::open(&log.with_file_name("index"))
                .is_ok_and(|it| it.metadata().totals.log_bytes >= bytes)
        };
        let logs: Vec<_> = hostile::logs(&self.cellar()).into_iter().filter(sealed).collect();
        if let Some(log) = logs.get(dice.below(logs.len())) {
            let frames = hostile::frames(log);
            if let Some(frame) = frames.get(dice.below(frames.len())) {
                let place = frame.offset + dice.below(usize::try_from(frame.len).unwrap()) as u64;
                self.plan.spoil(log.to_str().unwrap(), place..place + 8);
                self.try_open().unwrap_or_else(|error| panic!("a bad sector, and no start: {error}"));
                self.close();
                self.plan.heal();
            }
        }
        self.open();
    }

    pub(super) fn backup(&self) -> std::path::PathBuf {
        self.dir.path().join("backup")
    }

    fn back_up(&mut self, batches: &[Vec<Shape>], delete: bool, racing: bool) {
        self.check();
        if racing {
            // A listing is to fall between the two renames that put a sealed segment in its place.
            self.plan.delay_renames(Duration::from_millis(2));
            assert!(self.put(batches).is_empty(), "nothing was wrong");
        }
        for _ in 0..if racing { 3 } else { 1 } {
            self.back_up_once(batches, delete);
        }
        self.plan.heal();
    }

    fn back_up_once(&mut self, batches: &[Vec<Shape>], delete: bool) {
        let to_send: Vec<_> = batches.iter().map(|shapes| self.model.batch(shapes, self.classes)).collect();
        // What is answered before the backup begins is in it.
        let known = self.model.clone();
        let sent: Vec<_> = to_send.into_iter().map(|(numbers, batch)| self.send(numbers, batch)).collect();
        let options = backup::BackupOptions { delete, link: false };
        backup(&self.cellar(), &self.backup(), options, Micros(1), &mut ()).unwrap();
        assert!(self.wait(sent).is_empty(), "nothing was wrong");
        let copy = self.dir.path().join("restored");
        restore(&self.backup(), &copy, &mut ()).unwrap();
        self.check_copy(&copy, &known);
    }

    fn save(&mut self) {
        self.check();
        self.kill();
        let copy = self.dir.path().join("saved");
        salvage(&self.cellar(), &copy, Micros(1), &mut ()).unwrap();
        self.check_copy(&copy, &self.model);
        self.open();
    }

    /// Opens a copy of the store, compares it, and removes it.
    fn check_copy(&self, copy: &std::path::Path, model: &super::Model) {
        let fs = std::sync::Arc::new(Disk);
        let options = super::Options { fs, ..super::options(copy, self.limits) };
        let rig = super::Rig::open(&options).unwrap();
        model.check_copy(&rig.store);
        rig.close();
        std::fs::remove_dir_all(copy).unwrap();
    }

    fn verify(&mut self) {
        let report = verify(&self.cellar(), verify::VerifyOptions::default(), &mut ()).unwrap();
        // With durability `written` a power cut may take the middle of a log.
        let may_be_damaged = self.model.is_damaged() || self.is_written();
        // sled's files are not on the simulated disk, and a power cut tears them.
        let of_logs: Vec<_> =
            report.problems.iter().filter(|problem| problem.path.ends_with("log")).collect();
        assert!(may_be_damaged || of_logs.is_empty(), "{of_logs:?}");
        assert_eq!(report.format, format::FORMAT_VERSION);
    }
}
