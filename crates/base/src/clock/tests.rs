//! Tests of clocks and timestamps.

use super::*;

#[test]
fn stamps_of_all_releases_are_read() {
    for (stamp, expected) in [
        ("1970-01-01T00:00:01.000002", Some(1_000_002)),
        ("1970-01-01T00:00:01", Some(1_000_000)),
        ("1970-01-01T00:00:01.5+00:00", Some(1_500_000)),
        ("2026", None),
        ("", None),
    ] {
        assert_eq!(Micros::of_stamp(stamp).map(|at| at.0), expected, "{stamp}");
    }
}

#[test]
fn dates_round_trip_through_the_calendar() {
    for (us, iso, fields) in [
        (
            -62_167_219_200_000_000,
            "0000-01-01T00:00:00.000000Z",
            [0, 1, 1, 0, 0, 0, 0],
        ),
        (0, "1970-01-01T00:00:00.000000Z", [1970, 1, 1, 0, 0, 0, 0]),
        (
            951_782_400_000_000,
            "2000-02-29T00:00:00.000000Z",
            [2000, 2, 29, 0, 0, 0, 0],
        ),
        (
            1_795_230_637_359_479,
            "2026-11-21T03:10:37.359479Z",
            [2026, 11, 21, 3, 10, 37, 359_479],
        ),
        (
            253_402_300_799_999_999,
            "9999-12-31T23:59:59.999999Z",
            [9999, 12, 31, 23, 59, 59, 999_999],
        ),
    ] {
        assert_eq!(Micros(us).iso(), iso);
        assert_eq!(Micros::of_utc(fields), Some(Micros(us)));
    }
}

#[test]
fn a_time_outside_of_the_calendar_is_a_number() {
    for us in [
        i64::MIN,
        -62_167_219_200_000_001,
        253_402_300_800_000_000,
        i64::MAX,
    ] {
        assert_eq!(Micros(us).utc(), None);
        assert_eq!(Micros(us).iso(), format!("{us} microseconds since 1970"));
    }
}

#[test]
fn a_nonexistent_date_has_no_instant() {
    for fields in [
        [2026, 2, 29, 0, 0, 0, 0],
        [2026, 13, 1, 0, 0, 0, 0],
        [2026, 4, 0, 0, 0, 0, 0],
        [2026, 1, 1, 24, 0, 0, 0],
        [2026, 1, 1, 0, 0, 60, 0],
        [2026, 1, 1, 0, 0, 0, 1_000_000],
        [10_000, 1, 1, 0, 0, 0, 0],
        [u32::MAX; 7],
    ] {
        assert_eq!(Micros::of_utc(fields), None, "{fields:?}");
    }
}

#[test]
fn digits_are_ascii_and_in_range() {
    assert_eq!(digits(b"0042"), Some(42));
    for text in [&b"4x"[..], b"+4", b" 4", b"4294967296"] {
        assert_eq!(digits(text), None, "{text:?}");
    }
}
