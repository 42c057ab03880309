//! Load: backlogs of rules and minions do not delay others.

use super::*;
use crate::wire::salt_event::{PeerMark, read_event};

/// More events than the reactor keeps in memory.
const FLOOD: usize = 20_100;

impl Harness {
    /// Stores many events at once: tags with their minions.
    fn fire_all(&self, events: impl IntoIterator<Item = (String, String)>) {
        let mut events = events.into_iter().peekable();
        // In several batches, because a debug build reads large blocks slowly.
        while events.peek().is_some() {
            self.fire_batch(events.by_ref().take(500));
        }
    }

    fn fire_batch(&self, events: impl Iterator<Item = (String, String)>) {
        let mut batch = Batch::default();
        for (tag, minion) in events {
            let mut w = Writer::new();
            w.map(2).str("id").str(&minion).str("_stamp").str("2026");
            let body = w.into_bytes();
            let event = read_event(
                tag.as_bytes(),
                &body,
                Source::Bus,
                self.clock.now(),
                PeerMark::Data,
            );
            batch.push(
                &crate::model::Entry {
                    minion: &minion,
                    ..event.entry()
                },
                Some(event.fingerprints),
            );
        }
        self.store(batch);
    }
}

pub(super) fn rated(per: u64) -> Settings {
    let mut rule = RuleOptions {
        rule: "rated/*".into(),
        ..RuleOptions::default()
    };
    rule.rate = Some(Rate {
        times: 1,
        per: Duration::from_secs(per),
    });
    Settings {
        rules: vec![Arc::new(rule)],
        ..Settings::default()
    }
}

#[test]
fn a_throttled_rule_with_a_large_backlog_does_not_delay_others() {
    let harness = Harness::start(rules(&["rated/*", "other"]), rated(5), |_, _| Ok(yes()));
    harness.fire_all((0..FLOOD).map(|n| (format!("rated/{n}"), format!("web{}", n % 100))));
    assert!(harness.next().starts_with("rated/"));
    harness.fire_event("other", "web1");
    assert_eq!(harness.next(), "other");
    harness.stop();
}

#[test]
fn a_minion_with_a_large_backlog_does_not_delay_others() {
    let (reacting, slow) = slow(&["*"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    harness.fire_all((0..FLOOD).map(|n| (format!("slow/{n}"), "web1".to_owned())));
    harness.fire_event("other", "web2");
    assert_eq!(harness.next(), "other");
    slow.shut(false);
    harness.stop();
}

#[test]
fn removing_a_rate_or_its_rule_affects_waiting_events() {
    let harness = Harness::start(rules(&["rated/*"]), rated(3600), |_, _| Ok(yes()));
    harness.fire_all((0..30).map(|n| (format!("rated/{n}"), format!("web{n}"))));
    harness.next();
    harness.wait_for_the_pause();
    let mut twice = rated(1800);
    Arc::make_mut(&mut twice.rules[0])
        .rate
        .as_mut()
        .unwrap()
        .times = 10;
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["rated/*"])), twice);
    for _ in 0..9 {
        harness.next();
    }
    harness.wait_for_the_pause();
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["rated/*"])), Settings::default());
    for _ in 10..30 {
        harness.next();
    }
    harness.wait_until_done();
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["rated/*"])), rated(3600));
    harness.clock.wind(1);
    harness.fire_all((0..30).map(|n| (format!("rated/{n}"), format!("web{n}"))));
    harness.wait_for_the_pause();
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["else"])), Settings::default());
    harness.wait_until_done();
    let gone = harness
        .history()
        .iter()
        .filter(|(_, state, _)| state == "no_rule")
        .count();
    assert!(gone >= 29, "{gone}");
    harness.stop();
}

#[test]
fn events_that_are_too_old_do_not_use_the_rate() {
    let settings = Settings {
        age_max: Duration::from_secs(60),
        ..rated(100)
    };
    let harness = Harness::start(rules(&["rated/*"]), settings, |_, _| Ok(yes()));
    harness.fire_event("rated/first", "web1");
    assert_eq!(harness.next(), "rated/first");
    harness.fire_all((0..30).map(|n| (format!("rated/old{n}"), "web1".to_owned())));
    harness.wait_for_open(30);
    harness.clock.wind(100 * SECOND);
    harness.fire_event("rated/new", "web1");
    assert_eq!(harness.next(), "rated/new");
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactions_skipped_too_old.get(), 30);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_without_a_minion_keep_their_order() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    harness.fire_all((0..200).map(|n| (n.to_string(), String::new())));
    let asked: Vec<_> = (0..200).map(|_| harness.next()).collect();
    assert_eq!(
        asked,
        (0..200).map(|n: u32| n.to_string()).collect::<Vec<_>>()
    );
    harness.wait_until_done();
    harness.stop();
}

