//! Reads the events of a sink and encodes them, or takes what another sink of its group has read. In
//! a backlog the next batch is read while the one before is delivered.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deliver::DeliverContext;
use super::encoding::EncodedEvent;
use super::group::{Member, Piece, Taken};
use super::state::{Interrupt, Phase};
use crate::base::limits::{SINK_BATCH_BYTES_MAX, SINK_IDLE};
use crate::engines::event::Event;
use crate::engines::feed::{Feed, FeedError};
use crate::engines::settings::SinkOrder;
use crate::engines::transport::Item;
use crate::model::SeqNo;
use crate::store::{BatchLimits, StoredEntry};

pub(super) struct Reader {
    pub(super) context: DeliverContext,
    pub(super) feed: Arc<Feed>,
    /// Encodes the events.
    pub(super) member: Member,
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
}

pub(super) struct EncodedBatch {
    pub(super) encoded: Encoded,
    pub(super) last: SeqNo,
    /// The position to read ahead from; `None` without a backlog.
    pub(super) backlog: Option<SeqNo>,
}

pub(super) struct Ahead {
    taken: Taken,
    /// The number of seeks when it was read.
    moves: u64,
}

/// The first events of a batch.
enum First {
    Taken(Taken),
    /// A whole batch, from the feed.
    Fetched(EncodedBatch),
    Nothing,
    Paused,
}

impl First {
    fn whole(self) -> Option<EncodedBatch> {
        match self {
            Self::Fetched(batch) => Some(batch),
            Self::Taken(_) | Self::Nothing | Self::Paused => None,
        }
    }
}

impl Reader {
    /// The next batch; `None` without new events.
    pub(super) fn next(
        &self,
        ahead: Option<Ahead>,
        moves: u64,
    ) -> Result<Result<Option<EncodedBatch>, FeedError>, Interrupt> {
        // After a seek the batch read ahead is of the old position.
        if let Some(Ahead { taken, .. }) = ahead.filter(|ahead| ahead.moves == moves) {
            match self.batch_of(&taken) {
                Ok(None) => {}
                found => return Ok(found),
            }
        }

        let (state, clock) = (&self.context.state, &self.context.clock);
        let mut taken = match self.first(moves) {
            Ok(First::Taken(taken)) => taken,
            Ok(First::Fetched(batch)) => return Ok(Ok(Some(batch))),
            Ok(First::Nothing) => return Ok(Ok(None)),
            Ok(First::Paused) => {
                // A paused feed returns immediately, therefore the wait is here.
                state.set_phase(Phase::Paused);
                state.wait(clock, SINK_IDLE, moves)?;
                return Ok(Ok(None));
            }
            Err(error) => return Ok(Err(error)),
        };

        let time = self.context.settings.limits.time;
        if !time.is_zero() && !taken.is_full(self.limits()) {
            // A batch that is not full gets a moment more.
            state.wait(clock, time, moves)?;
            if let Err(error) = self.take(&mut taken) {
                return Ok(Err(error));
            }
        }
        // Whatever has changed meanwhile, the feed knows it.
        Ok(match self.batch_of(&taken) {
            Ok(None) => self.fetched().map(First::whole),
            found => found,
        })
    }

    /// The batch at a position. `None` if there is none yet; an error shows when it is wanted.
    pub(super) fn ahead(&self, from: SeqNo, moves: u64) -> Option<Ahead> {
        let mut taken = Taken::at(from);
        self.take(&mut taken).ok()?;
        (!taken.is_empty()).then_some(Ahead { taken, moves })
    }

    /// Makes what was taken the sink's batch; `None` if that is not possible any more.
    fn batch_of(&self, taken: &Taken) -> Result<Option<EncodedBatch>, FeedError> {
        let Some(last) = taken.last else {
            return Ok(None);
        };
        if !self.feed.take(taken.from, taken.last, taken.next)? {
            return Ok(None);
        }

        let mut encoded = self.start(taken.len());
        for event in taken.events() {
            self.add(&mut encoded, event);
        }
        Ok(Some(EncodedBatch {
            encoded,
            last,
            backlog: taken.is_full(self.limits()).then_some(taken.next),
        }))
    }

