//! Calls to the daemon: its socket, the error if it is unreachable, and lists read page by page.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::fields::Fields as _;
use super::output::{Form, Format, Output, show};
use super::when::iso_in;
use crate::api::client::{Client, ClientError};
use crate::base::{limits, users};
use crate::cli::{Global, print_error};
use crate::config::{Environment, Origin, SocketChoice};
use crate::wire::json::to_json;
use crate::wire::msgpack::encode;

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

/// Makes one call. `args` is a map, or `()`; null values are left out. Times in the response become
/// ISO text.
pub(in crate::cli) fn call(
    client: &mut Client,
    name: &str,
    args: impl Serialize,
) -> Result<Json, ClientError> {
    Ok(call_as::<IgnoredAny>(client, name, args)?.1)
}

/// Like [`call`], but returns the response as `T`, too.
pub(in crate::cli) fn call_as<T: DeserializeOwned>(
    client: &mut Client,
    name: &str,
    args: impl Serialize,
) -> Result<(T, Json), ClientError> {
    let invalid = |error: &dyn std::fmt::Display| ClientError::Protocol(format!("{name}: {error}"));

    let mut args = serde_json::to_value(args).map_err(|error| invalid(&error))?;

    // `()` stands for no arguments.
    if args.is_null() {
        args = json!({});
    }

    if let Some(args) = args.as_object_mut() {
        args.retain(|_, value| !value.is_null());
    }

    let args = encode(&args).map_err(|error| invalid(&error))?;

    let mut answer = to_json(&client.ask(name, &args)?);
    // Before times become text, because the type has them as numbers.
    let typed = typed(&answer)?;

    iso_in(&mut answer);
    Ok((typed, answer))
}

/// Reads a response as its type.
pub(in crate::cli) fn typed<'a, T: Deserialize<'a>>(answer: &'a Json) -> Result<T, ClientError> {
    T::deserialize(answer).map_err(|error| ClientError::Protocol(error.to_string()))
}

/// Connects and makes one call, for `operation`.
pub(in crate::cli) fn answer(
    global: &Global,
    name: &str,
    args: impl Serialize,
    operation: &'static str,
) -> anyhow::Result<Json> {
    call(&mut connect(global)?, name, args).context(operation)
}

/// Like [`answer`], but returns the response as `T`, too.
pub(in crate::cli) fn answer_as<T: DeserializeOwned>(
    global: &Global,
    name: &str,
    args: impl Serialize,
    operation: &'static str,
) -> anyhow::Result<(T, Json)> {
    call_as(&mut connect(global)?, name, args).context(operation)
}

/// Connects, makes one call that changes something, and prints its result: `text`, or the response
/// as JSON.
pub(in crate::cli) fn change<T: DeserializeOwned>(
    global: &Global,
    name: &str,
    args: impl Serialize,
    operation: &'static str,
    text: impl Fn(T) -> String,
) -> anyhow::Result<()> {
    let (typed, answer) = answer_as(global, name, args, operation)?;
    show(global.output, &answer, |out| Ok(out.line(&text(typed))?))
}

/// A list read in pages from the newest row backwards.
pub(in crate::cli) struct Pages {
    client: Client,
    list: ListCall,
    /// The arguments, with the position of the next page.
    args: Json,
    wanted: u64,
    /// Whether the daemon has rows beyond those read.
    more: bool,
    done: bool,
    /// Sums of the field `scan` of the responses, if they are to be printed.
    scan: Option<BTreeMap<String, u64>>,
}

/// A call whose response is a list.
#[derive(Clone, Copy)]
pub(in crate::cli) struct ListCall {
    pub(in crate::cli) call: &'static str,
    /// The field of the response that holds the list.
    pub(in crate::cli) rows: &'static str,
    /// The operation, for messages of a failed call.
    pub(in crate::cli) operation: &'static str,
}

/// The order of a table. JSON has the newest row first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Order {
    NewestFirst,
    NewestLast,
}

impl Pages {
    /// Reads the newest rows that `args` select, at most as many as their `limit`.
    pub(in crate::cli) fn new(
        global: &Global,
        list: ListCall,
        args: impl Serialize,
    ) -> anyhow::Result<Self> {
        let args = serde_json::to_value(args)?;
        let wanted = args.number("limit");
        Ok(Self {
            client: connect(global)?,
            list,
            args,
            wanted,
            more: true,
            done: false,
            scan: None,
        })
    }

