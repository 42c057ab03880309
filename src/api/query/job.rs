//! One job: its load, minions and answers.
//!
//! # Rules
//!
//! - Entries are folded in the order of their times, then of their origins, and at last of their
//!   numbers ([`order`]): the result does not depend on the order in which they arrived here.
//! - The load with the highest rank counts (`store::index::job_summary::rank`). Among equal ranks the first load counts.
//! - Different publishes under one jid are a conflict: all are kept, see [`Job::conflict`]. The first
//!   one counts, by the clocks of the masters that published them. Therefore each master names the same.
//! - A minion's first answer counts; later differing answers are its history. But answers from a
//!   returner call take precedence over answers seen on a bus only. Among the latter, complete answers
//!   take precedence over answers trimmed for size (`VALUE_TRIMMED`, `salt/utils/dicttrim.py`).
//! - Any program with permission to fire events can put a return on a bus. In a job that Salt
//!   stored through the extension (`JobSummary::is_cached_by_salt`) a return seen on a bus only
//!   is not an answer: see [`Job::bus_only`]. In other jobs it is one, with a mark
//!   ([`Answer::is_bus_only`]).
//! - A return that came from a peer of the cluster is an answer in each job, with a mark
//!   ([`Answer::peer`]): its own master may have authenticated it, which is not known here.
//! - The expected minions are those named by the publish and the syndics, and minions that ran
//!   something themselves. The event `.../new` counts only if no load names minions.
//! - The last end time counts.
//! - The load of a job of a runner, a wheel or `salt-call` has no arguments. The arguments in its result
//!   count.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use memchr::memmem;

use super::answer::{Answer, is_bus_only, is_of_peer, names_jobs, same};
use super::parts::Parts;
use crate::base::clock::Micros;
use crate::base::limits::{ANSWERS_DIFFERING_SHOWN, PUBLISHES_DIFFERING_MAX};
use crate::model::Kind;
pub(crate) use crate::store::index::job_summary::{is_of_cached_job, load_of, rank};
use crate::store::{StoreError, StoreView, StoredEntry};
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, as_text, is_nil};
use crate::wire::outcome::Outcome;
use crate::wire::salt_event::stamp_of;

/// A master whose history is not here up to now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) master: String,
    pub(crate) behind: Duration,
}

/// A job, assembled from its entries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Job {
    pub(crate) jid: String,
    /// The publish map or its substitute; empty without one.
    pub(crate) load: Vec<u8>,
    /// The origin of the load: the master that published the job; empty for the one of this daemon.
    pub(crate) origin: String,
    /// The rank of the load; 0 without one.
    pub(crate) load_rank: u8,
    /// Expected minions, sorted; `None` if unknown.
    pub(crate) minions: Option<BTreeSet<String>>,
    /// Expected minions named only by their own returns.
    self_named: BTreeSet<String>,
    /// A publish or a syndic named minions.
    targets_known: bool,
    pub(crate) answers: BTreeMap<String, Answer>,
    /// Expected minions without an answer that may have answered: by the master that may have it.
    pub(crate) unknown: BTreeMap<String, Behind>,
    /// Minions whose returns were seen on a bus only and are not answers, because no returner call
    /// confirmed them.
    pub(crate) bus_only: BTreeSet<String>,
    /// True if the job's returns must not be cached.
    pub(crate) nocache: bool,
    /// The job that started it, if its own entries name one.
    pub(crate) parent: Option<String>,
    /// The publishes, and the events about them: of each of the two kinds those that differ.
    publishes: Vec<StoredEntry>,
    /// True if only returns from a returner call are answers.
    confirmed_only: bool,
    /// The minion of which a return is the load.
    load_minion: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Number of expected minions, if known.
    pub(crate) expected: Option<usize>,
    pub(crate) returned: usize,
    /// Answers seen on a bus only.
    pub(crate) bus_only: usize,
    /// Answers among them that came from peers.
    pub(crate) unverified: usize,
    pub(crate) failed: usize,
    /// Expected minions that have not answered, if known.
    pub(crate) missing: Option<usize>,
    /// Expected minions without an answer here that may have answered.
    pub(crate) unknown: usize,
    pub(crate) first: Option<Micros>,
    pub(crate) last: Option<Micros>,
    pub(crate) retcodes: BTreeMap<i64, u64>,
}

impl Job {
    /// Reads a job without the bodies of its returns; `None` if it has no entries. The existence of an answer and its failure are known,
    /// but not its content, nor whether later answers differ: [`Job::answers_of`] reads that.
    pub(crate) fn read_heads(store: &StoreView, jid: &str) -> Result<Option<Self>, StoreError> {
        let wanted = |e: &StoredEntry| e.kind != Kind::Return || names_jobs(e);
        Ok(Self::of(store.job_entries_with(jid, wanted)?))
    }

    /// As [`Job::read_heads`], but if a return is the best load, that is known as well.
    pub(crate) fn read_load(store: &StoreView, jid: &str) -> Result<Option<Self>, StoreError> {
        let mut job = Self::read_heads(store, jid)?;
        if let Some(job) = job
            .as_mut()
            .filter(|job| job.load_rank <= rank(Kind::Return))
        {
            job.learn_returns(store)?;
        }
        Ok(job)
    }

    /// Takes from the returns what a publish would say.
    fn learn_returns(&mut self, store: &StoreView) -> Result<(), StoreError> {
        // By syndics; without their content no return has named its minion yet.
        let named = self.minions.clone().unwrap_or_default();
        let minions = self.answered_in_order().into_iter().map(str::to_owned);
        let minions: Vec<String> = minions.collect();
        let mut parts = Parts::of_all(&minions);
        while let Some(part) = parts.next(|id| self.bytes_of(id)) {
            let part: Vec<&str> = part.iter().map(String::as_str).collect();
            let mut read = self.part(store, &part)?;
            if part.contains(&self.load_minion.as_str()) {
                self.load = read.load;
            }
            if let Some(mut minions) = read.minions {
                self.minions.get_or_insert_default().append(&mut minions);
            }
            read.self_named.retain(|id| !named.contains(id));
            self.self_named.append(&mut read.self_named);

            for (minion, mut answer) in read.answers {
                if !names_jobs(&answer.entry) {
                    answer.leave_bodies();
                }
                self.answers.insert(minion, answer);
            }
        }
        Ok(())
    }

