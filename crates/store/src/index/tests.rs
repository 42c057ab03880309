//! The index in memory, the sealed index and a plain map return the same results.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::StoreError;
use crate::index::job_summary::JobSummary;
use crate::log::builder::{BlockBuffers, BlockBuilder, Packer};
use crate::log::file::BlockMeta;
use crate::log::frame::LogId;
use crate::vfs::Disk;
use saltcellar_model::{Entry, Flags, JidKey, Kind, Source};
use saltcellar_wire::msgpack::Writer;

/// The log of the tests.
const ID: LogId = LogId {
    store_id: 7,
    first_seq: SeqNo(11),
};

/// The random part of an entry: kind, job, minion, function.
type Drawn = (u8, u16, u16, u8);

fn jid(n: u16) -> String {
    match n % 7 {
        0 => format!("free {n}"),
        1 => format!("20261121030955{n:06}_{n}"),
        _ => format!("202611210309{:02}{n:06}", n % 60),
    }
}

fn body(kind: Kind, fun: &str, n: usize) -> Vec<u8> {
    let mut w = Writer::new();
    match kind {
        Kind::Endtime => {
            w.str(&format!("end {n}"));
        }
        Kind::Load => {
            w.array(2)
                .map(2)
                .str("fun")
                .str(fun)
                .str("tgt")
                .str(&format!("web{n}"))
                .nil();
        }
        _ => {
            w.map(1).str("fun").str(fun);
        }
    }
    w.into_bytes()
}

/// Adds the entries of a builder as the block `meta`.
fn add(index: &mut MemIndex, meta: BlockMeta, builder: &mut BlockBuilder) {
    let mut packer = Packer::new().unwrap();
    let built = builder
        .build(&mut packer, &mut Vec::new(), BlockBuffers::default())
        .unwrap();
    index
        .add_block(meta, &built.columns, || built.bodies())
        .unwrap();
}

