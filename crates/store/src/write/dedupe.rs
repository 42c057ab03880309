//! Deduplication across sources.
//!
//! A master delivers the same map up to four times: on its event bus, through `event_return`, and as the argument of
//! `save_load` and of `returner` (`salt/utils/job.py`; byte for byte in the recorded calls of 3006 to 3008). An event is
//! therefore identified by its tag and its bytes.
//!
//! Two distinct events may be equal, because the bus adds no number. Occurrences are therefore
//! counted per source, and an event is a duplicate only if another source has already delivered it
//! at least as often. As many are stored as the source with the most occurrences delivers. Spooled
//! and live deliveries count as different sources, because a spooled call may have been stored
//! before.
//!
//! A call with the whole event, `save_load` or `returner`, is not counted that way: the map
//! contains the stamp of its event, so the same bytes are the same return, from any source.
//!
//! Any peer that may fire events can forge one under `salt/job/<jid>/ret/<id>`, and Salt trims
//! large returns before it fires them. Therefore the first returner call for a return known only
//! from a bus is stored as well, but not as an event, because event lists show it once. Job readers
//! rely on it ([`Flags::UNCONFIRMED`]), whether it repeats or contradicts the event.
//!
//! A master of a cluster calls `returner` for the events of its peers as well
//! ([`Entry::confirms`](saltcellar_model::Entry::confirms) is false). Such a call repeats its
//! event: it is stored only if no source has delivered the event, and the event is then a
//! duplicate.
//!
//! An entry that a peer of a cluster sent itself has a number there, by which its source knows
//! repetitions. Here it is another delivery of what this master's bus may bring as well
//! ([`counted_as`]).
//!
//! What is not stored as an event is counted apart and does not count as an occurrence of the event: otherwise a forged event
//! before the call would hide the event that the bus brings after it. The memory after a start is the same, because a stored
//! entry shows whether it is an event.
//!
//! A minion's own `--return` has fewer keys than the event; it is the same return if job, minion, `return`, `retcode`
//! and `success` are equal.
//!
//! Only another source can make an event a duplicate. Therefore while a single one has delivered events of a kind, their keys are only
//! listed, and the list is counted once another source delivers one ([`Deliveries`]).
//!
//! # Limits
//!
//! The memory has two generations, each of twice as many fingerprints as [`DEDUPE_WINDOW`](saltcellar_base::limits::DEDUPE_WINDOW):
//! an event contains one, a return two or three. A duplicate that is later than one generation has fingerprints may be stored again; job readers still fold equal returns. At start
//! the memory is refilled from the newest entries of all classes (`refill`).

use std::collections::VecDeque;

use saltcellar_model::{Fingerprints, Flags, Kind, SeqNo, Source, chained};

/// A hash table with open addressing: keys are hashes already, and nothing is ever removed. A
/// lookup therefore usually reads one cache line. The default of a value stands for none.
#[derive(Debug)]
struct Table<V> {
    /// Key and value; key 0 is a free slot. Their number is a power of two.
    slots: Vec<(u64, V)>,
    used: usize,
    /// Slots of the table when it is full.
    slots_max: usize,
}

impl<V: Copy + Default + PartialEq> Table<V> {
    /// Slots of a table before its first entry.
    const SLOTS_MIN: usize = 1024;

    /// Slots from which a table grows to its full size in one step: a later step would stop the
    /// appender for milliseconds, mostly for fresh memory, and a table this large will most likely
    /// be full.
    const SLOTS_MANY: usize = 64 * 1024;

    /// A table for this many keys.
    fn new(keys: usize) -> Self {
        Self {
            slots: vec![(0, V::default()); Self::SLOTS_MIN],
            used: 0,
            // A quarter of the slots stays free.
            slots_max: (keys * 4).div_ceil(3).next_power_of_two(),
        }
    }

    /// The preferred slot of a key, from its highest bits.
    #[inline]
    fn home(&self, key: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        usize::try_from(key >> (u64::BITS - bits)).unwrap_or(0)
    }

    /// The slot of a key, or the free one where it belongs.
    fn place(&self, key: u64) -> usize {
        let mut at = self.home(key);
        // Ends, because a quarter of the slots are free.
        while self
            .slots
            .get(at)
            .is_some_and(|(known, _)| *known != key && *known != 0)
        {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    fn get(&self, key: u64) -> Option<V> {
        let (_, value) = self.slots.get(self.place(key))?;
        // A reverted decision leaves the default, as a free slot has it.
        (*value != V::default()).then_some(*value)
    }

    /// The value of a key, which is added if it is new; and whether it is new.
    fn value(&mut self, key: u64) -> (&mut V, bool) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }

        let at = self.place(key);
        let (known, value) = self.slots.get_mut(at).expect("a place is a slot");
        let is_new = *known == 0;
        *known = key;
        self.used += usize::from(is_new);
        (value, is_new)
    }

    fn grow(&mut self) {
        let double = self.slots.len() * 2;
        let slots = if self.slots.len() < Self::SLOTS_MANY {
            double
        } else {
            double.max(self.slots_max)
        };
        let old = std::mem::replace(&mut self.slots, vec![(0, V::default()); slots]);
        for (key, value) in old.into_iter().filter(|(key, _)| *key != 0) {
            let at = self.place(key);
            *self.slots.get_mut(at).expect("a place is a slot") = (key, value);
        }
    }

    /// Removes all keys; the table then has at least as many slots as given.
    fn clear(&mut self, slots: usize) {
        self.used = 0;
        if self.slots.len() < slots {
            self.slots = vec![(0, V::default()); slots];
        } else {
            self.slots.fill((0, V::default()));
        }
    }

    /// Reads the slot where a key probably is.
    fn touch(&self, key: u64) -> u64 {
        self.slots
            .get(self.home(key))
            .map_or(0, |(known, _)| *known)
    }
}

/// A table with two generations; a full young generation becomes the old one, which is discarded.
#[derive(Debug)]
struct Generations<V> {
    young: Table<V>,
    old: Table<V>,
    window: usize,
}

impl<V: Copy + Default + PartialEq> Generations<V> {
    fn new(window: usize) -> Self {
        Self {
            young: Table::new(window),
            old: Table::new(window),
            window,
        }
    }

