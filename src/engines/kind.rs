//! Kinds: the registry entries of encoders and transports.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::config::{Invalid, read_options};

/// A kind of encoder or transport, one item of its registry.
pub struct Kind<T: 'static> {
    /// The name in the configuration.
    pub name: &'static str,
    /// Its section of docs/SINKS.md, which is generated: a paragraph that says what it is, then its
    /// options.
    pub doc: &'static str,
    /// Options that the kind accepts, as YAML.
    pub example: &'static str,
    /// Builds one from its options.
    pub build: fn(&Json) -> Result<T, Invalid>,
}

impl<T> Kind<T> {
    /// The sections of docs/SINKS.md about these kinds.
    pub(in crate::engines) fn reference(kinds: &[Self]) -> String {
        let mut sections = String::new();

        for Self { name, doc, .. } in kinds {
            // Writing to a String cannot fail.
            let _ = write!(sections, "\n### `{name}`\n\n{doc}\n");
        }

        sections
    }
}

/// Reads the options of a kind; their mapping may be missing.
pub(in crate::engines) fn options<T: DeserializeOwned>(options: &Json) -> Result<T, Invalid> {
    let empty = Json::Object(serde_json::Map::new());
    read_options(if options.is_null() { &empty } else { options })
}

/// Builds what the value of `key` names: `name`, or a mapping of the name to its options.
pub(in crate::engines) fn build<T>(
    key: &str,
    value: &Json,
    kinds: &[Kind<T>],
) -> Result<(&'static str, T), Invalid> {
    let names = || {
        kinds
            .iter()
            .map(|kind| kind.name)
            .collect::<Vec<_>>()
            .join(", ")
    };

    // A kind whose options all have defaults needs no mapping.
    let (name, given) = match value {
        Json::String(name) => (name.as_str(), &Json::Null),
        Json::Object(one) if one.len() == 1 => match one.iter().next() {
            Some((name, given)) => (name.as_str(), given),
            None => ("", &Json::Null),
        },
        _ => {
            let problem = format!("give a name, or one name with its options: {}", names());
            return Err(Invalid::new(key, problem));
        }
    };

    let Some(kind) = kinds.iter().find(|kind| kind.name == name) else {
        return Err(Invalid::new(
            key,
            format!("{name:?} is not accepted; give {}", names()),
        ));
    };

    let built = (kind.build)(given).map_err(|bad| bad.below(&format!("{key}.{name}")))?;
    Ok((kind.name, built))
}
