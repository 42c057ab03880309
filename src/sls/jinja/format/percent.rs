//! `text % values`

use super::spec;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{self, Res, lookup_error, overflow_error, type_error, value_error};
use crate::sls::jinja::methods::text::padded;
use crate::sls::jinja::syntax::ast;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text;

/// Where the values come from.
struct Source<'v> {
    val: &'v Val,
    items: Vec<Val>,
    next: usize,
    mapping: bool,
}

impl Source<'_> {
    fn next(&mut self) -> Res<Val> {
        let item = self
            .items
            .get(self.next)
            .cloned()
            .ok_or_else(|| type_error("not enough arguments for format string"))?;
        self.next += 1;
        Ok(item)
    }

    fn named(&self, name: &str) -> Res<Val> {
        match self.val {
            Val::Dict(dict) => dict.get_str(name).ok_or_else(|| lookup_error(format!("'{name}'"))),
            Val::Undef(undef) => Err(undef.fail()),
            _ => Err(type_error("format requires a mapping")),
        }
    }
}

/// One `%` of a format.
#[expect(clippy::struct_excessive_bools, reason = "flags, as they are written")]
#[derive(Default)]
struct Item {
    minus: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// A width or a precision: digits, or the next value.
fn count(c: &mut Option<char>, chars: &mut std::str::Chars<'_>, source: &mut Source<'_>) -> Res<Option<i64>> {
    if *c == Some('*') {
        let val = source.next()?;
        let i = val.as_int().ok_or_else(|| type_error("* wants int"))?;
        *c = chars.next();
        return Ok(Some(
            i64::try_from(i).map_err(|_| overflow_error("Python int too large to convert to C ssize_t"))?,
        ));
    }
    let mut digits = String::new();
    while let Some(digit) = c.filter(char::is_ascii_digit) {
        digits.push(digit);
        *c = chars.next();
    }
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| value_error("width too big"))
}