    /// Bytes of the returns of a minion.
    pub(crate) fn bytes_of(&self, minion: &str) -> usize {
        self.answers
            .get(minion)
            .map_or(0, |answer| answer.extent.bytes)
    }

    /// The minions that have answered, in the order of the log: a walk over them reads each part of it once.
    pub(crate) fn answered_in_order(&self) -> Vec<&str> {
        let mut minions: Vec<_> = self.answers.iter().collect();
        minions.sort_unstable_by_key(|(_, answer)| answer.extent.first);
        minions.into_iter().map(|(minion, _)| &**minion).collect()
    }

    /// What the returns of some of its minions add to it. The caller sees to it that they are no more than a part.
    pub(super) fn part(&self, store: &StoreView, minions: &[&str]) -> Result<Self, StoreError> {
        let known = minions.iter().filter_map(|id| self.answers.get(*id));
        let spans = known.map(|answer| (answer.extent.first, answer.extent.last));
        let span = spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let Some((first, last)) = span else {
            return Ok(Self::default());
        };

        let wanted: BTreeSet<&str> = minions.iter().copied().collect();
        let is_wanted = |minion: &str| wanted.contains(minion);
        let entries = store.returns_between(&self.jid, (first, last.next()), is_wanted)?;
        // None if retention has dropped them since.
        Ok(Self::of_part(entries, self.confirmed_only).unwrap_or_default())
    }

    /// Assembles a job from its entries.
    pub(crate) fn of(entries: Vec<StoredEntry>) -> Option<Self> {
        let cached = entries
            .iter()
            .any(|entry| is_of_cached_job(entry.kind, entry.flags));
        Self::of_part(entries, cached)
    }

    /// Like [`Job::of`], from some of the job's entries. `confirmed_only`: Salt stored the job
    /// through the extension.
    pub(super) fn of_part(mut entries: Vec<StoredEntry>, confirmed_only: bool) -> Option<Self> {
        let jid = entries.first()?.jid.clone();
        #[cfg(test)]
        super::parts::held::note(&jid, &entries);
        // Mostly sorted already, because entries arrive in the order of their timestamps.
        entries.sort_by(|one, other| order(one).cmp(&order(other)));

        let mut job = Self {
            jid,
            confirmed_only,

            ..Self::default()
        };

        // Minions named by the event `.../new` wait until the end: they count only if no load names
        // any.
        let mut of_event = None;
        for entry in entries {
            job.learn(entry, &mut of_event);
        }

        if job.minions.is_none() {
            job.minions = of_event;
        }

        job.settle_conflict();

        if confirmed_only {
            job.set_aside(|answer| answer.is_bus_only() && answer.peer().is_none());
        }
        Some(job)
    }

    /// Takes the answers of peers for what they are on their own masters, if `is_here` says of the peer that its history is here up to the
    /// time of the answer.
    pub(super) fn settle_peers(&mut self, is_here: impl Fn(&str, Micros) -> bool) {
        for answer in self.answers.values_mut() {
            let at = answer.entry.at;
            answer.is_settled = answer.peer().is_some_and(|peer| is_here(peer, at));
        }
        if self.confirmed_only {
            self.set_aside(|answer| answer.is_settled);
        }
    }

    /// Keeps only the answers that a returner call of this master confirmed.
    pub(crate) fn keep_confirmed(&mut self) {
        self.set_aside(Answer::is_bus_only);
    }

    /// Moves such returns from the answers to `bus_only`.
    fn set_aside(&mut self, is_no_answer: impl Fn(&Answer) -> bool) {
        // The usual case.
        if !self.answers.values().any(&is_no_answer) {
            return;
        }

        // Both are sorted already, and each can be built in one pass. A job may have tens of
        // thousands of returns.
        let (bus_only, confirmed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.answers)
            .into_iter()
            .partition(|(_, answer)| is_no_answer(answer));
        self.answers = confirmed.into_iter().collect();
        let mut bus_only = bus_only.into_iter().map(|(minion, _)| minion).collect();
        self.bus_only.append(&mut bus_only);
    }

    fn learn(&mut self, entry: StoredEntry, minions_of_event: &mut Option<BTreeSet<String>>) {
        let rank = rank(entry.kind);
        let no_answer = self.confirmed_only && is_bus_only(&entry);
        // The best load counts, in whatever order the entries came.
        if rank > self.load_rank && !no_answer {
            self.load_rank = rank;
            self.load = load_of(entry.kind, &entry.body).to_vec();
            self.origin.clone_from(&entry.origin);
            self.load_minion.clone_from(&entry.minion);
        }

        match entry.kind {
            Kind::Load | Kind::ReturnLoad => {
                self.expect_self_target(load_of(entry.kind, &entry.body));
                // Salt may pass the expected minions with the load, and not for every job.
                if let Some(minions) = msgpack::elements(&entry.body).nth(1).filter(|m| !is_nil(m))
                {
                    self.expect(minions);
                }
                self.published(entry);
            }
            Kind::JobNew => {
                if let Some(minions) = msgpack::get(&entry.body, "minions") {
                    let named = msgpack::elements(minions).filter_map(id_text);
                    minions_of_event.get_or_insert_default().extend(named);
                }
                self.published(entry);
            }
            Kind::Minions => self.expect(msgpack::elements(&entry.body).next().unwrap_or_default()),
            Kind::NoCache => self.nocache = true,
            Kind::Return => {
                // The minion is mostly expected already, and looking into its return costs a walk
                // over it.
                if !no_answer
                    && !self
                        .minions
                        .as_ref()
                        .is_some_and(|minions| minions.contains(&entry.minion))
                {
                    self.expect_self_target(&entry.body);
                }
                self.answered(entry);
            }
            Kind::Event => {
                if let Some(parent) = parent_in_event(&entry) {
                    self.parent = Some(parent);
                }
            }
            // The end time is in the job's summary.
            Kind::Endtime
            | Kind::Register
            | Kind::Gap
            | Kind::Reaction
            | Kind::SeenOnBus
            | Kind::Setting => {}
        }
    }

