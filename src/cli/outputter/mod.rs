//! Salt's own outputters (`salt/output/`): what a return looks like to whoever knows `salt` and `salt-run`.
//!
//! `tests/data/outputters.jsonl` holds returns and what Salt 3008.3 makes of them, and a test compares.
//!
//! # Where this differs
//!
//! - Salt takes escape characters out of some texts; here nothing that moves a cursor or is invisible reaches a terminal (see
//!   [`super::output::plain`]), only tabs and line ends stay.
//! - Line ends in a key are shown as `\n`, and further lines of a state's texts and of errors are indented: no text of a minion
//!   can be taken for the heading of another one.
//! - Salt's `nested` shows nothing for dates and for bytes that are no text. Here they are shown as Python writes them.
//! - Salt breaks long lines of `Warnings:` at hyphens too.

mod highstate;
mod nested;
mod python;

pub(super) use highstate::highstate;
pub(super) use nested::nested;

use super::output::plain;

/// The escape sequences that Salt uses, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Colours {
    on: bool,
}

impl Colours {
    /// Colours, or plain text.
    pub(super) fn new(on: bool) -> Self {
        Self { on }
    }

    fn code(self, code: &'static str) -> &'static str {
        if self.on { code } else { "" }
    }

    fn red(self) -> &'static str {
        self.code("\x1b[0;31m")
    }

    fn light_red(self) -> &'static str {
        self.code("\x1b[0;1;31m")
    }

    fn green(self) -> &'static str {
        self.code("\x1b[0;32m")
    }

    fn light_yellow(self) -> &'static str {
        self.code("\x1b[0;1;33m")
    }

    fn cyan(self) -> &'static str {
        self.code("\x1b[0;36m")
    }

    fn end(self) -> &'static str {
        self.code("\x1b[0;0m")
    }
}

/// Text without what could move a cursor or cannot be seen, in one line; tabs stay, and an escape character is `?`, as in Salt.
fn line(text: &str) -> String {
    clean(text).replace('\n', "\\n")
}

/// As [`line`], in as many lines as the text has. All but the first begin with `indent` spaces: they cannot be taken for
/// lines of the outputter, such as the heading of another minion.
fn block(text: &str, indent: usize) -> String {
    clean(text).replace('\n', &format!("\n{:indent$}", ""))
}

/// As [`line`], but line ends stay.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            '\x1b' => out.push('?'),
            c => out.push_str(&plain(c.encode_utf8(&mut [0; 4]))),
        }
    }
    out
}
