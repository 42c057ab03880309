//! `saltcellar reactor ...`: the reactor's rules and history, tests of its files, and comparison
//! with Salt's own.

mod check;
mod conformance;
mod history;
mod list;
mod replay;
mod salt;
mod shadow;
mod show;
mod test;
mod why;

pub(super) use self::check::faults;
pub(super) use self::history::failures;
use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Reactor {
    /// List the rules and the reactor that acts on each
    #[command(after_long_help = list::EXAMPLES)]
    List(list::Args),
    /// List reactions, newest last
    #[command(after_long_help = history::EXAMPLES)]
    History(history::Args),
    /// Show a reaction: event, rules, rendered files, calls and results
    #[command(after_long_help = show::EXAMPLES)]
    Show(show::Args),
    /// Explain the rules and latest reactions of a tag
    #[command(after_long_help = why::EXAMPLES)]
    Why(why::Args),
    /// Retry failed reactions
    #[command(after_long_help = replay::EXAMPLES)]
    Replay(replay::Args),
    /// Compare the shadow reactor with Salt's own
    #[command(after_long_help = shadow::EXAMPLES)]
    Shadow(shadow::Args),
    /// Render a file for an event and show its calls, without making them
    #[command(after_long_help = test::EXAMPLES)]
    Test(test::Args),
    /// Check the master's rules and their files for errors and for use of Salt's Python
    #[command(after_long_help = check::EXAMPLES)]
    Check(check::Args),
    /// Run recorded cases and compare the results with Salt's
    #[command(after_long_help = conformance::EXAMPLES)]
    Conformance(conformance::Args),
}

impl Reactor {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::List(_) | Self::History(_) | Self::Why(_) | Self::Shadow(_) => true,
            Self::Show(_)
            | Self::Replay(_)
            | Self::Test(_)
            | Self::Check(_)
            | Self::Conformance(_) => false,
        }
    }
}

pub(super) fn run(global: &Global, reactor: Reactor) -> anyhow::Result<()> {
    match reactor {
        Reactor::List(args) => list::run(global, &args),
        Reactor::History(args) => history::run(global, &args),
        Reactor::Show(args) => show::run(global, &args),
        Reactor::Why(args) => why::run(global, &args),
        Reactor::Replay(args) => replay::run(global, &args),
        Reactor::Shadow(args) => shadow::run(global, &args),
        Reactor::Test(args) => test::run(global, &args),
        Reactor::Check(args) => check::run(global, &args),
        Reactor::Conformance(args) => conformance::run(global, &args),
    }
}
