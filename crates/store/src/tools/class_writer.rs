//! Writes the segments of a class in a new store: frames as they are, or entries in new blocks.

use std::path::{Path, PathBuf};

use super::files;
use crate::error::io_at;
use crate::log::block::BlockView;
use crate::log::builder::{BlockBuilder, Packer};
use crate::log::frame::LogId;
use crate::log::writer::LogWriter;
use crate::vfs::Disk;
use crate::{StoreError, format};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{SEGMENT_BYTES, SEGMENT_ENTRIES_MAX};
use saltcellar_model::{Entry, SeqNo};

/// Sequence numbers in an index are 32 bits, relative to the segment's first one; those after a
/// restore are far away.
const SPAN_MAX: u64 = 1 << 31;

/// Writes the segments of a class.
pub(super) struct ClassWriter {
    to: PathBuf,
    pub(super) class_name: String,
    id: LogId,
    now: Micros,
    out: Option<LogWriter>,
    in_segment: u64,
    entries: u64,
    builder: BlockBuilder,
    packer: Packer,
}

impl ClassWriter {
    pub(super) fn new(
        to: &Path,
        class_name: &str,
        store_id: u64,
        now: Micros,
    ) -> Result<Self, StoreError> {
        let packer = Packer::new().map_err(io_at("start zstd for", to))?;
        Ok(Self {
            to: to.to_owned(),
            class_name: class_name.to_owned(),
            id: LogId {
                store_id,
                first_seq: SeqNo::default(),
            },
            now,
            out: None,
            in_segment: 0,
            entries: 0,
            builder: BlockBuilder::default(),
            packer,
        })
    }

    pub(super) fn put(
        &mut self,
        frame: Vec<u8>,
        first_seq: SeqNo,
        count: u64,
    ) -> Result<(), StoreError> {
        // The limits of a running daemon: a larger segment would have an index that does not fit
        // memory.
        let is_full = |out: &LogWriter| {
            out.end() >= SEGMENT_BYTES
                || self.in_segment >= SEGMENT_ENTRIES_MAX
                || first_seq.0.saturating_sub(self.id.first_seq.0) > SPAN_MAX
        };
        if self.out.as_ref().is_some_and(is_full) {
            self.close()?;
        }

        if self.out.is_none() {
            // A segment is named after its first entry.
            let dir = format::class_dir(&self.to, &self.class_name)
                .join(format::generation_name(first_seq, 0));
            files::make_dir(&dir)?;
            self.id.first_seq = first_seq;
            let path = dir.join("log");
            let out = LogWriter::create(&Disk, &path, &self.class_name, self.id, self.now)?;
            self.out = Some(out);
        }

        if let Some(out) = &mut self.out {
            out.append_frame(frame)?;
        }

        self.in_segment += count;
        self.entries += count;
        Ok(())
    }

    pub(super) fn entry(
        &mut self,
        seq: SeqNo,
        view: &BlockView,
        at: usize,
    ) -> Result<(), StoreError> {
        let rows = view.rows();
        let (tag, jid) = (rows.tag(at), rows.jid(at));
        let body = rows.body(at).map_err(|what| {
            StoreError::Failed(format!(
                "cannot read entry {} again: {what}; look for disk errors in `dmesg` and retry",
                seq.0
            ))
        })?;
        self.push(seq, &rows.entry(at, &tag, &jid, body))
    }

    /// Adds an entry to the current block.
    pub(super) fn push(&mut self, seq: SeqNo, entry: &Entry<'_>) -> Result<(), StoreError> {
        // Entries from another file may have lower sequence numbers; within a block they must
        // ascend.
        let descends = !self.builder.is_empty() && seq <= self.builder.seqs().1;
        if descends || self.builder.is_full_for(entry) {
            self.flush_block()?;
        }
        self.builder.push(seq, entry)
    }

    pub(super) fn flush_block(&mut self) -> Result<(), StoreError> {
        // A frame cannot be empty.
        if self.builder.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::new();
        let meta = self.builder.write(&mut self.packer, &mut frame)?;
        self.put(frame, meta.first_seq, u64::from(meta.count))
    }

    fn close(&mut self) -> Result<(), StoreError> {
        if let Some(out) = self.out.take() {
            let dir = format::class_dir(&self.to, &self.class_name)
                .join(format::generation_name(self.id.first_seq, 0));
            // The log, then its name.
            out.finish()?;
            files::sync_dir(&dir)?;
        }

        self.in_segment = 0;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<u64, StoreError> {
        self.flush_block()?;
        self.close()?;
        Ok(self.entries)
    }
}
