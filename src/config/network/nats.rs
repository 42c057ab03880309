//! The settings of a connection to NATS.

use std::time::Duration;

use async_nats::ServerAddr;
use serde::{Deserialize, Serialize};

use super::tls::ClientTls;
use crate::config::error::{Invalid, within};
use crate::config::secret::Secret;
use crate::model::word;

/// Where the servers of NATS are, and the login.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// Addresses, of which any one is enough.
    pub servers: Vec<String>,
    /// The user, with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default, with = "word", skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// A token instead of a user.
    #[serde(default, with = "word", skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// TLS.
    #[serde(default, skip_serializing_if = "ClientTls::is_default")]
    pub tls: ClientTls,
    /// Longest wait for a connection, and for a response.
    #[serde(default = "Nats::default_timeout", with = "word")]
    pub timeout: Duration,
}

impl Nats {
    pub(crate) fn default_timeout() -> Duration {
        Duration::from_secs(10)
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.servers.is_empty() {
            return Err(Invalid::new(
                "servers",
                "give at least one address, such as nats://127.0.0.1:4222",
            ));
        }

        // A wrong address is an error at the start and not at each connection.
        for (n, server) in self.servers.iter().enumerate() {
            let at = || format!("servers[{n}]");
            let parsed: Result<ServerAddr, _> = server.parse();
            let accepts = "give an address such as nats://host:4222 or tls://host:4222";

            match parsed {
                // The client is built without WebSockets.
                Ok(address) if !matches!(address.scheme(), "nats" | "tls") => {
                    let problem = format!("{server:?} is not accepted; {accepts}");
                    return Err(Invalid::new(at(), problem));
                }
                Ok(address) if address.username().is_some() || address.password().is_some() => {
                    let problem =
                        "secrets must not be in the address; give user and password, or token";
                    return Err(Invalid::new(at(), problem));
                }
                Ok(_) => {}
                Err(error) => {
                    let problem = format!("{server:?} is not accepted: {error}; {accepts}");
                    return Err(Invalid::new(at(), problem));
                }
            }
        }

        if self.user.is_some() != self.password.is_some()
            || self.user.is_some() && self.token.is_some()
        {
            return Err(Invalid::new(
                "user",
                "user and password belong together, and exclude token; give user and password, or token, or none of them",
            ));
        }

        within(
            "timeout",
            &self.timeout,
            Duration::from_secs(1)..=Duration::from_secs(600),
        )?;
        self.tls.check()
    }
}
