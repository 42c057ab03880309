//! Disks that fill up, fail, or delay operations: senders get an error, acknowledged entries survive, partially written frames
//! are never read, and the store recovers when the disk does.

use std::time::Duration;

use rustix::io::Errno;

use super::model::VARIANTS;
use super::operations::Op;
use super::*;
use crate::log::file::LogFile;
use crate::log::frame::LogId;
use crate::log::walk;
use crate::tests::batch_of;
use crate::tests::retention::is_cleared;
use crate::vfs::Disk;
use crate::vfs::faults::Fault;
use saltcellar_model::{EventFilter, SeqNo};

const ROOMY: Limits = Limits {
    durability: Durability::Durable,
    segment_bytes_max: 1 << 20,
    segment_entries_max: 1_000_000,
    ..Limits::DEFAULT
};

/// Entries of every variant, all small, in batches of `size`.
fn mixture(batches: usize, size: usize) -> Vec<Vec<ItemSpec>> {
    let spec = |n: usize| {
        let small = |n: usize| u8::try_from(n).unwrap();
        let (variant, job, minion) = (
            small(n % usize::from(VARIANTS)),
            small(n / 7 % 6),
            small(n % 4),
        );
        ItemSpec {
            variant,
            job,
            minion,
            size: u16::try_from(n * 37 % 90 + 1).unwrap(),
        }
    };
    (0..batches)
        .map(|batch| (0..size).map(|n| spec(batch * size + n)).collect())
        .collect()
}

impl Simulated {
    fn counter(&self, name: &str) -> u64 {
        self.rig()
            .metrics
            .all()
            .iter()
            .find(|(counter, _)| *counter == name)
            .unwrap()
            .1
    }

    /// The logs of a class, oldest first.
    fn logs(&self, class: &str) -> Vec<PathBuf> {
        let items = fs::read_dir(self.state_dir().join("log").join(class)).unwrap();
        let mut logs: Vec<_> = items.map(|item| item.unwrap().path().join("log")).collect();
        logs.retain(|log| log.is_file());
        logs.sort();
        logs
    }

    /// Repairs the disk and checks that rejected and new entries are accepted and survive a restart and a power loss.
    fn recovers(&mut self, rejected: &[usize]) {
        self.plan.heal();
        assert!(
            self.resend(rejected).is_empty(),
            "an entry is rejected again on the repaired disk"
        );
        assert!(
            self.put(&mixture(3, 10)).is_empty(),
            "an entry is rejected on the repaired disk"
        );
        self.check();
        self.reopen();
        self.check();
        self.cut(Survives::Nothing, 0);
        self.open();
        self.check();
        assert_eq!(self.frames_damaged, 0);
    }
}

#[test]
fn a_full_disk_is_reported_counted_and_survived() {
    for room in [0, 1, 31, 64, 700, 5000] {
        let mut simulated = Simulated::new(ROOMY);
        assert!(simulated.put(&mixture(4, 8)).is_empty());
        simulated.plan.leave_room(Some(room));
        let mut rejected = Vec::new();
        for _ in 0..10 {
            rejected.extend(simulated.put(&mixture(5, 8)));
        }
        assert!(
            rejected.len() >= 40,
            "{room} bytes free, {} rejected",
            rejected.len()
        );
        assert_eq!(
            simulated.counter("entries_failed"),
            rejected.len() as u64,
            "{room} bytes free"
        );
        simulated.check();
        simulated.recovers(&rejected);
    }
}

/// Segments whose seal failed have no index to remove first, and no directory has room for another
/// name.
#[test]
fn a_drop_needs_no_free_block() {
    let mut simulated = Simulated::new(TINY);
    simulated.plan.add(Fault {
        within: "/index".to_owned(),
        ..Fault::lasting(Act::Create, Errno::NOSPC)
    });
    for batches in mixture(140, 3).chunks(7) {
        assert!(simulated.put(batches).is_empty());
    }
    let metrics = simulated.rig().metrics.clone();
    saltcellar_testkit::wait_for("failed seals", || {
        (metrics.seals_failed.get() > 3).then_some(())
    });
    simulated.check();

    simulated.disk.leave_blocks(Some(0));
    let add_names = |dir: &Path| {
        let mut names = (0..1000).map(|n| dir.join(format!("log.cut-{n}")));
        assert!(names.any(|name| simulated.disk.create(&name).is_err()));
    };
    for class in ["jobs", "events"] {
        let logs = simulated.logs(class);
        for log in logs {
            add_names(log.parent().unwrap());
        }
        add_names(&simulated.state_dir().join("log").join(class));
    }

    let before = simulated.disk.blocks_used();
    let mut dropped = 0;
    for class in ["jobs", "events"] {
        // The sealer still tries.
        saltcellar_testkit::wait_for("drops", || {
            let outcomes = simulated.prune(class, 0);
            let failed = |outcome: &DropOutcome| matches!(outcome, DropOutcome::Failed(_));
            assert!(!outcomes.iter().any(failed), "{outcomes:?}");
            let gone = |outcome: &&DropOutcome| **outcome == DropOutcome::Dropped;
            dropped += outcomes.iter().filter(gone).count();
            (!outcomes.contains(&DropOutcome::Busy)).then_some(())
        });
    }
    assert!(dropped > 3, "{dropped}");
    assert!(simulated.disk.blocks_used() < before, "nothing was freed");
    simulated.check();

    // Nothing of them is left, or taken for lost.
    simulated.disk.leave_blocks(None);
    simulated.plan.heal();
    simulated.reopen();
    let state_dir = simulated.state_dir();
    saltcellar_testkit::wait_for("finished drops", || is_cleared(&state_dir).then_some(()));
    assert_eq!(simulated.counter("segments_missing"), 0);
    simulated.check();
    simulated.close();
}

