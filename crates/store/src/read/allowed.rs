//! What limits leave of the blocks of a segment. A limited reader passes over the rest as an
//! unlimited reader passes over blocks without a match.
//!
//! # Invariant
//!
//! For a limited reader, the summary of a block covers its allowed entries only. It is made when
//! the first such reader reads the block, whatever that reader searches for. Therefore the work of
//! a search depends on allowed entries, and on the number of other entries, but not on their
//! contents.
//!
//! Which entries of a block are allowed is also kept: a search tests the limits of each entry once.
//! A search for the events of a job learns this for all blocks of the segments that may hold the
//! job, before it looks the job up. A job without an allowed event is then passed over like a job
//! that does not exist.
//!
//! The ids of a segment are tested once per limit, and blocks without an allowed minion are not
//! even read. The results are kept for searches by a pattern, which test all ids again.
//!
//! # Jobs
//!
//! Whether a reader may know a job follows from its entries, of which loads name minions in their bodies. What each entry of a block is for its
//! job is also learnt for the whole block, and for all blocks of the segments that may hold a job before a reader is told that there is none.
//! Therefore a job that the reader may not know costs what an absent job costs, and no entry of it is looked at for that.

use std::cell::{Cell, RefCell};
use std::ops::BitOrAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::cache::{Cache, Cached};
use crate::error::StoreError;
use crate::index::{EntryPosition, MinionSelection, TagTemplates};
use crate::log::block::Rows;
use crate::log::column::distinct;
use crate::log::columns::FREE_JID;
use crate::segment::open_indexes::OpenIndexes;
use crate::segment::{Ready, Segment};
use saltcellar_base::limits::ALLOWED_BLOCKS_BYTES;
use saltcellar_model::ReadLimits;

/// What is known under the limits of the last readers.
#[derive(Debug)]
pub(crate) struct AllowedCache {
    indexes: Arc<OpenIndexes>,
    /// By limits and [`Segment::numbering`].
    known: Cache<(Arc<ReadLimits>, u64), AllowedBlocks>,
}

/// The summary of a block that was not read yet.
const UNKNOWN: u64 = u64::MAX;

/// The blocks of a segment under limits.
#[derive(Debug)]
pub(crate) struct AllowedBlocks {
    /// See [`Segment::numbering`].
    numbering: u64,
    blocks: Box<[AllowedBlock]>,
    names: AllowedNames,
    memory: usize,
}

/// Which names of an index belong to allowed minions.
#[derive(Debug, Default)]
struct AllowedNames {
    /// A sealed index numbers its names differently from one in memory.
    is_sealed: bool,
    /// Those with greater numbers were not tested.
    count: usize,
    allowed: Option<Bits>,
}

impl AllowedNames {
    fn get(&self, is_sealed: bool, number: usize) -> Option<bool> {
        let is_known = is_sealed == self.is_sealed && number < self.count;
        let allowed = self.allowed.as_ref().filter(|_| is_known)?;
        Some(allowed.has(number))
    }
}

#[derive(Debug)]
struct AllowedBlock {
    /// The template bits of the allowed entries, as in [`crate::index::summary`]; zero without any.
    templates: AtomicU64,
    /// Whether each entry is allowed.
    rows: OnceLock<Arc<Bits>>,
    roles: OnceLock<Arc<Roles>>,
}

/// A bit of each entry of a block.
#[derive(Debug)]
struct Bits(Box<[u64]>);

impl Bits {
    fn of(bools: impl Iterator<Item = bool>) -> Self {
        let mut words: Vec<u64> = Vec::new();
        for (at, is) in bools.enumerate() {
            if at % 64 == 0 {
                words.push(0);
            }
            if let Some(word) = words.last_mut() {
                *word |= u64::from(is) << (at % 64);
            }
        }
        Self(words.into())
    }

    fn has(&self, row: usize) -> bool {
        let word = self.0.get(row / 64).copied().unwrap_or(0);
        word >> (row % 64) & 1 == 1
    }
}

/// What an entry is for its job, as far as the reader may know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// The reader sees it as an entry of the job.
    pub(crate) is_part: bool,
    /// It names an allowed minion.
    pub(crate) names_minion: bool,
    /// It names the job's function, which is allowed.
    pub(crate) names_function: bool,
}

impl BitOrAssign for Role {
    fn bitor_assign(&mut self, other: Self) {
        self.is_part |= other.is_part;
        self.names_minion |= other.names_minion;
        self.names_function |= other.names_function;
    }
}

/// The roles of the entries of a block.
#[derive(Debug)]
pub(crate) struct Roles {
    part: Bits,
    minion: Bits,
    function: Bits,
}

impl Roles {
    pub(crate) fn new(roles: &[Role]) -> Self {
        Self {
            part: Bits::of(roles.iter().map(|role| role.is_part)),
            minion: Bits::of(roles.iter().map(|role| role.names_minion)),
            function: Bits::of(roles.iter().map(|role| role.names_function)),
        }
    }

