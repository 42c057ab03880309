//! Log entries: an event, a load, a return, or a fact about a job.
//!
//! An [`Entry`] borrows its bytes. A [`Batch`] owns the bytes of many entries in one arena, and is
//! passed between threads. Bodies stay as received until they are needed.

use saltcellar_base::clock::Micros;
use saltcellar_base::named::named;

/// The kind of an entry. The numbers are on disk (`docs/FORMAT.md`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Any event; body: the event's msgpack map.
    #[default]
    Event = 0,
    /// The event `salt/job/<jid>/new`; body as above.
    JobNew = 1,
    /// One minion's answer, from an event or a `returner` call; body: the return's msgpack map.
    Return = 2,
    /// A job as published; body: msgpack array `[load, minions or nil]`.
    Load = 3,
    /// A return passed to `save_load` in place of a load; body as for a load.
    ReturnLoad = 4,
    /// Minions of a job that a syndic reported; body: msgpack array `[minions, syndic_id or nil]`.
    Minions = 5,
    /// The end time of a job; body: msgpack str in Salt's format.
    Endtime = 6,
    /// The job's returns must not be cached; body: nil.
    NoCache = 7,
    /// Thorium's register; body: any msgpack value.
    Register = 8,
    /// A period in which bus events may have been missed, shown as the event [`GAP_TAG`]; body: msgpack
    /// map, see `ingest/gap.rs`.
    Gap = 9,
    /// A record of the reactor about an event; body: msgpack map, see `reactor/run/record/`. Its
    /// tag is [`REACTION_TAG`] and the event's tag.
    Reaction = 10,
    /// An event seen on a bus that another source had delivered before; the reactor requires it. Body as for an event.
    SeenOnBus = 11,
    /// A setting of the store, only in the settings class; see `store/settings/`.
    Setting = 12,
}

/// Prefix of the tag of a reactor record.
pub const REACTION_TAG: &str = "saltcellar/reaction/";

/// The tag of a gap among events.
pub const GAP_TAG: &str = "saltcellar/gap";

impl Kind {
    /// All kinds in the order of their numbers.
    const ALL: [Kind; 13] = [
        Kind::Event,
        Kind::JobNew,
        Kind::Return,
        Kind::Load,
        Kind::ReturnLoad,
        Kind::Minions,
        Kind::Endtime,
        Kind::NoCache,
        Kind::Register,
        Kind::Gap,
        Kind::Reaction,
        Kind::SeenOnBus,
        Kind::Setting,
    ];

    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether entries of this kind belong to a job without naming its function.
    pub fn lacks_fun(self) -> bool {
        matches!(self, Self::Minions | Self::Endtime | Self::NoCache)
    }

    /// The kind with this number in the format of the store.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }
}

/// The source of an entry. The numbers are on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Source {
    /// A bus.
    #[default]
    Bus = 0,
    /// Salt's `event_return`.
    EventReturn = 1,
    /// Salt's job cache and returner calls.
    Returner = 2,
    /// A returner call delivered from a spool: may have been stored already.
    SpooledReturner = 3,
    /// An `event_return` delivered from a spool: may have been stored already.
    SpooledEventReturn = 4,
    /// The ZeroMQ PULL.
    Zeromq = 5,
    /// A bus, delivered from its spill: may have been stored already.
    SpilledBus = 6,
    /// The reactor, for its records.
    Reactor = 7,
}

impl Source {
    /// All sources in the order of their numbers.
    const ALL: [Source; 8] = [
        Source::Bus,
        Source::EventReturn,
        Source::Returner,
        Source::SpooledReturner,
        Source::SpooledEventReturn,
        Source::Zeromq,
        Source::SpilledBus,
        Source::Reactor,
    ];

    /// The number of sources.
    pub const COUNT: usize = Self::ALL.len();

    /// The source with this number in the format of the store.
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }

    /// Whether this is a returner call. Salt's master makes it for a return with an authenticated sender, and a
    /// minion on another host signs its own. A call that mirrors the event of a peer confirms nothing ([`Entry::confirms`]).
    pub fn confirms(self) -> bool {
        matches!(self, Source::Returner | Source::SpooledReturner)
    }

    /// The corresponding source for spooled entries.
    #[must_use]
    pub fn spooled(self) -> Self {
        match self {
            Source::EventReturn => Source::SpooledEventReturn,
            Source::Returner => Source::SpooledReturner,
            other => other,
        }
    }
}

