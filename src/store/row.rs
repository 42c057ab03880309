//! A job's row: what listing jobs needs, without opening the log.
//!
//! A row is a summary of the best load known: the publish load wins over the event `.../new`, that over a
//! return given to `save_load`, that over a return (CONTRACT: Salt's `_store_job` calls `save_load` with every
//! return, `salt/utils/job.py`). Rows can be merged, so each segment makes its own and the reader joins them.

use rkyv::rancor::Error;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::limits::ROW_VALUE_BYTES_MAX;
use crate::model::{Entry, Kind};
use crate::wire::msgpack;

/// One job, in short. Values from Salt are msgpack; empty for a key that the load has not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct JobRow {
    /// The jid's text.
    pub jid: String,
    /// How good the load is; 0 if there is none.
    pub rank: u8,
    /// When the first entry of the job arrived, microseconds since 1970.
    pub first_at: i64,
    /// `fun`
    pub fun: Vec<u8>,
    /// `user`
    pub user: Vec<u8>,
    /// `tgt`
    pub tgt: Vec<u8>,
    /// `tgt_type`
    pub tgt_type: Vec<u8>,
    /// `arg`
    pub arg: Vec<u8>,
    /// `metadata`, from wherever the load carries it
    pub metadata: Vec<u8>,
    /// A value was too long for a row: ask the log.
    pub abridged: bool,
    /// Salt's spelling of when the job ended; the last word counts.
    pub endtime: String,
    /// Its returns are not to be cached.
    pub nocache: bool,
    /// First sequence numbers of the segments of class `jobs` that hold entries of it, ascending.
    pub segments: Vec<u64>,
}

/// How good a load an entry is; 0 for what is none.
pub fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Load => 4,
        Kind::JobNew => 3,
        Kind::ReturnLoad => 2,
        Kind::Return => 1,
        _ => 0,
    }
}

/// The load inside an entry that is one.
pub fn load_of(kind: Kind, body: &[u8]) -> &[u8] {
    match kind {
        Kind::Load | Kind::ReturnLoad => msgpack::elements(body).next().unwrap_or_default(),
        _ => body,
    }
}

impl JobRow {
    /// Learns from an entry of the job, in the order of the log. True if it makes or changes a row.
    pub fn learn(&mut self, entry: &Entry<'_>) -> bool {
        match entry.kind {
            Kind::Endtime => {
                entry_text(entry.body).clone_into(&mut self.endtime);
                true
            }
            Kind::NoCache => {
                self.nocache = true;
                true
            }
            kind => {
                let rank = rank(kind);
                let better = rank > self.rank;
                if better {
                    self.rank = rank;
                    self.take_load(load_of(kind, entry.body));
                }
                better
            }
        }
    }

    fn take_load(&mut self, load: &[u8]) {
        self.abridged = false;
        let mut metadata = None;
        let mut deeper = None;
        let nothing: &[u8] = &[];
        let [mut fun, mut user, mut tgt, mut tgt_type, mut arg] = [nothing; 5];
        for (key, value) in msgpack::pairs(load) {
            match msgpack::as_text(key) {
                Some("fun") => fun = value,
                Some("user") => user = value,
                Some("tgt") => tgt = value,
                Some("tgt_type") => tgt_type = value,
                Some("arg") => arg = value,
                Some("metadata") => metadata = Some(value),
                Some("kwargs") => deeper = msgpack::get(value, "metadata"),
                _ => {}
            }
        }
        // salt.utils.jid.format_job_instance: the load's own, then that of kwargs, then of a __kwarg__.
        let of_kwarg = || {
            msgpack::elements(arg)
                .filter(|a| msgpack::get(a, "__kwarg__").is_some())
                .find_map(|a| msgpack::get(a, "metadata"))
        };
        let metadata = metadata.or(deeper).or_else(of_kwarg).unwrap_or_default();
        for (to, from) in [
            (&mut self.fun, fun),
            (&mut self.user, user),
            (&mut self.tgt, tgt),
            (&mut self.tgt_type, tgt_type),
            (&mut self.arg, arg),
            (&mut self.metadata, metadata),
        ] {
            to.clear();
            if from.len() <= ROW_VALUE_BYTES_MAX {
                to.extend_from_slice(from);
            } else {
                self.abridged = true;
            }
        }
    }

