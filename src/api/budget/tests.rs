//! Tests of budgets: one client uses up its own share only, and what it holds is released when the work ends.

use std::sync::mpsc;

use super::*;
use crate::base::work::{Ended, check};

const KIB: usize = PERMIT_BYTES;

fn budgets() -> Budgets {
    Budgets::new(BudgetLimits {
        workers: (2, 3),
        bytes: (8 * KIB, 12 * KIB),
        streams: (2, 3),
        connections: 2,
        processor_time: None,
        wait: Duration::from_secs(60),
    })
}

fn of(budgets: &Budgets, name: &str) -> Arc<Budget> {
    budgets.of(Client::Token(name.to_owned()))
}

/// Waits until other tasks and threads have made it true.
async fn until(mut is: impl FnMut() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), wait).await.unwrap();
}

#[tokio::test]
async fn threads_of_abandoned_requests_stay_reserved_until_the_work_ends() {
    let budgets = budgets();
    let greedy = of(&budgets, "greedy");
    let (ended, ends) = mpsc::sync_channel(100);
    let (started, mut starts) = tokio::sync::mpsc::channel(10);
    // Many requests, each of them abandoned as soon as it runs or waits.
    for _ in 0..20 {
        let (budget, started, ended) = (greedy.clone(), started.clone(), ended.clone());
        let request = tokio::spawn(async move {
            budget
                .carry_out(move || {
                    let _ = started.try_send(());
                    let why = loop {
                        if let Err(why) = check() {
                            break why;
                        }
                        std::thread::yield_now();
                    };
                    let _ = ended.send(why);
                })
                .await
        });
        if ends.try_iter().count() == 0 && starts.len() < 2 {
            tokio::task::yield_now().await;
        }
        // Another client is served meanwhile.
        let other = of(&budgets, "other");
        assert_eq!(other.carry_out(|| 7).await, Ok(7));
        request.abort();
    }
    starts.recv().await.unwrap();
    // The searches notice that nobody waits, and all of the share is free again.
    until(|| greedy.workers.own.available_permits() == 2).await;
    assert!(ends.try_iter().all(|why| why == Ended::Abandoned));
    assert_eq!(budgets.workers.available_permits(), 3);
}

