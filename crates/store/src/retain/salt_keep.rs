//! The time for which Salt keeps jobs: `keep_jobs_seconds`, as masters report it.
//!
//! # Invariant
//!
//! A report never shortens retention by itself. A longer time applies immediately, even after a
//! restart and before the next report. A shorter one only waits until an administrator accepts it
//! (`store prune --accept-salt`). The first report of a store applies: it can only lengthen the
//! default, and a class whose configured age is `salt` asks for it.
//!
//! Two masters that share a store may report different times: the longest of the last hour counts
//! as reported.
//!
//! The time in effect is a setting of the store (see `settings`), once Salt has reported one. While
//! it may be out of date, because changes of the settings are lost, it counts as `forever` until a
//! time is accepted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::settings::{Save, Setting, Settings};
use saltcellar_base::file_fault::FileFault;
use saltcellar_base::limits::SALT_KEEP_TTL;
use saltcellar_model::{Age, Keep};

/// A time for which Salt keeps jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SaltKeep {
    Seconds(u64),
    Forever,
}

impl Setting for SaltKeep {
    const KIND: &'static str = "keep_jobs";
}

impl SaltKeep {
    /// The value of `keep_jobs_seconds`, where 0 means forever.
    fn reported(seconds: u64) -> Self {
        match seconds {
            0 => Self::Forever,
            seconds => Self::Seconds(seconds),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Seconds(seconds) => seconds.to_string(),
            Self::Forever => "forever".to_owned(),
        }
    }

    fn age(self) -> Option<Duration> {
        match self {
            Self::Seconds(seconds) => Some(Duration::from_secs(seconds)),
            Self::Forever => None,
        }
    }
}

/// The age limit of a class, given for how long Salt keeps jobs; `None` for forever.
pub(crate) fn age_with(keep: Keep, salt: Option<SaltKeep>) -> Option<Duration> {
    match keep.age {
        Age::Forever => None,
        Age::For(age) => Some(age),
        Age::Salt => salt.and_then(SaltKeep::age),
        Age::AtLeastSalt(age) => match salt {
            None => Some(age),
            Some(salt) => salt.age().map(|salt| salt.max(age)),
        },
    }
}

/// The time that Salt reported, and the time in effect.
#[derive(Debug)]
pub(crate) struct SaltKeeps {
    settings: Arc<Settings>,
    /// Also held while the time is saved. Lock order: before the settings' locks.
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    in_effect: Option<SaltKeep>,
    /// Whether the setting is the time in effect.
    is_saved: bool,
    /// Whether the time was uncertain at the start, and nothing was accepted since.
    is_uncertain: bool,
    /// The longest time reported within an hour, and when by the monotonic clock.
    reported: Option<(SaltKeep, Duration)>,
}

impl SaltKeeps {
    pub(crate) fn open(settings: Arc<Settings>) -> Self {
        let this = Self {
            settings,
            state: Mutex::default(),
        };
        this.reload();
        this
    }

    /// Reads the time in effect, at a start and after an administrator has accepted a loss.
    pub(crate) fn reload(&self) {
        let found = self.settings.get::<SaltKeep>("");
        let (known, is_uncertain) = match &found {
            Some(found) => (found.value, found.is_uncertain || found.value.is_none()),
            // It may have been reported, and lost.
            None => (None, self.settings.loss().is_some()),
        };

        let mut state = self.state.lock();
        // Nothing is in effect, or what is saved.
        state.is_saved = true;
        state.is_uncertain = is_uncertain;
        // Nothing is deleted because of a time that may have been longer: `Forever` until an
        // administrator decides.
        state.in_effect = if is_uncertain {
            tracing::error!(
                "saved `keep_jobs_seconds` of Salt may be lost, classes that follow it keep jobs forever: once a master has reported it again, run `saltcellar store prune --accept-salt`"
            );
            Some(SaltKeep::Forever)
        } else {
            known
        };
    }

    /// Takes a report of a master. A longer time applies from now on.
    pub(crate) fn report(&self, seconds: u64, now: Duration) {
        let seconds = SaltKeep::reported(seconds);
        let mut state = self.state.lock();

        // Of two masters the longer one counts, for as long as it may still be reporting.
        let longer_counts = state
            .reported
            .is_some_and(|(known, at)| known > seconds && now.saturating_sub(at) < SALT_KEEP_TTL);
        if !longer_counts {
            state.reported = Some((seconds, now));
        }

        if state.in_effect.is_none_or(|known| known < seconds) {
            state.in_effect = Some(seconds);
            state.is_saved = false;
        }
        // A write that failed is repeated at the next report, a minute later.
        if !state.is_saved {
            self.save(&mut state);
        }
    }

    /// The time in effect; `None` if Salt never reported one.
    pub(crate) fn in_effect(&self) -> Option<SaltKeep> {
        self.state.lock().in_effect
    }

    /// Whether Salt ever reported a time.
    pub(crate) fn was_reported(&self) -> bool {
        self.in_effect().is_some()
    }

    /// The reported time, if it is shorter than the time in effect.
    pub(crate) fn shorter(&self) -> Option<SaltKeep> {
        let state = self.state.lock();
        let (reported, _) = state.reported?;
        state
            .in_effect
            .is_some_and(|known| known > reported)
            .then_some(reported)
    }

