//! Sectors that the disk cannot read: only the entries in them are lost, nothing is cut off, and a later read may succeed.

use std::collections::BTreeSet;
use std::ops::Range;

use rustix::io::Errno;

use super::forged::frames;
use crate::read::StoredEntry;
use crate::read::consumer::BatchLimits;
use crate::read::consumer::tests::{filter, take_all};
use crate::read::follow::Followed;
use crate::tests::*;
use crate::tools::backup::{self, backup};
use crate::tools::layout::SegmentFiles;
use crate::tools::rebuild::rebuild;
use crate::tools::tests::verify;
use crate::tools::verify;
use saltcellar_base::limits::SECTOR_BYTES;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Seven of the events below fill a segment.
const LIMITS: Limits = Limits {
    segment_bytes_max: 1 << 20,
    ..Limits::DEFAULT
};

/// Event `n`, too large for its block to be merged.
fn large(n: u64) -> Batch {
    let body = noise(n, 150_000);
    let tag = format!("large/{n}");
    Batch::of(&event_entry(tag.as_bytes(), &body, Source::Bus, Micros(0)))
}

fn tags(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(|n| format!("large/{n}")).collect()
}

/// A closed store with events `1..=count`, whose sequence numbers are the same, and a consumer; returns its logs, oldest first.
fn store(dir: &Path, count: u64) -> Vec<PathBuf> {
    store_of(dir, "events", count, large)
}

fn store_of(
    dir: &Path,
    class_name: &str,
    count: u64,
    event: impl Fn(u64) -> Batch,
) -> Vec<PathBuf> {
    let rig = Rig::open(dir, LIMITS);
    rig.store
        .consumers()
        .create("audit", filter("{}"), Start::Oldest)
        .unwrap();
    (1..=count).for_each(|n| rig.put(event(n)).unwrap());
    rig.store
        .0
        .retention
        .holds
        .hold("4711", "audit", Micros(1))
        .unwrap();
    rig.close();
    let logs = files_named(dir, "log");
    logs.into_iter()
        .filter(|log| log.starts_with(format::class_dir(dir, class_name)))
        .collect()
}

fn opened(dir: &Path, plan: &Arc<Plan>) -> Rig {
    opened_with(dir, plan, LIMITS)
}

/// As [`opened`], without a block of the old segments in memory.
fn opened_unread(dir: &Path, plan: &Arc<Plan>) -> Rig {
    let limits = Limits {
        dedupe_window: 1,
        ..LIMITS
    };
    opened_with(dir, plan, limits)
}

fn opened_with(dir: &Path, plan: &Arc<Plan>, limits: Limits) -> Rig {
    let fs = Arc::new(Faults::over(Arc::new(vfs::Disk), plan.clone()));
    Rig::open_with(&Options {
        fs,
        ..options(dir, limits)
    })
}

/// The numbers of the events in a log with a sector, among those from `first` on.
fn hit(log: &Path, first: u64, sector: &Range<u64>) -> BTreeSet<u64> {
    let begins: Vec<u64> = frames(log).iter().map(|at| *at as u64).collect();
    let size = fs::metadata(log).unwrap().len();
    let ends = begins.iter().skip(1).copied().chain([size]);
    (first..)
        .zip(begins.iter().zip(ends))
        .filter(|(_, (begin, end))| **begin < sector.end && sector.start < *end)
        .map(|(n, _)| n)
        .collect()
}

/// Everything but the hit events is listed and delivered, and the damage is named.
fn check(rig: &Rig, count: u64, hit: &BTreeSet<u64>, log: &Path, case: &str) {
    let expected = tags((1..=count).filter(|n| !hit.contains(n)));
    assert_eq!(rig.tags(), expected, "{case}: listed");
    assert_eq!(take_all(&rig.store), expected, "{case}: delivered");

    let known = rig.store.damage();
    assert!(
        known.iter().all(|damage| damage.path == log),
        "{case}: {known:?}"
    );
    assert!(!known.is_empty(), "{case}");
    let metrics = &rig.metrics;
    assert_eq!(metrics.frames_damaged.get(), known.len() as u64, "{case}");
    assert!(metrics.log_bytes_unreadable.get() >= SECTOR, "{case}");
    assert_eq!(metrics.tail_bytes_truncated.get(), 0, "{case}");
    // Again: it is counted once.
    rig.tags();
    assert_eq!(metrics.frames_damaged.get(), known.len() as u64, "{case}");
}

