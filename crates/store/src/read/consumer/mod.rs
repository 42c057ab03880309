//! Consumers: names with a filter and a durable cursor over the log, the one way to process events
//! reliably.
//!
//! A holder takes batches from the cursor on and acknowledges what it has processed; events that
//! are not acknowledged are redelivered, so delivery is at least once. An event's id (`<public
//! id of the store>:<sequence number>`) is the same each time. A lease keeps a second holder out.
//!
//! # Invariants
//!
//! `cursor <= durable`. A cursor never passes an unacknowledged event, except by a seek: it
//! advances by acknowledgements, and over events that do not match the filter. Retention that
//! overtakes a cursor leaves a gap record at that place. So does a block that cannot be read, as long as
//! the index has it.

mod ahead;
mod gap;
mod lost;
mod record;

pub use ahead::ReadAhead;
pub use record::{
    BatchLimits, ConsumerBatch, ConsumerFailure, ConsumerRecord, ConsumerStatus, HolderProcess,
    LostEntries,
};
pub use record::{Start, is_consumer_name};

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use gap::is_lost_tag;
use gap::{add_unread, gap_record};
use record::{Consumer, Lease};

use crate::error::StoreError;
use crate::read::{LogReader, StoredEntry};
use crate::settings::{Save, Setting, Settings};
use saltcellar_base::limits::{
    CONSUMER_ERROR_BYTES_MAX, CONSUMER_FILTER_BYTES_MAX, CONSUMER_LEASE_MAX,
    CONSUMER_NAME_BYTES_MAX, CONSUMER_SAVE_ENTRIES, CONSUMER_SYNC_INTERVAL, CONSUMERS_MAX,
};
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{Kind, SeqNo};
use saltcellar_wire::filter::EntryFilter;

/// Names with a filter and a durable cursor.
#[derive(Debug)]
pub struct Consumers {
    /// Held even while a change is written and synced, so never taken on a runtime thread. Lock
    /// order: after a retention round, before the settings' locks; never taken while the log is
    /// read.
    state: Mutex<State>,
    /// The consumers that are positions of sinks. Lock order: no other lock is taken under it.
    of_sinks: Mutex<HashSet<String>>,
    log: Arc<LogReader>,
    metrics: Arc<Metrics>,
}

impl Setting for ConsumerRecord {
    const KIND: &'static str = "consumer";
}

#[derive(Debug)]
struct State {
    list: BTreeMap<String, Consumer>,
    /// Names of consumers whose records another release wrote.
    unread: BTreeSet<String>,
    settings: Arc<Settings>,
    /// Time of the last sync, by the monotonic clock.
    synced: Duration,
}

fn refused<T>(what: impl Into<String>) -> Result<T, StoreError> {
    Err(StoreError::Refused(what.into()))
}

impl Consumers {
    pub(crate) fn open(
        settings: Arc<Settings>,
        log: Arc<LogReader>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (mut list, mut unread) = (BTreeMap::new(), BTreeSet::new());
        for found in settings.all::<ConsumerRecord>("") {
            let Some(record) = found.value else {
                // It stays as it is: another release may read it.
                tracing::error!(
                    consumer = found.name,
                    "consumer settings unreadable, the consumer is not served: use the release that wrote them, or run `saltcellar consumers delete NAME`"
                );
                unread.insert(found.name);
                continue;
            };
            if found.is_uncertain {
                tracing::warn!(
                    consumer = found.name,
                    cursor = record.cursor.0,
                    "the latest changes of a consumer may be lost, continuing at an earlier position: events may be redelivered; `saltcellar consumers seek` moves it"
                );
            }
            list.insert(found.name, Consumer::new(record));
        }

        let of_sinks = list.values().filter(|consumer| consumer.record.sink);
        let of_sinks = of_sinks.map(|consumer| consumer.record.name.clone());
        let of_sinks = Mutex::new(of_sinks.collect());
        let state = State {
            list,
            unread,
            settings,
            synced: Duration::ZERO,
        };
        Self {
            state: Mutex::new(state),
            of_sinks,
            log,
            metrics,
        }
    }

