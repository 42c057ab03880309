//! The gate: what every door asks before an entry goes to `intake`.
//!
//! Filters decide whether an entry is stored, redaction what of it. Both are carried out here, by the thread of the door,
//! so nothing that a rule keeps out ever reaches a queue, a spill or the log. A door has the choice of three ways in:
//!
//! ```text
//! message   tag, two newlines, data: a frame's body, a ZeroMQ message      -> event
//! event     tag and data                                                    -> pass
//! pass      an entry that the door made itself, such as a returner call's
//! ```
//!
//! # Invariant
//!
//! What is decided depends on the entry's bytes and names alone, never on the door: so an event that comes by three doors
//! is left out, kept, or redacted to the same bytes by each, and is still recognised as one.
//!
//! Loads, minions of syndics, end times and Thorium's register are never left out, only redacted: Salt itself asks for them
//! (an unknown jid ends `salt '*' test.ping` at once). Gap records do not come this way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::master_keys::MasterKeys;
use super::redact::{Redacted, Redactor};
use crate::clock::{Clock, Micros};
use crate::limits::{DOOR_SAYS, ENTRY_BYTES_MAX, TAG_BYTES_MAX};
use crate::metrics::Metrics;
use crate::model::{Action, Entry, FilterRule, Kind, Prints, RedactRule, Source, chained};
use crate::wire::msgpack;
use crate::wire::salt_codec::Unreadable;
use crate::wire::salt_event::{Event, Form, prints_of, read_event, split};

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// It was handed on, perhaps redacted.
    Taken,
    /// A rule keeps it out; that is counted, and to the sender it is as good as stored.
    LeftOut,
}

/// Why an event cannot be taken. It has been counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No tag and two newlines before the data.
    #[error("no tag: an event is its tag, two newlines, and msgpack")]
    NoTag,
    /// A tag of this many bytes.
    #[error("a tag of {0} bytes exceeds the limit of {TAG_BYTES_MAX}")]
    TagTooLong(usize),
    /// Tag and data together exceed `store.entry_bytes_max`.
    #[error("an event of {len} bytes exceeds the limit of {max} (store.entry_bytes_max)")]
    TooLarge {
        /// Its bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Salt's codec cannot read it: whoever reads it together with others would see none of them.
    #[error("Salt's codec cannot read the data: {0}")]
    Unreadable(#[from] Unreadable),
}

/// How often a rule has had to do with an entry, for `saltcellar status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's name.
    pub name: String,
    /// `filter` or `redact`.
    pub list: &'static str,
    /// Entries that it took: for `redact` those that it changed.
    pub entries: u64,
    /// Of those, entries that were not stored.
    pub left_out: u64,
}

struct Filter {
    rule: FilterRule,
    entries: AtomicU64,
    left_out: AtomicU64,
}

/// The rules, and where to count.
pub struct Gate {
    filters: Vec<Filter>,
    redactor: Option<Redactor>,
    master_keys: Arc<MasterKeys>,
    entry_bytes_max: usize,
    clock: Clock,
    metrics: Arc<Metrics>,
    said: Mutex<HashMap<&'static str, Micros>>,
}

impl Gate {
    /// A gate with these rules.
    pub fn new(
        filters: &[FilterRule],
        redact: &[RedactRule],
        master_keys: Arc<MasterKeys>,
        entry_bytes_max: usize,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        let count = |rule: &FilterRule| Filter {
            rule: rule.clone(),
            entries: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        };
        Self {
            filters: filters.iter().map(count).collect(),
            redactor: (!redact.is_empty()).then(|| Redactor::new(redact)),
            master_keys,
            entry_bytes_max,
            clock,
            metrics,
            said: Mutex::default(),
        }
    }

    /// A gate without rules and known keys.
    pub fn open(clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self::new(&[], &[], Arc::new(MasterKeys::none()), ENTRY_BYTES_MAX, clock, metrics)
    }

    /// The keys that are redacted without a rule.
    pub fn master_keys(&self) -> &Arc<MasterKeys> {
        &self.master_keys
    }

