//! Rules that store or drop entries at the sources.

use salt_sls::Glob;
use serde::{Deserialize, Serialize};

use super::Condition;
use saltcellar_model::word;
use saltcellar_model::{Action, RetcodePattern, Scope};

/// An item of `ingest.filter`. The first matching rule decides; entries without one are stored. There is no class: an entry gets its class when it is
/// stored.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `do` and any of `name`, `tag`, `fun`, `minion`, `retcode` and `where`"
)]
pub struct FilterRule {
    /// The name in `saltcellar status`.
    #[serde(default, with = "word")]
    pub name: String,
    /// The action.
    #[serde(rename = "do", with = "word")]
    pub action: Action,
    /// The affected entries: their tags.
    #[serde(default, with = "word::some")]
    pub tag: Vec<Glob>,
    /// Their functions.
    #[serde(default, with = "word::some")]
    pub fun: Vec<Glob>,
    /// Their minions.
    #[serde(default, with = "word::some")]
    pub minion: Vec<Glob>,
    /// Their exit codes.
    #[serde(default, with = "word::some")]
    pub retcode: Vec<RetcodePattern>,
    /// An expression that is true for them.
    #[serde(default, rename = "where", with = "word")]
    pub condition: Option<Condition>,
}

impl FilterRule {
    /// A rule for all entries.
    pub fn of_all(name: &str, action: Action) -> Self {
        let (tag, fun, minion, retcode, condition) = Default::default();
        Self {
            name: name.to_owned(),
            action,
            tag,
            fun,
            minion,
            retcode,
            condition,
        }
    }

    /// The affected entries, apart from the condition.
    pub fn scope(&self) -> Scope {
        Scope {
            tag: self.tag.clone(),
            fun: self.fun.clone(),
            minion: self.minion.clone(),
            retcode: self.retcode.clone(),
            ..Scope::default()
        }
    }
}