#[test]
fn a_forged_minion_id_in_a_tag_does_not_affect_that_minion() {
    let rule = own("salt/minion/*", |options| {
        options.once_per = Some(Duration::from_secs(60));
    });
    let settings = Settings {
        rules: vec![rule],
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["salt/minion/*"]), settings, |_, _| Ok(yes()));
    let start = |id| {
        [
            ("cmd", "_minion_event"),
            ("id", id),
            ("tag", "salt/minion/web1/start"),
            ("_stamp", id),
        ]
    };
    harness.fire_texts("salt/minion/web1/start", &start("forger"));
    harness.fire_texts("salt/minion/web1/start", &start("web1"));
    harness.next();
    assert_eq!(harness.next(), "salt/minion/web1/start");
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactions_skipped_once_per.get(), 0);
    harness.stop();
}

/// Runners that start at once and do not end.
fn slow_runners() -> Rules {
    runners(&["run/*", "other/*"])
}

fn started(call: &Call) -> Answer {
    let jid = argument(call).replace('/', "-");
    Answer::Started {
        tag: format!("salt/run/{jid}"),
        jid,
    }
}

#[test]
fn concurrent_runners_are_limited_as_in_salt() {
    let harness = Harness::start(slow_runners(), Settings::default(), |call, _| {
        Ok(started(call))
    });
    harness.fire_all((0..100).map(|n| (format!("run/{n}"), format!("web{n}"))));
    let mut under_way: Vec<_> = (0..9).map(|_| harness.next()).collect();
    // The tenth slot is reserved for other rules.
    harness.fire_event("other/1", "web1");
    assert_eq!(harness.next(), "other/1");
    for _ in 9..100 {
        assert_eq!(
            harness.asked.try_recv().ok(),
            None,
            "no more than ten at once"
        );
        let ended = under_way.swap_remove(0);
        harness.fire_event(&format!("salt/run/{}/ret", ended.replace('/', "-")), "");
        under_way.push(harness.next());
    }
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn runners_with_missed_results_expire() {
    let aged = Settings {
        age_max: Duration::from_secs(7_200),
        ..Settings::default()
    };
    let harness = Harness::start(slow_runners(), aged, |call, _| Ok(started(call)));
    harness.fire_all((0..20).map(|n| (format!("run/{n}"), format!("web{n}"))));
    for _ in 0..9 {
        harness.fire_event(
            &format!("salt/run/{}/new", harness.next().replace('/', "-")),
            "",
        );
    }
    harness.wait_for_open(11);
    harness.clock.wind(3_599 * SECOND);
    harness.wait_for("a check of the runners", |harness| {
        harness
            .reactor
            .worker
            .pending
            .lock()
            .runners
            .due(harness.clock.now())
            .is_empty()
    });
    assert_eq!(harness.asked.try_recv().ok(), None, "they may still run");
    harness.clock.wind(SECOND);
    for _ in 9..18 {
        harness.next();
    }
    assert_eq!(harness.metrics.reactor_runners_without_results.get(), 9);
    harness.stop();
}

#[test]
fn a_runner_that_ends_before_the_answer_is_not_counted() {
    let harness = Harness::start(slow_runners(), Settings::default(), |call, _| {
        Ok(started(call))
    });
    // Their results are in the log already.
    harness.fire_all((0..20).map(|n| (format!("salt/run/run-{n}/ret"), String::new())));
    harness.fire_all((0..20).map(|n| (format!("run/{n}"), format!("web{n}"))));
    for _ in 0..20 {
        harness.next();
    }
    harness.wait_until_done();
    harness.stop();
}

#[test]
fn rules_that_get_own_options_are_split_and_keep_their_events() {
    let (reacting, slow) = slow(&["slow/*", "*"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("slow/1", "web1");
    harness.fire_all((2..40).map(|n| (format!("slow/{n}"), "web1".to_owned())));
    harness.wait_for_open(39);
    harness.wait_for_rendering(&slow);
    let others = rules(&["slow/*", "*"]);
    let apart = Settings {
        rules: vec![own("*", |options| options.tries = 2)],
        ..Settings::default()
    };
    harness.reactor.handle().change(Arc::new(others), apart);
    slow.shut(false);
    let mut asked: Vec<_> = (0..2 * 39).map(|_| harness.next()).collect();
    harness.wait_until_done();
    asked.sort();
    let mut expected: Vec<_> = (1..40)
        .flat_map(|n| [format!("slow/{n}"), format!("slow/{n}")])
        .collect();
    expected.sort();
    assert_eq!(asked, expected);
    assert_eq!(
        harness.history().len(),
        1 + 2 * 38,
        "one for both rules, the others split"
    );
    assert_eq!(harness.stop().1, [""; 0]);
}
