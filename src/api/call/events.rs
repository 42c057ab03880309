//! Calls about events and entries.

use std::borrow::Cow;
use std::collections::BTreeMap;

use salt_sls::Glob;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

use super::poll::{Attempt, Poll};
use super::{
    Archive, Call, Cursor, In, Limited, OF_EVENTS, OwnMaster, ReadCtx, Run, Wait, Whole, failed,
};
use crate::base::limits::{
    CONSUMER_BATCH_EVENTS, COUNT_GROUPS_MAX, FOLLOW_GATHER, LIST_BYTES_MAX, LIST_ROWS_MAX,
};
use crate::base::named::{Named as _, named};
use crate::model::{EventFilter, Flags, Kind, Limit, SeqNo, Source};
use crate::store::{EventPage, JobPart, Start, StoreView, StoredEntry};
use crate::wire::call::{CallError, Id};
use crate::wire::filter::EntryFilter;
use crate::wire::msgpack::{Stored, Time, or_absent};

/// Rows of a list, unless the caller wants another number.
pub(super) const LIST_ROWS: usize = 20;

answers! {
    /// An event.
    EventRow {
        /// Identifies the event, even when it is redelivered: the store and the sequence number.
        id: String,
        seq: u64,
        time: Time,
        tag: String,
        source: EventSource,
        #[serde(skip_serializing_if = "Option::is_none")]
        jid: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        minion: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fun: Option<String>,
        /// The id of the master that fired it; absent if this host's master did and its id is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        master: Option<String>,
        data: Stored,
    }
    /// Events, the latest first unless requested otherwise.
    EventsPage {
        events: Vec<EventRow>,
        /// Whether more follow. There may be fewer events than `limit`: a search ends when it has looked at 64 MiB.
        more: bool,
        /// The `cursor` with which the search continues.
        next: Option<Cursor>,
        /// What was searched; zero under limits.
        scan: Scan,
    }
    /// What a search has read and what summaries excluded.
    Scan {
        segments: u64,
        segments_skipped: u64,
        blocks: u64,
        blocks_skipped: u64,
        entries: u64,
    }
    /// Events from a position on, in the order of the log.
    FollowedEvents {
        events: Vec<EventRow>,
        /// An event behind them that the filter could not be evaluated for.
        #[serde(serialize_with = "or_absent")]
        unfiltered: Option<Unfiltered>,
        /// `seq` of the next call.
        next: u64,
        /// Whether more are stored already.
        more: bool,
    }
    /// An event that the filter of a reader could not be evaluated for: that would take too long. It may match.
    Unfiltered {
        id: String,
        seq: u64,
        reason: String,
    }
    /// Events by group, as far as the log was read.
    #[schemars(rename = "EventCount")]
    EventCounts {
        count: u64,
        groups: Option<Vec<EventGroup>>,
        /// Events of groups beyond the limit of their number.
        others: Option<u64>,
        /// The search has not reached the end: `from` with which it continues.
        next: Option<u64>,
    }
    /// Events with the same key.
    EventGroup {
        key: String,
        count: u64,
    }
    /// Entries as stored.
    EntriesPage {
        entries: Vec<EntryRow>,
        /// `from` of the next page.
        next: Option<u64>,
        /// Where the durable part of the log ends.
        durable: u64,
    }
    /// An entry as stored.
    #[schemars(rename = "Entry")]
    EntryRow {
        seq: u64,
        kind: Kind,
        time: Time,
        on_bus: bool,
        /// Whether a returner call brought a return; absent if its source does not tell.
        #[serde(serialize_with = "or_absent")]
        confirmed: Option<bool>,
        /// Binary.
        #[serde(serialize_with = "or_absent")]
        tag: Stored,
        #[serde(serialize_with = "or_absent")]
        jid: Option<String>,
        #[serde(serialize_with = "or_absent")]
        minion: Option<String>,
        #[serde(serialize_with = "or_absent")]
        fun: Option<String>,
        /// The id of the master that it came from.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
        /// Binary: the body, byte for byte as its master fired it.
        body: Stored,
    }
}

/// The source of an event; none for the daemon itself, whose name is `saltcellar`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EventSource(pub(crate) Option<Source>);

impl EventSource {
    /// The name of the daemon as a source.
    const OWN: &'static str = "saltcellar";

