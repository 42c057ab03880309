//! The store on a disk that fails, fills up, and loses power: nothing that was answered may be lost by it.
//!
//! [`random`] runs sequences of [`operations`] on a store over a simulated disk ([`PowerCut`]) and compares it with a [`model`] after
//! each of them. The model knows for each entry how often it must be readable at least and at most: what was answered is there, once;
//! what nobody sent is not served; a number never means another entry; what is missing was excused, and counted.

mod checks;
mod faults;
mod hostile;
mod model;
mod operations;
mod random;

use std::fs;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use model::{Model, Shape};

use super::tests::options;
use super::*;
use crate::clock::Micros;
use crate::model::{Age, Batch, ClassRule, ClassRules, Glob, Keep};
use crate::store::retention::{DropOutcome, PruneOptions};
use crate::store::vfs::faults::{Act, Plan};
use crate::store::vfs::power_cut::{Dice, Left, PowerCut};

/// Small segments, so that there are many.
const TINY: Limits = Limits {
    durability: Durability::Durable,
    segment_bytes_max: 6000,
    segment_entries_max: 40,
    ..Limits::DEFAULT
};

/// The classes of configuration `which`: those that are always there, and others for some tags.
fn classes(which: u8) -> Classes {
    let keep = Keep { age: Age::Forever, bytes: None, entries: None };
    let class = |name: &str, tag: &str| {
        let rules = vec![ClassRule { fun: None, tag: Some(Glob::new(tag)) }];
        ClassRules { name: name.to_owned(), rules, keep }
    };
    match which {
        0 => Classes::default(),
        1 => Classes::new(&[class("beacons", "salt/beacon/*")]),
        _ => Classes::new(&[class("auth", "salt/auth/*"), class("returns", "salt/job/*/ret/*")]),
    }
}

/// A store, its disk, and what must be in it.
struct Simulated {
    dir: tempfile::TempDir,
    /// How many disks there were before this one.
    disks: usize,
    disk: PowerCut,
    plan: Arc<Plan>,
    lie: Option<Act>,
    limits: Limits,
    /// Which classes it has.
    classes: u8,
    clock: Clock,
    rig: Option<Rig>,
    model: Model,
    /// Counted by those that are closed.
    frames_damaged: u64,
}

struct Rig {
    store: Store,
    intake: Intake,
    metrics: Arc<Metrics>,
    threads: Vec<JoinHandle<()>>,
}

impl Rig {
    fn open(options: &Options) -> Result<Self, StoreError> {
        let (store, intake, threads) = Store::open(options)?.on_threads();
        Ok(Self { store, intake, metrics: options.metrics.clone(), threads })
    }

