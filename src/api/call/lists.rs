//! Calls about events, entries, and the daemon's status.

use super::consumers::FilterArgs;
use super::{Call, Ctx, In, NoArgs, ReadCtx, Run, Whole, failed, typed};
use crate::api::status::{self, Status};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, LIST_ROWS_MAX};
use crate::model::{EventFilter, Flags, Glob, Kind, SeqNo};
use crate::store::{EventPage, StoreView, StoredEntry};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{self, Reader, Writer};

/// Rows of a list, unless the caller wants another number.
pub(super) const LIST_ROWS: usize = 20;

fn limit(args: &Args<'_>) -> Result<usize, CallError> {
    Ok(args.count("limit")?.unwrap_or(LIST_ROWS).min(LIST_ROWS_MAX))
}

fn glob(args: &Args<'_>, key: &'static str) -> Result<Option<Glob>, CallError> {
    Ok(args.text(key)?.map(Glob::new))
}

fn time(args: &Args<'_>, key: &'static str) -> Result<Option<Micros>, CallError> {
    Ok(args.int(key)?.map(Micros))
}

/// A msgpack map that counts its pairs as they are written.
#[derive(Default)]
pub(super) struct Map {
    pairs: usize,
    body: Writer,
}

impl Map {
    pub(super) fn key(&mut self, key: &str) -> &mut Writer {
        self.pairs += 1;
        self.body.str(key)
    }

    pub(super) fn text_unless_empty(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.key(key).str(text);
        }
    }

    /// Writes an event's data; as bin if it is not msgpack, which earlier releases could store.
    // A value with bytes behind it would end the answer early.
    pub(super) fn data(&mut self, data: &[u8]) {
        let whole = Reader::new(data)
            .value()
            .is_ok_and(|value| value.len() == data.len());

        let w = self.key("data");
        if whole {
            w.raw(data)
        } else {
            w.bin(data)
        };
    }

    pub(super) fn write(self, w: &mut Writer) {
        w.map(self.pairs).raw(&self.body.into_bytes());
    }
}

pub(super) fn events_list(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let filter = EventFilter {
        tag: glob(args, "tag")?,
        jid: args.id("jid")?,
        minion: args.text("minion")?.map(str::to_owned),
        since: time(args, "since")?,
        until: time(args, "until")?,
        reactions: false,
    };

    let before = args
        .count("before")?
        .map_or(ctx.store.durable(), |n| SeqNo(n as u64));

    let limit = limit(args)?;
    // One more than requested shows whether more follow.
    let wanted = limit.saturating_add(1);

    let select = typed::<FilterArgs>(args)?.filter()?;

    let page = ctx
        .store
        .search_events(&filter, &select, before, wanted, LIST_BYTES_MAX)
        .map_err(failed)?;

    // Without this event the page would be wrong, and the filter can be made cheaper.
    if let Some((seq, error)) = page.too_costly {
        ctx.metrics.filters_too_costly.add(1);
        return Err(CallError::Refused(format!("event {seq}: {error}")));
    }

    let stats = page.stats;
    let EventRows {
        mut events,
        more,
        next,
    } = EventRows::of(page, limit);

    // The page is that of the newest events in either case; only its rows are turned.
    if args.raw("newest_first").and_then(msgpack::as_bool) == Some(false) {
        events.reverse();
    }

    let mut w = Writer::new();
    w.map(if next.is_some() { 4 } else { 3 }).str("scan").map(5);
    w.str("segments")
        .uint(stats.segments)
        .str("segments_skipped")
        .uint(stats.segments_skipped);
    w.str("blocks")
        .uint(stats.blocks)
        .str("blocks_skipped")
        .uint(stats.blocks_skipped);
    w.str("entries").uint(stats.entries);

    w.str("events").array(events.len());
    for event in &events {
        write_event(&ctx.store, &mut w, event);
    }

    w.str("more").bool(more);
    if let Some(next) = next {
        w.str("next").uint(next.0);
    }

    Ok(w.into_bytes())
}

/// What a list shows of a page that was searched with a limit of one row more.
pub(super) struct EventRows {
    /// The latest first.
    pub(super) events: Vec<StoredEntry>,
    /// Whether there may be others.
    pub(super) more: bool,
    /// Where the search ended, if not at the last row.
    pub(super) next: Option<SeqNo>,
}

