//! Tests of holds.

use std::path::Path;

use super::*;

fn open(dir: &Path) -> Holds {
    Holds::new(Settings::for_tests(dir))
}

#[test]
fn holds_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let holds = open(dir.path());
    holds
        .hold("20261121030955000001", "the\toutage\nof monday", Micros(7))
        .unwrap();
    holds.hold("odd id", "", Micros(8)).unwrap();
    drop(holds);

    let holds = open(dir.path());
    let reasons: Vec<String> = holds.all().into_iter().map(|hold| hold.reason).collect();
    assert_eq!(reasons, ["the outage of monday", ""]);
    let again = holds
        .hold("20261121030955000001", "for the audit", Micros(99))
        .unwrap();
    assert_eq!(
        (again.since, again.reason.as_str()),
        (Micros(7), "for the audit")
    );
    assert!(holds.release("odd id", Micros(100)).unwrap());
    assert!(!holds.release("odd id", Micros(101)).unwrap());
    drop(holds);
    assert_eq!(open(dir.path()).all(), [again]);
}

#[test]
fn holds_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let holds = open(dir.path());
    assert!(
        holds
            .hold("1", &"x".repeat(HOLD_REASON_BYTES_MAX + 1), Micros(0))
            .is_err()
    );
    assert!(holds.hold("", "", Micros(0)).is_err());
    assert!(holds.hold("1\t2", "", Micros(0)).is_err());

    let mut changes = crate::settings::Changes::default();
    for n in 0..HOLDS_MAX {
        let hold = Hold {
            jid: n.to_string(),
            since: Micros(0),
            reason: String::new(),
            origin: String::new(),
            changed: None,
        };
        changes.put(&hold.jid, &hold).unwrap();
    }
    holds.settings.commit(changes, Save::Durable).unwrap();
    assert!(holds.hold("another", "", Micros(0)).is_err());
    assert!(holds.hold("1", "known", Micros(0)).is_ok());
}

/// Two stores that share their holds.
struct Two {
    a: Holds,
    b: Holds,
    _dirs: [tempfile::TempDir; 2],
}

fn two() -> Two {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    Two {
        a: open(dirs[0].path()),
        b: open(dirs[1].path()),
        _dirs: dirs,
    }
}

impl Two {
    /// Each tells the other what it has, in either order; they agree then.
    fn meet(&self) {
        let (of_a, of_b) = (self.a.changes("a"), self.b.changes("b"));
        self.b.merge("b", of_a).unwrap();
        self.a.merge("a", of_b).unwrap();
        assert_eq!(self.a.changes("a"), self.b.changes("b"));
        assert_eq!(self.a.merge("a", self.b.changes("b")).unwrap().taken, 0);
    }

    /// The number of holds on both.
    fn count(&self) -> [usize; 2] {
        self.held().map(|held| held.len())
    }

    /// Jids, reasons and masters on both.
    fn held(&self) -> [Vec<[String; 3]>; 2] {
        [&self.a, &self.b].map(|holds| {
            let all = holds.all().into_iter();
            all.map(|hold| [hold.jid, hold.reason, hold.origin])
                .collect()
        })
    }
}

fn row(jid: &str, reason: &str, origin: &str) -> [String; 3] {
    [jid, reason, origin].map(str::to_owned)
}

#[test]
fn a_hold_and_its_release_reach_the_other_store() {
    let two = two();
    two.a.hold("1", "why", Micros(7)).unwrap();
    two.meet();
    assert_eq!(
        two.held(),
        [vec![row("1", "why", "")], vec![row("1", "why", "a")]]
    );

    // The reason is another one, the master that made the hold is not.
    two.b.hold("1", "because", Micros(8)).unwrap();
    two.meet();
    assert_eq!(
        two.held(),
        [
            vec![row("1", "because", "")],
            vec![row("1", "because", "a")]
        ]
    );

    two.b.release("1", Micros(9)).unwrap();
    two.meet();
    assert_eq!(two.count(), [0, 0]);
    // Nobody brings it back.
    two.meet();
    assert_eq!(two.count(), [0, 0]);

    two.a.hold("1", "again", Micros(10)).unwrap();
    two.meet();
    assert_eq!(two.held()[1], [row("1", "again", "a")]);
}

