//! Times on the command line and in tables: local, or UTC with `--utc`. JSON output is in UTC.

use std::sync::OnceLock;
use std::time::Duration;

use crate::base::clock::{Clock, Micros, digits};
use crate::model::word::Word as _;
use crate::wire::msgpack::Time;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Selects UTC for all times of this process; effective only before the first time is read or
/// shown.
pub(in crate::cli) fn use_utc() {
    // Set already: the zone cannot change any more.
    let _ = ZONE.set(TimeZone::UTC);
}

/// The zone of tables and of times on the command line: `TZ`, or the system's.
fn zone() -> &'static TimeZone {
    ZONE.get_or_init(|| {
        TimeZone::try_system().unwrap_or_else(|error| {
            super::streams::print_error(&format!(
                "cannot read the time zone, showing UTC: {error}"
            ));
            TimeZone::UTC
        })
    })
}

fn is_utc(zone: &TimeZone) -> bool {
    *zone == TimeZone::UTC
        || matches!(
            zone.iana_name(),
            Some("UTC" | "Etc/UTC" | "UCT" | "Zulu" | "Universal")
        )
}

/// A time on the command line: an age, a day or a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum When {
    /// An instant.
    At(Micros),
    /// A time of the local calendar, or of UTC with `--utc`, which is not known before all flags
    /// are read.
    Local(DateTime),
    /// A time of day, and the number of days before today.
    Day(i32, DateTime),
}

const EXPECTED: &str = "expected an age (30s, -10m, 2h, 3d, 1w), now, today, yesterday 14:00, 14:00, or a date (2026-11-21, \
                        2026-11-21 05:47, 2026-11-21T05:47:28.123, with Z or +01:00 for another zone than the local one)";

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text.trim()).ok_or_else(|| EXPECTED.to_owned())
    }
}

impl When {
    /// The instant in the zone of this process.
    pub(in crate::cli) fn micros(self) -> Micros {
        self.micros_in(zone(), now())
    }

    fn micros_in(self, zone: &TimeZone, now: Micros) -> Micros {
        let at = match self {
            Self::At(at) => return at,
            Self::Local(at) => at,
            Self::Day(days, time) => {
                let today = timestamp(now).to_zoned(zone.clone()).date();
                today.saturating_sub(days.days()).to_datetime(time.time())
            }
        };

        // In a gap of the calendar the time after it, in a fold the first of both.
        let zoned = zone.to_ambiguous_zoned(at).compatible();
        zoned.map_or(Micros(i64::MAX), |zoned| {
            Micros(zoned.timestamp().as_microsecond())
        })
    }
}

/// A duration on the command line.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    Duration::parse(text).ok_or_else(|| "expected a duration such as 30s, 10m, 2h or 1d".to_owned())
}

/// Flags that select a time range.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct TimeRange {
    /// Start of the time range: 2h or -2h (ago), 'yesterday 14:00', '2026-11-21 05:47'
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(in crate::cli) since: Option<When>,
    /// End of the time range
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(in crate::cli) until: Option<When>,
}

impl From<When> for Time {
    fn from(when: When) -> Self {
        Self(when.micros())
    }
}

impl TimeRange {
    pub(in crate::cli) fn since(&self) -> Option<Time> {
        self.since.map(Time::from)
    }

    pub(in crate::cli) fn until(&self) -> Option<Time> {
        self.until.map(Time::from)
    }
}

fn now() -> Micros {
    Clock::real().now()
}

/// The nearest time within the calendar.
fn timestamp(at: Micros) -> Timestamp {
    let edge = if at.0 < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_microsecond(at.0).unwrap_or(edge)
}

fn parse(text: &str) -> Option<When> {
    // With or without a minus: both mean that long ago.
    let age = Duration::parse(text.strip_prefix('-').unwrap_or(text));
    if let Some(age) = age.and_then(|age| i64::try_from(age.as_micros()).ok()) {
        return now().0.checked_sub(age).map(Micros).map(When::At);
    }

    if text == "now" {
        return Some(When::At(now()));
    }

    // A day without a time begins at midnight.
    let (day, rest) = text.split_once(' ').unwrap_or((text, "00:00"));
    let days = match day {
        "today" => Some(0),
        "yesterday" => Some(1),
        _ => None,
    };

    if let Some(days) = days {
        return civil("2000-01-01", rest).map(|time| When::Day(days, time));
    }
    // A time alone is one of today.
    if let Some(time) = civil("2000-01-01", text) {
        return Some(When::Day(0, time));
    }

    match date(text)? {
        (at, None) => Some(When::Local(at)),
        (at, Some(offset)) => Some(When::At(of_utc(at.checked_sub(offset).ok()?))),
    }
}

