//! Calls about the reactor: status, history, reasons, replay.

use serde_json::{Map as JsonMap, Value as Json, json};

mod shadow;

pub(super) use self::shadow::shadow;
use super::lists::Map;
use super::{Ctx, document, failed};
use crate::api::query::Job;
use crate::base::clock::Micros;
use crate::base::limits::{
    LIST_BYTES_MAX, LIST_ROWS_MAX, REACTOR_LEASE, REACTOR_NAMES_MAX, REACTOR_RESULT_BYTES_MAX,
    REACTOR_SEARCH_BYTES,
};
use crate::ingest::bus::{BusMonitor, BusStatus};
use crate::model::{EventFilter, Flags, Glob, Kind, REACTION_TAG, SeqNo};
use crate::reactor::EngineReport;
use crate::reactor::acting::{self, Assigned};
use crate::reactor::run::engine::Handle;
use crate::reactor::run::record::replay::{ReplayError, Replayed};
use crate::store::{StoreError, StoredEntry};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{Writer, as_bool, as_int, as_text, elements, get};
use crate::wire::salt_event::job_tag;

fn reactor(ctx: &Ctx) -> Result<&Handle, CallError> {
    let none = || {
        let message = "no reactor is configured: set reactor.master or reactor.minion in the configuration";
        CallError::Refused(message.to_owned())
    };
    ctx.reactor.as_ref().ok_or_else(none)
}

/// The reactor's status, and its rules with the reactor that acts on each.
pub(super) fn list(ctx: &Ctx, _args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let handle = reactor(ctx)?;
    let status = handle.status();
    let buses: Vec<_> = ctx.buses.iter().map(BusMonitor::status).collect();
    let unstored: u64 = buses.iter().map(|bus| bus.waiting.events + bus.waiting.spilled_events).sum();
    let ended = handle.ended().into_iter().map(|(state, count)| (state.to_owned(), count.into()));
    let blocked = handle.blocked_by().or_else(|| no_events(ctx, &buses));
    let salts = handle.salts_reactor();
    let rules =
        acting::assign(handle.rules(), &salts, blocked.as_deref(), "`reactor.rules` does not have it");
    let rules = rules.into_iter().map(|Assigned { rule, actor, why }| {
        json!({ "rule": rule.pattern, "acts": actor.name(), "why": why, "files": rule.files })
    });
    let mut answer = json!({
        "cursor": status.cursor.0,
        "behind": status.behind,
        "waiting": status.waiting,
        "open": status.open,
        "unstored": unstored,
        "master_unreachable": status.master_unreachable,
        "shadow": status.shadow,
        "refused": status.refused.map(|(at, why)| json!({ "time": at.0, "why": why })),
        "reactions": ended.collect::<JsonMap<_, _>>(),
        "blocked": blocked,
        "salts_reactor": salts.runs,
        "compared": compared(ctx),
        "differences": handle.differences(),
        "foreign_call": handle.foreign_call().map(|(at, fun)| json!({ "time": at.0, "fun": fun })),
        "rules": rules.collect::<Json>(),
    });
    if let Some(fields) = answer.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    document(answer)
}

/// Numbers of calls compared in shadow mode since the start, by result.
fn compared(ctx: &Ctx) -> Json {
    let metrics = &ctx.metrics;
    json!({
        "same": metrics.shadow_same.get(),
        "differs": metrics.shadow_differs.get(),
        "only ours": metrics.shadow_only_ours.get(),
        "only Salt's": metrics.shadow_only_salts.get(),
        "ours failed": metrics.shadow_failed.get(),
        "unseen": metrics.shadow_unseen.get(),
        "unattributed": metrics.shadow_unattributed.get(),
    })
}

