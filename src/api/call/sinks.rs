//! Calls about sinks: status, tests, control, dead letters.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::consumers::StartArgs;
use super::{Ctx, document, typed};
use crate::base::limits::{LIST_BYTES_MAX, SINK_SHOWN_BYTES_MAX};
use crate::engines::dead_letters::DeadLetter;
use crate::engines::runtime::{SinkError, SinkStatus};
use crate::wire::call::{Args, CallError};

#[derive(Deserialize)]
struct NameArgs {
    name: String,
}

#[derive(Deserialize)]
struct ListArgs {
    name: Option<String>,
}

#[derive(Deserialize)]
struct SeekArgs {
    name: String,
    #[serde(flatten)]
    start: StartArgs,
}

/// Dead letters of a sink: these, or all. Each is named by the event's id or its sequence number.
#[derive(Deserialize)]
struct LettersArgs {
    name: String,
    ids: Option<Vec<String>>,
    /// The `next` of the page before.
    after: Option<(u64, String)>,
}

fn refused(error: SinkError) -> CallError {
    match error {
        SinkError::DeadLetters(error) => CallError::Internal(error.to_string()),
        error => CallError::Refused(error.to_string()),
    }
}

fn row(status: &SinkStatus) -> Json {
    let SinkStatus { settings, last, counters, progress, dead_letters } = status;
    let error = last.error.as_ref().map(|(at, message)| json!({ "time": at.0, "message": message }));
    let progress = progress.as_ref();
    json!({
        "name": settings.name,
        "encoder": settings.encoder.0,
        "transport": settings.transport.0,
        "destination": settings.transport.1.describe(),
        "state": if progress.is_ok_and(|progress| progress.is_paused) { "paused" } else { last.phase.name() },
        "cursor": progress.ok().map(|progress| progress.cursor.0),
        "lag_entries": progress.ok().map(|progress| progress.lag_entries),
        "lag_s": progress.ok().map(|progress| progress.lag.as_secs()),
        "problem": progress.err(),
        "last_delivery": last.delivered_at.map(|at| json!({ "time": at.0 })),
        "failures": last.failures,
        "error": error,
        "dead_letters": dead_letters,
        "counters": counters.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect::<serde_json::Map<_, _>>(),
    })
}

pub(super) fn list(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let ListArgs { name } = typed(args)?;
    let mut all = ctx.engines.list();
    if let Some(name) = name {
        all.retain(|status| status.settings.name == name);
        if all.is_empty() {
            return Err(CallError::Refused(format!("no sink {name:?} is configured")));
        }
    }
    document(json!({ "sinks": all.iter().map(row).collect::<Json>() }))
}

pub(super) fn check(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let all = ctx.engines.check().into_iter().map(|(name, found)| {
        let (is_ok, message) = match found {
            Ok(found) => (true, found),
            Err(problem) => (false, problem),
        };
        json!({ "name": name, "ok": is_ok, "found": message })
    });
    document(json!({ "sinks": all.collect::<Json>() }))
}

pub(super) fn test(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    let result = ctx.engines.test(&name).map_err(refused)?;
    let event = &result.event;
    document(json!({
        "name": name,
        "event": { "seq": event.seq.0, "id": event.id, "tag": event.tag, "time": event.at.0 },
        "items": result.items,
        "request": shown(&result.transcript.request),
        "response": shown(&result.transcript.response),
        "error": result.error,
    }))
}

/// The beginning of a long text.
fn shown(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SINK_SHOWN_BYTES_MAX)).unwrap_or_default()
}

fn set_paused(ctx: &Ctx, args: &Args<'_>, paused: bool) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    ctx.engines.pause(&name, paused).map_err(refused)?;
    document(json!({ "name": name, "paused": paused }))
}

pub(super) fn pause(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    set_paused(ctx, args, true)
}

pub(super) fn resume(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    set_paused(ctx, args, false)
}

pub(super) fn seek(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let SeekArgs { name, start } = typed(args)?;
    let Some(start) = start.start()? else {
        return Err(CallError::Argument("give one of `to`, `time` and `seq`".to_owned()));
    };
    let progress = ctx.engines.seek(&name, start).map_err(refused)?;
    document(json!({ "name": name, "cursor": progress.cursor.0 }))
}

/// A page of dead letters, by sequence number.
pub(super) fn dead_letters(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, after } = typed(args)?;
    let mut letters = ctx.engines.dead_letters(&name).map_err(refused)?;
    letters.retain(|letter| {
        ids.as_ref().is_none_or(|ids| ids.iter().any(|id| letter.is(id)))
            && after.as_ref().is_none_or(|(seq, id)| (letter.seq, letter.id.as_str()) > (*seq, id))
    });
    let (mut rows, mut bytes, mut last) = (Vec::new(), 0, None);
    let total = letters.len();
    for letter in &letters {
        bytes += letter.body.len() + letter.tag.len() + letter.reason.len();
        if bytes > LIST_BYTES_MAX && !rows.is_empty() {
            break;
        }
        rows.push(letter_row(letter));
        last = Some((letter.seq, letter.id.as_str()));
    }
    let more = rows.len() < total;
    document(json!({ "dead_letters": rows, "more": more, "next": last.filter(|_| more) }))
}

fn letter_row(letter: &DeadLetter) -> Json {
    json!({
        "seq": letter.seq,
        "time": letter.at,
        "failed": { "time": letter.failed_at },
        "attempts": letter.attempts,
        "reason": letter.reason,
        "id": letter.id,
        "tag": letter.tag,
        "minion": letter.minion,
        "fun": letter.fun,
        "jid": letter.jid,
        "data": letter.event().data().map(|data| data.to_string()).ok(),
    })
}

pub(super) fn retry(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, .. } = typed(args)?;
    let count = ctx.engines.retry_dead_letters(&name, ids.as_deref()).map_err(refused)?;
    document(json!({ "name": name, "count": count }))
}

pub(super) fn drop(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, .. } = typed(args)?;
    let count = ctx.engines.drop_dead_letters(&name, ids.as_deref()).map_err(refused)?;
    document(json!({ "name": name, "count": count }))
}
