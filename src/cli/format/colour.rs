//! Colour by result: green is well, yellow wants a look, red has failed.
//!
//! # Invariant
//!
//! Whether anything is coloured, and which word has which colour, is decided here and nowhere else.
//! Strings are escaped before colour is added, and an escape sequence in data has no effect.

use std::cell::Cell;

use super::width::{prefix, width_of};
use crate::base::visible::plain;

/// The values of `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Choice {
    Auto,
    Always,
    Never,
}

thread_local! {
    /// `--color`. A verb prints on the thread that read its command line, and tests run several.
    static CHOICE: Cell<Choice> = const { Cell::new(Choice::Auto) };
}

/// Sets `--color` for the verb of this thread.
pub(in crate::cli) fn choose(choice: Choice) {
    CHOICE.set(choice);
}

/// Whether text is coloured. Without a choice it is on a terminal that knows colours, unless
/// `NO_COLOR` is set.
pub(in crate::cli) fn is_on(is_terminal: bool) -> bool {
    match CHOICE.get() {
        Choice::Always => return true,
        Choice::Never => return false,
        Choice::Auto => {}
    }

    // By the convention of no-color.org, an empty value counts as unset.
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_unwanted && !is_dumb
}

/// What a string says of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::cli) enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// A heading.
    Title,
    Good,
    /// A change, or something that wants a look.
    Warning,
    Bad,
}

/// First words of results and states that are neither plain nor begin with "not".
const WORDS: &[(Tone, &[&str])] = &[
    (
        Tone::Good,
        &[
            "ok",
            "succeeded",
            "success",
            "open",
            "connected",
            "running",
            "active",
            "idle",
            "delivering",
            "reading",
            "complete",
        ],
    ),
    (
        Tone::Warning,
        &[
            "changed", "none", "would", "warning", "missing", "unknown", "partial", "retrying",
            "waiting", "paused", "behind", "impaired", "shadow", "starting", "opening",
        ],
    ),
    (
        Tone::Bad,
        &[
            "failed",
            "problem",
            "dead",
            "unreadable",
            "inactive",
            "refusing",
            "gone",
            "not",
        ],
    ),
];

impl Tone {
    /// The tone of the name of a result or a state; more words may follow.
    pub(in crate::cli) fn of_word(text: &str) -> Self {
        let first = text
            .split([' ', ':', ','])
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase();

        WORDS
            .iter()
            .find(|(_, words)| words.contains(&first.as_str()))
            .map_or(Self::Plain, |(tone, _)| *tone)
    }

    /// The tone of a number of failures.
    pub(in crate::cli) fn of_failures(text: &str) -> Self {
        if matches!(text, "" | "0") {
            Self::Plain
        } else {
            Self::Bad
        }
    }

    /// The tone of a number of changes, or of what is still missing.
    pub(in crate::cli) fn of_changes(text: &str) -> Self {
        if matches!(text, "" | "0") {
            Self::Plain
        } else {
            Self::Warning
        }
    }

    /// The tone of a share such as `3/4`, of returned and expected minions.
    pub(in crate::cli) fn of_share(text: &str) -> Self {
        let first = text.split(' ').next().unwrap_or_default();
        match first.split_once('/') {
            Some((returned, expected)) if returned != expected => Self::Warning,
            _ => Self::Plain,
        }
    }

    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Title => Some("1"),
            Self::Good => Some("32"),
            Self::Warning => Some("33"),
            Self::Bad => Some("31"),
        }
    }
}

/// A line of text in pieces, each with its tone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::cli) struct Line {
    pieces: Vec<(Tone, String)>,
}

