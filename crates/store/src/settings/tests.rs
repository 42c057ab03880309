//! Tests of the settings: damage of every kind, power losses, and failing writes.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;

use serde::{Deserialize, Serialize};

use super::*;
use crate::log::file::LogFile;
use crate::log::frame::LogId;
use crate::log::walk::{Bounds, walk};
use crate::vfs::Disk;
use crate::vfs::faults::{Act, Fault, Faults, Plan};
use crate::vfs::power_cut::{PowerCut, Survives};
use saltcellar_base::limits::SECTOR_BYTES;
use saltcellar_testkit::Random;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Number(u64);

impl Setting for Number {
    const KIND: &'static str = "number";
}

/// Removes all segments.
pub(crate) fn lose_all(state_dir: &Path) {
    for dir in segments(state_dir) {
        fs::remove_dir_all(dir).unwrap();
    }
}

/// Damages the last change in both copies.
pub(crate) fn lose_last(state_dir: &Path) {
    // A change behind it: otherwise it looks like an unfinished write.
    let settings = Settings::for_tests(state_dir);
    settings.put("behind", &Number(0), Save::Durable).unwrap();
    drop(settings);

    for dir in segments(state_dir) {
        let frames = frames(&dir);
        let at = frames[frames.len() - 2];
        flip(&dir.join("log"), usize::try_from(at).unwrap());
    }
}

fn segments(state_dir: &Path) -> Vec<PathBuf> {
    let found = format::generations(&format::class_dir(state_dir, SETTINGS)).unwrap();
    found.into_iter().map(|found| found.dir).collect()
}

/// The offsets of the frames of a segment.
fn frames(dir: &Path) -> Vec<u64> {
    let (first_seq, _) = format::generation_of(format::name_of(dir)).unwrap();
    let id = LogId {
        store_id: 7,
        first_seq,
    };
    let log = LogFile::open(&Disk, &dir.join("log"), SETTINGS, id).unwrap();
    let mut offsets = Vec::new();
    let note = |offset| {
        offsets.push(offset);
        None
    };
    let mut note = note;
    walk(
        &log,
        Bounds::of_log(log.size().unwrap()),
        true,
        |meta, _| note(meta.offset),
    )
    .unwrap();
    offsets
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn numbers(settings: &Settings) -> BTreeMap<String, u64> {
    let found = settings.all::<Number>("").into_iter();
    found
        .map(|found| (found.name, found.value.unwrap().0))
        .collect()
}

/// A directory with some settings, and these.
fn filled() -> (tempfile::TempDir, BTreeMap<String, u64>) {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::for_tests(dir.path());
    for n in 0..6 {
        settings
            .put(&format!("n{}", n % 4), &Number(n), Save::Durable)
            .unwrap();
    }
    settings.remove::<Number>("n3").unwrap();
    let mut both = Changes::default();
    both.put("a", &Number(10)).unwrap();
    both.put("b", &Number(11)).unwrap();
    settings.commit(both, Save::Durable).unwrap();
    let numbers = numbers(&settings);
    assert_eq!(numbers.len(), 5);
    (dir, numbers)
}

fn copy_of(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    // Not by a program: while one is started, it holds the locks of all stores of this process.
    for dir in segments(from) {
        let copy = to.path().join(dir.strip_prefix(from).unwrap());
        fs::create_dir_all(&copy).unwrap();
        fs::copy(dir.join("log"), copy.join("log")).unwrap();
    }
    to
}

/// Nothing of a damaged copy is lost, and it is noticed.
fn check_found(dir: &Path, expected: &BTreeMap<String, u64>, may_be_whole: bool, what: &str) {
    let found = FoundSettings::read(&Disk, dir, 7, None).unwrap();
    assert_eq!(found.missing, None, "{what}");
    assert!(may_be_whole || !found.is_whole(), "{what}");
    let value = |stored: &Stored| Number::decode(&stored.value).unwrap().0;
    let values = found.values.iter();
    let values = values.map(|(key, stored)| (key["number/".len()..].to_owned(), value(stored)));
    assert_eq!(values.collect::<BTreeMap<_, _>>(), *expected, "{what}");
}

/// Nothing of a damaged copy is lost, and both copies are whole afterwards.
fn check_repaired(dir: &Path, expected: &BTreeMap<String, u64>, what: &str) {
    let settings = Settings::for_tests(dir);
    assert_eq!(numbers(&settings), *expected, "{what}");
    assert_eq!(settings.loss(), None, "{what}");
    drop(settings);
    let found = FoundSettings::read(&Disk, dir, 7, None).unwrap();
    assert!(found.is_whole(), "{what}: {found:?}");
}

#[test]
fn settings_survive_restarts_and_new_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    for round in 0..8_u64 {
        let settings = Settings::for_tests(dir.path());
        assert_eq!(numbers(&settings), expected, "{round}");
        for n in 0..40 {
            let (name, number) = (format!("n{}", n % 7), round * 100 + n);
            let save = if n % 3 == 0 {
                Save::Durable
            } else {
                Save::Later
            };
            settings.put(&name, &Number(number), save).unwrap();
            expected.insert(name, number);
        }
        assert!(settings.remove::<Number>("n1").unwrap());
        assert!(!settings.remove::<Number>("n1").unwrap());
        expected.remove("n1");
        assert!(segments(dir.path()).len() <= 2);
        names.extend(segments(dir.path()));
    }
    assert!(names.len() > 4, "{names:?}");
}