    pub(crate) fn name(self) -> &'static str {
        self.0.map_or(Self::OWN, Source::name)
    }

    /// Whether the daemon read it from a bus.
    pub(crate) fn is_bus(self) -> bool {
        matches!(self.0, Some(Source::Bus | Source::SpilledBus))
    }
}

impl Serialize for EventSource {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for EventSource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(from)?;
        if text == Self::OWN {
            return Ok(Self(None));
        }
        let source = Source::named(&text);
        source
            .map(|source| Self(Some(source)))
            .ok_or_else(|| D::Error::unknown_variant(&text, Source::NAMES))
    }
}

impl JsonSchema for EventSource {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "EventSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = [Source::NAMES, &[Self::OWN]].concat();
        json_schema!({ "type": "string", "enum": names })
    }
}

impl Scan {
    /// Adds what another page of the same search has read.
    pub(crate) fn add(&mut self, page: &Self) {
        self.segments += page.segments;
        self.segments_skipped += page.segments_skipped;
        self.blocks += page.blocks;
        self.blocks_skipped += page.blocks_skipped;
        self.entries += page.entries;
    }
}

/// The string, unless it is empty.
fn text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl EventRow {
    pub(super) fn of(store: &StoreView, master: &OwnMaster, event: StoredEntry) -> Self {
        Self {
            id: store.event_id(&event),
            seq: event.seq.0,
            time: Time(event.at),
            // Any program may fire an event under any tag, but only the daemon records gaps.
            source: EventSource(Some(event.source).filter(|_| event.kind != Kind::Gap)),
            tag: String::from_utf8_lossy(&event.tag).into_owned(),
            jid: text(event.jid),
            minion: text(event.minion),
            fun: text(event.fun),
            master: master.shown(&event.origin),
            data: Stored::of_data(event.body),
        }
    }

    pub(super) fn all(
        store: &StoreView,
        master: &OwnMaster,
        events: Vec<StoredEntry>,
    ) -> Vec<Self> {
        events
            .into_iter()
            .map(|event| Self::of(store, master, event))
            .collect()
    }
}

/// The filter among other arguments.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct FilterArgs {
    /// Alternatives as in `match` of a sink: [{"tag": GLOB, "fun": GLOB, ...}, ...]
    #[serde(rename = "match", skip_serializing_if = "Json::is_null")]
    #[schemars(with = "Vec<BTreeMap<String, Json>>")]
    pub(crate) scopes: Json,
    /// Only events with this text in their data
    #[serde(skip_serializing_if = "Json::is_null")]
    #[schemars(with = "Option<String>")]
    pub(crate) search: Json,
    /// Only events for which this expression over `tag` and `data` is true
    #[serde(rename = "where", skip_serializing_if = "Json::is_null")]
    #[schemars(with = "Option<String>")]
    pub(crate) condition: Json,
}

impl FilterArgs {
    /// The filter at the daemon of this master.
    pub(in crate::api) fn filter(&self, master: &OwnMaster) -> Result<EntryFilter, CallError> {
        // Through serde, because its error names the argument and the place in it. Absent arguments
        // are left out: they would be values of the wrong type.
        let filter =
            serde_json::to_value(self).map_err(|error| CallError::Internal(error.to_string()))?;
        let filter: EntryFilter = serde_path_to_error::deserialize(filter).map_err(|error| {
            CallError::Argument(format!("argument `{}`: {}", error.path(), error.inner()))
        })?;
        Ok(filter.beside(master.id()))
    }
}

/// A position in the log; without any field, the caller's default.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct StartArgs {
    /// oldest or newest
    pub(crate) to: Option<End>,
    /// The first event since this time
    pub(crate) time: Option<Time>,
    /// This sequence number
    pub(crate) seq: Option<u64>,
}

/// An end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", rename_all = "lowercase")]
pub(crate) enum End {
    Oldest,
    Newest,
}

