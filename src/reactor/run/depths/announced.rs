//! Announcements: jobs, runner calls and events that the log shows before they happen, because
//! their events do not name their cause.
//!
//! | announced by | data | what follows |
//! |---|---|---|
//! | a runner call of a reaction, when it is sent | function and arguments | `salt/run/<jid>/new` with these; of `event.send` also the event |
//! | `salt/run/<jid>/args` of an orchestration | `type` function or state: `name`, `tgt`, `args` | `salt/job/<another jid>/new` with that function, target and arguments |
//! | | `type` runner: `name`, `args`, `kwargs` | `salt/run/<another jid>/new` with that function and arguments; of `event.send` also the event |
//! | `salt/run/<jid>/new` of `runner.event.send` without announcement | `fun_args`: tag and data | an event with that tag and that data |
//!
//! Each event comes over a separate connection. An event can overtake the `new` of the runner that
//! sent it, and both can overtake the master's response to the call. Therefore calls are announced
//! before they are sent.
//!
//! An announcement matches once, and expires after [`REACTOR_ANNOUNCED_TTL`]. Orchestrations with
//! `batch` or `subset` publish to other targets than announced, and are not followed.

use std::collections::{HashMap, VecDeque};
use std::iter;

use salt_sls::{Map, Value};

use crate::base::clock::Micros;
use crate::base::limits::{
    REACTOR_ANNOUNCED_MAX, REACTOR_ANNOUNCED_TTL, REACTOR_SHADOW_ACT_BYTES_MAX,
};
use crate::reactor::shadow::ObservedCall;

/// Hash of the content of an announced event.
pub(crate) type Key = u64;

/// The expected events of a runner or job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnnouncedStart {
    pub(crate) new: Key,
    /// The event sent by `runner.event.send`.
    pub(crate) sends: Option<Key>,
}

/// Announcements by key, oldest first, with the depth of the announced event.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    by_key: HashMap<Key, VecDeque<(Micros, u32)>>,
    /// All announcements in the order of the log, including used announcements.
    order: VecDeque<(Micros, Key)>,
}

impl Announced {
    /// True without unused announcements.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Adds an announcement; drops expired and excess announcements.
    pub(crate) fn add(&mut self, key: Key, depth: u32, at: Micros) {
        self.by_key.entry(key).or_default().push_back((at, depth));
        self.order.push_back((at, key));

        let oldest = at.before(REACTOR_ANNOUNCED_TTL);
        while let Some((at, key)) = self.order.front().copied()
            && (at < oldest || self.order.len() > REACTOR_ANNOUNCED_MAX)
        {
            self.order.pop_front();
            // If that one was used, the rest of its key is younger.
            self.take_first(key, |first| first <= at);
        }
    }

    pub(crate) fn add_start(&mut self, start: AnnouncedStart, depth: u32, at: Micros) {
        iter::once(start.new)
            .chain(start.sends)
            .for_each(|key| self.add(key, depth, at));
    }

    pub(crate) fn remove_start(&mut self, start: AnnouncedStart, at: Micros) {
        for key in iter::once(start.new).chain(start.sends) {
            self.take(key, at);
        }
    }

    /// Uses up an announcement; returns its depth.
    pub(crate) fn take(&mut self, key: Key, at: Micros) -> Option<u32> {
        let oldest = at.before(REACTOR_ANNOUNCED_TTL);
        while self.take_first(key, |first| first < oldest).is_some() {}
        self.take_first(key, |_| true)
    }

    fn take_first(&mut self, key: Key, if_at: impl Fn(Micros) -> bool) -> Option<u32> {
        let waiting = self.by_key.get_mut(&key)?;
        let depth = waiting
            .front()
            .copied()
            .filter(|(at, _)| if_at(*at))
            .map(|(_, depth)| depth)?;
        waiting.pop_front();
        if waiting.is_empty() {
            self.by_key.remove(&key);
        }
        Some(depth)
    }
}

/// Parses a value, unless it exceeds the size limit.
fn read(body: &[u8]) -> Option<Value> {
    if body.len() > REACTOR_SHADOW_ACT_BYTES_MAX {
        None
    } else {
        crate::wire::salt_value::from_msgpack(body)
    }
}

