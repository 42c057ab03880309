//! Reads: entries of a job, events backwards from any position, job summaries.
//!
//! Readers share with the appender only the index of the active segment, under a short lock. They
//! query indexes in memory first and the state database second. A segment sealed in between is seen
//! twice, which merging tolerates, but never missed. Every read that misses the cache verifies
//! checksums.

pub(crate) mod allowed;
pub(crate) mod blocks;
pub mod cache;
pub mod consumer;
pub(crate) mod follow;
mod job;
pub mod last_seen;
pub mod pattern;
pub mod returned;
pub mod returns;
mod scan;
pub(crate) mod stored_entry;
mod travel;
mod view;
pub use job::{JobPage, JobPart};
pub use scan::ScanStats;
pub use stored_entry::StoredEntry;
pub use travel::TravellingPart;
#[cfg(test)]
pub(crate) use view::summary;
pub use view::{JobRows, StoreView};

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::class::Classes;
use super::error::StoreError;
use super::index::latest::BUS_ONLY;
use super::index::{EntryPosition, LatestJob, SegmentMetadata, Totals};
use super::segment::Segment;
use crate::index::job_summary::JobSummary;
use crate::read::allowed::AllowedCache;
use crate::read::blocks::BlockReader;
use crate::read::scan::{Backwards, Search};
use crate::segment::catalogue::Catalogue;
use crate::segment::list::Segments;
use crate::segment::with_same_numbers;
use crate::skipped::SkippedNumbers;
use crate::watermark::Watermark;
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::limits::SCAN_BYTES_MAX;
use saltcellar_model::{EventFilter, JidKey, ReadLimits, SeqNo};
use saltcellar_wire::filter::{EntryFilter, TooCostly};

/// Events found by a search backwards.
#[derive(Debug, Default)]
pub struct EventPage {
    /// The latest first.
    pub events: Vec<StoredEntry>,
    /// The search ended here before it had `limit` events, because it had examined
    /// [`SCAN_BYTES_MAX`] bytes of entries that do not match.
    pub next: Option<SeqNo>,
    /// The last event, if any, that the filter could not be evaluated for.
    pub too_costly: Option<(SeqNo, TooCostly)>,
    /// Amounts examined; of the events of a job, which have an index, those that the limits needed.
    pub stats: ScanStats,
}

/// A segment, and the positions of a job's entries in it.
type EntriesIn = (Arc<Segment>, Vec<EntryPosition>);

/// Totals over a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassTotals {
    /// The class's name.
    pub name: Arc<str>,
    /// Number of segments on disk.
    pub segments: usize,
    /// Entries, raw bytes, and bytes of the logs.
    pub totals: Totals,
}

/// Reads the log, with what all readers need.
///
/// A [`Store`](crate::Store) dereferences to it.
#[derive(Debug)]
pub struct LogReader {
    pub(crate) classes: Arc<Classes>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) blocks: Arc<BlockReader>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) watermark: Arc<Watermark>,
    /// What limited readers may find, by block.
    pub(crate) allowed: AllowedCache,
    /// The first part of an event's id.
    pub(crate) public_id: String,
    /// Sequence numbers that were never assigned.
    pub(crate) skipped: Vec<SkippedNumbers>,
    pub(crate) clock: Clock,
}

impl LogReader {
    /// The time, by the clock of the store.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Sequence numbers that were left out after a restore: entries of a lost store may have had them.
    pub fn skipped(&self) -> &[SkippedNumbers] {
        &self.skipped
    }

    /// The durable watermark: all entries below it are on disk and readable.
    pub fn durable(&self) -> SeqNo {
        self.watermark.get()
    }

    /// The positions of a job's entries, by class and segment, ascending. Queries only segments
    /// that may contain the job: a jid contains its time.
    fn job_places(&self, jid: &str) -> Result<Vec<EntriesIn>, StoreError> {
        let key = JidKey::of(jid);
        let mut found = Vec::new();
        for segment in self.segments_that(|metadata| metadata.may_hold(key)) {
            let positions = self.positions_in(&segment, key)?;
            if !positions.is_empty() {
                found.push((segment, positions));
            }
        }
        Ok(found)
    }

