//! A block of arbitrary bytes with a valid checksum is rejected, or read without a panic; the entries that were
//! read encode to an equal block.
//!
//! Input: the length of a head (u32, little-endian), head and bodies.

use rkyv::util::AlignedVec;
use saltcellar::base::clock::Micros;
use saltcellar::model::{Entry, Flags, Kind, SeqNo, Source};
use saltcellar::store::log::block::BlockView;
use saltcellar::store::log::builder::{BlockBuilder, Packer};

/// Maximum number of entries read from a block; damaged columns may claim 65,535.
const ENTRIES_READ: usize = 64;

pub(crate) fn block(data: &[u8]) {
    if let Some((len, rest)) = data.split_first_chunk::<4>() {
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX).min(rest.len());
        let (head, bodies) = rest.split_at(len);
        if let Ok(view) = BlockView::new(aligned(head), Some(bodies.to_vec())) {
            read(&view);
        }
    }
}

fn aligned(bytes: &[u8]) -> AlignedVec {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    aligned
}

/// An entry of a decoded block.
#[derive(Debug, PartialEq)]
struct Row {
    kind: Kind,
    source: Source,
    flags: Flags,
    at: Micros,
    retcode: i64,
    tag: Vec<u8>,
    jid: String,
    minion: String,
    fun: String,
    body: Vec<u8>,
}

fn rows(view: &BlockView) -> Vec<Row> {
    let rows = view.rows();
    let row = |i: usize| Row {
        kind: rows.kind(i),
        source: rows.source(i),
        flags: rows.flags(i),
        at: rows.at(i),
        retcode: rows.retcode(i),
        tag: rows.tag(i),
        jid: rows.jid(i),
        minion: rows.minion(i).to_owned(),
        fun: rows.fun(i).to_owned(),
        body: rows.body(i).unwrap_or_default().to_vec(),
    };
    (0..view.len().min(ENTRIES_READ)).map(row).collect()
}

fn read(view: &BlockView) {
    let all = view.rows();
    let _ = (all.templates(), all.times(), all.jid_texts(), view.memory());
    for i in 0..view.len().min(ENTRIES_READ) {
        let _ = (all.seq(i), all.jid_key(i), all.tag_len(i, &all.jid(i)), all.body_len(i));
    }
    let read = rows(view);
    let mut builder = BlockBuilder::default();
    let mut len = 0;
    for (n, row) in (1..).zip(&read) {
        let Row { kind, source, flags, at, retcode, .. } = *row;
        let Row { tag, jid, minion, fun, body, .. } = row;
        let entry = Entry { kind, source,
            origin: "", number: 0, flags, at, tag, jid, minion, fun, retcode, body };
        if builder.is_full_for(&entry) {
            break;
        }
        builder.push(SeqNo(n), &entry).unwrap();
        len += 1;
    }
    let mut packer = Packer::new().expect("zstd starts");
    let packed = builder.finish(&mut packer).expect("a block can be packed");
    let again = BlockView::new(packed.head, Some(packed.bodies.to_vec())).expect("and read again");
    assert_eq!(rows(&again), read.get(..len).unwrap_or_default());
}
