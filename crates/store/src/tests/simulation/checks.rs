//! Comparison of a store with the model.

use std::collections::{BTreeMap, BTreeSet};

use salt_sls::Glob;

use super::model::{Attempt, Loss, Model, number};
use crate::{Store, StoredEntry};
use saltcellar_model::{EventFilter, Flags, JidKey, Kind, SeqNo};
use saltcellar_wire::msgpack;

impl Model {
    /// Checks a copy of a store, from a backup or a salvage: it contains every acknowledged entry
    /// once, and nothing else.
    pub(super) fn check_copy(&self, store: &Store) {
        let mut copy = self.clone();
        let listed = store
            .events_before(
                &EventFilter::default(),
                SeqNo(u64::MAX),
                usize::MAX,
                usize::MAX,
            )
            .unwrap();
        let mut all: BTreeMap<u64, StoredEntry> =
            listed.into_iter().map(|e| (e.seq.0, e)).collect();
        let jids: BTreeSet<_> = self
            .items
            .iter()
            .map(|item| &item.jid)
            .filter(|j| !j.is_empty())
            .collect();
        for jid in jids {
            all.extend(
                store
                    .job_entries(jid)
                    .unwrap()
                    .into_iter()
                    .map(|e| (e.seq.0, e)),
            );
        }
        // The gap record of the new store.
        all.retain(|_, entry| entry.kind != Kind::Gap);
        copy.check_entries(&all, true);
    }

