//! The reactor, running: it follows the log, lets rules render, and sends what they ask for to the master.
//!
//! ```text
//! log -> follower: fold records, match -> scheduler: queues per rule and minion, throttles -> workers: render, ask the master
//!  ^                                                                                         |
//!  `-------------- recorder: what became of it, an entry of the log like any other <---------'
//! ```
//!
//! # The queue is the log
//!
//! An event lies in the log, synced, before anybody looks whether a rule wants it. What became of it is written to the same log.
//! So what is left to do is a fold over the log ([`checkpoint`]): events that rules want, without those that have a record. A small file
//! keeps that fold up to some place, so that a start need not begin at the first entry.
//!
//! # Invariant
//!
//! An event that a rule takes is open from the moment it is read to the moment its record is read. What is open when the
//! daemon ends, in whatever way, is done after its next start: at least once, and with `at_most_once` never a second time.

pub mod admit;
pub mod announced;
pub mod checkpoint;
pub mod checkpoint_file;
pub mod depths;
pub mod engine;
pub mod follower;
pub mod native;
pub mod open;
pub mod queues;
pub mod record;
pub mod recorder;
pub mod replay;
pub mod runners;
pub mod scheduler;
mod settle;
pub mod starts;
pub mod throttle;
mod watch;
pub mod worker;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Micros;
use crate::master::{Answer, Call, Master, MasterError};
use crate::model::{ListedRule, NoteLevel, ReactionFailure, SeqNo};
use crate::sls::value::Value;

/// An event that rules look at.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its place in the log.
    pub seq: SeqNo,
    /// When it arrived.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// Its data, as msgpack.
    pub body: Arc<[u8]>,
    /// The minion it is about; empty for none.
    pub minion: String,
    /// Did it carry the master's key? In the body that is redacted.
    pub has_key: bool,
}

/// The rules: what matches, and what comes of it.
pub trait RuleEngine: Send + Sync {
    /// The patterns of the rules that take a tag, in the order of the configuration, each once.
    fn matching(&self, tag: &str) -> Vec<Arc<str>>;

    /// The rules.
    fn all(&self) -> Vec<ListedRule> {
        Vec::new()
    }

    /// Why no event is taken at the moment, whatever the rules are.
    fn idle(&self) -> Option<String> {
        None
    }

    /// Renders what these of them refer to.
    fn react(&self, event: &Event, rules: &[Arc<str>]) -> Reacted;
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Reacted {
    /// Files and the texts that they were rendered to.
    pub files: Vec<(String, String)>,
    /// The low chunks, in order.
    pub chunks: Value,
    /// What is to be done, in order.
    pub wanted: Vec<Wanted>,
    /// Events that the reactor itself is to fire: tag and data.
    pub fired: Vec<(String, Value)>,
    /// What is to be said.
    pub notes: Vec<(NoteLevel, String)>,
    /// What failed, so that there is no call of it.
    pub failures: Vec<ReactionFailure>,
}

impl Default for Reacted {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            chunks: Value::Null,
            wanted: Vec::new(),
            fired: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
        }
    }
}

impl Reacted {
    /// A failure of which nothing else has told.
    pub fn fail(&mut self, cause: String) {
        self.notes.push((NoteLevel::Error, cause.clone()));
        self.failures.push(ReactionFailure { cause, ..ReactionFailure::default() });
    }
}

/// One thing to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The ID that it has in its file.
    pub id: String,
    /// Its file.
    pub sls: String,
    /// What.
    pub what: What,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// Executor the master.
    Executor(Call),
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

/// What a function of a `caller` reaction returned.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerReturn {
    /// The value.
    pub value: Value,
    /// The code that a minion would return with it; 0 for success.
    pub retcode: i64,
}

/// Why a function of a `caller` reaction gave no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerError {
    /// It was not begun; it may be tried again.
    NotStarted(String),
    /// It raised, or took too long: it had its run.
    Failed(String),
    /// Nobody knows how far it came.
    Lost(String),
}

/// Whoever carries out what reactions want: a master, or what a test puts in its place.
pub trait Executor: Send + Sync {
    /// See [`Master::ask`].
    fn ask(&self, call: &Call, jid: &str, timeout: Duration) -> Result<Answer, MasterError>;

    /// Fails if nobody is there whom a call could be sent to.
    fn reach(&self) -> Result<(), MasterError> {
        Ok(())
    }

    /// Why nothing of this client (`local`, `runner`, `wheel`, `caller`) can ever be carried out here; none if it can.
    fn cannot(&self, _client: &str) -> Option<String> {
        None
    }

    /// Why no reaction can be carried out, whatever it is.
    fn idle(&self) -> Option<String> {
        None
    }

    /// Why a job with this target would reach nobody, if that is certain: a master publishes no such job.
    fn no_target(&self, _tgt: &Value, _tgt_type: &str) -> Option<String> {
        None
    }

    /// Runs an execution function on this machine; what it returned.
    fn caller(&self, fun: &str, _args: &[Value], _kwargs: &Value) -> Result<CallerReturn, CallerError> {
        Err(CallerError::NotStarted(format!("`caller` reactions are not carried out here: {fun}")))
    }

    /// Fires an event onto the master's bus.
    fn fire(&self, tag: &str, _data: &Value) -> Result<(), String> {
        Err(format!("there is no bus to fire {tag} at"))
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

/// A length of time as the log counts it.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Locks what may have been left by a thread that panicked.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
