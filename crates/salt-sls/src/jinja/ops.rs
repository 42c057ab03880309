//! Python's operators, lookups and string conversion, for types where their results are certain.

use std::cmp::Ordering;
use std::fmt::Write as _;

use minijinja::Value;

use super::budget;
use super::error::{Res, not_native};
use super::value::{Kind, Obj, View, kind, list, text, tuple};
use crate::limits;
use crate::python;
use crate::value::{Key, Value as Plain};

/// Integers up to here have an equal float.
const EXACT: u64 = 1 << 53;

/// Whether Python's `dict` has an attribute of this name. Attributes of other types are not native.
pub(crate) fn is_attribute(name: &str) -> bool {
    name.starts_with("__")
        || matches!(
            name,
            "clear"
                | "copy"
                | "fromkeys"
                | "get"
                | "items"
                | "keys"
                | "pop"
                | "popitem"
                | "setdefault"
                | "update"
                | "values"
        )
}

/// A float, or an integer that has an equal float.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match kind(value) {
        Kind::Int(i) if i.unsigned_abs() <= EXACT => Some(i as f64),
        Kind::Float(f) => Some(f),
        _ => None,
    }
}

fn of_mapping(value: &Value, name: &Value) -> Res<Value> {
    match kind(value) {
        Kind::Dict(dict) => match dict.look_up(name)? {
            Some(value) => Ok(value),
            None if name.as_str().is_some_and(is_attribute) => {
                not_native(format!("the attribute {name:?}"))
            }
            None => Ok(Value::UNDEFINED),
        },
        _ => not_native(format!("{name:?} of another type than dict")),
    }
}

/// `value.name`
pub(crate) fn attr(value: &Value, name: &Value) -> Res<Value> {
    let Kind::Str(text) = kind(name) else {
        return not_native("an attribute");
    };
    if is_attribute(text) {
        return not_native(format!("the attribute {text:?} without a call"));
    }
    if let Kind::Namespace(members) = kind(value)
        && !text.starts_with('_')
    {
        let members = members.lock();
        let found = members.iter().find(|(known, _)| known == text);
        return Ok(found.map_or(Value::UNDEFINED, |(_, value)| value.clone()));
    }
    of_mapping(value, name)
}

/// The position of a Python index in a sequence of this length.
pub(crate) fn place(index: i64, len: usize) -> Option<usize> {
    let len = i64::try_from(len).ok()?;
    let place = if index < 0 { index + len } else { index };
    usize::try_from(place).ok().filter(|_| place < len)
}

/// `value[index]`
pub(crate) fn item(value: &Value, index: &Value) -> Res<Value> {
    match (kind(value), kind(index)) {
        (_, Kind::Str(_)) | (Kind::Dict(_), Kind::Int(_) | Kind::Bool(_) | Kind::None) => {
            of_mapping(value, index)
        }
        (Kind::List(list), Kind::Int(index)) => {
            let list = list.lock();
            Ok(place(index, list.len())
                .and_then(|place| list.get(place).cloned())
                .unwrap_or(Value::UNDEFINED))
        }
        (Kind::Tuple(items), Kind::Int(index)) => Ok(place(index, items.len())
            .and_then(|place| items.get(place).cloned())
            .unwrap_or(Value::UNDEFINED)),
        (Kind::Str(of), Kind::Int(index)) => {
            // The search counts characters from the start of the string.
            budget::spend(of.len() / 64)?;
            let at = place(index, python::text::len(of));
            Ok(at
                .and_then(|at| of.chars().nth(at))
                .map_or(Value::UNDEFINED, |c| Value::from(c.to_string())))
        }
        _ => not_native("this lookup"),
    }
}

/// `value[start:stop]`
pub(crate) fn slice(value: &Value, start: &Value, stop: &Value) -> Res<Value> {
    let bound = |value: &Value| match kind(value) {
        Kind::None => Ok(None),
        Kind::Int(i) => Ok(Some(i)),
        _ => not_native("a slice with another type than int"),
    };
    let (start, stop) = (bound(start)?, bound(stop)?);

    let within = |len: usize| -> Res<std::ops::Range<usize>> {
        budget::spend(len)?;
        // Python clips bounds instead of raising.
        let clip = |bound: i64| {
            let len = i64::try_from(len).unwrap_or(i64::MAX);
            let bound = if bound < 0 {
                bound.saturating_add(len)
            } else {
                bound
            };
            usize::try_from(bound.clamp(0, len)).unwrap_or(0)
        };
        let start = start.map_or(0, clip);
        let stop = stop.map_or(len, clip);
        Ok(start..stop.max(start))
    };

    let part =
        |items: &[Value]| Res::Ok(items.get(within(items.len())?).unwrap_or_default().to_vec());

    match kind(value) {
        Kind::Str(of) => {
            let chars: Vec<char> = of.chars().collect();
            text(
                chars
                    .get(within(chars.len())?)
                    .unwrap_or_default()
                    .iter()
                    .collect(),
            )
        }
        Kind::List(items) => {
            let items = items.lock().clone();
            budget::charge(items.len() * 16)?;
            Ok(list(part(&items)?))
        }
        Kind::Tuple(items) => Ok(tuple(part(items)?)),
        _ => not_native("a slice of another type than string, list or tuple"),
    }
}