#[test]
fn of_changes_that_were_made_apart_the_later_one_counts() {
    for (held, released, is_held) in [(20, 21, false), (21, 20, true), (20, 20, true)] {
        let two = two();
        two.a.hold("1", "first", Micros(7)).unwrap();
        two.meet();
        two.a.hold("1", "second", Micros(held)).unwrap();
        two.b.release("1", Micros(released)).unwrap();
        two.meet();
        assert_eq!(two.count(), [usize::from(is_held); 2], "{held} {released}");
    }

    // Made at the same time on both.
    let two = two();
    two.a.hold("1", "x", Micros(7)).unwrap();
    two.b.hold("1", "x", Micros(7)).unwrap();
    two.meet();
    assert_eq!(two.held(), [[row("1", "x", "b")], [row("1", "x", "")]]);
}

#[test]
fn what_was_seen_before_a_change_does_not_count_as_later_than_it() {
    let two = two();
    // The clock of `a` is ahead.
    two.a.hold("1", "", Micros(1_000_000)).unwrap();
    two.meet();
    assert!(two.b.release("1", Micros(9)).unwrap());
    two.meet();
    assert_eq!(two.count(), [0, 0]);
    two.b.hold("1", "", Micros(10)).unwrap();
    two.meet();
    assert_eq!(two.count(), [1, 1]);
}

#[test]
fn what_no_store_makes_is_not_taken() {
    let two = two();
    let change = |jid: &str, reason: &str, at: i64| HoldChange {
        at: Micros(at),
        held: Some(Held {
            since: Micros(1),
            master: "b".to_owned(),
            reason: reason.to_owned(),
        }),
        jid: jid.to_owned(),
    };
    let long = "x".repeat(HOLD_REASON_BYTES_MAX + 1);
    let bad = vec![
        change("", "", 1),
        change("1\t2", "", 1),
        change("1", "a\nb", 1),
        change("1", &long, 1),
        change("1", "", -1),
        change("1", "", i64::MAX),
    ];
    let count = bad.len();
    let merged = two.a.merge("a", bad).unwrap();
    assert_eq!((merged.invalid, merged.taken), (count, 0));

    let many = (0..HOLDS_SHARED_MAX + 2).map(|n| change(&n.to_string(), "", 1));
    let merged = two.a.merge("a", many.collect()).unwrap();
    assert_eq!((merged.taken, merged.beyond_limit), (HOLDS_SHARED_MAX, 2));
    assert_eq!(two.a.all().len(), HOLDS_SHARED_MAX);
    // One that is held already may change.
    assert_eq!(
        two.a.merge("a", vec![change("1", "y", 2)]).unwrap().taken,
        1
    );
}

#[test]
fn releases_are_bounded_and_the_oldest_go_first() {
    let two = two();
    let released = |n: usize| HoldChange {
        at: Micros(i64::try_from(n).unwrap()),
        held: None,
        jid: n.to_string(),
    };
    let all = (0..RELEASES_MAX + 3).map(released).collect();
    two.a.merge("a", all).unwrap();
    let kept = two.a.changes("a");
    assert_eq!(kept.len(), RELEASES_MAX);
    assert!(!kept.contains(&released(2)) && kept.contains(&released(3)));
}

#[test]
fn holds_of_an_earlier_release_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let old = br#"{"jid":"1","since":7,"reason":"why"}"#;
    let hold = Hold::decode(old).unwrap();
    let holds = open(dir.path());
    holds.settings.put("1", &hold, Save::Durable).unwrap();
    assert_eq!(holds.changes("a")[0].at, Micros(7));
}

#[test]
fn each_change_and_nothing_else_makes_another_version() {
    let two = two();
    let mut known = two.a.version();
    let mut grows = |what: &str, grows: bool| {
        let version = two.a.version();
        assert_eq!(version > known, grows, "{what}");
        known = version;
    };

    two.a.hold("1", "", Micros(7)).unwrap();
    grows("a hold", true);
    two.a.hold("1", "why", Micros(8)).unwrap();
    grows("another reason", true);
    assert!(two.a.release("1", Micros(9)).unwrap());
    grows("a release", true);
    assert!(!two.a.release("1", Micros(10)).unwrap());
    grows("nothing to release", false);

    two.b.hold("2", "", Micros(11)).unwrap();
    two.a.merge("a", two.b.changes("b")).unwrap();
    grows("a hold of another store", true);
    two.a.merge("a", two.b.changes("b")).unwrap();
    two.a.changes("a");
    grows("the same", false);
}
