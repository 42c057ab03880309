//! The arguments of runners and wheel functions, which reactions of the old form are mapped onto.
//!
//! `sys.runner_argspec`, an execution function, looks at custom runners, too; the master runs it as the runner `salt.cmd`. For wheel
//! functions Salt has no such question. Those of Salt itself are in a table; a custom one is unknown, and says so.

use std::collections::HashMap;

use super::pack::unpacked;
use crate::sls::value::{Map, Value};

/// What a function takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Names of its arguments, in order.
    pub args: Vec<String>,
    /// Defaults of the last ones.
    pub defaults: Vec<Value>,
    /// Does it take `*args`?
    pub varargs: bool,
    /// Does it take `**kwargs`?
    pub kwargs: bool,
}

/// What is known of a master's runners or wheel functions.
pub type Signatures = HashMap<String, Signature>;

/// Reads what `sys.runner_argspec` returned, as msgpack. What makes no sense in it is left out.
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
