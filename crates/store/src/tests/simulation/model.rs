//! The model: every item that was sent, its acknowledgements, and the copies of it that the store must contain.

use std::collections::{BTreeMap, BTreeSet};

use super::Random;
use super::hostile;
use crate::StoredEntry;
use crate::tests::jid;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Batch, Entry, Flags, Kind, SeqNo, Source};
use saltcellar_wire::msgpack::{self, Writer};
use saltcellar_wire::salt_event::{event_entry, peek};

/// An item to send.
#[derive(Clone, Copy)]
pub(super) struct ItemSpec {
    /// Selects kind and source; see [`Item::new`].
    pub(super) variant: u8,
    pub(super) job: u8,
    pub(super) minion: u8,
    pub(super) size: u16,
}

impl std::fmt::Debug for ItemSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.variant, self.job, self.minion, self.size
        )
    }
}

/// Number of values of [`ItemSpec::variant`].
pub(super) const VARIANTS: u8 = 13;

/// All classes of the configurations in the simulation.
pub(super) const CLASS_NAMES: [&str; 5] = ["jobs", "events", "beacons", "auth", "returns"];

/// An item that was sent, once or several times. Its body contains its index.
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
    /// The acknowledged data is certainly on disk.
    settled: bool,
    /// For equal events that count separately, the largest number that one source delivered.
    /// Otherwise 0.
    equal: usize,
    /// Permitted additional copies, of retries that are outside the dedupe window.
    extra: usize,
    pub(super) attempts: Vec<Attempt>,
}

/// Permission for a readable item to disappear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    No,
    /// Damaged, or not synced before a power loss.
    Excused,
    /// Dropped by retention. A power loss may restore it.
    Dropped,
}

/// One transmission of an item.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    source: Source,
    /// Index among all attempts of all items.
    pub(super) order: u64,
    class: &'static str,
    pub(super) acknowledged: bool,
}

/// All sent items, and the sequence numbers found so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Model {
    pub(super) items: Vec<Item>,
    attempts: u64,
    /// Index of the item by sequence number, from all checks so far.
    pub(super) found: BTreeMap<u64, usize>,
    /// Sequence numbers found by the last check.
    pub(super) readable: BTreeSet<u64>,
    /// The durable position at the last check.
    pub(super) durable: SeqNo,
    held: BTreeSet<String>,
    /// Fingerprints in one generation of the dedupe window.
    window: usize,
    /// Stored data was damaged. Indexes may then contain entries that the log has lost.
    pub(super) damaged: bool,
    /// Acknowledged entries that were not synced were lost.
    pub(super) lost_unsynced: bool,
}

fn body(n: usize, spec: ItemSpec, keys: &[(&str, &str)]) -> Vec<u8> {
    // Every hundredth item fills a block; half of each body is incompressible.
    let len = if spec.size.is_multiple_of(100) {
        300_000
    } else {
        usize::from(spec.size)
    };
    let mut rng = Random::new(n as u64);
    let blob: Vec<u8> = (0..len)
        .map(|at| {
            if at % 64 < 32 {
                u8::try_from(rng.below(256)).unwrap()
            } else {
                b'x'
            }
        })
        .collect();
    let mut w = Writer::new();
    w.map(keys.len() + 3)
        .str("n")
        .uint(n as u64)
        .str("fun")
        .str("test.echo");
    for (key, value) in keys {
        w.str(key).str(value);
    }
    w.str("return").array(2).uint(n as u64).bin(&blob);
    w.into_bytes()
}

