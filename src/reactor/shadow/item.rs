//! The entries of the log that the comparison needs, in the order of the log.
//!
//! Their form on the local socket is msgpack, see [`ShadowItem::to_value`].

use super::observed_call::ObservedCall;
use crate::base::clock::Micros;
use crate::base::limits::REACTOR_SHADOW_ACT_BYTES_MAX;
use crate::model::{Batch, Entry, Flags, Kind, Location, REACTION_TAG, ReactionFailure, SeqNo, Source};
use crate::reactor::master::pack;
use crate::reactor::run::depths::is_by_reactor;
use crate::reactor::run::record::{failures, option_of};
use crate::store::Followed;
use crate::wire::msgpack::{Writer, as_bool, as_int, as_text, elements, get};
use crate::wire::python::value::{Key, Map, Value};
use crate::wire::salt_event::job_tag;

/// A call of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct OurCall {
    /// The event.
    pub event: SeqNo,
    /// Time of arrival.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// The rules that were rendered together.
    pub rules: Vec<String>,
    /// The record.
    pub reaction: SeqNo,
    /// Index of the call in the record.
    pub nth: u32,
    /// The call.
    pub call: ObservedCall,
    /// Why the call would be prevented; empty if it would be made.
    pub prevented_by: String,
    /// The option that prevents it: `once_per`, `debounce`, `rate` or `budget`; otherwise empty.
    pub throttle: String,
}

impl OurCall {
    /// Why the call would be prevented, as text.
    pub fn why(&self) -> String {
        if self.throttle.is_empty() {
            return self.prevented_by.clone();
        }
        format!("`{}` of {}: {}", self.throttle, self.rules.join(", "), self.prevented_by)
    }
}

/// A reaction of ours that failed to render, wholly or partly.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedReaction {
    /// The event.
    pub event: SeqNo,
    /// Time of arrival.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// The rules that were rendered together.
    pub rules: Vec<String>,
    /// The record.
    pub reaction: SeqNo,
    /// The failures.
    pub failures: Vec<ReactionFailure>,
}

impl FailedReaction {
    /// The failures as text: file, line, cause.
    pub fn why(&self) -> String {
        let words: Vec<_> = self.failures.iter().map(ToString::to_string).collect();
        words.join("; ")
    }
}

/// A call of Salt's reactor, or a job that may be one.
#[derive(Debug, Clone, PartialEq)]
pub struct SaltsCall {
    /// The event of the call.
    pub seq: SeqNo,
    /// Time of arrival.
    pub at: Micros,
    /// Its job.
    pub jid: String,
    /// The call.
    pub call: ObservedCall,
    /// True if a reactor made it; false if that is unknown.
    pub certain: bool,
}

/// An item of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum ShadowItem {
    /// The mode of our reactor.
    Mode {
        /// Time of the entry.
        at: Micros,
        /// True in shadow mode.
        shadow: bool,
        /// True for the first entry after a start.
        started: bool,
    },
    /// A call of ours that was not made.
    Ours(OurCall),
    /// A reaction of ours that failed.
    Failed(FailedReaction),
    /// The jid of a call of ours that was made.
    Made(String),
    /// A call of Salt's.
    Salts(SaltsCall),
    /// The end of a runner or wheel function of a reactor.
    Ended {
        /// Its job.
        jid: String,
        /// Time of the end.
        at: Micros,
    },
    /// The load of a job.
    Load {
        /// The job.
        jid: String,
        /// The fields that the job's event lacks.
        call: ObservedCall,
    },
    /// Events of a bus may be missing in this time.
    Gap {
        /// Start of the gap.
        begin: Micros,
        /// End of the gap.
        end: Micros,
    },
}

/// True if entries of this kind may be read as items.
pub fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    match kind {
        Kind::Reaction | Kind::Load | Kind::Gap => true,
        Kind::JobNew | Kind::Event => flags.has(Flags::ON_BUS),
        _ => false,
    }
}

/// The entry with the reactor's mode. It lacks the flag of a reaction, so it is not part of the history.
pub fn mode(shadow: bool, started: bool, now: Micros) -> Batch {
    let mut w = Writer::new();
    w.map(3).str("state").str("mode").str("shadow").bool(shadow).str("started").bool(started);
    Batch::of(&Entry {
        kind: Kind::Reaction,
        source: Source::Reactor,
        flags: Flags::default(),
        at: now,
        tag: REACTION_TAG.as_bytes(),
        jid: "",
        minion: "",
        fun: "",
        retcode: 0,
        body: &w.into_bytes(),
    })
}