    /// The value of a key. One from the old generation is copied.
    fn slot(&mut self, key: u64) -> &mut V {
        if self.young.used >= self.window {
            // Swapping reuses the allocated table. The second generation becomes as full as the
            // first: if its table grew again, each step would stop the appender for milliseconds.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear(self.old.slots.len());
        }

        let (value, is_new) = self.young.value(key);
        if is_new && let Some(known) = self.old.get(key) {
            // Copied into the young generation: what is still met must not be forgotten with
            // the old one.
            *value = known;
        }
        value
    }

    fn get(&self, key: u64) -> Option<V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Reads what a later lookup of the key reads: many of these wait for memory together, lookups one after the other.
    fn touch(&self, key: u64) -> u64 {
        self.young.touch(key) ^ self.old.touch(key)
    }
}

/// The source whose occurrences an entry counts among. What a peer sent through the cluster's stream was at its own sources before,
/// so here it is one more delivery, as what comes from a spool: this master's bus may have brought it as well.
fn counted_as(entry: &saltcellar_model::Entry<'_>) -> Source {
    if entry.number == 0 {
        return entry.source;
    }
    match entry.source {
        Source::Returner | Source::SpooledReturner => Source::SpooledReturner,
        Source::Bus
        | Source::SpilledBus
        | Source::EventReturn
        | Source::SpooledEventReturn
        | Source::Zeromq => Source::SpooledEventReturn,
        Source::Reactor => Source::Reactor,
    }
}

/// What is remembered under a key.
#[derive(Debug, Clone, Copy)]
enum KeyOf {
    /// The counts of an event.
    Event = 1,
    /// The first return of a minion for a job.
    Answer = 2,
    /// The counts of a return that is not stored as an event.
    Apart = 3,
    /// Whether a call was delivered.
    Call = 4,
}

/// The key of a hash. Its lowest bits tell what was hashed and are never 0, so no key is 0.
fn key_of(hash: u64, of: KeyOf) -> u64 {
    hash & !7 | of as u64
}

/// Result of the check of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DedupeOutcome {
    /// Store it.
    New,
    /// Store it: the minion has returned from this job before, with another result.
    Differs,
    /// Store it, but not as an event: a returner call confirms a return known only from a bus.
    Confirms,
    /// A duplicate: do not store it.
    Known,
    /// A duplicate, but its first occurrence on a bus, which the reactor needs. Only after [`Dedupe::note_seen_on_bus`].
    SeenOnBus,
}

/// The first return of a minion for a job: its digest without the last two bits. One of these says
/// that there is a return, the other whether it came from a returner call, whose data the minion's
/// key signed. An event may be forged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct First(u64);

impl First {
    fn new(digest: u64, vouched: bool) -> Self {
        Self(digest & !3 | 2 | u64::from(vouched))
    }

    fn is_vouched(self) -> bool {
        self.0 & 1 == 1
    }

    fn has_digest(self, digest: u64) -> bool {
        (self.0 ^ digest) & !3 == 0
    }
}

/// Occurrences of an event per source.
type Counts = [u32; Source::COUNT];

/// [`Counts`] in the space of a hash, a byte per source: nearly every event contains one or two occurrences, and the memory of deduplication
/// should stay in the processor's caches. [`FewCounts::MANY`] refers to `Dedupe::many`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FewCounts([u8; Source::COUNT]);

impl From<u64> for FewCounts {
    fn from(known: u64) -> Self {
        Self(known.to_le_bytes())
    }
}

impl From<FewCounts> for u64 {
    fn from(FewCounts(counts): FewCounts) -> u64 {
        u64::from_le_bytes(counts)
    }
}

impl FewCounts {
    /// Some source has more occurrences than a byte can count.
    const MANY: Self = Self([u8::MAX; Source::COUNT]);
    /// An occurrence from each source.
    const ONE_OF_EACH: Self = Self([1; Source::COUNT]);

    fn of(counts: &Counts) -> Self {
        let mut few = [0; Source::COUNT];
        for (few, count) in few.iter_mut().zip(counts) {
            match u8::try_from(*count) {
                Ok(count) if count < u8::MAX => *few = count,
                _ => return Self::MANY,
            }
        }
        Self(few)
    }

    /// With one more occurrence from a source; `None` if a byte cannot count it.
    fn counted(mut self, source: Source) -> Option<Self> {
        let own = self.0.get_mut(source as usize)?;
        *own = own.checked_add(1).filter(|own| *own < u8::MAX)?;
        Some(self)
    }
}

/// What the counts of an event say about its last occurrence.
struct Occurrence {
    /// Another source has delivered the event as often.
    is_duplicate: bool,
    /// No bus has delivered it as often before.
    is_first_on_bus: bool,
}

impl Occurrence {
    /// `counts` include the occurrence, even if it turns out to be a duplicate: the next one of its source is compared with it.
    fn of<N: Copy + Ord + Default>(counts: &[N; Source::COUNT], source: Source) -> Self {
        let own = counts.get(source as usize).copied().unwrap_or_default();
        let others = counts.iter().enumerate();
        let others = others.filter(|(other, _)| *other != source as usize);
        let most = others.map(|(_, n)| *n).max().unwrap_or_default();

        // The spill only delays events of the bus, so both count as the bus here.
        let other_bus = match source {
            Source::Bus => Some(Source::SpilledBus),
            Source::SpilledBus => Some(Source::Bus),
            _ => None,
        };
        let is_first_on_bus = other_bus.is_some_and(|other| {
            let other = counts.get(other as usize).copied();
            own > other.unwrap_or_default()
        });

        Self {
            is_duplicate: own <= most,
            is_first_on_bus,
        }
    }
}

/// Who has delivered entries of a kind.
#[derive(Debug, Default)]
enum Deliveries {
    #[default]
    None,
    /// A single source: no event is a duplicate. Their keys, oldest first, are not counted yet.
    One(Source, VecDeque<u64>),
    /// Each event is counted immediately.
    Several,
}

#[derive(Debug)]
pub(crate) struct Dedupe {
    /// [`FewCounts`] of events, and [`First`] of what returns answer.
    known: Generations<u64>,
    /// Those of [`FewCounts::MANY`].
    many: Generations<Counts>,
    /// By the number of a kind. Equal events are of the same kind.
    deliveries: [Deliveries; Kind::COUNT],
    /// Limit of the keys that are listed for a kind: as many as a generation certainly remembers.
    listed_max: usize,
    /// Undo log of the decisions that are not durable yet, oldest first.
    undo: VecDeque<Decision>,
    /// Number of decisions without a sequence number, at the end of `undo`.
    open: usize,
    /// Whether to distinguish [`DedupeOutcome::SeenOnBus`].
    note_seen_on_bus: bool,
    /// Whether the current entry is a first occurrence on a bus.
    first_seen_on_bus: bool,
}