#[test]
fn a_bad_sector_of_a_log_costs_only_the_entries_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let logs = store(dir.path(), 18);
    assert_eq!(logs.len(), 3, "two sealed segments and a growing one");
    for (log, first) in logs.iter().zip([1, 8, 15]) {
        let before = fs::read(log).unwrap();
        let last = (before.len() as u64 - 1) / SECTOR * SECTOR;
        let second = frames(log)[1] as u64 / SECTOR * SECTOR;
        for at in [0, 40 * SECTOR, second, second + SECTOR, last] {
            let plan = Arc::new(Plan::default());
            let sector = at..at + SECTOR;
            plan.add_bad_sector(log.to_str().unwrap(), sector.clone());
            let case = format!("{} at {at}", log.display());
            let rig = opened(dir.path(), &plan);
            check(&rig, 18, &hit(log, first, &sector), log, &case);
            rig.close();
            assert_eq!(
                fs::read(log).unwrap(),
                before,
                "{case}: the log is unchanged"
            );

            plan.heal();
            let rig = opened(dir.path(), &plan);
            assert_eq!(rig.tags(), tags(1..=18), "{case}: readable again");
            rig.close();
        }
    }
}

#[test]
fn a_consumer_gets_a_gap_record_in_place_of_events_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let logs = store(dir.path(), 18);
    let plan = Arc::new(Plan::default());
    let rig = opened_unread(dir.path(), &plan);
    // The second and third event, and the last one of the next log.
    for (log, frame) in [(&logs[0], 1), (&logs[0], 2), (&logs[1], 6)] {
        let at = (frames(log)[frame] as u64).next_multiple_of(SECTOR);
        plan.add_bad_sector(log.to_str().unwrap(), at..at + SECTOR);
    }
    let consumers = rig.store.consumers();
    let batch = |events| {
        let limits = BatchLimits {
            events,
            bytes: usize::MAX,
        };
        let lease = std::time::Duration::from_secs(30);
        let batch = consumers.next_batch("audit", "me", lease, limits);
        batch.unwrap().events
    };
    let seqs =
        |events: &[StoredEntry]| -> Vec<u64> { events.iter().map(|event| event.seq.0).collect() };

    let all = batch(100);
    let expected = (1..=18).filter(|seq| *seq != 2);
    assert_eq!(seqs(&all), expected.collect::<Vec<_>>());
    let is_gap = |event: &&StoredEntry| event.tag == b"saltcellar/gap/damage";
    let gaps = all.iter().filter(is_gap).map(|gap| {
        let body = rmpv::decode::read_value(&mut gap.body.as_slice()).unwrap();
        assert_eq!(body["cause"].as_str(), Some("damage"));
        ["first", "last", "lost"].map(|key| body[key].as_u64().unwrap())
    });
    assert_eq!(gaps.collect::<Vec<_>>(), [[2, 3, 2], [14, 14, 1]]);
    assert!(rig.store.event_id(&all[1]).ends_with(":gap:3"));

    // The cursor passes it only when it is acknowledged.
    consumers.ack("audit", "me", SeqNo(1)).unwrap();
    let limits = BatchLimits {
        events: 1,
        bytes: usize::MAX,
    };
    let range = SeqNo(2)..rig.store.durable();
    let ahead = consumers.read(&filter("{}"), range, limits).unwrap();
    assert_eq!(ahead, None, "not read without the consumer");
    for _ in 0..2 {
        assert_eq!(seqs(&batch(1)), [3, 4]);
    }
    // What can be read again is delivered after all.
    plan.heal();
    assert_eq!(seqs(&batch(2)), [2, 3]);
    consumers.ack("audit", "me", SeqNo(13)).unwrap();
    let sector = (frames(&logs[1])[6] as u64).next_multiple_of(SECTOR);
    plan.add_bad_sector(logs[1].to_str().unwrap(), sector..sector + SECTOR);
    assert_eq!(seqs(&batch(1)), [14, 15]);
    consumers.ack("audit", "me", SeqNo(14)).unwrap();
    assert_eq!(seqs(&batch(1)), [15]);
    // A consumer that wants no event of this class has lost none.
    consumers
        .create(
            "elsewhere",
            filter(r#"{"match": [{"class": "jobs"}]}"#),
            Start::Oldest,
        )
        .unwrap();
    let lease = std::time::Duration::from_secs(30);
    let other = consumers.next_batch("elsewhere", "me", lease, limits);
    assert!(other.unwrap().events.is_empty());
}

