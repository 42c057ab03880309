//! One bit of each byte of a store changed: what is lost is at most a block, and is never silent.
//!
//! A short form takes some bytes of each file. `FLIPS=all` takes each byte, as `make crash` does.
//! `FORMAT` and the settings have separate tests of this kind.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::log::file::BlockMeta;
use crate::tests::{data, event};
use salt_sls::Glob;

/// The entries of a store, half of each class.
const ENTRIES: usize = 24;

fn small(dir: &Path) -> Options {
    let limits = Limits {
        segment_entries_max: 5,
        ..Limits::default()
    };
    crate::tests::options(dir, limits)
}

/// Event `n`. Some are so large that sealing does not merge all blocks of a segment.
fn put_event(rig: &Rig, n: u64) {
    let (tag, mut body) = event(n);
    if n.is_multiple_of(4) {
        let mut w = Writer::new();
        w.map(2).str("pad").bin(&vec![b'x'; BLOCK_RAW_BYTES]);
        w.str("data").bin(&data(n));
        body = w.into_bytes();
    }
    let at = Micros(i64::try_from(n).unwrap());
    let entry = event_entry(tag.as_bytes(), &body, Source::Bus, at);
    rig.put(Batch::of(&entry)).unwrap();
}

/// What readers find: by number, the tag and the body.
type Entries = BTreeMap<u64, (Vec<u8>, Vec<u8>)>;

/// What a search for all events finds. Searches by minion, and by job, find the same.
fn read(rig: &Rig) -> Entries {
    let entries = |filter: &EventFilter| -> Entries {
        let end = SeqNo(u64::MAX);
        let found = rig.store.events_before(filter, end, usize::MAX, usize::MAX);
        let found = found.unwrap().into_iter();
        found
            .map(|entry| (entry.seq.0, (entry.tag, entry.body)))
            .collect()
    };
    let all = entries(&EventFilter::default());

    let of_minions = (0..40).flat_map(|n| {
        entries(&EventFilter {
            minion: Some(Glob::new(&format!("web{n}"))),
            ..EventFilter::default()
        })
    });
    assert_eq!(of_minions.collect::<Entries>(), all, "searches by minion");

    let of_jobs = (0..10).flat_map(|job| rig.store.job_entries(&crate::tests::jid(job)).unwrap());
    let of_jobs: BTreeSet<_> = of_jobs.map(|entry| entry.seq.0).collect();
    let is_of_job = |(_, (tag, _)): &(&u64, &(Vec<u8>, Vec<u8>))| tag.starts_with(b"salt/job/");
    let expected = all.iter().filter(is_of_job).map(|(seq, _)| *seq);
    assert_eq!(of_jobs, expected.collect(), "searches by job");
    all
}

/// An intact store: two sealed segments of each class, and an active one.
struct Intact {
    dir: tempfile::TempDir,
    entries: Entries,
    /// The numbers in each block of each log, by the log's path in the directory.
    blocks: BTreeMap<PathBuf, Vec<RangeInclusive<u64>>>,
    /// The files, by path in the directory.
    files: Vec<PathBuf>,
}

impl Intact {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::open_with(&small(dir.path()));
        let numbers = (0..).filter(|n| n % 3 != 2).take(ENTRIES);
        numbers.for_each(|n| put_event(&rig, n));
        let rig = rig.reopened();

        let entries = read(&rig);
        assert_eq!(entries.len(), ENTRIES);
        let mut blocks = BTreeMap::new();
        let (mut sealed, mut active) = (0, 0);
        for segment in rig.store.segments.all() {
            let path = segment.dir().join("log");
            let metas = rig.metas(&segment);
            let numbers = |meta: &BlockMeta| meta.first_seq.0..=meta.last_seq.0;
            assert!(metas.len() > 1, "{}", path.display());
            let path = path.strip_prefix(dir.path()).unwrap().to_owned();
            blocks.insert(path, metas.iter().map(numbers).collect());
            let is_sealed = segment.dir().join("index").is_file();
            *(if is_sealed { &mut sealed } else { &mut active }) += 1;
        }
        assert_eq!((sealed, active), (4, 2));

        let store = rig.store.clone();
        rig.close();
        store.note_stop().unwrap();
        drop(store);

