//! Blocks: entries committed together, stored in columns, with their bodies compressed together.
//!
//! A block has two parts. The [`Head`] contains everything but the bodies; it is rkyv-archived and
//! read in place by a [`BlockView`]. Searches read heads only. Repeated strings (minions,
//! functions, tag templates) are stored once, in the head's dictionary. A tag template is a tag
//! with placeholders for the jid and the minion id. [`super::builder`] builds blocks.
//!
//! # Invariant
//!
//! A [`BlockView`] exists only for a head whose columns contain one value per entry and whose indexes
//! are within the dictionary. Reading an entry therefore cannot fail; only its body can
//! (decompression).

use std::cell::RefCell;
use std::sync::OnceLock;
use std::{fmt, io};

use rkyv::rancor::Error;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Serialize};
use zstd::bulk::Decompressor;

use super::column::{ArchivedColumn, Column, distinct};
use super::columns::{Columns, JID_PLACEHOLDER, LITERAL, MINION_PLACEHOLDER};
use super::frame::Packed;
use crate::error::StoreError;
use crate::names::Texts;
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{
    BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, ENTRY_BYTES_MAX, WIRE_FRAME_BYTES_MAX,
};
use saltcellar_model::{Entry, Flags, JidKey, JidSpeller, Kind, SeqNo, Source};

pub(crate) const CODEC_STORED: u8 = 0;
pub(crate) const CODEC_ZSTD: u8 = 1;

/// All columns of a block except the bodies, as archived; `docs/FORMAT.md` contains the table.
#[derive(Debug, Archive, Serialize)]
pub struct Head {
    pub(crate) first_seq: u64,
    pub(crate) count: u32,
    /// Sequence number - `first_seq` - index of the entry: all zero without gaps.
    pub(crate) seq: Column,
    /// Microseconds since 1970.
    pub(crate) at: Column,
    pub(crate) kind: Column,
    pub(crate) source: Column,
    /// The master: index into the strings, plus one; 0 for this daemon's master.
    pub(crate) origin: Column,
    /// The sequence number at the master that it came from; 0 for none.
    pub(crate) number: Column,
    pub(crate) flags: Column,
    pub(crate) retcode: Column,
    /// Index into the jids, plus one; 0 for none.
    pub(crate) jid: Column,
    /// Index into the strings, plus one; 0 for none.
    pub(crate) minion: Column,
    /// Index into the strings, plus one; 0 for none.
    pub(crate) fun: Column,
    /// Index into the strings: the tag template.
    pub(crate) tag: Column,
    pub(crate) body_len: Column,
    /// Per jid: its time in microseconds, or -1 - the index of its text.
    pub(crate) jid_time: Column,
    /// Per jid: 1 + its pid, or 0.
    pub(crate) jid_pid: Column,
    pub(crate) jids: u32,
    pub(crate) text_ends: Vec<u32>,
    pub(crate) texts: Vec<u8>,
    /// Bytes of all bodies before compression.
    pub(crate) bodies_len: u64,
    /// 0: stored; 1: zstd.
    pub(crate) codec: u8,
}

/// The archived head within its bytes.
type HeadRef<'a> = &'a ArchivedHead;

self_cell::self_cell!(
    /// The bytes of a head, and the head in them, which was validated. `rkyv` has no trusted access
    /// without `unsafe`, and readers look at the same block for each of its entries.
    struct CheckedHead {
        owner: AlignedVec,
        #[covariant]
        dependent: HeadRef,
    }
);

impl fmt::Debug for CheckedHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckedHead({} bytes)", self.borrow_owner().len())
    }
}

impl CheckedHead {
    fn of(bytes: AlignedVec) -> Result<Self, String> {
        Self::try_new(bytes, |bytes| {
            let head = archived(bytes)?;
            check(head)?;
            Ok(head)
        })
    }
}

/// A block with a validated head, read in place.
#[derive(Debug)]
pub struct BlockView {
    head: CheckedHead,
    /// Bodies as stored in the frame; `None` if only the head was read.
    packed: Option<Vec<u8>>,
    body_ends: OnceLock<Vec<usize>>,
    bodies: OnceLock<Result<Vec<u8>, String>>,
}

impl BlockView {
    /// Validates a head whose checksum holds; the error describes the defect. Without `bodies`
    /// every body reads as an error.
    pub fn new(head: AlignedVec, bodies: Option<Vec<u8>>) -> Result<Self, String> {
        Ok(Self {
            head: CheckedHead::of(head)?,
            packed: bodies,
            body_ends: OnceLock::new(),
            bodies: OnceLock::new(),
        })
    }

