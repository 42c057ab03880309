//! The items of an import, independent of their source.

use crate::model::Kind;
use crate::wire::msgpack::Writer;

/// One item to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportItem {
    /// Its time in Salt, microseconds since 1970 UTC.
    pub(super) at: i64,
    /// Its location for messages: a file, a line, a row.
    pub(super) origin: String,
    pub(super) payload: Payload,
}

/// The data of an item; values are msgpack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Payload {
    /// A job as published; `minions` is an array, or empty if unknown.
    Load {
        jid: String,
        load: Vec<u8>,
        minions: Vec<u8>,
    },
    /// Minions of a job, and the syndic that reported them.
    Minions {
        jid: String,
        minions: Vec<u8>,
        syndic: Option<String>,
    },
    /// A minion's return: the map with `jid`, `id`, `return`...
    Return {
        jid: String,
        minion: String,
        load: Vec<u8>,
    },
    /// End time of a job, in Salt's format.
    Endtime {
        jid: String,
        endtime: String,
    },
    /// Salt does not cache the returns of the job.
    NoCache {
        jid: String,
    },
    Event {
        tag: Vec<u8>,
        data: Vec<u8>,
    },
    /// Thorium's register.
    Register {
        data: Vec<u8>,
    },
}

impl Payload {
    /// The job to look this up by.
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

    /// The kind by which summaries count it.
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

    /// The call that stores it and its arguments; `None` for events, which are sent in batches.
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
