//! The transport `http`: one request for several items, or for each.
//!
//! ```text
//! request body   prefix item separator item ... suffix
//! ```
//!
//! | response | meaning |
//! |---|---|
//! | 2xx, or a status in `accept` | delivered, except for the items that [`items`] finds in the
//! response |
//! | 400, 413, 415, 422 | refused: parts are sent alone until the rejected item is found |
//! | any other, or none | sent again later; `Retry-After` is honoured |

mod auth;
mod client;
mod items;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value as Json;

use self::auth::Auth;
use self::client::Client;
use self::items::ItemErrors;
use super::tls::Tls;
use super::{
    BoxedDestination, DeliverError, Dependencies, Destination, Item, Rejected, RequestLimits,
    Transcript, Transport,
};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::SINK_RETRY_AFTER_MAX;
use crate::config::{Invalid, within};
use crate::engines::framing::Framing;
use crate::engines::kind::{Kind, options};
use crate::engines::secret::{Revealed, Text};
use crate::model::word::{self, MIB};

const DOC: &str = r"Requests to an HTTP service, with one or several items each.

| option | value | default |
|---|---|---|
| `url` | `http` or `https` address; may be a secret | required |
| `method` | POST, PUT or PATCH | POST |
| `headers` | names and values, which may be secrets | none |
| `body` | `prefix`, `separator` and `suffix` around the items | none |
| `limits` | `count`, `bytes`, `time`, as `batch` of the sink | `{count: 500, bytes: 1MiB, time: 1s}` |
| `compress` | `gzip` or `none` | `none` |
| `timeout` | for one request, 1s to 10m | 30s |
| `auth` | one of `bearer: SECRET`; `token: {secret, scheme}`; `basic: {user, password}`; `hmac: {key, header, prefix}` (SHA-256 of the body; `prefix: ~` for none); `aws: {region, service, access_key_id, secret_access_key, session_token}` (Signature Version 4) | none |
| `accept` | statuses that count as delivered, besides 2xx | none |
| `item_errors` | where an answer has results of items: `list` (path), `id` (path to the event's sequence number, which stands for all of its items, or to the item's id; without it the list has all items in order), `status`, `reason`, `permanent` (paths), `accept` (statuses) | none |
| `tls` | `ca`: authorities in a PEM file instead of the machine's; `certificate` and `key` of the client | the machine's |

If `body` has a line break, as for NDJSON, a line break in a value is written as `\n` or `\r`, two characters; those of the template itself stay. `tojson` does so in any case.

Answers 400, 413, 415 and 422 divide a request until the rejected item is alone, which becomes a dead letter. All other failures are repeated; `Retry-After` is honoured up to an hour.";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "http",
    doc: DOC,
    example: "{url: 'https://logs.example.com/ingest', method: POST, headers: {content-type: application/json}, \
              body: {prefix: '[', separator: ',', suffix: ']'}, auth: {bearer: 'file:/etc/saltcellar/token'}, \
              compress: gzip, timeout: 30s, accept: [409], tls: {ca: /etc/ssl/own-ca.pem}, \
              item_errors: {list: items, status: '*.status', reason: '*.error.reason', accept: [409]}}",
    build: |given| {
        let http: HttpDestination = options(given)?;
        http.check()?;
        Ok(Box::new(http))
    },
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpDestination {
    /// The address. It may be a secret, as that of a chat's webhook is.
    #[serde(with = "word")]
    url: Text,
    #[serde(default = "post")]
    method: String,
    #[serde(default)]
    headers: BTreeMap<String, Header>,
    #[serde(default)]
    body: Framed,
    #[serde(default)]
    auth: Auth,
    #[serde(default)]
    compress: RequestCompression,
    #[serde(default = "thirty_seconds", with = "word")]
    timeout: Duration,
    /// Statuses that count as delivered, besides 2xx.
    #[serde(default)]
    accept: Vec<u16>,
    #[serde(default)]
    item_errors: Option<ItemErrors>,
    #[serde(default)]
    tls: Tls,
    /// The limits of a request, for presets.
    #[serde(default)]
    limits: Limits,
}

