//! Text from the bytes of a file, with the line of what is no text.

/// The text; the error is the line, from 1, of the first byte that is not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to());
        1 + memchr::memchr_iter(b'\n', before.unwrap_or_default()).count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_with_another_encoding_is_named() {
        for (bytes, expected) in [
            (&b"a\nb"[..], Ok("a\nb")),
            (b"", Ok("")),
            (b"\xfc", Err(1)),
            (b"a\nb\n# M\xfcller\nc\n\xff", Err(3)),
            (b"a\n\xc3", Err(2)),
        ] {
            let found = text_of(bytes.to_vec());
            assert_eq!(found.as_deref().map_err(|line| *line), expected);
        }
    }
}
