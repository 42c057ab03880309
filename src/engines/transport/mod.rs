//! Transports: items to a destination.
//!
//! # Invariant
//!
//! [`Transport::deliver`] returns `Ok` only if the destination has accepted each item that is not
//! among the rejected ones. An error may leave any of them accepted: the caller delivers them
//! again.

mod block_on;
mod exec;
mod file;
mod http;
mod journald;
mod nats;
mod postgres;
mod socket;
mod syslog;
mod tls;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::Kind;
use super::event::Event;
use super::framing::Framing;
use super::secret::Revealed;
use crate::base::clock::Clock;
use crate::base::limits::{SINK_CONCURRENCY_MAX, SINK_REASON_BYTES_MAX};
use crate::model::SeqNo;
use crate::store::vfs::Fs;

/// A unit that a destination accepts or rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) event: Arc<Event>,
    /// The index among the items of the event; `None` if it is the only one.
    pub(crate) part: Option<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Item {
    pub(crate) fn seq(&self) -> SeqNo {
        self.event.seq
    }

    /// Identifies the item: the event's id, followed by `:<part>` if the event has several items.
    pub(crate) fn id(&self) -> String {
        self.part.map_or_else(
            || self.event.id.clone(),
            |part| format!("{}:{part}", self.event.id),
        )
    }

    pub(crate) fn of(
        event: &Arc<Event>,
        encoded: &mut Vec<Vec<u8>>,
        framing: Framing,
    ) -> impl Iterator<Item = Self> {
        // The only item of an event has the event's own id, so a sink's destination sees the same
        // id as other readers.
        let is_only = encoded.len() == 1;
        let item = move |(n, bytes)| Self {
            event: event.clone(),
            part: (!is_only).then_some(n),
            bytes: framing.item(bytes),
        };
        encoded.drain(..).enumerate().map(item)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// The index among the delivered items.
    pub(crate) index: usize,
    pub(crate) reason: String,
    pub(crate) is_temporary: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeliverError {
    /// The destination is unreachable or busy; deliver all again after a pause.
    #[error("{reason}")]
    Retry {
        reason: String,
        /// The pause that the destination requests.
        after: Option<Duration>,
    },
    /// The destination does not accept these items together; deliver parts. A single item is
    /// rejected for good.
    #[error("{reason}")]
    Refused { reason: String },
}

impl DeliverError {
    /// An error after which all are delivered again.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "no caller needs the reason afterwards"
    )]
    pub(crate) fn retry(reason: impl ToString) -> Self {
        Self::Retry {
            reason: reason.to_string(),
            after: None,
        }
    }
}

/// The request and the response of one delivery, for people. Secrets are redacted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Transcript {
    pub(crate) request: String,
    pub(crate) response: String,
}

/// An open destination, used by one thread.
pub(crate) trait Transport: Send {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestLimits {
    /// Events.
    pub(crate) count: usize,
    /// Bytes of items.
    pub(crate) bytes: usize,
    /// Longest wait for more events after the first.
    pub(crate) time: Duration,
}

#[derive(Clone)]
pub(crate) struct Dependencies {
    pub(crate) clock: Clock,
    pub(crate) fs: Arc<dyn Fs>,
    /// The secrets that the transport reads are added here.
    pub(crate) secrets: Revealed,
}

impl Dependencies {
    pub(crate) fn new(clock: &Clock, fs: &Arc<dyn Fs>) -> Self {
        Self {
            clock: clock.clone(),
            fs: fs.clone(),
            secrets: Revealed::default(),
        }
    }
}

/// Opens a destination. Nothing that it reports has a secret of its settings: reasons, transcripts
/// and findings are scrubbed here, and reasons then shortened, so that no transport can forget it.
pub(crate) fn open(destination: &dyn Destination, deps: &Dependencies) -> Box<dyn Transport> {
    // One list per open transport: a reopened one reads its secrets again, and old values stay
    // hidden.
    let secrets = Revealed::default();
    let inner = destination.open(&Dependencies {
        secrets: secrets.clone(),
        ..deps.clone()
    });
    Box::new(Scrubbed { inner, secrets })
}

struct Scrubbed {
    inner: Box<dyn Transport>,
    secrets: Revealed,
}

impl Scrubbed {
    fn reason(&self, reason: &str) -> String {
        shortened(&self.secrets.scrub(reason))
    }
}

impl Transport for Scrubbed {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        // The transcript is scrubbed whatever the result is, since a failed request shows secrets
        // as well.
        let result = match transcript {
            None => self.inner.deliver(items, None),
            Some(transcript) => {
                let result = self.inner.deliver(items, Some(transcript));
                transcript.request = self.secrets.scrub(&transcript.request);
                transcript.response = self.secrets.scrub(&transcript.response);
                result
            }
        };

