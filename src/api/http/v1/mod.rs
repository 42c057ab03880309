//! The API: `/api/v1/...`, see [`operations::OPERATIONS`].

mod events;
mod format;
mod openapi;
mod operations;
mod params;
mod rate;
mod shared;

pub use openapi::document as openapi;
pub(super) use rate::Marks;
use salt_sls::Glob;
pub(super) use shared::SharedPieces;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, get, on};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};

use self::events::Stream;
use self::format::Format;
use self::operations::{OPERATIONS, Operation};
use self::params::arguments;
use super::access::Access;
use super::answer::{Answer, HttpError, plain, tagged};
use super::server::{HttpServer, Server, rejected};
use crate::api::budget::Room;
use crate::api::call::{CallHandler, Caller, Ctx};
use crate::base::limits::{HTTP_ANSWER_RESERVE, HTTP_BODY_BYTES_MAX};
use crate::wire::call::CallError;
use crate::wire::json::parse;

pub(super) fn routes() -> Router<Arc<HttpServer>> {
    let mut router = Router::new().route("/api/v1/openapi.json", get(document));
    for operation in OPERATIONS.iter() {
        let filter = match operation.method {
            "POST" => MethodFilter::POST,
            "PUT" => MethodFilter::PUT,
            "DELETE" => MethodFilter::DELETE,
            _ => MethodFilter::GET,
        };

        let handler = move |State(server): Server,
                            Extension(access): Extension<Option<Access>>,
                            path: RawPathParams,
                            request: Request| {
            let path = path
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            async move {
                run(operation, server, access, path, request)
                    .await
                    .unwrap_or_else(rejected)
            }
        };

        router = router.route(&format!("/api/v1{}", operation.path), on(filter, handler));
    }

    router
}

async fn document(request: Request) -> Response {
    tagged(openapi().to_string().into(), request.headers())
}

async fn run(
    operation: &'static Operation,
    server: Arc<HttpServer>,
    access: Option<Access>,
    path: Vec<(String, String)>,
    request: Request,
) -> Result<Answer, HttpError> {
    let Some(access) = access else {
        return Err(HttpError::forbidden("the API needs a token"));
    };

    // Before the body is read: nothing of a rejected request is carried out.
    permit(operation, &access, &path)?;

    let (head, body) = request.into_parts();
    let given = if operation.method == "GET" {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&head.uri);
        let Query(query) =
            query.map_err(|error| HttpError::bad(format!("the query is malformed: {error}")))?;
        query
            .into_iter()
            .map(|(name, value)| (name, Json::from(value)))
            .collect()
    } else {
        fields(&server.body(body, HTTP_BODY_BYTES_MAX).await?)?
    };

    let mut args = arguments(&operation.params, &path, given)?;
    // A consumer is held by name. A client that names none is the holder itself.
    if operation.params.iter().any(|param| param.name == "holder") && !args.contains_key("holder") {
        args.insert("holder".to_owned(), access.name.clone().into());
    }

    // A stream reserves room for each of its pieces, not once for all.
    if operation.is_stream {
        let format = Format::of(&head.headers);
        return Stream::start(server, &access, args, &head.headers, format).await;
    }

    let room = access.budget.room(HTTP_ANSWER_RESERVE).await?;
    let text = match &operation.call.run {
        CallHandler::Run(call) => carry_out(&server, &access, args, call.text).await?,
        // A call that waits for entries is a task, and occupies no thread in the meantime.
        CallHandler::Wait(call) => {
            let ctx = &server.ctx;
            let poll = (call.text)(ctx, &access.caller, Json::Object(args))?;
            poll.run(ctx.clone(), &access.budget, server.stop.clone())
                .await?
        }
        CallHandler::Save(_) => return Err(operation.cannot()),
    };
    if text == b"null" {
        return Err(operation.not_found());
    }
    let body = room.fill(text)?;

    // The answer to a change is about that change, so comparing it with an earlier one is no use.
    if operation.method == "GET" {
        return Ok(tagged(body, &head.headers));
    }
    Ok(plain(StatusCode::OK, "application/json", body))
}

