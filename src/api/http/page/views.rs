//! The views, and the operations of the API that each makes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value as Json;

use super::super::access::Access;
use super::super::answer::HttpError;
use super::super::attention::Part;
use super::super::server::HttpServer;
use super::super::v1;
use super::render::encoded;
use crate::api::budget::Room;
use crate::api::call::consumers::ConsumersPage;
use crate::api::call::events::{EventRow, EventsPage};
use crate::api::call::jobs::answers::{JobDiff, JobsPage};
use crate::api::call::reactor::{ReactionRow, ReactionsPage, ReactorState, Why};
use crate::api::call::sinks::{DeadLettersPage, SinksPage};
use crate::api::call::{Call, Cursor, NoArgs, Run, consumers, events, reactor, sinks};
use crate::api::query::MinionsPage;
use crate::base::clock::Micros;
use crate::base::limits::{PAGE_OVERVIEW_ROWS, PAGE_ROWS, PAGE_STREAM_RATE};
use crate::model::Right;
use crate::reactor::stored::{State as ReactionState, States, StoredRecord};
use crate::wire::call::CallError;
use crate::wire::msgpack::Time;

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
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(known, value)| known == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// The fields of the address for an operation: all that are not empty and do not belong to the
    /// view itself (`own`). `last`, such as `1d`, becomes the start of the time range.
    pub(super) fn fields(&self, own: &[&str]) -> Result<Vec<(String, Json)>, HttpError> {
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
    pub(super) fn before(&self, span: &str) -> Result<i64, HttpError> {
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
    pub(super) async fn get<C: Run>(&self, args: C::Args<'static>) -> Result<C::Answer, HttpError> {
        v1::make::<C>(self.server, self.access, self.room, self.path, args).await
    }

    /// Like [`Ask::get`], of a call that has no answer for an unknown job or minion.
    pub(super) async fn known<C, A>(&self, args: C::Args<'static>) -> Result<A, HttpError>
    where
        C: Run + Call<Answer = Option<A>>,
    {
        self.get::<C>(args).await?.ok_or_else(v1::not_found::<C>)
    }

    /// Like [`Ask::get`], for a part of a view: an error is shown in its place.
    pub(super) async fn part<C: Run>(&self, args: C::Args<'static>) -> Part<C::Answer> {
        match self.get::<C>(args).await {
            Ok(answer) => Part::Shown(answer),
            Err(error) => Part::Failed {
                error: error.message,
            },
        }
    }

    /// The arguments of a call from the path and the address of this view, but the fields that
    /// belong to the view itself (`own`).
    pub(super) fn args<C: Run>(&self, own: &[&str]) -> Result<C::Args<'static>, HttpError> {
        v1::args_of::<C>(self.path, self.fields(own)?)
    }

    /// The part of the path that names what is shown.
    pub(super) fn name(&self) -> &str {
        self.path.first().map_or("", |(_, name)| name.as_str())
    }

    /// The query of this view with another value of a field.
    pub(super) fn with(&self, name: &str, value: &str) -> String {
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
    pub(super) fn listed<P: Page>(&self, page: P, cursor: &str) -> Listed<P> {
        Listed {
            filter: self.query.iter().cloned().collect(),
            next_page: page.next().map(|next| self.with(cursor, next)),
            page,
        }
    }
}

/// A page of a list.
pub(super) trait Page: Serialize {
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
pub(super) struct Listed<P> {
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

/// Events, and the stream that adds new ones to the first page.
#[derive(Serialize)]
pub(super) struct EventsView {
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

pub(super) async fn events(ask: &Ask<'_>) -> Result<EventsView, HttpError> {
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
pub(super) struct EventView {
    event: EventRow,
}

/// One event: the first one below the next sequence number.
pub(super) async fn event(ask: &Ask<'_>) -> Result<EventView, HttpError> {
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
pub(super) struct ReactorView {
    reactor: Part<ReactorState>,
    #[serde(flatten)]
    lists: Option<ReactorLists>,
}

#[derive(Serialize)]
pub(super) struct ReactorLists {
    dead: Part<ReactionsPage>,
    /// Only if the reader asks for it.
    why: Option<Part<Why>>,
    #[serde(flatten)]
    page: Listed<ReactionsPage>,
}

pub(super) async fn reactor(ask: &Ask<'_>) -> Result<ReactorView, HttpError> {
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
pub(super) struct ReactionView {
    reaction: ReactionRow,
    can_replay: bool,
    /// How many calls were repeated, after a replay.
    replayed: Option<String>,
}

pub(super) async fn reaction(ask: &Ask<'_>) -> Result<ReactionView, HttpError> {
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
pub(super) struct EnginesView {
    sinks: Part<SinksPage>,
    consumers: Option<Part<ConsumersPage>>,
    letters: Option<DeadLettersPage>,
    next_page: Option<String>,
}

pub(super) async fn engines(ask: &Ask<'_>) -> EnginesView {
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

pub(super) async fn sink(ask: &Ask<'_>) -> Result<EnginesView, HttpError> {
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
