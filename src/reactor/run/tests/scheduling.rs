//! The scheduler alone: whose turn it is, and what is kept in memory.

use super::super::queues::Item;
use super::super::scheduler::{NextAction, Progress, Scheduler, Slot, Task};
use super::*;
use crate::limits::{REACTOR_MINION_TASKS_MAX, REACTOR_QUEUES_MAX, REACTOR_RULE_TASKS_MAX};
use crate::model::{RuleOrder, RunnerLimits};

fn task(seq: u64, rule: &str, minion: &str) -> Task {
    let event = Event {
        seq: SeqNo(seq),
        at: Micros(NOW),
        tag: format!("{rule}/{seq}"),
        body: Arc::from(&b"\x80"[..]),
        minion: minion.to_owned(),
        has_key: false,
    };
    Task {
        event,
        rules: vec![rule.into()],
        of: 1,
        place: 0,
        options: Arc::default(),
        depth: 0,
        begun: Vec::new(),
        resumed: false,
        replay: None,
        already_made: Vec::new(),
        left: None,
        progress: None,
    }
}

fn scheduler(settings: Settings) -> Scheduler {
    let mut scheduler = Scheduler::default();
    scheduler.configure(Arc::new(settings));
    scheduler
}

/// Everything that may be worked on now.
fn turns(scheduler: &mut Scheduler) -> Vec<(Item, Slot)> {
    std::iter::from_fn(|| match scheduler.next(Micros(NOW)) {
        NextAction::Run(item, place) => Some((item, place)),
        NextAction::Wait(_) => None,
    })
    .collect()
}

fn seqs(turns: &[(Item, Slot)]) -> Vec<u64> {
    turns.iter().map(|(item, _)| item.seq().0).collect()
}

/// As after a try that is to be repeated.
fn rendered(item: Item) -> Item {
    let Item::Task(mut task) = item else { panic!("it is in the log only") };
    let (reacted, made) = (Reacted::default(), Vec::new());
    task.progress = Some(Box::new(Progress {
        began: Micros(NOW),
        reacted,
        made,
        tries: 1,
        unsure: false,
        begun: false,
        since: SeqNo(1),
        unanswered: None,
    }));
    Item::Task(task)
}

#[test]
fn the_order_says_which_events_wait_for_one_another() {
    for (order, at_once) in [
        (RuleOrder::Rule, vec![1]),
        (RuleOrder::Minion, vec![1, 2, 4]),
        (RuleOrder::None, vec![1, 2, 3, 4, 5]),
    ] {
        let options = RuleOptions { rule: "a".into(), order, ..RuleOptions::default() };
        let mut scheduler = scheduler(Settings { rules: vec![Arc::new(options)], ..Settings::default() });
        for (seq, minion) in [(1, "x"), (2, "y"), (3, "x"), (4, ""), (5, "")] {
            assert!(scheduler.offer(task(seq, "a", minion), Micros(NOW)).is_none());
        }
        let mut begun = turns(&mut scheduler);
        assert_eq!(seqs(&begun), at_once, "{order:?}");
        let mut all = seqs(&begun);
        while !begun.is_empty() {
            for (_, place) in &begun {
                scheduler.done(place);
            }
            begun = turns(&mut scheduler);
            all.extend(seqs(&begun));
        }
        all.sort_unstable();
        assert_eq!((all, scheduler.waiting()), (vec![1, 2, 3, 4, 5], 0));
    }
}

#[test]
fn a_reaction_that_came_back_from_a_throttle_after_the_rate_was_removed_waited_for_the_old_time() {
    let mut scheduler = scheduler(super::load::rated(3600));
    scheduler.put(task(1, "rated/*", "web1"));
    let (item, place) = turns(&mut scheduler).remove(0);
    scheduler.configure(Arc::default());
    scheduler.throttle(item, &place, Micros(NOW + SECOND));
    assert_eq!(seqs(&turns(&mut scheduler)), [1]);
}

#[test]
fn rules_take_turns_however_much_waits_of_one_of_them() {
    let mut scheduler = scheduler(Settings::default());
    for seq in 0..100 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    scheduler.put(task(100, "b", "web1"));
    let begun = turns(&mut scheduler);
    assert_eq!(begun[1].0.seq(), SeqNo(100));
    assert_eq!(begun.len(), 9, "as many of a rule as its concurrency");
}

