//! `POST /hook/<tag>`: fires an event onto Salt's bus, as Salt's engine `webhook` does. Reactors
//! for that engine work unchanged.
//!
//! ```text
//! tag    salt/engines/hook/<tag>
//! data   {"headers": {<name>: <value>}, "body": <bytes>, "_stamp": <time>}
//! ```
//!
//! Names of headers are spelled as in that engine (`Content-Type`), and repeated headers are joined by
//! commas. `http.hook_headers` can restrict them.
//!
//! # Invariant
//!
//! Events are stored and read by others, so no token of this daemon becomes a part of one:
//! [`SECRET`] headers and those with a valid token are left out, and a hook with a valid token in
//! its tag or body is rejected. Its query is no part of the event.
//!
//! A sink of type `http` marks what it delivers of a hook's event with the header [`HOPS`]: how
//! often the event has passed through a hook. Therefore a chain of hooks and sinks that leads back to
//! itself ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use hyper::header::HeaderMap;
use hyper::{StatusCode, Uri};

use super::access::{Access, TOKEN_HEADER};
use super::answer::{Answer, HttpError, plain};
use super::server::{HttpServer, Server, rejected};
use crate::api::budget::Client;
use crate::api::call::send::Fired;
use crate::api::sign_in::tokens::TokenScanner;
use crate::base::limits::{HOOK_BODY_BYTES_MAX, HOOK_HOPS_MAX};
use crate::bus::fire::FiredTag;
use crate::model::Right;
use crate::wire::call::CallError;
use crate::wire::msgpack::Writer;
use crate::wire::salt_event::{HOOK_TAG, HOPS};

/// Headers with credentials.
const SECRET: [&str; 4] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    TOKEN_HEADER,
];

pub(super) async fn receive(
    State(server): Server,
    Extension(access): Extension<Option<Access>>,
    path: RawPathParams,
    request: Request,
) -> Response {
    let tag = path
        .iter()
        .next()
        .map(|(_, tag)| tag.to_owned())
        .unwrap_or_default();
    fired(&server, access, tag, request)
        .await
        .unwrap_or_else(rejected)
}

async fn fired(
    server: &Arc<HttpServer>,
    access: Option<Access>,
    tag: String,
    request: Request,
) -> Result<Answer, HttpError> {
    let Some(access) = access else {
        return Err(HttpError::forbidden("a hook needs a token"));
    };
    access.check("a hook", Right::Write)?;

    let tag = format!("{HOOK_TAG}{tag}");
    let limits = &access.caller.limits;
    if !limits.allow_tag(tag.as_bytes()) {
        return Err(HttpError::forbidden(format!(
            "{} may not fire {tag:.100}: it is limited by tags",
            access.name
        )));
    }

    // The reactor would do for the hook what the token's limits exclude, and nothing in a hook's
    // event can be compared with them.
    if limits.minions.is_some() || limits.functions.is_some() {
        let why = "is limited by minions or functions, and a hook's event has neither";
        return Err(HttpError::forbidden(format!("{} {why}", access.name)));
    }
    FiredTag::new(&tag).map_err(CallError::from)?;

    let bus = bus(request.uri());
    let (head, body) = request.into_parts();
    let hops = hops(&head.headers)?;
    // A sink that delivers to a hook of its own daemon would otherwise repeat one event forever.
    if hops >= HOOK_HOPS_MAX {
        server.ctx.archive.metrics.hook_loops.add(1);
        return Err(HttpError::new(
            StatusCode::LOOP_DETECTED,
            "loop",
            format!(
                "the event has passed through {hops} hooks (`{HOPS}`), at most {HOOK_HOPS_MAX} are possible: a sink delivers to its own hook"
            ),
        ));
    }

    let budget = server.hooks.of(match &access.token {
        Some(token) => Client::Token(token.name.clone()),
        None => Client::User(access.caller.uid),
    });

    // Until the event is fired.
    let _room = budget.room(HOOK_BODY_BYTES_MAX).await?;
    let body = server.body(body, HOOK_BODY_BYTES_MAX).await?;

    let firing = server.clone();
    let work = move || {
        // Here and not before `carry_out`: hashing the candidates in a megabyte would occupy a
        // thread of the runtime.
        let tokens = firing.ctx.sign_in.tokens.scanner();
        for (part, of) in [(tag.as_bytes(), "tag"), (&*body, "body")] {
            if tokens.finds_in(part) {
                return Err(HttpError::bad(format!(
                    "the {of} of the hook contains a valid token, which would be stored for others to read; revoke it"
                )));
            }
        }

        let data = data(
            &head.headers,
            &body,
            firing.config.hook_headers.as_deref(),
            &tokens,
        );
        let event = firing
            .ctx
            .firing
            .fire(bus.as_deref(), &tag, &data, |_| Ok(()))
            .map_err(CallError::from)?;
        Ok(Fired::of(tag, event))
    };

    let answer = server.carry_out(&budget, work).await??;
    server.ctx.archive.metrics.hook_events.add(1);

    // Not the sender's mistake: this daemon made the response.
    let text =
        serde_json::to_vec(&answer).map_err(|error| CallError::Internal(error.to_string()))?;

    Ok(plain(StatusCode::ACCEPTED, "application/json", text.into()))
}

/// The bus in a query such as `bus=/var/run/salt/master`, needed if the daemon reads several. The
/// rest of the query, which senders may add, is ignored, as Salt's engine does.
fn bus(uri: &Uri) -> Option<String> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).unwrap_or_default();
    pairs
        .into_iter()
        .find_map(|(name, value)| (name == "bus").then_some(value))
}

fn hops(headers: &HeaderMap) -> Result<u32, HttpError> {
    let number = |value: &hyper::header::HeaderValue| value.to_str().ok()?.parse::<u32>().ok();
    let mut hops = 0;
    // The largest counts: a proxy may have added a second header.
    for value in headers.get_all(HOPS) {
        let expected = || HttpError::bad(format!("`{HOPS}` is a number"));
        hops = number(value).ok_or_else(expected)?.max(hops);
    }
    Ok(hops)
}

/// The data of the event: msgpack. `only` are the names of the headers that it may have.
fn data(
    headers: &HeaderMap,
    body: &[u8],
    only: Option<&[String]>,
    tokens: &TokenScanner,
) -> Vec<u8> {
    let is_wanted = |name: &str| {
        !SECRET.contains(&name)
            && only.is_none_or(|only| only.iter().any(|known| known.eq_ignore_ascii_case(name)))
    };

    let mut shown = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        // Everyone who may read events would read the token.
        if !is_wanted(name.as_str()) || tokens.finds_in(value.as_bytes()) {
            continue;
        }
        // As Tornado decodes them.
        let value: String = value
            .as_bytes()
            .iter()
            .map(|byte| char::from(*byte))
            .collect();
        // Tornado joins the values of one name by commas.
        let joined = shown.entry(spelled(name.as_str())).or_default();
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(&value);
    }

    let mut w = Writer::new();
    w.map(2).str("headers").map(shown.len());
    for (name, value) in &shown {
        w.str(name).str(value);
    }
    w.str("body").bin(body);
    w.into_bytes()
}

/// `content-type` as `Content-Type`.
fn spelled(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase())
            .into_iter()
            .chain(letters)
            .collect::<String>()
    };
    name.split('-').map(word).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests;
