//! Filters that lay text out.

use super::numbers;
use super::serialize;
use super::{Filter, flag, int_arg, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, not_native, type_error, value_error};
use crate::sls::jinja::methods::text::want_str;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text::{self, is_space};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("wordwrap", wordwrap),
    ("filesizeformat", filesizeformat),
    ("pprint", pprint),
    ("python", python),
    ("urlize", urlize),
];

/// The pieces between which a line may end: words, white space, and what follows a hyphen within a word.
fn chunks(line: &str, break_on_hyphens: bool) -> Vec<String> {
    let mut chunks: Vec<String> = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let blank = is_space(first);
        let end = rest.find(|c| is_space(c) != blank).unwrap_or(rest.len());
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        if blank || !break_on_hyphens {
            chunks.push(piece.to_owned());
            continue;
        }
        let chars: Vec<char> = piece.chars().collect();
        let at = |i: usize| chars.get(i).copied();
        let letter = |i: usize| at(i).is_some_and(|c| c.is_alphabetic() || c == '_');
        let mut word = String::new();
        let mut i = 0;
        while let Some(c) = at(i) {
            // A dash of two or more hyphens is a piece of its own between words.
            if c == '-' && at(i + 1) == Some('-') {
                let mut end = i;
                while at(end) == Some('-') {
                    end += 1;
                }
                let word_before = i > 0
                    && at(i - 1).is_some_and(|c| {
                        c.is_alphanumeric() || matches!(c, '_' | '!' | '"' | '\'' | '&' | '.' | ',' | '?')
                    });
                if word_before && at(end).is_some_and(|c| c.is_alphanumeric() || c == '_') {
                    if !word.is_empty() {
                        chunks.push(std::mem::take(&mut word));
                    }
                    chunks.push("-".repeat(end - i));
                } else {
                    word.extend(std::iter::repeat_n('-', end - i));
                }
                i = end;
                continue;
            }
            word.push(c);
            i += 1;
            // A hyphen after two letters (or letter, hyphen, letter) and before two letters ends a piece.
            let before = c == '-'
                && i >= 3
                && letter(i - 2)
                && (letter(i - 3) || (at(i - 3) == Some('-') && i >= 4 && letter(i - 4)));
            let after = letter(i) && (letter(i + 1) || (at(i + 1) == Some('-') && letter(i + 2)));
            if before && after {
                chunks.push(std::mem::take(&mut word));
            }
        }
        if !word.is_empty() {
            chunks.push(word);
        }
    }
    chunks
}

/// `textwrap.wrap` of one line, with its white space kept.
fn wrapped(line: &str, width: usize, break_long_words: bool, break_on_hyphens: bool) -> Res<Vec<String>> {
    if width == 0 {
        return Err(value_error("invalid width 0 (must be > 0)"));
    }
    let mut chunks = chunks(line, break_on_hyphens);
    chunks.reverse();
    let mut lines: Vec<String> = Vec::new();
    let is_blank = |chunk: &str| chunk.chars().all(is_space);
    while !chunks.is_empty() {
        budget::step()?;
        let mut current: Vec<String> = Vec::new();
        let mut len = 0;
        if !lines.is_empty() && chunks.last().is_some_and(|chunk| is_blank(chunk)) {
            chunks.pop();
        }
        while let Some(chunk) = chunks.last() {
            let chunk_len = text::len(chunk);
            if len + chunk_len > width {
                break;
            }
            len += chunk_len;
            current.extend(chunks.pop());
        }
        if chunks.last().is_some_and(|chunk| text::len(chunk) > width) {
            let space_left = width.saturating_sub(len);
            if break_long_words {
                if let Some(chunk) = chunks.pop() {
                    budget::steps((chunk.len() / 64) as u64)?;
                    let mut end = text::byte_of(&chunk, space_left);
                    if break_on_hyphens && text::len(&chunk) > space_left {
                        let hyphen = chunk.get(..end).and_then(|head| head.rfind('-'));
                        if let Some(hyphen) = hyphen.filter(|i| {
                            *i > 0 && chunk.get(..*i).is_some_and(|head| head.contains(|c| c != '-'))
                        }) {
                            end = hyphen + 1;
                        }
                    }
                    let (head, tail) = chunk.split_at(end);
                    current.push(head.to_owned());
                    chunks.push(tail.to_owned());
                }
            } else if current.is_empty() {
                current.extend(chunks.pop());
            }
        }
        if current.last().is_some_and(|chunk| is_blank(chunk)) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.concat());
        }
    }
    Ok(lines)
}

fn wordwrap(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [width, break_long_words, wrapstring, break_on_hyphens] =
        args.bind("do_wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"], 0)?;
    let width = num::size(int_arg(width.as_ref(), 79)?);
    let long = flag(break_long_words.as_ref(), true)?;
    let hyphens = flag(break_on_hyphens.as_ref(), true)?;
    let between = match wrapstring {
        None | Some(Val::None) => text_arg(None, "\n")?,
        other => text_arg(other, "\n")?,
    };
    if let Val::Undef(undef) = &val {
        return Err(undef.fail());
    }
    let plain = want_str(&val, "splitlines")?;
    let mut paragraphs = Vec::new();
    for line in text::lines(plain, false) {
        paragraphs.push(wrapped(line, width, long, hyphens)?.join(&between));
    }
    let out = paragraphs.join(&between);
    budget::room(out.len())?;
    Ok(Val::str(out))
}

