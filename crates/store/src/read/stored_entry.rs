//! An entry as readers get it: its columns and its body, owned.

use crate::log::block;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Entry, Flags, Kind, Replaced, SeqNo, Source};

/// An entry read from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// Sequence number.
    pub seq: SeqNo,
    /// Kind of the entry.
    pub kind: Kind,
    /// Source of the entry.
    pub source: Source,
    /// The id of the master that it came from; empty for this daemon's master.
    pub origin: String,
    /// Its sequence number at its origin, if it came through the cluster's stream; else 0.
    pub number: u64,
    /// Flags.
    pub flags: Flags,
    /// Time of arrival.
    pub at: Micros,
    /// Tag; empty if the entry is not an event.
    pub tag: Vec<u8>,
    /// Job id; empty for none.
    pub jid: String,
    /// Minion id; empty for none.
    pub minion: String,
    /// Function; empty for none.
    pub fun: String,
    /// A return's exit code.
    pub retcode: i64,
    /// Body, byte for byte as its master fired it.
    pub body: Vec<u8>,
    /// Bytes of its body in the log if `body` was left out, else 0.
    pub unread: usize,
}

impl StoredEntry {
    /// Bytes of its body in the log.
    pub fn body_len(&self) -> usize {
        self.body.len() + self.unread
    }

    /// Takes its body.
    pub(super) fn set_body(&mut self, body: &[u8]) {
        self.body = body.to_vec();
        self.unread = 0;
    }

    /// Leaves its body out, and keeps the length.
    pub fn leave_body(&mut self) {
        self.unread = self.body_len();
        self.body = Vec::new();
    }

    /// Takes the parts that redaction has changed.
    pub fn replace(&mut self, parts: Replaced) {
        if let Some(body) = parts.body {
            self.body = body;
        }
        if let Some(names) = parts.names {
            self.tag = names.tag;
            self.jid = names.jid;
            self.minion = names.minion;
            self.fun = names.fun;
        }
    }

    /// The entry, borrowed.
    pub fn as_entry(&self) -> Entry<'_> {
        Entry {
            kind: self.kind,
            source: self.source,
            origin: &self.origin,
            number: self.number,
            flags: self.flags,
            at: self.at,
            tag: &self.tag,
            jid: &self.jid,
            minion: &self.minion,
            fun: &self.fun,
            retcode: self.retcode,
            body: &self.body,
        }
    }
}

/// Copies an entry with a known jid, without its body.
pub(super) fn without_body(
    rows: block::Rows<'_>,
    at: usize,
    jid: String,
    with_tag: bool,
) -> StoredEntry {
    StoredEntry {
        seq: rows.seq(at),
        kind: rows.kind(at),
        source: rows.source(at),
        origin: rows.origin(at).to_owned(),
        number: rows.number(at),
        flags: rows.flags(at),
        at: rows.at(at),
        tag: if with_tag { rows.tag(at) } else { Vec::new() },
        jid,
        minion: rows.minion(at).to_owned(),
        fun: rows.fun(at).to_owned(),
        retcode: rows.retcode(at),
        body: Vec::new(),
        unread: rows.body_len(at),
    }
}
