//! The view of a job: the causes of failure first, then its returns, of which failed returns come
//! first.

use std::collections::{BTreeSet, HashMap};

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
use crate::base::limits::{LIST_ROWS_MAX, PAGE_STATES_READ};
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
    /// There are too many states on the page: those of this return are not read.
    is_unread: bool,
    /// Since the start of the job.
    after_us: i64,
}

pub(super) async fn view(ask: &Ask<'_>) -> Result<JobView, HttpError> {
    let args = ask.args::<jobs::Show>(&["states"])?;
    let job = ask.known::<jobs::Show, JobAnswer>(args).await?;

    // The states of all returns of this page that failed or changed something, or all of a single one.
    let is_whole = job.returns.len() == 1;
    let StatesOf {
        mut of_minions,
        read_upto,
    } = states_of(ask, &job, is_whole).await?;
    let mut is_unread = false;

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
        let is_last_read = read_upto.as_ref() == Some(&answer.minion);
        let was_unread = is_unread;
        is_unread |= is_last_read;
        ReturnView {
            left_out: total.saturating_sub(rows.len() as u64),
            is_unread: was_unread,
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

/// States, and how far they were read.
#[derive(Default)]
struct StatesOf {
    of_minions: HashMap<String, Vec<State>>,
    /// The last return whose states were read; `None` if all were.
    read_upto: Option<String>,
}

/// The states to show: those that failed or changed something, unless one return is shown as a whole.
async fn states_of(ask: &Ask<'_>, job: &JobAnswer, is_whole: bool) -> Result<StatesOf, HttpError> {
    let mut found = StatesOf::default();
    let with_states = job.returns.iter().filter(|answer| answer.states.is_some());
    let only: BTreeSet<String> = with_states.map(|answer| answer.minion.clone()).collect();
    if only.is_empty() {
        return Ok(found);
    }

    // Of the returns that are shown: a filter leaves some of many.
    let own = ["limit", "after", "result", "cause", "states", "links"];
    let mut args = ask.args::<jobs::States>(&own)?;
    args.page.limit = Some(LIST_ROWS_MAX);
    args.page.only = Some(only);
    args.result = (!is_whole).then_some(StateResult::Notable);

    for _ in 0..PAGE_STATES_READ {
        let page = ask.known::<jobs::States, StatesPage>(args.clone()).await?;
        for state in page.states {
            let of_minion = found.of_minions.entry(state.minion.clone()).or_default();
            of_minion.push(state);
        }
        found.read_upto = page.next;
        if found.read_upto.is_none() {
            break;
        }
        args.page.after.clone_from(&found.read_upto);
    }
    Ok(found)
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