#[test]
fn a_log_with_an_unreadable_end_is_finished() {
    let made = tempfile::tempdir().unwrap();
    let logs = store(made.path(), 18);
    let log = logs.last().unwrap().strip_prefix(made.path()).unwrap();
    let whole = fs::read(made.path().join(log)).unwrap();
    let begin = frames(&made.path().join(log)).pop().unwrap() as u64;
    for at in [whole.len() as u64 - 1, begin] {
        let dir = copy_of(made.path());
        let log = dir.path().join(log);
        let plan = Arc::new(Plan::default());
        let at = at / SECTOR * SECTOR;
        plan.add_bad_sector(log.to_str().unwrap(), at..at + SECTOR);
        let lost = hit(&log, 15, &(at..at + SECTOR)).len();
        for start in 0..2 {
            let rig = opened(dir.path(), &plan);
            rig.put(bare_event(&format!("behind/{start}"))).unwrap();
            let tags = rig.tags();
            assert_eq!(tags.last().unwrap(), &format!("behind/{start}"));
            assert_eq!(tags.len(), 18 - lost + start + 1);
            rig.close();
        }
        assert_eq!(fs::read(&log).unwrap(), whole, "not written to");

        plan.heal();
        let rig = opened(dir.path(), &plan);
        let behind = ["behind/0", "behind/1"].map(str::to_owned);
        assert_eq!(rig.tags(), [&tags(1..=18)[..], &behind].concat());
        rig.close();
    }
}

fn copy_of(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-a", &format!("{}/.", from.display())])
        .arg(to.path())
        .status();
    assert!(copied.unwrap().success());
    to
}

/// Derived data is made again, and small files lose at most their own content.
#[test]
fn a_store_opens_with_any_of_its_files_unreadable() {
    let made = tempfile::tempdir().unwrap();
    let logs = store(made.path(), 18);
    let mut names = vec!["FORMAT", "SEQUENCE"];
    let pages = logs[0].with_file_name("index");
    let relative = |path: &Path| {
        let path = path.strip_prefix(made.path()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (pages, log) = (relative(&pages), relative(&logs[0]));
    names.extend([&*pages, &*log]);
    let settings = settings_logs(made.path());
    let settings: Vec<String> = settings.iter().map(|log| relative(log)).collect();
    names.extend(settings.iter().map(String::as_str));
    for name in names {
        for errno in [Errno::IO, Errno::BADMSG, Errno::UCLEAN] {
            let dir = copy_of(made.path());
            let plan = Arc::new(Plan::default());
            plan.add(Fault {
                within: dir.path().join(name).to_str().unwrap().to_owned(),
                ..Fault::lasting(Act::Read, errno)
            });
            let rig = opened(dir.path(), &plan);
            let lost: u64 = if name == log { 7 } else { 0 };
            assert_eq!(rig.tags(), tags(lost + 1..=18), "{name}, {errno:?}");
            let rebuilt = rig.metrics.indexes_rebuilt.get();
            assert_eq!(rebuilt > 0, name == pages, "{name}, {errno:?}");
            assert_eq!(rig.store.settings().loss(), None, "{name}, {errno:?}");
            assert_eq!(rig.store.holds().len(), 1, "{name}, {errno:?}");
            assert_eq!(rig.store.consumers().all().unwrap().len(), 1);
            rig.put(bare_event("more")).unwrap();
            rig.close();
            plan.heal();
            let rig = opened(dir.path(), &plan);
            assert_eq!(rig.tags().len(), 19, "{name}, {errno:?}: nothing is gone");
            rig.close();
        }
    }
}

#[test]
fn an_error_to_try_again_is_no_damage_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let logs = store(dir.path(), 18);
    let contents = |files: &[PathBuf]| -> Vec<Vec<u8>> {
        files.iter().map(|file| fs::read(file).unwrap()).collect()
    };
    let small = ["FORMAT", "SEQUENCE"].map(|name| dir.path().join(name));
    let files = [&logs[..], &small[..], &settings_logs(dir.path())].concat();
    let before = contents(&files);
    for within in ["log/events", "FORMAT", "SEQUENCE", "log/settings"] {
        let (plan, fs) = faulty_disk();
        plan.add(Fault {
            within: within.to_owned(),
            ..Fault::lasting(Act::Read, Errno::NOMEM)
        });
        let refused = Store::open(&Options {
            fs,
            ..options(dir.path(), LIMITS)
        });
        let error = refused.err().expect("it cannot be read now");
        assert!(!error.is_damage(), "{within}: {error}");
        assert_eq!(contents(&files), before, "{within}");
    }
    let rig = Rig::open(dir.path(), LIMITS);
    assert_eq!(rig.tags(), tags(1..=18));
    assert_eq!(rig.store.0.retention.holds.all().len(), 1);
}

fn settings_logs(dir: &Path) -> Vec<PathBuf> {
    let segments = crate::tools::layout::settings_segments(dir).unwrap();
    let logs: Vec<_> = segments.iter().map(SegmentFiles::log).collect();
    assert_eq!(logs.len(), 2);
    logs
}

#[test]
fn while_holds_may_be_lost_every_job_is_held() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path(), 18);
    let (plan, fs) = faulty_disk();
    // In both copies.
    plan.add_bad_sector("log/settings", 0..SECTOR);
    let options = Options {
        fs,
        ..options(dir.path(), LIMITS)
    };
    let rig = Rig::open_with(&options);
    let segment = rig.store.segments.all().remove(0);
    assert_eq!(rig.store.0.retention.held_in(&segment).unwrap(), 1);
    let faults = format!("{:?}", rig.store.file_faults());
    assert!(faults.contains("every job counts as held"), "{faults}");

    rig.store.accept_loss().unwrap();
    assert_eq!(rig.store.0.retention.held_in(&segment).unwrap(), 0);
    assert!(rig.store.file_faults().is_empty());
}

