//! Refilling the duplicate memory at a start.
//!
//! The newest entries of all classes together are read again, up to the window of the memory or [`DEDUPE_REFILL_BYTES`], and judged in the order of their
//! sequence numbers, as if they had just come: what the memory knows then does not depend on the class that an entry is in.
//! Blocks are chosen by what the indexes say of them, newest first, so that a start reads no other block, and no index of a
//! segment that is older than the window.
//!
//! # Invariant
//!
//! Nothing here stops a start. A block that cannot be read is skipped, counted and named: what is lost is only that copies
//! of its entries are not recognised.

use std::sync::Arc;

use super::Shared;
use super::block::Rows;
use super::class::Classifier;
use super::dedupe::Dedupe;
use super::error::StoreError;
use super::log::BlockMeta;
use super::segment::Segment;
use crate::clock::Micros;
use crate::limits::DEDUPE_REFILL_BYTES;
use crate::model::{Entry, Flags, Kind, Prints, SeqNo, Source};
use crate::wire::salt_event::prints_of;

/// A block that is to be read again.
struct Chosen {
    segment: Arc<Segment>,
    number: u32,
    meta: BlockMeta,
}

/// What [`Dedupe::judge`] wants to know of an entry.
struct Recent {
    seq: SeqNo,
    kind: Kind,
    source: Source,
    flags: Flags,
    at: Micros,
    prints: Prints,
}

/// Lets the duplicate memory and the classifier see the newest `window` entries.
pub(super) fn refill(shared: &Shared, window: usize, dedupe: &mut Dedupe, classifier: &mut Classifier) {
    let mut recent = Vec::new();
    for Chosen { segment, number, meta } in newest_blocks(shared, window).into_iter().rev() {
        let read = match shared.block(&segment, number) {
            Ok(Some(view)) => take(view.rows(), classifier, &mut recent),
            // Counted and named where the damage was found.
            Ok(None) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = read {
            skipped(shared, &segment, meta.offset, &error);
        }
    }
    // Blocks of several classes overlap.
    recent.sort_unstable_by_key(|recent| recent.seq);
    let surplus = recent.len().saturating_sub(window);
    for Recent { kind, source, flags, at, prints, .. } in recent.into_iter().skip(surplus) {
        let (jid, minion, fun, retcode) = ("", "", "", 0);
        let entry = Entry { kind, source, flags, at, tag: b"", jid, minion, fun, retcode, body: b"" };
        dedupe.judge(&entry, prints);
        dedupe.keep_all();
    }
}

fn take(rows: Rows<'_>, classifier: &mut Classifier, to: &mut Vec<Recent>) -> Result<(), String> {
    for n in 0..rows.len() {
        let (kind, source, flags, at) = (rows.kind(n), rows.source(n), rows.flags(n), rows.at(n));
        let (tag, jid, minion, fun) = (rows.tag(n), rows.jid(n), rows.minion(n), rows.fun(n));
        let (retcode, body) = (rows.retcode(n), rows.body(n)?);
        let entry = Entry { kind, source, flags, at, tag: &tag, jid: &jid, minion, fun, retcode, body };
        classifier.class_of(&entry);
        to.push(Recent { seq: rows.seq(n), kind, source, flags, at, prints: prints_of(&entry) });
    }
    Ok(())
}

fn skipped(shared: &Shared, segment: &Segment, offset: u64, error: &str) {
    shared.metrics.blocks_unread_at_start.add(1);
    let path = segment.log().path().display();
    tracing::error!(%path, offset, error, "cannot read a block at start; copies of its entries will not be recognised");
}

/// The blocks with the newest `window` entries of all classes. Blocks of several classes overlap: those with `window` entries come
/// first, then all others that reach as far. Fewer if they are larger than [`DEDUPE_REFILL_BYTES`].
fn newest_blocks(shared: &Shared, window: usize) -> Vec<Chosen> {
    let mut walks: Vec<Walk> = shared.classes.all().map(|class| Walk::new(shared.segments(class))).collect();
    let (mut chosen, mut entries, mut bytes) = (Vec::new(), 0, 0);
    // No entry of the window is older.
    let mut oldest = SeqNo(u64::MAX);
    loop {
        let newest = walks.iter_mut().filter(|walk| walk.newest.is_some()).max_by_key(|walk| walk.newest);
        let Some(walk) = newest else { break };
        if (entries >= window && walk.newest < Some(oldest)) || bytes >= DEDUPE_REFILL_BYTES {
            break;
        }
        match walk.step(shared) {
            Ok(Some(block)) => {
                if entries < window {
                    oldest = oldest.min(block.meta.first_seq);
                }
                entries += block.meta.count as usize;
                bytes += u64::from(block.meta.len);
                chosen.push(block);
            }
            Ok(None) => {}
            Err((segment, error)) => skipped(shared, &segment, 0, &error.to_string()),
        }
    }
    chosen
}

/// A walk over the blocks of a class from its end to its beginning.
struct Walk {
    /// Those whose blocks are not known yet, the newest last.
    segments: Vec<Arc<Segment>>,
    /// The segment whose blocks are walked over, and those that are left, the newest last.
    current: Option<(Arc<Segment>, Vec<BlockMeta>)>,
    /// No entry that is left has a greater number; `None` at the end.
    newest: Option<SeqNo>,
}

impl Walk {
    fn new(segments: Vec<Arc<Segment>>) -> Self {
        let mut walk = Self { segments, current: None, newest: None };
        walk.look();
        walk
    }

    fn look(&mut self) {
        let in_block = self.current.as_ref().and_then(|(_, blocks)| Some(blocks.last()?.last_seq));
        self.newest = in_block.or_else(|| Some(self.segments.last()?.sums().last_seq));
    }

    /// The next block; none if it only found out which blocks the next segment has.
    fn step(&mut self, shared: &Shared) -> Result<Option<Chosen>, (Arc<Segment>, StoreError)> {
        let next = match &mut self.current {
            Some((segment, blocks)) if !blocks.is_empty() => {
                let number = u32::try_from(blocks.len() - 1).expect("the blocks of a segment have numbers");
                Ok(blocks.pop().map(|meta| Chosen { segment: segment.clone(), number, meta }))
            }
            _ => match self.segments.pop() {
                Some(segment) => self.open(shared, &segment).map(|()| None).map_err(|error| (segment, error)),
                None => Ok(None),
            },
        };
        self.look();
        next
    }

    /// Asks the index of a segment which blocks it has.
    fn open(&mut self, shared: &Shared, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let blocks = shared.ready(segment)?.blocks().map_or(Vec::new(), |blocks| blocks.metas().to_vec());
        self.current = Some((segment.clone(), blocks));
        Ok(())
    }
}