/// Types that templates rarely compare.
fn is_rare(kind: &Kind<'_>) -> bool {
    matches!(
        kind,
        Kind::Undefined
            | Kind::Other
            | Kind::Markup(_)
            | Kind::View(..)
            | Kind::Lazy(_)
            | Kind::Namespace(_)
    )
}

/// `==`
pub(crate) fn equal(a: &Value, b: &Value, depth: usize) -> Res<bool> {
    budget::depth(depth)?;
    budget::spend(1)?;

    Ok(match (kind(a), kind(b)) {
        (a, b) if is_rare(&a) || is_rare(&b) => return not_native("a comparison of rare types"),
        (Kind::Str(a), Kind::Str(b)) => {
            // For a long string a comparison is more than a step.
            budget::spend(a.len() / 64)?;
            a == b
        }
        (Kind::None, Kind::None) => true,
        (Kind::List(a), Kind::List(b)) => {
            // One lock at a time, because both may be the same list.
            let a = a.lock().clone();
            let b = b.lock().clone();
            equal_all(&a, &b, depth)?
        }
        (Kind::Tuple(a), Kind::Tuple(b)) => equal_all(a, b, depth)?,
        (Kind::Dict(a), Kind::Dict(b)) => {
            // One lock at a time, because both may be the same dict.
            let a = a.all()?.clone();
            let b = b.all()?.clone();
            let mut same = a.len() == b.len();

            for (key, value) in &a {
                same = same
                    && match b.get(key) {
                        Some(other) => equal(value, other, depth + 1)?,
                        None => false,
                    };
            }
            same
        }
        (Kind::Bool(a), Kind::Bool(b)) => a == b,
        (Kind::Int(a), Kind::Int(b)) => a == b,
        (
            Kind::Bool(_) | Kind::Int(_) | Kind::Float(_),
            Kind::Bool(_) | Kind::Int(_) | Kind::Float(_),
        ) => {
            // A boolean is an integer in Python.
            let of = |value: &Value| match kind(value) {
                Kind::Bool(b) => Some(f64::from(u8::from(b))),
                _ => number(value),
            };

            match (of(a), of(b)) {
                (Some(a), Some(b)) => a.partial_cmp(&b) == Some(Ordering::Equal),
                _ => return not_native("a comparison of a large integer with a float"),
            }
        }
        _ => false,
    })
}

fn equal_all(a: &[Value], b: &[Value], depth: usize) -> Res<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }

    for (a, b) in a.iter().zip(b) {
        // Python compares identical objects as equal, even nan.
        if matches!((kind(a), kind(b)), (Kind::Float(a), Kind::Float(b)) if a.is_nan() && b.is_nan())
        {
            return not_native("a comparison of nan in collections");
        }
        if !equal(a, b, depth + 1)? {
            return Ok(false);
        }
    }

    Ok(true)
}

/// The order of strings or numbers; `None` with nan.
pub(crate) fn order(a: &Value, b: &Value) -> Res<Option<Ordering>> {
    budget::spend(1)?;
    match (kind(a), kind(b)) {
        (Kind::Str(a), Kind::Str(b)) => {
            budget::spend(a.len() / 64)?;
            Ok(Some(a.cmp(b)))
        }
        (Kind::Int(a), Kind::Int(b)) => Ok(Some(a.cmp(&b))),
        // An integer without an equal float is not native here.
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => not_native("an order of other types than strings and numbers"),
        },
    }
}

