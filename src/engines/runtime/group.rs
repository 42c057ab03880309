//! Groups: sinks with the same filter and the same encoding, of which each event is read and encoded
//! once.
//!
//! A *piece* is a part of the log with its matching events, encoded. The sink that comes to a
//! position first reads a piece, and the others take it. Otherwise they know nothing of each other:
//! each has its own position, batches, deliveries and dead letters.
//!
//! # Invariant
//!
//! A piece contains exactly the matching events of its part of the log, and the kept pieces of a group do
//! not overlap. A piece is kept only for another sink that stands in it, or before it with nothing but kept
//! pieces in between. Therefore a sink that is far behind, alone, or has read all keeps none. The kept
//! pieces of all groups take at most [`SINK_SHARED_BYTES_MAX`] bytes together.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::encoding::{EncodedEvent, Encoding};
use crate::base::limits::{SINK_SHARED_BYTES_MAX, SINK_SHARED_PIECES_MAX};
use crate::model::SeqNo;
use crate::store::BatchLimits;

/// The sinks of one encoding, while there are any.
pub(super) struct Group {
    pub(super) encoding: Encoding,
    /// Lock order: no other lock is taken under it; never held while the log is read or an event is
    /// encoded.
    shelf: Mutex<Shelf>,
    /// A piece was read, or its reading failed.
    read: Condvar,
    room: Arc<Room>,
}

/// A sink, in its group.
pub(super) struct Member {
    group: Arc<Group>,
    id: u64,
}

/// A part of the log, from a position on and before `next`.
pub(super) struct Piece {
    from: SeqNo,
    next: SeqNo,
    events: Vec<EncodedEvent>,
    memory: usize,
}

/// Events that a sink takes: parts of pieces that follow each other.
pub(super) struct Taken {
    pub(super) from: SeqNo,
    /// The last event.
    pub(super) last: Option<SeqNo>,
    /// The position after it: no other event before matches.
    pub(super) next: SeqNo,
    parts: Vec<(Arc<Piece>, Range<usize>)>,
    events: usize,
    bytes: usize,
    /// Whether the events at `next` cannot be read, but must be fetched.
    pub(super) must_fetch: bool,
}

/// The memory that kept pieces may still have.
#[derive(Debug)]
pub(super) struct Room(AtomicUsize);

/// A piece that is kept; dropping it makes room.
struct Kept {
    piece: Arc<Piece>,
    room: Arc<Room>,
}

/// The pieces that a group has read and keeps.
#[derive(Default)]
struct Shelf {
    /// By their first position.
    kept: BTreeMap<SeqNo, Kept>,
    /// Where each sink continues.
    positions: HashMap<u64, SeqNo>,
    /// Where sinks are reading a piece.
    reading: Vec<SeqNo>,
    joined: u64,
}

impl Default for Room {
    fn default() -> Self {
        Self(AtomicUsize::new(SINK_SHARED_BYTES_MAX))
    }
}

impl Room {
    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.fetch_update(set, fetch, less).is_ok()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.piece.memory, Ordering::AcqRel);
    }
}

impl Piece {
    pub(super) fn new(from: SeqNo, next: SeqNo, events: Vec<EncodedEvent>) -> Self {
        let memory = events.iter().map(EncodedEvent::memory).sum();
        Self {
            from,
            next,
            events,
            memory,
        }
    }
}

impl Taken {
    /// No events, from a position on.
    pub(super) fn at(from: SeqNo) -> Self {
        Self {
            from,
            last: None,
            next: from,
            parts: Vec::new(),
            events: 0,
            bytes: 0,
            must_fetch: false,
        }
    }

    pub(super) fn events(&self) -> impl Iterator<Item = &EncodedEvent> {
        let parts = self.parts.iter();
        parts.flat_map(|(piece, range)| piece.events.get(range.clone()).unwrap_or_default())
    }