#[test]
fn damage_of_one_copy_loses_nothing() {
    let (made, expected) = filled();
    for (copy, dir) in segments(made.path()).into_iter().enumerate() {
        let log = dir.join("log");
        let log = log.strip_prefix(made.path()).unwrap();
        let whole = fs::read(made.path().join(log)).unwrap();

        let check = |what: &str, hurt: &dyn Fn(&Path)| {
            let dir = copy_of(made.path());
            hurt(&dir.path().join(log));
            check_repaired(dir.path(), &expected, &format!("copy {copy}, {what}"));
        };
        // Each byte, one bit of it. A start repairs it; that takes longer, and is the same for all.
        for at in 0..whole.len() {
            let hurt = copy_of(made.path());
            let path = hurt.path().join(log);
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            // Zero bytes between the parts of a frame mean nothing.
            let is_padding = whole[at] == 0;
            let what = format!("copy {copy}, bit flipped at {at}");
            check_found(hurt.path(), &expected, is_padding, &what);
            if at % 256 == 0 {
                check_repaired(hurt.path(), &expected, &format!("copy {copy}, byte {at}"));
            }
        }
        for len in (0..whole.len()).step_by(48) {
            let hurt = copy_of(made.path());
            fs::write(hurt.path().join(log), &whole[..len]).unwrap();
            check_found(
                hurt.path(),
                &expected,
                false,
                &format!("copy {copy}, cut to {len}"),
            );
        }
        check("cut in half", &|path| {
            fs::write(path, &whole[..whole.len() / 2]).unwrap();
        });
        check("zeroed", &|path| {
            fs::write(path, vec![0; whole.len()]).unwrap();
        });
        check("log deleted", &|path| fs::remove_file(path).unwrap());
        check("directory deleted", &|path| {
            fs::remove_dir_all(path.parent().unwrap()).unwrap();
        });
    }
}

#[test]
fn an_unreadable_sector_of_one_copy_loses_nothing_and_an_error_to_try_again_changes_nothing() {
    let (made, expected) = filled();
    for dir in segments(made.path()) {
        let within = dir.strip_prefix(made.path()).unwrap().to_str().unwrap();
        let copy = copy_of(made.path());
        let plan = Arc::new(Plan::default());
        let disk: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        plan.add(Fault {
            within: within.to_owned(),
            ..Fault::lasting(Act::Read, Errno::NOMEM)
        });
        let before = segments(copy.path());
        let error = Settings::for_tests_on(copy.path(), disk.clone()).unwrap_err();
        assert!(!error.is_damage(), "{error}");
        assert_eq!(segments(copy.path()), before);
        plan.heal();

        plan.add_bad_sector(within, 0..SECTOR_BYTES as u64);
        let settings = Settings::for_tests_on(copy.path(), disk).unwrap();
        assert_eq!(
            (numbers(&settings), settings.loss()),
            (expected.clone(), None)
        );
        assert!(!settings.damage().is_empty());
        drop(settings);
        check_repaired(copy.path(), &expected, within);
    }
}

