//! Writes a log that nobody reads meanwhile: a segment that sealing or `salvage` makes from
//! existing entries, or a spill file.

use std::path::{Path, PathBuf};

use super::builder::{BlockBuilder, Packer};
use super::file::{BlockMeta, file_header};
use super::frame::{LogId, Position, place_frame};
use crate::error::{StoreError, io_at};
use crate::vfs::{Fs, FsFile};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::REWRITE_PIECE_BYTES;

/// A log under construction. Nothing is durable before [`LogWriter::finish`].
#[derive(Debug)]
pub struct LogWriter {
    path: PathBuf,
    file: Box<dyn FsFile>,
    id: LogId,
    /// Bytes that are not written yet.
    piece: Vec<u8>,
    written: u64,
}

impl LogWriter {
    /// Creates the file; its header is written with the first piece.
    pub fn create(
        fs: &dyn Fs,
        path: &Path,
        class_name: &str,
        id: LogId,
        created: Micros,
    ) -> Result<Self, StoreError> {
        let file = fs.create(path).map_err(io_at("create", path))?;

        Ok(Self {
            path: path.to_owned(),
            file,
            id,
            piece: file_header(class_name, id, created).to_vec(),
            written: 0,
        })
    }

    /// Gives the log mode 0600, whatever the umask is.
    pub(crate) fn make_private(&self) -> Result<(), StoreError> {
        self.file
            .set_mode(0o600)
            .map_err(io_at("set the mode of", &self.path))
    }

    /// Offset of the next byte.
    pub fn end(&self) -> u64 {
        self.written + self.piece.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.piece.extend_from_slice(bytes);
        // Written in pieces, because memory must not grow with the segment.
        if self.piece.len() >= REWRITE_PIECE_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Appends a frame; completes its header for the new offset.
    pub(crate) fn append_frame(&mut self, mut frame: Vec<u8>) -> Result<(), StoreError> {
        place_frame(&mut frame, self.id, Position::in_new_log(self.end()));
        self.append(&frame)
    }

    /// Appends the block of a builder, and clears the builder.
    pub fn append_block(
        &mut self,
        builder: &mut BlockBuilder,
        packer: &mut Packer,
    ) -> Result<BlockMeta, StoreError> {
        let offset = self.end();
        let mut frame = Vec::new();
        let meta = builder.write(packer, &mut frame)?;
        self.append_frame(frame)?;
        Ok(BlockMeta { offset, ..meta })
    }

    /// Writes what is in memory, for readers of the file. Not synced.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.file
            .write_all_at(&self.piece, self.written)
            .map_err(io_at("write", &self.path))?;
        self.written = self.end();
        self.piece.clear();
        Ok(())
    }

    /// Takes everything from `end` on back, written or not.
    pub fn cut(&mut self, end: u64) -> Result<(), StoreError> {
        let in_memory = end.saturating_sub(self.written);
        self.piece
            .truncate(usize::try_from(in_memory).unwrap_or(usize::MAX));
        self.written = self.written.min(end);

        // Also the part of a write that failed.
        self.file
            .set_len(self.written)
            .map_err(io_at("truncate", &self.path))
    }

    /// Writes and syncs the rest.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        self.flush()?;
        self.file.sync_all().map_err(io_at("sync", &self.path))
    }
}
