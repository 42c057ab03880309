//! A table: the index of a sealed segment in one immutable file, in trees of pages.
//!
//! A table is opened with two reads, and a page is read and verified when it is needed.
//!
//! # On disk
//!
//! ```text
//! header, 48 bytes
//!   0  `SALTPAGE`
//!   8  version: 2                                   u32 LE
//!  12  bytes of the directory                       u32 LE
//!  16  store id                                     u64 LE
//!  24  first sequence number of the segment         u64 LE
//!  32  hash of the positions of its blocks          u64 LE (see `summary`)
//!  40  XXH3-64 of bytes 0..40 and the directory     u64 LE
//! directory   per tree: its name, bytes | its pages, number (see `code`)
//!             per page: key, bytes | length, number | xxh3-64, u64 LE
//! pages       in the order of the directory (see `page`)
//! ```
//!
//! The store id, the first number and the hash bind a table to the log that it was made from.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::code::{FieldReader, put, put_bytes};
use super::{Page, unpack};
use crate::error::{StoreError, derived_at, io_at};
use crate::log::frame::LogId;
use crate::vfs::{Fs, FsFile};

const MAGIC: &[u8; 8] = b"SALTPAGE";
/// Version of a table.
pub const TABLE_VERSION: u32 = 1;
const HEADER_LEN: usize = 48;
/// Bytes of the header before its checksum.
const CHECKED_LEN: usize = HEADER_LEN - 8;

#[derive(Debug)]
struct Place {
    key: Box<[u8]>,
    offset: u64,
    len: u32,
    hash: u64,
}

#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    file: Box<dyn FsFile>,
    positions: u64,
    trees: Vec<(String, Range<usize>)>,
    places: Vec<Place>,
}

/// A tree of a table: pages, sorted by key.
#[derive(Debug)]
pub(crate) struct Tree {
    table: Arc<Table>,
    name: &'static str,
    places: Range<usize>,
}

/// Writes a table; atomic, and durable on return. `positions` is the hash of the positions of the
/// log's blocks. Pages are packed; their keys ascend in a tree.
pub(crate) fn write(
    fs: &dyn Fs,
    path: &Path,
    (id, positions): (LogId, u64),
    trees: &[(&str, Vec<Page>)],
) -> Result<(), StoreError> {
    // The directory comes first, with the length and hash of each page: opening therefore reads no
    // page.
    let mut directory = Vec::new();
    for (name, pages) in trees {
        put_bytes(&mut directory, name.as_bytes());
        put(&mut directory, pages.len() as u64);
        for (key, page) in pages {
            put_bytes(&mut directory, key);
            put(&mut directory, page.len() as u64);
            directory.extend_from_slice(&xxh3_64(page).to_le_bytes());
        }
    }

    let len = crate::error::fits(directory.len(), "a directory of pages exceeds 4 GiB")?;
    let mut bytes = [&MAGIC[..], &TABLE_VERSION.to_le_bytes(), &len.to_le_bytes()].concat();
    for word in [id.store_id, id.first_seq.0, positions] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&hash_of(&bytes, &directory).to_le_bytes());
    bytes.append(&mut directory);

    for (_, page) in trees.iter().flat_map(|(_, pages)| pages) {
        bytes.extend_from_slice(page);
    }

    // Renamed when it is complete: a reader sees the whole table or none.
    fs.write_whole(path, &bytes).map_err(io_at("write", path))
}

fn hash_of(header: &[u8], directory: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(directory);
    hash.digest()
}

impl Table {
    /// Opens the table of a log and verifies its directory. A table that is missing, damaged or of
    /// another log is [`StoreError::Index`].
    pub(crate) fn open(fs: &dyn Fs, path: &Path, id: LogId) -> Result<Arc<Self>, StoreError> {
        let file = match fs.open(path) {
            // Removed by an administrator. The log contains all of it.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(path, "the file is missing"));
            }
            opened => opened.map_err(derived_at("open", path))?,
        };

        // Only the methods that read and report damage are used until the directory is known.
        let mut table = Self {
            path: path.to_owned(),
            file,
            positions: 0,
            trees: Vec::new(),
            places: Vec::new(),
        };

        let size = table
            .file
            .size()
            .map_err(derived_at("read the size of", path))?;
        let header = table.read(0, HEADER_LEN, size)?;
        let mut rest = FieldReader(&header);
        let broken = || table.damaged("header damaged");
        let magic = rest.take(MAGIC.len()).ok_or_else(broken)?;
        let mut small = || Some(u32::from_le_bytes(fixed(rest.take(4)?)));
        let (version, len) = (small().ok_or_else(broken)?, small().ok_or_else(broken)?);
        let mut word = || Some(u64::from_le_bytes(fixed(rest.take(8)?)));
        let mut next = || word().ok_or_else(broken);
        let (store_id, first_seq, positions, hash) = (next()?, next()?, next()?, next()?);

