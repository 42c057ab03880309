//! All operations of the API, in one table: routes, parameters and the OpenAPI document follow from
//! it.
//!
//! An operation makes one call of the local socket (`api/call/`) and changes only the form of its
//! result.

use std::sync::LazyLock;

use schemars::{JsonSchema, SchemaGenerator};

use super::super::answer::HttpError;
use super::events::StreamArgs;
use super::params::{Param, of_arguments};
use crate::api::call::{
    CallEntry, Run, Wait, causes, consumers, durations, event_rates, events, fleet, jobs, minions,
    reactor, sinks, status, store,
};
use crate::wire::call::CallError;

pub(super) struct Operation {
    pub(super) method: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    /// The call that the operation makes, which has the same right.
    pub(super) call: &'static CallEntry,
    /// Replaces the description of the call.
    doc: Option<&'static str>,
    /// The arguments of the call, but those in the path.
    pub(super) params: Vec<Param>,
    /// The response is a stream of events without an end.
    pub(super) is_stream: bool,
}

impl Operation {
    /// Its method and path, for messages.
    pub(super) fn name(&self) -> String {
        format!("{} /api/v1{}", self.method, self.path)
    }

    /// The error if there is no response, which only an unknown job or minion can cause.
    pub(super) fn not_found(&self) -> HttpError {
        let parts = [("{jid}", "job"), ("/causes", "job"), ("{minion}", "minion")];
        let what = parts
            .into_iter()
            .find(|(part, _)| self.path.contains(part))
            .map_or("resource", |(_, what)| what);
        HttpError::not_found(format!("the {what} is not known"))
    }

    /// The error if the call is of a kind that HTTP does not make: only a bug.
    pub(super) fn cannot(&self) -> HttpError {
        CallError::Internal(format!("{} cannot be called", self.call.name)).into()
    }

    pub(super) fn summary(&self) -> &'static str {
        self.doc.unwrap_or(self.call.doc)
    }

    fn doc(self, doc: &'static str) -> Self {
        Self {
            doc: Some(doc),
            ..self
        }
    }
}

/// An operation that makes a call. Its parameters are the arguments of the call.
fn make(method: &'static str, path: &'static str, call: &'static CallEntry) -> Operation {
    Operation {
        method,
        path,
        call,
        doc: None,
        params: of_arguments(call.args, path),
        is_stream: false,
    }
}

fn get<C: Run>(path: &'static str) -> Operation {
    make("GET", path, const { &CallEntry::runs::<C>() })
}

fn put<C: Run>(path: &'static str) -> Operation {
    make("PUT", path, const { &CallEntry::runs::<C>() })
}

fn post<C: Run>(path: &'static str) -> Operation {
    make("POST", path, const { &CallEntry::runs::<C>() })
}

/// As [`post`], of a call that waits.
fn post_and_wait<C: Wait>(path: &'static str) -> Operation {
    make("POST", path, const { &CallEntry::waits::<C>() })
}

fn delete<C: Run>(path: &'static str) -> Operation {
    make("DELETE", path, const { &CallEntry::runs::<C>() })
}

/// A stream of the responses of a call that waits.
fn stream<C: Wait, T: JsonSchema>(path: &'static str) -> Operation {
    Operation {
        params: of_arguments(SchemaGenerator::subschema_for::<T>, path),
        is_stream: true,
        ..make("GET", path, const { &CallEntry::waits::<C>() })
    }
}

const FOLLOW: &str = "Follow events from now on, or from a position: server-sent events, or NDJSON with `Accept: application/x-ndjson`";
const CREATE: &str = "Create a consumer, or change the filter of one; a new one starts with the next event, or at one of `to`, `time`, `seq`";

pub(super) static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    vec![
        get::<status::Show>("/status"),
        get::<store::Stats>("/store"),
        get::<jobs::List>("/jobs"),
        get::<jobs::Show>("/jobs/{jid}"),
        get::<jobs::Missing>("/jobs/{jid}/missing"),
        get::<jobs::States>("/jobs/{jid}/states"),
        get::<jobs::Diff>("/jobs/{jid}/diff"),
        get::<jobs::strip::Strip>("/jobs/{jid}/strip"),
        get::<durations::OfJob>("/jobs/{jid}/durations"),
        get::<durations::OfTime>("/durations"),
        get::<causes::List>("/causes"),
        get::<fleet::Show>("/fleet"),
        get::<minions::List>("/minions"),
        get::<minions::Show>("/minions/{minion}"),
        get::<events::List>("/events"),
        get::<events::Count>("/events/count"),
        get::<event_rates::Rates>("/events/rates"),
        stream::<events::Follow, StreamArgs>("/events/stream").doc(FOLLOW),
        get::<consumers::List>("/consumers"),
        get::<consumers::List>("/consumers/{name}").doc("Show a consumer"),
        put::<consumers::Create>("/consumers/{name}").doc(CREATE),
        delete::<consumers::Delete>("/consumers/{name}"),
        post_and_wait::<consumers::Next>("/consumers/{name}/next")
            .doc("Take the next events; they are redelivered until they are acknowledged"),
        post::<consumers::Ack>("/consumers/{name}/ack")
            .doc("Acknowledge all events up to a sequence number"),
        post::<consumers::Nack>("/consumers/{name}/nack"),
        post::<consumers::Seek>("/consumers/{name}/seek")
            .doc("Move the cursor to one of `to`, `time`, `seq`"),
        post::<consumers::Pause>("/consumers/{name}/pause"),
        post::<consumers::Resume>("/consumers/{name}/resume"),
        get::<sinks::List>("/sinks"),
        get::<sinks::List>("/sinks/{name}").doc("Show a sink"),
        get::<sinks::DeadLetters>("/sinks/{name}/dead-letters"),
        post::<sinks::Retry>("/sinks/{name}/dead-letters/retry"),
        post::<sinks::Drop>("/sinks/{name}/dead-letters/drop"),
        post::<sinks::Pause>("/sinks/{name}/pause"),
        post::<sinks::Resume>("/sinks/{name}/resume"),
        post::<sinks::Seek>("/sinks/{name}/seek")
            .doc("Move the position to one of `to`, `time`, `seq`"),
        get::<reactor::List>("/reactor"),
        get::<reactor::History>("/reactor/reactions"),
        get::<reactor::Show>("/reactor/reactions/{seq}"),
        get::<reactor::Explain>("/reactor/why"),
        post::<reactor::ReplayCalls>("/reactor/reactions/{seq}/replay"),
    ]
});
