//! The cookie of the page, which contains a session's secret ([`crate::api::sign_in::sessions`]).
//!
//! Scripts cannot read it (`HttpOnly`), pages of other sites do not send it (`SameSite=Strict`), and
//! with TLS it is sent over TLS only and cannot be set by another host (`Secure`, `__Host-`).

use axum::response::Response;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::answer::HttpError;
use crate::api::sign_in::SignIn;
use crate::api::sign_in::sessions::{Holder, SessionId};
use crate::api::sign_in::tokens::Token;
use crate::base::limits::HTTP_SESSION_LIFETIME;

/// The name of the cookie. With the prefix a browser accepts it over TLS from this host only.
fn cookie_name(has_tls: bool) -> &'static str {
    if has_tls {
        "__Host-saltcellar"
    } else {
        "saltcellar"
    }
}

/// The session's secret in the cookies of a request.
pub(super) fn session_of(headers: &HeaderMap, has_tls: bool) -> Option<&str> {
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
pub(super) fn is_confirmed(method: &Method, headers: &HeaderMap) -> bool {
    let is_proven =
        || headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    matches!(*method, Method::GET | Method::HEAD) || is_proven()
}

/// True if a request without rights carries the cookie of a session. Its session has ended: it is too
/// old or was not used for too long, its token was revoked, or the daemon was restarted, which
/// keeps sessions in memory only.
pub(super) fn had_session(method: &Method, headers: &HeaderMap, has_tls: bool) -> bool {
    session_of(headers, has_tls).is_some() && is_confirmed(method, headers)
}

/// The reason to sign in again.
pub(super) const SESSION_ENDED: &str = "Your session has ended: it expired, its token was revoked, or saltcellar was restarted. Sign in again.";

/// Begins a session of a token, and adds its cookie.
pub(super) fn with_session(
    answer: Response,
    sign_in: &SignIn,
    token: Token,
) -> Result<Response, HttpError> {
    let now = sign_in.clock.monotonic();
    let holder = Holder::Token(Box::new(token));
    let session = sign_in.sessions.begin(holder, now)?;
    with_cookie(answer, sign_in, &session)
}

pub(super) fn with_cookie(
    answer: Response,
    sign_in: &SignIn,
    session: &str,
) -> Result<Response, HttpError> {
    set_cookie(
        answer,
        sign_in.sessions.has_tls,
        session,
        HTTP_SESSION_LIFETIME.as_secs(),
    )
}

/// Ends the session of a request, and deletes the cookie.
pub(super) fn without_session(
    answer: Response,
    sign_in: &SignIn,
    headers: &HeaderMap,
) -> Result<Response, HttpError> {
    let sessions = &sign_in.sessions;
    if let Some(session) = session_of(headers, sessions.has_tls) {
        sessions.end(SessionId::of(session));
    }
    set_cookie(answer, sessions.has_tls, "", 0)
}

fn set_cookie(
    mut answer: Response,
    has_tls: bool,
    secret: &str,
    seconds: u64,
) -> Result<Response, HttpError> {
    let name = cookie_name(has_tls);
    let secure = if has_tls { "; Secure" } else { "" };
    let cookie =
        format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    let cookie =
        HeaderValue::from_str(&cookie).map_err(|_| HttpError::bad("the cookie is malformed"))?;
    answer.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::super::answer::plain;
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
