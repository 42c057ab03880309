//! The index of a sealed segment: a sled database of pages beside its log, written once and never changed.
//!
//! # On disk
//!
//! ```text
//! index/             sled database; each tree is summed up (see `checked`) and holds pages (see `page`)
//!   tree "block"     where blocks lie, and what helps to skip them (see `summary`)
//!   tree "shape"     the shapes of tags (see `summary`)
//!   tree "job"       jobs and the places of their entries (see `job`)
//!   tree "minion"    minions and their blocks (see `minion`)
//!   tree "latest"    the last job per function and minion (see `latest`)
//!   tree "facts"     key zero, u32 BE: what the state database says of the segment (see `facts`)
//! ```

use std::path::Path;

use super::super::checked::CheckedTree;
use super::super::error::{StoreError, io_at};
use super::super::row::JobRow;
use super::super::sleds::{flush_and_sync, guarded, open_or_copy, open_sled};
use super::Place;
use super::facts::Facts;
use super::job::{Decoder, Encoder};
use super::latest::{self, LatestJob};
use super::mem::MemIndex;
use super::minion;
use super::page::{PageWriter, Pages};
use super::summary::{Blocks, Shapes};
use crate::limits::{INDEX_CACHE_BYTES, INDEX_WRITE_CACHE_BYTES};
use crate::model::JidKey;

/// The key of a tree's only page.
const ONLY: [u8; 4] = [0; 4];

/// Says of an index that it is not damaged, but old.
pub const OF_FORMAT_1: &str = "it was written by format 1";

/// The index of a sealed segment, open.
#[derive(Debug)]
pub struct SealedIndex {
    blocks: Blocks,
    shapes: Shapes,
    job: Pages,
    minion: Pages,
    latest: Pages,
    facts: Facts,
    _db: sled::Db,
}

/// How the blocks of a segment lie in its log once it is sealed, if that is not as they grew.
#[derive(Debug, Default)]
pub struct Layout {
    /// The blocks.
    pub blocks: Blocks,
    /// For each block as it grew the block that it has become part of.
    pub became: Vec<u32>,
}

/// Writes the index of a finished segment into a new directory and syncs it. Returns the segment's facts.
pub fn write(index: &MemIndex, layout: Option<&Layout>, dir: &Path) -> Result<Facts, StoreError> {
    let db = open_sled(dir, INDEX_WRITE_CACHE_BYTES)?;
    let pack = io_at("pack the index", dir);
    let mut trees = Vec::new();
    let jobs = index.jobs();
    let mut facts = index.facts(&jobs);
    let blocks = layout.map_or(index.blocks(), |layout| &layout.blocks);
    facts.sums.log_bytes =
        blocks.metas().last().map_or(facts.sums.log_bytes, super::super::log::BlockMeta::end);
    let mut fill = || -> std::io::Result<()> {
        let mut writer = PageWriter::new()?;
        let key_of_block =
            |n: usize| u32::try_from(n).expect("the blocks of a segment have numbers").to_be_bytes().to_vec();
        writer.fill(blocks.metas().len(), key_of_block, |from, max, out| {
            let mut n = from;
            while n < blocks.metas().len() {
                let len = out.len();
                blocks.write(n, n.checked_sub(1).filter(|_| n > from), out);
                if out.len() > max && n > from {
                    out.truncate(len);
                    break;
                }
                n += 1;
            }
            Ok(n)
        })?;
        trees.push(("block", writer.rows()));
        writer.page(&ONLY, &index.shapes().to_bytes())?;
        trees.push(("shape", writer.rows()));
        let key_of_job = |n: usize| jobs.key(n).expect("a job of the index").0.to_be_bytes().to_vec();
        writer.fill(jobs.len(), key_of_job, |from, max, out| {
            let mut encoder = Encoder::default();
            let mut n = from;
            while let Some((record, load, rest)) = jobs.get(n) {
                let len = out.len();
                encoder.push(out, &record, load, rest)?;
                if out.len() > max && n > from {
                    out.truncate(len);
                    break;
                }
                n += 1;
            }
            Ok(n)
        })?;
        trees.push(("job", writer.rows()));
        let mut minions = index.minions();
        if let Some(layout) = layout {
            for (_, blocks) in &mut minions {
                let became = |&block: &u32| layout.became.get(block as usize).copied();
                let moved: Option<Vec<u32>> = blocks.iter().map(became).collect();
                let lost = || std::io::Error::other("internal error: a block was left out of the new log");
                *blocks = moved.ok_or_else(lost)?;
                blocks.dedup();
            }
        }
        minion::write(&mut writer, &minions)?;
        trees.push(("minion", writer.rows()));
        latest::write(&mut writer, &index.latest())?;
        trees.push(("latest", writer.rows()));
        writer.page(&ONLY, &facts.to_bytes())?;
        trees.push(("facts", writer.rows()));
        Ok(())
    };
    fill().map_err(pack)?;
    for (name, rows) in trees {
        CheckedTree::open(&db, dir, name)?.fill(rows)?;
    }
    flush_and_sync(&db, dir)?;
    Ok(facts)
}

