//! Damage found since the start, in logs and in small files.
//!
//! # Invariant
//!
//! What is found is never silently skipped: each damaged place of a log is logged and counted once,
//! and, as each malformed file, reported until the next start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::format::segment_dir;
use super::log::file::LogFile;
use super::state_dir::StateDir;
use saltcellar_base::file_fault::FileFault;
use saltcellar_base::limits::DAMAGE_PLACES_MAX;
use saltcellar_base::metrics::Metrics;
use saltcellar_model::SeqNo;

/// A damaged range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// What is wrong with it.
    pub what: String,
    /// Number of entries that cannot be read because of it, if it is known.
    pub entries: Option<u64>,
}

/// The known damage of logs.
#[derive(Debug)]
pub(crate) struct DamageList {
    /// By path and offset. Lock order: no other lock is taken under it.
    known: Mutex<BTreeMap<(PathBuf, u64), Damage>>,
    metrics: Arc<Metrics>,
}

impl DamageList {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        let known = Mutex::default();
        Self { known, metrics }
    }

    /// Notes a damaged range of a log; logs and counts it unless it is known.
    pub(crate) fn note(&self, damage: Damage) {
        let mut known = self.known.lock();
        let place = (damage.path.clone(), damage.offset);
        // Readers meet the same block again and again. Beyond the limit the status shows enough.
        if known.len() >= DAMAGE_PLACES_MAX || known.contains_key(&place) {
            return;
        }

        let Damage {
            path,
            offset,
            bytes,
            what,
            entries,
        } = &damage;
        self.metrics.frames_damaged.add(1);
        self.metrics.entries_damaged.add(entries.unwrap_or(0));
        tracing::error!(
            path = %path.display(), offset, bytes, what, entries,
            "damaged range of a log skipped, its entries are lost: run `saltcellar store verify` and check the disk"
        );
        known.insert(place, damage);
    }

    /// Counts the bytes of a log that the disk could not read.
    pub(crate) fn count_unreadable(&self, log: &LogFile) {
        let bytes = log.take_unreadable_bytes();
        self.metrics.log_bytes_unreadable.add(bytes);
    }

    /// The known damage, by path and offset.
    pub(crate) fn all(&self) -> Vec<Damage> {
        self.known.lock().values().cloned().collect()
    }
}

/// Small files of the state directory that were malformed or missing when they were read at the start,
/// and are replaced since. They stay reported until the next start.
#[derive(Debug)]
pub(crate) struct FileFaults {
    /// Lock order: no other lock is taken under it.
    found: Mutex<Vec<FileFault>>,
    dir: StateDir,
    metrics: Arc<Metrics>,
}

impl FileFaults {
    pub(crate) fn new(dir: StateDir, metrics: Arc<Metrics>) -> Self {
        Self {
            found: Mutex::default(),
            dir,
            metrics,
        }
    }

    /// Reports a file, given by its path within the state directory.
    pub(crate) fn report(&self, name: impl AsRef<Path>, problem: impl Into<String>) {
        let fault = FileFault::new(&self.dir.path().join(name), problem);
        self.found.lock().push(fault);
    }

    /// Reports the log of a segment.
    pub(crate) fn report_log(
        &self,
        class_name: &str,
        first_seq: SeqNo,
        problem: impl Into<String>,
    ) {
        let path = segment_dir(self.dir.path(), class_name, first_seq).join("log");
        self.report(path, problem);
    }

    /// Reports what needs an administrator.
    pub(crate) fn report_serious(&self, path: &Path, problem: impl Into<String>) {
        let fault = FileFault::serious(path, problem);
        self.found.lock().push(fault);
    }

    /// Reports a segment whose log is gone, with the entries in it.
    pub(crate) fn report_missing_log(&self, class_name: &str, first_seq: SeqNo) {
        // The field is named `offset` as in other damage reports, so one search finds them all.
        let path = segment_dir(self.dir.path(), class_name, first_seq).join("log");
        tracing::error!(path = %path.display(), offset = 0, "log of a segment missing or unreadable, its entries are missing: repair the disk, or put the file back from a backup; to give the segment up, remove its directory and run `saltcellar store rebuild`");
        self.metrics.segments_missing.add(1);
        let problem = "log of a segment missing: its entries are lost, a backup may have them";
        self.report_log(class_name, first_seq, problem);
    }

    pub(crate) fn all(&self) -> Vec<FileFault> {
        self.found.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_once_however_often_it_is_met() {
        let metrics = Arc::new(Metrics::default());
        let list = DamageList::new(metrics.clone());
        let damage = |offset| Damage {
            path: PathBuf::from("log"),
            offset,
            bytes: 10,
            what: "a test".to_owned(),
            entries: Some(3),
        };
        for offset in [20, 10, 20] {
            list.note(damage(offset));
        }
        assert_eq!(list.all(), [damage(10), damage(20)]);
        let counted = (metrics.frames_damaged.get(), metrics.entries_damaged.get());
        assert_eq!(counted, (2, 6));
    }
}
