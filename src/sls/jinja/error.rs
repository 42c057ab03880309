//! Why a template did not render.

use std::fmt;

/// What kind of failure it was: what the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderErrorKind {
    /// Salt would fail, too: a syntax error, an undefined variable, an exception.
    Failed,
    /// Salt might render it: something that is not done natively. Give the file to Salt's own renderer.
    NotNative,
    /// A bound of this program; the message says which.
    Limit,
}

/// Why a template did not render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// The file in which it happened: the one that was rendered, or one that it imports.
    pub file: String,
    /// The line in it, from 1; 0 if unknown.
    pub line: u32,
    /// What Salt would log, as far as its words are known.
    pub message: String,
    /// What kind of failure.
    pub kind: RenderErrorKind,
}

impl RenderError {
    /// Whether Salt's own renderer may know better.
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
            f.write_str(" (not done natively)")?;
        }
        Ok(())
    }
}

impl std::error::Error for RenderError {}