#[test]
fn a_consumer_that_may_be_lost_begins_with_the_oldest_event() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path(), 18);
    for segment in settings_logs(dir.path()) {
        fs::remove_dir_all(segment.parent().unwrap()).unwrap();
    }
    let rig = Rig::open(dir.path(), LIMITS);
    assert!(rig.store.consumers().all().unwrap().is_empty());
    let cursor = |name: &str| {
        let made = rig
            .store
            .consumers()
            .create(name, filter("{}"), Start::Newest);
        made.unwrap().cursor
    };
    assert_eq!(cursor("audit"), SeqNo::FIRST, "nothing is skipped");
    rig.store.accept_loss().unwrap();
    assert_eq!(cursor("another"), rig.store.durable());
}

/// Tools read the disk directly, so the sector is one that a flipped bit stands for; the daemon's start also fails to read it.
#[test]
fn rebuild_over_a_bad_sector_leaves_a_store_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    let logs = store(dir.path(), 18);
    let (plan, fs) = faulty_disk();
    let sector = 40 * SECTOR..41 * SECTOR;
    plan.add_bad_sector(logs[0].to_str().unwrap(), sector.clone());
    let options = Options {
        fs,
        ..options(dir.path(), LIMITS)
    };
    rebuild(&options, None, &mut ()).unwrap();
    let rig = Rig::open_with(&Options {
        metrics: Arc::default(),
        ..options.clone()
    });
    assert_eq!(rig.tags(), tags((1..=18).filter(|n| *n != 2)));
    rig.close();

    // If the store cannot be opened, the old indexes are back.
    let indexes = files_named(dir.path(), "index");
    plan.add(Fault {
        within: "log/settings".to_owned(),
        ..Fault::lasting(Act::Read, Errno::NOMEM)
    });
    rebuild(&options, None, &mut ()).unwrap_err();
    assert_eq!(files_named(dir.path(), "index"), indexes);
    plan.heal();
    let rig = Rig::open_with(&options);
    assert_eq!(rig.tags(), tags(1..=18), "also what can be reread");
}

#[test]
fn a_backup_completes_and_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (state, to) = (dir.path().join("state"), dir.path().join("to"));
    let logs = store(&state, 18);
    // As it is copied: zero bytes in place of the sector.
    let log = fs::OpenOptions::new().write(true).open(&logs[1]).unwrap();
    log.write_all_at(&[0; SECTOR_BYTES], 40 * SECTOR).unwrap();
    let report = backup(
        &state,
        &to,
        backup::BackupOptions::default(),
        Micros(9),
        &mut (),
    )
    .unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:#?}");
    assert_eq!(report.damaged[0].0, logs[1]);
    let report = verify(&state, verify::VerifyOptions::default(), &mut ()).unwrap();
    assert_eq!(report.entries_lost(), 1, "{report:#?}");
}

