//! The subjects of the shared history. Each master has its own, to which only its user may publish.
//!
//! ```text
//! STREAM.log.TOKEN      blocks of entries, which the stream keeps
//! STREAM.beat.TOKEN     signs of life, which nothing keeps
//! _INBOX_TOKEN.>        answers to requests of this master
//! $KV.STREAM-leases.>   leases of reactors, in a bucket
//! ```
//!
//! `TOKEN` is that of the master's name ([`MasterName::token`]).

use std::sync::Arc;

use crate::model::MasterName;

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

    /// Where a master publishes its signs of life.
    pub(crate) fn beat(&self, name: &MasterName) -> String {
        format!("{}.beat.{}", self.stream, name.token())
    }

    /// The signs of life of all masters.
    pub(crate) fn beats(&self) -> String {
        format!("{}.beat.*", self.stream)
    }

    /// The master that a message with this subject is from, by the right of its user to publish there. `None` for a subject that is none of a master's log.
    pub(crate) fn master_of_log(&self, subject: &str) -> Option<MasterName> {
        self.master_of(subject, ".log.")
    }

    /// The same for a sign of life.
    pub(crate) fn master_of_beat(&self, subject: &str) -> Option<MasterName> {
        self.master_of(subject, ".beat.")
    }

    fn master_of(&self, subject: &str, kind: &str) -> Option<MasterName> {
        let token = subject.strip_prefix(&*self.stream)?.strip_prefix(kind)?;
        MasterName::of_token(token)
    }

    /// The first token of all subjects at which answers arrive.
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
            assert_eq!(subjects.master_of_log(subject), None, "{subject}");
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

            prop_assert_eq!(subjects.master_of_log(&subjects.log(&name)), Some(name.clone()));
            prop_assert_eq!(subjects.master_of_beat(&subjects.beat(&name)), Some(name.clone()));
            prop_assert_eq!(subjects.master_of_log(&subjects.beat(&name)), None);
            prop_assert_eq!(subjects.log(&name) == subjects.log(&other), name == other);
            prop_assert_eq!(subjects.log(&name).split('.').count(), 3);
        }
    }
}
