//! A log read through from its first frame to its last, whatever has become of it.
//!
//! The walk is told the store id and never learns it from a frame. Where no valid frame begins it searches for the next
//! one, at every multiple of 16 bytes; a candidate costs the check of its 48-byte header ([`super::frame`]), so that a walk
//! takes time in proportion to the bytes of the log. Bytes between two valid frames are damage, unless the frame
//! behind them says that they were not known to be on stable storage when it was written: then they are a part of a write
//! that was not finished, if the log still grows ([`Walked::finish`]).
//!
//! # Invariant
//!
//! Sequence numbers ascend from the segment's first one. A valid frame that this release cannot read is not handed out,
//! counts as damage, and is never cut off.

use super::block::BlockView;
use super::error::StoreError;
use super::frame::{ALIGN, FRAME_VERSION, FrameHeader};
use super::log::{BlockMeta, Content, FILE_HEADER_LEN, LogFile};
use crate::model::SeqNo;

/// Offset of the first frame of a log.
pub const FRAMES_FROM: u64 = FILE_HEADER_LEN as u64;

/// Bytes that hold no entry that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// What is wrong with them.
    pub what: String,
    /// First and last sequence number of the entries that were there for sure, and how many: a header could be read.
    pub entries: Option<(SeqNo, SeqNo, u64)>,
    /// The last sequence number before.
    pub after: SeqNo,
    /// The first sequence number behind; none if nothing good follows.
    pub before: Option<SeqNo>,
    /// Are they a valid frame that was refused? Then they are no unfinished write.
    refused: bool,
}

impl Stretch {
    /// Offset of the byte behind them.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct Walked {
    /// Good frames.
    pub frames: u64,
    /// Entries in them.
    pub entries: u64,
    /// Byte behind the last valid frame and its padding, which the file need not have.
    pub end: u64,
    /// The last sequence number.
    pub last_seq: SeqNo,
    /// Bytes before `end` that are no good frames.
    pub damaged: Vec<Stretch>,
    /// Those of them that a start may take for an unfinished write if the log still grows, see [`Walked::finish`].
    pub unfinished: Vec<Stretch>,
    /// Bytes behind `end` that are not zero.
    pub tail: Option<Stretch>,
    /// Everything before this byte was on stable storage when the last frame was written; the rest may be in memory only.
    pub synced: u64,
    /// Offset and version of a frame that another release wrote.
    pub unknown_version: Option<(u64, u16)>,
}

impl Walked {
    /// Of a log that does not grow: what was not finished there was finished once, and is damage.
    #[must_use]
    pub fn finished(mut self) -> Self {
        self.damaged.append(&mut self.unfinished);
        self.damaged.sort_by_key(|stretch| stretch.offset);
        self
    }
}

/// What is known of a log before it is read.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Where to begin: [`FRAMES_FROM`], or 0 for a file that may have no header.
    pub from: u64,
    /// Where to end.
    pub size: u64,
}

impl Bounds {
    /// Those of a whole log of `size` bytes.
    pub fn of_log(size: u64) -> Self {
        Self { from: FRAMES_FROM, size }
    }
}

/// The end of a log whose file has so many bytes: of its last frame the padding may be cut off.
fn padded(size: u64) -> u64 {
    size.next_multiple_of(ALIGN as u64)
}

/// Where a log ends that may grow meanwhile: its file is longer, and what comes to be written there is not there yet.
pub fn end(log: &LogFile) -> Result<u64, StoreError> {
    let size = log.size()?;
    let walked = walk(log, Bounds::of_log(size), false, |_, _| None)?;
    Ok(walked.tail.map_or(walked.end, |tail| tail.end()).min(size))
}

/// Reads a log. Each good frame goes to `each`, which may say what is wrong with it all the same. With `bodies`, they are
/// checked too.
pub fn walk(
    log: &LogFile,
    bounds: Bounds,
    bodies: bool,
    mut each: impl FnMut(&BlockMeta, &BlockView) -> Option<String>,
) -> Result<Walked, StoreError> {
    let mut state = State::new(log.id().first_seq, bounds);
    let mut at = bounds.from;
    while let Some(header) = log.next_header(at, bounds.size)? {
        at = header.end();
        if header.is_filler() {
            state.pass_gap(header.offset, None);
            state.walked.end = header.end().min(padded(bounds.size));
            continue;
        }
        if header.first_seq <= state.walked.last_seq {
            // A write that failed and could not be cut off leaves frames behind the shorter one that followed it.
            at = header.offset + ALIGN as u64;
            continue;
        }
        if header.version != FRAME_VERSION {
            state.walked.unknown_version.get_or_insert((header.offset, header.version));
            state.refuse(
                &header,
                &format!("a frame of version {}, this release reads {FRAME_VERSION}", header.version),
            );
            continue;
        }
        if header.last_seq == SeqNo(u64::MAX) {
            state.refuse(&header, "no number can follow that of its last entry");
            continue;
        }
        match log.content(&header, bounds.size, bodies)? {
            Content::Block(view) => {
                let meta = BlockMeta::of(&view, &header);
                let fault = each(&meta, &view);
                state.take(&header, fault);
            }
            Content::Unreadable(what) => state.refuse(&header, &what),
            Content::Damaged(what) => {
                // Not skipped by its length: leftovers of a failed write may begin in the middle of it.
                at = header.offset + ALIGN as u64;
                state.broken.push((header, what));
            }
        }
    }
    state.finish(log)
}