#[test]
fn what_is_damaged_in_both_copies_is_counted_and_stays_uncertain_until_it_is_accepted() {
    let (dir, mut expected) = filled();
    lose_last(dir.path());
    // The last change was a batch: without one of it there is none.
    expected.remove("a");
    expected.remove("b");
    expected.insert("behind".to_owned(), 0);

    for restart in 0..2 {
        let settings = Settings::for_tests(dir.path());
        assert_eq!(numbers(&settings), expected, "{restart}");
        let loss = settings.loss().expect("a loss");
        assert_eq!(loss.records, Some(2));
        assert!(
            settings
                .fault()
                .unwrap()
                .problem
                .contains("2 settings changes")
        );
        let is_uncertain = |name| settings.get::<Number>(name).unwrap().is_uncertain;
        assert!(is_uncertain("n0"));
        assert!(!is_uncertain("behind"), "changed since");
    }

    let settings = Settings::for_tests(dir.path());
    settings.put("n0", &Number(5), Save::Durable).unwrap();
    let is_uncertain = |name| settings.get::<Number>(name).unwrap().is_uncertain;
    assert!(!is_uncertain("n0") && is_uncertain("n1"));
    assert!(settings.accept_loss().unwrap() && !settings.accept_loss().unwrap());
    assert!(!is_uncertain("n1"));
    drop(settings);
    let settings = Settings::for_tests(dir.path());
    assert!(settings.loss().is_none() && settings.fault().is_none());
    // What is left of the damaged logs.
    let class_dir = format::class_dir(dir.path(), SETTINGS);
    let kept = format::list(&class_dir).unwrap().into_iter();
    let kept = kept.filter(|path| format::name_of(path).ends_with(DAMAGED));
    assert_eq!(kept.count(), 2);
}

#[test]
fn settings_that_are_all_gone_are_lost_and_not_new() {
    let (dir, _) = filled();
    lose_all(dir.path());
    let settings = Settings::for_tests(dir.path());
    assert_eq!(settings.loss().unwrap().records, None);
    settings.put("fresh", &Number(1), Save::Durable).unwrap();
    assert!(!settings.get::<Number>("fresh").unwrap().is_uncertain);

    // Both snapshots damaged: of each key the latest value that is left, and all of it uncertain.
    let (dir, expected) = filled();
    for segment in segments(dir.path()) {
        let first = usize::try_from(frames(&segment)[0]).unwrap();
        flip(&segment.join("log"), first);
    }
    let settings = Settings::for_tests(dir.path());
    assert_eq!(settings.loss().unwrap().records, None);
    assert_eq!(numbers(&settings), expected);
    assert!(
        settings
            .all::<Number>("")
            .iter()
            .all(|found| found.is_uncertain)
    );
}

#[test]
fn an_end_that_is_missing_in_both_copies_is_counted_by_the_last_stop() {
    let (dir, _) = filled();
    let settings = Settings::for_tests(dir.path());
    let position = settings.close().unwrap();
    drop(settings);
    for segment in segments(dir.path()) {
        let last = *frames(&segment).last().unwrap();
        let log = fs::OpenOptions::new().write(true).open(segment.join("log"));
        log.unwrap().set_len(last).unwrap();
    }

    let open = |position| {
        let dir = copy_of(dir.path());
        let place = Place {
            state_dir: dir.path(),
            store_id: 7,
            position,
            is_new: false,
            growth: 4096,
        };
        Settings::open(Arc::new(Disk), place, Clock::manual(Micros(1))).unwrap()
    };
    assert_eq!(open(None).loss(), None, "as after an unfinished write");
    assert_eq!(open(Some(position)).loss().unwrap().records, Some(2));
}

#[test]
fn a_change_that_fails_is_not_in_effect_and_the_next_one_succeeds() {
    for act in [
        Act::Write,
        Act::Sync,
        Act::Create,
        Act::Rename,
        Act::SyncDir,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let plan = Arc::new(Plan::default());
        let disk = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let settings = Settings::for_tests_on(dir.path(), disk).unwrap();
        let mut expected = BTreeMap::new();
        for n in 0..60 {
            plan.add(Fault::once(act, Errno::NOSPC));
            let changed = settings.put("a", &Number(n), Save::Durable);
            if changed.is_ok() {
                expected.insert("a".to_owned(), n);
            }
            assert_eq!(numbers(&settings), expected, "{act:?}");
            plan.heal();
            settings.put("b", &Number(n), Save::Durable).unwrap();
            expected.insert("b".to_owned(), n);
        }
        drop(settings);
        check_repaired(dir.path(), &expected, &format!("{act:?}"));
    }
}

