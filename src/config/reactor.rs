//! The keys under `reactor`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::cluster::ClusterConfig;
use super::error::{Invalid, at_most, unique, within};
use super::items;
use super::salt_master::Role;
use crate::base::limits::{
    CLUSTER_STREAM_BYTES_MAX, REACTOR_HELPER_MEMORY, REACTOR_HELPER_MEMORY_MIN,
    REACTOR_HELPER_TIME, REACTOR_HELPER_TIME_MAX, REACTOR_HELPER_TIME_MIN, REACTOR_OPTIONS_MAX,
    REACTOR_PROGRAM_TIME, REACTOR_PROGRAM_TIME_MAX, REACTOR_SHADOW_WINDOW_MAX,
    REACTOR_SHADOW_WINDOW_MIN, REACTOR_TRIES_MAX, REACTOR_WORKERS,
};
use crate::model::word;
use crate::model::{Allow, ReactorSettings, RuleOptions};

/// The reactor; off unless `master` or `minion` is set.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReactorConfig {
    /// The master's configuration file; it makes the daemon that master's reactor. `reactor`, `file_roots`, `user`, `cachedir`, `interface`,
    /// `ret_port` and all other options that reactions need come from this file and its includes, which are reread when they change. A change of
    /// this key requires a restart of the daemon. After a change of `interface` or `ret_port`, restart the master soon: reactions are sent to the new
    /// address immediately, and wait until it responds. They also wait while the master's event bus is not connected. The daemon must read the master's
    /// bus (`bus`) and needs read access to the key in its cache. The reactor sees events as they are stored, after `ingest.filter` and
    /// `ingest.redact`. While the master runs Salt's reactor, this one only watches, as with `reactor.shadow`. One line in the master's
    /// configuration switches over, without a change to the rules: `engines: [saltcellar_reactor]` (or one more item in an existing list), followed
    /// by a restart of the master. It is an engine of the extension; its name keeps the master from adding its own reactor, and lets `salt-run
    /// reactor.list`, `add`, `delete`, `is_leader` and `set_leader` pass, to which this reactor responds. Their changes last until the daemon restarts.
    /// `salt://` files are read from `file_roots` directly. Salt fetches those of other file server backends (`fileserver_backend`, needs
    /// `reactor.python`); fetched files are cached for two seconds.
    ///
    /// - value: an absolute path of a file
    /// - default: none: the reactor is off
    /// - example: `/etc/salt/master`
    #[serde(with = "word")]
    pub master: Option<PathBuf>,
    /// Instead of `reactor.master`: a minion's configuration file; it makes the daemon that minion's reactor, with or without a master. `bus` is the
    /// minion's socket directory (`/var/run/salt/minion`). The rules are `reactor` in the minion's files or `reactor.rules`. Only `caller` reactions
    /// run: Salt (`reactor.python`) executes an execution function on this host, as `salt-call` would, one at a time. Other reactions are
    /// dead-lettered, because a minion has no request port. A function that raises is not retried. A function interrupted by the daemon's end runs
    /// again at the next start, unless its rule sets `at_most_once`. While the minion's `engines` list Salt's reactor, this one only watches.
    ///
    /// - value: an absolute path of a file
    /// - default: none: the reactor is off
    /// - example: `/etc/salt/minion`
    #[serde(with = "word")]
    pub minion: Option<PathBuf>,
    /// Rules, in Salt's form, that replace the master's own.
    ///
    /// - value: a list of rules, or an absolute path of a YAML file with one
    /// - default: none: the master's own `reactor`
    /// - example: `[{'salt/minion/*/start': [/srv/reactor/start.sls, 'salt://reactor/sync.sls']}]`
    rules: Option<Json>,
    /// Render reactions and record the resulting calls without making them, for a trial alongside Salt's reactor. `saltcellar reactor diff` shows
    /// the differences between the two.
    ///
    /// - value: true or false
    /// - default: `false`
    /// - example: `true`
    pub shadow: bool,
    /// Shadow only: the time after an event within which Salt's reactor may make its calls, for the comparison of `saltcellar reactor diff`.
    /// Salt handles events one at a time; increase this if it lags behind.
    ///
    /// - value: a time from 1s to 1h
    /// - default: `1m`
    /// - example: `5m`
    #[serde(with = "word")]
    pub shadow_window: Duration,
    /// Options of single rules. `rule` is the pattern exactly as in the list of rules; such a rule is rendered separately from others. The master may
    /// have carried out a call to which it did not respond. A job is then republished under the same jid, which minions run once, unless the log shows
    /// that it was published. A runner or wheel function is not called again: the log is searched for its start for a minute, and without one the
    /// outcome is `unknown`. `at_most_once`: no call is made a second time, including jobs and `caller` functions. `retry_unanswered`: runners and
    /// wheel functions are called again if their start is not in the log, at the risk of running twice. `tries`: how often a call that the master
    /// rejects is tried before it is dead-lettered (5), with a pause of `backoff` (1s) that doubles each time. `rate: 10/1m`: excess reactions wait.
    /// `budget: 100/1h`: excess reactions are skipped, which stops runaway loops; the default of every rule is `1000000/1h`, and `none` removes
    /// the limit. `debounce: 5s`: only a minion's last event counts, after a quiet period of this length. `once_per: 10m`: only a minion's first
    /// event in this period counts. `concurrency`: the number of reactions at a time (8), and of runners in flight (`reactor_worker_threads` of the
    /// master, minus one for other rules). `order`: which events of the rule are handled in order: `minion`, those of one minion and those without a
    /// minion (default); `rule`, all; `none`. `allow`: as `reactor.allow`, for this rule. `saltcellar reactor replay` runs dead-lettered calls.
    ///
    /// - value: a list of items, each with `rule` and any of `at_most_once`, `retry_unanswered`, `tries`, `backoff`, `rate`, `budget`, `debounce`,
    ///   `once_per`, `concurrency`, `order` and `allow`
    /// - default: `[]`
    /// - example: `[{rule: 'salt/minion/*/start', once_per: 10m}, {rule: 'salt/beacon/*', rate: 10/1m, at_most_once: true}]`
    #[serde(serialize_with = "items::without_unset")]
    pub options: Vec<RuleOptions>,
    /// Calls that reactions may make. `client` is local, runner, wheel or caller; `fun` and `tgt` are globs. A call without a matching item is
    /// dead-lettered.
    ///
    /// - value: a list of items, each with `fun` and any of `client` and `tgt`
    /// - default: []: everything
    /// - example: `[{client: local, fun: state.apply}, {client: runner, fun: 'state.*'}, {client: wheel, fun: key.accept}]`
    #[serde(serialize_with = "items::without_unset")]
    pub allow: Vec<Allow>,
    /// An event that is older when its turn comes, because the master or the daemon was down, is skipped; `saltcellar reactor replay` runs its
    /// reactions on demand.
    ///
    /// - value: a time, such as 10m or 1h
    /// - default: `1h`
    /// - example: `10m`
    #[serde(with = "word")]
    pub age_max: Duration,
    /// The longest chain of reactions to events of reactions. A longer chain is considered a loop and ends. The chain is followed through jobs,
    /// runners, `event.send` and orchestrations, even across restarts. It is not followed through events that a state, a script, or a job of an
    /// orchestration with `batch` or `subset` sends; there the rule's `budget` is the limit.
    ///
    /// - value: a number from 1 to 1000
    /// - default: `8`
    /// - example: `3`
    pub depth_max: u32,
    /// For masters whose minions connect to all of them: the reactors of all masters with the same election choose one that acts; the others wait, and
    /// one of them continues when the leader is away. Without it each master's reactor acts on what its bus brings, so an event that a minion sends
    /// to several masters causes a reaction on each. The reactors need the same rules, and a shared history (`cluster.nats`): it keeps the lease of the
    /// leader, and tells the others what was done. With `cluster.replicate: all` the leader also reacts to events that only the bus of
    /// another master had, 10 s later; with `jobs`, to returns of other masters' jobs. A Salt cluster (`cluster_id`) needs no election and ignores this
    /// key, as does a reactor in shadow mode. A change requires a restart of the daemon (docs/CLUSTER.md).
    ///
    /// - value: 1 to 32 letters, digits, `_` and `-`
    /// - default: none: this master's reactor acts
    /// - example: `reactors`
    pub election: Option<String>,
    /// With `reactor.election`, while NATS cannot say who leads: `stop`, reactions wait, up to `reactor.age_max`; or `act`, every reactor acts, and an event
    /// may cause a reaction on each master.
    ///
    /// - value: stop or act
    /// - default: `stop`
    /// - example: `act`
    pub without_quorum: WithoutQuorum,
    /// The Python in which Salt is installed. Files that are not rendered natively (`#!py`, most functions of `salt`, macros, imports, rare filters)
    /// are rendered by Salt's renderers in a separate process, which also has Salt's grains, and the signatures of runners and wheel functions for
    /// reactions without `args`; without it these fail. The process runs as Salt's `user`: a daemon that
    /// runs as root switches to it; a daemon of another user can use only its own. The process imports modules from Salt's installation only, not
    /// from the current directory or `PYTHONPATH`. If it dies, its file is rerendered, up to three times in all.
    ///
    /// - value: an absolute path of a Python interpreter
    /// - default: the interpreter of `salt-master`, `salt-call` or `salt` in `PATH`, or /opt/saltstack/salt/bin/python3
    /// - example: `/opt/saltstack/salt/bin/python3`
    #[serde(with = "word")]
    pub python: Option<PathBuf>,
    /// Limit of the data of one process of Salt's Python that renders files (`RLIMIT_DATA`). A file that needs more fails with `MemoryError`.
    /// Commands that a template starts inherit the limit. Processes that run `caller` reactions are not limited. The kernel's OOM killer kills either
    /// kind before the daemon.
    ///
    /// - value: a size from 256MiB on, or none
    /// - default: `1GiB`
    /// - example: `2GiB`
    #[serde(with = "word::or_none")]
    pub helper_memory: Option<u64>,
    /// Time limit of Salt's Python for one file that is not rendered natively, with all functions that it calls. When it is over, the process
    /// is killed, and the reaction fails; `saltcellar reactor replay` retries it. Files that are programs have a limit of their own
    /// (`reactor.program_timeout`). Functions of `caller` reactions may take an hour.
    ///
    /// - value: a time from 1s to 1h
    /// - default: `30s`
    /// - example: `5m`
    #[serde(with = "word")]
    pub helper_timeout: Duration,
    /// Time limit of Salt's Python for one file that is a program: `#!py`, `#!pyobjects`, `#!pydsl`, or one with a renderer of the site. Salt
    /// itself waits without limit. When the time is over, the process is killed, whatever the program has done by then, and the reaction
    /// fails. A higher `reactor.helper_timeout` also applies to these files.
    ///
    /// - value: a time from 1s to 1d
    /// - default: `10m`
    /// - example: `2h`
    #[serde(with = "word")]
    pub program_timeout: Duration,
}