    /// Fails if there is nothing to accept, because no master has reported since the start.
    pub(crate) fn ensure_reported(&self) -> Result<(), StoreError> {
        if self.state.lock().reported.is_some() {
            return Ok(());
        }
        Err(StoreError::Refused(
            "no master has reported keep_jobs_seconds since the daemon started: a master with saltcellar as its job cache does every minute, \
             repeat the command then"
                .to_owned(),
        ))
    }

    /// An administrator accepts the reported time.
    pub(crate) fn accept(&self) {
        let mut state = self.state.lock();
        // `ensure_reported` says so.
        let Some((reported, _)) = state.reported else {
            return;
        };

        tracing::info!(keep_jobs_seconds = %reported.text(), "the time for which Salt keeps jobs was accepted");

        state.in_effect = Some(reported);
        state.is_uncertain = false;
        self.save(&mut state);
    }

    pub(crate) fn fault(&self) -> Option<FileFault> {
        let fault = || {
            FileFault::new(
                self.settings.dir(),
                "the time for which Salt keeps jobs may be lost: classes that follow Salt's keep_jobs_seconds keep jobs forever until a master has reported it again and `saltcellar store prune --accept-salt` was run",
            )
        };
        self.state.lock().is_uncertain.then(fault)
    }

    fn save(&self, state: &mut State) {
        let Some(in_effect) = state.in_effect else {
            return;
        };

        let saved = self.settings.put("", &in_effect, Save::Durable);
        // The time applies in any case; only a restart would forget it.
        state.is_saved = saved.is_ok();
        if let Err(error) = saved {
            tracing::warn!(
                %error,
                "cannot save `keep_jobs_seconds` of Salt, a restart forgets it, retrying"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    struct Rig(tempfile::TempDir);

    impl Rig {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn open(&self) -> SaltKeeps {
            SaltKeeps::open(Settings::for_tests(self.0.path()))
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_age_of_a_class_is_never_less_than_salts_where_both_count() {
        let days = |days: u64| Duration::from_secs(days * DAY);
        let keep_with = |age| Keep {
            age,
            bytes: None,
            entries: None,
        };
        let reports = [None, Some(1), Some(200), Some(0)];

        // Per report: none, a day, 200 days, forever.
        for (age, expected) in [
            (
                Age::AtLeastSalt(days(90)),
                [Some(90), Some(90), Some(200), None],
            ),
            (Age::For(days(90)), [Some(90); 4]),
            (Age::Salt, [None, Some(1), Some(200), None]),
            (Age::Forever, [None; 4]),
        ] {
            let ages = reports.map(|reported: Option<u64>| {
                let salt = reported.map(|days| SaltKeep::reported(days * DAY));
                age_with(keep_with(age), salt)
            });
            assert_eq!(ages, expected.map(|n| n.map(days)), "{age:?}");
        }
    }

    #[test]
    fn a_longer_time_applies_and_a_shorter_one_waits_until_it_is_accepted() {
        let rig = Rig::new();
        let keeps = rig.open();
        assert_eq!((keeps.in_effect(), keeps.shorter()), (None, None));

        keeps.report(DAY, at(0));
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Seconds(DAY)));
        keeps.report(0, at(60));
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever), "0 is forever");
        let saved = keeps.settings.get::<SaltKeep>("").unwrap().value;
        assert_eq!(saved, Some(SaltKeep::Forever));

        // Over an hour later the longer report has expired, but it stays in effect.
        keeps.report(DAY, at(4000));
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever));
        assert_eq!(keeps.shorter(), Some(SaltKeep::Seconds(DAY)));

        // A restart forgets the report, not the time in effect.
        let keeps = rig.open();
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever));
        keeps.accept();
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever), "none reported");
        assert!(keeps.ensure_reported().is_err());
        keeps.report(DAY, at(0));
        assert!(keeps.ensure_reported().is_ok());
        keeps.accept();
        assert_eq!(
            (keeps.in_effect(), keeps.shorter()),
            (Some(SaltKeep::Seconds(DAY)), None)
        );
        assert_eq!(rig.open().in_effect(), Some(SaltKeep::Seconds(DAY)));
    }

    #[test]
    fn the_longest_of_several_masters_counts_until_it_is_an_hour_old() {
        let keeps = Rig::new().open();
        let reported_after = |seconds, now| {
            keeps.report(seconds, at(now));
            keeps.state.lock().reported.unwrap().0
        };
        assert_eq!(reported_after(7200, 0), SaltKeep::Seconds(7200));
        assert_eq!(reported_after(3600, 120), SaltKeep::Seconds(7200));
        assert_eq!(reported_after(7200, 180), SaltKeep::Seconds(7200));
        assert_eq!(reported_after(3600, 3700), SaltKeep::Seconds(7200));
        assert_eq!(reported_after(3600, 3800), SaltKeep::Seconds(3600));
    }

    #[test]
    fn a_time_that_may_be_lost_counts_as_forever_until_one_is_accepted() {
        let rig = Rig::new();
        drop(rig.open());
        crate::settings::tests::lose_all(rig.0.path());

        let keeps = rig.open();
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever));
        assert!(keeps.fault().is_some());
        keeps.report(DAY, at(0));
        assert_eq!(keeps.in_effect(), Some(SaltKeep::Forever));
        keeps.accept();
        assert_eq!(
            (keeps.fault(), keeps.in_effect()),
            (None, Some(SaltKeep::Seconds(DAY)))
        );
    }
}
