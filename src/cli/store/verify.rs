//! `saltcellar store verify`: is everything on disk what was written there?

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::output::{Format, Output, OutputError};
use super::super::progress::{Bar, Unit, bytes};
use super::tool::{count, field, state_dir};
use crate::store::tools::verify::{self, Indexes, Options, Problem, Report};

/// Flags of `store verify`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Check the heads of blocks alone, not bodies and indexes
    #[arg(long)]
    quick: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Reads every frame of every log: its checksum, its block, its bodies; that sequence numbers ascend and none is there \
twice; and compares the indexes with the logs. Changes nothing. Beside a running daemon it reads the logs up to what \
was on disk when it began; the daemon has the indexes open, so they are compared only when it is stopped.

Ends with 0 if all is well, with 1 if there is damage, with another code if it could not look.

Examples:
  saltcellar store verify
  saltcellar store verify --quick
  saltcellar store verify --state-dir /srv/restored
  saltcellar store verify --output json | jq '.problems[].path'

See also: saltcellar store rebuild, saltcellar store salvage";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let dir = state_dir(global)?;
    let mut bar = Bar::new("verify", Unit::Bytes);
    let report = verify::verify(&dir, Options { quick: args.quick }, &mut bar).context("verify the store")?;
    let seconds = bar.seconds();
    drop(bar);
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => table(&mut out, &dir, &report, seconds)?,
        Format::Json | Format::Jsonl => out.json(&document(&dir, &report))?,
    }
    out.flush()?;
    let problems = report.problems.len() as u64 + report.problems_more;
    if problems > 0 {
        let lost = count(report.entries_lost(), "entry", "entries");
        bail!("verify the store: {}, at most {lost} lost", count(problems, "problem", "problems"));
    }
    Ok(())
}

fn document(dir: &std::path::Path, report: &Report) -> Json {
    let problem = |problem: &Problem| {
        json!({
            "path": problem.path.to_string_lossy(), "offset": problem.offset, "bytes": problem.bytes,
            "what": problem.what, "means": problem.means, "entries_lost": problem.entries_lost,
        })
    };
    let indexes = match &report.indexes {
        Indexes::Compared(compared) => json!({ "compared": compared, "skipped": null }),
        Indexes::Skipped(why) => json!({ "compared": 0, "skipped": why }),
    };
    json!({
        "state_dir": dir.to_string_lossy(),
        "format": report.format,
        "held_by": report.holder,
        "segments": report.segments,
        "frames": report.frames,
        "entries": report.entries,
        "log_bytes": report.log_bytes,
        "indexes": indexes,
        "entries_lost": report.entries_lost(),
        "problems": report.problems.iter().map(problem).collect::<Json>(),
        "problems_more": report.problems_more,
        "notes": report.notes.iter().map(problem).collect::<Json>(),
    })
}

fn table(out: &mut Output, dir: &std::path::Path, report: &Report, seconds: f64) -> Result<(), OutputError> {
    field(out, "state dir", &format!("{}, format {}", dir.display(), report.format))?;
    if let Some(holder) = &report.holder {
        field(out, "daemon", holder)?;
    }
    let segments = count(report.segments, "segment", "segments");
    let entries = count(report.entries, "entry", "entries");
    let frames = count(report.frames, "block", "blocks");
    let log = bytes(report.log_bytes);
    field(out, "read", &format!("{segments}, {frames}, {entries}, {log} of log in {seconds:.1} s"))?;
    match &report.indexes {
        Indexes::Compared(0) => field(out, "indexes", "none yet: no segment is finished")?,
        Indexes::Compared(n) => {
            field(
                out,
                "indexes",
                &format!("{} compared with the log beside", count(*n, "index", "indexes")),
            )?;
        }
        Indexes::Skipped(why) => field(out, "indexes", &format!("not compared: {why}"))?,
    }
    if report.problems.is_empty() {
        field(out, "damage", "none")?;
    }
    list(out, "damage", &report.problems)?;
    if report.problems_more > 0 {
        field(out, "", &format!("and {}", count(report.problems_more, "more", "more")))?;
    }
    list(out, "notes", &report.notes)
}

fn list(out: &mut Output, heading: &str, problems: &[Problem]) -> Result<(), OutputError> {
    if problems.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.heading(&format!("{heading}:"))?;
    for problem in problems {
        out.line(&super::super::output::plain(&problem.path.to_string_lossy()))?;
        let place = match (problem.offset, problem.bytes) {
            (Some(offset), Some(bytes)) => format!("byte {offset}, {}: ", count(bytes, "byte", "bytes")),
            (Some(offset), None) => format!("byte {offset}: "),
            _ => String::new(),
        };
        field(out, "", &format!("{place}{}", problem.what))?;
        field(out, "", &problem.means)?;
    }
    Ok(())
}
