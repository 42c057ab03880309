//! What a start makes of a log that it has read through: damage is reported, the rest becomes durable.

use super::error::{StoreError, io_at};
use super::frame::filler;
use super::segment::Segment;
use super::walk::{Stretch, Walked};
use crate::metrics::Metrics;

/// Reports and counts damage. `growing` tells whether unfinished writes are to be expected.
pub(super) fn report_damage(segment: &Segment, walked: &Walked, growing: bool, metrics: &Metrics) {
    // Behind the last good frame of a finished segment nothing is unfinished either.
    let tail = walked.tail.iter().filter(|_| !growing);
    for Stretch { offset, bytes, what, .. } in walked.damaged.iter().chain(tail) {
        metrics.frames_damaged.add(1);
        tracing::error!(path = %segment.log().path().display(), offset, bytes, what, "a damaged stretch of the log is skipped");
    }
}

/// Makes durable what a walk over the log of a segment without an index found, so that it counts as known from here on. A
/// sync alone is not enough: if one failed before the daemon was killed, the kernel may hold pages that it takes for
/// written. So what was not known to be synced is written again. Of a log that grows, unfinished writes are kept aside,
/// filled with a frame that says so, or cut off at the end: they were never acknowledged.
pub(super) fn settle(
    segment: &Segment,
    walked: &Walked,
    grows: bool,
    metrics: &Metrics,
) -> Result<(), StoreError> {
    let (log, path) = (segment.log(), segment.log().path());
    let file = segment.medium().open_to_write(path).map_err(io_at("open for writing", path))?;
    let size = log.size()?;
    log.write_again(&*file, walked.synced, walked.end.min(size))?;
    if grows {
        for unfinished in walked.unfinished.iter().chain(&walked.tail) {
            keep_and_count(segment, unfinished.offset, unfinished.end(), metrics);
        }
        for Stretch { offset, bytes, .. } in &walked.unfinished {
            // One that no frame can fill stays as it is, and counts again at the next start.
            if let Some(header) = filler(log.id(), *offset, *bytes) {
                file.write_all_at(&header, *offset).map_err(io_at("write", path))?;
            }
        }
        if size > walked.end {
            file.set_len(walked.end).map_err(io_at("cut", path))?;
        }
    }
    file.sync_all().map_err(io_at("sync", path))
}

/// An unfinished write is kept for people to look at.
fn keep_and_count(segment: &Segment, from: u64, to: u64, metrics: &Metrics) {
    let (path, bytes) = (segment.log().path(), to - from);
    match segment.log().keep_copy(segment.medium(), from, to) {
        Ok(copy) => tracing::warn!(
            path = %path.display(), offset = from, bytes, copy = %copy.display(), "removing an unfinished write"
        ),
        // The copy is for people; a full disk is no reason not to start.
        Err(error) => tracing::warn!(
            path = %path.display(), offset = from, bytes, %error, "removing an unfinished write, without a copy"
        ),
    }
    metrics.tail_bytes_cut.add(bytes);
}
