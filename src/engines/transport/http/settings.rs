//! The options of the transport.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::auth::Auth;
use super::items::ItemErrors;
use crate::config::ClientTls;
use crate::config::Text;
use crate::config::{Invalid, within};
use crate::engines::transport::item::Item;
use crate::model::word::{self, MIB};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpSettings {
    /// The address. It may be a secret, as that of a chat's webhook is.
    #[serde(with = "word")]
    pub(super) url: Text,
    #[serde(default = "post")]
    pub(super) method: String,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Header>,
    #[serde(default)]
    pub(super) body: Framed,
    #[serde(default)]
    pub(super) auth: Auth,
    #[serde(default)]
    pub(super) compress: RequestCompression,
    #[serde(default = "thirty_seconds", with = "word")]
    pub(super) timeout: Duration,
    /// Statuses that count as delivered, besides 2xx.
    #[serde(default)]
    pub(super) accept: Vec<u16>,
    #[serde(default)]
    pub(super) item_errors: Option<ItemErrors>,
    #[serde(default)]
    pub(super) tls: ClientTls,
    /// The limits of a request, for presets.
    #[serde(default)]
    pub(super) limits: Limits,
}

/// The value of a header.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Header(#[serde(with = "word")] pub(super) Text);

/// The bytes around the items of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Framed {
    pub(super) prefix: String,
    pub(super) separator: String,
    pub(super) suffix: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RequestCompression {
    #[default]
    None,
    Gzip,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) count: usize,
    #[serde(with = "word")]
    pub(super) bytes: usize,
    #[serde(with = "word")]
    pub(super) time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            count: 500,
            bytes: usize::try_from(MIB).unwrap_or(usize::MAX),
            time: Duration::from_secs(1),
        }
    }
}

fn post() -> String {
    "POST".to_owned()
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

impl HttpSettings {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        // A secret address is only known when it is read.
        if let Text::Plain(url) = &self.url {
            let uri = url.parse::<ureq::http::Uri>().ok();
            let is_http =
                |uri: &ureq::http::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
            if !uri.is_some_and(|uri| is_http(&uri) && uri.host().is_some()) {
                return Err(Invalid::new(
                    "url",
                    format!("{url:?} is not accepted; give an http or https address"),
                ));
            }
        }

        // Other methods have no body, or no meaning with one.
        if !matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") {
            return Err(Invalid::new(
                "method",
                format!("{:?} is not accepted; give POST, PUT or PATCH", self.method),
            ));
        }

        // A header that HTTP does not allow would fail each request.
        for (name, Header(value)) in &self.headers {
            let is_name = ureq::http::HeaderName::try_from(name.as_str()).is_ok();
            let is_value = match value {
                Text::Plain(value) => ureq::http::HeaderValue::try_from(value.as_str()).is_ok(),
                Text::Secret(_) => true,
            };
            if !is_name || !is_value {
                return Err(Invalid::new(
                    format!("headers.{name}"),
                    "not a header of HTTP",
                ));
            }
        }

        self.tls.check()?;
        within(
            "timeout",
            &self.timeout,
            Duration::from_secs(1)..=Duration::from_secs(600),
        )?;
        within("limits.count", &self.limits.count, 1..)?;
        self.auth.check()
    }

    /// The address in a few words, without secrets.
    pub(super) fn place(&self) -> String {
        // A secret address is shown as the place where it is.
        match &self.url {
            // User, password and query may be secret.
            Text::Plain(url) => url.parse::<ureq::http::Uri>().map_or_else(
                |_| String::new(),
                |uri| {
                    let port = uri
                        .port()
                        .map(|port| format!(":{port}"))
                        .unwrap_or_default();
                    let [scheme, host] =
                        [uri.scheme_str(), uri.host()].map(Option::unwrap_or_default);
                    format!("{scheme}://{host}{port}{}", uri.path())
                },
            ),
            secret @ Text::Secret(_) => word::Word::show(secret).unwrap_or_default(),
        }
    }
}

impl Framed {
    pub(super) fn frame(&self, items: &[Item]) -> Vec<u8> {
        let Self {
            prefix,
            separator,
            suffix,
        } = self;

        let len = items
            .iter()
            .map(|item| item.bytes.len() + separator.len())
            .sum::<usize>();
        let mut body = Vec::with_capacity(len + prefix.len() + suffix.len());

        body.extend_from_slice(prefix.as_bytes());
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                body.extend_from_slice(separator.as_bytes());
            }
            body.extend_from_slice(&item.bytes);
        }

        body.extend_from_slice(suffix.as_bytes());
        body
    }
}
