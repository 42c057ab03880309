//! The types of Salt's options, and Salt's warnings about other types. Salt uses such values anyway.

use crate::sls::{Map, Value};

/// Python's types of option values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Nothing,
    Str,
    List,
    Tuple,
    Bool,
    Int,
    Float,
    Dict,
}

impl Type {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "NoneType" => Type::Nothing,
            "str" => Type::Str,
            "list" => Type::List,
            "tuple" => Type::Tuple,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "float" => Type::Float,
            "dict" => Type::Dict,
            _ => return None,
        })
    }

    fn of(value: &Value) -> (Option<Self>, &'static str) {
        let known = match value {
            Value::Null => Type::Nothing,
            Value::Str(_) => Type::Str,
            Value::List(_) => Type::List,
            Value::Tuple(_) => Type::Tuple,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) | Value::BigInt(_) => Type::Int,
            Value::Float(_) => Type::Float,
            Value::Map(_) => Type::Dict,
            Value::Bytes(_) => return (None, "bytes"),
            Value::Set(_) => return (None, "set"),
        };
        (Some(known), known.name())
    }

    fn name(self) -> &'static str {
        match self {
            Type::Nothing => "NoneType",
            Type::Str => "str",
            Type::List => "list",
            Type::Tuple => "tuple",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Float => "float",
            Type::Dict => "dict",
        }
    }

    /// Types that this type's constructor accepts, but with a change of meaning.
    fn rejects(self) -> &'static [Type] {
        match self {
            Type::Str => &[Type::List, Type::Tuple, Type::Dict],
            Type::List | Type::Tuple => &[Type::Dict, Type::Str],
            Type::Bool => {
                &[Type::List, Type::Tuple, Type::Str, Type::Int, Type::Float, Type::Dict, Type::Nothing]
            }
            Type::Int => &[Type::Bool, Type::Float],
            Type::Float => &[Type::Bool],
            Type::Nothing | Type::Dict => &[],
        }
    }

    /// Whether `type(value)` succeeds in Python.
    fn accepts(self, value: &Value) -> bool {
        match self {
            Type::Nothing => false,
            Type::Str | Type::Bool => true,
            Type::List | Type::Tuple => !matches!(
                value,
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_)
            ),
            Type::Int => match value {
                Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => true,
                Value::Str(text) => text.trim().parse::<i64>().is_ok(),
                _ => false,
            },
            Type::Float => match value {
                Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_) => true,
                Value::Str(text) => text.trim().parse::<f64>().is_ok(),
                _ => false,
            },
            Type::Dict => match value {
                Value::Map(_) => true,
                Value::List(items) | Value::Tuple(items) => items.iter().all(|item| match item {
                    Value::List(pair) | Value::Tuple(pair) => pair.len() == 2,
                    Value::Str(text) => text.chars().count() == 2,
                    Value::Map(map) => map.len() == 2,
                    _ => false,
                }),
                Value::Str(text) => text.is_empty(),
                _ => false,
            },
        }
    }
}

/// The warnings about `options`, in their order. `types` is a table of `options.json`.
pub(super) fn complaints(options: &Map, types: &serde_json::Map<String, serde_json::Value>) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in options {
        let Some((name, wanted)) = key.as_str().and_then(|name| Some((name, types.get(name)?))) else {
            continue;
        };
        let (own, own_name) = Type::of(value);
        // The value in the secret store is unknown here.
        if value.as_str().is_some_and(|text| text.starts_with("sdb://")) {
            continue;
        }
        let (fits, asked) = match wanted {
            serde_json::Value::String(one) => {
                let Some(one) = Type::named(one) else { continue };
                (fits_one(one, own, value), one.name().to_owned())
            }
            serde_json::Value::Array(many) => {
                let many: Vec<Type> = many.iter().filter_map(|name| Type::named(name.as_str()?)).collect();
                let Some((last, rest)) = many.split_last() else { continue };
                let rest: Vec<&str> = rest.iter().map(|one| one.name()).collect();
                (fits_any(&many, own, value), format!("{} or {}", rest.join(", "), last.name()))
            }
            _ => continue,
        };
        if !fits {
            found.push(format!(
                "Config option '{name}' with value {} has an invalid type of {own_name}, a {asked} is required for \
                 this option",
                value.python_str(),
            ));
        }
    }
    found
}

fn fits_one(wanted: Type, own: Option<Type>, value: &Value) -> bool {
    own == Some(wanted) || (wanted.accepts(value) && !own.is_some_and(|own| wanted.rejects().contains(&own)))
}

fn fits_any(wanted: &[Type], own: Option<Type>, value: &Value) -> bool {
    let is_wanted = own.is_some_and(|own| wanted.contains(&own));
    is_wanted
        || [Type::Str, Type::List, Type::Tuple, Type::Bool, Type::Int, Type::Float].into_iter().any(|kind| {
            wanted.contains(&kind)
                && kind.accepts(value)
                && !own.is_some_and(|own| kind.rejects().contains(&own) && !wanted.contains(&own))
        })
}
