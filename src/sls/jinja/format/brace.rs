//! `str.format`, as the sandbox does it.

use super::spec;
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, lookup_error, type_error, value_error};
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{self, Text, Val};
use crate::sls::python::text;

/// Where fields find their values.
struct Fields<'v> {
    pos: &'v [Val],
    kw: &'v Val,
    /// The next field without a name; `None` once one had a number.
    auto: Option<usize>,
    numbered: bool,
    escape: bool,
}

pub(crate) fn format(interp: &mut Interp<'_>, of: &Val, format: &str, args: Args) -> Res<Val> {
    let kw = args.kw.into_iter().map(|(name, val)| (val::Hashed(Val::Str(name)), val)).collect();
    formatted(interp, of, format, &args.pos, &Val::dict(kw))
}

pub(crate) fn format_map(interp: &mut Interp<'_>, of: &Val, format: &str, mapping: &Val) -> Res<Val> {
    formatted(interp, of, format, &[], mapping)
}

fn formatted(interp: &mut Interp<'_>, of: &Val, format: &str, pos: &[Val], kw: &Val) -> Res<Val> {
    let mut fields = Fields { pos, kw, auto: Some(0), numbered: false, escape: matches!(of, Val::Markup(_)) };
    let out = run(interp, format, &mut fields, 2)?;
    Ok(Val::text_like(of, out))
}

fn run(interp: &mut Interp<'_>, format: &str, fields: &mut Fields<'_>, depth: u32) -> Res<String> {
    let Some(depth) = depth.checked_sub(1) else { return Err(value_error("Max string recursion exceeded")) };
    let mut out = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, here) = rest.split_at(at);
        out.push_str(before);
        let brace = here.get(..1).unwrap_or_default();
        let after = here.get(1..).unwrap_or_default();
        if let Some(after) = after.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(value_error("Single '}' encountered in format string"));
        }
        if after.is_empty() {
            return Err(value_error("Single '{' encountered in format string"));
        }
        let mut level = 1;
        let mut bracket = false;
        let mut end = None;
        for (i, c) in after.char_indices() {
            match c {
                '[' if level == 1 => bracket = true,
                ']' => bracket = false,
                '{' if !bracket => level += 1,
                '}' if !bracket => level -= 1,
                _ => {}
            }
            if level == 0 {
                end = Some(i);
                break;
            }
        }
        let end = end.ok_or_else(|| value_error("expected '}' before end of string"))?;
        let (field, tail) = after.split_at(end);
        rest = tail.get(1..).unwrap_or_default();
        let made = one(interp, field, fields, depth)?;
        budget::room(out.len() + made.len())?;
        out.push_str(&made);
    }
    out.push_str(rest);
    Ok(out)
}

fn one(interp: &mut Interp<'_>, field: &str, fields: &mut Fields<'_>, depth: u32) -> Res<String> {
    // The name ends at the first `!` or `:` outside of brackets.
    let mut bracket = false;
    let mut end = field.len();
    for (i, c) in field.char_indices() {
        match c {
            '[' => bracket = true,
            ']' => bracket = false,
            '!' | ':' if !bracket => {
                end = i;
                break;
            }
            _ => {}
        }
    }
    let (name, after) = field.split_at(end);
    let (conversion, wanted) = match after.strip_prefix('!') {
        Some(after) => {
            let mut chars = after.chars();
            let conversion = chars
                .next()
                .ok_or_else(|| value_error("end of string while looking for conversion specifier"))?;
            match chars.as_str() {
                "" => (Some(conversion), ""),
                rest => match rest.strip_prefix(':') {
                    Some(wanted) => (Some(conversion), wanted),
                    None => return Err(value_error("expected ':' after conversion specifier")),
                },
            }
        }
        None => (None, after.strip_prefix(':').unwrap_or_default()),
    };
    let val = lookup(interp, name, fields)?;
    let val = match conversion {
        None => val,
        Some('s') => Val::str(repr::str(&val)?),
        Some('r') => Val::str(repr::repr(&val)?),
        Some('a') => return Err(spec::unsupported("!a")),
        Some(other) => return Err(value_error(format!("Unknown conversion specifier {other}"))),
    };
    let wanted = if wanted.contains('{') { run(interp, wanted, fields, depth)? } else { wanted.to_owned() };
    if fields.escape {
        return match &val {
            Val::Markup(_) if !wanted.is_empty() => {
                Err(value_error("Unsupported format specification for Markup."))
            }
            Val::Markup(text) => Ok(text.to_string()),
            other => Ok(text::escaped(&spec::format(other, &wanted)?)),
        };
    }
    spec::format(&val, &wanted)
}

fn lookup(interp: &mut Interp<'_>, name: &str, fields: &mut Fields<'_>) -> Res<Val> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(end);
    let place = if first.is_empty() {
        if fields.numbered {
            return Err(value_error(
                "cannot switch from manual field specification to automatic field numbering",
            ));
        }
        let place = fields.auto.unwrap_or(0);
        fields.auto = Some(place + 1);
        Some(place)
    } else if first.bytes().all(|b| b.is_ascii_digit()) {
        if fields.auto.is_some_and(|auto| auto > 0) {
            return Err(value_error(
                "cannot switch from manual field specification to automatic field numbering",
            ));
        }
        fields.numbered = true;
        Some(first.parse().map_err(|_| value_error("Too many decimal digits in format string"))?)
    } else {
        None
    };
    let mut val = match place {
        Some(place) => fields.pos.get(place).cloned().ok_or_else(|| {
            lookup_error(format!("Replacement index {place} out of range for positional args tuple"))
        })?,
        None => match interp.python_item(fields.kw, &Val::from(first))? {
            Some(val) => val,
            None if matches!(fields.kw, Val::Dict(_)) => return Err(lookup_error(format!("'{first}'"))),
            None => {
                return Err(type_error(format!("'{}' object is not subscriptable", fields.kw.type_name())));
            }
        },
    };
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (attr, tail) = after.split_at(end);
            if attr.is_empty() {
                return Err(value_error("Empty attribute in format string"));
            }
            val = interp.attr(&val, &Text::from(attr))?;
            rest = tail;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (key, tail) =
                after.split_once(']').ok_or_else(|| value_error("Missing ']' in format string"))?;
            if key.is_empty() {
                return Err(value_error("Empty attribute in format string"));
            }
            let key = match key.parse::<i64>() {
                Ok(i) if key.bytes().all(|b| b.is_ascii_digit()) => Val::Int(i),
                _ => Val::from(key),
            };
            val = interp.item(&val, &key)?;
            rest = tail;
        } else {
            return Err(value_error("Only '.' or '[' may follow ']' in format field specifier"));
        }
    }
    Ok(val)
}