impl TryFrom<String> for End {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        match text.as_str() {
            "oldest" => Ok(Self::Oldest),
            "newest" => Ok(Self::Newest),
            // With the name: serde does not know it within a flattened struct.
            _ => Err("argument `to`: expected oldest or newest"),
        }
    }
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

        Ok(match (self.to, self.time, self.seq) {
            (Some(End::Oldest), ..) => Some(Start::Oldest),
            (Some(End::Newest), ..) => Some(Start::Newest),
            (None, Some(Time(time)), _) => Some(Start::Time(time)),
            (None, None, Some(seq)) => Some(Start::Seq(SeqNo(seq))),
            (None, None, None) => None,
        })
    }

    /// As [`Self::start`], of a caller that has to name one.
    pub(super) fn required(&self) -> Result<Start, CallError> {
        self.start()?
            .ok_or_else(|| CallError::Argument("give one of `to`, `time` and `seq`".to_owned()))
    }
}

/// `events_list`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Maximum number of rows
    pub(crate) limit: Option<usize>,
    /// Start of the time range
    pub(crate) since: Option<Time>,
    /// End of the time range
    pub(crate) until: Option<Time>,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Only events fired by a master whose id matches this glob
    pub(crate) master: Option<Glob>,
    /// Only tags that match this glob
    pub(crate) tag: Option<Glob>,
    /// Only events of this job
    pub(crate) jid: Option<Id>,
    #[serde(flatten)]
    pub(crate) filter: FilterArgs,
    /// false reverses the rows of the page
    pub(crate) newest_first: Option<bool>,
    /// Only events before this sequence number
    pub(crate) before: Option<u64>,
    /// `next` of the previous page, instead of `before`
    pub(crate) cursor: Option<Cursor>,
}

impl Call for List {
    const NAME: &'static str = "events_list";
    const DOC: &'static str = "List events, the latest first";
    const APPLIES: &'static [Limit] = OF_EVENTS;
    type Scope = Limited;
    type Args<'a> = ListArgs;
    type Answer = EventsPage;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, args: ListArgs) -> Result<EventsPage, CallError> {
        let filter = EventFilter {
            tag: args.tag,
            jid: args.jid.map(|Id(jid)| jid),
            minion: args.minion,
            masters: args.master.map(|ids| ctx.master.masters(ids)),
            since: args.since.map(|Time(at)| at),
            until: args.until.map(|Time(at)| at),
            reactions: false,
        };

        let store = ctx.store.id();
        // A cursor of another store is an error. A number alone cannot be checked.
        let before = match &args.cursor {
            Some(cursor) => cursor.seq(&store)?,
            None => args.before.map_or(ctx.store.durable(), SeqNo),
        };

        let limit = args.limit.unwrap_or(LIST_ROWS).min(LIST_ROWS_MAX);
        // One more than requested shows whether more follow.
        let wanted = limit.saturating_add(1);
        let select = args.filter.filter(ctx.master)?;

        let page = ctx
            .store
            .search_events(&filter, &select, before, wanted, LIST_BYTES_MAX)
            .map_err(failed)?;

        // Without this event the page would be wrong, and the filter can be made cheaper.
        if let Some((seq, error)) = page.too_costly {
            ctx.metrics.conditions_too_costly.add(1);
            return Err(CallError::Refused(format!("event {seq}: {error}")));
        }

        let stats = page.stats;
        let EventRows {
            mut events,
            more,
            next,
        } = EventRows::of(page, limit);

        // The page contains the newest events in either case; only the order of its rows differs.
        if args.newest_first == Some(false) {
            events.reverse();
        }

        Ok(EventsPage {
            events: EventRow::all(&ctx.store, ctx.master, events),
            more,
            next: next.map(|seq| Cursor::new(&store, seq)),
            scan: Scan {
                segments: stats.segments,
                segments_skipped: stats.segments_skipped,
                blocks: stats.blocks,
                blocks_skipped: stats.blocks_skipped,
                entries: stats.entries,
            },
        })
    }
}

/// What a list shows of a page that was searched with a limit of one row more.
pub(super) struct EventRows {
    /// The latest first.
    pub(super) events: Vec<StoredEntry>,
    /// Whether there may be others.
    pub(super) more: bool,
    /// Where the search continues, if there may be others.
    pub(super) next: Option<SeqNo>,
}

impl EventRows {
    pub(super) fn of(page: EventPage, limit: usize) -> Self {
        let EventPage {
            mut events, next, ..
        } = page;

        let bytes: usize = events.iter().map(|e| e.body.len() + e.tag.len()).sum();
        // The event that exceeds the byte limit is sent only if it is the first one.
        let keep = if bytes > LIST_BYTES_MAX {
            (events.len() - 1).clamp(1, limit.max(1))
        } else {
            limit
        };

        let more = events.len() > keep || bytes > LIST_BYTES_MAX || next.is_some();
        // Where the search ended, unless rows are left out here.
        let next = next.filter(|_| events.len() <= keep);
        events.truncate(keep);

        let last = events.last().map(|last| last.seq);
        Self {
            events,
            more,
            next: next.or(last).filter(|_| more),
        }
    }
}

