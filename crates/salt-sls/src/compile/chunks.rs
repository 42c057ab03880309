//! High data to chunks in the order of the files; a chunk is a mapping.

use super::error::Refused;
use crate::python::type_name;
use crate::value::{Key, Map, Value, with_room};

/// The exceptions of Python for values of another type than expected.
fn raised(what: &str, value: &Value) -> Refused {
    Refused::Exception(format!("{what} is a {}", type_name(value)))
}

/// A field of a chunk; `None` of Python where it has none.
pub(super) fn field<'a>(chunk: &'a Map, key: &str) -> &'a Value {
    chunk.get(key).unwrap_or(&Value::Null)
}

/// The chunks of verified high data.
pub(super) fn chunks(high: Map) -> Result<Vec<Map>, Refused> {
    let mut chunks = Vec::with_capacity(high.len());
    for (id, body) in high {
        let Value::Map(body) = body else { continue };
        // Such keys are about the file.
        if id.as_str().is_none_or(|id| id.starts_with("__")) {
            continue;
        }

        let common: Vec<(&str, Value)> = ["__sls__", "__env__", "__sls_included_from__"]
            .into_iter()
            .filter_map(|key| Some((key, body.get(key)?.clone())))
            .collect();

        for (kind, run) in body {
            if kind.as_str().is_none_or(|kind| kind.starts_with("__")) {
                continue;
            }
            let Value::List(items) = run else { continue };

            let mut chunk = with_room(items.len() + 7);
            chunk.insert("state".into(), kind.0);
            chunk.insert("name".into(), id.0.clone());
            for (key, value) in &common {
                chunk.insert((*key).into(), value.clone());
            }
            chunk.insert("__id__".into(), id.0.clone());

            expand(chunk, items, &mut chunks)?;
        }
    }

    Ok(chunks)
}

/// One chunk of these items, or one for each of their `names`.
fn expand(mut chunk: Map, items: Vec<Value>, chunks: &mut Vec<Map>) -> Result<(), Refused> {
    let mut fun = None;
    let mut names: Vec<Value> = Vec::new();
    for item in items {
        match item {
            Value::Str(text) => fun = Some(text),
            Value::Map(arguments) => {
                if let Some(listed) = arguments.get("names") {
                    for name in iterate(listed).ok_or_else(|| raised("`names`", listed))? {
                        // As in Salt, a name that is listed twice counts once.
                        if !names.iter().any(|known| known.python_eq(&name)) {
                            names.push(name);
                        }
                    }
                    // Arguments other than `names` are kept, and `names` with them.
                    if arguments.len() == 1 {
                        continue;
                    }
                }
                chunk.extend(arguments);
            }
            _ => {}
        }
    }

    if names.is_empty() {
        if let Some(fun) = fun {
            chunk.insert("fun".into(), Value::Str(fun));
            chunks.push(chunk);
        }
        return Ok(());
    }

    for (order, entry) in (1..).zip(names) {
        let mut live = chunk.clone();
        match entry {
            Value::Map(entry) => {
                let (name, extra) = entry.into_iter().next().ok_or_else(|| {
                    Refused::Exception("an empty mapping among `names`".to_owned())
                })?;
                live.insert("name".into(), name.0);
                for more in iterate(&extra).ok_or_else(|| raised("an entry of `names`", &extra))? {
                    update(&mut live, more)?;
                }
            }
            name => {
                live.insert("name".into(), name);
            }
        }

        live.insert("name_order".into(), Value::Int(order));
        // Invalid `names` are an error even without a function.
        if let Some(fun) = &fun {
            live.insert("fun".into(), Value::Str(fun.clone()));
            chunks.push(live);
        }
    }

    Ok(())
}

/// The items of a loop over the value; `None` if it is not iterable.
pub(super) fn iterate(value: &Value) -> Option<Vec<Value>> {
    Some(match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => items.clone(),
        Value::Map(map) => map.keys().map(|key| key.0.clone()).collect(),
        // As in Python, a string is iterated by its characters.
        Value::Str(text) => text.chars().map(|c| Value::Str(c.to_string())).collect(),
        Value::Bytes(bytes) => bytes
            .iter()
            .map(|byte| Value::Int(i64::from(*byte)))
            .collect(),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::BigInt(_)
        | Value::Float(_)
        | Value::Object(_) => {
            return None;
        }
    })
}

/// Python's `dict.update` with a mapping or pairs.
fn update(chunk: &mut Map, with: Value) -> Result<(), Refused> {
    if let Value::Map(map) = with {
        chunk.extend(map);
        return Ok(());
    }
    for pair in iterate(&with).ok_or_else(|| raised("an entry of `names`", &with))? {
        let [key, value] = <[Value; 2]>::try_from(iterate(&pair).unwrap_or_default())
            .map_err(|_| raised("an entry of `names`", &pair))?;
        if !key.is_hashable() {
            return Err(raised("a key", &key));
        }
        chunk.insert(Key(key), value);
    }
    Ok(())
}
