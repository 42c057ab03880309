//! Salt's checks of high data. One error drops all reactions of the event.

use std::fmt;

use super::error::Refused;
use super::graph::is_requisite;
use crate::python::{repr, str, type_name};
use crate::value::{Map, Value};

/// All errors, as Salt reports them; `Err` if Salt raises an exception.
pub(super) fn verify(high: &Map) -> Result<Vec<String>, Refused> {
    let mut errors = Vec::new();
    for (id, body) in high {
        let Value::Map(body) = body else { continue };
        let id_text = OptionalText(Some(&id.0));
        let sls = OptionalText(body.get("__sls__"));

        match &id.0 {
            Value::Str(text) if text.starts_with("__") => continue,
            Value::Str(_) => {}
            other => errors.push(format!(
                "ID '{id_text}' in SLS '{sls}' is not formed as a string, but is type {}. It may need to be quoted.",
                type_name(other)
            )),
        }

        for (kind, run) in body {
            // Salt calls a method of strings on it.
            let Some(kind) = kind.as_str() else {
                return Err(Refused::Exception(format!(
                    "a type is a {}",
                    type_name(&kind.0)
                )));
            };
            if kind.starts_with("__") {
                continue;
            }

            match run {
                Value::Null => errors.push(format!(
                    "ID '{id_text}' in SLS '{sls}' contains a short declaration ({kind}) with a trailing colon. \
                     When not passing any arguments to a state, the colon must be omitted."
                )),
                Value::List(items) => {
                    let state = State { id: id_text, sls, kind };
                    state.verify(items, &mut errors)?;
                }
                _ => errors.push(format!("State '{id_text}' in SLS '{sls}' is not formed as a list")),
            }
        }
    }

    Ok(errors)
}

/// A value in an error message, formatted on use; empty for `None`.
#[derive(Clone, Copy)]
struct OptionalText<'a>(Option<&'a Value>);

impl fmt::Display for OptionalText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |value| f.write_str(&str(value)))
    }
}

/// Checks one type of one ID.
struct State<'a> {
    id: OptionalText<'a>,
    sls: OptionalText<'a>,
    kind: &'a str,
}

impl State<'_> {
    fn verify(&self, items: &[Value], errors: &mut Vec<String>) -> Result<(), Refused> {
        let Self { id, sls, kind } = self;
        // A type with a dot names its function already.
        let own_fun = kind.split_once('.').map(|(_, fun)| fun);
        let mut funs: Vec<&str> = own_fun.into_iter().collect();

        for item in items {
            match item {
                Value::Str(fun) => {
                    funs.push(fun);
                    if fun.trim().contains(' ') {
                        errors.push(format!(
                            "The function \"{fun}\" in state \"{id}\" in SLS \"{sls}\" has whitespace, a function with \
                             whitespace is not supported, perhaps this is an argument that is missing a \":\""
                        ));
                    }
                }
                Value::Map(arguments) => self.verify_arguments(arguments, errors)?,
                _ => {}
            }
        }

        if funs.is_empty() {
            errors.push(format!(
                "No function declared in state '{id}' in SLS '{sls}'"
            ));
        } else if funs.len() > 1 {
            errors.push(format!(
                "Too many functions declared in state '{id}' in SLS '{sls}'. Please choose one of the following: {}",
                funs.join(", ")
            ));
        }

        Ok(())
    }

    fn verify_arguments(&self, arguments: &Map, errors: &mut Vec<String>) -> Result<(), Refused> {
        let Self { id, sls, .. } = self;
        let Some((first, value)) = arguments.first() else {
            return Err(Refused::Exception(format!(
                "an empty mapping in state '{id}' in SLS '{sls}'"
            )));
        };

        // As in Salt, the first key decides what the mapping is.
        let Some(first) = first.as_str() else {
            return Ok(());
        };

        if first == "names" && !matches!(value, Value::List(_)) {
            errors.push(format!(
                "The 'names' argument in state '{id}' in SLS '{sls}' needs to be formed as a list"
            ));
        }

        // The checks handle `onfail_stop` as a requisite.
        if !is_requisite(first) && first != "onfail_stop" {
            return Ok(());
        }

        match value {
            Value::List(references) => {
                for reference in references {
                    self.verify_reference(reference, errors)?;
                }
            }
            _ => errors.push(format!(
                "The {first} statement in state '{id}' in SLS '{sls}' needs to be formed as a list"
            )),
        }

        if arguments.len() != 1 {
            errors.push(format!(
                "Multiple dictionaries defined in argument of state '{id}' in SLS '{sls}'"
            ));
        }

        Ok(())
    }

    fn verify_reference(&self, reference: &Value, errors: &mut Vec<String>) -> Result<(), Refused> {
        let Self { id, sls, .. } = self;
        // The short form, an ID.
        if let Value::Str(_) = reference {
            return Ok(());
        }

        let only = reference
            .as_map()
            .filter(|map| map.len() == 1)
            .and_then(Map::first);
        let Some((key, value)) = only else {
            errors.push(format!(
                "Requisite declaration {} in state {id} in SLS {sls} is not formed as a single key dictionary",
                repr(reference)
            ));
            return Ok(());
        };

        let Some(key) = key.as_str() else {
            let found = type_name(&key.0);
            return Err(Refused::Exception(format!(
                "a requisite of type {found} in state '{id}' in SLS '{sls}'"
            )));
        };

        if let Some((kind, _)) = key.split_once('.') {
            errors.push(format!(
                "Invalid requisite type '{key}' in state '{id}', in SLS '{sls}'. Requisite types must not contain \
                 dots, did you mean '{kind}'?"
            ));
        }

        // Salt uses it as a key.
        if !value.is_hashable() {
            errors.push(format!(
                "Illegal requisite \"{}\" in SLS \"{sls}\", please check your syntax.\n",
                str(value)
            ));
        }

        Ok(())
    }
}
