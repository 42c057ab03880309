//! The tools on small stores.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use super::backup::{self, backup};
use super::rebuild::{SegmentSelector, rebuild};
use super::salvage::{self, SalvageReport};
use super::verify::{self, IndexCheck, VerifyOptions};
use super::{ToolError, layout};
use crate::settings::{Place, Save, Setting, Settings};
use crate::tests::Rig;
use crate::tests::damage::forged::frames;
use crate::tools::backup::restore;
use crate::vfs::Disk;
use crate::*;
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::limits::BLOCK_RAW_BYTES;
use saltcellar_model::{Batch, Entry, EventFilter, Source};
use saltcellar_wire::msgpack::Writer;
use saltcellar_wire::salt_event::event_entry;

mod agree;
mod bits;
mod identity;
mod lost;
mod swap;
mod table;

fn options(dir: &Path) -> Options {
    let limits = Limits {
        segment_bytes_max: 6000,
        ..Limits::default()
    };
    crate::tests::options(dir, limits)
}

/// Runs `work` while a store is open, whose threads end with it.
fn with_store<T>(dir: &Path, work: impl FnOnce(&Store, &Intake) -> T) -> T {
    with_store_of(&options(dir), work)
}

fn with_store_of<T>(options: &Options, work: impl FnOnce(&Store, &Intake) -> T) -> T {
    let rig = Rig::open_with(options);
    work(&rig.store, &rig.intake)
}

/// An event of class `events` if its number is divisible by three, otherwise of `jobs`.
fn event(n: u64) -> (String, Vec<u8>) {
    let jid = format!("20261121030955{:06}", n / 10);
    let mut w = Writer::new();
    w.map(5)
        .str("id")
        .str(&format!("web{n}"))
        .str("jid")
        .str(&jid)
        .str("return")
        .uint(n);
    // Incompressible, because damage must hit bodies.
    let noise: Vec<u8> = (0..20_u64)
        .flat_map(|i| {
            (n * 31 + i)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        })
        .collect();
    w.str("noise").bin(&noise);
    // Large enough that sealing does not merge its block.
    w.str("pad").bin(&vec![b'x'; BLOCK_RAW_BYTES / 2]);
    let tag = if n.is_multiple_of(3) {
        format!("beacon/{n}")
    } else {
        format!("salt/job/{jid}/ret/web{n}")
    };
    (tag, w.into_bytes())
}

/// The master that fired an event.
fn origin(n: u64) -> &'static str {
    if n.is_multiple_of(4) { "master2" } else { "" }
}

fn put(intake: &Intake, numbers: std::ops::Range<u64>) {
    // Small commits make small blocks.
    for n in numbers {
        let mut batch = Batch::default();
        let (tag, data) = event(n);
        let entry = event_entry(tag.as_bytes(), &data, Source::Bus, Micros(5));
        let origin = origin(n);
        batch.push(&Entry { origin, ..entry }, None);
        let (tx, rx) = sync_channel(1);
        intake
            .submit(
                batch,
                Some(Box::new(move |outcome| tx.send(outcome).unwrap())),
            )
            .unwrap();
        saltcellar_testkit::receive(&rx).unwrap();
    }
}

pub(crate) fn salvage(
    from: &Path,
    to: &Path,
    now: Micros,
    watch: &mut dyn super::Watch,
) -> Result<SalvageReport, ToolError> {
    salvage::salvage(from, to, now, &|_, _, _, _| Vec::new(), watch)
}

pub(crate) fn verify(
    dir: &Path,
    options: VerifyOptions,
    watch: &mut dyn super::Watch,
) -> Result<verify::VerifyReport, ToolError> {
    verify::verify(dir, options, &|_, _, _, _| Vec::new(), watch)
}

fn restore(from: &Path, to: &Path, watch: &mut dyn super::Watch) -> Result<(), ToolError> {
    restore::restore(from, to, Micros(10), watch).map(drop)
}

/// Creates a store with these events in several segments.
fn make(dir: &Path, numbers: std::ops::Range<u64>) {
    with_store(dir, |_, intake| put(intake, numbers));
}

