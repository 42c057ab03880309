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
use serde_json::{Map, Value as Json, json};

use super::access::{Access, Peer, TOKEN_HEADER};
use super::answer::{Answer, HttpError, plain};
use super::cookie::{with_session, without_session};
use super::server::{HttpServer, Server, rejected};
use super::v1;
use crate::api::budget::Room;
use crate::base::limits::{
    HTTP_ANSWER_RESERVE, HTTP_BODY_BYTES_MAX, SALT_API_ACTIVE, SALT_API_ACTIVE_JOBS,
    SALT_API_BYTES, SALT_API_CHUNKS, SALT_API_EXPIRE, SALT_API_JOBS, SALT_API_PAGES,
};
use crate::wire::call::CallError;
use crate::wire::json::parse;
use crate::wire::msgpack::json::as_python;

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

    // The query of an address has the encoding of a form, so axum's parser of queries reads both.
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
            let why = "the password is not a valid token: `saltcellar token create NAME --scope read` makes one";
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
                    "more than {SALT_API_CHUNKS} chunks"
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

            // Text at once: the values of a chunk take several times its bytes, and so those of
            // several chunks are never in memory together.
            if n > 0 {
                body.push(b',');
            }
            serde_json::to_writer(&mut body, &answer)
                .map_err(|error| CallError::Internal(error.to_string()))?;
            drop(answer);

            if body.len() > SALT_API_BYTES {
                return Err(too_large("the chunks of this request"));
            }
            room.lock().hold(body.len())?;
        }
        body.extend_from_slice(b"]}");

        let body = room.into_inner().fill(body)?;
        Ok(plain(StatusCode::OK, "application/json", body))
    };
    done.await.unwrap_or_else(rejected)
}

