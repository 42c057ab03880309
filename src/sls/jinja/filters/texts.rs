//! Filters that make text out of text.

use std::fmt::Write as _;

use super::{Filter, flag, int_arg, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::eval::load;
use crate::sls::jinja::exc::{self, Res, other_error, type_error, value_error};
use crate::sls::jinja::format::percent;
use crate::sls::jinja::library::html;
use crate::sls::jinja::methods::text::{center, replace, want_int, want_str};
use crate::sls::jinja::values::access;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::Object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val;
use crate::sls::jinja::values::val::Val;
use crate::sls::jinja::yaml::scalar;
use crate::sls::python::text::{self, is_space};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("upper", upper),
    ("lower", lower),
    ("capitalize", capitalize),
    ("title", title),
    ("trim", trim),
    ("center", center_filter),
    ("replace", replace_filter),
    ("format", format),
    ("string", string),
    ("safe", safe),
    ("escape", escape),
    ("e", escape),
    ("forceescape", forceescape),
    ("striptags", striptags),
    ("truncate", truncate),
    ("wordcount", wordcount),
    ("urlencode", urlencode),
    ("xmlattr", xmlattr),
    ("indent", indent),
    ("quote", quote),
    ("skip", skip),
    ("to_camelcase", to_camelcase),
    ("to_snake_case", to_snake_case),
    ("contains_whitespace", contains_whitespace),
    ("path_join", path_join),
    ("yaml_dquote", yaml_dquote),
    ("yaml_squote", yaml_squote),
    ("yaml_encode", yaml_encode),
    ("method_call", method_call),
];

fn mapped(val: &Val, args: Args, name: &str, change: impl FnOnce(&str) -> String) -> Res<Val> {
    args.none(name)?;
    let soft = repr::soft_str(val)?;
    let changed = change(soft.as_str().unwrap_or_default());
    Ok(Val::text_like(&soft, changed))
}

fn upper(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    mapped(&val, args, "do_upper", str::to_uppercase)
}

fn lower(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    mapped(&val, args, "do_lower", str::to_lowercase)
}

fn capitalize(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    mapped(&val, args, "do_capitalize", text::capitalize)
}

/// Each word begins after a blank, a hyphen or an opening bracket.
fn title(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_title")?;
    let plain = repr::str(&val)?;
    let mut out = String::with_capacity(plain.len());
    let mut begins = true;
    for c in plain.chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    Ok(Val::str(out))
}

fn trim(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [chars] = args.bind("do_trim", ["chars"], 0)?;
    let soft = repr::soft_str(&val)?;
    let plain = soft.as_str().unwrap_or_default();
    let trimmed = match &chars {
        None | Some(Val::None) => plain.trim_matches(is_space),
        Some(chars) => {
            let chars = want_str(chars, "strip")?;
            plain.trim_matches(|c| chars.contains(c))
        }
    };
    Ok(Val::text_like(&soft, trimmed))
}

fn center_filter(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [width] = args.bind("do_center", ["width"], 0)?;
    let soft = repr::soft_str(&val)?;
    let made = center(soft.as_str().unwrap_or_default(), int_arg(width.as_ref(), 80)?, ' ')?;
    Ok(Val::text_like(&soft, made))
}

fn replace_filter(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [old, new, count] = args.bind("do_replace", ["old", "new", "count"], 2)?;
    let count = match &count {
        None | Some(Val::None) => -1,
        Some(count) => want_int(count)?,
    };
    let plain = repr::str(&val)?;
    let (old, new) = (repr::str(&old.unwrap_or(Val::None))?, repr::str(&new.unwrap_or(Val::None))?);
    replace(&plain, &old, &new, count).map(Val::str)
}

fn format(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let kw = args.kw.into_iter().map(|(name, val)| (val::Hashed(Val::Str(name)), val)).collect();
    percent::filter(&val, args.pos, Val::dict(kw))
}

fn string(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("soft_str")?;
    repr::soft_str(&val)
}

fn safe(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_mark_safe")?;
    match val {
        Val::Markup(_) => Ok(val),
        other => Ok(Val::markup(repr::str(&other)?)),
    }
}

fn escape(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("escape")?;
    html::escape(&val)
}

fn forceescape(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_forceescape")?;
    Ok(Val::markup(text::escaped(&repr::str(&val)?)))
}

