//! `saltcellar store restore`: a backup becomes a store again.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;

use super::super::Global;
use super::super::output::{Format, Output};
use super::super::progress::{Bar, Unit, bytes};
use super::tool::{config, count, field};
use crate::clock::{Clock, Micros};
use crate::store::tools::{layout, rebuild, restore};

/// Arguments of `store restore`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The backup's directory
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Where the store goes: a directory that is empty or not there
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Leave it to the daemon's first start to make the indexes
    #[arg(long)]
    no_index: bool,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Every file is compared with the hash in the backup's MANIFEST on its way. Then the indexes are made. Give the directory to \
the user that the daemon runs as before it is started on it.

Examples:
  saltcellar store restore /backup/saltcellar /srv/saltcellar-new
  saltcellar store verify --state-dir /srv/saltcellar-new
  chown -R saltcellar: /srv/saltcellar-new";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut bar = Bar::new("restore", Unit::Bytes);
    let report = restore::restore(&args.from, &args.to, &mut bar).context("restore the backup")?;
    let mut seconds = bar.seconds();
    drop(bar);
    if !args.no_index {
        let mut bar = Bar::new("index", Unit::Segments);
        let holder = format!("pid {}, which restores a backup into it", std::process::id());
        let mut options = crate::daemon::store_options(&config(global)?, holder, Clock::real());
        options.dir.clone_from(&args.to);
        let places = layout::segments(&args.to).context("make the indexes")?;
        let finished = places.iter().filter(|place| !place.is_newest);
        let indexes = finished.map(|place| (place.name(), place.dir.join("index"))).collect::<Vec<_>>();
        drop(rebuild::open_watched(&options, &indexes, &mut bar).context("make the indexes")?);
        seconds += bar.seconds();
    }
    let mut out = Output::new(global.output);
    let (segments, made) = (report.segments, Micros(report.made));
    match out.format {
        Format::Table => {
            field(&mut out, "backup", &format!("{}, made {}", args.from.display(), made.iso()))?;
            let all = format!("{}, {}", count(segments, "segment", "segments"), bytes(report.bytes));
            field(&mut out, "store", &format!("{}: {all} in {seconds:.1} s", args.to.display()))?;
        }
        Format::Json | Format::Jsonl => out.json(&json!({
            "backup": args.from.to_string_lossy(),
            "made": made.iso(),
            "state_dir": args.to.to_string_lossy(),
            "segments": segments,
            "bytes": report.bytes,
        }))?,
    }
    Ok(out.flush()?)
}