#[test]
fn a_log_that_cannot_be_read_now_is_not_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, fs) = faulty_disk();
    let options = Options {
        fs,
        ..options(dir.path(), LIMITS)
    };
    let day = saltcellar_base::clock::micros(retention::DAY);
    options.clock.wind(10 * day);
    let rig = Rig::open_with(&options);
    for n in 1..=18 {
        let (tag, body) = (format!("large/{n}"), noise(n, 150_000));
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, options.clock.now());
        rig.put(Batch::of(&entry)).unwrap();
    }
    rig.close();

    let log = &files_named(dir.path(), "log")[0];
    plan.add(Fault {
        within: log.to_str().unwrap().to_owned(),
        ..Fault::lasting(Act::Read, Errno::IO)
    });
    // Without it the start does not read the log.
    fs::remove_file(log.with_file_name("index")).unwrap();
    let rig = Rig::open_with(&options);
    let segment = rig.store.segments.of(Class::EVENTS).swap_remove(0);
    assert_eq!(segment.totals().entries, 0);

    let keep = saltcellar_model::Keep {
        age: saltcellar_model::Age::For(retention::DAY),
        ..retention::FOREVER
    };
    let planned = |days: i64| {
        let now = Micros(options.clock.now().0 + days * day);
        let planned = rig
            .store
            .0
            .retention
            .plan(Class::EVENTS, keep, now)
            .unwrap();
        planned
            .iter()
            .any(|(planned, _)| planned.first_seq == segment.first_seq)
    };
    assert!(!planned(0), "its entries may be as new as the next log");
    assert!(planned(2));
}

#[test]
fn a_held_job_that_cannot_be_read_now_is_kept() {
    // The job that is held in each of these stores.
    const JID: &str = "4711";

    let made = tempfile::tempdir().unwrap();
    let of_job = |n: u64| {
        let (tag, body) = (format!("large/{n}"), noise(n, 150_000));
        // One event of the held job, in the first segment.
        let other = format!("20261121054728{n:06}");
        Batch::of(&Entry {
            jid: if n == 3 { JID } else { &other },
            ..event_entry(tag.as_bytes(), &body, Source::Bus, Micros(0))
        })
    };
    let logs = store_of(made.path(), "jobs", 18, of_job);
    let log = logs[0].strip_prefix(made.path()).unwrap();
    let at = frames(&logs[0])[2] as u64 / SECTOR * SECTOR + SECTOR;
    let prune = retain::PruneOptions {
        class: Some("jobs".to_owned()),
        keep: Some(saltcellar_model::Keep {
            entries: Some(1),
            ..retention::FOREVER
        }),
        ..retain::PruneOptions::default()
    };

    // The block becomes unreadable while the store is open, or before the index is made, which then
    // lacks the job.
    for is_indexed in [true, false] {
        let dir = copy_of(made.path());
        let log = dir.path().join(log);
        let plan = Arc::new(Plan::default());
        let lose = || plan.add_bad_sector(log.to_str().unwrap(), at..at + SECTOR);
        if !is_indexed {
            fs::remove_file(log.with_file_name("index")).unwrap();
            lose();
        }
        let rig = opened_unread(dir.path(), &plan);
        retention::settle(&rig);
        lose();

        let outcomes = rig.store.prune(&prune).unwrap().into_iter();
        let outcomes: Vec<_> = outcomes.map(|planned| planned.outcome).collect();
        let expected = [retain::DropOutcome::Held(1), retain::DropOutcome::Dropped];
        assert_eq!(outcomes, expected, "indexed: {is_indexed}");
        rig.close();

        plan.heal();
        let rig = opened(dir.path(), &plan);
        let entries = rig.store.job_entries(JID).unwrap();
        let seqs: Vec<_> = entries.iter().map(|entry| entry.seq.0).collect();
        assert_eq!(seqs, [3], "indexed: {is_indexed}");
        rig.close();
    }
}

