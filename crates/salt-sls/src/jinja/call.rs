//! Methods of strings, lists and dicts, and the functions `range`, `namespace` and `salt[...]`.

use std::sync::Arc;

use minijinja::Value;
use parking_lot::Mutex;

use super::budget;
use super::error::{Res, not_native};
use super::ops;
use super::value::{Kind, Obj, Pairs, View, dict, key, kind, lazy, list, member, text, to_plain};
use crate::limits;
use crate::python::text::{self as python, is_space};
use crate::value::{Key, Map};

/// Whether a method is native, and if so, whether it changes its object.
pub(crate) fn is_mutating(name: &str) -> Option<bool> {
    match name {
        "append" | "extend" | "pop" | "setdefault" | "update" => Some(true),
        "copy" | "endswith" | "format" | "get" | "items" | "join" | "keys" | "lower" | "lstrip"
        | "replace" | "rsplit" | "rstrip" | "split" | "startswith" | "strip" | "upper"
        | "values" => Some(false),
        _ => None,
    }
}

/// The arguments of a call.
pub(crate) struct Args<'a> {
    pub(crate) pos: &'a [Value],
    pub(crate) named: Vec<(&'a str, &'a Value)>,
}

impl<'a> Args<'a> {
    /// Parses the encoding of [`super::translate`]: the number of positional arguments, these, then
    /// names and values in turn.
    pub(crate) fn of(all: &'a [Value]) -> Res<Self> {
        let Some((count, rest)) = all.split_first() else {
            return not_native("a call");
        };
        let count = count.as_usize().unwrap_or(0);
        // The translation never makes such a call; it is rejected rather than trusted.
        let (Some(pos), Some(named)) = (rest.get(..count), rest.get(count..)) else {
            return not_native("a call");
        };

        let pair = |pair: &'a [Value]| match pair {
            [name, value] => name.as_str().map(|name| (name, value)),
            _ => None,
        };

        Ok(Self {
            pos,
            named: named.chunks(2).filter_map(pair).collect(),
        })
    }

    /// The arguments of these names, positional or named. A call with other arguments is not
    /// native.
    pub(crate) fn bind<const N: usize>(&self, names: [&str; N]) -> Res<[Option<&'a Value>; N]> {
        let mut bound = [None; N];
        if self.pos.len() > N {
            return not_native("a call with more arguments");
        }

        for (place, value) in bound.iter_mut().zip(self.pos) {
            *place = Some(value);
        }

        for (name, value) in &self.named {
            let place = names
                .iter()
                .position(|known| known == name)
                .and_then(|at| bound.get_mut(at));
            match place {
                Some(place @ None) => *place = Some(*value),
                // Python raises at an argument that is given twice or not known.
                _ => return not_native(format!("a call with the argument {name:?}")),
            }
        }

        Ok(bound)
    }

    /// Positional arguments. A call with named arguments is not native.
    fn places<const N: usize>(&self) -> Res<[Option<&'a Value>; N]> {
        if self.named.is_empty() {
            self.bind([""; N])
        } else {
            not_native("a call with named arguments")
        }
    }
}

fn wanted_text(value: Option<&Value>) -> Res<&str> {
    match value.map(kind) {
        Some(Kind::Str(text)) => Ok(text),
        _ => not_native("a call with another type than a string"),
    }
}

fn wanted_int(value: Option<&Value>, otherwise: i64) -> Res<i64> {
    match value.map(kind) {
        None => Ok(otherwise),
        Some(Kind::Int(i)) => Ok(i),
        _ => not_native("a call with another type than int"),
    }
}

/// `value.name(..)`
pub(crate) fn method(value: &Value, name: &str, args: &Args<'_>) -> Res<Value> {
    budget::spend(1)?;
    match kind(value) {
        Kind::Str(of) => {
            budget::spend(of.len() / 64)?;
            of_text(of, name, args)
        }
        Kind::Dict(_) => of_mapping(value, name, args),
        Kind::List(_) => of_list(value, name, args),
        Kind::Undefined => not_native("a method of an undefined value"),
        _ => not_native(format!("the method {name:?} of this type")),
    }
}

