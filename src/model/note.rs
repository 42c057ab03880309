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
    /// Where, if a reaction or a part of it failed because of this.
    pub fails: Option<Location>,
}

/// A place in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// The file; empty if it is not known, or no file is the cause.
    pub file: String,
    /// The line, from 1, if it is known.
    pub line: Option<u32>,
    /// The line is that of the rendered text, not of the file.
    pub rendered: bool,
}

/// Why a reaction, or a part of it, failed before there was a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReactionFailure {
    /// Where.
    pub at: Location,
    /// Why.
    pub cause: String,
}

impl Note {
    /// A line without a cause.
    pub fn new(level: NoteLevel, logger: &'static str, message: impl Into<String>) -> Self {
        Self { level, logger, message: message.into(), cause: None, fails: None }
    }

    /// The same with a cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The same as the failure of a reaction, or of a part of it.
    #[must_use]
    pub fn failing(mut self, at: Location) -> Self {
        self.fails = Some(at);
        self
    }

    /// The failure of a reaction that this is, if it is one.
    pub fn failure(&self) -> Option<ReactionFailure> {
        let at = self.fails.clone()?;
        let cause = self.cause.clone().unwrap_or_else(|| self.message.clone());
        Some(ReactionFailure { at, cause })
    }
}

impl Location {
    /// A file, of which no line is known.
    pub fn file(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
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
        // Jinja's errors begin with the place already.
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
            // Salt's sentence about a file ends in ": ", for its traceback.
            Some(cause) if self.message.ends_with(": ") => f.write_str(cause),
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}
