//! Signing in: a token in a cookie.
//!
//! The cookie has the token itself, so that its scope and limits apply, and that a revoked token is signed out at once. Scripts cannot read it (`HttpOnly`),
//! pages of other sites do not send it (`SameSite=Strict`), and with TLS it is sent over TLS only (`Secure`).

use axum::extract::{Extension, Query, Request, State};
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use serde_json::json;

use super::super::access::Peer;
use super::super::answer::HttpError;
use super::super::server::{HttpServer, Server, rejected, rejected_with};
use super::{html, render, see_other};
use crate::base::limits::HTTP_BODY_BYTES_MAX;

const COOKIE: &str = "saltcellar";

/// The token in the cookies of a request.
pub(in super::super) fn token_of(headers: &HeaderMap) -> Option<&str> {
    let lists = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|list| list.to_str().ok());
    let mut cookies = lists
        .flat_map(|list| list.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='));
    cookies
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, token)| token)
}

/// Whether the cookie counts: a change also needs proof that a page of this listener caused it. Foreign values are rejected before.
pub(in super::super) fn is_confirmed(method: &Method, headers: &HeaderMap) -> bool {
    let is_proven =
        || headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    matches!(*method, Method::GET | Method::HEAD) || is_proven()
}

/// The answer to a visit through a link on another site. It has no data: the page loads the view again, as a request of its own, with the cookie.
pub(in super::super) fn arrival(uri: &Uri) -> Response {
    let data = json!({ "to": uri.path_and_query().map_or("/", |to| to.as_str()) });
    shown(StatusCode::OK, &data)
}

fn shown(status: StatusCode, data: &serde_json::Value) -> Response {
    match render::page("notice.html", &json!({}), data) {
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
    shown(StatusCode::OK, &json!({ "next": local(next) }))
}

/// The answer to a view without a valid token.
pub(super) fn ask_for_token(uri: &Uri) -> Response {
    let next = uri.path_and_query().map_or("/", |next| next.as_str());
    shown(StatusCode::UNAUTHORIZED, &json!({ "next": local(next) }))
}

/// A path of this listener; `/` instead of another address.
fn local(next: &str) -> &str {
    let is_local = next.starts_with('/')
        && !next.starts_with("//")
        && next
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_local { next } else { "/" }
}

/// Checks a token, and sets the cookie.
pub(super) async fn sign_in(
    State(server): Server,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let body = match server.body(request.into_body(), HTTP_BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return rejected(error),
    };
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
    let (token, next) = (field("token").trim(), local(field("next")));
    let Some(found) = server.ctx.tokens.find(token) else {
        let why = "The token is not valid: unknown or revoked.";
        let answer = shown(
            StatusCode::UNAUTHORIZED,
            &json!({ "next": next, "why": why }),
        );
        return rejected_with(
            HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why),
            answer,
        );
    };
    tracing::info!(target: "audit", %peer, token = found.name, "signed in to the page");
    with_token(see_other(next), &server, token).unwrap_or_else(rejected)
}

/// Adds the cookie with a token.
pub(in super::super) fn with_token(
    answer: Response,
    server: &HttpServer,
    token: &str,
) -> Result<Response, HttpError> {
    let secure = if server.config.tls.is_some() {
        "; Secure"
    } else {
        ""
    };
    with_cookie(
        answer,
        &format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"),
    )
}

/// Deletes the cookie.
pub(in super::super) fn without_token(answer: Response) -> Response {
    with_cookie(
        answer,
        &format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"),
    )
    .unwrap_or_else(rejected)
}

pub(super) async fn sign_out() -> Response {
    without_token(see_other("/sign-in"))
}

fn with_cookie(mut answer: Response, cookie: &str) -> Result<Response, HttpError> {
    let cookie =
        HeaderValue::from_str(cookie).map_err(|_| HttpError::bad("the token is malformed"))?;
    answer.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_this_listener_only() {
        for next in ["/", "/jobs?fun=state.*", "/jobs/1"] {
            assert_eq!(local(next), next);
        }
        for next in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/a\r\nx: y",
            "/\t/evil",
        ] {
            assert_eq!(local(next), "/", "{next:?}");
        }
    }

    #[test]
    fn the_token_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        assert_eq!(token_of(&headers), None);
        headers.insert(
            header::COOKIE,
            HeaderValue::from_static("a=1; saltcellar=sct_x; saltcellar2=y"),
        );
        assert_eq!(token_of(&headers), Some("sct_x"));
        assert!(is_confirmed(&Method::GET, &headers) && !is_confirmed(&Method::POST, &headers));
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost"));
        assert!(is_confirmed(&Method::POST, &headers));
    }
}