#[test]
fn a_power_cut_of_a_full_disk_loses_no_acknowledged_entry() {
    for (seed, left) in [
        (1, Survives::All),
        (2, Survives::Nothing),
        (3, Survives::Some),
        (4, Survives::Some),
    ] {
        let mut simulated = Simulated::new(ROOMY);
        assert!(simulated.put(&mixture(4, 8)).is_empty());
        simulated.plan.leave_room(Some(1500));
        let rejected = simulated.put(&mixture(30, 8));
        assert!(!rejected.is_empty());
        simulated.cut(left, seed);
        simulated.plan.heal();
        simulated.open();
        simulated.check();
        simulated.recovers(&rejected);
    }
}

#[test]
fn any_failing_operation_is_reported_and_the_store_continues() {
    // Failing reads affect readers only.
    for (act, _) in Act::ALL.into_iter().filter(|(act, _)| *act != Act::Read) {
        for (errno, from) in [(Errno::NOSPC, 1), (Errno::IO, 1), (Errno::IO, 2)] {
            let mut simulated = Simulated::new(TINY);
            simulated.plan.add(Fault {
                from,
                ..Fault::lasting(act, errno)
            });
            let mut rejected = Vec::new();
            for _ in 0..4 {
                rejected.extend(simulated.put(&mixture(3, 20)));
            }
            simulated.check();
            let case = format!("{act:?} fails with {errno} from the {from}th on");
            // An operation whose failure prevents writes: to a log, or the creation of the next segment.
            let vital = !matches!(act, Act::SetLen | Act::Remove | Act::Read);
            assert_eq!(
                !rejected.is_empty(),
                vital,
                "{case}: {} rejected",
                rejected.len()
            );
            assert_eq!(
                simulated.counter("entries_failed"),
                rejected.len() as u64,
                "{case}"
            );
            simulated.recovers(&rejected);
        }
    }
}

#[test]
fn a_partially_written_frame_is_never_read() {
    for part in [1, 15, 16, 40, 48, 64, 200, 500, 800] {
        for undone in [true, false] {
            let mut simulated = Simulated::new(ROOMY);
            assert!(simulated.put(&mixture(2, 8)).is_empty());
            simulated.plan.add(Fault {
                part,
                ..Fault::once(Act::Write, Errno::NOSPC)
            });
            if !undone {
                simulated.plan.add(Fault::once(Act::SetLen, Errno::IO));
            }
            let rejected = simulated.put(&mixture(1, 30));
            assert_eq!(rejected.len(), 30, "{part} bytes written");
            simulated.check();
            // A shorter commit at the same offset.
            assert!(simulated.put(&mixture(1, 1)).is_empty());
            simulated.check();
            simulated.cut(Survives::All, 0);
            simulated.open();
            simulated.check();
            simulated.recovers(&rejected);
        }
    }
}

#[test]
fn a_torn_commit_has_no_effect() {
    for seed in 0..100 {
        let mut simulated = Simulated::new(ROOMY);
        assert!(simulated.put(&mixture(1, 8)).is_empty());
        // Cut the power after one or two logs are written and before any is synced.
        simulated.disk.cut_after(1 + seed % 2);
        assert_eq!(simulated.put(&mixture(1, 60)).len(), 60);
        simulated.cut(Survives::Some, seed);
        simulated.open();
        simulated.check();
        simulated.close();
    }
}

#[test]
fn a_read_that_failed_once_at_a_start_hides_nothing_after_a_power_cut() {
    // Whichever read it is: of a frame, of its block, of an index.
    for from in 1..60 {
        let mut simulated = Simulated::new(ROOMY);
        simulated.put(&mixture(9, 6));
        simulated.apply(&Op::FaultAtStart(Fault {
            from,
            ..Fault::once(Act::Read, Errno::IO)
        }));
        simulated.apply(&Op::Cut(mixture(1, 2), 0, from));
        simulated.close();
    }
}

