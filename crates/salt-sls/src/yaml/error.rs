//! Why a string is not YAML as Salt loads it, and where.

/// A syntax error, or a value that Salt rejects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// PyYAML's message, if PyYAML reports one.
    pub message: String,
}
