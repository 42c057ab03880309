//! `saltcellar store backup`: makes a consistent copy of the store, with or without a running
//! daemon.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::tool::{count, field, state_dir_of_daemon};
use crate::base::clock::Clock;
use crate::cli::{Bar, Global, Unit, bytes, finding, show};
use crate::store::tools::backup::{self, BackupOptions, UnreadableLog};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Target directory: a new one, or that of an earlier backup
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Delete segments from the backup that retention has dropped from the store
    #[arg(long)]
    delete: bool,
    /// Hard-link segments that no longer change instead of copying them, if TO is on the same file system. This saves space and
    /// protects against deletion, but not against disk failure
    #[arg(long)]
    link: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Copies the log; restoring rebuilds the indexes. The copy contains every entry that was acknowledged before the \
backup started. Finished segments never change, so the next backup into the same directory copies only new ones. An \
interrupted backup leaves the previous one intact. The default state directory is that of the running daemon.

Examples:
  saltcellar store backup /backup/saltcellar
  saltcellar store backup --delete /backup/saltcellar    also delete expired segments
  saltcellar store restore /backup/saltcellar /srv/saltcellar-new";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    // Of the daemon: a backup of another directory would be noticed too late.
    let dir = state_dir_of_daemon(global)?;

    let mut bar = Bar::new("backup", Unit::Bytes);
    let options = BackupOptions {
        delete: args.delete,
        link: args.link,
    };

    // The manifest records the time, from which a restore knows how far numbers may have gone on.
    let now = Clock::real().now();
    let report =
        backup::backup(&dir, &args.to, options, now, &mut bar).context("back up the store")?;

    let seconds = bar.seconds();

    // Ends the progress line before the report is printed.
    drop(bar);

    let damaged = |(path, offset, bytes): &(PathBuf, u64, u64)| json!({ "path": path.to_string_lossy(), "offset": offset, "bytes": bytes });

    let unreadable = |log: &UnreadableLog| json!({ "path": log.segment.log().to_string_lossy(), "error": log.why.to_string() });

    let document = json!({
        "state_dir": dir.to_string_lossy(),
        "backup": args.to.to_string_lossy(),
        "segments": report.segments,
        "bytes": report.bytes,
        "segments_copied": report.segments_copied,
        "bytes_copied": report.bytes_copied,
        "segments_dropped": report.segments_dropped,
        "segments_deleted": report.segments_deleted,
        "damaged": report.damaged.iter().map(damaged).collect::<Json>(),
        "unreadable": report.unreadable.iter().map(unreadable).collect::<Json>(),
    });

    show(global.output, &document, |out| {
        let segments = |n: u64| count(n, "segment", "segments");
        field(out, "state dir", &dir.to_string_lossy())?;

        let all = format!("{}, {}", segments(report.segments), bytes(report.bytes));
        field(out, "backup", &format!("{}: {all}", args.to.display()))?;

        // How much was new shows that the backup is incremental.
        let copied = bytes(report.bytes_copied);
        field(
            out,
            "new",
            &format!(
                "{}, {copied} in {seconds:.1} s",
                segments(report.segments_copied)
            ),
        )?;

        // Kept by default: the backup may be the only place where they are left.
        if report.segments_dropped > 0 {
            let words = "that the store has dropped; --delete deletes them";
            field(
                out,
                "kept",
                &format!("{} {words}", segments(report.segments_dropped)),
            )?;
        }

        if report.segments_deleted > 0 {
            field(out, "deleted", &segments(report.segments_deleted))?;
        }

        // Every range, because only a person can say what it was.
        for (path, offset, bytes) in &report.damaged {
            let bytes = count(*bytes, "byte", "bytes");
            field(
                out,
                "damaged",
                &format!("{}: byte {offset}, {bytes}", path.display()),
            )?;
        }
        for log in &report.unreadable {
            field(out, "unreadable", &log.why.to_string())?;
        }
        Ok(())
    })?;

    if !report.unreadable.is_empty() {
        let logs = count(report.unreadable.len() as u64, "log", "logs");
        return Err(finding(format!(
            "backup made, but without {logs} that the disk cannot open, check it for errors (`dmesg`); what an earlier backup had of them is kept"
        )));
    }

    // The damage is also in the backup, therefore a script must notice.
    if !report.damaged.is_empty() {
        let damaged = count(
            report.damaged.len() as u64,
            "damaged range",
            "damaged ranges",
        );
        return Err(finding(format!(
            "backup made, but the store has {damaged}, copied as is; see `saltcellar store verify`"
        )));
    }

    Ok(())
}