/// The result of an operation, for the page and salt-api. The room of the request grows by it.
pub(super) async fn ask(
    server: &Arc<HttpServer>,
    access: &Access,
    room: &Mutex<Room>,
    (method, path): (&str, &str),
    of_path: &[(String, String)],
    given: Vec<(String, Json)>,
) -> Result<Json, HttpError> {
    let operation = operation(method, path)?;
    permit(operation, access, of_path)?;
    let args = arguments(&operation.params, of_path, given)?;

    let CallHandler::Run(call) = &operation.call.run else {
        return Err(operation.cannot());
    };
    let answer = carry_out(server, access, args, call.json).await?;
    if answer.is_null() {
        return Err(operation.not_found());
    }

    // Its real size, before the next operation adds to it.
    let mut room = room.lock();
    let held = room.held().saturating_add(tree_bytes(&answer));
    room.hold(held)?;
    Ok(answer)
}

/// The memory of a decoded value, about.
pub(super) fn tree_bytes(value: &Json) -> usize {
    // Of a value and its part of the list or map that has it.
    const NODE: usize = 2 * size_of::<Json>();
    let below = match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(tree_bytes).sum(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, value)| NODE + name.len() + tree_bytes(value))
            .sum(),
    };
    NODE + below
}

fn operation(method: &str, path: &str) -> Result<&'static Operation, HttpError> {
    OPERATIONS
        .iter()
        .find(|known| known.method == method && known.path == path)
        .ok_or_else(|| {
            HttpError::from(CallError::Internal(format!(
                "there is no operation {method} {path}"
            )))
        })
}

/// All events from now on, in the form of salt-api.
pub(super) async fn follow_as_salt(
    server: Arc<HttpServer>,
    access: &Access,
    headers: &HeaderMap,
) -> Result<Answer, HttpError> {
    permit(operation("GET", "/events/stream")?, access, &[])?;
    Stream::start(
        server,
        access,
        serde_json::Map::new(),
        headers,
        Format::Salt,
    )
    .await
}

/// Rejects a token without the right, with a limit that the operation does not apply, or that
/// excludes the minion in the path.
fn permit(
    operation: &Operation,
    access: &Access,
    path: &[(String, String)],
) -> Result<(), HttpError> {
    let what = operation.name();
    let call = operation.call;
    access.check(&what, call.right)?;

    let (who, limits) = (&access.name, &access.caller.limits);

    // To ignore a limit where it has no meaning would make each new operation a leak.
    if let Some(limit) = call.unapplied(limits) {
        let glob = limits.of(limit).map_or("", Glob::as_str);
        return Err(HttpError::forbidden(format!(
            "{who} is limited to {} {glob}, which {what} cannot apply",
            limit.name()
        )));
    }

    // Not every operation with a minion in its path searches: the limit is checked against the path
    // itself.
    if let Some((_, minion)) = path.iter().find(|(name, _)| name == "minion")
        && !limits.allow_minion(minion)
    {
        let glob = limits.minions.as_ref().map_or("", Glob::as_str);
        return Err(HttpError::forbidden(format!(
            "{who} is limited to minions {glob}"
        )));
    }

    Ok(())
}

/// The fields of a JSON body; none if the body is empty.
fn fields(body: &[u8]) -> Result<Vec<(String, Json)>, HttpError> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    match parse(body) {
        Ok(Json::Object(fields)) => Ok(fields.into_iter().collect()),
        Ok(_) => Err(HttpError::bad(
            "the body is a JSON object with the parameters",
        )),
        Err(error) => Err(HttpError::bad(format!("the body is not JSON: {error}"))),
    }
}

/// Makes a call in one of its forms.
async fn carry_out<T: Send + 'static>(
    server: &Arc<HttpServer>,
    access: &Access,
    args: Map<String, Json>,
    call: fn(&Ctx, &Caller, Json) -> Result<T, CallError>,
) -> Result<T, HttpError> {
    let (ctx, caller) = (server.ctx.clone(), access.caller.clone());
    let work = move || call(&ctx, &caller, Json::Object(args));
    Ok(server.carry_out(&access.budget, work).await??)
}
