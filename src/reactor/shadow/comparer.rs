//! Who belongs to whom.
//!
//! Calls of both sides wait until nothing can come any more that belongs to them, and are judged then, in the order of events. An
//! equal call of Salt's within the window is the same one; what remains is held against the likest that remains, and differs; what
//! then remains was done by one side alone. The time is that of the log: what is judged does not depend on when it is.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::act::{Act, Difference};
use super::item::{Failed, Item, Ours, Salts};
use super::pool::Pool;
use crate::clock::Micros;
use crate::limits::{
    REACTOR_SHADOW_EARLY, REACTOR_SHADOW_LATE, REACTOR_SHADOW_WAITING_BYTES, REACTOR_SHADOW_WAITING_MAX,
};
use crate::model::SeqNo;

/// What became of one call.
#[derive(Debug, Clone, PartialEq)]
pub enum Comparison {
    /// Salt did it, too. Some of it may not be visible.
    Same(Ours, Salts, Vec<String>),
    /// Salt did something like it.
    Differs(Ours, Salts, Vec<Difference>),
    /// Salt did nothing like it.
    OnlyOurs(Ours),
    /// We would have done nothing like it, for this reason if there is one.
    OnlySalts(Salts, Option<Box<Ours>>),
    /// Ours failed to render; what Salt did about it, if anything can be seen.
    OursFailed(Failed, Option<Box<Salts>>),
    /// Salt's side of it cannot be seen.
    Unseen(Ours, &'static str),
    /// A job by nobody knows whom: Salt's reactor, or a person.
    Unattributed(Salts),
}

/// `(time, number, nth)`: the order in which calls of ours are judged.
type OurKey = (Micros, SeqNo, u32);
type SaltKey = (Micros, SeqNo);

/// See the top of the file.
#[derive(Debug)]
pub struct Comparer {
    window: i64,
    pool: Pool,
    /// Calls of Salt's are judged that came from here on ...
    since: Micros,
    /// ... and before this.
    until: Micros,
    /// Since when our reactor has been in shadow, if it is.
    shadow_since: Option<Micros>,
    ours: BTreeMap<OurKey, Ours>,
    /// Of those: how many there are of each kind.
    ours_alike: HashMap<u64, usize>,
    /// Of those: which would be made.
    ours_free: HashMap<u64, BTreeSet<OurKey>>,
    /// Reactions of ours that failed, and whether a call of Salt's was found that belongs to it.
    failed: BTreeMap<(Micros, SeqNo), (Failed, bool)>,
    salts: BTreeMap<SaltKey, Salts>,
    /// Of those: what is not told of if nothing of ours is like it, for we may not have seen its event.
    unjudged: BTreeSet<SaltKey>,
    alike: HashMap<u64, BTreeSet<SaltKey>>,
    /// By client and function.
    of_fun: HashMap<(String, String), BTreeSet<SaltKey>>,
    of_jid: HashMap<String, SaltKey>,
    /// What came before the job's event.
    loads: Remembered<Act>,
    made: Remembered<()>,
    gaps: VecDeque<(Micros, Micros)>,
    /// Of what waits.
    bytes: usize,
    /// What was judged before its time, for too much was waiting.
    pub hurried: u64,
}

/// The latest of something, by jid.
#[derive(Debug)]
struct Remembered<T> {
    of_jid: HashMap<String, T>,
    order: VecDeque<String>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { of_jid: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Remembered<T> {
    fn note(&mut self, jid: String, what: T) {
        if self.of_jid.insert(jid.clone(), what).is_none() {
            self.order.push_back(jid);
        }
        if self.order.len() > REACTOR_SHADOW_WAITING_MAX / 10
            && let Some(oldest) = self.order.pop_front()
        {
            self.of_jid.remove(&oldest);
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 8)
}

fn later(at: Micros, by: i64) -> Micros {
    Micros(at.0.saturating_add(by))
}

impl Comparer {
    /// Judges what came between these two moments.
    pub fn new(window: Duration, workers: usize, since: Micros, until: Micros) -> Self {
        Self {
            window: micros(window),
            pool: Pool::new(workers),
            since,
            until,
            shadow_since: None,
            ours: BTreeMap::new(),
            ours_alike: HashMap::new(),
            ours_free: HashMap::new(),
            failed: BTreeMap::new(),
            salts: BTreeMap::new(),
            unjudged: BTreeSet::new(),
            alike: HashMap::new(),
            of_fun: HashMap::new(),
            of_jid: HashMap::new(),
            loads: Remembered::default(),
            made: Remembered::default(),
            gaps: VecDeque::new(),
            bytes: 0,
            hurried: 0,
        }
    }

    /// How long Salt's own reactor may take.
    pub fn window(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.window).unwrap_or(0))
    }

    /// Runners and wheel functions that Salt's reactor runs at once.
    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Calls that wait for the end of their window: ours, and Salt's.
    pub fn waiting(&self) -> (usize, usize) {
        (self.ours.len() + self.failed.len(), self.salts.len())
    }

    /// Is our reactor in shadow, as far as the log has told?
    pub fn is_shadow(&self) -> bool {
        self.shadow_since.is_some()
    }

    /// Takes what the log has next.
    pub fn take(&mut self, item: Item, tell: &mut impl FnMut(Comparison)) {
        match item {
            Item::Mode { at, shadow, started } => {
                if !shadow {
                    self.shadow_since = None;
                } else if started || self.shadow_since.is_none() {
                    self.shadow_since = Some(at);
                }
            }
            Item::Ours(ours) => self.take_ours(ours, tell),
            Item::Failed(failed) => {
                if failed.at >= self.since && failed.at < self.until && self.is_shadow() {
                    self.bytes += failed_weight(&failed);
                    self.failed.insert((failed.at, failed.reaction), (failed, false));
                }
            }
            Item::Made(jid) => {
                if let Some(key) = self.of_jid.get(&jid).copied() {
                    self.remove_salts(key);
                }
                self.made.note(jid, ());
            }
            Item::Salts(salts) => {
                if salts.certain {
                    self.pool.began(&salts.jid, salts.at);
                }
                self.take_salts(salts);
            }
            Item::Ended { jid, at } => self.pool.ended(&jid, at),
            Item::Load { jid, act } => match self.of_jid.get(&jid).copied() {
                Some(key) => {
                    let is_unjudged = self.unjudged.contains(&key);
                    if let Some(salts) = self.remove_salts(key) {
                        self.put_salts(with_load(salts, act));
                    }
                    if is_unjudged && self.salts.contains_key(&key) {
                        self.unjudged.insert(key);
                    }
                }
                None => self.loads.note(jid, act),
            },
            Item::Gap { begin, end } => {
                self.gaps.push_back((begin, end));
                if self.gaps.len() > REACTOR_SHADOW_WAITING_MAX / 100 {
                    self.gaps.pop_front();
                }
            }
        }
        while self.ours.len() + self.salts.len() + self.failed.len() > REACTOR_SHADOW_WAITING_MAX
            || self.bytes > REACTOR_SHADOW_WAITING_BYTES
        {
            let ours = self.ours.keys().next().copied();
            let salts = self.salts.keys().next().copied();
            self.hurried += 1;
            match (ours, salts) {
                (Some(ours), Some(salts)) if salts.0 < ours.0 => self.judge_salts(salts, tell),
                (Some(ours), _) => self.judge_ours(ours, tell),
                (None, Some(salts)) => self.judge_salts(salts, tell),
                (None, None) => match self.failed.keys().next().copied() {
                    Some(failed) => self.judge_failed(failed, tell),
                    None => break,
                },
            }
        }
    }

    fn take_ours(&mut self, ours: Ours, tell: &mut impl FnMut(Comparison)) {
        // A call that was dead-lettered while the reactor acts is no matter of shadow.
        if ours.at < self.since || ours.at >= self.until || (!ours.barred.is_empty() && !self.is_shadow()) {
            return;
        }
        if ours.act.client == "caller" {
            return tell(Comparison::Unseen(ours, "a caller leaves nothing on the master's bus"));
        }
        let (alike, key) = (ours.act.key(), (ours.at, ours.reaction, ours.nth));
        *self.ours_alike.entry(alike).or_default() += 1;
        if ours.barred.is_empty() {
            self.ours_free.entry(alike).or_default().insert(key);
        }
        self.bytes += ours.act.weight();
        self.ours.insert(key, ours);
    }

    fn take_salts(&mut self, mut salts: Salts) {
        if self.made.of_jid.contains_key(&salts.jid) || self.of_jid.contains_key(&salts.jid) {
            return;
        }
        if let Some(load) = self.loads.of_jid.remove(&salts.jid) {
            salts = match with_load(salts, load) {
                Some(salts) => salts,
                None => return,
            };
        }
        // By what the log has said up to here: later it may say otherwise.
        let in_shadow = self.shadow_since.is_some_and(|since| salts.at >= later(since, self.window));
        if !in_shadow || salts.at < self.since || salts.at >= self.until {
            self.unjudged.insert((salts.at, salts.seq));
        }
        self.put_salts(Some(salts));
    }

    fn put_salts(&mut self, salts: Option<Salts>) {
        let Some(salts) = salts else { return };
        let key = (salts.at, salts.seq);
        self.bytes += salts.act.weight();
        self.alike.entry(salts.act.key()).or_default().insert(key);
        let fun = (salts.act.client.clone(), salts.act.fun.clone());
        self.of_fun.entry(fun).or_default().insert(key);
        self.of_jid.insert(salts.jid.clone(), key);
        self.salts.insert(key, salts);
    }

    fn remove_salts(&mut self, key: SaltKey) -> Option<Salts> {
        let salts = self.salts.remove(&key)?;
        self.bytes -= salts.act.weight();
        let alike = salts.act.key();
        if let Some(set) = self.alike.get_mut(&alike) {
            set.remove(&key);
            if set.is_empty() {
                self.alike.remove(&alike);
            }
        }
        let fun = (salts.act.client.clone(), salts.act.fun.clone());
        if let Some(set) = self.of_fun.get_mut(&fun) {
            set.remove(&key);
            if set.is_empty() {
                self.of_fun.remove(&fun);
            }
        }
        self.of_jid.remove(&salts.jid);
        self.unjudged.remove(&key);
        Some(salts)
    }

    /// Judges what nothing can come for any more, now that the log has got so far.
    pub fn pass(&mut self, now: Micros, tell: &mut impl FnMut(Comparison)) {
        let late = micros(REACTOR_SHADOW_LATE);
        self.pool.pass(now);
        // Those that wait for Salt's pool are passed by.
        let over: Vec<OurKey> = self
            .ours
            .range(..=(later(now, -(self.window + late)), SeqNo(0), 0))
            .filter(|(_, ours)| later(self.until_when(ours), late) < now)
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            self.judge_ours(key, tell);
        }
        let mut of_pool = self.ours.iter().filter(|(_, ours)| is_of_pool(ours));
        let waits_since = if self.pool.was_full() { of_pool.next().map(|(key, _)| key.0) } else { None };
        // Whatever of ours could belong to it has been judged by then, even if its record came late.
        while let Some(key) = self.salts.keys().next().copied()
            && later(key.0, 2 * (self.window + late)) < now
            && waits_since.is_none_or(|since| key.0 < later(since, -micros(REACTOR_SHADOW_EARLY)))
        {
            self.judge_salts(key, tell);
        }
        // All of Salt's calls that could belong to it have been looked at.
        while let Some(key) = self.failed.keys().next().copied()
            && later(key.0, 3 * (self.window + late)) < now
        {
            self.judge_failed(key, tell);
        }
        while self.gaps.front().is_some_and(|(_, end)| later(*end, 4 * (self.window + late)) < now) {
            self.gaps.pop_front();
        }
    }

