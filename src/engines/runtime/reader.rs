//! Reads the events of a sink and encodes them. In a backlog the next batch is read while the one
//! before is delivered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deliver::DeliverContext;
use super::state::{Interrupt, Phase};
use crate::base::limits::{SINK_BATCH_BYTES_MAX, SINK_IDLE};
use crate::engines::event::Event;
use crate::engines::feed::{Feed, FeedError};
use crate::engines::settings::SinkOrder;
use crate::engines::transport::Item;
use crate::model::SeqNo;
use crate::policy::redact::Redactor;
use crate::store::{BatchLimits, ConsumerBatch, ReadAhead, StoredEntry};

pub(super) struct Reader {
    pub(super) context: DeliverContext,
    pub(super) feed: Arc<Feed>,
    pub(super) redactor: Option<Redactor>,
    pub(super) master_id: Arc<str>,
    pub(super) lanes: usize,
    /// The longest wait for an event.
    pub(super) idle: Duration,
}

#[derive(Default)]
pub(super) struct Encoded {
    pub(super) items: Vec<Vec<Item>>,
    pub(super) failed: Vec<(Arc<Event>, String)>,
    pub(super) events: u64,
    /// Events of which the encoder makes no item.
    pub(super) without_items: u64,
    /// Events that the sink's own redaction changed.
    pub(super) redacted: u64,
    /// The items of one event, to reuse the memory.
    of_event: Vec<Vec<u8>>,
}

pub(super) struct EncodedBatch {
    pub(super) encoded: Encoded,
    pub(super) last: SeqNo,
    /// The position to read ahead from; `None` without a backlog.
    pub(super) backlog: Option<SeqNo>,
}

pub(super) struct Ahead {
    batch: EncodedBatch,
    position: ReadAhead,
    /// The number of seeks when it was read.
    moves: u64,
}

impl Reader {
    /// The next batch; `None` without new events.
    pub(super) fn next(
        &self,
        ahead: Option<Ahead>,
        moves: u64,
    ) -> Result<Result<Option<EncodedBatch>, FeedError>, Interrupt> {
        // After a seek the batch read ahead is of the old position.
        if let Some(ahead) = ahead.filter(|ahead| ahead.moves == moves) {
            match self.feed.take_ahead(&ahead.position) {
                Ok(true) => return Ok(Ok(Some(ahead.batch))),
                Ok(false) => {}
                Err(error) => return Ok(Err(error)),
            }
        }

        Ok(self.fetch(moves)?.map(|fetched| {
            let last = fetched.events.last()?.seq;
            Some(self.batch(fetched.events, last, fetched.next))
        }))
    }

    /// The batch at a position. `None` if it must be fetched; an error shows there, too.
    pub(super) fn ahead(&self, from: SeqNo, moves: u64) -> Option<Ahead> {
        let (entries, position) = self.feed.read_ahead(from, self.limits()).ok().flatten()?;

        let batch = self.batch(entries, position.last, position.next);
        Some(Ahead {
            batch,
            position,
            moves,
        })
    }

    fn batch(&self, entries: Vec<StoredEntry>, last: SeqNo, next: SeqNo) -> EncodedBatch {
        let backlog = self.is_full(&entries).then_some(next);

        let mut encoded = self.start(entries.len());
        for mut entry in entries {
            if let Some(redactor) = &self.redactor {
                let redacted = redactor.replaced(&entry.as_entry());
                encoded.redacted += u64::from(!redacted.is_nothing());
                entry.replace(redacted);
            }
            let id = self.feed.id_of(&entry);
            self.add(&mut encoded, Event::new(entry, id, &self.master_id));
        }

        EncodedBatch {
            encoded,
            last,
            backlog,
        }
    }

    pub(super) fn encode(&self, events: Vec<Event>) -> Encoded {
        let mut encoded = self.start(events.len());
        for event in events {
            self.add(&mut encoded, event);
        }
        encoded
    }

