//! A job's row: what listing jobs needs, without opening the log.
//!
//! A row is a summary of the best load known: the publish load wins over the event `.../new`, that over a
//! return given to `save_load`, that over a return (CONTRACT: Salt's `_store_job` calls `save_load` with every
//! return, `salt/utils/job.py`). Rows can be merged, so each segment makes its own and the reader joins them.

use super::index::code::{Reader, put_bytes};
use crate::limits::ROW_VALUE_BYTES_MAX;
use crate::model::{Entry, Kind, SeqNo};
use crate::wire::msgpack;

/// One job, in short. Values from Salt are msgpack; empty for a key that the load has not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRow {
    /// The jid's text.
    pub jid: String,
    /// How good the load is; 0 if there is none.
    pub rank: u8,
    /// The entry that the load came in; of equally good ones the first counts.
    pub load_seq: u64,
    /// The entry that the end time came in; the last one counts.
    pub endtime_seq: u64,
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

/// Does an entry of this kind come from Salt's master storing the job through the extension alone? Then the master calls
/// `returner` for each return that it authenticated.
pub fn is_of_cached_job(kind: Kind) -> bool {
    matches!(kind, Kind::Load | Kind::ReturnLoad | Kind::Minions | Kind::Endtime | Kind::NoCache)
}

/// The load inside an entry that is one.
pub fn load_of(kind: Kind, body: &[u8]) -> &[u8] {
    match kind {
        Kind::Load | Kind::ReturnLoad => msgpack::elements(body).next().unwrap_or_default(),
        _ => body,
    }
}

impl JobRow {
    /// Did Salt's master store the job through the extension, as [`is_of_cached_job`] has it? A row does not tell of a
    /// return load or of a syndic's minions behind a better load; both come with a load of their own.
    pub fn is_cached_by_salt(&self) -> bool {
        self.rank == rank(Kind::Load)
            || self.rank == rank(Kind::ReturnLoad)
            || self.nocache
            || self.endtime_seq > 0
    }

    /// Learns from an entry of the job, in the order of the log. True if it makes or changes a row.
    pub fn learn(&mut self, seq: SeqNo, entry: &Entry<'_>) -> bool {
        match entry.kind {
            Kind::Endtime => {
                self.endtime_seq = seq.0;
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
                    self.load_seq = seq.0;
                    self.take_load(load_of(kind, entry.body), ROW_VALUE_BYTES_MAX);
                }
                better
            }
        }
    }

    /// Takes the values of a load that have at most `bytes_max` bytes each.
    pub fn take_load(&mut self, load: &[u8], bytes_max: usize) {
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
                .filter(|a| msgpack::get(a, "__kwarg__").and_then(msgpack::as_bool) == Some(true))
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
            if from.len() <= bytes_max {
                to.extend_from_slice(from);
            } else {
                self.abridged = true;
            }
        }
    }

    /// This row joined with one that another segment made of the same job.
    #[must_use]
    pub fn joined(mut self, other: JobRow) -> Self {
        self.merge(other);
        self
    }

    /// Joins the row that another segment made of the same job. The order does not matter, nor does joining one
    /// row twice.
    pub fn merge(&mut self, mut other: JobRow) {
        let first_at = self.first_at.min(other.first_at);
        let nocache = self.nocache || other.nocache;
        let (endtime_seq, endtime) = if other.endtime_seq > self.endtime_seq {
            (other.endtime_seq, std::mem::take(&mut other.endtime))
        } else {
            (self.endtime_seq, std::mem::take(&mut self.endtime))
        };
        let other_counts =
            (other.rank, std::cmp::Reverse(other.load_seq)) > (self.rank, std::cmp::Reverse(self.load_seq));
        if other_counts {
            *self = other;
        }
        *self = Self { endtime_seq, first_at, endtime, nocache, ..std::mem::take(self) };
    }

    /// Appends the load's values as bytes: whether they are abridged, then each behind its length.
    pub fn write_values(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.abridged));
        for value in [&self.fun, &self.user, &self.tgt, &self.tgt_type, &self.arg, &self.metadata] {
            put_bytes(out, value);
        }
    }

    /// Reads them; `None` if they are none.
    pub fn read_values(&mut self, bytes: &[u8]) -> Option<()> {
        let mut r = Reader(bytes);
        self.abridged = r.byte()? != 0;
        for value in [
            &mut self.fun,
            &mut self.user,
            &mut self.tgt,
            &mut self.tgt_type,
            &mut self.arg,
            &mut self.metadata,
        ] {
            *value = r.bytes()?.to_vec();
        }
        r.is_empty().then_some(())
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
            for (seq, kind) in (1..).zip(kinds) {
                row.learn(SeqNo(seq), &entry(kind, if kind == Kind::Load { &publish } else { &answer }));
            }
            assert_eq!(msgpack::as_text(&row.fun), Some("test.ping"));
            assert_eq!((row.metadata.as_slice(), msgpack::as_text(&row.tgt)), (&[0x80][..], Some("*")));
        }
    }

    #[test]
    fn rows_of_two_segments_join_in_any_order_and_as_often_as_one_likes() {
        let row = |seq: u64, kind, body: &[u8], end: &str| {
            let mut row = JobRow { jid: "1".into(), first_at: 10 + seq.cast_signed(), ..Default::default() };
            row.learn(SeqNo(seq), &entry(kind, body));
            let mut w = Writer::new();
            w.str(end);
            row.learn(SeqNo(seq + 1), &entry(Kind::Endtime, &w.into_bytes()));
            row
        };
        let early = row(1, Kind::Return, &answer("x"), "a");
        let middle = row(5, Kind::Load, &publish("y"), "b");
        let mut late = row(9, Kind::Load, &publish("z"), "c");
        late.nocache = true;
        let joined = early.clone().joined(middle.clone()).joined(late.clone());
        assert_eq!(msgpack::as_text(&joined.fun), Some("y"), "of equally good loads the first");
        assert_eq!((joined.first_at, joined.nocache), (11, true));
        assert_eq!(joined.endtime, "c");
        for other in [
            late.clone().joined(early.clone()).joined(middle.clone()),
            middle.clone().joined(late.clone()).joined(early.clone()),
            joined.clone().joined(early.clone()).joined(middle).joined(late).joined(early),
        ] {
            assert_eq!(other, joined);
        }
        let mut bytes = Vec::new();
        joined.write_values(&mut bytes);
        let mut read = JobRow { fun: Vec::new(), tgt: Vec::new(), ..joined.clone() };
        read.read_values(&bytes).unwrap();
        assert_eq!(read, joined);
        assert!(read.read_values(b"\x00\x01").is_none());
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
        row.learn(SeqNo(1), &entry(Kind::Load, &w.into_bytes()));
        assert!(row.abridged && row.arg.is_empty() && !row.fun.is_empty());
    }
}
