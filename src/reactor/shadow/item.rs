//! The entries of the log that the comparison needs, in the order of the log.
//!
//! Their form on the local socket is the form of serde, in msgpack.

use salt_sls::{Map, Value};
use serde::{Deserialize, Serialize};

use super::observed_call::ObservedCall;
use crate::base::clock::Micros;
use crate::base::limits::REACTOR_SHADOW_ACT_BYTES_MAX;
use crate::model::{Batch, Entry, Flags, Kind, REACTION_TAG, ReactionFailure, SeqNo, Source};
use crate::reactor::call::CallOutcome;
use crate::reactor::logged::is_by_reactor;
use crate::reactor::stored::{SkipReason, State, StoredRecord};
use crate::store::Followed;
use crate::wire::msgpack::{Writer, as_bool, as_text, elements, get};
use crate::wire::salt_event::job_tag;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OurCall {
    pub(crate) event: SeqNo,
    pub(crate) at: Micros,
    pub(crate) tag: String,
    /// The rules that were rendered together.
    pub(crate) rules: Vec<String>,
    pub(crate) reaction: SeqNo,
    /// Index of the call in the record.
    pub(crate) nth: u32,
    #[serde(rename = "act")]
    pub(crate) call: ObservedCall,
    /// Why the call would be prevented; empty if it would be made.
    #[serde(rename = "blocked")]
    pub(crate) prevented_by: String,
    /// The option that prevents it: `once_per`, `debounce`, `rate` or `budget`; otherwise empty.
    pub(crate) throttle: String,
}

impl OurCall {
    /// Why the call would be prevented, as text.
    pub(crate) fn why(&self) -> String {
        if self.throttle.is_empty() {
            return self.prevented_by.clone();
        }
        format!(
            "`{}` of {}: {}",
            self.throttle,
            self.rules.join(", "),
            self.prevented_by
        )
    }
}

/// A saltcellar reaction that failed to render, wholly or partly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FailedReaction {
    pub(crate) event: SeqNo,
    pub(crate) at: Micros,
    pub(crate) tag: String,
    pub(crate) rules: Vec<String>,
    pub(crate) reaction: SeqNo,
    pub(crate) failures: Vec<ReactionFailure>,
}

impl FailedReaction {
    /// The failures as text: file, line, cause.
    pub(crate) fn why(&self) -> String {
        let words: Vec<_> = self.failures.iter().map(ToString::to_string).collect();
        words.join("; ")
    }
}

/// A call of Salt's reactor, or a job that may be one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SaltsCall {
    /// The event of the call.
    pub(crate) seq: SeqNo,
    pub(crate) at: Micros,
    pub(crate) jid: String,
    #[serde(rename = "act")]
    pub(crate) call: ObservedCall,
    /// True if a reactor made it; false if that is unknown.
    pub(crate) certain: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "lowercase")]
pub(crate) enum ShadowItem {
    /// The mode of saltcellar's reactor.
    Mode {
        at: Micros,
        shadow: bool,
        /// True for the first entry after a start.
        started: bool,
    },
    /// A saltcellar call that was not made.
    Ours(OurCall),
    /// A saltcellar reaction that failed.
    Failed(FailedReaction),
    /// A saltcellar call that was made.
    Made {
        jid: String,
    },
    Salts(SaltsCall),
    /// The end of a runner or wheel function of a reactor.
    Ended {
        jid: String,
        at: Micros,
    },
    /// The load of a job.
    Load {
        jid: String,
        /// The fields that the job's event lacks.
        #[serde(rename = "act")]
        call: ObservedCall,
    },
    /// Events of a bus may be missing in this time.
    Gap {
        begin: Micros,
        end: Micros,
    },
}

/// True if entries of this kind may be read as items.
pub(crate) fn is_of_interest(kind: Kind, flags: Flags) -> bool {
    match kind {
        Kind::Reaction | Kind::Load | Kind::Gap => true,
        Kind::JobNew | Kind::Event => flags.has(Flags::ON_BUS),
        _ => false,
    }
}