named! {
    Kind {
        Event: "event",
        JobNew: "new",
        Return: "return",
        Load: "load",
        ReturnLoad: "return_load",
        Minions: "minions",
        Endtime: "endtime",
        NoCache: "nocache",
        Register: "register",
        Gap: "gap",
        Reaction: "reaction",
        SeenOnBus: "seen_on_bus",
        Setting: "setting",
    }
    Source {
        Bus: "bus",
        EventReturn: "event_return",
        Returner: "returner",
        SpooledReturner: "returner (spooled)",
        SpooledEventReturn: "event_return (spooled)",
        Zeromq: "zeromq",
        SpilledBus: "bus (spilled)",
        Reactor: "reactor",
    }
}

/// Boolean properties of an entry, one bit each. The bits are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// It was on a bus, so lists of events include it.
    pub const ON_BUS: Flags = Flags(1);
    /// A return with an exit code, either its own or a failure's.
    pub const RETCODE_KNOWN: Flags = Flags(8);
    /// A finished reaction, for the reactor's history.
    pub const REACTION: Flags = Flags(16);
    /// The event contained the key of the reactor's master, which was verified and redacted on arrival.
    pub const MASTER_KEY: Flags = Flags(32);
    /// A return that did not come from a returner call, so it is not authenticated by a signature or session key. A
    /// later call with the same return is stored as a separate entry. The same holds for one that came from a call which mirrors the event of
    /// a peer; and minions of a job that came from such a call have it.
    pub const UNCONFIRMED: Flags = Flags(64);
    /// A return of a whole highstate that was applied: it shows the state of its minion.
    pub const HIGHSTATE: Flags = Flags(128);

    /// Whether all bits of `other` are set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These bits without the bits of `other`.
    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether a return failed, from its columns: `wire/outcome/` decided it when they were written.
    pub fn failed(self, retcode: i64) -> bool {
        self.has(Self::RETCODE_KNOWN) && retcode != 0
    }
}

/// An entry to be stored, or read from the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The kind.
    pub kind: Kind,
    /// The source.
    pub source: Source,
    /// The id of the master that it came from; empty for this daemon's master.
    pub origin: &'a str,
    /// Its sequence number at its origin, if the origin itself sent it through the cluster's stream; 0 for any other entry.
    pub number: u64,
    /// Boolean properties; only the appender and mirrored calls set [`Flags::UNCONFIRMED`].
    pub flags: Flags,
    /// Arrival, or the time of Salt's call for spooled entries.
    pub at: Micros,
    /// The event's tag; empty for other entries. Salt writes ASCII, the bus allows any bytes.
    pub tag: &'a [u8],
    /// Job id; empty without a job.
    pub jid: &'a str,
    /// Minion id; empty without a minion.
    pub minion: &'a str,
    /// Function; empty without one, or with several.
    pub fun: &'a str,
    /// A return's exit code, not 0 if any of its functions failed; 0 unless [`Flags::RETCODE_KNOWN`].
    pub retcode: i64,
    /// Bytes as their master fired them; their form depends on the kind.
    pub body: &'a [u8],
}

impl<'a> Entry<'a> {
    /// An entry without flags, tag and names.
    pub fn new(kind: Kind, source: Source, at: Micros, body: &'a [u8]) -> Self {
        let flags = Flags::default();
        let tag = &b""[..];
        let jid = "";
        let minion = "";
        let fun = "";
        let retcode = 0;
        Self {
            kind,
            source,
            origin: "",
            number: 0,
            flags,
            at,
            tag,
            jid,
            minion,
            fun,
            retcode,
            body,
        }
    }

    /// Whether this is a return that a returner call confirms, see [`Source::confirms`].
    pub fn confirms(&self) -> bool {
        self.source.confirms() && !self.flags.has(Flags::UNCONFIRMED)
    }

    /// Bytes of tag and body.
    pub fn raw_len(&self) -> usize {
        self.tag.len() + self.body.len()
    }

