//! Which jobs are reactions, and how deep: reactions to events of reactions are how loops begin.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::micros;
use crate::clock::Micros;
use crate::limits::{
    REACTOR_FOREIGN_CALL_GRACE, REACTOR_FOREIGN_CALL_TTL, REACTOR_FOREIGN_CALLS_MAX, REACTOR_ORIGINS_MAX,
};
use crate::wire::msgpack::{as_text, get};

/// The user in whose name Salt's reactor, and ours, runs runners and wheels. Events of theirs are nothing to react to.
use crate::master::REACTOR_USER;

/// Jids of reactions, the latest [`REACTOR_ORIGINS_MAX`].
#[derive(Debug, Default)]
pub struct Origins {
    depths: HashMap<String, u32>,
    order: VecDeque<String>,
}

impl Origins {
    /// A job is a reaction to an event of that depth.
    pub fn note(&mut self, jid: &str, depth: u32) {
        if jid.is_empty() || self.depths.insert(jid.to_owned(), depth.saturating_add(1)).is_some() {
            return;
        }
        self.order.push_back(jid.to_owned());
        if self.order.len() > REACTOR_ORIGINS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.depths.remove(&oldest);
        }
    }

    /// How many reactions led to an event of that job.
    pub fn depth(&self, jid: &str) -> u32 {
        if jid.is_empty() { 0 } else { self.depths.get(jid).copied().unwrap_or(0) }
    }
}

/// Calls of runners and wheel functions by a reactor, of which it is not known yet whether ours made them: the master's answer with the
/// jid may come later than the event.
#[derive(Debug, Default)]
pub struct ForeignCalls {
    waiting: VecDeque<(Micros, String, String)>,
    seen: Option<(Micros, String)>,
    /// Ours may have had an answer that was lost, or was made before the start: until then nothing is held against another reactor.
    quiet_until: Micros,
}

impl ForeignCalls {
    /// A reactor made a call.
    pub fn note(&mut self, jid: &str, fun: &str, now: Micros) {
        if now >= self.quiet_until && self.waiting.len() < REACTOR_FOREIGN_CALLS_MAX {
            self.waiting.push_back((now, jid.to_owned(), fun.to_owned()));
        }
    }

    /// What comes now may be ours without our knowing.
    pub fn suspend(&mut self, now: Micros) {
        self.quiet_until = later(now, REACTOR_FOREIGN_CALL_GRACE);
        self.waiting.clear();
    }

    /// Looks at those for which the master has had its time to answer.
    pub fn settle(&mut self, origins: &Origins, now: Micros) {
        while let Some((at, jid, fun)) = self.waiting.pop_front() {
            if now < later(at, REACTOR_FOREIGN_CALL_GRACE) {
                return self.waiting.push_front((at, jid, fun));
            }
            if origins.depth(&jid) == 0 {
                self.seen = Some((at, fun));
            }
        }
    }

    /// The latest call of another reactor, if there was one lately.
    pub fn seen(&self, now: Micros) -> Option<(Micros, String)> {
        self.seen.clone().filter(|(at, _)| now < later(*at, REACTOR_FOREIGN_CALL_TTL))
    }
}

fn later(at: Micros, by: Duration) -> Micros {
    Micros(at.0.saturating_add(micros(by)))
}

/// Did a reactor cause the event, by its own words? As Salt has it: `user` at the top of the data, spelled exactly so.
pub fn says_reactor(body: &[u8]) -> bool {
    memchr::memmem::find(body, REACTOR_USER.as_bytes()).is_some()
        && get(body, "user").and_then(as_text) == Some(REACTOR_USER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;

    #[test]
    fn depth_counts_reactions_to_reactions_and_is_forgotten_in_time() {
        let mut origins = Origins::default();
        origins.note("1", 0);
        origins.note("2", origins.depth("1"));
        assert_eq!(["1", "2", "3", ""].map(|jid| origins.depth(jid)), [1, 2, 0, 0]);
        for n in 0..REACTOR_ORIGINS_MAX {
            origins.note(&format!("n{n}"), 0);
        }
        assert_eq!((origins.depth("1"), origins.depths.len()), (0, REACTOR_ORIGINS_MAX));
    }

    #[test]
    fn a_call_is_another_reactor_s_only_if_the_master_never_says_that_it_is_ours() {
        let (mut foreign, mut origins) = (ForeignCalls::default(), Origins::default());
        let at = |seconds: i64| Micros(1_795_000_000_000_000 + seconds * 1_000_000);
        foreign.suspend(at(0));
        foreign.note("before", "state.orch", at(1));
        foreign.note("ours", "state.orch", at(40));
        foreign.settle(&origins, at(41));
        origins.note("ours", 0);
        foreign.settle(&origins, at(80));
        assert_eq!(foreign.seen(at(80)), None);
        foreign.note("theirs", "state.orch", at(81));
        foreign.settle(&origins, at(82));
        assert_eq!(foreign.seen(at(82)), None, "it may still become ours");
        foreign.settle(&origins, at(112));
        assert_eq!(foreign.seen(at(112)), Some((at(81), "state.orch".to_owned())));
        assert_eq!(foreign.seen(at(3_700)), None);
    }

    #[test]
    fn a_jid_that_was_noted_twice_took_two_places() {
        let mut origins = Origins::default();
        for _ in 0..REACTOR_ORIGINS_MAX + 5 {
            origins.note("1", 0);
        }
        origins.note("2", 0);
        assert_eq!((origins.order.len(), origins.depth("1"), origins.depth("2")), (2, 1, 1));
    }

    #[test]
    fn calls_that_wait_are_bounded_and_forgotten_when_ours_may_be_among_them() {
        let (mut foreign, origins) = (ForeignCalls::default(), Origins::default());
        let at = |seconds: i64| Micros(1_795_000_000_000_000 + seconds * 1_000_000);
        for n in 0..REACTOR_FOREIGN_CALLS_MAX + 5 {
            foreign.note(&n.to_string(), "state.orch", at(0));
        }
        assert_eq!(foreign.waiting.len(), REACTOR_FOREIGN_CALLS_MAX);
        foreign.suspend(at(1));
        foreign.settle(&origins, at(1_000));
        assert_eq!(foreign.seen(at(1_000)), None);
    }

    #[test]
    fn only_the_top_of_the_data_says_who_the_user_is() {
        let said = |at_top: &str, below: &str| {
            let mut w = Writer::new();
            w.map(2).str("user").str(at_top).str("data").map(1).str("user").str(below);
            says_reactor(&w.into_bytes())
        };
        assert!(said("Reactor", "root"));
        assert!(!said("root", "Reactor") && !said("reactor", "") && !said("Reactor2", ""));
        assert!(!says_reactor(b"\xc1Reactor"));
    }
}
