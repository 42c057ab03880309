//! Requests of tests, which reach the routes without a connection.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::Value as Json;
use tokio::sync::watch;
use tower_service::Service as _;

use super::access::Peer;
use super::listener::Connection;
use super::routes;
use super::server::HttpServer;
use crate::api::call::Ctx;
use crate::config::Config;

/// The name of the listener in requests.
pub(crate) const HOST: &str = "127.0.0.1:1";

/// Who makes a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Visitor {
    /// A peer of the loopback address.
    Network,
    /// A user of the unix socket.
    User(u32),
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header lines.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// The routes of the API, the page, metrics and hooks.
pub(crate) fn routes(config: &Config, ctx: Arc<Ctx>, stop: watch::Receiver<bool>) -> Router {
    routes::routes(&Arc::new(HttpServer::new(ctx, &config.http, stop)))
}

/// Makes a request, and reads the whole response.
pub(crate) async fn visit(
    routes: Router,
    from: Visitor,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Answer {
    let (answer, body) = open(routes, from, method, path, headers, body).await;
    Answer {
        body: body.collect().await.unwrap().to_bytes().to_vec(),
        ..answer
    }
}

/// Makes a request, and returns the head of its response and the body, which may have no end.
pub(crate) async fn open(
    mut routes: Router,
    from: Visitor,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> (Answer, Body) {
    let peer = match from {
        Visitor::Network => Peer::Network {
            from: "127.0.0.1:2".parse().unwrap(),
            is_loopback: true,
        },
        Visitor::User(uid) => Peer::Unix { uid: Some(uid) },
    };

    let mut request = hyper::Request::builder().method(method).uri(path);
    request = request.header("host", HOST);
    for line in headers.lines() {
        let (name, value) = line.split_once(':').unwrap();
        request = request.header(name, value.trim());
    }

    let mut request = request.body(Body::from(body.to_vec())).unwrap();
    request.extensions_mut().insert(peer);
    let connection = Arc::new(Connection::new(peer, None, None));
    request.extensions_mut().insert(connection);

    let Ok(answer) = routes.call(request).await;
    let (head, body) = answer.into_parts();
    let lines = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!("{name}: {value}\r\n")
    });

    let answer = Answer {
        status: head.status.as_u16(),
        head: lines.collect(),
        body: Vec::new(),
    };
    (answer, body)
}
