//! What a transport does, and what it needs for it.
//!
//! # Invariant
//!
//! [`Transport::deliver`] returns `Ok` only if the destination has accepted each item that is not
//! among the rejected items. After an error any item may have been accepted, and the caller
//! redelivers all.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::item::Item;
use crate::base::clock::Clock;
use crate::base::limits::{SINK_CONCURRENCY_MAX, SINK_REASON_BYTES_MAX};
use crate::client::secret::Revealed;
use crate::engines::framing::Framing;
use crate::store::vfs::Fs;

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

    /// Reopens files and connections, and rereads secrets.
    fn reopen(&mut self) {}
}

pub(crate) trait Destination: Send + Sync + Debug {
    /// Opens it, see [`super::open`]. Errors show at the first delivery.
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
    /// An error after which all are redelivered.
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

/// The beginning of a reason, within [`SINK_REASON_BYTES_MAX`].
pub(in crate::engines) fn shortened(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(SINK_REASON_BYTES_MAX);
    if end == text.len() {
        text.to_owned()
    } else {
        format!("{}...", text.get(..end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(shortened(" short \n"), "short");
        let long = shortened(&"\u{e9}".repeat(SINK_REASON_BYTES_MAX));
        assert!(long.ends_with("\u{e9}...") && long.len() <= SINK_REASON_BYTES_MAX + 3);
    }
}