        let files = walk(dir.path()).into_keys();
        let mut files: Vec<_> = files
            .map(|path| path.strip_prefix(dir.path()).unwrap().to_owned())
            .collect();
        files.retain(|path| path != Path::new("FORMAT") && !path.starts_with("log/settings"));
        Self {
            dir,
            entries,
            blocks,
            files,
        }
    }

    /// Changes a bit of a copy of the store, and checks what of it is found.
    fn check(&self, path: &Path, at: usize, stopped: bool) {
        let dir = tempfile::tempdir().unwrap();
        let hurt = dir.path().join("hurt");
        copy(self.dir.path(), &hurt);
        let mut bytes = fs::read(hurt.join(path)).unwrap();
        bytes[at] ^= 1 << (at % 8);
        fs::write(hurt.join(path), bytes).unwrap();
        if !stopped {
            // As after a kill.
            fs::remove_file(hurt.join("STOPPED")).unwrap();
        }

        let report = check(&hurt);
        let missing_at_rest = ENTRIES as u64 - report.entries;

        let rig = Rig::open_with(&small(&hurt));
        let found = read(&rig);
        let missing: Vec<u64> = self.missing(&found);
        assert_eq!(missing.len() as u64, missing_at_rest, "{report:#?}");

        // At most a block of that log.
        let blocks = self.blocks.get(path).map_or(&[][..], Vec::as_slice);
        let is_lost = |block: &RangeInclusive<u64>| {
            !missing.is_empty() && missing.iter().all(|seq| block.contains(seq))
        };
        assert!(
            missing.is_empty() || blocks.iter().any(is_lost),
            "{missing:?} in {blocks:?}"
        );

        // Counted: by the tool, and by the daemon.
        let metrics = &rig.metrics;
        let known = metrics.frames_damaged.get() + metrics.entries_missing_at_start.get();
        // The end of an active log is cut off, and kept.
        let is_cut = metrics.tail_bytes_truncated.get() > 0;
        if is_cut {
            assert!(blocks.last().is_some_and(is_lost), "{missing:?}");
            let names = fs::read_dir(hurt.join(path).parent().unwrap()).unwrap();
            let mut names = names.map(|item| item.unwrap().file_name());
            assert!(names.any(|name| name.to_string_lossy().starts_with("log.cut-")));
        }

        // Without a clean stop, the last block may be an unfinished write.
        if is_cut && !stopped {
            let mut found = report.notes.iter().chain(&report.problems);
            assert!(found.any(|found| hurt.join(path) == found.path));
        } else {
            let lost = report.entries_lost();
            // A clean stop knows how many entries an active log had.
            assert!(!stopped || report.is_exact(), "{report:#?}");
            assert!(
                lost == missing_at_rest || lost > missing_at_rest && !report.is_exact(),
                "{report:#?}"
            );
            assert_eq!(known > 0, !missing.is_empty(), "{known} counted");
        }

        // No number is assigned twice, and the next start finds the same.
        put_event(&rig, 99);
        rig.close();
        let rig = Rig::open_with(&small(&hurt));
        let mut after = read(&rig);
        let (last, _) = after.pop_last().unwrap();
        assert!(last > ENTRIES as u64, "{last} is assigned again");
        assert_eq!(after, found);
        rig.close();
        // A start reports once what is missing since a clean stop.
        let after = check(&hurt);
        assert!(
            is_cut || after.entries_lost() >= missing_at_rest,
            "{after:#?}"
        );
    }

    /// The numbers that are not among what was found, which is as it was stored.
    fn missing(&self, found: &Entries) -> Vec<u64> {
        for (seq, entry) in found {
            assert_eq!(self.entries.get(seq), Some(entry), "entry {seq}");
        }
        let all = self.entries.keys().copied();
        all.filter(|seq| !found.contains_key(seq)).collect()
    }
}

#[test]
fn a_changed_bit_of_any_byte_costs_at_most_a_block_and_is_never_silent() {
    let intact = Intact::new();
    let all = std::env::var("FLIPS").is_ok_and(|flips| flips == "all");
    let mut places = Vec::new();
    for (n, path) in intact.files.iter().enumerate() {
        let bytes = fs::read(intact.dir.path().join(path)).unwrap();
        // Most of a database is zero bytes that were never written.
        let is_written = |at: usize| bytes[at / 64 * 64..].iter().take(64).any(|byte| *byte != 0);
        let written = (0..bytes.len()).filter(|at| at % 4096 == 0 || is_written(*at));
        let written: Vec<_> = written.map(|at| (path.as_path(), at)).collect();
        if all {
            places.extend(written.into_iter().flat_map(|at| [(at, true), (at, false)]));
            continue;
        }

        // Steps that meet each field of a header, wherever it begins.
        let mut at = n % 7;
        while let Some(place) = written.get(at) {
            places.push((*place, places.len() % 2 == 0));
            at += 67 + at % 5;
        }
    }

    let next = AtomicUsize::new(0);
    let failed = parking_lot::Mutex::new(Vec::new());
    let work = || {
        while let Some(((path, at), stopped)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = || intact.check(path, *at, *stopped);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(one)) {
                eprintln!("byte {at} of {}, stopped: {stopped}", path.display());
                failed.lock().push(panic);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let failed = failed.into_inner();
    eprintln!("{} of {} changes failed", failed.len(), places.len());
    if let Some(panic) = failed.into_iter().next() {
        resume_unwind(panic);
    }
}
