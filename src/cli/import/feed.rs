//! From items to the daemon: looked up in chunks, stored over a second connection, many calls under way at once.
//!
//! # Invariant
//!
//! An item is either stored (answered, so on disk), known to the daemon already, or left out: named and counted. Every call
//! carries its item's time and is marked as a replay, so the daemon folds what comes by another door at the same time.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;

use anyhow::Context as _;
use rmpv::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::super::output::plain;
use super::item::{Item, What};
use super::known::{Job, Window};
use super::likeness::Likeness;
use crate::api::client::{Client, ClientError};
use crate::limits::{
    ENTRY_BYTES_MAX, IMPORT_BAD_NAMED, IMPORT_BYTES, IMPORT_CALLS, IMPORT_CHUNK_BYTES, IMPORT_CHUNK_ITEMS,
    IMPORT_EVENTS, IMPORT_FACTS_REMEMBERED, IMPORT_QUESTIONS, TAG_BYTES_MAX,
};
use crate::model::Kind;
use crate::wire::msgpack::Writer;

/// What became of items.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By kind: stored, known.
    pub(super) by_kind: HashMap<Kind, (u64, u64)>,
    /// Left out.
    pub(super) bad: u64,
    /// Older than the class of jobs keeps its entries.
    pub(super) too_old: u64,
}

impl Tally {
    /// Stored and known, all kinds together.
    pub(super) fn sums(&self) -> (u64, u64) {
        self.by_kind.values().fold((0, 0), |(stored, known), one| (stored + one.0, known + one.1))
    }
}

/// A call that has no answer yet.
struct Pending {
    origin: String,
    kind: Kind,
    items: u64,
    bytes: usize,
    /// The events of a list: one that is too large does not take the others with it.
    events: Vec<Item>,
}

/// The way to the daemon.
pub(super) struct Feed {
    asks: Client,
    writes: Client,
    likeness: Likeness,
    window: Window,
    jobs: HashMap<String, Job>,
    /// What events said, and when: those of this chunk, and some before.
    recent: HashSet<(u64, i64)>,
    chunk: Vec<Item>,
    chunk_bytes: usize,
    pending: HashMap<u64, Pending>,
    pending_bytes: usize,
    /// Items before this time are let go of by retention, as it is configured.
    kept_since: Option<i64>,
    now: i64,
    pub(super) tally: Tally,
}

impl Feed {
    /// Over two connections. `slack` is how far the times of one event may be apart, microseconds.
    pub(super) fn new(asks: Client, writes: Client, likeness: Likeness, slack: i64, now: i64) -> Self {
        Self {
            asks,
            writes,
            likeness,
            window: Window::new(likeness, slack),
            jobs: HashMap::new(),
            recent: HashSet::new(),
            chunk: Vec::new(),
            chunk_bytes: 0,
            pending: HashMap::new(),
            pending_bytes: 0,
            kept_since: None,
            now,
            tally: Tally::default(),
        }
    }

    /// Asks how long the class of jobs keeps its entries.
    pub(super) fn ask_retention(&mut self) -> anyhow::Result<()> {
        let stats =
            self.asks.call("store_stats", Value::Map(Vec::new())).context("ask how long jobs are kept")?;
        let classes = stats["classes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let jobs = classes.iter().find(|class| class["class"].as_str() == Some("jobs"));
        let keeps_s = jobs.and_then(|class| class["keep_age_s"].as_i64());
        self.kept_since = keeps_s.map(|s| self.now.saturating_sub(s.saturating_mul(1_000_000)));
        Ok(())
    }

    /// Takes an item; stores it with others.
    pub(super) fn push(&mut self, mut item: Item) -> anyhow::Result<()> {
        let bytes = item.what.bytes();
        if bytes > ENTRY_BYTES_MAX {
            self.leave_out(
                &item.origin,
                &format!("{bytes} bytes exceed the largest entry, {ENTRY_BYTES_MAX}"),
            );
            return Ok(());
        }
        if let What::Event { tag, .. } = &item.what
            && (tag.is_empty() || tag.len() > TAG_BYTES_MAX)
        {
            self.leave_out(&item.origin, "an event without a tag, or with one that is too long");
            return Ok(());
        }
        // A time that lies ahead would keep its segment for ever.
        item.at = item.at.min(self.now);
        self.tally.too_old += u64::from(self.kept_since.is_some_and(|since| item.at < since));
        self.chunk_bytes += bytes;
        self.chunk.push(item);
        if self.chunk.len() >= IMPORT_CHUNK_ITEMS || self.chunk_bytes >= IMPORT_CHUNK_BYTES {
            self.store_chunk()?;
        }
        Ok(())
    }

    /// Names and counts what cannot be imported.
    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        self.tally.bad += 1;
        let mut err = std::io::stderr();
        // Nobody is left to tell if this cannot be written; it is counted.
        let _ = match self.tally.bad {
            ..=IMPORT_BAD_NAMED => writeln!(err, "saltcellar: left out: {}: {}", plain(what), plain(why)),
            n if n == IMPORT_BAD_NAMED + 1 => {
                writeln!(err, "saltcellar: left out: more, which are only counted")
            }
            _ => Ok(()),
        };
    }

