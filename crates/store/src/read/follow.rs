//! Follows the log: events in order, from any position on, as they become durable.
//!
//! A follower reads like any other reader, on its own thread, and delays no writer: unread events
//! are on disk. It keeps only its position between two reads, so segments may be sealed, rewritten
//! and dropped meanwhile.
//!
//! # Invariant
//!
//! Each stored event that retention has not dropped is delivered once, in the order of sequence
//! numbers across all classes.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::log::block::{BlockView, Rows};
use crate::read::LogReader;
use crate::read::blocks::BlockReader;
use crate::read::stored_entry::{StoredEntry, without_body};
use crate::segment::{Segment, with_same_numbers};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{HIDDEN_ENTRY_COST, SCAN_BYTES_MAX};
use saltcellar_model::{Entry, Flags, Kind, ReadLimits, SeqNo};
use saltcellar_wire::filter::{Entries, EntryFilter, TooCostly};

/// Events that a filter selected.
#[derive(Debug, Default)]
pub struct Selected {
    /// In the order of their sequence numbers.
    pub events: Vec<StoredEntry>,
    /// The class of each of them.
    pub classes: Vec<Arc<str>>,
    /// The position to continue from.
    pub next: SeqNo,
    /// Whether all durable entries were read.
    pub is_end: bool,
    /// The last event, if any, that the filter could not be evaluated for.
    pub too_costly: Option<(SeqNo, TooCostly)>,
    /// What the filter might select and cannot be read, ascending.
    pub(crate) unread: Vec<Unread>,
}

/// Entries of a block that cannot be read. The last one ends before the position to continue from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) class: Arc<str>,
    pub(crate) first: SeqNo,
    /// The number of one of them.
    pub(crate) last: SeqNo,
    /// Their number at most.
    pub(crate) entries: u64,
}

/// A number of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// The last one that was counted.
    pub last: Option<SeqNo>,
    /// The position to continue from.
    pub next: SeqNo,
    /// The last event, if any, that the filter could not be evaluated for.
    pub too_costly: Option<(SeqNo, TooCostly)>,
}

/// An event as delivered to a follower.
#[derive(Debug, Clone, Copy)]
pub struct Followed<'a> {
    /// Its sequence number.
    pub seq: SeqNo,
    /// The event, with its body as received.
    pub(crate) entry: Entry<'a>,
}

impl<'a> Deref for Followed<'a> {
    type Target = Entry<'a>;

    fn deref(&self) -> &Entry<'a> {
        &self.entry
    }
}

/// What a walk along the log does with what it finds.
pub(super) trait Visit {
    /// Takes an entry; returns how many bytes it counts of those that a walk may examine.
    fn row(&mut self, segment: &Arc<Segment>, rows: Rows<'_>, row: usize) -> usize;

    /// Takes all entries of a block, if no entry of another block lies between them. `None` if each
    /// is to be taken by itself.
    fn block(&mut self, _: Rows<'_>) -> Option<usize> {
        None
    }
}

impl<F: FnMut(&Arc<Segment>, Rows<'_>, usize) -> usize> Visit for F {
    fn row(&mut self, segment: &Arc<Segment>, rows: Rows<'_>, row: usize) -> usize {
        self(segment, rows, row)
    }
}

impl LogReader {
    /// Whether a follower waits for new entries, or did so recently.
    pub fn is_followed(&self) -> bool {
        self.watermark.is_followed()
    }

    /// As [`LogReader::wait_for`], for a task and without a timeout. Dropping it ends the wait.
    pub async fn durable_after(&self, seq: SeqNo) {
        self.watermark.wait_in_task(seq).await;
    }

