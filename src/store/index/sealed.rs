//! The index of a sealed segment: a sled database of pages beside its log, written once, and the
//! same pages in a table for readers.
//!
//! Readers open the table. Only if it is missing, as in segments sealed by releases up to 0.1, the
//! sled database is opened, and the table is written from it. A damaged table is a damaged index:
//! it is rebuilt from the log.
//!
//! # On disk
//!
//! ```text
//! index/pages        a copy of all pages (see `page::table`)
//! index/             sled database of checked trees (see `tree`) with pages (see `page`)
//!   tree "block"     positions and bounds of blocks (see `summary`)
//!   tree "shape"     tag templates (see `summary`)
//!   tree "job"       jobs and their entries (see `job`)
//!   tree "minion"    minions and their blocks (see `minion`)
//!   tree "latest"    the latest job per function and minion (see `latest`)
//!   tree "facts"     key zero, u32 BE: metadata of the segment (see `segment_metadata`)
//! ```

use std::path::Path;

use super::super::error::{StoreError, io_at};
use super::EntryPosition;
use super::job::{Decoder, Encoder};
use super::latest::{self, LatestJob};
use super::minion;
use super::minion::MinionSelection;
use super::page::table::{self, Table};
use super::page::{Page, PageTree, PageWriter, Pages, joined};
use super::segment_metadata::SegmentMetadata;
use super::summary::{Blocks, TagTemplates};
use crate::base::limits::{INDEX_CACHE_BYTES, INDEX_WRITE_CACHE_BYTES};
use crate::model::JidKey;
use crate::store::index::memory::MemIndex;
use crate::store::index::tree::CheckedTree;
use crate::store::index::tree::sled_guard::{flush_and_sync, open_or_copy, open_sled};
use crate::store::read::job_summary::JobSummary;
use crate::store::vfs::Fs;

/// The key of the only page in a tree.
const ONLY: [u8; 4] = [0; 4];

/// The open index of a sealed segment.
#[derive(Debug)]
pub(crate) struct SealedIndex {
    blocks: Blocks,
    templates: TagTemplates,
    job: Tree,
    minion: Tree,
    /// Only in a table.
    names: Option<Tree>,
    latest: Tree,
    metadata: SegmentMetadata,
    /// Memory of the table or the database, in bytes.
    opened_bytes: usize,
    _db: Option<sled::Db>,
}

/// Names of the trees in sled, in the order of the table: those read on opening first.
const TREES: [&str; 6] = ["block", "shape", "facts", "minion", "job", "latest"];

/// A tree of an index, in a table or in sled.
type Tree = Box<Pages<dyn PageTree>>;

/// A job in a segment, and the positions of its entries, ascending.
pub(crate) type JobEntries = (JidKey, JobSummary, Vec<EntryPosition>);

/// The blocks of a rewritten segment.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) blocks: Blocks,
    /// The new block that contains each old one.
    pub(crate) became: Vec<u32>,
}

