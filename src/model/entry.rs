//! What the log carries: an event, a load, a return, or a fact about a job.
//!
//! An [`Entry`] borrows its bytes; a [`Batch`] owns those of many entries in one arena, which is what travels
//! between threads. Bodies stay the bytes that came in until someone asks.

use crate::clock::Micros;

/// What an entry is. The numbers are on disk (`docs/FORMAT.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Any event; body: the event's msgpack map.
    Event = 0,
    /// The event `salt/job/<jid>/new`; body as above.
    JobNew = 1,
    /// One minion's answer, as event or from `returner`; body: the return's msgpack map.
    Return = 2,
    /// A job as published; body: msgpack array `[load, minions or nil]`.
    Load = 3,
    /// A return that `save_load` was given in place of a load; body as for a load.
    ReturnLoad = 4,
    /// Minions of a job that a syndic reported; body: msgpack array `[minions, syndic_id or nil]`.
    Minions = 5,
    /// When a job ended; body: msgpack str in Salt's spelling.
    Endtime = 6,
    /// The job's returns are not to be cached; body: nil.
    NoCache = 7,
    /// Thorium's register; body: any msgpack value.
    Register = 8,
    /// A stretch of time in which events of a bus may have been missed, shown as the event [`GAP_TAG`]; body: msgpack
    /// map, see [`crate::ingest::gap`].
    Gap = 9,
    /// What the reactor did, or is about to do, about an event; body: msgpack map, see [`crate::reactor::run::record`]. Its
    /// tag is that of the event behind [`REACTION_TAG`].
    Reaction = 10,
    /// An event that a bus told after another door had brought it, which alone is no reason to react; body as for an event.
    Heard = 11,
}

/// Begins the tag of a record of the reactor.
pub const REACTION_TAG: &str = "saltcellar/reaction/";

/// The tag under which a gap is shown among events.
pub const GAP_TAG: &str = "saltcellar/gap";

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// The kind with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        use Kind::{Endtime, Event, Gap, JobNew, Load, Minions, NoCache, Register, Return, ReturnLoad};
        use Kind::{Heard, Reaction};
        [Event, JobNew, Return, Load, ReturnLoad, Minions, Endtime, NoCache, Register, Gap, Reaction, Heard]
            .get(usize::from(n))
            .copied()
    }

    /// The name that the call `entries` and exports use.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Event => "event",
            Kind::JobNew => "new",
            Kind::Return => "return",
            Kind::Load => "load",
            Kind::ReturnLoad => "return_load",
            Kind::Minions => "minions",
            Kind::Endtime => "endtime",
            Kind::NoCache => "nocache",
            Kind::Register => "register",
            Kind::Gap => "gap",
            Kind::Reaction => "reaction",
            Kind::Heard => "heard",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        (0..Self::COUNT)
            .filter_map(|n| Self::from_number(u8::try_from(n).ok()?))
            .find(|kind| kind.name() == name)
    }
}

/// The door an entry came in by. The numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Source {
    /// Read off a bus.
    Bus = 0,
    /// Salt's `event_return`.
    EventReturn = 1,
    /// Salt's job cache and returner calls.
    Returner = 2,
    /// A returner call handed over from a spool: may have been stored already.
    SpooledReturner = 3,
    /// An `event_return` handed over from a spool: may have been stored already.
    SpooledEventReturn = 4,
    /// The ZeroMQ PULL.
    Zeromq = 5,
    /// Read off a bus and handed over from the door's spill: may have been stored already.
    SpilledBus = 6,
    /// The reactor, about itself.
    Reactor = 7,
}

impl Source {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// The source with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        use Source::{
            Bus, EventReturn, Reactor, Returner, SpilledBus, SpooledEventReturn, SpooledReturner, Zeromq,
        };
        [Bus, EventReturn, Returner, SpooledReturner, SpooledEventReturn, Zeromq, SpilledBus, Reactor]
            .get(usize::from(n))
            .copied()
    }

    /// A returner call: Salt's master makes it only for a return whose sender the session key authenticated, and a
    /// minion on another machine signs its own.
    pub fn confirms(self) -> bool {
        matches!(self, Source::Returner | Source::SpooledReturner)
    }

    /// The same door, for what comes out of its spool.
    #[must_use]
    pub fn spooled(self) -> Self {
        match self {
            Source::EventReturn => Source::SpooledEventReturn,
            Source::Returner => Source::SpooledReturner,
            other => other,
        }
    }

    /// The name that `events list` shows.
    pub fn name(self) -> &'static str {
        match self {
            Source::Bus => "bus",
            Source::EventReturn => "event_return",
            Source::Returner => "returner",
            Source::SpooledReturner => "returner (spooled)",
            Source::SpooledEventReturn => "event_return (spooled)",
            Source::Zeromq => "zeromq",
            Source::SpilledBus => "bus (spilled)",
            Source::Reactor => "reactor",
        }
    }
}