impl ShadowItem {
    /// The items of an entry; most entries have none.
    pub fn read(row: &Followed<'_>) -> Vec<Self> {
        match row.kind {
            Kind::Reaction => record(row),
            Kind::JobNew => job(row).into_iter().collect(),
            Kind::Event => {
                let ended = ended(row);
                master_call(row).map(ShadowItem::Salts).into_iter().chain(ended).collect()
            }
            Kind::Load => load(row).into_iter().collect(),
            Kind::Gap => vec![gap(row)],
            _ => Vec::new(),
        }
    }
}

/// True if the entry's time is of this machine's clock, and not of a minion's or a spool's.
pub fn is_timely(source: Source) -> bool {
    matches!(source, Source::Bus | Source::Reactor)
}

fn text<'a>(map: &'a [u8], key: &str) -> &'a str {
    get(map, key).and_then(as_text).unwrap_or_default()
}

fn seq(map: &[u8], key: &str) -> Option<SeqNo> {
    get(map, key).and_then(as_int).and_then(|n| u64::try_from(n).ok()).map(SeqNo)
}

/// Parses a value, unless it is too large for the comparison.
fn small(bytes: &[u8]) -> Option<Value> {
    if bytes.len() > REACTOR_SHADOW_ACT_BYTES_MAX { None } else { pack::unpacked(bytes) }
}

fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::List(items) => Some(items),
        _ => None,
    }
}

fn record(row: &Followed<'_>) -> Vec<ShadowItem> {
    let body = row.body;
    let is = |key| get(body, key).and_then(as_bool).unwrap_or(false);
    match text(body, "state") {
        "mode" => return vec![ShadowItem::Mode { at: row.at, shadow: is("shadow"), started: is("started") }],
        // Replays are requested by a user.
        "done" | "failed" | "partial" | "dead" | "left" if get(body, "replay").is_none() => {}
        _ => return Vec::new(),
    }
    let (Some(event), Some(at)) = (seq(body, "event"), get(body, "at").and_then(as_int)) else {
        return Vec::new();
    };
    let rules: Vec<String> =
        elements(get(body, "rules").unwrap_or_default()).filter_map(as_text).map(str::to_owned).collect();
    let tag = String::from_utf8_lossy(row.tag);
    let tag = tag.strip_prefix(REACTION_TAG).unwrap_or_default();
    let failures = failures(body);
    let mut found = Vec::new();
    if !failures.is_empty() {
        let (tag, rules) = (tag.to_owned(), rules.clone());
        found.push(ShadowItem::Failed(FailedReaction {
            event,
            at: Micros(at),
            tag,
            rules,
            reaction: row.seq,
            failures,
        }));
    }
    let left_by = option_of(text(body, "why")).unwrap_or_default();
    for (nth, call) in (0..).zip(elements(get(body, "calls").unwrap_or_default())) {
        let outcome = text(call, "outcome");
        let throttle = if outcome == "shadowed" { left_by } else { "" };
        let prevented_by = match outcome {
            "shadowed" => match throttle {
                "once_per" => "only the first of the minion's events counts",
                "debounce" => "only the last of the minion's events counts, after its quiet period",
                "rate" => "it would be delayed beyond the window",
                "budget" => "the budget of the rule is used up",
                _ => "",
            },
            "dead" | "nobody" => text(call, "why"),
            // Salt's events have the jid of a call that we made.
            _ => {
                let jid = text(call, "jid");
                found.extend((!jid.is_empty()).then(|| ShadowItem::Made(jid.to_owned())));
                continue;
            }
        };
        found.push(ShadowItem::Ours(OurCall {
            event,
            at: Micros(at),
            tag: tag.to_owned(),
            rules: rules.clone(),
            reaction: row.seq,
            nth,
            call: recorded_call(call),
            prevented_by: prevented_by.to_owned(),
            throttle: throttle.to_owned(),
        }));
    }
    found
}