/// Durable changes survive, and what was not durable is no loss.
#[test]
fn a_power_cut_at_any_operation_loses_no_durable_change() {
    for seed in 0..200 {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Random::new(seed);
        let (mut durable, mut last) = (BTreeMap::new(), BTreeMap::new());
        for cut in 0..4_u64 {
            let root = dir.path().join(cut.to_string());
            if cut == 0 {
                fs::create_dir(&root).unwrap();
            }
            let disk = PowerCut::new(&root, Arc::new(Plan::default()));
            let settings = Settings::for_tests_on(&root, Arc::new(disk.clone())).unwrap();
            assert_eq!(settings.loss(), None, "seed {seed}, cut {cut}");
            let found = numbers(&settings);
            for (name, number) in &durable {
                let value = found.get(name);
                assert!(
                    value.is_some_and(|value| value >= number && *value <= last[name]),
                    "seed {seed}, cut {cut}: {name} is {value:?} instead of {number}"
                );
            }

            // A start makes what it finds durable.
            durable.clone_from(&found);
            last = found;
            let is_sudden = rng.coin();
            for n in 0..rng.index(30) {
                // In the middle of a change, or of a new segment.
                if is_sudden && n == 5 {
                    disk.cut_after(rng.below(40));
                }
                let name = format!("n{}", rng.index(5));
                let number = cut * 1000 + n as u64;
                let save = if rng.index(3) == 0 {
                    Save::Durable
                } else {
                    Save::Later
                };
                last.insert(name.clone(), number);
                let saved = settings.put(&name, &Number(number), save);
                assert!(saved.is_ok() || is_sudden, "{saved:?}");
                if saved.is_ok() && save == Save::Durable {
                    durable.clone_from(&last);
                }
                if saved.is_err() && !disk.is_cut() {
                    disk.cut_after(0);
                }
            }
            drop(settings);
            let next = dir.path().join((cut + 1).to_string());
            fs::create_dir(&next).unwrap();
            disk.cut(&next, Survives::Some, &mut rng);
        }
    }
}

#[test]
fn an_end_that_cannot_be_read_in_both_copies_is_a_loss() {
    let (dir, _) = filled();
    let plan = Arc::new(Plan::default());
    let disk: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
    for segment in segments(dir.path()) {
        // Everything behind the snapshot; nothing that can be read follows.
        let log = segment.join("log");
        let bytes = fs::metadata(&log).unwrap().len();
        let padded = bytes.next_multiple_of(SECTOR_BYTES as u64) + SECTOR_BYTES as u64;
        let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
        file.set_len(padded).unwrap();
        plan.add_bad_sector(log.to_str().unwrap(), padded - SECTOR_BYTES as u64..padded);
    }
    let settings = Settings::for_tests_on(dir.path(), disk).unwrap();
    assert_eq!(settings.loss().unwrap().records, None);
}

#[test]
fn what_can_be_read_again_is_not_lost_and_later_changes_stay() {
    let (dir, mut expected) = filled();
    let plan = Arc::new(Plan::default());
    let disk: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
    plan.add(Fault {
        within: "log/settings".to_owned(),
        ..Fault::lasting(Act::Read, Errno::IO)
    });
    let settings = Settings::for_tests_on(dir.path(), disk.clone()).unwrap();
    assert!(settings.loss().is_some() && numbers(&settings).is_empty());
    for name in ["n0", "n1", "fresh"] {
        settings.put(name, &Number(99), Save::Durable).unwrap();
    }
    settings.remove::<Number>("n1").unwrap();
    drop(settings);

    plan.heal();
    expected.insert("n0".to_owned(), 99);
    expected.insert("fresh".to_owned(), 99);
    expected.remove("n1");
    check_repaired(dir.path(), &expected, "read again");
}
