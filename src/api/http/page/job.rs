//! The view of a job: the causes of failure first, then its returns, of which failed returns come
//! first.

use std::collections::HashMap;

use serde::Serialize;

use super::super::answer::HttpError;
use super::address::Paging;
use super::ask::Ask;
use super::causes::CausesView;
use super::views::next_of;
use crate::api::call::jobs::answers::{
    JobAnswer, JobRow, Publish, Return, State, StatesPage, UnknownReturn,
};
use crate::api::call::jobs::strip::{Strip, StripAnswer, StripArgs};
use crate::api::call::jobs::{self, StateResult};
use crate::api::query::Child;
use crate::base::limits::LIST_ROWS_MAX;
use crate::wire::msgpack::{Stored, Time};

#[derive(Serialize)]
pub(super) struct JobView {
    #[serde(flatten)]
    pub(super) row: JobRow,
    load: Stored,
    /// Only on the first page without a filter, as the picture.
    causes: Option<CausesView>,
    strip: Option<StripView>,
    unknown: Vec<UnknownReturn>,
    not_confirmed: Vec<String>,
    publishes: Vec<Publish>,
    parent: Option<String>,
    children: Vec<Child>,
    returns: Vec<ReturnView>,
    #[serde(flatten)]
    paging: Paging,
    filter: HashMap<String, String>,
}

#[derive(Serialize)]
struct StripView {
    #[serde(flatten)]
    strip: StripAnswer,
    jid: String,
}

/// A return with its states.
#[derive(Serialize)]
struct ReturnView {
    #[serde(flatten)]
    answer: Return,
    /// The states that failed or changed something, or all if one minion is shown.
    rows: Vec<State>,
    /// The number of states that are not among them.
    left_out: u64,
    /// Since the start of the job.
    after_us: i64,
}

pub(super) async fn view(ask: &Ask<'_>) -> Result<JobView, HttpError> {
    let args = ask.args::<jobs::Show>(&["states"])?;
    let job = ask.known::<jobs::Show, JobAnswer>(args).await?;

    // The states of all returns of this page, which are of the same order, or of a single one.
    let is_whole = job.returns.len() == 1;
    let mut of_minions = states_of(ask, &job, is_whole).await?;

    let filters = ["after", "minion", "result", "cause"];
    let is_first = filters.iter().all(|name| ask.field(name).is_none());
    let (causes, strip) = if is_first {
        let jid = job.row.jid.clone();
        let causes = CausesView::of_job(ask, &jid).await;
        (Some(causes), strip_of(ask, &job, jid).await?)
    } else {
        (None, None)
    };

    let next = next_of(job.next.as_deref(), job.more);
    let paging = ask.address.paging("after", next.as_deref());
    let Time(start) = job.row.time;

    let shown = |mut answer: Return| {
        // Its rows are shown in its place; as a value it would be the largest part of the view, unseen.
        if answer.states.is_some() {
            answer.value = Stored::of(None);
        }

        let Time(at) = answer.time;
        let rows = of_minions.remove(&answer.minion).unwrap_or_default();
        let total = answer.states.as_ref().map_or(0, |states| states.total);
        ReturnView {
            left_out: total.saturating_sub(rows.len() as u64),
            rows,
            after_us: at.0.saturating_sub(start.0),
            answer,
        }
    };

    Ok(JobView {
        returns: job.returns.into_iter().map(shown).collect(),
        row: job.row,
        load: job.load,
        causes,
        strip,
        unknown: job.unknown,
        not_confirmed: job.not_confirmed.into_iter().collect(),
        publishes: job.publishes,
        parent: job.parent,
        children: job.children,
        paging,
        filter: ask.address.filter(),
    })
}

/// The states to show, by minion: those that failed or changed something, unless one return is shown as a whole.
async fn states_of(
    ask: &Ask<'_>,
    job: &JobAnswer,
    is_whole: bool,
) -> Result<HashMap<String, Vec<State>>, HttpError> {
    let mut of_minions: HashMap<String, Vec<State>> = HashMap::new();
    let has_states = |answer: &&Return| answer.states.is_some();
    let Some(last) = job.returns.iter().rfind(has_states) else {
        return Ok(of_minions);
    };

    let mut args = ask.args::<jobs::States>(&["limit", "result", "cause", "states", "links"])?;
    args.page.limit = Some(LIST_ROWS_MAX);
    args.page.upto = Some(last.minion.clone());
    args.result = (!is_whole).then_some(StateResult::Notable);
    let StatesPage { states, .. } = ask.known::<jobs::States, _>(args).await?;
    for state in states {
        let of_minion = of_minions.entry(state.minion.clone()).or_default();
        of_minion.push(state);
    }
    Ok(of_minions)
}

/// The picture of a job; none of a single return.
async fn strip_of(
    ask: &Ask<'_>,
    job: &JobAnswer,
    jid: String,
) -> Result<Option<StripView>, HttpError> {
    if job.row.returned < 2 {
        return Ok(None);
    }
    let args = StripArgs {
        jid: crate::wire::call::Id(jid.clone()),
    };
    let strip = ask.known::<Strip, StripAnswer>(args).await?;
    Ok(Some(StripView { strip, jid }))
}
