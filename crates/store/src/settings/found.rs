//! What the segments of the class `settings` hold, whatever is damaged in them.
//!
//! The newest segment with a complete snapshot is the base. Changes behind it are taken from all
//! segments: each is in the two newest segments, so damage of one segment loses nothing. Positions
//! have no gaps, so what is in neither is counted.
//!
//! A gap is no loss if a frame behind it says that it was not synced: a power loss can leave a gap
//! among changes that were never acknowledged as durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::loss::{Loss, loss_of};
use super::record::{Head, Record};
use super::values::{Values, apply};
use crate::error::StoreError;
use crate::format::{self, Generation};
use crate::log::block::Rows;
use crate::log::file::LogFile;
use crate::log::frame::LogId;
use crate::log::walk::{Bounds, DamagedRange, walk};
use crate::vfs::Fs;
use saltcellar_base::limits::DAMAGE_PLACES_MAX;
use saltcellar_model::{Kind, SETTINGS, SeqNo};

/// Changes that no segment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Their number; `None` if it is not known.
    pub(crate) records: Option<u64>,
    /// Values set up to this position may be out of date.
    pub(crate) upto: u64,
}

impl Missing {
    /// Both.
    pub(super) fn joined(self, other: Option<Self>) -> Self {
        let Some(other) = other else {
            return self;
        };
        let sum = |a: u64, b| a.saturating_add(b);
        Self {
            records: self.records.zip(other.records).map(|(a, b)| sum(a, b)),
            upto: self.upto.max(other.upto),
        }
    }
}

/// A damaged part of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPart {
    /// That of the segment.
    pub(super) first_seq: SeqNo,
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) what: String,
}

/// The log of a segment.
#[derive(Debug)]
pub(super) struct FoundSegment {
    pub(super) dir: PathBuf,
    pub(super) id: LogId,
    /// Offset behind the last frame.
    pub(super) end: u64,
    /// Bytes below were synced when the last frame was written.
    pub(super) synced: u64,
    /// Where the snapshot ends.
    pub(super) snapshot_end: u64,
    records: Vec<(SeqNo, Record)>,
    /// Sequence numbers between which changes were never known to be synced.
    unsynced: Vec<(SeqNo, SeqNo)>,
    /// Whether it is exactly as it was written.
    is_whole: bool,
    /// Whether nothing can follow the last frame: the end is not in a sector that cannot be read.
    has_end: bool,
}

impl FoundSegment {
    fn head(&self) -> Option<Head> {
        self.records.first().and_then(|(_, record)| record.head())
    }

    fn snapshot(&self) -> impl Iterator<Item = &Record> {
        let records = self.records.iter().map(|(_, record)| record);
        records.filter(|record| record.is_snapshot && !record.key.is_empty())
    }

    /// The number of the last record of the snapshot.
    fn snapshot_seq(&self) -> SeqNo {
        let mut records = self.records.iter().rev();
        let last = records.find(|(_, record)| record.is_snapshot);
        last.map_or(self.id.first_seq, |(seq, _)| *seq)
    }

    fn changes(&self) -> impl Iterator<Item = &(SeqNo, Record)> {
        self.records
            .iter()
            .filter(|(_, record)| !record.is_snapshot)
    }

    /// The first record, if all of the snapshot behind it was found.
    fn complete(&self) -> Option<Head> {
        let head = self.head()?;
        (self.snapshot().count() as u64 == head.records).then_some(head)
    }
}

/// The content of the class.
#[derive(Debug, Default)]
pub struct Found {
    pub(super) values: Values,
    /// The last position that is known.
    pub(super) position: u64,
    /// The next sequence number.
    pub(super) next_seq: SeqNo,
    /// Ascending.
    pub(super) segments: Vec<FoundSegment>,
    pub(crate) missing: Option<Missing>,
    pub(crate) damage: Vec<BadPart>,
}

impl Found {
    /// Reads the segments of a state directory. `position` is the last one at a clean stop.
    pub(crate) fn read(
        fs: &dyn Fs,
        state_dir: &Path,
        store_id: u64,
        position: Option<u64>,
    ) -> Result<Self, StoreError> {
        let class_dir = format::class_dir(state_dir, SETTINGS);
        let mut logs = Vec::new();
        for Generation { first_seq, dir, .. } in format::generations(&class_dir)? {
            logs.push((dir.join("log"), dir, first_seq));
        }
        Self::of_logs(fs, logs, store_id, position)
    }