impl Item {
    fn new(n: usize, spec: ItemSpec) -> Self {
        let job = u64::from(spec.job);
        let jid = match job % 3 {
            0 => jid(job),
            1 => format!("{}_4711", jid(job)),
            _ => format!("by hand {job}"),
        };
        let minion = format!("web{}", spec.minion);
        let answer = [("jid", jid.as_str()), ("id", &minion)];
        let fired = [
            ("jid", jid.as_str()),
            ("id", &minion),
            ("cmd", "_return"),
            ("_stamp", "now"),
        ];
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
            let body = body(n, spec, keys);
            let entry = event_entry(tag.as_bytes(), &body, source, Micros(0));
            let (kind, jid, minion) = (entry.kind, entry.jid.to_owned(), entry.minion.to_owned());
            let (tag, attempts) = (tag.into_bytes(), Vec::new());
            Self {
                kind,
                source,
                tag,
                jid,
                minion,
                on_bus: true,
                body,
                attempts,
                ..Self::blank()
            }
        };
        let record = |kind, tag: String, on_bus, body| Self {
            kind,
            source: Source::Returner,
            minion: if kind == Kind::Return {
                minion.clone()
            } else {
                String::new()
            },
            jid: if kind == Kind::Register {
                String::new()
            } else {
                jid.clone()
            },
            tag: tag.into_bytes(),
            on_bus,
            body,
            ..Self::blank()
        };
        let ret = format!("salt/job/{jid}/ret/{minion}");
        match spec.variant {
            0 => event(format!("salt/beacon/{minion}/load/"), Source::Bus, &[]),
            1 => event(
                format!("salt/auth/{n}"),
                Source::EventReturn,
                &[("id", &minion)],
            ),
            2 => event(format!("salt/job/{jid}/new"), Source::Bus, &answer),
            3 => event(ret, Source::Bus, &answer),
            4 => event(ret, Source::EventReturn, &fired),
            5 => event(
                format!("salt/job/{jid}/prog/{minion}/{n}"),
                Source::Bus,
                &[],
            ),
            6 => record(Kind::Return, ret, false, body(n, spec, &answer)),
            7 => record(Kind::Return, ret, true, body(n, spec, &fired)),
            8 => record(
                Kind::Load,
                String::new(),
                false,
                loaded(body(n, spec, &answer)),
            ),
            9 => record(
                Kind::ReturnLoad,
                String::new(),
                false,
                loaded(body(n, spec, &answer)),
            ),
            10 => record(
                Kind::Minions,
                String::new(),
                false,
                loaded(words(format!("minions {n}"))),
            ),
            11 => record(
                Kind::Endtime,
                String::new(),
                false,
                words(format!("end {n}")),
            ),
            _ => record(
                Kind::Register,
                String::new(),
                false,
                words(format!("register {n}")),
            ),
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

    /// A return with a body that looks like frames; `blob` gets the offset in the body at which it will begin.
    fn hostile(n: usize, blob: impl FnOnce(usize) -> Vec<u8>) -> Self {
        let spec = ItemSpec {
            variant: 6,
            job: 0,
            minion: 0,
            size: 1,
        };
        let mut item = Self::new(n, spec);
        let body = |blob: &[u8]| {
            let mut w = Writer::new();
            w.map(4)
                .str("n")
                .uint(n as u64)
                .str("fun")
                .str("test.echo")
                .str("jid")
                .str(&item.jid);
            w.str("return").bin(blob);
            w.into_bytes()
        };
        let begin = body(&vec![0; hostile::LEN]).len() - hostile::LEN;
        item.body = body(&blob(begin));
        item
    }

    /// The class of the item in a configuration.
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

    /// Permits the loss of acknowledged copies.
    fn excuse(&mut self) {
        if self.loss == Loss::No {
            self.loss = Loss::Excused;
        }
        self.settled = false;
        self.attempts
            .iter_mut()
            .for_each(|attempt| attempt.acknowledged = false);
    }

    fn push(&self, n: usize, source: Source, to: &mut Batch) {
        let seen = peek(&self.body);
        let flags = if self.kind == Kind::Return {
            seen.columns().0
        } else {
            Flags::default()
        };
        let flags = if self.on_bus {
            flags.with(Flags::ON_BUS)
        } else {
            flags
        };
        let at = Micros(i64::try_from(n).unwrap());
        let (kind, tag, jid, minion, body) = (
            self.kind,
            &self.tag[..],
            &self.jid[..],
            &self.minion[..],
            &self.body[..],
        );
        to.push(
            &Entry {
                kind,
                source,
                origin: self.origin(),
                number: 0,
                flags,
                at,
                tag,
                jid,
                minion,
                fun: "test.echo",
                retcode: 0,
                body,
            },
            None,
        );
    }

    /// The master that fired it, the same for each attempt.
    fn origin(&self) -> &'static str {
        // Chosen by the length, which gives blocks entries of several masters.
        ["", "", "master2", "10.0.0.3"][self.body.len() % 4]
    }

