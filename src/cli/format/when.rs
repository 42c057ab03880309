//! Times on the command line and in tables. All are UTC, held as microseconds since 1970.

use crate::clock::{Civil, Clock, Micros};

use serde_json::Value as Json;

const MICROS: i64 = 1_000_000;
const DAY_S: i64 = 86_400;

/// A time on the command line: an age such as `10m`, or a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct When(pub(in crate::cli) i64);

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ago = ago_s(text).and_then(|seconds| now_micros().checked_sub(seconds.checked_mul(MICROS)?));
        ago.or_else(|| date_micros(text)).map(Self).ok_or_else(|| {
            "expected an age (30s, 10m, 2h, 3d, 1w) or a date in UTC (2026-11-21, 2026-11-21T05:47, \
             2026-11-21T05:47:28.123)"
                .to_owned()
        })
    }
}

impl From<When> for rmpv::Value {
    fn from(When(micros): When) -> Self {
        micros.into()
    }
}

/// Flags that select a time range.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct TimeRange {
    /// Start of the time range: 10m, 2h, 3d (ago), or 2026-11-21, 2026-11-21T05:47:28 (UTC)
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) since: Option<When>,
    /// End of the time range
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) until: Option<When>,
}

impl TimeRange {
    /// The range as arguments of a call; an absent end is nil.
    pub(in crate::cli) fn arguments(&self) -> [(&'static str, rmpv::Value); 2] {
        [("since", self.since), ("until", self.until)]
            .map(|(name, when)| (name, when.map_or(rmpv::Value::Nil, rmpv::Value::from)))
    }
}

fn now_micros() -> i64 {
    Clock::real().now().0
}

/// Seconds in `30s`, `10m`, `2h`, `3d`, `1w`.
pub(in crate::cli) fn ago_s(text: &str) -> Option<i64> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => DAY_S,
        "w" => 7 * DAY_S,
        _ => return None,
    };
    number(digits)?.checked_mul(factor)
}

fn number(digits: &str) -> Option<i64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Parses `2026-11-21`, optionally followed by `T05:47`, `:28`, `.123456` and `Z`; a space may replace the `T`.
pub(in crate::cli) fn date_micros(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut date = date.split('-');
    let (year, month, day) = (part(&mut date, 4)?, part(&mut date, 2)?, part(&mut date, 2)?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.split(':');
    let (hour, minute) = (part(&mut time, 2)?, part(&mut time, 2)?);
    let second = time.next().map_or(Some(0), |second| part(&mut std::iter::once(second), 2))?;
    if date.next().is_some() || time.next().is_some() || fraction.len() > 6 {
        return None;
    }
    let small = |n: i64| u32::try_from(n).ok();
    let civil = Civil {
        year,
        month: small(month)?,
        day: small(day)?,
        hour: small(hour)?,
        minute: small(minute)?,
        second: small(second)?,
        micros: small(number(&format!("{fraction:0<6}"))?)?,
    };
    civil.micros_since_epoch().map(|micros| micros.0)
}

fn part<'a>(parts: &mut impl Iterator<Item = &'a str>, digits: usize) -> Option<i64> {
    parts.next().filter(|part| part.len() == digits).and_then(number)
}

/// Converts the field `time` of a row from microseconds to ISO text.
pub(in crate::cli) fn iso_in(row: &mut Json) {
    iso_at(row, "time");
}

/// Like [`iso_in`] for the field `key`.
pub(in crate::cli) fn iso_at(row: &mut Json, key: &str) {
    if let Some(time) = row.get_mut(key)
        && let Some(micros) = time.as_i64()
    {
        *time = Json::from(Micros(micros).iso());
    }
}

/// Formats ISO text for tables: `2026-11-21 05:47:28.123`.
pub(in crate::cli) fn short(iso: &Json) -> String {
    let iso = iso.as_str().unwrap_or_default();
    iso.get(..23).unwrap_or(iso).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_and_written() {
        for (text, expected) in [
            ("1970-01-01", "1970-01-01T00:00:00.000000Z"),
            ("2026-11-21", "2026-11-21T00:00:00.000000Z"),
            ("2026-11-21T05:47", "2026-11-21T05:47:00.000000Z"),
            ("2026-11-21 05:47:28", "2026-11-21T05:47:28.000000Z"),
            ("2024-02-29T23:59:59.123Z", "2024-02-29T23:59:59.123000Z"),
            ("1969-12-31T23:59:59.999999", "1969-12-31T23:59:59.999999Z"),
            ("2000-03-01", "2000-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Micros(date_micros(text).unwrap()).iso(), expected, "{text}");
        }
        assert_eq!(date_micros("2026-11-21T05:47:28.5"), Some(1_795_240_048_500_000));
        assert_eq!(short(&Json::from("2026-11-21T05:47:28.123456Z")), "2026-11-21 05:47:28.123");
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in [
            "",
            "m",
            "10",
            "10y",
            "-1m",
            "2026-2-3",
            "2026-02-30",
            "2026-13-01",
            "2026-01-01T24:00",
            "2026-01-01T1:00",
            "2026-01-01T01:00:00.1234567",
            "2026-01-01-01",
            "99999999999999999999d",
            "+1d",
        ] {
            assert!(text.parse::<When>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_age_is_subtracted_from_now() {
        let When(then) = "2h".parse().unwrap();
        let age = now_micros() - then;
        assert!((7_200 * MICROS..7_210 * MICROS).contains(&age), "{age}");
    }
}
