//! Sizes as text: `1048576`, `256MiB`, `1 GiB`.

pub(super) const KIB: u64 = 1024;
pub(super) const MIB: u64 = 1024 * KIB;
pub(super) const GIB: u64 = 1024 * MIB;

const UNITS: [(&str, u64); 4] = [("", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];

/// Parses a size. `None` if the text is malformed or out of range.
pub fn parse(text: &str) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(digits_end)?;
    let unit = unit.trim_start();
    let (_, factor) = UNITS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Formats a size in the largest unit that divides it.
pub(super) fn show(bytes: u64) -> String {
    let whole = |(_, factor): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*factor);
    let (name, factor) = UNITS.iter().rev().find(whole).unwrap_or(&("", 1));
    format!("{}{name}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_formatted() {
        for (text, bytes, shown) in [
            ("256MiB", 256 * MIB, "256MiB"),
            ("1 gib", GIB, "1GiB"),
            ("1048576", MIB, "1MiB"),
            ("1000", 1000, "1000"),
            ("0", 0, "0"),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
            assert_eq!(show(bytes), shown);
        }
        for text in ["", "MiB", "1MB", "1.5GiB", "-1", "1 parsec", "99999999999GiB"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
