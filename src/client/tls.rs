//! TLS of a client: certificates, and the configuration of rustls made of the option `tls`.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config::ClientTls;

/// The certificate of a client, with its chain, and its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The authorities to trust.
pub(crate) fn authorities(tls: &ClientTls) -> Result<Vec<CertificateDer<'static>>, String> {
    if let Some(path) = &tls.ca {
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

/// The certificate that the client shows, if any.
pub(crate) fn identity(tls: &ClientTls) -> Result<Option<Identity>, String> {
    let (Some(certificate), Some(path)) = (&tls.certificate, &tls.key) else {
        return Ok(None);
    };
    let key = PrivateKeyDer::from_pem_file(path)
        .map_err(|error| format!("cannot read the key {}: {error}", path.display()))?;
    Ok(Some((certificates(certificate)?, key)))
}

/// The configuration of a client.
pub(crate) fn client(tls: &ClientTls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    // The host's store may contain certificates of forms that rustls does not accept.
    let (accepted, ignored) = roots.add_parsable_certificates(authorities(tls)?);
    if accepted == 0 {
        return Err(format!(
            "none of {ignored} certificates of authorities is acceptable; give others with tls.ca"
        ));
    }

    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);

    // Most servers ask for no certificate, so none is an ordinary case.
    match identity(tls)? {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| error.to_string()),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| format!("cannot read {}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        Err(format!(
            "{} contains no certificate in PEM (BEGIN CERTIFICATE)",
            path.display()
        ))
    } else {
        Ok(found)
    }
}
