//! The responses of the API. The OpenAPI document has their schemas, so a field is described once.
//!
//! An answer of a call (docs/WIRE.md) is read into its type and written again: times become text, and cursors name their store. Values of Salt are in the
//! JSON form of `crate::wire::json`.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::api::call::consumers::{ConsumersPage, Position};
use crate::api::call::reactor::{ReactionRow, ReactionsPage, ReactorState, Replay, Why};
use crate::api::call::sinks::{DeadLettersPage, SinksPage};

/// Context of a response.
pub(super) struct Finish<'a> {
    /// The id of the store.
    pub(super) store: &'a str,
}

impl Finish<'_> {
    fn cursor(&self, position: &mut Option<String>) {
        if let Some(position) = position {
            *position = format!("{}:{position}", self.store);
        }
    }
}

/// A response of an operation.
pub(super) trait Answered: DeserializeOwned + Serialize + JsonSchema {
    /// Adds what the call does not know.
    fn finish(&mut self, _: &Finish<'_>) {}
}

answers! {
    /// An event.
    EventRow {
        /// Identifies the event, also when it is delivered again: the store and the sequence number.
        id: String,
        seq: u64,
        time: String,
        tag: String,
        source: String,
        jid: Option<String>,
        minion: Option<String>,
        fun: Option<String>,
        data: Json,
    }
    /// Events, the latest first unless requested otherwise.
    EventsPage {
        events: Vec<EventRow>,
        /// Whether more follow. There may be fewer events than `limit`: a search ends when it has looked at 64 MiB.
        more: bool,
        /// The `cursor` with which the search continues.
        next: Option<String>,
    }
    /// A batch of a consumer, oldest first.
    Batch {
        events: Vec<EventRow>,
        next: String,
        more: bool,
        paused: bool,
    }
    /// A number of events.
    EventCount {
        count: u64,
        /// The search has not reached the end: `from` with which it continues.
        next: Option<u64>,
    }
}

/// Whether something existed.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Existed(bool);

impl Answered for ReactionsPage {
    fn finish(&mut self, with: &Finish<'_>) {
        with.cursor(&mut self.next);
    }
}

impl Answered for EventCount {}
impl Answered for ConsumersPage {}
impl Answered for Position {}
impl Answered for SinksPage {}
impl Answered for DeadLettersPage {}
impl Answered for ReactionRow {}
impl Answered for ReactorState {}
impl Answered for Replay {}
impl Answered for Why {}
impl Answered for Existed {}
