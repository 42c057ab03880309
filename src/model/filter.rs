//! Which events somebody wants to see.

use super::{Flags, Glob};
use crate::clock::Micros;

/// A filter; what is `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Pattern over the whole tag.
    pub tag: Option<Glob>,
    /// Job id, exactly.
    pub jid: Option<String>,
    /// Minion id, exactly.
    pub minion: Option<String>,
    /// Arrived at this instant or later.
    pub since: Option<Micros>,
    /// Arrived before this instant.
    pub until: Option<Micros>,
    /// Not events, but what the reactor did about them.
    pub reactions: bool,
}

impl EventFilter {
    /// Could an entry with these columns pass? The tag and the jid are looked at separately, they cost more.
    pub fn allows(&self, flags: Flags, at: Micros, minion: &str) -> bool {
        flags.has(if self.reactions { Flags::REACTION } else { Flags::ON_BUS })
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && self.minion.as_deref().is_none_or(|wanted| wanted == minion)
    }

    /// Could any entry that arrived between these instants pass?
    pub fn allows_span(&self, earliest: Micros, latest: Micros) -> bool {
        self.since.is_none_or(|since| latest >= since) && self.until.is_none_or(|until| earliest < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_instants_agree() {
        let filter = EventFilter {
            since: Some(Micros(10)),
            until: Some(Micros(20)),
            minion: Some("web1".into()),
            ..Default::default()
        };
        assert!(filter.allows(Flags::ON_BUS, Micros(10), "web1"));
        assert!(!filter.allows(Flags::ON_BUS, Micros(20), "web1"));
        assert!(!filter.allows(Flags::ON_BUS, Micros(9), "web1"));
        assert!(!filter.allows(Flags::ON_BUS, Micros(10), "web2"));
        assert!(!filter.allows(Flags::default(), Micros(10), "web1"), "it was on no bus");
        assert!(filter.allows_span(Micros(0), Micros(10)) && filter.allows_span(Micros(19), Micros(99)));
        assert!(!filter.allows_span(Micros(20), Micros(99)) && !filter.allows_span(Micros(0), Micros(9)));
    }
}
