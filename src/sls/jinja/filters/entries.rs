//! Salt's filters about mappings.

use std::rc::Rc;

use super::sequences;
use super::{Filter, flag, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{self, Exc, Kind, Res, not_native, type_error, value_error};
use crate::sls::jinja::jmes::query;
use crate::sls::jinja::methods::text::want_str;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Dict, Hashed, Text, Val};
use crate::sls::python::text;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("to_entries", to_entries),
    ("from_entries", from_entries),
    ("set_dict_key_value", set_dict_key_value),
    ("append_dict_key_value", append_dict_key_value),
    ("extend_dict_key_value", extend_dict_key_value),
    ("update_dict_key_value", update_dict_key_value),
    ("mysql_to_dict", mysql_to_dict),
    ("json_query", json_query),
];

fn salt_error(message: impl Into<String>) -> Exc {
    Exc::new(Kind::Salt, message)
}

fn to_entries(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("to_entries")?;
    let pairs = match &val {
        Val::Dict(dict) => dict.pairs(),
        Val::List(list) => {
            list.items().into_iter().enumerate().map(|(i, item)| (Val::len(i), item)).collect()
        }
        _ => return Err(salt_error("Input data must be a dict or list")),
    };
    Ok(Val::list(
        pairs.into_iter().map(|(key, value)| Interp::dict_of([("key", key), ("value", value)])).collect(),
    ))
}

fn from_entries(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("from_entries")?;
    let mut pairs = Vec::new();
    for entry in interp.collect(&val)? {
        let Val::Dict(dict) = &entry else {
            return Err(type_error(format!("cannot make entries of '{}'", entry.type_name())));
        };
        // Names count in whatever case; the last one wins.
        let named = |name: &str| {
            dict.pairs()
                .into_iter()
                .rev()
                .find(|(key, _)| key.as_str().is_some_and(|key| key.to_lowercase() == name))
                .map(|(_, val)| val)
        };
        for name in ["key", "name"] {
            if let Some(key) = named(name)
                && ops::truth(&key)?
            {
                pairs.push((key, named("value").unwrap_or(Val::None)));
                break;
            }
        }
    }
    sequences::dict_of(pairs)
}

/// The mapping at the end but one of a path, made if it is not there, and the last key.
fn last_mapping(root: &Val, keys: &Val, delimiter: &str, ordered: bool) -> Res<(Rc<Dict>, Val)> {
    let Val::Dict(root) = root else {
        if let Val::Undef(undef) = root {
            return Err(undef.fail());
        }
        return Err(type_error(format!("'{}' object does not support item assignment", root.type_name())));
    };
    let keys = want_str(keys, "rpartition")?;
    if delimiter.is_empty() {
        return Err(value_error("empty separator"));
    }
    let mut at = Rc::clone(root);
    let mut parts: Vec<&str> = keys.split(delimiter).collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let next = match at.get_str(part) {
            Some(Val::Dict(dict)) => dict,
            _ => {
                let new = Rc::new(Dict { map: std::cell::RefCell::default(), ordered });
                let old = at.map.borrow_mut().insert(Hashed(Val::from(part)), Val::Dict(Rc::clone(&new)));
                drop(old);
                new
            }
        };
        at = next;
    }
    Ok((at, Val::from(last)))
}

/// The path and the value of a call, and where they lead.
fn led(val: &Val, args: Args) -> Res<(Rc<Dict>, Val, Val, bool)> {
    let [keys, value, delimiter, ordered] =
        args.bind("dict_key_value", ["keys", "value", "delimiter", "ordered_dict"], 2)?;
    let value = value.unwrap_or(Val::None);
    let ordered = flag(ordered.as_ref(), false)?;
    // The value must not hold what it is put into, however deep.
    ops::may_hold(val, &value)?;
    let (dict, last) = last_mapping(val, &keys.unwrap_or(Val::None), &text_arg(delimiter, ":")?, ordered)?;
    ops::may_hold(&Val::Dict(Rc::clone(&dict)), &value)?;
    Ok((dict, last, value, ordered))
}