/// A walk under way.
struct State {
    walked: Walked,
    size: u64,
    /// Frames behind `walked.end` with a valid header and damaged content.
    broken: Vec<(FrameHeader, &'static str)>,
    /// The last good frame.
    last: Option<FrameHeader>,
}

impl State {
    fn new(first_seq: SeqNo, bounds: Bounds) -> Self {
        let last_seq = SeqNo(first_seq.0.saturating_sub(1));
        let walked = Walked { end: bounds.from, synced: bounds.from, last_seq, ..Walked::default() };
        Self { walked, size: bounds.size, broken: Vec::new(), last: None }
    }

    fn stretch(&self, offset: u64, end: u64, what: &str) -> Stretch {
        let (what, after) = (what.to_owned(), self.walked.last_seq);
        Stretch { offset, bytes: end - offset, what, entries: None, after, before: None, refused: false }
    }

    /// What lies between the last valid frame and `upto`, where one begins whose first sequence number is `before`.
    fn pass_gap(&mut self, upto: u64, before: Option<SeqNo>) {
        for (header, what) in std::mem::take(&mut self.broken) {
            if header.offset < self.walked.end {
                continue;
            }
            if header.offset > self.walked.end {
                let gap = self.stretch(self.walked.end, header.offset, "no frame can be read here");
                self.walked.damaged.push(gap);
            }
            self.set_before(header.first_seq);
            let end = header.end().min(upto);
            let entries = Some((header.first_seq, header.last_seq, u64::from(header.count)));
            let stretch = Stretch { entries, ..self.stretch(header.offset, end, what) };
            self.walked.damaged.push(stretch);
            self.walked.last_seq = self.walked.last_seq.max(header.last_seq);
            self.walked.end = end;
        }
        if upto > self.walked.end {
            let gap = self.stretch(self.walked.end, upto, "no frame can be read here");
            self.walked.damaged.push(gap);
            self.walked.end = upto;
        }
        if let Some(before) = before {
            self.set_before(before);
        }
    }

    /// Of every stretch behind which nothing was found yet.
    fn set_before(&mut self, seq: SeqNo) {
        self.walked.damaged.iter_mut().filter(|s| s.before.is_none()).for_each(|s| s.before = Some(seq));
    }

    /// A valid frame that is not handed out. It stays where it is.
    fn refuse(&mut self, header: &FrameHeader, what: &str) {
        self.pass_gap(header.offset, None);
        let end = header.end().min(padded(self.size));
        let entries = Some((header.first_seq, header.last_seq, u64::from(header.count)));
        let stretch = Stretch { entries, refused: true, ..self.stretch(header.offset, end, what) };
        self.walked.damaged.push(stretch);
        self.walked.end = end;
    }

    /// A good frame, in which `each` found perhaps a fault.
    fn take(&mut self, header: &FrameHeader, fault: Option<String>) {
        self.pass_gap(header.offset, Some(header.first_seq));
        if let Some(what) = fault {
            self.refuse(header, &what);
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
        let broken: Vec<_> =
            self.broken.iter().map(|(header, _)| *header).filter(|h| h.offset >= end).collect();
        let used =
            log.used(end, self.size)?.max(broken.last().map_or(end, |header| header.end().min(self.size)));
        if used > end {
            let mut tail = self.stretch(end, used, "no whole frame can be read here");
            if let (Some(first), Some(last)) =
                (broken.first().filter(|first| first.offset == end), broken.last())
            {
                let count = broken.iter().map(|header| u64::from(header.count)).sum();
                tail.entries = Some((first.first_seq, last.last_seq, count));
            }
            self.walked.tail = Some(tail);
        }
        // The newest header says what was not known to be synced when its commit was written.
        if let Some(newest) = broken.last().or(self.last.as_ref()) {
            self.walked.synced = newest.synced.clamp(FRAMES_FROM.min(end), end);
            // If more was written behind a whole commit, that commit was finished before.
            let is_over = broken.is_empty() && newest.ends_commit && self.walked.tail.is_some();
            if !is_over {
                self.set_unfinished_apart(newest.synced);
            }
        }
        Ok(self.walked)
    }

    fn set_unfinished_apart(&mut self, synced: u64) {
        for stretch in std::mem::take(&mut self.walked.damaged) {
            if stretch.refused || stretch.end() <= synced {
                self.walked.damaged.push(stretch);
            } else if stretch.offset >= synced {
                self.walked.unfinished.push(stretch);
            } else {
                let bytes = synced - stretch.offset;
                self.walked.damaged.push(Stretch { bytes, ..stretch.clone() });
                let rest = Stretch { offset: synced, bytes: stretch.bytes - bytes, ..stretch };
                self.walked.unfinished.push(rest);
            }
        }
    }
}
