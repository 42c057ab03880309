//! `saltcellar store rebuild`: rebuilds indexes from the log.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::super::Global;
use super::super::format::output::{Format, Output};
use super::super::format::progress::{Bar, Unit};
use super::tool::{config, count, field};
use crate::clock::Clock;
use crate::store::tools::rebuild::{self, SegmentSelector};

/// Flags of `store rebuild`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Only this segment: its number, or class/number, as printed by `store verify`
    #[arg(long, value_name = "SEGMENT")]
    segment: Option<String>,
}

pub(in crate::cli) const EXAMPLES: &str = "\
All indexes derive from the log. The daemon rebuilds missing and damaged indexes itself; this command rebuilds all of \
them. The daemon must be stopped.

Examples:
  saltcellar store rebuild
  saltcellar store rebuild --segment jobs/00000000000000041876
  systemctl stop saltcellar && saltcellar store rebuild && systemctl start saltcellar";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let config = config(global)?;
    let holder = format!("pid {}, rebuilding indexes", std::process::id());
    let options = crate::daemon::store_options(&config, holder, Clock::real());
    let which = args.segment.clone().map(|name| SegmentSelector { name });
    let mut bar = Bar::new("rebuild", Unit::Segments);
    let report = rebuild::rebuild(&options, which.as_ref(), &mut bar).context("rebuild the indexes")?;
    let seconds = bar.seconds();
    drop(bar);
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            field(&mut out, "state dir", &config.state_dir.to_string_lossy())?;
            let rebuilt = count(report.segments, "segment", "segments");
            field(&mut out, "rebuilt", &format!("indexes of {rebuilt} in {seconds:.1} s"))?;
            for (class, segments, entries) in &report.classes {
                let (segments, entries) =
                    (count(*segments, "segment", "segments"), count(*entries, "entry", "entries"));
                field(&mut out, class, &format!("{segments}, {entries}"))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let class = |(class, segments, entries): &(String, u64, u64)| json!({ "class": class, "segments": segments, "entries": entries });
            let classes = report.classes.iter().map(class).collect::<Json>();
            let (dir, rebuilt) = (config.state_dir.to_string_lossy(), report.segments);
            out.json(&json!({ "state_dir": dir, "segments_rebuilt": rebuilt, "classes": classes }))?;
        }
    }
    Ok(out.flush()?)
}
