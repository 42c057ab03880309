//! The keys under `reactor`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

use super::duration;
use super::read::{Mapping, Problem, mappings, problem, show};
use super::salt_master::Role;
use super::value::{AnySpan, Flag, Name, Number, Of, Scalar, Setting, refused};
use crate::limits::{REACTOR_HELPER_MEMORY, REACTOR_OPTIONS_MAX, REACTOR_TRIES_MAX, REACTOR_WORKERS};
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
    /// Calls that reactions may make, in rules without their own list; empty for all.
    pub allow: Vec<Allow>,
    /// Scheduling and limits.
    pub settings: ReactorSettings,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        let (master, minion, rules, python, allow, settings) = Default::default();
        Self { master, minion, rules, python, helper_memory: Some(REACTOR_HELPER_MEMORY), allow, settings }
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
        for rule in std::iter::once(&mut settings.plain).chain(&mut settings.rules) {
            if rule.allow.is_empty() {
                Arc::make_mut(rule).allow.clone_from(&self.allow);
            }
        }
        settings
    }
}

/// `reactor.rules`: a path, or a list in Salt's form, whose values stay text.
pub(super) struct ReactorRules;

impl Setting for ReactorRules {
    type Value = Option<sls::Value>;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Value, D::Error> {
        struct PathOrList;

        impl<'de> Visitor<'de> for PathOrList {
            type Value = sls::Value;

            fn expecting(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                Ok(())
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<sls::Value, E> {
                if path.starts_with('/') {
                    return Ok(path.into());
                }
                refused(path).map_err(|found| problem(&found, ""))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<sls::Value, A::Error> {
                let mut rules = Vec::new();
                while let Some(Rule(rule)) = items.next_element()? {
                    rules.push(rule);
                }
                Ok(sls::Value::List(rules))
            }
        }

        deserializer.deserialize_any(PathOrList).map(Some)
    }

    fn show(rules: &Self::Value) -> Json {
        rules.as_ref().map_or(Json::Null, show_rules)
    }
}

fn show_rules(rules: &sls::Value) -> Json {
    match rules {
        sls::Value::List(items) => items.iter().map(show_rules).collect(),
        sls::Value::Map(map) => {
            let pairs =
                map.iter().filter_map(|(key, value)| Some((key.as_str()?.to_owned(), show_rules(value))));
            Json::Object(pairs.collect())
        }
        other => other.as_str().map_or(Json::Null, Json::from),
    }
}

/// One pattern with its files.
struct Rule(sls::Value);

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rule = Files::deserialize(deserializer)?.0;
        if matches!(&rule, sls::Value::Map(map) if map.len() == 1) {
            return Ok(Self(rule));
        }
        let accepted = "give one pattern with its file or list of files, such as 'salt/minion/*/start': [/srv/reactor/start.sls]";
        Err(problem(&format!("{} is not a rule", show_rules(&rule)), accepted))
    }
}

/// The files of a rule, or any other value.
struct Files(sls::Value);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = sls::Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("give the path of a file, or a list of paths")
            }

            fn visit_unit<E>(self) -> Result<sls::Value, E> {
                Ok(sls::Value::Null)
            }

            fn visit_str<E>(self, text: &str) -> Result<sls::Value, E> {
                Ok(text.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<sls::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Files(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(sls::Value::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<sls::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, Files(value))) = map.next_entry::<String, _>()? {
                    pairs.push((key.as_str().into(), value));
                }
                Ok(sls::Value::Map(pairs.into_iter().collect()))
            }
        }

        deserializer.deserialize_any(Any).map(Self)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AllowFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<Of<Client>>,
    fun: Option<Of<Glob>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tgt: Option<Of<Glob>>,
}

impl Mapping for Allow {
    type Fields = AllowFields;

    fn check(AllowFields { client, fun, tgt }: AllowFields) -> Result<Self, Problem> {
        let fun = fun.ok_or_else(|| ("`fun` is missing".to_owned(), "give a glob".to_owned()))?.0;
        Ok(Self { client: client.map(|client| client.0), fun, tgt: tgt.map(|tgt| tgt.0) })
    }

    fn fields(&self) -> AllowFields {
        let Self { client, fun, tgt } = self.clone();
        AllowFields { client: client.map(Of), fun: Some(Of(fun)), tgt: tgt.map(Of) }
    }
}

impl Setting for Vec<Allow> {
    type Value = Self;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        mappings(deserializer, |before: &[Allow], _| at_most(before.len()))
    }

    fn show(allow: &Self) -> Json {
        show(allow)
    }
}