        let clean = |one: Rejected| Rejected {
            reason: self.reason(&one.reason),
            ..one
        };

        match result {
            Ok(rejected) => Ok(rejected.into_iter().map(clean).collect()),
            Err(DeliverError::Retry { reason, after }) => Err(DeliverError::Retry {
                reason: self.reason(&reason),
                after,
            }),
            Err(DeliverError::Refused { reason }) => Err(DeliverError::Refused {
                reason: self.reason(&reason),
            }),
        }
    }

    fn check(&mut self) -> Result<String, String> {
        let found = self.inner.check();
        found
            .map(|text| self.secrets.scrub(&text))
            .map_err(|text| self.secrets.scrub(&text))
    }

    fn idle(&mut self) {
        self.inner.idle();
    }

    fn reopen(&mut self) {
        self.inner.reopen();
    }
}

pub(crate) trait Destination: Send + Sync + Debug {
    /// Opens it, see [`open`]. Errors show at the first delivery.
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport>;

    /// The destination in a few words, without secrets.
    fn describe(&self) -> String;

    /// The limits of a request unless the sink sets its own.
    fn limits(&self) -> RequestLimits;

    /// The way in which the destination finds the end of an item.
    fn framing(&self) -> Framing {
        Framing::Message
    }

    /// The largest number of parallel deliveries.
    fn concurrency_max(&self) -> usize {
        SINK_CONCURRENCY_MAX
    }

    /// The only encoder that it accepts, if it reads more of an event than the item.
    fn encoder(&self) -> Option<&'static str> {
        None
    }
}

pub(crate) type BoxedDestination = Box<dyn Destination>;

pub(crate) const TRANSPORTS: &[Kind<BoxedDestination>] = &[
    file::KIND,
    http::KIND,
    exec::KIND,
    syslog::KIND,
    journald::KIND,
    postgres::KIND,
    nats::KIND,
];

/// The sections of docs/SINKS.md about the transports.
pub fn reference() -> String {
    Kind::reference(TRANSPORTS)
}

/// The beginning of a reason, within [`SINK_REASON_BYTES_MAX`].
pub(super) fn shortened(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(SINK_REASON_BYTES_MAX);
    if end == text.len() {
        text.to_owned()
    } else {
        format!("{}...", text.get(..end).unwrap_or_default())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::read_yaml;
    use crate::engines::event::tests::event;
    use crate::store::vfs::Disk;

    /// Opens a transport with options as YAML.
    pub(in crate::engines) fn open(
        kind: &Kind<BoxedDestination>,
        options: &str,
    ) -> Box<dyn Transport> {
        open_with(kind, options, &deps(&Clock::real()))
    }

    pub(in crate::engines) fn open_with(
        kind: &Kind<BoxedDestination>,
        options: &str,
        deps: &Dependencies,
    ) -> Box<dyn Transport> {
        let destination = (kind.build)(&read_yaml(options).unwrap()).unwrap();
        super::open(&*destination, deps)
    }

    pub(in crate::engines) fn deps(clock: &Clock) -> Dependencies {
        let fs: Arc<dyn Fs> = Arc::new(Disk);
        Dependencies::new(clock, &fs)
    }

    /// Items with these texts; sequence numbers from 1.
    pub(in crate::engines) fn items(texts: &[&str]) -> Vec<Item> {
        let item = |(n, text): (u64, &&str)| {
            let event = Arc::new(event(n, "test/tag", "web1", serde_json::json!({ "n": n })));
            Item {
                event,
                part: None,
                bytes: text.as_bytes().to_vec(),
            }
        };
        (1..).zip(texts).map(item).collect()
    }

    #[test]
    fn every_example_is_accepted_and_unknown_options_are_not() {
        for kind in TRANSPORTS {
            let options = read_yaml(kind.example).unwrap();
            let built = (kind.build)(&options).unwrap();
            assert!(
                !built.describe().is_empty() && built.concurrency_max() > 0,
                "{}",
                kind.name
            );
            let mut unknown = options.clone();
            unknown["unknown_option"] = serde_json::json!(1);
            let error = (kind.build)(&unknown).unwrap_err();
            assert!(
                error.problem.contains("unknown_option"),
                "{}: {error:?}",
                kind.name
            );
        }
    }

    #[test]
    fn the_items_of_an_event_have_distinct_ids() {
        let event = Arc::new(event(3, "t", "m", serde_json::json!({})));
        let ids = |count: usize| {
            Item::of(&event, &mut vec![Vec::new(); count], Framing::Message)
                .map(|item| item.id())
                .collect::<Vec<_>>()
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
