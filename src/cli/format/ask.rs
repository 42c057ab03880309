//! Calls to the daemon: its socket, the error if it is unreachable, and lists read page by page.

use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::fields::Fields as _;
use super::output::{Form, Format, Output, show};
use super::when::iso_in;
use crate::api::call::events::Scan;
use crate::api::call::{Call, Cursor};
use crate::api::client::{Client, ClientError};
use crate::base::limits::RMPV_ANSWER_DEPTH_MAX;
use crate::base::{limits, users};
use crate::cli::{Global, print_error};
use crate::config::{Environment, Origin, SocketChoice};
use crate::wire::json::to_json;
use crate::wire::msgpack::{decode, encode};

#[derive(Debug, thiserror::Error)]
#[error("daemon unreachable at {} ({}): {source}", choice.path.display(), origin_text(&choice.origin))]
pub(in crate::cli) struct NoDaemon {
    choice: SocketChoice,
    source: io::Error,
}

impl NoDaemon {
    /// The remedy.
    pub(in crate::cli) fn hint(&self) -> String {
        if self.source.kind() == io::ErrorKind::PermissionDenied {
            return no_access(&self.choice.path);
        }

        let flag = match self.choice.origin {
            Origin::Default => String::new(),
            _ => format!(" --socket {}", self.choice.path.display()),
        };

        format!(
            "start one with `saltcellar serve{flag}`, or the installed service with `systemctl start saltcellar`; \
             if it listens elsewhere, set --socket or SALTCELLAR_SOCKET"
        )
    }
}

/// The remedy for a socket that this user may not open: membership in the group of the socket, or
/// of the closed directory above it.
fn no_access(socket: &Path) -> String {
    let user = users::User::numbered(rustix::process::geteuid().as_raw())
        .map_or_else(|| "USER".to_owned(), |user| user.name);

    let group = socket
        .ancestors()
        .find_map(|path| std::fs::metadata(path).ok())
        .map(|file| file.gid());

    match group {
        // The daemon of root without `socket_group`.
        // No group helps: the daemon runs as root without `socket_group`.
        None | Some(0) => "only root has access to the socket: use sudo, or set `socket_group` in the daemon's configuration, \
             restart it, and add this user to that group"
            .to_owned(),
        Some(gid) => {
            let group = users::group_name(gid).unwrap_or_else(|| gid.to_string());
            format!(
                "user {user} is not in the group {group}, whose members have access to the socket: use sudo, or run \
                 `sudo usermod -aG {group} {user}` and sign in again"
            )
        }
    }
}

fn origin_text(origin: &Origin) -> String {
    match origin {
        Origin::Default => "the default socket".to_owned(),
        other => format!("set by {other}"),
    }
}

/// Connects to the daemon whose socket is set by flags, environment, configuration or default, in
/// this order.
pub(in crate::cli) fn connect(global: &Global) -> anyhow::Result<Client> {
    let choice = SocketChoice::find(&global.overrides(), &Environment::of_process())
        .context("read the configuration")?;

    if let Some(error) = &choice.ignored {
        print_error(&format!(
            "warning: the configuration has an error, only its key `socket` is used: {error}"
        ));
    }

    Client::connect(&choice.path).map_err(|error| match error {
        ClientError::Unreachable { source, .. } => NoDaemon { choice, source }.into(),
        other => other.into(),
    })
}

/// Pause before each attempt to connect again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Whether a call failed because the daemon went away, for instance to restart.
pub(in crate::cli) fn is_gone(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreachable { .. } | ClientError::TimedOut(_)
    )
}

/// Connects to a daemon that went away, as soon as it is back. With `until`, fails after that time.
pub(in crate::cli) fn reconnected(
    global: &Global,
    until: Option<Instant>,
) -> anyhow::Result<Client> {
    let mut is_reported = false;
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(left.map_or(RECONNECT_PAUSE, |left| left.min(RECONNECT_PAUSE)));

        match connect(global) {
            // A daemon that restarts is absent for some seconds.
            Err(error) if error.is::<NoDaemon>() && left.is_none_or(|left| !left.is_zero()) => {
                if !std::mem::replace(&mut is_reported, true) {
                    print_error(&format!("{error:#}; waiting for it"));
                }
            }
            // Any other error would not go away by waiting.
            result => return result,
        }
    }
}

