//! Job summaries: the data needed to list jobs without reading the log.
//!
//! A summary describes the best load known: the publish load wins over the event `.../new`, that
//! over a return passed to `save_load`, that over a return (CONTRACT: Salt's `_store_job` calls
//! `save_load` with every return, `salt/utils/job.py`). Each segment has its own summary of a job;
//! readers merge them.
//!
//! Which of several loads of the same rank counts depends on their timestamps, which a summary does
//! not contain. It says that there are several ([`JobSummary::contested`]), and the log contains
//! the answer.

use std::cmp::Ordering;

use crate::index::page::code::{FieldReader, put_bytes};
use saltcellar_base::limits::ROW_VALUE_BYTES_MAX;
use saltcellar_model::{Entry, Flags, Kind, SeqNo};
use saltcellar_wire::msgpack;

/// Summary of a job. Values from Salt are msgpack; empty for a key that the load lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobSummary {
    /// The job id.
    pub jid: String,
    /// Rank of the load ([`rank`]); 0 for none.
    pub rank: u8,
    /// Sequence number of the load; among loads of equal rank the first one is shown.
    pub(crate) load_seq: u64,
    /// Sequence number of the end time.
    pub(crate) endtime_seq: u64,
    /// Time of arrival of the first entry, microseconds since 1970.
    pub first_at: i64,
    /// `fun` of the load; msgpack, as all values of it.
    pub fun: Vec<u8>,
    /// `user` of the load.
    pub user: Vec<u8>,
    /// `tgt` of the load.
    pub tgt: Vec<u8>,
    /// `tgt_type` of the load.
    pub tgt_type: Vec<u8>,
    /// `arg` of the load.
    pub arg: Vec<u8>,
    /// `metadata`, from any of its positions in a load
    pub metadata: Vec<u8>,
    /// Whether a value was too long for the summary and must be read from the log.
    pub abridged: bool,
    /// Whether other loads of the same rank have other values; the log then decides which load
    /// counts. For returns, whether there are several.
    pub contested: bool,
    /// End time in Salt's notation; the last one counts.
    pub endtime: String,
    /// Whether the job's returns are not to be cached.
    pub(crate) nocache: bool,
}

/// Flags before the values.
const ABRIDGED: u8 = 1;
const CONTESTED: u8 = 2;

/// Rank of the load in an entry; 0 for none.
pub fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Load => 4,
        Kind::JobNew => 3,
        Kind::ReturnLoad => 2,
        Kind::Return => 1,
        _ => 0,
    }
}

/// Whether such entries occur only in jobs that Salt's master stores through the extension. In such a
/// job the master calls `returner` for each authenticated return. Those that mirror the event of a peer
/// say nothing about this master.
pub fn is_of_cached_job(kind: Kind, flags: Flags) -> bool {
    !flags.has(Flags::UNCONFIRMED)
        && matches!(
            kind,
            Kind::Load | Kind::ReturnLoad | Kind::Minions | Kind::Endtime | Kind::NoCache
        )
}

/// The load in the body of an entry.
pub fn load_of(kind: Kind, body: &[u8]) -> &[u8] {
    match kind {
        Kind::Load | Kind::ReturnLoad => msgpack::elements(body).next().unwrap_or_default(),
        _ => body,
    }
}

impl JobSummary {
    /// Whether Salt's master stored the job through the extension, see [`is_of_cached_job`]. The
    /// summary does not show a return load or a syndic's minions behind a better load; both come
    /// with a separate load.
    pub fn is_cached_by_salt(&self) -> bool {
        self.rank == rank(Kind::Load)
            || self.rank == rank(Kind::ReturnLoad)
            || self.nocache
            || self.endtime_seq > 0
    }

