//! One file of the spill: a log of the store ([`crate::store::log`]) with numbers of events in place
//! of sequence numbers.
//!
//! Its class is [`CLASS`], and its first number is in its name: like a segment's, its frames are
//! valid in it alone. A batch is one frame or more, so damage costs the batches that it hits.

use std::collections::VecDeque;
use std::path::Path;

use crate::base::clock::Micros;
use crate::base::limits::{ENTRY_BYTES_MAX, TAG_BYTES_MAX};
use crate::model::{Batch, Kind, SeqNo, Source};
use crate::store::StoreError;
use crate::store::error::io_at;
use crate::store::log::block::BlockView;
use crate::store::log::builder::{BlockBuilder, Packer};
use crate::store::log::file::{BlockMeta, LogFile};
use crate::store::log::frame::LogId;
use crate::store::log::walk::{Bounds, DamagedRange, walk};
use crate::store::log::writer::LogWriter;
use crate::store::vfs::Fs;
use crate::wire::salt_event::fingerprints_of;

/// The class in the headers of all spill files. No segment has it: they are in other directories.
const CLASS: &str = "spill";

/// The identity of a file whose first event has this number.
pub(super) fn id(store_id: u64, first: u64) -> LogId {
    LogId {
        store_id,
        first_seq: SeqNo(first),
    }
}

/// A file that batches are appended to.
pub(super) struct SpillLog {
    out: LogWriter,
    builder: BlockBuilder,
    packer: Packer,
    /// The number of the last event.
    last: u64,
}

impl SpillLog {
    /// Creates a file; the first batch must follow, or the file contains no header.
    pub(super) fn create(
        fs: &dyn Fs,
        path: &Path,
        id: LogId,
        created: Micros,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            out: LogWriter::create(fs, path, CLASS, id, created)?,
            builder: BlockBuilder::default(),
            packer: Packer::new().map_err(io_at("start zstd for", path))?,
            last: id.first_seq.0.saturating_sub(1),
        })
    }

    /// The size of the file.
    pub(super) fn end(&self) -> u64 {
        self.out.end()
    }

    /// Appends the entries of a batch, numbered from `first`; `unsure` marks them as possibly stored
    /// already. After an error none of them are in the file, and nothing may be appended to it.
    pub(super) fn append(
        &mut self,
        batch: &Batch,
        first: u64,
        unsure: bool,
    ) -> Result<(), StoreError> {
        let end = self.out.end();
        let appended = self
            .pack(batch, first, unsure)
            .and_then(|()| self.out.flush());

        if appended.is_err() {
            // If this fails as well, the next reader finds an unfinished write.
            let _ = self.out.cut(end);
        }
        appended
    }

    fn pack(&mut self, batch: &Batch, first: u64, unsure: bool) -> Result<(), StoreError> {
        for ((mut entry, _), n) in batch.entries().zip(0_u64..) {
            // As for the store, which would refuse it forever.
            if entry.tag.len() + entry.body.len() > TAG_BYTES_MAX + ENTRY_BYTES_MAX {
                return Err(StoreError::Broken(
                    "an entry exceeds the size limit of the spill",
                ));
            }

            if unsure {
                entry.source = spilled(entry.source);
            }
            if self.builder.is_full_for(&entry) {
                self.out.append_block(&mut self.builder, &mut self.packer)?;
            }

            // Two gaps may have the number of the batch that they stand before.
            self.last = first.saturating_add(n).max(self.last.saturating_add(1));
            self.builder.push(SeqNo(self.last), &entry)?;
        }

        if !self.builder.is_empty() {
            self.out.append_block(&mut self.builder, &mut self.packer)?;
        }
        Ok(())
    }
}

/// The source of an event that may be stored already.
fn spilled(source: Source) -> Source {
    if source == Source::Bus {
        Source::SpilledBus
    } else {
        source
    }
}

/// What a file with the name of a spill file is.
pub(super) enum Scan {
    /// A crash or a power loss came before its first batch was written.
    Blank,
    /// Another file, and why.
    Foreign(String),
    /// A spill file that this daemon cannot read, and why.
    Unread(String),
    /// A spill file.
    Log(Box<FileScan>),
}