/// The entry with the reactor's mode. It lacks the flag of a reaction, so it is not part of the
/// history.
pub(crate) fn mode(shadow: bool, started: bool, now: Micros) -> Batch {
    let mut w = Writer::new();
    w.map(3)
        .str("state")
        .str("mode")
        .str("shadow")
        .bool(shadow)
        .str("started")
        .bool(started);

    Batch::of(&Entry {
        kind: Kind::Reaction,
        source: Source::Reactor,
        origin: "",
        number: 0,
        flags: Flags::default(),
        at: now,
        // The prefix alone, because the mode belongs to no event.
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
    pub(crate) fn read(row: &Followed<'_>) -> Vec<Self> {
        // Jobs and functions of another master of a cluster were called by its reactor.
        if !row.origin.is_empty() {
            return Vec::new();
        }

        match row.kind {
            Kind::Reaction => record(row),
            Kind::JobNew => job(row).into_iter().collect(),
            Kind::Event => {
                // If a function could not be started, one event contains its call and its end.
                let ended = ended(row);
                master_call(row)
                    .map(ShadowItem::Salts)
                    .into_iter()
                    .chain(ended)
                    .collect()
            }
            Kind::Load => load(row).into_iter().collect(),
            Kind::Gap => vec![gap(row)],
            _ => Vec::new(),
        }
    }
}

/// True if the entry's time is of this host's clock, and not of a minion's or a spool's.
pub(crate) fn is_timely(source: Source) -> bool {
    matches!(source, Source::Bus | Source::Reactor)
}

fn text<'a>(map: &'a [u8], key: &str) -> &'a str {
    get(map, key).and_then(as_text).unwrap_or_default()
}

/// Parses a value, unless it is too large for the comparison.
fn small(bytes: &[u8]) -> Option<Value> {
    if bytes.len() > REACTOR_SHADOW_ACT_BYTES_MAX {
        None
    } else {
        crate::wire::salt_value::from_msgpack(bytes)
    }
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
    if text(body, "state") == "mode" {
        return vec![ShadowItem::Mode {
            at: row.at,
            shadow: is("shadow"),
            started: is("started"),
        }];
    }

    let Ok(record) = StoredRecord::read(body) else {
        return Vec::new();
    };
    // Replays are requested by a user, and marks of calls are no outcome.
    if record.replay.is_some() || record.state == State::Begun {
        return Vec::new();
    }

    let (event, at) = (SeqNo(record.event), Micros(record.at));
    let tag = String::from_utf8_lossy(row.tag);
    let tag = tag.strip_prefix(REACTION_TAG).unwrap_or_default();

    let failures: Vec<_> = record.failures().collect();
    let mut found = Vec::new();
    if !failures.is_empty() {
        found.push(ShadowItem::Failed(FailedReaction {
            event,
            at,
            tag: tag.to_owned(),
            rules: record.rules.clone(),
            reaction: row.seq,
            failures,
        }));
    }

    // A record that a throttle skipped contains calls only in shadow.
    let skipped_by = record.why.filter(|why| why.throttle().is_some());
    // The stored form shows the size of each load, which decides below.
    let stored = elements(get(body, "calls").unwrap_or_default());
    for ((nth, mut made), stored) in (0..).zip(record.calls).zip(stored) {
        let is_shadowed = made.outcome == CallOutcome::Shadowed;
        let throttle = skipped_by.filter(|_| is_shadowed);
        let prevented_by = match &made.outcome {
            CallOutcome::Shadowed => match throttle {
                Some(SkipReason::OncePer) => "only the first of the minion's events counts",
                Some(SkipReason::Debounced) => {
                    "only the last of the minion's events counts, after its quiet period"
                }
                Some(SkipReason::Rate) => "it would be delayed beyond the window",
                Some(SkipReason::Budget) => "the budget of the rule is used up",
                Some(
                    SkipReason::TooOld | SkipReason::Depth | SkipReason::NoRule | SkipReason::Peer,
                )
                | None => "",
            },
            CallOutcome::Dead { why } | CallOutcome::NoTarget { why } => why,
            // Salt's events contain the jid of a call that we made.
            _ => {
                if !made.jid.is_empty() {
                    found.push(ShadowItem::Made { jid: made.jid });
                }
                continue;
            }
        };

        // A load that is too large for the comparison is as unknown as one that is not recorded.
        if get(stored, "load").is_some_and(|load| load.len() > REACTOR_SHADOW_ACT_BYTES_MAX) {
            made.call.load.clear();
        }

        found.push(ShadowItem::Ours(OurCall {
            event,
            at,
            tag: tag.to_owned(),
            rules: record.rules.clone(),
            reaction: row.seq,
            nth,
            call: ObservedCall::of(&made.call),
            prevented_by: prevented_by.to_owned(),
            throttle: throttle
                .and_then(SkipReason::throttle)
                .unwrap_or_default()
                .to_owned(),
        }));
    }

    found
}

