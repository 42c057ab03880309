//! Pages: many records of an index in one piece.
//!
//! A record costs an entry in a directory, or a row of sled, whatever its size is, so sorted records
//! are packed into pages, which are compressed one by one. A page contains the key of its first record:
//! the record of a key is in the last page whose key is not greater.
//!
//! # On disk
//!
//! ```text
//! page   codec u8: 0 records as they are, 1 length u32 LE and a zstd frame | records
//! ```

pub mod code;
pub mod table;

use std::io;

use crate::log::block::decompress;
use saltcellar_base::limits::INDEX_PAGE_BYTES;

const STORED: u8 = 0;
const ZSTD: u8 = 1;

/// A key and the records of its page.
pub(crate) type Page = (Vec<u8>, Vec<u8>);

/// Packs records into pages.
pub struct PageWriter {
    zstd: zstd::bulk::Compressor<'static>,
    /// Bytes of a page before compression; a larger record gets a separate page.
    raw_max: usize,
    pages: Vec<Page>,
}

impl PageWriter {
    /// An empty writer of pages for a table.
    pub fn new() -> std::io::Result<Self> {
        Self::with_page_bytes(INDEX_PAGE_BYTES)
    }

    /// An empty writer of pages of this size before compression.
    pub(crate) fn with_page_bytes(raw_max: usize) -> std::io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Compressor::new(1)?,
            raw_max,
            pages: Vec::new(),
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

            self.push(key(from), page)?;
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
        self.push(key.to_vec(), page)
    }

    fn pack(&mut self, raw: &[u8]) -> io::Result<Vec<u8>> {
        // Readers do not unpack a longer page.
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

    fn push(&mut self, key: Vec<u8>, page: Vec<u8>) -> io::Result<()> {
        // Readers search by the order of the keys.
        if self.pages.last().is_some_and(|(before, _)| *before >= key) {
            return Err(io::Error::other(
                "internal error: the keys of pages do not ascend",
            ));
        }

        self.pages.push((key, page));
        Ok(())
    }

    /// Returns and clears the pages, ascending by key.
    pub fn pages(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.pages)
    }
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

/// Limit of an unpacked page in bytes; even a job with very many entries stays below it.
const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::page::code::{FieldReader, put_bytes};
    use crate::log::frame::LogId;
    use crate::vfs::Disk;

    #[test]
    fn records_of_every_size_are_found_by_key_and_backwards() {
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
            put_bytes(out, &record(n));
            Ok(())
        };
        writer.fill(300, key, encode).unwrap();
        let rows = writer.pages();
        let large = |page: &&Page| page.1.len() > INDEX_PAGE_BYTES + 1;
        assert_eq!(rows.iter().filter(large).count(), 1, "the large record");
        assert!(rows.len() > 3);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let id = LogId {
            store_id: 7,
            first_seq: saltcellar_model::SeqNo(1),
        };
        table::write(&Disk, &path, (id, 0), &[("t", rows)]).unwrap();
        let pages = table::Table::open(&Disk, &path, id)
            .unwrap()
            .tree("t")
            .unwrap();

        let records = |page: &[u8]| {
            let mut reader = FieldReader(page);
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
