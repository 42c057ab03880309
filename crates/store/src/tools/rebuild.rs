//! `rebuild`: rebuilds indexes and state database from the logs.
//!
//! An index is put aside (`index.old`) until the new one is complete; if the store cannot be
//! opened, it is put back.

use std::path::PathBuf;

use super::layout::{self, SegmentFiles};
use super::{ToolError, Watch};
use crate::error::io_at;
use crate::segment::{INDEX_ASIDE, remove_file};
use crate::vfs::{Disk, Fs as _};
use crate::{Opened, Options, Store, StoreError, format};
use saltcellar_base::threads;

/// A segment that a user names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSelector {
    /// `class/number`, or the number only.
    pub name: String,
}

impl SegmentSelector {
    fn is(&self, segment: &SegmentFiles) -> bool {
        let name = self.name.trim_end_matches('/');
        let (class, number) = name.rsplit_once('/').unwrap_or(("", name));
        // Also the name of a directory, with its generation.
        let number = number.split('.').next().and_then(|n| n.parse().ok());
        number == Some(segment.first_seq.0) && (class.is_empty() || class == segment.class_name)
    }
}

/// What was rebuilt.
#[derive(Debug)]
pub struct RebuildReport {
    /// Segments with a new index.
    pub segments: u64,
    pub(crate) entries: u64,
    /// Per class: name, segments, entries.
    pub classes: Vec<(String, u64, u64)>,
}

/// Puts indexes aside, and rebuilds them by opening the store. Fails if a daemon has the store
/// open.
pub fn rebuild(
    options: &Options,
    which: Option<&SegmentSelector>,
    watch: &mut dyn Watch,
) -> Result<RebuildReport, ToolError> {
    let dir = &options.dir;
    layout::check_store(dir)?;
    // Held to the end: a daemon that started in between would find indexes missing, and an error
    // would put the old indexes back under it.
    let lock = format::Lock::take(&Disk, dir, &options.holder, options.lock_timeout)?;

    let segments: Vec<_> = layout::segments(dir)?
        .into_iter()
        .filter(|segment| which.is_none_or(|which| which.is(segment)))
        .collect();

    if let Some(which) = which.filter(|_| segments.is_empty()) {
        return Err(ToolError::NoSegment {
            name: which.name.clone(),
            path: dir.clone(),
        });
    }

    // The state database has rows of all segments, so it is kept if only some indexes are rebuilt.
    if which.is_none() {
        format::discard(&Disk, &dir.join("state"))?;
    }

    let sealed: Vec<_> = segments
        .iter()
        .filter(|segment| segment.is_sealed)
        .collect();
    let asides: Vec<_> = sealed
        .iter()
        .map(|segment| (segment.index(), segment.dir.join(INDEX_ASIDE)))
        .collect();

    for (index, aside) in &asides {
        // Left by an interrupted run; it must not be put back instead of this one.
        remove_file(&Disk, aside)?;
        Disk.rename(index, aside).map_err(io_at("rename", index))?;
    }

    let indexes = sealed
        .iter()
        .map(|segment| (segment.name(), segment.index()))
        .collect::<Vec<_>>();

    let opened = open_locked(options, lock.clone(), &indexes, watch);
    // A segment whose blocks were merged has a new directory; one that could not be sealed still
    // needs its old index.
    for (index, aside) in asides {
        if index.is_file() {
            remove_file(&Disk, &aside)?;
        } else if opened.is_err() && aside.is_file() {
            Disk.rename(&aside, &index)
                .map_err(io_at("rename", &aside))?;
        }
    }
    let opened = opened?;

    let mut report = RebuildReport {
        segments: sealed.len() as u64,
        entries: 0,
        classes: Vec::new(),
    };
    for class in opened.store.classes()? {
        report.entries += class.totals.entries;
        report.classes.push((
            class.name.to_string(),
            class.segments as u64,
            class.totals.entries,
        ));
    }
    Ok(report)
}

/// Opens a store, which rebuilds missing indexes, and reports the progress.
pub fn open_watched(
    options: &Options,
    indexes: &[(String, PathBuf)],
    watch: &mut dyn Watch,
) -> Result<Opened, StoreError> {
    let lock = format::Lock::take(&Disk, &options.dir, &options.holder, options.lock_timeout)?;
    open_locked(options, lock, indexes, watch)
}

/// The thread that opens the store.
const OPENER: &str = "sc-rebuild";

fn open_locked(
    options: &Options,
    lock: format::Lock,
    indexes: &[(String, PathBuf)],
    watch: &mut dyn Watch,
) -> Result<Opened, StoreError> {
    let total = indexes.len() as u64;

    std::thread::scope(|scope| {
        let opening = std::thread::Builder::new()
            .name(OPENER.to_owned())
            .spawn_scoped(scope, move || Store::open_locked(options, lock))
            .map_err(|why| StoreError::Failed(threads::not_started(OPENER, &why).to_string()))?;

        // The progress is what can be seen from outside: opening a store does not report any.
        while !opening.is_finished() {
            let done = indexes.iter().filter(|(_, index)| index.is_file()).count() as u64;
            let next = indexes.iter().find(|(_, index)| !index.is_file());
            watch.step(
                done,
                total,
                next.map_or("the newest segments", |(name, _)| name.as_str()),
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }

        watch.step(total, total, "");
        // A panic ends the thread only. The old indexes are put back by the caller.
        let opened = opening.join().unwrap_or_else(|_| {
            Err(StoreError::Failed(
                "opening the store panicked; please report the backtrace above".to_owned(),
            ))
        });
        // Also after a failure: what was written until then belongs to the daemon.
        super::files::inherit_owner(&options.dir)?;
        opened
    })
}
