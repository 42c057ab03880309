//! Export as JSON lines, one per entry of the log. docs/EXPORT.md lists the fields.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmpv::Value;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::super::import::JSONL_VERSION;
use crate::api::call as calls;
use crate::api::call::events::{EntriesArgs, EntryRow};
use crate::api::client::Client;
use crate::base::limits::RMPV_DEPTH_MAX;
use crate::cli::format::streams;
use crate::cli::{Bar, Global, OutputError, Unit, ask};
use crate::model::Kind;
use crate::store::tools::Watch as _;
use crate::store::vfs::publish;
use crate::wire::msgpack::json::{from_json, to_json};
use crate::wire::msgpack::{Time, as_bytes};

pub(super) fn run(global: &Global, file: &Path, events: bool) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut bar = Bar::new("export", Unit::Rows);

    // What was written to a pipe cannot be read back, so this cannot be resumed.
    if file.as_os_str() == "-" {
        let mut out = BufWriter::with_capacity(256 * 1024, io::stdout().lock());
        write_head(&mut out, events).map_err(OutputError::from)?;
        let entries = entries(&mut client, events, 1, &mut out, &mut bar)?;
        out.flush().map_err(OutputError::from)?;
        drop(bar);

        return print_summary(&format!("{entries} entries exported"));
    }

    let exists = || {
        anyhow::anyhow!(
            "export to {}: the file exists; remove it or choose another",
            file.display()
        )
    };
    // Before the work; it is looked at again when the file gets its name.
    if file.symlink_metadata().is_ok() {
        return Err(exists());
    }

    // The file gets its name when it is complete.
    let part = PathBuf::from({
        let mut name = file.as_os_str().to_owned();
        name.push(".part");
        name
    });

    let writing = || format!("write {}", part.display());

    let from = resume(&part, events)?;

    let mut out =
        open(&part, OpenOptions::new().append(true).create(true)).with_context(writing)?;

    // Without a complete first line there is nothing to continue.
    if from.is_none() {
        out.set_len(0).with_context(writing)?;
        write_head(&mut out, events).with_context(writing)?;
    }

    let mut out = BufWriter::with_capacity(256 * 1024, out);
    let entries = entries(&mut client, events, from.unwrap_or(1), &mut out, &mut bar)
        .with_context(|| format!("complete {}; the same command resumes it", part.display()))?;

    let out = out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .with_context(writing)?;

    // On disk before the name says that it is complete.
    out.sync_all().with_context(writing)?;
    match publish(&part, file) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(exists()),
        done => done.with_context(|| format!("rename the file to {}", file.display()))?,
    }

    drop(bar);

    let resumed = if from.is_some() {
        ", resuming an interrupted export"
    } else {
        ""
    };

    print_summary(&format!(
        "{entries} entries exported to {}{resumed}",
        file.display()
    ))
}

/// Prints to standard error, because standard output may be the export.
fn print_summary(text: &str) -> anyhow::Result<()> {
    writeln!(streams::stderr(), "{text}").context("print the summary")
}

/// The first line of an export.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    kind: String,
    version: u64,
    /// With the entries that belong to no job.
    events: bool,
}

impl Head {
    fn of(events: bool) -> Self {
        Self {
            kind: "saltcellar".to_owned(),
            version: JSONL_VERSION,
            events,
        }
    }
}

/// What every other line has.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

fn write_head(out: &mut impl Write, events: bool) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(&Head::of(events))?)
}

/// Opens the partial file. Rejects links and files of other users, who could read it later.
fn open(part: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(part)?;

    let found = file.metadata()?;
    // Its owner, or another name of the file, would show the export to others.
    if found.uid() != rustix::process::geteuid().as_raw() || found.nlink() > 1 || !found.is_file() {
        return Err(io::Error::other(
            "not a regular file owned only by this user; remove it",
        ));
    }

    // It may exist already, with access for others.
    file.set_permissions(fs::Permissions::from_mode(found.mode() & 0o700))?;
    Ok(file)
}

/// The sequence number at which to resume an interrupted export of the same kind, if any. Truncates
/// the file after its last complete line.
fn resume(part: &Path, events: bool) -> anyhow::Result<Option<u64>> {
    let reading = || format!("resume {}", part.display());

    let file = match open(part, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.with_context(reading)?,
    };

    let mut lines = BufReader::with_capacity(1024 * 1024, file);
    let mut line = Vec::new();
    let mut end = 0;
    let mut last = None;
    let mut number = 0_u64;

    loop {
        line.clear();
        let count = lines.read_until(b'\n', &mut line).with_context(reading)?;
        // The end, or a line whose write was interrupted.
        if line.last() != Some(&b'\n') {
            break;
        }

        number += 1;

        if number == 1 {
            let head: Option<Head> = serde_json::from_slice(&line).ok();
            if head != Some(Head::of(events)) {
                bail!(
                    "resume {}: not an export of this kind and version; repeat its command, with or without --events, or remove it",
                    part.display()
                );
            }
        } else if let Ok(Numbered { seq }) = serde_json::from_slice(&line) {
            last = Some(seq);
        } else {
            // A damaged line: everything from it on is exported again.
            break;
        }

        end += count as u64;
    }

    if number == 0 {
        return Ok(None);
    }

    // Appending must begin after the last complete line.
    let mut file = open(part, OpenOptions::new().write(true)).with_context(reading)?;
    file.set_len(end).with_context(reading)?;
    file.seek(SeekFrom::End(0)).with_context(reading)?;

    Ok(Some(last.map_or(1, |seq| seq + 1)))
}

