//! The views, and the operations of the API that each makes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value as Json;

use super::super::access::Access;
use super::super::answer::HttpError;
use super::super::attention::{Attended, Part};
use super::super::server::HttpServer;
use super::super::v1;
use super::render::{Data, encoded};
use crate::api::budget::Room;
use crate::api::call::consumers::ConsumersPage;
use crate::api::call::events::{EventRow, EventsPage};
use crate::api::call::jobs::answers::{
    JobAnswer, JobDiff, JobRow, JobsPage, Publish, Return, State, StatesPage, UnknownReturn,
};
use crate::api::call::reactor::{ReactionRow, ReactionsPage, ReactorState, Why};
use crate::api::call::sinks::{DeadLettersPage, SinksPage};
use crate::api::call::status::Status;
use crate::api::call::{
    Call, Cursor, NoArgs, Run, consumers, events, jobs, minions, reactor, sinks, status, store,
};
use crate::api::query::{Child, JobResult, MinionsPage};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_ROWS_MAX, PAGE_OVERVIEW_ROWS, PAGE_ROWS, PAGE_STREAM_RATE};
use crate::model::Right;
use crate::reactor::stored::{State as ReactionState, States, StoredRecord};
use crate::wire::call::CallError;
use crate::wire::msgpack::{Head, Reader, Stored, Time};

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

/// A request for a view.
pub(super) struct Ask<'a> {
    pub(super) server: &'a Arc<HttpServer>,
    pub(super) access: &'a Access,
    /// Grows by the answer of each operation.
    pub(super) room: &'a Mutex<Room>,
    pub(super) path: &'a [(String, String)],
    pub(super) query: &'a [(String, String)],
}

impl Ask<'_> {
    /// A field of the address that is not empty.
    fn field(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(known, value)| known == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// The fields of the address for an operation: all that are not empty and do not belong to the
    /// view itself (`own`). `last`, such as `1d`, becomes the start of the time range.
    fn fields(&self, own: &[&str]) -> Result<Vec<(String, Json)>, HttpError> {
        let mut fields = vec![];

        for (name, value) in self
            .query
            .iter()
            .filter(|(name, value)| !value.is_empty() && !own.contains(&name.as_str()))
        {
            if name == "last" {
                fields.push(("since".to_owned(), self.before(value)?.into()));
            } else {
                fields.push((name.clone(), Json::from(value.as_str())));
            }
        }

        // The number of rows is the page's, unless the reader has chosen one.
        if self.field("limit").is_none() && !own.contains(&"limit") {
            fields.push(("limit".to_owned(), PAGE_ROWS.into()));
        }

        Ok(fields)
    }

    /// The time this long before now, in microseconds since 1970.
    fn before(&self, span: &str) -> Result<i64, HttpError> {
        let seconds = match span {
            "1h" => 3600,
            "1d" => 86_400,
            "7d" => 7 * 86_400,
            // The form offers these four.
            "30d" => 30 * 86_400,
            _ => {
                return Err(HttpError::bad(format!(
                    "`last={span:.20}`: expected 1h, 1d, 7d or 30d"
                )));
            }
        };

        Ok(self
            .server
            .ctx
            .archive
            .clock
            .now()
            .0
            .saturating_sub(seconds * 1_000_000))
    }

    /// The answer of a call, with the rights and limits of the reader.
    async fn get<C: Run>(&self, args: C::Args<'static>) -> Result<C::Answer, HttpError> {
        v1::make::<C>(self.server, self.access, self.room, self.path, args).await
    }

    /// Like [`Ask::get`], of a call that has no answer for an unknown job or minion.
    async fn known<C, A>(&self, args: C::Args<'static>) -> Result<A, HttpError>
    where
        C: Run + Call<Answer = Option<A>>,
    {
        self.get::<C>(args).await?.ok_or_else(v1::not_found::<C>)
    }

    /// Like [`Ask::get`], for a part of a view: an error is shown in its place.
    async fn part<C: Run>(&self, args: C::Args<'static>) -> Part<C::Answer> {
        match self.get::<C>(args).await {
            Ok(answer) => Part::Shown(answer),
            Err(error) => Part::Failed {
                error: error.message,
            },
        }
    }

    /// The arguments of a call from the path and the address of this view, but the fields that
    /// belong to the view itself (`own`).
    fn args<C: Run>(&self, own: &[&str]) -> Result<C::Args<'static>, HttpError> {
        v1::args_of::<C>(self.path, self.fields(own)?)
    }

    /// The part of the path that names what is shown.
    fn name(&self) -> &str {
        self.path.first().map_or("", |(_, name)| name.as_str())
    }

    /// The query of this view with another value of a field.
    fn with(&self, name: &str, value: &str) -> String {
        let kept = self
            .query
            .iter()
            .filter(|(known, value)| known != name && !value.is_empty());
        query(
            kept.map(|(name, value)| (name.as_str(), value.as_str()))
                .chain([(name, value)]),
        )
    }

    /// A page of a list, with what its template needs: the fields of the address, and the query of
    /// the next page, which is in the field `cursor`.
    fn listed<P: Page>(&self, page: P, cursor: &str) -> Listed<P> {
        Listed {
            filter: self.query.iter().cloned().collect(),
            next_page: page.next().map(|next| self.with(cursor, next)),
            page,
        }
    }
}