/// A decision; it is final once the entries of a class up to `seq` are durable.
#[derive(Debug)]
struct Decision {
    class: usize,
    seq: SeqNo,
    undo: Undo,
}

impl Decision {
    fn is_kept(&self, on_disk: &[SeqNo]) -> bool {
        on_disk
            .get(self.class)
            .is_some_and(|last| self.seq <= *last)
    }
}

#[derive(Debug)]
enum Undo {
    /// What was known of a fingerprint.
    Known(u64, u64),
    /// The counts of an event that had many occurrences.
    Many(u64, Box<Counts>),
    /// The last key in the list of this kind.
    Listed(Kind),
}

impl Dedupe {
    /// An empty memory; `window` is the number of fingerprints per generation.
    pub(crate) fn new(window: usize) -> Self {
        Self {
            // A return has two.
            known: Generations::new(2 * window),
            many: Generations::new(window),
            deliveries: Default::default(),
            listed_max: 2 * window,
            undo: VecDeque::new(),
            open: 0,
            note_seen_on_bus: false,
            first_seen_on_bus: false,
        }
    }

    pub(crate) fn note_seen_on_bus(&mut self, whether: bool) {
        self.note_seen_on_bus = whether;
    }

    /// Brings what the checks of these entries will read closer to the processor. Each check reads up to four places of tables
    /// that exceed its caches, and would wait for one after the other.
    pub(crate) fn look_ahead(&self, batch: impl Iterator<Item = (Kind, Fingerprints)>) {
        let read = batch.fold(0, |read, (kind, fingerprints)| {
            let whole = match self.deliveries.get(kind as usize) {
                Some(Deliveries::Several) => {
                    self.known.touch(key_of(fingerprints.whole, KeyOf::Event))
                }
                // It will be listed, which reads no table.
                _ => 0,
            };
            let asked = match fingerprints.asked {
                // No return.
                0 => 0,
                asked => self.known.touch(key_of(asked, KeyOf::Answer)),
            };
            read ^ whole ^ asked
        });

        // The compiler must not leave out reads whose result nobody needs.
        std::hint::black_box(read);
    }

    /// Decides about an entry and records it.
    pub(crate) fn check(
        &mut self,
        entry: &saltcellar_model::Entry<'_>,
        fingerprints: Fingerprints,
    ) -> DedupeOutcome {
        self.first_seen_on_bus = false;
        // Reactors act on events of their own master only.
        let is_own = entry.origin.is_empty();
        match self.decide(entry, fingerprints) {
            DedupeOutcome::Known if self.note_seen_on_bus && self.first_seen_on_bus && is_own => {
                DedupeOutcome::SeenOnBus
            }
            outcome => outcome,
        }
    }

    fn decide(
        &mut self,
        entry: &saltcellar_model::Entry<'_>,
        fingerprints: Fingerprints,
    ) -> DedupeOutcome {
        // The last of these counts, and A, B, A differs from A, B. A gap has no second source.
        if matches!(
            entry.kind,
            Kind::Register | Kind::Endtime | Kind::Gap | Kind::Reaction
        ) {
            return DedupeOutcome::New;
        }
        if entry.kind != Kind::Return {
            let whole = key_of(fingerprints.whole, KeyOf::Event);
            return if !self.is_listed(entry, whole) && self.is_duplicate(entry, whole) {
                DedupeOutcome::Known
            } else {
                DedupeOutcome::New
            };
        }
        let on_bus = entry.flags.has(Flags::ON_BUS);
        let vouched = entry.confirms();
        let is_mirrored = entry.source.confirms() && !vouched;
        let whole = key_of(fingerprints.whole, KeyOf::Event);
        let is_listed = self.is_listed(entry, whole);
        let digest = fingerprints.answer;
        // The slot is created immediately: each further lookup costs as much as the rest of the decision.
        let asked = key_of(fingerprints.asked, KeyOf::Answer);
        let slot = self.known.slot(asked);
        let before = *slot;
        let is_known = before != 0;
        let first = is_known.then_some(First(before));
        let confirms = vouched && first.is_some_and(|first| !first.is_vouched());
        if !is_known || confirms {
            *slot = First::new(digest, vouched).0;
            self.note(Undo::Known(asked, before));
        }

        let apart = key_of(fingerprints.whole, KeyOf::Apart);
        let known = if is_listed {
            false
        } else if is_mirrored && self.has_seen(whole) {
            true
        } else if !on_bus || confirms {
            self.is_duplicate(entry, apart)
        } else {
            // Salt passes a return that it fired, with its stamp, to several calls; no call is a second event. A known one
            // is not counted, because it is not stored.
            (vouched && (self.has_seen(whole) || self.has_seen(apart)))
                || self.is_duplicate(entry, whole)
        };

        match first {
            None => DedupeOutcome::New,
            Some(_) if confirms => DedupeOutcome::Confirms,
            Some(first) if first.has_digest(digest) => {
                // Keep the event as it was on the bus; a bare return has less data.
                if known || !on_bus {
                    DedupeOutcome::Known
                } else {
                    DedupeOutcome::New
                }
            }
            Some(_) if known => DedupeOutcome::Known,
            Some(_) => DedupeOutcome::Differs,
        }
    }

    fn note(&mut self, undo: Undo) {
        self.undo.push_back(Decision {
            class: 0,
            seq: SeqNo::default(),
            undo,
        });
        self.open += 1;
    }

    /// Counts an occurrence; returns whether another source has delivered it as often.
    fn is_duplicate(&mut self, entry: &saltcellar_model::Entry<'_>, key: u64) -> bool {
        // What a peer sent has a number, by which the source knows repetitions.
        let may_repeat = entry.number == 0
            && matches!(
                entry.source,
                Source::SpooledReturner | Source::SpooledEventReturn | Source::SpilledBus
            );
        if may_repeat && self.is_repeated_call(key, entry) {
            return true;
        }

        let (occurrence, undo) = self.count(key, counted_as(entry));
        self.note(undo);
        self.first_seen_on_bus = occurrence.is_first_on_bus;
        occurrence.is_duplicate
    }

