//! Helpers of the store tools: the state directory, and the layout of their output.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::api::call::{self as calls, NoArgs};
use crate::base::clock::Micros;
use crate::base::units::span;
use crate::cli::{Global, NoDaemon, Output, OutputError, ask, plain};
use crate::config::{Config, Environment, Origin};
use crate::store::SkippedNumbers;
use crate::wire::msgpack::Time;

pub(in crate::cli) fn config(global: &Global) -> anyhow::Result<Config> {
    Config::load(&global.overrides(), &Environment::of_process()).context("read the configuration")
}

/// The configured state directory, or by default the directory of the running daemon, if any.
pub(super) fn state_dir_of_daemon(global: &Global) -> anyhow::Result<PathBuf> {
    let config = config(global)?;

    if *config.origin("state_dir") != Origin::Default {
        // A directory that somebody named is meant, whatever the daemon uses.
        return Ok(config.state_dir);
    }

    let mut client = match ask::connect(global) {
        // Without a daemon the default is the best guess.
        Err(error) if error.is::<NoDaemon>() => return Ok(config.state_dir),
        client => client?,
    };

    let status = client
        .make::<calls::status::Show>(&NoArgs {})
        .context("query the daemon's state directory")?;
    Ok(status.state_dir.into())
}

/// Formats the age of a time; a dash without one.
pub(super) fn ago(at: Option<Time>, now: Micros) -> String {
    at.map_or("-".to_owned(), |Time(at)| {
        span(u64::try_from(now.0.saturating_sub(at.0) / 1_000_000).unwrap_or(0))
    })
}

/// States where the sequence numbers of a new store continue.
pub(super) fn numbers(skipped: SkippedNumbers) -> String {
    format!(
        "continue with {}; no event has {} to {}, which the lost store may have used",
        skipped.end.0,
        skipped.first.0,
        skipped.end.0.saturating_sub(1)
    )
}

/// Line width without a terminal.
const COLUMNS: usize = 80;

/// Prints a name with its value, wrapped to the line width.
pub(in crate::cli) fn field(out: &mut Output, name: &str, text: &str) -> Result<(), OutputError> {
    const NAME_CHARS: usize = 11;

    let width = out.width.unwrap_or(COLUMNS).max(40);

    let mut name = name;

    for line in wrapped(text, width - NAME_CHARS) {
        out.line(format!("{name:<NAME_CHARS$}{line}").trim_end())?;
        name = "";
    }
    Ok(())
}

/// Wraps text at `width` characters; a longer word gets its own line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];

    for word in plain(text).split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// `1 entry`, `2 entries`, `1,234 segments`
pub(in crate::cli) fn count(n: u64, one: &str, many: &str) -> String {
    let digits = n.to_string();
    let mut text = String::new();

    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{text} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(
            wrapped("a bc def /a/long/path g", 6),
            ["a bc", "def", "/a/long/path", "g"]
        );
        assert_eq!(wrapped("", 6), [""]);
        assert_eq!(count(1, "entry", "entries"), "1 entry");
        assert_eq!(count(1_234_567, "entry", "entries"), "1,234,567 entries");
    }
}
