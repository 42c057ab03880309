//! The web page: views at `/`, as HTML from templates in the binary (docs/HTTP.md).
//!
//! A view makes operations of the API, with the rights and limits of its token, and renders their
//! answers. It works without the script, which only follows events, refreshes the overview and
//! shows local times.
//!
//! # Invariant
//!
//! Text from outside reaches the page only through templates, which escape it, or through
//! [`render`], which escapes it too. The policy of the page allows no inline script or style.

mod address;
mod ask;
mod causes;
mod diff_view;
mod find;
mod form;
mod job;
mod layout;
mod overview;
mod render;
mod response;
mod session;
mod table;
mod title;
mod views;

pub(super) use self::session::arrival;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::header::{self, HeaderMap};
use hyper::{Method, StatusCode, Uri};
use parking_lot::Mutex;

use self::address::Address;
use self::ask::Ask;
use self::form::Fields;
use self::layout::{Layout, NavItem, Notice};
use self::render::{Data, encoded};
use self::response::{HTML, LocalPath, html, see_other, with_policy};
use self::table::{Loaded, VIEWS, View};
use self::title::error_title;
use super::access::{Access, Peer};
use super::answer::HttpError;
use super::cookie::had_session;
use super::encoding::Asked;
use super::salt_api;
use super::server::{HttpServer, Server, rejected_with};
use super::v1;
use crate::api::call::reactor::ReplayCalls;
use crate::api::call::sinks::{Drop, LettersArgs, Retry};
use crate::base::clock::Micros;
use crate::base::limits::HTTP_ANSWER_RESERVE;
use crate::model::Limit;

/// The files that views refer to.
const ASSETS: &[(&str, &str, &str)] = &[
    (
        "/assets/page.css",
        "text/css; charset=utf-8",
        include_str!("page.css"),
    ),
    (
        "/assets/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page.js"),
    ),
    (
        "/assets/icon.svg",
        "image/svg+xml",
        include_str!("icon.svg"),
    ),
];

pub(super) fn routes() -> Router<Arc<HttpServer>> {
    let mut router = Router::new()
        .route("/sign-in", get(session::form).post(session::sign_in))
        .route("/sign-in/{link}", get(session::open_link))
        .route("/sign-out", post(session::sign_out))
        .route("/reactor/reactions/{seq}/replay", post(replay))
        .route("/sinks/{name}/dead-letters/{change}", post(change_letters));

    for (path, kind, text) in ASSETS {
        let asset = move |headers: HeaderMap| async move {
            let encoded = Asked::of(&headers).tagged(text.as_bytes().to_vec());
            let Ok(answer) = encoded.answer(kind, |bytes| Ok::<_, Infallible>(bytes.into()));
            answer
        };
        router = router.route(path, get(asset));
    }

    for view in VIEWS {
        let handler = move |State(server): Server,
                            Extension(access): Extension<Option<Access>>,
                            Extension(peer): Extension<Peer>,
                            path: RawPathParams,
                            headers: HeaderMap,
                            uri: Uri| {
            let path = owned(&path);
            async move {
                // SaltGUI opens its stream at the address that this page has for a view.
                if view.path == "/events" && salt_api::wants_stream(&headers) {
                    return salt_api::events(server, access, &headers).await;
                }

                let has_tls = server.ctx.sign_in.sessions.has_tls;
                let had_session = had_session(&Method::GET, &headers, has_tls);
                let Some(access) = access else {
                    return session::ask_for_token(&uri, had_session);
                };

                // It holds the responses of all operations of a view.
                let asked = Asked::of_visit(&headers);
                Box::pin(show(view, &server, access, peer, path, &uri, asked)).await
            }
        };
        router = router.route(view.path, get(handler));
    }

    router
}