    /// Moves cursors back to the end of the log, as in a store that was restored from a backup.
    pub(crate) fn limit_to(&self, durable: SeqNo) {
        let mut state = self.state.lock();
        let records = state.list.values().map(|consumer| &consumer.record);
        let beyond = records.filter(|record| record.cursor > durable);
        let beyond: Vec<_> = beyond
            .map(|record| (record.name.clone(), record.cursor))
            .collect();

        for (name, cursor) in beyond {
            tracing::warn!(
                consumer = name,
                cursor = cursor.0,
                end = durable.0,
                "consumer cursor past the end of the log, as after a restore, moved back to the end; no new event is skipped"
            );
            // Saved, because the log may have grown past the old cursor before the next start.
            let moved = state.change(&name, Save::Durable, |record| record.cursor = durable);
            if let Err(error) = moved {
                tracing::error!(consumer = name, %error, "cannot save the cursor of a consumer, it may skip events after a later restart: once the disk accepts writes, restart the daemon");
                if let Some(consumer) = state.list.get_mut(&name) {
                    consumer.record.cursor = durable;
                }
            }
        }
    }

    /// The pinned consumer, if any, that keeps a segment whose last entry is `last`.
    pub(crate) fn pinned(&self, class_name: &str, last: SeqNo) -> Option<String> {
        let keeps = |record: &ConsumerRecord| {
            record.pin && record.cursor <= last && record.filter.allows_class(class_name)
        };

        let state = self.state.lock();
        let known = state.list.values().map(|consumer| &consumer.record);
        let known = known.filter(|record| keeps(record));
        // A record that cannot be read may be a pinned one.
        let mut names = known.map(|record| &record.name).chain(&state.unread);
        names.next().cloned()
    }
}

impl State {
    fn of(&mut self, name: &str) -> Result<&mut Consumer, StoreError> {
        match self.list.get_mut(name) {
            Some(consumer) => Ok(consumer),
            None => refused(format!(
                "consumer {name:?} does not exist; create it with `saltcellar consumers create {name}`"
            )),
        }
    }

    /// Saves a changed record, then applies it.
    fn change(
        &mut self,
        name: &str,
        save: Save,
        change: impl FnOnce(&mut ConsumerRecord),
    ) -> Result<ConsumerRecord, StoreError> {
        let mut record = self.of(name)?.record.clone();
        change(&mut record);

        // On disk first: a change that was acknowledged survives the end of the process.
        self.settings.put(name, &record, save)?;

        let consumer = self.of(name)?;
        consumer.record = record.clone();
        consumer.saved = record.cursor;
        Ok(record)
    }

    /// Saves a cursor that has moved without an acknowledgement, from time to time only: losing it
    /// repeats a search and no event.
    fn save_progress(&mut self, name: &str) -> Result<(), StoreError> {
        let consumer = self.of(name)?;
        let unsaved = consumer.record.cursor.0.saturating_sub(consumer.saved.0);
        if unsaved >= CONSUMER_SAVE_ENTRIES {
            self.change(name, Save::Later, |_| ())?;
        }
        Ok(())
    }
}

/// One line of at most [`CONSUMER_ERROR_BYTES_MAX`] bytes.
fn one_line(message: &str) -> String {
    // Messages come from clients, and are shown in a line of a table.
    let line: String = message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();

    // Cut between characters.
    line.chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= CONSUMER_ERROR_BYTES_MAX).then_some(c)
        })
        .collect()
}

impl LogReader {
    /// The public id of the store ([`crate::log::file::public_id`]): the first part of
    /// [`LogReader::event_id`].
    pub fn id(&self) -> String {
        self.public_id.clone()
    }

    /// The id of the stored event with this number.
    pub(crate) fn id_at(&self, seq: SeqNo) -> String {
        format!("{}:{seq}", self.public_id)
    }

