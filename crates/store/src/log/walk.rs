//! A sequential scan of a log, tolerant of damage.
//!
//! At a position without a valid frame, the scan searches for the next one at multiples of 16
//! bytes. A candidate costs the check of its 48-byte header ([`super::frame`]), so the run time is
//! linear in the size of the log. The store id is an input and never taken from a frame.
//!
//! A header whose check value holds bounds the search: no frame is looked for in its payload, even
//! if the payload is damaged. A body therefore exposes no frame unless the header around it is
//! damaged, and then only to a writer who knows the store id.
//!
//! Bytes between two valid frames are damage, with one exception. If the following frame marks them
//! as possibly unsynced and the log is active, they belong to an unfinished write
//! ([`Walked::finished`]). A range with an unreadable sector never does: its content may be
//! acknowledged.
//!
//! A frame with a number that was never reserved ([`Bounds::below`]) is not trusted. It bounds
//! nothing, counts as damage, and is never truncated.
//!
//! # Invariant
//!
//! Sequence numbers ascend, starting at the segment's first one. A valid frame that this release
//! cannot read is not passed on, counts as damage, and is never truncated.

use super::block::BlockView;
use super::frame::{ALIGN, FRAME_HEADER_LEN, FRAME_VERSION, FrameHeader};
use crate::error::StoreError;
use crate::log::file::{BlockMeta, FILE_HEADER_LEN, LogFile, Payload};
use saltcellar_model::SeqNo;

/// Offset of the first frame of a log.
pub(crate) const FRAMES_FROM: u64 = FILE_HEADER_LEN as u64;

/// A range of a log without readable entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Description of the damage.
    pub what: String,
    /// First and last sequence number and number of the lost entries, if a header could be read.
    pub entries: Option<(SeqNo, SeqNo, u64)>,
    /// The last sequence number before the range.
    pub after: SeqNo,
    /// The first sequence number behind the range; `None` if no good frame follows.
    pub before: Option<SeqNo>,
    /// Whether it cannot be an unfinished write: a valid frame that was rejected, or bytes that the
    /// disk cannot read.
    rejected: bool,
}

impl DamagedRange {
    /// Entries that are missing at the end of a log, between two sequence numbers.
    pub(crate) fn missing(offset: u64, after: SeqNo, before: Option<SeqNo>, what: &str) -> Self {
        Self {
            offset,
            bytes: 0,
            what: what.to_owned(),
            entries: None,
            after,
            before,
            rejected: false,
        }
    }

    /// Offset of the first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub struct Walked {
    /// Good frames.
    pub frames: u64,
    /// Entries of good frames.
    pub entries: u64,
    /// Offset after the last valid frame and its padding; the file may be shorter than the padding.
    pub end: u64,
    pub(crate) last_seq: SeqNo,
    /// Ranges before `end` without a good frame.
    pub damaged: Vec<DamagedRange>,
    /// Ranges of unfinished writes, if the log is active; see [`Walked::finished`].
    pub(crate) unfinished: Vec<DamagedRange>,
    /// The nonzero bytes behind `end`.
    pub tail: Option<DamagedRange>,
    /// All bytes below this offset were on stable storage when the last frame was written.
    pub(crate) synced: u64,
    /// Offset and version of the first frame written by another release.
    pub(crate) unknown_version: Option<(u64, u16)>,
    /// Whether nothing may be written to the log, because it contains frames that were not trusted,
    /// or its end cannot be read.
    pub(crate) is_closed: bool,
    /// The greatest number of a frame that was not trusted.
    pub(crate) unbelieved: Option<SeqNo>,
}

impl Walked {
    /// For a log that is not active: its unfinished writes are damage.
    #[must_use]
    pub fn finished(mut self) -> Self {
        self.damaged.append(&mut self.unfinished);
        self.damaged.sort_by_key(|range| range.offset);
        self
    }
}

/// The part of a file to scan.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Start offset: [`FRAMES_FROM`], or 0 for a file that may have no header.
    pub from: u64,
    /// End offset.
    pub(crate) size: u64,
    /// No number from here on was ever reserved.
    pub(crate) below: SeqNo,
}

impl Bounds {
    /// The frames of a whole log of `size` bytes.
    pub fn of_log(size: u64) -> Self {
        Self {
            from: FRAMES_FROM,
            ..Self::of_file(size)
        }
    }

    /// A file of `size` bytes that may have no header.
    pub(crate) fn of_file(size: u64) -> Self {
        Self {
            from: 0,
            size,
            below: SeqNo(u64::MAX),
        }
    }

    /// Only numbers below `seq` are trusted.
    pub(crate) fn below(self, seq: SeqNo) -> Self {
        Self { below: seq, ..self }
    }
}

/// Size of a log including the padding of its last frame, which may be missing from the file.
fn padded(size: u64) -> u64 {
    size.next_multiple_of(ALIGN as u64)
}

