//! Calls about sinks: status, tests, control, dead letters.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::consumers::{Position, Problem, StartArgs};
use super::{Ctx, document, typed};
use crate::api::query::Moment;
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, SINK_SHOWN_BYTES_MAX};
use crate::engines::dead_letters::DeadLetter;
use crate::engines::runtime::{SinkError, SinkStatus};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::Time;

answers! {
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
        /// Why the position is not known.
        problem: Option<String>,
        last_delivery: Option<Moment>,
        /// Since the last delivery.
        failures: u64,
        error: Option<Problem>,
        dead_letters: u64,
        counters: BTreeMap<String, u64>,
    }
    /// Whether the destinations of sinks are reachable.
    SinkChecks {
        sinks: Vec<SinkCheck>,
    }
    /// Whether a destination is reachable.
    SinkCheck {
        name: String,
        ok: bool,
        found: String,
    }
    /// The delivery of one event.
    SinkTest {
        name: String,
        event: TestedEvent,
        items: u64,
        request: String,
        response: String,
        error: Option<String>,
    }
    /// The event of a test.
    TestedEvent {
        seq: u64,
        id: String,
        tag: String,
        time: Time,
    }
    /// Dead letters of a sink.
    DeadLettersPage {
        dead_letters: Vec<DeadLetterRow>,
        more: bool,
        /// `after` of the next page: a sequence number, and the id of an event.
        next: Option<(u64, String)>,
    }
    /// An event that the destination of a sink rejected.
    #[schemars(rename = "DeadLetter")]
    DeadLetterRow {
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
    /// A number of dead letters.
    LetterCount {
        name: String,
        count: u64,
    }
}

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

fn row(status: &SinkStatus) -> Sink {
    let SinkStatus {
        settings,
        last,
        counters,
        progress,
        dead_letters,
    } = status;

    // A sink that could not start, or whose consumer was deleted, has no position.
    let known = progress.as_ref().ok();
    let is_paused = known.is_some_and(|progress| progress.is_paused);

    Sink {
        name: settings.name.clone(),
        encoder: settings.encoder.0.to_owned(),
        transport: settings.transport.0.to_owned(),
        destination: settings.transport.1.describe(),
        state: if is_paused {
            "paused"
        } else {
            last.phase.name()
        }
        .to_owned(),
        cursor: known.map(|progress| progress.cursor.0),
        lag_entries: known.map(|progress| progress.lag_entries),
        lag_s: known.map(|progress| progress.lag.as_secs()),
        problem: progress.as_ref().err().cloned(),
        last_delivery: last.delivered_at.map(|at| Moment { time: Time(at) }),
        failures: last.failures.into(),
        error: last.error.as_ref().map(|(at, text)| Problem {
            time: Time(*at),
            message: text.clone(),
        }),
        dead_letters: *dead_letters as u64,
        counters: counters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
    }
}

pub(super) fn list(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let ListArgs { name } = typed(args)?;
    let mut all = ctx.engines.list();
    // An unknown name is an error: an empty list would look like a sink that is gone.
    if let Some(name) = name {
        all.retain(|status| status.settings.name == name);
        if all.is_empty() {
            return Err(CallError::Refused(format!(
                "no sink {name:?} is configured"
            )));
        }
    }

    document(&SinksPage {
        sinks: all.iter().map(row).collect(),
    })
}

pub(super) fn check(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let check = |(name, found): (String, Result<String, String>)| SinkCheck {
        name,
        ok: found.is_ok(),
        found: found.unwrap_or_else(|problem| problem),
    };
    document(&SinkChecks {
        sinks: ctx.engines.check().into_iter().map(check).collect(),
    })
}

pub(super) fn test(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    let result = ctx.engines.test(&name).map_err(refused)?;

    let event = &result.event;
    document(&SinkTest {
        name,
        event: TestedEvent {
            seq: event.seq.0,
            id: event.id.clone(),
            tag: event.tag.clone(),
            time: Time(event.at),
        },
        items: result.items as u64,
        request: shown(&result.transcript.request).to_owned(),
        response: shown(&result.transcript.response).to_owned(),
        error: result.error,
    })
}

/// The beginning of a long text.
fn shown(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SINK_SHOWN_BYTES_MAX))
        .unwrap_or_default()
}

fn set_paused(ctx: &Ctx, args: &Args<'_>, paused: bool) -> Result<Vec<u8>, CallError> {
    let NameArgs { name } = typed(args)?;
    ctx.engines.pause(&name, paused).map_err(refused)?;
    document(&Position {
        name: Some(name),
        paused: Some(paused),
        cursor: None,
    })
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
        return Err(CallError::Argument(
            "give one of `to`, `time` and `seq`".to_owned(),
        ));
    };
    let progress = ctx.engines.seek(&name, start).map_err(refused)?;
    document(&Position {
        name: Some(name),
        cursor: Some(progress.cursor.0),
        paused: None,
    })
}

/// A page of dead letters, by sequence number.
pub(super) fn dead_letters(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, after } = typed(args)?;

    let mut letters = ctx.engines.dead_letters(&name).map_err(refused)?;
    // Letters are sorted, so `after` is the last one of the page before.
    letters.retain(|letter| {
        ids.as_ref()
            .is_none_or(|ids| ids.iter().any(|id| letter.is(id)))
            && after
                .as_ref()
                .is_none_or(|(seq, id)| (letter.seq, letter.id.as_str()) > (*seq, id))
    });

    let (mut rows, mut bytes, mut last) = (Vec::new(), 0, None);
    let total = letters.len();
    for letter in &letters {
        bytes += letter.body.len() + letter.tag.len() + letter.reason.len();
        // At least one, so that a letter larger than the limit does not block the rest.
        if bytes > LIST_BYTES_MAX && !rows.is_empty() {
            break;
        }
        rows.push(letter_row(letter));
        last = Some((letter.seq, letter.id.clone()));
    }

    let more = rows.len() < total;
    document(&DeadLettersPage {
        dead_letters: rows,
        more,
        next: last.filter(|_| more),
    })
}

fn letter_row(letter: &DeadLetter) -> DeadLetterRow {
    DeadLetterRow {
        seq: letter.seq,
        time: Time(Micros(letter.at)),
        failed: Moment {
            time: Time(Micros(letter.failed_at)),
        },
        attempts: letter.attempts.into(),
        reason: letter.reason.clone(),
        id: letter.id.clone(),
        tag: letter.tag.clone(),
        minion: letter.minion.clone(),
        fun: letter.fun.clone(),
        jid: letter.jid.clone(),
        data: letter.event().data().map(|data| data.to_string()).ok(),
    }
}

pub(super) fn retry(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, .. } = typed(args)?;
    let count = ctx
        .engines
        .retry_dead_letters(&name, ids.as_deref())
        .map_err(refused)?;
    document(&LetterCount {
        name,
        count: count as u64,
    })
}

pub(super) fn drop(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let LettersArgs { name, ids, .. } = typed(args)?;
    let count = ctx
        .engines
        .drop_dead_letters(&name, ids.as_deref())
        .map_err(refused)?;
    document(&LetterCount {
        name,
        count: count as u64,
    })
}
