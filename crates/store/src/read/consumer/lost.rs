//! Entries that retention drops before a consumer has processed them.

use std::sync::Arc;

use super::record::LostEntries;
use super::{Consumers, State};
use crate::error::StoreError;
use crate::segment::{Segment, with_same_numbers};
use crate::settings::Save;
use saltcellar_model::SeqNo;

/// A note that a consumer loses entries.
pub(crate) struct NotedLoss {
    consumer: String,
    before: Option<LostEntries>,
    noted: LostEntries,
    entries: u64,
    is_saved: bool,
}

impl Consumers {
    /// Notes that a segment is about to be dropped, for the consumers that have not processed all
    /// of it. The note is on disk before the segment is dropped, so a crash between loses no gap;
    /// it can leave the gap record of a segment that is dropped later. A batch that is being read
    /// meanwhile may miss its entries, and is discarded because of the note.
    pub(crate) fn note_lost(&self, segment: &Arc<Segment>) -> Vec<NotedLoss> {
        self.note_lost_of(segment, self.behind(segment))
    }

    /// The consumers that have not processed all of a segment, and their cursors.
    pub(super) fn behind(&self, segment: &Segment) -> Vec<(String, SeqNo)> {
        let totals = segment.totals();
        let state = self.state.lock();
        let records = state.list.values().map(|consumer| &consumer.record);
        let behind = records.filter(|record| {
            totals.entries > 0
                && record.cursor <= totals.last_seq
                && record.filter.allows_class(&segment.class_name)
        });
        // Names and cursors only: the log is read without the lock.
        behind
            .map(|record| (record.name.clone(), record.cursor))
            .collect()
    }

    /// As [`Consumers::note_lost`], for consumers that were [`Consumers::behind`] a moment ago.
    pub(super) fn note_lost_of(
        &self,
        segment: &Arc<Segment>,
        behind: Vec<(String, SeqNo)>,
    ) -> Vec<NotedLoss> {
        let noted = behind
            .into_iter()
            .filter_map(|(name, cursor)| self.note_lost_by(segment, name, cursor));
        noted.collect()
    }

    /// Notes what one consumer loses, whose cursor was here a moment ago.
    fn note_lost_by(
        &self,
        segment: &Arc<Segment>,
        name: String,
        mut cursor: SeqNo,
    ) -> Option<NotedLoss> {
        let totals = segment.totals();
        let (fresh, mut state) = loop {
            let found = with_same_numbers(|| self.entries_since(segment, cursor))
                .ok()
                .flatten();
            // Otherwise its index or its block is unreadable.
            let (first, entries) = found.unwrap_or((cursor.max(segment.first_seq), totals.entries));
            let fresh = LostEntries {
                first,
                last: totals.last_seq,
                entries,
            };

            let mut state = self.state.lock();
            // The consumer may have been deleted meanwhile.
            let now = state.of(&name).ok()?.record.cursor;
            // Or its cursor may have moved. A gap before it would never end, because nothing can
            // acknowledge it. One at the cursor might have the number of an event of another class, which
            // would be acknowledged with it.
            if now > fresh.last {
                return None;
            }
            if now == cursor {
                break (fresh, state);
            }
            cursor = now;
        };

        let consumer = state.of(&name).ok()?;
        // Joined with an earlier gap: one gap record then covers both.
        let before = consumer.record.lost;
        let lost = before.map_or(fresh, |known| known.joined(fresh));
        // A gap record that was delivered did not have these entries.
        consumer.lost_reported = false;
        let saved = state.change(&name, Save::Durable, |record| record.lost = Some(lost));
        if let Err(error) = &saved {
            // On a full disk the drop makes room: the note is saved after it.
            tracing::debug!(consumer = name, %error, "gap of a consumer not saved before the drop");
            // In memory at least, because a batch that is being read must be discarded.
            if let Ok(consumer) = state.of(&name) {
                consumer.record.lost = Some(lost);
            }
        }
        drop(state);

        Some(NotedLoss {
            consumer: name,
            before,
            noted: lost,
            entries: fresh.entries,
            is_saved: saved.is_ok(),
        })
    }

    /// Saves and reports the notes if the segment was dropped, otherwise takes them back.
    pub(crate) fn settle_lost(&self, noted: Vec<NotedLoss>, is_dropped: bool) {
        for NotedLoss {
            consumer: name,
            before,
            noted,
            entries,
            is_saved,
        } in noted
        {
            let mut state = self.state.lock();
            let Ok(consumer) = state.of(&name) else {
                continue;
            };
            if !is_dropped {
                // Only if nothing was noted on top of it, as by a later segment.
                if consumer.record.lost == Some(noted) {
                    consumer.record.lost = before;
                    Self::save_lost(&mut state, &name);
                }
                continue;
            }

            // Only now: a segment that stays has lost nothing.
            self.metrics.consumer_gaps.add(1);
            self.metrics.consumer_entries_lost.add(entries);
            tracing::warn!(
                consumer = name,
                entries,
                last = noted.last.0,
                "retention deleted entries that a consumer had not processed: `saltcellar consumers show NAME` shows how far it is behind; raise `keep` in `store.classes`, or enlarge the disk"
            );
            if !is_saved {
                Self::save_lost(&mut state, &name);
            }
        }
    }

    fn save_lost(state: &mut State, name: &str) {
        if let Err(error) = state.change(name, Save::Durable, |_| ()) {
            tracing::error!(consumer = name, %error, "cannot save a consumer's gap, a restart may not report it");
        }
    }

    /// The first entry of a segment from a position on, and the number of entries from there on.
    fn entries_since(
        &self,
        segment: &Arc<Segment>,
        from: SeqNo,
    ) -> Result<Option<(SeqNo, u64)>, StoreError> {
        let (block, later) = {
            // The index is released before the block is read.
            let ready = self.log.blocks.indexes().ready(segment)?;
            let metas = ready.blocks().metas();
            let block = metas.partition_point(|meta| meta.last_seq < from);
            (
                block,
                metas
                    .iter()
                    .skip(block + 1)
                    .map(|meta| u64::from(meta.count))
                    .sum::<u64>(),
            )
        };

        let Some(view) = self
            .log
            .blocks
            .head(segment, u32::try_from(block).unwrap_or(u32::MAX))?
        else {
            return Ok(None);
        };
        // The first entry lies within a block, so its rows are needed for an exact number.
        let rows = view.rows();
        let at = (0..rows.len()).find(|at| rows.seq(*at) >= from);
        Ok(at.map(|at| (rows.seq(at), later + (rows.len() - at) as u64)))
    }
}
