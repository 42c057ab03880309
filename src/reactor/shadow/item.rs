//! What the log has that the comparison needs, in the order of the log.
//!
//! Items travel over the local socket as msgpack, see [`Item::to_value`].

use super::act::Act;
use crate::clock::Micros;
use crate::limits::REACTOR_SHADOW_ACT_BYTES_MAX;
use crate::master::pack;
use crate::model::{Batch, Entry, Flags, Kind, Location, REACTION_TAG, ReactionFailure, SeqNo, Source};
use crate::reactor::run::depths::says_reactor;
use crate::reactor::run::record::{failures, option_of};
use crate::sls::value::{Key, Map, Value};
use crate::store::Followed;
use crate::wire::msgpack::{Writer, as_bool, as_int, as_text, elements, get};
use crate::wire::salt_event::job_tag;

/// A call of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Ours {
    /// The event.
    pub event: SeqNo,
    /// When that arrived.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// The rules that were rendered together.
    pub rules: Vec<String>,
    /// The record.
    pub reaction: SeqNo,
    /// Which call of the record.
    pub nth: u32,
    /// What would have been called.
    pub act: Act,
    /// Why it would not have been made after all; empty if it would.
    pub barred: String,
    /// The option of the rule that is why: `once_per`, `debounce`, `rate` or `budget`; empty if it is none of these.
    pub throttle: String,
}

impl Ours {
    /// Why it would not have been made, in words.
    pub fn why(&self) -> String {
        if self.throttle.is_empty() {
            return self.barred.clone();
        }
        format!("`{}` of {}: {}", self.throttle, self.rules.join(", "), self.barred)
    }
}

/// A reaction of ours that failed to render, wholly or in part.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// The event.
    pub event: SeqNo,
    /// When that arrived.
    pub at: Micros,
    /// Its tag.
    pub tag: String,
    /// The rules that were rendered together.
    pub rules: Vec<String>,
    /// The record.
    pub reaction: SeqNo,
    /// What failed.
    pub failures: Vec<ReactionFailure>,
}

impl Failed {
    /// What failed, in words: file, line, cause.
    pub fn why(&self) -> String {
        let words: Vec<_> = self.failures.iter().map(ToString::to_string).collect();
        words.join("; ")
    }
}

/// A call of Salt's reactor, or what may be one.
#[derive(Debug, Clone, PartialEq)]
pub struct Salts {
    /// The event that shows it.
    pub seq: SeqNo,
    /// When that arrived.
    pub at: Micros,
    /// Its job.
    pub jid: String,
    /// What was called.
    pub act: Act,
    /// Is it known that a reactor made it?
    pub certain: bool,
}

/// See the top of the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Our reactor tells how it is.
    Mode {
        /// When.
        at: Micros,
        /// It dispatches nothing.
        shadow: bool,
        /// It has just been started.
        started: bool,
    },
    /// A call of ours that was not made.
    Ours(Ours),
    /// A reaction of ours that failed.
    Failed(Failed),
    /// A call of ours that was made, by its jid.
    Made(String),
    /// A call of Salt's.
    Salts(Salts),
    /// A runner or a wheel function of a reactor has ended.
    Ended {
        /// Its job.
        jid: String,
        /// When.
        at: Micros,
    },
    /// The load of a job.
    Load {
        /// The job.
        jid: String,
        /// What it shows beyond the job's event.
        act: Act,
    },
    /// Events of a bus may be missing.
    Gap {
        /// From then on.
        begin: Micros,
        /// Until then.
        end: Micros,
    },
}

/// Might an entry be of interest, by its kind?
pub fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    match kind {
        Kind::Reaction | Kind::Load | Kind::Gap => true,
        Kind::JobNew | Kind::Event => flags.has(Flags::ON_BUS),
        _ => false,
    }
}

/// The entry with which our reactor tells how it is. Without the flag of a reaction: it is no part of the history.
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

impl Item {
    /// What an entry says; mostly nothing.
    pub fn read(row: &Followed<'_>) -> Vec<Self> {
        match row.kind {
            Kind::Reaction => record(row),
            Kind::JobNew => job(row).into_iter().collect(),
            Kind::Event => {
                let ended = ended(row);
                master_call(row).map(Item::Salts).into_iter().chain(ended).collect()
            }
            Kind::Load => load(row).into_iter().collect(),
            Kind::Gap => vec![gap(row)],
            _ => Vec::new(),
        }
    }
}

/// Is the clock behind an entry's time this machine's, and not a minion's or a spool's?
pub fn is_timely(source: Source) -> bool {
    matches!(source, Source::Bus | Source::Reactor)
}

fn text<'a>(map: &'a [u8], key: &str) -> &'a str {
    get(map, key).and_then(as_text).unwrap_or_default()
}

fn seq(map: &[u8], key: &str) -> Option<SeqNo> {
    get(map, key).and_then(as_int).and_then(|n| u64::try_from(n).ok()).map(SeqNo)
}

