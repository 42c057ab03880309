//! The transport `nats`: publishes to a stream of NATS JetStream.
//!
//! Each item is a message with the header `Nats-Msg-Id`, by which the server drops duplicates
//! within the stream's `duplicate_window`. The items of a batch are published in order; they are
//! delivered when the server has acknowledged each.

use std::time::Duration;

use async_nats::jetstream::context::{Context, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use serde::Deserialize;

use super::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport, shortened,
};
use super::item::Item;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::client::thread::ClientThread;
use crate::config::{ClientTls, Invalid, Nats, Secret};
use crate::engines::kind::{Kind, options};
use crate::model::word::{self, MIB};

const DOC: &str = r"Messages in a stream of NATS JetStream.

| option | value | default |
|---|---|---|
| `servers` | a list of addresses, `nats://host:4222` or `tls://host:4222` | required |
| `subject` | the subject of all messages | required |
| `stream` | the stream that must store them | any stream of the subject |
| `user`, `password`; `token` | the login; `password` and `token` are secrets | none |
| `tls` | same as `http` | the system's |
| `timeout` | for a connection, or the acknowledgements of a batch | 10s |

The stream must exist. The header `Nats-Msg-Id` is the event's `id`, so a repeated message is dropped within the stream's `duplicate_window` (2 minutes unless configured). An item larger than the server's `max_payload` becomes a
dead letter.";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "nats",
    doc: DOC,
    example: "{servers: ['tls://nats.example.com:4222'], subject: salt.events, stream: SALT, user: salt, \
              password: 'file:/etc/saltcellar/nats.password', tls: {ca: /etc/ssl/own-ca.pem}, timeout: 10s}",
    build: |given| {
        let given: Options = options(given)?;
        let nats = NatsDestination::from(given);
        nats.check()?;
        Ok(Box::new(nats))
    },
};

/// The options as they are written. `serde` cannot reject unknown options of a part that is a struct of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    servers: Vec<String>,
    subject: String,
    #[serde(default)]
    stream: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default, with = "word")]
    password: Option<Secret>,
    #[serde(default, with = "word")]
    token: Option<Secret>,
    #[serde(default)]
    tls: ClientTls,
    #[serde(default = "Nats::default_timeout", with = "word")]
    timeout: Duration,
}

#[derive(Debug, Clone)]
struct NatsDestination {
    nats: Nats,
    subject: String,
    /// The stream that must store the messages; without it any stream of the subject.
    stream: Option<String>,
}

impl From<Options> for NatsDestination {
    fn from(given: Options) -> Self {
        Self {
            nats: Nats {
                servers: given.servers,
                user: given.user,
                password: given.password,
                token: given.token,
                tls: given.tls,
                timeout: given.timeout,
            },
            subject: given.subject,
            stream: given.stream,
        }
    }
}

impl NatsDestination {
    fn check(&self) -> Result<(), Invalid> {
        let is_word = |word: &str| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_graphic() && !"*>".contains(c))
        };
        // A wildcard can be subscribed to, and not published to.
        if !self.subject.split('.').all(is_word) {
            let problem = format!(
                "{:?} is not accepted; give a subject such as salt.events",
                self.subject
            );
            return Err(Invalid::new("subject", problem));
        }

        self.nats.check()
    }
}

impl Destination for NatsDestination {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(NatsTransport {
            settings: self.clone(),
            secrets: deps.secrets.clone(),
            connection: None,
        })
    }

    fn describe(&self) -> String {
        format!("{} {}", self.nats.servers.join(","), self.subject)
    }

    fn limits(&self) -> RequestLimits {
        // Below the number of acknowledgements that the client awaits at the same time.
        RequestLimits {
            count: 500,
            bytes: usize::try_from(8 * MIB).unwrap_or(usize::MAX),
            time: Duration::ZERO,
        }
    }
}

struct NatsTransport {
    settings: NatsDestination,
    secrets: Revealed,
    connection: Option<Open>,
}

struct Open {
    connection: Connection,
    /// Last: the client ends before its thread.
    thread: ClientThread,
}

/// The result of a batch: the streams and numbers of the messages, and the rejected items.
type Published = (Vec<String>, Vec<Rejected>);

