//! A spill file of arbitrary bytes: a torn end is cut off, the number of events read equals the number counted,
//! and only damaged files remain. Events that were read survive being spilled again. A file without the start
//! of a spill is kept unchanged under another name.
//!
//! Input: a byte (bit 0: valid checksums; bit 1: the daemon ended during its delivery), then the file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use saltcellar::base::clock::Micros;
use saltcellar::ingest::spill::file::DiskQueue;
use saltcellar::model::{Batch, Kind};
use saltcellar::store::vfs::Disk;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the file before its records, and of a record before its payload.
const FILE_HEADER: usize = 40;
const RECORD_HEADER: usize = 24;

/// The compared parts of an entry; the source is excluded, because a restart changes its certainty.
type Row = (Kind, Micros, i64, u8, [Vec<u8>; 5]);

pub(crate) fn spill(data: &[u8]) {
    let Some((mode, file)) = data.split_first() else { return };
    let mut file = file.to_vec();
    if mode & 1 != 0 {
        mend_checksums(&mut file);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("spill").join("bus");
    fs::create_dir_all(&place).expect("a directory");
    let ending = if mode & 2 == 0 { "spill" } else { "read" };
    fs::write(place.join(format!("0001000000.{ending}")), &file).expect("a file");

    let (mut queue, found) = DiskQueue::open(Arc::new(Disk), &place).expect("every file can be opened");
    assert_eq!(queue.waiting(), found.events);
    if found.events > 0 {
        assert_eq!(queue.bytes() + found.cut, file.len() as u64);
    }
    if found.quarantined > 0 {
        let aside = place.join(format!("0001000000.{ending}.aside"));
        assert_eq!((found.events, found.cut), (0, 0));
        assert!(fs::read(aside).expect("the foreign file") == file, "as it was");
    }
    let (rows, batches) = drained(&mut queue, &place);
    assert_eq!(rows.len() as u64 + queue.take_unreadable(), found.events, "all that was counted");

    for (batch, number) in &batches {
        queue.append(batch, *number).expect("there is room");
    }
    drop(queue);
    let (mut queue, found) = DiskQueue::open(Arc::new(Disk), &place).expect("what was written opens");
    assert_eq!((found.events, found.cut), (rows.len() as u64, 0));
    assert_eq!(drained(&mut queue, &place).0, rows);
}

fn drained(queue: &mut DiskQueue, place: &Path) -> (Vec<Row>, Vec<(Batch, u64)>) {
    let (mut rows, mut batches) = (Vec::new(), Vec::new());
    while let Some(piece) = queue.next_piece().expect("the file is there") {
        if piece.batch.is_empty() {
            assert!(piece.hole.is_some(), "a piece without events has a hole");
            continue;
        }
        for (entry, _) in piece.batch.entries() {
            let texts = [entry.tag, entry.body, entry.jid.as_bytes(), entry.minion.as_bytes(), entry.fun.as_bytes()];
            rows.push((entry.kind, entry.at, entry.retcode, entry.flags.0, texts.map(<[u8]>::to_vec)));
        }
        queue.stored(piece.file);
        batches.push((piece.batch, piece.first));
    }
    assert_eq!((queue.bytes(), queue.waiting()), (0, 0), "nothing is left");
    let is_ours = |item: &fs::DirEntry| item.path().extension().is_none_or(|ending| ending != "aside" && ending != "damaged");
    let left = fs::read_dir(place).expect("the directory").filter(|item| item.as_ref().is_ok_and(is_ours)).count();
    assert_eq!(left, 0, "no file either");
    (rows, batches)
}

/// Gives each complete record valid checksums.
fn mend_checksums(file: &mut [u8]) {
    let Some(key) = file.get(16..).and_then(|key| key.first_chunk()).map(|key| u64::from_le_bytes(*key)) else { return };
    let mut at = FILE_HEADER;
    while let Some(rest) = file.get_mut(at..) {
        let Some(len) = rest.first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else { return };
        let Some(record) = rest.get_mut(..RECORD_HEADER.saturating_add(len)) else { return };
        let (head, payload) = record.split_at_mut(RECORD_HEADER);
        head[16..24].copy_from_slice(&xxh3_64_with_seed(payload, key).to_le_bytes());
        let checked = [&(at as u64).to_le_bytes()[..], &head[..4], &head[8..24]].concat();
        let sum = u32::try_from(xxh3_64_with_seed(&checked, key) & 0xffff_ffff).unwrap_or_default();
        head[4..8].copy_from_slice(&sum.to_le_bytes());
        at += RECORD_HEADER + len;
    }
}
