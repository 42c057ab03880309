//! Filters and tests, for types and arguments where their results are certain.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;

use minijinja::Value;
use regex::bytes::{Regex, RegexBuilder};

use super::budget;
use super::call::{Args, method, replace};
use super::error::{Res, not_native};
use super::ops::{self, Notation};
use super::value::{Kind, Obj, View, kind, lazy, list, member, text};

/// Whether a filter is native.
pub(super) fn is_filter(name: &str) -> bool {
    matches!(
        name,
        "count"
            | "d"
            | "default"
            | "dictsort"
            | "first"
            | "int"
            | "items"
            | "join"
            | "json"
            | "last"
            | "length"
            | "list"
            | "lower"
            | "map"
            | "reject"
            | "rejectattr"
            | "replace"
            | "select"
            | "selectattr"
            | "sort"
            | "string"
            | "tojson"
            | "trim"
            | "upper"
            | "yaml_dquote"
            | "yaml_encode"
            | "yaml_squote"
    )
}

/// Whether a filter returns a generator in Jinja.
pub(super) fn is_lazy(name: &str) -> bool {
    matches!(
        name,
        "items" | "map" | "reject" | "rejectattr" | "select" | "selectattr"
    )
}

/// Whether a filter consumes its input immediately.
pub(super) fn consumes(name: &str) -> bool {
    matches!(name, "first" | "join" | "list" | "sort")
}

/// Whether a test with this number of arguments is native.
pub(super) fn is_test(name: &str, args: usize) -> bool {
    match args {
        0 => matches!(
            name,
            "boolean"
                | "defined"
                | "even"
                | "false"
                | "float"
                | "integer"
                | "iterable"
                | "list"
                | "mapping"
                | "none"
                | "number"
                | "odd"
                | "sequence"
                | "string"
                | "true"
                | "undefined"
        ),
        1 => matches!(
            name,
            "eq" | "equalto" | "ge" | "gt" | "in" | "le" | "lt" | "match" | "ne"
        ),
        _ => false,
    }
}

fn size(value: usize) -> Value {
    Value::from(i64::try_from(value).unwrap_or(i64::MAX))
}

fn truth(value: &Value) -> Res<bool> {
    if value.is_undefined() {
        not_native("an undefined value")
    } else {
        Ok(value.is_true())
    }
}

