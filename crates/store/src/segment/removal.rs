//! Dropping of segments.
//!
//! 1. The segment leaves the chain of its class, and no reader finds it.
//! 2. Its log is renamed to `log.dropped`, in its own directory, which is synced.
//! 3. Its rows are deleted from the state database.
//! 4. Its directory gets the suffix `.dropped`; the directory of the class is synced.
//! 5. The directory is removed.
//!
//! # Invariant
//!
//! A crash between two steps leaves either the whole segment or a drop that the next start finishes.
//!
//! Steps 1 and 2 need no free block: a full disk is what drops must help against. The directory of
//! a segment contains a few short names, so its own block has room for another name. The class's
//! directory may be full: a new name is added before the old name is removed, so step 4 may need a
//! block. By then the bytes of the log are free; if that does not help, step 4 is retried later.
//!
//! Readers with open files continue. On a full disk the state database cannot be written, so before
//! step 3 the log is truncated to nothing and the other files are removed; the empty log remains as
//! the record of the unfinished drop. A start resumes after a crash.
//!
//! A large log without other users is truncated piece by piece: freeing hundreds of megabytes in
//! one step delays every sync on the file system. When disk space is short it is truncated in one
//! step.

use std::fs::{File, OpenOptions};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{StoreError, io_at};
use crate::format::{
    self, DROPPED, DROPPED_LOG, class_dir, class_names, generation_of, is_dropped, list, name_of,
    remove_dir, sync_dir,
};
use crate::free_space::{FreeSpaceGuard, SpaceLevel};
use crate::log::file::cut_offset;
use crate::rounds::Rounds;
use crate::segment::catalogue::Catalogue;
use crate::segment::list::Segments;
use crate::segment::open_indexes::OpenIndexes;
use crate::segment::{Segment, remove_file, rewrite};
use crate::state_dir::StateDir;
use crate::vfs::Fs;
use saltcellar_base::limits::{CATALOGUE_BYTES, DROP_PAUSE, DROP_PIECE_BYTES};
use saltcellar_model::SeqNo;

/// A segment that was dropped and is not removed yet.
#[derive(Debug)]
pub(crate) struct Dropped {
    dir: PathBuf,
    class_name: String,
    first_seq: SeqNo,
    /// Its sequence numbers, if this process dropped it.
    seqs: Option<RangeInclusive<SeqNo>>,
    /// Whether it is still dropped after a power loss.
    is_durable: bool,
}

impl Dropped {
    pub(crate) fn segment(&self) -> (&str, SeqNo) {
        (&self.class_name, self.first_seq)
    }

    /// Whether the directory already bears the name under which it is removed.
    fn is_renamed(&self) -> bool {
        name_of(&self.dir).ends_with(DROPPED)
    }
}

/// Lists the drops that are unfinished because of a crash or because the state database could not be
/// written, of all classes on disk, configured or not.
pub(crate) fn left_dropped(state_dir: &Path) -> Vec<Dropped> {
    let mut left = Vec::new();

    // A directory that cannot be listed is treated as empty: drops in it are continued by a later
    // start.
    for class_name in class_names(state_dir).unwrap_or_default() {
        let dirs = list(&class_dir(state_dir, &class_name)).unwrap_or_default();
        for dir in dirs.into_iter().filter(|dir| is_dropped(dir)) {
            let name = name_of(&dir);
            let segment = generation_of(name.strip_suffix(DROPPED).unwrap_or(name));
            if let Some((first_seq, _)) = segment {
                left.push(Dropped {
                    dir,
                    class_name: class_name.clone(),
                    first_seq,
                    seqs: None,
                    is_durable: false,
                });
            }
        }
    }
    left
}

/// Whether a segment was dropped and is not lost: the rest of it is there, though the state database
/// may still list it.
pub(crate) fn was_dropped(dropped: &[Dropped], class_name: &str, first_seq: SeqNo) -> bool {
    dropped
        .iter()
        .any(|dropped| dropped.segment() == (class_name, first_seq))
}

/// The drops of a store: segments are taken away from readers, and then from the disk.
#[derive(Debug)]
pub(crate) struct Drops {
    dir: StateDir,
    segments: Arc<Segments>,
    indexes: Arc<OpenIndexes>,
    catalogue: Arc<Catalogue>,
    guard: Arc<FreeSpaceGuard>,
    rounds: Arc<Rounds>,
    /// Those that could not be finished. Lock order: no other lock is taken under it.
    left: Mutex<Vec<Dropped>>,
}

