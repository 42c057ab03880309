//! Text of minions that cannot be taken for a part of the output.

use crate::base::visible::plain;

/// Escapes control and invisible characters, and line ends. Tabs remain, and an escape character is
/// `?`, as in Salt.
pub(super) fn line(text: &str) -> String {
    clean(text).replace('\n', "\\n")
}

/// Like [`line()`], but keeps line ends and indents all lines except the first. Otherwise they
/// could forge lines of the outputter, such as the heading of another minion.
pub(super) fn block(text: &str, indent: usize) -> String {
    clean(text).replace('\n', &format!("\n{:indent$}", ""))
}

/// Like [`line()`], but keeps line ends.
pub(super) fn clean(text: &str) -> String {
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