/// Makes one call. `args` is a map, or `()`; null values are left out. Times in the JSON form of the
/// answer become ISO text.
pub(in crate::cli) fn call<C: Call>(
    client: &mut Client,
    args: impl Serialize,
) -> Result<Json, ClientError> {
    json_of(C::NAME, &packed_answer(client, C::NAME, args)?)
}

/// Like [`call`], but returns the answer as its type, too.
pub(in crate::cli) fn call_as<C: Call>(
    client: &mut Client,
    args: impl Serialize,
) -> Result<(C::Answer, Json), ClientError> {
    let answer = packed_answer(client, C::NAME, args)?;
    let typed = decode(&answer).map_err(|error| invalid(C::NAME, &error))?;
    Ok((typed, json_of(C::NAME, &answer)?))
}

fn invalid(call: &str, error: &dyn std::fmt::Display) -> ClientError {
    ClientError::Protocol(format!("{call}: {error}"))
}

/// The answer to a call, in msgpack.
fn packed_answer(
    client: &mut Client,
    name: &str,
    args: impl Serialize,
) -> Result<Vec<u8>, ClientError> {
    let mut args = serde_json::to_value(args).map_err(|error| invalid(name, &error))?;

    // `()` stands for no arguments.
    if args.is_null() {
        args = json!({});
    }

    if let Some(args) = args.as_object_mut() {
        args.retain(|_, value| !value.is_null());
    }

    client.ask_packed(name, &encode(&args).map_err(|error| invalid(name, &error))?)
}

fn json_of(name: &str, answer: &[u8]) -> Result<Json, ClientError> {
    let read = rmpv::decode::read_value_with_max_depth(&mut &*answer, RMPV_ANSWER_DEPTH_MAX);
    let mut answer = to_json(&read.map_err(|error| invalid(name, &error))?);
    iso_in(&mut answer);
    Ok(answer)
}

/// Reads a part of a response as its type.
pub(in crate::cli) fn typed<'a, T: Deserialize<'a>>(answer: &'a Json) -> Result<T, ClientError> {
    T::deserialize(answer).map_err(|error| ClientError::Protocol(error.to_string()))
}

/// Connects and makes one call, for `operation`.
pub(in crate::cli) fn answer<C: Call>(
    global: &Global,
    args: impl Serialize,
    operation: &'static str,
) -> anyhow::Result<Json> {
    call::<C>(&mut connect(global)?, args).context(operation)
}

/// Like [`answer`], but returns the answer as its type, too.
pub(in crate::cli) fn answer_as<C: Call>(
    global: &Global,
    args: impl Serialize,
    operation: &'static str,
) -> anyhow::Result<(C::Answer, Json)> {
    call_as::<C>(&mut connect(global)?, args).context(operation)
}

/// Connects, makes one call that changes something, and prints its result: `text`, or the response
/// as JSON.
pub(in crate::cli) fn change<C: Call>(
    global: &Global,
    args: impl Serialize,
    operation: &'static str,
    text: impl Fn(C::Answer) -> String,
) -> anyhow::Result<()> {
    let (typed, answer) = answer_as::<C>(global, args, operation)?;
    show(global.output, &answer, |out| Ok(out.line(&text(typed))?))
}

/// A call whose answer is a page of a list, from the newest row backwards.
pub(in crate::cli) trait ListOf: Call {
    type Row;
    /// The field of the answer that holds the list.
    const ROWS: &'static str;
    /// The operation, for messages of a failed call.
    const OPERATION: &'static str;

    fn page(answer: Self::Answer) -> Page<Self::Row>;
}

/// A page of a list.
pub(in crate::cli) struct Page<R> {
    pub(in crate::cli) rows: Vec<R>,
    /// Whether the daemon has rows beyond these.
    pub(in crate::cli) more: bool,
    /// The position of the next page.
    pub(in crate::cli) next: Option<Cursor>,
    pub(in crate::cli) scan: Scan,
}

/// Rows as their type, for tables, and as the daemon's own JSON.
pub(in crate::cli) struct Rows<R> {
    pub(in crate::cli) typed: Vec<R>,
    pub(in crate::cli) json: Vec<Json>,
}

