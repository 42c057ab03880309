//! Unfinished writes: recovery at start, and the findings of `verify` before and after.

use super::forged::frames;
use crate::tests::*;
use crate::tools::tests::verify;
use crate::tools::verify;

/// Entries that each fill a block, in one commit.
fn large_batch(tags: &[&str]) -> Batch {
    let mut batch = Batch::default();
    for (seed, tag) in (1..).zip(tags) {
        let body = noise(seed, saltcellar_base::limits::BLOCK_RAW_BYTES);
        batch.push(
            &event_entry(tag.as_bytes(), &body, Source::Bus, Micros(0)),
            None,
        );
    }
    batch
}

fn zero(path: &Path, from: usize, bytes: usize) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; bytes], from as u64).unwrap();
}

fn check(dir: &Path) -> verify::VerifyReport {
    verify(dir, verify::VerifyOptions::default(), &mut ()).unwrap()
}

/// Creates and closes a store with these commits; returns the log of its events.
fn store_of(dir: &Path, commits: Vec<Batch>) -> PathBuf {
    store_with(dir, commits, Durability::Durable)
}

fn store_with(dir: &Path, commits: Vec<Batch>, durability: Durability) -> PathBuf {
    let limits = Limits {
        durability,
        ..Limits::default()
    };
    let rig = Rig::open(dir, limits);
    for batch in commits {
        rig.put(batch).unwrap();
    }
    rig.close();
    files_named(dir, "log").remove(0)
}

#[test]
fn a_torn_tail_with_a_complete_head_is_not_reported_as_loss() {
    let dir = tempfile::tempdir().unwrap();
    let log = store_of(
        dir.path(),
        vec![bare_event("first"), large_batch(&["torn"])],
    );
    let len = usize::try_from(fs::metadata(&log).unwrap().len()).unwrap();
    zero(&log, len - 4096, 4096);
    let report = check(dir.path());
    assert!(report.problems.is_empty(), "{report:#?}");
    assert_eq!(report.notes.len(), 1, "{report:#?}");
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), ["first"]);
    assert_eq!(rig.metrics.frames_damaged.get(), 0);
}

#[test]
fn a_commit_torn_in_its_first_frame_is_not_damage() {
    let dir = tempfile::tempdir().unwrap();
    let log = store_of(
        dir.path(),
        vec![
            bare_event("first"),
            large_batch(&["torn", "second", "third"]),
        ],
    );
    let at = frames(&log);
    assert_eq!(at.len(), 4, "one frame each");
    // More than the header, or only the bodies.
    let whole = fs::read(&log).unwrap();
    for (from, bytes) in [
        (at[1] / 512 * 512 + 512, 512),
        (at[1], 600),
        (at[1], at[2] - at[1]),
    ] {
        fs::write(&log, &whole).unwrap();
        zero(&log, from, bytes);
        let report = check(dir.path());
        assert!(report.problems.is_empty(), "{report:#?}");
        assert_eq!(report.notes.len(), 1, "{report:#?}");
        for start in 0..2 {
            let rig = Rig::open(dir.path(), Limits::default());
            assert_eq!(rig.tags(), ["first", "second", "third"]);
            assert_eq!(rig.metrics.frames_damaged.get(), 0);
            assert_eq!(
                rig.metrics.tail_bytes_truncated.get() > 0,
                start == 0,
                "start {start}"
            );
            rig.close();
            let report = check(dir.path());
            assert!(
                report.problems.is_empty() && report.notes.is_empty(),
                "{report:#?}"
            );
        }
        let copy = fs::read(log.with_file_name(format!("log.cut-{}", at[1]))).unwrap();
        assert_eq!(copy.len(), at[2] - at[1]);
    }
    let rig = Rig::open(dir.path(), Limits::default());
    rig.put(bare_event("last")).unwrap();
    let rig = rig.reopened();
    assert_eq!(rig.tags(), ["first", "second", "third", "last"]);
}

#[test]
fn damage_before_a_later_commit_is_not_an_unfinished_write() {
    let dir = tempfile::tempdir().unwrap();
    let commits = vec![
        bare_event("first"),
        large_batch(&["rotten", "second"]),
        bare_event("last"),
    ];
    let log = store_of(dir.path(), commits);
    zero(&log, frames(&log)[1], 600);
    assert_eq!(check(dir.path()).problems.len(), 1);
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), ["first", "second", "last"]);
    assert_eq!(
        (
            rig.metrics.frames_damaged.get(),
            rig.metrics.tail_bytes_truncated.get()
        ),
        (1, 0)
    );
    rig.close();
    assert_eq!(check(dir.path()).problems.len(), 1);
}

#[test]
fn unsynced_commits_that_a_power_loss_tears_are_not_damage() {
    let dir = tempfile::tempdir().unwrap();
    let commits = ["torn", "kept", "also torn"].map(|tag| large_batch(&[tag]));
    // They are acknowledged long before the first sync.
    let within = std::time::Duration::from_secs(3600);
    let log = store_with(dir.path(), commits.into(), Durability::Written { within });
    let at = frames(&log);
    assert_eq!(at.len(), 3, "one frame each");
    // The disk has written some sectors of each, in any order: of the last one, not the header.
    zero(&log, at[0] / 512 * 512 + 512, 512);
    zero(&log, at[2], 600);

    let report = check(dir.path());
    assert!(report.problems.is_empty(), "{report:#?}");
    let rig = Rig::open(dir.path(), Limits::default());
    assert_eq!(rig.tags(), ["kept"]);
    assert_eq!(rig.metrics.frames_damaged.get(), 0);
    assert!(rig.metrics.tail_bytes_truncated.get() > 0);
    rig.close();
    let report = check(dir.path());
    assert!(
        report.problems.is_empty() && report.notes.is_empty(),
        "{report:#?}"
    );
}

#[test]
fn bytes_cut_from_a_log_survive_the_rewrite_of_its_segment() {
    let (dir, rig) = Rig::new(SMALL);
    (0..3).for_each(|n| rig.put(batch_of([n * 3])).unwrap());
    rig.close();
    let log = files_named(dir.path(), "log").remove(0);
    let len = fs::metadata(&log).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&log)
        .unwrap()
        .write_all_at(b"half a frame", len)
        .unwrap();
    let rig = Rig::open(dir.path(), SMALL);
    (3..100).for_each(|n| rig.put(batch_of([n * 3])).unwrap());
    let metrics = rig.metrics.clone();
    rig.close();
    let log = files_named(dir.path(), "log").remove(0);
    assert!(
        log.with_file_name("index").is_file() && metrics.segments_rewritten.get() > 0,
        "it was merged"
    );
    assert_eq!(
        fs::read(log.with_file_name(format!("log.cut-{len}"))).unwrap(),
        b"half a frame"
    );
}