/// Small facts about an entry, one bit each. The bits are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// It was on a bus, so it belongs into views of events.
    pub const ON_BUS: Flags = Flags(1);
    /// A return that says whether it succeeded.
    pub const SUCCESS_KNOWN: Flags = Flags(2);
    /// A return that says it succeeded.
    pub const SUCCESS: Flags = Flags(4);
    /// A return with a retcode that is one integer.
    pub const RETCODE_KNOWN: Flags = Flags(8);
    /// A finished reaction, for the reactor's history.
    pub const REACTION: Flags = Flags(16);
    /// The event carried the key of the reactor's master, which was compared and redacted before the event went anywhere.
    pub const MASTER_KEY: Flags = Flags(32);
    /// A return that did not come from a returner call, so no signature or session key of the minion vouches for it. A
    /// call that brings the same return later is stored as an entry of its own. Absent from entries of releases up to
    /// 0.1, which did not store that call.
    pub const UNCONFIRMED: Flags = Flags(64);

    /// Are all bits of `other` set?
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of bits.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These bits without those of `other`.
    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// A return that failed: it says so, or its retcode is not zero.
    pub fn failed(self, retcode: i64) -> bool {
        let says_no = self.has(Self::SUCCESS_KNOWN) && !self.has(Self::SUCCESS);
        says_no || (self.has(Self::RETCODE_KNOWN) && retcode != 0)
    }
}

/// One entry on its way to the log, or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is.
    pub kind: Kind,
    /// The door it came in by.
    pub source: Source,
    /// Small facts; the appender alone sets [`Flags::UNCONFIRMED`].
    pub flags: Flags,
    /// When it arrived, or when Salt made the call if it waited in a spool.
    pub at: Micros,
    /// The event's tag; empty for what is no event. Salt writes ASCII, the bus carries anything.
    pub tag: &'a [u8],
    /// Job id; empty if it belongs to none.
    pub jid: &'a str,
    /// Minion id; empty if there is none.
    pub minion: &'a str,
    /// Function; empty if there is none or several.
    pub fun: &'a str,
    /// A return's exit code; 0 unless [`Flags::RETCODE_KNOWN`].
    pub retcode: i64,
    /// Bytes as received; their form depends on the kind.
    pub body: &'a [u8],
}

impl Entry<'_> {
    /// Bytes that the entry brought along: tag and body.
    pub fn raw_len(&self) -> usize {
        self.tag.len() + self.body.len()
    }

    /// Bytes that it may take in a block: also the names, which need not stand in tag or body.
    pub fn packed_len_max(&self) -> usize {
        self.raw_len() + self.jid.len() + self.minion.len() + self.fun.len()
    }
}

/// What an entry is recognised by when it comes again: hashes with a seed that nobody outside knows, made by whoever
/// takes the entry in, so that the appender need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prints {
    /// Of tag, jid and body.
    pub whole: u64,
    /// Of jid and minion; of returns only.
    pub asked: u64,
    /// Of what the minion answered; of returns only.
    pub answer: u64,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    from: u32,
    len: u32,
}

impl Span {
    fn of(from: usize, len: usize) -> Self {
        let fit = |n: usize| u32::try_from(n).expect("a batch is a frame or a read: far below 4 GiB");
        Self { from: fit(from), len: fit(len) }
    }

    /// `part` of `whole`, if it was cut out of it, where `whole` begins at `at`.
    fn within(part: &[u8], whole: &[u8], at: usize) -> Option<Self> {
        let from = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
        let inside = from <= whole.len() && part.len() <= whole.len() - from;
        (inside && !part.is_empty()).then(|| Self::of(at + from, part.len()))
    }
}

