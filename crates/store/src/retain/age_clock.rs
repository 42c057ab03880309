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
//! A start compares with the time that was saved, a setting of the store (see `settings`), or, without
//! one, with the newest entry or log of the store that is not in the future. The length of the downtime is unknown: up to
//! [`CLOCK_OFF_MAX`] does not count as a step.
//!
//! # Invariant
//!
//! After a step of the system clock, deletion by age waits until the clock is trusted: it is back,
//! a day has passed, or an administrator confirmed it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::format::{FoundId, find_store_id};
use crate::segment::Segment;
use crate::settings::{Place, Save, Setting, Settings};
use crate::vfs::Disk;
use saltcellar_base::clock::{Clock, Micros, micros};
use saltcellar_base::limits::{
    CLOCK_OFF_MAX, CLOCK_SAVE_INTERVAL, CLOCK_STEP, CLOCK_WAIT, SETTINGS_GROWTH,
};
use saltcellar_base::metrics::Metrics;

/// A step of the wall clock that is not trusted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Wall clock minus expected time, in microseconds.
    pub ahead: i64,
    /// Remaining run time until the wall clock is trusted.
    pub left: Duration,
}

/// The time of the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SavedTime {
    at: Micros,
    /// During a step, the seconds until the wall clock is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait: Option<u64>,
}

impl Setting for SavedTime {
    const KIND: &'static str = "clock";
}

#[derive(Debug)]
pub(crate) struct AgeClock {
    clock: Clock,
    settings: Arc<Settings>,
    /// Also held while the time is saved. Lock order: before the settings' locks.
    state: Mutex<ClockState>,
}

#[derive(Debug)]
struct ClockState {
    /// A trusted time, and the monotonic clock at that moment.
    base: (Micros, Duration),
    /// Possible downtime since `base`, tolerated on top of the expected time.
    stopped: Duration,
    /// An open step, and the monotonic clock at which its `left` was computed.
    step: Option<(Step, Duration)>,
    /// When the time was last saved.
    saved: Option<Duration>,
}

impl AgeClock {
    /// Compares with the time of the last run; `newest` returns the time of the newest data if none
    /// was saved.
    pub(crate) fn open(
        clock: Clock,
        settings: Arc<Settings>,
        metrics: &Metrics,
        newest: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Self {
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let last_run = settings.get::<SavedTime>("").and_then(|found| found.value);
        let saved = last_run.map(|_| monotonic);
        let (last, left) = match last_run {
            // A longer wait than this release sets is not trusted.
            Some(SavedTime { at, wait }) => {
                (at, wait.map(|s| Duration::from_secs(s).min(CLOCK_WAIT)))
            }
            // The data itself bounds the time of the last run.
            None => (newest(wall).unwrap_or(wall), None),
        };

        // A wait is saved only during a step, which therefore continues: a restart
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
            settings,
            state,
        };
        // Before anything is deleted: the first round may follow immediately.
        this.compare(&mut this.state.lock(), metrics);
        this
    }

    /// Compares the clocks, saves the time if due, and returns the age clock.
    pub(crate) fn update(&self, metrics: &Metrics) -> Micros {
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

        // Only transitions are logged: a step can last for a day, and the clocks are compared
        // often.
        match (before, after) {
            (None, Some(Step { ahead, left })) => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND, wait_s = left.as_secs(), age_time = %now.iso(),
                    "wall clock stepped, deletion by age uses the earlier time until the step is confirmed: see `saltcellar doctor`"
                );
            }
            (Some(before), Some(Step { ahead, left })) if ahead != before.ahead => {
                metrics.clock_steps.add(1);
                tracing::warn!(
                    ahead_s = ahead / SECOND,
                    wait_s = left.as_secs(),
                    "wall clock stepped again: see `saltcellar doctor`"
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
    pub(crate) fn confirm(&self) {
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
    pub(crate) fn step(&self) -> Option<Step> {
        let monotonic = self.clock.monotonic();
        let (step, since) = self.state.lock().step?;
        Some(Step {
            left: step.left.saturating_sub(monotonic.saturating_sub(since)),
            ..step
        })
    }

    /// Saves the time at shutdown, for the comparison at the next start.
    pub(crate) fn close(&self) {
        self.save(&mut self.state.lock());
    }

    fn save(&self, state: &mut ClockState) {
        let monotonic = self.clock.monotonic();
        state.saved = Some(monotonic);

        let wait = state.step.map(|(step, since)| {
            let left = step.left.saturating_sub(monotonic.saturating_sub(since));
            left.as_secs()
        });

        // The expected time, not the wall clock: the next start compares with the last time that
        // was trusted.
        let at = state.expected(monotonic);
        // Not an error of the caller: the time only shortens the wait after the next start.
        let saved = SavedTime { at, wait };
        if let Err(error) = self.settings.put("", &saved, Save::Durable) {
            tracing::warn!(%error, "cannot save the clock, the next start compares with an earlier time");
        }
    }
}

const SECOND: i64 = 1_000_000;

impl ClockState {
    fn reset(&mut self, wall: Micros, monotonic: Duration) {
        self.base = (wall, monotonic);
        self.stopped = Duration::ZERO;
        self.step = None;
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
        // After a day of running with it the clock is trusted: after a long downtime the clock is
        // correct, and nobody may be there to confirm it.
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

/// Makes the last run that a store knows end this many microseconds earlier, for tests of the program.
pub fn age_last_run(state_dir: &Path, by: i64) -> Result<(), StoreError> {
    let place = Place {
        state_dir,
        store_id: find_id(state_dir)?,
        position: None,
        is_new: false,
        growth: SETTINGS_GROWTH,
    };
    let settings = Settings::open(Arc::new(Disk), place, Clock::real())?;
    let saved = settings.get::<SavedTime>("").and_then(|found| found.value);
    let mut saved = saved.ok_or(StoreError::Broken("no time was saved"))?;
    saved.at.0 -= by;
    settings.put("", &saved, Save::Durable)
}

fn find_id(state_dir: &Path) -> Result<u64, StoreError> {
    match find_store_id(&Disk, state_dir)? {
        FoundId::Stored(store_id) | FoundId::InLogs(store_id) => Ok(store_id),
        FoundId::Missing => Err(StoreError::Broken("no store")),
    }
}

/// The time of the newest data that is not in the future, for a store without a saved time.
pub(crate) fn newest_data(segments: &[Arc<Segment>], wall: Micros) -> Option<Micros> {
    // Both timestamps come from this host's clock, but an entry may come from a caller. Timestamps
    // in the future are no evidence.
    let times = |segment: &Arc<Segment>| [segment.totals().at_max, segment.log().created()];
    let all = segments.iter().flat_map(times);
    all.filter(|at| *at <= wall).max()
}

#[cfg(test)]
mod tests {
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
            Self {
                dir,
                clock: Clock::manual(NOW),
                metrics: Metrics::default(),
            }
        }

        fn open(&self) -> AgeClock {
            let settings = Settings::for_tests(self.dir.path());
            AgeClock::open(self.clock.clone(), settings, &self.metrics, |_| Some(NOW))
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
        // Downtime of almost a day. The monotonic clock of the next run starts from zero.
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
    fn without_a_saved_time_the_newest_data_supplies_it() {
        let rig = Rig::new();
        rig.open().close();
        crate::settings::tests::lose_all(rig.dir.path());
        rig.clock.set(Micros(NOW.0 + 2 * DAY));
        assert_eq!(rig.behind(&rig.open(), 0), 2 * DAY);
    }
}