/// A page of a list.
trait Page: Serialize {
    /// Where the next page begins, if more follow.
    fn next(&self) -> Option<&str>;
}

macro_rules! pages {
    ($($page:ty: $as_str:path;)+) => {
        $(impl Page for $page {
            fn next(&self) -> Option<&str> {
                self.next.as_ref().filter(|_| self.more).map($as_str)
            }
        })+
    };
}

pages! {
    JobsPage: Cursor::as_str;
    JobDiff: String::as_str;
    EventsPage: Cursor::as_str;
    MinionsPage: String::as_str;
    ReactionsPage: Cursor::as_str;
}

#[derive(Debug, Serialize)]
struct Listed<P> {
    #[serde(flatten)]
    page: P,
    next_page: Option<String>,
    filter: HashMap<String, String>,
}

/// A query, with `?`.
fn query<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    format!("?{}", fields.join("&"))
}

impl View {
    /// The data of the template.
    pub(super) async fn load(&self, ask: &Ask<'_>) -> Result<Box<dyn Data>, HttpError> {
        Ok(match self.kind {
            Kind::Overview => Box::new(overview(ask).await?),
            Kind::Jobs => {
                let page = ask.get::<jobs::List>(ask.args::<jobs::List>(&[])?).await?;
                Box::new(ask.listed(page, "cursor"))
            }
            Kind::Job => Box::new(job(ask).await?),
            Kind::Diff => {
                let args = ask.args::<jobs::Diff>(&[])?;
                Box::new(ask.listed(ask.get::<jobs::Diff>(args).await?, "after"))
            }
            Kind::Events => Box::new(events(ask).await?),
            Kind::Event => Box::new(event(ask).await?),
            Kind::Minions => {
                let args = ask.args::<minions::List>(&[])?;
                Box::new(ask.listed(ask.get::<minions::List>(args).await?, "after"))
            }
            Kind::Minion => {
                let minion = ask.name().to_owned();
                let args = minions::ShowArgs { minion };
                Box::new(ask.known::<minions::Show, _>(args).await?)
            }
            Kind::Reactor => Box::new(reactor(ask).await?),
            Kind::Reaction => Box::new(reaction(ask).await?),
            Kind::Engines => Box::new(engines(ask).await),
            Kind::Sink => Box::new(sink(ask).await?),
        })
    }
}

/// The overview: each part with its own error.
#[derive(Serialize)]
struct Overview {
    status: Part<Status>,
    failed: Part<JobsPage>,
    missing: Part<JobsPage>,
    changed: Part<JobsPage>,
    minions: Part<Attended>,
    /// None if nothing was stored in any of them.
    hours: Option<Vec<u64>>,
    hours_max: Option<u64>,
}

