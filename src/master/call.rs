//! What a master is asked to do.

use super::pack::put;
use crate::sls::value::{Key, Map, Value};
use crate::wire::msgpack::Writer;

/// Which of its services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cmd {
    /// A job for minions.
    Publish,
    /// A runner: the master answers at once with a jid, and the result comes on the bus.
    Runner,
    /// A wheel function: the answer is the result.
    Wheel,
}

impl Cmd {
    /// Its name in a load.
    pub fn name(self) -> &'static str {
        match self {
            Cmd::Publish => "publish",
            Cmd::Runner => "runner",
            Cmd::Wheel => "wheel",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Cmd::Publish, Cmd::Runner, Cmd::Wheel].into_iter().find(|cmd| cmd.name() == name)
    }
}

/// A request, without what only the sender knows: key, user and jid.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Of which service.
    pub cmd: Cmd,
    /// The function.
    pub fun: String,
    /// Everything else in the load.
    pub load: Map,
}

impl Call {
    /// A job. `arg` has positional values; keyword arguments are a mapping with `__kwarg__: true` at its end.
    pub fn publish(tgt: impl Into<Value>, tgt_type: &str, fun: &str, arg: Vec<Value>) -> Self {
        // Without any of these `_prep_pub` of the master fails.
        let load = [
            ("tgt", tgt.into()),
            ("tgt_type", tgt_type.into()),
            ("arg", Value::List(arg)),
            ("ret", "".into()),
            ("kwargs", Value::Map(Map::new())),
        ];
        Self { cmd: Cmd::Publish, fun: fun.to_owned(), load: map(load) }
    }

    /// A runner. Positional values arrive as such only if `arg` and `kwarg` come together, and alone.
    pub fn runner(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let both = map([("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))]);
        Self { cmd: Cmd::Runner, fun: fun.to_owned(), load: map([("kwarg", Value::Map(both))]) }
    }

    /// A wheel function.
    pub fn wheel(fun: &str, arg: Vec<Value>, kwarg: Map) -> Self {
        let load = [("arg", Value::List(arg)), ("kwarg", Value::Map(kwarg))];
        Self { cmd: Cmd::Wheel, fun: fun.to_owned(), load: map(load) }
    }

    /// The message that goes to the master.
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
