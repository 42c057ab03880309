//! Calls about the reactor: status, history, reasons, replay.

use std::collections::BTreeMap;

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod shadow;

pub(crate) use self::shadow::{Shadow, ShadowArgs};
use super::events::{EventRows, EventSource, LIST_ROWS};
use super::{Archive, Call, Changing, Cursor, In, NoArgs, Reacting, Run, Whole, failed};
use crate::api::query::{Answer, Job};
use crate::base::limits::{
    LIST_BYTES_MAX, LIST_ROWS_MAX, REACTOR_LEASE, REACTOR_NAMES_MAX, REACTOR_RESULT_BYTES_MAX,
    REACTOR_SEARCH_BYTES,
};
use crate::base::metrics::Metrics;
use crate::base::named::named;
use crate::cluster::election::Standing;
use crate::ingest::bus::{BusMonitor, BusStatus};
use crate::model::{EventFilter, Flags, Kind, REACTION_TAG, Right, SeqNo};
use crate::reactor::EngineReport;
use crate::reactor::acting::{self, Actor, Assigned};
use crate::reactor::master::Client;
use crate::reactor::run::replay::{ReplayError, Replayed};
use crate::reactor::run::watch::{DifferenceKind, ShadowDifference};
use crate::reactor::stored::{RecordKey, States, StoredRecord};
use crate::reactor::{CallOutcome, CallRecord};
use crate::store::{StoreError, StoreReader, StoredEntry};
use crate::wire::call::CallError;
use crate::wire::msgpack::{Stored, Time, as_bool, as_text, get, or_absent};
use crate::wire::salt_event::job_tag;

answers! {
    /// The reactor and its rules; without a reactor, the rules of a master's configuration.
    ReactorState {
        #[serde(flatten)]
        running: Option<RunningReactor>,
        #[serde(skip_serializing_if = "Option::is_none")]
        blocked: Option<String>,
        salts_reactor: bool,
        rules: Vec<RuleState>,
    }
    /// A reactor.
    RunningReactor {
        cursor: u64,
        behind: u64,
        waiting: u64,
        open: u64,
        unstored: u64,
        master_unreachable: bool,
        shadow: bool,
        /// The master's cluster: the reactor acts only on events that this master fired. Absent in shadow mode.
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster_id: Option<String>,
        /// Matching events since the start that other masters of the cluster fired, whose daemons react.
        of_peers: u64,
        /// The election that decides whether this reactor acts.
        #[serde(skip_serializing_if = "Option::is_none")]
        election: Option<ElectionRow>,
        /// Why a new configuration is not in use.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<Refusal>,
        /// Finished reactions since the start, by state.
        reactions: BTreeMap<String, u64>,
        /// Calls compared in shadow mode since the start, by result.
        compared: BTreeMap<String, u64>,
        /// The latest differences from Salt's reactor in shadow mode.
        differences: Vec<ShadowDifferenceRow>,
        /// A call of another reactor.
        #[serde(skip_serializing_if = "Option::is_none")]
        foreign_call: Option<ForeignCall>,
    }
    /// A difference between the reactors, in shadow mode.
    #[schemars(rename = "ShadowDifference")]
    ShadowDifferenceRow {
        /// Time of the event, or of the call of Salt's reactor: microseconds since 1970.
        time: i64,
        kind: DifferenceKind,
        /// The event; absent if only the side of Salt's reactor is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        event: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tag: Option<String>,
        fun: String,
        /// The job of the call of Salt's reactor.
        #[serde(skip_serializing_if = "Option::is_none")]
        jid: Option<String>,
        /// The fields that differ, the target, or the reason.
        details: String,
    }
    /// Reactors of several masters, of which one acts.
    #[schemars(rename = "Election")]
    ElectionRow {
        name: String,
        /// Whether this reactor acts.
        leads: bool,
        /// The master whose reactor acts instead of this one.
        #[serde(skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    }
    /// A refusal with its time.
    Refusal {
        time: Time,
        why: String,
    }
    /// A call with its time.
    ForeignCall {
        time: Time,
        fun: String,
    }
    /// A rule and the reactor that acts on its events.
    RuleState {
        rule: String,
        handled_by: Actor,
        why: String,
        files: Vec<String>,
    }
    /// Reactions, the latest first.
    ReactionsPage {
        reactions: Vec<ReactionRow>,
        /// Whether more follow. There may be fewer reactions than `limit`: a search ends when it has looked at 64 MiB of others.
        more: bool,
        /// The `cursor` of the next page.
        #[serde(serialize_with = "or_absent")]
        next: Option<Cursor>,
    }
    /// A reaction.
    ReactionRow {
        seq: u64,
        time: Time,
        tag: String,
        /// The master whose reactor it was; absent if it was this host's.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
        #[serde(serialize_with = "or_absent")]
        minion: Option<String>,
        /// The record as stored; its times are microseconds since 1970, and its sequence numbers those of the master whose reactor it was.
        reaction: Stored,
        /// The results of its calls, with one reaction only.
        #[serde(serialize_with = "or_absent")]
        results: Option<Vec<Option<CallResult>>>,
    }
    /// The present result of a call.
    CallResult {
        seen: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        took_us: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        success: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retcode: Option<i64>,
        #[serde(rename = "return", skip_serializing_if = "Stored::is_none")]
        value: Stored,
        #[serde(skip_serializing_if = "Option::is_none")]
        returned: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        failed: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        returns: Option<Vec<MinionResult>>,
    }
    /// The return of a minion for a call.
    MinionResult {
        minion: String,
        retcode: i64,
        failed: bool,
        took_us: i64,
    }
    /// Why the reactor reacts to a tag, or not.
    Why {
        rules: Vec<String>,
        reactions: Vec<ReactionRow>,
        #[serde(serialize_with = "or_absent")]
        event: Option<u64>,
        #[serde(serialize_with = "or_absent")]
        time: Option<Time>,
        #[serde(serialize_with = "or_absent")]
        source: Option<EventSource>,
        #[serde(serialize_with = "or_absent")]
        user: Option<String>,
        /// The master that fired the event, if the daemon of that master reacts.
        #[serde(serialize_with = "or_absent")]
        peer: Option<String>,
    }
    /// The renewed lease of the reactor.
    Renewal {
        token: String,
        lease_ms: u64,
        blocked: Option<String>,
        version: String,
    }
    /// Calls or rules that are repeated.
    Replay {
        seq: u64,
        what: Repeated,
        count: u64,
    }
}

/// What a replay repeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// Calls that are stored.
    #[default]
    Calls,
    /// The rendering of rules.
    Rules,
}

