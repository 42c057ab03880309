//! The reactor's lease, by which the master's engine `saltcellar_reactor` can start Salt's own reactor while this daemon does not answer.
//!
//! # Invariant
//!
//! At no time do both reactors make calls. Once the engine has reported with `fallback`, this reactor acts only until [`REACTOR_LEASE`] after
//! it issued the token of the engine's latest report. The engine starts Salt's reactor later than that: [`REACTOR_LEASE`] after the
//! *receipt* of its latest token, and a margin. It reports `acts` until that reactor has ended. A report that was delayed in the socket
//! carries an old token and extends nothing.
//!
//! A token is valid in one process of the daemon. After a start a reactor whose master's configuration enables the fallback
//! therefore waits for the engine.

use std::time::Duration;

use crate::base::clock::{Micros, micros};
use crate::base::limits::REACTOR_LEASE;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineReport<'a> {
    /// The token of the answer before; `None` in the first report.
    pub(crate) token: Option<&'a str>,
    /// Whether the engine may start Salt's reactor.
    pub(crate) fallback: bool,
    /// Whether Salt's reactor runs as the fallback now.
    pub(crate) acts: bool,
    /// When the latest fallback began and ended.
    pub(crate) began: Option<Micros>,
    /// See `began`.
    pub(crate) ended: Option<Micros>,
}

/// The lease. Times are those of [`Clock::monotonic`](crate::base::clock::Clock::monotonic), except for the interval of the fallback.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Distinguishes the tokens of this process from earlier ones.
    process: i64,
    /// Whether this reactor may act only with a lease.
    required: bool,
    until: Option<Duration>,
    fallback_acts: bool,
    /// The latest fallback; events of that time are Salt's.
    began: Option<Micros>,
    ended: Option<Micros>,
}

impl Lease {
    /// A lease that is `required` by the master's configuration. `started` is the start of this process.
    pub(crate) fn new(required: bool, started: Micros) -> Self {
        Self { process: started.0, required, until: None, fallback_acts: false, began: None, ended: None }
    }

    /// A new token for the answer to a report.
    pub(crate) fn token(&self, now: Duration) -> String {
        format!("{}-{}", self.process, micros(now))
    }

    pub(crate) fn report(&mut self, report: &EngineReport<'_>, now: Duration) {
        if report.acts {
            (self.required, self.fallback_acts, self.until) = (true, true, None);
            (self.began, self.ended) = (report.began.or(self.began), None);
            return;
        }
        let Some(until) = self.end_of(report.token).filter(|until| now < *until) else { return };
        (self.required, self.fallback_acts, self.until) = (report.fallback, false, Some(until));
        (self.began, self.ended) = (report.began, report.ended);
    }

    /// Applies a changed configuration. Only a report makes the lease required later: an engine starts with its master.
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
                "Salt's own reactor acts as the fallback of the engine saltcellar_reactor".to_owned(),
            );
        }
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
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const LEASE: u64 = REACTOR_LEASE.as_secs();

    fn renew(lease: &mut Lease, token: &str, now: u64) {
        lease.report(&EngineReport { token: Some(token), fallback: true, ..EngineReport::default() }, S(now));
    }

    #[test]
    fn without_a_fallback_no_lease_is_needed() {
        let mut lease = Lease::new(false, Micros(7));
        assert_eq!(lease.blocked(S(0)), None);
        lease.report(&EngineReport { token: Some(&lease.token(S(1))), ..EngineReport::default() }, S(2));
        assert_eq!(lease.blocked(S(1000)), None);
    }

    #[test]
    fn a_lease_ends_after_its_token_was_issued_not_after_the_report() {
        let mut lease = Lease::new(true, Micros(7));
        assert!(lease.blocked(S(0)).unwrap().contains("since the start of the daemon"));
        let token = lease.token(S(10));
        renew(&mut lease, &token, 12);
        assert_eq!(lease.blocked(S(10 + LEASE - 1)), None);
        assert!(lease.blocked(S(10 + LEASE)).unwrap().contains(&format!("for {LEASE} s")));
        // Read late from the socket, as after SIGSTOP.
        renew(&mut lease, &token, 10 + LEASE);
        assert!(lease.blocked(S(10 + LEASE)).is_some());
        let token = lease.token(S(100));
        renew(&mut lease, &token, 101);
        assert_eq!(lease.blocked(S(101)), None);
    }

    #[test]
    fn tokens_of_another_process_and_invalid_ones_renew_nothing() {
        let mut lease = Lease::new(true, Micros(7));
        for token in ["8-1000000", "7", "7-", "7--5", "x-y", "", "7-99999999999999999999"] {
            renew(&mut lease, token, 1);
            assert!(lease.blocked(S(1)).is_some(), "{token}");
        }
        let mut other = Lease::new(true, Micros(7));
        renew(&mut other, &Lease::new(true, Micros(8)).token(S(1)), 1);
        assert!(other.blocked(S(1)).is_some());
    }

    #[test]
    fn the_fallback_blocks_until_a_current_report_ends_it_and_keeps_its_events() {
        let mut lease = Lease::new(false, Micros(7));
        let acting =
            EngineReport { acts: true, fallback: true, began: Some(Micros(50)), ..EngineReport::default() };
        lease.report(&acting, S(1));
        assert!(lease.fallback_acts() && lease.blocked(S(1)).unwrap().contains("acts as the fallback"));
        assert!(
            !lease.is_of_fallback(Micros(49))
                && lease.is_of_fallback(Micros(50))
                && lease.is_of_fallback(Micros(90))
        );
        // Made before the fallback began, read afterwards.
        renew(&mut lease, "6-1", 2);
        assert!(lease.fallback_acts());
        lease.configure(false);
        assert!(lease.blocked(S(2)).is_some(), "it acts with any configuration");
        let token = lease.token(S(3));
        let ended = EngineReport { token: Some(&token), acts: false, ended: Some(Micros(80)), ..acting };
        lease.report(&ended, S(4));
        assert_eq!(lease.blocked(S(4)), None);
        assert!(lease.is_of_fallback(Micros(79)) && !lease.is_of_fallback(Micros(80)));
    }

    #[test]
    fn a_changed_configuration_ends_the_need_for_a_lease_and_does_not_create_one() {
        let mut lease = Lease::new(true, Micros(7));
        lease.configure(false);
        assert_eq!(lease.blocked(S(1)), None);
        lease.configure(true);
        assert_eq!(lease.blocked(S(1)), None);
    }
}
