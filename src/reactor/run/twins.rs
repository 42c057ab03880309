//! Twins: the entries of one event that a minion told several masters, each of which has a copy.
//!
//! With an election one reactor acts on an event, whichever masters have it. A minion's copies have the same tag, and come within
//! [`TWINS_WINDOW`]; their stamps differ, and sometimes their data: a start names its second. Therefore the copies of a tag are paired in order, one of
//! each master, and equal ones first. Equal ones may come later, within [`TWINS_WINDOW_EQUAL`], because a minion retries while a master is
//! down. What only the bus of another master brought has no copy here, and counts after the shorter time.
//!
//! # Invariant
//!
//! Of the twins that are known here one is open at most, until a record of any reactor says that they are handled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::events::content_of;
use super::record::RecordSummary;
use crate::base::clock::Micros;
use crate::base::limits::{TWINS_PER_NAME_MAX, TWINS_WINDOW, TWINS_WINDOW_EQUAL};
use crate::model::{SeqNo, chained};

/// What an event is recognised by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Likeness {
    /// Of its tag and minion.
    name: u64,
    /// Of its data without the master's stamp.
    content: u64,
}

impl Likeness {
    pub(super) fn of(tag: &[u8], minion: &str, body: &[u8]) -> Self {
        Self::with(tag, minion, content_of(body))
    }

    /// That of an event whose record contains its content.
    pub(super) fn with(tag: &[u8], minion: &str, content: u64) -> Self {
        // Events of nobody are paired by their data alone.
        let seed = if minion.is_empty() { content } else { 0 };
        let name = chained(seed, [tag, minion.as_bytes()]);
        Self { name, content }
    }
}

/// An entry that may have twins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sighting<'a> {
    pub(super) seq: SeqNo,
    /// Its arrival at the master that received it.
    pub(super) at: Micros,
    /// The master whose bus brought it; empty for this daemon's master.
    pub(super) origin: &'a str,
    pub(super) likeness: Likeness,
    /// It belongs to a job, and is told to the master of that job only.
    pub(super) is_of_job: bool,
    /// Length of the chain of reactions that led to it.
    pub(super) depth: u32,
}

/// What is to be done about an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nothing: a twin is open, or was handled.
    Twin,
    /// It is to be opened.
    Open(Opening),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Opening {
    /// Its twin from another master, which was open until now.
    pub(super) instead_of: Option<SeqNo>,
    /// Records about its twins that were read before it.
    pub(super) records: Vec<RecordSummary>,
    /// Another master has it, and its twin may still arrive here: nothing is done yet.
    pub(super) waits: bool,
}

#[derive(Debug)]
struct Group {
    first: Micros,
    content: u64,
    origins: Vec<String>,
    /// The one that is open.
    open: Option<SeqNo>,
    /// The open one came by this master's bus, or its twin is not awaited any more.
    is_settled: bool,
    /// A record says that it is handled.
    is_handled: bool,
    records: Vec<RecordSummary>,
}

impl Group {
    fn apart(&self, at: Micros) -> Duration {
        Duration::from_micros(self.first.0.abs_diff(at.0))
    }
}

/// Adds a group. The oldest that is handled makes room for it, or else the oldest: its event stays open.
fn add(groups: &mut Vec<Group>, group: Group) {
    if groups.len() >= TWINS_PER_NAME_MAX {
        let handled = groups.iter().position(|group| group.is_handled);
        groups.remove(handled.unwrap_or(0));
    }
    groups.push(group);
}

/// The group of an event among those that it may belong to: equal data count first, of them the nearest, and else the order.
fn best(
    groups: &[Group],
    content: u64,
    at: Micros,
    may_be: impl Fn(&Group) -> bool,
) -> Option<usize> {
    let all = || groups.iter().enumerate().filter(|(_, group)| may_be(group));
    let equal = all()
        .filter(|(_, group)| group.content == content && group.apart(at) <= TWINS_WINDOW_EQUAL)
        .min_by_key(|(_, group)| group.apart(at));
    let found = equal.or_else(|| all().find(|(_, group)| group.apart(at) <= TWINS_WINDOW));
    found.map(|(index, _)| index)
}

