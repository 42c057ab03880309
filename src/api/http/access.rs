//! Authentication and authorization of requests: `Host`, `Origin`, token.
//!
//! | peer | rights |
//! |---|---|
//! | unix socket | the rights of its user at the local socket; a token is ignored |
//! | loopback, without a token | `/metrics`, `/healthz`, `/readyz` |
//! | network, without a token | `/healthz`, `/readyz` |
//! | any, without a token | the form of the page for a token |
//! | any, with a token | the scope of the token, within its limits |
//!
//! A token is in `Authorization`, or in `X-Auth-Token` as for salt-api. The cookie of the page contains
//! a session ([`crate::api::sign_in::sessions`]) of a token, or of a user of this host. An address never contains a
//! token: proxies and browsers keep addresses, so `GET /events?token=`, as salt-api documents it,
//! is answered 401.
//!
//! A browser on this host can send requests to a loopback address for any web page. Such
//! requests are rejected by three properties that a page cannot change: a name in `Host` that is
//! not this host's (the page's own name, rebound to 127.0.0.1), a foreign `Origin`, and
//! `Sec-Fetch-Site`. The same is true of the unix socket, which ssh can forward to a port of this
//! host. A link on another site may lead to a view: the response is empty, and the browser loads
//! the view again.
//!
//! # Invariant
//!
//! No request is carried out before its site, its token and its right are checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::Request;
use hyper::header::{self, HeaderMap};
use hyper::{Method, StatusCode, Uri};

use super::answer::HttpError;
use super::cookie::{SESSION_ENDED, had_session, is_confirmed, session_of};
use crate::api::budget::{Budget, Budgets, Client};
use crate::api::call::{Caller, Ctx};
use crate::api::sign_in::sessions::{Holder, SessionId};
use crate::api::sign_in::tokens::Token;
use crate::model::Right;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this host, through the unix socket.
    Unix { uid: Option<u32> },
    /// A peer of the network address.
    Network { from: SocketAddr, is_loopback: bool },
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix { uid: Some(uid) } => write!(f, "uid {uid}"),
            Self::Unix { uid: None } => f.write_str("an unknown uid"),
            Self::Network { from, .. } => from.fmt(f),
        }
    }
}

/// Rights of a request.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// The token's name, or the user; for the audit log.
    pub(super) name: String,
    pub(super) right: Right,
    /// The user, and the limits of the token.
    pub(super) caller: Caller,
    /// The token, which may be revoked while a response is written.
    pub(super) token: Option<Box<Token>>,
    /// The session that the request belongs to; it may end while a response is written.
    pub(super) session: Option<SessionId>,
    /// The budget of the token or the user.
    pub(super) budget: Arc<Budget>,
}

impl Access {
    /// The rights of a user at the local socket.
    fn of_user(ctx: &Ctx, budgets: &Budgets, caller: Caller, name: String) -> Self {
        Self {
            budget: budgets.of(Client::User(caller.uid)),
            name,
            right: ctx.rights.of(&caller),
            caller,
            token: None,
            session: None,
        }
    }

    fn of(token: Token, budgets: &Budgets) -> Self {
        Self {
            budget: budgets.of(Client::Token(token.name.clone())),
            name: format!("token {}", token.name),
            right: token.scope.into(),
            caller: Caller {
                granted: Some(token.scope.into()),
                limits: Arc::new(token.limits.clone()),
                ..Caller::default()
            },
            token: Some(Box::new(token)),
            session: None,
        }
    }

    /// Rejects the rest of a response whose token was revoked or whose session has ended meanwhile. The session counts as used.
    pub(super) fn check_valid(&self, ctx: &Ctx) -> Result<(), HttpError> {
        let (sign_in, now) = (&ctx.sign_in, ctx.archive.clock.monotonic());
        let is_revoked = |token: &Token| !sign_in.tokens.is_valid(token);
        let has_ended = |session| sign_in.sessions.find(session, now).is_none();

        if self.token.as_deref().is_some_and(is_revoked) {
            return Err(token_revoked());
        }
        if self.session.is_some_and(has_ended) {
            return Err(session_ended());
        }
        Ok(())
    }

