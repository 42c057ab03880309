//! The index of a growing segment: arenas and tables of numbers, no allocation per entry or job.
//!
//! It is in the path of every commit, and two of them (one per class) grow to a million entries each, so an entry costs
//! four bytes here (the number of its job's next entry) and a job about a hundred and the values of its row, which
//! jobs share.

use std::collections::BinaryHeap;

use super::super::error::{StoreError, fits};
use super::super::log::BlockMeta;
use super::super::row::{self, JobRow};
use super::arena::Arena;
use super::facts::Facts;
use super::job::Record;
use super::latest::BUS_ONLY;
use super::names::{Names, Table, hash};
use super::summary::{Blocks, Shapes};
use super::{Place, Sums, newness};
use crate::limits::JOBS_SORTED_AT_ONCE;
use crate::model::{Entry, FastMap, Flags, JidKey, Kind, SeqNo};

/// No job, no entry, no text.
const NONE: u32 = u32::MAX;

/// What an entry may add to the texts beside its own bytes: the lengths of the values of a row.
const TEXT_BYTES_BESIDE: usize = 64;

/// A job that has entries in the segment.
#[derive(Debug, Clone, Copy)]
struct MemJob {
    /// The key's halves: a u128 would pad every job to a multiple of 16.
    key: [u64; 2],
    first: u32,
    last: u32,
    count: u32,
    /// Number of the row's values.
    load: u32,
    /// Number of the end time's text.
    endtime: u32,
    /// Numbers in the log, less the segment's first.
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

/// Where a jid stands among the last ones: its last four bytes, digits mostly, are the quickest to change.
fn slot_of(jid: &str) -> usize {
    let digits = jid.as_bytes().last_chunk::<4>().copied().unwrap_or_default();
    let mixed = u32::from_le_bytes(digits).wrapping_mul(0x9e37_79b1) >> 26;
    mixed as usize % LAST_JIDS
}

/// The return of a function from a minion that counts as the last.
#[derive(Debug, Clone, Copy)]
struct MemLatest {
    fun: u32,
    minion: u32,
    job: u32,
    seq: SeqNo,
}

/// What was noted last of a minion.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    /// 1 + the block; 0 for none.
    block: u32,
    /// 1 + the function of its last return, and the place among the latest.
    fun: u32,
    latest: u32,
}

/// The last job that ran a function on a minion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatestRow<'a> {
    /// The function; empty for several.
    pub fun: &'a [u8],
    /// The minion.
    pub minion: &'a [u8],
    /// Where its return lies in the log.
    pub seq: SeqNo,
    /// The job.
    pub jid: String,
}

/// The index of a segment that still grows, or waits to be sealed.
#[derive(Debug, Default)]
pub struct MemIndex {
    blocks: Blocks,
    shapes: Shapes,
    /// Per entry the next one of its job. Shorter than the entries if the last ones belong to none.
    next: Arena<u32>,
    jobs: Arena<MemJob>,
    job_table: Table,
    /// Numbers of jids' texts, by job, for those that are not made of time.
    free: FastMap<u32, u32>,
    /// Numbers of jobs, sorted by key in stretches of `JOBS_SORTED_AT_ONCE`.
    sorted: Vec<u32>,
    /// Values of rows, jids that are not made of time, end times.
    texts: Names,
    /// Minions and functions.
    names: Names,
    /// Per name what was noted last of it as a minion.
    noted: Vec<Noted>,
    /// Per block its minions.
    minions: Arena<u32>,
    minion_ends: Vec<u32>,
    /// Per block the bytes that its entries brought along.
    raws: Vec<u32>,
    latest: Arena<MemLatest>,
    latest_table: Table,
    register: Option<SeqNo>,
    sums: Sums,
    /// Jids of entries before, by their last bytes, and their jobs: entries of a few jobs mostly come together.
    last_jids: Vec<(String, u32)>,
    /// The function of the return before.
    last_fun: Option<u32>,
    scratch: (JobRow, Vec<u8>),
}

impl MemIndex {
    /// The index of a segment without entries.
    pub fn new(segment: SeqNo) -> Self {
        let sums = Sums { first_seq: segment, last_seq: segment, ..Sums::default() };
        Self { sums, ..Self::default() }
    }