    /// Maximum bytes in a block: includes the names, which may not be part of tag or body.
    pub fn packed_len_max(&self) -> usize {
        let names = [self.jid, self.minion, self.fun, self.origin];
        self.raw_len() + names.map(str::len).iter().sum::<usize>()
    }
}

/// The strings of an entry besides its body, for one that is changed on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The tag of an event.
    pub tag: Vec<u8>,
    /// The job, or nothing.
    pub jid: String,
    /// The minion, or nothing.
    pub minion: String,
    /// The function, or nothing.
    pub fun: String,
}

impl Names {
    /// The names of an entry.
    pub fn of(entry: &Entry<'_>) -> Self {
        Self {
            tag: entry.tag.to_vec(),
            jid: entry.jid.to_owned(),
            minion: entry.minion.to_owned(),
            fun: entry.fun.to_owned(),
        }
    }

    /// The entry with these names.
    pub fn in_entry<'a>(&'a self, entry: Entry<'a>) -> Entry<'a> {
        Entry {
            tag: &self.tag,
            jid: &self.jid,
            minion: &self.minion,
            fun: &self.fun,
            ..entry
        }
    }
}

/// What replaces parts of an entry; `None` keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The new body.
    pub body: Option<Vec<u8>>,
    /// The new strings; boxed, because nearly every entry keeps its own.
    pub names: Option<Box<Names>>,
}

impl Replaced {
    /// Whether the entry stays as it is.
    pub fn is_nothing(&self) -> bool {
        self.body.is_none() && self.names.is_none()
    }

    /// The entry with the replaced parts.
    pub fn in_entry<'a>(&'a self, entry: Entry<'a>) -> Entry<'a> {
        let entry = match &self.names {
            Some(names) => names.in_entry(entry),
            None => entry,
        };
        Entry {
            body: self.body.as_deref().unwrap_or(entry.body),
            ..entry
        }
    }
}

/// Hashes for recognising duplicates, with a secret seed. Computed by the source, to save
/// time in the appender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fingerprints {
    /// Of tag, jid and body.
    pub whole: u64,
    /// Of jid and minion; returns only.
    pub asked: u64,
    /// Of the minion's answer; returns only.
    pub answer: u64,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    from: u32,
    len: u32,
}

impl Span {
    fn of(from: usize, len: usize) -> Self {
        let fit =
            |n: usize| u32::try_from(n).expect("a batch is a frame or a read: far below 4 GiB");
        Self {
            from: fit(from),
            len: fit(len),
        }
    }

    /// The span of `part`, if it is a slice of `whole`, which starts at `at`.
    fn within(part: &[u8], whole: &[u8], at: usize) -> Option<Self> {
        // By address: equal bytes elsewhere are not a part of `whole`.
        let from = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
        let inside = from <= whole.len() && part.len() <= whole.len() - from;
        (inside && !part.is_empty()).then(|| Self::of(at + from, part.len()))
    }
}

/// The metadata of an entry in a [`Batch`], whose bytes are in the arena.
#[derive(Debug, Clone, Copy)]
struct EntryMeta {
    kind: Kind,
    source: Source,
    number: u64,
    flags: Flags,
    at: Micros,
    retcode: i64,
    tag: Span,
    jid: Span,
    minion: Span,
    fun: Span,
    origin: Span,
    body: Span,
    fingerprints: Option<Fingerprints>,
}

impl EntryMeta {
    fn new(entry: &Entry<'_>, spans: [Span; 6], fingerprints: Option<Fingerprints>) -> Self {
        let Entry {
            kind,
            source,
            number,
            flags,
            at,
            retcode,
            ..
        } = *entry;

        let [tag, jid, minion, fun, origin, body] = spans;

        Self {
            kind,
            source,
            number,
            flags,
            at,
            retcode,
            tag,
            jid,
            minion,
            fun,
            origin,
            body,
            fingerprints,
        }
    }
}

/// Entries that are passed together, and their bytes.
#[derive(Debug, Default)]
pub struct Batch {
    arena: Vec<u8>,
    entries: Vec<EntryMeta>,
}

