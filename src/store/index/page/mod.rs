//! Pages: many records in one sled row.
//!
//! A sled row costs 10 to 17 microseconds and about 30 bytes regardless of its content, so sorted
//! records are packed into pages and written in one batch. A page has the key of its first record:
//! the record of a key is in the last page whose key is not greater.
//!
//! # On disk
//!
//! ```text
//! key    key of the first record, all of one length in a tree | part u16 BE
//! value  part of the page, at most 6 KiB (limits::INDEX_PAGE_BYTES)
//!
//! page   codec u8: 0 records as they are, 1 length u32 LE and a zstd frame | records
//! ```
//!
//! A page longer than a value, because of a very large record, continues in further parts. Values
//! are this small because sled moves large leaves to separate files that it does not sync.

pub mod code;
pub mod table;

use std::fmt::Debug;
use std::io;

use super::super::error::StoreError;
use crate::base::limits::{INDEX_PAGE_BYTES, INDEX_PAGE_RAW_BYTES};
use crate::store::index::tree::CheckedTree;
use crate::store::log::block::decompress;

const STORED: u8 = 0;
const ZSTD: u8 = 1;
const PART_LEN: usize = 2;

/// A key and the records of its page.
pub(crate) type Page = (Vec<u8>, Vec<u8>);

/// Packs records into pages.
pub struct PageWriter {
    zstd: zstd::bulk::Compressor<'static>,
    /// Raw bytes to try for the next page.
    raw_max: usize,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

impl PageWriter {
    /// An empty writer.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Compressor::new(1)?,
            raw_max: INDEX_PAGE_BYTES,
            rows: Vec::new(),
        })
    }

    /// Packs `count` records, sorted by key. `encode(n, is_first, out)` appends record `n`;
    /// `is_first` is set for the first one of a page, which is not relative to a previous record.
    pub fn fill(
        &mut self,
        count: usize,
        mut key: impl FnMut(usize) -> Vec<u8>,
        mut encode: impl FnMut(usize, bool, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut from = 0;
        // One buffer for all pages.
        let mut raw = Vec::new();
        while from < count {
            raw.clear();
            // Fill up to the size that is expected to compress to one value.
            let mut next = from;
            while next < count {
                let len = raw.len();
                encode(next, next == from, &mut raw)?;
                // The record that exceeds the size begins the next page, which encodes it again,
                // relative to nothing.
                if raw.len() > self.raw_max && next > from {
                    raw.truncate(len);
                    break;
                }
                next += 1;
            }

            let page = self.pack(&raw)?;

            // Compressed worse than the page before: try again with half of the records. A single
            // record stays, and is split into parts.
            if page.len() > INDEX_PAGE_BYTES && next > from + 1 && self.raw_max >= INDEX_PAGE_BYTES
            {
                self.raw_max = (self.raw_max / 2).max(INDEX_PAGE_BYTES - 1);
                continue;
            }

            // The last page says nothing about the ratio: it is not full.
            if next < count {
                // Aim slightly below the compression ratio of this page.
                let fits = raw.len() * INDEX_PAGE_BYTES / page.len().max(1);
                self.raw_max = (fits - fits / 16).clamp(INDEX_PAGE_BYTES - 1, INDEX_PAGE_RAW_BYTES);
            }

            self.push(&key(from), &page)?;
            from = next;
        }
        Ok(())
    }

    /// As [`PageWriter::fill`], with consecutive numbers as keys of the pages.
    pub(crate) fn fill_numbered(
        &mut self,
        count: usize,
        encode: impl FnMut(usize, bool, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut pages = 0_u32..;
        self.fill(
            count,
            |_| {
                pages
                    .next()
                    .expect("pages are 32 bits")
                    .to_be_bytes()
                    .to_vec()
            },
            encode,
        )
    }

    /// Adds a page with given records.
    pub fn page(&mut self, key: &[u8], records: &[u8]) -> std::io::Result<()> {
        let page = self.pack(records)?;
        self.push(key, &page)
    }

    fn pack(&mut self, raw: &[u8]) -> io::Result<Vec<u8>> {
        // Readers refuse to unpack a longer page.
        let len = u32::try_from(raw.len())
            .ok()
            .filter(|_| raw.len() <= PAGE_BYTES_MAX);
        let len =
            len.ok_or_else(|| io::Error::other("internal error: a page exceeds PAGE_BYTES_MAX"))?;

        let packed = self.zstd.compress(raw)?;

        // Compression must save a sixteenth: a page that is stored is read without decompression.
        Ok(if packed.len() + 4 + raw.len() / 16 < raw.len() {
            [&[ZSTD][..], &len.to_le_bytes(), &packed].concat()
        } else {
            [&[STORED], raw].concat()
        })
    }

    fn push(&mut self, key: &[u8], page: &[u8]) -> io::Result<()> {
        // Readers search by the order of the keys.
        let before = self
            .rows
            .last()
            .and_then(|(key, _)| key.split_last_chunk::<PART_LEN>());
        if before.is_some_and(|(before, _)| before >= key) {
            return Err(io::Error::other(
                "internal error: the keys of pages do not ascend",
            ));
        }

        for (part, bytes) in page.chunks(INDEX_PAGE_BYTES).enumerate() {
            let part = u16::try_from(part)
                .map_err(|_| io::Error::other("internal error: a page has over 65,536 parts"))?;
            self.rows
                .push(([key, &part.to_be_bytes()].concat(), bytes.to_vec()));
        }
        Ok(())
    }

    /// Returns and clears the rows for sled, ascending by key.
    pub fn rows(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.raw_max = INDEX_PAGE_BYTES;
        std::mem::take(&mut self.rows)
    }
}

/// A tree of packed pages, in sled or in a table.
pub(crate) trait PageTree: Debug + Send + Sync {
    /// The last page with a key below `upper`, or of the whole tree.
    fn last_below(&self, upper: Option<&[u8]>) -> Result<Option<Page>, StoreError>;
    /// The last page with a key not above `key`.
    fn last_upto(&self, key: &[u8]) -> Result<Option<Page>, StoreError>;
    /// All pages, ascending.
    fn packed(&self) -> Result<Vec<Page>, StoreError>;
    fn damaged(&self, what: &str) -> StoreError;
}

impl PageTree for CheckedTree {
    fn last_below(&self, upper: Option<&[u8]>) -> Result<Option<Page>, StoreError> {
        // The greatest row is the last part of its page.
        let rows = self.before(upper, 1)?;
        let Some((key, value)) = rows.first() else {
            return Ok(None);
        };

        let Some((key, part)) = key.split_last_chunk::<PART_LEN>() else {
            return Err(broken(self));
        };

        // Almost every page has one part.
        if *part == [0; PART_LEN] {
            return Ok(Some((key.to_vec(), value.to_vec())));
        }

        let parts = self.with_prefix(key)?;
        Ok(Some((
            key.to_vec(),
            parts
                .iter()
                .flat_map(|(_, value)| value.iter().copied())
                .collect(),
        )))
    }

    /// The keys of a tree have one length.
    fn last_upto(&self, key: &[u8]) -> Result<Option<Page>, StoreError> {
        // Longer than the suffix of any part, so it sorts behind all parts of this key.
        self.last_below(Some(&[key, &[0xff; PART_LEN + 1]].concat()))
    }

    fn packed(&self) -> Result<Vec<Page>, StoreError> {
        joined(self.with_prefix(b"")?).ok_or_else(|| broken(self))
    }

    fn damaged(&self, what: &str) -> StoreError {
        CheckedTree::damaged(self, what)
    }
}

/// Joins the parts of pages, given as rows; `None` if malformed.
pub(crate) fn joined(
    rows: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
) -> Option<Vec<Page>> {
    let mut pages: Vec<Page> = Vec::new();
    // A part other than the first continues the page before it.
    for (key, value) in rows {
        let (key, part) = key.as_ref().split_last_chunk::<PART_LEN>()?;
        match pages.last_mut() {
            Some((_, page)) if *part != [0; PART_LEN] => page.extend_from_slice(value.as_ref()),
            _ => pages.push((key.to_vec(), value.as_ref().to_vec())),
        }
    }
    Some(pages)
}

/// Unpacks a page; `None` if malformed.
pub(crate) fn unpack(page: &[u8]) -> Option<Vec<u8>> {
    let (codec, rest) = page.split_first()?;
    match *codec {
        STORED => Some(rest.to_vec()),
        ZSTD => {
            let (len, packed) = rest.split_first_chunk()?;
            // Records consist of bounded names and values, so a larger length is damage.
            let len = (u32::from_le_bytes(*len) as usize).min(PAGE_BYTES_MAX);
            decompress(packed, len).ok()
        }
        _ => None,
    }
}

/// The error for a malformed page; the index must be rebuilt.
fn broken(tree: &(impl PageTree + ?Sized)) -> StoreError {
    tree.damaged("malformed page")
}

#[derive(Debug)]
pub(crate) struct Pages<T: ?Sized = CheckedTree>(pub T);

impl<T: PageTree + ?Sized> Pages<T> {
    /// The page that would contain a key's record.
    pub(crate) fn of(&self, key: &[u8]) -> Result<Option<Page>, StoreError> {
        self.unpacked(self.0.last_upto(key)?)
    }

    /// The last page with a key below `key`, or the last page overall.
    pub(crate) fn before(&self, key: Option<&[u8]>) -> Result<Option<Page>, StoreError> {
        self.unpacked(self.0.last_below(key)?)
    }

    fn unpacked(&self, page: Option<Page>) -> Result<Option<Page>, StoreError> {
        page.map(|(key, page)| Ok((key, self.unpack(&page)?)))
            .transpose()
    }

    /// The page with exactly this key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self
            .of(key)?
            .filter(|(found, _)| found == key)
            .map(|(_, page)| page))
    }

    /// All pages, ascending.
    pub(crate) fn all(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.0
            .packed()?
            .iter()
            .map(|(_, page)| self.unpack(page))
            .collect()
    }

    fn unpack(&self, page: &[u8]) -> Result<Vec<u8>, StoreError> {
        unpack(page).ok_or_else(|| self.broken())
    }

    pub(crate) fn broken(&self) -> StoreError {
        broken(&self.0)
    }
}

