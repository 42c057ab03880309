//! Requests to a master.

use salt_sls::{Key, Map, Value};

use super::pack::put;
use crate::wire::msgpack::Writer;

/// One of Salt's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// A call in executable form. Requests to a master also have key, user and jid, which the sender
/// adds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) client: Client,
    pub(crate) fun: String,
    /// The other fields of the load; of a `caller` function `args` and `kwargs`.
    pub(crate) load: Map,
}

impl Call {
    /// A job. `arg` contains positional arguments; keyword arguments are a final mapping with
    /// `__kwarg__: true`.
    #[cfg(test)]
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
        Self {
            client: Client::Local,
            fun: fun.to_owned(),
            load: map(load),
        }
    }

    /// A runner. Positional arguments are recognised only if `arg` and `kwarg` are given together,
    /// and nothing else.
    pub(crate) fn runner(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let both = map([("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))]);
        Self {
            client: Client::Runner,
            fun: fun.to_owned(),
            load: map([("kwarg", Value::Map(both))]),
        }
    }

    pub(crate) fn wheel(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let load = [("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))];
        Self {
            client: Client::Wheel,
            fun: fun.to_owned(),
            load: map(load),
        }
    }

    pub(crate) fn caller(fun: &str, args: Vec<Value>, kwargs: Value) -> Self {
        let load = [("args", Value::List(args)), ("kwargs", kwargs)];
        Self {
            client: Client::Caller,
            fun: fun.to_owned(),
            load: map(load),
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

    /// The target as text; empty for calls without a target.
    pub(crate) fn target(&self) -> String {
        self.load
            .get("tgt")
            .filter(|_| self.client == Client::Local)
            .map(target_text)
            .unwrap_or_default()
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

/// A target as text: a list is joined with commas.
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