/// The content of a store: the tag by sequence number. Without gap records of a restore, whose numbers are checked elsewhere.
fn content(dir: &Path) -> BTreeMap<u64, String> {
    with_store(dir, |store, _| {
        let found = store
            .events_before(
                &EventFilter::default(),
                SeqNo(u64::MAX),
                usize::MAX,
                usize::MAX,
            )
            .unwrap();
        let each = |entry: StoredEntry| {
            let tag = String::from_utf8(entry.tag).unwrap();
            let n = tag
                .rsplit(|c: char| !c.is_ascii_digit())
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(event(n), (tag.clone(), entry.body), "garbage");
            assert_eq!(entry.origin, origin(n), "the master of {tag}");
            (entry.seq.0, tag)
        };
        let is_event = |entry: &StoredEntry| entry.kind != saltcellar_model::Kind::Gap;
        found.into_iter().filter(is_event).map(each).collect()
    })
}

fn check(dir: &Path) -> verify::VerifyReport {
    verify(dir, verify::VerifyOptions::default(), &mut ()).unwrap()
}

fn assert_clean(dir: &Path) {
    let report = check(dir);
    assert!(
        report.problems.is_empty() && report.notes.is_empty(),
        "{report:#?}"
    );
}

fn logs(dir: &Path, class: &str) -> Vec<PathBuf> {
    let of_class = layout::segments(dir)
        .unwrap()
        .into_iter()
        .filter(|segment| segment.class_name == class);
    of_class.map(|segment| segment.log()).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for path in super::files::list(from).unwrap() {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).map(drop).unwrap();
        }
    }
}

fn a_store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    make(&state, 1..200);
    (dir, state)
}

#[test]
fn an_intact_store_verifies() {
    let (_dir, state) = a_store();
    let report = check(&state);
    assert!(
        report.problems.is_empty() && report.notes.is_empty(),
        "{report:#?}"
    );
    assert_eq!(
        (report.entries, report.frames, &report.holder),
        (199, 199, &None)
    );
    let sealed = layout::segments(&state)
        .unwrap()
        .iter()
        .filter(|segment| segment.is_sealed)
        .count() as u64;
    assert!(sealed >= 4, "{sealed}");
    assert_eq!(report.indexes, IndexCheck::Compared(sealed));
    let quick = verify(&state, verify::VerifyOptions { quick: true }, &mut ()).unwrap();
    assert_eq!((quick.entries, quick.problems.len()), (199, 0));
    assert!(matches!(quick.indexes, IndexCheck::Skipped(_)));
}

#[test]
fn beside_a_daemon_everything_but_the_indexes_is_verified() {
    let (_dir, state) = a_store();
    with_store(&state, |_, intake| {
        put(intake, 200..230);
        let report = check(&state);
        assert!(report.problems.is_empty(), "{report:#?}");
        assert_eq!(
            (report.entries, report.holder.as_deref()),
            (229, Some("the test"))
        );
        let IndexCheck::Skipped(why) = report.indexes else {
            panic!()
        };
        assert!(why.contains("the test"), "{why}");
    });
}

/// A damage: name and function; then the expected offset, loss, and text of the finding.
type Case<'a> = (&'a str, &'a dyn Fn(&Path), u64, u64, &'a str);

