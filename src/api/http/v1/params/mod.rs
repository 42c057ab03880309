//! Parameters of operations: from the path, the query or a JSON body to the arguments of a call.

use serde_json::{Map, Value as Json};

use super::super::answer::HttpError;

pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) kind: ParamKind,
    pub(super) doc: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ParamKind {
    Text,
    Count,
    Flag,
    /// ISO text, or microseconds since 1970.
    Time,
    /// A JSON value; in a query, its text.
    Json,
    /// `<store>:<position>`, passed on as the argument `before`: a sequence number or a jid.
    SeqCursor,
    JidCursor,
}

pub(super) const fn param(name: &'static str, kind: ParamKind, doc: &'static str) -> Param {
    Param { name, kind, doc }
}

impl Param {
    /// The argument with the value of this parameter.
    fn argument(&self, value: &Json, store: &str) -> Result<(&'static str, Json), HttpError> {
        // In a query every value is text; in a JSON body it may have its type. Both are accepted
        // everywhere.
        let text = value.as_str();
        let expected =
            |what: &str| HttpError::bad(format!("parameter `{}`: expected {what}", self.name));

        let argument = match self.kind {
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
            ParamKind::SeqCursor => {
                // A cursor becomes the argument `before`, whatever its parameter is called.
                let position = cursor(text.ok_or_else(|| expected("a cursor"))?, store)?;
                let seq: Option<u64> = position.parse().ok();
                return Ok((
                    "before",
                    seq.ok_or_else(|| expected("a cursor of this list"))?.into(),
                ));
            }
            ParamKind::JidCursor => {
                return Ok((
                    "before",
                    cursor(text.ok_or_else(|| expected("a cursor"))?, store)?.into(),
                ));
            }
        };

        Ok((self.name, argument))
    }
}

fn iso(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>()
        .ok()
        .map(jiff::Timestamp::as_microsecond)
}

/// The position in a cursor or in the id of an event of this store.
pub(super) fn cursor<'a>(text: &'a str, store: &str) -> Result<&'a str, HttpError> {
    // Positions are of one store, so each cursor names it.
    match text.split_once(':') {
        // The id of a gap record, `STORE:gap:SEQ`, is a position as well.
        Some((of, position)) if of == store => Ok(position.trim_start_matches("gap:")),
        // A store that was replaced counts from 1 again: the same number would be another entry.
        Some((of, _)) => Err(HttpError::new(
            hyper::StatusCode::CONFLICT,
            "other_store",
            format!(
                "the cursor is of store {of:.40}, this is store {store}: start without a cursor"
            ),
        )),
        None => Err(HttpError::bad(
            "a cursor has the form STORE:POSITION, as in `next` and in ids of events",
        )),
    }
}

/// The arguments of a call. An unknown or repeated parameter is an error.
pub(super) fn arguments(
    known: &[Param],
    path: &[(String, String)],
    given: Vec<(String, Json)>,
    store: &str,
) -> Result<Map<String, Json>, HttpError> {
    let mut args = Map::new();
    for (name, value) in given {
        let Some(param) = known.iter().find(|param| param.name == name) else {
            let names = known
                .iter()
                .map(|param| param.name)
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

        let (name, value) = param.argument(&value, store)?;
        // Which of the two counts would be a guess.
        if args.insert(name.to_owned(), value).is_some() {
            return Err(HttpError::bad(format!("parameter `{name}` is given twice")));
        }
    }

    // Last, so that no parameter replaces a part of the path.
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
