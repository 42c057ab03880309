//! Who acts on each rule: saltcellar, Salt's own reactor, nobody, or both.
//!
//! It follows from facts: the rules of both, whether Salt starts its own reactor, and what keeps ours from acting at the moment.

use super::rules::{Rules, RulesFile};
use crate::config::salt_master::SaltMaster;
use crate::model::{ListedRule, SaltsReactor};
use crate::sls::Value;

/// Who acts on a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// This daemon's reactor.
    Saltcellar,
    /// Salt's own reactor.
    Salt,
    /// Neither of them: events that the rule takes cause nothing.
    Nobody,
    /// Both: everything is done twice.
    Both,
}

impl Actor {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Saltcellar => "saltcellar",
            Self::Salt => "salt",
            Self::Nobody => "nobody",
            Self::Both => "both",
        }
    }
}

/// A rule, and who acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// The rule.
    pub rule: ListedRule,
    /// Who acts.
    pub actor: Actor,
    /// Why, unless it is this daemon's reactor alone.
    pub why: String,
}

/// The rules of Salt's own reactor, and whether the configuration has it started.
pub fn of_master(master: &SaltMaster) -> SaltsReactor {
    let rules = match master.option("reactor") {
        Some(Value::Str(path)) => {
            RulesFile::new(path).rules().map(|rules| rules.listed()).unwrap_or_default()
        }
        Some(reactor) => Rules::new(reactor).listed(),
        None => Vec::new(),
    };
    let workers = master.int("reactor_worker_threads").and_then(|workers| usize::try_from(workers).ok());
    SaltsReactor { runs: master.runs_reactor(), workers: workers.unwrap_or_default(), rules }
}

/// Who acts on which rule, the rules of ours first. `blocked` says what keeps ours from acting, `lacks` why ours does not have a rule
/// that Salt's has.
pub fn assign(
    ours: Vec<ListedRule>,
    salts: &SaltsReactor,
    blocked: Option<&str>,
    lacks: &str,
) -> Vec<Assigned> {
    let is_in = |rules: &[ListedRule], rule: &ListedRule| rules.iter().any(|one| one.pattern == rule.pattern);
    let only_salts: Vec<_> = salts.rules.iter().filter(|rule| !is_in(&ours, rule)).cloned().collect();
    let salts_off = "Salt's own reactor is off";
    let of_ours = ours.into_iter().map(|rule| {
        let salt = salts.runs && is_in(&salts.rules, &rule);
        let (actor, why) = match (blocked, salt) {
            (None, false) => (Actor::Saltcellar, String::new()),
            (None, true) => (Actor::Both, "Salt's own reactor is on, and has the rule, too".to_owned()),
            (Some(why), true) => (Actor::Salt, why.to_owned()),
            (Some(why), false) if salts.runs => {
                (Actor::Nobody, format!("{why}; Salt's own reactor does not have the rule"))
            }
            (Some(why), false) => (Actor::Nobody, format!("{why}; {salts_off}")),
        };
        Assigned { rule, actor, why }
    });
    let mut all: Vec<_> = of_ours.collect();
    all.extend(only_salts.into_iter().map(|rule| {
        let (actor, why) = if salts.runs {
            (Actor::Salt, lacks.to_owned())
        } else {
            (Actor::Nobody, format!("{lacks}; {salts_off}"))
        };
        Assigned { rule, actor, why }
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(patterns: &[&str]) -> Vec<ListedRule> {
        let one = |pattern: &&str| ListedRule { pattern: (*pattern).to_owned(), files: Vec::new() };
        patterns.iter().map(one).collect()
    }

    /// `a` is a rule of both, `b` of ours alone, `c` of Salt's alone.
    fn check(runs: bool, blocked: Option<&str>, expected: &str, whys: [&str; 3]) {
        let salts = SaltsReactor { runs, workers: 10, rules: listed(&["a", "c"]) };
        let found = assign(listed(&["a", "b"]), &salts, blocked, "ours lacks it");
        let words: Vec<_> =
            found.iter().map(|one| format!("{} {}", one.rule.pattern, one.actor.name())).collect();
        assert_eq!(words.join(", "), expected);
        for (one, why) in found.iter().zip(whys) {
            assert_eq!(one.why, why, "{one:?}");
        }
    }

    #[test]
    fn who_acts_on_a_rule_follows_from_whose_it_is_and_who_is_kept_from_acting() {
        let (lacks, off) = ("ours lacks it", "no bus; Salt's own reactor is off");
        let lacks_and_off = "ours lacks it; Salt's own reactor is off";
        check(false, None, "a saltcellar, b saltcellar, c nobody", ["", "", lacks_and_off]);
        check(false, Some("no bus"), "a nobody, b nobody, c nobody", [off, off, lacks_and_off]);
        let only_ours = "shadow; Salt's own reactor does not have the rule";
        check(true, Some("shadow"), "a salt, b nobody, c salt", ["shadow", only_ours, lacks]);
        let both = "Salt's own reactor is on, and has the rule, too";
        check(true, None, "a both, b saltcellar, c salt", [both, "", lacks]);
    }
}
