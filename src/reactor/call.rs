//! A call with its outcome, as it is recorded in the log, shown, compared, and replayed.
//!
//! In msgpack a map of the fields of the call, of its tries, and of its outcome, whose name is in
//! `outcome`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base::clock::Micros;
use crate::base::limits::{REACTOR_NAMES_MAX, REACTOR_RESULT_BYTES_MAX, REACTOR_TEXT_BYTES_MAX};
use crate::reactor::master::{Answer, Call};
use crate::wire::msgpack::{Stored, decode, or_absent};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CallRecord {
    #[serde(flatten)]
    pub(crate) call: Call,
    /// The jid that the master chose, else the jid that was sent; empty if the master chooses it.
    pub(crate) jid: String,
    pub(crate) tries: u32,
    /// Time of the last try.
    pub(crate) sent: Micros,
    /// Duration of the last try.
    pub(crate) took_us: i64,
    #[serde(flatten)]
    pub(crate) outcome: CallOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub(crate) enum CallOutcome {
    /// A job was published.
    Published {
        /// Number of the minions that were expected to return.
        count: u64,
        /// Their names, a limited number.
        minions: Vec<String>,
        /// Minions of a list target with unknown keys, a limited number.
        missing: Vec<String>,
    },
    /// The target matches no minion; no job was published.
    #[serde(rename = "no_target")]
    NoTarget {
        #[serde(serialize_with = "shortened")]
        why: String,
    },
    /// A runner was started.
    Started {
        /// The prefix of its event tags.
        tag: String,
    },
    /// A wheel function ran on the master, or a function here.
    Ran {
        success: bool,
        /// The return code of a function that ran here, as a minion would report it.
        #[serde(serialize_with = "or_absent")]
        retcode: Option<i64>,
        /// The return value; none if it was too large.
        result: Stored,
    },
    /// The response was lost, but the log proves that the master executed the call: a job was
    /// published or a minion returned, or a runner or wheel function started.
    Found,
    /// Not made, because the reactor is in shadow.
    Shadowed,
    /// Dead-lettered, for that reason.
    Dead {
        #[serde(serialize_with = "shortened")]
        why: String,
    },
    /// Sent without a response; the log does not prove that the call was executed.
    Unknown {
        #[serde(serialize_with = "shortened")]
        why: String,
    },
}

impl CallOutcome {
    /// The outcome of a call that the master responded to, and the jid in the response.
    pub(crate) fn answered(answer: Answer) -> (Option<String>, Self) {
        match answer {
            Answer::Published {
                jid,
                mut minions,
                mut missing,
            } => {
                // Before the names are cut, because it is the number of all minions.
                let count = minions.len() as u64;
                minions.truncate(REACTOR_NAMES_MAX);
                missing.truncate(REACTOR_NAMES_MAX);
                let outcome = Self::Published {
                    count,
                    minions,
                    missing,
                };
                (Some(jid), outcome)
            }
            Answer::NoTarget { why } => (None, Self::NoTarget { why }),
            Answer::Started { jid, tag } => (Some(jid), Self::Started { tag }),
            Answer::Ran {
                jid,
                success,
                result,
            } => (Some(jid), Self::ran(success, None, result)),
        }
    }

    /// The outcome of a function that ran; `result` is msgpack.
    pub(crate) fn ran(success: bool, retcode: Option<i64>, result: Vec<u8>) -> Self {
        let result = if result.len() <= REACTOR_RESULT_BYTES_MAX {
            Stored::Packed(result)
        } else {
            Stored::None
        };
        Self::Ran {
            success,
            retcode,
            result,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Published { .. } => "published",
            Self::NoTarget { .. } => "no_target",
            Self::Started { .. } => "started",
            Self::Ran { .. } => "ran",
            Self::Found => "found",
            Self::Shadowed => "shadowed",
            Self::Dead { .. } => "dead",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Why the call was not made, or its outcome is not known; empty for others.
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::NoTarget { why } | Self::Dead { why } | Self::Unknown { why } => why,
            _ => "",
        }
    }

    /// True if the call was dead-lettered: not made, or perhaps made without a known outcome.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self, Self::Dead { .. } | Self::Unknown { .. })
    }
}

/// The fields in addition to the call's, for any outcome.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    jid: String,
    tries: u32,
    sent: Micros,
    took_us: i64,
    outcome: String,
    count: u64,
    minions: Vec<String>,
    missing: Vec<String>,
    tag: String,
    success: bool,
    retcode: Option<i64>,
    result: Stored,
    why: String,
}

