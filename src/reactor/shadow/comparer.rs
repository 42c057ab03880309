//! Matching of saltcellar's calls with Salt's.
//!
//! Calls of both sides wait until no matching call can come any more, and are then compared in the
//! order of events. An equal call of Salt's within the window is a match. Otherwise the most
//! similar remaining call is reported as different, and without one the call belongs to one side
//! only. All timestamps come from the log, therefore the result does not depend on the time of the
//! comparison.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::item::{FailedReaction, OurCall, SaltsCall, ShadowItem};
use super::observed_call::{Difference, ObservedCall};
use super::pool::Pool;
use crate::base::clock::Micros;
use crate::base::limits::{
    REACTOR_SHADOW_EARLY, REACTOR_SHADOW_LATE, REACTOR_SHADOW_WAITING_BYTES,
    REACTOR_SHADOW_WAITING_MAX, REACTOR_SHADOW_WINDOW_MAX,
};
use crate::model::SeqNo;
use crate::reactor::latest::LatestByJid;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Comparison {
    /// Salt made the same call. The listed fields are unknown.
    Same(OurCall, SaltsCall, Vec<String>),
    /// Salt made a similar call.
    Differs(OurCall, SaltsCall, Vec<Difference>),
    /// Salt made no similar call.
    OnlyOurs(OurCall),
    /// Only Salt made the call; with saltcellar's prevented call, if there is one.
    OnlySalts(SaltsCall, Option<Box<OurCall>>),
    /// Our rendering failed; with the call that Salt made instead, if it is known.
    OursFailed(FailedReaction, Option<Box<SaltsCall>>),
    /// Salt's side cannot be known, for that reason.
    Unseen(OurCall, &'static str),
    /// A job of an unknown publisher: Salt's reactor, or a user.
    Unattributed(SaltsCall),
}

/// `(time, sequence number, nth)`: the order in which saltcellar's calls are compared.
type OurKey = (Micros, SeqNo, u32);
type SaltKey = (Micros, SeqNo);

#[derive(Debug, Default)]
pub(crate) struct Comparer {
    window: Duration,
    pool: Pool,
    /// Start of the range: earlier calls of Salt's are not reported.
    since: Micros,
    until: Micros,
    /// Start of shadow mode; `None` if saltcellar's reactor is active.
    shadow_since: Option<Micros>,
    ours: BTreeMap<OurKey, OurCall>,
    /// Waiting saltcellar calls, and the calls among them that would be made, by call key.
    ours_alike: BTreeSet<(u64, OurKey)>,
    ours_free: BTreeSet<(u64, OurKey)>,
    /// Failed saltcellar reactions, and whether one was reported with a call of Salt's.
    failed: BTreeMap<(Micros, SeqNo), (FailedReaction, bool)>,
    salts: BTreeMap<SaltKey, SaltsCall>,
    /// Waiting calls of Salt's that are not reported without a match, because their event may be
    /// outside the log range.
    excluded: BTreeSet<SaltKey>,
    /// Waiting calls of Salt's by call key, and by the hash of client and function.
    salts_alike: BTreeSet<(u64, SaltKey)>,
    salts_of_fun: BTreeSet<(u64, SaltKey)>,
    of_jid: HashMap<String, SaltKey>,
    /// Loads read before the job's event.
    loads: LatestByJid<ObservedCall, JIDS_MAX>,
    made: LatestByJid<(), JIDS_MAX>,
    gaps: VecDeque<(Micros, Micros)>,
    /// Approximate size of the waiting calls.
    bytes: usize,
    results: Vec<Comparison>,
    /// Number of calls compared before the end of their window, because too many were waiting.
    pub(crate) compared_early: u64,
}

/// Jobs whose load was read first, or that are saltcellar's.
const JIDS_MAX: usize = REACTOR_SHADOW_WAITING_MAX / 10;

/// Lower than any saltcellar call.
const FIRST: OurKey = (Micros(i64::MIN), SeqNo(0), 0);

impl Comparer {
    pub(crate) fn new(window: Duration, workers: usize, since: Micros, until: Micros) -> Self {
        Self {
            window: window.min(REACTOR_SHADOW_WINDOW_MAX),
            pool: Pool::new(workers),
            since,
            until,
            ..Self::default()
        }
    }

    /// Length of the window in which a call of Salt's can match.
    pub(crate) fn window(&self) -> Duration {
        self.window
    }

    /// Number of runners and wheel functions that Salt's reactor runs concurrently.
    pub(crate) fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Number of waiting calls: ours, Salt's.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.ours.len() + self.failed.len(), self.salts.len())
    }

    /// True if saltcellar's reactor is in shadow at the current position of the log.
    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow_since.is_some()
    }

    /// Adds the next item of the log; returns the comparisons for which there is no more room to
    /// wait.
    pub(crate) fn take(&mut self, item: ShadowItem) -> Vec<Comparison> {
        match item {
            ShadowItem::Mode {
                at,
                shadow,
                started,
            } => {
                // A start begins a new phase, because what Salt did while the daemon was down has
                // no counterpart.
                if !shadow {
                    self.shadow_since = None;
                } else if started || self.shadow_since.is_none() {
                    self.shadow_since = Some(at);
                }
            }
            ShadowItem::Ours(ours) => self.take_ours(ours),
            ShadowItem::Failed(failed) => {
                if failed.at >= self.since && failed.at < self.until && self.is_shadow() {
                    self.bytes += failed_weight(&failed);
                    self.failed
                        .insert((failed.at, failed.reaction), (failed, false));
                }
            }
            ShadowItem::Made { jid } => {
                // A job that saltcellar's reactor published is no call of Salt's.
                if let Some(key) = self.of_jid.get(&jid).copied() {
                    self.remove_salts(key);
                }
                self.made.insert(&jid, ());
            }
            ShadowItem::Salts(salts) => {
                if salts.certain {
                    self.pool.began(&salts.jid, salts.at);
                }
                self.take_salts(salts);
            }
            ShadowItem::Ended { jid, at } => self.pool.ended(&jid, at),
            ShadowItem::Load { jid, call } => match self.of_jid.get(&jid).copied() {
                Some(key) => {
                    // Putting the call back would forget that it is excluded.
                    let is_excluded = self.excluded.contains(&key);
                    if let Some(salts) = self.remove_salts(key) {
                        self.put_salts(with_load(salts, call));
                    }
                    if is_excluded && self.salts.contains_key(&key) {
                        self.excluded.insert(key);
                    }
                }
                None => self.loads.insert(&jid, call),
            },
            ShadowItem::Gap { begin, end } => {
                self.gaps.push_back((begin, end));
                if self.gaps.len() > REACTOR_SHADOW_WAITING_MAX / 100 {
                    self.gaps.pop_front();
                }
            }
        }

        // Beyond the limits the oldest call is compared before its window ends.
        while self.ours.len() + self.salts.len() + self.failed.len() > REACTOR_SHADOW_WAITING_MAX
            || self.bytes > REACTOR_SHADOW_WAITING_BYTES
        {
            let ours = self.ours.keys().next().copied();
            let salts = self.salts.keys().next().copied();
            self.compared_early += 1;
            match (ours, salts) {
                (Some(ours), Some(salts)) if salts.0 < ours.0 => self.compare_salts(salts),
                (Some(ours), _) => self.compare_ours(ours),
                (None, Some(salts)) => self.compare_salts(salts),
                (None, None) => match self.failed.keys().next().copied() {
                    Some(failed) => self.compare_failed(failed),
                    None => break,
                },
            }
        }

        std::mem::take(&mut self.results)
    }

    fn take_ours(&mut self, ours: OurCall) {
        // Dead-lettered calls of an active reactor are not compared.
        if ours.at < self.since
            || ours.at >= self.until
            || (!ours.prevented_by.is_empty() && !self.is_shadow())
        {
            return;
        }

        if ours.call.client == "caller" {
            let why = "caller functions leave no trace on the master's bus";
            return self.results.push(Comparison::Unseen(ours, why));
        }

        let (alike, key) = (ours.call.key(), (ours.at, ours.reaction, ours.nth));
        self.ours_alike.insert((alike, key));
        if ours.prevented_by.is_empty() {
            self.ours_free.insert((alike, key));
        }

        self.bytes += ours.call.weight();
        self.ours.insert(key, ours);
    }

    fn take_salts(&mut self, mut salts: SaltsCall) {
        // A saltcellar job, or one that waits already.
        if self.made.get(&salts.jid).is_some() || self.of_jid.contains_key(&salts.jid) {
            return;
        }

        if let Some(load) = self.loads.remove(&salts.jid) {
            salts = match with_load(salts, load) {
                Some(salts) => salts,
                // Its load shows that no reactor published it.
                None => return,
            };
        }

        // By the mode at this position of the log; it may change later.
        let in_shadow = self
            .shadow_since
            .is_some_and(|since| salts.at >= since.after(self.window));
        if !in_shadow || salts.at < self.since || salts.at >= self.until {
            self.excluded.insert((salts.at, salts.seq));
        }

        self.put_salts(Some(salts));
    }

    fn put_salts(&mut self, salts: Option<SaltsCall>) {
        let Some(salts) = salts else { return };
        let key = (salts.at, salts.seq);
        self.bytes += salts.call.weight();
        self.salts_alike.insert((salts.call.key(), key));
        self.salts_of_fun.insert((salts.call.fun_key(), key));
        self.of_jid.insert(salts.jid.clone(), key);
        self.salts.insert(key, salts);
    }

    fn remove_salts(&mut self, key: SaltKey) -> Option<SaltsCall> {
        let salts = self.salts.remove(&key)?;
        self.bytes -= salts.call.weight();
        self.salts_alike.remove(&(salts.call.key(), key));
        self.salts_of_fun.remove(&(salts.call.fun_key(), key));
        self.of_jid.remove(&salts.jid);
        self.excluded.remove(&key);
        Some(salts)
    }

    /// Compares the calls whose window is over at log time `now`.
    pub(crate) fn pass(&mut self, now: Micros) -> Vec<Comparison> {
        let late = REACTOR_SHADOW_LATE;
        self.pool.pass(now);

        // The window is longer for calls that wait for Salt's pool.
        let over: Vec<OurKey> = self
            .ours
            .range(..=(now.before(self.window + late), SeqNo(0), 0))
            .filter(|(_, ours)| self.window_end(ours).after(late) < now)
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            self.compare_ours(key);
        }

        // While Salt's pool was full, later calls of Salt's may still match a waiting one of saltcellar's.
        let mut of_pool = self.ours.iter().filter(|(_, ours)| uses_pool(ours));
        let waits_since = if self.pool.was_full() {
            of_pool.next().map(|(key, _)| key.0)
        } else {
            None
        };

        // All matching saltcellar calls have been compared by then, even if their records came late.
        while let Some(key) = self.salts.keys().next().copied()
            && key.0.after(2 * (self.window + late)) < now
            && waits_since.is_none_or(|since| key.0 < since.before(REACTOR_SHADOW_EARLY))
        {
            self.compare_salts(key);
        }

        // All matching calls of Salt's have been compared by then.
        while let Some(key) = self.failed.keys().next().copied()
            && key.0.after(3 * (self.window + late)) < now
        {
            self.compare_failed(key);
        }

        // No waiting call is so old that it needs them.
        while self
            .gaps
            .front()
            .is_some_and(|(_, end)| end.after(4 * (self.window + late)) < now)
        {
            self.gaps.pop_front();
        }

        std::mem::take(&mut self.results)
    }

    /// End of a call's window, extended while Salt's pool is full.
    fn window_end(&self, ours: &OurCall) -> Micros {
        if uses_pool(ours) {
            self.pool.extended(ours.at, self.window)
        } else {
            ours.at.after(self.window)
        }
    }

    fn compare_ours(&mut self, key: OurKey) {
        let Some(ours) = self.ours.remove(&key) else {
            return;
        };

        self.bytes -= ours.call.weight();
        let alike = ours.call.key();
        self.ours_alike.remove(&(alike, key));
        self.ours_free.remove(&(alike, key));

        let (from, to) = (ours.at.before(REACTOR_SHADOW_EARLY), self.window_end(&ours));
        let within = (from, SeqNo(0))..=(to, SeqNo(u64::MAX));
        let is_prevented = !ours.prevented_by.is_empty();

        let same = {
            let mut equal = ranged(&self.salts_alike, alike, &within);
            // A prevented call matches only a call that is not needed by those that are made.
            equal.clone().next().filter(|first| {
                let claimed = if is_prevented {
                    self.claimed(alike, *first)
                } else {
                    0
                };
                equal.nth(claimed).is_some()
            })
        };

        // Only an equal call shows that Salt made what would be prevented here.
        let best = same.or_else(|| {
            if is_prevented {
                None
            } else {
                self.most_similar(&ours, &within)
            }
        });

        if let Some(salts) = best.and_then(|key| self.remove_salts(key)) {
            if is_prevented {
                return self
                    .results
                    .push(Comparison::OnlySalts(salts, Some(Box::new(ours))));
            }

            let compared = ours.call.compare(&salts.call);
            return self.results.push(if compared.differences.is_empty() {
                Comparison::Same(ours, salts, compared.unseen)
            } else {
                Comparison::Differs(ours, salts, compared.differences)
            });
        }

        // A prevented call that Salt did not make either is no difference.
        if is_prevented {
            return;
        }

        let in_a_gap = self
            .gaps
            .iter()
            .any(|(begin, end)| *begin <= to && *end >= from);

        self.results.push(if in_a_gap {
            Comparison::Unseen(ours, "bus events were lost in that time")
        } else {
            Comparison::OnlyOurs(ours)
        });
    }

    /// Number of saltcellar's calls that would be made and can match this equal call of Salt's.
    fn claimed(&self, alike: u64, (at, _): SaltKey) -> usize {
        let until = (at.after(REACTOR_SHADOW_EARLY), SeqNo(u64::MAX), u32::MAX);
        self.ours_free
            .range((alike, FIRST)..=(alike, until))
            .take(CANDIDATES_MAX)
            .count()
    }

    /// The call of Salt's that differs in the fewest fields and equals no other saltcellar call.
    fn most_similar(&self, ours: &OurCall, within: &RangeInclusive<SaltKey>) -> Option<SaltKey> {
        let of_fun = ranged(&self.salts_of_fun, ours.call.fun_key(), within);

        // Jobs with a known load can match by ID and file, even with another function.
        let by_name = self
            .salts
            .range(within.clone())
            .take(CANDIDATES_MAX)
            .filter(|(_, salts)| {
                salts.certain && !salts.call.id.is_empty() && salts.call.fun != ours.call.fun
            });

        let mut best: Option<(usize, SaltKey)> = None;
        for key in of_fun
            .take(CANDIDATES_MAX)
            .chain(by_name.map(|(key, _)| *key))
        {
            let Some(salts) = self.salts.get(&key) else {
                continue;
            };

            // A call that equals another one of saltcellar's is left to that one.
            let alike = salts.call.key();
            let is_of_others = self
                .ours_alike
                .range((alike, FIRST)..)
                .next()
                .is_some_and(|(of, _)| *of == alike);

            if is_of_others || !is_like(&ours.call, salts) {
                continue;
            }

            let fields = ours.call.compare(&salts.call).differences.len();
            if best.is_none_or(|(known, _)| fields < known) {
                best = Some((fields, key));
            }
        }

        best.map(|(_, key)| key)
    }

    fn compare_salts(&mut self, key: SaltKey) {
        let is_included = !self.excluded.contains(&key);
        let Some(salts) = self.remove_salts(key).filter(|_| is_included) else {
            return;
        };

        // Salt may have made what failed to render here.
        if let Some(failed) = self.failed_for(&salts) {
            return self
                .results
                .push(Comparison::OursFailed(failed, Some(Box::new(salts))));
        }

        self.results.push(if salts.certain {
            Comparison::OnlySalts(salts, None)
        } else {
            Comparison::Unattributed(salts)
        });
    }

    /// The failed saltcellar reaction that a call of Salt's belongs to: with the same file if that is
    /// known, otherwise the latest.
    fn failed_for(&mut self, salts: &SaltsCall) -> Option<FailedReaction> {
        // A job of an unknown publisher says nothing about the reaction.
        if !salts.certain {
            return None;
        }

        let from = (salts.at.before(self.window), SeqNo(0));
        let to = (salts.at.after(REACTOR_SHADOW_EARLY), SeqNo(u64::MAX));

        let is_of = |failed: &FailedReaction| {
            let file = base(&salts.call.sls);
            file.is_empty()
                || failed
                    .failures
                    .iter()
                    .any(|one| base(&one.at.file) == file || one.at.file.is_empty())
        };

        let within = self.failed.range_mut(from..=to).rev().take(CANDIDATES_MAX);
        let (failed, is_reported) = within.map(|(_, of)| of).find(|(failed, _)| is_of(failed))?;

        *is_reported = true;
        Some(failed.clone())
    }

    fn compare_failed(&mut self, key: (Micros, SeqNo)) {
        let Some((failed, is_reported)) = self.failed.remove(&key) else {
            return;
        };
        self.bytes -= failed_weight(&failed);
        if !is_reported {
            self.results.push(Comparison::OursFailed(failed, None));
        }
    }
}