    /// A source through which a retry is recognised as a duplicate.
    fn resend_source(&self) -> Source {
        let used = |source| self.attempts.iter().any(|attempt| attempt.source == source);
        match self.source {
            Source::Returner => Source::SpooledReturner,
            _ if used(Source::EventReturn) => Source::SpooledEventReturn,
            _ => Source::EventReturn,
        }
    }

    /// Entries of these kinds are never deduplicated.
    fn is_never_deduplicated(&self) -> bool {
        matches!(self.kind, Kind::Register | Kind::Endtime)
    }

    fn acknowledged(&self) -> usize {
        self.attempts
            .iter()
            .filter(|attempt| attempt.acknowledged)
            .count()
    }

    /// Minimum and maximum number of copies in the store.
    pub(super) fn copies(&self) -> (usize, usize) {
        if self.loss == Loss::Dropped {
            return (0, self.attempts.len());
        }
        if self.is_never_deduplicated() {
            return (self.acknowledged(), self.attempts.len());
        }
        if self.equal > 0 {
            return (
                if self.acknowledged() == 0 {
                    0
                } else {
                    self.equal
                },
                self.equal,
            );
        }
        (self.acknowledged().min(1), 1 + self.extra)
    }

    pub(super) fn compare(&self, n: usize, found: &StoredEntry) {
        assert_eq!(found.kind, self.kind, "the kind of {n}");
        assert_eq!(found.tag, self.tag, "the tag of {n}");
        assert_eq!(found.jid, self.jid, "the jid of {n}");
        assert_eq!(found.minion, self.minion, "the minion of {n}");
        assert_eq!(found.origin, self.origin(), "the master of {n}");
        assert_eq!(found.fun, "test.echo", "the function of {n}");
        assert_eq!(
            found.at,
            Micros(i64::try_from(n).unwrap()),
            "the time of {n}"
        );
        assert!(found.body == self.body, "the body of {n}");
        let sources: Vec<_> = self.attempts.iter().map(|attempt| attempt.source).collect();
        assert!(
            sources.contains(&found.source),
            "{n} was sent through {sources:?}, not {:?}",
            found.source
        );
        let differs = found.flags.has(Flags::ON_BUS) != self.on_bus;
        // A confirmed return is not marked as an event if the bus delivered a different one before.
        assert!(
            !differs || (self.on_bus && self.kind == Kind::Return),
            "the flags of {n}"
        );
        let confirmed = self.kind != Kind::Return || found.source.confirms();
        assert_eq!(
            found.flags.has(Flags::UNCONFIRMED),
            !confirmed,
            "is {n} confirmed?"
        );
    }
}

