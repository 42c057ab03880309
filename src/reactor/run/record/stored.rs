//! A record as its readers see it: the form that is described above, with defaults for what a record
//! lacks.

use serde::Deserialize;

use crate::base::named::named;
use crate::model::{Location, ReactionFailure};
use crate::wire::msgpack::{NotOfType, Stored, decode};

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

/// What became of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    Published,
    /// The target matches no minion.
    Nobody,
    Started,
    Ran,
    Found,
    Shadowed,
    Dead,
    #[default]
    Unknown,
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
    Outcome {
        Published: "published",
        Nobody: "nobody",
        Started: "started",
        Ran: "ran",
        Found: "found",
        Shadowed: "shadowed",
        Dead: "dead",
        Unknown: "unknown",
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
    pub(crate) ended: Option<i64>,
    /// File and rendered text; a third element marks a text that was cut.
    files: Vec<Vec<String>>,
    pub(crate) calls: Vec<StoredCall>,
    /// Level and text.
    pub(crate) notes: Vec<(String, String)>,
    failures: Vec<StoredFailure>,
}

/// A call in the record of a reaction.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StoredCall {
    pub(crate) id: String,
    pub(crate) sls: String,
    pub(crate) client: String,
    pub(crate) fun: String,
    pub(crate) tgt: String,
    pub(crate) load: Stored,
    pub(crate) jid: String,
    pub(crate) tries: u64,
    pub(crate) took_us: i64,
    pub(crate) outcome: Outcome,
    pub(crate) why: String,
    /// Absent while the result is unknown.
    pub(crate) success: Option<bool>,
    pub(crate) retcode: Option<i64>,
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