/// A job that Salt's reactor may have published.
fn job(row: &Followed<'_>) -> Option<ShadowItem> {
    let fun = get(row.body, "fun").and_then(as_text)?;
    let part = |key: &str| Some((key.into(), small(get(row.body, key)?)?));
    // Without `minions`, which may have thousands of items.
    let load: Map = ["tgt", "tgt_type", "arg"]
        .into_iter()
        .filter_map(part)
        .collect();

    let call = ObservedCall::job(fun, &load);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(ShadowItem::Salts(SaltsCall {
        seq,
        at,
        jid,
        call,
        certain: false,
    }))
}

/// A call of a runner or wheel function by a reactor.
pub(crate) fn master_call(row: &Followed<'_>) -> Option<SaltsCall> {
    if !row.tag.starts_with(b"salt/run/") && !row.tag.starts_with(b"salt/wheel/")
        || !is_by_reactor(row.body)
    {
        return None;
    }

    let tag = job_tag(row.tag)?;
    let args = get(row.body, "fun_args");
    // A function that could not be started fires only a result event, without arguments.
    if !matches!((tag.about, args), ("new", _) | ("ret", None)) {
        return None;
    }

    let (client, fun) = get(row.body, "fun").and_then(as_text)?.split_once('.')?;
    if !matches!(client, "runner" | "wheel") {
        return None;
    }

    let args = args.and_then(small).and_then(list);

    // The orchestration made this call, and not a rule.
    if args.as_deref().is_some_and(is_nested) {
        return None;
    }

    let call = ObservedCall::on_master(client, fun, args);
    let (seq, at, jid) = (row.seq, row.at, row.jid.to_owned());
    Some(SaltsCall {
        seq,
        at,
        jid,
        call,
        certain: true,
    })
}

fn ended(row: &Followed<'_>) -> Option<ShadowItem> {
    let is_of_master = row.tag.starts_with(b"salt/run/") || row.tag.starts_with(b"salt/wheel/");
    let tag = job_tag(row.tag)
        .filter(|tag| is_of_master && tag.about == "ret" && is_by_reactor(row.body))?;
    Some(ShadowItem::Ended {
        jid: tag.jid.to_owned(),
        at: row.at,
    })
}

/// True for a runner that an orchestration of a reactor started: its arguments name the publisher,
/// its user is the reactor as well.
fn is_nested(args: &[Value]) -> bool {
    matches!(args.last(), Some(Value::Map(words)) if words.contains_key("__pub_user"))
}

/// The load of a job, as the master passes it to its job cache.
fn load(row: &Followed<'_>) -> Option<ShadowItem> {
    let load = small(elements(row.body).next()?)?;
    let load = load.as_map()?;
    let call = ObservedCall::job(load.get("fun")?.as_str()?, load).with_load(load);
    Some(ShadowItem::Load {
        jid: row.jid.to_owned(),
        call,
    })
}