/// Renews the reactor's lease for the master's engine, see [`EngineReport`].
pub(super) fn lease(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let handle = reactor(ctx)?;
    let report = EngineReport {
        token: args.text("token")?,
        fallback: args.flag("fallback")?,
        acts: args.flag("acts")?,
        began: args.int("began")?.map(Micros),
        ended: args.int("ended")?.map(Micros),
    };
    let (token, blocked) = handle.report(&report);
    let buses: Vec<_> = ctx.buses.iter().map(BusMonitor::status).collect();
    document(json!({
        "token": token,
        "lease_ms": REACTOR_LEASE.as_millis(),
        "blocked": blocked.or_else(|| no_events(ctx, &buses)),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

/// Why the reactor receives no events; `None` if it does.
pub(in crate::api) fn no_events(ctx: &Ctx, buses: &[BusStatus]) -> Option<String> {
    if buses.is_empty() {
        return Some("no bus is configured (`bus`)".to_owned());
    }
    if let Some(why) = ctx.store.refusal().or_else(|| buses.iter().find_map(|bus| bus.refused.clone())) {
        return Some(format!("the store accepts no events: {why}"));
    }
    if buses.iter().any(|bus| bus.connected) {
        return None;
    }
    let paths: Vec<_> = buses.iter().map(|bus| bus.path.display().to_string()).collect();
    Some(format!("no bus is connected: {}", paths.join(", ")))
}

fn filter(args: &Args<'_>) -> Result<EventFilter, CallError> {
    Ok(EventFilter {
        minion: args.text("minion")?.map(str::to_owned),
        since: args.int("since")?.map(Micros),
        until: args.int("until")?.map(Micros),
        ..reactions_to(args.text("tag")?.unwrap_or("*"))
    })
}

/// Reactions to events with a tag. Without the pattern, the index would exclude no part of the log.
fn reactions_to(tag: &str) -> EventFilter {
    let tag = Some(Glob::new(&format!("{REACTION_TAG}{tag}")));
    EventFilter { tag, reactions: true, ..EventFilter::default() }
}

/// Reactions, the latest first.
pub(super) fn history(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let filter = filter(args)?;
    let before = args.count("before")?.map_or(ctx.store.durable(), |n| SeqNo(n as u64));
    let limit = args.count("limit")?.unwrap_or(20).clamp(1, LIST_ROWS_MAX);
    let state = args.text("state")?;
    let replays = args.flag("replays")?;
    let mut rows = Vec::new();
    let (mut bytes, mut cursor, mut more) = (0, before, true);
    while rows.len() < limit && bytes < LIST_BYTES_MAX && more {
        let found =
            ctx.store.events_before(&filter, cursor, limit, LIST_BYTES_MAX - bytes).map_err(failed)?;
        more = found.len() == limit
            || found.iter().map(|row| row.body.len()).sum::<usize>() + bytes >= LIST_BYTES_MAX;
        let Some(last) = found.last() else { break };
        cursor = last.seq;
        for row in found {
            let of_row = get(&row.body, "state").and_then(as_text);
            let is_wanted = state.is_none_or(|wanted| wanted.split(',').any(|one| of_row == Some(one)))
                && (!replays || get(&row.body, "replay").is_some());
            if rows.len() < limit && is_wanted {
                bytes += row.body.len();
                rows.push(row);
            } else if rows.len() >= limit {
                more = true;
            }
        }
    }
    let mut w = Writer::new();
    w.map(2).str("reactions").array(rows.len());
    for row in &rows {
        write(&mut w, row, None);
    }
    w.str("more").bool(more && !rows.is_empty());
    Ok(w.into_bytes())
}

fn write(w: &mut Writer, row: &StoredEntry, results: Option<&[u8]>) {
    let mut map = Map::default();
    map.key("seq").uint(row.seq.0);
    map.key("time").int(row.at.0);
    map.key("tag").str(String::from_utf8_lossy(&row.tag).trim_start_matches(REACTION_TAG));
    if !row.minion.is_empty() {
        map.key("minion").str(&row.minion);
    }
    map.key("reaction").raw(&row.body);
    if let Some(results) = results {
        map.key("results").raw(results);
    }
    map.write(w);
}

/// The record with this number, or the first record about the event with this number.
fn find(ctx: &Ctx, seq: SeqNo) -> Result<Option<StoredEntry>, StoreError> {
    let filter = reactions_to("*");
    let latest = ctx.store.events_before(&filter, seq.next(), 1, usize::MAX)?;
    if let Some(record) = latest.into_iter().next().filter(|record| record.seq == seq) {
        return Ok(Some(record));
    }
    // The record of an event follows it, usually closely.
    let (mut from, mut searched, mut found) = (seq, 0, None);
    while found.is_none() && searched < REACTOR_SEARCH_BYTES {
        let is_record = |kind, flags: Flags| kind == Kind::Reaction && flags.has(Flags::REACTION);
        let after = ctx.store.follow(is_record, from, REACTOR_SEARCH_BYTES / 16, |row| {
            searched += row.body.len();
            let event = get(row.body, "event").and_then(as_int).and_then(|n| u64::try_from(n).ok());
            if found.is_none() && event == Some(seq.0) {
                found = Some(row.seq);
            }
        })?;
        if after == from {
            break;
        }
        from = after;
    }
    let Some(record) = found else { return Ok(None) };
    Ok(ctx.store.events_before(&filter, record.next(), 1, usize::MAX)?.into_iter().next())
}

fn found(ctx: &Ctx, args: &Args<'_>) -> Result<StoredEntry, CallError> {
    let seq = args
        .count("seq")?
        .ok_or(CallError::BadArgs { key: "seq", expected: "the number of a reaction or an event" })?;
    let record = find(ctx, SeqNo(seq as u64)).map_err(failed)?;
    record.ok_or_else(|| {
        CallError::Refused(format!("no reaction with the number {seq}, or to an event with it"))
    })
}

/// One reaction, with the results of its calls.
pub(super) fn show(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let record = found(ctx, args)?;
    let calls: Vec<&[u8]> = elements(get(&record.body, "calls").unwrap_or_default()).collect();
    let mut results = Writer::new();
    results.array(calls.len());
    for call in calls {
        result(ctx, &mut results, call).map_err(failed)?;
    }
    let mut w = Writer::new();
    write(&mut w, &record, Some(&results.into_bytes()));
    Ok(w.into_bytes())
}

/// The current result of a call: of a job, or of a function that had finished when the record was written.
fn result(ctx: &Ctx, w: &mut Writer, call: &[u8]) -> Result<(), StoreError> {
    let text = |key| get(call, key).and_then(as_text).unwrap_or_default();
    let sent = get(call, "sent").and_then(as_int).unwrap_or(0);
    let (client, jid) = (text("client"), text("jid"));
    if text("outcome") == "ran" {
        let mut map = Map::default();
        map.key("seen").bool(true);
        for (key, of) in
            [("took_us", "took_us"), ("success", "success"), ("retcode", "retcode"), ("return", "result")]
        {
            if let Some(value) = get(call, of) {
                map.key(key).raw(value);
            }
        }
        map.write(w);
        return Ok(());
    }
    if jid.is_empty() || !matches!(client, "local" | "runner") {
        w.nil();
        return Ok(());
    }
    let entries = ctx.store.job_entries(jid)?;
    let mut map = Map::default();
    if client == "runner" {
        map.key("seen").bool(!entries.is_empty());
        let is_ret = |entry: &&StoredEntry| job_tag(&entry.tag).is_some_and(|tag| tag.about == "ret");
        if let Some(ret) = entries.iter().find(is_ret) {
            map.key("took_us").int(ret.at.0 - sent);
            if let Some(success) = get(&ret.body, "success").and_then(as_bool) {
                map.key("success").bool(success);
            }
            let value = get(&ret.body, "return").filter(|value| value.len() <= REACTOR_RESULT_BYTES_MAX);
            map.key("return").raw(value.unwrap_or(&[0xc0]));
        }
    } else {
        map.key("seen").bool(!entries.is_empty());
        let job = Job::of(entries).unwrap_or_default();
        map.key("returned").uint(job.answers.len() as u64);
        map.key("failed").uint(job.failed() as u64);
        let shown = job.answers.len().min(REACTOR_NAMES_MAX);
        let list = map.key("returns").array(shown);
        for (minion, answer) in job.answers.iter().take(shown) {
            list.map(4).str("minion").str(minion).str("retcode").int(answer.code().unwrap_or_default());
            list.str("failed").bool(answer.failed()).str("took_us").int(answer.entry.at.0 - sent);
        }
    }
    map.write(w);
    Ok(())
}

/// The rules that match a tag, and the reactions to its latest events.
pub(super) fn why(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let handle = reactor(ctx)?;
    let tag = args.required_text("tag")?;
    let matching = handle.matching(tag);
    let exactly = |tag: &str| {
        let escaped = tag.replace('[', "[[]").replace('*', "[*]").replace('?', "[?]");
        Some(Glob::new(&escaped))
    };
    let of_tag = EventFilter {
        tag: exactly(&format!("{REACTION_TAG}{tag}")),
        reactions: true,
        ..EventFilter::default()
    };
    let rows = ctx.store.events_before(&of_tag, ctx.store.durable(), 10, LIST_BYTES_MAX).map_err(failed)?;
    let events = EventFilter { tag: exactly(tag), ..EventFilter::default() };
    let latest = ctx.store.events_before(&events, ctx.store.durable(), 1, LIST_BYTES_MAX).map_err(failed)?;
    let mut map = Map::default();
    let w = map.key("rules").array(matching.len());
    for rule in matching {
        w.str(&rule);
    }
    let w = map.key("reactions").array(rows.len());
    for row in &rows {
        write(w, row, None);
    }
    if let Some(event) = latest.first() {
        map.key("event").uint(event.seq.0);
        map.key("time").int(event.at.0);
        map.key("source").str(event.source.name());
        map.key("user").str(get(&event.body, "user").and_then(as_text).unwrap_or_default());
    }
    Ok(map.into_bytes())
}

pub(super) fn replay(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let handle = reactor(ctx)?;
    let flag = |key| Ok::<bool, CallError>(args.raw(key).and_then(as_bool).unwrap_or(false));
    let refused = |error: ReplayError| CallError::Refused(error.to_string());
    let (replayed, number) = if flag("render")? {
        let seq = args
            .count("seq")?
            .ok_or(CallError::BadArgs { key: "seq", expected: "the number of an event or a reaction" })?;
        let event = match find(ctx, SeqNo(seq as u64)).map_err(failed)? {
            Some(record) => get(&record.body, "event")
                .and_then(as_int)
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(seq as u64),
            None => seq as u64,
        };
        (handle.replay_event(SeqNo(event)).map_err(refused)?, event)
    } else {
        let record = found(ctx, args)?;
        (handle.replay(&record, flag("all")?).map_err(refused)?, record.seq.0)
    };
    let (what, count) = match replayed {
        Replayed::Calls(count) => ("calls", count),
        Replayed::Rules(count) => ("rules", count),
    };
    document(json!({ "seq": number, "what": what, "count": count }))
}
