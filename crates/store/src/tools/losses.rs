//! The account of a store's entries: what its logs must contain, what was found in them, and what
//! is lost.
//!
//! `verify` and `salvage` read the logs, each in its way. What a damaged place of a log has cost is
//! worked out here, from everything that is known: headers of frames, the numbers around the place,
//! and what indexes, the state database and the last clean stop know of the segment.
//!
//! # Invariant
//!
//! Losses are counted after all logs were read: what is missing in one may be in another. A number
//! that may be too large is never called exact.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::known::KnownSegment;
use super::layout::SegmentFiles;
use super::seqs::SeqSet;
use crate::log::walk::{DamagedRange, FRAMES_FROM, Walked};
use crate::skipped::SkippedNumbers;
use saltcellar_model::SeqNo;

/// A place of a log whose entries are lost, or may be.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The log.
    pub path: PathBuf,
    /// The place; empty if nothing of what is there is damaged.
    pub range: DamagedRange,
    /// What is known of the place.
    pub cause: Cause,
    /// The entries lost: their number, or an upper bound.
    pub entries: u64,
    /// Whether `entries` is their number.
    pub exact: bool,
    /// What the number follows from.
    pub(crate) basis: Basis,
}

/// Why entries are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Bytes without a readable frame.
    Damaged,
    /// The same in a log that is continued: a write that was never finished, and never acknowledged.
    Unfinished,
    /// The end of the log is unknown, or it cannot be opened.
    UnknownEnd,
    /// The segment had more entries than were found, and more than its damaged ranges account for.
    Missing {
        /// All that are missing, including its damaged ranges.
        missing: u64,
        /// All that it had.
        held: u64,
        /// The first sequence number of the segment.
        first: SeqNo,
        /// Its last one.
        last: SeqNo,
    },
}

/// What a number of lost entries follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The header of a frame, which names its entries.
    Header,
    /// The sequence numbers between those before and behind it that no log has. Some may never have
    /// been assigned.
    Numbers,
    /// The number of entries that the segment had.
    Segment,
    /// Nothing that follows it is known.
    Nothing,
}

/// A log that was read.
pub(crate) struct ReadLog<'a> {
    pub(crate) path: &'a Path,
    /// Its segment; `None` for a file in another place, of whose neighbours nothing is known.
    pub(crate) segment: Option<&'a SegmentFiles>,
    /// Whether its header is intact.
    pub(crate) has_header: bool,
    pub(crate) size: u64,
}

/// A segment, by class and first sequence number.
type Name = (String, SeqNo);

fn name_of(segment: &SegmentFiles) -> Name {
    (segment.class_name.clone(), segment.first_seq)
}

/// What is known and found of all logs, while they are read.
pub(crate) struct Account {
    /// The segments of which more is known than their logs.
    known: BTreeMap<Name, KnownSegment>,
    /// The segments whose logs are read.
    read: BTreeSet<Name>,
    /// All numbers below may have been assigned, if that is known.
    end: Option<SeqNo>,
    /// Numbers that were left out on purpose.
    skipped: Vec<SkippedNumbers>,
    found: FoundNumbers,
    /// With the segment of each.
    losses: Vec<(Option<Name>, Loss)>,
}

/// The sequence numbers that were found.
#[derive(Default)]
struct FoundNumbers {
    all: SeqSet,
    /// By class: a known segment is compared with its own.
    by_class: BTreeMap<String, SeqSet>,
}

