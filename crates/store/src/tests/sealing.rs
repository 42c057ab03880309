//! Sealed segments return the same results as before, are dense, and are complete after a crash at
//! any step.

use std::fs;
use std::path::Path;

use super::super::format;
use super::*;

#[test]
fn every_pattern_finds_its_matches_in_memory_and_sealed() {
    let (_dir, rig) = Rig::new(SMALL);
    for n in (0..300).step_by(20) {
        rig.put(batch_of(n..n + 20)).unwrap();
    }
    let free = b"salt/job/free/ret/web12/ret/web7";
    rig.put(Batch::of(&event_entry(
        free,
        b"\x81\xa3jid\xb2free/ret/web12/ret",
        Source::Bus,
        Micros(300),
    )))
    .unwrap();
    let tags = rig.tags();
    assert_eq!(tags.len(), 301);
    let jid = jid(7);
    let patterns = [
        "*",
        "salt/*",
        "*/ret/web12*",
        "*/ret/web12",
        "*web7",
        "*load/",
        "salt/beacon/web[13]/*",
        "nothing",
        "*/ret/absent*",
        "salt/job/2026*",
        "salt/job/*00001?/ret/*",
        "salt/job/*7/ret/*7",
        "*eacon/web3/*",
        "salt/?ob/*/r*b1",
        &format!("*{jid}*"),
        &format!("salt/job/{jid}/ret/web7?"),
        "*030955*",
        "?alt*",
        "*/web",
        "salt/beacon/web2/load/",
    ];
    for pattern in patterns {
        let glob = Glob::new(pattern);
        let expected: Vec<&String> = tags.iter().filter(|tag| glob.matches(tag)).collect();
        let found = rig.events(&EventFilter {
            tag: Some(glob.clone()),
            ..Default::default()
        });
        assert_eq!(
            found.iter().map(|(_, tag)| tag).collect::<Vec<_>>(),
            expected,
            "{pattern}"
        );
        let minion = Some(Glob::new("web120"));
        let found = rig.events(&EventFilter {
            tag: Some(glob),
            minion,
            ..Default::default()
        });
        let of_minion = |tag: &&&String| tag.ends_with("/web120");
        assert_eq!(
            found.iter().map(|(_, tag)| tag).collect::<Vec<_>>(),
            expected
                .iter()
                .copied()
                .filter(|t| of_minion(&t))
                .collect::<Vec<_>>(),
            "{pattern}"
        );
    }
}

/// Bytes on disk of the segments of class `jobs`.
fn disk_of_jobs(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fn used(dir: &Path) -> u64 {
        let of = |item: fs::DirEntry| {
            let meta = item.metadata().unwrap();
            if meta.is_dir() {
                used(&item.path())
            } else {
                meta.blocks() * 512
            }
        };
        fs::read_dir(dir)
            .unwrap()
            .map(|item| of(item.unwrap()))
            .sum()
    }
    used(&format::class_dir(dir, "jobs"))
}

fn small_return(n: u64, batch: &mut Batch) {
    let (jid, minion) = (
        format!(
            "2026112103{:02}{:02}{:06}",
            n / 3600 % 60,
            n / 60 % 60,
            n / 3
        ),
        n * 7 % 40,
    );
    let mut w = Writer::new();
    w.map(8)
        .str("cmd")
        .str("_return")
        .str("id")
        .str(&format!("web{minion}"))
        .str("success")
        .bool(true);
    w.str("return")
        .bool(true)
        .str("retcode")
        .int(0)
        .str("jid")
        .str(&jid)
        .str("fun")
        .str("test.ping");
    w.str("_stamp").str(&format!(
        "2026-11-21T03:09:{:02}.{:06}",
        n % 60,
        n * 7919 % 1_000_000
    ));
    let tag = format!("salt/job/{jid}/ret/web{minion}");
    batch.push(
        &event_entry(
            tag.as_bytes(),
            &w.into_bytes(),
            Source::Bus,
            Micros(n.cast_signed() * 50_000),
        ),
        None,
    );
}

#[test]
fn segments_of_a_quiet_master_are_dense_once_sealed() {
    const ENTRIES: u64 = 6_000;
    let limits = Limits {
        segment_entries_max: ENTRIES,
        ..Limits::default()
    };
    let sealed = |one_by_one: bool| {
        let (dir, rig) = Rig::new(limits);
        let at_once = if one_by_one { 1 } else { 1_000 };
        for from in (0..ENTRIES).step_by(at_once) {
            let mut batch = Batch::default();
            (from..from + at_once as u64).for_each(|n| small_return(n, &mut batch));
            rig.put(batch).unwrap();
        }
        let before = rig.events(&EventFilter::default());
        let store = rig.store.clone();
        let row = store.job_row(&jid_of(&before)).unwrap();
        rig.close();
        drop(store);
        assert!(files_named(dir.path(), "index").len() == 1);
        let rig = Rig::open(dir.path(), limits);
        assert_eq!(
            rig.events(&EventFilter::default()),
            before,
            "sequence numbers and entries are unchanged"
        );
        assert_eq!(rig.store.job_row(&jid_of(&before)).unwrap(), row);
        assert_eq!(rig.store.job_entries(&jid_of(&before)).unwrap().len(), 3);
        rig.close();
        disk_of_jobs(dir.path())
    };
    let (flood, quiet) = (sealed(false), sealed(true));
    println!("flood {flood} bytes, quiet {quiet} bytes");
    assert!(
        quiet * 10 <= flood * 13,
        "flood {flood} bytes, quiet {quiet} bytes"
    );
}

