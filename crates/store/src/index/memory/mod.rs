//! The index of an active segment: arenas and hash tables of integers, no allocation per entry or
//! job.
//!
//! Every commit updates it, and it grows to a million entries per class. An entry costs four bytes
//! (the number of its job's next entry); a job costs about a hundred bytes plus the values of its
//! summary, which jobs share.

pub mod arena;

use std::collections::BinaryHeap;

use super::super::error::{StoreError, fits};
use super::job::JobEntries;
use super::job::JobRecord;
use super::latest::{BUS_ONLY, HIGHSTATE, LatestJob};
use super::minion::MinionSelection;
use super::segment_metadata::SegmentMetadata;
use super::summary::{Blocks, TagTemplates};
use super::{EntryPosition, Totals, newness};
use crate::index::job_summary::{self, JobSummary};
use crate::index::memory::arena::Arena;
use crate::index::names::{Names, Table, hash};
use crate::log::file::BlockMeta;
use saltcellar_base::limits::JOBS_SORTED_AT_ONCE;
use saltcellar_model::{Entry, FastMap, Flags, JidKey, Kind, SeqNo};

/// Stands for no job, no entry or no text.
const NONE: u32 = u32::MAX;

/// Bytes that an entry may add to the texts in addition to its own: the lengths of summary values.
const TEXT_BYTES_BESIDE: usize = 64;

#[derive(Debug, Clone, Copy)]
struct MemJob {
    /// The halves of the key: a u128 would pad every job to a multiple of 16.
    key: [u64; 2],
    first: u32,
    last: u32,
    count: u32,
    /// Number of the summary values among the texts.
    load: u32,
    /// Number of the end time among the texts.
    endtime: u32,
    /// Sequence number of the load, less the segment's first.
    load_seq: u32,
    endtime_seq: u32,
    first_at: i64,
    rank: u8,
    nocache: bool,
}

impl MemJob {
    fn key(&self) -> JidKey {
        let [upper, lower] = self.key.map(u128::from);
        JidKey(upper << 64 | lower)
    }
}

const LAST_JIDS: usize = 64;

/// Slot of a jid in the cache of recent jids: its last four bytes, mostly digits, change fastest.
fn slot_of(jid: &str) -> usize {
    let digits = jid
        .as_bytes()
        .last_chunk::<4>()
        .copied()
        .unwrap_or_default();
    let mixed = u32::from_le_bytes(digits).wrapping_mul(0x9e37_79b1) >> 26;
    // The multiplication leaves the best mixed bits at the top; 26 of 32 are dropped, so 64 slots
    // are left.
    mixed as usize % LAST_JIDS
}

/// The latest return of a function from a minion.
#[derive(Debug, Clone, Copy)]
struct MemLatest {
    fun: u32,
    minion: u32,
    job: u32,
    seq: SeqNo,
}

/// The latest data about a minion.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    /// 1 + the newest block with an entry of it; 0 for none.
    block: u32,
    /// Its previous row of each kind. A highstate renews one of both, so that one place for both
    /// would never be right.
    rows: [NotedRow; 2],
}

/// A row of the latest returns.
#[derive(Debug, Clone, Copy, Default)]
struct NotedRow {
    /// 1 + the number of the function's name; 0 for none.
    fun: u32,
    /// Index among the latest.
    at: u32,
}

/// The kind of a row of the latest returns.
#[derive(Debug, Clone, Copy)]
enum RowKind {
    /// Of the function itself.
    Function = 0,
    /// Of [`HIGHSTATE`].
    Highstate = 1,
}

/// The index of a segment that is active or waits to be sealed.
#[derive(Debug, Default)]
pub(crate) struct MemIndex {
    blocks: Blocks,
    templates: TagTemplates,
    /// The next entry of the same job, per entry. May be shorter than the number of entries.
    next: Arena<u32>,
    jobs: Arena<MemJob>,
    job_table: Table,
    /// Number of the jid among the texts, per job, for jids without a time.
    free: FastMap<u32, u32>,
    /// Job numbers, in runs of `JOBS_SORTED_AT_ONCE` sorted by key.
    sorted: Vec<u32>,
    /// Summary values, jids without a time, end times.
    texts: Names,
    /// Minions and functions.
    names: Names,
    /// Data per minion, by number of its name.
    noted: Vec<Noted>,
    /// Minions of each block, concatenated; `minion_ends` has the end of each block.
    minions: Arena<u32>,
    minion_ends: Vec<u32>,
    /// Bytes of the entries of each block.
    raws: Vec<u32>,
    latest: Arena<MemLatest>,
    latest_table: Table,
    register: Option<SeqNo>,
    totals: Totals,
    /// A direct-mapped cache of recent jids and their jobs: consecutive entries often belong to few
    /// jobs.
    last_jids: Vec<(String, u32)>,
    /// The name in the previous row of each kind.
    last_funs: [Option<u32>; 2],
    scratch: (JobSummary, Vec<u8>),
}

