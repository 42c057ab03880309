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
    assert!(holds.release("odd id").unwrap());
    assert!(!holds.release("odd id").unwrap());
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
        };
        changes.put(&hold.jid, &hold).unwrap();
    }
    holds.settings.commit(changes, Save::Durable).unwrap();
    assert!(holds.hold("another", "", Micros(0)).is_err());
    assert!(holds.hold("1", "known", Micros(0)).is_ok());
}
