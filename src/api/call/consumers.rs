//! Calls of consumers.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::events::{EventRow, FilterArgs, StartArgs};
use super::poll::{Attempt, Poll};
use super::store::refused;
use super::{Archive, Call, Changing, Cursor, In, Raised, Run, Wait, Whole, failed};
use crate::base::limits::{
    CONSUMER_BATCH_BYTES, CONSUMER_BATCH_EVENTS, CONSUMER_LEASE, FOLLOW_GATHER, LIST_BYTES_MAX,
    LIST_ROWS_MAX,
};
use crate::model::{Right, SeqNo};
use crate::store::{BatchLimits, ConsumerRecord, ConsumerStatus, HolderProcess, Start};
use crate::wire::call::CallError;
use crate::wire::msgpack::{Time, or_absent};

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
    /// A batch of a consumer, oldest first.
    Batch {
        events: Vec<EventRow>,
        /// The position behind them.
        next: Option<Cursor>,
        /// Whether more are stored already.
        more: bool,
        paused: bool,
    }
    /// Whether retention keeps the unprocessed events of a consumer.
    Pinned {
        name: String,
        pin: bool,
    }
}

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

/// `consumers_list`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Only this consumer
    pub(crate) name: Option<String>,
}

impl Call for List {
    const NAME: &'static str = "consumers_list";
    const DOC: &'static str = "List consumers with their lag";
    type Scope = Whole<Archive>;
    type Args<'a> = ListArgs;
    type Answer = ConsumersPage;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, args: ListArgs) -> Result<ConsumersPage, CallError> {
        let mut consumers = ctx.store.consumer_states().map_err(failed)?;
        if let Some(name) = args.name {
            consumers.retain(|status| status.record.name == name);
            if consumers.is_empty() {
                return Err(CallError::Refused(format!(
                    "consumer {name:?} does not exist; `saltcellar consumers list` lists them"
                )));
            }
        }

        Ok(ConsumersPage {
            consumers: consumers.iter().map(row).collect(),
        })
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NameArgs {
    /// The consumer's name
    pub(crate) name: String,
}

/// `consumer_create`.
pub(crate) struct Create;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CreateArgs {
    /// The consumer's name
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) filter: FilterArgs,
    #[serde(flatten)]
    pub(crate) start: StartArgs,
}

impl Call for Create {
    const NAME: &'static str = "consumer_create";
    const DOC: &'static str = "Create a consumer, or change its filter";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = CreateArgs;
    type Answer = Position;
}

impl Run for Create {
    fn run(ctx: &In<'_, Self>, args: CreateArgs) -> Result<Position, CallError> {
        let filter = args.filter.filter(&ctx.master)?;
        let start = args.start.start()?.unwrap_or(Start::Newest);
        let created = ctx.store.consumers().create(&args.name, filter, start);
        Ok(named(created.map_err(refused)?))
    }
}

/// `consumer_next`.
pub(crate) struct Next;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NextArgs {
    /// The consumer's name
    pub(crate) name: String,
    /// The holder of the consumer; over HTTP by default the token's name or the user
    pub(crate) holder: String,
    /// Maximum number of events
    pub(crate) limit: Option<usize>,
    /// Bytes of events after which the batch ends
    pub(crate) bytes: Option<usize>,
    /// How long the holder keeps the consumer, in seconds
    pub(crate) lease_s: Option<u64>,
    /// Wait so long for events, at most 10000
    pub(crate) wait_ms: Option<u64>,
    /// End the lease with the process of the caller, at the local socket
    #[serde(default)]
    pub(crate) bound: bool,
}

impl Call for Next {
    const NAME: &'static str = "consumer_next";
    const DOC: &'static str = "Take the next events of a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = NextArgs;
    type Answer = Batch;
}

