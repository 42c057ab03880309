//! What SLS files say, to low chunks, as the reactor of Salt 3008 compiles it: file by file to high data, which is checked, cut
//! into chunks and put in order over all files of an event.
//!
//! ```text
//! yaml -> pad: high data of a file -> verify, chunks, graph: low chunks of an event
//! ```

mod chunks;
mod graph;
mod number;
mod order;
mod pad;
mod verify;

use super::python::repr_texts;
use super::yaml::{YamlError, load_shared};
use super::{Map, Value};

/// A record that Salt would have written to its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `ERROR`, `WARNING`, ...
    pub level: &'static str,
    /// The logger's name.
    pub logger: &'static str,
    /// The message.
    pub message: String,
}

/// Why one file gives no high data; other files of the event are not concerned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is no YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// It is no mapping of IDs to mappings, in the way that is said.
    #[error("{0}")]
    Shape(String),
}

impl FileError {
    /// What Salt logs.
    pub fn record(&self, path: &str) -> Record {
        Record {
            level: "ERROR",
            logger: "salt.utils.reactor",
            message: format!("Failed to render \"{path}\": {self}"),
        }
    }
}

/// Why an event has no reactions at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// What is wrong with the high data, in Salt's words; each names its file and ID.
    Errors(Vec<String>),
    /// Salt's compiler would have raised an exception.
    Exception(String),
}

impl Refused {
    /// What Salt logs for an event of this tag, whose reactions came of these references.
    pub fn record(&self, tag: &str, references: &[String]) -> Record {
        let message = match self {
            Self::Errors(errors) => format!(
                "Unable to render reactions for event {tag} due to errors ({}) in one or more of the sls files ({})",
                repr_texts(errors),
                repr_texts(references)
            ),
            Self::Exception(what) => {
                let files = repr_texts(references);
                format!(
                    "Exception encountered while compiling reactions: event {tag}, sls files {files}: {what}"
                )
            }
        };
        Record { level: "ERROR", logger: "salt.utils.reactor", message }
    }
}

/// High data of a rendered file: YAML, padded, with `path` as `__sls__`.
///
/// Where an anchor makes one list stand in two places, both get both functions, as in Salt; so this is not always the same as
/// `pad(yaml::load(text)?, path)`.
pub fn high(text: &str, path: &str) -> Result<Map, FileError> {
    let (value, sharing) = load_shared(text)?;
    if value.truthy() { pad::pad(value, sharing.as_ref(), path) } else { Ok(Map::new()) }
}

/// High data of values that did not come of YAML.
pub fn pad(value: Value, path: &str) -> Result<Map, FileError> {
    pad::pad(value, None, path)
}

/// Low chunks in the order in which they are dispatched, of the high data of all files of an event in the order of references.
///
/// A later file's ID replaces an earlier one whole.
pub fn low(files: Vec<Map>) -> Result<Vec<Map>, Refused> {
    let mut files = files.into_iter();
    let mut high = files.next().unwrap_or_default();
    for file in files {
        high.extend(file);
    }
    let errors = verify::verify(&high)?;
    if !errors.is_empty() {
        return Err(Refused::Errors(errors));
    }
    let mut low = graph::order(chunks::chunks(high)?)?;
    for chunk in &mut low {
        if let Some(state) = chunk.get_mut("state").filter(|state| state.as_str() == Some("cmd")) {
            *state = "local".into();
        }
    }
    Ok(low)
}