/// `value|name(..)`
pub(crate) fn apply(name: &str, value: &Value, args: &Args<'_>) -> Res<Value> {
    budget::spend(1)?;
    if name == "default" || name == "d" {
        let [otherwise, falsy] = args.bind(["default_value", "boolean"])?;
        // Without the flag only undefined values are replaced.
        let falsy = falsy.map_or(Ok(false), truth)?;
        let missing = value.is_undefined() || (falsy && !value.is_true());
        return Ok(if missing {
            otherwise.cloned().unwrap_or_else(|| Value::from(""))
        } else {
            value.clone()
        });
    }

    // The result of `json` is markup, to which further text would be added escaped.
    if matches!(kind(value), Kind::Undefined | Kind::Markup(_)) {
        return not_native("a filter of an undefined value or of JSON text");
    }

    match name {
        "json" | "tojson" => {
            args.bind::<0>([])?;
            let mut out = String::new();
            let notation = if name == "json" {
                Notation::Json
            } else {
                Notation::AsciiJson
            };

            ops::write(value, notation, 0, &mut out)?;
            if name == "json" {
                budget::charge(out.len())?;
                return Ok(Value::from_safe_string(out));
            }

            // Jinja's `tojson` is safe within HTML.
            text(
                out.replace('<', "\\u003c")
                    .replace('>', "\\u003e")
                    .replace('&', "\\u0026")
                    .replace('\'', "\\u0027"),
            )
        }
        "yaml_dquote" | "yaml_squote" | "yaml_encode" => {
            args.bind::<0>([])?;
            quoted(name, value)
        }
        "length" | "count" => {
            args.bind::<0>([])?;
            ops::length(value).map(size)
        }
        "lower" | "upper" => {
            // The filter takes a value of any type, the method only a string.
            let of = Value::from(ops::string(value)?);
            method(&of, name, args)
        }
        "trim" => {
            let of = Value::from(ops::string(value)?);
            method(&of, "strip", args)
        }
        "string" => {
            args.bind::<0>([])?;
            text(ops::string(value)?)
        }
        "replace" => {
            let [old, new] = args.bind(["old", "new"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return not_native("a replacement without arguments");
            };
            replace(
                &ops::string(value)?,
                &ops::string(old)?,
                &ops::string(new)?,
                -1,
            )
        }
        "int" => integer(value, args),
        "list" => {
            args.bind::<0>([])?;

            let items = ops::items(value)?;
            items.iter().try_for_each(|item| member(item, None))?;
            Ok(list(items))
        }
        "items" => {
            args.bind::<0>([])?;
            match value.downcast_object_ref::<Obj>() {
                Some(object @ Obj::Dict(_)) => Ok(lazy(object.seen(View::Items)?)),
                _ => not_native("the items of another type than dict"),
            }
        }
        "first" | "last" => {
            args.bind::<0>([])?;
            match (name, kind(value)) {
                (_, Kind::Str(_) | Kind::List(_) | Kind::Tuple(_))
                | ("first", Kind::Lazy(_) | Kind::View(..) | Kind::Dict(_)) => {
                    let items = ops::items(value)?;
                    let found = if name == "first" {
                        items.first()
                    } else {
                        items.last()
                    };
                    Ok(found.cloned().unwrap_or(Value::UNDEFINED))
                }
                _ => not_native("the first or last item of this type"),
            }
        }
        "sort" => sort(value, args),
        "dictsort" => {
            args.bind::<0>([])?;
            let Some(object @ Obj::Dict(_)) = value.downcast_object_ref::<Obj>() else {
                return not_native("`dictsort` of another type than dict");
            };

            let pairs = object.seen(View::Items)?;
            // Jinja sorts without regard to case, which is certain for ASCII only.
            let mut keyed = pairs
                .into_iter()
                .map(|pair| match kind(&ops::item(&pair, &Value::from(0))?) {
                    Kind::Str(key) if key.is_ascii() => Ok((key.to_ascii_lowercase(), pair)),
                    _ => not_native("a sort of rare keys"),
                })
                .collect::<Res<Vec<_>>>()?;

            keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(list(keyed.into_iter().map(|(_, pair)| pair).collect()))
        }
        "join" => {
            let [by] = args.bind(["d"])?;
            let by = by.map_or_else(|| Ok(String::new()), ops::string)?;
            let parts = ops::items(value)?;

            if parts
                .iter()
                .any(|part| matches!(kind(part), Kind::Markup(_)))
            {
                return not_native("a join of JSON text");
            }

            let parts = parts.iter().map(ops::string).collect::<Res<Vec<_>>>()?;
            budget::charge(parts.len() * by.len())?;
            text(parts.join(&by))
        }
        "map" => map(value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, value, args),
        _ => not_native(format!("the filter {name:?}")),
    }
}

/// The attribute of an item by its path: names and indexes with dots between.
fn attribute(item: &Value, path: &Value) -> Res<Value> {
    match kind(path) {
        Kind::Int(_) => ops::item(item, path),
        Kind::Str(path) => {
            let mut found = item.clone();
            for part in path.split('.') {
                let part = attribute_part(part)?;
                if found.is_undefined() {
                    return not_native("an attribute of an undefined value");
                }
                found = ops::item(&found, &part)?;
            }
            Ok(found)
        }
        _ => not_native("an attribute of a rare type"),
    }
}

/// One name or index of such a path. Jinja reads a part as a number if it consists of digits
/// (`isdigit`); a sign makes it a name.
fn attribute_part(part: &str) -> Res<Value> {
    if !part.is_ascii() {
        // Some characters are digits of Unicode, of which Python reads some as a number.
        return not_native("an attribute with letters outside ASCII");
    }
    if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Value::from(part));
    }
    part.parse::<i64>().map_or_else(
        |_| not_native("an index of more than 64 bits"),
        |index| Ok(Value::from(index)),
    )
}

fn map(value: &Value, args: &Args<'_>) -> Res<Value> {
    let items = ops::items(value)?;

    let each = |item: &Value| match (args.pos, args.named.as_slice()) {
        ([], [("attribute", path)]) => attribute(item, path),
        ([name], []) => {
            let Some(
                name
                @ ("lower" | "upper" | "trim" | "string" | "int" | "length" | "first" | "last"),
            ) = name.as_str()
            else {
                return not_native("this `map`");
            };
            apply(
                name,
                item,
                &Args {
                    pos: &[],
                    named: Vec::new(),
                },
            )
        }
        _ => not_native("this `map`"),
    };

    let mapped = items.iter().map(each).collect::<Res<Vec<_>>>()?;
    // The items may become members of a list.
    mapped.iter().try_for_each(|item| member(item, None))?;
    Ok(lazy(mapped))
}

