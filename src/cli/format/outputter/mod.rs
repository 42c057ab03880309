//! Ports of Salt's own outputters (`salt/output/`).
//!
//! `tests/data/outputters.jsonl` holds returns with the output of Salt 3008.3; a test compares.
//!
//! # Differences
//!
//! - Salt removes escape characters from some texts. Here all control and invisible characters are escaped (see
//!   [`plain`]), except tabs and line ends.
//! - Line ends in a key are shown as `\n`, and further lines of a state's texts and of errors are indented, so that text of
//!   a minion cannot forge the heading of another one.
//! - Salt's `nested` omits dates and binary data. Here they are formatted as by Python.
//! - Salt also breaks long lines of `Warnings:` at hyphens.

mod highstate;
mod nested;
mod python;

pub(in crate::cli) use highstate::highstate;
pub(in crate::cli) use nested::nested;

use crate::base::visible::plain;

/// The escape sequences that Salt uses, or none.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Colours {
    on: bool,
}

impl Colours {
    pub(in crate::cli) fn new(on: bool) -> Self {
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

/// Escapes control and invisible characters, and line ends. Tabs remain, and an escape character is
/// `?`, as in Salt.
fn line(text: &str) -> String {
    clean(text).replace('\n', "\\n")
}

/// Like [`line()`], but keeps line ends and indents all lines except the first, so that they cannot
/// forge lines of the outputter, such as the heading of another minion.
fn block(text: &str, indent: usize) -> String {
    clean(text).replace('\n', &format!("\n{:indent$}", ""))
}

/// Like [`line()`], but keeps line ends.
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