impl MemIndex {
    pub(crate) fn new(segment: SeqNo) -> Self {
        let totals = Totals {
            first_seq: segment,
            last_seq: segment,
            ..Totals::default()
        };
        Self {
            totals,
            ..Self::default()
        }
    }

    /// Adds a block and its tag templates; its entries follow with [`MemIndex::add`].
    pub(crate) fn add_block(&mut self, meta: BlockMeta, templates: &[Vec<u8>]) {
        let totals = &mut self.totals;
        totals.log_bytes = meta.end();
        // `Totals` starts with zero times, which would win every comparison of the minimum.
        let none_yet = self.blocks.metas().is_empty();
        totals.at_min = if none_yet {
            meta.at_min
        } else {
            totals.at_min.min(meta.at_min)
        };
        totals.at_max = if none_yet {
            meta.at_max
        } else {
            totals.at_max.max(meta.at_max)
        };

        self.blocks.push(meta, self.templates.bits(templates));
        // An empty range: entries of the block extend it.
        self.minion_ends.push(self.minions_len());
        self.raws.push(0);
    }

    /// Whether there is room for this many entries and bytes with sequence numbers up to `last`:
    /// all numbers are 32 bits.
    pub(crate) fn has_room(&self, entries: usize, raw_bytes: usize, last: SeqNo) -> bool {
        let most = NONE as usize;
        // In the worst case every byte of the entries is a new name, and every entry adds one of
        // each kind.
        let fits = |names: &Names, each: usize| {
            let more = each
                .checked_mul(entries)
                .and_then(|more| more.checked_add(raw_bytes));
            more.and_then(|more| more.checked_add(names.bytes()))
                .is_some_and(|bytes| bytes < most)
        };

        (self.blocks.entries() as usize)
            .checked_add(entries)
            .is_some_and(|all| all < most)
            && last.0.saturating_sub(self.totals.first_seq.0) < u64::from(NONE - 1)
            && fits(&self.names, 1)
            && fits(&self.texts, TEXT_BYTES_BESIDE)
    }

    fn minions_len(&self) -> u32 {
        u32::try_from(self.minions.len())
            .expect("at most one minion per entry, and entries are 32 bits")
    }

