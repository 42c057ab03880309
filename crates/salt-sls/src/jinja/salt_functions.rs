//! The functions that a template finds in `salt`.

use crate::value::{Map, Value as Plain};

/// Functions of `salt` that run without Salt and have no effect.
pub trait SaltFunctions: Send + Sync {
    /// Calls a function; `None` if it, or a type of its arguments, is not supported.
    fn call(&self, fun: &str, args: &[Plain], kwargs: &Map) -> Option<Plain>;
}

/// Supports no function.
pub struct NoFunctions;

impl SaltFunctions for NoFunctions {
    fn call(&self, _fun: &str, _args: &[Plain], _kwargs: &Map) -> Option<Plain> {
        None
    }
}