fn recorded_call(body: &[u8]) -> ObservedCall {
    let (client, fun) = (text(body, "client"), text(body, "fun"));
    let load = small(get(body, "load").unwrap_or_default());
    let load = load.as_ref().and_then(Value::as_map);
    let call = match client {
        "local" => match load {
            Some(load) => ObservedCall::job(fun, load).with_load(load),
            None => ObservedCall {
                tgt: text(body, "tgt").into(),
                tgt_type: "glob".to_owned(),
                ..ObservedCall::on_master(client, fun, None)
            },
        },
        "runner" | "wheel" => requested_call(client, fun, load),
        _ => ObservedCall::on_master(client, fun, inside(load, "args", "kwargs")),
    };
    ObservedCall { id: text(body, "id").to_owned(), sls: text(body, "sls").to_owned(), ..call }
}

/// The call of a runner or wheel function, from the load of its request.
pub fn requested_call(client: &str, fun: &str, load: Option<&Map>) -> ObservedCall {
    let load = if client == "runner" { load.and_then(|load| load.get("kwarg")?.as_map()) } else { load };
    ObservedCall::on_master(client, fun, inside(load, "arg", "kwarg"))
}

fn inside(map: Option<&Map>, args: &str, words: &str) -> Option<Vec<Value>> {
    let mut found = map?.get(args)?.as_list()?.to_vec();
    let words = map?.get(words).and_then(Value::as_map).filter(|words| !words.is_empty());
    found.extend(words.cloned().map(Value::Map));
    Some(found)
}

/// A job that Salt's reactor may have published.
fn job(row: &Followed<'_>) -> Option<ShadowItem> {
    let fun = get(row.body, "fun").and_then(as_text)?;
    let part = |key: &str| Some((key.into(), small(get(row.body, key)?)?));
    // Without `minions`, which may have thousands of items.
    let load: Map = ["tgt", "tgt_type", "arg"].into_iter().filter_map(part).collect();
    let call = ObservedCall::job(fun, &load);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(ShadowItem::Salts(SaltsCall { seq, at, jid, call, certain: false }))
}

/// A call of a runner or wheel function by a reactor.
pub fn master_call(row: &Followed<'_>) -> Option<SaltsCall> {
    if !row.tag.starts_with(b"salt/run/") && !row.tag.starts_with(b"salt/wheel/") || !is_by_reactor(row.body)
    {
        return None;
    }
    let tag = job_tag(row.tag)?;
    let args = get(row.body, "fun_args");
    // A function that could not be started has only a result event, without arguments.
    if !matches!((tag.about, args), ("new", _) | ("ret", None)) {
        return None;
    }
    let (client, fun) = get(row.body, "fun").and_then(as_text)?.split_once('.')?;
    if !matches!(client, "runner" | "wheel") {
        return None;
    }
    let args = args.and_then(small).and_then(list);
    if args.as_deref().is_some_and(|args| is_nested(args) || (fun == "salt.cmd" && is_own(args))) {
        return None;
    }
    let call = ObservedCall::on_master(client, fun, args);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(SaltsCall { seq, at, jid, call, certain: true })
}

fn ended(row: &Followed<'_>) -> Option<ShadowItem> {
    let is_of_master = row.tag.starts_with(b"salt/run/") || row.tag.starts_with(b"salt/wheel/");
    let tag = job_tag(row.tag).filter(|tag| is_of_master && tag.about == "ret" && is_by_reactor(row.body))?;
    Some(ShadowItem::Ended { jid: tag.jid.to_owned(), at: row.at })
}

/// True for a runner that an orchestration of a reactor started: its arguments name the publisher, its user is the reactor as well.
fn is_nested(args: &[Value]) -> bool {
    matches!(args.last(), Some(Value::Map(words)) if words.contains_key("__pub_user"))
}

/// True for the daemon's own request, see `reactor/service/learner.rs`.
fn is_own(args: &[Value]) -> bool {
    matches!(args, [Value::Str(fun), Value::Str(of)] if fun == "sys.runner_argspec" && of == "*")
}

/// The load of a job, as the master passes it to its job cache.
fn load(row: &Followed<'_>) -> Option<ShadowItem> {
    let load = small(elements(row.body).next()?)?;
    let load = load.as_map()?;
    let call = ObservedCall::job(load.get("fun")?.as_str()?, load).with_load(load);
    Some(ShadowItem::Load { jid: row.jid.to_owned(), call })
}

fn gap(row: &Followed<'_>) -> ShadowItem {
    // Without a duration the gap starts at the beginning of the log.
    let begin = match get(row.body, "seconds").and_then(pack::unpacked) {
        #[expect(clippy::cast_possible_truncation, reason = "whole microseconds are enough")]
        Some(Value::Float(seconds)) => row.at.0.saturating_sub((seconds * 1e6) as i64),
        _ => 0,
    };
    ShadowItem::Gap { begin: Micros(begin), end: row.at }
}