    /// Takes more events.
    fn take(&self, taken: &mut Taken) -> Result<(), FeedError> {
        let read = |range: Range<SeqNo>, limits: BatchLimits| {
            let from = range.start;
            if let Some(packed) = self.member.encoding().pack(range.clone(), limits.bytes) {
                let (blocks, next) = packed?;
                return Ok(Some(Piece::new(from, next, blocks)));
            }
            let found = self.feed.read(range, limits)?;
            Ok(found.map(|(entries, next)| Piece::new(from, next, self.encoded(entries))))
        };

        // Looked up once: events that are stored meanwhile wait for the next batch.
        let upto = self.feed.end();
        self.member.take(taken, upto, self.limits(), read)
    }

    fn encoded(&self, entries: Vec<StoredEntry>) -> Vec<EncodedEvent> {
        let encoding = self.member.encoding();
        let encoded = entries.into_iter().map(|entry| {
            let id = self.feed.id_of(&entry);
            encoding.of_entry(entry, id)
        });
        encoded.collect()
    }

    pub(super) fn encode(&self, events: Vec<Event>) -> Encoded {
        let mut encoded = self.start(events.len());
        for event in events {
            self.add(&mut encoded, &self.member.encoding().of_event(event));
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

    fn add(&self, encoded: &mut Encoded, one: &EncodedEvent) {
        let number = encoded.events;
        encoded.events += one.event.entries() as u64;
        encoded.redacted += u64::from(one.is_redacted);

        let items = match &one.items {
            Ok(items) => items,
            // The others of the batch are delivered; this one becomes a dead letter.
            Err(error) => {
                encoded.failed.push((one.event.clone(), error.clone()));
                return;
            }
        };

        encoded.without_items += u64::from(items.is_empty());
        let lane = match self.context.settings.order {
            SinkOrder::Minion => lane_of(&one.event.minion, self.lanes),
            SinkOrder::None => usize::try_from(number).unwrap_or(0) % self.lanes.max(1),
        };

        if let Some(lane) = encoded.items.get_mut(lane) {
            lane.extend_from_slice(items);
        }
    }

    /// The next events, of which the first may arrive within the longest wait. Ends early at a
    /// pause, a seek and a stop.
    fn first(&self, moves: u64) -> Result<First, FeedError> {
        let state = &self.context.state;
        let is_over = || state.is_interrupted(moves);
        let until = Instant::now() + self.idle;

        loop {
            let Some(from) = self.feed.place()? else {
                return self.fetched();
            };

            let mut taken = Taken::at(from);
            self.take(&mut taken)?;
            if !taken.is_empty() {
                return Ok(First::Taken(taken));
            }
            // Moves the cursor over what does not match, and renews the lease.
            if taken.must_fetch || !self.feed.take(from, None, taken.next)? {
                return self.fetched();
            }

            state.set_phase(Phase::Idle);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                return Ok(First::Nothing);
            }

            // Without events, and not at the end: the search has stopped at its limit of work and
            // continues.
            if taken.next >= self.feed.end() {
                self.feed.wait(taken.next, left, is_over);
            }
        }
    }

    /// The next batch from the feed itself, which may have something to report.
    fn fetched(&self) -> Result<First, FeedError> {
        let fetched = self.feed.fetch(self.limits())?;
        if fetched.paused {
            return Ok(First::Paused);
        }
        let Some(last) = fetched.events.last().map(|event| event.seq) else {
            return Ok(First::Nothing);
        };

        let mut encoded = self.start(fetched.events.len());
        for event in self.encoded(fetched.events) {
            self.add(&mut encoded, &event);
        }
        Ok(First::Fetched(EncodedBatch {
            encoded,
            last,
            // Read ahead again once nothing is to be reported.
            backlog: None,
        }))
    }

    fn limits(&self) -> BatchLimits {
        let limits = self.context.settings.limits;
        // All lanes read together, therefore the sum has a separate limit.
        let bytes = limits
            .bytes
            .saturating_mul(self.lanes)
            .min(SINK_BATCH_BYTES_MAX);
        BatchLimits {
            events: limits.count.saturating_mul(self.lanes),
            bytes,
        }
    }
}

fn lane_of(minion: &str, lanes: usize) -> usize {
    // Hashing costs more than all else here, and one lane is usual.
    if lanes <= 1 {
        return 0;
    }

    let mut hasher = DefaultHasher::new();
    minion.hash(&mut hasher);
    usize::try_from(hasher.finish() % lanes as u64).unwrap_or(0)
}
