//! Tests of holds.

use super::*;
use crate::store::vfs::Disk;

fn open(dir: &Path) -> Holds {
    Holds::open(dir, Arc::new(Disk)).unwrap()
}

#[test]
fn holds_survive_a_restart_and_malformed_lines_are_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let holds = open(dir.path());
    holds
        .hold("20261121030955000001", "the\toutage\nof monday", Micros(7))
        .unwrap();
    holds.hold("odd id", "", Micros(8)).unwrap();
    drop(holds);
    let file = dir.path().join("HOLDS");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        text,
        "20261121030955000001\t7\tthe outage of monday\nodd id\t8\t\n"
    );
    std::fs::write(&file, format!("{text}20261121\tsoon\n")).unwrap();

    let holds = open(dir.path());
    assert_eq!(holds.all().len(), 2);
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
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        text,
        "20261121030955000001\t7\tfor the audit\n20261121\tsoon\n"
    );
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
    let full = (0..HOLDS_MAX)
        .map(|n| format!("{n}\t0\t\n"))
        .collect::<Vec<_>>()
        .concat();
    std::fs::write(dir.path().join("HOLDS"), full).unwrap();
    let holds = open(dir.path());
    assert!(holds.hold("another", "", Micros(0)).is_err());
    assert!(holds.hold("1", "known", Micros(0)).is_ok());
}

#[test]
fn a_malformed_line_keeps_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("HOLDS");
    let lines = b"2026\xff1121\tsoon\r\n\xe4\t7\tbecause\n";
    std::fs::write(&file, lines).unwrap();

    let holds = open(dir.path());
    assert!(holds.all().is_empty());
    assert!(holds.fault().is_some());
    holds.hold("1", "x", Micros(7)).unwrap();
    drop(holds);
    let expected = [b"1\t7\tx\n".as_slice(), lines].concat();
    assert_eq!(std::fs::read(&file).unwrap(), expected);
    assert_eq!(hold_faults(&expected).len(), 2);
}
