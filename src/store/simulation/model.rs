//! What was sent, what was answered, and what must therefore be in the store: a plain list.

use std::collections::{BTreeMap, BTreeSet};

use super::super::tests::jid;
use super::Dice;
use super::hostile;
use crate::clock::Micros;
use crate::model::{Batch, Entry, Flags, Kind, SeqNo, Source};
use crate::store::StoredEntry;
use crate::wire::msgpack::{self, Writer};
use crate::wire::salt_event::{event_entry, peek};

/// Something to send, as the random operations describe it.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Which kind of entry, by which source.
    pub(super) what: u8,
    /// Of which job.
    pub(super) job: u8,
    /// Of which minion.
    pub(super) minion: u8,
    /// How large.
    pub(super) size: u16,
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{}", self.what, self.job, self.minion, self.size)
    }
}

/// How many there are for [`Shape::what`].
pub(super) const WHATS: u8 = 13;

/// The classes that the configurations of the simulation have.
pub(super) const CLASS_NAMES: [&str; 5] = ["jobs", "events", "beacons", "auth", "returns"];

/// One thing that was sent, perhaps several times. Its number stands in its body.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) kind: Kind,
    source: Source,
    tag: Vec<u8>,
    pub(super) jid: String,
    minion: String,
    on_bus: bool,
    pub(super) body: Vec<u8>,
    pub(super) loss: Loss,
    /// Is what was answered surely on disk?
    settled: bool,
    /// How many of it there are if each sending is an event of its own: as many as the source showed that showed most.
    equal: usize,
    /// How often it may be stored again, because it came later than the duplicate memory reaches.
    extra: usize,
    pub(super) attempts: Vec<Attempt>,
}

/// May an item be missing that was readable?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    No,
    /// It was damaged, or not synced when the power went.
    Excused,
    /// Retention has dropped it. A power cut may bring it back.
    Dropped,
}

/// One sending.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    source: Source,
    /// Counts all attempts of all items.
    pub(super) order: u64,
    /// The class that it went to.
    class: &'static str,
    /// Was it answered that it is stored?
    pub(super) acknowledged: bool,
}

/// All that was sent, and where it was found.
#[derive(Debug, Default, Clone)]
pub(super) struct Model {
    pub(super) items: Vec<Item>,
    attempts: u64,
    /// Item by sequence number, as of every look so far.
    pub(super) found: BTreeMap<u64, usize>,
    /// The numbers that were there at the last look.
    pub(super) readable: BTreeSet<u64>,
    /// Everything before this was readable.
    pub(super) durable: SeqNo,
    /// Jobs that are held.
    held: BTreeSet<String>,
    /// Fingerprints in one generation of the duplicate memory.
    window: usize,
    /// Did a sync fail behind what was answered? Then nobody knows what is on disk.
    pub(super) sync_failed: bool,
    /// Has anything that was stored been damaged? What is made out of the log then knows more than the log.
    pub(super) damaged: bool,
    /// Did something go that was answered and not synced?
    pub(super) lost_unsynced: bool,
}

fn body(n: usize, shape: Shape, keys: &[(&str, &str)]) -> Vec<u8> {
    // Every hundredth has a block of its own; half of each does not compress.
    let len = if shape.size.is_multiple_of(100) { 300_000 } else { usize::from(shape.size) };
    let mut dice = Dice::new(n as u64);
    let blob: Vec<u8> =
        (0..len).map(|at| if at % 64 < 32 { u8::try_from(dice.below(256)).unwrap() } else { b'x' }).collect();
    let mut w = Writer::new();
    w.map(keys.len() + 3).str("n").uint(n as u64).str("fun").str("test.echo");
    for (key, value) in keys {
        w.str(key).str(value);
    }
    w.str("return").array(2).uint(n as u64).bin(&blob);
    w.into_bytes()
}

