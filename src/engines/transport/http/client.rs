//! The connection to one HTTP service: TLS, secrets, one request at a time.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use ureq::Agent;
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::auth::Signer;
use super::settings::{Header, HttpSettings, RequestCompression};
use crate::base::clock::Micros;
use crate::base::limits::SINK_ANSWER_BYTES_MAX;
use crate::client::secret::Revealed;
use crate::client::tls::{authorities, identity};
use crate::config::ClientTls;
use crate::engines::transport::deliver::Transcript;
use crate::wire::salt_event::HOPS;

/// Timeout for a connection, its TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A response of a destination.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).trim().to_owned()
    }
}

pub(super) struct Client {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    signer: Signer,
}

impl Client {
    /// Reads secrets and certificates. Connects to nothing.
    pub(super) fn new(settings: &HttpSettings, revealed: &Revealed) -> Result<Self, String> {
        let url = revealed
            .url(&settings.url)
            .map_err(|error| error.to_string())?;

        let mut headers = Vec::new();
        for (name, Header(value)) in &settings.headers {
            let value = revealed
                .named(name, value)
                .map_err(|error| error.to_string())?;
            headers.push((name.to_ascii_lowercase(), value));
        }

        if settings.compress == RequestCompression::Gzip {
            headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
        }

        let signer = settings
            .auth
            .signer(revealed)
            .map_err(|error| error.to_string())?;
        let mut config = Agent::config_builder()
            // Statuses are meaningful here, and a redirect could lead a request with its
            // credentials elsewhere.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("saltcellar/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(settings.timeout));

        if is_https(&url) {
            config = config.tls_config(tls(&settings.tls)?);
        }

        Ok(Self {
            agent: config.build().new_agent(),
            url,
            headers,
            signer,
        })
    }

    /// Sends a request and reads the response. An error is a failed connection, or a response that is
    /// not HTTP. Events that have passed through hooks are marked with `hops`, which ends a loop
    /// back to a hook.
    pub(super) fn send(
        &self,
        settings: &HttpSettings,
        body: &[u8],
        hops: u32,
        now: Micros,
        transcript: Option<&mut Transcript>,
    ) -> Result<Answer, String> {
        // Declared here, because it must live as long as the borrowed body.
        let compressed;
        let sent = if settings.compress == RequestCompression::Gzip {
            compressed = gzip(body).map_err(|error| error.to_string())?;
            compressed.as_slice()
        } else {
            body
        };

        let mut headers = self.headers.clone();
        if hops > 0 {
            headers.push((HOPS.to_owned(), hops.to_string()));
        }
        // Last, because some methods sign the other headers and the body as it is sent.
        headers.extend(
            self.signer
                .headers(&settings.method, &self.url, &headers, sent, now)?,
        );

        let mut request = Request::builder()
            .method(settings.method.as_str())
            .uri(&self.url);
        for (name, value) in &headers {
            request = request.header(name, value);
        }

        let request = request.body(sent).map_err(|error| error.to_string())?;
        let answer = self
            .agent
            .run(request)
            .map_err(|error| error.to_string())
            .and_then(read);
        // The body before compression, for people.
        if let Some(transcript) = transcript {
            let head = lines(&headers);
            let text = String::from_utf8_lossy(body);
            transcript.request = format!("{} {}\n{head}\n{text}", settings.method, self.url);
            transcript.response = match &answer {
                Ok(answer) => {
                    let head = lines(&answer.headers);
                    format!("{}\n{head}\n{}", answer.status, answer.text())
                }
                Err(error) => error.clone(),
            };
        }

        answer
    }

    /// Checks that there is an HTTP service at the address.
    pub(super) fn probe(&self, settings: &HttpSettings) -> Result<String, String> {
        let request = Request::head(&self.url)
            .body(())
            .map_err(|error| error.to_string())?;

        let place = settings.place();
        match self.agent.run(request) {
            // Most services accept only the method of their requests.
            Ok(answer) => Ok(format!(
                "{place} responds (status {} to HEAD)",
                answer.status().as_u16()
            )),
            Err(error) => Err(format!("{place} does not respond: {error}")),
        }
    }
}

fn read(mut answer: Response<ureq::Body>) -> Result<Answer, String> {
    let status = answer.status().as_u16();

    let text =
        |value: &ureq::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<_> = answer
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect();
    // The limit keeps a wrong address from filling memory.
    let body = answer.body_mut().with_config().limit(SINK_ANSWER_BYTES_MAX);
    let bytes = body.read_to_vec();
    let bytes =
        bytes.map_err(|error| format!("status {status}, but its body is unreadable: {error}"))?;

    Ok(Answer {
        status,
        headers,
        bytes,
    })
}

/// Headers for people.
fn lines(headers: &[(String, String)]) -> String {
    headers
        .iter()
        .flat_map(|(name, value)| [name.as_str(), ": ", value.as_str(), "\n"])
        .collect()
}

fn is_https(url: &str) -> bool {
    url.get(..6)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

fn gzip(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

fn tls(settings: &ClientTls) -> Result<TlsConfig, String> {
    let own = |certificate: &CertificateDer<'_>| Certificate::from_der(certificate).to_owned();

    let roots: Vec<_> = authorities(settings)?.iter().map(own).collect();

    let identity = match (identity(settings)?, &settings.key) {
        (Some((chain, _)), Some(path)) => {
            // ureq takes keys as PEM only.
            let bytes = std::fs::read(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let key = PrivateKey::from_pem(&bytes)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let chain: Vec<_> = chain.iter().map(own).collect();
            Some(ClientCert::new_with_certs(&chain, key))
        }
        _ => None,
    };

    let config = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(identity)
        .unversioned_rustls_crypto_provider(Arc::new(default_provider()));
    Ok(config.build())
}