/// All that may still have a twin, or are not handled.
#[derive(Debug, Default)]
pub(super) struct Twins {
    groups: HashMap<u64, Vec<Group>>,
    /// Open events of other masters whose twin may still arrive, by the end of that.
    waiting: BTreeMap<(Micros, SeqNo), (u64, u32)>,
}

impl Twins {
    /// Notes an entry that rules match.
    pub(super) fn arrived(&mut self, entry: &Sighting<'_>) -> Arrival {
        let is_own = entry.origin.is_empty();
        let Likeness { name, content } = entry.likeness;
        let groups = self.groups.entry(name).or_default();

        // A job's event contains no true repetition, so a second one of the same master is the same.
        let may_join = |group: &Group| {
            let has = group.origins.iter().any(|origin| origin == entry.origin);
            let repeats = entry.is_of_job && group.content == content;
            !has || repeats
        };
        // A job has one master, and only the bus of that master has its events.
        let waits = !is_own && !entry.is_of_job;
        let found = best(groups, content, entry.at, may_join);
        let Some(group) = found.and_then(|index| groups.get_mut(index)) else {
            let group = Group {
                first: entry.at,
                content,
                origins: vec![entry.origin.to_owned()],
                open: Some(entry.seq),
                is_settled: !waits,
                is_handled: false,
                records: Vec::new(),
            };
            add(groups, group);
            if waits {
                let until = entry.at.after(TWINS_WINDOW);
                self.waiting.insert((until, entry.seq), (name, entry.depth));
            }
            return Arrival::Open(Opening {
                waits,
                ..Opening::default()
            });
        };

        // Noted even if the entry is ignored: the next one of this master is then a repetition.
        if !group.origins.iter().any(|origin| origin == entry.origin) {
            group.origins.push(entry.origin.to_owned());
        }
        if group.is_handled {
            return Arrival::Twin;
        }
        match group.open {
            // The copy from this master's bus is read and rendered as it came.
            Some(other) if is_own && !group.is_settled => {
                (group.open, group.is_settled) = (Some(entry.seq), true);
                let until = group.first.after(TWINS_WINDOW);
                self.waiting.remove(&(until, other));
                Arrival::Open(Opening {
                    instead_of: Some(other),
                    records: group.records.clone(),
                    waits: false,
                })
            }
            Some(_) => Arrival::Twin,
            // Only records of it were here.
            None => {
                (group.open, group.is_settled) = (Some(entry.seq), true);
                Arrival::Open(Opening {
                    instead_of: None,
                    records: group.records.clone(),
                    waits: false,
                })
            }
        }
    }

    /// Notes a record about an event that arrived at `at`, and returns the event that is open for it here. Then [`Twins::closed`] is to be called if
    /// the record closes it.
    pub(super) fn recorded(
        &mut self,
        likeness: Likeness,
        at: Micros,
        record: RecordSummary,
    ) -> Option<SeqNo> {
        let groups = self.groups.entry(likeness.name).or_default();
        let is_open = |group: &Group| !group.is_handled;
        let index = best(groups, likeness.content, at, is_open).unwrap_or_else(|| {
            // The event itself comes later, from whichever master.
            let group = Group {
                first: at,
                content: likeness.content,
                origins: Vec::new(),
                open: None,
                is_settled: true,
                is_handled: false,
                records: Vec::new(),
            };
            add(groups, group);
            groups.len() - 1
        });

        let group = groups.get_mut(index)?;
        group.records.push(record);
        // An open event is closed by its checkpoint, which knows the rules that matched it here.
        if group.open.is_none() && RecordSummary::are_complete(&group.records) {
            group.is_handled = true;
        }
        group.open
    }

    /// Notes that an open event is handled.
    pub(super) fn closed(&mut self, likeness: Likeness, event: SeqNo) {
        let groups = self.groups.entry(likeness.name).or_default();
        if let Some(group) = groups.iter_mut().find(|group| group.open == Some(event)) {
            (group.open, group.is_handled) = (None, true);
        }
    }

    /// Notes an entry from before a start, which is open or not.
    pub(super) fn restored(&mut self, entry: &Sighting<'_>, is_open: bool) {
        match self.arrived(entry) {
            Arrival::Open(_) if is_open => {}
            Arrival::Open(_) => self.closed(entry.likeness, entry.seq),
            Arrival::Twin if is_open => {
                let groups = self.groups.entry(entry.likeness.name).or_default();
                let content = entry.likeness.content;
                let found = best(groups, content, entry.at, |_| true);
                if let Some(group) = found.and_then(|index| groups.get_mut(index)) {
                    (group.open, group.is_handled) = (Some(entry.seq), false);
                }
            }
            Arrival::Twin => {}
        }
    }

