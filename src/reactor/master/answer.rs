//! Responses of a master.
//!
//! A response is a map if the master understood the request, else a string: `bad load` and similar
//! for an unreadable request, another string for an internal error (`salt/channel/server.py`). Any
//! other response leaves open whether the request was carried out.

use std::path::Path;

use super::address::MasterAddress;
use super::call::Client;
use super::error::MasterError;
use crate::wire::msgpack::{Reader, as_bool, as_text, elements, get, is_nil};

/// What a master did with a request. `jid` is the id of the job, the runner or the wheel function.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "`jid` in each")]
pub enum Answer {
    /// A job was published.
    Published {
        jid: String,
        /// The minions expected to return.
        minions: Vec<String>,
        /// Minions of a list target with unknown keys.
        missing: Vec<String>,
    },
    /// The target matches no minion; no job was published.
    NoTarget {
        /// Why none does.
        why: String,
    },
    /// A runner was started; its result arrives on the bus under `<tag>/ret`.
    Started {
        jid: String,
        /// The prefix of its event tags.
        tag: String,
    },
    /// A wheel function has finished.
    Ran {
        jid: String,
        /// Whether it succeeded.
        success: bool,
        /// Its result, as msgpack.
        result: Vec<u8>,
    },
}

/// Parses a reply.
pub(super) fn read(
    client: Client,
    reply: &[u8],
    place: &MasterAddress,
    key: &Path,
) -> Result<Answer, MasterError> {
    let at = place.to_string();
    let odd = |why: &str| MasterError::NoAnswer {
        place: at.clone(),
        why: why.to_owned(),
    };

    if let Some(text) = as_text(reply) {
        let why = format!("{text:?}");
        return Err(match text {
            // The request was unreadable.
            w if w.starts_with("bad load") || w.starts_with("payload and load must be") => {
                MasterError::Refused { place: at, why }
            }
            // An internal error at an unknown point.
            _ => MasterError::NoAnswer { place: at, why },
        });
    }

    // A Salt master responds with exactly one map.
    let whole = {
        let mut reader = Reader::new(reply);
        reader.value().is_ok() && reader.rest().is_empty() && Reader::new(reply).map().is_ok()
    };
    if !whole {
        return Err(odd(
            "a response that is neither a map nor a string; is this a Salt master's ret_port?",
        ));
    }

    if let Some(error) = get(reply, "error").filter(|error| !is_nil(error)) {
        return Err(refusal(error, at, key));
    }

    let text = |map: &[u8], key: &str| get(map, key).and_then(as_text).map(str::to_owned);
    let names = |map: &[u8], key: &str| {
        let list = get(map, key).unwrap_or_default();
        elements(list)
            .filter_map(as_text)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };

    match client {
        Client::Local => {
            let load =
                get(reply, "load").ok_or_else(|| odd("a response to `publish` without `load`"))?;
            if let Some(jid) = text(load, "jid").filter(|jid| !jid.is_empty()) {
                return Ok(Answer::Published {
                    jid,
                    minions: names(load, "minions"),
                    missing: names(load, "missing"),
                });
            }

            match get(load, "error").map(|error| {
                as_text(error).map_or_else(
                    || refusal(error, at.clone(), key).to_string(),
                    str::to_owned,
                )
            }) {
                Some(why)
                    if names(load, "minions").is_empty() && why.contains("resolve minions") =>
                {
                    Ok(Answer::NoTarget { why })
                }
                // `Failed to allocate a jid`: the job cache was unreachable, and no job was
                // published.
                Some(why) => Err(MasterError::Retry { place: at, why }),
                None => Ok(Answer::NoTarget {
                    why: "no minion matches".to_owned(),
                }),
            }
        }
        Client::Runner => {
            let (jid, tag) = (text(reply, "jid"), text(reply, "tag"));
            let (Some(jid), Some(tag)) = (jid, tag) else {
                return Err(odd("a response to `runner` without `jid` or `tag`"));
            };
            Ok(Answer::Started { jid, tag })
        }
        // `ask` rejects `caller` before it sends anything.
        Client::Wheel | Client::Caller => {
            let data =
                get(reply, "data").ok_or_else(|| odd("a response to `wheel` without `data`"))?;
            Ok(Answer::Ran {
                jid: text(data, "jid").unwrap_or_default(),
                success: get(data, "success").and_then(as_bool).unwrap_or(false),
                result: get(data, "return").unwrap_or(&[0xc0]).to_vec(),
            })
        }
    }
}

/// Converts an `error` in a response: a string, or a map with name and message.
fn refusal(error: &[u8], place: String, key: &Path) -> MasterError {
    let name = get(error, "name").and_then(as_text).unwrap_or_default();
    let message = as_text(error)
        .or_else(|| get(error, "message").and_then(as_text))
        .unwrap_or("no reason");

    let why = if name.is_empty() {
        message.to_owned()
    } else {
        format!("{message} ({name})")
    };

    // Only these two exceptions of Salt are about the key.
    match name {
        "AuthenticationError" | "UserAuthenticationError" => MasterError::Unauthenticated {
            place,
            path: key.display().to_string(),
            why,
        },
        // The master's job cache was unreachable, so nothing was published.
        _ if why.contains("allocate a jid") => MasterError::Retry { place, why },
        // The master's host lacked memory or processes, and the runner was not started.
        "BlockingIOError" | "MemoryError" | "OSError" => MasterError::Retry { place, why },
        _ => MasterError::Refused { place, why },
    }
}
