//! Limits of classes and segments, at their exact values.

use std::time::Duration;

use crate::model::{Age, Keep};
use crate::store::retain::Reason;
use crate::store::segment::usage::SegmentUsage;
use crate::store::tests::retention::{DAY, FOREVER, HOUR, events, fill, jobs, with};
use crate::store::tests::*;
use crate::store::write::class::Class;

#[test]
fn limits_are_exact_to_the_microsecond_the_byte_and_the_entry() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&with(dir.path(), &[jobs(FOREVER), events(FOREVER)]));
    fill(&rig, 0..300);
    let shared = &rig.store.0;
    let usages: Vec<SegmentUsage> = shared
        .segments(Class::JOBS)
        .iter()
        .map(|s| s.usage())
        .collect();
    let (oldest, bytes, entries) = (
        usages[0].at_max,
        usages
            .iter()
            .map(|segment_usage| segment_usage.disk_bytes)
            .sum::<u64>(),
        usages
            .iter()
            .map(|segment_usage| segment_usage.entries)
            .sum::<u64>(),
    );
    let now = Micros(24 * HOUR);
    let reasons = |keep: Keep| -> Vec<Reason> {
        let plan = shared.plan(Class::JOBS, keep, now).unwrap();
        plan.iter().map(|(_, planned)| planned.reason).collect()
    };
    let micros = u64::try_from(now.0 - oldest.0).unwrap();
    let age = |micros| Keep {
        age: Age::For(Duration::from_micros(micros)),
        ..FOREVER
    };
    assert_eq!(reasons(age(micros)), [], "exactly at the age limit");
    assert_eq!(reasons(age(micros - 1)), [Reason::Age]);
    assert_eq!(
        reasons(Keep {
            bytes: Some(bytes),
            ..FOREVER
        }),
        []
    );
    assert_eq!(
        reasons(Keep {
            bytes: Some(bytes - 1),
            ..FOREVER
        }),
        [Reason::Bytes]
    );
    assert_eq!(
        reasons(Keep {
            entries: Some(entries),
            ..FOREVER
        }),
        []
    );
    assert_eq!(
        reasons(Keep {
            entries: Some(entries - 1),
            ..FOREVER
        }),
        [Reason::Entries]
    );
}

#[test]
fn a_segment_is_full_exactly_at_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        age: Age::For(DAY),
        ..FOREVER
    };
    let options = Options {
        limits: Limits::default(),
        ..with(dir.path(), &[jobs(keep), events(FOREVER)])
    };
    let rig = Rig::open_with(&options);
    rig.put(batch_of(0..30)).unwrap();
    let shared = &rig.store.0;
    let segment = shared.segments(Class::JOBS).pop().unwrap();
    let entries = segment.totals().entries;
    let wide = Limits {
        segment_bytes_max: u64::MAX,
        segment_entries_max: u64::MAX,
        ..Limits::default()
    };
    let full = |end, limits: Limits| shared.is_full(&segment, end, &limits);
    assert!(!full(0, wide));
    assert!(full(
        1000,
        Limits {
            segment_bytes_max: 1000,
            ..wide
        }
    ));
    assert!(!full(
        999,
        Limits {
            segment_bytes_max: 1000,
            ..wide
        }
    ));
    assert!(full(
        0,
        Limits {
            segment_entries_max: entries,
            ..wide
        }
    ));
    assert!(!full(
        0,
        Limits {
            segment_entries_max: entries + 1,
            ..wide
        }
    ));
    let most = shared.segment_bounds(Class::JOBS, &wide).age.unwrap();
    let until = segment.log().created().0 + most;
    options.clock.wind(until - 1 - options.clock.now().0);
    assert!(!full(0, wide));
    options.clock.wind(1);
    assert!(full(0, wide));
}
