//! The certificate of an address: loaded from two files, and reloaded when one of them changes.
//!
//! # Invariant
//!
//! Invalid files never stop the daemon: they are logged and counted, and the last valid pair stays
//! in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::base::clock::Micros;
use crate::base::limits::PEM_BYTES_MAX;
use crate::config::salt_master::{FileIdentity, read_small};
use crate::wire::signed::{Digest, der, sha256};

/// A loaded certificate with its key.
#[derive(Clone)]
pub(super) struct Certificate {
    /// The configuration for handshakes.
    pub(super) config: Arc<ServerConfig>,
    /// The hash of the certificate, which minions sign.
    pub(super) digest: Digest,
    /// The expiry, if it can be parsed.
    pub(super) not_after: Option<Micros>,
}

/// The result of checking the files.
pub(super) enum CertificateChange {
    /// Unchanged files.
    Same,
    /// A valid new pair.
    New(Certificate),
    /// Invalid files; reported once per change.
    Bad(String),
}

pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    seen: Option<[Option<FileIdentity>; 2]>,
}

impl Files {
    pub(super) fn new(certificate: &Path, key: &Path) -> Self {
        Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            seen: None,
        }
    }

    /// Loads the files if they have changed since the last call.
    pub(super) fn check(&mut self) -> CertificateChange {
        // Identities are taken before the files are read: a file that is replaced in between is
        // reread by the next check.
        let now = [&self.certificate, &self.key].map(|path| FileIdentity::of(path).ok());
        if self.seen == Some(now) {
            return CertificateChange::Same;
        }
        // Noted even if loading fails, because bad files are reported only once per change.
        self.seen = Some(now);
        load(&self.certificate, &self.key)
            .map_or_else(CertificateChange::Bad, CertificateChange::New)
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Certificate, String> {
    let cannot = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());

    let text =
        read_small(certificate, PEM_BYTES_MAX).map_err(|error| cannot(certificate, &error))?;

    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| cannot(certificate, &format!("no certificate in PEM: {error}")))?;
    let first = chain
        .first()
        .ok_or_else(|| cannot(certificate, &"no certificate in PEM (BEGIN CERTIFICATE)"))?;

    // The digest covers the server's certificate and not its chain, because minions sign what they
    // see in the handshake.
    let digest = sha256(first);
    let not_after = der::not_after(first);
    let text = read_small(key, PEM_BYTES_MAX).map_err(|error| cannot(key, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        cannot(
            key,
            &format!("no private key in PEM without a passphrase: {error}"),
        )
    })?;

    // An explicit provider, because a process-wide default would depend on what other crates
    // enable.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            format!(
                "{} and {} do not match: {error}",
                certificate.display(),
                key.display()
            )
        })?;

    // HTTP/1.1 alone: the rules for permits and signed batches assume that requests of a connection
    // are sequential.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each process of a minion makes one connection, so session resumption is off.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});

    Ok(Certificate {
        config: Arc::new(config),
        digest,
        not_after,
    })
}
