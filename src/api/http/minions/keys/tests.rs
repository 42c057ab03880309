//! Tests of minions' keys.

use super::*;

/// A key for parsing only.
const PEM: &str = "-----BEGIN PUBLIC KEY-----\nMAYCAQUCAQM=\n-----END PUBLIC KEY-----\n";

#[test]
fn a_key_is_valid_while_its_file_exists() {
    let dir = tempfile::tempdir().unwrap();
    let keys = Keys::of(dir.path());
    let state = |id: &str| match keys.accepted(id) {
        Ok(key) => format!("{} bytes", key.len()),
        Err(NoKey::NotAccepted { state, .. }) => state.to_owned(),
        Err(NoKey::Unreadable { why, .. }) => why,
    };
    let no_directory = format!(
        "there is no directory {}/minions: the master's keys are elsewhere",
        dir.path().display()
    );
    assert!(state("a").starts_with(&no_directory), "{}", state("a"));
    for sub in [
        "minions",
        "minions_pre",
        "minions_rejected",
        "minions_denied",
    ] {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
    }
    assert_eq!(state("a"), "unknown");
    for (sub, word) in NOT_ACCEPTED {
        std::fs::write(dir.path().join(sub).join("a"), PEM).unwrap();
        assert_eq!(state("a"), word);
        std::fs::remove_file(dir.path().join(sub).join("a")).unwrap();
    }
    let path = dir.path().join("minions/a");
    std::fs::write(&path, PEM).unwrap();
    assert_eq!(state("a"), "8 bytes");
    assert_eq!(state("a"), "8 bytes", "from memory");
    std::fs::write(&path, PEM.replace("MAYCAQUCAQM=", "MAMEAQU=")).unwrap();
    assert!(
        state("a").ends_with("no RSA public key in PEM (BEGIN PUBLIC KEY)"),
        "{}",
        state("a")
    );
    std::fs::write(&path, PEM.replace("PUBLIC", "RSA PUBLIC")).unwrap();
    assert_eq!(state("a"), "8 bytes", "the old label");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(state("a"), "unknown");
    std::fs::create_dir(&path).unwrap();
    assert!(
        state("a").ends_with("minions/a: not a file"),
        "{}",
        state("a")
    );
    std::fs::write(dir.path().join("minions/b"), vec![b'x'; 300_000]).unwrap();
    assert!(
        state("b").contains("longer than 262144 bytes"),
        "{}",
        state("b")
    );
    std::fs::write(dir.path().join(OTHER_STORE), "").unwrap();
    assert!(
        state("b")
            .contains("(keys.cache_driver: mmap_key), and the minion listener reads only files"),
        "{}",
        state("b")
    );
}
