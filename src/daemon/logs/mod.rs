//! The daemon's own log, written to standard error.
//!
//! # Invariant
//!
//! A failed write of a log line (full disk, closed pipe) is counted and has no other effect. The
//! next successful line is preceded by a line with the number of lost lines.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;

use crate::base::metrics::LOG_LINES_LOST;
use crate::base::visible::{json_plain, plain};
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Installs the log of a command that opens the store itself: its warnings, formatted for the output.
pub(super) fn start_for_command() {
    start(&LogConfig {
        level: LogLevel("warn".to_owned()),
        format: LogFormat::Auto,
    });
}

/// Installs the global log subscriber. A second call has no effect.
pub(super) fn start(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(&config.level.0);
    // The audit log does not depend on the level.
    let filter = match "audit=info".parse() {
        Ok(audit) => filter.add_directive(audit),
        // Cannot happen: the directive is a constant.
        Err(_) => filter,
    };

    let form = |form| {
        move || OneLine {
            form,
            to: io::stderr(),
            lost: &LOST,
        }
    };

    // Internal errors would be printed to standard error with a panic on failure.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false);

    // The error means that a subscriber is already installed.
    let _ = match config.format {
        LogFormat::Json => log
            .with_writer(form(LineForm::Json))
            .json()
            .flatten_event(true)
            .try_init(),
        LogFormat::Text => log
            .with_writer(form(LineForm::Text))
            .with_ansi(false)
            .try_init(),
        LogFormat::Auto => {
            // As in <https://no-color.org>: an empty value counts as unset.
            let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let colour = io::stderr().is_terminal() && colour;

            let log = log.with_writer(form(if colour {
                LineForm::Coloured
            } else {
                LineForm::Text
            }));
            let log = log.with_ansi(colour);

            // The journal stamps each line itself.
            if std::env::var_os("JOURNAL_STREAM").is_some() {
                log.without_time().try_init()
            } else {
                log.try_init()
            }
        }
    };
}

/// Format of a log line.
#[derive(Clone, Copy)]
enum LineForm {
    Text,
    /// Text with the colours of `tracing-subscriber`.
    Coloured,
    Json,
}

/// Writes each event as one line, with invisible characters escaped: values come from minions and
/// other untrusted peers.
///
/// `tracing-subscriber` writes an event with one call, its line end included.
struct OneLine<W> {
    form: LineForm,
    to: W,
    lost: &'static Mutex<Lost>,
}

/// Lines lost since the last successful write.
#[derive(Debug, Default)]
struct Lost {
    lines: u64,
    /// The last line was written partially.
    torn: bool,
}

/// Lock order: after all others, because any thread may log; only the output is locked under it.
static LOST: Mutex<Lost> = Mutex::new(Lost {
    lines: 0,
    torn: false,
});

impl LineForm {
    /// The line that reports lost lines.
    fn lost(self, lines: u64) -> String {
        const WHAT: &str = "log lines could not be written";
        match self {
            Self::Json => {
                format!("{{\"level\":\"WARN\",\"message\":\"{WHAT}\",\"lines\":{lines}}}\n")
            }
            Self::Text | Self::Coloured => format!(" WARN {WHAT} lines={lines}\n"),
        }
    }
}

impl<W: Write> OneLine<W> {
    fn shown<'a>(&self, line: &'a str) -> Cow<'a, str> {
        match self.form {
            LineForm::Text => plain(line),
            LineForm::Coloured => coloured(line).into(),
            LineForm::Json => json_plain(line),
        }
    }
}

/// The escape sequences that `tracing-subscriber` writes, without the escape character.
const STYLES: [&str; 11] = [
    "[0m", "[1m", "[2m", "[3m", "[4m", "[31m", "[32m", "[33m", "[34m", "[35m", "[36m",
];

/// Like [`plain`], but keeps [`STYLES`]. A value can therefore set colours, and nothing else.
fn coloured(line: &str) -> String {
    let mut parts = line.split('\x1b');

    let mut shown = plain(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let style = STYLES
            .iter()
            .find(|style| part.starts_with(**style))
            .copied()
            .unwrap_or_default();
        shown.push_str(if style.is_empty() { "\\x1b" } else { "\x1b" });
        shown.push_str(style);
        shown.push_str(&plain(part.strip_prefix(style).unwrap_or(part)));
    }
    shown
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let text = format!("{}\n", self.shown(line));

        self.write_line(&text);
        // Lost bytes count as written too: see the invariant.
        Ok(event.len())
    }

    /// Never fails: `tracing-subscriber` would report the error on standard error.
    fn flush(&mut self) -> io::Result<()> {
        let _ = self.to.flush();
        Ok(())
    }
}

impl<W: Write> OneLine<W> {
    fn write_line(&mut self, text: &str) {
        // Held for the whole line: lines of other threads must not mix with it, and the report of
        // lost lines must match the reset below.
        let mut lost = self.lost.lock();

        let mut before = if lost.torn {
            "\n".to_owned()
        } else {
            String::new()
        };

        if lost.lines > 0 {
            let lines = lost.lines;
            before.push_str(&self.form.lost(lines));
        }

        let all = before + text;
        let mut rest = all.as_bytes();

        while !rest.is_empty() {
            match self.to.write(rest) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => {
                    // The next line, of whatever thread, reports this one.
                    LOG_LINES_LOST.add(1);
                    lost.lines += 1;
                    lost.torn |= rest.len() < all.len();
                    return;
                }
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
            }
        }

        *lost = Lost::default();
    }
}

#[cfg(test)]
mod tests;
