//! State of a consumer: its record on disk, its lease, and its status.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::read::StoredEntry;
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::CONSUMER_NAME_BYTES_MAX;
use saltcellar_model::SeqNo;
use saltcellar_wire::filter::EntryFilter;

/// A consumer as saved.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConsumerRecord {
    /// Its name.
    pub name: String,
    /// The events that it gets.
    #[serde(default)]
    pub filter: EntryFilter,
    /// The next sequence number wanted: all events before it are processed.
    pub cursor: SeqNo,
    /// Whether no events are delivered.
    #[serde(default)]
    pub paused: bool,
    /// Whether retention keeps its unprocessed events.
    #[serde(default)]
    pub pin: bool,
    /// Whether a sink uses it as its position.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sink: bool,
    /// Unprocessed entries that retention dropped, until the gap record is processed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostEntries>,
    /// The last failure of its filter or its holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ConsumerFailure>,
    /// Time of creation.
    #[serde(default)]
    pub created: Micros,
}

/// Entries that retention dropped before a consumer processed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostEntries {
    /// The first one that may be lost.
    pub first: SeqNo,
    /// The last one.
    pub last: SeqNo,
    /// Their number at most; some may not match the filter.
    pub entries: u64,
}

impl LostEntries {
    /// Both, and everything between.
    pub(super) fn joined(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            entries: self.entries.saturating_add(other.entries),
        }
    }
}

/// A failure of a consumer's filter or holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerFailure {
    /// When it was reported.
    pub at: Micros,
    /// One line.
    pub message: String,
}

/// The holder that may read and acknowledge, until a time of the monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) holder: String,
    pub(super) until: Duration,
    /// The lease also ends with this process.
    pub(super) process: Option<HolderProcess>,
}

impl Lease {
    /// Whether it has not ended.
    pub(super) fn is_held(&self, now: Duration) -> bool {
        self.until > now && self.process.is_none_or(HolderProcess::is_running)
    }
}

/// A process of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderProcess {
    pid: u32,
    /// Start time in clock ticks since boot: another process can get the same id.
    started: u64,
}

impl HolderProcess {
    /// The running process with this id, if it is visible.
    pub fn find(pid: u32) -> Option<Self> {
        // Not visible in another namespace of processes: such a lease ends by time only.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        // A zombie has ended.
        (!matches!(state, "Z" | "X")).then_some(Self { pid, started })
    }

    fn is_running(self) -> bool {
        Self::find(self.pid) == Some(self)
    }
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) record: ConsumerRecord,
    /// The cursor on disk.
    pub(super) saved: SeqNo,
    pub(super) lease: Option<Lease>,
    /// After a seek: acknowledgements of earlier batches are rejected until the next batch.
    pub(super) moved: bool,
    /// After the last event of a batch, up to this position, no event matches.
    pub(super) clear: Option<(SeqNo, SeqNo)>,
    /// Whether the gap record was delivered.
    pub(super) lost_reported: bool,
}

impl Consumer {
    pub(super) fn new(record: ConsumerRecord) -> Self {
        let saved = record.cursor;
        Self {
            record,
            saved,
            lease: None,
            moved: false,
            clear: None,
            lost_reported: false,
        }
    }
}

/// A consumer, and how far it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerStatus {
    /// As saved.
    pub record: ConsumerRecord,
    /// Unprocessed entries at most, whether they match or not.
    pub lag_entries: u64,
    /// Age of the earliest unprocessed entry.
    pub lag: Duration,
    /// The holder of its lease, and the remaining time.
    pub lease: Option<(String, Duration)>,
}

/// First position of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the oldest stored entry.
    Oldest,
    /// With the next entry.
    Newest,
    /// With the first entry that arrived at or after this time.
    Time(Micros),
    /// With this sequence number.
    Seq(SeqNo),
}

/// The size of a batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Events at most.
    pub events: usize,
    /// Bytes of tags and data after which the batch ends.
    pub bytes: usize,
}

/// Events for a consumer.
#[derive(Debug, Default)]
pub struct ConsumerBatch {
    /// In the order of their sequence numbers.
    pub events: Vec<StoredEntry>,
    /// The position after the batch: no other event before it matches.
    pub next: SeqNo,
    /// Whether `next` was the end of the log.
    pub is_end: bool,
    /// Whether the consumer is paused and therefore gets no events.
    pub paused: bool,
}

/// Whether a string can be a consumer's name.
pub fn is_consumer_name(name: &str) -> bool {
    let accepted = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty()
        && name.len() <= CONSUMER_NAME_BYTES_MAX
        && name.chars().all(accepted)
        && !name.starts_with('.')
}
