//! Resource use of segments: entries, jobs, bytes, times.

use std::path::Path;
use std::sync::Arc;

use crate::index::Totals;
use crate::segment::Segment;
use saltcellar_base::clock::{Micros, micros};
use saltcellar_base::limits::SEGMENT_AGE_MAX;

/// The content of segments: its size and age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentUsage {
    /// Number of entries.
    pub entries: u64,
    /// Jobs with entries in the segment; 0 for an active one.
    pub jobs: u64,
    /// Bytes of tags and bodies.
    pub raw_bytes: u64,
    /// Bytes on disk, including the index.
    pub disk_bytes: u64,
    /// Earliest time of arrival.
    pub at_min: Micros,
    /// Latest time of arrival.
    pub at_max: Micros,
}

impl SegmentUsage {
    #[must_use]
    pub(crate) fn joined(self, other: Self) -> Self {
        // Times of an empty part are zero, and must not become the earliest.
        if other.entries == 0 || self.entries == 0 {
            let times = if self.entries == 0 { other } else { self };
            let disk_bytes = self.disk_bytes + other.disk_bytes;
            return Self {
                disk_bytes,
                ..times
            };
        }
        Self {
            entries: self.entries + other.entries,
            jobs: self.jobs + other.jobs,
            raw_bytes: self.raw_bytes + other.raw_bytes,
            disk_bytes: self.disk_bytes + other.disk_bytes,
            at_min: self.at_min.min(other.at_min),
            at_max: self.at_max.max(other.at_max),
        }
    }
}

impl Segment {
    /// The segment's resource use; cached once the segment is sealed.
    pub(crate) fn usage(&self) -> SegmentUsage {
        if let Some(known) = self.usage.get() {
            return *known;
        }

        let finished = self.is_finished();
        // One look, so that all of it is of the same state.
        let sealed = self.metadata();
        // Not counted for an active segment: no caller needs it.
        let jobs = match &sealed {
            Some(metadata) => metadata.jobs,
            None if finished => self.memory().map_or(0, |index| index.jobs_len() as u64),
            None => 0,
        };
        let totals = match &sealed {
            Some(metadata) => metadata.totals,
            None => self.totals(),
        };
        let Totals {
            entries,
            raw_bytes,
            at_min,
            at_max,
            ..
        } = totals;

        let disk_bytes = disk_bytes(self.dir());

        let segment_usage = SegmentUsage {
            entries,
            jobs,
            raw_bytes,
            disk_bytes,
            at_min,
            at_max,
        };

        // Sealing changes the size on disk once more, so only the final value is kept.
        if finished && sealed.is_some() && self.has_index() {
            let _ = self.usage.set(segment_usage);
        }
        segment_usage
    }
}

/// The arrival time of the newest entry of each segment of a class, given oldest first. It is the
/// latest time of the segment's entries, unless that is provably wrong:
///
/// - In the future (set by a caller, or by a clock that was ahead): the entry is not newer than the
///   next log, and an active segment is finished after [`SEGMENT_AGE_MAX`].
/// - Unknown, because no entry of the log can be read now: as in the future.
/// - In a log created before an older one according to the headers (the clock was set back): the
///   entry is not older than those of earlier segments.
pub(crate) fn arrivals(usages: &[(Arc<Segment>, SegmentUsage)], now: Micros) -> Vec<Micros> {
    let created =
        |segment: &Segment| Some(segment.log().created()).filter(|at| *at != Micros::default());

    let mut next = None;
    // From the newest to the oldest: a log is newer than all entries of the logs before it.
    let mut found = Vec::with_capacity(usages.len());

    for (segment, segment_usage) in usages.iter().rev() {
        let created_at = created(segment);

        let finished = || {
            Some(Micros(
                created_at?.0.saturating_add(micros(SEGMENT_AGE_MAX)),
            ))
        };
        // A time in the future is not believed, and the times of no entries are zero: see above for
        // the bound that replaces them.
        let is_known = segment_usage.entries > 0 && segment_usage.at_max <= now;

        found.push(if is_known {
            segment_usage.at_max
        } else {
            next.or_else(finished).unwrap_or(segment_usage.at_max)
        });
        next = next.into_iter().chain(created_at).min();
    }
    // From the oldest to the newest, for logs that claim to be older than their predecessors.
    found.reverse();

    let (mut created_last, mut newest) = (Micros(i64::MIN), Micros(i64::MIN));
    for ((segment, _), at) in usages.iter().zip(&mut found) {
        let created_at = created(segment).unwrap_or(created_last);
        // Its entries are treated as no older than those before it, so it is not dropped before
        // them.
        if created_at < created_last {
            *at = newest.max(*at);
        }

        created_last = created_at.max(created_last);
        newest = newest.max(*at);
    }
    found
}

/// Disk space allocated to a directory, in bytes.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    // Removed meanwhile: nothing is allocated.
    let Ok(items) = std::fs::read_dir(dir) else {
        return 0;
    };
    let bytes = items.flatten().map(|item| match item.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&item.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}
