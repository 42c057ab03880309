//! `saltcellar reactor replay`: retries failed reactions.

use anyhow::Context as _;
use rmpv::Value;

use super::super::format::nested::leaf;
use super::super::format::output::{Format, Output};
use super::super::{Global, ask};

/// Flags of `reactor replay`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Sequence number of the reaction, or of the event
    seq: u64,
    /// Repeat all calls, including those already made
    #[arg(long, conflicts_with = "render")]
    all: bool,
    /// Render the event again, with the current rules
    #[arg(long)]
    render: bool,
}

pub(super) const EXAMPLES: &str = "\
Makes dead-lettered calls. If a reaction failed to render, wholly or partly, renders the event again with the current \
version of the same rules. Skips calls that were already made, except with --all. Root, the daemon's user and the owner \
of the master's bus have the right to replay. The history lists the replay as a separate reaction.

Examples:
  saltcellar reactor history --state failed,partial,dead
  saltcellar reactor replay 18234
  saltcellar reactor replay 18230 --render";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let pairs = [
        ("seq", Value::from(args.seq)),
        ("all", Value::from(args.all)),
        ("render", Value::from(args.render)),
    ];
    let answer = ask::call(&mut client, "reactor_replay", pairs).context("replay the reaction")?;
    let mut out = Output::new(global.output);
    if out.format == Format::Table {
        let of = |name: &str| answer.get(name).map(leaf).unwrap_or_default();
        let doing = if of("what") == "rules" { "being rendered again" } else { "being repeated" };
        out.line(&format!("{} {} of {} are {doing}", of("count"), of("what"), of("seq")))?;
    } else {
        out.json(&answer)?;
    }
    Ok(out.flush()?)
}
