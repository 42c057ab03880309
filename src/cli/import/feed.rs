//! Sends items to the daemon: looks them up in chunks, and stores new ones over a second connection
//! with pipelined calls.
//!
//! # Invariant
//!
//! An item is either stored (acknowledged, so on disk), already known to the daemon, or skipped,
//! which is reported and counted. Every call contains its item's time and is marked as a replay,
//! which makes the daemon deduplicate it with other sources.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write as _;

use anyhow::Context as _;
use rmpv::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::fingerprint;
use super::item::{self, ImportItem, Payload, packed};
use super::known::{StoredJob, Window};
use crate::api::call::events::EntriesArgs;
use crate::api::call::writes::{EventReturn, EventReturnArgs};
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::{Client, ClientError};
use crate::base::limits::{
    ENTRY_BYTES_MAX, IMPORT_BAD_NAMED, IMPORT_BYTES, IMPORT_CALLS, IMPORT_CHUNK_BYTES,
    IMPORT_CHUNK_ITEMS, IMPORT_EVENTS, IMPORT_FACTS_REMEMBERED, IMPORT_QUESTIONS, TAG_BYTES_MAX,
};
use crate::cli::format::streams;
use crate::cli::plain;
use crate::model::{JOBS, Kind};
use crate::wire::call::Id;
use crate::wire::msgpack::{PackedArray, Writer};

/// The context of whatever interrupts an import.
const AGAIN: &str = "complete the import; run it again, nothing is stored twice";

#[derive(Debug, Default)]
pub(super) struct ImportStats {
    /// Stored and known items by kind.
    pub(super) by_kind: HashMap<Kind, (u64, u64)>,
    pub(super) skipped: u64,
    /// Entries of the exporting daemon that are not imported by design, by kind.
    pub(super) left_out: BTreeMap<&'static str, u64>,
    /// Items older than the age limit of the class `jobs`.
    pub(super) too_old: u64,
}

impl ImportStats {
    /// Stored and known items of all kinds.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.by_kind.values().fold((0, 0), |(stored, known), one| {
            (stored + one.0, known + one.1)
        })
    }
}

/// A call in flight.
struct PendingCall {
    origin: String,
    kind: Kind,
    items: u64,
    bytes: usize,
    /// The events of a batch, which is split if the daemon rejects it as too large.
    events: Vec<ImportItem>,
}

pub(super) struct Feed {
    reads: Client,
    writes: Client,
    window: Window,
    jobs: HashMap<String, StoredJob>,
    /// Fingerprints and timestamps of recent events.
    recent: HashSet<(u64, i64)>,
    chunk: Vec<ImportItem>,
    chunk_bytes: usize,
    pending: HashMap<u64, PendingCall>,
    pending_bytes: usize,
    /// Retention drops items before this time, microseconds.
    retained_since: Option<i64>,
    now: i64,
    pub(super) stats: ImportStats,
}

impl Feed {
    pub(super) fn new(reads: Client, writes: Client, now: i64) -> Self {
        Self {
            reads,
            writes,
            window: Window::new(),
            jobs: HashMap::new(),
            recent: HashSet::new(),
            chunk: Vec::new(),
            chunk_bytes: 0,
            pending: HashMap::new(),
            pending_bytes: 0,
            retained_since: None,
            now,
            stats: ImportStats::default(),
        }
    }

    pub(super) fn query_retention(&mut self) -> anyhow::Result<()> {
        let stats = self
            .reads
            .make::<calls::store::Stats>(&NoArgs {})
            .context("query the retention of jobs")?;

        let jobs = stats.classes.iter().find(|class| class.class == JOBS);
        let keep_age_s = jobs.and_then(|class| i64::try_from(class.keep_age_s?).ok());

        // A time before 1970 is harmless: nothing is older.
        self.retained_since =
            keep_age_s.map(|s| self.now.saturating_sub(s.saturating_mul(1_000_000)));
        Ok(())
    }

