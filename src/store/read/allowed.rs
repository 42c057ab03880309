//! What limits leave of the blocks of a segment, so that a limited reader passes over the rest as an unlimited one passes over blocks without
//! a match.
//!
//! # Invariant
//!
//! For a limited reader, the summary of a block is that of its allowed entries. It is made when the first such reader reads the block, whatever
//! that one searches for. So the work of a search depends on allowed entries, and on the number of others, but on nothing in them.
//!
//! The ids of a segment are tested once per limit, so that blocks without an allowed minion are not even read for that.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cache::{Cache, Cached};
use crate::model::ReadLimits;
use crate::store::StoreInner;
use crate::store::error::StoreError;
use crate::store::index::{MinionSelection, TagTemplates};
use crate::store::log::block::{FREE_JID, Rows};
use crate::store::log::builder::distinct;
use crate::store::segment::{Ready, Segment};

/// By limits and [`Segment::id`].
pub(in crate::store) type AllowedCache = Cache<(Arc<ReadLimits>, u64), AllowedBlocks>;

/// The summary of a block that was not read yet.
const UNKNOWN: u64 = u64::MAX;

/// The blocks of a segment under limits: the template bits of the allowed entries of each, as in [`crate::store::index::summary`]; zero for a
/// block without any.
#[derive(Debug)]
pub(in crate::store) struct AllowedBlocks(Box<[AtomicU64]>);

impl Cached for AllowedBlocks {
    fn memory(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl AllowedBlocks {
    /// What is known of earlier blocks, with room for `count`.
    fn extended(known: Option<&Self>, count: usize) -> Self {
        let bits = |at: usize| known.and_then(|known| known.bits(at)).unwrap_or(UNKNOWN);
        Self((0..count).map(|at| AtomicU64::new(bits(at))).collect())
    }

    /// The template bits of the allowed entries of a block; `None` if it was not read yet.
    pub(in crate::store) fn bits(&self, block: usize) -> Option<u64> {
        let bits = self.0.get(block)?.load(Ordering::Relaxed);
        (bits != UNKNOWN).then_some(bits)
    }

    fn set(&self, block: usize, bits: u64) {
        if let Some(known) = self.0.get(block) {
            known.store(bits, Ordering::Relaxed);
        }
    }

    /// Records the allowed rows of a block that was read.
    pub(in crate::store) fn learn(
        &self,
        block: u32,
        rows: Rows<'_>,
        allowed: &[bool],
        templates: &TagTemplates,
    ) {
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
    }
}

impl StoreInner {
    /// What is known of a segment under limits; and the number of ids that were tested for it.
    pub(in crate::store) fn allowed_blocks(
        &self,
        segment: &Arc<Segment>,
        limits: &Arc<ReadLimits>,
    ) -> Result<(Arc<AllowedBlocks>, u64), StoreError> {
        let ready = self.ready(segment)?;
        let count = ready.blocks().metas().len();
        // A growing segment's ids are tested again when it has twice as many blocks: a search of the newest blocks needs no test of ids.
        let room = match ready {
            Ready::Memory(_) => count.next_power_of_two().max(16),
            Ready::Sled(_) => count,
        };
        drop(ready);

        let key = (limits.clone(), segment.id);
        let known = self.allowed.get(&key);
        if let Some(known) = known.as_ref().filter(|known| known.0.len() >= count) {
            return Ok((known.clone(), 0));
        }

        let blocks = AllowedBlocks::extended(known.as_deref(), room);
        let tested = Cell::new(0);
        // The index has no entry for blocks of entries without a minion.
        if let Some(glob) = limits.minions.as_ref().filter(|glob| !glob.matches("")) {
            let literal = glob.as_literal();
            let is_allowed = |minion: &[u8]| {
                tested.set(tested.get() + 1);
                glob.matches_bytes(minion)
            };
            let selection = match &literal {
                Some(minion) => MinionSelection::Is(minion.as_bytes()),
                None => MinionSelection::Passing(&is_allowed),
            };
            let has_allowed = self.query_index(
                segment,
                |index| index.blocks_with(selection),
                |index| index.blocks_with(selection),
            )?;
            for (block, _) in has_allowed.iter().enumerate().filter(|(_, has)| !**has) {
                blocks.set(block, 0);
            }
        }
        let blocks = Arc::new(blocks);
        self.allowed.put(key, blocks.clone());
        Ok((blocks, tested.get()))
    }
}
