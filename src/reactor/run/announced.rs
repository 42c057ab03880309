//! Jobs, runner calls and events that the log announces before they happen, because nothing in them names what caused them.
//!
//! | announced by | data | what follows |
//! |---|---|---|
//! | a runner call of a reaction, when it is sent | function and arguments | `salt/run/<jid>/new` with these; of `event.send` also the event |
//! | `salt/run/<jid>/args` of an orchestration | `type` function or state: `name`, `tgt`, `args` | `salt/job/<another jid>/new` with that function, target and arguments |
//! | | `type` runner: `name`, `args`, `kwargs` | `salt/run/<another jid>/new` with that function and arguments; of `event.send` also the event |
//! | `salt/run/<jid>/new` of `runner.event.send` that neither announced | `fun_args`: tag and data | an event with that tag and that data |
//!
//! Each of these events comes over a connection of its own, so that an event can overtake the `new` of the runner that sent it, and both
//! can overtake the master's answer to the call. Hence the announcement before the call is sent.
//!
//! Each announcement is good for one of them, and for [`REACTOR_ANNOUNCED_TTL`]. Orchestrations with `batch` or `subset` publish to other
//! targets than they announce, and are not followed.

use std::collections::{HashMap, VecDeque};
use std::iter;

use super::micros;
use crate::clock::Micros;
use crate::limits::{REACTOR_ANNOUNCED_MAX, REACTOR_ANNOUNCED_TTL, REACTOR_SHADOW_ACT_BYTES_MAX};
use crate::master::pack;
use crate::reactor::shadow::Act;
use crate::sls::value::{Map, Value};

/// What is announced, as a hash of what its event will show.
pub type Key = u64;

/// What is known of a runner or a job before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Its `new` event.
    pub new: Key,
    /// The event that it sends, of `runner.event.send`.
    pub sends: Option<Key>,
}

/// Announcements by key, oldest first, with the depth of what follows.
#[derive(Debug, Default)]
pub struct Announced {
    by_key: HashMap<Key, VecDeque<(Micros, u32)>>,
    /// Every announcement, the taken ones among them, in the order of the log.
    order: VecDeque<(Micros, Key)>,
}

impl Announced {
    /// True if nothing is announced that has not followed yet.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Adds an announcement; drops those that are too old, or too many.
    pub fn add(&mut self, key: Key, depth: u32, at: Micros) {
        self.by_key.entry(key).or_default().push_back((at, depth));
        self.order.push_back((at, key));
        let oldest = at.0.saturating_sub(micros(REACTOR_ANNOUNCED_TTL));
        while let Some((at, key)) = self.order.front().copied()
            && (at.0 < oldest || self.order.len() > REACTOR_ANNOUNCED_MAX)
        {
            self.order.pop_front();
            // If that one was taken, what is left of its key is younger.
            self.take_first(key, |first| first <= at);
        }
    }

    /// Adds what a runner or a job that starts will show.
    pub fn add_start(&mut self, start: Start, depth: u32, at: Micros) {
        iter::once(start.new).chain(start.sends).for_each(|key| self.add(key, depth, at));
    }

    /// Takes that back.
    pub fn remove_start(&mut self, start: Start, at: Micros) {
        for key in iter::once(start.new).chain(start.sends) {
            self.take(key, at);
        }
    }

    /// The depth of something that was announced; the announcement is used up.
    pub fn take(&mut self, key: Key, at: Micros) -> Option<u32> {
        let oldest = Micros(at.0.saturating_sub(micros(REACTOR_ANNOUNCED_TTL)));
        while self.take_first(key, |first| first < oldest).is_some() {}
        self.take_first(key, |_| true)
    }

    fn take_first(&mut self, key: Key, if_at: impl Fn(Micros) -> bool) -> Option<u32> {
        let waiting = self.by_key.get_mut(&key)?;
        let depth = waiting.front().copied().filter(|(at, _)| if_at(*at)).map(|(_, depth)| depth)?;
        waiting.pop_front();
        if waiting.is_empty() {
            self.by_key.remove(&key);
        }
        Some(depth)
    }
}

/// Reads a value, unless it is too large to be followed.
fn read(body: &[u8]) -> Option<Value> {
    if body.len() > REACTOR_SHADOW_ACT_BYTES_MAX { None } else { pack::unpacked(body) }
}

