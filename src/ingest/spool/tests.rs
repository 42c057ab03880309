//! Tests of reading the extension's spools.

use super::*;
use crate::wire::msgpack::Writer;

fn record(at: i64) -> Vec<u8> {
    let mut w = Writer::new();
    w.array(2)
        .str("returner")
        .map(3)
        .str("at")
        .int(at)
        .str("load")
        .map(0)
        .str("replay")
        .bool(true);
    let payload = w.into_bytes();
    let len = u32::try_from(payload.len()).unwrap();
    [
        &len.to_be_bytes()[..],
        &1_u32.to_be_bytes(),
        &crc32fast::hash(&[&1_u32.to_be_bytes()[..], &payload].concat()).to_be_bytes(),
        &payload,
    ]
    .concat()
}

fn state(offset: u64, end: u64) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], &end.to_be_bytes(), &[0; 12]].concat();
    [&body[..], &crc32fast::hash(&body).to_be_bytes()].concat()
}

#[test]
fn a_spool_is_read_as_the_extension_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Spool::inspect(dir.path()).unwrap(), None);
    let (first, second) = (record(1_000), record(2_000));
    fs::write(dir.path().join("spool"), [&first[..], &second].concat()).unwrap();
    let inspect = || Spool::inspect(dir.path()).unwrap().unwrap();
    assert_eq!(
        (inspect().waiting_bytes, inspect().oldest),
        (2 * first.len() as u64, Some(Micros(1_000)))
    );
    let (len, end) = (first.len() as u64, 2 * first.len() as u64);
    fs::write(dir.path().join("spool.state"), state(len, end)).unwrap();
    fs::write(dir.path().join("spool.dead-letter"), [0; 7]).unwrap();
    fs::write(
        dir.path().join("spool.counters"),
        "{\"spool_full\": 3, \"torn\": 1}\n",
    )
    .unwrap();
    assert_eq!(
        (
            inspect().waiting_bytes,
            inspect().oldest,
            inspect().dead_letter_bytes
        ),
        (len, Some(Micros(2_000)), 7)
    );
    assert_eq!(
        (inspect().lost, inspect().lost_entries()),
        (vec![("spool_full".into(), 3), ("torn".into(), 1)], 4)
    );
    fs::write(dir.path().join("spool"), "").unwrap();
    assert_eq!((inspect().waiting_bytes, inspect().oldest), (0, None));
}

#[test]
fn damage_yields_a_value_or_an_error_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("spool"),
        b"\xff\xff\xff\xff\0\0\0\0\x92\xa1",
    )
    .unwrap();
    for broken in [&b""[..], b"short", &[0xff; 24], &state(1 << 60, 5)] {
        fs::write(dir.path().join("spool.state"), broken).unwrap();
        fs::write(dir.path().join("spool.counters"), broken).unwrap();
        let spool = Spool::inspect(dir.path()).unwrap().unwrap();
        assert_eq!(
            (spool.waiting_bytes, spool.oldest, spool.lost),
            (10, None, vec![])
        );
    }
    fs::remove_file(dir.path().join("spool")).unwrap();
    fs::create_dir(dir.path().join("spool")).unwrap();
    assert!(Spool::inspect(dir.path()).is_err());
}