    /// Stores what is left, and waits for every answer.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.store_chunk()?;
        self.take_answers(0, 0)
    }

    fn store_chunk(&mut self) -> anyhow::Result<()> {
        let chunk = std::mem::take(&mut self.chunk);
        self.chunk_bytes = 0;
        self.look_up(&chunk).context("ask what is stored already")?;
        let times = chunk.iter().filter(|item| item.what.kind() == Kind::Event).map(|item| item.at);
        if let (Some(first), Some(last)) = (times.clone().min(), times.max()) {
            self.window.cover(&mut self.asks, first, last).context("ask which events are stored already")?;
        }
        if self.recent.len() > IMPORT_CHUNK_ITEMS {
            self.recent.clear();
        }
        let mut events: Vec<Item> = Vec::new();
        for mut item in chunk {
            let kind = item.what.kind();
            if let What::Event { tag, data } = &item.what {
                // The daemon tells equal events that are handed over apart by their times.
                let print = self.likeness.of(data) ^ xxh3_64(tag);
                while !self.recent.insert((print, item.at)) {
                    item.at += 1;
                }
            }
            let is_new = match (&item.what, item.what.jid().and_then(|jid| self.jobs.get_mut(jid))) {
                (What::Event { tag, data }, _) => !self.window.has(tag, data),
                (_, Some(job)) => job.takes(self.likeness, &mut item.what),
                (_, None) => true,
            };
            if !is_new {
                self.tally.by_kind.entry(kind).or_default().1 += 1;
                continue;
            }
            let Some((call, args)) = item.what.call(item.at) else {
                events.push(item);
                let bytes: usize = events.iter().map(|event| event.what.bytes()).sum();
                if events.len() >= IMPORT_EVENTS || bytes >= IMPORT_CHUNK_BYTES {
                    self.store_events(std::mem::take(&mut events))?;
                }
                continue;
            };
            // What came before goes before.
            self.store_events(std::mem::take(&mut events))?;
            let (origin, bytes) = (item.origin, args.len());
            self.post(call, &args, Pending { origin, kind, items: 1, bytes, events: Vec::new() })?;
        }
        self.store_events(events)
    }

    fn store_events(&mut self, events: Vec<Item>) -> anyhow::Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        self.make_room(events.iter().map(|event| event.what.bytes()).sum())?;
        self.send_events(events)
    }

    fn send_events(&mut self, events: Vec<Item>) -> anyhow::Result<()> {
        let origin = events.first().map(|event| event.origin.clone()).unwrap_or_default();
        let items = events.len();
        let mut w = Writer::new();
        w.map(3).str("replay").bool(true).str("import").bool(true).str("events").array(items);
        for event in &events {
            if let What::Event { tag, data } = &event.what {
                w.map(3).str("tag").str_bytes(tag).str("data").raw(data).str("at").int(event.at);
            }
        }
        let args = w.into_bytes();
        let pending = Pending { origin, kind: Kind::Event, items: items as u64, bytes: args.len(), events };
        self.send("event_return", &args, pending)
    }

    /// Asks for the jobs of a chunk that are not remembered.
    fn look_up(&mut self, chunk: &[Item]) -> Result<(), ClientError> {
        let wanted: HashSet<&str> = chunk.iter().filter_map(|item| item.what.jid()).collect();
        let facts: usize = self.jobs.values().map(Job::facts).sum();
        if facts > IMPORT_FACTS_REMEMBERED {
            self.jobs.retain(|jid, _| wanted.contains(jid.as_str()));
        }
        let mut wanted: Vec<&str> = wanted.into_iter().filter(|jid| !self.jobs.contains_key(*jid)).collect();
        wanted.sort_unstable();
        let mut open: HashMap<u64, &str> = HashMap::new();
        let mut rest = wanted.into_iter();
        loop {
            while open.len() < IMPORT_QUESTIONS
                && let Some(jid) = rest.next()
            {
                open.insert(self.asks.post("entries", &question(jid, None))?, jid);
                self.jobs.insert(jid.to_owned(), Job::default());
            }
            if open.is_empty() {
                return Ok(());
            }
            let (id, answer) = self.asks.next_answer()?;
            let answer = answer?;
            let Some(jid) = open.remove(&id) else {
                return Err(ClientError::Protocol(format!("an answer to {id}, which was not asked")));
            };
            if let Some(job) = self.jobs.get_mut(jid) {
                let entries = answer["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
                for entry in entries {
                    job.learn(self.likeness, entry);
                }
            }
            if let Some(next) = answer["next"].as_u64() {
                open.insert(self.asks.post("entries", &question(jid, Some(next)))?, jid);
            }
        }
    }

    fn post(&mut self, call: &str, args: &[u8], pending: Pending) -> anyhow::Result<()> {
        self.make_room(pending.bytes)?;
        self.send(call, args, pending)
    }

    fn make_room(&mut self, bytes: usize) -> anyhow::Result<()> {
        if self.pending.len() >= IMPORT_CALLS || self.pending_bytes + bytes > IMPORT_BYTES {
            self.take_answers(IMPORT_CALLS / 2, IMPORT_BYTES / 2)?;
        }
        Ok(())
    }

    fn send(&mut self, call: &str, args: &[u8], pending: Pending) -> anyhow::Result<()> {
        let id = self.writes.post(call, args).context("store")?;
        self.pending_bytes += pending.bytes;
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Waits until so many calls and bytes are under way at most.
    fn take_answers(&mut self, calls: usize, bytes: usize) -> anyhow::Result<()> {
        while self.pending.len() > calls || self.pending_bytes > bytes {
            let (id, answer) = self.writes.next_answer().context("store")?;
            let Some(mut pending) = self.pending.remove(&id) else {
                return Err(ClientError::Protocol(format!("an answer to {id}, which was not asked")))
                    .context("store");
            };
            self.pending_bytes -= pending.bytes;
            match answer {
                Ok(value) => {
                    // Of a list the daemon says how many it took.
                    let taken = value.as_u64().filter(|_| pending.kind == Kind::Event);
                    let stored = taken.unwrap_or(pending.items).min(pending.items);
                    self.tally.by_kind.entry(pending.kind).or_default().0 += stored;
                    for _ in stored..pending.items {
                        self.leave_out(&pending.origin, "the daemon took not all events that begin here");
                    }
                }
                Err(ClientError::Refused { code, .. }) if code == "too_large" && pending.events.len() > 1 => {
                    let half = pending.events.split_off(pending.events.len() / 2);
                    self.send_events(pending.events)?;
                    self.send_events(half)?;
                }
                Err(ClientError::Refused { code, message })
                    if matches!(code.as_str(), "refused" | "bad_args" | "too_large") =>
                {
                    self.leave_out(&pending.origin, &format!("{message} ({code})"));
                    for event in pending.events.iter().skip(1) {
                        self.leave_out(&event.origin, &format!("in one list with {}", pending.origin));
                    }
                }
                Err(error) => return Err(error).with_context(|| format!("store {}", pending.origin)),
            }
        }
        Ok(())
    }
}

/// Arguments of the call `entries` for a job.
pub(in crate::cli) fn question(jid: &str, from: Option<u64>) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(1 + usize::from(from.is_some())).str("jid").str(jid);
    if let Some(from) = from {
        w.str("from").uint(from);
    }
    w.into_bytes()
}