impl Line {
    /// A line in one tone.
    pub(in crate::cli) fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self::default().and(tone, text)
    }

    /// The line with one more piece.
    #[must_use]
    pub(in crate::cli) fn and(mut self, tone: Tone, text: impl Into<String>) -> Self {
        let text = text.into();
        // An empty piece would add codes around nothing.
        if !text.is_empty() {
            self.pieces.push((tone, text));
        }
        self
    }

    /// The line followed by another one.
    pub(in crate::cli) fn joined(mut self, other: Self) -> Self {
        self.pieces.extend(other.pieces);
        self
    }

    /// Its pieces, escaped.
    pub(in crate::cli) fn pieces(&self) -> impl Iterator<Item = (Tone, String)> {
        self.pieces
            .iter()
            .map(|(tone, text)| (*tone, plain(text).into_owned()))
    }

    /// The line without tones, escaped.
    pub(in crate::cli) fn text(&self) -> String {
        self.pieces().map(|(_, text)| text).collect()
    }

    /// The line for a terminal, with colours if they are on.
    pub(in crate::cli) fn painted(&self, is_on: bool) -> String {
        let paint = |(tone, text): (Tone, String)| match tone.code().filter(|_| is_on) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text,
        };
        self.pieces().map(paint).collect()
    }

    /// The line without spaces at its end.
    pub(in crate::cli) fn trimmed(mut self) -> Self {
        while let Some((_, text)) = self.pieces.last_mut() {
            text.truncate(text.trim_end().len());
            if !text.is_empty() {
                break;
            }
            self.pieces.pop();
        }
        self
    }

    /// As much of the line as fits into `width` columns.
    pub(in crate::cli) fn cut(&self, width: usize) -> Self {
        let mut left = width;
        let mut cut = Self::default();
        for (tone, text) in self.pieces() {
            let fits: String = prefix(text.chars(), left, usize::MAX).into_iter().collect();
            left -= width_of(&fits);
            let is_whole = fits.len() == text.len();
            cut = cut.and(tone, fits);
            if !is_whole {
                break;
            }
        }
        cut
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Self::new(Tone::Plain, text)
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self::new(Tone::Plain, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_tones() {
        for (text, tone) in [
            ("ok", Tone::Good),
            ("ok 3h", Tone::Good),
            ("failed 2d: 5 states", Tone::Bad),
            ("PROBLEM", Tone::Bad),
            ("not connected", Tone::Bad),
            ("changed", Tone::Warning),
            ("retrying", Tone::Warning),
            ("oktober", Tone::Plain),
            ("", Tone::Plain),
        ] {
            assert_eq!(Tone::of_word(text), tone, "{text}");
        }
        for (text, tone) in [
            ("3/4", Tone::Warning),
            ("4/4", Tone::Plain),
            ("4/4 (1 unknown)", Tone::Plain),
            ("3", Tone::Plain),
        ] {
            assert_eq!(Tone::of_share(text), tone, "{text}");
        }
        assert_eq!(Tone::of_failures("0"), Tone::Plain);
        assert_eq!(Tone::of_failures("37"), Tone::Bad);
    }

    #[test]
    fn an_escape_in_data_stays_text_in_colour() {
        let line = Line::from("web1\x1b[32m ").and(Tone::Bad, "failed\x1b[0m\u{202e}");
        assert_eq!(
            line.painted(true),
            "web1\\x1b[32m \x1b[31mfailed\\x1b[0m\\u{202e}\x1b[0m"
        );
        assert_eq!(line.painted(false), "web1\\x1b[32m failed\\x1b[0m\\u{202e}");
    }

    #[test]
    fn a_line_is_cut_by_its_width() {
        let line = Line::from("a\u{6771}").and(Tone::Good, "\u{4eac}b  ");
        for (width, text) in [
            (0, ""),
            (1, "a"),
            (2, "a"),
            (4, "a\u{6771}"),
            (5, "a\u{6771}\u{4eac}"),
            (9, "a\u{6771}\u{4eac}b  "),
        ] {
            assert_eq!(line.cut(width).text(), text, "{width}");
        }
        assert_eq!(line.trimmed().text(), "a\u{6771}\u{4eac}b");
    }
}