fn put(dict: &Dict, key: Val, val: Val) {
    budget::took(80);
    let old = dict.map.borrow_mut().insert(Hashed(key), val);
    drop(old);
}

fn set_dict_key_value(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let (dict, last, value, _) = led(&val, args)?;
    put(&dict, last, value);
    Ok(val)
}

/// What is at a key, or something new that is put there.
fn present(dict: &Dict, key: &Val, make: impl FnOnce() -> Val) -> Val {
    match dict.get(key) {
        Some(found) if !matches!(found, Val::None) => found,
        _ => {
            let new = make();
            put(dict, key.clone(), new.clone());
            new
        }
    }
}

fn append_dict_key_value(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let (dict, last, value, _) = led(&val, args)?;
    let list = present(&dict, &last, || Val::list(Vec::new()));
    match &list {
        Val::List(_) => {
            interp.call_method(&list, "append", Args::of(vec![value]))?;
            Ok(val)
        }
        other => Err(salt_error(format!(
            "The last key contains a <class '{}'>, which cannot append.",
            other.type_name()
        ))),
    }
}

fn extend_dict_key_value(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let (dict, last, value, _) = led(&val, args)?;
    let list = present(&dict, &last, || Val::list(Vec::new()));
    match &list {
        Val::List(_) => match interp.call_method(&list, "extend", Args::of(vec![value.clone()])) {
            Ok(_) => Ok(val),
            Err(error) if error.kind() == Kind::Type => Err(salt_error(format!(
                "Cannot extend <class 'list'> with a <class '{}'>.",
                value.type_name()
            ))),
            Err(error) => Err(error),
        },
        other => Err(salt_error(format!(
            "The last key contains a <class '{}'>, which cannot extend.",
            other.type_name()
        ))),
    }
}

fn update_dict_key_value(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let (dict, last, value, ordered) = led(&val, args)?;
    let inner =
        present(&dict, &last, || Val::Dict(Rc::new(Dict { map: std::cell::RefCell::default(), ordered })));
    match &inner {
        Val::Dict(_) => match interp.call_method(&inner, "update", Args::of(vec![value.clone()])) {
            Ok(_) => Ok(val),
            Err(error) if error.is_type_or_value() => Err(salt_error(format!(
                "Cannot update <class 'dict'> with a <class '{}'>.",
                value.type_name()
            ))),
            Err(error) => Err(error),
        },
        Val::Set(_) => Err(not_native("update_dict_key_value of a set")),
        other => Err(salt_error(format!(
            "The last key contains a <class '{}'>, which cannot update.",
            other.type_name()
        ))),
    }
}

/// A table as MySQL prints it, as mappings by one of its columns.
fn mysql_to_dict(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [key] = args.bind("mysql_to_dict", ["key"], 1)?;
    let key = key.unwrap_or(Val::None);
    let mut headers: Vec<Text> = vec![Text::from("")];
    let mut rows = Vec::new();
    for line in interp.collect(&val)? {
        if !ops::truth(&line)? {
            continue;
        }
        let line = want_str(&line, "startswith")?.to_owned();
        if line.starts_with('+') {
            continue;
        }
        let cells: Vec<Text> =
            line.split('|').map(|cell| Text::from(cell.trim_matches(text::is_space))).collect();
        if headers.len() <= 1 {
            headers = cells;
            continue;
        }
        let mut row = Vec::new();
        for i in 1..headers.len() - 1 {
            let Some(cell) = cells.get(i) else {
                return Err(exc::lookup_error("list index out of range"));
            };
            let number = super::call(interp, "to_num", Val::Str(Text::clone(cell)), Args::default())?;
            row.push((headers.get(i).map_or(Val::None, |name| Val::Str(Text::clone(name))), number));
        }
        let row = sequences::dict_of(row)?;
        let Val::Dict(dict) = &row else { continue };
        match dict.get(&key) {
            Some(found) => rows.push((found, row.clone())),
            None => return Err(exc::lookup_error(repr::repr(&key)?)),
        }
    }
    sequences::dict_of(rows)
}

fn json_query(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [expression] = args.bind("json_query", ["expr"], 1)?;
    query::filter(&val, &expression.unwrap_or(Val::None))
}
