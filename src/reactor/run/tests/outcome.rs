//! Outcomes of calls: missing and late responses, jobs that were announced but not published; and positions of checkpoints.

use super::*;
use crate::base::limits::{REACTOR_START_TIME, REACTOR_WAVE_BYTES};
use crate::reactor::run::checkpoint::saved::Saved;

impl Harness {
    /// A copy of the files as a kill at this moment would leave them.
    pub(super) fn as_after_a_kill(&self) -> Arc<tempfile::TempDir> {
        // A file that is replaced during the copy may vanish.
        let copied = || {
            let copy = Arc::new(tempfile::tempdir().unwrap());
            let (from, to) = (self.dir.path().join("."), copy.path());
            let status = std::process::Command::new("cp")
                .arg("-a")
                .arg(from)
                .arg(to)
                .status();
            status.unwrap().success().then_some(copy)
        };
        crate::testkit::wait_for("a copy", copied)
    }
}

fn started(jid: &str) -> Answer {
    Answer::Started {
        jid: jid.to_owned(),
        tag: format!("salt/run/{jid}"),
    }
}

impl Harness {
    /// Jids of the calls in the records, the earliest first.
    fn jids(&self) -> Vec<String> {
        let of = |entry: &StoredEntry| -> Vec<String> {
            let calls = elements(get(&entry.body, "calls").unwrap_or_default());
            calls
                .filter_map(|call| as_text(get(call, "jid")?))
                .map(str::to_owned)
                .collect()
        };
        self.records().iter().flat_map(of).collect()
    }

    /// Fires an event whose first try pauses.
    pub(super) fn fire_until_pause(&self, tag: &str) {
        self.fire_event(tag, "web1");
        assert_eq!(self.next(), tag);
        self.wait_for_the_pause();
    }

    pub(super) fn outcomes(&self) -> Vec<String> {
        self.history()
            .into_iter()
            .flat_map(|(_, _, calls)| calls)
            .collect()
    }
}

