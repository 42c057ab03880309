//! Shares of minions in the classes that are limited by bytes or entries.
//!
//! Retention drops whole segments, the oldest first. One minion that sends much would therefore
//! evict everybody's entries. A minion that has written more than half its share of such a class
//! continues in the class's overflow, a separate chain, which is bounded by the other half, or by
//! what other minions leave of the class. From there only entries of such minions are dropped for
//! its later ones.
//!
//! # Invariant
//!
//! An entry is stored whole, in either class: a share neither rejects nor shortens an entry.
//! Readers search every class.
//!
//! # What counts
//!
//! A minion's bytes, as received, and entries among the latest of the class proper: as many as its
//! limits hold at the present compression. They slide in [`SHARE_STEPS`] steps. A start counts the
//! entries that refill the duplicate memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::class::{Class, Classes};
use crate::segment::list::Segments;
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::limits::{SHARE_MINIONS_MAX, SHARE_NAMED_AGE, SHARE_NAMED_MAX, SHARE_STEPS};
use saltcellar_model::{Entry, FastMap, Keep};

/// A number of entries and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    bytes: u64,
    entries: u64,
}

impl Amount {
    fn of(entry: &Entry<'_>) -> Self {
        Self {
            bytes: entry.raw_len() as u64,
            entries: 1,
        }
    }

    fn add(&mut self, other: Amount) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.entries = self.entries.saturating_add(other.entries);
    }

    fn subtract(&mut self, other: Amount) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.entries = self.entries.saturating_sub(other.entries);
    }

    /// Whether it exceeds a part of limits; absent limits are never exceeded.
    fn exceeds(self, limits: Limits, divisor: u64) -> bool {
        let over = |amount: u64, limit: Option<u64>| {
            limit.is_some_and(|limit| amount > limit / divisor.max(1))
        };
        over(self.bytes, limits.bytes) || over(self.entries, limits.entries)
    }
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    bytes: Option<u64>,
    entries: Option<u64>,
}

impl Limits {
    /// The limits of a class, in bytes as received.
    fn of(keep: Keep, raw_percent: u64) -> Self {
        // In 128 bits: bytes times percent may exceed 64.
        let raw = |bytes: u64| {
            let scaled = u128::from(bytes) * u128::from(raw_percent) / 100;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };

        Self {
            bytes: keep.bytes.map(raw),
            entries: keep.entries,
        }
    }

    fn percent(self, percent: u64) -> Self {
        let part = |limit: u64| {
            let part = u128::from(limit) * u128::from(percent) / 100;
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Self {
            bytes: self.bytes.map(part),
            entries: self.entries.map(part),
        }
    }
}

/// The latest entries of a class by minion.
#[derive(Debug, Default)]
struct Window {
    /// The oldest first, the last one grows.
    steps: VecDeque<(Amount, FastMap<Box<str>, Amount>)>,
    by_minion: FastMap<Box<str>, Amount>,
}

impl Window {
    fn of(&self, minion: &str) -> Amount {
        self.by_minion.get(minion).copied().unwrap_or_default()
    }

    /// Counts an entry, and forgets those that the limits no longer hold.
    fn count(&mut self, minion: &str, amount: Amount, limits: Limits) {
        // Steps of equal size: the window forgets a step at a time instead of single entries.
        let is_full = |step: &(Amount, _)| step.0.exceeds(limits, SHARE_STEPS as u64);
        if self.steps.back().is_none_or(is_full) {
            self.steps.push_back(<_>::default());
        }

        while self.steps.len() > SHARE_STEPS {
            self.forget_oldest();
        }

        let Some((total, minions)) = self.steps.back_mut() else {
            return;
        };
        total.add(amount);
        // Counts for the window, but for no minion.
        if minion.is_empty() {
            return;
        }

        // Peers choose the ids, so their number must be bounded: above the limit, new ids are not
        // counted.
        let is_known = self.by_minion.contains_key(minion);
        if !is_known && self.by_minion.len() >= SHARE_MINIONS_MAX {
            return;
        }

        // Counted in the step as well, to be subtracted when the step is forgotten.
        for map in [&mut self.by_minion, minions] {
            if let Some(known) = map.get_mut(minion) {
                known.add(amount);
            } else {
                map.insert(minion.into(), amount);
            }
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, minions)) = self.steps.pop_front() else {
            return;
        };
        for (minion, amount) in minions {
            if let Some(known) = self.by_minion.get_mut(&minion) {
                known.subtract(amount);
                // Otherwise the map would keep every minion that was ever seen.
                if *known == Amount::default() {
                    self.by_minion.remove(&minion);
                }
            }
        }
    }
}

/// Decides which entries go to an overflow; one per thread of the appender.
#[derive(Debug)]
pub(crate) struct Shares {
    classes: Vec<Share>,
    percent: u64,
}

#[derive(Debug)]
struct Share {
    class: Class,
    name: Arc<str>,
    overflow: Class,
    keep: Keep,
    window: Window,
}