/// An entry whose bytes lie in the arena of its [`Batch`].
#[derive(Debug, Clone, Copy)]
struct Draft {
    kind: Kind,
    source: Source,
    flags: Flags,
    at: Micros,
    retcode: i64,
    tag: Span,
    jid: Span,
    minion: Span,
    fun: Span,
    body: Span,
    prints: Option<Prints>,
}

/// Entries that travel together, and the bytes they are made of.
#[derive(Debug, Default)]
pub struct Batch {
    arena: Vec<u8>,
    drafts: Vec<Draft>,
}

impl Batch {
    /// None yet, with room for so many bytes.
    pub fn with_room(bytes: usize) -> Self {
        Self { arena: Vec::with_capacity(bytes), drafts: Vec::new() }
    }

    /// A batch of one.
    pub fn of(entry: &Entry<'_>) -> Self {
        let mut batch = Self::default();
        batch.push(entry, None);
        batch
    }

    /// Copies an entry in. Names that were cut out of its tag or body are not copied twice.
    pub fn push(&mut self, entry: &Entry<'_>, prints: Option<Prints>) {
        let mut keep = |bytes: &[u8]| {
            let from = self.arena.len();
            self.arena.extend_from_slice(bytes);
            Span::of(from, bytes.len())
        };
        let (tag, body) = (keep(entry.tag), keep(entry.body));
        let [jid, minion, fun] = [entry.jid, entry.minion, entry.fun].map(|name| {
            Span::within(name.as_bytes(), entry.tag, tag.from as usize)
                .or_else(|| Span::within(name.as_bytes(), entry.body, body.from as usize))
                .unwrap_or_else(|| keep(name.as_bytes()))
        });
        let Entry { kind, source, flags, at, retcode, .. } = *entry;
        self.drafts.push(Draft { kind, source, flags, at, retcode, tag, jid, minion, fun, body, prints });
    }

    /// The entries with their prints, in the order they were pushed.
    pub fn entries(&self) -> impl Iterator<Item = (Entry<'_>, Option<Prints>)> {
        self.drafts.iter().map(|draft| (self.view(draft), draft.prints))
    }

    /// One entry.
    pub fn entry(&self, at: usize) -> Option<Entry<'_>> {
        self.drafts.get(at).map(|draft| self.view(draft))
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.drafts.len()
    }

    /// No entry at all.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Memory that it takes.
    pub fn footprint(&self) -> usize {
        self.arena.capacity() + self.drafts.capacity() * size_of::<Draft>()
    }

    /// Gives back room that was not needed, if it is much.
    pub fn shrink(&mut self) {
        if self.arena.capacity() > self.arena.len() * 2 {
            self.arena.shrink_to_fit();
        }
    }

    fn view(&self, draft: &Draft) -> Entry<'_> {
        let bytes = |span: Span| {
            let from = span.from as usize;
            self.arena.get(from..from + span.len as usize).expect("a part of this batch")
        };
        let text = |span: Span| std::str::from_utf8(bytes(span)).expect("a name that was text");
        Entry {
            kind: draft.kind,
            source: draft.source,
            flags: draft.flags,
            at: draft.at,
            retcode: draft.retcode,
            tag: bytes(draft.tag),
            jid: text(draft.jid),
            minion: text(draft.minion),
            fun: text(draft.fun),
            body: bytes(draft.body),
        }
    }
}

/// A [`Batch`] in the making whose entries lie in one frame: what was cut out of the frame is not copied.
#[derive(Debug)]
pub struct Drafts<'a> {
    frame: &'a [u8],
    /// What is not in the frame: made-up tags, spelled-out numbers.
    beside: Vec<u8>,
    list: Vec<Draft>,
}

impl<'a> Drafts<'a> {
    /// None yet.
    pub fn within(frame: &'a [u8]) -> Self {
        Self { frame, beside: Vec::new(), list: Vec::new() }
    }