/// A value, unless it is too large to be kept for a comparison.
fn small(bytes: &[u8]) -> Option<Value> {
    if bytes.len() > REACTOR_SHADOW_ACT_BYTES_MAX { None } else { pack::unpacked(bytes) }
}

fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::List(items) => Some(items),
        _ => None,
    }
}

fn record(row: &Followed<'_>) -> Vec<Item> {
    let body = row.body;
    let is = |key| get(body, key).and_then(as_bool).unwrap_or(false);
    match text(body, "state") {
        "mode" => return vec![Item::Mode { at: row.at, shadow: is("shadow"), started: is("started") }],
        // A replay is by the word of a person.
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
        found.push(Item::Failed(Failed { event, at: Micros(at), tag, rules, reaction: row.seq, failures }));
    }
    let left_by = option_of(text(body, "why")).unwrap_or_default();
    for (nth, call) in (0..).zip(elements(get(body, "calls").unwrap_or_default())) {
        let outcome = text(call, "outcome");
        let throttle = if outcome == "shadowed" { left_by } else { "" };
        let barred = match outcome {
            "shadowed" => match throttle {
                "once_per" => "of the minion's events the first one counts",
                "debounce" => "of the minion's events the last one counts, once it is quiet",
                "rate" => "it would wait for longer than the window",
                "budget" => "its rule has used up what it may",
                _ => "",
            },
            "dead" | "nobody" => text(call, "why"),
            // What we made carries our jid in what Salt fires.
            _ => {
                let jid = text(call, "jid");
                found.extend((!jid.is_empty()).then(|| Item::Made(jid.to_owned())));
                continue;
            }
        };
        found.push(Item::Ours(Ours {
            event,
            at: Micros(at),
            tag: tag.to_owned(),
            rules: rules.clone(),
            reaction: row.seq,
            nth,
            act: wanted(call),
            barred: barred.to_owned(),
            throttle: throttle.to_owned(),
        }));
    }
    found
}

/// The call of a record.
fn wanted(call: &[u8]) -> Act {
    let (client, fun) = (text(call, "client"), text(call, "fun"));
    let load = small(get(call, "load").unwrap_or_default());
    let load = load.as_ref().and_then(Value::as_map);
    let act = match client {
        "local" => match load {
            Some(load) => Act::job(fun, load).with_load(load),
            None => Act {
                tgt: text(call, "tgt").into(),
                tgt_type: "glob".to_owned(),
                ..Act::on_master(client, fun, None)
            },
        },
        "runner" | "wheel" => asked(client, fun, load),
        _ => Act::on_master(client, fun, inside(load, "args", "kwargs")),
    };
    Act { id: text(call, "id").to_owned(), sls: text(call, "sls").to_owned(), ..act }
}

/// The call of a runner or a wheel function, by the load that the master is sent.
pub fn asked(client: &str, fun: &str, load: Option<&Map>) -> Act {
    let load = if client == "runner" { load.and_then(|load| load.get("kwarg")?.as_map()) } else { load };
    Act::on_master(client, fun, inside(load, "arg", "kwarg"))
}

fn inside(map: Option<&Map>, args: &str, words: &str) -> Option<Vec<Value>> {
    let mut found = map?.get(args)?.as_list()?.to_vec();
    let words = map?.get(words).and_then(Value::as_map).filter(|words| !words.is_empty());
    found.extend(words.cloned().map(Value::Map));
    Some(found)
}

/// A job that Salt's reactor may have published.
fn job(row: &Followed<'_>) -> Option<Item> {
    let fun = get(row.body, "fun").and_then(as_text)?;
    let part = |key: &str| Some((key.into(), small(get(row.body, key)?)?));
    // Not `minions`, of which there may be thousands.
    let load: Map = ["tgt", "tgt_type", "arg"].into_iter().filter_map(part).collect();
    let act = Act::job(fun, &load);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(Item::Salts(Salts { seq, at, jid, act, certain: false }))
}

/// A runner or a wheel function, by a reactor.
pub fn master_call(row: &Followed<'_>) -> Option<Salts> {
    if !row.tag.starts_with(b"salt/run/") && !row.tag.starts_with(b"salt/wheel/") || !says_reactor(row.body) {
        return None;
    }
    let tag = job_tag(row.tag)?;
    let args = get(row.body, "fun_args");
    // What could not be started is told by its result alone, which then lacks the arguments.
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
    let act = Act::on_master(client, fun, args);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(Salts { seq, at, jid, act, certain: true })
}

fn ended(row: &Followed<'_>) -> Option<Item> {
    let is_of_master = row.tag.starts_with(b"salt/run/") || row.tag.starts_with(b"salt/wheel/");
    let tag = job_tag(row.tag).filter(|tag| is_of_master && tag.about == "ret" && says_reactor(row.body))?;
    Some(Item::Ended { jid: tag.jid.to_owned(), at: row.at })
}

