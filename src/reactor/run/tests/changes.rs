//! Restarts, changes of the configuration, and counters of shadow mode.

use super::*;
use crate::reactor::EngineReport;

fn once() -> Settings {
    let rule = own("once/*", |options| {
        options.once_per = Some(Duration::from_secs(60));
    });
    Settings {
        rules: vec![rule],
        ..Settings::default()
    }
}

#[test]
fn once_per_survives_a_restart() {
    let harness = Harness::start(rules(&["once/*"]), once(), |_, _| Ok(yes()));
    harness.fire_event("once/1", "web1");
    assert_eq!(harness.next(), "once/1");
    harness.fire_event("once/2", "web1");
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactions_skipped_once_per.get(), 1);
    let (dir, _) = harness.stop();
    // The window starts with the event that counted, not with a skipped one.
    let harness = Harness::start_in(
        dir,
        NOW + 50 * SECOND,
        rules(&["once/*"]),
        once(),
        |_, _| Ok(yes()),
    );
    harness.fire_event("once/3", "web1");
    harness.fire_event("once/4", "web2");
    assert_eq!(harness.next(), "once/4");
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactions_skipped_once_per.get(), 1);
    let (dir, asked) = harness.stop();
    assert_eq!(asked, [""; 0]);
    let harness = Harness::start_in(
        dir,
        NOW + 61 * SECOND,
        rules(&["once/*"]),
        once(),
        |_, _| Ok(yes()),
    );
    harness.fire_event("once/5", "web1");
    harness.fire_event("once/6", "web2");
    assert_eq!(harness.next(), "once/5");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn an_open_event_still_counts_for_once_per_after_a_restart() {
    let harness = Harness::start(rules(&["once/*"]), once(), |_, _| Err(unreachable()));
    harness.fire_event("once/1", "web1");
    assert_eq!(harness.next(), "once/1");
    harness.wait_for_open(1);
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(dir, NOW + SECOND, rules(&["once/*"]), once(), |_, _| {
        Ok(yes())
    });
    assert_eq!(harness.next(), "once/1");
    harness.fire_event("once/2", "web1");
    harness.wait_until_done();
    assert_eq!(
        (
            harness.metrics.reactions_skipped_once_per.get(),
            harness.stop().1
        ),
        (1, Vec::new())
    );
}