/// What a reactor does while it is unknown which one leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutQuorum {
    /// Nothing.
    #[default]
    Stop,
    /// All that it would do as the leader.
    Act,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        // Settings made without a configuration have the same defaults.
        let ReactorSettings {
            shadow,
            shadow_window,
            age_max,
            depth_max,
            ..
        } = ReactorSettings::default();

        let (master, minion, rules, options, allow, python) = Default::default();
        let (election, without_quorum) = Default::default();
        let helper_memory = Some(REACTOR_HELPER_MEMORY);
        let helper_timeout = REACTOR_HELPER_TIME;
        let program_timeout = REACTOR_PROGRAM_TIME;

        Self {
            master,
            minion,
            rules,
            shadow,
            shadow_window,
            options,
            allow,
            age_max,
            depth_max,
            election,
            without_quorum,
            python,
            helper_memory,
            helper_timeout,
            program_timeout,
        }
    }
}

fn from_json(value: Json) -> salt_sls::Value {
    match value {
        Json::Null => salt_sls::Value::Null,
        Json::Bool(b) => salt_sls::Value::Bool(b),
        Json::Number(n) => n.as_i64().map_or_else(
            || salt_sls::Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            salt_sls::Value::Int,
        ),
        Json::String(text) => salt_sls::Value::Str(text),
        Json::Array(items) => salt_sls::Value::List(items.into_iter().map(from_json).collect()),
        Json::Object(map) => salt_sls::Value::Map(
            map.into_iter()
                .map(|(key, value)| (key.into(), from_json(value)))
                .collect(),
        ),
    }
}

