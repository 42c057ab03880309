//! The free space guard: monitors the file system of the state directory.
//!
//! ```text
//! ample   no effect
//! low     retention drops the oldest segments early (see `retain`)
//! full    new entries are rejected with an error that names the figures; reads continue
//! ```
//!
//! The level recovers with the next check that finds enough space. The committer checks after a
//! commit if the last check is old enough; the retainer checks while there are no commits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use crate::vfs::Fs;
use saltcellar_base::clock::Clock;
use saltcellar_base::limits::{
    FREE_BYTES_LOW, FREE_BYTES_MIN, GUARD_LOG_INTERVAL, GUARD_NEAR, GUARD_POLL,
};
use saltcellar_base::log_once::LogOnce;
use saltcellar_base::named::named;

/// Configured thresholds in bytes; `None` means a default derived from the size of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Below this, retention drops segments early.
    pub low: Option<u64>,
    /// Below this, new entries are rejected.
    pub min: Option<u64>,
}

impl FreeSpace {
    /// `low` and `min` on a file system with this many bytes.
    #[must_use]
    pub fn thresholds(self, total: u64) -> (u64, u64) {
        // A tenth of a small partition and a few gigabytes of a large one, as in the systemd
        // journal.
        let auto = |(part, most): (u64, u64)| (total / part).min(most);
        let min = self.min.unwrap_or_else(|| auto(FREE_BYTES_MIN));

        // Never below `min`: retention must begin before writes are rejected.
        let low = self.low.unwrap_or_else(|| auto(FREE_BYTES_LOW).max(min));
        (low, min)
    }
}

/// Whether a disk has room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SpaceLevel {
    /// There is enough.
    #[default]
    Ample = 0,
    /// Retention drops segments early.
    Low = 1,
    /// New entries are rejected.
    Full = 2,
}

named! {
    SpaceLevel {
        Ample: "ample",
        Low: "low",
        Full: "full",
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Whether there is room.
    pub room: SpaceLevel,
    /// Bytes available.
    pub free: u64,
    /// Size of the file system in bytes.
    pub total: u64,
    /// Threshold of [`SpaceLevel::Low`] in bytes.
    pub low: u64,
    /// Threshold of [`SpaceLevel::Full`] in bytes.
    pub min: u64,
}

/// Monitors the file system of a state directory.
#[derive(Debug)]
pub(crate) struct FreeSpaceGuard {
    dir: PathBuf,
    fs: Arc<dyn Fs>,
    clock: Clock,
    configured: FreeSpace,
    room: AtomicU8,
    free: AtomicU64,
    total: AtomicU64,
    checked_at: AtomicI64,
    logged: LogOnce,
}

impl FreeSpaceGuard {
    /// Starts with a first check.
    pub(crate) fn new(dir: &Path, fs: Arc<dyn Fs>, clock: Clock, configured: FreeSpace) -> Self {
        // As if there were enough: a file system that cannot be asked must not stop the intake.
        let guard = Self {
            dir: dir.to_owned(),
            fs,
            clock,
            configured,
            room: AtomicU8::new(SpaceLevel::Ample as u8),
            free: AtomicU64::new(u64::MAX),
            total: AtomicU64::new(u64::MAX),
            checked_at: AtomicI64::new(0),
            logged: LogOnce::every(GUARD_LOG_INTERVAL),
        };

        guard.check();
        guard
    }

    /// Checks if the last check is [`GUARD_POLL`] ago, or if a single commit may change the level.
    /// Returns the level.
    pub(crate) fn check_if_due(&self) -> SpaceLevel {
        let SpaceStatus { free, low, .. } = self.last();
        // A fast writer fills this margin within one interval.
        if free < low.saturating_add(GUARD_NEAR) {
            return self.check().room;
        }

        let now = self.clock.now().0;
        let due = i64::try_from(GUARD_POLL.as_micros()).unwrap_or(i64::MAX);
        let last = self.checked_at.load(Ordering::Relaxed);
        // A clock that was set back also triggers a check.
        if (last..last.saturating_add(due)).contains(&now) {
            self.room()
        } else {
            self.check().room
        }
    }

    /// Checks now and logs a change of the level.
    pub(crate) fn check(&self) -> SpaceStatus {
        self.checked_at.store(self.clock.now().0, Ordering::Relaxed);

        let before = self.room();

        match self.fs.space(&self.dir) {
            Ok(space) => {
                self.free.store(space.available, Ordering::Relaxed);
                self.total.store(space.total, Ordering::Relaxed);
            }
            // Keep the level: if the file system fails, writes also fail.
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot query free space, using the last known value: check with `df` that the file system is mounted");
                return self.last();
            }
        }

        let status = self.last();
        let room = if status.free < status.min {
            SpaceLevel::Full
        } else if status.free < status.low {
            SpaceLevel::Low
        } else {
            SpaceLevel::Ample
        };

        // Stored after the figures, with release ordering: a thread that sees a level also sees its
        // figures.
        self.room.store(room as u8, Ordering::Release);
        let dir = self.dir.display();
        let free = status.free;
        let low = status.low;
        let min = status.min;

        if before == room {
            return SpaceStatus { room, ..status };
        }

        // What concerns the intake is logged each time. Otherwise the level changes with every
        // segment near the limit.
        let concerns_intake = before == SpaceLevel::Full || room == SpaceLevel::Full;
        let is_due = self.logged.is_due((), self.clock.monotonic());
        if !is_due && !concerns_intake {
            return SpaceStatus { room, ..status };
        }

        match (before, room) {
            (_, SpaceLevel::Full) => {
                tracing::error!(%dir, free, min, "disk full, new entries are rejected: free some space, or run `saltcellar store prune`");
            }
            (_, SpaceLevel::Low) => {
                tracing::warn!(%dir, free, low, "free space low, deleting the oldest segments early: enlarge the disk or lower `keep` in `store.classes`");
            }
            (_, SpaceLevel::Ample) => {
                tracing::info!(%dir, free, low, "free space is sufficient");
            }
        }
        SpaceStatus { room, ..status }
    }

    /// The result of the last check.
    pub(crate) fn last(&self) -> SpaceStatus {
        let (free, total) = (
            self.free.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        );
        let (low, min) = self.configured.thresholds(total);
        SpaceStatus {
            room: self.room(),
            free,
            total,
            low,
            min,
        }
    }

    /// The level at the last check.
    #[inline]
    pub(crate) fn room(&self) -> SpaceLevel {
        match self.room.load(Ordering::Acquire) {
            0 => SpaceLevel::Ample,
            1 => SpaceLevel::Low,
            _ => SpaceLevel::Full,
        }
    }

    /// Why new entries are rejected; `None` if they are accepted.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<String> {
        (self.room() == SpaceLevel::Full).then(|| {
            let SpaceStatus { free, min, .. } = self.last();
            let dir = self.dir.display();
            format!("the disk is full: {dir} has {free} bytes free, and {min} are kept free (store.free_bytes_min)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_begins_before_writes_are_rejected() {
        const GIB: u64 = 1 << 30;
        let of = |low, min| FreeSpace { low, min }.thresholds(1_000 * GIB);
        let (low, min) = of(None, None);
        assert!(0 < min && min < low, "{low} {min}");
        assert_eq!(of(None, Some(100 * GIB)), (100 * GIB, 100 * GIB));
        assert_eq!(of(Some(7), Some(5)), (7, 5));
    }
}
