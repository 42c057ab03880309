//! Bytes, durations, rates and strings in few characters.

use std::borrow::Cow;

/// Formats bytes in at most six characters: `1023B`, `47.2K`, `9.81G`.
pub fn bytes(n: u64) -> String {
    let mut unit = 0_usize;
    let mut scaled = n;
    let mut rest = 0;

    // The remainder of the last division is enough for two decimals.
    while scaled >= 1024 && unit < 6 {
        rest = scaled % 1024;
        scaled /= 1024;
        unit += 1;
    }

    let name = ["B", "K", "M", "G", "T", "P", "E"]
        .get(unit)
        .copied()
        .unwrap_or("E");

    match (unit, scaled) {
        (0, _) | (_, 100..) => format!("{scaled}{name}"),
        (_, 10..) => format!("{scaled}.{}{name}", rest * 10 / 1024),
        _ => format!("{scaled}.{:02}{name}", rest * 100 / 1024),
    }
}

/// Formats a duration in one unit: `59s`, `47h`, `400d`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a number per 1000 s as a number per second with one decimal.
pub fn rate(per_1000_s: u64) -> String {
    format!("{}.{}", per_1000_s / 1000, per_1000_s % 1000 / 100)
}

/// The first `max` characters of a string, with `…` if there are more.
pub fn cut(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        for (text, shown) in [("", ""), ("aé", "aé"), ("aéb", "aé…")] {
            assert_eq!(cut(text, 2), shown);
        }
    }

    #[test]
    fn bytes_and_durations_are_short() {
        for (n, shown) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (48_333, "47.2K"),
            (700 * 1024, "700K"),
            (1023 * 1024 + 1023, "1023K"),
            (10_538_225_664, "9.81G"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(bytes(n), shown);
        }
        for (seconds, shown) in [
            (59, "59s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (34_560_000, "400d"),
        ] {
            assert_eq!(span(seconds), shown);
        }
    }
}
