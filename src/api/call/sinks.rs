//! Calls about sinks: status, tests, control, dead letters.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::consumers::{Position, Problem};
use super::events::StartArgs;
use super::page_rows::PageRows;
use super::{Call, Changing, In, NoArgs, Run, Whole};
use crate::api::query::{Moment, masked};
use crate::base::clock::Micros;
use crate::base::limits::SINK_SHOWN_BYTES_MAX;
use crate::base::visible::plain;
use crate::engines::dead_letters::DeadLetter;
use crate::engines::runtime::{Engines, Phase, SinkCounts, SinkError, SinkStatus};
use crate::model::Right;
use crate::wire::call::CallError;
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
        state: Phase,
        cursor: Option<u64>,
        lag_entries: Option<u64>,
        lag_s: Option<u64>,
        /// The lag of the last hour in seconds: one value a minute, the oldest first.
        lag_history: Vec<u64>,
        /// The longest pause between two attempts, in seconds.
        retry_s: u64,
        /// Why the position is not known.
        problem: Option<String>,
        last_delivery: Option<Moment>,
        /// Since the last delivery.
        failures: u64,
        error: Option<Problem>,
        dead_letters: u64,
        counters: SinkCounts,
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
        /// Number of dead letters on all pages.
        total: u64,
        /// The reasons of all of them, most letters first, up to 50.
        reasons: Vec<LetterReason>,
        more: bool,
        /// `after` of the next page: a sequence number, and the id of an event.
        next: Option<(u64, String)>,
    }
    /// Dead letters with a like reason.
    LetterReason {
        /// The reason without numbers and names: `#` and `*` stand for them.
        reason: String,
        count: u64,
        /// The reason of one of them.
        example: String,
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
        lags,
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
        // A pause is saved, and counts even before the thread has noticed it.
        state: if is_paused { Phase::Paused } else { last.phase },
        cursor: known.map(|progress| progress.cursor.0),
        lag_entries: known.map(|progress| progress.lag_entries),
        lag_s: known.map(|progress| progress.lag.as_secs()),
        lag_history: lags.clone(),
        retry_s: settings.retry.max.as_secs(),
        problem: progress.as_ref().err().cloned(),
        last_delivery: last.delivered_at.map(|at| Moment { time: Time(at) }),
        failures: last.failures.into(),
        error: last.error.as_ref().map(|(at, text)| Problem {
            time: Time(*at),
            message: text.clone(),
        }),
        dead_letters: *dead_letters as u64,
        counters: *counters,
    }
}

/// `sinks_list`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Only this sink
    pub(crate) name: Option<String>,
}

impl Call for List {
    const NAME: &'static str = "sinks_list";
    const DOC: &'static str = "List sinks with their state and lag";
    type Scope = Whole<Engines>;
    type Args<'a> = ListArgs;
    type Answer = SinksPage;
}

