//! The spill without a bus: order, rejections, restarts.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::file::{DiskQueue, SpillContents};
use super::log::Scan;
use super::*;
use crate::base::limits::{BUS_MEMORY_BYTES, REFUSED_TIMES_MAX};
use crate::model::{EventFilter, SeqNo, Source};
use crate::policy::master_keys::MasterKeys;
use crate::store::log::file::BlockMeta;
use crate::store::vfs::Disk;
use crate::store::vfs::faults::{Act, Fault, Faults, Plan};
use crate::store::{Opened, Options, Store, StoreError};
use crate::wire::salt_event::{PeerMark, event_entry, read_event};

mod damage;
mod restarts;

pub(super) fn event(n: u64, bytes: usize) -> Batch {
    let mut batch = Batch::default();
    let tag = format!("test/{n}");
    let mut w = crate::wire::msgpack::Writer::new();
    // Bytes that do not compress, so that an event takes its size on disk.
    let mut noise = crate::testkit::Random::new(n);
    let fill = std::iter::repeat_with(|| u8::try_from(noise.below(256)).unwrap());
    w.map(1)
        .str("fill")
        .bin(&fill.take(bytes).collect::<Vec<_>>());
    let data = w.into_bytes();
    batch.push(
        &event_entry(tag.as_bytes(), &data, Source::Bus, at(n)),
        None,
    );
    batch
}

fn at(n: u64) -> Micros {
    Micros(i64::try_from(n).unwrap() * 1_000)
}

/// Drains a queue: tags, and the sources of the entries.
fn drained(queue: &mut DiskQueue) -> Vec<(String, Source)> {
    let mut found = Vec::new();
    while let Some(piece) = queue.next_piece().unwrap() {
        for (entry, _) in piece.batch.entries() {
            found.push((
                String::from_utf8_lossy(entry.tag).into_owned(),
                entry.source,
            ));
        }
        queue.stored(piece.file);
    }
    found
}

fn tags(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| format!("test/{n}")).collect()
}

fn only_tags(found: &[(String, Source)]) -> Vec<String> {
    found.iter().map(|(tag, _)| tag.clone()).collect()
}

/// The store of queues without one.
pub(super) const STORE: u64 = 0x5ca1_ab1e_0000_0007;

fn open(dir: &Path) -> (DiskQueue, SpillContents) {
    DiskQueue::open(Arc::new(Disk), dir, STORE).unwrap()
}

/// The frames of a spill file.
fn frames(path: &Path) -> Vec<BlockMeta> {
    let id = super::log::id(STORE, super::file::first_of(path).unwrap());
    match super::log::scan(&Disk, path, id, false).unwrap() {
        Scan::Log(scan) => scan.blocks.into(),
        Scan::Blank | Scan::Foreign(_) | Scan::Unread(_) => {
            panic!("{} is no spill file", path.display())
        }
    }
}

/// Flips a bit of the bodies of a frame.
fn damage(path: &Path, frame: usize) {
    let meta = frames(path)[frame];
    let bodies = crate::store::log::frame::FRAME_HEADER_LEN as u64 + u64::from(meta.head_len) + 16;
    flip(path, usize::try_from(meta.offset + bodies).unwrap());
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// A new queue with these events of `bytes` bytes.
fn queue_of(
    numbers: std::ops::RangeInclusive<u64>,
    bytes: usize,
) -> (tempfile::TempDir, DiskQueue) {
    let dir = tempfile::tempdir().unwrap();
    let (mut queue, _) = open(&dir.path().join("a/b"));
    numbers.for_each(|n| queue.append(&event(n, bytes), n).unwrap());
    (dir, queue)
}

/// Ends the input, and waits for the drainer.
fn finish(spill_writer: SpillWriter, drainer: std::thread::JoinHandle<()>) {
    spill_writer.close();
    drop(spill_writer);
    drainer.join().unwrap();
}

pub(super) fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|ending| ending == "spill" || ending == "read")
    });
    files.sort();
    files
}

#[test]
fn events_return_from_disk_in_order_and_their_files_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut queue, _) = open(&dir.path().join("a/b"));
    // Over three files, with reads between writes.
    let mut found = Vec::new();
    for n in 1..=60 {
        queue.append(&event(n, 400_000), n).unwrap();
        if n == 30 {
            found.extend(drained(&mut queue));
        }
    }
    assert!(files(queue.dir()).len() >= 2, "{:?}", files(queue.dir()));
    found.extend(drained(&mut queue));
    assert_eq!(only_tags(&found), tags(1..61));
    assert!(found.iter().all(|(_, source)| *source == Source::Bus));
    assert_eq!(
        (queue.bytes(), queue.waiting(), files(queue.dir()).len()),
        (0, 0, 0)
    );
}