/// The mapping without keys that Salt adds in transit: the time and the caller.
fn bare(map: &Map) -> Map {
    let is_added = |name: &str| matches!(name, "_stamp" | "ts") || name.starts_with("__");
    let pairs = map
        .iter()
        .filter(|(key, _)| !key.as_str().is_some_and(is_added));
    pairs
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Positional arguments, followed by the keywords if there are any.
fn arguments(args: &[Value], words: Option<&Map>) -> Vec<Value> {
    let words = words.map(bare).filter(|words| !words.is_empty());
    args.iter().cloned().chain(words.map(Value::Map)).collect()
}

/// State functions share a key, because announcements do not name the function.
fn job_key(fun: &str, load: &Map) -> Key {
    let fun = match fun {
        "state.sls" | "state.top" | "state.highstate" => "state",
        other => other,
    };
    let mut act = ObservedCall::job(fun, load);
    for arg in act.args.iter_mut().flatten() {
        if let Value::Map(words) = arg {
            *words = bare(words);
        }
    }
    act.key()
}

fn event_key(tag: &str, data: &Map) -> Key {
    ObservedCall::on_master("event", tag, Some(vec![Value::Map(bare(data))])).key()
}

/// The events of a runner call with this function and these arguments.
fn run(fun: &str, all: &[Value]) -> AnnouncedStart {
    let (args, words) = match all.split_last() {
        Some((Value::Map(words), args)) => (args, Some(words)),
        _ => (all, None),
    };

    let sends = (fun == "event.send").then(|| {
        // `send(tag, data=None)`: a mapping at the end holds the data or the keywords.
        let word = |name: &str| words.and_then(|words| words.get(name));
        let tag = all
            .first()
            .and_then(Value::as_str)
            .or_else(|| word("tag")?.as_str())?;
        let positional = all
            .get(1)
            .and_then(Value::as_map)
            .filter(|data| !data.contains_key("data"));
        let data = word("data").and_then(Value::as_map).or(positional);
        Some(event_key(tag, &data.cloned().unwrap_or_default()))
    });

    let new = ObservedCall::on_master("runner", fun, Some(arguments(args, words))).key();
    AnnouncedStart {
        new,
        sends: sends.flatten(),
    }
}

/// The events of a runner call that is about to be sent. `None` for wheel functions.
pub(crate) fn by_call(call: &ObservedCall) -> Option<AnnouncedStart> {
    (call.client == "runner").then(|| run(&call.fun, call.args.as_deref().unwrap_or_default()))
}

/// The events announced by the `args` event of an orchestration.
pub(crate) fn by_orchestration(body: &[u8]) -> Option<AnnouncedStart> {
    let body = read(body)?;
    let body = body.as_map()?;
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let name = text("name")?;

    if text("type")? == "runner" {
        let args = body
            .get("args")
            .and_then(Value::as_list)
            .unwrap_or_default();
        return Some(run(
            name,
            &arguments(args, body.get("kwargs").and_then(Value::as_map)),
        ));
    }

    // The announcement of a state names the state's ID, not a function.
    let fun = match text("type")? {
        "function" => name,
        "state" => "state.sls",
        _ => return None,
    };

    let call = body.get("args")?.as_map()?;
    let args = call.get("arg").and_then(Value::as_list).unwrap_or_default();
    let args = arguments(args, call.get("kwarg").and_then(Value::as_map));

    // Only what the `new` event of the job shows as well, because both keys must be equal.
    let load = [
        ("tgt", body.get("tgt")?.clone()),
        (
            "tgt_type",
            call.get("tgt_type").cloned().unwrap_or(Value::Null),
        ),
        ("arg", Value::List(args)),
    ];

    let new = job_key(
        fun,
        &load
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect(),
    );

    Some(AnnouncedStart { new, sends: None })
}

/// The key of a job's `new` event.
pub(crate) fn of_job(body: &[u8]) -> Option<Key> {
    let body = read(body)?;
    let body = body.as_map()?;
    Some(job_key(body.get("fun")?.as_str()?, body))
}

/// The keys of a runner's `new` event and of the event that it sends.
pub(crate) fn of_run(body: &[u8]) -> Option<AnnouncedStart> {
    let body = read(body)?;
    let body = body.as_map()?;
    let fun = body.get("fun")?.as_str()?.strip_prefix("runner.")?;
    let all = body.get("fun_args")?.as_list()?;
    Some(run(fun, all))
}

/// The key of an event.
pub(crate) fn of_event(tag: &[u8], body: &[u8]) -> Option<Key> {
    let body = read(body)?;
    Some(event_key(std::str::from_utf8(tag).ok()?, body.as_map()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::micros;
    use salt_sls::yaml;

    fn body(text: &str) -> Vec<u8> {
        crate::reactor::master::pack::packed(&yaml::load(text).unwrap())
    }

    #[test]
    fn the_announcement_of_an_orchestration_matches_the_start_event() {
        // As fired by a master of release 3008.3.
        let args = body(
            "{type: function, tgt: web1, name: event.send, args: {arg: [a/b], kwarg: {x: 1}, ret: '', timeout: null, \
             tgt_type: glob, ssh: false, expect_minions: false, _cmd_meta: true}, _stamp: '2026'}",
        );
        let job = body(
            "{jid: '1', tgt: web1, tgt_type: glob, user: root, fun: event.send, arg: [a/b, {__kwarg__: true, x: 1}]}",
        );
        assert!(by_orchestration(&args).is_some());
        assert_eq!(
            by_orchestration(&args),
            of_job(&job).map(|new| AnnouncedStart { new, sends: None })
        );
        let other = body(
            "{tgt: web2, tgt_type: glob, fun: event.send, arg: [a/b, {__kwarg__: true, x: 1}]}",
        );
        assert_ne!(
            by_orchestration(&args),
            of_job(&other).map(|new| AnnouncedStart { new, sends: None })
        );
        let args = body(
            "{type: state, tgt: web1, name: its id, args: {arg: [good], kwarg: {queue: false}, tgt_type: glob}}",
        );
        let job = body(
            "{tgt: web1, tgt_type: glob, fun: state.sls, arg: [good, {__kwarg__: true, queue: false}]}",
        );
        assert_eq!(
            by_orchestration(&args),
            of_job(&job).map(|new| AnnouncedStart { new, sends: None })
        );
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
            (
                by_orchestration(b"\xc1"),
                of_job(b""),
                of_run(b"\x81"),
                of_event(b"a", b"\xdf")
            ),
            (None, None, None, None)
        );
    }

    #[test]
    fn an_event_sent_by_a_runner_matches_by_tag_and_data() {
        let sends = |args: &str| {
            of_run(&body(&format!(
                "{{fun: runner.event.send, fun_args: {args}}}"
            )))
            .unwrap()
            .sends
        };
        let event = of_event(b"a/b", &body("{x: 1, _stamp: '2026-11-22'}"));
        assert!(event.is_some());
        for args in [
            "[a/b, {x: 1}]",
            "[a/b, {data: {x: 1}}]",
            "[{tag: a/b, data: {x: 1}, __pub_user: Reactor}]",
        ] {
            assert_eq!(sends(args), event, "{args}");
        }
        for args in ["[a/b, {x: 2}]", "[a/c, {x: 1}]", "[a/b]", "[]"] {
            assert_ne!(sends(args), event, "{args}");
        }
        assert_eq!(
            sends("[a/b]"),
            of_event(b"a/b", &body("{_stamp: '2026-11-22'}"))
        );
    }

    #[test]
    fn an_announcement_matches_once_and_expires() {
        let (mut announced, ttl) = (Announced::default(), micros(REACTOR_ANNOUNCED_TTL));
        announced.add(7, 1, Micros(0));
        announced.add(7, 2, Micros(10));
        assert_eq!(
            [7, 7, 7, 8].map(|key| announced.take(key, Micros(20))),
            [Some(1), Some(2), None, None]
        );
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
