//! The delivery of spill files: frames become chunks of events, past damage, with what is missing.
//!
//! # Invariant
//!
//! The numbers of a chunk are contiguous. Missing events are told once, with the first chunk behind
//! them. A frame is passed over only if it is damaged; a disk that may recover is asked again.

use super::log::{FileScan, push_rows, unreadable};
use crate::base::clock::Micros;
use crate::base::limits::SPILL_READ_BYTES;
use crate::model::Batch;
use crate::store::StoreError;
use crate::store::log::file::BlockMeta;
use crate::store::log::walk::DamagedRange;

/// Events read from the spill.
#[derive(Debug)]
pub struct SpillChunk {
    /// The events.
    pub batch: Batch,
    /// The number of the first.
    pub first: u64,
    /// The file, for [`DiskQueue::stored`](super::file::DiskQueue::stored).
    pub file: u64,
    /// Events missing before it. The batch is empty if none follow.
    pub hole: Option<Hole>,
}

/// Missing events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Their number, if known.
    pub lost: Option<u64>,
    /// The arrival of the event before them, if known.
    pub after: Option<Micros>,
}

/// How far all files are delivered, and what was skipped.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The next event. `None` at the start, and after everything was delivered: later events
    /// may bypass the disk.
    expected: Option<Expected>,
    /// One more than the largest number in the files.
    end: u64,
    /// Damaged ranges skipped, until they are reported.
    damage: u64,
    /// Ranges were skipped since the last event, so their loss is not known yet.
    has_unknown_loss: bool,
}

/// The event to be delivered next.
#[derive(Debug)]
struct Expected {
    number: u64,
    /// The arrival of the event before it.
    after: Option<Micros>,
}

impl Progress {
    /// Notes that there are events up to this number, exclusive.
    pub(super) fn extend(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Begins with the event of this number, unless events were delivered before.
    pub(super) fn begin(&mut self, number: u64) {
        self.expected.get_or_insert(Expected {
            number,
            after: None,
        });
    }

    /// Whether the event of this number is the next one.
    fn is_next(&self, number: u64) -> bool {
        let expected = self.expected.as_ref();
        expected.is_none_or(|expected| expected.number == number)
    }

    /// The events that are missing before this one.
    fn hole_before(&self, number: u64) -> Option<Hole> {
        let expected = self.expected.as_ref()?;
        let lost = number
            .checked_sub(expected.number)
            .filter(|lost| *lost > 0)?;
        Some(Hole {
            lost: Some(lost),
            after: expected.after,
        })
    }

    /// Notes the events of a frame as delivered.
    fn deliver(&mut self, meta: &BlockMeta) {
        // A loss before them shows in their numbers.
        self.has_unknown_loss = false;
        self.expected = Some(Expected {
            number: meta.last_seq.0.saturating_add(1),
            after: Some(meta.at_max),
        });
    }

    /// Notes a damaged range.
    pub(super) fn skip(&mut self) {
        self.damage += 1;
        self.has_unknown_loss = true;
    }

    /// Damaged ranges skipped since the last call.
    pub(super) fn take_damage(&mut self) -> u64 {
        std::mem::take(&mut self.damage)
    }

    /// Ends the delivery: what is missing behind the last event, as a chunk without events.
    pub(super) fn end(&mut self) -> Option<SpillChunk> {
        // Events from now until the next spilling bypass the disk.
        let Expected { number, after } = self.expected.take().unwrap_or(Expected {
            number: self.end,
            after: None,
        });
        let lost = Some(self.end.saturating_sub(number)).filter(|lost| *lost > 0);

        let has_unknown_loss = std::mem::take(&mut self.has_unknown_loss);
        (lost.is_some() || has_unknown_loss).then(|| SpillChunk {
            batch: Batch::default(),
            first: number,
            file: 0,
            hole: Some(Hole { lost, after }),
        })
    }
}

/// What reading on in a file came to.
pub(super) enum Reading {
    /// The next events, about [`SPILL_READ_BYTES`] of them.
    Events(SpillChunk),
    /// The disk failed before the next event, and may recover.
    Failed(StoreError),
    /// No event follows.
    End,
}

/// What reading a frame came to.
enum FrameRead {
    /// Its events are in the batch.
    Events,
    /// The disk failed, and may recover.
    Failed(StoreError),
    /// It cannot be read for good.
    Damaged(StoreError),
}

/// A file in delivery.
pub(super) struct OpenFile {
    /// Without the frames and the damaged ranges that were passed.
    scan: Box<FileScan>,
    /// Its number, for the chunks.
    number: u64,
    /// Its events may be stored already.
    unsure: bool,
    /// Some of its bytes are damaged.
    is_damaged: bool,
}

impl OpenFile {
    pub(super) fn new(scan: Box<FileScan>, number: u64, unsure: bool) -> Self {
        Self {
            scan,
            number,
            unsure,
            is_damaged: false,
        }
    }