impl Batch {
    /// An empty batch that takes this many bytes without growing.
    pub fn with_room(bytes: usize) -> Self {
        Self {
            arena: Vec::with_capacity(bytes),
            entries: Vec::new(),
        }
    }

    /// Removes all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
    }

    /// A batch of one.
    pub fn of(entry: &Entry<'_>) -> Self {
        let mut batch = Self::default();
        batch.push(entry, None);
        batch
    }

    /// Copies an entry. Names that are slices of its tag or body are not copied twice.
    pub fn push(&mut self, entry: &Entry<'_>, fingerprints: Option<Fingerprints>) {
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
        // It is nowhere in the body, from which it was taken.
        let origin = keep(entry.origin.as_bytes());

        self.entries.push(EntryMeta::new(
            entry,
            [tag, jid, minion, fun, origin, body],
            fingerprints,
        ));
    }

    /// The entries with their fingerprints, in order.
    pub fn entries(&self) -> impl Iterator<Item = (Entry<'_>, Option<Fingerprints>)> {
        self.entries
            .iter()
            .map(|meta| (self.view(meta), meta.fingerprints))
    }

    /// Kinds and fingerprints of the entries that have fingerprints.
    pub fn fingerprints(&self) -> impl Iterator<Item = (Kind, Fingerprints)> {
        let with_kind = |meta: &EntryMeta| Some((meta.kind, meta.fingerprints?));
        self.entries.iter().filter_map(with_kind)
    }

    /// The entry at an index.
    pub fn entry(&self, at: usize) -> Option<Entry<'_>> {
        self.entries.get(at).map(|meta| self.view(meta))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the entries.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Bytes of memory that it occupies, spare capacity included.
    pub fn footprint(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<EntryMeta>()
    }

    /// Releases spare capacity, if there is much.
    pub fn shrink(&mut self) {
        if self.arena.capacity() > self.arena.len() * 2 {
            self.arena.shrink_to_fit();
        }
        if self.entries.capacity() > self.entries.len() * 2 {
            self.entries.shrink_to_fit();
        }
    }

    /// The bytes of a span. Spans come from `push` only, so they lie within the arena.
    #[inline]
    fn bytes_of(&self, span: Span) -> &[u8] {
        let from = span.from as usize;
        self.arena
            .get(from..from + span.len as usize)
            .expect("a range of this batch")
    }

    /// A name, which was text when it was pushed.
    // Not inlined, because it then returns in registers: the result of `from_utf8` is written to
    // memory in two halves, and a caller that copies both together waits until they have left the
    // processor's store buffer. That took 4 % of storing a small event.
    #[inline(never)]
    fn text_of(&self, span: Span) -> &str {
        std::str::from_utf8(self.bytes_of(span)).expect("a name copied from text")
    }

    #[inline]
    fn view(&self, meta: &EntryMeta) -> Entry<'_> {
        let EntryMeta {
            kind,
            source,
            number,
            flags,
            at,
            retcode,
            ..
        } = *meta;

        let (tag, body) = (self.bytes_of(meta.tag), self.bytes_of(meta.body));
        let [jid, minion, fun] = [meta.jid, meta.minion, meta.fun].map(|name| self.text_of(name));
        // Mostly the daemon's own master.
        let origin = match meta.origin.len {
            0 => "",
            _ => self.text_of(meta.origin),
        };

        Entry {
            kind,
            source,
            origin,
            number,
            flags,
            at,
            tag,
            jid,
            minion,
            fun,
            retcode,
            body,
        }
    }
}

/// A [`Batch`] under construction from one frame: slices of the frame are not copied.
#[derive(Debug)]
pub struct FrameBatch<'a> {
    frame: &'a [u8],
    /// Bytes that are not in the frame, such as generated tags.
    beside: Vec<u8>,
    entries: Vec<EntryMeta>,
}

