//! The outcome of an event: matches, rendered files, and calls.

use salt_sls::{Map, Value};

use crate::model::Note;
use crate::reactor::prepared::Prepared;

/// The requested parts of an [`Outcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Calls, events to fire, and notes.
    #[default]
    Calls,
    /// Also rendered strings, high data, low chunks and calls through `salt`.
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
    pub fun: String,
    pub args: Vec<Value>,
    pub kwargs: Map,
    /// The result, or the exception's type and text.
    pub answer: Result<Value, (String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fired {
    pub(crate) tag: String,
    pub(crate) data: Value,
}

/// A file that was rendered by Salt, wholly or partly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotNative {
    pub(crate) file: String,
    /// The reason: `renderer "py"`, `filter "ipaddr"`.
    pub(crate) why: String,
}

/// What came of an event.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The matching references, in order.
    pub(crate) matched: Vec<Value>,
    /// Strings rendered by Jinja; only with [`Detail::Everything`].
    pub(crate) renders: Vec<Render>,
    /// High data per reference; only with [`Detail::Everything`].
    pub(crate) high: Vec<Map>,
    /// Low chunks in order; only with [`Detail::Everything`].
    pub(crate) low: Vec<Map>,
    /// Calls, in the order of the file.
    pub calls: Vec<Prepared>,
    /// Calls of templates through `salt`; only with [`Detail::Everything`].
    pub(crate) salt_calls: Vec<SaltCall>,
    pub(crate) fired: Vec<Fired>,
    /// What Salt's reactor would log.
    pub notes: Vec<Note>,
    /// Files that need Salt's renderers.
    pub(crate) not_native: Vec<NotNative>,
}