/// A mapping of these pairs.
pub(super) fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(pairs.into_iter().map(|(name, value)| (Key::from(name), value)).collect())
}

fn texts(texts: &[String]) -> Value {
    Value::List(texts.iter().map(|text| text.as_str().into()).collect())
}

fn failure_value(failure: &ReactionFailure) -> Value {
    let ReactionFailure { at, cause } = failure;
    map([
        ("file", at.file.as_str().into()),
        ("line", at.line.map_or(Value::Null, |line| Value::Int(line.into()))),
        ("rendered", Value::Bool(at.rendered)),
        ("cause", cause.as_str().into()),
    ])
}

fn failure_of(value: &Value) -> Option<ReactionFailure> {
    let map = value.as_map()?;
    let text = |name: &str| Some(map.get(name)?.as_str()?.to_owned());
    let line = match map.get("line")? {
        Value::Int(line) => Some(u32::try_from(*line).ok()?),
        _ => None,
    };
    let at = Location { file: text("file")?, line, rendered: *map.get("rendered")? == Value::Bool(true) };
    Some(ReactionFailure { at, cause: text("cause")? })
}

fn number(n: u64) -> Value {
    i64::try_from(n).map_or(Value::Null, Value::Int)
}

impl ObservedCall {
    /// The form on the socket and in `--output json`.
    pub fn to_value(&self) -> Value {
        let or_null = |list: Option<Vec<Value>>| list.map_or(Value::Null, Value::List);
        map([
            ("client", self.client.as_str().into()),
            ("fun", self.fun.as_str().into()),
            ("tgt", self.tgt.clone()),
            ("tgt_type", self.tgt_type.as_str().into()),
            ("args", or_null(self.args.clone())),
            ("load", self.load.clone().map_or(Value::Null, Value::Map)),
            ("id", self.id.as_str().into()),
            ("sls", self.sls.as_str().into()),
        ])
    }

    fn from_value(value: &Value) -> Option<Self> {
        let map = value.as_map()?;
        let text = |name: &str| Some(map.get(name)?.as_str()?.to_owned());
        Some(Self {
            client: text("client")?,
            fun: text("fun")?,
            tgt: map.get("tgt")?.clone(),
            tgt_type: text("tgt_type")?,
            args: map.get("args")?.as_list().map(<[Value]>::to_vec),
            load: map.get("load")?.as_map().cloned(),
            id: text("id")?,
            sls: text("sls")?,
        })
    }
}

impl ShadowItem {
    /// The form on the socket: a mapping with `item` and its fields.
    pub fn to_value(&self) -> Value {
        let truth = Value::Bool;
        match self {
            Self::Mode { at, shadow, started } => map([
                ("item", "mode".into()),
                ("at", Value::Int(at.0)),
                ("shadow", truth(*shadow)),
                ("started", truth(*started)),
            ]),
            Self::Ours(ours) => map([
                ("item", "ours".into()),
                ("event", number(ours.event.0)),
                ("at", Value::Int(ours.at.0)),
                ("tag", ours.tag.as_str().into()),
                ("rules", texts(&ours.rules)),
                ("reaction", number(ours.reaction.0)),
                ("nth", Value::Int(ours.nth.into())),
                ("act", ours.call.to_value()),
                ("blocked", ours.prevented_by.as_str().into()),
                ("throttle", ours.throttle.as_str().into()),
            ]),
            Self::Failed(failed) => map([
                ("item", "failed".into()),
                ("event", number(failed.event.0)),
                ("at", Value::Int(failed.at.0)),
                ("tag", failed.tag.as_str().into()),
                ("rules", texts(&failed.rules)),
                ("reaction", number(failed.reaction.0)),
                ("failures", Value::List(failed.failures.iter().map(failure_value).collect())),
            ]),
            Self::Made(jid) => map([("item", "made".into()), ("jid", jid.as_str().into())]),
            Self::Salts(salts) => map([
                ("item", "salts".into()),
                ("seq", number(salts.seq.0)),
                ("at", Value::Int(salts.at.0)),
                ("jid", salts.jid.as_str().into()),
                ("act", salts.call.to_value()),
                ("certain", truth(salts.certain)),
            ]),
            Self::Load { jid, call } => {
                map([("item", "load".into()), ("jid", jid.as_str().into()), ("act", call.to_value())])
            }
            Self::Ended { jid, at } => {
                map([("item", "ended".into()), ("jid", jid.as_str().into()), ("at", Value::Int(at.0))])
            }
            Self::Gap { begin, end } => {
                map([("item", "gap".into()), ("begin", Value::Int(begin.0)), ("end", Value::Int(end.0))])
            }
        }
    }

