//! A part of salt-api, enough for the job and event pages of SaltGUI: `POST /login`, `/logout`, `/`
//! and `/run`, and `GET /events` (docs/HTTP.md).
//!
//! The functions of the runner `jobs` are answered from operations of the API, with the rights and
//! limits of the token. Nothing is passed to a master: other clients and functions are rejected.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, Request, State};
use axum::response::Response;
use axum::routing::post;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use salt_sls::Glob;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::access::{Access, Peer, TOKEN_HEADER};
use super::answer::{Answer, HttpError, plain};
use super::cookie::{with_session, without_session};
use super::server::{HttpServer, Server, rejected};
use super::v1;
use crate::api::budget::Room;
use crate::api::call::jobs::answers::{JobAnswer, JobRow, JobsPage, Return};
use crate::api::call::jobs::{List, ListArgs, PageArgs, Show, ShowArgs};
use crate::api::query::JobResult;
use crate::base::clock::Micros;
use crate::base::limits::{
    HTTP_ANSWER_RESERVE, HTTP_BODY_BYTES_MAX, SALT_API_ACTIVE, SALT_API_ACTIVE_JOBS,
    SALT_API_BYTES, SALT_API_CHUNKS, SALT_API_EXPIRE, SALT_API_JOBS, SALT_API_PAGES,
};
use crate::wire::call::{CallError, Id};
use crate::wire::json::parse;
use crate::wire::msgpack::json::as_python;
use crate::wire::msgpack::{self, Stored, Time};

const FUNCTIONS: &str = "jobs.list_jobs, jobs.list_job, jobs.lookup_jid, jobs.active";

/// The routes, without `GET /events`, whose path belongs to a view of the page.
pub(super) fn routes() -> Router<Arc<HttpServer>> {
    Router::new()
        .route("/login", post(login))
        .route("/logout", post(logout))
        .route("/", post(run))
        .route("/run", post(run))
}

/// True if a client asks for a stream instead of a view.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    accept
        .flat_map(|list| list.split(','))
        .any(|kind| kind.trim().starts_with("text/event-stream"))
}

/// Events as salt-api sends them.
pub(super) async fn events(
    server: Arc<HttpServer>,
    access: Option<Access>,
    headers: &HeaderMap,
) -> Response {
    let stream = async {
        let access = access.ok_or_else(unauthenticated)?;
        v1::follow_as_salt(server, &access, headers).await
    };
    stream.await.unwrap_or_else(rejected)
}

fn unauthenticated() -> HttpError {
    let why = "no valid token: `POST /login` with the token as the password, then `X-Auth-Token`";
    HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why)
}

/// The fields of a body: JSON of any content type, as SaltGUI sends it as text, or a form.
async fn fields(server: &HttpServer, request: Request) -> Result<Json, HttpError> {
    let body = server
        .body(request.into_body(), HTTP_BODY_BYTES_MAX)
        .await?;
    let text = String::from_utf8_lossy(&body);
    let parsed = parse(with_exact_integers(&text).as_bytes());
    // A body such as `a` or `1` may be JSON or a form; low data is always an object or a list.
    if let Ok(found @ (Json::Object(_) | Json::Array(_))) = parsed {
        return Ok(found);
    }

    // The query of an address is encoded like a form, therefore axum's query parser reads both.
    let form = std::str::from_utf8(&body)
        .ok()
        .and_then(|body| format!("/?{body}").parse::<Uri>().ok());
    let form = form.and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
    let Query(form) = form.ok_or_else(|| HttpError::bad("the body is neither JSON nor a form"))?;

    Ok(form
        .into_iter()
        .map(|(name, value)| (name, Json::from(value)))
        .collect::<Map<_, _>>()
        .into())
}

fn text<'a>(fields: &'a Json, name: &str) -> Option<&'a str> {
    fields
        .get(name)
        .and_then(Json::as_str)
        .filter(|text| !text.is_empty())
}

fn answered(value: &Json) -> Answer {
    plain(StatusCode::OK, "application/json", value.to_string().into())
}