impl Shares {
    pub(crate) fn new(classes: &Classes) -> Self {
        let share = |(class, overflow)| Share {
            class,
            name: classes.name(class),
            overflow,
            keep: classes.keep(class),
            window: Window::default(),
        };

        Self {
            classes: classes.overflows().map(share).collect(),
            percent: classes.share_percent(),
        }
    }

    /// Counts an entry that is stored already, wherever it is.
    pub(crate) fn count(&mut self, class: Class, entry: &Entry<'_>, state: &ShareState) {
        if let Some(share) = self.classes.iter_mut().find(|share| share.class == class) {
            // At the compression of now: what counts is how much of the class its entries take.
            let limits = Limits::of(share.keep, state.raw_percent(class));
            share.window.count(entry.minion, Amount::of(entry), limits);
        }
    }

    /// The overflow of a class that has one.
    pub(crate) fn overflow_of(&self, class: Class) -> Option<Class> {
        let share = self.classes.iter().find(|share| share.class == class)?;
        Some(share.overflow)
    }

    /// The class of a new entry that belongs to `class`, which may be its overflow. Counts the
    /// entry.
    #[inline]
    pub(crate) fn place(
        &mut self,
        class: Class,
        entry: &Entry<'_>,
        state: &ShareState,
        clock: &Clock,
    ) -> (Class, bool) {
        let Some(share) = self.classes.iter_mut().find(|share| share.class == class) else {
            // Most classes have no limit that could be shared.
            return (class, false);
        };
        let limits = Limits::of(share.keep, state.raw_percent(class));

        let amount = Amount::of(entry);

        let mut would_be = share.window.of(entry.minion);
        would_be.add(amount);
        // Half of it here, half in the overflow.
        let is_over = !entry.minion.is_empty() && would_be.exceeds(limits.percent(self.percent), 2);

        if is_over {
            state.note(class, (&share.name, entry.minion), amount, clock.now());
            return (share.overflow, true);
        }
        share.window.count(entry.minion, amount, limits);
        // Only entries that stay in the class count: entries in the overflow evict no other
        // minion's entries.
        (class, false)
    }
}

/// What the appender and other threads share about shares.
#[derive(Debug)]
pub(crate) struct ShareState {
    /// Bytes as received per hundred bytes on disk, by class.
    raw_percent: Vec<AtomicU64>,
    /// The minions that are over their share, by class and id. Lock order: no other lock is taken
    /// under it.
    over: Mutex<BTreeMap<Class, BTreeMap<String, OverShare>>>,
}

/// A minion that is over its share of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverShare {
    /// When it last was.
    pub(crate) at: Micros,
    /// Entries in the overflow since the start, and their bytes.
    pub entries: u64,
    pub bytes: u64,
}

impl OverShare {
    fn add(&mut self, amount: Amount, now: Micros) {
        self.at = now;
        self.entries = self.entries.saturating_add(amount.entries);
        self.bytes = self.bytes.saturating_add(amount.bytes);
    }
}

