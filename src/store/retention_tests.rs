//! Classes, retention, holds and the guard, over a whole store.

use super::tests::{Rig, batch_of, check_all, options};
use super::*;
use crate::model::{Age, ClassRule, ClassRules, EventFilter, Glob, Keep};

const FOREVER: Keep = Keep { age: Age::Forever, bytes: None, entries: None };

/// A class for what the tests' events of beacons are.
fn beacons(keep: Keep) -> ClassRules {
    let rule = ClassRule { fun: None, tag: Some(Glob::new("salt/beacon/*")) };
    ClassRules { name: "beacons".to_owned(), rules: vec![rule], keep }
}

/// Half of the tests' returns.
fn half(keep: Keep) -> ClassRules {
    let rule = ClassRule { fun: None, tag: Some(Glob::new("salt/job/*/ret/web*[02468]")) };
    ClassRules { name: "half".to_owned(), rules: vec![rule], keep }
}

fn entries_of(rig: &Rig, class: &str) -> Option<u64> {
    rig.store.classes().unwrap().into_iter().find(|sums| *sums.name == *class).map(|sums| sums.sums.entries)
}

#[test]
fn an_entry_lies_in_its_class_and_is_found_whatever_that_is() {
    let dir = tempfile::tempdir().unwrap();
    for limits in [Limits::default(), super::tests::SMALL] {
        let rules = [beacons(FOREVER), half(FOREVER)];
        let with =
            |rules: &[ClassRules]| Options { classes: Classes::new(rules), ..options(dir.path(), limits) };
        let _ = std::fs::remove_dir_all(dir.path().join("log"));
        let _ = std::fs::remove_dir_all(dir.path().join("state"));
        let rig = Rig::open_with(&with(&rules));
        for n in 0..300 {
            rig.put(batch_of([n])).unwrap();
        }
        let of = |rig: &Rig, class| entries_of(rig, class);
        let counts = |rig: &Rig| ["jobs", "events", "beacons", "half"].map(|class| of(rig, class));
        let expected = [Some(100), Some(0), Some(100), Some(100)];
        check_all(&rig, 0..300);
        assert_eq!(counts(&rig), expected);
        rig.close();

        // Without the rules the classes stay readable, and take nothing more.
        let rig = Rig::open_with(&with(&[]));
        check_all(&rig, 0..300);
        assert_eq!(counts(&rig), expected);
        rig.put(batch_of(300..600)).unwrap();
        check_all(&rig, 0..600);
        assert_eq!(counts(&rig), [Some(300), Some(100), Some(100), Some(100)]);
        let job = EventFilter { jid: Some(super::tests::jid(2)), ..EventFilter::default() };
        let latest = rig.store.events_before(&job, rig.store.durable(), 3, usize::MAX).unwrap();
        assert_eq!(latest.iter().map(|e| e.minion.as_str()).collect::<Vec<_>>(), ["web29", "web28", "web26"]);
        rig.close();

        // Named again, they go on.
        let rig = Rig::open_with(&with(&rules));
        rig.put(batch_of(600..900)).unwrap();
        check_all(&rig, 0..900);
        assert_eq!(counts(&rig), [Some(400), Some(100), Some(200), Some(200)]);
        rig.close();
        let rig = Rig::open_with(&with(&rules));
        check_all(&rig, 0..900);
        rig.close();
    }
}
