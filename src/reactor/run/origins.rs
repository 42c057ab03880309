//! Which jobs are reactions, and how deep: reactions to events of reactions are how loops begin.

use std::collections::{HashMap, VecDeque};

use crate::limits::REACTOR_ORIGINS_MAX;
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
