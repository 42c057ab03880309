//! `saltcellar store salvage`: a new store out of what can be read of a damaged one.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::output::{Format, Output, OutputError, plain};
use super::super::progress::{Bar, Unit};
use super::tool::{count, field};
use crate::clock::Clock;
use crate::store::tools::salvage::{self, Loss, Report};

/// Arguments of `store salvage`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The damaged directory: a state directory, a part of one, or a backup
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Where the new store goes: a directory that is empty or not there
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Searches every file for blocks whose checksums hold, whatever the file is called and whatever else is wrong with it, \
and writes them into a new store under the sequence numbers they have. FROM is not changed. What could not be read is \
listed with file and offset; entries that turned up elsewhere are not counted as lost.

Ends with 0 if nothing was lost, with 1 if something was.

Examples:
  systemctl stop saltcellar
  saltcellar store salvage /var/lib/saltcellar /srv/saltcellar-new
  saltcellar store verify --state-dir /srv/saltcellar-new";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut bar = Bar::new("salvage", Unit::Bytes);
    let now = Clock::real().now();
    let report = salvage::salvage(&args.from, &args.to, now, &mut bar).context("salvage the store")?;
    let seconds = bar.seconds();
    drop(bar);
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => table(&mut out, args, &report, seconds)?,
        Format::Json | Format::Jsonl => out.json(&document(args, &report))?,
    }
    out.flush()?;
    if !report.losses.is_empty() {
        let losses = count(report.losses.len() as u64, "stretch", "stretches");
        let entries = count(report.entries_lost(), "entry", "entries");
        bail!("salvage everything: {losses} of the logs could not be read, at most {entries} lost");
    }
    Ok(())
}

fn document(args: &Args, report: &Report) -> Json {
    let loss = |loss: &Loss| {
        json!({
            "path": loss.path.to_string_lossy(), "offset": loss.stretch.offset, "bytes": loss.stretch.bytes,
            "what": loss.stretch.what, "entries_lost": loss.entries,
            "after_seq": loss.stretch.after.0, "before_seq": loss.stretch.before.map(|seq| seq.0),
        })
    };
    let class = |(class, entries): &(String, u64)| json!({ "class": class, "entries": entries });
    json!({
        "from": args.from.to_string_lossy(),
        "to": args.to.to_string_lossy(),
        "files": report.files,
        "entries": report.entries(),
        "classes": report.classes.iter().map(class).collect::<Json>(),
        "doubles": report.doubles,
        "entries_lost": report.entries_lost(),
        "losses": report.losses.iter().map(loss).collect::<Json>(),
        "foreign": report.foreign.iter().map(|path| path.to_string_lossy()).collect::<Json>(),
    })
}

fn table(out: &mut Output, args: &Args, report: &Report, seconds: f64) -> Result<(), OutputError> {
    field(out, "from", &format!("{}, {}", args.from.display(), count(report.files, "file", "files")))?;
    field(out, "to", &args.to.to_string_lossy())?;
    field(out, "saved", &format!("{} in {seconds:.1} s", count(report.entries(), "entry", "entries")))?;
    for (class, entries) in &report.classes {
        field(out, "", &format!("{class}: {}", count(*entries, "entry", "entries")))?;
    }
    if report.doubles > 0 {
        field(out, "", &format!("{} found more than once", count(report.doubles, "entry", "entries")))?;
    }
    if report.losses.is_empty() {
        field(out, "lost", "nothing")?;
    } else {
        out.line("")?;
        out.heading("lost:")?;
    }
    for loss in &report.losses {
        out.line(&plain(&loss.path.to_string_lossy()))?;
        let bytes = count(loss.stretch.bytes, "byte", "bytes");
        field(out, "", &format!("byte {}, {bytes}: {}", loss.stretch.offset, loss.stretch.what))?;
        let after = loss.stretch.after.0.saturating_add(1);
        let most = count(loss.entries, "entry", "entries");
        let words = match loss.stretch.before {
            Some(before) => format!("at most {most} lost, numbers {after} to {}", before.0.saturating_sub(1)),
            None => format!("the end of its class: an unfinished write, or entries from number {after} on"),
        };
        field(out, "", &words)?;
    }
    if !report.foreign.is_empty() {
        out.line("")?;
        out.heading("files without anything of saltcellar in them:")?;
        for path in &report.foreign {
            out.line(&plain(&path.to_string_lossy()))?;
        }
    }
    Ok(())
}
