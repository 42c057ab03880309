//! The keys under `reactor`: parsing and rendering.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::keys::{ValueError, text};
use super::raw::{ConfigEntry, ConfigNode, Value};
use super::salt_master::Role;
use super::{duration, size};
use crate::limits::{
    REACTOR_HELPER_MEMORY, REACTOR_HELPER_MEMORY_MIN, REACTOR_OPTIONS_MAX, REACTOR_SHADOW_WINDOW_MAX,
    REACTOR_SHADOW_WINDOW_MIN, REACTOR_TRIES_MAX, REACTOR_WORKERS,
};
use crate::model::{Allow, Glob, Rate, ReactorSettings, RuleOptions, RuleOrder};
use crate::sls;

/// The reactor; off unless `master` or `minion` is set.
#[derive(Debug, Clone, PartialEq)]
pub struct ReactorConfig {
    /// The master's own configuration file.
    pub master: Option<PathBuf>,
    /// A minion's configuration file.
    pub minion: Option<PathBuf>,
    /// Rules that replace the master's: a list in Salt's form, or the path of a file with one.
    pub rules: Option<sls::Value>,
    /// Salt's Python, for files that are not rendered natively.
    pub python: Option<PathBuf>,
    /// Bytes of data of one process of Salt's Python; `None` for no limit.
    pub helper_memory: Option<u64>,
    /// Scheduling and limits.
    pub settings: ReactorSettings,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        let (master, minion, rules, python, settings) = Default::default();
        Self { master, minion, rules, python, helper_memory: Some(REACTOR_HELPER_MEMORY), settings }
    }
}

impl ReactorConfig {
    /// The role of the reactor, the configuration file of its master or minion, and the key that names it; `None` if it is off.
    pub fn of_whom(&self) -> Option<(Role, &Path, &'static str)> {
        let master = self.master.as_deref().map(|path| (Role::Master, path, "reactor.master"));
        master.or_else(|| self.minion.as_deref().map(|path| (Role::Minion, path, "reactor.minion")))
    }

    /// The settings, with the general `allow` in each rule without its own.
    pub fn effective(&self) -> ReactorSettings {
        let mut settings = self.settings.clone();
        let general = settings.plain.allow.clone();
        for rule in &mut settings.rules {
            if rule.allow.is_empty() && !general.is_empty() {
                let mut own = (**rule).clone();
                own.allow.clone_from(&general);
                *rule = Arc::new(own);
            }
        }
        settings
    }
}

fn bad(line: usize, at: &str, problem: String, accepted: &str) -> ValueError {
    ValueError { line: Some(line), at: at.to_owned(), problem, accepted: Some(accepted.to_owned()) }
}

/// Reads `reactor.rules`.
pub(super) fn read_rules(value: &Value) -> Result<Option<sls::Value>, ValueError> {
    match value {
        Value::Text(path) if path.starts_with('/') => Ok(Some(path.as_str().into())),
        Value::List(items) => {
            for (n, item) in items.iter().enumerate() {
                let is_rule = matches!(&item.value, Value::Map(entries) if entries.len() == 1);
                if !is_rule {
                    let accepted = "give one pattern with its file or list of files, such as 'salt/minion/*/start': [/srv/reactor/start.sls]";
                    return Err(bad(item.line, &format!("[{n}]"), item.value.noun(), accepted));
                }
            }
            Ok(Some(plain(value)))
        }
        other => Err(ValueError::from(format!("{} is not accepted", other.noun()))),
    }
}

fn plain(value: &Value) -> sls::Value {
    match value {
        Value::Null => sls::Value::Null,
        Value::Text(text) => text.as_str().into(),
        Value::List(items) => sls::Value::List(items.iter().map(|item| plain(&item.value)).collect()),
        Value::Map(entries) => sls::Value::Map(
            entries.iter().map(|entry| (entry.name.as_str().into(), plain(&entry.node.value))).collect(),
        ),
    }
}

/// `reactor.rules` as in a configuration file.
pub(super) fn show_rules(rules: Option<&sls::Value>) -> Json {
    match rules {
        None | Some(sls::Value::Null) => Json::Null,
        Some(sls::Value::List(items)) => items.iter().map(|item| show_rules(Some(item))).collect(),
        Some(sls::Value::Map(map)) => {
            let pairs = map
                .iter()
                .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), show_rules(Some(value)))));
            Json::Object(pairs.collect::<JsonMap<_, _>>())
        }
        Some(other) => other.as_str().map_or(Json::Null, Json::from),
    }
}