impl ReactorConfig {
    /// The role of the reactor, the configuration file of its master or minion, and the key that names it; `None` if it is off.
    pub fn of_whom(&self) -> Option<(Role, &Path, &'static str)> {
        let master = self
            .master
            .as_deref()
            .map(|path| (Role::Master, path, "reactor.master"));
        master.or_else(|| {
            self.minion
                .as_deref()
                .map(|path| (Role::Minion, path, "reactor.minion"))
        })
    }

    /// Rules that replace the master's: a list in Salt's form, or the path of a file with one.
    pub fn rules(&self) -> Option<salt_sls::Value> {
        self.rules.clone().map(from_json)
    }

    /// Scheduling and limits, with the general `allow` in each rule without its own.
    pub fn effective(&self) -> ReactorSettings {
        // For rules without an item in `reactor.options`.
        let plain = Arc::new(RuleOptions {
            allow: self.allow.clone(),
            ..RuleOptions::default()
        });

        // A rule's own list replaces the general one.
        let mut rules = self.options.clone();
        for rule in rules.iter_mut().filter(|rule| rule.allow.is_empty()) {
            rule.allow.clone_from(&self.allow);
        }

        ReactorSettings {
            shadow: self.shadow,
            shadow_window: self.shadow_window,
            age_max: self.age_max,
            depth_max: self.depth_max,
            plain,
            rules: rules.into_iter().map(Arc::new).collect(),
            ..ReactorSettings::default()
        }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        within("reactor.depth_max", &self.depth_max, 1..=1000)?;
        let window = REACTOR_SHADOW_WINDOW_MIN..=REACTOR_SHADOW_WINDOW_MAX;
        within("reactor.shadow_window", &self.shadow_window, window)?;

        if let Some(bytes) = self.helper_memory {
            within("reactor.helper_memory", &bytes, REACTOR_HELPER_MEMORY_MIN..)?;
        }

        within(
            "reactor.helper_timeout",
            &self.helper_timeout,
            REACTOR_HELPER_TIME_MIN..=REACTOR_HELPER_TIME_MAX,
        )?;
        within(
            "reactor.program_timeout",
            &self.program_timeout,
            REACTOR_HELPER_TIME_MIN..=REACTOR_PROGRAM_TIME_MAX,
        )?;

        if let Some(election) = &self.election {
            const KEY: &str = "reactor.election";
            // Like the stream's name it becomes a token of a subject.
            if !ClusterConfig::is_stream_name(election) {
                let problem = format!(
                    "{election:?} is not accepted; give 1 to {CLUSTER_STREAM_BYTES_MAX} letters, digits, _ and -"
                );
                return Err(Invalid::new(KEY, problem));
            }
            if self.master.is_none() {
                let problem = "only the reactor of a master takes part; give reactor.master";
                return Err(Invalid::new(KEY, problem));
            }
        }

        check_rules(self.rules.as_ref())?;
        check_allow("reactor.allow", &self.allow)?;
        at_most("reactor.options", self.options.len(), REACTOR_OPTIONS_MAX)?;

        for (n, options) in self.options.iter().enumerate() {
            let key = |name: &str| format!("reactor.options[{n}].{name}");
            if options.rule.is_empty() {
                let problem = "missing; give the rule's pattern exactly as in the list of rules";
                return Err(Invalid::new(key("rule"), problem));
            }

            within(key("tries"), &options.tries, 1..=REACTOR_TRIES_MAX)?;
            // Without a value the default applies, which is within the range.
            within(
                key("concurrency"),
                &options.concurrency.unwrap_or(1),
                1..=REACTOR_WORKERS,
            )?;
            check_allow(&key("allow"), &options.allow)?;
        }

        // Options are looked up by the pattern, so it must be unique.
        let rules: Vec<_> = self
            .options
            .iter()
            .map(|options| options.rule.to_string())
            .collect();

        unique("reactor.options", "rule", &rules)
    }
}