/// `value in within`
pub(crate) fn contains(within: &Value, value: &Value) -> Res<bool> {
    let any = |items: &[Value]| -> Res<bool> {
        // Python compares identity first, see `equal_all`.
        if matches!(kind(value), Kind::Float(f) if f.is_nan()) {
            return not_native("a nan in a collection");
        }
        for item in items {
            if equal(item, value, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    };

    match (kind(within), kind(value)) {
        (_, Kind::Undefined) => not_native("an undefined value"),
        (Kind::Str(text), Kind::Str(part)) => {
            budget::spend(text.len() / 64)?;
            Ok(text.contains(part))
        }
        (Kind::List(list), _) => {
            let items = list.lock().clone();
            any(&items)
        }
        (Kind::Tuple(items) | Kind::Lazy(items), _) => any(items),
        (Kind::Dict(dict), _) => Ok(dict.look_up(value)?.is_some()),
        (Kind::View(View::Keys, of), _) => match &**of {
            Obj::Dict(dict) => Ok(dict.look_up(value)?.is_some()),
            _ => not_native("a view"),
        },
        (Kind::View(View::Values, of), _) => any(&of.seen(View::Values)?),
        _ => not_native("this `in`"),
    }
}

/// `a + b`, `a - b`, `a * b`, `a % b`; `#` stands for `//`.
pub(crate) fn arithmetic(op: char, a: &Value, b: &Value) -> Res<Value> {
    let overflow = |result: Option<i64>| match result {
        Some(i) => Ok(Value::from(i)),
        None => not_native("an integer of more than 64 bits"),
    };

    match (op, kind(a), kind(b)) {
        ('+', Kind::Str(a), Kind::Str(b)) => text([a, b].concat()),
        ('+', Kind::List(a), Kind::List(b)) => {
            // One lock at a time, because both may be the same list.
            let a = a.lock().clone();
            let b = b.lock().clone();
            budget::charge((a.len() + b.len()) * 16)?;
            Ok(list([a, b].concat()))
        }
        ('*', Kind::Str(a), Kind::Int(times)) | ('*', Kind::Int(times), Kind::Str(a)) => {
            // As in Python, a negative number gives an empty string.
            let times = usize::try_from(times).unwrap_or(0);
            budget::charge(a.len().saturating_mul(times))?;
            Ok(Value::from(a.repeat(times)))
        }
        ('+', Kind::Int(a), Kind::Int(b)) => overflow(a.checked_add(b)),
        ('-', Kind::Int(a), Kind::Int(b)) => overflow(a.checked_sub(b)),
        ('*', Kind::Int(a), Kind::Int(b)) => overflow(a.checked_mul(b)),
        ('#', Kind::Int(a), Kind::Int(b)) if b != 0 => {
            // Python rounds down, Euclidean division by the sign of the divisor.
            let floor = a.checked_div_euclid(b).map(|q| {
                if b < 0 && a.rem_euclid(b) != 0 {
                    q - 1
                } else {
                    q
                }
            });
            overflow(floor)
        }
        // In Python the rest has the sign of the divisor.
        ('%', Kind::Int(a), Kind::Int(b)) if b != 0 => overflow(a.checked_rem(b).map(|rest| {
            if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            }
        })),
        ('#', ..) => not_native("the operator `//` between these types"),
        _ => not_native(format!("the operator `{op}` between these types")),
    }
}

/// `-value`
pub(crate) fn negative(value: &Value) -> Res<Value> {
    match kind(value) {
        Kind::Int(i) => i.checked_neg().map_or_else(
            || not_native("an integer of more than 64 bits"),
            |i| Ok(Value::from(i)),
        ),
        Kind::Float(f) => Ok(Value::from(-f)),
        _ => not_native("a sign before another type than a number"),
    }
}

/// `len(value)`
pub(crate) fn length(value: &Value) -> Res<usize> {
    match kind(value) {
        Kind::Str(text) => Ok(python::text::len(text)),
        Kind::List(_) | Kind::Tuple(_) | Kind::Dict(_) | Kind::View(..) => value
            .len()
            .map_or_else(|| not_native("the number of all grains or options"), Ok),
        _ => not_native("the length of this type"),
    }
}

/// The items of an iteration.
pub(crate) fn items(value: &Value) -> Res<Vec<Value>> {
    match kind(value) {
        Kind::Str(text) => {
            // Each character becomes a value.
            budget::charge(text.len() * 16)?;
            budget::spend(text.len())?;
            Ok(text.chars().map(|c| Value::from(c.to_string())).collect())
        }
        _ => match value.downcast_object_ref::<Obj>() {
            Some(object) => {
                let items = object.items()?;
                budget::charge(items.len() * 16)?;
                Ok(items)
            }
            None => not_native("a loop over another type than list, dict or string"),
        },
    }
}

/// `str(value)`
pub(crate) fn string(value: &Value) -> Res<String> {
    print_as(value, Notation::Python)
}

/// The text of `{{ value }}`.
pub(crate) fn print(value: &Value) -> Res<String> {
    print_as(value, Notation::Printed)
}

fn print_as(value: &Value, notation: Notation) -> Res<String> {
    let mut out = String::new();
    match kind(value) {
        Kind::Str(text) | Kind::Markup(text) => out.push_str(text),
        _ => write(value, notation, 0, &mut out)?,
    }
    budget::charge(out.len())?;
    Ok(out)
}

/// Whether every version of Python prints these characters unescaped.
fn is_plain(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii() || matches!(c, '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{24f}'))
}