#[test]
fn a_busy_master_runs_a_runner_once() {
    let harness = Harness::start(runners(&["?"]), Settings::default(), silent);
    harness.fire_until_pause("1");
    harness.salts_runner("20260101000000000001", "1");
    harness.wind_until_done();
    assert_eq!(
        (harness.outcomes(), harness.jids()),
        (
            vec!["found".to_owned()],
            vec!["20260101000000000001".to_owned()]
        )
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_runner_without_a_start_event_is_unknown_and_not_repeated() {
    let harness = Harness::start(runners(&["?"]), Settings::default(), silent);
    harness.fire_until_pause("1");
    // Starts of other calls: before the request, with other arguments, by a user.
    harness.salts_runner("20260101000000000001", "2");
    harness.fire_texts(
        "salt/run/20260101000000000002/new",
        &[("fun", "runner.test.arg"), ("user", "root")],
    );
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["unknown"]);
    assert_eq!(harness.metrics.reactor_calls_unknown.get(), 1);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn two_equal_calls_claim_different_starts() {
    let harness = Harness::start(
        runners(&["?"]),
        Settings::default(),
        |_, times| match times {
            0 => Ok(yes()),
            2 => Ok(started("20260101000000000002")),
            _ => Err(no_answer()),
        },
    );
    for minion in ["web1", "web2", "web3"] {
        harness.fire_event("1", minion);
    }
    for _ in 0..3 {
        assert_eq!(harness.next(), "1");
    }
    harness.wait_for_open(2);
    // The start of the answered call, and the start of one of the two others.
    harness.salts_runner("20260101000000000002", "1");
    harness.salts_runner("20260101000000000003", "1");
    harness.wind_until_done();
    let mut outcomes = harness.outcomes();
    outcomes.sort();
    assert_eq!(outcomes, ["found", "started", "unknown"]);
    let mut jids = harness.jids();
    jids.retain(|jid| !jid.is_empty());
    jids.sort();
    assert_eq!(jids, ["20260101000000000002", "20260101000000000003"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_start_that_the_reactor_has_not_read_yet_is_waited_for() {
    let rules = runners(&["?"]);
    let held = rules.held.clone();
    let harness = Harness::start(rules, Settings::default(), silent);
    harness.fire_until_pause("1");
    // The reactor stops reading before the start.
    held.shut(true);
    harness.fire_event("held/x", "web1");
    harness.salts_runner("20260101000000000001", "1");
    let end = harness
        .clock
        .now()
        .after(REACTOR_START_TIME)
        .after(REACTOR_START_TIME);
    harness.wait_for("the end of the search's time", |harness| {
        harness.clock.wind(SECOND);
        harness.next_at().is_some_and(|until| until > end)
    });
    assert_eq!(harness.outcomes(), [""; 0]);
    held.shut(false);
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["found"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

/// A copy of the files as a kill would leave them while a request for a runner has no response.
fn killed_while_a_runner_is_asked_for(before: impl Fn(&Harness)) -> Arc<tempfile::TempDir> {
    let barrier: Arc<Barrier> = Arc::default();
    barrier.shut(true);
    let waits = barrier.clone();
    let harness = Harness::start(runners(&["?"]), Settings::default(), move |_, times| {
        if times > 0 {
            waits.wait();
        }
        Ok(started("20260101000000000001"))
    });
    harness.fire_event("1", "web1");
    assert_eq!(harness.next(), "1");
    before(&harness);
    let copy = harness.as_after_a_kill();
    barrier.shut(false);
    harness.wait_until_done();
    harness.stop();
    copy
}

#[test]
fn a_kill_before_the_answer_does_not_repeat_a_runner() {
    let no_start = killed_while_a_runner_is_asked_for(|_| {});
    let harness = Harness::start_in(
        no_start,
        NOW + SECOND,
        runners(&["?"]),
        Settings::default(),
        |_, _| Ok(started("2")),
    );
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["unknown"]);
    assert_eq!(harness.stop().1, [""; 0]);
    let start = killed_while_a_runner_is_asked_for(|harness| {
        harness.salts_runner("20260101000000000001", "1");
        harness.wait_for("the start to be read", |harness| {
            harness.status().behind == 0
        });
    });
    let harness = Harness::start_in(
        start,
        NOW + SECOND,
        runners(&["?"]),
        Settings::default(),
        |_, _| Ok(started("2")),
    );
    harness.wind_until_done();
    assert_eq!(
        (harness.outcomes(), harness.jids()),
        (
            vec!["found".to_owned()],
            vec!["20260101000000000001".to_owned()]
        )
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

/// The outcome of a job whose answer was lost, if the log contains this entry.
fn found_by(tag: impl Fn(&str) -> String, pairs: &[(&str, &str)]) -> (Vec<String>, usize) {
    let harness = Harness::start(rules(&["?"]), Settings::default(), |_, times| {
        if times < 2 {
            Err(no_answer())
        } else {
            Ok(yes())
        }
    });
    harness.fire_event("a", "web1");
    let (_, jid) = harness.next_request();
    harness.wait_for_the_pause();
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| (*key, if *key == "jid" { &*jid } else { *value }))
        .collect();
    harness.fire_texts(&tag(&jid), &pairs);
    harness.clock.wind(SECOND);
    harness.wait_for("the record", |harness| harness.history().len() == 1);
    let outcomes = harness.outcomes();
    let again: Vec<_> = harness.asked.try_iter().collect();
    assert!(
        again.iter().all(|(_, other)| *other == jid),
        "the same job: {again:?}"
    );
    harness.reactor.stop();
    (outcomes, again.len())
}

#[test]
fn a_job_that_was_not_published_is_published_again() {
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
fn a_published_or_returned_job_is_not_published_again() {
    let found = (vec!["found".to_owned()], 0);
    assert_eq!(
        found_by(|jid| format!("salt/job/{jid}/publish"), &[("enc", "aes")]),
        found
    );
    let pairs: &[_] = &[
        ("cmd", "_return"),
        ("id", "web1"),
        ("jid", ""),
        ("return", "x"),
        ("fun", "test.arg"),
    ];
    assert_eq!(
        found_by(|jid| format!("salt/job/{jid}/ret/web1"), pairs),
        found
    );
}

#[test]
fn a_rendered_call_older_than_age_max_is_skipped() {
    let harness = Harness::start(rules(&["?"]), Settings::default(), |_, times| {
        if times < 3 {
            Err(unreachable())
        } else {
            Ok(yes())
        }
    });
    harness.fire_until_pause("1");
    harness.clock.wind(3_601 * SECOND);
    harness.wind_until_done();
    assert_eq!(
        harness.history(),
        [("1".to_owned(), "too_old".to_owned(), Vec::new())]
    );
    assert_eq!(harness.stop().1, [""; 0]);
}

fn settings(shadow: bool) -> Settings {
    Settings {
        shadow,
        ..Settings::default()
    }
}

#[test]
fn a_rule_that_is_removed_and_added_again_ignores_the_events_in_between() {
    // The log is read only up to the event whose template blocks.
    let harness = Harness::start(rules(&["a", "b"]), Settings::default(), |_, _| Ok(yes()));
    harness.fire_event("a", "web1");
    assert_eq!(harness.next(), "a");
    harness.wait_until_done();
    let (dir, _) = harness.stop();
    let harness = Harness::start_in(
        dir.clone(),
        NOW,
        rules(&["b"]),
        Settings::default(),
        |_, _| Ok(yes()),
    );
    harness.wait_until_done();
    // After a kill the checkpoint is older than the event.
    let copy = Arc::new(tempfile::tempdir().unwrap());
    copy_settings(dir.path(), copy.path());
    harness.fire_event("a", "web1");
    harness.wait_until_done();
    let (dir, asked) = harness.stop();
    assert_eq!(asked, [""; 0]);
    copy_settings(copy.path(), dir.path());
    let harness = Harness::start_in(dir, NOW, rules(&["a", "b"]), Settings::default(), |_, _| {
        Ok(yes())
    });
    harness.fire_event("b", "web1");
    assert_eq!(harness.next(), "b");
    harness.wait_until_done();
    harness.fire_event("a", "web1");
    assert_eq!(harness.next(), "a");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn after_shadow_earlier_events_cause_no_calls() {
    let (reacting, slow) = slow(&["slow/*"]);
    let harness = Harness::start(reacting, settings(true), |_, _| Ok(yes()));
    // The first is being rendered, the second waits for it.
    harness.fire_event("slow/1", "web1");
    harness.fire_event("slow/2", "web1");
    harness.wait_for_open(2);
    harness.wait_for_rendering(&slow);
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["slow/*"])), settings(false));
    slow.shut(false);
    harness.wait_until_done();
    assert_eq!(harness.outcomes(), ["shadowed", "shadowed"]);
    harness.fire_event("slow/3", "web1");
    assert_eq!(harness.next(), "slow/3");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn after_a_restart_that_ends_shadow_earlier_events_cause_no_calls() {
    let (reacting, slow) = slow(&["slow/*"]);
    let harness = Harness::start(reacting, settings(true), |_, _| Ok(yes()));
    harness.fire_event("slow/1", "web1");
    harness.wait_for_open(1);
    let copy = harness.as_after_a_kill();
    slow.shut(false);
    harness.stop();
    let harness = Harness::start_in(copy, NOW, rules(&["slow/*"]), settings(false), |_, _| {
        Ok(yes())
    });
    harness.wait_until_done();
    assert_eq!(harness.outcomes(), ["shadowed"]);
    harness.fire_event("slow/2", "web1");
    assert_eq!(harness.next(), "slow/2");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn retry_unanswered_repeats_a_runner_only_without_a_start_event() {
    let again = || with(|options| options.retry_unanswered = true);
    let answers = |_: &Call, times| {
        if times < 2 {
            Err(no_answer())
        } else {
            Ok(started("2"))
        }
    };
    let harness = Harness::start(runners(&["?"]), again(), answers);
    harness.fire_until_pause("1");
    harness.clock.wind(SECOND);
    assert_eq!(harness.next(), "1");
    harness.wait_until_done();
    assert_eq!(
        (harness.outcomes(), harness.jids()),
        (vec!["started".to_owned()], vec!["2".to_owned()])
    );
    harness.stop();
    let harness = Harness::start(runners(&["?"]), again(), answers);
    harness.fire_until_pause("1");
    harness.salts_runner("20260101000000000001", "1");
    harness.wait_for("the start to be read", |harness| {
        harness.status().behind == 0
    });
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["found"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_job_without_any_answer_is_unknown() {
    let settings = with(|options| options.tries = 2);
    let harness = Harness::start(rules(&["?"]), settings, |_, _| Err(no_answer()));
    harness.fire_event("1", "web1");
    let jids = [(); 2].map(|()| {
        let (_, jid) = harness.next_request();
        harness.wait_for("the pause, or the end", |harness| {
            harness.next_at().is_some() || harness.status().open == 0
        });
        harness.clock.wind(SECOND);
        jid
    });
    assert_eq!(jids[0], jids[1], "the same job");
    harness.wait_until_done();
    assert_eq!(harness.outcomes(), ["unknown"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_sent_call_that_became_too_old_is_not_repeated() {
    let harness = Harness::start(rules(&["?"]), Settings::default(), |_, _| Err(no_answer()));
    harness.fire_until_pause("1");
    harness.clock.wind(3_601 * SECOND);
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["unknown"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_call_sent_before_shadow_mode_is_recorded_as_unknown() {
    let harness = Harness::start(rules(&["?"]), settings(false), |_, _| Err(no_answer()));
    harness.fire_until_pause("1");
    harness
        .reactor
        .handle()
        .change(Arc::new(rules(&["?"])), settings(true));
    harness.wind_until_done();
    assert_eq!(harness.outcomes(), ["unknown"]);
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_job_with_a_lost_answer_is_repeated_unless_it_was_published() {
    let harness = Harness::start(rules(&["a", "b"]), Settings::default(), |_, times| {
        if times == 1 {
            Err(no_answer())
        } else {
            Ok(yes())
        }
    });
    harness.fire_event("a", "web1");
    let (_, jid) = harness.next_request();
    harness.fire_event(&format!("salt/job/{jid}/publish"), "");
    harness.wait_for_the_pause();
    harness.clock.wind(SECOND);
    harness.wait_until_done();
    assert_eq!(harness.history(), [outcome("a", "done", "found")]);
    harness.fire_event("b", "web1");
    let (_, first) = harness.next_request();
    harness.wait_for_the_pause();
    harness.clock.wind(SECOND);
    let (_, second) = harness.next_request();
    assert_eq!(first, second, "the same job");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

/// A directory with unhandled events in the log, `slow/1` and others, and an older checkpoint.
pub(super) fn with_unread_events(user: &str, tags: &[String]) -> Arc<tempfile::TempDir> {
    let (reacting, slow) = slow(&["*"]);
    let harness = Harness::start(reacting, Settings::default(), |_, _| Ok(yes()));
    let before = harness.as_after_a_kill();
    harness.fire_event("slow/1", "web1");
    for tag in tags {
        harness.fire_from(Source::Bus, tag, "web1", user);
    }
    let after = harness.as_after_a_kill();
    copy_settings(before.path(), after.path());
    slow.shut(false);
    harness.stop();
    after
}

/// A reactor that has read `slow/1`, and blocks before the next event.
fn in_the_middle_of_the_log(dir: Arc<tempfile::TempDir>) -> (Harness, Arc<Barrier>) {
    let reacting = rules(&["*"]);
    let held = reacting.held.clone();
    held.shut(true);
    let harness = Harness::start_in(dir, NOW, reacting, Settings::default(), |_, _| Ok(yes()));
    harness.wait_for_open(1);
    (harness, held)
}

#[test]
fn a_checkpoint_written_while_the_log_is_read_is_valid() {
    let (harness, held) =
        in_the_middle_of_the_log(with_unread_events("root", &["held/2".to_owned()]));
    harness.wait_for("a checkpoint", |harness| {
        let settings = harness.store.settings();
        let (_, checkpoint) = Saved::load(settings, SeqNo(u64::MAX)).unwrap().unwrap();
        checkpoint.open.len() > 0
    });
    let copy = harness.as_after_a_kill();
    held.shut(false);
    harness.stop();
    let harness = Harness::start_in(copy, NOW, rules(&["*"]), Settings::default(), |_, _| {
        Ok(yes())
    });
    assert_eq!([harness.next(), harness.next()], ["slow/1", "held/2"]);
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn an_event_that_arrives_during_a_start_is_handled_once() {
    // Together they exceed a single read.
    let (long, tags) = (
        "u".repeat(REACTOR_WAVE_BYTES / 8),
        (2..12).map(|n| format!("held/{n}")),
    );
    let mut tags: Vec<_> = tags.collect();
    let (harness, held) = in_the_middle_of_the_log(with_unread_events(&long, &tags));
    harness.fire_event("late", "db1");
    held.shut(false);
    harness.wait_until_done();
    let mut asked = harness.stop().1;
    asked.sort();
    tags.extend(["late", "slow/1"].map(str::to_owned));
    tags.sort();
    assert_eq!(asked, tags);
}

#[test]
fn an_open_event_that_cannot_be_read_is_queued_once_it_can() {
    let harness = Harness::start(rules(&["a", "b"]), Settings::default(), |_, _| Ok(yes()));
    for tag in ["a", "b"] {
        harness.fire_event(tag, "web1");
        assert_eq!(harness.next(), tag);
    }
    harness.wait_until_done();
    let follower = &harness.reactor.follower;
    let mut seqs = Vec::new();
    let note = |row: crate::store::Followed<'_>| {
        seqs.extend(events::is_bus_event(&row).then_some(row.seq));
    };
    harness
        .store
        .follow(events::is_of_interest, SeqNo(1), REACTOR_WAVE_BYTES, note)
        .unwrap();
    // As after a restart with these events open.
    for seq in &seqs {
        follower.keeper.checkpoint().opened(*seq, 1);
    }
    let depths = HashMap::new();
    let events = |from| follower.open_events(from);
    let unreadable = |from| {
        if from == seqs[0] {
            Err(crate::store::StoreError::Broken("disk"))
        } else {
            events(from)
        }
    };
    let unread = follower.resume(seqs.clone(), &depths, unreadable);
    assert_eq!(
        (
            unread.as_slice(),
            harness.metrics.reactor_event_reads_failed.get()
        ),
        (&seqs[..1], 1)
    );
    assert_eq!(harness.next(), "b");
    harness.wait_for_open(1);
    assert_eq!(follower.resume(unread, &depths, events), []);
    assert_eq!(harness.next(), "a");
    harness.wait_until_done();
    assert_eq!(harness.stop().1, [""; 0]);
}

#[test]
fn a_mark_that_is_still_being_stored_is_not_written_again() {
    let settings = with(|options| options.at_most_once = true);
    let harness = Harness::start(rules(&["?"]), settings.clone(), |_, _| Ok(yes()));
    let worker = &harness.reactor.worker;
    let task = super::super::scheduler::task::Task::new(
        Event::default(),
        vec!["?".into()],
        1,
        settings.plain.clone(),
    );
    let plan = worker.in_use.rules().react(&task.event, &task.rules);
    let made = crate::reactor::CallRecord {
        call: plan.calls[0].clone(),
        jid: String::new(),
        tries: 0,
        sent: Micros(NOW),
        took_us: 0,
        outcome: crate::reactor::CallOutcome::Shadowed,
    };
    let mut progress =
        super::super::scheduler::task::TaskProgress::of(&task.event, Micros(NOW), plan, false);

    // The first attempt gave up waiting for this mark.
    let batch = record::mark(
        &task.event,
        &task.rules,
        1,
        record::Mark::Started,
        7,
        Micros(NOW),
    );
    progress.mark = Some(worker.calls.recorder.submit(batch).unwrap());
    let records = || {
        let mut count = 0;
        let row = |row: crate::store::Followed<'_>| {
            count += usize::from(get(row.body, "keys").is_some());
        };
        let all = |_, _| true;
        let from = harness.store.follow(all, SeqNo(1), usize::MAX, row);
        from.unwrap();
        count
    };
    worker
        .calls
        .store_mark(&task, &mut progress, &made, 7)
        .unwrap();
    assert!(progress.start_recorded && progress.mark.is_none());
    assert_eq!(records(), 1);

    // The next attempt, after a withdrawal, needs a mark of its own.
    worker
        .calls
        .store_mark(&task, &mut progress, &made, 7)
        .unwrap();
    assert_eq!(records(), 2);
    harness.stop();
}
