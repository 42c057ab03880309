//! A call of either reactor as the log shows it, and the comparison of two.

use std::hash::{Hash as _, Hasher as _};

use salt_sls::{Key, Map, Value};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::reactor::dispatch::PUBLISH_KEYWORDS;
use crate::reactor::master::{Call, Client, target_text};

/// Salt's replacement for values that are too large for its bus.
const TRIMMED: &str = "VALUE_TRIMMED";

/// This daemon's replacement for secrets.
const REDACTED: &str = "[redacted]";

/// A call as far as it is known.
///
/// Not a [`Call`]: an event shows a function, a target and arguments of Salt's calls, and no request.
/// Calls of both sides are reduced to these fields to compare them. [`OurCall`] and [`SaltsCall`]
/// add where such a call is in the log, which differs: ours is in a record of a reaction.
///
/// [`OurCall`]: super::OurCall
/// [`SaltsCall`]: super::SaltsCall
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ObservedCall {
    /// `local`, `runner`, `wheel` or `caller`.
    pub(crate) client: String,
    pub(crate) fun: String,
    /// The target of a `local` call; else null.
    #[serde(with = "python")]
    pub(crate) tgt: Value,
    /// The target type of a `local` call.
    pub(crate) tgt_type: String,
    /// Positional arguments, followed by a mapping of the keyword arguments if there are any;
    /// `None` if unknown.
    #[serde(with = "python")]
    pub(crate) args: Option<Vec<Value>>,
    /// `ret` and the effective part of `kwargs` of a job's load; `None` if unknown.
    #[serde(with = "python")]
    pub(crate) load: Option<Map>,
    /// Its ID in the file; empty if unknown.
    pub(crate) id: String,
    /// The file; empty if unknown.
    pub(crate) sls: String,
}

/// The serde form of fields with Python's types: their JSON form.
mod python {
    use salt_sls::json_form;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::Value as Json;

    use super::{Map, Value};

    pub(super) trait Field: Clone + Sized {
        fn into_value(self) -> Value;
        fn from_value(value: Value) -> Option<Self>;
    }

    impl Field for Value {
        fn into_value(self) -> Value {
            self
        }

        fn from_value(value: Value) -> Option<Self> {
            Some(value)
        }
    }

    impl Field for Option<Vec<Value>> {
        fn into_value(self) -> Value {
            self.map_or(Value::Null, Value::List)
        }

        fn from_value(value: Value) -> Option<Self> {
            match value {
                Value::Null => Some(None),
                Value::List(items) => Some(Some(items)),
                _ => None,
            }
        }
    }

    impl Field for Option<Map> {
        fn into_value(self) -> Value {
            self.map_or(Value::Null, Value::Map)
        }