/// Signs in by a token as the password. The user name and the type of authentication are ignored.
async fn login(
    State(server): Server,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let signed_in = async {
        let given = fields(&server, request).await?;
        let token = text(&given, "password")
            .or_else(|| text(&given, "token"))
            .unwrap_or_default()
            .trim();
        let found = server.ctx.sign_in.tokens.find(token).ok_or_else(|| {
            let why = "the password is not a valid token: `saltcellar tokens create NAME --scope read` makes one";
            HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why)
        })?;
        tracing::info!(target: "audit", %peer, token = found.name, "signed in as to salt-api");

        let start = server.ctx.archive.clock.now().0 / 1_000_000;
        let answer = answered(&json!({ "return": [{
            "token": token, "start": start, "expire": start.saturating_add(SALT_API_EXPIRE), "user": found.name,
            "eauth": text(&given, "eauth").unwrap_or("saltcellar"), "perms": ["@runner"],
        }] }));

        // A browser's `EventSource` cannot send the header with the token, so it gets a cookie as
        // well.
        let mut answer = with_session(answer, &server.ctx.sign_in, found)?;

        if let Ok(token) = HeaderValue::from_str(token) {
            answer
                .headers_mut()
                .insert(HeaderName::from_static(TOKEN_HEADER), token);
        }

        Ok(answer)
    };
    signed_in.await.unwrap_or_else(rejected)
}

/// Ends the session of the cookie, and deletes it. The token stays valid until it is revoked.
async fn logout(State(server): Server, headers: HeaderMap) -> Response {
    let answer = answered(&json!({ "return": "Your token has been cleared" }));
    without_session(answer, &server.ctx.sign_in, &headers).unwrap_or_else(rejected)
}

/// Carries out low data: one chunk, or a list of them.
async fn run(
    State(server): Server,
    Extension(access): Extension<Option<Access>>,
    request: Request,
) -> Response {
    let done = async {
        let access = access.ok_or_else(unauthenticated)?;
        let chunks = match fields(&server, request).await? {
            Json::Array(chunks) if chunks.len() <= SALT_API_CHUNKS => chunks,
            Json::Array(_) => {
                return Err(HttpError::bad(format!(
                    "the request contains more than {SALT_API_CHUNKS} chunks: send them in several requests"
                )));
            }
            chunk => vec![chunk],
        };

        // One room for all chunks, which are answered together.
        let room = Mutex::new(access.budget.room(HTTP_ANSWER_RESERVE).await?);

        let mut body = br#"{"return":["#.to_vec();
        for (n, chunk) in chunks.iter().enumerate() {
            let jobs = Jobs {
                server: &server,
                access: &access,
                room: &room,
                bytes_max: SALT_API_BYTES.saturating_sub(body.len()),
            };
            let answer = one(&jobs, chunk).await?;

            // Each chunk becomes text immediately. Its values take several times its bytes,
            // therefore the values of several chunks must not be in memory together.
            if n > 0 {
                body.push(b',');
            }
            serde_json::to_writer(&mut body, &answer)
                .map_err(|error| CallError::Internal(error.to_string()))?;
            drop(answer);

            if body.len() > SALT_API_BYTES {
                return Err(too_large(
                    "the results of this request",
                    "send fewer chunks in a request",
                ));
            }
            room.lock().hold(body.len())?;
        }
        body.extend_from_slice(b"]}");

        let body = room.into_inner().fill(body)?;
        Ok(plain(StatusCode::OK, "application/json", body))
    };
    done.await.unwrap_or_else(rejected)
}