#[test]
fn every_kind_of_damage_to_a_log_is_found_with_file_offset_and_loss() {
    let (dir, state) = a_store();
    let sealed = logs(&state, "jobs").remove(1);
    let at = frames(&sealed);
    let (first, third) = (at[0], at[2]);
    let size = fs::metadata(&sealed).unwrap().len();
    let cases: [Case<'_>; 7] = [
        ("a header", &|log| flip(log, 20), 0, 0, "log header damaged"),
        (
            "a frame's header",
            &|log| flip(log, third + 9),
            third as u64,
            1,
            "no frame can be read",
        ),
        (
            "a head",
            &|log| flip(log, third + 60),
            third as u64,
            1,
            "head does not match",
        ),
        (
            "bodies",
            &|log| flip(log, at[3] - 20),
            third as u64,
            1,
            "bodies do not match",
        ),
        (
            "the first frame",
            &|log| flip(log, first),
            first as u64,
            1,
            "no frame can be read",
        ),
        (
            "the magic",
            &|log| flip(log, third),
            third as u64,
            1,
            "no frame can be read",
        ),
        (
            "the end",
            &|log| {
                fs::OpenOptions::new()
                    .write(true)
                    .open(log)
                    .unwrap()
                    .set_len(size - 20)
                    .unwrap();
            },
            *at.last().unwrap() as u64,
            1,
            "no complete frame can be read",
        ),
    ];
    for (what, damage, offset, lost_max, words) in cases {
        let hurt = dir.path().join("hurt");
        copy(&state, &hurt);
        let log = hurt.join(sealed.strip_prefix(&state).unwrap());
        damage(&log);
        let report = check(&hurt);
        let found: Vec<_> = report
            .problems
            .iter()
            .filter(|problem| problem.path == log)
            .collect();
        assert_eq!(found.len(), 1, "{what}: {report:#?}");
        assert_eq!(found[0].offset, Some(offset), "{what}: {found:#?}");
        assert!(found[0].what.contains(words), "{what}: {found:#?}");
        let lost = 199 - report.entries;
        assert!(
            lost <= found[0].entries_lost && found[0].entries_lost <= lost_max,
            "{what}: {lost} {found:#?}"
        );
        fs::remove_dir_all(&hurt).unwrap();
    }
}

#[test]
fn an_unfinished_write_and_a_copied_frame_are_not_damage_but_a_duplicate_number_is() {
    let (_dir, state) = a_store();
    let growing = layout::segments(&state)
        .unwrap()
        .into_iter()
        .find(layout::SegmentFiles::grows)
        .unwrap()
        .log();
    let bytes = fs::read(&growing).unwrap();
    let last = *frames(&growing).last().unwrap();
    fs::write(
        &growing,
        [&bytes[..], &bytes[last..bytes.len() - 30]].concat(),
    )
    .unwrap();
    let report = check(&state);
    assert!(report.problems.is_empty(), "{report:#?}");
    assert_eq!(report.notes[0].offset, Some(bytes.len() as u64));
    fs::write(&growing, [&bytes[..], &bytes[last..]].concat()).unwrap();
    let report = check(&state);
    assert!(
        report.problems.is_empty() && report.entries == 199,
        "{report:#?}"
    );
    assert_eq!(report.notes[0].offset, Some(bytes.len() as u64));
    fs::write(&growing, &bytes).unwrap();
    // Valid at its offset, with the sequence number of an entry of another class.
    let text = fs::read_to_string(state.join("FORMAT")).unwrap();
    let segment = layout::segments(&state)
        .unwrap()
        .into_iter()
        .rfind(|segment| segment.class_name == "events")
        .unwrap();
    let id = segment.id(format::read_format(&text).unwrap());
    let growing = fs::read(segment.log()).unwrap();
    let frame = crate::tests::damage::forged::frame_at(id, growing.len() as u64, 199, "twice");
    fs::write(segment.log(), [growing, frame].concat()).unwrap();
    let report = check(&state);
    assert!(
        report.problems[0]
            .what
            .contains("duplicate sequence number 199"),
        "{report:#?}"
    );
}

#[test]
fn an_index_that_differs_from_its_log_is_found_and_rebuilt() {
    let (_dir, state) = a_store();
    let segments: Vec<_> = layout::segments(&state)
        .unwrap()
        .into_iter()
        .filter(|segment| segment.is_sealed)
        .collect();
    let (one, two) = (&segments[0], &segments[1]);
    assert_eq!(one.class_name, two.class_name);
    // An intact index of another segment.
    fs::copy(two.index(), one.index()).unwrap();
    let report = check(&state);
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    assert_eq!(report.problems[0].path, one.index());
    assert_eq!(report.problems[0].entries_lost, 0);
    let before = report.entries;
    let which = SegmentSelector { name: one.name() };
    assert_eq!(
        rebuild(&options(&state), Some(&which), &mut ())
            .unwrap()
            .segments,
        1
    );
    assert_clean(&state);
    let report = rebuild(&options(&state), None, &mut ()).unwrap();
    assert_eq!(
        (report.segments, report.entries),
        (segments.len() as u64, before)
    );
    assert_clean(&state);
    assert_eq!(content(&state).len(), 199);
    let error = rebuild(
        &options(&state),
        Some(&SegmentSelector {
            name: "jobs/7777".into(),
        }),
        &mut (),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("no segment jobs/7777"),
        "{error}"
    );
}

