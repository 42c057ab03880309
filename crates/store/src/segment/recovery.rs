//! Recovery of a log at start: damage is reported, valid frames are made durable, and a torn tail
//! is removed.

use crate::damage::{Damage, DamageList};
use crate::error::{StoreError, io_at};
use crate::log::frame::filler;
use crate::log::walk::{DamagedRange, Walked};
use crate::segment::Segment;
use saltcellar_base::metrics::Metrics;

/// Reports and counts damage. In an `active` log an unfinished tail is expected and not damage.
pub(crate) fn report_damage(known: &DamageList, segment: &Segment, walked: &Walked, active: bool) {
    // A finished segment contains no unfinished write after its last valid frame either.
    let tail = walked.tail.iter().filter(|_| !active);

    for range in walked.damaged.iter().chain(tail) {
        known.note(Damage {
            path: segment.log().path().to_owned(),
            offset: range.offset,
            bytes: range.bytes,
            what: range.what.clone(),
            entries: range.entries.map(|(_, _, entries)| entries),
        });
    }

    known.count_unreadable(segment.log());
}

/// Makes the frames found in the log of a segment without an index durable.
///
/// Bytes not known to be synced are rewritten first. A sync alone is not enough: if a sync
/// failed before the daemon was killed, the kernel may have marked the dirty pages clean. In an
/// active log (`active`), unfinished writes are copied to a side file, then overwritten with a
/// filler frame, or truncated at the end. They were never acknowledged.
pub(crate) fn make_durable(
    segment: &Segment,
    walked: &Walked,
    active: bool,
    metrics: &Metrics,
) -> Result<(), StoreError> {
    let log = segment.log();
    let path = segment.log().path();
    let file = segment
        .fs()
        .open_to_write(path)
        .map_err(io_at("open for writing", path))?;

    let size = log.size()?;

    // First, because the sync at the end also covers these bytes.
    log.rewrite_range(&*file, walked.synced, walked.end.min(size))?;

    // Only the newest log of a class can have an unfinished write; elsewhere the same bytes are
    // damage.
    if active {
        // Copied before anything is overwritten.
        for unfinished in walked.unfinished.iter().chain(&walked.tail) {
            keep_and_count(segment, unfinished.offset, unfinished.end(), metrics);
        }

        // A filler keeps the valid frames behind it reachable: the search passes over its range in
        // one step.
        for DamagedRange { offset, bytes, .. } in &walked.unfinished {
            // A range too short for a header stays, and is counted again at the next start.
            if let Some(header) = filler(log.id(), *offset, *bytes) {
                file.write_all_at(&header, *offset)
                    .map_err(io_at("write", path))?;
            }
        }

        if size > walked.end {
            file.set_len(walked.end).map_err(io_at("cut", path))?;
        }
    }

    // One sync for all of it. If it fails, the start fails, and nothing has been acknowledged.
    file.sync_all().map_err(io_at("sync", path))
}

/// Copies an unfinished write to a side file for later inspection, and counts it.
fn keep_and_count(segment: &Segment, from: u64, to: u64, metrics: &Metrics) {
    let path = segment.log().path();
    let bytes = to - from;
    match segment.log().copy_range(segment.fs(), from, to) {
        Ok(copy) => tracing::warn!(
                        path = %path.display(), offset = from, bytes, copy = %copy.display(), "unfinished write removed, kept as a copy: nothing is lost with `store.durability: durable`, which never acknowledged it"
        ),
        // A full disk must not prevent the start.
        Err(error) => tracing::warn!(
                        path = %path.display(), offset = from, bytes, %error, "unfinished write removed without a copy: nothing is lost with `store.durability: durable`, which never acknowledged it"
        ),
    }

    metrics.tail_bytes_truncated.add(bytes);
}