impl Item {
    fn new(n: usize, shape: Shape) -> Self {
        let job = u64::from(shape.job);
        let jid = match job % 3 {
            0 => jid(job),
            1 => format!("{}_4711", jid(job)),
            _ => format!("by hand {job}"),
        };
        let minion = format!("web{}", shape.minion);
        let answer = [("jid", jid.as_str()), ("id", &minion)];
        let fired = [("jid", jid.as_str()), ("id", &minion), ("cmd", "_return"), ("_stamp", "now")];
        let loaded = |map: Vec<u8>| {
            let mut w = Writer::new();
            w.array(2).raw(&map).nil();
            w.into_bytes()
        };
        let words = |words: String| {
            let mut w = Writer::new();
            w.str(&words);
            w.into_bytes()
        };
        let event = |tag: String, source, keys: &[(&str, &str)]| {
            let body = body(n, shape, keys);
            let entry = event_entry(tag.as_bytes(), &body, source, Micros(0));
            let (kind, jid, minion) = (entry.kind, entry.jid.to_owned(), entry.minion.to_owned());
            let (tag, attempts) = (tag.into_bytes(), Vec::new());
            Self { kind, source, tag, jid, minion, on_bus: true, body, attempts, ..Self::blank() }
        };
        let fact = |kind, tag: String, on_bus, body| Self {
            kind,
            source: Source::Returner,
            minion: if kind == Kind::Return { minion.clone() } else { String::new() },
            jid: if kind == Kind::Register { String::new() } else { jid.clone() },
            tag: tag.into_bytes(),
            on_bus,
            body,
            ..Self::blank()
        };
        let ret = format!("salt/job/{jid}/ret/{minion}");
        match shape.what {
            0 => event(format!("salt/beacon/{minion}/load/"), Source::Bus, &[]),
            1 => event(format!("salt/auth/{n}"), Source::EventReturn, &[("id", &minion)]),
            2 => event(format!("salt/job/{jid}/new"), Source::Bus, &answer),
            3 => event(ret, Source::Bus, &answer),
            4 => event(ret, Source::EventReturn, &fired),
            5 => event(format!("salt/job/{jid}/prog/{minion}/{n}"), Source::Bus, &[]),
            6 => fact(Kind::Return, ret, false, body(n, shape, &answer)),
            7 => fact(Kind::Return, ret, true, body(n, shape, &fired)),
            8 => fact(Kind::Load, String::new(), false, loaded(body(n, shape, &answer))),
            9 => fact(Kind::ReturnLoad, String::new(), false, loaded(body(n, shape, &answer))),
            10 => fact(Kind::Minions, String::new(), false, loaded(words(format!("minions {n}")))),
            11 => fact(Kind::Endtime, String::new(), false, words(format!("end {n}"))),
            _ => fact(Kind::Register, String::new(), false, words(format!("register {n}"))),
        }
    }

    fn blank() -> Self {
        Self {
            kind: Kind::Event,
            source: Source::Bus,
            tag: Vec::new(),
            jid: String::new(),
            minion: String::new(),
            on_bus: true,
            body: Vec::new(),
            loss: Loss::No,
            settled: false,
            equal: 0,
            extra: 0,
            attempts: Vec::new(),
        }
    }

    /// A return with a body that looks like frames. `blob` makes it for the place in the body where it begins.
    fn hostile(n: usize, blob: impl FnOnce(usize) -> Vec<u8>) -> Self {
        let shape = Shape { what: 6, job: 0, minion: 0, size: 1 };
        let mut item = Self::new(n, shape);
        let body = |blob: &[u8]| {
            let mut w = Writer::new();
            w.map(4).str("n").uint(n as u64).str("fun").str("test.echo").str("jid").str(&item.jid);
            w.str("return").bin(blob);
            w.into_bytes()
        };
        let begin = body(&vec![0; hostile::LEN]).len() - hostile::LEN;
        item.body = body(&blob(begin));
        item
    }

