//! Requests to the running reactor: `salt-run reactor.list`, `add`, `delete`, `is_leader`, `set_leader`.
//!
//! They are events that hold the master's own key; without it they are dropped. The key of an event off the bus is compared and
//! redacted before it is stored (`src/ingest/master_keys.rs`). Unlike in Salt 3008.3, where a copy is changed,
//! what is added or deleted takes effect.

use std::path::Path;

use super::outcome::Fired;
use crate::config::salt_master::read_key;
use crate::model::{MANAGE_TAG, Note, NoteLevel, same_key};
use crate::sls::value::Key;
use crate::sls::{Map, Value};

const LOGGER: &str = "salt.utils.reactor";
/// A tag that holds this is a request, an answer, or somebody else's; all need the key.
const MANAGE: &str = MANAGE_TAG;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    List,
    Add,
    Delete,
    IsLeader,
    SetLeader,
    /// A tag of requests, but none of these.
    Other,
}

impl Request {
    /// The request that a tag is; none if it has nothing to do with managing.
    pub(super) fn of(tag: &str) -> Option<Self> {
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

/// Is it the tag of an answer that a reactor fired? It has no key, and asks for nothing.
pub(super) fn is_answer(tag: &str) -> bool {
    let verb = tag.strip_prefix(MANAGE).unwrap_or_default();
    matches!(verb, "/list-results" | "/add-complete" | "/delete-complete" | "/leader/value")
}

/// Does the data hold the content of the key file? Without it an event manages nothing.
pub(super) fn has_key(data: &Map, key_file: &Path) -> bool {
    let given = data.get("key").and_then(Value::as_str);
    given.is_some_and(|given| read_key(key_file).is_ok_and(|key| same_key(given.as_bytes(), &key)))
}

/// What is said of an event without it.
pub(super) fn without_key() -> Note {
    Note::new(
        NoteLevel::Error,
        LOGGER,
        "received salt/reactors/manage event without matching master_key. discarding",
    )
}

/// A request lacks what it needs; Salt's process dies of that.
pub(super) fn lacks(what: &str) -> Note {
    Note::new(
        NoteLevel::Error,
        LOGGER,
        format!("A request to the reactor has no `{what}` and is not carried out"),
    )
}

/// `{"status": .., "comment": ..}`
pub(super) fn status(done: bool, comment: &str) -> Value {
    mapping([("status", Value::Bool(done)), ("comment", comment.into())])
}

/// The answer to `list`, `add` or `delete`.
pub(super) fn answer(verb: &str, reactors: Value, result: Option<Value>) -> Fired {
    let mut data = vec![("reactors", reactors)];
    data.extend(result.map(|result| ("result", result)));
    Fired { tag: format!("{MANAGE}/{verb}"), data: mapping(data) }
}

/// The answer to `is_leader` and `set_leader`.
pub(super) fn leader(value: Value) -> Fired {
    Fired { tag: format!("{MANAGE}/leader/value"), data: mapping([("result", value)]) }
}

fn mapping<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (Key::from(key), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_by_the_end_of_their_tag() {
        let check = |tag: &str, expected| assert_eq!(Request::of(tag), expected, "{tag}");
        check("salt/reactors/manage/add", Some(Request::Add));
        check("salt/run/20300101000000000000/salt/reactors/manage/list", Some(Request::List));
        check("salt/reactors/manage/x/salt/reactors/manage/delete", Some(Request::Delete));
        check("salt/reactors/manage/list-results", Some(Request::Other));
        check("salt/reactors/manage", Some(Request::Other));
        check("salt/reactors", None);
        for fired in [answer("list-results", Value::Null, None), leader(Value::Null)] {
            assert!(is_answer(&fired.tag), "{}", fired.tag);
        }
        assert!(!is_answer("salt/reactors/manage/list") && !is_answer("salt/reactors/manage/"));
    }
}