#[test]
fn the_next_daemon_delivers_spilled_events_and_marks_those_that_may_be_stored() {
    let (_dir, mut queue) = queue_of(1..=40, 400_000);
    let first = queue.next_piece().unwrap().unwrap();
    let dir = queue.dir().to_owned();
    drop(queue);
    let (mut queue, found) = open(&dir);
    assert_eq!(
        (found.events, found.first, found.last),
        (40, Some((1, at(1))), Some((40, at(40))))
    );
    let found = drained(&mut queue);
    assert_eq!(only_tags(&found), tags(1..41));
    // For the file in delivery the store's progress is unknown.
    let sure = found
        .iter()
        .position(|(_, source)| *source == Source::Bus)
        .unwrap();
    assert!(first.batch.len() <= sure && sure < 40, "{sure}");
    assert!(
        found[..sure]
            .iter()
            .all(|(_, source)| *source == Source::SpilledBus)
    );
    assert!(
        found[sure..]
            .iter()
            .all(|(_, source)| *source == Source::Bus)
    );
}

#[test]
fn a_torn_end_is_truncated_and_a_missing_event_is_reported() {
    let (_dir, queue) = queue_of(1..=40, 400_000);
    let dir = queue.dir().to_owned();
    drop(queue);
    let files = files(&dir);
    let size = |n: usize| std::fs::metadata(&files[n]).unwrap().len();
    let cut = |n: usize, by: u64| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&files[n])
            .unwrap()
            .set_len(size(n) - by)
            .unwrap();
    };
    let newest = files.len() - 1;
    cut(newest, 100);
    let torn = size(newest);
    let (queue, found) = open(&dir);
    assert_eq!((found.events, found.last), (39, Some((39, at(39)))));
    assert_eq!(found.cut, torn - size(newest), "the rest of that frame");
    assert!(found.cut > 399_000, "{}", found.cut);
    drop(queue);
    // An incomplete frame at the end of an earlier file.
    cut(0, 100);
    let (mut queue, found) = open(&dir);
    assert_eq!((found.events, found.cut), (38, 0));
    let mut holes = Vec::new();
    let mut count = 0;
    while let Some(piece) = queue.next_piece().unwrap() {
        count += piece.batch.len() as u64;
        holes.extend(piece.hole);
    }
    assert_eq!((count, holes.len()), (found.events, 1));
    assert_eq!(holes[0].lost, Some(1));
}

#[test]
fn a_damaged_batch_is_not_delivered() {
    let (_dir, mut queue) = queue_of(1..=10, 1_000);
    damage(&files(queue.dir())[0], 5);
    assert_eq!(
        only_tags(&drained(&mut queue)),
        [tags(1..6), tags(7..11)].concat()
    );
    let dir = queue.dir().to_owned();
    // A foreign file is also harmless.
    std::fs::write(dir.join("0000000001-1.spill"), vec![0xff; 1000]).unwrap();
    let (_, found) = open(&dir);
    assert_eq!((found.events, found.cut, found.quarantined), (0, 0, 1));
}

#[test]
fn events_that_bypassed_the_disk_are_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut queue, _) = open(&dir.path().join("a/b"));
    for n in [1, 2, 50, 51] {
        queue.append(&event(n, 10), n).unwrap();
        if n % 2 == 0 {
            let piece = queue.next_piece().unwrap().unwrap();
            assert_eq!(piece.hole, None);
            queue.stored(piece.file);
            assert!(queue.next_piece().unwrap().is_none());
        }
    }
}

#[test]
fn batches_with_older_events_are_inserted_first() {
    let (_dir, queue) = queue_of(3..=5, 10);
    queue
        .insert(&[(Arc::new(event(1, 10)), 1), (Arc::new(event(2, 10)), 2)])
        .unwrap();
    let dir = queue.dir().to_owned();
    drop(queue);
    let found = drained(&mut open(&dir).0);
    assert_eq!(only_tags(&found), tags(1..6));
    assert_eq!(
        found
            .iter()
            .filter(|(_, source)| *source == Source::SpilledBus)
            .count(),
        2
    );
}

#[test]
fn batches_are_inserted_between_files_with_older_and_newer_events() {
    let (_dir, mut queue) = queue_of(3..=4, 10);
    // A file in delivery takes no more events.
    queue.next_piece().unwrap().unwrap();
    queue.append(&event(7, 10), 7).unwrap();
    queue.next_piece().unwrap().unwrap();
    queue.append(&event(9, 10), 9).unwrap();
    let batches = [2, 5, 6, 8, 10].map(|n| (Arc::new(event(n, 10)), n));

    // All of them, or none.
    let before = files(queue.dir());
    let largest = crate::base::limits::ENTRY_BYTES_MAX + crate::base::limits::TAG_BYTES_MAX;
    let too_large = [(Arc::new(event(11, largest)), 11)];
    let refused = queue.insert(&[&batches[..], &too_large].concat());
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
    assert_eq!(files(queue.dir()), before);

    queue.insert(&batches).unwrap();
    let dir = queue.dir().to_owned();
    drop(queue);

    let (mut queue, found) = open(&dir);
    assert_eq!((found.events, found.last), (9, Some((10, at(10)))));
    let (mut found, mut numbers) = (Vec::new(), HashSet::new());
    while let Some(piece) = queue.next_piece().unwrap() {
        assert_eq!(piece.hole, None);
        // By its number, a file is told what is stored.
        assert!(numbers.insert(piece.file), "{found:?}");
        found.extend(
            piece
                .batch
                .entries()
                .map(|(entry, _)| String::from_utf8_lossy(entry.tag).into_owned()),
        );
    }
    assert_eq!(found, tags(2..11));
}

