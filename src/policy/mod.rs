//! The ingest policy: every source applies it before an entry enters `intake`.
//!
//! Filters decide whether an entry is stored; redaction replaces parts of it. Both run in the thread of the source,
//! so dropped or redacted data never reaches a queue, a spill or the log. A source has three entry points:
//!
//! ```text
//! message   tag, two newlines, data: a frame's body, a ZeroMQ message      -> event
//! event     tag and data                                                    -> pass
//! pass      an entry built by the source, such as the return of a returner call
//! ```
//!
//! # Invariant
//!
//! Decisions depend on the entry's bytes and names only, never on the source. An event that arrives at three sources
//! is dropped, kept, or redacted to the same bytes by each, so duplicates are still recognised.
//!
//! Loads, minions of syndics, end times and Thorium's register are never dropped, only redacted, because Salt requires them
//! (an unknown jid ends `salt '*' test.ping` immediately). Gap records bypass the policy.

pub mod master_keys;
pub mod redact;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::master_keys::{Cleaned, MasterKeys};
use self::redact::{Redacted, Redactor};
use crate::base::clock::{Clock, Micros, digits};
use crate::base::limits::{ENTRY_BYTES_MAX, SOURCE_LOG_INTERVAL, TAG_BYTES_MAX};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::base::named::named;
use crate::model::{
    Action, Entry, Fingerprints, Kind, RedactRule, Replaced, Scope, Source, chained,
};
use crate::wire::filter::FilterRule;
use crate::wire::salt_codec::{Unreadable, check_whole, mended};
use crate::wire::salt_event::{
    DataForm, PeerMark, SaltEvent, fingerprints_of, funs_of, read_event, return_without_data,
    split, without_value,
};

/// An accepted entry, possibly redacted.
#[derive(Debug, Clone)]
pub(crate) struct Accepted<'a> {
    entry: Entry<'a>,
    replaced: Replaced,
    /// Those of the entry as accepted, if they were known before.
    pub fingerprints: Option<Fingerprints>,
}

impl Accepted<'_> {
    /// The entry to store.
    pub(crate) fn entry(&self) -> Entry<'_> {
        self.replaced.in_entry(self.entry)
    }
}

/// The outcome for an event; `None` if a rule dropped and counted it: senders treat it as stored.
pub(crate) type EventOutcome<'a> = Result<Option<Accepted<'a>>, RejectReason>;

/// Why an event is rejected. It has been counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectReason {
    /// No tag followed by two newlines.
    #[error("no tag: an event is its tag, two newlines, and msgpack")]
    NoTag,
    /// A tag of this many bytes.
    #[error("a tag of {0} bytes exceeds the limit of {TAG_BYTES_MAX}: shorten the tag")]
    TagTooLong(usize),
    /// Tag and data together exceed `store.entry_bytes_max`.
    #[error("an event of {len} bytes exceeds the limit of {max}: send less{}", or_raise(*len))]
    TooLarge {
        /// Size of the event in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Salt's codec cannot read the data; one such entry would break a whole list for its reader.
    #[error("Salt's codec cannot read the data: {0}")]
    Unreadable(#[from] Unreadable),
}

/// The list of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RuleList {
    #[default]
    Filter,
    Redact,
}

named! {
    RuleList {
        Filter: "filter",
        Redact: "redact",
    }
}

/// The counters of a rule for `saltcellar status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleCount {
    pub name: String,
    pub list: RuleList,
    /// Entries that it matched; for `redact`, those that it changed.
    pub entries: u64,
    /// Of those, dropped entries.
    pub dropped: u64,
}

struct Filter {
    rule: FilterRule,
    scope: Scope,
    entries: AtomicU64,
    dropped: AtomicU64,
}

/// The rules and their counters.
pub struct Policy {
    filters: Vec<Filter>,
    redactor: Option<Redactor>,
    master_keys: Arc<MasterKeys>,
    entry_bytes_max: usize,
    clock: Clock,
    metrics: Arc<Metrics>,
    logged: LogOnce<&'static str>,
}

impl Policy {
    /// A policy with these rules.
    pub(crate) fn new(
        filters: &[FilterRule],
        redact: &[RedactRule],
        master_keys: Arc<MasterKeys>,
        entry_bytes_max: usize,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        // The scope is derived once, because every entry is compared with it.
        let count = |rule: &FilterRule| Filter {
            rule: rule.clone(),
            scope: rule.scope(),
            entries: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };

        Self {
            filters: filters.iter().map(count).collect(),
            // Without rules an entry costs one comparison, see `pass`.
            redactor: (!redact.is_empty()).then(|| Redactor::new(redact)),
            master_keys,
            entry_bytes_max,
            clock,
            metrics,
            logged: LogOnce::every(SOURCE_LOG_INTERVAL),
        }
    }

