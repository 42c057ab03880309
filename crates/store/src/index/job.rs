//! Jobs in pages: the summary and the entries of each job.
//!
//! # On disk
//!
//! ```text
//! key of the page: jid key of the first job, u128 BE
//!
//! record; differences are relative to the previous record in the page (to 0 in the first):
//!   flags        u8: bits 0..2 rank of the load, 8 no cache, 16 has an end time
//!   key          upper half less the previous one, number | lower half, number
//!   jid          bytes; only if it has no time
//!   first_at     arrival of the first entry: signed difference
//!   load         only with a rank: seq of its entry, signed difference | 0 and the summary's values as bytes, or n for the
//!                n-th values in this page
//!   end time     only if there is one: seq of its entry, number | Salt's notation, bytes
//!   entries      count, number | first, signed difference | gap to the next less 1, numbers
//! ```
//!
//! Entries are numbered from 0 within the segment, because merging blocks must not change the
//! numbers.

use std::io;

use super::EntryPosition;
use crate::index::job_summary::JobSummary;
use crate::index::page::code::{FieldReader, put, put_bytes, put_signed};
use saltcellar_model::{FastMap, JidKey};

/// A job in a segment, and the positions of its entries, ascending.
pub(crate) type JobEntries = (JidKey, JobSummary, Vec<EntryPosition>);

const RANK: u8 = 7;
const NO_CACHE: u8 = 8;
const HAS_END: u8 = 16;

/// A job in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRecord<'a> {
    /// Key of the jid.
    pub key: JidKey,
    /// The jid, if it contains no time.
    pub text: &'a [u8],
    /// Rank of the load.
    pub rank: u8,
    /// The summary's values as bytes.
    pub load: &'a [u8],
    /// Sequence number of the load.
    pub load_seq: u64,
    /// Time of arrival of the first entry.
    pub first_at: i64,
    /// Whether the job's returns are not to be cached.
    pub nocache: bool,
    /// Sequence number of the end time; 0 for none.
    pub endtime_seq: u64,
    /// The end time.
    pub endtime: &'a [u8],
    /// Number of entries in the segment.
    pub count: u32,
    /// The first of these entries.
    pub first: u32,
}

impl JobRecord<'_> {
    /// The job summary; `None` if malformed.
    pub fn row(&self) -> Option<JobSummary> {
        let jid = match self.key.text() {
            Some(text) => text,
            None => std::str::from_utf8(self.text).ok()?.to_owned(),
        };

        let mut row = JobSummary {
            jid,
            rank: self.rank,
            load_seq: self.load_seq,
            endtime_seq: self.endtime_seq,
            endtime: std::str::from_utf8(self.endtime).ok()?.to_owned(),
            first_at: self.first_at,
            nocache: self.nocache,
            ..JobSummary::default()
        };

        // Without a load there are no values to read.
        if self.rank > 0 {
            row.read_values(self.load)?;
        }
        Some(row)
    }
}

/// The previous record, to which differences are relative.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    key: u64,
    first_at: i64,
    load_seq: u64,
    first: u32,
}

impl Before {
    fn after(record: &JobRecord<'_>, before: Before) -> Self {
        let load_seq = if record.rank > 0 {
            record.load_seq
        } else {
            before.load_seq
        };
        Self {
            key: halves(record.key).0,
            first_at: record.first_at,
            load_seq,
            first: record.first,
        }
    }
}

fn halves(key: JidKey) -> (u64, u64) {
    // `try_from` instead of a cast: both halves were masked to 64 bits above.
    let [upper, lower] = [key.0 >> 64, key.0 & u128::from(u64::MAX)];
    let half = |n: u128| u64::try_from(n).expect("64 bits");
    (half(upper), half(lower))
}

/// Encodes the records of one page.
#[derive(Debug, Default)]
pub struct Encoder {
    before: Before,
    loads: FastMap<u32, u64>,
}

impl Encoder {
    /// Appends a job; `load` is a number that identifies the values, `rest` contains the entries
    /// after the first.
    pub fn push(
        &mut self,
        out: &mut Vec<u8>,
        record: &JobRecord<'_>,
        load: u32,
        rest: impl Iterator<Item = u32>,
    ) -> io::Result<()> {
        // More bits would change the other flags of the byte. The page is written once, and a wrong
        // flag would be found only by `verify`.
        if record.rank & !RANK != 0 {
            return Err(io::Error::other(
                "internal error: the rank of a load exceeds three bits",
            ));
        }
        let end = if record.endtime_seq > 0 { HAS_END } else { 0 };
        out.push((record.rank & RANK) | if record.nocache { NO_CACHE } else { 0 } | end);

        let (upper, lower) = halves(record.key);
        put(out, upper.wrapping_sub(self.before.key));
        put(out, lower);
        if record.key.time().is_none() {
            put_bytes(out, record.text);
        }
        put_signed(out, record.first_at.wrapping_sub(self.before.first_at));

        // Jobs of one state run share their arguments, so values are stored once per page and named
        // by their number afterwards.
        if record.rank > 0 {
            put_signed(
                out,
                record
                    .load_seq
                    .wrapping_sub(self.before.load_seq)
                    .cast_signed(),
            );
            let next = self.loads.len() as u64 + 1;
            let known = *self.loads.entry(load).or_insert(next);
            if known == next {
                put(out, 0);
                put_bytes(out, record.load);
            } else {
                put(out, known);
            }
        }

        if record.endtime_seq > 0 {
            put(out, record.endtime_seq);
            put_bytes(out, record.endtime);
        }

        put(out, u64::from(record.count));
        put_signed(out, i64::from(record.first) - i64::from(self.before.first));

        // The numbers ascend, so gaps stay small however large the segment is.
        let mut last = record.first;
        let mut count = 1_u32;
        for number in rest {
            let gap = number
                .checked_sub(last)
                .and_then(|step| step.checked_sub(1));
            let gap = gap.ok_or_else(|| {
                io::Error::other("internal error: the entries of a job do not ascend")
            })?;
            put(out, u64::from(gap));
            last = number;
            count += 1;
        }

        // Readers take the count from the record and would read the next one as entries.
        if count != record.count {
            return Err(io::Error::other(
                "internal error: the number of entries of a job is wrong",
            ));
        }

        self.before = Before::after(record, self.before);
        Ok(())
    }
}