/// JSON in which integers beyond 64 bits are strings: read as numbers they lose digits. A jid is one,
/// and some clients send it as a number.
fn with_exact_integers(json: &str) -> String {
    const DIGITS_MIN: usize = 19;
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(next) = rest.chars().next() {
        let len = match next {
            '"' => string_len(rest),
            // Fraction and exponent belong to the number. Otherwise their digits would count as an
            // integer.
            '0'..='9' | '-' | '+' => {
                let is_number = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
                rest.find(|c: char| !is_number(c)).unwrap_or(rest.len())
            }
            other => other.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        // 19 digits may still fit into 64 bits, and are as exact as a string.
        if len >= DIGITS_MIN && token.bytes().all(|byte| byte.is_ascii_digit()) {
            out.extend(["\"", token, "\""]);
        } else {
            out.push_str(token);
        }

        rest = after;
    }

    out
}

/// The length of the JSON string at the start of a string, with its quotes.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The parameters of each function, in Salt's order.
const SIGNATURES: [(&str, &[&str]); 4] = [
    (
        "jobs.list_jobs",
        &[
            "ext_source",
            "outputter",
            "search_metadata",
            "search_function",
            "search_target",
            "start_time",
            "end_time",
            "display_progress",
        ],
    ),
    ("jobs.list_job", &["jid", "ext_source", "display_progress"]),
    (
        "jobs.lookup_jid",
        &[
            "jid",
            "ext_source",
            "returned",
            "missing",
            "display_progress",
        ],
    ),
    ("jobs.active", &["display_progress"]),
];

/// The arguments of a chunk by position, and by name.
const ARG: &str = "arg";
const KWARG: &str = "kwarg";

/// The keys of a chunk that are not parameters: the call itself, the sign-in, and how Salt waits
/// for it.
const ENVELOPE: [&str; 11] = [
    "client",
    "fun",
    ARG,
    KWARG,
    "token",
    "eauth",
    "username",
    "password",
    "timeout",
    "full_return",
    "print_event",
];

/// The arguments of a chunk, by parameter. None is ignored.
struct Arguments<'a> {
    fun: &'a str,
    values: BTreeMap<&'static str, &'a Json>,
}

