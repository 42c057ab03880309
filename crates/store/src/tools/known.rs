//! The entries that a store had to hold, by everything but its logs: indexes, the state database
//! and the last clean stop. Those that are in none of its logs are lost ([`super::losses`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::layout::SegmentFiles;
use crate::format;
use crate::index::sealed::SealedIndex;
use crate::index::state::StateDatabase;
use crate::index::tree::sled_guard::DatabaseCopy;
use crate::segment::removal::{left_dropped, was_dropped};
use crate::stopped::Stopped;
use crate::vfs::Disk;
use saltcellar_model::SeqNo;

/// A segment whose entries are known, whatever its log has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownSegment {
    pub(crate) class_name: String,
    pub(crate) first_seq: SeqNo,
    pub(crate) last_seq: SeqNo,
    pub(crate) entries: u64,
}

impl KnownSegment {
    /// Where its log is, or was.
    pub(crate) fn log(&self, state_dir: &Path) -> PathBuf {
        format::segment_dir(state_dir, &self.class_name, self.first_seq).join("log")
    }
}

/// The segments of a store of which more is known than their logs. Derived data that cannot be read
/// is left out: it is checked elsewhere. `databases` is whether no daemon has the state database open.
pub(crate) fn known_segments(
    (dir, store_id): (&Path, u64),
    segments: &[SegmentFiles],
    databases: bool,
    stopped: Option<&Stopped>,
) -> Vec<KnownSegment> {
    // A number is used once, so a segment with the same first one in another class is the same, in
    // a directory that was renamed.
    let mut known: BTreeMap<SeqNo, KnownSegment> = BTreeMap::new();
    let mut add = |class_name: &str, first_seq, entries, last_seq| {
        // The sources below overlap.
        let row = known.entry(first_seq).or_insert(KnownSegment {
            class_name: String::new(),
            first_seq,
            last_seq,
            entries,
        });
        // What follows below does not depend on names of directories.
        class_name.clone_into(&mut row.class_name);
        // An index that was rebuilt from a damaged log knows less than the state database.
        row.entries = row.entries.max(entries);
        row.last_seq = row.last_seq.max(last_seq);
    };

    for segment in segments.iter().filter(|segment| segment.is_sealed) {
        // One of another segment knows nothing about this one.
        let id = segment.id(store_id);
        if let Ok(index) = SealedIndex::open(&Disk, &segment.index(), id) {
            let totals = index.metadata().totals;
            let class = &segment.class_name;
            let first = segment.first_seq;
            add(class, first, totals.entries, totals.last_seq);
        }
    }

    for log in stopped.map_or(&[][..], |stopped| &stopped.logs) {
        add(&log.class_name, log.first_seq, log.entries, log.last_seq);
    }

    let state = dir.join("state");
    // With a running daemon sled's files are locked, and change while they are copied.
    if databases && StateDatabase::exists(&state) {
        let rows = DatabaseCopy::of(&state, &std::env::temp_dir())
            .and_then(|copy| StateDatabase::open(&copy.0)?.segments());
        let dropped = left_dropped(dir);

        // Those were dropped on purpose; the row is deleted later.
        for (class_name, first_seq, metadata) in rows.unwrap_or_default() {
            if !was_dropped(&dropped, &class_name, first_seq) {
                let totals = metadata.totals;
                add(&class_name, first_seq, totals.entries, totals.last_seq);
            }
        }
    }

    known.into_values().collect()
}
