//! The time that deletion by age goes by.
//!
//! A wall clock that is set ahead makes every entry look old. So it is compared with the monotonic clock: as long as both agree
//! within [`CLOCK_STEP`] from one look to the next, the age clock is the wall clock. After a step it is the earlier
//! of the wall clock and the time before the step plus what has passed since, until
//!
//! - the wall clock is back within [`CLOCK_STEP`] of that,
//! - the daemon has run for [`CLOCK_WAIT`], restarts included, with the clock as it was set, or
//! - an administrator confirms the time (`store prune`).
//!
//! A start compares with the time in the file `CLOCK`; without the file, with the newest entry and the newest log of the store
//! that are not in the future. How long the daemon was stopped is not known: up to [`CLOCK_OFF_MAX`] is no step.
//!
//! # On disk
//!
//! ```text
//! CLOCK    microseconds since 1970, and a newline; while a step waits for its end a second line: `wait`, space, seconds left
//! ```

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use super::error::{StoreError, io_at};
use super::medium::Medium;
use super::segment::Segment;
use crate::clock::{Clock, Micros, micros};
use crate::limits::{CLOCK_OFF_MAX, CLOCK_SAVED_EVERY, CLOCK_STEP, CLOCK_WAIT};
use crate::metrics::Metrics;

/// A step of the wall clock that is not trusted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// By how much the wall clock is ahead of the time expected, in microseconds; negative if it is behind.
    pub ahead: i64,
    /// How much longer the daemon has to run until the wall clock is trusted.
    pub left: Duration,
}

/// The age clock of a store.
#[derive(Debug)]
pub(super) struct AgeClock {
    clock: Clock,
    medium: Arc<dyn Medium>,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// A time that was trusted, and the monotonic clock at that moment.
    base: (Micros, Duration),
    /// How much later than expected it may be all the same: how long the daemon was stopped is not known.
    stopped: Duration,
    /// An open step, and the monotonic clock when `left` was true.
    step: Option<(Step, Duration)>,
    /// When the file was written.
    saved: Option<Duration>,
}

impl AgeClock {
    /// Compares with the time of the last run; `newest` is asked for that of the newest data if there is no file.
    pub(super) fn open(
        clock: Clock,
        medium: Arc<dyn Medium>,
        state_dir: &Path,
        metrics: &Metrics,
        newest: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Self, StoreError> {
        let path = state_dir.join("CLOCK");
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let file = match std::fs::read(&path) {
            Ok(bytes) => {
                let read = parse(&String::from_utf8_lossy(&bytes));
                if read.is_none() {
                    tracing::warn!(path = %path.display(), "unreadable file, using the time of the newest entry");
                }
                read
            }
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => None,
            Err(why) => return Err(io_at("read", &path)(why)),
        };
        let saved = file.map(|_| monotonic);
        let (last, left) = file.unwrap_or_else(|| (newest(wall).unwrap_or(wall), None));
        let step = left.map(|left| (Step { ahead: wall.0.saturating_sub(last.0), left }, monotonic));
        let stopped = if step.is_some() { Duration::ZERO } else { CLOCK_OFF_MAX };
        let state = Mutex::new(State { base: (last, monotonic), stopped, step, saved });
        let this = Self { clock, medium, path, state };
        this.compare(&mut this.state(), metrics);
        Ok(this)
    }

    /// Compares the clocks, and writes down the time if that is due. The time that deletion by age goes by.
    pub(super) fn look(&self, metrics: &Metrics) -> Micros {
        let mut state = self.state();
        let before = state.step.is_some();
        let now = self.compare(&mut state, metrics);
        let passed = |saved| self.clock.monotonic().saturating_sub(saved);
        if state.saved.is_none_or(|saved| passed(saved) >= CLOCK_SAVED_EVERY)
            || before != state.step.is_some()
        {
            self.save(&mut state);
        }
        now
    }

    fn compare(&self, state: &mut State, metrics: &Metrics) -> Micros {
        let (wall, monotonic) = (self.clock.now(), self.clock.monotonic());
        let before = state.step.map(|(step, _)| step);
        let now = state.look(wall, monotonic);
        let after = state.step.map(|(step, _)| step);
        match (before, after) {
            (None, Some(Step { ahead, left })) => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND, wait_s = left.as_secs(), age_time = %now.iso(),
                    "the wall clock was set, deletion by age uses the earlier time until it is confirmed"
                );
            }
            (Some(before), Some(Step { ahead, left })) if ahead != before.ahead => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND,
                    wait_s = left.as_secs(),
                    "the wall clock was set again"
                );
            }
            (Some(_), None) => {
                tracing::info!(age_time = %now.iso(), "deletion by age trusts the wall clock again");
            }
            _ => {}
        }
        now
    }

    /// The wall clock is right: an administrator says so.
    pub(super) fn confirm(&self) {
        let mut state = self.state();
        let (wall, monotonic) = (self.clock.now(), self.clock.monotonic());
        if state.step.is_some() {
            tracing::info!(wall_clock = %wall.iso(), "the time was confirmed, deletion by age trusts the wall clock");
        }
        state.trust(wall, monotonic);
        self.save(&mut state);
    }

    /// A step that is not trusted yet.
    pub(super) fn step(&self) -> Option<Step> {
        let monotonic = self.clock.monotonic();
        let (step, since) = self.state().step?;
        Some(Step { left: step.left.saturating_sub(monotonic.saturating_sub(since)), ..step })
    }

    /// At an orderly end: the next start compares with this moment.
    pub(super) fn close(&self) {
        self.save(&mut self.state());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, state: &mut State) {
        let monotonic = self.clock.monotonic();
        state.saved = Some(monotonic);
        let wait = state.step.map(|(step, since)| {
            let left = step.left.saturating_sub(monotonic.saturating_sub(since));
            format!("wait {}\n", left.as_secs())
        });
        let text = format!("{}\n{}", state.expected(monotonic).0, wait.unwrap_or_default());
        if let Err(error) = self.medium.write_whole(&self.path, text.as_bytes()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot write down the time, the next start compares with an earlier one");
        }
    }
}