    pub(super) fn len(&self) -> usize {
        self.events
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    pub(super) fn is_full(&self, limits: BatchLimits) -> bool {
        self.events >= limits.events || self.bytes >= limits.bytes
    }

    /// Adds the events of a piece from `next` on, as many as fit.
    fn add(&mut self, piece: Arc<Piece>, limits: BatchLimits) {
        // Another sink may have read the piece from an earlier place on.
        let begin = piece
            .events
            .partition_point(|one| one.event.seq < self.next);
        let mut end = begin;
        for one in piece.events.iter().skip(begin) {
            if self.is_full(limits) {
                break;
            }
            end += 1;
            self.events += 1;
            self.bytes += one.stored_bytes;
            self.last = Some(one.event.seq);
        }

        // Behind the last event that did fit, or behind all.
        self.next = match self.last {
            Some(last) if end < piece.events.len() => last.next(),
            _ => piece.next,
        };
        self.parts.push((piece, begin..end));
    }
}

impl Shelf {
    /// The kept piece with this position.
    fn at(&self, position: SeqNo) -> Option<&Arc<Piece>> {
        let (_, kept) = self.kept.range(..=position).next_back()?;
        (position < kept.piece.next).then_some(&kept.piece)
    }

    /// Keeps a piece that a sink has read, if another sink needs it and there is room.
    fn keep(&mut self, piece: &Arc<Piece>, reader: u64, room: &Arc<Room>) {
        let before = self.kept.range(..piece.next).next_back();
        // Two sinks have read from different positions at the same time.
        if before.is_some_and(|(_, kept)| kept.piece.next > piece.from) {
            return;
        }

        let reachable = self.run_to(piece.from)..piece.next;
        let is_needed = self
            .positions
            .iter()
            .any(|(sink, position)| *sink != reader && reachable.contains(position));
        if !is_needed {
            return;
        }

        // The earliest pieces go first: whoever needs them has fallen behind.
        while self.kept.len() >= SINK_SHARED_PIECES_MAX {
            self.kept.pop_first();
        }
        while !room.take(piece.memory) {
            if self.kept.pop_first().is_none() {
                return;
            }
        }

        let (piece, room) = (piece.clone(), room.clone());
        self.kept.insert(piece.from, Kept { piece, room });
    }

    /// Where the kept pieces that end at a position, one after the other, begin.
    fn run_to(&self, position: SeqNo) -> SeqNo {
        let mut begin = position;
        for (from, kept) in self.kept.range(..position).rev() {
            if kept.piece.next != begin {
                break;
            }
            begin = *from;
        }
        begin
    }

    /// Notes where a sink continues, and drops what nobody needs any more.
    fn moved(&mut self, sink: u64, to: Option<SeqNo>) {
        match to {
            Some(to) => _ = self.positions.insert(sink, to),
            None => _ = self.positions.remove(&sink),
        }

        let positions = &self.positions;
        let mut end = None;
        let mut is_needed = false;
        self.kept.retain(|from, Kept { piece, .. }| {
            // A sink reaches a piece through those before it, if none is missing.
            if end != Some(*from) {
                is_needed = false;
            }
            end = Some(piece.next);

            let range = *from..piece.next;
            is_needed = is_needed || positions.values().any(|at| range.contains(at));
            is_needed
        });
    }
}

/// A piece that is being read. However the reading ends, the sinks that wait for it go on.
struct Reading<'a> {
    group: &'a Group,
    from: SeqNo,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut shelf = self.group.shelf.lock();
        shelf.reading.retain(|from| *from != self.from);
        drop(shelf);
        self.group.read.notify_all();
    }
}

impl Group {
    pub(super) fn new(encoding: Encoding, room: &Arc<Room>) -> Self {
        Self {
            encoding,
            shelf: Mutex::default(),
            read: Condvar::new(),
            room: room.clone(),
        }
    }

    /// A further sink, which will continue at a position.
    pub(super) fn join(self: &Arc<Self>, position: SeqNo) -> Member {
        let mut shelf = self.shelf.lock();
        let id = shelf.joined;
        shelf.joined += 1;
        shelf.moved(id, Some(position));
        drop(shelf);

        let group = self.clone();
        Member { group, id }
    }
}

impl Member {
    pub(super) fn encoding(&self) -> &Encoding {
        &self.group.encoding
    }

