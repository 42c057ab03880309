//! What verify and salvage know of losses: each file of a state directory deleted, emptied, cut or changed.

use std::collections::HashSet;

use super::*;
use crate::tools::known::KnownSegment;
use crate::tools::layout::SegmentFiles;
use crate::tools::losses::Account;
use crate::tools::verify::small_files::Fault;

/// A damage to a file.
type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 4] = [
    ("deleted", |path| fs::remove_file(path).unwrap()),
    ("zeroed", |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, vec![0; bytes.len()]).unwrap();
    }),
    ("halved", |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }),
    ("changed by a bit", |path| {
        let mut bytes = fs::read(path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }),
];

/// A store of 199 entries whose daemon was stopped cleanly, with small files.
fn stopped_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let rig = Rig::open_with(&options(&state));
    put(&rig.intake, 1..200);
    for jid in ["20261121030955000001", "20261121030955000002"] {
        rig.store.hold(jid, "for a test").unwrap();
        let filter = saltcellar_wire::filter::EntryFilter::default();
        let name = format!("reader{jid}");
        rig.store
            .consumers()
            .create(&name, filter, Start::Oldest)
            .unwrap();
    }
    let store = rig.store.clone();
    rig.close();
    fs::create_dir_all(state.join("spill/bus")).unwrap();
    fs::write(state.join("spill/bus/0000000001-1.spill"), "of a test").unwrap();
    store.note_stop().unwrap();
    drop(store);
    (dir, state)
}

/// The entries of an intact store.
fn entries(state: &Path) -> u64 {
    let report = check(state);
    assert!(
        report.problems.is_empty() && report.notes.is_empty(),
        "{report:#?}"
    );
    report.entries
}

/// The entries of one log, of this many in an intact store.
fn entries_in(state: &Path, log: &Path, all: u64) -> u64 {
    let empty = log.with_extension("aside");
    fs::rename(log, &empty).unwrap();
    let rest = check(state).entries;
    fs::rename(&empty, log).unwrap();
    all - rest
}

#[test]
fn entries_lost_from_any_log_are_counted_exactly_by_verify_and_salvage() {
    let (dir, state) = stopped_store();
    let segments = layout::segments(&state).unwrap();
    assert!(segments.len() > 4, "finished and active segments");
    // Each damage to one log of each form, and one damage to every other log: a check of a store takes a second.
    let mut forms = HashSet::new();
    let all = entries(&state);
    for (n, segment) in segments.iter().enumerate() {
        let log = segment.log();
        let held = entries_in(&state, &log, all);
        assert!(held > 0, "{}", log.display());
        let of_form = if forms.insert(segment.is_sealed) {
            &DAMAGES[..]
        } else {
            std::slice::from_ref(&DAMAGES[n % DAMAGES.len()])
        };
        for (what, damage) in of_form {
            let what = *what;
            let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
            copy(&state, &hurt);
            let path = hurt.join(log.strip_prefix(&state).unwrap());
            damage(&path);
            let report = check(&hurt);
            let lost = 199 - report.entries;
            let of_log: Vec<_> = report
                .problems
                .iter()
                .filter(|problem| problem.path == path)
                .collect();
            assert!(!of_log.is_empty(), "{what} {}: {report:#?}", log.display());
            assert!(report.is_exact(), "{what} {}: {report:#?}", log.display());
            assert_eq!(report.entries_lost(), lost, "{what}: {report:#?}");
            match what {
                "deleted" | "zeroed" => assert_eq!(lost, held, "{what}"),
                _ => assert!((1..=held).contains(&lost), "{what}: {lost} of {held}"),
            }
            let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
            assert_eq!(
                (saved.entries_lost(), saved.is_exact()),
                (lost, true),
                "{what} {}: {saved:#?}",
                log.display()
            );
            assert_eq!(saved.entries(), 199 - lost);
            fs::remove_dir_all(&hurt).unwrap();
            fs::remove_dir_all(&new).unwrap();
        }
    }
}