/// A store whose threads a test starts explicitly.
struct Harness {
    dir: tempfile::TempDir,
    fs: Arc<dyn Fs>,
    metrics: Arc<Metrics>,
    opened: Option<Opened>,
    store: Option<Store>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

fn spawn(work: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::Builder::new().spawn(work).unwrap()
}

impl Harness {
    fn new() -> Self {
        Self::on(Arc::new(Disk))
    }

    /// A harness with the given file system.
    fn on(fs: Arc<dyn Fs>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Arc::default();
        let mut harness = Self {
            dir,
            fs,
            metrics,
            opened: None,
            store: None,
            threads: Vec::new(),
        };
        harness.open();
        harness
    }

    fn open(&mut self) {
        let options = Options {
            metrics: self.metrics.clone(),
            fs: self.fs.clone(),
            ..Options::for_tests(&self.dir.path().join("state"), Clock::real())
        };
        self.opened = Some(Store::open(&options).unwrap());
    }

    fn spill_writer(&self) -> SpillWriter {
        let intake = self.opened.as_ref().unwrap().intake.clone();
        SpillWriter::new(
            Path::new("/the/bus"),
            intake,
            Clock::real(),
            self.metrics.clone(),
        )
    }

    fn spill_drainer(&self, spill_writer: &SpillWriter, bytes_max: u64) -> (SpillDrainer, Seen) {
        SpillDrainer::open(
            spill_writer,
            &self.spill(),
            Arc::new(Disk),
            Arc::new(MasterKeys::none()),
            bytes_max,
        )
        .unwrap()
    }

    /// Leaves these events on disk, as a daemon that has stopped.
    fn spilled(&self, events: std::ops::RangeInclusive<u64>) {
        let mut queue = self.queue();
        for n in events {
            queue.append(&event(n, 100), n).unwrap();
        }
    }

    /// The queue of the store's spill, as an earlier daemon had it.
    fn queue(&self) -> DiskQueue {
        let store_id = self.opened.as_ref().unwrap().intake.store_id();
        DiskQueue::open(Arc::new(Disk), &self.spill(), store_id)
            .unwrap()
            .0
    }

    fn spill(&self) -> PathBuf {
        dir_of(&self.dir.path().join("state/spill"), Path::new("/the/bus"))
    }

    /// Starts the store's threads.
    fn start(&mut self) {
        let Opened {
            store,
            intake,
            appender,
            committer,
            ..
        } = self.opened.take().unwrap();
        drop(intake);
        self.store = Some(store);
        self.threads = vec![spawn(|| appender.run()), spawn(|| committer.run())];
    }

    /// Stops the store, and returns the tags of its entries, in order.
    fn stored(&mut self) -> Vec<String> {
        self.threads
            .drain(..)
            .for_each(|thread| thread.join().unwrap());
        let store = self.store.take().unwrap();
        let mut found = store
            .events_before(
                &EventFilter::default(),
                SeqNo(u64::MAX),
                usize::MAX,
                usize::MAX,
            )
            .unwrap();
        found.reverse();
        found
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.tag).into_owned())
            .collect()
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    crate::testkit::wait_for(what, || is_so().then_some(()));
}

#[test]
fn whoever_waits_for_events_of_the_store_and_a_reactor_are_readers() {
    let mut harness = Harness::new();
    harness.start();
    let store = harness.store.clone().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut readers = Readers {
        reacts: false,
        store: store.clone(),
    };
    assert!(!readers.wait());

    let (waits, over) = (store.clone(), is_over.clone());
    let waiting = spawn(move || {
        let hour = Duration::from_secs(3600);
        waits.wait_for_unless(SeqNo(u64::MAX), hour, || over.load(Ordering::SeqCst));
    });
    wait_until("a reader", || readers.wait());

    is_over.store(true, Ordering::SeqCst);
    store.wake_waiting();
    waiting.join().unwrap();
    assert!(!readers.wait());
    let pause_max = readers.pause_max();
    readers.reacts = true;
    assert!(readers.wait() && readers.pause_max() < pause_max);

    drop((readers, store));
    harness.stored();
}