    /// Judges what is waiting as if nothing would come any more.
    pub fn finish(&mut self, tell: &mut impl FnMut(Comparison)) {
        self.pass(Micros(i64::MAX), tell);
    }

    /// Until when Salt's reactor may do what ours would have done: longer while its pool is full.
    fn until_when(&self, ours: &Ours) -> Micros {
        if is_of_pool(ours) { self.pool.extended(ours.at, self.window) } else { later(ours.at, self.window) }
    }

    fn judge_ours(&mut self, key: OurKey, tell: &mut impl FnMut(Comparison)) {
        let Some(ours) = self.ours.remove(&key) else { return };
        self.bytes -= ours.act.weight();
        let alike = ours.act.key();
        if let Some(count) = self.ours_alike.get_mut(&alike) {
            *count -= 1;
            if *count == 0 {
                self.ours_alike.remove(&alike);
            }
        }
        if let Some(free) = self.ours_free.get_mut(&alike) {
            free.remove(&key);
            if free.is_empty() {
                self.ours_free.remove(&alike);
            }
        }
        let (from, to) = (later(ours.at, -micros(REACTOR_SHADOW_EARLY)), self.until_when(&ours));
        let within = (from, SeqNo(0))..=(to, SeqNo(u64::MAX));
        let is_barred = !ours.barred.is_empty();
        let same = self.alike.get(&alike).and_then(|set| {
            let mut equal = set.range(within.clone());
            let first = *equal.clone().next()?;
            // One that is not made takes only what is left over by those that are.
            let claimed = if is_barred { self.claimed(alike, first) } else { 0 };
            equal.nth(claimed).map(|_| first)
        });
        let best = same.or_else(|| if is_barred { None } else { self.likest(&ours, within) });
        if let Some(salts) = best.and_then(|key| self.remove_salts(key)) {
            if is_barred {
                return tell(Comparison::OnlySalts(salts, Some(Box::new(ours))));
            }
            let compared = ours.act.compare(&salts.act);
            return tell(if compared.differences.is_empty() {
                Comparison::Same(ours, salts, compared.unseen)
            } else {
                Comparison::Differs(ours, salts, compared.differences)
            });
        }
        if is_barred {
            return;
        }
        let in_a_gap = self.gaps.iter().any(|(begin, end)| *begin <= to && *end >= from);
        tell(if in_a_gap {
            Comparison::Unseen(ours, "events of the bus were lost meanwhile")
        } else {
            Comparison::OnlyOurs(ours)
        });
    }

