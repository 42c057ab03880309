//! The table of the views, and what each loads.

use super::super::access::Access;
use super::super::answer::HttpError;
use super::super::v1;
use super::ask::Ask;
use super::diff_view::grouped;
use super::find::{Found, find};
use super::render::{Data, calendar};
use super::response::LocalPath;
use super::title::title;
use super::views::{
    self, DIFF_FORM, DiffView, EVENTS_FORM, JOBS_FORM, MINIONS_FORM, MinionsView, REACTOR_FORM,
    job_title, next_of,
};
use super::{causes, job, overview};
use crate::api::call::{
    Cursor, causes as call_causes, consumers, durations as call_durations, events, jobs, minions,
    reactor, sinks,
};
use crate::wire::msgpack::Time;

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
    Sinks,
    Sink,
    Consumers,
    Find,
    Compare,
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
        "failures.html",
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
        "failures.html",
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
    view("/sinks", "delivery.html", "Delivery", "sinks", Kind::Sinks),
    view(
        "/sinks/{name}",
        "delivery.html",
        "Sink",
        "sinks",
        Kind::Sink,
    ),
    view(
        "/consumers",
        "delivery.html",
        "Consumers",
        "sinks",
        Kind::Consumers,
    ),
    view("/find", "find.html", "Search", "", Kind::Find),
    view(
        "/jobs/compare",
        "find.html",
        "Difference of two runs",
        "",
        Kind::Compare,
    ),
];

/// The result of a request for a view.
pub(super) enum Loaded {
    Shown(Shown),
    /// Another view shows what was requested.
    At(LocalPath),
}

/// What a view shows.
pub(super) struct Shown {
    /// The title of the browser tab, of bookmarks and of the history.
    pub(super) title: String,
    pub(super) data: Box<dyn Data>,
}

impl View {
    /// Whether a reader may see the view, as far as limits allow.
    pub(super) fn is_allowed(&self, access: &Access) -> bool {
        match self.kind {
            Kind::Overview | Kind::Find => true,
            Kind::Causes | Kind::JobCauses => v1::may::<call_causes::List>(access),
            Kind::Durations => v1::may::<call_durations::OfTime>(access),
            Kind::JobDurations => v1::may::<call_durations::OfJob>(access),
            Kind::Jobs | Kind::Job | Kind::Diff | Kind::Compare => v1::may::<jobs::List>(access),
            Kind::Events | Kind::Event => v1::may::<events::List>(access),
            Kind::Minions | Kind::Minion => v1::may::<minions::List>(access),
            Kind::Reactor | Kind::Reaction => v1::may::<reactor::List>(access),
            Kind::Sinks | Kind::Sink => v1::may::<sinks::List>(access),
            Kind::Consumers => v1::may::<consumers::List>(access),
        }
    }

    /// The data of the template.
    pub(super) async fn load(&self, ask: &Ask<'_>) -> Result<Loaded, HttpError> {
        // With the title of the view itself, unless what is shown has a name.
        let named = |name: String, data: Box<dyn Data>| Shown { title: name, data };
        let list = |fields: &[&str], data: Box<dyn Data>| {
            let given = fields.iter().filter_map(|name| ask.field(name));
            let parts: Vec<&str> = [self.title].into_iter().chain(given).collect();
            Shown {
                title: title(&parts),
                data,
            }
        };

        // Large futures are boxed, because this one is as large as the largest of them.
        Ok(Loaded::Shown(match self.kind {
            Kind::Find => match Box::pin(find(ask)).await? {
                Found::At(path) => return Ok(Loaded::At(path)),
                Found::Lists(lists) => list(&["q"], lists),
            },
            Kind::Compare => return Ok(Loaded::At(views::compared(ask)?)),
            Kind::Overview => named(
                title(&[self.title]),
                Box::new(Box::pin(overview::view(ask)).await?),
            ),
            Kind::Jobs => {
                let page = ask.get::<jobs::List>(ask.args::<jobs::List>(&[])?).await?;
                let next = next_of(page.next.as_ref().map(Cursor::as_str), page.more);
                list(
                    JOBS_FORM,
                    Box::new(ask.listed(page, next.as_deref(), "cursor", JOBS_FORM)?),
                )
            }
            Kind::Job => {
                let view = Box::pin(job::view(ask)).await?;
                named(job_title(&view.row, ""), Box::new(view))
            }
            Kind::JobCauses => named(
                title(&[self.title, ask.name()]),
                Box::new(causes::of_job(ask).await?),
            ),
            Kind::JobDurations => named(
                title(&[self.title, ask.name()]),
                Box::new(causes::durations_of_job(ask).await?),
            ),
            Kind::Causes => list(&[], Box::new(causes::of_time(ask).await?)),
            Kind::Durations => list(&[], Box::new(causes::durations_of_time(ask).await?)),
            Kind::Diff => {
                let mut args = ask.args::<jobs::Diff>(&[])?;
                // Of the first page only: it reads all returns of both jobs.
                args.totals = ask.field("after").is_none();
                let mut page = ask.get::<jobs::Diff>(args).await?;
                let groups = grouped(std::mem::take(&mut page.minions))?;
                let name = job_title(&page.b, "difference");
                let next = next_of(page.next.as_deref(), page.more);
                let page = ask.listed(page, next.as_deref(), "after", DIFF_FORM)?;
                named(name, Box::new(DiffView { page, groups }))
            }
            Kind::Events => list(EVENTS_FORM, Box::new(views::events(ask).await?)),
            Kind::Event => {
                let view = views::event(ask).await?;
                let Time(at) = view.event.time;
                let name = title(&[&view.event.tag, &calendar(at)]);
                named(name, Box::new(view))
            }
            Kind::Minions => {
                let args = ask.args::<minions::List>(&[])?;
                let page = ask.get::<minions::List>(args).await?;
                let next = next_of(page.next.as_deref(), page.more);
                let page = ask.listed(page, next.as_deref(), "after", MINIONS_FORM)?;
                list(&["minion"], Box::new(MinionsView::of(ask, page)))
            }
            Kind::Minion => {
                let minion = ask.name().to_owned();
                let name = title(&[&minion]);
                let args = minions::ShowArgs { minion };
                named(name, Box::new(ask.known::<minions::Show, _>(args).await?))
            }
            Kind::Reactor => list(REACTOR_FORM, Box::new(views::reactor(ask).await?)),
            Kind::Reaction => {
                let view = views::reaction(ask).await?;
                let name = title(&[self.title, &view.reaction.tag]);
                named(name, Box::new(view))
            }
            Kind::Sinks => named(title(&[self.title]), Box::new(views::sinks(ask).await)),
            Kind::Consumers => named(title(&[self.title]), Box::new(views::consumers(ask).await)),
            Kind::Sink => named(
                title(&[self.title, ask.name()]),
                Box::new(views::sink(ask).await?),
            ),
        }))
    }
}
