//! Loops: the depth of events from all sources, even after a restart; and the default budget.

use salt_sls::yaml;

use super::*;
use crate::reactor::master::pack;

/// Stores an event of the bus, with its data as YAML.
fn fire_yaml(harness: &Harness, tag: &str, data: &str) {
    harness.fire_data(tag, &pack::packed(&yaml::load(data).unwrap()));
    harness.clock.wind(1);
}

fn sent_by(jid: &str) -> String {
    format!(
        "{{id: web1, tag: loop/next, cmd: _minion_event, data: {{__pub_fun: event.send, __pub_jid: '{jid}'}}}}"
    )
}

fn two_deep() -> Settings {
    Settings {
        depth_max: 2,
        ..Settings::default()
    }
}

fn skipped_by_depth(harness: &Harness) -> u64 {
    harness.metrics.reactions_skipped_depth.get()
}

#[test]
fn events_sent_by_jobs_of_reactions_have_a_depth() {
    let harness = Harness::start(rules(&["loop/*"]), two_deep(), |_, _| Ok(yes()));
    fire_yaml(&harness, "loop/first", "{id: web1}");
    for _ in 0..3 {
        let (_, jid) = harness.next_request();
        fire_yaml(&harness, "loop/next", &sent_by(&jid));
    }
    harness.wait_until_done();
    assert_eq!(skipped_by_depth(&harness), 1);
    // A job of `salt-call`, which generates its own jid, is not a reaction.
    fire_yaml(&harness, "loop/next", &sent_by("20261121031653768993"));
    assert_eq!(harness.next(), "loop/next");
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn depths_survive_a_restart() {
    let harness = Harness::start(rules(&["loop/*"]), two_deep(), |_, _| Ok(yes()));
    fire_yaml(&harness, "loop/first", "{id: web1}");
    let (_, jid) = harness.next_request();
    fire_yaml(&harness, "loop/next", &sent_by(&jid));
    let (_, jid) = harness.next_request();
    harness.wait_until_done();
    let (dir, _) = harness.stop();
    // The daemon stops while the master is unreachable, and the third event is open.
    let away = |_: &Call, _| Err(unreachable());
    let harness = Harness::start_in(dir, NOW + SECOND, rules(&["loop/*"]), two_deep(), away);
    fire_yaml(&harness, "loop/next", &sent_by(&jid));
    harness.wait_for("a try", |harness| harness.status().master_unreachable);
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(
        dir,
        NOW + 2 * SECOND,
        rules(&["loop/*"]),
        two_deep(),
        |_, _| Ok(yes()),
    );
    let (_, jid) = harness.next_request();
    fire_yaml(&harness, "loop/next", &sent_by(&jid));
    harness.wait_for("the chain to end", |harness| skipped_by_depth(harness) == 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_an_orchestration_have_a_depth() {
    let started = || {
        Ok(Answer::Started {
            jid: "77".to_owned(),
            tag: "salt/run/77".to_owned(),
        })
    };
    let settings = Settings {
        depth_max: 1,
        ..Settings::default()
    };
    let harness = Harness::start(runners(&["loop/*"]), settings, move |_, _| started());
    fire_yaml(&harness, "loop/first", "{word: first}");
    harness.next();
    harness.wait_until_done();
    // Both an event sent by its runner and one sent by its job have depth 1, and their reactions depth 2.
    let announce = |jid: &str| {
        let data =
            "{type: runner, name: event.send, args: [], kwargs: {tag: loop/run, data: {n: 1}}}";
        fire_yaml(&harness, &format!("salt/run/{jid}/args"), data);
        let data =
            "{fun: runner.event.send, user: Reactor, fun_args: [{tag: loop/run, data: {n: 1}}]}";
        fire_yaml(&harness, &format!("salt/run/{jid}1/new"), data);
        let call = "{arg: [loop/job], kwarg: {}, tgt_type: glob}";
        let data = format!("{{type: function, tgt: web1, name: event.send, args: {call}}}");
        fire_yaml(&harness, &format!("salt/run/{jid}/args"), &data);
        let data = "{fun: event.send, tgt: web1, tgt_type: glob, arg: [loop/job]}";
        fire_yaml(&harness, &format!("salt/job/{jid}2/new"), data);
    };
    announce("77");
    fire_yaml(&harness, "loop/run", "{n: 1, _stamp: '2026'}");
    fire_yaml(&harness, "loop/job", &sent_by("772"));
    harness.next();
    harness.next();
    harness.wait_until_done();
    let depths = || {
        let depth = |body: &[u8]| {
            get(body, "depth")
                .and_then(crate::wire::msgpack::as_int)
                .unwrap_or(0)
        };
        harness
            .records()
            .iter()
            .rev()
            .map(|row| depth(&row.body))
            .collect::<Vec<_>>()
    };
    assert_eq!(depths(), [1, 1, 0]);
    // These were not announced.
    fire_yaml(&harness, "loop/run", "{n: 1, _stamp: '2026'}");
    fire_yaml(&harness, "loop/job", &sent_by("78"));
    harness.next();
    harness.next();
    harness.wait_until_done();
    assert_eq!(depths(), [0, 0, 1, 1, 0]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn events_of_a_runner_have_a_depth_in_any_order() {
    let barriers: Arc<[Barrier; 3]> = Arc::default();
    barriers.iter().for_each(|barrier| barrier.shut(true));
    let answered = barriers.clone();
    let reacting = Rules {
        fun: Some("event.send"),
        ..runners(&["loop/*"])
    };
    let harness = Harness::start(reacting, two_deep(), move |_, times| {
        if let Some(barrier) = (times as usize)
            .checked_sub(1)
            .and_then(|nth| barriers.get(nth))
        {
            barrier.wait();
        }
        Ok(Answer::Started {
            jid: format!("7{times}"),
            tag: format!("salt/run/7{times}"),
        })
    });
    fire_yaml(&harness, "loop/next", "{}");
    for (nth, barrier) in answered.iter().enumerate() {
        harness.next();
        fire_yaml(&harness, "loop/next", "{_stamp: '2026-11-22'}");
        let data = "{fun: runner.event.send, user: Reactor, fun_args: [loop/next]}";
        fire_yaml(&harness, &format!("salt/run/7{}/new", nth + 1), data);
        harness.wait_for("the log to be read", |harness| harness.status().behind == 0);
        barrier.shut(false);
    }
    harness.wait_until_done();
    assert_eq!(skipped_by_depth(&harness), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn rules_without_options_have_separate_default_budgets() {
    let mut plain = RuleOptions::default();
    let budget = plain.budget.expect("a default budget");
    assert!(
        budget.times >= 1_000_000,
        "enough for a backlog of a million events"
    );
    plain.budget = Some(Rate { times: 2, ..budget });
    let settings = Settings {
        plain: Arc::new(plain),
        ..Settings::default()
    };
    let harness = Harness::start(rules(&["a/*", "b/*"]), settings, |_, _| Ok(yes()));
    for tag in ["a/1", "a/2", "a/3", "b/1", "b/2"] {
        harness.clock.wind(1);
        harness.fire_event(tag, "web1");
    }
    // Rules do not wait for each other.
    let mut next = [
        harness.next(),
        harness.next(),
        harness.next(),
        harness.next(),
    ];
    next.sort_unstable();
    assert_eq!(next, ["a/1", "a/2", "b/1", "b/2"]);
    harness.wait_until_done();
    assert_eq!(harness.metrics.reactions_skipped_budget.get(), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}