    /// The keys redacted without a rule.
    pub(crate) fn master_keys(&self) -> &Arc<MasterKeys> {
        &self.master_keys
    }

    /// What the mark of a peer in an event means at present, the same for every source.
    pub(crate) fn peer_mark(&self) -> PeerMark {
        if self.master_keys.is_in_cluster() {
            PeerMark::Origin
        } else {
            PeerMark::Data
        }
    }

    /// Applies the policy to an event in the form `tag`, two newlines, msgpack.
    pub(crate) fn message<'a>(
        &self,
        message: &'a [u8],
        source: Source,
        at: Micros,
    ) -> EventOutcome<'a> {
        if let Some((tag, data)) = split(message) {
            return self.event(tag, data, source, at);
        }

        self.metrics.events_dropped_without_tag.add(1);
        self.log("no tag", || {
            tracing::warn!(
                source = source.name(),
                bytes = message.len(),
                reason = %RejectReason::NoTag,
                "event rejected and not stored: correct the sender"
            );
        });
        Err(RejectReason::NoTag)
    }

    /// Applies the policy to an event.
    pub(crate) fn event<'a>(
        &self,
        tag: &'a [u8],
        data: &'a [u8],
        source: Source,
        at: Micros,
    ) -> EventOutcome<'a> {
        self.check_tag(tag, source)?;
        let len = tag.len() + data.len();
        if len > self.entry_bytes_max {
            // The minion has responded: without its return Salt would count it as missing.
            let event = read_event(tag, data, source, at, self.peer_mark());
            if let Some(body) = self.within_limit(&event.entry()) {
                return Ok(self.pass_without_value(&event.into_parts().0, body));
            }

            // Without the mark of a peer it is as long as on its master, which stores it.
            if event.entry().raw_len() > self.entry_bytes_max {
                return Err(self.reject_large(tag, len, source));
            }
            return self.read(event);
        }
        self.read(read_event(tag, data, source, at, self.peer_mark()))
    }

    fn reject_large(&self, tag: &[u8], len: usize, source: Source) -> RejectReason {
        self.metrics.entries_rejected_too_large.add(1);
        let max = self.entry_bytes_max;
        let reason = RejectReason::TooLarge { len, max };
        self.log("too large", || {
            tracing::warn!(source = source.name(), tag = %shown(tag), %reason, "event rejected, it is too large and not stored");
        });
        reason
    }

    /// Counts and logs an event of `len` bytes that was too large to be received. For a return, the data that its tag tells, to be stored
    /// instead, because the minion has responded.
    pub(crate) fn unreceived(&self, tag: &[u8], len: usize, source: Source) -> Option<Vec<u8>> {
        let Some(body) = return_without_data(tag, len) else {
            self.reject_large(tag, len, source);
            return None;
        };

        self.metrics.returns_without_value.add(1);
        self.log("return without value", || {
            tracing::warn!(
                source = source.name(), tag = %shown(tag), bytes = len, max = ENTRY_BYTES_MAX,
                "return too large to be parsed, stored without value and exit code: return less from the function"
            );
        });
        Some(body)
    }

    /// The body of a return that is too large, without its value. It is stored because the minion has
    /// responded. `None` for other entries.
    pub(crate) fn within_limit(&self, entry: &Entry<'_>) -> Option<Vec<u8>> {
        let body = (entry.kind == Kind::Return).then(|| without_value(entry.body))??;
        // What remains may still be unreadable for Salt's codec, and must be stored in a form that
        // it reads.
        let body = match check_whole(&body) {
            Ok(()) => body,
            Err(_) => mended(&body).ok()?,
        };

        // The value is not the only part without a limit: fields that are kept can be as large.
        Some(body).filter(|body| entry.tag.len() + body.len() <= self.entry_bytes_max)
    }

    /// As [`Policy::pass`], with a body of [`Policy::within_limit`].
    pub(crate) fn pass_without_value<'a>(
        &self,
        entry: &Entry<'a>,
        body: Vec<u8>,
    ) -> Option<Accepted<'a>> {
        // Counted only now, because a rule may drop it.
        let accepted = self.pass_instead(entry, body)?;
        self.metrics.returns_without_value.add(1);
        let reason = RejectReason::TooLarge {
            len: entry.raw_len(),
            max: self.entry_bytes_max,
        };
        self.log("return without value", || {
            tracing::warn!(
                source = entry.source.name(),
                jid = entry.jid,
                minion = entry.minion,
                %reason,
                "return too large, stored without its value"
            );
        });
        Some(accepted)
    }

    /// The body of a return with the parts replaced that Salt's codec cannot read; rejects one that is not msgpack.
    pub(crate) fn mend(&self, entry: &Entry<'_>, why: Unreadable) -> Result<Vec<u8>, RejectReason> {
        mended(entry.body).map_err(|_| self.reject(entry, why))
    }

    /// As [`Policy::pass`], with a body of [`Policy::mend`].
    pub(crate) fn pass_mended<'a>(
        &self,
        entry: &Entry<'a>,
        body: Vec<u8>,
        why: Unreadable,
    ) -> Option<Accepted<'a>> {
        let accepted = self.pass_instead(entry, body)?;
        self.metrics.returns_repaired.add(1);
        self.log("mended", || {
            tracing::warn!(
                source = entry.source.name(), tag = %shown(entry.tag), jid = entry.jid, minion = entry.minion, %why,
                "return stored without the parts that Salt's codec cannot read: correct what the function returns"
            );
        });
        Some(accepted)
    }

    /// As [`Policy::pass`], with another body.
    fn pass_instead<'a>(&self, entry: &Entry<'a>, body: Vec<u8>) -> Option<Accepted<'a>> {
        let changed = Entry {
            body: &body,
            ..*entry
        };
        let fingerprints = fingerprints_of(&changed);
        self.pass_with(entry, body, fingerprints)
    }

    /// As [`Policy::pass`], with another body, and the fingerprints of the entry with that body.
    pub(crate) fn pass_with<'a>(
        &self,
        entry: &Entry<'a>,
        body: Vec<u8>,
        fingerprints: Fingerprints,
    ) -> Option<Accepted<'a>> {
        let changed = Entry {
            body: &body,
            ..*entry
        };
        let passed = self.pass(&changed, Some(fingerprints))?;
        let (flags, mut replaced, fingerprints) =
            (passed.entry.flags, passed.replaced, passed.fingerprints);

        // A redacted body was made from `body` and takes its place. Otherwise `body` itself is the
        // change.
        replaced.body.get_or_insert(body);
        Some(Accepted {
            entry: Entry { flags, ..*entry },
            replaced,
            fingerprints,
        })
    }

    /// Rejects a tag that is too long to be stored.
    pub(crate) fn check_tag(&self, tag: &[u8], source: Source) -> Result<(), RejectReason> {
        if tag.len() <= TAG_BYTES_MAX {
            return Ok(());
        }
        self.metrics.events_dropped_tag_too_long.add(1);
        let reason = RejectReason::TagTooLong(tag.len());
        self.log("tag too long", || {
            tracing::warn!(source = source.name(), tag = %shown(tag), %reason, "event rejected and not stored: correct the sender");
        });
        Err(reason)
    }

    /// Applies the policy to a parsed event.
    pub(crate) fn read<'a>(&self, event: SaltEvent<'a>) -> EventOutcome<'a> {
        if let DataForm::Unreadable(why) = event.form {
            let entry = event.entry();
            // The minion has responded, whatever one of its values is.
            if entry.kind != Kind::Return {
                return Err(self.reject(&entry, why));
            }
            let body = self.mend(&entry, why)?;
            // Not earlier, because a rejected event is counted as rejected, and not as odd in
            // addition.
            self.inspect(&event);
            return Ok(self.pass_mended(&event.into_parts().0, body, why));
        }

        self.inspect(&event);
        let fingerprints = event.fingerprints;
        Ok(match event.into_parts() {
            (entry, None) => self.pass(&entry, Some(fingerprints)),
            (entry, Some(body)) => self.pass_with(&entry, body, fingerprints),
        })
    }

    /// Counts and logs an entry that Salt's codec cannot read.
    pub(crate) fn reject(&self, entry: &Entry<'_>, why: Unreadable) -> RejectReason {
        self.metrics.entries_rejected_unreadable.add(1);
        self.log("unreadable", || {
            tracing::warn!(
                source = entry.source.name(), tag = %shown(entry.tag), jid = entry.jid, minion = entry.minion, %why,
                "entry rejected and not stored, Salt's codec cannot read its data: correct the sender"
            );
        });
        why.into()
    }

    /// Accepts an entry, unchanged or redacted; `None` if it is dropped. Salt's codec must be able to read its body, see
    /// [`Policy::reject`]. `fingerprints` belong to the original entry, if known; a redacted entry
    /// gets others.
    pub(crate) fn pass<'a>(
        &self,
        entry: &Entry<'a>,
        fingerprints: Option<Fingerprints>,
    ) -> Option<Accepted<'a>> {
        // Filters first, because a dropped entry needs no search for secrets.
        if !self.filters.is_empty() && self.is_dropped(entry) {
            return None;
        }

        let mut accepted = Accepted {
            entry: *entry,
            replaced: Replaced::default(),
            fingerprints,
        };

        // Masters' keys first: rules work on what is left.
        if let Some(Cleaned {
            replaced,
            flags,
            unparsed,
        }) = self.master_keys.clean(entry)
        {
            self.metrics.master_keys_redacted.add(1);
            if unparsed {
                self.report_unparsed(entry);
            }
            accepted.replaced = replaced;
            accepted.entry.flags = flags;
        }

        if let Some(redactor) = &self.redactor {
            let names = redactor.names(&accepted.entry());
            let redacted = redactor.redact(&accepted.entry());
            if names.is_some() || redacted != Redacted::Untouched {
                self.metrics.entries_redacted.add(1);
            }

            match redacted {
                Redacted::Untouched => {}
                Redacted::Changed(body) => accepted.replaced.body = Some(body),
                Redacted::Unparsed(body) => {
                    self.report_unparsed(entry);
                    accepted.replaced.body = Some(body);
                }
            }

            if names.is_some() {
                accepted.replaced.names = names.map(Box::new);
            }
        }

        if accepted.replaced.is_nothing() {
            return Some(accepted);
        }

        // Computed from the stored form, by which the same event from another source is recognised.
        accepted.fingerprints = fingerprints.map(|_| fingerprints_of(&accepted.entry()));
        Some(accepted)
    }

    fn report_unparsed(&self, entry: &Entry<'_>) {
        self.metrics.bodies_redacted_entirely.add(1);
        self.log("unparsed", || {
            tracing::warn!(
                source = entry.source.name(), tag = %shown(entry.tag),
                "data is not msgpack and cannot be searched for values to redact, replaced as a whole: correct the sender"
            );
        });
    }

    /// The counters of each rule.
    pub(crate) fn counts(&self) -> Vec<RuleCount> {
        let filters = self.filters.iter().map(|filter| RuleCount {
            name: filter.rule.name.clone(),
            list: RuleList::Filter,
            entries: filter.entries.load(Ordering::Relaxed),
            dropped: filter.dropped.load(Ordering::Relaxed),
        });
        let redacted = self
            .redactor
            .iter()
            .flat_map(Redactor::counts)
            .map(|(name, entries)| RuleCount {
                name,
                list: RuleList::Redact,
                entries,
                dropped: 0,
            });

        // Filters first, in the order in which an entry passes them.
        filters.chain(redacted).collect()
    }

    fn is_dropped(&self, entry: &Entry<'_>) -> bool {
        // Salt and the daemon depend on the other kinds.
        if !matches!(entry.kind, Kind::Event | Kind::JobNew | Kind::Return) {
            return false;
        }

        // Only the first rule that matches decides, and it alone is counted.
        let Some(filter) = self
            .filters
            .iter()
            .find(|filter| self.is_match(filter, entry))
        else {
            return false;
        };

        filter.entries.fetch_add(1, Ordering::Relaxed);
        let (dropped, counter) = match filter.rule.action {
            Action::Store => return false,
            Action::Drop => (true, &self.metrics.entries_filtered),
            Action::Sample(n) => (!is_sampled(entry, n), &self.metrics.entries_sampled_out),
        };

        if dropped {
            filter.dropped.fetch_add(1, Ordering::Relaxed);
            counter.add(1);
        }

        dropped
    }

    /// Whether a rule is for the entry. One with a condition that is too costly for the entry is not.
    fn is_match(&self, filter: &Filter, entry: &Entry<'_>) -> bool {
        // The scope first, because it costs less than a condition.
        if !filter.scope.matches(entry, || funs_of(entry.body)) {
            return false;
        }

        let Some(condition) = &filter.rule.condition else {
            return true;
        };

        condition.holds(entry.tag, entry.body).unwrap_or_else(|error| {
            self.metrics.conditions_too_costly.add(1);
            self.log("too costly", || {
                let rule = filter.rule.name.as_str();
                tracing::warn!(rule, tag = %shown(entry.tag), %error, "ingest.filter rule not applied to an event, the event is stored: simplify the rule");
            });
            // In doubt an event is stored, because a dropped one is gone.
            false
        })
    }

    /// Counts and logs oddities of an event that is accepted.
    fn inspect(&self, event: &SaltEvent<'_>) {
        let (stamp, form) = (event.stamp, event.form);
        let entry = event.entry();

        // A literal sentence each, which can be searched for.
        macro_rules! report {
            ($about:literal, $sentence:literal) => {
                self.log($about, || {
                    let stamp = stamp.map(|s| String::from_utf8_lossy(s).into_owned());
                    tracing::warn!(
                        source = entry.source.name(), tag = %shown(entry.tag), minion = entry.minion, stamp, $sentence
                    );
                })
            };
        }

        match form {
            // Unreadable data was rejected before.
            DataForm::Map | DataForm::Unreadable(_) => {}
            DataForm::NoMap => {
                self.metrics.events_without_map.add(1);
                report!("no map", "event data is not a map, stored unchanged");
            }
        }

        // The mark may be forged, or the master's configuration is unknown here. The event does not
        // show which.
        if event.ignored_peer.is_some() {
            self.metrics.event_peer_ids_ignored.add(1);
            report!(
                "peer ignored",
                "event carries a peer mark (`__peer_id`), but no master of this daemon is known to have a `cluster_id`, stored unchanged: check `ingest.masters`; otherwise the event is forged"
            );
        }

        if stamp.is_some_and(|stamp| !is_near(stamp, entry.at)) {
            self.metrics.event_timestamps_off.add(1);
            report!(
                "clock off",
                "event stamp differs by more than a day from the local time, stored unchanged: correct the clock of the minion or of this host"
            );
        }
    }

    /// Logs, unless the same kind was logged recently.
    fn log(&self, about: &'static str, write: impl FnOnce()) {
        if self.logged.is_due(about, self.clock.monotonic()) {
            write();
        }
    }
}