    /// As [`Self::read`], for logs with the directories and first numbers of their segments.
    pub(crate) fn of_logs(
        fs: &dyn Fs,
        logs: Vec<(PathBuf, PathBuf, SeqNo)>,
        store_id: u64,
        position: Option<u64>,
    ) -> Result<Self, StoreError> {
        let mut found = Self {
            next_seq: SeqNo::FIRST,
            ..Self::default()
        };
        for (path, dir, first_seq) in logs {
            found.next_seq = found.next_seq.max(first_seq.next());
            let id = LogId {
                store_id,
                first_seq,
            };
            match found.segment(fs, &path, dir, id) {
                Ok(segment) => found.segments.push(segment),
                // Another log: nothing in it is a setting of this store.
                Err(error @ StoreError::Misplaced { .. }) => {
                    found.unreadable(&path, first_seq, &error);
                }
                Err(error) if error.is_damage() || is_absent(&error) => {
                    found.unreadable(&path, first_seq, &error);
                }
                // To retry: what cannot be read now is not lost.
                Err(error) => return Err(error),
            }
        }

        found.settle(position);
        Ok(found)
    }

    /// A loss that was found earlier and not accepted.
    pub(crate) fn loss(&self) -> Option<Loss> {
        loss_of(&self.values)
    }

    pub(crate) fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Whether nothing is damaged, and both copies of all changes are there.
    pub(crate) fn is_whole(&self) -> bool {
        let [older, newer] = self.segments.as_slice() else {
            return false;
        };

        // The older one has also what is in the snapshot of the newer one: it alone must be enough.
        let has_all = |segment: &FoundSegment| {
            let from = segment.head().map_or(u64::MAX, |head| head.position);
            let positions = segment.changes().map(|(_, record)| record.position);
            positions.eq(from.saturating_add(1)..=self.position)
        };

        let is_whole = |segment: &FoundSegment| segment.is_whole && segment.complete().is_some();
        self.missing.is_none()
            && self.damage.is_empty()
            && is_whole(older)
            && is_whole(newer)
            && has_all(older)
            && has_all(newer)
    }

    /// For a store that contained settings and now has no segment of them.
    pub(crate) fn lose_all(&mut self) {
        self.missing = Some(Missing {
            records: None,
            upto: self.position,
        });
    }

    fn unreadable(&mut self, path: &Path, first_seq: SeqNo, error: &StoreError) {
        self.damage.push(BadPart {
            first_seq,
            path: path.to_owned(),
            offset: 0,
            bytes: 0,
            what: error.to_string(),
        });
    }

    fn segment(
        &mut self,
        fs: &dyn Fs,
        path: &Path,
        dir: PathBuf,
        id: LogId,
    ) -> Result<FoundSegment, StoreError> {
        let log = LogFile::open(fs, path, SETTINGS, id)?;
        let has_header = log.header()?.is_some();
        let size = log.size()?;

        let mut records = Vec::new();
        let mut snapshot_end = 0;
        let walked = walk(
            &log,
            Bounds::of_log(size),
            true,
            |meta, view| match read_block(&view.rows()) {
                Ok(of_block) => {
                    if of_block.iter().all(|(_, record)| record.is_snapshot) {
                        snapshot_end = meta.end();
                    }
                    records.extend(of_block);
                    None
                }
                Err(what) => Some(what),
            },
        )?;
        if let Some((offset, version)) = walked.unknown_version {
            return Err(log.of_version(offset, version));
        }

        let mut bad = |range: &DamagedRange| {
            if self.damage.len() < DAMAGE_PLACES_MAX {
                self.damage.push(BadPart {
                    first_seq: id.first_seq,
                    path: path.to_owned(),
                    offset: range.offset,
                    bytes: range.bytes,
                    what: range.what.clone(),
                });
            }
        };
        walked.damaged.iter().for_each(&mut bad);
        if !has_header {
            bad(&DamagedRange::missing(
                0,
                SeqNo::default(),
                None,
                "log header damaged",
            ));
        }
        self.next_seq = self.next_seq.max(walked.last_seq.next());

        let unsynced = walked.unfinished.iter();
        let unsynced = unsynced.map(|range| (range.after, range.before.unwrap_or(range.after)));
        let is_whole = has_header
            && walked.damaged.is_empty()
            && walked.unfinished.is_empty()
            && walked.end == size;
        Ok(FoundSegment {
            dir,
            id,
            end: walked.end.min(size),
            synced: walked.synced,
            snapshot_end,
            records,
            unsynced: unsynced.collect(),
            is_whole,
            has_end: !walked.is_closed,
        })
    }

