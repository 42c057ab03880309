//! Transports: items to a destination.
//!
//! # Invariant
//!
//! [`Transport::deliver`] returns `Ok` only if the destination has accepted each item that is not among the rejected ones. An error may leave
//! any of them accepted: the caller delivers them again.

mod block_on;
mod exec;
mod file;
mod http;
mod journald;
mod nats;
mod postgres;
mod syslog;
mod tls;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::Kind;
use super::event::Event;
use crate::base::clock::Clock;
use crate::base::limits::{SINK_CONCURRENCY_MAX, SINK_REASON_BYTES_MAX};
use crate::model::SeqNo;
use crate::store::vfs::Fs;

/// A unit that a destination accepts or rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The event that it comes from.
    pub event: Arc<Event>,
    /// Its index among the items of the event; `None` if it is the only one.
    pub part: Option<usize>,
    /// Its text.
    pub bytes: Vec<u8>,
}

impl Item {
    /// The sequence number of the event.
    pub fn seq(&self) -> SeqNo {
        self.event.seq
    }

    /// Identifies the item: the event's id, followed by `:<part>` if the event has several items.
    pub fn id(&self) -> String {
        self.part.map_or_else(|| self.event.id.clone(), |part| format!("{}:{part}", self.event.id))
    }

    /// The items of an event.
    pub fn of(event: &Arc<Event>, encoded: &mut Vec<Vec<u8>>) -> impl Iterator<Item = Self> {
        let is_only = encoded.len() == 1;
        let item = move |(n, bytes)| Self { event: event.clone(), part: (!is_only).then_some(n), bytes };
        encoded.drain(..).enumerate().map(item)
    }
}

/// An item that the destination did not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The index among the delivered items.
    pub index: usize,
    /// The destination's reason.
    pub reason: String,
    /// Whether the destination may accept it later.
    pub is_temporary: bool,
}

/// Why a destination did not take the items.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// The destination is unreachable or busy; deliver all again after a pause.
    #[error("{reason}")]
    Retry {
        /// The reason.
        reason: String,
        /// The pause that the destination requests.
        after: Option<Duration>,
    },
    /// The destination does not accept these items together; deliver parts. A single item is rejected for good.
    #[error("{reason}")]
    Refused {
        /// The destination's reason.
        reason: String,
    },
}

impl DeliverError {
    /// An error after which all are delivered again.
    #[expect(clippy::needless_pass_by_value, reason = "no caller needs the reason afterwards")]
    pub fn retry(reason: impl ToString) -> Self {
        Self::Retry { reason: shortened(&reason.to_string()), after: None }
    }
}

/// The request and the answer of one delivery, for people. Secrets are redacted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    /// The request as sent.
    pub request: String,
    /// The response as received.
    pub response: String,
}

/// An open destination, used by one thread.
pub trait Transport: Send {
    /// Delivers items in their order. Records what is sent and received.
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError>;

    /// Checks that the destination is reachable without sending an event; returns what was found.
    fn check(&mut self) -> Result<String, String>;

    /// Called while there are no events, at least every [`crate::base::limits::SINK_IDLE`].
    fn idle(&mut self) {}

    /// Opens files and connections anew, and reads secrets again.
    fn reopen(&mut self) {}
}

/// The limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Events.
    pub count: usize,
    /// Bytes of items.
    pub bytes: usize,
    /// Longest wait for more events after the first.
    pub time: Duration,
}

/// The dependencies of transports.
#[derive(Debug, Clone)]
pub struct Dependencies {
    /// Source of the time.
    pub clock: Clock,
    /// File system for files.
    pub fs: Arc<dyn Fs>,
}

/// The settings of a transport.
pub trait Destination: Send + Sync + Debug {
    /// Opens it. Errors show at the first delivery.
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport>;

    /// The destination in a few words, without secrets.
    fn describe(&self) -> String;

    /// The limits of a request unless the sink sets its own.
    fn limits(&self) -> RequestLimits;

    /// The largest number of parallel deliveries.
    fn concurrency_max(&self) -> usize {
        SINK_CONCURRENCY_MAX
    }

    /// The only encoder that it accepts, if it reads more of an event than the item.
    fn encoder(&self) -> Option<&'static str> {
        None
    }
}

/// The built settings of a transport.
pub type BoxedDestination = Box<dyn Destination>;

/// All transports.
pub const TRANSPORTS: &[Kind<BoxedDestination>] =
    &[file::KIND, http::KIND, exec::KIND, syslog::KIND, journald::KIND, postgres::KIND, nats::KIND];

/// The beginning of a reason, within [`SINK_REASON_BYTES_MAX`].
pub(super) fn shortened(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(SINK_REASON_BYTES_MAX);
    if end == text.len() { text.to_owned() } else { format!("{}...", text.get(..end).unwrap_or_default()) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::read_yaml;
    use crate::engines::event::tests::event;

    /// Opens a transport with options as YAML.
    pub(in crate::engines) fn open(
        kind: &Kind<BoxedDestination>,
        options: &str,
        deps: &Dependencies,
    ) -> Box<dyn Transport> {
        (kind.build)(&read_yaml(options).unwrap()).unwrap().open(deps)
    }

    /// Items with these texts; sequence numbers from 1.
    pub(in crate::engines) fn items(texts: &[&str]) -> Vec<Item> {
        let item = |(n, text): (u64, &&str)| {
            let event = Arc::new(event(n, "test/tag", "web1", serde_json::json!({ "n": n })));
            Item { event, part: None, bytes: text.as_bytes().to_vec() }
        };
        (1..).zip(texts).map(item).collect()
    }

    #[test]
    fn every_example_is_accepted_and_unknown_options_are_not() {
        let page = include_str!("../../../docs/SINKS.md");
        for kind in TRANSPORTS {
            let options = read_yaml(kind.example).unwrap();
            let built = (kind.build)(&options).unwrap();
            assert!(!built.describe().is_empty() && built.concurrency_max() > 0, "{}", kind.name);
            let mut unknown = options.clone();
            unknown["unknown_option"] = serde_json::json!(1);
            let error = (kind.build)(&unknown).unwrap_err();
            assert!(error.problem.contains("unknown_option"), "{}: {error:?}", kind.name);
            assert!(page.contains(&format!("\n### `{}`\n\n{}", kind.name, kind.doc)), "{}", kind.name);
        }
    }

    #[test]
    fn the_items_of_an_event_have_distinct_ids() {
        let event = Arc::new(event(3, "t", "m", serde_json::json!({})));
        let ids = |count: usize| {
            Item::of(&event, &mut vec![Vec::new(); count]).map(|item| item.id()).collect::<Vec<_>>()
        };
        assert_eq!(ids(1), ["store:3"]);
        assert_eq!(ids(2), ["store:3:0", "store:3:1"]);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(shortened(" short \n"), "short");
        let long = shortened(&"\u{e9}".repeat(SINK_REASON_BYTES_MAX));
        assert!(long.ends_with("\u{e9}...") && long.len() <= SINK_REASON_BYTES_MAX + 3);
    }
}