#[test]
fn while_the_store_is_stopped_events_are_spilled_and_return_in_order() {
    let mut harness = Harness::new();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, seen) = harness.spill_drainer(&spill_writer, 1 << 30);
    assert!(!seen.known);
    let shared = spill_writer.shared();
    let moving = spawn(|| spill_drainer.run());
    // The queue holds 8 MB, memory 3: the rest is spilled.
    for n in 0..400 {
        spill_writer.push(event(n, 100_000), at(n));
        let memory = shared.waiting().bytes;
        assert!(memory <= BUS_MEMORY_BYTES as u64, "{memory}");
    }
    assert!(
        shared.waiting().spilled_events > 100,
        "{:?}",
        shared.waiting()
    );
    assert!(harness.metrics.bus_bytes_spilled.get() > 10_000_000);
    harness.start();
    for n in 400..500 {
        spill_writer.push(event(n, 1_000), at(n));
    }
    finish(spill_writer, moving);
    assert_eq!(harness.stored(), tags(0..500));
    let left = shared.waiting();
    assert_eq!(
        (
            left.lost,
            left.spilled_events,
            left.spilled_bytes,
            left.bytes
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(harness.metrics.bus_events_lost.get(), 0);
}

#[test]
fn with_memory_and_disk_full_events_are_lost_and_recorded_as_a_gap() {
    let mut harness = Harness::new();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, _) = harness.spill_drainer(&spill_writer, 0);
    let shared = spill_writer.shared();
    let moving = spawn(|| spill_drainer.run());
    for n in 0..400 {
        spill_writer.push(event(n, 100_000), at(n));
    }
    let lost = shared.waiting().lost;
    assert!(
        lost > 50 && shared.waiting().gaps == 0,
        "{:?}",
        shared.waiting()
    );
    harness.start();
    wait_until("there is room", || shared.waiting().bytes == 0);
    spill_writer.push(event(400, 10), at(400));
    finish(spill_writer, moving);
    let kept = 400 - lost;
    let expected = [
        tags(0..kept),
        vec!["saltcellar/gap/overflow".to_owned()],
        tags(400..401),
    ]
    .concat();
    assert_eq!(harness.stored(), expected);
    assert_eq!(
        (
            harness.metrics.bus_events_lost.get(),
            harness.metrics.bus_gaps.get()
        ),
        (lost, 1)
    );
}

#[test]
fn the_spill_stays_within_its_limit() {
    const BYTES_MAX: u64 = 5_000_000;
    let mut harness = Harness::new();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, _) = harness.spill_drainer(&spill_writer, BYTES_MAX);
    let shared = spill_writer.shared();
    let moving = spawn(|| spill_drainer.run());
    // A file is renamed when reading it starts.
    let on_disk = |harness: &Harness| -> u64 {
        files(&harness.spill())
            .iter()
            .map(|path| std::fs::metadata(path).map_or(0, |found| found.len()))
            .sum()
    };
    for n in 0..400 {
        spill_writer.push(event(n, 100_000), at(n));
        // The last write may exceed the limit.
        let bytes = on_disk(&harness);
        assert!(bytes < BYTES_MAX + 101_000, "{bytes}");
    }
    let (bytes, lost) = (on_disk(&harness), shared.waiting().lost);
    assert!(
        bytes >= BYTES_MAX && lost > 100,
        "the spill is used up to its limit: {bytes} bytes, {lost} lost"
    );
    assert_eq!(shared.waiting().spilled_bytes, bytes);
    harness.start();
    finish(spill_writer, moving);
    let kept = tags(0..400 - lost);
    assert_eq!(
        harness.stored(),
        [kept, vec!["saltcellar/gap/overflow".to_owned()]].concat()
    );
    assert_eq!(
        (
            harness.metrics.bus_events_lost.get(),
            files(&harness.spill()).len()
        ),
        (lost, 0)
    );
}

/// A store that rejects every write, and has rejected the first event.
struct Rejecting {
    harness: Harness,
    plan: Arc<Plan>,
    spill_writer: SpillWriter,
    spill_drainer: SpillDrainer,
}