fn owned(path: &RawPathParams) -> Vec<(String, String)> {
    path.iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Answers with a view.
async fn show(
    view: &'static View,
    server: &Arc<HttpServer>,
    access: Access,
    peer: Peer,
    path: Vec<(String, String)>,
    uri: &Uri,
    asked: Asked,
) -> Response {
    // One instant for the whole view, from which all ages and ranges are counted.
    let frame = Frame::of(&access, peer, server.ctx.archive.clock.now());

    let shown = async {
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(query) =
            query.map_err(|error| HttpError::bad(format!("the query is malformed: {error}")))?;

        // Reserved before the operations: their responses are in memory until the page is rendered.
        let room = Mutex::new(access.budget.room(HTTP_ANSWER_RESERVE).await?);

        let loaded = view
            .load(&Ask {
                server,
                access: &access,
                room: &room,
                path: &path,
                address: Address {
                    query: &query,
                    now: frame.now,
                },
            })
            .await?;

        let shown = match loaded {
            Loaded::Shown(shown) => shown,
            Loaded::At(path) => return Ok(see_other(&path)),
        };

        // Rendering takes processor time, therefore it counts towards the reader's budget like a
        // search.
        let page = frame.clone();
        let encoded = server
            .carry_out(&access.budget, move || {
                let text = page.render(view.template, &shown.title, view.part, &*shown.data)?;
                Ok::<_, HttpError>(asked.plain(text.into_bytes()))
            })
            .await??;
        encoded.answer(HTML, |bytes| {
            room.into_inner().fill(bytes).map_err(HttpError::from)
        })
    };

    match Box::pin(shown).await {
        Ok(answer) => with_policy(answer),
        Err(error) => frame.failed(error),
    }
}

/// Repeats the dead-lettered calls of a reaction, and returns to it.
async fn replay(
    State(server): Server,
    Extension(access): Extension<Option<Access>>,
    Extension(peer): Extension<Peer>,
    path: RawPathParams,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let Some(access) = access else {
        let has_tls = server.ctx.sign_in.sessions.has_tls;
        let had_session = had_session(&Method::POST, &headers, has_tls);
        return session::ask_for_token(&uri, had_session);
    };

    let path = owned(&path);
    let replayed = async {
        let room = Mutex::new(access.budget.room(HTTP_ANSWER_RESERVE).await?);
        let args = v1::args_of::<ReplayCalls>(&path, Vec::new())?;
        v1::make::<ReplayCalls>(&server, &access, &room, &path, args).await
    };
    match replayed.await {
        Ok(answer) => {
            let seq = path
                .first()
                .map(|(_, seq)| seq.as_str())
                .unwrap_or_default();

            // Redirect, because reloading the page must not repeat the replay.
            see_other(&LocalPath::or_root(&format!(
                "/reactor/reactions/{seq}?replayed={}",
                answer.count
            )))
        }
        Err(error) => Frame::of(&access, peer, server.ctx.archive.clock.now()).failed(error),
    }
}

/// Whether the peer is a browser that shows what it gets.
pub(super) fn is_wanted(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let wants_html = accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/html"));
    // The API answers programs, even in a browser.
    wants_html && matches!(*method, Method::GET | Method::HEAD) && !uri.path().starts_with("/api/")
}

/// The page in place of an error that has no view.
pub(super) fn failed(
    access: Option<&Access>,
    peer: Peer,
    now: Micros,
    error: HttpError,
) -> Response {
    match access {
        Some(access) => Frame::of(access, peer, now).failed(error),
        None => session::failed(error),
    }
}

/// The page in place of an error of a request that was rejected before its handler.
pub(super) fn not_admitted(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    has_tls: bool,
    error: HttpError,
) -> Response {
    if error.status == StatusCode::UNAUTHORIZED {
        return session::ask_for_token(uri, had_session(method, headers, has_tls));
    }
    session::failed(error)
}

/// Retries or drops dead letters of a sink, and returns to it.
async fn change_letters(
    State(server): Server,
    Extension(access): Extension<Option<Access>>,
    Extension(peer): Extension<Peer>,
    path: RawPathParams,
    request: Request,
) -> Response {
    let Some(access) = access else {
        let has_tls = server.ctx.sign_in.sessions.has_tls;
        let had_session = had_session(&Method::POST, request.headers(), has_tls);
        return session::ask_for_token(request.uri(), had_session);
    };

    let path = owned(&path);
    let part = |name: &str| path.iter().find(|(known, _)| known == name);
    let [name, change] = ["name", "change"].map(|name| {
        part(name)
            .map_or("", |(_, value)| value.as_str())
            .to_owned()
    });

    let changed = async {
        let fields = Fields::read(&server, request.into_body()).await?;
        let args = LettersArgs {
            name: name.clone(),
            ids: None,
            // An empty one counts, because a destination may give none. Without the field all letters are meant.
            reason: fields.field("reason").map(str::to_owned),
        };

        let room = Mutex::new(access.budget.room(HTTP_ANSWER_RESERVE).await?);
        match change.as_str() {
            "retry" => v1::make::<Retry>(&server, &access, &room, &[], args).await,
            "drop" => v1::make::<Drop>(&server, &access, &room, &[], args).await,
            other => Err(HttpError::not_found(format!(
                "dead letters can be retried or dropped, not {other:.20}"
            ))),
        }
    };
    match changed.await {
        // Redirect, for the same reason as after a replay.
        Ok(answer) => see_other(&LocalPath::or_root(&format!(
            "/sinks/{}?{change}={}",
            encoded(&name),
            answer.count
        ))),
        Err(error) => Frame::of(&access, peer, server.ctx.archive.clock.now()).failed(error),
    }
}

/// The reader of a view, as every view shows it.
#[derive(Debug, Clone)]
struct Frame {
    who: String,
    right: &'static str,
    /// True if the reader has signed in, by a token or a link.
    signed_in: bool,
    /// What its token is limited to.
    limits: String,
    /// The views that it may see.
    nav: Arc<[NavItem]>,
    now: Micros,
}

impl Frame {
    fn of(access: &Access, peer: Peer, now: Micros) -> Self {
        let signed_in = matches!(peer, Peer::Network { .. });

        let is_entry = |view: &&View| {
            let is_named = view.path == "/" || view.path.strip_prefix('/') == Some(view.part);
            is_named && view.is_allowed(access)
        };
        let nav = VIEWS.iter().filter(is_entry).map(|view| NavItem {
            name: view.part,
            path: view.path,
            text: view.title,
        });

        let limits = &access.caller.limits;
        let limits = Limit::ALL.into_iter().filter_map(|limit| {
            let glob = limits.of(limit)?;
            Some(format!("{} {}", limit.name(), glob.as_str()))
        });

        Self {
            who: access.name.clone(),
            right: access.right.name(),
            signed_in,
            limits: limits.collect::<Vec<_>>().join(", "),
            nav: nav.collect(),
            now,
        }
    }

    fn render(
        &self,
        template: &str,
        title: &str,
        part: &str,
        data: &dyn Data,
    ) -> Result<String, HttpError> {
        let layout = Layout {
            who: &self.who,
            right: self.right,
            signed_in: self.signed_in,
            limits: &self.limits,
            nav: &self.nav,
            now: self.now.0,
            title,
            part,
            version: env!("CARGO_PKG_VERSION"),
        };

        render::page(template, &layout, data)
    }

    fn failed(&self, error: HttpError) -> Response {
        let data = Notice::Failed {
            status: error.status.as_u16(),
            message: &error.message,
        };
        // The error remains an error if it cannot be shown.
        let text = self
            .render("notice.html", &error_title(error.status), "", &data)
            .unwrap_or_else(|_| error.message.clone());
        let answer = html(error.status, text.into());
        rejected_with(error, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::is_page;
    use super::*;

    #[test]
    fn all_parts_of_the_page_are_small_and_refer_to_no_other_address() {
        let assets = ASSETS.iter().map(|(_, _, text)| *text);
        let all: Vec<&str> = assets
            .chain(render::TEMPLATES.iter().map(|(_, text)| *text))
            .collect();
        assert!(all.iter().map(|text| text.len()).sum::<usize>() < 200_000);
        let assets = ASSETS.iter().map(|(_, _, text)| text.len()).sum::<usize>();
        assert!(assets < 20_000, "{assets}");
        for text in all {
            let outside = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !outside.contains("://") && !outside.contains("\"//"),
                "{text}"
            );
            for inline in ["<style", "style=", " onclick=\"", "javascript:"] {
                assert!(
                    !text.contains(inline),
                    "{inline} does not work under the policy: {text}"
                );
            }
        }
    }

    #[test]
    fn every_view_is_a_path_of_the_page() {
        for view in VIEWS {
            assert!(is_page(view.path), "{}", view.path);
        }
    }
}