    /// Whether damage was found so far.
    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Reads the next events. `may_recover`: a frame that the disk cannot read is retried later,
    /// and not skipped.
    pub(super) fn read_chunk(&mut self, progress: &mut Progress, may_recover: bool) -> Reading {
        let mut chunk = SpillChunk {
            batch: Batch::default(),
            first: 0,
            file: self.number,
            hole: None,
        };

        while chunk.batch.bytes() < SPILL_READ_BYTES {
            // Before the next frame is looked for, because a loss behind the last event must be
            // noticed as well.
            self.pass_damage(progress);
            let Some(meta) = self.scan.blocks.front().copied() else {
                return chunk.or(Reading::End);
            };

            let first = meta.first_seq.0;
            let is_first_frame = chunk.batch.is_empty();
            // Missing events precede a chunk.
            if !is_first_frame && !progress.is_next(first) {
                break;
            }

            match self.read_frame(&meta, &mut chunk.batch, may_recover) {
                FrameRead::Events => {
                    if is_first_frame {
                        chunk.first = first;
                        chunk.hole = progress.hole_before(first);
                    }
                    progress.deliver(&meta);
                }
                FrameRead::Damaged(error) => {
                    tracing::error!(%error, "damaged frame in a spill file skipped, its events are lost: check the disk");
                    self.is_damaged = true;
                    progress.skip();
                }
                // The next call fails again.
                FrameRead::Failed(error) => return chunk.or(Reading::Failed(error)),
            }
            self.scan.blocks.pop_front();
        }

        Reading::Events(chunk)
    }

    /// Passes over the damaged ranges before the next good frame.
    fn pass_damage(&mut self, progress: &mut Progress) {
        let next = self.scan.blocks.front();
        let next = next.map_or(u64::MAX, |meta| meta.offset);

        while let Some(range) = self.scan.damaged.pop_front_if(|range| range.offset < next) {
            let path = self.scan.log.path().display();
            let DamagedRange {
                offset,
                bytes,
                what,
                ..
            } = range;
            tracing::error!(%path, offset, bytes, what, "damaged range in a spill file skipped, its events are lost: check the disk");
            self.is_damaged = true;
            progress.skip();
        }
    }

    /// Adds the events of a frame to a batch: all of them, or none.
    fn read_frame(&self, meta: &BlockMeta, batch: &mut Batch, may_recover: bool) -> FrameRead {
        let log = &self.scan.log;
        let read = log.block(meta).and_then(|view| {
            push_rows(&view, batch, self.unsure).map_err(|what| log.corrupt(meta.offset, what))
        });

        match read {
            Ok(()) => FrameRead::Events,
            // It was good when the file was scanned.
            Err(StoreError::Corrupt { .. })
                if may_recover && log.is_unreadable(meta.offset, meta.end()) =>
            {
                FrameRead::Failed(unreadable(log.path()))
            }
            Err(error @ StoreError::Io { .. }) if may_recover => FrameRead::Failed(error),
            Err(error) => FrameRead::Damaged(error),
        }
    }
}

impl SpillChunk {
    /// The chunk, if it contains events, which go before what came after them.
    fn or(self, otherwise: Reading) -> Reading {
        if self.batch.is_empty() {
            otherwise
        } else {
            Reading::Events(self)
        }
    }
}
