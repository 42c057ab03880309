//! `saltcellar reactor replay`: retries failed reactions.

use crate::api::call as calls;
use crate::api::call::reactor::{Repeated, Replay, ReplayArgs};
use crate::cli::{Global, ask};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Sequence number of the reaction, or of the event
    seq: u64,
    /// Repeat all calls, including those already made
    #[arg(long, conflicts_with = "render")]
    include_done: bool,
    /// Render the event again, with the current rules
    #[arg(long)]
    render: bool,
}

pub(super) const EXAMPLES: &str = "\
Makes dead-lettered calls. If a reaction failed to render, wholly or partly, renders the event again with the current \
version of the same rules. Skips calls that were already made, except with --include-done. Root, the daemon's user and the owner \
of the master's bus have the right to replay. The history lists the replay as a separate reaction.

Examples:
  saltcellar reactor history --state failed,partial,dead
  saltcellar reactor replay 18234
  saltcellar reactor replay 18230 --render";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Args {
        seq,
        include_done,
        render,
    } = *args;
    ask::change::<calls::reactor::ReplayCalls>(
        global,
        &ReplayArgs {
            seq,
            include_done,
            render,
            ..ReplayArgs::default()
        },
        "replay the reaction",
        |Replay { seq, what, count }| {
            let doing = match what {
                Repeated::Rules => "being rerendered",
                Repeated::Calls => "being repeated",
            };

            format!("{count} {} of {seq} are {doing}", what.name())
        },
    )
}
