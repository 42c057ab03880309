//! Calls of consumers, and those that read events forwards.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::lists::write_event;
use super::poll::{Attempt, Poll};
use super::store::refused;
use super::{Caller, Ctx, ReadCtx, document, failed, typed};
use crate::base::clock::Micros;
use crate::base::limits::{
    CONSUMER_BATCH_BYTES, CONSUMER_BATCH_EVENTS, CONSUMER_LEASE, COUNT_GROUPS_MAX, FOLLOW_GATHER,
    LIST_BYTES_MAX, LIST_ROWS_MAX,
};
use crate::model::SeqNo;
use crate::store::{
    BatchLimits, ConsumerRecord, ConsumerStatus, HolderProcess, Start, StoreView, StoredEntry,
};
use crate::wire::call::{Args, CallError};
use crate::wire::filter::EntryFilter;
use crate::wire::msgpack::{Time, Writer, or_absent};

/// A position in the log; without any field, the caller's default.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct StartArgs {
    to: Option<String>,
    time: Option<i64>,
    seq: Option<u64>,
}

impl StartArgs {
    pub(super) fn start(&self) -> Result<Option<Start>, CallError> {
        let given = [self.to.is_some(), self.time.is_some(), self.seq.is_some()];
        // Which one counts would be a guess.
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(CallError::Argument(
                "give only one of `to`, `time` and `seq`".to_owned(),
            ));
        }

        Ok(match (self.to.as_deref(), self.time, self.seq) {
            (Some("oldest"), ..) => Some(Start::Oldest),
            (Some("newest"), ..) => Some(Start::Newest),
            (Some(_), ..) => {
                return Err(CallError::BadArgs {
                    key: "to",
                    expected: "oldest or newest",
                });
            }
            (None, Some(time), _) => Some(Start::Time(Micros(time))),
            (None, None, Some(seq)) => Some(Start::Seq(SeqNo(seq))),
            (None, None, None) => None,
        })
    }
}

answers! {
    /// Consumers.
    ConsumersPage {
        consumers: Vec<Consumer>,
    }
    /// A consumer.
    Consumer {
        name: String,
        time: Time,
        #[serde(rename = "match")]
        scopes: Json,
        search: Json,
        #[serde(rename = "where")]
        condition: Option<String>,
        /// The sequence number of the next event.
        cursor: u64,
        lag_entries: u64,
        lag_s: u64,
        paused: bool,
        pin: bool,
        lost: Option<LostRange>,
        error: Option<Problem>,
        holder: Option<String>,
        lease_s: Option<u64>,
    }
    /// Entries that retention dropped before the consumer had read them.
    LostRange {
        first: u64,
        last: u64,
        entries: u64,
    }
    /// An error with its time.
    Problem {
        time: Time,
        message: String,
    }
    /// The position of a consumer or a sink.
    Position {
        #[serde(serialize_with = "or_absent")]
        name: Option<String>,
        #[serde(serialize_with = "or_absent")]
        cursor: Option<u64>,
        #[serde(serialize_with = "or_absent")]
        paused: Option<bool>,
    }
    /// Whether retention keeps the unprocessed events of a consumer.
    Pinned {
        name: String,
        pin: bool,
    }
    /// An event that the filter of a reader could not be evaluated for: that would take too long.
    Unfiltered {
        id: String,
        seq: u64,
        reason: String,
    }
    /// Events by group, as far as the log was read.
    EventCounts {
        count: u64,
        groups: Option<Vec<EventGroup>>,
        /// Events of groups beyond the limit of their number.
        others: Option<u64>,
        next: Option<u64>,
    }
    /// Events with the same key.
    EventGroup {
        key: String,
        count: u64,
    }
}

#[derive(Deserialize)]
struct NameArgs {
    name: String,
}

#[derive(Deserialize)]
struct CreateArgs {
    name: String,
    #[serde(flatten)]
    filter: FilterArgs,
    #[serde(flatten)]
    start: StartArgs,
}

/// The filter among other arguments.
#[derive(Deserialize, Default)]
pub(super) struct FilterArgs {
    #[serde(default, rename = "match")]
    scopes: Json,
    #[serde(default)]
    search: Json,
    #[serde(default, rename = "where")]
    condition: Json,
}

