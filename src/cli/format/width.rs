//! Widths on a terminal: a wide character takes two columns, a combining one none.

use unicode_width::UnicodeWidthChar as _;

/// The columns that a string takes on a terminal.
pub(in crate::cli) fn width_of(text: &str) -> usize {
    text.chars().map(width_of_char).sum()
}

fn width_of_char(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// The first characters that fit into `width` columns, at most `count` of them.
pub(in crate::cli) fn prefix(
    text: impl Iterator<Item = char>,
    width: usize,
    count: usize,
) -> Vec<char> {
    let mut left = width;
    text.take(count)
        .take_while(|c| match left.checked_sub(width_of_char(*c)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
        .collect()
}