    /// Takes an event in the form `tag`, two newlines, msgpack; hands what is to be stored to `take`.
    pub fn message(
        &self,
        message: &[u8],
        source: Source,
        at: Micros,
        take: impl FnOnce(&Entry<'_>, Prints),
    ) -> Result<Passed, Refusal> {
        if let Some((tag, data)) = split(message) {
            return self.event(tag, data, source, at, take);
        }
        self.metrics.events_without_tag.add(1);
        self.say("no tag", || {
            tracing::warn!(
                door = source.name(),
                bytes = message.len(),
                "an event is left out: {}",
                Refusal::NoTag
            );
        });
        Err(Refusal::NoTag)
    }

    /// Takes an event; hands what is to be stored to `take`.
    pub fn event(
        &self,
        tag: &[u8],
        data: &[u8],
        source: Source,
        at: Micros,
        take: impl FnOnce(&Entry<'_>, Prints),
    ) -> Result<Passed, Refusal> {
        self.check_tag(tag, source)?;
        let (len, max) = (tag.len() + data.len(), self.entry_bytes_max);
        if len > max {
            self.metrics.entries_too_large.add(1);
            let refusal = Refusal::TooLarge { len, max };
            self.say("too large", || {
                tracing::warn!(door = source.name(), tag = %shown(tag), "an event is left out: {refusal}");
            });
            return Err(refusal);
        }
        self.read(&read_event(tag, data, source, at), take)
    }

    /// Is the tag one that can be stored?
    pub fn check_tag(&self, tag: &[u8], source: Source) -> Result<(), Refusal> {
        if tag.len() <= TAG_BYTES_MAX {
            return Ok(());
        }
        self.metrics.events_tag_too_long.add(1);
        let refusal = Refusal::TagTooLong(tag.len());
        self.say("tag too long", || {
            tracing::warn!(door = source.name(), tag = %shown(tag), "an event is left out: {refusal}");
        });
        Err(refusal)
    }

    /// Takes an event that has been read.
    pub fn read(&self, event: &Event<'_>, take: impl FnOnce(&Entry<'_>, Prints)) -> Result<Passed, Refusal> {
        if let Form::Unreadable(why) = event.form {
            return Err(self.reject(&event.entry, why));
        }
        self.look(event);
        Ok(self.pass(&event.entry, Some(event.prints), |entry, prints| {
            take(entry, prints.unwrap_or_else(|| prints_of(entry)));
        }))
    }

    /// Counts and logs an entry that Salt's codec cannot read.
    pub fn reject(&self, entry: &Entry<'_>, why: Unreadable) -> Refusal {
        self.metrics.entries_unreadable.add(1);
        self.say("unreadable", || {
            tracing::warn!(
                door = entry.source.name(), tag = %shown(entry.tag), jid = entry.jid, minion = entry.minion, %why,
                "data that Salt's codec cannot read, rejected"
            );
        });
        why.into()
    }

    /// Hands an entry on as the rules want it: as it is, redacted, or not at all. Salt's codec must be able to read its
    /// body, see [`Gate::reject`]. `prints` are those of the entry as it came, if they are known; a redacted one gets others.
    pub fn pass(
        &self,
        entry: &Entry<'_>,
        prints: Option<Prints>,
        take: impl FnOnce(&Entry<'_>, Option<Prints>),
    ) -> Passed {
        if !self.filters.is_empty() && self.is_left_out(entry) {
            return Passed::LeftOut;
        }
        let cleaned = self.master_keys.clean(entry);
        let entry = match &cleaned {
            None => *entry,
            Some(cleaned) => {
                self.metrics.master_keys_redacted.add(1);
                if cleaned.blind {
                    self.tell_blind(entry);
                }
                Entry { body: &cleaned.body, flags: cleaned.flags, ..*entry }
            }
        };
        let redacted = match &self.redactor {
            Some(redactor) => redactor.redact(&entry),
            None => Redacted::Untouched,
        };
        let body = match redacted {
            Redacted::Untouched if cleaned.is_none() => {
                take(&entry, prints);
                return Passed::Taken;
            }
            Redacted::Untouched => None,
            Redacted::Changed(body) => Some(body),
            Redacted::Blind(body) => {
                self.tell_blind(&entry);
                Some(body)
            }
        };
        self.metrics.entries_redacted.add(u64::from(body.is_some()));
        let entry = Entry { body: body.as_deref().unwrap_or(entry.body), ..entry };
        take(&entry, prints.is_some().then(|| prints_of(&entry)));
        Passed::Taken
    }

    fn tell_blind(&self, entry: &Entry<'_>) {
        self.metrics.redactions_blind.add(1);
        self.say("blind", || {
            tracing::warn!(
                door = entry.source.name(), tag = %shown(entry.tag),
                "data that is no msgpack cannot be searched for what is to be redacted; all of it is"
            );
        });
    }

    /// How often each rule has had to do with an entry.
    pub fn counts(&self) -> Vec<RuleCount> {
        let filters = self.filters.iter().map(|filter| RuleCount {
            name: filter.rule.name.clone(),
            list: "filter",
            entries: filter.entries.load(Ordering::Relaxed),
            left_out: filter.left_out.load(Ordering::Relaxed),
        });
        let redacted = self.redactor.iter().flat_map(Redactor::counts).map(|(name, entries)| RuleCount {
            name,
            list: "redact",
            entries,
            left_out: 0,
        });
        filters.chain(redacted).collect()
    }

    fn is_left_out(&self, entry: &Entry<'_>) -> bool {
        if !matches!(entry.kind, Kind::Event | Kind::JobNew | Kind::Return) {
            return false;
        }
        let Some(filter) = self.filters.iter().find(|f| f.rule.scope.takes(entry, || funs_of(entry.body)))
        else {
            return false;
        };
        filter.entries.fetch_add(1, Ordering::Relaxed);
        let (goes, counter) = match filter.rule.action {
            Action::Store => return false,
            Action::Drop => (true, &self.metrics.entries_filtered),
            Action::Sample(n) => (!is_sampled(entry, n), &self.metrics.entries_sampled_out),
        };
        if goes {
            filter.left_out.fetch_add(1, Ordering::Relaxed);
            counter.add(1);
        }
        goes
    }

    /// Looks at what is odd about an event that is taken all the same.
    fn look(&self, event: &Event<'_>) {
        let Event { entry, stamp, form, .. } = event;
        let tell = |about: &'static str, words: &str| {
            self.say(about, || {
                let stamp = stamp.map(|s| String::from_utf8_lossy(s).into_owned());
                tracing::warn!(
                    door = entry.source.name(), tag = %shown(entry.tag), minion = entry.minion, stamp, "{words}"
                );
            });
        };
        match form {
            // What is unreadable was rejected before.
            Form::Map | Form::Unreadable(_) => {}
            Form::NoMap => {
                self.metrics.events_no_map.add(1);
                tell("no map", "an event whose data is no map is stored as it is");
            }
        }
        if stamp.is_some_and(|stamp| !is_near(stamp, entry.at)) {
            self.metrics.event_clocks_off.add(1);
            tell(
                "clock off",
                "an event is stamped more than a day from the time here: one of the clocks is wrong",
            );
        }
    }

    /// Says something, unless the same was said a moment ago.
    fn say(&self, about: &'static str, words: impl FnOnce()) {
        let now = self.clock.now();
        let pause = i64::try_from(DOOR_SAYS.as_micros()).unwrap_or(i64::MAX);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let due = said.get(about).is_none_or(|last| (now.0 - last.0).unsigned_abs() >= pause.unsigned_abs());
        if due {
            said.insert(about, now);
            drop(said);
            words();
        }
    }
}

/// The functions of a job that has several.
pub(super) fn funs_of(body: &[u8]) -> Vec<&str> {
    let funs = msgpack::get(body, "fun").unwrap_or_default();
    msgpack::elements(funs).filter_map(msgpack::as_text).collect()
}

/// Is it the one of `n` that is kept? A job is kept as a whole.
fn is_sampled(entry: &Entry<'_>, n: u32) -> bool {
    let hash = match entry.jid {
        "" => chained(0, [entry.tag, entry.body]),
        jid => chained(0, [jid.as_bytes()]),
    };
    hash % u64::from(n.max(1)) == 0
}

/// Is a stamp (`2026-11-21T05:47:28.123456`) within a day or so of a time? What is no such text is not judged.
fn is_near(stamp: &[u8], at: Micros) -> bool {
    const DAY: i64 = 86_400_000_000;
    let number = |from: usize, to: usize| {
        let digits = stamp.get(from..to)?;
        digits.iter().try_fold(0_i64, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
    };
    let (Some(year), Some(month), Some(day)) = (number(0, 4), number(5, 7), number(8, 10)) else {
        return true;
    };
    let small = |n: i64| u32::try_from(n).unwrap_or(0);
    let date = crate::clock::Civil {
        year,
        month: small(month),
        day: small(day),
        hour: 12,
        minute: 0,
        second: 0,
        micros: 0,
    };
    date.micros_since_epoch().is_none_or(|noon| (noon.0 - at.0).abs() <= 2 * DAY - DAY / 2)
}

/// A tag as a log line shows it.
fn shown(tag: &[u8]) -> String {
    let start = tag.get(..200).unwrap_or(tag);
    String::from_utf8_lossy(start).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Builtin, Flags, Glob, Scope};
    use crate::wire::msgpack::Writer;

    const NOW: Micros = Micros(1_795_230_637_000_000);

    fn gate(filters: &[FilterRule], redact: &[RedactRule]) -> (Gate, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        (
            Gate::new(
                filters,
                redact,
                Arc::new(MasterKeys::none()),
                1 << 20,
                Clock::hand_wound(NOW),
                metrics.clone(),
            ),
            metrics,
        )
    }

    fn rule(action: Action, tag: &str) -> FilterRule {
        let scope = Scope { tag: vec![Glob::new(tag)], ..Scope::default() };
        FilterRule { name: tag.to_owned(), scope, action }
    }

    fn data(id: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2).str("id").str(id).str("_stamp").str("2026-11-21T03:10:37.359479");
        w.into_bytes()
    }

