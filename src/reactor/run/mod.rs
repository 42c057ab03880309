//! The running reactor: follows the log, renders the files of matching rules, and sends the resulting calls to the master.
//!
//! ```text
//! log -> follower: fold records, match -> scheduler: queues per rule and minion, throttles -> workers: render, call the master
//!  ^                                                                                         |
//!  `-------------- recorder: writes the outcome as a log entry <----------------------------'
//! ```
//!
//! # The queue is the log
//!
//! An event is synced to the log before any rule is looked up, and its outcome is written to the same log. The pending work is therefore a
//! fold over the log ([`checkpoint`]): matched events without a record. A small file holds that fold up to a position, so that a start does
//! not read the whole log.
//!
//! # Invariant
//!
//! A matched event is open from the moment it is read until its record is read. Events that are open when the daemon ends, even by a kill,
//! are handled after its next start: at least once, and with `at_most_once` at most once.

pub mod checkpoint;
pub mod depths;
pub mod engine;
pub mod follower;
pub mod native;
pub mod record;
pub mod scheduler;
pub mod settle;
pub mod watch;
pub mod worker;

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{Micros, micros};
use crate::model::{ListedRule, NoteLevel, ReactionFailure, SeqNo};
use crate::reactor::master::{Answer, Call, Master, MasterError};
use crate::wire::python::value::Value;

/// An event to match against the rules.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its sequence number.
    pub seq: SeqNo,
    /// Time of arrival.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// Its data, as msgpack.
    pub body: Arc<[u8]>,
    /// The minion that caused it; empty if unknown.
    pub minion: String,
    /// True if it carried the master's key, which is redacted in `body`.
    pub has_key: bool,
}

/// The rules: matching and rendering.
pub trait RuleEngine: Send + Sync {
    /// The patterns of the rules that match a tag, in the order of the configuration, without duplicates.
    fn matching(&self, tag: &str) -> Vec<Arc<str>>;

    /// All rules, in the order of the configuration.
    fn all(&self) -> Vec<ListedRule> {
        Vec::new()
    }

    /// Why no event can match at the moment; `None` while the engine works.
    fn blocked_by(&self) -> Option<String> {
        None
    }

    /// Renders the files of `rules` for an event.
    fn react(&self, event: &Event, rules: &[Arc<str>]) -> ReactionPlan;
}

/// The result of rendering an event.
#[derive(Debug, Clone, PartialEq)]
pub struct ReactionPlan {
    /// Files with their rendered texts.
    pub files: Vec<(String, String)>,
    /// The low chunks, in order.
    pub chunks: Value,
    /// The calls, in order.
    pub calls: Vec<PlannedCall>,
    /// Events for the master's bus: tag and data.
    pub fired: Vec<(String, Value)>,
    /// Log messages.
    pub notes: Vec<(NoteLevel, String)>,
    /// Failures, each in place of one or more calls.
    pub failures: Vec<ReactionFailure>,
}

impl Default for ReactionPlan {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            chunks: Value::Null,
            calls: Vec::new(),
            fired: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
        }
    }
}

impl ReactionPlan {
    /// Adds a failure and its log message.
    pub fn fail(&mut self, cause: String) {
        self.notes.push((NoteLevel::Error, cause.clone()));
        self.failures.push(ReactionFailure { cause, ..ReactionFailure::default() });
    }
}

/// A call to make, with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// Its ID in the file.
    pub id: String,
    /// The file.
    pub sls: String,
    /// The call.
    pub action: Action,
}

/// A call in executable form.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A request to the master.
    Master(Call),
    /// Run an execution function on this machine.
    Caller {
        /// The function.
        fun: String,
        /// Positional arguments.
        args: Vec<Value>,
        /// Keyword arguments, a mapping.
        kwargs: Value,
    },
}

/// The result of a function of a `caller` reaction.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerReturn {
    /// The returned value.
    pub value: Value,
    /// The return code, as a minion would report it; 0 for success.
    pub retcode: i64,
}

/// Why a function of a `caller` reaction returned no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerError {
    /// It was not started; a retry is safe.
    NotStarted(String),
    /// It ran and raised, or exceeded its time limit.
    Failed(String),
    /// It may have run, wholly or partly.
    Lost(String),
}

/// Executes the calls of reactions: a master, or a fake in tests.
pub trait Executor: Send + Sync {
    /// Sends a request, see [`Master::ask`].
    fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError>;

    /// Fails if the master is unreachable.
    fn reach(&self) -> Result<(), MasterError> {
        Ok(())
    }

    /// Why calls of this client (`local`, `runner`, `wheel`, `caller`) can never be made here; `None` if they can.
    fn unsupported(&self, _client: &str) -> Option<String> {
        None
    }

    /// Why no call can be made at all; `None` if calls are possible.
    fn blocked_by(&self) -> Option<String> {
        None
    }

    /// Why a job with this target matches no minion; `None` if that is not certain. A master does not publish such a job.
    fn no_target(&self, _tgt: &Value, _tgt_type: &str) -> Option<String> {
        None
    }

    /// Runs an execution function on this machine.
    fn caller(&self, fun: &str, _args: &[Value], _kwargs: &Value) -> Result<CallerReturn, CallerError> {
        Err(CallerError::NotStarted(format!("`caller` reactions are not supported here: {fun}")))
    }

    /// Fires an event onto the master's bus.
    fn fire(&self, tag: &str, _data: &Value) -> Result<(), String> {
        Err(format!("no bus to fire {tag} onto"))
    }
}

impl Executor for Master {
    fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError> {
        Master::ask(self, call, jid, timeout)
    }

    fn reach(&self) -> Result<(), MasterError> {
        Master::reach(self)
    }
}

#[cfg(test)]
mod tests;