    /// Parses the form of [`ShadowItem::to_value`].
    pub fn from_value(value: &Value) -> Option<Self> {
        let map = value.as_map()?;
        let text = |name: &str| Some(map.get(name)?.as_str()?.to_owned());
        let int = |name: &str| match map.get(name)? {
            Value::Int(n) => Some(*n),
            _ => None,
        };
        let at = |name: &str| int(name).map(Micros);
        let seq = |name: &str| int(name).and_then(|n| u64::try_from(n).ok()).map(SeqNo);
        let truth = |name: &str| match map.get(name)? {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        };
        let call = || ObservedCall::from_value(map.get("act")?);
        let rules = || {
            let rules = map.get("rules")?.as_list()?.iter();
            Some(rules.filter_map(|rule| rule.as_str().map(str::to_owned)).collect())
        };
        Some(match map.get("item")?.as_str()? {
            "mode" => Self::Mode { at: at("at")?, shadow: truth("shadow")?, started: truth("started")? },
            "ours" => Self::Ours(OurCall {
                event: seq("event")?,
                at: at("at")?,
                tag: text("tag")?,
                rules: rules()?,
                reaction: seq("reaction")?,
                nth: u32::try_from(int("nth")?).ok()?,
                call: call()?,
                prevented_by: text("blocked")?,
                throttle: text("throttle")?,
            }),
            "failed" => Self::Failed(FailedReaction {
                event: seq("event")?,
                at: at("at")?,
                tag: text("tag")?,
                rules: rules()?,
                reaction: seq("reaction")?,
                failures: map.get("failures")?.as_list()?.iter().map(failure_of).collect::<Option<_>>()?,
            }),
            "made" => Self::Made(text("jid")?),
            "salts" => Self::Salts(SaltsCall {
                seq: seq("seq")?,
                at: at("at")?,
                jid: text("jid")?,
                call: call()?,
                certain: truth("certain")?,
            }),
            "ended" => Self::Ended { jid: text("jid")?, at: at("at")? },
            "load" => Self::Load { jid: text("jid")?, call: call()? },
            "gap" => Self::Gap { begin: at("begin")?, end: at("end")? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_survive_a_round_trip() {
        let load: Map = [("tgt", Value::from("a,b")), ("tgt_type", "list".into())]
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect();
        let call = ObservedCall::job("test.ping", &load).with_load(&load);
        let (event, at) = (SeqNo(7), Micros(9));
        for item in [
            ShadowItem::Mode { at, shadow: true, started: false },
            ShadowItem::Ours(OurCall {
                event,
                at,
                tag: "a/b".to_owned(),
                rules: vec!["a/*".to_owned()],
                reaction: SeqNo(8),
                nth: 3,
                call: call.clone(),
                prevented_by: "no".to_owned(),
                throttle: "rate".to_owned(),
            }),
            ShadowItem::Failed(FailedReaction {
                event,
                at,
                tag: "a/b".to_owned(),
                rules: vec!["a/*".to_owned()],
                reaction: SeqNo(8),
                failures: vec![
                    ReactionFailure {
                        at: Location { file: "/a.sls".to_owned(), line: Some(3), rendered: true },
                        cause: "no".to_owned(),
                    },
                    ReactionFailure::default(),
                ],
            }),
            ShadowItem::Made("1".to_owned()),
            ShadowItem::Salts(SaltsCall {
                seq: event,
                at,
                jid: "2".to_owned(),
                call: call.clone(),
                certain: true,
            }),
            ShadowItem::Load { jid: "3".to_owned(), call },
            ShadowItem::Ended { jid: "4".to_owned(), at },
            ShadowItem::Gap { begin: Micros(1), end: Micros(2) },
        ] {
            let value = pack::unpacked(&pack::packed(&item.to_value())).unwrap();
            assert_eq!(ShadowItem::from_value(&value), Some(item));
        }
        assert_eq!(ShadowItem::from_value(&map([("item", "odd".into())])), None);
    }
}
