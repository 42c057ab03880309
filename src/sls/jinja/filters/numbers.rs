//! Filters about numbers, bytes and hashes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Filter, flag, int_arg, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{self, Kind, Res, not_native, overflow_error, type_error, value_error};
use crate::sls::jinja::library::hash;
use crate::sls::jinja::methods::text::want_int;
use crate::sls::jinja::syntax::ast::BinOp;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python;
use crate::sls::python::text::{self, is_space};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("int", int),
    ("float", float),
    ("abs", abs),
    ("round", round),
    ("to_bool", to_bool),
    ("to_num", to_num),
    ("str_to_num", to_num),
    ("is_hex", is_hex),
    ("human_to_bytes", human_to_bytes),
    ("md5", md5),
    ("sha1", sha1),
    ("sha256", sha256),
    ("sha512", sha512),
    ("hmac", hmac),
    ("hmac_compute", hmac_compute),
    ("base64_encode", base64_encode),
    ("base64_decode", base64_decode),
    ("uuid", uuid),
    ("random_hash", random_hash),
    ("rand_str", random_hash),
    ("random_str", random_str),
    ("to_bytes", to_bytes),
];

/// `int(text, base)`
pub(crate) fn parse_int(text: &str, base: u32) -> Res<i128> {
    let bad = || value_error(format!("invalid literal for int() with base {base}: '{text}'"));
    if base == 1 || base > 36 {
        return Err(value_error("int() base must be >= 2 and <= 36, or 0"));
    }
    let trimmed = text.trim_matches(is_space);
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let lower = digits.to_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, base) = match prefixed {
        Some((_, of)) => (digits.get(2..).unwrap_or_default(), of),
        None if base == 0 => (digits, 10),
        None => (digits, base),
    };
    // One underscore between digits, or after a prefix.
    let plain = if prefixed.is_some() { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    if plain.is_empty() || plain.starts_with('_') || plain.ends_with('_') || plain.contains("__") {
        return Err(bad());
    }
    let mut number: i128 = 0;
    for c in plain.chars().filter(|c| *c != '_') {
        let digit =
            if c.is_ascii() { c.to_digit(base) } else { text::decimal(c).filter(|digit| *digit < base) };
        let digit = digit.ok_or_else(bad)?;
        number = number
            .checked_mul(i128::from(base))
            .and_then(|number| number.checked_add(i128::from(digit)))
            .ok_or_else(|| not_native("an integer of more than 128 bits"))?;
    }
    Ok(if negative { -number } else { number })
}

/// `float(text)`
pub(crate) fn parse_float(text: &str) -> Res<f64> {
    let bad = || value_error(format!("could not convert string to float: '{text}'"));
    let trimmed = text.trim_matches(is_space);
    let plain: String = trimmed
        .chars()
        .map(|c| text::decimal(c).and_then(|d| char::from_digit(d, 10)).unwrap_or(c))
        .collect();
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(&plain).to_lowercase();
    if ["inf", "infinity", "nan"].contains(&unsigned.as_str()) {
        let f = if unsigned == "nan" { f64::NAN } else { f64::INFINITY };
        return Ok(if plain.starts_with('-') { -f } else { f });
    }
    let bytes = plain.as_bytes();
    for (i, _) in plain.match_indices('_') {
        let digit = |i: Option<usize>| i.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
        if !digit(i.checked_sub(1)) || !digit(Some(i + 1)) {
            return Err(bad());
        }
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(bad());
    }
    plain.replace('_', "").parse().map_err(|_| bad())
}

/// `int(value)`
fn to_int(val: &Val) -> Res<i128> {
    match val {
        Val::Undef(undef) => Err(undef.fail()),
        Val::Float(f) if f.is_nan() => Err(value_error("cannot convert float NaN to integer")),
        Val::Float(f) if f.is_infinite() => Err(overflow_error("cannot convert float infinity to integer")),
        Val::Float(f) => num::trunc(*f).ok_or_else(|| not_native("an integer of more than 128 bits")),
        Val::Str(text) | Val::Markup(text) => parse_int(text, 10),
        Val::Bytes(bytes) => parse_int(&String::from_utf8_lossy(bytes), 10),
        other => other.as_int().ok_or_else(|| {
            type_error(format!(
                "int() argument must be a string, a bytes-like object or a real number, not '{}'",
                other.type_name()
            ))
        }),
    }
}