impl Run for List {
    fn run(engines: &In<'_, Self>, args: ListArgs) -> Result<SinksPage, CallError> {
        let mut all = engines.list();
        // An unknown name is an error: an empty list would look like a sink that is gone.
        if let Some(name) = args.name {
            all.retain(|status| status.settings.name == name);
            if all.is_empty() {
                return Err(CallError::Refused(format!(
                    "no sink {name:?} is configured; `saltcellar sinks list` lists them"
                )));
            }
        }

        Ok(SinksPage {
            sinks: all.iter().map(row).collect(),
        })
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NameArgs {
    /// The sink's name
    pub(crate) name: String,
}

/// `sinks_check`.
pub(crate) struct Check;

impl Call for Check {
    const NAME: &'static str = "sinks_check";
    const DOC: &'static str = "Check that destinations of sinks are reachable";
    const RIGHT: Right = Right::Write;
    type Scope = Changing<Engines>;
    type Args<'a> = NoArgs;
    type Answer = SinkChecks;
}

impl Run for Check {
    fn run(engines: &In<'_, Self>, _: NoArgs) -> Result<SinkChecks, CallError> {
        let check = |(name, found): (String, Result<String, String>)| SinkCheck {
            name,
            ok: found.is_ok(),
            found: found.unwrap_or_else(|problem| problem),
        };
        Ok(SinkChecks {
            sinks: engines.check().into_iter().map(check).collect(),
        })
    }
}

/// `sink_test`.
pub(crate) struct Test;

impl Call for Test {
    const NAME: &'static str = "sink_test";
    const DOC: &'static str = "Send the newest matching event to the destination of a sink";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = NameArgs;
    type Answer = SinkTest;
}

impl Run for Test {
    fn run(engines: &In<'_, Self>, args: NameArgs) -> Result<SinkTest, CallError> {
        let NameArgs { name } = args;
        let result = engines.test(&name).map_err(refused)?;

        let event = result.event;
        Ok(SinkTest {
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
}

/// The beginning of a long string.
fn shown(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SINK_SHOWN_BYTES_MAX))
        .unwrap_or_default()
}

fn set_paused(engines: &Engines, name: String, paused: bool) -> Result<Position, CallError> {
    engines.pause(&name, paused).map_err(refused)?;
    Ok(Position {
        name: Some(name),
        paused: Some(paused),
        cursor: None,
    })
}

/// `sink_pause`.
pub(crate) struct Pause;

impl Call for Pause {
    const NAME: &'static str = "sink_pause";
    const DOC: &'static str = "Pause a sink";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = NameArgs;
    type Answer = Position;
}

impl Run for Pause {
    fn run(engines: &In<'_, Self>, args: NameArgs) -> Result<Position, CallError> {
        set_paused(engines, args.name, true)
    }
}

/// `sink_resume`.
pub(crate) struct Resume;

impl Call for Resume {
    const NAME: &'static str = "sink_resume";
    const DOC: &'static str = "Resume a sink";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = NameArgs;
    type Answer = Position;
}

impl Run for Resume {
    fn run(engines: &In<'_, Self>, args: NameArgs) -> Result<Position, CallError> {
        set_paused(engines, args.name, false)
    }
}

/// `sink_seek`.
pub(crate) struct Seek;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SeekArgs {
    /// The sink's name
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) start: StartArgs,
}

impl Call for Seek {
    const NAME: &'static str = "sink_seek";
    const DOC: &'static str = "Move the position of a sink";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = SeekArgs;
    type Answer = Position;
}

impl Run for Seek {
    fn run(engines: &In<'_, Self>, args: SeekArgs) -> Result<Position, CallError> {
        let SeekArgs { name, start } = args;
        let progress = engines.seek(&name, start.required()?).map_err(refused)?;
        Ok(Position {
            name: Some(name),
            cursor: Some(progress.cursor.0),
            paused: None,
        })
    }
}

/// `sink_dead_letters`.
pub(crate) struct DeadLetters;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DeadLettersArgs {
    /// The sink's name
    pub(crate) name: String,
    /// Only these dead letters, by the event's id or its sequence number
    pub(crate) ids: Option<Vec<String>>,
    /// Only after this one: `next` of the previous page
    pub(crate) after: Option<(u64, String)>,
}

impl Call for DeadLetters {
    const NAME: &'static str = "sink_dead_letters";
    const DOC: &'static str = "List the dead letters of a sink";
    type Scope = Whole<Engines>;
    type Args<'a> = DeadLettersArgs;
    type Answer = DeadLettersPage;
}

impl Run for DeadLetters {
    fn run(engines: &In<'_, Self>, args: DeadLettersArgs) -> Result<DeadLettersPage, CallError> {
        let DeadLettersArgs { name, ids, after } = args;

        let mut letters = engines.dead_letters(&name).map_err(refused)?;
        letters.retain(|letter| {
            ids.as_ref()
                .is_none_or(|ids| ids.iter().any(|id| letter.is(id)))
        });

        let reasons = reasons(&letters);
        let all = letters.len();
        // Letters are sorted, so `after` is the last one of the page before.
        letters.retain(|letter| {
            after
                .as_ref()
                .is_none_or(|(seq, id)| (letter.seq, letter.id.as_str()) > (*seq, id))
        });

        let mut rows = PageRows::new(usize::MAX);
        let mut last = None;
        let total = letters.len();
        for letter in &letters {
            if rows.is_full() {
                break;
            }
            let bytes = letter.body.len() + letter.tag.len() + letter.reason.len();
            rows.add([letter_row(letter)], bytes);
            last = Some((letter.seq, letter.id.clone()));
        }

        let rows = rows.into_rows();

        let more = rows.len() < total;
        Ok(DeadLettersPage {
            dead_letters: rows,
            total: all as u64,
            reasons,
            more,
            next: last.filter(|_| more),
        })
    }
}

/// The reasons of dead letters in groups, the largest first.
fn reasons(letters: &[DeadLetter]) -> Vec<LetterReason> {
    const SHOWN: usize = 50;

    let mut groups: BTreeMap<String, LetterReason> = BTreeMap::new();
    for letter in letters {
        let reason = reason_of(letter);
        let group = groups
            .entry(reason.clone())
            .or_insert_with(|| LetterReason {
                reason,
                count: 0,
                example: letter.reason.clone(),
            });
        group.count += 1;
    }

    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.count));
    groups.truncate(SHOWN);
    groups
}

