//! The tests: what stands after `is`.

use super::args::Args;
use super::interp::Interp;
use crate::sls::jinja::exc::{Res, not_native, type_error};
use crate::sls::jinja::filters;
use crate::sls::jinja::library::re::{self, At};
use crate::sls::jinja::syntax::ast;
use crate::sls::jinja::syntax::ast::CmpOp;
use crate::sls::jinja::values::object::Object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::Val;
use crate::sls::jinja::values::walk::walk;
use crate::sls::python::text;

const NAMES: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "list",
    "lower",
    "lt",
    "mapping",
    "match",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether there is a test of this name.
pub(crate) fn known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Whether a value passes a test.
pub(crate) fn call(interp: &mut Interp<'_>, name: &str, val: &Val, args: Args) -> Res<bool> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(CmpOp::Eq),
        "!=" | "ne" => Some(CmpOp::Ne),
        ">" | "gt" | "greaterthan" => Some(CmpOp::Gt),
        ">=" | "ge" => Some(CmpOp::Ge),
        "<" | "lt" | "lessthan" => Some(CmpOp::Lt),
        "<=" | "le" => Some(CmpOp::Le),
        _ => None,
    };
    if let Some(op) = comparison {
        let [other] = args.bind(name, ["other"], 1)?;
        return ops::compare(op, val, &other.unwrap_or(Val::None));
    }
    match name {
        "in" => {
            let [seq] = args.bind("test_in", ["seq"], 1)?;
            return interp.contains(&seq.unwrap_or(Val::None), val);
        }
        "sameas" => {
            let [other] = args.bind("test_sameas", ["other"], 1)?;
            return Ok(val.same(&other.unwrap_or(Val::None)));
        }
        "divisibleby" => {
            let [by] = args.bind("test_divisibleby", ["num"], 1)?;
            let rest = ops::binary(ast::BinOp::Mod, val, &by.unwrap_or(Val::None))?;
            return ops::equal(&rest, &Val::Int(0));
        }
        "match" => return matches(val, args),
        _ => {}
    }
    if !known(name) {
        return Err(not_native(format!("test \"{name}\"")));
    }
    args.none(name)?;
    Ok(match name {
        "defined" => !val.is_undef(),
        "undefined" => val.is_undef(),
        "none" => matches!(val, Val::None),
        "boolean" => matches!(val, Val::Bool(_)),
        "true" => matches!(val, Val::Bool(true)),
        "false" => matches!(val, Val::Bool(false)),
        "integer" => matches!(val, Val::Int(_) | Val::Big(_)),
        "float" => matches!(val, Val::Float(_)),
        "number" => matches!(val, Val::Int(_) | Val::Big(_) | Val::Float(_) | Val::Bool(_)),
        "string" => val.as_str().is_some(),
        "list" => matches!(val, Val::List(_)),
        "mapping" => matches!(val, Val::Dict(_)),
        "escaped" => {
            matches!(val, Val::Markup(_))
                || matches!(val, Val::Object(object) if matches!(&**object, Object::Module(_)))
        }
        "callable" => match val {
            Val::Object(object) => object.callable(),
            Val::Undef(_) => true,
            _ => false,
        },
        "odd" | "even" => {
            let rest = ops::binary(ast::BinOp::Mod, val, &Val::Int(2))?;
            ops::equal(&rest, &Val::Int(i64::from(name == "odd")))?
        }
        "lower" => text::is_lower(&repr::str(val)?),
        "upper" => text::is_upper(&repr::str(val)?),
        "sequence" => {
            ops::len(val).is_ok()
                && match val {
                    Val::Undef(_) | Val::Set(_) => false,
                    Val::Object(object) => matches!(&**object, Object::Range(_)),
                    _ => true,
                }
        }
        "iterable" => {
            if let Val::Undef(undef) = val {
                undef.check()?;
            }
            walk(val).is_ok() || matches!(val, Val::Object(object) if matches!(&**object, Object::Loop(_)))
        }
        "filter" | "test" => {
            val.hashable()?;
            let known: fn(&str) -> bool = if name == "filter" { filters::known } else { known };
            val.as_str().is_some_and(known)
        }
        other => return Err(not_native(format!("test \"{other}\""))),
    })
}

fn matches(val: &Val, args: Args) -> Res<bool> {
    let [pattern, ignore_case, multiline] = args.bind("test_match", ["rgx", "ignorecase", "multiline"], 1)?;
    let truth = |val: Option<&Val>| val.map_or(Ok(false), ops::truth);
    let (ignore_case, multiline) = (truth(ignore_case.as_ref())?, truth(multiline.as_ref())?);
    let pattern = pattern.unwrap_or(Val::None);
    let Some(pattern) = pattern.as_str() else {
        return Err(type_error("first argument must be string or compiled pattern"));
    };
    let regex = re::compile(pattern, At::Start, ignore_case, multiline)?;
    let Some(text) = val.as_str() else {
        return Err(type_error(format!("expected string or bytes-like object, got '{}'", val.type_name())));
    };
    re::is_match(&regex, text)
}
