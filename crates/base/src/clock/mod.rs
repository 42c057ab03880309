//! Time: the only module that reads the operating system's clocks, and all conversion of dates.
//!
//! Other code receives a [`Clock`], which tests control. An instant is a [`Micros`]:
//! microseconds since 1970 UTC, the resolution of a jid and of Salt's `_stamp`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

/// A time span in whole microseconds, at most `i64::MAX`.
pub fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Microseconds since 1970-01-01 00:00 UTC.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
)]
pub struct Micros(pub i64);

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

impl Micros {
    /// The instant of a UTC `[year, month, day, hour, minute, second, microsecond]`; `None` if it does not exist. There are no leap seconds.
    pub fn of_utc([year, month, day, hour, minute, second, micros]: [u32; 7]) -> Option<Self> {
        let small = |n: u32| i8::try_from(n).ok();
        let nanos = i32::try_from(micros.checked_mul(1_000)?).ok()?;
        let year = i16::try_from(year).ok()?;
        let month = small(month)?;
        let day = small(day)?;

        let at = DateTime::new(
            year,
            month,
            day,
            small(hour)?,
            small(minute)?,
            small(second)?,
            nanos,
        )
        .ok()?;

        // Ten times as fast as the difference to an epoch, but a timestamp cannot be on the last
        // day of the year 9999.
        let stamp = Offset::UTC.to_timestamp(at).map(Timestamp::as_microsecond);
        stamp
            .or_else(|_| i64::try_from(at.duration_since(EPOCH).as_micros()))
            .ok()
            .map(Self)
    }

    /// The instant of a `_stamp` of Salt, `2026-11-21T03:03:57.899729` with or without a fraction and `+00:00`; `None` for other text.
    pub fn of_stamp(stamp: &str) -> Option<Self> {
        let at: DateTime = stamp.strip_suffix("+00:00").unwrap_or(stamp).parse().ok()?;
        i64::try_from(at.duration_since(EPOCH).as_micros())
            .ok()
            .map(Self)
    }

    /// The instant at the end of a span that begins here.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// The instant at the beginning of a span that ends here.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// The UTC date and time; `None` outside of the years 0 to 9999.
    pub fn utc(self) -> Option<DateTime> {
        // Cheaper than a sum of civil time and duration, but jiff's timestamps end a day before its years.
        let at = Timestamp::from_microsecond(self.0).map(|at| Offset::UTC.to_datetime(at));
        let at = at
            .or_else(|_| EPOCH.checked_add(SignedDuration::from_micros(self.0)))
            .ok();

        // A year before 0 would be printed with a sign.
        at.filter(|at| at.year() >= 0)
    }

    /// `2026-11-21T05:47:28.123456Z`; the number of microseconds outside of the years 0 to 9999.
    pub fn iso(self) -> String {
        match self.utc() {
            Some(at) => format!("{at:.6}Z"),
            None => format!("{} microseconds since 1970", self.0),
        }
    }
}

/// The number in ASCII digits; `None` for other bytes, or out of range.
pub fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0_u32, |n, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// A source of time: the operating system, or a clock that a test controls.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Manual>>);

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
        let wall = AtomicI64::new(now.0);
        let monotonic = AtomicU64::default();
        Self(Some(Arc::new(Manual { wall, monotonic })))
    }

    /// The wall clock time. A clock before 1970 reads 1970.
    pub fn now(&self) -> Micros {
        if let Some(manual) = &self.0 {
            return Micros(manual.wall.load(Ordering::Relaxed));
        }

        #[expect(
            clippy::disallowed_methods,
            reason = "the only access to the system clock"
        )]
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();

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

    /// Advances both the wall clock and the monotonic clock of a manual clock. A negative value
    /// sets only the wall clock back, as [`Clock::set`]. No effect on the real clock.
    pub fn wind(&self, by_micros: i64) {
        if let Some(manual) = &self.0 {
            manual.wall.fetch_add(by_micros, Ordering::Relaxed);
            manual
                .monotonic
                .fetch_add(u64::try_from(by_micros).unwrap_or(0), Ordering::Relaxed);
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
mod tests;
