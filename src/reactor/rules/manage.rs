//! Requests of `salt-run reactor.list`, `add`, `delete`, `is_leader` and `set_leader` to the
//! running reactor.
//!
//! They are events that contain the master's key; others are dropped. The key of an event of a
//! bus is checked and redacted before the event is stored (`src/policy/master_keys.rs`). Salt
//! 3008.3 changes only a copy of the rules; here the changes take effect.

use std::path::Path;

use salt_sls::{Key, Map, Value};

use crate::config::salt_master::read_key;
use crate::model::{MANAGE_TAG, Note, same_key};
use crate::reactor::outcome::Fired;

const LOGGER: &str = "salt.utils.reactor";
/// Part of the tags of requests and responses. All events with it require the key.
const MANAGE: &str = MANAGE_TAG;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::reactor) enum Request {
    List,
    Add,
    Delete,
    IsLeader,
    SetLeader,
    /// A tag of requests, but an unknown one.
    Other,
}

impl Request {
    /// The request with this tag; `None` for other tags.
    pub(in crate::reactor) fn of(tag: &str) -> Option<Self> {
        let at = memchr::memmem::rfind(tag.as_bytes(), MANAGE.as_bytes())?;
        let rest = tag.get(at + MANAGE.len()..)?;
        Some(match rest {
            "/list" => Request::List,
            "/add" => Request::Add,
            "/delete" => Request::Delete,
            "/is_leader" => Request::IsLeader,
            "/set_leader" => Request::SetLeader,
            _ => Request::Other,
        })
    }
}

/// True for the tag of a response by a reactor, which has no key.
pub(in crate::reactor) fn is_answer(tag: &str) -> bool {
    let verb = tag.strip_prefix(MANAGE).unwrap_or_default();
    matches!(
        verb,
        "/list-results" | "/add-complete" | "/delete-complete" | "/leader/value"
    )
}

/// True if the data contains the content of the key file.
pub(in crate::reactor) fn has_key(data: &Map, key_file: &Path) -> bool {
    let given = data.get("key").and_then(Value::as_str);
    given.is_some_and(|given| read_key(key_file).is_ok_and(|key| same_key(given.as_bytes(), &key)))
}

/// The message about an event without the key.
pub(in crate::reactor) fn without_key() -> Note {
    Note::error(
        LOGGER,
        "received salt/reactors/manage event without matching master_key. discarding",
    )
}

/// The message about an incomplete request; Salt's process dies of it.
pub(in crate::reactor) fn lacks(what: &str) -> Note {
    Note::error(
        LOGGER,
        format!("request to the reactor ignored: no `{what}`"),
    )
}

/// `{"status": .., "comment": ..}`
pub(in crate::reactor) fn status(done: bool, comment: &str) -> Value {
    mapping([("status", Value::Bool(done)), ("comment", comment.into())])
}

/// The response to `list`, `add` or `delete`.
pub(in crate::reactor) fn answer(verb: &str, reactors: Value, result: Option<Value>) -> Fired {
    let mut data = vec![("reactors", reactors)];
    data.extend(result.map(|result| ("result", result)));
    Fired {
        tag: format!("{MANAGE}/{verb}"),
        data: mapping(data),
    }
}

/// The response to `is_leader` and `set_leader`.
pub(in crate::reactor) fn leader(value: Value) -> Fired {
    Fired {
        tag: format!("{MANAGE}/leader/value"),
        data: mapping([("result", value)]),
    }
}

fn mapping<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(
        pairs
            .into_iter()
            .map(|(key, value)| (Key::from(key), value))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_recognised_by_the_end_of_their_tag() {
        let check = |tag: &str, expected| assert_eq!(Request::of(tag), expected, "{tag}");
        check("salt/reactors/manage/add", Some(Request::Add));
        check(
            "salt/run/20300101000000000000/salt/reactors/manage/list",
            Some(Request::List),
        );
        check(
            "salt/reactors/manage/x/salt/reactors/manage/delete",
            Some(Request::Delete),
        );
        check("salt/reactors/manage/list-results", Some(Request::Other));
        check("salt/reactors/manage", Some(Request::Other));
        check("salt/reactors", None);
        for fired in [
            answer("list-results", Value::Null, None),
            leader(Value::Null),
        ] {
            assert!(is_answer(&fired.tag), "{}", fired.tag);
        }
        assert!(!is_answer("salt/reactors/manage/list") && !is_answer("salt/reactors/manage/"));
    }
}
