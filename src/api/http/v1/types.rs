//! The answers of the API. The OpenAPI document has their schemas, so a field is described once.
//!
//! An answer of a call (docs/WIRE.md) is read into its type and written again: times become text, and cursors name their store. Values of Salt are in the
//! JSON form of `crate::wire::json`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};

use super::super::tokens::TokenLimits;
use crate::base::clock::Micros;

/// Context of an answer.
pub(super) struct Finish<'a> {
    /// The id of the store.
    pub(super) store: &'a str,
    /// The limits of the token.
    pub(super) limits: &'a TokenLimits,
}

impl Finish<'_> {
    fn cursor(&self, position: &mut Option<String>) {
        if let Some(position) = position {
            *position = format!("{}:{position}", self.store);
        }
    }
}

/// An answer of an operation.
pub(super) trait Answered: DeserializeOwned + Serialize + JsonSchema {
    /// Adds what the call does not know, and removes what the token may not read.
    fn finish(&mut self, _: &Finish<'_>) {}
}

/// A time; the calls have microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(Micros);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        i64::deserialize(from).map(|at| Self(Micros(at)))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.iso().serialize(to)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time", "examples": ["2026-11-21T05:47:28.123456Z"] })
    }
}

macro_rules! answers {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Debug, Deserialize, Serialize, JsonSchema)]
            pub(super) struct $name {
                $(
                    $(#[$attribute])*
                    pub(super) $field: $kind,
                )*
            }
        )+
    };
}

