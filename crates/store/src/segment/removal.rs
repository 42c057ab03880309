//! Dropping of segments.
//!
//! 1. The segment leaves the chain of its class, so that no reader finds it.
//! 2. Its directory is renamed into `trash/`; both directories are synced.
//! 3. Its rows are deleted from the state database.
//! 4. Its directory is removed from `trash/`.
//!
//! # Invariant
//!
//! A crash between two steps leaves either the whole segment or a drop that the next start finishes.
//! The order needs no free block: a full disk is what drops must help against.
//!
//! Readers with open files continue. On a full disk the state database cannot be written, so the
//! files in the directory are removed before step 3; the directory itself remains as the record of
//! the unfinished drop. A start resumes after a crash.
//!
//! A large log without other users is truncated piece by piece: freeing hundreds of megabytes at
//! once delays every sync on the file system. When disk space is short it is removed at once.

use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{StoreError, io_at};
use crate::format::{list, make_dir, name_of, remove_dir, segment_name, segment_seq, sync_dir};
use crate::free_space::{FreeSpaceGuard, SpaceLevel};
use crate::rounds::Rounds;
use crate::segment::catalogue::Catalogue;
use crate::segment::list::Segments;
use crate::segment::open_indexes::OpenIndexes;
use crate::segment::{Segment, rewrite};
use crate::state_dir::StateDir;
use crate::vfs::Fs;
use saltcellar_base::limits::{CATALOGUE_BYTES, TRASH_PAUSE, TRASH_PIECE_BYTES};
use saltcellar_model::SeqNo;

/// A segment in the trash.
#[derive(Debug)]
pub(crate) struct Dropped {
    place: PathBuf,
    /// Class and first sequence number; `None` for any other file in the trash.
    segment: Option<(String, SeqNo)>,
    /// Its sequence numbers, if this process dropped it.
    seqs: Option<RangeInclusive<SeqNo>>,
}

impl Dropped {
    pub(crate) fn segment(&self) -> Option<(&str, SeqNo)> {
        self.segment
            .as_ref()
            .map(|(class_name, first_seq)| (class_name.as_str(), *first_seq))
    }
}

/// The directory of dropped segments.
pub(crate) fn trash_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("trash")
}

/// Removes derived data in one step: a crash leaves all or none of it. A half-removed database
/// would count as damaged, and be kept beside the new one. On a full disk, where the trash cannot
/// be made, it is removed in place.
pub(crate) fn discard(fs: &dyn Fs, state_dir: &Path, derived: &Path) -> Result<(), StoreError> {
    // Nothing to do; also makes a repeated call harmless.
    if !derived.exists() {
        return Ok(());
    }

    let trash = trash_dir(state_dir);
    if !trash.is_dir() {
        match make_dir(fs, &trash) {
            Err(error) if error.is_no_space() => return remove_dir(fs, derived),
            made => made?,
        }
    }

    // Left by an earlier crash with the same derived data.
    let place = trash.join(name_of(derived));
    remove_dir(fs, &place)?;

    fs.rename(derived, &place)
        .map_err(io_at("rename", derived))?;
    // Durable before the removal begins: a power loss must not bring back a half of it.
    sync_dir(fs, derived.parent().unwrap_or(state_dir))?;
    remove_dir(fs, &place)
}

/// Lists the trash: drops unfinished because of a crash or because the state database could not be
/// written.
pub(crate) fn left_in_trash(state_dir: &Path) -> Vec<Dropped> {
    // An unreadable trash is treated as empty: drops are then continued by a later round.
    let left = list(&trash_dir(state_dir))
        .unwrap_or_default()
        .into_iter()
        .map(|place| {
            let parts = name_of(&place).rsplit_once('-');
            let segment =
                parts.and_then(|(class, digits)| Some((class.to_owned(), segment_seq(digits)?)));
            Dropped {
                place,
                segment,
                seqs: None,
            }
        });
    left.collect()
}

