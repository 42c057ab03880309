//! Signing in to the page: by a token in a form, or by a one-time link; both begin a session
//! ([`super::super::sessions`]).
//!
//! The cookie has the session's secret. Scripts cannot read it (`HttpOnly`), pages of other sites
//! do not send it (`SameSite=Strict`), and with TLS it is sent over TLS only and cannot be set by
//! another host (`Secure`, `__Host-`).

use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};

use super::super::access::Peer;
use super::super::answer::{HttpError, plain};
use super::super::server::{HttpServer, Server, rejected, rejected_with};
use super::super::sessions::Holder;
use super::super::tokens::Token;
use super::{Layout, LocalPath, Notice, html, render, see_other};
use crate::base::limits::{HTTP_BODY_BYTES_MAX, HTTP_SESSION_LIFETIME, PAGE_LINK_LIFETIME};

/// The name of the cookie. With the prefix a browser accepts it over TLS from this host only.
fn cookie_name(has_tls: bool) -> &'static str {
    if has_tls {
        "__Host-saltcellar"
    } else {
        "saltcellar"
    }
}

/// The session's secret in the cookies of a request.
pub(in super::super) fn session_of(headers: &HeaderMap, has_tls: bool) -> Option<&str> {
    let lists = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|list| list.to_str().ok());
    let mut cookies = lists
        .flat_map(|list| list.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='));
    let name = cookie_name(has_tls);
    cookies
        .find(|(known, _)| *known == name)
        .map(|(_, secret)| secret)
}

/// True if the cookie counts: a change needs proof that a page of this listener caused it. Foreign
/// values of the proof are rejected before.
pub(in super::super) fn is_confirmed(method: &Method, headers: &HeaderMap) -> bool {
    let is_proven =
        || headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    matches!(*method, Method::GET | Method::HEAD) || is_proven()
}

/// True if a request without rights has the cookie of a session. Its session has ended: it is too
/// old or was not used for too long, its token was revoked, or the daemon was restarted, which
/// keeps sessions in memory only.
pub(in super::super) fn had_session(method: &Method, headers: &HeaderMap, has_tls: bool) -> bool {
    session_of(headers, has_tls).is_some() && is_confirmed(method, headers)
}

/// The reason to sign in again.
pub(in super::super) const SESSION_ENDED: &str = "Your session has ended: it expired, its token was revoked, or saltcellar was restarted. Sign in again.";

/// The response to a visit through a link on another site. It has no data: the page loads the view
/// again, as a request of its own, with the cookie.
pub(in super::super) fn arrival(uri: &Uri) -> Response {
    shown(
        StatusCode::OK,
        &Notice::Arrived {
            to: LocalPath::of(uri).as_str(),
        },
    )
}

fn shown(status: StatusCode, notice: &Notice<'_>) -> Response {
    match render::page("notice.html", &Layout::default(), notice) {
        Ok(text) => html(status, text.into()),
        Err(error) => rejected(error),
    }
}

pub(super) async fn form(request: Request) -> Response {
    let Query(query) =
        Query::<Vec<(String, String)>>::try_from_uri(request.uri()).unwrap_or_default();
    let next = query
        .iter()
        .find(|(name, _)| name == "next")
        .map_or("/", |(_, next)| next);
    shown(
        StatusCode::OK,
        &Notice::SignIn {
            next: LocalPath::or_root(next).as_str(),
            why: None,
        },
    )
}

/// The response to a view without a valid session. `had_session` is the result of [`had_session`].
pub(super) fn ask_for_token(uri: &Uri, had_session: bool) -> Response {
    let why = had_session.then_some(SESSION_ENDED);
    shown(
        StatusCode::UNAUTHORIZED,
        &Notice::SignIn {
            next: LocalPath::of(uri).as_str(),
            why,
        },
    )
}

/// The form again, with the reason; counted as a rejected request.
fn not_signed_in(next: &LocalPath, why: &str) -> Response {
    let answer = shown(
        StatusCode::UNAUTHORIZED,
        &Notice::SignIn {
            next: next.as_str(),
            why: Some(why),
        },
    );
    rejected_with(
        HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why),
        answer,
    )
}

/// Checks a token, and begins a session.
pub(super) async fn sign_in(
    State(server): Server,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let body = match server.body(request.into_body(), HTTP_BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return rejected(error),
    };

    // The query of an address has the encoding of a form, so axum's parser of queries reads both.
    let fields = std::str::from_utf8(&body)
        .ok()
        .and_then(|body| format!("/?{body}").parse::<Uri>().ok());
    let fields = fields.and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
    let Some(Query(fields)) = fields else {
        return rejected(HttpError::bad("the form is malformed"));
    };

    let field = |name: &str| {
        fields
            .iter()
            .find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    };

    let next = LocalPath::or_root(field("next"));
    let Some(found) = server.ctx.tokens.find(field("token").trim()) else {
        return not_signed_in(&next, "The token is not valid: unknown or revoked.");
    };

    tracing::info!(target: "audit", %peer, token = found.name, "signed in to the page");
    with_session(see_other(&next), &server, found).unwrap_or_else(rejected)
}

