//! How a segment is dropped.
//!
//! In four steps: readers no longer find it; its directory is renamed into `trash/`, and that is synced; the state database forgets
//! it; it is removed from `trash/`. Whoever is reading in it goes on with the files that are open. On a full disk the state
//! database cannot be written to, so what is in the directory is removed first; the directory itself stays until the
//! state database has forgotten the segment. After a crash in between the start finds it there and goes on.
//!
//! A large log that nobody has open goes piece by piece: a file system that frees hundreds of megabytes at once keeps every
//! sync waiting meanwhile. When the disk is short of room it goes at once.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::Shared;
use super::error::{StoreError, io_at};
use super::format::{class_dir, make_dir, segment_name, segment_seq, sync_dir};
use super::guard::Room;
use super::index::LatestJob;
use super::segment::Segment;
use super::state::State;
use crate::limits::{CATALOGUE_BYTES, TRASH_PIECE_BYTES, TRASH_REST};
use crate::model::{JidKey, SeqNo};

/// A segment in the trash.
#[derive(Debug)]
pub(super) struct Dropped {
    place: PathBuf,
    /// Its class and number, as the state database knows it; `None` for anything else in the trash.
    segment: Option<(String, SeqNo)>,
    /// Its sequence numbers, if it was dropped by this process.
    seqs: Option<RangeInclusive<SeqNo>>,
}

impl Dropped {
    /// Its class and number.
    pub(super) fn segment(&self) -> Option<(&str, SeqNo)> {
        self.segment.as_ref().map(|(class_name, first_seq)| (class_name.as_str(), *first_seq))
    }
}

/// The directory of dropped segments.
pub(super) fn trash_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("trash")
}

/// What was dropped and is still in the trash, after a crash or because the state database could not be written to.
pub(super) fn left_in_trash(state_dir: &Path) -> Vec<Dropped> {
    let items = std::fs::read_dir(trash_dir(state_dir)).into_iter().flatten().flatten();
    let left = items.map(|item| {
        let name = item.file_name();
        let parts = name.to_str().and_then(|name| name.rsplit_once('-'));
        let segment = parts.and_then(|(class, digits)| Some((class.to_owned(), segment_seq(digits)?)));
        Dropped { place: item.path(), segment, seqs: None }
    });
    left.collect()
}

impl Shared {
    /// Takes a segment away from readers and puts its directory into the trash; `None` if somebody works on it.
    pub(super) fn drop_segment(&self, segment: &Arc<Segment>) -> Result<Option<Dropped>, StoreError> {
        let Ok(mut gone) = segment.work.try_lock() else { return Ok(None) };
        if *gone {
            return Ok(None);
        }
        let trash = trash_dir(&self.dir);
        let place = trash.join(format!("{}-{}", segment.class_name, segment_name(segment.first_seq)));
        let class_dir = class_dir(&self.dir, &segment.class_name);
        // The one before is surely gone, even if the disk could not say so then.
        sync_dir(&*self.medium, &class_dir)?;
        let seqs = segment.first_seq..=segment.sums().last_seq;
        self.hide_segment(segment);
        // Whoever has cloned the list before asks an index that knows nothing, instead of a place that is gone.
        let moved = segment.take_away(|| {
            self.make_trash(segment)?;
            let _ = self.medium.remove_dir_all(&place);
            self.medium.rename(segment.dir(), &place).map_err(io_at("rename to", &place))
        });
        if let Err(error) = moved {
            self.show_segment(segment);
            return Err(error);
        }
        *gone = true;
        for dir in [&class_dir, &trash] {
            if let Err(error) = sync_dir(&*self.medium, dir) {
                tracing::warn!(%error, "a segment that went may be back after a power cut, and goes again");
            }
        }
        let class_name = segment.class_name.to_string();
        Ok(Some(Dropped { place, segment: Some((class_name, segment.first_seq)), seqs: Some(seqs) }))
    }

    /// The trash is made when the store is opened, and is missing if there was no space then. Of a segment that is dropped
    /// the index is not needed any more.
    fn make_trash(&self, segment: &Segment) -> Result<(), StoreError> {
        let trash = trash_dir(&self.dir);
        if trash.is_dir() {
            return Ok(());
        }
        make_dir(&*self.medium, &trash).or_else(|error| {
            if !error.is_no_space() {
                return Err(error);
            }
            segment.remove_index()?;
            make_dir(&*self.medium, &trash)
        })
    }

    /// Lets the state database forget dropped segments, and removes their directories.
    pub(super) fn clear_trash(&self, dropped: &[Dropped]) {
        if dropped.is_empty() {
            return;
        }
        let mut forgotten = Err(StoreError::Broken("not tried yet"));
        let look = self.guard.look();
        if look.room == Room::Ample && look.free >= CATALOGUE_BYTES {
            forgotten = self.forget(dropped);
        }
        if forgotten.is_err() {
            for dropped in dropped {
                self.empty_dir(&dropped.place);
            }
            forgotten = self.forget(dropped);
        }
        match forgotten {
            Ok(()) => dropped.iter().for_each(|dropped| self.remove_trash(&dropped.place)),
            Err(error) => {
                tracing::warn!(%error, "cannot take dropped segments out of the state database, trying again later");
            }
        }
    }

