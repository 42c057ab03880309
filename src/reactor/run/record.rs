//! Records: what the reactor did about an event, as an entry of the log.
//!
//! ```text
//! tag    saltcellar/reaction/<tag of the event>      minion   as of the event
//! body   msgpack map
//!        event     sequence number of the event               at       when that arrived, microseconds since 1970
//!        state     begun, done, failed, partial, dead, left    why      if it was left: old, quiet, once, rate, budget, depth, ...
//!        rules     patterns of the rules that this is about    of       how many rules took the event
//!        began     when their turn came                        ended    when it was over
//!        files     list of [file, rendered text]              chunks   the low chunks
//!        calls     list of maps: id, sls, client, fun, tgt, load, jid, tries, sent, took, outcome, and what belongs to it
//!        depth     how many reactions led to the event, unless none did
//!        notes     list of [level, text]                       replay   of what it is a replay: the number of a record
//!        failures  list of maps: file, line, rendered, cause; only if a part failed before there was a call of it
//!
//! `done`: all was rendered, and each call was made. `failed`: rendering failed, and no call was made. `dead`: calls were dead-lettered,
//! none was made. `partial`: some calls were made; the rest was dead-lettered, or failed to render.
//! Older records have neither `failures` nor the states `failed` and `partial`: a `done` of theirs may have errors among its notes.
//!
//! One that was left has neither files nor chunks nor calls, but for one that a throttle left out in shadow: it has been rendered.
//! ```
//!
//! An entry of this kind whose state is `mode` is about no event: it says whether the reactor is in shadow (`shadow`), and whether it has
//! just been started (`started`); see `reactor/shadow`. One that is `begun` says that a call is about to be made which must not be made twice;
//! it names it under `keys`. Under `back` it names one of which it is certain that it was not made after all. It is no part of the
//! history (its entry has not the flag). All others are, one for each event and group of rules.

use super::{Event, Reacted, Wanted, What};
use crate::clock::Micros;
use crate::limits::{
    REACTOR_CHUNKS_BYTES_MAX, REACTOR_NAMES_MAX, REACTOR_RESULT_BYTES_MAX, REACTOR_TEXT_BYTES_MAX,
};
use crate::master::{Answer, Cmd, pack};
use crate::model::{Batch, Entry, Flags, Kind, Location, REACTION_TAG, ReactionFailure, SeqNo, Source};
use crate::sls::value::{Map, Value};
use crate::wire::msgpack::{Writer, as_bool, as_int, as_text, elements, get};

/// How a reaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Everything was done.
    Done,
    /// Rendering failed, and no call was made; it waits for `reactor replay`.
    Failed,
    /// Some calls were made; the rest failed, and waits for `reactor replay`.
    Partial,
    /// No call could be made; they wait for `reactor replay`.
    Dead,
    /// Nothing was done, and nothing was to be.
    Left(&'static str),
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The master took it.
    Answered(Answer),
    /// It ran here, successfully if `retcode` is 0.
    Ran {
        /// The code that a minion would return.
        retcode: i64,
        /// What it returned, as msgpack.
        result: Vec<u8>,
    },
    /// The log shows that the master carried it out, though its answer was lost: a job that was published or answered, or the start
    /// of a runner or a wheel function.
    Found,
    /// It was not made: the reactor is in shadow.
    Shadowed,
    /// It could not be made, and will not be.
    Dead(String),
    /// It was sent, no answer came, and the log does not show whether it was carried out.
    Unknown(String),
}

/// A call in a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// What was wanted.
    pub wanted: Wanted,
    /// The jid that it was given; empty if the master chose one.
    pub jid: String,
    /// How often it was tried.
    pub tries: u32,
    /// When it was tried last.
    pub sent: Micros,
    /// How long the master took over that.
    pub took_us: i64,
    /// What became of it.
    pub outcome: Outcome,
}

/// A record that is being made.
#[derive(Debug, Clone)]
pub struct Record {
    /// The event.
    pub event: Event,
    /// The rules.
    pub rules: Vec<std::sync::Arc<str>>,
    /// How many rules took the event.
    pub of: usize,
    /// How it ended.
    pub state: State,
    /// When its turn came.
    pub began: Micros,
    /// When it was over.
    pub ended: Micros,
    /// What was rendered.
    pub reacted: Reacted,
    /// What was made of it.
    pub calls: Vec<Made>,
    /// The record that this is a replay of.
    pub replay: Option<SeqNo>,
    /// How many reactions led to the event.
    pub depth: u32,
}

