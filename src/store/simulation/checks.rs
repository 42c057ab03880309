//! What a store says against what was sent.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Attempt, Loss, Model, number};
use crate::model::{EventFilter, Flags, Glob, JidKey, Kind, SeqNo};
use crate::store::{Store, StoredEntry};
use crate::wire::msgpack;

impl Model {
    /// A copy of a store, from a backup or a salvage: everything that was answered is in it, once, and nothing else.
    pub(super) fn check_copy(&self, store: &Store) {
        let mut copy = self.clone();
        let listed =
            store.events_before(&EventFilter::default(), SeqNo(u64::MAX), usize::MAX, usize::MAX).unwrap();
        let mut all: BTreeMap<u64, StoredEntry> = listed.into_iter().map(|e| (e.seq.0, e)).collect();
        let jids: BTreeSet<_> = self.items.iter().map(|item| &item.jid).filter(|j| !j.is_empty()).collect();
        for jid in jids {
            all.extend(store.job_entries(jid).unwrap().into_iter().map(|e| (e.seq.0, e)));
        }
        copy.check_entries(&all, true);
    }

    /// Everything that a store says must agree with what was sent.
    pub(super) fn check(&mut self, store: &Store) {
        assert!(store.durable() >= self.durable, "{} after {}", store.durable(), self.durable);
        self.durable = store.durable();
        let everything = |filter: &EventFilter| {
            store.events_before(filter, SeqNo(u64::MAX), usize::MAX, usize::MAX).unwrap()
        };
        let events = everything(&EventFilter::default());
        assert!(events.windows(2).all(|pair| pair[0].seq > pair[1].seq), "the list goes back");
        let mut all: BTreeMap<u64, StoredEntry> = events.iter().map(|e| (e.seq.0, e.clone())).collect();
        let jids: BTreeSet<_> =
            self.items.iter().map(|item| item.jid.clone()).filter(|j| !j.is_empty()).collect();
        for jid in &jids {
            let of_job = store.job_entries(jid).unwrap();
            assert!(of_job.windows(2).all(|pair| pair[0].seq < pair[1].seq), "job {jid} is out of order");
            let on_bus = |e: &&StoredEntry| e.jid == *jid && e.flags.has(Flags::ON_BUS);
            let seqs: Vec<_> = of_job.iter().filter(on_bus).map(|e| e.seq).collect();
            let mut listed: Vec<_> = events.iter().filter(on_bus).map(|e| e.seq).collect();
            listed.reverse();
            assert_eq!(seqs, listed, "the events of job {jid}");
            let filter = EventFilter { jid: Some(jid.clone()), ..EventFilter::default() };
            let mut filtered: Vec<_> = everything(&filter).iter().map(|e| e.seq).collect();
            filtered.reverse();
            assert_eq!(filtered, listed, "the list of events of job {jid}");
            let (row, has_entries) = (store.job_row(jid).unwrap().is_some(), !of_job.is_empty());
            assert!(row == has_entries || self.damaged && row, "the row of job {jid}");
            all.extend(of_job.into_iter().map(|e| (e.seq.0, e)));
        }
        self.check_entries(&all, false);
        self.readable = all.keys().copied().collect();
        let beacons = EventFilter { tag: Some(Glob::new("salt/beacon/web1/*")), ..EventFilter::default() };
        let expected = events.iter().filter(|e| e.tag.starts_with(b"salt/beacon/web1/")).count();
        assert_eq!(everything(&beacons).len(), expected, "the beacons of web1");
        if self.damaged {
            return;
        }
        let dropped = |seq| self.found.get(&seq).is_some_and(|n| self.items[*n].loss == Loss::Dropped);
        check_lists(store, &all, dropped);
        self.check_register(store);
    }

    fn check_entries(&mut self, all: &BTreeMap<u64, StoredEntry>, is_copy: bool) {
        let mut copies = vec![0; self.items.len()];
        for (seq, entry) in all {
            let n = number(entry).filter(|n| *n < self.items.len());
            let n = n.unwrap_or_else(|| panic!("forged: number {seq} was never sent"));
            self.items[n].compare(n, entry);
            copies[n] += 1;
            let known = self.found.insert(*seq, n);
            assert!(known.is_none_or(|known| known == n), "number {seq} was {known:?}'s and is {n}'s");
        }
        for (n, (item, copies)) in self.items.iter().zip(&copies).enumerate() {
            let (least, mut most) = item.copies();
            if is_copy {
                // What was cut off, or is about to be, may be saved beside what was stored in its place.
                most = item.attempts.len();
            }
            if item.kind != Kind::Register {
                assert!(
                    (least..=most).contains(copies),
                    "{copies} of {n}: {:?} {:?}",
                    item.kind,
                    item.attempts
                );
            }
        }
        if is_copy {
            return;
        }
        let gone =
            self.found.iter().find(|(seq, n)| !all.contains_key(seq) && self.items[**n].loss == Loss::No);
        assert!(gone.is_none(), "number and item {gone:?} were readable and are gone");
    }

