//! Reading: entries of a job, events backwards from any point, rows of jobs.
//!
//! Readers share nothing with the appender but the index of the growing segment, locked for moments. They ask
//! the indexes in memory first and the state database afterwards: a segment that is sealed in between is then
//! seen twice, which joining does not mind, and never not at all. Bytes
//! come out of files and are checked again on every read that does not find them in the cache.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::block::{BlockView, Rows};
use super::class::Class;
use super::error::StoreError;
use super::index::{Latest, Place, Sums};
use super::row::JobRow;
use super::segment::{Index, Ready, Segment, memory_sums, with_memory};
use super::{Shared, Store};
use crate::clock::Micros;
use crate::limits::INDEXES_OPEN;
use crate::model::{EventFilter, Flags, JidKey, Kind, SeqNo, Source};

/// An entry read back, with bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its place in the log.
    pub seq: SeqNo,
    /// What it is.
    pub kind: Kind,
    /// The door it came by.
    pub source: Source,
    /// Small facts.
    pub flags: Flags,
    /// When it arrived.
    pub at: Micros,
    /// Its tag; empty for what is no event.
    pub tag: Vec<u8>,
    /// Job id; empty for none.
    pub jid: String,
    /// Minion id; empty for none.
    pub minion: String,
    /// Function; empty for none.
    pub fun: String,
    /// A return's exit code.
    pub retcode: i64,
    /// Its body, byte for byte as received.
    pub body: Vec<u8>,
}

/// A segment, and the places of a job's entries in it.
type PlacesIn = (Arc<Segment>, Vec<Place>);

/// Sums over a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSums {
    /// The class's name.
    pub name: Arc<str>,
    /// Segments on disk.
    pub segments: usize,
    /// Entries, raw bytes, and bytes of the logs.
    pub sums: Sums,
}

impl Store {
    /// Everything before this number is on disk and readable.
    pub fn durable(&self) -> SeqNo {
        SeqNo(self.0.durable.load(Ordering::Acquire))
    }

    /// All entries of a job, in the order of the log.
    pub fn job_entries(&self, jid: &str) -> Result<Vec<StoredEntry>, StoreError> {
        self.job_entries_with(jid, |_| true)
    }

    /// All entries of a job, in the order of the log, with the bodies of those kinds that are `wanted`; the others'
    /// are left empty.
    pub fn job_entries_with(
        &self,
        jid: &str,
        wanted: impl Fn(Kind) -> bool,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let mut found = Vec::new();
        for (segment, places) in self.job_places(jid)? {
            for place in places {
                let Some(view) = self.0.block(&segment, place.block)? else { continue };
                let (rows, at) = (view.rows(), usize::from(place.at));
                if at < rows.len() && rows.jid(at) == jid {
                    found.push(stored(&segment, rows, at, wanted(rows.kind(at)))?);
                }
            }
        }
        found.sort_by_key(|entry| entry.seq);
        Ok(found)
    }

    /// Where a job's entries lie: class after class, in each by segment, ascending.
    fn job_places(&self, jid: &str) -> Result<Vec<PlacesIn>, StoreError> {
        let key = JidKey::of(jid);
        let segments = self.0.all_segments();
        let in_memory: Vec<Option<Vec<Place>>> =
            segments.iter().map(|segment| with_memory(segment, |index| index.places(key).to_vec())).collect();
        let row = self.0.state.job(key)?;
        let mut found = Vec::new();
        for (segment, places) in segments.into_iter().zip(in_memory) {
            let places = match places {
                Some(places) => places,
                None if row.as_ref().is_some_and(|row| row.segments.contains(&segment.first_seq.0)) => {
                    self.0.ready(&segment)?.places(key)?
                }
                None => continue,
            };
            found.push((segment, places));
        }
        Ok(found)
    }

