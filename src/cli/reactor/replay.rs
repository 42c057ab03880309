//! `saltcellar reactor replay`: doing again what was dead-lettered.

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
Makes calls that were dead-lettered. Of a reaction that failed to render, wholly or in part, the event is rendered again, by the same \
rules as they are now; calls that were made already are left out, unless --all is given. Root, the daemon's user and the owner of the master's bus can replay. The replay has a record of its own in the history.

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
        let doing = if of("what") == "rules" { "being rendered again" } else { "being made again" };
        out.line(&format!("{} {} of {} are {doing}", of("count"), of("what"), of("seq")))?;
    } else {
        out.json(&answer)?;
    }
    Ok(out.flush()?)
}