/// `events_follow`.
pub(crate) struct Follow;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FollowArgs {
    #[serde(flatten)]
    pub(crate) filter: FilterArgs,
    #[serde(flatten)]
    pub(crate) start: StartArgs,
    /// Maximum number of events
    pub(crate) limit: Option<usize>,
    /// Bytes of events after which the response ends, at most and by default 16 MiB
    pub(crate) bytes: Option<usize>,
    /// Wait so long for events, at most 10000
    pub(crate) wait_ms: Option<u64>,
}

impl Call for Follow {
    const NAME: &'static str = "events_follow";
    const DOC: &'static str = "Wait for events from a position on";
    const APPLIES: &'static [Limit] = OF_EVENTS;
    type Scope = Limited;
    type Args<'a> = FollowArgs;
    type Answer = FollowedEvents;
}

impl Wait for Follow {
    fn start(ctx: &In<'_, Self>, args: FollowArgs) -> Result<Poll<FollowedEvents>, CallError> {
        let from = FollowFrom {
            filter: args.filter.filter(ctx.master)?,
            start: args.start.start()?.unwrap_or(Start::Newest),
            limit: args.limit.unwrap_or(CONSUMER_BATCH_EVENTS),
            bytes: args.bytes.unwrap_or(LIST_BYTES_MAX),
        };
        Ok(follow(ctx, from, args.wait_ms))
    }
}

/// Which events to follow, and how many at a time.
#[derive(Clone)]
pub(in crate::api) struct FollowFrom {
    pub(in crate::api) filter: EntryFilter,
    pub(in crate::api) start: Start,
    pub(in crate::api) limit: usize,
    pub(in crate::api) bytes: usize,
}

/// The next events from a position on, after at most `wait_ms`.
pub(in crate::api) fn follow(
    ctx: &ReadCtx<'_>,
    from: FollowFrom,
    wait_ms: Option<u64>,
) -> Poll<FollowedEvents> {
    let FollowFrom {
        filter,
        start,
        limit,
        bytes,
    } = from;

    let limit = limit.clamp(1, LIST_ROWS_MAX);
    let bytes = bytes.clamp(1, LIST_BYTES_MAX);

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

        // It may match, so the caller is told that it is passed. It ended the search, so it comes
        // behind the others, and an error instead of them would lose those.
        let unfiltered = found.too_costly.map(|(seq, error)| {
            ctx.metrics.conditions_too_costly.add(1);
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
        let events = gap.take().into_iter().chain(found.events).collect();

        Ok(Attempt::Done(FollowedEvents {
            events: EventRow::all(store, ctx.master, events),
            unfiltered,
            next: found.next.0,
            more: !found.is_end,
        }))
    };

    Poll::limited(ctx, wait_ms, FOLLOW_GATHER, answer)
}

/// `events_count`.
pub(crate) struct Count;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CountArgs {
    /// Start of the time range
    pub(crate) since: Option<Time>,
    /// End of the time range
    pub(crate) until: Option<Time>,
    #[serde(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only events before this sequence number
    pub(crate) before: Option<u64>,
    /// Start with this sequence number: `next` of the previous response
    pub(crate) from: Option<u64>,
    /// Also the numbers by this key: function, minion, hour or class
    pub(crate) by: Option<GroupBy>,
}

/// Key by which events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupBy {
    Function,
    Minion,
    Hour,
    Class,
}