/// Writes the index of a finished segment into a new directory and syncs it; returns the segment's
/// metadata.
pub(crate) fn write(
    index: &MemIndex,
    layout: Option<&Layout>,
    dir: &Path,
) -> Result<SegmentMetadata, StoreError> {
    let db = open_sled(dir, INDEX_WRITE_CACHE_BYTES)?;
    let pack = io_at("pack the index", dir);

    let mut trees = Vec::new();
    let jobs = index.jobs();
    let mut metadata = index.metadata(&jobs);

    // A rewritten segment has other blocks than the index in memory, and a shorter log.
    let blocks = layout.map_or(index.blocks(), |layout| &layout.blocks);
    metadata.totals.log_bytes = blocks.metas().last().map_or(
        metadata.totals.log_bytes,
        crate::store::log::file::BlockMeta::end,
    );

    let mut fill = || -> std::io::Result<()> {
        let mut writer = PageWriter::new()?;
        let key_of_block = |n: usize| {
            u32::try_from(n)
                .expect("block numbers are 32 bits")
                .to_be_bytes()
                .to_vec()
        };
        writer.fill(blocks.metas().len(), key_of_block, |n, is_first, out| {
            blocks.write(n, n.checked_sub(1).filter(|_| !is_first), out);
            Ok(())
        })?;

        trees.push(("block", writer.rows()));
        writer.page(&ONLY, &index.templates().to_bytes())?;

        trees.push(("shape", writer.rows()));
        let key_of_job = |n: usize| {
            jobs.key(n)
                .expect("a job of the index")
                .0
                .to_be_bytes()
                .to_vec()
        };

        // Values are numbered per page, so each page has an encoder of its own.
        let mut encoder = Encoder::default();
        writer.fill(jobs.len(), key_of_job, |n, is_first, out| {
            if is_first {
                encoder = Encoder::default();
            }
            let (record, load, rest) = jobs.get(n).expect("a job of the index");
            encoder.push(out, &record, load, rest)
        })?;

        trees.push(("job", writer.rows()));
        let mut minions = index.minions();
        // Entries keep their numbers when blocks are merged; only the blocks of a minion change.
        if let Some(layout) = layout {
            for (_, blocks) in &mut minions {
                let became = |&block: &u32| layout.became.get(block as usize).copied();
                let moved: Option<Vec<u32>> = blocks.iter().map(became).collect();
                let lost = || std::io::Error::other("internal error: the layout lacks a block");
                *blocks = moved.ok_or_else(lost)?;
                // Neighbors that were merged are one block now.
                blocks.dedup();
            }
        }

        minion::write(&mut writer, &minions)?;
        trees.push(("minion", writer.rows()));

        latest::write(&mut writer, &index.latest())?;
        trees.push(("latest", writer.rows()));

        writer.page(&ONLY, &metadata.to_bytes())?;
        trees.push(("facts", writer.rows()));
        Ok(())
    };

    fill().map_err(pack)?;

    // The table is made of the same rows, not of a second encoding. It is written before sled, so
    // an index with a complete database has a table, too.
    write_table(dir, |name| packed_pages(&trees, name))?;

    for (name, rows) in trees {
        CheckedTree::open(&db, dir, name)?.put(rows, 0)?;
    }

    // Durable before the directory gets its name.
    flush_and_sync(&db, dir)?;
    Ok(metadata)
}

/// A row of a tree that is being written: a part of a page.
type Row = (Vec<u8>, Vec<u8>);

/// The packed pages of a tree that is being written. An empty tree in place of malformed rows would
/// look intact to every reader.
fn packed_pages(trees: &[(&str, Vec<Row>)], name: &str) -> Result<Vec<Page>, StoreError> {
    let rows = trees.iter().find(|(found, _)| *found == name);
    rows.and_then(|(_, rows)| joined(rows.iter().map(|(key, value)| (key, value))))
        .ok_or(StoreError::Broken("an index has malformed rows"))
}

fn sled_tree(db: &sled::Db, dir: &Path, name: &str) -> Result<Tree, StoreError> {
    let tree = CheckedTree::open(db, dir, name)?;
    // sled creates what is missing. A complete index has no empty tree.
    if tree.is_new() {
        Err(tree.damaged("it is empty"))
    } else {
        Ok(Box::new(Pages(tree)))
    }
}

/// Writes the table with the packed pages of each tree.
fn write_table(
    dir: &Path,
    pages_of: impl Fn(&str) -> Result<Vec<Page>, StoreError>,
) -> Result<(), StoreError> {
    let mut trees = Vec::new();
    for name in TREES {
        let pages = pages_of(name)?;
        // Readers of a table search minions by name, which sled does not need.
        if name == "minion" {
            let [minions, names] =
                minion::table_trees(pages).map_err(io_at("pack the index", dir))?;
            trees.extend([("name", names), ("minion", minions)]);
        } else {
            trees.push((name, pages));
        }
    }
    table::write(dir, &trees)
}