    /// Checks all entries, lists and summaries of a store against the model.
    pub(super) fn check(&mut self, store: &Store) {
        assert!(
            store.durable() >= self.durable,
            "{} after {}",
            store.durable(),
            self.durable
        );
        self.durable = store.durable();
        let everything = |filter: &EventFilter| {
            store
                .events_before(filter, SeqNo(u64::MAX), usize::MAX, usize::MAX)
                .unwrap()
        };
        let events = everything(&EventFilter::default());
        assert!(
            events.windows(2).all(|pair| pair[0].seq > pair[1].seq),
            "events are listed in descending order"
        );
        let mut all: BTreeMap<u64, StoredEntry> =
            events.iter().map(|e| (e.seq.0, e.clone())).collect();
        let jids: BTreeSet<_> = self
            .items
            .iter()
            .map(|item| item.jid.clone())
            .filter(|j| !j.is_empty())
            .collect();
        for jid in &jids {
            let of_job = store.job_entries(jid).unwrap();
            assert!(
                of_job.windows(2).all(|pair| pair[0].seq < pair[1].seq),
                "job {jid} is out of order"
            );
            let on_bus = |e: &&StoredEntry| e.jid == *jid && e.flags.has(Flags::ON_BUS);
            let seqs: Vec<_> = of_job.iter().filter(on_bus).map(|e| e.seq).collect();
            let mut listed: Vec<_> = events.iter().filter(on_bus).map(|e| e.seq).collect();
            listed.reverse();
            assert_eq!(seqs, listed, "the events of job {jid}");
            let filter = EventFilter {
                jid: Some(jid.clone()),
                ..EventFilter::default()
            };
            let mut filtered: Vec<_> = everything(&filter).iter().map(|e| e.seq).collect();
            filtered.reverse();
            assert_eq!(filtered, listed, "the list of events of job {jid}");
            let (row, has_entries) = (store.job_row(jid).unwrap().is_some(), !of_job.is_empty());
            assert!(
                row == has_entries || self.damaged && row,
                "the row of job {jid}"
            );
            all.extend(of_job.into_iter().map(|e| (e.seq.0, e)));
        }
        self.check_entries(&all, false);
        self.readable = all.keys().copied().collect();
        let beacons = EventFilter {
            tag: Some(Glob::new("salt/beacon/web1/*")),
            ..EventFilter::default()
        };
        let expected = events
            .iter()
            .filter(|e| e.tag.starts_with(b"salt/beacon/web1/"))
            .count();
        assert_eq!(
            everything(&beacons).len(),
            expected,
            "the number of beacons of web1"
        );
        if self.damaged {
            return;
        }
        let dropped = |seq| {
            self.found
                .get(&seq)
                .is_some_and(|n| self.items[*n].loss == Loss::Dropped)
        };
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
            assert!(
                known.is_none_or(|known| known == n),
                "number {seq} was {known:?}'s and is {n}'s"
            );
        }
        for (n, (item, copies)) in self.items.iter().zip(&copies).enumerate() {
            let (least, mut most) = item.copies();
            if is_copy {
                // Entries of a removed tail may be salvaged in addition to their retries.
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
        let gone = self
            .found
            .iter()
            .find(|(seq, n)| !all.contains_key(seq) && self.items[**n].loss == Loss::No);
        assert!(
            gone.is_none(),
            "number and item {gone:?} were readable and are gone"
        );
    }

    /// The register is the last acknowledged one, or a later unacknowledged one.
    fn check_register(&self, store: &Store) {
        let registers = || self.items.iter().filter(|item| item.kind == Kind::Register);
        let attempts = || {
            registers().flat_map(|item| item.attempts.iter().map(move |attempt| (item, attempt)))
        };
        let last = attempts()
            .filter(|(_, attempt)| attempt.acknowledged)
            .map(|(_, a)| a.order)
            .max();
        let Some(body) = store.register().unwrap() else {
            assert!(
                last.is_none() || self.lost_unsynced,
                "the register is missing"
            );
            return;
        };
        let counts = |attempt: &Attempt| last.is_none_or(|last| attempt.order >= last);
        let found = attempts().any(|(item, attempt)| item.body == body && counts(attempt));
        assert!(
            found,
            "the register is outdated: {:?}",
            msgpack::as_text(&body)
        );
    }
}

/// Checks the lists of jobs and minions against all entries.
fn check_lists(store: &Store, all: &BTreeMap<u64, StoredEntry>, dropped: impl Fn(u64) -> bool) {
    let jids = |wanted: fn(Kind) -> bool| -> BTreeSet<&str> {
        all.values()
            .filter(|e| wanted(e.kind) && !e.jid.is_empty())
            .map(|e| e.jid.as_str())
            .collect()
    };
    let rows = store.jobs_before(None, usize::MAX).unwrap();
    let listed: BTreeSet<&str> = rows.iter().map(|(_, row)| row.jid.as_str()).collect();
    assert_eq!(rows.len(), listed.len(), "a job is listed twice");
    let due = jids(|kind| crate::index::job_summary::rank(kind) > 0);
    assert!(
        due.is_subset(&listed),
        "{due:?} are jobs, {listed:?} are listed"
    );
    assert!(
        listed.is_subset(&jids(|_| true)),
        "a listed job was never sent"
    );
    for bus_only in [false, true] {
        check_latest(store, all, &dropped, bus_only);
    }
}

/// Checks the last jobs by confirmed returns, or by returns seen only on the bus.
fn check_latest(
    store: &Store,
    all: &BTreeMap<u64, StoredEntry>,
    dropped: &impl Fn(u64) -> bool,
    bus_only: bool,
) {
    let mut latest = BTreeMap::new();
    for entry in all
        .values()
        .filter(|e| e.kind == Kind::Return && e.source.confirms() != bus_only)
    {
        // Ordered by time, not by sequence number; job ids without a time are the oldest.
        let newness = (
            Some(JidKey::of(&entry.jid)).filter(|key| key.time().is_some()),
            entry.seq,
        );
        let known = latest.entry(entry.minion.clone()).or_insert(newness);
        *known = newness.max(*known);
    }
    let latest: BTreeMap<String, SeqNo> = latest
        .into_iter()
        .map(|(minion, (_, seq))| (minion, seq))
        .collect();
    let (found, listed) = if bus_only {
        let found = store.latest_on_bus_only("test.echo").unwrap();
        let listed = found.keys().cloned().collect();
        (found, listed)
    } else {
        (
            store.latest_of("test.echo").unwrap(),
            store.minions(true).unwrap(),
        )
    };
    // Between the two calls the sealer may remove a minion without remaining returns.
    assert!(
        listed.iter().all(|minion| found.contains_key(minion)),
        "{listed:?} are listed, {found:?} found"
    );
    assert!(
        latest.keys().all(|minion| listed.contains(minion)),
        "{listed:?} are listed, {latest:?} are there"
    );
    let found: BTreeMap<_, _> = found
        .into_iter()
        .map(|(minion, latest)| (minion, latest.seq))
        .collect();
    // A minion without remaining returns may be listed while remaining segments enclose its dropped
    // returns.
    let stale = |seq: SeqNo| dropped(seq.0) && !all.contains_key(&seq.0);
    let found: BTreeMap<_, _> = found
        .into_iter()
        .filter(|(minion, seq)| latest.contains_key(minion) || !stale(*seq))
        .collect();
    assert_eq!(found, latest, "the latest job of each minion");
}