async fn overview(ask: &Ask<'_>) -> Result<Overview, HttpError> {
    let since = Time(Micros(ask.before("1d")?));
    let jobs = |result: JobResult| jobs::ListArgs {
        result: Some(result),
        since: Some(since),
        limit: Some(PAGE_OVERVIEW_ROWS),
        ..jobs::ListArgs::default()
    };

    let attention = || minions::ListArgs {
        attention: true,
        limit: Some(PAGE_OVERVIEW_ROWS),
        ..minions::ListArgs::default()
    };

    // The costliest part by far: it reads the last highstate of every minion.
    let minions = ask.server.attention.get(
        ask.access,
        ask.server.ctx.archive.store.durable(),
        || async {
            let time = Time(ask.server.ctx.archive.clock.now());
            match ask.part::<minions::List>(attention()).await {
                Part::Shown(list) => Part::Shown(Attended { list, time }),
                Part::Failed { error } => Part::Failed { error },
            }
        },
    );

    // All parts at the same time; a part that fails shows its error in its place, and the others
    // are shown.
    let (status, store, failed, missing, changed, minions) = tokio::join!(
        ask.part::<status::Show>(NoArgs {}),
        ask.part::<store::Stats>(NoArgs {}),
        ask.part::<jobs::List>(jobs(JobResult::Failed)),
        ask.part::<jobs::List>(jobs(JobResult::Missing)),
        ask.part::<jobs::List>(jobs(JobResult::Changed)),
        minions,
    );

    let hours = store.shown().map(|store| &store.entries_by_hour);
    let hours_max = hours.and_then(|hours| hours.iter().max().copied());

    Ok(Overview {
        hours: hours.filter(|_| hours_max > Some(0)).cloned(),
        hours_max,
        status,
        failed,
        missing,
        changed,
        minions,
    })
}

/// A job: failed returns first.
#[derive(Serialize)]
struct JobView {
    #[serde(flatten)]
    row: JobRow,
    load: Stored,
    missing: Vec<String>,
    unknown: Vec<UnknownReturn>,
    not_confirmed: Vec<String>,
    publishes: Vec<Publish>,
    parent: Option<String>,
    children: Vec<Child>,
    returns: Vec<ReturnView>,
    next_page: Option<String>,
    filter: HashMap<String, String>,
}

/// A return with its states, and its position in the timeline.
#[derive(Serialize)]
struct ReturnView {
    #[serde(flatten)]
    answer: Return,
    states: Option<Vec<State>>,
    /// Its states are on a page that was not read.
    states_cut: bool,
    /// Since the start of the job.
    after_us: i64,
    /// In thousandths of the span.
    place: i64,
}

async fn job(ask: &Ask<'_>) -> Result<JobView, HttpError> {
    let args = ask.args::<jobs::Show>(&[])?;
    let job = ask.known::<jobs::Show, JobAnswer>(args).await?;

    let mut of_states = ask.args::<jobs::States>(&["limit"])?;

    // A filter leaves out other returns than states.
    if ask.field("result").is_none() {
        // As many states as the returns on this page have, in the same order; a return without
        // states counts as one.
        let count: usize = job.returns.iter().map(|answer| rows(&answer.value)).sum();
        of_states.page.limit = Some(count.clamp(1, LIST_ROWS_MAX));
    }

    let StatesPage { states, more, .. } = ask.known::<jobs::States, _>(of_states).await?;

    let last = states.last().map(|state| state.minion.clone());
    let mut of_minions: HashMap<String, Vec<State>> = HashMap::new();
    for state in states {
        let of_minion = of_minions.entry(state.minion.clone()).or_default();
        of_minion.push(state);
    }

    let next_page = job.next.as_ref().filter(|_| job.more);
    let next_page = next_page.map(|next| ask.with("after", next));

    let Time(Micros(start)) = job.row.time;
    let span = job.row.duration_us.unwrap_or(0).max(1);

    let shown = |answer: Return| {
        let Time(Micros(at)) = answer.time;
        let after_us = at.saturating_sub(start);

        let place = after_us.saturating_mul(1000);
        let place = place.checked_div(span).unwrap_or(0).clamp(0, 1000);

        ReturnView {
            states: of_minions.remove(&answer.minion),
            // Minions are in order, so states of those after the last one are on a page that was
            // not read.
            states_cut: more && last.as_ref().is_none_or(|last| answer.minion > *last),
            after_us,
            place,
            answer,
        }
    };
    let mut returns: Vec<_> = job.returns.into_iter().map(shown).collect();

    // A stable sort: within the failed returns, and within the others, minions stay in order.
    returns.sort_by_key(|shown| !shown.answer.failed);

    Ok(JobView {
        row: job.row,
        load: job.load,
        missing: job.missing,
        unknown: job.unknown,
        not_confirmed: job.not_confirmed.into_iter().collect(),
        publishes: job.publishes,
        parent: job.parent,
        children: job.children,
        returns,
        next_page,
        filter: ask.query.iter().cloned().collect(),
    })
}

