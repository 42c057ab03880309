//! The overview: what needs attention first.

use std::cmp::Reverse;

use serde::Serialize;

use super::super::answer::HttpError;
use super::super::attention::{Attended, Part};
use super::super::v1;
use super::ask::Ask;
use crate::api::call::event_rates::EventRates;
use crate::api::call::jobs::answers::JobsPage;
use crate::api::call::status::Status;
use crate::api::call::{
    NoArgs, causes, durations, event_rates, fleet, jobs, minions, status, store,
};
use crate::api::query::{DAY_US, Fleet, FleetDay, JobResult};
use crate::base::clock::Micros;
use crate::base::limits::{PAGE_FAILED_READ, PAGE_OVERVIEW_ROWS};
use crate::wire::msgpack::Time;

/// The overview: each part with its own error; none that the limits of the reader exclude.
#[derive(Serialize)]
pub(super) struct Overview {
    status: Option<Part<Status>>,
    failed: Option<Part<JobsPage>>,
    missing: Option<Part<JobsPage>>,
    changed: Option<Part<JobsPage>>,
    minions: Option<Part<Attended>>,
    fleet: Option<Part<FleetView>>,
    rates: Option<Part<EventRates>>,
    /// Whether the reader may see the views that the fleet links to.
    has_causes: bool,
    has_durations: bool,
    /// None if nothing was stored in any of them.
    hours: Option<Vec<u64>>,
    hours_max: Option<u64>,
}

pub(super) async fn view(ask: &Ask<'_>) -> Result<Overview, HttpError> {
    let since = Time(ask.address.before("1d")?);
    let jobs = |result: JobResult, limit: usize| jobs::ListArgs {
        result: Some(result),
        since: Some(since),
        limit: Some(limit),
        ..jobs::ListArgs::default()
    };

    let attention = || minions::ListArgs {
        attention: true,
        limit: Some(PAGE_OVERVIEW_ROWS),
        ..minions::ListArgs::default()
    };

    // The costliest part by far: it reads the last highstate of every minion.
    let list = ask.server.attention.get(
        ask.access,
        ask.server.ctx.archive.store.durable(),
        || async {
            let time = Time(ask.server.ctx.archive.clock.now());
            let (list, fleet, rates) = tokio::join!(
                ask.part::<minions::List>(attention()),
                ask.part::<fleet::Show>(NoArgs {}),
                ask.part::<event_rates::Rates>(NoArgs {}),
            );
            match list {
                Part::Shown(list) => Part::Shown(Attended {
                    list,
                    fleet,
                    rates,
                    time,
                }),
                Part::Failed { error } => Part::Failed { error },
            }
        },
    );

    let minions = async {
        if v1::may::<minions::List>(ask.access) {
            Some(list.await)
        } else {
            None
        }
    };

    // All parts at the same time; a part that fails shows its error in its place, and the others
    // are shown.
    let (status, store, mut failed, missing, changed, minions) = tokio::join!(
        ask.allowed::<status::Show>(NoArgs {}),
        ask.allowed::<store::Stats>(NoArgs {}),
        ask.allowed::<jobs::List>(jobs(JobResult::Failed, PAGE_FAILED_READ)),
        ask.allowed::<jobs::List>(jobs(JobResult::Missing, PAGE_OVERVIEW_ROWS)),
        ask.allowed::<jobs::List>(jobs(JobResult::Changed, PAGE_OVERVIEW_ROWS)),
        minions,
    );

    // The worst first: many failures of one minion each would hide a run that failed on many.
    if let Some(Part::Shown(page)) = &mut failed {
        page.jobs.sort_by_key(|job| Reverse(job.failed));
        page.jobs.truncate(PAGE_OVERVIEW_ROWS);
    }

    let hours = store
        .as_ref()
        .and_then(Part::shown)
        .map(|store| &store.entries_by_hour);
    let hours_max = hours.and_then(|hours| hours.iter().max().copied());

    let (fleet, rates) = match &minions {
        None => (None, None),
        Some(Part::Shown(attended)) => (
            Some(FleetView::of(&attended.fleet)),
            Some(attended.rates.clone()),
        ),
        Some(Part::Failed { error }) => {
            let error = || error.clone();
            (
                Some(Part::Failed { error: error() }),
                Some(Part::Failed { error: error() }),
            )
        }
    };

    Ok(Overview {
        has_causes: v1::may::<causes::List>(ask.access),
        has_durations: v1::may::<durations::OfTime>(ask.access),
        fleet,
        rates,
        hours: hours.filter(|_| hours_max > Some(0)).cloned(),
        hours_max,
        status,
        failed,
        missing,
        changed,
        minions,
    })
}

/// The fleet, with what its picture needs.
#[derive(Serialize)]
pub(super) struct FleetView {
    #[serde(flatten)]
    fleet: Fleet,
    /// Shadows the days of the fleet.
    days: Vec<DayView>,
    /// The highstates of the day with the most; 0 without any.
    most: u64,
    /// Highstates of the first days are not counted yet.
    is_partial: bool,
}

#[derive(Serialize)]
struct DayView {
    #[serde(flatten)]
    day: FleetDay,
    end: Time,
    /// Its date, in UTC.
    name: String,
}

impl FleetView {
    fn of(fleet: &Part<Fleet>) -> Part<Self> {
        let fleet = match fleet {
            Part::Shown(fleet) => fleet.clone(),
            Part::Failed { error } => {
                return Part::Failed {
                    error: error.clone(),
                };
            }
        };

        let total = |day: &FleetDay| day.failed + day.changed + day.ok;
        let most = fleet.days.iter().map(total).max().unwrap_or(0);
        let is_partial = fleet
            .days
            .first()
            .is_some_and(|first| fleet.since > first.day);
        let day = |day: &FleetDay| {
            let Time(begin) = day.day;
            DayView {
                end: Time(Micros(begin.0.saturating_add(DAY_US))),
                name: begin.iso().chars().take(10).collect(),
                day: day.clone(),
            }
        };
        Part::Shown(Self {
            days: fleet.days.iter().map(day).collect(),
            most,
            is_partial,
            fleet: Fleet {
                days: Vec::new(),
                ..fleet
            },
        })
    }
}