    /// Counts an occurrence of an event.
    fn count(&mut self, key: u64, source: Source) -> (Occurrence, Undo) {
        let slot = self.known.slot(key);
        let before = FewCounts::from(*slot);
        if let Some(next) = before.counted(source) {
            *slot = next.into();
            let occurrence = Occurrence::of(&next.0, source);
            (occurrence, Undo::Known(key, before.into()))
        } else {
            self.count_among_many(key, before, source)
        }
    }

    /// Lists the key of an entry instead of counting it, if a single source has delivered entries of its kind.
    fn is_listed(&mut self, entry: &saltcellar_model::Entry<'_>, key: u64) -> bool {
        // An entry that was seen again stands for one of another kind.
        if entry.kind == Kind::SeenOnBus {
            for kind in (0..).map_while(Kind::from_number) {
                self.count_listed(kind);
            }
            return false;
        }

        // What a call or a spool delivers is compared in other ways as well.
        let source = counted_as(entry);
        let is_event = matches!(source, Source::Bus | Source::EventReturn | Source::Zeromq)
            && (entry.kind != Kind::Return || entry.flags.has(Flags::ON_BUS));

        let of_kind = self.deliveries.get_mut(entry.kind as usize);
        match of_kind.expect("one for each kind") {
            Deliveries::One(only, keys) if is_event && *only == source => {
                // Its event may still be repeated, but by a source that is further behind than any
                // memory of deduplication reaches.
                if keys.len() >= self.listed_max {
                    keys.pop_front();
                }
                keys.push_back(key);
            }
            first @ Deliveries::None if is_event => {
                *first = Deliveries::One(source, VecDeque::from([key]));
            }
            Deliveries::Several => return false,
            Deliveries::None | Deliveries::One(..) => {
                self.count_listed(entry.kind);
                return false;
            }
        }

        self.note(Undo::Listed(entry.kind));
        true
    }

    /// Counts the listed keys of a kind, and from then each further key immediately.
    fn count_listed(&mut self, kind: Kind) {
        let of_kind = self.deliveries.get_mut(kind as usize);
        let of_kind = of_kind.expect("one for each kind");
        let Deliveries::One(source, keys) = std::mem::replace(of_kind, Deliveries::Several) else {
            return;
        };

        // The last decisions are not durable yet, and learn how to revert the counts. Decisions
        // older than the listed keys have nothing to revert.
        let mut undo = std::mem::take(&mut self.undo);
        let is_listed =
            |decision: &&mut Decision| matches!(decision.undo, Undo::Listed(of) if of == kind);
        let open = undo.iter_mut().filter(is_listed).count();
        let mut decisions = undo.iter_mut().filter(is_listed);
        let surplus = open.saturating_sub(keys.len());
        let durable = keys.len().saturating_sub(open);

        let mut decisions = decisions.by_ref().skip(surplus);
        for (at, key) in keys.into_iter().enumerate() {
            let (_, undo) = self.count(key, source);
            if at >= durable
                && let Some(decision) = decisions.next()
            {
                decision.undo = undo;
            }
        }
        drop(decisions);
        self.undo = undo;
    }

    /// Counts an occurrence of an event that some source has delivered more often than a byte can count.
    fn count_among_many(
        &mut self,
        key: u64,
        before: FewCounts,
        source: Source,
    ) -> (Occurrence, Undo) {
        let many = self.many.slot(key);
        let undo = if before == FewCounts::MANY {
            Undo::Many(key, Box::new(*many))
        } else {
            *many = before.0.map(u32::from);
            Undo::Known(key, before.into())
        };

        let own = many.get_mut(source as usize);
        let own = own.expect("a count for each source");
        *own = own.saturating_add(1);
        let occurrence = Occurrence::of(many, source);

        *self.known.slot(key) = FewCounts::MANY.into();
        (occurrence, undo)
    }

    fn has_seen(&self, key: u64) -> bool {
        self.known.get(key).is_some()
    }

    /// Whether this call was delivered before: a spool repeats a call whose acknowledgement was lost. The time of the call
    /// distinguishes it from another call with the same event.
    fn is_repeated_call(&mut self, key: u64, entry: &saltcellar_model::Entry<'_>) -> bool {
        let call = chained(key ^ entry.source as u64, [&entry.at.0.to_le_bytes()]);
        let call = key_of(call, KeyOf::Call);
        let slot = self.known.slot(call);
        let before = std::mem::replace(slot, FewCounts::ONE_OF_EACH.into());
        self.note(Undo::Known(call, before));
        before != 0
    }

    /// Sets the entry on whose durability the decisions since the last call depend.
    pub(crate) fn depends_on(&mut self, class: usize, seq: SeqNo) {
        let open = std::mem::take(&mut self.open);
        for decision in self.undo.iter_mut().rev().take(open) {
            decision.class = class;
            decision.seq = seq;
        }
    }

    /// Finalizes decisions; `on_disk` contains the last durable sequence number per class.
    pub(crate) fn keep(&mut self, on_disk: &[SeqNo]) {
        // From the front only: a decision behind one that is still open stays a little longer.
        while self
            .undo
            .front()
            .is_some_and(|decision| decision.is_kept(on_disk))
        {
            self.undo.pop_front();
        }
    }

    /// Finalizes all decisions.
    pub(crate) fn keep_all(&mut self) {
        self.undo.clear();
        self.open = 0;
    }