impl<'a> Arguments<'a> {
    /// Arguments are fields of the chunk, in `kwarg`, or in `arg` by position.
    fn of(fun: &'a str, chunk: &'a Json) -> Result<Self, HttpError> {
        let signature = SIGNATURES.iter().find(|(name, _)| *name == fun);
        let (_, params) = signature.ok_or_else(|| {
            HttpError::bad(format!(
                "the runner function `{fun:.50}` is not supported, only {FUNCTIONS}"
            ))
        })?;

        let mut values = BTreeMap::new();
        let listed: Vec<&Json> = match chunk.get(ARG) {
            Some(Json::Array(listed)) => listed.iter().collect(),
            Some(Json::Null) | None => Vec::new(),
            Some(one) => vec![one],
        };

        if listed.len() > params.len() {
            let most = params.len();
            let why = format!("{fun} has {most} parameters, and `arg` has more values");
            return Err(HttpError::bad(why));
        }

        let by_position = params.iter().copied().zip(listed);
        let in_kwarg = chunk.get(KWARG).and_then(Json::as_object);
        let fields = chunk.as_object().into_iter().flatten();
        let own = fields.filter(|(name, _)| !ENVELOPE.contains(&name.as_str()));
        let mut all: Vec<(&'static str, &Json)> = by_position.collect();

        // An ignored parameter would change what the response means, so an unknown one is an error.
        for (name, value) in own.chain(in_kwarg.into_iter().flatten()) {
            let param = params.iter().copied().find(|param| param == name);
            let param = param.ok_or_else(|| {
                let known = params.join(", ");
                HttpError::bad(format!(
                    "parameter `{name:.50}` of {fun} is not supported, only {known}"
                ))
            })?;
            all.push((param, value));
        }

        // A parameter has one value, whichever way it was given.
        for (param, value) in all {
            if values.insert(param, value).is_some() {
                return Err(HttpError::bad(format!(
                    "parameter `{param}` is given twice"
                )));
            }
        }

        let arguments = Self { fun, values };
        arguments.check()?;
        Ok(arguments)
    }

    /// Rejects values whose effect only a master can have.
    fn check(&self) -> Result<(), HttpError> {
        if self.flag("display_progress", false)? {
            return Err(self.expected("display_progress", "false: nothing is fired onto a bus"));
        }
        let source = self.text("ext_source")?;
        if source.is_some_and(|source| source != "saltcellar") {
            return Err(self.expected("ext_source", "saltcellar, the only job cache here"));
        }
        Ok(())
    }

    fn expected(&self, name: &str, what: &str) -> HttpError {
        HttpError::bad(format!(
            "parameter `{name}` of {}: expected {what}",
            self.fun
        ))
    }

    /// A value that Python takes for true.
    fn given(&self, name: &str) -> Option<&'a Json> {
        let is_given = |value: &&Json| match value {
            Json::Null => false,
            Json::String(text) => !text.is_empty(),
            Json::Array(list) => !list.is_empty(),
            Json::Object(map) => !map.is_empty(),
            Json::Bool(_) | Json::Number(_) => true,
        };
        self.values.get(name).copied().filter(is_given)
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, HttpError> {
        let text = |value: &'a Json| value.as_str().ok_or_else(|| self.expected(name, "text"));
        self.given(name).map(text).transpose()
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, HttpError> {
        match self.given(name) {
            None => Ok(default),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(Json::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Json::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(_) => Err(self.expected(name, "true or false")),
        }
    }

    fn jid(&self) -> Result<String, HttpError> {
        match self.given("jid") {
            Some(Json::String(jid)) => Ok(jid.clone()),
            Some(Json::Number(jid)) if jid.is_u64() => Ok(jid.to_string()),
            Some(_) => Err(self.expected("jid", "a job id as a string or as an integer")),
            None => Err(HttpError::bad(format!("{} needs `jid`", self.fun))),
        }
    }

    /// Globs: a list, or text with commas.
    fn globs(&self, name: &str) -> Result<Vec<Glob>, HttpError> {
        let expected = || self.expected(name, "a glob, or a list of globs");
        let texts: Vec<&str> = match self.given(name) {
            None => Vec::new(),
            Some(Json::String(text)) => text.split(',').map(str::trim).collect(),
            Some(Json::Array(list)) => {
                let texts = list.iter().map(|one| one.as_str().ok_or_else(expected));
                texts.collect::<Result<_, _>>()?
            }
            Some(_) => return Err(expected()),
        };
        Ok(texts.into_iter().map(Glob::new).collect())
    }

    /// A map, as JSON text in a form.
    fn map(&self, name: &str) -> Result<Map<String, Json>, HttpError> {
        let expected = || self.expected(name, "a map of key to value");
        match self.given(name) {
            None => Ok(Map::new()),
            Some(Json::Object(map)) => Ok(map.clone()),
            Some(Json::String(text)) => serde_json::from_str(text).map_err(|_| expected()),
            Some(_) => Err(expected()),
        }
    }

    fn time(&self, name: &str) -> Result<Option<i64>, HttpError> {
        let what = "a time such as `2026-11-21 05:47:28` or `2026, Nov 21 05:47`";
        let time = |text: &str| time_of(text).ok_or_else(|| self.expected(name, what));
        self.text(name)?.map(time).transpose()
    }
}

/// A time as people write it, in microseconds since 1970. Without a zone it is UTC, as in job ids.
fn time_of(text: &str) -> Option<i64> {
    const FORMATS: [&str; 9] = [
        "%Y-%m-%d %H:%M:%S%.f",
        "%Y-%m-%dT%H:%M:%S%.f",
        "%Y-%m-%d %H:%M",
        "%Y-%m-%dT%H:%M",
        "%Y, %b %d %H:%M:%S%.f",
        "%Y, %b %d %H:%M",
        "%Y-%m-%d",
        "%Y, %b %d",
        "%Y%m%d",
    ];

    let text = text.trim();
    // A time with a zone is unambiguous and needs no format.
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_microsecond());
    }

    let parsed = FORMATS.iter().find_map(|format| {
        let broken_down = jiff::fmt::strtime::parse(format, text).ok()?;
        let date = broken_down.to_date().ok()?;
        // Formats without a time of day mean the start of the day.
        let time = broken_down.to_time().unwrap_or_default();
        Some(date.to_datetime(time))
    });

    let zoned = parsed?.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_microsecond())
}

fn too_large(what: &str, remedy: &str) -> HttpError {
    let why = format!("{what} have more than {SALT_API_BYTES} bytes together; {remedy}");
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", why)
}