fn striptags(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_striptags")?;
    html::striptags(&repr::str(&val)?).map(Val::str)
}

fn truncate(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [length, killwords, end, leeway] =
        args.bind("do_truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let length = int_arg(length.as_ref(), 255)?;
    let killwords = flag(killwords.as_ref(), false)?;
    let end = text_arg(end, "...")?;
    let leeway = match &leeway {
        None | Some(Val::None) => 5,
        Some(leeway) => want_int(leeway)?,
    };
    let end_len = num::len(text::len(&end));
    if length < end_len {
        return Err(other_error(format!("expected length >= {end_len}, got {length}")));
    }
    if leeway < 0 {
        return Err(other_error(format!("expected leeway >= 0, got {leeway}")));
    }
    if let Val::Undef(undef) = &val {
        undef.check()?;
        return Ok(val);
    }
    let len = num::len(ops::len(&val)?);
    if len <= length.saturating_add(leeway) {
        return Ok(val);
    }
    let plain = want_str(&val, "truncate")?;
    let cut = plain.get(..text::byte_of(plain, num::size(length - end_len))).unwrap_or(plain);
    let cut = if killwords { cut } else { cut.rsplit_once(' ').map_or(cut, |(before, _)| before) };
    let end = if matches!(val, Val::Markup(_)) { text::escaped(&end) } else { end.to_string() };
    Ok(Val::text_like(&val, format!("{cut}{end}")))
}

fn wordcount(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_wordcount")?;
    let plain = repr::str(&val)?;
    let words =
        plain.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty()).count();
    Ok(Val::len(words))
}

/// `urllib.parse.quote`
fn quoted(val: &Val, query: bool) -> Res<String> {
    let text = match val {
        Val::Bytes(bytes) => bytes.to_vec(),
        other => repr::str(other)?.into_bytes(),
    };
    let mut out = String::with_capacity(text.len());
    for b in text {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(b)),
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            b => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    Ok(out)
}

fn urlencode(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_urlencode")?;
    let pairs = match &val {
        Val::Dict(dict) => dict.pairs(),
        Val::Str(_)
        | Val::Markup(_)
        | Val::None
        | Val::Bool(_)
        | Val::Int(_)
        | Val::Big(_)
        | Val::Float(_) => {
            return quoted(&val, false).map(Val::str);
        }
        other => {
            let mut pairs = Vec::new();
            for pair in interp.collect(other)? {
                match interp.collect(&pair)?.as_slice() {
                    [key, value] => pairs.push((key.clone(), value.clone())),
                    items => {
                        return Err(value_error(format!(
                            "not enough values to unpack (expected 2, got {})",
                            items.len()
                        )));
                    }
                }
            }
            pairs
        }
    };
    let parts =
        pairs.iter().map(|(key, value)| Ok(format!("{}={}", quoted(key, true)?, quoted(value, true)?)));
    Ok(Val::str(parts.collect::<Res<Vec<_>>>()?.join("&")))
}

fn xmlattr(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [autospace] = args.bind("do_xmlattr", ["autospace"], 0)?;
    let Val::Dict(dict) = &val else {
        if let Val::Undef(undef) = &val {
            return Err(undef.fail());
        }
        return Err(type_error(format!("'{}' object has no attribute 'items'", val.type_name())));
    };
    let mut parts = Vec::new();
    for (key, value) in dict.pairs() {
        if matches!(value, Val::None | Val::Undef(_)) {
            continue;
        }
        let name = want_str(&key, "search")?;
        if name.contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '=']) {
            return Err(value_error(format!("Invalid character in attribute name: {}", repr::repr(&key)?)));
        }
        let (key, value) = (html::escape(&key)?, html::escape(&value)?);
        parts.push(format!(
            "{}=\"{}\"",
            key.as_str().unwrap_or_default(),
            value.as_str().unwrap_or_default()
        ));
    }
    let mut joined = parts.join(" ");
    if flag(autospace.as_ref(), true)? && !joined.is_empty() {
        joined.insert(0, ' ');
    }
    Ok(Val::str(joined))
}