    pub(crate) fn of(&self, row: usize) -> Role {
        Role {
            is_part: self.part.has(row),
            names_minion: self.minion.has(row),
            names_function: self.function.has(row),
        }
    }
}

impl Cached for AllowedBlocks {
    fn memory(&self) -> usize {
        self.memory
    }
}

impl AllowedBlocks {
    /// What is known of earlier blocks, with room for `count`, of about `entries` entries.
    fn extended(numbering: u64, known: Option<&Self>, count: usize, entries: usize) -> Self {
        let block = |at: usize| {
            let known = known.and_then(|known| known.blocks.get(at));
            let templates = known.map_or(UNKNOWN, |known| known.templates.load(Ordering::Relaxed));
            AllowedBlock {
                templates: AtomicU64::new(templates),
                rows: known.map(|known| known.rows.clone()).unwrap_or_default(),
                roles: known.map(|known| known.roles.clone()).unwrap_or_default(),
            }
        };

        let of_block = size_of::<AllowedBlock>()
            + size_of::<Bits>()
            + size_of::<Roles>()
            + 4 * size_of::<u64>();
        Self {
            numbering,
            blocks: (0..count).map(block).collect(),
            names: AllowedNames::default(),
            // Four bits of each entry.
            memory: count * of_block + entries / 2,
        }
    }

    /// Whether the blocks of the segment still have the numbers by which they are known here. True after a block was read: it is that block.
    pub(crate) fn is_of(&self, segment: &Segment) -> bool {
        self.numbering == segment.numbering()
    }

    /// The template bits of the allowed entries of a block; `None` if it was not read yet.
    pub(crate) fn bits(&self, block: usize) -> Option<u64> {
        let bits = self.blocks.get(block)?.templates.load(Ordering::Relaxed);
        (bits != UNKNOWN).then_some(bits)
    }

    /// Whether the minion with this name, and number in the index, is allowed.
    pub(crate) fn allows_name(
        &self,
        (is_sealed, number): (bool, Option<usize>),
        name: &[u8],
        limits: &ReadLimits,
    ) -> bool {
        let known = number.and_then(|number| self.names.get(is_sealed, number));
        known.unwrap_or_else(|| limits.allow_minion_bytes(name))
    }

    /// Whether each of the `len` entries of a block is allowed; `None` if it was not read yet.
    fn rows(&self, block: u32, len: usize) -> Option<Vec<bool>> {
        let bits = self.blocks.get(block as usize)?.rows.get()?;
        Some((0..len).map(|row| bits.has(row)).collect())
    }

    /// Whether an entry may be allowed.
    pub(crate) fn may_allow(&self, position: EntryPosition) -> bool {
        let Some(block) = self.blocks.get(position.block as usize) else {
            return true;
        };
        if block.templates.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let rows = block.rows.get();
        rows.is_none_or(|rows| rows.has(usize::from(position.at)))
    }

    /// Those of the first `count` blocks that may have an allowed entry, and were not read yet.
    pub(crate) fn unread(&self, count: usize) -> impl Iterator<Item = u32> {
        let is_unread = |block: &AllowedBlock| {
            block.rows.get().is_none() && block.templates.load(Ordering::Relaxed) != 0
        };
        let blocks = (0_u32..).zip(self.blocks.iter().take(count));
        blocks
            .filter(move |(_, block)| is_unread(block))
            .map(|(number, _)| number)
    }

    /// The roles of a block's entries; `None` if it was not read for them yet.
    pub(crate) fn roles(&self, block: u32) -> Option<Arc<Roles>> {
        self.blocks.get(block as usize)?.roles.get().cloned()
    }

    /// Those of the first `count` blocks that were not read for the roles of their entries yet.
    pub(crate) fn without_roles(&self, count: usize) -> Vec<u32> {
        let blocks = (0_u32..).zip(self.blocks.iter().take(count));
        let unread = blocks.filter(|(_, block)| block.roles.get().is_none());
        unread.map(|(number, _)| number).collect()
    }

    /// Records the roles of all entries of a block.
    pub(crate) fn learn_roles(&self, block: u32, roles: &Arc<Roles>) {
        // A block that is newer than this is learnt by the next search.
        if let Some(known) = self.blocks.get(block as usize) {
            known.roles.get_or_init(|| roles.clone());
        }
    }

    fn set(&self, block: usize, bits: u64) {
        if let Some(known) = self.blocks.get(block) {
            known.templates.store(bits, Ordering::Relaxed);
        }
    }

