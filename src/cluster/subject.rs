//! The subjects of the shared history. Each master has its own, to which only its user may publish.
//!
//! ```text
//! STREAM.log.TOKEN      blocks of entries, which the stream keeps
//! STREAM.beat.TOKEN     heartbeats, which nothing keeps
//! _INBOX_TOKEN.>        answers to requests of this master
//! $KV.STREAM-leases.>   leases of reactors, in a bucket
//! ```
//!
//! `TOKEN` is the token of the master's name ([`MasterName::token`]).
//!
//! # Invariant
//!
//! A message is of the master that [`Subjects::publisher_of_log`] names, if that master's user has the rights of [`super::rights::Rights`] and each other user has no more than
//! its own.

use std::sync::Arc;

use async_nats::HeaderMap;

use crate::model::MasterName;

/// Headers that a server adds to what it publishes itself: responses to direct reads, and copies by republish, sources and schedules.
const COPIES: [&str; 4] = [
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Stream-Source",
    "Nats-Scheduler",
];

/// The subjects of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subjects {
    stream: Arc<str>,
}

impl Subjects {
    /// Of the stream with this name, which is a token itself.
    pub(crate) fn of(stream: &str) -> Self {
        let stream = stream.into();
        Self { stream }
    }

    /// The name of the stream.
    pub(crate) fn stream(&self) -> &str {
        &self.stream
    }

    /// Where a master publishes its entries.
    pub(crate) fn log(&self, name: &MasterName) -> String {
        format!("{}.log.{}", self.stream, name.token())
    }

    /// All that the stream keeps.
    pub(crate) fn logs(&self) -> String {
        format!("{}.log.*", self.stream)
    }

    /// Where a master publishes its heartbeats.
    pub(crate) fn beat(&self, name: &MasterName) -> String {
        format!("{}.beat.{}", self.stream, name.token())
    }

    /// The heartbeats of all masters.
    pub(crate) fn beats(&self) -> String {
        format!("{}.beat.*", self.stream)
    }

    /// The master that published a message of the stream, by the right of its user to do so. `None` for a message that no master published there: with another
    /// subject, or one that a server made of another message.
    pub(crate) fn publisher_of_log(
        &self,
        subject: &str,
        headers: Option<&HeaderMap>,
    ) -> Option<MasterName> {
        self.publisher(subject, ".log.", headers)
    }

    /// The same for a heartbeat.
    pub(crate) fn publisher_of_beat(
        &self,
        subject: &str,
        headers: Option<&HeaderMap>,
    ) -> Option<MasterName> {
        self.publisher(subject, ".beat.", headers)
    }

    fn publisher(
        &self,
        subject: &str,
        kind: &str,
        headers: Option<&HeaderMap>,
    ) -> Option<MasterName> {
        // Whoever asks a server for a message names the subject of the response, and no right is asked for that subject.
        let is_copy =
            headers.is_some_and(|headers| COPIES.iter().any(|name| headers.get(*name).is_some()));
        if is_copy {
            return None;
        }

        let token = subject.strip_prefix(&*self.stream)?.strip_prefix(kind)?;
        MasterName::of_token(token)
    }

    /// The name of the one consumer of the stream that a master may make.
    #[expect(
        clippy::unused_self,
        reason = "all names are asked for in the same way"
    )]
    pub(crate) fn consumer(&self, name: &MasterName) -> String {
        name.token().to_owned()
    }

    /// The first token of all subjects at which responses arrive.
    #[expect(
        clippy::unused_self,
        reason = "all subjects are asked for in the same way"
    )]
    pub(crate) fn inbox_prefix(&self, name: &MasterName) -> String {
        format!("_INBOX_{}", name.token())
    }

    /// The bucket of leases.
    pub(crate) fn leases(&self) -> String {
        format!("{}-leases", self.stream)
    }
}

/// Whether a pattern with wildcards includes a subject.
pub(crate) fn covers(pattern: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for token in pattern.split('.') {
        match (token, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, Some(same)) if token == same => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subjects_have_one_token_for_the_master() {
        let subjects = Subjects::of("salt");
        let name = MasterName::new("10.0.0.1").unwrap();
        assert_eq!(subjects.log(&name), "salt.log.10=2E0=2E0=2E1");
        assert_eq!(subjects.beat(&name), "salt.beat.10=2E0=2E0=2E1");
        assert_eq!(subjects.inbox_prefix(&name), "_INBOX_10=2E0=2E0=2E1");
    }

    #[test]
    fn a_subject_of_nobody_has_no_master() {
        let subjects = Subjects::of("salt");
        for subject in [
            "",
            "salt",
            "salt.log",
            "salt.log.",
            "salt.log.a.b",
            "salt.log.=61",
            "salt.beat.a",
            "salt2.log.a",
            "x.salt.log.a",
            "salt.log.é",
        ] {
            assert_eq!(subjects.publisher_of_log(subject, None), None, "{subject}");
        }
    }

    #[test]
    fn a_message_that_a_server_made_of_another_one_has_no_publisher() {
        let subjects = Subjects::of("salt");
        let publisher = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, "KV_salt-leases");
            subjects.publisher_of_log("salt.log.a", Some(&headers))
        };
        assert_eq!(publisher("Nats-Msg-Id"), MasterName::new("a"));
        for name in COPIES {
            assert_eq!(publisher(name), None, "{name}");
        }
    }

    #[test]
    fn a_pattern_covers_subjects() {
        for (pattern, expected) in [
            ("a.b.c", true),
            ("a.*.c", true),
            ("a.>", true),
            (">", true),
            ("a.b", false),
            ("a.b.c.>", false),
            ("a.b.c.d", false),
            ("*.*", false),
        ] {
            assert_eq!(covers(pattern, "a.b.c"), expected, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn a_subject_leads_back_to_its_master_and_to_no_other(
            stream in "[a-zA-Z0-9_-]{1,32}", name in ".{1,60}", other in ".{1,60}",
        ) {
            let subjects = Subjects::of(&stream);
            let names = [name, other].map(|name| MasterName::new(&name));
            let [Some(name), Some(other)] = names else { return Ok(()) };

            prop_assert_eq!(subjects.publisher_of_log(&subjects.log(&name), None), Some(name.clone()));
            prop_assert_eq!(subjects.publisher_of_beat(&subjects.beat(&name), None), Some(name.clone()));
            prop_assert_eq!(subjects.publisher_of_log(&subjects.beat(&name), None), None);
            prop_assert_eq!(subjects.log(&name) == subjects.log(&other), name == other);
            prop_assert_eq!(subjects.log(&name).split('.').count(), 3);
        }
    }
}