fn texts<'a>(items: impl IntoIterator<Item = &'a str>) -> Res<Value> {
    let items: Vec<Value> = items.into_iter().map(Value::from).collect();
    budget::spend(items.len())?;
    budget::charge(items.len() * 24)?;
    Ok(list(items))
}

fn of_text(of: &str, name: &str, args: &Args<'_>) -> Res<Value> {
    match name {
        "lower" | "upper" => {
            args.places::<0>()?;
            // Tables of Unicode differ between versions.
            if !of.is_ascii() {
                return not_native("the case of letters outside ASCII");
            }
            text(if name == "lower" {
                of.to_ascii_lowercase()
            } else {
                of.to_ascii_uppercase()
            })
        }
        "startswith" | "endswith" => {
            let [with] = args.places()?;

            let is = |with: &str| {
                if name == "startswith" {
                    of.starts_with(with)
                } else {
                    of.ends_with(with)
                }
            };

            match with.map(kind) {
                Some(Kind::Str(with)) => Ok(Value::from(is(with))),
                Some(Kind::Tuple(all)) => {
                    for with in all {
                        if is(wanted_text(Some(with))?) {
                            return Ok(Value::from(true));
                        }
                    }
                    Ok(Value::from(false))
                }
                _ => not_native("a call with another type than a string"),
            }
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.places()?;
            let chars = match chars.map(kind) {
                None | Some(Kind::None) => None,
                Some(Kind::Str(chars)) => Some(chars),
                _ => return not_native("a call with another type than a string"),
            };

            let out = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            Ok(Value::from(match name {
                "strip" => of.trim_matches(out),
                "lstrip" => of.trim_start_matches(out),
                _ => of.trim_end_matches(out),
            }))
        }
        "split" | "rsplit" => {
            let [by, max] = args.bind(["sep", "maxsplit"])?;
            let max = usize::try_from(wanted_int(max, -1)?).ok();

            match by.map(kind) {
                // `rsplit` would count the words from the end.
                None | Some(Kind::None) if name == "split" => texts(python::words(of, max)),
                Some(Kind::Str(by)) if !by.is_empty() => {
                    let count = max.map_or(usize::MAX, |max| max.saturating_add(1));
                    if name == "split" {
                        return texts(of.splitn(count, by));
                    }

                    // Python returns the parts in the order of the text.
                    let mut parts: Vec<&str> = of.rsplitn(count, by).collect();
                    parts.reverse();
                    texts(parts)
                }
                _ => not_native("a split by another type than a string"),
            }
        }
        "replace" => {
            let [old, new, count] = args.places()?;
            let (old, new) = (wanted_text(old)?, wanted_text(new)?);
            replace(of, old, new, wanted_int(count, -1)?)
        }
        "join" => {
            let [parts] = args.places()?;
            let parts =
                parts.map_or_else(|| not_native("a join without an argument"), ops::items)?;

            let parts = parts
                .iter()
                .map(|part| wanted_text(Some(part)))
                .collect::<Res<Vec<_>>>()?;

            budget::charge(parts.iter().map(|part| part.len() + of.len()).sum())?;
            text(parts.join(of))
        }
        "format" => format(of, args),
        _ => not_native(format!("the method {name:?} of a string")),
    }
}

/// `str.replace`; a negative `count` replaces all.
pub(crate) fn replace(of: &str, old: &str, new: &str, count: i64) -> Res<Value> {
    // An empty string is found around each character; the bytes are an upper limit.
    let found = if old.is_empty() {
        of.len() + 1
    } else {
        of.matches(old).count()
    };

    // Before the allocation, because a short template can make a long text.
    budget::charge(of.len().saturating_add(found.saturating_mul(new.len())))?;
    text(match usize::try_from(count) {
        Ok(count) => of.replacen(old, new, count),
        Err(_) => of.replace(old, new),
    })
}