fn at_most(before: usize) -> Result<(), Problem> {
    if before < REACTOR_OPTIONS_MAX {
        return Ok(());
    }
    Err(("too many items".to_owned(), format!("give at most {REACTOR_OPTIONS_MAX}")))
}

/// The list of one rule; without items it would be ambiguous.
struct OwnAllow(Vec<Allow>);

impl<'de> Deserialize<'de> for OwnAllow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allow = <Vec<Allow> as Setting>::read(deserializer)?;
        if allow.is_empty() {
            return Err(problem(
                "a list of 0",
                "give a list of items, each with `fun` and any of `client` and `tgt`",
            ));
        }
        Ok(Self(allow))
    }
}

impl Serialize for OwnAllow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        show(&self.0).serialize(serializer)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OptionFields {
    rule: Option<Of<Name>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most_once: Option<Of<Flag>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_unanswered: Option<Of<Flag>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tries: Option<Of<Number<REACTOR_TRIES_MAX>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Of<AnySpan>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Of<Rate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Of<Budget>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    debounce: Option<Of<AnySpan>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    once_per: Option<Of<AnySpan>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<Of<Number<REACTOR_WORKERS>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Of<RuleOrder>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<OwnAllow>,
}

impl Mapping for Arc<RuleOptions> {
    type Fields = OptionFields;

    fn check(fields: OptionFields) -> Result<Self, Problem> {
        let accepted = "give the rule's pattern exactly as in the list of rules";
        let rule = fields.rule.ok_or_else(|| ("`rule` is missing".to_owned(), accepted.to_owned()))?.0;
        let default = RuleOptions::default();
        Ok(Self::new(RuleOptions {
            rule: rule.into(),
            at_most_once: fields.at_most_once.is_some_and(|flag| flag.0),
            retry_unanswered: fields.retry_unanswered.is_some_and(|flag| flag.0),
            tries: fields.tries.map_or(default.tries, |tries| tries.0),
            backoff: fields.backoff.map_or(default.backoff, |backoff| backoff.0),
            rate: fields.rate.map(|rate| rate.0),
            budget: fields.budget.map_or(default.budget, |budget| budget.0),
            debounce: fields.debounce.map(|debounce| debounce.0),
            once_per: fields.once_per.map(|once_per| once_per.0),
            concurrency: fields.concurrency.map(|concurrency| concurrency.0),
            order: fields.order.map_or(default.order, |order| order.0),
            allow: fields.allow.map(|allow| allow.0).unwrap_or_default(),
        }))
    }

    /// The options that differ from their defaults.
    fn fields(&self) -> OptionFields {
        let default = RuleOptions::default();
        OptionFields {
            rule: Some(Of(self.rule.to_string())),
            at_most_once: self.at_most_once.then_some(Of(true)),
            retry_unanswered: self.retry_unanswered.then_some(Of(true)),
            tries: (self.tries != default.tries).then_some(Of(self.tries)),
            backoff: (self.backoff != default.backoff).then_some(Of(self.backoff)),
            rate: self.rate.map(Of),
            budget: (self.budget != default.budget).then_some(Of(self.budget)),
            debounce: self.debounce.map(Of),
            once_per: self.once_per.map(Of),
            concurrency: self.concurrency.map(Of),
            order: (self.order != default.order).then_some(Of(self.order)),
            allow: (!self.allow.is_empty()).then(|| OwnAllow(self.allow.clone())),
        }
    }
}

impl Setting for Vec<Arc<RuleOptions>> {
    type Value = Self;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        mappings(deserializer, |before: &[Arc<RuleOptions>], options: &mut Arc<RuleOptions>| {
            if before.iter().any(|known| known.rule == options.rule) {
                let problem = format!("the rule {:?} appears twice", options.rule);
                return Err((problem, "give each rule one item".to_owned()));
            }
            at_most(before.len())
        })
    }

    fn show(options: &Self) -> Json {
        show(options)
    }
}

/// One of Salt's clients.
struct Client;

impl Scalar for Client {
    type Value = String;

    fn accepts() -> String {
        "local, runner, wheel or caller".to_owned()
    }

    fn parse(text: &str) -> Result<String, String> {
        let known = matches!(text, "local" | "runner" | "wheel" | "caller");
        if known { Ok(text.to_owned()) } else { refused(text) }
    }

    fn show(client: &String) -> Json {
        Json::from(client.as_str())
    }
}

/// `10/1m`
impl Scalar for Rate {
    type Value = Self;