    /// Takes an entry in.
    pub fn push(&mut self, entry: &Entry<'_>, prints: Option<Prints>) {
        let mut keep = |bytes: &[u8]| {
            Span::within(bytes, self.frame, 0).unwrap_or_else(|| {
                let from = self.frame.len() + self.beside.len();
                self.beside.extend_from_slice(bytes);
                Span::of(from, bytes.len())
            })
        };
        let (tag, body) = (keep(entry.tag), keep(entry.body));
        let [jid, minion, fun] = [entry.jid, entry.minion, entry.fun].map(|name| keep(name.as_bytes()));
        let Entry { kind, source, flags, at, retcode, .. } = *entry;
        self.list.push(Draft { kind, source, flags, at, retcode, tag, jid, minion, fun, body, prints });
    }

    /// Says of every entry what was only known after it: the door, and the time of arrival.
    pub fn stamp(&mut self, source: Source, at: Micros) {
        for draft in &mut self.list {
            (draft.source, draft.at) = (source, at);
        }
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Lets go of the frame, for [`Loose::into_batch`].
    pub fn loose(self) -> Loose {
        Loose { beside: self.beside, drafts: self.list }
    }
}

/// [`Drafts`] without their frame.
#[derive(Debug)]
pub struct Loose {
    beside: Vec<u8>,
    drafts: Vec<Draft>,
}

impl Loose {
    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// The batch. `frame` is the one that the drafts were made of.
    pub fn into_batch(self, mut frame: Vec<u8>) -> Batch {
        frame.extend_from_slice(&self.beside);
        Batch { arena: frame, drafts: self.drafts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_back_what_was_pushed() {
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            flags: Flags::ON_BUS.with(Flags::RETCODE_KNOWN),
            at: Micros(7),
            tag: b"salt/job/1/ret/web1",
            jid: "1",
            minion: "web1",
            fun: "test.ping",
            retcode: 2,
            body: b"\x80",
        };
        let mut batch = Batch::of(&entry);
        batch.push(&Entry { minion: "", body: b"", ..entry }, None);
        let back: Vec<_> = batch.entries().map(|(entry, _)| entry).collect();
        assert_eq!(back, [entry, Entry { minion: "", body: b"", ..entry }]);
    }

    #[test]
    fn what_was_cut_out_of_its_bytes_is_not_copied_again() {
        let frame = b"salt/job/7/ret/web1 with a body of test.ping".to_vec();
        let cut = |from: usize, to: usize| std::str::from_utf8(&frame[from..to]).unwrap();
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            flags: Flags::ON_BUS,
            at: Micros(7),
            tag: &frame[..19],
            jid: cut(9, 10),
            minion: cut(15, 19),
            fun: cut(35, 44),
            retcode: 2,
            body: &frame[20..],
        };
        assert_eq!(Batch::of(&entry).bytes(), frame.len() - 1, "all but the blank between tag and body");
        assert_eq!(Batch::of(&entry).entry(0), Some(entry));
        let elsewhere = Entry { jid: "20261121", tag: b"other", ..entry };
        let mut drafts = Drafts::within(&frame);
        drafts.push(&entry, Some(Prints { whole: 1, ..Prints::default() }));
        drafts.push(&elsewhere, None);
        drafts.stamp(Source::EventReturn, Micros(9));
        let batch = drafts.loose().into_batch(frame.clone());
        assert_eq!(batch.bytes(), frame.len() + 13);
        let stamped = |entry| Entry { source: Source::EventReturn, at: Micros(9), ..entry };
        let back: Vec<_> = batch.entries().map(|(entry, prints)| (entry, prints.map(|p| p.whole))).collect();
        assert_eq!(back, [(stamped(entry), Some(1)), (stamped(elsewhere), None)]);
    }

    #[test]
    fn numbers_on_disk_lead_back_to_their_words() {
        for n in 0..=11 {
            assert_eq!(Kind::from_number(n).map(|k| k as u8), Some(n));
        }
        assert_eq!(Kind::from_number(12), None);
        for n in 0..8 {
            assert_eq!(Source::from_number(n).map(|s| s as u8), Some(n));
        }
        assert_eq!(Source::from_number(8), None);
    }

    #[test]
    fn a_return_fails_by_its_word_or_by_its_code() {
        let known = Flags::SUCCESS_KNOWN;
        assert!(known.failed(0));
        assert!(!known.with(Flags::SUCCESS).failed(0));
        assert!(known.with(Flags::SUCCESS).with(Flags::RETCODE_KNOWN).failed(2));
        assert!(!Flags::default().failed(2), "no retcode was given");
    }
}