/// Limit of an unpacked page in bytes; even a job with very many entries stays below it.
const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::index::tree::sled_guard::open_sled;

    #[test]
    fn records_of_every_size_are_found_by_key_and_backwards() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_sled(dir.path(), 1 << 20).unwrap();
        let record = |n: usize| {
            let len = if n == 40 { 100_000 } else { n % 700 };
            (0..len)
                .map(|i| {
                    xxhash_rust::xxh3::xxh3_64(&(i * 100_000 + n).to_le_bytes()).to_le_bytes()[0]
                })
                .collect::<Vec<u8>>()
        };
        let key = |n: usize| u32::try_from(n).unwrap().to_be_bytes().to_vec();
        let mut writer = PageWriter::new().unwrap();
        let encode = |n: usize, _: bool, out: &mut Vec<u8>| {
            out.extend(key(n));
            crate::store::index::page::code::put_bytes(out, &record(n));
            Ok(())
        };
        writer.fill(300, key, encode).unwrap();
        let rows = writer.rows();
        assert!(
            rows.iter()
                .all(|(_, value)| value.len() <= INDEX_PAGE_BYTES)
                && rows.len() > 20
        );
        let pages = Pages(CheckedTree::open(&db, dir.path(), "t").unwrap());
        pages.0.put(rows, 0).unwrap();
        let records = |page: &[u8]| {
            let mut reader = crate::store::index::page::code::FieldReader(page);
            let mut found = Vec::new();
            while let Some(key) = reader.take(4) {
                found.push((key.to_vec(), reader.bytes().unwrap().to_vec()));
            }
            found
        };
        for n in 0..300 {
            let (_, page) = pages.of(&key(n)).unwrap().unwrap();
            assert!(records(&page).contains(&(key(n), record(n))), "{n}");
        }
        let mut at = None;
        let mut backwards = Vec::new();
        while let Some((first, page)) = pages.before(at.as_deref()).unwrap() {
            backwards.extend(records(&page).into_iter().rev());
            at = Some(first);
        }
        assert_eq!(
            backwards,
            (0..300)
                .rev()
                .map(|n| (key(n), record(n)))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            pages.all().unwrap().iter().flat_map(|p| records(p)).count(),
            300
        );
    }
}
