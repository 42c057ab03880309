//! Whether calls may be made: the lease of the master's engine, and the election among reactors of several masters.
//!
//! # Invariant
//!
//! No call begins while either forbids it, and each change of that is logged once. After an election none begins before the follower has
//! read what the former leader did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Event;
use super::in_use::InUse;
use crate::base::clock::{Clock, Micros};
use crate::cluster::election::{Election, Standing};
use crate::reactor::rules::lease::{EngineReport, Lease};
use crate::wire::salt_event::stamp_of;

pub(super) struct CallGate {
    /// Lock order: after the scheduler; no other lock is taken under it.
    lease: Mutex<Lease>,
    /// With `reactor.election`; and the settings, which may make it void.
    election: Option<(Arc<Election>, Arc<InUse>)>,
    /// The term of the election in which the follower has read what former leaders did.
    begun: AtomicU64,
    /// Calls were blocked when that was last checked.
    was_blocked: AtomicBool,
    clock: Clock,
}

const NONE_BEGUN: u64 = u64::MAX;

/// The effect of a report of the master's engine.
pub(super) struct Reported {
    /// The token for its next report.
    pub(super) token: String,
    /// Salt's reactor acted as a fallback, and does no longer.
    pub(super) fallback_ended: bool,
    /// Whether Salt's reactor runs in addition to the engine, if that changed.
    pub(super) salts_reactor: Option<bool>,
}

impl CallGate {
    pub(super) fn new(
        fallback: bool,
        election: Option<(Arc<Election>, Arc<InUse>)>,
        clock: Clock,
    ) -> Self {
        Self {
            lease: Mutex::new(Lease::new(fallback, clock.now())),
            election,
            begun: AtomicU64::new(NONE_BEGUN),
            was_blocked: AtomicBool::new(false),
            clock,
        }
    }

    pub(super) fn configure(&self, fallback: bool) {
        self.lease.lock().configure(fallback);
    }

    /// Why the lease of the engine forbids calls now.
    pub(super) fn why(&self) -> Option<String> {
        self.lease.lock().blocked(self.clock.monotonic())
    }

    /// The election, if it decides whether this reactor acts.
    pub(super) fn election(&self) -> Option<&Arc<Election>> {
        let (election, in_use) = self.election.as_ref()?;
        in_use.settings().takes_part().then_some(election)
    }

    /// Whether this reactor acts as the only one, or which does; `None` without an election.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.election().map(|election| election.standing())
    }

    /// The term in which this reactor leads. Without an election there is only one.
    pub(super) fn term(&self) -> Option<u64> {
        let Some(election) = self.election() else {
            return Some(0);
        };
        // The term last: one that begins after the standing was read is not taken for the same.
        (election.standing() == Standing::Leads).then(|| election.term())
    }

    /// Notes that what former leaders did before this term is read.
    pub(super) fn begin(&self, term: u64) {
        self.begun.store(term, Ordering::Release);
    }

    /// Whether this reactor leads, in the term that [`CallGate::begin`] named. Without an election always.
    pub(super) fn has_begun(&self) -> bool {
        self.election().is_none() || self.term() == Some(self.begun.load(Ordering::Acquire))
    }

    /// Whether calls are forbidden now. Logs a change, with its reason.
    pub(super) fn blocks(&self) -> bool {
        // Asked each time, because both end by the passage of time, without any event.
        let why = self.why().or_else(|| match self.standing()? {
            Standing::Leads => (!self.has_begun())
                .then(|| "this reactor reads what the former leader did".to_owned()),
            Standing::Follows(leader) => Some(format!("the reactor of the master {leader} leads")),
            Standing::Unknown(why) => Some(why),
        });

        // `swap` lets one of the threads that notice the change log it.
        if self.was_blocked.swap(why.is_some(), Ordering::Relaxed) != why.is_some() {
            if let Some(why) = &why {
                tracing::warn!(
                    why,
                    "reactor makes no calls, reactions wait: run `saltcellar doctor`"
                );
            } else {
                tracing::info!("the reactor may act, reactions continue");
            }
        }
        why.is_some()
    }

    /// Whether Salt's reactor, as a fallback, was in charge of an event.
    pub(super) fn is_of_fallback(&self, event: &Event) -> bool {
        // After a pause the daemon reads events that were fired earlier.
        let fired = stamp_of(&event.body).and_then(Micros::of_stamp);
        let lease = self.lease.lock();
        lease.is_of_fallback(event.at) || fired.is_some_and(|at| lease.is_of_fallback(at))
    }

    /// Whether Salt's reactor acts as a fallback.
    pub(super) fn fallback_acts(&self) -> bool {
        self.lease.lock().fallback_acts()
    }

    /// Whether the master runs Salt's reactor in addition to the engine.
    pub(super) fn salts_reactor(&self) -> bool {
        self.lease.lock().salts_reactor()
    }

    pub(super) fn report(&self, report: &EngineReport<'_>) -> Reported {
        let now = self.clock.monotonic();
        // Under one lock, because only changes made by this report may be returned.
        let mut lease = self.lease.lock();
        let (acted, ran) = (lease.fallback_acts(), lease.salts_reactor());
        lease.report(report, now);

        Reported {
            token: lease.token(now),
            fallback_ended: acted && !lease.fallback_acts(),
            salts_reactor: (lease.salts_reactor() != ran).then(|| lease.salts_reactor()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::limits::REACTOR_LEASE;

    #[test]
    fn a_required_lease_opens_the_gate_until_it_ends() {
        let clock = Clock::manual(Micros(1_000_000));
        let gate = CallGate::new(true, None, clock.clone());
        assert!(gate.blocks() && gate.why().is_some());

        // The first report gets a token, the second one a lease.
        let first = EngineReport {
            fallback: true,
            ..EngineReport::default()
        };
        let token = gate.report(&first).token;
        assert!(gate.blocks());
        let second = EngineReport {
            token: Some(&token),
            ..first
        };
        gate.report(&second);
        assert!(!gate.blocks());

        let lease = i64::try_from((REACTOR_LEASE + Duration::from_secs(1)).as_micros()).unwrap();
        clock.wind(lease);
        assert!(gate.blocks());
    }

    #[test]
    fn a_report_states_what_it_changed() {
        let gate = CallGate::new(false, None, Clock::manual(Micros(1)));
        let acts = EngineReport {
            acts: true,
            salts_reactor: true,
            began: Some(Micros(5)),
            ..EngineReport::default()
        };
        let reported = gate.report(&acts);
        assert_eq!(
            (reported.fallback_ended, reported.salts_reactor),
            (false, Some(true))
        );
        assert!(gate.fallback_acts() && gate.salts_reactor());
        let event = |at| Event {
            at: Micros(at),
            ..Event::default()
        };
        assert_eq!(
            [4, 5].map(|at| gate.is_of_fallback(&event(at))),
            [false, true]
        );

        let ended = EngineReport {
            token: Some(&reported.token),
            fallback: true,
            began: Some(Micros(5)),
            ended: Some(Micros(9)),
            ..EngineReport::default()
        };
        let reported = gate.report(&ended);
        assert_eq!(
            (reported.fallback_ended, reported.salts_reactor),
            (true, Some(false))
        );
        assert_eq!(
            [8, 9].map(|at| gate.is_of_fallback(&event(at))),
            [true, false]
        );
    }
}