/// The frames of a spill file.
pub(super) struct FileScan {
    pub(super) log: LogFile,
    /// The good frames, in order.
    pub(super) blocks: VecDeque<BlockMeta>,
    /// The ranges without a good frame, in order.
    pub(super) damaged: VecDeque<DamagedRange>,
    /// Bytes behind `end` of a write that a kill cut off, if any.
    pub(super) torn: Option<u64>,
    /// Offset after the last good frame.
    pub(super) end: u64,
    pub(super) size: u64,
    pub(super) events: u64,
    /// Number and arrival of the first event.
    pub(super) first: Option<(u64, Micros)>,
    /// Number and arrival of the last event.
    pub(super) last: Option<(u64, Micros)>,
}

/// Reads a file and checks each of its frames. Unreadable sectors are an error, because the disk may
/// return them later, unless `past_errors`.
pub(super) fn scan(
    fs: &dyn Fs,
    path: &Path,
    id: LogId,
    past_errors: bool,
) -> Result<Scan, StoreError> {
    let log = LogFile::bare(fs, path, id)?;
    let size = log.size()?;

    let header = match log.header() {
        // Its own words are about a state directory.
        Err(StoreError::Version {
            found, expected, ..
        }) => {
            return Ok(Scan::Unread(format!(
                "it has format {found}, this release reads format {expected}: start the release that wrote it"
            )));
        }
        header => header?,
    };
    if let Some(what) = header
        .as_ref()
        .and_then(|header| header.mismatch(CLASS, id))
    {
        return Ok(Scan::Foreign(what));
    }

    let mut blocks = VecDeque::new();
    let (mut first, mut last) = (None, None);
    let walked = walk(&log, Bounds::of_log(size), true, |meta, view| {
        let rows = view.rows();
        // What is counted now has to be delivered later.
        if let Err(what) = rows.body(0) {
            return Some(what);
        }

        let here = |at: usize| (rows.seq(at).0, rows.at(at));
        first.get_or_insert(here(0));
        last = Some(here(view.len() - 1));
        blocks.push_back(*meta);
        None
    })?
    .finished();

    let is_unreadable = !log.unreadable().is_empty();
    if is_unreadable && !past_errors {
        return Err(unreadable(path));
    }

    // A damaged header is no loss, because the file's name says the same. Without a frame either,
    // nothing shows that this is a file of the spill.
    if header.is_none() && walked.frames == 0 && !is_unreadable {
        return Ok(if log.is_blank()? {
            Scan::Blank
        } else {
            Scan::Foreign("it does not start with the header of a spill file".to_owned())
        });
    }

    let mut damaged = VecDeque::from(walked.damaged);
    let mut torn = None;
    if let Some(tail) = walked.tail {
        if log.ends_within_frame(tail.offset, size)? {
            torn = Some(tail.bytes);
        } else {
            damaged.push_back(tail);
        }
    }

    Ok(Scan::Log(Box::new(FileScan {
        log,
        blocks,
        damaged,
        torn,
        end: walked.end.min(size),
        size,
        events: walked.entries,
        first,
        last,
    })))
}

/// The error of a file that the disk cannot read.
pub(super) fn unreadable(path: &Path) -> StoreError {
    io_at("read", path)(rustix::io::Errno::IO.into())
}

/// Adds the entries of a block to a batch, or none of them; the error describes the damage. `unsure`
/// marks them as possibly stored already.
pub(super) fn push_rows(view: &BlockView, batch: &mut Batch, unsure: bool) -> Result<(), String> {
    let rows = view.rows();
    // Bodies are unpacked together, so all of them are there if the last one is.
    if let Some(last) = rows.len().checked_sub(1) {
        rows.body(last)?;
    }

    for at in 0..rows.len() {
        let tag = rows.tag(at);
        let jid = rows.jid(at);
        let body = rows.body(at)?;
        let mut entry = rows.entry(at, &tag, &jid, body);
        if unsure {
            entry.source = spilled(entry.source);
        }

        // A gap is never folded into another.
        let fingerprints = (entry.kind != Kind::Gap).then(|| fingerprints_of(&entry));
        batch.push(&entry, fingerprints);
    }
    Ok(())
}