impl Rejecting {
    fn new() -> Self {
        let plan = Arc::new(Plan::default());
        let mut harness = Harness::on(Arc::new(Faults::over(Arc::new(Disk), plan.clone())));
        let spill_writer = harness.spill_writer();
        let (spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
        harness.start();
        plan.add(Fault::lasting(Act::Write, rustix::io::Errno::IO));
        spill_writer.push(event(0, 10), at(0));
        let shared = spill_writer.shared();
        wait_until("a rejection", || shared.refused().is_some());
        Self {
            harness,
            plan,
            spill_writer,
            spill_drainer,
        }
    }
}

/// Has the waiting batch retried, without its pause, until it is rejected once more.
fn retry(spill_drainer: &mut SpillDrainer, metrics: &Metrics) {
    let before = metrics.bus_events_retried.get();
    crate::testkit::wait_for("another rejection", || {
        come_due(spill_drainer);
        (metrics.bus_events_retried.get() > before).then_some(())
    });
}

/// Delivers as if the pause before a retry were over; its length is kept.
fn come_due(spill_drainer: &mut SpillDrainer) {
    spill_drainer.offers.come_due();
    spill_drainer.deliver();
}

#[test]
fn events_rejected_permanently_are_recorded_as_a_gap() {
    let Rejecting {
        mut harness,
        plan,
        spill_writer,
        mut spill_drainer,
    } = Rejecting::new();
    let shared = spill_writer.shared();
    let metrics = harness.metrics.clone();
    spill_writer.push(event(1, 10), at(1));
    let mut lost_after_retry = || {
        retry(&mut spill_drainer, &metrics);
        (shared.waiting().lost, metrics.bus_gaps.get())
    };
    for _ in 0..2 * REFUSED_TIMES_MAX {
        assert_eq!(
            lost_after_retry(),
            (0, 0),
            "events wait while the store accepts nothing"
        );
    }
    // As if the store had accepted an entry of another source.
    metrics.entries_stored.add(1);
    assert_eq!(
        lost_after_retry(),
        (1, 1),
        "and are dropped once it accepts others"
    );
    plan.heal();
    spill_writer.close();
    drop(spill_writer);
    spill_drainer.run();
    assert_eq!(harness.stored(), ["saltcellar/gap/refused", "test/1"]);
    assert_eq!(
        (metrics.bus_events_lost.get(), metrics.bus_gaps.get()),
        (1, 1)
    );
}

#[test]
fn the_pause_before_a_rejected_batch_grows_and_ends_with_the_rejection() {
    let Rejecting {
        harness,
        plan,
        spill_writer,
        mut spill_drainer,
    } = Rejecting::new();
    let shared = spill_writer.shared();
    let metrics = harness.metrics.clone();

    let pauses = [(); 6].map(|()| {
        retry(&mut spill_drainer, &metrics);
        spill_drainer.offers.pause().unwrap()
    });
    assert_eq!(
        pauses,
        [100, 200, 400, 800, 1600, 2000].map(Duration::from_millis)
    );

    plan.heal();
    crate::testkit::wait_for("the batch to be stored", || {
        come_due(&mut spill_drainer);
        shared.refused().is_none().then_some(())
    });
    spill_drainer.deliver();
    assert_eq!(spill_drainer.offers.pause(), None);
}

#[test]
fn events_not_accepted_before_shutdown_are_delivered_by_the_next_daemon() {
    let mut harness = Harness::new();
    let spill_writer = harness.spill_writer();
    let (mut spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
    spill_drainer.stop_timeout = Duration::from_millis(100);
    let moving = spawn(|| spill_drainer.run());
    for n in 0..300 {
        spill_writer.push(event(n, 100_000), at(n));
    }
    spill_writer.read_until(at(1_000));
    spill_writer.close();
    // The store accepts nothing: after a timeout everything is on disk, including the contents of its queue.
    moving.join().unwrap();
    drop((spill_writer, harness.opened.take()));
    assert_eq!(harness.metrics.bus_events_lost.get(), 0);
    harness.open();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, seen) = harness.spill_drainer(&spill_writer, 1 << 30);
    assert_eq!(
        seen,
        Seen {
            known: true,
            until: Some(at(1_000))
        }
    );
    assert_eq!(harness.metrics.spill_events_found.get(), 300);
    let moving = spawn(|| spill_drainer.run());
    spill_writer.push(event(300, 10), at(1_001));
    harness.start();
    finish(spill_writer, moving);
    assert_eq!(harness.stored(), tags(0..301));
    assert_eq!(files(&harness.spill()).len(), 0);
}

#[test]
fn events_that_no_spill_takes_at_shutdown_are_counted_in_the_status_and_the_metric() {
    let harness = Harness::new();
    let spill_writer = harness.spill_writer();
    let shared = spill_writer.shared();
    let (mut spill_drainer, _) = harness.spill_drainer(&spill_writer, 0);
    spill_drainer.stop_timeout = Duration::from_millis(100);
    let moving = spawn(|| spill_drainer.run());
    for n in 0..5 {
        spill_writer.push(event(n, 100), at(n));
    }
    spill_writer.close();
    moving.join().unwrap();

    let counted = (harness.metrics.bus_events_lost.get(), shared.waiting().lost);
    assert_eq!(counted, (5, 5));
}

/// Stops a daemon while all events of a spill file, and `events` behind them, are in flight.
fn stop_during_a_delivery(harness: &Harness, events: std::ops::RangeInclusive<u64>) {
    let spill_writer = harness.spill_writer();
    let (mut spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
    spill_drainer.stop_timeout = Duration::ZERO;
    let shared = spill_writer.shared();
    // The store has room, but responds to nothing: once the file is read, events bypass the disk.
    spill_drainer.deliver();
    for n in events {
        spill_writer.push(event(n, 100), at(n));
    }
    assert_eq!(shared.waiting().events, 0, "all are in flight");
    spill_writer.close();
    drop(spill_writer);
    spill_drainer.run();
}

/// Starts a daemon that delivers what is on disk; returns all tags of the store.
fn delivered(harness: &mut Harness) -> Vec<String> {
    harness.open();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
    harness.start();
    spill_writer.close();
    drop(spill_writer);
    spill_drainer.run();
    harness.stored()
}

#[test]
fn what_is_offered_before_and_behind_a_spill_file_at_shutdown_keeps_its_order() {
    let mut harness = Harness::new();
    harness.spilled(7..=20);
    // A gap goes before the file, because its first event is not the next one.
    std::fs::write(harness.spill().join("SEEN"), "3000 3\n").unwrap();
    stop_during_a_delivery(&harness, 21..=23);
    assert_eq!(harness.metrics.bus_events_lost.get(), 0);
    drop(harness.opened.take());

    let gap = vec!["saltcellar/gap/start-up".to_owned()];
    assert_eq!(delivered(&mut harness), [gap, tags(7..24)].concat());
}

#[test]
fn events_that_the_store_stores_after_they_were_spilled_at_shutdown_are_not_stored_twice() {
    let mut harness = Harness::new();
    harness.spilled(1..=20);
    stop_during_a_delivery(&harness, 21..=23);
    // It was only slow.
    harness.start();
    assert_eq!(harness.stored(), tags(1..24));

    assert_eq!(delivered(&mut harness), tags(1..24));
}

#[test]
fn the_gap_of_events_that_no_spill_takes_at_shutdown_begins_with_the_first() {
    // Alone, and behind a file, whose events are not lost.
    for on_disk in [0, 20] {
        let mut harness = Harness::new();
        harness.spilled(1..=on_disk);
        let spill_writer = harness.spill_writer();
        let (mut spill_drainer, _) = harness.spill_drainer(&spill_writer, 0);
        spill_drainer.stop_timeout = Duration::ZERO;
        let shared = spill_writer.shared();

        // More than the store has room for: the rest waits in memory.
        spill_drainer.deliver();
        for n in on_disk + 1..=on_disk + 100 {
            spill_writer.push(event(n, 100_000), at(n));
        }
        let in_memory = shared.waiting().events;
        assert!(0 < in_memory && in_memory < 100, "{in_memory}");
        spill_writer.read_until(at(1_000));
        spill_writer.close();
        drop(spill_writer);
        spill_drainer.run();
        assert_eq!(harness.metrics.bus_events_lost.get(), 100);
        drop(harness.opened.take());

        harness.open();
        let (_, seen) = harness.spill_drainer(&harness.spill_writer(), 0);
        let until = Some(at(on_disk + 1));
        assert_eq!(seen, Seen { known: true, until });
    }
}

#[test]
fn events_delivered_before_a_kill_are_not_stored_twice() {
    let mut harness = Harness::new();
    // Twenty events, all stored, whose file still exists, as after a kill.
    let mut queue = harness.queue();
    for n in 1..=20 {
        queue.append(&event(n, 100), n).unwrap();
    }
    let path = files(&harness.spill())[0].clone();
    let copy = std::fs::read(&path).unwrap();
    drop(queue);
    for _ in 0..2 {
        let spill_writer = harness.spill_writer();
        let (spill_drainer, _) = harness.spill_drainer(&spill_writer, 1 << 30);
        harness.start();
        spill_writer.close();
        drop(spill_writer);
        spill_drainer.run();
        assert_eq!(harness.stored(), tags(1..21));
        std::fs::write(path.with_extension("read"), &copy).unwrap();
        harness.open();
    }
    assert_eq!(harness.metrics.duplicates_folded.get(), 20);
}

#[test]
fn events_in_memory_at_a_kill_are_recorded_as_a_gap_before_those_on_disk() {
    let mut harness = Harness::new();
    let mut queue = harness.queue();
    queue.append(&event(7, 100), 7).unwrap();
    drop(queue);
    std::fs::write(harness.spill().join("SEEN"), "3000 3\n").unwrap();
    let spill_writer = harness.spill_writer();
    let (spill_drainer, seen) = harness.spill_drainer(&spill_writer, 1 << 30);
    assert_eq!(
        seen,
        Seen {
            known: true,
            until: Some(at(7))
        }
    );
    harness.start();
    spill_writer.close();
    drop(spill_writer);
    spill_drainer.run();
    assert_eq!(harness.stored(), ["saltcellar/gap/start-up", "test/7"]);
}

#[test]
fn each_bus_has_its_own_directory() {
    let dir = |bus: &str| dir_of(Path::new("/s"), Path::new(bus));
    let name = dir("/var/run/salt/master")
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    assert!(name.starts_with("var-run-salt-master-"), "{name}");
    assert_ne!(dir("/a-b"), dir("/a/b"));
    assert!(dir(&"/x".repeat(300)).file_name().unwrap().len() < 100);
}

#[test]
fn a_foreign_file_is_quarantined_and_does_not_block_the_spill() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("bus");
    let (mut queue, _) = open(&dir);
    queue.append(&event(2, 10), 2).unwrap();
    drop(queue);
    let own = std::fs::read(&files(&dir)[0]).unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).unwrap();
    put("0-1.spill", b"SALTCLOG");
    put("0000000000-1.spill", b"SALTCLOG");
    put("18446744073709551615-1.spill", b"SALTCLOG");
    put("99999999999999999999999-1.read", b"");
    put("0000000001.spill", b"SALTCLOG");
    put("0000000003-1.spill", b"notes of a user");
    put("0000000003-1.spill.aside", b"older notes");
    std::fs::create_dir(dir.join("0000000004-1.read")).unwrap();
    // As a file of another store, and under the number of another event.
    put("0000000005-3.spill", &own);
    let (mut other, _) = DiskQueue::open(Arc::new(Disk), &dir.join("other"), STORE + 1).unwrap();
    other.append(&event(9, 10), 9).unwrap();
    std::fs::rename(&files(other.dir())[0], dir.join("0000000006-9.spill")).unwrap();
    put("notes.txt", b"unrelated");
    let (mut queue, found) = open(&dir);
    assert_eq!((found.events, found.quarantined), (1, 9));
    assert_eq!(
        std::fs::read(dir.join("0000000003-1.spill.aside-1")).unwrap(),
        b"notes of a user"
    );
    assert_eq!(
        std::fs::read(dir.join("0000000003-1.spill.aside")).unwrap(),
        b"older notes"
    );
    assert!(dir.join("notes.txt").exists() && dir.join("0000000004-1.read.aside").is_dir());
    queue.append(&event(3, 10), 3).unwrap();
    queue.insert(&[(Arc::new(event(1, 10)), 1)]).unwrap();
    drop(queue);
    let (mut queue, found) = open(&dir);
    assert_eq!((found.events, found.quarantined), (3, 0));
    assert_eq!(only_tags(&drained(&mut queue)), tags(1..4));
}

