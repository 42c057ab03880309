//! The certificate that the door shows: read from two files, and again when one of them changes.
//!
//! # Invariant
//!
//! Whatever lies in the files, the daemon runs: what cannot be used is said and counted, and the last good pair stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::files::{self, Stamp};
use crate::clock::Micros;
use crate::wire::der;
use crate::wire::signed::Digest;

/// A certificate with its key, ready to be shown.
#[derive(Clone)]
pub(super) struct Certificate {
    /// For the handshakes.
    pub(super) config: Arc<ServerConfig>,
    /// Its hash, which minions sign.
    pub(super) digest: Digest,
    /// Until when it is valid, if it says so in a way that is understood.
    pub(super) not_after: Option<Micros>,
}

/// What a look at the files found.
pub(super) enum Look {
    /// As before.
    Same,
    /// Another good pair, or the first one.
    New(Certificate),
    /// Files that cannot be used; said once for each state of them.
    Bad(String),
}

/// The two files.
pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    seen: Option<[Option<Stamp>; 2]>,
}

impl Files {
    /// Not yet looked at.
    pub(super) fn new(certificate: &Path, key: &Path) -> Self {
        Self { certificate: certificate.to_owned(), key: key.to_owned(), seen: None }
    }

    /// Reads the files if they are not as they were the last time.
    pub(super) fn look(&mut self) -> Look {
        let now = [&self.certificate, &self.key].map(|path| Stamp::of(path).ok());
        if self.seen == Some(now) {
            return Look::Same;
        }
        self.seen = Some(now);
        load(&self.certificate, &self.key).map_or_else(Look::Bad, Look::New)
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Certificate, String> {
    let cannot = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = files::read(certificate).map_err(|error| cannot(certificate, &error))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| cannot(certificate, &format!("no certificate in PEM: {error}")))?;
    let first =
        chain.first().ok_or_else(|| cannot(certificate, &"no certificate in PEM (BEGIN CERTIFICATE)"))?;
    let (digest, not_after) = (sha256(first), der::not_after(first));
    let text = files::read(key).map_err(|error| cannot(key, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| cannot(key, &format!("no private key in PEM without a passphrase: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| format!("{} and {} do not fit: {error}", certificate.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each process of a minion makes one connection: nothing is resumed, so nothing is kept for it.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(Certificate { config: Arc::new(config), digest, not_after })
}

/// SHA-256 of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> Digest {
    let found = ring::digest::digest(&ring::digest::SHA256, bytes);
    found.as_ref().first_chunk().copied().unwrap_or_default()
}
