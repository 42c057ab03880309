//! The acting reactor of each rule: saltcellar's, Salt's own, neither, or both.
//!
//! Derived from the rules of both reactors, from whether Salt starts its own, and from whether saltcellar's
//! is blocked.

use salt_sls::Value;

use super::{Rules, RulesFile};
use crate::base::named::named;
use crate::config::salt_master::SaltMaster;
use crate::model::{ListedRule, SaltsReactor};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Actor {
    /// This daemon's reactor.
    Saltcellar,
    /// Salt's reactor.
    Salt,
    /// Neither: matching events cause nothing.
    #[default]
    Neither,
    /// Both: all calls are made twice.
    Both,
    /// The reactor of another master, which leads in the election.
    Leader,
}

named! {
    Actor {
        Saltcellar: "saltcellar",
        Salt: "salt",
        Neither: "none",
        Both: "both",
        Leader: "another master",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) rule: ListedRule,
    pub(crate) actor: Actor,
    /// The reason, unless only this daemon's reactor acts.
    pub(crate) why: String,
}

/// The rules of Salt's reactor, and whether the configuration starts it.
pub(crate) fn of_master(master: &SaltMaster) -> SaltsReactor {
    // The file is read as Salt reads it, because saltcellar's may have other rules.
    let rules = match master.option("reactor") {
        Some(Value::Str(path)) => RulesFile::new(path)
            .rules()
            .map(|rules| rules.listed())
            .unwrap_or_default(),
        Some(reactor) => Rules::new(reactor).listed(),
        None => Vec::new(),
    };

    let workers = master
        .int("reactor_worker_threads")
        .and_then(|workers| usize::try_from(workers).ok());
    let (runs, fallback) = (master.runs_reactor(), master.has_reactor_fallback());

    SaltsReactor {
        runs,
        fallback,
        workers: workers.unwrap_or_default(),
        rules,
    }
}

/// The acting reactor of each rule; saltcellar's rules come first. `blocked` is the reason why ours makes no
/// calls, `leader` the master whose reactor acts instead, `lacks` the reason why ours lacks a rule of Salt's.
pub(crate) fn assign(
    ours: Vec<ListedRule>,
    salts: &SaltsReactor,
    (blocked, leader): (Option<&str>, Option<&str>),
    lacks: &str,
) -> Vec<Assigned> {
    // Rules with equal patterns are the same rule, whatever their files.
    let is_in = |rules: &[ListedRule], rule: &ListedRule| {
        rules.iter().any(|one| one.pattern == rule.pattern)
    };

    let only_salts: Vec<_> = salts
        .rules
        .iter()
        .filter(|rule| !is_in(&ours, rule))
        .cloned()
        .collect();

    let salts_off = "Salt's reactor is off";
    let of_ours = ours.into_iter().map(|rule| {
        let salt = salts.runs && is_in(&salts.rules, &rule);
        let (actor, why) = match (blocked, salt) {
            (None, false) if let Some(leader) = leader => (
                Actor::Leader,
                format!("the reactor of the master {leader} leads"),
            ),
            (None, false) => (Actor::Saltcellar, String::new()),
            (None, true) => (
                Actor::Both,
                "Salt's reactor is on and also contains the rule".to_owned(),
            ),
            (Some(why), true) => (Actor::Salt, why.to_owned()),
            (Some(why), false) if salts.runs => (
                Actor::Neither,
                format!("{why}; Salt's reactor does not contain the rule"),
            ),
            (Some(why), false) => (Actor::Neither, format!("{why}; {salts_off}")),
        };
        Assigned { rule, actor, why }
    });

    let mut all: Vec<_> = of_ours.collect();
    all.extend(only_salts.into_iter().map(|rule| {
        let (actor, why) = if salts.runs {
            (Actor::Salt, lacks.to_owned())
        } else {
            (Actor::Neither, format!("{lacks}; {salts_off}"))
        };
        Assigned { rule, actor, why }
    }));

    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(patterns: &[&str]) -> Vec<ListedRule> {
        let one = |pattern: &&str| ListedRule {
            pattern: (*pattern).to_owned(),
            files: Vec::new(),
        };
        patterns.iter().map(one).collect()
    }

    /// `a` is a rule of both, `b` only of saltcellar's, `c` only of Salt's.
    fn check(runs: bool, blocked: Option<&str>, expected: &str, whys: [&str; 3]) {
        let salts = SaltsReactor {
            runs,
            fallback: false,
            workers: 10,
            rules: listed(&["a", "c"]),
        };
        let found = assign(
            listed(&["a", "b"]),
            &salts,
            (blocked, None),
            "ours lacks it",
        );
        let words: Vec<_> = found
            .iter()
            .map(|one| format!("{} {:?}", one.rule.pattern, one.actor))
            .collect();
        assert_eq!(words.join(", "), expected);
        for (one, why) in found.iter().zip(whys) {
            assert_eq!(one.why, why, "{one:?}");
        }
    }

    #[test]
    fn the_acting_reactor_depends_on_both_lists_of_rules_and_on_blocking() {
        let (lacks, off) = ("ours lacks it", "no bus; Salt's reactor is off");
        let lacks_and_off = "ours lacks it; Salt's reactor is off";
        check(
            false,
            None,
            "a Saltcellar, b Saltcellar, c Neither",
            ["", "", lacks_and_off],
        );
        check(
            false,
            Some("no bus"),
            "a Neither, b Neither, c Neither",
            [off, off, lacks_and_off],
        );
        let only_ours = "shadow; Salt's reactor does not contain the rule";
        check(
            true,
            Some("shadow"),
            "a Salt, b Neither, c Salt",
            ["shadow", only_ours, lacks],
        );
        let both = "Salt's reactor is on and also contains the rule";
        check(
            true,
            None,
            "a Both, b Saltcellar, c Salt",
            [both, "", lacks],
        );
    }
}
