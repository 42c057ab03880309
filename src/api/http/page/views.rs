//! The views, and the operations of the API that each makes.

#![expect(
    clippy::indexing_slicing,
    reason = "reading a JSON value by name yields null where it is absent"
)]

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};

use super::super::access::Access;
use super::super::answer::HttpError;
use super::super::server::HttpServer;
use super::super::v1;
use super::render::encoded;
use crate::api::budget::Room;
use crate::base::limits::{LIST_ROWS_MAX, PAGE_OVERVIEW_ROWS, PAGE_ROWS, PAGE_STREAM_RATE};
use crate::model::Right;

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
            .clock
            .now()
            .0
            .saturating_sub(seconds * 1_000_000))
    }

    /// The result of a reading operation that has the path of this view.
    async fn get(&self, path: &str, fields: Vec<(String, Json)>) -> Result<Json, HttpError> {
        let of_path = if path.contains('{') { self.path } else { &[] };
        let operation = ("GET", path);
        v1::ask(
            self.server,
            self.access,
            self.room,
            operation,
            of_path,
            fields,
        )
        .await
    }

    /// Like [`Ask::get`], for a part of a view: an error is shown in its place.
    async fn part(&self, path: &str, fields: &[(&str, Json)]) -> Json {
        let fields = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        self.get(path, fields)
            .await
            .unwrap_or_else(|error| json!({ "error": error.message }))
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

    /// Adds what the templates of lists need: the fields, and the query of the next page.
    fn listed(&self, mut data: Json, cursor: &str) -> Json {
        let next = data["next"]
            .as_str()
            .filter(|_| data["more"] == true)
            .map(|next| self.with(cursor, next));
        let filter: HashMap<_, _> = self.query.iter().cloned().collect();
        add(&mut data, "next_page", next);
        add(&mut data, "filter", json!(filter));
        data
    }
}

/// A query, with `?`.
fn query<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    format!("?{}", fields.join("&"))
}

fn add(data: &mut Json, name: &str, value: impl Into<Json>) {
    if let Some(fields) = data.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

impl View {
    /// The data of the template.
    pub(super) async fn load(&self, ask: &Ask<'_>) -> Result<Json, HttpError> {
        match self.kind {
            Kind::Overview => overview(ask).await,
            Kind::Jobs => Ok(ask.listed(ask.get("/jobs", ask.fields(&[])?).await?, "cursor")),
            Kind::Job => job(ask).await,
            Kind::Diff => Ok(ask.listed(
                ask.get("/jobs/{jid}/diff", ask.fields(&[])?).await?,
                "after",
            )),
            Kind::Events => events(ask).await,
            Kind::Event => event(ask).await,
            Kind::Minions => Ok(ask.listed(ask.get("/minions", ask.fields(&[])?).await?, "after")),
            Kind::Minion => ask.get("/minions/{minion}", Vec::new()).await,
            Kind::Reactor => reactor(ask).await,
            Kind::Reaction => reaction(ask).await,
            Kind::Engines => engines(ask).await,
            Kind::Sink => sink(ask).await,
        }
    }
}

async fn overview(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let since = ask.before("1d")?;
    let jobs = |result: &str| {
        [
            ("result", json!(result)),
            ("since", json!(since)),
            ("limit", json!(PAGE_OVERVIEW_ROWS)),
        ]
    };

    let [failed, missing, changed] = [jobs("failed"), jobs("missing"), jobs("changed")];
    let attention = [
        ("attention", json!(true)),
        ("limit", json!(PAGE_OVERVIEW_ROWS)),
    ];

    // The costliest part by far: it reads the last highstate of every minion.
    let minions = ask
        .server
        .attention
        .get(ask.access, ask.server.ctx.store.durable(), || async {
            let time = ask.server.ctx.clock.now().0;
            let mut list = ask.part("/minions", &attention).await;
            add(&mut list, "time", time);
            list
        });

    // All parts at the same time; a part that fails shows its error in its place, and the others
    // are shown.
    let (status, store, failed, missing, changed, minions) = tokio::join!(
        ask.part("/status", &[]),
        ask.part("/store", &[]),
        ask.part("/jobs", &failed),
        ask.part("/jobs", &missing),
        ask.part("/jobs", &changed),
        minions,
    );

    let hours = &store["entries_by_hour"];
    let hours_max = hours
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_u64)
        .max();

    Ok(json!({
        "status": status, "failed": failed, "missing": missing, "changed": changed, "minions": minions,
        "hours": hours_max.filter(|most| *most > 0).map(|_| hours), "hours_max": hours_max,
    }))
}

