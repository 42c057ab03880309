//! Format of spill files.
//!
//! | byte | file header |
//! |---|---|
//! | 0 | `SCSPILL2` |
//! | 8 | number of its first event, u64 LE |
//! | 16 | key of this file, a random u64 LE |
//! | 24 | the key again |
//! | 32 | xxh3-64 of bytes 0 to 15, seeded with the key, u64 LE |
//! | 40 | records |
//!
//! | byte | record |
//! |---|---|
//! | 0 | bytes of the payload, u32 LE |
//! | 4 | lower half of the xxh3-64 of the record's offset in the file (u64 LE), bytes 0 to 3 and bytes 8 to 23, seeded with the key, u32 LE |
//! | 8 | number of the event: one more than that of the event before, u64 LE |
//! | 16 | xxh3-64 of the payload, seeded with the key, u64 LE |
//! | 24 | payload: arrival in microseconds i64 LE; 0 event or 1 gap u8; 1 if it may be stored already, u8; 1 if it contained the master's key, u8; zero u8; bytes of the tag u32 LE; tag; data |
//!
//! # Invariant
//!
//! Event data never passes for a record: the checksums depend on a key stored only in the file's header, and on the offset
//! in the file. So the next record after damage can be searched for.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::base::clock::Micros;
use crate::base::limits::{ENTRY_BYTES_MAX, TAG_BYTES_MAX};
use crate::ingest::gap;
use crate::model::{Batch, Entry, Flags, Kind, Source};
use crate::wire::salt_event::{DataForm, SaltEvent, read_event};

const MAGIC: &[u8; 8] = b"SCSPILL2";
const FIXED: usize = 16;
const PAYLOAD_BYTES_MAX: usize = FIXED + TAG_BYTES_MAX + ENTRY_BYTES_MAX;
pub(super) const FILE_HEADER: usize = 40;
pub(super) const RECORD_HEADER: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Seed of the checksums.
    key: u64,
    /// The number of the first event, if known.
    pub(super) first: Option<u64>,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u64::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u32::from_le_bytes(*b))
}

impl Header {
    pub(super) fn new(first: u64) -> Self {
        Self {
            key: RandomState::new().build_hasher().finish(),
            first: Some(first),
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.first.unwrap_or_default().to_le_bytes());
        let sum = xxh3_64_with_seed(&bytes, self.key);
        for word in [self.key, self.key, sum] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// Parses the header of a file; `None` without a readable one. Damage to one of its words
    /// is repaired.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [first, one, other, sum] = [8, 16, 24, 32].map(|at| u64_at(bytes, at));
        let (first, one, other, sum) = (first?, one?, other?, sum?);
        let named = [MAGIC.as_slice(), &first.to_le_bytes()].concat();
        let vouched = |key: &u64| xxh3_64_with_seed(&named, *key) == sum;

        match [one, other].into_iter().find(vouched) {
            Some(key) => Some(Self {
                key,
                first: Some(first),
            }),
            // Two equal keys are trusted without the checksum, but not the number that it covers.
            None => (one == other && bytes.starts_with(MAGIC)).then_some(Self {
                key: one,
                first: None,
            }),
        }
    }

    /// Length of the record whose header is at `offset` in the file; `None` for an invalid header.
    pub(super) fn record_len(&self, bytes: &[u8], offset: u64) -> Option<usize> {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let is_valid = (FIXED..=PAYLOAD_BYTES_MAX).contains(&len)
            && u32_at(bytes, 4)? == header_sum(self.key, offset, bytes)?;
        is_valid.then_some(RECORD_HEADER + len)
    }