fn check_allow(key: &str, allow: &[Allow]) -> Result<(), Invalid> {
    at_most(key, allow.len(), REACTOR_OPTIONS_MAX)?;
    // The clients of Salt's reactor.
    let clients = [
        None,
        Some("local"),
        Some("runner"),
        Some("wheel"),
        Some("caller"),
    ];

    match allow
        .iter()
        .position(|allow| !clients.contains(&allow.client.as_deref()))
    {
        Some(n) => {
            let problem = "the client is not accepted; give local, runner, wheel or caller";
            Err(Invalid::new(format!("{key}[{n}].client"), problem))
        }
        None => Ok(()),
    }
}

fn check_rules(rules: Option<&Json>) -> Result<(), Invalid> {
    const KEY: &str = "reactor.rules";
    match rules {
        None => Ok(()),
        // Loading a configuration reads no other file, so the reactor checks this one.
        Some(Json::String(path)) if path.starts_with('/') => Ok(()),
        Some(Json::Array(items)) => {
            let is_rule = |item: &Json| item.as_object().is_some_and(|rule| rule.len() == 1);
            let Some(n) = items.iter().position(|item| !is_rule(item)) else {
                return Ok(());
            };

            let problem = "it is not a rule; give one pattern with its file or list of files, such as \
                           'salt/minion/*/start': [/srv/reactor/start.sls]";
            Err(Invalid::new(format!("{KEY}[{n}]"), problem))
        }
        Some(other) => {
            let accepted = "give a list of rules, or an absolute path of a YAML file with one";
            Err(Invalid::new(
                KEY,
                format!("{other} is not accepted; {accepted}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::REACTOR_BUDGET;
    use crate::config::tests::{assert_errors, assert_round_trip};
    use crate::model::Rate;

    #[test]
    fn an_election_is_read_and_rendered_and_needs_a_master_and_a_shared_history() {
        let config = assert_round_trip(
            "cluster: {nats: {servers: ['nats://n1']}}\nreactor: {master: /m, election: hot, without_quorum: act}\n",
        );
        let reactor = &config.reactor;
        assert_eq!(
            (reactor.election.as_deref(), reactor.without_quorum),
            (Some("hot"), WithoutQuorum::Act)
        );

        assert_errors(&[
            (
                "reactor: {master: /m, election: hot}\n",
                "c.yaml:1: reactor.election: the reactors of several masters meet in a shared history; give cluster.nats",
            ),
            (
                "reactor: {minion: /m, election: hot}\n",
                "c.yaml:1: reactor.election: only the reactor of a master takes part; give reactor.master",
            ),
            (
                "reactor: {master: /m, election: a.b}\n",
                "c.yaml:1: reactor.election: \"a.b\" is not accepted; give 1 to 32 letters, digits, _ and -",
            ),
            (
                "reactor.without_quorum: wait\n",
                "c.yaml:1: reactor.without_quorum: ",
            ),
        ]);
    }

    #[test]
    fn rendered_options_are_read_back_equal() {
        let config = assert_round_trip(
            "reactor.options: [{rule: 'a/*', at_most_once: true, retry_unanswered: true, tries: 3, backoff: 2s, rate: 10/1m, \
             budget: 100/1h, debounce: 5s, once_per: 10m, concurrency: 2, order: rule, \
             allow: [{client: local, fun: 'test.*', tgt: 'web*'}, {fun: x}]}]",
        );
        let [options] = config.reactor.options.as_slice() else {
            panic!()
        };
        assert_eq!(
            options.rate,
            Some(Rate {
                times: 10,
                per: Duration::from_secs(60)
            })
        );
        let allow = &options.allow[0];
        assert!(allow.allows("local", "test.ping", "web1"));
        assert!(
            !allow.allows("local", "test.ping", "db1") && !allow.allows("runner", "test.x", "")
        );
        let config = assert_round_trip("reactor.options: [{rule: a, budget: none}, {rule: b}]");
        let budgets: Vec<_> = config
            .reactor
            .options
            .iter()
            .map(|o| o.budget.map(|rate| rate.times))
            .collect();
        assert_eq!(budgets, [None, Some(REACTOR_BUDGET)]);
    }

    #[test]
    fn rules_are_read_as_salt_writes_them() {
        let config = assert_round_trip(
            "reactor:\n  rules:\n  - 'a/*': [/b.sls, 'salt://c.sls']\n  - d: []\n",
        );
        let text = |text: &str| salt_sls::Value::from(text);
        let files = |files: Vec<salt_sls::Value>| salt_sls::Value::List(files);
        let rule = |name: &str, list| {
            salt_sls::Value::Map([(name.into(), files(list))].into_iter().collect())
        };
        let rules = vec![
            rule("a/*", vec![text("/b.sls"), text("salt://c.sls")]),
            rule("d", Vec::new()),
        ];
        assert_eq!(config.reactor.rules(), Some(salt_sls::Value::List(rules)));
        assert_eq!(
            assert_round_trip("reactor.rules: /a/b.yaml")
                .reactor
                .rules(),
            Some("/a/b.yaml".into())
        );
    }

    #[test]
    fn errors_name_their_position() {
        let options = |text: &str, expected: &str| {
            let (text, expected) = (
                format!("reactor.options:\n{text}"),
                format!("c.yaml:{expected}"),
            );
            assert_errors(&[(&text, &expected)]);
        };
        options(
            "- {rule: a}\n- {rule: a}\n",
            "3: reactor.options[1].rule: the rule \"a\" appears twice",
        );
        options("- {tries: 2}\n", "2: reactor.options[0].rule: missing");
        options(
            "- rule: a\n  rate: 10\n",
            "3: reactor.options[0].rate: \"10\" is not accepted; give a number and a time",
        );
        options(
            "- rule: a\n  budget: x\n",
            "3: reactor.options[0].budget: \"x\" is not accepted; give a number and a time",
        );
        options(
            "- rule: a\n  concurrency: 0\n",
            "3: reactor.options[0].concurrency: \"0\" is not accepted",
        );
        options(
            "- rule: a\n  order: odd\n",
            "3: reactor.options[0].order: unknown variant `odd`, expected one of `rule`, `minion`, `none`",
        );
        options(
            "- rule: a\n  odd: 0\n",
            "3: reactor.options[0].odd: unknown field `odd`, expected one of `rule`",
        );
        options(
            "- rule: a\n  allow: [{tgt: x}]\n",
            "3: reactor.options[0].allow[0]: missing field `fun`",
        );
        options(
            "- rule: a\n  allow: []\n",
            "3: reactor.options[0].allow: an empty list is not accepted",
        );
        options(
            "- rule: a\n  allow: [{fun: x, client: ssh}]\n",
            "3: reactor.options[0].allow[0].client: the client",
        );
        assert_errors(&[
            (
                "reactor.rules:\n- a: [x]\n- b\n",
                "c.yaml:3: reactor.rules[1]: it is not a rule; give one pattern",
            ),
            (
                "reactor.rules: relative",
                "c.yaml:1: reactor.rules: \"relative\" is not accepted; give a list of rules",
            ),
            (
                "reactor.depth_max: 0",
                "c.yaml:1: reactor.depth_max: \"0\" is not accepted; give a value from 1 to 1000",
            ),
        ]);
        for window in ["0s", "2h", "soon", "10"] {
            assert_errors(&[(
                &format!("reactor.shadow_window: {window}"),
                "c.yaml:1: reactor.shadow_window: ",
            )]);
        }
        for memory in ["0", "255MiB", "much", "-1"] {
            assert_errors(&[(
                &format!("reactor.helper_memory: {memory}"),
                "c.yaml:1: reactor.helper_memory: ",
            )]);
        }
        let config = assert_round_trip(
            "reactor: {shadow_window: 1h, helper_memory: 256MiB, helper_timeout: 5m, program_timeout: 2h}",
        )
        .reactor;
        assert_eq!(
            (config.shadow_window.as_secs(), config.helper_memory),
            (3600, Some(256 << 20))
        );
        assert_eq!(config.helper_timeout.as_secs(), 300);
        assert_eq!(config.program_timeout.as_secs(), 7200);
        assert_eq!(
            assert_round_trip("reactor.helper_memory: none")
                .reactor
                .helper_memory,
            None
        );
    }
}
