//! Writes the segments of the class `settings`.
//!
//! A segment begins with a snapshot of all live values, and gets its name when that is durable.
//! Each change is then appended to the two newest segments, the older one first. A segment is
//! removed when two newer segments exist.

use std::path::PathBuf;
use std::sync::Arc;

use super::found::{Found, FoundSegment};
use super::record::{Head, Record};
use super::values::Values;
use crate::error::{StoreError, io_at};
use crate::format::{
    self, NEW, generation_name, generation_of, list, name_of, remove_dir, sync_dir, unfinished,
};
use crate::log::builder::{BlockBuilder, Packer};
use crate::log::file::LogFile;
use crate::log::frame::{LogId, Position, place_frame};
use crate::log::writer::LogWriter;
use crate::vfs::{Fs, FsFile};
use saltcellar_base::clock::Micros;
use saltcellar_model::{Entry, Kind, SETTINGS, SeqNo, Source};

/// A segment that changes are appended to.
#[derive(Debug)]
struct Segment {
    dir: PathBuf,
    file: Box<dyn FsFile>,
    id: LogId,
    end: u64,
    /// Bytes below are durable.
    synced: u64,
    /// Where its snapshot ends.
    snapshot_end: u64,
}

pub(super) struct Journal {
    fs: Arc<dyn Fs>,
    class_dir: PathBuf,
    store_id: u64,
    packer: Packer,
    builder: BlockBuilder,
    /// Two, oldest first; fewer if what a file holds is unknown after an error.
    segments: Vec<Segment>,
    next_seq: SeqNo,
    /// Of the last change.
    position: u64,
    /// Bytes of changes after which a new segment begins, beyond the size of a snapshot.
    growth: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("segments", &self.segments)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Segments that changes are appended to.
const COPIES: usize = 2;

impl Journal {
    /// Continues behind what was found. Writes nothing yet: see [`Self::resume`].
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        class_dir: PathBuf,
        store_id: u64,
        found: &Found,
        growth: u64,
    ) -> Result<Self, StoreError> {
        let packer = Packer::new().map_err(io_at("start zstd for", &class_dir))?;
        Ok(Self {
            fs,
            class_dir,
            store_id,
            packer,
            builder: BlockBuilder::default(),
            segments: Vec::new(),
            next_seq: found.next_seq,
            position: found.position,
            growth,
        })
    }

    /// Makes what was found durable, and appends to it from now on. Segments that are not exactly
    /// as they were written are replaced.
    pub(super) fn resume(
        &mut self,
        found: &Found,
        values: &Values,
        at: Micros,
    ) -> Result<(), StoreError> {
        if !found.is_whole() {
            return match self.renew(values, at) {
                // A full disk must not prevent the start: what was found stays where it is, and the
                // next change retries.
                Err(error) if error.is_no_space() => {
                    tracing::warn!(%error, "no space for new copies of the settings, retrying with the next change: free some space");
                    Ok(())
                }
                renewed => renewed,
            };
        }

        for segment in &found.segments {
            let opened = self.reopen(segment)?;
            self.segments.push(opened);
        }
        sync_dir(&*self.fs, &self.class_dir)?;
        self.clean_up();
        Ok(())
    }

    fn reopen(&self, found: &FoundSegment) -> Result<Segment, StoreError> {
        let path = found.dir.join("log");
        let file = self
            .fs
            .open_to_write(&path)
            .map_err(io_at("open for writing", &path))?;

        // Written again first: after a failed sync the kernel may take what it did not write for
        // clean.
        let log = LogFile::bare(&*self.fs, &path, found.id)?;
        log.rewrite_range(&*file, found.synced, found.end)?;
        file.sync_all().map_err(io_at("sync", &path))?;
        sync_dir(&*self.fs, &found.dir)?;

        Ok(Segment {
            dir: found.dir.clone(),
            file,
            id: found.id,
            end: found.end,
            synced: found.end,
            snapshot_end: found.snapshot_end,
        })
    }

    /// The position of the last change.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The directory of the class.
    pub(super) fn class_dir(&self) -> &std::path::Path {
        &self.class_dir
    }