/// Whether a segment was dropped and is not lost: the trash has it, though the state database may
/// still list it.
pub(crate) fn was_dropped(dropped: &[Dropped], class_name: &str, first_seq: SeqNo) -> bool {
    dropped
        .iter()
        .any(|dropped| dropped.segment() == Some((class_name, first_seq)))
}

/// The trash of a store: it takes segments away from readers, and then from the disk.
#[derive(Debug)]
pub(crate) struct Trash {
    dir: StateDir,
    segments: Arc<Segments>,
    indexes: Arc<OpenIndexes>,
    catalogue: Arc<Catalogue>,
    guard: Arc<FreeSpaceGuard>,
    rounds: Arc<Rounds>,
}

impl Trash {
    pub(crate) fn new(
        dir: StateDir,
        (segments, indexes, catalogue): (Arc<Segments>, Arc<OpenIndexes>, Arc<Catalogue>),
        guard: Arc<FreeSpaceGuard>,
        rounds: Arc<Rounds>,
    ) -> Self {
        Self {
            dir,
            segments,
            indexes,
            catalogue,
            guard,
            rounds,
        }
    }

    /// Removes what drops have left that were not finished.
    pub(crate) fn clear_left(&self) {
        self.clear(&left_in_trash(self.dir.path()));
    }

    /// Hides a segment from readers and moves its directory to the trash; `None` if another thread
    /// works on it.
    pub(crate) fn drop_segment(
        &self,
        segment: &Arc<Segment>,
    ) -> Result<Option<Dropped>, StoreError> {
        // Not waited for: the sealer may hold it for seconds, and the round has other segments.
        // Taken before every other lock here.
        let Some(mut is_closed) = segment.work.try_lock() else {
            return Ok(None);
        };
        // Dropped or replaced by another thread.
        if *is_closed {
            return Ok(None);
        }
        let trash = trash_dir(self.dir.path());
        let place = trash.join(format!(
            "{}-{}",
            segment.class_name,
            segment_name(segment.first_seq)
        ));
        let class_dir = self.dir.class_dir(&segment.class_name);

        // The form before its blocks were merged, if that could not be removed: it would come back
        // in its place.
        let id = segment.log().id();
        rewrite::remove_older(&**self.dir.fs(), segment.dir(), &segment.class_name, id)?;
        // Makes the previous drop durable, in case its sync failed.
        sync_dir(&**self.dir.fs(), &class_dir)?;
        // Read before the index is detached, after which the totals are empty.
        let seqs = segment.first_seq..=segment.totals().last_seq;

        self.segments.hide(segment);
        self.indexes.forget(segment);

        // Readers with an older segment list see an empty index instead of a missing path.
        let moved = segment.detach_index(|| {
            // Created here if the disk was full at the start.
            self.make_trash(segment)?;
            // Left by a drop of the same segment that was interrupted after the rename.
            let _ = self.dir.fs().remove_dir_all(&place);
            self.dir
                .fs()
                .rename(segment.dir(), &place)
                .map_err(io_at("rename to", &place))
        });

        if let Err(error) = moved {
            // The directory was not moved, so readers get the segment back.
            self.segments.show(segment);
            return Err(error);
        }

        *is_closed = true;

        // Not an error: the segment is gone for readers, and a reappearing one is dropped by the
        // next round.
        for dir in [&class_dir, &trash] {
            if let Err(error) = sync_dir(&**self.dir.fs(), dir) {
                tracing::warn!(%error, "sync failed, a dropped segment may reappear after a power cut and is dropped again");
            }
        }

        let class_name = segment.class_name.to_string();
        Ok(Some(Dropped {
            place,
            segment: Some((class_name, segment.first_seq)),
            seqs: Some(seqs),
        }))
    }