    /// This row joined with one that a later segment made of the same job.
    #[must_use]
    pub fn joined(mut self, later: JobRow) -> Self {
        self.merge(later);
        self
    }

    /// Joins the row that a later segment made of the same job.
    pub fn merge(&mut self, later: JobRow) {
        let segments = std::mem::take(&mut self.segments);
        let endtime = std::mem::take(&mut self.endtime);
        let nocache = self.nocache || later.nocache;
        let first_at = self.first_at.min(later.first_at);
        let later_endtime = later.endtime.clone();
        let later_segments = later.segments.clone();
        if later.rank > self.rank {
            *self = later;
        }
        self.first_at = first_at;
        self.nocache = nocache;
        self.endtime = if later_endtime.is_empty() { endtime } else { later_endtime };
        self.segments = segments;
        self.segments.extend(later_segments);
        self.segments.sort_unstable();
        self.segments.dedup();
    }

    /// The bytes in sled.
    pub fn to_bytes(&self) -> Result<AlignedVec, String> {
        rkyv::to_bytes::<Error>(self).map_err(|e| e.to_string())
    }

    /// Reads the bytes in sled.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        // sled promises no alignment, so the bytes are copied to where there is some.
        let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        rkyv::from_bytes::<Self, Error>(&aligned).map_err(|e| e.to_string())
    }
}

fn entry_text(body: &[u8]) -> &str {
    msgpack::as_text(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{Flags, Source};
    use msgpack::Writer;

    fn entry(kind: Kind, body: &[u8]) -> Entry<'_> {
        let (source, flags, at) = (Source::Returner, Flags::default(), Micros(5));
        Entry { kind, source, flags, at, tag: b"", jid: "1", minion: "", fun: "", retcode: 0, body }
    }

    fn publish(fun: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(2).map(3).str("fun").str(fun).str("tgt").str("*").str("kwargs").map(1);
        w.str("metadata").map(0).nil();
        w.into_bytes()
    }

    fn answer(fun: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2).str("fun").str(fun).str("return").nil();
        w.into_bytes()
    }

    #[test]
    fn the_publish_load_wins_in_any_order() {
        let (publish, answer) = (publish("test.ping"), answer("other"));
        for kinds in [[Kind::Load, Kind::Return], [Kind::Return, Kind::Load]] {
            let mut row = JobRow::default();
            for kind in kinds {
                row.learn(&entry(kind, if kind == Kind::Load { &publish } else { &answer }));
            }
            assert_eq!(msgpack::as_text(&row.fun), Some("test.ping"));
            assert_eq!((row.metadata.as_slice(), msgpack::as_text(&row.tgt)), (&[0x80][..], Some("*")));
        }
    }

    #[test]
    fn rows_of_two_segments_join() {
        let mut early = JobRow {
            jid: "1".into(),
            first_at: 9,
            segments: vec![1],
            endtime: "a".into(),
            ..Default::default()
        };
        early.learn(&entry(Kind::Return, &answer("x")));
        let mut late =
            JobRow { jid: "1".into(), first_at: 20, segments: vec![7], nocache: true, ..Default::default() };
        late.learn(&entry(Kind::Load, &publish("y")));
        early.merge(late);
        assert_eq!(msgpack::as_text(&early.fun), Some("y"));
        assert_eq!((early.segments.as_slice(), early.first_at, early.nocache), (&[1, 7][..], 9, true));
        assert_eq!(early.endtime, "a");
        assert_eq!(JobRow::from_bytes(&early.to_bytes().unwrap()).unwrap(), early);
        assert!(JobRow::from_bytes(b"\x00\x01").is_err());
    }

    #[test]
    fn a_long_argument_is_left_to_the_log() {
        let mut w = Writer::new();
        w.array(2)
            .map(2)
            .str("fun")
            .str("cmd.run")
            .str("arg")
            .array(1)
            .bin(&vec![0; ROW_VALUE_BYTES_MAX])
            .nil();
        let mut row = JobRow::default();
        row.learn(&entry(Kind::Load, &w.into_bytes()));
        assert!(row.abridged && row.arg.is_empty() && !row.fun.is_empty());
    }
}
