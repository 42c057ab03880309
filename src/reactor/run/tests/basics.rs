//! Events to calls and records: sources, order, retries, throttles, restarts.

use super::super::record::{read_summary, rule_hash};
use super::super::replay::Replayed;
use super::*;
use crate::model::Allow;

#[test]
fn events_of_a_bus_cause_calls_and_records() {
    let harness = Harness::start(
        rules(&["a/*", "*/x"]),
        Settings::default(),
        |_, _| Ok(yes()),
    );
    harness.fire_event("a/x", "web1");
    harness.fire_event("b/y", "web1");
    assert_eq!([harness.next(), harness.next()], ["a/x", "a/x"]);
    harness.wait_until_done();
    let both = vec!["published".to_owned(); 2];
    assert_eq!(
        harness.history(),
        [("a/x".to_owned(), "done".to_owned(), both)]
    );
    // A record is not an event.
    let events = harness
        .store
        .events_before(
            &EventFilter::default(),
            harness.store.durable(),
            10,
            usize::MAX,
        )
        .unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn only_events_of_a_bus_cause_reactions() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    for source in [
        Source::EventReturn,
        Source::Returner,
        Source::Zeromq,
        Source::SpooledEventReturn,
    ] {
        harness.fire_from(source, "forged", "web1", "root");
    }
    harness.fire_from(Source::EventReturn, "early", "web1", "root");
    harness.fire_event("early", "web1");
    assert_eq!(harness.next(), "early");
    harness.fire_from(Source::EventReturn, "early", "web1", "root");
    // A spill may repeat an event of the bus, and is deduplicated; two equal events of the bus are both kept.
    harness.fire_from(Source::SpilledBus, "early", "web1", "root");
    harness.fire_event("early", "web1");
    assert_eq!(harness.next(), "early");
    harness.wait_until_done();
    assert_eq!(harness.metrics.bus_events_already_stored.get(), 2);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_a_reactor_are_ignored_and_chains_of_reactions_end() {
    let settings = Settings {
        depth_max: 3,
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["own", "salt/job/*"]), settings, |_, _| Ok(yes()));
    harness.fire_from(Source::Bus, "own", "web1", "Reactor");
    harness.fire_event("salt/job/1/new", "web1");
    let mut jids = Vec::new();
    // Each job's event causes the next job.
    for _ in 0..4 {
        let (_, jid) = harness.next_request();
        harness.fire_event(&format!("salt/job/{jid}/new"), "web1");
        jids.push(jid);
    }
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactor_events_ignored_own.get(), 1);
    assert_eq!(harness.metrics.reactions_skipped_depth.get(), 1);
    assert_eq!(
        harness
            .history()
            .iter()
            .filter(|(_, state, _)| state == "depth")
            .count(),
        1
    );
    jids.dedup();
    assert_eq!(jids.len(), 4);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_a_minion_keep_their_order_and_do_not_delay_other_minions() {
    let (reacting, slow) = slow(&["*"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("slow/1", "web1");
    for n in 2..50 {
        harness.fire_event(&format!("{n}"), "web1");
    }
    for n in 0..40 {
        harness.fire_event(&format!("other/{n}"), &format!("db{n}"));
    }
    let mut others: Vec<_> = (0..40).map(|_| harness.next()).collect();
    others.sort();
    assert!(
        others.iter().all(|tag| tag.starts_with("other/")),
        "{others:?}"
    );
    slow.shut(false);
    assert_eq!(harness.next(), "slow/1");
    for n in 2..50 {
        assert_eq!(harness.next(), n.to_string());
    }
    harness.wait_until_done();
    harness.stop();
}

#[test]
fn a_slow_template_leaves_workers_to_other_rules() {
    let (reacting, slow) = slow(&["slow/*", "fast"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    for n in 0..100 {
        harness.fire_event(&format!("slow/{n}"), &format!("web{n}"));
    }
    harness.fire_event("fast", "db1");
    assert_eq!(harness.next(), "fast");
    slow.shut(false);
    harness.wait_until_done();
    assert_eq!(harness.stop().1.len(), 100);
}

#[test]
fn reactions_wait_in_order_while_the_master_is_unreachable() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, times| {
        if times < 4 {
            Err(unreachable())
        } else {
            Ok(yes())
        }
    });
    harness.fire_event("1", "web1");
    harness.fire_event("2", "web1");
    for (n, action) in ["1", "1", "1", "2", "2", "2"].into_iter().enumerate() {
        if n == 3 {
            assert_eq!(harness.next(), "1");
        }
        assert_eq!(harness.next(), action);
        harness.wait_for_the_pause();
        assert!(harness.status().master_unreachable);
        harness.clock.wind(SECOND);
    }
    assert_eq!(harness.next(), "2");
    harness.wait_until_done();
    assert_eq!(harness.history(), [done("1"), done("2")]);
    assert!(!harness.status().master_unreachable);
    harness.stop();
}

#[test]
fn a_master_that_rejects_a_call_is_reachable() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, times| match times {
        1 => Err(unreachable()),
        2 => Err(refused()),
        _ => Ok(yes()),
    });
    harness.fire_event("1", "web1");
    assert_eq!(harness.next(), "1");
    harness.wait_for_the_pause();
    assert!(harness.status().master_unreachable);

    harness.clock.wind(SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_for_the_pause();
    assert!(!harness.status().master_unreachable);
    harness.wind_until_done();
    assert_eq!(harness.history(), [done("1")]);
    harness.stop();
}

#[test]
fn a_refused_call_is_retried_then_dead_lettered_and_can_be_replayed() {
    let settings = with(|options| options.tries = 3);
    let harness = Harness::start(rules(&["*"]), settings, |_, times| {
        if times <= 3 {
            Err(refused())
        } else {
            Ok(yes())
        }
    });
    harness.fire_event("1", "web1");
    assert_eq!(harness.next(), "1");
    harness.wait_for("the pause", |harness| {
        harness.next_at() == Some(Micros(NOW + SECOND))
    });
    harness.clock.wind(SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_for("the longer pause", |harness| {
        harness.next_at() == Some(Micros(NOW + 3 * SECOND))
    });
    harness.clock.wind(2 * SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [outcome("1", "dead", "dead")]);
    assert_eq!(
        (
            harness.metrics.reactions_dead.get(),
            harness.metrics.reactor_calls_dead.get()
        ),
        (1, 1)
    );
    let record = harness.records().remove(0);
    assert_eq!(
        harness.reactor.handle().replay(&record, false).unwrap(),
        Replayed::Calls(1)
    );
    assert_eq!(harness.next(), "1");
    harness.wait_for("the record of the replay", |harness| {
        harness.history().len() == 2
    });
    assert_eq!(harness.history()[1], done("1"));
    assert!(harness.reactor.handle().replay(&record, false).is_ok());
    harness.stop();
}

#[test]
fn throttles_follow_the_clock() {
    let settings = Settings {
        rules: vec![
            own("rate", |o| {
                o.rate = Some(Rate {
                    times: 2,
                    per: Duration::from_secs(10),
                });
            }),
            own("budget", |o| {
                o.budget = Some(Rate {
                    times: 2,
                    per: Duration::from_secs(10),
                });
            }),
            own("once", |o| o.once_per = Some(Duration::from_secs(10))),
            own("quiet", |o| o.debounce = Some(Duration::from_secs(10))),
        ],
        ..Settings::default()
    };
    let harness = Harness::start(
        rules(&["rate", "budget", "once", "quiet"]),
        settings,
        |_, _| Ok(yes()),
    );
    for _ in 0..3 {
        for tag in ["rate", "budget", "once", "quiet"] {
            // Distinct times, so that the events are not duplicates.
            harness.clock.wind(1);
            harness.fire_event(tag, &format!("minion-of-{tag}"));
        }
    }
    let asked = |harness: &Harness, n: usize| {
        let mut asked: Vec<_> = (0..n).map(|_| harness.next()).collect();
        asked.sort();
        asked
    };
    assert_eq!(
        asked(&harness, 5),
        ["budget", "budget", "once", "rate", "rate"]
    );
    harness.wait_for("the counters", |harness| {
        let skipped = [
            &harness.metrics.reactions_skipped_budget,
            &harness.metrics.reactions_skipped_once_per,
            &harness.metrics.reactions_skipped_debounced,
        ];
        // The third of `rate` and the last of `quiet` wait; an event that is not yet settled does too.
        skipped.map(crate::base::metrics::Counter::get) == [1, 2, 2]
            && harness.status().waiting == 2
    });
    harness.clock.wind(10 * SECOND + 100);
    assert_eq!(asked(&harness, 2), ["quiet", "rate"]);
    harness.fire_event("once", "minion-of-once");
    assert_eq!(harness.next(), "once");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn only_allowed_calls_are_made() {
    let allow = |client: &str, fun: &str, tgt: Option<&str>| Allow {
        client: Some(client.to_owned()),
        fun: Glob::new(fun),
        tgt: tgt.map(Glob::new),
    };
    let settings = with(|options| {
        options.allow = vec![
            allow("runner", "*", None),
            allow("local", "test.*", Some("web*")),
        ];
    });
    let harness = Harness::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    harness.fire_event("1", "web1");
    harness.fire_event("2", "db1");
    harness.wait_until_done();
    assert_eq!(harness.next(), "1");
    let mut history = harness.history();
    history.sort();
    assert_eq!(history, [done("1"), outcome("2", "dead", "dead")]);
    assert_eq!(harness.metrics.reactor_calls_not_allowed.get(), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn in_shadow_no_call_is_made_and_all_are_recorded() {
    let settings = Settings {
        shadow: true,
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["*"]), settings, |_, _| Ok(yes()));
    harness.fire_event("1", "web1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [outcome("1", "done", "shadowed")]);
    assert_eq!(harness.stop().1, [""; 0]);
}

/// The directory of a reactor that has stopped, with an event `done` and an event `open`.
fn with_an_open_event() -> Arc<tempfile::TempDir> {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |call, _| {
        let waits = call.load.get("tgt").and_then(Value::as_str) == Some("away");
        if waits { Err(unreachable()) } else { Ok(yes()) }
    });
    harness.fire_event("done", "web1");
    harness.fire_event("open", "away");
    let mut asked = [harness.next(), harness.next()];
    asked.sort();
    assert_eq!(asked, ["done", "open"]);
    harness.wait_for_open(1);
    harness.stop().0
}

/// Starts in a directory, and handles an event `next`.
fn handles_next(dir: Arc<tempfile::TempDir>) -> (Vec<String>, Vec<Outcome>) {
    let at = NOW + SECOND;
    let harness = Harness::start_in(
        dir,
        at,
        rules(&["*"]),
        Settings::default(),
        |_, _| Ok(yes()),
    );
    harness.fire_event("next", "web1");
    harness.wait_until_done();

    let mut history = harness.history();
    let mut asked = harness.stop().1;
    history.sort();
    asked.sort();
    (asked, history)
}

#[test]
fn open_events_continue_after_a_restart_and_complete_ones_do_not() {
    let dir = with_an_open_event();
    let (asked, history) = handles_next(dir);
    assert_eq!(asked, ["next", "open"]);
    assert_eq!(history, [done("done"), done("next"), done("open")]);
}

#[test]
fn without_a_checkpoint_the_reactor_begins_with_the_next_event() {
    // As a restored backup, whose open events must not make the master act.
    let dir = with_an_open_event();
    forget_checkpoint(dir.path());
    let (asked, history) = handles_next(dir);
    assert_eq!(asked, ["next"]);
    assert_eq!(history, [done("done"), done("next")]);
}

#[test]
fn an_event_that_is_too_old_at_its_turn_is_skipped() {
    let harness = Harness::start(
        rules(&["*"]),
        Settings::default(),
        |_, _| Err(unreachable()),
    );
    harness.fire_event("1", "web1");
    harness.next();
    harness.fire_event("2", "web1");
    harness.wait_for_open(2);
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(
        dir,
        NOW + 3_601 * SECOND,
        rules(&["*"]),
        Settings::default(),
        |_, _| Ok(yes()),
    );
    harness.wait_until_done();
    let states: Vec<_> = harness
        .history()
        .into_iter()
        .map(|(_, state, _)| state)
        .collect();
    assert_eq!(states, ["too_old", "too_old"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn records_survive_a_round_trip() {
    let event = Event {
        seq: SeqNo(7),
        at: Micros(1),
        tag: "t".to_owned(),
        ..Event::default()
    };
    for (mark, key) in [
        (record::Mark::Started, u64::MAX),
        (record::Mark::Withdrawn, 1),
    ] {
        let batch = record::mark(&event, &["a".into(), "b".into()], 3, mark, key, Micros(2));
        let (entry, _) = batch.entries().next().unwrap();
        let summary = read_summary(entry.body).unwrap();
        assert_eq!(
            (
                summary.event,
                summary.rules,
                summary.rule_count,
                summary.marks
            ),
            (
                SeqNo(7),
                vec![rule_hash("a"), rule_hash("b")],
                3,
                Some(vec![(mark, key)])
            )
        );
    }
    assert_eq!(read_summary(b"\x80"), None);
    assert_eq!(read_summary(b"\xc1"), None);
}
