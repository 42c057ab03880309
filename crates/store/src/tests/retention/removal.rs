//! The removal of dropped segments, and their readers.

use rustix::io::Errno;

use crate::retain::PruneOptions;
use crate::tests::retention::{FOREVER, dropped, events, fill, is_cleared, jobs, with};
use crate::tests::*;
use crate::tools::backup::{BackupOptions, backup};
use crate::tools::tests::{salvage, verify};
use crate::tools::verify::VerifyOptions;
use crate::vfs::Fs as _;

#[test]
fn a_log_with_a_reader_or_a_second_link_is_not_truncated() {
    let (dir, rig) = Rig::new(Limits::default());
    let shared = &rig.store;
    let whole = vec![7; 3 * 1024 * 1024 + 5];
    let dropped = |name: &str| {
        // Outside of the classes, whose drops the retainer finishes at its start.
        let path = dir.path().join("dropped").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("log.dropped"), &whole).unwrap();
        path
    };
    let read = dropped("events-1");
    let reader = vfs::Disk.open_log(&read.join("log.dropped")).unwrap();
    shared.0.retention.drops.remove(&read);
    assert!(!read.exists());
    let mut found = vec![0; whole.len()];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert!(found == whole);

    let linked = dropped("events-2");
    let link = dir.path().join("the same in a backup");
    fs::hard_link(linked.join("log.dropped"), &link).unwrap();
    shared.0.retention.drops.remove(&linked);
    assert!(!linked.exists());
    assert!(fs::read(&link).unwrap() == whole);

    // Without other users it is truncated, and later readers get a not-found error.
    let free = dropped("events-3");
    let held = fs::OpenOptions::new()
        .write(true)
        .open(free.join("log.dropped"))
        .unwrap();
    held.lock().unwrap();
    assert_eq!(
        vfs::Disk
            .open_log(&free.join("log.dropped"))
            .unwrap_err()
            .kind(),
        std::io::ErrorKind::NotFound
    );
    held.unlock().unwrap();
    let watcher = fs::File::open(free.join("log.dropped")).unwrap();
    shared.0.retention.drops.remove(&free);
    assert!(!free.exists());
    assert!(watcher.metadata().unwrap().len() <= saltcellar_base::limits::DROP_PIECE_BYTES);
}

#[test]
fn an_interrupted_drop_is_not_reported_as_a_missing_segment() {
    let dir = tempfile::tempdir().unwrap();
    let options = with(dir.path(), &[]);
    let rig = Rig::open_with(&options);
    fill(&rig, 0..300);
    let oldest = rig.store.segments.of(Class::JOBS)[0].clone();
    assert!(oldest.metadata().is_some());
    let (from, last) = (oldest.dir().to_owned(), oldest.totals().last_seq);
    let (dropped, name) = (oldest.totals().entries, format::name_of(&from).to_owned());
    drop(oldest);
    rig.close();
    // Marked, then emptied on a full disk, or renamed; the state database still contains it.
    for step in ["marked", "emptied", "renamed"] {
        let copied = tempfile::tempdir().unwrap();
        sealing::copy_dir(dir.path(), copied.path());
        let at = copied.path().join(from.strip_prefix(dir.path()).unwrap());
        fs::rename(at.join("log"), at.join("log.dropped")).unwrap();
        if step == "emptied" {
            fs::remove_file(at.join("index")).unwrap();
            fs::write(at.join("log.dropped"), b"").unwrap();
        }
        if step == "renamed" {
            fs::rename(&at, at.with_file_name(format!("{name}.dropped"))).unwrap();
        }

        let report = verify(copied.path(), VerifyOptions::default(), &mut ()).unwrap();
        let found = (&report.problems[..], &report.notes[..]);
        assert_eq!(
            found,
            (&[][..], &[][..]),
            "{step}: the store is not damaged before the next start"
        );
        let salvaged = tempfile::tempdir().unwrap();
        let report = salvage(copied.path(), salvaged.path(), Micros(1), &mut ()).unwrap();
        assert_eq!(report.entries(), 300 - dropped, "{step}");
        assert!(report.losses.is_empty(), "{step}: {:?}", report.losses);
        let backed_up = tempfile::tempdir().unwrap();
        let report = backup(
            copied.path(),
            backed_up.path(),
            BackupOptions::default(),
            Micros(1),
            &mut (),
        );
        let report = report.unwrap();
        assert!(report.unreadable.is_empty() && report.damaged.is_empty());

        for _ in 0..2 {
            let options = with(copied.path(), &[]);
            let rig = Rig::open_with(&options);
            saltcellar_testkit::wait_for("a finished drop", || {
                is_cleared(copied.path()).then_some(())
            });
            let known = rig
                .store
                .catalogue
                .query(crate::index::state::StateDatabase::segments)
                .unwrap();
            assert!(
                !known
                    .iter()
                    .any(|(class, seq, _)| class == "jobs" && *seq <= last)
            );
            let latest = rig
                .store
                .catalogue
                .query(crate::index::state::StateDatabase::latest)
                .unwrap();
            let is_stored = rig.store.segments.stored_seqs();
            assert!(latest.iter().all(|row| is_stored(row.seq)));
            assert_eq!(options.metrics.segments_missing.get(), 0);
        }
    }
}