answers! {
    /// Jobs, the latest first.
    JobsPage {
        jobs: Vec<JobRow>,
        /// Whether more follow.
        more: bool,
        /// The `cursor` of the next page.
        #[serde(default)]
        next: Option<String>,
    }
    /// A job in a list.
    JobRow {
        jid: String,
        time: Time,
        fun: Json,
        arg: Json,
        tgt: Json,
        tgt_type: Json,
        user: Json,
        /// Number of minions that were targeted, if known.
        expected: Option<u64>,
        returned: u64,
        failed: u64,
        succeeded: u64,
        missing_count: Option<u64>,
        /// Number of returns that are known from a bus only.
        bus_only: u64,
        /// Number of returns by exit code.
        retcodes: BTreeMap<String, u64>,
        #[serde(default)]
        first_answer: Option<Time>,
        #[serde(default)]
        last_answer: Option<Time>,
        #[serde(default)]
        duration_us: Option<i64>,
        #[serde(default)]
        endtime: Option<String>,
        #[serde(default)]
        metadata: Json,
    }
    /// A job with a page of its returns.
    Job {
        #[serde(flatten)]
        row: JobRow,
        /// The job as published; null if it is not known, or if the token is limited.
        load: Json,
        minions: Vec<String>,
        missing: Vec<String>,
        not_confirmed: Vec<String>,
        nocache: bool,
        #[serde(default)]
        parent: Option<String>,
        #[serde(default)]
        children: Vec<Json>,
        returns: Vec<Return>,
        more: bool,
        /// `after` of the next page.
        #[serde(default)]
        next: Option<String>,
    }
    /// A return.
    Return {
        minion: String,
        seq: u64,
        time: Time,
        #[serde(rename = "return")]
        value: Json,
        #[serde(default)]
        retcode: Json,
        #[serde(default)]
        success: Json,
        fun: Json,
        #[serde(default)]
        fun_args: Json,
        #[serde(default)]
        out: Json,
        failed: bool,
        bus_only: bool,
        duplicates: u64,
        /// Later returns of the minion that differ from the first.
        #[serde(default)]
        others: Vec<Json>,
        #[serde(default)]
        not_targeted: bool,
    }
    /// The minions that have not returned a job.
    Awaited {
        jid: String,
        expected: Option<u64>,
        returned: u64,
        missing_count: Option<u64>,
        missing: Vec<String>,
    }
    /// States of a job.
    StatesPage {
        jid: String,
        states: Vec<StateRow>,
        more: bool,
        /// `after` of the next page.
        #[serde(default)]
        next: Option<String>,
    }
    /// A state of a minion.
    StateRow {
        minion: String,
        id: String,
        name: String,
        fun: String,
        sls: Option<String>,
        result: Option<bool>,
        changed: bool,
        changes: Json,
        comment: Json,
        duration_ms: Option<f64>,
        #[serde(default)]
        start_time: Option<String>,
        run_num: Option<i64>,
        #[serde(default)]
        job: Option<String>,
    }
    /// A comparison of two runs of a job, by minion.
    JobDiff {
        /// The earlier run.
        a: JobRow,
        /// The later run.
        b: JobRow,
        /// Number of minions of this page that do not differ.
        same: u64,
        minions: Vec<MinionDiff>,
        more: bool,
        /// `after` of the next page.
        #[serde(default)]
        next: Option<String>,
    }
    /// A minion whose runs differ.
    MinionDiff {
        minion: String,
        /// appeared, went, result or value
        what: String,
        #[serde(default)]
        a: Option<RunOutcome>,
        #[serde(default)]
        b: Option<RunOutcome>,
        /// The states that differ, if the runs have states.
        #[serde(default)]
        states: Vec<StateDiff>,
    }
    /// The outcome of a run on a minion.
    RunOutcome {
        failed: bool,
        #[serde(default)]
        retcode: Json,
        #[serde(default)]
        success: Json,
        /// Absent if the states are compared.
        #[serde(rename = "return", default)]
        value: Json,
    }
    /// A state that differs.
    StateDiff {
        /// appeared, went, result or value
        what: String,
        #[serde(default)]
        a: Option<StateRow>,
        #[serde(default)]
        b: Option<StateRow>,
    }
    /// Minions by id.
    MinionsPage {
        minions: Vec<MinionRow>,
        more: bool,
        /// `after` of the next page.
        next: Option<String>,
        skipped: NotRead,
    }
    /// A minion in a list.
    MinionRow {
        id: String,
        last_seen: Option<Moment>,
        /// Its last job.
        last: Option<MinionRun>,
        /// Its last highstate.
        highstate: Option<MinionRun>,
        /// Number of examined jobs that expect a return of it.
        missing: u64,
    }
    /// The latest run of a function on a minion.
    MinionRun {
        jid: String,
        /// Empty for several functions.
        fun: String,
        time: Option<Time>,
        /// Whether it ran only some states.
        partial: bool,
        /// Null if its return was not read.
        failed: Option<bool>,
        /// Null if they were not read.
        states: Option<StateCounts>,
    }
    /// Numbers of states.
    StateCounts {
        total: u64,
        failed: u64,
        changed: u64,
    }
    /// Data not examined for an answer.
    NotRead {
        /// Newest jobs examined for missing returns.
        jobs_checked: u64,
        /// Whether earlier jobs were not examined.
        jobs_skipped: bool,
        /// Events before this time were not examined for `last_seen`; null if all were.
        events_since: Option<Time>,
        /// Highstates whose states were not read.
        states_unread: u64,
    }
    /// A minion.
    Minion {
        #[serde(flatten)]
        row: MinionRow,
        /// Ids of failed states of the last highstate, up to a limit.
        failed_states: Vec<String>,
        /// Ids of changed states of the last highstate, up to a limit.
        changed_states: Vec<String>,
        /// The latest job of each function, the latest first.
        functions: Vec<MinionRun>,
        /// Examined jobs that expect a return of it, the latest first.
        missing_jobs: Vec<MinionRun>,
        /// Its latest events, the latest first.
        timeline: Vec<MinionEvent>,
        skipped: NotRead,
    }
    /// An event of a minion.
    MinionEvent {
        seq: u64,
        time: Time,
        tag: String,
        fun: String,
        retcode: Option<i64>,
    }
    /// An event.
    EventRow {
        /// Identifies the event, also when it is delivered again: the store and the sequence number.
        id: String,
        seq: u64,
        time: String,
        tag: String,
        source: String,
        #[serde(default)]
        jid: Option<String>,
        #[serde(default)]
        minion: Option<String>,
        #[serde(default)]
        fun: Option<String>,
        data: Json,
    }
    /// Events, the latest first unless requested otherwise.
    EventsPage {
        events: Vec<EventRow>,
        /// Whether more follow. There may be fewer events than `limit`: a search ends when it has looked at 64 MiB.
        more: bool,
        /// The `cursor` with which the search continues.
        #[serde(default)]
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
        #[serde(rename = "where")]
        condition: Option<String>,
        /// The sequence number of the next event.
        cursor: u64,
        lag_entries: u64,
        lag_s: u64,
        paused: bool,
        pin: bool,
        /// Entries that retention dropped before the consumer had read them.
        lost: Json,
        error: Option<Problem>,
        holder: Option<String>,
        lease_s: Option<u64>,
    }
    /// An error with its time.
    Problem {
        time: Time,
        message: String,
    }
    /// The position of a consumer or a sink.
    Position {
        #[serde(default)]
        name: Option<String>,
        #[serde(default)]
        cursor: Option<u64>,
        #[serde(default)]
        paused: Option<bool>,
    }
    /// Sinks.
    SinksPage {
        sinks: Vec<Sink>,
    }
    /// A sink.
    Sink {
        name: String,
        encoder: String,
        transport: String,
        destination: String,
        state: String,
        cursor: Option<u64>,
        lag_entries: Option<u64>,
        lag_s: Option<u64>,
        problem: Option<String>,
        last_delivery: Option<Moment>,
        failures: u64,
        error: Option<Problem>,
        dead_letters: u64,
        counters: BTreeMap<String, u64>,
    }
    /// A time in an object.
    Moment {
        time: Time,
    }
    /// Dead letters of a sink.
    DeadLettersPage {
        dead_letters: Vec<DeadLetter>,
        more: bool,
        /// `after` of the next page.
        next: Option<u64>,
    }
    /// An event that the destination of a sink rejected.
    DeadLetter {
        seq: u64,
        time: Time,
        failed: Moment,
        attempts: u64,
        reason: String,
        id: String,
        tag: String,
        minion: String,
        fun: String,
        jid: String,
        /// The event's data as JSON text.
        data: Option<String>,
    }
    /// Reactions, the latest first.
    ReactionsPage {
        reactions: Vec<ReactionRow>,
        more: bool,
        /// The `cursor` of the next page.
        #[serde(default)]
        next: Option<String>,
    }
    /// A reaction.
    ReactionRow {
        seq: u64,
        time: Time,
        tag: String,
        #[serde(default)]
        minion: Option<String>,
        /// The record as stored; its times are microseconds since 1970.
        reaction: Json,
        /// The results of its calls, with one reaction only.
        #[serde(default)]
        results: Json,
    }
    /// Why the reactor reacts to a tag, or not.
    Why {
        rules: Vec<String>,
        reactions: Vec<ReactionRow>,
        #[serde(default)]
        event: Option<u64>,
        #[serde(default)]
        time: Option<Time>,
        #[serde(default)]
        source: Option<String>,
        #[serde(default)]
        user: Option<String>,
    }
    /// The store.
    StoreStats {
        state_dir: String,
        head: u64,
        durable: u64,
        checkpoint: Option<u64>,
        space: Json,
        clock_step: Json,
        holds: u64,
        entries_by_hour: Vec<u64>,
        classes: Vec<StoreClass>,
    }
    /// A class of entries.
    StoreClass {
        class: String,
        configured: bool,
        segments: u64,
        entries: u64,
        raw_bytes: u64,
        disk_bytes: u64,
        oldest: Option<Time>,
        newest: Option<Time>,
        entries_per_1000_s: u64,
        keep_age: String,
        keep_age_known: bool,
        keep_age_s: Option<u64>,
        keep_bytes: Option<u64>,
        keep_entries: Option<u64>,
        held_segments: u64,
    }
}