impl ShareState {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            raw_percent: (0..classes).map(|_| AtomicU64::new(100)).collect(),
            over: Mutex::default(),
        }
    }

    fn raw_percent(&self, class: Class) -> u64 {
        let percent = self.raw_percent.get(class.index());
        percent.map_or(100, |percent| percent.load(Ordering::Relaxed))
    }

    /// Tells the appender how well the classes are compressed: shares are counted in bytes as received,
    /// limits in bytes on disk.
    pub(crate) fn sample_compression(&self, classes: &Classes, segments: &Segments) {
        for (proper, _) in classes.overflows() {
            let (mut raw, mut disk) = (0_u64, 0_u64);
            for segment in segments.of(proper) {
                let usage = segment.usage();
                raw = raw.saturating_add(usage.raw_bytes);
                disk = disk.saturating_add(usage.disk_bytes);
            }
            self.set_compression(proper, raw, disk);
        }
    }

    fn set_compression(&self, class: Class, raw: u64, disk: u64) {
        let percent = u128::from(raw) * 100 / u128::from(disk.max(1));
        // Entries are at least as large as received for all that matters here, and a small class
        // says little.
        let percent = u64::try_from(percent)
            .unwrap_or(u64::MAX)
            .clamp(100, 10_000);
        if let Some(known) = self.raw_percent.get(class.index()) {
            known.store(percent, Ordering::Relaxed);
        }
    }

    fn note(&self, class: Class, (name, minion): (&str, &str), amount: Amount, now: Micros) {
        let mut over = self.over.lock();

        // The usual case: it is known.
        let known = over
            .get_mut(&class)
            .and_then(|minions| minions.get_mut(minion));
        if let Some(one) = known {
            one.add(amount, now);
            return;
        }

        // Logged once, not for each entry.
        tracing::warn!(
            minion,
            class = name,
            "minion exceeds its share of a class, storing its further entries in the overflow class (`store.minion_share`)"
        );

        // Bounded, because ids come from peers. The minion that was over its share longest ago is
        // dropped.
        if over.values().map(BTreeMap::len).sum::<usize>() >= SHARE_NAMED_MAX {
            let all = over
                .iter()
                .flat_map(|(class, minions)| minions.iter().map(move |of| (*class, of)));
            let oldest = all.min_by_key(|(_, (_, one))| one.at);
            if let Some((class, minion)) =
                oldest.map(|(class, (minion, _))| (class, minion.clone()))
                && let Some(minions) = over.get_mut(&class)
            {
                minions.remove(&minion);
            }
        }

        let mut one = OverShare {
            at: now,
            entries: 0,
            bytes: 0,
        };
        one.add(amount, now);
        over.entry(class)
            .or_default()
            .insert(minion.to_owned(), one);
    }

    /// The minions that were over their share within a day.
    pub(crate) fn over(&self, now: Micros) -> Vec<(Class, String, OverShare)> {
        let oldest = now.0.saturating_sub(SHARE_NAMED_AGE);
        let mut over = self.over.lock();

        let mut found = Vec::new();
        for (class, minions) in over.iter_mut() {
            minions.retain(|_, one| one.at.0 >= oldest);
            found.extend(
                minions
                    .iter()
                    .map(|(minion, one)| (*class, minion.clone(), *one)),
            );
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saltcellar_model::{Age, ClassRules, Kind, Source};

    const NOW: Micros = Micros(5);

    fn keep(bytes: Option<u64>, entries: Option<u64>) -> Keep {
        Keep {
            age: Age::Forever,
            bytes,
            entries,
        }
    }

    fn table(keep: Keep) -> Classes {
        Classes::new(&[ClassRules {
            keep,
            ..ClassRules::jobs()
        }])
    }

    /// Whether an entry of a minion goes to the overflow.
    fn place(shares: &mut Shares, state: &ShareState, minion: &str, bytes: usize) -> bool {
        let body = vec![0; bytes];
        let entry = Entry {
            minion,
            ..Entry::new(Kind::Return, Source::Returner, NOW, &body)
        };
        let clock = Clock::manual(NOW);
        shares.place(Class::JOBS, &entry, state, &clock).1
    }

    #[test]
    fn a_minion_over_half_its_share_goes_to_the_overflow_until_others_have_written() {
        for (keep, bytes) in [
            (keep(Some(1 << 20), None), 1024),
            (keep(None, Some(1000)), 0),
        ] {
            let classes = table(keep);
            let mut shares = Shares::new(&classes);
            let state = ShareState::new(classes.len());
            let stays: usize = (0..1000)
                .map(|_| usize::from(!place(&mut shares, &state, "big", bytes)))
                .sum();
            assert!((200..=256).contains(&stays), "a quarter: {stays}");
            let over = state.over(NOW);
            assert_eq!(over.len(), 1);
            assert_eq!(over[0].2.entries, 1000 - stays as u64);
            for n in 0..2000 {
                let other = format!("web{}", n % 50);
                assert!(!place(&mut shares, &state, &other, bytes), "{other}");
                assert!(!place(&mut shares, &state, "", bytes), "no minion");
            }
            assert!(!place(&mut shares, &state, "big", bytes), "forgotten");
        }
    }

    #[test]
    fn the_minions_over_their_share_are_counted_and_bounded_in_all_classes() {
        let state = ShareState::new(2);
        let note = |class, minion: &str, at| {
            let amount = Amount {
                entries: 1,
                bytes: 7,
            };
            state.note(class, ("x", minion), amount, Micros(at));
        };
        // Known ids add up, and become the newest.
        for at in 1..4 {
            note(Class::JOBS, "first", at);
            note(Class::EVENTS, "first", at);
        }
        note(Class::EVENTS, "oldest", 0);
        for n in 0..SHARE_NAMED_MAX - 2 {
            let class = [Class::JOBS, Class::EVENTS][n % 2];
            note(class, &format!("web{n}"), 9);
        }

        let over = state.over(NOW);
        assert_eq!(over.len(), SHARE_NAMED_MAX);
        assert!(over.iter().all(|(_, minion, _)| minion != "oldest"));
        let first = over.iter().filter(|(_, minion, _)| minion == "first");
        let counted: Vec<_> = first
            .map(|(_, _, one)| (one.at, one.entries, one.bytes))
            .collect();
        assert_eq!(counted, [(Micros(3), 3, 21); 2]);
    }

    #[test]
    fn a_better_compression_means_a_larger_share() {
        let classes = table(keep(Some(1 << 20), None));
        let mut shares = Shares::new(&classes);
        let state = ShareState::new(classes.len());
        state.set_compression(Class::JOBS, 4 << 20, 1 << 20);
        let stays: usize = (0..2000)
            .map(|_| usize::from(!place(&mut shares, &state, "big", 1024)))
            .sum();
        assert!((900..=1024).contains(&stays), "{stays}");
    }

    #[test]
    fn without_limits_or_with_the_whole_as_share_nothing_is_kept_apart() {
        for classes in [
            table(keep(None, None)),
            table(keep(Some(1 << 20), None)).with_share(100),
        ] {
            let mut shares = Shares::new(&classes);
            let state = ShareState::new(classes.len());
            for _ in 0..5000 {
                assert!(!place(&mut shares, &state, "big", 1024));
            }
            assert_eq!(state.over(NOW), []);
        }
    }
}