/// A job: failed returns first; each return has its states, and its position in the timeline.
async fn job(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let mut job = ask.get("/jobs/{jid}", ask.fields(&[])?).await?;

    let mut of_states = ask.fields(&["limit"])?;

    // A filter leaves out other returns than states.
    if ask.field("result").is_none() {
        // As many states as the returns on this page have, in the same order; a return without
        // states counts as one.
        let rows = |answer: &Json| {
            let value = &answer["return"];
            value
                .as_object()
                .map(Map::len)
                .or_else(|| value.as_array().map(Vec::len))
                .unwrap_or(1)
                .max(1)
        };
        let count: usize = job["returns"]
            .as_array()
            .into_iter()
            .flatten()
            .map(rows)
            .sum();
        of_states.push(("limit".to_owned(), count.clamp(1, LIST_ROWS_MAX).into()));
    }

    let states = ask.get("/jobs/{jid}/states", of_states).await?;

    let mut of_minions: HashMap<String, Vec<Json>> = HashMap::new();
    let mut last = String::new();
    for state in states["states"].as_array().into_iter().flatten() {
        let minion = state["minion"].as_str().unwrap_or_default();
        minion.clone_into(&mut last);
        of_minions
            .entry(minion.to_owned())
            .or_default()
            .push(state.clone());
    }

    let start = micros(&job["time"]);
    let span = job["duration_us"].as_i64().unwrap_or(0).max(1);

    for answer in job
        .get_mut("returns")
        .and_then(Json::as_array_mut)
        .into_iter()
        .flatten()
    {
        let minion = answer["minion"].as_str().unwrap_or_default().to_owned();
        let after = micros(&answer["time"])
            .zip(start)
            .map(|(at, start)| at.saturating_sub(start));

        // In thousandths of the span.
        let place = after.map(|after| {
            after
                .saturating_mul(1000)
                .checked_div(span)
                .unwrap_or(0)
                .clamp(0, 1000)
        });

        // Minions are in order, so states of those after the last one are on a page that was not
        // read.
        let is_cut = states["more"] == true && minion > last;

        add(answer, "states", json!(of_minions.remove(&minion)));
        add(answer, "states_cut", is_cut);
        add(answer, "after_us", after);
        add(answer, "place", place);
    }

    // A stable sort: within the failed returns, and within the others, minions stay in order.
    if let Some(returns) = job.get_mut("returns").and_then(Json::as_array_mut) {
        returns.sort_by_key(|answer| answer["failed"] != true);
    }

    Ok(ask.listed(job, "after"))
}

fn micros(time: &Json) -> Option<i64> {
    time.as_str()?
        .parse::<Timestamp>()
        .ok()
        .map(Timestamp::as_microsecond)
}