    /// Records the allowed rows of a block that was read.
    fn learn(&self, block: u32, rows: Rows<'_>, allowed: &[bool], templates: &TagTemplates) {
        let (texts, ends) = rows.texts();
        let of_allowed = |column: Vec<i64>| -> Vec<i64> {
            let kept = column.into_iter().zip(allowed).filter(|(_, is)| **is);
            kept.map(|(number, _)| number).collect()
        };

        let text = |at: usize| {
            let from = at.checked_sub(1).and_then(|n| ends.get(n)).copied();
            let end = ends.get(at).copied().unwrap_or(0);
            texts.get(from.unwrap_or(0)..end).unwrap_or_default()
        };
        let tags = distinct(&of_allowed(rows.tags()));
        let mut bits = tags
            .into_iter()
            .fold(0, |bits, at| bits | templates.listed_bit(text(at)));

        let times = rows.jid_times();
        let is_free = |jid: &i64| {
            let at = usize::try_from(jid - 1).ok();
            at.and_then(|at| times.get(at))
                .is_some_and(|time| *time < 0)
        };
        if of_allowed(rows.jids()).iter().any(is_free) {
            bits |= templates.listed_bit(FREE_JID);
        }
        self.set(block as usize, bits);
        if let Some(known) = self.blocks.get(block as usize) {
            known
                .rows
                .get_or_init(|| Arc::new(Bits::of(allowed.iter().copied())));
        }
    }
}

impl AllowedCache {
    pub(crate) fn new(indexes: Arc<OpenIndexes>) -> Self {
        let known = Cache::new(ALLOWED_BLOCKS_BYTES);
        Self { indexes, known }
    }

    /// Whether each entry of a block is allowed: as `known`, or as `test` finds, which is remembered.
    pub(crate) fn rows(
        &self,
        segment: &Arc<Segment>,
        number: u32,
        rows: Rows<'_>,
        known: &AllowedBlocks,
        test: impl FnOnce() -> Vec<bool>,
    ) -> Result<Vec<bool>, StoreError> {
        // The index was rebuilt since: the number meant another block.
        if !known.is_of(segment) {
            return Ok(test());
        }

        if let Some(allowed) = known.rows(number, rows.len()) {
            return Ok(allowed);
        }

        let allowed = test();
        let ready = self.indexes.ready(segment)?;
        known.learn(number, rows, &allowed, ready.templates());
        Ok(allowed)
    }

    /// What is known of a segment under limits, and the number of ids that were tested for it.
    pub(crate) fn blocks(
        &self,
        segment: &Arc<Segment>,
        limits: &Arc<ReadLimits>,
    ) -> Result<(Arc<AllowedBlocks>, u64), StoreError> {
        // Read before its index: the result must never be taken for what is known of a later
        // numbering.
        let numbering = segment.numbering();
        let ready = self.indexes.ready(segment)?;
        let count = ready.blocks().metas().len();
        // An active segment's ids are tested again when it has twice as many blocks: a search of the newest blocks needs no test of ids.
        let room = match ready {
            Ready::Memory(_) => count.next_power_of_two().max(16),
            Ready::Sealed(_) => count,
        };
        let entries: u64 = (ready.blocks().metas().iter())
            .map(|meta| u64::from(meta.count))
            .sum();
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        let is_sealed = matches!(ready, Ready::Sealed(_));
        drop(ready);

        let key = (limits.clone(), numbering);
        let known = self.known.get(&key);
        // Once it is sealed, its names have other numbers.
        let is_enough = |known: &&Arc<AllowedBlocks>| {
            known.blocks.len() >= count && known.names.is_sealed == is_sealed
        };
        if let Some(known) = known.as_ref().filter(is_enough) {
            return Ok((known.clone(), 0));
        }

        let entries = entries / count.max(1) * room;
        let mut blocks = AllowedBlocks::extended(numbering, known.as_deref(), room, entries);
        blocks.names.is_sealed = is_sealed;
        let tested = Cell::new(0);
        let names = RefCell::new(Vec::new());
        // The index contains no entry for blocks of entries without a minion.
        if let Some(glob) = limits.minions.as_ref().filter(|glob| !glob.matches("")) {
            let literal = glob.as_literal();
            let is_allowed = |number: Option<usize>, minion: &[u8]| {
                tested.set(tested.get() + 1);
                let is_allowed = glob.matches_bytes(minion);
                let mut names = names.borrow_mut();
                // An index that proves damaged is queried again, from its first name on.
                if number == Some(0) {
                    names.clear();
                }
                if number == Some(names.len()) {
                    names.push(is_allowed);
                }
                is_allowed
            };
            let selection = match &literal {
                Some(minion) => MinionSelection::Is(minion.as_bytes()),
                None => MinionSelection::Numbered(&is_allowed),
            };
            let (has_allowed, is_sealed) = self.indexes.query(
                segment,
                |index| (index.blocks_with(selection), false),
                |index| Ok((index.blocks_with(selection)?, true)),
            )?;
            let names = names.take();
            blocks.names = AllowedNames {
                is_sealed,
                count: names.len(),
                allowed: Some(Bits::of(names.into_iter())),
            };
            blocks.memory += blocks.names.count / 8;
            for (block, _) in has_allowed.iter().enumerate().filter(|(_, has)| !**has) {
                blocks.set(block, 0);
            }
        }
        let blocks = Arc::new(blocks);
        self.known.put(key, blocks.clone());
        Ok((blocks, tested.get()))
    }
}
