//! What a user of NATS may do: what the daemon of a master needs, and the rights that a server reports.

use std::time::Duration;

use serde::Deserialize;

use super::Cluster;
use super::subject::{Subjects, covers};
use crate::client::nats::Connection;
use crate::model::MasterName;

/// At this subject a server tells a user its rights.
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// What a master's user may do, as patterns of subjects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) publish: Vec<String>,
    pub(crate) subscribe: Vec<String>,
}

impl Rights {
    /// All that the daemon of this master needs.
    ///
    /// Reading a message directly (`$JS.API.DIRECT.GET`) is left out, since its response may go to the subject of another master. The same holds for everything that changes,
    /// purges or deletes a stream.
    pub(crate) fn of(subjects: &Subjects, name: &MasterName) -> Self {
        let stream = subjects.stream();
        let bucket = subjects.leases();
        let consumer = subjects.consumer(name);
        let api = |call: String| format!("$JS.API.{call}");

        Self {
            publish: vec![
                subjects.log(name),
                subjects.beat(name),
                api(format!("STREAM.INFO.{stream}")),
                api(format!("STREAM.CREATE.{stream}")),
                api(format!("STREAM.MSG.GET.{stream}")),
                // The client uses one or the other, depending on whether the consumer has a filter.
                api(format!("CONSUMER.CREATE.{stream}.{consumer}")),
                api(format!("CONSUMER.CREATE.{stream}.{consumer}.>")),
                api(format!("CONSUMER.INFO.{stream}.{consumer}")),
                api(format!("CONSUMER.DELETE.{stream}.{consumer}")),
                api(format!("CONSUMER.MSG.NEXT.{stream}.{consumer}")),
                format!("$JS.ACK.{stream}.{consumer}.>"),
                api(format!("STREAM.INFO.KV_{bucket}")),
                api(format!("STREAM.CREATE.KV_{bucket}")),
                api(format!("STREAM.MSG.GET.KV_{bucket}")),
                // All elections share the bucket, and each is one subject.
                format!("$KV.{bucket}.>"),
                // What the user may do: `doctor` asks.
                USER_INFO.to_owned(),
            ],
            subscribe: vec![
                format!("{}.>", subjects.inbox_prefix(name)),
                subjects.beats(),
            ],
        }
    }
}

/// The rights of a user, as reported by a server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Granted {
    /// Absent: everything.
    permissions: Option<Permissions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Permissions {
    publish: Patterns,
    subscribe: Patterns,
}

/// Without allowed patterns everything is allowed, except what is denied.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Patterns {
    allow: Vec<String>,
    deny: Vec<String>,
}

impl Patterns {
    /// Whether a subject, or all subjects of a pattern, are allowed.
    fn includes(&self, subject: &str) -> bool {
        // A wildcard in a pattern is a token like any other.
        let is_in = |patterns: &[String]| patterns.iter().any(|pattern| covers(pattern, subject));
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }

    /// The allowed subjects that `pattern` includes, with a made-up token for each wildcard.
    fn within<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = String> {
        // No master has such a name.
        let example = |text: &str| {
            let tokens = text.split('.').map(|token| match token {
                "*" | ">" => "saltcellar-doctor",
                token => token,
            });
            tokens.collect::<Vec<_>>().join(".")
        };

        let all = [example(pattern)];
        let named = self.allow.iter().map(move |allowed| example(allowed));
        all.into_iter()
            .chain(named)
            .filter(move |subject| covers(pattern, subject) && self.includes(subject))
    }
}

impl Granted {
    /// A subject of another master to which the user may publish.
    pub(crate) fn subject_of_another(
        &self,
        subjects: &Subjects,
        name: &MasterName,
    ) -> Option<String> {
        let Some(permissions) = &self.permissions else {
            return Some(subjects.logs());
        };

        let own = [subjects.log(name), subjects.beat(name)];
        [subjects.logs(), subjects.beats()]
            .iter()
            .flat_map(|pattern| permissions.publish.within(pattern).collect::<Vec<_>>())
            .find(|subject| !own.contains(subject))
    }

    /// A call of the JetStream API that lets the user change what other masters published, or have a message published for them.
    pub(crate) fn dangerous_call(&self, subjects: &Subjects) -> Option<String> {
        const CALLS: [&str; 6] = [
            "STREAM.DELETE",
            "STREAM.UPDATE",
            "STREAM.PURGE",
            "STREAM.MSG.DELETE",
            "DIRECT.GET",
            "STREAM.RESTORE",
        ];

        let publish = self.permissions.as_ref().map(|all| &all.publish);
        CALLS
            .iter()
            .map(|call| format!("$JS.API.{call}.{}", subjects.stream()))
            .find(|call| publish.is_none_or(|publish| publish.includes(call)))
    }

