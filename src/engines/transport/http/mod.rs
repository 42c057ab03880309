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
//! | any other, or none | resent later; `Retry-After` is honoured |

mod auth;
mod client;
mod items;
mod settings;

use std::time::Duration;

use serde_json::Value as Json;

use self::client::{Answer, Client};
use self::settings::{Framed, HttpSettings, Limits};
use super::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport,
};
use super::item::Item;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::SINK_RETRY_AFTER_MAX;
use crate::client::secret::Revealed;
use crate::engines::framing::Framing;
use crate::engines::kind::{Kind, options};

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
| `item_errors` | where a response has results of items: `list` (path), `id` (path to the event's sequence number, which stands for all of its items, or to the item's id; without it the list contains all items in order), `status`, `reason`, `permanent` (paths), `accept` (statuses) | none |
| `tls` | `ca`: authorities in a PEM file instead of the system's; `certificate` and `key` of the client | the system's |

If `body` has a line break, as for NDJSON, a line break in a value is written as `\n` or `\r`, two characters; a line break of the template itself stays. `tojson` does so in any case.

Responses with status 400, 413, 415 and 422 divide a request until the rejected item is alone, which becomes a dead letter. All other failures are repeated; `Retry-After` is honoured up to an hour.";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "http",
    doc: DOC,
    example: "{url: 'https://logs.example.com/ingest', method: POST, headers: {content-type: application/json}, \
              body: {prefix: '[', separator: ',', suffix: ']'}, auth: {bearer: 'file:/etc/saltcellar/token'}, \
              compress: gzip, timeout: 30s, accept: [409], tls: {ca: /etc/ssl/own-ca.pem}, \
              item_errors: {list: items, status: '*.status', reason: '*.error.reason', accept: [409]}}",
    build: |given| {
        let http: HttpSettings = options(given)?;
        http.check()?;
        Ok(Box::new(http))
    },
};

impl Destination for HttpSettings {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(HttpTransport {
            settings: self.clone(),
            clock: deps.clock.clone(),
            secrets: deps.secrets.clone(),
            client: None,
        })
    }

    fn describe(&self) -> String {
        self.place()
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
    settings: HttpSettings,
    clock: Clock,
    secrets: Revealed,
    /// Made at the first delivery, and again after a rejected credential: its file may have
    /// changed.
    client: Option<Client>,
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
        // The maximum, because a batch must be stopped if one of its events is in a loop.
        let hops = items
            .iter()
            .map(|item| item.event.hops())
            .max()
            .unwrap_or(0);

        let answer = client.send(&self.settings, &body, hops, self.clock.now(), transcript);
        let answer = answer.map_err(DeliverError::retry)?;
        let reason = || reason(&answer);
        // This decides what repeats and what divides a batch. The table is in docs/SINKS.md.
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
        // Only receivers of OTLP respond in protobuf.
        if answer.header("content-type") == Some("application/x-protobuf") {
            return items::partial_success(items, &answer.bytes);
        }
        let Some(errors) = &self.settings.item_errors else {
            return Ok(Vec::new());
        };
        let parsed: Json = serde_json::from_slice(&answer.bytes).map_err(|error| {
            DeliverError::retry(format_args!("the response is not JSON: {error}"))
        })?;
        errors.find(items, &parsed).map_err(DeliverError::retry)
    }
}

fn reason(answer: &Answer) -> String {
    let name = ureq::http::StatusCode::from_u16(answer.status).ok();
    let name = name
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();

    let remedy = match answer.status {
        401 | 403 => " (correct the sink's credentials, or their rights)",
        300..=399 | 404 | 405 => " (correct the sink's address)",
        _ => "",
    };

    let body = answer.text();
    let line = format!("{} {name}{remedy}", answer.status);
    if body.is_empty() {
        line
    } else {
        format!("{line}: {body}")
    }
}

/// The pause in a `Retry-After`: seconds, or a date.
fn pause(text: &str, now: Micros) -> Option<Duration> {
    let text = text.trim();
    // A date is converted to a pause by this host's clock, so both forms are bounded.
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