#[test]
fn without_indexes_and_database_a_loss_is_bounded_by_sequence_numbers() {
    let (dir, state) = stopped_store();
    let log = layout::segments(&state)
        .unwrap()
        .into_iter()
        .find(|segment| segment.is_sealed)
        .unwrap()
        .log();
    let held = entries_in(&state, &log, entries(&state));
    for (what, damage) in DAMAGES {
        let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
        copy(&state, &hurt);
        let path = hurt.join(log.strip_prefix(&state).unwrap());
        fs::remove_dir_all(hurt.join("state")).unwrap();
        fs::write(path.with_file_name("index"), "damaged").unwrap();
        damage(&path);
        let report = check(&hurt);
        let lost = 199 - report.entries;
        let found = |path: &Path| report.problems.iter().any(|problem| problem.path == path);
        assert!(found(&path) || what == "deleted", "{what}: {report:#?}");
        if what != "deleted" {
            assert!(
                lost <= report.entries_lost() && report.entries_lost() <= held,
                "{what}: {lost} {report:#?}"
            );
        }
        let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
        if what != "deleted" {
            assert!(
                lost <= saved.entries_lost() && saved.entries_lost() <= held,
                "{what}: {lost} {saved:#?}"
            );
        }
        fs::remove_dir_all(&hurt).unwrap();
        fs::remove_dir_all(&new).unwrap();
    }
}

#[test]
fn damage_to_any_file_that_cannot_be_rebuilt_is_named() {
    let (dir, state) = stopped_store();
    let names: Vec<_> = layout::irreplaceable(&state)
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names.iter().map(String::as_str).chain(["STOPPED"]) {
        for (what, damage) in DAMAGES {
            // A missing record of the stop means only that there was none, and files of a spill have their own checksums.
            let is_unknown = (name, what) == ("STOPPED", "deleted")
                || Path::new(name)
                    .extension()
                    .is_some_and(|ending| ending == "spill")
                    && matches!(what, "zeroed" | "changed by a bit");
            let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
            copy(&state, &hurt);
            let path = hurt.join(name);
            damage(&path);
            if name != "FORMAT" {
                let report = check(&hurt);
                let found = report.problems.iter().any(|problem| problem.path == path);
                assert_eq!(found, !is_unknown, "{name} {what}: {report:#?}");
                assert_eq!(report.entries_lost(), 0, "{name} {what}: {report:#?}");
            }
            let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
            let found = saved.faults.iter().any(|fault| fault.path == path);
            assert_eq!(found, !is_unknown, "{name} {what}: {saved:#?}");
            assert_eq!(
                (saved.entries(), saved.entries_lost()),
                (199, 0),
                "{name} {what}"
            );
            fs::remove_dir_all(&hurt).unwrap();
            fs::remove_dir_all(&new).unwrap();
        }
    }
}