    /// The class that it goes to with such a configuration.
    fn class_of(&self, classes: u8) -> &'static str {
        let tag = std::str::from_utf8(&self.tag).unwrap_or_default();
        match classes {
            1 if tag.starts_with("salt/beacon/") => "beacons",
            2 if tag.starts_with("salt/auth/") => "auth",
            2 if tag.starts_with("salt/job/") && tag.contains("/ret/") => "returns",
            _ if self.kind == Kind::Event && self.jid.is_empty() => "events",
            _ => "jobs",
        }
    }

    /// What was answered of it may be gone.
    fn excuse(&mut self) {
        if self.loss == Loss::No {
            self.loss = Loss::Excused;
        }
        self.settled = false;
        self.attempts.iter_mut().for_each(|attempt| attempt.acknowledged = false);
    }

    fn push(&self, n: usize, source: Source, to: &mut Batch) {
        let seen = peek(&self.body);
        let flags = if self.kind == Kind::Return { seen.flags() } else { Flags::default() };
        let flags = if self.on_bus { flags.with(Flags::ON_BUS) } else { flags };
        let at = Micros(i64::try_from(n).unwrap());
        let (kind, tag, jid, minion, body) =
            (self.kind, &self.tag[..], &self.jid[..], &self.minion[..], &self.body[..]);
        to.push(
            &Entry { kind, source: source, flags, at, tag, jid, minion, fun: "test.echo", retcode: 0, body },
            None,
        );
    }

    /// The source by which it can come again and is known to be the same; none if by no other.
    fn next_door(&self) -> Source {
        let used = |source| self.attempts.iter().any(|attempt| attempt.source == source);
        match self.source {
            Source::Returner => Source::SpooledReturner,
            _ if used(Source::EventReturn) => Source::SpooledEventReturn,
            _ => Source::EventReturn,
        }
    }

    /// Every word of these is kept.
    fn is_word(&self) -> bool {
        matches!(self.kind, Kind::Register | Kind::Endtime)
    }

    fn acknowledged(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.acknowledged).count()
    }

    /// How often it may be in the store, at least and at most.
    pub(super) fn copies(&self) -> (usize, usize) {
        if self.loss == Loss::Dropped {
            return (0, self.attempts.len());
        }
        if self.is_word() {
            return (self.acknowledged(), self.attempts.len());
        }
        if self.equal > 0 {
            return (if self.acknowledged() == 0 { 0 } else { self.equal }, self.equal);
        }
        (self.acknowledged().min(1), 1 + self.extra)
    }

    pub(super) fn compare(&self, n: usize, found: &StoredEntry) {
        assert_eq!(found.kind, self.kind, "the kind of {n}");
        assert_eq!(found.tag, self.tag, "the tag of {n}");
        assert_eq!(found.jid, self.jid, "the jid of {n}");
        assert_eq!(found.minion, self.minion, "the minion of {n}");
        assert_eq!(found.fun, "test.echo", "the function of {n}");
        assert_eq!(found.at, Micros(i64::try_from(n).unwrap()), "the time of {n}");
        assert!(found.body == self.body, "the body of {n}");
        let sources: Vec<_> = self.attempts.iter().map(|attempt| attempt.source).collect();
        assert!(sources.contains(&found.source), "{n} came by {sources:?}, not by {:?}", found.source);
        let differs = found.flags.has(Flags::ON_BUS) != self.on_bus;
        // A return that a returner call vouches for is no event if the bus showed another one before.
        assert!(!differs || (self.on_bus && self.kind == Kind::Return), "the flags of {n}");
        let confirmed = self.kind != Kind::Return || found.source.confirms();
        assert_eq!(found.flags.has(Flags::UNCONFIRMED), !confirmed, "is {n} confirmed?");
    }
}

/// Which item this is: its number stands in its body. None for what nobody sent.
pub(super) fn number(entry: &StoredEntry) -> Option<usize> {
    let words = msgpack::as_text(&entry.body).or_else(|| {
        let first = msgpack::elements(&entry.body).next()?;
        msgpack::as_text(first)
    });
    if let Some(words) = words {
        return words.rsplit(' ').next()?.parse().ok();
    }
    let map = if matches!(entry.kind, Kind::Load | Kind::ReturnLoad) {
        msgpack::elements(&entry.body).next()?
    } else {
        &entry.body
    };
    usize::try_from(msgpack::get(map, "n").and_then(msgpack::as_int)?).ok()
}

impl Model {
    /// Nothing is sent yet, to a store with such a duplicate memory.
    pub(super) fn new(window: usize) -> Self {
        Self { window, ..Self::default() }
    }

    /// Makes new items of some shapes, and a batch of them.
    pub(super) fn batch(&mut self, shapes: &[Shape], classes: u8) -> (Vec<usize>, Batch) {
        let mut batch = Batch::default();
        let mut numbers = Vec::new();
        for shape in shapes {
            let n = self.items.len();
            self.items.push(Item::new(n, *shape));
            let source = self.items[n].source;
            self.send(n, source, classes, &mut batch);
            numbers.push(n);
        }
        (numbers, batch)
    }

    /// Makes an item with a hostile body.
    pub(super) fn hostile(
        &mut self,
        classes: u8,
        blob: impl FnOnce(usize) -> Vec<u8>,
    ) -> (Vec<usize>, Batch) {
        let (n, mut batch) = (self.items.len(), Batch::default());
        self.items.push(Item::hostile(n, blob));
        self.send(n, Source::Returner, classes, &mut batch);
        (vec![n], batch)
    }

    /// Makes an event that each of some sources shows so many times, one after the other, and a batch of each.
    pub(super) fn equal_events(
        &mut self,
        sources: &[(Source, usize)],
        classes: u8,
    ) -> Vec<(Vec<usize>, Batch)> {
        let n = self.items.len();
        self.items.push(Item::new(n, Shape { what: 0, job: 0, minion: 1, size: 5 }));
        let of_door =
            |source: &Source| sources.iter().filter(|(d, _)| d == source).map(|(_, times)| *times).sum();
        self.items[n].equal = sources.iter().map(|(source, _)| of_door(source)).max().unwrap_or(0);
        let one = |(source, times): &(Source, usize)| {
            let mut batch = Batch::default();
            (0..*times).for_each(|_| self.send(n, *source, classes, &mut batch));
            (vec![n], batch)
        };
        sources.iter().map(one).collect()
    }

