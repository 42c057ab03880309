//! TLS of transports: the option `tls`, and the configuration of a client made of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::config::Invalid;
use crate::model::word;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tls {
    /// Certificates of authorities to trust instead of the machine's.
    #[serde(with = "word")]
    ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    #[serde(with = "word")]
    certificate: Option<PathBuf>,
    #[serde(with = "word")]
    pub(super) key: Option<PathBuf>,
}

/// The certificate of a client, with its chain, and its key.
pub(super) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Tls {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.certificate.is_some() == self.key.is_some() {
            return Ok(());
        }
        let problem = "a client's certificate needs its key; give both certificate and key";
        Err(Invalid::new("tls", problem))
    }

    pub(super) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        if let Some(path) = &self.ca {
            return certificates(path);
        }

        let found = rustls_native_certs::load_native_certs();
        // Some unreadable certificates are normal; none at all would reject every server without a
        // reason.
        if found.certs.is_empty() {
            let errors = found
                .errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ");
            return Err(format!(
                "no certificate of an authority on this machine: {errors}; set tls.ca"
            ));
        }
        Ok(found.certs)
    }

    pub(super) fn identity(&self) -> Result<Option<Identity>, String> {
        let (Some(certificate), Some(path)) = (&self.certificate, &self.key) else {
            return Ok(None);
        };
        let key = PrivateKeyDer::from_pem_file(path)
            .map_err(|error| format!("cannot read the key {}: {error}", path.display()))?;
        Ok(Some((certificates(certificate)?, key)))
    }

    pub(super) fn client(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        // The machine's store may have certificates of forms that rustls does not accept.
        let (accepted, ignored) = roots.add_parsable_certificates(self.authorities()?);
        if accepted == 0 {
            return Err(format!(
                "none of {ignored} certificates of authorities is acceptable"
            ));
        }

        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);

        match self.identity()? {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| error.to_string()),
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// The certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| format!("cannot read {}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        Err(format!("{} has no certificate", path.display()))
    } else {
        Ok(found)
    }
}