#[test]
fn the_check_of_another_module_is_asked_for_its_files() {
    let (_dir, state) = stopped_store();
    let names = std::cell::RefCell::new(Vec::new());
    let check = |name: &str, _: &Path, bytes: &[u8], _: u64| {
        names.borrow_mut().push((name.to_owned(), bytes.len()));
        vec![Fault::of_file("broken"), Fault::unfinished("cut")]
    };
    let report = verify::verify(&state, VerifyOptions::default(), &check, &mut ()).unwrap();
    let mut names = names.take();
    names.sort();
    let expected = [("spill/bus/0000000001-1.spill", 0)];
    assert_eq!(
        names,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
    assert_eq!(
        (report.problems.len(), report.notes.len()),
        (1, 1),
        "{report:#?}"
    );
    assert!(
        report
            .problems
            .iter()
            .all(|problem| problem.what == "broken")
    );
}

#[test]
fn a_start_reports_what_is_missing_since_a_clean_stop_and_never_after_a_kill() {
    let (dir, state) = stopped_store();
    let start = |state: &Path| {
        let rig = Rig::open_with(&options(state));
        let metrics = &rig.metrics;
        (
            metrics.entries_missing_at_start.get(),
            metrics.files_changed_while_stopped.get(),
        )
    };
    let growing = layout::segments(&state)
        .unwrap()
        .into_iter()
        .find(layout::SegmentFiles::grows)
        .unwrap()
        .log();
    let at = *frames(&growing).last().unwrap();
    for is_stopped in [true, false] {
        let hurt = dir.path().join("hurt");
        copy(&state, &hurt);
        let log = hurt.join(growing.strip_prefix(&state).unwrap());
        let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
        file.set_len(at as u64).unwrap();
        fs::remove_file(hurt.join("spill/bus/0000000001-1.spill")).unwrap();
        if !is_stopped {
            // As after a kill.
            fs::remove_file(hurt.join("STOPPED")).unwrap();
        }
        let report = check(&hurt);
        assert_eq!(report.problems.is_empty(), !is_stopped, "{report:#?}");
        assert_eq!(start(&hurt), if is_stopped { (1, 1) } else { (0, 0) });
        // It is reported once; what follows is not compared with the old stop.
        assert_eq!(start(&hurt), (0, 0));
        assert!(!hurt.join("STOPPED").exists());
        assert_clean(&hurt);
        fs::remove_dir_all(&hurt).unwrap();
    }
    assert_clean(&state);
    assert_eq!(start(&state), (0, 0));
    make(&state, 200..230);
    assert_clean(&state);
}

#[test]
fn damage_of_one_copy_of_the_settings_loses_nothing_and_is_named() {
    let (dir, state) = stopped_store();
    for segment in layout::settings_segments(&state).unwrap() {
        let log = segment.log();
        for (what, damage) in DAMAGES {
            let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
            copy(&state, &hurt);
            let path = hurt.join(log.strip_prefix(&state).unwrap());
            damage(&path);
            let report = check(&hurt);
            let class_dir = hurt.join("log/settings");
            let named = report.problems.iter();
            let named = named.filter(|problem| problem.path.starts_with(&class_dir));
            assert!(named.count() > 0, "{what}: {report:#?}");
            let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
            assert!(saved.faults.is_empty(), "{what}: {saved:#?}");
            assert_clean(&new);

            for dir in [&new, &hurt] {
                let rig = Rig::open_with(&options(dir));
                let damage = rig.store.damage();
                assert_eq!(damage.is_empty(), dir == &new, "{what}: {damage:?}");
                assert_eq!(rig.store.settings().loss(), None, "{what}");
                let (holds, consumers) = (rig.store.holds(), rig.store.consumers().all().unwrap());
                assert_eq!((holds.len(), consumers.len()), (2, 2), "{what}");
                rig.close();
                assert_clean(dir);
            }
            fs::remove_dir_all(&hurt).unwrap();
            fs::remove_dir_all(&new).unwrap();
        }
    }
}

#[test]
fn damage_of_both_copies_of_the_settings_is_counted_until_it_is_accepted() {
    let (dir, state) = stopped_store();
    for (what, damage) in DAMAGES {
        let (hurt, new) = (dir.path().join("hurt"), dir.path().join("new"));
        copy(&state, &hurt);
        for segment in layout::settings_segments(&hurt).unwrap() {
            damage(&segment.log());
        }
        let is_named = |dir: &Path| {
            let class_dir = dir.join("log/settings");
            let report = check(dir);
            let mut problems = report.problems.iter();
            problems.any(|problem| problem.path == class_dir)
        };
        assert!(is_named(&hurt), "{what}");
        let saved = salvage(&hurt, &new, Micros(7), &mut ()).unwrap();
        assert_eq!(saved.faults.len(), 1, "{what}: {saved:#?}");

        for dir in [&hurt, &new] {
            let rig = Rig::open_with(&options(dir));
            assert!(rig.store.settings().loss().is_some(), "{what}");
            let faults = format!("{:?}", rig.store.file_faults());
            assert!(faults.contains("accept-loss"), "{what}: {faults}");
            rig.close();
            assert!(is_named(dir), "{what}: it stays named");

            let rig = Rig::open_with(&options(dir));
            rig.store.accept_loss().unwrap();
            rig.close();
            assert!(!is_named(dir), "{what}");
        }
        fs::remove_dir_all(&hurt).unwrap();
        fs::remove_dir_all(&new).unwrap();
    }
}

/// Three segments, of which the log of the second one cannot be opened: what is lost, and whether
/// that is its number.
fn lost_unopened(known: Vec<KnownSegment>, end: Option<SeqNo>) -> (u64, bool) {
    let dir = Path::new("/store");
    let segments = [1, 11, 21].map(|first| SegmentFiles {
        class_name: "events".to_owned(),
        first_seq: SeqNo(first),
        dir: format::segment_dir(dir, "events", SeqNo(first)),
        is_sealed: true,
        is_newest: first == 21,
    });
    let [first, unopened, last] = &segments;

    let mut account = Account::new(known, [first, last].into_iter(), end, Vec::new());
    account.note_unopened([unopened]);
    for seq in (1..=10).chain(21..=25) {
        account.note_found("events", SeqNo(seq));
    }

    let losses = account.losses(dir);
    assert!(losses.iter().all(|loss| loss.path == unopened.log()));
    let entries = losses.iter().map(|loss| loss.entries).sum();
    (entries, losses.iter().all(|loss| loss.exact))
}

#[test]
fn what_is_lost_in_a_log_that_cannot_be_opened_is_exact_only_if_its_segment_is_known() {
    let known = KnownSegment {
        class_name: "events".to_owned(),
        first_seq: SeqNo(11),
        last_seq: SeqNo(20),
        entries: 7,
    };
    assert_eq!(lost_unopened(vec![known], None), (7, true));
    // Bounded by the first number of the next segment.
    assert_eq!(lost_unopened(Vec::new(), Some(SeqNo(26))), (10, false));
}
