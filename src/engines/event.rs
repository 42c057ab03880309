//! Events as encoders see them, and their documented JSON form.
//!
//! | key | value |
//! |---|---|
//! | `id` | text that identifies the event: the store and the sequence number; the same at each delivery |
//! | `seq` | sequence number |
//! | `time` | arrival, `2026-11-21T05:47:28.123456Z` |
//! | `tag` | tag |
//! | `minion`, `fun`, `jid` | minion id, function, job id; null without one |
//! | `master_id` | the id of the master that fired the event: `master_id` in its data, or of the peer that it came from, or of this host's master |
//! | `data` | the event's data, in the JSON form of [`crate::wire::msgpack::json`] |

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::base::clock::Micros;
use crate::base::limits::RMPV_DEPTH_MAX;
use crate::model::{Entry, Flags, Kind, SeqNo, Source};
use crate::store::{StoredEntry, is_lost_tag};
use crate::wire::msgpack::json::{append_plain, to_json};
use crate::wire::msgpack::{as_text, get, pairs};
use crate::wire::outcome::Outcome;
use crate::wire::salt_event::{HOOK_TAG, HOPS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Identifies the event; see the module.
    pub(crate) id: String,
    pub(crate) seq: SeqNo,
    pub(crate) at: Micros,
    /// Tag; bytes that are not UTF-8 are replaced.
    pub(crate) tag: String,
    pub(crate) minion: String,
    pub(crate) fun: String,
    pub(crate) jid: String,
    pub(crate) master_id: Arc<str>,
    /// Data as msgpack.
    pub(crate) body: Vec<u8>,
    /// What else is stored of it.
    pub(crate) stored: Stored,
}

/// What is stored of an event and part of no JSON form; only a transport that copies entries needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) kind: Kind,
    pub(crate) source: Source,
    pub(crate) flags: Flags,
    pub(crate) retcode: i64,
    /// The bytes of a tag that is not UTF-8.
    pub(crate) odd_tag: Option<Vec<u8>>,
    /// Of a block of events, of which only the number and the time of the last event are known here. Its item contains the bytes.
    pub(crate) block: Option<PackedBlock>,
}

/// A block of events that was packed when they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedBlock {
    /// Sequence number of its first event.
    pub(crate) first: SeqNo,
    /// Its events.
    pub(crate) entries: usize,
    /// Bytes of their tags and bodies.
    pub(crate) raw_bytes: u64,
}

/// The keys of the JSON form but `data`.
#[derive(Serialize)]
struct Header<'a> {
    id: &'a str,
    seq: u64,
    time: String,
    tag: &'a str,
    minion: Option<&'a str>,
    fun: Option<&'a str>,
    jid: Option<&'a str>,
    master_id: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event's data is not readable: {0}")]
pub(crate) struct Unreadable(String);

impl Event {
    /// The event of an entry. `master_id` is the id of this host's master.
    pub(crate) fn new(entry: StoredEntry, id: String, master_id: &Arc<str>) -> Self {
        let StoredEntry {
            seq,
            kind,
            source,
            flags,
            retcode,
            at,
            tag,
            minion,
            fun,
            jid,
            body,
            origin,
            number: _,
            unread: _,
        } = entry;

        let of_event = get(&body, "master_id")
            .and_then(as_text)
            .filter(|id| !id.is_empty());
        // A syndic names its own master in the data, the same on each peer.
        let known = of_event.or(Some(&*origin).filter(|id| !id.is_empty()));
        let master_id = known.map_or_else(|| master_id.clone(), Arc::from);

        // The bytes are kept as well, because the other masters must get the tag as it was stored.
        let (tag, odd_tag) = match String::from_utf8(tag) {
            Ok(tag) => (tag, None),
            Err(odd) => {
                let readable = String::from_utf8_lossy(odd.as_bytes()).into_owned();
                (readable, Some(odd.into_bytes()))
            }
        };

        Self {
            id,
            seq,
            at,
            tag,
            minion,
            fun,
            jid,
            master_id,
            body,
            stored: Stored {
                kind,
                source,
                flags,
                retcode,
                odd_tag,
                block: None,
            },
        }
    }

