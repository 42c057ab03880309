//! The clock used for deletion by age.
//!
//! A wall clock that is set ahead would make every entry look old. The age clock therefore compares
//! it with the monotonic clock. While both agree within [`CLOCK_STEP`] from one check to the next,
//! it equals the wall clock. After a step it is the earlier of the wall clock and the expected time
//! (the time before the step plus the time elapsed since), until
//!
//! - the wall clock is within [`CLOCK_STEP`] of the expected time again,
//! - the daemon has run for [`CLOCK_WAIT`], restarts included, without another step, or
//! - an administrator confirms the time (`store prune`).
//!
//! A start compares with the time in the file `CLOCK`, or, without the file, with the newest entry
//! or log of the store that is not in the future. The length of the downtime is unknown: up to
//! [`CLOCK_OFF_MAX`] does not count as a step.
//!
//! # On disk
//!
//! ```text
//! CLOCK    microseconds since 1970, newline; during a step a second line: `wait`, space, seconds left
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::{Clock, Micros, micros};
use crate::base::limits::{CLOCK_OFF_MAX, CLOCK_SAVE_INTERVAL, CLOCK_STEP, CLOCK_WAIT};
use crate::base::metrics::Metrics;
use crate::store::StoreInner;
use crate::store::error::StoreError;
use crate::store::format::open_small;
use crate::store::segment::Segment;
use crate::store::vfs::Fs;

/// A step of the wall clock that is not trusted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Wall clock minus expected time, in microseconds.
    pub(crate) ahead: i64,
    /// Remaining run time until the wall clock is trusted.
    pub(crate) left: Duration,
}

#[derive(Debug)]
pub(in crate::store) struct AgeClock {
    clock: Clock,
    fs: Arc<dyn Fs>,
    path: PathBuf,
    state: Mutex<ClockState>,
    /// Whether the file was malformed at the start.
    was_malformed: bool,
}

#[derive(Debug)]
struct ClockState {
    /// A trusted time, and the monotonic clock at that moment.
    base: (Micros, Duration),
    /// Possible downtime since `base`, tolerated on top of the expected time.
    stopped: Duration,
    /// An open step, and the monotonic clock at which its `left` was computed.
    step: Option<(Step, Duration)>,
    /// When the file was last written.
    saved: Option<Duration>,
}

impl AgeClock {
    /// Compares with the time of the last run; `newest` returns the time of the newest data if
    /// there is no file.
    pub(in crate::store) fn open(
        clock: Clock,
        fs: Arc<dyn Fs>,
        state_dir: &Path,
        metrics: &Metrics,
        newest: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join("CLOCK");

        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let mut is_malformed = false;

        // A damaged or malformed file must not prevent a start: the data itself bounds the time of
        // the last run.
        let file = open_small(&*fs, &path)?.and_then(|content| {
            let read = parse(&String::from_utf8_lossy(&content.bytes));
            is_malformed = read.is_none();
            if is_malformed {
                tracing::warn!(path = %path.display(), "malformed file, using the time of the newest entry");
            }
            read
        });

        let saved = file.map(|_| monotonic);
        let (last, left) = file.unwrap_or_else(|| (newest(wall).unwrap_or(wall), None));

        // The file has a line `wait` only during a step, which therefore continues: a restart
        // neither ends it nor starts the wait over.
        let step = left.map(|left| {
            (
                Step {
                    ahead: wall.0.saturating_sub(last.0),
                    left,
                },
                monotonic,
            )
        });

        // The expected time was saved during a step, so nothing is tolerated on top of it.
        let stopped = if step.is_some() {
            Duration::ZERO
        } else {
            CLOCK_OFF_MAX
        };

        let state = Mutex::new(ClockState {
            base: (last, monotonic),
            stopped,
            step,
            saved,
        });

        let this = Self {
            clock,
            fs,
            path,
            state,
            was_malformed: is_malformed,
        };
        // Before anything is deleted: the first round may follow immediately.
        this.compare(&mut this.state.lock(), metrics);
        Ok(this)
    }