/// Reads a boolean.
pub(super) fn truth(value: &Value) -> Result<bool, ValueError> {
    match text(value)? {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(ValueError::from(format!("{other:?} is not accepted"))),
    }
}

/// Reads `reactor.shadow_window`.
pub(super) fn window(value: &Value) -> Result<Duration, ValueError> {
    let within = REACTOR_SHADOW_WINDOW_MIN..=REACTOR_SHADOW_WINDOW_MAX;
    let window = duration::parse(text(value)?).filter(|window| within.contains(window));
    window.ok_or_else(|| ValueError::from(format!("{} is not accepted", value.noun())))
}

/// Reads `reactor.helper_memory`.
pub(super) fn helper_memory(value: &Value) -> Result<Option<u64>, ValueError> {
    let text = text(value)?;
    let bytes = size::parse(text).filter(|bytes| *bytes >= REACTOR_HELPER_MEMORY_MIN);
    if bytes.is_none() && text != "none" {
        return Err(ValueError::from(format!("{text:?} is not accepted")));
    }
    Ok(bytes)
}

/// Reads `reactor.depth_max`.
pub(super) fn depth(value: &Value) -> Result<u32, ValueError> {
    let depth = text(value)?.parse().ok().filter(|depth| (1..=1000).contains(depth));
    depth.ok_or_else(|| ValueError::from(format!("{} is not accepted", value.noun())))
}

/// Changes the options that apply to all rules.
pub(super) fn put_plain(config: &mut ReactorConfig, change: impl FnOnce(&mut RuleOptions)) {
    let mut plain = (*config.settings.plain).clone();
    change(&mut plain);
    config.settings.plain = Arc::new(plain);
}

/// Reads `reactor.allow`.
pub(super) fn read_allow(value: &Value) -> Result<Vec<Allow>, ValueError> {
    allows(value, 0, "")
}

fn allows(value: &Value, line: usize, at: &str) -> Result<Vec<Allow>, ValueError> {
    const ACCEPTED: &str =
        "give a list of rules, each with `fun` and any of `client` (local, runner, wheel, caller) and `tgt`";
    let place = |line: usize, at: &str, problem: String| {
        if line == 0 {
            ValueError { accepted: Some(ACCEPTED.to_owned()), ..ValueError::from(problem) }
        } else {
            bad(line, at, problem, ACCEPTED)
        }
    };
    let Value::List(items) = value else { return Err(place(line, at, value.noun())) };
    // For all rules an empty list is the default; for one rule it would be ambiguous.
    if (items.is_empty() && line > 0) || items.len() > REACTOR_OPTIONS_MAX {
        return Err(place(line, at, format!("a list of {}", items.len())));
    }
    let mut found = Vec::new();
    for (n, item) in items.iter().enumerate() {
        let at = format!("{at}[{n}]");
        let keys = entries(item, &at, &["client", "fun", "tgt"])?;
        let glob = |name: &str| find(keys, name).map(|node| text(&node.value).map(Glob::new)).transpose();
        let client = find(keys, "client").map(|node| match text(&node.value) {
            Ok(name @ ("local" | "runner" | "wheel" | "caller")) => Ok(name.to_owned()),
            _ => Err(bad(node.line, &format!("{at}.client"), node.value.noun(), ACCEPTED)),
        });
        let fun = glob("fun")?
            .ok_or_else(|| bad(item.line, &format!("{at}.fun"), "missing".to_owned(), ACCEPTED))?;
        found.push(Allow { client: client.transpose()?, fun, tgt: glob("tgt")? });
    }
    Ok(found)
}

/// Reads `reactor.options`.
pub(super) fn read_options(value: &Value) -> Result<Vec<Arc<RuleOptions>>, ValueError> {
    let Value::List(items) = value else {
        return Err(ValueError::from(format!("{} is not accepted", value.noun())));
    };
    if items.len() > REACTOR_OPTIONS_MAX {
        let accepted = Some(format!("give at most {REACTOR_OPTIONS_MAX}"));
        return Err(ValueError { accepted, ..ValueError::from(format!("{} items", items.len())) });
    }
    let mut found: Vec<Arc<RuleOptions>> = Vec::new();
    for (n, item) in items.iter().enumerate() {
        let options = one(item, &format!("[{n}]"))?;
        if found.iter().any(|known| known.rule == options.rule) {
            let problem = format!("the rule {:?} appears twice", options.rule);
            return Err(bad(item.line, &format!("[{n}].rule"), problem, "give each rule one item"));
        }
        found.push(Arc::new(options));
    }
    Ok(found)
}