    /// Takes note of a block whose entries follow through [`MemIndex::add`], and of the shapes that their tags have.
    pub fn add_block(&mut self, meta: BlockMeta, shapes: &[Vec<u8>]) {
        let sums = &mut self.sums;
        sums.log_bytes = meta.end();
        let none_yet = self.blocks.metas().is_empty();
        sums.at_min = if none_yet { meta.at_min } else { sums.at_min.min(meta.at_min) };
        sums.at_max = if none_yet { meta.at_max } else { sums.at_max.max(meta.at_max) };
        self.blocks.push(meta, self.shapes.bits(shapes));
        self.minion_ends.push(self.minions_len());
        self.raws.push(0);
    }

    /// Can it take so many more entries with these bytes, numbered up to `last`? Places, names and numbers have 32 bits here.
    pub fn has_room(&self, entries: usize, raw_bytes: usize, last: SeqNo) -> bool {
        let most = NONE as usize;
        let fits = |names: &Names, each: usize| {
            let more = each.checked_mul(entries).and_then(|more| more.checked_add(raw_bytes));
            more.and_then(|more| more.checked_add(names.bytes())).is_some_and(|bytes| bytes < most)
        };
        (self.blocks.entries() as usize).checked_add(entries).is_some_and(|all| all < most)
            && last.0.saturating_sub(self.sums.first_seq.0) < u64::from(NONE - 1)
            && fits(&self.names, 1)
            && fits(&self.texts, TEXT_BYTES_BESIDE)
    }

    fn minions_len(&self) -> u32 {
        u32::try_from(self.minions.len()).expect("a block names a minion once, and the entries were counted")
    }