/// The length of a value as JSON.
fn json_len(value: &impl Serialize) -> usize {
    struct Count(usize);

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    // Writing to it cannot fail, and a value that has no form in JSON was rejected before.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

async fn one(jobs: &Jobs<'_>, chunk: &Json) -> Result<Json, HttpError> {
    let (client, fun) = (
        text(chunk, "client").unwrap_or_default(),
        text(chunk, "fun").unwrap_or_default(),
    );
    // Nothing is passed to a master, therefore only functions that the archive can serve are
    // accepted.
    if !client.starts_with("runner") {
        return Err(HttpError::bad(format!(
            "client `{client:.50}` is not supported, only `runner` with {FUNCTIONS}"
        )));
    }

    let given = Arguments::of(fun, chunk)?;

    let answer = match fun {
        "jobs.list_jobs" => jobs.list(&given).await?,
        "jobs.list_job" => jobs.job(&given.jid()?).await?,
        "jobs.lookup_jid" => jobs.returns(&given).await?,
        _ => jobs.active().await?,
    };
    Ok(as_python(answer))
}

/// The functions of the runner `jobs`.
struct Jobs<'a> {
    server: &'a Arc<HttpServer>,
    access: &'a Access,
    /// Grows by the response of each operation.
    room: &'a Mutex<Room>,
    /// What the response to this chunk may have, after those before it.
    bytes_max: usize,
}