#[test]
fn events_beyond_the_limits_are_numbers_and_none_is_lost_or_overtakes() {
    let options = RuleOptions { rule: "a".into(), concurrency: Some(16), ..RuleOptions::default() };
    let mut scheduler = scheduler(Settings { rules: vec![Arc::new(options)], ..Settings::default() });
    let minions = REACTOR_QUEUES_MAX as u64 + 500;
    let most = 2 * minions + 5_000;
    let minion_of = |seq: u64| if seq < 5_000 { 0 } else { seq % minions };
    for seq in 0..most {
        scheduler.put(task(seq, "a", &format!("web{}", minion_of(seq))));
    }
    let (mut in_memory, mut of_first, mut last) = (0, 0, HashMap::new());
    let mut count = 0;
    loop {
        let begun = turns(&mut scheduler);
        if begun.is_empty() {
            break;
        }
        for (item, place) in begun {
            let seq = item.seq().0;
            let minion = minion_of(seq);
            if matches!(item, Item::Task(_)) {
                in_memory += 1;
                of_first += usize::from(minion == 0);
            }
            assert!(last.insert(minion, seq).is_none_or(|last| last < seq), "{seq} of {minion}");
            count += 1;
            scheduler.done(&place);
        }
    }
    assert_eq!((count, scheduler.waiting()), (most, 0));
    assert!(in_memory <= REACTOR_RULE_TASKS_MAX, "{in_memory}");
    assert!(of_first <= REACTOR_MINION_TASKS_MAX, "{of_first}");
}

#[test]
fn a_rule_whose_runners_wait_begins_no_more_of_them_than_the_master_s_queue_takes() {
    let runners = RunnerLimits { threads: 2, waiting: Some(3) };
    let mut scheduler = scheduler(Settings { runners, ..Settings::default() });
    for seq in 0..20 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    let (mut under_way, mut waiting) = (Vec::new(), 0);
    while let NextAction::Run(item, place) = scheduler.next(Micros(NOW)) {
        assert!(under_way.len() + waiting < 20, "it never ends");
        if scheduler.runners.take(&place.rules, None) {
            under_way.push(place);
        } else {
            scheduler.await_runner(rendered(item), &place);
            waiting += 1;
        }
    }
    assert_eq!((under_way.len(), waiting), (1, 3), "one of two is left to other rules");
    scheduler.put(task(20, "b", "web1"));
    let NextAction::Run(item, place) = scheduler.next(Micros(NOW)) else { panic!("other rules wait, too") };
    assert!(item.seq() == SeqNo(20) && scheduler.runners.take(&place.rules, None));
    // A runner ends: the first of those that wait for one goes on, and another one begins.
    let ended = under_way.remove(0);
    scheduler.runners.give_back(&ended.rules);
    scheduler.done(&ended);
    scheduler.runners.give_back(&place.rules);
    scheduler.done(&place);
    let NextAction::Run(Item::Task(next), place) = scheduler.next(Micros(NOW)) else {
        panic!("nothing goes on")
    };
    assert!(next.event.seq == SeqNo(1) && next.progress.is_some());
    assert!(scheduler.runners.take(&place.rules, None));
    let NextAction::Run(Item::Task(next), _) = scheduler.next(Micros(NOW)) else { panic!("nothing begins") };
    assert!(next.progress.is_none());
}

#[test]
fn while_the_master_is_away_as_many_reactions_of_a_rule_begin_as_may_run_at_once() {
    let mut scheduler = scheduler(Settings::default());
    for seq in 0..100 {
        scheduler.put(task(seq, "a", &format!("web{seq}")));
    }
    scheduler.master_is_unreachable(true);
    let at = Micros(NOW + SECOND);
    for _ in 0..3 {
        for (item, place) in turns(&mut scheduler) {
            scheduler.again(rendered(item), &place, at);
        }
    }
    assert_eq!(scheduler.next_at(), Some(at));
    let NextAction::Run(item, place) = scheduler.next(at) else { panic!("it is tried again") };
    assert!(item.seq().0 < 8);
    scheduler.again(item, &place, Micros(at.0 + SECOND));
    scheduler.master_is_unreachable(false);
    let mut back = turns(&mut scheduler);
    assert_eq!(back.len(), 8);
    for (_, place) in &back {
        scheduler.done(place);
    }
    back = turns(&mut scheduler);
    assert_eq!(seqs(&back), (8..16).collect::<Vec<_>>());
}

#[test]
fn a_rate_keeps_its_rule_waiting_and_no_other_one() {
    let mut settings = super::load::rated(10);
    settings.rules.push(own("b", |_| {}));
    let mut scheduler = scheduler(settings);
    for seq in 0..5 {
        scheduler.put(task(seq, "rated/*", &format!("web{seq}")));
    }
    let (mut gone, mut now) = (Vec::new(), NOW);
    while gone.len() < 5 {
        while let NextAction::Run(item, place) = scheduler.next(Micros(now)) {
            let Item::Task(task) = item else { panic!("few wait") };
            match scheduler.start(&task, Micros(now)) {
                throttle::Start::Go => {
                    gone.push((task.event.seq.0, (now - NOW) / SECOND));
                    scheduler.done(&place);
                }
                throttle::Start::At(at) => scheduler.throttle(Item::Task(task), &place, at),
                other => panic!("{other:?}"),
            }
        }
        scheduler.put(task(9, "b", "web1"));
        let NextAction::Run(item, place) = scheduler.next(Micros(now)) else { panic!("another rule waits") };
        assert_eq!(item.seq(), SeqNo(9));
        scheduler.done(&place);
        now = scheduler.next_at().map_or(now, |at| at.0);
    }
    assert_eq!(gone, [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]);
}