/// Notation of a value written by [`write()`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    /// `str()` and `repr()`.
    Python,
    /// `{{ value }}`: Salt prints some strings in mappings in its own way.
    Printed,
    /// Salt's filter `json`: sorted keys, Unicode.
    Json,
    /// Salt's filter `tojson`: ASCII.
    AsciiJson,
}

/// Appends a value in this notation.
pub(crate) fn write(value: &Value, notation: Notation, depth: usize, out: &mut String) -> Res<()> {
    use Notation::{AsciiJson, Json, Printed};
    budget::depth(depth)?;
    budget::spend(1)?;
    let is_json = matches!(notation, Json | AsciiJson);

    let all = |items: &[Value], out: &mut String| -> Res<()> {
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                out.push_str(", ");
            }
            write(item, notation, depth + 1, out)?;
        }
        Ok(())
    };

    match kind(value) {
        Kind::None => out.push_str(if is_json { "null" } else { "None" }),
        Kind::Bool(true) => out.push_str(if is_json { "true" } else { "True" }),
        Kind::Bool(false) => out.push_str(if is_json { "false" } else { "False" }),
        Kind::Int(i) => _ = write!(out, "{i}"),
        // How JSON shows infinite numbers is left to Salt.
        Kind::Float(f) if !is_json || f.is_finite() => python::write_float(f, out),
        Kind::Str(text) => write_text(text, notation, out)?,
        Kind::List(items) => {
            let items = items.lock().clone();
            out.push('[');
            all(&items, out)?;
            out.push(']');
        }
        Kind::Tuple(items) => {
            out.push(if is_json { '[' } else { '(' });
            all(items, out)?;
            out.push_str(if is_json {
                "]"
            } else if items.len() == 1 {
                ",)"
            } else {
                ")"
            });
        }
        Kind::Dict(dict) => {
            let pairs = dict.all()?.clone();
            let mut pairs: Vec<_> = pairs.iter().collect();
            if notation == Json {
                // Keys that are not strings are rejected below.
                pairs.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
            }

            out.push('{');
            for (n, (Key(key), value)) in pairs.into_iter().enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                match key {
                    Plain::Str(text) => write_text(text, notation, out)?,
                    Plain::Int(_) | Plain::Bool(_) | Plain::Null if !is_json => {
                        out.push_str(&python::repr(key));
                    }
                    _ => return not_native("a printed mapping with rare keys"),
                }
                out.push_str(": ");

                // Salt prints such strings in a different notation.
                if notation == Printed
                    && matches!(kind(value), Kind::Str(text) if text.contains(['\n', '\r', '\t']))
                {
                    return not_native("a printed mapping with line breaks or tabs");
                }
                write(value, notation, depth + 1, out)?;
            }
            out.push('}');
        }
        Kind::Undefined => return not_native("an undefined value"),
        _ => return not_native("a printed value of a rare type"),
    }

    // At each level, because a large value must be rejected before all of it is written.
    if out.len() > limits::JINJA_VALUE_BYTES_MAX {
        not_native("a printed value of more than 1 MiB")
    } else {
        Ok(())
    }
}

/// Appends a string in quotes.
fn write_text(text: &str, notation: Notation, out: &mut String) -> Res<()> {
    budget::charge(text.len())?;
    match notation {
        Notation::Json => json_text(text, false, out),
        Notation::AsciiJson => json_text(text, true, out),
        _ if is_plain(text) => python::text::repr(text, out),
        _ => return not_native("rare characters in a printed value"),
    }
    Ok(())
}

fn json_text(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if ascii && (!c.is_ascii() || c == '\x7f') => {
                // In UTF-16: some characters become two escapes.
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }

    out.push('"');
}