fn indent(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [width, first, blank] = args.bind("do_indent", ["width", "first", "blank"], 0)?;
    let by = match &width {
        Some(Val::Str(text) | Val::Markup(text)) => text.to_string(),
        width => {
            let width = num::size(int_arg(width.as_ref(), 4)?);
            budget::room(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (flag(first.as_ref(), false)?, flag(blank.as_ref(), false)?);
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let Some(plain) = val.as_str() else {
        return Err(type_error(format!(
            "unsupported operand type(s) for +=: '{}' and 'str'",
            val.type_name()
        )));
    };
    let whole = format!("{plain}\n");
    let lines = text::lines(&whole, false);
    budget::room(plain.len().saturating_add(lines.len().saturating_mul(by.len())))?;
    let mut out = String::new();
    if first {
        out.push_str(&by);
    }
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&by);
            }
        }
        out.push_str(line);
    }
    Ok(Val::text_like(&val, out))
}

/// `shlex.quote`
fn quote(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("quote")?;
    if !ops::truth(&val)? {
        return Ok(Val::from("''"));
    }
    let plain = want_str(&val, "quote")?;
    let safe = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '%' | '+' | '=' | ':' | ',' | '.' | '/' | '-')
    };
    if plain.chars().all(safe) {
        return Ok(val.clone());
    }
    Ok(Val::str(format!("'{}'", plain.replace('\'', "'\"'\"'"))))
}

fn skip(_: &mut Interp<'_>, _: Val, args: Args) -> Res<Val> {
    args.none("skip_filter")?;
    Ok(Val::from(""))
}

fn to_camelcase(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [upper] = args.bind("snake_to_camel_case", ["uppercamel"], 0)?;
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let plain = want_str(&val, "split")?;
    let mut words = plain.split('_');
    let mut out = String::new();
    if !flag(upper.as_ref(), false)? {
        out.push_str(words.next().unwrap_or_default());
    }
    words.for_each(|word| out.push_str(&text::capitalize(word)));
    Ok(Val::str(out))
}

fn to_snake_case(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("camel_to_snake_case")?;
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let chars: Vec<char> = want_str(&val, "camel_to_snake_case")?.chars().collect();
    let lower = |i: usize| chars.get(i).is_some_and(|c| c.is_lowercase());
    let Some(first) = chars.first() else {
        return Err(exc::lookup_error("string index out of range"));
    };
    let mut out: String = first.to_lowercase().collect();
    for (i, c) in chars.iter().enumerate().skip(1) {
        if c.is_uppercase() && (lower(i - 1) || lower(i + 1)) {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    Ok(Val::str(out))
}

fn contains_whitespace(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("contains_whitespace")?;
    for item in interp.collect(&val)? {
        let Some(part) = item.as_str() else {
            return Err(type_error(format!("'{}' object has no attribute 'isspace'", item.type_name())));
        };
        if text::all(part, is_space) {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}

fn path_join(_: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    let normalized = load::normalized;
    args.take("use_posixpath");
    if let Some((name, _)) = args.kw.first() {
        return Err(type_error(format!("The following keyword arguments are not valid: {name}")));
    }
    let root = normalized(want_str(&val, "join")?);
    let mut path = root;
    for part in &args.pos {
        let part = normalized(want_str(part, "join")?);
        let part = part.trim_start_matches('/');
        if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(part);
    }
    Ok(Val::str(normalized(&path)))
}

fn yaml_dquote(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("yaml_dquote")?;
    Ok(Val::str(scalar::dquote(&repr::str(&val)?)))
}

fn yaml_squote(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("yaml_squote")?;
    Ok(Val::str(scalar::squote(&repr::str(&val)?)))
}

fn yaml_encode(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("yaml_encode")?;
    scalar::encode(&val).map(Val::str)
}

/// Any method, by its name; none gives nothing.
fn method_call(interp: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    let name = match args.take("f_name") {
        Some(name) => name,
        None if args.pos.is_empty() => {
            return Err(type_error("method_call() missing 1 required positional argument: 'f_name'"));
        }
        None => args.pos.remove(0),
    };
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let name = want_str(&name, "getattr")?;
    match access::method_name(&val, name) {
        Some(method) => interp.call_method(&val, method, args),
        None if name.starts_with('_') => Err(exc::not_native(format!("method_call of {name}"))),
        None => match &val {
            Val::Object(object) if matches!(&**object, Object::Iter(_)) => {
                Err(exc::not_native("method_call of an iterator"))
            }
            _ => Ok(Val::None),
        },
    }
}