    /// Updates the summary with the next entry of the job in the log, as an index does; returns
    /// whether it changed.
    pub(crate) fn update(&mut self, seq: SeqNo, entry: &Entry<'_>) -> bool {
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
                if rank > self.rank {
                    self.rank = rank;
                    self.load_seq = seq.0;
                    self.take_load(load_of(kind, entry.body), ROW_VALUE_BYTES_MAX);
                    return true;
                }

                // Among equal ranks the first load is shown, as in an index.
                let is_rival = rank > 0 && rank == self.rank && !self.contested;
                self.contested |= is_rival && self.differs_from(kind, entry.body);
                is_rival && self.contested
            }
        }
    }

    /// Whether a load of the same rank has other values. Returns are not compared: the returns of
    /// two minions always differ.
    pub(crate) fn differs_from(&self, kind: Kind, body: &[u8]) -> bool {
        if kind == Kind::Return {
            return true;
        }
        let mut other = Self::default();
        other.take_load(load_of(kind, body), ROW_VALUE_BYTES_MAX);
        self.values() != other.values()
    }

    /// Sets the values of a load; values over `bytes_max` bytes are omitted.
    pub fn take_load(&mut self, load: &[u8], bytes_max: usize) {
        // The first pass only collects slices of the load; copies are made once the winners are
        // known.
        let mut metadata = None;
        let mut deeper = None;
        let nothing: &[u8] = &[];
        let [mut fun, mut user, mut tgt, mut tgt_type, mut arg] = [nothing; 5];
        let [mut id, mut fun_args, mut ret] = [None; 3];

        for (key, value) in msgpack::pairs(load) {
            match msgpack::as_text(key) {
                Some("fun") => fun = value,
                Some("user") => user = value,
                Some("tgt") => tgt = value,
                Some("tgt_type") => tgt_type = value,
                Some("arg") => arg = value,
                Some("metadata") => metadata = Some(value),
                Some("id") => id = Some(value),
                Some("fun_args") => fun_args = Some(value),
                Some("return") => ret = Some(value),
                Some("kwargs") => deeper = msgpack::get(value, "metadata"),
                _ => {}
            }
        }
        // A return without a target belongs to a minion's own job (`salt-call --return`).
        if tgt.is_empty() && ret.is_some() {
            tgt = id.unwrap_or_default();
            arg = Some(arg)
                .filter(|arg| !arg.is_empty())
                .or(fun_args)
                .unwrap_or_default();
        }
        // salt.utils.jid.format_job_instance: metadata of the load, else of kwargs, else of a
        // __kwarg__ argument.
        let of_kwarg = || {
            msgpack::elements(arg)
                .filter(|a| msgpack::get(a, "__kwarg__").and_then(msgpack::as_bool) == Some(true))
                .find_map(|a| msgpack::get(a, "metadata"))
        };

        let metadata = metadata.or(deeper).or_else(of_kwarg).unwrap_or_default();

        self.contested = false;
        let values = [fun, user, tgt, tgt_type, arg, metadata];

        // A value that is too long is left out as a whole: a part of a msgpack value cannot be
        // read.
        self.abridged = values.iter().any(|value| value.len() > bytes_max);
        for (to, from) in self.values_mut().into_iter().zip(values) {
            to.clear();
            if from.len() <= bytes_max {
                to.extend_from_slice(from);
            }
        }
    }

    /// The values of the load in the order on disk.
    fn values_mut(&mut self) -> [&mut Vec<u8>; 6] {
        [
            &mut self.fun,
            &mut self.user,
            &mut self.tgt,
            &mut self.tgt_type,
            &mut self.arg,
            &mut self.metadata,
        ]
    }

    fn values(&self) -> [&[u8]; 6] {
        [
            &self.fun,
            &self.user,
            &self.tgt,
            &self.tgt_type,
            &self.arg,
            &self.metadata,
        ]
    }

    /// Returns the merged summary of the same job from two segments.
    #[must_use]
    pub(crate) fn joined(mut self, other: JobSummary) -> Self {
        self.merge(other);
        self
    }

    /// Merges the summary of the same job from another segment. Commutative and idempotent.
    pub(crate) fn merge(&mut self, mut other: JobSummary) {
        // These do not depend on which load is better.
        let first_at = self.first_at.min(other.first_at);
        let nocache = self.nocache || other.nocache;

        let (endtime_seq, endtime) = if other.endtime_seq > self.endtime_seq {
            (other.endtime_seq, std::mem::take(&mut other.endtime))
        } else {
            (self.endtime_seq, std::mem::take(&mut self.endtime))
        };

        // The same load, or one of another segment.
        let contested = match other.rank.cmp(&self.rank) {
            Ordering::Greater => other.contested,
            Ordering::Less => self.contested,
            Ordering::Equal => {
                let are_two = self.rank > 0 && self.load_seq != other.load_seq;
                let differ = self.rank == rank(Kind::Return) || self.values() != other.values();
                self.contested || other.contested || are_two && differ
            }
        };

        // A lower number wins among equal ranks: the order of merging must not matter.
        let other_counts = (other.rank, std::cmp::Reverse(other.load_seq))
            > (self.rank, std::cmp::Reverse(self.load_seq));
        if other_counts {
            *self = other;
        }

        *self = Self {
            endtime_seq,
            first_at,
            contested,
            endtime,
            nocache,
            ..std::mem::take(self)
        };
    }

    /// Appends the values of the load: the flags, then each value with its length.
    pub(crate) fn write_values(&self, out: &mut Vec<u8>) {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.push(flag(self.abridged, ABRIDGED) | flag(self.contested, CONTESTED));
        for value in self.values() {
            put_bytes(out, value);
        }
    }

    /// Reads the values; `None` if malformed.
    pub(crate) fn read_values(&mut self, bytes: &[u8]) -> Option<()> {
        let mut r = FieldReader(bytes);
        let flags = r.byte()?;
        self.abridged = flags & ABRIDGED != 0;
        self.contested = flags & CONTESTED != 0;
        for value in self.values_mut() {
            *value = r.bytes()?.to_vec();
        }
        // More bytes would come from another release.
        r.is_empty().then_some(())
    }
}

/// Whether encoded values contain the flag [`JobSummary::contested`].
pub(crate) fn is_contested(values: &[u8]) -> bool {
    values.first().is_some_and(|flags| flags & CONTESTED != 0)
}

