//! Starts the daemon's own log, on standard error.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use super::output::{json_plain, plain};
use crate::config::{LogConfig, LogFormat};

/// From here on, what the program says about itself is printed. A second call changes nothing.
pub(super) fn start(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(&config.level);
    let form = |form| move || OneLine { form, to: io::stderr() };
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    // An error means that a log has been started already.
    let _ = match config.format {
        LogFormat::Json => log.with_writer(form(LineForm::Json)).json().flatten_event(true).try_init(),
        LogFormat::Text => log.with_writer(form(LineForm::Text)).with_ansi(false).try_init(),
        LogFormat::Auto => {
            let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let colour = io::stderr().is_terminal() && colour;
            let log = log.with_writer(form(if colour { LineForm::Coloured } else { LineForm::Text }));
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

/// What a log line is made of.
#[derive(Clone, Copy)]
enum LineForm {
    Text,
    /// Text with the colours of `tracing-subscriber`.
    Coloured,
    Json,
}

/// Writes each event as one line without invisible characters: values in it come from minions and from whoever fires events.
///
/// `tracing-subscriber` writes an event with one call, its line end included.
struct OneLine<W> {
    form: LineForm,
    to: W,
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
const STYLES: [&str; 11] =
    ["[0m", "[1m", "[2m", "[3m", "[4m", "[31m", "[32m", "[33m", "[34m", "[35m", "[36m"];

/// As [`plain`], but styles stay. It does not escape those in values, so a value may be coloured, and nothing else.
fn coloured(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut shown = plain(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let style = STYLES.iter().find(|style| part.starts_with(**style)).copied().unwrap_or_default();
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
        self.to.write_all(format!("{}\n", self.shown(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log of one warning whose values try to be more than that.
    fn logged(form: LineForm) -> String {
        let kept = Kept::default();
        let to = kept.clone();
        let log = tracing_subscriber::fmt().with_writer(move || OneLine { form, to: to.clone() });
        let tag = "evil\n2026-11-22T00:00:00Z  INFO forged\r\x1b[2J\u{202e}\u{200b}";
        let warn = || tracing::warn!(%tag, minion = tag, "an event of {tag}");
        match form {
            LineForm::Json => tracing::subscriber::with_default(log.json().finish(), warn),
            LineForm::Text => tracing::subscriber::with_default(log.with_ansi(false).finish(), warn),
            LineForm::Coloured => tracing::subscriber::with_default(log.with_ansi(true).finish(), warn),
        }
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_newline_in_a_tag_cannot_forge_a_log_line() {
        for form in [LineForm::Text, LineForm::Coloured, LineForm::Json] {
            let log = logged(form);
            assert_eq!(log.lines().count(), 1, "{log}");
            assert!(log.ends_with('\n') && log.contains("forged"), "{log}");
            assert!(!log.contains(['\r', '\u{202e}', '\u{200b}']) && !log.contains("\x1b[2J"), "{log}");
        }
        let json: serde_json::Value = serde_json::from_str(&logged(LineForm::Json)).unwrap();
        assert!(json["fields"]["tag"].as_str().unwrap().starts_with("evil\n2026"));
    }
}
