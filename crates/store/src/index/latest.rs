//! The latest job per function and minion, in pages: the job with the newest jid (see
//! [`super::newness`]).
//!
//! Returns known only from a bus (`Flags::UNCONFIRMED`) have separate rows, because a forged return
//! must not hide a real return. The function of such a row has the prefix [`BUS_ONLY`].
//!
//! The return of an applied highstate ([`Flags::HIGHSTATE`](saltcellar_model::Flags)) has a further
//! row, with the function [`HIGHSTATE`]. A trial or a run of some states therefore never hides the
//! last highstate.
//!
//! # On disk
//!
//! Page keys are consecutive numbers, u32 BE; records are sorted by function, then minion.
//! Differences in the first record of a page are relative to zero.
//!
//! ```text
//! function   0: same as before; or 1 and its bytes
//! minion     length of the prefix shared with the previous minion, number | the rest, bytes
//! seq        of the return, less the previous one: signed
//! jid        0 and its text as bytes; or, with a time, 1 + the lower half of its key, and its microseconds less the
//!            previous ones: signed
//! ```

use std::borrow::Borrow;

use super::super::error::StoreError;
use super::newness;
use super::page::PageWriter;
use crate::index::page::code::{FieldReader, put, put_bytes, put_name, put_signed};
use saltcellar_base::clock::Micros;
use saltcellar_model::{Jid, JidKey, SeqNo};

/// Prefix of a function whose return is known only from a bus.
pub(crate) const BUS_ONLY: char = '\0';

/// Stands for the function in the row of the last highstate. No function has such a name.
pub const HIGHSTATE: &str = "\u{1}highstate";

/// The latest job of a function on a minion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatestJob {
    /// Function; empty for several.
    pub fun: Vec<u8>,
    /// Minion id.
    pub minion: Vec<u8>,
    /// Sequence number of its return.
    pub seq: SeqNo,
    /// Job id.
    pub jid: Jid,
}

impl LatestJob {
    /// The order of jobs by time: the greater one is newer.
    pub fn newness(&self) -> (Option<JidKey>, SeqNo) {
        newness(self.jid.key(), self.seq)
    }

    /// Function and minion.
    pub fn pair(&self) -> (&[u8], &[u8]) {
        (&self.fun, &self.minion)
    }
}

/// The previous record, to which differences are relative.
#[derive(Debug, Default)]
struct Before {
    fun: Option<Vec<u8>>,
    minion: Vec<u8>,
    seq: u64,
    time: i64,
}

impl Before {
    fn write(&mut self, out: &mut Vec<u8>, row: &LatestJob) {
        // Rows are sorted by function, so the name is written where it changes.
        if self.fun.as_ref() == Some(&row.fun) {
            put(out, 0);
        } else {
            put(out, 1);
            put_bytes(out, &row.fun);
            self.fun = Some(row.fun.clone());
        }

        put_name(out, &self.minion, &row.minion);
        self.minion.clone_from(&row.minion);
        put_signed(out, row.seq.0.wrapping_sub(self.seq).cast_signed());
        self.seq = row.seq.0;

        // A jid with a time is two small numbers; most jids of a segment lie close together.
        let key = row.jid.key();
        match key.time() {
            None => {
                put(out, 0);
                put_bytes(out, row.jid.to_string().as_bytes());
            }
            Some(time) => {
                put(out, key.pid().map_or(1, |pid| u64::from(pid) + 2));
                put_signed(out, time.0.wrapping_sub(self.time));
                self.time = time.0;
            }
        }
    }

    /// Appends the next row if `wanted` selects its function and minion; `None` if it is malformed.
    fn read(
        &mut self,
        r: &mut FieldReader<'_>,
        wanted: &dyn Fn(&[u8], &[u8]) -> bool,
        rows: &mut Vec<LatestJob>,
    ) -> Option<()> {
        if r.number()? == 1 {
            self.fun = Some(r.bytes()?.to_vec());
        }
        r.name(&mut self.minion)?;
        self.seq = self.seq.wrapping_add(r.signed()?.cast_unsigned());
        // The differences must be followed through every row, but a string is made only for wanted
        // rows.
        let is_wanted = wanted(self.fun.as_ref()?, &self.minion);
        let jid = match r.number()?.checked_sub(1) {
            None => Jid::of(std::str::from_utf8(r.bytes()?).ok()?),
            Some(lower) => {
                self.time = self.time.wrapping_add(r.signed()?);
                let pid = lower.checked_sub(1).map(u32::try_from).transpose().ok()?;
                if !is_wanted {
                    return Some(());
                }
                Jid::of_key(JidKey::from_time(Micros(self.time), pid))?
            }
        };

        if is_wanted {
            let fun = self.fun.clone()?;
            let minion = self.minion.clone();
            rows.push(LatestJob {
                fun,
                minion,
                seq: SeqNo(self.seq),
                jid,
            });
        }
        Some(())
    }
}