    fn forget(&self, dropped: &[Dropped]) -> Result<(), StoreError> {
        let segments: HashSet<(&str, SeqNo)> = dropped.iter().filter_map(Dropped::segment).collect();
        let known = self.with_state(State::segments)?;
        let known = known
            .iter()
            .filter(|(class_name, first_seq, _)| segments.contains(&(class_name.as_str(), *first_seq)));
        let seqs = known.map(|(_, first_seq, facts)| *first_seq..=facts.sums.last_seq);
        let seqs: Vec<_> = seqs.chain(dropped.iter().filter_map(|dropped| dropped.seqs.clone())).collect();
        // The catalogue comes last: after a crash it still tells which numbers the segments had.
        self.forget_last_jobs(&seqs)?;
        self.with_state(|state| state.forget(segments.iter().copied()))
    }

    /// Gives up the last jobs whose returns are in no segment, where segments that are gone had these sequence numbers.
    pub(super) fn forget_last_jobs(&self, seqs: &[RangeInclusive<SeqNo>]) -> Result<(), StoreError> {
        // Before the segments are listed: what is sealed in between is in one of them.
        let mut gone = self.with_state(State::latest)?;
        let there = self.there();
        gone.retain(|row| !there(row.seq) || seqs.iter().any(|seqs| seqs.contains(&row.seq)));
        // Segments of several classes overlap.
        for segment in self.all_segments() {
            if segment.facts().is_some_and(|facts| facts.jobs == 0) {
                continue;
            }
            let own = segment.first_seq..=segment.sums().last_seq;
            if gone.iter().any(|row| own.contains(&row.seq)) {
                let last = self.latest_in(&segment)?;
                let found: HashSet<SeqNo> = last.iter().map(|row| row.seq).collect();
                gone.retain(|row| !found.contains(&row.seq));
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        gone.sort_unstable_by(|a, b| a.pair().cmp(&b.pair()));
        // What is sealed from here on does not count on those segments, so all that may take their place is seen.
        let before = self.jobs_before(&gone)?;
        self.with_state(|state| state.forget_latest(&gone, &before))
    }

    /// Removes all that is in a directory.
    fn empty_dir(&self, dir: &Path) {
        for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|item| item.path()) {
            let removed = if path.is_dir() {
                self.medium.remove_dir_all(&path)
            } else {
                self.medium.remove_file(&path)
            };
            if let Err(error) = removed {
                tracing::error!(path = %path.display(), %error, "cannot remove what was dropped, trying again later");
            }
        }
    }

    /// What the segments have in place of last jobs that are `gone`: older ones of the same function and minion. They may lie
    /// behind, too: a job that was stored late, or imported.
    fn jobs_before(&self, gone: &[LatestJob]) -> Result<Vec<LatestJob>, StoreError> {
        let Some((newest, _)) = gone.iter().map(LatestJob::newness).max() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for other in self.with_older_jobs(newest.unwrap_or(JidKey(u128::MAX))) {
            found.extend(self.latest_in(&other)?.into_iter().filter(|row| {
                let at = gone.binary_search_by(|gone| gone.pair().cmp(&row.pair()));
                at.ok().and_then(|at| gone.get(at)).is_some_and(|gone| row.newness() < gone.newness())
            }));
        }
        Ok(found)
    }

    /// The finished segments that may have jobs older than this one. Of one that grows, readers ask what is in memory, and
    /// it is not yet sealed.
    fn with_older_jobs(&self, than: JidKey) -> Vec<Arc<Segment>> {
        let mut segments = self.all_segments();
        segments.retain(|segment| {
            segment.is_finished() && segment.facts().is_none_or(|facts| facts.may_hold_older(than))
        });
        segments
    }

    /// Removes a directory in the trash.
    pub(super) fn remove_trash(&self, path: &Path) {
        if let Err(error) = self.shrink(&path.join("log")) {
            tracing::warn!(path = %path.display(), %error, "a log in the trash could not be removed piece by piece; it goes at once");
        }
        if let Err(error) = self.medium.remove_dir_all(path) {
            tracing::error!(path = %path.display(), %error, "could not empty the trash; the next start tries again");
        }
    }

    /// Makes a log that is to be removed shorter, slowly. Nothing here has to be durable, so it goes past the medium.
    fn shrink(&self, log: &Path) -> std::io::Result<()> {
        let file = match OpenOptions::new().write(true).open(log) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let about = file.metadata()?;
        // A backup has the same file by another name, or somebody is reading it ([`super::medium::open_to_read`]).
        if about.nlink() > 1 || file.try_lock().is_err() {
            return Ok(());
        }
        let mut len = about.len();
        while len > TRASH_PIECE_BYTES && self.guard.room() == Room::Ample && !self.retention.is_stopping() {
            len -= TRASH_PIECE_BYTES;
            file.set_len(len)?;
            std::thread::sleep(TRASH_REST);
        }
        Ok(())
    }

    /// Takes a segment out of its chain.
    fn hide_segment(&self, segment: &Arc<Segment>) {
        if let Some(list) = self.segments.get(segment.class.index()) {
            list.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, segment));
        }
        // Who holds its files open keeps its bytes on the disk.
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, segment));
    }

    /// Puts it back.
    fn show_segment(&self, segment: &Arc<Segment>) {
        if let Some(list) = self.segments.get(segment.class.index()) {
            let mut list = list.write().unwrap_or_else(PoisonError::into_inner);
            list.push(segment.clone());
            list.sort_unstable_by_key(|segment| segment.first_seq);
        }
    }
}
