//! Simulation: the store on a disk that fails, fills up, and loses power must not lose acknowledged entries.
//!
//! [`random`] runs sequences of [`operations`] on a store over a simulated disk ([`PowerCut`]) and compares it with a [`model`]
//! after each. The model knows how many copies of each entry must and may be readable: an acknowledged entry is present exactly
//! once; an entry that was never sent is absent; a sequence number never identifies two entries; each loss has a permitted cause
//! and is counted.

mod checks;
mod faults;
mod hostile;
mod model;
mod operations;
mod random;

use std::fs;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use std::path::Path;

use model::{ItemSpec, Model};
use salt_sls::Glob;

use crate::retain::{DropOutcome, PruneOptions};
use crate::settings::{Save, Setting, Settings};
use crate::tests::options;
use crate::vfs::faults::{Act, Plan};
use crate::vfs::power_cut::{PowerCut, Survives};
use crate::*;
use saltcellar_base::clock::Micros;
use saltcellar_model::{Age, Batch, ClassRule, ClassRules, Durability, Keep};
use saltcellar_testkit::Random;

/// Small segments, because a run should create many.
const TINY: Limits = Limits {
    durability: Durability::Durable,
    segment_bytes_max: 6000,
    segment_entries_max: 40,
    settings_growth: 4000,
    ..Limits::DEFAULT
};

/// The classes of a configuration: the fixed classes, and more for some tags.
fn classes(which: u8) -> Classes {
    let keep = Keep {
        age: Age::Forever,
        bytes: None,
        entries: None,
    };
    let class = |name: &str, tag: &str| {
        let rules = vec![ClassRule {
            fun: None,
            tag: Some(Glob::new(tag)),
        }];
        ClassRules {
            name: name.to_owned(),
            rules,
            keep,
        }
    };
    match which {
        0 => Classes::default(),
        1 => Classes::new(&[class("beacons", "salt/beacon/*")]),
        _ => Classes::new(&[
            class("auth", "salt/auth/*"),
            class("returns", "salt/job/*/ret/*"),
        ]),
    }
}

/// A store on a simulated disk, and the model of its content.
struct Simulated {
    dir: tempfile::TempDir,
    /// Number of earlier disks.
    disks: usize,
    disk: PowerCut,
    plan: Arc<Plan>,
    lie: Option<Act>,
    limits: Limits,
    /// Argument of [`classes`].
    classes: u8,
    clock: Clock,
    rig: Option<Rig>,
    model: Model,
    /// Damaged frames in all closed instances.
    frames_damaged: u64,
    settings: SettingsModel,
}

/// What is known of a setting that each start changes.
#[derive(Debug, Default)]
struct SettingsModel {
    /// The last value that was saved durably.
    durable: u64,
    /// The last value that was sent.
    last: u64,
}

#[derive(Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
struct Number(u64);

impl Setting for Number {
    const KIND: &'static str = "number";
}