    /// Does the event come out?
    fn comes_out(gate: &Gate, tag: &str, data: &[u8], door: Source) -> bool {
        let mut out = false;
        gate.event(tag.as_bytes(), data, door, NOW, |entry, prints| {
            out = true;
            assert_eq!(prints, prints_of(entry), "a door's prints are those of what is stored");
        })
        .unwrap();
        out
    }

    #[test]
    fn the_first_rule_that_takes_an_event_decides() {
        let everything = FilterRule { name: "rest".into(), scope: Scope::default(), action: Action::Drop };
        let rules = [rule(Action::Store, "salt/job/*"), rule(Action::Drop, "salt/*"), everything];
        let (gate, metrics) = gate(&rules, &[]);
        for (tag, stored) in [("salt/job/1/new", true), ("salt/auth", false), ("other", false)] {
            assert_eq!(comes_out(&gate, tag, &data("web1"), Source::Bus), stored, "{tag}");
        }
        assert_eq!(metrics.entries_filtered.get(), 2);
        let counts: Vec<_> = gate.counts().into_iter().map(|c| (c.entries, c.left_out)).collect();
        assert_eq!(counts, [(1, 0), (1, 1), (1, 1)]);
    }

    #[test]
    fn doors_sample_alike_and_jobs_as_a_whole() {
        let (gate, metrics) = gate(&[rule(Action::Sample(4), "*")], &[]);
        let mut kept = 0;
        for n in 0..400 {
            let event = data(&format!("web{n}"));
            let doors = [Source::Bus, Source::EventReturn, Source::SpooledEventReturn];
            let [first, others @ ..] = doors.map(|door| comes_out(&gate, "salt/auth", &event, door));
            assert_eq!(others, [first; 2]);
            kept += u32::from(first);
            let job = ["new", "ret/web1", "prog/web1/1"].map(|about| format!("salt/job/{n}/{about}"));
            let [new, rest @ ..] = job.map(|tag| comes_out(&gate, &tag, &event, Source::Bus));
            assert_eq!(rest, [new; 2]);
        }
        assert!((60..140).contains(&kept), "{kept} of 400");
        assert!(metrics.entries_sampled_out.get() > 1000);
    }