fn filesizeformat(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [binary] = args.bind("do_filesizeformat", ["binary"], 0)?;
    let binary = flag(binary.as_ref(), false)?;
    let bytes = numbers::to_float(interp, &val)?;
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if (bytes - 1.0).abs() < f64::EPSILON {
        return Ok(Val::from("1 Byte"));
    }
    if bytes < base {
        let whole = num::trunc(bytes).ok_or_else(|| value_error("cannot convert float NaN to integer"))?;
        return Ok(Val::str(format!("{whole} Bytes")));
    }
    let prefixes = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    let mut unit = base * base;
    for (i, prefix) in prefixes.iter().enumerate() {
        if bytes < unit || i + 1 == prefixes.len() {
            return Ok(Val::str(format!("{:.1} {prefix}", base * bytes / unit)));
        }
        unit *= base;
    }
    Ok(Val::from(""))
}

/// A value on one line, its mappings sorted.
fn sorted_repr(val: &Val) -> Res<String> {
    let _level = budget::deeper()?;
    budget::step()?;
    let joined = |items: &[Val]| -> Res<String> {
        Ok(items.iter().map(sorted_repr).collect::<Res<Vec<_>>>()?.join(", "))
    };
    let line = match val {
        Val::List(list) => format!("[{}]", joined(&list.items())?),
        Val::Tuple(tuple) if tuple.items.len() == 1 => format!("({},)", joined(&tuple.items)?),
        Val::Tuple(tuple) => format!("({})", joined(&tuple.items)?),
        Val::Dict(dict) if !dict.ordered => {
            let mut parts = Vec::new();
            for (key, value) in sorted_pairs(dict)? {
                parts.push(format!("{}: {}", sorted_repr(&key)?, sorted_repr(&value)?));
            }
            format!("{{{}}}", parts.join(", "))
        }
        other => repr::repr(other)?,
    };
    // A value may hold another one twice, so that lines grow faster than what was evaluated.
    budget::took(line.len());
    budget::room(0)?;
    Ok(line)
}

/// Begins a line of [`pretty`]. Keys are as wide as they like.
fn indented(width: usize, out: &mut String) -> Res<()> {
    budget::room(out.len().saturating_add(width))?;
    out.push_str(",\n");
    out.extend(std::iter::repeat_n(' ', width));
    Ok(())
}

fn sorted_pairs(dict: &val::Dict) -> Res<Vec<(Val, Val)>> {
    let pairs = dict.pairs();
    let keyed = pairs
        .iter()
        .map(|(key, value)| (key.clone(), Val::tuple(vec![key.clone(), value.clone()])))
        .collect();
    let Ok(sorted) = ops::sort(keyed, false) else {
        return Err(not_native("pprint of a mapping with keys of several types"));
    };
    Ok(sorted
        .into_iter()
        .filter_map(|pair| match pair {
            Val::Tuple(tuple) => Some((tuple.items.first()?.clone(), tuple.items.get(1)?.clone())),
            _ => None,
        })
        .collect())
}

/// A value over as many lines as it needs for 80 columns.
fn pretty(val: &Val, indent: usize, allowance: usize, out: &mut String) -> Res<()> {
    let _level = budget::deeper()?;
    let line = sorted_repr(val)?;
    if text::len(&line) <= 80_usize.saturating_sub(indent).saturating_sub(allowance) {
        out.push_str(&line);
        return Ok(());
    }
    let rows = |items: &[Val], open: &str, close: &str, out: &mut String| -> Res<()> {
        out.push_str(open);
        let indent = indent + open.len();
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                indented(indent, out)?;
            }
            let last = i + 1 == items.len();
            pretty(item, indent, if last { allowance + close.len() } else { 1 }, out)?;
        }
        out.push_str(close);
        Ok(())
    };
    match val {
        Val::List(list) => rows(&list.items(), "[", "]", out),
        Val::Tuple(tuple) => rows(&tuple.items, "(", if tuple.items.len() == 1 { ",)" } else { ")" }, out),
        Val::Dict(dict) if !dict.ordered => {
            out.push('{');
            let pairs = sorted_pairs(dict)?;
            for (i, (key, value)) in pairs.iter().enumerate() {
                if i > 0 {
                    indented(indent + 1, out)?;
                }
                let key = sorted_repr(key)?;
                out.push_str(&key);
                out.push_str(": ");
                let last = i + 1 == pairs.len();
                pretty(value, indent + 1 + text::len(&key) + 2, if last { allowance + 1 } else { 1 }, out)?;
            }
            out.push('}');
            Ok(())
        }
        Val::Str(text) if text.contains([' ', '\n']) => {
            Err(not_native("pprint of text of more than 80 columns"))
        }
        Val::Set(_) | Val::Dict(_) | Val::Bytes(_) => Err(not_native("pprint of a long value of this type")),
        _ => {
            out.push_str(&line);
            Ok(())
        }
    }
}

fn pprint(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_pprint")?;
    let mut out = String::new();
    pretty(&val, 0, 0, &mut out)?;
    Ok(Val::str(out))
}

fn python(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("format_python")?;
    if let Some(undefined) = serialize::undefined_within(&val)? {
        return Ok(undefined);
    }
    let text = pprint(interp, val, Args::default())?;
    Ok(Val::markup(text.as_str().unwrap_or_default().trim_matches(is_space)))
}

/// Links are made of few texts here; what might need one is left to Salt.
fn urlize(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let _ = args;
    if let Val::Undef(undef) = &val {
        undef.check()?;
    }
    let Some(plain) = val.as_str() else { return Err(type_error("urlize wants text")) };
    if plain.contains(['@', ':', '.']) {
        return Err(not_native("urlize"));
    }
    Ok(Val::str(if matches!(val, Val::Markup(_)) { plain.to_owned() } else { text::escaped(plain) }))
}