/// A list read in pages.
pub(in crate::cli) struct Pages<C: ListOf> {
    client: Client,
    /// The arguments, with the position of the next page.
    args: Json,
    wanted: u64,
    /// Whether the daemon has rows beyond those read.
    more: bool,
    done: bool,
    /// The position of the next page.
    cursor: Option<Cursor>,
    /// What was searched, if it is to be printed.
    scan: Option<Scan>,
    list: PhantomData<C>,
}

/// The order of a table. JSON has the newest row first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Order {
    NewestFirst,
    NewestLast,
}

impl<C: ListOf> Pages<C> {
    /// Reads the newest rows that `args` select, at most as many as their `limit`.
    pub(in crate::cli) fn new(global: &Global, args: impl Serialize) -> anyhow::Result<Self> {
        let args = serde_json::to_value(args)?;
        let wanted = args.number("limit");
        Ok(Self {
            client: connect(global)?,
            args,
            wanted,
            more: true,
            done: false,
            cursor: None,
            scan: None,
            list: PhantomData,
        })
    }

    /// Prints at the end how much was searched.
    pub(in crate::cli) fn explained(mut self, explain: bool) -> Self {
        self.scan = explain.then(Scan::default);
        self
    }

    /// The next rows, newest first; empty at the end.
    pub(in crate::cli) fn next(&mut self) -> anyhow::Result<Rows<C::Row>> {
        loop {
            // A page without matches is not the end: the daemon limits the rows that one call
            // reads.
            let rows = self.next_page().context(C::OPERATION)?;
            if !rows.typed.is_empty() || self.done || self.wanted == 0 {
                return Ok(rows);
            }
        }
    }