    /// Finds the latest values, and what is missing.
    fn settle(&mut self, at_stop: Option<u64>) {
        let positions = self.segments.iter().flat_map(|segment| {
            let head = segment.head().map(|head| head.position);
            let records = segment.records.iter().map(|(_, record)| record.position);
            head.into_iter().chain(records)
        });
        self.position = positions.max().unwrap_or(0);

        // What two newer segments have is not needed: it may have been removed in part.
        let complete = self.segments.iter().rev();
        let mut complete = complete.filter(|segment| segment.complete().is_some());
        if let Some(older) = complete.nth(1) {
            let needed = older.id.first_seq;
            self.damage.retain(|part| part.first_seq >= needed);
        }

        let base = self.segments.iter().rev().find_map(|segment| {
            let head = segment.complete()?;
            Some((head, segment))
        });
        if let Some((head, segment)) = base {
            let mut values = Values::new();
            for record in segment.snapshot() {
                apply(&mut values, record);
            }
            let last_seq = segment.snapshot_seq();
            self.missing = self.follow((head.position, last_seq), &mut values);
            self.values = values;
        } else if !self.segments.is_empty() {
            // Of each key the latest value that was found. A removal may be among what is missing.
            self.missing = Some(Missing {
                records: None,
                upto: self.position,
            });
            self.values = self.merged();
        }

        // Changes are in both of the newest segments, so the end of one is enough.
        let mut newest = self.segments.iter().rev().take(2);
        if !self.segments.is_empty() && !newest.any(|segment| segment.has_end) {
            let missing = Missing {
                records: None,
                upto: self.position,
            };
            self.missing = Some(missing.joined(self.missing));
        }

        // Cut off at a place where nothing else shows that records are missing.
        if let Some(end) = at_stop.filter(|end| *end > self.position) {
            let missing = Missing {
                records: Some(end - self.position),
                upto: end,
            };
            self.missing = Some(missing.joined(self.missing));
            self.position = end;
        }
    }

    /// Applies all changes behind a position; returns what is missing between them.
    fn follow(&self, (from, mut last_seq): (u64, SeqNo), values: &mut Values) -> Option<Missing> {
        let mut changes: BTreeMap<u64, (SeqNo, &Record)> = BTreeMap::new();
        // Ascending: of two changes with one position, after a failed write, the later one counts.
        for (seq, record) in self.segments.iter().flat_map(FoundSegment::changes) {
            changes.insert(record.position, (*seq, record));
        }

        let mut records = 0;
        let mut upto = None;
        let mut batch: Vec<&Record> = Vec::new();
        let mut expected = from + 1;
        for (position, (seq, record)) in changes.range(from + 1..) {
            let is_gap = *position != expected;
            let is_excused = is_gap && self.was_not_synced(last_seq, *seq);
            // The rest of a batch is worth nothing without its begin, and the other way round.
            if is_gap && !is_excused {
                records += position - expected + batch.len() as u64;
                upto = Some(position - 1);
            }
            if is_gap {
                batch.clear();
            }

            batch.push(record);
            expected = position + 1;
            last_seq = *seq;
            if record.left > 0 {
                continue;
            }
            if batch.first().is_some_and(|first| first.index == 0) {
                for record in batch.drain(..) {
                    apply(values, record);
                }
            } else {
                if upto.is_some() {
                    records += batch.len() as u64;
                    upto = Some(*position);
                }
                batch.clear();
            }
        }

        // A batch without its end is an unfinished write.
        upto.map(|upto| Missing {
            records: Some(records),
            upto,
        })
    }

    /// Whether no record between two sequence numbers is missing but records that some copy shows as not synced: a durable change is synced
    /// in both.
    fn was_not_synced(&self, from: SeqNo, to: SeqNo) -> bool {
        let records = self.segments.iter().flat_map(|segment| &segment.records);
        let present: BTreeSet<SeqNo> = records.map(|(seq, _)| *seq).collect();

        // Each damaged frame is a separate range, and ranges of both copies may alternate.
        let mut known = from;
        while known.next() < to {
            let ranges = self.segments.iter().flat_map(|segment| &segment.unsynced);
            let reached = ranges.filter(|(after, _)| *after <= known);
            let reached = reached.map(|(_, before)| SeqNo(before.0.saturating_sub(1)));
            let in_ranges = reached.max().unwrap_or(known);

            // Records of a snapshot also have numbers.
            let next = known.next();
            let in_records = if present.contains(&next) { next } else { known };
            let upto = in_ranges.max(in_records);
            if upto <= known {
                return false;
            }
            known = upto;
        }
        true
    }

    /// The latest value of each key, of all that was found.
    fn merged(&self) -> Values {
        let mut latest: BTreeMap<&str, &Record> = BTreeMap::new();
        for (_, record) in self.segments.iter().flat_map(|segment| &segment.records) {
            let known = latest.get(record.key.as_str());
            if !record.key.is_empty() && known.is_none_or(|known| known.position <= record.position)
            {
                latest.insert(&record.key, record);
            }
        }

        let mut values = Values::new();
        for record in latest.into_values() {
            apply(&mut values, record);
        }
        values
    }
}

fn is_absent(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { why, .. } if format::is_absent(why))
}

/// The records of a block.
fn read_block(rows: &Rows<'_>) -> Result<Vec<(SeqNo, Record)>, String> {
    (0..rows.len())
        .map(|at| {
            let body = rows.body(at)?;
            let record =
                Record::read(&rows.tag(at), body).filter(|_| rows.kind(at) == Kind::Setting);
            let record = record.ok_or_else(|| "an entry that is no setting".to_owned())?;
            Ok((rows.seq(at), record))
        })
        .collect()
}