/// The states that a return may have: those of a map or a list, otherwise it counts as one.
fn rows(value: &Stored) -> usize {
    match Reader::new(value.packed()).head() {
        Ok(Head::Map(count) | Head::Array(count)) => count.max(1),
        _ => 1,
    }
}

/// Events, and the stream that adds new ones to the first page.
#[derive(Serialize)]
struct EventsView {
    #[serde(flatten)]
    page: Listed<EventsPage>,
    stream: Option<String>,
}

/// What the stream of a page of events shows.
#[derive(Serialize)]
struct StreamScope<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minion: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    master: Option<&'a str>,
}

async fn events(ask: &Ask<'_>) -> Result<EventsView, HttpError> {
    // Entries before this position are on the page, or not wanted. It counts all entries, even
    // those that a limited token may not read.
    let is_limited = ask.access.caller.limits.is_limited();
    let durable = ask.server.ctx.archive.store.durable().0;
    let position = (!is_limited).then(|| durable.saturating_sub(1));

    let page = ask
        .get::<events::List>(ask.args::<events::List>(&[])?)
        .await?;

    // Only the first page shows the present, so only it is continued by the stream, which does not select by job.
    let is_first = ["cursor", "until", "jid"]
        .iter()
        .all(|name| ask.field(name).is_none());
    let stream = if is_first {
        // The stream begins after the page, or after the position from before it was read, so no
        // event is missing between them.
        let seen = page.events.first().map(|event| event.seq).max(position);
        Some(stream_of(ask, seen)?)
    } else {
        None
    };

    Ok(EventsView {
        page: ask.listed(page, "cursor"),
        stream,
    })
}

/// The address of the stream of a page's events after a position.
fn stream_of(ask: &Ask<'_>, seen: Option<u64>) -> Result<String, HttpError> {
    let scope = StreamScope {
        tag: ask.field("tag"),
        minion: ask.field("minion"),
        master: ask.field("master"),
    };
    let scope = match scope {
        StreamScope {
            tag: None,
            minion: None,
            master: None,
        } => None,
        scope => Some(serde_json::to_string(&[scope]).map_err(|error| {
            HttpError::from(CallError::Internal(format!("the stream's filter: {error}")))
        })?),
    };

    let after = seen.map(|seen| format!("{}:{seen}", ask.server.ctx.archive.store.id()));
    let rate = PAGE_STREAM_RATE.to_string();

    let given = [
        ("match", scope.as_deref()),
        ("where", ask.field("where")),
        ("after", after.as_deref()),
        ("max_rate", Some(&rate)),
    ];
    let given = given
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));

    Ok(format!("/api/v1/events/stream{}", query(given)))
}

#[derive(Serialize)]
struct EventView {
    event: EventRow,
}

/// One event: the first one below the next sequence number.
async fn event(ask: &Ask<'_>) -> Result<EventView, HttpError> {
    let unknown = || HttpError::not_found("there is no such event, or it has expired");
    let seq: u64 = ask.name().parse().map_err(|_| unknown())?;

    let store = ask.server.ctx.archive.store.id();
    let args = events::ListArgs {
        cursor: Some(Cursor::new(&store, seq.saturating_add(1))),
        limit: Some(1),
        ..events::ListArgs::default()
    };
    let page = ask.get::<events::List>(args).await?;

    // If this event does not exist, or may not be read, the search has found an older one.
    let event = page.events.into_iter().find(|event| event.seq == seq);
    Ok(EventView {
        event: event.ok_or_else(unknown)?,
    })
}

#[derive(Serialize)]
struct ReactorView {
    reactor: Part<ReactorState>,
    #[serde(flatten)]
    lists: Option<ReactorLists>,
}

