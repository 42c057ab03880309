//! A backup knows its store, and a new store knows which numbers its predecessor may have used.

use super::*;
use saltcellar_model::Kind;

/// A store with a backup, and the files of the backup.
fn backed_up() -> (
    tempfile::TempDir,
    PathBuf,
    PathBuf,
    BTreeMap<PathBuf, Vec<u8>>,
) {
    let (dir, state) = a_store();
    let to = dir.path().join("backup");
    back_up(&state, &to, false).unwrap();
    let files = walk(&to);
    (dir, state, to, files)
}

fn refused(state: &Path, to: &Path, words: &[&str]) {
    let before = walk(to);
    for delete in [true, false] {
        let error = back_up(state, to, delete).unwrap_err();
        assert!(matches!(error, ToolError::OtherStore { .. }), "{error}");
        let error = error.to_string();
        let fields = ["Nothing was changed", "store restore", "another directory"];
        for word in words.iter().chain(&fields) {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
        assert!(walk(to) == before, "the backup was changed");
    }
}

#[test]
fn a_backup_of_another_store_is_refused_and_stays_as_it_is() {
    let (dir, state, to, files) = backed_up();
    let ids = [&state, &dir.path().join("other")].map(|dir| {
        // The daemon starts with an empty directory, and stores a few entries.
        if !dir.exists() {
            make(dir, 1..5);
        }
        log::file::public_id(layout::check_store(dir).unwrap())
    });
    refused(
        &dir.path().join("other"),
        &to,
        &[&ids[0], &ids[1], "up to number 199"],
    );
    // Also one without an entry, whose file SEQUENCE does not exist.
    let empty = dir.path().join("empty");
    make(&empty, 0..0);
    refused(&empty, &to, &[&ids[0]]);
    assert!(walk(&to) == files);
    back_up(&state, &to, true).unwrap();
}

#[test]
fn a_backup_of_an_earlier_state_of_the_store_is_refused() {
    let (dir, state) = a_store();
    let old = dir.path().join("old");
    copy(&state, &old);
    make(&state, 200..230);
    let to = dir.path().join("backup");
    back_up(&state, &to, false).unwrap();
    refused(
        &old,
        &to,
        &[
            "up to number 229",
            "up to number 199 only",
            "an earlier state",
        ],
    );
    // Without the file, the logs show it.
    fs::remove_file(old.join("SEQUENCE")).unwrap();
    refused(&old, &to, &["an earlier state"]);
    fs::remove_file(state.join("SEQUENCE")).unwrap();
    back_up(&state, &to, true).unwrap();
}

#[test]
fn numbers_that_a_stop_returns_are_no_earlier_state() {
    let (dir, state) = a_store();
    let to = dir.path().join("backup");
    with_store(&state, |_, intake| {
        put(intake, 200..202);
        back_up(&state, &to, false).unwrap();
    });
    let file = |text: &str| {
        text.lines()
            .find(|line| line.starts_with("sequence"))
            .unwrap()
            .to_owned()
    };
    let before = file(&fs::read_to_string(to.join("MANIFEST")).unwrap());
    back_up(&state, &to, true).unwrap();
    let after = file(&fs::read_to_string(to.join("MANIFEST")).unwrap());
    assert!(before.len() > after.len(), "{before}, {after}");
}

#[test]
fn the_store_id_is_not_in_the_manifest() {
    let (_dir, state, to, _) = backed_up();
    let text = fs::read_to_string(state.join("FORMAT")).unwrap();
    let id = text.rsplit_once("store id ").unwrap().1.get(..16).unwrap();
    let manifest = fs::read_to_string(to.join("MANIFEST")).unwrap();
    assert!(!manifest.contains(id), "{manifest}");
}

/// Numbers and tags of all entries from a number on.
fn entries_from(store: &Store, from: u64) -> Vec<(u64, Kind, String)> {
    let found = store
        .events_before(
            &EventFilter::default(),
            SeqNo(u64::MAX),
            usize::MAX,
            usize::MAX,
        )
        .unwrap();
    let found = found.into_iter().filter(|entry| entry.seq.0 >= from);
    let mut found: Vec<_> = found
        .map(|entry| {
            let tag = String::from_utf8(entry.tag.clone()).unwrap();
            (entry.seq.0, entry.kind, tag)
        })
        .collect();
    found.sort_unstable_by_key(|(seq, ..)| *seq);
    found
}

#[test]
fn no_number_names_two_entries_after_a_restore_or_a_salvage() {
    let (dir, state, to, _) = backed_up();
    // Stored after the backup and before the loss.
    make(&state, 200..250);
    let lost = |dir: &Path| {
        with_store(dir, |store, _| {
            let found = entries_from(store, 200);
            found.into_iter().map(|(seq, ..)| seq).collect::<Vec<_>>()
        })
    };
    let lost = lost(&state);
    assert_eq!(lost.len(), 50);
    let (restored, salvaged) = (dir.path().join("restored"), dir.path().join("salvaged"));
    restore(&to, &restored, &mut ()).unwrap();
    salvage(&to, &salvaged, Micros(10), &mut ()).unwrap();
    for (new, cause) in [(&restored, "restore"), (&salvaged, "salvage")] {
        assert_clean(new);
        make(new, 250..260);
        with_store(new, |store, _| {
            let found = entries_from(store, 200);
            let (first, rest) = found.split_first().unwrap();
            assert!(first.0 >= lost[0] + (1 << 32), "{found:?}");
            assert_eq!(
                (first.1, first.2.as_str()),
                (Kind::Gap, &*format!("saltcellar/gap/{cause}"))
            );
            assert_eq!(rest.len(), 10);
            assert!(rest.iter().all(|(seq, ..)| *seq > first.0));
            // A reader whose position is lost, or that comes from before the backup, is told of no loss that is none.
            let gap = store.gap_before(SeqNo(190), SeqNo(first.0)).unwrap();
            let value = rmpv::decode::read_value(&mut &gap.body[..]).unwrap();
            assert_eq!(value["lost"], rmpv::Value::from(10), "190 to 199");
            assert!(store.gap_before(SeqNo(220), SeqNo(first.0)).is_none());
        });
        assert_clean(new);
        assert_eq!(content(new).len(), 209);
        // The next backup continues the old one.
        let report = back_up(new, &to, true).unwrap();
        assert!(report.segments_copied > 0);
        fs::remove_dir_all(&to).unwrap();
        copy(new, &dir.path().join("copy of the new one"));
        back_up(new, &to, false).unwrap();
        // After another restore or salvage, the numbers of both gaps stay known, and so far apart
        // that no segment spans them.
        let again = dir.path().join(format!("again after {cause}"));
        salvage(new, &again, Micros(20), &mut ()).unwrap();
        assert_clean(&again);
        assert_eq!(content(&again).len(), 209);
        with_store(&again, |store, _| {
            let from = entries_from(store, 1).last().unwrap().0;
            let gap = store.gap_before(SeqNo(190), SeqNo(from)).unwrap();
            let value = rmpv::decode::read_value(&mut &gap.body[..]).unwrap();
            let found = value["lost"].as_u64().unwrap();
            assert!(found < 1000, "{found}");
        });
        fs::remove_dir_all(dir.path().join("copy of the new one")).unwrap();
    }
}

#[test]
fn every_file_that_cannot_be_rebuilt_is_in_a_backup_or_has_a_reason() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    // Settings are in the log, and have a separate test.
    let present = ["spill/bus/0000000001-1.spill"];
    fs::create_dir_all(state.join("spill/bus")).unwrap();
    for name in present {
        // Bytes that are not UTF-8 are also kept.
        fs::write(state.join(name), [name.as_bytes(), b"\xff\n"].concat()).unwrap();
    }
    back_up(&state, &to, false).unwrap();
    restore(&to, &new, &mut ()).unwrap();
    let (salvaged, of_backup) = (
        dir.path().join("salvaged"),
        dir.path().join("of the backup"),
    );
    salvage(&state, &salvaged, Micros(10), &mut ()).unwrap();
    salvage(&to, &of_backup, Micros(10), &mut ()).unwrap();
    for name in present {
        assert!(
            !new.join(name).exists() && !of_backup.join(name).exists(),
            "{name}"
        );
        assert_eq!(
            fs::read(salvaged.join(name)).unwrap(),
            fs::read(state.join(name)).unwrap()
        );
    }
}

#[test]
fn a_new_file_system_is_an_empty_directory() {
    let (dir, _state, to, _) = backed_up();
    let new = dir.path().join("new");
    fs::create_dir_all(new.join("lost+found")).unwrap();
    restore(&to, &new, &mut ()).unwrap();
    assert_clean(&new);
}