fn select(name: &str, value: &Value, args: &Args<'_>) -> Res<Value> {
    if !args.named.is_empty() {
        return not_native("this selection");
    }

    let (path, args) = match (name.ends_with("attr"), args.pos) {
        (true, [path, rest @ ..]) => (Some(path), rest),
        (false, rest) => (None, rest),
        _ => return not_native("a selection without an attribute"),
    };

    // `reject` keeps what does not pass.
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    for item in ops::items(value)? {
        let tested = match path {
            Some(path) => attribute(&item, path)?,
            None => item.clone(),
        };

        let passed = match args {
            // Without a test the truth of the value decides.
            [] => truth(&tested)?,
            [name, rest @ ..] => match name.as_str() {
                Some(name) if is_test(name, rest.len()) => test(name, &tested, rest)?,
                _ => return not_native("a selection by this test"),
            },
        };

        if passed == wanted {
            kept.push(item);
        }
    }

    Ok(lazy(kept))
}

fn sort(value: &Value, args: &Args<'_>) -> Res<Value> {
    let [reverse, case_sensitive, path] = args.bind(["reverse", "case_sensitive", "attribute"])?;
    // Python's `sorted` accepts integers for `reverse`, and no other types.
    let flag = |value: Option<&Value>| match value.map(kind) {
        None => Ok(false),
        Some(Kind::Bool(flag)) => Ok(flag),
        _ => not_native("a sort with another flag than a boolean"),
    };
    let (reverse, case_sensitive) = (flag(reverse)?, flag(case_sensitive)?);

    // Only here Jinja takes a comma as the end of a path, and sorts by several.
    if path
        .and_then(Value::as_str)
        .is_some_and(|path| path.contains(','))
    {
        return not_native("a sort by several attributes");
    }

    let keyed = ops::items(value)?
        .into_iter()
        .map(|item| {
            member(&item, None)?;
            let key = path.map_or_else(|| Ok(item.clone()), |path| attribute(&item, path))?;
            let key = match kind(&key) {
                Kind::Str(text) if case_sensitive => Value::from(text),
                // Lower case is certain for ASCII only.
                Kind::Str(text) if text.is_ascii() => Value::from(text.to_ascii_lowercase()),
                Kind::Int(i) => Value::from(i),
                _ => return not_native("a sort of other types than strings and integers"),
            };
            Ok((key, item))
        })
        .collect::<Res<Vec<_>>>()?;

    // Python raises when it compares a string with a number.
    let is_text = |key: &Value| key.as_str().is_some();
    if keyed
        .windows(2)
        .any(|pair| matches!(pair, [(a, _), (b, _)] if is_text(a) != is_text(b)))
    {
        return not_native("a sort of strings and numbers");
    }

    let mut keyed = keyed;
    // A sort takes several steps per item.
    budget::spend(keyed.len() * 8)?;
    let order = |a: &Value, b: &Value| match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => a.cmp(b),
        _ => a.as_i64().cmp(&b.as_i64()),
    };

    // Stable in both directions, like Python's `sorted`.
    keyed.sort_by(|(a, _), (b, _)| if reverse { order(b, a) } else { order(a, b) });
    Ok(list(keyed.into_iter().map(|(_, item)| item).collect()))
}

