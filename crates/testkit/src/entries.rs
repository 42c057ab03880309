//! Entries of tests, as Salt's calls store them. A test stores them in a daemon in process as well
//! as in a real one: both can make calls.

use rmpv::Value;
use serde_json::{Value as Json, json};

use saltcellar_wire::msgpack::json::from_json;

/// What can make calls of a daemon.
pub trait Asks {
    /// Makes a call that must succeed.
    fn ask(&self, call: &str, args: Vec<(&str, Value)>) -> Value;

    /// Stores the load of a job, as the master does when it publishes it to these minions.
    fn save_load(&self, jid: &str, load: &Json, minions: &[&str]) {
        let minions = minions.iter().copied().map(Value::from).collect();
        self.ask(
            "save_load",
            vec![
                ("jid", jid.into()),
                ("load", value(load)),
                ("minions", Value::Array(minions)),
            ],
        );
    }

    /// Stores a return.
    fn store_return(&self, load: &Json) {
        self.ask("returner", vec![("load", value(load))]);
    }

    /// Stores an event.
    fn store_event(&self, tag: &str, data: &Json) {
        self.store_events([event(tag, value(data))]);
    }

    /// Stores events in one call.
    fn store_events(&self, events: impl IntoIterator<Item = Value>) {
        let events = Value::Array(events.into_iter().collect());
        self.ask("event_return", vec![("events", events)]);
    }

    /// Stores events `n` with the tag `test/<n>`, one call each.
    fn store_numbered(&self, numbers: std::ops::Range<u64>) {
        for n in numbers {
            let data = json!({ "n": n, "fun": "state.apply", "retcode": n % 2 });
            self.store_event(&format!("test/{n}"), &data);
        }
    }

    /// Stores a job of root with metadata, published to these minions.
    fn publish(&self, jid: &str, fun: &str, minions: &[&str]) {
        let load = json!({
            "cmd": "publish", "tgt": "*", "fun": fun, "arg": ["web"], "tgt_type": "glob", "ret": "", "jid": jid,
            "kwargs": {"metadata": {"ticket": "OPS-7", "nodes": 3}}, "user": "root",
        });
        self.save_load(jid, &load, minions);
    }

    /// Stores the return of a minion for a job.
    fn answer(&self, jid: &str, minion: &str, fun: &str, ret: &Json, retcode: i64) {
        self.store_return(&json!({
            "cmd": "_return", "id": minion, "jid": jid, "fun": fun, "fun_args": [], "return": ret,
            "retcode": retcode, "success": retcode == 0,
        }));
    }
}

/// An event of the call `event_return`.
pub fn event(tag: &str, data: Value) -> Value {
    map(vec![("tag", tag.into()), ("data", data)])
}

/// The load of a job of `test.ping`.
pub fn ping(jid: &str) -> Value {
    map(vec![
        ("cmd", "publish".into()),
        ("tgt", "*".into()),
        ("fun", "test.ping".into()),
        ("arg", list(["a"])),
        ("tgt_type", "glob".into()),
        ("ret", "".into()),
        ("jid", jid.into()),
        (
            "kwargs",
            map(vec![("metadata", map(vec![("why", "test".into())]))]),
        ),
        ("user", "root".into()),
    ])
}

/// What a minion returns for such a job.
pub fn pong(jid: &str, minion: &str, value: Value) -> Value {
    map(vec![
        ("cmd", "_return".into()),
        ("id", minion.into()),
        ("success", true.into()),
        ("return", value),
        ("retcode", 0.into()),
        ("jid", jid.into()),
        ("fun", "test.ping".into()),
        ("_stamp", "2026-11-21T03:09:55.600000+00:00".into()),
    ])
}

/// A value of Salt, written as JSON.
pub fn value(json: &Json) -> Value {
    from_json(json).expect("the form of a value")
}

/// A map of arguments.
pub fn map(pairs: Vec<(&str, Value)>) -> Value {
    let pairs = pairs.into_iter();
    Value::Map(pairs.map(|(key, value)| (key.into(), value)).collect())
}

/// An array.
pub fn list<const N: usize>(items: [&str; N]) -> Value {
    Value::Array(items.into_iter().map(Value::from).collect())
}