#[test]
fn a_missing_segment_is_detected() {
    let (_dir, state) = a_store();
    let segments: Vec<_> = layout::segments(&state)
        .unwrap()
        .into_iter()
        .filter(|segment| segment.is_sealed)
        .collect();
    fs::remove_file(segments[1].log()).unwrap();
    let before = check(&state);
    assert_eq!(before.problems.len(), 1, "{before:#?}");
    fs::remove_dir_all(&segments[1].dir).unwrap();
    let report = check(&state);
    let [missing] = &report.problems[..] else {
        panic!("{report:#?}");
    };
    assert_eq!(
        (&missing.what, &missing.means),
        (&before.problems[0].what, &before.problems[0].means)
    );
    assert_eq!(before.problems[0].path, segments[1].log());
    // Of any generation.
    let lost = segments[1].dir.with_extension("*").join("log");
    assert_eq!(missing.path, lost);
    assert_eq!(report.entries_lost(), 199 - report.entries);
}

/// Does something at each step of a tool, whose number it gets.
struct AtStep<F>(usize, F);

impl<F: FnMut(usize)> super::Watch for AtStep<F> {
    fn step(&mut self, _: u64, _: u64, _: &str) {
        self.1(self.0);
        self.0 += 1;
    }
}

#[test]
fn a_daemon_that_starts_during_a_check_is_no_damage() {
    let (dir, state) = a_store();
    let mut daemon = None;
    let mut start = AtStep(0, |step| {
        if step == 0 {
            let rig = Rig::open_with(&options(&state));
            put(&rig.intake, 1000..1100);
            daemon = Some(rig);
        }
    });
    let report = verify(&state, VerifyOptions::default(), &mut start).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.holder.as_deref(), Some("the test"));
    daemon.take().unwrap().close();
    assert_eq!(check(&state).problems, []);

    // One that starts and ends again and again.
    let mut restart = AtStep(0, |step| {
        let lock = fs::File::options().write(true).open(state.join("FORMAT"));
        let lock = lock.unwrap();
        let before = lock.metadata().unwrap().modified().unwrap();
        let later = before + std::time::Duration::from_secs(step as u64 + 1);
        lock.set_modified(later).unwrap();
    });
    let error = verify(&state, VerifyOptions::default(), &mut restart).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("started and stopped during each"), "{error}");

    // A salvaged store would mix the states of two moments.
    let to = dir.path().join("new");
    let mut start = AtStep(0, |step| {
        if step == 0 {
            daemon = Some(Rig::open_with(&options(&state)));
        }
    });
    let error = salvage(&state, &to, Micros(0), &mut start)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("in use by a daemon that was started meanwhile"),
        "{error}"
    );
    assert!(!to.join("FORMAT").exists());
}

#[test]
fn rebuild_and_salvage_fail_while_the_store_is_open() {
    let (dir, state) = a_store();
    with_store(&state, |_, _| {
        let error = rebuild(&options(&state), None, &mut ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("in use by the test"), "{error}");
        let error = salvage(&state, &dir.path().join("new"), Micros(0), &mut ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("in use by the test"), "{error}");
    });
    assert!(state.join("state").is_dir());
}

#[test]
fn a_directory_that_is_not_a_store_is_rejected_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let expect_error = |path: &Path, words: &str| {
        let error = verify(path, verify::VerifyOptions::default(), &mut ())
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
        let error = backup(
            path,
            &dir.path().join("b"),
            backup::BackupOptions::default(),
            Micros(0),
            &mut (),
        );
        assert!(error.unwrap_err().to_string().contains(words));
    };
    expect_error(&dir.path().join("nowhere"), "no such directory");
    expect_error(dir.path(), "FORMAT is missing");
    fs::create_dir(dir.path().join("log")).unwrap();
    expect_error(dir.path(), "`saltcellar store salvage`");
    fs::write(dir.path().join("FORMAT"), "saltcellar store, format 99\n").unwrap();
    expect_error(dir.path(), "has format 99");
    fs::write(dir.path().join("FORMAT"), "nonsense").unwrap();
    expect_error(dir.path(), "FORMAT is damaged");
}

