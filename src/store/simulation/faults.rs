//! Disks that fill up, fail and dawdle: who sent is told, nothing that was answered is lost, nothing half
//! written is read, and all is well again when the disk is.

use std::time::Duration;

use rustix::io::Errno;

use super::super::tests::batch_of;
use super::model::WHATS;
use super::*;
use crate::store::frame::LogId;
use crate::store::log::LogFile;
use crate::store::vfs::Disk;
use crate::store::vfs::faults::Fault;

const ROOMY: Limits = Limits {
    durability: Durability::Durable,
    segment_bytes_max: 1 << 20,
    segment_entries_max: 1_000_000,
    ..Limits::DEFAULT
};

/// Something of every kind, in batches of `size`, none of it large.
fn mixture(batches: usize, size: usize) -> Vec<Vec<Shape>> {
    let shape = |n: usize| {
        let small = |n: usize| u8::try_from(n).unwrap();
        let (what, job, minion) = (small(n % usize::from(WHATS)), small(n / 7 % 6), small(n % 4));
        Shape { what, job, minion, size: u16::try_from(n * 37 % 90 + 1).unwrap() }
    };
    (0..batches).map(|batch| (0..size).map(|n| shape(batch * size + n)).collect()).collect()
}

impl Simulated {
    fn counter(&self, name: &str) -> u64 {
        self.rig().metrics.all().iter().find(|(counter, _)| *counter == name).unwrap().1
    }

    /// The logs of a class, the oldest first.
    fn logs(&self, class: &str) -> Vec<PathBuf> {
        let items = fs::read_dir(self.cellar().join("log").join(class)).unwrap();
        let mut logs: Vec<_> = items.map(|item| item.unwrap().path().join("log")).collect();
        logs.retain(|log| log.is_file());
        logs.sort();
        logs
    }

    /// All is well again: what was refused is taken, and so is more. It is there after a stop, and after a cut.
    fn recovers(&mut self, refused: &[usize]) {
        self.plan.heal();
        assert!(
            self.put_again(refused).is_empty(),
            "the disk is mended, and what was refused is refused again"
        );
        assert!(self.put(&mixture(3, 10)).is_empty(), "the disk is mended");
        self.check();
        self.reopen();
        self.check();
        self.cut(Left::Nothing, 0);
        self.open();
        self.check();
        assert_eq!(self.frames_damaged, 0);
    }
}

#[test]
fn a_full_disk_is_told_counted_and_survived() {
    for room in [0, 1, 31, 64, 700, 5000] {
        let mut house = Simulated::new(ROOMY);
        assert!(house.put(&mixture(4, 8)).is_empty());
        house.plan.leave_room(Some(room));
        let mut refused = Vec::new();
        for _ in 0..10 {
            refused.extend(house.put(&mixture(5, 8)));
        }
        assert!(refused.len() >= 40, "{room} bytes of room, {} refused", refused.len());
        assert_eq!(house.counter("entries_failed"), refused.len() as u64, "{room} bytes of room");
        house.check();
        house.recovers(&refused);
    }
}

#[test]
fn a_disk_that_fills_up_and_dies_loses_nothing_that_was_answered() {
    for (seed, left) in [(1, Left::All), (2, Left::Nothing), (3, Left::Some), (4, Left::Some)] {
        let mut house = Simulated::new(ROOMY);
        assert!(house.put(&mixture(4, 8)).is_empty());
        house.plan.leave_room(Some(1500));
        let refused = house.put(&mixture(30, 8));
        assert!(!refused.is_empty());
        house.cut(left, seed);
        house.plan.heal();
        house.open();
        house.check();
        house.recovers(&refused);
    }
}