    /// Parses a record, from its header to its end; `None` for a checksum mismatch.
    pub(super) fn record<'a>(&self, bytes: &'a [u8]) -> Option<Record<'a>> {
        let payload = bytes.get(RECORD_HEADER..)?;
        let holds = xxh3_64_with_seed(payload, self.key) == u64_at(bytes, 16)?;
        let (fixed, rest) = payload.split_first_chunk::<FIXED>().filter(|_| holds)?;
        let at = fixed.first_chunk().map_or(0, |b| i64::from_le_bytes(*b));
        let (tag, data) = rest.split_at_checked(u32_at(fixed, 12)? as usize)?;
        let [gap, unsure, has_key] = [8, 9, 10].map(|at| fixed.get(at) == Some(&1));

        Some(Record {
            number: u64_at(bytes, 8)?,
            at: Micros(at),
            gap,
            unsure,
            has_key,
            tag,
            data,
        })
    }

    /// Appends a record to `out`, whose first byte is at `base` in the file. Fails for an entry over the size limit.
    pub(super) fn write_record(
        &self,
        (out, base): (&mut Vec<u8>, u64),
        entry: &Entry<'_>,
        number: u64,
        unsure: bool,
    ) -> io::Result<()> {
        let from = out.len();
        let len = FIXED + entry.tag.len() + entry.body.len();
        let fits = |n: usize| u32::try_from(n).ok().filter(|_| len <= PAYLOAD_BYTES_MAX);
        let (Some(length), Some(tag_len)) = (fits(len), fits(entry.tag.len())) else {
            let what = "internal error: the entry exceeds the spill's size limit";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };

        // The two checksums follow once the bytes that they cover are in place.
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&entry.at.0.to_le_bytes());
        let has_key = entry.flags.has(Flags::MASTER_KEY);
        out.extend_from_slice(&[
            u8::from(entry.kind == Kind::Gap),
            u8::from(unsure),
            u8::from(has_key),
            0,
        ]);
        out.extend_from_slice(&tag_len.to_le_bytes());
        out.extend_from_slice(entry.tag);
        out.extend_from_slice(entry.body);

        let record = out.get_mut(from..).expect("what was appended");
        let (header, payload) = record.split_at_mut(RECORD_HEADER);
        let put = |at: usize, bytes: &[u8], header: &mut [u8]| {
            header
                .get_mut(at..at + bytes.len())
                .expect("the header")
                .copy_from_slice(bytes);
        };

        put(
            16,
            &xxh3_64_with_seed(payload, self.key).to_le_bytes(),
            header,
        );

        // Last, because it covers the payload's checksum.
        let sum = header_sum(self.key, base + from as u64, header).expect("the header");
        put(4, &sum.to_le_bytes(), header);

        Ok(())
    }
}

/// The checksum of a record header at `offset` in the file.
fn header_sum(key: u64, offset: u64, header: &[u8]) -> Option<u32> {
    let mut sum = Xxh3::with_seed(key);
    sum.update(&offset.to_le_bytes());
    sum.update(header.get(..4)?);
    sum.update(header.get(8..24)?);
    let [a, b, c, d, ..] = sum.digest().to_le_bytes();
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// A record with a valid checksum.
pub(super) struct Record<'a> {
    pub(super) number: u64,
    pub(super) at: Micros,
    pub(super) gap: bool,
    pub(super) unsure: bool,
    has_key: bool,
    pub(super) tag: &'a [u8],
    pub(super) data: &'a [u8],
}

impl Record<'_> {
    /// The event, as built by the bus source. Not for gaps.
    pub(super) fn event(&self, unsure: bool) -> SaltEvent<'_> {
        let source = if unsure || self.unsure {
            Source::SpilledBus
        } else {
            Source::Bus
        };

        let mut event = read_event(self.tag, self.data, source, self.at);
        if self.has_key {
            event.entry.flags = event.entry.flags.with(Flags::MASTER_KEY);
        }
        event
    }

    pub(super) fn gap_entry(&self) -> Entry<'_> {
        gap::entry(self.tag, self.data, self.at)
    }

    /// Adds the entry to a batch. False for an event that Salt's codec cannot read, which a release without this check could spill.
    pub(super) fn push_to(&self, batch: &mut Batch, unsure: bool) -> bool {
        if self.gap {
            batch.push(&self.gap_entry(), None);
            return true;
        }

        let event = self.event(unsure);
        if let DataForm::Unreadable(_) = event.form {
            return false;
        }
        batch.push(&event.entry, Some(event.fingerprints));
        true
    }
}
