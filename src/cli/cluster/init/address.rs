//! The address of a NATS server, and the ports that follow from its port.

use std::fmt;
use std::net::IpAddr;

use async_nats::ServerAddr;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    port: u16,
}

impl Address {
    /// From `host` or `host:port`; an IPv6 address is in brackets.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let problem =
            || format!("{text:?} is not accepted; give a host such as n1.example.com or n1:4222");
        let fits = |c: char| c.is_ascii_alphanumeric() || ".:-_[]".contains(c);
        if text.is_empty() || !text.chars().all(fits) {
            return Err(problem());
        }

        let address: ServerAddr = format!("nats://{text}").parse().map_err(|_| problem())?;
        let (host, port) = (address.host().to_owned(), address.port());
        // The ports of the other servers and of the monitor are derived.
        if host.is_empty() || port == 0 || port > u16::MAX - 4_000 {
            return Err(problem());
        }
        Ok(Self { host, port })
    }

    /// In names of files, and of servers in NATS.
    pub(super) fn name(&self) -> String {
        let name = self.to_string();
        let name = name.strip_suffix(":4222").unwrap_or(&name);
        name.replace([':', '[', ']'], "-")
    }

    pub(super) fn is_host(&self, name: &str) -> bool {
        self.host == name
    }

    pub(super) fn monitor(&self) -> String {
        format!("127.0.0.1:{}", self.port + 4_000)
    }

    /// Where the other servers connect to.
    pub(super) fn route(&self) -> Self {
        Self {
            host: self.host.clone(),
            port: self.port + 2_000,
        }
    }

    /// The address to listen on: this one, if it is an address.
    pub(super) fn listen(&self) -> Self {
        let is_address = self.host.parse::<IpAddr>().is_ok();
        let host = if is_address { &self.host } else { "0.0.0.0" };
        Self {
            host: host.to_owned(),
            port: self.port,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