    /// Takes the events from `taken.next` on and before `upto`, within limits. `read` makes a piece
    /// of a part of the log, or of its beginning; `None` if the events must be fetched. Ends early
    /// after a long search.
    pub(super) fn take<E>(
        &self,
        taken: &mut Taken,
        upto: SeqNo,
        limits: BatchLimits,
        read: impl Fn(Range<SeqNo>, BatchLimits) -> Result<Option<Piece>, E>,
    ) -> Result<(), E> {
        let moved = |to| self.group.shelf.lock().moved(self.id, Some(to));
        // Called before the piece is examined, because a piece that another sink reads meanwhile
        // must be kept.
        moved(taken.next);

        while taken.next < upto && !taken.is_full(limits) {
            let left = BatchLimits {
                events: limits.events.saturating_sub(taken.events),
                bytes: limits.bytes.saturating_sub(taken.bytes),
            };

            let Some((piece, is_whole)) = self.piece(taken.next..upto, left, &read)? else {
                taken.must_fetch = true;
                break;
            };
            taken.add(piece, limits);

            // Full, or the read has ended at its limit of work: whoever waits for this sink must not
            // wait for another such read.
            if !is_whole {
                break;
            }
        }

        moved(taken.next);
        Ok(())
    }

    /// The piece at the beginning of a range, and whether it was at hand or read up to its end.
    fn piece<E>(
        &self,
        range: Range<SeqNo>,
        limits: BatchLimits,
        read: &impl Fn(Range<SeqNo>, BatchLimits) -> Result<Option<Piece>, E>,
    ) -> Result<Option<(Arc<Piece>, bool)>, E> {
        let Group {
            shelf, read: done, ..
        } = &*self.group;
        let from = range.start;

        let mut found = shelf.lock();
        loop {
            if let Some(piece) = found.at(from) {
                return Ok(Some((piece.clone(), true)));
            }
            if !found.reading.contains(&from) {
                break;
            }
            // Another sink reads the same.
            done.wait(&mut found);
        }

        // Up to the next piece, since pieces do not overlap.
        let later = found.kept.range(from..).next();
        let end = later.map_or(range.end, |(begin, _)| range.end.min(*begin));
        found.reading.push(from);
        // Not held while the log is read, because a sink with another position must not wait.
        drop(found);
        let reading = Reading {
            group: &self.group,
            from,
        };

        let Some(piece) = read(from..end, limits)?.map(Arc::new) else {
            return Ok(None);
        };
        shelf.lock().keep(&piece, self.id, &self.group.room);
        drop(reading);

        let is_whole = piece.next >= end;
        Ok(Some((piece, is_whole)))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.shelf.lock().moved(self.id, None);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::sync_channel;

    use serde_json::json;

    use super::*;
    use crate::engines::event::tests::event;
    use crate::engines::settings::tests::load;

    const ALL: BatchLimits = BatchLimits {
        events: usize::MAX,
        bytes: usize::MAX,
    };

    /// Memory of a piece with one event.
    fn of_one() -> usize {
        piece(1..2).memory
    }

    fn group(room: usize) -> Arc<Group> {
        let text = "sinks: {one: {encoder: json, transport: {http: {url: 'http://h'}}}}";
        let encoding = Encoding::new(&load(text).unwrap()[0], &"master1".into());
        let room = Arc::new(Room(AtomicUsize::new(room)));
        Arc::new(Group::new(encoding, &room))
    }

    /// A piece with an event for each number.
    fn piece(range: Range<u64>) -> Piece {
        let encoding = &group(0).encoding;
        let events = range
            .clone()
            .map(|seq| encoding.of_event(event(seq, "t", "m", json!({}))));
        Piece::new(SeqNo(range.start), SeqNo(range.end), events.collect())
    }

    /// A sink of the tests, and the parts of the log that it has read.
    struct Sink {
        member: Member,
        next: SeqNo,
        read: RefCell<Vec<(u64, u64)>>,
    }

    impl Sink {
        fn new(group: &Arc<Group>, at: u64) -> Self {
            Self {
                member: group.join(SeqNo(at)),
                next: SeqNo(at),
                read: RefCell::default(),
            }
        }

        /// Takes up to this many events before a position; returns their numbers.
        fn take(&mut self, upto: u64, events: usize) -> Vec<u64> {
            let read = |range: Range<SeqNo>, limits: BatchLimits| {
                let count = (range.end.0 - range.start.0).min(limits.events as u64);
                let (from, next) = (range.start.0, range.start.0 + count);
                self.read.borrow_mut().push((from, next));
                Ok::<_, ()>(Some(piece(from..next)))
            };
            let mut taken = Taken::at(self.next);
            let limits = BatchLimits { events, ..ALL };
            let found = self.member.take(&mut taken, SeqNo(upto), limits, read);
            found.unwrap();
            self.next = taken.next;
            taken.events().map(|one| one.event.seq.0).collect()
        }

        fn read(&self) -> Vec<(u64, u64)> {
            self.read.take()
        }
    }

    fn kept(group: &Group) -> Vec<(u64, u64)> {
        let shelf = group.shelf.lock();
        let kept = shelf.kept.values();
        kept.map(|kept| (kept.piece.from.0, kept.piece.next.0))
            .collect()
    }

    fn room(group: &Group) -> usize {
        group.room.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_piece_is_read_once_and_kept_until_the_last_sink_has_it() {
        let group = group(1 << 20);
        let (mut a, mut b, mut c) = (
            Sink::new(&group, 1),
            Sink::new(&group, 1),
            Sink::new(&group, 1),
        );
        assert_eq!(a.take(11, 100), (1..11).collect::<Vec<_>>());
        assert_eq!(b.take(16, 100), (1..16).collect::<Vec<_>>());
        assert_eq!(kept(&group), [(1, 11), (11, 16)]);
        // A part of the one, all of the other, and what is new.
        assert_eq!(a.take(16, 2), [11, 12]);
        assert_eq!(a.take(18, 100), (13..18).collect::<Vec<_>>());
        assert_eq!(c.take(18, 4), (1..5).collect::<Vec<_>>());
        assert_eq!(c.take(18, 100), (5..18).collect::<Vec<_>>());
        assert_eq!(
            (a.read(), b.read(), c.read()),
            (vec![(1, 11), (16, 18)], vec![(11, 16)], vec![])
        );
        assert_eq!(kept(&group), [(16, 18)], "for the second sink");
        assert_eq!(b.take(18, 100), [16, 17]);
        assert_eq!((kept(&group).len(), room(&group)), (0, 1 << 20));
    }

    #[test]
    fn a_sink_that_is_alone_or_far_behind_keeps_nothing() {
        let group = group(1 << 20);
        let mut a = Sink::new(&group, 1);
        a.take(100, 100);
        assert_eq!(kept(&group).len(), 0, "there is no other sink");

        // One that is behind, and two that are not.
        let (mut b, mut c) = (Sink::new(&group, 1), Sink::new(&group, 100));
        a.take(110, 100);
        assert_eq!(kept(&group), [(100, 110)]);
        b.take(20, 100);
        assert_eq!(kept(&group), [(100, 110)], "not for a sink that is ahead");
        c.take(110, 100);
        assert_eq!(kept(&group).len(), 0, "not for a sink that is far behind");

        // Nor for one that stands in a piece which others do not reach.
        let mut d = Sink::new(&group, 20);
        b.take(30, 100);
        a.take(115, 100);
        assert_eq!(kept(&group), [(20, 30), (110, 115)]);
        c.take(115, 100);
        assert_eq!(kept(&group), [(20, 30)]);
        d.take(30, 100);
        assert_eq!(kept(&group).len(), 0);

        // A sink that ends needs nothing any more, and a seek back is reread.
        a.take(120, 100);
        assert_eq!(kept(&group), [(115, 120)]);
        drop(c);
        assert_eq!(kept(&group).len(), 0);
        a.read();
        a.next = SeqNo(1);
        a.take(20, 100);
        assert_eq!(a.read(), [(1, 20)]);
    }

    #[test]
    fn kept_pieces_have_a_limit_of_bytes_and_of_number() {
        let room_of_three = of_one() * 3 + 1;
        let group = group(room_of_three);
        let (mut stuck, mut a, mut b) = (
            Sink::new(&group, 1),
            Sink::new(&group, 1),
            Sink::new(&group, 1),
        );
        for upto in 2..5 {
            a.take(upto, 1);
            b.take(upto, 1);
        }
        assert_eq!(
            kept(&group),
            [(1, 2), (2, 3), (3, 4)],
            "for the sink that is stuck"
        );
        assert_eq!(room(&group), 1);
        // It has fallen behind, so nothing is kept for it any more.
        a.take(5, 1);
        assert_eq!(kept(&group), [(4, 5)]);
        b.take(5, 1);
        assert_eq!((kept(&group).len(), room(&group)), (0, room_of_three));
        // What does not fit is not kept.
        a.take(20, 100);
        assert_eq!((kept(&group).len(), room(&group)), (0, room_of_three));
        assert_eq!(b.take(20, 100).len(), 15);
        assert_eq!(stuck.take(20, 100), (1..20).collect::<Vec<_>>());

        let group = self::group(usize::MAX);
        let _stuck = Sink::new(&group, 1);
        let mut a = Sink::new(&group, 1);
        for upto in 2..1_000 {
            a.take(upto, 1);
            assert!(kept(&group).len() <= SINK_SHARED_PIECES_MAX);
        }
    }

    #[test]
    fn pieces_that_were_read_from_different_positions_do_not_overlap() {
        let group = group(1 << 20);
        let (mut a, mut b) = (Sink::new(&group, 5), Sink::new(&group, 1));
        let _other = Sink::new(&group, 1);
        // Both read at the same time, the second one from before.
        let room = group.room.clone();
        let keep = |range| {
            let piece = Arc::new(piece(range));
            group.shelf.lock().keep(&piece, 99, &room);
        };
        keep(5..10);
        keep(1..10);
        keep(7..12);
        assert_eq!(kept(&group), [(5, 10)]);
        assert_eq!(b.take(12, 100), (1..12).collect::<Vec<_>>());
        assert_eq!(
            b.read(),
            [(1, 5), (10, 12)],
            "up to the piece, and behind it"
        );
        assert_eq!(a.take(12, 100), (5..12).collect::<Vec<_>>());
        assert_eq!(a.read(), []);
    }

    #[test]
    fn a_sink_waits_for_the_one_that_reads_the_same_and_reads_itself_if_that_fails() {
        for fails in [false, true] {
            let group = group(1 << 20);
            let (first, mut second) = (Sink::new(&group, 1).member, Sink::new(&group, 3));
            second.next = SeqNo(1);
            let (started, has_started) = sync_channel(1);
            let (end, may_end) = sync_channel::<()>(0);
            let reading = std::thread::Builder::new();
            let reading = reading.spawn(move || {
                let mut taken = Taken::at(SeqNo(1));
                first.take(&mut taken, SeqNo(5), ALL, |_, _| {
                    started.send(()).unwrap();
                    may_end.recv().unwrap();
                    if fails {
                        Err(())
                    } else {
                        Ok(Some(piece(1..5)))
                    }
                })
            });
            has_started.recv().unwrap();
            let id = second.member.id;
            let waiting = std::thread::Builder::new();
            let waiting = waiting.spawn(move || {
                let taken = second.take(5, 100);
                (taken, second.read())
            });
            // It notes its position, and then finds the reading one.
            crate::testkit::wait_for("the second sink", || {
                let shelf = group.shelf.lock();
                (shelf.positions.get(&id) == Some(&SeqNo(1))).then_some(())
            });
            end.send(()).unwrap();
            assert_eq!(reading.unwrap().join().unwrap().is_err(), fails);
            let (taken, read) = waiting.unwrap().join().unwrap();
            assert_eq!(taken, (1..5).collect::<Vec<_>>());
            assert_eq!(read, if fails { vec![(1, 5)] } else { vec![] });
            assert!(group.shelf.lock().reading.is_empty());
        }
    }
}
