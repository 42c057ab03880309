//! A table: the pages of an index in one file, for readers.
//!
//! Opening a sled database costs milliseconds and some hundred KiB of memory. A table is opened
//! with two reads, and a page is read and verified when it is needed. It is written with the index,
//! or from its sled database if it is missing.
//!
//! # On disk
//!
//! ```text
//! header      `SALTPAGE` | version u32 LE: 1 | bytes of the directory u32 LE | xxh3-64 of the version, the length and the directory, u64 LE
//! directory   per tree: its name, bytes | its pages, number (see `code`)
//!             per page: key, bytes | length, number | xxh3-64, u64 LE
//! pages       in the order of the directory, as in sled, but not in parts
//! ```
//!
//! Trees and keys are those of the sled database, except:
//!
//! ```text
//! `minion`    key of a page: its first minion
//! `name`      one page, key zero, u32 BE: per page of `minion` the number of its minions, and their names as in that page
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::code::{FieldReader, put, put_bytes};
use super::{Page, PageTree};
use crate::store::error::{StoreError, derived_at, io_at};
use crate::store::vfs::{Fs, FsFile};

const MAGIC: &[u8; 8] = b"SALTPAGE";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 24;

/// Name of the file in the directory of an index.
pub(crate) const FILE: &str = "pages";
const TEMPORARY: &str = "pages.tmp";

#[derive(Debug)]
struct Place {
    key: Box<[u8]>,
    offset: u64,
    len: u32,
    hash: u64,
}

#[derive(Debug)]
pub(crate) struct Table {
    dir: PathBuf,
    file: Box<dyn FsFile>,
    trees: Vec<(String, Range<usize>)>,
    places: Vec<Place>,
}

#[derive(Debug)]
pub(crate) struct TableTree {
    table: Arc<Table>,
    name: &'static str,
    places: Range<usize>,
}

/// Writes a table into the directory of an index; atomic, and durable once the directory is synced.
/// Pages are packed; their keys ascend in a tree.
pub(crate) fn write(dir: &Path, trees: &[(&str, Vec<Page>)]) -> Result<(), StoreError> {
    // The directory comes first, with the length and hash of each page, so that opening needs no
    // page.
    let (temporary, place) = (dir.join(TEMPORARY), dir.join(FILE));
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

    let len = crate::store::error::fits(directory.len(), "a directory of pages exceeds 4 GiB")?;
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &len.to_le_bytes()].concat();
    bytes.extend_from_slice(&hash_of(len, &directory).to_le_bytes());
    bytes.append(&mut directory);

    for (_, page) in trees.iter().flat_map(|(_, pages)| pages) {
        bytes.extend_from_slice(page);
    }

    // Written elsewhere and renamed: a reader sees the whole table or none. Not through `Fs`: like
    // the files of sled it is derived data, which simulated power losses leave out.
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_data()?;
        std::fs::rename(&temporary, &place)
    });
    written.map_err(|why| {
        // A partial file may occupy the space that is missing.
        let _ = std::fs::remove_file(&temporary);
        io_at("write", &place)(why)
    })
}

fn hash_of(len: u32, directory: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&VERSION.to_le_bytes());
    hash.update(&len.to_le_bytes());
    hash.update(directory);
    hash.digest()
}

impl Table {
    /// Opens the table of an index and verifies its directory. `None` if it is missing or of
    /// another version.
    pub(crate) fn open(fs: &dyn Fs, dir: &Path) -> Result<Option<Arc<Self>>, StoreError> {
        let path = dir.join(FILE);
        // An index of a release up to 0.1 has none: the caller writes it.
        let file = match fs.open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(derived_at("open", &path))?,
        };

        let size = file.size().map_err(derived_at("read the size of", &path))?;

        // Only the methods that read and report damage are used until the directory is known.
        let mut table = Self {
            dir: dir.to_owned(),
            file,
            trees: Vec::new(),
            places: Vec::new(),
        };

        let header = table.read(0, HEADER_LEN, size)?;
        let mut rest = FieldReader(&header);
        let damaged = || table.damaged("header damaged");
        let magic = rest.take(MAGIC.len()).ok_or_else(damaged)?;
        let mut word = |len| rest.take(len).ok_or_else(damaged);