impl Record {
    /// One for an event about which nothing is done.
    pub fn left(
        event: Event,
        rules: Vec<std::sync::Arc<str>>,
        of: usize,
        why: &'static str,
        now: Micros,
    ) -> Self {
        Self {
            event,
            rules,
            of,
            state: State::Left(why),
            began: now,
            ended: now,
            reacted: Reacted::default(),
            calls: Vec::new(),
            replay: None,
            depth: 0,
        }
    }

    /// As an entry, in a batch of its own.
    pub fn batch(&self, now: Micros) -> Batch {
        entry(&self.event, Flags::REACTION, now, &self.body())
    }

    fn body(&self) -> Vec<u8> {
        let (state, why) = match self.state {
            State::Done => ("done", ""),
            State::Failed => ("failed", ""),
            State::Partial => ("partial", ""),
            State::Dead => ("dead", ""),
            State::Left(why) => ("left", why),
        };
        let mut w = Writer::new();
        let is_rendered = why.is_empty() || !self.calls.is_empty();
        let pairs = 8 + usize::from(!why.is_empty()) + 3 * usize::from(is_rendered);
        let failures = &self.reacted.failures;
        w.map(
            pairs
                + usize::from(self.replay.is_some())
                + usize::from(!failures.is_empty())
                + usize::from(self.depth > 0),
        );
        head(&mut w, &self.event, &self.rules, self.of, state);
        w.str("began").int(self.began.0).str("ended").int(self.ended.0);
        w.str("notes").array(self.reacted.notes.len());
        for (level, text) in &self.reacted.notes {
            w.array(2).str(level.name()).str(cut(text, REACTOR_TEXT_BYTES_MAX).0);
        }
        if let Some(seq) = self.replay {
            w.str("replay").uint(seq.0);
        }
        if self.depth > 0 {
            w.str("depth").uint(self.depth.into());
        }
        if !failures.is_empty() {
            w.str("failures").array(failures.len());
        }
        for ReactionFailure { at, cause } in failures {
            w.map(4).str("file").str(&at.file).str("line");
            match at.line {
                Some(line) => w.uint(line.into()),
                None => w.nil(),
            };
            w.str("rendered").bool(at.rendered).str("cause").str(cut(cause, REACTOR_TEXT_BYTES_MAX).0);
        }
        if !why.is_empty() {
            w.str("why").str(why);
        }
        if !is_rendered {
            return w.into_bytes();
        }
        w.str("files").array(self.reacted.files.len());
        let mut room = REACTOR_TEXT_BYTES_MAX;
        for (file, text) in &self.reacted.files {
            let (text, whole) = cut(text, room);
            room -= text.len();
            w.array(if whole { 2 } else { 3 }).str(file).str(text);
            if !whole {
                w.str("cut");
            }
        }
        let chunks = pack::packed(&self.reacted.chunks);
        w.str("chunks");
        if chunks.len() <= REACTOR_CHUNKS_BYTES_MAX {
            w.raw(&chunks)
        } else {
            w.nil()
        };
        w.str("calls").array(self.calls.len());
        self.calls.iter().for_each(|made| put_call(&mut w, made));
        w.into_bytes()
    }
}

/// What is said beforehand of a call that must not be made twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It is about to be made.
    Begun,
    /// It was not made, for certain: one `Begun` less of the same call.
    TakenBack,
}

/// An entry that says that of a call, by its [`call_key`].
pub fn mark(
    event: &Event,
    rules: &[std::sync::Arc<str>],
    of: usize,
    mark: Mark,
    key: u64,
    now: Micros,
) -> Batch {
    let mut w = Writer::new();
    w.map(6);
    head(&mut w, event, rules, of, "begun");
    let name = match mark {
        Mark::Begun => "keys",
        Mark::TakenBack => "back",
    };
    w.str(name).array(1).uint(key);
    entry(event, Flags::default(), now, &w.into_bytes())
}

/// The five pairs with which each record begins.
fn head(w: &mut Writer, event: &Event, rules: &[std::sync::Arc<str>], of: usize, state: &str) {
    w.str("event").uint(event.seq.0).str("at").int(event.at.0).str("state").str(state);
    w.str("rules").array(rules.len());
    for rule in rules {
        w.str(rule);
    }
    w.str("of").uint(of as u64);
}

fn entry(event: &Event, flags: Flags, now: Micros, body: &[u8]) -> Batch {
    let tag = format!("{REACTION_TAG}{}", event.tag);
    Batch::of(&Entry {
        kind: Kind::Reaction,
        source: Source::Reactor,
        flags,
        at: now,
        tag: tag.as_bytes(),
        jid: "",
        minion: &event.minion,
        fun: "",
        retcode: 0,
        body,
    })
}