/// A date, perhaps with a time, and the offset of its zone from UTC, if given.
fn date(text: &str) -> Option<(DateTime, Option<SignedDuration>)> {
    let (day, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));

    if let Some(time) = time.strip_suffix('Z').or_else(|| time.strip_suffix(" UTC")) {
        return Some((civil(day, time)?, Some(SignedDuration::ZERO)));
    }

    // Without an offset, the caller decides the zone.
    let Some(sign) = time.find(['+', '-']) else {
        return Some((civil(day, time)?, None));
    };

    let (time, offset) = time.split_at(sign);
    let is_west = offset.starts_with('-');

    // Hours and minutes are required, because the meaning of `+1` would be a guess.
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let seconds = i64::from(number(hours, 2)?) * 3600 + i64::from(number(minutes, 2)?) * 60;
    let offset = SignedDuration::from_secs(if is_west { -seconds } else { seconds });

    Some((civil(day, time)?, Some(offset)))
}

/// Parses `2026-11-21` and `05:47`, optionally followed by `:28` and `.123456`.
fn civil(date: &str, time: &str) -> Option<DateTime> {
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));

    let mut date = date.split('-');
    let mut time = time.split(':');
    let (year, month, day) = (
        number(date.next()?, 4)?,
        number(date.next()?, 2)?,
        number(date.next()?, 2)?,
    );

    let (hour, minute) = (number(time.next()?, 2)?, number(time.next()?, 2)?);
    let second = number(time.next().unwrap_or("00"), 2)?;
    // More than six digits do not fit, and are rejected.
    let micros = number(&format!("{fraction:0<6}"), 6)?;

    if date.next().is_some() || time.next().is_some() {
        return None;
    }

    Micros::of_utc([year, month, day, hour, minute, second, micros])?.utc()
}

fn number(text: &str, len: usize) -> Option<u32> {
    digits(text.as_bytes()).filter(|_| text.len() == len)
}

fn of_utc(at: DateTime) -> Micros {
    TimeZone::UTC
        .to_ambiguous_zoned(at)
        .compatible()
        .map_or(Micros(i64::MAX), |at| {
            Micros(at.timestamp().as_microsecond())
        })
}

/// Reads a date of UTC, as in exports: with or without `Z`.
pub(in crate::cli) fn date_micros(text: &str) -> Option<i64> {
    let (at, offset) = date(text)?;
    at.checked_sub(offset.unwrap_or_default())
        .ok()
        .map(|at| of_utc(at).0)
}

/// The title of a column of times: `name`, or with the zone if it is UTC.
pub(in crate::cli) fn title(name: &'static str, name_utc: &'static str) -> &'static str {
    if is_utc(zone()) { name_utc } else { name }
}

/// Formats a time for tables, in the zone of this process: `2026-11-21 05:47:28.123`.
pub(in crate::cli) fn short_at(at: Time) -> String {
    shown(at.0, zone(), "%Y-%m-%d %H:%M:%S%.3f")
}

/// The day of a time in the zone of this process: `2026-11-21`.
pub(in crate::cli) fn day_of(at: Time) -> String {
    shown(at.0, zone(), "%Y-%m-%d")
}

/// Like [`short_at`], with the zone: `2026-11-21 06:47:28.123 CET`.
pub(in crate::cli) fn short_at_in_zone(at: Time) -> String {
    shown(at.0, zone(), "%Y-%m-%d %H:%M:%S%.3f %Z")
}

