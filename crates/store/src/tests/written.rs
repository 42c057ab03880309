//! Durability `written`: acknowledged before the sync, synced within the configured time.

use std::time::Duration;

use rustix::io::Errno;

use super::*;

const WITHIN: Duration = Duration::from_millis(50);

fn rig(dir: &Path, within: Duration) -> (Rig, Arc<Plan>) {
    let (plan, fs) = faulty_disk();
    let limits = Limits {
        durability: Durability::Written { within },
        ..Limits::default()
    };
    (
        Rig::open_with(&Options {
            fs,
            ..options(dir, limits)
        }),
        plan,
    )
}

/// Waits, with a timeout for loaded machines.
fn wait_until(what: &str, is: impl Fn() -> bool) {
    saltcellar_testkit::wait_for(what, || is().then_some(()));
}

#[test]
fn an_acknowledgement_does_not_wait_for_the_delayed_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, plan) = rig(dir.path(), Duration::from_secs(3600));
    rig.put(batch_of(0..20)).unwrap();
    let before = plan.count(Act::Sync);
    rig.put_each(20..40);
    assert_eq!(
        plan.count(Act::Sync),
        before,
        "nothing is synced before it is due"
    );
    check_all(&rig, 0..40);
    rig.close();
    assert!(plan.count(Act::Sync) > before, "shutdown syncs");

    let (rig, plan) = self::rig(dir.path(), WITHIN);
    let before = plan.count(Act::Sync);
    rig.put(batch_of([40])).unwrap();
    wait_until("the sync", || plan.count(Act::Sync) > before);
}

#[test]
fn a_failed_delayed_sync_is_counted_and_its_log_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (rig, plan) = rig(dir.path(), WITHIN);
    rig.put(batch_of([0])).unwrap();
    wait_until("the first sync", || plan.count(Act::Sync) > 0);
    plan.add(Fault::once(Act::Sync, Errno::IO));
    rig.put(batch_of([3])).unwrap();
    wait_until("the failure", || {
        rig.metrics.delayed_syncs_failed.get() == 1
    });
    wait_until("a new log", || {
        rig.put(batch_of([6])).is_ok() && files_named(dir.path(), "log").len() > 1
    });
    rig.close();
    let rig = Rig::open(dir.path(), Limits::default());
    let tags = rig.tags();
    assert_eq!(tags[..3], [0, 3, 6].map(|n| event(n).0));
}
