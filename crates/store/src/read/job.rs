//! The entries of one job, by ascending sequence number.
//!
//! # Invariant
//!
//! Every read of a job's entries is one walk over the blocks that the indexes name for it, in the order of their first numbers, and ends as
//! soon as its part is complete. Of a block in which no body is wanted only the head is read: bodies are most of a block.

use std::sync::Arc;

use super::stored_entry::{StoredEntry, without_body};
use super::{EntriesIn, LogReader};
use crate::error::StoreError;
use crate::index::EntryPosition;
use crate::log::block::Rows;
use crate::segment::{Segment, with_same_numbers};
use saltcellar_model::{JidKey, Kind, SeqNo};

/// Which of a job's entries are read.
#[derive(Debug, Clone, Copy)]
pub struct JobPart {
    /// Only with sequence numbers from the first on, and below the second.
    pub range: (SeqNo, SeqNo),
    /// At most so many.
    pub entries_max: usize,
    /// Up to the entry with which their tags and bodies reach so many bytes.
    pub bytes_max: usize,
}

impl JobPart {
    /// All entries.
    pub const ALL: Self = Self::of((SeqNo::FIRST, SeqNo(u64::MAX)));

    /// All entries with sequence numbers in this range.
    pub const fn of(range: (SeqNo, SeqNo)) -> Self {
        Self {
            range,
            entries_max: usize::MAX,
            bytes_max: usize::MAX,
        }
    }

    /// How many of these entries, ascending, belong to the part.
    fn count(&self, entries: &[StoredEntry]) -> usize {
        let mut bytes = 0;
        let fit = entries.iter().take(self.entries_max).take_while(|entry| {
            // The last entry is the one that reaches the limit.
            let has_room = bytes < self.bytes_max;
            bytes += entry_bytes(entry);
            has_room
        });
        fit.count()
    }
}

fn entry_bytes(entry: &StoredEntry) -> usize {
    entry.tag.len() + entry.body.len()
}

/// Entries of a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// By ascending sequence number.
    pub entries: Vec<StoredEntry>,
    /// Where to continue, if there may be more entries.
    pub next: Option<SeqNo>,
}

/// Tells which rows of a block are entries of a job.
struct OfJob<'a> {
    jid: &'a str,
    key: JidKey,
    /// A jid derived from a time equals its key; keys of other jids may collide.
    is_plain_key: bool,
}

impl<'a> OfJob<'a> {
    fn new(jid: &'a str) -> Self {
        let key = JidKey::of(jid);
        let is_plain_key = key.text().as_deref() == Some(jid);
        Self {
            jid,
            key,
            is_plain_key,
        }
    }

    fn has(&self, rows: Rows<'_>, at: usize) -> bool {
        at < rows.len()
            && if self.is_plain_key {
                rows.jid_key(at) == Some(self.key)
            } else {
                rows.jid(at) == self.jid
            }
    }
}

/// Selects entries of a job by the heads of their blocks: the entry without its body, and whether the body is also wanted.
pub(super) trait Pick: Fn(Rows<'_>, usize) -> Option<(StoredEntry, bool)> {}

impl<F: Fn(Rows<'_>, usize) -> Option<(StoredEntry, bool)>> Pick for F {}

/// Picks all entries of a job, those that `wanted` selects with their bodies, and events with their tags: expanding a tag costs more than
/// reading the other fields.
pub(super) fn pick_entries(jid: &str, wanted: impl Fn(&StoredEntry) -> bool) -> impl Pick {
    move |rows: Rows<'_>, at: usize| {
        let entry = without_body(rows, at, jid.to_owned(), rows.kind(at) == Kind::Event);
        let is_wanted = wanted(&entry);
        Some((entry, is_wanted))
    }
}

/// Picks the returns by the minions that `wanted` selects.
pub(super) fn pick_returns(jid: &str, wanted: impl Fn(&str) -> bool) -> impl Pick {
    move |rows: Rows<'_>, at: usize| {
        let is_wanted = rows.kind(at) == Kind::Return && wanted(rows.minion(at));
        is_wanted.then(|| (without_body(rows, at, jid.to_owned(), false), true))
    }
}

impl LogReader {
    /// All entries of a job, by ascending sequence number.
    pub fn job_entries(&self, jid: &str) -> Result<Vec<StoredEntry>, StoreError> {
        Ok(self.job_page(jid, JobPart::ALL)?.entries)
    }

    /// A part of a job's entries.
    pub fn job_page(&self, jid: &str, part: JobPart) -> Result<JobPage, StoreError> {
        let whole =
            |rows: Rows<'_>, at: usize| Some((without_body(rows, at, jid.to_owned(), true), true));
        self.picked(jid, part, whole)
    }

    /// All entries of a job, as [`LogReader::job_page_with`].
    pub fn job_entries_with(
        &self,
        jid: &str,
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        Ok(self.job_page_with(jid, JobPart::ALL, wanted)?.entries)
    }