#[test]
fn whatever_act_fails_is_told_and_the_store_goes_on() {
    // Reads that fail concern who reads.
    for (act, _) in Act::ALL.into_iter().filter(|(act, _)| *act != Act::Read) {
        for (errno, from) in [(Errno::NOSPC, 1), (Errno::IO, 1), (Errno::IO, 2)] {
            let mut house = Simulated::new(TINY);
            house.plan.add(Fault { from, ..Fault::lasting(act, errno) });
            let mut refused = Vec::new();
            for _ in 0..4 {
                refused.extend(house.put(&mixture(3, 20)));
            }
            house.check();
            let told = format!("{act:?} fails with {errno} from the {from}th on");
            // A full segment that cannot be followed by a new one, or a log that cannot be written.
            let vital = !matches!(act, Act::SetLen | Act::Remove | Act::Read);
            assert_eq!(!refused.is_empty(), vital, "{told}: {} refused", refused.len());
            assert_eq!(house.counter("entries_failed"), refused.len() as u64, "{told}");
            house.recovers(&refused);
        }
    }
}

#[test]
fn half_a_frame_is_never_read() {
    for part in [1, 15, 16, 40, 48, 64, 200, 500, 800] {
        for undone in [true, false] {
            let mut house = Simulated::new(ROOMY);
            assert!(house.put(&mixture(2, 8)).is_empty());
            house.plan.add(Fault { part, ..Fault::once(Act::Write, Errno::NOSPC) });
            if !undone {
                house.plan.add(Fault::once(Act::SetLen, Errno::IO));
            }
            let refused = house.put(&mixture(1, 30));
            assert_eq!(refused.len(), 30, "{part} bytes written");
            house.check();
            // Another commit in the same place, shorter than what was left there.
            assert!(house.put(&mixture(1, 1)).is_empty());
            house.check();
            house.cut(Left::All, 0);
            house.open();
            house.check();
            house.recovers(&refused);
        }
    }
}

#[test]
fn a_commit_torn_in_any_way_is_as_if_it_had_not_been() {
    for seed in 0..100 {
        let mut house = Simulated::new(ROOMY);
        assert!(house.put(&mixture(1, 8)).is_empty());
        // The power goes after one log was written to, or two, and before any is synced.
        house.disk.let_power_go_after(1 + seed % 2);
        assert_eq!(house.put(&mixture(1, 60)).len(), 60);
        house.cut(Left::Some, seed);
        house.open();
        house.check();
        house.close();
    }
}

#[test]
fn sealing_that_fails_anywhere_and_loses_power_loses_nothing() {
    for seed in 0..60 {
        let mut house = Simulated::new(TINY);
        let act =
            if seed % 2 == 0 { Act::Rename } else { Act::ALL[usize::try_from(seed).unwrap() / 2 % 8].0 };
        house.plan.add(Fault { from: 8 + seed / 4, ..Fault::lasting(act, Errno::IO) });
        // Small commits, so that there is something to merge, and several segments wait for it.
        for batches in mixture(70, 3).chunks(7) {
            house.put(batches);
        }
        house.check();
        house.cut(Left::Some, seed);
        house.plan.heal();
        house.open();
        house.check();
        house.close();
    }
}

/// The exchange of names that puts a merged log into its place is not on disk, and what grew must not be removed before it is:
/// neither by the next attempt nor by the next start.
#[test]
fn what_grew_was_removed_while_the_exchange_of_names_was_not_on_disk() {
    let limits = Limits { segment_bytes_max: 1 << 20, ..TINY };
    for (seed, restarts) in (0..16).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut house = Simulated::new(limits);
        let beacon = Shape { what: 0, job: 0, minion: 1, size: 50 };
        assert!(house.put(&[vec![beacon]]).is_empty());
        // The directory of the merged log is synced, and that of the class is not.
        house.plan.add(Fault {
            from: 2,
            within: "/log/events".to_owned(),
            ..Fault::lasting(Act::SyncDir, Errno::IO)
        });
        for _ in 1..limits.segment_entries_max {
            assert!(house.put(&[vec![beacon]]).is_empty());
        }
        let metrics = house.rig().metrics.clone();
        crate::testing::wait_for("failed seal", || (metrics.seals_failed.get() > 0).then_some(()));
        if restarts {
            house.kill();
            assert!(matches!(house.try_open(), Err(StoreError::Io { .. })), "the class is not synced");
        } else {
            // The sealer tries again before it ends.
            house.close();
        }
        house.cut(Left::Some, seed);
        house.plan.heal();
        house.open();
        house.check();
        assert_eq!(house.counter("segments_missing"), 0);
        house.close();
    }
}

