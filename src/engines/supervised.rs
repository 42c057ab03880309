//! The threads of engines that the configuration names: sinks and scripts.
//!
//! # Invariant
//!
//! At any time at most one thread of a name works: a thread that replaces another one waits until
//! it has ended, for which both know a lock ([`PerName`](super::per_name::PerName)).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use parking_lot::{Mutex, MutexGuard};

use crate::base::threads::join_until;

/// What runs under one name, or could not start.
pub(super) trait Engine {
    type Settings;

    fn name(settings: &Self::Settings) -> &str;

    /// Whether it works, with these settings.
    fn runs(&self, settings: &Self::Settings) -> bool;

    /// A reload has kept it.
    fn kept(&self) {}

    /// Asks it to stop, without a wait for what it does. Returns its thread, if it had one.
    fn end(&mut self) -> Option<JoinHandle<()>>;
}

/// The engines of one kind.
#[derive(Debug)]
pub(super) struct Supervised<E> {
    /// For the names of threads: `sink`, `script`.
    kind: &'static str,
    /// In the order of the configuration. Locked during a whole reload. Lock order: before
    /// `ending`, `started`, and all that the start and the end of an engine take.
    running: Mutex<IndexMap<String, E>>,
    /// The daemon stops. Changed under the lock of `running` only.
    has_stopped: AtomicBool,
    /// Threads of removed and replaced engines that may still work, with the engine's name. Lock
    /// order: after `running`, before all that the end of an engine takes.
    ending: Mutex<Vec<(String, JoinHandle<()>)>>,
    /// Number of threads started, for their names. Lock order: after `running`; no other lock is
    /// taken under it.
    started: Mutex<usize>,
}

impl<E: Engine> Supervised<E> {
    pub(super) fn new(kind: &'static str) -> Self {
        Self {
            kind,
            running: Mutex::default(),
            has_stopped: AtomicBool::new(false),
            ending: Mutex::default(),
            started: Mutex::new(0),
        }
    }

    /// Starts new engines, replaces changed engines and engines whose thread has ended, and stops
    /// the rest. `start` gets the name of the thread. Returns the names of the stopped engines.
    pub(super) fn apply(
        &self,
        settings: Vec<E::Settings>,
        mut start: impl FnMut(E::Settings, &str) -> E,
    ) -> Vec<String> {
        // Held until all are as configured: two concurrent reloads must not start an engine twice.
        let mut running = self.running.lock();
        // A reload that the stop of the daemon has overtaken would start engines that nobody ends.
        if self.has_stopped.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut before = std::mem::take(&mut *running);

        for settings in settings {
            let name = E::name(&settings).to_owned();

            let engine = match before.shift_remove(&name) {
                Some(same) if same.runs(&settings) => {
                    same.kept();
                    same
                }
                // The new thread waits for the old one. The old engine lives until the new one has
                // begun: both share what its threads hold.
                Some(mut old) => {
                    self.end(&name, &mut old);
                    start(settings, &self.thread_name())
                }
                None => start(settings, &self.thread_name()),
            };

            running.insert(name, engine);
        }

        for (name, removed) in &mut before {
            self.end(name, removed);
        }
        before.into_keys().collect()
    }

    fn end(&self, name: &str, engine: &mut E) {
        let mut ending = self.ending.lock();
        ending.retain(|(_, thread)| !thread.is_finished());
        ending.extend(engine.end().map(|thread| (name.to_owned(), thread)));
    }

    /// A number and not the engine's name, which is longer than the 15 bytes of the kernel.
    fn thread_name(&self) -> String {
        let mut started = self.started.lock();
        let number = *started % 1_000;
        *started += 1;
        format!("sc-{}-{number}", self.kind)
    }

    /// The engines, in the order of the configuration. A reload waits meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, IndexMap<String, E>> {
        self.running.lock()
    }

    /// Stops all engines. Returns the names of those whose thread has not ended within that time.
    pub(super) fn stop(&self, within: Duration) -> Vec<String> {
        // All share the time, with the threads that a reload has ended.
        let running = {
            let mut running = self.running.lock();
            self.has_stopped.store(true, Ordering::Relaxed);
            std::mem::take(&mut *running)
        };
        for (name, mut engine) in running {
            self.end(&name, &mut engine);
        }

        let ending = std::mem::take(&mut *self.ending.lock());
        let until = Instant::now() + within;
        ending
            .into_iter()
            .filter_map(|(name, thread)| join_until(thread, until).map(|_| name))
            .collect()
    }
}
