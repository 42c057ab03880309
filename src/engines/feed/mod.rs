//! The source of a sink's events: a named position in the log, and a filter.

mod consumer;

use std::time::Duration;

pub(crate) use self::consumer::ConsumerFeed;
use crate::model::SeqNo;
pub(crate) use crate::store::Start as Position;
use crate::store::{ReadAhead, StoredEntry};

#[derive(Debug, Clone, Default)]
pub(crate) struct Fetched {
    /// The matching events behind the last acknowledged one, in order.
    pub(crate) entries: Vec<StoredEntry>,
    pub(crate) next: SeqNo,
    /// True if the feed is paused and therefore has no events.
    pub(crate) is_paused: bool,
}

/// A feed did not accept a call. What was fetched before counts as not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FeedError(pub(crate) String);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The next sequence number wanted.
    pub(crate) cursor: SeqNo,
    /// Entries from the cursor on, at most.
    pub(crate) lag_entries: u64,
    /// Age of the oldest of them.
    pub(crate) lag: Duration,
    pub(crate) is_paused: bool,
}

/// One sink's source of events. Other threads move and pause it meanwhile.
pub(crate) trait Feed: Send + Sync {
    /// The next events: at most `events`, and at most `bytes` bytes except for the first event.
    /// Waits up to `wait` for one, or until `is_over`, which is asked again after [`Feed::wake`].
    fn fetch(
        &self,
        events: usize,
        bytes: usize,
        wait: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Fetched, FeedError>;

    /// Called after something that may end the wait of [`Feed::fetch`].
    fn wake(&self);

    /// The events from a position on, without taking them. `None` if they must be fetched.
    fn read_ahead(
        &self,
        from: SeqNo,
        events: usize,
        bytes: usize,
    ) -> Result<Option<(Vec<StoredEntry>, ReadAhead)>, FeedError>;

    /// Takes what was read ahead, as [`Feed::fetch`] does. False if it is not what follows the last
    /// acknowledged event any more.
    fn take_ahead(&self, ahead: &ReadAhead) -> Result<bool, FeedError>;

    /// Notes that all events up to `last` are delivered: they are not fetched again. Fails after a
    /// [`Feed::seek`] since the fetch.
    fn ack(&self, last: SeqNo) -> Result<(), FeedError>;

    fn seek(&self, to: Position) -> Result<(), FeedError>;

    fn pause(&self, paused: bool) -> Result<(), FeedError>;

    fn progress(&self) -> Result<Progress, FeedError>;

    /// The id of an event of this store, the same at each delivery.
    fn id_of(&self, entry: &StoredEntry) -> String;

    fn newest(&self) -> Result<Option<StoredEntry>, FeedError>;

    /// Ends the use by this process.
    fn release(&self);
}