fn gap(row: &Followed<'_>) -> ShadowItem {
    // Without a duration the gap starts at the beginning of the log.
    let begin = match get(row.body, "seconds").and_then(crate::wire::salt_value::from_msgpack) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole microseconds are enough"
        )]
        Some(Value::Float(seconds)) => row.at.0.saturating_sub((seconds * 1e6) as i64),
        _ => 0,
    };

    ShadowItem::Gap {
        begin: Micros(begin),
        end: row.at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Location;
    use crate::wire::msgpack::{decode, encode};
    use salt_sls::yaml;

    #[test]
    fn items_have_their_form_on_the_socket_and_survive_a_round_trip() {
        let load = yaml::load(
            "{tgt: 'a,b', tgt_type: list, arg: [!!binary AP8=, {5: x, $a: y}, 18446744073709551615]}",
        );
        let Ok(Value::Map(load)) = load else {
            panic!("{load:?}")
        };
        let call = ObservedCall::job("test.ping", &load).with_load(&load);
        let (event, at, jid) = (SeqNo(7), Micros(9), || "1".to_owned());
        let (tag, rules, reaction) = ("a/b".to_owned(), vec!["a/*".to_owned()], SeqNo(8));
        let ours = OurCall {
            event,
            at,
            tag: tag.clone(),
            rules: rules.clone(),
            reaction,
            nth: 3,
            call: call.clone(),
            prevented_by: "no".to_owned(),
            throttle: "rate".to_owned(),
        };
        let at_line = Location {
            file: "/a.sls".to_owned(),
            line: Some(3),
            rendered: true,
        };
        let failures = vec![
            ReactionFailure {
                at: at_line,
                cause: "no".to_owned(),
            },
            ReactionFailure::default(),
        ];
        let failed = FailedReaction {
            event,
            at,
            tag,
            rules,
            reaction,
            failures,
        };
        let unknown = ObservedCall::on_master("runner", "test.arg", None);
        let date = crate::wire::salt_value::from_ext(78, b"20260203T04:05:06.000789");
        let dated = ObservedCall::on_master("wheel", "test.arg", Some(vec![date]));
        let known = r#"{"client":"local","fun":"test.ping","tgt":["a","b"],"tgt_type":"list","args":[{"$bin":"AP8="},{"$5":"x","$$a":"y"},18446744073709551615],"load":{},"id":"","sls":""}"#;
        for (item, form) in [
            (
                ShadowItem::Mode { at, shadow: true, started: false },
                r#"{"item":"mode","at":9,"shadow":true,"started":false}"#.to_owned(),
            ),
            (
                ShadowItem::Ours(ours),
                format!(
                    r#"{{"item":"ours","event":7,"at":9,"tag":"a/b","rules":["a/*"],"reaction":8,"nth":3,"act":{known},"blocked":"no","throttle":"rate"}}"#
                ),
            ),
            (
                ShadowItem::Failed(failed),
                r#"{"item":"failed","event":7,"at":9,"tag":"a/b","rules":["a/*"],"reaction":8,"failures":[{"file":"/a.sls","line":3,"rendered":true,"cause":"no"},{"file":"","line":null,"rendered":false,"cause":""}]}"#.to_owned(),
            ),
            (ShadowItem::Made { jid: jid() }, r#"{"item":"made","jid":"1"}"#.to_owned()),
            (
                ShadowItem::Salts(SaltsCall { seq: event, at, jid: jid(), call: unknown, certain: true }),
                r#"{"item":"salts","seq":7,"at":9,"jid":"1","act":{"client":"runner","fun":"test.arg","tgt":null,"tgt_type":"","args":null,"load":null,"id":"","sls":""},"certain":true}"#.to_owned(),
            ),
            (
                ShadowItem::Salts(SaltsCall { seq: event, at, jid: jid(), call: dated, certain: true }),
                r#"{"item":"salts","seq":7,"at":9,"jid":"1","act":{"client":"wheel","fun":"test.arg","tgt":null,"tgt_type":"","args":[{"$object":{"type":"datetime","str":"2026-02-03 04:05:06.000789","repr":"datetime.datetime(2026, 2, 3, 4, 5, 6, 789)","true":true,"ext":[78,"MjAyNjAyMDNUMDQ6MDU6MDYuMDAwNzg5"]}}],"load":null,"id":"","sls":""},"certain":true}"#.to_owned(),
            ),
            (
                ShadowItem::Load { jid: jid(), call },
                format!(r#"{{"item":"load","jid":"1","act":{known}}}"#),
            ),
            (ShadowItem::Ended { jid: jid(), at }, r#"{"item":"ended","jid":"1","at":9}"#.to_owned()),
            (
                ShadowItem::Gap { begin: Micros(1), end: Micros(2) },
                r#"{"item":"gap","begin":1,"end":2}"#.to_owned(),
            ),
        ] {
            assert_eq!(serde_json::to_string(&item).unwrap(), form);
            assert_eq!(serde_json::from_str::<ShadowItem>(&form).unwrap(), item);
            // As at the socket.
            let packed = encode(&item).unwrap();
            assert_eq!(decode::<ShadowItem>(&packed).unwrap(), item);
        }
        assert!(serde_json::from_value::<ShadowItem>(serde_json::json!({"item": "odd"})).is_err());
    }
}
