//! The methods of text.

use super::number;
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Exc, Kind, Res, not_native, type_error, value_error};
use crate::sls::jinja::format::brace;
use crate::sls::jinja::library::html;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::Object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Text, Val};
use crate::sls::map::OrderedMap;
use crate::sls::python::text::{self, is_space};

/// A value that must be text.
pub(crate) fn want_str<'v>(val: &'v Val, fun: &str) -> Res<&'v str> {
    if let Val::Undef(undef) = val {
        undef.check()?;
    }
    val.as_str().ok_or_else(|| type_error(format!("{fun}() argument must be str, not {}", val.type_name())))
}

/// A value that must be a whole number.
pub(crate) fn want_int(val: &Val) -> Res<i64> {
    if let Val::Undef(undef) = val {
        undef.check()?;
    }
    let Some(i) = val.as_int() else {
        return Err(type_error(format!("'{}' object cannot be interpreted as an integer", val.type_name())));
    };
    Ok(i64::try_from(i).unwrap_or(if i < 0 { i64::MIN } else { i64::MAX }))
}

/// A text that is padded to a width: so many characters before and after.
pub(crate) fn padded(text: &str, before: usize, after: usize, fill: char) -> Res<String> {
    budget::room(before.saturating_add(after).saturating_mul(fill.len_utf8()))?;
    let mut out = String::with_capacity(text.len() + (before + after) * fill.len_utf8());
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, after));
    Ok(out)
}

/// `str.center`
pub(crate) fn center(text: &str, width: i64, fill: char) -> Res<String> {
    let len = text::len(text);
    let pad = num::size(width).saturating_sub(len);
    // As CPython: the odd one goes left if the width is odd, too.
    let before = pad / 2 + (pad & num::size(width) & 1);
    padded(text, before, pad - before, fill)
}

/// `text.replace(old, new, count)`, bounded.
pub(crate) fn replace(text: &str, old: &str, new: &str, count: i64) -> Res<String> {
    let max = if count < 0 { usize::MAX } else { num::size(count) };
    if max == 0 {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    if old.is_empty() {
        // Before each character, and at the end.
        let mut left = max;
        for c in text.chars() {
            if left > 0 {
                budget::room(out.len() + new.len())?;
                out.push_str(new);
                left -= 1;
            }
            out.push(c);
        }
        if left > 0 {
            out.push_str(new);
        }
        return Ok(out);
    }
    let mut rest = text;
    let mut left = max;
    while left > 0 {
        let Some((before, after)) = rest.split_once(old) else { break };
        budget::room(out.len() + before.len() + new.len())?;
        out.push_str(before);
        out.push_str(new);
        rest = after;
        left -= 1;
    }
    out.push_str(rest);
    Ok(out)
}

/// The part of a text from one character to another, as `find` and its like take them; and the byte where it begins.
fn window<'t>(text: &'t str, start: Option<&Val>, end: Option<&Val>) -> Res<Option<(&'t str, usize)>> {
    let len = num::len(text::len(text));
    let bound = |val: Option<&Val>, default: i64| -> Res<i64> {
        match val {
            None | Some(Val::None) => Ok(default),
            Some(val) => {
                let i = want_int(val)?;
                Ok(if i < 0 { (i.saturating_add(len)).max(0) } else { i })
            }
        }
    };
    let (start, end) = (bound(start, 0)?, bound(end, len)?.min(len));
    if start > end || start > len {
        return Ok(None);
    }
    let (from, to) = (text::byte_of(text, num::size(start)), text::byte_of(text, num::size(end)));
    Ok(text.get(from..to).map(|part| (part, from)))
}

fn strip<'t>(text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let is = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if left { text.trim_start_matches(is) } else { text };
    if right { text.trim_end_matches(is) } else { text }
}

fn fill_of(val: Option<&Val>) -> Res<char> {
    let Some(val) = val else { return Ok(' ') };
    let fill = want_str(val, "fillchar")?;
    let mut chars = fill.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(type_error("The fill character must be exactly one character long")),
    }
}