impl Drops {
    pub(crate) fn new(
        dir: StateDir,
        (segments, indexes, catalogue): (Arc<Segments>, Arc<OpenIndexes>, Arc<Catalogue>),
        guard: Arc<FreeSpaceGuard>,
        rounds: Arc<Rounds>,
    ) -> Self {
        let left = Mutex::new(left_dropped(dir.path()));
        Self {
            dir,
            segments,
            indexes,
            catalogue,
            guard,
            rounds,
            left,
        }
    }

    /// Continues the drops that were not finished.
    pub(crate) fn clear_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        self.clear(left);
    }

    /// Hides a segment from readers and marks it as dropped; `None` if another thread works on it.
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
        let (fs, dir) = (&**self.dir.fs(), segment.dir());

        // The form before its blocks were merged, if that could not be removed, and a copy that could
        // not be opened: they would come back in its place.
        rewrite::remove_others(fs, dir, &segment.class_name, segment.log().id())?;
        // Durable before the segment is removed, for the same reason.
        sync_dir(fs, &self.dir.class_dir(&segment.class_name))?;
        // Read before the index is detached, after which the totals are empty.
        let seqs = segment.first_seq..=segment.totals().last_seq;

        self.segments.hide(segment);
        self.indexes.forget(segment);

        // Readers with an older segment list see an empty index instead of a missing log.
        if let Err(error) = segment.detach_index(|| mark(fs, dir)) {
            // Its log still exists, so readers get the segment back.
            self.segments.show(segment);
            return Err(error);
        }
        *is_closed = true;

        // Not an error: readers no longer find the segment, and if it reappears, the next round
        // drops it.
        let synced = sync_dir(fs, dir);
        if let Err(error) = &synced {
            tracing::warn!(%error, "sync failed, a deleted segment may reappear after a power loss and is then deleted");
        }

        Ok(Some(Dropped {
            dir: dir.to_owned(),
            class_name: segment.class_name.to_string(),
            first_seq: segment.first_seq,
            seqs: Some(seqs),
            is_durable: synced.is_ok(),
        }))
    }

    /// Deletes dropped segments from the state database, then their directories. What fails is
    /// continued by a later round.
    pub(crate) fn clear(&self, mut dropped: Vec<Dropped>) {
        // First, because a segment that reappears after a power loss must be whole.
        for dropped in &mut dropped {
            self.make_durable(dropped);
        }
        let (mut dropped, mut left): (Vec<_>, Vec<_>) =
            dropped.into_iter().partition(|dropped| dropped.is_durable);

        // The usual round has nothing to drop.
        if !dropped.is_empty() {
            match self.forget_all(&dropped) {
                Ok(()) => self.remove_all(&mut dropped),
                Err(error) => {
                    tracing::warn!(segments = dropped.len(), %error, "cannot delete dropped segments from the state database, keeping their files, retrying later");
                }
            }
        }

        left.append(&mut dropped);
        self.left.lock().append(&mut left);
    }

    fn make_durable(&self, dropped: &mut Dropped) {
        // The usual case: the drop itself did it.
        if dropped.is_durable {
            return;
        }
        match sync_dir(&**self.dir.fs(), &dropped.dir) {
            // Removed by an administrator: only its rows are left.
            Err(_) if !dropped.dir.exists() => dropped.is_durable = true,
            Ok(()) => dropped.is_durable = true,
            Err(error) => {
                tracing::warn!(%error, "cannot sync a dropped segment, its space is freed later, retrying");
            }
        }
    }

    /// Deletes segments from the state database. On a full disk their bytes go first.
    fn forget_all(&self, dropped: &[Dropped]) -> Result<(), StoreError> {
        // The normal order writes to the state database first, and needs space for that.
        let look = self.guard.check();
        if look.room == SpaceLevel::Ample
            && look.free >= CATALOGUE_BYTES
            && self.forget(dropped).is_ok()
        {
            return Ok(());
        }

        // Without that space, or if the attempt failed.
        for dropped in dropped {
            for path in list(&dropped.dir).unwrap_or_default() {
                if let Err(error) = self.free(&path) {
                    // Not returned: the state database is tried next, and the following round
                    // repeats all of it.
                    tracing::error!(%error, "cannot free the space of a deleted segment, retrying later");
                }
            }
        }
        self.forget(dropped)
    }

    fn forget(&self, dropped: &[Dropped]) -> Result<(), StoreError> {
        let segments = dropped.iter().map(Dropped::segment).collect();
        let seqs = dropped.iter().filter_map(|dropped| dropped.seqs.clone());
        self.catalogue.forget(&segments, seqs)
    }

    /// Frees the space of a file of a dropped segment. Its log keeps its name, the record of the drop.
    fn free(&self, path: &Path) -> Result<(), StoreError> {
        let fs = &**self.dir.fs();
        if path.is_dir() {
            return remove_dir(fs, path);
        }
        if name_of(path) != DROPPED_LOG {
            return remove_file(fs, path);
        }

        // The bytes of one in use would stay even without a name.
        let Some(_lock) = lock_unused(path).map_err(io_at("open", path))? else {
            return Ok(());
        };
        let log = fs.open_to_write(path);
        log.and_then(|log| log.set_len(0))
            .map_err(io_at("cut", path))
    }

    /// Removes the directories of segments that the state database has forgotten. Those that are left
    /// stay in the list.
    fn remove_all(&self, dropped: &mut Vec<Dropped>) {
        let fs = &**self.dir.fs();

        for of_class in dropped.chunk_by_mut(|one, next| one.class_name == next.class_name) {
            for one in of_class.iter_mut() {
                // Only the space of a directory is late.
                if let Err(error) = self.rename(one) {
                    tracing::warn!(%error, "cannot rename a dropped segment, its space is freed later, retrying");
                }
            }

            // One sync for all of them. Without it, a power loss could bring back a directory from
            // which the record of the drop was removed.
            let class_name = of_class.first().map_or("", |first| &first.class_name);
            if let Err(error) = sync_dir(fs, &self.dir.class_dir(class_name)) {
                tracing::warn!(%error, "cannot sync a class, its dropped segments are removed later");
                continue;
            }
            for one in of_class.iter().filter(|one| one.is_renamed()) {
                self.remove(&one.dir);
            }
        }

        dropped.retain(|one| one.dir.exists());
    }

    /// Gives a directory the name under which it is removed.
    fn rename(&self, dropped: &mut Dropped) -> Result<(), StoreError> {
        if dropped.is_renamed() || !dropped.dir.exists() {
            return Ok(());
        }

        let fs = &**self.dir.fs();
        let place = format::dropped(&dropped.dir);
        // An older copy, which an administrator has put back.
        remove_dir(fs, &place)?;
        fs.rename(&dropped.dir, &place)
            .map_err(io_at("rename to", &place))?;
        dropped.dir = place;
        Ok(())
    }

    /// Removes the directory of a dropped segment.
    pub(crate) fn remove(&self, dir: &Path) {
        // Only the pace fails. The directory is removed in any case.
        if let Err(error) = self.shrink(&dir.join(DROPPED_LOG)) {
            tracing::warn!(path = %dir.display(), %error, "cannot truncate a deleted log in pieces, removing it in one step");
        }
        // Only the space is late.
        if let Err(error) = remove_dir(&**self.dir.fs(), dir) {
            tracing::error!(%error, "cannot remove a deleted segment, it takes up space, retrying later");
        }
    }

    /// Truncates a log piece by piece. Nothing here must be durable, so it bypasses
    /// [`crate::vfs::Fs`].
    fn shrink(&self, log: &Path) -> std::io::Result<()> {
        let Some(file) = lock_unused(log)? else {
            return Ok(());
        };

        // As measured in benches/NOTES.md ("Dropping a segment"). Speed counts more than
        // latency once space is short or the daemon stops.
        let mut len = file.metadata()?.len();
        while len > DROP_PIECE_BYTES
            && self.guard.room() == SpaceLevel::Ample
            && !self.rounds.is_stopping()
        {
            len -= DROP_PIECE_BYTES;
            file.set_len(len)?;
            std::thread::sleep(DROP_PAUSE);
        }
        Ok(())
    }
}

/// Marks a segment as dropped: its log gets another name.
fn mark(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let (log, dropped_log) = (dir.join("log"), dir.join(DROPPED_LOG));
    let rename = || {
        fs.rename(&log, &dropped_log)
            .map_err(io_at("rename to", &dropped_log))
    };

    rename().or_else(|error| {
        if !error.is_no_space() {
            return Err(error);
        }
        // What starts have cut off are the only names without a bound. They make room.
        for path in list(dir)? {
            if cut_offset(&path).is_some() {
                remove_file(fs, &path)?;
            }
        }
        rename()
    })
}

/// Opens and locks a dropped log to truncate it. `None` if its bytes stay in use by a hard link in a
/// backup, or are being read ([`crate::vfs::open_to_read`] locks the file), or if it does not exist.
fn lock_unused(log: &Path) -> std::io::Result<Option<File>> {
    let file = match OpenOptions::new().write(true).open(log) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let is_unused = file.metadata()?.nlink() == 1 && file.try_lock().is_ok();
    Ok(is_unused.then_some(file))
}
