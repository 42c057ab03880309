//! The operations of a simulation.

use std::time::Duration;

use proptest::prelude::*;
use rustix::io::Errno;

use super::hostile::{self, FrameAt};
use super::model::{CLASS_NAMES, ItemSpec, VARIANTS};
use super::{DropOutcome, Random, Simulated, Survives};
use crate::StoreError;
use crate::retain::Reason;
use crate::tools::backup::restore::restore;
use crate::tools::backup::{self, backup};
use crate::tools::tests::{salvage, verify};
use crate::tools::verify;
use crate::vfs::Disk;
use crate::vfs::faults::{Act, Fault};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::SECTOR_BYTES;
use saltcellar_model::{EventFilter, SeqNo, Source};

/// The fate of the log with a hostile body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostileOutcome {
    Stored,
    /// The power fails after this many disk operations.
    Torn(u8),
    /// The process is killed, and a bit flips in the body's frame, or in the first frame of its log.
    Damaged(bool),
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Sends batches concurrently.
    Put(Vec<Vec<ItemSpec>>),
    /// Sends earlier items again, through another source.
    Resend(Vec<u16>),
    /// Restarts the store and replays the last items, as from a spool.
    ReopenAndReplay(u8),
    /// Sends but the last all but the last items without acknowledgement again, as from a spool.
    ResendOpen,
    Reopen,
    /// Restarts with other classes.
    Reconfigure(u8),
    /// Kills the process after this many disk operations; the page cache survives.
    Kill(Vec<Vec<ItemSpec>>, u8),
    /// Cuts the power while batches are sent, and starts with a bad sector in a log.
    CutAndBadSector(Vec<Vec<ItemSpec>>, u8, u64),
    /// Cuts the power after this many disk operations.
    Cut(Vec<Vec<ItemSpec>>, u8, u64),
    /// Sends batches while the disk fails, and repairs it.
    Fault(Vec<Vec<ItemSpec>>, Fault),
    /// As before, but cuts the power before the repair.
    FaultAndCut(Vec<Vec<ItemSpec>>, Fault, u64),
    /// Kills the process while the disk fails, resends the unacknowledged items after the restart, and cuts the power.
    FaultAndKill(Vec<Vec<ItemSpec>>, Fault, u8, u64),
    /// Places a hold on the job of an item.
    Hold(u16),
    /// Applies an entry limit to a class, on a disk that may fail.
    Prune(u8, u8, Option<Fault>),
    /// Fails operations of the disk during a start, which is then retried.
    FaultAtStart(Fault),
    /// Stores a body that looks like frames.
    Hostile {
        kind: u8,
        outcome: HostileOutcome,
        seed: u64,
    },
    /// Flips a bit of a log while the store is closed.
    BitFlip(u64),
    /// Sends equal events: this many from one source, another, and the first again.
    Equal([u16; 3]),
    /// Sets the clock ahead by this many days, and back.
    Clock(u8),
    /// Sends batches to a disk with this many free blocks; retention must then free space.
    FullDisk(Vec<Vec<ItemSpec>>, u8),
    /// A range of a sealed log is unreadable during a start.
    BadSector(Vec<Vec<ItemSpec>>, u64),
    /// Makes and restores a backup while batches are sent; with `racing`, renames are delayed.
    Backup {
        batches: Vec<Vec<ItemSpec>>,
        delete: bool,
        racing: bool,
    },
    /// Salvages the store and opens the result.
    Salvage,
    /// Cuts the power while batches are sent, and verifies the directory before the next start.
    Verify(Vec<Vec<ItemSpec>>, u8),
}

fn spec() -> impl Strategy<Value = ItemSpec> {
    (0..VARIANTS, 0..6_u8, 0..4_u8, 1..700_u16).prop_map(|(variant, job, minion, size)| ItemSpec {
        variant,
        job,
        minion,
        size,
    })
}

fn batches() -> impl Strategy<Value = Vec<Vec<ItemSpec>>> {
    prop::collection::vec(prop::collection::vec(spec(), 1..8), 1..8)
}

fn fault() -> impl Strategy<Value = Fault> {
    // All operations but the last, `Read`, which does not affect writers.
    let act = (0..Act::ALL.len() - 1).prop_map(|at| Act::ALL[at].0);
    let errno = prop_oneof![Just(Errno::NOSPC), Just(Errno::IO)];
    (act, errno, 1..5_u64, any::<bool>(), 0..2000_usize).prop_map(
        |(act, errno, from, lasting, part)| Fault {
            from,
            lasting,
            part,
            ..Fault::once(act, errno)
        },
    )
}

