//! Durability `written`: answered before the sync, synced within the time that is stated.

use std::time::Duration;

use rustix::io::Errno;

use super::super::medium::faults::{Act, Fault, Faults, Plan};
use super::*;

const WITHIN: Duration = Duration::from_millis(50);

fn rig(dir: &Path, within: Duration) -> (Rig, Arc<Plan>) {
    let plan = Arc::new(Plan::default());
    let medium = Arc::new(Faults::over(Arc::new(medium::Disk), plan.clone()));
    let limits = Limits { durability: Durability::Written { within }, ..Limits::default() };
    (Rig::open_with(&Options { medium, ..options(dir, limits) }), plan)
}

/// Time enough for a machine that is busy with other things.
fn wait_until(what: &str, is: impl Fn() -> bool) {
    crate::testing::wait_for(what, || is().then_some(()));
}

#[test]
fn an_answer_does_not_wait_for_the_sync_and_the_sync_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, plan) = rig(dir.path(), Duration::from_secs(3600));
    rig.put(batch_of(0..20)).unwrap();
    let before = plan.count(Act::Sync);
    for n in 20..40 {
        rig.put(batch_of([n])).unwrap();
    }
    assert_eq!(plan.count(Act::Sync), before, "nothing is synced before its time");
    check_all(&rig, 0..40);
    rig.close();
    assert!(plan.count(Act::Sync) > before, "but at the end it is");

    let (rig, plan) = self::rig(dir.path(), WITHIN);
    let before = plan.count(Act::Sync);
    rig.put(batch_of([40])).unwrap();
    wait_until("the sync", || plan.count(Act::Sync) > before);
    rig.close();
}

#[test]
fn a_late_sync_that_fails_is_counted_and_its_log_is_written_to_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, plan) = rig(dir.path(), WITHIN);
    rig.put(batch_of([0])).unwrap();
    wait_until("the first sync", || plan.count(Act::Sync) > 0);
    plan.add(Fault::once(Act::Sync, Errno::IO));
    rig.put(batch_of([3])).unwrap();
    wait_until("the failure", || rig.metrics.late_syncs_failed.get() == 1);
    wait_until("a new log", || rig.put(batch_of([6])).is_ok() && files_named(dir.path(), "log").len() > 1);
    rig.close();
    let rig = Rig::open(dir.path(), Limits::default());
    let tags: Vec<_> = rig.events(&EventFilter::default()).into_iter().map(|(_, tag)| tag).collect();
    assert_eq!(tags[..3], [0, 3, 6].map(|n| event(n).0));
    rig.close();
}
