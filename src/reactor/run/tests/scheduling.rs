//! The scheduler: order of events and memory limits.

use super::super::scheduler::queues::QueueItem;
use super::super::scheduler::task::{Task, TaskProgress};
use super::super::scheduler::throttle::Admission;
use super::super::scheduler::{NextAction, Scheduler, Slot};
use super::*;
use crate::base::limits::{REACTOR_MINION_TASKS_MAX, REACTOR_QUEUES_MAX, REACTOR_RULE_TASKS_MAX};
use crate::model::{RuleOrder, RunnerLimits};

fn task(seq: u64, rule: &str, minion: &str) -> Task {
    let event = Event {
        seq: SeqNo(seq),
        at: Micros(NOW),
        tag: format!("{rule}/{seq}"),
        body: Arc::from(&b"\x80"[..]),
        minion: minion.to_owned(),
        ..Event::default()
    };
    Task::new(event, vec![rule.into()], 1, Arc::default())
}

fn scheduler(settings: Settings) -> Scheduler {
    let mut scheduler = Scheduler::default();
    scheduler.configure(Arc::new(settings));
    scheduler
}

/// All items that may be handled now.
fn turns(scheduler: &mut Scheduler) -> Vec<(QueueItem, Slot)> {
    std::iter::from_fn(|| match scheduler.next(Micros(NOW)) {
        NextAction::Run(item, slot) => Some((item, slot)),
        NextAction::Wait(_) => None,
    })
    .collect()
}

fn seqs(turns: &[(QueueItem, Slot)]) -> Vec<u64> {
    turns.iter().map(|(item, _)| item.seq().0).collect()
}

/// The item after a failed try.
fn rendered(item: QueueItem) -> QueueItem {
    let QueueItem::Task(mut task) = item else {
        panic!("not in memory")
    };
    let progress = TaskProgress::of(&task.event, Micros(NOW), ReactionPlan::default(), false);
    task.progress = Some(Box::new(TaskProgress {
        tries: 1,
        ..progress
    }));
    QueueItem::Task(task)
}

#[test]
fn the_option_order_decides_which_events_wait_for_each_other() {
    for (order, at_once) in [
        (RuleOrder::Rule, vec![1]),
        (RuleOrder::Minion, vec![1, 2, 4]),
        (RuleOrder::None, vec![1, 2, 3, 4, 5]),
    ] {
        let options = RuleOptions {
            rule: "a".into(),
            order,
            ..RuleOptions::default()
        };
        let mut scheduler = scheduler(Settings {
            rules: vec![Arc::new(options)],
            ..Settings::default()
        });
        for (seq, minion) in [(1, "x"), (2, "y"), (3, "x"), (4, ""), (5, "")] {
            assert!(
                scheduler
                    .offer(task(seq, "a", minion), Micros(NOW))
                    .is_none()
            );
        }
        let mut started = turns(&mut scheduler);
        assert_eq!(seqs(&started), at_once, "{order:?}");
        let mut all = seqs(&started);
        while !started.is_empty() {
            for (_, slot) in &started {
                scheduler.done(slot);
            }
            started = turns(&mut scheduler);
            all.extend(seqs(&started));
        }
        all.sort_unstable();
        assert_eq!((all, scheduler.waiting()), (vec![1, 2, 3, 4, 5], 0));
    }
}

#[test]
fn a_throttled_reaction_is_checked_again_after_the_rate_was_removed() {
    let mut scheduler = scheduler(super::load::rated(3600));
    scheduler.put(task(1, "rated/*", "web1"));
    let (item, slot) = turns(&mut scheduler).remove(0);
    scheduler.configure(Arc::default());
    scheduler.throttle(item, &slot, Micros(NOW + SECOND));
    assert_eq!(seqs(&turns(&mut scheduler)), [1]);
}

#[test]
fn rules_take_turns_despite_a_backlog_of_one() {
    let mut scheduler = scheduler(Settings::default());
    for seq in 0..100 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    scheduler.put(task(100, "b", "web1"));
    let started = turns(&mut scheduler);
    assert_eq!(started[1].0.seq(), SeqNo(100));
    assert_eq!(started.len(), 9, "as many of a rule as its concurrency");
}

#[test]
fn events_beyond_the_limits_are_numbers_and_keep_their_order() {
    let options = RuleOptions {
        rule: "a".into(),
        concurrency: Some(16),
        ..RuleOptions::default()
    };
    let mut scheduler = scheduler(Settings {
        rules: vec![Arc::new(options)],
        ..Settings::default()
    });
    let minions = REACTOR_QUEUES_MAX as u64 + 500;
    let most = 2 * minions + 5_000;
    let minion_of = |seq: u64| if seq < 5_000 { 0 } else { seq % minions };
    for seq in 0..most {
        scheduler.put(task(seq, "a", &format!("web{}", minion_of(seq))));
    }
    let (mut in_memory, mut of_first, mut last) = (0, 0, HashMap::new());
    let mut count = 0;
    loop {
        let started = turns(&mut scheduler);
        if started.is_empty() {
            break;
        }
        for (item, slot) in started {
            let seq = item.seq().0;
            let minion = minion_of(seq);
            if matches!(item, QueueItem::Task(_)) {
                in_memory += 1;
                of_first += usize::from(minion == 0);
            }
            assert!(
                last.insert(minion, seq).is_none_or(|last| last < seq),
                "{seq} of {minion}"
            );
            count += 1;
            scheduler.done(&slot);
        }
    }
    assert_eq!((count, scheduler.waiting()), (most, 0));
    assert!(in_memory <= REACTOR_RULE_TASKS_MAX, "{in_memory}");
    assert!(of_first <= REACTOR_MINION_TASKS_MAX, "{of_first}");
}

