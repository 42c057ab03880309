//! The stream of the shared history: made if it is missing, else compared with the settings.
//!
//! # Invariant
//!
//! A stream that exists is never changed, deleted or purged. Each way in which it keeps less than the settings say is a [`Difference`].

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    Context, CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
    RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
};

use super::Cluster;
use super::subject::covers;
use crate::base::clock::Micros;
use crate::base::limits::CLUSTER_DUPLICATES;
use crate::client::nats::Connection;
use crate::model::word::Word as _;

/// The stream as it was found or made.
#[derive(Debug, Clone)]
pub(crate) struct FoundStream {
    /// When it was made. Another time than before: it was deleted meanwhile, and its numbers restart.
    pub(crate) created: Micros,
    /// The number of its first message that is still there, and of its last; `last` is one less than `first` if there is none.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Largest message, with its headers.
    pub(crate) message_bytes_max: u64,
    /// Servers that keep it, and the servers among them that are away or behind.
    pub(crate) servers: usize,
    pub(crate) servers_behind: Vec<String>,
    /// The ways in which it keeps less than the settings say.
    pub(crate) differences: Vec<Difference>,
}

/// How a stream differs from the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Difference {
    /// It accepts no message any more.
    Sealed,
    /// It copies another stream, and accepts no message of a master.
    Mirror,
    /// It does not keep what this master publishes.
    Subjects { found: Vec<String>, missing: String },
    /// It contains messages that no master published under their subject, by this part of its configuration.
    Copies { what: &'static str },
    /// One message can remove all others.
    Rollup,
    /// Messages go when somebody has read them.
    Retention { found: RetentionPolicy },
    /// It acknowledges nothing.
    NoAcknowledgements,
    /// It acknowledges what is not stored yet.
    AcknowledgesEarly,
    /// It keeps messages in memory.
    Memory,
    /// Fewer servers keep each message.
    Replicas { found: usize, wanted: u32 },
    /// Messages go before the window has passed.
    Age { found: Duration, window: Duration },
    /// Messages go, or are not accepted, by their number or their bytes.
    Limit { found: String },
    /// When a limit is reached, it accepts no message.
    DiscardsNew,
    /// An entry of the store can be larger than a message.
    MessageSize { found: u64, entry_bytes_max: u64 },
    /// A repeated message is recognised for a shorter time.
    DuplicateWindow { found: Duration },
}

impl Difference {
    /// The daemons make up for it: a larger entry is split, and repetitions are recognised by their numbers.
    pub(crate) fn is_made_up_for(&self) -> bool {
        matches!(
            self,
            Self::MessageSize { .. } | Self::DuplicateWindow { .. }
        )
    }

    /// What is published there does not reach the other masters, or may be of another one than it seems.
    pub(crate) fn is_unusable(&self) -> bool {
        matches!(
            self,
            Self::Sealed
                | Self::Mirror
                | Self::Subjects { .. }
                | Self::Copies { .. }
                | Self::Retention { .. }
                | Self::NoAcknowledgements
        )
    }
}

