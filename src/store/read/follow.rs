//! Follows the log: events in order, from any position on, as they become durable.
//!
//! A follower reads like any other reader, on its own thread, and delays no writer: unread events are on disk. It keeps only its
//! position between two reads, so segments may be sealed, rewritten and dropped meanwhile.
//!
//! # Invariant
//!
//! Each stored event that retention has not dropped is delivered once, in the order of sequence numbers across all classes.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::model::{Entry, Flags, Kind, SeqNo};
use crate::store::error::StoreError;
use crate::store::log::block::{BlockView, Rows};
use crate::store::read::{StoredEntry, stored};
use crate::store::segment::Segment;
use crate::store::write::class::Class;
use crate::store::{Store, StoreInner};

/// Wakes followers when the durable position advances. Without waiting followers it costs one atomic load.
#[derive(Debug, Default)]
pub(in crate::store) struct DurableNotify {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    advanced: Condvar,
}

impl DurableNotify {
    /// Called after each advance of the durable position.
    pub(in crate::store) fn notify(&self) {
        // A follower registers before it reads the durable position, so one of the two threads sees the other's change.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.has_waiting() {
            drop(self.lock.lock());
            self.advanced.notify_all();
        }
    }

    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    fn wait(&self, timeout: Duration, is_there: impl Fn() -> bool) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.advanced.wait_while_for(&mut self.lock.lock(), |()| !is_there(), timeout);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An event as delivered to a follower.
#[derive(Debug, Clone, Copy)]
pub struct Followed<'a> {
    /// Sequence number.
    pub seq: SeqNo,
    /// The event, with its body as received.
    pub entry: Entry<'a>,
}

impl<'a> Deref for Followed<'a> {
    type Target = Entry<'a>;

    fn deref(&self) -> &Entry<'a> {
        &self.entry
    }
}

impl Store {
    /// Whether a follower waits for new entries.
    pub fn is_followed(&self) -> bool {
        self.0.durable_notify.has_waiting()
    }

    /// Waits until the entry `seq` is durable, at most for `timeout`.
    pub fn wait_for(&self, seq: SeqNo, timeout: Duration) {
        self.0.durable_notify.wait(timeout, || self.durable() > seq);
    }

    /// Calls `take` with the events from `from` on, in order, until all durable ones are delivered or their total size reaches
    /// `bytes_max`. Returns the position to continue from.
    pub fn follow(
        &self,
        from: SeqNo,
        bytes_max: usize,
        take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.follow_selected(|_, flags| flags.has(Flags::ON_BUS), from, bytes_max, take)
    }

    /// As [`Store::follow`], for the entries selected by `wanted`.
    pub fn follow_selected(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        bytes_max: usize,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.walk(from, self.durable(), bytes_max, Keep::No, &wanted, |_, rows, row| {
            self.deliver(rows, row, &mut take)
        })
    }

    /// Calls `take` with the first entry from `from` on that `wanted` selects. Caches its block, because callers usually request
    /// nearby entries next.
    pub fn first_entry(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<(), StoreError> {
        let one = |_: &Segment, rows: Rows<'_>, row: usize| self.deliver(rows, row, &mut take).max(1);
        self.walk(from, self.durable(), 1, Keep::Yes, &wanted, one).map(drop)
    }

    /// Calls `take` with an entry; returns its size in bytes.
    fn deliver(&self, rows: Rows<'_>, row: usize, take: &mut impl FnMut(Followed<'_>)) -> usize {
        let (seq, tag) = (rows.seq(row), rows.tag(row));
        match rows.body(row) {
            Ok(body) => {
                take(Followed { seq, entry: rows.entry(row, &tag, &rows.jid(row), body) });
                tag.len() + body.len()
            }
            Err(what) => self.0.skip_unreadable(seq, &what),
        }
    }

    /// Returns the entries selected by `wanted` from `from` on and before `upto`, in order, until their total size reaches
    /// `bytes_max`; and the position to continue from.
    pub fn entries_from(
        &self,
        from: SeqNo,
        upto: SeqNo,
        bytes_max: usize,
        wanted: impl Fn(Kind, Flags) -> bool,
    ) -> Result<(Vec<StoredEntry>, SeqNo), StoreError> {
        let mut found = Vec::new();
        let upto = upto.min(self.durable());
        let next = self.walk(from, upto, bytes_max, Keep::No, &wanted, |segment, rows, at| {
            match stored(segment, rows, at, true) {
                Ok(entry) => {
                    let bytes = entry.tag.len() + entry.body.len();
                    found.push(entry);
                    bytes
                }
                Err(error) => self.0.skip_unreadable(rows.seq(at), &error.to_string()),
            }
        })?;
        Ok((found, next))
    }