    /// Compares the clocks, saves the time if due, and returns the age clock.
    pub(in crate::store) fn update(&self, metrics: &Metrics) -> Micros {
        let mut state = self.state.lock();
        let before = state.step.is_some();
        let now = self.compare(&mut state, metrics);

        let passed = |saved| self.clock.monotonic().saturating_sub(saved);

        // A step that begins or ends is saved immediately, because a restart must find it.
        if state
            .saved
            .is_none_or(|saved| passed(saved) >= CLOCK_SAVE_INTERVAL)
            || before != state.step.is_some()
        {
            self.save(&mut state);
        }

        now
    }

    fn compare(&self, state: &mut ClockState, metrics: &Metrics) -> Micros {
        let (wall, monotonic) = (self.clock.now(), self.clock.monotonic());
        let before = state.step.map(|(step, _)| step);
        let now = state.update(wall, monotonic);
        let after = state.step.map(|(step, _)| step);

        match (before, after) {
            (None, Some(Step { ahead, left })) => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND, wait_s = left.as_secs(), age_time = %now.iso(),
                    "wall clock stepped, deletion by age uses the earlier time until the step is confirmed"
                );
            }
            (Some(before), Some(Step { ahead, left })) if ahead != before.ahead => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND,
                    wait_s = left.as_secs(),
                    "wall clock stepped again"
                );
            }
            (Some(_), None) => {
                tracing::info!(age_time = %now.iso(), "wall clock trusted again for deletion by age");
            }
            _ => {}
        }

        now
    }

    /// Ends a step: an administrator vouches for the wall clock.
    pub(in crate::store) fn confirm(&self) {
        let mut state = self.state.lock();
        let (wall, monotonic) = (self.clock.now(), self.clock.monotonic());
        // Also without a step: the time before is then the current one.
        if state.step.is_some() {
            tracing::info!(wall_clock = %wall.iso(), "wall clock confirmed, trusted again for deletion by age");
        }
        state.reset(wall, monotonic);
        self.save(&mut state);
    }

    /// The step that is not trusted yet, if any.
    pub(in crate::store) fn step(&self) -> Option<Step> {
        let monotonic = self.clock.monotonic();
        let (step, since) = self.state.lock().step?;
        Some(Step {
            left: step.left.saturating_sub(monotonic.saturating_sub(since)),
            ..step
        })
    }

    /// Saves the time at shutdown, for the comparison at the next start.
    pub(in crate::store) fn close(&self) {
        self.save(&mut self.state.lock());
    }

    fn save(&self, state: &mut ClockState) {
        let monotonic = self.clock.monotonic();
        state.saved = Some(monotonic);

        let wait = state.step.map(|(step, since)| {
            let left = step.left.saturating_sub(monotonic.saturating_sub(since));
            format!("wait {}\n", left.as_secs())
        });

        // The expected time, not the wall clock: the next start compares with the last time that
        // was trusted.
        let text = format!(
            "{}\n{}",
            state.expected(monotonic).0,
            wait.unwrap_or_default()
        );
        // Not an error of the caller: the file only shortens the wait after the next start.
        if let Err(error) = self.fs.write_whole(&self.path, text.as_bytes()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot save the time, the next start compares with an earlier one");
        }
    }
}

const SECOND: i64 = 1_000_000;

impl ClockState {
    fn reset(&mut self, wall: Micros, monotonic: Duration) {
        (self.base, self.stopped, self.step) = ((wall, monotonic), Duration::ZERO, None);
    }

    /// The last trusted time plus the time elapsed since.
    fn expected(&self, monotonic: Duration) -> Micros {
        let (base, at) = self.base;
        Micros(base.0.saturating_add(micros(monotonic.saturating_sub(at))))
    }

