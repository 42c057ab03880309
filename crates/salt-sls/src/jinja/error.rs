//! Errors of a rendering.

use std::fmt;

use minijinja::{Error, ErrorKind};

/// The kind of an error; it determines the caller's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderErrorKind {
    /// The template is not native: give the file to Salt's renderer.
    NotNative,
    /// The rendering exceeded a limit, which the message names. Salt's renderer does not get such a
    /// file.
    Limit,
}

/// The error of a rendering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// The template's path.
    pub file: String,
    /// The line in it, from 1; 0 if unknown.
    pub line: u32,
    /// The construct that is not native, or the limit.
    pub message: String,
    /// The kind of the error.
    pub kind: RenderErrorKind,
}

impl RenderError {
    /// Whether Salt's renderer has to render the file.
    pub fn not_native(&self) -> bool {
        self.kind == RenderErrorKind::NotNative
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.message)?;
        if self.kind == RenderErrorKind::NotNative {
            f.write_str(" (not native)")?;
        }
        Ok(())
    }
}

impl std::error::Error for RenderError {}

/// A construct that is not native.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotNative {
    /// The line, from 1; 0 for the whole file.
    pub line: u32,
    /// The construct: `filter "ipaddr"`, `salt["mine.get"]`.
    pub what: String,
}

/// The result of a native operation. Errors mean that the file is not native, except errors of
/// [`super::budget`].
pub(crate) type Res<T> = Result<T, Error>;

/// The error of an operation, `what`, that is not native.
pub(crate) fn not_native<T>(what: impl Into<std::borrow::Cow<'static, str>>) -> Res<T> {
    Err(Error::new(ErrorKind::InvalidOperation, what))
}
