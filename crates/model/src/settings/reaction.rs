//! Settings of the reactor's rules. A rule is identified by its pattern in the list under `reactor`.

use std::sync::Arc;
use std::time::Duration;

use salt_sls::Glob;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::word::{self, Word, words};
use saltcellar_base::backoff::doubled;
use saltcellar_base::limits::{
    REACTOR_BACKOFF, REACTOR_BACKOFF_MAX, REACTOR_BUDGET, REACTOR_BUDGET_PER, REACTOR_DEPTH_MAX,
    REACTOR_EVENT_AGE_MAX, REACTOR_SHADOW_WINDOW, REACTOR_TRIES, REACTOR_WORKERS,
};

/// A maximum number of times per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The maximum number per period.
    pub times: u32,
    /// The period.
    pub per: Duration,
}

words! {
    Rate: "a number and a time, such as 10/1m",
        |text| {
            let (times, per) = text.split_once('/')?;
            let times = times.trim().parse().ok().filter(|times| *times > 0)?;
            let per = Duration::parse(per.trim()).filter(|per| !per.is_zero())?;
            Some(Self { times, per })
        },
        |rate| format!("{}/{}", rate.times, rate.per.show().unwrap_or_default());
}

/// The events of a rule that are handled in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleOrder {
    /// All events.
    Rule,
    /// Events of the same minion, and events without a minion.
    #[default]
    Minion,
    /// No order.
    None,
}

/// Limits of runners and wheel functions in flight on the master: its `reactor_worker_threads` and `reactor_worker_hwm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Maximum number in flight.
    pub threads: u32,
    /// Rendered reactions that wait for one; `None` for no limit. Events beyond it wait in the log.
    pub waiting: Option<usize>,
}

impl Default for RunnerLimits {
    /// Salt's defaults.
    fn default() -> Self {
        Self {
            threads: 10,
            waiting: Some(10_000),
        }
    }
}

/// The options of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping with `rule` and its options"
)]
pub struct RuleOptions {
    /// Its pattern; empty for the options of rules without their own.
    #[serde(with = "word")]
    pub rule: Arc<str>,
    /// Never repeat a call, even if it is unknown whether the master received it.
    pub at_most_once: bool,
    /// Repeat an unanswered runner or wheel call if the log does not show its start.
    pub retry_unanswered: bool,
    /// Attempts of a call before it is dead-lettered.
    pub tries: u32,
    /// The pause before the second attempt; it doubles with each, up to [`REACTOR_BACKOFF_MAX`].
    #[serde(with = "word")]
    pub backoff: Duration,
    /// Excess reactions wait.
    #[serde(with = "word")]
    pub rate: Option<Rate>,
    /// Excess reactions are dead-lettered, which stops runaway loops; `None` for no limit.
    #[serde(with = "word::or_none")]
    pub budget: Option<Rate>,
    /// Only a minion's last event counts, after this quiet period.
    #[serde(with = "word")]
    pub debounce: Option<Duration>,
    /// Only a minion's first event in this period counts.
    #[serde(with = "word")]
    pub once_per: Option<Duration>,
    /// Maximum concurrent reactions, and runners in flight.
    pub concurrency: Option<u32>,
    /// Which of its events are handled in order.
    pub order: RuleOrder,
    /// Permitted calls; empty permits all.
    #[serde(deserialize_with = "some_allowed")]
    pub allow: Vec<Allow>,
}

/// Reads the permitted calls of one rule: an empty list is ambiguous.
fn some_allowed<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Allow>, D::Error> {
    let allow = Vec::deserialize(from)?;
    if allow.is_empty() {
        return Err(de::Error::custom(
            "an empty list is not accepted; give at least one permitted call",
        ));
    }
    Ok(allow)
}

/// A permitted call.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a mapping with `fun` and any of `client` and `tgt`"
)]
pub struct Allow {
    /// `local`, `runner`, `wheel` or `caller`; `None` for any.
    pub client: Option<String>,
    /// Pattern for the function.
    #[serde(with = "word")]
    pub fun: Glob,
    /// The target of a `local`.
    #[serde(default, with = "word")]
    pub tgt: Option<Glob>,
}

impl Allow {
    /// Whether the call is permitted.
    pub fn allows(&self, client: &str, fun: &str, tgt: &str) -> bool {
        self.client.as_deref().is_none_or(|name| name == client)
            && self.fun.matches(fun)
            && (client != "local" || self.tgt.as_ref().is_none_or(|glob| glob.matches(tgt)))
    }
}