    fn update(&mut self, wall: Micros, monotonic: Duration) -> Micros {
        let expected = self.expected(monotonic);

        let ahead = wall.0.saturating_sub(expected.0);
        let tolerance = micros(CLOCK_STEP);

        // Without a step there is nothing to wait for.
        let wait_is_over = match self.step {
            // A further step restarts the wait.
            Some((step, _)) if ahead.saturating_sub(step.ahead).saturating_abs() > tolerance => {
                self.step = Some((
                    Step {
                        ahead,
                        left: CLOCK_WAIT,
                    },
                    monotonic,
                ));
                false
            }
            Some((step, since)) => monotonic.saturating_sub(since) >= step.left,
            None => false,
        };

        // Downtime can only make the clock appear ahead, so it is tolerated in one direction.
        let agrees = ahead >= -tolerance && ahead <= tolerance.saturating_add(micros(self.stopped));
        // After a day of running with it the clock is believed: a store that was off for long has a
        // correct clock, and nobody may be there to confirm it.
        if agrees || wait_is_over {
            self.reset(wall, monotonic);
            return wall;
        }

        // The first comparison that does not agree begins the wait.
        self.step.get_or_insert((
            Step {
                ahead,
                left: CLOCK_WAIT,
            },
            monotonic,
        ));
        // The earlier of both, so nothing is deleted before either clock would.
        wall.min(expected)
    }
}

/// Whether the content of the file cannot be read.
pub(in crate::store) fn is_malformed(bytes: &[u8]) -> bool {
    parse(&String::from_utf8_lossy(bytes)).is_none()
}

fn parse(text: &str) -> Option<(Micros, Option<Duration>)> {
    let mut lines = text.lines();

    let at = Micros(lines.next()?.parse().ok()?);
    let left = match lines.next() {
        // A longer wait than this release makes is not taken from a file.
        Some(line) => {
            Some(Duration::from_secs(line.strip_prefix("wait ")?.parse().ok()?).min(CLOCK_WAIT))
        }
        None => None,
    };

    // Further lines belong to another format.
    lines.next().is_none().then_some((at, left))
}

impl StoreInner {
    /// The age clock, which is set once the store is open.
    pub(in crate::store) fn age_clock(&self) -> &AgeClock {
        self.age_clock.get().expect("opened with the store")
    }

