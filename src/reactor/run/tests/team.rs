//! Reactors of several masters that elect one of them. The test is the other masters, and NATS.

use std::collections::BTreeSet;

use super::*;
use crate::config::WithoutQuorum;
use crate::model::{Entry, MasterName};
use crate::reactor::run::record::{Mark, Record};
use crate::reactor::stored::SkipReason;

const OWN: &str = "a";

struct Member {
    harness: Harness,
    election: Arc<Election>,
}

impl Member {
    fn start(leader: &str, rules: Rules, settings: Settings) -> Self {
        Self::start_in(
            Arc::new(tempfile::tempdir().unwrap()),
            leader,
            rules,
            settings,
        )
    }

    fn start_in(
        dir: Arc<tempfile::TempDir>,
        leader: &str,
        rules: Rules,
        settings: Settings,
    ) -> Self {
        let clock = Clock::manual(Micros(NOW));
        let own = MasterName::new(OWN).unwrap();
        let election = Election::new("hot", own, WithoutQuorum::Stop, clock.clone());
        election.stand(Some(leader));
        let election = Arc::new(election);
        let parts = (dir, clock, Some(election.clone()));
        let harness = Harness::start_as(parts, rules, settings, |_, _| Ok(yes()));
        Self { harness, election }
    }

    /// The clock goes on, and NATS says who leads then.
    fn leads(&self, leader: &str, seconds: i64) {
        self.harness.clock.wind(seconds * SECOND);
        self.election.stand(Some(leader));
    }

    /// Stores an event of web1 that a master's bus brought, with its own stamp.
    fn fires(&self, origin: &str, tag: &str) {
        let mut w = Writer::new();
        w.map(2).str("id").str("web1").str("_stamp").str(origin);
        let body = w.into_bytes();
        let entry = event_entry(tag.as_bytes(), &body, Source::Bus, self.harness.clock.now());
        self.store(
            origin,
            &Entry {
                minion: "web1",
                ..entry
            },
        );
    }

    fn store(&self, origin: &str, entry: &Entry<'_>) {
        let number = u64::from(!origin.is_empty()) * (self.harness.store.durable().0 + 1_000);
        self.harness.store(Batch::of(&Entry {
            origin,
            number,
            ..*entry
        }));
    }

    /// The event with this tag, as another master has it.
    fn event(&self, tag: &str) -> Event {
        let mut w = Writer::new();
        w.map(2).str("id").str("web1").str("_stamp").str("b");
        Event {
            seq: SeqNo(77_777),
            at: self.harness.clock.now(),
            tag: tag.to_owned(),
            body: w.into_bytes().into(),
            minion: "web1".to_owned(),
            ..Event::default()
        }
    }

    /// The record of the reactor of `b`, which has other numbers.
    fn b_handles(&self, tag: &str) {
        self.b_handles_by("x/*", tag);
    }

    fn b_handles_by(&self, rule: &str, tag: &str) {
        let now = self.harness.clock.now();
        let rules = vec![rule.into()];
        let batch = Record::skipped(self.event(tag), rules, 1, SkipReason::Rate, now).batch(now);
        let (entry, _) = batch.entries().next().unwrap();
        self.store("b", &entry);
    }

    fn is_read(&self) {
        self.harness
            .wait_for("the log to be read", |harness| harness.status().behind == 0);
    }

    fn has_open(&self, events: usize) {
        self.is_read();
        self.harness.wait_for_open(events);
    }

    fn stop(self) -> (Arc<tempfile::TempDir>, Vec<String>) {
        self.harness.stop()
    }
}

/// A leader with three events of one minion, of which the first is being rendered.
fn leader_that_renders() -> (Member, Arc<Barrier>) {
    let (slow, gate) = slow(&["slow/*"]);
    let member = Member::start(OWN, slow, Settings::default());
    for tag in ["slow/1", "slow/2", "slow/3"] {
        member.fires("", tag);
    }
    member.has_open(3);
    member.harness.wait_for_rendering(&gate);
    (member, gate)
}

