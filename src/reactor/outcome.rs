//! What became of an event: what matched, what was rendered, and the calls that came of it.

use super::call::Call;
use crate::model::Note;
use crate::sls::{Map, Value};

/// How much of an [`Outcome`] somebody will look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Calls, what was fired, and notes.
    #[default]
    Calls,
    /// All of it: rendered texts, high data, low chunks.
    Everything,
}

/// One rendering of one file by Jinja.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Render {
    /// The file, as Salt shows it.
    pub file: String,
    /// The text; none if it failed.
    pub text: Option<String>,
}

/// A call of a function of `salt` by a template.
#[derive(Debug, Clone, PartialEq)]
pub struct SaltCall {
    /// `pillar.get`
    pub fun: String,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Keywords.
    pub kwargs: Map,
    /// What it gave, or the exception's type and text.
    pub answer: Result<Value, (String, String)>,
}

/// An event that the reactor fires itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Fired {
    /// Its tag.
    pub tag: String,
    /// Its data.
    pub data: Value,
}

/// A file that was not, or not only, rendered natively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotNative {
    /// The file, as Salt shows it.
    pub file: String,
    /// Why: `renderer "py"`, `filter "ipaddr"`.
    pub why: String,
}

/// What became of an event.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The references that matched, in order.
    pub matched: Vec<Value>,
    /// Texts that Jinja made; only with [`Detail::Everything`].
    pub renders: Vec<Render>,
    /// High data per reference; only with [`Detail::Everything`].
    pub high: Vec<Map>,
    /// Low chunks in order; only with [`Detail::Everything`].
    pub low: Vec<Map>,
    /// What is to be called, in order.
    pub calls: Vec<Call>,
    /// What templates called through `salt`; only with [`Detail::Everything`].
    pub salt_calls: Vec<SaltCall>,
    /// What is to be fired.
    pub fired: Vec<Fired>,
    /// What is to be said.
    pub notes: Vec<Note>,
    /// Files that Salt's own renderer was wanted for.
    pub not_native: Vec<NotNative>,
}
