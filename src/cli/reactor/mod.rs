//! `saltcellar reactor ...`: the reactor's rules and history, tests of its files, and comparison
//! with Salt's own.

mod diff;
mod history;
mod lint;
mod render;
mod replay;
mod rules;
mod salt;
mod show;
mod why;

pub(super) use self::history::failures;
pub(super) use self::lint::faults;
use crate::cli::Global;

#[derive(clap::Subcommand)]
pub(super) enum Reactor {
    /// List the rules and the reactor that acts on each
    #[command(after_long_help = rules::EXAMPLES)]
    Rules(rules::Args),
    /// List reactions, newest first
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
    /// Compare the calls of the shadow reactor with the calls of Salt's reactor
    #[command(after_long_help = diff::EXAMPLES)]
    Diff(diff::Args),
    /// Render a file for an event and show its calls, without making them
    #[command(after_long_help = render::EXAMPLES)]
    Render(render::Args),
    /// Check the master's rules and their files for errors and for use of Salt's Python
    #[command(after_long_help = lint::EXAMPLES)]
    Lint(lint::Args),
}

impl Reactor {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::Rules(_) | Self::History(_) | Self::Why(_) | Self::Diff(_) => true,
            Self::Show(_) | Self::Replay(_) | Self::Render(_) | Self::Lint(_) => false,
        }
    }
}

pub(super) fn run(global: &Global, reactor: Reactor) -> anyhow::Result<()> {
    match reactor {
        Reactor::Rules(args) => rules::run(global, &args),
        Reactor::History(args) => history::run(global, &args),
        Reactor::Show(args) => show::run(global, &args),
        Reactor::Why(args) => why::run(global, &args),
        Reactor::Replay(args) => replay::run(global, &args),
        Reactor::Diff(args) => diff::run(global, &args),
        Reactor::Render(args) => render::run(global, &args),
        Reactor::Lint(args) => lint::run(global, &args),
    }
}