        let (version, len, hash) = (
            fixed(word(4)?),
            fixed(word(4)?),
            u64::from_le_bytes(fixed(word(8)?)),
        );
        let (version, len) = (u32::from_le_bytes(version), u32::from_le_bytes(len));

        if magic != MAGIC {
            return Err(damaged());
        }
        // The caller writes the table again from sled, as if it were missing.
        if version != VERSION {
            return Ok(None);
        }

        // The length is checked against the file before anything is allocated for it.
        let directory = table.read(HEADER_LEN as u64, len as usize, size)?;
        if hash_of(len, &directory) != hash {
            return Err(table.damaged("directory damaged"));
        }

        let begin = HEADER_LEN as u64 + u64::from(len);
        let (trees, places) = read_directory(&directory, begin).ok_or_else(damaged)?;

        // A truncated file is found here instead of by some later reader.
        if places
            .last()
            .is_some_and(|last| last.offset.saturating_add(u64::from(last.len)) != size)
        {
            return Err(table.damaged("the file has another length than its pages"));
        }

        (table.trees, table.places) = (trees, places);
        Ok(Some(Arc::new(table)))
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
            Err(why) => Err(derived_at("read", &self.dir.join(FILE))(why)),
        }
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Index {
            path: self.dir.clone(),
            what: format!("file `{FILE}`: {what}"),
        }
    }

    pub(crate) fn tree(self: &Arc<Self>, name: &'static str) -> Result<TableTree, StoreError> {
        let found = self.trees.iter().find(|(found, _)| found == name);
        let (_, places) = found.ok_or_else(|| self.damaged(&format!("tree `{name}` missing")))?;
        Ok(TableTree {
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

impl TableTree {
    fn places(&self) -> &[Place] {
        self.table
            .places
            .get(self.places.clone())
            .unwrap_or_default()
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
        if xxh3_64(&page) == place.hash {
            Ok(page)
        } else {
            Err(self.damaged("page damaged"))
        }
    }
}

impl PageTree for TableTree {
    fn last_below(&self, upper: Option<&[u8]>) -> Result<Option<Page>, StoreError> {
        let places = self.places();
        self.last_of(upper.map_or(places.len(), |upper| {
            places.partition_point(|place| *place.key < *upper)
        }))
    }

    fn last_upto(&self, key: &[u8]) -> Result<Option<Page>, StoreError> {
        self.last_of(self.places().partition_point(|place| *place.key <= *key))
    }

    fn packed(&self) -> Result<Vec<Page>, StoreError> {
        self.places()
            .iter()
            .map(|place| Ok((place.key.to_vec(), self.page(place)?)))
            .collect()
    }

    fn damaged(&self, what: &str) -> StoreError {
        self.table.damaged(&format!("tree `{}`: {what}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::index::page::Pages;
    use proptest::prelude::*;

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
        for keys in ["ba", "aa"] {
            let pages = keys
                .bytes()
                .map(|key| (vec![key], b"\0".to_vec()))
                .collect();
            write(dir.path(), &[("t", pages)]).unwrap();
            assert!(
                matches!(
                    Table::open(&crate::store::vfs::Disk, dir.path()),
                    Err(StoreError::Index { .. })
                ),
                "{keys}"
            );
        }
        let pages = |key: u8| vec![(vec![key], b"\0".to_vec())];
        write(dir.path(), &[("s", pages(b'b')), ("t", pages(b'a'))]).unwrap();
        assert!(
            Table::open(&crate::store::vfs::Disk, dir.path())
                .unwrap()
                .is_some(),
            "trees are independent"
        );
    }

    #[test]
    fn pages_are_found_by_key_and_backwards() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Table::open(&crate::store::vfs::Disk, dir.path())
                .unwrap()
                .is_none()
        );
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
        write(dir.path(), &[("empty", Vec::new()), ("t", pages)]).unwrap();
        let table = Table::open(&crate::store::vfs::Disk, dir.path())
            .unwrap()
            .unwrap();
        assert!(table.tree("x").is_err());
        let empty = Pages(table.tree("empty").unwrap());
        assert!(empty.before(None).unwrap().is_none() && empty.all().unwrap().is_empty());
        let tree = Pages(table.tree("t").unwrap());
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
