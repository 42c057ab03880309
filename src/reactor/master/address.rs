//! Where a master is, and whose credentials count there.

use std::path::PathBuf;

use crate::config::salt_master::SaltMaster;

/// The address of a master, and the credentials for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterAddress {
    /// Its `interface`, or another name or address of it.
    pub host: String,
    /// Its `ret_port`.
    pub port: u16,
    /// Its `cachedir`, which contains the key.
    pub cachedir: PathBuf,
    /// The user that it runs as.
    pub user: String,
}

impl MasterAddress {
    /// The address of a master with this configuration.
    pub(crate) fn of(master: &SaltMaster) -> Self {
        Self {
            host: master.text("interface").unwrap_or("0.0.0.0").to_owned(),
            port: master
                .int("ret_port")
                .and_then(|port| u16::try_from(port).ok())
                .unwrap_or(4506),
            cachedir: master.cachedir.clone(),
            user: master.user.clone(),
        }
    }

    /// The address to connect to: loopback for a master that listens on all addresses.
    pub(super) fn address(&self) -> (&str, u16) {
        let host = match self.host.as_str() {
            "0.0.0.0" | "" => "127.0.0.1",
            "::" | "[::]" => "::1",
            host => host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .unwrap_or(host),
        };
        (host, self.port)
    }
}

impl std::fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, port) = self.address();
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}
