//! The blocks of each minion, in pages.
//!
//! # On disk
//!
//! Pages are numbered, u32 BE; records are sorted by minion.
//!
//! ```text
//! minion   length of the prefix shared with the previous minion in the page, number | the rest, bytes
//! blocks   0: count, number | first | gap to the next less 1, numbers
//!          or 1: first, number | a bitmap of the blocks from there on, low bits first, as bytes
//! ```
//!
//! The shorter form is used.

use std::io;

use super::super::error::StoreError;
use super::page::{PageWriter, Pages};
use crate::store::index::page::code::{FieldReader, put, put_bytes};

const LISTED: u8 = 0;
const BITS: u8 = 1;

fn write_record(out: &mut Vec<u8>, before: &[u8], minion: &[u8], blocks: &[u32]) -> io::Result<()> {
    let shared = before.iter().zip(minion).take_while(|(a, b)| a == b).count();
    put(out, shared as u64);
    put_bytes(out, minion.split_at(shared).1);
    if blocks.windows(2).any(|pair| pair.first() >= pair.last()) {
        return Err(io::Error::other("internal error: the blocks of a minion do not ascend"));
    }
    let (Some(&first), Some(&last)) = (blocks.first(), blocks.last()) else {
        out.extend_from_slice(&[LISTED, 0]);
        return Ok(());
    };
    let bytes = ((last - first) / 8 + 1) as usize;
    if bytes < blocks.len() {
        let mut bits = vec![0_u8; bytes];
        for block in blocks.iter().map(|block| block - first) {
            *bits.get_mut((block / 8) as usize).expect("the last block is the greatest") |= 1 << (block % 8);
        }
        out.push(BITS);
        put(out, u64::from(first));
        put_bytes(out, &bits);
    } else {
        out.push(LISTED);
        put(out, blocks.len() as u64);
        put(out, u64::from(first));
        for pair in blocks.windows(2) {
            if let [one, next] = pair {
                put(out, u64::from(next - one - 1));
            }
        }
    }
    Ok(())
}

/// Reads a record; `minion` has the previous name and receives this one. `None` if malformed.
pub fn read_record(r: &mut FieldReader<'_>, minion: &mut Vec<u8>) -> Option<Vec<u32>> {
    let mut blocks = Vec::new();
    read_name(r, minion)?;
    read_blocks(r, |block| blocks.push(block))?;
    Some(blocks)
}

/// Reads the name of a record, whose blocks follow.
fn read_name(r: &mut FieldReader<'_>, minion: &mut Vec<u8>) -> Option<()> {
    let shared = usize::try_from(r.number()?).ok()?;
    minion.get(..shared)?;
    minion.truncate(shared);
    minion.extend_from_slice(r.bytes()?);
    Some(())
}

/// Reads the blocks of a record.
fn read_blocks(r: &mut FieldReader<'_>, mut take: impl FnMut(u32)) -> Option<()> {
    match r.byte()? {
        LISTED => {
            let count = r.number()?;
            let mut next = 0_u32;
            for _ in 0..count {
                let block = next.checked_add(r.small()?)?;
                take(block);
                next = block.checked_add(1)?;
            }
        }
        BITS => {
            let first = r.small()?;
            for (at, &byte) in (0_u32..).zip(r.bytes()?) {
                for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                    take(first.checked_add(at.checked_mul(8)?)?.checked_add(bit)?);
                }
            }
        }
        _ => return None,
    }
    Some(())
}

/// Reads past the blocks of a record, which are not validated.
fn skip_blocks(r: &mut FieldReader<'_>) -> Option<()> {
    match r.byte()? {
        LISTED => {
            for _ in 0..r.number()? {
                r.number()?;
            }
        }
        BITS => {
            r.small()?;
            r.bytes()?;
        }
        _ => return None,
    }
    Some(())
}

/// Writes minions, sorted, with their blocks, sorted, into pages.
pub fn write(writer: &mut PageWriter, minions: &[(&[u8], Vec<u32>)]) -> std::io::Result<()> {
    let mut before: &[u8] = &[];
    writer.fill_numbered(minions.len(), |n, is_first, out| {
        let (minion, blocks) = minions.get(n).expect("a record of the list");
        write_record(out, if is_first { b"" } else { before }, minion, blocks)?;
        before = minion;
        Ok(())
    })
}

/// Marks every block with an entry of a minion selected by `wanted`.
pub fn blocks_with(
    pages: &Pages,
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<bool>, StoreError> {
    let mut found = vec![false; count];
    for page in pages.all()? {
        let (mut reader, mut minion) = (FieldReader(&page), Vec::new());
        while !reader.is_empty() {
            let named = read_name(&mut reader, &mut minion);
            let read = named.and_then(|()| {
                if !wanted(&minion) {
                    return skip_blocks(&mut reader);
                }
                // An unknown block cannot be read anyway.
                read_blocks(&mut reader, |block| {
                    found.get_mut(block as usize).into_iter().for_each(|known| *known = true);
                })
            });
            read.ok_or_else(|| pages.broken())?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::index::tree::CheckedTree;
    use crate::store::index::tree::sled_guard::open_sled;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(blocks in prop::collection::btree_set(0_u32..3000, 0..400), names in ("[a-c]{0,4}", "[a-c]{0,4}")) {
            let blocks: Vec<u32> = blocks.into_iter().collect();
            let (mut out, mut minion) = (Vec::new(), names.0.clone().into_bytes());
            write_record(&mut out, names.0.as_bytes(), names.1.as_bytes(), &blocks).unwrap();
            prop_assert_eq!(read_record(&mut FieldReader(&out), &mut minion), Some(blocks));
            prop_assert_eq!(minion, names.1.into_bytes());
        }

        #[test]
        fn a_damaged_record_is_rejected_without_panic(bytes in any::<Vec<u8>>()) {
            let _ = read_record(&mut FieldReader(&bytes), &mut b"web".to_vec());
        }
    }

    #[test]
    fn blocks_are_found_by_minion() {
        let names: Vec<String> = (0..2_000).map(|n| format!("web{n:04}")).collect();
        let minions: Vec<(&[u8], Vec<u32>)> =
            names.iter().zip(0_u32..).map(|(name, n)| (name.as_bytes(), vec![n / 7, n / 7 + 50])).collect();
        let dir = tempfile::tempdir().unwrap();
        let db = open_sled(dir.path(), 1 << 20).unwrap();
        let mut writer = PageWriter::new().unwrap();
        write(&mut writer, &minions).unwrap();
        let pages = Pages(CheckedTree::open(&db, dir.path(), "t").unwrap());
        pages.0.put(writer.rows(), 0).unwrap();
        let found = blocks_with(&pages, 400, |name| name == b"web0700" || name == b"web1999").unwrap();
        let numbers: Vec<usize> = (0..400).filter(|&n| found[n]).collect();
        assert_eq!(numbers, [100, 150, 285, 335]);
    }
}