    /// Adds an item to the current chunk, and stores the chunk once it is full.
    pub(super) fn push(&mut self, mut item: ImportItem) -> anyhow::Result<()> {
        let bytes = item.payload.bytes();
        // The daemon would reject the whole batch with it.
        if bytes > ENTRY_BYTES_MAX {
            self.skip(
                &item.origin,
                &format!("{bytes} bytes exceed the largest entry, {ENTRY_BYTES_MAX}"),
            );
            return Ok(());
        }

        if item.payload.kind == Kind::Event
            && !(1..=TAG_BYTES_MAX).contains(&item.payload.tag.len())
        {
            self.skip(
                &item.origin,
                "an event without a tag, or with a tag that is too long",
            );
            return Ok(());
        }

        // A time in the future would keep its segment forever.
        item.at = item.at.min(self.now);
        self.stats.too_old += u64::from(self.retained_since.is_some_and(|since| item.at < since));

        self.chunk_bytes += bytes;
        self.chunk.push(item);

        if self.chunk.len() >= IMPORT_CHUNK_ITEMS || self.chunk_bytes >= IMPORT_CHUNK_BYTES {
            self.store_chunk()?;
        }
        Ok(())
    }

    /// Counts an entry that only the exporting daemon has a use for. This is no failure: an import of
    /// everything else is complete.
    pub(super) fn leave_out(&mut self, kind: Kind) {
        *self.stats.left_out.entry(kind.name()).or_default() += 1;
    }

    /// Reports and counts an item that cannot be imported.
    pub(super) fn skip(&mut self, origin: &str, why: &str) {
        self.stats.skipped += 1;

        let mut err = streams::stderr();
        // A failed write is ignored: the number of skipped items is reported at the end.
        let _ = match self.stats.skipped {
            ..=IMPORT_BAD_NAMED => {
                writeln!(err, "saltcellar: skipped {}: {}", plain(origin), plain(why))
            }
            n if n == IMPORT_BAD_NAMED + 1 => {
                writeln!(err, "saltcellar: further skipped items are only counted")
            }
            _ => Ok(()),
        };
    }

