//! `saltcellar store restore`: restores a backup to a new state directory.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;

use super::tool::{config, count, field, numbers};
use crate::base::clock::{Clock, Micros};
use crate::cli::{Bar, Global, Unit, bytes, show};
use crate::store::tools::backup::restore;
use crate::store::tools::{layout, rebuild};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The backup's directory
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Target directory, empty or missing
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Do not build the indexes; the daemon builds them at its first start
    #[arg(long)]
    no_index: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Verifies every file against the hash in the backup's MANIFEST, then builds the indexes. Tokens, consumers, holds and dead letters \
are restored, the reactor's checkpoint is not: it begins with the next event. Sequence numbers continue far behind those of the \
backup, after a gap record, so that no event id names two events. Before starting the daemon, change the owner of the directory to \
the daemon's user.

Examples:
  saltcellar store restore /backup/saltcellar /srv/saltcellar-new
  saltcellar store verify --state-dir /srv/saltcellar-new
  chown -R root: /srv/saltcellar-new";

const INDEXES: &str =
    "build the indexes: the backup is restored, and the daemon builds them at its start";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    // Read first: an error in it must not leave a store that a second try would refuse to replace.
    let options = (!args.no_index)
        .then(|| {
            let holder = format!("pid {}, restoring a backup", std::process::id());
            config(global)
                .map(|config| crate::daemon::store_options(&config, holder, Clock::real()))
        })
        .transpose()?;

    let mut bar = Bar::new("restore", Unit::Bytes);
    let report = restore::restore(&args.from, &args.to, Clock::real().now(), &mut bar)
        .context("restore the backup")?;

    // Ends the progress line before anything else is printed.
    let mut seconds = bar.seconds();
    drop(bar);

    // A daemon could build them, but would be slow to start.
    if let Some(mut options) = options {
        let mut bar = Bar::new("index", Unit::Segments);

        // Everything else is as for the daemon of this configuration.
        options.dir.clone_from(&args.to);

        let segments = layout::segments(&args.to).context(INDEXES)?;

        // The index of the newest segment of a class is in memory.
        let finished = segments.iter().filter(|segment| !segment.is_newest);
        let indexes = finished
            .map(|segment| (segment.name(), segment.index()))
            .collect::<Vec<_>>();

        // The store is closed again: building was the purpose of opening it.
        drop(rebuild::open_watched(&options, &indexes, &mut bar).context(INDEXES)?);
        seconds += bar.seconds();
    }

    let segments = report.segments;
    let made = Micros(report.made).iso();

    let document = json!({
        "backup": args.from.to_string_lossy(),
        "made": made,
        "state_dir": args.to.to_string_lossy(),
        "segments": segments,
        "bytes": report.bytes,
        "next_seq": report.skipped.end.0,
    });

    show(global.output, &document, |out| {
        field(
            out,
            "backup",
            &format!("{}, made {made}", args.from.display()),
        )?;

        let all = format!(
            "{}, {}",
            count(segments, "segment", "segments"),
            bytes(report.bytes)
        );
        field(
            out,
            "store",
            &format!("{}: {all} in {seconds:.1} s", args.to.display()),
        )?;

        Ok(field(out, "numbers", &numbers(report.skipped))?)
    })
}