#[test]
fn a_follower_acts_on_nothing_and_knows_what_the_leader_did() {
    let member = Member::start("b", rules(&["x/*"]), Settings::default());
    for tag in ["x/1", "x/2", "other"] {
        member.fires("", tag);
    }
    member.has_open(2);
    member.b_handles("x/1");
    member.has_open(1);

    // The record may come before the event.
    member.b_handles("x/3");
    member.fires("", "x/3");
    member.has_open(1);
    assert_eq!(
        member
            .harness
            .metrics
            .reactor_events_ignored_duplicate
            .get(),
        1
    );
    let status = member.harness.status();
    assert_eq!(status.waiting, 0);
    let handle = member.harness.reactor.handle();
    assert_eq!(handle.blocked_by(), None, "it is as it should be");
    assert!(
        handle
            .replay_event(SeqNo(1))
            .unwrap_err()
            .to_string()
            .contains("master b leads")
    );
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_new_leader_continues_what_the_former_one_left_open() {
    let member = Member::start("b", rules(&["x/*"]), Settings::default());
    for tag in ["x/1", "x/2", "x/3"] {
        member.fires("", tag);
    }
    member.b_handles("x/2");
    member.has_open(2);

    member.leads(OWN, 1);
    assert_eq!(
        [member.harness.next(), member.harness.next()],
        ["x/1", "x/3"]
    );
    member.harness.wait_until_done();
    member.fires("", "x/4");
    assert_eq!(member.harness.next(), "x/4");
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_new_leader_queues_each_event_once_that_it_had_not_read_yet() {
    let (slow, gate) = slow(&["held/*", "slow/*"]);
    let held = slow.held.clone();
    held.shut(true);
    let member = Member::start("b", slow, Settings::default());
    member.fires("", "held/1");
    member
        .harness
        .wait_for("the follower to be held", |_| held.reached() == 1);
    for tag in ["slow/1", "slow/2", "slow/3"] {
        member.fires("", tag);
    }

    member.election.stand(Some(OWN));
    held.shut(false);
    let team = &member.harness.reactor.follower.team;
    member.harness.wait_for("it to lead", |_| team.acts());
    // It is read once the reactor has begun.
    member.fires("", "slow/4");
    member.has_open(4);
    assert_eq!(member.harness.status().waiting, 4);

    gate.shut(false);
    let asked: Vec<_> = (0..5).map(|_| member.harness.next()).collect();
    assert_eq!(asked, ["held/1", "slow/1", "slow/2", "slow/3", "slow/4"]);
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_leader_acts_once_on_the_copies_of_an_event() {
    let member = Member::start(OWN, rules(&["x/*"]), Settings::default());
    member.fires("", "x/1");
    member.fires("b", "x/1");
    member.fires("b", "x/2");
    member.fires("c", "x/2");
    member.fires("", "x/2");
    assert_eq!(
        [member.harness.next(), member.harness.next()],
        ["x/1", "x/2"]
    );
    member.harness.wait_until_done();

    // Longer than any twin is awaited.
    member.leads(OWN, 30);
    member.is_read();
    assert_eq!(
        member
            .harness
            .metrics
            .reactor_events_ignored_duplicate
            .get(),
        2
    );
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_leader_acts_on_what_only_another_master_has_once_no_twin_can_come() {
    let member = Member::start(OWN, rules(&["x/*"]), Settings::default());
    member.fires("b", "x/1");
    member.has_open(1);
    member.fires("", "x/2");
    assert_eq!(member.harness.next(), "x/2");
    member.leads(OWN, 5);
    member.fires("", "x/3");
    assert_eq!(member.harness.next(), "x/3");
    member.leads(OWN, 6);
    assert_eq!(member.harness.next(), "x/1");
    member.harness.wait_until_done();
    let (_, asked) = member.stop();
    assert_eq!(asked, [""; 0]);
}

#[test]
fn a_new_leader_acts_on_what_only_another_master_has() {
    let member = Member::start("b", rules(&["x/*"]), Settings::default());
    member.fires("c", "x/1");
    member.leads("b", 8);
    member.fires("c", "x/2");
    member.leads("b", 4);
    member.has_open(2);
    member.leads(OWN, 0);
    assert_eq!(member.harness.next(), "x/1");
    member.leads(OWN, 7);
    assert_eq!(member.harness.next(), "x/2");
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_reactor_that_loses_the_lease_begins_nothing_more_and_forgets_nothing() {
    let (member, gate) = leader_that_renders();

    member.leads("b", 1);
    member.harness.wait_for("the queue to be empty", |harness| {
        harness.status().waiting == 0
    });
    gate.shut(false);
    member.fires("", "slow/4");
    member.has_open(4);
    assert_eq!(member.harness.asked.try_iter().count(), 0);

    member.leads(OWN, 1);
    let asked: Vec<_> = (0..4).map(|_| member.harness.next()).collect();
    assert_eq!(asked, ["slow/1", "slow/2", "slow/3", "slow/4"]);
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_leader_that_waits_for_room_notices_that_another_leads() {
    let (member, gate) = leader_that_renders();
    let harness = &member.harness;
    harness.reactor.worker.pending.lock().limit(2);
    harness.wait_for("the follower to wait", |harness| {
        harness.metrics.reactor_reads_paused.get() > 0
    });

    member.leads("b", 1);
    harness.wait_for("the queue to be empty", |harness| {
        harness.status().waiting == 0
    });
    gate.shut(false);
    member.stop();
}

#[test]
fn a_leader_that_led_before_acts_only_after_reading_what_was_done_meanwhile() {
    let (slow, gate) = slow(&["slow/*", "held/*"]);
    let held = slow.held.clone();
    let member = Member::start(OWN, slow, Settings::default());
    let harness = &member.harness;
    for tag in ["slow/1", "slow/2", "slow/3"] {
        member.fires("", tag);
    }
    member.has_open(3);
    harness.wait_for_rendering(&gate);

    // While the follower reads, the lease is lost, and taken again.
    held.shut(true);
    member.fires("", "held/1");
    harness.wait_for("the follower to be held", |_| held.reached() == 1);
    member.election.stand(Some("b"));
    member.b_handles_by("slow/*", "slow/2");
    member.election.stand(Some(OWN));

    // The first event is rendered by now, and its call waits.
    gate.shut(false);
    harness.wait_for_the_pause();
    held.shut(false);
    // In any order: sets of rules take turns.
    let asked: BTreeSet<String> = (0..3).map(|_| harness.next()).collect();
    let open = ["held/1", "slow/1", "slow/3"].map(str::to_owned);
    assert_eq!(asked, BTreeSet::from(open));
    harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn an_event_that_counts_for_once_per_still_does_after_the_lease_was_lost() {
    let (slow, gate) = slow(&["slow/*"]);
    let once = with(|options| options.once_per = Some(Duration::from_secs(60)));
    let member = Member::start(OWN, slow, once);
    member.fires("", "slow/1");
    member.fires("", "slow/2");
    // The second one is skipped.
    member.has_open(1);
    member.harness.wait_for_rendering(&gate);

    member.leads("b", 1);
    member.harness.wait_for("the queue to be empty", |harness| {
        harness.status().waiting == 0
    });
    member.leads(OWN, 1);
    member
        .harness
        .wait_for("it to be queued", |harness| harness.status().waiting == 1);

    // The first worker still has it, and leaves the call to the second.
    gate.shut(false);
    assert_eq!(member.harness.next(), "slow/1");
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_leader_does_not_begin_what_the_former_one_turns_out_to_have_done() {
    let (member, gate) = leader_that_renders();

    // Its record was on the way when this one began to lead.
    member.b_handles_by("slow/*", "slow/2");
    member.has_open(2);
    gate.shut(false);
    assert_eq!(
        [member.harness.next(), member.harness.next()],
        ["slow/1", "slow/3"]
    );
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_restart_forgets_neither_open_events_nor_their_twins() {
    let member = Member::start("b", rules(&["x/*"]), Settings::default());
    member.fires("", "x/1");
    member.fires("", "x/2");
    member.fires("b", "x/2");
    member.has_open(2);
    let (dir, _) = member.stop();

    let member = Member::start_in(dir, "b", rules(&["x/*"]), Settings::default());
    member.b_handles("x/1");
    member.fires("c", "x/2");
    member.has_open(1);
    member.leads(OWN, 1);
    assert_eq!(member.harness.next(), "x/2");
    member.harness.wait_until_done();
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn a_call_that_the_former_leader_may_have_made_is_not_repeated() {
    let member = Member::start("b", runners(&["x/*"]), Settings::default());
    member.fires("", "x/1");
    member.fires("", "x/2");
    member.has_open(2);

    // It announced the runner of the first, and was gone.
    let event = member.event("x/1");
    let rules = Rules {
        client: Some(Client::Runner),
        ..self::rules(&["x/*"])
    };
    let plan = rules.react(&event, &["x/*".into()]);
    let key = record::call_key(&plan.calls[0]);
    let now = member.harness.clock.now();
    let batch = record::mark(&event, &["x/*".into()], 1, Mark::Started, key, now);
    let (entry, _) = batch.entries().next().unwrap();
    member.store("b", &entry);
    member.is_read();

    member.leads(OWN, 1);
    member
        .harness
        .wait_for("the outcome to be known", |harness| {
            harness.clock.wind(SECOND);
            member.election.stand(Some(OWN));
            harness.is_done()
        });
    let outcomes: Vec<_> = member
        .harness
        .history()
        .into_iter()
        .map(|one| (one.0, one.2))
        .collect();
    assert!(
        outcomes.contains(&("x/1".to_owned(), vec!["unknown".to_owned()])),
        "{outcomes:?}"
    );
    assert_eq!(member.stop().1, ["x/2"]);
}

#[test]
fn in_a_cluster_and_in_shadow_mode_the_election_decides_nothing() {
    let of_cluster = Settings {
        cluster_id: Some("c".to_owned()),
        ..Settings::default()
    };
    let member = Member::start("b", rules(&["x/*"]), of_cluster);
    member.fires("", "x/1");
    assert_eq!(member.harness.next(), "x/1");
    member.harness.wait_until_done();
    assert_eq!(member.harness.status().election, None);
    assert_eq!(member.stop().1, [""; 0]);

    let shadow = Settings {
        shadow: true,
        ..Settings::default()
    };
    let member = Member::start("b", rules(&["x/*"]), shadow);
    member.fires("", "x/1");
    member.harness.wait_until_done();
    assert_eq!(
        member.harness.history(),
        [outcome("x/1", "done", "shadowed")]
    );
    assert_eq!(member.stop().1, [""; 0]);
}

#[test]
fn events_that_no_reactor_handles_are_counted() {
    let member = Member::start("b", rules(&["x/*"]), Settings::default());
    member.fires("", "x/1");
    member.has_open(1);
    member.leads("b", 3_700);
    member.harness.wait_for_open(0);
    let metrics = &member.harness.metrics;
    assert_eq!(metrics.reactor_events_unhandled.get(), 1);
    assert_eq!(member.stop().1, [""; 0]);
}