/// Events, and the stream that adds new ones to the first page.
async fn events(ask: &Ask<'_>) -> Result<Json, HttpError> {
    // Entries before this position are on the page, or not wanted. It counts all entries, even
    // those that a limited token may not read.
    let is_limited = ask.access.caller.limits.is_limited();
    let durable = ask.server.ctx.store.durable().0;
    let position = (!is_limited).then(|| durable.saturating_sub(1));

    let mut page = ask.get("/events", ask.fields(&[])?).await?;

    // Only the first page shows the present, so only it is continued by the stream.
    let is_first = ["cursor", "until", "jid"]
        .iter()
        .all(|name| ask.field(name).is_none());
    if is_first {
        let scope: HashMap<_, _> = ["tag", "minion"]
            .into_iter()
            .filter_map(|name| Some((name, ask.field(name)?)))
            .collect();
        let scope = if scope.is_empty() {
            None
        } else {
            Some(json!([scope]).to_string())
        };

        // The stream begins after the page, or after the position from before it was read, so no
        // event is missing between them.
        let seen = page["events"][0]["seq"].as_u64().max(position);
        let after = seen.map(|seen| format!("{}:{seen}", ask.server.ctx.store.id()));

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

        let stream = format!("/api/v1/events/stream{}", query(given));
        add(&mut page, "stream", stream);
    }

    Ok(ask.listed(page, "cursor"))
}

/// One event: the first one below the next sequence number.
async fn event(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let seq = ask
        .path
        .first()
        .and_then(|(_, seq)| seq.parse::<u64>().ok());
    let unknown = || HttpError::not_found("there is no such event, or it has expired");
    let seq = seq.ok_or_else(unknown)?;

    let cursor = format!("{}:{}", ask.server.ctx.store.id(), seq.saturating_add(1));
    let fields = [("cursor", json!(cursor)), ("limit", json!(1))];
    let page = ask
        .get(
            "/events",
            fields.map(|(name, value)| (name.to_owned(), value)).into(),
        )
        .await?;

    // If this event does not exist, or may not be read, the search has found an older one.
    let found = page["events"]
        .as_array()
        .and_then(|events| events.iter().find(|event| event["seq"] == seq));

    Ok(json!({ "event": found.ok_or_else(unknown)? }))
}

async fn reactor(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let state = ask.part("/reactor", &[]).await;
    if !state["error"].is_null() {
        // A search for reactions would read the whole log.
        return Ok(json!({ "reactor": state }));
    }

    let since = ("since", json!(ask.before("7d")?));
    let dead = [
        ("state", json!("failed,partial,dead")),
        ("limit", json!(PAGE_OVERVIEW_ROWS)),
        since,
    ];
    let why = [("tag", json!(ask.field("why")))];

    let (dead, why) = tokio::join!(ask.part("/reactor/reactions", &dead), async {
        match ask.field("why") {
            Some(_) => ask.part("/reactor/why", &why).await,
            None => Json::Null,
        }
    });

    let mut page = ask.get("/reactor/reactions", ask.fields(&["why"])?).await?;
    for (name, part) in [("reactor", state), ("dead", dead), ("why", why)] {
        add(&mut page, name, part);
    }

    Ok(ask.listed(page, "cursor"))
}

async fn reaction(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let reaction = ask.get("/reactor/reactions/{seq}", Vec::new()).await?;
    let state = reaction["reaction"]["state"].as_str().unwrap_or_default();
    let can_replay =
        ["failed", "partial", "dead"].contains(&state) && ask.access.right >= Right::Admin;

    Ok(json!({ "reaction": reaction, "can_replay": can_replay, "replayed": ask.field("replayed") }))
}

async fn engines(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let (sinks, consumers) = tokio::join!(ask.part("/sinks", &[]), ask.part("/consumers", &[]));
    Ok(json!({ "sinks": sinks, "consumers": consumers }))
}

async fn sink(ask: &Ask<'_>) -> Result<Json, HttpError> {
    let sinks = ask.get("/sinks/{name}", Vec::new()).await?;
    let letters = ask
        .get("/sinks/{name}/dead-letters", ask.fields(&["limit"])?)
        .await?;
    let next = letters["next"]
        .as_array()
        .map(|_| ask.with("after", &letters["next"].to_string()));
    Ok(json!({ "sinks": sinks, "letters": letters, "next_page": next }))
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