    #[test]
    fn what_salt_asks_for_is_never_left_out() {
        let (gate, _) =
            gate(&[FilterRule { name: "all".into(), scope: Scope::default(), action: Action::Drop }], &[]);
        let entry = read_event(b"t", b"\x80", Source::Returner, NOW).entry;
        for (kind, passed) in [
            (Kind::Load, Passed::Taken),
            (Kind::Minions, Passed::Taken),
            (Kind::Endtime, Passed::Taken),
            (Kind::Register, Passed::Taken),
            (Kind::Return, Passed::LeftOut),
            (Kind::Event, Passed::LeftOut),
        ] {
            assert_eq!(gate.pass(&Entry { kind, ..entry }, None, |_, _| ()), passed, "{kind:?}");
        }
    }

    #[test]
    fn bad_events_are_refused_or_told_each_by_its_counter() {
        let (gate, metrics) = gate(&[], &[]);
        let take = |message: &[u8]| gate.message(message, Source::Bus, NOW, |_, _| ());
        assert_eq!(take(b"no tag at all"), Err(Refusal::NoTag));
        assert_eq!(take(b"\n\n\x80"), Err(Refusal::NoTag));
        let long = [&vec![b't'; 10 << 20][..], b"\n\n\x80"].concat();
        assert_eq!(take(&long), Err(Refusal::TagTooLong(10 << 20)));
        let large = [b"t\n\n", &vec![0xc0; 2 << 20][..]].concat();
        assert_eq!(take(&large), Err(Refusal::TooLarge { len: (2 << 20) + 1, max: 1 << 20 }));
        assert_eq!(take(b"t\n\n\x93\x01\x02\x03"), Ok(Passed::Taken));
        for broken in [&b"t\n\n\xc1"[..], b"t\n\n", b"t\n\n\x80\x80", b"t\n\n\x82\xa1a"] {
            assert!(matches!(take(broken), Err(Refusal::Unreadable(_))), "{broken:?}");
        }
        let old = data("web1").iter().map(|&b| if b == b'6' { b'1' } else { b }).collect::<Vec<_>>();
        assert_eq!(take(&[b"t\n\n", &old[..]].concat()), Ok(Passed::Taken));
        assert_eq!(take(&[b"t\n\n", &data("web1")[..]].concat()), Ok(Passed::Taken));
        let counted = [
            &metrics.events_without_tag,
            &metrics.events_tag_too_long,
            &metrics.entries_too_large,
            &metrics.events_no_map,
            &metrics.entries_unreadable,
            &metrics.event_clocks_off,
        ];
        assert_eq!(counted.map(crate::metrics::Counter::get), [2, 1, 1, 1, 4, 1]);
    }