    /// Notes a publish. Of equal publishes this master's counts, or else the first.
    fn published(&mut self, entry: StoredEntry) {
        if !is_publish(&entry) {
            return;
        }

        let count = self.publishes.len();
        let is_equal =
            |known: &&mut StoredEntry| known.kind == entry.kind && is_same_job(known, &entry);
        match self.publishes.iter_mut().find(is_equal) {
            Some(known) if place(&entry) < place(known) => *known = entry,
            Some(_) => {}
            // Any program may have fired so many.
            None if entry.kind == Kind::JobNew && count >= PUBLISHES_DIFFERING_MAX => {}
            None => self.publishes.push(entry),
        }
    }

    /// True if masters published different jobs under this jid.
    pub(crate) fn has_conflict(&self) -> bool {
        let count = |kind| self.publishes.iter().filter(|one| one.kind == kind).count();
        count(Kind::Load) > 1 || count(Kind::JobNew) > 1
    }

    /// The different publishes under this jid, beginning with the publish that counts; none if there is only one.
    pub(crate) fn conflict(&self) -> Vec<&StoredEntry> {
        // The usual case.
        if !self.has_conflict() {
            return Vec::new();
        }

        // The event about a publish is not another one.
        let (loads, events): (Vec<_>, Vec<_>) = self
            .publishes
            .iter()
            .partition(|publish| publish.kind == Kind::Load);
        let mut different: Vec<&StoredEntry> = Vec::new();
        for publish in loads.into_iter().chain(events) {
            if !different.iter().any(|known| is_same_job(known, publish)) {
                different.push(publish);
            }
        }

        // Of two at the same time the values decide: an origin is not known by one name everywhere.
        different.sort_by_cached_key(|publish| {
            let values = identity(load_of(publish.kind, &publish.body));
            (self.published_at(publish), values.map(<[u8]>::to_vec))
        });
        different
    }

    /// The time of a publish by the clock of the master that published it, if the event about it tells.
    pub(crate) fn published_at(&self, publish: &StoredEntry) -> Micros {
        let is_event =
            |other: &&StoredEntry| other.kind == Kind::JobNew && is_same_job(other, publish);
        fired_at(self.publishes.iter().find(is_event).unwrap_or(publish))
    }

    /// Makes the first of different publishes the load, whichever arrived first here.
    fn settle_conflict(&mut self) {
        let conflict = self.conflict();
        let Some(first) = conflict.first() else {
            return;
        };

        let load = load_of(first.kind, &first.body).to_vec();
        (self.load_rank, self.origin) = (rank(first.kind), first.origin.clone());
        self.load = load;
    }

    /// The load for Salt's questions: what this master published, even if another publish counts.
    pub(crate) fn own_load(&self) -> &[u8] {
        let is_own =
            |publish: &&StoredEntry| publish.kind == Kind::Load && publish.origin.is_empty();
        match self.publishes.iter().find(is_own) {
            Some(own) if self.has_conflict() => load_of(own.kind, &own.body),
            _ => &self.load,
        }
    }

    fn expect(&mut self, minions: &[u8]) {
        // Built in one step: usually this is the only list, and sorted.
        let mut named: BTreeSet<String> = msgpack::elements(minions).filter_map(id_text).collect();
        self.targets_known |= !named.is_empty();
        if !self.self_named.is_empty() {
            self.self_named.retain(|id| !named.contains(id));
        }
        self.minions.get_or_insert_default().append(&mut named);
    }

    /// A minion that ran something itself (`salt-call`, a schedule, a peer's runner) is expected:
    /// the master makes it the target of its return (`_store_job` in `salt/utils/job.py`). The
    /// master does the same for its own runners, with an id of `<host>_master`.
    fn expect_self_target(&mut self, load: &[u8]) {
        let word = |key| msgpack::get(load, key).and_then(as_text);
        if let (Some(id), Some(tgt)) = (word("id"), word("tgt"))
            && id == tgt
            && (word("cmd") == Some("_return") || !id.ends_with("_master"))
            && self.minions.get_or_insert_default().insert(id.to_owned())
        {
            self.self_named.insert(id.to_owned());
        }
    }

    fn answered(&mut self, entry: StoredEntry) {
        let (seq, bytes) = (entry.seq, entry.body_len());
        let Some(known) = self.answers.get_mut(&entry.minion) else {
            // The result of an orchestration names its parent. One that any program may have fired
            // does not count.
            if names_jobs(&entry) && !(self.confirmed_only && is_bus_only(&entry)) {
                let args = Outcome::of(&entry.body, &entry.jid).fun_args;
                self.parent = parent_in_args(args, &entry.jid).or(self.parent.take());
            }
            self.answers
                .insert(entry.minion.clone(), Answer::new(entry));
            return;
        };
        known.extent.add(seq, bytes);

        let [old, new] =
            [&known.entry, &entry].map(|entry| Precedence::of_entry(entry, self.confirmed_only));

        let mut other = entry;
        if new.overrides(old) {
            std::mem::swap(&mut known.entry, &mut other);
            // The bus may have shown the same return before its returner call: it is not an earlier
            // different one.
            let before = known.others.len();
            known.others.retain(|seen| !same(seen, &known.entry));
            known.duplicates -= (before - known.others.len()) as u64;
        }

        let is_known = |seen: &StoredEntry| same(seen, &other);
        // A trimmed return differs from the whole one without being another return.
        if old.trimmed != new.trimmed || is_known(&known.entry) || known.others.iter().any(is_known)
        {
            return;
        }

        known.duplicates += 1;
        if known.others.len() < ANSWERS_DIFFERING_SHOWN {
            known.others.push(other);
        }
    }

    /// The minions with an answer for the job cache, in the order of the log: none for a job with `nocache`.
    pub(crate) fn cached(&self) -> Vec<&str> {
        if self.nocache {
            return Vec::new();
        }
        self.answered_in_order()
    }

    /// True if the job is known to have been sent to other minions only.
    pub(crate) fn is_not_targeted(&self, minion: &str) -> bool {
        let named = self
            .minions
            .as_ref()
            .is_some_and(|minions| minions.contains(minion));
        self.targets_known && (!named || self.self_named.contains(minion))
    }