const SECOND: i64 = 1_000_000;

impl State {
    fn trust(&mut self, wall: Micros, monotonic: Duration) {
        (self.base, self.stopped, self.step) = ((wall, monotonic), Duration::ZERO, None);
    }

    /// The time trusted last, and what has passed since.
    fn expected(&self, monotonic: Duration) -> Micros {
        let (base, at) = self.base;
        Micros(base.0.saturating_add(micros(monotonic.saturating_sub(at))))
    }

    fn look(&mut self, wall: Micros, monotonic: Duration) -> Micros {
        let expected = self.expected(monotonic);
        let ahead = wall.0.saturating_sub(expected.0);
        let tolerance = micros(CLOCK_STEP);
        let stood_long_enough = match self.step {
            // Set once more: what was waited does not count for this time.
            Some((step, _)) if ahead.saturating_sub(step.ahead).saturating_abs() > tolerance => {
                self.step = Some((Step { ahead, left: CLOCK_WAIT }, monotonic));
                false
            }
            Some((step, since)) => monotonic.saturating_sub(since) >= step.left,
            None => false,
        };
        let agrees = ahead >= -tolerance && ahead <= tolerance.saturating_add(micros(self.stopped));
        if agrees || stood_long_enough {
            self.trust(wall, monotonic);
            return wall;
        }
        self.step.get_or_insert((Step { ahead, left: CLOCK_WAIT }, monotonic));
        wall.min(expected)
    }
}

fn parse(text: &str) -> Option<(Micros, Option<Duration>)> {
    let mut lines = text.lines();
    let at = Micros(lines.next()?.parse().ok()?);
    let left = match lines.next() {
        Some(line) => Some(Duration::from_secs(line.strip_prefix("wait ")?.parse().ok()?).min(CLOCK_WAIT)),
        None => None,
    };
    lines.next().is_none().then_some((at, left))
}

impl Shared {
    /// The age clock, from the start on.
    pub(super) fn age_clock(&self) -> &AgeClock {
        self.age_clock.get().expect("opened with the store")
    }