    /// The events on a bus from `from` on and before `upto` that the filter selects: until there
    /// are `events_max` events or `bytes_max` bytes of them, and at most as far as one read
    /// examines ([`SCAN_BYTES_MAX`]).
    pub(crate) fn select(
        &self,
        filter: &EntryFilter,
        from: SeqNo,
        upto: SeqNo,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Selected, StoreError> {
        let limits = ReadLimits::default();
        self.select_allowed((filter, &limits), from, upto, events_max, bytes_max)
    }

    /// As [`LogReader::select`], as if other entries than those that `limits` allow did not exist,
    /// except in the amount that one read examines.
    pub(super) fn select_allowed(
        &self,
        filter: (&EntryFilter, &ReadLimits),
        from: SeqNo,
        upto: SeqNo,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Selected, StoreError> {
        let mut found = Selected::default();
        let mut bytes = 0;
        let mut unread = Vec::new();

        // Nothing that could still be lost is delivered.
        let upto = upto.min(self.durable());
        (found.next, found.too_costly) = self.walk_selected(
            filter,
            from..upto,
            &mut unread,
            |segment, rows, row, body| {
                let entry = StoredEntry {
                    body: body.to_vec(),
                    unread: 0,
                    ..without_body(rows, row, rows.jid(row), true)
                };
                let len = entry.tag.len() + entry.body.len();
                found.events.push(entry);
                found.classes.push(segment.class_name.clone());

                bytes += len;
                // The largest cost ends the walk.
                if found.events.len() >= events_max || bytes >= bytes_max {
                    SCAN_BYTES_MAX
                } else {
                    len
                }
            },
        )?;

        found.unread = unread;
        found.is_end = found.next >= upto;
        Ok(found)
    }

    /// Counts the events that [`LogReader::select_allowed`] returns; at most as far as one read
    /// examines.
    pub(super) fn count_allowed(
        &self,
        filter: (&EntryFilter, &ReadLimits),
        from: SeqNo,
        upto: SeqNo,
    ) -> Result<Counted, StoreError> {
        let mut count = 0;
        let mut last = None;
        let (next, too_costly) = self.walk_selected(
            filter,
            from..upto.min(self.durable()),
            &mut Vec::new(),
            |_, rows, row, body| {
                count += 1;
                last = Some(rows.seq(row));
                body.len()
            },
        )?;

        Ok(Counted {
            count,
            last,
            next,
            too_costly,
        })
    }

    /// Calls `take` with the events on a bus that the filter selects, and their bodies. Also
    /// returns the event, if any, that the filter could not be evaluated for; it ends the walk.
    /// `unread` gets what the filter might select and cannot be read.
    fn walk_selected(
        &self,
        (filter, limits): (&EntryFilter, &ReadLimits),
        range: Range<SeqNo>,
        unread: &mut Vec<Unread>,
        mut take: impl FnMut(&Segment, Rows<'_>, usize, &[u8]) -> usize,
    ) -> Result<(SeqNo, Option<(SeqNo, TooCostly)>), StoreError> {
        let mut too_costly = None;
        // All entries, because each counts as read.
        let any = |_: Kind, _: Flags| true;

        // Looked up once: most readers have no limits.
        let is_limited = limits.is_limited();
        let has_tags = limits.tags.is_some();
        let mut without_body = Vec::new();
        let next = self.walk_noting(
            range,
            (SCAN_BYTES_MAX, Keep::No),
            &any,
            unread,
            &mut |segment: &Arc<Segment>, rows: Rows<'_>, row: usize| {
                // Before anything else: no property of an entry that the reader may not know has an
                // effect.
                if is_limited
                    && !(rows.flags(row).has(Flags::ON_BUS)
                        && limits.allow_minion(rows.minion(row))
                        && limits.allow_fun(rows.fun(row))
                        && (!has_tags || limits.allow_tag(&rows.tag(row))))
                {
                    return HIDDEN_ENTRY_COST;
                }

                let Some(body) = self.blocks.body(segment, rows, row) else {
                    if is_wanted(filter.entries, rows, row) {
                        let seq = rows.seq(row);
                        without_body.push(Unread {
                            class: segment.class_name.clone(),
                            first: seq,
                            last: seq,
                            entries: 1,
                        });
                    }
                    return 0;
                };
                // Counts as read, because a log full of other entries must also end a read.
                if !is_wanted(filter.entries, rows, row) {
                    return body.len();
                }

                // An open filter matches everything, without decoding.
                if !filter.is_open() {
                    let (seq, tag) = (rows.seq(row), rows.tag(row));
                    match filter.matches(
                        &rows.entry(row, &tag, &rows.jid(row), body),
                        &segment.class_name,
                    ) {
                        Ok(false) => return tag.len() + body.len(),
                        Err(error) => {
                            // Evaluating it would take too long. The caller reports it, and
                            // continues behind it.
                            too_costly = Some((seq, error));
                            return SCAN_BYTES_MAX;
                        }
                        Ok(true) => {}
                    }
                }
                take(segment, rows, row, body)
            },
        )?;

        unread.append(&mut without_body);
        unread.retain(|unread| filter.allows_class(&unread.class));
        unread.sort_unstable_by_key(|unread| unread.last);
        Ok((next, too_costly))
    }

    /// The first entry that arrived at or after `at`; the end of the log without one.
    pub(crate) fn first_since(&self, at: Micros) -> Result<SeqNo, StoreError> {
        // Classes are independent: the earliest entry of all of them counts.
        let mut first = self.durable();
        for class in self.classes.all() {
            for segment in self.segments.of(class) {
                let totals = segment.totals();
                // Nothing in it arrived late enough.
                if totals.entries == 0 || totals.at_max < at {
                    continue;
                }
                // Later segments of this class cannot begin earlier than what was found.
                if totals.first_seq >= first {
                    break;
                }

                let found = with_same_numbers(|| self.first_since_in(&segment, at))?;
                if let Some(seq) = found {
                    first = first.min(seq);
                    break;
                }
            }
        }
        Ok(first)
    }

    /// The first readable entry of a segment that arrived at or after `at`.
    fn first_since_in(
        &self,
        segment: &Arc<Segment>,
        at: Micros,
    ) -> Result<Option<SeqNo>, StoreError> {
        // The index is not held while blocks are read.
        let late: Vec<u32> = (0..)
            .zip(self.blocks.indexes().ready(segment)?.blocks().metas())
            .filter_map(|(n, meta)| (meta.at_max >= at).then_some(n))
            .collect();

        // Usually the first of them: only an unreadable one is passed over.
        for block in late {
            let Some(view) = self.blocks.head(segment, block)? else {
                continue;
            };

            let rows = view.rows();
            if let Some(row) = (0..rows.len()).find(|row| rows.at(*row) >= at) {
                return Ok(Some(rows.seq(row)));
            }
        }
        Ok(None)
    }

    /// A position with all entries that arrived before `at` in front of it. Blocks are not divided, so
    /// later entries may also be in front of it.
    pub(crate) fn end_before(&self, at: Micros) -> Result<SeqNo, StoreError> {
        // Classes are independent: the latest entry of all of them counts.
        let mut end = SeqNo::FIRST;
        for class in self.classes.all() {
            for segment in self.segments.of(class).iter().rev() {
                let totals = segment.totals();
                // Nothing in it arrived early enough. Timestamps are in no order, because of
                // imports for example, so an earlier segment may contain such an entry.
                if totals.entries == 0 || totals.at_min >= at {
                    continue;
                }
                // Earlier segments of this class cannot end later than what was found.
                if totals.last_seq < end {
                    break;
                }

                // The index is not held longer.
                let last = self
                    .blocks
                    .indexes()
                    .ready(segment)?
                    .blocks()
                    .metas()
                    .iter()
                    .rev()
                    .find(|meta| meta.at_min < at)
                    .map(|meta| meta.last_seq);
                if let Some(last) = last {
                    end = end.max(last.next());
                    break;
                }
            }
        }
        Ok(end)
    }

    /// Waits until the entry `seq` is durable, at most for `timeout`.
    pub fn wait_for(&self, seq: SeqNo, timeout: Duration) {
        self.wait_for_unless(seq, timeout, || false);
    }

    /// As [`LogReader::wait_for`], until `is_over`: the thread that makes it true calls
    /// [`LogReader::wake_waiting`] afterwards.
    pub fn wait_for_unless(&self, seq: SeqNo, timeout: Duration, is_over: impl Fn() -> bool) {
        self.watermark.wait(seq, timeout, is_over);
    }

    /// Lets all that wait for an entry look whether their wait is over.
    pub fn wake_waiting(&self) {
        self.watermark.wake();
    }

    /// Calls `take` with the entries from `from` on that `wanted` selects, in order, until all
    /// durable entries are delivered or their total size reaches `bytes_max`. Returns the position
    /// to continue from.
    pub fn follow(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        bytes_max: usize,
        take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.follow_range(wanted, from..self.durable(), bytes_max, take)
    }

    /// As [`LogReader::follow`], with the entries of a range only.
    pub fn follow_range(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        range: Range<SeqNo>,
        bytes_max: usize,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.walk(
            range.start,
            range.end.min(self.durable()),
            bytes_max,
            Keep::No,
            &wanted,
            |segment, rows, row| self.deliver(segment, (rows, row), &mut take),
        )
    }

    /// Calls `take` with the first entry from `from` on that `wanted` selects. Caches its block,
    /// because callers usually request nearby entries next.
    pub fn first_entry(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<(), StoreError> {
        let one = |segment: &Arc<Segment>, rows: Rows<'_>, row: usize| {
            self.deliver(segment, (rows, row), &mut take).max(1)
        };
        self.walk(from, self.durable(), 1, Keep::Yes, &wanted, one)
            .map(drop)
    }

    /// Calls `take` with an entry; returns its size in bytes.
    fn deliver(
        &self,
        segment: &Arc<Segment>,
        (rows, row): (Rows<'_>, usize),
        take: &mut impl FnMut(Followed<'_>),
    ) -> usize {
        let Some(body) = self.blocks.body(segment, rows, row) else {
            return 0;
        };

        let (seq, tag) = (rows.seq(row), rows.tag(row));
        take(Followed {
            seq,
            entry: rows.entry(row, &tag, &rows.jid(row), body),
        });
        tag.len() + body.len()
    }

    /// Returns the entries selected by `wanted` from `from` on and before `upto`, in order, until
    /// their total size reaches `bytes_max`; and the position to continue from.
    pub fn entries_from(
        &self,
        from: SeqNo,
        upto: SeqNo,
        bytes_max: usize,
        wanted: impl Fn(Kind, Flags) -> bool,
    ) -> Result<(Vec<StoredEntry>, SeqNo), StoreError> {
        let mut found = Vec::new();
        // As in `select_allowed`.
        let upto = upto.min(self.durable());
        let next = self.walk(
            from,
            upto,
            bytes_max,
            Keep::No,
            &wanted,
            |segment, rows, at| {
                let Some(entry) = self.blocks.stored(segment, rows, at) else {
                    return 0;
                };
                let bytes = entry.tag.len() + entry.body.len();
                found.push(entry);
                bytes
            },
        )?;

        Ok((found, next))
    }

    /// Calls `take` with each row selected by `wanted` from `from` on and before `upto`, in order,
    /// until the sizes that `take` returns reach `bytes_max`.
    fn walk(
        &self,
        from: SeqNo,
        upto: SeqNo,
        bytes_max: usize,
        keep: Keep,
        wanted: &dyn Fn(Kind, Flags) -> bool,
        mut visit: impl FnMut(&Arc<Segment>, Rows<'_>, usize) -> usize,
    ) -> Result<SeqNo, StoreError> {
        let unread = &mut Vec::new();
        self.walk_noting(from..upto, (bytes_max, keep), wanted, unread, &mut visit)
    }

    /// As [`LogReader::walk`] with all entries that one read examines; blocks are also offered as a
    /// whole.
    pub(super) fn visit(
        &self,
        from: SeqNo,
        upto: SeqNo,
        visit: &mut impl Visit,
    ) -> Result<SeqNo, StoreError> {
        let any = |_: Kind, _: Flags| true;
        let unread = &mut Vec::new();
        self.walk_noting(from..upto, (SCAN_BYTES_MAX, Keep::No), &any, unread, visit)
    }

    /// As [`LogReader::walk`]. Adds the blocks that it has passed and could not read to `unread`.
    fn walk_noting(
        &self,
        range: Range<SeqNo>,
        (bytes_max, keep): (usize, Keep),
        wanted: &dyn Fn(Kind, Flags) -> bool,
        unread: &mut Vec<Unread>,
        visit: &mut impl Visit,
    ) -> Result<SeqNo, StoreError> {
        let from = range.start;
        // Nothing is durable behind the position yet.
        if from >= range.end {
            return Ok(from);
        }

        let of_class =
            |class| Forwards::new(self.segments.of(class), &self.blocks, from, keep, wanted);
        let mut walks: Vec<_> = self.classes.all().map(of_class).collect();
        let next = merge(&mut walks, range, bytes_max, visit)?;

        let passed = walks.into_iter().flat_map(|walk| walk.unread);
        // A walk may have looked further.
        unread.extend(passed.filter(|passed| passed.last < next));
        Ok(next)
    }
}

/// Continues with the class that has the earliest event, up to the next event of another class.
fn merge(
    all: &mut [Forwards<'_>],
    Range {
        start: from,
        end: upto,
    }: Range<SeqNo>,
    bytes_max: usize,
    visit: &mut impl Visit,
) -> Result<SeqNo, StoreError> {
    let mut walks = Vec::new();
    // Classes without an entry from here on take no part.
    for walk in all {
        if walk.peek(from)?.is_some() {
            walks.push(walk);
        }
    }

    let mut next = from;
    let mut bytes = 0;
    while bytes < bytes_max {
        let mut heads = Vec::new();
        for (n, walk) in walks.iter_mut().enumerate() {
            heads.extend(walk.peek(next)?.map(|seq| (seq, n)));
        }
        heads.sort_unstable();
        let Some(&(seq, n)) = heads.first().filter(|(seq, _)| *seq < upto) else {
            return Ok(upto);
        };

        // Rows of one class are taken in a run, without comparing the classes for each.
        let limit = heads.get(1).map_or(upto, |(seq, _)| upto.min(*seq));
        let Some(walk) = walks.get_mut(n) else {
            return Ok(upto);
        };

        next = seq;
        while bytes < bytes_max
            && let Some(seq) = walk.peek(next)?.filter(|seq| *seq < limit)
        {
            let (cost, last) = walk.take(seq, limit, visit);
            bytes += cost;
            next = last.next();
        }
    }

    Ok(next)
}

pub(super) fn is_wanted(entries: Entries, rows: Rows<'_>, row: usize) -> bool {
    let (kind, flags) = (rows.kind(row), rows.flags(row));
    // The usual case needs no other column.
    if entries == Entries::Events {
        return flags.has(Flags::ON_BUS);
    }
    let is_own = rows.origin(row).is_empty() && rows.number(row) == 0;
    let has_jid = rows.jid_key(row).is_some();
    entries.have(kind, flags, rows.fun(row), has_jid, is_own)
}

/// The index of the first row with a sequence number of at least `from`.
fn first_from(rows: Rows<'_>, from: SeqNo) -> usize {
    // Sequence numbers ascend within a block, but may have gaps, so the row does not follow from
    // the number.
    let mut low = 0;
    let mut high = rows.len();
    while low < high {
        let middle = low.midpoint(high);
        if rows.seq(middle) < from {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Whether to add blocks to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

/// An iterator over the selected entries of a class.
struct Forwards<'a> {
    blocks: &'a BlockReader,
    keep: Keep,
    wanted: &'a dyn Fn(Kind, Flags) -> bool,
    /// Segments to read, the next one last.
    segments: Vec<Arc<Segment>>,
    /// The current segment, and its blocks to read, by the numbers of this numbering.
    current: Option<(Arc<Segment>, u64, Range<u32>)>,
    view: Option<Arc<BlockView>>,
    /// The next row of the view.
    at: usize,
    /// The blocks so far that cannot be read.
    unread: Vec<Unread>,
}

impl<'a> Forwards<'a> {
    fn new(
        of_class: Vec<Arc<Segment>>,
        blocks: &'a BlockReader,
        from: SeqNo,
        keep: Keep,
        wanted: &'a dyn Fn(Kind, Flags) -> bool,
    ) -> Self {
        let mut segments = Vec::new();

        // From the newest: the usual reader is near the end of the log.
        for segment in of_class.into_iter().rev() {
            let totals = segment.totals();
            let is_before = totals.entries > 0 && totals.last_seq < from;
            let is_first = segment.first_seq <= from;
            if !is_before {
                segments.push(segment);
            }
            // Segments are in order, so all earlier segments can be skipped as well.
            if is_before || is_first {
                break;
            }
        }

        Self {
            blocks,
            keep,
            wanted,
            segments,
            current: None,
            view: None,
            at: 0,
            unread: Vec::new(),
        }
    }

    /// The sequence number of the next selected entry from `from` on.
    fn peek(&mut self, from: SeqNo) -> Result<Option<SeqNo>, StoreError> {
        loop {
            // What is left of the current block.
            if let Some(view) = &self.view {
                let rows = view.rows();
                while self.at < rows.len() {
                    let seq = rows.seq(self.at);
                    if seq >= from && (self.wanted)(rows.kind(self.at), rows.flags(self.at)) {
                        return Ok(Some(seq));
                    }
                    self.at += 1;
                }
                self.view = None;
            }

            // The next segment, or the end.
            let Some((segment, numbering, blocks)) = &mut self.current else {
                let Some(segment) = self.segments.pop() else {
                    return Ok(None);
                };
                // Again for each segment: it may have been sealed or rewritten since the list was
                // made.
                let numbering = segment.numbering();
                let ready = self.blocks.indexes().ready(&segment)?;
                let metas = ready.blocks().metas();
                let count =
                    |n: usize| u32::try_from(n).expect("the blocks of a segment have numbers");
                let begin = count(metas.partition_point(|meta| meta.last_seq < from));
                let blocks = begin..count(metas.len());
                // Not held while blocks are read.
                drop(ready);
                self.current = Some((segment, numbering, blocks));
                continue;
            };

            // The next block of the segment.
            let Some(number) = blocks.next() else {
                self.current = None;
                continue;
            };

            let segment = segment.clone();
            let numbering = *numbering;
            // Blocks that are read once would displace blocks of other readers.
            self.view = match self.keep {
                Keep::Yes => self.blocks.block(&segment, number)?,
                Keep::No => self.blocks.block_once(&segment, number)?,
            };

            // Its index was rebuilt, so this may be another block: look up the rest of the segment
            // again. The read must not restart, because its reader already has the earlier entries.
            if segment.numbering() != numbering {
                self.view = None;
                self.current = None;
                self.segments.push(segment);
                continue;
            }

            // An unreadable block contains no rows, and the loop continues behind it.
            if self.view.is_none() {
                self.note_unread(&segment, number, from)?;
            }
            self.at = self
                .view
                .as_ref()
                .map_or(0, |view| first_from(view.rows(), from));
        }
    }

    /// Notes what a block has from `from` on that cannot be read.
    fn note_unread(
        &mut self,
        segment: &Arc<Segment>,
        number: u32,
        from: SeqNo,
    ) -> Result<(), StoreError> {
        let ready = self.blocks.indexes().ready(segment)?;
        // It does not exist in an index that was rebuilt just now.
        let Some(meta) = ready.blocks().metas().get(number as usize) else {
            return Ok(());
        };

        let first = meta.first_seq.max(from);
        let numbers = meta.last_seq.next().0.saturating_sub(first.0);
        let unread = Unread {
            class: segment.class_name.clone(),
            first,
            last: meta.last_seq,
            entries: numbers.min(u64::from(meta.count)),
        };
        // A segment that is looked up again has the same blocks.
        if self
            .unread
            .last()
            .is_none_or(|known| known.last < unread.last)
        {
            self.unread.push(unread);
        }
        Ok(())
    }

    /// Visits the entry that [`Forwards::peek`] found, or its whole block if that ends before `limit`. Returns the cost, and the sequence
    /// number of the last visited entry.
    fn take(&mut self, seq: SeqNo, limit: SeqNo, visit: &mut impl Visit) -> (usize, SeqNo) {
        // Only after `peek` has found a row.
        let (Some(view), Some((segment, ..))) = (&self.view, &self.current) else {
            return (0, seq);
        };
        let (rows, at) = (view.rows(), self.at);

        let last = rows.len() - 1;
        if at == 0
            && rows.seq(last) < limit
            && let Some(cost) = visit.block(rows)
        {
            self.at = rows.len();
            return (cost, rows.seq(last));
        }

        self.at += 1;
        (visit.row(segment, rows, at), seq)
    }
}