    /// A block that ends with this event.
    pub(crate) fn of_block(block: PackedBlock, last: SeqNo, last_at: Micros) -> Self {
        Self {
            // Only the position counts. Everything else is in the block.
            id: String::new(),
            seq: last,
            at: last_at,
            tag: String::new(),
            minion: String::new(),
            fun: String::new(),
            jid: String::new(),
            master_id: Arc::from(""),
            body: Vec::new(),
            stored: Stored {
                block: Some(block),
                ..Stored::default()
            },
        }
    }

    /// How many stored events it is.
    pub(crate) fn entries(&self) -> usize {
        self.stored.block.map_or(1, |block| block.entries)
    }

    /// The entry that it was made from, which is an entry of this daemon's master.
    pub(crate) fn as_entry(&self) -> Entry<'_> {
        let Stored {
            kind,
            source,
            flags,
            retcode,
            odd_tag,
            block: _,
        } = &self.stored;

        Entry {
            flags: *flags,
            tag: odd_tag.as_deref().unwrap_or(self.tag.as_bytes()),
            jid: &self.jid,
            minion: &self.minion,
            fun: &self.fun,
            retcode: *retcode,
            ..Entry::new(*kind, *source, self.at, &self.body)
        }
    }

    /// Number of hooks that the event has passed through; 0 if it is not an event of a hook.
    pub(crate) fn hops(&self) -> u32 {
        if !self.tag.starts_with(HOOK_TAG) {
            return 0;
        }

        let is_hops = |key: &[u8]| as_text(key).is_some_and(|key| key.eq_ignore_ascii_case(HOPS));
        let given = get(&self.body, "headers")
            .into_iter()
            .flat_map(pairs)
            .find(|(key, _)| is_hops(key));

        // The event has passed through this hook, whatever its sender states.
        let before = given.and_then(|(_, value)| as_text(value)?.parse::<u32>().ok());
        before.unwrap_or(0).saturating_add(1)
    }

    /// Whether it stands for entries that retention dropped before this sink had them, or that cannot be
    /// read.
    pub(crate) fn is_lost_record(&self) -> bool {
        self.stored.kind == Kind::Gap && is_lost_tag(self.tag.as_bytes())
    }

    /// The outcome of the run that it tells of, if any.
    pub(crate) fn outcome(&self) -> Outcome<'_> {
        Outcome::of(&self.body, &self.jid)
    }

    pub(crate) fn data(&self) -> Result<Json, Unreadable> {
        json_of(&self.body)
    }

    /// All keys of the JSON form but `data`.
    pub(crate) fn header(&self) -> Result<Map<String, Json>, Unreadable> {
        match serde_json::to_value(self.head()) {
            Ok(Json::Object(fields)) => Ok(fields),
            Ok(_) => Err(Unreadable("its header is not an object".to_owned())),
            Err(error) => Err(Unreadable(error.to_string())),
        }
    }

    fn head(&self) -> Header<'_> {
        let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
        Header {
            id: &self.id,
            seq: self.seq.0,
            time: self.at.iso(),
            tag: &self.tag,
            minion: some(&self.minion),
            fun: some(&self.fun),
            jid: some(&self.jid),
            master_id: some(&self.master_id),
        }
    }

    pub(crate) fn to_text(&self) -> Result<Vec<u8>, Unreadable> {
        let mut text = Vec::with_capacity(self.body.len() + 400);
        serde_json::to_writer(&mut text, &self.head())
            .map_err(|error| Unreadable(error.to_string()))?;

        // `data` is the last key.
        text.pop();
        text.extend_from_slice(b",\"data\":");
        if !append_plain(&self.body, &mut text) {
            text.extend_from_slice(self.data()?.to_string().as_bytes());
        }
        text.push(b'}');

        Ok(text)
    }

    pub(crate) fn to_json(&self) -> Result<Map<String, Json>, Unreadable> {
        let mut fields = self.header()?;
        fields.insert("data".to_owned(), self.data()?);
        Ok(fields)
    }
}