/// Adds blocks of entries as the committer does; returns the expected jobs.
fn feed(
    index: &mut MemIndex,
    blocks: &[Vec<Drawn>],
) -> BTreeMap<JidKey, (JobSummary, Vec<EntryPosition>)> {
    let mut model: BTreeMap<JidKey, (JobSummary, Vec<EntryPosition>)> = BTreeMap::new();
    let mut seq = 10;
    for (number, block) in (0_u32..).zip(blocks) {
        let first_seq = SeqNo(seq + 1);
        let last_seq = SeqNo(seq + block.len() as u64);
        let (len, count) = (1000, u32::try_from(block.len()).unwrap());
        let offset = 64 + 1000 * u64::from(number);
        let (at_min, at_max) = (Micros(seq.cast_signed()), Micros(last_seq.0.cast_signed()));
        let meta = BlockMeta {
            offset,
            len,
            head_len: 500,
            count,
            first_seq,
            last_seq,
            at_min,
            at_max,
        };
        let mut builder = BlockBuilder::default();
        for (at, &(kind, job, minion, fun)) in block.iter().enumerate() {
            seq += 1;
            let kind = [
                Kind::Return,
                Kind::Load,
                Kind::Endtime,
                Kind::NoCache,
                Kind::Event,
            ][usize::from(kind) % 5];
            let (jid, minion, fun) = (
                jid(job),
                format!("web{}", minion % 300),
                format!("fun{}", fun % 9),
            );
            let body = body(kind, &fun, at);
            let arrived = Micros(seq.cast_signed());
            let entry = Entry {
                flags: Flags::ON_BUS,
                tag: b"salt/job",
                jid: &jid,
                minion: &minion,
                fun: &fun,
                ..Entry::new(kind, Source::Bus, arrived, &body)
            };
            builder.push(SeqNo(seq), &entry).unwrap();
            let (row, positions) = model.entry(JidKey::of(&jid)).or_insert_with(|| {
                (
                    JobSummary {
                        jid: jid.clone(),
                        first_at: arrived.0,
                        ..JobSummary::default()
                    },
                    Vec::new(),
                )
            });
            row.update(SeqNo(seq), &entry);
            positions.push(EntryPosition {
                block: number,
                at: u16::try_from(at).unwrap(),
            });
        }
        add(index, meta, &mut builder);
    }
    model
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn both_indexes_agree_with_a_plain_map(
        blocks in prop::collection::vec(prop::collection::vec(any::<Drawn>(), 1..80), 1..20)
    ) {
        let mut index = MemIndex::new(SeqNo(11));
        let model = feed(&mut index, &blocks);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let metadata = sealed::write(&Disk, &path, (&index, None), ID, Vec::new())
            .unwrap()
            .metadata;
        compare(&index, &model, &metadata, &SealedIndex::open(&Disk, &path, ID).unwrap())?;
        let wanted = |name: &[u8]| name.ends_with(b"7");
        let of_block = |block: &Vec<Drawn>| block.iter().any(|drawn| (drawn.2 % 300) % 10 == 7);
        let expected = blocks.iter().map(of_block).collect::<Vec<_>>();
        prop_assert_eq!(index.blocks_with(MinionSelection::Passing(&wanted)), expected);
        for minion in [7, 77, 299] {
            let of_block = |block: &Vec<Drawn>| block.iter().any(|drawn| drawn.2 % 300 == minion);
            let expected = blocks.iter().map(of_block).collect::<Vec<_>>();
            prop_assert_eq!(index.blocks_with(MinionSelection::Is(format!("web{minion}").as_bytes())), expected);
        }
    }

    #[test]
    fn a_damaged_table_gives_an_error_or_the_right_answer(
        blocks in prop::collection::vec(prop::collection::vec(any::<Drawn>(), 1..80), 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut index = MemIndex::new(SeqNo(11));
        let model = feed(&mut index, &blocks);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        sealed::write(&Disk, &path, (&index, None), ID, Vec::new()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        match cut {
            Some(cut) => bytes.truncate(cut.index(bytes.len())),
            None => damage.iter().for_each(|(at, bits)| *at.get_mut(&mut bytes) ^= bits),
        }
        std::fs::write(&path, &bytes).unwrap();
        let is_damage = |error: &StoreError| matches!(error, StoreError::Index { .. });
        let open = match SealedIndex::open(&Disk, &path, ID) {
            Ok(open) => open,
            Err(error) => {
                prop_assert!(is_damage(&error), "{error}");
                return Ok(());
            }
        };
        prop_assert!(cut.is_none(), "a truncated table was opened");
        prop_assert_eq!(open.blocks().metas(), index.blocks().metas());
        for (&key, (row, positions)) in &model {
            prop_assert!(open.positions(key).map_or_else(|error| is_damage(&error), |found| found == *positions));
            prop_assert!(open.row(key).map_or_else(|error| is_damage(&error), |found| found.as_ref() == Some(row)));
        }
        for minion in 0..300 {
            let name = format!("web{minion}").into_bytes();
            let is = |other: &[u8]| other == name.as_slice();
            for selection in [MinionSelection::Is(&name), MinionSelection::Passing(&is)] {
                let right = index.blocks_with(selection);
                prop_assert!(open.blocks_with(selection).map_or_else(|error| is_damage(&error), |found| found == right));
            }
        }
        prop_assert!(open.latest().map_or_else(|error| is_damage(&error), |found| found == index.latest()));
    }
}

/// Compares the results of a sealed index with the results of the index in memory and of a plain
/// map.
fn compare(
    index: &MemIndex,
    model: &BTreeMap<JidKey, (JobSummary, Vec<EntryPosition>)>,
    metadata: &SegmentMetadata,
    open: &SealedIndex,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(open.metadata(), metadata);
    prop_assert_eq!(metadata.jobs, model.len() as u64);
    prop_assert_eq!(open.blocks().metas(), index.blocks().metas());
    for (&key, (row, positions)) in model {
        prop_assert!(metadata.may_hold(key));
        prop_assert_eq!(&index.positions(key), positions);
        prop_assert_eq!(&open.positions(key).unwrap(), positions);
        prop_assert_eq!(index.row(key), Some(row.clone()));
        prop_assert_eq!(open.row(key).unwrap(), Some(row.clone()));
    }
    let absent = JidKey::of("20251121030955000000");
    prop_assert!(index.row(absent).is_none() && open.row(absent).unwrap().is_none());
    for before in [None, model.keys().nth(model.len() / 2).copied()] {
        for limit in [1, 7, usize::MAX] {
            let expected: Vec<_> = model
                .iter()
                .rev()
                .filter(|(key, _)| before.is_none_or(|before| **key < before))
                .take(limit)
                .map(|(key, (row, _))| (*key, row.clone()))
                .collect();
            prop_assert_eq!(&index.rows_below(before, limit), &expected);
            prop_assert_eq!(&open.rows_below(before, limit).unwrap(), &expected);
        }
    }
    prop_assert_eq!(open.latest().unwrap(), index.latest());
    let wanted = |name: &[u8]| name.ends_with(b"7");
    let wanted = MinionSelection::Passing(&wanted);
    prop_assert_eq!(open.blocks_with(wanted).unwrap(), index.blocks_with(wanted));
    for minion in (0..310).step_by(7) {
        let name = format!("web{minion}");
        let minion = MinionSelection::Is(name.as_bytes());
        prop_assert_eq!(open.blocks_with(minion).unwrap(), index.blocks_with(minion));
    }
    Ok(())
}

#[test]
fn entries_with_very_long_names_are_sealed() {
    // Incompressible values, long jids without a time, a job with very many entries, long minion ids.
    let mut index = MemIndex::new(SeqNo(1));
    let noise = |n: u64, len: usize| {
        let words = (0..len.div_ceil(16)).map(|i| {
            format!(
                "{:016x}",
                xxhash_rust::xxh3::xxh3_64(&[n, i as u64].map(u64::to_le_bytes).concat())
            )
        });
        words.collect::<String>()
    };
    let mut seq = 0;
    for number in 0..300_u64 {
        let meta = BlockMeta {
            offset: number * 1000,
            len: 1000,
            head_len: 100,
            count: 100,
            first_seq: SeqNo(seq + 1),
            last_seq: SeqNo(seq + 100),
            at_min: Micros(0),
            at_max: Micros(0),
        };
        let tag = noise(number, 300);
        let mut builder = BlockBuilder::default();
        for at in 0..100_u64 {
            seq += 1;
            let jid = if at % 2 == 0 {
                "20261121030955000000".to_owned()
            } else {
                noise(seq, 400)
            };
            let minion = noise(seq % 2_000, 250);
            let mut w = Writer::new();
            w.array(2)
                .map(2)
                .str("fun")
                .str(&noise(seq, 1000))
                .str("tgt")
                .str(&noise(seq + 1, 1900))
                .nil();
            let body = w.into_bytes();
            let (source, flags) = (Source::Bus, Flags::ON_BUS);
            let kind = if at % 4 == 1 {
                Kind::Load
            } else {
                Kind::Return
            };
            let fun = noise(at, 50);
            let entry = Entry {
                flags,
                tag: tag.as_bytes(),
                jid: &jid,
                minion: &minion,
                fun: &fun,
                ..Entry::new(kind, source, Micros(0), &body)
            };
            builder.push(SeqNo(seq), &entry).unwrap();
        }
        add(&mut index, meta, &mut builder);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    sealed::write(&Disk, &path, (&index, None), ID, Vec::new()).unwrap();
    let open = SealedIndex::open(&Disk, &path, ID).unwrap();
    assert_eq!(
        open.positions(JidKey::of("20261121030955000000"))
            .unwrap()
            .len(),
        300 * 50
    );
    assert_eq!(open.latest().unwrap(), index.latest());
}

#[test]
fn a_full_index_has_no_room_beyond_32_bits() {
    let index = MemIndex::new(SeqNo(10));
    let most = u32::MAX as usize;
    assert!(index.has_room(1_000_000, 1 << 30, SeqNo(1 << 32)));
    assert!(!index.has_room(most, 0, SeqNo(11)), "entries");
    assert!(!index.has_room(1, most, SeqNo(11)), "names");
    assert!(
        !index.has_room(most / 32, 0, SeqNo(11)),
        "the values of rows"
    );
    assert!(
        !index.has_room(1, 1, SeqNo(10 + u64::from(u32::MAX))),
        "numbers"
    );
    assert!(!index.has_room(usize::MAX, usize::MAX, SeqNo(u64::MAX)));
}

#[test]
fn postings_that_do_not_ascend_are_rejected() {
    let record = |count| super::job::JobRecord {
        key: JidKey::of("free"),
        text: b"free",
        rank: 0,
        load: b"",
        load_seq: 0,
        first_at: 0,
        nocache: false,
        endtime_seq: 0,
        endtime: b"",
        count,
        first: 5,
    };
    let push = |count, rest: &[u32]| {
        super::job::Encoder::default().push(
            &mut Vec::new(),
            &record(count),
            0,
            rest.iter().copied(),
        )
    };
    assert!(push(3, &[6, 9]).is_ok());
    for (count, rest) in [
        (3, vec![6, 6]),
        (2, vec![5]),
        (2, vec![4]),
        (3, vec![9]),
        (1, vec![9]),
    ] {
        assert!(push(count, &rest).is_err(), "{count} {rest:?}");
    }
    assert!(
        super::job::Encoder::default()
            .push(
                &mut Vec::new(),
                &super::job::JobRecord {
                    rank: 8,
                    ..record(1)
                },
                0,
                std::iter::empty()
            )
            .is_err()
    );
    for blocks in [vec![3, 3], vec![3, 2], vec![1, 5, 4]] {
        assert!(super::minion::pages(&[(b"web1", blocks)]).is_err());
    }
}

#[test]
fn a_page_over_the_limits_is_rejected() {
    let mut writer = super::page::PageWriter::new().unwrap();
    assert!(writer.page(&[0; 4], &vec![0; 64 << 20]).is_ok());
    assert!(writer.page(&[1; 4], &vec![0; (64 << 20) + 1]).is_err());
    assert!(writer.page(&[0; 4], b"x").is_err(), "keys ascend");
}