    fn get(&self) -> &ArchivedHead {
        self.head.borrow_dependent()
    }

    /// Number of entries, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.get().count.to_native() as usize
    }

    /// Bytes of the bodies.
    pub(crate) fn bodies_len(&self) -> u64 {
        self.get().bodies_len.to_native()
    }

    /// Row access.
    pub fn rows(&self) -> Rows<'_> {
        Rows {
            block: self.get(),
            view: self,
        }
    }

    /// Memory use in bytes, including the decompressed bodies.
    pub fn memory(&self) -> usize {
        // Both forms stay in memory once a body was read, so both count from the beginning.
        let bodies = usize::try_from(self.get().bodies_len.to_native()).unwrap_or(usize::MAX);
        let ends = self.len() * size_of::<usize>();
        let of_bodies = self.packed.as_ref().map_or(0, |packed| {
            packed.len().saturating_add(bodies).saturating_add(ends)
        });
        let head = self.head.borrow_owner().len();
        head.saturating_add(of_bodies)
    }

    fn unpacked(&self) -> Result<&[u8], String> {
        let bodies = self.bodies.get_or_init(|| {
            // Unpacked once for all bodies of the block: they are one zstd frame. The error is
            // also kept, because a damaged block must not be decompressed once per entry.
            let block = self.get();
            let len = usize::try_from(block.bodies_len.to_native()).map_err(|e| e.to_string())?;
            let packed = self
                .packed
                .as_deref()
                .ok_or("only the head of the block was read")?;

            match block.codec {
                CODEC_STORED => Ok(packed.to_vec()),
                CODEC_ZSTD => decompress(packed, len).map_err(|e| format!("zstd: {e}")),
                n => Err(format!("unknown codec {n}")),
            }
            .and_then(|bodies| {
                if bodies.len() == len {
                    Ok(bodies)
                } else {
                    Err(format!("bodies of {} bytes, expected {len}", bodies.len()))
                }
            })
        });
        bodies.as_deref().map_err(Clone::clone)
    }
}

thread_local! {
    /// A new context costs as much as a small block.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses to at most `len` bytes.
pub(crate) fn decompress(packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(known) => known,
            None => slot.insert(Decompressor::new()?),
        };
        decompressor.decompress(packed, len)
    })
}

/// Bytes of the bodies of a block. An entry larger than a block gets a separate block.
pub(crate) const BODIES_MAX: u64 = (if BLOCK_RAW_BYTES > ENTRY_BYTES_MAX {
    BLOCK_RAW_BYTES
} else {
    ENTRY_BYTES_MAX
} + WIRE_FRAME_BYTES_MAX) as u64;

/// 0 for no pid, otherwise 1 + pid.
const JID_PIDS: usize = u32::MAX as usize + 2;

fn archived(bytes: &[u8]) -> Result<&ArchivedHead, String> {
    rkyv::access::<ArchivedHead, Error>(bytes).map_err(|e| format!("malformed block: {e}"))
}