    /// Calls `take` with each row selected by `wanted` from `from` on and before `upto`, in order, until the sizes that `take`
    /// returns reach `bytes_max`.
    fn walk(
        &self,
        from: SeqNo,
        upto: SeqNo,
        bytes_max: usize,
        keep: Keep,
        wanted: &dyn Fn(Kind, Flags) -> bool,
        mut take: impl FnMut(&Segment, Rows<'_>, usize) -> usize,
    ) -> Result<SeqNo, StoreError> {
        if from >= upto {
            return Ok(from);
        }
        let mut walks = Vec::new();
        for class in self.0.classes.all() {
            let mut walk = Forwards::new(&self.0, class, from, keep, wanted);
            if walk.peek(from)?.is_some() {
                walks.push(walk);
            }
        }
        let (mut next, mut bytes) = (from, 0);
        while bytes < bytes_max {
            // Merge: continue with the class that has the earliest event, up to the next event of another class.
            let mut heads = Vec::new();
            for (n, walk) in walks.iter_mut().enumerate() {
                heads.extend(walk.peek(next)?.map(|seq| (seq, n)));
            }
            heads.sort_unstable();
            let Some(&(seq, n)) = heads.first().filter(|(seq, _)| *seq < upto) else { return Ok(upto) };
            let limit = heads.get(1).map_or(upto, |(seq, _)| upto.min(*seq));
            let Some(walk) = walks.get_mut(n) else { return Ok(upto) };
            next = seq;
            while bytes < bytes_max
                && let Some(seq) = walk.peek(next)?.filter(|seq| *seq < limit)
            {
                bytes += walk.take(&mut take);
                next = seq.next();
            }
        }
        Ok(next)
    }
}

impl StoreInner {
    /// Counts an unreadable entry; returns its size, 0.
    fn skip_unreadable(&self, seq: SeqNo, what: &str) -> usize {
        self.metrics.frames_damaged.add(1);
        tracing::error!(%seq, what, "unreadable entry skipped");
        0
    }
}

/// The index of the first row with a sequence number of at least `from`.
fn first_from(rows: Rows<'_>, from: SeqNo) -> usize {
    let (mut low, mut high) = (0, rows.len());
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
    shared: &'a StoreInner,
    keep: Keep,
    wanted: &'a dyn Fn(Kind, Flags) -> bool,
    /// Segments to read, the next one last.
    segments: Vec<Arc<Segment>>,
    /// The current segment, and its blocks to read.
    current: Option<(Arc<Segment>, Range<u32>)>,
    view: Option<Arc<BlockView>>,
    /// The next row of the view.
    at: usize,
}

impl<'a> Forwards<'a> {
    fn new(
        shared: &'a StoreInner,
        class: Class,
        from: SeqNo,
        keep: Keep,
        wanted: &'a dyn Fn(Kind, Flags) -> bool,
    ) -> Self {
        let mut segments = Vec::new();
        for segment in shared.segments(class).into_iter().rev() {
            let totals = segment.totals();
            let is_before = totals.entries > 0 && totals.last_seq < from;
            let is_first = segment.first_seq <= from;
            if !is_before {
                segments.push(segment);
            }
            // Segments are in order, so all earlier ones can be skipped, too.
            if is_before || is_first {
                break;
            }
        }
        Self { shared, keep, wanted, segments, current: None, view: None, at: 0 }
    }

    /// The sequence number of the next selected entry from `from` on.
    fn peek(&mut self, from: SeqNo) -> Result<Option<SeqNo>, StoreError> {
        loop {
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
            let Some((segment, blocks)) = &mut self.current else {
                let Some(segment) = self.segments.pop() else { return Ok(None) };
                let ready = self.shared.ready(&segment)?;
                let metas = ready.blocks().metas();
                let count = |n: usize| u32::try_from(n).expect("the blocks of a segment have numbers");
                let begin = count(metas.partition_point(|meta| meta.last_seq < from));
                let blocks = begin..count(metas.len());
                drop(ready);
                self.current = Some((segment, blocks));
                continue;
            };
            let Some(number) = blocks.next() else {
                self.current = None;
                continue;
            };
            let segment = segment.clone();
            // Blocks that are read once would displace those of other readers.
            self.view = match self.shared.cache.get((segment.id, number)) {
                Some(view) => Some(view),
                None if self.keep == Keep::Yes => self.shared.block(&segment, number)?,
                None => self.shared.read_block(&segment, number, true)?,
            };
            self.at = self.view.as_ref().map_or(0, |view| first_from(view.rows(), from));
        }
    }

    /// Calls `take` with the entry that [`Forwards::peek`] found; returns its result.
    fn take(&mut self, take: &mut impl FnMut(&Segment, Rows<'_>, usize) -> usize) -> usize {
        let (Some(view), Some((segment, _))) = (&self.view, &self.current) else { return 0 };
        let at = self.at;
        self.at += 1;
        take(segment, view.rows(), at)
    }
}
