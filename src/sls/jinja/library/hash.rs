//! Hashes, and chance.

use std::fmt::Write as _;

use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::sls::jinja::exc::{Res, other_error};

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// A hash by its name; `None` for one that is not known here.
pub(crate) fn by_name(name: &str, bytes: &[u8]) -> Option<String> {
    Some(match name {
        "md5" => hex(&md5(bytes)),
        "sha1" => hex(digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref()),
        "sha256" => hex(digest::digest(&SHA256, bytes).as_ref()),
        "sha384" => hex(digest::digest(&digest::SHA384, bytes).as_ref()),
        "sha512" => hex(digest::digest(&SHA512, bytes).as_ref()),
        _ => return None,
    })
}

/// HMAC with SHA-256.
pub(crate) fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref().to_vec()
}

/// `uuid.uuid5` in Salt's own namespace.
pub(crate) fn uuid5(name: &[u8]) -> String {
    const NAMESPACE: [u8; 16] =
        [0x91, 0x63, 0x3e, 0xbf, 0x1c, 0x86, 0x5e, 0x33, 0x93, 0x5a, 0x28, 0x06, 0x1f, 0x4b, 0x48, 0x0e];
    let mut message = NAMESPACE.to_vec();
    message.extend_from_slice(name);
    let hash = digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &message);
    let mut bytes: Vec<u8> = hash.as_ref().iter().take(16).copied().collect();
    if let Some(b) = bytes.get_mut(6) {
        *b = *b & 0x0f | 0x50;
    }
    if let Some(b) = bytes.get_mut(8) {
        *b = *b & 0x3f | 0x80;
    }
    let digits = hex(&bytes);
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// Bytes by chance.
pub(crate) fn random_bytes(count: usize) -> Res<Vec<u8>> {
    let mut bytes = vec![0; count];
    SystemRandom::new().fill(&mut bytes).map_err(|_| other_error("no randomness"))?;
    Ok(bytes)
}

/// A number below `bound` by chance.
pub(crate) fn random(bound: usize) -> Res<usize> {
    let bytes = random_bytes(8)?;
    let number = bytes.iter().fold(0_u64, |number, b| number << 8 | u64::from(*b));
    Ok(usize::try_from(number % (bound.max(1) as u64)).unwrap_or(0))
}

/// MD5, for what asks for it; it protects nothing.
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