    /// Stores the last chunk and waits for all responses.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.store_chunk()?;
        self.take_answers(0, 0)
    }

    fn store_chunk(&mut self) -> anyhow::Result<()> {
        let chunk = std::mem::take(&mut self.chunk);
        self.chunk_bytes = 0;

        self.look_up(&chunk)
            .context("look up stored jobs")
            .context(AGAIN)?;

        let times = chunk
            .iter()
            .filter(|item| item.payload.kind == Kind::Event)
            .map(|item| item.at);

        if let (Some(first), Some(last)) = (times.clone().min(), times.max()) {
            self.window
                .cover(&mut self.reads, first, last)
                .context("look up stored events")
                .context(AGAIN)?;
        }

        if self.recent.len() > IMPORT_CHUNK_ITEMS {
            // Only equal events close to each other can have equal times.
            self.recent.clear();
        }

        let mut events: Vec<ImportItem> = Vec::new();

        for mut item in chunk {
            let Payload {
                kind, tag, body, ..
            } = &item.payload;
            let kind = *kind;

            let is_new = if kind == Kind::Event {
                // The daemon distinguishes equal events of an import by their times.
                let fingerprint = fingerprint::of(body) ^ xxh3_64(tag);
                while !self.recent.insert((fingerprint, item.at)) {
                    item.at += 1;
                }
                !self.window.has(tag, body)
            // Items without a job, such as registers, are always sent: the daemon compares them.
            } else {
                let job = self.jobs.get_mut(&item.payload.jid);
                job.is_none_or(|job| job.add_new(&mut item.payload))
            };

            if !is_new {
                // Known already: the import was interrupted, or the daemon has seen the job itself.
                self.stats.by_kind.entry(kind).or_default().1 += 1;
                continue;
            }

            let Some((call, args)) = item
                .payload
                .call(item.at, &item.master)
                .with_context(|| format!("store {}", item.origin))?
            else {
                events.push(item);
                let bytes: usize = events.iter().map(|event| event.payload.bytes()).sum();
                if events.len() >= IMPORT_EVENTS || bytes >= IMPORT_CHUNK_BYTES {
                    self.store_events(std::mem::take(&mut events))?;
                }
                continue;
            };

            // Preserves the order of items.
            self.store_events(std::mem::take(&mut events))?;

            let origin = item.origin;
            let bytes = args.len();
            self.post(
                call,
                &args,
                PendingCall {
                    origin,
                    kind,
                    items: 1,
                    bytes,
                    events: Vec::new(),
                },
            )?;
        }

        self.store_events(events)
    }

    fn store_events(&mut self, events: Vec<ImportItem>) -> anyhow::Result<()> {
        if events.is_empty() {
            return Ok(());
        }

        self.make_room(events.iter().map(|event| event.payload.bytes()).sum())?;
        self.send_events(events)
    }

    fn send_events(&mut self, events: Vec<ImportItem>) -> anyhow::Result<()> {
        // A batch is named by its first event: the response counts the accepted events, and names
        // none.
        let origin = events
            .first()
            .map(|event| event.origin.clone())
            .unwrap_or_default();

        let items = events.len();

        // Each with its own time.
        let mut w = Writer::new();
        w.array(items);

        for event in &events {
            let Payload { tag, body, .. } = &event.payload;
            let master = event.master.as_str();
            w.map(3 + usize::from(!master.is_empty()))
                .str("tag")
                .str_bytes(tag)
                .str("data")
                .raw(body)
                .str("at")
                .int(event.at);
            if !master.is_empty() {
                w.str("master").str(master);
            }
        }

        let packed_events = w.into_bytes();
        let (call, args) = packed::<EventReturn>(&EventReturnArgs {
            events: PackedArray(&packed_events),
            // The times and masters are in the events.
            origin: item::origin(None, ""),
            ..EventReturnArgs::default()
        })
        .context(AGAIN)?;

        let pending = PendingCall {
            origin,
            kind: Kind::Event,
            items: items as u64,
            bytes: args.len(),
            events,
        };
        self.send(call, &args, pending)
    }

    /// Looks up the jobs of a chunk that are not cached.
    fn look_up(&mut self, chunk: &[ImportItem]) -> Result<(), ClientError> {
        let jids = chunk.iter().map(|item| item.payload.jid.as_str());
        let wanted: HashSet<&str> = jids.filter(|jid| !jid.is_empty()).collect();

        let cached: usize = self.jobs.values().map(StoredJob::size).sum();
        // The jobs of this chunk stay, because their entries are still compared.
        if cached > IMPORT_FACTS_REMEMBERED {
            self.jobs.retain(|jid, _| wanted.contains(jid.as_str()));
        }

        let mut wanted: Vec<&str> = wanted
            .into_iter()
            .filter(|jid| !self.jobs.contains_key(*jid))
            .collect();

        // Sorted, because two runs must read the log in the same way.
        wanted.sort_unstable();

        let mut open: HashMap<u64, &str> = HashMap::new();
        let mut rest = wanted.into_iter();
        loop {
            // Several together, because the time of a lookup is mostly waiting.
            while open.len() < IMPORT_QUESTIONS
                && let Some(jid) = rest.next()
            {
                let call = entries_args(jid, None);
                open.insert(self.reads.start::<calls::events::Entries>(&call)?, jid);
                // Known from now on, even if nothing is stored for it.
                self.jobs.insert(jid.to_owned(), StoredJob::default());
            }
            if open.is_empty() {
                return Ok(());
            }

            let (id, answer) = self.reads.next_made::<calls::events::Entries>()?;
            let page = answer?;
            let Some(jid) = open.remove(&id) else {
                return Err(ClientError::Protocol(format!(
                    "a response to unknown call {id}"
                )));
            };

            if let Some(job) = self.jobs.get_mut(jid) {
                page.entries.iter().for_each(|entry| job.add_stored(entry));
            }
            // A long job takes several pages.
            if page.next.is_some() {
                let call = entries_args(jid, page.next);
                open.insert(self.reads.start::<calls::events::Entries>(&call)?, jid);
            }
        }
    }

    fn post(&mut self, call: &str, args: &[u8], pending: PendingCall) -> anyhow::Result<()> {
        self.make_room(pending.bytes)?;
        self.send(call, args, pending)
    }

    fn make_room(&mut self, bytes: usize) -> anyhow::Result<()> {
        if self.pending.len() >= IMPORT_CALLS || self.pending_bytes + bytes > IMPORT_BYTES {
            // Half of the calls stay in flight, because the daemon should always have work.
            self.take_answers(IMPORT_CALLS / 2, IMPORT_BYTES / 2)?;
        }
        Ok(())
    }

    fn send(&mut self, call: &str, args: &[u8], pending: PendingCall) -> anyhow::Result<()> {
        let id = self.writes.post(call, args).context(AGAIN)?;
        self.pending_bytes += pending.bytes;
        self.pending.insert(id, pending);
        Ok(())
    }

    /// Waits until at most `calls` calls and `bytes` bytes are pending.
    fn take_answers(&mut self, calls: usize, bytes: usize) -> anyhow::Result<()> {
        while self.pending.len() > calls || self.pending_bytes > bytes {
            let (id, answer) = self.writes.next_answer().context(AGAIN)?;
            let Some(mut pending) = self.pending.remove(&id) else {
                return Err(ClientError::Protocol(format!(
                    "a response to unknown call {id}"
                )))
                .context(AGAIN);
            };

            self.pending_bytes -= pending.bytes;

            match answer {
                // The daemon knows whether it has a later register: there is only one.
                Ok(Value::Boolean(false)) if pending.kind == Kind::Register => {
                    self.stats.by_kind.entry(pending.kind).or_default().1 += pending.items;
                }
                Ok(value) => {
                    // For a batch, the response is the number of accepted events.
                    let accepted = value.as_u64().filter(|_| pending.kind == Kind::Event);
                    let stored = accepted.unwrap_or(pending.items).min(pending.items);
                    self.stats.by_kind.entry(pending.kind).or_default().0 += stored;
                    for _ in stored..pending.items {
                        self.skip(
                            &pending.origin,
                            "the daemon rejected events of the batch that starts here",
                        );
                    }
                }
                Err(ClientError::Refused { code, .. })
                    // Halved until it fits, or a single event remains.
                    if code == "too_large" && pending.events.len() > 1 =>
                {
                    let half = pending.events.split_off(pending.events.len() / 2);
                    self.send_events(pending.events)?;
                    self.send_events(half)?;
                }

                Err(ClientError::Refused { code, message })
                    if matches!(code.as_str(), "refused" | "bad_args" | "too_large") =>
                {
                    // Rejected for good; the import goes on with the next item.
                    self.skip(&pending.origin, &format!("{message} ({code})"));
                    for event in pending.events.iter().skip(1) {
                        self.skip(
                            &event.origin,
                            &format!("in one batch with {}", pending.origin),
                        );
                    }
                }
                Err(error) => {
                    // The daemon is gone or cannot store: a repeated import continues from what is
                    // stored.
                    return Err(error)
                        .with_context(|| format!("store {}", pending.origin))
                        .context(AGAIN);
                }
            }
        }
        Ok(())
    }
}

/// Arguments of the call `entries` for a job.
fn entries_args(jid: &str, from: Option<u64>) -> EntriesArgs {
    EntriesArgs {
        jid: Some(Id(jid.to_owned())),
        from,
        ..EntriesArgs::default()
    }
}
