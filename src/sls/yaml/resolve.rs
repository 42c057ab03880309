//! Types of plain scalars by PyYAML's patterns, and parsing of numbers.

use super::parse::Tag;
use crate::limits::INTEGER_DIGITS_MAX;
use crate::sls::Value;

/// The tag of a plain scalar; `None` where PyYAML resolves a tag without constructor.
pub(super) fn resolve(text: &str) -> Option<Tag> {
    // `$` in the patterns also matches before a final line feed.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let Some(first) = text.bytes().next() else { return Some(Tag::Null) };
    Some(match first {
        b'0'..=b'9' | b'-' | b'+' | b'.' => number(text),
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' => match text {
            "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "true" | "True" | "TRUE" | "false" | "False"
            | "FALSE" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => Tag::Bool,
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

/// Dates and times are strings and need no check.
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
    let Some(rest) = text.strip_prefix('0') else {
        let (head, sixties) = text.split_once(':').unwrap_or((text, ""));
        return head.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
            && all(head, |byte| byte.is_ascii_digit())
            && (head.len() == text.len() || sixties.split(':').all(is_sixty));
    };
    match rest.bytes().next() {
        None => true,
        Some(b'b') => all(rest.get(1..).unwrap_or_default(), |byte| matches!(byte, b'0' | b'1')),
        Some(b'x') => all(rest.get(1..).unwrap_or_default(), |byte| byte.is_ascii_hexdigit()),
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
    let digits = |digits: &str| digits.bytes().all(|byte| byte == b'_' || byte.is_ascii_digit());
    let begins = |digits: &str| digits.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let Some((whole, rest)) = unsigned.split_once('.') else { return false };
    if let Some((head, sixties)) = whole.split_once(':') {
        return begins(head) && digits(head) && sixties.split(':').all(is_sixty) && digits(rest);
    }
    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..)),
        None => (rest, None),
    };
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
    let wrong = || format!("invalid integer {text:?}");
    let plain;
    let text = if text.contains('_') {
        plain = text.replace('_', "");
        plain.as_str()
    } else {
        text
    };
    let negative = text.starts_with('-');
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let value = if text == "0" {
        Some((false, Big::default()))
    } else if let Some(digits) = text.strip_prefix("0b") {
        signed(digits, 2)
    } else if let Some(digits) = text.strip_prefix("0x") {
        signed(digits, 16)
    } else if text.starts_with('0') {
        signed(text, 8)
    } else if text.contains(':') {
        sixties(text)
    } else {
        signed(text, 10)
    };
    value.map(|(minus, value)| value.finish(minus != negative)).ok_or_else(wrong)
}

/// A number as in `int()`: with blanks around it and a second sign, which are possible with an explicit `!!int` only.
fn signed(text: &str, base: u32) -> Option<(bool, Big)> {
    let text = text.trim();
    Some((text.starts_with('-'), Big::read(text.strip_prefix(['-', '+']).unwrap_or(text), base)?))
}

fn sixties(text: &str) -> Option<(bool, Big)> {
    if text.contains(['-', '+']) {
        let part = |text: &str| text.trim().parse::<i64>().ok();
        let whole =
            text.split(':').try_fold(0_i64, |whole, text| whole.checked_mul(60)?.checked_add(part(text)?))?;
        return Some((whole < 0, Big::read(&whole.unsigned_abs().to_string(), 10)?));
    }
    let mut value = Big::default();
    for part in text.split(':') {
        let part = Big::read(part.trim(), 10)?;
        value.shift(60, 0)?;
        value.add(&part)?;
    }
    Some((false, value))
}

/// A float as in PyYAML.
pub(super) fn float(text: &str) -> Result<f64, String> {
    let lower = text.replace('_', "").to_ascii_lowercase();
    let sign = if lower.starts_with('-') { -1.0 } else { 1.0 };
    let number = lower.strip_prefix(['-', '+']).unwrap_or(&lower);
    let parse = |text: &str| {
        text.trim().parse::<f64>().map_err(|_| format!("could not convert string to float: {text:?}"))
    };
    Ok(sign
        * match number {
            ".inf" => f64::INFINITY,
            ".nan" => f64::NAN,
            sixties if sixties.contains(':') => {
                let mut value = 0.0;
                let mut base = 1_u128;
                for part in sixties.rsplit(':') {
                    value += parse(part)? * base as f64;
                    base = base.checked_mul(60).ok_or("int too large to convert to float")?;
                }
                value
            }
            number => parse(number)?,
        })
}

/// A natural number of any size: limbs of nine digits, lowest first.
#[derive(Default)]
struct Big {
    limbs: Vec<u32>,
}

const LIMB: u64 = 1_000_000_000;

impl Big {
    fn read(text: &str, base: u32) -> Option<Self> {
        if text.is_empty() || text.len() > INTEGER_DIGITS_MAX {
            return None;
        }
        let mut value = Self::default();
        let (mut factor, mut sum) = (1_u32, 0_u32);
        for c in text.chars() {
            sum = sum * base + c.to_digit(base)?;
            factor *= base;
            if factor > 50_000_000 {
                value.shift(factor, sum)?;
                (factor, sum) = (1, 0);
            }
        }
        value.shift(factor, sum)?;
        Some(value)
    }

    /// Multiplies by `factor` and adds `sum`.
    fn shift(&mut self, factor: u32, sum: u32) -> Option<()> {
        let mut carry = u64::from(sum);
        for limb in &mut self.limbs {
            carry += u64::from(*limb) * u64::from(factor);
            *limb = u32::try_from(carry % LIMB).ok()?;
            carry /= LIMB;
        }
        while carry > 0 {
            self.limbs.push(u32::try_from(carry % LIMB).ok()?);
            carry /= LIMB;
        }
        (self.limbs.len() * 9 <= 2 * INTEGER_DIGITS_MAX).then_some(())
    }

    fn add(&mut self, other: &Self) -> Option<()> {
        let mut carry = 0;
        for at in 0..self.limbs.len().max(other.limbs.len()) {
            if at == self.limbs.len() {
                self.limbs.push(0);
            }
            carry += u64::from(other.limbs.get(at).copied().unwrap_or(0));
            if let Some(limb) = self.limbs.get_mut(at) {
                carry += u64::from(*limb);
                *limb = u32::try_from(carry % LIMB).ok()?;
                carry /= LIMB;
            }
        }
        if carry > 0 {
            self.limbs.push(u32::try_from(carry).ok()?);
        }
        Some(())
    }

    fn finish(self, negative: bool) -> Value {
        let mut small = Some(0_i64);
        for limb in self.limbs.iter().rev() {
            let limb = if negative { -i64::from(*limb) } else { i64::from(*limb) };
            small = small.and_then(|n| n.checked_mul(1_000_000_000)).and_then(|n| n.checked_add(limb));
        }
        if let Some(small) = small {
            return Value::Int(small);
        }
        let mut digits = String::with_capacity(self.limbs.len() * 9 + 1);
        if negative {
            digits.push('-');
        }
        let mut limbs = self.limbs.iter().rev().skip_while(|limb| **limb == 0);
        digits.extend(limbs.next().map(u32::to_string));
        digits.extend(limbs.map(|limb| format!("{limb:09}")));
        Value::BigInt(digits)
    }
}
