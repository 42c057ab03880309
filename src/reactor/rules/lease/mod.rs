//! The reactor's lease, by which the master's engine `saltcellar_reactor` can start Salt's own
//! reactor while this daemon does not respond.
//!
//! # Invariant
//!
//! At no time do both reactors make calls. Once the engine has reported with `fallback`, this
//! reactor acts only until [`REACTOR_LEASE`] after it issued the token of the engine's latest
//! report. The engine starts Salt's reactor later than that: [`REACTOR_LEASE`] after the *receipt*
//! of its latest token, and a margin. It reports `acts` until that reactor has ended. A report that
//! was delayed in the socket carries an old token and extends nothing.
//!
//! A token is valid in one process of the daemon. After a start a reactor whose master's
//! configuration enables the fallback therefore waits for the engine.

use std::time::Duration;

use crate::base::clock::{Micros, micros};
use crate::base::limits::REACTOR_LEASE;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineReport<'a> {
    /// The token of the previous response; `None` in the first report.
    pub(crate) token: Option<&'a str>,
    /// Whether the engine may start Salt's reactor.
    pub(crate) fallback: bool,
    /// Whether Salt's reactor runs as the fallback now.
    pub(crate) acts: bool,
    /// Whether the engines that the master started include Salt's reactor.
    pub(crate) salts_reactor: bool,
    /// When the latest fallback began and ended.
    pub(crate) began: Option<Micros>,
    /// See `began`.
    pub(crate) ended: Option<Micros>,
}

/// The lease. Timestamps come from [`Clock::monotonic`](crate::base::clock::Clock::monotonic),
/// except for the interval of the fallback.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Distinguishes the tokens of this process from earlier ones.
    process: i64,
    /// Whether this reactor may act only with a lease.
    required: bool,
    until: Option<Duration>,
    fallback_acts: bool,
    salts_reactor: bool,
    /// The latest fallback; events of that time are Salt's.
    began: Option<Micros>,
    ended: Option<Micros>,
}

impl Lease {
    /// A lease that is `required` by the master's configuration. `started` is the start of this
    /// process.
    pub(crate) fn new(required: bool, started: Micros) -> Self {
        Self {
            process: started.0,
            required,
            until: None,
            fallback_acts: false,
            salts_reactor: false,
            began: None,
            ended: None,
        }
    }

    /// A new token for the response to a report.
    pub(crate) fn token(&self, now: Duration) -> String {
        format!("{}-{}", self.process, micros(now))
    }

    pub(crate) fn report(&mut self, report: &EngineReport<'_>, now: Duration) {
        // Independent of the token: what the master has started does not change while its engine
        // runs.
        self.salts_reactor = report.salts_reactor;

        // While the fallback acts there is no lease, whatever the token.
        if report.acts {
            self.required = true;
            self.fallback_acts = true;
            self.until = None;
            self.began = report.began.or(self.began);
            self.ended = None;
            return;
        }

        // A report with an old token was delayed and extends nothing.
        let Some(until) = self.end_of(report.token).filter(|until| now < *until) else {
            return;
        };
        self.required = report.fallback;
        self.fallback_acts = false;
        self.until = Some(until);
        self.began = report.began;
        self.ended = report.ended;
    }

    /// Applies a changed configuration. Only a report makes the lease required later: an engine
    /// starts with its master.
    pub(crate) fn configure(&mut self, required: bool) {
        self.required &= required || self.fallback_acts;
    }

    fn end_of(&self, token: Option<&str>) -> Option<Duration> {
        let (process, issued) = token?.split_once('-')?;
        let issued = issued.parse().ok()?;
        (process.parse() == Ok(self.process)).then(|| Duration::from_micros(issued) + REACTOR_LEASE)
    }

    /// Why this reactor must not act now; `None` if it may.
    pub(crate) fn blocked(&self, now: Duration) -> Option<String> {
        if self.fallback_acts {
            return Some(
                "Salt's reactor acts as the fallback of the engine saltcellar_reactor".to_owned(),
            );
        }

        // Unless the master falls back, there is nothing to wait for.
        if !self.required || self.until.is_some_and(|until| now < until) {
            return None;
        }

        let since = match self.until {
            None => "since the start of the daemon".to_owned(),
            Some(_) => format!("for {} s", REACTOR_LEASE.as_secs()),
        };

        Some(format!(
            "the master's engine saltcellar_reactor has not renewed the reactor's lease {since}: the master is stopped, or the engine cannot \
            reach this daemon (saltcellar.reactor_fallback is true)"
        ))
    }

    /// Whether Salt's reactor runs in the master in addition to the engine, as reported. Then saltcellar only
    /// watches.
    pub(crate) fn salts_reactor(&self) -> bool {
        self.salts_reactor
    }

    /// Whether Salt's reactor acts as the fallback, as far as reported.
    pub(crate) fn fallback_acts(&self) -> bool {
        self.fallback_acts
    }

    /// Whether Salt's reactor was in charge of an event that arrived at this time.
    pub(crate) fn is_of_fallback(&self, at: Micros) -> bool {
        self.began.is_some_and(|began| began <= at) && self.ended.is_none_or(|ended| at < ended)
    }
}

#[cfg(test)]
mod tests;