const NAMES: [&str; 12] = [
    "rule",
    "at_most_once",
    "retry_unanswered",
    "tries",
    "backoff",
    "rate",
    "budget",
    "debounce",
    "once_per",
    "concurrency",
    "order",
    "allow",
];

fn one(item: &ConfigNode, at: &str) -> Result<RuleOptions, ValueError> {
    let keys = entries(item, at, &NAMES)?;
    let place = |name: &str| format!("{at}.{name}");
    let pattern = find(keys, "rule").map(|node| text(&node.value)).transpose()?;
    let accepted = "give the rule's pattern exactly as in the list of rules";
    let pattern = pattern.ok_or_else(|| bad(item.line, &place("rule"), "missing".to_owned(), accepted))?;
    let mut options = RuleOptions { rule: pattern.into(), ..RuleOptions::default() };
    for entry in keys {
        let (node, name) = (&entry.node, entry.name.as_str());
        let no = |accepted: &str| bad(node.line, &place(name), node.value.noun(), accepted);
        let word = || text(&node.value).map_err(|_| no("give one value"));
        let number = |max: u32| {
            let accepted = format!("give a number from 1 to {max}");
            word()?.parse().ok().filter(|n| (1..=max).contains(n)).ok_or_else(|| no(&accepted))
        };
        let time = || duration::parse(word()?).ok_or_else(|| no("give a time, such as 30s or 10m"));
        let rate = || rate(word()?).ok_or_else(|| no("give a number and a time, such as 10/1m"));
        match name {
            "at_most_once" => {
                options.at_most_once = truth(&node.value).map_err(|_| no("give true or false"))?;
            }
            "retry_unanswered" => {
                options.retry_unanswered = truth(&node.value).map_err(|_| no("give true or false"))?;
            }
            "tries" => options.tries = number(REACTOR_TRIES_MAX)?,
            "backoff" => options.backoff = time()?,
            "rate" => options.rate = Some(rate()?),
            "budget" if word()? == "none" => options.budget = None,
            "budget" => {
                let accepted = "give a number and a time, such as 100/1h, or none";
                options.budget = Some(self::rate(word()?).ok_or_else(|| no(accepted))?);
            }
            "debounce" => options.debounce = Some(time()?),
            "once_per" => options.once_per = Some(time()?),
            "concurrency" => options.concurrency = Some(number(REACTOR_WORKERS)?),
            "order" => {
                options.order = match word()? {
                    "rule" => RuleOrder::Rule,
                    "minion" => RuleOrder::Minion,
                    "none" => RuleOrder::None,
                    _ => return Err(no("give rule, minion or none")),
                }
            }
            "allow" => options.allow = allows(&node.value, node.line, &place("allow"))?,
            _ => {}
        }
    }
    Ok(options)
}

/// `10/1m`
fn rate(word: &str) -> Option<Rate> {
    let (times, per) = word.split_once('/')?;
    let times = times.trim().parse().ok().filter(|times| *times > 0)?;
    let per = duration::parse(per.trim()).filter(|per| *per > Duration::ZERO)?;
    Some(Rate { times, per })
}

fn show_rate(rate: Rate) -> Json {
    Json::from(format!("{}/{}", rate.times, duration::show(rate.per)))
}

fn show_order(order: RuleOrder) -> Json {
    Json::from(match order {
        RuleOrder::Rule => "rule",
        RuleOrder::Minion => "minion",
        RuleOrder::None => "none",
    })
}

/// `reactor.allow` as in a configuration file.
pub(super) fn show_allow(allow: &[Allow]) -> Json {
    let one = |allow: &Allow| {
        let mut map = JsonMap::new();
        map.extend(allow.client.clone().map(|client| ("client".to_owned(), Json::from(client))));
        map.insert("fun".to_owned(), Json::from(allow.fun.as_str()));
        map.extend(allow.tgt.as_ref().map(|tgt| ("tgt".to_owned(), Json::from(tgt.as_str()))));
        Json::Object(map)
    };
    allow.iter().map(one).collect()
}

/// `reactor.options` as in a configuration file.
pub(super) fn show_options(rules: &[Arc<RuleOptions>]) -> Json {
    let default = RuleOptions::default();
    let one = |rule: &Arc<RuleOptions>| {
        let time = |time: Duration| Json::from(duration::show(time));
        let fields = [
            ("rule", Some(json!(*rule.rule))),
            ("at_most_once", rule.at_most_once.then_some(Json::Bool(true))),
            ("retry_unanswered", rule.retry_unanswered.then_some(Json::Bool(true))),
            ("tries", (rule.tries != default.tries).then_some(json!(rule.tries))),
            ("backoff", (rule.backoff != default.backoff).then(|| time(rule.backoff))),
            ("rate", rule.rate.map(show_rate)),
            (
                "budget",
                (rule.budget != default.budget).then(|| rule.budget.map_or_else(|| "none".into(), show_rate)),
            ),
            ("debounce", rule.debounce.map(time)),
            ("once_per", rule.once_per.map(time)),
            ("concurrency", rule.concurrency.map(Json::from)),
            ("order", (rule.order != default.order).then(|| show_order(rule.order))),
            ("allow", (!rule.allow.is_empty()).then(|| show_allow(&rule.allow))),
        ];
        let pairs = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Json::Object(pairs.collect())
    };
    rules.iter().map(one).collect()
}

