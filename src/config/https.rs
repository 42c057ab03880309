//! The keys of the HTTPS door: where it listens, what it shows, whose keys it believes, what may be read.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value as Json;

use super::keys::{Bad, refused, text};
use super::raw::Value;

/// Where a master keeps its minions' keys unless told otherwise.
pub(super) const PKI_DIR: &str = "/etc/salt/pki/master";

/// The HTTPS door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsConfig {
    /// Address and port; without one there is no such door.
    pub listen: Option<SocketAddr>,
    /// The certificate and those that vouch for it, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key: Option<PathBuf>,
    /// The master's `pki_dir`: `minions` below it holds the accepted keys.
    pub pki_dir: PathBuf,
    /// What a minion may read.
    pub read: MinionsRead,
}

impl Default for HttpsConfig {
    fn default() -> Self {
        Self {
            listen: None,
            certificate: None,
            key: None,
            pki_dir: PathBuf::from(PKI_DIR),
            read: MinionsRead::None,
        }
    }
}

/// What a minion may read through the HTTPS door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinionsRead {
    /// Nothing.
    None,
    /// What it returned itself.
    Own,
    /// Every job and every return.
    All,
}

impl MinionsRead {
    const ALL: [Self; 3] = [Self::None, Self::Own, Self::All];

    /// As in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::All => "all",
        }
    }
}

pub(super) fn address(value: &Value) -> Result<Option<SocketAddr>, Bad> {
    text(value)?.parse().map(Some).or_else(|_| refused(value))
}

pub(super) fn show_address(address: Option<SocketAddr>) -> Json {
    address.map_or(Json::Null, |address| Json::from(address.to_string()))
}

pub(super) fn minions_read(value: &Value) -> Result<MinionsRead, Bad> {
    let name = text(value)?;
    MinionsRead::ALL.into_iter().find(|read| read.name() == name).map_or_else(|| refused(value), Ok)
}
