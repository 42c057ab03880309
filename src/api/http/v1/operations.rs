//! All operations of the API, in one table: routes, parameters and the OpenAPI document follow from
//! it.
//!
//! An operation makes one call of the local socket (`api/call/`) and changes only the form of its
//! result.

use std::sync::LazyLock;

use schemars::{Schema, SchemaGenerator};
use serde_json::Value as Json;

use super::super::answer::HttpError;
use super::params::ParamKind::{Count, Flag, Json as JsonValue, SeqCursor, Text, Time};
use super::params::{Param, of_arguments, param};
use super::types::{Answered, Batch, EventCount, EventsPage, Existed, Finish};
use crate::api::call::consumers::{ConsumersPage, Position};
use crate::api::call::jobs::{self, minions};
use crate::api::call::reactor::{ReactionRow, ReactionsPage, ReactorState, Replay, Why};
use crate::api::call::sinks::{DeadLettersPage, SinksPage};
use crate::api::call::{Call, CallEntry, ShowStatus, find, store};
use crate::wire::call::CallError;

pub(super) struct Operation {
    pub(super) method: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    pub(super) call: &'static str,
    /// Replaces the description of the call.
    doc: Option<&'static str>,
    pub(super) params: Vec<Param>,
    pub(super) answer: Shape,
}