#[test]
fn salvage_copies_an_intact_store_completely() {
    let (dir, state) = a_store();
    let before = content(&state);
    let new = dir.path().join("new");
    let report = salvage(&state, &new, Micros(7), &mut ()).unwrap();
    assert!(
        report.losses.is_empty() && report.foreign.is_empty(),
        "{report:#?}"
    );
    assert_eq!(
        report.classes,
        [("events".to_owned(), 66), ("jobs".to_owned(), 133)]
    );
    assert_eq!(report.doubles, 0);
    assert_clean(&new);
    assert_eq!(content(&new), before);
    // The new store continues after its last entry.
    make(&new, 200..210);
    assert_eq!(content(&new).len(), 209);
    let error = salvage(&state, &new, Micros(7), &mut ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not empty"), "{error}");
    let error = salvage(&state, &state.join("new"), Micros(7), &mut ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("is inside"), "{error}");
}

#[test]
fn salvage_copies_readable_entries_and_reports_the_rest() {
    let (dir, state) = a_store();
    let before = content(&state);
    let (jobs, events) = (logs(&state, "jobs"), logs(&state, "events"));
    // All together: no FORMAT, a header cut out, a torn and a flipped frame, an unknown class, a
    // foreign file, bytes cut from a log by a start, and a copy of a segment under another name.
    fs::remove_file(state.join("FORMAT")).unwrap();
    flip(&jobs[0], 3);
    let at = frames(&jobs[1]);
    flip(&jobs[1], at[1] + 5);
    flip(&jobs[1], at[3] - 20);
    let at = frames(&events[0]);
    fs::OpenOptions::new()
        .write(true)
        .open(&events[0])
        .unwrap()
        .set_len(at[at.len() - 1] as u64 + 50)
        .unwrap();
    let class = state.join("log/strange");
    fs::create_dir(&class).unwrap();
    fs::rename(
        events[1].parent().unwrap(),
        class.join(events[1].parent().unwrap().file_name().unwrap()),
    )
    .unwrap();
    fs::write(state.join("log/jobs/notes.txt"), "nothing of saltcellar's").unwrap();
    let last = fs::read(&jobs[2]).unwrap();
    let cut = *frames(&jobs[2]).last().unwrap();
    fs::write(&jobs[2], &last[..cut]).unwrap();
    fs::write(
        jobs[2].with_file_name(format!("log.cut-{cut}")),
        &last[cut..],
    )
    .unwrap();
    copy(
        jobs[3].parent().unwrap(),
        &state.join("log/jobs/copy of it"),
    );
    let damaged: BTreeMap<_, _> = walk(&state);
    let new = dir.path().join("new");
    let report = salvage(&state, &new, Micros(7), &mut ()).unwrap();
    assert_eq!(walk(&state), damaged, "the damaged directory was changed");
    assert_eq!(report.entries_lost(), 3, "{report:#?}");
    let lost: Vec<_> = report
        .losses
        .iter()
        .map(|loss| (loss.path.clone(), loss.range.offset))
        .collect();
    let frames_of_jobs = frames(&jobs[1]);
    let expected = [
        (
            events[0].clone(),
            *frames(&events[0]).last().unwrap() as u64,
        ),
        (jobs[1].clone(), at_of(&jobs[1], 1)),
        (jobs[1].clone(), frames_of_jobs[1] as u64),
    ];
    for segment in &expected {
        assert!(lost.contains(segment), "{segment:?} in {lost:#?}");
    }
    assert_eq!(report.foreign, [state.join("log/jobs/notes.txt")]);
    assert!(report.doubles > 0);
    assert_clean(&new);
    let after = content(&new);
    assert_eq!(after.len(), before.len() - 3);
    assert!(
        after.iter().all(|(seq, tag)| before.get(seq) == Some(tag)),
        "sequence numbers are unchanged"
    );
}

/// Offset of frame `n`, whose magic is damaged: the end of the previous frame.
fn at_of(path: &Path, n: usize) -> u64 {
    let bytes = fs::read(path).unwrap();
    let before = frames(path)[n - 1];
    let len = |at: usize| {
        u32::from_le_bytes(bytes[before + at..][..4].try_into().unwrap()).next_multiple_of(16)
    };
    before as u64 + 48 + u64::from(len(8) + len(12))
}

/// All files and their content.
fn walk(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in super::files::list(dir).unwrap() {
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn back_up(state: &Path, to: &Path, delete: bool) -> Result<backup::BackupReport, ToolError> {
    backup(
        state,
        to,
        backup::BackupOptions {
            delete,
            link: false,
        },
        Micros(9),
        &mut (),
    )
}

#[test]
fn a_backup_is_restored_and_the_next_one_is_incremental() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    let first = back_up(&state, &to, false).unwrap();
    // Those of entries, and two of settings.
    let segments = layout::segments(&state).unwrap().len() as u64 + 2;
    assert_eq!(
        (first.segments, first.segments_copied),
        (segments, segments)
    );
    assert_eq!(back_up(&state, &to, false).unwrap().segments_copied, 0);
    restore(&to, &new, &mut ()).unwrap();
    assert_clean(&new);
    assert_eq!(content(&new), content(&state));
    let error = restore(&to, &new, &mut ()).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");

    make(&state, 200..260);
    let second = back_up(&state, &to, false).unwrap();
    assert!(
        second.segments > segments && second.segments_copied <= second.segments - segments + 4,
        "{second:?}"
    );
    // Superseded copies are removed.
    let files = walk(&to)
        .into_keys()
        .filter(|path| path.starts_with(to.join("log")))
        .count() as u64;
    assert_eq!(files, second.segments);
    let newer = dir.path().join("newer");
    restore(&to, &newer, &mut ()).unwrap();
    assert_eq!(content(&newer), content(&state));
}

/// A setting that is true at its time only.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Moment(u64);

impl Setting for Moment {
    const KIND: &'static str = "reactor";
}

/// The settings of a store.
pub(super) fn settings_of(state: &Path) -> Settings {
    let place = Place {
        state_dir: state,
        store_id: layout::check_store(state).unwrap(),
        position: None,
        is_new: false,
        growth: 1 << 20,
    };
    Settings::open(Arc::new(Disk), place, Clock::manual(Micros(1))).unwrap()
}

#[test]
fn settings_are_part_of_a_backup_and_of_a_salvaged_store() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    let set = |reason: &str| {
        let settings = settings_of(&state);
        let hold = Hold {
            jid: "20261121030955000001".to_owned(),
            since: Micros(1),
            reason: reason.to_owned(),
            origin: String::new(),
            changed: None,
        };
        settings.put(&hold.jid, &hold, Save::Durable).unwrap();
        settings.put("x", &Moment(7), Save::Durable).unwrap();
    };
    set("older");
    back_up(&state, &to, false).unwrap();
    set("newer");
    back_up(&state, &to, false).unwrap();
    let copies = || {
        let paths = walk(&to).into_keys();
        paths
            .filter(|path| path.starts_with(to.join("log/settings")))
            .count()
    };
    assert_eq!(copies(), 2, "superseded copies are removed");

    restore(&to, &new, &mut ()).unwrap();
    let [salvaged, of_backup] = ["salvaged", "of the backup"].map(|name| dir.path().join(name));
    salvage(&state, &salvaged, Micros(9), &mut ()).unwrap();
    salvage(&to, &of_backup, Micros(9), &mut ()).unwrap();
    for (dir, has_moment) in [(&new, false), (&salvaged, true), (&of_backup, true)] {
        let settings = settings_of(dir);
        assert_eq!(settings.loss(), None);
        let holds = settings.all::<Hold>("");
        assert_eq!(holds.len(), 1);
        assert_eq!(holds[0].value.as_ref().unwrap().reason, "newer");
        assert_eq!(settings.get::<Moment>("x").is_some(), has_moment);
    }
}

#[test]
fn a_backup_beside_a_daemon_has_every_entry_acknowledged_before() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    with_store(&state, |_, intake| {
        put(intake, 200..230);
        std::thread::scope(|scope| {
            let intake = intake.clone();
            std::thread::Builder::new()
                .spawn_scoped(scope, move || put(&intake, 230..300))
                .unwrap();
            back_up(&state, &to, false).unwrap();
        });
    });
    restore(&to, &new, &mut ()).unwrap();
    assert_clean(&new);
    assert!(content(&new).len() >= 229);
}