fn read_fault() -> impl Strategy<Value = Fault> {
    (1..40_u64, any::<bool>()).prop_map(|(from, lasting)| Fault {
        from,
        lasting,
        ..Fault::once(Act::Read, Errno::IO)
    })
}

fn sync_fault() -> impl Strategy<Value = Fault> {
    (1..3_u64).prop_map(|from| Fault {
        from,
        ..Fault::once(Act::Sync, Errno::IO)
    })
}

fn outcome() -> impl Strategy<Value = HostileOutcome> {
    prop_oneof![
        1 => Just(HostileOutcome::Stored),
        1 => (0..8_u8).prop_map(HostileOutcome::Torn),
        2 => any::<bool>().prop_map(HostileOutcome::Damaged),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let acts = || any::<u8>().prop_map(|acts| acts % 30);
    let normal = prop_oneof![
        6 => batches().prop_map(Op::Put),
        2 => prop::collection::vec(any::<u16>(), 1..6).prop_map(Op::Resend),
        2 => Just(Op::ResendOpen),
        1 => Just(Op::Reopen),
        1 => (0..3_u8).prop_map(Op::Reconfigure),
        1 => (1..6_u8).prop_map(Op::ReopenAndReplay),
        2 => (batches(), acts()).prop_map(|(batches, acts)| Op::Kill(batches, acts)),
        3 => (batches(), acts(), any::<u64>()).prop_map(|(batches, acts, seed)| Op::Cut(batches, acts, seed)),
        1 => any::<u16>().prop_map(Op::Hold),
        2 => (0..5_u8, any::<u8>(), prop::option::weighted(0.3, fault()))
            .prop_map(|(class, keep, fault)| Op::Prune(class, keep, fault)),
    ];
    let faults = prop_oneof![
        2 => (batches(), fault()).prop_map(|(batches, fault)| Op::Fault(batches, fault)),
        1 => (batches(), fault(), any::<u64>()).prop_map(|(b, fault, seed)| Op::FaultAndCut(b, fault, seed)),
        1 => (batches(), sync_fault(), acts(), any::<u64>())
            .prop_map(|(b, fault, acts, seed)| Op::FaultAndKill(b, fault, acts, seed)),
        1 => prop_oneof![fault(), read_fault()].prop_map(Op::FaultAtStart),
        1 => any::<u64>().prop_map(Op::BitFlip),
        2 => (batches(), any::<u64>()).prop_map(|(batches, seed)| Op::BadSector(batches, seed)),
        2 => (batches(), acts(), any::<u64>())
            .prop_map(|(batches, acts, seed)| Op::CutAndBadSector(batches, acts, seed)),
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
    prop_oneof![20 => normal, 10 => faults, 5 => rest]
}

impl Simulated {
    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(batches) => {
                let open = self.put(batches);
                assert!(
                    open.is_empty(),
                    "{open:?} were not stored, but the disk had no fault"
                );
                return;
            }
            Op::Resend(numbers) => {
                let numbers: Vec<_> = numbers
                    .iter()
                    .filter_map(|n| self.model.resendable(usize::from(*n)))
                    .collect();
                assert!(
                    self.resend(&numbers).is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
                return;
            }
            Op::ResendOpen => {
                let open = self.model.open();
                assert!(
                    self.resend(&open).is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
                return;
            }
            Op::ReopenAndReplay(count) => {
                self.reopen();
                let recent = self.model.recent(usize::from(*count));
                assert!(
                    self.resend(&recent).is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
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
                self.cut(Survives::Some, *seed);
                self.open();
            }
            Op::Fault(batches, fault) => {
                self.plan.add(fault.clone());
                let rejected = self.put(batches);
                self.check();
                let metrics = &self.rig().metrics;
                let counted =
                    metrics.entries_failed.get() + metrics.entries_rejected_disk_full.get();
                assert!(
                    rejected.is_empty() || counted > 0,
                    "{rejected:?} were rejected but not counted"
                );
                self.plan.heal();
            }
            Op::FaultAndCut(batches, fault, seed) => {
                self.plan.add(fault.clone());
                self.put(batches);
                self.check();
                self.cut(Survives::Some, *seed);
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
                assert!(
                    self.resend(&open).is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
                self.cut(Survives::Some, *seed);
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
                    // A failing read is not counted as loss.
                    Ok(()) if fault.act == Act::Read => {}
                    Ok(()) => self.check(),
                    Err(StoreError::Io { .. } | StoreError::FormatLost { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                self.close();
                self.plan.heal();
                self.open();
            }
            Op::Hostile {
                kind,
                outcome,
                seed,
            } => self.store_hostile(*kind, *outcome, &mut Random::new(*seed)),
            Op::BitFlip(seed) => self.flip_bit(&mut Random::new(*seed)),
            Op::Equal([first, second, third]) => {
                let times = [first, second, third].map(|n| usize::from(*n));
                self.show_equal_events(times);
            }
            Op::Clock(days) => self.set_clock_ahead(i64::from(*days)),
            Op::FullDisk(batches, blocks) => self.fill_up(batches, u64::from(*blocks)),
            Op::BadSector(batches, seed) => {
                self.start_with_a_bad_sector(batches, &mut Random::new(*seed));
            }
            Op::CutAndBadSector(batches, acts, seed) => {
                self.put_until(batches, *acts);
                self.cut(Survives::Some, *seed);
                self.recover_with_a_bad_sector(&mut Random::new(*seed));
            }
            Op::Backup {
                batches,
                delete,
                racing,
            } => self.back_up(batches, *delete, *racing),
            Op::Salvage => self.salvage(),
            Op::Verify(batches, acts) => {
                self.put_until(batches, *acts);
                self.cut(Survives::Some, u64::from(*acts) + batches.len() as u64);
                self.verify();
                self.open();
            }
        }
        self.check();
    }

    /// Sends batches to a process that loses its disk after this many operations.
    fn put_until(&mut self, batches: &[Vec<ItemSpec>], acts: u8) {
        self.disk.cut_after(u64::from(acts));
        self.put(batches);
    }

    fn store_hostile(&mut self, kind: u8, outcome: HostileOutcome, rng: &mut Random) {
        self.check();
        let (next_seq, state_dir) = (self.model.next_seq(), self.state_dir());
        let blob = |begin| hostile::blob(kind, begin, next_seq, &state_dir, rng);
        let (numbers, batch) = self.model.hostile(self.classes, blob);
        if let HostileOutcome::Torn(acts) = outcome {
            self.disk.cut_after(u64::from(acts));
        }
        let sent = self.send(numbers, batch);
        let open = self.wait(vec![sent]);
        match outcome {
            HostileOutcome::Stored => {
                assert!(
                    open.is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
            }
            HostileOutcome::Torn(_) => {
                self.cut(Survives::Some, rng.below(1 << 30));
                self.open();
            }
            HostileOutcome::Damaged(first) => {
                self.check();
                self.kill();
                let with_body = |frame: &FrameAt| frame.len > hostile::LEN as u64;
                let mut logs = hostile::logs(&self.state_dir());
                logs.retain(|log| {
                    !hostile::is_of_settings(log) && hostile::frames(log).iter().any(with_body)
                });
                if let Some(log) = logs.get(rng.index(logs.len())) {
                    let frames = hostile::frames(log);
                    let at = if first {
                        Some(0)
                    } else {
                        frames.iter().rposition(with_body)
                    };
                    let frame = at.and_then(|at| frames.get(at)).cloned().expect("a frame");
                    // In its header or its head.
                    self.damage(log, &frame.seqs, frame.offset + rng.below(200), rng);
                    return self.open_damaged(&frame.seqs);
                }
                self.open();
            }
        }
    }

    /// Starts after damage: lost entries must be counted.
    fn open_damaged(&mut self, seqs: &[saltcellar_model::SeqNo]) {
        self.open();
        self.check();
        let metrics = &self.rig().metrics;
        let counted = metrics.frames_damaged.get() + metrics.tail_bytes_truncated.get();
        assert!(
            self.model.has_read(seqs) || counted > 0,
            "{seqs:?} are lost but not counted"
        );
    }

    fn flip_bit(&mut self, rng: &mut Random) {
        self.check();
        if rng.coin() {
            self.close();
        } else {
            self.kill();
        }
        let logs = hostile::logs(&self.state_dir());
        if let Some(log) = logs.get(rng.index(logs.len())) {
            // Its numbers are not those of entries, and the other copy has everything.
            if hostile::is_of_settings(log) {
                let size = std::fs::metadata(log).unwrap().len();
                self.damage(log, &[], rng.below(size), rng);
                return self.open();
            }
            let frames = hostile::frames(log);
            match frames.get(rng.index(frames.len() + 1)) {
                Some(FrameAt { offset, len, seqs }) => {
                    let at = offset + rng.below(*len);
                    self.damage(log, seqs, at, rng);
                    return self.open_damaged(seqs);
                }
                None => self.damage(log, &[], rng.below(64), rng),
            }
        }
        self.open();
    }

    /// Flips a bit of a closed log. All other data is recorded as synced.
    fn damage(
        &mut self,
        log: &std::path::Path,
        seqs: &[saltcellar_model::SeqNo],
        at: u64,
        rng: &mut Random,
    ) {
        hostile::flip(log, at, rng);
        self.disk.adopt_file(log);
        self.model.damage(seqs);
    }

    fn show_equal_events(&mut self, [first, second, third]: [usize; 3]) {
        // The second source must not be further behind than the memory of deduplication certainly reaches: a single source, whichever
        // it is, is remembered for as many events as a generation has fingerprints.
        let reach = 2 * self.limits.dedupe_window;
        let first = first.min(reach);
        let second = if first == 0 {
            second.min(reach)
        } else {
            second
        };
        let sources = [
            (Source::Bus, first),
            (Source::EventReturn, second),
            (Source::Bus, third),
        ];
        for (numbers, batch) in self.model.equal_events(&sources, self.classes) {
            if !batch.is_empty() {
                let sent = self.send(numbers, batch);
                assert!(
                    self.wait(vec![sent]).is_empty(),
                    "an item was rejected, but the disk had no fault"
                );
            }
        }
    }

    /// A step of the clock must not expire anything by age.
    fn set_clock_ahead(&mut self, days: i64) {
        let by = days * 86_400_000_000;
        let now = self.clock.now();
        for by in [by, 0] {
            self.clock.set(Micros(now.0 + by));
            let expired = self.rig().store.0.retention.run_round();
            let expired: Vec<_> = expired
                .iter()
                .filter(|going| going.reason == Reason::Age)
                .collect();
            assert!(
                expired.is_empty(),
                "the clock was set {by} microseconds ahead, and {expired:?} were dropped"
            );
        }
    }

    fn fill_up(&mut self, batches: &[Vec<ItemSpec>], blocks: u64) {
        self.check();
        self.disk.leave_blocks(Some(blocks));
        self.put(batches);
        self.check();
        self.disk.leave_blocks(Some(0));
        let before = self.disk.blocks_used();
        for class in CLASS_NAMES {
            for outcome in self.prune(class, 0) {
                let failed = matches!(outcome, DropOutcome::Failed(_));
                assert!(!failed, "a full disk prevents a drop: {outcome:?}");
            }
        }
        assert!(
            self.disk.blocks_used() <= before,
            "drops needed additional space"
        );
        self.check();
        self.disk.leave_blocks(None);
    }

    /// Makes a sector of a random log unreadable; returns the numbers in its frames.
    fn break_a_sector(&mut self, rng: &mut Random) -> std::collections::BTreeSet<u64> {
        let logs = hostile::logs(&self.state_dir());
        let Some(log) = logs.get(rng.index(logs.len())) else {
            return std::collections::BTreeSet::new();
        };
        let size = std::fs::metadata(log).unwrap().len();
        let sector = SECTOR_BYTES as u64;
        let at = rng.below(size.max(1)) / sector * sector;
        self.plan
            .add_bad_sector(log.to_str().unwrap(), at..at + sector);
        // Its numbers are not those of entries, and the other copy has everything.
        if hostile::is_of_settings(log) {
            return std::collections::BTreeSet::new();
        }
        let met = |frame: &&FrameAt| frame.offset < at + sector && at < frame.offset + frame.len;
        // Also entries behind bytes that a power loss destroyed.
        let (frames, _) = hostile::all_frames(log);
        let hit = frames.iter().filter(met);
        hit.flat_map(|frame| frame.seqs.iter().map(|seq| seq.0))
            .collect()
    }

    fn listed(&self) -> std::collections::BTreeSet<u64> {
        let all = EventFilter::default();
        let store = &self.rig().store;
        let found = store.events_before(&all, SeqNo(u64::MAX), usize::MAX, usize::MAX);
        found.unwrap().iter().map(|entry| entry.seq.0).collect()
    }

    /// Only entries in the sector are missing, and only while it cannot be read. New entries are
    /// stored meanwhile.
    fn start_with_a_bad_sector(&mut self, batches: &[Vec<ItemSpec>], rng: &mut Random) {
        self.check();
        let before = self.listed();
        self.close();
        let hit = self.break_a_sector(rng);
        self.try_open()
            .unwrap_or_else(|error| panic!("a bad sector prevents the start: {error}"));
        let missing: Vec<u64> = before.difference(&self.listed()).copied().collect();
        assert!(
            self.model.is_damaged() || missing.iter().all(|seq| hit.contains(seq)),
            "{missing:?} are missing, {hit:?} are in the bad sector"
        );
        assert!(
            self.put(batches).is_empty(),
            "an item was rejected because of a bad sector"
        );
        self.close();
        self.plan.heal();
        self.open();
    }

    /// A start with a bad sector after a power loss takes nothing away that a later start can read.
    fn recover_with_a_bad_sector(&mut self, rng: &mut Random) {
        self.break_a_sector(rng);
        self.try_open()
            .unwrap_or_else(|error| panic!("a bad sector prevents the start: {error}"));
        self.kill();
        self.plan.heal();
        self.open();
    }

    pub(super) fn backup(&self) -> std::path::PathBuf {
        self.dir.path().join("backup")
    }

    fn back_up(&mut self, batches: &[Vec<ItemSpec>], delete: bool, racing: bool) {
        self.check();
        if racing {
            // Some listing should fall between the two renames that replace a segment by its sealed form.
            self.plan.delay_renames(Duration::from_millis(2));
            assert!(
                self.put(batches).is_empty(),
                "an item was rejected, but the disk had no fault"
            );
        }
        for _ in 0..if racing { 3 } else { 1 } {
            self.back_up_once(batches, delete);
        }
        self.plan.heal();
    }

    fn back_up_once(&mut self, batches: &[Vec<ItemSpec>], delete: bool) {
        let to_send: Vec<_> = batches
            .iter()
            .map(|specs| self.model.batch(specs, self.classes))
            .collect();
        // A backup contains but the last all but the last entries acknowledged before it began.
        let known = self.model.clone();
        let sent: Vec<_> = to_send
            .into_iter()
            .map(|(numbers, batch)| self.send(numbers, batch))
            .collect();
        let options = backup::BackupOptions {
            delete,
            link: false,
        };
        backup(
            &self.state_dir(),
            &self.backup(),
            options,
            Micros(1),
            &mut (),
        )
        .unwrap();
        assert!(
            self.wait(sent).is_empty(),
            "an item was rejected, but the disk had no fault"
        );
        let copy = self.dir.path().join("restored");
        restore(&self.backup(), &copy, Micros(1), &mut ()).unwrap();
        self.check_copy(&copy, &known);
    }

    fn salvage(&mut self) {
        self.check();
        self.kill();
        let copy = self.dir.path().join("saved");
        salvage(&self.state_dir(), &copy, Micros(1), &mut ()).unwrap();
        self.check_copy(&copy, &self.model);
        self.open();
    }

    /// Opens a copy of the store, checks it, and removes it.
    fn check_copy(&self, copy: &std::path::Path, model: &super::Model) {
        let fs = std::sync::Arc::new(Disk);
        let options = super::Options {
            fs,
            ..super::options(copy, self.limits)
        };
        let rig = super::Rig::open(&options).unwrap();
        model.check_copy(&rig.store);
        rig.close();
        std::fs::remove_dir_all(copy).unwrap();
    }

    fn verify(&mut self) {
        let report = verify(&self.state_dir(), verify::VerifyOptions::default(), &mut ()).unwrap();
        // With durability `written`, a power loss may lose the middle of a log.
        let may_be_damaged = self.model.is_damaged() || self.is_written();
        // sled's files are not on the simulated disk, and a power loss damages them.
        let of_logs: Vec<_> = report
            .problems
            .iter()
            .filter(|problem| problem.path.ends_with("log"))
            // Only the index knows where a finished log ends.
            .filter(|problem| problem.what != "the end of the log is unknown")
            // The cut may take synced bytes from sled's file, and an older state lists segments
            // that were dropped since. What is there is compared with the model after the start.
            .filter(|problem| problem.what != "segment missing")
            .collect();
        assert!(may_be_damaged || of_logs.is_empty(), "{of_logs:?}");
        assert_eq!(report.format, crate::FORMAT_VERSION);
    }
}
