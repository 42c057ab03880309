//! The index of a sealed segment: a table of pages next to its log, written once.
//!
//! # On disk
//!
//! ```text
//! index              a table (see `page::table`)
//!   tree "block"     positions and bounds of blocks (see `summary`)
//!   tree "shape"     tag templates (see `summary`)
//!   tree "facts"     key zero, u32 BE: metadata of the segment (see `segment_metadata`)
//!   tree "name"      names of minions (see `minion`)
//!   tree "minion"    minions and their blocks (see `minion`)
//!   tree "job"       jobs and their entries (see `job`)
//!   tree "latest"    the latest job per function and minion (see `latest`)
//! ```
//!
//! A damaged table, or one that was made from another log, is rebuilt from the log.

use std::io;
use std::path::Path;

use super::super::error::{StoreError, io_at};
use super::EntryPosition;
use super::job::JobEntries;
use super::job::{Decoder, Encoder};
use super::latest::{self, LatestJob};
use super::minion;
use super::minion::MinionSelection;
use super::page::table::{self, Table, Tree};
use super::page::{Page, PageWriter};
use super::segment_metadata::SegmentMetadata;
use super::summary::{Blocks, TagTemplates};
use crate::index::job_summary::JobSummary;
use crate::index::memory::{Jobs, MemIndex};
use crate::log::frame::LogId;
use crate::vfs::Fs;
use saltcellar_model::JidKey;

/// The key of the only page in a tree.
const ONLY: [u8; 4] = [0; 4];

/// The open index of a sealed segment.
#[derive(Debug)]
pub(crate) struct SealedIndex {
    blocks: Blocks,
    templates: TagTemplates,
    job: Tree,
    minion: Tree,
    names: Tree,
    latest: Tree,
    metadata: SegmentMetadata,
    /// Memory of the table, in bytes.
    opened_bytes: usize,
}

/// The blocks of a rewritten segment.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) blocks: Blocks,
    /// The new block that contains each old one.
    pub(crate) became: Vec<u32>,
}

/// What the state database takes from an index on disk.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) metadata: SegmentMetadata,
    /// Sorted by function and minion.
    pub(crate) latest: Vec<LatestJob>,
}

/// Writes the index of a finished segment with the log `id`, durably. `unreadable` are the parts of the log that the disk could not read.
pub(crate) fn write(
    fs: &dyn Fs,
    path: &Path,
    (index, layout): (&MemIndex, Option<&Layout>),
    id: LogId,
    unreadable: Vec<(u64, u64)>,
) -> Result<Written, StoreError> {
    let jobs = index.jobs();
    let mut metadata = index.metadata(&jobs);
    metadata.unreadable = unreadable;

    // A rewritten segment has other blocks than the index in memory, and a shorter log.
    let blocks = layout.map_or(index.blocks(), |layout| &layout.blocks);
    metadata.positions = blocks.positions();
    metadata.totals.log_bytes = blocks
        .metas()
        .last()
        .map_or(metadata.totals.log_bytes, crate::log::file::BlockMeta::end);

    let latest = index.latest();
    let written = Written { metadata, latest };
    let trees = pack((index, &jobs), layout, &written).map_err(io_at("pack the index", path))?;
    table::write(fs, path, (id, written.metadata.positions), &trees)?;
    Ok(written)
}

/// The trees of a table, those that are read on opening first.
fn pack(
    (index, jobs): (&MemIndex, &Jobs<'_>),
    layout: Option<&Layout>,
    written: &Written,
) -> io::Result<Vec<(&'static str, Vec<Page>)>> {
    let mut writer = PageWriter::new()?;

    let blocks = layout.map_or(index.blocks(), |layout| &layout.blocks);
    for (number, page) in (0_u32..).zip(blocks.pages()) {
        writer.page(&number.to_be_bytes(), &page?)?;
    }
    let block = writer.pages();

    writer.page(&ONLY, &index.templates().to_bytes()?)?;
    let shape = writer.pages();

    writer.page(&ONLY, &written.metadata.to_bytes()?)?;
    let facts = writer.pages();

    let mut minions = index.minions();
    // Entries keep their numbers when blocks are merged; only the blocks of a minion change.
    if let Some(layout) = layout {
        for (_, blocks) in &mut minions {
            let became = |&block: &u32| layout.became.get(block as usize).copied();
            let moved: Option<Vec<u32>> = blocks.iter().map(became).collect();
            let lost = || io::Error::other("internal error: the layout lacks a block");
            *blocks = moved.ok_or_else(lost)?;
            // Neighbors that were merged are one block now.
            blocks.dedup();
        }
    }
    let [minion, name] = minion::pages(&minions)?;

    let key_of_job = |n: usize| {
        jobs.key(n)
            .expect("a job of the index")
            .0
            .to_be_bytes()
            .to_vec()
    };
    // Values are numbered per page, so each page needs a separate encoder.
    let mut encoder = Encoder::default();
    writer.fill(jobs.len(), key_of_job, |n, is_first, out| {
        if is_first {
            encoder = Encoder::default();
        }
        let (record, load, rest) = jobs.get(n).expect("a job of the index");
        encoder.push(out, &record, load, rest)
    })?;
    let job = writer.pages();

    latest::write(&mut writer, &written.latest)?;
    let latest = writer.pages();

    Ok(vec![
        ("block", block),
        ("shape", shape),
        ("facts", facts),
        ("name", name),
        ("minion", minion),
        ("job", job),
        ("latest", latest),
    ])
}

impl SealedIndex {
    /// Opens the index of the log `id`. One that is missing, damaged or of another segment is
    /// [`StoreError::Index`].
    pub(crate) fn open(fs: &dyn Fs, path: &Path, id: LogId) -> Result<Self, StoreError> {
        let table = Table::open(fs, path, id)?;

        // Blocks, templates and metadata are read by every search, so they are decoded once. Pages
        // of jobs and minions are read as needed.
        let block = table.tree("block")?;
        let mut blocks = Blocks::default();
        for page in block.all()? {
            blocks.read(&page).ok_or_else(|| block.broken())?;
        }

        let only = |tree: &Tree| tree.get(&ONLY)?.ok_or_else(|| tree.broken());
        let template = table.tree("shape")?;
        let templates =
            TagTemplates::from_bytes(&only(&template)?).ok_or_else(|| template.broken())?;

        let facts = table.tree("facts")?;
        let metadata = SegmentMetadata::from_bytes(&only(&facts)?).ok_or_else(|| facts.broken())?;

        if [table.positions(), metadata.positions] != [blocks.positions(); 2] {
            return Err(table.damaged("its blocks are not those that it was made from"));
        }

        Ok(Self {
            blocks,
            templates,
            job: table.tree("job")?,
            minion: table.tree("minion")?,
            names: table.tree("name")?,
            latest: table.tree("latest")?,
            metadata,
            opened_bytes: table.memory(),
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

    /// The given jobs, sorted by key, that the segment contains, with the positions of their
    /// entries.
    pub(crate) fn jobs_of(&self, keys: &[JidKey]) -> Result<Vec<JobEntries>, StoreError> {
        let mut found = Vec::new();
        let mut left = keys;
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
        let pages = minion::selected_pages(&self.minion, &self.names, selection)?;
        let found = minion::blocks_with(&pages, self.blocks.metas().len(), selection);
        found.ok_or_else(|| self.minion.broken())
    }

    /// The latest job per function and minion, sorted by both.
    pub(crate) fn latest(&self) -> Result<Vec<LatestJob>, StoreError> {
        latest::all(&self.latest.all()?, &|_, _| true).ok_or_else(|| self.latest.broken())
    }
}