    /// How many calls of ours that would be made, and are equal to one of Salt's, may be that one.
    fn claimed(&self, alike: u64, (at, _): SaltKey) -> usize {
        let until = (later(at, micros(REACTOR_SHADOW_EARLY)), SeqNo(u64::MAX), u32::MAX);
        self.ours_free.get(&alike).map_or(0, |free| free.range(..=until).take(LOOKED_AT).count())
    }

    /// The one of Salt's that has the most in common with ours, and is no other one's equal.
    fn likest(&self, ours: &Ours, within: std::ops::RangeInclusive<SaltKey>) -> Option<SaltKey> {
        let fun = (ours.act.client.clone(), ours.act.fun.clone());
        let of_fun = self.of_fun.get(&fun).into_iter().flat_map(|set| set.range(within.clone()));
        // Of jobs whose load is there the ID and the file are known, even if they run another function.
        let by_name =
            self.salts.range(within.clone()).take(LOOKED_AT).filter(|(_, salts)| {
                salts.certain && !salts.act.id.is_empty() && salts.act.fun != ours.act.fun
            });
        let mut best: Option<(usize, SaltKey)> = None;
        for key in of_fun.take(LOOKED_AT).chain(by_name.map(|(key, _)| key)) {
            let Some(salts) = self.salts.get(key) else { continue };
            if self.ours_alike.contains_key(&salts.act.key()) || !is_like(&ours.act, salts) {
                continue;
            }
            let fields = ours.act.compare(&salts.act).differences.len();
            if best.is_none_or(|(known, _)| fields < known) {
                best = Some((fields, *key));
            }
        }
        best.map(|(_, key)| key)
    }

