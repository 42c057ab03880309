//! `saltcellar store verify`: verifies checksums and consistency of the store.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::state_files;
use super::tool::{count, field, state_dir_of_daemon};
use crate::cli::{Bar, Global, Output, OutputError, Unit, bytes, finding, plain, show};
use crate::store::tools::verify::{self, IndexCheck, Problem, VerifyOptions, VerifyReport};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Verify only block headers, not bodies and indexes
    #[arg(long)]
    quick: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Reads every frame of every log, verifies its checksum, block and bodies, checks that sequence numbers ascend without \
duplicates, and compares the indexes with the logs. Reads every file that cannot be rebuilt. Counts lost entries by what indexes, the \
state database and the last clean stop know; without them, by sequence numbers: at most this many. Changes nothing. While the daemon \
runs, it verifies the data that was on disk at its start, and skips the indexes, which the daemon has open.

Exit codes: 0 no damage, 1 damage found, others if the store could not be verified.

Examples:
  saltcellar store verify
  saltcellar store verify --quick
  saltcellar store verify --state-dir /srv/restored
  saltcellar store verify --output json | jq '.problems[].path'

See also: saltcellar store rebuild, saltcellar store salvage";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let dir = state_dir_of_daemon(global)?;

    let mut bar = Bar::new("verify", Unit::Bytes);
    let report = verify::verify(
        &dir,
        VerifyOptions { quick: args.quick },
        &state_files::check,
        &mut bar,
    )
    .context("verify the store")?;

    // Ends the progress line before the report is printed.
    let seconds = bar.seconds();
    drop(bar);

    show(global.output, &document(&dir, &report), |out| {
        Ok(table(out, &dir, &report, seconds)?)
    })?;

    // The list of problems is bounded, their number is not.
    let problems = report.problems.len() as u64 + report.problems_more;
    if problems > 0 {
        let lost = count(report.entries_lost(), "entry", "entries");
        // Without an index, sequence numbers only bound the loss.
        let most = if report.is_exact() { "" } else { "at most " };
        let text = format!(
            "{} found, {most}{lost} lost",
            count(problems, "problem", "problems")
        );
        return Err(finding(text));
    }

    Ok(())
}

fn document(dir: &std::path::Path, report: &VerifyReport) -> Json {
    let problem = |problem: &Problem| {
        json!({
            "path": problem.path.to_string_lossy(), "offset": problem.offset, "bytes": problem.bytes,
            "what": problem.what, "means": problem.means, "entries_lost": problem.entries_lost,
            "exact": problem.exact,
        })
    };

    let indexes = match &report.indexes {
        IndexCheck::Compared(compared) => json!({ "compared": compared, "skipped": null }),
        IndexCheck::Skipped(why) => json!({ "compared": 0, "skipped": why }),
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
        "exact": report.is_exact(),
        "problems": report.problems.iter().map(problem).collect::<Json>(),
        "problems_more": report.problems_more,
        "notes": report.notes.iter().map(problem).collect::<Json>(),
    })
}

fn table(
    out: &mut Output,
    dir: &std::path::Path,
    report: &VerifyReport,
    seconds: f64,
) -> Result<(), OutputError> {
    field(
        out,
        "state dir",
        &format!("{}, format {}", dir.display(), report.format),
    )?;

    // A daemon explains why only a part of the store was verified.
    if let Some(holder) = &report.holder {
        field(out, "daemon", holder)?;
    }

    let segments = count(report.segments, "segment", "segments");
    let entries = count(report.entries, "entry", "entries");
    let frames = count(report.frames, "block", "blocks");
    let log = bytes(report.log_bytes);

    field(
        out,
        "read",
        &format!("{segments}, {frames}, {entries}, {log} of log in {seconds:.1} s"),
    )?;

    // Indexes that were not compared must not look intact.
    match &report.indexes {
        IndexCheck::Compared(0) => field(out, "indexes", "none: no segment is finished")?,
        IndexCheck::Compared(n) => {
            field(
                out,
                "indexes",
                &format!("{} compared with the log", count(*n, "index", "indexes")),
            )?;
        }
        IndexCheck::Skipped(why) => field(out, "indexes", &format!("not compared: {why}"))?,
    }

    if report.problems.is_empty() {
        // Said in words, because an absent list could mean that nothing was checked.
        field(out, "damage", "none")?;
    }
    list(out, "damage", &report.problems)?;

    if report.problems_more > 0 {
        field(
            out,
            "",
            &format!("and {}", count(report.problems_more, "more", "more")),
        )?;
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
        out.line(&plain(&problem.path.to_string_lossy()))?;

        // Not every problem is at a place in a file.
        let location = match (problem.offset, problem.bytes) {
            (Some(offset), Some(bytes)) => {
                format!("byte {offset}, {}: ", count(bytes, "byte", "bytes"))
            }
            (Some(offset), None) => format!("byte {offset}: "),
            _ => String::new(),
        };

        field(out, "", &format!("{location}{}", problem.what))?;
        field(out, "", &problem.means)?;
    }
    Ok(())
}