    /// The segments that are growing, and those with such metadata.
    fn segments_that(&self, is: impl Fn(&SegmentMetadata) -> bool) -> Vec<Arc<Segment>> {
        let mut segments = self.segments.all();
        segments.retain(|segment| segment.metadata().is_none_or(|metadata| is(&metadata)));
        segments
    }

    fn positions_in(
        &self,
        segment: &Arc<Segment>,
        key: JidKey,
    ) -> Result<Vec<EntryPosition>, StoreError> {
        self.blocks.indexes().query(
            segment,
            |index| index.positions(key),
            |index| index.positions(key),
        )
    }

    /// As [`LogReader::job_places`], without entries that the limits of a search exclude. What it reads for that is the same whether there is
    /// such a job or not.
    fn job_places_for(
        &self,
        jid: &str,
        search: &mut Search<'_>,
    ) -> Result<Vec<EntriesIn>, StoreError> {
        if !search.is_limited() {
            return self.job_places(jid);
        }

        let key = JidKey::of(jid);
        let mut found = Vec::new();
        // Not by `may_hold`, which skips a segment by the other jobs in it: the time must not
        // depend on hidden jobs.
        for segment in self.segments_that(|metadata| metadata.spans(key)) {
            // Before the job is looked up.
            let known = search.learn_all((&self.blocks, &self.allowed), &segment)?;
            let mut positions = self.positions_in(&segment, key)?;
            if let Some(known) = known {
                positions.retain(|position| known.may_allow(*position));
            }
            let of_blocks = positions.chunk_by(|a, b| a.block == b.block);
            search.stats.blocks += of_blocks.count() as u64;
            if !positions.is_empty() {
                found.push((segment, positions));
            }
        }
        Ok(found)
    }