impl SealedIndex {
    /// Opens the table of the index; writes it first if it is missing. Without space for it, the
    /// database is used.
    pub(crate) fn open(fs: &dyn Fs, dir: &Path) -> Result<Self, StoreError> {
        // The usual case: sled is not opened at all.
        if let Some(index) = Self::open_table(fs, dir)? {
            return Ok(index);
        }
        // Made while the database is open, because sled opens it only once.
        let (index, written) = open_or_copy(dir, INDEX_CACHE_BYTES, |db, _| {
            let pages_of = |name: &str| sled_tree(&db, dir, name)?.0.packed();
            let written = write_table(dir, pages_of);
            Ok((Self::read_database(db, dir)?, written))
        })?;

        // The index from the database is complete; without a table it only costs more memory.
        match written.and_then(|()| Self::open_table(fs, dir)) {
            Ok(table) => Ok(table.unwrap_or(index)),
            // On a full disk this is expected at every opening.
            Err(error) if error.is_no_space() => {
                tracing::debug!(dir = %dir.display(), %error, "no space for the pages of an index, reading its database");
                Ok(index)
            }
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "cannot write the pages of an index, reading its database");
                Ok(index)
            }
        }
    }

    /// Opens the table; `None` if it is missing.
    pub(crate) fn open_table(fs: &dyn Fs, dir: &Path) -> Result<Option<Self>, StoreError> {
        let Some(table) = Table::open(fs, dir)? else {
            return Ok(None);
        };
        let tree = |name| -> Result<Tree, StoreError> { Ok(Box::new(Pages(table.tree(name)?))) };
        Self::read(tree, Some(tree("name")?), table.memory()).map(Some)
    }

    /// Opens the sled database and verifies its trees.
    pub(crate) fn open_database(dir: &Path) -> Result<Self, StoreError> {
        open_or_copy(dir, INDEX_CACHE_BYTES, |db, _| Self::read_database(db, dir))
    }

    fn read_database(db: sled::Db, dir: &Path) -> Result<Self, StoreError> {
        // An estimate: sled fills its cache with what is read.
        let opened_bytes = usize::try_from(INDEX_CACHE_BYTES).unwrap_or(usize::MAX);
        let index = Self::read(|name| sled_tree(&db, dir, name), None, opened_bytes)?;
        Ok(Self {
            _db: Some(db),
            ..index
        })
    }

    fn read(
        tree: impl Fn(&'static str) -> Result<Tree, StoreError>,
        names: Option<Tree>,
        opened_bytes: usize,
    ) -> Result<Self, StoreError> {
        // Blocks, templates and metadata are read by every search, so they are decoded once. Pages
        // of jobs and minions are read as needed.
        let block = tree("block")?;
        let mut blocks = Blocks::default();
        for page in block.all()? {
            blocks.read(&page).ok_or_else(|| block.broken())?;
        }

        let only = |tree: &Tree| tree.get(&ONLY)?.ok_or_else(|| tree.broken());
        let template = tree("shape")?;
        let templates =
            TagTemplates::from_bytes(&only(&template)?).ok_or_else(|| template.broken())?;

        let only_metadata = tree("facts")?;
        let metadata = SegmentMetadata::from_bytes(&only(&only_metadata)?)
            .ok_or_else(|| only_metadata.broken())?;

        let (job, minion, latest) = (tree("job")?, tree("minion")?, tree("latest")?);
        Ok(Self {
            blocks,
            templates,
            job,
            minion,
            names,
            latest,
            metadata,
            opened_bytes,
            _db: None,
        })
    }

    pub(crate) fn memory(&self) -> usize {
        self.blocks.memory() + self.templates.memory() + self.opened_bytes
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(crate) fn templates(&self) -> &TagTemplates {
        &self.templates
    }

    pub(crate) fn metadata(&self) -> &SegmentMetadata {
        &self.metadata
    }

    /// The positions of a job's entries, ascending.
    pub(crate) fn positions(&self, key: JidKey) -> Result<Vec<EntryPosition>, StoreError> {
        let found = self.find(key, |_, positions| self.positions_of(&positions))?;
        found.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// The positions of entries, by their numbers in the segment.
    fn positions_of(&self, numbers: &[u32]) -> Result<Vec<EntryPosition>, StoreError> {
        // A number without a position means that the tree of blocks and the tree of jobs disagree.
        let positions: Option<Vec<EntryPosition>> =
            numbers.iter().map(|&n| self.blocks.position(n)).collect();
        positions.ok_or_else(|| self.job.broken())
    }

    pub(crate) fn row(&self, key: JidKey) -> Result<Option<JobSummary>, StoreError> {
        Ok(self.find(key, |record, _| record.row())?.flatten())
    }

    fn find<T>(
        &self,
        key: JidKey,
        take: impl FnOnce(super::job::JobRecord<'_>, Vec<u32>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some((_, page)) = self.job.of(&key.0.to_be_bytes())? else {
            return Ok(None);
        };

        let mut decoder = Decoder::new(&page);

        // Only the entries of this job are decoded.
        loop {
            match decoder
                .next(|found| found == key)
                .ok_or_else(|| self.job.broken())?
            {
                Some((record, positions)) if record.key == key => {
                    return Ok(Some(take(record, positions)));
                }
                // Records ascend: a greater key means that the job is not in the segment.
                Some((record, _)) if record.key < key => {}
                _ => return Ok(None),
            }
        }
    }

    /// Those jobs of the given ones, sorted by key, that the segment holds, with the positions of
    /// their entries.
    pub(crate) fn jobs_of(&self, keys: &[JidKey]) -> Result<Vec<JobEntries>, StoreError> {
        let (mut found, mut left) = (Vec::new(), keys);
        // One page serves all wanted jobs in it: they are close together in most questions.
        while let Some((&key, after)) = left.split_first() {
            if let Some((_, page)) = self.job.of(&key.0.to_be_bytes())? {
                let mut decoder = Decoder::new(&page);
                while let Some((job, positions)) = decoder
                    .next(|key| left.first() == Some(&key))
                    .ok_or_else(|| self.job.broken())?
                {
                    if left.first() == Some(&job.key) {
                        let row = job.row().ok_or_else(|| self.job.broken())?;
                        found.push((job.key, row, self.positions_of(&positions)?));
                    }
                    // Wanted jobs that this one has passed are not in the segment.
                    left = left
                        .get(left.partition_point(|key| *key <= job.key)..)
                        .unwrap_or_default();
                    if left.is_empty() {
                        return Ok(found);
                    }
                }
            }
            // No other page could hold it.
            if left.first() == Some(&key) {
                left = after;
            }
        }
        Ok(found)
    }

    /// Up to `limit` job summaries with keys below `before`, latest first.
    pub(crate) fn rows_below(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobSummary)>, StoreError> {
        let mut rows: Vec<(JidKey, JobSummary)> = Vec::new();
        let mut upper = before.map(|key| key.0.to_be_bytes().to_vec());
        while rows.len() < limit
            && let Some((first, page)) = self.job.before(upper.as_deref())?
        {
            // Records are relative to their predecessors, so a page is read forwards and then
            // reversed.
            let mut of_page = Vec::new();
            let mut decoder = Decoder::new(&page);
            while let Some((record, _)) =
                decoder.next(|_| false).ok_or_else(|| self.job.broken())?
            {
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

    /// Calls `each` for all jobs, ascending by key, with summary and positions of the entries.
    pub(crate) fn each_job(
        &self,
        mut each: impl FnMut(JidKey, JobSummary, Vec<EntryPosition>),
    ) -> Result<(), StoreError> {
        // A page at a time: a segment may hold hundreds of thousands of jobs.
        for page in self.job.all()? {
            let mut decoder = Decoder::new(&page);
            while let Some((record, positions)) =
                decoder.next(|_| true).ok_or_else(|| self.job.broken())?
            {
                let positions = self.positions_of(&positions)?;
                each(
                    record.key,
                    record.row().ok_or_else(|| self.job.broken())?,
                    positions,
                );
            }
        }
        Ok(())
    }

    /// Marks every block with an entry of a selected minion.
    pub(crate) fn blocks_with(
        &self,
        selection: MinionSelection<'_>,
    ) -> Result<Vec<bool>, StoreError> {
        // Without a table, all pages are read: names are then in the same pages as their blocks.
        let pages = match &self.names {
            Some(names) => minion::table_pages(&*self.minion, &**names, selection)?,
            None => self.minion.all()?,
        };
        let found = minion::blocks_with(&pages, self.blocks.metas().len(), selection);
        found.ok_or_else(|| self.minion.broken())
    }

    /// The latest job per function and minion, sorted by both.
    pub(crate) fn latest(&self) -> Result<Vec<LatestJob>, StoreError> {
        latest::all(&*self.latest, &|_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_rows_are_an_error_not_an_empty_tree() {
        let rows = |key: &[u8]| vec![(key.to_vec(), b"page".to_vec())];
        let trees = [("job", rows(b"key of a page")), ("block", rows(b""))];
        assert_eq!(packed_pages(&trees, "job").unwrap().len(), 1);
        for name in ["block", "no such tree"] {
            let error = packed_pages(&trees, name).unwrap_err().to_string();
            assert!(error.contains("malformed rows"), "{name}: {error}");
        }
    }
}
