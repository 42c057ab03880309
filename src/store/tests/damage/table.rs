//! Indexes whose table is damaged, truncated or missing.

use super::*;

/// Changes the table of an index.
type Change = fn(&Path, usize);

const RIGHT: std::ops::Range<u64> = 0..300;

/// A store of sealed segments.
fn a_store() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = closed_store(SMALL, RIGHT);
    let tables: Vec<_> = files_named(dir.path(), "index")
        .iter()
        .map(|index| index.join("pages"))
        .collect();
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
        let minion = Some(format!("web{n}"));
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
        // The first readers find the damage, the next ones what was written anew.
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

#[test]
fn a_missing_table_is_written_from_the_database() {
    let (dir, tables) = a_store();
    let before: Vec<_> = tables
        .iter()
        .map(|table| fs::read(table).unwrap())
        .collect();
    // As written by an earlier or a later release; as left by a kill while it was written.
    for (n, table) in tables.iter().enumerate() {
        match n % 3 {
            0 => fs::remove_file(table).unwrap(),
            1 => fs::rename(table, table.with_extension("tmp")).unwrap(),
            _ => {
                let mut later = before[n].clone();
                later[8] += 1;
                fs::write(table, later).unwrap();
            }
        }
    }
    for _ in 0..2 {
        let rig = Rig::open(dir.path(), SMALL);
        check_searches(&rig);
        assert_eq!(rig.metrics.indexes_rebuilt.get(), 0);
        rig.close();
        assert!(
            tables
                .iter()
                .zip(&before)
                .all(|(table, before)| fs::read(table).unwrap() == *before)
        );
    }
}

#[test]
fn an_index_is_read_from_the_database_if_no_table_can_be_written() {
    let (dir, tables) = a_store();
    for table in &tables {
        fs::remove_file(table).unwrap();
        fs::create_dir(table.with_extension("tmp")).unwrap();
    }
    let rig = Rig::open(dir.path(), SMALL);
    check_searches(&rig);
    assert_eq!(rig.metrics.indexes_rebuilt.get(), 0);
    rig.close();
    assert!(!tables.iter().any(|table| table.exists()));
}
