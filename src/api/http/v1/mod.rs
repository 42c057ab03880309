//! The API: `/api/v1/...`, see [`operations::OPERATIONS`].

mod events;
mod openapi;
mod operations;
mod params;

pub use openapi::document as openapi;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, get, on};
use hyper::header::HeaderMap;
use parking_lot::Mutex;
use salt_sls::Glob;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};
use serde_json::{Map, Value as Json};

use self::events::Stream;
use self::operations::{OPERATIONS, Operation};
use self::params::arguments;
use super::access::Access;
use super::answer::{Answer, HttpError};
use super::encoding::{Asked, Encoded};
use super::server::{HttpServer, Server, rejected};
use super::stream::format::Format;
use crate::api::budget::Room;
use crate::api::call::{CallHandler, Caller, Ctx, Run, answer, from_json, unapplied};
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
    let encoded = Asked::of(request.headers()).tagged(openapi().to_string().into_bytes());
    let Ok(answer) = encoded.answer(JSON, |bytes| Ok::<_, Infallible>(bytes.into()));
    answer
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
    // The response to a change is about that change, so comparing it with an earlier one is no use.
    let asked = Asked::of(&head.headers);
    let is_read = operation.method == "GET";
    let encode = move |text: Vec<u8>| {
        if is_read {
            asked.tagged(text)
        } else {
            asked.plain(text)
        }
    };

    let encoded = match &operation.call.run {
        CallHandler::Run(call) => carry_out(&server, &access, args, call.text, encode).await?,
        // A call that waits for entries is a task, and occupies no thread in the meantime.
        CallHandler::Wait(call) => {
            let ctx = &server.ctx;
            let poll = (call.text)(ctx, &access.caller, Json::Object(args))?;
            let text = poll
                .run(ctx.archive.clone(), &access.budget, server.stop.clone())
                .await?;
            server
                .carry_out(&access.budget, move || encode(text))
                .await?
        }
        CallHandler::Save(_) => return Err(operation.cannot()),
    };
    // Too short to be compressed.
    if encoded.bytes == b"null" {
        return Err(operation.not_found());
    }

    encoded.answer(JSON, |bytes| room.fill(bytes).map_err(HttpError::from))
}

/// The content type of responses.
const JSON: &str = "application/json";

/// The response of a reading or changing call for the page or salt-api, after the checks of its operation.
/// `of_path` are the parts of the view's path. The room of the request grows by the response.
pub(super) async fn make<C: Run>(
    server: &Arc<HttpServer>,
    access: &Access,
    room: &Mutex<Room>,
    of_path: &[(String, String)],
    args: C::Args<'static>,
) -> Result<C::Answer, HttpError> {
    permit(operation_of::<C>()?, access, of_path)?;

    let (ctx, caller) = (server.ctx.clone(), access.caller.clone());
    let work = move || {
        let answer = answer::<C>(&ctx, &caller, args)?;
        let bytes = tree_bytes_of(&answer).map_err(|error| {
            tracing::error!(call = C::NAME, %error, "response cannot be written as JSON, the call fails: report this message");
            CallError::Internal(format!("the response cannot be written as JSON, the call fails: report this message: {error}"))
        })?;
        Ok::<_, CallError>((answer, bytes))
    };
    let (answer, bytes) = server.carry_out(&access.budget, work).await??;

    // Its real size, before the next operation adds to it.
    let mut room = room.lock();
    let held = room.held().saturating_add(bytes);
    room.hold(held)?;
    Ok(answer)
}

/// Whether a reader may make a call at all. What its arguments name may still be out of its limits.
pub(super) fn may<C: Run>(access: &Access) -> bool {
    operation_of::<C>().is_ok_and(|operation| permit(operation, access, &[]).is_ok())
}

/// The arguments of a call from the parts of a view's path and the fields of its address, read as
/// the arguments of its operation.
pub(super) fn args_of<C: Run>(
    of_path: &[(String, String)],
    given: Vec<(String, Json)>,
) -> Result<C::Args<'static>, HttpError> {
    let operation = operation_of::<C>()?;
    let args = arguments(&operation.params, of_path, given)?;
    Ok(from_json(Json::Object(args))?)
}

/// The error if a call has no response, which only an unknown job or minion can cause.
pub(super) fn not_found<C: Run>() -> HttpError {
    operation_of::<C>().map_or_else(|error| error, Operation::not_found)
}

/// The first operation that makes a call.
fn operation_of<C: Run>() -> Result<&'static Operation, HttpError> {
    OPERATIONS
        .iter()
        .find(|known| known.call.name == C::NAME)
        .ok_or_else(|| {
            HttpError::from(CallError::Internal(format!(
                "no operation makes the call {}",
                C::NAME
            )))
        })
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

/// As [`tree_bytes`], of a response that is not decoded.
fn tree_bytes_of(answer: &impl Serialize) -> Result<usize, serde_json::Error> {
    let mut counter = NodeCounter {
        bytes: NodeCounter::NODE,
    };
    let mut to = serde_json::Serializer::with_formatter(io::sink(), &mut counter);
    answer.serialize(&mut to)?;
    Ok(counter.bytes)
}

/// Counts the memory that JSON would take as a tree of values, without the tree.
struct NodeCounter {
    bytes: usize,
}

impl NodeCounter {
    /// Same size as in [`tree_bytes`].
    const NODE: usize = 2 * size_of::<Json>();
}

impl Formatter for &mut NodeCounter {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W, _: bool) -> io::Result<()> {
        self.bytes += NodeCounter::NODE;
        Ok(())
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        // A node of the value, and a node of the field.
        self.bytes += 2 * NodeCounter::NODE;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        _: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        self.bytes += fragment.len();
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        _: &mut W,
        _: CharEscape,
    ) -> io::Result<()> {
        self.bytes += 1;
        Ok(())
    }
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

    let who = &access.name;
    let limits = &access.caller.limits;

    // To ignore a limit where it has no meaning would make each new operation a leak.
    if let Some(limit) = unapplied(call.applies, limits) {
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

/// Makes a call, for its response as JSON in the form that the request asks for.
async fn carry_out(
    server: &Arc<HttpServer>,
    access: &Access,
    args: Map<String, Json>,
    call: fn(&Ctx, &Caller, Json) -> Result<Vec<u8>, CallError>,
    encode: impl FnOnce(Vec<u8>) -> Encoded + Send + 'static,
) -> Result<Encoded, HttpError> {
    let (ctx, caller) = (server.ctx.clone(), access.caller.clone());
    let work = move || call(&ctx, &caller, Json::Object(args)).map(encode);
    Ok(server.carry_out(&access.budget, work).await??)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_takes_the_room_of_its_tree() {
        for value in [
            json!(null),
            json!(7),
            json!("text"),
            json!([]),
            json!([1, [2.5, true], "a\n\"b\u{1}\u{e9}"]),
            json!({ "a": { "b": [null, {}] }, "a \"name\"": "x" }),
        ] {
            assert_eq!(
                tree_bytes_of(&value).unwrap(),
                tree_bytes(&value),
                "{value}"
            );
        }
    }
}
