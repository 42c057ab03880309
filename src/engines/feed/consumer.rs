//! The feed over a consumer of the store: one with the sink's name, which this process holds.

use std::time::{Duration, Instant};

use super::{Feed, FeedError, Fetched, Position, Progress};
use crate::base::limits::CONSUMER_LEASE_MAX;
use crate::model::{EventFilter, SeqNo};
use crate::store::{BatchLimits, ReadAhead, Start, Store, StoreError, StoredEntry};
use crate::wire::filter::EntryFilter;

/// The holder's name in `saltcellar consumers list`.
const HOLDER: &str = "sink";

#[derive(Debug)]
pub(crate) struct ConsumerFeed {
    store: Store,
    name: String,
    filter: EntryFilter,
}

impl From<StoreError> for FeedError {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

impl ConsumerFeed {
    /// The consumer of this name with this filter; a new one starts behind the newest event.
    pub(crate) fn open(store: Store, name: &str, filter: &EntryFilter) -> Result<Self, FeedError> {
        store
            .consumers()
            .create(name, filter.clone(), Start::Newest)?;
        store.consumers().give_to_sink(name)?;
        Ok(Self {
            store,
            name: name.to_owned(),
            filter: filter.clone(),
        })
    }
}

impl Feed for ConsumerFeed {
    fn fetch(
        &self,
        events: usize,
        bytes: usize,
        wait: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Fetched, FeedError> {
        let limits = BatchLimits { events, bytes };
        let until = Instant::now() + wait;
        loop {
            // The longest lease: the sink ends it itself when it stops, and a consumer of this name
            // has no other holder.
            let batch = self.store.consumers().next_batch(
                &self.name,
                HOLDER,
                CONSUMER_LEASE_MAX,
                limits,
            )?;

            let left = until.saturating_duration_since(Instant::now());
            if batch.paused || !batch.events.is_empty() || left.is_zero() || is_over() {
                return Ok(Fetched {
                    entries: batch.events,
                    next: batch.next,
                    is_paused: batch.paused,
                });
            }

            // Without new events, and not at the end: the search has stopped at its limit of work
            // and continues.
            if batch.is_end {
                self.store.wait_for_unless(batch.next, left, is_over);
            }
        }
    }

    fn wake(&self) {
        self.store.wake_waiting();
    }

    fn read_ahead(
        &self,
        from: SeqNo,
        events: usize,
        bytes: usize,
    ) -> Result<Option<(Vec<StoredEntry>, ReadAhead)>, FeedError> {
        Ok(self
            .store
            .consumers()
            .read_ahead(&self.name, from, BatchLimits { events, bytes })?)
    }

    fn take_ahead(&self, ahead: &ReadAhead) -> Result<bool, FeedError> {
        Ok(self
            .store
            .consumers()
            .take_ahead(&self.name, HOLDER, CONSUMER_LEASE_MAX, ahead)?)
    }

    fn ack(&self, last: SeqNo) -> Result<(), FeedError> {
        Ok(self
            .store
            .consumers()
            .ack(&self.name, HOLDER, last)
            .map(drop)?)
    }

    fn seek(&self, to: Position) -> Result<(), FeedError> {
        Ok(self.store.consumers().seek(&self.name, to).map(drop)?)
    }

    fn pause(&self, paused: bool) -> Result<(), FeedError> {
        Ok(self.store.consumers().pause(&self.name, paused).map(drop)?)
    }

    fn progress(&self) -> Result<Progress, FeedError> {
        let all = self.store.consumers().all()?;
        let own = all
            .into_iter()
            .find(|status| status.record.name == self.name);
        let own = own.ok_or_else(|| FeedError(format!("consumer {:?} was deleted", self.name)))?;
        Ok(Progress {
            cursor: own.record.cursor,
            lag_entries: own.lag_entries,
            lag: own.lag,
            is_paused: own.record.paused,
        })
    }

    fn id_of(&self, entry: &StoredEntry) -> String {
        self.store.event_id(entry)
    }

    fn newest(&self) -> Result<Option<StoredEntry>, FeedError> {
        let (any, end) = (EventFilter::default(), self.store.durable());
        let page = self.store.search_events(&any, &self.filter, end, 1, 1)?;
        Ok(page.events.into_iter().next())
    }

    fn release(&self) {
        if let Err(error) = self.store.consumers().release(&self.name, HOLDER) {
            tracing::debug!(sink = self.name, %error, "consumer not released");
        }
    }
}