named! {
    Repeated {
        Calls: "calls",
        Rules: "rules",
    }
}

impl ElectionRow {
    pub(in crate::api) fn of((name, standing): (String, Standing)) -> Self {
        let leader = match &standing {
            Standing::Follows(leader) => Some(leader.clone()),
            Standing::Leads | Standing::Unknown(_) => None,
        };
        let leads = standing == Standing::Leads;
        Self {
            name,
            leads,
            leader,
        }
    }
}

impl From<Assigned> for RuleState {
    fn from(Assigned { rule, actor, why }: Assigned) -> Self {
        Self {
            rule: rule.pattern,
            handled_by: actor,
            why,
            files: rule.files,
        }
    }
}

fn configured<T>(handle: Option<T>) -> Result<T, CallError> {
    let none = || {
        let message =
            "no reactor is configured: set reactor.master or reactor.minion in the configuration";
        CallError::Refused(message.to_owned())
    };
    handle.ok_or_else(none)
}

/// `reactor_list`.
pub(crate) struct List;

impl Call for List {
    const NAME: &'static str = "reactor_list";
    const DOC: &'static str = "Show the reactor and its rules";
    type Scope = Whole<Reacting>;
    type Args<'a> = NoArgs;
    type Answer = ReactorState;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<ReactorState, CallError> {
        let handle = configured(ctx.handle)?;
        let status = handle.status();

        // Events that a bus has delivered and that are not stored yet cannot cause a reaction.
        let buses = ctx.buses();
        let unstored: u64 = buses
            .iter()
            .map(|bus| bus.waiting.events + bus.waiting.spilled_events)
            .sum();

        let ended = handle
            .ended()
            .into_iter()
            .map(|(state, count)| (state.name().to_owned(), count));

        // The reactor may be ready and still receive nothing.
        let blocked = handle
            .blocked_by()
            .or_else(|| no_events(ctx.archive.store, &buses));
        let salts = handle.salts_reactor();
        let election = status.election.map(ElectionRow::of);
        let leader = election.as_ref().and_then(|one| one.leader.as_deref());
        let rules = acting::assign(
            handle.rules(),
            &salts,
            (blocked.as_deref(), leader),
            "`reactor.rules` does not have it",
        );

        let running = RunningReactor {
            cursor: status.cursor.0,
            behind: status.behind,
            waiting: status.waiting as u64,
            open: status.open as u64,
            unstored,
            master_unreachable: status.master_unreachable,
            shadow: status.shadow,
            cluster_id: status.cluster_id,
            of_peers: ctx
                .archive
                .metrics
                .reactor_events_ignored_other_master
                .get(),
            election,
            refused: status.refused.map(|(at, why)| Refusal {
                time: Time(at),
                why,
            }),
            reactions: ended.collect(),
            compared: compared(ctx.archive.metrics),
            differences: handle.differences().into_iter().map(difference).collect(),
            foreign_call: handle.foreign_call().map(|(at, fun)| ForeignCall {
                time: Time(at),
                fun,
            }),
        };

        let rules = rules.into_iter().map(RuleState::from).collect();
        Ok(ReactorState {
            running: Some(running),
            blocked,
            salts_reactor: salts.runs,
            rules,
        })
    }
}