#[test]
fn a_backup_omits_preallocated_bytes() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let backed_up = || back_up(dir.path(), to.path(), false).unwrap();
    let on_disk = || -> u64 {
        let segments = layout::segments(dir.path()).unwrap().into_iter();
        let logs = segments.map(|segment| segment.log());
        logs.map(|log| fs::metadata(log).unwrap().len()).sum()
    };
    let of_settings = || -> u64 {
        let segments = layout::settings_segments(dir.path()).unwrap();
        let logs = segments.iter().map(layout::SegmentFiles::log);
        logs.map(|log| fs::metadata(log).unwrap().len()).sum()
    };
    let options = Options {
        limits: Limits::default(),
        ..options(dir.path())
    };
    let (copied, running, settings) = with_store_of(&options, |_, intake| {
        put(intake, 0..4);
        assert!(backed_up().segments_copied > 0);
        assert_eq!(backed_up().segments_copied, 0);
        // File sizes do not change, and neither may their timestamps.
        let files: Vec<_> = layout::segments(dir.path())
            .unwrap()
            .iter()
            .map(|segment| fs::File::open(segment.log()).unwrap())
            .collect();
        let times: Vec<_> = files
            .iter()
            .map(|file| file.metadata().unwrap().modified().unwrap())
            .collect();
        let before = on_disk();
        put(intake, 4..5);
        assert_eq!(on_disk(), before);
        files
            .iter()
            .zip(times)
            .for_each(|(file, time)| file.set_modified(time).unwrap());
        (backed_up(), before, of_settings())
    });
    assert!(
        copied.segments_copied > 0 && copied.bytes < running,
        "{copied:?}"
    );
    assert_eq!(copied.bytes, on_disk() + settings);
    let again = dir.path().join("again");
    restore(to.path(), &again, &mut ()).unwrap();
    assert_eq!(content(&again).len(), 5);
}