/// The value of a header.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
struct Header(#[serde(with = "word")] Text);

/// The bytes around the items of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Framed {
    prefix: String,
    separator: String,
    suffix: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestCompression {
    #[default]
    None,
    Gzip,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    count: usize,
    #[serde(with = "word")]
    bytes: usize,
    #[serde(with = "word")]
    time: Duration,
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

impl HttpDestination {
    fn check(&self) -> Result<(), Invalid> {
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
}

impl Destination for HttpDestination {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(HttpTransport {
            settings: self.clone(),
            clock: deps.clock.clone(),
            secrets: deps.secrets.clone(),
            client: None,
        })
    }

    fn describe(&self) -> String {
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

    fn framing(&self) -> Framing {
        let Framed {
            prefix,
            separator,
            suffix,
        } = &self.body;
        Framing::of_separators([prefix.as_str(), separator, suffix])
    }

    fn limits(&self) -> RequestLimits {
        let Limits { count, bytes, time } = self.limits;
        RequestLimits { count, bytes, time }
    }
}

struct HttpTransport {
    settings: HttpDestination,
    clock: Clock,
    secrets: Revealed,
    /// Made at the first delivery, and again after a rejected credential: its file may have
    /// changed.
    client: Option<Client>,
}

/// A response of a destination.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    bytes: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).trim().to_owned()
    }
}

impl Transport for HttpTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        // Taken, and put back unless its credentials or its connection failed: the next one reads
        // the files again.
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::new(&self.settings, &self.secrets).map_err(DeliverError::retry)?,
        };

        let body = self.settings.body.frame(items);
        // The most of them, so that a batch is stopped if one of its events is in a loop.
        let hops = items
            .iter()
            .map(|item| item.event.hops())
            .max()
            .unwrap_or(0);

        let answer = client.send(&self.settings, &body, hops, self.clock.now(), transcript);
        let answer = answer.map_err(DeliverError::retry)?;
        let reason = || reason(&answer);
        // What repeats and what divides a batch is decided here; docs/SINKS.md has the table.
        let result = match answer.status {
            200..=299 => self.item_errors(items, &answer),
            status if self.settings.accept.contains(&status) => self.item_errors(items, &answer),
            // The request itself is at fault: parts of it show which item.
            400 | 413 | 415 | 422 => Err(DeliverError::Refused { reason: reason() }),
            // Mostly a wrong setting: dead letters would lose the order and fill the disk, so it is
            // repeated until it is corrected.
            401 | 403 => return Err(DeliverError::retry(reason())),
            _ => {
                let after = answer
                    .header("retry-after")
                    .and_then(|text| pause(text, self.clock.now()));
                Err(DeliverError::Retry {
                    reason: reason(),
                    after,
                })
            }
        };

        self.client = Some(client);
        result
    }

    fn check(&mut self) -> Result<String, String> {
        let client = Client::new(&self.settings, &self.secrets)?;
        client.probe(&self.settings)
    }

    fn reopen(&mut self) {
        self.client = None;
    }
}

impl HttpTransport {
    fn item_errors(&self, items: &[Item], answer: &Answer) -> Result<Vec<Rejected>, DeliverError> {
        // Only receivers of OTLP answer in protobuf.
        if answer.header("content-type") == Some("application/x-protobuf") {
            return items::partial_success(items, &answer.bytes);
        }
        let Some(errors) = &self.settings.item_errors else {
            return Ok(Vec::new());
        };
        let parsed: Json = serde_json::from_slice(&answer.bytes).map_err(|error| {
            DeliverError::retry(format_args!("the answer is not JSON: {error}"))
        })?;
        errors.find(items, &parsed).map_err(DeliverError::retry)
    }
}

impl Framed {
    fn frame(&self, items: &[Item]) -> Vec<u8> {
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

fn reason(answer: &Answer) -> String {
    let name = ureq::http::StatusCode::from_u16(answer.status).ok();
    let name = name
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();

    let body = answer.text();
    let line = format!("{} {name}", answer.status);
    if body.is_empty() {
        line
    } else {
        format!("{line}: {body}")
    }
}

/// The pause in a `Retry-After`: seconds, or a date.
fn pause(text: &str, now: Micros) -> Option<Duration> {
    let text = text.trim();
    // A date is converted to a pause by this machine's clock, so both forms are bounded.
    let seconds = || text.parse().ok().map(Duration::from_secs);
    let date = || {
        let at = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        let micros = u64::try_from(at.as_microsecond().saturating_sub(now.0)).unwrap_or(0);
        Some(Duration::from_micros(micros))
    };

    seconds()
        .or_else(date)
        .map(|pause| pause.min(SINK_RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