#[test]
fn a_file_that_may_not_be_read_is_set_aside_and_is_delivered_under_its_name_again() {
    let dir = tempfile::tempdir().unwrap();
    let spill = dir.path().join("bus");
    let (mut queue, _) = open(&spill);
    queue.append(&event(1, 10), 1).unwrap();
    drop(queue);
    let own = files(&spill).remove(0);
    let aside = own.with_extension("spill.aside");

    let logged = |plan: Plan| {
        let path = dir.path().join("log");
        let log = tracing_subscriber::fmt().with_writer(std::fs::File::create(&path).unwrap());
        let fs = Arc::new(Faults::over(Arc::new(Disk), Arc::new(plan)));
        let opened = || DiskQueue::open(fs, &spill, STORE).unwrap();
        let (queue, found) = tracing::subscriber::with_default(log.finish(), opened);
        (queue, found, std::fs::read_to_string(path).unwrap())
    };

    // Of another user: nobody may be told to delete its events.
    let plan = Plan::default();
    plan.add(Fault::lasting(Act::Read, Errno::ACCESS));
    let (mut queue, found, log) = logged(plan);
    assert_eq!((found.events, found.quarantined), (0, 1));
    assert!(
        log.contains("cannot read a spill file, set aside")
            && log.contains("give the daemon's user access to the file")
            && !log.contains("delete"),
        "{log}"
    );
    queue.append(&event(2, 10), 2).unwrap();
    drop(queue);
    let (mut queue, found) = open(&spill);
    assert_eq!((found.events, found.quarantined), (1, 0));
    assert_eq!(only_tags(&drained(&mut queue)), tags(2..3));
    drop(queue);

    // No other file is left, and events are counted from 1 again: its name is not reused.
    let (mut queue, _) = open(&spill);
    queue.append(&event(3, 10), 1).unwrap();
    drop(queue);
    std::fs::rename(&aside, &own).unwrap();
    let (mut queue, found) = open(&spill);
    assert_eq!((found.events, found.quarantined), (2, 0));
    assert_eq!(only_tags(&drained(&mut queue)), ["test/1", "test/3"]);
    drop(queue);

    // Of another release.
    let (mut queue, _) = open(&spill);
    queue.append(&event(4, 10), 4).unwrap();
    drop(queue);
    let path = files(&spill).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] ^= 1;
    let crc = crc32fast::hash(&bytes[..76]);
    bytes[76..80].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let (_, found, log) = logged(Plan::default());
    assert_eq!((found.events, found.quarantined), (0, 1));
    assert!(
        log.contains("cannot read a spill file, set aside") && log.contains("it has format"),
        "{log}"
    );

    // Of somebody else.
    std::fs::write(spill.join("0000000003-1.spill"), b"notes of a user").unwrap();
    let (_, found, log) = logged(Plan::default());
    assert_eq!(found.quarantined, 1);
    assert!(
        log.contains("not a spill file of this store") && log.contains("delete it"),
        "{log}"
    );
}