/// Whether a sample of one in `n` contains the entry. A job is sampled as a whole.
fn is_sampled(entry: &Entry<'_>, n: u32) -> bool {
    let hash = match entry.jid {
        "" => chained(0, [entry.tag, entry.body]),
        jid => chained(0, [jid.as_bytes()]),
    };
    hash % u64::from(n.max(1)) == 0
}

/// Whether a stamp (`2026-11-21T05:47:28.123456`) is within about a day of `at`. True for any other
/// string.
fn is_near(stamp: &[u8], at: Micros) -> bool {
    const OFF_MAX: Duration = Duration::from_secs(36 * 3_600);
    // The time of day is ignored: from noon, 36 hours are at least a day in both directions.
    noon(stamp).is_none_or(|noon| Duration::from_micros(noon.0.abs_diff(at.0)) <= OFF_MAX)
}

/// Noon of the day of a stamp.
fn noon(stamp: &[u8]) -> Option<Micros> {
    type Date = [u8; 10];
    thread_local! {
        /// The last date, because nearly every event is of today.
        static LAST: Cell<(Date, Option<Micros>)> = const { Cell::new(([0; 10], None)) };
    }

    // The day is enough for `is_near`, and is equal for nearly all events, so its noon is kept.
    let date: Date = *stamp.first_chunk()?;
    let (last, noon) = LAST.get();
    if last == date {
        return noon;
    }

    let number = |from: usize, to: usize| digits(date.get(from..to)?);
    let noon = || Micros::of_utc([number(0, 4)?, number(5, 7)?, number(8, 10)?, 12, 0, 0, 0]);
    let noon = noon();
    LAST.set((date, noon));
    noon
}