    /// The last word counts, or a later one that was not answered.
    fn check_register(&self, store: &Store) {
        let registers = || self.items.iter().filter(|item| item.kind == Kind::Register);
        let attempts =
            || registers().flat_map(|item| item.attempts.iter().map(move |attempt| (item, attempt)));
        let last = attempts().filter(|(_, attempt)| attempt.acknowledged).map(|(_, a)| a.order).max();
        let Some(body) = store.register().unwrap() else {
            assert!(last.is_none() || self.lost_unsynced, "there is no register");
            return;
        };
        let counts = |attempt: &Attempt| last.is_none_or(|last| attempt.order >= last);
        let found = attempts().any(|(item, attempt)| item.body == body && counts(attempt));
        assert!(found, "the register is an old one: {:?}", msgpack::as_text(&body));
    }
}

/// The lists of jobs and of minions against all entries.
fn check_lists(store: &Store, all: &BTreeMap<u64, StoredEntry>, dropped: impl Fn(u64) -> bool) {
    let jids = |wanted: fn(Kind) -> bool| -> BTreeSet<&str> {
        all.values().filter(|e| wanted(e.kind) && !e.jid.is_empty()).map(|e| e.jid.as_str()).collect()
    };
    let rows = store.jobs_before(None, usize::MAX).unwrap();
    let listed: BTreeSet<&str> = rows.iter().map(|(_, row)| row.jid.as_str()).collect();
    assert_eq!(rows.len(), listed.len(), "a job is listed twice");
    let due = jids(|kind| crate::store::job_summary::rank(kind) > 0);
    assert!(due.is_subset(&listed), "{due:?} are jobs, {listed:?} are listed");
    assert!(listed.is_subset(&jids(|_| true)), "a job is listed that nobody sent");
    for bus_only in [false, true] {
        check_latest(store, all, &dropped, bus_only);
    }
}

/// The last jobs of returns that a returner call brought, or of those that were on a bus alone.
fn check_latest(
    store: &Store,
    all: &BTreeMap<u64, StoredEntry>,
    dropped: &impl Fn(u64) -> bool,
    bus_only: bool,
) {
    let mut latest = BTreeMap::new();
    for entry in all.values().filter(|e| e.kind == Kind::Return && e.source.confirms() != bus_only) {
        // By time, not in the order of storing; jids made by hand are older than any time.
        let newness = (Some(JidKey::of(&entry.jid)).filter(|key| key.time().is_some()), entry.seq);
        let known = latest.entry(entry.minion.clone()).or_insert(newness);
        *known = newness.max(*known);
    }
    let latest: BTreeMap<String, SeqNo> =
        latest.into_iter().map(|(minion, (_, seq))| (minion, seq)).collect();
    let (said, named) = if bus_only {
        let said = store.latest_on_bus_only("test.echo").unwrap();
        let named = said.keys().cloned().collect();
        (said, named)
    } else {
        (store.latest_of("test.echo").unwrap(), store.minions(true).unwrap())
    };
    // Between the two answers the sealer may have given up one of whom nothing is left.
    assert!(named.iter().all(|minion| said.contains_key(minion)), "{named:?} are named, {said:?} said");
    assert!(latest.keys().all(|minion| named.contains(minion)), "{named:?} are named, {latest:?} are there");
    let said: BTreeMap<_, _> = said.into_iter().map(|(minion, latest)| (minion, latest.seq)).collect();
    // A minion all of whose returns went may be named as long as segments that stay surround them.
    let stale = |seq: SeqNo| dropped(seq.0) && !all.contains_key(&seq.0);
    let said: BTreeMap<_, _> =
        said.into_iter().filter(|(minion, seq)| latest.contains_key(minion) || !stale(*seq)).collect();
    assert_eq!(said, latest, "the latest job of each minion");
}
