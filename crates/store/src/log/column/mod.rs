//! Columns: integers, packed to the number of bytes that their range needs.
//!
//! # On disk
//!
//! ```text
//! base   i64     the smallest value
//! width  u8      bytes of each delta, 0 to 8; 0 if all values are equal
//! data   bytes   value i is base + the little-endian delta at i * width
//! ```
//!
//! A column is read in place: one load and one addition per value. A constant column contains no data.

use rkyv::{Archive, Deserialize, Serialize};

#[derive(Debug, Archive, Serialize, Deserialize)]
pub(crate) struct Column {
    base: i64,
    width: u8,
    data: Vec<u8>,
}

impl Column {
    pub(crate) fn pack(values: &[i64]) -> Self {
        let first = values.first().copied().unwrap_or(0);
        // Mostly sources, masters and gaps; in other columns the comparison soon ends.
        if values.iter().all(|value| *value == first) {
            return Self {
                base: first,
                width: 0,
                data: Vec::new(),
            };
        }

        let base = values.iter().copied().min().unwrap_or(0);
        // Wrapping: the difference of two i64 always fits the u64 it is taken as.
        let delta = |v: i64| v.wrapping_sub(base).cast_unsigned();
        let widest = values.iter().map(|&v| delta(v)).max().unwrap_or(0);
        let width = 8 - (widest.leading_zeros() / 8) as usize;

        // The common widths are separate arms, because a constant width compiles to plain stores;
        // the rest is rare enough for the loop over bytes.
        let mut data = Vec::with_capacity(values.len() * width);
        match width {
            0 => {}
            1 => data.extend(values.iter().map(|&v| narrow::<1>(delta(v))[0])),
            2 => values
                .iter()
                .for_each(|&v| data.extend_from_slice(&narrow::<2>(delta(v)))),
            3 => values
                .iter()
                .for_each(|&v| data.extend_from_slice(&narrow::<3>(delta(v)))),
            4 => values
                .iter()
                .for_each(|&v| data.extend_from_slice(&narrow::<4>(delta(v)))),
            _ => values
                .iter()
                .for_each(|&v| data.extend(delta(v).to_le_bytes().iter().take(width))),
        }

        assert_eq!(data.len(), values.len() * width, "one delta per value");
        Self {
            base,
            width: u8::try_from(width).expect("at most eight bytes"),
            data,
        }
    }
}

/// The low `N` bytes of a number, little-endian.
fn narrow<const N: usize>(n: u64) -> [u8; N] {
    const { assert!(N <= 8) };
    *n.to_le_bytes().first_chunk().expect("N is at most eight")
}

/// Zero-extends little-endian bytes.
fn wide<const N: usize>(bytes: &[u8; N]) -> i64 {
    let mut n = [0_u8; 8];
    n.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    i64::from_le_bytes(n)
}

impl ArchivedColumn {
    /// Whether the data has the length of `count` values. A constant column fits any count.
    pub(crate) fn holds(&self, count: usize) -> bool {
        self.width <= 8 && count.checked_mul(usize::from(self.width)) == Some(self.data.len())
    }

    /// Whether all values equal this value, without checking each. May be false for a column that
    /// no builder packs.
    pub(crate) fn is_all(&self, value: i64) -> bool {
        self.width == 0 && self.base.to_native() == value
    }

    /// Value `i`; the column must be checked with [`ArchivedColumn::holds`].
    pub(crate) fn get(&self, i: usize) -> i64 {
        let width = usize::from(self.width);
        let base = self.base.to_native();
        let at = i * width;
        let bytes = self
            .data
            .get(at..at + width)
            .expect("the column was checked");

        let mut delta = [0_u8; 8];
        for (to, from) in delta.iter_mut().zip(bytes) {
            *to = *from;
        }
        base.wrapping_add(u64::from_le_bytes(delta).cast_signed())
    }

    /// Appends all `count` values to `out`; faster than single reads.
    pub(crate) fn unpack(&self, count: usize, out: &mut Vec<i64>) {
        // A constant width lets the compiler turn each value into one load.
        fn each<const N: usize>(data: &[u8], base: i64, out: &mut Vec<i64>) {
            out.extend(
                data.as_chunks::<N>()
                    .0
                    .iter()
                    .map(|bytes| base.wrapping_add(wide(bytes))),
            );
        }

        let (data, base) = (self.data.as_slice(), self.base.to_native());
        match self.width {
            0 => out.extend(std::iter::repeat_n(base, count)),
            1 => each::<1>(data, base, out),
            2 => each::<2>(data, base, out),
            3 => each::<3>(data, base, out),
            4 => each::<4>(data, base, out),
            5 => each::<5>(data, base, out),
            6 => each::<6>(data, base, out),
            7 => each::<7>(data, base, out),
            _ => each::<8>(data, base, out),
        }
    }

    /// Whether all values are in `0..bound`.
    pub(crate) fn is_below(&self, bound: usize) -> bool {
        let Ok(base) = u64::try_from(self.base.to_native()) else {
            return false;
        };
        self.largest_delta()
            .checked_add(base)
            .is_some_and(|n| n < bound as u64)
    }

    fn largest_delta(&self) -> u64 {
        fn of<const N: usize>(data: &[u8]) -> u64 {
            data.as_chunks::<N>()
                .0
                .iter()
                .map(wide)
                .max()
                .map_or(0, i64::cast_unsigned)
        }

        let data = self.data.as_slice();
        match self.width {
            0 => 0,
            1 => u64::from(data.iter().copied().max().unwrap_or(0)),
            2 => of::<2>(data),
            3 => of::<3>(data),
            4 => of::<4>(data),
            width => data
                .chunks_exact(usize::from(width))
                .map(|bytes| bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
                .max()
                .unwrap_or(0),
        }
    }

    /// The sum of all `count` values; `None` if one is negative or the sum overflows.
    pub(crate) fn total(&self, count: usize) -> Option<u64> {
        let base = u64::try_from(self.base.to_native()).ok()?;
        let mut values = Vec::with_capacity(count);
        self.unpack(count, &mut values);
        // A value below the base has wrapped around.
        values.iter().try_fold(0_u64, |sum, &n| {
            sum.checked_add(u64::try_from(n).ok().filter(|n| *n >= base)?)
        })
    }

    /// Value `i` as an index; the column must be checked with [`ArchivedColumn::is_below`].
    pub(crate) fn index(&self, i: usize) -> usize {
        usize::try_from(self.get(i)).expect("the column was checked")
    }
}

/// The distinct values of a column of indexes, in the order of their first occurrence; negative
/// values are left out.
pub(crate) fn distinct(column: &[i64]) -> Vec<usize> {
    let mut seen: Vec<bool> = Vec::new();
    let mut found = Vec::new();

    for at in column.iter().filter_map(|&n| usize::try_from(n).ok()) {
        if seen.len() <= at {
            seen.resize(at + 1, false);
        }
        if let Some(seen) = seen.get_mut(at)
            && !std::mem::replace(seen, true)
        {
            found.push(at);
        }
    }

    found
}

#[cfg(test)]
mod tests;