impl Operation {
    /// The call that the operation makes, which has the same right. A test checks that all are
    /// known.
    pub(super) fn made(&self) -> Result<&'static CallEntry, CallError> {
        find(self.call)
            .ok_or_else(|| CallError::Internal(format!("{} cannot be called", self.call)))
    }

    /// Its method and path, for messages.
    pub(super) fn name(&self) -> String {
        format!("{} /api/v1{}", self.method, self.path)
    }

    /// The error if there is no answer, which only an unknown job or minion in the path can cause.
    pub(super) fn not_found(&self) -> HttpError {
        let parts = [("{jid}", "job"), ("{minion}", "minion")];
        let what = parts
            .into_iter()
            .find(|(part, _)| self.path.contains(part))
            .map_or("resource", |(_, what)| what);
        HttpError::not_found(format!("the {what} is not known"))
    }

    pub(super) fn summary(&self) -> &'static str {
        self.doc
            .unwrap_or_else(|| self.made().map_or("", |call| call.doc))
    }

    fn doc(self, doc: &'static str) -> Self {
        Self {
            doc: Some(doc),
            ..self
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// The answer of a call that has a type.
    Call {
        schema: fn(&mut SchemaGenerator) -> Schema,
    },
    /// A type of [`super::types`].
    Typed {
        convert: fn(Json, &Finish<'_>) -> Result<Json, serde_json::Error>,
        schema: fn(&mut SchemaGenerator) -> Schema,
    },
    /// Events, whose data is written without an intermediate value.
    Events {
        schema: fn(&mut SchemaGenerator) -> Schema,
    },
    /// Events without an end.
    Stream,
}

const fn typed<T: Answered>() -> Shape {
    Shape::Typed {
        convert: convert::<T>,
        schema: SchemaGenerator::subschema_for::<T>,
    }
}

fn convert<T: Answered>(answer: Json, with: &Finish<'_>) -> Result<Json, serde_json::Error> {
    let mut answer: T = serde_json::from_value(answer)?;
    answer.finish(with);
    serde_json::to_value(answer)
}

/// A reading operation that makes a call. Its parameters are the arguments of the call.
fn get<C: Call>(path: &'static str) -> Operation {
    Operation {
        method: "GET",
        path,
        call: C::NAME,
        doc: None,
        params: of_arguments::<C::Args<'static>>(path),
        answer: Shape::Call {
            schema: SchemaGenerator::subschema_for::<C::Answer>,
        },
    }
}

fn read(path: &'static str, call: &'static str, params: &[Param], answer: Shape) -> Operation {
    change("GET", path, call, params, answer)
}

fn change(
    method: &'static str,
    path: &'static str,
    call: &'static str,
    params: &[Param],
    answer: Shape,
) -> Operation {
    Operation {
        method,
        path,
        call,
        doc: None,
        params: params.to_vec(),
        answer,
    }
}

const LIMIT: Param = param("limit", Count, "Maximum number of rows");
const SINCE: Param = param("since", Time, "Start of the time range");
const UNTIL: Param = param("until", Time, "End of the time range");
const MINION: Param = param("minion", Text, "Only this minion id");
const MATCH: Param = param(
    "match",
    JsonValue,
    "Alternatives as in `match` of a sink: [{\"tag\": GLOB, \"fun\": GLOB, ...}, ...]",
);
const WHERE: Param = param(
    "where",
    Text,
    "Only events for which this expression over `tag` and `data` is true",
);
const CURSOR: Param = param("cursor", SeqCursor, "`next` of the previous page");
const HOLDER: Param = param(
    "holder",
    Text,
    "The holder of the consumer; by default the token's name or the user",
);
const TO: Param = param("to", Text, "oldest or newest");
const TIME: Param = param("time", Time, "The first event since this time");
const SEQ: Param = param("seq", Count, "This sequence number");

const FOLLOW: &str = "Follow events from now on, or from a position: server-sent events, or NDJSON with `Accept: application/x-ndjson`";
const CREATE: &str = "Create a consumer, or change the filter of one; a new one starts with the next event, or at one of `to`, `time`, `seq`";

pub(super) static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    vec![
    get::<ShowStatus>("/status"),
    get::<store::Stats>("/store"),
    get::<jobs::List>("/jobs"),
    get::<jobs::Show>("/jobs/{jid}"),
    get::<jobs::Missing>("/jobs/{jid}/missing"),
    get::<jobs::States>("/jobs/{jid}/states"),
    get::<jobs::Diff>("/jobs/{jid}/diff"),
    get::<minions::List>("/minions"),
    get::<minions::Show>("/minions/{minion}"),
    read(
        "/events",
        "events_list",
        &[
            LIMIT,
            SINCE,
            UNTIL,
            MINION,
            param("tag", Text, "Only tags that match this glob"),
            param("jid", Text, "Only events of this job"),
            MATCH,
            WHERE,
            param("newest_first", Flag, "false reverses the rows of the page"),
            CURSOR,
        ],
        Shape::Events { schema: SchemaGenerator::subschema_for::<EventsPage> },
    ),
    read(
        "/events/count",
        "events_count",
        &[
            SINCE,
            UNTIL,
            MATCH,
            WHERE,
            param("from", Count, "Start with this sequence number: `next` of the previous answer"),
        ],
        typed::<EventCount>(),
    ),
    read(
        "/events/stream",
        "events_follow",
        &[
            MATCH,
            WHERE,
            param("since", Time, "Begin with the first event since this time"),
            param(
                "after",
                Text,
                "Begin after the event with this id; the header `Last-Event-ID` has the same effect",
            ),
            param(
                "max_rate",
                Count,
                "Send at most this many events per second; `skipped` messages count the others",
            ),
        ],
        Shape::Stream,
    )
    .doc(FOLLOW),
    read("/consumers", "consumers_list", &[], typed::<ConsumersPage>()),
    read("/consumers/{name}", "consumers_list", &[], typed::<ConsumersPage>()).doc("Show a consumer"),
    change(
        "PUT",
        "/consumers/{name}",
        "consumer_create",
        &[MATCH, WHERE, TO, TIME, SEQ],
        typed::<Position>(),
    )
    .doc(CREATE),
    change("DELETE", "/consumers/{name}", "consumer_delete", &[], typed::<Existed>()),
    change(
        "POST",
        "/consumers/{name}/next",
        "consumer_next",
        &[
            LIMIT,
            HOLDER,
            param("bytes", Count, "Bytes of events after which the batch ends"),
            param("lease_s", Count, "How long the holder keeps the consumer, in seconds"),
            param("wait_ms", Count, "Wait so long for events, at most 10000"),
        ],
        Shape::Events { schema: SchemaGenerator::subschema_for::<Batch> },
    )
    .doc("Take the next events; they are delivered again until they are acknowledged"),
    change("POST", "/consumers/{name}/ack", "consumer_ack", &[HOLDER, SEQ], typed::<Position>())
        .doc("Acknowledge all events up to a sequence number"),
    change(
        "POST",
        "/consumers/{name}/nack",
        "consumer_nack",
        &[HOLDER, param("error", Text, "The reason")],
        typed::<Position>(),
    ),
    change("POST", "/consumers/{name}/seek", "consumer_seek", &[TO, TIME, SEQ], typed::<Position>())
        .doc("Move the cursor to one of `to`, `time`, `seq`"),
    change("POST", "/consumers/{name}/pause", "consumer_pause", &[], typed::<Position>()),
    change("POST", "/consumers/{name}/resume", "consumer_resume", &[], typed::<Position>()),
    read("/sinks", "sinks_list", &[], typed::<SinksPage>()),
    read("/sinks/{name}", "sinks_list", &[], typed::<SinksPage>()).doc("Show a sink"),
    read(
        "/sinks/{name}/dead-letters",
        "sink_dead_letters",
        &[param("after", JsonValue, "Only after this one: `next` of the previous page")],
        typed::<DeadLettersPage>(),
    ),
    change("POST", "/sinks/{name}/pause", "sink_pause", &[], typed::<Position>()),
    change("POST", "/sinks/{name}/resume", "sink_resume", &[], typed::<Position>()),
    change("POST", "/sinks/{name}/seek", "sink_seek", &[TO, TIME, SEQ], typed::<Position>())
        .doc("Move the position to one of `to`, `time`, `seq`"),
    read("/reactor", "reactor_list", &[], typed::<ReactorState>()),
    read(
        "/reactor/reactions",
        "reactor_history",
        &[
            LIMIT,
            SINCE,
            UNTIL,
            MINION,
            param("tag", Text, "Only events whose tag matches this glob"),
            param("state", Text, "Only these states, separated by commas: done, failed, partial, dead, left"),
            CURSOR,
        ],
        typed::<ReactionsPage>(),
    ),
    read("/reactor/reactions/{seq}", "reactor_show", &[], typed::<ReactionRow>()),
    read("/reactor/why", "reactor_why", &[param("tag", Text, "The tag")], typed::<Why>()),
    change(
        "POST",
        "/reactor/reactions/{seq}/replay",
        "reactor_replay",
        &[
            param("all", Flag, "Also the calls that were made"),
            param("render", Flag, "Render the rules anew"),
        ],
        typed::<Replay>(),
    ),
]
});