impl Interp<'_> {
    pub(crate) fn call_method(&mut self, val: &Val, name: &'static str, args: Args) -> Res<Val> {
        match val {
            Val::Str(text) | Val::Markup(text) => self.text_method(val, text, name, args),
            Val::Dict(dict) => self.dict_method(val, dict, name, args),
            Val::List(list) => self.list_method(val, list, name, args),
            Val::Tuple(tuple) => self.tuple_method(&tuple.items, name, args),
            Val::Set(set) => self.set_method(val, set, name, args),
            Val::Bytes(bytes) => number::bytes(bytes, name, args),
            Val::Int(_) | Val::Bool(_) | Val::Big(_) | Val::Float(_) => number::number(val, name, args),
            Val::Object(object) => match &**object {
                Object::Loop(_) => self.loop_method(object, name, args),
                Object::Salt => self.salt_method(name, args),
                Object::Cycler { items, place } => {
                    args.none(name)?;
                    if name == "reset" {
                        place.set(0);
                        return Ok(Val::None);
                    }
                    let item = items.get(place.get()).cloned().unwrap_or(Val::None);
                    place.set((place.get() + 1) % items.len().max(1));
                    Ok(item)
                }
                Object::Range(_) => {
                    let items = self.collect(val)?;
                    self.tuple_method(&items, name, args)
                }
                Object::Func(_) if name == "fromkeys" => self.fromkeys(args),
                Object::View(..) => {
                    let [other] = args.positional("isdisjoint", 1)?;
                    for item in self.collect(&other.unwrap_or(Val::None))? {
                        if self.contains(val, &item)? {
                            return Ok(Val::Bool(false));
                        }
                    }
                    Ok(Val::Bool(true))
                }
                _ => Err(not_native(format!("{}.{name}()", val.type_name()))),
            },
            _ => Err(not_native(format!("{}.{name}()", val.type_name()))),
        }
    }

    fn text_method(&mut self, val: &Val, text: &Text, name: &'static str, args: Args) -> Res<Val> {
        let like = |out: String| Ok(Val::text_like(val, out));
        // What goes into HTML text is escaped first.
        let safe = |part: &Val| match (val, part) {
            (Val::Markup(_), Val::Str(part)) => text::escaped(part),
            _ => part.as_str().unwrap_or_default().to_owned(),
        };
        match name {
            "lower" | "upper" | "capitalize" | "title" | "swapcase" | "casefold" => {
                args.none(name)?;
                like(match name {
                    "lower" => text.to_lowercase(),
                    "upper" => text.to_uppercase(),
                    "capitalize" => text::capitalize(text),
                    "title" => text::title(text),
                    "swapcase" => text::swapcase(text),
                    _ => text::casefold(text),
                })
            }
            "strip" | "lstrip" | "rstrip" => {
                let [chars] = args.positional(name, 0)?;
                let chars = match &chars {
                    None | Some(Val::None) => None,
                    Some(chars) => Some(want_str(chars, name)?),
                };
                like(strip(text, chars, name != "rstrip", name != "lstrip").to_owned())
            }
            "startswith" | "endswith" => {
                let [affix, start, end] = args.positional(name, 1)?;
                let affix = affix.unwrap_or(Val::None);
                let affixes = match &affix {
                    Val::Tuple(tuple) => tuple.items.clone(),
                    Val::Str(_) | Val::Markup(_) => vec![affix.clone()],
                    Val::Undef(undef) if undef.strict => return Err(undef.fail()),
                    other => {
                        return Err(type_error(format!(
                            "{name} first arg must be str or a tuple of str, not {}",
                            other.type_name()
                        )));
                    }
                };
                let Some((part, _)) = window(text, start.as_ref(), end.as_ref())? else {
                    return Ok(Val::Bool(false));
                };
                for affix in &affixes {
                    let affix = want_str(affix, name)?;
                    if if name == "startswith" { part.starts_with(affix) } else { part.ends_with(affix) } {
                        return Ok(Val::Bool(true));
                    }
                }
                Ok(Val::Bool(false))
            }
            "split" | "rsplit" => {
                let [sep, max] = args.bind(name, ["sep", "maxsplit"], 0)?;
                let max = max.as_ref().map(want_int).transpose()?.filter(|max| *max >= 0).map(num::size);
                let parts: Vec<&str> = match &sep {
                    None | Some(Val::None) if name == "split" => text::words(text, max),
                    None | Some(Val::None) => text::words_from_right(text, max),
                    Some(sep) => {
                        let sep = want_str(sep, name)?;
                        if sep.is_empty() {
                            return Err(value_error("empty separator"));
                        }
                        match (name, max) {
                            ("split", None) => text.split(sep).collect(),
                            ("split", Some(max)) => text.splitn(max.saturating_add(1), sep).collect(),
                            (_, None) => text.split(sep).collect(),
                            (_, Some(max)) => {
                                let mut parts: Vec<&str> = text.rsplitn(max.saturating_add(1), sep).collect();
                                parts.reverse();
                                parts
                            }
                        }
                    }
                };
                budget::steps(parts.len() as u64)?;
                Ok(Val::list(parts.into_iter().map(|part| Val::text_like(val, part)).collect()))
            }
            "splitlines" => {
                let [keep] = args.bind(name, ["keepends"], 0)?;
                let keep = keep.as_ref().map(ops::truth).transpose()?.unwrap_or(false);
                Ok(Val::list(
                    text::lines(text, keep).into_iter().map(|line| Val::text_like(val, line)).collect(),
                ))
            }
            "join" => {
                let [items] = args.positional(name, 1)?;
                let items = self.collect(&items.unwrap_or(Val::None))?;
                let mut out = String::new();
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push_str(text);
                    }
                    if let Val::Undef(undef) = item {
                        undef.check()?;
                    }
                    match (val, item) {
                        (Val::Markup(_), Val::Markup(part))
                        | (Val::Str(_), Val::Str(part) | Val::Markup(part)) => out.push_str(part),
                        (Val::Markup(_), other) => out.push_str(&text::escaped(&repr::str(other)?)),
                        (_, other) => {
                            return Err(type_error(format!(
                                "sequence item {i}: expected str instance, {} found",
                                other.type_name()
                            )));
                        }
                    }
                    budget::room(out.len())?;
                }
                like(out)
            }
            "replace" => {
                let [old, new, count] = args.positional(name, 2)?;
                let (old, new) = (old.unwrap_or(Val::None), new.unwrap_or(Val::None));
                let count = count.as_ref().map(want_int).transpose()?.unwrap_or(-1);
                let new = match val {
                    Val::Markup(_) if new.as_str().is_none() => text::escaped(&repr::str(&new)?),
                    _ => {
                        want_str(&new, name)?;
                        safe(&new)
                    }
                };
                like(replace(text, want_str(&old, name)?, &new, count)?)
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [part, start, end] = args.positional(name, 1)?;
                let part = part.unwrap_or(Val::None);
                let part = want_str(&part, name)?;
                let found = match window(text, start.as_ref(), end.as_ref())? {
                    None => None,
                    Some((window, _)) if name == "count" => {
                        let count = if part.is_empty() {
                            text::len(window) + 1
                        } else {
                            window.matches(part).count()
                        };
                        return Ok(Val::len(count));
                    }
                    Some((window, from)) => {
                        let at = if name.starts_with('r') { window.rfind(part) } else { window.find(part) };
                        at.map(|at| text::place_of(text, from + at))
                    }
                };
                match (found, name) {
                    (Some(place), _) => Ok(Val::len(place)),
                    (None, "count") => Ok(Val::Int(0)),
                    (None, "find" | "rfind") => Ok(Val::Int(-1)),
                    (None, _) => Err(value_error("substring not found")),
                }
            }
            "partition" | "rpartition" => {
                let [sep] = args.positional(name, 1)?;
                let sep = sep.unwrap_or(Val::None);
                let sep = want_str(&sep, name)?;
                if sep.is_empty() {
                    return Err(value_error("empty separator"));
                }
                let found = if name == "partition" { text.split_once(sep) } else { text.rsplit_once(sep) };
                let parts = match found {
                    Some((before, after)) => [before, sep, after],
                    None if name == "partition" => [&**text, "", ""],
                    None => ["", "", &**text],
                };
                Ok(Val::tuple(parts.iter().map(|part| Val::text_like(val, *part)).collect()))
            }
            "removeprefix" | "removesuffix" => {
                let [affix] = args.positional(name, 1)?;
                let affix = affix.unwrap_or(Val::None);
                let affix = want_str(&affix, name)?;
                let rest =
                    if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
                like(rest.unwrap_or(text).to_owned())
            }
            "center" | "ljust" | "rjust" | "zfill" => {
                let [width, fill] = args.positional(name, 1)?;
                let width = want_int(&width.unwrap_or(Val::None))?;
                let fill = fill_of(fill.as_ref())?;
                let pad = num::size(width).saturating_sub(text::len(text));
                match name {
                    "center" => like(center(text, width, fill)?),
                    "ljust" => like(padded(text, 0, pad, fill)?),
                    "rjust" => like(padded(text, pad, 0, fill)?),
                    _ => match text.strip_prefix(['+', '-']) {
                        Some(rest) => {
                            let sign = text.get(..1).unwrap_or_default();
                            like(format!("{sign}{}", padded(rest, pad, 0, '0')?))
                        }
                        None => like(padded(text, pad, 0, '0')?),
                    },
                }
            }
            "expandtabs" => {
                let [size] = args.bind(name, ["tabsize"], 0)?;
                let size = num::size(size.as_ref().map(want_int).transpose()?.unwrap_or(8));
                let mut out = String::with_capacity(text.len());
                let mut column = 0;
                for c in text.chars() {
                    match c {
                        '\t' => {
                            let pad = if size == 0 { 0 } else { size - column % size };
                            budget::room(out.len().saturating_add(pad))?;
                            out.extend(std::iter::repeat_n(' ', pad));
                            column += pad;
                        }
                        '\n' | '\r' => {
                            out.push(c);
                            column = 0;
                        }
                        c => {
                            out.push(c);
                            column += 1;
                        }
                    }
                }
                like(out)
            }
            "format" => brace::format(self, val, text, args),
            "format_map" => {
                let [mapping] = args.positional(name, 1)?;
                brace::format_map(self, val, text, &mapping.unwrap_or(Val::None))
            }
            "encode" => {
                let [encoding, errors] = args.bind(name, ["encoding", "errors"], 0)?;
                encode(text, encoding.as_ref(), errors.as_ref())
            }
            "translate" => {
                let [table] = args.positional(name, 1)?;
                let table = table.unwrap_or(Val::None);
                let mut out = String::new();
                for c in text.chars() {
                    match self.python_item(&table, &Val::Int(i64::from(u32::from(c))))? {
                        None => out.push(c),
                        Some(Val::None) => {}
                        Some(to) => match (
                            to.as_str(),
                            to.as_int().and_then(|i| u32::try_from(i).ok()).and_then(char::from_u32),
                        ) {
                            (Some(to), _) => out.push_str(to),
                            (None, Some(to)) => out.push(to),
                            _ => {
                                return Err(type_error("character mapping must return integer, None or str"));
                            }
                        },
                    }
                    budget::room(out.len())?;
                }
                like(out)
            }
            "maketrans" => maketrans(args),
            "striptags" => {
                args.none(name)?;
                Ok(Val::str(html::striptags(text)?))
            }
            "unescape" => {
                args.none(name)?;
                Ok(Val::str(html::unescape(text)?))
            }
            "escape" => {
                let [of] = args.positional(name, 1)?;
                html::escape(&of.unwrap_or(Val::None))
            }
            _ => {
                args.none(name)?;
                Ok(Val::Bool(predicate(text, name)))
            }
        }
    }
}

