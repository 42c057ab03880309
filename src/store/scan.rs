//! Walking over events backwards, past every block in which nothing can pass.

use std::collections::HashMap;
use std::sync::Arc;

use super::Shared;
use super::block::{BlockView, Rows};
use super::class::Class;
use super::error::StoreError;
use super::read::{StoredEntry, stored};
use super::segment::Segment;
use crate::model::{EventFilter, SeqNo};

/// A walk over a class from its end to its beginning.
pub(super) struct Backwards<'a> {
    shared: &'a Shared,
    segments: Vec<Arc<Segment>>,
    current: Option<(Arc<Segment>, u32)>,
    block: Option<(Arc<Segment>, Arc<BlockView>)>,
    /// Entries of `block` that pass, the latest last: their numbers and their places in it.
    passing: Vec<(SeqNo, usize)>,
}

impl<'a> Backwards<'a> {
    pub(super) fn new(shared: &'a Shared, class: Class) -> Self {
        Self { shared, segments: shared.segments(class), current: None, block: None, passing: Vec::new() }
    }

    /// The number of the next event that passes.
    pub(super) fn peek(&mut self, filter: &EventFilter, before: SeqNo) -> Result<Option<SeqNo>, StoreError> {
        loop {
            if let Some((seq, _)) = self.passing.last() {
                return Ok(Some(*seq));
            }
            let (segment, number) = if let Some((segment, after)) = self.current.take() {
                match after.checked_sub(1) {
                    Some(number) => (segment, number),
                    None => continue,
                }
            } else {
                let Some(segment) = self.segments.pop() else { return Ok(None) };
                let blocks = self.shared.ready(&segment)?.blocks().map_or(0, |blocks| blocks.metas().len());
                self.current = Some((segment, u32::try_from(blocks).unwrap_or(u32::MAX)));
                continue;
            };
            self.current = Some((segment.clone(), number));
            let ready = self.shared.ready(&segment)?;
            let meta = ready.blocks().and_then(|blocks| blocks.metas().get(number as usize)).copied();
            drop(ready);
            let worth = meta.is_some_and(|m| m.first_seq < before && filter.allows_span(m.at_min, m.at_max));
            if !worth {
                continue;
            }
            if let Some(view) = self.shared.block(&segment, number)? {
                self.passing = passing(view.rows(), view.len(), filter, before);
                self.block = Some((segment, view));
            }
        }
    }

    /// The event that [`Backwards::peek`] found.
    pub(super) fn take(&mut self) -> Result<Option<StoredEntry>, StoreError> {
        let (Some((segment, view)), Some((_, at))) = (&self.block, self.passing.pop()) else {
            return Ok(None);
        };
        stored(segment, view.rows(), at, true).map(Some)
    }
}

/// The entries of a block that pass. A tag's shape that needs no filling in is matched once for the block.
fn passing(rows: Rows<'_>, len: usize, filter: &EventFilter, before: SeqNo) -> Vec<(SeqNo, usize)> {
    if filter.minion.as_deref().is_some_and(|minion| !rows.knows(minion)) {
        return Vec::new();
    }
    let mut shapes: HashMap<usize, bool> = HashMap::new();
    (0..len)
        .filter(|&at| rows.seq(at) < before && filter.allows(rows.flags(at), rows.at(at), rows.minion(at)))
        .filter(|&at| {
            let Some(glob) = &filter.tag else { return true };
            match rows.shape(at) {
                (shape, Some(tag)) => *shapes.entry(shape).or_insert_with(|| glob.matches_bytes(tag)),
                (_, None) => glob.matches_bytes(&rows.tag(at)),
            }
        })
        .map(|at| (rows.seq(at), at))
        .collect()
}
