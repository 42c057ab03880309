//! Entries that the daemon already stores. They are looked up before anything is stored, which
//! makes imports repeatable.
//!
//! The data of a job is looked up by its jid and compared with the job's entries. Events are
//! compared by tag and data with all stored events of a time range; each stored event matches once.
//!
//! # Invariant
//!
//! Nothing is imported twice, without a file of positions: an import compares with the store.

use std::collections::{BTreeMap, HashMap, HashSet};

use rmpv::Value;

use super::fingerprint;
use super::item::Payload;
use crate::api::call as calls;
use crate::api::call::events::{EntryRow, ListArgs};
use crate::api::client::{Client, ClientError};
use crate::base::clock::Micros;
use crate::base::limits::LIST_ROWS_MAX;
use crate::model::Kind;
use crate::store::index::job_summary::rank;
use crate::wire::msgpack::{self, Time};
use crate::wire::salt_event::peek;

#[derive(Debug, Default)]
pub(super) struct StoredJob {
    loads: HashSet<u64>,
    /// It contains a load, or what stands for a load.
    is_known: bool,
    minions: HashSet<Vec<u8>>,
    answers: HashSet<(String, u64)>,
    has_endtime: bool,
    nocache: bool,
}

impl StoredJob {
    /// Number of cached values, approximately.
    pub(super) fn size(&self) -> usize {
        1 + self.loads.len() + self.minions.len() + self.answers.len()
    }

    /// Adds an entry that the call `entries` returned.
    pub(super) fn add_stored(&mut self, entry: &EntryRow) {
        let Some(body) = msgpack::as_bytes(entry.body.packed()) else {
            return;
        };

        self.is_known |= rank(entry.kind) > 0;
        match entry.kind {
            Kind::Load | Kind::ReturnLoad => {
                let mut parts = msgpack::elements(body);
                self.loads.extend(parts.next().map(fingerprint::of));
                self.minions
                    .extend(parts.next().into_iter().flat_map(names));
            }
            Kind::JobNew => self
                .minions
                .extend(msgpack::get(body, "minions").into_iter().flat_map(names)),
            Kind::Minions => self
                .minions
                .extend(msgpack::elements(body).next().into_iter().flat_map(names)),
            // A return seen only on a bus is imported again, which confirms it.
            Kind::Return if entry.confirmed != Some(false) => {
                let minion = entry.minion.clone().unwrap_or_default();
                self.answers.insert((minion, answer(body)));
            }
            // It takes precedence, because an imported end time is older.
            Kind::Endtime => self.has_endtime = true,
            Kind::NoCache => self.nocache = true,
            _ => {}
        }
    }

    /// Adds an item, and returns whether it contains new data. A load with only new minions is
    /// replaced by these.
    pub(super) fn add_new(&mut self, payload: &mut Payload) -> bool {
        let was_known = self.is_known;
        self.is_known |= rank(payload.kind) > 0;

        match payload.kind {
            // The daemon stores a return as a load only for a job that it does not know.
            Kind::Load if was_known && is_return(payload) => false,
            Kind::Load => {
                let is_new = self.loads.insert(fingerprint::of(&payload.body));
                let more = self.add_minions(&payload.minions);
                // The load is known, so only its minions are sent.
                if !is_new && more {
                    payload.kind = Kind::Minions;
                    payload.body.clear();
                }

                is_new || more
            }
            Kind::Minions => self.add_minions(&payload.minions),
            Kind::Return => self
                .answers
                .insert((payload.id.clone(), answer(&payload.body))),
            Kind::Endtime => !std::mem::replace(&mut self.has_endtime, true),
            Kind::NoCache => !std::mem::replace(&mut self.nocache, true),
            _ => true,
        }
    }

    fn add_minions(&mut self, minions: &[u8]) -> bool {
        let before = self.minions.len();
        self.minions.extend(names(minions));
        self.minions.len() > before
    }
}

/// Whether a load without minions is a return: Salt passes each one to `save_load` as well.
fn is_return(payload: &Payload) -> bool {
    let seen = peek(&payload.body);
    payload.minions.is_empty() && seen.has_return() && seen.cmd().is_none_or(|cmd| cmd == "_return")
}