fn entry_text(body: &[u8]) -> &str {
    msgpack::as_text(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgpack::Writer;
    use proptest::prelude::*;
    use saltcellar_base::clock::Micros;
    use saltcellar_model::Source;

    fn entry(kind: Kind, body: &[u8]) -> Entry<'_> {
        let (source, flags, at) = (Source::Returner, Flags::default(), Micros(5));
        Entry {
            kind,
            source,
            origin: "",
            number: 0,
            flags,
            at,
            tag: b"",
            jid: "1",
            minion: "",
            fun: "",
            retcode: 0,
            body,
        }
    }

    fn publish(fun: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(2)
            .map(3)
            .str("fun")
            .str(fun)
            .str("tgt")
            .str("*")
            .str("kwargs")
            .map(1);
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
            let mut row = JobSummary::default();
            for (seq, kind) in (1..).zip(kinds) {
                row.update(
                    SeqNo(seq),
                    &entry(
                        kind,
                        if kind == Kind::Load {
                            &publish
                        } else {
                            &answer
                        },
                    ),
                );
            }
            assert_eq!(msgpack::as_text(&row.fun), Some("test.ping"));
            assert_eq!(
                (row.metadata.as_slice(), msgpack::as_text(&row.tgt)),
                (&[0x80][..], Some("*"))
            );
        }
    }

    #[test]
    fn merging_summaries_is_commutative_and_idempotent() {
        let row = |seq: u64, kind, body: &[u8], end: &str| {
            let mut row = JobSummary {
                jid: "1".into(),
                first_at: 10 + seq.cast_signed(),
                ..Default::default()
            };
            row.update(SeqNo(seq), &entry(kind, body));
            let mut w = Writer::new();
            w.str(end);
            row.update(SeqNo(seq + 1), &entry(Kind::Endtime, &w.into_bytes()));
            row
        };
        let early = row(1, Kind::Return, &answer("x"), "a");
        let middle = row(5, Kind::Load, &publish("y"), "b");
        let mut late = row(9, Kind::Load, &publish("z"), "c");
        late.nocache = true;
        let joined = early.clone().joined(middle.clone()).joined(late.clone());
        assert_eq!(
            msgpack::as_text(&joined.fun),
            Some("y"),
            "the first of equally ranked loads"
        );
        assert_eq!((joined.first_at, joined.nocache), (11, true));
        assert_eq!(joined.endtime, "c");
        for other in [
            late.clone().joined(early.clone()).joined(middle.clone()),
            middle.clone().joined(late.clone()).joined(early.clone()),
            joined
                .clone()
                .joined(early.clone())
                .joined(middle)
                .joined(late)
                .joined(early),
        ] {
            assert_eq!(other, joined);
        }
        let mut bytes = Vec::new();
        joined.write_values(&mut bytes);
        let mut read = JobSummary {
            fun: Vec::new(),
            tgt: Vec::new(),
            ..joined.clone()
        };
        read.read_values(&bytes).unwrap();
        assert_eq!(read, joined);
        assert!(read.read_values(b"\x00\x01").is_none());
    }

    proptest! {
        /// Only the sequence number and the values of a contested load depend on the order: which
        /// entry supplies them does. Nothing else does, however entries are spread over segments.
        #[test]
        fn summaries_do_not_depend_on_the_order_of_arrival(
            entries in prop::collection::vec((0..5_u8, 0..2_u8, 0..3_usize), 1..8),
            keys in prop::collection::vec(any::<u32>(), 8),
            // The best kind of load that occurs.
            best in 0..4_u8,
        ) {
            let joined = |mut order: Vec<usize>, keyed: bool, segment_count: usize| {
                if keyed {
                    order.sort_by_key(|n| keys[*n]);
                }
                let mut segments: [Option<JobSummary>; 3] = Default::default();
                for (seq, n) in (1..).map(SeqNo).zip(order) {
                    let (kind, value, segment) = entries[n];
                    let (kind, body) = match best + kind % (5 - best) {
                        0 => (Kind::Load, publish(["x", "y"][usize::from(value)])),
                        1 => (Kind::JobNew, answer(["x", "y"][usize::from(value)])),
                        2 => (Kind::ReturnLoad, publish(["x", "y"][usize::from(value)])),
                        3 => (Kind::Return, answer(["x", "y"][usize::from(value)])),
                        _ => (Kind::NoCache, vec![0xc0]),
                    };
                    let row = segments[segment % segment_count].get_or_insert_default();
                    row.update(seq, &entry(kind, &body));
                }
                let rows = segments.into_iter().flatten();
                let row = rows.reduce(JobSummary::joined).unwrap();
                let settled = (!row.contested).then(|| row.fun.clone());
                (row.rank, row.contested, settled, row.nocache)
            };

            let order: Vec<usize> = (0..entries.len()).collect();
            let expected = joined(order.clone(), false, 3);
            for segment_count in 1..=3 {
                prop_assert_eq!(&joined(order.clone(), true, segment_count), &expected);
            }
        }
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
        let mut row = JobSummary::default();
        row.update(SeqNo(1), &entry(Kind::Load, &w.into_bytes()));
        assert!(row.abridged && row.arg.is_empty() && !row.fun.is_empty());
    }
}