    /// The id of an event, which no other event of any store has.
    pub fn event_id(&self, event: &StoredEntry) -> String {
        // A consumer's gap may begin at the number of an event of another class, and both need an
        // id.
        let gap = if event.kind == Kind::Gap && is_lost_tag(&event.tag) {
            "gap:"
        } else {
            ""
        };
        format!("{}:{gap}{}", self.public_id, event.seq)
    }

    /// The first sequence number to read for a start; at most the durable position.
    pub fn position(&self, start: Start) -> Result<SeqNo, StoreError> {
        let durable = self.durable();

        let position = match start {
            Start::Oldest => self.segments.oldest(),
            Start::Newest => durable,
            Start::Time(at) => self.first_since(at)?,
            Start::Seq(seq) => seq.max(self.segments.oldest()),
        };
        Ok(position.min(durable))
    }

    /// The gap record for a reader without a consumer that continues at `asked`, if the log begins
    /// at `from`, behind it.
    pub fn gap_before(&self, asked: SeqNo, from: SeqNo) -> Option<StoredEntry> {
        let asked = asked.max(SeqNo::FIRST);
        // Numbers that were left out after a restore were never assigned.
        let skipped = self.skipped.iter();
        let skipped: u64 = skipped.map(|range| range.count_between(asked, from)).sum();
        let entries = from.0.saturating_sub(asked.0).saturating_sub(skipped);
        if entries == 0 {
            // All numbers in between were left out on purpose, or there are none.
            return None;
        }

        let lost = LostEntries {
            first: asked,
            last: SeqNo(from.0 - 1),
            entries,
        };
        Some(gap_record(None, lost, self.clock.now()))
    }

    /// Entries from a position on, at most, and the age of the first one.
    fn lag(&self, from: SeqNo) -> Result<(u64, Duration), StoreError> {
        let durable = self.durable();

        // Whole segments are counted by their totals: even a large lag costs no reading.
        let mut entries = 0;
        for segment in self.segments.all() {
            let totals = segment.totals();
            if totals.entries > 0 && totals.last_seq >= from {
                entries += totals
                    .entries
                    .min(totals.last_seq.0 - from.0.min(totals.last_seq.0) + 1);
            }
        }

        // The age needs one entry, from the block at the cursor.
        let mut first = None;
        if entries > 0 && from < durable {
            self.first_entry(|_, _| true, from, |entry| first = Some(entry.at))?;
        }

        let age = first.map_or(0, |at| self.clock.now().0.saturating_sub(at.0));
        Ok((
            entries,
            Duration::from_micros(u64::try_from(age).unwrap_or(0)),
        ))
    }
}

impl Consumers {
    /// Creates a consumer. An existing one gets the filter and keeps its cursor. Durable on return.
    pub fn create(
        &self,
        name: &str,
        filter: EntryFilter,
        start: Start,
    ) -> Result<ConsumerRecord, StoreError> {
        if !is_consumer_name(name) {
            return refused(format!(
                "{name:?} is not a name for a consumer: give 1 to {CONSUMER_NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores"
            ));
        }

        let bytes = serde_json::to_string(&filter).map_or(usize::MAX, |json| json.len());
        if bytes > CONSUMER_FILTER_BYTES_MAX {
            return refused(format!(
                "the filter has more than {CONSUMER_FILTER_BYTES_MAX} bytes"
            ));
        }

        let mut cursor = self.log.position(start)?;
        // Before the lock: a position may be searched for in the log.
        let mut state = self.state.lock();
        if let Some(known) = state.list.get(name) {
            // Repeated by every start of a client, so it must not write.
            if known.record.filter == filter {
                return Ok(known.record.clone());
            }

            tracing::info!(consumer = name, "filter of a consumer changed");
            // The known part without matches applied to the old filter.
            state.of(name)?.clear = None;
            return state.change(name, Save::Durable, |record| record.filter = filter);
        }

        // A new record would end what it has not processed, also for the release that wrote it.
        if state.unread.contains(name) {
            return refused(format!(
                "the settings of consumer {name:?} cannot be read by this release: use the one that wrote them, or delete it with `saltcellar consumers delete {name}`"
            ));
        }

        if state.list.len() >= CONSUMERS_MAX {
            return refused(format!(
                "the limit of {CONSUMERS_MAX} consumers is reached; delete one with `saltcellar consumers delete`"
            ));
        }

        // It may be one whose record was lost: delivering events again is better than skipping those
        // that it has not processed.
        if state.settings.loss().is_some() {
            cursor = self.log.segments.oldest().min(cursor);
            tracing::warn!(
                consumer = name,
                cursor = cursor.0,
                "consumer settings were lost, restarting at the oldest event: move it with `saltcellar consumers seek`"
            );
        }

        let record = ConsumerRecord {
            name: name.to_owned(),
            filter,
            cursor,
            created: self.log.clock.now(),
            ..ConsumerRecord::default()
        };

        // As in `change`: on disk first.
        state.settings.put(name, &record, Save::Durable)?;
        state
            .list
            .insert(name.to_owned(), Consumer::new(record.clone()));
        Ok(record)
    }