    fn start(&self, events: usize) -> Encoded {
        let lane = || Vec::with_capacity(events / self.lanes.max(1));
        Encoded {
            items: (0..self.lanes).map(|_| lane()).collect(),
            ..Encoded::default()
        }
    }

    fn add(&self, encoded: &mut Encoded, event: Event) {
        let settings = &self.context.settings;
        let event = Arc::new(event);
        let number = encoded.events;
        encoded.events += 1;
        encoded.of_event.clear();
        // The others of the batch are delivered; this one becomes a dead letter.
        if let Err(error) = settings.encoder.1.encode(&event, &mut encoded.of_event) {
            encoded.failed.push((event, error.to_string()));
            return;
        }

        encoded.without_items += u64::from(encoded.of_event.is_empty());
        let lane = match settings.order {
            SinkOrder::Minion => lane_of(&event.minion, self.lanes),
            SinkOrder::None => usize::try_from(number).unwrap_or(0) % self.lanes.max(1),
        };

        if let Some(lane) = encoded.items.get_mut(lane) {
            lane.extend(Item::of(&event, &mut encoded.of_event, settings.framing()));
        }
    }

    /// The next events: as many as the lanes take, or those that arrive within the batch's time.
    fn fetch(&self, moves: u64) -> Result<Result<ConsumerBatch, FeedError>, Interrupt> {
        let (state, clock) = (&self.context.state, &self.context.clock);
        let time = self.context.settings.limits.time;

        let first = match self.first(moves) {
            Ok(fetched) if fetched.paused => {
                // The feed answers at once when it is paused, so the wait is here.
                state.set_phase(Phase::Paused);
                state.wait(clock, SINK_IDLE, moves)?;
                return Ok(Ok(ConsumerBatch::default()));
            }
            Ok(fetched) => fetched,
            Err(error) => return Ok(Err(error)),
        };

        if first.events.is_empty() || time.is_zero() || self.is_full(&first.events) {
            return Ok(Ok(first));
        }

        // A batch that is not full gets a moment more, and is then fetched anew, since a fetch
        // takes nothing.
        state.wait(clock, time, moves)?;
        Ok(self.feed.fetch(self.limits()))
    }

    /// The next events, of which the first may arrive within the longest wait. Ends early at a
    /// pause, a seek and a stop.
    fn first(&self, moves: u64) -> Result<ConsumerBatch, FeedError> {
        let state = &self.context.state;
        let is_over = || state.is_interrupted(moves);
        let until = Instant::now() + self.idle;

        loop {
            let fetched = self.feed.fetch(self.limits())?;
            if fetched.paused || !fetched.events.is_empty() {
                return Ok(fetched);
            }

            state.set_phase(Phase::Idle);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                return Ok(fetched);
            }

            // Without events, and not at the end: the search has stopped at its limit of work and
            // continues.
            if fetched.is_end {
                self.feed.wait(fetched.next, left, is_over);
            }
        }
    }

    fn limits(&self) -> BatchLimits {
        let limits = self.context.settings.limits;
        // Read together by all lanes, so the sum has a limit of its own.
        let bytes = limits
            .bytes
            .saturating_mul(self.lanes)
            .min(SINK_BATCH_BYTES_MAX);
        BatchLimits {
            events: limits.count.saturating_mul(self.lanes),
            bytes,
        }
    }

    fn is_full(&self, entries: &[StoredEntry]) -> bool {
        let BatchLimits { events, bytes } = self.limits();
        let size = || {
            entries
                .iter()
                .map(|entry| entry.tag.len() + entry.body.len())
                .sum::<usize>()
        };
        entries.len() >= events || size() >= bytes
    }
}

fn lane_of(minion: &str, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    minion.hash(&mut hasher);
    let lanes = lanes.max(1) as u64;
    usize::try_from(hasher.finish() % lanes).unwrap_or(0)
}