#[test]
fn an_entry_over_the_size_limit_is_not_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let mut queue = DiskQueue::empty(Arc::new(Disk), dir.path(), STORE);
    assert!(queue.append(&event(1, 10), 1).is_ok());
    let largest = crate::base::limits::ENTRY_BYTES_MAX + crate::base::limits::TAG_BYTES_MAX;
    let refused = queue.append(&event(2, largest), 2).unwrap_err();
    assert!(matches!(refused, StoreError::Broken(_)), "{refused}");
    assert!(queue.append(&event(3, 10), 3).is_ok());
    assert_eq!(only_tags(&drained(&mut queue)), ["test/1", "test/3"]);
}

#[test]
fn a_spilled_request_keeps_the_flag_of_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (mut queue, _) = open(dir.path());
    let data = b"\x81\xa3key\xaa[redacted]";
    let mut batch = Batch::default();
    for flags in [
        crate::model::Flags::MASTER_KEY,
        crate::model::Flags::default(),
    ] {
        let entry = event_entry(b"salt/reactors/manage/list", data, Source::Bus, at(1));
        batch.push(
            &crate::model::Entry {
                flags: entry.flags.with(flags),
                ..entry
            },
            None,
        );
    }
    queue.append(&batch, 1).unwrap();
    let piece = queue.next_piece().unwrap().unwrap();
    let flags: Vec<_> = piece
        .batch
        .entries()
        .map(|(entry, _)| entry.flags.has(crate::model::Flags::MASTER_KEY))
        .collect();
    assert_eq!(flags, [true, false]);
}

