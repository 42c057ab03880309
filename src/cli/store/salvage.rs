//! `saltcellar store salvage`: recovers the readable entries of a damaged store into a new one.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::state_files;
use super::tool::{count, field, numbers};
use crate::base::clock::Clock;
use crate::cli::{Bar, Global, Output, OutputError, Unit, finding, plain, show};
use crate::store::tools::losses::Loss;
use crate::store::tools::salvage::{self, SalvageReport};
use crate::store::tools::verify::small_files::FileFault;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Damaged directory: a state directory, a part of one, or a backup
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Target directory, empty or missing
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Searches every file, regardless of its name and other damage, for blocks with valid checksums, and writes them into a \
new store with their sequence numbers. FROM is not changed. Unreadable ranges are listed with file and offset; entries \
that were found elsewhere do not count as lost.

Files that cannot be rebuilt are copied as they are and checked.

Exit codes: 0 nothing lost, 1 entries lost or files damaged.

Examples:
  systemctl stop saltcellar
  saltcellar store salvage /var/lib/saltcellar /srv/saltcellar-new
  saltcellar store verify --state-dir /srv/saltcellar-new";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut bar = Bar::new("salvage", Unit::Bytes);

    let now = Clock::real().now();
    let report = salvage::salvage(&args.from, &args.to, now, &state_files::check, &mut bar)
        .context("salvage the store")?;

    // Ends the progress line before the report is printed.
    let seconds = bar.seconds();
    drop(bar);

    show(global.output, &document(args, &report), |out| {
        Ok(table(out, args, &report, seconds)?)
    })?;

    // The report comes first, because the exit code only says that something is missing.
    if report.losses.is_empty() && report.faults.is_empty() {
        return Ok(());
    }

    let losses = count(report.losses.len() as u64, "range", "ranges");
    let entries = count(report.entries_lost(), "entry", "entries");
    // Without the numbers around a range the loss is only bounded.
    let most = if report.is_exact() { "" } else { "at most " };
    let files = match report.faults.len() as u64 {
        0 => String::new(),
        faults => format!(
            ", {} in files that cannot be rebuilt",
            count(faults, "defect", "defects")
        ),
    };

    Err(finding(format!(
        "{losses} of the logs could not be read, {most}{entries} lost{files}"
    )))
}

fn document(args: &Args, report: &SalvageReport) -> Json {
    // `before_seq` is null after the last block of a class, where no number bounds the loss.
    let loss = |loss: &Loss| {
        json!({
            "path": loss.path.to_string_lossy(), "offset": loss.range.offset, "bytes": loss.range.bytes,
            "what": loss.range.what, "entries_lost": loss.entries, "exact": loss.exact,
            "after_seq": loss.range.after.0, "before_seq": loss.range.before.map(|seq| seq.0),
        })
    };

    let fault =
        |fault: &FileFault| json!({ "path": fault.path.to_string_lossy(), "what": fault.what });

    let class = |(class, entries): &(String, u64)| json!({ "class": class, "entries": entries });

    json!({
        "from": args.from.to_string_lossy(),
        "to": args.to.to_string_lossy(),
        "files": report.files,
        "entries": report.entries(),
        "classes": report.classes.iter().map(class).collect::<Json>(),
        "doubles": report.doubles,
        "entries_lost": report.entries_lost(),
        "exact": report.is_exact(),
        "faults": report.faults.iter().map(fault).collect::<Json>(),
        "losses": report.losses.iter().map(loss).collect::<Json>(),
        "next_seq": report.skipped.map(|skipped| skipped.end.0),
        "foreign": report.foreign.iter().map(|path| path.to_string_lossy()).collect::<Json>(),
    })
}

fn table(
    out: &mut Output,
    args: &Args,
    report: &SalvageReport,
    seconds: f64,
) -> Result<(), OutputError> {
    field(
        out,
        "from",
        &format!(
            "{}, {}",
            args.from.display(),
            count(report.files, "file", "files")
        ),
    )?;

    field(out, "to", &args.to.to_string_lossy())?;
    field(
        out,
        "recovered",
        &format!(
            "{} in {seconds:.1} s",
            count(report.entries(), "entry", "entries")
        ),
    )?;

    // By class, because the classes matter in different ways.
    for (class, entries) in &report.classes {
        field(
            out,
            "",
            &format!("{class}: {}", count(*entries, "entry", "entries")),
        )?;
    }

    if report.doubles > 0 {
        field(
            out,
            "",
            &format!(
                "{} found more than once",
                count(report.doubles, "entry", "entries")
            ),
        )?;
    }

    if let Some(skipped) = report.skipped {
        field(out, "numbers", &numbers(skipped))?;
    }

    if report.losses.is_empty() {
        // Said in words, because an absent list could mean that nothing was checked.
        field(out, "lost", "nothing")?;
    } else {
        out.line("")?;
        out.heading("lost:")?;
    }

    for loss in &report.losses {
        out.line(&plain(&loss.path.to_string_lossy()))?;
        let bytes = count(loss.range.bytes, "byte", "bytes");
        field(
            out,
            "",
            &format!("byte {}, {bytes}: {}", loss.range.offset, loss.range.what),
        )?;

        let after = loss.range.after.0.saturating_add(1);
        let most = count(loss.entries, "entry", "entries");

        let range = match loss.range.before {
            Some(before) => {
                let bound = if loss.exact { "" } else { "at most " };
                format!(
                    "{bound}{most} lost, sequence numbers {after} to {}",
                    before.0.saturating_sub(1)
                )
            }
            // Nothing after it is known, so the loss cannot be counted.
            None => format!(
                "the end of its class: an unfinished write, or entries from sequence number {after} on"
            ),
        };

        field(out, "", &range)?;
    }

    if !report.faults.is_empty() {
        out.line("")?;
        out.heading("files that cannot be rebuilt, copied as they are:")?;
        for fault in &report.faults {
            out.line(&plain(&fault.path.to_string_lossy()))?;
            field(out, "", &fault.what)?;
        }
    }

    // For a person to look at: data that is damaged beyond recognition would be in these files.
    if !report.foreign.is_empty() {
        out.line("")?;
        out.heading("files without data of saltcellar:")?;
        for path in &report.foreign {
            out.line(&plain(&path.to_string_lossy()))?;
        }
    }

    Ok(())
}