    /// Prints at the end how much was searched.
    pub(in crate::cli) fn explained(mut self, explain: bool) -> Self {
        self.scan = explain.then(BTreeMap::new);
        self
    }

    /// The next rows, newest first; empty at the end.
    pub(in crate::cli) fn next(&mut self) -> anyhow::Result<Vec<Json>> {
        loop {
            // A page without matches is not the end: the daemon limits the rows that one call
            // reads.
            let rows = self.next_page().context(self.list.operation)?;
            if !rows.is_empty() || self.done || self.wanted == 0 {
                return Ok(rows);
            }
        }
    }

    /// Prints the list: by `table`, which gets the rows in parts, or as JSON.
    pub(in crate::cli) fn print(
        mut self,
        form: Form,
        order: Order,
        mut table: impl FnMut(&mut Output, &[Json]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = Output::paged(form);

        if out.format != Format::Table {
            self.print_json(&mut out)?;
        } else if order == Order::NewestFirst {
            let mut rows = self.next()?;
            loop {
                table(&mut out, &rows)?;
                // The next page may be slow.
                out.flush()?;
                rows = self.next()?;
                if rows.is_empty() {
                    break;
                }
            }
        } else {
            // The newest row is the last line, so all rows are read before the first is printed.
            let (mut all, mut rows) = (Vec::new(), self.next()?);
            while !rows.is_empty() {
                all.append(&mut rows);
                rows = self.next()?;
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

        let of = |name: &str| scan.get(name).copied().unwrap_or(0);
        let (segments, blocks) = (of("segments"), of("blocks"));

        let text = if segments + of("segments_skipped") == 0 {
            "searched the entries of the job by its index".to_owned()
        } else {
            format!(
                "searched {blocks} of {} blocks in {segments} of {} segments, read {} entries; summaries excluded the rest",
                blocks + of("blocks_skipped"),
                segments + of("segments_skipped"),
                of("entries"),
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
        let mut page = Ok(self.next()?);

        if is_document {
            out.text(&format!("{{{}: [", json!(self.list.rows)))?;
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

            page = self.next();
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

    fn next_page(&mut self) -> Result<Vec<Json>, ClientError> {
        if self.done || self.wanted == 0 {
            return Ok(Vec::new());
        }

        let invalid = |what: &str| ClientError::Protocol(format!("{}: {what}", self.list.call));

        set(
            &mut self.args,
            "limit",
            self.wanted.min(limits::CLI_PAGE_ROWS).into(),
        );

        let mut answer = call(&mut self.client, self.list.call, &self.args)?;

        let Some(Json::Array(rows)) = answer.get_mut(self.list.rows).map(Json::take) else {
            return Err(invalid("no list"));
        };

        if let (Some(sums), Json::Object(scan)) = (&mut self.scan, answer.of("scan")) {
            for (name, count) in scan {
                *sums.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }

        self.more = answer.is("more");
        self.wanted = self.wanted.saturating_sub(rows.len() as u64);
        self.done = !self.more;

        if self.more && self.wanted > 0 {
            let next = answer.of("next");
            // A daemon that repeats a page would be read forever.
            if next.is_null() || next == self.args.of("cursor") {
                return Err(invalid("the list does not advance"));
            }
            set(&mut self.args, "cursor", next.clone());
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

/// Makes a call whose list comes in pages, and returns one response that holds all of `rows`.
pub(in crate::cli) fn call_paged(
    client: &mut Client,
    name: &str,
    rows: &str,
    mut args: Json,
) -> Result<Json, ClientError> {
    let invalid = |what: &str| ClientError::Protocol(format!("{name}: {what}"));
    let mut all = Json::Null;

    loop {
        let mut answer = call(client, name, &args)?;
        let mut fields = answer.as_object_mut();
        // They describe one page, and would be wrong about the whole.
        let [more, next] =
            ["more", "next"].map(|key| fields.as_mut().and_then(|map| map.shift_remove(key)));

        if all.is_null() {
            all = answer;
        } else {
            match (all.get_mut(rows), answer.get_mut(rows)) {
                (Some(Json::Array(all)), Some(Json::Array(more))) => all.append(more),
                _ => return Err(invalid("no list")),
            }
        }

        if more != Some(Json::Bool(true)) {
            return Ok(all);
        }

        let next = next.ok_or_else(|| invalid("more without next"))?;
        // As above: the list must advance.
        if next.is_null() || next == *args.of("after") {
            return Err(invalid("the list does not advance"));
        }

        set(&mut args, "after", next);
    }
}
