//! The methods of numbers and bytes.

use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::exc::{Res, not_native, type_error, value_error};
use crate::sls::jinja::library::hash;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::val::Val;

pub(crate) fn number(val: &Val, name: &str, args: Args) -> Res<Val> {
    if matches!(name, "to_bytes" | "from_bytes" | "fromhex" | "hex" | "as_integer_ratio") {
        return Err(not_native(format!("{}.{name}()", val.type_name())));
    }
    args.none(name)?;
    Ok(match (val, name) {
        (Val::Float(f), "is_integer") => Val::Bool(f.is_finite() && f.fract() == 0.0),
        (Val::Float(_), _) => val.clone(),
        (_, "bit_length") => Val::len(
            val.as_int()
                .map_or(0, |i| (u128::BITS - i.unsigned_abs().leading_zeros()).try_into().unwrap_or(0)),
        ),
        (_, "bit_count") => {
            Val::len(val.as_int().map_or(0, |i| i.unsigned_abs().count_ones().try_into().unwrap_or(0)))
        }
        _ => ops::sign(val, false)?,
    })
}

/// A value that must be bytes.
fn want_bytes(val: Option<&Val>) -> Res<&[u8]> {
    match val {
        Some(Val::Bytes(bytes)) => Ok(bytes),
        other => Err(type_error(format!(
            "a bytes-like object is required, not '{}'",
            other.map_or("NoneType", Val::type_name)
        ))),
    }
}

pub(crate) fn bytes(bytes: &[u8], name: &str, args: Args) -> Res<Val> {
    match name {
        "decode" => {
            let [encoding, errors] = args.bind(name, ["encoding", "errors"], 0)?;
            let encoding = encoding
                .as_ref()
                .and_then(Val::as_str)
                .unwrap_or("utf-8")
                .to_lowercase()
                .replace(['-', '_'], "");
            let errors = errors.as_ref().and_then(Val::as_str).unwrap_or("strict");
            match (encoding.as_str(), errors) {
                ("utf8", "strict") => match std::str::from_utf8(bytes) {
                    Ok(text) => Ok(Val::from(text)),
                    Err(error) => Err(value_error(format!(
                        "'utf-8' codec can't decode byte at position {}",
                        error.valid_up_to()
                    ))),
                },
                ("utf8", "replace") => Ok(Val::str(String::from_utf8_lossy(bytes).into_owned())),
                ("ascii", "strict") if bytes.is_ascii() => {
                    Ok(Val::str(String::from_utf8_lossy(bytes).into_owned()))
                }
                ("ascii", "strict") => {
                    Err(value_error("'ascii' codec can't decode a byte: ordinal not in range(128)"))
                }
                ("latin1" | "iso88591", _) => {
                    Ok(Val::str(bytes.iter().map(|b| char::from(*b)).collect::<String>()))
                }
                _ => Err(not_native(format!("bytes.decode({encoding}, {errors})"))),
            }
        }
        "hex" if args.pos.is_empty() && args.kw.is_empty() => Ok(Val::str(hash::hex(bytes))),
        "startswith" | "endswith" => {
            let [affix] = args.positional(name, 1)?;
            let affix = want_bytes(affix.as_ref())?;
            Ok(Val::Bool(if name == "startswith" {
                bytes.starts_with(affix)
            } else {
                bytes.ends_with(affix)
            }))
        }
        "lower" | "upper" => {
            args.none(name)?;
            Ok(Val::bytes(if name == "lower" {
                bytes.to_ascii_lowercase()
            } else {
                bytes.to_ascii_uppercase()
            }))
        }
        "strip" | "lstrip" | "rstrip" if args.pos.is_empty() => {
            args.none(name)?;
            let is_space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
            let mut part = bytes;
            while name != "rstrip" && part.first().is_some_and(is_space) {
                part = part.get(1..).unwrap_or_default();
            }
            while name != "lstrip" && part.last().is_some_and(is_space) {
                part = part.get(..part.len() - 1).unwrap_or_default();
            }
            Ok(Val::bytes(part.to_vec()))
        }
        "find" | "count" => {
            let [part] = args.positional(name, 1)?;
            let part = want_bytes(part.as_ref())?;
            if part.is_empty() {
                return Ok(if name == "find" { Val::Int(0) } else { Val::len(bytes.len() + 1) });
            }
            let mut found = bytes.windows(part.len()).enumerate().filter(|(_, window)| *window == part);
            if name == "find" {
                return Ok(Val::Int(found.next().map_or(-1, |(i, _)| num::len(i))));
            }
            let (mut count, mut free) = (0, 0);
            for (i, _) in found {
                if i >= free {
                    count += 1;
                    free = i + part.len();
                }
            }
            Ok(Val::Int(count))
        }
        _ => Err(not_native(format!("bytes.{name}()"))),
    }
}