/// `str.isalpha` and its like.
fn predicate(text: &str, name: &str) -> bool {
    match name {
        "isalnum" => text::all(text, |c| c.is_alphanumeric() || text::is_digit(c)),
        "isalpha" => text::all(text, char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => text::all(text, |c| text::decimal(c).is_some()),
        "isdigit" => text::all(text, text::is_digit),
        "isnumeric" => text::all(text, |c| c.is_numeric() || text::is_digit(c)),
        "isspace" => text::all(text, is_space),
        "isprintable" => text.chars().all(text::is_printable),
        "islower" => text::is_lower(text),
        "isupper" => text::is_upper(text),
        "istitle" => text::is_titled(text),
        _ => {
            text::all(text, |c| c == '_' || c.is_alphanumeric())
                && !text.starts_with(|c: char| c.is_numeric())
        }
    }
}

fn encode(text: &str, encoding: Option<&Val>, errors: Option<&Val>) -> Res<Val> {
    let encoding =
        encoding.map_or(Ok("utf-8"), |val| want_str(val, "encode"))?.to_lowercase().replace(['-', '_'], "");
    let errors = errors.map_or(Ok("strict"), |val| want_str(val, "encode"))?;
    let top = match encoding.as_str() {
        "utf8" => return Ok(Val::bytes(text.as_bytes().to_vec())),
        "ascii" | "usascii" => 0x80,
        "latin1" | "iso88591" => 0x100,
        _ => return Err(not_native(format!("encoding {encoding}"))),
    };
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        let code = u32::from(c);
        match (u8::try_from(code), errors) {
            (Ok(b), _) if code < top => out.push(b),
            (_, "ignore") => {}
            (_, "replace") => out.push(b'?'),
            (_, "backslashreplace") => out.extend(text::backslashed(c).bytes()),
            (_, "xmlcharrefreplace") => out.extend(format!("&#{code};").bytes()),
            _ => {
                return Err(Exc::new(
                    Kind::Value,
                    format!("'{encoding}' codec can't encode character {}", text::backslashed(c)),
                ));
            }
        }
    }
    Ok(Val::bytes(out))
}