/// `str.format` with plain fields: `{}`, `{0}`, `{name}`.
fn format(of: &str, args: &Args<'_>) -> Res<Value> {
    let mut out = String::new();
    let mut rest = of;
    let mut next = 0;
    let mut by_number = false;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, field) = rest.split_at(at);
        out.push_str(before);

        // A doubled brace stands for one.
        if let Some(after) = field
            .strip_prefix("{{")
            .or_else(|| field.strip_prefix("}}"))
        {
            out.push_str(&field[..1]);
            rest = after;
            continue;
        }

        let Some((name, after)) = field
            .strip_prefix('{')
            .and_then(|field| field.split_once('}'))
        else {
            return not_native("a format with a lone brace");
        };

        let value = if name.is_empty() {
            next += 1;
            args.pos.get(next - 1)
        } else if name.bytes().all(|b| b.is_ascii_digit()) {
            by_number = true;
            name.parse::<usize>()
                .ok()
                .and_then(|place| args.pos.get(place))
        } else if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            args.named
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        } else {
            None
        };

        match value.map(|value| (value, kind(value))) {
            Some((
                value,
                Kind::Str(_) | Kind::Int(_) | Kind::Bool(_) | Kind::None | Kind::Float(_),
            )) => {
                out.push_str(&ops::string(value)?);
            }
            _ => return not_native("a format with more than bare fields"),
        }

        rest = after;
    }

    // Python rejects `{}` and `{0}` in one format.
    if by_number && next > 0 {
        return not_native("a format that numbers some of its fields");
    }

    out.push_str(rest);
    text(out)
}

fn of_mapping(value: &Value, name: &str, args: &Args<'_>) -> Res<Value> {
    let Some(object) = value.downcast_object::<Obj>() else {
        return not_native("a mapping");
    };
    let Obj::Dict(shared) = &*object else {
        return not_native("a mapping");
    };

    match name {
        "get" => {
            let [wanted, otherwise] = args.places()?;
            let Some(wanted) = wanted else {
                return not_native("a call without arguments");
            };

            if let Some(otherwise) = otherwise
                && otherwise.is_undefined()
            {
                return not_native("an undefined value");
            }

            let found = shared.look_up(wanted)?;
            Ok(found
                .or_else(|| otherwise.cloned())
                .unwrap_or_else(|| Value::from(())))
        }
        "items" | "keys" | "values" => {
            args.places::<0>()?;
            let view = match name {
                "items" => View::Items,
                "keys" => View::Keys,
                _ => View::Values,
            };
            Ok(Value::from_object(Obj::View(view, Arc::clone(&object))))
        }
        "copy" => {
            args.places::<0>()?;
            let pairs = shared.all()?.clone();
            budget::spend(pairs.len())?;
            budget::charge(pairs.len() * 48)?;
            Ok(dict(pairs))
        }
        "pop" => {
            let [wanted, otherwise] = args.places()?;
            let wanted = wanted.map_or_else(|| not_native("a call without arguments"), key)?;
            // Entries behind the removed one move.
            budget::spend(shared.change()?.len() / 16)?;

            match (shared.change()?.shift_remove(&wanted), otherwise) {
                (Some(found), _) => Ok(found),
                (None, Some(otherwise)) => Ok(otherwise.clone()),
                (None, None) => not_native("a missing key"),
            }
        }
        "setdefault" => {
            let [wanted, otherwise] = args.places()?;
            let wanted = wanted.map_or_else(|| not_native("a call without arguments"), key)?;
            let otherwise = otherwise.cloned().unwrap_or_else(|| Value::from(()));

            member(&otherwise, Some(&object))?;
            budget::charge(48)?;
            Ok(shared.change()?.entry(wanted).or_insert(otherwise).clone())
        }
        "update" => {
            if args.pos.len() > 1 {
                return not_native("a call with more arguments");
            }

            let mut new = Pairs::default();
            match args.pos.first().map(kind) {
                None => {}
                // Copied, because it may be the same mapping.
                Some(Kind::Dict(other)) => new.clone_from(&*other.all()?),
                _ => return not_native("an update with another type than dict"),
            }

            for (name, value) in &args.named {
                new.insert(Key::from(*name), (*value).clone());
            }

            budget::spend(new.len())?;
            budget::charge(new.len() * 48)?;

            // Before the lock, because the check may lock the same mapping.
            for value in new.values() {
                member(value, Some(&object))?;
            }

            let mut pairs = shared.change()?;
            for (key, value) in new {
                pairs.insert(key, value);
            }
            Ok(Value::from(()))
        }
        _ => not_native(format!("the method {name:?} of a mapping")),
    }
}