impl FoundStream {
    /// The ways in which it keeps less than the settings say, as far as they matter.
    pub(crate) fn shortcomings(&self) -> Vec<String> {
        let all = self.differences.iter();
        let matter = all.filter(|difference| !difference.is_made_up_for());
        matter.map(ToString::to_string).collect()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |time: &Duration| time.show().unwrap_or_default();
        match self {
            Self::Sealed => write!(f, "it is sealed, and accepts no message"),
            Self::Mirror => write!(
                f,
                "it is a mirror of another stream, and accepts no message"
            ),
            Self::Subjects { found, missing } => write!(
                f,
                "it does not keep the subject {missing}, only {}",
                found.join(", ")
            ),
            Self::Copies { what } => write!(
                f,
                "it makes messages of others ({what}), so their subjects do not prove who published them"
            ),
            Self::Rollup => write!(
                f,
                "any master can remove the messages of all with one message (allow_rollup_hdrs)"
            ),
            Self::Retention { found } => {
                let policy = match found {
                    RetentionPolicy::Interest => "interest",
                    RetentionPolicy::WorkQueue => "workqueue",
                    RetentionPolicy::Limits => "limits",
                };
                write!(
                    f,
                    "its retention is {policy}, and not limits: a message goes when one master has read it"
                )
            }
            Self::NoAcknowledgements => write!(f, "it acknowledges nothing (no_ack)"),
            Self::AcknowledgesEarly => write!(
                f,
                "it acknowledges messages that are not stored yet (persist_mode async)"
            ),
            Self::Memory => write!(
                f,
                "it is in memory, and empty after a restart of its servers"
            ),
            Self::Replicas { found, wanted } => write!(
                f,
                "its messages are on {found} of NATS's servers, and cluster.replicas is {wanted}"
            ),
            Self::Age { found, window } => write!(
                f,
                "it keeps messages for {}, and cluster.window is {}",
                shown(found),
                shown(window)
            ),
            Self::Limit { found } => write!(
                f,
                "{found} ends its messages before their time, and cluster.window is not reached"
            ),
            Self::DiscardsNew => write!(
                f,
                "it accepts no message once it is full (discard new), and does not drop the oldest"
            ),
            Self::MessageSize {
                found,
                entry_bytes_max,
            } => write!(
                f,
                "a message may have {}, and an entry {} (store.entry_bytes_max): a larger entry is split",
                found.show().unwrap_or_default(),
                entry_bytes_max.show().unwrap_or_default()
            ),
            Self::DuplicateWindow { found } => write!(
                f,
                "it recognises a repeated message for {} only; each master then drops the repetitions itself",
                shown(found)
            ),
        }
    }
}

impl Cluster {
    /// Finds the stream, or makes it.
    pub(crate) async fn ensure_stream(
        &self,
        connection: &Connection,
    ) -> Result<FoundStream, String> {
        if let Some(found) = self.find_stream(connection).await? {
            return Ok(found);
        }

        let context = &connection.context;
        match context.create_stream(self.wanted_stream()).await {
            Ok(stream) => Ok(self.found(context, stream.cached_info())),
            // Another master made it meanwhile, perhaps with other settings.
            Err(error) if exists(&error) => self
                .find_stream(connection)
                .await?
                .ok_or_else(|| self.cannot("find", connection, &"it was deleted meanwhile")),
            Err(error) => Err(self.cannot("make", connection, &error)),
        }
    }

    /// The stream, if it exists.
    pub(crate) async fn find_stream(
        &self,
        connection: &Connection,
    ) -> Result<Option<FoundStream>, String> {
        let context = &connection.context;
        match context.get_stream(self.subjects.stream()).await {
            Ok(stream) => Ok(Some(self.found(context, stream.cached_info()))),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => {
                let error = with_cause(&error);
                Err(self.cannot("find", connection, &error))
            }
        }
    }

    fn cannot(&self, act: &str, connection: &Connection, why: &dyn fmt::Display) -> String {
        let stream = self.subjects.stream();
        // A request without the right gets no response; the server reports the reason separately.
        match connection.last_error() {
            Some(reported) => format!("cannot {act} the stream {stream}: {reported} ({why})"),
            None => format!("cannot {act} the stream {stream}: {why}"),
        }
    }

    fn wanted_stream(&self) -> Config {
        Config {
            name: self.subjects.stream().to_owned(),
            subjects: vec![self.subjects.logs()],
            description: Some("Entries of Salt masters, of saltcellar".to_owned()),
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            storage: StorageType::File,
            max_age: self.window,
            num_replicas: usize::try_from(self.replicas).unwrap_or(1),
            duplicate_window: CLUSTER_DUPLICATES,
            ..Config::default()
        }
    }