    /// What the daemon of the master needs and the user lacks.
    pub(crate) fn missing(&self, subjects: &Subjects, name: &MasterName) -> Vec<String> {
        let Some(permissions) = &self.permissions else {
            return Vec::new();
        };

        let needed = Rights::of(subjects, name);
        let lacks = |patterns: &Patterns, act: &str, needed: Vec<String>| {
            let missing = needed.into_iter().filter(|one| !patterns.includes(one));
            missing
                .map(|one| format!("{act} {one}"))
                .collect::<Vec<_>>()
        };
        let mut missing = lacks(&permissions.publish, "publish to", needed.publish);
        missing.extend(lacks(
            &permissions.subscribe,
            "subscribe to",
            needed.subscribe,
        ));
        missing
    }
}

impl Cluster {
    /// What the connected user may do. An error if the server does not say it.
    pub(crate) async fn granted(&self, connection: &Connection) -> Result<Granted, String> {
        #[derive(Deserialize)]
        struct Answer {
            data: Granted,
        }

        let client = connection.context.client();
        let request = client.request(USER_INFO, Vec::new().into());
        let answer = tokio::time::timeout(Duration::from_secs(5), request).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(error.to_string()),
            // Without the right to ask no response comes, and the server reports the reason
            // separately.
            Err(_) => {
                let reported = connection.last_error();
                return Err(reported.unwrap_or_else(|| "no response within 5 s".to_owned()));
            }
        };

        let answer: Answer =
            serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
        Ok(answer.data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn granted(permissions: &Json) -> Granted {
        serde_json::from_value(json!({"user": "u", "permissions": permissions})).unwrap()
    }

    fn own() -> (Subjects, MasterName, Rights) {
        let (subjects, name) = (Subjects::of("salt"), MasterName::new("m.1").unwrap());
        let rights = Rights::of(&subjects, &name);
        (subjects, name, rights)
    }

    #[test]
    fn the_rights_of_a_master_are_enough_and_not_too_many() {
        let (subjects, name, Rights { publish, subscribe }) = own();
        let exact =
            granted(&json!({"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}));
        assert_eq!(exact.missing(&subjects, &name), [""; 0]);
        assert_eq!(exact.subject_of_another(&subjects, &name), None);
        assert_eq!(exact.dangerous_call(&subjects), None);
    }

    #[test]
    fn a_user_without_limits_may_publish_for_others() {
        let (subjects, name, _) = own();
        for permissions in [Json::Null, json!({}), json!({"publish": {"allow": [">"]}})] {
            let all = granted(&permissions);
            assert_eq!(all.missing(&subjects, &name), [""; 0], "{permissions}");
            assert!(
                all.subject_of_another(&subjects, &name).is_some(),
                "{permissions}"
            );
            assert!(all.dangerous_call(&subjects).is_some(), "{permissions}");
        }
    }

    #[test]
    fn a_right_too_many_is_found() {
        let (subjects, name, _) = own();
        for (allow, deny, another) in [
            (json!(["salt.log.m2"]), json!([]), Some("salt.log.m2")),
            (
                json!(["salt.log.*"]),
                json!([]),
                Some("salt.log.saltcellar-doctor"),
            ),
            (
                json!(["salt.>"]),
                json!(["salt.log.*"]),
                Some("salt.beat.saltcellar-doctor"),
            ),
            (json!(["salt.beat.m2"]), json!([]), Some("salt.beat.m2")),
            (json!(["salt.log.m=2E1"]), json!([]), None),
            (json!(["salt.log.m2"]), json!(["salt.log.m2"]), None),
            (
                json!(["salt.>"]),
                json!(["salt.log.*", "salt.beat.*"]),
                None,
            ),
            (json!(["other.log.m2"]), json!([]), None),
        ] {
            let found = granted(&json!({"publish": {"allow": allow, "deny": deny}}));
            let found = found.subject_of_another(&subjects, &name);
            assert_eq!(found.as_deref(), another, "{allow} {deny}");
        }
    }

    #[test]
    fn a_right_that_is_missing_is_found() {
        let (subjects, name, Rights { publish, subscribe }) = own();
        let fewer: Vec<_> = publish.iter().skip(1).collect();
        let granted = granted(
            &json!({"publish": {"allow": fewer}, "subscribe": {"allow": subscribe, "deny": ["salt.beat.>"]}}),
        );
        assert_eq!(
            granted.missing(&subjects, &name),
            ["publish to salt.log.m=2E1", "subscribe to salt.beat.*"]
        );
    }
}
