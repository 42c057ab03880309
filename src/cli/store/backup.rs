//! `saltcellar store backup`: a consistent copy, beside a running daemon too.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::output::{Format, Output};
use super::super::progress::{Bar, Unit, bytes};
use super::tool::{count, field, state_dir_of_daemon};
use crate::clock::Clock;
use crate::store::tools::backup::{self, Options};

/// Arguments of `store backup`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The backup's directory: a new one, or the one of an earlier backup
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Remove from the backup what retention has removed from the store
    #[arg(long)]
    delete: bool,
    /// Link finished segments in place of copying them, if TO is on the same file system. That saves space and
    /// protects against deletion, not against a disk that fails
    #[arg(long)]
    link: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Copies the log; indexes are made again from it when it is restored. Everything that was answered as stored before the \
backup began is in it, whether the daemon runs or not. A segment that is finished never changes, so the next backup into \
the same directory copies only what is new. An interrupted backup leaves the one before as it was. Unless a state directory is named, it is \
that of the daemon that runs.

Examples:
  saltcellar store backup /backup/saltcellar
  saltcellar store backup --delete /backup/saltcellar    and let go of what retention has dropped
  saltcellar store restore /backup/saltcellar /srv/saltcellar-new";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let dir = state_dir_of_daemon(global)?;
    let mut bar = Bar::new("backup", Unit::Bytes);
    let options = Options { delete: args.delete, link: args.link };
    let now = Clock::real().now();
    let report = backup::backup(&dir, &args.to, options, now, &mut bar).context("back up the store")?;
    let seconds = bar.seconds();
    drop(bar);
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            field(&mut out, "state dir", &dir.to_string_lossy())?;
            let all = format!("{}, {}", count(report.segments, "segment", "segments"), bytes(report.bytes));
            field(&mut out, "backup", &format!("{}: {all}", args.to.display()))?;
            let new = count(report.segments_copied, "segment", "segments");
            field(&mut out, "new", &format!("{new}, {} in {seconds:.1} s", bytes(report.bytes_copied)))?;
            if report.segments_dropped > 0 {
                let kept = count(report.segments_dropped, "segment", "segments");
                let words = "that the store no longer has; --delete lets go of them";
                field(&mut out, "kept", &format!("{kept} {words}"))?;
            }
            if report.segments_deleted > 0 {
                field(&mut out, "deleted", &count(report.segments_deleted, "segment", "segments"))?;
            }
            for (path, offset, bytes) in &report.damaged {
                let place = format!("{}: byte {offset}, {}", path.display(), count(*bytes, "byte", "bytes"));
                field(&mut out, "damaged", &place)?;
            }
        }
        Format::Json | Format::Jsonl => {
            let damaged = |(path, offset, bytes): &(PathBuf, u64, u64)| json!({ "path": path.to_string_lossy(), "offset": offset, "bytes": bytes });
            out.json(&json!({
                "state_dir": dir.to_string_lossy(),
                "backup": args.to.to_string_lossy(),
                "segments": report.segments,
                "bytes": report.bytes,
                "segments_copied": report.segments_copied,
                "bytes_copied": report.bytes_copied,
                "segments_dropped": report.segments_dropped,
                "segments_deleted": report.segments_deleted,
                "damaged": report.damaged.iter().map(damaged).collect::<Json>(),
            }))?;
        }
    }
    out.flush()?;
    if !report.damaged.is_empty() {
        let damaged = count(report.damaged.len() as u64, "damaged stretch", "damaged stretches");
        bail!(
            "find the store whole: the backup was made, with {damaged} as it is; see `saltcellar store verify`"
        );
    }
    Ok(())
}
