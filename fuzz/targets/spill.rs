//! A spill file of arbitrary bytes: a torn end is cut off, the number of events read equals the number counted,
//! and only damaged files remain. Events that were read survive being spilled again. A file without a header and
//! without a frame is kept unchanged under another name.
//!
//! Input: a byte (bit 0: valid checksums; bit 1: the daemon ended during its delivery), then the file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use saltcellar::base::clock::Micros;
use saltcellar::ingest::spill::file::DiskQueue;
use saltcellar::model::{Batch, Kind, SeqNo};
use saltcellar::store::log::frame::{FRAME_HEADER_LEN, LogId, Position, place_frame};
use saltcellar::store::vfs::Disk;

/// Bytes of the file before its frames, and the alignment of these and of their parts.
const FILE_HEADER: usize = 80;
const ALIGN: usize = 16;
/// The store of all files, and the number of the first event.
const STORE: u64 = 7;
const FIRST: u64 = 1;

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
    fs::write(place.join(format!("0001000000-{FIRST}.{ending}")), &file).expect("a file");

    let (mut queue, found) = DiskQueue::open(Arc::new(Disk), &place, STORE).expect("every file can be opened");
    assert_eq!(queue.waiting(), found.events);
    if found.events > 0 {
        assert_eq!(queue.bytes() + found.cut, file.len() as u64);
    }
    if found.quarantined > 0 {
        let aside = place.join(format!("0001000000-{FIRST}.{ending}.aside"));
        assert_eq!((found.events, found.cut), (0, 0));
        assert!(fs::read(aside).expect("the foreign file") == file, "as it was");
    }
    let (rows, batches) = drained(&mut queue, &place);
    assert_eq!(rows.len() as u64, found.events, "all that was counted");

    for (batch, number) in &batches {
        queue.append(batch, *number).expect("there is room");
    }
    drop(queue);
    let (mut queue, found) = DiskQueue::open(Arc::new(Disk), &place, STORE).expect("what was written opens");
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

/// Gives the file and each frame valid checksums, where frames follow each other.
fn mend_checksums(file: &mut [u8]) {
    if let Some((header, sum)) = file.get_mut(..FILE_HEADER).and_then(|header| header.split_at_mut_checked(FILE_HEADER - 4)) {
        sum.copy_from_slice(&crc32fast::hash(header).to_le_bytes());
    }

    let id = LogId { store_id: STORE, first_seq: SeqNo(FIRST) };
    let mut at = FILE_HEADER;
    while let Some(frame) = file.get_mut(at..) {
        let len_at = |n: usize| frame.get(n..)?.first_chunk().map(|len| u32::from_le_bytes(*len) as usize);
        let (Some(head), Some(bodies)) = (len_at(8), len_at(12)) else { return };
        let bodies_at = FRAME_HEADER_LEN.saturating_add(head.next_multiple_of(ALIGN));

        let sum = |from: usize, len: usize| frame.get(from..from.saturating_add(len)).map(crc32fast::hash);
        let (Some(of_head), Some(of_bodies)) = (sum(FRAME_HEADER_LEN, head), sum(bodies_at, bodies)) else { return };
        frame[32..36].copy_from_slice(&of_head.to_le_bytes());
        frame[36..40].copy_from_slice(&of_bodies.to_le_bytes());
        place_frame(frame, id, Position::in_new_log(at as u64));
        at += bodies_at + bodies.next_multiple_of(ALIGN);
    }
}
