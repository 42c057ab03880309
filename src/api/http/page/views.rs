//! The views, and the operations of the API that each makes.

use std::collections::HashMap;

use serde::Serialize;

use super::super::answer::HttpError;
use super::super::attention::Part;
use super::super::v1;
use super::address::{Paging, query};
use super::ask::{Ask, Listed};
use super::diff_view::DiffGroup;
use super::render::{calendar, encoded, text_of};
use super::response::LocalPath;
use super::title::title;
use crate::api::call::consumers::ConsumersPage;
use crate::api::call::events::{EventRow, EventsPage};
use crate::api::call::jobs::answers::{JobDiff, JobRow};
use crate::api::call::reactor::{ReactionRow, ReactionsPage, ReactorState, Why};
use crate::api::call::sinks::{DeadLettersPage, SinksPage};
use crate::api::call::{Cursor, NoArgs, consumers, events, reactor, sinks, store};
use crate::api::query::{MinionsPage, MinionsSort};
use crate::base::limits::{PAGE_OVERVIEW_ROWS, PAGE_STREAM_RATE};
use crate::base::named::Named as _;
use crate::model::Right;
use crate::reactor::stored::{State as ReactionState, States, StoredRecord};
use crate::wire::call::CallError;
use crate::wire::msgpack::Time;

/// The difference of the two jobs that were ticked in a list: the later one with the earlier one.
pub(super) fn compared(ask: &Ask<'_>) -> Result<LocalPath, HttpError> {
    let ticked = ask.address.query.iter().filter(|(name, _)| name == "run");
    let mut jids: Vec<&str> = ticked.map(|(_, jid)| jid.as_str()).collect();
    // Jids sort by their times.
    jids.sort_unstable();

    let [earlier, later] = jids[..] else {
        return Err(HttpError::bad(format!(
            "{} jobs are ticked: tick the two jobs to compare",
            jids.len()
        )));
    };

    let with = query([("with", earlier)].into_iter());
    Ok(LocalPath::or_root(&format!(
        "/jobs/{}/diff{with}",
        encoded(later)
    )))
}

/// The fields of forms; others that an address may have are kept by them.
pub(super) const JOBS_FORM: &[&str] = &[
    "fun", "arg", "tgt", "minion", "user", "master", "jid", "result",
];
pub(super) const EVENTS_FORM: &[&str] = &["tag", "minion", "jid", "master", "where"];
pub(super) const MINIONS_FORM: &[&str] = &["minion", "attention"];
pub(super) const REACTOR_FORM: &[&str] = &["tag", "minion", "state", "why"];
pub(super) const DIFF_FORM: &[&str] = &["with", "minion"];

/// Where the next page begins, if more follow.
pub(super) fn next_of(next: Option<&str>, more: bool) -> Option<String> {
    next.filter(|_| more).map(str::to_owned)
}

/// The title of a job: function, failures and time, by which tabs of jobs are told apart.
pub(super) fn job_title(row: &JobRow, what: &str) -> String {
    let Time(at) = row.time;
    let failed = match row.failed {
        0 => String::new(),
        count => format!("{count} failed"),
    };
    title(&[&text_of(&row.fun), what, &failed, &calendar(at)])
}

/// The difference of two runs.
#[derive(Serialize)]
pub(super) struct DiffView {
    #[serde(flatten)]
    pub(super) page: Listed<JobDiff>,
    pub(super) groups: Vec<DiffGroup>,
}

/// Minions, and the links that sort them.
#[derive(Serialize)]
pub(super) struct MinionsView {
    #[serde(flatten)]
    page: Listed<MinionsPage>,
    sort: &'static str,
    /// The query for each order.
    sorts: HashMap<&'static str, String>,
}

impl MinionsView {
    pub(super) fn of(ask: &Ask<'_>, page: Listed<MinionsPage>) -> Self {
        let sort = ask.field("sort").and_then(MinionsSort::named);
        // A place in one order is none in another.
        let link = |name: &&'static str| {
            let query = ask
                .address
                .with(&[("sort", *name), ("after", ""), ("back", "")]);
            (*name, query)
        };
        Self {
            page,
            sort: sort.unwrap_or_default().name(),
            sorts: MinionsSort::NAMES.iter().map(link).collect(),
        }
    }
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

    // Only the first page shows the present, so only it is continued by the stream, which does not select by these.
    let [_, until] = ask.address.bounds()?;
    let is_first = until.is_none()
        && ["cursor", "jid", "before", "match", "newest_first"]
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

    let next = next_of(page.next.as_ref().map(Cursor::as_str), page.more);
    Ok(EventsView {
        page: ask.listed(page, next.as_deref(), "cursor", EVENTS_FORM)?,
        stream,
    })
}

