//! The keys under `https`: address, certificate, trusted keys, and read access of minions.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Salt's default for a master's `pki_dir`.
pub(super) const PKI_DIR: &str = "/etc/salt/pki/master";

/// The HTTPS source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsConfig {
    /// Address and port; the source is off without one.
    pub listen: Option<SocketAddr>,
    /// The certificate and its intermediates, PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// The master's `pki_dir`, whose `minions` directory holds the accepted keys.
    pub pki_dir: PathBuf,
    /// Read access of minions.
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

/// What a minion may read through the HTTPS source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinionsRead {
    /// Nothing.
    None,
    /// Its own returns.
    Own,
    /// Every job and every return.
    All,
}

impl MinionsRead {
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Own, Self::All];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::All => "all",
        }
    }
}
