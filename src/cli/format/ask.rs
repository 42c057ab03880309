//! Calls to the daemon: its socket, the error if it is unreachable, and lists read page by page.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::json;

use super::global::Global;
use super::output::{Form, Format, Output, show};
use super::streams::{is_quiet, print_error};
use crate::api::call::Call;
use crate::api::call::events::Scan;
use crate::api::client::{Client, ClientError};
use crate::base::named::Named;
use crate::base::{limits, users};
use crate::config::{Environment, Origin, SocketChoice};

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

    // A closed directory hides the socket, so its group is the group to join.
    let group = socket
        .ancestors()
        .find_map(|path| std::fs::metadata(path).ok())
        .map(|file| file.gid());

    match group {
        // No group helps: the daemon runs as root without `socket_group`.
        None | Some(0) => "only root has access to the socket: use sudo, or set `socket_group` in the daemon's configuration, \
             restart it, and add this user to that group"
            .to_owned(),
        Some(gid) => {
            let group = users::group_name(gid).unwrap_or_else(|| gid.to_string());
            format!(
                "user {user} is not in the group {group}, whose members have access to the socket: use sudo, or run \
                 `sudo usermod -aG {group} {user}` and start a new login session"
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
    #[cfg(test)]
    if let Some(client) = super::streams::capture::client() {
        return Ok(client);
    }

    let choice = SocketChoice::find(&global.overrides(), &Environment::of_process())
        .context("read the configuration")?;

    // A client needs this one key only, so an error elsewhere must not keep it from asking.
    if let Some(error) = &choice.ignored {
        print_error(&format!(
            "warning: the configuration contains an error, only its key `socket` is used: {error}"
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

/// Connects and makes one call, for `operation`.
pub(in crate::cli) fn answer<C: Call>(
    global: &Global,
    args: &C::Args<'_>,
    operation: &'static str,
) -> anyhow::Result<C::Answer> {
    connect(global)?.make::<C>(args).context(operation)
}

/// Prints that something was done: `text`, unless the command is quiet, or a document as JSON.
pub(in crate::cli) fn confirm(
    global: &Global,
    document: &(impl Serialize + ?Sized),
    text: &str,
) -> anyhow::Result<()> {
    show(global.output, document, |out| {
        if !is_quiet() {
            out.line(text)?;
        }
        Ok(())
    })
}

/// Connects, makes one call that changes something, and prints its result: `text`, or the response as
/// JSON.
pub(in crate::cli) fn change<C: Call>(
    global: &Global,
    args: &C::Args<'_>,
    operation: &'static str,
    text: impl Fn(&C::Answer) -> String,
) -> anyhow::Result<()> {
    let answer = answer::<C>(global, args, operation)?;
    confirm(global, &answer, &text(&answer))
}

/// A flag with one of the names of an enumeration in calls.
pub(in crate::cli) fn words<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let read = |text: String| {
        T::named(&text)
            .ok_or_else(|| format!("unknown name {text}; the names are {}", T::NAMES.join(", ")))
    };
    PossibleValuesParser::new(T::NAMES).try_map(read)
}

/// A maximum number of rows in a call.
pub(in crate::cli) fn rows(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Flags of every list: how many rows, and in which order.
#[derive(clap::Args)]
pub(in crate::cli) struct ListFlags {
    /// Maximum number of rows
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List the oldest row first
    #[arg(short, long)]
    pub(in crate::cli) reverse: bool,
}

impl ListFlags {
    /// The maximum number of rows in a call.
    pub(in crate::cli) fn limit(&self) -> usize {
        rows(self.limit)
    }
}

/// A call whose response is a page of a list.
pub(in crate::cli) trait Paged: Call {
    type Row: Serialize;
    /// Where a page begins.
    type After: Clone + PartialEq;

    fn rows(answer: &mut Self::Answer) -> Option<&mut Vec<Self::Row>>;
    /// Whether there are rows beyond these, and where the next page begins.
    fn next(answer: &Self::Answer) -> (bool, Option<Self::After>);
    fn go_to(args: &mut Self::Args<'static>, after: Self::After);
    /// The maximum number of rows, if the call has one.
    fn limit<'a>(_: &'a mut Self::Args<'static>) -> Option<&'a mut Option<usize>> {
        None
    }
    /// Adds to a page what earlier pages contain besides their rows.
    fn join(_before: &mut Self::Answer, _page: &mut Self::Answer) {}

    /// Appends a page. The position, and what else a page says of the list, come from the last page.
    fn append(all: &mut Self::Answer, mut page: Self::Answer) {
        // A job can be gone by now: what was read of it stays.
        let (Some(before), Some(rows)) = (Self::rows(all), Self::rows(&mut page)) else {
            return;
        };

        std::mem::swap(before, rows);
        rows.append(before);
        Self::join(all, &mut page);
        *all = page;
    }
}

/// Implements [`Paged`] for a call whose response contains its rows in one field, plus `more` and `next`.
macro_rules! paged {
    (
        $call:ty: $row:ty, in $rows:ident, after $after:ty, in $($position:ident).+
        $(, limited by $limit:ident)? $(, joined by $join:expr)?
    ) => {
        impl $crate::cli::ask::Paged for $call {
            type Row = $row;
            type After = $after;

            fn rows(answer: &mut Self::Answer) -> Option<&mut Vec<$row>> {
                Some(&mut answer.$rows)
            }

            fn next(answer: &Self::Answer) -> (bool, Option<$after>) {
                (answer.more, answer.next.clone())
            }

            fn go_to(args: &mut Self::Args<'static>, after: $after) {
                args.$($position).+ = Some(after);
            }

            $(fn limit<'a>(args: &'a mut Self::Args<'static>) -> Option<&'a mut Option<usize>> {
                Some(&mut args.$limit)
            })?

            $(fn join(before: &mut Self::Answer, page: &mut Self::Answer) {
                let join: fn(&mut Self::Answer, &mut Self::Answer) = $join;
                join(before, page);
            })?
        }
    };
}

pub(in crate::cli) use paged;

/// A list that is printed as it is read, from the newest row backwards.
pub(in crate::cli) trait ListOf: Paged {
    /// The field of the response that holds the list.
    const ROWS: &'static str;
    /// The operation, for messages of a failed call.
    const OPERATION: &'static str;

    fn scan(_: &Self::Answer) -> Scan {
        Scan::default()
    }
}

/// The pages of a list, until its limit or its end. `make` makes the call.
pub(in crate::cli) struct Pages<C: Paged, M> {
    make: M,
    /// With the position of the next page.
    args: C::Args<'static>,
    /// How many rows are wanted still.
    wanted: Option<usize>,
    after: Option<C::After>,
    /// Whether there are rows beyond the rows that were read.
    more: bool,
    is_done: bool,
}

impl<C: Paged, M: FnMut(&C::Args<'static>) -> Result<C::Answer, ClientError>> Pages<C, M> {
    pub(in crate::cli) fn new(mut args: C::Args<'static>, make: M) -> Self {
        let wanted = C::limit(&mut args).and_then(|limit| *limit);
        Self {
            make,
            args,
            wanted,
            after: None,
            more: true,
            is_done: false,
        }
    }

    /// The next page; `None` at the end. A page without rows is not the end: the daemon limits what
    /// one call reads.
    pub(in crate::cli) fn next_page(&mut self) -> Result<Option<C::Answer>, ClientError> {
        if self.is_done {
            return Ok(None);
        }

        if let (Some(wanted), Some(limit)) = (self.wanted, C::limit(&mut self.args)) {
            *limit = Some(wanted.min(limits::CLI_PAGE_ROWS));
        }

        let mut answer = (self.make)(&self.args)?;
        let rows = C::rows(&mut answer).map_or(0, |rows| rows.len());
        let (more, next) = C::next(&answer);

        self.more = more;
        // By the rows that arrived, because a call may return fewer than its limit.
        self.wanted = self.wanted.map(|wanted| wanted.saturating_sub(rows));
        self.is_done = !more || self.wanted == Some(0);

        if !self.is_done {
            // A daemon that repeats a page would be read forever.
            let Some(next) = next.filter(|next| self.after.as_ref() != Some(next)) else {
                let why = format!("{}: the list does not advance", C::NAME);
                return Err(ClientError::Protocol(why));
            };
            C::go_to(&mut self.args, next.clone());
            self.after = Some(next);
        }

        Ok(Some(answer))
    }

    /// All pages as one response.
    pub(in crate::cli) fn whole(mut self) -> Result<C::Answer, ClientError> {
        let none = || ClientError::Protocol(format!("{}: no page", C::NAME));
        let mut all = self.next_page()?.ok_or_else(none)?;
        while let Some(page) = self.next_page()? {
            C::append(&mut all, page);
        }
        Ok(all)
    }
}

/// All pages of a list as one response.
pub(in crate::cli) fn whole<C: Paged>(
    client: &mut Client,
    args: C::Args<'static>,
) -> Result<C::Answer, ClientError> {
    Pages::<C, _>::new(args, |args| client.make::<C>(args)).whole()
}

/// Makes a call of a list.
type Make<C> =
    Box<dyn FnMut(&<C as Call>::Args<'static>) -> Result<<C as Call>::Answer, ClientError>>;

/// A list that is printed as it is read.
pub(in crate::cli) struct Listing<C: ListOf> {
    pages: Pages<C, Make<C>>,
    /// What was searched, if it is to be printed.
    scan: Option<Scan>,
    /// Whether the rows are printed in the reverse order.
    is_reversed: bool,
}

impl<C: ListOf> Listing<C> {
    /// Reads the newest rows that `args` select, at most as many as their limit.
    pub(in crate::cli) fn new(global: &Global, args: C::Args<'static>) -> anyhow::Result<Self> {
        let mut client = connect(global)?;
        Ok(Self {
            pages: Pages::new(args, Box::new(move |args| client.make::<C>(args))),
            scan: None,
            is_reversed: false,
        })
    }

    /// Prints the oldest row first.
    pub(in crate::cli) fn reversed(mut self, is_reversed: bool) -> Self {
        self.is_reversed = is_reversed;
        self
    }

    /// Prints at the end how much was searched.
    pub(in crate::cli) fn with_stats(mut self, with_stats: bool) -> Self {
        self.scan = with_stats.then(Scan::default);
        self
    }

    /// The next rows, newest first; empty at the end.
    pub(in crate::cli) fn next(&mut self) -> anyhow::Result<Vec<C::Row>> {
        while let Some(mut answer) = self.pages.next_page().context(C::OPERATION)? {
            if let Some(sums) = &mut self.scan {
                sums.add(&C::scan(&answer));
            }

            let rows = C::rows(&mut answer).map(std::mem::take).unwrap_or_default();
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    /// Whether there are more rows than were asked for.
    pub(in crate::cli) fn has_more(&self) -> bool {
        self.pages.more
    }

    /// The next rows in the order of the list: newest first, unless it is reversed. Empty at the end.
    pub(in crate::cli) fn next_in_order(&mut self) -> anyhow::Result<Vec<C::Row>> {
        if !self.is_reversed {
            return self.next();
        }

        // The newest row is the last one, so all rows are read before the first is printed.
        let mut all = Vec::new();
        let mut rows = self.next()?;
        while !rows.is_empty() {
            all.append(&mut rows);
            rows = self.next()?;
        }

        all.reverse();
        Ok(all)
    }

    /// Prints the list: by `table`, which gets the rows in parts, or as JSON.
    pub(in crate::cli) fn print(
        mut self,
        form: Form,
        mut table: impl FnMut(&mut Output, &[C::Row]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = Output::paged(form);

        if out.format == Format::Table {
            let mut rows = self.next_in_order()?;
            loop {
                // Even without rows, because the first part prints the headings.
                table(&mut out, &rows)?;
                // The next page may be slow.
                out.flush()?;
                rows = self.next_in_order()?;
                if rows.is_empty() {
                    break;
                }
            }
        } else {
            self.print_json(&mut out)?;
        }

        out.finish()?;
        self.print_stats();
        Ok(())
    }

    fn print_stats(&self) {
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

        // On standard error, apart from the rows.
        crate::cli::print_error(&text);
    }

    /// Prints `{"jobs": [...], "more": bool}` with one row per line, or as `jsonl` the rows only. If
    /// a later page fails, the document is complete all the same, with the error as `error`.
    fn print_json(&mut self, out: &mut Output) -> anyhow::Result<()> {
        let is_document = out.format == Format::Json;

        // Before anything is printed, because without any row there is nothing but the error.
        let mut page = Ok(self.next_in_order()?);

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
            // Immediately, because the next page may be slow.
            out.flush()?;

            page = self.next_in_order();
        };

        if is_document {
            // An empty list stays on one line.
            let end = if before == ",\n" { "\n" } else { "" };
            out.text(&format!("{end}], \"more\": {}", self.pages.more))?;

            // A reader of the document need not look at the exit code.
            if let Some(error) = &failed {
                out.text(", \"error\": ")?;
                out.json_compact(&format!("{error:#}"))?;
            }
            out.rendered("}")?;
        }

        failed.map_or(Ok(()), Err)
    }
}
