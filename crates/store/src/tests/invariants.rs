//! Internal invariants: an inconsistent write fails with an error, and the store continues.

use super::*;
use crate::log::builder::{BlockBuilder, Packer};
use crate::log::frame;
use crate::log::frame::Packed;

fn write_sequence(dir: &Path, end: u64) {
    let file = crate::write::seqno::SequenceFile {
        end: SeqNo(end),
        ..Default::default()
    };
    fs::write(dir.join("SEQUENCE"), file.text()).unwrap();
}

#[test]
fn exhausted_sequence_numbers_are_rejected_and_none_is_assigned_twice() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..10)).unwrap();
    rig.close();
    write_sequence(dir.path(), u64::MAX - 3);
    let rig = Rig::open(dir.path(), Limits::default());
    for n in 10..30 {
        let outcome = rig.put(batch_of([n]));
        assert!(
            outcome
                .as_ref()
                .is_err_and(|words| words.contains("exhausted")),
            "{outcome:?}"
        );
    }
    check_all(&rig, 0..10);
}

#[test]
fn a_segment_ends_before_its_sequence_numbers_exceed_32_bits() {
    let dir = tempfile::tempdir().unwrap();
    let load = |job: u64| {
        let mut w = Writer::new();
        w.array(2).map(1).str("fun").str("test.ping").nil();
        let (body, jid) = (w.into_bytes(), jid(job));
        Batch::of(&Entry {
            jid: &jid,
            fun: "test.ping",
            ..Entry::new(Kind::Load, Source::Returner, Micros(0), &body)
        })
    };
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(load(1)).unwrap();
    rig.close();
    let far = (1_u64 << 32) + 1_000;
    write_sequence(dir.path(), far);
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(load(2)).unwrap();
    let check = |rig: &Rig| {
        assert_eq!(rig.store.job_row(&jid(1)).unwrap().unwrap().load_seq, 1);
        assert_eq!(rig.store.job_row(&jid(2)).unwrap().unwrap().load_seq, far);
    };
    check(&rig);
    assert_eq!(
        rig.store.segments.of(Class::JOBS).len(),
        2,
        "a new segment was created"
    );
    let rig = rig.reopened();
    check(&rig);
}

#[test]
fn an_inconsistent_block_is_not_written() {
    let data = data(1);
    let entry = event_entry(
        b"salt/job/20261121030955000000/ret/web1",
        &data,
        Source::Bus,
        Micros(0),
    );
    let mut builder = BlockBuilder::default();
    builder.push(SeqNo(7), &entry).unwrap();
    for seq in [7, 6, 0] {
        assert!(
            matches!(builder.push(SeqNo(seq), &entry), Err(StoreError::Broken(_))),
            "{seq} behind 7"
        );
    }
    assert_eq!(builder.seqs(), (SeqNo(7), SeqNo(7)));
    for seq in 8..7 + saltcellar_base::limits::BLOCK_ENTRIES_MAX as u64 {
        builder.push(SeqNo(seq), &entry).unwrap();
    }
    assert!(
        matches!(
            builder.push(SeqNo(1 << 40), &entry),
            Err(StoreError::Broken(_))
        ),
        "one entry too many"
    );
    let mut packer = Packer::new().unwrap();
    assert!(builder.finish(&mut packer).is_ok());
    builder.clear();
    assert!(
        matches!(builder.finish(&mut packer), Err(StoreError::Broken(_))),
        "no entry at all"
    );
    let bodies = vec![0; frame::PAYLOAD_BYTES_MAX + 1];
    let long = Packed {
        head: rkyv::util::AlignedVec::new(),
        bodies: &bodies,
    };
    let mut frames = Vec::new();
    assert!(matches!(
        frame::write_frame(&mut frames, &long, (SeqNo(7), SeqNo(7)), 1),
        Err(StoreError::Broken(_))
    ));
    assert!(frames.is_empty());
}