impl FilterArgs {
    pub(super) fn filter(self) -> Result<EntryFilter, CallError> {
        let mut filter = serde_json::Map::new();
        for (key, value) in [
            ("match", self.scopes),
            ("search", self.search),
            ("where", self.condition),
        ] {
            // Absent arguments would otherwise be values of the wrong type.
            if !value.is_null() {
                filter.insert(key.to_owned(), value);
            }
        }

        // Through serde, so that the message names the argument and the place in it.
        serde_path_to_error::deserialize(Json::Object(filter)).map_err(|error| {
            CallError::Argument(format!("argument `{}`: {}", error.path(), error.inner()))
        })
    }
}

#[derive(Deserialize)]
struct NextArgs {
    name: String,
    holder: String,
    limit: Option<usize>,
    bytes: Option<usize>,
    lease_s: Option<u64>,
    wait_ms: Option<u64>,
    #[serde(default)]
    bound: bool,
}

#[derive(Deserialize)]
struct AckArgs {
    name: String,
    holder: String,
    seq: u64,
}

#[derive(Deserialize)]
struct NackArgs {
    name: String,
    holder: String,
    error: String,
}

#[derive(Deserialize)]
struct HolderArgs {
    name: String,
    holder: String,
}

#[derive(Deserialize)]
struct SeekArgs {
    name: String,
    #[serde(flatten)]
    start: StartArgs,
}

#[derive(Deserialize)]
struct PinArgs {
    name: String,
    #[serde(default)]
    release: bool,
}

#[derive(Deserialize)]
struct FollowArgs {
    #[serde(flatten)]
    filter: FilterArgs,
    #[serde(flatten)]
    start: StartArgs,
    limit: Option<usize>,
    bytes: Option<usize>,
    wait_ms: Option<u64>,
}

#[derive(Deserialize)]
struct CountArgs {
    #[serde(flatten)]
    filter: FilterArgs,
    since: Option<i64>,
    until: Option<i64>,
    from: Option<u64>,
    by: Option<GroupBy>,
}

/// Key by which events are counted.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum GroupBy {
    Function,
    Minion,
    Hour,
    Class,
}

impl GroupBy {
    fn key(self, event: &StoredEntry, class: &str) -> String {
        match self {
            Self::Function => event.fun.clone(),
            Self::Minion => event.minion.clone(),
            Self::Hour => event
                .at
                .0
                .div_euclid(HOUR_US)
                .saturating_mul(HOUR_US)
                .to_string(),
            Self::Class => class.to_owned(),
        }
    }
}

const HOUR_US: i64 = 3_600_000_000;

fn row(status: &ConsumerStatus) -> Consumer {
    let record = &status.record;
    let lost = record.lost.map(|lost| LostRange {
        first: lost.first.0,
        last: lost.last.0,
        entries: lost.entries,
    });
    let error = record.error.as_ref().map(|error| Problem {
        time: Time(error.at),
        message: error.message.clone(),
    });

    let lease = status.lease.as_ref();
    Consumer {
        name: record.name.clone(),
        time: Time(record.created),
        scopes: json!(record.filter.scopes),
        search: json!(record.filter.search),
        condition: record
            .filter
            .condition
            .as_ref()
            .map(|condition| condition.as_str().to_owned()),
        cursor: record.cursor.0,
        lag_entries: status.lag_entries,
        lag_s: status.lag.as_secs(),
        paused: record.paused,
        pin: record.pin,
        lost,
        error,
        holder: lease.map(|(holder, _)| holder.clone()),
        lease_s: lease.map(|(_, left)| left.as_secs()),
    }
}

fn at(record: &ConsumerRecord) -> Position {
    Position {
        cursor: Some(record.cursor.0),
        ..Position::default()
    }
}

fn named(record: ConsumerRecord) -> Position {
    Position {
        cursor: Some(record.cursor.0),
        name: Some(record.name),
        paused: None,
    }
}

pub(super) fn list(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let mut consumers = ctx.store.consumers().map_err(failed)?;
    if let Some(name) = args.text("name")? {
        consumers.retain(|status| status.record.name == name);
        if consumers.is_empty() {
            return Err(CallError::Refused(format!(
                "consumer {name:?} does not exist"
            )));
        }
    }
    document(&ConsumersPage {
        consumers: consumers.iter().map(row).collect(),
    })
}

pub(super) fn create(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let CreateArgs {
        name,
        filter,
        start,
    } = typed(args)?;

    let start = start.start()?.unwrap_or(Start::Newest);
    let record = ctx
        .store
        .create_consumer(&name, filter.filter()?, start)
        .map_err(refused)?;
    document(&named(record))
}