#[derive(Serialize)]
struct ReactorLists {
    dead: Part<ReactionsPage>,
    /// Only if the reader asks for it.
    why: Option<Part<Why>>,
    #[serde(flatten)]
    page: Listed<ReactionsPage>,
}

async fn reactor(ask: &Ask<'_>) -> Result<ReactorView, HttpError> {
    let state = ask.part::<reactor::List>(NoArgs {}).await;
    if state.shown().is_none() {
        // A search for reactions would read the whole log.
        return Ok(ReactorView {
            reactor: state,
            lists: None,
        });
    }

    let dead = reactor::HistoryArgs {
        state: Some(States::unfinished()),
        limit: Some(PAGE_OVERVIEW_ROWS),
        since: Some(Time(Micros(ask.before("7d")?))),
        ..reactor::HistoryArgs::default()
    };

    let (dead, why) = tokio::join!(ask.part::<reactor::History>(dead), async {
        let tag = ask.field("why")?.to_owned();
        Some(ask.part::<reactor::Explain>(reactor::WhyArgs { tag }).await)
    });

    let args = ask.args::<reactor::History>(&["why"])?;
    let page = ask.get::<reactor::History>(args).await?;

    Ok(ReactorView {
        reactor: state,
        lists: Some(ReactorLists {
            dead,
            why,
            page: ask.listed(page, "cursor"),
        }),
    })
}

#[derive(Serialize)]
struct ReactionView {
    reaction: ReactionRow,
    can_replay: bool,
    /// How many calls were repeated, after a replay.
    replayed: Option<String>,
}

async fn reaction(ask: &Ask<'_>) -> Result<ReactionView, HttpError> {
    let args = v1::args_of::<reactor::Show>(ask.path, Vec::new())?;
    let reaction = ask.get::<reactor::Show>(args).await?;

    // A record that this release cannot read has nothing that could be repeated.
    let record = StoredRecord::read(reaction.reaction.packed());
    let has_failed = record.is_ok_and(|record| {
        matches!(
            record.state,
            ReactionState::Failed | ReactionState::Partial | ReactionState::Dead
        )
    });

    let can_replay = has_failed && reaction.master.is_none() && ask.access.right >= Right::Admin;
    Ok(ReactionView {
        reaction,
        can_replay,
        replayed: ask.field("replayed").map(str::to_owned),
    })
}

/// Sinks and consumers; or one sink, with its dead letters.
#[derive(Serialize)]
struct EnginesView {
    sinks: Part<SinksPage>,
    consumers: Option<Part<ConsumersPage>>,
    letters: Option<DeadLettersPage>,
    next_page: Option<String>,
}

async fn engines(ask: &Ask<'_>) -> EnginesView {
    let (sinks, consumers) = tokio::join!(
        ask.part::<sinks::List>(sinks::ListArgs::default()),
        ask.part::<consumers::List>(consumers::ListArgs::default())
    );
    EnginesView {
        sinks,
        consumers: Some(consumers),
        letters: None,
        next_page: None,
    }
}

async fn sink(ask: &Ask<'_>) -> Result<EnginesView, HttpError> {
    let args = sinks::ListArgs {
        name: Some(ask.name().to_owned()),
    };
    let sinks = ask.get::<sinks::List>(args).await?;

    let args = ask.args::<sinks::DeadLetters>(&["limit"])?;
    let letters = ask.get::<sinks::DeadLetters>(args).await?;

    let next = letters.next.as_ref();
    let next = next.map(|(seq, id)| ask.with("after", &serde_json::json!([seq, id]).to_string()));

    Ok(EnginesView {
        sinks: Part::Shown(sinks),
        consumers: None,
        letters: Some(letters),
        next_page: next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::Query;
    use hyper::Uri;

    #[test]
    fn a_query_holds_any_text() {
        let text = query([("tag", "a/*&b=c #\"<é"), ("x", "")].into_iter());
        let uri: Uri = format!("/{text}").parse().unwrap();
        let Query(fields) = Query::<Vec<(String, String)>>::try_from_uri(&uri).unwrap();
        assert_eq!(
            fields,
            [
                ("tag".to_owned(), "a/*&b=c #\"<é".to_owned()),
                ("x".to_owned(), String::new())
            ]
        );
    }
}
