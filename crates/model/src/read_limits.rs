//! What a reader may know: the limits of a token, as conditions on entries.

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::word;

/// A property that limits can restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The minion id.
    Minions,
    /// The tag of an event.
    Tags,
    /// The function.
    Functions,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Minions, Self::Tags, Self::Functions];

    /// Its name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Minions => "minions",
            Self::Tags => "tags",
            Self::Functions => "functions",
        }
    }
}

/// Globs that restrict a reader; absent globs allow everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct ReadLimits {
    /// Minion ids.
    #[serde(default, with = "word", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Glob>")]
    pub minions: Option<Glob>,
    /// Tags of events.
    #[serde(default, with = "word", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Glob>")]
    pub tags: Option<Glob>,
    /// Functions.
    #[serde(default, with = "word", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Glob>")]
    pub functions: Option<Glob>,
}

fn allows(glob: Option<&Glob>, text: &str) -> bool {
    glob.is_none_or(|glob| glob.matches(text))
}

impl ReadLimits {
    /// The limits of a minion that may read what is its own.
    pub fn of_minion(id: &str) -> Self {
        Self {
            minions: Some(Glob::of_literal(id)),
            ..Self::default()
        }
    }

    /// The glob of a limit.
    pub fn of(&self, limit: Limit) -> Option<&Glob> {
        match limit {
            Limit::Minions => self.minions.as_ref(),
            Limit::Tags => self.tags.as_ref(),
            Limit::Functions => self.functions.as_ref(),
        }
    }

    /// Whether anything is restricted.
    pub fn is_limited(&self) -> bool {
        Limit::ALL.iter().any(|limit| self.of(*limit).is_some())
    }

    /// Whether entries of a minion may be read. `minion` is empty for an entry without a minion.
    pub fn allow_minion(&self, minion: &str) -> bool {
        allows(self.minions.as_ref(), minion)
    }

    /// As [`ReadLimits::allow_minion`].
    pub fn allow_minion_bytes(&self, minion: &[u8]) -> bool {
        self.minions
            .as_ref()
            .is_none_or(|glob| glob.matches_bytes(minion))
    }

    /// Whether entries of a function may be read. `fun` is empty for an entry without exactly one
    /// function.
    ///
    /// The result of a runner or wheel names its master, and contains data of any minion: it does
    /// not belong to the minion of that id.
    pub fn allow_fun(&self, fun: &str) -> bool {
        let is_of_minion = || !fun.starts_with("runner.") && !fun.starts_with("wheel.");
        allows(self.functions.as_ref(), fun) && (self.minions.is_none() || is_of_minion())
    }

    /// Whether events with a tag may be read.
    pub fn allow_tag(&self, tag: &[u8]) -> bool {
        self.tags
            .as_ref()
            .is_none_or(|glob| glob.matches_bytes(tag))
    }

    /// Whether an event may be read.
    pub fn allow_event(&self, tag: &[u8], minion: &str, fun: &str) -> bool {
        self.allow_minion(minion) && self.allow_fun(fun) && self.allow_tag(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_apply_to_all_three_texts() {
        let limits = |text: &str| serde_json::from_str::<ReadLimits>(text).unwrap();
        let all = limits(r#"{"minions": "web*", "tags": "salt/*", "functions": "state.*"}"#);
        assert!(all.allow_event(b"salt/job/1/ret/web1", "web1", "state.apply"));
        for (tag, minion, fun) in [
            ("x", "web1", "state.apply"),
            ("salt/x", "db", "state.apply"),
            ("salt/x", "web1", ""),
        ] {
            assert!(
                !all.allow_event(tag.as_bytes(), minion, fun),
                "{tag} {minion} {fun}"
            );
        }
        let none = ReadLimits::default();
        assert!(none.allow_event(b"", "", "runner.state.orch") && !none.is_limited());
        let any_minion = limits(r#"{"minions": "*"}"#);
        assert!(any_minion.is_limited() && any_minion.allow_event(b"", "web1", "test.ping"));
        assert!(
            !any_minion.allow_event(b"", "web_master", "runner.state.orch"),
            "it has data of any minion"
        );
    }

    #[test]
    fn limits_are_written_as_they_are_read() {
        for text in [
            "{}",
            r#"{"minions":"web*"}"#,
            r#"{"tags":"a","functions":"b"}"#,
        ] {
            let limits: ReadLimits = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&limits).unwrap(), text);
        }
    }
}