#[test]
fn a_dropped_segment_does_not_come_back_as_a_copy_whose_seal_failed() {
    let within = |fault: Fault, within: &str| Fault {
        within: within.to_owned(),
        ..fault
    };
    let dir = tempfile::tempdir().unwrap();
    let (plan, fs) = faulty_disk();
    let options = Options {
        fs,
        ..with(dir.path(), &[jobs(FOREVER), events(FOREVER)])
    };
    // No copy with merged blocks can be made, so all finished segments wait to be sealed.
    plan.add(within(Fault::lasting(Act::Create, Errno::IO), ".1.new"));
    let rig = Rig::open_with(&options);
    rig.put_each(0..150);
    rig.close();
    let opened = Store::open(&options).unwrap();
    let (store, sealing) = (&opened.store, &opened.sealer.sealing);
    let segments = store.segments.of(Class::JOBS);
    assert!(segments.len() > 5, "{}", segments.len());

    let class_dir = format::class_dir(dir.path(), "jobs");
    let copies = || -> Vec<SeqNo> {
        let found = format::generations(&class_dir).unwrap().into_iter();
        let copies = found.filter(|found| found.number > 0);
        copies.map(|found| found.first_seq).collect()
    };
    // The copy gets its name, and cannot be opened then.
    plan.heal();
    plan.add(within(Fault::lasting(Act::Read, Errno::NOMEM), ".1/log"));
    assert!(!sealing.try_seal(&segments[0]));
    assert_eq!(copies(), [], "none is left to take up space");
    // Nor can the name be taken away again, by the second rename: the first is that of its index.
    let keep_names = || {
        let fault = within(Fault::lasting(Act::Rename, Errno::IO), ".1.new");
        plan.add(Fault { from: 2, ..fault });
    };
    keep_names();
    assert!(!sealing.try_seal(&segments[0]));
    assert_eq!(copies(), [segments[0].first_seq]);

    // The sync of the name fails, which is the last of a seal.
    for sync in 1.. {
        plan.heal();
        keep_names();
        plan.add(Fault {
            from: sync,
            ..Fault::once(Act::SyncDir, Errno::IO)
        });
        assert!(!sealing.try_seal(&segments[1]));
        if copies().len() > 1 {
            break;
        }
    }

    plan.heal();
    let left = |store: &Store| -> Vec<SeqNo> {
        let filter = EventFilter::default();
        let found = store.events_before(&filter, store.durable(), usize::MAX, usize::MAX);
        found.unwrap().iter().map(|event| event.seq).collect()
    };
    let drops = store.prune(&PruneOptions {
        class: Some("jobs".to_owned()),
        keep: Some(saltcellar_model::Keep {
            entries: Some(10),
            ..FOREVER
        }),
        ..PruneOptions::default()
    });
    let drops = drops.unwrap();
    assert_eq!(drops[1].segment, segments[1].first_seq);
    assert_eq!(dropped(&drops).len(), drops.len());
    let expected = left(store);
    drop((segments, opened));
    let rig = Rig::open_with(&options);
    assert_eq!(left(&rig.store), expected);
}
