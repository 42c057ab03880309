//! Signatures of runners and wheel functions, for mapping the arguments of reactions in the old form.
//!
//! The execution function `sys.runner_argspec` includes custom runners; the master runs it through the runner `salt.cmd`. Salt has no
//! counterpart for wheel functions: Salt's own are in a table, custom ones are unknown and reported as such.

use std::collections::HashMap;

use super::pack::unpacked;
use crate::sls::value::{Map, Value};

/// The signature of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Argument names, in order.
    pub args: Vec<String>,
    /// Defaults of the last arguments.
    pub defaults: Vec<Value>,
    /// Whether it accepts `*args`.
    pub varargs: bool,
    /// Whether it accepts `**kwargs`.
    pub kwargs: bool,
}

/// Signatures by function name.
pub type Signatures = HashMap<String, Signature>;

/// Parses the result of `sys.runner_argspec` (msgpack). Malformed items are skipped.
pub fn read(result: &[u8]) -> Signatures {
    let Some(Value::Map(found)) = unpacked(result) else { return Signatures::new() };
    found.iter().filter_map(|(name, spec)| Some((name.as_str()?.to_owned(), one(spec.as_map()?)))).collect()
}

fn one(spec: &Map) -> Signature {
    let list = |name: &str| spec.get(name).and_then(Value::as_list).unwrap_or_default();
    let is_true = |name: &str| spec.get(name) == Some(&Value::Bool(true));
    Signature {
        args: list("args").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        defaults: list("defaults").to_vec(),
        varargs: is_true("varargs"),
        kwargs: is_true("kwargs"),
    }
}