    fn close(self) {
        drop((self.store, self.intake));
        self.threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

/// A batch that was handed over, and where its answer comes.
type Sent = (Vec<usize>, Receiver<Result<(), String>>);

impl Simulated {
    fn new(limits: Limits) -> Self {
        Self::lied_to(limits, None)
    }

    /// On a disk that says of such syncs that all is well, and does nothing.
    fn lied_to(limits: Limits, lie: Option<Act>) -> Self {
        let dir = temporary();
        let (root, plan) = (dir.path().join("0"), Arc::new(Plan::default()));
        fs::create_dir(&root).unwrap();
        let disk = PowerCut::new(&root, plan.clone()).lying(lie);
        let (rig, model) = (None, Model::new(limits.dedupe_window));
        let clock = Clock::manual(Micros(1_000_000));
        let (disks, classes, frames_damaged) = (0, 0, 0);
        let mut house =
            Self { dir, disks, disk, plan, lie, limits, classes, clock, rig, model, frames_damaged };
        house.open();
        house
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join(self.disks.to_string())
    }

    fn try_open(&mut self) -> Result<(), StoreError> {
        let fs = Arc::new(self.disk.clone());
        let (clock, classes) = (self.clock.clone(), classes(self.classes));
        let options = Options { clock, fs, classes, ..options(&self.cellar(), self.limits) };
        self.rig = Some(Rig::open(&options)?);
        // What a start has read is on disk from then on.
        self.model.settle();
        Ok(())
    }

    fn cellar(&self) -> PathBuf {
        self.root().join("cellar")
    }

    fn is_written(&self) -> bool {
        matches!(self.limits.durability, Durability::Written { .. })
    }

    fn open(&mut self) {
        self.try_open().unwrap();
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("it is open")
    }

    fn close(&mut self) {
        if let Some(rig) = self.rig.take() {
            self.frames_damaged += rig.metrics.frames_damaged.get();
            let metrics = rig.metrics.clone();
            rig.close();
            // Pages of a failed sync are in the kernel's memory and may never be on disk.
            self.model.sync_failed |= metrics.late_syncs_failed.get() > 0;
        }
    }

    /// An orderly stop, and a start.
    fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// The process dies, if it is not dead yet. The kernel lives on, with all that is not on disk.
    fn kill(&mut self) {
        self.disk.let_power_go_after(0);
        self.close();
        self.disk.restore();
    }

    /// The power goes, if it is not gone yet, and comes back.
    fn cut(&mut self, left: Left, seed: u64) {
        self.disk.let_power_go_after(0);
        self.close();
        if self.is_written() && left != Left::All {
            self.model.lose_unsynced();
        }
        self.new_disk(left, seed);
    }

    /// Makes a disk out of what is left of this one, all of it synced.
    fn new_disk(&mut self, left: Left, seed: u64) {
        // What a backup has of it may be of another history.
        let _ = fs::remove_dir_all(self.backup());
        self.disks += 1;
        let root = self.root();
        fs::create_dir(&root).unwrap();
        self.disk.cut(&root, left, &mut Dice::new(seed));
        fs::remove_dir_all(self.dir.path().join((self.disks - 1).to_string())).unwrap();
        self.disk = PowerCut::new(&root, self.plan.clone()).lying(self.lie);
    }

    /// Hands batches over, all of them before the first answer is waited for, then waits. The items that were
    /// answered with an error or not at all come back.
    fn put(&mut self, batches: &[Vec<Shape>]) -> Vec<usize> {
        let sent = batches.iter().map(|templates| {
            let (numbers, batch) = self.model.batch(templates, self.classes);
            self.send(numbers, batch)
        });
        let sent: Vec<_> = sent.collect();
        self.wait(sent)
    }

    /// Sends items once more by other sources.
    fn put_again(&mut self, numbers: &[usize]) -> Vec<usize> {
        let batch = self.model.again(numbers, self.classes);
        let sent = self.send(numbers.to_vec(), batch);
        self.wait(vec![sent])
    }

    fn send(&self, numbers: Vec<usize>, batch: Batch) -> Sent {
        let (tx, answer) = sync_channel(1);
        let done: Done = Box::new(move |outcome| drop(tx.send(outcome)));
        self.rig().intake.submit(batch, Some(done)).unwrap();
        (numbers, answer)
    }

    fn wait(&mut self, sent: Vec<Sent>) -> Vec<usize> {
        let mut open = Vec::new();
        for (numbers, answer) in sent {
            if let Ok(Ok(())) = answer.recv() {
                self.model.acknowledge(&numbers);
            } else {
                open.extend(numbers);
            }
        }
        open
    }

    /// Lets retention leave so many entries in a class.
    fn prune(&mut self, class: &'static str, entries: u64) -> Vec<DropOutcome> {
        if self.rig().store.0.classes.find(class).is_none() {
            return Vec::new();
        }
        let firsts: Vec<_> = self.segments(class);
        let mut fates = Vec::new();
        let keep = Some(Keep { age: Age::Forever, bytes: None, entries: Some(entries) });
        let wish = PruneOptions { class: Some(class.to_owned()), keep, dry_run: false };
        for going in self.rig().store.prune(&wish).unwrap() {
            if going.outcome == DropOutcome::Dropped {
                let from = going.segment.0;
                let to = firsts.iter().copied().find(|first| *first > from).unwrap_or(u64::MAX);
                self.model.drop_segment(class, from..to);
            }
            fates.push(going.outcome);
        }
        fates
    }

    /// The first numbers of the segments of a class, ascending.
    fn segments(&self, class: &str) -> Vec<u64> {
        let Ok(items) = fs::read_dir(self.cellar().join("log").join(class)) else { return Vec::new() };
        let mut firsts: Vec<u64> =
            items.filter_map(|item| item.unwrap().file_name().to_str()?.parse().ok()).collect();
        firsts.sort_unstable();
        firsts
    }

    fn check(&mut self) {
        let store = self.rig().store.clone();
        self.model.check(&store);
    }
}

/// In memory where that can be had: nothing here relies on a real disk.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap()
}