/// The jid of an event in the middle.
fn jid_of(events: &[(u64, String)]) -> String {
    events[events.len() / 2]
        .1
        .split('/')
        .nth(2)
        .unwrap()
        .to_owned()
}

pub(super) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(item.file_name());
        if item.path().is_dir() {
            copy_dir(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).unwrap();
        }
    }
}

#[test]
fn a_crash_at_any_step_of_a_rewrite_leaves_a_complete_segment() {
    let grown = tempfile::tempdir().unwrap();
    let rig = Rig::open(grown.path(), Limits::default());
    rig.put_each(0..123);
    rig.close();
    // The same store with sealed segments. Event 123 belongs to no job.
    let sealed = tempfile::tempdir().unwrap();
    copy_dir(grown.path(), sealed.path());
    let finishing = Limits {
        segment_entries_max: 1,
        ..Limits::default()
    };
    let rig = Rig::open(sealed.path(), finishing);
    rig.put(batch_of([123])).unwrap();
    rig.close();
    let rig = Rig::open(sealed.path(), Limits::default());
    check_all(&rig, 0..124);
    rig.close();
    let name = |dir: &Path| {
        fs::read_dir(dir)
            .unwrap()
            .map(|i| i.unwrap().path())
            .min()
            .unwrap()
    };
    let class = format::class_dir(Path::new(""), "jobs");
    let new = name(&sealed.path().join(&class));
    assert!(new.join("index").is_file());
    let old = name(&grown.path().join(&class));
    assert!(
        fs::metadata(new.join("log")).unwrap().len() * 2
            < fs::metadata(old.join("log")).unwrap().len()
    );
    let named = |generation: u32| {
        let (first_seq, _) = format::generation_of(format::name_of(&new)).unwrap();
        format::generation_name(first_seq, generation)
    };
    assert!(old.ends_with(named(0)) && new.ends_with(named(1)));
    // The two states of a crash: the copy without its name, incomplete or complete; and both, the old
    // one whole or partially removed.
    let steps: [(Option<bool>, &str, bool); 4] = [
        (Some(true), ".new", false),
        (Some(true), ".new", true),
        (Some(true), "", true),
        (Some(false), "", true),
    ];
    for (old_is_whole, suffix, complete) in steps {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(sealed.path(), dir.path());
        fs::remove_dir_all(dir.path().join("state")).unwrap();
        let at = |name: String| dir.path().join(&class).join(name);
        fs::remove_dir_all(at(named(1))).unwrap();

        let (old_at, new_at) = (at(named(0)), at(named(1) + suffix));
        copy_dir(&old, &old_at);
        fs::write(old_at.join("log.cut-77"), "cut").unwrap();
        if old_is_whole == Some(false) {
            fs::remove_file(old_at.join("log")).unwrap();
        }
        copy_dir(&new, &new_at);
        if !complete {
            fs::remove_file(new_at.join("index")).unwrap();
            fs::write(new_at.join("log"), b"SALTCLOG").unwrap();
        }

        for _ in 0..2 {
            let rig = Rig::open(dir.path(), Limits::default());
            check_all(&rig, 0..124);
        }
        let names: Vec<_> = fs::read_dir(dir.path().join(&class))
            .unwrap()
            .map(|i| i.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&named(0)[..20]))
            .collect();
        let expected = named(u32::from(suffix.is_empty()));
        // Without the new one, the old one may be merged by the start.
        assert!(
            names == [expected.clone()] || names == [named(1)],
            "{suffix:?} {complete}: {names:?}"
        );
        assert!(
            at(names[0].clone()).join("log.cut-77").exists(),
            "{suffix:?} {complete}"
        );
    }
}

#[test]
fn a_segment_in_a_foreign_place_is_named_left_alone_and_read_around() {
    let dir = closed_store(SMALL, 0..100);
    let class = |name: &str| format::class_dir(dir.path(), name);
    let first = format::generations(&class("jobs")).unwrap().remove(0);
    let other = format::generations(&class("jobs")).unwrap().remove(3);

    // Copies of segments in another class, under another number, and as a generation of another
    // segment, which would otherwise be the highest.
    let misplaced = [
        class("events").join(format::generation_name(first.first_seq, 5)),
        class("jobs").join(format::generation_name(SeqNo(1 << 40), 0)),
        class("jobs").join(format::generation_name(other.first_seq, 9)),
    ];
    for to in &misplaced {
        copy_dir(&first.dir, to);
    }
    let foreign = class("jobs").join("notes.txt");
    fs::write(&foreign, "of an administrator").unwrap();

    for _ in 0..2 {
        let rig = Rig::open(dir.path(), SMALL);
        check_all(&rig, 0..100);
        let named: Vec<String> = rig
            .store
            .file_faults()
            .iter()
            .map(|fault| format!("{fault:?}"))
            .collect();
        for to in &misplaced {
            let name = to.strip_prefix(dir.path()).unwrap().to_str().unwrap();
            assert!(named.iter().any(|fault| fault.contains(name)), "{named:?}");
        }
        assert_eq!(rig.metrics.segments_missing.get(), 0);
        rig.close();
        assert!(misplaced.iter().all(|to| to.join("log").is_file()));
        assert!(foreign.is_file());
    }

    // Their names are not used: new segments have different numbers and directories.
    let rig = Rig::open(dir.path(), SMALL);
    rig.put_each(100..130);
    check_all(&rig, 0..130);
    assert!(rig.store.durable().0 < 1 << 30);
}
