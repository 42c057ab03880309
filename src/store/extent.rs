//! What a segment has: entries, jobs, bytes, times.

use std::path::Path;

use super::index::Sums;
use super::segment::{Segment, with_memory};
use crate::clock::Micros;

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