        if magic != MAGIC {
            return Err(broken());
        }
        if version != TABLE_VERSION {
            return Err(table.damaged(&format!("version {version} instead of {TABLE_VERSION}")));
        }

        // The length is checked against the file before anything is allocated for it.
        let directory = table.read(HEADER_LEN as u64, len as usize, size)?;
        if hash_of(header.get(..CHECKED_LEN).unwrap_or_default(), &directory) != hash {
            return Err(table.damaged("directory damaged"));
        }

        // Intact, but of another segment: its positions would point to other entries.
        if store_id != id.store_id {
            return Err(table.damaged("it belongs to another store"));
        }
        if first_seq != id.first_seq.0 {
            return Err(table.damaged(&format!("it belongs to segment {first_seq}")));
        }

        let begin = HEADER_LEN as u64 + u64::from(len);
        let (trees, places) = read_directory(&directory, begin).ok_or_else(broken)?;

        // A truncated file is found here instead of by some later reader.
        let end = places.last().map_or(begin, |last| {
            last.offset.saturating_add(u64::from(last.len))
        });
        if end != size {
            return Err(table.damaged("the file has another length than its pages"));
        }

        table.trees = trees;
        table.places = places;
        table.positions = positions;
        Ok(Arc::new(table))
    }

    /// Reads a part of the file, which has `size` bytes.
    fn read(&self, offset: u64, len: usize, size: u64) -> Result<Vec<u8>, StoreError> {
        // Checked before the allocation: a damaged length may be up to 4 GiB.
        if offset.saturating_add(len as u64) > size {
            return Err(self.damaged("the file is truncated"));
        }

        let mut bytes = vec![0; len];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            // The file became shorter after its size was read.
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("the file is truncated"))
            }
            Err(why) if why.kind() == io::ErrorKind::IsADirectory => {
                Err(self.damaged("it is a directory"))
            }
            Err(why) => Err(derived_at("read", &self.path)(why)),
        }
    }

    pub(crate) fn damaged(&self, what: &str) -> StoreError {
        damaged(&self.path, what)
    }

    /// The hash of the positions of the blocks in the log that the table was made from.
    pub(crate) fn positions(&self) -> u64 {
        self.positions
    }

    pub(crate) fn tree(self: &Arc<Self>, name: &'static str) -> Result<Tree, StoreError> {
        let found = self.trees.iter().find(|(found, _)| found == name);
        let (_, places) = found.ok_or_else(|| self.damaged(&format!("tree `{name}` missing")))?;
        Ok(Tree {
            table: self.clone(),
            name,
            places: places.clone(),
        })
    }

    pub(crate) fn memory(&self) -> usize {
        // The least allocation for a key is 16 bytes.
        self.places
            .iter()
            .map(|place| size_of::<Place>() + place.key.len().max(16))
            .sum()
    }
}

fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Index {
        path: path.to_owned(),
        what: what.to_owned(),
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

type Directory = (Vec<(String, Range<usize>)>, Vec<Place>);

fn read_directory(bytes: &[u8], begin: u64) -> Option<Directory> {
    let (mut trees, mut places) = (Vec::new(), Vec::new());
    let mut reader = FieldReader(bytes);
    let mut offset = begin;
    while !reader.is_empty() {
        let name = std::str::from_utf8(reader.bytes()?).ok()?.to_owned();
        let from = places.len();

        for _ in 0..reader.number()? {
            // Readers search by the order of the keys.
            let (key, len): (Box<[u8]>, u32) = (reader.bytes()?.into(), reader.small()?);
            let before = places.get(from..)?.last();
            if before.is_some_and(|before: &Place| before.key >= key) {
                return None;
            }

            let hash = u64::from_le_bytes(fixed(reader.take(8)?));
            places.push(Place {
                key,
                offset,
                len,
                hash,
            });
            offset = offset.checked_add(u64::from(len))?;
        }
        trees.push((name, from..places.len()));
    }
    Some((trees, places))
}

impl Tree {
    fn places(&self) -> &[Place] {
        self.table
            .places
            .get(self.places.clone())
            .unwrap_or_default()
    }

    /// The page that would contain a key's record: the last one whose key is not greater.
    pub(crate) fn of(&self, key: &[u8]) -> Result<Option<Page>, StoreError> {
        self.last_of(self.places().partition_point(|place| *place.key <= *key))
    }

    /// The last page with a key below `key`, or the last page overall.
    pub(crate) fn before(&self, key: Option<&[u8]>) -> Result<Option<Page>, StoreError> {
        let places = self.places();
        self.last_of(key.map_or(places.len(), |key| {
            places.partition_point(|place| *place.key < *key)
        }))
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
        self.places().iter().map(|place| self.page(place)).collect()
    }

    /// The last of the first `count` pages.
    fn last_of(&self, count: usize) -> Result<Option<Page>, StoreError> {
        let place = count.checked_sub(1).and_then(|at| self.places().get(at));
        place
            .map(|place| Ok((place.key.to_vec(), self.page(place)?)))
            .transpose()
    }

    fn page(&self, place: &Place) -> Result<Vec<u8>, StoreError> {
        // The size was compared with the directory on opening.
        let page = self
            .table
            .read(place.offset, place.len as usize, u64::MAX)?;
        // On every read: the page cache may hold what the disk returned wrongly.
        if xxh3_64(&page) != place.hash {
            return Err(self.damaged("page damaged"));
        }
        unpack(&page).ok_or_else(|| self.broken())
    }

    fn damaged(&self, what: &str) -> StoreError {
        self.table.damaged(&format!("tree `{}`: {what}", self.name))
    }

    /// The error for a malformed page; the index must be rebuilt.
    pub(crate) fn broken(&self) -> StoreError {
        self.damaged("malformed page")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Disk;
    use proptest::prelude::*;
    use saltcellar_model::SeqNo;

    const ID: LogId = LogId {
        store_id: 7,
        first_seq: SeqNo(1),
    };

    fn write_to(path: &Path, trees: &[(&str, Vec<Page>)]) {
        write(&Disk, path, (ID, 9), trees).unwrap();
    }

    proptest! {
        #[test]
        fn arbitrary_directories_are_rejected_without_panic(
            bytes in prop::collection::vec(prop_oneof![0_u8..5, any::<u8>()], 0..90)
        ) {
            if let Some((trees, places)) = read_directory(&bytes, 24) {
                prop_assert!(trees.len() + places.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn a_directory_whose_keys_do_not_ascend_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        for keys in ["ba", "aa"] {
            let pages = keys
                .bytes()
                .map(|key| (vec![key], b"\0".to_vec()))
                .collect();
            write_to(&path, &[("t", pages)]);
            let opened = Table::open(&Disk, &path, ID);
            assert!(matches!(opened, Err(StoreError::Index { .. })), "{keys}");
        }
        let pages = |key: u8| vec![(vec![key], b"\0".to_vec())];
        write_to(&path, &[("s", pages(b'b')), ("t", pages(b'a'))]);
        assert!(
            Table::open(&Disk, &path, ID).is_ok(),
            "trees are independent"
        );
    }

    #[test]
    fn a_table_of_another_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        write_to(&path, &[]);
        assert_eq!(Table::open(&Disk, &path, ID).unwrap().positions(), 9);
        let others = [
            (LogId { store_id: 8, ..ID }, "another store"),
            (
                LogId {
                    first_seq: SeqNo(2),
                    ..ID
                },
                "segment 1",
            ),
        ];
        for (other, expected) in others {
            let error = Table::open(&Disk, &path, other).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn pages_are_found_by_key_and_backwards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let error = Table::open(&Disk, &path, ID).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
        // Keys of different lengths, some of them prefixes of others.
        let keys = ["a", "ab", "abc", "abd", "b", "b\u{1}", "c"];
        let pages: Vec<Page> = keys
            .iter()
            .map(|key| {
                (
                    key.as_bytes().to_vec(),
                    format!("\0page {key}").into_bytes(),
                )
            })
            .collect();
        write_to(&path, &[("empty", Vec::new()), ("t", pages)]);
        let table = Table::open(&Disk, &path, ID).unwrap();
        assert!(table.tree("x").is_err());
        let empty = table.tree("empty").unwrap();
        assert!(empty.before(None).unwrap().is_none() && empty.all().unwrap().is_empty());
        let tree = table.tree("t").unwrap();
        let key_of = |page: Option<Page>| {
            page.map(|(key, page)| {
                let key = String::from_utf8(key).unwrap();
                assert_eq!(page, format!("page {key}").into_bytes());
                key
            })
        };
        for text in [
            "", "a", "aa", "ab", "ab\u{1}", "abcd", "b", "b\u{0}", "b\u{2}", "c", "d",
        ] {
            let upto = keys
                .iter()
                .rfind(|key| **key <= text)
                .map(|key| (*key).to_owned());
            assert_eq!(key_of(tree.of(text.as_bytes()).unwrap()), upto, "{text}");
            let below = keys
                .iter()
                .rfind(|key| **key < text)
                .map(|key| (*key).to_owned());
            assert_eq!(
                key_of(tree.before(Some(text.as_bytes())).unwrap()),
                below,
                "{text}"
            );
            assert_eq!(
                tree.get(text.as_bytes()).unwrap().is_some(),
                keys.contains(&text),
                "{text}"
            );
        }
        assert_eq!(key_of(tree.before(None).unwrap()).as_deref(), Some("c"));
        assert_eq!(tree.all().unwrap().len(), keys.len());
    }
}