#[test]
fn segments_dropped_by_retention_stay_in_a_backup_by_default() {
    let (dir, state) = a_store();
    let to = dir.path().join("backup");
    let all = back_up(&state, &to, false).unwrap().segments;
    fs::remove_dir_all(logs(&state, "events")[0].parent().unwrap()).unwrap();
    let kept = back_up(&state, &to, false).unwrap();
    assert_eq!((kept.segments, kept.segments_dropped), (all, 1));
    assert_eq!(back_up(&state, &to, false).unwrap().segments, all);
    let deleted = back_up(&state, &to, true).unwrap();
    assert_eq!((deleted.segments, deleted.segments_deleted), (all - 1, 1));
    assert_eq!(walk(&to.join("log")).len() as u64, all - 1);
}

/// Panics at a step.
struct Stops(u32);
impl super::Watch for Stops {
    fn step(&mut self, _: u64, _: u64, _: &str) {
        self.0 -= 1;
        assert!(self.0 > 0, "interrupted");
    }
}

#[test]
fn an_interrupted_backup_leaves_the_previous_one_intact() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    back_up(&state, &to, false).unwrap();
    let before = content(&state);
    let old = walk(&to);
    make(&state, 200..260);
    for steps in 1..6 {
        let attempt = std::panic::catch_unwind(|| {
            backup(
                &state,
                &to,
                backup::BackupOptions::default(),
                Micros(9),
                &mut Stops(steps),
            )
            .map(drop)
        });
        assert!(attempt.is_err());
        let now = walk(&to);
        assert!(
            old.iter()
                .all(|(path, content)| now.get(path) == Some(content))
        );
    }
    restore(&to, &new, &mut ()).unwrap();
    assert_eq!(content(&new), before);
    // The next one removes the remains.
    let last = back_up(&state, &to, false).unwrap();
    assert_eq!(walk(&to.join("log")).len() as u64, last.segments);
    // The same after an interrupted first backup.
    let fresh = dir.path().join("fresh");
    let attempt = std::panic::catch_unwind(|| {
        backup(
            &state,
            &fresh,
            backup::BackupOptions::default(),
            Micros(9),
            &mut Stops(3),
        )
        .map(drop)
    });
    assert!(attempt.is_err() && !fresh.join("MANIFEST").exists());
    assert!(
        restore(&fresh, &dir.path().join("x"), &mut ())
            .unwrap_err()
            .to_string()
            .contains("no MANIFEST")
    );
    back_up(&state, &fresh, false).unwrap();
    assert_eq!(walk(&fresh.join("log")).len() as u64, last.segments);
    assert!(!fresh.join("UNFINISHED").exists());
}

