//! Indexes whose table is damaged, truncated or missing.

use super::*;
use crate::log::walk;

/// Changes the table of an index.
type Change = fn(&Path, usize);

const RIGHT: std::ops::Range<u64> = 0..300;

/// A store of sealed segments.
fn a_store() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = closed_store(SMALL, RIGHT);
    let tables = files_named(dir.path(), "index");
    assert!(tables.len() > 10 && tables.iter().all(|table| table.is_file()));
    (dir, tables)
}

/// The minion of event `n`, from its tag.
fn minion_of(n: u64) -> u64 {
    if n.is_multiple_of(3) { n % 5 } else { n }
}

/// Compares searches by minion, tag and job with the entries that were stored.
fn check_searches(rig: &Rig) {
    check_all(rig, RIGHT);
    let expected = |is: &dyn Fn(u64) -> bool| -> Vec<String> {
        RIGHT.filter(|&n| is(n)).map(|n| event(n).0).collect()
    };
    let found = |filter: EventFilter| -> Vec<String> {
        rig.events(&filter)
            .into_iter()
            .map(|(_, tag)| tag)
            .collect()
    };
    for n in [0, 7, 100, 101, 298, 299, 300] {
        let minion = Some(Glob::new(&format!("web{n}")));
        assert_eq!(
            found(EventFilter {
                minion,
                ..Default::default()
            }),
            expected(&|m| minion_of(m) == n),
            "web{n}"
        );
        let tag = Some(Glob::new(&format!("salt/job/*/ret/web{n}*")));
        let has_prefix = |m: u64| !m.is_multiple_of(3) && m.to_string().starts_with(&n.to_string());
        assert_eq!(
            found(EventFilter {
                tag,
                ..Default::default()
            }),
            expected(&has_prefix),
            "web{n}*"
        );
        let of_job = EventFilter {
            jid: Some(jid(n / 10)),
            ..Default::default()
        };
        assert_eq!(
            found(of_job),
            expected(&|m| m % 3 != 0 && m / 10 == n / 10),
            "job of web{n}"
        );
    }
}

#[test]
fn a_damaged_table_is_detected_and_the_index_rebuilt() {
    let changes: [(&str, Change); 5] = [
        ("flipped", |table, at| {
            let mut bytes = fs::read(table).unwrap();
            let at = at * 37 % bytes.len();
            bytes[at] ^= 1 << (at % 8);
            fs::write(table, bytes).unwrap();
        }),
        ("truncated", |table, at| {
            let file = fs::OpenOptions::new().write(true).open(table).unwrap();
            file.set_len(at as u64 * 37 % file.metadata().unwrap().len())
                .unwrap();
        }),
        ("zeroed", |table, at| {
            let mut bytes = fs::read(table).unwrap();
            let at = at * 37 % bytes.len();
            bytes[at..].fill(0);
            fs::write(table, bytes).unwrap();
        }),
        ("longer", |table, _| {
            let bytes = fs::read(table).unwrap();
            fs::write(table, [bytes, vec![0]].concat()).unwrap();
        }),
        ("foreign", |table, _| fs::write(table, b"no table").unwrap()),
    ];
    for ((name, change), state_is_lost) in changes
        .iter()
        .flat_map(|change| [(change, false), (change, true)])
    {
        let (dir, tables) = a_store();
        tables
            .iter()
            .enumerate()
            .for_each(|(n, table)| change(table, n));
        if state_is_lost {
            // The start reads metadata and latest jobs from the tables.
            fs::remove_dir_all(dir.path().join("state")).unwrap();
        }
        // The first readers find the damage, the next readers what was rewritten.
        for round in 0..2 {
            let rig = Rig::open(dir.path(), SMALL);
            check_searches(&rig);
            check_searches(&rig);
            let rebuilt = rig.metrics.indexes_rebuilt.get();
            assert_eq!(
                rebuilt > tables.len() as u64 / 2,
                round == 0,
                "{name}: {rebuilt} rebuilt"
            );
            assert!(round == 0 || rebuilt == 0, "{name}: {rebuilt} rebuilt");
        }
    }
}

/// Opens the store twice: all searches are right, the first time after `rebuilt` indexes were made
/// again, and no log is blamed.
fn check_rebuilt(dir: &Path, rebuilt: u64) {
    for rebuilt in [rebuilt, 0] {
        let rig = Rig::open(dir, SMALL);
        check_searches(&rig);
        assert_eq!(rig.metrics.indexes_rebuilt.get(), rebuilt);
        assert_eq!(rig.metrics.frames_damaged.get(), 0);
        assert!(rig.store.damage().is_empty());
        rig.close();
    }
}

