//! The call for which kinds of events arrive how often.

use std::collections::HashMap;

use super::{Call, In, Limited, NoArgs, OF_EVENTS, Run, failed};
use crate::base::limits::{LIST_BYTES_MAX, RATE_EVENTS_SEEN, RATE_TAGS_SHOWN};
use crate::model::{EventFilter, Limit};
use crate::store::StoredEntry;
use crate::wire::call::CallError;
use crate::wire::msgpack::{Time, or_absent};

/// `event_rates`.
pub(crate) struct Rates;

answers! {
    /// Kinds of tags among the latest events, the most frequent first.
    EventRates {
        tags: Vec<TagRate>,
        /// Number of events that were looked at.
        events: u64,
        /// Number of them with other tags.
        others: u64,
        /// The time of the earliest of them; null without events.
        #[serde(serialize_with = "or_absent")]
        since: Option<Time>,
        /// The time of the latest.
        #[serde(serialize_with = "or_absent")]
        until: Option<Time>,
    }
    /// A kind of tag.
    TagRate {
        /// A glob: ids of minions and jobs are `*`.
        tag: String,
        count: u64,
        /// Events in 1000 s.
        per_1000_s: u64,
    }
}

impl Call for Rates {
    const NAME: &'static str = "event_rates";
    const DOC: &'static str = "Count the latest events by kinds of tags";
    const APPLIES: &'static [Limit] = OF_EVENTS;
    type Scope = Limited;
    type Args<'a> = NoArgs;
    type Answer = EventRates;
}

impl Run for Rates {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<EventRates, CallError> {
        let (filter, before) = (EventFilter::default(), ctx.store.durable());
        let events = ctx
            .store
            .events_before(&filter, before, RATE_EVENTS_SEEN, LIST_BYTES_MAX);
        Ok(rates(&events.map_err(failed)?))
    }
}

fn rates(events: &[StoredEntry]) -> EventRates {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for event in events {
        *counts.entry(kind_of(event)).or_default() += 1;
    }

    let times = || events.iter().map(|event| event.at);
    let (since, until) = (times().min(), times().max());
    // The time of a single event is no span.
    let span_us = since
        .zip(until)
        .map_or(0, |(since, until)| until.0.saturating_sub(since.0));
    let span_us = u64::try_from(span_us).unwrap_or(0).max(1_000_000);

    let mut tags: Vec<TagRate> = counts
        .into_iter()
        .map(|(tag, count)| TagRate {
            tag,
            count,
            per_1000_s: count.saturating_mul(1_000_000_000) / span_us,
        })
        .collect();
    // A map has no order, therefore equal counts are sorted by their tags.
    tags.sort_by(|one, other| (other.count, &one.tag).cmp(&(one.count, &other.tag)));
    let others = tags.iter().skip(RATE_TAGS_SHOWN).map(|tag| tag.count).sum();
    tags.truncate(RATE_TAGS_SHOWN);

    EventRates {
        tags,
        events: events.len() as u64,
        others,
        since: since.map(Time),
        until: until.map(Time),
    }
}

/// The tag of an event, with `*` for what differs between two of a kind.
fn kind_of(event: &StoredEntry) -> String {
    let tag = String::from_utf8_lossy(&event.tag);
    let is_id = |part: &str| {
        let is_number = part.len() >= 6
            && part
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'_');
        !part.is_empty() && (part == event.minion || part == event.jid || is_number)
    };
    let parts: Vec<&str> = tag
        .split('/')
        .map(|part| if is_id(part) { "*" } else { part })
        .collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::model::{Flags, Kind, SeqNo, Source};

    fn event(at: i64, tag: &str, minion: &str) -> StoredEntry {
        StoredEntry {
            seq: SeqNo(1),
            kind: Kind::Event,
            source: Source::Bus,
            origin: String::new(),
            number: 0,
            flags: Flags::ON_BUS,
            at: Micros(at),
            tag: tag.into(),
            jid: "20261121054728123456".into(),
            minion: minion.into(),
            fun: String::new(),
            retcode: 0,
            body: Vec::new(),
            unread: 0,
        }
    }

    #[test]
    fn tags_are_counted_by_kind() {
        let found = rates(&[
            event(10_000_000, "salt/job/20261121054728123456/ret/web1", "web1"),
            event(5_000_000, "salt/job/20261121054728123456/ret/db2", "db2"),
            event(0, "salt/beacon/web1/load/", "web1"),
        ]);
        let short: Vec<_> = found
            .tags
            .iter()
            .map(|tag| (tag.tag.as_str(), tag.count, tag.per_1000_s))
            .collect();
        assert_eq!(
            short,
            [
                ("salt/job/*/ret/*", 2, 200),
                ("salt/beacon/*/load/", 1, 100)
            ]
        );
        assert_eq!((found.events, found.others), (3, 0));
        assert_eq!(rates(&[]).since, None);
    }

    #[test]
    fn many_kinds_are_bounded() {
        let events: Vec<_> = (0..2 * RATE_TAGS_SHOWN)
            .map(|n| event(0, &format!("a{n}/b"), ""))
            .collect();
        let found = rates(&events);
        assert_eq!(
            (found.tags.len(), found.others),
            (RATE_TAGS_SHOWN, RATE_TAGS_SHOWN as u64)
        );
    }
}