fn check(block: &ArchivedHead) -> Result<(), String> {
    let count = block.count.to_native() as usize;
    let jids = block.jids.to_native() as usize;
    let texts = block.text_ends.len();
    // Checked first: the limits bound everything that is allocated below.
    if count == 0 || count > BLOCK_ENTRIES_MAX {
        return Err(format!("{count} entries in a block"));
    }
    // An entry has at most one jid. Without this check, a constant column could claim any number in
    // zero bytes.
    if jids > count {
        return Err(format!("{jids} jids of {count} entries"));
    }

    let per_entry = [
        &block.seq,
        &block.at,
        &block.kind,
        &block.source,
        &block.origin,
        &block.number,
        &block.flags,
        &block.retcode,
        &block.jid,
        &block.minion,
        &block.fun,
        &block.tag,
        &block.body_len,
    ];
    if !per_entry.iter().all(|c| c.holds(count))
        || ![&block.jid_time, &block.jid_pid]
            .iter()
            .all(|c| c.holds(jids))
    {
        return Err(format!("a column does not hold {count} values"));
    }

    // Strings are slices between two ends, so ascending ends within the bytes make every slice valid.
    let mut end = 0;
    for next in block.text_ends.iter().map(|e| e.to_native() as usize) {
        if next < end {
            return Err("text ends are not ascending".to_owned());
        }
        end = next;
    }
    if end != block.texts.len() {
        return Err(format!(
            "strings of {} bytes, expected {end}",
            block.texts.len()
        ));
    }

    // The columns of indexes: 0 stands for none in all but the tag, which every entry has.
    let known = block.tag.is_below(texts)
        && block.minion.is_below(texts + 1)
        && block.fun.is_below(texts + 1)
        && block.origin.is_below(texts + 1)
        && block.jid.is_below(jids + 1)
        && block.kind.is_below(Kind::COUNT)
        && block.source.is_below(Source::COUNT);
    if !known {
        return Err("an index of an entry is out of range".to_owned());
    }

    // The first gap is at least zero and gaps ascend, so no sequence number underflows, and the
    // last one is the greatest. Only its sum can overflow.
    let mut gaps = Vec::with_capacity(count);
    block.seq.unpack(count, &mut gaps);
    let last = gaps
        .iter()
        .copied()
        .max()
        .and_then(|gap| block.first_seq.to_native().checked_add_signed(gap));
    if gaps.first().is_some_and(|gap| *gap < 0)
        || !gaps.is_sorted()
        || last
            .and_then(|last| last.checked_add(count as u64))
            .is_none()
    {
        return Err("sequence numbers are not ascending".to_owned());
    }

    // Readers convert them to the narrower types of an entry.
    if !block.flags.is_below(1 << u8::BITS) || !block.jid_pid.is_below(JID_PIDS) {
        return Err("flags or a pid are out of range".to_owned());
    }

    // A jid is either a time or, as a negative number, the index of its text.
    let is_text = |n: i64| usize::try_from(-1 - n).is_ok_and(|n| n < texts);
    let mut times = Vec::with_capacity(jids);
    block.jid_time.unpack(jids, &mut times);
    if !times.iter().all(|&time| time >= 0 || is_text(time)) {
        return Err("an index of a jid is out of range".to_owned());
    }

    let bodies = block
        .body_len
        .total(count)
        .ok_or("a body length is out of range")?;
    if bodies != block.bodies_len.to_native() || bodies > BODIES_MAX {
        return Err(format!(
            "bodies of {bodies} bytes, expected {}",
            block.bodies_len
        ));
    }

    Ok(())
}

/// Spells tags and jids of a block's entries one after the other: jids once each, and all tags in the same memory.
pub struct Speller<'a> {
    rows: Rows<'a>,
    jids: Vec<String>,
    tag: Vec<u8>,
}

impl<'a> Speller<'a> {
    /// Spells all jids of a block.
    pub fn new(rows: Rows<'a>) -> Self {
        Self {
            rows,
            jids: rows.jid_texts(),
            tag: Vec::new(),
        }
    }

    /// Tag and jid of an entry; empty for none.
    pub fn tag_and_jid(&mut self, i: usize) -> (&[u8], &str) {
        let at = self.rows.block.jid.index(i).checked_sub(1);
        let jid = at
            .and_then(|at| self.jids.get(at))
            .map_or("", String::as_str);
        self.tag.clear();
        self.rows.expand_tag(i, || jid, &mut self.tag);
        (&self.tag, jid)
    }
}

/// What the length of a tag is made of.
#[derive(Debug, Clone, Copy)]
struct TagShape {
    /// Bytes that are the same in each tag.
    fixed: usize,
    /// How often it contains the jid, and the minion.
    jids: usize,
    minions: usize,
}

impl TagShape {
    /// That of a template.
    fn of(template: &[u8]) -> Self {
        let (mut jids, mut minions) = (0, 0);
        if template.first() == Some(&LITERAL) {
            let fixed = template.len() - 1;
            return Self {
                fixed,
                jids,
                minions,
            };
        }

        for byte in template {
            jids += usize::from(*byte == JID_PLACEHOLDER);
            minions += usize::from(*byte == MINION_PLACEHOLDER);
        }

        let fixed = template.len() - jids - minions;
        Self {
            fixed,
            jids,
            minions,
        }
    }
}

/// Jids of all times before the year 10000 have twenty digits.
const USUAL_JID_LEN: usize = 20;
const USUAL_JIDS_END: Micros = Micros(253_402_300_800_000_000);

/// Row access to the entries of a block.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    block: &'a ArchivedHead,
    view: &'a BlockView,
}