impl Transport for NatsTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        // After a failure a new connection is made.
        let open = match self.connection.take() {
            Some(open) => open,
            None => Open::connect(&self.settings, &self.secrets).map_err(DeliverError::retry)?,
        };

        let work = publish(&open.connection.context, &self.settings, items);
        let result = open.thread.wait(self.settings.nats.timeout, work);
        let result = result.and_then(|published| published);

        if let Some(transcript) = transcript {
            let message = |item: &Item| {
                let text = String::from_utf8_lossy(&item.bytes);
                format!(
                    "{} Nats-Msg-Id: {}\n{text}\n",
                    self.settings.subject,
                    item.id()
                )
            };
            transcript.request = items.iter().map(message).collect();
            transcript.response = match &result {
                Ok((answers, _)) => answers.join("\n"),
                Err(error) => error.clone(),
            };
        }
        // Whatever was stored of a failed batch is a duplicate by its id when it is resent.
        let (_, rejected) = result.map_err(DeliverError::retry)?;
        self.connection = Some(open);
        Ok(rejected)
    }

    fn check(&mut self) -> Result<String, String> {
        let NatsDestination { nats, subject, .. } = &self.settings;

        let open = Open::connect(&self.settings, &self.secrets)?;
        let context = &open.connection.context;
        let found = open
            .thread
            .wait(nats.timeout, context.stream_by_subject(subject.as_str()))?;

        match found {
            Ok(stream) => Ok(format!(
                "{}: the stream {stream} stores the subject",
                self.settings.describe()
            )),
            Err(error) => Err(format!(
                "{}: no stream stores the subject: {error}",
                self.settings.describe()
            )),
        }
    }

    fn reopen(&mut self) {
        self.connection = None;
    }
}

impl Open {
    fn connect(settings: &NatsDestination, revealed: &Revealed) -> Result<Self, String> {
        let thread = ClientThread::start("sc-sink-client")?;
        let connecting = Connection::open(&settings.nats, "saltcellar", None, revealed);

        // It ends by itself after the timeout.
        let connection = thread.block_on(connecting)?;
        Ok(Self { connection, thread })
    }
}

/// Publishes the items and waits for all acknowledgements. An error if any must be resent.
async fn publish(
    context: &Context,
    settings: &NatsDestination,
    items: &[Item],
) -> Result<Published, String> {
    // All are sent before the first acknowledgement is awaited. A batch thus takes one round trip.
    let mut waiting = Vec::with_capacity(items.len());
    let (mut answers, mut rejected) = (Vec::new(), Vec::new());

    for (index, item) in items.iter().enumerate() {
        let mut message = PublishMessage::build()
            .payload(item.bytes.clone().into())
            .message_id(item.id());
        // Another stream that stores the subject must not take the messages.
        if let Some(stream) = &settings.stream {
            message = message.expected_stream(stream);
        }

        match context
            .send_publish(settings.subject.clone(), message)
            .await
        {
            Ok(acknowledgement) => waiting.push(acknowledgement),
            // The item is too large for the server, now and later. The others are not held up.
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                let bytes = item.bytes.len();
                let reason = format!("{bytes} bytes: {error}; raise max_payload of the server");
                let reason = shortened(&reason);
                rejected.push(Rejected {
                    index,
                    reason,
                    is_temporary: false,
                });
            }
            Err(error) => return Err(error.to_string()),
        }
    }

    for acknowledgement in waiting {
        let stored = acknowledgement.await.map_err(|error| match error.kind() {
            PublishErrorKind::StreamNotFound => {
                format!(
                    "no stream stores the subject {}; create one, or correct `subject`",
                    settings.subject
                )
            }
            _ => error.to_string(),
        })?;
        // A duplicate is stored already, by an attempt whose response was lost.
        let duplicate = if stored.duplicate {
            ", a duplicate"
        } else {
            ""
        };

        answers.push(format!(
            "stream {}, message {}{duplicate}",
            stored.stream, stored.sequence
        ));
    }

    Ok((answers, rejected))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{items, open};
    use super::*;
    use crate::config::read_yaml;

    #[test]
    fn invalid_options_are_rejected_with_their_key() {
        for (options, path) in [
            ("{servers: [], subject: a}", "servers"),
            ("{servers: ['http://h'], subject: a}", "servers[0]"),
            ("{servers: ['nats://u:p@h'], subject: a}", "servers[0]"),
            ("{servers: ['nats://h'], subject: 'a.*'}", "subject"),
            ("{servers: ['nats://h'], subject: 'a..b'}", "subject"),
            ("{servers: ['nats://h'], subject: a, user: u}", "user"),
            (
                "{servers: ['nats://h'], subject: a, timeout: 0s}",
                "timeout",
            ),
        ] {
            let error = (KIND.build)(&read_yaml(options).unwrap()).unwrap_err();
            assert_eq!(error.path, path, "{options}: {error:?}");
        }
    }

    #[test]
    fn a_server_that_is_absent_or_silent_is_retried() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let options = format!("{{servers: ['nats://127.0.0.1:{port}'], subject: a, timeout: 1s}}");
        let mut transport = open(&KIND, &options);
        for _ in 0..2 {
            let error = transport.deliver(&items(&["a"]), None).unwrap_err();
            let DeliverError::Retry { reason, .. } = error else {
                panic!("{error:?}")
            };
            assert!(
                reason.starts_with(&format!("cannot connect to nats://127.0.0.1:{port}: ")),
                "{reason}"
            );
        }
        drop(silent);
        assert!(transport.check().unwrap_err().contains("cannot connect"));
    }
}