#[test]
fn a_spilled_event_of_a_peer_keeps_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let (mut queue, _) = open(dir.path());
    let of_peer = read_event(
        b"a/b",
        b"\x82\xa1x\x01\xa9__peer_id\xa2m2",
        Source::Bus,
        at(1),
        PeerMark::Origin,
    );
    let own = read_event(
        b"a/b",
        b"\x81\xa1x\x01",
        Source::Bus,
        at(1),
        PeerMark::Origin,
    );
    let mut batch = Batch::default();
    batch.push(&of_peer.entry(), Some(of_peer.fingerprints));
    batch.push(&own.entry(), Some(own.fingerprints));
    queue.append(&batch, 1).unwrap();
    drop(queue);

    let (mut queue, _) = open(dir.path());
    let piece = queue.next_piece().unwrap().unwrap();
    let found: Vec<_> = piece
        .batch
        .entries()
        .map(|(entry, fingerprints)| (entry.origin, entry.body, fingerprints))
        .collect();
    let body = own.entry().body;
    let fingerprints = Some(own.fingerprints);
    assert_eq!(
        found,
        [("m2", body, fingerprints), ("", body, fingerprints)]
    );
}

/// Only a passing error may keep the position or the name of the bus from being known, and each is told.
#[test]
fn an_error_of_the_small_files_is_told_and_a_passing_one_is_none_of_damage() {
    let harness = Harness::new();
    let dir = harness.spill();
    let spill_writer = harness.spill_writer();
    let (_, seen) = harness.spill_drainer(&spill_writer, 1 << 20);
    assert!(!seen.known);
    std::fs::write(dir.join("SEEN"), "1795230637000000 7\n").unwrap();

    let plan = Arc::new(Plan::default());
    let fs: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
    let open = || {
        let keys = Arc::new(MasterKeys::none());
        SpillDrainer::open(&spill_writer, &dir, fs.clone(), keys, 1 << 20)
    };
    let bus = || drainer::bus_of(&*fs, &harness.metrics, &dir);
    let failed = || harness.metrics.spill_reads_failed.get();
    let within = |name: &str, errno| Fault {
        within: name.to_owned(),
        ..Fault::once(Act::Read, errno)
    };

    plan.add(within("SEEN", Errno::NOMEM));
    let error = open().err().unwrap();
    let StoreError::Io { why, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(Errno::from_io_error(why), Some(Errno::NOMEM));
    assert_eq!(open().unwrap().1.until, Some(Micros(1_795_230_637_000_000)));
    assert_eq!((bus(), failed()), ("/the/bus".into(), 0));

    // The events of an unknown bus are delivered under the name of their directory.
    plan.add(within("BUS", Errno::MFILE));
    assert_eq!((bus(), failed()), (dir.clone(), 1));
    plan.add(Fault {
        lasting: true,
        ..within("SEEN", Errno::IO)
    });
    assert_eq!((open().unwrap().1.until, failed()), (None, 2));
}