impl<'a> Rows<'a> {
    /// Number of entries, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.block.count.to_native() as usize
    }

    /// Sequence number.
    pub fn seq(&self, i: usize) -> SeqNo {
        let gap = u64::try_from(self.block.seq.get(i)).expect("gaps were checked");
        SeqNo(self.block.first_seq.to_native() + gap + i as u64)
    }

    /// Time of arrival.
    pub fn at(&self, i: usize) -> Micros {
        Micros(self.block.at.get(i))
    }

    /// Time of arrival in microseconds, per entry.
    pub(crate) fn ats(&self) -> Vec<i64> {
        self.column(&self.block.at)
    }

    /// Earliest and latest time of arrival.
    pub fn times(&self) -> (Micros, Micros) {
        let times = self.ats();
        let span = times.iter().copied().min().zip(times.iter().copied().max());
        let (earliest, latest) = span.expect("a block has entries");
        (Micros(earliest), Micros(latest))
    }

    /// Kind of the entry.
    pub fn kind(&self, i: usize) -> Kind {
        u8::try_from(self.block.kind.get(i))
            .ok()
            .and_then(Kind::from_number)
            .expect("kinds were checked")
    }

    /// Source of the entry.
    pub fn source(&self, i: usize) -> Source {
        let source = u8::try_from(self.block.source.get(i))
            .ok()
            .and_then(Source::from_number);
        source.expect("sources were checked")
    }

    /// The master that the entry came from; empty for this daemon's master.
    pub fn origin(&self, i: usize) -> &'a str {
        self.block
            .origin
            .index(i)
            .checked_sub(1)
            .map_or("", |t| self.text_str(t))
    }

    /// The sequence number at its origin, if it came through the cluster's stream; else 0.
    pub fn number(&self, i: usize) -> u64 {
        // Kept as its 64 bits.
        self.block.number.get(i).cast_unsigned()
    }

    /// Flags.
    pub fn flags(&self, i: usize) -> Flags {
        Flags(u8::try_from(self.block.flags.get(i)).expect("flags were checked"))
    }

    /// Exit code of a return.
    pub fn retcode(&self, i: usize) -> i64 {
        self.block.retcode.get(i)
    }

    /// The entry with its other fields; `tag`, `jid` and `body` are read by the caller, if needed.
    pub fn entry<'b>(&self, i: usize, tag: &'b [u8], jid: &'b str, body: &'b [u8]) -> Entry<'b>
    where
        'a: 'b,
    {
        let (kind, source, flags, at) = (self.kind(i), self.source(i), self.flags(i), self.at(i));
        let (minion, fun, retcode) = (self.minion(i), self.fun(i), self.retcode(i));
        Entry {
            kind,
            source,
            origin: self.origin(i),
            number: self.number(i),
            flags,
            at,
            tag,
            jid,
            minion,
            fun,
            retcode,
            body,
        }
    }

    /// The jid's key.
    pub fn jid_key(&self, i: usize) -> Option<JidKey> {
        let at = self.block.jid.index(i).checked_sub(1)?;
        let time = self.block.jid_time.get(at);
        if time < 0 {
            return Some(JidKey::of(self.text_str(usize::try_from(-1 - time).ok()?)));
        }

        let pid = self
            .block
            .jid_pid
            .get(at)
            .checked_sub(1)
            .and_then(|pid| u32::try_from(pid).ok());
        Some(JidKey::from_time(Micros(time), pid))
    }

    /// The jid's text; empty for none.
    pub fn jid(&self, i: usize) -> String {
        self.block
            .jid
            .index(i)
            .checked_sub(1)
            .map_or_else(String::new, |at| self.jid_text(at))
    }

    /// The text of a jid by its index among the block's jids.
    pub(crate) fn jid_text(&self, at: usize) -> String {
        let time = self.block.jid_time.get(at);
        if time < 0 {
            return self
                .text_str(usize::try_from(-1 - time).expect("jids were checked"))
                .to_owned();
        }

        let pid = self
            .block
            .jid_pid
            .get(at)
            .checked_sub(1)
            .and_then(|pid| u32::try_from(pid).ok());
        JidKey::from_time(Micros(time), pid)
            .text()
            .expect("a time that is not negative")
    }

    /// Times of the distinct jids in microseconds; negative for a jid that is not derived from a
    /// time.
    pub(crate) fn jid_times(&self) -> Vec<i64> {
        let count = self.block.jids.to_native() as usize;
        let mut times = Vec::with_capacity(count);
        self.block.jid_time.unpack(count, &mut times);
        times
    }

    /// Whether the jid has a pid suffix.
    pub(crate) fn jid_has_pid(&self, at: usize) -> bool {
        self.block.jid_pid.get(at) > 0
    }

    /// All columns, unpacked.
    pub(crate) fn columns(&self) -> Columns {
        let block = self.block;
        let jids = block.jids.to_native() as usize;
        let mut jid_pid = Vec::with_capacity(jids);
        block.jid_pid.unpack(jids, &mut jid_pid);

        let raw_len = self.raw_len();
        Columns {
            first_seq: block.first_seq.to_native(),
            seqs: self.column(&block.seq),
            at: self.ats(),
            kind: self.column(&block.kind),
            source: self.column(&block.source),
            origin: self.column(&block.origin),
            number: self.column(&block.number),
            flags: self.column(&block.flags),
            retcode: self.column(&block.retcode),
            minion: self.minions(),
            fun: self.funs(),
            tag: self.tags(),
            body_len: self.column(&block.body_len),
            jid_time: self.jid_times(),
            jid_pid,
            texts: Texts {
                ends: block.text_ends.iter().map(|end| end.to_native()).collect(),
                bytes: block.texts.to_vec(),
            },
            raw_len,
            jid: self.jids(),
        }
    }

    /// Bytes of the tags and bodies of all entries.
    pub(crate) fn raw_len(&self) -> usize {
        // Neither tags nor jids are spelled: lengths follow from the templates, which are few.
        let jid_lens: Vec<usize> = (0..self.block.jids.to_native() as usize)
            .map(|at| self.jid_text_len(at))
            .collect();
        let mut shapes: Vec<Option<TagShape>> = vec![None; self.texts_len()];

        let mut tags = 0;
        let names = self.jids().into_iter().zip(self.minions());
        for (tag, (jid, minion)) in self.tags().into_iter().zip(names) {
            let at = usize::try_from(tag).expect("tags were checked");
            let shape = shapes.get_mut(at).expect("tags were checked");
            let shape = shape.get_or_insert_with(|| TagShape::of(self.text(at)));

            // 0 stands for no jid, and for no minion.
            let jid = usize::try_from(jid - 1).ok();
            let jid = jid.and_then(|at| jid_lens.get(at)).copied();
            let minion = usize::try_from(minion - 1)
                .ok()
                .filter(|_| shape.minions > 0);
            let minion = minion.map_or(0, |at| self.text_str(at).len());
            tags += shape.fixed + shape.jids * jid.unwrap_or(0) + shape.minions * minion;
        }
        tags + usize::try_from(self.view.bodies_len()).expect("lengths were checked")
    }

    /// The length of a jid by its index among the block's jids.
    fn jid_text_len(&self, at: usize) -> usize {
        let is_usual = (0..USUAL_JIDS_END.0).contains(&self.block.jid_time.get(at));
        if is_usual && !self.jid_has_pid(at) {
            return USUAL_JID_LEN;
        }
        self.jid_text(at).len()
    }

    /// Bytes of the bodies of all entries.
    pub(crate) fn bodies_len(&self) -> u64 {
        self.view.bodies_len()
    }

    /// Whether no entry is another master's.
    pub(crate) fn are_own(&self) -> bool {
        self.block.origin.is_all(0) && self.block.number.is_all(0)
    }

    /// The number of each entry's kind.
    pub(crate) fn kinds(&self) -> Vec<i64> {
        self.column(&self.block.kind)
    }

    /// The distinct functions, without those that are empty.
    pub(crate) fn distinct_funs(&self) -> Vec<&'a str> {
        let texts = self.funs().into_iter().map(|fun| fun - 1);
        let texts: Vec<i64> = texts.collect();
        let found = distinct(&texts).into_iter();
        found.map(|at| self.text_str(at)).collect()
    }

    /// Head and bodies as they are in the frame. An error if only the head was read.
    pub(crate) fn packed(&self) -> Result<Packed<'a>, StoreError> {
        let bodies = self.view.packed.as_deref();
        Ok(Packed {
            head: self.view.head.borrow_owner().clone(),
            bodies: bodies.ok_or(StoreError::Broken("only the head of the block was read"))?,
        })
    }

    /// Index of the tag template among the strings, per entry.
    pub(crate) fn tags(&self) -> Vec<i64> {
        self.column(&self.block.tag)
    }

    pub(crate) fn texts_len(&self) -> usize {
        self.block.text_ends.len()
    }

    /// 1 + index of the minion among the strings, or 0, per entry.
    pub(crate) fn minions(&self) -> Vec<i64> {
        self.column(&self.block.minion)
    }

    /// 1 + index of the function among the strings, or 0, per entry.
    pub(crate) fn funs(&self) -> Vec<i64> {
        self.column(&self.block.fun)
    }

    /// 1 + index of the jid among the jids, or 0, per entry.
    pub(crate) fn jids(&self) -> Vec<i64> {
        self.column(&self.block.jid)
    }

    fn column(&self, column: &ArchivedColumn) -> Vec<i64> {
        let mut values = Vec::with_capacity(self.len());
        column.unpack(self.len(), &mut values);
        values
    }

    /// All strings concatenated, and the end offset of each.
    pub(crate) fn texts(&self) -> (&'a [u8], Vec<usize>) {
        (
            &self.block.texts,
            self.block
                .text_ends
                .iter()
                .map(|end| end.to_native() as usize)
                .collect(),
        )
    }

    /// The minion id; empty for none.
    pub fn minion(&self, i: usize) -> &'a str {
        self.block
            .minion
            .index(i)
            .checked_sub(1)
            .map_or("", |t| self.text_str(t))
    }

    /// The function; empty for none.
    pub fn fun(&self, i: usize) -> &'a str {
        self.block
            .fun
            .index(i)
            .checked_sub(1)
            .map_or("", |t| self.text_str(t))
    }

    /// The tag, expanded from its template.
    pub fn tag(&self, i: usize) -> Vec<u8> {
        let mut tag = Vec::new();
        self.expand_tag(i, || self.jid(i), &mut tag);
        tag
    }

    /// Appends the tag to `tag`.
    fn expand_tag<J: AsRef<str>>(&self, i: usize, jid: impl Fn() -> J, tag: &mut Vec<u8>) {
        let template = self.text(self.block.tag.index(i));
        if let Some((&LITERAL, literal)) = template.split_first() {
            return tag.extend_from_slice(literal);
        }

        tag.reserve(template.len() + 40);
        for &b in template {
            match b {
                JID_PLACEHOLDER => tag.extend_from_slice(jid().as_ref().as_bytes()),
                MINION_PLACEHOLDER => tag.extend_from_slice(self.minion(i).as_bytes()),
                b => tag.push(b),
            }
        }
    }

    /// Length of the tag in bytes; `jid` is the entry's jid.
    pub fn tag_len(&self, i: usize, jid: &str) -> usize {
        let shape = TagShape::of(self.text(self.block.tag.index(i)));
        shape.fixed + shape.jids * jid.len() + shape.minions * self.minion(i).len()
    }

    /// The strings of all distinct jids.
    pub fn jid_texts(&self) -> Vec<String> {
        // The speller keeps the last second, because jids of one block are mostly close in time.
        let mut speller = JidSpeller::default();
        let spelled = |(at, time): (usize, i64)| {
            if time < 0 || self.jid_has_pid(at) {
                return self.jid_text(at);
            }
            String::from_utf8_lossy(speller.spell(Micros(time))).into_owned()
        };
        self.jid_times()
            .into_iter()
            .enumerate()
            .map(spelled)
            .collect()
    }

    /// The body as received; an error if decompression fails.
    pub fn body(&self, i: usize) -> Result<&'a [u8], String> {
        // Made on the first read of a body: most readers of a head never ask for one.
        let ends = self.view.body_ends.get_or_init(|| {
            let mut end = 0;
            (0..self.len())
                .map(|i| {
                    end += self.block.body_len.index(i);
                    end
                })
                .collect()
        });

        let end = |i: usize| *ends.get(i).expect("an entry of this block");
        let from = i.checked_sub(1).map_or(0, end);
        self.view
            .unpacked()?
            .get(from..end(i))
            .ok_or_else(|| "a body is out of range".to_owned())
    }

    /// All bodies, concatenated.
    pub(crate) fn bodies(&self) -> Result<&'a [u8], String> {
        self.view.unpacked()
    }

    /// Length of the body in bytes.
    pub fn body_len(&self, i: usize) -> usize {
        self.block.body_len.index(i)
    }

    /// The distinct tag templates, and `FREE_JID` if a jid is not derived from a time.
    pub fn templates(&self) -> Vec<Vec<u8>> {
        self.columns().templates()
    }

    fn text(&self, at: usize) -> &'a [u8] {
        // Only indexes that `check` has bounded arrive here.
        let end = |i: usize| {
            self.block
                .text_ends
                .get(i)
                .expect("places were checked")
                .to_native() as usize
        };
        let from = at.checked_sub(1).map_or(0, end);
        self.block
            .texts
            .get(from..end(at))
            .expect("ends were checked")
    }

    fn text_str(&self, at: usize) -> &'a str {
        // A builder stores valid UTF-8 only. Anything else was forged with valid checksums, and an
        // empty text is harmless.
        std::str::from_utf8(self.text(at)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::{BlockBuffers, BlockBuilder, Packer};
    use super::*;
    use proptest::prelude::*;

    fn view(builder: &BlockBuilder) -> BlockView {
        let mut packer = Packer::new().unwrap();
        let packed = builder.finish(&mut packer).unwrap();
        BlockView::new(packed.head, Some(packed.bodies.to_vec())).unwrap()
    }

    #[test]
    fn the_memory_of_a_block_is_that_of_all_that_it_keeps() {
        let mut builder = BlockBuilder::default();
        for seq in 0..5000 {
            let entry = Entry::new(Kind::Event, Source::Bus, Micros(0), b"x");
            builder.push(SeqNo(seq), &entry).unwrap();
        }
        let view = view(&builder);
        view.rows().body(0).unwrap();

        let ends = view.body_ends.get().unwrap().len() * size_of::<usize>();
        let bodies = view.bodies.get().unwrap().as_ref().unwrap().len();
        let packed = view.packed.as_ref().unwrap().len();
        let head = view.head.borrow_owner().len();
        assert_eq!(view.memory(), head + packed + bodies + ends);
    }

    #[derive(Debug, Clone)]
    struct Owned {
        kind: u8,
        source: u8,
        flags: u8,
        at: i64,
        tag: Vec<u8>,
        jid: String,
        minion: String,
        fun: String,
        retcode: i64,
        body: Vec<u8>,
        gap: u64,
    }

    impl Owned {
        fn entry(&self) -> Entry<'_> {
            Entry {
                kind: Kind::from_number(self.kind).unwrap(),
                source: Source::from_number(self.source).unwrap(),
                // Mostly equal within a block, and sometimes not.
                origin: if self.kind.is_multiple_of(2) { "" } else { "m" },
                number: if self.kind.is_multiple_of(2) {
                    0
                } else {
                    u64::MAX - u64::from(self.kind)
                },
                flags: Flags(self.flags),
                at: Micros(self.at),
                tag: &self.tag,
                jid: &self.jid,
                minion: &self.minion,
                fun: &self.fun,
                retcode: self.retcode,
                body: &self.body,
            }
        }
    }

    fn any_entry() -> impl Strategy<Value = Owned> {
        let jid = prop_oneof![
            Just(String::new()),
            Just("20261121030955505683".to_owned()),
            Just("20261121030955505683_77".to_owned()),
            "[a-z0-9]{1,8}",
        ];
        let minion = prop_oneof![Just(String::new()), Just("web1".to_owned()), "\\PC{1,6}"];
        let meta = (
            0_u8..9,
            0_u8..5,
            0_u8..16,
            any::<i64>(),
            any::<i64>(),
            0_u64..1000,
        );
        (
            meta,
            jid,
            minion,
            0_u8..4,
            "[a-z.]{0,8}",
            prop::collection::vec(any::<u8>(), 0..80),
        )
            .prop_map(
                |((kind, source, flags, at, retcode, gap), jid, minion, form, fun, body)| {
                    let tag = match form {
                        0 => format!("salt/job/{jid}/ret/{minion}").into_bytes(),
                        1 => format!("{minion}/{jid}/{minion}").into_bytes(),
                        2 => body.clone(),
                        _ => Vec::new(),
                    };
                    Owned {
                        kind,
                        source,
                        flags,
                        at,
                        tag,
                        jid,
                        minion,
                        fun,
                        retcode,
                        body,
                        gap,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_block_reproduces_every_entry_byte_for_byte(entries in prop::collection::vec(any_entry(), 1..60)) {
            let mut builder = BlockBuilder::default();
            let mut seq = 5;
            let mut seqs = Vec::new();
            for e in &entries {
                seq += 1 + e.gap;
                seqs.push(SeqNo(seq));
                builder.push(SeqNo(seq), &e.entry()).unwrap();
            }
            let view = view(&builder);
            prop_assert_eq!(view.len(), entries.len());
            let rows = view.rows();
            for (i, e) in entries.iter().enumerate() {
                prop_assert_eq!(rows.seq(i), seqs[i]);
                let (tag, jid) = (rows.tag(i), rows.jid(i));
                let back = rows.entry(i, &tag, &jid, rows.body(i).unwrap());
                prop_assert_eq!(back, e.entry());
                prop_assert_eq!(rows.jid_key(i), (!e.jid.is_empty()).then(|| JidKey::of(&e.jid)));
            }

            // An index that is rebuilt is made from the same columns as the first one.
            let read = rows.columns();
            let bodies = rows.bodies().unwrap().to_vec();
            let built = builder.build(&mut Packer::new().unwrap(), &mut Vec::new(), BlockBuffers::default()).unwrap();
            prop_assert_eq!(&read, &built.columns);
            prop_assert_eq!(bodies, built.bodies());
            for (row, e) in built.columns.rows().zip(&entries) {
                prop_assert_eq!((row.seq, row.kind, row.flags), (seqs.remove(0), e.entry().kind, e.entry().flags));
                prop_assert_eq!(&built.bodies()[row.body], &e.body);
            }
        }

        #[test]
        fn damaged_bytes_are_rejected_or_read_without_panic(at in 0_usize..2000, to in any::<u8>()) {
            let mut builder = BlockBuilder::default();
            for i in 0..20_u64 {
                let jid = format!("2026112103095550{i:04}");
                let tag = format!("salt/job/{jid}/ret/web{i}");
                let body = vec![b'x'; 40];
                builder.push(SeqNo(i + 1), &Entry {
                    kind: Kind::Return, source: Source::Bus,
            origin: "m2", number: 3, flags: Flags::ON_BUS, at: Micros(1), tag: tag.as_bytes(),
                    jid: &jid, minion: "web", fun: "test.ping", retcode: 0, body: &body,
                }).unwrap();
            }
            let mut packer = Packer::new().unwrap();
            let packed = builder.finish(&mut packer).unwrap();
            let (mut head, mut bodies) = (packed.head, packed.bodies.to_vec());
            let at = at % (head.len() + bodies.len());
            match at.checked_sub(head.len()) {
                None => head.as_mut_slice()[at] = to,
                Some(at) => bodies[at] = to,
            }
            if let Ok(view) = BlockView::new(head, Some(bodies)) {
                let rows = view.rows();
                for i in 0..view.len() {
                    let _ = (rows.seq(i), rows.tag(i), rows.jid(i), rows.minion(i), rows.fun(i), rows.origin(i), rows.body(i).is_ok());
                }
                let columns = rows.columns();
                let texts = columns.rows().filter_map(|row| row.minion.or(row.fun)).map(|text| columns.texts.get(text));
                let _ = (texts.count(), (0..columns.jids()).map(|jid| columns.jid(jid).0).max(), columns.templates());
            }
        }
    }

    #[test]
    fn sequence_numbers_flags_origins_and_pids_out_of_range_are_rejected() {
        let head = |seq: &[i64], flags: i64, origin: i64, pid: i64| {
            let (one, none) = (|n| Column::pack(&[n, n]), || Column::pack(&[0, 0]));
            let jids = if pid == 0 { Vec::new() } else { vec![pid] };
            let head = Head {
                first_seq: 5,
                count: 2,
                seq: Column::pack(seq),
                at: none(),
                kind: none(),
                source: none(),
                origin: one(origin),
                number: one(0),
                flags: one(flags),
                retcode: none(),
                jid: none(),
                minion: none(),
                fun: none(),
                tag: none(),
                body_len: none(),
                jid_time: Column::pack(&vec![7; jids.len()]),
                jid_pid: Column::pack(&jids),
                jids: u32::try_from(jids.len()).unwrap(),
                text_ends: vec![1],
                texts: b"x".to_vec(),
                bodies_len: 0,
                codec: CODEC_STORED,
            };
            BlockView::new(rkyv::to_bytes::<Error>(&head).unwrap(), Some(Vec::new())).map(|_| ())
        };
        assert_eq!(head(&[0, 3], 255, 1, 1), Ok(()));
        for (seq, flags, origin, pid) in [
            ([-1, 0], 0, 0, 0),
            ([3, 0], 0, 0, 0),
            ([0, i64::MIN], 0, 0, 0),
            ([0, 0], 256, 0, 0),
            ([0, 0], -1, 0, 0),
            ([0, 0], 0, 2, 0),
            ([0, 0], 0, -1, 0),
            ([0, 0], 0, 0, -1),
            ([0, 0], 0, 0, i64::from(u32::MAX) + 2),
        ] {
            assert!(
                head(&seq, flags, origin, pid).is_err(),
                "{seq:?} {flags} {origin} {pid}"
            );
        }
    }

    #[test]
    fn returns_of_one_job_share_one_template() {
        let mut builder = BlockBuilder::default();
        for i in 0..100_u64 {
            let tag = format!("salt/job/20261121030955505683/ret/web{i}");
            let minion = format!("web{i}");
            let entry = Entry {
                tag: tag.as_bytes(),
                jid: "20261121030955505683",
                minion: &minion,
                fun: "test.ping",
                ..Entry::new(Kind::Return, Source::Bus, Micros(1), b"\x80")
            };
            builder.push(SeqNo(i + 1), &entry).unwrap();
        }
        assert_eq!(
            builder.texts(),
            102,
            "100 minions, one function, one template"
        );
    }
}
