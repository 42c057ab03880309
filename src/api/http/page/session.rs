//! Signing in to the page: by a token in a form, or by a one-time link; both begin a session
//! ([`crate::api::sign_in::sessions`]), whose secret is in a cookie ([`super::super::cookie`]).

use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode, Uri};

use super::super::access::Peer;
use super::super::answer::{HttpError, plain};
use super::super::cookie::{SESSION_ENDED, with_cookie, with_session, without_session};
use super::super::server::{Server, rejected, rejected_with};
use super::form::Fields;
use super::layout::{Layout, Notice};
use super::render;
use super::response::{LocalPath, html, see_other};
use super::title::error_title;
use crate::base::limits::PAGE_LINK_LIFETIME;

/// The title of the form for a token.
const SIGN_IN: &str = "Sign in";

/// The response to a visit through a link on another site. It has no data: the page loads the view
/// again, as a request of its own, with the cookie.
pub(in super::super) fn arrival(uri: &Uri) -> Response {
    shown(
        StatusCode::OK,
        "Opening the view",
        &Notice::Arrived {
            to: LocalPath::of(uri).as_str(),
        },
    )
}

/// An error, for a visitor without rights.
pub(super) fn failed(error: HttpError) -> Response {
    let data = Notice::Failed {
        status: error.status.as_u16(),
        message: &error.message,
    };
    let answer = shown(error.status, &error_title(error.status), &data);
    rejected_with(error, answer)
}

fn shown(status: StatusCode, title: &str, notice: &Notice<'_>) -> Response {
    let layout = Layout {
        title,
        ..Layout::default()
    };
    match render::page("notice.html", &layout, notice) {
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
        SIGN_IN,
        &Notice::SignIn {
            next: LocalPath::or_root(next).as_str(),
            why: None,
        },
    )
}

/// The response to a view without a valid session. `had_session` is the result of [`super::super::cookie::had_session`].
pub(super) fn ask_for_token(uri: &Uri, had_session: bool) -> Response {
    let why = had_session.then_some(SESSION_ENDED);
    shown(
        StatusCode::UNAUTHORIZED,
        SIGN_IN,
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
        SIGN_IN,
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
    let fields = match Fields::read(&server, request.into_body()).await {
        Ok(fields) => fields,
        Err(error) => return rejected(error),
    };

    let next = LocalPath::or_root(fields.value("next"));
    let Some(found) = server.ctx.sign_in.tokens.find(fields.value("token").trim()) else {
        return not_signed_in(&next, "The token is not valid: unknown or revoked.");
    };

    tracing::info!(target: "audit", %peer, token = found.name, "signed in to the page");
    with_session(see_other(&next), &server.ctx.sign_in, found).unwrap_or_else(rejected)
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
    let now = server.ctx.sign_in.clock.monotonic();

    match server.ctx.sign_in.sessions.open_link(secret, now) {
        Ok(Some((caller, session))) => {
            tracing::info!(target: "audit", %peer, uid = caller.uid, "signed in to the page by a link");
            with_cookie(see_other(&root), &server.ctx.sign_in, &session).unwrap_or_else(rejected)
        }
        Ok(None) => {
            let seconds = PAGE_LINK_LIFETIME.as_secs();

            let why = format!(
                "The link is not valid: it works once, within {seconds} s. Ask for a new one on the host, or sign in with a token."
            );
            not_signed_in(&root, &why)
        }
        Err(error) => rejected(error.into()),
    }
}

pub(super) async fn sign_out(State(server): Server, headers: HeaderMap) -> Response {
    let to = see_other(&LocalPath::or_root("/sign-in"));
    without_session(to, &server.ctx.sign_in, &headers).unwrap_or_else(rejected)
}