/// A runner that a reactor's orchestration started is told to be a reactor's, too; its arguments say who published it.
fn is_nested(args: &[Value]) -> bool {
    matches!(args.last(), Some(Value::Map(words)) if words.contains_key("__pub_user"))
}

/// What the daemon itself asks a master for, see `Keeper` in `daemon/reactor.rs`.
fn is_own(args: &[Value]) -> bool {
    matches!(args, [Value::Str(fun), Value::Str(of)] if fun == "sys.runner_argspec" && of == "*")
}

/// The load of a job, as a master hands it to its job cache.
fn load(row: &Followed<'_>) -> Option<Item> {
    let load = small(elements(row.body).next()?)?;
    let load = load.as_map()?;
    let act = Act::job(load.get("fun")?.as_str()?, load).with_load(load);
    Some(Item::Load { jid: row.jid.to_owned(), act })
}

fn gap(row: &Followed<'_>) -> Item {
    // Of what began with the log nobody knows when it began.
    let begin = match get(row.body, "seconds").and_then(pack::unpacked) {
        #[expect(clippy::cast_possible_truncation, reason = "whole microseconds are enough")]
        Some(Value::Float(seconds)) => row.at.0.saturating_sub((seconds * 1e6) as i64),
        _ => 0,
    };
    Item::Gap { begin: Micros(begin), end: row.at }
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

impl Act {
    /// As it travels, and as `--output json` shows it.
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

impl Item {
    /// As it travels: a mapping with `item`, and what belongs to it.
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
                ("act", ours.act.to_value()),
                ("blocked", ours.barred.as_str().into()),
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
                ("act", salts.act.to_value()),
                ("certain", truth(salts.certain)),
            ]),
            Self::Load { jid, act } => {
                map([("item", "load".into()), ("jid", jid.as_str().into()), ("act", act.to_value())])
            }
            Self::Ended { jid, at } => {
                map([("item", "ended".into()), ("jid", jid.as_str().into()), ("at", Value::Int(at.0))])
            }
            Self::Gap { begin, end } => {
                map([("item", "gap".into()), ("begin", Value::Int(begin.0)), ("end", Value::Int(end.0))])
            }
        }
    }

    /// Reads it back; `None` for what is none.
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
        let act = || Act::from_value(map.get("act")?);
        let rules = || {
            let rules = map.get("rules")?.as_list()?.iter();
            Some(rules.filter_map(|rule| rule.as_str().map(str::to_owned)).collect())
        };
        Some(match map.get("item")?.as_str()? {
            "mode" => Self::Mode { at: at("at")?, shadow: truth("shadow")?, started: truth("started")? },
            "ours" => Self::Ours(Ours {
                event: seq("event")?,
                at: at("at")?,
                tag: text("tag")?,
                rules: rules()?,
                reaction: seq("reaction")?,
                nth: u32::try_from(int("nth")?).ok()?,
                act: act()?,
                barred: text("blocked")?,
                throttle: text("throttle")?,
            }),
            "failed" => Self::Failed(Failed {
                event: seq("event")?,
                at: at("at")?,
                tag: text("tag")?,
                rules: rules()?,
                reaction: seq("reaction")?,
                failures: map.get("failures")?.as_list()?.iter().map(failure_of).collect::<Option<_>>()?,
            }),
            "made" => Self::Made(text("jid")?),
            "salts" => Self::Salts(Salts {
                seq: seq("seq")?,
                at: at("at")?,
                jid: text("jid")?,
                act: act()?,
                certain: truth("certain")?,
            }),
            "ended" => Self::Ended { jid: text("jid")?, at: at("at")? },
            "load" => Self::Load { jid: text("jid")?, act: act()? },
            "gap" => Self::Gap { begin: at("begin")?, end: at("end")? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_as_they_were_sent() {
        let load: Map = [("tgt", Value::from("a,b")), ("tgt_type", "list".into())]
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect();
        let act = Act::job("test.ping", &load).with_load(&load);
        let (event, at) = (SeqNo(7), Micros(9));
        for item in [
            Item::Mode { at, shadow: true, started: false },
            Item::Ours(Ours {
                event,
                at,
                tag: "a/b".to_owned(),
                rules: vec!["a/*".to_owned()],
                reaction: SeqNo(8),
                nth: 3,
                act: act.clone(),
                barred: "no".to_owned(),
                throttle: "rate".to_owned(),
            }),
            Item::Failed(Failed {
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
            Item::Made("1".to_owned()),
            Item::Salts(Salts { seq: event, at, jid: "2".to_owned(), act: act.clone(), certain: true }),
            Item::Load { jid: "3".to_owned(), act },
            Item::Ended { jid: "4".to_owned(), at },
            Item::Gap { begin: Micros(1), end: Micros(2) },
        ] {
            let value = pack::unpacked(&pack::packed(&item.to_value())).unwrap();
            assert_eq!(Item::from_value(&value), Some(item));
        }
        assert_eq!(Item::from_value(&map([("item", "odd".into())])), None);
    }
}
