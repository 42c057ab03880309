//! Requests to a master.

use super::pack::put;
use crate::wire::msgpack::Writer;
use crate::wire::python::value::{Key, Map, Value};

/// The service of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmd {
    /// Publishes a job.
    Publish,
    /// Starts a runner: the answer contains a jid, and the result arrives on the bus.
    Runner,
    /// Runs a wheel function: the answer contains the result.
    Wheel,
}

impl Cmd {
    /// The name in a load.
    pub fn name(self) -> &'static str {
        match self {
            Cmd::Publish => "publish",
            Cmd::Runner => "runner",
            Cmd::Wheel => "wheel",
        }
    }
}

/// A request without the fields that the sender adds: key, user and jid.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The service.
    pub cmd: Cmd,
    /// The function.
    pub fun: String,
    /// The other fields of the load.
    pub load: Map,
}

impl Call {
    /// A job. `arg` contains positional arguments; keyword arguments are a final mapping with `__kwarg__: true`.
    pub fn publish(tgt: impl Into<Value>, tgt_type: &str, fun: &str, arg: Vec<Value>) -> Self {
        // The master's `_prep_pub` fails without any of these.
        let load = [
            ("tgt", tgt.into()),
            ("tgt_type", tgt_type.into()),
            ("arg", Value::List(arg)),
            ("ret", "".into()),
            ("kwargs", Value::Map(Map::default())),
        ];
        Self { cmd: Cmd::Publish, fun: fun.to_owned(), load: map(load) }
    }

    /// A runner. Positional arguments are recognised only if `arg` and `kwarg` are given together, and nothing else.
    pub fn runner(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let both = map([("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))]);
        Self { cmd: Cmd::Runner, fun: fun.to_owned(), load: map([("kwarg", Value::Map(both))]) }
    }

    /// A wheel function.
    pub fn wheel(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let load = [("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))];
        Self { cmd: Cmd::Wheel, fun: fun.to_owned(), load: map(load) }
    }

    /// The message for the master.
    pub(super) fn request(&self, key: &str, user: &str, jid: &str) -> Vec<u8> {
        const OWN: [&str; 5] = ["cmd", "fun", "key", "user", "jid"];
        let theirs = || self.load.iter().filter(|(name, _)| name.as_str().is_none_or(|n| !OWN.contains(&n)));
        let own = if self.cmd == Cmd::Publish { 5 } else { 4 };
        let mut w = Writer::new();
        w.map(3).str("enc").str("clear").str("version").int(3).str("load").map(theirs().count() + own);
        w.str("cmd").str(self.cmd.name()).str("fun").str(&self.fun).str("key").str(key).str("user").str(user);
        if self.cmd == Cmd::Publish {
            w.str("jid").str(jid);
        }
        for (name, value) in theirs() {
            put(&mut w, &name.0);
            put(&mut w, value);
        }
        w.into_bytes()
    }
}

fn map<const N: usize>(pairs: [(&str, Value); N]) -> Map {
    pairs.into_iter().map(|(name, value)| (Key::from(name), value)).collect()
}