/// JSON in which integers beyond 64 bits are text: read as numbers they lose digits. A jid is one,
/// and some clients send it as a number.
fn with_exact_integers(json: &str) -> String {
    const DIGITS_MIN: usize = 19;
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(next) = rest.chars().next() {
        let len = match next {
            '"' => string_len(rest),
            // Fraction and exponent belong to the number, so that their digits do not count as an
            // integer.
            '0'..='9' | '-' | '+' => {
                let is_number = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
                rest.find(|c: char| !is_number(c)).unwrap_or(rest.len())
            }
            other => other.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        // 19 digits may still fit into 64 bits, and are as exact as text.
        if len >= DIGITS_MIN && token.bytes().all(|byte| byte.is_ascii_digit()) {
            out.extend(["\"", token, "\""]);
        } else {
            out.push_str(token);
        }

        rest = after;
    }

    out
}

/// The length of the JSON string at the start of a text, with its quotes.
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

/// The keys of a chunk that are not parameters: the call itself, the sign-in, and how Salt waits
/// for it.
const ENVELOPE: [&str; 11] = [
    "client",
    "fun",
    "arg",
    "kwarg",
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
        let listed: Vec<&Json> = match chunk.get("arg") {
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
        let in_kwarg = chunk.get("kwarg").and_then(Json::as_object);
        let fields = chunk.as_object().into_iter().flatten();
        let own = fields.filter(|(name, _)| !ENVELOPE.contains(&name.as_str()));
        let mut all: Vec<(&'static str, &Json)> = by_position.collect();

        // An ignored parameter would change what the answer means, so an unknown one is an error.
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

    /// Rejects values with an effect that only a master has.
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
    fn get(&self, name: &str) -> Option<&'a Json> {
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
        self.get(name).map(text).transpose()
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, HttpError> {
        match self.get(name) {
            None => Ok(default),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(Json::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Json::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(_) => Err(self.expected(name, "true or false")),
        }
    }

    fn jid(&self) -> Result<String, HttpError> {
        match self.get("jid") {
            Some(Json::String(jid)) => Ok(jid.clone()),
            Some(Json::Number(jid)) if jid.is_u64() => Ok(jid.to_string()),
            Some(_) => Err(self.expected("jid", "a job id as text or as an integer")),
            None => Err(HttpError::bad(format!("{} needs `jid`", self.fun))),
        }
    }

    /// Globs: a list, or text with commas.
    fn globs(&self, name: &str) -> Result<Vec<Glob>, HttpError> {
        let expected = || self.expected(name, "a glob, or a list of globs");
        let texts: Vec<&str> = match self.get(name) {
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
        match self.get(name) {
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

/// A time as people write it, in microseconds since 1970; without a zone it is that of job ids,
/// UTC.
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

fn too_large(what: &str) -> HttpError {
    let why = format!(
        "{what} have more than {SALT_API_BYTES} bytes of results together; /api/v1/jobs/JID has pages"
    );
    HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", why)
}

/// The length of a value as JSON.
fn json_len(value: &Json) -> usize {
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
    // Writing to it cannot fail, and a value has text as its keys.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

async fn one(jobs: &Jobs<'_>, chunk: &Json) -> Result<Json, HttpError> {
    let (client, fun) = (
        text(chunk, "client").unwrap_or_default(),
        text(chunk, "fun").unwrap_or_default(),
    );
    // Nothing is passed to a master, so only what the archive itself can answer is accepted.
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
    /// Grows by the answer of each operation.
    room: &'a Mutex<Room>,
    /// What the answer to this chunk may have, after those before it.
    bytes_max: usize,
}

impl Jobs<'_> {
    async fn get(
        &self,
        path: &str,
        jid: Option<&str>,
        fields: Vec<(String, Json)>,
    ) -> Result<Json, HttpError> {
        let of_path: Vec<_> = jid
            .map(|jid| ("jid".to_owned(), jid.to_owned()))
            .into_iter()
            .collect();
        let operation = ("GET", path);
        v1::ask(
            self.server,
            self.access,
            self.room,
            operation,
            &of_path,
            fields,
        )
        .await
    }

    /// The newest jobs by jid that pass all filters.
    async fn list(&self, given: &Arguments<'_>) -> Result<Json, HttpError> {
        let (funs, targets) = (
            given.globs("search_function")?,
            given.globs("search_target")?,
        );
        let metadata = given.map("search_metadata")?;

        let mut filter = Vec::new();
        if let Some(since) = given.time("start_time")? {
            filter.push(("since".to_owned(), Json::from(since)));
        }
        if let Some(last) = given.time("end_time")? {
            filter.push(("until".to_owned(), last.saturating_add(1).into()));
        }

        // The API takes one glob; more are evaluated here.
        if let [one] = funs.as_slice() {
            filter.push(("fun".to_owned(), one.as_str().into()));
        }

        filter.push(("limit".to_owned(), SALT_API_JOBS.into()));

        let any = |globs: &[Glob], value: Option<&Json>| {
            let one = value.and_then(Json::as_str);
            let many = value.and_then(Json::as_array).into_iter().flatten();
            let mut texts = one.into_iter().chain(many.filter_map(Json::as_str));
            globs.is_empty() || texts.any(|text| globs.iter().any(|glob| glob.matches(text)))
        };

        let passes = |row: &Json| {
            let of_row = row.get("metadata");
            let is_known = |(key, value): (&String, &Json)| {
                of_row.and_then(|known| known.get(key)) == Some(value)
            };
            (metadata.is_empty() || metadata.iter().any(is_known))
                && (funs.len() < 2 || any(&funs, row.get("fun")))
                // As in Salt, the target that is shown, which a return can have instead of a load.
                && any(&targets, described(row).get("Target"))
        };

        // Filters that are evaluated here may leave few rows of each page: the number of pages
        // bounds the work.
        let (mut jobs, mut bytes) = (Map::new(), 0);
        let mut cursor = None;
        let before = self.room.lock().held();
        for _ in 0..SALT_API_PAGES {
            let mut fields = filter.clone();
            fields.extend(cursor.take().map(|next| ("cursor".to_owned(), next)));
            let page = self.get("/jobs", None, fields).await?;
            let rows = page.get("jobs").and_then(Json::as_array);
            for row in rows.into_iter().flatten().filter(|row| passes(row)) {
                if let Some(jid) = text(row, "jid").filter(|_| jobs.len() < SALT_API_JOBS) {
                    let job = described(row);
                    bytes += json_len(&job);
                    if bytes > self.bytes_max {
                        return Err(too_large("the jobs"));
                    }
                    jobs.insert(jid.to_owned(), job);
                }
            }

            cursor = page.get("next").filter(|next| next.is_string()).cloned();
            // The other rows of the page are free.
            drop(page);
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

    /// A job with all its returns.
    async fn whole(&self, jid: &str) -> Result<Json, HttpError> {
        let mut job = self.get("/jobs/{jid}", Some(jid), Vec::new()).await?;
        let mut bytes = json_len(&job);
        // The API answers a page of returns at a time.
        while let Some(after) = job.get("next").and_then(Json::as_str).map(str::to_owned) {
            // Before the next page, which would be in memory in addition.
            self.check_bytes(bytes, jid)?;

            let page = self
                .get(
                    "/jobs/{jid}",
                    Some(jid),
                    vec![("after".to_owned(), after.into())],
                )
                .await?;

            // Salt's form of a job has no pages, so a job beyond this limit is an error.
            bytes += json_len(&page);

            let Json::Object(mut page) = page else { break };
            let more = page.remove("returns");
            if let (Some(Json::Array(all)), Some(Json::Array(more))) =
                (job.get_mut("returns"), more)
            {
                all.extend(more);
            }
            if let Some(job) = job.as_object_mut() {
                job.insert("next".to_owned(), page.remove("next").unwrap_or_default());
            }
        }

        self.check_bytes(bytes, jid)?;
        Ok(job)
    }

    fn check_bytes(&self, bytes: usize, jid: &str) -> Result<(), HttpError> {
        if bytes > self.bytes_max {
            return Err(too_large(&format!(
                "job {jid:.50} and the chunks before it"
            )));
        }
        Ok(())
    }

    async fn job(&self, jid: &str) -> Result<Json, HttpError> {
        let mut job = match self.whole(jid).await {
            // As Salt answers.
            Err(error) if error.status == StatusCode::NOT_FOUND => {
                return Ok(json!({
                    "Error": "Cannot contact returner or no job with this jid",
                    "StartTime": start_time(jid).unwrap_or_default(), "jid": jid, "Result": {},
                }));
            }
            job => job?,
        };

        let mut answer = described(&job);
        let mut results = Map::new();

        // Moved and not copied: they are most of the job.
        for mut row in take_returns(&mut job) {
            let minion = text(&row, "minion").unwrap_or_default().to_owned();
            let fields = ["return", "retcode", "success", "out"].into_iter();
            let kept = fields.filter_map(|name| {
                let value = row.get_mut(name).map(Json::take);
                Some((name.to_owned(), value.filter(|value| !value.is_null())?))
            });
            let mut result: Map<_, _> = kept.collect();
            // Salt shows `return` for every minion, whatever it is.
            result.entry("return").or_insert(Json::Null);

            results.insert(minion, result.into());
        }

        if let Some(answer) = answer.as_object_mut() {
            answer.insert("jid".to_owned(), jid.into());
            answer.insert("Result".to_owned(), results.into());
            if let Some(minions) = job
                .get("minions")
                .filter(|minions| minions.as_array().is_some_and(|list| !list.is_empty()))
            {
                answer.insert("Minions".to_owned(), minions.clone());
            }
        }

        Ok(answer)
    }

    async fn returns(&self, given: &Arguments<'_>) -> Result<Json, HttpError> {
        let jid = given.jid()?;
        let (returned, missing) = (given.flag("returned", true)?, given.flag("missing", false)?);
        let mut job = match self.whole(&jid).await {
            Err(error) if error.status == StatusCode::NOT_FOUND => return Ok(json!({})),
            job => job?,
        };

        // The outputter belongs to the function, so that of the first return is that of all.
        let outputter = returns(&job).next().and_then(|row| text(row, "out"));
        let outputter = outputter.map(str::to_owned);

        let mut data = Map::new();
        if returned {
            data.extend(take_returns(&mut job).into_iter().map(|mut row| {
                let value = row.get_mut("return").map(Json::take).unwrap_or_default();
                (text(&row, "minion").unwrap_or_default().to_owned(), value)
            }));
        }

        if missing {
            let ids = job.get("missing").and_then(Json::as_array);
            let ids = ids.into_iter().flatten().filter_map(Json::as_str);
            data.extend(ids.map(|id| (id.to_owned(), "Minion did not return".into())));
        }

        Ok(match outputter {
            Some(outputter) => json!({ "outputter": outputter, "data": data }),
            None => data.into(),
        })
    }

    /// Recent jobs with missing returns. Salt asks the minions; a minion that is down counts here
    /// until the time is over.
    async fn active(&self) -> Result<Json, HttpError> {
        let since = self
            .server
            .ctx
            .archive
            .clock
            .now()
            .0
            .saturating_sub(SALT_API_ACTIVE);
        let fields = [
            ("result", Json::from("missing")),
            ("since", since.into()),
            ("limit", SALT_API_ACTIVE_JOBS.into()),
        ];

        let mut active = Map::new();
        let mut cursor = None;
        let held = self.room.lock().held();
        // A page may end at its bytes.
        for _ in 0..SALT_API_PAGES {
            let fields = fields.clone().into_iter();
            let fields = fields.chain(cursor.take().map(|next| ("cursor", next)));
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            let page = self.get("/jobs", None, fields.collect()).await?;

            self.active_of(&page, held, &mut active).await?;

            cursor = page.get("next").filter(|next| next.is_string()).cloned();
            drop(page);
            let kept: usize = active.values().map(v1::tree_bytes).sum();
            self.room.lock().hold(held.saturating_add(kept))?;

            if cursor.is_none() || active.len() >= SALT_API_ACTIVE_JOBS {
                break;
            }
        }

        Ok(active.into())
    }

    /// Adds the active jobs of a page of the list, while there is room for more.
    async fn active_of(
        &self,
        page: &Json,
        held: usize,
        active: &mut Map<String, Json>,
    ) -> Result<(), HttpError> {
        let rows = page.get("jobs").and_then(Json::as_array);
        let held = held.saturating_add(v1::tree_bytes(page));

        for row in rows.into_iter().flatten() {
            if active.len() >= SALT_API_ACTIVE_JOBS {
                break;
            }
            let Some(jid) = text(row, "jid") else {
                continue;
            };

            let (job, returned) = match self.returned(jid).await {
                // Retention has dropped it since the list was made.
                Err(error) if error.status == StatusCode::NOT_FOUND => continue,
                found => found?,
            };
            let missing = job
                .get("missing")
                .and_then(Json::as_array)
                .into_iter()
                .flatten()
                .filter_map(Json::as_str);
            // A process id, which only the minion knows.
            let running: Vec<Json> = missing.map(|minion| json!({ minion: 0 })).collect();

            let mut answer = described(row);
            if let Some(answer) = answer.as_object_mut() {
                answer.insert("Running".to_owned(), running.into());
                answer.insert("Returned".to_owned(), json!(returned));
            }
            active.insert(jid.to_owned(), answer);
            // The returns of the job are free.
            let kept: usize = active.values().map(v1::tree_bytes).sum();
            self.room.lock().hold(held.saturating_add(kept))?;
        }

        Ok(())
    }

    /// A job, and the minions of all its returns. Their values are not kept: a job may have more of
    /// them than fit into memory.
    async fn returned(&self, jid: &str) -> Result<(Json, Vec<Json>), HttpError> {
        let minions = |job: &Json| -> Vec<Json> {
            let minions = returns(job).filter_map(|row| row.get("minion"));
            minions.cloned().collect()
        };

        let job = self.get("/jobs/{jid}", Some(jid), Vec::new()).await?;
        let (mut all, mut next) = (minions(&job), text(&job, "next").map(str::to_owned));
        let held = self.room.lock().held();
        while let Some(after) = next {
            let fields = vec![("after".to_owned(), after.into())];
            let page = self.get("/jobs/{jid}", Some(jid), fields).await?;
            all.extend(minions(&page));
            next = text(&page, "next").map(str::to_owned);
            drop(page);
            self.room.lock().hold(held)?;
        }
        Ok((job, all))
    }
}

/// The returns of a job, which has none afterwards.
fn take_returns(job: &mut Json) -> Vec<Json> {
    match job.get_mut("returns").map(Json::take) {
        Some(Json::Array(returns)) => returns,
        _ => Vec::new(),
    }
}

fn returns(job: &Json) -> impl Iterator<Item = &Json> {
    job.get("returns")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
}

/// A job as `salt.utils.jid.format_jid_instance` describes it, with its defaults for what is not
/// known.
fn described(row: &Json) -> Json {
    let or = |name: &str, default: &str| {
        let known = row.get(name).filter(|value| !value.is_null()).cloned();
        known.unwrap_or_else(|| default.into())
    };

    let args = row.get("arg").filter(|arg| arg.is_array()).cloned();
    let mut described = json!({
        "Function": or("fun", "unknown-function"), "Arguments": args.unwrap_or_else(|| json!([])),
        "Target": or("tgt", "unknown-target"), "Target-type": or("tgt_type", "list"), "User": or("user", "root"),
        "StartTime": text(row, "jid").and_then(start_time).unwrap_or_default(),
    });

    let metadata = row.get("metadata").filter(|metadata| !metadata.is_null());
    if let (Some(described), Some(metadata)) = (described.as_object_mut(), metadata) {
        described.insert("Metadata".to_owned(), metadata.clone());
    }

    described
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