    /// Opens the age clock; without its file the newest data that is not in the future tells the time.
    pub(super) fn open_age_clock(&self) -> Result<(), StoreError> {
        let newest = |wall: Micros| {
            let times = |segment: Arc<Segment>| [segment.sums().at_max, segment.log().created()];
            self.all_segments().into_iter().flat_map(times).filter(|at| *at <= wall).max()
        };
        let (clock, medium) = (self.clock.clone(), self.medium.clone());
        let opened = AgeClock::open(clock, medium, &self.dir, &self.metrics, newest)?;
        self.age_clock.set(opened).map_err(|_| StoreError::Broken("the age clock was opened twice"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::medium::Disk;
    use super::*;

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
            Self { dir, clock: Clock::hand_wound(NOW), metrics: Metrics::default() }
        }

        fn open(&self) -> AgeClock {
            let (clock, medium) = (self.clock.clone(), Arc::new(Disk));
            AgeClock::open(clock, medium, self.dir.path(), &self.metrics, |_| Some(NOW)).unwrap()
        }

        /// Winds the clock and looks, as retention does; how far behind the wall clock the age clock is.
        fn behind(&self, age_clock: &AgeClock, wound: i64) -> i64 {
            self.clock.wind(wound);
            self.clock.now().0 - age_clock.look(&self.metrics).0
        }

        fn set_ahead(&self, by: i64) {
            self.clock.set(Micros(self.clock.now().0 + by));
        }
    }

    #[test]
    fn the_wait_after_a_step_ends_by_itself_and_goes_on_over_restarts() {
        let rig = Rig::new();
        let age_clock = rig.open();
        rig.set_ahead(40 * DAY);
        assert_eq!(rig.behind(&age_clock, 0), 40 * DAY);
        assert_eq!(rig.behind(&age_clock, DAY / 2), 40 * DAY, "time goes on, as far behind as before");
        assert_eq!(age_clock.step(), Some(Step { ahead: 40 * DAY, left: CLOCK_WAIT / 2 }));
        age_clock.close();
        for _ in 0..2 {
            // Entries that came in meanwhile have the time of the wall clock.
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
    fn a_clock_that_comes_back_is_trusted_at_once() {
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
        // A second step is waited for anew.
        rig.set_ahead(40 * DAY);
        rig.behind(&age_clock, DAY / 2);
        rig.set_ahead(40 * DAY);
        assert_eq!(rig.behind(&age_clock, DAY / 2), 80 * DAY);
        assert_eq!(rig.behind(&age_clock, DAY), 0);
        assert_eq!(rig.metrics.clock_steps.get(), 4);
    }

    #[test]
    fn small_steps_and_short_stops_are_none() {
        let rig = Rig::new();
        let age_clock = rig.open();
        for by in [299, -299, 299] {
            rig.set_ahead(by * SECOND);
            assert_eq!(rig.behind(&age_clock, SECOND), 0);
        }
        age_clock.close();
        // Stopped for almost a day. The monotonic clock of another run has begun anew.
        let rig = Rig { clock: Clock::hand_wound(Micros(rig.clock.now().0 + DAY - SECOND)), ..rig };
        let age_clock = rig.open();
        assert_eq!((rig.behind(&age_clock, 0), rig.metrics.clock_steps.get()), (0, 0));
        age_clock.close();
        // For 40 days: that may be a clock that was set.
        let rig = Rig { clock: Clock::hand_wound(Micros(rig.clock.now().0 + 40 * DAY)), ..rig };
        let age_clock = rig.open();
        assert_eq!(rig.behind(&age_clock, DAY - SECOND), 40 * DAY);
        assert_eq!(rig.behind(&age_clock, SECOND), 0);
    }

    #[test]
    fn a_boot_in_1970_is_over_when_the_time_is_known() {
        let rig = Rig::new();
        rig.open().close();
        let rig = Rig { clock: Clock::hand_wound(Micros(5 * SECOND)), ..rig };
        let age_clock = rig.open();
        assert_eq!(rig.behind(&age_clock, 60 * SECOND), 0);
        assert!(age_clock.step().is_some_and(|step| step.ahead < 0));
        // Ten hours lie between the stop and this.
        rig.clock.set(Micros(NOW.0 + 10 * 3600 * SECOND));
        assert_eq!((rig.behind(&age_clock, SECOND), age_clock.step()), (0, None));
    }

    #[test]
    fn what_the_file_does_not_say_the_newest_data_does() {
        let rig = Rig::new();
        for words in ["", "soon\n", "7\nwait\n", "7\nwait 5\nmore\n", "\u{fffd}"] {
            std::fs::write(rig.dir.path().join("CLOCK"), words).unwrap();
            rig.clock.set(Micros(NOW.0 + 2 * DAY));
            assert_eq!(rig.behind(&rig.open(), 0), 2 * DAY, "{words:?}");
        }
        std::fs::write(rig.dir.path().join("CLOCK"), [0xff]).unwrap();
        assert_eq!(rig.behind(&rig.open(), 0), 2 * DAY);
    }
}