#[test]
fn after_a_failed_sync_a_log_is_never_written_again() {
    let mut house = Simulated::new(ROOMY);
    let beacons = |count: usize| vec![vec![Shape { what: 0, job: 0, minion: 1, size: 50 }; count]];
    assert!(house.put(&beacons(5)).is_empty());
    let [first] = &house.logs("events")[..] else { panic!("one log") };
    let id = LogId { store_id: house.rig().store.0.store_id, first_seq: SeqNo(house.segments("events")[0]) };
    let end = || {
        let log = LogFile::bare(&Disk, first, id).unwrap();
        walk::walk(&log, walk::Bounds::of_log(log.size().unwrap()), true, |_, _| None).unwrap().end
    };
    let synced = end();
    house.plan.add(Fault::once(Act::Sync, Errno::IO));
    let refused = house.put(&beacons(5));
    assert_eq!(refused.len(), 5);
    assert!(house.put(&beacons(5)).is_empty(), "the next one goes into a log of its own");
    let logs = house.logs("events");
    assert_eq!((logs.len(), &logs[0]), (2, first));
    assert_eq!((end(), fs::metadata(first).unwrap().len()), (synced, synced));
    house.check();
    // What the failed sync lost is gone; nothing that was answered was in there.
    house.cut(Left::Nothing, 0);
    house.open();
    house.check();
    house.recovers(&refused);
}

#[test]
fn after_a_failed_sync_and_a_kill_a_retry_was_a_duplicate_of_what_was_never_on_disk() {
    let beacons = |count: usize| vec![vec![Shape { what: 0, job: 0, minion: 1, size: 50 }; count]];
    for newest in [true, false] {
        let mut house = Simulated::new(ROOMY);
        assert!(house.put(&beacons(5)).is_empty());
        house.plan.add(Fault::once(Act::Sync, Errno::IO));
        if newest {
            // The write, and the sync that fails; then the process is killed.
            house.disk.let_power_go_after(2);
        } else {
            // It goes on with another segment, for the one with the failed sync cannot be cut.
            house.plan.add(Fault {
                within: house.logs("events")[0].display().to_string(),
                ..Fault::lasting(Act::SetLen, Errno::IO)
            });
        }
        let refused = house.put(&beacons(5));
        assert_eq!(refused.len(), 5);
        if !newest {
            assert!(house.put(&beacons(5)).is_empty());
            house.disk.let_power_go_after(0);
        }
        house.close();
        house.disk.let_power_stay();
        house.plan.heal();
        house.open();
        assert!(house.put_again(&refused).is_empty());
        house.cut(Left::Nothing, 0);
        house.open();
        house.check();
        house.recovers(&[]);
    }
}

#[test]
fn what_was_answered_before_it_was_synced_was_left_in_memory_when_its_sync_failed() {
    let written = Durability::Written { within: Duration::from_secs(3600) };
    let mut house = Simulated::new(Limits { durability: written, ..ROOMY });
    assert!(house.put(&mixture(3, 8)).is_empty());
    house.plan.add(Fault { within: "/log/events/".to_owned(), ..Fault::once(Act::Sync, Errno::IO) });
    house.close();
    house.cut(Left::Nothing, 0);
    house.open();
    house.check();
    house.recovers(&[]);
}

#[test]
fn many_callers_on_a_slow_disk_share_its_syncs() {
    const CALLERS: u64 = 48;
    const EACH: u64 = 10;
    let house = Simulated::new(ROOMY);
    house.plan.delay_syncs(Duration::from_millis(5));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let house = &house;
            scope.spawn(move || {
                for n in 0..EACH {
                    let (_, answer) = house.send(Vec::new(), batch_of([caller * 1000 + n]));
                    crate::testing::receive(&answer).unwrap();
                }
            });
        }
    });
    let (entries, commits) = (house.counter("entries_stored"), house.counter("commits"));
    assert_eq!(entries, CALLERS * EACH);
    assert!(commits * 8 < entries, "{entries} entries took {commits} commits");
    // Each commit syncs the log of each class it touches, once.
    assert!(house.plan.count(Act::Sync) <= 2 * commits + 20, "{} syncs", house.plan.count(Act::Sync));
}
