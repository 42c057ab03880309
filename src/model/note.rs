//! A line of log in Salt's words: what its own reactor or configuration loader would have written, for whoever
//! compares, shows or counts it.

use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteLevel {
    /// For who looks closely.
    Debug,
    /// For who looks.
    Info,
    /// Not as written, but used.
    Warning,
    /// Something was left out.
    Error,
}

impl NoteLevel {
    /// Python's name of the level.
    pub fn name(self) -> &'static str {
        match self {
            NoteLevel::Debug => "DEBUG",
            NoteLevel::Info => "INFO",
            NoteLevel::Warning => "WARNING",
            NoteLevel::Error => "ERROR",
        }
    }
}

/// A line of log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// How bad it is.
    pub level: NoteLevel,
    /// The Python logger that Salt would have used.
    pub logger: &'static str,
    /// The line.
    pub message: String,
    /// Why, where Salt would have attached an exception.
    pub cause: Option<String>,
}

impl Note {
    /// A line without a cause.
    pub fn new(level: NoteLevel, logger: &'static str, message: impl Into<String>) -> Self {
        Self { level, logger, message: message.into(), cause: None }
    }

    /// The same with a cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.cause {
            // Salt's sentence about a file ends in ": ", for its traceback.
            Some(cause) if self.message.ends_with(": ") => f.write_str(cause),
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}
