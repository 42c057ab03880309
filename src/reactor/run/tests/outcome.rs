//! What really became of a call: no answer, answers too late, jobs that were announced and not published; and where a checkpoint ends.

use super::*;
use crate::limits::REACTOR_WAVE_BYTES;
use crate::model::Entry;

impl Rig {
    /// A copy of what a kill would leave on the disk at this moment.
    pub(super) fn as_after_a_kill(&self) -> Arc<tempfile::TempDir> {
        // A file that is replaced while it is copied vanishes.
        let copied = || {
            let copy = Arc::new(tempfile::tempdir().unwrap());
            let (from, to) = (self.dir.path().join("."), copy.path());
            let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
            status.unwrap().success().then_some(copy)
        };
        crate::testing::wait_for("a copy", copied)
    }
}

fn runners(patterns: &[&'static str]) -> Rules {
    Rules { cmd: Some(Cmd::Runner), ..rules(patterns) }
}

fn started(jid: &str) -> Answer {
    Answer::Started { jid: jid.to_owned(), tag: format!("salt/run/{jid}") }
}

impl Rig {
    /// The master fires an event about a job.
    fn fires(&self, tag: &str, pairs: &[(&str, &str)]) {
        let mut w = Writer::new();
        w.map(pairs.len());
        for (key, value) in pairs {
            w.str(key).str(value);
        }
        let body = w.into_bytes();
        let entry: Entry<'_> = event_entry(tag.as_bytes(), &body, Source::Bus, self.clock.now());
        let (tx, rx) = sync_channel(1);
        let done = Box::new(move |stored| tx.send(stored).unwrap());
        self.intake.submit(Batch::of(&entry), Some(done)).unwrap();
        crate::testing::receive(&rx).unwrap();
    }

    fn wait_for_the_pause(&self) {
        self.wait_for("the pause", |rig| rig.reactor.handle().next_at().is_some());
    }

    /// Lets time pass until there is nothing to do.
    fn wind_until_through(&self) {
        self.wait_for("everything to be through", |rig| {
            rig.clock.wind(SECOND);
            let status = rig.reactor.handle().status();
            status.behind == 0 && status.waiting == 0 && status.open == 0
        });
    }

    /// Jids of the calls in the records, the earliest first.
    fn jids(&self) -> Vec<String> {
        let filter = EventFilter { reactions: true, ..EventFilter::default() };
        let found = self.store.events_before(&filter, self.store.durable(), usize::MAX, usize::MAX).unwrap();
        let of = |entry: &crate::store::StoredEntry| -> Vec<String> {
            let calls = elements(get(&entry.body, "calls").unwrap_or_default());
            calls.filter_map(|call| as_text(get(call, "jid")?)).map(str::to_owned).collect()
        };
        found.iter().rev().flat_map(of).collect()
    }

    fn outcomes(&self) -> Vec<String> {
        self.history().into_iter().flat_map(|(_, _, calls)| calls).collect()
    }
}

#[test]
fn a_busy_master_ran_one_runner_reaction_several_times() {
    let rig = Rig::start(runners(&["?"]), Settings::default(), |_, times| {
        if times == 0 { Ok(yes()) } else { Err(no_answer()) }
    });
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.salts_runner("20260101000000000001", "1");
    rig.wind_until_through();
    assert_eq!(
        (rig.outcomes(), rig.jids()),
        (vec!["found".to_owned()], vec!["20260101000000000001".to_owned()])
    );
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_runner_that_is_not_seen_to_start_is_unknown_and_was_started_again() {
    let rig = Rig::start(runners(&["?"]), Settings::default(), |_, times| {
        if times == 0 { Ok(yes()) } else { Err(no_answer()) }
    });
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    // Others' starts: before the request, of other arguments, by a person.
    rig.salts_runner("20260101000000000001", "2");
    rig.fires("salt/run/20260101000000000002/new", &[("fun", "runner.test.arg"), ("user", "root")]);
    rig.wind_until_through();
    assert_eq!(rig.outcomes(), ["unknown"]);
    assert_eq!(rig.metrics.reactor_calls_unknown.get(), 1);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn two_equal_calls_claimed_the_same_start() {
    let rig = Rig::start(runners(&["?"]), Settings::default(), |_, times| match times {
        0 => Ok(yes()),
        2 => Ok(started("20260101000000000002")),
        _ => Err(no_answer()),
    });
    for minion in ["web1", "web2", "web3"] {
        rig.tell("1", minion);
    }
    for _ in 0..3 {
        assert_eq!(rig.next(), "1");
    }
    rig.wait_for("two to wait", |rig| rig.reactor.handle().status().open == 2);
    // One is the start of the call that was answered, and one of only one of the others.
    rig.salts_runner("20260101000000000002", "1");
    rig.salts_runner("20260101000000000003", "1");
    rig.wind_until_through();
    let mut outcomes = rig.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, ["found", "started", "unknown"]);
    let mut jids = rig.jids();
    jids.retain(|jid| !jid.is_empty());
    jids.sort();
    assert_eq!(jids, ["20260101000000000002", "20260101000000000003"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

/// A copy of what a kill would leave behind while a runner has been asked for and the master has not answered.
fn killed_while_a_runner_is_asked_for(before: impl Fn(&Rig)) -> Arc<tempfile::TempDir> {
    let gate: Arc<Policy> = Arc::default();
    gate.shut(true);
    let waits = gate.clone();
    let rig = Rig::start(runners(&["?"]), Settings::default(), move |_, times| {
        if times > 0 {
            waits.wait();
        }
        Ok(started("20260101000000000001"))
    });
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    before(&rig);
    let copy = rig.as_after_a_kill();
    gate.shut(false);
    rig.wait_until_through();
    rig.stop();
    copy
}

#[test]
fn a_kill_before_the_answer_started_a_runner_twice() {
    let no_start = killed_while_a_runner_is_asked_for(|_| {});
    let rig =
        Rig::start_in(no_start, NOW + SECOND, runners(&["?"]), Settings::default(), |_, _| Ok(started("2")));
    rig.wind_until_through();
    assert_eq!(rig.outcomes(), ["unknown"]);
    assert_eq!(rig.stop().1, [""; 0]);
    let start = killed_while_a_runner_is_asked_for(|rig| {
        rig.salts_runner("20260101000000000001", "1");
        rig.wait_for("the start to be read", |rig| rig.reactor.handle().status().behind == 0);
    });
    let rig =
        Rig::start_in(start, NOW + SECOND, runners(&["?"]), Settings::default(), |_, _| Ok(started("2")));
    rig.wind_until_through();
    assert_eq!(
        (rig.outcomes(), rig.jids()),
        (vec!["found".to_owned()], vec!["20260101000000000001".to_owned()])
    );
    assert_eq!(rig.stop().1, [""; 0]);
}

/// What is made of a job whose answer was lost, when the log has this of it.
fn found_by(tag: impl Fn(&str) -> String, pairs: &[(&str, &str)]) -> (Vec<String>, usize) {
    let rig =
        Rig::start(
            rules(&["?"]),
            Settings::default(),
            |_, times| {
                if times < 2 { Err(no_answer()) } else { Ok(yes()) }
            },
        );
    rig.tell("a", "web1");
    let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    rig.wait_for_the_pause();
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| (*key, if *key == "jid" { &*jid } else { *value })).collect();
    rig.fires(&tag(&jid), &pairs);
    rig.clock.wind(SECOND);
    rig.wait_for("the record", |rig| rig.history().len() == 1);
    let outcomes = rig.outcomes();
    let again: Vec<_> = rig.asked.try_iter().collect();
    assert!(again.iter().all(|(_, other)| *other == jid), "the same job: {again:?}");
    rig.reactor.stop();
    (outcomes, again.len())
}

#[test]
fn a_job_that_was_never_published_counted_as_found() {
    let error: &[_] = &[("jid", ""), ("fun", "test.arg"), ("tgt", "web1")];
    assert_eq!(
        found_by(|jid| format!("salt/job/{jid}/error"), error),
        (vec!["published".to_owned()], 1),
        "the master refused it"
    );
    assert_eq!(
        found_by(|jid| format!("salt/job/{jid}/new"), error),
        (vec!["published".to_owned()], 1),
        "the master died before it sent it"
    );
}

#[test]
fn a_job_that_is_seen_on_its_way_or_answered_is_not_published_again() {
    let found = (vec!["found".to_owned()], 0);
    assert_eq!(found_by(|jid| format!("salt/job/{jid}/publish"), &[("enc", "aes")]), found);
    let pairs: &[_] =
        &[("cmd", "_return"), ("id", "web1"), ("jid", ""), ("return", "x"), ("fun", "test.arg")];
    assert_eq!(found_by(|jid| format!("salt/job/{jid}/ret/web1"), pairs), found);
}

#[test]
fn a_rendered_call_that_waited_longer_than_age_max_was_made() {
    let rig = Rig::start(rules(&["?"]), Settings::default(), |_, times| {
        if times < 3 { Err(unreachable()) } else { Ok(yes()) }
    });
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.clock.wind(3_601 * SECOND);
    rig.wind_until_through();
    assert_eq!(rig.history(), [("1".to_owned(), "old".to_owned(), Vec::new())]);
    assert_eq!(rig.stop().1, [""; 0]);
}

fn settings(shadow: bool) -> Settings {
    Settings { shadow, ..Settings::default() }
}

#[test]
fn a_rule_that_was_removed_and_put_back_reacted_to_what_came_in_between() {
    // The log is read only up to the event that waits for its rule's template.
    let rig = Rig::start(rules(&["a", "b"]), Settings::default(), |_, _| Ok(yes()));
    rig.tell("a", "web1");
    assert_eq!(rig.next(), "a");
    rig.wait_until_through();
    let (dir, _) = rig.stop();
    let rig = Rig::start_in(dir.clone(), NOW, rules(&["b"]), Settings::default(), |_, _| Ok(yes()));
    rig.wait_until_through();
    // What a kill would leave behind: a checkpoint that is older than the event.
    let copy = Arc::new(tempfile::tempdir().unwrap());
    std::fs::copy(dir.path().join("REACTOR"), copy.path().join("REACTOR")).unwrap();
    rig.tell("a", "web1");
    rig.wait_until_through();
    let (dir, asked) = rig.stop();
    assert_eq!(asked, [""; 0]);
    std::fs::copy(copy.path().join("REACTOR"), dir.path().join("REACTOR")).unwrap();
    let rig = Rig::start_in(dir, NOW, rules(&["a", "b"]), Settings::default(), |_, _| Ok(yes()));
    rig.tell("b", "web1");
    assert_eq!(rig.next(), "b");
    rig.wait_until_through();
    rig.tell("a", "web1");
    assert_eq!(rig.next(), "a");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn the_end_of_shadow_acted_on_events_that_salts_reactor_had_acted_on() {
    let reacting = rules(&["slow/*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, settings(true), |_, _| Ok(yes()));
    // The first is being rendered, the second waits for it.
    rig.tell("slow/1", "web1");
    rig.tell("slow/2", "web1");
    rig.wait_for("both to be open", |rig| rig.reactor.handle().status().open == 2);
    rig.reactor.handle().change(Arc::new(rules(&["slow/*"])), settings(false));
    slow.shut(false);
    rig.wait_until_through();
    assert_eq!(rig.outcomes(), ["shadowed", "shadowed"]);
    rig.tell("slow/3", "web1");
    assert_eq!(rig.next(), "slow/3");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_start_that_ends_shadow_acted_on_events_that_salts_reactor_had_acted_on() {
    let reacting = rules(&["slow/*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, settings(true), |_, _| Ok(yes()));
    rig.tell("slow/1", "web1");
    rig.wait_for("it to be open", |rig| rig.reactor.handle().status().open == 1);
    let copy = rig.as_after_a_kill();
    slow.shut(false);
    rig.stop();
    let rig = Rig::start_in(copy, NOW, rules(&["slow/*"]), settings(false), |_, _| Ok(yes()));
    rig.wait_until_through();
    assert_eq!(rig.outcomes(), ["shadowed"]);
    rig.tell("slow/2", "web1");
    assert_eq!(rig.next(), "slow/2");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_rule_that_says_so_calls_a_runner_again_after_a_lost_answer_but_not_one_that_is_seen_to_start() {
    let again = || with(|options| options.retry_unanswered = true);
    let answers = |_: &Call, times| if times < 2 { Err(no_answer()) } else { Ok(started("2")) };
    let rig = Rig::start(runners(&["?"]), again(), answers);
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.clock.wind(SECOND);
    assert_eq!(rig.next(), "1");
    rig.wait_until_through();
    assert_eq!((rig.outcomes(), rig.jids()), (vec!["started".to_owned()], vec!["2".to_owned()]));
    rig.stop();
    let rig = Rig::start(runners(&["?"]), again(), answers);
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.salts_runner("20260101000000000001", "1");
    rig.wait_for("the start to be read", |rig| rig.reactor.handle().status().behind == 0);
    rig.wind_until_through();
    assert_eq!(rig.outcomes(), ["found"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_job_whose_answers_are_all_lost_is_unknown_and_was_dead_lettered_as_if_it_had_not_been_published() {
    let settings = with(|options| options.tries = 2);
    let rig = Rig::start(rules(&["?"]), settings, |_, _| Err(no_answer()));
    rig.tell("1", "web1");
    let jids = [(); 2].map(|()| {
        let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
        rig.wait_for("the pause, or the end", |rig| {
            let handle = rig.reactor.handle();
            handle.next_at().is_some() || handle.status().open == 0
        });
        rig.clock.wind(SECOND);
        jid
    });
    assert_eq!(jids[0], jids[1], "the same job");
    rig.wait_until_through();
    assert_eq!(rig.outcomes(), ["unknown"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_call_that_was_sent_and_is_too_old_by_now_is_not_sent_again() {
    let rig = Rig::start(rules(&["?"]), Settings::default(), |_, _| Err(no_answer()));
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.clock.wind(3_601 * SECOND);
    rig.wind_until_through();
    assert_eq!(rig.outcomes(), ["unknown"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn a_call_that_was_sent_before_shadow_began_is_not_recorded_as_not_made() {
    let rig = Rig::start(rules(&["?"]), settings(false), |_, _| Err(no_answer()));
    rig.tell("1", "web1");
    assert_eq!(rig.next(), "1");
    rig.wait_for_the_pause();
    rig.reactor.handle().change(Arc::new(rules(&["?"])), settings(true));
    rig.wind_until_through();
    assert_eq!(rig.outcomes(), ["unknown"]);
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_unless_the_job_is_seen_on_its_way() {
    let rig = Rig::start(rules(&["a", "b"]), Settings::default(), |_, times| {
        if times == 1 { Err(no_answer()) } else { Ok(yes()) }
    });
    rig.tell("a", "web1");
    let (_, jid) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    rig.tell(&format!("salt/job/{jid}/publish"), "");
    rig.wait_for("the pause", |rig| rig.reactor.handle().next_at().is_some());
    rig.clock.wind(SECOND);
    rig.wait_until_through();
    assert_eq!(rig.history(), [("a".to_owned(), "done".to_owned(), vec!["found".to_owned()])]);
    rig.tell("b", "web1");
    let (_, first) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    rig.wait_for("the pause", |rig| rig.reactor.handle().next_at().is_some());
    rig.clock.wind(SECOND);
    let (_, second) = rig.asked.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(first, second, "it is the same job");
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

/// A directory whose log has the event `slow/1` and further ones, and whose checkpoint is older; nothing was done about them.
fn with_unread_events(user: &str, tags: &[String]) -> Arc<tempfile::TempDir> {
    let reacting = rules(&["*"]);
    let slow = reacting.slow.clone();
    slow.shut(true);
    let rig = Rig::start(reacting, Settings::default(), |_, _| Ok(yes()));
    let before = rig.as_after_a_kill();
    rig.tell("slow/1", "web1");
    for tag in tags {
        rig.tell_by(Source::Bus, tag, "web1", user);
    }
    let after = rig.as_after_a_kill();
    std::fs::copy(before.path().join("REACTOR"), after.path().join("REACTOR")).unwrap();
    slow.shut(false);
    rig.stop();
    after
}

/// A reactor that has read `slow/1`, and waits before the next event.
fn in_the_middle_of_the_log(dir: Arc<tempfile::TempDir>) -> (Rig, Arc<Policy>) {
    let reacting = rules(&["*"]);
    let held = reacting.held.clone();
    held.shut(true);
    let rig = Rig::start_in(dir, NOW, reacting, Settings::default(), |_, _| Ok(yes()));
    rig.wait_for("the first event to be open", |rig| rig.reactor.handle().status().open == 1);
    (rig, held)
}

#[test]
fn a_checkpoint_that_was_written_while_the_log_was_read_could_not_be_read_and_lost_what_was_open() {
    let (rig, held) = in_the_middle_of_the_log(with_unread_events("root", &["held/2".to_owned()]));
    let file = rig.dir.path().join("REACTOR");
    rig.wait_for("a checkpoint_file", |_| std::fs::read_to_string(&file).unwrap().contains("\nopen "));
    let copy = rig.as_after_a_kill();
    held.shut(false);
    rig.stop();
    let rig = Rig::start_in(copy, NOW, rules(&["*"]), Settings::default(), |_, _| Ok(yes()));
    assert_eq!([rig.next(), rig.next()], ["slow/1", "held/2"]);
    rig.wait_until_through();
    assert_eq!(rig.stop().1, [""; 0]);
}

#[test]
fn an_event_that_came_while_a_start_read_the_log_was_reacted_to_twice() {
    // Together they are more than is read at once.
    let (long, tags) = ("u".repeat(REACTOR_WAVE_BYTES / 8), (2..12).map(|n| format!("held/{n}")));
    let mut tags: Vec<_> = tags.collect();
    let (rig, held) = in_the_middle_of_the_log(with_unread_events(&long, &tags));
    rig.tell("late", "db1");
    held.shut(false);
    rig.wait_until_through();
    let mut asked = rig.stop().1;
    asked.sort();
    tags.extend(["late", "slow/1"].map(str::to_owned));
    tags.sort();
    assert_eq!(asked, tags);
}