    /// Expected minions that have not answered.
    pub(crate) fn missing(&self) -> Vec<&str> {
        // Both are sorted and traversed in parallel.
        let mut answered = self.answers.keys().peekable();
        let is_missing = |id: &&String| {
            while answered.next_if(|known| known < id).is_some() {}
            answered.peek() != Some(id) && !self.unknown.contains_key(*id)
        };
        self.minions
            .iter()
            .flatten()
            .filter(is_missing)
            .map(String::as_str)
            .collect()
    }

    pub(crate) fn failed(&self) -> usize {
        self.answers.values().filter(|a| a.failed()).count()
    }

    pub(crate) fn totals(&self) -> Totals {
        let times = || self.answers.values().map(|answer| answer.entry.at);
        let mut totals = Totals {
            expected: self.minions.as_ref().map(BTreeSet::len),
            returned: self.answers.len(),
            missing: self.minions.as_ref().map(|_| self.missing().len()),
            unknown: self.unknown.len(),
            first: times().min(),
            last: times().max(),
            ..Totals::default()
        };

        for answer in self.answers.values() {
            totals.failed += usize::from(answer.failed());
            totals.bus_only += usize::from(answer.is_bus_only());
            totals.unverified += usize::from(answer.peer().is_some());
            if let Some(code) = answer.code() {
                *totals.retcodes.entry(code).or_default() += 1;
            }
        }

        totals
    }

    /// The arguments of the result that replaces the load, if the load has none.
    pub(crate) fn result_args(&self) -> Option<&[u8]> {
        Outcome::of(&self.load, &self.jid).fun_args
    }
}

/// The order in which entries are folded: the order of the calls and events, wherever they happened. The number is the origin's,
/// therefore all masters of one history have the same order.
pub(super) fn order(entry: &StoredEntry) -> impl Ord {
    let number = match entry.number {
        // The others know an entry of this daemon's master by its number here.
        0 if entry.origin.is_empty() => entry.seq.0,
        // None for one that came by a bus, whose number here tells only when it arrived.
        known => known,
    };
    (entry.at, number, &entry.origin, entry.seq)
}

/// True if the entry is a publish or the event about one, with all values that identify the job.
fn is_publish(entry: &StoredEntry) -> bool {
    match entry.kind {
        Kind::Load => true,
        // Salt trims large values in events.
        Kind::JobNew => memmem::find(&entry.body, b"VALUE_TRIMMED").is_none(),
        _ => false,
    }
}

/// True if two publishes run the same function with the same arguments on the same target, for the
/// same user.
///
/// A syndic publishes a job again under its jid, as the user that it runs as; `kwargs` of its load
/// name the first user (`syndic_cmd` in `salt/minion.py`), its event does not.
fn is_same_job(one: &StoredEntry, other: &StoredEntry) -> bool {
    let [one_load, other_load] = [one, other].map(|entry| load_of(entry.kind, &entry.body));
    let user = |load| {
        let kwargs = msgpack::get(load, "kwargs");
        let first = kwargs.and_then(|kwargs| msgpack::get(kwargs, "user"));
        first.or_else(|| msgpack::get(load, "user"))
    };

    identity(one_load) == identity(other_load)
        && ([one, other].iter().any(|entry| entry.kind == Kind::JobNew)
            || user(one_load) == user(other_load))
}

/// The values that identify a job, without empty values.
fn identity(load: &[u8]) -> [&[u8]; 4] {
    ["fun", "arg", "tgt", "tgt_type"].map(|key| msgpack::get(load, key).unwrap_or_default())
}

/// The time of a publish or the event about it. A master stamps an event when it fires it, and no peer changes that.
fn fired_at(publish: &StoredEntry) -> Micros {
    let stamp = stamp_of(&publish.body).filter(|_| publish.kind == Kind::JobNew);
    stamp.and_then(Micros::of_stamp).unwrap_or(publish.at)
}

/// The place of a publish among equal publishes: loads of this master, for which Salt asks, before imported loads, then by time.
fn place(publish: &StoredEntry) -> impl Ord + use<> {
    let is_other = publish.kind == Kind::Load && !publish.origin.is_empty();
    (is_other, fired_at(publish))
}

/// Precedence between two answers of a minion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Precedence {
    confirmed: bool,
    /// It counts as an answer in this job.
    counts: bool,
    trimmed: bool,
}

impl Precedence {
    /// The precedence of an answer. Salt's marker for trimmed events can also occur in a complete
    /// return: a returner call is never trimmed.
    fn of_entry(entry: &StoredEntry, confirmed_only: bool) -> Self {
        let confirmed = entry.as_entry().confirms();
        Self {
            confirmed,
            counts: !(confirmed_only && is_bus_only(entry) && !is_of_peer(entry)),
            trimmed: !confirmed && memmem::find(&entry.body, b"VALUE_TRIMMED").is_some(),
        }
    }

    /// True if this answer counts instead of an earlier one.
    fn overrides(self, earlier: Self) -> bool {
        let rank = |of: Self| (of.confirmed, of.counts);
        if rank(earlier) == rank(self) {
            earlier.trimmed && !self.trimmed
        } else {
            rank(self) > rank(earlier)
        }
    }
}

/// The outer job, from `fun_args`.
fn parent_in_args(args: Option<&[u8]>, own: &str) -> Option<String> {
    let named = msgpack::elements(args?).filter_map(|arg| msgpack::get(arg, "orchestration_jid"));
    named.filter_map(id_text).find(|jid| jid != own)
}

/// The outer job, from the start or end event of a runner.
fn parent_in_event(entry: &StoredEntry) -> Option<String> {
    let is_run = entry.kind == Kind::Event && entry.tag.starts_with(b"salt/run/");
    let args = msgpack::get(&entry.body, "fun_args").filter(|_| is_run);
    parent_in_args(args, &entry.jid)
}

#[cfg(test)]
mod tests {
    use super::super::parts::Extent;
    use super::*;
    use crate::model::{Flags, SeqNo, Source};
    use msgpack::Writer;
    use proptest::prelude::*;

    fn entry(seq: u64, kind: Kind, minion: &str, body: Vec<u8>) -> StoredEntry {
        StoredEntry {
            seq: SeqNo(seq),
            kind,
            source: Source::Bus,
            origin: String::new(),
            number: 0,
            flags: Flags::default(),
            at: Micros(0),
            tag: Vec::new(),
            jid: "1".into(),
            minion: minion.into(),
            fun: String::new(),
            retcode: 0,
            body,
            unread: 0,
        }
    }