/// The answer of a call as it is; its times are microseconds since 1970. docs/WIRE.md describes the fields.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Document(Map<String, Json>);

/// Whether something existed.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Existed(bool);

impl Answered for JobsPage {
    fn finish(&mut self, with: &Finish<'_>) {
        with.cursor(&mut self.next);
        let functions = with.limits.functions.as_deref();
        self.jobs.retain(|job| TokenLimits::allows(functions, job.fun.as_str().unwrap_or_default()));
    }
}

impl Answered for Job {
    fn finish(&mut self, with: &Finish<'_>) {
        let minions = with.limits.minions.as_deref();
        if minions.is_none() {
            return;
        }
        // The load names the target, and with it other minions.
        (self.load, self.row.tgt) = (Json::Null, Json::Null);
        self.children.clear();
        for list in [&mut self.minions, &mut self.missing, &mut self.not_confirmed] {
            list.retain(|minion| TokenLimits::allows(minions, minion));
        }
        self.returns.retain(|answer| TokenLimits::allows(minions, &answer.minion));
    }
}

impl Answered for Awaited {
    fn finish(&mut self, with: &Finish<'_>) {
        self.missing.retain(|minion| TokenLimits::allows(with.limits.minions.as_deref(), minion));
    }
}

impl Answered for StatesPage {
    fn finish(&mut self, with: &Finish<'_>) {
        self.states.retain(|state| TokenLimits::allows(with.limits.minions.as_deref(), &state.minion));
    }
}

impl Answered for JobDiff {
    fn finish(&mut self, with: &Finish<'_>) {
        let minions = with.limits.minions.as_deref();
        if minions.is_some() {
            // The target names other minions.
            (self.a.tgt, self.b.tgt) = (Json::Null, Json::Null);
            self.minions.retain(|found| TokenLimits::allows(minions, &found.minion));
        }
    }
}

impl Answered for MinionsPage {
    fn finish(&mut self, with: &Finish<'_>) {
        self.minions.retain(|minion| TokenLimits::allows(with.limits.minions.as_deref(), &minion.id));
    }
}

impl Answered for ReactionsPage {
    fn finish(&mut self, with: &Finish<'_>) {
        self.next = self.reactions.last().filter(|_| self.more).map(|last| last.seq.to_string());
        with.cursor(&mut self.next);
    }
}

impl Answered for EventCount {}
impl Answered for ConsumersPage {}
impl Answered for Position {}
impl Answered for SinksPage {}
impl Answered for DeadLettersPage {}
impl Answered for ReactionRow {}
impl Answered for Why {}
impl Answered for StoreStats {}
impl Answered for Document {}
impl Answered for Existed {}
impl Answered for Minion {}