#[test]
fn a_rule_starts_no_more_waiting_runners_than_the_master_s_queue_allows() {
    let runners = RunnerLimits {
        threads: 2,
        waiting: Some(3),
    };
    let mut scheduler = scheduler(Settings {
        runners,
        ..Settings::default()
    });
    for seq in 0..20 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    let (mut under_way, mut waiting) = (Vec::new(), 0);
    while let NextAction::Run(item, slot) = scheduler.next(Micros(NOW)) {
        assert!(under_way.len() + waiting < 20, "it never ends");
        if scheduler.runners.take(&slot.rules, None) {
            under_way.push(slot);
        } else {
            scheduler.await_runner(rendered(item), &slot);
            waiting += 1;
        }
    }
    assert_eq!(
        (under_way.len(), waiting),
        (1, 3),
        "one of two is left to other rules"
    );
    scheduler.put(task(20, "b", "web1"));
    let NextAction::Run(item, slot) = scheduler.next(Micros(NOW)) else {
        panic!("other rules also wait")
    };
    assert!(item.seq() == SeqNo(20) && scheduler.runners.take(&slot.rules, None));
    // After the end of a runner the first waiting item continues, and another one starts.
    let ended = under_way.remove(0);
    scheduler.runners.give_back(&ended.rules);
    scheduler.done(&ended);
    scheduler.runners.give_back(&slot.rules);
    scheduler.done(&slot);
    let NextAction::Run(QueueItem::Task(next), slot) = scheduler.next(Micros(NOW)) else {
        panic!("no item continues")
    };
    assert!(next.event.seq == SeqNo(1) && next.progress.is_some());
    assert!(scheduler.runners.take(&slot.rules, None));
    let NextAction::Run(QueueItem::Task(next), _) = scheduler.next(Micros(NOW)) else {
        panic!("nothing begins")
    };
    assert!(next.progress.is_none());
}

#[test]
fn at_most_concurrency_reactions_start_while_the_master_is_unreachable() {
    let mut scheduler = scheduler(Settings::default());
    for seq in 0..100 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    scheduler.set_master_unreachable(true);
    let at = Micros(NOW + SECOND);
    for _ in 0..3 {
        for (item, slot) in turns(&mut scheduler) {
            scheduler.pause(rendered(item), &slot, at);
        }
    }
    assert_eq!(scheduler.next_at(), Some(at));
    let NextAction::Run(item, slot) = scheduler.next(at) else {
        panic!("it is retried")
    };
    assert!(item.seq().0 < 8);
    scheduler.pause(item, &slot, Micros(at.0 + SECOND));
    scheduler.set_master_unreachable(false);
    let mut back = turns(&mut scheduler);
    assert_eq!(back.len(), 8);
    for (_, slot) in &back {
        scheduler.done(slot);
    }
    back = turns(&mut scheduler);
    assert_eq!(seqs(&back), (8..16).collect::<Vec<_>>());
}

#[test]
fn a_rate_delays_only_its_own_rule() {
    let mut settings = super::load::rated(10);
    settings.rules.push(own("b", |_| {}));
    let mut scheduler = scheduler(settings);
    for seq in 0..5 {
        scheduler.put(task(seq, "rated/*", &format!("web{seq}")));
    }
    let (mut gone, mut now) = (Vec::new(), NOW);
    while gone.len() < 5 {
        while let NextAction::Run(item, slot) = scheduler.next(Micros(now)) {
            let QueueItem::Task(task) = item else {
                panic!("few wait")
            };
            match scheduler.start(&task, Micros(now)) {
                Admission::Now => {
                    gone.push((task.event.seq.0, (now - NOW) / SECOND));
                    scheduler.done(&slot);
                }
                Admission::At(at) => scheduler.throttle(QueueItem::Task(task), &slot, at),
                other => panic!("{other:?}"),
            }
        }
        scheduler.put(task(9, "b", "web1"));
        let NextAction::Run(item, slot) = scheduler.next(Micros(now)) else {
            panic!("another rule waits")
        };
        assert_eq!(item.seq(), SeqNo(9));
        scheduler.done(&slot);
        now = scheduler.next_at().map_or(now, |at| at.0);
    }
    assert_eq!(gone, [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]);
}