fn difference(found: ShadowDifference) -> ShadowDifferenceRow {
    ShadowDifferenceRow {
        time: found.time,
        kind: found.kind,
        event: found.event,
        tag: found.tag,
        fun: found.fun,
        jid: found.jid,
        details: found.details,
    }
}

/// Numbers of calls compared in shadow mode since the start, by result.
fn compared(metrics: &Metrics) -> BTreeMap<String, u64> {
    [
        ("same", &metrics.shadow_calls_same),
        ("different", &metrics.shadow_calls_different),
        ("only saltcellar", &metrics.shadow_calls_only_saltcellar),
        ("only Salt", &metrics.shadow_calls_only_salt),
        ("saltcellar failed", &metrics.shadow_calls_saltcellar_failed),
        ("not comparable", &metrics.shadow_calls_not_comparable),
        ("unattributed", &metrics.shadow_calls_unattributed),
    ]
    .map(|(result, count)| (result.to_owned(), count.get()))
    .into()
}

/// `reactor_lease`.
pub(crate) struct Lease;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LeaseArgs {
    /// The token of the previous response
    pub(crate) token: Option<String>,
    /// The engine can act itself while there is no daemon
    #[serde(default)]
    pub(crate) fallback: bool,
    /// The engine acts now
    #[serde(default)]
    pub(crate) acts: bool,
    /// Salt's reactor runs as well
    #[serde(default)]
    pub(crate) salts_reactor: bool,
    /// When the engine began to act
    pub(crate) began: Option<Time>,
    /// When it ended
    pub(crate) ended: Option<Time>,
}

impl Call for Lease {
    const NAME: &'static str = "reactor_lease";
    const DOC: &'static str = "Renew the reactor's lease, for the master's engine";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Reacting>;
    type Args<'a> = LeaseArgs;
    type Answer = Renewal;
}

