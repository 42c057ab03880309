//! Hashes by name, for `hashutil` in templates.

use std::fmt::Write as _;

use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

/// Hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// A hash by its name; `None` for an unknown one.
pub(in crate::reactor) fn by_name(name: &str, bytes: &[u8]) -> Option<String> {
    Some(match name {
        "md5" => hex(&md5(bytes)),
        "sha1" => hex(digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref()),
        "sha256" => hex(digest::digest(&SHA256, bytes).as_ref()),
        "sha384" => hex(digest::digest(&digest::SHA384, bytes).as_ref()),
        "sha512" => hex(digest::digest(&SHA512, bytes).as_ref()),
        _ => return None,
    })
}

/// MD5, for templates that use it; it has no security purpose.
fn md5(bytes: &[u8]) -> [u8; 16] {
    const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut message = bytes.to_vec();
    message.push(0x80);
    while message.len() % 64 != 56 {
        message.push(0);
    }
    message.extend_from_slice(&(bytes.len() as u64).wrapping_mul(8).to_le_bytes());
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for chunk in message.chunks_exact(64) {
        let words: Vec<u32> = chunk
            .chunks_exact(4)
            .map(|word| word.iter().rev().fold(0, |word, b| word << 8 | u32::from(*b)))
            .collect();
        let [mut a, mut b, mut c, mut d] = state;
        for i in 0..64_usize {
            let (mix, word) = match i / 16 {
                0 => ((b & c) | (!b & d), i),
                1 => ((d & b) | (!d & c), (5 * i + 1) % 16),
                2 => (b ^ c ^ d, (3 * i + 5) % 16),
                _ => (c ^ (b | !d), (7 * i) % 16),
            };
            let shift = SHIFTS.get(i / 16).and_then(|row| row.get(i % 4)).copied().unwrap_or(0);
            let word = words.get(word).copied().unwrap_or(0);
            let sum = a.wrapping_add(mix).wrapping_add(sine(i)).wrapping_add(word);
            (a, d, c, b) = (d, c, b, b.wrapping_add(sum.rotate_left(shift)));
        }
        for (part, new) in state.iter_mut().zip([a, b, c, d]) {
            *part = part.wrapping_add(new);
        }
    }
    let mut out = [0; 16];
    for (place, byte) in out.iter_mut().zip(state.iter().flat_map(|part| part.to_le_bytes())) {
        *place = byte;
    }
    out
}

/// The constants of MD5: the sine's first 32 bits.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^32 and positive")]
fn sine(i: usize) -> u32 {
    (((i + 1) as f64).sin().abs() * 4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_equal_known_values() {
        let check = |name, text: &str, expected| {
            assert_eq!(super::by_name(name, text.as_bytes()).as_deref(), expected);
        };
        check("md5", "", Some("d41d8cd98f00b204e9800998ecf8427e"));
        check("md5", &"a".repeat(120), Some("5f61c0ccad4cac44c75ff505e1f1e537"));
        check("sha1", "abc", Some("a9993e364706816aba3e25717850c26c9cd0d89d"));
        check("crc", "abc", None);
    }
}