impl SealedIndex {
    /// Opens the index of a sealed segment, and adds it up.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        open_or_copy(dir, INDEX_CACHE_BYTES, |db, _| Self::read(db, dir))
    }

    fn read(db: sled::Db, dir: &Path) -> Result<Self, StoreError> {
        if guarded(dir, || Ok(db.tree_names()))?.iter().any(|name| name == b"jid") {
            return Err(StoreError::Index { path: dir.to_owned(), what: OF_FORMAT_1.to_owned() });
        }
        let tree = |name: &str| -> Result<Pages, StoreError> {
            let tree = CheckedTree::open(&db, dir, name)?;
            if tree.is_new() { Err(tree.damaged("it has lost everything")) } else { Ok(Pages(tree)) }
        };
        let block = tree("block")?;
        let mut blocks = Blocks::default();
        for page in block.all()? {
            blocks.read(&page).ok_or_else(|| block.broken())?;
        }
        let only = |tree: &Pages| tree.get(&ONLY)?.ok_or_else(|| tree.broken());
        let shape = tree("shape")?;
        let shapes = Shapes::from_bytes(&only(&shape)?).ok_or_else(|| shape.broken())?;
        let fact = tree("facts")?;
        let facts = Facts::from_bytes(&only(&fact)?).ok_or_else(|| fact.broken())?;
        let (job, minion, latest) = (tree("job")?, tree("minion")?, tree("latest")?);
        Ok(Self { blocks, shapes, job, minion, latest, facts, _db: db })
    }

    /// The blocks in order.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The shapes of its tags.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// What is known of the segment without opening it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The places of a job's entries, in order.
    pub fn places(&self, key: JidKey) -> Result<Vec<Place>, StoreError> {
        let found = self.find(key, |_, places| self.places_of(&places))?;
        found.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Where entries lie, by their numbers in the segment.
    fn places_of(&self, numbers: &[u32]) -> Result<Vec<Place>, StoreError> {
        let places: Option<Vec<Place>> = numbers.iter().map(|&n| self.blocks.place(n)).collect();
        places.ok_or_else(|| self.job.broken())
    }

    /// A job's row.
    pub fn row(&self, key: JidKey) -> Result<Option<JobRow>, StoreError> {
        Ok(self.find(key, |record, _| record.row())?.flatten())
    }

    fn find<T>(
        &self,
        key: JidKey,
        take: impl FnOnce(super::job::Record<'_>, Vec<u32>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some((_, page)) = self.job.of(&key.0.to_be_bytes())? else { return Ok(None) };
        let mut decoder = Decoder::new(&page);
        loop {
            match decoder.next(|found| found == key).ok_or_else(|| self.job.broken())? {
                Some((record, places)) if record.key == key => return Ok(Some(take(record, places))),
                Some((record, _)) if record.key < key => {}
                _ => return Ok(None),
            }
        }
    }

    /// Up to `limit` rows of keys below `before`, the latest first.
    pub fn rows_below(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobRow)>, StoreError> {
        let mut rows: Vec<(JidKey, JobRow)> = Vec::new();
        let mut upper = before.map(|key| key.0.to_be_bytes().to_vec());
        while rows.len() < limit
            && let Some((first, page)) = self.job.before(upper.as_deref())?
        {
            let mut of_page = Vec::new();
            let mut decoder = Decoder::new(&page);
            while let Some((record, _)) = decoder.next(|_| false).ok_or_else(|| self.job.broken())? {
                if before.is_some_and(|before| record.key >= before) {
                    break;
                }
                of_page.push(record);
            }
            for record in of_page.into_iter().rev().take(limit - rows.len()) {
                rows.push((record.key, record.row().ok_or_else(|| self.job.broken())?));
            }
            upper = Some(first);
        }
        Ok(rows)
    }

    /// Every job, ascending by key: its row and the places of its entries.
    pub fn each_job(&self, mut each: impl FnMut(JidKey, JobRow, Vec<Place>)) -> Result<(), StoreError> {
        for page in self.job.all()? {
            let mut decoder = Decoder::new(&page);
            while let Some((record, places)) = decoder.next(|_| true).ok_or_else(|| self.job.broken())? {
                let places = self.places_of(&places)?;
                each(record.key, record.row().ok_or_else(|| self.job.broken())?, places);
            }
        }
        Ok(())
    }

    /// Every block that has an entry of a minion that is `wanted`.
    pub fn blocks_with(&self, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<bool>, StoreError> {
        minion::blocks_with(&self.minion, self.blocks.metas().len(), wanted)
    }

    /// The last job per function and minion, in the order of their names.
    pub fn latest(&self) -> Result<Vec<LatestJob>, StoreError> {
        latest::all(&self.latest)
    }
}