/// `float(value)`
pub(super) fn to_float(_: &mut Interp<'_>, val: &Val) -> Res<f64> {
    match val {
        Val::Undef(undef) => Err(undef.fail()),
        Val::Str(text) | Val::Markup(text) => parse_float(text),
        Val::Bytes(bytes) => parse_float(&String::from_utf8_lossy(bytes)),
        other => other.as_float().ok_or_else(|| {
            type_error(format!(
                "float() argument must be a string or a real number, not '{}'",
                other.type_name()
            ))
        }),
    }
}

fn int(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [default, base] = args.bind("do_int", ["default", "base"], 0)?;
    let base = int_arg(base.as_ref(), 10)?;
    let whole = match val.as_str() {
        Some(text) => u32::try_from(base)
            .map_err(|_| value_error("int() base must be >= 2 and <= 36, or 0"))
            .and_then(|base| parse_int(text, base)),
        None => to_int(&val),
    };
    match whole {
        Ok(i) => Ok(Val::int(i)),
        Err(error) if error.is_type_or_value() => {
            let again = to_float(interp, &val).and_then(|f| to_int(&Val::Float(f)));
            match again {
                Ok(i) => Ok(Val::int(i)),
                Err(error) if error.is_type_or_value() || error.kind() == Kind::Overflow => {
                    Ok(default.unwrap_or(Val::Int(0)))
                }
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn float(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [default] = args.bind("do_float", ["default"], 0)?;
    match to_float(interp, &val) {
        Ok(f) => Ok(Val::Float(f)),
        Err(error) if error.is_type_or_value() => Ok(default.unwrap_or(Val::Float(0.0))),
        Err(error) => Err(error),
    }
}

fn abs(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("abs")?;
    match &val {
        Val::Undef(undef) => Err(undef.fail()),
        Val::Float(f) => Ok(Val::Float(f.abs())),
        other => match other.as_int() {
            Some(i) => {
                i.checked_abs().map(Val::int).ok_or_else(|| not_native("an integer of more than 128 bits"))
            }
            None => Err(type_error(format!("bad operand type for abs(): '{}'", other.type_name()))),
        },
    }
}

/// `round(value, digits)`: to the even one in the middle.
fn rounded(f: f64, digits: i64) -> f64 {
    if !f.is_finite() || digits > 300 {
        return f;
    }
    if digits >= 0 {
        // By way of the shortest digits that are exactly rounded, as CPython does.
        return format!("{f:.*}", num::size(digits)).parse().unwrap_or(f);
    }
    if digits < -308 {
        return 0.0_f64.copysign(f);
    }
    let power = 10_f64.powi(i32::try_from(-digits).unwrap_or(308));
    (f / power).round_ties_even() * power
}

fn round(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [precision, method] = args.bind("do_round", ["precision", "method"], 0)?;
    let method = text_arg(method, "common")?;
    if !["common", "ceil", "floor"].contains(&&*method) {
        return Err(exc::runtime_error("method must be common, ceil or floor"));
    }
    let precision = precision.unwrap_or(Val::Int(0));
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    if &*method == "common" {
        let digits = int_arg(Some(&precision), 0)?;
        return match &val {
            Val::Float(f) => Ok(Val::Float(rounded(*f, digits))),
            other => match other.as_int() {
                Some(i) if digits >= 0 => Ok(Val::int(i)),
                Some(i) => {
                    let exponent = u32::try_from(digits.saturating_neg()).unwrap_or(u32::MAX);
                    let Some(power) = 10_i128.checked_pow(exponent) else { return Ok(Val::Int(0)) };
                    let (rest, half) = (i.rem_euclid(power), power / 2);
                    let up = rest > half || (rest == half && i.div_euclid(power) % 2 != 0);
                    let low = i.checked_sub(rest);
                    let rounded = low.and_then(|low| low.checked_add(if up { power } else { 0 }));
                    rounded.map(Val::int).ok_or_else(|| not_native("an integer of more than 128 bits"))
                }
                None => {
                    Err(type_error(format!("type {} doesn't define __round__ method", other.type_name())))
                }
            },
        };
    }
    let power = ops::binary(BinOp::Pow, &Val::Int(10), &precision)?;
    let scaled = ops::binary(BinOp::Mul, &val, &power)?;
    let whole = match &scaled {
        Val::Float(f) if f.is_finite() => {
            let f = if &*method == "ceil" { f.ceil() } else { f.floor() };
            Val::int(num::trunc(f).ok_or_else(|| not_native("an integer of more than 128 bits"))?)
        }
        Val::Float(_) => return Err(overflow_error("cannot convert float infinity to integer")),
        other => match other.as_int() {
            Some(i) => Val::int(i),
            None => return Err(type_error(format!("must be real number, not {}", other.type_name()))),
        },
    };
    ops::binary(BinOp::Div, &whole, &power)
}

fn to_bool(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("to_bool")?;
    Ok(Val::Bool(match &val {
        Val::Bool(b) => *b,
        Val::Str(text) | Val::Markup(text) => ["yes", "1", "true"].contains(&text.to_lowercase().as_str()),
        Val::Int(i) => *i > 0,
        Val::Big(i) => **i > 0,
        Val::List(_) | Val::Dict(_) | Val::Set(_) => ops::len(&val)? > 0,
        Val::Object(object) if matches!(&**object, object::Object::View(..)) => ops::len(&val)? > 0,
        _ => false,
    }))
}

fn to_num(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("to_num")?;
    match to_int(&val) {
        Ok(i) => Ok(Val::int(i)),
        Err(error) if error.kind() == Kind::Value => match to_float(interp, &val) {
            Ok(f) => Ok(Val::Float(f)),
            Err(error) if error.kind() == Kind::Value => Ok(val),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn is_hex(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("is_hex")?;
    match &val {
        Val::Str(text) | Val::Markup(text) => match parse_int(text, 16) {
            Err(error) if error.is_type_or_value() => Ok(Val::Bool(false)),
            _ => Ok(Val::Bool(true)),
        },
        Val::Undef(undef) if undef.strict => Ok(Val::Bool(false)),
        _ => Ok(Val::Bool(false)),
    }
}

fn human_to_bytes(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [default_unit, metric] = args.bind("human_to_bytes", ["default_unit", "handle_metric"], 0)?;
    let (default_unit, metric) = (text_arg(default_unit, "B")?, flag(metric.as_ref(), false)?);
    let plain = repr::str(&val)?;
    let plain = plain.trim_matches(is_space);
    let end = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
    let (number, unit) = plain.split_at(end);
    let unit = unit.trim_start_matches(is_space);
    if unit.contains('\n') {
        return Err(type_error("'NoneType' object has no attribute 'group'"));
    }
    let unit = if unit.is_empty() { default_unit.to_lowercase() } else { unit.to_lowercase() };
    let number = match parse_int(number, 10) {
        Ok(i) => Val::int(i),
        Err(_) => match parse_float(number) {
            Ok(f) => Val::Float(f),
            Err(_) => return Ok(Val::Int(0)),
        },
    };
    let powers = "bkmgtpezy";
    let first = unit.chars().next().unwrap_or('b');
    let decimal = unit.len() == 2
        && unit.ends_with('b')
        && powers.get(1..).is_some_and(|powers| powers.contains(first));
    let known = unit == "b"
        || (powers.get(1..).is_some_and(|powers| powers.contains(first))
            && matches!(unit.get(1..), Some("" | "ib")));
    if !decimal && !known {
        return Ok(Val::Int(0));
    }
    let power = num::len(powers.find(first).unwrap_or(0));
    let factor = if decimal && metric {
        ops::binary(BinOp::Pow, &Val::Int(10), &Val::Int(power * 3))?
    } else {
        ops::binary(BinOp::Pow, &Val::Int(2), &Val::Int(power * 10))?
    };
    let product = ops::binary(BinOp::Mul, &number, &factor)?;
    let _ = interp;
    to_int(&product).map(Val::int)
}

/// `salt.utils.stringutils.to_bytes`
pub(super) fn bytes_of(val: &Val) -> Res<Vec<u8>> {
    match val {
        Val::Str(text) | Val::Markup(text) => Ok(text.as_bytes().to_vec()),
        Val::Bytes(bytes) => Ok(bytes.to_vec()),
        other => {
            Err(type_error(format!("expected str, bytes, or bytearray not <class '{}'>", other.type_name())))
        }
    }
}

fn hashed(name: &str, val: &Val, args: Args) -> Res<Val> {
    args.none(name)?;
    hash::by_name(name, &bytes_of(val)?).map(Val::str).ok_or_else(|| not_native(format!("the hash {name}")))
}

fn md5(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    hashed("md5", &val, args)
}

fn sha1(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    hashed("sha1", &val, args)
}

fn sha256(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    hashed("sha256", &val, args)
}

fn sha512(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    hashed("sha512", &val, args)
}

fn hmac(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [secret, challenge] = args.bind("hmac_signature", ["shared_secret", "challenge_hmac"], 2)?;
    let message = bytes_of(&val)?;
    let key = bytes_of(&secret.unwrap_or(Val::None))?;
    let challenge = bytes_of(&challenge.unwrap_or(Val::None))?;
    Ok(Val::Bool(STANDARD.encode(hash::hmac_sha256(&key, &message)).as_bytes() == challenge.as_slice()))
}

fn hmac_compute(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [secret] = args.bind("hmac_compute", ["shared_secret"], 1)?;
    let key = bytes_of(&secret.unwrap_or(Val::None))?;
    Ok(Val::str(hash::hex(&hash::hmac_sha256(&key, &bytes_of(&val)?))))
}

fn base64_encode(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("base64_b64encode")?;
    Ok(Val::str(STANDARD.encode(bytes_of(&val)?)))
}

fn base64_decode(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("base64_b64decode")?;
    Ok(match String::from_utf8(python::base64::decode(bytes_of(&val)?).map_err(value_error)?) {
        Ok(text) => Val::str(text),
        Err(error) => Val::bytes(error.into_bytes()),
    })
}

fn uuid(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("uuid_")?;
    match &val {
        Val::Str(text) | Val::Markup(text) => Ok(Val::str(hash::uuid5(text.as_bytes()))),
        Val::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Val::str(hash::uuid5(text.as_bytes()))),
            Err(_) => Err(value_error("'utf-8' codec can't decode bytes")),
        },
        other => {
            Err(type_error(format!("expected str, bytes, or bytearray not <class '{}'>", other.type_name())))
        }
    }
}

fn random_hash(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [kind] = args.bind("random_hash", ["hash_type"], 0)?;
    let kind = match kind {
        None | Some(Val::None) => text_arg(None, "md5")?,
        other => text_arg(other, "md5")?,
    };
    let size = want_int(&val)?;
    if size < 0 {
        return Err(value_error("empty range for randrange()"));
    }
    let number = hash::random(num::size(size).saturating_add(1))?;
    match hash::by_name(&kind, number.to_string().as_bytes()) {
        Some(hash) => Ok(Val::str(hash)),
        None => Err(not_native(format!("the hash {kind}"))),
    }
}

fn random_str(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("random")?;
    let size = want_int(&val)?;
    if size < 0 {
        return Err(value_error("negative argument not allowed"));
    }
    let size = num::size(size);
    budget::room(size.saturating_mul(3))?;
    let mut text = STANDARD.encode(hash::random_bytes(size)?);
    text.truncate(size);
    Ok(Val::str(text))
}

fn to_bytes(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [encoding, _errors] = args.bind("to_bytes", ["encoding", "errors"], 0)?;
    if encoding.is_some_and(|encoding| {
        encoding.as_str().is_none_or(|name| !["utf-8", "utf8"].contains(&name.to_lowercase().as_str()))
    }) {
        return Err(not_native("to_bytes with another encoding"));
    }
    if matches!(val, Val::None) {
        return Err(type_error("expected str, bytes, or bytearray not <class 'NoneType'>"));
    }
    bytes_of(&val).map(Val::bytes)
}
