//! What the daemon has already: asked before anything is stored, so that an import may be begun again, or twice.
//!
//! The facts of a job are looked up by its jid and compared with what its entries say. Events have no name to look them up by:
//! all that the daemon has of a stretch of time is compared by tag and data, and each counts for one.

use std::collections::{BTreeMap, HashMap, HashSet};

use rmpv::Value;

use super::item::What;
use super::likeness::Likeness;
use crate::api::client::{Client, ClientError, args};
use crate::limits::LIST_ROWS_MAX;
use crate::wire::msgpack;
use crate::wire::salt_event::peek;

/// What is known of a job.
#[derive(Debug, Default)]
pub(super) struct Job {
    loads: HashSet<u64>,
    minions: HashSet<Vec<u8>>,
    answers: HashSet<(String, u64)>,
    endtime: Option<String>,
    nocache: bool,
}

impl Job {
    /// How much is known, about.
    pub(super) fn facts(&self) -> usize {
        1 + self.loads.len() + self.minions.len() + self.answers.len()
    }

    /// Learns an entry of the call `entries`.
    pub(super) fn learn(&mut self, likeness: Likeness, entry: &Value) {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let Value::Binary(body) = &entry["body"] else { return };
        match text("kind") {
            "load" | "return_load" => {
                let mut parts = msgpack::elements(body);
                self.loads.extend(parts.next().map(|load| likeness.of(load)));
                self.minions.extend(parts.next().into_iter().flat_map(names));
            }
            "new" => self.minions.extend(msgpack::get(body, "minions").into_iter().flat_map(names)),
            "minions" => self.minions.extend(msgpack::elements(body).next().into_iter().flat_map(names)),
            // One that was on a bus alone is imported again, which confirms it.
            "return" if entry["confirmed"].as_bool() != Some(false) => {
                self.answers.insert((text("minion").to_owned(), answer(likeness, body)));
            }
            "endtime" => self.endtime = msgpack::as_text(body).map(str::to_owned),
            "nocache" => self.nocache = true,
            _ => {}
        }
    }

    /// Is this known? What is not is taken for known from here on, and may be cut down to what is new in it.
    pub(super) fn takes(&mut self, likeness: Likeness, what: &mut What) -> bool {
        match what {
            What::Load { jid, load, minions } => {
                let is_new = self.loads.insert(likeness.of(load));
                let more = self.adds(minions);
                if !is_new && more {
                    let minions = std::mem::take(minions);
                    *what = What::Minions { jid: jid.clone(), minions, syndic: None };
                }
                is_new || more
            }
            What::Minions { minions, .. } => self.adds(minions),
            What::Return { minion, load, .. } => {
                self.answers.insert((minion.clone(), answer(likeness, load)))
            }
            What::Endtime { endtime, .. } => {
                // The last word counts. A job that has one keeps it: what is imported is older.
                let is_new = self.endtime.is_none();
                self.endtime.get_or_insert_with(|| endtime.clone());
                is_new
            }
            What::NoCache { .. } => !std::mem::replace(&mut self.nocache, true),
            What::Event { .. } | What::Register { .. } => true,
        }
    }

    fn adds(&mut self, minions: &[u8]) -> bool {
        let before = self.minions.len();
        self.minions.extend(names(minions));
        self.minions.len() > before
    }
}

fn names(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    msgpack::elements(list).map(<[u8]>::to_vec)
}

/// What a minion answered: `return`, `retcode`, `success`.
fn answer(likeness: Likeness, load: &[u8]) -> u64 {
    peek(load).answer.iter().fold(0, |hash, part| {
        let own = if part.is_empty() { 0 } else { likeness.of(part) };
        hash.rotate_left(21).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ own
    })
}

/// The events that the daemon has of a stretch of time.
#[derive(Debug)]
pub(super) struct Window {
    likeness: Likeness,
    /// How far the times of one event may be apart, microseconds.
    slack: i64,
    /// What has been asked for; nothing yet if it is empty.
    span: std::ops::Range<i64>,
    by_time: BTreeMap<i64, Vec<u64>>,
    /// The times of each that has not been counted for one.
    left: HashMap<u64, Vec<i64>>,
}

impl Window {
    /// Nothing yet.
    pub(super) fn new(likeness: Likeness, slack: i64) -> Self {
        Self { likeness, slack, span: 0..0, by_time: BTreeMap::new(), left: HashMap::new() }
    }

    /// Moves over these times.
    pub(super) fn cover(&mut self, client: &mut Client, first: i64, last: i64) -> Result<(), ClientError> {
        let wanted = first.saturating_sub(self.slack)..last.saturating_add(self.slack).saturating_add(1);
        if wanted.start < self.span.start || wanted.start > self.span.end || self.span.is_empty() {
            self.by_time.clear();
            self.left.clear();
            self.span = wanted.start..wanted.start;
        }
        while let Some(old) = self.by_time.first_entry().filter(|old| *old.key() < wanted.start) {
            let (at, prints) = old.remove_entry();
            for print in prints {
                self.forget(print, |left| *left == at);
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
        let mut before = Value::Nil;
        loop {
            let pairs = [
                ("since", Value::from(since)),
                ("until", Value::from(until)),
                ("limit", Value::from(LIST_ROWS_MAX as u64)),
                ("before", before.clone()),
            ];
            let answer = client.call("events_list", args(pairs))?;
            let events = answer["events"].as_array().map(Vec::as_slice).unwrap_or_default();
            for event in events {
                let tag = event["tag"].as_str().unwrap_or_default();
                let print = self.print(tag, self.likeness.of_value(&event["data"]));
                let at = event["time"].as_i64().unwrap_or(since);
                self.by_time.entry(at).or_default().push(print);
                self.left.entry(print).or_default().push(at);
            }
            let Some(last) = events.last().filter(|_| answer["more"].as_bool() == Some(true)) else {
                return Ok(());
            };
            before = last["seq"].clone();
        }
    }

    fn print(&self, tag: &str, data: u64) -> u64 {
        self.likeness.of_value(&Value::from(tag)).rotate_left(32) ^ data
    }

    /// Is there such an event? It counts for one.
    pub(super) fn has(&mut self, tag: &[u8], data: &[u8]) -> bool {
        let print = self.print(&String::from_utf8_lossy(tag), self.likeness.of(data));
        self.forget(print, |_| true)
    }

    fn forget(&mut self, print: u64, is_it: impl Fn(&i64) -> bool) -> bool {
        let Some(times) = self.left.get_mut(&print) else { return false };
        let Some(at) = times.iter().position(is_it) else { return false };
        times.swap_remove(at);
        if times.is_empty() {
            self.left.remove(&print);
        }
        true
    }
}