impl EventRows {
    pub(super) fn of(page: EventPage, limit: usize) -> Self {
        let EventPage {
            mut events, next, ..
        } = page;

        let bytes: usize = events.iter().map(|e| e.body.len() + e.tag.len()).sum();
        // The event that exceeds the byte limit is sent only if it is the first one.
        let keep = if bytes > LIST_BYTES_MAX {
            (events.len() - 1).clamp(1, limit.max(1))
        } else {
            limit
        };

        let more = events.len() > keep || bytes > LIST_BYTES_MAX || next.is_some();
        // Where the search ended, unless rows are left out here.
        let next = next.filter(|_| events.len() <= keep);

        events.truncate(keep);
        Self { events, more, next }
    }
}

pub(super) fn write_event(store: &StoreView, w: &mut Writer, event: &StoredEntry) {
    let mut map = Map::default();
    map.key("id").str(&store.event_id(event));
    map.key("seq").uint(event.seq.0);
    map.key("time").int(event.at.0);
    map.key("tag").str(&String::from_utf8_lossy(&event.tag));

    // Any program may fire an event under any tag, but only the daemon records gaps.
    map.key("source").str(if event.kind == Kind::Gap {
        "saltcellar"
    } else {
        event.source.name()
    });

    map.text_unless_empty("jid", &event.jid);
    map.text_unless_empty("minion", &event.minion);
    map.text_unless_empty("fun", &event.fun);
    map.data(&event.body);
    map.write(w);
}

/// Entries as stored: of one job, or of the whole log.
pub(super) fn entries(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let durable = ctx.store.durable();
    // Entries beyond the durable position may be numbered anew after a crash.
    let from = args.count("from")?.map_or(SeqNo(1), |n| SeqNo(n as u64));
    let until = args
        .count("until")?
        .map_or(durable, |n| SeqNo(n as u64))
        .min(durable);

    let (found, next) = if let Some(jid) = args.id("jid")? {
        ctx.store
            .job_entries_from(&jid, (from, until), LIST_BYTES_MAX)
            .map_err(failed)?
    } else {
        // Events fill most of the log, and readers of jobs do not need them.
        let all = args.flag("all")?;
        let of_jobs = |kind| !matches!(kind, Kind::Event | Kind::Register | Kind::Gap);
        let wanted = |kind, _| all || of_jobs(kind);

        let (found, next) = ctx
            .store
            .entries_from(from, until, LIST_BYTES_MAX, wanted)
            .map_err(failed)?;
        (found, Some(next).filter(|next| *next < until))
    };

    let mut w = Writer::new();
    w.map(3).str("entries").array(found.len());
    for entry in &found {
        let mut map = Map::default();
        map.key("seq").uint(entry.seq.0);
        map.key("kind").str(entry.kind.name());
        map.key("time").int(entry.at.0);
        map.key("on_bus").bool(entry.flags.has(Flags::ON_BUS));
        // For an event from a bus, confirmation has no meaning.
        if entry.kind == Kind::Return {
            let unconfirmed = entry.flags.has(Flags::UNCONFIRMED);
            match (entry.source.confirms(), unconfirmed) {
                (true, _) => map.key("confirmed").bool(true),
                (false, true) => map.key("confirmed").bool(false),
                // Stored by a release that did not record confirmation.
                (false, false) => map.key("confirmed").nil(),
            };
        }

        if !entry.tag.is_empty() {
            map.key("tag").bin(&entry.tag);
        }

        map.text_unless_empty("jid", &entry.jid);
        map.text_unless_empty("minion", &entry.minion);
        map.text_unless_empty("fun", &entry.fun);
        map.key("body").bin(&entry.body);
        map.write(&mut w);
    }

    w.str("next");
    match next {
        Some(next) => w.uint(next.0),
        None => w.nil(),
    };
    w.str("durable").uint(durable.0);
    Ok(w.into_bytes())
}

/// `status`.
pub(crate) struct ShowStatus;

impl Call for ShowStatus {
    const NAME: &'static str = "status";
    const DOC: &'static str = "Show the status of the daemon, its sources and its store";
    type Scope = Whole;
    type Args<'a> = NoArgs;
    type Answer = Status;
}

impl Run for ShowStatus {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Status, CallError> {
        status::status(ctx).map_err(failed)
    }
}
