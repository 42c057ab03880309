//! Types of plain scalars by PyYAML's patterns, and parsing of numbers.

use num_bigint::BigInt;

use crate::limits::INTEGER_DIGITS_MAX;
use crate::value::Value;

/// The resolved tag of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Null,
    Bool,
    Int,
    Float,
    /// A date or time: a string in Salt.
    Timestamp,
    Str,
    /// `<<`, as a key
    Merge,
    /// `=`
    Value,
    Binary,
    Unicode,
    Seq,
    Pairs,
    Map,
    Omap,
    Set,
    /// An unknown tag: its index in `Nodes::unknown`.
    Other(u32),
}

/// The tag of a plain scalar; `None` where PyYAML resolves a tag without constructor.
pub(super) fn resolve(text: &str) -> Option<Tag> {
    // `$` in the patterns also matches before a final line feed.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let Some(first) = text.bytes().next() else {
        return Some(Tag::Null);
    };

    Some(match first {
        b'0'..=b'9' | b'-' | b'+' | b'.' => number(text),
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' => match text {
            "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "true" | "True" | "TRUE" | "false"
            | "False" | "FALSE" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => Tag::Bool,
            "null" | "Null" | "NULL" => Tag::Null,
            _ => Tag::Str,
        },
        b'~' if text.len() == 1 => Tag::Null,
        b'<' if text == "<<" => Tag::Merge,
        b'=' if text.len() == 1 => Tag::Value,
        b'!' | b'&' | b'*' if text.len() == 1 => return None,
        _ => Tag::Str,
    })
}

/// Timestamps are strings and need no check.
fn number(text: &str) -> Tag {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if is_int(unsigned) {
        Tag::Int
    } else if is_float(text, unsigned) {
        Tag::Float
    } else {
        Tag::Str
    }
}

fn is_int(text: &str) -> bool {
    let all = |digits: &str, is: fn(u8) -> bool| {
        !digits.is_empty() && digits.bytes().all(|byte| byte == b'_' || is(byte))
    };

    // Decimal, or parts in base 60.
    let Some(rest) = text.strip_prefix('0') else {
        let (head, sixties) = text.split_once(':').unwrap_or((text, ""));
        return head
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit())
            && all(head, |byte| byte.is_ascii_digit())
            && (head.len() == text.len() || sixties.split(':').all(is_sixty));
    };

    match rest.bytes().next() {
        None => true,
        Some(b'b') => all(rest.get(1..).unwrap_or_default(), |byte| {
            matches!(byte, b'0' | b'1')
        }),
        Some(b'x') => all(rest.get(1..).unwrap_or_default(), |byte| {
            byte.is_ascii_hexdigit()
        }),
        // Octal. Other digits make it a string.
        _ => all(rest, |byte| matches!(byte, b'0'..=b'7')),
    }
}

/// `0` to `59`, with or without a leading zero.
fn is_sixty(text: &str) -> bool {
    match text.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => matches!(ten, b'0'..=b'5') && one.is_ascii_digit(),
        _ => false,
    }
}

fn is_float(text: &str, unsigned: &str) -> bool {
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }

    let digits = |digits: &str| {
        digits
            .bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_digit())
    };
    let begins = |digits: &str| {
        digits
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit())
    };

    let Some((whole, rest)) = unsigned.split_once('.') else {
        return false;
    };

    if let Some((head, sixties)) = whole.split_once(':') {
        return begins(head) && digits(head) && sixties.split(':').all(is_sixty) && digits(rest);
    }

    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..)),
        None => (rest, None),
    };

    // PyYAML requires a sign in an exponent.
    let exponent_fits = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });

    let whole_fits = if whole.is_empty() {
        // A bare point has no sign.
        text.len() == unsigned.len() && begins(fraction)
    } else {
        begins(whole) && digits(whole)
    };

    whole_fits && digits(fraction) && exponent_fits
}

/// An integer as in PyYAML, after Salt's removal of leading zeros.
pub(super) fn int(text: &str) -> Result<Value, String> {
    let plain = text.replace('_', "");
    let digits = plain.strip_prefix(['-', '+']).unwrap_or(&plain);

    // Nearly all integers have neither a base nor a leading zero.
    if let (false, Ok(small)) = (digits.starts_with('0'), plain.parse()) {
        return Ok(Value::Int(small));
    }

    let value = if let Some(digits) = digits.strip_prefix("0b") {
        number_of(digits, 2)
    } else if let Some(digits) = digits.strip_prefix("0x") {
        number_of(digits, 16)
    } else if digits.starts_with('0') {
        number_of(digits, 8)
    } else {
        sixties(digits)
    };

    let value = value.ok_or_else(|| format!("invalid integer {text:?}"))?;
    let value = if plain.starts_with('-') {
        -value
    } else {
        value
    };

    Ok(i64::try_from(&value).map_or_else(|_| Value::BigInt(value.to_string()), Value::Int))
}

/// A number as in `int()`: with blanks around it and a second sign, which are possible with an explicit `!!int` only.
fn number_of(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim();
    if text.len() > INTEGER_DIGITS_MAX {
        None
    } else {
        BigInt::parse_bytes(text.as_bytes(), base)
    }
}

/// A decimal number, or several in base 60.
fn sixties(text: &str) -> Option<BigInt> {
    text.split(':').try_fold(BigInt::ZERO, |whole, part| {
        let whole: BigInt = whole * 60 + number_of(part, 10)?;
        // About twice the digits of a single number.
        (whole.bits() <= 7 * INTEGER_DIGITS_MAX as u64).then_some(whole)
    })
}

/// A float as in PyYAML.
pub(super) fn float(text: &str) -> Result<f64, String> {
    let lower = text.replace('_', "").to_ascii_lowercase();
    let sign = if lower.starts_with('-') { -1.0 } else { 1.0 };
    let number = lower.strip_prefix(['-', '+']).unwrap_or(&lower);

    let parse = |text: &str| {
        text.trim()
            .parse::<f64>()
            .map_err(|_| format!("could not convert string to float: {text:?}"))
    };

    Ok(sign
        * match number {
            ".inf" => f64::INFINITY,
            ".nan" => f64::NAN,
            sixties if sixties.contains(':') => {
                // From the right, in PyYAML's order, because sums of floats depend on it.
                let mut value = 0.0;
                let mut base = 1_u128;
                for part in sixties.rsplit(':') {
                    value += parse(part)? * base as f64;
                    base = base
                        .checked_mul(60)
                        .ok_or("int too large to convert to float")?;
                }
                value
            }
            number => parse(number)?,
        })
}