/// `format % values`; HTML text escapes what it takes in.
pub(crate) fn format(left: &Val, values: &Val) -> Res<Val> {
    let escape = matches!(left, Val::Markup(_));
    let format = left.as_str().unwrap_or_default();
    let items = match values {
        Val::Tuple(tuple) => tuple.items.clone(),
        other => vec![other.clone()],
    };
    let mapping = matches!(
        values,
        Val::Dict(_) | Val::List(_) | Val::Bytes(_) | Val::Undef(_) | Val::Set(_) | Val::Object(_)
    ) && !matches!(values, Val::Undef(_) | Val::Set(_));
    let mut source = Source { val: values, items, next: 0, mapping };
    let mut out = String::with_capacity(format.len() + 16);
    let mut used_names = false;
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let mut chars = after.chars();
        let mut named = None;
        let mut c = chars.next();
        if c == Some('(') {
            let mut depth = 1;
            let mut name = String::new();
            for c in chars.by_ref() {
                match c {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                name.push(c);
            }
            if depth > 0 {
                return Err(value_error("incomplete format key"));
            }
            used_names = true;
            named = Some(source.named(&name)?);
            c = chars.next();
        }
        let mut item = Item::default();
        while let Some(flag) = c.filter(|c| matches!(c, '-' | '+' | ' ' | '#' | '0')) {
            match flag {
                '-' => item.minus = true,
                '+' => item.plus = true,
                ' ' => item.space = true,
                '#' => item.alternate = true,
                _ => item.zero = true,
            }
            c = chars.next();
        }
        if let Some(width) = count(&mut c, &mut chars, &mut source)? {
            item.minus |= width < 0;
            item.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        if c == Some('.') {
            c = chars.next();
            let precision = count(&mut c, &mut chars, &mut source)?.unwrap_or(0);
            item.precision = Some(num::size(precision));
        }
        while matches!(c, Some('h' | 'l' | 'L')) {
            c = chars.next();
        }
        rest = chars.as_str();
        let Some(kind) = c else { return Err(value_error("incomplete format")) };
        if kind == '%' {
            out.push('%');
            continue;
        }
        let val = match named {
            Some(val) => val,
            None => source.next()?,
        };
        let made = one(&val, kind, &item, escape)?;
        budget::room(out.len() + made.len())?;
        out.push_str(&made);
    }
    out.push_str(rest);
    if !used_names && source.next < source.items.len() && !source.mapping {
        return Err(type_error("not all arguments converted during string formatting"));
    }
    Ok(Val::text_like(left, out))
}

fn one(val: &Val, kind: char, item: &Item, escape: bool) -> Res<String> {
    match kind {
        's' | 'r' | 'a' => {
            let text = match (kind, escape, val) {
                ('s', true, Val::Markup(text)) => text.to_string(),
                ('s', true, other) => text::escaped(&repr::str(other)?),
                ('s', false, other) => repr::str(other)?,
                (_, true, other) => text::escaped(&repr::repr(other)?),
                (_, false, other) => repr::repr(other)?,
            };
            let text = if kind == 'a' { ascii(&text) } else { text };
            let cut = match item.precision {
                Some(precision) => text.get(..text::byte_of(&text, precision)).unwrap_or(&text),
                None => &text,
            };
            pad(cut, item)
        }
        'c' => {
            let text = match val.as_str() {
                Some(text) if text::len(text) == 1 => text.to_owned(),
                Some(_) => return Err(type_error("%c requires int or char")),
                None => {
                    let i = val.as_int().ok_or_else(|| type_error("%c requires int or char"))?;
                    let c = u32::try_from(i).ok().and_then(char::from_u32);
                    c.ok_or_else(|| overflow_error("%c arg not in range(0x110000)"))?.to_string()
                }
            };
            pad(&text, item)
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let i = whole(val, kind)?;
            let positive = i.unsigned_abs();
            let (digits, prefix) = match kind {
                'x' => (format!("{positive:x}"), "0x"),
                'X' => (format!("{positive:X}"), "0X"),
                'o' => (format!("{positive:o}"), "0o"),
                _ => (positive.to_string(), ""),
            };
            let digits = match item.precision {
                Some(precision) if precision > digits.len() => {
                    padded(&digits, precision - digits.len(), 0, '0')?
                }
                _ => digits,
            };
            number(i < 0, if item.alternate { prefix } else { "" }, &digits, item)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let f = match val {
                Val::Undef(undef) => return Err(undef.fail()),
                _ => val
                    .as_float()
                    .ok_or_else(|| type_error(format!("must be real number, not {}", val.type_name())))?,
            };
            let digits = spec::float_digits(f, kind, item.precision.unwrap_or(6), item.alternate)?;
            number(f.is_sign_negative() && !f.is_nan(), "", &digits, item)
        }
        other => {
            Err(value_error(format!("unsupported format character '{other}' (0x{:x})", u32::from(other))))
        }
    }
}

fn whole(val: &Val, kind: char) -> Res<i128> {
    if let Some(i) = val.as_int() {
        return Ok(i);
    }
    match val {
        Val::Float(f) if matches!(kind, 'd' | 'i' | 'u') => {
            num::trunc(*f).ok_or_else(|| value_error("cannot convert float to integer"))
        }
        Val::Undef(undef) => Err(undef.fail()),
        other if matches!(kind, 'd' | 'i' | 'u') => {
            Err(type_error(format!("%{kind} format: a real number is required, not {}", other.type_name())))
        }
        other => {
            Err(type_error(format!("%{kind} format: an integer is required, not {}", other.type_name())))
        }
    }
}

fn pad(text: &str, item: &Item) -> Res<String> {
    let pad = item.width.saturating_sub(text::len(text));
    if item.minus { padded(text, 0, pad, ' ') } else { padded(text, pad, 0, ' ') }
}

fn number(negative: bool, prefix: &str, digits: &str, item: &Item) -> Res<String> {
    let sign = match (negative, item.plus, item.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    };
    let taken = sign.len() + prefix.len() + digits.len();
    if item.zero && !item.minus {
        return Ok(format!("{sign}{prefix}{}", padded(digits, item.width.saturating_sub(taken), 0, '0')?));
    }
    pad(&format!("{sign}{prefix}{digits}"), item)
}

/// `ascii`: what is not ASCII as an escape.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { text::backslashed(c) }).collect()
}

/// What `|format` takes: positions or names.
pub(crate) fn filter(left: &Val, pos: Vec<Val>, kw: Val) -> Res<Val> {
    let with_names = matches!(&kw, Val::Dict(dict) if dict.len() > 0);
    if with_names && !pos.is_empty() {
        return Err(exc::runtime_error("can't handle positional and keyword arguments at the same time"));
    }
    let left = repr::soft_str(left)?;
    ops::binary(ast::BinOp::Mod, &left, &if with_names { kw } else { Val::tuple(pos) })
}
