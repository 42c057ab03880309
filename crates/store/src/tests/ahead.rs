//! Preallocation of active logs, and commits applied by the appender.

use std::thread::ThreadId;

use super::*;
use crate::tools::tests::verify;
use crate::tools::verify::VerifyOptions;

/// Stores a batch; returns the thread that acknowledged it.
fn answered_by(rig: &Rig, batch: Batch) -> ThreadId {
    let (tx, rx) = sync_channel(1);
    let done: Done = Box::new(move |outcome| {
        outcome.unwrap();
        tx.send(std::thread::current().id()).unwrap();
    });
    rig.intake.submit(batch, Some(done)).unwrap();
    saltcellar_testkit::receive(&rx)
}

#[test]
fn the_appender_applies_small_commits_and_the_committer_large_ones() {
    let (dir, rig) = Rig::new(Limits::default());
    let [appender, committer] = [0, 1].map(|n: usize| rig.threads.0[n].thread().id());
    assert_eq!(answered_by(&rig, batch_of([0])), appender);
    assert_eq!(answered_by(&rig, batch_of([1])), appender);
    let body = [
        vec![0xc6, 0, 0, 0x80, 0],
        saltcellar_testkit::Random::new(1).bytes(0x8000),
    ]
    .concat();
    let large = event_entry(b"salt/beacon/web1/noise", &body, Source::Bus, Micros(2));
    assert_eq!(answered_by(&rig, Batch::of(&large)), committer);
    assert_eq!(answered_by(&rig, batch_of([3])), appender);
    rig.close();

    let written = Durability::Written {
        within: std::time::Duration::from_secs(3600),
    };
    let rig = Rig::open(
        dir.path(),
        Limits {
            durability: written,
            ..Limits::default()
        },
    );
    let committer = rig.threads.0[1].thread().id();
    assert_eq!(
        answered_by(&rig, batch_of([4])),
        committer,
        "the committer tracks unsynced writes"
    );
}

/// A copy of the state directory, as after a SIGKILL now.
fn killed(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let done = std::process::Command::new("cp")
        .arg("-a")
        .arg(dir.join("."))
        .arg(copy.path())
        .status();
    assert!(done.unwrap().success());
    copy
}

fn sizes(dir: &Path) -> Vec<u64> {
    files_named(dir, "log")
        .iter()
        .map(|log| fs::metadata(log).unwrap().len())
        .collect()
}

#[test]
fn preallocated_bytes_are_not_damage_and_are_truncated_at_shutdown() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put_each(0..40);
    let grown = sizes(dir.path());
    assert!(
        grown
            .iter()
            .all(|size| *size > saltcellar_base::limits::LOG_BYTES_AHEAD),
        "{grown:?}"
    );

    let killed = killed(dir.path());
    let verified = verify(killed.path(), VerifyOptions::default(), &mut ()).unwrap();
    assert_eq!(
        (
            verified.entries,
            verified.problems.len(),
            verified.notes.len()
        ),
        (40, 0, 0),
        "{verified:?}"
    );
    let again = Rig::open(killed.path(), Limits::default());
    assert_eq!(
        (
            again.metrics.tail_bytes_truncated.get(),
            again.metrics.frames_damaged.get()
        ),
        (0, 0)
    );
    check_all(&again, 0..40);
    again.put(batch_of(40..50)).unwrap();
    check_all(&again, 0..50);
    again.close();
    assert_eq!(
        files_named(killed.path(), "log.cut-64"),
        Vec::<PathBuf>::new()
    );

    rig.close();
    let exact = sizes(dir.path());
    assert!(
        exact
            .iter()
            .zip(&grown)
            .all(|(end, grown)| *end + saltcellar_base::limits::LOG_BYTES_AHEAD / 2 < *grown)
    );
    let verified = verify(dir.path(), VerifyOptions::default(), &mut ()).unwrap();
    assert_eq!(verified.log_bytes, exact.iter().sum::<u64>());
}

#[test]
fn an_unfinished_write_before_preallocated_bytes_is_truncated_and_its_copy_is_exact() {
    let (dir, rig) = Rig::new(Limits::default());
    rig.put(batch_of(0..10)).unwrap();
    let killed = killed(dir.path());
    rig.close();
    let end = sizes(dir.path())[0];
    let log = files_named(killed.path(), "log").remove(0);
    let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.write_all_at(b"\xff\xff\xff\xff\x02\x00half a frame", end)
        .unwrap();
    let verified = verify(killed.path(), VerifyOptions::default(), &mut ()).unwrap();
    assert!(
        verified
            .notes
            .iter()
            .any(|note| note.what.contains("18 bytes")),
        "{verified:?}"
    );
    let again = Rig::open(killed.path(), Limits::default());
    assert_eq!(again.metrics.tail_bytes_truncated.get(), 18);
    check_all(&again, 0..10);
    again.close();
    let kept = log.with_file_name(format!("log.cut-{end}"));
    assert_eq!(
        fs::read(kept).unwrap(),
        b"\xff\xff\xff\xff\x02\x00half a frame"
    );
}
