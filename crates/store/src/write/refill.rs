//! Refills the duplicate memory at start.
//!
//! Reads the newest entries of all classes, up to the window of the memory or
//! [`DEDUPE_REFILL_BYTES`], and replays them in the order of their sequence numbers. The result is
//! independent of the classes of the entries. Blocks are selected from the indexes, newest first.
//! No other block is read, and no index of a segment older than the window.
//!
//! # Invariant
//!
//! An error here does not prevent the start. An unreadable block is logged, counted and skipped;
//! the only consequence is that duplicates of its entries are not detected.

use std::sync::Arc;

use super::dedupe::Dedupe;
use crate::class::{Class, Classifier};
use crate::error::StoreError;
use crate::log::block::Rows;
use crate::log::file::BlockMeta;
use crate::read::LogReader;
use crate::segment::Segment;
use crate::segment::open_indexes::OpenIndexes;
use crate::shares::{ShareState, Shares};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::DEDUPE_REFILL_BYTES;
use saltcellar_base::metrics::Metrics;
use saltcellar_model::{Entry, Fingerprints, Flags, Kind, SeqNo, Source};
use saltcellar_wire::salt_event::fingerprints_of;

/// A block selected for replay.
struct Chosen {
    segment: Arc<Segment>,
    number: u32,
    meta: BlockMeta,
}

/// The fields of an entry that [`Dedupe::check`] needs.
struct Recent {
    seq: SeqNo,
    kind: Kind,
    source: Source,
    number: u64,
    flags: Flags,
    at: Micros,
    fingerprints: Fingerprints,
}