        fn from_value(value: Value) -> Option<Self> {
            match value {
                Value::Null => Some(None),
                Value::Map(map) => Some(Some(map)),
                _ => None,
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(field: &impl Field, to: S) -> Result<S::Ok, S::Error> {
        json_form::encode(&field.clone().into_value()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, F: Field>(from: D) -> Result<F, D::Error> {
        let value = json_form::decode(&Json::deserialize(from)?);
        F::from_value(value).ok_or_else(|| D::Error::custom("a value of another type"))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// The field: `tgt`, `arg[0]`, `kwarg.mods`, `load.ret`, ...
    pub(crate) field: String,
    /// Our value; `None` if absent.
    pub(crate) ours: Option<Value>,
    pub(crate) salts: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Compared {
    pub(crate) differences: Vec<Difference>,
    /// The fields of Salt's call that are unknown.
    pub(crate) unseen: Vec<String>,
}

impl ObservedCall {
    /// A saltcellar call.
    pub(crate) fn of(call: &Call) -> Self {
        let Call {
            id,
            sls,
            client,
            fun,
            tgt,
            load,
        } = call;

        let args = |load: Option<&Map>, args, words| {
            Self::on_master(client.name(), fun, arguments(load, args, words))
        };
        let observed = match client {
            // The load was too large for the record, which still contains the target as text.
            Client::Local if load.is_empty() => Self {
                tgt: tgt.as_str().into(),
                tgt_type: "glob".to_owned(),
                ..Self::on_master("local", fun, None)
            },
            Client::Local => Self::job(fun, load).with_load(load),
            Client::Runner => {
                // The load of a runner nests both kinds of arguments, see `runner_load`.
                let both = load.get("kwarg").and_then(Value::as_map);
                args(both, "arg", "kwarg")
            }
            Client::Wheel => args(Some(load), "arg", "kwarg"),
            Client::Caller => args(Some(load), "args", "kwargs"),
        };

        Self {
            id: id.clone(),
            sls: sls.clone(),
            ..observed
        }
    }

    /// A call of a runner, a wheel function or an execution function on the master.
    pub(crate) fn on_master(client: &str, fun: &str, args: Option<Vec<Value>>) -> Self {
        Self {
            client: client.to_owned(),
            fun: fun.to_owned(),
            args,
            ..Self::default()
        }
    }

    /// A job, from its load or its `new` event.
    pub(crate) fn job(fun: &str, load: &Map) -> Self {
        let text = |key: &str| {
            load.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };

        let tgt_type = Some(text("tgt_type")).filter(|name| !name.is_empty());
        let tgt_type = tgt_type.unwrap_or_else(|| "glob".to_owned());
        let tgt = load.get("tgt").cloned().unwrap_or(Value::Null);

        Self {
            // A list can be given as text with commas.
            tgt: if tgt_type == "list" {
                as_list(tgt)
            } else {
                tgt
            },
            tgt_type,
            args: load.get("arg").and_then(Value::as_list).map(unmarked),
            ..Self::on_master("local", fun, None)
        }
    }

    /// Adds the fields that only the load of a job contains.
    #[must_use]
    pub(crate) fn with_load(self, load: &Map) -> Self {
        let kwargs = load.get("kwargs").and_then(Value::as_map);
        let text = |name: &str| {
            let text = kwargs.and_then(|kwargs| kwargs.get(name)?.as_str());
            text.unwrap_or_default().to_owned()
        };
        Self {
            load: Some(rest_of(load)),
            id: text("__id__"),
            sls: text("__sls__"),
            ..self
        }
    }

    /// The target as text.
    pub(crate) fn target(&self) -> String {
        target_text(&self.tgt)
    }

    /// Approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        let args = self.args.iter().flatten().map(weight).sum::<usize>();
        let load = self
            .load
            .iter()
            .flatten()
            .map(|(key, value)| weight(&key.0) + weight(value));
        200 + args + load.sum::<usize>() + weight(&self.tgt)
    }

    /// Hash of the fields that events show. The order of keywords does not matter.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = Xxh3::new();
        (
            self.client.as_str(),
            self.fun.as_str(),
            self.tgt_type.as_str(),
        )
            .hash(&mut hasher);
        digest(&self.tgt).hash(&mut hasher);
        for arg in self.args.iter().flatten() {
            digest(arg).hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(crate) fn fun_key(&self) -> u64 {
        let mut hasher = Xxh3::new();
        (self.client.as_str(), self.fun.as_str()).hash(&mut hasher);
        hasher.finish()
    }

    /// Compares this saltcellar call with one of Salt's.
    pub(crate) fn compare(&self, salts: &Self) -> Compared {
        let mut found = Compared::default();
        let text = |text: &str| Some(Value::from(text));
        found.field("client", text(&self.client), text(&salts.client));
        found.field("fun", text(&self.fun), text(&salts.fun));

        if self.client == "local" {
            found.field("tgt", Some(self.tgt.clone()), Some(salts.tgt.clone()));
            found.field("tgt_type", text(&self.tgt_type), text(&salts.tgt_type));
        }

        match (&self.args, &salts.args) {
            (Some(ours), Some(theirs)) => {
                let ((ours, our_words), (theirs, their_words)) = (split(ours), split(theirs));
                // To the end of the longer list, because an argument may be missing on either side.
                for n in 0..ours.len().max(theirs.len()) {
                    found.field(
                        &format!("arg[{n}]"),
                        ours.get(n).cloned(),
                        theirs.get(n).cloned(),
                    );
                }
                found.map("kwarg", &our_words, &their_words);
            }
            _ => found.unseen.push("arguments".to_owned()),
        }

        match (&self.load, &salts.load) {
            (Some(ours), Some(theirs)) => found.map("load", ours, theirs),
            // Only a load shows these, and only if saltcellar is the master's job cache.
            (Some(_), None) => found
                .unseen
                .push("ret, metadata and similar fields".to_owned()),
            _ => {}
        }

        found
    }
}

impl Compared {
    fn field(&mut self, field: &str, ours: Option<Value>, salts: Option<Value>) {
        if ours == salts {
            return;
        }

        // What was cut off or redacted may have been equal.
        let is_unknown = |value: &Value| matches!(value.as_str(), Some(TRIMMED | REDACTED));
        if salts.as_ref().is_some_and(is_unknown) || ours.as_ref().is_some_and(is_unknown) {
            return self.unseen.push(field.to_owned());
        }

        // Large mappings are compared by key, for a short result.
        if let (Some(Value::Map(ours)), Some(Value::Map(salts))) = (&ours, &salts) {
            return self.map(field, ours, salts);
        }

        self.differences.push(Difference {
            field: field.to_owned(),
            ours,
            salts,
        });
    }

    fn map(&mut self, at: &str, ours: &Map, salts: &Map) {
        let also = salts.keys().filter(|key| !ours.contains_key(*key));
        for key in ours.keys().chain(also) {
            let name = key
                .as_str()
                .map_or_else(|| key.0.python_repr(), str::to_owned);
            self.field(
                &format!("{at}.{name}"),
                ours.get(key).cloned(),
                salts.get(key).cloned(),
            );
        }
    }
}

/// The positional arguments of a load, followed by a mapping of the keyword arguments if there are
/// any.
fn arguments(load: Option<&Map>, args: &str, words: &str) -> Option<Vec<Value>> {
    let mut found = load?.get(args)?.as_list()?.to_vec();
    let words = load?.get(words).and_then(Value::as_map);
    let words = words.filter(|words| !words.is_empty());
    found.extend(words.cloned().map(Value::Map));
    Some(found)
}

/// Converts a comma-separated list of minions.
fn as_list(tgt: Value) -> Value {
    match tgt {
        Value::Str(text) => Value::List(text.split(',').map(|name| name.trim().into()).collect()),
        other => other,
    }
}

/// Removes the marker of keyword arguments from a job's arguments.
fn unmarked(args: &[Value]) -> Vec<Value> {
    let one = |arg: &Value| match arg {
        Value::Map(map) if map.contains_key("__kwarg__") => {
            let rest = map
                .iter()
                .filter(|(key, _)| key.as_str() != Some("__kwarg__"));
            Value::Map(
                rest.map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            )
        }
        other => other.clone(),
    };

    args.iter().map(one).collect()
}

/// Splits off the mapping of keyword arguments. A last positional argument that is a mapping looks
/// the same in Salt's events, so both sides are split alike.
fn split(args: &[Value]) -> (&[Value], Map) {
    match args.split_last() {
        Some((Value::Map(words), args)) => (args, words.clone()),
        _ => (args, Map::default()),
    }
}

/// Hash of a value; the order of a mapping does not matter.
fn digest(value: &Value) -> u64 {
    let mut hasher = Xxh3::new();
    match value {
        Value::Map(map) => {
            let one = |(key, value): (&Key, &Value)| {
                let mut hasher = Xxh3::new();
                (digest(&key.0), digest(value)).hash(&mut hasher);
                hasher.finish()
            };
            // A sum does not depend on the order of the pairs.
            map.iter()
                .map(one)
                .fold(1, u64::wrapping_add)
                .hash(&mut hasher);
        }
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            for item in items {
                digest(item).hash(&mut hasher);
            }
        }
        other => Key(other.clone()).hash(&mut hasher),
    }

    hasher.finish()
}

fn weight(value: &Value) -> usize {
    let all = |items: &[Value]| items.iter().map(weight).sum::<usize>();
    let inside = match value {
        Value::Str(text) | Value::BigInt(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => all(items),
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| weight(&key.0) + weight(value))
            .sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}

/// The other fields of a load that have an effect.
fn rest_of(load: &Map) -> Map {
    let mut rest = Map::default();
    let ret = load
        .get("ret")
        .filter(|ret| ret.as_str() != Some("") && **ret != Value::Null);
    rest.extend(ret.map(|ret| (Key::from("ret"), ret.clone())));

    let kwargs = load.get("kwargs").and_then(Value::as_map);
    for (key, value) in kwargs.into_iter().flatten() {
        // Salt passes its default, which has no effect.
        let is_default = key.as_str() == Some("delimiter") && value.as_str() == Some(":");
        if key
            .as_str()
            .is_some_and(|name| PUBLISH_KEYWORDS.contains(&name))
            && !is_default
        {
            rest.insert(key.clone(), value.clone());
        }
    }

    rest
}
