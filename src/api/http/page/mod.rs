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

mod causes;
mod job;
mod layout;
mod overview;
mod render;
mod response;
mod session;
mod table;
mod views;

pub(super) use self::session::arrival;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, RawPathParams, State};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode, Uri};
use parking_lot::Mutex;

use self::layout::{Layout, Notice};
use self::render::Data;
use self::response::{LocalPath, html, see_other};
use self::table::{VIEWS, View};
use self::views::Ask;
use super::access::{Access, Peer};
use super::answer::{HttpError, tagged_as};
use super::cookie::had_session;
use super::salt_api;
use super::server::{HttpServer, Server, rejected_with};
use super::v1;
use crate::api::call::reactor::ReplayCalls;
use crate::base::limits::HTTP_ANSWER_RESERVE;

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
        .route("/reactor/reactions/{seq}/replay", post(replay));

    for (path, kind, text) in ASSETS {
        let asset = move |headers: HeaderMap| async move {
            tagged_as(kind, Bytes::from_static(text.as_bytes()), &headers)
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

                // It holds the answers of all operations of a view.
                Box::pin(show(view, &server, access, peer, path, &uri)).await
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
) -> Response {
    let frame = Frame::of(&access, peer);

    let shown = async {
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Query(query) =
            query.map_err(|error| HttpError::bad(format!("the query is malformed: {error}")))?;

        // Reserved before the operations: their answers are in memory until the page is rendered.
        let room = Mutex::new(access.budget.room(HTTP_ANSWER_RESERVE).await?);

        let data = view
            .load(&Ask {
                server,
                access: &access,
                room: &room,
                path: &path,
                query: &query,
            })
            .await?;

        // Rendering takes processor time, so it has a place in the reader's budget as a search has.
        let page = frame.clone();
        let text = server
            .carry_out(&access.budget, move || {
                page.render(view.template, view.title, view.part, &*data)
            })
            .await??;
        Ok(room.into_inner().fill(text.into_bytes())?)
    };

    match Box::pin(shown).await {
        Ok(body) => html(StatusCode::OK, body),
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

            // A redirect, so that reloading the page does not repeat the replay.
            see_other(&LocalPath::or_root(&format!(
                "/reactor/reactions/{seq}?replayed={}",
                answer.count
            )))
        }
        Err(error) => Frame::of(&access, peer).failed(error),
    }
}

/// The reader of a view, as every view shows it.
#[derive(Debug, Clone)]
struct Frame {
    who: String,
    right: &'static str,
    /// True if the reader has signed in, by a token or a link.
    signed_in: bool,
}

impl Frame {
    fn of(access: &Access, peer: Peer) -> Self {
        let signed_in = matches!(peer, Peer::Network { .. });
        Self {
            who: access.name.clone(),
            right: access.right.name(),
            signed_in,
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
            .render("notice.html", "Error", "", &data)
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