    fn judge_salts(&mut self, key: SaltKey, tell: &mut impl FnMut(Comparison)) {
        let is_judged = !self.unjudged.contains(&key);
        let Some(salts) = self.remove_salts(key).filter(|_| is_judged) else { return };
        if let Some(failed) = self.failed_for(&salts) {
            return tell(Comparison::OursFailed(failed, Some(Box::new(salts))));
        }
        tell(if salts.certain {
            Comparison::OnlySalts(salts, None)
        } else {
            Comparison::Unattributed(salts)
        });
    }
}

impl Comparer {
    /// The reaction of ours that failed, and in place of which Salt made a call: of the same file, if the call shows one; else the latest
    /// before it.
    fn failed_for(&mut self, salts: &Salts) -> Option<Failed> {
        if !salts.certain {
            return None;
        }
        let from = (later(salts.at, -self.window), SeqNo(0));
        let to = (later(salts.at, micros(REACTOR_SHADOW_EARLY)), SeqNo(u64::MAX));
        let is_of = |failed: &Failed| {
            let file = base(&salts.act.sls);
            file.is_empty()
                || failed.failures.iter().any(|one| base(&one.at.file) == file || one.at.file.is_empty())
        };
        let within = self.failed.range_mut(from..=to).rev().take(LOOKED_AT);
        let (failed, is_told) = within.map(|(_, of)| of).find(|(failed, _)| is_of(failed))?;
        *is_told = true;
        Some(failed.clone())
    }

