//! Framing: whether a destination takes a line break for the end of an item.
//!
//! # Invariant
//!
//! No value of an event makes two records of one item. Where lines separate items, `\n` and `\r` of
//! a value are written as these two characters, a backslash and a letter; items of the encoders
//! that write JSON have none.

/// The way in which a destination finds the end of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A message: it has a length, or is alone in its request.
    Message,
    /// A line. The item is one, whatever its template has.
    Line,
    /// A line break, but an item of a template may have several lines of its own, as in a bulk
    /// request. Only its values have none.
    Lines,
}

impl Framing {
    /// The framing of items with this string between them.
    pub(crate) fn of_separators<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let breaks = texts.into_iter().any(|text| has_break(text.as_bytes()));
        if breaks { Self::Lines } else { Self::Message }
    }

    /// The item as it is written.
    pub(crate) fn item(self, bytes: Vec<u8>) -> Vec<u8> {
        if self == Self::Line && has_break(&bytes) {
            escaped(&bytes)
        } else {
            bytes
        }
    }
}

pub(crate) fn has_break(bytes: &[u8]) -> bool {
    memchr::memchr2(b'\n', b'\r', bytes).is_some()
}

/// The bytes as one line.
pub(crate) fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(bytes.len() + 8);
    for byte in bytes {
        match byte {
            b'\n' => line.extend_from_slice(br"\n"),
            b'\r' => line.extend_from_slice(br"\r"),
            other => line.push(*other),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_one_line_only_where_lines_separate_items() {
        let check = |framing: Framing, expected: &[u8]| {
            assert_eq!(framing.item(b"a\r\nb".to_vec()), expected, "{framing:?}");
        };
        check(Framing::Line, br"a\r\nb");
        check(Framing::Lines, b"a\r\nb");
        check(Framing::Message, b"a\r\nb");
        assert_eq!(Framing::Line.item(b"a b".to_vec()), b"a b");
        assert_eq!(Framing::of_separators(["[", ",", "]"]), Framing::Message);
        assert_eq!(Framing::of_separators(["", "\n", ""]), Framing::Lines);
    }
}
