//! The blocks of each minion, in pages.
//!
//! # On disk
//!
//! Tree `minion`: records sorted by minion; the key of a page is its first minion.
//!
//! ```text
//! minion   length of the prefix shared with the previous minion in the page, number | the rest, bytes
//! blocks   0: count, number | first | gap to the next less 1, numbers
//!          or 1: first, number | a bitmap of the blocks from there on, low bits first, as bytes
//! ```
//!
//! The shorter form is used.
//!
//! Tree `name`, numbered pages, u32 BE: the names a second time, without blocks, because blocks are
//! most of the bytes, and most searches are for few minions.
//!
//! ```text
//! per page of `minion`: count, number | the names as in that page
//! ```

use std::io;

use super::super::error::StoreError;
use super::page::table::Tree;
use super::page::{Page, PageWriter};
use crate::index::page::code::{FieldReader, put, put_bytes, put_name};

const LISTED: u8 = 0;
const BITS: u8 = 1;

fn write_record(out: &mut Vec<u8>, before: &[u8], minion: &[u8], blocks: &[u32]) -> io::Result<()> {
    put_name(out, before, minion);
    // Both forms encode ascending numbers only.
    if blocks.windows(2).any(|pair| pair.first() >= pair.last()) {
        return Err(io::Error::other(
            "internal error: the blocks of a minion do not ascend",
        ));
    }
    // A minion without blocks cannot be selected, but it stays readable.
    let (Some(&first), Some(&last)) = (blocks.first(), blocks.last()) else {
        out.extend_from_slice(&[LISTED, 0]);
        return Ok(());
    };

    // A bitmap pays once most blocks have entries of the minion, as with a fleet of few minions.
    let bytes = ((last - first) / 8 + 1) as usize;
    if bytes < blocks.len() {
        let mut bits = vec![0_u8; bytes];
        for block in blocks.iter().map(|block| block - first) {
            *bits
                .get_mut((block / 8) as usize)
                .expect("the last block is the greatest") |= 1 << (block % 8);
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
    r.name(minion)?;
    read_blocks(r, |block| blocks.push(block))?;
    Some(blocks)
}

fn read_blocks(r: &mut FieldReader<'_>, mut take: impl FnMut(u32)) -> Option<()> {
    match r.byte()? {
        LISTED => {
            let count = r.number()?;
            // A gap of zero is the next block, so the sequence needs no separator.
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

/// Packs minions, sorted, with their blocks, sorted: the pages of the trees `minion` and `name`.
pub fn pages(minions: &[(&[u8], Vec<u32>)]) -> io::Result<[Vec<Page>; 2]> {
    let mut writer = PageWriter::new()?;
    let minion = |n: usize| minions.get(n).expect("a record of the list");
    // The names of a page are relative to each other, so each page starts over.
    let mut before: &[u8] = &[];
    writer.fill(
        minions.len(),
        |n| minion(n).0.to_vec(),
        |n, is_first, out| {
            let (name, blocks) = minion(n);
            write_record(out, if is_first { b"" } else { before }, name, blocks)?;
            before = name;
            Ok(())
        },
    )?;
    let keyed = writer.pages();

    // A record of names ends where the next page of minions begins.
    let mut rest = minions;
    let mut names = Vec::with_capacity(keyed.len());
    for at in 1..=keyed.len() {
        let next = keyed.get(at).map(|(first, _)| first.as_slice());
        let count = next.map_or(rest.len(), |next| {
            rest.partition_point(|(name, _)| *name < next)
        });
        let (of_page, after) = rest.split_at(count);
        rest = after;

        let mut record = Vec::new();
        put(&mut record, of_page.len() as u64);
        let mut before: &[u8] = &[];
        for (name, _) in of_page {
            put_name(&mut record, before, name);
            before = name;
        }
        names.push(record);
    }

    writer.fill_numbered(names.len(), |n, _, out| {
        out.extend_from_slice(names.get(n).expect("a record of the list"));
        Ok(())
    })?;
    Ok([keyed, writer.pages()])
}

#[derive(Clone, Copy)]
pub(crate) enum MinionSelection<'a> {
    Is(&'a [u8]),
    /// The minions that pass a test.
    Passing(&'a dyn Fn(&[u8]) -> bool),
    /// As `Passing`, with the number of the name: each form of an index, in memory or sealed, tests
    /// all of its names in the same order each time. `None` for a name that is tested again.
    Numbered(&'a dyn Fn(Option<usize>, &[u8]) -> bool),
}

impl MinionSelection<'_> {
    pub(crate) fn selects(&self, number: Option<usize>, name: &[u8]) -> bool {
        match self {
            Self::Is(minion) => name == *minion,
            Self::Passing(test) => test(name),
            Self::Numbered(test) => test(number, name),
        }
    }
}

/// The pages that contain all selected minions.
pub(crate) fn selected_pages(
    pages: &Tree,
    names: &Tree,
    selection: MinionSelection<'_>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    // One name is found by the keys alone.
    if let MinionSelection::Is(minion) = selection {
        return Ok(pages
            .of(minion)?
            .map(|(_, page)| page)
            .into_iter()
            .collect());
    }

    let mut found = Vec::new();
    let mut number = 0;
    for listed in names.all()? {
        // One record per page of minions, so each selected page is read once.
        let mut reader = FieldReader(&listed);
        while !reader.is_empty() {
            let record = select_record(&mut reader, &mut number, selection);
            if let Some(first) = record.ok_or_else(|| names.broken())? {
                found.push(pages.get(&first)?.ok_or_else(|| names.broken())?);
            }
        }
    }
    Ok(found)
}

/// Reads a record of tree `name`, from the name with this number on; returns its first minion if one
/// of its minions is selected. The outer `None`: malformed.
#[expect(clippy::option_option, reason = "malformed, not selected, selected")]
fn select_record(
    r: &mut FieldReader<'_>,
    number: &mut usize,
    selection: MinionSelection<'_>,
) -> Option<Option<Vec<u8>>> {
    let mut minion = Vec::new();
    let mut first = None;
    let mut is_selected = false;
    for _ in 0..r.number()? {
        r.name(&mut minion)?;
        first.get_or_insert_with(|| minion.clone());
        // Also behind one that is selected: what is found of each name may be remembered, and the
        // work must not depend on which one it is.
        is_selected |= selection.selects(Some(*number), &minion);
        *number += 1;
    }

    Some(first.filter(|_| is_selected))
}

/// Marks every block with an entry of a selected minion. `None` if a page is malformed.
pub(crate) fn blocks_with(
    pages: &[Vec<u8>],
    count: usize,
    selection: MinionSelection<'_>,
) -> Option<Vec<bool>> {
    let mut found = vec![false; count];
    for page in pages {
        let mut reader = FieldReader(page);
        let mut minion = Vec::new();
        while !reader.is_empty() {
            reader.name(&mut minion)?;
            // Blocks of other minions are passed over without being decoded.
            if !selection.selects(None, &minion) {
                skip_blocks(&mut reader)?;
                continue;
            }
            // An unknown block cannot be read anyway.
            read_blocks(&mut reader, |block| {
                found
                    .get_mut(block as usize)
                    .into_iter()
                    .for_each(|known| *known = true);
            })?;
        }
    }

    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::page::table;
    use crate::log::frame::LogId;
    use crate::vfs::Disk;
    use proptest::prelude::*;
    use saltcellar_model::SeqNo;

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
        let names: Vec<String> = (0..20_000).map(|n| format!("web{n:05}")).collect();
        let minions: Vec<(&[u8], Vec<u32>)> = names
            .iter()
            .zip(0_u32..)
            .map(|(name, n)| (name.as_bytes(), vec![n / 70, n / 70 + 50]))
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let [keyed, listed] = pages(&minions).unwrap();
        let count = keyed.len();
        assert!(count > 3, "{count}");
        let (path, id) = (
            dir.path().join("index"),
            LogId {
                store_id: 7,
                first_seq: SeqNo(1),
            },
        );
        let trees = [("minion", keyed), ("name", listed)];
        table::write(&Disk, &path, (id, 0), &trees).unwrap();
        let table = table::Table::open(&Disk, &path, id).unwrap();
        let (pages, listed) = (table.tree("minion").unwrap(), table.tree("name").unwrap());
        let marked = |selection| {
            let pages = selected_pages(&pages, &listed, selection).unwrap();
            let found = blocks_with(&pages, 400, selection).unwrap();
            (
                (0..400).filter(|&n| found[n]).collect::<Vec<usize>>(),
                pages.len(),
            )
        };
        let two = |name: &[u8]| name == b"web07000" || name == b"web19999";
        assert_eq!(
            marked(MinionSelection::Passing(&two)),
            (vec![100, 150, 285, 335], 2)
        );
        for n in (0..20_000).step_by(11) {
            assert_eq!(
                marked(MinionSelection::Is(names[n].as_bytes())),
                (vec![n / 70, n / 70 + 50], 1)
            );
        }
        for absent in ["", "a", "web07000x", "web20", "zoo"] {
            assert_eq!(
                marked(MinionSelection::Is(absent.as_bytes())).0,
                [0; 0],
                "{absent}"
            );
        }
        assert_eq!(marked(MinionSelection::Passing(&|_| true)).1, count);
    }
}
