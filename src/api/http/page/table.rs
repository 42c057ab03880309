//! The table of the views, and what each loads.

use super::super::answer::HttpError;
use super::render::Data;
use super::views::{self, Ask};
use super::{causes, job, overview};
use crate::api::call::{jobs, minions};

pub(super) struct View {
    pub(super) path: &'static str,
    pub(super) template: &'static str,
    pub(super) title: &'static str,
    /// The entry of the navigation.
    pub(super) part: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Overview,
    Jobs,
    Job,
    JobCauses,
    JobDurations,
    Causes,
    Durations,
    Diff,
    Events,
    Event,
    Minions,
    Minion,
    Reactor,
    Reaction,
    Engines,
    Sink,
}

const fn view(
    path: &'static str,
    template: &'static str,
    title: &'static str,
    part: &'static str,
    kind: Kind,
) -> View {
    View {
        path,
        template,
        title,
        part,
        kind,
    }
}

pub(super) const VIEWS: &[View] = &[
    view("/", "overview.html", "Overview", "overview", Kind::Overview),
    view("/jobs", "jobs.html", "Jobs", "jobs", Kind::Jobs),
    view("/jobs/{jid}", "job.html", "Job", "jobs", Kind::Job),
    view(
        "/jobs/{jid}/causes",
        "day.html",
        "Causes of failures",
        "jobs",
        Kind::JobCauses,
    ),
    view(
        "/jobs/{jid}/durations",
        "durations.html",
        "Slowest states",
        "jobs",
        Kind::JobDurations,
    ),
    view(
        "/causes",
        "day.html",
        "Causes of failures",
        "overview",
        Kind::Causes,
    ),
    view(
        "/durations",
        "durations.html",
        "Slowest states",
        "overview",
        Kind::Durations,
    ),
    view(
        "/jobs/{jid}/diff",
        "diff.html",
        "Difference of two runs",
        "jobs",
        Kind::Diff,
    ),
    view("/events", "events.html", "Events", "events", Kind::Events),
    view(
        "/events/{seq}",
        "events.html",
        "Event",
        "events",
        Kind::Event,
    ),
    view(
        "/minions",
        "minions.html",
        "Minions",
        "minions",
        Kind::Minions,
    ),
    view(
        "/minions/{minion}",
        "minion.html",
        "Minion",
        "minions",
        Kind::Minion,
    ),
    view(
        "/reactor",
        "reactor.html",
        "Reactor",
        "reactor",
        Kind::Reactor,
    ),
    view(
        "/reactor/reactions/{seq}",
        "reaction.html",
        "Reaction",
        "reactor",
        Kind::Reaction,
    ),
    view(
        "/engines",
        "engines.html",
        "Engines",
        "engines",
        Kind::Engines,
    ),
    view(
        "/engines/{name}",
        "engines.html",
        "Sink",
        "engines",
        Kind::Sink,
    ),
];

impl View {
    /// The data of the template.
    pub(super) async fn load(&self, ask: &Ask<'_>) -> Result<Box<dyn Data>, HttpError> {
        Ok(match self.kind {
            Kind::Overview => Box::new(overview::view(ask).await?),
            Kind::Jobs => {
                let page = ask.get::<jobs::List>(ask.args::<jobs::List>(&[])?).await?;
                Box::new(ask.listed(page, "cursor"))
            }
            Kind::Job => Box::new(job::view(ask).await?),
            Kind::JobCauses => Box::new(causes::of_job(ask).await?),
            Kind::JobDurations => Box::new(causes::durations_of_job(ask).await?),
            Kind::Causes => Box::new(causes::of_time(ask).await?),
            Kind::Durations => Box::new(causes::durations_of_time(ask).await?),
            Kind::Diff => {
                let args = ask.args::<jobs::Diff>(&[])?;
                Box::new(ask.listed(ask.get::<jobs::Diff>(args).await?, "after"))
            }
            Kind::Events => Box::new(views::events(ask).await?),
            Kind::Event => Box::new(views::event(ask).await?),
            Kind::Minions => {
                let args = ask.args::<minions::List>(&[])?;
                Box::new(ask.listed(ask.get::<minions::List>(args).await?, "after"))
            }
            Kind::Minion => {
                let minion = ask.name().to_owned();
                let args = minions::ShowArgs { minion };
                Box::new(ask.known::<minions::Show, _>(args).await?)
            }
            Kind::Reactor => Box::new(views::reactor(ask).await?),
            Kind::Reaction => Box::new(views::reaction(ask).await?),
            Kind::Engines => Box::new(views::engines(ask).await),
            Kind::Sink => Box::new(views::sink(ask).await?),
        })
    }
}
