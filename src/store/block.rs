//! Blocks: entries committed together, in columns, with their bodies compressed as one.
//!
//! A [`BlockBuilder`] takes entries and becomes the rkyv bytes of one [`Block`]; a [`BlockView`] reads those
//! bytes in place. Texts that repeat (minions, functions, the shape of tags) stand once, in the block's
//! dictionary; a tag is its shape with marks where the jid and the minion id go.
//!
//! # Invariant
//!
//! A [`BlockView`] exists only for bytes whose columns all have one value per entry and whose indexes all
//! point into the dictionary, so reading an entry cannot fail; only its body can (decompression).

use std::sync::OnceLock;

use rkyv::rancor::{Error, Source as _};
use rkyv::util::AlignedVec;
use rkyv::{Archive, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::column::Column;
use crate::clock::Micros;
use crate::limits::{BLOCK_ENTRIES_MAX, BLOCK_RAW_BYTES, ENTRY_BYTES_MAX, ZSTD_LEVEL};
use crate::model::{Entry, FastMap, Flags, JidKey, Kind, SeqNo, Source};

/// Stands for the jid in a tag's shape.
const JID_MARK: u8 = 1;
/// Stands for the minion id in a tag's shape.
const MINION_MARK: u8 = 2;
/// Begins a shape that is the tag itself, because the tag holds a mark.
const LITERAL: u8 = 0;

/// One block as archived; see `docs/FORMAT.md` for the table.
#[derive(Debug, Archive, Serialize)]
pub struct Block {
    first_seq: u64,
    count: u32,
    /// Sequence number, less `first_seq`, less the entry's index: all zero without gaps.
    seq: Column,
    /// Microseconds since 1970.
    at: Column,
    kind: Column,
    source: Column,
    flags: Column,
    retcode: Column,
    /// Index into the jids, plus one; 0 for none.
    jid: Column,
    /// Index into the texts, plus one; 0 for none.
    minion: Column,
    /// Index into the texts, plus one; 0 for none.
    fun: Column,
    /// Index into the texts: the tag's shape.
    tag: Column,
    body_len: Column,
    /// Per jid: its time in microseconds, or -1 - the index of its text.
    jid_time: Column,
    /// Per jid: 1 + its pid, or 0.
    jid_pid: Column,
    jids: u32,
    text_ends: Vec<u32>,
    texts: Vec<u8>,
    /// Bytes of all bodies before compression.
    bodies_len: u64,
    /// 0: stored; 1: zstd.
    codec: u8,
    bodies: Vec<u8>,
}

/// Compresses bodies, keeping its tables from block to block.
pub struct Packer(zstd::bulk::Compressor<'static>);

impl Packer {
    /// At the level that the log is written with.
    pub fn new() -> std::io::Result<Self> {
        zstd::bulk::Compressor::new(ZSTD_LEVEL).map(Self)
    }
}

/// Texts, each once.
#[derive(Default)]
struct Dictionary {
    by_hash: FastMap<u64, u32>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Dictionary {
    fn index_of(&mut self, text: &[u8]) -> i64 {
        let hash = xxh3_64(text);
        if let Some(&at) = self.by_hash.get(&hash)
            && self.text(at) == text
        {
            return i64::from(at);
        }
        let at = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(text);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self.by_hash.insert(hash, at);
        i64::from(at)
    }

    fn text(&self, at: u32) -> &[u8] {
        let end = |i: u32| self.ends.get(i as usize).map_or(0, |&e| e as usize);
        let from = at.checked_sub(1).map_or(0, end);
        self.bytes.get(from..end(at)).unwrap_or_default()
    }
}

/// A block in the making.
#[derive(Default)]
pub struct BlockBuilder {
    first_seq: u64,
    seqs: Vec<i64>,
    at: Vec<i64>,
    kind: Vec<i64>,
    source: Vec<i64>,
    flags: Vec<i64>,
    retcode: Vec<i64>,
    jid: Vec<i64>,
    minion: Vec<i64>,
    fun: Vec<i64>,
    tag: Vec<i64>,
    body_len: Vec<i64>,
    jid_index: FastMap<JidKey, i64>,
    jid_time: Vec<i64>,
    jid_pid: Vec<i64>,
    texts: Dictionary,
    bodies: Vec<u8>,
    raw_bytes: usize,
    shape: Vec<u8>,
}

impl BlockBuilder {
    /// How many entries it holds.
    #[expect(clippy::len_without_is_empty, reason = "an empty builder is asked nothing")]
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Should it be finished before taking `entry`? A large entry gets a block of its own.
    pub fn is_full_for(&self, entry: &Entry<'_>) -> bool {
        self.len() >= BLOCK_ENTRIES_MAX
            || (self.len() > 0 && self.raw_bytes + entry.packed_len_max() > BLOCK_RAW_BYTES)
    }

    /// Appends an entry.
    pub fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) {
        if self.len() == 0 {
            self.first_seq = seq.0;
        }
        let gap = seq.0.saturating_sub(self.first_seq).saturating_sub(self.len() as u64);
        self.seqs.push(i64::try_from(gap).unwrap_or(i64::MAX));
        self.at.push(entry.at.0);
        self.kind.push(i64::from(entry.kind as u8));
        self.source.push(i64::from(entry.source as u8));
        self.flags.push(i64::from(entry.flags.0));
        self.retcode.push(entry.retcode);
        let jid = if entry.jid.is_empty() { 0 } else { self.jid_of(entry.jid) + 1 };
        self.jid.push(jid);
        for (text, column) in [(entry.minion, &mut self.minion), (entry.fun, &mut self.fun)] {
            column.push(if text.is_empty() { 0 } else { self.texts.index_of(text.as_bytes()) + 1 });
        }
        shape_of(entry, &mut self.shape);
        let shape = self.texts.index_of(&self.shape);
        self.tag.push(shape);
        self.body_len.push(i64::try_from(entry.body.len()).unwrap_or(0));
        self.bodies.extend_from_slice(entry.body);
        self.raw_bytes += entry.packed_len_max();
    }

    fn jid_of(&mut self, jid: &str) -> i64 {
        let key = JidKey::of(jid);
        if let Some(&at) = self.jid_index.get(&key) {
            // Keys of free text may collide; the text decides.
            let spelled = self.jid_time.get(usize::try_from(at).unwrap_or(usize::MAX)).copied().unwrap_or(0);
            let same = spelled >= 0
                || u32::try_from(-1 - spelled).is_ok_and(|text| self.texts.text(text) == jid.as_bytes());
            if same {
                return at;
            }
        }
        let at = i64::try_from(self.jid_time.len()).unwrap_or(0);
        self.jid_time.push(match key.time() {
            Some(time) => time.0,
            None => -1 - self.texts.index_of(jid.as_bytes()),
        });
        self.jid_pid.push(key.pid().map_or(0, |pid| i64::from(pid) + 1));
        self.jid_index.insert(key, at);
        at
    }

    /// The sequence numbers of its first and last entry; both 0 without entries.
    pub fn seqs(&self) -> (SeqNo, SeqNo) {
        let gap = self.seqs.last().map_or(0, |gap| gap.unsigned_abs());
        let last = self.first_seq + gap + self.len().saturating_sub(1) as u64;
        (SeqNo(self.first_seq), SeqNo(last))
    }

    /// The earliest and the latest arrival.
    pub fn times(&self) -> (Micros, Micros) {
        let earliest = self.at.iter().min().copied().unwrap_or_default();
        (Micros(earliest), Micros(self.at.iter().max().copied().unwrap_or_default()))
    }

    /// Compresses the bodies and turns everything into archived bytes.
    pub fn finish(self, packer: &mut Packer) -> Result<AlignedVec, Error> {
        let packed = packer.0.compress(&self.bodies).map_err(Error::new)?;
        let (codec, bodies) =
            if packed.len() < self.bodies.len() { (1, packed) } else { (0, self.bodies.clone()) };
        let block = Block {
            first_seq: self.first_seq,
            count: u32::try_from(self.len()).map_err(Error::new)?,
            seq: Column::pack(&self.seqs),
            at: Column::pack(&self.at),
            kind: Column::pack(&self.kind),
            source: Column::pack(&self.source),
            flags: Column::pack(&self.flags),
            retcode: Column::pack(&self.retcode),
            jid: Column::pack(&self.jid),
            minion: Column::pack(&self.minion),
            fun: Column::pack(&self.fun),
            tag: Column::pack(&self.tag),
            body_len: Column::pack(&self.body_len),
            jid_time: Column::pack(&self.jid_time),
            jid_pid: Column::pack(&self.jid_pid),
            jids: u32::try_from(self.jid_time.len()).map_err(Error::new)?,
            text_ends: self.texts.ends,
            texts: self.texts.bytes,
            bodies_len: self.bodies.len() as u64,
            codec,
            bodies,
        };
        rkyv::to_bytes::<Error>(&block)
    }
}

/// Writes a tag's shape: its jid and its minion id replaced by marks.
fn shape_of(entry: &Entry<'_>, shape: &mut Vec<u8>) {
    shape.clear();
    if entry.tag.iter().any(|&b| b <= MINION_MARK) {
        shape.push(LITERAL);
        shape.extend_from_slice(entry.tag);
        return;
    }
    let mut rest = entry.tag;
    for (word, mark) in [(entry.jid, JID_MARK), (entry.minion, MINION_MARK)] {
        if word.is_empty() {
            continue;
        }
        if let Some(at) = memchr::memmem::find(rest, word.as_bytes()) {
            let (before, after) = rest.split_at(at);
            shape.extend_from_slice(before);
            shape.push(mark);
            rest = after.get(word.len()..).unwrap_or_default();
        }
    }
    shape.extend_from_slice(rest);
}

/// An archived block, checked once and read in place.
#[derive(Debug)]
pub struct BlockView {
    bytes: AlignedVec,
    body_ends: OnceLock<Vec<usize>>,
    bodies: OnceLock<Result<Vec<u8>, String>>,
}

impl BlockView {
    /// Checks bytes that a checksum has already vouched for; says what is wrong with them.
    pub fn new(bytes: AlignedVec) -> Result<Self, String> {
        check(archived(&bytes)?)?;
        Ok(Self { bytes, body_ends: OnceLock::new(), bodies: OnceLock::new() })
    }

    fn get(&self) -> &ArchivedBlock {
        #[expect(clippy::unwrap_used, reason = "`new` accessed the same bytes")]
        archived(&self.bytes).unwrap()
    }

    /// How many entries; one at least.
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.get().count.to_native() as usize
    }

    /// A way to read entries. Making it checks the archive again, so make one for many entries.
    pub fn rows(&self) -> Rows<'_> {
        Rows { block: self.get(), view: self }
    }

    /// Bytes that it holds in memory once its bodies have been asked for.
    pub fn memory(&self) -> usize {
        let bodies = usize::try_from(self.get().bodies_len.to_native()).unwrap_or(usize::MAX);
        self.bytes.len().saturating_add(bodies)
    }

    fn unpacked(&self) -> Result<&[u8], String> {
        let bodies = self.bodies.get_or_init(|| {
            let block = self.get();
            let len = usize::try_from(block.bodies_len.to_native()).map_err(|e| e.to_string())?;
            match block.codec {
                0 => Ok(block.bodies.to_vec()),
                1 => zstd::bulk::decompress(&block.bodies, len).map_err(|e| format!("zstd: {e}")),
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

fn archived(bytes: &[u8]) -> Result<&ArchivedBlock, String> {
    rkyv::access::<ArchivedBlock, Error>(bytes).map_err(|e| format!("no block: {e}"))
}

fn check(block: &ArchivedBlock) -> Result<(), String> {
    let count = block.count.to_native() as usize;
    let jids = block.jids.to_native() as usize;
    let texts = block.text_ends.len();
    if count == 0 || count > BLOCK_ENTRIES_MAX {
        return Err(format!("{count} entries in a block"));
    }
    let per_entry = [
        &block.seq,
        &block.at,
        &block.kind,
        &block.source,
        &block.flags,
        &block.retcode,
        &block.jid,
        &block.minion,
        &block.fun,
        &block.tag,
        &block.body_len,
    ];
    if !per_entry.iter().all(|c| c.holds(count))
        || ![&block.jid_time, &block.jid_pid].iter().all(|c| c.holds(jids))
    {
        return Err(format!("a column does not hold {count} values"));
    }
    let mut end = 0;
    for next in block.text_ends.iter().map(|e| e.to_native() as usize) {
        if next < end {
            return Err("text ends run backwards".to_owned());
        }
        end = next;
    }
    if end != block.texts.len() {
        return Err(format!("texts of {} bytes, expected {end}", block.texts.len()));
    }
    let below = |n: i64, bound: usize| usize::try_from(n).is_ok_and(|n| n < bound);
    let mut bodies: u64 = 0;
    for i in 0..count {
        let known = below(block.tag.get(i), texts)
            && below(block.minion.get(i), texts + 1)
            && below(block.fun.get(i), texts + 1)
            && below(block.jid.get(i), jids + 1)
            && u8::try_from(block.kind.get(i)).ok().and_then(Kind::from_number).is_some()
            && u8::try_from(block.source.get(i)).ok().and_then(Source::from_number).is_some();
        if !known {
            return Err(format!("entry {i} points outside its block"));
        }
        let len = u64::try_from(block.body_len.get(i)).map_err(|_| format!("entry {i} has no length"))?;
        bodies = bodies.saturating_add(len);
    }
    if !(0..jids).all(|i| block.jid_time.get(i) >= 0 || below(-1 - block.jid_time.get(i), texts)) {
        return Err("a jid points outside its block".to_owned());
    }
    // One entry at most is larger than a block, and then it is alone.
    let most = (BLOCK_RAW_BYTES.max(ENTRY_BYTES_MAX) + crate::limits::WIRE_FRAME_BYTES_MAX) as u64;
    if bodies != block.bodies_len.to_native() || bodies > most {
        return Err(format!("bodies of {bodies} bytes, expected {}", block.bodies_len));
    }
    Ok(())
}

/// The entries of a block.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    block: &'a ArchivedBlock,
    view: &'a BlockView,
}

impl<'a> Rows<'a> {
    /// How many entries; one at least.
    #[expect(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.block.count.to_native() as usize
    }

    /// The entry's place in the log.
    pub fn seq(&self, i: usize) -> SeqNo {
        let gap = u64::try_from(self.block.seq.get(i)).unwrap_or(0);
        SeqNo(self.block.first_seq.to_native().saturating_add(gap).saturating_add(i as u64))
    }

    /// When it arrived.
    pub fn at(&self, i: usize) -> Micros {
        Micros(self.block.at.get(i))
    }

    /// What it is.
    pub fn kind(&self, i: usize) -> Kind {
        u8::try_from(self.block.kind.get(i)).ok().and_then(Kind::from_number).unwrap_or(Kind::Event)
    }

    /// The door it came by.
    pub fn source(&self, i: usize) -> Source {
        u8::try_from(self.block.source.get(i)).ok().and_then(Source::from_number).unwrap_or(Source::Bus)
    }

    /// Small facts.
    pub fn flags(&self, i: usize) -> Flags {
        Flags(u8::try_from(self.block.flags.get(i)).unwrap_or(0))
    }

    /// A return's exit code.
    pub fn retcode(&self, i: usize) -> i64 {
        self.block.retcode.get(i)
    }

    /// The jid's key.
    pub fn jid_key(&self, i: usize) -> Option<JidKey> {
        let at = self.block.jid.index(i).checked_sub(1)?;
        let time = self.block.jid_time.get(at);
        if time < 0 {
            return Some(JidKey::of(self.text_str(usize::try_from(-1 - time).ok()?)));
        }
        let pid = u32::try_from(self.block.jid_pid.get(at) - 1).ok();
        Some(JidKey::from_time(Micros(time), pid))
    }

    /// The jid's text; empty for none.
    pub fn jid(&self, i: usize) -> String {
        let Some(at) = self.block.jid.index(i).checked_sub(1) else { return String::new() };
        let time = self.block.jid_time.get(at);
        if time < 0 {
            return usize::try_from(-1 - time).map(|t| self.text_str(t).to_owned()).unwrap_or_default();
        }
        self.jid_key(i).and_then(JidKey::text).unwrap_or_default()
    }

    /// The minion id; empty for none.
    pub fn minion(&self, i: usize) -> &'a str {
        self.block.minion.index(i).checked_sub(1).map_or("", |t| self.text_str(t))
    }

    /// The function; empty for none.
    pub fn fun(&self, i: usize) -> &'a str {
        self.block.fun.index(i).checked_sub(1).map_or("", |t| self.text_str(t))
    }

    /// The tag, written out.
    pub fn tag(&self, i: usize) -> Vec<u8> {
        let shape = self.text(self.block.tag.index(i));
        if let Some((&LITERAL, tag)) = shape.split_first() {
            return tag.to_vec();
        }
        let mut tag = Vec::with_capacity(shape.len() + 40);
        for &b in shape {
            match b {
                JID_MARK => tag.extend_from_slice(self.jid(i).as_bytes()),
                MINION_MARK => tag.extend_from_slice(self.minion(i).as_bytes()),
                b => tag.push(b),
            }
        }
        tag
    }

    /// The number of the tag's shape, and the tag itself if all entries of that shape share it.
    pub fn shape(&self, i: usize) -> (usize, Option<&'a [u8]>) {
        let at = self.block.tag.index(i);
        let shape = self.text(at);
        let tag = match shape.split_first() {
            Some((&LITERAL, tag)) => Some(tag),
            _ if shape.iter().any(|&b| b <= MINION_MARK) => None,
            _ => Some(shape),
        };
        (at, tag)
    }

    /// The body's bytes as received; says what is wrong if they cannot be unpacked.
    pub fn body(&self, i: usize) -> Result<&'a [u8], String> {
        let ends = self.view.body_ends.get_or_init(|| {
            let mut end = 0;
            (0..self.len())
                .map(|i| {
                    end += self.block.body_len.index(i);
                    end
                })
                .collect()
        });
        let end = |i: usize| ends.get(i).copied().unwrap_or(0);
        let from = i.checked_sub(1).map_or(0, end);
        self.view.unpacked()?.get(from..end(i)).ok_or_else(|| "a body lies outside its block".to_owned())
    }

    /// Bytes of the body.
    pub fn body_len(&self, i: usize) -> usize {
        self.block.body_len.index(i)
    }

    /// Does the block speak of this minion or function at all?
    pub fn knows(&self, text: &str) -> bool {
        (0..self.block.text_ends.len()).any(|at| self.text(at) == text.as_bytes())
    }

    fn text(&self, at: usize) -> &'a [u8] {
        let end = |i: usize| self.block.text_ends.get(i).map_or(0, |e| e.to_native() as usize);
        let from = at.checked_sub(1).map_or(0, end);
        self.block.texts.get(from..end(at)).unwrap_or_default()
    }

    fn text_str(&self, at: usize) -> &'a str {
        std::str::from_utf8(self.text(at)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let meta = (0_u8..9, 0_u8..5, 0_u8..16, any::<i64>(), any::<i64>(), 0_u64..1000);
        (meta, jid, minion, 0_u8..4, "[a-z.]{0,8}", prop::collection::vec(any::<u8>(), 0..80)).prop_map(
            |((kind, source, flags, at, retcode, gap), jid, minion, form, fun, body)| {
                let tag = match form {
                    0 => format!("salt/job/{jid}/ret/{minion}").into_bytes(),
                    1 => format!("{minion}/{jid}/{minion}").into_bytes(),
                    2 => body.clone(),
                    _ => Vec::new(),
                };
                Owned { kind, source, flags, at, tag, jid, minion, fun, retcode, body, gap }
            },
        )
    }

    proptest! {
        #[test]
        fn a_block_gives_back_every_entry_byte_for_byte(entries in prop::collection::vec(any_entry(), 1..60)) {
            let mut builder = BlockBuilder::default();
            let mut seq = 5;
            let mut seqs = Vec::new();
            for e in &entries {
                seq += 1 + e.gap;
                seqs.push(SeqNo(seq));
                builder.push(SeqNo(seq), &e.entry());
            }
            let view = BlockView::new(builder.finish(&mut Packer::new().unwrap()).unwrap()).unwrap();
            prop_assert_eq!(view.len(), entries.len());
            let rows = view.rows();
            for (i, e) in entries.iter().enumerate() {
                prop_assert_eq!(rows.seq(i), seqs[i]);
                let (tag, jid) = (rows.tag(i), rows.jid(i));
                let back = Entry {
                    kind: rows.kind(i), source: rows.source(i), flags: rows.flags(i), at: rows.at(i),
                    tag: &tag, jid: &jid, minion: rows.minion(i), fun: rows.fun(i),
                    retcode: rows.retcode(i), body: rows.body(i).unwrap(),
                };
                prop_assert_eq!(back, e.entry());
                prop_assert_eq!(rows.jid_key(i), (!e.jid.is_empty()).then(|| JidKey::of(&e.jid)));
            }
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_without_panic(at in 0_usize..2000, to in any::<u8>()) {
            let mut builder = BlockBuilder::default();
            for i in 0..20_u64 {
                let jid = format!("2026112103095550{i:04}");
                let tag = format!("salt/job/{jid}/ret/web{i}");
                let body = vec![b'x'; 40];
                builder.push(SeqNo(i + 1), &Entry {
                    kind: Kind::Return, source: Source::Bus, flags: Flags::ON_BUS, at: Micros(1), tag: tag.as_bytes(),
                    jid: &jid, minion: "web", fun: "test.ping", retcode: 0, body: &body,
                });
            }
            let mut bytes = builder.finish(&mut Packer::new().unwrap()).unwrap();
            let at = at % bytes.len();
            bytes.as_mut_slice()[at] = to;
            if let Ok(view) = BlockView::new(bytes) {
                let rows = view.rows();
                for i in 0..view.len() {
                    let _ = (rows.seq(i), rows.tag(i), rows.jid(i), rows.minion(i), rows.fun(i), rows.body(i).is_ok());
                }
            }
        }
    }

    #[test]
    fn returns_of_one_job_share_one_shape() {
        let mut builder = BlockBuilder::default();
        for i in 0..100_u64 {
            let tag = format!("salt/job/20261121030955505683/ret/web{i}");
            let minion = format!("web{i}");
            builder.push(
                SeqNo(i + 1),
                &Entry {
                    kind: Kind::Return,
                    source: Source::Bus,
                    flags: Flags::ON_BUS,
                    at: Micros(1),
                    tag: tag.as_bytes(),
                    jid: "20261121030955505683",
                    minion: &minion,
                    fun: "test.ping",
                    retcode: 0,
                    body: b"\x80",
                },
            );
        }
        assert_eq!(builder.texts.ends.len(), 102, "100 minions, one function, one shape");
    }
}
