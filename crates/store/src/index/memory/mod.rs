//! The index of an active segment: arenas and hash tables of integers, no allocation per entry or
//! job.
//!
//! Every commit updates it, and it grows to a million entries per class. An entry costs four bytes
//! (the number of its job's next entry); a job costs about a hundred bytes plus the values of its
//! summary, which jobs share.

pub mod arena;

use std::cmp::Ordering;
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
use crate::log::columns::{Columns, Row};
use crate::log::file::BlockMeta;
use crate::names::{Names, Table, hash};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::JOBS_SORTED_AT_ONCE;
use saltcellar_model::{FastMap, Flags, Jid, JidKey, Kind, SeqNo};

/// Stands for no job, no entry or no text.
const NONE: u32 = u32::MAX;

/// Stands for a number that is about to be looked up.
const FOLLOWS: u32 = NONE - 1;

/// Bytes that an entry may add to the strings in addition to its own: the lengths of summary values.
const TEXT_BYTES_BESIDE: usize = 64;

#[derive(Debug, Clone, Copy)]
struct MemJob {
    key: [u64; 2],
    first: u32,
    last: u32,
    count: u32,
    /// Number of the summary values among the strings.
    load: u32,
    /// Number of the end time among the strings.
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
        key_of(self.key)
    }
}

/// The latest return of a function from a minion.
#[derive(Debug, Clone, Copy)]
struct MemLatest {
    fun: u32,
    minion: u32,
    job: u32,
    seq: SeqNo,
    /// The upper half of the job's key, which is its time: a comparison that looked at the job would wait for memory. The whole key
    /// would take a second line of it.
    time: u64,
}

impl MemLatest {
    /// Takes over a further return of the same function and minion, unless its job is older.
    fn renew(&mut self, other: Self, jobs: &Arena<MemJob>) {
        // A second return of the same job renews the row even if it says nothing newer: the last
        // one decides when the row expires.
        if other.job == self.job || self.is_older(&other, jobs) {
            *self = other;
        }
    }

    fn is_older(&self, other: &Self, jobs: &Arena<MemJob>) -> bool {
        let time = |latest: &Self| key_of([latest.time, 0]).time();
        let newness = |latest: &Self| {
            let job = jobs.get(latest.job as usize).expect("the job of a row");
            newness(job.key(), latest.seq)
        };
        match time(self).cmp(&time(other)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // Of the same time, or neither contains one.
            Ordering::Equal => newness(self) < newness(other),
        }
    }
}

/// The halves of a key: a u128 would pad every job to a multiple of 16.
fn halves(key: JidKey) -> [u64; 2] {
    let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).expect("64 bits");
    [half(key.0 >> 64), half(key.0)]
}

fn key_of(halves: [u64; 2]) -> JidKey {
    let [upper, lower] = halves.map(u128::from);
    JidKey(upper << 64 | lower)
}

/// The numbers in the index of what a block names.
#[derive(Debug, Default)]
struct BlockNumbers {
    /// Of a minion's name, by its index among the strings of the block; `NONE` before it was looked up.
    minions: Vec<u32>,
    /// Of a function's name, likewise: confirmed, and known from a bus only.
    funs: Vec<[u32; 2]>,
    /// The job of a jid of the block, and its key.
    jobs: Vec<Option<(u32, JidKey)>>,
    /// Minions of the block, each once: index among the strings, and hash of the name.
    hashes: Vec<(u32, u64)>,
}

impl BlockNumbers {
    /// Nothing of this block was looked up.
    fn start(&mut self, columns: &Columns) {
        self.minions.clear();
        self.minions.resize(columns.texts.ends.len(), NONE);
        self.funs.clear();
        self.funs.resize(columns.texts.ends.len(), [NONE; 2]);
        self.jobs.clear();
        self.jobs.resize(columns.jids(), None);
    }

    /// The number of a minion, by its index among the strings; all were looked up.
    fn minion(&self, text: u32) -> u32 {
        let number = self.minions.get(text as usize);
        *number.expect("a string of the block")
    }
}