/// The address of the stream of a page's events behind a position.
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
            HttpError::from(CallError::Internal(format!(
                "the filter of the event stream cannot be written as JSON, the page fails: report this message: {error}"
            )))
        })?),
    };

    // Behind the events of the page, which the stream must not repeat.
    let after = seen.map(|seen| format!("{}:{seen}", ask.server.ctx.archive.store.id()));
    let rate = PAGE_STREAM_RATE.to_string();

    let given = [
        ("match", scope.as_deref()),
        ("where", ask.field("where")),
        ("search", ask.field("search")),
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
    pub(super) event: EventRow,
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
        since: Some(Time(ask.address.before("7d")?)),
        ..reactor::HistoryArgs::default()
    };

    let (dead, why) = tokio::join!(ask.part::<reactor::History>(dead), async {
        let tag = ask.field("why")?.to_owned();
        Some(ask.part::<reactor::Explain>(reactor::WhyArgs { tag }).await)
    });

    let args = ask.args::<reactor::History>(&["why"])?;
    let page = ask.get::<reactor::History>(args).await?;
    let next = next_of(page.next.as_ref().map(Cursor::as_str), page.more);

    Ok(ReactorView {
        reactor: state,
        lists: Some(ReactorLists {
            dead,
            why,
            page: ask.listed(page, next.as_deref(), "cursor", REACTOR_FORM)?,
        }),
    })
}

#[derive(Serialize)]
pub(super) struct ReactionView {
    pub(super) reaction: ReactionRow,
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

/// All sinks, or one sink with its dead letters, or all consumers.
#[derive(Serialize)]
pub(super) struct DeliveryView {
    sinks: Option<Part<SinksPage>>,
    consumers: Option<Part<ConsumersPage>>,
    letters: Option<DeadLettersPage>,
    /// The ages at which entries expire, in seconds.
    kept: Vec<u64>,
    /// Whether sizes or numbers of entries are limited as well.
    is_kept_by_size: bool,
    /// Whether the reader may change dead letters.
    can_change: bool,
    /// How many were, after a change: of which name, and how many.
    changed: Option<(&'static str, String)>,
    #[serde(flatten)]
    paging: Paging,
}

impl DeliveryView {
    fn of(sinks: Option<Part<SinksPage>>, consumers: Option<Part<ConsumersPage>>) -> Self {
        Self {
            sinks,
            consumers,
            letters: None,
            kept: Vec::new(),
            is_kept_by_size: false,
            can_change: false,
            changed: None,
            paging: Paging::default(),
        }
    }
}

pub(super) async fn sinks(ask: &Ask<'_>) -> DeliveryView {
    let sinks = ask.part::<sinks::List>(sinks::ListArgs::default()).await;
    DeliveryView::of(Some(sinks), None)
}

pub(super) async fn consumers(ask: &Ask<'_>) -> DeliveryView {
    let (sinks, mut consumers) = tokio::join!(
        ask.part::<sinks::List>(sinks::ListArgs::default()),
        ask.part::<consumers::List>(consumers::ListArgs::default())
    );

    // The consumer of a sink repeats its name, lag and error, which the list of sinks shows.
    if let (Some(SinksPage { sinks }), Part::Shown(page)) = (sinks.shown(), &mut consumers) {
        let is_of_sink = |name: &str| sinks.iter().any(|sink| sink.name == name);
        page.consumers
            .retain(|consumer| !is_of_sink(&consumer.name));
    }

    DeliveryView::of(None, Some(consumers))
}

pub(super) async fn sink(ask: &Ask<'_>) -> Result<DeliveryView, HttpError> {
    let args = sinks::ListArgs {
        name: Some(ask.name().to_owned()),
    };
    let sinks = ask.get::<sinks::List>(args).await?;

    let args = ask.args::<sinks::DeadLetters>(&["limit", "retry", "drop"])?;
    let letters = ask.get::<sinks::DeadLetters>(args).await?;
    let classes = ask.get::<store::Stats>(NoArgs {}).await?.classes;

    let next = letters.next.as_ref();
    let next = next.map(|(seq, id)| serde_json::json!([seq, id]).to_string());

    Ok(DeliveryView {
        sinks: Some(Part::Shown(sinks)),
        consumers: None,
        letters: Some(letters),
        kept: classes
            .iter()
            .filter_map(|class| class.keep_age_s)
            .collect(),
        is_kept_by_size: classes
            .iter()
            .any(|class| class.keep_bytes.or(class.keep_entries).is_some()),
        can_change: ask.access.right >= Right::Admin,
        changed: ["retry", "drop"]
            .into_iter()
            .find_map(|name| Some((name, ask.field(name)?.to_owned()))),
        paging: ask.address.paging("after", next.as_deref()),
    })
}
