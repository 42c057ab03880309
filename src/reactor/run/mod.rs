//! The running reactor: follows the log, renders the files of matching rules, and sends the
//! resulting calls to the master.
//!
//! ```text
//! log -> follower: fold records, match -> scheduler: queues per rule and minion, throttles -> workers: render, call the master
//!  ^                                                                                         |
//!  `-------------- recorder: writes the outcome as a log entry <----------------------------'
//! ```
//!
//! # The queue is the log
//!
//! An event is synced to the log before any rule is looked up, and its outcome is written to the
//! same log. The pending work is therefore a fold over the log ([`checkpoint`]): matched events
//! without a record. A small file contains that fold up to a position. Therefore a start does not
//! read the whole log.
//!
//! # Invariant
//!
//! A matched event is open from the moment it is read until its record is read. Events that are
//! open when the daemon ends, even by a kill, are handled after its next start: at least once, and
//! with `at_most_once` at most once.
//!
//! [`engine`] lists the owners of the state, and [`decide`] contains the decisions.

mod calls;
pub(crate) mod checkpoint;
mod control;
mod decide;
pub(crate) mod depths;
mod endings;
pub mod engine;
mod events;
pub(crate) mod failed;
mod follower;
mod gate;
mod in_use;
mod keeper;
pub mod native;
mod pending;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod scheduler;
mod slots;
mod starts;
mod tasks;
mod team;
mod traces;
mod twins;
pub(crate) mod watch;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use salt_sls::Value;

use crate::base::clock::{Micros, micros};
use crate::model::{ListedRule, NoteLevel, ReactionFailure, SeqNo};
use crate::reactor::master::{Answer, Call, Client, MasterError};

/// An event of the log.
#[derive(Debug, Clone, Default)]
pub struct Event {
    pub(crate) seq: SeqNo,
    pub(crate) at: Micros,
    pub(crate) tag: String,
    /// Its data, as msgpack.
    pub(crate) body: Arc<[u8]>,
    /// The minion that caused it; empty if unknown.
    pub(crate) minion: String,
    /// The master that fired it; empty for the daemon's master.
    pub(crate) origin: String,
    /// True if it carried the master's key, which is redacted in `body`.
    pub(crate) has_key: bool,
}

/// What decides which rules an event matches, and renders them: the pipeline.
///
/// A trait for the tests of the engine: their rules stop in the middle of matching or rendering
/// until the test goes on. An event is then certainly between two steps. A pipeline does not stop
/// there.
pub trait RuleEngine: Send + Sync {
    /// The patterns of the rules that match a tag, in the order of the configuration, without
    /// duplicates.
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

/// What an event's rules ask for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReactionPlan {
    pub(crate) files: Vec<(String, String)>,
    pub(crate) chunks: Value,
    pub(crate) calls: Vec<Call>,
    /// Events for the master's bus: tag and data.
    pub(crate) fired: Vec<(String, Value)>,
    pub(crate) notes: Vec<(NoteLevel, String)>,
    /// Failures, each in place of one or more calls.
    pub(crate) failures: Vec<ReactionFailure>,
}

impl ReactionPlan {
    pub(crate) fn fail(&mut self, cause: String) {
        self.notes.push((NoteLevel::Error, cause.clone()));
        self.failures.push(ReactionFailure {
            cause,
            ..ReactionFailure::default()
        });
    }
}

/// The result of a function of a `caller` reaction.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerReturn {
    /// The return value.
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

/// Executes the calls of reactions: a master with its bus and helper, or a fake in tests and
/// benchmarks.
pub trait Executor: Send + Sync {
    /// Sends a request, see [`Master::ask`](crate::reactor::master::Master::ask).
    fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError>;

    /// Fails if the master is unreachable.
    fn reach(&self) -> Result<(), MasterError> {
        Ok(())
    }

    /// Why calls of this client can never be made here; `None` if they can.
    fn unsupported(&self, _client: Client) -> Option<String> {
        None
    }

    /// Why no call can be made at all; `None` if calls are possible.
    fn blocked_by(&self) -> Option<String> {
        None
    }

    /// Why a job with this target matches no minion; `None` if that is not certain. A master does
    /// not publish such a job.
    fn no_target(&self, _tgt: &Value, _tgt_type: &str) -> Option<String> {
        None
    }

    /// Runs an execution function on this host.
    fn caller(&self, call: &Call) -> Result<CallerReturn, CallerError> {
        Err(CallerError::NotStarted(format!(
            "`caller` reactions are not supported here: {}",
            call.fun
        )))
    }

    /// Fires an event onto the master's bus.
    fn fire(&self, tag: &str, _data: &Value) -> Result<(), String> {
        Err(format!("no bus to fire {tag} onto"))
    }
}

#[cfg(test)]
mod tests;
