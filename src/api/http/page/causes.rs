//! Failures by cause and slow states: views of a job, and of a time.

use std::collections::HashMap;

use serde::Serialize;

use super::super::answer::HttpError;
use super::super::attention::Part;
use super::ask::Ask;
use crate::api::call::causes::{self, CausesPage};
use crate::api::call::durations::{self, DurationsPage};
use crate::base::limits::PAGE_CAUSES;
use crate::wire::call::Id;

/// Causes, as a part of a view.
#[derive(Serialize)]
pub(super) struct CausesView {
    #[serde(flatten)]
    page: Part<CausesPage>,
    /// The job that they are of; none of a time.
    jid: Option<String>,
}

impl CausesView {
    /// The causes of a job, as many as a view of it has room for.
    pub(super) async fn of_job(ask: &Ask<'_>, jid: &str) -> Self {
        let args = causes::ListArgs {
            jid: Some(Id(jid.to_owned())),
            limit: Some(PAGE_CAUSES),
            ..causes::ListArgs::default()
        };
        let page = match ask.known::<causes::List, CausesPage>(args).await {
            Ok(page) => Part::Shown(page),
            Err(error) => Part::Failed {
                error: error.message,
            },
        };
        Self {
            page,
            jid: Some(jid.to_owned()),
        }
    }
}

/// A view of nothing but causes.
#[derive(Serialize)]
pub(super) struct FailuresView {
    causes: FailuresList,
    filter: HashMap<String, String>,
}

#[derive(Serialize)]
struct FailuresList {
    #[serde(flatten)]
    page: CausesPage,
    jid: Option<String>,
}

pub(super) async fn of_job(ask: &Ask<'_>) -> Result<FailuresView, HttpError> {
    let mut args = ask.args::<causes::List>(&["limit"])?;
    args.limit = None;
    shown(ask, args, Some(ask.name().to_owned())).await
}

pub(super) async fn of_time(ask: &Ask<'_>) -> Result<FailuresView, HttpError> {
    let mut args = ask.args::<causes::List>(&["limit"])?;
    args.limit = None;
    shown(ask, args, None).await
}

async fn shown(
    ask: &Ask<'_>,
    args: causes::ListArgs,
    jid: Option<String>,
) -> Result<FailuresView, HttpError> {
    let page = ask.known::<causes::List, CausesPage>(args).await?;
    Ok(FailuresView {
        causes: FailuresList { page, jid },
        filter: ask.address.filter(),
    })
}

/// A view of the slowest states.
#[derive(Serialize)]
pub(super) struct DurationsView {
    durations: DurationsPage,
    jid: Option<String>,
}

pub(super) async fn durations_of_job(ask: &Ask<'_>) -> Result<DurationsView, HttpError> {
    let args = ask.args::<durations::OfJob>(&[])?;
    Ok(DurationsView {
        durations: ask.known::<durations::OfJob, DurationsPage>(args).await?,
        jid: Some(ask.name().to_owned()),
    })
}

pub(super) async fn durations_of_time(ask: &Ask<'_>) -> Result<DurationsView, HttpError> {
    let args = ask.args::<durations::OfTime>(&[])?;
    Ok(DurationsView {
        durations: ask.get::<durations::OfTime>(args).await?,
        jid: None,
    })
}