impl Default for RuleOptions {
    fn default() -> Self {
        Self {
            rule: "".into(),
            at_most_once: false,
            retry_unanswered: false,
            tries: REACTOR_TRIES,
            backoff: REACTOR_BACKOFF,
            rate: None,
            budget: Some(Rate {
                times: REACTOR_BUDGET,
                per: REACTOR_BUDGET_PER,
            }),
            debounce: None,
            once_per: None,
            concurrency: None,
            order: RuleOrder::default(),
            allow: Vec::new(),
        }
    }
}

impl RuleOptions {
    /// Maximum concurrent reactions: by default half of the workers, so that a rule with a slow template leaves the others to other rules.
    pub fn concurrency(&self) -> u32 {
        self.concurrency.unwrap_or(REACTOR_WORKERS / 2)
    }

    /// The pause after `tried` attempts.
    pub fn pause(&self, tried: u32) -> Duration {
        doubled(self.backoff, REACTOR_BACKOFF_MAX, tried.saturating_sub(1))
    }
}

/// A rule for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    /// The glob of the tags.
    pub pattern: String,
    /// Its references.
    pub files: Vec<String>,
}

/// Salt's reactor, according to the configuration of the master or minion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaltsReactor {
    /// Whether Salt starts it.
    pub runs: bool,
    /// Whether the engine `saltcellar_reactor` may start it while this daemon does not answer.
    pub fallback: bool,
    /// Its concurrent runners and wheel functions (`reactor_worker_threads`).
    pub workers: usize,
    /// Its rules, in the order of the configuration.
    pub rules: Vec<ListedRule>,
}

/// The settings of the reactor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReactorSettings {
    /// Make no calls, and compare them with those of Salt's reactor.
    pub shadow: bool,
    /// Salt's reactor.
    pub salts: SaltsReactor,
    /// The master's `cluster_id`. Each event of a cluster is on the bus of every master.
    pub cluster_id: Option<String>,
    /// The time after an event within which calls of Salt's reactor are compared with saltcellar's.
    pub shadow_window: Duration,
    /// Events that are older when their turn comes are skipped.
    pub age_max: Duration,
    /// Longer chains of reactions to events of reactions are dead-lettered.
    pub depth_max: u32,
    /// Limits of runners and wheel functions.
    pub runners: RunnerLimits,
    /// Options of rules without their own.
    pub plain: Arc<RuleOptions>,
    /// Options of the rules that have their own.
    pub rules: Vec<Arc<RuleOptions>>,
}

impl Default for ReactorSettings {
    fn default() -> Self {
        Self {
            shadow: false,
            salts: SaltsReactor::default(),
            cluster_id: None,
            shadow_window: REACTOR_SHADOW_WINDOW,
            age_max: REACTOR_EVENT_AGE_MAX,
            depth_max: REACTOR_DEPTH_MAX,
            runners: RunnerLimits::default(),
            plain: Arc::default(),
            rules: Vec::new(),
        }
    }
}

impl ReactorSettings {
    /// Whether the daemon of another master of the cluster reacts to events of this origin ([`Entry::origin`](crate::Entry)). In shadow mode no reactor
    /// of this daemon acts, and Salt's, with which it is compared, reacts to all.
    pub fn is_of_peer(&self, origin: &str) -> bool {
        !origin.is_empty() && self.cluster_id.is_some() && !self.shadow
    }

    /// Whether an election decides if this reactor acts. In a cluster each event has one master; in shadow mode nothing is done.
    pub fn takes_part(&self) -> bool {
        self.cluster_id.is_none() && !self.shadow
    }

    /// The comparison window; `None` unless in shadow.
    pub fn compares(&self) -> Option<Duration> {
        self.shadow.then_some(self.shadow_window)
    }

    /// The options of rules that are rendered together.
    pub fn options_of(&self, rules: &[Arc<str>]) -> &Arc<RuleOptions> {
        let own = match rules {
            [rule] => self.rules.iter().find(|options| options.rule == *rule),
            _ => None,
        };
        own.unwrap_or(&self.plain)
    }

    /// Groups of rules that are rendered together, with their options: rules without their own options form one group, as in Salt.
    pub fn groups(&self, rules: Vec<Arc<str>>) -> Vec<(Vec<Arc<str>>, Arc<RuleOptions>)> {
        let mut plain = Vec::new();
        let mut groups = Vec::new();
        for rule in rules {
            match self.rules.iter().find(|options| options.rule == rule) {
                Some(options) => groups.push((vec![rule], options.clone())),
                None => plain.push(rule),
            }
        }

        if !plain.is_empty() {
            groups.insert(0, (plain, self.plain.clone()));
        }

        groups
    }
}