    /// Reverts all decisions that are not final.
    pub(crate) fn forget(&mut self, on_disk: &[SeqNo]) {
        self.open = 0;
        // Backwards, because the oldest decision about a key must be the last to restore its value.
        for decision in std::mem::take(&mut self.undo).into_iter().rev() {
            match decision.undo {
                _ if decision.is_kept(on_disk) => {}
                Undo::Known(key, value) => *self.known.slot(key) = value,
                Undo::Many(key, counts) => {
                    *self.known.slot(key) = FewCounts::of(&counts).into();
                    *self.many.slot(key) = *counts;
                }
                Undo::Listed(kind) => {
                    // Counted meanwhile: it was older than the list.
                    if let Some(Deliveries::One(_, keys)) = self.deliveries.get_mut(kind as usize) {
                        keys.pop_back();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use saltcellar_base::clock::Micros;
    use saltcellar_base::limits::DEDUPE_WINDOW;
    use saltcellar_model::Entry;
    use saltcellar_wire::{msgpack, salt_event::fingerprints_of};

    fn memory() -> Dedupe {
        Dedupe::new(DEDUPE_WINDOW)
    }

    fn check(dedupe: &mut Dedupe, entry: &Entry<'_>) -> DedupeOutcome {
        dedupe.check(entry, fingerprints_of(entry))
    }

    fn entry(source: Source, on_bus: bool, body: &[u8]) -> Entry<'_> {
        let flags = if on_bus {
            Flags::ON_BUS
        } else {
            Flags::default()
        };
        Entry {
            flags,
            tag: b"salt/job/1/ret/web1",
            jid: "1",
            minion: "web1",
            ..Entry::new(Kind::Return, source, Micros(0), body)
        }
    }

    fn body(answer: i64, stamp: bool) -> Vec<u8> {
        let mut w = msgpack::Writer::new();
        w.map(1 + usize::from(stamp)).str("return").int(answer);
        if stamp {
            w.str("_stamp").str("now");
        }
        w.into_bytes()
    }

    proptest! {
        /// Listing the events of a single source is not seen from outside, whenever another one joins and a commit fails.
        #[test]
        fn listed_events_are_decided_as_counted_ones(
            steps in prop::collection::vec((0..12_u8, 0..12_u8, 0..4_i64), 1..120)
        ) {
            let mut listing = Dedupe::new(8);
            let mut counting = Dedupe::new(8);
            counting.deliveries = std::array::from_fn(|_| Deliveries::Several);
            for dedupe in [&mut listing, &mut counting] {
                dedupe.note_seen_on_bus(true);
                // The windows end at other entries, so no window ends here.
                dedupe.listed_max = 4_000;
                dedupe.known.window = 1_000;
            }

            let mut on_disk = SeqNo(0);
            for (seq, (step, kind, answer)) in (1..).map(SeqNo).zip(steps) {
                match step {
                    0 => on_disk = SeqNo(seq.0.saturating_sub(answer.unsigned_abs())).max(on_disk),
                    1 => {
                        for dedupe in [&mut listing, &mut counting] {
                            dedupe.keep(&[on_disk]);
                            dedupe.forget(&[on_disk]);
                        }
                    }
                    _ => {
                        // Mostly one source, as long as it lasts.
                        let source = Source::from_number(if step < 8 { 0 } else { step - 4 });
                        // Equal events are of the same kind, but for those that were seen again.
                        let (kind, tag) = match kind {
                            0..6 => (Kind::Return, "return"),
                            6..9 => (Kind::Event, "event"),
                            9 => (Kind::SeenOnBus, "return"),
                            10 => (Kind::SeenOnBus, "event"),
                            _ => (Kind::JobNew, "new"),
                        };
                        let body = body(answer, true);
                        let entry = Entry { kind, tag: tag.as_bytes(), ..entry(source.unwrap(), seq.0 % 7 != 0, &body) };
                        let outcomes = [&mut listing, &mut counting].map(|dedupe| {
                            let outcome = check(dedupe, &entry);
                            dedupe.depends_on(0, seq);
                            outcome
                        });
                        prop_assert_eq!(outcomes[0], outcomes[1]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_source_is_remembered_for_as_many_events_as_a_generation_has_fingerprints() {
        let window = 4;
        let remembered = 2 * i64::try_from(window).unwrap();
        let put = |dedupe: &mut Dedupe, source, n| {
            check(dedupe, &entry(source, true, &body(n, true))) == DedupeOutcome::Known
        };

        let mut dedupe = Dedupe::new(window);
        for n in 0..remembered + 5 {
            assert!(!put(&mut dedupe, Source::Bus, n), "{n}");
        }
        // A failed commit also takes back entries that have left the list.
        dedupe.depends_on(0, SeqNo(9));
        dedupe.forget(&[SeqNo(0)]);

        for n in 0..remembered + 5 {
            assert!(!put(&mut dedupe, Source::Bus, n), "{n}");
        }
        assert!(put(&mut dedupe, Source::EventReturn, remembered + 4));
        // The other events are counted with the list, and events that had left it are new. The
        // first return of the job takes a place of a generation as well.
        let known = (0..=remembered + 3).rev();
        let known = known.take_while(|n| put(&mut dedupe, Source::EventReturn, *n));
        assert_eq!(known.count(), 6);
    }

    #[test]
    fn no_generation_but_the_first_grows() {
        let window = 10_000;
        let mut known = Generations::<u64>::new(window);
        let mut keys = (1..).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut fill = |known: &mut Generations<u64>, count| {
            for key in keys.by_ref().take(count) {
                *known.slot(key) = 1;
            }
        };

        fill(&mut known, window);
        let slots = known.young.slots.len();
        assert!(slots > Table::<u64>::SLOTS_MIN);

        // The second generation, and the third in the table of the first.
        for _ in 0..2 {
            fill(&mut known, 1);
            assert_eq!((known.young.used, known.young.slots.len()), (1, slots));
            assert_eq!((known.old.used, known.old.slots.len()), (window, slots));
            fill(&mut known, window - 1);
        }
    }

    #[test]
    fn a_large_table_grows_to_its_full_size_at_once() {
        let window = 200_000;
        let mut known = Generations::<u64>::new(window);
        let mut sizes = Vec::new();
        for n in 0..window as u64 {
            *known.slot((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) = 1;
            sizes.push(known.young.slots.len());
        }
        sizes.dedup();
        let doubled = (10..=16).map(|bits| 1 << bits);
        assert_eq!(sizes, doubled.chain([1 << 19]).collect::<Vec<_>>());
    }

    #[test]
    fn one_event_from_three_sources_is_stored_once() {
        let body = body(1, true);
        let known = DedupeOutcome::Known;
        for (sources, second) in [
            (
                [Source::Bus, Source::EventReturn, Source::SpooledEventReturn],
                known,
            ),
            (
                [Source::Returner, Source::Bus, Source::SpooledReturner],
                known,
            ),
            (
                [
                    Source::SpooledReturner,
                    Source::SpooledEventReturn,
                    Source::Bus,
                ],
                known,
            ),
            // The confirmation is stored, but not as an event.
            (
                [
                    Source::SpooledEventReturn,
                    Source::SpooledReturner,
                    Source::EventReturn,
                ],
                DedupeOutcome::Confirms,
            ),
        ] {
            let mut dedupe = memory();
            let outcomes = sources.map(|source| check(&mut dedupe, &entry(source, true, &body)));
            assert_eq!(outcomes, [DedupeOutcome::New, second, known], "{sources:?}");
        }
    }

    /// Source and time of a delivery.
    type Delivery = (Source, i64);

    /// From this time on deliveries are calls that mirror the event of a peer.
    const MIRRORED: i64 = 9;

    fn is_vouched(delivery: &Delivery) -> bool {
        delivery.0.confirms() && delivery.1 < MIRRORED
    }

    /// What a master and its extension may deliver of one return that was fired. A call from a spool may be redelivered.
    const DELIVERIES: [Delivery; 16] = [
        (Source::Bus, 0),
        (Source::SpilledBus, 1),
        (Source::SpilledBus, 1),
        (Source::EventReturn, 2),
        (Source::SpooledEventReturn, 3),
        (Source::SpooledEventReturn, 3),
        // `save_load` and `returner`.
        (Source::Returner, 4),
        (Source::Returner, 5),
        (Source::SpooledReturner, 6),
        (Source::SpooledReturner, 6),
        (Source::SpooledReturner, 7),
        (Source::SpooledReturner, 7),
        (Source::Zeromq, 8),
        (Source::Returner, MIRRORED),
        (Source::SpooledReturner, 10),
        (Source::SpooledReturner, 10),
    ];

    /// What the memory lets the appender store.
    #[derive(Default)]
    struct Archive {
        stored: Vec<(Entry<'static>, Fingerprints)>,
    }

    impl Archive {
        /// Checks an entry, and stores it as the appender does.
        fn take(&mut self, dedupe: &mut Dedupe, entry: Entry<'static>, fingerprints: Fingerprints) {
            let flags = match dedupe.check(&entry, fingerprints) {
                DedupeOutcome::New | DedupeOutcome::Differs => entry.flags,
                DedupeOutcome::Confirms => entry.flags.without(Flags::ON_BUS),
                DedupeOutcome::Known | DedupeOutcome::SeenOnBus => return,
            };
            dedupe.keep_all();
            self.stored.push((Entry { flags, ..entry }, fingerprints));
        }

        /// The memory after a restart.
        fn refilled(&self) -> Dedupe {
            let mut dedupe = Dedupe::new(64);
            for (entry, fingerprints) in &self.stored {
                dedupe.check(entry, *fingerprints);
                dedupe.keep_all();
            }
            dedupe
        }
    }

    /// Calls `with` with each order of `len` of the deliveries.
    fn each_order(len: usize, chosen: &mut Vec<usize>, with: &mut impl FnMut(&[usize])) {
        if chosen.len() == len {
            return with(chosen);
        }
        for next in 0..DELIVERIES.len() {
            // Of two equal deliveries the first comes first.
            let is_second = next > 0 && DELIVERIES[next] == DELIVERIES[next - 1];
            if !chosen.contains(&next) && (!is_second || chosen.contains(&(next - 1))) {
                chosen.push(next);
                each_order(len, chosen, with);
                chosen.pop();
            }
        }
    }

    #[test]
    fn a_return_is_one_event_and_one_confirmation_in_each_order_of_its_deliveries_and_restarts() {
        let leaked = |answer| &*Box::leak(body(answer, true).into_boxed_slice());
        let prepared = |source, at, body| {
            let entry = entry(source, true, body);
            let flags = if entry.source.confirms() && !is_vouched(&(source, at)) {
                entry.flags.with(Flags::UNCONFIRMED)
            } else {
                entry.flags
            };
            let at = Micros(at);
            let entry = Entry { flags, at, ..entry };
            let fingerprints = fingerprints_of(&entry);
            (entry, fingerprints)
        };
        let (ours, other) = (leaked(1), leaked(66));
        let deliveries = DELIVERIES.map(|(source, at)| prepared(source, at, ours));
        // Another return of the same minion: a forged event, or one that the master vouches for.
        let others = [
            None,
            Some(prepared(Source::Bus, 0, other)),
            Some(prepared(Source::Returner, 0, other)),
        ];

        let mut orders = 0_u32;
        let mut try_order = |order: &[usize]| {
            for other in &others {
                // The other return, and a restart, before one of the deliveries.
                for (before, restart) in
                    (0..order.len()).flat_map(|n| (0..=order.len()).map(move |m| (n, m)))
                {
                    let is_long = order.len() > 3;
                    if (other.is_none() && before > 0) || (is_long && restart < order.len()) {
                        continue;
                    }
                    orders += 1;
                    let (mut archive, mut dedupe) = (Archive::default(), Dedupe::new(64));
                    for (n, delivery) in order.iter().enumerate() {
                        if restart == n {
                            dedupe = archive.refilled();
                        }
                        if before == n
                            && let Some((entry, fingerprints)) = other
                        {
                            archive.take(&mut dedupe, *entry, *fingerprints);
                        }
                        let (entry, fingerprints) = &deliveries[*delivery];
                        archive.take(&mut dedupe, *entry, *fingerprints);
                    }

                    let delivered = order.iter().map(|n| DELIVERIES[*n]).collect::<Vec<_>>();
                    let about = format!(
                        "{delivered:?}, other answer {other:?} before {before}, restart before {restart}: {:?}",
                        archive.stored
                    );
                    let is_ours = |(entry, _): &&(Entry<'_>, Fingerprints)| entry.body == ours;
                    let stored = archive
                        .stored
                        .iter()
                        .filter(is_ours)
                        .map(|(entry, _)| entry);
                    let events = stored
                        .clone()
                        .filter(|entry| entry.flags.has(Flags::ON_BUS))
                        .count();
                    let confirmed = stored.filter(|entry| entry.confirms()).count();
                    let vouched = delivered.iter().filter(|one| is_vouched(one)).count();
                    let forged = other.as_ref().is_some_and(|(entry, _)| !entry.confirms());
                    // A call that confirms the other event is no event, and the bus has brought none.
                    let none = usize::from(!(forged && before == 0 && vouched == order.len()));
                    assert_eq!(events, none, "events: {about}");
                    if other.is_none() || forged {
                        assert_eq!(confirmed, vouched.min(1), "confirmations: {about}");
                    } else {
                        assert!(confirmed <= 1, "confirmations: {about}");
                    }
                }
            }
        };
        for len in 1..=4 {
            each_order(len, &mut Vec::new(), &mut try_order);
        }
        assert!(orders > 50_000, "{orders}");
    }

    /// What the daemon of a peer has sent: the return from the bus there, and the call that confirmed it.
    #[test]
    fn what_a_peer_sends_is_one_more_delivery_and_its_equal_events_stay_two() {
        let body = body(1, true);
        let bus_here = entry(Source::Bus, true, &body);
        let sent = |number, source, on_bus| Entry {
            number,
            origin: "m2",
            at: Micros(5),
            ..entry(source, on_bus, &body)
        };
        let bus_there = sent(7, Source::Bus, true);
        let call_there = sent(8, Source::Returner, false);

        // A cluster's bus has brought it, or brings it later.
        let mut dedupe = memory();
        assert_eq!(check(&mut dedupe, &bus_here), DedupeOutcome::New);
        assert_eq!(check(&mut dedupe, &bus_there), DedupeOutcome::Known);
        assert_eq!(check(&mut dedupe, &call_there), DedupeOutcome::Confirms);
        let mut dedupe = memory();
        assert_eq!(check(&mut dedupe, &bus_there), DedupeOutcome::New);
        assert_eq!(check(&mut dedupe, &call_there), DedupeOutcome::Confirms);
        assert_eq!(check(&mut dedupe, &bus_here), DedupeOutcome::Known);

        // Two equal events of one moment have two numbers.
        let event = |number| Entry {
            kind: Kind::Event,
            ..sent(number, Source::Bus, true)
        };
        assert_eq!(check(&mut dedupe, &event(9)), DedupeOutcome::New);
        assert_eq!(check(&mut dedupe, &event(10)), DedupeOutcome::New);

        // No reactor of this master needs it.
        dedupe.note_seen_on_bus(true);
        let of_peer = Entry {
            origin: "m2",
            ..entry(Source::Bus, true, &body)
        };
        let event_here = Entry {
            kind: Kind::Event,
            ..of_peer
        };
        assert_eq!(check(&mut dedupe, &event_here), DedupeOutcome::Known);
    }

    #[test]
    fn a_mirrored_call_without_its_peer_is_no_event_and_confirms_nothing() {
        let body = body(1, true);
        let mirrored = || {
            let entry = entry(Source::Returner, false, &body);
            let flags = Flags::UNCONFIRMED;
            Entry { flags, ..entry }
        };
        let (bus, call) = (
            entry(Source::Bus, true, &body),
            entry(Source::Returner, true, &body),
        );

        let mut dedupe = memory();
        let outcomes = [bus, mirrored(), mirrored(), call].map(|one| check(&mut dedupe, &one));
        let [new, known] = [DedupeOutcome::New, DedupeOutcome::Known];
        assert_eq!(outcomes, [new, known, known, DedupeOutcome::Confirms]);

        // The event names the peer, so it is stored as well.
        let mut dedupe = memory();
        let outcomes = [mirrored(), mirrored(), bus, bus].map(|one| check(&mut dedupe, &one));
        assert_eq!(outcomes, [new, known, new, new]);
        assert_eq!(check(&mut dedupe, &call), DedupeOutcome::Confirms);
    }

    #[test]
    fn a_confirmation_that_was_not_stored_hides_no_event() {
        let (forged, real, other) = (body(66, true), body(1, true), body(2, true));
        let mut dedupe = memory();
        let outcome = |dedupe: &mut Dedupe, source, body| check(dedupe, &entry(source, true, body));
        outcome(&mut dedupe, Source::Bus, &forged);
        dedupe.keep_all();
        assert_eq!(
            outcome(&mut dedupe, Source::Returner, &real),
            DedupeOutcome::Confirms
        );
        dedupe.depends_on(0, SeqNo(2));
        dedupe.forget(&[SeqNo(1)]);

        for (source, body, expected) in [
            (Source::Returner, &other, DedupeOutcome::Confirms),
            (Source::SpooledReturner, &real, DedupeOutcome::Differs),
            (Source::Returner, &real, DedupeOutcome::Known),
            (Source::Bus, &other, DedupeOutcome::New),
        ] {
            assert_eq!(outcome(&mut dedupe, source, body), expected, "{source:?}");
        }
    }

    #[test]
    fn a_spooled_call_may_be_repeated_any_number_of_times() {
        let body = body(1, true);
        let mut dedupe = memory();
        let mut check = |at| {
            check(
                &mut dedupe,
                &Entry {
                    at: Micros(at),
                    ..entry(Source::SpooledEventReturn, true, &body)
                },
            )
        };
        assert_eq!(
            [check(7), check(7), check(7)],
            [
                DedupeOutcome::New,
                DedupeOutcome::Known,
                DedupeOutcome::Known
            ]
        );
        assert_eq!(
            [check(8), check(8)],
            [DedupeOutcome::New, DedupeOutcome::Known],
            "the same event in another call"
        );
    }

    #[test]
    fn equal_events_of_one_source_are_all_kept() {
        let body = body(1, true);
        let mut dedupe = memory();
        let outcomes = [
            Source::Bus,
            Source::Bus,
            Source::EventReturn,
            Source::EventReturn,
            Source::EventReturn,
        ]
        .map(|source| check(&mut dedupe, &entry(source, true, &body)));
        assert_eq!(
            outcomes,
            [
                DedupeOutcome::New,
                DedupeOutcome::New,
                DedupeOutcome::Known,
                DedupeOutcome::Known,
                DedupeOutcome::New
            ]
        );
    }

    #[test]
    fn a_bare_return_confirms_its_event_once_and_the_event_is_kept_in_any_order() {
        let (event, bare) = (body(1, true), body(1, false));
        let mut dedupe = memory();
        assert_eq!(
            check(&mut dedupe, &entry(Source::Bus, true, &event)),
            DedupeOutcome::New
        );
        assert_eq!(
            check(&mut dedupe, &entry(Source::Returner, false, &bare)),
            DedupeOutcome::Confirms
        );
        assert_eq!(
            check(&mut dedupe, &entry(Source::Returner, false, &bare)),
            DedupeOutcome::Known
        );
        let mut dedupe = memory();
        assert_eq!(
            check(&mut dedupe, &entry(Source::Returner, false, &bare)),
            DedupeOutcome::New
        );
        assert_eq!(
            check(&mut dedupe, &entry(Source::Bus, true, &event)),
            DedupeOutcome::New
        );
    }

    #[test]
    fn another_answer_of_the_same_minion_is_kept_as_history() {
        let mut dedupe = memory();
        assert_eq!(
            check(
                &mut dedupe,
                &entry(Source::Returner, false, &body(1, false))
            ),
            DedupeOutcome::New
        );
        assert_eq!(
            check(
                &mut dedupe,
                &entry(Source::Returner, false, &body(2, false))
            ),
            DedupeOutcome::Differs
        );
    }

    #[test]
    fn a_returner_call_overrides_a_forged_or_trimmed_event() {
        let (forged, real, later) = (body(66, true), body(1, true), body(2, true));
        let mut dedupe = memory();
        let mut check = |source, body| check(&mut dedupe, &entry(source, true, body));
        assert_eq!(check(Source::Bus, &forged), DedupeOutcome::New);
        assert_eq!(check(Source::Bus, &real), DedupeOutcome::Differs);
        assert_eq!(check(Source::Returner, &real), DedupeOutcome::Confirms);
        assert_eq!(check(Source::Bus, &later), DedupeOutcome::Differs);
        assert_eq!(check(Source::Returner, &later), DedupeOutcome::Known);
        assert_eq!(check(Source::SpooledReturner, &real), DedupeOutcome::Known);
    }

    #[test]
    fn a_return_seen_on_the_bus_first_is_confirmed_by_its_returner_call() {
        let body = body(1, true);
        let mut dedupe = memory();
        let outcomes = [
            Source::Bus,
            Source::EventReturn,
            Source::Returner,
            Source::SpooledReturner,
        ]
        .map(|source| check(&mut dedupe, &entry(source, true, &body)));
        assert_eq!(
            outcomes,
            [
                DedupeOutcome::New,
                DedupeOutcome::Known,
                DedupeOutcome::Confirms,
                DedupeOutcome::Known
            ]
        );
    }

    #[test]
    fn every_register_and_end_time_is_kept() {
        let mut dedupe = memory();
        for (source, n) in [
            (Source::SpooledReturner, 1),
            (Source::Returner, 2),
            (Source::Returner, 1),
        ] {
            let body = body(n, false);
            let entry = Entry {
                kind: Kind::Register,
                tag: b"",
                ..entry(source, false, &body)
            };
            assert_eq!(check(&mut dedupe, &entry), DedupeOutcome::New);
        }
    }

    #[test]
    fn an_entry_that_was_not_stored_is_new_again() {
        let body = body(1, true);
        let mut dedupe = memory();
        check(&mut dedupe, &entry(Source::Bus, true, &body));
        dedupe.depends_on(0, SeqNo(1));
        dedupe.forget(&[SeqNo(0)]);
        assert_eq!(
            check(&mut dedupe, &entry(Source::EventReturn, true, &body)),
            DedupeOutcome::New
        );
        dedupe.depends_on(0, SeqNo(2));
        dedupe.keep(&[SeqNo(2)]);
        dedupe.forget(&[SeqNo(0)]);
        assert_eq!(
            check(&mut dedupe, &entry(Source::Bus, true, &body)),
            DedupeOutcome::Known
        );
    }

    #[test]
    fn only_decisions_about_entries_not_on_disk_are_reverted() {
        fn of_class(class: usize, body: &[u8]) -> Entry<'_> {
            let web1 = entry(Source::Bus, true, body);
            if class == 0 {
                web1
            } else {
                Entry {
                    tag: b"salt/job/1/ret/web2",
                    minion: "web2",
                    ..web1
                }
            }
        }
        let mut dedupe = memory();
        for n in 1..=4 {
            let body = body(n, true);
            // Two classes, one of them slower.
            let class = usize::from(n % 2 == 0);
            check(&mut dedupe, &of_class(class, &body));
            dedupe.depends_on(class, SeqNo(n.unsigned_abs()));
        }
        let on_disk = [SeqNo(3), SeqNo(2)];
        dedupe.keep(&on_disk);
        assert_eq!(
            dedupe.undo.len(),
            1,
            "an event of a minion that had answered"
        );
        dedupe.forget(&on_disk);
        let again = [1, 2, 3, 4].map(|n| {
            let body = body(n, true);
            let entry = of_class(usize::from(n % 2 == 0), &body);
            check(
                &mut dedupe,
                &Entry {
                    source: Source::EventReturn,
                    ..entry
                },
            )
        });
        assert_eq!(
            again,
            [
                DedupeOutcome::Known,
                DedupeOutcome::Known,
                DedupeOutcome::Known,
                DedupeOutcome::Differs
            ]
        );
    }

    #[test]
    fn more_than_255_equal_events_are_counted_correctly() {
        let body = body(1, true);
        let stored = |sources: &[Source]| {
            let mut dedupe = memory();
            let new = |source: &&Source| {
                check(&mut dedupe, &entry(**source, true, &body)) == DedupeOutcome::New
            };
            sources.iter().filter(new).count()
        };
        let in_turn = [Source::Bus, Source::EventReturn, Source::Zeromq].repeat(300);
        assert_eq!(stored(&in_turn), 300);
        let times = |(source, n)| std::iter::repeat_n(source, n);
        let one_after_another: Vec<_> = [
            (Source::Bus, 300),
            (Source::EventReturn, 350),
            (Source::Bus, 60),
        ]
        .into_iter()
        .flat_map(times)
        .collect();
        assert_eq!(stored(&one_after_another), 360);
    }

    #[test]
    fn an_occurrence_that_was_not_stored_is_reverted_whatever_their_number() {
        let body = body(1, true);
        for stored in [1, 253, 254, 255, 300] {
            let mut dedupe = memory();
            let check = |dedupe: &mut Dedupe, source| check(dedupe, &entry(source, true, &body));
            for _ in 0..stored {
                check(&mut dedupe, Source::Bus);
                dedupe.keep_all();
            }

            for seq in 1..=2 {
                check(&mut dedupe, Source::Bus);
                dedupe.depends_on(0, SeqNo(seq));
            }
            dedupe.forget(&[SeqNo(0)]);

            let known = (0..=stored)
                .take_while(|_| check(&mut dedupe, Source::EventReturn) == DedupeOutcome::Known)
                .count();
            assert_eq!(known, stored, "{stored} stored");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut dedupe = memory();
        for n in 0..3 * i64::try_from(DEDUPE_WINDOW).unwrap() {
            check(&mut dedupe, &entry(Source::Bus, true, &body(n, true)));
            dedupe.keep_all();
        }
        assert!(dedupe.known.young.used + dedupe.known.old.used <= 4 * DEDUPE_WINDOW);
        assert!(dedupe.known.young.slots.len() <= 4 * DEDUPE_WINDOW);
    }
}
