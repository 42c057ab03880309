//! A part of salt-api, enough for the job and event pages of SaltGUI: `POST /login`, `/logout`, `/` and `/run`, and `GET /events` (docs/HTTP.md).
//!
//! The functions of the runner `jobs` are answered from operations of the API, with the rights and limits of the token. Nothing is passed to a master: other
//! clients and functions are rejected.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, Request, State};
use axum::response::Response;
use axum::routing::post;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{StatusCode, Uri};
use jiff::civil::DateTime;
use serde_json::{Map, Value as Json, json};

use super::access::{Access, Peer};
use super::answer::{Answer, HttpError, plain};
use super::page;
use super::server::{HttpServer, Server, rejected};
use super::v1;
use crate::base::limits::{
    HTTP_BODY_BYTES_MAX, LIST_BYTES_MAX, SALT_API_ACTIVE, SALT_API_ACTIVE_JOBS, SALT_API_CHUNKS,
    SALT_API_EXPIRE, SALT_API_JOBS,
};

pub(super) const TOKEN_HEADER: &str = "x-auth-token";

const FUNCTIONS: &str = "jobs.list_jobs, jobs.list_job, jobs.lookup_jid, jobs.active";

/// The routes. `GET /events` is in those of the page, which has a view of the same path.
pub(super) fn routes() -> Router<Arc<HttpServer>> {
    Router::new()
        .route("/login", post(login))
        .route("/logout", post(logout))
        .route("/", post(run))
        .route("/run", post(run))
}

/// Whether a client asks for a stream instead of a view.
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
    if let Ok(found @ (Json::Object(_) | Json::Array(_))) = serde_json::from_slice(&body) {
        return Ok(found);
    }
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
        let found = server.ctx.tokens.find(token).ok_or_else(|| {
            let why = "the password is not a valid token: `saltcellar token create NAME` makes one";
            HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why)
        })?;
        tracing::info!(target: "audit", %peer, token = found.name, "signed in as to salt-api");
        let start = server.ctx.clock.now().0 / 1_000_000;
        let answer = answered(&json!({ "return": [{
            "token": token, "start": start, "expire": start.saturating_add(SALT_API_EXPIRE), "user": found.name,
            "eauth": text(&given, "eauth").unwrap_or("saltcellar"), "perms": ["@runner"],
        }] }));
        let mut answer = page::with_token(answer, &server, token)?;
        if let Ok(token) = HeaderValue::from_str(token) {
            answer
                .headers_mut()
                .insert(HeaderName::from_static(TOKEN_HEADER), token);
        }
        Ok(answer)
    };
    signed_in.await.unwrap_or_else(rejected)
}

/// Deletes the cookie. The token stays valid until it is revoked.
async fn logout() -> Response {
    page::without_token(answered(
        &json!({ "return": "Your token has been cleared" }),
    ))
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
        let mut results = Vec::new();
        for chunk in &chunks {
            results.push(
                one(
                    &Jobs {
                        server: &server,
                        access: &access,
                    },
                    chunk,
                )
                .await?,
            );
        }
        let body = server
            .room
            .hold(json!({ "return": results }).to_string().into_bytes())
            .await?;
        Ok(plain(StatusCode::OK, "application/json", body))
    };
    done.await.unwrap_or_else(rejected)
}

async fn one(jobs: &Jobs<'_>, chunk: &Json) -> Result<Json, HttpError> {
    let (client, fun) = (
        text(chunk, "client").unwrap_or_default(),
        text(chunk, "fun").unwrap_or_default(),
    );
    if !client.starts_with("runner") {
        return Err(HttpError::bad(format!(
            "client `{client:.50}` is not supported, only `runner` with {FUNCTIONS}"
        )));
    }
    // Arguments are fields of the chunk, in `kwarg`, or in `arg` by position.
    let argument = |name: &str, position: usize| {
        let named =
            text(chunk, name).or_else(|| chunk.get("kwarg").and_then(|kwarg| text(kwarg, name)));
        let listed = || {
            chunk
                .get("arg")
                .and_then(|arg| arg.get(position).or(Some(arg).filter(|_| position == 0)))
        };
        named
            .or_else(|| listed().and_then(Json::as_str))
            .map(str::to_owned)
    };
    let jid = || argument("jid", 0).ok_or_else(|| HttpError::bad(format!("{fun} needs `jid`")));
    match fun {
        "jobs.list_jobs" => {
            jobs.list(argument("search_function", 1), argument("search_target", 2))
                .await
        }
        "jobs.list_job" => jobs.job(&jid()?).await,
        "jobs.lookup_jid" => jobs.returns(&jid()?).await,
        "jobs.active" => jobs.active().await,
        _ => Err(HttpError::bad(format!(
            "the runner function `{fun:.50}` is not supported, only {FUNCTIONS}"
        ))),
    }
}