/// The JSON form of a part of an event's data.
pub(super) fn json_of(mut value: &[u8]) -> Result<Json, Unreadable> {
    let value = rmpv::decode::read_value_with_max_depth(&mut value, RMPV_DEPTH_MAX);
    value
        .map(|value| to_json(&value))
        .map_err(|error| Unreadable(error.to_string()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::msgpack::encode;
    use serde_json::json;

    /// An event with this data; its sequence number is also part of its id.
    pub(in crate::engines) fn event(seq: u64, tag: &str, minion: &str, data: Json) -> Event {
        Event::new(
            entry(seq, tag, minion, data),
            format!("store:{seq}"),
            &"master1".into(),
        )
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers pass literals")]
    pub(in crate::engines) fn entry(seq: u64, tag: &str, minion: &str, data: Json) -> StoredEntry {
        let body = encode(&data).unwrap();
        StoredEntry {
            seq: SeqNo(seq),
            kind: Kind::Event,
            source: Source::Bus,
            origin: String::new(),
            number: 0,
            flags: Flags::ON_BUS,
            at: Micros(1_795_000_000_123_456),
            tag: tag.as_bytes().to_vec(),
            jid: String::new(),
            minion: minion.to_owned(),
            fun: String::new(),
            retcode: 0,
            body,
            unread: 0,
        }
    }

    #[test]
    fn the_json_form_has_all_documented_keys_in_order() {
        let event = event(
            7,
            "salt/auth",
            "web1",
            json!({"result": true, "id": "web1"}),
        );
        let text = Json::Object(event.to_json().unwrap()).to_string();
        assert_eq!(
            text,
            r#"{"id":"store:7","seq":7,"time":"2026-11-18T11:06:40.123456Z","tag":"salt/auth","minion":"web1","fun":null,"jid":null,"master_id":"master1","data":{"result":true,"id":"web1"}}"#
        );
        assert_eq!(String::from_utf8(event.to_text().unwrap()).unwrap(), text);
        let tagged = super::tests::event(7, "t", "", json!({"$a": 1}));
        assert_eq!(
            tagged.to_text().unwrap(),
            Json::Object(tagged.to_json().unwrap())
                .to_string()
                .into_bytes()
        );
        let other = super::tests::event(8, "t", "", json!({"master_id": "m2"}));
        assert_eq!(other.head().master_id, Some("m2"));
        assert_eq!(other.head().minion, None);

        let of_peer = |data| {
            let entry = StoredEntry {
                origin: "master2".to_owned(),
                ..entry(9, "t", "", data)
            };
            Event::new(entry, "store:9".to_owned(), &"master1".into())
        };
        assert_eq!(of_peer(json!({})).head().master_id, Some("master2"));
        let of_syndic = of_peer(json!({"master_id": "m2"}));
        assert_eq!(of_syndic.head().master_id, Some("m2"));
    }

    #[test]
    fn an_event_of_a_hook_knows_how_many_hooks_it_has_passed_through() {
        let of = |tag: &str, data| event(1, tag, "", data).hops();
        assert_eq!(
            of("salt/engines/hook/a", json!({"headers": {"Host": "h"}})),
            1
        );
        assert_eq!(
            of(
                "salt/engines/hook/a",
                json!({"headers": {"Saltcellar-Hops": "2"}})
            ),
            3
        );
        assert_eq!(
            of(
                "salt/engines/hook/a",
                json!({"headers": {"Saltcellar-Hops": "many"}})
            ),
            1
        );
        assert_eq!(of("salt/engines/hook/a", json!({"headers": 5})), 1);
        assert_eq!(
            of("salt/auth", json!({"headers": {"Saltcellar-Hops": "2"}})),
            0
        );
    }

    #[test]
    fn data_that_is_not_msgpack_is_an_error() {
        let broken = Event {
            body: vec![0x91],
            ..event(1, "t", "m", json!({}))
        };
        assert!(
            broken
                .data()
                .unwrap_err()
                .to_string()
                .starts_with("the event's data is not readable")
        );
        let deep = Event {
            body: [vec![0x91; 5_000], vec![0xc0]].concat(),
            ..broken
        };
        assert!(deep.to_json().is_err() && deep.to_text().is_err());
    }
}