/// The latest data about a minion.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    /// 1 + the newest block with an entry of it; 0 for none.
    block: u32,
    /// Its previous row of each kind. A highstate renews one of each kind, so a single place for
    /// both would never be right.
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
    /// Number of the jid among the strings, per job, for jids without a time.
    free: FastMap<u32, u32>,
    /// Job numbers, in runs of `JOBS_SORTED_AT_ONCE` sorted by key.
    sorted: Vec<u32>,
    /// Summary values, jids without a time, end times.
    texts: Names,
    /// Minions and functions.
    names: Names,
    /// Data per minion, by number of its name.
    noted: Vec<Noted>,
    /// Minions of each block, concatenated; `minion_ends` contains the end of each block.
    minions: Arena<u32>,
    minion_ends: Vec<u32>,
    /// Bytes of the entries of each block.
    raws: Vec<u32>,
    latest: Arena<MemLatest>,
    latest_table: Table,
    register: Option<SeqNo>,
    totals: Totals,
    /// Used for one block at a time.
    numbers: BlockNumbers,
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

    /// Adds a block and its entries. `bodies` is called if a job's summary needs a body. Fails without room
    /// ([`MemIndex::has_room`]).
    pub(crate) fn add_block<'a>(
        &mut self,
        meta: BlockMeta,
        columns: &Columns,
        bodies: impl Fn() -> &'a [u8],
    ) -> Result<(), StoreError> {
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
        totals.entries += columns.len() as u64;
        totals.last_seq = totals.last_seq.max(meta.last_seq);
        totals.raw_bytes += columns.raw_len as u64;

        self.blocks
            .push(meta, self.templates.bits(&columns.templates()));
        // Saturating: the value only separates small blocks from large ones when a segment is
        // sealed.
        self.raws
            .push(u32::try_from(columns.raw_len).unwrap_or(u32::MAX));

        // What the block names is looked up once per name, not per entry.
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.start(columns);
        self.note_minions(columns, &mut numbers)?;

        self.look_ahead(columns, &numbers);

        let first = self.blocks.newest_start();
        for (at, row) in (0_u32..).zip(columns.rows()) {
            if row.kind == Kind::Register {
                self.register = Some(row.seq);
            }
            // An entry without a job is found by its block alone.
            if let Some(jid) = row.jid {
                let number = first.checked_add(at).filter(|number| *number < NONE);
                let number = number.ok_or(StoreError::Broken("an index has over 4 G entries"))?;
                self.add_to_job((columns, &mut numbers), (jid, number), &row, &bodies)?;
            }
        }

        self.numbers = numbers;
        Ok(())
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

    /// Records the minions of the newest block, each once.
    fn note_minions(
        &mut self,
        columns: &Columns,
        numbers: &mut BlockNumbers,
    ) -> Result<(), StoreError> {
        let block = fits(self.blocks.metas().len(), "an index has over 4 G blocks")?;

        // All are hashed before any is looked up, because the lookups then wait for memory together.
        numbers.hashes.clear();
        let mut read = 0;
        for text in columns.minions() {
            let slot = numbers.minions.get_mut(text as usize);
            let slot = slot.expect("a string of the block");
            if *slot == NONE {
                *slot = FOLLOWS;
                let hash = hash(columns.texts.get(text));
                read ^= self.names.touch(hash);
                numbers.hashes.push((text, hash));
            }
        }
        std::hint::black_box(read);

        for &(text, hash) in &numbers.hashes {
            let name = self.names.number_hashed(columns.texts.get(text), hash)?;
            let slot = numbers.minions.get_mut(text as usize);
            *slot.expect("a string of the block") = name;
        }

        for (text, _) in &numbers.hashes {
            let name = numbers.minion(*text);
            if self.noted.len() <= name as usize {
                self.noted.resize(name as usize + 1, Noted::default());
            }
            let noted = self.noted.get_mut(name as usize).expect("resized above");
            // Strings whose hashes are equal may be in a block twice.
            if noted.block != block {
                noted.block = block;
                self.minions.push(name);
            }
        }

        self.minion_ends.push(self.minions_len());
        Ok(())
    }

    /// Brings the rows of the latest returns that the block renews closer to the processor: they are spread over more memory
    /// than its caches hold, and renewing them one after the other would wait for each.
    fn look_ahead(&self, columns: &Columns, numbers: &BlockNumbers) {
        let read = columns.minions().fold(0, |read, text| {
            let noted = self.noted.get(numbers.minion(text) as usize);
            let row = noted.and_then(|noted| noted.rows.first());
            let latest = row.and_then(|row| self.latest.get(row.at as usize));
            read ^ latest.map_or(0, |latest| latest.seq.0)
        });
        // The compiler must not leave out reads whose result nobody needs.
        std::hint::black_box(read);
    }

    /// Adds an entry to the job of its jid; `number` is the entry's number in the segment.
    fn add_to_job<'a>(
        &mut self,
        (columns, numbers): (&Columns, &mut BlockNumbers),
        (jid, number): (u32, u32),
        row: &Row,
        bodies: &impl Fn() -> &'a [u8],
    ) -> Result<(), StoreError> {
        let slot = numbers.jobs.get_mut(jid as usize);
        let slot = slot.expect("a jid of the block");
        let (at, key) = if let Some(known) = *slot {
            known
        } else {
            let (key, text) = columns.jid(jid as usize);
            let at = self.find_or_make(key, text, row.at, number)?;
            *slot.insert((at, key))
        };
        self.link(at, number);

        let job = self
            .jobs
            .get_mut(at as usize)
            .expect("the job was found or added");
        let rank = job_summary::rank(row.kind);

        // A salvaged segment may span more than 32 bits of sequence numbers. Beyond that only their
        // order matters, which saturation preserves.
        let since =
            u32::try_from(row.seq.0.saturating_sub(self.totals.first_seq.0)).unwrap_or(NONE - 1);

        let body = || bodies().get(row.body.clone()).unwrap_or_default();
        match row.kind {
            Kind::Endtime => {
                let text = saltcellar_wire::msgpack::as_text(body()).unwrap_or_default();
                job.endtime = self.texts.number(text.as_bytes())?;
                job.endtime_seq = since;
            }
            Kind::NoCache => job.nocache = true,
            // Of several loads the best counts, and of equal loads the first is shown.
            kind if rank > job.rank => {
                let (summary, values) = &mut self.scratch;
                summary.take_load(
                    job_summary::load_of(kind, body()),
                    saltcellar_base::limits::ROW_VALUE_BYTES_MAX,
                );
                values.clear();
                summary.write_values(values);
                job.load = self.texts.number(values)?;
                job.rank = rank;
                job.load_seq = since;
            }
            kind if rank > 0
                && rank == job.rank
                && !job_summary::is_contested(self.texts.get(job.load)) =>
            {
                let (summary, values) = &mut self.scratch;
                // Written by this index.
                let is_read = summary.read_values(self.texts.get(job.load)).is_some();
                if is_read && summary.differs_from(kind, body()) {
                    summary.contested = true;
                    values.clear();
                    summary.write_values(values);
                    job.load = self.texts.number(values)?;
                }
            }
            _ => {}
        }

        // Only returns are jobs that a minion has run. Without a minion there is no row to renew.
        if row.kind == Kind::Return
            && let Some(minion) = row.minion
        {
            let newest = MemLatest {
                fun: NONE,
                minion: numbers.minion(minion),
                job: at,
                seq: row.seq,
                time: halves(key)[0],
            };
            let is_bus_only = row.flags.has(Flags::UNCONFIRMED);
            // A highstate counts twice: for its function, and for the question when a minion last
            // applied all of its states.
            if row.flags.has(Flags::HIGHSTATE) {
                let fun = self.number_of_fun(HIGHSTATE.as_bytes(), is_bus_only)?;
                self.note_latest(RowKind::Highstate, MemLatest { fun, ..newest });
            }

            let fun = match row.fun {
                Some(text) => {
                    let slot = numbers.funs.get_mut(text as usize);
                    let [confirmed, bus_only] = slot.expect("a string of the block");
                    let slot = if is_bus_only { bus_only } else { confirmed };
                    if *slot == NONE {
                        *slot = self.number_of_fun(columns.texts.get(text), is_bus_only)?;
                    }
                    *slot
                }
                None => self.number_of_fun(b"", is_bus_only)?,
            };
            self.note_latest(RowKind::Function, MemLatest { fun, ..newest });
        }
        Ok(())
    }

    /// The number of a function's name in a row of the latest returns.
    fn number_of_fun(&mut self, fun: &[u8], is_bus_only: bool) -> Result<u32, StoreError> {
        let (_, name) = &mut self.scratch;
        name.clear();
        if is_bus_only {
            name.push(BUS_ONLY as u8);
        }
        name.extend_from_slice(fun);
        self.names.number(name)
    }

    /// Appends entry `number` of the segment to a job.
    fn link(&mut self, at: u32, number: u32) {
        // Entries without a job leave gaps here, so the list is extended up to this one.
        while self.next.len() <= number as usize {
            self.next.push(NONE);
        }

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
    }

    fn find_or_make(
        &mut self,
        key: JidKey,
        text: &[u8],
        first_at: Micros,
        number: u32,
    ) -> Result<u32, StoreError> {
        let hash = hash(&key.0.to_le_bytes());
        // Keys, not strings: two jids without a time whose hashes collide share a job here. Readers
        // compare the strings of the entries.
        if let Some(at) = self.find_hashed(key, hash) {
            return Ok(at);
        }

        let at = fits(self.jobs.len(), "an index has over 4 G jobs")?;
        // A jid with a time is spelled from its key.
        if key.time().is_none() {
            let text = self.texts.number(text)?;
            self.free.insert(at, text);
        }

        self.jobs.push(MemJob {
            key: halves(key),
            first: number,
            last: number,
            count: 0,
            load: NONE,
            endtime: NONE,
            load_seq: 0,
            endtime_seq: NONE,
            first_at: first_at.0,
            rank: 0,
            nocache: false,
        });

        self.job_table.insert(hash, at);
        // Sorted in runs while the segment grows, because no reader and no commit should have to
        // sort a whole segment.
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
        // Each list of jobs asks for this, so no comparison looks a key up.
        jobs.sort_by_cached_key(|&at| self.key_of(at));
        jobs
    }

    /// Records a return of a minion, whose name was recorded, in its row.
    fn note_latest(&mut self, kind: RowKind, newest: MemLatest) {
        let MemLatest { fun, minion, .. } = newest;

        // Usually a minion runs the same function as before.
        let noted = self
            .noted
            .get_mut(minion as usize)
            .and_then(|noted| noted.rows.get_mut(kind as usize))
            .expect("the minion was recorded");
        if noted.fun == fun + 1 {
            let latest = self.latest.get_mut(noted.at as usize);
            latest
                .expect("a row that was noted")
                .renew(newest, &self.jobs);
            return;
        }

        let pair = u64::from(fun) << 32 | u64::from(minion);
        let hash = hash(&pair.to_le_bytes());
        let is = |at: u32| {
            self.latest
                .get(at as usize)
                .is_some_and(|l| l.fun == fun && l.minion == minion)
        };

        let at = self.latest_table.find(hash, is).unwrap_or_else(|| {
            let next = u32::try_from(self.latest.len())
                .expect("at most one per entry, and entries are 32 bits");
            self.latest_table.insert(hash, next);
            self.latest.push(newest);
            next
        });
        if let Some(latest) = self.latest.get_mut(at as usize) {
            latest.renew(newest, &self.jobs);
        }

        noted.fun = fun + 1;
        noted.at = at;
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

    /// The jid of a job, if it contains no time.
    fn free_jid(&self, job: u32) -> &[u8] {
        self.free
            .get(&job)
            .map_or(&[], |&text| self.texts.get(text))
    }

    pub(crate) fn row(&self, key: JidKey) -> Option<JobSummary> {
        let at = self.find(key)?;
        self.record(at, self.jobs.get(at as usize)?).row()
    }

    /// The given jobs that the segment contains, with the positions of their entries.
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
        // Names are sorted, and rows by the places of their names: there are many more rows than names.
        let mut names: Vec<u32> = (0..self.names.len()).collect();
        names.sort_unstable_by_key(|&name| self.names.get(name));
        let mut place_of = vec![0; names.len()];
        for (place, name) in (0_u64..).zip(names) {
            if let Some(slot) = place_of.get_mut(name as usize) {
                *slot = place;
            }
        }

        let place = |name: u32| place_of.get(name as usize).copied().unwrap_or_default();
        let mut rows: Vec<&MemLatest> = self.latest.iter().collect();
        rows.sort_unstable_by_key(|row| place(row.fun) << 32 | place(row.minion));
        rows.into_iter()
            .filter_map(|row| self.latest_row(row))
            .collect()
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

        let jid = match Jid::of_key(job.key()) {
            Some(stamped) => stamped,
            None => Jid::of(std::str::from_utf8(self.free_jid(latest.job)).ok()?),
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
        // Their numbers first: with known sizes no list has to grow.
        let mut counts = vec![0; self.names.len() as usize];
        for &name in self.minions.iter() {
            if let Some(count) = counts.get_mut(name as usize) {
                *count += 1;
            }
        }
        let mut blocks: Vec<Vec<u32>> = counts.into_iter().map(Vec::with_capacity).collect();

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
