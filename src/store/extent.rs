//! What a segment has: entries, jobs, bytes, times.

use std::path::Path;
use std::sync::Arc;

use super::index::Sums;
use super::segment::{Segment, with_memory};
use crate::clock::{Micros, micros};
use crate::limits::SEGMENT_AGE_MAX;

/// What a segment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Entries.
    pub entries: u64,
    /// Jobs that have entries in it.
    pub jobs: u64,
    /// Bytes of tags and bodies.
    pub raw_bytes: u64,
    /// Bytes on disk, the index included.
    pub disk_bytes: u64,
    /// Arrival of the earliest entry.
    pub at_min: Micros,
    /// Arrival of the latest entry.
    pub at_max: Micros,
}

impl Extent {
    /// Both together.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        if other.entries == 0 || self.entries == 0 {
            let times = if self.entries == 0 { other } else { self };
            let disk_bytes = self.disk_bytes + other.disk_bytes;
            return Self { disk_bytes, ..times };
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
    /// What a segment has.
    pub(super) fn whole_extent(&self) -> Extent {
        if let Some(known) = self.extent.get() {
            return *known;
        }
        let sums = self.sums();
        let finished = self.is_finished();
        // Those of a growing segment are not counted: nobody asks.
        let jobs = match self.facts() {
            Some(facts) => facts.jobs,
            None if finished => with_memory(self, |index| index.jobs().len() as u64).unwrap_or(0),
            None => 0,
        };
        let Sums { entries, raw_bytes, at_min, at_max, .. } = sums;
        let disk_bytes = disk_bytes(self.dir());
        let extent = Extent { entries, jobs, raw_bytes, disk_bytes, at_min, at_max };
        if finished && self.facts().is_some() && self.has_index() {
            let _ = self.extent.set(extent);
        }
        extent
    }
}

/// When the newest entry of each segment came in, as far as the segments of a class, the oldest first, can tell. It is the
/// latest time of its entries, unless that is certainly wrong:
///
/// - In the future (a caller named it, or the clock was ahead): then the next log was begun no earlier, and a
///   growing segment is finished after [`SEGMENT_AGE_MAX`].
/// - In a log that was begun before an older one by its header (the clock had been set back): then it is not earlier than the
///   entries before it.
pub(super) fn arrivals(extents: &[(Arc<Segment>, Extent)], now: Micros) -> Vec<Micros> {
    let created = |segment: &Segment| Some(segment.log().created()).filter(|at| *at != Micros::default());
    let mut next = None;
    let mut found = Vec::with_capacity(extents.len());
    for (segment, extent) in extents.iter().rev() {
        let begun = created(segment);
        let finished = || Some(Micros(begun?.0.saturating_add(micros(SEGMENT_AGE_MAX))));
        let in_time = extent.at_max <= now;
        found.push(if in_time { extent.at_max } else { next.or_else(finished).unwrap_or(extent.at_max) });
        next = next.into_iter().chain(begun).min();
    }
    found.reverse();
    let (mut begun_last, mut newest) = (Micros(i64::MIN), Micros(i64::MIN));
    for ((segment, _), at) in extents.iter().zip(&mut found) {
        let begun = created(segment).unwrap_or(begun_last);
        if begun < begun_last {
            *at = newest.max(*at);
        }
        (begun_last, newest) = (begun.max(begun_last), newest.max(*at));
    }
    found
}

/// Bytes that a directory takes on the disk.
pub(super) fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(items) = std::fs::read_dir(dir) else { return 0 };
    let bytes = items.flatten().map(|item| match item.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&item.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}