    /// Creates the trash, which is missing if the disk was full when the store was opened. If it
    /// still is, the index of the dropped segment is removed first.
    fn make_trash(&self, segment: &Segment) -> Result<(), StoreError> {
        let trash = trash_dir(self.dir.path());

        if trash.is_dir() {
            return Ok(());
        }

        make_dir(&**self.dir.fs(), &trash).or_else(|error| {
            if !error.is_no_space() {
                return Err(error);
            }
            // Derived data. The segment is dropped anyway, and this frees the block that a
            // directory needs.
            segment.remove_index()?;
            make_dir(&**self.dir.fs(), &trash)
        })
    }

    /// Deletes dropped segments from the state database, then their directories.
    pub(crate) fn clear(&self, dropped: &[Dropped]) {
        // The usual round has nothing to drop.
        if dropped.is_empty() {
            return;
        }

        let mut forgotten = Err(StoreError::Broken("not tried yet"));
        // The normal order writes to the state database first, and needs space for that.
        let look = self.guard.check();
        if look.room == SpaceLevel::Ample && look.free >= CATALOGUE_BYTES {
            forgotten = self.forget(dropped);
        }

        // Without that space, or if the attempt failed: the files go first. The directory stays as
        // the record.
        if forgotten.is_err() {
            for dropped in dropped {
                self.empty_dir(&dropped.place);
            }
            forgotten = self.forget(dropped);
        }

        match forgotten {
            Ok(()) => dropped
                .iter()
                .for_each(|dropped| self.remove(&dropped.place)),
            Err(error) => {
                tracing::warn!(%error, "cannot delete dropped segments from the state database, retrying later");
            }
        }
    }

    fn forget(&self, dropped: &[Dropped]) -> Result<(), StoreError> {
        let segments = dropped.iter().filter_map(Dropped::segment).collect();
        let seqs = dropped.iter().filter_map(|dropped| dropped.seqs.clone());
        self.catalogue.forget(&segments, seqs)
    }

    fn empty_dir(&self, dir: &Path) {
        for path in list(dir).unwrap_or_default() {
            let removed = if path.is_dir() {
                self.dir.fs().remove_dir_all(&path)
            } else {
                self.dir.fs().remove_file(&path)
            };
            if let Err(error) = removed {
                // Not returned: the state database is tried next, and the following round repeats
                // all of it.
                tracing::error!(path = %path.display(), %error, "cannot remove a dropped segment, retrying later");
            }
        }
    }

    pub(crate) fn remove(&self, path: &Path) {
        // Only the pace fails. The directory is removed in any case.
        if let Err(error) = self.shrink(&path.join("log")) {
            tracing::warn!(path = %path.display(), %error, "cannot truncate a log in the trash piece by piece, removing it at once");
        }
        // Only the space is late.
        if let Err(error) = self.dir.fs().remove_dir_all(path) {
            tracing::error!(path = %path.display(), %error, "cannot empty the trash, the next start retries");
        }
    }

    /// Truncates a log piece by piece. Nothing here must be durable, so it bypasses
    /// [`crate::vfs::Fs`].
    fn shrink(&self, log: &Path) -> std::io::Result<()> {
        let file = match OpenOptions::new().write(true).open(log) {
            // Removed before, on a full disk.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };

        let about = file.metadata()?;

        // Its bytes stay in use by a hard link in a backup, or are being read
        // ([`crate::vfs::open_to_read`] locks the file).
        if about.nlink() > 1 || file.try_lock().is_err() {
            return Ok(());
        }

        // As measured in docs/MEASUREMENTS.md ("Dropping a segment"). Speed counts more than
        // latency once space is short or the daemon stops.
        let mut len = about.len();
        while len > TRASH_PIECE_BYTES
            && self.guard.room() == SpaceLevel::Ample
            && !self.rounds.is_stopping()
        {
            len -= TRASH_PIECE_BYTES;
            file.set_len(len)?;
            std::thread::sleep(TRASH_PAUSE);
        }
        Ok(())
    }
}