pub(super) fn next(_: &Ctx, args: &Args<'_>, caller: &Caller) -> Result<Poll, CallError> {
    let NextArgs {
        name,
        holder,
        limit,
        bytes,
        lease_s,
        wait_ms,
        bound,
    } = typed(args)?;

    // With `bound` the lease ends with the process, so that a killed consumer does not keep the
    // next one waiting.
    let process = caller.pid.filter(|_| bound).and_then(HolderProcess::find);

    let limits = BatchLimits {
        events: limit
            .unwrap_or(CONSUMER_BATCH_EVENTS)
            .clamp(1, LIST_ROWS_MAX),
        bytes: bytes
            .unwrap_or(CONSUMER_BATCH_BYTES)
            .clamp(1, LIST_BYTES_MAX),
    };

    let wait = Duration::from_millis(wait_ms.unwrap_or(0));
    // The holder keeps the consumer while it waits.
    let lease = lease_s
        .map_or(CONSUMER_LEASE, Duration::from_secs)
        .saturating_add(wait);
    Ok(Poll::new(wait_ms, FOLLOW_GATHER, move |ctx, is_last| {
        let batch = ctx
            .store
            .next_batch(&name, &holder, lease, limits)
            .map_err(refused)?;
        // The lease that is bound exists only now.
        if let Some(process) = process {
            ctx.store
                .bind_lease(&name, &holder, process)
                .map_err(refused)?;
        }
        // A pause ends by an administrator and not by an entry, so there is no position to wait
        // for.
        if batch.events.is_empty() && !is_last {
            return Ok(match (batch.paused, batch.is_end) {
                (true, _) => Attempt::Idle,
                (false, true) => Attempt::After(batch.next),
                (false, false) => Attempt::Again,
            });
        }

        let mut w = Writer::new();
        w.map(4);
        write_events(&StoreView::whole(&ctx.store), &mut w, &batch.events);
        w.str("next")
            .uint(batch.next.0)
            .str("more")
            .bool(!batch.is_end && !batch.paused);
        w.str("paused").bool(batch.paused);
        Ok(Attempt::Done(w.into_bytes()))
    }))
}

fn write_events(store: &StoreView, w: &mut Writer, events: &[StoredEntry]) {
    w.str("events").array(events.len());
    for event in events {
        write_event(store, w, event);
    }
}

pub(super) fn ack(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let AckArgs { name, holder, seq } = typed(args)?;
    let record = ctx.store.ack(&name, &holder, SeqNo(seq)).map_err(refused)?;
    document(&at(&record))
}

pub(super) fn nack(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let NackArgs {
        name,
        holder,
        error,
    } = typed(args)?;
    let record = ctx.store.nack(&name, &holder, &error).map_err(refused)?;
    document(&at(&record))
}

pub(super) fn release(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let HolderArgs { name, holder } = typed(args)?;
    ctx.store
        .release_consumer(&name, &holder)
        .map_err(refused)?;
    document(&())
}

pub(super) fn seek(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let SeekArgs { name, start } = typed(args)?;
    let Some(start) = start.start()? else {
        return Err(CallError::Argument(
            "give one of `to`, `time` and `seq`".to_owned(),
        ));
    };
    let record = ctx.store.seek_consumer(&name, start).map_err(refused)?;
    document(&named(record))
}

fn set_paused(ctx: &Ctx, args: &Args<'_>, paused: bool) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    let record = ctx.store.pause_consumer(&name, paused).map_err(refused)?;
    document(&Position {
        name: Some(record.name),
        paused: Some(record.paused),
        cursor: None,
    })
}

pub(super) fn pause(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    set_paused(ctx, args, true)
}

pub(super) fn resume(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    set_paused(ctx, args, false)
}

pub(super) fn pin(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let PinArgs { name, release } = typed(args)?;
    let record = ctx.store.pin_consumer(&name, !release).map_err(refused)?;
    document(&Pinned {
        name: record.name,
        pin: record.pin,
    })
}

pub(super) fn delete(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    document(&ctx.store.delete_consumer(&name).map_err(refused)?)
}

