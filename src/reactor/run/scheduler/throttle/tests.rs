//! Tests of throttles.

use std::time::Duration;

use super::*;
use crate::model::Rate;

const SECOND: i64 = 1_000_000;

fn options(change: impl FnOnce(&mut RuleOptions)) -> RuleOptions {
    let mut options = RuleOptions {
        rule: "a".into(),
        ..RuleOptions::default()
    };
    change(&mut options);
    options
}

fn rate(times: u32, seconds: u64) -> Rate {
    Rate {
        times,
        per: Duration::from_secs(seconds),
    }
}

#[test]
fn a_rate_allows_a_burst_and_then_single_reactions() {
    let mut throttles = Throttles::default();
    let options = options(|o| o.rate = Some(rate(4, 2)));
    let mut start = |at| throttles.start(&options.rule, &options, Micros(at));
    for _ in 0..4 {
        assert_eq!(start(0), Admission::Now);
    }
    assert_eq!(start(0), Admission::At(Micros(SECOND / 2)));
    assert_eq!(start(SECOND / 2), Admission::Now);
    assert_eq!(start(SECOND / 2), Admission::At(Micros(SECOND)));
    // In any time span at most the rate plus one burst.
    let went = (0..100_000)
        .filter(|n| start(SECOND + n * 1_000) == Admission::Now)
        .count();
    assert!((200..=204).contains(&went), "{went}");
}

#[test]
fn a_used_up_budget_allows_nothing_until_time_has_passed() {
    let mut throttles = Throttles::default();
    let options = options(|o| o.budget = Some(rate(2, 60)));
    let mut start = |at| throttles.start(&options.rule, &options, Micros(at));
    assert_eq!(
        [start(0), start(0), start(0), start(SECOND)],
        [
            Admission::Now,
            Admission::Now,
            Admission::OverBudget,
            Admission::OverBudget
        ]
    );
    assert_eq!(
        [start(30 * SECOND), start(31 * SECOND)],
        [Admission::Now, Admission::OverBudget]
    );
}

#[test]
fn would_start_returns_the_delayed_time_or_none_beyond_the_budget() {
    let mut throttles = Throttles::default();
    let options = options(|o| (o.rate, o.budget) = (Some(rate(2, 10)), Some(rate(3, 60))));
    let mut at = |now| {
        throttles
            .would_start(&options.rule, &options, Micros(now * SECOND))
            .map(|at| at.0 / SECOND)
    };
    assert_eq!(
        [at(0), at(0), at(0), at(1)],
        [Some(0), Some(0), Some(5), None]
    );
    assert_eq!([at(30), at(30)], [Some(30), None]);
    // `would_start` does not affect `start`.
    assert_eq!(
        throttles.start(
            &"a".into(),
            &RuleOptions {
                budget: None,
                ..options
            },
            Micros(30 * SECOND)
        ),
        Admission::Now
    );
}

#[test]
fn once_per_counts_by_minion_and_window() {
    let mut throttles = Throttles::default();
    let options = options(|o| o.once_per = Some(Duration::from_secs(10)));
    let mut seq = SeqNo(0);
    let mut event = |minion: &str, at| {
        seq = seq.next();
        Event {
            seq,
            minion: minion.to_owned(),
            at: Micros(at),
            ..Event::default()
        }
    };
    let mut first = |minion, at| throttles.is_first(&options, &event(minion, at));
    assert_eq!(
        [first("a", 0), first("a", 1), first("b", 1)],
        [true, false, true]
    );
    assert_eq!(
        [
            first("a", 10 * SECOND - 1),
            first("a", 10 * SECOND),
            first("a", 11 * SECOND)
        ],
        [false, true, false]
    );
    // The event that counts is offered again.
    let counted = event("c", 0);
    let again =
        [&counted, &event("c", 0), &counted].map(|event| throttles.is_first(&options, event));
    assert_eq!(again, [true, false, true]);

    for n in 0..2 * REACTOR_ONCE_MAX {
        throttles.is_first(&options, &event(&n.to_string(), 0));
    }
    assert!(throttles.0["a"].once.len() <= REACTOR_ONCE_MAX);
}