#[test]
fn a_removed_rule_does_not_handle_waiting_events() {
    let (reacting, slow) = slow(&["slow/*", "a/*"]);
    let rated = own("a/*", |o| {
        o.rate = Some(Rate {
            times: 1,
            per: Duration::from_secs(60),
        });
    });
    let settings = Settings {
        rules: vec![rated],
        ..Settings::default()
    };
    let harness = Harness::start(reacting, settings, |_, _| Ok(yes()));
    harness.fire_event("a/0", "web1");
    assert_eq!(harness.next(), "a/0");
    harness.wait_until_done();
    harness.fire_event("slow/1", "web1");
    harness.fire_event("a/1", "web1");
    harness.wait_for_open(2);
    let handle = harness.reactor.handle();
    handle.refuse("odd".to_owned());
    assert_eq!(handle.status().refused.unwrap().1, "odd");
    handle.change(
        Arc::new(rules(&["slow/*"])),
        Settings {
            depth_max: 3,
            ..Settings::default()
        },
    );
    assert_eq!(handle.status().refused, None);
    slow.shut(false);
    assert_eq!(
        harness.next(),
        "slow/1",
        "a reaction in progress ends with the old rules"
    );
    harness.wait_until_done();
    assert!(
        harness
            .history()
            .contains(&("a/1".to_owned(), "no_rule".to_owned(), Vec::new()))
    );
    let count = |counter: &crate::base::metrics::Counter| counter.get();
    assert_eq!(
        (
            count(&harness.metrics.reactor_reloads),
            count(&harness.metrics.reactor_reloads_rejected)
        ),
        (1, 1)
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

impl Harness {
    /// Salt's reactor starts a runner.
    pub(super) fn salts_runner(&self, jid: &str, arg: &str) {
        self.runner_of_reactor("", jid, arg);
    }

    /// The start of a runner by the reactor of this master.
    pub(super) fn runner_of_reactor(&self, origin: &str, jid: &str, arg: &str) {
        let mut w = Writer::new();
        w.map(4)
            .str("fun")
            .str("runner.test.arg")
            .str("jid")
            .str(jid)
            .str("user")
            .str("Reactor");
        w.str("fun_args").array(1).str(arg);
        let (tag, body) = (format!("salt/run/{jid}/new"), w.into_bytes());
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
        self.store(Batch::of(&crate::model::Entry { origin, ..entry }));
    }
}

#[test]
fn in_shadow_throttled_events_are_rendered_and_explain_calls_of_salt_only() {
    let settings = Settings {
        shadow: true,
        shadow_window: Duration::from_secs(10),
        rules: vec![
            own("rate", |o| {
                o.rate = Some(Rate {
                    times: 2,
                    per: Duration::from_secs(30),
                });
            }),
            own("budget", |o| {
                o.budget = Some(Rate {
                    times: 2,
                    per: Duration::from_secs(30),
                });
            }),
            own("once", |o| o.once_per = Some(Duration::from_secs(30))),
            own("quiet", |o| o.debounce = Some(Duration::from_secs(5))),
            own("long", |o| o.debounce = Some(Duration::from_secs(11))),
        ],
        ..Settings::default()
    };
    let tags = ["rate", "budget", "once", "quiet", "long"];
    let reacting = runners(&tags);
    let harness = Harness::start(reacting, settings, |_, _| Ok(yes()));
    harness.clock.wind(20 * SECOND);
    for round in 0..3 {
        for tag in tags {
            harness.clock.wind(1);
            harness.fire_event(tag, &format!("minion-of-{tag}"));
            harness.salts_runner(&format!("{round}-{tag}"), tag);
        }
    }
    // One is open from the first event on, so the others must have been read as well.
    harness.wait_for("all but the last of `quiet`", |harness| {
        let status = harness.status();
        status.behind == 0 && status.open == 1
    });
    harness.clock.wind(5 * SECOND);
    harness.wait_until_done();
    let states = |tag: &str| {
        let history = harness.history();
        let of: Vec<_> = history.iter().filter(|(of, ..)| of == tag).collect();
        assert!(
            of.iter().all(|(_, _, calls)| *calls == ["shadowed"]),
            "{of:?}"
        );
        of.iter()
            .map(|(_, state, _)| state.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        tags.map(states),
        [
            "done done rate",
            "done done budget",
            "done once_per once_per",
            "debounced debounced done",
            "debounced debounced debounced"
        ]
    );
    harness.clock.wind(60 * SECOND);
    let m = harness.metrics.clone();
    harness.wait_for("the counters", |_| {
        m.shadow_calls_same.get() + m.shadow_calls_only_salt.get() == 15
    });
    assert_eq!(
        (
            m.shadow_calls_same.get(),
            m.shadow_calls_only_salt.get(),
            m.shadow_calls_only_saltcellar.get()
        ),
        (6, 9, 0)
    );
    assert_eq!(
        (
            m.reactions_skipped_rate.get(),
            m.reactions_skipped_debounced.get()
        ),
        (1, 5)
    );
    // The reasons as `reactor diff` reads them from the log.
    let mut reasons = Vec::new();
    harness
        .store
        .follow(
            crate::reactor::shadow::is_of_interest,
            SeqNo(1),
            usize::MAX,
            |row| {
                for item in crate::reactor::shadow::ShadowItem::read(&row) {
                    if let crate::reactor::shadow::ShadowItem::Ours(ours) = item
                        && !ours.prevented_by.is_empty()
                    {
                        reasons.push(format!("{} {}", ours.rules.join(","), ours.throttle));
                    }
                }
            },
        )
        .unwrap();
    reasons.sort();
    let expected = [
        "budget budget",
        "long debounce",
        "long debounce",
        "long debounce",
        "once once_per",
    ];
    assert_eq!(reasons[..5], expected);
    assert_eq!(
        reasons[5..],
        [
            "once once_per",
            "quiet debounce",
            "quiet debounce",
            "rate rate"
        ]
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

/// Three saltcellar calls for events `a/*`, and four of Salt's of which one is equal.
fn fire_both_sides(harness: &Harness) {
    for tag in ["a/same", "a/ours", "a/other"] {
        harness.fire_event(tag, "web1");
    }
    harness.salts_runner("1", "a/same");
    harness.salts_runner("2", "something else");
    harness.salts_runner("3", "and more");
    harness.salts_runner("4", "and more");
}

/// Equal calls, different ones, only saltcellar's, only Salt's.
fn shadow_counts(harness: &Harness) -> [u64; 4] {
    let m = &harness.metrics;
    [
        &m.shadow_calls_same,
        &m.shadow_calls_different,
        &m.shadow_calls_only_saltcellar,
        &m.shadow_calls_only_salt,
    ]
    .map(crate::base::metrics::Counter::get)
}

fn in_shadow() -> Settings {
    Settings {
        shadow: true,
        shadow_window: Duration::from_secs(10),
        ..Settings::default()
    }
}

#[test]
fn in_shadow_differences_are_counted_after_their_window() {
    let harness = Harness::start(runners(&["a/*"]), in_shadow(), |_, _| Ok(yes()));
    harness.clock.wind(20 * SECOND);
    fire_both_sides(&harness);
    harness.wait_until_done();

    harness.clock.wind(10 * SECOND);
    harness.fire_event("b", "web1");
    harness.wait_until_done();
    assert_eq!(shadow_counts(&harness), [0; 4], "the window is not over");

    harness.clock.wind(60 * SECOND);
    harness.wait_for("the counters", |harness| {
        shadow_counts(harness) == [1, 2, 0, 1]
    });
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn in_shadow_calls_since_the_start_are_compared_even_if_the_log_before_it_takes_long_to_read() {
    let dir = outcome::with_unread_events("root", &["held/2".to_owned()]);
    let reacting = runners(&["a/*"]);
    let held = reacting.held.clone();
    held.shut(true);

    // It stays before `held/2`, which is older than the start.
    let harness = Harness::start_in(dir, NOW + SECOND, reacting, in_shadow(), |_, _| Ok(yes()));
    harness.clock.wind(20 * SECOND);
    fire_both_sides(&harness);
    harness.clock.wind(SECOND);
    held.shut(false);
    harness.wait_until_done();

    harness.clock.wind(60 * SECOND);
    harness.wait_for("the counters", |harness| {
        shadow_counts(harness) == [1, 2, 0, 1]
    });
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn foreign_calls_show_that_both_reactors_are_active() {
    use crate::model::{ListedRule, SaltsReactor};
    let rules_of_salt = vec![ListedRule {
        pattern: "a".to_owned(),
        files: Vec::new(),
    }];
    let settings = Settings {
        salts: SaltsReactor {
            rules: rules_of_salt,
            ..SaltsReactor::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["a"]), settings, |_, _| Ok(yes()));
    let handle = harness.reactor.handle();
    harness.clock.wind(40 * SECOND);
    assert!(!handle.salts_reactor().runs);
    harness.salts_runner("20260101000000000000", "x");
    harness.wait_until_done();
    harness.clock.wind(40 * SECOND);
    harness.wait_for("the other reactor to be detected", |_| {
        handle.salts_reactor().runs
    });
    assert_eq!(handle.foreign_call().unwrap().1, "test.arg");
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn in_shadow_requests_are_not_answered() {
    // Firing fails in this test, so a response would be a failure in the record.
    for (shadow, state) in [(true, "done"), (false, "partial")] {
        let settings = Settings {
            shadow,
            ..Settings::default()
        };
        let harness = Harness::start(rules(&["request/*"]), settings, |_, _| Ok(yes()));
        harness.fire_event("request/1", "web1");
        harness.wait_until_done();
        assert_eq!(harness.history()[0].1, state);
        harness.stop();
    }
}

#[test]
fn a_report_of_salts_own_reactor_puts_ours_into_shadow_until_the_next_master() {
    let harness = Harness::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    let handle = harness.reactor.handle();
    harness.fire_event("alone", "web1");
    assert_eq!(harness.next(), "alone");
    harness.wait_until_done();

    let report = |salts_reactor| {
        handle.report(&EngineReport {
            salts_reactor,
            ..EngineReport::default()
        })
    };
    let (_, blocked) = report(true);
    assert!(blocked.unwrap().contains("Salt's reactor is on"));
    assert!(handle.salts_reactor().runs);
    harness.fire_event("both", "web1");
    harness.wait_until_done();

    // A changed configuration does not know what the master has started.
    handle.change(Arc::new(rules(&["*"])), Settings::default());
    harness.fire_event("reloaded", "web1");
    harness.wait_until_done();
    assert!(handle.blocked_by().is_some());

    let (_, blocked) = report(false);
    assert_eq!((blocked, handle.salts_reactor().runs), (None, false));
    harness.fire_event("after", "web1");
    assert_eq!(
        harness.next(),
        "after",
        "`both` and `reloaded` were only watched"
    );
    harness.stop();
}

#[test]
fn reactions_wait_for_the_lease_and_those_of_the_fallback_are_not_made() {
    use crate::model::SaltsReactor;
    let salts = SaltsReactor {
        fallback: true,
        ..SaltsReactor::default()
    };
    let harness = Harness::start(
        rules(&["*"]),
        Settings {
            salts,
            ..Settings::default()
        },
        |_, _| Ok(yes()),
    );
    let handle = harness.reactor.handle();
    harness.fire_event("before", "web1");
    harness.wait_for("the event to wait", |harness| harness.status().waiting == 1);
    assert!(
        handle
            .blocked_by()
            .unwrap()
            .contains("has not renewed the reactor's lease")
    );
    let renew = |report: EngineReport<'_>| {
        handle.report(&EngineReport {
            fallback: true,
            ..report
        })
    };
    // The first report contains no token yet.
    let (token, blocked) = renew(EngineReport::default());
    assert!(blocked.is_some());
    let (token, blocked) = renew(EngineReport {
        token: Some(&token),
        ..EngineReport::default()
    });
    assert_eq!(blocked, None);
    assert_eq!(harness.next(), "before");
    harness.wait_until_done();

    harness
        .clock
        .wind(SECOND * crate::base::limits::REACTOR_LEASE.as_secs().cast_signed());
    harness.fire_event("lapsed", "web1");
    harness.wait_for("the event to wait", |harness| harness.status().waiting == 1);
    assert!(handle.blocked_by().is_some());
    harness.clock.wind(SECOND);
    let began = Some(harness.clock.now());
    renew(EngineReport {
        token: Some(&token),
        acts: true,
        began,
        ended: None,
        ..EngineReport::default()
    });
    assert!(
        handle.salts_reactor().runs && handle.blocked_by().unwrap().contains("as the fallback")
    );
    harness.fire_event("of the fallback", "web1");
    harness.clock.wind(SECOND);
    let ended = Some(harness.clock.now());
    let (token, _) = renew(EngineReport {
        acts: true,
        began,
        ..EngineReport::default()
    });
    let (_, blocked) = renew(EngineReport {
        token: Some(&token),
        began,
        ended,
        ..EngineReport::default()
    });
    assert_eq!((blocked, handle.salts_reactor().runs), (None, false));
    harness.fire_event("after", "web1");
    assert_eq!([harness.next(), harness.next()], ["lapsed", "after"]);
    harness.wait_until_done();
    let shadowed = outcome("of the fallback", "done", "shadowed");
    assert_eq!(
        harness.history(),
        [done("before"), done("lapsed"), shadowed, done("after")]
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_lease_that_ends_during_a_reaction_delays_its_next_call() {
    use crate::model::SaltsReactor;
    let barrier: Arc<Barrier> = Arc::default();
    barrier.shut(true);
    let waits = barrier.clone();
    let salts = SaltsReactor {
        fallback: true,
        ..SaltsReactor::default()
    };
    let harness = Harness::start(
        rules(&["a*", "*b"]),
        Settings {
            salts,
            ..Settings::default()
        },
        move |_, _| {
            waits.wait();
            Ok(yes())
        },
    );
    let handle = harness.reactor.handle();
    let renew = || {
        let (token, _) = handle.report(&EngineReport {
            fallback: true,
            ..EngineReport::default()
        });
        let report = EngineReport {
            token: Some(&token),
            fallback: true,
            ..EngineReport::default()
        };
        assert_eq!(handle.report(&report).1, None);
    };
    renew();
    harness.fire_event("ab", "web1");
    assert_eq!(harness.next(), "ab");
    harness
        .clock
        .wind(SECOND * crate::base::limits::REACTOR_LEASE.as_secs().cast_signed());
    barrier.shut(false);
    harness.wait_for_the_pause();
    assert!(harness.asked.try_recv().is_err(), "a call without a lease");
    renew();
    harness.clock.wind(SECOND * 60);
    renew();
    assert_eq!(harness.next(), "ab");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_reload_is_not_undone_by_a_report_of_the_masters_engine() {
    let harness = Harness::start(rules(&["0"]), Settings::default(), |_, _| Ok(yes()));
    let handle = harness.reactor.handle();
    let done = std::sync::atomic::AtomicBool::new(false);
    let old = std::thread::scope(|scope| {
        // Each report changes whether Salt's reactor runs, so that settings are applied again.
        scope.spawn(|| {
            let mut both = false;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                both = !both;
                handle.report(&EngineReport {
                    salts_reactor: both,
                    ..EngineReport::default()
                });
            }
        });

        let mut old = 0;
        for n in 0..300 {
            let pattern = if n % 2 == 0 { "even" } else { "odd" };
            handle.change(Arc::new(rules(&[pattern])), Settings::default());
            std::thread::yield_now();
            old += usize::from(handle.rules()[0].pattern != pattern);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        old
    });
    assert_eq!(old, 0, "times the old rules came back");
    harness.stop();
}
