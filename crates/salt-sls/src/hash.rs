//! Hashes by name, for `hashutil` in templates.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256, Sha512};

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
            let _ = write!(out, "{b:02x}");
            out
        })
}

/// A hash by its name; `None` for an unknown one.
pub(crate) fn by_name(name: &str, bytes: &[u8]) -> Option<String> {
    Some(match name {
        "md5" => hex(&md5::compute(bytes).0),
        "sha256" => hex(&Sha256::digest(bytes)),
        "sha512" => hex(&Sha512::digest(bytes)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_equal_known_values() {
        let check = |name, text: &str, expected| {
            assert_eq!(super::by_name(name, text.as_bytes()).as_deref(), expected);
        };
        check("md5", "", Some("d41d8cd98f00b204e9800998ecf8427e"));
        check(
            "md5",
            &"a".repeat(120),
            Some("5f61c0ccad4cac44c75ff505e1f1e537"),
        );
        check(
            "sha256",
            "abc",
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        );
        check("crc", "abc", None);
    }
}
