//! What the configuration says about how the reactor's rules run. A rule is known by its pattern, as in the list under `reactor`.

use std::sync::Arc;
use std::time::Duration;

use super::Glob;
use crate::limits::{
    REACTOR_BACKOFF, REACTOR_BACKOFF_MAX, REACTOR_BUDGET, REACTOR_BUDGET_PER, REACTOR_DEPTH_MAX,
    REACTOR_EVENT_AGE_MAX, REACTOR_SHADOW_WINDOW, REACTOR_TRIES, REACTOR_WORKERS,
};

/// How often something may happen: so many times in so much time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// So many times.
    pub times: u32,
    /// In so much time.
    pub per: Duration,
}

/// Which of the events that a rule takes wait for one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RuleOrder {
    /// All.
    Rule,
    /// Those of one minion, and those without one.
    #[default]
    Minion,
    /// None.
    None,
}

/// How many runners and wheel functions the reactor has under way on the master: its `reactor_worker_threads` and `reactor_worker_hwm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// At once.
    pub threads: u32,
    /// Rendered reactions that wait for one; no limit if none. Events beyond it wait in the log.
    pub waiting: Option<usize>,
}

impl Default for RunnerLimits {
    /// As Salt.
    fn default() -> Self {
        Self { threads: 10, waiting: Some(10_000) }
    }
}

/// How one rule runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOptions {
    /// Its pattern; empty for the options of rules that have none of their own.
    pub rule: Arc<str>,
    /// A call is never made a second time, even if nobody knows whether the first one reached the master.
    pub at_most_once: bool,
    /// A runner or a wheel function is called again if no answer came and the log does not show its start.
    pub retry_unanswered: bool,
    /// How often a call is tried before it is set aside.
    pub tries: u32,
    /// The pause before the second try; it doubles with each, up to [`REACTOR_BACKOFF_MAX`].
    pub backoff: Duration,
    /// Reactions beyond it wait.
    pub rate: Option<Rate>,
    /// Reactions beyond it are dead-lettered, which stops runaway loops; `None` for no limit.
    pub budget: Option<Rate>,
    /// Only the last event of a minion counts, once it has been quiet for so long.
    pub debounce: Option<Duration>,
    /// Only the first event of a minion counts, in so much time.
    pub once_per: Option<Duration>,
    /// So many reactions at once, and so many runners under way.
    pub concurrency: Option<u32>,
    /// Which events wait for one another.
    pub order: RuleOrder,
    /// What it may call; anything if empty.
    pub allow: Vec<Allow>,
}

/// Something that reactions may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// `local`, `runner`, `wheel` or `caller`; any if it is none.
    pub client: Option<String>,
    /// The function.
    pub fun: Glob,
    /// The target, of a `local`.
    pub tgt: Option<Glob>,
}

impl Allow {
    /// Does it allow that?
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
            budget: Some(Rate { times: REACTOR_BUDGET, per: REACTOR_BUDGET_PER }),
            debounce: None,
            once_per: None,
            concurrency: None,
            order: RuleOrder::default(),
            allow: Vec::new(),
        }
    }
}

impl RuleOptions {
    /// So many reactions at once: by default half of the workers, so that a rule whose template is slow leaves the rest to the others.
    pub fn concurrency(&self) -> u32 {
        self.concurrency.unwrap_or(REACTOR_WORKERS / 2)
    }

    /// The pause before the next try, after so many.
    pub fn pause(&self, tried: u32) -> Duration {
        let doubled = 1_u32.checked_shl(tried.saturating_sub(1).min(20)).unwrap_or(u32::MAX);
        self.backoff.saturating_mul(doubled).min(REACTOR_BACKOFF_MAX)
    }
}

/// A rule as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    /// Its pattern.
    pub pattern: String,
    /// What it refers to.
    pub files: Vec<String>,
}

/// Salt's own reactor, by the configuration of the master or the minion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaltsReactor {
    /// Salt starts it.
    pub runs: bool,
    /// Runners and wheel functions that it runs at once (`reactor_worker_threads`).
    pub workers: usize,
    /// Its rules.
    pub rules: Vec<ListedRule>,
}

/// How the reactor runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReactorSettings {
    /// Nothing is dispatched; what would have been is compared with what Salt's own reactor did.
    pub shadow: bool,
    /// The reactor beside ours.
    pub salts: SaltsReactor,
    /// How long after an event Salt's own reactor may do what is held against ours.
    pub shadow_window: Duration,
    /// Events that are older when their turn comes are set aside.
    pub age_max: Duration,
    /// Reactions to events of reactions to events... beyond so many are set aside.
    pub depth_max: u32,
    /// How many runners are under way on the master.
    pub runners: RunnerLimits,
    /// Of rules that have no options of their own.
    pub plain: Arc<RuleOptions>,
    /// Of rules that have.
    pub rules: Vec<Arc<RuleOptions>>,
}

impl Default for ReactorSettings {
    fn default() -> Self {
        Self {
            shadow: false,
            salts: SaltsReactor::default(),
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
    /// In shadow, the window within which calls are compared.
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

    /// Rules that are rendered together, with their options: those without options of their own are, as Salt does it with all.
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
