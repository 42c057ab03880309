//! What a start, or another configuration, must not forget or mix up; and what is counted in shadow.

use super::*;

fn once() -> Settings {
    let rule = own("once/*", |options| options.once_per = Some(Duration::from_secs(60)));
    Settings { rules: vec![rule], ..Settings::default() }
}

#[test]
fn once_per_minion_and_window_is_remembered_over_a_start() {
    let rig = Rig::start(rules(&["once/*"]), once(), |_, _| Ok(yes()));
    rig.tell("once/1", "web1");
    assert_eq!(rig.next(), "once/1");
    rig.tell("once/2", "web1");
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactions_left_once.get(), 1);
    let (dir, _) = rig.stop();
    // The window counts from the first event, not from those that were left out.
    let rig = Rig::start_in(dir, NOW + 50 * SECOND, rules(&["once/*"]), once(), |_, _| Ok(yes()));
    rig.tell("once/3", "web1");
    rig.tell("once/4", "web2");
    assert_eq!(rig.next(), "once/4");
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactions_left_once.get(), 1);
    let (dir, asked) = rig.stop();
    assert_eq!(asked, [""; 0]);
    let rig = Rig::start_in(dir, NOW + 61 * SECOND, rules(&["once/*"]), once(), |_, _| Ok(yes()));
    rig.tell("once/5", "web1");
    rig.tell("once/6", "web2");
    assert_eq!(rig.next(), "once/5");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn what_is_open_at_a_start_counts_as_the_first_if_it_was() {
    let rig = Rig::start(rules(&["once/*"]), once(), |_, _| Err(unreachable()));
    rig.tell("once/1", "web1");
    assert_eq!(rig.next(), "once/1");
    rig.wait_for("it to be open", |rig| rig.reactor.handle().status().open == 1);
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir, NOW + SECOND, rules(&["once/*"]), once(), |_, _| Ok(yes()));
    assert_eq!(rig.next(), "once/1");
    rig.tell("once/2", "web1");
    rig.wait_until_through();
    assert_eq!((rig.metrics.reactions_left_once.get(), rig.stop().1), (1, Vec::new()));
}