/// The reason of a dead letter without what differs from event to event, as it is shown: a form sends it back, and a browser changes line breaks.
fn reason_of(letter: &DeadLetter) -> String {
    let mut text = letter.reason.clone();
    for name in [&letter.id, &letter.jid, &letter.tag] {
        if !name.is_empty() {
            text = text.replace(name.as_str(), "*");
        }
    }
    plain(&masked(&text, &letter.minion)).into_owned()
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
        // Data that cannot be read are left out. The letter can still be retried or dropped.
        data: letter.event().data().map(|data| data.to_string()).ok(),
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LettersArgs {
    /// The sink's name
    pub(crate) name: String,
    /// Only these dead letters, by the event's id or its sequence number
    pub(crate) ids: Option<Vec<String>>,
    /// Only dead letters with a reason like this one, as in `reasons` of the list
    pub(crate) reason: Option<String>,
}

impl LettersArgs {
    /// Changes these dead letters, and returns their number.
    fn counted(
        self,
        engines: &Engines,
        change: impl FnOnce(&str, Option<&[String]>) -> Result<usize, SinkError>,
    ) -> Result<LetterCount, CallError> {
        let ids = match &self.reason {
            None => self.ids,
            // By their ids: a letter that gets this reason later was not seen by the caller.
            Some(reason) => {
                let mut letters = engines.dead_letters(&self.name).map_err(refused)?;
                letters.retain(|letter| {
                    let ids = self.ids.as_ref();
                    ids.is_none_or(|ids| ids.iter().any(|id| letter.is(id)))
                        && reason_of(letter) == *reason
                });
                Some(letters.into_iter().map(|letter| letter.id).collect())
            }
        };

        let count = change(&self.name, ids.as_deref()).map_err(refused)?;
        Ok(LetterCount {
            name: self.name,
            count: count as u64,
        })
    }
}

/// `sink_retry`.
pub(crate) struct Retry;

impl Call for Retry {
    const NAME: &'static str = "sink_retry";
    const DOC: &'static str = "Redeliver dead letters";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = LettersArgs;
    type Answer = LetterCount;
}

impl Run for Retry {
    fn run(engines: &In<'_, Self>, args: LettersArgs) -> Result<LetterCount, CallError> {
        args.counted(engines, |name, ids| engines.retry_dead_letters(name, ids))
    }
}

/// `sink_drop`.
pub(crate) struct Drop;

impl Call for Drop {
    const NAME: &'static str = "sink_drop";
    const DOC: &'static str = "Delete dead letters";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Engines>;
    type Args<'a> = LettersArgs;
    type Answer = LetterCount;
}

impl Run for Drop {
    fn run(engines: &In<'_, Self>, args: LettersArgs) -> Result<LetterCount, CallError> {
        args.counted(engines, |name, ids| engines.drop_dead_letters(name, ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_reasons_are_one_group() {
        let letter = |seq: u64, minion: &str, reason: &str| DeadLetter {
            seq,
            at: 0,
            failed_at: 0,
            attempts: 1,
            reason: reason.to_owned(),
            id: format!("s:{seq}"),
            tag: String::new(),
            minion: minion.to_owned(),
            fun: String::new(),
            jid: "20261121054728123456".to_owned(),
            master_id: String::new(),
            body: Vec::new(),
        };
        let letters = [
            letter(1, "web1", "413 too large: 70000 bytes"),
            letter(
                2,
                "web1",
                "400: host web1 in job 20261121054728123456 unknown",
            ),
            letter(
                3,
                "db27",
                "400: host db27 in job 20261121054728123456 unknown",
            ),
        ];
        let found: Vec<_> = reasons(&letters)
            .into_iter()
            .map(|group| (group.count, group.reason))
            .collect();
        assert_eq!(
            found,
            [
                (2, "#: host <minion> in job * unknown".to_owned()),
                (1, "# too large: # bytes".to_owned())
            ]
        );
    }
}