/// The index of a stored item, from its body. `None` if the entry was never sent.
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
    pub(super) fn new(window: usize) -> Self {
        Self {
            window,
            ..Self::default()
        }
    }

    pub(super) fn batch(&mut self, specs: &[ItemSpec], classes: u8) -> (Vec<usize>, Batch) {
        let mut batch = Batch::default();
        let mut numbers = Vec::new();
        for spec in specs {
            let n = self.items.len();
            self.items.push(Item::new(n, *spec));
            let source = self.items[n].source;
            self.send(n, source, classes, &mut batch);
            numbers.push(n);
        }
        (numbers, batch)
    }

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

    /// Creates an event that each source sends this many times, in order, and the batch of each source.
    pub(super) fn equal_events(
        &mut self,
        sources: &[(Source, usize)],
        classes: u8,
    ) -> Vec<(Vec<usize>, Batch)> {
        let n = self.items.len();
        self.items.push(Item::new(
            n,
            ItemSpec {
                variant: 0,
                job: 0,
                minion: 1,
                size: 5,
            },
        ));
        let times_of = |source: &Source| {
            sources
                .iter()
                .filter(|(d, _)| d == source)
                .map(|(_, times)| *times)
                .sum()
        };
        self.items[n].equal = sources
            .iter()
            .map(|(source, _)| times_of(source))
            .max()
            .unwrap_or(0);
        let one = |(source, times): &(Source, usize)| {
            let mut batch = Batch::default();
            (0..*times).for_each(|_| self.send(n, *source, classes, &mut batch));
            (vec![n], batch)
        };
        sources.iter().map(one).collect()
    }

    /// Marks all acknowledged data as durable.
    pub(super) fn settle(&mut self) {
        for item in &mut self.items {
            item.settled |= item.acknowledged() > 0;
        }
    }

    /// A power loss: acknowledged data that is not synced may be lost.
    pub(super) fn lose_unsynced(&mut self) {
        for item in self.items.iter_mut().filter(|item| !item.settled) {
            self.lost_unsynced |= item.acknowledged() > 0;
            item.excuse();
        }
        self.durable = SeqNo::default();
        // Of several copies, the later copies may be unsynced.
        let mut seen = BTreeSet::new();
        self.found.retain(|_, n| seen.insert(*n));
    }

    /// Records damage of the entries with these sequence numbers.
    pub(super) fn damage(&mut self, seqs: &[SeqNo]) {
        self.damaged = true;
        for n in seqs.iter().filter_map(|seq| self.found.get(&seq.0)) {
            self.items[*n].excuse();
        }
    }

    /// Returns whether the last check found all of these sequence numbers that were ever found.
    pub(super) fn has_read(&self, seqs: &[SeqNo]) -> bool {
        seqs.iter()
            .all(|seq| self.readable.contains(&seq.0) || !self.found.contains_key(&seq.0))
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The sequence number after the last one found.
    pub(super) fn next_seq(&self) -> u64 {
        self.found.keys().next_back().map_or(1, |last| last + 1)
    }

    /// Sends items again, through sources that were not used before.
    pub(super) fn resend(&mut self, numbers: &[usize], classes: u8) -> Batch {
        let mut batch = Batch::default();
        for n in numbers {
            let source = self.items[*n].resend_source();
            self.send(*n, source, classes, &mut batch);
        }
        batch
    }

    fn send(&mut self, n: usize, source: Source, classes: u8, batch: &mut Batch) {
        let item = &mut self.items[n];
        item.push(n, source, batch);
        // An entry has at most two fingerprints. A start refills the window from the log, in the order of storing.
        let since = item
            .attempts
            .first()
            .map_or(0, |last| self.attempts - last.order);
        item.extra += usize::from(since * 3 > self.window as u64);
        let class = item.class_of(classes);
        item.attempts.push(Attempt {
            source,
            order: self.attempts,
            class,
            acknowledged: false,
        });
        self.attempts += 1;
    }

    /// Marks the last attempt of these items as acknowledged.
    pub(super) fn acknowledge(&mut self, numbers: &[usize]) {
        for n in numbers {
            let item = &mut self.items[*n];
            item.attempts.last_mut().unwrap().acknowledged = true;
        }
    }

    /// Items without an acknowledged attempt.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open =
            |item: &Item| item.acknowledged() == 0 && item.loss != Loss::Excused && item.equal == 0;
        (0..self.items.len())
            .filter(|n| is_open(&self.items[*n]))
            .collect()
    }

    /// Returns an item that can be resent and recognised as a duplicate.
    pub(super) fn resendable(&self, n: usize) -> Option<usize> {
        let n = n.checked_rem(self.items.len())?;
        (!self.items[n].is_never_deduplicated() && self.items[n].equal == 0).then_some(n)
    }

    /// The last items that can be resent, at most `count`.
    pub(super) fn recent(&self, count: usize) -> Vec<usize> {
        let from = self.items.len().saturating_sub(count);
        (from..self.items.len())
            .filter_map(|n| self.resendable(n))
            .collect()
    }

    /// Places a hold on the job of an item; returns its jid.
    pub(super) fn hold(&mut self, n: usize) -> Option<String> {
        let jid = self
            .items
            .get(n.checked_rem(self.items.len())?)?
            .jid
            .clone();
        let jid = Some(jid).filter(|jid| !jid.is_empty())?;
        self.held.insert(jid.clone());
        Some(jid)
    }

    /// Records that retention dropped a segment with these sequence numbers.
    pub(super) fn drop_segment(&mut self, class: &str, numbers: std::ops::Range<u64>) {
        for (_, n) in self.found.range(numbers) {
            let item = &mut self.items[*n];
            let is_in = |attempt: &Attempt| attempt.class == class;
            // Damaged entries may no longer be found by job.
            if item.attempts.iter().all(is_in) && item.loss == Loss::No {
                assert!(
                    !self.held.contains(&item.jid),
                    "{n} was dropped, but its job {} is held",
                    item.jid
                );
            }
            // After a change of classes only the store knows which attempt it stored.
            if item.attempts.iter().any(is_in) {
                item.loss = Loss::Dropped;
            }
        }
    }
}
