//! Filters for lists of events.

use salt_sls::Glob;

use super::Flags;
use saltcellar_base::clock::Micros;

/// A filter; `None` fields do not restrict.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    /// Pattern for the whole tag.
    pub tag: Option<Glob>,
    /// Job id, exactly.
    pub jid: Option<String>,
    /// Pattern for the minion id. There is an index for one without wildcards.
    pub minion: Option<Glob>,
    /// Masters that the event came from.
    pub masters: Option<Masters>,
    /// Arrival at or after this time.
    pub since: Option<Micros>,
    /// Arrival before this time.
    pub until: Option<Micros>,
    /// Select reactor records instead of events.
    pub reactions: bool,
}

/// Masters, by their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Masters {
    /// Pattern for the ids.
    pub ids: Glob,
    /// Whether the daemon's own master is one of them, whose entries do not state its id.
    pub is_own: bool,
}

impl Masters {
    /// Whether an entry with this [`Entry::origin`](crate::Entry::origin) came from one of them.
    pub fn include(&self, origin: &str) -> bool {
        if origin.is_empty() {
            self.is_own
        } else {
            self.ids.matches(origin)
        }
    }
}

impl EventFilter {
    /// Whether an entry with these columns may match. Tag and jid are checked separately, because that is more expensive.
    pub fn allows(&self, flags: Flags, at: Micros, minion: &str, origin: &str) -> bool {
        flags.has(if self.reactions {
            Flags::REACTION
        } else {
            Flags::ON_BUS
        }) && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && self.minion.as_ref().is_none_or(|glob| glob.matches(minion))
            && self
                .masters
                .as_ref()
                .is_none_or(|masters| masters.include(origin))
    }

    /// The only minion id that may match, of a pattern without wildcards.
    pub fn only_minion(&self) -> Option<String> {
        self.minion.as_ref().and_then(Glob::as_literal)
    }

    /// Whether any entry that arrived between these timestamps may match.
    pub fn allows_span(&self, earliest: Micros, latest: Micros) -> bool {
        self.since.is_none_or(|since| latest >= since)
            && self.until.is_none_or(|until| earliest < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_ranges_and_instants_agree() {
        let filter = EventFilter {
            since: Some(Micros(10)),
            until: Some(Micros(20)),
            minion: Some(Glob::new("web1")),
            ..Default::default()
        };
        for is_own in [true, false] {
            let ids = Glob::new("m[12]");
            let of_masters = EventFilter {
                masters: Some(Masters { ids, is_own }),
                ..filter.clone()
            };
            let allowed =
                ["", "m2", "m3"].map(|m| of_masters.allows(Flags::ON_BUS, Micros(10), "web1", m));
            assert_eq!(allowed, [is_own, true, false]);
        }
        assert!(filter.allows(Flags::ON_BUS, Micros(10), "web1", ""));
        assert!(!filter.allows(Flags::ON_BUS, Micros(20), "web1", ""));
        assert!(!filter.allows(Flags::ON_BUS, Micros(9), "web1", ""));
        assert!(!filter.allows(Flags::ON_BUS, Micros(10), "web2", ""));
        assert!(
            !filter.allows(Flags::default(), Micros(10), "web1", ""),
            "not on a bus"
        );
        assert!(
            filter.allows_span(Micros(0), Micros(10)) && filter.allows_span(Micros(19), Micros(99))
        );
        assert!(
            !filter.allows_span(Micros(20), Micros(99))
                && !filter.allows_span(Micros(0), Micros(9))
        );
    }
}