/// The second remedy for an entry of `len` bytes, if there is one: a limit within which it fits.
fn or_raise(len: usize) -> &'static str {
    if len <= ENTRY_BYTES_MAX {
        ", or raise store.entry_bytes_max"
    } else {
        ""
    }
}

/// A tag for a log line, shortened.
fn shown(tag: &[u8]) -> String {
    let start = tag.get(..200).unwrap_or(tag);
    String::from_utf8_lossy(start).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limits::FILTER_BYTES_MAX;
    use crate::base::metrics::Counter;
    use crate::model::word::Word as _;
    use crate::model::{Builtin, Flags, RetcodePattern};
    use crate::wire::filter::Condition;
    use crate::wire::msgpack::Writer;
    use crate::wire::salt_event::event_entry;
    use salt_sls::Glob;

    const NOW: Micros = Micros(1_795_230_637_000_000);

    fn policy(filters: &[FilterRule], redact: &[RedactRule]) -> (Policy, Arc<Metrics>) {
        policy_of(MasterKeys::none(), filters, redact)
    }

    fn policy_of(
        keys: MasterKeys,
        filters: &[FilterRule],
        redact: &[RedactRule],
    ) -> (Policy, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        (
            Policy::new(
                filters,
                redact,
                Arc::new(keys),
                1 << 20,
                Clock::manual(NOW),
                metrics.clone(),
            ),
            metrics,
        )
    }

    fn rule(action: Action, tag: &str) -> FilterRule {
        FilterRule {
            tag: vec![Glob::new(tag)],
            ..FilterRule::of_all(tag, action)
        }
    }

    fn data(id: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2)
            .str("id")
            .str(id)
            .str("_stamp")
            .str("2026-11-21T03:10:37.359479");
        w.into_bytes()
    }

    /// Whether the event is accepted.
    fn is_accepted(policy: &Policy, tag: &str, data: &[u8], source: Source) -> bool {
        let accepted = policy.event(tag.as_bytes(), data, source, NOW).unwrap();
        if let Some(accepted) = &accepted {
            let of_stored = fingerprints_of(&accepted.entry());
            assert_eq!(
                accepted.fingerprints,
                Some(of_stored),
                "the fingerprints are those of the stored entry"
            );
        }
        accepted.is_some()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let everything = FilterRule::of_all("rest", Action::Drop);
        let rules = [
            rule(Action::Store, "salt/job/*"),
            rule(Action::Drop, "salt/*"),
            everything,
        ];
        let (policy, metrics) = policy(&rules, &[]);
        for (tag, stored) in [
            ("salt/job/1/new", true),
            ("salt/auth", false),
            ("other", false),
        ] {
            assert_eq!(
                is_accepted(&policy, tag, &data("web1"), Source::Bus),
                stored,
                "{tag}"
            );
        }
        assert_eq!(metrics.entries_filtered.get(), 2);
        let counts: Vec<_> = policy
            .counts()
            .into_iter()
            .map(|c| (c.entries, c.dropped))
            .collect();
        assert_eq!(counts, [(1, 0), (1, 1), (1, 1)]);
    }

    #[test]
    fn exit_codes_and_conditions_select_as_in_consumers() {
        let given = |text| FilterRule {
            condition: Some(Condition::new(text).unwrap()),
            ..FilterRule::of_all(text, Action::Drop)
        };
        let failed = FilterRule {
            retcode: vec![RetcodePattern::parse("!0").unwrap()],
            ..FilterRule::of_all("failed", Action::Store)
        };
        let (policy, metrics) = policy(&[failed, given("data.fun is startingwith('test.')")], &[]);
        let is_stored = |fun: &str, retcode: i64| {
            let mut w = Writer::new();
            w.map(5)
                .str("fun")
                .str(fun)
                .str("id")
                .str("web1")
                .str("jid")
                .str("1");
            w.str("retcode").int(retcode).str("return").bool(true);
            is_accepted(&policy, "salt/job/1/ret/web1", &w.into_bytes(), Source::Bus)
        };
        assert!(
            is_stored("test.ping", 2) && !is_stored("test.ping", 0) && is_stored("state.apply", 0)
        );
        assert_eq!(metrics.entries_filtered.get(), 1);
    }

    #[test]
    fn a_rule_that_is_too_costly_for_an_event_does_not_match_it() {
        let text = vec!["data.x == 1"; 90].join(" and ");
        let costly = FilterRule {
            condition: Some(Condition::new(&text).unwrap()),
            ..FilterRule::of_all("costly", Action::Drop)
        };
        let (policy, metrics) = policy(&[costly], &[]);
        let event = |size: usize| {
            let mut w = Writer::new();
            w.map(2).str("big").str(&"a".repeat(size)).str("x").int(1);
            w.into_bytes()
        };
        let (small, large) = (event(10), event(FILTER_BYTES_MAX / 64));
        let is_stored = |body: &[u8]| {
            let entry = event_entry(b"t", body, Source::Bus, NOW);
            policy.pass(&entry, None).is_some()
        };
        assert!(!is_stored(&small) && is_stored(&large));
        assert_eq!(
            (
                metrics.conditions_too_costly.get(),
                metrics.entries_filtered.get()
            ),
            (1, 1)
        );
    }

    #[test]
    fn all_sources_sample_alike_and_jobs_are_sampled_as_a_whole() {
        let (policy, metrics) = policy(&[rule(Action::Sample(4), "*")], &[]);
        let mut kept = 0;
        for n in 0..400 {
            let event = data(&format!("web{n}"));
            let sources = [Source::Bus, Source::EventReturn, Source::SpooledEventReturn];
            let [first, others @ ..] =
                sources.map(|source| is_accepted(&policy, "salt/auth", &event, source));
            assert_eq!(others, [first; 2]);
            kept += u32::from(first);
            let job =
                ["new", "ret/web1", "prog/web1/1"].map(|about| format!("salt/job/{n}/{about}"));
            let [new, rest @ ..] = job.map(|tag| is_accepted(&policy, &tag, &event, Source::Bus));
            assert_eq!(rest, [new; 2]);
        }
        assert!((60..140).contains(&kept), "{kept} of 400");
        assert!(metrics.entries_sampled_out.get() > 1000);
    }

    #[test]
    fn entries_that_salt_requires_are_never_dropped() {
        let (policy, _) = policy(&[FilterRule::of_all("all", Action::Drop)], &[]);
        let entry = event_entry(b"t", b"\x80", Source::Returner, NOW);
        for (kind, passed) in [
            (Kind::Load, true),
            (Kind::Minions, true),
            (Kind::Endtime, true),
            (Kind::Register, true),
            (Kind::Return, false),
            (Kind::Event, false),
        ] {
            assert_eq!(
                policy.pass(&Entry { kind, ..entry }, None).is_some(),
                passed,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn malformed_events_are_rejected_or_reported_and_counted() {
        let (policy, metrics) = policy(&[], &[]);
        let take = |message: &[u8]| {
            policy
                .message(message, Source::Bus, NOW)
                .map(|accepted| accepted.is_some())
        };
        assert_eq!(take(b"no tag at all"), Err(RejectReason::NoTag));
        assert_eq!(take(b"\n\n\x80"), Err(RejectReason::NoTag));
        let long = [&vec![b't'; 10 << 20][..], b"\n\n\x80"].concat();
        assert_eq!(take(&long), Err(RejectReason::TagTooLong(10 << 20)));
        let large = [b"t\n\n", &vec![0xc0; 2 << 20][..]].concat();
        assert_eq!(
            take(&large),
            Err(RejectReason::TooLarge {
                len: (2 << 20) + 1,
                max: 1 << 20
            })
        );
        assert_eq!(take(b"t\n\n\x93\x01\x02\x03"), Ok(true));
        for broken in [
            &b"t\n\n\xc1"[..],
            b"t\n\n",
            b"t\n\n\x80\x80",
            b"t\n\n\x82\xa1a",
        ] {
            assert!(
                matches!(take(broken), Err(RejectReason::Unreadable(_))),
                "{broken:?}"
            );
        }
        let old = data("web1")
            .iter()
            .map(|&b| if b == b'6' { b'1' } else { b })
            .collect::<Vec<_>>();
        assert_eq!(take(&[b"t\n\n", &old[..]].concat()), Ok(true));
        assert_eq!(take(&[b"t\n\n", &data("web1")[..]].concat()), Ok(true));
        let counted = [
            &metrics.events_dropped_without_tag,
            &metrics.events_dropped_tag_too_long,
            &metrics.entries_rejected_too_large,
            &metrics.events_without_map,
            &metrics.entries_rejected_unreadable,
            &metrics.event_timestamps_off,
        ];
        assert_eq!(
            counted.map(crate::base::metrics::Counter::get),
            [2, 1, 1, 1, 4, 1]
        );
    }

    #[test]
    fn a_secret_is_redacted_to_the_same_bytes_at_every_source() {
        let redact = RedactRule {
            name: "p".into(),
            builtin: Some(Builtin::Passwords),
            ..RedactRule::default()
        };
        let (policy, metrics) = policy(&[], &[redact]);
        let mut w = Writer::new();
        w.map(6)
            .str("fun")
            .str("x.y")
            .str("id")
            .str("web1")
            .str("jid")
            .str("1")
            .str("retcode")
            .int(3);
        w.str("success")
            .bool(true)
            .str("return")
            .map(1)
            .str("db_Password")
            .str("hunter2");
        let body = w.into_bytes();
        let tag = b"salt/job/1/ret/web1";
        let mut seen = Vec::new();
        let accepted = policy.event(tag, &body, Source::Bus, NOW).unwrap().unwrap();
        seen.push((
            accepted.entry().body.to_vec(),
            accepted.fingerprints.unwrap(),
        ));
        let entry = event_entry(tag, &body, Source::Returner, NOW);
        let accepted = policy.pass(&entry, Some(fingerprints_of(&entry))).unwrap();
        let entry = accepted.entry();
        assert_eq!(
            (entry.kind, entry.jid, entry.minion, entry.fun),
            (Kind::Return, "1", "web1", "x.y")
        );
        assert!(entry.flags.has(Flags::RETCODE_KNOWN) && entry.retcode == 3);
        seen.push((entry.body.to_vec(), accepted.fingerprints.unwrap()));
        assert_eq!(seen[0], seen[1]);
        let text = String::from_utf8_lossy(&seen[0].0).into_owned();
        assert!(
            !text.contains("hunter2") && text.contains("[redacted]"),
            "{text}"
        );
        assert_eq!(
            (metrics.entries_redacted.get(), policy.counts()[0].entries),
            (2, 2)
        );
    }

    #[test]
    fn the_event_of_a_peer_is_redacted_shortened_and_mended_as_on_its_own_master() {
        let redact = RedactRule {
            name: "p".into(),
            builtin: Some(Builtin::Passwords),
            ..RedactRule::default()
        };
        let (policy, metrics) = policy_of(MasterKeys::of_cluster(), &[], &[redact]);
        // Plain; with a secret; too large; with an ext of type -1 that is no timestamp.
        let values: [&[u8]; 4] = [
            b"\xa1x",
            b"\x81\xa8password\xa7hunter2",
            &[b"\xdb\0\x20\0\0", &vec![b'a'; 2 << 20][..]].concat(),
            b"\xd4\xff\0",
        ];
        for value in values {
            let data = |is_of_peer: bool| {
                let mut w = Writer::new();
                w.map(3 + usize::from(is_of_peer));
                w.str("id").str("web1").str("jid").str("1");
                w.str("return").raw(value);
                if is_of_peer {
                    w.str("__peer_id").str("b");
                }
                w.into_bytes()
            };
            let (own, of_peer) = (data(false), data(true));
            let [own, of_peer] = [&own, &of_peer].map(|data| {
                let tag = b"salt/job/1/ret/web1";
                policy.event(tag, data, Source::Bus, NOW).unwrap().unwrap()
            });
            assert_eq!((own.entry().origin, of_peer.entry().origin), ("", "b"));
            assert_eq!(
                Entry {
                    origin: "",
                    number: 0,
                    ..of_peer.entry()
                },
                own.entry()
            );
            assert_eq!(of_peer.fingerprints, own.fingerprints);
            assert_eq!(own.fingerprints, Some(fingerprints_of(&own.entry())));
        }
        assert_eq!(
            (
                metrics.entries_redacted.get(),
                metrics.returns_without_value.get(),
                metrics.returns_repaired.get()
            ),
            (2, 2, 2)
        );
    }

    #[test]
    fn a_return_that_a_rule_drops_does_not_count_as_stored_without_parts() {
        let (policy, metrics) = policy(&[rule(Action::Drop, "*")], &[]);
        let values: [&[u8]; 2] = [
            &[b"\xdb\0\x20\0\0", &vec![b'a'; 2 << 20][..]].concat(),
            b"\xd4\xff\0",
        ];
        for value in values {
            let mut w = Writer::new();
            w.map(3).str("id").str("web1").str("jid").str("1");
            w.str("return").raw(value);
            let (tag, data) = (b"salt/job/1/ret/web1", w.into_bytes());
            let read = policy.event(tag, &data, Source::Bus, NOW);
            assert!(matches!(read, Ok(None)), "{read:?}");
        }

        assert_eq!(metrics.entries_filtered.get(), 2);
        let stored = [&metrics.returns_without_value, &metrics.returns_repaired];
        assert_eq!(stored.map(Counter::get), [0, 0]);
    }

    #[test]
    fn without_a_cluster_a_mark_of_a_peer_changes_nothing_and_is_counted() {
        let mut w = Writer::new();
        w.map(2).str("id").str("web1").str("__peer_id").str("b");
        let data = w.into_bytes();
        for (keys, origin, ignored) in [
            (MasterKeys::none(), "", 2),
            (MasterKeys::of_cluster(), "b", 0),
        ] {
            let (policy, metrics) = policy_of(keys, &[], &[]);
            let message = [b"a/b\n\n", &data[..]].concat();
            let passed = [
                policy.event(b"a/b", &data, Source::Bus, NOW),
                policy.message(&message, Source::Zeromq, NOW),
            ];
            for accepted in passed {
                let accepted = accepted.unwrap().unwrap();
                let entry = accepted.entry();
                assert_eq!(entry.origin, origin);
                assert_eq!(entry.body == data, origin.is_empty());
                assert_eq!(accepted.fingerprints, Some(fingerprints_of(&entry)));
            }
            assert_eq!(metrics.event_peer_ids_ignored.get(), ignored);
        }
    }

    #[test]
    fn data_that_cannot_be_parsed_is_replaced_as_a_whole() {
        let redact = RedactRule {
            name: "p".into(),
            builtin: Some(Builtin::PrivateKeys),
            ..RedactRule::default()
        };
        let (policy, metrics) = policy(&[], &[redact]);
        let broken = b"\x82\xa1a-----BEGIN RSA PRIVATE KEY-----";
        let entry = Entry {
            body: broken,
            ..event_entry(b"t", b"\x80", Source::Bus, NOW)
        };
        assert_eq!(
            policy.pass(&entry, None).unwrap().entry().body,
            b"\xaa[redacted]"
        );
        assert_eq!(metrics.bodies_redacted_entirely.get(), 1);
    }
}