    /// Makes a batch of changes: the values of keys, or `None` for those that are removed.
    pub(super) fn batch(
        &mut self,
        changes: Vec<(String, Option<Vec<u8>>)>,
    ) -> Result<Vec<Record>, StoreError> {
        let count = u32::try_from(changes.len());
        let count = count.map_err(|_| StoreError::Broken("a batch of over 4 G settings"))?;

        let mut batch = Vec::with_capacity(changes.len());
        for (index, (key, value)) in (0..).zip(changes) {
            // Used up even if the batch is not written: what a failed write has left must not share
            // its position with another change.
            self.position += 1;
            batch.push(Record {
                key,
                position: self.position,
                index,
                left: count - 1 - index,
                is_snapshot: false,
                value: value.map(Into::into),
            });
        }
        Ok(batch)
    }

    /// Whether changes can be appended. Otherwise a change needs [`Self::renew`].
    pub(super) fn can_append(&self) -> bool {
        self.segments.len() == COPIES
    }

    /// Appends a batch to both segments. With `sync`, it is durable on return. After an error nothing
    /// is appended any more.
    pub(super) fn append(
        &mut self,
        batch: &[Record],
        at: Micros,
        sync: bool,
    ) -> Result<(), StoreError> {
        // Whatever fails: the positions of the batch are used up, so a later change must not follow in
        // these segments.
        let mut segments = std::mem::take(&mut self.segments);
        let frames = self.frames(batch, at)?;
        for segment in &mut segments {
            segment.append(&frames, sync)?;
        }

        // Only now: after an error the content of the files is unknown.
        self.segments = segments;
        Ok(())
    }