fn names(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    msgpack::elements(list).map(<[u8]>::to_vec)
}

/// A fingerprint of `return`, `retcode` and `success`.
fn answer(load: &[u8]) -> u64 {
    peek(load).answer.iter().fold(0, |hash, part| {
        let own = if part.is_empty() {
            0
        } else {
            fingerprint::of(part)
        };

        // The factor, 2^64 divided by the golden ratio, spreads the bits; the rotation makes the
        // order of parts count.
        hash.rotate_left(21).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ own
    })
}

/// A fingerprint of an event, from the fingerprint of its data.
fn event_fingerprint(tag: &str, data: u64) -> u64 {
    fingerprint::of_value(&Value::from(tag)).rotate_left(32) ^ data
}

/// Largest difference between the timestamps of one event, microseconds.
const SLACK_US: i64 = 2_000_000;

/// The stored events of a time range.
#[derive(Debug)]
pub(super) struct Window {
    /// The range that was read; empty at first.
    span: std::ops::Range<i64>,
    by_time: BTreeMap<i64, Vec<u64>>,
    /// The timestamps of unmatched events, by fingerprint.
    left: HashMap<u64, Vec<i64>>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            span: 0..0,
            by_time: BTreeMap::new(),
            left: HashMap::new(),
        }
    }

    pub(super) fn cover(
        &mut self,
        client: &mut Client,
        first: i64,
        last: i64,
    ) -> Result<(), ClientError> {
        let wanted =
            first.saturating_sub(SLACK_US)..last.saturating_add(SLACK_US).saturating_add(1);

        // Items are almost in the order of time, therefore the range normally moves forwards.
        if wanted.start < self.span.start || wanted.start > self.span.end || self.span.is_empty() {
            self.by_time.clear();
            self.left.clear();
            self.span = wanted.start..wanted.start;
        }

        // Earlier events cannot match the items that follow.
        while let Some(old) = self
            .by_time
            .first_entry()
            .filter(|old| *old.key() < wanted.start)
        {
            let (at, fingerprints) = old.remove_entry();
            for fingerprint in fingerprints {
                self.forget(fingerprint, |left| *left == at);
            }
        }

        self.span.start = wanted.start;

        if wanted.end > self.span.end {
            self.read(client, self.span.end, wanted.end)?;
            self.span.end = wanted.end;
        }

        Ok(())
    }

    fn read(&mut self, client: &mut Client, since: i64, until: i64) -> Result<(), ClientError> {
        let mut call = ListArgs {
            since: Some(Time(Micros(since))),
            until: Some(Time(Micros(until))),
            limit: Some(LIST_ROWS_MAX),
            ..ListArgs::default()
        };

        loop {
            let page = client.make::<calls::events::List>(&call)?;

            for event in &page.events {
                let fingerprint =
                    event_fingerprint(&event.tag, fingerprint::of(event.data.packed()));
                let Time(Micros(at)) = event.time;
                self.by_time.entry(at).or_default().push(fingerprint);
                self.left.entry(fingerprint).or_default().push(at);
            }

            // Pages go from the newest event to the oldest.
            if !page.more || page.next.is_none() {
                return Ok(());
            }
            call.cursor = page.next;
        }
    }

    /// Whether the event is stored. Each stored event matches once.
    pub(super) fn has(&mut self, tag: &[u8], data: &[u8]) -> bool {
        let fingerprint = event_fingerprint(&String::from_utf8_lossy(tag), fingerprint::of(data));
        self.forget(fingerprint, |_| true)
    }

    fn forget(&mut self, fingerprint: u64, is_it: impl Fn(&i64) -> bool) -> bool {
        let Some(times) = self.left.get_mut(&fingerprint) else {
            return false;
        };

        let Some(at) = times.iter().position(is_it) else {
            return false;
        };

        times.swap_remove(at);
        if times.is_empty() {
            self.left.remove(&fingerprint);
        }
        true
    }
}