/// Replays the newest `window` entries into the duplicate memory and the classifier.
pub(crate) fn refill(
    log: &LogReader,
    window: usize,
    dedupe: &mut Dedupe,
    (classifier, shares, share_state): (&mut Classifier, &mut Shares, &ShareState),
    metrics: &Metrics,
) {
    let mut recent = Vec::new();

    // Oldest first, as the entries were stored: decisions of deduplication depend on the order.
    for Chosen {
        segment,
        number,
        meta,
    } in newest_blocks(log, window, metrics).into_iter().rev()
    {
        // Blocks of 256 KiB are cached on the way, which the first readers use.
        let read = match log.blocks.block(&segment, number) {
            Ok(Some(view)) => {
                let count = |class, entry: &Entry<'_>| shares.count(class, entry, share_state);
                take(view.rows(), classifier, count, &mut recent)
            }
            // Logged by `block`.
            Ok(None) => {
                metrics.blocks_unread_at_start.add(1);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = read {
            skipped(metrics, &segment, meta.offset, &error);
        }
    }
    // Blocks of different classes overlap.
    recent.sort_unstable_by_key(|recent| recent.seq);

    let surplus = recent.len().saturating_sub(window);

    // The blocks contain more entries than the window. The surplus would push out newer entries.
    for Recent {
        kind,
        source,
        number,
        flags,
        at,
        fingerprints,
        ..
    } in recent.into_iter().skip(surplus)
    {
        // The fingerprints stand for tag and body, so neither is copied.
        dedupe.check(
            &Entry {
                flags,
                number,
                ..Entry::new(kind, source, at, b"")
            },
            fingerprints,
        );
        // They are on disk, so nothing of it is ever taken back.
        dedupe.keep_all();
    }
}

fn take(
    rows: Rows<'_>,
    classifier: &mut Classifier,
    mut count: impl FnMut(Class, &Entry<'_>),
    to: &mut Vec<Recent>,
) -> Result<(), String> {
    for n in 0..rows.len() {
        let (tag, jid) = (rows.tag(n), rows.jid(n));
        let entry = rows.entry(n, &tag, &jid, rows.body(n)?);
        // The classifier also learns the classes of recent jobs here; later events of these jobs
        // may name no function.
        count(classifier.class_of(&entry), &entry);

        let Entry {
            kind,
            source,
            number,
            flags,
            at,
            ..
        } = entry;

        to.push(Recent {
            seq: rows.seq(n),
            kind,
            source,
            number,
            flags,
            at,
            fingerprints: fingerprints_of(&entry),
        });
    }
    Ok(())
}

fn skipped(metrics: &Metrics, segment: &Segment, offset: u64, error: &str) {
    // Not fatal, but a number of this metric explains duplicates after a start.
    metrics.blocks_unread_at_start.add(1);
    let path = segment.log().path().display();
    tracing::error!(%path, offset, error, "cannot read a block at start, duplicates of its entries are not detected: run `saltcellar store verify`");
}

/// The blocks with the newest `window` entries of all classes, limited to [`DEDUPE_REFILL_BYTES`].
/// Blocks of different classes overlap: the blocks with `window` entries are followed by all other
/// blocks with entries as new.
fn newest_blocks(log: &LogReader, window: usize, metrics: &Metrics) -> Vec<Chosen> {
    let mut walks: Vec<NewestBlocks> = log
        .classes
        .all()
        .map(|class| NewestBlocks::new(log.segments.of(class)))
        .collect();

    let mut chosen = Vec::new();
    let mut entries = 0;
    let mut bytes = 0;
    // A lower bound of the sequence numbers in the window.
    let mut oldest = SeqNo(u64::MAX);
    loop {
        // The class whose next block is the newest one.
        let newest = walks
            .iter_mut()
            .filter(|walk| walk.newest.is_some())
            .max_by_key(|walk| walk.newest);
        let Some(walk) = newest else { break };

        // Enough entries, and no remaining block can contain a newer entry; or enough bytes,
        // whatever they contain.
        if (entries >= window && walk.newest < Some(oldest)) || bytes >= DEDUPE_REFILL_BYTES {
            break;
        }

        match walk.step(log.blocks.indexes()) {
            Ok(Some(block)) => {
                if entries < window {
                    oldest = oldest.min(block.meta.first_seq);
                }
                entries += block.meta.count as usize;
                bytes += u64::from(block.meta.len);
                chosen.push(block);
            }
            // A segment was opened; its blocks are compared in the next pass.
            Ok(None) => {}
            Err((segment, error)) => skipped(metrics, &segment, 0, &error.to_string()),
        }
    }
    chosen
}

/// A walk over the blocks of a class, newest first.
struct NewestBlocks {
    /// Segments not visited yet, oldest first.
    segments: Vec<Arc<Segment>>,
    /// The current segment and its remaining blocks, oldest first.
    current: Option<(Arc<Segment>, Vec<BlockMeta>)>,
    /// Upper bound of the remaining sequence numbers; `None` at the end.
    newest: Option<SeqNo>,
}

impl NewestBlocks {
    fn new(segments: Vec<Arc<Segment>>) -> Self {
        let mut walk = Self {
            segments,
            current: None,
            newest: None,
        };
        walk.update_newest();
        walk
    }

    fn update_newest(&mut self) {
        // An unopened segment is bounded by its last number, without its index.
        let in_block = self
            .current
            .as_ref()
            .and_then(|(_, blocks)| Some(blocks.last()?.last_seq));
        self.newest = in_block.or_else(|| Some(self.segments.last()?.totals().last_seq));
    }

    /// The next block; `None` if the step only loaded the blocks of the next segment.
    fn step(
        &mut self,
        indexes: &OpenIndexes,
    ) -> Result<Option<Chosen>, (Arc<Segment>, StoreError)> {
        let next = match &mut self.current {
            Some((segment, blocks)) if !blocks.is_empty() => {
                let number = u32::try_from(blocks.len() - 1).expect("block numbers are 32 bits");
                Ok(blocks.pop().map(|meta| Chosen {
                    segment: segment.clone(),
                    number,
                    meta,
                }))
            }
            _ => match self.segments.pop() {
                Some(segment) => self
                    .open(indexes, &segment)
                    .map(|()| None)
                    .map_err(|error| (segment, error)),
                None => Ok(None),
            },
        };

        self.update_newest();
        next
    }

    /// Loads the blocks of a segment from its index.
    fn open(&mut self, indexes: &OpenIndexes, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let blocks = indexes.ready(segment)?.blocks().metas().to_vec();
        self.current = Some((segment.clone(), blocks));
        Ok(())
    }
}
