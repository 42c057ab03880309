//! Parameters of operations: from the path, the query or a JSON body to the arguments of a call.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value as Json};

use super::super::answer::HttpError;

#[derive(Debug, Clone)]
pub(super) struct Param {
    pub(super) name: String,
    pub(super) kind: ParamKind,
    pub(super) doc: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParamKind {
    /// Text, or one of several words: the call decides.
    Text,
    Count,
    Flag,
    /// ISO text, or microseconds since 1970.
    Time,
    /// A JSON value; in a query, its text.
    Json,
}

/// The parameters of an operation: the fields of the arguments of its call, but those in its path.
pub(super) fn of_arguments(args: fn(&mut SchemaGenerator) -> Schema, path: &str) -> Vec<Param> {
    // Inlined, because a reference says nothing about the kind of a field.
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = args(&mut settings.into_generator());
    let fields = schema.get("properties").and_then(Json::as_object);

    fields
        .into_iter()
        .flatten()
        .filter(|(name, _)| !path.contains(&format!("{{{name}}}")))
        .map(|(name, field)| Param {
            name: name.clone(),
            kind: ParamKind::of(field),
            doc: field
                .get("description")
                .and_then(Json::as_str)
                .unwrap_or_default()
                .to_owned(),
        })
        .collect()
}

impl ParamKind {
    /// The kind of a field with this schema.
    fn of(field: &Json) -> Self {
        let kinds = field.get("type");
        let is = |kind: &str| {
            kinds.is_some_and(|kinds| {
                kinds == kind
                    || kinds
                        .as_array()
                        .is_some_and(|all| all.contains(&kind.into()))
            })
        };
        // An optional type of its own is one of two, and an enumeration with comments one of several.
        let of = |all: &Json| all.as_array().and_then(|all| all.first()).map(Self::of);
        if let Some(kind) = ["anyOf", "oneOf"]
            .iter()
            .find_map(|key| field.get(key).and_then(of))
        {
            return kind;
        }

        if field.get("format") == Some(&"date-time".into()) {
            Self::Time
        } else if is("string") {
            Self::Text
        } else if is("integer") {
            Self::Count
        } else if is("boolean") {
            Self::Flag
        } else {
            Self::Json
        }
    }
}

impl Param {
    /// The argument with the value of this parameter.
    fn argument(&self, value: &Json) -> Result<Json, HttpError> {
        // In a query every value is a string. In a JSON body it may have its type. Both are
        // accepted everywhere.
        let text = value.as_str();
        let expected =
            |what: &str| HttpError::bad(format!("parameter `{}`: expected {what}", self.name));

        Ok(match self.kind {
            ParamKind::Text => text.map(Json::from).ok_or_else(|| expected("text"))?,
            ParamKind::Count => {
                let number = value.as_u64().or_else(|| text?.parse().ok());
                number.ok_or_else(|| expected("a number from 0"))?.into()
            }
            ParamKind::Flag => {
                let flag = value.as_bool().or(match text {
                    Some("true" | "1") => Some(true),
                    Some("false" | "0") => Some(false),
                    _ => None,
                });
                flag.ok_or_else(|| expected("true or false"))?.into()
            }
            ParamKind::Time => {
                let micros = value
                    .as_i64()
                    .or_else(|| text?.parse().ok())
                    .or_else(|| iso(text?));
                micros
                    .ok_or_else(|| {
                        expected("a time such as 2026-11-21T05:47:28Z, or microseconds since 1970")
                    })?
                    .into()
            }
            ParamKind::Json => match text.map(serde_json::from_str) {
                None => value.clone(),
                Some(Ok(value)) => value,
                Some(Err(error)) => return Err(expected(&format!("JSON: {error}"))),
            },
        })
    }
}

fn iso(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>()
        .ok()
        .map(jiff::Timestamp::as_microsecond)
}

/// The arguments of a call. An unknown or repeated parameter is an error.
pub(super) fn arguments(
    known: &[Param],
    path: &[(String, String)],
    given: Vec<(String, Json)>,
) -> Result<Map<String, Json>, HttpError> {
    let mut args = Map::new();
    for (name, value) in given {
        let Some(param) = known.iter().find(|param| param.name == name) else {
            let names = known
                .iter()
                .map(|param| param.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names
            };
            return Err(HttpError::bad(format!(
                "unknown parameter {name:.50}; known: {names}"
            )));
        };

        // A JSON body may state `null` for what a query leaves out.
        if value.is_null() {
            continue;
        }

        // Which of the two counts would be a guess.
        if args.insert(name.clone(), param.argument(&value)?).is_some() {
            return Err(HttpError::bad(format!("parameter `{name}` is given twice")));
        }
    }

    // The path comes last, because no parameter may replace a part of it.
    for (name, value) in path {
        let value = if name == "seq" {
            let seq: Option<u64> = value.parse().ok();
            seq.ok_or_else(|| HttpError::bad(format!("{value:.50} is not a sequence number")))?
                .into()
        } else {
            Json::from(value.as_str())
        };
        args.insert(name.clone(), value);
    }

    Ok(args)
}

#[cfg(test)]
mod tests;