fn maketrans(args: Args) -> Res<Val> {
    let [from, to, gone] = args.positional("maketrans", 1)?;
    let code = |c: char| Val::Int(i64::from(u32::from(c)));
    let mut map = OrderedMap::new();
    let from = from.unwrap_or(Val::None);
    match (&from, to) {
        (Val::Dict(dict), None) => {
            for (key, val) in dict.pairs() {
                let key = match key.as_str() {
                    Some(text) => match (text.chars().next(), text.chars().nth(1)) {
                        (Some(c), None) => code(c),
                        _ => return Err(value_error("string keys in translate table must be of length 1")),
                    },
                    None => key,
                };
                map.insert(key.key()?, val);
            }
        }
        (from, Some(to)) => {
            let (from, to) = (want_str(from, "maketrans")?, want_str(&to, "maketrans")?);
            if text::len(from) != text::len(to) {
                return Err(value_error("the first two maketrans arguments must have equal length"));
            }
            for (from, to) in from.chars().zip(to.chars()) {
                map.insert(code(from).key()?, code(to));
            }
            if let Some(gone) = gone {
                for c in want_str(&gone, "maketrans")?.chars() {
                    map.insert(code(c).key()?, Val::None);
                }
            }
        }
        _ => return Err(type_error("if you give only one argument to maketrans it must be a dict")),
    }
    Ok(Val::dict(map))
}