    /// Rejects a request without the right for it.
    pub(super) fn check(&self, what: &str, needed: Right) -> Result<(), HttpError> {
        if needed <= self.right {
            return Ok(());
        }
        Err(HttpError::forbidden(format!(
            "{what} needs the right `{}`, {} has `{}`",
            needed.name(),
            self.name,
            self.right.name()
        )))
    }
}

/// A token that was revoked after its request had begun.
pub(super) fn token_revoked() -> HttpError {
    let why = "the token was revoked; `saltcellar tokens create NAME --scope read` makes another";
    HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why)
}

fn session_ended() -> HttpError {
    HttpError::new(StatusCode::UNAUTHORIZED, "session_ended", SESSION_ENDED)
}

/// The origin of a request that is not rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    /// This listener, a program, or the address bar of a browser.
    Own,
    /// A link on a page of another site.
    Link,
}

/// Rejects requests that a web page of another site may have caused.
pub(super) fn check_site(
    peer: Peer,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &[String],
) -> Result<Site, HttpError> {
    // With two `Host` headers a proxy before the listener may have checked the other one.
    let mut named = headers.get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    };
    let host = host.ok_or_else(|| HttpError::bad("a request has exactly one `Host`"))?;

    // A request line with an authority counts instead of `Host`; both must agree.
    if uri
        .authority()
        .is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host))
    {
        return Err(HttpError::bad(
            "the request line and `Host` name different hosts",
        ));
    }

    // A name that is rebound to this host lets a web page use the rights that a peer has for
    // being on this host. A peer of the network has none without a token, therefore it may use any
    // name.
    let name = without_port(host);
    if !matches!(
        peer,
        Peer::Network {
            is_loopback: false,
            ..
        }
    ) && !is_local_name(name)
        && !hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    {
        return Err(cross_site(format!(
            "`Host: {host:.100}` is not a name of this listener: use its address or localhost, or add the name to http.hosts"
        )));
    }

    // The port is also compared: a server on another port is another site.
    for origin in headers.get_all(header::ORIGIN) {
        let of_host = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        if !of_host.is_some_and(|(_, at)| at.eq_ignore_ascii_case(host)) {
            return Err(cross_site(
                "requests of web pages of other sites are rejected (`Origin`)".to_owned(),
            ));
        }
    }

    // Browsers also send `Sec-Fetch-Site` with requests that have no `Origin`; a page cannot change
    // it. Programs do not send it.
    for site in headers.get_all("sec-fetch-site") {
        if matches!(site.as_bytes(), b"same-origin" | b"none") {
            continue;
        }
        let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
        let is_link = is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
        // A visit to a view changes nothing, and its response contains no data.
        if *method == Method::GET && is_link && is_page(uri.path()) {
            return Ok(Site::Link);
        }
        let why = "requests of web pages of other sites are rejected (`Sec-Fetch-Site`)";
        return Err(cross_site(why.to_owned()));
    }

    Ok(Site::Own)
}