impl Jobs<'_> {
    /// A page of the list of jobs.
    async fn page(&self, args: ListArgs) -> Result<JobsPage, HttpError> {
        v1::make::<List>(self.server, self.access, self.room, &[], args).await
    }

    /// A job with a page of its returns; none if it is not known.
    async fn show(&self, jid: &str, after: Option<String>) -> Result<Option<JobAnswer>, HttpError> {
        let args = ShowArgs {
            jid: Id(jid.to_owned()),
            page: PageArgs {
                after,
                ..PageArgs::default()
            },
            ..ShowArgs::default()
        };
        v1::make::<Show>(self.server, self.access, self.room, &[], args).await
    }

    /// The newest jobs by jid that pass all filters.
    async fn list(&self, given: &Arguments<'_>) -> Result<Json, HttpError> {
        let (funs, targets) = (
            given.globs("search_function")?,
            given.globs("search_target")?,
        );
        let metadata = given.map("search_metadata")?;

        let args = ListArgs {
            since: given.time("start_time")?.map(|at| Time(Micros(at))),
            until: given
                .time("end_time")?
                .map(|last| Time(Micros(last.saturating_add(1)))),
            // The API takes one glob; more are evaluated here.
            fun: match funs.as_slice() {
                [one] => Some(one.clone()),
                _ => None,
            },
            limit: Some(SALT_API_JOBS),
            ..ListArgs::default()
        };

        let any = |globs: &[Glob], value: &Json| {
            let many = value.as_array().into_iter().flatten();
            let mut texts = value
                .as_str()
                .into_iter()
                .chain(many.filter_map(Json::as_str));
            globs.is_empty() || texts.any(|text| globs.iter().any(|glob| glob.matches(text)))
        };

        let passes = |job: &JobInstance| {
            let is_known = |(key, value): (&String, &Json)| {
                let of_job = job.metadata.as_ref().and_then(|known| known.get(key));
                of_job == Some(value)
            };
            (metadata.is_empty() || metadata.iter().any(is_known))
                && (funs.len() < 2 || any(&funs, &job.function))
                // As in Salt, the target that is shown, which a return can have instead of a load.
                && any(&targets, &job.target)
        };

        // Filters that are evaluated here may leave few rows of each page: the number of pages
        // bounds the work.
        let mut jobs = Map::new();
        let mut bytes = 0;
        let mut cursor = None;
        let before = self.room.lock().held();
        for _ in 0..SALT_API_PAGES {
            let page = self
                .page(ListArgs {
                    cursor: cursor.take(),
                    ..args.clone()
                })
                .await?;

            for row in page.jobs {
                let job = JobInstance::of(&row)?;
                if passes(&job) && jobs.len() < SALT_API_JOBS {
                    let job = Json::from(job.into_fields());
                    bytes += json_len(&job);
                    if bytes > self.bytes_max {
                        return Err(too_large("the jobs", "/api/v1/jobs has pages"));
                    }
                    jobs.insert(row.jid, job);
                }
            }

            cursor = page.next;
            // The other rows of the page are free.
            let kept: usize = jobs.values().map(v1::tree_bytes).sum();
            self.room.lock().hold(before.saturating_add(kept))?;

            if cursor.is_none() || jobs.len() >= SALT_API_JOBS {
                break;
            }
        }

        let jobs = Json::from(jobs);
        Ok(match given.text("outputter")? {
            Some(outputter) => json!({ "outputter": outputter, "data": jobs }),
            None => jobs,
        })
    }

    /// A job with all its returns; none if it is not known.
    async fn whole(&self, jid: &str) -> Result<Option<JobAnswer>, HttpError> {
        let Some(mut job) = self.show(jid, None).await? else {
            return Ok(None);
        };
        let mut bytes = json_len(&job);

        // The API returns one page of returns at a time.
        while let Some(after) = job.next.take() {
            // Before the next page, which would be in memory in addition.
            self.check_bytes(bytes, jid)?;

            let Some(page) = self.show(jid, Some(after)).await? else {
                // Retention has dropped it since.
                return Ok(None);
            };

            // Salt's form of a job is not paged, therefore a job beyond this limit is an error.
            bytes += json_len(&page);
            job.returns.extend(page.returns);
            job.next = page.next;
        }

        self.check_bytes(bytes, jid)?;
        Ok(Some(job))
    }

    fn check_bytes(&self, bytes: usize, jid: &str) -> Result<(), HttpError> {
        if bytes > self.bytes_max {
            return Err(too_large(
                &format!("job {jid:.50} and the results before it"),
                "send this chunk alone, or read the job's returns from /api/v1/jobs/JID, which has pages",
            ));
        }
        Ok(())
    }

    async fn job(&self, jid: &str) -> Result<Json, HttpError> {
        let Some(job) = self.whole(jid).await? else {
            // As Salt responds.
            return Ok(json!({
                "Error": "Cannot contact returner or no job with this jid",
                "StartTime": start_time(jid).unwrap_or_default(), "jid": jid, "Result": {},
            }));
        };

        let mut answer = JobInstance::of(&job.row)?.into_fields();
        let mut results = Map::new();

        // One at a time, because each is in memory in its stored form and as JSON.
        for row in job.returns {
            let Return {
                minion,
                value,
                retcode,
                success,
                out,
                ..
            } = row;
            // Salt shows `return` for every minion, whatever it is.
            let mut result = Map::from_iter([("return".to_owned(), json_of(&value)?)]);
            for (name, value) in [("retcode", retcode), ("success", success), ("out", out)] {
                if !is_null(&value) {
                    result.insert(name.to_owned(), json_of(&value)?);
                }
            }

            results.insert(minion, result.into());
        }

        answer.insert("jid".to_owned(), jid.into());
        answer.insert("Result".to_owned(), results.into());
        if !job.minions.is_empty() {
            let minions: Vec<String> = job.minions.into_iter().collect();
            answer.insert("Minions".to_owned(), minions.into());
        }

        Ok(answer.into())
    }

    async fn returns(&self, given: &Arguments<'_>) -> Result<Json, HttpError> {
        let jid = given.jid()?;
        let (returned, missing) = (given.flag("returned", true)?, given.flag("missing", false)?);
        let Some(job) = self.whole(&jid).await? else {
            return Ok(json!({}));
        };

        // The outputter belongs to the function, therefore all returns have the outputter of the
        // first.
        let outputter = job.returns.first().and_then(|row| row.out.as_str());
        let outputter = outputter.filter(|name| !name.is_empty()).map(str::to_owned);

        let mut data = Map::new();
        if returned {
            for row in job.returns {
                data.insert(row.minion, json_of(&row.value)?);
            }
        }

        if missing {
            let ids = job.missing.into_iter();
            data.extend(ids.map(|id| (id, "Minion did not return".into())));
        }

        Ok(match outputter {
            Some(outputter) => json!({ "outputter": outputter, "data": data }),
            None => data.into(),
        })
    }

    /// Recent jobs with missing returns. Salt asks the minions; a minion that is down counts here
    /// until the time is over.
    async fn active(&self) -> Result<Json, HttpError> {
        let now = self.server.ctx.archive.clock.now();
        let args = ListArgs {
            result: Some(JobResult::Missing),
            since: Some(Time(Micros(now.0.saturating_sub(SALT_API_ACTIVE)))),
            limit: Some(SALT_API_ACTIVE_JOBS),
            ..ListArgs::default()
        };

        let mut active = Map::new();
        let mut cursor = None;
        let held = self.room.lock().held();
        // A page may end at its bytes.
        for _ in 0..SALT_API_PAGES {
            let before = self.room.lock().held();
            let page = self
                .page(ListArgs {
                    cursor: cursor.take(),
                    ..args.clone()
                })
                .await?;
            let page_bytes = self.room.lock().held().saturating_sub(before);

            let held_with_page = held.saturating_add(page_bytes);
            self.active_of(&page.jobs, held_with_page, &mut active)
                .await?;

            cursor = page.next;
            // Before the next page is read, so only one page is in memory with the result.
            drop(page.jobs);
            let kept: usize = active.values().map(v1::tree_bytes).sum();
            self.room.lock().hold(held.saturating_add(kept))?;

            if cursor.is_none() || active.len() >= SALT_API_ACTIVE_JOBS {
                break;
            }
        }

        Ok(active.into())
    }

    /// Adds the active jobs of a page of the list, while there is room for more. `held` are the
    /// bytes in memory without those jobs.
    async fn active_of(
        &self,
        rows: &[JobRow],
        held: usize,
        active: &mut Map<String, Json>,
    ) -> Result<(), HttpError> {
        for row in rows {
            if active.len() >= SALT_API_ACTIVE_JOBS {
                break;
            }

            // Retention may have dropped it since the list was made.
            let Some(Progress { missing, returned }) = self.progress(&row.jid).await? else {
                continue;
            };
            // A process id, which only the minion knows.
            let running: Vec<Json> = missing.iter().map(|minion| json!({ minion: 0 })).collect();

            let mut answer = JobInstance::of(row)?.into_fields();
            answer.insert("Running".to_owned(), running.into());
            answer.insert("Returned".to_owned(), returned.into());
            active.insert(row.jid.clone(), answer.into());

            // The returns of the job are free.
            let kept: usize = active.values().map(v1::tree_bytes).sum();
            self.room.lock().hold(held.saturating_add(kept))?;
        }

        Ok(())
    }

    /// The minions of a job; none if it is not known. The values of its returns are not kept: a job
    /// may have more of them than fit into memory.
    async fn progress(&self, jid: &str) -> Result<Option<Progress>, HttpError> {
        let minions = |returns: Vec<Return>| returns.into_iter().map(|row| row.minion);

        let Some(job) = self.show(jid, None).await? else {
            return Ok(None);
        };
        let mut returned: Vec<String> = minions(job.returns).collect();
        let mut next = job.next;

        let held = self.room.lock().held();
        while let Some(after) = next {
            let Some(page) = self.show(jid, Some(after)).await? else {
                return Ok(None);
            };
            returned.extend(minions(page.returns));
            next = page.next;
            // The values of the page are gone, and so is the need for their room.
            self.room.lock().hold(held)?;
        }

        Ok(Some(Progress {
            missing: job.missing,
            returned,
        }))
    }
}