fn shown(at: Micros, zone: &TimeZone, form: &str) -> String {
    // Outside of the calendar.
    if at.utc().is_none() {
        return at.iso();
    }

    let at = timestamp(at).to_zoned(zone.clone());
    // The milliseconds are cut, not rounded, because a rounded time could belong to another entry.
    at.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::Value as Json;

    /// An hour ahead of UTC, two from the last Sunday of March to that of October.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    /// 2026-11-21 05:47:28 UTC.
    const NOW: Micros = Micros(1_795_240_048_000_000);

    #[test]
    fn dates_are_local_unless_they_have_a_zone() {
        for (text, expected) in [
            ("1970-01-01", "1969-12-31T23:00:00.000000Z"),
            ("2026-11-21T05:47", "2026-11-21T04:47:00.000000Z"),
            ("2026-11-21 05:47:28", "2026-11-21T04:47:28.000000Z"),
            ("2026-07-01 12:00", "2026-07-01T10:00:00.000000Z"),
            ("2024-02-29T23:59:59.123Z", "2024-02-29T23:59:59.123000Z"),
            ("2026-11-21 05:47:28 UTC", "2026-11-21T05:47:28.000000Z"),
            ("2026-11-21T05:47:28.5+05:30", "2026-11-21T00:17:28.500000Z"),
            ("2026-11-21 05:47-01:00", "2026-11-21T06:47:00.000000Z"),
            // The hour that the clock skips, and the one that it repeats.
            ("2026-03-29 02:30", "2026-03-29T01:30:00.000000Z"),
            ("2026-10-25 02:30", "2026-10-25T00:30:00.000000Z"),
            ("today", "2026-11-20T23:00:00.000000Z"),
            ("today 06:00", "2026-11-21T05:00:00.000000Z"),
            ("06:00:01", "2026-11-21T05:00:01.000000Z"),
            ("yesterday", "2026-11-19T23:00:00.000000Z"),
            ("yesterday 14:00", "2026-11-20T13:00:00.000000Z"),
        ] {
            let when: When = text.parse().unwrap();
            assert_eq!(when.micros_in(&berlin(), NOW).iso(), expected, "{text}");
        }
    }

    #[test]
    fn today_is_the_local_day() {
        let late = Micros(NOW.0 + 18 * 3_600_000_000);
        let today = |zone: &TimeZone| "today".parse::<When>().unwrap().micros_in(zone, late).iso();
        assert_eq!(today(&berlin()), "2026-11-21T23:00:00.000000Z");
        assert_eq!(today(&TimeZone::UTC), "2026-11-21T00:00:00.000000Z");
    }

    #[test]
    fn times_are_shown_in_the_zone() {
        let form = "%Y-%m-%d %H:%M:%S%.3f %Z";
        let shown =
            |iso: &str, zone: &TimeZone| shown(Micros(date_micros(iso).unwrap()), zone, form);
        let iso = "2026-11-21T23:47:28.123999Z";
        assert_eq!(shown(iso, &berlin()), "2026-11-22 00:47:28.123 CET");
        assert_eq!(
            shown("2026-07-01T10:00:00.000000Z", &berlin()),
            "2026-07-01 12:00:00.000 CEST"
        );
        assert_eq!(shown(iso, &TimeZone::UTC), "2026-11-21 23:47:28.123 UTC");
        let outside = short_at(Time(Micros(i64::MAX)));
        assert!(outside.ends_with("microseconds since 1970"), "{outside}");
    }

    #[test]
    fn dates_of_exports_are_utc() {
        for text in [
            "2026-11-21T05:47:28",
            "2026-11-21T05:47:28.000000Z",
            "2026-11-21 05:47:28",
        ] {
            assert_eq!(date_micros(text), Some(NOW.0), "{text}");
        }
        assert_eq!(date_micros("1h"), None);
        assert_eq!(date_micros("1969-12-31T23:59:59.999999"), Some(-1));
    }

    /// Cases that the extension's tests share, because it parses times itself.
    fn shared() -> Json {
        serde_json::from_str(include_str!("../../../salt/tests/data/times.json")).unwrap()
    }

    #[test]
    fn times_are_those_that_the_extension_accepts() {
        let shared = shared();
        let of_utc = Micros(shared["now"].as_i64().unwrap() * 1_000_000);
        for (text, expected) in shared["dates"].as_object().unwrap() {
            let when: When = text.parse().unwrap();
            let at = when.micros_in(&TimeZone::UTC, of_utc);
            assert_eq!(at.iso(), *expected, "{text}");
        }

        for (text, age) in shared["ages"].as_object().unwrap() {
            let before = now();
            let then = text.parse::<When>().unwrap().micros();
            let age = age.as_i64().unwrap() * 1_000_000;
            assert!(before.0 <= then.0 + age, "{text}");
            assert!(then.0 + age <= now().0, "{text}");
        }

        for text in shared["rejected"].as_array().unwrap() {
            let text = text.as_str().unwrap();
            assert!(text.parse::<When>().is_err(), "{text}");
        }
    }
}