    /// Prints the list: by `table`, which gets the rows in parts, or as JSON.
    pub(in crate::cli) fn print(
        mut self,
        form: Form,
        order: Order,
        mut table: impl FnMut(&mut Output, &[C::Row]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = Output::paged(form);

        if out.format != Format::Table {
            self.print_json(&mut out)?;
        } else if order == Order::NewestFirst {
            let mut rows = self.next()?.typed;
            loop {
                table(&mut out, &rows)?;
                // The next page may be slow.
                out.flush()?;
                rows = self.next()?.typed;
                if rows.is_empty() {
                    break;
                }
            }
        } else {
            // The newest row is the last line, so all rows are read before the first is printed.
            let (mut all, mut rows) = (Vec::new(), self.next()?.typed);
            while !rows.is_empty() {
                all.append(&mut rows);
                rows = self.next()?.typed;
            }

            all.reverse();

            table(&mut out, &all)?;
        }

        out.finish()?;
        self.explain();
        Ok(())
    }

    fn explain(&self) {
        let Some(scan) = &self.scan else { return };

        let Scan {
            segments, blocks, ..
        } = scan;

        let text = if segments + scan.segments_skipped == 0 {
            "searched the entries of the job by its index".to_owned()
        } else {
            format!(
                "searched {blocks} of {} blocks in {segments} of {} segments, read {} entries; summaries excluded the rest",
                blocks + scan.blocks_skipped,
                segments + scan.segments_skipped,
                scan.entries,
            )
        };

        // On standard error, beside the rows.
        crate::cli::print_error(&text);
    }

    /// Prints `{"jobs": [...], "more": bool}` with one row per line, or as `jsonl` the rows only. If
    /// a later page fails, the document is complete all the same, with the error as `error`.
    fn print_json(&mut self, out: &mut Output) -> anyhow::Result<()> {
        let is_document = out.format == Format::Json;

        // Before the first text: without any row there is nothing but the error.
        let mut page = Ok(self.next()?.json);

        if is_document {
            out.text(&format!("{{{}: [", json!(C::ROWS)))?;
        }

        // JSON allows no comma after the last row.
        let mut before = "\n";
        let failed = loop {
            let rows = match page {
                Ok(rows) if rows.is_empty() => break None,
                Ok(rows) => rows,
                Err(error) => break Some(error),
            };

            for row in &rows {
                if is_document {
                    out.text(before)?;
                    out.json_compact(row)?;
                } else {
                    out.json(row)?;
                }
                before = ",\n";
            }
            // At once, because the next page may be slow.
            out.flush()?;

            page = self.next().map(|rows| rows.json);
        };

        if is_document {
            // An empty list stays on one line.
            let end = if before == ",\n" { "\n" } else { "" };
            out.text(&format!("{end}], \"more\": {}", self.more))?;

            // A reader of the document need not look at the exit code.
            if let Some(error) = &failed {
                out.text(", \"error\": ")?;
                out.json_compact(&format!("{error:#}").into())?;
            }
            out.rendered("}")?;
        }

        failed.map_or(Ok(()), Err)
    }

    fn next_page(&mut self) -> Result<Rows<C::Row>, ClientError> {
        let mut rows = Rows {
            typed: Vec::new(),
            json: Vec::new(),
        };
        if self.done || self.wanted == 0 {
            return Ok(rows);
        }

        let limit = self.wanted.min(limits::CLI_PAGE_ROWS);
        set(&mut self.args, "limit", limit.into());
        if let Some(cursor) = &self.cursor {
            set(&mut self.args, "cursor", json!(cursor));
        }

        let (answer, mut json) = call_as::<C>(&mut self.client, &self.args)?;
        let page = C::page(answer);
        if let Some(Json::Array(list)) = json.get_mut(C::ROWS).map(Json::take) {
            rows.json = list;
        }
        rows.typed = page.rows;

        if let Some(sums) = &mut self.scan {
            sums.segments += page.scan.segments;
            sums.segments_skipped += page.scan.segments_skipped;
            sums.blocks += page.scan.blocks;
            sums.blocks_skipped += page.scan.blocks_skipped;
            sums.entries += page.scan.entries;
        }

        self.more = page.more;
        self.wanted = self.wanted.saturating_sub(rows.typed.len() as u64);
        self.done = !self.more;

        if self.more && self.wanted > 0 {
            // A daemon that repeats a page would be read forever.
            if page.next.is_none() || page.next == self.cursor {
                return Err(invalid(C::NAME, &"the list does not advance"));
            }
            self.cursor = page.next;
        }

        Ok(rows)
    }
}

/// Sets an argument.
pub(in crate::cli) fn set(args: &mut Json, name: &str, value: Json) {
    if let Some(args) = args.as_object_mut() {
        args.insert(name.to_owned(), value);
    }
}

/// A row of a response, preceded by the jid of its job.
pub(in crate::cli) fn with_jid(jid: &str, row: &Json) -> Json {
    let mut all = json!({ "jid": jid });
    if let (Json::Object(all), Json::Object(row)) = (&mut all, row) {
        all.extend(row.clone());
    }
    all
}

/// Makes a call whose list comes in pages, and returns one answer that holds all of them, as its type
/// and as JSON. `join` appends the rows of a page; `rows` is the name of its list.
pub(in crate::cli) fn call_paged<C: Call>(
    client: &mut Client,
    rows: &str,
    mut args: Json,
    join: impl Fn(&mut C::Answer, C::Answer),
) -> Result<(C::Answer, Json), ClientError> {
    let invalid = |what: &str| invalid(C::NAME, &what);
    let mut all: Option<(C::Answer, Json)> = None;

    loop {
        let (typed, mut answer) = call_as::<C>(client, &args)?;
        let mut fields = answer.as_object_mut();
        // They describe one page, and would be wrong about the whole.
        let [more, next] =
            ["more", "next"].map(|key| fields.as_mut().and_then(|map| map.shift_remove(key)));

        let found = match all.take() {
            None => (typed, answer),
            Some((mut all, mut json)) => {
                join(&mut all, typed);
                match (json.get_mut(rows), answer.get_mut(rows)) {
                    (Some(Json::Array(all)), Some(Json::Array(more))) => all.append(more),
                    _ => return Err(invalid("no list")),
                }
                (all, json)
            }
        };

        if more != Some(Json::Bool(true)) {
            return Ok(found);
        }
        all = Some(found);

        let next = next.ok_or_else(|| invalid("more without next"))?;
        // As above: the list must advance.
        if next.is_null() || next == *args.of("after") {
            return Err(invalid("the list does not advance"));
        }

        set(&mut args, "after", next);
    }
}
