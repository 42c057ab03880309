//! The state of the fleet at a glance: the last highstate of each minion, and highstates by day.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::digest::{DAY_US, DigestView, RunRow};
use super::minions::{MissingReturn, MissingReturns, known, missing_returns};
use super::missing::{Heard, last_heard};
use super::others::Others;
use crate::base::clock::Micros;
use crate::base::limits::FLEET_DAYS;
use crate::base::named::named;
use crate::store::{StoreError, StoreView};
use crate::wire::msgpack::Time;

answers! {
    /// Numbers of minions, and of highstates by day.
    Fleet {
        /// Minions that the archive has returns of.
        known: u64,
        /// Minions whose last highstate failed.
        failed: u64,
        /// Minions whose last highstate changed something, and did not fail.
        changed: u64,
        /// Minions whose last highstate neither failed nor changed anything.
        ok: u64,
        /// Minions that have not returned one of the newest jobs of the last 24 hours.
        missing: u64,
        /// Minions that were not heard for 24 hours.
        not_seen: u64,
        /// Events before this time were not examined for `not_seen`, although they count.
        events_since: Option<Time>,
        /// The last days, in UTC, the earliest first; also those without a highstate.
        days: Vec<FleetDay>,
        /// Highstates since this time are counted. It is later than the first day if much is unread: ask again.
        since: Time,
    }
    /// The highstates of a day.
    FleetDay {
        /// Its beginning.
        day: Time,
        failed: u64,
        changed: u64,
        ok: u64,
    }
}

/// What a minion is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MinionState {
    /// Its last highstate failed.
    Failed,
    /// Its last highstate changed something, and did not fail.
    Changed,
    /// Its last highstate neither failed nor changed anything.
    Ok,
    /// It has not returned one of the newest jobs of the last 24 hours.
    Missing,
    /// It was not heard for 24 hours.
    NotSeen,
}

named! {
    MinionState {
        Failed: "failed",
        Changed: "changed",
        Ok: "ok",
        Missing: "missing",
        NotSeen: "not_seen",
    }
}

/// Counts the fleet.
pub(crate) fn fleet(
    store: &StoreView,
    others: &Others,
    digest: &DigestView<'_>,
) -> Result<Fleet, StoreError> {
    let highstates = Highstates::read(store, digest)?;
    let states: Vec<MinionState> = highstates.last().map(state_of).collect();
    let count = |state| states.iter().filter(|known| **known == state).count() as u64;

    let known = known(store)?;
    let silent = not_seen(store, &known, a_day_ago(store))?;
    Ok(Fleet {
        known: known.len() as u64,
        failed: count(MinionState::Failed),
        changed: count(MinionState::Changed),
        ok: count(MinionState::Ok),
        missing: missing(store, others)?.len() as u64,
        not_seen: silent.ids.len() as u64,
        events_since: silent.events_since.map(Time),
        days: highstates.days(),
        since: Time(highstates.since),
    })
}

/// Some of the minions, and what was not examined to find them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    pub(crate) ids: BTreeSet<String>,
    /// Highstates before this time were not examined, although they count.
    pub(crate) highstates_since: Option<Micros>,
    /// Events before this time were not examined, although they count.
    pub(crate) events_since: Option<Micros>,
}

impl Members {
    /// Those that are also in another set.
    pub(crate) fn and(self, other: &Self) -> Self {
        Self {
            ids: self.ids.intersection(&other.ids).cloned().collect(),
            highstates_since: self.highstates_since.max(other.highstates_since),
            events_since: self.events_since.max(other.events_since),
        }
    }
}

/// The minions that are counted as one state.
pub(crate) fn members(
    store: &StoreView,
    others: &Others,
    digest: &DigestView<'_>,
    state: MinionState,
) -> Result<Members, StoreError> {
    match state {
        MinionState::Missing => Ok(Members {
            ids: missing(store, others)?,
            ..Members::default()
        }),
        MinionState::NotSeen => not_seen_since(store, a_day_ago(store)),
        _ => {
            let highstates = Highstates::read(store, digest)?;
            let meant = highstates.last().filter(|run| state_of(run) == state);
            Ok(Members {
                ids: meant.map(|run| run.minion.to_string()).collect(),
                highstates_since: highstates.unread_before(),
                events_since: None,
            })
        }
    }
}

