//! Limits of classes and segments, at their exact values.

use std::time::Duration;

use crate::class::Class;
use crate::retain::Reason;
use crate::segment::usage::SegmentUsage;
use crate::tests::retention::{DAY, FOREVER, HOUR, events, fill, jobs, settle, with};
use crate::tests::*;
use saltcellar_model::{Age, Keep};

#[test]
fn limits_are_exact_to_the_microsecond_the_byte_and_the_entry() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&with(dir.path(), &[jobs(FOREVER), events(FOREVER)]));
    fill(&rig, 0..300);
    let shared = &rig.store;
    let usages: Vec<SegmentUsage> = shared
        .segments
        .of(Class::JOBS)
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
        let plan = shared.0.retention.plan(Class::JOBS, keep, now).unwrap();
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
    let shared = &rig.store;
    let segment = shared.segments.of(Class::JOBS).pop().unwrap();
    let entries = segment.totals().entries;
    let wide = Limits {
        segment_bytes_max: u64::MAX,
        segment_entries_max: u64::MAX,
        ..Limits::default()
    };
    let full = |end, limits: Limits| shared.0.retention.limits().is_full(&segment, end, &limits);
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
    let most = shared
        .0
        .retention
        .limits()
        .segment_bounds(Class::JOBS, &wide)
        .age
        .unwrap();
    let until = segment.log().created().0 + most;
    options.clock.wind(until - 1 - options.clock.now().0);
    assert!(!full(0, wide));
    options.clock.wind(1);
    assert!(full(0, wide));
}

/// Fifty minions send one entry each, then one minion sends six times the limit. Returns the jobs
/// of the fifty entries, and the job of the last entry.
fn flooded(rig: &Rig) -> (Vec<String>, String) {
    let mut random = saltcellar_testkit::Random::new(7);
    let mut number = 0;
    let mut put = |minion: &str, bytes: usize| {
        number += 1;
        let jid = jid(number);
        let tag = format!("salt/job/{jid}/ret/{minion}");
        let body = random.bytes(bytes);
        let entry = Entry {
            tag: tag.as_bytes(),
            jid: &jid,
            minion,
            fun: "test.ping",
            ..Entry::new(Kind::Event, Source::Bus, Micros(1), &body)
        };
        let mut batch = Batch::default();
        batch.push(&entry, None);
        rig.put(batch).unwrap();
        jid
    };
    let quiet = (0..50).map(|n| put(&format!("web{n}"), 10_000)).collect();
    let mut latest = String::new();
    for n in 0..60 {
        latest = put("big", 400_000);
        if n % 8 == 7 {
            settle(rig);
            rig.store.0.retention.run_round();
        }
    }
    (quiet, latest)
}

/// One minion's entries evicted the entries of all other minions from a class that is limited by
/// bytes.
#[test]
fn one_minion_cannot_evict_the_entries_of_others() {
    let limit = 4 << 20;
    let keep = Keep {
        bytes: Some(limit),
        ..FOREVER
    };
    let options = |dir: &std::path::Path, keep, share| Options {
        classes: Classes::new(&[jobs(keep), events(FOREVER)]).with_share(share),
        ..options(dir, Limits::default())
    };
    let is_stored = |rig: &Rig, jid: &String| !rig.store.job_entries(jid).unwrap().is_empty();

    // What happens without shares.
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&options(dir.path(), keep, 100));
    let (quiet, _) = flooded(&rig);
    assert!(!quiet.iter().any(|jid| is_stored(&rig, jid)));
    rig.close();

    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open_with(&options(dir.path(), keep, 50));
    let (quiet, latest) = flooded(&rig);
    for jid in &quiet {
        assert!(is_stored(&rig, jid), "{jid} of a quiet minion was evicted");
    }
    assert!(is_stored(&rig, &latest), "its own latest entry");
    let [(class, minion, over)] = rig.store.over_share().try_into().unwrap();
    assert_eq!((&*class, minion.as_str()), ("jobs", "big"));
    assert!(over.entries > 50, "{over:?}");
    assert_eq!(rig.metrics.entries_over_share.get(), over.entries);
    let stats = rig.store.stats().unwrap();
    let disk: u64 = stats
        .classes
        .iter()
        .filter(|class| class.name.starts_with("jobs"))
        .map(|class| class.segment_usage.disk_bytes)
        .sum();
    // A segment that grows may exceed the limit.
    assert!(disk < limit * 3 / 2, "{disk}");

    // A start knows the class of its overflow.
    rig.close();
    let rig = Rig::open_with(&options(dir.path(), keep, 50));
    assert!(quiet.iter().all(|jid| is_stored(&rig, jid)) && is_stored(&rig, &latest));
    // Without the limit, the overflow is read only and keeps what the class keeps.
    rig.close();
    let rig = Rig::open_with(&options(dir.path(), FOREVER, 50));
    assert!(is_stored(&rig, &latest));
}