named! {
    GroupBy {
        Function: "function",
        Minion: "minion",
        Hour: "hour",
        Class: "class",
    }
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

impl Call for Count {
    const NAME: &'static str = "events_count";
    const DOC: &'static str = "Count events";
    const APPLIES: &'static [Limit] = OF_EVENTS;
    type Scope = Limited;
    type Args<'a> = CountArgs;
    type Answer = EventCounts;
}

impl Run for Count {
    fn run(ctx: &In<'_, Self>, args: CountArgs) -> Result<EventCounts, CallError> {
        let filter = args.filter.filter(ctx.master)?;
        let [since, until] = [args.since, args.until].map(|at| at.map(|Time(at)| at));

        // `next` of the page before is the more exact one.
        let start = match (args.from, since) {
            (Some(seq), _) => Start::Seq(SeqNo(seq)),
            (None, Some(time)) => Start::Time(time),
            (None, None) => Start::Oldest,
        };

        let from = ctx.store.position(start).map_err(failed)?;
        // Timestamps are compared again below, because imported entries are in no order.
        let upto = match until {
            Some(until) => ctx.store.end_before(until).map_err(failed)?,
            None => ctx.store.durable(),
        };
        let upto = args.before.map_or(upto, |before| upto.min(SeqNo(before)));
        let found = ctx
            .store
            .select(&filter, from, upto, usize::MAX, LIST_BYTES_MAX)
            .map_err(failed)?;

        if let Some((seq, error)) = found.too_costly {
            ctx.metrics.conditions_too_costly.add(1);
            return Err(CallError::Refused(format!("event {seq}: {error}")));
        }

        let in_time = |event: &StoredEntry| {
            since.is_none_or(|since| event.at >= since)
                && until.is_none_or(|until| event.at < until)
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

        let groups = args.by.map(|by| {
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
        Ok(EventCounts {
            count: events().count() as u64,
            groups,
            others,
            next,
        })
    }
}

/// `entries`: of one job, or of the whole log.
pub(crate) struct Entries;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EntriesArgs {
    /// Only the entries of this job
    pub(crate) jid: Option<Id>,
    /// Start with this sequence number
    pub(crate) from: Option<u64>,
    /// Only entries before this sequence number
    pub(crate) until: Option<u64>,
    /// Also events; without a job only entries of jobs are listed
    #[serde(default)]
    pub(crate) all: bool,
}

impl Call for Entries {
    const NAME: &'static str = "entries";
    const DOC: &'static str = "List stored entries of a job or of the log";
    type Scope = Whole<Archive>;
    type Args<'a> = EntriesArgs;
    type Answer = EntriesPage;
}

impl Run for Entries {
    fn run(ctx: &In<'_, Self>, args: EntriesArgs) -> Result<EntriesPage, CallError> {
        let durable = ctx.store.durable();
        // After a crash, numbers beyond the durable position may be given to other entries.
        let from = args.from.map_or(SeqNo(1), SeqNo);
        let until = args.until.map_or(durable, SeqNo).min(durable);

        let (found, next) = if let Some(Id(jid)) = args.jid {
            let part = JobPart {
                bytes_max: LIST_BYTES_MAX,
                ..JobPart::of((from, until))
            };
            let page = ctx.store.job_page(&jid, part).map_err(failed)?;
            (page.entries, page.next)
        } else {
            // Events fill most of the log, and readers of jobs do not need them.
            let of_jobs = |kind| !matches!(kind, Kind::Event | Kind::Register | Kind::Gap);
            let wanted = |kind, _| args.all || of_jobs(kind);

            let (found, next) = ctx
                .store
                .entries_from(from, until, LIST_BYTES_MAX, wanted)
                .map_err(failed)?;
            (found, Some(next).filter(|next| *next < until))
        };

        Ok(EntriesPage {
            entries: found
                .into_iter()
                .map(|entry| entry_row(ctx.master, entry))
                .collect(),
            next: next.map(|next| next.0),
            durable: durable.0,
        })
    }
}

fn entry_row(master: &OwnMaster, entry: StoredEntry) -> EntryRow {
    let unconfirmed = entry.flags.has(Flags::UNCONFIRMED);
    // For an event from a bus, confirmation has no meaning.
    let confirmed = match entry.kind {
        Kind::Return if unconfirmed => Some(false),
        Kind::Return if entry.source.confirms() => Some(true),
        _ => None,
    };

    EntryRow {
        seq: entry.seq.0,
        kind: entry.kind,
        time: Time(entry.at),
        on_bus: entry.flags.has(Flags::ON_BUS),
        confirmed,
        tag: if entry.tag.is_empty() {
            Stored::None
        } else {
            Stored::binary(&entry.tag)
        },
        jid: text(entry.jid),
        minion: text(entry.minion),
        fun: text(entry.fun),
        master: master.shown(&entry.origin),
        body: Stored::binary(&entry.body),
    }
}