    fn accepts() -> String {
        "a number and a time, such as 10/1m".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let rate = || {
            let (times, per) = text.split_once('/')?;
            let times = times.trim().parse().ok().filter(|times| *times > 0)?;
            let per = duration::parse(per.trim()).filter(|per| *per > Duration::ZERO)?;
            Some(Self { times, per })
        };
        rate().map_or_else(|| refused(text), Ok)
    }

    fn show(rate: &Self) -> Json {
        Json::from(format!("{}/{}", rate.times, duration::show(rate.per)))
    }
}

/// A rate, or `none`.
struct Budget;

impl Scalar for Budget {
    type Value = Option<Rate>;

    fn accepts() -> String {
        "a number and a time, such as 100/1h, or none".to_owned()
    }

    fn parse(text: &str) -> Result<Option<Rate>, String> {
        if text == "none" { Ok(None) } else { <Rate as Scalar>::parse(text).map(Some) }
    }

    fn show(budget: &Option<Rate>) -> Json {
        budget.as_ref().map_or_else(|| "none".into(), <Rate as Scalar>::show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::read_value;
    use crate::config::{Config, size};

    fn read(name: &str, yaml: &str) -> Result<ReactorConfig, String> {
        let mut config = Config::for_state_dir("/s", "/s/sock");
        let read = read_value(&mut config, name, yaml);
        read.map(|()| config.reactor).map_err(|error| {
            let text = error.to_string()[1..].replace(&format!(": {name}"), "");
            text.split(';').next().unwrap().to_owned()
        })
    }

    fn options(yaml: &str) -> Result<Vec<Arc<RuleOptions>>, String> {
        read("reactor.options", yaml).map(|reactor| reactor.settings.rules)
    }

    #[test]
    fn rendered_options_are_read_back_equal() {
        let yaml = "[{rule: 'a/*', at_most_once: true, retry_unanswered: true, tries: 3, backoff: 2s, rate: 10/1m, budget: 100/1h, debounce: 5s, \
                    once_per: 10m, concurrency: 2, order: rule, allow: [{client: local, fun: 'test.*', tgt: 'web*'}, {fun: x}]}]";
        let found = options(yaml).unwrap();
        assert_eq!(options(&Setting::show(&found).to_string()).unwrap(), found);
        assert_eq!(found[0].rate, Some(Rate { times: 10, per: Duration::from_secs(60) }));
        assert!(found[0].allow[0].allows("local", "test.ping", "web1"));
        assert!(
            !found[0].allow[0].allows("local", "test.ping", "db1")
                && !found[0].allow[0].allows("runner", "test.x", "")
        );
        let found = options("[{rule: a, budget: none}, {rule: b}]").unwrap();
        assert_eq!((found[0].budget, found[1].budget.is_some()), (None, true));
        assert_eq!(options(&Setting::show(&found).to_string()).unwrap(), found);
    }

    #[test]
    fn errors_name_their_position() {
        for (yaml, expected) in [
            ("\n- {rule: a}\n- {rule: a}\n", "3[1]: the rule \"a\" appears twice"),
            ("\n- {tries: 2}\n", "2[0]: `rule` is missing"),
            ("\n- rule: a\n  rate: 10\n", "3[0].rate: \"10\" is not accepted"),
            ("\n- rule: a\n  concurrency: 0\n", "3[0].concurrency: \"0\" is not accepted"),
            ("\n- rule: a\n  order: odd\n", "3[0].order: \"odd\" is not accepted"),
            ("\n- rule: a\n  odd: 0\n", "3[0].odd: unknown key"),
            ("\n- rule: a\n  allow: [{tgt: x}]\n", "3[0].allow[0]: `fun` is missing"),
        ] {
            assert_eq!(options(yaml).unwrap_err(), expected, "{yaml}");
        }
        assert_eq!(read("reactor.rules", "\n- a: [x]\n- b\n").unwrap_err(), "3[1]: \"b\" is not a rule");
        for window_of in ["0s", "2h", "soon", "10"] {
            assert!(read("reactor.shadow_window", window_of).is_err(), "{window_of}");
        }
        assert_eq!(
            read("reactor.shadow_window", "1h").unwrap().settings.shadow_window,
            Duration::from_secs(3600)
        );
        for memory in ["0", "255MiB", "much", "-1"] {
            assert!(read("reactor.helper_memory", memory).is_err(), "{memory}");
        }
        assert_eq!(read("reactor.helper_memory", "256MiB").unwrap().helper_memory, Some(256 * size::MIB));
        assert_eq!(read("reactor.helper_memory", "none").unwrap().helper_memory, None);
        assert!(read("reactor.rules", "relative").is_err() && read("reactor.rules", "/a/b.yaml").is_ok());
    }
}