#[test]
fn a_backup_rejects_a_directory_with_other_files() {
    let (dir, state) = a_store();
    fs::write(dir.path().join("mine"), "precious").unwrap();
    for to in [
        dir.path().to_owned(),
        state.join("backup"),
        dir.path().join("mine"),
    ] {
        let error = back_up(&state, &to, true).unwrap_err().to_string();
        let words = [
            "is not empty",
            "is inside",
            "is not a directory for a backup",
        ];
        assert!(words.iter().any(|words| error.contains(words)), "{error}");
    }
}

#[test]
fn a_damaged_backup_is_rejected_with_the_name_of_the_file() {
    let (dir, state) = a_store();
    let to = dir.path().join("backup");
    back_up(&state, &to, false).unwrap();
    let file = walk(&to.join("log")).into_keys().nth(2).unwrap();
    flip(&file, 100);
    let error = restore(&to, &dir.path().join("a"), &mut ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(file.to_str().unwrap()) && error.contains("damaged"),
        "{error}"
    );
    fs::remove_file(&file).unwrap();
    assert!(restore(&to, &dir.path().join("b"), &mut ()).is_err());
    assert!(!dir.path().join("b").exists());
    // Its intact part can be salvaged.
    let report = salvage(&to, &dir.path().join("c"), Micros(7), &mut ()).unwrap();
    assert!(
        report.entries() > 100 && report.foreign.is_empty(),
        "{report:#?}"
    );
    flip(&to.join("MANIFEST"), 40);
    let error = restore(&to, &dir.path().join("d"), &mut ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("MANIFEST") && error.contains("damaged"),
        "{error}"
    );
}

#[test]
fn a_damaged_store_is_backed_up_unchanged_and_reported() {
    let (dir, state) = a_store();
    let log = logs(&state, "jobs").remove(0);
    let at = frames(&log)[1];
    flip(&log, at + 9);
    let to = dir.path().join("backup");
    let report = back_up(&state, &to, false).unwrap();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(
        (&report.damaged[0].0, report.damaged[0].1),
        (&log, at as u64)
    );
    restore(&to, &dir.path().join("new"), &mut ()).unwrap();
    assert_eq!(check(&dir.path().join("new")).problems.len(), 1);
}

#[test]
fn a_new_file_system_takes_a_backup() {
    let (dir, state) = a_store();
    let (to, new) = (dir.path().join("backup"), dir.path().join("new"));
    std::fs::create_dir_all(to.join("lost+found")).unwrap();
    for _ in 0..2 {
        back_up(&state, &to, false).unwrap();
    }
    assert!(to.join("lost+found").is_dir());
    restore(&to, &new, &mut ()).unwrap();
    assert_eq!(content(&new), content(&state));

    // Anything else is somebody's.
    let other = dir.path().join("other");
    std::fs::create_dir_all(other.join("lost+found")).unwrap();
    std::fs::write(other.join("notes"), b"").unwrap();
    let error = back_up(&state, &other, false).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
}