impl Account {
    /// `read` are the segments whose logs will be read: the first number of each bounds what can be
    /// lost at the end of the previous segment of its class. `end` bounds what can be lost at the
    /// end of the last segment.
    pub(crate) fn new<'a>(
        known: Vec<KnownSegment>,
        read: impl Iterator<Item = &'a SegmentFiles>,
        end: Option<SeqNo>,
        skipped: Vec<SkippedNumbers>,
    ) -> Self {
        let by_name = |known: KnownSegment| ((known.class_name.clone(), known.first_seq), known);
        Self {
            known: known.into_iter().map(by_name).collect(),
            read: read.map(name_of).collect(),
            end,
            skipped,
            found: FoundNumbers::default(),
            losses: Vec::new(),
        }
    }

    /// Notes an entry that can be read; whether it is the first one with this number.
    pub(crate) fn note_found(&mut self, class_name: &str, seq: SeqNo) -> bool {
        // Not `entry`: it would need a new name for each.
        if let Some(of_class) = self.found.by_class.get_mut(class_name) {
            of_class.insert(seq);
        } else {
            let of_class = self.found.by_class.entry(class_name.to_owned());
            of_class.or_default().insert(seq);
        }
        self.found.all.insert(seq)
    }

    /// Whether an entry with this number was found.
    pub(crate) fn has(&self, seq: SeqNo) -> bool {
        self.found.all.has(seq)
    }

    /// The greatest number that was found.
    pub(crate) fn last(&self) -> Option<SeqNo> {
        self.found.all.last()
    }

    /// Notes logs that the disk cannot open. They bound losses in other segments, so best called
    /// before those segments are read.
    pub(crate) fn note_unopened<'a>(
        &mut self,
        segments: impl IntoIterator<Item = &'a SegmentFiles>,
    ) {
        // What is known of a segment is compared with what is found, whatever its log is.
        let unknown: Vec<_> = segments
            .into_iter()
            .filter(|segment| !self.known.contains_key(&name_of(segment)))
            .collect();
        // Each bounds what can be lost in the previous segment.
        self.read
            .extend(unknown.iter().map(|segment| name_of(segment)));

        for segment in unknown {
            let name = name_of(segment);
            let before = self.next(&name).or(self.end);
            let after = SeqNo(segment.first_seq.0.saturating_sub(1));
            let all = DamagedRange::missing(0, after, before, "the log cannot be opened");
            self.add(Some(name), &segment.log(), all, Cause::UnknownEnd);
        }
    }

    /// Notes the places of a log that cannot be read, and takes them from `walked`.
    pub(crate) fn note_damage(&mut self, log: &ReadLog<'_>, walked: &mut Walked) {
        let name = log.segment.map(name_of);
        let is_known = name
            .as_ref()
            .is_some_and(|name| self.known.contains_key(name));
        // Where nothing is appended to any more, an unfinished write is damage.
        let grows = log.segment.is_some_and(SegmentFiles::grows);
        let at_end = if grows {
            Cause::Unfinished
        } else {
            Cause::Damaged
        };
        // The next segment of the class, or the end of all numbers, bounds what can be lost at the
        // end of a log.
        let before = name.as_ref().and_then(|name| self.next(name).or(self.end));

        let damaged = std::mem::take(&mut walked.damaged).into_iter();
        let damaged = damaged.map(|range| (range, Cause::Damaged));
        let unfinished = std::mem::take(&mut walked.unfinished).into_iter();
        let unfinished = unfinished.map(|range| (range, at_end));
        let mut places: Vec<_> = damaged.chain(unfinished).collect();
        places.sort_by_key(|(range, _)| range.offset);
        let tail = walked.tail.take().map(|mut tail| {
            if log.segment.is_some() && !is_known && !grows {
                // More than the entries of the incomplete frame may be cut off.
                tail.entries = None;
            }
            tail.before = before.filter(|_| !grows);
            (tail, at_end)
        });
        // A damaged header, which has no entries, is found as a range at the beginning.
        let is_of_frames =
            |range: &DamagedRange| log.has_header || range.offset > 0 || range.end() > FRAMES_FROM;
        places.retain(|(range, _)| is_of_frames(range));
        let tail = tail.filter(|(tail, _)| is_of_frames(tail));
        let has_tail = tail.is_some();
        places.extend(tail);

        // Without its header, or without an index that can be read, a log may have lost any number
        // of entries at its end.
        let is_sealed = log.segment.is_some_and(|segment| segment.is_sealed);
        let is_cut = log.segment.is_some() && !is_known && (!log.has_header || is_sealed);
        if is_cut && (!has_tail || grows) {
            let what = if walked.frames == 0 {
                "no frame can be read"
            } else {
                "the end of the log is unknown"
            };
            let offset = walked.end.min(log.size);
            let end = DamagedRange::missing(offset, walked.last_seq, before, what);
            places.push((end, Cause::UnknownEnd));
        }

        for (range, cause) in places {
            self.add(name.clone(), log.path, range, cause);
        }
    }

    /// Adds a place whose entries are counted later.
    fn add(&mut self, name: Option<Name>, path: &Path, range: DamagedRange, cause: Cause) {
        let loss = Loss {
            path: path.to_owned(),
            range,
            cause,
            entries: 0,
            exact: false,
            basis: Basis::Nothing,
        };
        self.losses.push((name, loss));
    }

    /// The first number of the next segment of the class.
    fn next(&self, name: &Name) -> Option<SeqNo> {
        let behind = (Bound::Excluded(name), Bound::Unbounded);
        let (class_name, first_seq) = self.read.range(behind).next()?;
        (*class_name == name.0).then_some(*first_seq)
    }

    /// Counts what is lost, in the order of reading. `state_dir` names the missing logs.
    pub(crate) fn losses(&self, state_dir: &Path) -> Vec<Loss> {
        let mut losses = self.losses.clone();
        let missing = self.known.iter().filter_map(|(name, segment)| {
            let missing = self.missing(segment);
            (missing > 0).then_some((name, segment, missing))
        });
        let missing: Vec<_> = missing.collect();

        for (name, segment, _) in &missing {
            for (_, loss) in losses
                .iter_mut()
                .filter(|(of, _)| of.as_ref() == Some(*name))
            {
                // The log had entries that are not there: its end is no unfinished write.
                if loss.cause == Cause::Unfinished {
                    loss.cause = Cause::Damaged;
                }
                let end = segment.last_seq.next();
                loss.range.before.get_or_insert(end);
            }
        }

        // By what is known of each place.
        for (_, loss) in &mut losses {
            self.count(loss);
        }

        // By what is known of each segment.
        for (name, segment, missing) in missing {
            let of_segment = losses
                .iter_mut()
                .filter(|(of, _)| of.as_ref() == Some(name));
            let of_segment = of_segment.map(|(_, loss)| loss);
            let ranges: Vec<_> = of_segment.filter(|loss| loss.entries > 0).collect();
            if let Some(rest) = share_out(missing, ranges) {
                let loss = rest_of(segment, missing, rest, state_dir);
                losses.push((Some(name.clone()), loss));
            }
        }

        let mut losses: Vec<_> = losses.into_iter().map(|(_, loss)| loss).collect();
        // An end of a log behind which no number is missing.
        losses.retain(|loss| loss.cause != Cause::UnknownEnd || loss.entries > 0 || !loss.exact);
        losses
    }

    /// Counts the entries of a single place.
    fn count(&self, loss: &mut Loss) {
        let range = &loss.range;
        (loss.entries, loss.basis) = match (range.entries, range.before) {
            (Some((first, last, count)), _) => {
                let after = SeqNo(first.0.saturating_sub(1));
                // Those found in another log are not lost.
                let missing = self.missing_between(after, last.next());
                (missing.min(count), Basis::Header)
            }
            (None, Some(before)) => {
                let most = self.missing_between(range.after, before);
                (most, Basis::Numbers)
            }
            (None, None) => (0, Basis::Nothing),
        };

        loss.exact = match loss.basis {
            // The entries of an unfinished write may never have been acknowledged.
            Basis::Header => loss.cause != Cause::Unfinished || loss.entries == 0,
            Basis::Segment => true,
            Basis::Numbers => loss.entries == 0,
            Basis::Nothing => false,
        };
    }

    /// The numbers between two that may belong to entries and are in no log.
    fn missing_between(&self, after: SeqNo, before: SeqNo) -> u64 {
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|range| range.count_between(after.next(), before));
        let missing = self.found.all.missing_between(after, before);
        missing.saturating_sub(skipped.sum())
    }

    /// How many entries of a known segment were found nowhere.
    fn missing(&self, segment: &KnownSegment) -> u64 {
        // A class without a known segment contains entries of other classes, for example in a
        // directory that was renamed and whose log contains no header.
        let has_known = |class: &str| self.known.keys().any(|(name, _)| name == class);
        let is_of = |class: &str| class == segment.class_name || !has_known(class);

        let found = self.found.by_class.iter();
        let found = found.filter(|(class, _)| is_of(class));
        let found: u64 = found
            .map(|(_, numbers)| numbers.count_between(segment.first_seq, segment.last_seq))
            .sum();
        segment.entries.saturating_sub(found)
    }
}

