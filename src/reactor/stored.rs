//! The record of a reaction as its readers see it, with defaults for what it lacks. Its form is
//! described at [`record`](crate::reactor::run::record).

use serde::Deserialize;

use crate::base::named::named;
use crate::model::{Location, ReactionFailure};
use crate::reactor::call::CallRecord;
use crate::wire::msgpack::{NotOfType, decode};

/// The state of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// A mark of a call, which belongs to no history.
    #[default]
    Begun,
    Done,
    Failed,
    Partial,
    Dead,
    Left,
}

named! {
    State {
        Begun: "begun",
        Done: "done",
        Failed: "failed",
        Partial: "partial",
        Dead: "dead",
        Left: "left",
    }
}

/// The record of a reaction.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StoredRecord {
    pub(crate) event: u64,
    pub(crate) at: i64,
    pub(crate) state: State,
    pub(crate) why: String,
    pub(crate) rules: Vec<String>,
    /// Number of rules that matched the event.
    pub(crate) of: u64,
    pub(crate) ended: Option<i64>,
    /// File and rendered text; a third element marks a text that was cut.
    files: Vec<Vec<String>>,
    pub(crate) calls: Vec<CallRecord>,
    /// Level and text.
    pub(crate) notes: Vec<(String, String)>,
    failures: Vec<StoredFailure>,
    /// The record that this one replays.
    pub(crate) replay: Option<u64>,
}

/// What a search reads of a record: its event, its state, and the record that it replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct RecordKey {
    pub(crate) event: u64,
    #[serde(default)]
    pub(crate) state: State,
    pub(crate) replay: Option<u64>,
}

impl RecordKey {
    pub(crate) fn read(body: &[u8]) -> Result<Self, NotOfType> {
        decode(body)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct StoredFailure {
    file: String,
    line: Option<u32>,
    rendered: bool,
    cause: String,
}

/// A file of a reaction.
pub(crate) struct StoredFile<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) is_cut: bool,
}

impl StoredRecord {
    pub(crate) fn read(body: &[u8]) -> Result<Self, NotOfType> {
        decode(body)
    }

    /// From the arrival of the event to the end, if it has ended.
    pub(crate) fn took_us(&self) -> Option<i64> {
        self.ended.map(|ended| ended.saturating_sub(self.at))
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = StoredFile<'_>> {
        self.files.iter().map(|file| StoredFile {
            name: file.first().map(String::as_str).unwrap_or_default(),
            text: file.get(1).map(String::as_str).unwrap_or_default(),
            is_cut: file.len() > 2,
        })
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = ReactionFailure> {
        self.failures.iter().map(|failure| ReactionFailure {
            at: Location {
                file: failure.file.clone(),
                line: failure.line,
                rendered: failure.rendered,
            },
            cause: failure.cause.clone(),
        })
    }
}