    /// Makes a consumer the position of a sink, until it is deleted. Durable on return.
    pub fn give_to_sink(&self, name: &str) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if !state.of(name)?.record.sink {
            state.change(name, Save::Durable, |record| record.sink = true)?;
            self.of_sinks.lock().insert(name.to_owned());
        }
        Ok(())
    }

    /// Whether a consumer is the position of a sink, which may not be configured any more. Does not
    /// wait for the disk: the right for each call about a consumer depends on it.
    pub fn is_of_sink(&self, name: &str) -> bool {
        self.of_sinks.lock().contains(name)
    }

    /// Deletes a consumer; false if it does not exist. Durable on return.
    pub fn delete(&self, name: &str) -> Result<bool, StoreError> {
        let mut state = self.state.lock();

        if !state.list.contains_key(name) && !state.unread.contains(name) {
            return Ok(false);
        }

        state.settings.remove::<ConsumerRecord>(name)?;
        state.unread.remove(name);
        state.list.remove(name);
        self.of_sinks.lock().remove(name);
        Ok(true)
    }

    /// Moves the cursor; events from there on are delivered, again if need be. Batches taken before
    /// cannot be acknowledged any more.
    pub fn seek(&self, name: &str, start: Start) -> Result<ConsumerRecord, StoreError> {
        let cursor = self.log.position(start)?;
        let mut state = self.state.lock();
        let consumer = state.of(name)?;

        // Outstanding batches are rejected from now on, even if saving fails.
        consumer.moved = true;
        consumer.clear = None;
        consumer.lost_reported = false;
        state.change(name, Save::Durable, |record| {
            record.cursor = cursor;
            record.lost = None;
        })
    }

    /// Pauses or resumes deliveries. Durable on return.
    pub fn pause(&self, name: &str, paused: bool) -> Result<ConsumerRecord, StoreError> {
        self.state
            .lock()
            .change(name, Save::Durable, |record| record.paused = paused)
    }

    /// Sets whether retention keeps unprocessed events of the consumer. Durable on return.
    pub(crate) fn pin(&self, name: &str, pin: bool) -> Result<ConsumerRecord, StoreError> {
        self.state
            .lock()
            .change(name, Save::Durable, |record| record.pin = pin)
    }

    /// The next events for a holder, from the cursor on, which take or renew its lease for `lease`.
    /// Does not wait. A batch without events may end before the end of the log; the cursor has
    /// advanced then.
    pub fn next_batch(
        &self,
        name: &str,
        holder: &str,
        lease: Duration,
        limits: BatchLimits,
    ) -> Result<ConsumerBatch, StoreError> {
        // The lock is not held while the log is read: other consumers go on, and retention can note
        // a loss.
        let (filter, from, lost) = {
            let mut state = self.state.lock();
            let now = self.log.clock.monotonic();
            let consumer = state.of(name)?;
            consumer.hold(holder, lease, now)?;
            // Still takes the lease, because no other holder may slip in during a pause.
            if consumer.record.paused {
                let next = consumer.record.cursor;
                return Ok(ConsumerBatch {
                    next,
                    paused: true,
                    ..ConsumerBatch::default()
                });
            }
            (
                consumer.record.filter.clone(),
                consumer.record.cursor,
                consumer.record.lost,
            )
        };

        let found = self.log.select(
            &filter,
            from,
            self.log.durable(),
            limits.events,
            limits.bytes,
        )?;

        // What the batch was read for may have changed in the meantime.
        let mut state = self.state.lock();
        let consumer = state.of(name)?;
        let mut batch = ConsumerBatch {
            events: found.events,
            next: found.next,
            is_end: found.is_end,
            paused: false,
        };

        let record = &consumer.record;
        if (record.cursor, record.lost) != (from, lost) || record.filter != filter {
            // Moved meanwhile, or entries were dropped that it may lack: the next call rereads.
            let next = consumer.record.cursor;
            return Ok(ConsumerBatch {
                next,
                ..ConsumerBatch::default()
            });
        }

        add_unread(name, found.unread, &mut batch.events, self.log.clock.now());

        // The gap record is not stored: it is inserted where the entries were.
        if let Some(lost) = consumer.record.lost.filter(|lost| lost.first < batch.next) {
            let at = batch.events.partition_point(|event| event.seq < lost.first);
            batch
                .events
                .insert(at, gap_record(Some(name), lost, self.log.clock.now()));
            consumer.lost_reported = true;
        }

        let too_costly = found.too_costly;

        consumer.pass(batch.events.last().map(|last| last.seq), batch.next);

        if let Some((seq, error)) = too_costly {
            self.metrics.conditions_too_costly.add(1);
            let at = self.log.clock.now();
            let message = format!("event {seq}: {error}");
            state.change(name, Save::Later, |record| {
                record.error = Some(ConsumerFailure { at, message });
            })?;
        } else {
            state.save_progress(name)?;
        }
        Ok(batch)
    }

    /// Notes that all events of the consumer up to `seq` are processed. Survives a `kill -9` on
    /// return, and a power loss within [`CONSUMER_SYNC_INTERVAL`].
    pub fn ack(&self, name: &str, holder: &str, seq: SeqNo) -> Result<ConsumerRecord, StoreError> {
        let now = self.log.clock.monotonic();
        let durable = self.log.durable();
        let mut state = self.state.lock();

        // See the page on consumer cursors: a sync per acknowledgement would compete with the log
        // for the disk.
        let is_due = now.saturating_sub(state.synced) >= CONSUMER_SYNC_INTERVAL;
        let save = if is_due { Save::Durable } else { Save::Later };
        let consumer = state.of(name)?;
        consumer.check_lease(holder, now)?;
        if seq >= durable {
            return refused(format!(
                "event {seq} does not exist: the log ends before {durable}"
            ));
        }

        if consumer.moved {
            return refused(format!(
                "the cursor of consumer {name:?} was moved after this batch was taken; take the next one"
            ));
        }
        // Acknowledged before, as after a lost response.
        if seq < consumer.record.cursor {
            return Ok(consumer.record.clone());
        }

        let mut cursor = seq.next();
        if let Some((_, to)) = consumer
            .clear
            .filter(|(from, to)| (*from..*to).contains(&cursor))
        {
            cursor = to;
        }

        // The gap record is processed once the cursor has passed it, if it was delivered.
        let lost = consumer.record.lost.and_then(|lost| {
            if cursor <= lost.first {
                Some(lost)
            } else if consumer.lost_reported || cursor > lost.last {
                None
            } else {
                // Delivered before they were dropped.
                Some(LostEntries {
                    first: cursor,
                    ..lost
                })
            }
        });

        if is_due {
            state.synced = now;
        }
        state.change(name, save, |record| {
            record.cursor = cursor;
            record.lost = lost;
        })
    }

    /// Notes that a holder could not process its batch, which is redelivered.
    pub fn nack(
        &self,
        name: &str,
        holder: &str,
        message: &str,
    ) -> Result<ConsumerRecord, StoreError> {
        let (now, at) = (self.log.clock.monotonic(), self.log.clock.now());
        let mut state = self.state.lock();
        // A holder that has lost its lease must not report for the next one.
        state.of(name)?.check_lease(holder, now)?;
        let message = one_line(message);
        state.change(name, Save::Later, |record| {
            record.error = Some(ConsumerFailure { at, message });
        })
    }

    /// Makes a holder's lease end with a process.
    pub fn bind_lease(
        &self,
        name: &str,
        holder: &str,
        process: HolderProcess,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();

        // Another holder may have taken the lease since the call was sent.
        if let Some(lease) = state
            .of(name)?
            .lease
            .as_mut()
            .filter(|lease| lease.holder == holder)
        {
            lease.process = Some(process);
        }
        Ok(())
    }

    /// Ends a holder's lease; another client may take the consumer immediately.
    pub fn release(&self, name: &str, holder: &str) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let consumer = state.of(name)?;
        consumer.lease.take_if(|lease| lease.holder == holder);
        Ok(())
    }

    /// The lowest cursor of all consumers; `None` if there are none.
    pub fn lowest_cursor(&self) -> Option<SeqNo> {
        self.state
            .lock()
            .list
            .values()
            .map(|consumer| consumer.record.cursor)
            .min()
    }

    /// The state of all consumers, by name.
    pub fn all(&self) -> Result<Vec<ConsumerStatus>, StoreError> {
        let now = self.log.clock.monotonic();

        // Copied: the lag of each consumer is read from the log without the lock.
        let known: Vec<_> = {
            let state = self.state.lock();
            let left = |lease: &Lease| {
                lease
                    .is_held(now)
                    .then(|| (lease.holder.clone(), lease.until.saturating_sub(now)))
            };
            let of = |consumer: &Consumer| {
                (
                    consumer.record.clone(),
                    consumer.lease.as_ref().and_then(left),
                )
            };
            state.list.values().map(of).collect()
        };

        known
            .into_iter()
            .map(|(record, lease)| {
                let (lag_entries, lag) = self.log.lag(record.cursor)?;
                Ok(ConsumerStatus {
                    record,
                    lag_entries,
                    lag,
                    lease,
                })
            })
            .collect()
    }
}

