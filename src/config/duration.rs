//! Durations as text: `90s`, `12h`, `30d`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)];

/// Parses a duration. `None` without a unit, or if the text is malformed or out of range.
pub fn parse(text: &str) -> Option<Duration> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(digits_end)?;
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit.trim_start())?;
    digits.parse::<u64>().ok()?.checked_mul(factor).map(Duration::from_secs)
}

/// Formats a duration in the largest unit that divides it; days rather than weeks.
pub(super) fn show(length: Duration) -> String {
    let seconds = length.as_secs();
    let divides =
        |(name, factor): &&(&str, u64)| *name != "w" && seconds != 0 && seconds.is_multiple_of(*factor);
    let (name, factor) = UNITS.iter().rev().find(divides).unwrap_or(&("s", 1));
    format!("{}{name}", seconds / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_formatted() {
        for (text, seconds, shown) in [
            ("30d", 2_592_000, "30d"),
            ("2w", 1_209_600, "14d"),
            ("90 m", 5_400, "90m"),
            ("3600s", 3_600, "1h"),
            ("86401s", 86_401, "86401s"),
            ("0s", 0, "0s"),
        ] {
            let length = parse(text).unwrap();
            assert_eq!(length.as_secs(), seconds, "{text}");
            assert_eq!(show(length), shown);
        }
        for text in ["", "30", "d", "1.5h", "-1d", "1y", "1D", "99999999999999999999w"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