    /// Adds an entry to the newest block; `at` is its index there. `body` is called only if the job
    /// summary needs it. Fails without room ([`MemIndex::has_room`]).
    pub(crate) fn add<'a>(
        &mut self,
        at: usize,
        seq: SeqNo,
        entry: &Entry<'a>,
        raw_len: usize,
        body: impl FnOnce() -> &'a [u8],
    ) -> Result<(), StoreError> {
        self.totals.entries += 1;
        self.totals.last_seq = self.totals.last_seq.max(seq);
        self.totals.raw_bytes += raw_len as u64;
        // Saturating: the value only separates small blocks from large ones when a segment is
        // sealed.
        let raw = self.raws.last_mut().expect("a block was added");
        *raw = raw.saturating_add(u32::try_from(raw_len).unwrap_or(u32::MAX));

        if entry.kind == Kind::Register {
            self.register = Some(seq);
        }

        let minion = if entry.minion.is_empty() {
            NONE
        } else {
            self.note_minion(entry.minion.as_bytes())?
        };
        // An entry without a job is found by its block alone.
        if entry.jid.is_empty() {
            return Ok(());
        }

        let number = u32::try_from(at)
            .ok()
            .and_then(|at| self.blocks.newest_start().checked_add(at));
        let number = number.filter(|number| *number < NONE);
        let number = number.ok_or(StoreError::Broken("an index has over 4 G entries"))?;

        let at = self.job_of(entry, number)?;
        let job = self
            .jobs
            .get_mut(at as usize)
            .expect("the job was found or added");
        let rank = job_summary::rank(entry.kind);

        // A salvaged segment may span more than 32 bits of sequence numbers. Beyond that only their
        // order matters, which saturation preserves.
        let since =
            u32::try_from(seq.0.saturating_sub(self.totals.first_seq.0)).unwrap_or(NONE - 1);

        match entry.kind {
            Kind::Endtime => {
                let text = saltcellar_wire::msgpack::as_text(body()).unwrap_or_default();
                job.endtime = self.texts.number(text.as_bytes())?;
                job.endtime_seq = since;
            }
            Kind::NoCache => job.nocache = true,
            // Of several loads the best one counts, and of equal ones the first.
            kind if rank > job.rank => {
                let (row, values) = &mut self.scratch;
                row.take_load(
                    job_summary::load_of(kind, body()),
                    saltcellar_base::limits::ROW_VALUE_BYTES_MAX,
                );
                values.clear();
                row.write_values(values);
                job.load = self.texts.number(values)?;
                job.rank = rank;
                job.load_seq = since;
            }
            _ => {}
        }

        // Only returns are jobs that a minion has run. Without a minion there is no row to renew.
        if entry.kind == Kind::Return && minion != NONE {
            let is_bus_only = entry.flags.has(Flags::UNCONFIRMED);
            // A highstate counts twice: for its function, and for the question when a minion last
            // applied all of its states.
            if entry.flags.has(Flags::HIGHSTATE) {
                let fun = self.number_of(RowKind::Highstate, HIGHSTATE, is_bus_only)?;
                self.note_latest(RowKind::Highstate, fun, minion, at, seq);
            }
            let fun = self.number_of(RowKind::Function, entry.fun, is_bus_only)?;
            self.note_latest(RowKind::Function, fun, minion, at, seq);
        }
        Ok(())
    }

    /// The number of the name in a row of the latest returns.
    fn number_of(
        &mut self,
        kind: RowKind,
        fun: &str,
        is_bus_only: bool,
    ) -> Result<u32, StoreError> {
        let (_, name) = &mut self.scratch;
        name.clear();
        if is_bus_only {
            name.push(BUS_ONLY as u8);
        }
        name.extend_from_slice(fun.as_bytes());
        // Usually that of the return before.
        let [last, of_highstate] = &mut self.last_funs;
        let last = match kind {
            RowKind::Function => last,
            RowKind::Highstate => of_highstate,
        };
        let known = last.filter(|&last| self.names.get(last) == name.as_slice());
        let number = known.map_or_else(|| self.names.number(name), Ok)?;
        *last = Some(number);
        Ok(number)
    }

    /// Records a minion for the newest block; returns the number of its name.
    fn note_minion(&mut self, minion: &[u8]) -> Result<u32, StoreError> {
        let name = self.names.number(minion)?;
        let block = fits(self.blocks.metas().len(), "an index has over 4 G blocks")?;

        if self.noted.len() <= name as usize {
            self.noted.resize(name as usize + 1, Noted::default());
        }
        let noted = self.noted.get_mut(name as usize).expect("resized above");

        // Each minion once per block: `minion_ends` delimits the blocks, and entries of a block are
        // added together.
        if noted.block != block {
            noted.block = block;
            self.minions.push(name);
            *self.minion_ends.last_mut().expect("a block was added") = self.minions_len();
        }
        Ok(name)
    }

    /// Appends an entry to its job; returns the number of the job.
    fn job_of(&mut self, entry: &Entry<'_>, number: u32) -> Result<u32, StoreError> {
        // Entries without a job leave gaps here, so the list is extended up to this one.
        while self.next.len() <= number as usize {
            self.next.push(NONE);
        }

        let slot = slot_of(entry.jid);
        let known = self
            .last_jids
            .get(slot)
            .filter(|(jid, _)| jid == entry.jid)
            .map(|(_, at)| *at);
        // Consecutive entries often belong to few jobs, and comparing a text is cheaper than
        // hashing a key and probing a table.
        let at = if let Some(at) = known {
            at
        } else {
            let at = self.find_or_make(entry, number)?;
            if self.last_jids.is_empty() {
                self.last_jids.resize_with(LAST_JIDS, Default::default);
            }
            let (jid, job) = self.last_jids.get_mut(slot).expect("a slot of the cache");
            jid.clear();
            jid.push_str(entry.jid);
            *job = at;
            at
        };

        let job = self
            .jobs
            .get_mut(at as usize)
            .expect("the job was found or added");
        // A new job has itself as first and last entry.
        if job.count > 0 {
            assert!(number > job.last, "the entries of a job ascend");
            *self.next.get_mut(job.last as usize).expect("resized above") = number;
        }

        job.count += 1;
        job.last = number;
        Ok(at)
    }

    fn find_or_make(&mut self, entry: &Entry<'_>, number: u32) -> Result<u32, StoreError> {
        let key = JidKey::of(entry.jid);
        let hash = hash(&key.0.to_le_bytes());
        // Keys, not texts: two jids without a time whose hashes collide share a job here. Readers
        // compare the texts of the entries.
        if let Some(at) = self.find_hashed(key, hash) {
            return Ok(at);
        }

        let at = fits(self.jobs.len(), "an index has over 4 G jobs")?;
        // A jid with a time is spelled from its key.
        if key.time().is_none() {
            let text = self.texts.number(entry.jid.as_bytes())?;
            self.free.insert(at, text);
        }

        let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).expect("64 bits");
        self.jobs.push(MemJob {
            key: [half(key.0 >> 64), half(key.0)],
            first: number,
            last: number,
            count: 0,
            load: NONE,
            endtime: NONE,
            load_seq: 0,
            endtime_seq: NONE,
            first_at: entry.at.0,
            rank: 0,
            nocache: false,
        });

        self.job_table.insert(hash, at);
        // Sorted in runs while the segment grows, so that no reader and no commit sorts a whole
        // segment at once.
        if self.jobs.len() - self.sorted.len() >= JOBS_SORTED_AT_ONCE {
            let unsorted = self.unsorted();
            self.sorted.extend(unsorted);
        }
        Ok(at)
    }

    fn find(&self, key: JidKey) -> Option<u32> {
        self.find_hashed(key, hash(&key.0.to_le_bytes()))
    }

    fn find_hashed(&self, key: JidKey, hash: u64) -> Option<u32> {
        self.job_table.find(hash, |at| self.key_of(at) == Some(key))
    }

    fn key_of(&self, job: u32) -> Option<JidKey> {
        self.jobs.get(job as usize).map(MemJob::key)
    }

    /// The jobs after the last sorted run, sorted by key.
    fn unsorted(&self) -> Vec<u32> {
        let range = self.sorted.len()..self.jobs.len();
        let mut jobs: Vec<u32> = range.filter_map(|at| u32::try_from(at).ok()).collect();
        jobs.sort_by_key(|&at| self.key_of(at));
        jobs
    }

    /// Records a return of a minion, whose name was recorded, in its row.
    fn note_latest(&mut self, kind: RowKind, fun: u32, minion: u32, job: u32, seq: SeqNo) {
        // Usually a minion runs the same function as before.
        let noted = self
            .noted
            .get(minion as usize)
            .and_then(|noted| noted.rows.get(kind as usize))
            .filter(|row| row.fun == fun + 1)
            .map(|row| row.at);
        if let Some(at) = noted {
            self.renew_latest(at, job, seq);
            return;
        }

        let pair = u64::from(fun) << 32 | u64::from(minion);
        let hash = hash(&pair.to_le_bytes());
        let is = |at: u32| {
            self.latest
                .get(at as usize)
                .is_some_and(|l| l.fun == fun && l.minion == minion)
        };
        let known = self.latest_table.find(hash, is);
        let next = u32::try_from(self.latest.len())
            .expect("at most one per entry, and entries are 32 bits");

        if let Some(at) = known {
            self.renew_latest(at, job, seq);
        } else {
            self.latest_table.insert(hash, next);
            self.latest.push(MemLatest {
                fun,
                minion,
                job,
                seq,
            });
        }

        let row = self
            .noted
            .get_mut(minion as usize)
            .and_then(|noted| noted.rows.get_mut(kind as usize))
            .expect("the minion was recorded");
        row.fun = fun + 1;
        row.at = known.unwrap_or(next);
    }

    /// Records a further return of a function from a minion, unless its job is older.
    fn renew_latest(&mut self, at: u32, job: u32, seq: SeqNo) {
        let newness = |job: u32, seq| self.key_of(job).map(|key| newness(key, seq));
        // A second return of the same job renews the row even if it says nothing newer: the last
        // one decides when the row expires.
        let is_newer = |known: &MemLatest| {
            known.job == job || newness(job, seq) > newness(known.job, known.seq)
        };
        if self.latest.get(at as usize).is_some_and(is_newer)
            && let Some(latest) = self.latest.get_mut(at as usize)
        {
            latest.job = job;
            latest.seq = seq;
        }
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Uncompressed bytes of the entries of a block.
    pub(crate) fn raw_bytes_of(&self, block: usize) -> usize {
        self.raws.get(block).map_or(0, |&raw| raw as usize)
    }

    pub(crate) fn templates(&self) -> &TagTemplates {
        &self.templates
    }

    /// The positions of a job's entries, ascending.
    pub(crate) fn positions(&self, key: JidKey) -> Vec<EntryPosition> {
        let job = self.find(key).and_then(|at| self.jobs.get(at as usize));
        let Some(job) = job else { return Vec::new() };
        self.entries(job)
            .filter_map(|entry| self.blocks.position(entry))
            .collect()
    }

    fn entries(&self, job: &MemJob) -> impl Iterator<Item = u32> {
        let mut at = job.first;
        (0..job.count).map(move |_| {
            let entry = at;
            at = *self
                .next
                .get(at as usize)
                .expect("entries of a job are linked");
            entry
        })
    }

    fn record(&self, at: u32, job: &MemJob) -> JobRecord<'_> {
        let text = |n: u32| {
            if n == NONE {
                &[][..]
            } else {
                self.texts.get(n)
            }
        };
        let MemJob {
            first_at,
            rank,
            nocache,
            count,
            first,
            ..
        } = *job;

        let (load, endtime) = (text(job.load), text(job.endtime));
        let seq = |since: u32| self.totals.first_seq.0.saturating_add(u64::from(since));

        let load_seq = if rank > 0 { seq(job.load_seq) } else { 0 };
        let endtime_seq = if job.endtime_seq == NONE {
            0
        } else {
            seq(job.endtime_seq)
        };

        let text = self.free_jid(at);
        JobRecord {
            key: job.key(),
            text,
            rank,
            load,
            load_seq,
            first_at,
            nocache,
            endtime_seq,
            endtime,
            count,
            first,
        }
    }

    /// The jid of a job, if it has no time.
    fn free_jid(&self, job: u32) -> &[u8] {
        self.free
            .get(&job)
            .map_or(&[], |&text| self.texts.get(text))
    }

    pub(crate) fn row(&self, key: JidKey) -> Option<JobSummary> {
        let at = self.find(key)?;
        self.record(at, self.jobs.get(at as usize)?).row()
    }

    /// Those jobs of the given ones that the segment holds, with the positions of their entries.
    pub(crate) fn jobs_of(&self, keys: &[JidKey]) -> Vec<JobEntries> {
        let of = |key: &JidKey| Some((*key, self.row(*key)?, self.positions(*key)));
        keys.iter().filter_map(of).collect()
    }

    /// Up to `limit` job summaries with keys below `before`, latest first.
    pub(crate) fn rows_below(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Vec<(JidKey, JobSummary)> {
        // The runs are sorted, the jobs behind them are not yet.
        let fresh = self.unsorted();
        let runs = self
            .sorted
            .chunks(JOBS_SORTED_AT_ONCE)
            .chain([fresh.as_slice()]);

        // A heap of runs, each with its greatest key: merging stops at the limit instead of sorting
        // all jobs.
        let mut heap: BinaryHeap<(JidKey, &[u32])> = BinaryHeap::new();
        for run in runs {
            let end = before.map_or(run.len(), |before| {
                run.partition_point(|&at| self.key_of(at).is_some_and(|key| key < before))
            });
            self.offer(&mut heap, run.get(..end).unwrap_or_default());
        }

        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some((key, run)) = heap.pop()
        {
            // Only runs with jobs are offered.
            let Some((at, rest)) = run.split_last() else {
                continue;
            };
            // A malformed summary is left out. It could only come from a bug, and the other jobs
            // stay readable.
            if let Some(row) = self
                .jobs
                .get(*at as usize)
                .and_then(|job| self.record(*at, job).row())
            {
                rows.push((key, row));
            }
            self.offer(&mut heap, rest);
        }
        rows
    }

    fn offer<'a>(&self, heap: &mut BinaryHeap<(JidKey, &'a [u32])>, run: &'a [u32]) {
        if let Some(key) = run.last().and_then(|&at| self.key_of(at)) {
            heap.push((key, run));
        }
    }

    /// The latest job per function and minion, sorted by both.
    pub(crate) fn latest(&self) -> Vec<LatestJob> {
        let mut rows = self.latest_with(&|_, _| true);
        rows.sort_unstable();
        rows
    }

    /// The latest job of each function and minion that `wanted` selects, in no order.
    pub(crate) fn latest_with(&self, wanted: &dyn Fn(&[u8], &[u8]) -> bool) -> Vec<LatestJob> {
        let is_wanted =
            |latest: &&MemLatest| wanted(self.names.get(latest.fun), self.names.get(latest.minion));
        self.latest
            .iter()
            .filter(is_wanted)
            .filter_map(|latest| self.latest_row(latest))
            .collect()
    }

    /// The latest job of a function, per minion.
    pub(crate) fn latest_of(&self, fun: &str) -> Vec<LatestJob> {
        // A function without a number never returned.
        let Some(fun) = self.names.find(fun.as_bytes()) else {
            return Vec::new();
        };
        self.latest
            .iter()
            .filter(|l| l.fun == fun)
            .filter_map(|latest| self.latest_row(latest))
            .collect()
    }

    fn latest_row(&self, latest: &MemLatest) -> Option<LatestJob> {
        let job = self.jobs.get(latest.job as usize)?;

        let jid = match job.key().text() {
            Some(text) => text,
            None => String::from_utf8(self.free_jid(latest.job).to_vec()).ok()?,
        };

        let [fun, minion] = [latest.fun, latest.minion].map(|name| self.names.get(name).to_vec());
        Some(LatestJob {
            fun,
            minion,
            seq: latest.seq,
            jid,
        })
    }

    /// Marks every block with an entry of a selected minion.
    pub(crate) fn blocks_with(&self, selection: MinionSelection<'_>) -> Vec<bool> {
        // Each name is tested once, not once per block.
        let names: Vec<bool> = (0..self.names.len())
            .map(|name| selection.selects(usize::try_from(name).ok(), self.names.get(name)))
            .collect();

        let mut from = 0;
        let has = |end: &u32| {
            let mut minions = self.minions.range(from..*end as usize);
            from = *end as usize;
            minions.any(|&name| names.get(name as usize).copied().unwrap_or(false))
        };
        self.minion_ends.iter().map(has).collect()
    }

    /// All minions, sorted, with their blocks, ascending.
    pub(crate) fn minions(&self) -> Vec<(&[u8], Vec<u32>)> {
        let mut blocks: Vec<Vec<u32>> = vec![Vec::new(); self.names.len() as usize];

        let mut from = 0;
        // Blocks are visited in order, so every list ascends.
        for (block, &end) in (0_u32..).zip(&self.minion_ends) {
            for &name in self.minions.range(from..end as usize) {
                if let Some(list) = blocks.get_mut(name as usize) {
                    list.push(block);
                }
            }
            from = end as usize;
        }

        let named = (0_u32..)
            .zip(blocks)
            .filter(|(_, blocks)| !blocks.is_empty());
        let mut minions: Vec<_> = named
            .map(|(name, blocks)| (self.names.get(name), blocks))
            .collect();
        minions.sort_unstable();
        minions
    }

    pub(crate) fn jobs_len(&self) -> usize {
        self.jobs.len()
    }

    /// All jobs, ascending by key.
    pub(crate) fn jobs(&self) -> Jobs<'_> {
        let mut order: Vec<u32> = self.sorted.clone();
        order.extend(self.unsorted());
        // The runs are sorted already; a merge sort exploits that.
        order.sort_by_key(|&at| self.key_of(at));
        Jobs { index: self, order }
    }

    pub(crate) fn metadata(&self, jobs: &Jobs<'_>) -> SegmentMetadata {
        let keys = jobs.order.iter().filter_map(|&at| self.key_of(at));
        let mut metadata = SegmentMetadata::new(self.totals, self.register, keys);
        metadata.positions = self.blocks.positions();
        metadata
    }

    /// Sequence number of the newest register.
    pub(crate) fn register(&self) -> Option<SeqNo> {
        self.register
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }
}

pub(crate) struct Jobs<'a> {
    index: &'a MemIndex,
    order: Vec<u32>,
}

impl<'a> Jobs<'a> {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn key(&self, n: usize) -> Option<JidKey> {
        self.index.key_of(*self.order.get(n)?)
    }

    /// Job `n`: its record, the number of its summary values, and its entries after the first.
    pub(crate) fn get(&self, n: usize) -> Option<(JobRecord<'a>, u32, impl Iterator<Item = u32>)> {
        let index = self.index;
        let at = *self.order.get(n)?;
        let job = index.jobs.get(at as usize)?;
        Some((index.record(at, job), job.load, index.entries(job).skip(1)))
    }
}