/// Writes all entries from sequence number `from` on and returns their number.
fn entries(
    client: &mut Client,
    events: bool,
    from: u64,
    out: &mut impl Write,
    bar: &mut Bar,
) -> anyhow::Result<u64> {
    let mut next = from;
    let mut until = None;
    let mut count = 0;
    loop {
        let call = EntriesArgs {
            from: Some(next),
            until,
            all: events,
            ..EntriesArgs::default()
        };
        let page = client
            .make::<calls::events::Entries>(&call)
            .context("read the log")?;

        // The end is fixed by the first call.
        let end = *until.get_or_insert(page.durable);

        for entry in &page.entries {
            let line = serde_json::to_string(&Line::of(entry))?;
            writeln!(out, "{line}").map_err(OutputError::from)?;
            count += 1;
        }

        // Without progress the log is at its end.
        let Some(more) = page.next.filter(|more| *more > next) else {
            return Ok(count);
        };

        next = more;
        bar.step(next, end, "");
    }
}

/// A line of an export.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    kind: Kind,
    time: ExportTime,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    on_bus: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minion: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    master: Option<&'a str>,
    /// The body, if its JSON form is not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    /// The body under the names of its kind.
    #[serde(flatten)]
    body: Map<String, Json>,
}

/// A time; one beyond the calendar is a number.
#[derive(Serialize)]
#[serde(untagged)]
enum ExportTime {
    Iso(Time),
    Micros(i64),
}

impl<'a> Line<'a> {
    fn of(entry: &'a EntryRow) -> Self {
        let Time(at) = entry.time;
        // Gap records contain a tag and data like an event.
        let on_bus = entry.on_bus || entry.kind == Kind::Gap;

        let tag = on_bus.then(|| {
            let tag = as_bytes(entry.tag.packed()).unwrap_or_default();
            // A tag may consist of any bytes, which an import has to restore.
            std::str::from_utf8(tag)
                .map_or_else(|_| to_json(&Value::Binary(tag.to_vec())), Json::from)
        });

        let body = as_bytes(entry.body.packed()).unwrap_or_default();
        let mut rest = body;
        let value = rmpv::decode::read_value_with_max_depth(&mut rest, RMPV_DEPTH_MAX);
        let value = value.ok().filter(|_| rest.is_empty());

        // Wide integers, repeated keys and data that is no msgpack cannot be expressed in JSON.
        let is_exact = value.as_ref().is_some_and(|value| is_exact(value, body));

        Self {
            seq: entry.seq,
            kind: entry.kind,
            time: if at.utc().is_some() {
                ExportTime::Iso(entry.time)
            } else {
                ExportTime::Micros(at.0)
            },
            on_bus,
            tag,
            confirmed: entry.confirmed,
            jid: entry.jid.as_deref(),
            minion: entry.minion.as_deref(),
            master: entry.master.as_deref(),
            raw: (!is_exact).then(|| BASE64.encode(body)),
            // If it is not msgpack, `raw` contains everything.
            body: value.map_or_else(Map::new, |value| named_body(entry, &value)),
        }
    }
}

/// The parts of a body under their names.
fn named_body(entry: &EntryRow, value: &Value) -> Map<String, Json> {
    let names: &[&str] = match entry.kind {
        Kind::Load | Kind::ReturnLoad if !entry.on_bus => &["load", "minions"],
        Kind::Minions => &["minions", "syndic"],
        Kind::NoCache => &[],
        Kind::Endtime => {
            return [("endtime".to_owned(), to_json(value))]
                .into_iter()
                .collect();
        }
        _ => return [("data".to_owned(), to_json(value))].into_iter().collect(),
    };

    // The body of these kinds is a list of its parts.
    let part = |(n, name): (usize, &&str)| {
        let part = value.as_array().and_then(|parts| parts.get(n));
        ((*name).to_owned(), part.map_or(Json::Null, to_json))
    };
    names.iter().enumerate().map(part).collect()
}

/// Whether reading the JSON form of a value back gives the same bytes.
fn is_exact(value: &Value, body: &[u8]) -> bool {
    let mut bytes = Vec::with_capacity(body.len());
    let read = from_json(&to_json(value));
    read.is_ok_and(|read| rmpv::encode::write_value(&mut bytes, &read).is_ok() && bytes == body)
}