impl Wait for Next {
    fn start(ctx: &In<'_, Self>, args: NextArgs) -> Result<Poll<Batch>, CallError> {
        let NextArgs {
            name,
            holder,
            limit,
            bytes,
            lease_s,
            wait_ms,
            bound,
        } = args;

        // With `bound` the lease ends with the process. A killed consumer then does not keep its
        // successor waiting.
        let process = ctx
            .caller
            .pid
            .filter(|_| bound)
            .and_then(HolderProcess::find);

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

        Ok(Poll::changing(
            ctx,
            wait_ms,
            FOLLOW_GATHER,
            move |ctx, is_last| {
                let batch = ctx
                    .store
                    .consumers()
                    .next_batch(&name, &holder, lease, limits)
                    .map_err(refused)?;
                // The lease that is bound exists only now.
                if let Some(process) = process {
                    ctx.store
                        .consumers()
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

                let store = ctx.store.whole_view();
                Ok(Attempt::Done(Batch {
                    next: Some(Cursor::new(&store.id(), batch.next)),
                    more: !batch.is_end && !batch.paused,
                    paused: batch.paused,
                    events: EventRow::all(&store, &ctx.master, batch.events),
                }))
            },
        ))
    }
}

/// `consumer_ack`.
pub(crate) struct Ack;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AckArgs {
    /// The consumer's name
    pub(crate) name: String,
    /// The holder of the consumer; over HTTP by default the token's name or the user
    pub(crate) holder: String,
    /// The last event that was processed
    pub(crate) seq: u64,
}

impl Call for Ack {
    const NAME: &'static str = "consumer_ack";
    const DOC: &'static str = "Acknowledge events of a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = AckArgs;
    type Answer = Position;
}

impl Run for Ack {
    fn run(ctx: &In<'_, Self>, args: AckArgs) -> Result<Position, CallError> {
        let AckArgs { name, holder, seq } = args;
        let record = ctx
            .store
            .consumers()
            .ack(&name, &holder, SeqNo(seq))
            .map_err(refused)?;
        Ok(at(&record))
    }
}

/// `consumer_nack`.
pub(crate) struct Nack;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NackArgs {
    /// The consumer's name
    pub(crate) name: String,
    /// The holder of the consumer; over HTTP by default the token's name or the user
    pub(crate) holder: String,
    /// The reason
    pub(crate) error: String,
}

impl Call for Nack {
    const NAME: &'static str = "consumer_nack";
    const DOC: &'static str = "Report that events could not be processed";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = NackArgs;
    type Answer = Position;
}

impl Run for Nack {
    fn run(ctx: &In<'_, Self>, args: NackArgs) -> Result<Position, CallError> {
        let NackArgs {
            name,
            holder,
            error,
        } = args;
        let record = ctx
            .store
            .consumers()
            .nack(&name, &holder, &error)
            .map_err(refused)?;
        Ok(at(&record))
    }
}

/// `consumer_release`.
pub(crate) struct Release;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReleaseArgs {
    /// The consumer's name
    pub(crate) name: String,
    /// The holder of the consumer; over HTTP by default the token's name or the user
    pub(crate) holder: String,
}

impl Call for Release {
    const NAME: &'static str = "consumer_release";
    const DOC: &'static str = "End the lease of a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = ReleaseArgs;
    type Answer = ();
}

impl Run for Release {
    fn run(ctx: &In<'_, Self>, args: ReleaseArgs) -> Result<(), CallError> {
        ctx.store
            .consumers()
            .release(&args.name, &args.holder)
            .map_err(refused)
    }
}

/// `consumer_seek`.
pub(crate) struct Seek;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SeekArgs {
    /// The consumer's name
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) start: StartArgs,
}

impl Call for Seek {
    const NAME: &'static str = "consumer_seek";
    const DOC: &'static str = "Move the cursor of a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = SeekArgs;
    type Answer = Position;
}

impl Run for Seek {
    fn run(ctx: &In<'_, Self>, args: SeekArgs) -> Result<Position, CallError> {
        let start = args.start.required()?;
        let moved = ctx.store.consumers().seek(&args.name, start);
        Ok(named(moved.map_err(refused)?))
    }
}

fn set_paused(ctx: &Archive, name: &str, paused: bool) -> Result<Position, CallError> {
    let record = ctx.store.consumers().pause(name, paused).map_err(refused)?;
    Ok(Position {
        name: Some(record.name),
        paused: Some(record.paused),
        cursor: None,
    })
}

/// `consumer_pause`.
pub(crate) struct Pause;

impl Call for Pause {
    const NAME: &'static str = "consumer_pause";
    const DOC: &'static str = "Pause a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = NameArgs;
    type Answer = Position;
}

impl Run for Pause {
    fn run(ctx: &In<'_, Self>, args: NameArgs) -> Result<Position, CallError> {
        set_paused(ctx, &args.name, true)
    }
}

/// `consumer_resume`.
pub(crate) struct Resume;

impl Call for Resume {
    const NAME: &'static str = "consumer_resume";
    const DOC: &'static str = "Resume a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = NameArgs;
    type Answer = Position;
}

impl Run for Resume {
    fn run(ctx: &In<'_, Self>, args: NameArgs) -> Result<Position, CallError> {
        set_paused(ctx, &args.name, false)
    }
}

/// `consumer_pin`.
pub(crate) struct Pin;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PinArgs {
    /// The consumer's name
    pub(crate) name: String,
    /// Stop it
    #[serde(default)]
    pub(crate) release: bool,
}

impl Call for Pin {
    const NAME: &'static str = "consumer_pin";
    const DOC: &'static str = "Keep unprocessed events of a consumer, or stop it";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Archive>;
    type Args<'a> = PinArgs;
    type Answer = Pinned;
}

impl Run for Pin {
    fn run(ctx: &In<'_, Self>, args: PinArgs) -> Result<Pinned, CallError> {
        let PinArgs { name, release } = args;
        let record = ctx.store.pin_consumer(&name, !release).map_err(refused)?;
        Ok(Pinned {
            name: record.name,
            pin: record.pin,
        })
    }
}

/// `consumer_delete`.
pub(crate) struct Delete;

impl Call for Delete {
    const NAME: &'static str = "consumer_delete";
    const DOC: &'static str = "Delete a consumer";
    const RIGHT: Right = Right::Write;
    const RAISED: Raised = Raised::ByConsumer;
    type Scope = Changing<Archive>;
    type Args<'a> = NameArgs;
    type Answer = bool;
}

impl Run for Delete {
    fn run(ctx: &In<'_, Self>, args: NameArgs) -> Result<bool, CallError> {
        ctx.store.consumers().delete(&args.name).map_err(refused)
    }
}
