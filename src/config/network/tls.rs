//! The option `tls` of everything that connects to another program.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::error::Invalid;
use crate::model::word;

/// How a client verifies its peer, and what it shows of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientTls {
    /// Certificates of authorities to trust instead of the system's.
    #[serde(with = "word", skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The client's certificate, with its chain.
    #[serde(with = "word", skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key.
    #[serde(with = "word", skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl ClientTls {
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.certificate.is_some() == self.key.is_some() {
            return Ok(());
        }
        let problem = "a client's certificate needs its key; give both certificate and key";
        Err(Invalid::new("tls", problem))
    }

    /// True if nothing is set.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
