//! The columns of a block in memory. A builder fills them; the head of the block and the index of its segment are made from them.
//!
//! # Invariant
//!
//! All columns of entries contain one value per entry, indexes are within the strings or the jids, and sequence numbers ascend:
//! [`super::builder::BlockBuilder`] checks it before it hands them out, and a [`super::block::BlockView`] when it is made.

use std::ops::Range;

use super::column::distinct;
use crate::names::Texts;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Flags, JidKey, Kind, SeqNo};

/// Placeholder of the jid in a tag template.
pub(crate) const JID_PLACEHOLDER: u8 = 1;
/// Placeholder of the minion id in a tag template.
pub(crate) const MINION_PLACEHOLDER: u8 = 2;
/// In a list of templates: the block contains a jid that is not derived from a time. (As a template: a
/// tag equal to its jid.)
pub(crate) const FREE_JID: &[u8] = &[JID_PLACEHOLDER];
/// First byte of a template that is a literal tag, because the tag contains a placeholder byte.
pub(crate) const LITERAL: u8 = 0;

/// The columns of a block; [`super::block::Head`] says what each contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) first_seq: u64,
    pub(crate) seqs: Vec<i64>,
    pub(crate) at: Vec<i64>,
    pub(crate) kind: Vec<i64>,
    pub(crate) source: Vec<i64>,
    pub(crate) origin: Vec<i64>,
    pub(crate) number: Vec<i64>,
    pub(crate) flags: Vec<i64>,
    pub(crate) retcode: Vec<i64>,
    pub(crate) jid: Vec<i64>,
    pub(crate) minion: Vec<i64>,
    pub(crate) fun: Vec<i64>,
    pub(crate) tag: Vec<i64>,
    pub(crate) body_len: Vec<i64>,
    pub(crate) jid_time: Vec<i64>,
    pub(crate) jid_pid: Vec<i64>,
    pub(crate) texts: Texts,
    /// Bytes of the tags and bodies.
    pub(crate) raw_len: usize,
}

impl Columns {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Number of distinct jids.
    pub(crate) fn jids(&self) -> usize {
        self.jid_time.len()
    }

    /// The sequence number of an entry.
    pub(crate) fn seq(&self, at: usize) -> SeqNo {
        let gap = *self.seqs.get(at).expect("an entry of this block");
        SeqNo(self.first_seq + gap.unsigned_abs() + at as u64)
    }

    /// Earliest and latest time of arrival. Panics if empty.
    pub(crate) fn times(&self) -> (Micros, Micros) {
        let earliest = self.at.iter().min().zip(self.at.iter().max());
        let (earliest, latest) = earliest.expect("a block with entries");
        (Micros(*earliest), Micros(*latest))
    }

    /// The key of a jid, and the jid itself if it contains no time.
    pub(crate) fn jid(&self, at: usize) -> (JidKey, &[u8]) {
        let time = *self.jid_time.get(at).expect("a jid of this block");
        if let Ok(text) = u32::try_from(-1 - time) {
            let text = self.texts.get(text);
            // A builder stores UTF-8 only; other bytes were forged with valid checksums, and are read as in
            // [`super::block::Rows`].
            let key = JidKey::of(std::str::from_utf8(text).unwrap_or_default());
            return (key, text);
        }

        // 0 for no pid, otherwise 1 + pid.
        let pid = self.jid_pid.get(at).and_then(|pid| pid.checked_sub(1));
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        (JidKey::from_time(Micros(time), pid), b"")
    }

    /// The index of each entry's minion among the strings, if it has one.
    pub(crate) fn minions(&self) -> impl Iterator<Item = u32> {
        self.minion.iter().filter_map(|minion| index_of(*minion))
    }

    /// The entries without the parts that an index does not need, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        let names = self.jid.iter().zip(&self.minion).zip(&self.fun);
        let values = self.kind.iter().zip(&self.flags).zip(&self.retcode);
        let places = self.seqs.iter().zip(&self.at).zip(&self.body_len);
        let rows = (0_u64..).zip(names.zip(values).zip(places));

        let mut body_end = 0;
        rows.map(
            move |(
                n,
                ((((jid, minion), fun), ((kind, flags), retcode)), ((gap, at), body_len)),
            )| {
                let body_from = body_end;
                body_end += usize::try_from(*body_len).expect("lengths were checked");
                Row {
                    seq: SeqNo(self.first_seq + gap.unsigned_abs() + n),
                    at: Micros(*at),
                    kind: u8::try_from(*kind)
                        .ok()
                        .and_then(Kind::from_number)
                        .expect("kinds were checked"),
                    flags: Flags(u8::try_from(*flags).expect("flags were checked")),
                    retcode: *retcode,
                    jid: index_of(*jid),
                    minion: index_of(*minion),
                    fun: index_of(*fun),
                    body: body_from..body_end,
                }
            },
        )
    }

    /// The distinct tag templates, and `FREE_JID` if a jid is not derived from a time.
    pub(crate) fn templates(&self) -> Vec<Vec<u8>> {
        let text = |at| {
            let at = u32::try_from(at).expect("an index of the strings");
            self.texts.get(at).to_vec()
        };

        let free = self
            .jid_time
            .iter()
            .any(|&time| time < 0)
            .then(|| FREE_JID.to_vec());

        distinct(&self.tag)
            .into_iter()
            .map(text)
            .chain(free)
            .collect()
    }

    /// Empties all columns and keeps their buffers.
    pub(crate) fn clear(&mut self) {
        self.all_mut().into_iter().for_each(Vec::clear);
        self.texts.clear();
        self.first_seq = 0;
        self.raw_len = 0;
    }

    fn all_mut(&mut self) -> [&mut Vec<i64>; 15] {
        [
            &mut self.seqs,
            &mut self.at,
            &mut self.kind,
            &mut self.source,
            &mut self.origin,
            &mut self.number,
            &mut self.flags,
            &mut self.retcode,
            &mut self.jid,
            &mut self.minion,
            &mut self.fun,
            &mut self.tag,
            &mut self.body_len,
            &mut self.jid_time,
            &mut self.jid_pid,
        ]
    }
}

/// An entry in the columns of a block.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) seq: SeqNo,
    /// Time of arrival.
    pub(crate) at: Micros,
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    pub(crate) retcode: i64,
    /// Index among the jids of the block.
    pub(crate) jid: Option<u32>,
    /// Index among the strings of the block.
    pub(crate) minion: Option<u32>,
    /// Index among the strings of the block.
    pub(crate) fun: Option<u32>,
    /// Place of the body among the bodies of the block.
    pub(crate) body: Range<usize>,
}

/// An index in a column that has 0 for none.
fn index_of(value: i64) -> Option<u32> {
    u32::try_from(value - 1).ok()
}
