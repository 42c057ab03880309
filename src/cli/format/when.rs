//! Times on the command line and in tables. All are UTC, held as microseconds since 1970.

use std::time::Duration;

use crate::base::clock::{Clock, Micros, digits};
use crate::model::word::Word as _;

use serde_json::Value as Json;

/// A time on the command line: an age such as `10m`, or a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(in crate::cli) struct When(pub(in crate::cli) i64);

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let age = Duration::parse(text).and_then(|age| i64::try_from(age.as_micros()).ok());
        let ago = age.and_then(|age| now_micros().checked_sub(age));
        ago.or_else(|| date_micros(text)).map(Self).ok_or_else(|| {
            "expected an age (30s, 10m, 2h, 3d, 1w) or a date in UTC (2026-11-21, 2026-11-21T05:47, \
             2026-11-21T05:47:28.123)"
                .to_owned()
        })
    }
}

/// Flags that select a time range.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(in crate::cli) struct TimeRange {
    /// Start of the time range: 10m, 2h, 3d (ago), or 2026-11-21, 2026-11-21T05:47:28 (UTC)
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) since: Option<When>,
    /// End of the time range
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) until: Option<When>,
}

fn now_micros() -> i64 {
    Clock::real().now().0
}

/// Parses `2026-11-21`, optionally followed by `T05:47`, `:28`, `.123456` and `Z`; a space may replace the `T`.
pub(in crate::cli) fn date_micros(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let (mut date, mut time) = (date.split('-'), time.split(':'));
    let (year, month, day) = (number(date.next(), 4)?, number(date.next(), 2)?, number(date.next(), 2)?);
    let (hour, minute) = (number(time.next(), 2)?, number(time.next(), 2)?);
    let second = number(time.next().or(Some("00")), 2)?;
    let micros = number(Some(&format!("{fraction:0<6}")), 6)?;
    if date.next().is_some() || time.next().is_some() {
        return None;
    }
    Micros::of_utc([year, month, day, hour, minute, second, micros]).map(|at| at.0)
}

fn number(text: Option<&str>, len: usize) -> Option<u32> {
    text.filter(|text| text.len() == len).and_then(|text| digits(text.as_bytes()))
}

/// The fields of answers that hold values of Salt, or records as they are stored.
const STORED: [&str; 17] = [
    "arg", "tgt", "tgt_type", "user", "metadata", "load", "return", "retcode", "success", "fun", "fun_args",
    "out", "data", "changes", "comment", "reaction", "results",
];

/// Converts the fields `time` of an answer, and of the maps and lists in it, from microseconds to ISO text.
pub(in crate::cli) fn iso_in(answer: &mut Json) {
    match answer {
        Json::Array(rows) => rows.iter_mut().for_each(iso_in),
        Json::Object(fields) => {
            fields
                .iter_mut()
                .filter(|(key, _)| !STORED.contains(&key.as_str()))
                .for_each(|(_, value)| iso_in(value));
            iso_at(answer, "time");
        }
        _ => {}
    }
}

/// Converts the field `key` from microseconds to ISO text.
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
        assert!((7_200_000_000..7_210_000_000).contains(&age), "{age}");
    }
}
