//! What a master answers.
//!
//! A map if it understood, else a string: `bad load` and its kin for a request that it cannot read, other words if something
//! broke on its side (`salt/channel/server.py`). Any other answer does not tell whether the request was carried out.

use std::path::Path;

use super::{Cmd, MasterError, Place};
use crate::wire::msgpack::{Reader, as_bool, as_text, elements, get, is_nil};

/// An answer that helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A job is on its way.
    Published {
        /// Its jid.
        jid: String,
        /// The minions that are expected to answer.
        minions: Vec<String>,
        /// Minions of a list whose keys are not known.
        missing: Vec<String>,
    },
    /// The target matches no minion; there is no job.
    Nobody {
        /// What the master said.
        why: String,
    },
    /// A runner was started; its result comes on the bus under `<tag>/ret`.
    Started {
        /// Its jid.
        jid: String,
        /// Begins the tags of its events.
        tag: String,
    },
    /// A wheel function has run.
    Ran {
        /// Its jid.
        jid: String,
        /// Did it succeed, by its own words?
        success: bool,
        /// What it returned, as msgpack.
        result: Vec<u8>,
    },
}

/// Reads a reply.
pub(super) fn read(cmd: Cmd, reply: &[u8], place: &Place, key: &Path) -> Result<Answer, MasterError> {
    let at = place.to_string();
    let odd = |why: &str| MasterError::NoAnswer { place: at.clone(), why: why.to_owned() };
    if let Some(words) = as_text(reply) {
        let why = format!("{words:?}");
        return Err(match words {
            // It could not read the request.
            w if w.starts_with("bad load") || w.starts_with("payload and load must be") => {
                MasterError::Refused { place: at, why }
            }
            // Something broke on its side, and nobody knows where.
            _ => MasterError::NoAnswer { place: at, why },
        });
    }
    // One value, and a map: all else is no master of Salt.
    let whole = {
        let mut reader = Reader::new(reply);
        reader.value().is_ok() && reader.rest().is_empty() && Reader::new(reply).map().is_ok()
    };
    if !whole {
        return Err(odd("an answer that is neither a map nor text; is this a Salt master's ret_port?"));
    }
    if let Some(error) = get(reply, "error").filter(|error| !is_nil(error)) {
        return Err(refusal(error, at, key));
    }
    let text = |map: &[u8], key: &str| get(map, key).and_then(as_text).map(str::to_owned);
    let names = |map: &[u8], key: &str| {
        let list = get(map, key).unwrap_or_default();
        elements(list).filter_map(as_text).map(str::to_owned).collect::<Vec<_>>()
    };
    match cmd {
        Cmd::Publish => {
            let load = get(reply, "load").ok_or_else(|| odd("an answer to `publish` without `load`"))?;
            if let Some(jid) = text(load, "jid").filter(|jid| !jid.is_empty()) {
                return Ok(Answer::Published {
                    jid,
                    minions: names(load, "minions"),
                    missing: names(load, "missing"),
                });
            }
            match get(load, "error").map(|error| {
                as_text(error).map_or_else(|| refusal(error, at.clone(), key).to_string(), str::to_owned)
            }) {
                Some(why) if names(load, "minions").is_empty() && why.contains("resolve minions") => {
                    Ok(Answer::Nobody { why })
                }
                // `Failed to allocate a jid`: the job cache was away, and no job went out.
                Some(why) => Err(MasterError::Retry { place: at, why }),
                None => Ok(Answer::Nobody { why: "no minion matches".to_owned() }),
            }
        }
        Cmd::Runner => {
            let (jid, tag) = (text(reply, "jid"), text(reply, "tag"));
            let (Some(jid), Some(tag)) = (jid, tag) else {
                return Err(odd("an answer to `runner` without `jid` or `tag`"));
            };
            Ok(Answer::Started { jid, tag })
        }
        Cmd::Wheel => {
            let data = get(reply, "data").ok_or_else(|| odd("an answer to `wheel` without `data`"))?;
            Ok(Answer::Ran {
                jid: text(data, "jid").unwrap_or_default(),
                success: get(data, "success").and_then(as_bool).unwrap_or(false),
                result: get(data, "return").unwrap_or(&[0xc0]).to_vec(),
            })
        }
    }
}

/// What an `error` in an answer means: text, or a map of name and message.
fn refusal(error: &[u8], place: String, key: &Path) -> MasterError {
    let name = get(error, "name").and_then(as_text).unwrap_or_default();
    let message = as_text(error).or_else(|| get(error, "message").and_then(as_text)).unwrap_or("no reason");
    let why = if name.is_empty() { message.to_owned() } else { format!("{message} ({name})") };
    match name {
        "AuthenticationError" | "UserAuthenticationError" => {
            MasterError::Unauthenticated { place, path: key.display().to_string(), why }
        }
        _ if why.contains("allocate a jid") => MasterError::Retry { place, why },
        _ => MasterError::Refused { place, why },
    }
}