/// The functions of the runner `jobs`.
struct Jobs<'a> {
    server: &'a Arc<HttpServer>,
    access: &'a Access,
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
        v1::ask(self.server, self.access, ("GET", path), &of_path, fields).await
    }

    /// The newest jobs by jid.
    async fn list(&self, fun: Option<String>, tgt: Option<String>) -> Result<Json, HttpError> {
        let given = [
            ("fun", fun.map(Json::from)),
            ("tgt", tgt.map(Json::from)),
            ("limit", Some(SALT_API_JOBS.into())),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let page = self.get("/jobs", None, given.collect()).await?;
        let rows = page
            .get("jobs")
            .and_then(Json::as_array)
            .into_iter()
            .flatten();
        let jobs = rows.filter_map(|row| Some((text(row, "jid")?.to_owned(), described(row))));
        Ok(jobs.collect::<Map<_, _>>().into())
    }

    /// A job with all its returns.
    async fn whole(&self, jid: &str) -> Result<Json, HttpError> {
        let mut job = self.get("/jobs/{jid}", Some(jid), Vec::new()).await?;
        let mut bytes = 0;
        while let Some(after) = job.get("next").and_then(Json::as_str).map(str::to_owned) {
            let page = self
                .get(
                    "/jobs/{jid}",
                    Some(jid),
                    vec![("after".to_owned(), after.into())],
                )
                .await?;
            bytes += page.to_string().len();
            if bytes > LIST_BYTES_MAX {
                let why = format!(
                    "job {jid:.50} has more than {LIST_BYTES_MAX} bytes of returns; /api/v1/jobs/JID has pages"
                );
                return Err(HttpError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too_large",
                    why,
                ));
            }
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
        Ok(job)
    }

    async fn job(&self, jid: &str) -> Result<Json, HttpError> {
        let job = match self.whole(jid).await {
            // As Salt answers.
            Err(error) if error.status == StatusCode::NOT_FOUND => {
                let none = json!({ "Error": "Cannot contact returner or no job with this jid", "StartTime": "", "jid": jid });
                return Ok(none);
            }
            job => job?,
        };
        let mut answer = described(&job);
        let mut results = Map::new();
        for row in returns(&job) {
            let fields = ["return", "retcode", "success", "out"].into_iter();
            let kept = fields.filter_map(|name| {
                Some((
                    name.to_owned(),
                    row.get(name).filter(|value| !value.is_null())?.clone(),
                ))
            });
            let mut result: Map<_, _> = kept.collect();
            result.entry("return").or_insert(Json::Null);
            results.insert(
                text(row, "minion").unwrap_or_default().to_owned(),
                result.into(),
            );
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

    async fn returns(&self, jid: &str) -> Result<Json, HttpError> {
        let job = match self.whole(jid).await {
            Err(error) if error.status == StatusCode::NOT_FOUND => return Ok(json!({})),
            job => job?,
        };
        let value = |row: &Json| row.get("return").cloned().unwrap_or_default();
        let data: Map<_, _> = returns(&job)
            .map(|row| {
                (
                    text(row, "minion").unwrap_or_default().to_owned(),
                    value(row),
                )
            })
            .collect();
        let outputter = returns(&job).next().and_then(|row| text(row, "out"));
        Ok(match outputter {
            Some(outputter) => json!({ "outputter": outputter, "data": data }),
            None => data.into(),
        })
    }

    /// Recent jobs with missing returns. Salt asks the minions; a minion that is down counts here until the time is over.
    async fn active(&self) -> Result<Json, HttpError> {
        let since = self
            .server
            .ctx
            .clock
            .now()
            .0
            .saturating_sub(SALT_API_ACTIVE);
        let given = [
            ("result", "missing".into()),
            ("since", since.into()),
            ("limit", SALT_API_ACTIVE_JOBS.into()),
        ];
        let page = self
            .get(
                "/jobs",
                None,
                given
                    .map(|(name, value): (&str, Json)| (name.to_owned(), value))
                    .into(),
            )
            .await?;
        let mut active = Map::new();
        for row in page
            .get("jobs")
            .and_then(Json::as_array)
            .into_iter()
            .flatten()
        {
            let Some(jid) = text(row, "jid") else {
                continue;
            };
            let job = self.get("/jobs/{jid}", Some(jid), Vec::new()).await?;
            let missing = job
                .get("missing")
                .and_then(Json::as_array)
                .into_iter()
                .flatten()
                .filter_map(Json::as_str);
            // A process id, which only the minion knows.
            let running: Vec<Json> = missing.map(|minion| json!({ minion: 0 })).collect();
            let returned: Vec<&Json> = returns(&job).filter_map(|row| row.get("minion")).collect();
            let mut answer = described(row);
            if let Some(answer) = answer.as_object_mut() {
                answer.insert("Running".to_owned(), running.into());
                answer.insert("Returned".to_owned(), json!(returned));
            }
            active.insert(jid.to_owned(), answer);
        }
        Ok(active.into())
    }
}

fn returns(job: &Json) -> impl Iterator<Item = &Json> {
    job.get("returns")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
}

/// A job as `salt.utils.jid.format_jid_instance` describes it.
fn described(row: &Json) -> Json {
    let field = |name: &str| row.get(name).cloned().unwrap_or_default();
    json!({
        "Function": field("fun"), "Arguments": if row.get("arg").is_some_and(Json::is_array) { field("arg") } else { json!([]) },
        "Target": field("tgt"), "Target-type": field("tgt_type"), "User": field("user"),
        "StartTime": text(row, "jid").and_then(start_time).unwrap_or_default(),
    })
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
