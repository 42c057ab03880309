//! The call of a reaction, and its request to a master.
//!
//! One type from the low chunk to the record: it is made of a chunk, sent, recorded with its
//! outcome, shown, and resent by a replay.

use salt_sls::{Key, Map, Value};
use serde::{Deserialize, Serialize};

use super::pack::{packed_map, put};
use crate::wire::msgpack::Writer;

/// One of Salt's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Client {
    /// Publishes a job to minions.
    Local,
    /// Starts a runner on the master: the response contains a jid, and the result arrives on the
    /// bus.
    Runner,
    /// Runs a wheel function on the master: the response contains the result.
    Wheel,
    /// Runs an execution module here; a master has no such service.
    Caller,
}

impl Client {
    /// The name in low chunks.
    pub fn name(self) -> &'static str {
        match self {
            Client::Local => "local",
            Client::Runner => "runner",
            Client::Wheel => "wheel",
            Client::Caller => "caller",
        }
    }

    /// The client of this name; `cmd` is the old name of `local`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "local" | "cmd" => Client::Local,
            "runner" => Client::Runner,
            "wheel" => Client::Wheel,
            "caller" => Client::Caller,
            _ => return None,
        })
    }

    /// True for runners and wheel functions, whose jid the master chooses.
    pub(crate) fn is_of_master(self) -> bool {
        matches!(self, Client::Runner | Client::Wheel)
    }
}

/// A call of one of Salt's clients. Requests to a master also have key, user and jid, which the
/// sender adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Its ID in the file.
    #[serde(default)]
    pub(crate) id: String,
    /// The file.
    #[serde(default)]
    pub(crate) sls: String,
    pub(crate) client: Client,
    pub(crate) fun: String,
    /// The target as a string; empty for calls without a target.
    #[serde(default)]
    pub(crate) tgt: String,
    /// The other fields of the request; of a `caller` function `args` and `kwargs`. Empty in a
    /// record for which it was too large; else never.
    #[serde(with = "load", default)]
    pub load: Map,
}

/// The serde form of a load.
mod load {
    use salt_sls::{Map, Value};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::packed_map;
    use crate::base::limits::REACTOR_CHUNKS_BYTES_MAX;
    use crate::wire::msgpack::Stored;
    use crate::wire::salt_value::from_msgpack;

    pub(super) fn serialize<S: Serializer>(load: &Map, to: S) -> Result<S::Ok, S::Error> {
        let packed = packed_map(load);
        // Without its load the call can be replayed only by rendering the event again.
        let is_small = packed.len() <= REACTOR_CHUNKS_BYTES_MAX;
        Stored::of(Some(packed.as_slice()).filter(|_| is_small)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Map, D::Error> {
        match from_msgpack(Stored::deserialize(from)?.packed()) {
            Some(Value::Map(load)) => Ok(load),
            _ => Ok(Map::default()),
        }
    }
}

impl Call {
    /// A call that no file names.
    pub(crate) fn new(client: Client, fun: &str, load: Map) -> Self {
        let tgt = load.get("tgt").filter(|_| client == Client::Local);
        Self {
            id: String::new(),
            sls: String::new(),
            client,
            fun: fun.to_owned(),
            tgt: tgt.map(target_text).unwrap_or_default(),
            load,
        }
    }

    /// The name of the master's service.
    pub(crate) fn service(&self) -> &'static str {
        if self.client == Client::Local {
            "publish"
        } else {
            self.client.name()
        }
    }

    pub(super) fn request(&self, key: &str, user: &str, jid: &str) -> Vec<u8> {
        const OWN: [&str; 5] = ["cmd", "fun", "key", "user", "jid"];

        // A reactor file must not set these fields, least of all the key.
        let theirs = || {
            self.load
                .iter()
                .filter(|(name, _)| name.as_str().is_none_or(|n| !OWN.contains(&n)))
        };

        let own = if self.client == Client::Local { 5 } else { 4 };

        let mut w = Writer::new();
        // Unencrypted, as the request port takes it from local clients: the key authenticates them.
        w.map(3)
            .str("enc")
            .str("clear")
            .str("version")
            .int(3)
            .str("load")
            .map(theirs().count() + own);
        w.str("cmd")
            .str(self.service())
            .str("fun")
            .str(&self.fun)
            .str("key")
            .str(key)
            .str("user")
            .str(user);

        // The master itself chooses the jid of a runner or wheel function.
        if self.client == Client::Local {
            w.str("jid").str(jid);
        }

        for (name, value) in theirs() {
            put(&mut w, &name.0);
            put(&mut w, value);
        }
        w.into_bytes()
    }
}

/// The load of a runner. Positional arguments are recognised only if `arg` and `kwarg` are given
/// together, and nothing else.
pub(crate) fn runner_load(arg: Vec<Value>, kwarg: Map) -> Map {
    map([("kwarg", Value::Map(wheel_load(arg, kwarg)))])
}

/// The load of a wheel function.
pub(crate) fn wheel_load(arg: Vec<Value>, kwarg: Map) -> Map {
    map([("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))])
}

/// The load of a `caller` function.
pub(crate) fn caller_load(args: Vec<Value>, kwargs: Value) -> Map {
    map([("args", Value::List(args)), ("kwargs", kwargs)])
}

/// A target as a string. A list is joined with commas.
pub(crate) fn target_text(tgt: &Value) -> String {
    match tgt {
        Value::Str(text) => text.clone(),
        Value::List(items) => items
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(","),
        _ => String::new(),
    }
}

fn map<const N: usize>(pairs: [(&str, Value); N]) -> Map {
    pairs
        .into_iter()
        .map(|(name, value)| (Key::from(name), value))
        .collect()
}

#[cfg(test)]
impl Call {
    /// A job. `arg` contains positional arguments; keyword arguments are a final mapping with
    /// `__kwarg__: true`.
    pub(crate) fn publish(
        tgt: impl Into<Value>,
        tgt_type: &str,
        fun: &str,
        arg: Vec<Value>,
    ) -> Self {
        // The master's `_prep_pub` fails without any of these.
        let load = [
            ("tgt", tgt.into()),
            ("tgt_type", tgt_type.into()),
            ("arg", Value::List(arg)),
            ("ret", "".into()),
            ("kwargs", Value::Map(Map::default())),
        ];
        Self::new(Client::Local, fun, map(load))
    }

    pub(crate) fn runner(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        Self::new(Client::Runner, fun, runner_load(arg, kwarg))
    }

    pub(crate) fn wheel(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        Self::new(Client::Wheel, fun, wheel_load(arg, kwarg))
    }

    pub(crate) fn caller(fun: &str, args: Vec<Value>, kwargs: Value) -> Self {
        Self::new(Client::Caller, fun, caller_load(args, kwargs))
    }
}
