//! What is imported, one thing at a time, wherever it comes from.

use crate::model::Kind;
use crate::wire::msgpack::Writer;

/// One thing to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// When Salt said it, microseconds since 1970 UTC.
    pub(super) at: i64,
    /// Where it stands, for messages: a file, a line, a row.
    pub(super) origin: String,
    /// The thing.
    pub(super) what: What,
}

/// The thing itself; values are msgpack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// A job as published; minions is an array, or empty if nobody said.
    Load { jid: String, load: Vec<u8>, minions: Vec<u8> },
    /// Minions of a job; the syndic that reported them.
    Minions { jid: String, minions: Vec<u8>, syndic: Option<String> },
    /// A minion's return: the map with `jid`, `id`, `return`...
    Return { jid: String, minion: String, load: Vec<u8> },
    /// When a job ended, in Salt's spelling.
    Endtime { jid: String, endtime: String },
    /// Returns of the job are not to be cached.
    NoCache { jid: String },
    /// An event.
    Event { tag: Vec<u8>, data: Vec<u8> },
    /// Thorium's register.
    Register { data: Vec<u8> },
}

impl What {
    /// The job whose entries tell whether this is known.
    pub(super) fn jid(&self) -> Option<&str> {
        match self {
            Self::Load { jid, .. }
            | Self::Minions { jid, .. }
            | Self::Return { jid, .. }
            | Self::Endtime { jid, .. }
            | Self::NoCache { jid } => Some(jid),
            Self::Event { .. } | Self::Register { .. } => None,
        }
    }

    /// Bytes that it has.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Load { load, minions, .. } => load.len() + minions.len(),
            Self::Minions { minions, .. } => minions.len(),
            Self::Return { load, .. } => load.len(),
            Self::Endtime { endtime, .. } => endtime.len(),
            Self::NoCache { .. } => 1,
            Self::Event { tag, data } => tag.len() + data.len(),
            Self::Register { data } => data.len(),
        }
    }

    /// The kind that summaries count it under.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Load { .. } => Kind::Load,
            Self::Minions { .. } => Kind::Minions,
            Self::Return { .. } => Kind::Return,
            Self::Endtime { .. } => Kind::Endtime,
            Self::NoCache { .. } => Kind::NoCache,
            Self::Event { .. } => Kind::Event,
            Self::Register { .. } => Kind::Register,
        }
    }

    /// The call that stores it and its arguments; none for an event, which goes in a list.
    pub(super) fn call(&self, at: i64) -> Option<(&'static str, Vec<u8>)> {
        let mut w = Writer::new();
        let with = |w: &mut Writer, pairs: usize| {
            w.map(pairs + 3).str("at").int(at).str("replay").bool(true).str("import").bool(true);
        };
        let name = match self {
            Self::Load { jid, load, minions } => {
                with(&mut w, 2 + usize::from(!minions.is_empty()));
                w.str("jid").str(jid).str("load").raw(load);
                if !minions.is_empty() {
                    w.str("minions").raw(minions);
                }
                "save_load"
            }
            Self::Minions { jid, minions, syndic } => {
                with(&mut w, 2 + usize::from(syndic.is_some()));
                w.str("jid").str(jid).str("minions").raw(minions);
                if let Some(syndic) = syndic {
                    w.str("syndic_id").str(syndic);
                }
                "save_minions"
            }
            Self::Return { load, .. } => {
                with(&mut w, 1);
                w.str("load").raw(load);
                "returner"
            }
            Self::Endtime { jid, endtime } => {
                with(&mut w, 2);
                w.str("jid").str(jid).str("endtime").str(endtime);
                "update_endtime"
            }
            Self::NoCache { jid } => {
                with(&mut w, 2);
                w.str("passed_jid").str(jid).str("nocache").bool(true);
                "prep_jid"
            }
            Self::Register { data } => {
                with(&mut w, 1);
                w.str("data").raw(data);
                "save_reg"
            }
            Self::Event { .. } => return None,
        };
        Some((name, w.into_bytes()))
    }
}
