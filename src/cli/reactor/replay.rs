//! `saltcellar reactor replay`: doing again what was set aside.

use anyhow::Context as _;
use rmpv::Value;

use super::super::nested::leaf;
use super::super::output::{Format, Output};
use super::super::{Global, ask};

/// Flags of `reactor replay`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The number of the reaction, or of the event
    seq: u64,
    /// Make every call again, also those that were made
    #[arg(long, conflicts_with = "render")]
    all: bool,
    /// Begin with the event: the rules as they are now, rendered anew
    #[arg(long)]
    render: bool,
}

pub(super) const EXAMPLES: &str = "\
Root, the daemon's user and the owner of the master's bus can replay. The replay has a record of its own in the history.

Examples:
  saltcellar reactor history --state dead
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
        let what = if args.render { "rules" } else { "calls" };
        out.line(&format!("{} {what} of {} are under way again", of("count"), of("seq")))?;
    } else {
        out.json(&answer)?;
    }
    Ok(out.flush()?)
}
