//! Asking the daemon: finding it, saying where it was looked for, and reading lists page by page.

use std::io;

use rmpv::Value;
use serde_json::Value as Json;

use super::Global;
use crate::api::client::{Client, ClientError, args};
use crate::config::{Origin, SocketChoice, Surroundings};
use crate::{limits, wire};

/// Nobody answers.
#[derive(Debug, thiserror::Error)]
#[error("no daemon answers at {} ({}): {source}", choice.path.display(), chosen(&choice.origin))]
pub(super) struct NoDaemon {
    choice: SocketChoice,
    source: io::Error,
}

impl NoDaemon {
    /// What to do about it.
    pub(super) fn hint(&self) -> String {
        if self.source.kind() == io::ErrorKind::PermissionDenied {
            return "your user may not open this socket; its group may, see socket_group in the configuration"
                .to_owned();
        }
        let flag = match self.choice.origin {
            Origin::Default => String::new(),
            _ => format!(" --socket {}", self.choice.path.display()),
        };
        format!(
            "start one with `saltcellar serve{flag}`, or the installed service with `systemctl start saltcellar`; \
             if one listens elsewhere, name its socket with --socket or SALTCELLAR_SOCKET"
        )
    }
}

fn chosen(origin: &Origin) -> String {
    match origin {
        Origin::Default => "the default socket".to_owned(),
        other => format!("named by {other}"),
    }
}

/// Connects to the daemon that flags, environment and configuration point at.
pub(super) fn connect(global: &Global) -> anyhow::Result<Client> {
    let choice = SocketChoice::find(&global.given(), &Surroundings::of_process())?;
    Client::connect(&choice.path).map_err(|error| match error {
        ClientError::Away { source, .. } => NoDaemon { choice, source }.into(),
        other => other.into(),
    })
}

/// The answer to one call, in JSON.
pub(super) fn call<const N: usize>(
    client: &mut Client,
    name: &str,
    pairs: [(&str, Value); N],
) -> Result<Json, ClientError> {
    Ok(wire::json::to_json(&client.call(name, args(pairs))?))
}

/// A list that is read from its newest row back, as many rows as wanted.
pub(super) struct Pages {
    client: Client,
    /// Name of the call, of the list in its answer, and of the field that says where to go on.
    names: Names,
    filter: Vec<(&'static str, Value)>,
    wanted: u64,
    before: Value,
    /// Whether the daemon has rows beyond those read.
    pub(super) more: bool,
    done: bool,
}

/// What distinguishes one list from another.
#[derive(Clone, Copy)]
pub(super) struct Names {
    /// The call.
    pub(super) call: &'static str,
    /// The list in its answer.
    pub(super) rows: &'static str,
    /// The field of a row that `before` takes.
    pub(super) cursor: &'static str,
}

impl Pages {
    /// The newest `wanted` rows before `before`.
    pub(super) fn new(
        client: Client,
        names: Names,
        filter: Vec<(&'static str, Value)>,
        before: Value,
        wanted: u64,
    ) -> Self {
        Self { client, names, filter, wanted, before, more: true, done: false }
    }

    /// The next rows, newest first; empty at the end.
    pub(super) fn next(&mut self) -> Result<Vec<Json>, ClientError> {
        loop {
            // A daemon that looked at many rows and found none of them says where it stopped.
            let rows = self.next_page()?;
            if !rows.is_empty() || self.done || self.wanted == 0 {
                return Ok(rows);
            }
        }
    }

    /// All rows that are wanted, the newest at the bottom.
    pub(super) fn newest_below(&mut self) -> Result<Vec<Json>, ClientError> {
        let mut rows = Vec::new();
        loop {
            let page = self.next()?;
            if page.is_empty() {
                rows.reverse();
                return Ok(rows);
            }
            rows.extend(page);
        }
    }

    fn next_page(&mut self) -> Result<Vec<Json>, ClientError> {
        if self.done || self.wanted == 0 {
            return Ok(Vec::new());
        }
        let limit = self.wanted.min(limits::CLI_PAGE_ROWS);
        let mut pairs: Vec<_> =
            self.filter.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect();
        pairs.push((Value::from("limit"), Value::from(limit)));
        pairs.push((Value::from("before"), self.before.clone()));
        pairs.retain(|(_, value)| !value.is_nil());
        let mut answer = wire::json::to_json(&self.client.call(self.names.call, Value::Map(pairs))?);

        let odd = |what: &str| ClientError::Protocol(format!("{}: {what}", self.names.call));
        let Some(Json::Array(mut rows)) = answer.get_mut(self.names.rows).map(Json::take) else {
            return Err(odd("no list"));
        };
        self.more = answer.get("more").and_then(Json::as_bool).unwrap_or(false);
        self.wanted = self.wanted.saturating_sub(rows.len() as u64);
        self.done = !self.more;
        let next = answer.get("next").filter(|next| !next.is_null());
        let of_row = || rows.last().map(|last| last.get(self.names.cursor).unwrap_or(&Json::Null));
        if let Some(cursor) = next.or_else(of_row).filter(|_| self.more) {
            let before =
                wire::json::from_json(cursor).map_err(|_| odd("a row without a place in the list"))?;
            if before.is_nil() || before == self.before {
                return Err(odd("the list does not advance"));
            }
            self.before = before;
        } else {
            // `more` without rows would be asked for forever.
            self.done = true;
        }
        rows.iter_mut().for_each(super::when::iso_in);
        Ok(rows)
    }
}

/// The answer to a call whose list comes in parts: `rows` of it holds them all.
pub(super) fn whole(
    client: &mut Client,
    name: &str,
    rows: &str,
    said: &[(&str, Value)],
) -> Result<Value, ClientError> {
    let odd = |what: &str| ClientError::Protocol(format!("{name}: {what}"));
    let mut first: Option<Value> = None;
    let mut after = Value::Nil;
    loop {
        let mut pairs: Vec<_> = said.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect();
        pairs.push((Value::from("after"), after.clone()));
        pairs.retain(|(_, value)| !value.is_nil());
        let mut answer = client.call(name, Value::Map(pairs))?;
        let next = match field(&answer, "more").and_then(Value::as_bool) {
            Some(true) => Some(field(&answer, "next").cloned().ok_or_else(|| odd("more without a place"))?),
            _ => None,
        };
        match &mut first {
            None => first = Some(answer),
            Some(first) => {
                let more = field_mut(&mut answer, rows).map(|list| std::mem::replace(list, Value::Nil));
                match (field_mut(first, rows), more) {
                    (Some(Value::Array(all)), Some(Value::Array(more))) => all.extend(more),
                    _ => return Err(odd("no list")),
                }
            }
        }
        match next {
            Some(next) if next != after => after = next,
            Some(_) => return Err(odd("the list does not advance")),
            None => break,
        }
    }
    let mut answer = first.unwrap_or(Value::Nil);
    if let Value::Map(pairs) = &mut answer {
        pairs.retain(|(key, _)| !matches!(key.as_str(), Some("more" | "next")));
    }
    Ok(answer)
}

/// A field of a map.
pub(super) fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

fn field_mut<'a>(map: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let Value::Map(pairs) = map else { return None };
    pairs.iter_mut().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}
