//! Tests of the comparison of an index with its log.

use super::*;
use crate::base::clock::Micros;
use crate::model::{Entry, Flags, Kind, Source};
use crate::store::log::file::BlockMeta;

#[test]
fn an_index_with_the_job_stored_last_is_valid() {
    let (today, before) = ("20261121030955000000", "20261101120000000000");
    let mut log = MemIndex::new(SeqNo(1));
    let (first_seq, last_seq, at) = (SeqNo(1), SeqNo(2), Micros(0));
    let (offset, len, head_len, count) = (64, 100, 50, 2);
    log.add_block(
        BlockMeta {
            offset,
            len,
            head_len,
            count,
            first_seq,
            last_seq,
            at_min: at,
            at_max: at,
        },
        &[],
    );
    for (at, jid) in [today, before].into_iter().enumerate() {
        let (kind, source, flags) = (Kind::Return, Source::Returner, Flags::default());
        let (minion, fun, body, tag) = ("web1", "test.ping", &b"\x80"[..], &b""[..]);
        let entry = Entry {
            kind,
            source,
            flags,
            at: Micros(0),
            tag,
            jid,
            minion,
            fun,
            retcode: 0,
            body,
        };
        log.add(at, SeqNo(1 + at as u64), &entry, 1, || body)
            .unwrap();
    }
    let newest = log.latest().remove(0);
    assert_eq!((newest.jid.as_str(), newest.seq), (today, SeqNo(1)));
    let found = |seq, jid: &str| LatestJob {
        seq: SeqNo(seq),
        jid: jid.to_owned(),
        ..newest.clone()
    };
    assert!(was_stored_last(&found(2, before), &newest, &log));
    assert!(
        !was_stored_last(&found(0, before), &newest, &log),
        "it was not the last"
    );
    assert!(
        !was_stored_last(&found(2, "20261101120000000001"), &newest, &log),
        "the log has no such job"
    );
    let of_other = LatestJob {
        minion: b"web2".to_vec(),
        ..found(2, before)
    };
    assert!(!was_stored_last(&of_other, &newest, &log));
}