#[tokio::test]
async fn a_request_that_waits_for_its_share_holds_nothing_of_the_whole() {
    let budgets = budgets();
    let (greedy, other) = (of(&budgets, "greedy"), of(&budgets, "other"));
    let running = [
        greedy.workers.reserve(1).await.unwrap(),
        greedy.workers.reserve(1).await.unwrap(),
    ];
    let mut waiting = Box::pin(greedy.carry_out(|| ()));
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("its share is used up"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(other.carry_out(|| 1).await, Ok(1));
    drop(running);
    assert_eq!(waiting.await, Ok(()));
}

#[tokio::test]
async fn a_panic_is_an_error_and_releases_its_thread() {
    let budgets = budgets();
    let budget = of(&budgets, "a");
    let panicked = budget.carry_out(|| panic!("a bug")).await;
    assert!(matches!(panicked, Err(CallError::Internal(_))));
    assert_eq!(budget.workers.own.available_permits(), 2);
}

#[tokio::test]
async fn a_search_ends_after_its_processor_time_and_a_change_has_none() {
    let budgets = budgets();
    let budget = of(&budgets, "a");
    let search = budget.carry_out_within(Some(Duration::ZERO), check).await;
    assert!(matches!(search, Ok(Err(Ended::TooLong(_)))));
    assert_eq!(budget.carry_out(check).await, Ok(Ok(())));
}

#[tokio::test]
async fn room_is_reserved_before_and_free_when_the_last_bytes_are_dropped() {
    let budgets = budgets();
    let greedy = of(&budgets, "greedy");
    let small = greedy.room(4 * KIB - 1).await.unwrap();
    assert_eq!(greedy.bytes.own.available_permits(), 4);
    let small = small.fill(vec![0; 10]).unwrap();
    assert_eq!(
        greedy.bytes.own.available_permits(),
        7,
        "the rest is released"
    );

    // Longer than what was reserved.
    let long = greedy.room(0).await.unwrap();
    let long = long.fill(vec![0; 6 * KIB - 1]).unwrap();
    assert_eq!(greedy.bytes.own.available_permits(), 1);
    let refused = greedy.room(0).await.unwrap().fill(vec![0; 2 * KIB]);
    assert!(matches!(refused, Err(CallError::Unavailable(_))));

    // The share of another client is not affected, and larger answers than a share are possible alone.
    let other = of(&budgets, "other");
    let part = other.room(3 * KIB).await.unwrap().fill(vec![1; 3 * KIB]);
    assert!(part.is_ok());
    let part = long.slice(..1);
    drop((long, small));
    assert_eq!(greedy.bytes.own.available_permits(), 2, "a part is in use");
    drop(part);
    let all = greedy
        .room(0)
        .await
        .unwrap()
        .fill(vec![0; 100 * KIB])
        .unwrap();
    assert_eq!(
        (all.len(), greedy.bytes.own.available_permits()),
        (100 * KIB, 0)
    );
}

#[tokio::test]
async fn room_grows_with_what_a_request_holds_before_its_next_operation() {
    let budgets = budgets();
    let client = of(&budgets, "client");
    let free = || client.bytes.own.available_permits();

    let mut room = client.room(KIB).await.unwrap();
    assert_eq!(free(), 6);
    // The reserve stays free for the next operation.
    room.hold(3 * KIB).unwrap();
    assert_eq!((room.held(), free()), (3 * KIB, 3));
    room.hold(KIB).unwrap();
    assert_eq!(free(), 3, "it does not shrink");

    let other = client.room(2 * KIB).await.unwrap();
    let refused = room.hold(4 * KIB);
    assert!(matches!(refused, Err(CallError::Unavailable(_))));
    drop(other);
    // More than the share takes all of it.
    room.hold(100 * KIB).unwrap();
    assert_eq!(free(), 0);
    drop(room.fill(vec![0; 10]).unwrap());
    assert_eq!(free(), 8);
}

#[tokio::test]
async fn shared_bytes_take_room_of_the_whole_once_and_of_the_share_of_each_client_that_holds_them()
{
    let budgets = budgets();
    let [reader, slow] = ["reader", "slow"].map(|name| of(&budgets, name));
    let free = |budget: &Budget| {
        let pool = &budget.bytes;
        (pool.own.available_permits(), pool.all.available_permits())
    };

    let room = reader.room(KIB).await.unwrap();
    let shared = room.share(vec![0; 3 * KIB - 1]).unwrap();
    assert_eq!(free(&reader), (8, 9), "no share yet");
    let read = reader.hold(shared.clone()).await.unwrap();
    let [one, two] = [
        slow.hold(shared.clone()).await.unwrap(),
        slow.hold(shared.clone()).await.unwrap(),
    ];
    assert_eq!((free(&reader), free(&slow)), ((5, 9), (2, 9)));

    let mut third = Box::pin(slow.hold(shared));
    tokio::select! {
        biased;
        _ = &mut third => panic!("the share has no room"),
        () = tokio::task::yield_now() => {}
    }
    drop(read);
    assert_eq!(free(&reader), (8, 9), "what others hold is theirs");
    drop(one);
    let third = third.await.unwrap();
    assert_eq!(third.len(), 3 * KIB - 1);
    drop((two, third));
    assert_eq!(free(&slow), (8, 12));
}

#[tokio::test]
async fn shared_bytes_without_room_are_dropped_instead_of_waiting() {
    let budgets = budgets();
    let [reader, other] = ["reader", "other"].map(|name| of(&budgets, name));
    let in_use = other.room(8 * KIB - 1).await.unwrap();

    let room = reader.room(KIB).await.unwrap();
    assert_eq!(room.share(vec![0; 5 * KIB]).unwrap_err(), 5 * KIB);
    let all = &reader.bytes.all;
    assert_eq!(all.available_permits(), 4, "all of its room is free again");

    // In room of that size, it is waited for with nothing in memory.
    let mut room = Box::pin(reader.room(5 * KIB));
    tokio::select! {
        biased;
        _ = &mut room => panic!("the whole has no room"),
        () = tokio::task::yield_now() => {}
    }
    drop(in_use);
    let room = room.await.unwrap();
    assert_eq!(room.share(vec![0; 5 * KIB]).unwrap().len(), 5 * KIB);
}

#[test]
fn streams_and_connections_have_shares_and_a_budget_lives_as_long_as_its_use() {
    let budgets = budgets();
    let greedy = of(&budgets, "greedy");
    let streams = [greedy.stream().unwrap(), greedy.stream().unwrap()];
    assert!(greedy.stream().is_none());
    let other = of(&budgets, "other");
    let third = other.stream().unwrap();
    assert!(other.stream().is_none(), "all are in use");
    let connections = [greedy.connection().unwrap(), greedy.connection().unwrap()];
    assert!(greedy.connection().is_none() && other.connection().is_some());

    drop((streams, third, greedy, other));
    drop(of(&budgets, "third"));
    let greedy = of(&budgets, "greedy");
    assert!(greedy.connection().is_none(), "no request is in flight");
    drop(connections);
    assert!(greedy.connection().is_some());
    drop(greedy);
    drop(of(&budgets, "fourth"));
    assert_eq!(budgets.clients.lock().len(), 1, "unused ones are forgotten");
}

#[tokio::test]
async fn a_read_is_stalled_when_other_requests_have_all_of_its_share_and_not_by_its_own() {
    let budgets = budgets();
    let client = of(&budgets, "a");
    let is_stalled = async |read: &Budget| {
        let stalled = timeout(Duration::from_millis(50), read.stalled()).await;
        stalled.is_ok()
    };
    let read = client.of_read();
    assert!(!is_stalled(&read).await, "it waits for nothing");

    // It has a task more than the share allows at the same time.
    let (go_on, may_go_on) = mpsc::sync_channel(3);
    let may_go_on = Arc::new(Mutex::new(may_go_on));
    let tasks = |budget: &Arc<Budget>, count| {
        let task = |_| {
            let (budget, may_go_on) = (budget.clone(), may_go_on.clone());
            tokio::spawn(async move { budget.carry_out(move || may_go_on.lock().recv()).await })
        };
        (0..count).map(task).collect::<Vec<_>>()
    };
    let own = tasks(&read, 3);
    until(|| client.workers.own.available_permits() == 0).await;
    assert!(!is_stalled(&read).await, "two of three run");
    (0..3).for_each(|_| go_on.send(()).unwrap());
    for task in own {
        task.await.unwrap().unwrap().unwrap();
    }

    let others = tasks(&client, 2);
    until(|| client.workers.own.available_permits() == 0).await;
    let waiting = tasks(&read, 1);
    assert!(is_stalled(&read).await);
    (0..3).for_each(|_| go_on.send(()).unwrap());
    for task in others.into_iter().chain(waiting) {
        task.await.unwrap().unwrap().unwrap();
    }
    assert!(!is_stalled(&read).await);
}