impl Consumer {
    /// Gives the lease to a holder, or renews it, for a new batch.
    fn hold(&mut self, holder: &str, lease: Duration, now: Duration) -> Result<(), StoreError> {
        if holder.is_empty() || holder.len() > CONSUMER_NAME_BYTES_MAX {
            return refused(format!(
                "a holder has a name of 1 to {CONSUMER_NAME_BYTES_MAX} bytes"
            ));
        }

        self.check_lease(holder, now)?;
        let until = now + lease.min(CONSUMER_LEASE_MAX);

        // A holder that renews its lease keeps the process that it is bound to.
        let before = self.lease.take().filter(|lease| lease.holder == holder);
        let process = before.and_then(|lease| lease.process);
        self.lease = Some(Lease {
            holder: holder.to_owned(),
            until,
            process,
        });

        // The batch that follows is read from where the cursor is now.
        self.moved = false;
        Ok(())
    }

    /// Passes a batch: its last event, if any, must be acknowledged, and no other event before `next`
    /// matches.
    fn pass(&mut self, last: Option<SeqNo>, next: SeqNo) {
        // An acknowledgement of the last event also passes what is known not to match. Without
        // events, nothing has to be acknowledged.
        match last {
            Some(last) => self.clear = Some((last.next(), next)),
            None => self.record.cursor = next,
        }
    }

    /// Fails if another client holds the lease.
    fn check_lease(&self, holder: &str, now: Duration) -> Result<(), StoreError> {
        let Some(lease) = self
            .lease
            .as_ref()
            .filter(|lease| lease.holder != holder && lease.is_held(now))
        else {
            return Ok(());
        };
        refused(format!(
            "consumer {:?} is in use by {:?} for at least {} s more; stop that holder, or use another name",
            self.record.name,
            lease.holder,
            lease.until.saturating_sub(now).as_secs() + 1
        ))
    }
}

#[cfg(test)]
pub(crate) mod tests;