/// The end of the frames in a log that may be appended to concurrently, and its last sequence
/// number. The file may be preallocated past it.
pub(crate) fn end(log: &LogFile) -> Result<(u64, SeqNo), StoreError> {
    let size = log.size()?;
    let walked = walk(log, Bounds::of_log(size), false, |_, _| None)?;
    // A tail may be a commit that is being written right now.
    let end = walked.tail.map_or(walked.end, |tail| tail.end());
    Ok((end.min(size), walked.last_seq))
}

/// Scans a log and calls `each` for each good frame; `each` may return a fault of the block. With
/// `bodies`, their checksums are also verified.
pub fn walk(
    log: &LogFile,
    bounds: Bounds,
    bodies: bool,
    mut each: impl FnMut(&BlockMeta, &BlockView) -> Option<String>,
) -> Result<Walked, StoreError> {
    let mut state = WalkState::new(log.id().first_seq, bounds);

    let mut at = bounds.from;
    while let Some(header) = log.next_header(at, bounds.size)? {
        // Also for a damaged payload: no frame is looked for inside one.
        at = header.end();
        // Recovery wrote it over an unfinished write, so the range behind it is accounted for.
        if header.is_filler() {
            state.pass_gap(header.offset, None);
            state.walked.end = header.end().min(padded(bounds.size));
            continue;
        }

        if header.first_seq <= state.walked.last_seq {
            // A frame left behind by a failed write, past the shorter commit that overwrote its
            // start. A later commit behind it would have overwritten its header before it was
            // acknowledged.
            continue;
        }
        // Its length is not trusted either, so the search continues right behind the header.
        if header.last_seq >= bounds.below {
            state.disbelieve(&header);
            at = header.offset + FRAME_HEADER_LEN as u64;
            continue;
        }
        // Data of a later release. The caller refuses to start, so it is only recorded here.
        if header.version != FRAME_VERSION {
            state
                .walked
                .unknown_version
                .get_or_insert((header.offset, header.version));
            state.reject(
                &header,
                &format!(
                    "a frame of version {}, this release reads {FRAME_VERSION}",
                    header.version
                ),
            );
            continue;
        }

        if header.last_seq == SeqNo(u64::MAX) {
            // `SEQUENCE` would have no number left to continue with.
            state.reject(&header, "no sequence number can follow its last entry");
            continue;
        }

        match log.content(&header, bounds.size, bodies)? {
            Payload::Block(view) => {
                let meta = BlockMeta::of(&view, &header);
                let fault = each(&meta, &view);
                state.accept(&header, fault);
            }
            Payload::Unreadable(what) => state.reject(&header, &what),
            // Damage or an unfinished write; the next good frame decides.
            Payload::Damaged(what) => state.broken.push((header, what)),
        }
    }
    state.finish(log)
}

struct WalkState {
    walked: Walked,
    size: u64,
    below: SeqNo,
    /// Frames behind `walked.end` with a valid header and a damaged payload, ascending, without
    /// overlaps.
    broken: Vec<(FrameHeader, &'static str)>,
    last: Option<FrameHeader>,
    /// End of the frames that were not trusted.
    unbelieved_end: u64,
}

impl WalkState {
    fn new(first_seq: SeqNo, bounds: Bounds) -> Self {
        let last_seq = SeqNo(first_seq.0.saturating_sub(1));

        let walked = Walked {
            end: bounds.from,
            synced: bounds.from,
            last_seq,
            ..Walked::default()
        };
        Self {
            walked,
            size: bounds.size,
            below: bounds.below,
            broken: Vec::new(),
            last: None,
            unbelieved_end: 0,
        }
    }

    fn range(&self, offset: u64, end: u64, what: &str) -> DamagedRange {
        let what = what.to_owned();
        let after = self.walked.last_seq;
        DamagedRange {
            offset,
            bytes: end - offset,
            what,
            entries: None,
            after,
            before: None,
            rejected: false,
        }
    }

    /// Records the range from the last valid frame to `upto`; a frame with first sequence number
    /// `before` follows there.
    fn pass_gap(&mut self, upto: u64, before: Option<SeqNo>) {
        // Each header tells how many entries its range has lost, so the ranges are kept apart.
        for (header, what) in std::mem::take(&mut self.broken) {
            // Inside a range that is already recorded.
            if header.offset < self.walked.end {
                continue;
            }
            if header.offset > self.walked.end {
                let gap = self.range(self.walked.end, header.offset, "no frame can be read here");
                self.walked.damaged.push(gap);
            }

            self.set_before(header.first_seq);
            let end = header.end().min(upto);
            let entries = Some((header.first_seq, header.last_seq, u64::from(header.count)));

            let range = DamagedRange {
                entries,
                ..self.range(header.offset, end, what)
            };

            self.walked.damaged.push(range);
            self.walked.last_seq = self.walked.last_seq.max(header.last_seq);
            self.walked.end = end;
        }

        if upto > self.walked.end {
            let gap = self.range(self.walked.end, upto, "no frame can be read here");
            self.walked.damaged.push(gap);
            self.walked.end = upto;
        }

        if let Some(before) = before {
            self.set_before(before);
        }
    }

