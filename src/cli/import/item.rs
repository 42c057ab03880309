//! The items of an import, independent of their source.

use crate::model::Kind;
use crate::wire::msgpack::Writer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportItem {
    /// Its time in Salt, microseconds since 1970 UTC.
    pub(super) at: i64,
    /// Its location for messages: a file, a line, a row.
    pub(super) origin: String,
    pub(super) payload: Payload,
}

/// The data of an item. Fields that its kind lacks are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) kind: Kind,
    /// The job under which the daemon's entries are looked up; empty for events and registers.
    pub(super) jid: String,
    /// The minion of a return, or the syndic that reported minions.
    pub(super) id: String,
    pub(super) tag: Vec<u8>,
    /// msgpack: the load, the return, the end time in Salt's format, the data of an event or a
    /// register; true for `nocache`.
    pub(super) body: Vec<u8>,
    /// msgpack: an array of the job's minions; empty if unknown.
    pub(super) minions: Vec<u8>,
}

impl Payload {
    pub(super) fn new(kind: Kind, jid: impl Into<String>, body: Vec<u8>) -> Self {
        let (id, tag, minions) = (String::new(), Vec::new(), Vec::new());
        Self {
            kind,
            jid: jid.into(),
            id,
            tag,
            body,
            minions,
        }
    }

    /// The mark that Salt does not cache the returns of a job.
    pub(super) fn nocache(jid: impl Into<String>) -> Self {
        Self::new(Kind::NoCache, jid, vec![0xc3])
    }

    pub(super) fn endtime(jid: impl Into<String>, endtime: &str) -> Self {
        let mut w = Writer::new();
        w.str(endtime);
        Self::new(Kind::Endtime, jid, w.into_bytes())
    }

    pub(super) fn bytes(&self) -> usize {
        self.tag.len() + self.body.len() + self.minions.len()
    }

    /// The call that stores it and its arguments; `None` for events, which are sent in batches.
    pub(super) fn call(&self, at: i64) -> Option<(&'static str, Vec<u8>)> {
        let (call, jid, body) = match self.kind {
            Kind::Load => ("save_load", "jid", "load"),
            Kind::Minions => ("save_minions", "jid", ""),
            Kind::Return => ("returner", "jid", "load"),
            Kind::Endtime => ("update_endtime", "jid", "endtime"),
            Kind::NoCache => ("prep_jid", "passed_jid", "nocache"),
            Kind::Register => ("save_reg", "", "data"),
            _ => return None,
        };

        let text = |text: &str| {
            let mut w = Writer::new();
            w.str(text);
            // Left out below.
            if text.is_empty() {
                Vec::new()
            } else {
                w.into_bytes()
            }
        };

        // The id of a return is in its body.
        let syndic = if self.kind == Kind::Minions {
            &self.id
        } else {
            ""
        };

        let fields = [
            (jid, &text(&self.jid)),
            (body, &self.body),
            ("minions", &self.minions),
            ("syndic_id", &text(syndic)),
        ];

        let set: Vec<_> = fields
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect();

        let mut w = Writer::new();
        w.map(set.len() + 3)
            .str("at")
            .int(at)
            .str("replay")
            .bool(true)
            .str("import")
            .bool(true);

        for (key, value) in set {
            w.str(key).raw(value);
        }

        Some((call, w.into_bytes()))
    }
}