/// Writes rows, sorted, into pages.
pub fn write(writer: &mut PageWriter, rows: &[impl Borrow<LatestJob>]) -> std::io::Result<()> {
    let mut before = Before::default();
    writer.fill_numbered(rows.len(), |n, is_first, out| {
        if is_first {
            before = Before::default();
        }
        let row = rows.get(n).expect("a record of the list");
        before.write(out, row.borrow());
        Ok(())
    })
}

/// Reads the rows of a page whose function and minion `wanted` selects; `None` if malformed.
pub fn read(page: &[u8], wanted: &dyn Fn(&[u8], &[u8]) -> bool) -> Option<Vec<LatestJob>> {
    let mut reader = FieldReader(page);
    let mut before = Before::default();
    let mut rows = Vec::new();
    while !reader.is_empty() {
        before.read(&mut reader, wanted, &mut rows)?;
    }
    Some(rows)
}

/// The rows of all pages whose function and minion `wanted` selects, in order; `None` if malformed.
pub(crate) fn all(
    pages: &[Vec<u8>],
    wanted: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Option<Vec<LatestJob>> {
    let mut rows = Vec::new();
    for page in pages {
        rows.extend(read(page, wanted)?);
    }
    Some(rows)
}

/// The rows of a function, in `count` pages. `page` reads one by its number; `broken` is the error
/// for a malformed one.
pub(crate) fn of_function(
    count: u32,
    page: impl Fn(u32) -> Result<Vec<u8>, StoreError>,
    broken: impl Fn() -> StoreError,
    fun: &str,
) -> Result<Vec<LatestJob>, StoreError> {
    // A function may begin in the middle of a page, so the last page that begins with a smaller
    // function is needed, not the first page with this one.
    let mut low = 0;
    let mut high = count;
    while high - low > 1 {
        let middle = low.midpoint(high);
        // The first row contains no predecessor, so it can be read alone.
        let mut first = Before::default();
        first
            .read(
                &mut FieldReader(&page(middle)?),
                &|_, _| false,
                &mut Vec::new(),
            )
            .ok_or_else(&broken)?;
        if first.fun.as_deref() < Some(fun.as_bytes()) {
            low = middle;
        } else {
            high = middle;
        }
    }

    let mut found = Vec::new();
    // Rows of a function may continue in the following pages.
    for number in low..count {
        for row in read(&page(number)?, &|_, _| true).ok_or_else(&broken)? {
            // Rows are sorted: nothing of this function follows.
            if row.fun.as_slice() > fun.as_bytes() {
                return Ok(found);
            }
            if row.fun == fun.as_bytes() {
                found.push(row);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::page::unpack;

    #[test]
    fn every_function_finds_its_own_minions() {
        let funs = ["", "cmd.run", "state.apply", "test", "test.ping"];
        let minions: Vec<String> = (0..3_000).map(|n| format!("web{n:04}.example")).collect();
        let mut rows = Vec::new();
        for (f, fun) in funs.iter().enumerate() {
            for (m, minion) in minions.iter().enumerate().filter(|(m, _)| (m + f) % 2 == 0) {
                let jid = match m % 3 {
                    0 => format!("20261121030955{m:06}"),
                    1 => format!("20261121030955{m:06}_{m}"),
                    _ => format!("free {m}"),
                };
                let seq = SeqNo((m * 7 % 1000) as u64);
                rows.push(LatestJob {
                    fun: (*fun).into(),
                    minion: minion.clone().into(),
                    seq,
                    jid: Jid::of(&jid),
                });
            }
        }
        rows.sort_unstable();
        let mut writer = PageWriter::new().unwrap();
        write(&mut writer, &rows).unwrap();
        let pages: Vec<_> = writer
            .pages()
            .iter()
            .map(|(_, page)| unpack(page).unwrap())
            .collect();
        assert!(pages.len() > 5);
        assert_eq!(all(&pages, &|_, _| true).unwrap(), rows);
        let wanted = |fun: &[u8], minion: &[u8]| fun == b"test" && minion.ends_with(b"7.example");
        let expected: Vec<_> = rows
            .iter()
            .filter(|row| wanted(&row.fun, &row.minion))
            .cloned()
            .collect();
        assert_eq!(all(&pages, &wanted).unwrap(), expected);
        let of_function = |fun: &str| {
            let count = u32::try_from(pages.len()).unwrap();
            let page = |n: u32| Ok(pages[n as usize].clone());
            of_function(count, page, || StoreError::Broken("malformed"), fun).unwrap()
        };
        for fun in funs {
            let expected: Vec<_> = rows
                .iter()
                .filter(|row| row.fun == fun.as_bytes())
                .cloned()
                .collect();
            assert_eq!(of_function(fun), expected, "{fun}");
        }
        assert!(of_function("other").is_empty());
    }
}