    fn job_events_before(
        &self,
        jid: &str,
        filter: &EventFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let mut found = Vec::new();
        let places = self.job_places(jid)?;
        for of_class in places.chunk_by(|(a, _), (b, _)| a.class == b.class) {
            found.extend(self.class_events_before(of_class, jid, filter, before, limit, bytes_max)?);
        }
        // Each class gave its latest; together they hold the latest of all, up to the same bounds.
        found.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.seq));
        let mut bytes = 0;
        let within = |entry: &StoredEntry| {
            let room = bytes <= bytes_max;
            bytes += entry.body.len();
            room
        };
        Ok(found.into_iter().take(limit).take_while(within).collect())
    }

    fn class_events_before(
        &self,
        places: &[PlacesIn],
        jid: &str,
        filter: &EventFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for (segment, places) in places.iter().rev() {
            for place in places.iter().rev() {
                if found.len() >= limit || bytes > bytes_max {
                    return Ok(found);
                }
                let Some(view) = self.0.block(segment, place.block)? else { continue };
                let (rows, at) = (view.rows(), usize::from(place.at));
                let passes = at < rows.len()
                    && rows.seq(at) < before
                    && filter.allows(rows.flags(at), rows.at(at), rows.minion(at))
                    && filter.tag.as_ref().is_none_or(|glob| glob.matches_bytes(&rows.tag(at)))
                    && rows.jid(at) == jid;
                if passes {
                    let entry = stored(segment, rows, at, true)?;
                    bytes += entry.body.len();
                    found.push(entry);
                }
            }
        }
        Ok(found)
    }

    /// A job's row, joined over all segments.
    pub fn job_row(&self, jid: &str) -> Result<Option<JobRow>, StoreError> {
        let key = JidKey::of(jid);
        let segments = self.0.all_segments();
        let fresh: Vec<JobRow> = segments
            .iter()
            .filter_map(|segment| with_memory(segment, |index| index.rows().get(&key).cloned())?)
            .collect();
        let joined = self.0.state.job(key)?.into_iter().chain(fresh).reduce(JobRow::joined);
        Ok(joined.filter(|row| row.jid == jid))
    }

    /// Up to `limit` rows of jobs, the latest first, of keys below `before`. Fewer mean that there are no more.
    pub fn jobs_before(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobRow)>, StoreError> {
        let mut fresh = Vec::new();
        for segment in self.0.all_segments() {
            with_memory(&segment, |index| {
                let newest = match before {
                    Some(key) => index.rows().range(..key),
                    None => index.rows().range(..),
                };
                fresh.extend(newest.rev().take(limit).map(|(key, row)| (*key, row.clone())));
            });
        }
        let mut rows: BTreeMap<JidKey, JobRow> = BTreeMap::new();
        for (key, row) in self.0.state.jobs_before(before, limit)?.into_iter().chain(fresh) {
            let row = match rows.remove(&key) {
                Some(known) => known.joined(row),
                None => row,
            };
            rows.insert(key, row);
        }
        Ok(rows.into_iter().rev().take(limit).collect())
    }

    /// Per minion, the last job that ran a function.
    pub fn latest_of(&self, fun: &str) -> Result<BTreeMap<String, Latest>, StoreError> {
        let mut fresh = Vec::new();
        for segment in self.0.all_segments() {
            with_memory(&segment, |index| {
                let of_fun = index.latest().get(fun).into_iter().flatten();
                fresh.extend(of_fun.map(|(minion, latest)| (minion.clone(), latest.clone())));
            });
        }
        let mut latest = self.0.state.latest_of(fun)?;
        for (minion, found) in fresh {
            if latest.get(&minion).is_none_or(|known| known.seq < found.seq) {
                latest.insert(minion, found);
            }
        }
        Ok(latest)
    }

    /// Every minion that has returned a job, sorted.
    pub fn minions(&self) -> Result<Vec<String>, StoreError> {
        let mut minions = Vec::new();
        for segment in self.0.all_segments() {
            with_memory(&segment, |index| {
                minions.extend(index.latest().values().flat_map(|minions| minions.keys()).cloned());
            });
        }
        minions.extend(self.0.state.minions()?);
        minions.sort_unstable();
        minions.dedup();
        Ok(minions)
    }

    /// Thorium's register as saved last.
    pub fn register(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let segments = self.0.segments(Class::JOBS);
        let fresh = segments.iter().filter_map(|segment| {
            with_memory(segment, super::index::MemIndex::register)
                .flatten()
                .map(|place| (segment.first_seq, place))
        });
        let fresh: Vec<_> = fresh.collect();
        let newest = fresh.into_iter().chain(self.0.state.register()?).max();
        let Some((first_seq, place)) = newest else { return Ok(None) };
        let Some(segment) = segments.iter().find(|s| s.first_seq == first_seq) else { return Ok(None) };
        let Some(view) = self.0.block(segment, place.block)? else { return Ok(None) };
        stored(segment, view.rows(), usize::from(place.at), true).map(|entry| Some(entry.body))
    }

    /// Events before `before`, the latest first, until `limit` have passed the filter or their bodies have
    /// `bytes_max` bytes together; the one that exceeds them is the last.
    pub fn events_before(
        &self,
        filter: &EventFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        if let Some(jid) = &filter.jid {
            return self.job_events_before(jid, filter, before, limit, bytes_max);
        }
        let mut walks: Vec<Backwards<'_>> =
            self.0.classes.all().map(|class| Backwards::new(&self.0, class)).collect();
        let mut found = Vec::new();
        let mut bytes = 0;
        while found.len() < limit && bytes <= bytes_max {
            // Merge: the walk whose next event is the latest goes first.
            let mut best: Option<(SeqNo, usize)> = None;
            for (n, walk) in walks.iter_mut().enumerate() {
                if let Some(seq) = walk.peek(filter, before)?
                    && best.is_none_or(|(known, _)| known < seq)
                {
                    best = Some((seq, n));
                }
            }
            let Some(walk) = best.and_then(|(_, n)| walks.get_mut(n)) else { break };
            if let Some(entry) = walk.take()? {
                bytes += entry.body.len() + entry.tag.len();
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Sums per class.
    pub fn classes(&self) -> Result<Vec<ClassSums>, StoreError> {
        self.0
            .classes
            .all()
            .map(|class| {
                let segments = self.0.segments(class);
                let mut sums = Sums::default();
                for segment in &segments {
                    let in_memory = memory_sums(&segment.index());
                    let part = match in_memory {
                        Some(part) => part,
                        None => self.0.state.sums(segment)?.unwrap_or_default(),
                    };
                    sums.entries += part.entries;
                    sums.raw_bytes += part.raw_bytes;
                    sums.log_bytes += part.log_bytes;
                    sums.last_seq = sums.last_seq.max(part.last_seq);
                }
                Ok(ClassSums { name: self.0.classes.name(class), segments: segments.len(), sums })
            })
            .collect()
    }
}

/// Copies an entry out of its block, with or without its body.
fn stored(segment: &Segment, rows: Rows<'_>, at: usize, with_body: bool) -> Result<StoredEntry, StoreError> {
    let body = if with_body { rows.body(at) } else { Ok(&[][..]) };
    let body = body.map_err(|what| StoreError::Corrupt {
        path: segment.log().path().to_owned(),
        offset: 0,
        what: format!("entry {}: {what}", rows.seq(at)),
    })?;
    Ok(StoredEntry {
        seq: rows.seq(at),
        kind: rows.kind(at),
        source: rows.source(at),
        flags: rows.flags(at),
        at: rows.at(at),
        tag: rows.tag(at),
        jid: rows.jid(at),
        minion: rows.minion(at).to_owned(),
        fun: rows.fun(at).to_owned(),
        retcode: rows.retcode(at),
        body: body.to_vec(),
    })
}

impl Shared {
    /// A segment's index, ready to be asked. A damaged one is made again from the log.
    pub(super) fn ready<'a>(&self, segment: &'a Arc<Segment>) -> Result<Ready<'a>, StoreError> {
        loop {
            match segment.index() {
                guard if matches!(*guard, Index::Memory(_)) => return Ok(Ready::Memory(guard)),
                guard => {
                    if let Index::Open(index) = &*guard {
                        return Ok(Ready::Sled(index.clone()));
                    }
                }
            }
            let (fresh, damage) = segment.open_index()?;
            if let Some(error) = damage {
                tracing::warn!(dir = %segment.dir().display(), %error, "an index was damaged; it is made again from the log");
                self.metrics.indexes_rebuilt.add(1);
            }
            let mut slot = segment.index_mut();
            if matches!(*slot, Index::Closed) && !matches!(fresh, Index::Closed) {
                *slot = fresh;
                drop(slot);
                self.note_open(segment);
            }
        }
    }

    /// Remembers that a segment's index is open, and closes the one opened longest ago if they are too many.
    fn note_open(&self, segment: &Arc<Segment>) {
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        open.push_back(segment.clone());
        if open.len() > INDEXES_OPEN
            && let Some(oldest) = open.pop_front()
        {
            let mut index = oldest.index_mut();
            if matches!(*index, Index::Open(_)) {
                *index = Index::Closed;
            }
        }
    }

    /// A block by its number; `None` if there is no such block, or it is damaged.
    pub(super) fn block(
        &self,
        segment: &Arc<Segment>,
        number: u32,
    ) -> Result<Option<Arc<BlockView>>, StoreError> {
        let id = (segment.class, segment.first_seq, number);
        if let Some(view) = self.cache.get(id) {
            return Ok(Some(view));
        }
        let meta = self.ready(segment)?.blocks().get(number as usize).copied();
        let Some(meta) = meta else { return Ok(None) };
        match segment.log().block(&meta) {
            Ok(view) => {
                let view = Arc::new(view);
                self.cache.put(id, view.clone());
                Ok(Some(view))
            }
            Err(error @ StoreError::Corrupt { .. }) => {
                self.metrics.frames_damaged.add(1);
                tracing::error!(%error, "a damaged block is left out of an answer");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A walk over a class from its end to its beginning.
struct Backwards<'a> {
    shared: &'a Shared,
    segments: Vec<Arc<Segment>>,
    current: Option<(Arc<Segment>, u32)>,
    block: Option<(Arc<Segment>, Arc<BlockView>)>,
    /// Entries of `block` that pass, the latest last: their numbers and their places in it.
    passing: Vec<(SeqNo, usize)>,
}

impl<'a> Backwards<'a> {
    fn new(shared: &'a Shared, class: Class) -> Self {
        Self { shared, segments: shared.segments(class), current: None, block: None, passing: Vec::new() }
    }

    /// The number of the next event that passes.
    fn peek(&mut self, filter: &EventFilter, before: SeqNo) -> Result<Option<SeqNo>, StoreError> {
        loop {
            if let Some((seq, _)) = self.passing.last() {
                return Ok(Some(*seq));
            }
            let (segment, number) = if let Some((segment, after)) = self.current.take() {
                match after.checked_sub(1) {
                    Some(number) => (segment, number),
                    None => continue,
                }
            } else {
                let Some(segment) = self.segments.pop() else { return Ok(None) };
                let blocks = self.shared.ready(&segment)?.blocks().len();
                self.current = Some((segment, u32::try_from(blocks).unwrap_or(u32::MAX)));
                continue;
            };
            self.current = Some((segment.clone(), number));
            let meta = self.shared.ready(&segment)?.blocks().get(number as usize).copied();
            let worth = meta.is_some_and(|m| m.first_seq < before && filter.allows_span(m.at_min, m.at_max));
            if !worth {
                continue;
            }
            if let Some(view) = self.shared.block(&segment, number)? {
                self.passing = passing(view.rows(), view.len(), filter, before);
                self.block = Some((segment, view));
            }
        }
    }

    /// The event that [`Backwards::peek`] found.
    fn take(&mut self) -> Result<Option<StoredEntry>, StoreError> {
        let (Some((segment, view)), Some((_, at))) = (&self.block, self.passing.pop()) else {
            return Ok(None);
        };
        stored(segment, view.rows(), at, true).map(Some)
    }
}

/// The entries of a block that pass. A tag's shape that needs no filling in is matched once for the block.
fn passing(rows: Rows<'_>, len: usize, filter: &EventFilter, before: SeqNo) -> Vec<(SeqNo, usize)> {
    if filter.minion.as_deref().is_some_and(|minion| !rows.knows(minion)) {
        return Vec::new();
    }
    let mut shapes: HashMap<usize, bool> = HashMap::new();
    (0..len)
        .filter(|&at| rows.seq(at) < before && filter.allows(rows.flags(at), rows.at(at), rows.minion(at)))
        .filter(|&at| {
            let Some(glob) = &filter.tag else { return true };
            match rows.shape(at) {
                (shape, Some(tag)) => *shapes.entry(shape).or_insert_with(|| glob.matches_bytes(tag)),
                (_, None) => glob.matches_bytes(&rows.tag(at)),
            }
        })
        .map(|at| (rows.seq(at), at))
        .collect()
}