    #[expect(clippy::too_many_arguments, reason = "a search and its bounds")]
    fn job_events_before(
        &self,
        positions: &[EntriesIn],
        jid: &str,
        filter: &EventFilter,
        (select, limits): (&EntryFilter, &ReadLimits),
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let mut found = Vec::new();
        for of_class in positions.chunk_by(|(a, _), (b, _)| a.class == b.class) {
            found.extend(self.class_events_before(
                of_class,
                jid,
                (filter, select, limits),
                before,
                limit,
                bytes_max,
            )?);
        }
        // Each class returned its latest entries, so their union contains the latest overall.
        found.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.seq));

        // The page ends with the event that exceeds the bytes.
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
        positions: &[EntriesIn],
        jid: &str,
        (filter, select, limits): (&EventFilter, &EntryFilter, &ReadLimits),
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for (segment, positions) in positions.iter().rev() {
            for position in positions.iter().rev() {
                // Enough of this class. The caller merges and cuts.
                if found.len() >= limit || bytes > bytes_max {
                    return Ok(found);
                }
                let Some(view) = self.blocks.block(segment, position.block)? else {
                    continue;
                };

                let rows = view.rows();
                let at = usize::from(position.at);

                // From the cheapest test to the most expensive one. The limits come first: no later
                // test may depend on an entry that the reader may not know.
                let passes = at < rows.len()
                    && rows.seq(at) < before
                    && (!limits.is_limited()
                        || limits.allow_event(&rows.tag(at), rows.minion(at), rows.fun(at)))
                    && filter.allows(
                        rows.flags(at),
                        rows.at(at),
                        rows.minion(at),
                        rows.origin(at),
                    )
                    && filter
                        .tag
                        .as_ref()
                        .is_none_or(|glob| glob.matches_bytes(&rows.tag(at)))
                    && rows.jid(at) == jid;
                if passes {
                    let Some(entry) = self.blocks.stored(segment, rows, at) else {
                        continue;
                    };
                    // An event for which the filter takes too long does not match.
                    if select.matches(&entry.as_entry(), &segment.class_name) == Ok(true) {
                        bytes += entry.body.len();
                        found.push(entry);
                    }
                }
            }
        }
        Ok(found)
    }

    /// The summary of a job; `None` if nothing of it is stored.
    pub fn job_row(&self, jid: &str) -> Result<Option<JobSummary>, StoreError> {
        let key = JidKey::of(jid);
        let mut joined: Option<JobSummary> = None;
        for segment in self.segments.all() {
            if segment
                .metadata()
                .is_some_and(|metadata| !metadata.may_hold(key))
            {
                continue;
            }
            // Each segment has a separate summary; the merged summary does not depend on their
            // order.
            if let Some(row) = self.blocks.indexes().query(
                &segment,
                |index| index.row(key),
                |index| index.row(key),
            )? {
                joined = Some(
                    joined
                        .take()
                        .map_or_else(|| row.clone(), |known| known.joined(row.clone())),
                );
            }
        }

        // Keys of jids without a time may collide.
        Ok(joined.filter(|row| row.jid == jid))
    }

    /// Up to `limit` job summaries with keys below `before`, latest first. Fewer means that there
    /// are no more.
    pub fn jobs_before(
        &self,
        before: Option<JidKey>,
        limit: usize,
    ) -> Result<Vec<(JidKey, JobSummary)>, StoreError> {
        let at_once = limit.clamp(1, ROWS_AT_ONCE);
        let mut streams: Vec<Stream> = self.segments.all().into_iter().map(Stream::new).collect();
        // Ordered by an upper bound of each stream's next key.
        let mut heap: BinaryHeap<(JidKey, usize)> = BinaryHeap::new();

        for (n, stream) in streams.iter().enumerate() {
            heap.extend(stream.bound(before).map(|key| (key, n)));
        }

        let mut found: Vec<(JidKey, JobSummary)> = Vec::new();
        while let Some((key, n)) = heap.pop() {
            // A job in several segments appears once for each, in direct succession.
            let same = found.last().is_some_and(|(last, _)| *last == key);
            if found.len() >= limit && !same {
                break;
            }

            let Some(stream) = streams.get_mut(n) else {
                continue;
            };
            // From the rows that were read ahead.
            if let Some((key, row)) = stream.rows.pop() {
                heap.extend(stream.bound(Some(key)).map(|key| (key, n)));
                stream.below = Some(key);
                match found.last_mut() {
                    Some((_, known)) if same => *known = std::mem::take(known).joined(row),
                    _ => found.push((key, row)),
                }
            } else {
                // Read ahead, because each query decodes a page. The bound of a stream that has no
                // row is only an estimate.
                let below = stream.below.or(before);
                stream.rows = self.blocks.indexes().query(
                    &stream.segment,
                    |index| index.rows_below(below, at_once),
                    |index| index.rows_below(below, at_once),
                )?;
                stream.rows.reverse();
                heap.extend(stream.rows.last().map(|(key, _)| (*key, n)));
            }
        }

        Ok(found)
    }

    /// Upper bound of the number of jobs: a job with entries in several segments counts in each.
    pub(crate) fn jobs_at_most(&self) -> u64 {
        let of = |segment: &Arc<Segment>| {
            let in_memory = segment.memory().map(|index| index.jobs_len() as u64);
            in_memory.unwrap_or_else(|| segment.metadata().map_or(0, |metadata| metadata.jobs))
        };
        self.segments.all().iter().map(of).sum()
    }

    /// Per minion, the latest job of a function whose return is known only from a bus: see
    /// [`Flags::UNCONFIRMED`].
    pub fn latest_on_bus_only(&self, fun: &str) -> Result<BTreeMap<String, LatestJob>, StoreError> {
        self.latest_of(&format!("{BUS_ONLY}{fun}"))
    }

    /// Per minion, the latest job of a function, by jid. Returns known only from a bus do not
    /// count.
    pub fn latest_of(&self, fun: &str) -> Result<BTreeMap<String, LatestJob>, StoreError> {
        // Memory first: a segment sealed in between is then seen twice rather than missed.
        let mut fresh = Vec::new();
        for segment in self.segments.all() {
            fresh.extend(
                segment
                    .memory()
                    .into_iter()
                    .flat_map(|index| index.latest_of(fun)),
            );
        }

        let is_stored = self.segments.stored_seqs();

        // The state database may still have rows of segments that were dropped.
        let known = self.catalogue.query(|state| state.latest_of(fun))?;
        let mut latest: BTreeMap<String, LatestJob> = BTreeMap::new();
        for row in known
            .into_iter()
            .filter(|row| is_stored(row.seq))
            .chain(fresh)
        {
            // Not text: only a damaged or forged row.
            let Ok(minion) = String::from_utf8(row.minion.clone()) else {
                continue;
            };
            if latest
                .get(&minion)
                .is_none_or(|known| known.newness() < row.newness())
            {
                latest.insert(minion, row);
            }
        }
        Ok(latest)
    }

    /// All minions with a return, sorted; with `confirmed_only`, without those known only from a
    /// bus.
    pub fn minions(&self, confirmed_only: bool) -> Result<Vec<String>, StoreError> {
        let rows = self.latest_jobs(&|_, _| true)?.into_iter();
        let counts = |is_bus_only: bool| !(confirmed_only && is_bus_only);
        let mut minions: Vec<_> = rows
            .filter(|(_, is_bus_only)| counts(*is_bus_only))
            .map(|(row, _)| row.minion)
            .collect();
        minions.sort_unstable();
        minions.dedup();

        Ok(minions
            .into_iter()
            .filter_map(|minion| String::from_utf8(minion).ok())
            .collect())
    }

    /// The last saved register of Thorium.
    pub fn register(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.last_register()?.map(|(_, body)| body))
    }

    /// The time of the last saved register of Thorium.
    pub fn registered_at(&self) -> Result<Option<Micros>, StoreError> {
        Ok(self.last_register()?.map(|(at, _)| at))
    }

    fn last_register(&self) -> Result<Option<(Micros, Vec<u8>)>, StoreError> {
        with_same_numbers(|| self.newest_register())
    }

    fn newest_register(&self) -> Result<Option<(Micros, Vec<u8>)>, StoreError> {
        let segments = self.segments.all();
        let newest = segments
            .iter()
            .filter_map(|segment| Some((segment.register()?, segment)))
            .max_by_key(|(seq, _)| *seq);
        let Some((seq, segment)) = newest else {
            return Ok(None);
        };
        let block = self.blocks.indexes().ready(segment)?.blocks().block_of(seq);
        let Some(block) = block else { return Ok(None) };
        let Some(view) = self.blocks.block(segment, block)? else {
            return Ok(None);
        };

        let rows = view.rows();
        let Some(at) = (0..rows.len()).find(|&at| rows.seq(at) == seq) else {
            return Ok(None);
        };
        let body = self.blocks.body(segment, rows, at);
        Ok(body.map(|body| (rows.at(at), body.to_vec())))
    }

    /// Events before `before` that pass the filter, latest first, up to `limit` events or
    /// `bytes_max` bytes of tags and bodies; the event that exceeds the bytes is the last one.
    pub fn events_before(
        &self,
        filter: &EventFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let page = self.search_events(filter, &EntryFilter::default(), before, limit, bytes_max)?;
        Ok(page.events)
    }

    /// Same as [`LogReader::events_before`], for events that also pass `select`.
    pub fn search_events(
        &self,
        filter: &EventFilter,
        select: &EntryFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EventPage, StoreError> {
        let limits = ReadLimits::default();
        self.search_allowed(filter, (select, &limits), before, limit, bytes_max)
    }

    /// As [`LogReader::search_events`], for reactions that `accepts` them by their bodies, which no index
    /// has. The filter names no job.
    pub fn search_reactions(
        &self,
        filter: &EventFilter,
        accepts: &dyn Fn(&StoredEntry) -> bool,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EventPage, StoreError> {
        let (all, limits) = (EntryFilter::default(), ReadLimits::default());
        let filter = EventFilter {
            reactions: true,
            jid: None,
            ..filter.clone()
        };

        with_same_numbers(|| {
            self.page_of(&filter, (&all, &limits), accepts, before, limit, bytes_max)
        })
    }

    /// As [`LogReader::search_events`], as if other entries than those that `limits` allow did not
    /// exist, except in the statistics.
    pub(crate) fn search_allowed(
        &self,
        filter: &EventFilter,
        (select, limits): (&EntryFilter, &ReadLimits),
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EventPage, StoreError> {
        let allowed = (select, limits);
        with_same_numbers(|| self.page_of(filter, allowed, &|_| true, before, limit, bytes_max))
    }

    /// As [`LogReader::search_allowed`], without events that `accepts` rejects, unless the filter names a
    /// job. The numbers of blocks may have changed meanwhile.
    fn page_of(
        &self,
        filter: &EventFilter,
        (select, limits): (&EntryFilter, &ReadLimits),
        accepts: &dyn Fn(&StoredEntry) -> bool,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EventPage, StoreError> {
        let mut page = EventPage::default();

        // A filter by fields can also narrow the search by columns.
        let narrowed = select.narrowed(filter);
        // Even the duration of a search must not show the reader whether there is such a minion.
        if narrowed
            .only_minion()
            .is_some_and(|minion| !limits.allow_minion(&minion))
        {
            return Ok(page);
        }

        let mut search = Search::new(&narrowed, select, limits, before);

        // A job has an index, so its events are not searched for.
        if let Some(jid) = &filter.jid {
            let places = self.job_places_for(jid, &mut search)?;
            let select = (select, limits);
            page.events =
                self.job_events_before(&places, jid, filter, select, before, limit, bytes_max)?;
            page.stats = search.stats;
            return Ok(page);
        }

        let mut walks: Vec<Backwards<'_>> = self
            .classes
            .all()
            .map(|class| Backwards::new(self.segments.of(class), &self.blocks, &self.allowed))
            .collect();

        let (mut bytes, mut others) = (0, 0);
        while page.events.len() < limit && bytes <= bytes_max {
            page.stats = search.stats;
            // The reader gets what was found, and where to continue.
            if others > SCAN_BYTES_MAX {
                return Ok(page);
            }

            // Merge: a class without a match is examined as far back as the latest match of the
            // other classes.
            let latest = walks.iter().filter_map(Backwards::next).max();
            let behind = walks.iter_mut().filter(|walk| walk.unexamined() > latest);
            if let Some(walk) = behind.max_by_key(|walk| walk.unexamined()) {
                walk.step(&mut search)?;
                continue;
            }

            let Some(walk) = walks
                .iter_mut()
                .find(|walk| latest.is_some() && walk.next() == latest)
            else {
                break;
            };
            // The block has become unreadable.
            let Some((entry, class_name)) = walk.take()? else {
                continue;
            };

            search.stats.entries += 1;
            let len = entry.body.len() + entry.tag.len();
            let passes = match select.matches(&entry.as_entry(), &class_name) {
                Ok(passes) => passes && accepts(&entry),
                Err(error) => {
                    // Reported once, for the last such event. The search continues.
                    page.too_costly = Some((entry.seq, error));
                    false
                }
            };

            if passes {
                bytes += len;
                page.events.push(entry);
            } else {
                others += len;
                page.next = Some(entry.seq);
            }
        }

        // The search has ended for another reason.
        page.next = None;
        page.stats = search.stats;
        Ok(page)
    }

    /// Totals per class.
    pub fn classes(&self) -> Result<Vec<ClassTotals>, StoreError> {
        let of_class = |class| {
            let segments = self.segments.of(class);
            let parts: Vec<Totals> = segments
                .iter()
                .map(|segment| segment.totals())
                .filter(|totals| totals.entries > 0)
                .collect();
            let totals = parts
                .iter()
                .copied()
                .reduce(Totals::joined)
                .unwrap_or_default();
            ClassTotals {
                name: self.classes.name(class),
                segments: segments.len(),
                totals,
            }
        };

        Ok(self.classes.all().map(of_class).collect())
    }
}

/// Rows read from a segment at a time: bounds what a long list reads ahead in many segments.
const ROWS_AT_ONCE: usize = 128;

/// The job summaries of one segment, by descending key.
struct Stream {
    segment: Arc<Segment>,
    /// Rows read ahead, in ascending order.
    rows: Vec<(JidKey, JobSummary)>,
    /// All rows from this key on have been returned.
    below: Option<JidKey>,
}

impl Stream {
    fn new(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            rows: Vec::new(),
            below: None,
        }
    }

    /// Upper bound of the keys below `below`.
    fn bound(&self, below: Option<JidKey>) -> Option<JidKey> {
        match (self.rows.last(), self.segment.metadata()) {
            (Some((key, _)), _) => Some(*key),
            (None, Some(metadata)) => metadata.newest_below(below),
            (None, None) => Some(below.unwrap_or(JidKey(u128::MAX))),
        }
    }
}
