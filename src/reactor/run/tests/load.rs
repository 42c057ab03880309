//! Rules and minions under load: what one of them has waiting keeps no other one waiting.

use super::*;
use crate::wire::salt_event::fingerprinted_entry;

/// More than the reactor keeps in memory for all rules together.
const FLOOD: usize = 20_100;

impl Rig {
    /// Many events come at once: tags with the minions that they are about.
    fn tell_all(&self, events: impl IntoIterator<Item = (String, String)>) {
        let mut events = events.into_iter().peekable();
        // Not all in one: a block of so many is slow to read in a build with checks.
        while events.peek().is_some() {
            self.tell_batch(events.by_ref().take(500));
        }
    }

    fn tell_batch(&self, events: impl Iterator<Item = (String, String)>) {
        let mut batch = Batch::default();
        for (tag, minion) in events {
            let mut w = Writer::new();
            w.map(2).str("id").str(&minion).str("_stamp").str("2026");
            let body = w.into_bytes();
            let (entry, fingerprints) =
                fingerprinted_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
            batch.push(&crate::model::Entry { minion: &minion, ..entry }, Some(fingerprints));
        }
        let (tx, rx) = sync_channel(1);
        self.intake.submit(batch, Some(Box::new(move |stored| tx.send(stored).unwrap()))).unwrap();
        crate::testing::receive(&rx).unwrap();
    }

    /// An event with that data, whatever it says of itself.
    fn tell_data(&self, tag: &str, data: &[(&str, &str)]) {
        let mut w = Writer::new();
        w.map(data.len());
        for (key, value) in data {
            w.str(key).str(value);
        }
        let body = w.into_bytes();
        let mut batch = Batch::default();
        let (entry, fingerprints) = fingerprinted_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
        batch.push(&entry, Some(fingerprints));
        let (tx, rx) = sync_channel(1);
        self.intake.submit(batch, Some(Box::new(move |stored| tx.send(stored).unwrap()))).unwrap();
        crate::testing::receive(&rx).unwrap();
    }
}

pub(super) fn rated(per: u64) -> Settings {
    let mut rule = RuleOptions { rule: "rated/*".into(), ..RuleOptions::default() };
    rule.rate = Some(Rate { times: 1, per: Duration::from_secs(per) });
    Settings { rules: vec![Arc::new(rule)], ..Settings::default() }
}

#[test]
fn a_throttled_rule_with_more_events_than_fit_into_memory_stopped_all_others() {
    let rig = Rig::start(rules(&["rated/*", "other"]), rated(5), |_, _| Ok(yes()));
    rig.tell_all((0..FLOOD).map(|n| (format!("rated/{n}"), format!("web{}", n % 100))));
    assert!(rig.next().starts_with("rated/"));
    rig.tell("other", "web1");
    assert_eq!(rig.next(), "other");
    rig.stop();
}

