//! `saltcellar store rebuild`: rebuilds indexes from the log.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::tool::{config, count, field};
use crate::base::clock::Clock;
use crate::cli::{Bar, Global, Unit, show};
use crate::store::tools::rebuild::{self, SegmentSelector};

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
    // The lock shows this to whoever starts a daemon meanwhile.
    let holder = format!("pid {}, rebuilding indexes", std::process::id());
    let options = crate::daemon::store_options(&config, holder, Clock::real());

    let which = args.segment.clone().map(|name| SegmentSelector { name });

    let mut bar = Bar::new("rebuild", Unit::Segments);
    let report =
        rebuild::rebuild(&options, which.as_ref(), &mut bar).context("rebuild the indexes")?;

    // Ends the progress line before the report is printed.
    let seconds = bar.seconds();
    drop(bar);

    let class = |(class, segments, entries): &(String, u64, u64)| json!({ "class": class, "segments": segments, "entries": entries });
    let document = json!({
        "state_dir": config.state_dir.to_string_lossy(),
        "segments_rebuilt": report.segments,
        "classes": report.classes.iter().map(class).collect::<Json>(),
    });

    show(global.output, &document, |out| {
        field(out, "state dir", &config.state_dir.to_string_lossy())?;
        let segments = |n: u64| count(n, "segment", "segments");

        field(
            out,
            "rebuilt",
            &format!("indexes of {} in {seconds:.1} s", segments(report.segments)),
        )?;

        for (class, n, entries) in &report.classes {
            field(
                out,
                class,
                &format!("{}, {}", segments(*n), count(*entries, "entry", "entries")),
            )?;
        }
        Ok(())
    })
}