/// The minions of a job that have not returned, and those that have.
struct Progress {
    missing: Vec<String>,
    returned: Vec<String>,
}

/// A job as `salt.utils.jid.format_jid_instance` describes it, with its defaults for what is not
/// known.
struct JobInstance {
    function: Json,
    arguments: Json,
    target: Json,
    target_type: Json,
    user: Json,
    start_time: String,
    metadata: Option<Json>,
}

impl JobInstance {
    fn of(row: &JobRow) -> Result<Self, HttpError> {
        let or = |value: &Stored, default: &str| {
            if is_null(value) {
                Ok(default.into())
            } else {
                json_of(value)
            }
        };

        let arguments = json_of(&row.arg)?;
        Ok(Self {
            function: or(&row.fun, "unknown-function")?,
            arguments: if arguments.is_array() {
                arguments
            } else {
                json!([])
            },
            target: or(&row.tgt, "unknown-target")?,
            target_type: or(&row.tgt_type, "list")?,
            user: or(&row.user, "root")?,
            start_time: start_time(&row.jid).unwrap_or_default(),
            metadata: Some(json_of(&row.metadata)?).filter(|metadata| !metadata.is_null()),
        })
    }

    /// Its fields with the names of Salt.
    fn into_fields(self) -> Map<String, Json> {
        let fields = [
            ("Function", self.function),
            ("Arguments", self.arguments),
            ("Target", self.target),
            ("Target-type", self.target_type),
            ("User", self.user),
            ("StartTime", self.start_time.into()),
        ];
        let metadata = self.metadata.map(|metadata| ("Metadata", metadata));
        fields
            .into_iter()
            .chain(metadata)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// The JSON form of a stored value. Only a bug leads to one without it.
fn json_of(value: &Stored) -> Result<Json, HttpError> {
    let form = value.json();
    form.map_err(|error| {
        CallError::Internal(format!(
            "a stored value cannot be written as JSON, the request fails: report this message: {error}"
        ))
        .into()
    })
}

fn is_null(value: &Stored) -> bool {
    msgpack::is_nil(value.packed())
}

/// The time in a jid, as Salt writes it: `2026, Nov 21 05:47:28.123456`.
fn start_time(jid: &str) -> Option<String> {
    let digits = jid
        .get(..20)
        .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    let (seconds, micros) = digits.split_at_checked(14)?;
    let time = DateTime::strptime("%Y%m%d%H%M%S", seconds).ok()?;
    Some(format!("{}.{micros}", time.strftime("%Y, %b %d %H:%M:%S")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_integers_are_read_exactly_and_text_stays_as_it_is() {
        for (json, expected) in [
            (
                r#"{"jid": 20261121054728123456}"#,
                r#"{"jid": "20261121054728123456"}"#,
            ),
            (
                "[20261121054728123456, 7, -20261121054728123456]",
                r#"["20261121054728123456", 7, -20261121054728123456]"#,
            ),
            (
                r#"{"a": "x 20261121054728123456 \" 20261121054728123456", "b": 1.20261121054728123456}"#,
                "",
            ),
            (r#"{"a\\": 20261121054728123456e1, "é": "\\"}"#, ""),
            (r#""20261121054728123456"#, ""),
        ] {
            let expected = if expected.is_empty() { json } else { expected };
            assert_eq!(with_exact_integers(json), expected);
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let at = 1_795_240_048_000_000;
        for text in [
            "2026-11-21T05:47:28Z",
            "2026-11-21 05:47:28",
            "2026-11-21T05:47:28.000000",
            "2026, Nov 21 05:47:28.000000",
            "2026, Nov 21 05:47:28",
            "2026-11-21T06:47:28+01:00",
        ] {
            assert_eq!(time_of(text), Some(at), "{text}");
        }
        assert_eq!(time_of("2026-11-21 05:47"), Some(at - 28_000_000));
        assert_eq!(time_of("2026-11-21"), time_of("2026-11-21 00:00:00"));
        for text in ["", "yesterday", "2026-13-01", "12"] {
            assert_eq!(time_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_start_time_has_the_form_of_salt() {
        assert_eq!(
            start_time("20261121054728123456").as_deref(),
            Some("2026, Nov 21 05:47:28.123456")
        );
        assert_eq!(
            start_time("20261121054728123456_77").as_deref(),
            Some("2026, Nov 21 05:47:28.123456")
        );
        for jid in [
            "",
            "1",
            "2026112105472812345",
            "20269921054728123456",
            "é2026112105472812345",
            "x0261121054728123456",
        ] {
            assert_eq!(start_time(jid), None, "{jid}");
        }
    }
}