/// A call is known by what it is, within one event.
pub fn call_key(wanted: &Wanted) -> u64 {
    let (fun, what) = match &wanted.what {
        What::Executor(call) => (call.fun.as_str(), call.cmd.name()),
        What::Caller { fun, .. } => (fun.as_str(), "caller"),
    };
    xxhash_rust::xxh3::xxh3_64([what, fun, &wanted.id, &wanted.sls].join("\0").as_bytes())
}

/// `local`, `runner`, `wheel` or `caller`.
pub fn client(what: &What) -> &'static str {
    match what {
        What::Executor(call) => match call.cmd {
            Cmd::Publish => "local",
            Cmd::Runner => "runner",
            Cmd::Wheel => "wheel",
        },
        What::Caller { .. } => "caller",
    }
}

/// The target, as text; empty where there is none.
pub fn target(what: &What) -> String {
    let What::Executor(call) = what else { return String::new() };
    match call.load.get("tgt") {
        Some(Value::Str(text)) => text.clone(),
        Some(Value::List(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        _ => String::new(),
    }
}

fn put_call(w: &mut Writer, made: &Made) {
    let wanted = &made.wanted;
    let (fun, load) = match &wanted.what {
        What::Executor(call) => (&call.fun, Value::Map(call.load.clone())),
        What::Caller { fun, args, kwargs } => {
            let load = [("args", Value::List(args.clone())), ("kwargs", kwargs.clone())];
            (fun, Value::Map(load.into_iter().map(|(k, v)| (k.into(), v)).collect::<Map>()))
        }
    };
    let load = pack::packed(&load);
    let (outcome, more) = outcome_words(&made.outcome);
    w.map(11 + more);
    w.str("id").str(&wanted.id).str("sls").str(&wanted.sls).str("client").str(client(&wanted.what));
    w.str("fun").str(fun).str("tgt").str(&target(&wanted.what)).str("load");
    if load.len() <= REACTOR_CHUNKS_BYTES_MAX {
        w.raw(&load)
    } else {
        w.nil()
    };
    w.str("tries").uint(u64::from(made.tries)).str("sent").int(made.sent.0).str("took_us").int(made.took_us);
    w.str("outcome").str(outcome);
    let names = |w: &mut Writer, key: &str, names: &[String]| {
        w.str(key).array(names.len().min(REACTOR_NAMES_MAX));
        for name in names.iter().take(REACTOR_NAMES_MAX) {
            w.str(name);
        }
    };
    let result = |w: &mut Writer, result: &[u8]| {
        w.str("result");
        if result.len() <= REACTOR_RESULT_BYTES_MAX {
            w.raw(result)
        } else {
            w.nil()
        };
    };
    let jid = match &made.outcome {
        Outcome::Answered(
            Answer::Published { jid, .. } | Answer::Started { jid, .. } | Answer::Ran { jid, .. },
        ) => jid,
        _ => &made.jid,
    };
    w.str("jid").str(jid);
    match &made.outcome {
        Outcome::Answered(Answer::Published { minions, missing, .. }) => {
            w.str("count").uint(minions.len() as u64);
            names(w, "minions", minions);
            names(w, "missing", missing);
        }
        Outcome::Answered(Answer::Started { tag, .. }) => {
            w.str("tag").str(tag);
        }
        Outcome::Answered(Answer::Ran { success, result: bytes, .. }) => {
            w.str("success").bool(*success);
            result(w, bytes);
        }
        Outcome::Ran { retcode, result: bytes } => {
            w.str("success").bool(*retcode == 0).str("retcode").int(*retcode);
            result(w, bytes);
        }
        Outcome::Answered(Answer::NoTarget { why }) | Outcome::Dead(why) | Outcome::Unknown(why) => {
            w.str("why").str(cut(why, REACTOR_TEXT_BYTES_MAX).0);
        }
        Outcome::Found | Outcome::Shadowed => {}
    }
}

/// The word for an outcome, and how many more pairs it has.
fn outcome_words(outcome: &Outcome) -> (&'static str, usize) {
    match outcome {
        Outcome::Answered(Answer::Published { .. }) => ("published", 3),
        Outcome::Answered(Answer::NoTarget { .. }) => ("nobody", 1),
        Outcome::Answered(Answer::Started { .. }) => ("started", 1),
        Outcome::Answered(Answer::Ran { .. }) => ("ran", 2),
        Outcome::Ran { .. } => ("ran", 3),
        Outcome::Found => ("found", 0),
        Outcome::Shadowed => ("shadowed", 0),
        Outcome::Dead(_) => ("dead", 1),
        Outcome::Unknown(_) => ("unknown", 1),
    }
}

/// The beginning of a text, and whether it is all of it.
fn cut(text: &str, room: usize) -> (&str, bool) {
    if text.len() <= room {
        return (text, true);
    }
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (text.get(..end).unwrap_or_default(), false)
}

/// Jids of the calls that were made, by a record.
pub fn jids(body: &[u8]) -> impl Iterator<Item = &str> {
    let calls = elements(get(body, "calls").unwrap_or_default());
    calls.filter_map(|call| as_text(get(call, "jid")?)).filter(|jid| !jid.is_empty())
}

/// What failed, by a record.
pub fn failures(body: &[u8]) -> Vec<ReactionFailure> {
    let one = |failure| {
        let text = |key| get(failure, key).and_then(as_text).unwrap_or_default().to_owned();
        let line = get(failure, "line").and_then(as_int).and_then(|line| u32::try_from(line).ok());
        let rendered = get(failure, "rendered").and_then(as_bool).unwrap_or(false);
        ReactionFailure { at: Location { file: text("file"), line, rendered }, cause: text("cause") }
    };
    elements(get(body, "failures").unwrap_or_default()).map(one).collect()
}

/// The option of a rule that left a reaction out, by what its record says under `why`; `None` if it was something else.
pub fn option_of(why: &str) -> Option<&'static str> {
    match why {
        "once" => Some("once_per"),
        "quiet" => Some("debounce"),
        "rate" => Some("rate"),
        "budget" => Some("budget"),
        _ => None,
    }
}

/// When the event of a record came, if it was the one of its minion that counted for a rule with `once_per`.
pub fn counted_once(body: &[u8], rule: &str) -> Option<Micros> {
    let is_of =
        |rule: &str| elements(get(body, "rules").unwrap_or_default()).any(|of| as_text(of) == Some(rule));
    // These did not get as far as to be counted.
    let never_came = matches!(get(body, "why").and_then(as_text), Some("once" | "depth" | "gone"));
    let counts = is_of(rule) && !never_came && get(body, "replay").is_none();
    counts.then(|| get(body, "at").and_then(as_int).map(Micros)).flatten()
}

/// The jobs and orchestrations that a record tells of, each with the depth of the event that it is a reaction to.
pub fn jobs_of(body: &[u8], mut take: impl FnMut(&str, u32)) {
    let depth = get(body, "depth").and_then(as_int).and_then(|depth| u32::try_from(depth).ok()).unwrap_or(0);
    for call in elements(get(body, "calls").unwrap_or_default()) {
        let load = get(call, "load").and_then(|load| get(load, "kwarg"));
        let words = load.and_then(|both| get(both, "kwarg")).unwrap_or_default();
        for jid in
            [get(call, "jid"), get(words, "orchestration_jid")].into_iter().flatten().filter_map(as_text)
        {
            take(jid, depth);
        }
    }
}

/// What the fold over the log needs of a record.
#[derive(Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// The event.
    pub event: SeqNo,
    /// Its rules.
    pub rules: Vec<&'a str>,
    /// How many rules took the event.
    pub of: usize,
    /// What it says of calls that must not be made twice; such a record closes nothing.
    pub marks: Option<Vec<(Mark, u64)>>,
}

/// Reads a record; `None` for what is none, and for replays, which open and close nothing.
pub fn told(body: &[u8]) -> Option<Told<'_>> {
    if get(body, "replay").is_some() {
        return None;
    }
    let uint = |key| get(body, key).and_then(as_int).and_then(|n| u64::try_from(n).ok());
    let key = |key| match pack::unpacked(key)? {
        Value::Int(n) => u64::try_from(n).ok(),
        Value::BigInt(digits) => digits.parse().ok(),
        _ => None,
    };
    let marked = |name, mark| {
        let keys = elements(get(body, name).unwrap_or_default()).filter_map(key);
        keys.map(move |key| (mark, key))
    };
    let marks = (get(body, "state").and_then(as_text)? == "begun")
        .then(|| marked("keys", Mark::Begun).chain(marked("back", Mark::TakenBack)).collect());
    Some(Told {
        event: SeqNo(uint("event")?),
        rules: elements(get(body, "rules")?).filter_map(as_text).collect(),
        of: usize::try_from(uint("of")?).ok()?,
        marks,
    })
}
