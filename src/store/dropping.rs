//! How a segment goes.
//!
//! In four steps: readers no longer find it; the state database forgets it; its directory is renamed to `trash/`, and that
//! is synced; it is removed there. Whoever is reading in it goes on with the files that are open. A crash in between leaves
//! a segment that comes back and goes again, or a directory in `trash/` that the next start removes.
//!
//! A large log that nobody has open goes piece by piece: a file system that frees hundreds of megabytes at once keeps every
//! sync waiting meanwhile. When the disk is short of room it goes at once.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::Shared;
use super::error::{StoreError, io_at};
use super::format::{class_dir, make_dir, segment_name, sync_dir};
use super::guard::Room;
use super::index::LatestJob;
use super::segment::Segment;
use super::state::State;
use crate::limits::{TRASH_PIECE_BYTES, TRASH_REST};
use crate::model::{JidKey, SeqNo};

impl Shared {
    /// Takes a segment away from readers and puts its directory into the trash; `None` if somebody works on it.
    pub(super) fn drop_segment(&self, segment: &Arc<Segment>) -> Result<Option<PathBuf>, StoreError> {
        let Ok(mut gone) = segment.work.try_lock() else { return Ok(None) };
        if *gone {
            return Ok(None);
        }
        let trash = self.dir.join("trash");
        make_dir(&*self.medium, &trash)?;
        let place = trash.join(format!("{}-{}", segment.class_name, segment_name(segment.first_seq)));
        let class_dir = class_dir(&self.dir, &segment.class_name);
        // The one before is surely gone, even if the disk could not say so then.
        sync_dir(&*self.medium, &class_dir)?;
        let last = self.last_jobs_in(segment)?;
        self.hide_segment(segment);
        // Only now: what is sealed from here on does not count on this segment, so all that may take its place is seen.
        let moved = self.jobs_before(segment, &last).and_then(|before| {
            // Whoever has cloned the list before asks an index that knows nothing, instead of a place that is gone.
            segment.take_away(|| {
                self.with_state(|state| {
                    state.forget(&segment.class_name, segment.first_seq)?;
                    if last.is_empty() { Ok(()) } else { state.forget_latest(&last, &before) }
                })?;
                let _ = self.medium.remove_dir_all(&place);
                self.medium.rename(segment.dir(), &place).map_err(io_at("rename to", &place))
            })
        });
        if let Err(error) = moved {
            self.show_segment(segment);
            // The state database may have forgotten it already, and given up its last jobs since.
            self.sealed_facts(segment, None)?;
            return Err(error);
        }
        *gone = true;
        for dir in [&class_dir, &trash] {
            if let Err(error) = sync_dir(&*self.medium, dir) {
                tracing::warn!(%error, "a segment that went may be back after a power cut, and goes again");
            }
        }
        Ok(Some(place))
    }

    /// The jobs in a segment that are the last ones of their function and minion. Mostly there are few: it is an old one.
    fn last_jobs_in(&self, segment: &Arc<Segment>) -> Result<Vec<LatestJob>, StoreError> {
        let span = segment.first_seq..=segment.sums().last_seq;
        let known: HashSet<SeqNo> = self
            .with_state(State::latest)?
            .iter()
            .map(|row| row.seq)
            .filter(|seq| span.contains(seq))
            .collect();
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = self.latest_in(segment)?;
        rows.retain(|row| known.contains(&row.seq));
        Ok(rows)
    }

    /// What other segments have in place of last jobs that are `gone`: older ones of the same function and minion. They may lie
    /// behind, too: a job that was stored late, or imported.
    fn jobs_before(&self, segment: &Arc<Segment>, gone: &[LatestJob]) -> Result<Vec<LatestJob>, StoreError> {
        let Some((newest, _)) = gone.iter().map(LatestJob::newness).max() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for other in self.with_older_jobs(segment, newest.unwrap_or(JidKey(u128::MAX))) {
            found.extend(self.latest_in(&other)?.into_iter().filter(|row| {
                let at = gone.binary_search_by(|gone| gone.pair().cmp(&row.pair()));
                at.ok().and_then(|at| gone.get(at)).is_some_and(|gone| row.newness() < gone.newness())
            }));
        }
        Ok(found)
    }

    /// The other finished segments that may have jobs older than this one. Of one that grows, readers ask what is in memory, and
    /// it is not yet sealed.
    fn with_older_jobs(&self, segment: &Arc<Segment>, than: JidKey) -> Vec<Arc<Segment>> {
        let mut others = self.all_segments();
        others.retain(|other| {
            !Arc::ptr_eq(other, segment)
                && other.is_finished()
                && other.facts().is_none_or(|facts| facts.may_hold_older(than))
        });
        others
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

    /// Removes what a crash left in the trash.
    pub(super) fn empty_trash(&self) {
        let Ok(items) = std::fs::read_dir(self.dir.join("trash")) else { return };
        for item in items.flatten() {
            self.remove_trash(&item.path());
        }
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
