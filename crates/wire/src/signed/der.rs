//! The two parts of DER that are needed: the RSA key in a public key, and the expiry of a certificate.
//!
//! The daemon does not validate certificates; peers do. It reads the expiry for a timely
//! warning.

use saltcellar_base::clock::{Micros, digits};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const EXPLICIT_0: u8 = 0xa0;

/// 1.2.840.113549.1.1.1, rsaEncryption.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// Removes one element from the front; returns its tag and content.
fn take<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, after) = rest.split_first()?;
    let (&first, mut after) = after.split_first()?;
    let mut len = usize::from(first);

    if first >= 0x80 {
        let digits = usize::from(first & 0x7f);
        // All elements are below 16 MiB, and DER has no indefinite lengths.
        if digits == 0 || digits > 3 {
            return None;
        }
        let (bytes, later) = after.split_at_checked(digits)?;
        len = bytes
            .iter()
            .fold(0, |len, byte| len << 8 | usize::from(*byte));
        after = later;
    }

    let (content, after) = after.split_at_checked(len)?;
    *rest = after;
    Some((tag, content))
}

/// Removes an element, which must have this tag.
fn expect<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    take(rest)
        .filter(|(found, _)| *found == tag)
        .map(|(_, content)| content)
}

/// The `RSAPublicKey` (PKCS #1) in a `SubjectPublicKeyInfo`, or the input if it already is one; `None` for other kinds
/// of keys.
pub fn rsa_public_key(der: &[u8]) -> Option<&[u8]> {
    let mut inside = expect(&mut &*der, SEQUENCE)?;
    if inside.first() == Some(&INTEGER) {
        return Some(der);
    }
    let mut algorithm = expect(&mut inside, SEQUENCE)?;
    if expect(&mut algorithm, OID)? != RSA {
        return None;
    }
    // The number of unused bits in the last byte is zero.
    expect(&mut inside, BIT_STRING)?.strip_prefix(&[0])
}

/// The expiry of a certificate.
pub fn not_after(certificate: &[u8]) -> Option<Micros> {
    let mut certificate = expect(&mut &*certificate, SEQUENCE)?;
    let mut inside = expect(&mut certificate, SEQUENCE)?;
    if inside.first() == Some(&EXPLICIT_0) {
        // The version, which certificates of version 1 leave out.
        take(&mut inside)?;
    }

    // Serial number, algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        expect(&mut inside, tag)?;
    }

    let mut validity = expect(&mut inside, SEQUENCE)?;
    take(&mut validity)?;
    let (tag, text) = take(&mut validity)?;
    time(tag, text)
}

/// A UTCTime `YYMMDDHHMMSSZ`, or a GeneralizedTime with a four-digit year.
fn time(tag: u8, text: &[u8]) -> Option<Micros> {
    let year_digits = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };

    // DER allows no other zone, and no missing seconds.
    let (year, rest) = text.strip_suffix(b"Z")?.split_at_checked(year_digits)?;
    if rest.len() != 10 {
        return None;
    }

    let year = match digits(year)? {
        year if tag == GENERALIZED_TIME => year,
        // X.509's rule for years of two digits.
        year if year < 50 => 2000 + year,
        year => 1900 + year,
    };

    let field = |at: usize| digits(rest.get(at..at + 2)?);
    Micros::of_utc([
        year,
        field(0)?,
        field(2)?,
        field(4)?,
        field(6)?,
        field(8)?,
        0,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_is_unwrapped() {
        let bare = [SEQUENCE, 6, INTEGER, 1, 5, INTEGER, 1, 3];
        assert_eq!(rsa_public_key(&bare), Some(&bare[..]));
        let mut inside = vec![SEQUENCE, 13, OID, 9];
        inside.extend_from_slice(RSA);
        inside.extend_from_slice(&[5, 0, BIT_STRING, 9, 0]);
        inside.extend_from_slice(&bare);
        let mut wrapped = vec![SEQUENCE, 0x81, u8::try_from(inside.len()).unwrap()];
        wrapped.extend_from_slice(&inside);
        assert_eq!(rsa_public_key(&wrapped), Some(&bare[..]));
        // Another kind of key: one bit of the OID differs.
        wrapped[9] ^= 1;
        assert_eq!(rsa_public_key(&wrapped), None);
        for len in 0..wrapped.len() {
            assert_eq!(rsa_public_key(&wrapped[..len]), None, "cut at {len}");
        }
    }

    #[test]
    fn dates_are_converted_to_seconds_since_1970() {
        let at = |tag, text: &str| time(tag, text.as_bytes()).map(|t| t.0 / 1_000_000);
        assert_eq!(at(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(at(UTC_TIME, "000229235959Z"), Some(951_868_799));
        assert_eq!(at(GENERALIZED_TIME, "20991231235959Z"), Some(4_102_444_799));
        for bad in [
            "",
            "Z",
            "7001010000Z",
            "701301000000Z",
            "700100000000Z",
            "70010100000xZ",
            "700101000000",
        ] {
            assert_eq!(at(UTC_TIME, bad), None, "{bad}");
        }
        assert_eq!(at(INTEGER, "700101000000Z"), None);
    }
}