/// Without what Salt adds to mappings on their way: the time, and who called.
fn bare(map: &Map) -> Map {
    let is_added = |name: &str| matches!(name, "_stamp" | "ts") || name.starts_with("__");
    let pairs = map.iter().filter(|(key, _)| !key.as_str().is_some_and(is_added));
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Positional arguments and, if there are any, keywords.
fn arguments(args: &[Value], words: Option<&Map>) -> Vec<Value> {
    let words = words.map(bare).filter(|words| !words.is_empty());
    args.iter().cloned().chain(words.map(Value::Map)).collect()
}

/// All state functions are one: which of them an orchestration calls is not announced.
fn job_key(fun: &str, load: &Map) -> Key {
    let fun = match fun {
        "state.sls" | "state.top" | "state.highstate" => "state",
        other => other,
    };
    let mut act = Act::job(fun, load);
    for arg in act.args.iter_mut().flatten() {
        if let Value::Map(words) = arg {
            *words = bare(words);
        }
    }
    act.key()
}

fn event_key(tag: &str, data: &Map) -> Key {
    Act::on_master("event", tag, Some(vec![Value::Map(bare(data))])).key()
}

/// A runner call by its function and arguments: its start, and the event that it sends.
fn run(fun: &str, all: &[Value]) -> Start {
    let (args, words) = match all.split_last() {
        Some((Value::Map(words), args)) => (args, Some(words)),
        _ => (all, None),
    };
    let sends = (fun == "event.send").then(|| {
        // `send(tag, data=None)`: what ends in a mapping has its data there, or its keywords.
        let word = |name: &str| words.and_then(|words| words.get(name));
        let tag = all.first().and_then(Value::as_str).or_else(|| word("tag")?.as_str())?;
        let positional = all.get(1).and_then(Value::as_map).filter(|data| !data.contains_key("data"));
        let data = word("data").and_then(Value::as_map).or(positional);
        Some(event_key(tag, &data.cloned().unwrap_or_default()))
    });
    let new = Act::on_master("runner", fun, Some(arguments(args, words))).key();
    Start { new, sends: sends.flatten() }
}

/// The start of a runner call that is about to be sent, and the event that it sends. None for wheel functions.
pub fn by_call(call: &Act) -> Option<Start> {
    (call.client == "runner").then(|| run(&call.fun, call.args.as_deref().unwrap_or_default()))
}

/// What the `args` event of an orchestration announces: the start of a job or a runner, and the event that the runner sends.
pub fn by_orchestration(body: &[u8]) -> Option<Start> {
    let body = read(body)?;
    let body = body.as_map()?;
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let name = text("name")?;
    if text("type")? == "runner" {
        let args = body.get("args").and_then(Value::as_list).unwrap_or_default();
        return Some(run(name, &arguments(args, body.get("kwargs").and_then(Value::as_map))));
    }
    let fun = match text("type")? {
        "function" => name,
        "state" => "state.sls",
        _ => return None,
    };
    let call = body.get("args")?.as_map()?;
    let args = call.get("arg").and_then(Value::as_list).unwrap_or_default();
    let args = arguments(args, call.get("kwarg").and_then(Value::as_map));
    let load = [
        ("tgt", body.get("tgt")?.clone()),
        ("tgt_type", call.get("tgt_type").cloned().unwrap_or(Value::Null)),
        ("arg", Value::List(args)),
    ];
    let new = job_key(fun, &load.into_iter().map(|(name, value)| (name.into(), value)).collect());
    Some(Start { new, sends: None })
}

/// What may have announced a job, by the job's `new` event.
pub fn of_job(body: &[u8]) -> Option<Key> {
    let body = read(body)?;
    let body = body.as_map()?;
    Some(job_key(body.get("fun")?.as_str()?, body))
}

/// A runner call by its `new` event: what may have announced it, and what it announces itself.
pub fn of_run(body: &[u8]) -> Option<Start> {
    let body = read(body)?;
    let body = body.as_map()?;
    let fun = body.get("fun")?.as_str()?.strip_prefix("runner.")?;
    let all = body.get("fun_args")?.as_list()?;
    Some(run(fun, all))
}

/// What may have announced an event.
pub fn of_event(tag: &[u8], body: &[u8]) -> Option<Key> {
    let body = read(body)?;
    Some(event_key(std::str::from_utf8(tag).ok()?, body.as_map()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sls::yaml;

    fn body(text: &str) -> Vec<u8> {
        pack::packed(&yaml::load(text).unwrap())
    }

    #[test]
    fn what_an_orchestration_announces_is_known_by_its_own_event() {
        // As masters of 3008.3 fired them.
        let args = body(
            "{type: function, tgt: web1, name: event.send, args: {arg: [a/b], kwarg: {x: 1}, ret: '', timeout: null, \
             tgt_type: glob, ssh: false, expect_minions: false, _cmd_meta: true}, _stamp: '2026'}",
        );
        let job = body(
            "{jid: '1', tgt: web1, tgt_type: glob, user: root, fun: event.send, arg: [a/b, {__kwarg__: true, x: 1}]}",
        );
        assert!(by_orchestration(&args).is_some());
        assert_eq!(by_orchestration(&args), of_job(&job).map(|new| Start { new, sends: None }));
        let other = body("{tgt: web2, tgt_type: glob, fun: event.send, arg: [a/b, {__kwarg__: true, x: 1}]}");
        assert_ne!(by_orchestration(&args), of_job(&other).map(|new| Start { new, sends: None }));
        let args = body(
            "{type: state, tgt: web1, name: its id, args: {arg: [good], kwarg: {queue: false}, tgt_type: glob}}",
        );
        let job =
            body("{tgt: web1, tgt_type: glob, fun: state.sls, arg: [good, {__kwarg__: true, queue: false}]}");
        assert_eq!(by_orchestration(&args), of_job(&job).map(|new| Start { new, sends: None }));
        let args = body(
            "{type: runner, name: event.send, args: [], kwargs: {tag: a/b, data: {x: 1}, __pub_user: root}}",
        );
        let run = body("{fun: runner.event.send, fun_args: [{tag: a/b, data: {x: 1}}]}");
        assert_eq!(of_run(&run), by_orchestration(&args));
        assert!(of_run(&run).is_some_and(|start| start.sends.is_some()));
        for odd in [
            "[]",
            "{type: runner}",
            "{type: function, name: a}",
            "{type: wheel, name: key.list_all, args: {}}",
        ] {
            assert_eq!(by_orchestration(&body(odd)), None, "{odd}");
        }
        assert_eq!(
            (by_orchestration(b"\xc1"), of_job(b""), of_run(b"\x81"), of_event(b"a", b"\xdf")),
            (None, None, None, None)
        );
    }

    #[test]
    fn an_event_that_a_runner_sends_is_known_by_tag_and_data() {
        let sends = |args: &str| {
            of_run(&body(&format!("{{fun: runner.event.send, fun_args: {args}}}"))).unwrap().sends
        };
        let event = of_event(b"a/b", &body("{x: 1, _stamp: '2026-11-22'}"));
        assert!(event.is_some());
        for args in
            ["[a/b, {x: 1}]", "[a/b, {data: {x: 1}}]", "[{tag: a/b, data: {x: 1}, __pub_user: Reactor}]"]
        {
            assert_eq!(sends(args), event, "{args}");
        }
        for args in ["[a/b, {x: 2}]", "[a/c, {x: 1}]", "[a/b]", "[]"] {
            assert_ne!(sends(args), event, "{args}");
        }
        assert_eq!(sends("[a/b]"), of_event(b"a/b", &body("{_stamp: '2026-11-22'}")));
    }

    #[test]
    fn an_announcement_holds_for_one_event_and_a_while() {
        let (mut announced, ttl) = (Announced::default(), micros(REACTOR_ANNOUNCED_TTL));
        announced.add(7, 1, Micros(0));
        announced.add(7, 2, Micros(10));
        assert_eq!([7, 7, 7, 8].map(|key| announced.take(key, Micros(20))), [Some(1), Some(2), None, None]);
        announced.add(7, 3, Micros(30));
        assert_eq!(announced.take(7, Micros(31 + ttl)), None);
        announced.add(8, 4, Micros(40 + ttl));
        assert!(announced.by_key.len() == 1 && !announced.is_empty());
        for n in 0..2 * REACTOR_ANNOUNCED_MAX as u64 {
            announced.add(n, 1, Micros(50 + ttl));
        }
        assert_eq!(
            (announced.by_key.len(), announced.order.len()),
            (REACTOR_ANNOUNCED_MAX, REACTOR_ANNOUNCED_MAX)
        );
    }
}
