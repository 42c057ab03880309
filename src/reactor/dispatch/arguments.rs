//! Arguments of a chunk's function, in the current form (`args`) and the old one.

use salt_sls::{Key, Map, Value, with_room, yaml};

use crate::model::Note;
use crate::reactor::master::Client;
use crate::reactor::signature::Signature;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::reactor) enum Refusal {
    /// Salt logs this text.
    Reported(String),
    /// Salt's client raises an exception with this text.
    Failed(String),
}

impl From<String> for Refusal {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

/// Salt's logger for repacking of data.
const DATA_LOGGER: &str = "salt.utils.data";
const LOGGER: &str = "salt.utils.reactor";

/// Keys added by the compiler, never arguments.
const INTERNAL: [&str; 7] = ["__id__", "__sls__", "name", "order", "fun", "key", "state"];

/// The current form: the chunk had `args`. Sets `arg` and `kwarg`.
pub(in crate::reactor) fn present(
    client: Client,
    chunk: &mut Map,
    args: Value,
    notes: &mut Vec<Note>,
) -> Result<(), Refusal> {
    for name in ["arg", "kwarg"] {
        if let Some(given) = chunk.get(name) {
            notes.push(Note::warning(
                LOGGER,
                format!(
                    "Reactor '{}' is ignoring '{name}' param {} due to presence of 'args' param. Check the Reactor \
                     System documentation for the correct argument format.",
                    text_of(chunk, "__id__"),
                    given.python_str()
                ),
            ));
        }
    }

    // Salt's `caller` takes a list as it is, unless it looks like keywords.
    let positional =
        client == Client::Caller && matches!(&args, Value::List(items) if !is_dictlist(items));

    if positional {
        chunk.insert("arg".into(), args);
        chunk.insert("kwarg".into(), Value::Map(Map::default()));
        return Ok(());
    }

    let keywords = match args {
        Value::Map(map) => map,
        other => {
            let repacked = repack(other, notes)?;
            // As in Salt, an empty list looks like one that could not be repacked; an empty mapping
            // does not.
            if repacked.is_empty() {
                let why = "Incorrect argument format, check the Reactor System documentation for the correct format.";
                return Err(cannot(client, chunk, why));
            }
            repacked
        }
    };

    // A tuple as in Salt, because the recorded cases distinguish it from a list.
    chunk.insert("arg".into(), Value::Tuple(Vec::new()));
    chunk.insert("kwarg".into(), Value::Map(keywords));
    Ok(())
}

/// True for a list of one-key mappings, even if the list is empty.
fn is_dictlist(items: &[Value]) -> bool {
    items
        .iter()
        .all(|item| item.as_map().is_some_and(|map| map.len() == 1))
}

/// Merges a list of one-key mappings; plain strings and numbers become keys without a value. Empty
/// if that is impossible.
fn repack(args: Value, notes: &mut Vec<Note>) -> Result<Map, Refusal> {
    let mut complain = |message: String| {
        notes.push(Note::error(DATA_LOGGER, message));
        Ok(Map::default())
    };

    let args = match args {
        Value::Str(text) => match yaml::load(&text) {
            Ok(value) => value,
            // Python's parser and scanner raise different exceptions, of which Salt catches one.
            Err(error)
                if error.message.starts_with("while parsing a ")
                    && !error.message.contains("parsing a tag") =>
            {
                return complain(error.message);
            }
            Err(error) => {
                return Err(format!("`args` is a string but not valid YAML: {error}").into());
            }
        },
        other => other,
    };

    let Value::List(items) = args else {
        return complain(format!(
            "Invalid input for repack_dictlist, data passed is not a list ({})",
            args.python_str()
        ));
    };

    // All items before any is merged, because Salt merges nothing if one is invalid.
    for item in &items {
        match item {
            Value::Str(_) | Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => {
            }
            Value::Map(map) if map.len() == 1 => {}
            Value::Map(_) => {
                return complain(format!(
                    "Invalid input for repack_dictlist: key/value pairs must contain only one element (data passed: \
                     {}).",
                    item.python_str()
                ));
            }
            _ => {
                return complain(format!(
                    "Invalid input for repack_dictlist: element {} is not a string/dict/numeric value",
                    item.python_str()
                ));
            }
        }
    }

    let mut packed = with_room(items.len());
    for item in items {
        match item {
            Value::Map(map) => packed.extend(map),
            bare => {
                // As in Salt, an item without a value is a key.
                packed.insert(Key(bare), Value::Null);
            }
        }
    }

    Ok(packed)
}

/// The old form of runners and wheel functions: assigns the chunk's own keys to the function's
/// arguments.
pub(in crate::reactor) fn mapped(
    chunk: &Map,
    signature: &Signature,
) -> Result<(Vec<Value>, Map), Refusal> {
    let mut used: Vec<&str> = Vec::new();
    let mut keywords = Map::default();

    // As in Salt, each argument with a default becomes a keyword.
    for (name, default) in &signature.optional {
        let value = chunk.get(name.as_str()).unwrap_or(default).clone();
        keywords.insert(name.as_str().into(), value);
        used.push(name);
    }

    // Missing arguments are only counted, because Salt does not name them.
    let mut positional = Vec::new();
    let mut missing = 0;
    for name in &signature.required {
        match chunk.get(name.as_str()) {
            Some(value) => positional.push(value.clone()),
            None => missing += 1,
        }
        used.push(name);
    }

    if missing > 0 {
        // Salt's wording, which the recorded cases contain.
        let wanted = signature.required.len();
        let s = if wanted > 1 { "s" } else { "" };
        let (name, given) = (&signature.name, positional.len());
        return Err(format!("{name} takes at least {wanted} argument{s} ({given} given)").into());
    }

    // What remains goes to `**kwargs`, or is an error.
    let mut unexpected = Vec::new();
    for (key, value) in chunk {
        if key
            .as_str()
            .is_some_and(|name| INTERNAL.contains(&name) || used.contains(&name))
        {
            continue;
        }
        if signature.any_keyword {
            keywords.insert(key.clone(), value.clone());
        } else {
            unexpected.push(format!("'{}'", key.0.python_str()));
        }
    }

    match unexpected.split_last() {
        None => Ok((positional, keywords)),
        Some((one, [])) => Err(format!(
            "{one} is an invalid keyword argument for '{}'",
            signature.name
        )
        .into()),
        Some((last, rest)) => {
            let (rest, name) = (rest.join(", "), &signature.name);
            Err(format!("{rest} and {last} are invalid keyword arguments for '{name}'").into())
        }
    }
}

/// Positional arguments from a value, as in Python: any sequence; a string yields its characters.
pub(in crate::reactor) fn unpacked(arg: &Value) -> Result<Vec<Value>, String> {
    Ok(match arg {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => items.clone(),
        Value::Map(map) => map.keys().map(|key| key.0.clone()).collect(),
        Value::Str(text) => text.chars().map(|c| Value::Str(c.to_string())).collect(),
        Value::Bytes(bytes) => bytes
            .iter()
            .map(|&byte| Value::Int(i64::from(byte)))
            .collect(),
        other => return Err(format!("`arg` is not a list: {}", other.python_str())),
    })
}

/// A failure whose reason is a part of Salt's message.
pub(in crate::reactor) fn cannot(client: Client, chunk: &Map, why: &str) -> Refusal {
    let (id, client, fun) = (
        text_of(chunk, "__id__"),
        client.name(),
        text_of(chunk, "fun"),
    );
    Refusal::Reported(format!(
        "Reactor '{id}' failed to execute {client} '{fun}': {why}"
    ))
}

/// A value of the chunk as a string, for log messages.
pub(in crate::reactor) fn text_of(chunk: &Map, name: &str) -> String {
    chunk.get(name).map(Value::python_str).unwrap_or_default()
}
