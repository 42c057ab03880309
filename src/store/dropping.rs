//! How a segment goes.
//!
//! In four steps: readers no longer find it; the state database forgets it; its directory is renamed to `trash/`, and that
//! is synced; it is removed there. Whoever is reading in it goes on with the files that are open. A crash in between leaves
//! a segment that comes back and goes again, or a directory in `trash/` that the next start removes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::Shared;
use super::error::{StoreError, io_at};
use super::format::{class_dir, make_dir, segment_name, sync_dir};
use super::index::LatestJob;
use super::segment::Segment;

/// A segment goes and older ones stay.
struct Gap {
    /// The last jobs that lie in it.
    gone: Vec<LatestJob>,
    /// Those of the older ones, which take their place.
    older: Vec<LatestJob>,
}

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
        let gap = self.gap_behind(segment)?;
        self.hide_segment(segment);
        // Whoever has cloned the list before asks an index that knows nothing, instead of a place that is gone.
        let moved = segment.take_away(|| {
            self.with_state(|state| {
                state.forget(&segment.class_name, segment.first_seq)?;
                gap.as_ref().map_or(Ok(()), |gap| state.forget_latest(&gap.gone, &gap.older))
            })?;
            let _ = self.medium.remove_dir_all(&place);
            self.medium.rename(segment.dir(), &place).map_err(io_at("rename to", &place))
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

    /// What is to be known if older segments of the class stay.
    fn gap_behind(&self, segment: &Arc<Segment>) -> Result<Option<Gap>, StoreError> {
        let mut older = self.segments(segment.class);
        older.retain(|other| other.first_seq < segment.first_seq);
        if older.is_empty() {
            return Ok(None);
        }
        let mut rows = Vec::new();
        for segment in &older {
            rows.extend(self.latest_in(segment)?);
        }
        Ok(Some(Gap { gone: self.latest_in(segment)?, older: rows }))
    }

    pub(super) fn remove_trash(&self, path: &Path) {
        if let Err(error) = self.medium.remove_dir_all(path) {
            tracing::error!(path = %path.display(), %error, "could not empty the trash; the next start tries again");
        }
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
