//! The record of a reaction as its readers see it, with defaults for what it lacks. Its form is
//! described at [`record`](crate::reactor::run::record).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base::named::{Named as _, named};
use crate::model::{Location, ReactionFailure};
use crate::reactor::call::CallRecord;
use crate::wire::msgpack::{NotOfType, decode};

/// The state of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// A mark of a call, which belongs to no history.
    #[default]
    Begun,
    Done,
    Failed,
    Partial,
    Dead,
    Skipped,
}

named! {
    State {
        Begun: "begun",
        Done: "done",
        Failed: "failed",
        Partial: "partial",
        Dead: "dead",
        Skipped: "skipped",
    }
}

impl State {
    /// Those of reactions, in the order of the definition.
    const OF_REACTIONS: [Self; 5] = [
        Self::Done,
        Self::Failed,
        Self::Partial,
        Self::Dead,
        Self::Skipped,
    ];
}

/// States of reactions, of which one is asked for; on the wire their names, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct States(Vec<State>);

impl States {
    /// Those of reactions that can be replayed, because something of them was not done.
    pub(crate) fn unfinished() -> Self {
        Self(vec![State::Failed, State::Partial, State::Dead])
    }

    /// The states with these names.
    pub(crate) fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let state = |name: &str| {
            State::named(name)
                .filter(|state| State::OF_REACTIONS.contains(state))
                .ok_or_else(|| {
                    let known = Self::names().collect::<Vec<_>>().join(", ");
                    format!("unknown state {name:.50?}, expected some of: {known}")
                })
        };
        names
            .into_iter()
            .map(state)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// All names.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        State::OF_REACTIONS.into_iter().map(State::name)
    }

    pub(crate) fn contains(&self, state: State) -> bool {
        self.0.contains(&state)
    }
}

impl From<State> for States {
    fn from(state: State) -> Self {
        Self(vec![state])
    }
}

impl Serialize for States {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let names: Vec<_> = self.0.iter().map(|state| state.name()).collect();
        to.serialize_str(&names.join(","))
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(from)?;
        Self::named(text.split(',')).map_err(D::Error::custom)
    }
}

impl JsonSchema for States {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "States".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// Why a reaction was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkipReason {
    /// The event is older than `reactor.age_max`.
    TooOld,
    /// A later event of the same minion came within the pause of `debounce`.
    Debounced,
    /// An earlier event of the same minion counted for `once_per`.
    OncePer,
    /// `rate` would start it too late for the comparison in shadow.
    Rate,
    /// The `budget` of its rules is used up.
    Budget,
    /// The chain of reactions that led to the event is longer than `reactor.depth_max`.
    Depth,
    /// No rule matches the event any more, or retention has deleted it.
    NoRule,
    /// Another master of the cluster fired the event, and its daemon reacts.
    Peer,
}

named! {
    SkipReason {
        TooOld: "too_old",
        Debounced: "debounced",
        OncePer: "once_per",
        Rate: "rate",
        Budget: "budget",
        Depth: "depth",
        NoRule: "no_rule",
        Peer: "peer",
    }
}

impl SkipReason {
    /// The throttle that skipped it, by its option of a rule; `None` for other reasons.
    pub(crate) fn throttle(self) -> Option<&'static str> {
        match self {
            Self::OncePer => Some("once_per"),
            Self::Debounced => Some("debounce"),
            Self::Rate => Some("rate"),
            Self::Budget => Some("budget"),
            Self::TooOld | Self::Depth | Self::NoRule | Self::Peer => None,
        }
    }

    /// True if the event counted for `once_per` before it was skipped.
    pub(crate) fn has_counted_once(self) -> bool {
        match self {
            Self::TooOld | Self::Debounced | Self::Rate | Self::Budget => true,
            Self::OncePer | Self::Depth | Self::NoRule | Self::Peer => false,
        }
    }

    /// True if wanted work may be lost with it.
    pub(crate) fn may_lose_work(self) -> bool {
        match self {
            Self::TooOld | Self::Budget | Self::Depth => true,
            Self::Debounced | Self::OncePer | Self::Rate | Self::NoRule | Self::Peer => false,
        }
    }
}

/// The record of a reaction.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StoredRecord {
    pub(crate) event: u64,
    pub(crate) at: i64,
    pub(crate) state: State,
    /// Why it was skipped, if it was.
    pub(crate) why: Option<SkipReason>,
    pub(crate) rules: Vec<String>,
    /// Number of rules that matched the event.
    pub(crate) of: u64,
    pub(crate) ended: Option<i64>,
    /// File and rendered text; a third element marks a string that was cut.
    files: Vec<Vec<String>>,
    pub(crate) calls: Vec<CallRecord>,
    /// Level and text.
    pub(crate) notes: Vec<(String, String)>,
    failures: Vec<StoredFailure>,
    /// The record that this one replays.
    pub(crate) replay: Option<u64>,
}

/// What a search reads of a record: its event, its state, and the record that it replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct RecordKey {
    pub(crate) event: u64,
    #[serde(default)]
    pub(crate) state: State,
    pub(crate) replay: Option<u64>,
}

impl RecordKey {
    pub(crate) fn read(body: &[u8]) -> Result<Self, NotOfType> {
        decode(body)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct StoredFailure {
    file: String,
    line: Option<u32>,
    rendered: bool,
    cause: String,
}

/// A file of a reaction.
pub(crate) struct StoredFile<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) is_cut: bool,
}

impl StoredRecord {
    pub(crate) fn read(body: &[u8]) -> Result<Self, NotOfType> {
        decode(body)
    }

    /// From the arrival of the event to the end, if it has ended.
    pub(crate) fn took_us(&self) -> Option<i64> {
        self.ended.map(|ended| ended.saturating_sub(self.at))
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = StoredFile<'_>> {
        self.files.iter().map(|file| StoredFile {
            name: file.first().map(String::as_str).unwrap_or_default(),
            text: file.get(1).map(String::as_str).unwrap_or_default(),
            is_cut: file.len() > 2,
        })
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = ReactionFailure> {
        self.failures.iter().map(|failure| ReactionFailure {
            at: Location {
                file: failure.file.clone(),
                line: failure.line,
                rendered: failure.rendered,
            },
            cause: failure.cause.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_asked_for_by_their_names_and_a_misspelt_one_is_an_error() {
        let read = |text: &str| serde_json::from_value::<States>(text.into());
        let all: Vec<_> = States::names().collect();
        let states = read(&all.join(",")).unwrap();
        assert_eq!(serde_json::to_value(&states).unwrap(), all.join(","));

        // Each state except the state of a mark.
        assert_eq!(all.len() + 1, State::NAMES.len());
        assert!(!states.contains(State::Begun) && states.contains(State::Skipped));

        for wrong in ["faild", "done,faild", "begun", "", "done,"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(
                error.contains("expected some of: done, failed, partial, dead, skipped"),
                "{wrong}: {error}"
            );
        }
    }
}