impl Run for Lease {
    fn run(ctx: &In<'_, Self>, args: LeaseArgs) -> Result<Renewal, CallError> {
        let handle = configured(ctx.handle.as_ref())?;
        let report = EngineReport {
            token: args.token.as_deref(),
            fallback: args.fallback,
            acts: args.acts,
            salts_reactor: args.salts_reactor,
            began: args.began.map(|Time(at)| at),
            ended: args.ended.map(|Time(at)| at),
        };

        let (token, blocked) = handle.report(&report);
        let buses: Vec<_> = ctx.buses.iter().map(BusMonitor::status).collect();
        Ok(Renewal {
            token,
            lease_ms: u64::try_from(REACTOR_LEASE.as_millis()).unwrap_or(u64::MAX),
            blocked: blocked.or_else(|| no_events(&ctx.archive.store, &buses)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}

/// Why the reactor receives no events; `None` if it does.
pub(in crate::api) fn no_events(store: &StoreReader, buses: &[BusStatus]) -> Option<String> {
    // In order of what an administrator has to do first.
    if buses.is_empty() {
        return Some("no bus is configured (`bus`)".to_owned());
    }

    if let Some(why) = store
        .refusal()
        .or_else(|| buses.iter().find_map(|bus| bus.refused.clone()))
    {
        return Some(format!("the store accepts no events: {why}"));
    }
    // One bus is enough: events of the others are missing, and the status says so.
    if buses.iter().any(|bus| bus.connected) {
        return None;
    }

    let paths: Vec<_> = buses
        .iter()
        .map(|bus| bus.path.display().to_string())
        .collect();
    Some(format!("no bus is connected: {}", paths.join(", ")))
}

/// Reactions to events with a tag. Without the pattern, the index would exclude no part of the log.
fn reactions_to(tag: &str) -> EventFilter {
    let tag = Some(Glob::new(&format!("{REACTION_TAG}{tag}")));
    EventFilter {
        tag,
        reactions: true,
        ..EventFilter::default()
    }
}

/// `reactor_history`.
pub(crate) struct History;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct HistoryArgs {
    /// Maximum number of rows
    pub(crate) limit: Option<usize>,
    /// Start of the time range
    pub(crate) since: Option<Time>,
    /// End of the time range
    pub(crate) until: Option<Time>,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Only events whose tag matches this glob
    pub(crate) tag: Option<String>,
    /// Only reactions of masters whose id matches this glob
    pub(crate) master: Option<Glob>,
    /// Only these states, separated by commas: done, failed, partial, dead, skipped
    pub(crate) state: Option<States>,
    /// Only replays
    #[serde(default)]
    pub(crate) replays: bool,
    /// Only reactions before this sequence number
    pub(crate) before: Option<u64>,
    /// `next` of the previous page, instead of `before`
    pub(crate) cursor: Option<Cursor>,
}

impl Call for History {
    const NAME: &'static str = "reactor_history";
    const DOC: &'static str = "List reactions, the latest first";
    type Scope = Whole<Archive>;
    type Args<'a> = HistoryArgs;
    type Answer = ReactionsPage;
}

impl Run for History {
    fn run(ctx: &In<'_, Self>, args: HistoryArgs) -> Result<ReactionsPage, CallError> {
        let filter = EventFilter {
            minion: args.minion,
            masters: args.master.map(|ids| ctx.master.masters(ids)),
            since: args.since.map(|Time(at)| at),
            until: args.until.map(|Time(at)| at),
            ..reactions_to(args.tag.as_deref().unwrap_or("*"))
        };

        let store = ctx.store.id();
        let before = match (&args.cursor, args.before) {
            (Some(cursor), _) => cursor.seq(&store)?,
            (None, Some(before)) => SeqNo(before),
            (None, None) => ctx.store.durable(),
        };
        let limit = args.limit.unwrap_or(LIST_ROWS).clamp(1, LIST_ROWS_MAX);

        // The state is in the record and no index has it. A search for a rare one ends early, as a
        // search of events does, and states where it continues.
        let is_wanted = |row: &StoredEntry| {
            // Without a filter no record has to be read.
            if args.state.is_none() && !args.replays {
                return true;
            }
            let Ok(RecordKey { state, replay, .. }) = RecordKey::read(&row.body) else {
                return false;
            };

            args.state
                .as_ref()
                .is_none_or(|wanted| wanted.contains(state))
                && (!args.replays || replay.is_some())
        };

        // One more than requested shows whether more follow.
        let wanted = limit.saturating_add(1);
        let page = ctx
            .store
            .search_reactions(&filter, &is_wanted, before, wanted, LIST_BYTES_MAX)
            .map_err(failed)?;

        let EventRows { events, more, next } = EventRows::of(page, limit);
        Ok(ReactionsPage {
            reactions: events.iter().map(reaction).collect(),
            more,
            next: next.map(|next| Cursor::new(&store, next)),
        })
    }
}

fn reaction(row: &StoredEntry) -> ReactionRow {
    ReactionRow {
        seq: row.seq.0,
        time: Time(row.at),
        tag: String::from_utf8_lossy(&row.tag)
            .trim_start_matches(REACTION_TAG)
            .to_owned(),
        master: Some(row.origin.clone()).filter(|origin| !origin.is_empty()),
        minion: Some(row.minion.clone()).filter(|minion| !minion.is_empty()),
        reaction: Stored::of(Some(&row.body)),
        results: None,
    }
}

/// The record with this number, or the first record about the event with this number.
fn find(store: &StoreReader, seq: SeqNo) -> Result<Option<StoredEntry>, StoreError> {
    let filter = reactions_to("*");
    let latest = store.events_before(&filter, seq.next(), 1, usize::MAX)?;
    // The number belongs to a record.
    if let Some(record) = latest.into_iter().next().filter(|record| record.seq == seq) {
        return Ok(Some(record));
    }

    // The record of an event follows it, usually closely.
    let mut from = seq;
    let mut searched = 0;
    let mut found = None;
    while found.is_none() && searched < REACTOR_SEARCH_BYTES {
        let is_record = |kind, flags: Flags| kind == Kind::Reaction && flags.has(Flags::REACTION);
        // In a few steps, because a record close to the event ends the search early.
        let after = store.follow(is_record, from, REACTOR_SEARCH_BYTES / 16, |row| {
            searched += row.body.len();
            // The number in another master's record is one of its own log.
            let is_of_event = || {
                row.number == 0
                    && RecordKey::read(row.body).is_ok_and(|record| record.event == seq.0)
            };
            if found.is_none() && is_of_event() {
                found = Some(row.seq);
            }
        })?;
        // The end of the log.
        if after == from {
            break;
        }

        from = after;
    }

    let Some(record) = found else { return Ok(None) };
    Ok(store
        .events_before(&filter, record.next(), 1, usize::MAX)?
        .into_iter()
        .next())
}

fn found(store: &StoreReader, seq: u64) -> Result<StoredEntry, CallError> {
    let record = find(store, SeqNo(seq)).map_err(failed)?;
    record.ok_or_else(|| {
        CallError::Refused(format!(
            "no reaction with the number {seq}, or to an event with it: `saltcellar reactor history` lists reactions"
        ))
    })
}

/// Refuses a record of another master's reactor.
fn own(record: &StoredEntry) -> Result<(), CallError> {
    if record.origin.is_empty() {
        return Ok(());
    }
    let (seq, master) = (record.seq, &record.origin);
    Err(CallError::Refused(format!(
        "reaction {seq} is one of the master {master}: run `saltcellar reactor replay` there"
    )))
}

/// `reactor_show`.
pub(crate) struct Show;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ShowArgs {
    /// The number of a reaction or an event
    pub(crate) seq: u64,
}

impl Call for Show {
    const NAME: &'static str = "reactor_show";
    const DOC: &'static str = "Show one reaction with the results of its calls";
    type Scope = Whole<Archive>;
    type Args<'a> = ShowArgs;
    type Answer = ReactionRow;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, args: ShowArgs) -> Result<ReactionRow, CallError> {
        let record = found(ctx.store, args.seq)?;

        // A record that cannot be read is shown as it is, without the results of its calls.
        let calls = StoredRecord::read(&record.body).map_or_else(|_| Vec::new(), |read| read.calls);
        let results = calls
            .iter()
            .map(|call| result(ctx.store, call))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        Ok(ReactionRow {
            results: Some(results),
            ..reaction(&record)
        })
    }
}

/// The current result of a call: of a job, or of a function that had finished when the record was
/// written.
fn result(store: &StoreReader, made: &CallRecord) -> Result<Option<CallResult>, StoreError> {
    // If the function was over when the record was written, the record contains its result.
    if let CallOutcome::Ran {
        success,
        retcode,
        result,
    } = &made.outcome
    {
        return Ok(Some(CallResult {
            seen: true,
            took_us: Some(made.took_us),
            success: Some(*success),
            retcode: *retcode,
            value: result.clone().or_nil(),
            ..CallResult::default()
        }));
    }

    let client = made.call.client;
    let jid = made.jid.as_str();
    let sent = made.sent.0;
    // Nothing in the log belongs to a call without a jid, or to one on the minion itself.
    if jid.is_empty() || !matches!(client, Client::Local | Client::Runner) {
        return Ok(None);
    }

    let is_ret = |entry: &StoredEntry| job_tag(&entry.tag).is_some_and(|tag| tag.about == "ret");
    // Whether minions failed is known without their returns.
    let is_result = |entry: &StoredEntry| client == Client::Runner && is_ret(entry);
    let entries = store.job_entries_with(jid, is_result)?;
    let seen = !entries.is_empty();
    // A runner returns once, as an event; it has no minions.
    if client == Client::Runner {
        let Some(ret) = entries.iter().find(|entry| is_ret(entry)) else {
            return Ok(Some(CallResult {
                seen,
                ..CallResult::default()
            }));
        };
        // A large value is left out; the event has it.
        let value =
            get(&ret.body, "return").filter(|value| value.len() <= REACTOR_RESULT_BYTES_MAX);
        let success = get(&ret.body, "success").and_then(as_bool);

        return Ok(Some(CallResult {
            seen,
            took_us: Some(ret.at.0 - sent),
            success,
            value: Stored::of(value).or_nil(),
            ..CallResult::default()
        }));
    }

    let job = Job::of(entries).unwrap_or_default();
    let answer = |(minion, answer): (&String, &Answer)| MinionResult {
        minion: minion.clone(),
        retcode: answer.code().unwrap_or_default(),
        failed: answer.failed(),
        took_us: answer.entry.at.0 - sent,
    };

    Ok(Some(CallResult {
        seen,
        returned: Some(job.answers.len() as u64),
        failed: Some(job.failed() as u64),
        returns: Some(
            job.answers
                .iter()
                .take(REACTOR_NAMES_MAX)
                .map(answer)
                .collect(),
        ),
        ..CallResult::default()
    }))
}

/// `reactor_why`.
pub(crate) struct Explain;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct WhyArgs {
    /// The tag
    pub(crate) tag: String,
}

impl Call for Explain {
    const NAME: &'static str = "reactor_why";
    const DOC: &'static str = "Show the rules that match a tag, and its latest reactions";
    type Scope = Whole<Reacting>;
    type Args<'a> = WhyArgs;
    type Answer = Why;
}

impl Run for Explain {
    fn run(ctx: &In<'_, Self>, args: WhyArgs) -> Result<Why, CallError> {
        let handle = configured(ctx.handle)?;
        let tag = args.tag.as_str();

        let matching = handle.matching(tag);
        // The tag is a string here, so its special characters are escaped.
        let exactly = |tag: &str| {
            let escaped = tag
                .replace('[', "[[]")
                .replace('*', "[*]")
                .replace('?', "[?]");
            Some(Glob::new(&escaped))
        };

        let of_tag = EventFilter {
            tag: exactly(&format!("{REACTION_TAG}{tag}")),
            reactions: true,
            ..EventFilter::default()
        };
        let rows = ctx
            .archive
            .store
            .events_before(&of_tag, ctx.archive.store.durable(), 10, LIST_BYTES_MAX)
            .map_err(failed)?;

        let events = EventFilter {
            tag: exactly(tag),
            ..EventFilter::default()
        };
        let latest = ctx
            .archive
            .store
            .events_before(&events, ctx.archive.store.durable(), 1, LIST_BYTES_MAX)
            .map_err(failed)?;

        let event = latest.first();
        let user = |event: &StoredEntry| {
            get(&event.body, "user")
                .and_then(as_text)
                .unwrap_or_default()
                .to_owned()
        };

        Ok(Why {
            rules: matching.iter().map(ToString::to_string).collect(),
            reactions: rows.iter().map(reaction).collect(),
            event: event.map(|event| event.seq.0),
            time: event.map(|event| Time(event.at)),
            source: event.map(|event| EventSource(Some(event.source))),
            user: event.map(user),
            peer: event
                .filter(|event| handle.is_of_peer(&event.origin))
                .map(|event| event.origin.clone()),
        })
    }
}

/// `reactor_replay`.
pub(crate) struct ReplayCalls;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReplayArgs {
    /// The number of a reaction or an event
    pub(crate) seq: u64,
    /// Also the calls that were made
    #[serde(default)]
    pub(crate) include_done: bool,
    /// Rerender the rules
    #[serde(default)]
    pub(crate) render: bool,
}

impl Call for ReplayCalls {
    const NAME: &'static str = "reactor_replay";
    const DOC: &'static str = "Repeat dead-lettered calls";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Reacting>;
    type Args<'a> = ReplayArgs;
    type Answer = Replay;
}

impl Run for ReplayCalls {
    fn run(ctx: &In<'_, Self>, args: ReplayArgs) -> Result<Replay, CallError> {
        let ReplayArgs {
            seq,
            include_done,
            render,
        } = args;
        let handle = configured(ctx.handle.as_ref())?;

        let refused = |error: ReplayError| CallError::Refused(error.to_string());
        // `render` starts from the event, which may have no record.
        let (replayed, number) = if render {
            // The number of a record leads to its event; any other number is the event itself.
            let event = match find(&ctx.archive.store, SeqNo(seq)).map_err(failed)? {
                Some(record) => {
                    own(&record)?;
                    RecordKey::read(&record.body).map_or(seq, |record| record.event)
                }
                None => seq,
            };
            (handle.replay_event(SeqNo(event)).map_err(refused)?, event)
        } else {
            let record = found(&ctx.archive.store, seq)?;
            own(&record)?;
            (
                handle.replay(&record, include_done).map_err(refused)?,
                record.seq.0,
            )
        };

        let (what, count) = match replayed {
            Replayed::Calls(count) => (Repeated::Calls, count),
            Replayed::Rules(count) => (Repeated::Rules, count),
        };

        Ok(Replay {
            seq: number,
            what,
            count: count as u64,
        })
    }
}
