//! Time: the only module that reads the operating system's clocks.
//!
//! Other code receives a [`Clock`], which tests control. An instant is a [`Micros`]:
//! microseconds since 1970 UTC, the resolution of a jid and of Salt's `_stamp`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A duration in microseconds.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Microseconds since 1970-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub i64);

/// A UTC date and time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Civil {
    /// Year; 1970 to 9999 if it is from a jid.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, from 1.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
    /// Microsecond, 0 to 999,999.
    pub micros: u32,
}

const DAY: i64 = 86_400_000_000;

impl Micros {
    /// Splits the instant into its UTC date and time of day.
    ///
    /// The calendar arithmetic uses eras of 400 years that start in March
    /// (H. Hinnant, "chrono-compatible low-level date algorithms").
    pub fn civil(self) -> Civil {
        let days = self.0.div_euclid(DAY);
        let rest = self.0.rem_euclid(DAY);
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let small = |n: i64| u32::try_from(n).unwrap_or(0);
        Civil {
            year: yoe + era * 400 + i64::from(month <= 2),
            month: small(month),
            day: small(doy - (153 * mp + 2) / 5 + 1),
            hour: small(rest / 3_600_000_000),
            minute: small(rest / 60_000_000 % 60),
            second: small(rest / 1_000_000 % 60),
            micros: small(rest % 1_000_000),
        }
    }

    /// `2026-11-21T05:47:28.123456Z`.
    pub fn iso(self) -> String {
        let c = self.civil();
        format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            c.year, c.month, c.day, c.hour, c.minute, c.second, c.micros
        )
    }
}

impl Civil {
    /// The instant, or `None` for a date that does not exist.
    pub fn micros_since_epoch(&self) -> Option<Micros> {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let days_in_month = match self.month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 => 28 + u32::from(leap),
            _ => return None,
        };
        let in_range = (1..=days_in_month).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
            && self.micros < 1_000_000
            && (-100_000..=100_000).contains(&self.year);
        if !in_range {
            return None;
        }
        let y = self.year - i64::from(self.month <= 2);
        let era = y.div_euclid(400);
        let yoe = y.rem_euclid(400);
        let month = i64::from(self.month);
        let mp = if month > 2 { month - 3 } else { month + 9 };
        let doy = (153 * mp + 2) / 5 + i64::from(self.day) - 1;
        let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
        let days = era * 146_097 + doe - 719_468;
        let seconds = i64::from(self.hour) * 3_600 + i64::from(self.minute) * 60 + i64::from(self.second);
        Some(Micros(days * DAY + seconds * 1_000_000 + i64::from(self.micros)))
    }
}

/// A source of time: the operating system, or a clock that a test controls.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Manual>>);
/// The two times of a manual clock.
#[derive(Debug, Default)]
struct Manual {
    wall: AtomicI64,
    /// Microseconds, as in [`Clock::monotonic`].
    monotonic: AtomicU64,
}

impl Clock {
    /// The operating system's clock.
    pub fn real() -> Self {
        Self(None)
    }

    /// A clock that stays at `now` until [`Clock::wind`] or [`Clock::set`] changes it.
    pub fn manual(now: Micros) -> Self {
        let (wall, monotonic) = (AtomicI64::new(now.0), AtomicU64::default());
        Self(Some(Arc::new(Manual { wall, monotonic })))
    }

    /// The wall clock time. A clock before 1970 reads 1970.
    pub fn now(&self) -> Micros {
        if let Some(manual) = &self.0 {
            return Micros(manual.wall.load(Ordering::Relaxed));
        }
        #[expect(clippy::disallowed_methods, reason = "the only access to the system clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// Time since a fixed instant of this process, independent of wall clock changes. It stops while the system is suspended.
    pub fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        match &self.0 {
            Some(manual) => Duration::from_micros(manual.monotonic.load(Ordering::Relaxed)),
            None => START.get_or_init(Instant::now).elapsed(),
        }
    }

    /// Advances both times of a manual clock. A negative value sets only the wall clock back, as [`Clock::set`]. No effect on the real clock.
    pub fn wind(&self, by_micros: i64) {
        if let Some(manual) = &self.0 {
            manual.wall.fetch_add(by_micros, Ordering::Relaxed);
            manual.monotonic.fetch_add(u64::try_from(by_micros).unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Sets the wall clock of a manual clock; its monotonic time does not advance.
    pub fn set(&self, now: Micros) {
        if let Some(manual) = &self.0 {
            manual.wall.store(now.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_round_trip_through_the_calendar() {
        for (us, iso) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_795_230_637_359_479, "2026-11-21T03:10:37.359479Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(Micros(us).iso(), iso);
            assert_eq!(Micros(us).civil().micros_since_epoch(), Some(Micros(us)));
        }
    }

    #[test]
    fn every_day_of_some_centuries_goes_both_ways() {
        for days in -200_000..200_000 {
            let at = Micros(days * DAY + 1);
            assert_eq!(at.civil().micros_since_epoch(), Some(at));
        }
    }

    #[test]
    fn a_nonexistent_date_has_no_instant() {
        let day = |month, day| Civil { year: 2026, month, day, hour: 0, minute: 0, second: 0, micros: 0 };
        assert_eq!(day(2, 29).micros_since_epoch(), None);
        assert_eq!(day(13, 1).micros_since_epoch(), None);
        assert_eq!(day(4, 0).micros_since_epoch(), None);
    }
}
