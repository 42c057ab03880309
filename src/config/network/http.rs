//! The keys under `http`: addresses, certificate, and optional metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::error::Invalid;
use crate::model::word;

/// The HTTP listener.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address of the HTTP listener for metrics, hooks and the API (docs/HTTP.md). On a loopback address `/metrics`, `/healthz` and `/readyz` need no
    /// token. Any other address requires `http.tls`, and a token (`saltcellar tokens create`) for each request but `/healthz` and `/readyz`.
    ///
    /// - value: an address and a port, such as `"127.0.0.1:4581"` or `"[::1]:4581"`
    /// - default: none: no network listener
    /// - example: `"127.0.0.1:4581"`
    #[serde(with = "word")]
    pub listen: Option<SocketAddr>,
    /// A unix socket for the same requests. Its peers have the rights that they have at `socket`, and need no token. Its group and permissions are
    /// those of `socket`.
    ///
    /// - value: an absolute path of at most 107 bytes
    /// - default: none: no unix listener
    /// - example: `/run/saltcellar/http.sock`
    #[serde(with = "word")]
    pub unix: Option<PathBuf>,
    /// The certificate of the network listener, followed by its intermediates, and its private key without a passphrase. The daemon reads these files
    /// again when they change. If either is invalid, the last valid pair stays in use.
    ///
    /// - value: a mapping with the absolute paths `certificate` and `key` of two PEM files
    /// - default: none: HTTP without TLS, which only a loopback address may use
    /// - example: `{certificate: /etc/saltcellar/tls/certificate.pem, key: /etc/saltcellar/tls/key.pem}`
    pub tls: Option<HttpTls>,
    /// Names, besides the address itself and `localhost`, that requests to a listener on a loopback address may use in `Host`. Other names are rejected,
    /// because a web page could make a browser send such requests. A reverse proxy that passes `Host` on needs its name here.
    ///
    /// - value: a list of host names without ports
    /// - default: `[]`
    /// - example: `[salt.example.com]`
    pub hosts: Vec<String>,
    /// Names of the request headers that events of hooks have. Credentials are never part of an event, whether listed or not:
    /// `Authorization`, `Proxy-Authorization`, `Cookie`, `X-Auth-Token`, and every header with a valid token of this daemon.
    ///
    /// - value: a list of names of headers; upper and lower case are the same
    /// - default: none: all headers, as Salt's engine `webhook` passes them
    /// - example: `[Content-Type, X-GitHub-Event, X-Hub-Signature-256]`
    pub hook_headers: Option<Vec<String>>,
    /// Whether `/metrics` has the time and the result of the last `state.apply` or `state.highstate` of every minion. Each minion adds two series.
    ///
    /// - value: true or false
    /// - default: `false`
    /// - example: `true`
    pub minion_metrics: bool,
    /// Whether `http.listen` also serves minions (docs/MINIONS.md), so that they need no second port. Requires `http.listen` and `http.tls`;
    /// `https.pki_dir` and `https.read` apply. `https.listen` is a separate minion listener; only one of the two can serve minions.
    ///
    /// - value: true or false
    /// - default: `false`
    /// - example: `true`
    pub minions: bool,
}

/// Certificate and key of the network listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `certificate` and `key`"
)]
pub struct HttpTls {
    /// PEM file.
    #[serde(with = "word")]
    pub certificate: PathBuf,
    /// PEM file.
    #[serde(with = "word")]
    pub key: PathBuf,
}

impl HttpConfig {
    /// Whether there is a listener.
    pub fn is_on(&self) -> bool {
        self.listen.is_some() || self.unix.is_some()
    }

    /// Rejects a network listener without TLS.
    pub(in crate::config) fn check(&self) -> Result<(), Invalid> {
        // A signature covers the certificate, without which a server could pass a batch on to
        // another one.
        if self.minions && (self.listen.is_none() || self.tls.is_none()) {
            let problem =
                "signatures of minions cover the certificate; give http.listen and http.tls too";
            return Err(Invalid::new("http.minions", problem));
        }

        match self.listen {
            Some(address) if !address.ip().is_loopback() && self.tls.is_none() => {
                Err(Invalid::new(
                    "http.listen",
                    format!(
                        "{address} can be reached from other hosts, which requires TLS and tokens; give http.tls \
                     ({{certificate: FILE, key: FILE}}), or a loopback address such as 127.0.0.1:{}",
                        address.port()
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{assert_errors, assert_round_trip};

    #[test]
    fn a_network_address_requires_a_certificate() {
        assert_errors(&[
            (
                "bus: [/a]\nhttp:\n  listen: 0.0.0.0:4581\n",
                "c.yaml:3: http.listen: 0.0.0.0:4581 can be reached from other hosts, which requires TLS and tokens; give http.tls",
            ),
            (
                "http: {tls: {certificate: /c}}",
                "c.yaml:1: http.tls: missing field `key`",
            ),
            (
                "http: {tls: {certificate: c, key: /k}}",
                "c.yaml:1: http.tls.certificate: \"c\" is not accepted",
            ),
            (
                "http: {listen: '127.0.0.1:4581', minions: true}",
                "c.yaml:1: http.minions: signatures of minions cover the certificate; give http.listen and http.tls too",
            ),
            (
                "http: {tls: {certificate: /c, key: /k}, minions: true}",
                "c.yaml:1: http.minions: signatures of minions",
            ),
        ]);
        assert_round_trip("http: {listen: '[::1]:4581', hosts: [a.example], minion_metrics: true}");
        assert_round_trip(
            "http: {listen: '0.0.0.0:4581', tls: {certificate: /c, key: /k}, minions: true}",
        );
    }
}
