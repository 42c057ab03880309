//! Text broken into lines at its words.

use super::width::{prefix, width_of};

/// What happens to a word that is wider than a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum LongWords {
    /// It is cut into pieces: no line is wider than allowed.
    Cut,
    /// It stays whole, and can be copied.
    Keep,
}

/// Breaks a string into lines of at most `width` columns. A command in backquotes is one word if it
/// fits into a line, which makes it easy to copy.
pub(in crate::cli) fn wrapped(text: &str, width: usize, long: LongWords) -> Vec<String> {
    wrapped_after(0, text, width, long)
}

/// Same as [`wrapped`], if other text takes this many columns of the first line.
pub(in crate::cli) fn wrapped_after(
    taken: usize,
    text: &str,
    width: usize,
    long: LongWords,
) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;

    for word in words(text, width) {
        let mut rest = word;
        let mut is_first = true;

        // A word without an end in sight is cut into pieces.
        loop {
            let piece = match long {
                LongWords::Cut if width_of(rest) > width => {
                    let piece = prefix(rest.chars(), width, usize::MAX);
                    let bytes = piece.iter().map(|c| c.len_utf8()).sum::<usize>();
                    // A wide character in a narrower line: it stays whole.
                    let bytes = bytes.max(rest.chars().next().map_or(0, char::len_utf8));
                    rest.get(..bytes).unwrap_or(rest)
                }
                LongWords::Cut | LongWords::Keep => rest,
            };
            let piece_width = width_of(piece);
            let taken = if lines.len() == 1 { taken } else { 0 };
            let room = width.saturating_sub(taken);

            match lines.last_mut() {
                Some(last) if is_first && used > 0 && used + 1 + piece_width <= room => {
                    last.push(' ');
                    last.push_str(piece);
                    used += 1 + piece_width;
                }
                Some(last) if used == 0 && (taken == 0 || piece_width <= room) => {
                    piece.clone_into(last);
                    used = piece_width;
                }
                _ => {
                    lines.push(piece.to_owned());
                    used = piece_width;
                }
            }

            is_first = false;
            rest = rest.get(piece.len()..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
        }
    }

    lines
}

/// The words of a string: what stands between spaces, or between backquotes if it fits into `width`.
fn words(text: &str, width: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;

    while !rest.is_empty() {
        let space = rest.find(' ').unwrap_or(rest.len());

        // A quotation ends with the word in which its second backquote is.
        let quoted = rest
            .find('`')
            .filter(|open| *open < space)
            .and_then(|open| Some(open + 1 + rest.get(open + 1..)?.find('`')?))
            .and_then(|close| {
                Some(close + rest.get(close..)?.find(' ').unwrap_or(rest.len() - close))
            })
            .filter(|end| rest.get(..*end).is_some_and(|word| width_of(word) <= width));

        let end = quoted.unwrap_or(space);
        words.push(rest.get(..end).unwrap_or(rest));
        rest = rest.get(end + 1..).unwrap_or_default();
    }

    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_breaks_at_words_and_commands_stay_whole() {
        for (text, width, long, expected) in [
            ("one two three", 8, LongWords::Cut, vec!["one two", "three"]),
            (
                "0123456789ab cd",
                8,
                LongWords::Cut,
                vec!["01234567", "89ab cd"],
            ),
            (
                "0123456789ab cd",
                8,
                LongWords::Keep,
                vec!["0123456789ab", "cd"],
            ),
            (
                "see `a b c` now",
                9,
                LongWords::Keep,
                vec!["see", "`a b c`", "now"],
            ),
            (
                "see `a b c`, now",
                8,
                LongWords::Keep,
                vec!["see", "`a b c`,", "now"],
            ),
            (
                "see `a b c d e`",
                6,
                LongWords::Keep,
                vec!["see `a", "b c d", "e`"],
            ),
            (
                "an open ` quote",
                7,
                LongWords::Keep,
                vec!["an open", "` quote"],
            ),
            (
                "\u{6771}\u{4eac} \u{6771}",
                5,
                LongWords::Cut,
                vec!["\u{6771}\u{4eac}", "\u{6771}"],
            ),
            (
                "\u{6771}\u{4eac}",
                1,
                LongWords::Cut,
                vec!["\u{6771}", "\u{4eac}"],
            ),
            ("", 5, LongWords::Cut, vec![""]),
        ] {
            assert_eq!(wrapped(text, width, long), expected, "{text:?} in {width}");
        }
        let after = |taken| wrapped_after(taken, "one two three", 8, LongWords::Keep);
        assert_eq!(after(4), ["one", "two", "three"]);
        assert_eq!(after(6), ["", "one two", "three"]);
    }
}