impl<'a> FrameBatch<'a> {
    /// An empty batch.
    pub fn within(frame: &'a [u8]) -> Self {
        Self {
            frame,
            beside: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: &Entry<'_>, fingerprints: Option<Fingerprints>) {
        let mut keep = |bytes: &[u8]| {
            Span::within(bytes, self.frame, 0).unwrap_or_else(|| {
                // Behind the frame, where `RequestBatch::into_batch` appends these bytes.
                let from = self.frame.len() + self.beside.len();
                self.beside.extend_from_slice(bytes);
                Span::of(from, bytes.len())
            })
        };

        let (tag, body) = (keep(entry.tag), keep(entry.body));
        let [jid, minion, fun, origin] =
            [entry.jid, entry.minion, entry.fun, entry.origin].map(|name| keep(name.as_bytes()));

        self.entries.push(EntryMeta::new(
            entry,
            [tag, jid, minion, fun, origin, body],
            fingerprints,
        ));
    }

    /// Releases the borrow of the frame, for [`RequestBatch::into_batch`].
    pub fn detach(self) -> RequestBatch {
        RequestBatch {
            beside: self.beside,
            entries: self.entries,
        }
    }
}

/// A [`FrameBatch`] without its frame.
#[derive(Debug)]
pub struct RequestBatch {
    beside: Vec<u8>,
    entries: Vec<EntryMeta>,
}

impl RequestBatch {
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The batch. `frame` must be the frame that the entries were made from.
    pub fn into_batch(self, mut frame: Vec<u8>) -> Batch {
        frame.extend_from_slice(&self.beside);
        Batch {
            arena: frame,
            entries: self.entries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_base::named::Named as _;

    #[test]
    fn a_batch_returns_the_pushed_entries() {
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            origin: "master2",
            number: 9,
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
        batch.push(
            &Entry {
                minion: "",
                body: b"",
                ..entry
            },
            None,
        );
        let back: Vec<_> = batch.entries().map(|(entry, _)| entry).collect();
        assert_eq!(
            back,
            [
                entry,
                Entry {
                    minion: "",
                    body: b"",
                    ..entry
                }
            ]
        );
    }

    #[test]
    fn slices_of_the_frame_are_not_copied() {
        let frame = b"salt/job/7/ret/web1 with a body of test.ping".to_vec();
        let cut = |from: usize, to: usize| std::str::from_utf8(&frame[from..to]).unwrap();
        let entry = Entry {
            kind: Kind::Return,
            source: Source::Bus,
            origin: "",
            number: 0,
            flags: Flags::ON_BUS,
            at: Micros(7),
            tag: &frame[..19],
            jid: cut(9, 10),
            minion: cut(15, 19),
            fun: cut(35, 44),
            retcode: 2,
            body: &frame[20..],
        };
        assert_eq!(
            Batch::of(&entry).bytes(),
            frame.len() - 1,
            "all but the space between tag and body"
        );
        assert_eq!(Batch::of(&entry).entry(0), Some(entry));
        let elsewhere = Entry {
            jid: "20261121",
            tag: b"other",
            origin: "b",
            ..entry
        };
        let mut drafts = FrameBatch::within(&frame);
        drafts.push(
            &entry,
            Some(Fingerprints {
                whole: 1,
                ..Fingerprints::default()
            }),
        );
        drafts.push(&elsewhere, None);
        let batch = drafts.detach().into_batch(frame.clone());
        assert_eq!(batch.bytes(), frame.len() + 14);
        let back: Vec<_> = batch
            .entries()
            .map(|(entry, fingerprints)| (entry, fingerprints.map(|p| p.whole)))
            .collect();
        assert_eq!(back, [(entry, Some(1)), (elsewhere, None)]);
    }

    #[test]
    fn numbers_on_disk_map_back_to_their_variants() {
        for n in 0..=12 {
            let kind = Kind::from_number(n).unwrap();
            assert_eq!((kind as u8, Kind::named(kind.name())), (n, Some(kind)));
        }
        assert_eq!(Kind::from_number(13), None);
        for n in 0..8 {
            assert_eq!(Source::from_number(n).map(|s| s as u8), Some(n));
        }
        assert_eq!(Source::from_number(8), None);
    }

    #[test]
    fn a_return_fails_by_its_exit_code() {
        assert!(Flags::RETCODE_KNOWN.failed(2));
        assert!(!Flags::RETCODE_KNOWN.failed(0));
        assert!(!Flags::default().failed(2), "without a known code");
    }
}
