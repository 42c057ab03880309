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
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// The kind with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        use Kind::{Endtime, Event, JobNew, Load, Minions, NoCache, Register, Return, ReturnLoad};
        [Event, JobNew, Return, Load, ReturnLoad, Minions, Endtime, NoCache, Register]
            .get(usize::from(n))
            .copied()
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
}

impl Source {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// The source with this number, if there is one.
    pub fn from_number(n: u8) -> Option<Self> {
        use Source::{Bus, EventReturn, Returner, SpooledEventReturn, SpooledReturner};
        [Bus, EventReturn, Returner, SpooledReturner, SpooledEventReturn].get(usize::from(n)).copied()
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
    /// Small facts.
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

#[derive(Debug, Clone, Copy)]
struct Span {
    from: usize,
    len: usize,
}

/// An entry whose bytes lie in the arena of its [`Batch`].
#[derive(Debug, Clone, Copy)]
pub struct Draft {
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
}

/// Entries that travel together.
#[derive(Debug, Default)]
pub struct Batch {
    arena: Vec<u8>,
    drafts: Vec<Draft>,
}

impl Batch {
    /// A batch of one.
    pub fn of(entry: &Entry<'_>) -> Self {
        let mut batch = Self::default();
        batch.push(entry);
        batch
    }

    /// Copies an entry in.
    pub fn push(&mut self, entry: &Entry<'_>) {
        let mut keep = |bytes: &[u8]| {
            let from = self.arena.len();
            self.arena.extend_from_slice(bytes);
            Span { from, len: bytes.len() }
        };
        let (tag, jid) = (keep(entry.tag), keep(entry.jid.as_bytes()));
        let (minion, fun) = (keep(entry.minion.as_bytes()), keep(entry.fun.as_bytes()));
        let body = keep(entry.body);
        let Entry { kind, source, flags, at, retcode, .. } = *entry;
        self.drafts.push(Draft { kind, source, flags, at, retcode, tag, jid, minion, fun, body });
    }

    /// The entries, in the order they were pushed.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.drafts.iter().map(|draft| self.view(draft))
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

    fn view(&self, draft: &Draft) -> Entry<'_> {
        let bytes = |span: Span| self.arena.get(span.from..span.from + span.len).unwrap_or_default();
        let text = |span: Span| std::str::from_utf8(bytes(span)).unwrap_or_default();
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
        batch.push(&Entry { minion: "", body: b"", ..entry });
        let back: Vec<_> = batch.entries().collect();
        assert_eq!(back, [entry, Entry { minion: "", body: b"", ..entry }]);
    }

    #[test]
    fn numbers_on_disk_lead_back_to_their_words() {
        for n in 0..=8 {
            assert_eq!(Kind::from_number(n).map(|k| k as u8), Some(n));
        }
        assert_eq!(Kind::from_number(9), None);
        for n in 0..5 {
            assert_eq!(Source::from_number(n).map(|s| s as u8), Some(n));
        }
        assert_eq!(Source::from_number(5), None);
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