    /// Opens the age clock; without its file, the newest data not in the future supplies the time.
    pub(in crate::store) fn open_age_clock(&self) -> Result<(), StoreError> {
        let newest = |wall: Micros| {
            // Both are times of this machine's clock, and an entry may come from a caller. Times in
            // the future are no evidence.
            let times = |segment: Arc<Segment>| [segment.totals().at_max, segment.log().created()];
            self.all_segments()
                .into_iter()
                .flat_map(times)
                .filter(|at| *at <= wall)
                .max()
        };

        let (clock, fs) = (self.clock.clone(), self.fs.clone());
        let opened = AgeClock::open(clock, fs, &self.dir, &self.metrics, newest)?;

        if opened.was_malformed {
            self.report_file(
                "CLOCK",
                "malformed at the start: the newest entry supplied the time of the last run; see `saltcellar store prune` if the clock is right",
            );
        }
        self.age_clock
            .set(opened)
            .map_err(|_| StoreError::Broken("the age clock was opened twice"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::vfs::Disk;

    const DAY: i64 = 86_400 * SECOND;
    const NOW: Micros = Micros(1_800_000_000 * SECOND);

    struct Rig {
        dir: tempfile::TempDir,
        clock: Clock,
        metrics: Metrics,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self {
                dir,
                clock: Clock::manual(NOW),
                metrics: Metrics::default(),
            }
        }

        fn open(&self) -> AgeClock {
            let (clock, fs) = (self.clock.clone(), Arc::new(Disk));
            AgeClock::open(clock, fs, self.dir.path(), &self.metrics, |_| Some(NOW)).unwrap()
        }

        /// Advances the clock and checks as retention does; returns wall clock minus age clock.
        fn behind(&self, age_clock: &AgeClock, wound: i64) -> i64 {
            self.clock.wind(wound);
            self.clock.now().0 - age_clock.update(&self.metrics).0
        }

        fn set_ahead(&self, by: i64) {
            self.clock.set(Micros(self.clock.now().0 + by));
        }
    }

    #[test]
    fn the_wait_after_a_step_continues_over_restarts_and_ends() {
        let rig = Rig::new();
        let age_clock = rig.open();
        rig.set_ahead(40 * DAY);
        assert_eq!(rig.behind(&age_clock, 0), 40 * DAY);
        assert_eq!(
            rig.behind(&age_clock, DAY / 2),
            40 * DAY,
            "the age clock advances and keeps its distance"
        );
        assert_eq!(
            age_clock.step(),
            Some(Step {
                ahead: 40 * DAY,
                left: CLOCK_WAIT / 2
            })
        );
        age_clock.close();
        for _ in 0..2 {
            // Entries stored meanwhile carry the time of the wall clock.
            let age_clock = rig.open();
            assert_eq!(rig.behind(&age_clock, DAY / 8), 40 * DAY);
            age_clock.close();
        }
        let age_clock = rig.open();
        assert_eq!(rig.behind(&age_clock, DAY / 4 - SECOND), 40 * DAY);
        assert_eq!(rig.behind(&age_clock, SECOND), 0);
        assert_eq!((age_clock.step(), rig.metrics.clock_steps.get()), (None, 1));
        age_clock.close();
        assert_eq!(rig.behind(&rig.open(), 0), 0);
    }

    #[test]
    fn a_clock_that_is_corrected_is_trusted_at_once() {
        let rig = Rig::new();
        let age_clock = rig.open();
        for by in [40 * DAY, -40 * DAY] {
            rig.set_ahead(by);
            assert_eq!(rig.behind(&age_clock, SECOND), by.max(0));
            assert!(age_clock.step().is_some());
            rig.set_ahead(-by);
            assert_eq!(rig.behind(&age_clock, SECOND), 0);
            assert_eq!(age_clock.step(), None);
        }
        // A second step restarts the wait.
        rig.set_ahead(40 * DAY);
        rig.behind(&age_clock, DAY / 2);
        rig.set_ahead(40 * DAY);
        assert_eq!(rig.behind(&age_clock, DAY / 2), 80 * DAY);
        assert_eq!(rig.behind(&age_clock, DAY), 0);
        assert_eq!(rig.metrics.clock_steps.get(), 4);
    }

    #[test]
    fn small_steps_and_short_downtimes_are_tolerated() {
        let rig = Rig::new();
        let age_clock = rig.open();
        for by in [299, -299, 299] {
            rig.set_ahead(by * SECOND);
            assert_eq!(rig.behind(&age_clock, SECOND), 0);
        }
        age_clock.close();
        // Downtime of almost a day. The monotonic clock of the next run starts anew.
        let rig = Rig {
            clock: Clock::manual(Micros(rig.clock.now().0 + DAY - SECOND)),
            ..rig
        };
        let age_clock = rig.open();
        assert_eq!(
            (rig.behind(&age_clock, 0), rig.metrics.clock_steps.get()),
            (0, 0)
        );
        age_clock.close();
        // Downtime of 40 days: indistinguishable from a step.
        let rig = Rig {
            clock: Clock::manual(Micros(rig.clock.now().0 + 40 * DAY)),
            ..rig
        };
        let age_clock = rig.open();
        assert_eq!(rig.behind(&age_clock, DAY - SECOND), 40 * DAY);
        assert_eq!(rig.behind(&age_clock, SECOND), 0);
    }

    #[test]
    fn a_boot_in_1970_ends_when_the_time_is_known() {
        let rig = Rig::new();
        rig.open().close();
        let rig = Rig {
            clock: Clock::manual(Micros(5 * SECOND)),
            ..rig
        };
        let age_clock = rig.open();
        assert_eq!(rig.behind(&age_clock, 60 * SECOND), 0);
        assert!(age_clock.step().is_some_and(|step| step.ahead < 0));
        // Ten hours of downtime.
        rig.clock.set(Micros(NOW.0 + 10 * 3600 * SECOND));
        assert_eq!(
            (rig.behind(&age_clock, SECOND), age_clock.step()),
            (0, None)
        );
    }

    #[test]
    fn without_a_valid_file_the_newest_data_supplies_the_time() {
        let rig = Rig::new();
        for text in ["", "soon\n", "7\nwait\n", "7\nwait 5\nmore\n", "\u{fffd}"] {
            std::fs::write(rig.dir.path().join("CLOCK"), text).unwrap();
            rig.clock.set(Micros(NOW.0 + 2 * DAY));
            assert_eq!(rig.behind(&rig.open(), 0), 2 * DAY, "{text:?}");
        }
        std::fs::write(rig.dir.path().join("CLOCK"), [0xff]).unwrap();
        assert_eq!(rig.behind(&rig.open(), 0), 2 * DAY);
    }
}