    /// Takes note of an entry of the newest block. `body` is asked for only if the job's row needs it. Fails where there is no
    /// room ([`MemIndex::has_room`]).
    pub fn add<'a>(
        &mut self,
        at: usize,
        seq: SeqNo,
        entry: &Entry<'a>,
        raw_len: usize,
        body: impl FnOnce() -> &'a [u8],
    ) -> Result<(), StoreError> {
        self.sums.entries += 1;
        self.sums.last_seq = self.sums.last_seq.max(seq);
        self.sums.raw_bytes += raw_len as u64;
        // Only to tell small blocks from large ones.
        let raw = self.raws.last_mut().expect("a block was added");
        *raw = raw.saturating_add(u32::try_from(raw_len).unwrap_or(u32::MAX));
        if entry.kind == Kind::Register {
            self.register = Some(seq);
        }
        let minion = if entry.minion.is_empty() { NONE } else { self.note_minion(entry.minion.as_bytes())? };
        if entry.jid.is_empty() {
            return Ok(());
        }
        let number = u32::try_from(at).ok().and_then(|at| self.blocks.newest_start().checked_add(at));
        let number = number.filter(|number| *number < NONE);
        let number = number.ok_or(StoreError::Broken("an index has over 4 G entries"))?;
        let at = self.job_of(entry, number)?;
        let job = self.jobs.get_mut(at as usize).expect("a job of this index");
        let rank = row::rank(entry.kind);
        // A segment that an earlier release wrote may span more numbers; of those beyond 32 bits only the order counts, and
        // that they keep.
        let since = u32::try_from(seq.0.saturating_sub(self.sums.first_seq.0)).unwrap_or(NONE - 1);
        match entry.kind {
            Kind::Endtime => {
                let text = crate::wire::msgpack::as_text(body()).unwrap_or_default();
                (job.endtime_seq, job.endtime) = (since, self.texts.number(text.as_bytes())?);
            }
            Kind::NoCache => job.nocache = true,
            kind if rank > job.rank => {
                let (row, values) = &mut self.scratch;
                row.take_load(row::load_of(kind, body()), crate::limits::ROW_VALUE_BYTES_MAX);
                values.clear();
                row.write_values(values);
                (job.rank, job.load_seq, job.load) = (rank, since, self.texts.number(values)?);
            }
            _ => {}
        }
        if entry.kind == Kind::Return && minion != NONE {
            let (_, name) = &mut self.scratch;
            name.clear();
            if entry.flags.has(Flags::UNCONFIRMED) {
                name.push(BUS_ONLY as u8);
            }
            name.extend_from_slice(entry.fun.as_bytes());
            let known = self.last_fun.filter(|&last| self.names.get(last) == name.as_slice());
            let fun = known.map_or_else(|| self.names.number(name), Ok)?;
            self.last_fun = Some(fun);
            self.note_latest(fun, minion, at, seq);
        }
        Ok(())
    }

    /// The number of a minion's name; the newest block has an entry of it.
    fn note_minion(&mut self, minion: &[u8]) -> Result<u32, StoreError> {
        let name = self.names.number(minion)?;
        let block = fits(self.blocks.metas().len(), "an index has over 4 G blocks")?;
        if self.noted.len() <= name as usize {
            self.noted.resize(name as usize + 1, Noted::default());
        }
        let noted = self.noted.get_mut(name as usize).expect("a place for each name");
        if noted.block != block {
            noted.block = block;
            self.minions.push(name);
            *self.minion_ends.last_mut().expect("a block was added") = self.minions_len();
        }
        Ok(name)
    }

    /// The job of an entry, which is appended to its places.
    fn job_of(&mut self, entry: &Entry<'_>, number: u32) -> Result<u32, StoreError> {
        while self.next.len() <= number as usize {
            self.next.push(NONE);
        }
        let slot = slot_of(entry.jid);
        let known = self.last_jids.get(slot).filter(|(jid, _)| jid == entry.jid).map(|(_, at)| *at);
        let at = if let Some(at) = known {
            at
        } else {
            let at = self.find_or_make(entry, number)?;
            if self.last_jids.is_empty() {
                self.last_jids.resize_with(LAST_JIDS, Default::default);
            }
            let (jid, job) = self.last_jids.get_mut(slot).expect("a slot of the last jids");
            jid.clear();
            jid.push_str(entry.jid);
            *job = at;
            at
        };
        let job = self.jobs.get_mut(at as usize).expect("a job of this index");
        if job.count > 0 {
            assert!(number > job.last, "the places of a job ascend");
            *self.next.get_mut(job.last as usize).expect("an entry of this index") = number;
        }
        job.count += 1;
        job.last = number;
        Ok(at)
    }

    fn find_or_make(&mut self, entry: &Entry<'_>, number: u32) -> Result<u32, StoreError> {
        let key = JidKey::of(entry.jid);
        let hash = hash(&key.0.to_le_bytes());
        if let Some(at) = self.find_hashed(key, hash) {
            return Ok(at);
        }
        let at = fits(self.jobs.len(), "an index has over 4 G jobs")?;
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

    /// The jobs that came after the last sorted stretch, sorted by key.
    fn unsorted(&self) -> Vec<u32> {
        let range = self.sorted.len()..self.jobs.len();
        let mut jobs: Vec<u32> = range.filter_map(|at| u32::try_from(at).ok()).collect();
        jobs.sort_by_key(|&at| self.key_of(at));
        jobs
    }

    fn note_latest(&mut self, fun: u32, minion: u32, job: u32, seq: SeqNo) {
        // Mostly a minion runs the function that it ran before.
        let noted =
            self.noted.get(minion as usize).filter(|noted| noted.fun == fun + 1).map(|noted| noted.latest);
        if let Some(at) = noted {
            self.renew_latest(at, job, seq);
            return;
        }
        let pair = u64::from(fun) << 32 | u64::from(minion);
        let hash = hash(&pair.to_le_bytes());
        let is = |at: u32| self.latest.get(at as usize).is_some_and(|l| l.fun == fun && l.minion == minion);
        let known = self.latest_table.find(hash, is);
        let next = u32::try_from(self.latest.len()).expect("an entry has one, and the entries were counted");
        if let Some(at) = known {
            self.renew_latest(at, job, seq);
        } else {
            self.latest_table.insert(hash, next);
            self.latest.push(MemLatest { fun, minion, job, seq });
        }
        let noted = self.noted.get_mut(minion as usize).expect("a place for each minion");
        (noted.fun, noted.latest) = (fun + 1, known.unwrap_or(next));
    }

    /// Another return of the function from the minion; it counts unless its job is older.
    fn renew_latest(&mut self, at: u32, job: u32, seq: SeqNo) {
        let newness = |job: u32, seq| self.key_of(job).map(|key| newness(key, seq));
        let is_newer =
            |known: &MemLatest| known.job == job || newness(job, seq) > newness(known.job, known.seq);
        if self.latest.get(at as usize).is_some_and(is_newer)
            && let Some(latest) = self.latest.get_mut(at as usize)
        {
            (latest.job, latest.seq) = (job, seq);
        }
    }

    /// The blocks in order.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Bytes that the entries of a block brought along.
    pub fn raw_bytes_of(&self, block: usize) -> usize {
        self.raws.get(block).map_or(0, |&raw| raw as usize)
    }

    /// The shapes of its tags.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// The places of a job's entries, in order.
    pub fn places(&self, key: JidKey) -> Vec<Place> {
        let job = self.find(key).and_then(|at| self.jobs.get(at as usize));
        let Some(job) = job else { return Vec::new() };
        self.entries(job).filter_map(|entry| self.blocks.place(entry)).collect()
    }

    /// The numbers of a job's entries.
    fn entries(&self, job: &MemJob) -> impl Iterator<Item = u32> {
        let mut at = job.first;
        (0..job.count).map(move |_| {
            let entry = at;
            at = *self.next.get(at as usize).expect("an entry of this index");
            entry
        })
    }

    fn record(&self, at: u32, job: &MemJob) -> Record<'_> {
        let text = |n: u32| if n == NONE { &[][..] } else { self.texts.get(n) };
        let MemJob { first_at, rank, nocache, count, first, .. } = *job;
        let (load, endtime) = (text(job.load), text(job.endtime));
        let seq = |since: u32| self.sums.first_seq.0.saturating_add(u64::from(since));
        let load_seq = if rank > 0 { seq(job.load_seq) } else { 0 };
        let endtime_seq = if job.endtime_seq == NONE { 0 } else { seq(job.endtime_seq) };
        let text = self.free_jid(at);
        Record {
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

    /// The text of a job's jid, if that is not made of time.
    fn free_jid(&self, job: u32) -> &[u8] {
        self.free.get(&job).map_or(&[], |&text| self.texts.get(text))
    }

    /// A job's row.
    pub fn row(&self, key: JidKey) -> Option<JobRow> {
        let at = self.find(key)?;
        self.record(at, self.jobs.get(at as usize)?).row()
    }

    /// Up to `limit` rows of keys below `before`, the latest first.
    pub fn rows_below(&self, before: Option<JidKey>, limit: usize) -> Vec<(JidKey, JobRow)> {
        let fresh = self.unsorted();
        let stretches = self.sorted.chunks(JOBS_SORTED_AT_ONCE).chain([fresh.as_slice()]);
        let mut heap: BinaryHeap<(JidKey, &[u32])> = BinaryHeap::new();
        for stretch in stretches {
            let end = before.map_or(stretch.len(), |before| {
                stretch.partition_point(|&at| self.key_of(at).is_some_and(|key| key < before))
            });
            self.offer(&mut heap, stretch.get(..end).unwrap_or_default());
        }
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some((key, stretch)) = heap.pop()
        {
            let Some((at, rest)) = stretch.split_last() else { continue };
            if let Some(row) = self.jobs.get(*at as usize).and_then(|job| self.record(*at, job).row()) {
                rows.push((key, row));
            }
            self.offer(&mut heap, rest);
        }
        rows
    }

    fn offer<'a>(&self, heap: &mut BinaryHeap<(JidKey, &'a [u32])>, stretch: &'a [u32]) {
        if let Some(key) = stretch.last().and_then(|&at| self.key_of(at)) {
            heap.push((key, stretch));
        }
    }

    /// The last job per function and minion, in the order of their names.
    pub fn latest(&self) -> Vec<LatestRow<'_>> {
        let mut rows: Vec<_> = self.latest.iter().filter_map(|latest| self.latest_row(latest)).collect();
        rows.sort_unstable();
        rows
    }

    /// Per minion the last job of one function.
    pub fn latest_of(&self, fun: &str) -> Vec<LatestRow<'_>> {
        let Some(fun) = self.names.find(fun.as_bytes()) else { return Vec::new() };
        self.latest.iter().filter(|l| l.fun == fun).filter_map(|latest| self.latest_row(latest)).collect()
    }

    fn latest_row(&self, latest: &MemLatest) -> Option<LatestRow<'_>> {
        let job = self.jobs.get(latest.job as usize)?;
        let jid = match job.key().text() {
            Some(text) => text,
            None => String::from_utf8(self.free_jid(latest.job).to_vec()).ok()?,
        };
        let (fun, minion) = (self.names.get(latest.fun), self.names.get(latest.minion));
        Some(LatestRow { fun, minion, seq: latest.seq, jid })
    }

    /// Every block that has an entry of a minion that is `wanted`.
    pub fn blocks_with(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<bool> {
        let names: Vec<bool> = (0..self.names.len()).map(|name| wanted(self.names.get(name))).collect();
        let mut from = 0;
        let has = |end: &u32| {
            let mut minions = self.minions.range(from..*end as usize);
            from = *end as usize;
            minions.any(|&name| names.get(name as usize).copied().unwrap_or(false))
        };
        self.minion_ends.iter().map(has).collect()
    }

    /// Each minion, sorted by name, and its blocks, ascending.
    pub fn minions(&self) -> Vec<(&[u8], Vec<u32>)> {
        let mut blocks: Vec<Vec<u32>> = vec![Vec::new(); self.names.len() as usize];
        let mut from = 0;
        for (block, &end) in (0_u32..).zip(&self.minion_ends) {
            for &name in self.minions.range(from..end as usize) {
                if let Some(list) = blocks.get_mut(name as usize) {
                    list.push(block);
                }
            }
            from = end as usize;
        }
        let named = (0_u32..).zip(blocks).filter(|(_, blocks)| !blocks.is_empty());
        let mut minions: Vec<_> = named.map(|(name, blocks)| (self.names.get(name), blocks)).collect();
        minions.sort_unstable();
        minions
    }

    /// How many jobs have entries in the segment.
    pub fn jobs_len(&self) -> usize {
        self.jobs.len()
    }

    /// All jobs, ascending by key, each with the number of its row's values and its entries.
    pub fn jobs(&self) -> Jobs<'_> {
        let mut order: Vec<u32> = self.sorted.clone();
        order.extend(self.unsorted());
        // Sorted in stretches already, which a merging sort makes use of.
        order.sort_by_key(|&at| self.key_of(at));
        Jobs { index: self, order }
    }

    /// What is known of the segment without opening it.
    pub fn facts(&self, jobs: &Jobs<'_>) -> Facts {
        Facts::new(self.sums, self.register, jobs.order.iter().filter_map(|&at| self.key_of(at)))
    }

    /// Where the newest register of this segment lies in the log.
    pub fn register(&self) -> Option<SeqNo> {
        self.register
    }

    /// Sums over the segment.
    pub fn sums(&self) -> Sums {
        self.sums
    }

    /// Bytes in memory, about.
    pub fn memory(&self) -> usize {
        let numbers = [&self.sorted, &self.minion_ends, &self.raws];
        numbers.iter().map(|list| list.capacity() * 4).sum::<usize>()
            + self.noted.capacity() * size_of::<Noted>()
            + self.next.memory()
            + self.minions.memory()
            + self.blocks.memory()
            + self.shapes.memory()
            + self.jobs.memory()
            + self.latest.memory()
            + self.job_table.memory()
            + self.latest_table.memory()
            + self.texts.memory()
            + self.names.memory()
    }
}

#[cfg(test)]
impl MemIndex {
    /// Bytes in memory by part.
    pub fn memory_words(&self) -> String {
        format!(
            "blocks {} next {} jobs {} table {} texts {} names {} minions {} latest {} + {}",
            self.blocks.memory(),
            self.next.memory(),
            self.jobs.memory(),
            self.job_table.memory(),
            self.texts.memory(),
            self.names.memory(),
            self.minions.memory(),
            self.latest.memory(),
            self.latest_table.memory(),
        )
    }
}

/// The jobs of an index in the order of their keys.
pub struct Jobs<'a> {
    index: &'a MemIndex,
    order: Vec<u32>,
}

impl<'a> Jobs<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The key of one.
    pub fn key(&self, n: usize) -> Option<JidKey> {
        self.index.key_of(*self.order.get(n)?)
    }

    /// A job, the number of its row's values, and its places after the first.
    pub fn get(&self, n: usize) -> Option<(Record<'a>, u32, impl Iterator<Item = u32>)> {
        let index = self.index;
        let at = *self.order.get(n)?;
        let job = index.jobs.get(at as usize)?;
        Some((index.record(at, job), job.load, index.entries(job).skip(1)))
    }
}