impl<'de> Deserialize<'de> for CallRecord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Not flattened by serde, which would read loads and results into values of another type,
        // up to a limited depth.
        let stored = Stored::deserialize(from)?;
        // Two passes over the same bytes, because both structs are in one map.
        let call: Call = decode(stored.packed()).map_err(D::Error::custom)?;
        let fields: Fields = decode(stored.packed()).map_err(D::Error::custom)?;

        let Fields {
            count,
            minions,
            missing,
            tag,
            success,
            retcode,
            result,
            why,
            ..
        } = fields;
        let outcome = match fields.outcome.as_str() {
            "published" => CallOutcome::Published {
                count,
                minions,
                missing,
            },
            "no_target" => CallOutcome::NoTarget { why },
            "started" => CallOutcome::Started { tag },
            "ran" => CallOutcome::Ran {
                success,
                retcode,
                result,
            },
            "found" => CallOutcome::Found,
            "shadowed" => CallOutcome::Shadowed,
            "dead" => CallOutcome::Dead { why },
            "unknown" => CallOutcome::Unknown { why },
            other => return Err(D::Error::custom(format!("unknown outcome {other:?}"))),
        };

        Ok(Self {
            call,
            jid: fields.jid,
            tries: fields.tries,
            sent: fields.sent,
            took_us: fields.took_us,
            outcome,
        })
    }
}

fn shortened<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(cut(text, REACTOR_TEXT_BYTES_MAX).0)
}

/// A prefix of at most `room` bytes, and whether it is the whole string.
pub(crate) fn cut(text: &str, room: usize) -> (&str, bool) {
    if text.len() <= room {
        return (text, true);
    }
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (text.get(..end).unwrap_or_default(), false)
}

#[cfg(test)]
mod tests {
    use salt_sls::{Map, Value};

    use super::*;
    use crate::base::limits::REACTOR_CHUNKS_BYTES_MAX;
    use crate::reactor::master::Client;
    use crate::reactor::master::pack::packed;
    use crate::wire::msgpack::encode;

    fn record(call: Call, outcome: CallOutcome) -> CallRecord {
        CallRecord {
            call,
            jid: "7".to_owned(),
            tries: 2,
            sent: Micros(3),
            took_us: 4,
            outcome,
        }
    }

    #[test]
    fn a_call_survives_its_record_with_every_outcome() {
        let why = || "no".to_owned();
        // Deeper than serde may read.
        let deep = (0..100).fold(Value::Null, |inner, _| Value::List(vec![inner]));
        let outcomes = [
            CallOutcome::Published {
                count: 2,
                minions: vec!["a".to_owned(), "b".to_owned()],
                missing: Vec::new(),
            },
            CallOutcome::NoTarget { why: why() },
            CallOutcome::Started {
                tag: "salt/run/7".to_owned(),
            },
            CallOutcome::ran(true, None, packed(&"x".into())),
            CallOutcome::ran(false, Some(-2), packed(&deep)),
            CallOutcome::Found,
            CallOutcome::Shadowed,
            CallOutcome::Dead { why: why() },
            CallOutcome::Unknown { why: why() },
        ];
        let arg = vec![Value::Int(-1), Value::Bytes(vec![0xff]), deep];
        let calls = [
            Call::publish("web*", "glob", "test.ping", arg.clone()),
            Call::runner("test.arg", arg.clone(), Map::default()),
            Call::wheel("key.accept", arg.clone(), Map::default()),
            Call::caller("test.ping", arg, Value::Map(Map::default())),
        ];
        for call in &calls {
            for outcome in &outcomes {
                let made = record(call.clone(), outcome.clone());
                let bytes = encode(&made).unwrap();
                assert_eq!(decode::<CallRecord>(&bytes).unwrap(), made);

                let name = crate::wire::msgpack::get(&bytes, "outcome");
                let name = name.and_then(crate::wire::msgpack::as_text);
                assert_eq!(name, Some(outcome.name()));
            }
        }
    }

    #[test]
    fn what_is_too_large_for_a_record_is_left_out_of_it() {
        let large = "x".repeat(REACTOR_CHUNKS_BYTES_MAX.max(REACTOR_RESULT_BYTES_MAX));
        let result = packed(&large.as_str().into());
        let outcome = CallOutcome::ran(true, None, result);
        let call = Call::publish("web*", "glob", "test.arg", vec![large.as_str().into()]);
        let made = record(call, outcome);

        let read = decode::<CallRecord>(&encode(&made).unwrap()).unwrap();
        let Call {
            client, tgt, load, ..
        } = &read.call;
        assert_eq!(
            (*client, tgt.as_str(), load),
            (Client::Local, "web*", &Map::default())
        );
        let CallOutcome::Ran { result, .. } = read.outcome else {
            panic!("{read:?}")
        };
        assert!(result.is_none());

        let why = "ä".repeat(REACTOR_TEXT_BYTES_MAX);
        let dead = record(read.call, CallOutcome::Dead { why });
        let read = decode::<CallRecord>(&encode(&dead).unwrap()).unwrap();
        assert_eq!(read.outcome.why().len(), REACTOR_TEXT_BYTES_MAX / 2 * 2);
    }
}
