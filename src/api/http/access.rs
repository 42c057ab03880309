//! Who makes a request, and whether it may: `Host`, `Origin`, token.
//!
//! | peer | rights |
//! |---|---|
//! | unix socket | those of its user at the local socket; a token is ignored |
//! | loopback, without a token | `/metrics`, `/healthz`, `/readyz` |
//! | network, without a token | `/healthz`, `/readyz` |
//! | any, with a token | the scope of the token, within its limits |
//!
//! A browser on this machine can send requests to a loopback address for any web page. Such requests are rejected by three properties that a page cannot
//! change: a name in `Host` that is not this machine's (the page's own name, rebound to 127.0.0.1), a foreign `Origin`, and `Sec-Fetch-Site`.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{self, HeaderMap};
use hyper::{StatusCode, Uri};

use super::answer::HttpError;
use super::tokens::{TokenLimits, Tokens};
use crate::api::call::{Caller, Rights};
use crate::model::Right;

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this machine, through the unix socket.
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

/// What a request may do.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// The token's name, or the user; for the audit log.
    pub(super) name: String,
    pub(super) right: Right,
    pub(super) limits: TokenLimits,
    pub(super) caller: Caller,
}

impl Access {
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

/// Rejects requests that a web page of another site may have caused.
pub(super) fn check_site(
    peer: Peer,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &[String],
) -> Result<(), HttpError> {
    let mut named = headers.get_all(header::HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    };
    let host = host.ok_or_else(|| HttpError::bad("a request has exactly one `Host`"))?;
    // A request line with an authority counts instead of `Host`; both must agree.
    if uri.authority().is_some_and(|authority| !authority.as_str().eq_ignore_ascii_case(host)) {
        return Err(HttpError::bad("the request line and `Host` name different hosts"));
    }
    let name = without_port(host);
    if let Peer::Network { is_loopback: true, .. } = peer
        && !is_local_name(name)
        && !hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    {
        return Err(cross_site(format!(
            "`Host: {host:.100}` is not a name of this listener: use its address or localhost, or add the name to http.hosts"
        )));
    }
    for origin in headers.get_all(header::ORIGIN) {
        let of_host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if !of_host.is_some_and(|(_, at)| at.eq_ignore_ascii_case(host)) {
            return Err(cross_site(
                "requests of web pages of other sites are rejected (`Origin`)".to_owned(),
            ));
        }
    }
    for site in headers.get_all("sec-fetch-site") {
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            let why = "requests of web pages of other sites are rejected (`Sec-Fetch-Site`)";
            return Err(cross_site(why.to_owned()));
        }
    }
    Ok(())
}

fn cross_site(message: String) -> HttpError {
    HttpError::new(StatusCode::FORBIDDEN, "cross_site", message)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // Not within an IPv6 address.
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

fn is_local_name(name: &str) -> bool {
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The paths that need no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Who makes the request; `None` for a path that needs no token, without one.
pub(super) fn authenticate(
    peer: Peer,
    path: &str,
    headers: &HeaderMap,
    tokens: &Tokens,
    rights: &Rights,
) -> Result<Option<Access>, HttpError> {
    let is_loopback = match peer {
        Peer::Unix { uid } => {
            let caller = Caller { uid, pid: None };
            let right = rights.of(caller);
            return Ok(Some(Access {
                name: peer.to_string(),
                right,
                limits: TokenLimits::default(),
                caller,
            }));
        }
        Peer::Network { is_loopback, .. } => is_loopback,
    };
    let unauthenticated =
        |message: &str| Err(HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", message));
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    match (given.next(), given.next()) {
        (None, _) if OPEN.contains(&path) || (is_loopback && path == "/metrics") => Ok(None),
        (None, _) => unauthenticated(
            "this request needs a token: `Authorization: Bearer TOKEN`; `saltcellar token create NAME` makes one",
        ),
        (Some(given), None) => {
            let text = given.to_str().ok().and_then(|text| text.split_once(' '));
            let token = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            match token.and_then(|(_, token)| tokens.find(token.trim())) {
                Some(token) => Ok(Some(Access {
                    name: format!("token {}", token.name),
                    right: token.scope.into(),
                    limits: token.limits,
                    caller: Caller::default(),
                })),
                None => unauthenticated("the token is not valid: unknown or revoked"),
            }
        }
        (Some(_), Some(_)) => unauthenticated("more than one `Authorization`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn site(host: &str, others: &[(&str, &str)], loopback: bool) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", host)].iter().chain(others) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let peer = Peer::Network { from: "192.0.2.1:5".parse().unwrap(), is_loopback: loopback };
        check_site(peer, &Uri::from_static("/metrics"), &headers, &["known.example".to_owned()])
            .map_err(|error| error.message)
    }

    #[test]
    fn only_names_of_this_machine_reach_a_loopback_listener() {
        for host in
            ["localhost", "LOCALHOST:4581", "127.0.0.1:4581", "127.1.2.3", "[::1]:4581", "Known.example:1"]
        {
            assert_eq!(site(host, &[], true), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "evil.example:4581", "127.0.0.1.evil.example", "192.0.2.9", "localhost.evil", ""]
        {
            assert!(site(host, &[], true).unwrap_err().contains("is not a name of this listener"), "{host}");
            assert_eq!(site(host, &[], false), Ok(()), "{host}: a network listener has tokens and TLS");
        }
        assert!(site("a", &[("host", "b")], false).unwrap_err().contains("exactly one"));
    }

    #[test]
    fn requests_of_other_sites_are_rejected() {
        for origin in
            ["https://evil.example", "null", "http://localhost:9", "http://localhost:4581.evil.example"]
        {
            let error = site("localhost:4581", &[("origin", origin)], true).unwrap_err();
            assert!(error.contains("`Origin`"), "{origin}: {error}");
        }
        assert_eq!(site("localhost:4581", &[("origin", "http://localhost:4581")], true), Ok(()));
        for (from, passes) in
            [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)]
        {
            assert_eq!(site("localhost", &[("sec-fetch-site", from)], true).is_ok(), passes, "{from}");
        }
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let peer = Peer::Unix { uid: None };
        let uri = Uri::from_static("http://evil.example/metrics");
        assert!(check_site(peer, &uri, &headers, &[]).unwrap_err().message.contains("different hosts"));
    }
}