/// Attributes the entries that are missing in a segment to its damaged ranges; returns how many they
/// do not account for.
fn share_out(missing: u64, mut ranges: Vec<&mut Loss>) -> Option<u64> {
    if let [range] = ranges.as_mut_slice() {
        // The number of the segment is exact: the bound of the range is not needed.
        if range.entries > missing || !range.exact {
            range.entries = missing;
            range.exact = true;
            range.basis = Basis::Segment;
        }
    }

    let counted: u64 = ranges.iter().map(|range| range.entries).sum();
    if counted >= missing {
        return None;
    }
    // All of what they may have lost is lost, and more.
    for range in ranges {
        range.exact = true;
    }
    Some(missing - counted)
}

/// The entries that a segment lacks beyond its damaged ranges.
fn rest_of(segment: &KnownSegment, missing: u64, rest: u64, state_dir: &Path) -> Loss {
    let path = segment.log(state_dir);
    // At the end of the log, wherever they were.
    let size = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    let what = format!("{missing} of its {} entries are missing", segment.entries);
    let (first, last) = (segment.first_seq, segment.last_seq);
    let after = SeqNo(first.0.saturating_sub(1));
    Loss {
        path,
        range: DamagedRange::missing(size, after, Some(last.next()), &what),
        cause: Cause::Missing {
            missing,
            held: segment.entries,
            first,
            last,
        },
        entries: rest,
        exact: true,
        basis: Basis::Segment,
    }
}