    /// Takes the open events of other masters whose twin is not awaited any more, with their depths.
    pub(super) fn due(&mut self, now: Micros) -> Vec<(SeqNo, u32)> {
        let mut due = Vec::new();
        while let Some(entry) = self.waiting.first_entry()
            && entry.key().0 <= now
        {
            let ((_, event), (name, depth)) = entry.remove_entry();
            let groups = self.groups.get_mut(&name);
            // An event that its twin has replaced, or that a record has closed, is open in no
            // group.
            let open = groups
                .into_iter()
                .flatten()
                .find(|group| group.open == Some(event));
            if let Some(group) = open {
                // From now on a twin that comes late is ignored, because this one is queued.
                group.is_settled = true;

                due.push((event, depth));
            }
        }
        due
    }

    /// The open events whose twin is awaited.
    pub(super) fn awaited(&self) -> BTreeSet<SeqNo> {
        self.waiting.keys().map(|(_, event)| *event).collect()
    }

    /// Forgets what is over. Returns the open events that arrived before `oldest`, which no reactor has handled.
    pub(super) fn sweep(&mut self, now: Micros, oldest: Micros) -> Vec<SeqNo> {
        let mut unhandled = Vec::new();
        let over = now.before(2 * TWINS_WINDOW_EQUAL);
        self.groups.retain(|_, groups| {
            groups.retain(|group| match group.open {
                Some(event) if group.first < oldest => {
                    unhandled.push(event);
                    false
                }
                Some(_) => true,
                None => group.first >= over,
            });
            !groups.is_empty()
        });
        unhandled
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reactor::run::record::rule_hash;

    const SECOND: i64 = 1_000_000;

    #[derive(Default)]
    struct Rig {
        twins: Twins,
        seq: u64,
    }

    impl Rig {
        /// An event of a minion with this content, in seconds after the first.
        fn sees(&mut self, origin: &str, content: u64, at: i64) -> Arrival {
            self.sees_of(origin, content, at, false)
        }

        fn sees_of(&mut self, origin: &str, content: u64, at: i64, is_of_job: bool) -> Arrival {
            self.seq += 1;
            self.twins.arrived(&Sighting {
                seq: SeqNo(self.seq),
                at: Micros(at * SECOND),
                origin,
                likeness: Likeness::with(b"tag", "web1", content),
                is_of_job,
                depth: 0,
            })
        }

        fn record(&mut self, content: u64, at: i64, rules: &[&str], of: usize) -> Option<SeqNo> {
            let likeness = Likeness::with(b"tag", "web1", content);
            let at = Micros(at * SECOND);
            let record = RecordSummary {
                event: SeqNo(99),
                at,
                content,
                rules: rules.iter().map(|rule| rule_hash(rule)).collect(),
                rule_count: of,
                marks: None,
            };
            let open = self.twins.recorded(likeness, at, record);
            if let Some(event) = open {
                self.twins.closed(likeness, event);
            }
            open
        }
    }

    fn open(waits: bool) -> Arrival {
        Arrival::Open(Opening {
            waits,
            ..Opening::default()
        })
    }

    fn instead_of(seq: u64) -> Arrival {
        Arrival::Open(Opening {
            instead_of: Some(SeqNo(seq)),
            ..Opening::default()
        })
    }

    #[test]
    fn the_copies_of_an_event_are_open_once_and_the_own_one_counts() {
        let mut rig = Rig::default();
        assert_eq!(rig.sees("", 7, 0), open(false));
        assert_eq!(rig.sees("b", 7, 1), Arrival::Twin);
        assert_eq!(rig.sees("c", 7, 2), Arrival::Twin);

        // In the other order this daemon's master takes its place.
        assert_eq!(rig.sees("b", 8, 20), open(true));
        assert_eq!(rig.sees("c", 8, 21), Arrival::Twin);
        assert_eq!(rig.sees("", 8, 22), instead_of(4));
        assert_eq!(rig.twins.due(Micros(i64::MAX)), [], "nothing is awaited");
    }

    #[test]
    fn a_true_repetition_is_another_event() {
        let mut rig = Rig::default();
        assert_eq!(
            [rig.sees("", 7, 0), rig.sees("", 7, 1)],
            [open(false), open(false)]
        );
        assert_eq!(
            [rig.sees("b", 7, 0), rig.sees("b", 7, 1)],
            [Arrival::Twin, Arrival::Twin]
        );
        assert_eq!(rig.sees("b", 7, 2), open(true), "the third of b");
        // Long after it is one as well.
        assert_eq!(rig.sees("c", 7, 100), open(true));
    }

    #[test]
    fn copies_with_other_data_are_paired_in_order_and_equal_ones_first() {
        let mut rig = Rig::default();
        // A start names its second.
        assert_eq!(
            [rig.sees("", 1, 0), rig.sees("b", 2, 1)],
            [open(false), Arrival::Twin]
        );

        // The own bus missed the first of two.
        assert_eq!(
            [rig.sees("b", 10, 60), rig.sees("b", 11, 61)],
            [open(true), open(true)]
        );
        assert_eq!(rig.sees("", 11, 62), instead_of(4));
    }

    #[test]
    fn a_minion_may_tell_a_master_later_that_was_down() {
        let mut rig = Rig::default();
        assert_eq!(rig.sees("", 7, 0), open(false));
        rig.record(7, 0, &["a"], 1);
        assert_eq!(rig.sees("b", 7, 60), Arrival::Twin);
        assert_eq!(rig.sees("c", 8, 60), open(true), "other data");

        // The same beacon again: the nearest is its twin.
        assert_eq!(rig.sees("", 7, 30), open(false));
        assert_eq!(rig.sees("c", 7, 31), Arrival::Twin);
        assert_eq!(rig.record(7, 30, &["a"], 1), Some(SeqNo(4)));
    }

    #[test]
    fn what_only_another_master_has_is_due_once_its_twin_is_not_awaited_any_more() {
        let mut rig = Rig::default();
        assert_eq!(rig.sees("b", 7, 0), open(true));
        assert_eq!(rig.twins.awaited(), BTreeSet::from([SeqNo(1)]));
        assert_eq!(rig.twins.due(Micros(9 * SECOND)), []);
        assert_eq!(rig.twins.due(Micros(10 * SECOND)), [(SeqNo(1), 0)]);
        assert_eq!(rig.twins.due(Micros(20 * SECOND)), []);

        // Its twin is late: it is queued already.
        assert_eq!(rig.sees("", 7, 10), Arrival::Twin);
    }

    #[test]
    fn an_event_of_a_job_has_one_master_and_no_repetition() {
        let mut rig = Rig::default();
        assert_eq!(rig.sees_of("b", 7, 0, true), open(false));
        // Its return was sent twice, by the bus and by Salt's call.
        assert_eq!(rig.sees_of("b", 7, 1, true), Arrival::Twin);
        assert_eq!(rig.sees_of("b", 8, 1, true), open(false));
    }

    #[test]
    fn a_record_closes_the_twin_of_its_event_before_or_after_it_arrives() {
        let mut rig = Rig::default();
        rig.sees("", 7, 0);
        assert_eq!(rig.record(7, 1, &["a"], 1), Some(SeqNo(1)));
        assert_eq!(rig.record(7, 30, &["a"], 1), None, "of another event");
        assert_eq!(rig.sees("", 7, 31), Arrival::Twin, "handled before it came");
        assert_eq!(rig.sees("b", 7, 31), Arrival::Twin);
        assert_eq!(rig.sees("", 7, 32), open(false), "another event");
    }

    #[test]
    fn records_of_some_rules_wait_for_the_event() {
        let mut rig = Rig::default();
        assert_eq!(rig.record(7, 0, &["a"], 2), None);
        let Arrival::Open(opening) = rig.sees("", 7, 1) else {
            panic!("one of two rules is not handled");
        };
        assert_eq!(opening.records.len(), 1);

        assert_eq!(rig.record(8, 60, &["a"], 2), None);
        assert_eq!(rig.record(8, 60, &["b"], 2), None);
        assert_eq!(rig.sees("", 8, 61), Arrival::Twin);
    }

    #[test]
    fn what_is_over_is_forgotten_and_what_is_open_is_not() {
        let mut rig = Rig::default();
        rig.sees("", 7, 0);
        rig.sees("", 8, 0);
        rig.record(8, 0, &["a"], 1);
        let old = Micros(i64::MIN);
        assert_eq!(rig.twins.sweep(Micros(600 * SECOND), old), []);
        assert_eq!(rig.twins.groups.values().flatten().count(), 1);
        assert_eq!(
            rig.twins.sweep(Micros(600 * SECOND), Micros(30 * SECOND)),
            [SeqNo(1)]
        );
        assert!(rig.twins.groups.is_empty());
    }

    #[test]
    fn a_minion_that_repeats_itself_costs_no_more_than_a_number_of_events() {
        let mut rig = Rig::default();
        for _ in 0..2 * TWINS_PER_NAME_MAX {
            assert_eq!(rig.sees("", 7, 0), open(false));
        }
        assert_eq!(
            rig.twins.groups.values().flatten().count(),
            TWINS_PER_NAME_MAX
        );
        assert_eq!(rig.sees("b", 7, 0), Arrival::Twin);

        // What is handled makes room first.
        rig.record(7, 0, &["a"], 1);
        rig.sees("", 7, 0);
        let mut groups = rig.twins.groups.values().flatten();
        assert!(groups.all(|group| group.open.is_some()));
    }

    #[test]
    fn a_restart_knows_what_was_open() {
        let mut rig = Rig::default();
        let sighting = |seq, origin, content| Sighting {
            seq: SeqNo(seq),
            at: Micros(0),
            origin,
            likeness: Likeness::with(b"tag", "web1", content),
            is_of_job: false,
            depth: 0,
        };
        // Of the first the own copy is open, the second was handled.
        rig.twins.restored(&sighting(1, "b", 7), false);
        rig.twins.restored(&sighting(2, "", 7), true);
        rig.twins.restored(&sighting(3, "", 8), false);
        rig.seq = 9;
        assert_eq!(rig.sees("c", 8, 1), Arrival::Twin);
        assert_eq!(rig.record(7, 1, &["a"], 1), Some(SeqNo(2)));
    }

    proptest! {
        /// Whatever overtakes what, each event that all masters see is open once.
        #[test]
        fn every_event_of_all_masters_is_open_once(
            contents in proptest::collection::vec(0_u64..3, 1..8), order in proptest::collection::vec(0_usize..3, 60),
        ) {
            let (mut rig, mut next) = (Rig::default(), [0; 3]);
            let order = order.into_iter().chain((0..60).map(|n| n % 3));
            for master in order {
                if let Some(content) = contents.get(next[master]) {
                    next[master] += 1;
                    rig.sees(["", "b", "c"][master], *content, 0);
                }
            }
            prop_assert_eq!(next, [contents.len(); 3]);
            let open = rig.twins.groups.values().flatten().filter(|group| group.open.is_some());
            prop_assert_eq!(open.count(), contents.len());
        }
    }

    #[test]
    fn the_time_at_which_a_minion_sent_an_event_makes_no_difference() {
        let body = |cmd: &str, ts: u64| {
            let mut w = crate::wire::msgpack::Writer::new();
            w.map(2).str("cmd").str(cmd).str("ts").uint(ts);
            content_of(&w.into_bytes())
        };
        assert_eq!(body("_minion_event", 1), body("_minion_event", 2));
        assert_ne!(body("x", 1), body("x", 2), "somebody's own field");
    }

    #[test]
    fn the_stamp_of_a_master_makes_no_difference() {
        let body = |stamp: &str, value: &str| {
            let mut w = crate::wire::msgpack::Writer::new();
            w.map(2).str("_stamp").str(stamp).str("x").str(value);
            w.into_bytes()
        };
        assert_eq!(content_of(&body("1", "a")), content_of(&body("2", "a")));
        assert_ne!(content_of(&body("1", "a")), content_of(&body("1", "b")));
        assert_ne!(content_of(b"\xc1a"), content_of(b"\xc1b"));

        let of = |minion| Likeness::of(b"t", minion, &body("1", "a")).name;
        let other = |minion| Likeness::of(b"t", minion, &body("1", "b")).name;
        assert_eq!(of("web1"), other("web1"));
        assert_ne!(of(""), other(""));
    }
}
