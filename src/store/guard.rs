//! The disk guard: how much room the file system has left, and what follows from that.
//!
//! ```text
//! ample   nothing
//! low     retention lets go of the oldest segments before their time (see `retention`)
//! full    nothing more is taken in; whoever sends is told so, with the figures; reading goes on
//! ```
//!
//! It recovers by itself: the next look that finds enough room says so. The committer looks after a commit if the
//! last look is long enough ago, the retainer while nothing is committed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use super::medium::Medium;
use crate::clock::Clock;
use crate::limits::{FREE_BYTES_LOW, FREE_BYTES_MIN, GUARD_LOOK, GUARD_NEAR, GUARD_SAYS};

/// The free space that the configuration asks for; `None` leaves it to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Below this retention tightens.
    pub low: Option<u64>,
    /// Below this nothing is taken.
    pub min: Option<u64>,
}

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Room {
    /// Enough.
    Ample = 0,
    /// So little that retention tightens.
    Low = 1,
    /// So little that nothing is taken.
    Full = 2,
}

impl Room {
    /// The word that `store stats` shows.
    pub fn name(self) -> &'static str {
        match self {
            Room::Ample => "ample",
            Room::Low => "low",
            Room::Full => "full",
        }
    }
}

/// What the last look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// What that means.
    pub room: Room,
    /// Bytes that may still be written.
    pub free: u64,
    /// Bytes of the file system.
    pub total: u64,
    /// Below this retention tightens.
    pub low: u64,
    /// Below this nothing is taken.
    pub min: u64,
}

/// The guard of a state directory.
#[derive(Debug)]
pub struct Guard {
    dir: PathBuf,
    medium: Arc<dyn Medium>,
    clock: Clock,
    asked: FreeSpace,
    room: AtomicU8,
    free: AtomicU64,
    total: AtomicU64,
    looked: AtomicI64,
    /// When it last said something.
    said: AtomicI64,
}

impl Guard {
    /// Guards the file system of `dir`; has a first look.
    pub fn new(dir: &Path, medium: Arc<dyn Medium>, clock: Clock, asked: FreeSpace) -> Self {
        let guard = Self {
            dir: dir.to_owned(),
            medium,
            clock,
            asked,
            room: AtomicU8::new(Room::Ample as u8),
            free: AtomicU64::new(u64::MAX),
            total: AtomicU64::new(u64::MAX),
            looked: AtomicI64::new(0),
            said: AtomicI64::new(i64::MIN),
        };
        guard.look();
        guard
    }

    /// Looks again if the last look is [`GUARD_LOOK`] ago, or if there was so little room that one commit may change what
    /// follows from it. The room there is.
    pub fn look_in_time(&self) -> Room {
        let Look { free, low, .. } = self.last();
        if free < low.saturating_add(GUARD_NEAR) {
            return self.look().room;
        }
        let now = self.clock.now().0;
        let due = i64::try_from(GUARD_LOOK.as_micros()).unwrap_or(i64::MAX);
        let last = self.looked.load(Ordering::Relaxed);
        // A clock that was set back is as good a reason to look.
        if (last..last.saturating_add(due)).contains(&now) { self.room() } else { self.look().room }
    }

    /// Looks now, and says aloud what has changed.
    pub fn look(&self) -> Look {
        self.looked.store(self.clock.now().0, Ordering::Relaxed);
        let before = self.room();
        match self.medium.space(&self.dir) {
            Ok(space) => {
                self.free.store(space.available, Ordering::Relaxed);
                self.total.store(space.total, Ordering::Relaxed);
            }
            // As before: a file system that does not answer refuses writes by itself.
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "cannot ask for free space");
                return self.last();
            }
        }
        let look = self.last();
        let room = if look.free < look.min {
            Room::Full
        } else if look.free < look.low {
            Room::Low
        } else {
            Room::Ample
        };
        self.room.store(room as u8, Ordering::Release);
        let (dir, free, low, min) = (self.dir.display(), look.free, look.low, look.min);
        let now = self.clock.now().0;
        let quiet = i64::try_from(GUARD_SAYS.as_micros()).unwrap_or(i64::MAX);
        let said = self.said.load(Ordering::Relaxed);
        let weighty = before == Room::Full || room == Room::Full;
        if before == room || (!weighty && (said..said.saturating_add(quiet)).contains(&now)) {
            return Look { room, ..look };
        }
        self.said.store(now, Ordering::Relaxed);
        match (before, room) {
            (_, Room::Full) => {
                tracing::error!(%dir, free, min, "the disk is full: nothing is taken until there is room");
            }
            (_, Room::Low) => {
                tracing::warn!(%dir, free, low, "free space is low: the oldest segments go before their time");
            }
            (_, Room::Ample) => tracing::info!(%dir, free, low, "there is enough free space again"),
        }
        Look { room, ..look }
    }

    /// What the last look found.
    pub fn last(&self) -> Look {
        let (free, total) = (self.free.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let auto = |(part, most): (u64, u64)| (total / part).min(most);
        let min = self.asked.min.unwrap_or_else(|| auto(FREE_BYTES_MIN));
        let low = self.asked.low.unwrap_or_else(|| auto(FREE_BYTES_LOW).max(min));
        Look { room: self.room(), free, total, low, min }
    }

    /// The room that the last look found.
    #[inline]
    pub fn room(&self) -> Room {
        match self.room.load(Ordering::Acquire) {
            0 => Room::Ample,
            1 => Room::Low,
            _ => Room::Full,
        }
    }

    /// Why nothing is taken, if nothing is.
    #[inline]
    pub fn refusal(&self) -> Option<String> {
        (self.room() == Room::Full).then(|| {
            let Look { free, min, .. } = self.last();
            let dir = self.dir.display();
            format!("the disk is full: {dir} has {free} bytes free, and {min} are kept free (store.free_bytes_min)")
        })
    }
}