    /// Makes all changes so far durable.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        let mut segments = std::mem::take(&mut self.segments);
        for segment in &mut segments {
            segment.sync()?;
        }
        self.segments = segments;
        Ok(())
    }

    /// Whether a new segment is due.
    pub(super) fn has_grown(&self) -> bool {
        self.segments.last().is_some_and(|newest| {
            let changes = newest.end - newest.snapshot_end;
            changes > newest.snapshot_end.saturating_add(self.growth)
        })
    }

    /// Begins a segment with these values.
    pub(super) fn begin_segment(&mut self, values: &Values, at: Micros) -> Result<(), StoreError> {
        let first_seq = self.next_seq;
        let dir = self.class_dir.join(generation_name(first_seq, 0));
        let new = unfinished(&dir);

        // Left by an interrupted attempt.
        remove_dir(&*self.fs, &new)?;
        let written = self.write_segment(&new, first_seq, values, at);
        let (id, end) = match written {
            Ok(written) => written,
            Err(error) => {
                // It may occupy the space that is missing.
                if let Err(error) = remove_dir(&*self.fs, &new) {
                    tracing::warn!(dir = %new.display(), %error, "cannot remove an incomplete settings segment, the next start retries");
                }
                return Err(error);
            }
        };

        // From here on it counts, with everything in it.
        self.fs.rename(&new, &dir).map_err(io_at("rename", &new))?;
        sync_dir(&*self.fs, &self.class_dir)?;

        let path = dir.join("log");
        let file = self
            .fs
            .open_to_write(&path)
            .map_err(io_at("open for writing", &path))?;
        self.segments.push(Segment {
            dir,
            file,
            id,
            end,
            synced: end,
            snapshot_end: end,
        });

        if self.segments.len() > COPIES {
            self.segments.remove(0);
        }
        if self.segments.len() == COPIES {
            self.clean_up();
        }
        Ok(())
    }

    /// Begins two segments with these values, and removes all other segments. After an error
    /// nothing has changed: older segments contain everything but the latest changes.
    pub(super) fn renew(&mut self, values: &Values, at: Micros) -> Result<(), StoreError> {
        self.segments.clear();
        self.begin_segment(values, at)?;

        let second = self.begin_segment(values, at);
        if second.is_err() {
            // One copy is not enough, and may occupy the space that is missing for both.
            for Segment { dir, .. } in std::mem::take(&mut self.segments) {
                if let Err(error) = remove_dir(&*self.fs, &dir) {
                    tracing::warn!(dir = %dir.display(), %error, "cannot remove a settings segment without a copy, the next start retries");
                }
            }
        }
        second
    }

    fn write_segment(
        &mut self,
        dir: &std::path::Path,
        first_seq: SeqNo,
        values: &Values,
        at: Micros,
    ) -> Result<(LogId, u64), StoreError> {
        let id = LogId {
            store_id: self.store_id,
            first_seq,
        };
        format::make_dir(&*self.fs, dir)?;
        let mut log = LogWriter::create(&*self.fs, &dir.join("log"), SETTINGS, id, at)?;
        // It contains the hashes of tokens.
        log.make_private()?;

        let head = Record::of_head(Head {
            position: self.position,
            records: values.len() as u64,
        });
        let snapshot = values
            .iter()
            .map(|(key, stored)| Record::of_snapshot(key, stored.position, stored.value.clone()));
        for record in std::iter::once(head).chain(snapshot) {
            self.pack(&record, at, |frame| log.append_frame(frame))?;
        }
        self.flush(|frame| log.append_frame(frame))?;

        // Durable before the caller renames the directory: a segment with its final name is
        // complete.
        let end = log.end();
        log.finish()?;
        sync_dir(&*self.fs, dir)?;
        Ok((id, end))
    }

    fn frames(&mut self, batch: &[Record], at: Micros) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut frames = Vec::new();
        let mut add = |frame| {
            frames.push(frame);
            Ok(())
        };
        for record in batch {
            self.pack(record, at, &mut add)?;
        }
        self.flush(&mut add)?;
        Ok(frames)
    }

    /// Adds a record to the current block.
    fn pack(
        &mut self,
        record: &Record,
        at: Micros,
        add: impl FnMut(Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let body = record.to_body();
        // Of no source; the number of the first one is the shortest.
        let entry = Entry {
            tag: record.key.as_bytes(),
            ..Entry::new(Kind::Setting, Source::Bus, at, &body)
        };
        if self.builder.is_full_for(&entry) {
            self.flush(add)?;
        }

        let seq = self.next_seq;
        self.next_seq = seq.next();
        let pushed = self.builder.push(seq, &entry);
        if pushed.is_err() {
            self.builder.clear();
        }
        pushed
    }

    fn flush(
        &mut self,
        mut add: impl FnMut(Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // A frame cannot be empty.
        if self.builder.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::new();
        let written = self.builder.write(&mut self.packer, &mut frame);
        if written.is_err() {
            self.builder.clear();
        }
        written?;
        add(frame)
    }

    /// Removes all segments but those that changes are appended to.
    fn clean_up(&self) {
        let paths = list(&self.class_dir).unwrap_or_default();
        for path in paths {
            let name = name_of(&path);
            let is_ours = generation_of(name.strip_suffix(NEW).unwrap_or(name)).is_some();
            if !is_ours || self.segments.iter().any(|segment| segment.dir == path) {
                continue;
            }
            // It costs only space: newer segments have everything.
            if let Err(error) = remove_dir(&*self.fs, &path) {
                tracing::warn!(dir = %path.display(), %error, "cannot remove an old settings segment, the next start retries");
            }
        }
    }
}

impl Segment {
    fn append(&mut self, frames: &[Vec<u8>], sync: bool) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let offset = self.end + bytes.len() as u64;
            let mut frame = frame.clone();
            let position = Position {
                offset,
                unsynced: offset - self.synced,
                // What follows a commit proves that it was synced, and nothing waits for the sync of a change that is saved later.
                ends_commit: sync && at + 1 == frames.len(),
            };
            place_frame(&mut frame, self.id, position);
            bytes.append(&mut frame);
        }

        let path = self.dir.join("log");
        self.file
            .write_all_at(&bytes, self.end)
            .map_err(io_at("append to", &path))?;
        self.end += bytes.len() as u64;
        if sync {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.synced < self.end {
            let path = self.dir.join("log");
            self.file.sync_data().map_err(io_at("sync", &path))?;
            self.synced = self.end;
        }
        Ok(())
    }
}
