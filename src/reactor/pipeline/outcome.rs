//! The outcome of an event: matches, rendered files, and calls.

use crate::model::Note;
use crate::reactor::dispatch::call::Call;
use crate::wire::python::{Map, Value};

/// The requested parts of an [`Outcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Calls, events to fire, and notes.
    #[default]
    Calls,
    /// Also rendered texts, high data, low chunks and calls through `salt`.
    Everything,
}

/// One rendering of one file by Jinja.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Render {
    /// The file, as Salt shows it.
    pub file: String,
    /// The text; `None` after an error.
    pub text: Option<String>,
}

/// A call of a function of `salt` by a template.
#[derive(Debug, Clone, PartialEq)]
pub struct SaltCall {
    /// `pillar.get`
    pub fun: String,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Keyword arguments.
    pub kwargs: Map,
    /// The result, or the exception's type and text.
    pub answer: Result<Value, (String, String)>,
}

/// An event that the reactor fires.
#[derive(Debug, Clone, PartialEq)]
pub struct Fired {
    /// Its tag.
    pub tag: String,
    /// Its data.
    pub data: Value,
}

/// A file that was rendered by Salt, wholly or partly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotNative {
    /// The file, as Salt shows it.
    pub file: String,
    /// The reason: `renderer "py"`, `filter "ipaddr"`.
    pub why: String,
}

/// The outcome of an event.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The matching references, in order.
    pub matched: Vec<Value>,
    /// Texts rendered by Jinja; only with [`Detail::Everything`].
    pub renders: Vec<Render>,
    /// High data per reference; only with [`Detail::Everything`].
    pub high: Vec<Map>,
    /// Low chunks in order; only with [`Detail::Everything`].
    pub low: Vec<Map>,
    /// The calls to make, in order.
    pub calls: Vec<Call>,
    /// Calls of templates through `salt`; only with [`Detail::Everything`].
    pub salt_calls: Vec<SaltCall>,
    /// The events to fire.
    pub fired: Vec<Fired>,
    /// Log messages.
    pub notes: Vec<Note>,
    /// Files that need Salt's own renderers.
    pub not_native: Vec<NotNative>,
}
