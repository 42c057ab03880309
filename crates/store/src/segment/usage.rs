//! Resource use of segments: entries, jobs, bytes, timestamps.

use std::path::Path;

use saltcellar_base::clock::Micros;

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