    fn answer(text: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(1).str("return").str(text);
        w.into_bytes()
    }

    fn names(list: &[&str]) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(list.len());
        for name in list {
            w.str(name);
        }
        w.into_bytes()
    }

    fn load(fun: &str, minions: &[u8]) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(2).map(1).str("fun").str(fun).raw(minions);
        w.into_bytes()
    }

    fn text_of(job: &Job, minion: &str) -> String {
        as_text(job.answers[minion].get("return").unwrap())
            .unwrap()
            .to_owned()
    }

    #[test]
    fn the_first_answer_counts_and_later_ones_are_history() {
        let job = Job::of(vec![
            entry(1, Kind::Return, "web1", answer("first")),
            entry(2, Kind::Return, "web1", answer("first")),
            entry(3, Kind::Return, "web1", answer("second")),
        ])
        .unwrap();
        assert_eq!(
            (
                text_of(&job, "web1").as_str(),
                job.answers["web1"].duplicates
            ),
            ("first", 1)
        );
    }

    #[test]
    fn a_complete_answer_overrides_a_trimmed_one() {
        for order in [["VALUE_TRIMMED", "whole"], ["whole", "VALUE_TRIMMED"]] {
            let job = Job::of(vec![
                entry(1, Kind::Return, "web1", answer(order[0])),
                entry(2, Kind::Return, "web1", answer(order[1])),
            ])
            .unwrap();
            assert_eq!(
                (
                    text_of(&job, "web1").as_str(),
                    job.answers["web1"].duplicates
                ),
                ("whole", 0)
            );
        }
    }

    #[test]
    fn an_answer_from_a_returner_call_overrides_the_bus() {
        let job = Job::of(vec![
            forged(1, "web1", "forged"),
            forged(2, "web1", "real"),
            returned(3, "web1", "real"),
            forged(4, "web1", "later"),
            forged(5, "web1", "later"),
        ])
        .unwrap();
        assert_eq!(
            (
                text_of(&job, "web1").as_str(),
                job.answers["web1"].duplicates
            ),
            ("real", 2)
        );
        let seqs: Vec<u64> = job.answers["web1"]
            .others
            .iter()
            .map(|other| other.seq.0)
            .collect();
        assert_eq!(
            seqs,
            [1, 4],
            "the same answer on the bus is not a differing one"
        );
        assert!(!job.answers["web1"].is_bus_only() && job.bus_only.is_empty());
    }

    #[test]
    fn a_forged_event_is_not_the_answer_of_a_missing_minion() {
        let load = || {
            entry(
                2,
                Kind::Load,
                "",
                load("test.ping", &names(&["web1", "web2"])),
            )
        };
        let new = || {
            let mut w = Writer::new();
            w.map(1)
                .str("minions")
                .raw(&names(&["web1", "web2", "other"]));
            entry(1, Kind::JobNew, "", w.into_bytes())
        };
        let job = Job::of(vec![
            new(),
            load(),
            forged(3, "web1", "forged"),
            returned(4, "web2", "x"),
        ])
        .unwrap();
        assert_eq!(job.answers.keys().collect::<Vec<_>>(), ["web2"]);
        assert_eq!(
            (job.missing(), &job.bus_only),
            (vec!["web1"], &BTreeSet::from(["web1".to_owned()]))
        );
        assert_eq!(
            (
                job.totals().returned,
                job.totals().missing,
                job.totals().expected
            ),
            (1, Some(1), Some(2))
        );
        // Without the extension's load, the bus is the only source.
        let job = Job::of(vec![new(), forged(3, "web1", "seen")]).unwrap();
        assert!(job.answers["web1"].is_bus_only() && job.bus_only.is_empty());
        // On a bus, and confirmed by a returner call.
        let confirmed = StoredEntry {
            flags: Flags::ON_BUS,
            ..entry(3, Kind::Return, "web1", answer("true"))
        };
        let job = Job::of(vec![load(), confirmed]).unwrap();
        assert!(!job.answers["web1"].is_bus_only());
    }

    #[test]
    fn a_forged_return_names_neither_load_nor_minions_of_a_job() {
        let ran = |id: &str| {
            let mut w = Writer::new();
            w.map(4)
                .str("id")
                .str(id)
                .str("tgt")
                .str(id)
                .str("cmd")
                .str("_return")
                .str("fun")
                .str("forged");
            w.into_bytes()
        };
        let mut end = Writer::new();
        end.str("2026, Nov 21 03:09:53.349344");
        let forged = StoredEntry {
            body: ran("web9"),
            ..forged(1, "web9", "")
        };
        let job = Job::of(vec![forged, entry(2, Kind::Endtime, "", end.into_bytes())]).unwrap();
        assert_eq!(
            (job.minions, job.load_rank, job.answers.len()),
            (None, 0, 0)
        );
    }

    /// An entry from the master's `returner` call for a fired return, which was also on the bus.
    fn returned(seq: u64, minion: &str, text: &str) -> StoredEntry {
        let entry = entry(seq, Kind::Return, minion, answer(text));
        StoredEntry {
            source: Source::Returner,
            flags: Flags::ON_BUS,
            ..entry
        }
    }

    fn forged(seq: u64, minion: &str, text: &str) -> StoredEntry {
        let flags = Flags::ON_BUS.with(Flags::UNCONFIRMED);
        StoredEntry {
            flags,
            ..entry(seq, Kind::Return, minion, answer(text))
        }
    }

    #[test]
    fn a_forged_event_does_not_override_a_return_that_contains_value_trimmed() {
        for order in [[1, 2], [2, 1]] {
            let mut entries = [
                returned(order[0], "web1", "grep VALUE_TRIMMED salt.log"),
                forged(order[1], "web1", "forged"),
            ];
            entries.sort_by_key(|entry| entry.seq);
            let job = Job::of(entries.to_vec()).unwrap();
            assert_eq!(
                text_of(&job, "web1"),
                "grep VALUE_TRIMMED salt.log",
                "{order:?}"
            );
            assert_eq!(job.answers["web1"].duplicates, 1);
        }
    }

    #[test]
    fn minions_of_all_loads_are_expected() {
        let mut syndic = Writer::new();
        syndic.array(2).raw(&names(&["db1"])).nil();
        let job = Job::of(vec![
            entry(1, Kind::Return, "web1", answer("x")),
            entry(
                2,
                Kind::Load,
                "",
                load("test.ping", &names(&["web1", "web2"])),
            ),
            entry(3, Kind::Minions, "", syndic.into_bytes()),
            StoredEntry {
                at: Micros(1),
                ..entry(4, Kind::Load, "", load("later", &[0xc0]))
            },
        ])
        .unwrap();
        assert_eq!(job.missing(), ["db1", "web2"]);
        assert_eq!(
            msgpack::get(&job.load, "fun").and_then(as_text),
            Some("test.ping"),
            "the first of equal loads"
        );
        assert!(Job::of(Vec::new()).is_none());
    }

    #[test]
    fn a_minion_that_ran_something_itself_is_expected_and_a_master_is_not() {
        let ran = |id: &str, cmd: &str| {
            let mut w = Writer::new();
            w.map(3)
                .str("id")
                .str(id)
                .str("tgt")
                .str(id)
                .str("cmd")
                .str(cmd);
            Job::of(vec![entry(1, Kind::Return, id, w.into_bytes())])
                .unwrap()
                .minions
        };
        let only = |id: &str| Some(BTreeSet::from([id.to_owned()]));
        assert_eq!(ran("web1", "_return"), only("web1"));
        assert_eq!(ran("web1", ""), only("web1"), "a runner called by a minion");
        assert_eq!(
            ran("web1_master", "_return"),
            only("web1_master"),
            "a minion can have this name"
        );
        assert_eq!(ran("host_master", ""), None);
    }

    #[test]
    fn an_answer_of_a_minion_that_was_not_targeted_is_marked() {
        let asserted = {
            let mut w = Writer::new();
            w.map(3)
                .str("id")
                .str("evil")
                .str("tgt")
                .str("evil")
                .str("cmd")
                .str("_return");
            w.into_bytes()
        };
        let job = |published: Vec<StoredEntry>| {
            let mut entries = vec![entry(1, Kind::Return, "evil", asserted.clone())];
            entries.extend(published);
            entries.push(entry(9, Kind::Return, "web1", answer("x")));
            let job = Job::of(entries).unwrap();
            ["evil", "web1", "db1"].map(|minion| job.is_not_targeted(minion))
        };
        assert_eq!(job(vec![]), [false; 3], "the targets are unknown");
        let load = |minions: &[u8]| entry(2, Kind::Load, "", load("test.ping", minions));
        assert_eq!(job(vec![load(&names(&["web1"]))]), [true, false, true]);
        assert_eq!(job(vec![load(&[0xc0])]), [false; 3]);
        assert_eq!(
            job(vec![load(&names(&["web1", "evil"]))]),
            [false, false, true]
        );
        let mut syndic = Writer::new();
        syndic.array(2).raw(&names(&["db1"])).nil();
        let syndic = entry(3, Kind::Minions, "", syndic.into_bytes());
        assert_eq!(
            job(vec![load(&names(&["web1"])), syndic]),
            [true, false, false]
        );
    }

    /// As a peer of the cluster fired it, and a call may have mirrored it.
    fn of_peer(seq: u64, minion: &str, text: &str) -> StoredEntry {
        StoredEntry {
            origin: "master2".to_owned(),
            ..forged(seq, minion, text)
        }
    }

    #[test]
    fn a_return_of_a_peer_is_what_it_is_there_once_its_history_is_here() {
        let settled = |entries: Vec<StoredEntry>, is_here: bool| {
            let mut job = Job::of(entries).unwrap();
            job.settle_peers(|peer, _| {
                assert_eq!(peer, "master2");
                is_here
            });
            job
        };
        let published = || {
            let minions = names(&["web1", "web2"]);
            let load = entry(1, Kind::Load, "", load("test.ping", &minions));
            vec![load, of_peer(2, "web1", "seen")]
        };
        let job = settled(published(), false);
        assert_eq!(job.answers["web1"].peer(), Some("master2"));
        assert_eq!(job.missing(), ["web2"]);
        let job = settled(published(), true);
        assert_eq!(
            (job.answers.len(), job.missing()),
            (0, vec!["web1", "web2"])
        );
        assert!(job.bus_only.contains("web1"));

        // In a job that nothing confirms it is an answer, as on its own master.
        let job = settled(vec![of_peer(2, "web1", "seen")], true);
        assert_eq!(job.answers["web1"].peer(), None);
        assert!(job.answers["web1"].is_bus_only());
    }

    #[test]
    fn a_return_from_a_peer_is_an_answer_that_is_not_verified() {
        let published = || {
            entry(
                1,
                Kind::Load,
                "",
                load("test.ping", &names(&["web1", "web2"])),
            )
        };
        let mirrored = StoredEntry {
            source: Source::Returner,
            ..of_peer(2, "web1", "mirrored")
        };
        for seen in [of_peer(2, "web1", "mirrored"), mirrored] {
            // The forged one is of this master, which would have confirmed a return of its own minion.
            let entries = [
                published(),
                forged(3, "web1", "forged"),
                seen.clone(),
                forged(4, "web2", "forged"),
            ];
            let job = Job::of(entries.to_vec()).unwrap();
            assert_eq!(
                (text_of(&job, "web1").as_str(), job.missing()),
                ("mirrored", vec!["web2"])
            );
            assert_eq!(job.answers["web1"].peer(), Some("master2"));
            assert_eq!(job.bus_only, BTreeSet::from(["web2".to_owned()]));
            let totals = job.totals();
            assert_eq!(
                (totals.returned, totals.bus_only, totals.unverified),
                (1, 1, 1)
            );

            let mut confirmed = job.clone();
            confirmed.keep_confirmed();
            assert!(confirmed.answers.is_empty());

            let entries = [published(), seen, returned(5, "web1", "real")];
            let job = Job::of(entries.to_vec()).unwrap();
            assert_eq!(
                (text_of(&job, "web1").as_str(), job.answers["web1"].peer()),
                ("real", None)
            );
        }
    }

    #[test]
    fn mirrored_minions_do_not_make_a_job_one_of_this_master() {
        let mut minions = Writer::new();
        minions.array(2).raw(&names(&["web1"])).nil();
        let mirrored = StoredEntry {
            flags: Flags::UNCONFIRMED,
            ..entry(1, Kind::Minions, "", minions.into_bytes())
        };
        let job = Job::of(vec![mirrored, forged(2, "web1", "seen")]).unwrap();
        assert!(job.answers["web1"].is_bus_only() && job.bus_only.is_empty());
        assert_eq!(job.minions, Some(BTreeSet::from(["web1".to_owned()])));
    }

    /// An entry of any kind that a fold looks at.
    fn any_entry((kind, minion, value, flags): (u8, u8, u8, u8)) -> StoredEntry {
        let minion = ["web1", "web2", "db1"][usize::from(minion % 3)];
        let text = ["one", "two", "VALUE_TRIMMED"][usize::from(value % 3)];
        let fun = ["test.ping", "runner.state.orch"][usize::from(value % 2)];
        match kind {
            0 => entry(0, Kind::Load, "", load(text, &names(&[minion]))),
            1 => {
                let mut w = Writer::new();
                w.map(2).str("fun").str(text).str("minions");
                w.raw(&names(&[minion]));
                entry(0, Kind::JobNew, "", w.into_bytes())
            }
            2 => {
                let mut w = Writer::new();
                w.array(2).raw(&names(&[minion])).nil();
                entry(0, Kind::Minions, "", w.into_bytes())
            }
            3 => {
                let mut w = Writer::new();
                w.map(1).str("fun_args").array(1).map(1);
                w.str("orchestration_jid").str(text);
                let started = entry(0, Kind::Event, "", w.into_bytes());
                StoredEntry {
                    tag: b"salt/run/1/new".to_vec(),
                    ..started
                }
            }
            4 => entry(0, Kind::ReturnLoad, "", load(text, &[0xc0])),
            _ => {
                let is_seen = flags % 2 == 0;
                let is_mirrored = flags % 3 == 0;
                let mut w = Writer::new();
                w.map(5).str("return").str(text).str("id").str(minion);
                w.str("tgt").str(["web1", "*"][usize::from(flags % 3 % 2)]);
                w.str("fun").str(fun).str("fun_args").array(1).map(1);
                w.str("orchestration_jid").str(text);
                StoredEntry {
                    source: if is_seen {
                        Source::Bus
                    } else {
                        Source::Returner
                    },
                    flags: if is_seen || is_mirrored {
                        Flags::UNCONFIRMED
                    } else {
                        Flags::default()
                    },
                    fun: fun.to_owned(),
                    ..entry(0, Kind::Return, minion, w.into_bytes())
                }
            }
        }
    }

    /// All of a job but sequence numbers.
    fn shown(entries: &[StoredEntry]) -> String {
        let number = |(seq, entry): (u64, &StoredEntry)| StoredEntry {
            seq: SeqNo(seq),
            ..entry.clone()
        };
        let mut job = Job::of((1..).zip(entries).map(number).collect()).unwrap();
        for answer in job.answers.values_mut() {
            answer.extent = Extent::new(SeqNo(0), 0);
        }
        let of_answers = job.answers.values_mut();
        let of_answers =
            of_answers.flat_map(|a| std::iter::once(&mut a.entry).chain(&mut a.others));
        for entry in of_answers.chain(&mut job.publishes) {
            entry.seq = SeqNo(0);
        }
        format!("{job:?} {:?}", job.conflict())
    }

    proptest! {
        #[test]
        fn a_job_does_not_depend_on_the_order_of_arrival(
            made in prop::collection::btree_map((0..4_i64, 0..3_usize), (0..8_u8, 0..3_u8, 0..3_u8, 0..6_u8), 1..10),
            keys in prop::collection::vec(any::<u32>(), 10),
        ) {
            let made = made.into_iter().map(|((at, origin), about)| StoredEntry {
                at: Micros(at),
                origin: ["", "a", "b"][origin].to_owned(),
                ..any_entry(about)
            });
            let made: Vec<StoredEntry> = made.collect();
            let mut keyed: Vec<_> = keys.iter().zip(&made).collect();
            keyed.sort_by_key(|(key, _)| **key);
            let arrived: Vec<StoredEntry> = keyed.into_iter().map(|(_, entry)| entry.clone()).collect();
            prop_assert_eq!(shown(&made), shown(&arrived));
        }
    }

    #[test]
    fn different_publishes_under_one_jid_are_a_conflict() {
        fn publish(kind: Kind, pairs: &[(&str, &str)]) -> StoredEntry {
            let mut w = Writer::new();
            if kind == Kind::Load {
                w.array(2);
            }
            w.map(pairs.len());
            for (key, value) in pairs {
                w.str(key).str(value);
            }
            if kind == Kind::Load {
                w.nil();
            }
            entry(1, kind, "", w.into_bytes())
        }
        let ping = [("fun", "test.ping"), ("tgt", "*"), ("user", "root")];
        let other = [("fun", "test.version"), ("tgt", "*"), ("user", "root")];
        let by_bob = [("fun", "test.ping"), ("tgt", "*"), ("user", "bob")];
        let trimmed = [("fun", "test.ping"), ("tgt", "VALUE_TRIMMED")];
        let later = [
            ("fun", "test.ping"),
            ("tgt", "*"),
            ("user", "root"),
            ("jid", "1"),
        ];

        for (first, second, published) in [
            ((Kind::Load, &ping[..]), (Kind::Load, &later[..]), 0),
            ((Kind::Load, &ping), (Kind::Load, &other), 2),
            ((Kind::Load, &ping), (Kind::Load, &by_bob), 2),
            ((Kind::JobNew, &ping), (Kind::JobNew, &other), 2),
            // Salt fires an event about each publish. A syndic publishes as another user.
            ((Kind::Load, &ping), (Kind::JobNew, &ping), 0),
            ((Kind::JobNew, &ping), (Kind::JobNew, &by_bob), 0),
            ((Kind::JobNew, &ping), (Kind::JobNew, &trimmed), 0),
        ] {
            let job = Job::of(vec![publish(first.0, first.1), publish(second.0, second.1)]);
            let job = job.unwrap();
            assert_eq!(job.conflict().len(), published, "{first:?} {second:?}");
            assert_eq!(job.has_conflict(), published > 0, "{first:?} {second:?}");
        }

        // The event of the publish that counts, and that of another master.
        let all = [
            (Kind::Load, ping),
            (Kind::JobNew, ping),
            (Kind::JobNew, other),
        ];
        let job = Job::of(all.map(|(kind, pairs)| publish(kind, &pairs)).to_vec()).unwrap();
        let funs = job.conflict().into_iter().map(|entry| {
            let fun = msgpack::get(load_of(entry.kind, &entry.body), "fun");
            fun.and_then(as_text).unwrap()
        });
        assert_eq!(funs.collect::<Vec<_>>(), ["test.ping", "test.version"]);
    }

    /// A publish as the log of a master contains it: the load if it is its own, and the event about it.
    fn published(
        by: &str,
        fun: &str,
        fired: i64,
        arrived: [i64; 2],
        here: &str,
    ) -> Vec<StoredEntry> {
        let mut w = Writer::new();
        w.map(2).str("fun").str(fun).str("_stamp");
        w.str(Micros(fired).iso().trim_end_matches('Z'));
        let origin = if by == here { "" } else { by };
        let event = StoredEntry {
            at: Micros(arrived[0]),
            origin: origin.to_owned(),
            ..entry(0, Kind::JobNew, "", w.into_bytes())
        };
        let load = StoredEntry {
            at: Micros(arrived[1]),
            ..entry(0, Kind::Load, "", load(fun, &[0xc0]))
        };
        [Some(event), Some(load).filter(|_| origin.is_empty())]
            .into_iter()
            .flatten()
            .collect()
    }

    proptest! {
        #[test]
        fn each_master_names_the_same_publish_as_the_first(
            // Each master publishes one job, of few functions and times.
            published_by in prop::collection::vec((0..3_u8, 0..3_i64), 3),
            arrived in prop::collection::vec((0..5_i64, 0..5_i64), 9),
            keys in prop::collection::vec(any::<u32>(), 18),
        ) {
            const MASTERS: [&str; 3] = ["a", "b", "c"];
            let mut seen = Vec::new();
            for (n, here) in MASTERS.into_iter().enumerate() {
                let publishes = MASTERS.into_iter().zip(&published_by).enumerate();
                let entries = publishes.flat_map(|(m, (by, (fun, fired)))| {
                    let (event, load) = arrived[3 * n + m];
                    published(by, ["x", "y", "z"][usize::from(*fun)], *fired, [event, load], here)
                });
                let mut keyed: Vec<_> = keys[6 * n..].iter().zip(entries).collect();
                keyed.sort_by_key(|(key, _)| **key);
                let numbered = (1..).zip(keyed).map(|(seq, (_, entry))| StoredEntry { seq: SeqNo(seq), ..entry });
                let job = Job::of(numbered.collect()).unwrap();

                let named = |load: &[u8]| msgpack::get(load, "fun").and_then(as_text).map(str::to_owned);
                let conflict: Vec<_> = job
                    .conflict()
                    .into_iter()
                    .map(|one| (job.published_at(one), named(load_of(one.kind, &one.body))))
                    .collect();
                if let Some((_, first)) = conflict.first() {
                    prop_assert_eq!(&named(&job.load), first);
                    // Salt asks for what it has stored.
                    let own = ["x", "y", "z"][usize::from(published_by[n].0)];
                    let answered = named(job.own_load());
                    prop_assert_eq!(answered.as_deref(), Some(own));
                }
                seen.push(conflict);
            }
            prop_assert_eq!(&seen[0], &seen[1]);
            prop_assert_eq!(&seen[1], &seen[2]);
            prop_assert!(seen[0].is_sorted());
        }
    }

    #[test]
    fn a_publish_counts_from_when_its_master_fired_it() {
        let of_peer = published("b", "test.version", 5, [90, 0], "a");
        for (fired, first) in [(4, "test.ping"), (6, "test.version")] {
            let own = published("a", "test.ping", fired, [70, 80], "a");
            let job = Job::of([own, of_peer.clone()].concat()).unwrap();
            let fun = |load| msgpack::get(load, "fun").and_then(as_text);
            assert_eq!(fun(&job.load), Some(first));
            assert_eq!(fun(job.own_load()), Some("test.ping"));
            assert_eq!(job.origin, if fired < 5 { "" } else { "b" });
            let times: Vec<_> = job
                .conflict()
                .into_iter()
                .map(|one| job.published_at(one).0)
                .collect();
            assert_eq!(times, if fired < 5 { [4, 5] } else { [5, 6] });
        }
    }

    #[test]
    fn a_flood_of_forged_publishes_is_bounded_and_hides_no_load() {
        let forged = |n: i64| published("b", &format!("f{n}"), n + 9, [n + 9, 0], "a");
        let mut entries: Vec<_> = (0..1000).flat_map(forged).collect();
        entries.extend(published("a", "real", 5, [5, 5000], "a"));
        let job = Job::of(entries).unwrap();
        assert_eq!(job.publishes.len(), PUBLISHES_DIFFERING_MAX + 1);
        assert_eq!(
            msgpack::get(&job.load, "fun").and_then(as_text),
            Some("real")
        );
    }

    #[test]
    fn a_syndic_publishes_a_job_again_as_another_user() {
        let publish = |user: &str, first: Option<&str>| {
            let mut w = Writer::new();
            w.array(2).map(2).str("user").str(user).str("kwargs");
            match first {
                Some(first) => w.map(1).str("user").str(first),
                None => w.map(0),
            };
            w.nil();
            entry(1, Kind::Load, "", w.into_bytes())
        };
        let is_conflict = |syndic| {
            let job = Job::of(vec![publish("sudo_bob", None), syndic]).unwrap();
            job.has_conflict()
        };
        assert!(!is_conflict(publish("root", Some("sudo_bob"))));
        assert!(is_conflict(publish("root", Some("alice"))));
    }

    #[test]
    fn a_job_with_nocache_has_no_cached_answers() {
        let job = Job::of(vec![
            entry(1, Kind::NoCache, "", vec![0xc0]),
            entry(2, Kind::Return, "web1", answer("x")),
        ])
        .unwrap();
        assert_eq!((job.cached().len(), job.answers.len()), (0, 1));
    }
}
