//! Base 64 as Python decodes it.

/// `base64.b64decode`: other characters are ignored. Errors have Python's messages.
pub(crate) fn decode(text: impl IntoIterator<Item = u8>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let (mut digits, mut left, mut pads) = (0_usize, 0_u8, 0_usize);
    for byte in text {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' if digits % 4 >= 2 => {
                pads += 1;

                // Complete padding ends the data; Python ignores what follows.
                if digits % 4 + pads >= 4 {
                    return Ok(bytes);
                }
                continue;
            }
            // Python ignores all other characters.
            _ => continue,
        };

        pads = 0;
        match digits % 4 {
            0 => left = digit,
            1 => {
                bytes.push(left << 2 | digit >> 4);
                left = digit & 0x0f;
            }
            2 => {
                bytes.push(left << 4 | digit >> 2);
                left = digit & 0x03;
            }
            _ => bytes.push(left << 6 | digit),
        }

        digits += 1;
    }

    // Python's messages, which users look for.
    match digits % 4 {
        0 => Ok(bytes),
        1 => Err(format!(
            "Invalid base64-encoded string: number of data characters ({digits}) cannot be 1 more than a multiple of 4"
        )),
        _ => Err("Incorrect padding".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_read_as_python_reads_it() {
        let check = |text: &str, expected: &[u8]| {
            assert_eq!(decode(text.bytes()).unwrap(), expected, "{text}");
        };
        check("aGk=", b"hi");
        check("a G-k=\n", b"hi");
        check("aGk=aGk=", b"hi");
        check("==aGkh", b"hi!");
        let fails =
            |text: &str, expected: &str| assert_eq!(decode(text.bytes()).unwrap_err(), expected);
        fails("aA=", "Incorrect padding");
        fails(
            "aGkha",
            "Invalid base64-encoded string: number of data characters (5) cannot be 1 more than a multiple of 4",
        );
    }
}
