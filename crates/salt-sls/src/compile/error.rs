//! Why files contain no low chunks: the error of one file, and the error of an event.

use crate::python::repr_texts;
use crate::yaml::YamlError;

/// The error of one file. It does not affect other files of the event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Invalid YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// Not a mapping of IDs to mappings; the text has details.
    #[error("{0}")]
    Shape(String),
}

/// The error of an event, which then causes no reactions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Errors of the high data, as Salt reports them, with file and ID.
    #[error("{}", .0.join("\n"))]
    Errors(Vec<String>),
    /// An exception in Salt's compiler.
    #[error("{0}")]
    Exception(String),
}

impl Refused {
    /// The message of Salt's ERROR, of the logger `salt.utils.reactor`, for an event with this tag and these references.
    pub fn message(&self, tag: &str, references: &[String]) -> String {
        match self {
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
        }
    }
}