    /// Completes the ranges that had no good frame behind them yet.
    fn set_before(&mut self, seq: SeqNo) {
        self.walked
            .damaged
            .iter_mut()
            .filter(|s| s.before.is_none())
            .for_each(|s| s.before = Some(seq));
    }

    /// Records a valid frame that is not passed on. It is kept in the log.
    fn reject(&mut self, header: &FrameHeader, what: &str) {
        self.pass_gap(header.offset, None);

        let end = header.end().min(padded(self.size));
        let entries = Some((header.first_seq, header.last_seq, u64::from(header.count)));
        let range = DamagedRange {
            entries,
            rejected: true,
            ..self.range(header.offset, end, what)
        };

        self.walked.damaged.push(range);
        self.walked.end = end;
    }

    /// Records a frame with a number that was never reserved. Only its header is passed: the rest
    /// may hold anything.
    fn disbelieve(&mut self, header: &FrameHeader) {
        self.pass_gap(header.offset, None);
        let end = (header.offset + FRAME_HEADER_LEN as u64).min(padded(self.size));

        let what = format!(
            "a frame with sequence number {}, but SEQUENCE reserved only those below {}; if SEQUENCE was replaced by an older file, \
             write a greater number into it and run `saltcellar store rebuild`",
            header.last_seq.0, self.below.0
        );

        let range = DamagedRange {
            rejected: true,
            ..self.range(header.offset, end, &what)
        };

        self.walked.damaged.push(range);
        self.walked.end = end;
        self.walked.is_closed = true;
        self.walked.unbelieved = self.walked.unbelieved.max(Some(header.last_seq));

        // What the frame claims to cover may be acknowledged data, so a tail inside it is not cut
        // off.
        self.unbelieved_end = self.unbelieved_end.max(header.end().min(self.size));
    }

    /// Records a good frame, unless `each` returned a fault.
    fn accept(&mut self, header: &FrameHeader, fault: Option<String>) {
        self.pass_gap(header.offset, Some(header.first_seq));
        // Its entries are not passed on, but its numbers and its range still count as used.
        if let Some(what) = fault {
            self.reject(header, &what);
        } else {
            self.walked.frames += 1;
            self.walked.entries += u64::from(header.count);
        }

        self.walked.last_seq = header.last_seq;
        self.walked.end = header.end().min(padded(self.size));
        self.last = Some(*header);
    }

    fn finish(mut self, log: &LogFile) -> Result<Walked, StoreError> {
        let end = self.walked.end;
        // Frames with a valid header and a damaged payload at the end: part of the last commit, or
        // damage.
        let broken: Vec<_> = self
            .broken
            .iter()
            .map(|(header, _)| *header)
            .filter(|h| h.offset >= end)
            .collect();

        // Zero bytes behind are preallocated space. A header that names more bytes shows how far a
        // write went.
        let used = log.used_end(end, self.size)?.max(
            broken
                .last()
                .map_or(end, |header| header.end().min(self.size)),
        );

        if used > end {
            let mut tail = self.range(end, used, "no complete frame can be read here");
            // The headers are contiguous only if the first begins where the good frames end;
            // otherwise the number of lost entries is unknown.
            if let (Some(first), Some(last)) = (
                broken.first().filter(|first| first.offset == end),
                broken.last(),
            ) {
                let count = broken.iter().map(|header| u64::from(header.count)).sum();
                tail.entries = Some((first.first_seq, last.last_seq, count));
            }
            // It may hold acknowledged entries: neither cut it off nor append behind it.
            if log.is_unreadable(end, used) || end < self.unbelieved_end {
                tail.rejected = true;
                self.walked.is_closed = true;
                self.walked.end = padded(used.max(self.unbelieved_end));
                self.walked.damaged.push(tail);
            } else {
                self.walked.tail = Some(tail);
            }
        }

        // The newest header records which bytes were unsynced when its commit was written. A header
        // whose payload is damaged counts: its own checksum holds.
        if let Some(newest) = broken.last().or(self.last.as_ref()) {
            self.walked.synced = newest.synced.clamp(FRAMES_FROM.min(end), end);

            // Data behind a complete commit proves that this commit was synced.
            let is_over = broken.is_empty() && newest.ends_commit && self.walked.tail.is_some();
            if !is_over {
                self.split_unfinished(log, newest.synced);
            }
        }

        Ok(self.walked)
    }

    fn split_unfinished(&mut self, log: &LogFile, synced: u64) {
        for range in std::mem::take(&mut self.walked.damaged) {
            // Damage stays damage: unsynced bytes that were rejected or cannot be read may be
            // acknowledged.
            let is_damage = range.rejected || log.is_unreadable(range.offset, range.end());
            if is_damage || range.end() <= synced {
                self.walked.damaged.push(range);
            } else if range.offset >= synced {
                self.walked.unfinished.push(range);
            } else {
                // A range across the border contains a part of each kind.
                let bytes = synced - range.offset;
                self.walked.damaged.push(DamagedRange {
                    bytes,
                    ..range.clone()
                });

                let rest = DamagedRange {
                    offset: synced,
                    bytes: range.bytes - bytes,
                    ..range
                };
                self.walked.unfinished.push(rest);
            }
        }
    }
}
