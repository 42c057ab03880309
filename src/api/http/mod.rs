//! HTTP: health, metrics, hooks, the API and the page, and the requests of minions (docs/HTTP.md,
//! docs/MINIONS.md).
//!
//! One server ([`listener`]) serves every address. `http.listen` and the unix socket have all
//! routes except the minion routes, which `http.minions` adds. `https.listen` has only the minion
//! routes.
//!
//! # Limits
//!
//! Connections, heads, bodies, idle time and the bytes of unread responses are bounded
//! (`base/limits/http.rs`). A request is carried out by a thread for blocking work, at most
//! `HTTP_CALLS_MAX` at the same time. A slow reader holds the memory of its response and no thread.
//!
//! # Invariant
//!
//! A request is checked in this order: site, token, right, parameters. A request of a minion is
//! checked by its signature instead. No part of a rejected request is carried out.

mod access;
mod answer;
mod attention;
mod cookie;
mod encoding;
mod hook;
#[cfg(test)]
pub(crate) mod in_process;
mod listener;
pub mod metrics;
mod minions;
mod page;
mod routes;
mod salt_api;
mod server;
mod shared_read;
mod stream;
pub mod v1;

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::watch;

use self::listener::{ConnectionServer, NetworkListener};
use self::minions::Minions;
use self::server::HttpServer;
use super::call::Ctx;
use super::monitor::ListenerMonitor;
use crate::base::limits::HTTP_PEERS_MAX;
use crate::config::{Config, HttpTls};
use crate::store::Intake;
use crate::wire::unix_listener::Listener;

/// Serves all addresses until `stop` turns true, then waits for requests in flight.
pub async fn serve(
    config: Config,
    unix: Option<Listener>,
    ctx: Arc<Ctx>,
    intake: Intake,
    stop: watch::Receiver<bool>,
) {
    let (http, https) = (&config.http, &config.https);
    let minions = config
        .serves_minions()
        .then(|| Arc::new(Minions::new(ctx.clone(), intake, https)));
    let routes = routes::routes(&Arc::new(HttpServer::new(ctx.clone(), http, stop.clone())));

    let open = |kind, address, routes, monitor: &ListenerMonitor| {
        NetworkListener::new(
            kind,
            address,
            routes,
            (ctx.clone(), monitor.clone()),
            stop.clone(),
        )
        .serve()
    };

    let network = async {
        let (Some(listen), Some(monitor)) = (http.listen, &ctx.process.http) else {
            return;
        };

        // On loopback `/metrics` works without a token. On any other address only the health checks
        // do, which hardly anyone wants.
        if !listen.ip().is_loopback() && ctx.sign_in.tokens.is_empty() {
            tracing::warn!(
                address = %listen,
                "HTTP listener has no token, programs cannot use its API: create one with `saltcellar tokens create`, or sign in with `saltcellar page`"
            );
        }

        // The configuration allows only one of `http.minions` and `https.listen`, because the
        // connections of one minion have a single count.
        let routes = match &minions {
            Some(minions) if http.minions => routes
                .clone()
                .merge(minions::routes(minions.clone(), false)),
            _ => routes.clone(),
        };

        open(&listener::API, (listen, http.tls.clone()), routes, monitor).await;
    };

    let local = async {
        let Some(listener) = unix else { return };
        let (ctx, routes, stop) = (ctx.clone(), routes.clone(), stop.clone());
        let server = Arc::new(ConnectionServer {
            kind: &listener::API,
            ctx,
            routes,
            stop: stop.clone(),
        });

        let counters = (listener::API.counters)(&server.ctx.archive.metrics);
        let handle = |stream: UnixStream| {
            counters.accepted.add(1);
            server.clone().serve_unix(stream)
        };

        listener
            .serve(HTTP_PEERS_MAX, stop, |_| counters.rejected.add(1), handle)
            .await;
    };

    let of_minions = async {
        if let (Some(listen), Some(monitor), Some(minions)) =
            (https.listen, &ctx.process.https, &minions)
            && let (Some(certificate), Some(key)) = (https.certificate.clone(), https.key.clone())
        {
            let address = (listen, Some(HttpTls { certificate, key }));
            open(
                &listener::MINIONS,
                address,
                minions::routes(minions.clone(), true),
                monitor,
            )
            .await;
        }
    };

    // Each part returns after `stop`, once its requests in flight have got their responses.
    tokio::join!(network, local, of_minions);
}