/// The calls of a set with this hash and within this range.
fn ranged<'a>(
    set: &'a BTreeSet<(u64, SaltKey)>,
    hash: u64,
    within: &RangeInclusive<SaltKey>,
) -> impl Iterator<Item = SaltKey> + Clone + use<'a> {
    set.range((hash, *within.start())..=(hash, *within.end()))
        .map(|(_, key)| *key)
}

fn failed_weight(failed: &FailedReaction) -> usize {
    200 + failed
        .failures
        .iter()
        .map(|one| 100 + one.at.file.len() + one.cause.len())
        .sum::<usize>()
}

/// Maximum number of candidates per call.
const CANDIDATES_MAX: usize = 1_000;

/// True if two calls are similar enough to be reported as different.
fn is_like(ours: &ObservedCall, salts: &SaltsCall) -> bool {
    let theirs = &salts.call;
    if ours.client != theirs.client {
        return false;
    }

    if !theirs.id.is_empty() && ours.id == theirs.id && base(&ours.sls) == base(&theirs.sls) {
        return true;
    }

    // Jobs need more in common than the function, because most are a `state.apply`.
    ours.fun == theirs.fun
        && (ours.client != "local"
            || (ours.tgt == theirs.tgt && ours.tgt_type == theirs.tgt_type)
            || (ours.args == theirs.args
                && ours.args.as_ref().is_some_and(|args| !args.is_empty())))
}

/// True if Salt's reactor runs the call in its pool.
fn uses_pool(ours: &OurCall) -> bool {
    matches!(ours.call.client.as_str(), "runner" | "wheel")
}

/// The file name, because each daemon caches `salt://` files in its own directory.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Adds the load of a job. `None` if a reactor did not publish it.
fn with_load(salts: SaltsCall, load: ObservedCall) -> Option<SaltsCall> {
    if load.id.is_empty() && load.sls.is_empty() {
        return None;
    }
    let call = ObservedCall {
        load: load.load,
        id: load.id,
        sls: load.sls,
        ..salts.call
    };
    Some(SaltsCall {
        call,
        certain: true,
        ..salts
    })
}
