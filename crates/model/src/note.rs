//! Log lines in Salt's words: those that Salt's reactor or configuration loader would write, to be
//! compared, shown or counted.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The level of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteLevel {
    /// Python's `DEBUG`.
    Debug,
    /// Python's `INFO`.
    Info,
    /// Accepted with a problem.
    Warning,
    /// Something was skipped.
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

/// A log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The level.
    pub level: NoteLevel,
    /// The Python logger that Salt would have used.
    pub logger: &'static str,
    /// The text.
    pub message: String,
    /// The cause, where Salt would attach an exception.
    pub cause: Option<String>,
    /// The location, if a reaction or a part of it failed because of this.
    pub fails: Option<Location>,
}

/// A position in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The file; empty if unknown or not applicable.
    pub file: String,
    /// The line, from 1, if known.
    pub line: Option<u32>,
    /// The line is counted in the rendered output instead of the file.
    pub rendered: bool,
}

/// The failure of a reaction, or of a part of it, before any call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactionFailure {
    /// The location.
    #[serde(flatten)]
    pub at: Location,
    /// The cause.
    pub cause: String,
}

impl Note {
    /// A note without a cause.
    pub fn new(level: NoteLevel, logger: &'static str, message: impl Into<String>) -> Self {
        Self {
            level,
            logger,
            message: message.into(),
            cause: None,
            fails: None,
        }
    }

    /// A note of the level [`NoteLevel::Error`].
    pub fn error(logger: &'static str, message: impl Into<String>) -> Self {
        Self::new(NoteLevel::Error, logger, message)
    }

    /// A note of the level [`NoteLevel::Warning`].
    pub fn warning(logger: &'static str, message: impl Into<String>) -> Self {
        Self::new(NoteLevel::Warning, logger, message)
    }

    /// Adds the cause, which is shown after the message.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Marks the note as a failure of a reaction, or of a part of it.
    #[must_use]
    pub fn failing(mut self, at: Location) -> Self {
        self.fails = Some(at);
        self
    }

    /// The failure that this note describes, if any.
    pub fn failure(&self) -> Option<ReactionFailure> {
        let at = self.fails.clone()?;
        let cause = self.cause.clone().unwrap_or_else(|| self.message.clone());
        Some(ReactionFailure { at, cause })
    }
}

impl Location {
    /// A file without a line.
    pub fn file(file: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match self.line {
            Some(line) if self.rendered => write!(f, " (line {line} of the rendered text)"),
            Some(line) => write!(f, ":{line}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ReactionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.to_string();
        // Jinja's errors already begin with the location.
        if at.is_empty() || self.cause.starts_with(&format!("{at}:")) {
            return f.write_str(&self.cause);
        }
        write!(f, "{at}: {}", self.cause)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.cause {
            // Salt's message about a file ends in ": ", before a traceback.
            Some(cause) if self.message.ends_with(": ") => f.write_str(cause),
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}