    fn found(&self, context: &Context, info: &Info) -> FoundStream {
        let payload_max = context.client().server_info().max_payload as u64;
        let behind = |name: &str, is_current: bool| (!is_current).then(|| name.to_owned());

        let cluster = info.cluster.as_ref();
        // A single server has no cluster. The leader is not among the replicas that it lists.
        let followers = cluster.map_or(&[][..], |cluster| &cluster.replicas);
        let created = info.created.unix_timestamp_nanos() / 1_000;

        FoundStream {
            created: Micros(i64::try_from(created).unwrap_or(i64::MAX)),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            message_bytes_max: message_bytes_max(&info.config, payload_max),
            servers: followers.len() + 1,
            servers_behind: followers
                .iter()
                .filter_map(|peer| behind(&peer.name, peer.current && !peer.offline))
                .collect(),
            differences: self.differences(&info.config, payload_max),
        }
    }

    fn differences(&self, found: &Config, payload_max: u64) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut note = |is_so: bool, difference: Difference| {
            if is_so {
                differences.push(difference);
            }
        };

        note(found.sealed, Difference::Sealed);
        note(found.mirror.is_some(), Difference::Mirror);

        let own = self.subjects.log(&self.name);
        let is_kept = found.subjects.iter().any(|pattern| covers(pattern, &own));
        // A mirror has no subjects, and was already noted as one.
        note(
            found.mirror.is_none() && !is_kept,
            Difference::Subjects {
                found: found.subjects.clone(),
                missing: own,
            },
        );

        for (is_so, what) in [
            (found.sources.is_some(), "sources"),
            (found.subject_transform.is_some(), "subject_transform"),
            (found.republish.is_some(), "republish"),
            (found.allow_message_schedules, "allow_msg_schedules"),
        ] {
            note(is_so, Difference::Copies { what });
        }
        note(found.allow_rollup, Difference::Rollup);

        note(
            found.retention != RetentionPolicy::Limits,
            Difference::Retention {
                found: found.retention,
            },
        );
        note(found.no_ack, Difference::NoAcknowledgements);
        note(
            found.persist_mode == Some(PersistenceMode::Async),
            Difference::AcknowledgesEarly,
        );
        note(found.storage == StorageType::Memory, Difference::Memory);
        note(
            u32::try_from(found.num_replicas).is_ok_and(|found| found < self.replicas),
            Difference::Replicas {
                found: found.num_replicas,
                wanted: self.replicas,
            },
        );

        // Zero is no limit of age; limits of numbers are absent below one.
        note(
            !found.max_age.is_zero() && found.max_age < self.window,
            Difference::Age {
                found: found.max_age,
                window: self.window,
            },
        );
        for (name, limit) in [
            ("max_msgs", found.max_messages),
            ("max_bytes", found.max_bytes),
            ("max_msgs_per_subject", found.max_messages_per_subject),
        ] {
            note(
                limit > 0,
                Difference::Limit {
                    found: format!("{name}: {limit}"),
                },
            );
        }
        note(found.discard == DiscardPolicy::New, Difference::DiscardsNew);

        let bytes_max = message_bytes_max(found, payload_max);
        note(
            bytes_max < self.entry_bytes_max,
            Difference::MessageSize {
                found: bytes_max,
                entry_bytes_max: self.entry_bytes_max,
            },
        );
        note(
            found.duplicate_window < CLUSTER_DUPLICATES,
            Difference::DuplicateWindow {
                found: found.duplicate_window,
            },
        );

        differences
    }
}

/// The largest message that both the stream and its server accept.
fn message_bytes_max(found: &Config, payload_max: u64) -> u64 {
    match u64::try_from(found.max_message_size) {
        Ok(size) if size > 0 => size.min(payload_max),
        _ => payload_max,
    }
}