/// The highstates of the last days.
struct Highstates {
    runs: Vec<RunRow>,
    since: Micros,
    days: RangeInclusive<i64>,
}

impl Highstates {
    fn read(store: &StoreView, digest: &DigestView<'_>) -> Result<Self, StoreError> {
        let today = store.now().0.div_euclid(DAY_US);
        let first = today.saturating_sub(FLEET_DAYS.saturating_sub(1));
        let begin = Micros(first.saturating_mul(DAY_US));
        let runs = digest.runs(store, begin, |run| run.is_highstate)?;
        Ok(Self {
            runs: runs.rows,
            since: runs.since,
            days: first..=today,
        })
    }

    /// The time before which they were not read, if that is within the days.
    fn unread_before(&self) -> Option<Micros> {
        let begin = self.days.start().saturating_mul(DAY_US);
        (self.since.0 > begin).then_some(self.since)
    }

    /// The last one of each minion.
    fn last(&self) -> impl Iterator<Item = &RunRow> {
        let mut last: HashMap<&str, &RunRow> = HashMap::new();
        for run in &self.runs {
            let known = last.entry(&*run.minion).or_insert(run);
            if (run.at, &run.jid) > (known.at, &known.jid) {
                *known = run;
            }
        }
        last.into_values()
    }

    fn days(&self) -> Vec<FleetDay> {
        let mut days: BTreeMap<i64, FleetDay> = BTreeMap::new();

        // All days come first, because a day without runs is a row of zeros.
        for day in self.days.clone() {
            days.entry(day).or_default().day = Time(Micros(day.saturating_mul(DAY_US)));
        }

        for run in &self.runs {
            let Some(day) = days.get_mut(&run.at.0.div_euclid(DAY_US)) else {
                continue;
            };
            *match state_of(run) {
                MinionState::Failed => &mut day.failed,
                MinionState::Changed => &mut day.changed,
                _ => &mut day.ok,
            } += 1;
        }

        days.into_values().collect()
    }
}

fn state_of(run: &RunRow) -> MinionState {
    if run.failed {
        MinionState::Failed
    } else if run.changed() {
        MinionState::Changed
    } else {
        MinionState::Ok
    }
}

fn a_day_ago(store: &StoreView) -> Micros {
    Micros(store.now().0.saturating_sub(DAY_US))
}

fn missing(store: &StoreView, others: &Others) -> Result<BTreeSet<String>, StoreError> {
    let since = a_day_ago(store);
    let MissingReturns { by_minion, .. } = missing_returns(store, others, |_| true)?;
    let is_recent = |missing: &MissingReturn| missing.at >= since;
    let recent = by_minion
        .into_iter()
        .filter(|(_, missing)| missing.iter().any(is_recent));
    Ok(recent.map(|(id, _)| id).collect())
}

/// The minions that were not heard since this time.
pub(crate) fn not_seen_since(store: &StoreView, since: Micros) -> Result<Members, StoreError> {
    not_seen(store, &known(store)?, since)
}

/// Of the known minions, those that were not heard since this time.
fn not_seen(
    store: &StoreView,
    known: &HashMap<String, Option<Micros>>,
    since: Micros,
) -> Result<Members, StoreError> {
    let quiet: BTreeSet<&str> = known
        .iter()
        .filter(|(_, at)| at.is_none_or(|at| at < since))
        .map(|(id, _)| id.as_str())
        .collect();

    // Those that run no jobs may still send events.
    let Heard {
        at: heard,
        since: examined,
    } = last_heard(store, &quiet)?;
    let is_silent = |id: &&str| heard.get(id).is_none_or(|at| *at < since);
    let silent = quiet.into_iter().filter(is_silent);
    Ok(Members {
        ids: silent.map(str::to_owned).collect(),
        highstates_since: None,
        events_since: examined.filter(|examined| *examined > since),
    })
}