    /// A part of a job's entries. Only entries selected by `wanted` have their body, and only entries of kind [`Kind::Event`] have their tag.
    pub fn job_page_with(
        &self,
        jid: &str,
        part: JobPart,
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<JobPage, StoreError> {
        self.picked(jid, part, pick_entries(jid, wanted))
    }

    /// The returns of a job by the minions that `wanted` selects, with sequence numbers in `from..upto`: a large job is read in many parts.
    pub(crate) fn returns_between(
        &self,
        jid: &str,
        range: (SeqNo, SeqNo),
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let page = self.picked(jid, JobPart::of(range), pick_returns(jid, wanted))?;
        Ok(page.entries)
    }

    fn picked(&self, jid: &str, part: JobPart, pick: impl Pick) -> Result<JobPage, StoreError> {
        with_same_numbers(|| self.walk_job(&self.job_places(jid)?, (jid, part), &pick, Some))
    }

    /// The entries of a job at these places that `pick` selects, each as `keep` leaves it.
    pub(super) fn walk_job(
        &self,
        places: &[EntriesIn],
        (jid, part): (&str, JobPart),
        pick: impl Pick,
        keep: impl Fn(StoredEntry) -> Option<StoredEntry>,
    ) -> Result<JobPage, StoreError> {
        // Classes have segments of their own, so blocks of one may lie between those of another. Their first numbers are known from the indexes.
        let mut blocks = Vec::new();
        for (segment, positions) in places {
            for of_block in positions.chunk_by(|a, b| a.block == b.block) {
                let Some(position) = of_block.first() else {
                    continue;
                };
                let first_seq = self.blocks.first_seq(segment, position.block, part.range)?;
                blocks.extend(first_seq.map(|first_seq| (first_seq, segment, of_block)));
            }
        }
        blocks.sort_by_key(|(first_seq, ..)| *first_seq);

        let of_job = OfJob::new(jid);
        let (from, upto) = part.range;
        let pick = |rows: Rows<'_>, at: usize| {
            let is_meant = of_job.has(rows, at) && (from..upto).contains(&rows.seq(at));
            is_meant.then(|| pick(rows, at)).flatten()
        };

        let mut entries: Vec<StoredEntry> = Vec::new();
        let mut bytes = 0;
        let mut has_more = false;
        let mut blocks = blocks.into_iter().peekable();
        while let Some((_, segment, of_block)) = blocks.next() {
            let found = self.pick_of_block(segment, of_block, pick)?;
            for entry in found.into_iter().filter_map(&keep) {
                bytes += entry_bytes(&entry);
                entries.push(entry);
            }
            if entries.len() < part.entries_max && bytes < part.bytes_max {
                continue;
            }

            entries.sort_by_key(|entry| entry.seq);
            let count = part.count(&entries);
            has_more |= count < entries.len();
            entries.truncate(count);
            // Else an entry of the next block may come before the last one.
            let last = entries.last().map(|entry| entry.seq);
            if let (Some((first_seq, ..)), Some(last)) = (blocks.peek(), last)
                && *first_seq > last
            {
                has_more = true;
                break;
            }
        }

        entries.sort_by_key(|entry| entry.seq);
        let last = entries.last().filter(|_| has_more);
        let next = last.map(|last| last.seq.next());
        Ok(JobPage { entries, next })
    }

    /// The entries at these positions of one block that `pick` selects.
    fn pick_of_block(
        &self,
        segment: &Arc<Segment>,
        positions: &[EntryPosition],
        pick: impl Pick,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let Some(number) = positions.first().map(|position| position.block) else {
            return Ok(Vec::new());
        };
        // An unreadable block is noted where it is read. The rest of the job is worth having.
        let Some(head) = self.blocks.head(segment, number)? else {
            return Ok(Vec::new());
        };

        // Checked although the index named the row: keys may collide, and the index may be of another version of the log.
        let picked = positions.iter().filter_map(|position| {
            let at = usize::from(position.at);
            let (entry, is_wanted) = pick(head.rows(), at)?;
            Some((at, is_wanted, entry))
        });
        let picked: Vec<_> = picked.collect();

        let is_any_wanted = picked.iter().any(|(_, is_wanted, _)| *is_wanted);
        let whole = if is_any_wanted {
            self.blocks.block(segment, number)?
        } else {
            None
        };

        let with_body = |(at, is_wanted, mut entry): (usize, bool, StoredEntry)| {
            if is_wanted {
                // As an unreadable block: noted, and the rest is worth having.
                let body = self.blocks.body(segment, whole.as_ref()?.rows(), at)?;
                entry.set_body(body);
            }
            Some(entry)
        };
        Ok(picked.into_iter().filter_map(with_body).collect())
    }
}
