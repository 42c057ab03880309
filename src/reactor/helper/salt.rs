//! Access to Salt itself: its renderers for whole files, its grains, and the signatures of its
//! functions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use salt_sls::jinja::SaltFunctions;
use salt_sls::{Map, Value};

use crate::model::Note;
use crate::reactor::helper::functions::Functions;
use crate::reactor::master::Client;
use crate::reactor::outcome::{Outcome, Render, SaltCall};
use crate::reactor::signature::Signature;

/// Why Salt gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SaltError {
    /// Salt is not installed, or does not start.
    #[error("{0}")]
    Absent(String),
    /// The time limit was exceeded, and the process was killed.
    #[error(
        "Salt's Python took longer than {limit} and was killed: simplify the file, or raise this limit"
    )]
    TooLong {
        /// The limit, with the option that sets it.
        limit: String,
    },
    /// The process died, or its response is invalid.
    #[error("Salt's Python failed: {0}; `saltcellar doctor` checks it")]
    Broken(String),
}

/// A file for Salt's renderers.
#[derive(Debug, Clone, Copy)]
pub struct SaltFile<'a> {
    /// The path as Salt shows it.
    pub path: &'a str,
    /// The file to read.
    pub source: &'a std::path::Path,
    /// The `salt://` reference, if there is one: Salt then fetches the file.
    pub reference: Option<&'a str>,
    /// The event's tag.
    pub tag: &'a str,
    /// The event's data, with the changes by earlier files.
    pub data: &'a Value,
    /// The state of the site's renderers, see [`Salt::renderers`].
    pub renderers: u64,
    /// Whether the file is a program, such as `#!py`, for which Salt waits without limit.
    pub is_program: bool,
}

/// Salt's result for a file.
#[derive(Debug, Clone, Default)]
pub struct SaltRendered {
    /// The data after the last renderer, or the exception's type and text.
    pub result: Option<Result<Value, (String, String)>>,
    /// Strings rendered by its Jinja.
    pub renders: Vec<Render>,
    /// Functions that were called.
    pub salt_calls: Vec<SaltCall>,
    /// Its log messages of level WARNING or higher.
    pub notes: Vec<Note>,
    /// The event's data, if the file changed it.
    pub data: Option<Value>,
}

/// What a check found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaltChecked {
    /// It was rendered.
    Rendered,
    /// It is right as far as it was checked; the reason why not all of it was.
    Compiled(String),
    /// Its rendering fails with the data of the check, and possibly because of that data.
    Fails(String),
    /// Its rendering fails with any data.
    Broken(String),
}

/// Access to Salt, used by several threads. By default there is no Salt.
pub trait Salt: Send + Sync {
    /// Renders a file with Salt's renderers.
    fn render(&self, _file: &SaltFile<'_>) -> Result<SaltRendered, SaltError> {
        Err(SaltError::Absent(NO_SALT.to_owned()))
    }

    /// Checks a file with Salt's renderers. Calls no function of `salt`, and runs no code of
    /// the site. `is_static`: the file does not depend on data.
    fn check(&self, _file: &SaltFile<'_>, _is_static: bool) -> Result<SaltChecked, SaltError> {
        Err(SaltError::Absent(NO_SALT.to_owned()))
    }

    /// Whether an installed package, such as an extension of Salt, may have renderers, which can
    /// also replace Salt's renderers. Does not load Salt.
    fn packages_have_renderers(&self) -> Result<bool, SaltError> {
        Ok(false)
    }

    /// The renderers, and whether each is the site's instead of Salt's. Another `state` than before
    /// means that their directories have changed and they must be reloaded.
    fn renderers(&self, _state: u64) -> Result<HashMap<String, bool>, SaltError> {
        Err(SaltError::Absent(NO_SALT.to_owned()))
    }

    /// The signature of a runner or wheel function; `None` if it does not exist.
    fn signature(&self, _client: Client, _fun: &str) -> Result<Option<Signature>, SaltError> {
        Err(SaltError::Absent(NO_SALT.to_owned()))
    }

    /// The master's grains; `None` without Salt.
    fn grains(&self) -> Result<Option<Value>, SaltError> {
        Ok(None)
    }

    /// The local copy of a `salt://` reference from any backend of the file server; `None` if the
    /// file does not exist.
    fn fetch(&self, _reference: &str) -> Result<Option<PathBuf>, SaltError> {
        Err(SaltError::Absent(NO_SALT.to_owned()))
    }

    /// True if this function must be called here although there is a native version.
    fn insists(&self, _fun: &str) -> bool {
        false
    }
}

/// The absence of Salt; its errors name the remedy.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSalt;

/// The error text without Salt.
pub(crate) const NO_SALT: &str = "Salt's Python is required, but none was found: set reactor.python to the Python in which Salt is installed";

impl Salt for NoSalt {}

/// The native functions of `salt` during one rendering, with a record of the calls.
pub(in crate::reactor) struct Recorded {
    native: Native,
    /// Lock order: no other lock is taken under it.
    calls: Mutex<Vec<SaltCall>>,
    /// Lock order: no other lock is taken under it.
    notes: Mutex<Vec<Note>>,
}

/// The native functions of `salt` and their data.
#[derive(Clone)]
pub(in crate::reactor) struct Native {
    pub(in crate::reactor) salt: Arc<dyn Salt>,
    pub(in crate::reactor) functions: Arc<Functions>,
    pub(in crate::reactor) opts: Arc<Value>,
    pub(in crate::reactor) grains: Arc<Value>,
}

impl Recorded {
    pub(in crate::reactor) fn new(native: Native) -> Self {
        Self {
            native,
            calls: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    /// Moves calls and log records to the outcome, except when Salt renders the file again.
    pub(in crate::reactor) fn move_to(&self, out: &mut Outcome) {
        out.notes.append(&mut self.notes.lock());
        out.salt_calls.append(&mut self.calls.lock());
    }
}

impl SaltFunctions for Recorded {
    fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Option<Value> {
        let Native {
            salt,
            functions,
            opts,
            grains,
        } = &self.native;

        // A conformance case can prescribe the result of a function.
        if salt.insists(fun) {
            return None;
        }

        let answer = functions.call(fun, args, kwargs, opts, grains)?;
        // Without a result the file goes to Salt, whose error is then shown.
        let result = answer.result.ok()?;

        self.notes.lock().extend(answer.notes);
        self.calls.lock().push(SaltCall {
            fun: fun.to_owned(),
            args: args.to_vec(),
            kwargs: kwargs.clone(),
            answer: Ok(result.clone()),
        });
        Some(result)
    }
}
