//! Loops: how deep an event is, whatever way it came, also over a start; and the budget for those that no event shows.

use super::*;
use crate::master::pack;
use crate::sls::yaml;

/// An event of a bus, its data as YAML.
fn tell(rig: &Rig, tag: &str, data: &str) {
    let body = pack::packed(&yaml::load(data).unwrap());
    let entry = event_entry(tag.as_bytes(), &body, Source::Bus, rig.clock.now());
    let (tx, rx) = sync_channel(1);
    rig.clock.wind(1);
    rig.intake.submit(Batch::of(&entry), Some(Box::new(move |stored| tx.send(stored).unwrap()))).unwrap();
    crate::testing::receive(&rx).unwrap();
}

fn sent_by(jid: &str) -> String {
    format!(
        "{{id: web1, tag: loop/next, cmd: _minion_event, data: {{__pub_fun: event.send, __pub_jid: '{jid}'}}}}"
    )
}

fn two_deep() -> Settings {
    Settings { depth_max: 2, ..Settings::default() }
}

fn left_by_depth(rig: &Rig) -> u64 {
    rig.metrics.reactions_left_depth.get()
}

#[test]
fn events_that_jobs_of_reactions_sent_caused_the_next_without_end() {
    let rig = Rig::start(rules(&["loop/*"]), two_deep(), |_, _| Ok(yes()));
    tell(&rig, "loop/first", "{id: web1}");
    for _ in 0..3 {
        let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
        tell(&rig, "loop/next", &sent_by(&jid));
    }
    rig.wait_until_through();
    assert_eq!(left_by_depth(&rig), 1);
    // A job of nobody's, as `salt-call` makes one up, is no reaction.
    tell(&rig, "loop/next", &sent_by("20261121031653768993"));
    assert_eq!(rig.next(), "loop/next");
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_start_made_each_chain_of_reactions_begin_anew() {
    let rig = Rig::start(rules(&["loop/*"]), two_deep(), |_, _| Ok(yes()));
    tell(&rig, "loop/first", "{id: web1}");
    let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    tell(&rig, "loop/next", &sent_by(&jid));
    let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    rig.wait_until_through();
    let (dir, _) = rig.stop();
    // The daemon ends while the master is unreachable, and the third event is open.
    let away = |_: &Call, _| Err(unreachable());
    let rig = Rig::start_in(dir, NOW + SECOND, rules(&["loop/*"]), two_deep(), away);
    tell(&rig, "loop/next", &sent_by(&jid));
    rig.wait_for("it to be tried", |rig| rig.reactor.handle().status().master_unreachable);
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir, NOW + 2 * SECOND, rules(&["loop/*"]), two_deep(), |_, _| Ok(yes()));
    let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    tell(&rig, "loop/next", &sent_by(&jid));
    rig.wait_for("the chain to end", |rig| left_by_depth(rig) == 1);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn what_an_orchestration_of_a_reaction_does_counted_as_a_beginning() {
    let started = || Ok(Answer::Started { jid: "77".to_owned(), tag: "salt/run/77".to_owned() });
    let reacting = Rules { cmd: Some(Cmd::Runner), ..rules(&["loop/*"]) };
    let settings = Settings { depth_max: 1, ..Settings::default() };
    let rig = Rig::start(reacting, settings, move |_, _| started());
    tell(&rig, "loop/first", "{word: first}");
    rig.next();
    rig.wait_until_through();
    // A runner of it sends an event, and a job of it does: both are of depth 1, and what comes of these of depth 2.
    let announce = |jid: &str| {
        let data = "{type: runner, name: event.send, args: [], kwargs: {tag: loop/run, data: {n: 1}}}";
        tell(&rig, &format!("salt/run/{jid}/args"), data);
        let data = "{fun: runner.event.send, user: Reactor, fun_args: [{tag: loop/run, data: {n: 1}}]}";
        tell(&rig, &format!("salt/run/{jid}1/new"), data);
        let call = "{arg: [loop/job], kwarg: {}, tgt_type: glob}";
        let data = format!("{{type: function, tgt: web1, name: event.send, args: {call}}}");
        tell(&rig, &format!("salt/run/{jid}/args"), &data);
        let data = "{fun: event.send, tgt: web1, tgt_type: glob, arg: [loop/job]}";
        tell(&rig, &format!("salt/job/{jid}2/new"), data);
    };
    announce("77");
    tell(&rig, "loop/run", "{n: 1, _stamp: '2026'}");
    tell(&rig, "loop/job", &sent_by("772"));
    rig.next();
    rig.next();
    rig.wait_until_through();
    let depths = || {
        let filter = EventFilter { reactions: true, ..EventFilter::default() };
        let rows = rig.store.events_before(&filter, rig.store.durable(), 10, usize::MAX).unwrap();
        let depth = |body: &[u8]| get(body, "depth").and_then(crate::wire::msgpack::as_int).unwrap_or(0);
        rows.iter().map(|row| depth(&row.body)).collect::<Vec<_>>()
    };
    assert_eq!(depths(), [1, 1, 0]);
    // Nobody announced these.
    tell(&rig, "loop/run", "{n: 1, _stamp: '2026'}");
    tell(&rig, "loop/job", &sent_by("78"));
    rig.next();
    rig.next();
    rig.wait_until_through();
    assert_eq!(depths(), [0, 0, 1, 1, 0]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn events_of_a_runner_that_overtook_the_master_s_answer_and_each_other_began_chains_anew() {
    let gates: Arc<[Policy; 3]> = Arc::default();
    gates.iter().for_each(|gate| gate.shut(true));
    let answered = gates.clone();
    let reacting = Rules { cmd: Some(Cmd::Runner), fun: Some("event.send"), ..rules(&["loop/*"]) };
    let rig = Rig::start(reacting, two_deep(), move |_, times| {
        if let Some(gate) = (times as usize).checked_sub(1).and_then(|nth| gates.get(nth)) {
            gate.wait();
        }
        Ok(Answer::Started { jid: format!("7{times}"), tag: format!("salt/run/7{times}") })
    });
    tell(&rig, "loop/next", "{}");
    for (nth, gate) in answered.iter().enumerate() {
        rig.next();
        tell(&rig, "loop/next", "{_stamp: '2026-11-22'}");
        let data = "{fun: runner.event.send, user: Reactor, fun_args: [loop/next]}";
        tell(&rig, &format!("salt/run/7{}/new", nth + 1), data);
        rig.wait_for("the log to be read", |rig| rig.reactor.handle().status().behind == 0);
        gate.shut(false);
    }
    rig.wait_until_through();
    assert_eq!(left_by_depth(&rig), 1);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_rule_without_options_had_no_budget_and_the_rules_without_share_none() {
    let mut plain = RuleOptions::default();
    let budget = plain.budget.expect("one by default");
    assert!(budget.times >= 1_000_000, "a backlog of a million events of one rule is done");
    plain.budget = Some(Rate { times: 2, ..budget });
    let settings = Settings { plain: Arc::new(plain), ..Settings::default() };
    let rig = Rig::start(rules(&["a/*", "b/*"]), settings, |_, _| Ok(yes()));
    for tag in ["a/1", "a/2", "a/3", "b/1", "b/2"] {
        rig.clock.wind(1);
        rig.tell(tag, "web1");
    }
    // Rules do not wait for one another.
    let mut next = [rig.next(), rig.next(), rig.next(), rig.next()];
    next.sort_unstable();
    assert_eq!(next, ["a/1", "a/2", "b/1", "b/2"]);
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactions_left_budget.get(), 1);
    assert_eq!(rig.stop().1, [""; 0]);
}