fn integer(value: &Value, args: &Args<'_>) -> Res<Value> {
    args.bind::<0>([])?;
    match kind(value) {
        Kind::Int(i) => Ok(Value::from(i)),
        Kind::Bool(b) => Ok(Value::from(i64::from(b))),
        Kind::None => Ok(Value::from(0)),
        Kind::Str(text) => {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            if !digits.is_empty()
                && digits.len() <= 15
                && digits.bytes().all(|b| b.is_ascii_digit())
            {
                return Ok(Value::from(
                    text.trim_start_matches('+').parse::<i64>().unwrap_or(0),
                ));
            }

            // Python also reads `inf` and `nan`.
            let is_word =
                text.starts_with(|c: char| c.is_ascii_alphabetic() && !"iInN".contains(c));
            if is_word {
                Ok(Value::from(0))
            } else {
                not_native("a number in a rare notation")
            }
        }
        _ => not_native("the filter \"int\" of this type"),
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

fn quoted(name: &str, value: &Value) -> Res<Value> {
    let of = match (name, kind(value)) {
        ("yaml_encode", Kind::Int(_)) => return text(ops::string(value)?),
        ("yaml_encode", Kind::Bool(b)) => return Ok(Value::from(if b { "true" } else { "false" })),
        ("yaml_encode", Kind::None) => return Ok(Value::from("null")),
        (_, Kind::Str(text)) => text,
        _ => return not_native("a quotation of a rare type"),
    };

    // What is escaped outside ASCII is up to Salt's YAML library.
    if !is_printable(of) {
        return not_native("a quotation of characters outside ASCII");
    }

    text(if name == "yaml_squote" {
        format!("'{}'", of.replace('\'', "''"))
    } else {
        format!("\"{}\"", of.replace('\\', "\\\\").replace('"', "\\\""))
    })
}

/// `value is name(..)`
pub(crate) fn test(name: &str, value: &Value, args: &[Value]) -> Res<bool> {
    budget::spend(1)?;
    let of = kind(value);

    // The only tests of an undefined value.
    match name {
        "defined" => return Ok(!value.is_undefined()),
        "undefined" => return Ok(value.is_undefined()),
        _ => {}
    }

    if matches!(
        of,
        Kind::Undefined | Kind::Markup(_) | Kind::Other | Kind::Lazy(_)
    ) {
        return not_native(format!("the test {name:?} of a rare type"));
    }

    let other = || {
        args.first()
            .map_or_else(|| not_native("a test without an argument"), Ok)
    };
    let order = || ops::order(value, other()?);

    Ok(match name {
        "none" => matches!(of, Kind::None),
        "boolean" => matches!(of, Kind::Bool(_)),
        "true" => matches!(of, Kind::Bool(true)),
        "false" => matches!(of, Kind::Bool(false)),
        "integer" => matches!(of, Kind::Int(_)),
        "float" => matches!(of, Kind::Float(_)),
        "number" => matches!(of, Kind::Int(_) | Kind::Float(_) | Kind::Bool(_)),
        "string" => matches!(of, Kind::Str(_)),
        "mapping" => matches!(of, Kind::Dict(_)),
        "list" => matches!(of, Kind::List(_)),
        "sequence" | "iterable" => match of {
            Kind::Str(_) | Kind::List(_) | Kind::Tuple(_) | Kind::Dict(_) => true,
            Kind::None | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) => false,
            _ => return not_native(format!("the test {name:?} of a rare type")),
        },
        "odd" | "even" => match of {
            Kind::Int(i) => (i % 2 != 0) == (name == "odd"),
            _ => return not_native(format!("the test {name:?} of another type than int")),
        },
        "eq" | "equalto" => ops::equal(value, other()?, 0)?,
        "ne" => !ops::equal(value, other()?, 0)?,
        "in" => ops::contains(other()?, value)?,
        "gt" => order()? == Some(Ordering::Greater),
        "lt" => order()? == Some(Ordering::Less),
        "ge" => matches!(order()?, Some(Ordering::Greater | Ordering::Equal)),
        "le" => matches!(order()?, Some(Ordering::Less | Ordering::Equal)),
        "match" => match (of, kind(other()?)) {
            (Kind::Str(text), Kind::Str(pattern)) => matches_start(text, pattern)?,
            _ => return not_native("a match of another type than a string"),
        },
        _ => return not_native(format!("the test {name:?}")),
    })
}

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

/// `re.match`, for patterns with equal semantics in Python and here.
fn matches_start(text: &str, pattern: &str) -> Res<bool> {
    if !is_printable(text) || !is_common(pattern) {
        return not_native("a pattern with constructs of Python");
    }
    budget::spend(1 + text.len() / 8)?;

    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(regex) = patterns.get(pattern) {
            return Ok(regex.is_match(text.as_bytes()));
        }

        // A pattern may come from data, so the size of its program is limited.
        let anchored = format!("^(?:{pattern})");
        let Ok(regex) = RegexBuilder::new(&anchored)
            .unicode(false)
            .size_limit(1 << 18)
            .build()
        else {
            return not_native("a regular expression that is not supported");
        };

        // There are few patterns, unless they contain data.
        if patterns.len() >= 64 {
            patterns.clear();
        }
        let is_match = regex.is_match(text.as_bytes());
        patterns.insert(pattern.to_owned(), regex);
        Ok(is_match)
    })
}

/// Whether a pattern contains only literals, dots, plain classes, groups and single quantifiers.
fn is_common(pattern: &str) -> bool {
    if ["[]", "[^]", "(?"]
        .iter()
        .any(|rare| pattern.contains(rare))
    {
        return false;
    }

    // `before` is the last token; `(` and `^` also stand for a place without anything to repeat.
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    let mut before = '(';
    while let Some(c) = chars.next() {
        let next = chars.peek().copied().unwrap_or(' ');

        let common = match c {
            '\\' => chars
                .next()
                .is_some_and(|c| "dDwWsS.-/()[]+*?^$|".contains(c)),
            '[' => !std::mem::replace(&mut in_class, true),
            ']' => std::mem::replace(&mut in_class, false),
            '&' | '~' | '|' | '-' if in_class => next != c,
            // `*?` is lazy in both; `*+` is possessive in newer versions of Python.
            '*' | '+' | '?' if !in_class => {
                !"(|*+?^$".contains(before) || (c == '?' && "*+?".contains(before))
            }
            '{' | '}' => false,
            c => c.is_ascii(),
        };

        if !common {
            return false;
        }

        before = match c {
            '?' if "*+?".contains(before) => '^',
            '\\' => 'x',
            c => c,
        };
    }

    !in_class
}
