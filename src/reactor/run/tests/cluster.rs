//! A master of a cluster: events of other masters, which their daemons react to.

use super::*;
use crate::model::Entry;

fn of_cluster(shadow: bool) -> Settings {
    Settings {
        cluster_id: Some("c".to_owned()),
        shadow,
        ..Settings::default()
    }
}

impl Harness {
    /// Stores an event of the bus that this master fired.
    fn fire_of(&self, origin: &str, tag: &str) {
        let mut w = Writer::new();
        w.map(1).str("id").str("web1");
        let body = w.into_bytes();
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
        self.store(Batch::of(&Entry { origin, ..entry }));
    }

    fn of_peers(&self) -> u64 {
        self.metrics.reactor_events_ignored_other_master.get()
    }
}

#[test]
fn events_of_other_masters_are_left_to_their_daemons_and_counted() {
    let harness = Harness::start(rules(&["a/*"]), of_cluster(false), |_, _| Ok(yes()));
    harness.fire_of("b", "a/1");
    harness.fire_of("", "a/2");
    harness.fire_of("c", "other");
    harness.fire_of("c", "a/3");
    harness.fire_of("", "a/4");
    assert_eq!([harness.next(), harness.next()], ["a/2", "a/4"]);
    harness.wait_until_done();
    assert_eq!(harness.of_peers(), 2, "without those that no rule matches");
    assert_eq!(harness.history(), [done("a/2"), done("a/4")]);
    assert_eq!(harness.status().cluster_id.as_deref(), Some("c"));
    assert!(harness.reactor.handle().is_of_peer("b"));
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn without_a_cluster_every_event_of_the_bus_counts() {
    let harness = Harness::start(rules(&["a/*"]), Settings::default(), |_, _| Ok(yes()));
    harness.fire_of("b", "a/1");
    assert_eq!(harness.next(), "a/1");
    harness.wait_until_done();
    assert_eq!(
        (harness.of_peers(), harness.status().cluster_id.clone()),
        (0, None)
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn in_shadow_events_of_other_masters_are_rendered_as_salts_reactor_does() {
    let harness = Harness::start(rules(&["a/*"]), of_cluster(true), |_, _| Ok(yes()));
    harness.fire_of("b", "a/1");
    harness.wait_until_done();
    assert_eq!(harness.history(), [outcome("a/1", "done", "shadowed")]);
    assert_eq!(
        (harness.of_peers(), harness.status().cluster_id.clone()),
        (0, None)
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_change_of_the_cluster_counts_for_waiting_events_too() {
    // One worker renders the first event until the change is in use; the second waits behind it.
    let (slow, gate) = slow(&["slow/*"]);
    let mut settings = with(|options| options.order = crate::model::RuleOrder::Rule);
    let harness = Harness::start(slow, settings.clone(), |_, _| Ok(yes()));
    harness.fire_of("b", "slow/1");
    harness.fire_of("b", "slow/2");
    harness.fire_of("", "slow/3");
    harness.wait_for_open(3);
    harness.wait_for_rendering(&gate);

    settings.cluster_id = Some("c".to_owned());
    let rules = Rules {
        slow: gate.clone(),
        ..rules(&["slow/*"])
    };
    harness
        .reactor
        .handle()
        .change(Arc::new(rules), settings.clone());
    gate.shut(false);
    assert_eq!([harness.next(), harness.next()], ["slow/1", "slow/3"]);
    harness.wait_until_done();
    let skipped = ("slow/2".to_owned(), "peer".to_owned(), Vec::new());
    assert_eq!(
        harness.history(),
        [done("slow/1"), skipped, done("slow/3")],
        "the one in progress is finished"
    );
    assert_eq!(harness.of_peers(), 1);

    // And back.
    settings.cluster_id = None;
    let rules = Arc::new(super::rules(&["slow/*"]));
    harness.reactor.handle().change(rules, settings);
    harness.fire_of("b", "slow/4");
    assert_eq!(harness.next(), "slow/4");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_user_may_replay_an_event_of_another_master() {
    let harness = Harness::start(rules(&["a/*"]), of_cluster(false), |_, _| Ok(yes()));
    harness.fire_of("b", "a/1");
    harness.wait_for("the event to be read", |harness| harness.of_peers() == 1);

    let all = EventFilter::default();
    let durable = harness.store.durable();
    let found = harness.store.events_before(&all, durable, 1, usize::MAX);
    let event = found.unwrap().remove(0);
    assert_eq!(event.origin, "b");
    harness.reactor.handle().replay_event(event.seq).unwrap();
    assert_eq!(harness.next(), "a/1");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_that_were_open_before_the_master_joined_a_cluster_are_skipped_after_a_restart() {
    let harness = Harness::start(
        rules(&["a/*"]),
        with(|options| options.debounce = Some(Duration::from_secs(5))),
        |_, _| Ok(yes()),
    );
    harness.fire_of("b", "a/1");
    harness.wait_for_open(1);
    let (dir, asked) = harness.stop();
    assert_eq!(asked, [""; 0]);

    let harness = Harness::start_in(dir, NOW, rules(&["a/*"]), of_cluster(false), |_, _| {
        Ok(yes())
    });
    harness.wait_until_done();
    let skipped = ("a/1".to_owned(), "peer".to_owned(), Vec::new());
    assert_eq!(harness.history(), [skipped]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn calls_of_another_masters_reactor_are_no_sign_of_another_reactor_here() {
    for (origin, is_foreign) in [("b", false), ("", true)] {
        let harness = Harness::start(rules(&["a/*"]), of_cluster(false), |_, _| Ok(yes()));
        // Once the time after a start is over, in which answers to own calls may be missing.
        harness.clock.wind(600 * SECOND);
        harness.runner_of_reactor(origin, "20260101000000000001", "x");
        harness.wait_until_done();
        harness.clock.wind(600 * SECOND);
        harness.reactor.worker.calls.traces.settle_foreign();
        let seen = harness.reactor.handle().foreign_call().is_some();
        assert_eq!(seen, is_foreign, "origin {origin:?}");
        harness.stop();
    }
}

#[test]
fn in_shadow_calls_of_another_masters_reactor_are_not_those_of_salts_reactor_here() {
    let settings = Settings {
        shadow_window: Duration::from_secs(10),
        ..of_cluster(true)
    };
    let harness = Harness::start(runners(&["a/*"]), settings, |_, _| Ok(yes()));
    harness.clock.wind(20 * SECOND);
    harness.fire_of("", "a/same");
    harness.runner_of_reactor("b", "1", "a/same");
    harness.runner_of_reactor("", "2", "a/same");
    harness.runner_of_reactor("b", "3", "theirs");
    harness.wait_until_done();

    harness.clock.wind(60 * SECOND);
    let metrics = &harness.metrics;
    harness.wait_for("the comparison", |_| metrics.shadow_calls_same.get() == 1);
    harness.fire_of("", "b/1");
    harness.wait_until_done();
    assert_eq!(metrics.shadow_calls_only_salt.get(), 0);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_runner_of_another_master_does_not_prove_a_call_of_ours_after_a_restart() {
    for (origin, expected) in [("b", "unknown"), ("", "found")] {
        let harness = Harness::start(runners(&["?"]), of_cluster(false), silent);
        harness.fire_until_pause("1");
        harness.runner_of_reactor(origin, "20260101000000000001", "1");
        harness.wait_for("the start to be read", |harness| {
            harness.status().behind == 0
        });
        let (dir, _) = harness.stop();

        let harness = Harness::start_in(
            dir,
            NOW + SECOND,
            runners(&["?"]),
            of_cluster(false),
            silent,
        );
        harness.wind_until_done();
        assert_eq!(harness.outcomes(), [expected], "origin {origin:?}");
        harness.stop();
    }
}

#[test]
fn a_record_of_another_masters_reactor_closes_no_event_here() {
    let (reacting, slow) = slow(&["slow/*"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    harness.fire_of("", "slow/1");
    harness.wait_for_open(1);
    harness.wait_for_rendering(&slow);

    let all = EventFilter::default();
    let durable = harness.store.durable();
    let found = harness.store.events_before(&all, durable, 1, usize::MAX);
    let event = events::load(&harness.store, found.unwrap()[0].seq);
    let skipped = record::Record::skipped(
        event.unwrap().unwrap(),
        vec!["slow/*".into()],
        1,
        crate::reactor::stored::SkipReason::Rate,
        harness.clock.now(),
    );
    for (origin, number) in [("b", 7), ("", 0)] {
        let own = skipped.batch(harness.clock.now());
        let (entry, _) = own.entries().next().unwrap();
        harness.store(Batch::of(&Entry {
            origin,
            number,
            ..entry
        }));
        let is_own = number == 0;
        harness.wait_for("the record to be read", |harness| {
            harness.status().behind == 0
        });
        assert_eq!(harness.status().open, usize::from(!is_own), "{origin:?}");
    }
    slow.shut(false);
    harness.stop();
}