impl SettingsModel {
    /// Durable changes are there, and nothing counts as lost; then changes the setting.
    fn check(&mut self, settings: &Settings, is_readable: bool) {
        // What could not be read is there after the next start.
        if settings.loss().is_some() && !is_readable {
            return;
        }
        assert_eq!(settings.loss(), None);
        let found = settings.get::<Number>("of the simulation");
        let Number(found) = found.and_then(|found| found.value).unwrap_or_default();
        assert!(
            (self.durable..=self.last).contains(&found),
            "the setting is {found}, {self:?}"
        );

        // A start makes what it finds durable.
        self.durable = found;
        for save in [Save::Later, Save::Durable, Save::Later] {
            self.last += 1;
            let number = Number(self.last);
            let saved = settings.put("of the simulation", &number, save);
            if saved.is_ok() && save == Save::Durable {
                self.durable = self.last;
            }
        }
    }
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
        Ok(Self {
            store,
            intake,
            metrics: options.metrics.clone(),
            threads,
        })
    }

    fn close(self) {
        drop((self.store, self.intake));
        self.threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

/// The items of a submitted batch, and the channel of its acknowledgement.
type Sent = (Vec<usize>, Receiver<Result<(), String>>);

impl Simulated {
    fn new(limits: Limits) -> Self {
        Self::on_lying_disk(limits, None)
    }

    fn on_lying_disk(limits: Limits, lie: Option<Act>) -> Self {
        let dir = temporary();
        let (root, plan) = (dir.path().join("0"), Arc::new(Plan::default()));
        fs::create_dir(&root).unwrap();
        let disk = PowerCut::new(&root, plan.clone()).lying(lie);
        let (rig, model) = (None, Model::new(limits.dedupe_window));
        let clock = Clock::manual(Micros(1_000_000));
        let (disks, classes, frames_damaged) = (0, 0, 0);
        let mut simulated = Self {
            dir,
            disks,
            disk,
            plan,
            lie,
            limits,
            classes,
            clock,
            rig,
            model,
            frames_damaged,
            settings: SettingsModel::default(),
        };
        simulated.open();
        simulated
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join(self.disks.to_string())
    }

    fn try_open(&mut self) -> Result<(), StoreError> {
        let fs = Arc::new(self.disk.clone());
        let (clock, classes) = (self.clock.clone(), classes(self.classes));
        let options = Options {
            clock,
            fs,
            classes,
            ..options(&self.state_dir(), self.limits)
        };
        let rig = Rig::open(&options)?;
        self.settings
            .check(rig.store.settings(), self.plan.reads_succeed());
        self.rig = Some(rig);
        // A start syncs the data that it reads.
        self.model.settle();
        Ok(())
    }

    fn state_dir(&self) -> PathBuf {
        self.root().join("state_dir")
    }

    fn is_written(&self) -> bool {
        matches!(self.limits.durability, Durability::Written { .. })
    }

    fn open(&mut self) {
        self.try_open().unwrap();
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("the store is open")
    }

    fn close(&mut self) {
        if let Some(rig) = self.rig.take() {
            self.frames_damaged += rig.metrics.frames_damaged.get();
            rig.close();
        }
    }

    /// Shuts down and restarts.
    fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// Kills the process, unless the power is cut already. The page cache survives.
    fn kill(&mut self) {
        self.disk.cut_after(0);
        self.close();
        self.disk.restore();
    }

    /// Cuts the power, unless it is cut already, and restores it.
    fn cut(&mut self, left: Survives, seed: u64) {
        self.disk.cut_after(0);
        self.close();
        if self.is_written() && left != Survives::All {
            self.model.lose_unsynced();
        }
        self.new_disk(left, seed);
    }

    /// Creates a disk from the surviving data, all of it synced.
    fn new_disk(&mut self, left: Survives, seed: u64) {
        // The backup may belong to another history.
        let _ = fs::remove_dir_all(self.backup());
        self.disks += 1;
        let root = self.root();
        fs::create_dir(&root).unwrap();
        self.disk.cut(&root, left, &mut Random::new(seed));
        fs::remove_dir_all(self.dir.path().join((self.disks - 1).to_string())).unwrap();
        self.disk = PowerCut::new(&root, self.plan.clone()).lying(self.lie);
    }

    /// Submits all batches before it waits for the first acknowledgement. Returns the items that were rejected or not
    /// acknowledged.
    fn put(&mut self, batches: &[Vec<ItemSpec>]) -> Vec<usize> {
        let sent = batches.iter().map(|specs| {
            let (numbers, batch) = self.model.batch(specs, self.classes);
            self.send(numbers, batch)
        });
        let sent: Vec<_> = sent.collect();
        self.wait(sent)
    }

    /// Sends items again, through other sources.
    fn resend(&mut self, numbers: &[usize]) -> Vec<usize> {
        let batch = self.model.resend(numbers, self.classes);
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

    /// Applies a limit of `entries` to a class.
    fn prune(&mut self, class: &'static str, entries: u64) -> Vec<DropOutcome> {
        if self.rig().store.classes.find(class).is_none() {
            return Vec::new();
        }
        let firsts: Vec<_> = self.segments(class);
        let mut outcomes = Vec::new();
        let keep = Some(Keep {
            age: Age::Forever,
            bytes: None,
            entries: Some(entries),
        });
        let options = PruneOptions {
            class: Some(class.to_owned()),
            keep,
            ..PruneOptions::default()
        };
        for going in self.rig().store.prune(&options).unwrap() {
            if going.outcome == DropOutcome::Dropped {
                let from = going.segment.0;
                let to = firsts
                    .iter()
                    .copied()
                    .find(|first| *first > from)
                    .unwrap_or(u64::MAX);
                self.model.drop_segment(class, from..to);
            }
            outcomes.push(going.outcome);
        }
        outcomes
    }

    /// First sequence numbers of the segments of a class, ascending.
    fn segments(&self, class: &str) -> Vec<u64> {
        let Ok(items) = fs::read_dir(self.state_dir().join("log").join(class)) else {
            return Vec::new();
        };
        let mut firsts: Vec<u64> = items
            .filter_map(|item| {
                let name = item.unwrap().file_name();
                Some(format::generation_of(name.to_str()?)?.0.0)
            })
            .collect();
        firsts.sort_unstable();
        firsts
    }

    fn check(&mut self) {
        let store = self.rig().store.clone();
        self.model.check(&store);
    }
}

/// Uses memory if available: no test here needs a real disk.
fn temporary() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}