/// Opens a one-time link: begins its session, and leads to an address without the secret.
pub(super) async fn open_link(
    State(server): Server,
    Extension(peer): Extension<Peer>,
    path: RawPathParams,
    method: Method,
) -> Response {
    // A program that looks at a link in advance must not use it up.
    if method != Method::GET {
        return plain(StatusCode::OK, "text/html; charset=utf-8", "".into());
    }

    let secret = path.iter().next().map_or("", |(_, secret)| secret);
    let root = LocalPath::root();
    let now = server.ctx.clock.monotonic();

    match server.ctx.sessions.open_link(secret, now) {
        Ok(Some((caller, session))) => {
            tracing::info!(target: "audit", %peer, uid = caller.uid, "signed in to the page by a link");
            with_cookie(see_other(&root), &server, &session).unwrap_or_else(rejected)
        }
        Ok(None) => {
            let seconds = PAGE_LINK_LIFETIME.as_secs();

            let why = format!(
                "The link is not valid: it works once, within {seconds} s. Ask for a new one on the machine, or sign in with a token."
            );
            not_signed_in(&root, &why)
        }
        Err(error) => rejected(error.into()),
    }
}

/// Begins a session of a token, and adds its cookie.
pub(in super::super) fn with_session(
    answer: Response,
    server: &HttpServer,
    token: Token,
) -> Result<Response, HttpError> {
    let now = server.ctx.clock.monotonic();
    let holder = Holder::Token(Box::new(token));
    let session = server.ctx.sessions.begin(holder, now)?;
    with_cookie(answer, server, &session)
}

fn with_cookie(
    answer: Response,
    server: &HttpServer,
    session: &str,
) -> Result<Response, HttpError> {
    set_cookie(
        answer,
        server.ctx.sessions.has_tls,
        session,
        HTTP_SESSION_LIFETIME.as_secs(),
    )
}

/// Ends the session of a request, and deletes the cookie.
pub(in super::super) fn without_session(
    answer: Response,
    server: &HttpServer,
    headers: &HeaderMap,
) -> Response {
    let sessions = &server.ctx.sessions;
    if let Some(session) = session_of(headers, sessions.has_tls) {
        sessions.end(session);
    }
    set_cookie(answer, sessions.has_tls, "", 0).unwrap_or_else(rejected)
}

pub(super) async fn sign_out(State(server): Server, headers: HeaderMap) -> Response {
    without_session(
        see_other(&LocalPath::or_root("/sign-in")),
        &server,
        &headers,
    )
}

fn set_cookie(
    mut answer: Response,
    has_tls: bool,
    secret: &str,
    seconds: u64,
) -> Result<Response, HttpError> {
    let (name, secure) = (cookie_name(has_tls), if has_tls { "; Secure" } else { "" });
    let cookie =
        format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    let cookie =
        HeaderValue::from_str(&cookie).map_err(|_| HttpError::bad("the cookie is malformed"))?;
    answer.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        assert_eq!(session_of(&headers, false), None);
        headers.insert(
            header::COOKIE,
            HeaderValue::from_static(
                "a=1; saltcellar=scs_x; saltcellar2=y; __Host-saltcellar=scs_z",
            ),
        );
        assert_eq!(session_of(&headers, false), Some("scs_x"));
        assert_eq!(
            session_of(&headers, true),
            Some("scs_z"),
            "another host cannot set it"
        );
        assert!(is_confirmed(&Method::GET, &headers) && !is_confirmed(&Method::POST, &headers));
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost"));
        assert!(is_confirmed(&Method::POST, &headers));
    }

    #[test]
    fn a_cookie_is_of_this_host_and_of_tls_if_there_is_tls() {
        let answer = |has_tls| {
            let answer = plain(StatusCode::OK, "text/plain", "".into());
            let answer = set_cookie(answer, has_tls, "scs_x", 60).unwrap();
            answer.headers()[header::SET_COOKIE]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            answer(true),
            "__Host-saltcellar=scs_x; Path=/; HttpOnly; SameSite=Strict; Max-Age=60; Secure"
        );
        assert_eq!(
            answer(false),
            "saltcellar=scs_x; Path=/; HttpOnly; SameSite=Strict; Max-Age=60"
        );
    }
}