#[test]
fn nothing_is_appended_to_an_older_log_if_the_newest_cannot_be_opened() {
    let made = tempfile::tempdir().unwrap();
    let logs = store(made.path(), 18);
    let [older, newest] = [1, 2].map(|n| logs[n].strip_prefix(made.path()).unwrap());

    // The log is gone, or is that of another segment.
    for is_gone in [true, false] {
        let dir = copy_of(made.path());
        let [older, newest] = [older, newest].map(|log| dir.path().join(log));
        // As after a kill before it was sealed.
        fs::remove_file(older.with_file_name("index")).unwrap();
        let [whole, aside] = [fs::read(&older).unwrap(), fs::read(&newest).unwrap()];
        if is_gone {
            fs::remove_file(&newest).unwrap();
        } else {
            fs::write(&newest, &whole).unwrap();
        }

        let rig = Rig::open(dir.path(), LIMITS);
        rig.put(bare_event("behind")).unwrap();
        let expected = [&tags(1..=14)[..], &["behind".to_owned()]].concat();
        assert_eq!(rig.tags(), expected, "gone: {is_gone}");
        rig.close();
        assert!(fs::read(&older).unwrap() == whole, "gone: {is_gone}");

        // Put back, as from a backup.
        fs::write(&newest, &aside).unwrap();
        let rig = Rig::open(dir.path(), LIMITS);
        let expected = [&tags(1..=18)[..], &["behind".to_owned()]].concat();
        assert_eq!(rig.tags(), expected, "gone: {is_gone}");
        let (followed, _) = rig
            .store
            .entries_from(SeqNo::FIRST, rig.store.durable(), usize::MAX, |_, _| true)
            .unwrap();
        assert!(followed.is_sorted_by(|a, b| a.seq < b.seq));
        assert_eq!(followed.len(), 19, "gone: {is_gone}");
        rig.close();
    }
}

/// Without a look at the numbering, each of these readers misses an entry that can be read, or gets one twice.
#[test]
fn an_index_that_is_rebuilt_with_other_numbers_costs_no_reader_an_entry() {
    const JID: &str = "20261121054728123456";
    /// Gets each tag that a reader sees.
    type Seen<'a> = &'a dyn Fn(&[u8]);

    let dir = tempfile::tempdir().unwrap();
    let of_job = |n: u64| {
        let (tag, body) = (format!("large/{n}"), noise(n, 150_000));
        Batch::of(&Entry {
            flags: Flags::ON_BUS.with(Flags::REACTION),
            jid: JID,
            ..event_entry(tag.as_bytes(), &body, Source::Bus, Micros(0))
        })
    };
    let logs = store_of(dir.path(), "jobs", 18, of_job);
    assert_eq!(logs.len(), 3, "two sealed segments and a growing one");
    let log = &logs[1];

    // While a reader is among the blocks of the second segment, the first of them becomes unreadable,
    // and then the index is rebuilt.
    let read = |reader: &dyn Fn(&Rig, Seen<'_>) -> Vec<String>| {
        let plan = Arc::new(Plan::default());
        let rig = opened(dir.path(), &plan);
        let seen = |tag: &[u8]| {
            let segments = rig.store.segments.all();
            let segment = segments.iter().find(|one| one.log().path() == log);
            let segment = segment.unwrap();
            // Once: a reader that restarts comes here again.
            if (tag == b"large/9" || tag == b"large/14")
                && let segment::Ready::Sealed(index) =
                    rig.store.blocks.indexes().ready(segment).unwrap()
            {
                let first = frames(log)[0] as u64 / SECTOR * SECTOR;
                plan.add_bad_sector(log.to_str().unwrap(), first..first + SECTOR);
                assert!(segment.replace_index(&index, SeqNo(u64::MAX)).unwrap());
            }
        };
        let found = reader(&rig, &seen);
        assert!(rig.store.damage().iter().all(|damage| damage.path == *log));
        rig.close();
        found
    };
    let upto = SeqNo(u64::MAX);
    let text = |tag: &[u8]| String::from_utf8(tag.to_vec()).unwrap();

    // A follower has got the first one before.
    let followed = read(&|rig, seen| {
        let mut tags = Vec::new();
        let take = |event: Followed<'_>| {
            seen(event.tag);
            tags.push(text(event.tag));
        };
        let end = rig
            .store
            .follow(|_, _| true, SeqNo::FIRST, usize::MAX, take);
        assert_eq!(end.unwrap(), rig.store.durable());
        tags
    });
    assert_eq!(followed, tags(1..=18));

    let left = || (1..=18).filter(|n| *n != 8);
    let searched = read(&|rig, seen| {
        let accepts = |entry: &StoredEntry| {
            seen(&entry.tag);
            true
        };
        let filter = EventFilter::default();
        let page = rig
            .store
            .search_reactions(&filter, &accepts, upto, 100, usize::MAX);
        let events = page.unwrap().events;
        events.iter().rev().map(|event| text(&event.tag)).collect()
    });
    assert_eq!(searched, tags(left()));

    let of_job = read(&|rig, seen| {
        let wanted = |entry: &StoredEntry| {
            seen(&entry.tag);
            true
        };
        let entries = rig.store.job_entries_with(JID, wanted).unwrap();
        entries.iter().map(|entry| text(&entry.tag)).collect()
    });
    assert_eq!(of_job, tags(left()));
}
