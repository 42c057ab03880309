//! Calls to the daemon: its socket, the error if it is unreachable, and lists read page by page.

use std::io;

use rmpv::Value;
use serde_json::Value as Json;

use super::Global;
use crate::api::client::{Client, ClientError, args};
use crate::config::{Environment, Origin, SocketChoice};
use crate::{limits, wire};

/// The daemon is unreachable.
#[derive(Debug, thiserror::Error)]
#[error("daemon unreachable at {} ({}): {source}", choice.path.display(), origin_text(&choice.origin))]
pub(super) struct NoDaemon {
    choice: SocketChoice,
    source: io::Error,
}

impl NoDaemon {
    /// The remedy.
    pub(super) fn hint(&self) -> String {
        if self.source.kind() == io::ErrorKind::PermissionDenied {
            return "this user has no access to the socket; add it to the group named by socket_group in the configuration"
                .to_owned();
        }
        let flag = match self.choice.origin {
            Origin::Default => String::new(),
            _ => format!(" --socket {}", self.choice.path.display()),
        };
        format!(
            "start one with `saltcellar serve{flag}`, or the installed service with `systemctl start saltcellar`; \
             if it listens elsewhere, set --socket or SALTCELLAR_SOCKET"
        )
    }
}

fn origin_text(origin: &Origin) -> String {
    match origin {
        Origin::Default => "the default socket".to_owned(),
        other => format!("set by {other}"),
    }
}

/// Connects to the daemon whose socket is set by flags, environment, configuration or default, in this order.
pub(super) fn connect(global: &Global) -> anyhow::Result<Client> {
    let choice = SocketChoice::find(&global.overrides(), &Environment::of_process())?;
    Client::connect(&choice.path).map_err(|error| match error {
        ClientError::Unreachable { source, .. } => NoDaemon { choice, source }.into(),
        other => other.into(),
    })
}

/// Makes one call and returns its answer as JSON.
pub(super) fn call<const N: usize>(
    client: &mut Client,
    name: &str,
    pairs: [(&str, Value); N],
) -> Result<Json, ClientError> {
    Ok(wire::json::to_json(&client.call(name, args(pairs))?))
}

/// A list read in pages from the newest row backwards.
pub(super) struct Pages {
    client: Client,
    list: ListCall,
    filter: Vec<(&'static str, Value)>,
    wanted: u64,
    before: Value,
    /// Whether the daemon has rows beyond those read.
    pub(super) more: bool,
    done: bool,
}

/// A call that answers with a list.
#[derive(Clone, Copy)]
pub(super) struct ListCall {
    pub(super) call: &'static str,
    /// The field of the answer that holds the list.
    pub(super) rows: &'static str,
    /// The field of a row whose value is the argument `before` of the next call.
    pub(super) cursor: &'static str,
}

impl Pages {
    /// Reads the newest `wanted` rows before `before`.
    pub(super) fn new(
        client: Client,
        list: ListCall,
        filter: Vec<(&'static str, Value)>,
        before: Value,
        wanted: u64,
    ) -> Self {
        Self { client, list, filter, wanted, before, more: true, done: false }
    }

    /// The next rows, newest first; empty at the end.
    pub(super) fn next(&mut self) -> Result<Vec<Json>, ClientError> {
        loop {
            // A page without matches is not the end: the daemon limits the rows that one call reads.
            let rows = self.next_page()?;
            if !rows.is_empty() || self.done || self.wanted == 0 {
                return Ok(rows);
            }
        }
    }

    /// All wanted rows, oldest first.
    pub(super) fn oldest_first(&mut self) -> Result<Vec<Json>, ClientError> {
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
        let mut answer = wire::json::to_json(&self.client.call(self.list.call, Value::Map(pairs))?);

        let invalid = |what: &str| ClientError::Protocol(format!("{}: {what}", self.list.call));
        let Some(Json::Array(mut rows)) = answer.get_mut(self.list.rows).map(Json::take) else {
            return Err(invalid("no list"));
        };
        self.more = answer.get("more").and_then(Json::as_bool).unwrap_or(false);
        self.wanted = self.wanted.saturating_sub(rows.len() as u64);
        self.done = !self.more;
        let next = answer.get("next").filter(|next| !next.is_null());
        let of_row = || rows.last().map(|last| last.get(self.list.cursor).unwrap_or(&Json::Null));
        if let Some(cursor) = next.or_else(of_row).filter(|_| self.more) {
            let before = wire::json::from_json(cursor).map_err(|_| invalid("a row has no cursor"))?;
            if before.is_nil() || before == self.before {
                return Err(invalid("the list does not advance"));
            }
            self.before = before;
        } else {
            // `more` without a cursor would loop forever.
            self.done = true;
        }
        rows.iter_mut().for_each(super::format::when::iso_in);
        Ok(rows)
    }
}

/// Makes a call whose list is answered in pages, and returns one answer that holds all of `rows`.
pub(super) fn call_paged(
    client: &mut Client,
    name: &str,
    rows: &str,
    arguments: &[(&str, Value)],
) -> Result<Value, ClientError> {
    let invalid = |what: &str| ClientError::Protocol(format!("{name}: {what}"));
    let mut first: Option<Value> = None;
    let mut after = Value::Nil;
    loop {
        let mut pairs: Vec<_> =
            arguments.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect();
        pairs.push((Value::from("after"), after.clone()));
        pairs.retain(|(_, value)| !value.is_nil());
        let mut answer = client.call(name, Value::Map(pairs))?;
        let next = match field(&answer, "more").and_then(Value::as_bool) {
            Some(true) => Some(field(&answer, "next").cloned().ok_or_else(|| invalid("more without next"))?),
            _ => None,
        };
        match &mut first {
            None => first = Some(answer),
            Some(first) => {
                let more = field_mut(&mut answer, rows).map(|list| std::mem::replace(list, Value::Nil));
                match (field_mut(first, rows), more) {
                    (Some(Value::Array(all)), Some(Value::Array(more))) => all.extend(more),
                    _ => return Err(invalid("no list")),
                }
            }
        }
        match next {
            Some(next) if next != after => after = next,
            Some(_) => return Err(invalid("the list does not advance")),
            None => break,
        }
    }
    let mut answer = first.unwrap_or(Value::Nil);
    if let Value::Map(pairs) = &mut answer {
        pairs.retain(|(key, _)| !matches!(key.as_str(), Some("more" | "next")));
    }
    Ok(answer)
}

pub(super) fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

fn field_mut<'a>(map: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let Value::Map(pairs) = map else { return None };
    pairs.iter_mut().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}