    /// What was answered is on disk from here on.
    pub(super) fn settle(&mut self) {
        if !self.sync_failed {
            for item in &mut self.items {
                item.settled |= item.acknowledged() > 0;
            }
        }
    }

    /// The power went: what was answered and not synced may be gone.
    pub(super) fn lose_unsynced(&mut self) {
        for item in self.items.iter_mut().filter(|item| !item.settled) {
            self.lost_unsynced |= item.acknowledged() > 0;
            item.excuse();
        }
        self.durable = SeqNo::default();
        // Of what was stored again, the later copies may be the unsynced ones.
        let mut seen = BTreeSet::new();
        self.found.retain(|_, n| seen.insert(*n));
    }

    /// The entries with these numbers were damaged.
    pub(super) fn damage(&mut self, seqs: &[SeqNo]) {
        self.damaged = true;
        for n in seqs.iter().filter_map(|seq| self.found.get(&seq.0)) {
            self.items[*n].excuse();
        }
    }

    /// Were all of these numbers there at the last look, as far as they ever were?
    pub(super) fn has_read(&self, seqs: &[SeqNo]) -> bool {
        seqs.iter().all(|seq| self.readable.contains(&seq.0) || !self.found.contains_key(&seq.0))
    }

    /// Has anything that was stored been damaged?
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The number after the last one that was found.
    pub(super) fn next_seq(&self) -> u64 {
        self.found.keys().next_back().map_or(1, |last| last + 1)
    }

    /// Sends items once more, by other sources than before.
    pub(super) fn again(&mut self, numbers: &[usize], classes: u8) -> Batch {
        let mut batch = Batch::default();
        for n in numbers {
            let source = self.items[*n].next_door();
            self.send(*n, source, classes, &mut batch);
        }
        batch
    }

    fn send(&mut self, n: usize, source: Source, classes: u8, batch: &mut Batch) {
        let item = &mut self.items[n];
        item.push(n, source, batch);
        // An entry has two fingerprints at most. A start remembers what is stored, as of when that was.
        let since = item.attempts.first().map_or(0, |last| self.attempts - last.order);
        item.extra += usize::from(since * 3 > self.window as u64);
        let class = item.class_of(classes);
        item.attempts.push(Attempt { source, order: self.attempts, class, acknowledged: false });
        self.attempts += 1;
    }

    /// The last sending of these was answered.
    pub(super) fn acknowledge(&mut self, numbers: &[usize]) {
        for n in numbers {
            let item = &mut self.items[*n];
            item.attempts.last_mut().unwrap().acknowledged = true;
        }
    }

    /// Items of which no sending was answered.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |item: &Item| item.acknowledged() == 0 && item.loss != Loss::Excused && item.equal == 0;
        (0..self.items.len()).filter(|n| is_open(&self.items[*n])).collect()
    }

    /// Items that can come again by another source and be known.
    pub(super) fn foldable(&self, n: usize) -> Option<usize> {
        let n = n.checked_rem(self.items.len())?;
        (!self.items[n].is_word() && self.items[n].equal == 0).then_some(n)
    }

    /// The last items that can come again and be known, at most so many.
    pub(super) fn recent(&self, count: usize) -> Vec<usize> {
        let from = self.items.len().saturating_sub(count);
        (from..self.items.len()).filter_map(|n| self.foldable(n)).collect()
    }

    /// A job that something was sent of is held from now on.
    pub(super) fn hold(&mut self, n: usize) -> Option<String> {
        let jid = self.items.get(n.checked_rem(self.items.len())?)?.jid.clone();
        let jid = Some(jid).filter(|jid| !jid.is_empty())?;
        self.held.insert(jid.clone());
        Some(jid)
    }

    /// Retention has dropped a segment of a class with these numbers.
    pub(super) fn drop_segment(&mut self, class: &str, numbers: std::ops::Range<u64>) {
        for (_, n) in self.found.range(numbers) {
            let item = &mut self.items[*n];
            let is_in = |attempt: &Attempt| attempt.class == class;
            // Bytes that rotted belong to no job any more.
            if item.attempts.iter().all(is_in) && item.loss == Loss::No {
                assert!(!self.held.contains(&item.jid), "{n} went, and its job {} is held", item.jid);
            }
            // Which sending of it is stored only the store knows, if the classes changed meanwhile.
            if item.attempts.iter().any(is_in) {
                item.loss = Loss::Dropped;
            }
        }
    }
}