#[test]
fn a_rule_that_is_taken_out_reacts_no_more_to_what_was_waiting() {
    let reacting = rules(&["slow/*", "a/*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rated = own("a/*", |o| o.rate = Some(Rate { times: 1, per: Duration::from_secs(60) }));
    let settings = Settings { rules: vec![rated], ..Settings::default() };
    let rig = Rig::start(reacting, settings, |_, _| Ok(yes()));
    rig.tell("a/0", "web1");
    assert_eq!(rig.next(), "a/0");
    rig.wait_until_through();
    rig.tell("slow/1", "web1");
    rig.tell("a/1", "web1");
    rig.wait_for("both to be open", |rig| rig.reactor.handle().status().open == 2);
    let handle = rig.reactor.handle();
    handle.refuse("odd".to_owned());
    assert_eq!(handle.status().refused.unwrap().1, "odd");
    handle.change(Arc::new(rules(&["slow/*"])), Settings { depth_max: 3, ..Settings::default() });
    assert_eq!(handle.status().refused, None);
    slow.shut(false);
    assert_eq!(rig.next(), "slow/1", "what is under way ends as it began");
    rig.wait_until_through();
    assert!(rig.history().contains(&("a/1".to_owned(), "gone".to_owned(), Vec::new())));
    let count = |counter: &crate::metrics::Counter| counter.get();
    assert_eq!((count(&rig.metrics.reactor_reloads), count(&rig.metrics.reactor_reloads_refused)), (1, 1));
    assert_eq!(rig.stop().1, [""; 0]);
}

impl Rig {
    /// Salt's reactor starts a runner.
    pub(super) fn salts_runner(&self, jid: &str, arg: &str) {
        let mut w = Writer::new();
        w.map(4).str("fun").str("runner.test.arg").str("jid").str(jid).str("user").str("Reactor");
        w.str("fun_args").array(1).str(arg);
        let (tag, body) = (format!("salt/run/{jid}/new"), w.into_bytes());
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
        let (tx, rx) = sync_channel(1);
        self.intake
            .submit(Batch::of(&entry), Some(Box::new(move |stored| tx.send(stored).unwrap())))
            .unwrap();
        crate::testing::receive(&rx).unwrap();
    }
}

#[test]
fn in_shadow_what_throttles_leave_out_is_rendered_and_is_the_reason_for_what_only_salt_does() {
    let settings = Settings {
        shadow: true,
        shadow_window: Duration::from_secs(10),
        rules: vec![
            own("rate", |o| o.rate = Some(Rate { times: 2, per: Duration::from_secs(30) })),
            own("budget", |o| o.budget = Some(Rate { times: 2, per: Duration::from_secs(30) })),
            own("once", |o| o.once_per = Some(Duration::from_secs(30))),
            own("quiet", |o| o.debounce = Some(Duration::from_secs(5))),
            own("long", |o| o.debounce = Some(Duration::from_secs(11))),
        ],
        ..Settings::default()
    };
    let tags = ["rate", "budget", "once", "quiet", "long"];
    let reacting = Rules { cmd: Some(Cmd::Runner), ..rules(&tags) };
    let rig = Rig::start(reacting, settings, |_, _| Ok(yes()));
    rig.clock.wind(20 * SECOND);
    for round in 0..3 {
        for tag in tags {
            rig.clock.wind(1);
            rig.tell(tag, &format!("minion-of-{tag}"));
            rig.salts_runner(&format!("{round}-{tag}"), tag);
        }
    }
    rig.wait_for("all but the last of `quiet` to be rendered", |rig| rig.reactor.handle().status().open == 1);
    rig.clock.wind(5 * SECOND);
    rig.wait_until_through();
    let left = |tag: &str| {
        let history = rig.history();
        let of: Vec<_> = history.iter().filter(|(of, ..)| of == tag).collect();
        assert!(of.iter().all(|(_, _, calls)| *calls == ["shadowed"]), "{of:?}");
        of.iter().map(|(_, state, _)| state.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        tags.map(left),
        ["done done rate", "done done budget", "done once once", "quiet quiet done", "quiet quiet quiet"]
    );
    rig.clock.wind(60 * SECOND);
    let m = rig.metrics.clone();
    rig.wait_for("the counters", |_| m.shadow_same.get() + m.shadow_only_salts.get() == 15);
    assert_eq!((m.shadow_same.get(), m.shadow_only_salts.get(), m.shadow_only_ours.get()), (6, 9, 0));
    assert_eq!((m.reactions_left_rate.get(), m.reactions_left_quiet.get()), (1, 5));
    // The reasons, as whoever asks reads them out of the log.
    let mut reasons = Vec::new();
    rig.store
        .follow_selected(crate::reactor::shadow::is_of_interest, SeqNo(1), usize::MAX, |row| {
            for item in crate::reactor::shadow::Item::read(&row) {
                if let crate::reactor::shadow::Item::Ours(ours) = item
                    && !ours.barred.is_empty()
                {
                    reasons.push(format!("{} {}", ours.rules.join(","), ours.throttle));
                }
            }
        })
        .unwrap();
    reasons.sort();
    let expected = ["budget budget", "long debounce", "long debounce", "long debounce", "once once_per"];
    assert_eq!(reasons[..5], expected);
    assert_eq!(reasons[5..], ["once once_per", "quiet debounce", "quiet debounce", "rate rate"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn in_shadow_each_difference_is_counted_when_its_window_is_over() {
    let reacting = Rules { cmd: Some(Cmd::Runner), ..rules(&["a/*"]) };
    let settings = Settings { shadow: true, shadow_window: Duration::from_secs(10), ..Settings::default() };
    let rig = Rig::start(reacting, settings, |_, _| Ok(yes()));
    rig.clock.wind(20 * SECOND);
    for tag in ["a/same", "a/ours", "a/other"] {
        rig.tell(tag, "web1");
    }
    rig.wait_until_through();
    rig.salts_runner("1", "a/same");
    rig.salts_runner("2", "something else");
    rig.salts_runner("3", "and more");
    rig.salts_runner("4", "and more");
    rig.wait_until_through();
    let counts = |rig: &Rig| {
        let m = &rig.metrics;
        [&m.shadow_same, &m.shadow_differs, &m.shadow_only_ours, &m.shadow_only_salts]
            .map(crate::metrics::Counter::get)
    };
    rig.clock.wind(10 * SECOND);
    rig.tell("b", "web1");
    rig.wait_until_through();
    assert_eq!(counts(&rig), [0; 4], "the window is not over");
    rig.clock.wind(60 * SECOND);
    rig.wait_for("the counters", |rig| counts(rig) == [1, 2, 0, 1]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn calls_of_another_reactor_while_ours_acts_show_that_both_are_on() {
    use crate::model::{ListedRule, SaltsReactor};
    let rules_of_salt = vec![ListedRule { pattern: "a".to_owned(), files: Vec::new() }];
    let settings = Settings {
        salts: SaltsReactor { rules: rules_of_salt, ..SaltsReactor::default() },
        ..Settings::default()
    };
    let rig = Rig::start(rules(&["a"]), settings, |_, _| Ok(yes()));
    let handle = rig.reactor.handle();
    rig.clock.wind(40 * SECOND);
    assert!(!handle.salts_reactor().runs);
    rig.salts_runner("20260101000000000000", "x");
    rig.wait_until_through();
    rig.clock.wind(40 * SECOND);
    rig.wait_for("the other reactor to be noticed", |_| handle.salts_reactor().runs);
    assert_eq!(handle.foreign_call().unwrap().1, "test.arg");
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn in_shadow_a_request_had_two_answers() {
    // Nothing can be fired here, so an answer is a failure in the record.
    for (shadow, state) in [(true, "done"), (false, "partial")] {
        let settings = Settings { shadow, ..Settings::default() };
        let rig = Rig::start(rules(&["request/*"]), settings, |_, _| Ok(yes()));
        rig.tell("request/1", "web1");
        rig.wait_until_through();
        assert_eq!(rig.history()[0].1, state);
        rig.stop();
    }
}