#[test]
fn each_read_can_fail_once_and_neither_a_start_nor_a_search_ends_with_it() {
    for nth in 1.. {
        let mut simulated = Simulated::new(TINY);
        simulated.put(&mixture(9, 6));
        simulated.close();
        let before = simulated.plan.count(Act::Read);
        simulated.plan.add(Fault {
            from: nth,
            ..Fault::once(Act::Read, Errno::IO)
        });

        simulated.open();
        let store = simulated.rig().store.clone();
        let everything = (SeqNo(u64::MAX), usize::MAX, usize::MAX);
        let listed = store.events_before(
            &EventFilter::default(),
            everything.0,
            everything.1,
            everything.2,
        );
        let jobs = store.jobs_before(None, usize::MAX);
        assert!(
            listed.is_ok() && jobs.is_ok(),
            "read {nth}: {listed:?} {jobs:?}"
        );
        for (_, job) in jobs.unwrap() {
            let entries = store.job_entries(&job.jid);
            assert!(entries.is_ok(), "read {nth}: {entries:?}");
        }
        drop(store);
        // Segments are sealed meanwhile.
        simulated.put(&mixture(3, 6));
        let reads = simulated.plan.count(Act::Read) - before;

        // What could not be read for a moment is not lost.
        simulated.plan.heal();
        simulated.reopen();
        simulated.check();
        simulated.close();
        if reads < nth {
            assert!(nth > 20, "only {reads} reads");
            break;
        }
    }
}

#[test]
fn an_index_that_returns_with_a_power_cut_makes_no_unfinished_write_a_loss() {
    // A start that cannot read the log seals it, without its entries. The next one removes this
    // index, and appends to the log until the power is cut.
    for (from, acts) in (1..6).flat_map(|from| (0..12).map(move |acts| (from, acts))) {
        let mut simulated = Simulated::new(TINY);
        simulated.put(&mixture(1, 4));
        simulated.apply(&Op::FaultAtStart(Fault {
            from,
            ..Fault::lasting(Act::Read, Errno::IO)
        }));
        simulated.apply(&Op::Verify(mixture(2, 4), acts));
        simulated.close();
    }
}

#[test]
fn a_power_cut_after_a_failed_seal_loses_no_entry() {
    for seed in 0..60 {
        let mut simulated = Simulated::new(TINY);
        let act = if seed % 2 == 0 {
            Act::Rename
        } else {
            Act::ALL[usize::try_from(seed).unwrap() / 2 % 8].0
        };
        simulated.plan.add(Fault {
            from: 8 + seed / 4,
            ..Fault::lasting(act, Errno::IO)
        });
        // Small commits create blocks to merge, in several finished segments.
        for batches in mixture(70, 3).chunks(7) {
            simulated.put(batches);
        }
        simulated.check();
        simulated.cut(Survives::Some, seed);
        simulated.plan.heal();
        simulated.open();
        simulated.check();
        simulated.close();
    }
}

/// The name of the generation that replaces a segment is not durable. The growing form must not be removed before
/// it is, neither by the next attempt nor by the next start.
#[test]
fn the_growing_form_was_removed_before_the_next_generation_was_durable() {
    let limits = Limits {
        segment_bytes_max: 1 << 20,
        ..TINY
    };
    for (seed, restarts) in (0..16).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut simulated = Simulated::new(limits);
        let beacon = ItemSpec {
            variant: 0,
            job: 0,
            minion: 1,
            size: 50,
        };
        assert!(simulated.put(&[vec![beacon]]).is_empty());
        // The directory of the sealed segment is synced, the class's directory is not.
        simulated.plan.add(Fault {
            from: 2,
            within: "/log/events".to_owned(),
            ..Fault::lasting(Act::SyncDir, Errno::IO)
        });
        for _ in 1..limits.segment_entries_max {
            assert!(simulated.put(&[vec![beacon]]).is_empty());
        }
        let metrics = simulated.rig().metrics.clone();
        saltcellar_testkit::wait_for("failed seal", || {
            (metrics.seals_failed.get() > 0).then_some(())
        });
        if restarts {
            simulated.kill();
            assert!(
                matches!(simulated.try_open(), Err(StoreError::Io { .. })),
                "the sync of the class fails"
            );
        } else {
            // The sealer retries before it ends.
            simulated.close();
        }
        simulated.cut(Survives::Some, seed);
        simulated.plan.heal();
        simulated.open();
        simulated.check();
        assert_eq!(simulated.counter("segments_missing"), 0);
        simulated.close();
    }
}

