//! The overview: what needs attention first.

use std::cmp::Reverse;

use serde::Serialize;

use super::super::access::Access;
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
use crate::api::query::{DAY_US, Fleet, FleetDay, JobResult, MinionsPage};
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
    minions: Option<Part<MinionsPage>>,
    /// When the lists were read.
    time: Time,
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

    // Read together, and shared by views: the last highstate of every minion is the costliest part by far.
    let attended = ask.server.attention.get(
        ask.access,
        ask.server.ctx.archive.store.durable(),
        |budget| async move {
            let access = Access {
                budget,
                ..ask.access.clone()
            };
            let ask = Ask {
                access: &access,
                ..*ask
            };
            let attention = minions::ListArgs {
                attention: true,
                limit: Some(PAGE_OVERVIEW_ROWS),
                ..minions::ListArgs::default()
            };
            let time = Time(ask.server.ctx.archive.clock.now());

            let (minions, fleet, rates, failed, missing, changed) = tokio::join!(
                ask.allowed::<minions::List>(attention),
                ask.allowed::<fleet::Show>(NoArgs {}),
                ask.allowed::<event_rates::Rates>(NoArgs {}),
                ask.allowed::<jobs::List>(jobs(JobResult::Failed, PAGE_FAILED_READ)),
                ask.allowed::<jobs::List>(jobs(JobResult::Missing, PAGE_OVERVIEW_ROWS)),
                ask.allowed::<jobs::List>(jobs(JobResult::Changed, PAGE_OVERVIEW_ROWS)),
            );
            Attended {
                minions,
                fleet,
                rates,
                failed: failed.map(worst_first),
                missing,
                changed,
                time,
            }
        },
    );

    // All parts at the same time; a part that fails shows its error in its place, and the others
    // are shown.
    let (status, store, attended) = tokio::join!(
        ask.allowed::<status::Show>(NoArgs {}),
        ask.allowed::<store::Stats>(NoArgs {}),
        attended,
    );

    let hours = store
        .as_ref()
        .and_then(Part::shown)
        .map(|store| &store.entries_by_hour);
    let hours_max = hours.and_then(|hours| hours.iter().max().copied());

    Ok(Overview {
        has_causes: v1::may::<causes::List>(ask.access),
        has_durations: v1::may::<durations::OfTime>(ask.access),
        fleet: attended.fleet.map(FleetView::of),
        rates: attended.rates,
        hours: hours.filter(|_| hours_max > Some(0)).cloned(),
        hours_max,
        status,
        failed: attended.failed,
        missing: attended.missing,
        changed: attended.changed,
        minions: attended.minions,
        time: attended.time,
    })
}

/// The worst first: many failures of one minion each would hide a run that failed on many.
fn worst_first(mut failed: Part<JobsPage>) -> Part<JobsPage> {
    if let Part::Shown(page) = &mut failed {
        page.jobs.sort_by_key(|job| Reverse(job.failed));
        page.jobs.truncate(PAGE_OVERVIEW_ROWS);
    }
    failed
}

/// The fleet, with what its picture needs.
#[derive(Serialize)]
pub(super) struct FleetView {
    counts: Fleet,
    /// A bar for each of its days.
    bars: Vec<DayView>,
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
    fn of(fleet: Part<Fleet>) -> Part<Self> {
        let fleet = match fleet {
            Part::Shown(fleet) => fleet,
            Part::Failed { error } => return Part::Failed { error },
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
            bars: fleet.days.iter().map(day).collect(),
            most,
            is_partial,
            counts: fleet,
        })
    }
}
