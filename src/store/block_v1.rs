//! Blocks of version 1, as format 1 wrote them: one archive that holds the bodies too.
//!
//! They stay readable: their columns become a head of the present version, their bodies are taken as they lie.

use rkyv::rancor::Error;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use super::block::{BlockView, Head};
use super::column::Column;

/// The archive of version 1; a column means what it means in [`Head`].
#[derive(Debug, Archive, Serialize, Deserialize)]
struct Block {
    first_seq: u64,
    count: u32,
    seq: Column,
    at: Column,
    kind: Column,
    source: Column,
    flags: Column,
    retcode: Column,
    jid: Column,
    minion: Column,
    fun: Column,
    tag: Column,
    body_len: Column,
    jid_time: Column,
    jid_pid: Column,
    jids: u32,
    text_ends: Vec<u32>,
    texts: Vec<u8>,
    bodies_len: u64,
    codec: u8,
    bodies: Vec<u8>,
}

/// Reads a payload that its checksum has vouched for.
pub fn view(payload: &AlignedVec) -> Result<BlockView, String> {
    let old = rkyv::from_bytes::<Block, Error>(payload).map_err(|e| format!("no block: {e}"))?;
    let head = Head {
        first_seq: old.first_seq,
        count: old.count,
        seq: old.seq,
        at: old.at,
        kind: old.kind,
        source: old.source,
        flags: old.flags,
        retcode: old.retcode,
        jid: old.jid,
        minion: old.minion,
        fun: old.fun,
        tag: old.tag,
        body_len: old.body_len,
        jid_time: old.jid_time,
        jid_pid: old.jid_pid,
        jids: old.jids,
        text_ends: old.text_ends,
        texts: old.texts,
        bodies_len: old.bodies_len,
        codec: old.codec,
    };
    let head = rkyv::to_bytes::<Error>(&head).map_err(|e| e.to_string())?;
    BlockView::new(head, Some(old.bodies))
}