fn entries<'a>(node: &'a ConfigNode, at: &str, known: &[&str]) -> Result<&'a [ConfigEntry], ValueError> {
    let accepted = format!("give a mapping with {}", known.join(", "));
    let Value::Map(entries) = &node.value else {
        return Err(bad(node.line, at, node.value.noun(), &accepted));
    };
    match entries.iter().find(|entry| !known.contains(&entry.name.as_str())) {
        Some(odd) => Err(bad(odd.line, &format!("{at}.{}", odd.name), "unknown key".to_owned(), &accepted)),
        None => Ok(entries),
    }
}

fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> Option<&'a ConfigNode> {
    entries.iter().find(|entry| entry.name == name).map(|entry| &entry.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw;

    fn read<T>(yaml: &str, read: impl Fn(&Value) -> Result<T, ValueError>) -> Result<T, String> {
        let node = raw::parse(yaml).unwrap();
        read(&node.value).map_err(|bad| format!("{}{}: {}", bad.line.unwrap_or(0), bad.at, bad.problem))
    }

    #[test]
    fn rendered_options_are_read_back_equal() {
        let yaml = "[{rule: 'a/*', at_most_once: true, retry_unanswered: true, tries: 3, backoff: 2s, rate: 10/1m, budget: 100/1h, debounce: 5s, \
                    once_per: 10m, concurrency: 2, order: rule, allow: [{client: local, fun: 'test.*', tgt: 'web*'}, {fun: x}]}]";
        let options = read(yaml, read_options).unwrap();
        let shown = show_options(&options).to_string();
        assert_eq!(read(&shown, read_options).unwrap(), options);
        assert_eq!(options[0].rate, Some(Rate { times: 10, per: Duration::from_secs(60) }));
        assert!(options[0].allow[0].allows("local", "test.ping", "web1"));
        let options = read("[{rule: a, budget: none}, {rule: b}]", read_options).unwrap();
        assert_eq!((options[0].budget, options[1].budget.is_some()), (None, true));
        assert_eq!(read(&show_options(&options).to_string(), read_options).unwrap(), options);
        let options = read(yaml, read_options).unwrap();
        assert!(
            !options[0].allow[0].allows("local", "test.ping", "db1")
                && !options[0].allow[0].allows("runner", "test.x", "")
        );
    }

    #[test]
    fn errors_name_their_position() {
        for (yaml, expected) in [
            ("\n- {rule: a}\n- {rule: a}\n", "3[1].rule: the rule \"a\" appears twice"),
            ("\n- {tries: 2}\n", "2[0].rule: missing"),
            ("\n- rule: a\n  rate: 10\n", "3[0].rate: \"10\""),
            ("\n- rule: a\n  concurrency: 0\n", "3[0].concurrency: \"0\""),
            ("\n- rule: a\n  order: odd\n", "3[0].order: \"odd\""),
            ("\n- rule: a\n  odd: 0\n", "3[0].odd: unknown key"),
            ("\n- rule: a\n  allow: [{tgt: x}]\n", "3[0].allow[0].fun: missing"),
        ] {
            assert_eq!(read(yaml, read_options).unwrap_err(), expected, "{yaml}");
        }
        assert_eq!(read("\n- a: [x]\n- b\n", read_rules).unwrap_err(), "3[1]: \"b\"");
        for window_of in ["0s", "2h", "soon", "10"] {
            assert!(read(window_of, window).is_err(), "{window_of}");
        }
        assert_eq!(read("1h", window).unwrap(), Duration::from_secs(3600));
        for memory in ["0", "255MiB", "much", "-1"] {
            assert!(read(memory, helper_memory).is_err(), "{memory}");
        }
        assert_eq!(read("256MiB", helper_memory), Ok(Some(256 * size::MIB)));
        assert_eq!(read("none", helper_memory), Ok(None));
        assert!(read("relative", read_rules).is_err() && read("/a/b.yaml", read_rules).is_ok());
    }
}