    #[test]
    fn a_secret_is_gone_and_the_same_by_every_door() {
        let redact =
            RedactRule { name: "p".into(), builtin: Some(Builtin::Passwords), ..RedactRule::default() };
        let (gate, metrics) = gate(&[], &[redact]);
        let mut w = Writer::new();
        w.map(6).str("fun").str("x.y").str("id").str("web1").str("jid").str("1").str("retcode").int(3);
        w.str("success").bool(true).str("return").map(1).str("db_Password").str("hunter2");
        let body = w.into_bytes();
        let tag = b"salt/job/1/ret/web1";
        let mut seen = Vec::new();
        gate.event(tag, &body, Source::Bus, NOW, |entry, prints| seen.push((entry.body.to_vec(), prints)))
            .unwrap();
        let entry = read_event(tag, &body, Source::Returner, NOW).entry;
        gate.pass(&entry, Some(prints_of(&entry)), |entry, prints| {
            assert_eq!((entry.kind, entry.jid, entry.minion, entry.fun), (Kind::Return, "1", "web1", "x.y"));
            assert!(entry.flags.has(Flags::SUCCESS.with(Flags::RETCODE_KNOWN)) && entry.retcode == 3);
            seen.push((entry.body.to_vec(), prints.unwrap()));
        });
        assert_eq!(seen[0], seen[1]);
        let text = String::from_utf8_lossy(&seen[0].0).into_owned();
        assert!(!text.contains("hunter2") && text.contains("[redacted]"), "{text}");
        assert_eq!((metrics.entries_redacted.get(), gate.counts()[0].entries), (2, 2));
    }

    #[test]
    fn data_that_cannot_be_searched_goes_as_a_whole() {
        let redact =
            RedactRule { name: "p".into(), builtin: Some(Builtin::PrivateKeys), ..RedactRule::default() };
        let (gate, metrics) = gate(&[], &[redact]);
        let broken = b"\x82\xa1a-----BEGIN RSA PRIVATE KEY-----";
        let entry = Entry { body: broken, ..read_event(b"t", b"\x80", Source::Bus, NOW).entry };
        gate.pass(&entry, None, |entry, _| assert_eq!(entry.body, b"\xaa[redacted]"));
        assert_eq!(metrics.redactions_blind.get(), 1);
    }
}
