//! The source of a sink's events: a consumer of the store with the sink's name, which this process
//! holds.

use std::ops::Range;
use std::time::Duration;

use crate::base::limits::CONSUMER_LEASE_MAX;
use crate::model::{EventFilter, SeqNo};
pub(crate) use crate::store::Start as Position;
use crate::store::{BatchLimits, ConsumerBatch, ReadAhead, Start, Store, StoreError, StoredEntry};
use crate::wire::filter::EntryFilter;

/// The holder's name in `saltcellar consumers list`.
const HOLDER: &str = "sink";

/// A feed did not accept a call. What was fetched before counts as not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FeedError(pub(crate) String);

impl From<StoreError> for FeedError {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

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
#[derive(Debug)]
pub(crate) struct Feed {
    store: Store,
    name: String,
    filter: EntryFilter,
}

impl Feed {
    /// The consumer of this name with this filter; a new one starts at `start`.
    pub(crate) fn open(
        store: Store,
        name: &str,
        filter: &EntryFilter,
        start: Start,
    ) -> Result<Self, FeedError> {
        store.consumers().create(name, filter.clone(), start)?;
        store.consumers().give_to_sink(name)?;
        Ok(Self {
            store,
            name: name.to_owned(),
            filter: filter.clone(),
        })
    }

    /// The next events. Does not wait for any.
    pub(crate) fn fetch(&self, limits: BatchLimits) -> Result<ConsumerBatch, FeedError> {
        // The longest lease: the sink ends it itself when it stops, and a consumer of this name has
        // no other holder.
        Ok(self
            .store
            .consumers()
            .next_batch(&self.name, HOLDER, CONSUMER_LEASE_MAX, limits)?)
    }

    /// Waits for the event `next`, at most this long, or until `is_over`, which is asked again
    /// after [`Feed::wake`].
    pub(crate) fn wait(&self, next: SeqNo, timeout: Duration, is_over: impl Fn() -> bool) {
        self.store.wait_for_unless(next, timeout, is_over);
    }

    /// Called after something that may end the wait of [`Feed::wait`].
    pub(crate) fn wake(&self) {
        self.store.wake_waiting();
    }

    /// The position of the next event, from which it can be read; `None` if it must be fetched.
    pub(crate) fn place(&self) -> Result<Option<SeqNo>, FeedError> {
        Ok(self.store.consumers().place(&self.name)?)
    }

    /// The position behind the last event that can be read.
    pub(crate) fn end(&self) -> SeqNo {
        self.store.durable()
    }

    /// The events in a range, without taking them, and the position after them. `None` if they must
    /// be fetched.
    pub(crate) fn read(
        &self,
        range: Range<SeqNo>,
        limits: BatchLimits,
    ) -> Result<Option<(Vec<StoredEntry>, SeqNo)>, FeedError> {
        Ok(self.store.consumers().read(&self.filter, range, limits)?)
    }

    /// Takes the events from `from` to `next` that were read, of which `last` is the last one, as
    /// [`Feed::fetch`] does. False if they are not what follows the last acknowledged event any more.
    pub(crate) fn take(
        &self,
        from: SeqNo,
        last: Option<SeqNo>,
        next: SeqNo,
    ) -> Result<bool, FeedError> {
        let filter = self.filter.clone();
        let ahead = ReadAhead {
            filter,
            from,
            last,
            next,
        };

        Ok(self
            .store
            .consumers()
            .take_ahead(&self.name, HOLDER, CONSUMER_LEASE_MAX, &ahead)?)
    }

    /// Notes that all events up to `last` are delivered: they are not fetched again. Fails after a
    /// [`Feed::seek`] since the fetch.
    pub(crate) fn ack(&self, last: SeqNo) -> Result<(), FeedError> {
        self.store.consumers().ack(&self.name, HOLDER, last)?;
        Ok(())
    }

    pub(crate) fn seek(&self, to: Position) -> Result<(), FeedError> {
        self.store.consumers().seek(&self.name, to)?;
        Ok(())
    }

    pub(crate) fn pause(&self, paused: bool) -> Result<(), FeedError> {
        self.store.consumers().pause(&self.name, paused)?;
        Ok(())
    }

    pub(crate) fn progress(&self) -> Result<Progress, FeedError> {
        let all = self.store.consumers().all()?;
        let own = all
            .into_iter()
            .find(|status| status.record.name == self.name);
        let own = own.ok_or_else(|| FeedError(format!("consumer {:?} was deleted; run `systemctl restart saltcellar`, which creates it again", self.name)))?;

        Ok(Progress {
            cursor: own.record.cursor,
            lag_entries: own.lag_entries,
            lag: own.lag,
            is_paused: own.record.paused,
        })
    }

    /// The id of an event of this store, the same at each delivery.
    pub(crate) fn id_of(&self, entry: &StoredEntry) -> String {
        self.store.event_id(entry)
    }

    pub(crate) fn newest(&self) -> Result<Option<StoredEntry>, FeedError> {
        let any = EventFilter::default();
        let end = self.store.durable();
        let page = self.store.search_events(&any, &self.filter, end, 1, 1)?;
        Ok(page.events.into_iter().next())
    }

    /// Ends the use by this process.
    pub(crate) fn release(&self) {
        if let Err(error) = self.store.consumers().release(&self.name, HOLDER) {
            tracing::debug!(sink = self.name, %error, "consumer not released");
        }
    }
}
