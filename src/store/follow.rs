//! Following the log: events in order, forwards from any point, as they become durable.
//!
//! A follower reads the log like any reader, on a thread of its own, and holds up nobody: what it has not read yet lies on
//! disk. It keeps nothing between two readings but its place, so segments may be sealed, rewritten and dropped meanwhile.
//!
//! # Invariant
//!
//! Each event that is stored and not dropped by retention is seen once, in the order of sequence numbers, across all classes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::block::{BlockView, Rows};
use super::class::Class;
use super::error::StoreError;
use super::read::{StoredEntry, stored};
use super::segment::Segment;
use super::{Shared, Store};
use crate::clock::Micros;
use crate::model::{Flags, Kind, SeqNo, Source};

/// Wakes followers when more is durable. Costs one look at a number while nobody waits.
#[derive(Debug, Default)]
pub(super) struct DurableNotify {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    come: Condvar,
}

impl DurableNotify {
    /// Called behind each change of the watermark.
    pub(super) fn tell(&self) {
        // Who waits has said so before it looked at the watermark (below), so one of the two sees the other.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.come.notify_all();
        }
    }

    fn wait(&self, timeout: Duration, is_there: impl Fn() -> bool) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.come.wait_timeout_while(guard, timeout, |()| !is_there()));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An event as a follower sees it.
#[derive(Debug, Clone, Copy)]
pub struct Followed<'a> {
    /// Its place in the log.
    pub seq: SeqNo,
    /// What it is.
    pub kind: Kind,
    /// The source it came by.
    pub source: Source,
    /// Small metadata.
    pub flags: Flags,
    /// When it arrived.
    pub at: Micros,
    /// The job it belongs to; empty for none.
    pub jid: &'a str,
    /// The minion it is about; empty for none.
    pub minion: &'a str,
    /// Its tag.
    pub tag: &'a [u8],
    /// Its body, byte for byte as received.
    pub body: &'a [u8],
}

impl Store {
    /// Waits until something from `seq` on is durable, or `timeout` is over.
    pub fn wait_for(&self, seq: SeqNo, timeout: Duration) {
        self.0.news.wait(timeout, || self.durable() > seq);
    }

    /// Hands events from `from` on to `take`, in order, until all that is durable has been seen or their bytes have reached
    /// `bytes_max`. Returns where to go on.
    pub fn follow(
        &self,
        from: SeqNo,
        bytes_max: usize,
        take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.follow_those(|_, flags| flags.has(Flags::ON_BUS), from, bytes_max, take)
    }

    /// As [`Store::follow`], of the entries that are `wanted`.
    pub fn follow_those(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        bytes_max: usize,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<SeqNo, StoreError> {
        self.walk(from, self.durable(), bytes_max, Keep::No, &wanted, |_, rows, row| {
            self.hand_out(rows, row, &mut take)
        })
    }

    /// Hands the first entry from `from` on that is `wanted` to `take`. Its block is kept in memory for a while: entries near to it are
    /// likely to be asked for.
    pub fn look_at(
        &self,
        wanted: impl Fn(Kind, Flags) -> bool,
        from: SeqNo,
        mut take: impl FnMut(Followed<'_>),
    ) -> Result<(), StoreError> {
        let one = |_: &Segment, rows: Rows<'_>, row: usize| self.hand_out(rows, row, &mut take).max(1);
        self.walk(from, self.durable(), 1, Keep::Yes, &wanted, one).map(drop)
    }

    /// Hands an entry to `take`; its bytes.
    fn hand_out(&self, rows: Rows<'_>, row: usize, take: &mut impl FnMut(Followed<'_>)) -> usize {
        let (seq, tag) = (rows.seq(row), rows.tag(row));
        match rows.body(row) {
            Ok(body) => {
                let (kind, source, at) = (rows.kind(row), rows.source(row), rows.at(row));
                let (jid, minion) = (rows.jid(row), rows.minion(row));
                let flags = rows.flags(row);
                take(Followed { seq, kind, source, flags, at, jid: &jid, minion, tag: &tag, body });
                tag.len() + body.len()
            }
            Err(what) => self.0.left_out(seq, &what),
        }
    }

    /// Entries of every kind that is `wanted`, from `from` on and before `upto`, in the order of the log, until their bytes have
    /// reached `bytes_max`; and where to go on.
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
                Err(error) => self.0.left_out(rows.seq(at), &error.to_string()),
            }
        })?;
        Ok((found, next))
    }

    /// Hands out what is `wanted` between two numbers, in order, until the bytes that `take` says have reached `bytes_max`.
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
            // Merge: the walk whose next event is the earliest goes on until another one's turn comes.
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

impl Shared {
    /// Counts an entry whose body cannot be unpacked.
    fn left_out(&self, seq: SeqNo, what: &str) -> usize {
        self.metrics.frames_damaged.add(1);
        tracing::error!(%seq, what, "an entry cannot be read and is left out");
        0
    }
}

/// The first row whose number is not before `from`.
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

/// Whether blocks that were read go into the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

/// A walk over a class from an entry to the end.
struct Forwards<'a> {
    shared: &'a Shared,
    keep: Keep,
    wanted: &'a dyn Fn(Kind, Flags) -> bool,
    /// Segments that may hold more, the next one last.
    segments: Vec<Arc<Segment>>,
    /// The segment that is walked over, and the blocks still to be read.
    current: Option<(Arc<Segment>, Range<u32>)>,
    view: Option<Arc<BlockView>>,
    /// The next row of the view.
    at: usize,
}

impl<'a> Forwards<'a> {
    fn new(
        shared: &'a Shared,
        class: Class,
        from: SeqNo,
        keep: Keep,
        wanted: &'a dyn Fn(Kind, Flags) -> bool,
    ) -> Self {
        let mut segments = Vec::new();
        for segment in shared.segments(class).into_iter().rev() {
            let totals = segment.totals();
            let is_over = totals.entries > 0 && totals.last_seq < from;
            let is_first = segment.first_seq <= from;
            if !is_over {
                segments.push(segment);
            }
            // Segments of a class follow one another, so what is older is over, too.
            if is_over || is_first {
                break;
            }
        }
        Self { shared, keep, wanted, segments, current: None, view: None, at: 0 }
    }

    /// The number of the next entry from `from` on.
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
                let metas = ready.blocks().map_or(&[][..], |blocks| blocks.metas());
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
            // Readers look for other blocks than those that pass by once.
            self.view = match self.shared.cache.get((segment.id, number)) {
                Some(view) => Some(view),
                None if self.keep == Keep::Yes => self.shared.block(&segment, number)?,
                None => self.shared.read_block(&segment, number, true)?,
            };
            self.at = self.view.as_ref().map_or(0, |view| first_from(view.rows(), from));
        }
    }

    /// Hands out the entry that [`Forwards::peek`] found; its bytes.
    fn take(&mut self, take: &mut impl FnMut(&Segment, Rows<'_>, usize) -> usize) -> usize {
        let (Some(view), Some((segment, _))) = (&self.view, &self.current) else { return 0 };
        let at = self.at;
        self.at += 1;
        take(segment, view.rows(), at)
    }
}