    fn judge_failed(&mut self, key: (Micros, SeqNo), tell: &mut impl FnMut(Comparison)) {
        let Some((failed, is_told)) = self.failed.remove(&key) else { return };
        self.bytes -= failed_weight(&failed);
        if !is_told {
            tell(Comparison::OursFailed(failed, None));
        }
    }
}

/// Some number of bytes that it takes, about.
fn failed_weight(failed: &Failed) -> usize {
    200 + failed.failures.iter().map(|one| 100 + one.at.file.len() + one.cause.len()).sum::<usize>()
}

/// How many of Salt's are held against one of ours.
const LOOKED_AT: usize = 1_000;

/// Is it worth saying that they differ, rather than that they have nothing to do with each other?
fn is_like(ours: &Act, salts: &Salts) -> bool {
    let theirs = &salts.act;
    if ours.client != theirs.client {
        return false;
    }
    if !theirs.id.is_empty() && ours.id == theirs.id && base(&ours.sls) == base(&theirs.sls) {
        return true;
    }
    // A job must have more in common than its function: every other one is a `state.apply`.
    ours.fun == theirs.fun
        && (ours.client != "local"
            || (ours.tgt == theirs.tgt && ours.tgt_type == theirs.tgt_type)
            || (ours.args == theirs.args && ours.args.as_ref().is_some_and(|args| !args.is_empty())))
}

/// Does Salt's reactor run it in its pool?
fn is_of_pool(ours: &Ours) -> bool {
    matches!(ours.act.client.as_str(), "runner" | "wheel")
}

/// A file from `salt://` lies in each one's own cache.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What the load of a job adds: who published it. None if it was no reactor.
fn with_load(salts: Salts, load: Act) -> Option<Salts> {
    if load.id.is_empty() && load.sls.is_empty() {
        return None;
    }
    let act = Act { load: load.load, id: load.id, sls: load.sls, ..salts.act };
    Some(Salts { act, certain: true, ..salts })
}