fn cross_site(message: String) -> HttpError {
    HttpError::new(StatusCode::FORBIDDEN, "cross_site", message)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // Not within an IPv6 address.
        Some((name, port))
            if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

fn is_local_name(name: &str) -> bool {
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The header in which clients of salt-api send their token.
pub(super) const TOKEN_HEADER: &str = "x-auth-token";

/// The first parts of the paths of the page. They need no token: without one, a view is answered by
/// the form for it.
const PARTS: [&str; 13] = [
    "",
    "assets",
    "causes",
    "consumers",
    "durations",
    "events",
    "find",
    "jobs",
    "minions",
    "reactor",
    "sign-in",
    "sign-out",
    "sinks",
];

pub(super) fn is_page(path: &str) -> bool {
    path.strip_prefix('/')
        .is_some_and(|path| PARTS.contains(&path.split('/').next().unwrap_or_default()))
}

/// The paths that need no token.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/login", "/logout"];

/// The rights of the peer; `None` for a path that needs no token, without one.
pub(super) fn authenticate(
    peer: Peer,
    request: &Request,
    ctx: &Ctx,
    budgets: &Budgets,
) -> Result<Option<Access>, HttpError> {
    let tokens = &ctx.sign_in.tokens;
    let path = request.uri().path();
    let headers = request.headers();
    let is_loopback = match peer {
        // The kernel reports the user of a unix peer, so a token in the request is ignored.
        Peer::Unix { uid } => {
            let caller = Caller {
                uid,
                ..Caller::default()
            };
            return Ok(Some(Access::of_user(
                ctx,
                budgets,
                caller,
                peer.to_string(),
            )));
        }
        Peer::Network { is_loopback, .. } => is_loopback,
    };

    let unauthenticated = |message: &str| {
        Err(HttpError::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            message,
        ))
    };

    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let is_open = OPEN.contains(&path) || (is_loopback && path == "/metrics") || is_page(path);

    // A closure, because a session that is looked up counts as used, and a token in a header takes
    // precedence.
    let cookie = || {
        let secret = session_of(headers, ctx.sign_in.sessions.has_tls)?;
        // Another site may have made the browser send the cookie.
        if !is_confirmed(request.method(), headers) {
            return None;
        }
        let (sessions, id) = (&ctx.sign_in.sessions, SessionId::of(secret));
        let access = match sessions.find(id, ctx.archive.clock.monotonic())? {
            Holder::Token(token) if tokens.is_valid(&token) => Access::of(*token, budgets),
            // The token was revoked, so its session ends as well.
            Holder::Token(_) => {
                sessions.end(id);
                return None;
            }

            Holder::User(caller) => {
                let uid = caller
                    .uid
                    .map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
                let name = format!("uid {uid} by a link");
                Access::of_user(ctx, budgets, caller, name)
            }
        };

        Some(Access {
            session: Some(id),
            ..access
        })
    };

    let invalid = "the token is not valid: unknown or revoked";
    let of_salt = headers.get(TOKEN_HEADER).filter(|token| !token.is_empty());

    match (given.next(), given.next()) {
        // A client of salt-api signs in again with its old token in the header.
        (None, _) if of_salt.is_some() && !OPEN.contains(&path) => {
            match of_salt.and_then(|token| tokens.find(token.to_str().ok()?.trim())) {
                Some(token) => Ok(Some(Access::of(token, budgets))),
                None => unauthenticated(invalid),
            }
        }
        // A visitor whose session has ended gets a message for people, and not the one for
        // programs.
        (None, _) => match cookie() {
            Some(access) => Ok(Some(access)),
            None if is_open => Ok(None),
            None if had_session(request.method(), headers, ctx.sign_in.sessions.has_tls) => {
                Err(session_ended())
            }
            None => unauthenticated(
                "this request needs a token: `Authorization: Bearer TOKEN`; `saltcellar tokens create NAME --scope read` makes one",
            ),
        },
        (Some(given), None) => {
            let text = given.to_str().ok().and_then(|text| text.split_once(' '));
            let token = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            match token.and_then(|(_, token)| tokens.find(token.trim())) {
                Some(token) => Ok(Some(Access::of(token, budgets))),
                None => unauthenticated(invalid),
            }
        }
        (Some(_), Some(_)) => unauthenticated("more than one `Authorization`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn site(host: &str, others: &[(&str, &str)], loopback: bool) -> Result<Site, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", host)].iter().chain(others) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let peer = Peer::Network {
            from: "192.0.2.1:5".parse().unwrap(),
            is_loopback: loopback,
        };
        check_site(
            peer,
            &Method::GET,
            &Uri::from_static("/metrics"),
            &headers,
            &["known.example".to_owned()],
        )
        .map_err(|error| error.message)
    }

    #[test]
    fn only_names_of_this_machine_reach_a_loopback_listener() {
        for host in [
            "localhost",
            "LOCALHOST:4581",
            "127.0.0.1:4581",
            "127.1.2.3",
            "[::1]:4581",
            "Known.example:1",
        ] {
            assert_eq!(site(host, &[], true), Ok(Site::Own), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:4581",
            "127.0.0.1.evil.example",
            "192.0.2.9",
            "localhost.evil",
            "",
        ] {
            assert!(
                site(host, &[], true)
                    .unwrap_err()
                    .contains("is not a name of this listener"),
                "{host}"
            );
            assert_eq!(
                site(host, &[], false),
                Ok(Site::Own),
                "{host}: a network listener has tokens and TLS"
            );
        }
        assert!(
            site("a", &[("host", "b")], false)
                .unwrap_err()
                .contains("exactly one")
        );
    }

    #[test]
    fn requests_of_other_sites_are_rejected() {
        for origin in [
            "https://evil.example",
            "null",
            "http://localhost:9",
            "http://localhost:4581.evil.example",
        ] {
            let error = site("localhost:4581", &[("origin", origin)], true).unwrap_err();
            assert!(error.contains("`Origin`"), "{origin}: {error}");
        }
        assert_eq!(
            site(
                "localhost:4581",
                &[("origin", "http://localhost:4581")],
                true
            ),
            Ok(Site::Own)
        );
        for (from, passes) in [
            ("same-origin", true),
            ("none", true),
            ("same-site", false),
            ("cross-site", false),
        ] {
            assert_eq!(
                site("localhost", &[("sec-fetch-site", from)], true).is_ok(),
                passes,
                "{from}"
            );
        }
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let peer = Peer::Unix { uid: None };
        let uri = Uri::from_static("http://evil.example/metrics");
        let rejected = |uri: &Uri, headers: &HeaderMap| {
            check_site(peer, &Method::GET, uri, headers, &[])
                .unwrap_err()
                .message
        };
        assert!(rejected(&uri, &headers).contains("different hosts"));
        let rebound =
            HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("evil.example"))]);
        assert!(rejected(&Uri::from_static("/"), &rebound).contains("not a name of this listener"));
    }

    #[test]
    fn a_link_on_another_site_leads_to_a_view_and_to_nothing_else() {
        let peer = Peer::Unix { uid: None };
        let of = |method: &Method, uri: &'static str, mode: &'static str, dest: &'static str| {
            let headers = [
                ("host", "localhost"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            let headers = headers.map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            check_site(
                peer,
                method,
                &Uri::from_static(uri),
                &HeaderMap::from_iter(headers),
                &[],
            )
            .ok()
        };
        assert_eq!(
            of(&Method::GET, "/jobs/1", "navigate", "document"),
            Some(Site::Link)
        );
        for (method, uri, mode, dest) in [
            (Method::POST, "/sign-in", "navigate", "document"),
            (Method::GET, "/api/v1/jobs", "navigate", "document"),
            (Method::GET, "/metrics", "navigate", "document"),
            (Method::GET, "/jobs", "navigate", "iframe"),
            (Method::GET, "/jobs", "no-cors", "script"),
        ] {
            assert_eq!(
                of(&method, uri, mode, dest),
                None,
                "{method} {uri} {mode} {dest}"
            );
        }
    }

    #[test]
    fn only_paths_of_the_page_are_open() {
        for path in ["/", "/jobs", "/jobs/1", "/sign-in", "/assets/page.js"] {
            assert!(is_page(path), "{path}");
        }
        for path in [
            "/api/v1/jobs",
            "/metrics",
            "/hook/a",
            "/jobsx",
            "jobs",
            "/nowhere",
        ] {
            assert!(!is_page(path), "{path}");
        }
    }
}