pub(super) fn follow(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Poll, CallError> {
    let FollowArgs {
        filter,
        start,
        limit,
        bytes,
        wait_ms,
    } = typed(args)?;

    let filter = filter.filter()?;
    let start = start.start()?.unwrap_or(Start::Newest);
    let bytes = bytes.unwrap_or(LIST_BYTES_MAX).clamp(1, LIST_BYTES_MAX);

    let limit = limit
        .unwrap_or(CONSUMER_BATCH_EVENTS)
        .clamp(1, LIST_ROWS_MAX);

    let (mut position, mut gap) = (None, None);

    let answer = move |ctx: &ReadCtx<'_>, is_last: bool| {
        let store = &ctx.store;
        // In the first attempt, because a time is searched for on the disk, and only attempts have
        // a thread for that.
        let from = if let Some(position) = position {
            position
        } else {
            let from = store.position(start).map_err(failed)?;
            // Only a caller that names a number continues at a position of its own, behind which
            // entries can be missing.
            if let Start::Seq(seq) = start {
                gap = store.gap_before(seq, from);
            }
            from
        };

        let found = store
            .select(&filter, from, store.durable(), limit, bytes)
            .map_err(failed)?;
        position = Some(found.next);

        let unfiltered = found.too_costly.map(|(seq, error)| {
            ctx.metrics.filters_too_costly.add(1);
            Unfiltered {
                id: store.id_at(seq),
                seq: seq.0,
                reason: format!("event {seq}: {error}"),
            }
        });

        let is_empty = found.events.is_empty() && gap.is_none() && unfiltered.is_none();
        if is_empty && !is_last {
            return Ok(if found.is_end {
                Attempt::After(found.next)
            } else {
                Attempt::Again
            });
        }
        // The gap comes first and once: `take` leaves none for the next attempt.
        let events: Vec<_> = gap.take().into_iter().chain(found.events).collect();

        let mut w = Writer::new();
        w.map(if unfiltered.is_some() { 4 } else { 3 });
        write_events(store, &mut w, &events);
        // The event may match, so the caller is told that it is passed. It ended the search, so it
        // comes behind the others, and an error instead of them would lose those.
        if let Some(unfiltered) = unfiltered {
            w.str("unfiltered").raw(&document(&unfiltered)?);
        }
        w.str("next")
            .uint(found.next.0)
            .str("more")
            .bool(!found.is_end);
        Ok(Attempt::Done(w.into_bytes()))
    };
    Ok(Poll::limited(ctx, wait_ms, FOLLOW_GATHER, answer))
}

pub(super) fn count(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let CountArgs {
        filter,
        since,
        until,
        from,
        by,
    } = typed(args)?;

    let filter = filter.filter()?;
    // `next` of the page before is the more exact one.
    let start = match (from, since) {
        (Some(seq), _) => Start::Seq(SeqNo(seq)),
        (None, Some(time)) => Start::Time(Micros(time)),
        (None, None) => Start::Oldest,
    };

    let from = ctx.store.position(start).map_err(failed)?;
    // The times are also compared below: the entries of an import are in no order.
    let upto = match until {
        Some(until) => ctx.store.end_before(Micros(until)).map_err(failed)?,
        None => ctx.store.durable(),
    };
    let found = ctx
        .store
        .select(&filter, from, upto, usize::MAX, LIST_BYTES_MAX)
        .map_err(failed)?;

    if let Some((seq, error)) = found.too_costly {
        ctx.metrics.filters_too_costly.add(1);
        return Err(CallError::Refused(format!("event {seq}: {error}")));
    }

    let in_time = |event: &StoredEntry| {
        since.is_none_or(|since| event.at.0 >= since)
            && until.is_none_or(|until| event.at.0 < until)
    };

    let next = (!found.is_end).then_some(found.next.0);
    // Twice through the events instead of a copy of those in time.
    let events = || {
        found
            .events
            .iter()
            .zip(&found.classes)
            .filter(|(event, _)| in_time(event))
    };

    let groups = by.map(|by| {
        let (mut groups, mut others) = (BTreeMap::<String, u64>::new(), 0);
        for (event, class) in events() {
            let key = by.key(event, class);
            // Groups are bounded, because names come from minions.
            if groups.len() < COUNT_GROUPS_MAX || groups.contains_key(&key) {
                *groups.entry(key).or_default() += 1;
            } else {
                others += 1;
            }
        }

        let groups = groups
            .into_iter()
            .map(|(key, count)| EventGroup { key, count });
        (groups.collect(), others)
    });

    let (groups, others) = groups.unzip();
    document(&EventCounts {
        count: events().count() as u64,
        groups,
        others,
        next,
    })
}
