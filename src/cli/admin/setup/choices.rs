//! Choices that a person made for a master, in this run or an earlier one. A plain `setup` keeps
//! them.
//!
//! The files that setup writes record choices that are not the default in a comment, as flags:
//!
//! ```text
//! # Choices: --reactor --events none
//! ```

use super::args::{Args, Events};
use super::extension::Install;

/// Begins the comment.
const MARK: &str = "# Choices:";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) events: Events,
    pub(super) job_cache: bool,
    pub(super) reactor: bool,
    pub(super) install: Install,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            events: Events::Bus,
            job_cache: true,
            reactor: false,
            install: Install::ModuleDirs,
        }
    }
}

impl Choices {
    /// Combines the flags of this run with recorded choices; flags take precedence.
    pub(super) fn of(args: &Args, recorded: Self) -> Self {
        let chosen = |yes: bool, no: bool, recorded: bool| yes || recorded && !no;

        Self {
            events: args.events.unwrap_or(recorded.events),
            job_cache: chosen(args.job_cache, args.no_job_cache, recorded.job_cache),
            reactor: chosen(args.reactor, args.no_reactor, recorded.reactor),
            install: args.extension.unwrap_or(recorded.install),
        }
    }

    /// The choices that a file records; the default if it records none.
    pub(super) fn recorded(text: &str) -> Self {
        let mut choices = Self::default();

        let line = text.lines().find_map(|line| line.strip_prefix(MARK));
        let mut words = line.unwrap_or_default().split_whitespace();

        // Read like a command line, and unlike one without errors: any version may have written it.
        while let Some(word) = words.next() {
            match word {
                "--reactor" => choices.reactor = true,
                "--no-job-cache" => choices.job_cache = false,
                // A value of a later version leaves the default.
                "--events" => choices.events = value(words.next()).unwrap_or(choices.events),
                "--extension" => choices.install = value(words.next()).unwrap_or(choices.install),
                // A flag of a later version.
                _ => {}
            }
        }

        choices
    }

    /// The comment with all choices that differ from the default; empty if none does.
    pub(super) fn comment(self) -> String {
        let default = Self::default();
        let mut flags = String::new();

        // Only what differs from the default, because a later default should apply to whoever chose
        // nothing.
        if self.reactor {
            flags += " --reactor";
        }
        if !self.job_cache {
            flags += " --no-job-cache";
        }
        if self.events != default.events {
            flags.extend([" --events ", &name(&self.events)]);
        }
        if self.install != default.install {
            flags.extend([" --extension ", &name(&self.install)]);
        }

        if flags.is_empty() {
            flags
        } else {
            format!("{MARK}{flags}\n")
        }
    }
}

fn value<T: clap::ValueEnum>(word: Option<&str>) -> Option<T> {
    T::from_str(word?, false).ok()
}

fn name<T: clap::ValueEnum>(value: &T) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn choices_are_read_back_as_they_were_recorded() {
        assert_eq!(Choices::default().comment(), "");
        for events in Events::value_variants() {
            for install in Install::value_variants() {
                for n in 0..4 {
                    let choices = Choices {
                        events: *events,
                        job_cache: n & 1 == 0,
                        reactor: n & 2 == 0,
                        install: *install,
                    };
                    let text = format!("# First line\n{}bus: [/x]\n", choices.comment());
                    assert_eq!(Choices::recorded(&text), choices, "{text}");
                }
            }
        }
        assert_eq!(
            Choices::recorded("# Choices: --later x --events\n"),
            Choices::default()
        );
    }
}
