//! A file's values to high data: the key `type.fun` becomes `type` with the function in its list,
//! and each ID gets its file.
//!
//! Salt does this in place: a list with an anchor is one object and gets the functions of all its
//! places.

use std::collections::HashMap;

use super::error::FileError;
use crate::python::{repr, type_name};
use crate::value::{Key, Map, Value};
use crate::yaml::Sharing;

/// Pads the values of a file; `sharing` names its shared objects.
pub(super) fn pad(value: Value, sharing: Option<&Sharing>, path: &str) -> Result<Map, FileError> {
    let mut high = match value {
        Value::Map(map) => map,
        Value::List(items) | Value::Tuple(items) | Value::Set(items) if items.is_empty() => {
            return Ok(Map::default());
        }
        Value::Str(text) if text.is_empty() => return Ok(Map::default()),
        other => {
            let found = type_name(&other);
            return Err(FileError::Shape(format!(
                "it should be a mapping of IDs to reactions, and is a {found}"
            )));
        }
    };

    let mut lists = sharing.map(|sharing| Lists {
        sharing,
        ..Lists::default()
    });

    for (at, (id, value)) in high.iter_mut().enumerate() {
        // The short form `id: type.fun`.
        if let Value::Str(text) = value
            && let Some((kind, fun)) = text.split_once('.')
        {
            let list = Value::List(vec![fun.into()]);
            *value = Value::Map(Map::from_iter([(kind.into(), list)]));
        }

        let Value::Map(body) = value else {
            return Err(FileError::Shape(format!(
                "ID {} should have a mapping of reactions, and contains a {}",
                repr(&id.0),
                type_name(value)
            )));
        };

        if let Some(odd) = body.keys().find(|key| key.as_str().is_none()) {
            return Err(FileError::Shape(format!(
                "under ID {} stands {}, which is not a string",
                repr(&id.0),
                repr(&odd.0)
            )));
        }

        // Before padding, while the keys are still as written.
        if let Some(lists) = &mut lists {
            lists.see(at, body);
        }
        pad_body(body, |key, kind, fun| {
            if let Some(lists) = &mut lists {
                lists.appended(at, key, kind, fun);
            }
        });

        body.insert("__sls__".into(), path.into());
    }

    if let Some(lists) = lists {
        lists.settle(&mut high);
    }
    Ok(high)
}

/// Calls `appended` with each padded key and its type.
fn pad_body(body: &mut Map, mut appended: impl FnMut(&str, &str, &str)) {
    let dotted = |(key, value): (&Key, &Value)| {
        let key = key
            .as_str()
            .filter(|key| !key.starts_with('_') && key.contains('.'))?;
        matches!(value, Value::List(_)).then(|| key.to_owned())
    };

    let mut keys: Vec<String> = body.iter().filter_map(dotted).collect();
    // The order decides which of two functions of one type is used.
    keys.sort();

    for key in keys {
        let Some((kind, fun)) = key.split_once('.') else {
            continue;
        };
        // The second function of a type keeps its key and never runs.
        if let Some(Value::List(_)) = body.get(kind) {
            continue;
        }
        if let Some(Value::List(mut list)) = body.shift_remove(key.as_str()) {
            list.push(fun.into());
            body.insert(kind.into(), Value::List(list));
            appended(&key, kind, fun);
        }
    }
}

/// The lists of a file that may have several places.
#[derive(Default)]
struct Lists<'a> {
    sharing: &'a [(u32, Vec<u32>)],
    /// For each ID: keys, before padding, or types, after it, with the numbers of their lists.
    places: Vec<Vec<(String, u32)>>,
    /// The functions appended to each list, in order. A body under two IDs is padded once.
    funs: HashMap<u32, Vec<String>>,
    bodies: HashMap<u32, usize>,
    /// Appended functions in the values: ID and type.
    own: Vec<(usize, String)>,
}

impl Lists<'_> {
    fn see(&mut self, at: usize, body: &Map) {
        let (number, values) = self
            .sharing
            .get(at)
            .map_or((u32::MAX, &[][..]), |(body, values)| (*body, values));
        self.bodies.entry(number).or_insert(at);
        let keys = body.keys().filter_map(Key::as_str).map(str::to_owned);
        self.places.push(keys.zip(values.iter().copied()).collect());
    }

    fn appended(&mut self, at: usize, key: &str, kind: &str, fun: &str) {
        self.own.push((at, kind.to_owned()));
        let Some(place) = self
            .places
            .get_mut(at)
            .and_then(|places| places.iter_mut().find(|(own, _)| own == key))
        else {
            return;
        };

        // The list is under its type now, without the function.
        kind.clone_into(&mut place.0);

        let first = self
            .sharing
            .get(at)
            .and_then(|(body, _)| self.bodies.get(body));
        if first == Some(&at) {
            self.funs.entry(place.1).or_default().push(fun.to_owned());
        }
    }

    /// Appends to each list the functions of all its places.
    fn settle(self, high: &mut Map) {
        for (at, (_, value)) in high.iter_mut().enumerate() {
            let Value::Map(body) = value else { continue };
            for (key, list) in self.places.get(at).into_iter().flatten() {
                let Some(funs) = self.funs.get(list) else {
                    continue;
                };
                let Some(Value::List(items)) = body.get_mut(key.as_str()) else {
                    continue;
                };
                // Padding has appended its function, which is also in the list.
                if self.own.iter().any(|(id, kind)| *id == at && kind == key) {
                    items.pop();
                }
                items.extend(funs.iter().map(|fun| Value::Str(fun.clone())));
            }
        }
    }
}