#[test]
fn a_table_of_another_segment_hides_nothing() {
    for state_is_lost in [false, true] {
        let (dir, tables) = a_store();
        // Two of one class, and two of different classes.
        for (one, other) in [(0, 1), (2, tables.len() - 1)] {
            let [one, other] = [&tables[one], &tables[other]];
            let aside = dir.path().join("aside");
            fs::rename(one, &aside).unwrap();
            fs::rename(other, one).unwrap();
            fs::rename(&aside, other).unwrap();
        }
        if state_is_lost {
            fs::remove_dir_all(dir.path().join("state")).unwrap();
        }
        check_rebuilt(dir.path(), 4);
        let aside = files_named(dir.path(), "index.damaged");
        assert_eq!(aside.len(), 4, "they are kept");
    }
}

#[test]
fn a_table_of_another_store_hides_nothing() {
    // The same numbers and positions, as in a copy that went on by itself.
    let (dir, tables) = a_store();
    for table in &tables {
        let mut bytes = fs::read(table).unwrap();
        bytes[16] ^= 1;
        let len = u32::from_le_bytes(*bytes[12..].first_chunk().unwrap()) as usize;
        let hash = xxhash_rust::xxh3::xxh3_64(&[&bytes[..40], &bytes[48..48 + len]].concat());
        bytes[40..48].copy_from_slice(&hash.to_le_bytes());
        fs::write(table, bytes).unwrap();
    }
    check_rebuilt(dir.path(), tables.len() as u64);
}

/// The log of a quiet master contains many blocks until it is sealed, and few afterwards.
#[test]
fn a_table_of_an_older_generation_of_the_log_hides_nothing() {
    let limits = Limits {
        segment_entries_max: 100,
        ..Limits::default()
    };
    for state_is_lost in [false, true] {
        let (dir, rig) = Rig::new(limits);
        rig.put_each(0..60);
        let segment = rig.store.segments.of(Class::JOBS).swap_remove(0);
        // As it would be sealed if its blocks were not merged.
        let older = dir.path().join("older");
        let id = segment.log().id();
        let index = segment.memory().unwrap();
        index::sealed::write(&vfs::Disk, &older, (&index, None), id, Vec::new()).unwrap();
        drop(index);
        rig.put_each(60..300);
        let rewritten = rig.metrics.clone();
        rig.close();
        assert!(rewritten.segments_rewritten.get() > 0);

        let sealed = format::segment_dir(dir.path(), "jobs", segment.first_seq);
        assert_ne!(sealed, segment.dir(), "another generation");
        let table = &sealed.join("index");
        fs::rename(&older, table).unwrap();
        if state_is_lost {
            fs::remove_dir_all(dir.path().join("state")).unwrap();
        }
        check_rebuilt(dir.path(), 1);
    }
}

/// The state database may be as old as the table.
#[test]
fn a_table_that_lacks_the_end_of_its_log_hides_nothing() {
    let (dir, tables) = a_store();
    let store_id = {
        let text = fs::read_to_string(dir.path().join("FORMAT")).unwrap();
        format::read_format(&text).unwrap()
    };
    for table in tables.iter().step_by(2) {
        let name = table.parent().unwrap().file_name().unwrap();
        let (first_seq, _) = format::generation_of(name.to_str().unwrap()).unwrap();
        let id = crate::log::frame::LogId {
            store_id,
            first_seq,
        };
        let path = table.with_file_name("log");
        let log = crate::log::file::LogFile::bare(&vfs::Disk, &path, id).unwrap();

        // An index of the same log without its last block.
        let mut blocks = Vec::new();
        let bounds = walk::Bounds::of_log(log.size().unwrap());
        walk::walk(&log, bounds, true, |meta, view| {
            blocks.push((*meta, view.rows().columns()));
            None
        })
        .unwrap();
        blocks.pop();
        let mut index = index::MemIndex::new(first_seq);
        for (meta, columns) in &blocks {
            index.add_block(*meta, columns, || b"").unwrap();
        }
        index::sealed::write(&vfs::Disk, table, (&index, None), id, Vec::new()).unwrap();
    }
    fs::remove_dir_all(dir.path().join("state")).unwrap();
    check_rebuilt(dir.path(), tables.len().div_ceil(2) as u64);
}