#[test]
fn a_log_is_never_written_after_a_failed_sync() {
    let mut simulated = Simulated::new(ROOMY);
    let beacons = |count: usize| {
        vec![vec![
            ItemSpec {
                variant: 0,
                job: 0,
                minion: 1,
                size: 50
            };
            count
        ]]
    };
    assert!(simulated.put(&beacons(5)).is_empty());
    let [first] = &simulated.logs("events")[..] else {
        panic!("one log")
    };
    let id = LogId {
        store_id: simulated.rig().store.0.dir.store_id(),
        first_seq: SeqNo(simulated.segments("events")[0]),
    };
    let end = || {
        let log = LogFile::bare(&Disk, first, id).unwrap();
        walk::walk(
            &log,
            walk::Bounds::of_log(log.size().unwrap()),
            true,
            |_, _| None,
        )
        .unwrap()
        .end
    };
    let synced = end();
    simulated.plan.add(Fault::once(Act::Sync, Errno::IO));
    let rejected = simulated.put(&beacons(5));
    assert_eq!(rejected.len(), 5);
    assert!(simulated.put(&beacons(5)).is_empty(), "a new log");
    let logs = simulated.logs("events");
    assert_eq!((logs.len(), &logs[0]), (2, first));
    assert_eq!(
        (end(), fs::metadata(first).unwrap().len()),
        (synced, synced)
    );
    simulated.check();
    // Data of the failed sync is lost; none of it was acknowledged.
    simulated.cut(Survives::Nothing, 0);
    simulated.open();
    simulated.check();
    simulated.recovers(&rejected);
}

#[test]
fn after_a_failed_sync_and_a_kill_retries_were_duplicates_of_entries_not_on_disk() {
    let beacons = |count: usize| {
        vec![vec![
            ItemSpec {
                variant: 0,
                job: 0,
                minion: 1,
                size: 50
            };
            count
        ]]
    };
    for newest in [true, false] {
        let mut simulated = Simulated::new(ROOMY);
        assert!(simulated.put(&beacons(5)).is_empty());
        simulated.plan.add(Fault::once(Act::Sync, Errno::IO));
        if newest {
            // The write and the failed sync; then the process is killed.
            simulated.disk.cut_after(2);
        } else {
            // The log with the failed sync cannot be truncated, so the store continues in another segment.
            simulated.plan.add(Fault {
                within: simulated.logs("events")[0].display().to_string(),
                ..Fault::lasting(Act::SetLen, Errno::IO)
            });
        }
        let rejected = simulated.put(&beacons(5));
        assert_eq!(rejected.len(), 5);
        if !newest {
            assert!(simulated.put(&beacons(5)).is_empty());
            simulated.disk.cut_after(0);
        }
        simulated.close();
        simulated.disk.restore();
        simulated.plan.heal();
        simulated.open();
        assert!(simulated.resend(&rejected).is_empty());
        simulated.cut(Survives::Nothing, 0);
        simulated.open();
        simulated.check();
        simulated.recovers(&[]);
    }
}

#[test]
fn acknowledged_unsynced_entries_were_not_rewritten_when_their_sync_failed() {
    let written = Durability::Written {
        within: Duration::from_secs(3600),
    };
    let mut simulated = Simulated::new(Limits {
        durability: written,
        ..ROOMY
    });
    assert!(simulated.put(&mixture(3, 8)).is_empty());
    simulated.plan.add(Fault {
        within: "/log/events/".to_owned(),
        ..Fault::once(Act::Sync, Errno::IO)
    });
    simulated.close();
    simulated.cut(Survives::Nothing, 0);
    simulated.open();
    simulated.check();
    simulated.recovers(&[]);
}

#[test]
fn many_callers_on_a_slow_disk_share_its_syncs() {
    const CALLERS: u64 = 48;
    const EACH: u64 = 10;
    let simulated = Simulated::new(ROOMY);
    simulated.plan.delay_syncs(Duration::from_millis(5));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let simulated = &simulated;
            scope.spawn(move || {
                for n in 0..EACH {
                    let (_, answer) = simulated.send(Vec::new(), batch_of([caller * 1000 + n]));
                    saltcellar_testkit::receive(&answer).unwrap();
                }
            });
        }
    });
    let (entries, commits) = (
        simulated.counter("entries_stored"),
        simulated.counter("commits"),
    );
    assert_eq!(entries, CALLERS * EACH);
    assert!(
        commits * 8 < entries,
        "{entries} entries took {commits} commits"
    );
    // Each commit syncs the log of each of its classes once.
    assert!(
        simulated.plan.count(Act::Sync) <= 2 * commits + 20,
        "{} syncs",
        simulated.plan.count(Act::Sync)
    );
}