/// Decodes the records of one page.
#[derive(Debug)]
pub struct Decoder<'a> {
    reader: FieldReader<'a>,
    before: Before,
    loads: Vec<&'a [u8]>,
}

impl<'a> Decoder<'a> {
    /// Starts with the first record.
    pub fn new(page: &'a [u8]) -> Self {
        Self {
            reader: FieldReader(page),
            before: Before::default(),
            loads: Vec::new(),
        }
    }

    /// The next record, with its entries if `wanted` selects its key. The outer `None` means that
    /// the page is malformed.
    pub fn next(
        &mut self,
        wanted: impl Fn(JidKey) -> bool,
    ) -> Option<Option<(JobRecord<'a>, Vec<u32>)>> {
        let r = &mut self.reader;
        // Not a fault: the page ends between two records.
        if r.is_empty() {
            return Some(None);
        }

        let flags = r.byte()?;
        let upper = self.before.key.wrapping_add(r.number()?);
        let key = JidKey(u128::from(upper) << 64 | u128::from(r.number()?));
        let text: &[u8] = if key.time().is_none() {
            r.bytes()?
        } else {
            &[]
        };

        let first_at = self.before.first_at.wrapping_add(r.signed()?);
        let rank = flags & RANK;

        let (mut load, mut load_seq): (&[u8], u64) = (&[], 0);
        if rank > 0 {
            load_seq = self
                .before
                .load_seq
                .wrapping_add(r.signed()?.cast_unsigned());
            load = match r.number()?.checked_sub(1) {
                None => {
                    let load = r.bytes()?;
                    self.loads.push(load);
                    load
                }
                Some(known) => self.loads.get(usize::try_from(known).ok()?)?,
            };
        }

        let (mut endtime_seq, mut endtime): (u64, &[u8]) = (0, &[]);
        if flags & HAS_END != 0 {
            endtime_seq = r.number()?;
            endtime = r.bytes()?;
        }

        // Numbers are decoded for every job, because the next record begins behind them, but kept
        // only for wanted jobs.
        let count = r.small()?;
        let first = u32::try_from(i64::from(self.before.first).checked_add(r.signed()?)?).ok()?;
        let mut numbers = Vec::new();
        let collect = wanted(key);
        if collect {
            numbers.push(first);
        }

        let mut last = first;
        for _ in 1..count {
            last = last.checked_add(r.small()?)?.checked_add(1)?;
            if collect {
                numbers.push(last);
            }
        }

        let nocache = flags & NO_CACHE != 0;
        let record = JobRecord {
            key,
            text,
            rank,
            load,
            load_seq,
            first_at,
            nocache,
            endtime_seq,
            endtime,
            count,
            first,
        };

        self.before = Before::after(&record, self.before);
        Some(Some((record, numbers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use saltcellar_base::clock::Micros;

    proptest! {
        #[test]
        fn jobs_are_read_as_they_were_written(
            jobs in prop::collection::vec((any::<u64>(), 0_u8..5, 0_u32..3, any::<i64>(), any::<bool>(), "[a-z]{0,3}", prop::collection::vec(0_u32..1000, 1..6)), 1..40)
        ) {
            let loads = [b"one".as_slice(), b"", b"a longer load"];
            let mut page = Vec::new();
            let mut encoder = Encoder::default();
            let mut expected = Vec::new();
            for (n, rank, load, first_at, nocache, end, gaps) in &jobs {
                let key = if n % 5 == 0 { JidKey::of("free") } else {
                    JidKey::from_time(Micros((n >> 2).cast_signed()), (n % 2 == 0).then_some(u32::MAX))
                };
                let mut numbers: Vec<u32> = Vec::new();
                for gap in gaps {
                    numbers.push(numbers.last().map_or(*gap, |last| last + 1 + gap));
                }
                let ranked = *rank > 0;
                let record = JobRecord {
                    key, text: if key.time().is_none() { b"free" } else { b"" }, rank: *rank,
                    load: if ranked { loads[*load as usize] } else { b"" }, load_seq: if ranked { *n } else { 0 },
                    first_at: *first_at, nocache: *nocache, endtime_seq: end.len() as u64, endtime: end.as_bytes(),
                    count: u32::try_from(numbers.len()).unwrap(), first: numbers[0],
                };
                encoder.push(&mut page, &record, *load, numbers[1..].iter().copied()).unwrap();
                expected.push((record, numbers));
            }
            let mut decoder = Decoder::new(&page);
            for one in expected {
                prop_assert_eq!(decoder.next(|_| true), Some(Some(one)));
            }
            prop_assert_eq!(decoder.next(|_| true), Some(None));
        }

        #[test]
        fn a_damaged_page_is_rejected_without_panic(page in any::<Vec<u8>>()) {
            let mut decoder = Decoder::new(&page);
            while let Some(Some((record, _))) = decoder.next(|_| true) {
                let _ = record.row();
            }
        }
    }
}