pub(super) fn is_missing(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

pub(super) fn exists(error: &CreateStreamError) -> bool {
    matches!(error.kind(), CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

/// "request error" alone says nothing.
pub(super) fn with_cause(error: &GetStreamError) -> String {
    let cause = std::error::Error::source(error);
    let request = cause
        .and_then(|cause| cause.downcast_ref::<async_nats::jetstream::context::RequestError>());
    match request.map(RequestError::kind) {
        Some(RequestErrorKind::NoResponders) => "JetStream is off, or has no leader now".to_owned(),
        Some(RequestErrorKind::TimedOut) => {
            "no response; the user may lack the right to ask".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;

    const NATS: &str = "nats: {servers: ['nats://n1']}, window: 1d, name: m1";

    fn differences(change: impl FnOnce(&mut Config)) -> Vec<Difference> {
        let cluster = cluster(NATS);
        let mut config = cluster.wanted_stream();
        change(&mut config);
        cluster.differences(&config, 1 << 30)
    }

    #[test]
    fn a_new_stream_is_as_the_settings_say() {
        assert_eq!(differences(|_| {}), []);
        let more = differences(|config| {
            config.num_replicas = 5;
            config.max_age = Duration::ZERO;
            config.subjects = vec!["a".to_owned(), "saltcellar.>".to_owned()];
        });
        assert_eq!(more, []);
    }

    #[test]
    fn each_difference_is_named() {
        type Change = fn(&mut Config);
        let cases: [(Change, &str, bool); 16] = [
            (
                |c| c.sources = Some(Vec::new()),
                "it makes messages of others (sources)",
                true,
            ),
            (
                |c| c.allow_message_schedules = true,
                "it makes messages of others (allow_msg_schedules)",
                true,
            ),
            (|c| c.allow_rollup = true, "any master can remove", false),
            (|c| c.sealed = true, "it is sealed", true),
            (
                |c| {
                    c.subjects = Vec::new();
                    c.mirror = Some(async_nats::jetstream::stream::Source::default());
                },
                "it is a mirror",
                true,
            ),
            (
                |c| c.subjects = vec!["saltcellar.log.m2".to_owned()],
                "it does not keep the subject saltcellar.log.m1, only saltcellar.log.m2",
                true,
            ),
            (
                |c| c.retention = RetentionPolicy::Interest,
                "its retention is interest",
                true,
            ),
            (|c| c.no_ack = true, "it acknowledges nothing", true),
            (
                |c| c.persist_mode = Some(PersistenceMode::Async),
                "it acknowledges messages that are not stored",
                false,
            ),
            (
                |c| c.storage = StorageType::Memory,
                "it is in memory",
                false,
            ),
            (
                |c| c.num_replicas = 1,
                "its messages are on 1 of NATS's servers, and cluster.replicas is 3",
                false,
            ),
            (
                |c| c.max_age = Duration::from_secs(3_600),
                "it keeps messages for 1h, and cluster.window is 1d",
                false,
            ),
            (|c| c.max_bytes = 1_000, "max_bytes: 1000", false),
            (
                |c| c.discard = DiscardPolicy::New,
                "it accepts no message once it is full",
                false,
            ),
            (
                |c| c.max_message_size = 65_536,
                "a message may have 64KiB, and an entry",
                false,
            ),
            (
                |c| c.duplicate_window = Duration::from_secs(10),
                "it recognises a repeated message for 10s",
                false,
            ),
        ];
        for (change, text, is_unusable) in cases {
            let found = differences(change);
            let [difference] = &*found else {
                panic!("{text}: {found:?}")
            };
            assert!(difference.to_string().starts_with(text), "{difference}");
            assert_eq!(difference.is_unusable(), is_unusable, "{difference}");
        }
    }

    #[test]
    fn the_server_limits_messages_too() {
        let cluster = cluster(NATS);
        let config = cluster.wanted_stream();
        let found = cluster.differences(&config, 1 << 10);
        let [Difference::MessageSize { found: 1024, .. }] = &*found else {
            panic!("{found:?}")
        };
    }
}
