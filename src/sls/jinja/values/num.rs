//! Between the sizes of Rust and the numbers of Python.

/// A length as a number.
pub(crate) fn len(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A number as a length: negative ones are 0.
pub(crate) fn size(n: i64) -> usize {
    usize::try_from(n.max(0)).unwrap_or(usize::MAX)
}

/// The whole number that a float is cut to, if 128 bits hold it.
#[expect(clippy::cast_possible_truncation, reason = "checked: within i128")]
pub(crate) fn trunc(f: f64) -> Option<i128> {
    const EDGE: f64 = 1e38;
    (f.is_finite() && f.abs() < EDGE).then(|| f.trunc() as i128)
}

/// A number as a float.
pub(crate) fn float(n: i128) -> f64 {
    n as f64
}

/// An index of Python into something of this length.
pub(crate) fn index(i: i64, len: usize) -> Option<usize> {
    let len = self::len(len);
    let i = if i < 0 { i.checked_add(len)? } else { i };
    usize::try_from(i).ok().filter(|i| self::len(*i) < len)
}

/// The places that `[start:stop:step]` takes of something of this length.
pub(crate) fn slice(start: Option<i64>, stop: Option<i64>, step: i64, n: usize) -> Vec<usize> {
    let len = self::len(n);
    let clamp = |i: Option<i64>, default: i64, low: i64, high: i64| match i {
        None => default,
        Some(i) if i < 0 => i.saturating_add(len).max(low),
        Some(i) => i.min(high),
    };
    let mut places = Vec::new();
    if step > 0 {
        let (mut i, end) = (clamp(start, 0, 0, len), clamp(stop, len, 0, len));
        while i < end {
            places.push(size(i));
            i = i.saturating_add(step);
        }
    } else {
        let (mut i, end) = (clamp(start, len - 1, -1, len - 1), clamp(stop, -1, -1, len - 1));
        while i > end {
            places.push(size(i));
            i = i.saturating_add(step);
        }
    }
    places
}