fn of_list(value: &Value, name: &str, args: &Args<'_>) -> Res<Value> {
    let Some(object) = value.downcast_object::<Obj>() else {
        return not_native("a list");
    };
    let Obj::List(shared) = &*object else {
        return not_native("a list");
    };

    match name {
        "append" => {
            let [item] = args.places()?;
            let Some(item) = item else {
                return not_native("a call without arguments");
            };

            member(item, Some(&object))?;
            budget::charge(24)?;
            shared.change()?.push(item.clone());
            Ok(Value::from(()))
        }
        "extend" => {
            let [more] = args.places()?;
            // A string would be extended by its characters, a dict by its keys.
            let more = match more.map(|more| (more, kind(more))) {
                Some((more, Kind::List(_) | Kind::Tuple(_) | Kind::View(..))) => ops::items(more)?,
                _ => return not_native("an extension by another type than a list"),
            };

            // Before the lock, because the check may lock the same list.
            for item in &more {
                member(item, Some(&object))?;
            }

            shared.change()?.extend(more);
            Ok(Value::from(()))
        }
        "copy" => {
            args.places::<0>()?;
            let items = shared.lock().clone();
            budget::charge(items.len() * 24)?;
            Ok(list(items))
        }
        _ => not_native(format!("the method {name:?} of a list")),
    }
}

/// `range(..)`
pub(crate) fn range(args: &Args<'_>) -> Res<Value> {
    let [first, second] = args.places()?;
    if first.is_none() {
        return not_native("`range` without arguments");
    }

    let first = wanted_int(first, 0)?;
    let (start, stop) = match second {
        None => (0, first),
        Some(stop) => (first, wanted_int(Some(stop), 0)?),
    };

    // Jinja's sandbox raises at a longer range, which Salt then reports.
    if usize::try_from(stop.saturating_sub(start)).is_ok_and(|len| len > limits::JINJA_RANGE_MAX) {
        return not_native("a range that is too long");
    }

    let numbers = (start..stop).map(Value::from).collect::<Vec<_>>();
    budget::charge(numbers.len() * 24)?;
    Ok(lazy(numbers))
}

/// `namespace(..)`
pub(crate) fn namespace(args: &Args<'_>) -> Res<Value> {
    if !args.pos.is_empty() {
        return not_native("a namespace of a mapping");
    }
    let mut members = Vec::new();
    for (name, value) in &args.named {
        member(value, None)?;
        members.push(((*name).to_owned(), (*value).clone()));
    }
    Ok(Value::from_object(Obj::Namespace(Mutex::new(members))))
}

/// `{% set ns.name = value %}`
pub(crate) fn set_member(of: &Value, name: &str, value: &Value) -> Res<()> {
    let Kind::Namespace(members) = kind(of) else {
        return not_native("an attribute of another type than namespace");
    };
    member(value, None)?;
    let mut members = members.lock();
    match members.iter_mut().find(|(known, _)| known == name) {
        Some((_, member)) => *member = value.clone(),
        None => members.push((name.to_owned(), value.clone())),
    }
    Ok(())
}

/// `salt['module.function'](..)`, of functions that need no Salt.
pub(crate) fn function(of: &Value, name: &str, args: &Args<'_>) -> Res<Value> {
    let Some(Obj::Salt(functions)) = of.downcast_object_ref::<Obj>() else {
        return not_native("`salt`");
    };

    let pos = args
        .pos
        .iter()
        .map(|arg| to_plain(arg, 0))
        .collect::<Res<Vec<_>>>()?;

    let mut named = Map::default();
    for (name, arg) in &args.named {
        named.insert(Key::from(*name), to_plain(arg, 0)?);
    }

    match functions.call(name, &pos, &named) {
        // The template may change the result.
        Some(answer) => Ok(super::value::from_plain(
            &answer,
            super::value::Access::Full,
            0,
        )),
        None => not_native(format!("salt[{name:?}] with these arguments")),
    }
}
