//! The keys under `https`: address, certificate, trusted keys, and read access of minions.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::word;

/// The minion listener, and the rights of minions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpsConfig {
    /// Address of the minion listener, for `--return saltcellar` and `ext_job_cache` on other hosts; `http.minions` needs no address of its own. Requires `https.certificate` and
    /// `https.key`. A minion signs its calls with its own Salt key, and can store only its own returns (docs/WIRE.md). The daemon must terminate TLS
    /// itself: a signature is valid for this certificate only.
    ///
    /// - value: an address and a port, such as `"0.0.0.0:4580"` or `"[::]:4580"`
    /// - default: none: no minion listener
    /// - example: `"0.0.0.0:4580"`
    #[serde(with = "word")]
    pub listen: Option<SocketAddr>,
    /// The certificate of the minion listener, followed by its intermediates up to an authority that the minions trust. The daemon reads this file and
    /// the key again when they change. If either is invalid, the last valid pair stays in use.
    ///
    /// - value: an absolute path of a PEM file
    /// - default: none; required by https.listen
    /// - example: `/etc/saltcellar/tls/certificate.pem`
    #[serde(with = "word")]
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate (PKCS #8, PKCS #1 or SEC 1, without a passphrase). Only the daemon's user should be able to read it.
    ///
    /// - value: an absolute path of a PEM file
    /// - default: none; required by https.listen
    /// - example: `/etc/saltcellar/tls/key.pem`
    #[serde(with = "word")]
    pub key: Option<PathBuf>,
    /// The master's `pki_dir`. Signatures are verified with the minion's key in its `minions` directory, which `salt-key` maintains. A key that is
    /// deleted or rejected there is no longer accepted.
    ///
    /// - value: an absolute path of a directory
    /// - default: `/etc/salt/pki/master`
    /// - example: `/etc/salt/pki/master`
    #[serde(with = "word")]
    pub pki_dir: PathBuf,
    /// Read access of a minion over HTTPS (for example with `salt-call ret.get_jid saltcellar JID`): nothing, its own returns, or all
    /// jobs and all returns.
    ///
    /// - value: none, own or all
    /// - default: `none`
    /// - example: `own`
    pub read: MinionsRead,
}

impl Default for HttpsConfig {
    fn default() -> Self {
        let (listen, certificate, key, read) = Default::default();
        Self {
            listen,
            certificate,
            key,
            pki_dir: PathBuf::from("/etc/salt/pki/master"),
            read,
        }
    }
}

/// Read access of a minion over HTTPS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MinionsRead {
    /// Nothing.
    #[default]
    None,
    /// Its own returns.
    Own,
    /// Every job and every return.
    All,
}

impl MinionsRead {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "own",
            Self::All => "all",
        }
    }
}
