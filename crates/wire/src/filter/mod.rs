//! The filter language for stored events: globs and exit codes in [`Scope`]s, and a [`Condition`] over tag and data.
//!
//! ```yaml
//! match: [{tag: 'salt/auth*'}, {fun: 'user.*', retcode: '!0'}]
//! search: Permission denied
//! where: data.fun is startingwith("state.")
//! ```
//!
//! An event passes if one item of `match` contains it, or if there are none, if its body contains the text `search`, and if `where` is true. Globs are evaluated first, because
//! they need only the columns of a block.

mod compile;
mod condition;
mod node;
mod rule;
mod value;

pub use condition::Condition;
pub use node::ConditionError;
pub use rule::FilterRule;
pub use value::TooCostly;

use serde::{Deserialize, Serialize};

use crate::salt_event::funs_of;
use saltcellar_base::limits::FILTER_SCOPES_MAX;
use saltcellar_model::word;
use saltcellar_model::{Entry, EventFilter, Flags, Kind, Scope};

/// The entries that a filter selects from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entries {
    /// Events that were on a bus.
    #[default]
    Events,
    /// What jobs of this daemon's own master consist of: loads, minions, returns, end times, and events with a job; and the records of its
    /// reactor. Without the questions for running jobs that Salt asks every few seconds.
    OwnJobs,
    /// Those, and all events of this daemon's master.
    Own,
}

impl Entries {
    /// Salt's question whether a job runs, and the responses to it.
    pub const QUESTION: &str = "saltutil.find_job";

    /// Whether an entry with these columns is one of them. `is_own` is false for what another master fired or sent.
    pub fn have(self, kind: Kind, flags: Flags, fun: &str, has_jid: bool, is_own: bool) -> bool {
        let is_of_job = match kind {
            Kind::JobNew
            | Kind::Return
            | Kind::Load
            | Kind::ReturnLoad
            | Kind::Minions
            | Kind::Endtime
            | Kind::NoCache
            | Kind::Reaction => true,
            Kind::Event => has_jid,
            Kind::Gap | Kind::SeenOnBus | Kind::Register | Kind::Setting => false,
        };

        match self {
            Self::Events => flags.has(Flags::ON_BUS),
            Self::OwnJobs => is_own && is_of_job && fun != Self::QUESTION,
            Self::Own => {
                let is_any = is_of_job || matches!(kind, Kind::Event | Kind::Gap);
                is_own && is_any && fun != Self::QUESTION
            }
        }
    }
}

/// A filter; the default passes every event.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping with `match`, `search` and `where`"
)]
pub struct EntryFilter {
    /// What it selects from. Only the daemon itself asks for other entries than events.
    #[serde(skip_serializing_if = "is_default")]
    pub entries: Entries,
    /// The alternatives; none for all events.
    #[serde(
        rename = "match",
        deserialize_with = "scopes",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub scopes: Vec<Scope>,
    /// A string in the body; upper and lower case differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
    /// The expression.
    #[serde(
        rename = "where",
        with = "word",
        skip_serializing_if = "Option::is_none"
    )]
    pub condition: Option<Condition>,
}

fn scopes<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Scope>, D::Error> {
    let scopes = Vec::<Scope>::deserialize(from)?;
    if scopes.len() > FILTER_SCOPES_MAX {
        let expected = format!("at most {FILTER_SCOPES_MAX} items");
        return Err(serde::de::Error::invalid_length(
            scopes.len(),
            &expected.as_str(),
        ));
    }
    Ok(scopes)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_default(entries: &Entries) -> bool {
    *entries == Entries::Events
}

impl EntryFilter {
    /// The same filter at the daemon of the master `own`, see [`Scope::beside`].
    #[must_use]
    pub fn beside(mut self, own: &str) -> Self {
        self.scopes = self
            .scopes
            .into_iter()
            .map(|scope| scope.beside(own))
            .collect();
        self
    }

    /// Whether every event passes.
    pub fn is_open(&self) -> bool {
        // What it selects from is checked before.
        self.scopes.is_empty() && self.search.is_none() && self.condition.is_none()
    }

    /// Whether events of the class may pass.
    pub fn allows_class(&self, class_name: &str) -> bool {
        self.scopes.is_empty()
            || self
                .scopes
                .iter()
                .any(|scope| scope.allows_class(class_name))
    }

    /// Whether an entry with these columns may pass; an empty function is unknown.
    pub fn may_match(&self, minion: &str, fun: &str) -> bool {
        self.scopes.is_empty() || self.scopes.iter().any(|scope| scope.may_match(minion, fun))
    }

    /// A narrower filter for the same events: with the tag and the minion of the only alternative, for which there is an index.
    pub fn narrowed(&self, filter: &EventFilter) -> EventFilter {
        let mut narrowed = filter.clone();
        if let [scope] = self.scopes.as_slice() {
            if let ([tag], None) = (scope.tag.as_slice(), &filter.tag) {
                narrowed.tag = Some(tag.clone());
            }
            if let ([minion], None) = (scope.minion.as_slice(), &filter.minion) {
                narrowed.minion = Some(minion.clone())
                    .filter(|minion| minion.as_literal().is_some_and(|minion| !minion.is_empty()));
            }
        }

        narrowed
    }

    /// Whether the event passes.
    pub fn matches(&self, entry: &Entry<'_>, class_name: &str) -> Result<bool, TooCostly> {
        let in_scope = |scope: &Scope| {
            scope.allows_class(class_name) && scope.matches(entry, || funs_of(entry.body))
        };

        // Globs first, because they need only the columns.
        if !self.scopes.is_empty() && !self.scopes.iter().any(in_scope) {
            return Ok(false);
        }

        // A string is contiguous in msgpack, and its bytes are UTF-8.
        if let Some(text) = &self.search
            && memchr::memmem::find(entry.body, text.as_bytes()).is_none()
        {
            return Ok(false);
        }

        self.condition
            .as_ref()
            .map_or(Ok(true), |condition| condition.holds(entry.tag, entry.body))
    }
}

#[cfg(test)]
mod tests;