#[test]
fn a_minion_with_more_events_than_fit_into_memory_stopped_all_others() {
    let reacting = rules(&["*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, Settings::default(), |_, _| Ok(yes()));
    rig.tell_all((0..FLOOD).map(|n| (format!("slow/{n}"), "web1".to_owned())));
    rig.tell("other", "web2");
    assert_eq!(rig.next(), "other");
    slow.shut(false);
    rig.stop();
}

#[test]
fn removing_a_rate_or_its_rule_changed_nothing_for_what_was_waiting() {
    let rig = Rig::start(rules(&["rated/*"]), rated(3600), |_, _| Ok(yes()));
    rig.tell_all((0..30).map(|n| (format!("rated/{n}"), format!("web{n}"))));
    rig.next();
    rig.wait_for("the rest to wait", |rig| rig.reactor.handle().next_at().is_some());
    let mut twice = rated(1800);
    Arc::make_mut(&mut twice.rules[0]).rate.as_mut().unwrap().times = 10;
    rig.reactor.handle().change(Arc::new(rules(&["rated/*"])), twice);
    for _ in 0..9 {
        rig.next();
    }
    rig.wait_for("the rest to wait", |rig| rig.reactor.handle().next_at().is_some());
    rig.reactor.handle().change(Arc::new(rules(&["rated/*"])), Settings::default());
    for _ in 10..30 {
        rig.next();
    }
    rig.wait_until_through();
    rig.reactor.handle().change(Arc::new(rules(&["rated/*"])), rated(3600));
    rig.clock.wind(1);
    rig.tell_all((0..30).map(|n| (format!("rated/{n}"), format!("web{n}"))));
    rig.wait_for("the rest to wait", |rig| rig.reactor.handle().next_at().is_some());
    rig.reactor.handle().change(Arc::new(rules(&["else"])), Settings::default());
    rig.wait_until_through();
    let gone = rig.history().iter().filter(|(_, state, _)| state == "gone").count();
    assert!(gone >= 29, "{gone}");
    rig.stop();
}

#[test]
fn events_that_were_too_old_spent_the_rate_of_those_that_were_not() {
    let settings = Settings { age_max: Duration::from_secs(60), ..rated(100) };
    let rig = Rig::start(rules(&["rated/*"]), settings, |_, _| Ok(yes()));
    rig.tell("rated/first", "web1");
    assert_eq!(rig.next(), "rated/first");
    rig.tell_all((0..30).map(|n| (format!("rated/old{n}"), "web1".to_owned())));
    rig.wait_for("the old ones to wait", |rig| rig.reactor.handle().status().open == 30);
    rig.clock.wind(100 * SECOND);
    rig.tell("rated/new", "web1");
    assert_eq!(rig.next(), "rated/new");
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactions_left_old.get(), 30);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn events_that_are_about_no_minion_were_reacted_to_in_any_order() {
    let rig = Rig::start(rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    rig.tell_all((0..200).map(|n| (n.to_string(), String::new())));
    let asked: Vec<_> = (0..200).map(|_| rig.next()).collect();
    assert_eq!(asked, (0..200).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    rig.wait_until_through();
    rig.stop();
}

#[test]
fn a_minion_that_put_another_one_into_its_tag_used_up_what_that_one_may() {
    let rule = own("salt/minion/*", |options| options.once_per = Some(Duration::from_secs(60)));
    let settings = Settings { rules: vec![rule], ..Settings::default() };
    let rig = Rig::start(rules(&["salt/minion/*"]), settings, |_, _| Ok(yes()));
    let start =
        |id| [("cmd", "_minion_event"), ("id", id), ("tag", "salt/minion/web1/start"), ("_stamp", id)];
    rig.tell_data("salt/minion/web1/start", &start("forger"));
    rig.tell_data("salt/minion/web1/start", &start("web1"));
    rig.next();
    assert_eq!(rig.asked.recv_timeout(TIMEOUT).map(|(tag, _)| tag).as_deref(), Ok("salt/minion/web1/start"));
    rig.wait_until_through();
    assert_eq!(rig.metrics.reactions_left_once.get(), 0);
    rig.stop();
}

/// Runners that are all started at once, and have not ended.
fn slow_runners() -> Rules {
    Rules { cmd: Some(Cmd::Runner), ..rules(&["run/*", "other/*"]) }
}

fn started(call: &Call) -> Answer {
    let jid = argument(call).replace('/', "-");
    Answer::Started { tag: format!("salt/run/{jid}"), jid }
}

#[test]
fn a_hundred_events_started_a_hundred_runners_at_once() {
    let rig = Rig::start(slow_runners(), Settings::default(), |call, _| Ok(started(call)));
    rig.tell_all((0..100).map(|n| (format!("run/{n}"), format!("web{n}"))));
    let mut under_way: Vec<_> = (0..9).map(|_| rig.next()).collect();
    // The tenth is left to other rules.
    rig.tell("other/1", "web1");
    assert_eq!(rig.next(), "other/1");
    for _ in 9..100 {
        assert_eq!(rig.asked.try_recv().ok(), None, "no more than ten at once");
        let ended = under_way.swap_remove(0);
        rig.tell(&format!("salt/run/{}/ret", ended.replace('/', "-")), "");
        under_way.push(rig.next());
    }
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn runners_whose_results_were_missed_kept_all_others_waiting() {
    let aged = Settings { age_max: Duration::from_secs(7_200), ..Settings::default() };
    let rig = Rig::start(slow_runners(), aged, |call, _| Ok(started(call)));
    rig.tell_all((0..20).map(|n| (format!("run/{n}"), format!("web{n}"))));
    for _ in 0..9 {
        rig.tell(&format!("salt/run/{}/new", rig.next().replace('/', "-")), "");
    }
    rig.wait_for("the rest to wait", |rig| rig.reactor.handle().status().open == 11);
    rig.clock.wind(3_599 * SECOND);
    rig.wait_for("a look at the runners", |rig| {
        lock(&rig.reactor.handle().0.scheduler).runners.due(rig.clock.now()).is_empty()
    });
    assert_eq!(rig.asked.try_recv().ok(), None, "they may still run");
    rig.clock.wind(SECOND);
    for _ in 9..18 {
        rig.next();
    }
    assert_eq!(rig.metrics.reactor_runners_lost.get(), 9);
    rig.stop();
}

#[test]
fn a_runner_that_ended_before_the_master_had_answered_counted_for_ever() {
    let rig = Rig::start(slow_runners(), Settings::default(), |call, _| Ok(started(call)));
    // Their results are in the log already.
    rig.tell_all((0..20).map(|n| (format!("salt/run/run-{n}/ret"), String::new())));
    rig.tell_all((0..20).map(|n| (format!("run/{n}"), format!("web{n}"))));
    for _ in 0..20 {
        rig.next();
    }
    rig.wait_until_through();
    rig.stop();
}

#[test]
fn rules_that_get_options_of_their_own_are_apart_from_then_on_and_none_is_forgotten() {
    let reacting = rules(&["slow/*", "*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, Settings::default(), |_, _| Ok(yes()));
    rig.tell("slow/1", "web1");
    rig.tell_all((2..40).map(|n| (format!("slow/{n}"), "web1".to_owned())));
    rig.wait_for("all to be open", |rig| rig.reactor.handle().status().open == 39);
    let others = rules(&["slow/*", "*"]);
    let apart = Settings { rules: vec![own("*", |options| options.tries = 2)], ..Settings::default() };
    rig.reactor.handle().change(Arc::new(others), apart);
    slow.shut(false);
    let mut asked: Vec<_> = (0..2 * 39).map(|_| rig.next()).collect();
    rig.wait_until_through();
    asked.sort();
    let mut expected: Vec<_> = (1..40).flat_map(|n| [format!("slow/{n}"), format!("slow/{n}")]).collect();
    expected.sort();
    assert_eq!(asked, expected);
    assert_eq!(rig.history().len(), 1 + 2 * 38, "one together, the others apart");
    assert_eq!(rig.stop().1, [""; 0]);
}
