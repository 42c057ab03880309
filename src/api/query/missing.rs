//! Why a minion has not returned a job: what the archive knows of it since.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::job::Job;
use super::minions::{MissingReturn, MissingReturns, missing_returns};
use super::others::Others;
use crate::base::clock::Micros;
use crate::base::limits::{CAUSE_MINIONS_SHOWN, MISSING_ENTRIES_SEEN};
use crate::base::named::named;
use crate::store::{StoreError, StoreView};
use crate::wire::call::id_text;
use crate::wire::msgpack::{self, Time, is_empty};

const FIND_JOB: &str = "saltutil.find_job";

/// What is known of a minion that has not returned a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Silence {
    /// Nothing was heard of it since before the job.
    #[default]
    Down,
    /// It has told `saltutil.find_job` that it still runs the job.
    Busy,
    /// It was heard since, and has not returned this job.
    Silent,
    /// The archive contains no event or return of it.
    NeverSeen,
}

named! {
    Silence {
        Down: "down",
        Busy: "busy",
        Silent: "silent",
        NeverSeen: "never_seen",
    }
}

answers! {
    /// Minions that have not returned, for the same reason.
    MissingGroup {
        why: Silence,
        count: u64,
        /// The first of them by id, up to a limit.
        minions: Vec<MissingMinion>,
    }
    /// A minion that has not returned.
    MissingMinion {
        id: String,
        /// The job that expects its return.
        jid: String,
        /// When it was heard last; null if it never was, or before what was looked at.
        since: Option<Time>,
    }
}

/// The missing minions of a job, the larger groups first.
pub(crate) fn missing_by_silence(
    store: &StoreView,
    (job, at): (&Job, Micros),
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<MissingGroup>, StoreError> {
    let missing = job.missing().into_iter().filter(|id| wanted(id));
    let expected = Expected { jid: &job.jid, at };
    grouped(store, missing.map(|id| (id, expected)).collect())
}

/// The job that expects a return.
#[derive(Debug, Clone, Copy)]
struct Expected<'a> {
    jid: &'a str,
    /// When it started.
    at: Micros,
}

/// The minions that have not returned one of the newest jobs since a time, and before another; of several jobs of a minion the newest counts.
pub(crate) fn missing_lately(
    store: &StoreView,
    others: &Others,
    (since, until): (Micros, Option<Micros>),
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<MissingGroup>, StoreError> {
    let is_meant = |at: Micros| at >= since && until.is_none_or(|until| at < until);
    let MissingReturns { by_minion, .. } = missing_returns(store, others, wanted)?;
    let mut newest = BTreeMap::new();
    for (id, missing) in &by_minion {
        let recent = missing.iter().find(|missing| is_meant(missing.at));
        if let Some(MissingReturn { at, run }) = recent {
            let expected = Expected {
                jid: &run.jid,
                at: *at,
            };
            newest.insert(id.as_str(), expected);
        }
    }

    grouped(store, newest)
}

/// Groups minions, each with the job that it has not returned.
fn grouped(
    store: &StoreView,
    missing: BTreeMap<&str, Expected<'_>>,
) -> Result<Vec<MissingGroup>, StoreError> {
    // The usual case.
    if missing.is_empty() {
        return Ok(Vec::new());
    }

    let Heard { at: heard, .. } = last_heard(store, &missing.keys().copied().collect())?;
    let busy = busy(store, &missing)?;
    let mut groups: BTreeMap<Silence, MissingGroup> = BTreeMap::new();
    for (id, expected) in missing {
        let at = heard.get(id).copied();
        let why = match at {
            // First, because a minion that runs the job may have been heard since then.
            _ if busy.contains(id) => Silence::Busy,
            None => Silence::NeverSeen,
            Some(at) if at > expected.at => Silence::Silent,
            Some(_) => Silence::Down,
        };

        let group = groups.entry(why).or_default();
        group.why = why;
        group.count += 1;
        if group.minions.len() < CAUSE_MINIONS_SHOWN {
            group.minions.push(MissingMinion {
                id: id.to_owned(),
                jid: expected.jid.to_owned(),
                since: at.map(Time),
            });
        }
    }

    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    Ok(groups)
}

/// When minions were heard last.
#[derive(Default)]
pub(super) struct Heard<'a> {
    pub(super) at: HashMap<&'a str, Micros>,
    /// Entries before this time were not examined; `None` if all were.
    pub(super) since: Option<Micros>,
}

/// When minions were heard last: by their latest jobs, of which there is an index, and by the newest entries.
pub(super) fn last_heard<'a>(
    store: &StoreView,
    ids: &BTreeSet<&'a str>,
) -> Result<Heard<'a>, StoreError> {
    // The usual case.
    if ids.is_empty() {
        return Ok(Heard::default());
    }

    let mut heard: HashMap<&str, Micros> = HashMap::new();

    let is_wanted = |minion: &[u8]| std::str::from_utf8(minion).is_ok_and(|id| ids.contains(id));
    for (row, _) in store.latest_jobs(&|_, minion| is_wanted(minion))? {
        let known = std::str::from_utf8(&row.minion)
            .ok()
            .and_then(|id| ids.get(id));
        if let (Some(id), Some(at)) = (known, row.jid.key().time()) {
            let last = heard.entry(*id).or_insert(at);
            *last = at.max(*last);
        }
    }

    let seen = store.last_seen(MISSING_ENTRIES_SEEN, Some(ids))?;
    for id in ids {
        if let Some(seen) = seen.minions.get(*id) {
            let last = heard.entry(*id).or_insert(seen.at);
            *last = seen.at.max(*last);
        }
    }
    Ok(Heard {
        at: heard,
        since: seen.since,
    })
}

/// The minions whose last answer to `saltutil.find_job` says that they run the job (`salt/modules/saltutil.py`).
fn busy<'a>(
    store: &StoreView,
    missing: &BTreeMap<&'a str, Expected<'_>>,
) -> Result<BTreeSet<&'a str>, StoreError> {
    let mut asked: BTreeMap<String, BTreeSet<&'a str>> = BTreeMap::new();
    let is_wanted = |fun: &[u8], minion: &[u8]| {
        fun == FIND_JOB.as_bytes()
            && std::str::from_utf8(minion).is_ok_and(|minion| missing.contains_key(minion))
    };
    for (row, _) in store.latest_jobs(&is_wanted)? {
        let named = std::str::from_utf8(&row.minion).ok();
        if let Some((id, _)) = named.and_then(|named| missing.get_key_value(named)) {
            asked.entry(row.jid.to_string()).or_default().insert(*id);
        }
    }

    let mut busy = BTreeSet::new();
    for (jid, minions) in asked {
        let Some(job) = Job::read_load(store, &jid)? else {
            continue;
        };
        // Which job was asked for: the first argument.
        let args = msgpack::get(&job.load, "arg").or_else(|| job.result_args());
        let about = msgpack::elements(args.unwrap_or_default())
            .next()
            .and_then(id_text);
        let is_about = |id: &&str| about.as_deref() == missing.get(id).map(|expected| expected.jid);
        let minions: Vec<&str> = minions.into_iter().filter(is_about).collect();
        job.each_answer(store, &Others::default(), &minions, |answer| {
            let is_running = answer.get("return").is_some_and(|runs| !is_empty(runs));
            if let Some((id, _)) = missing
                .get_key_value(&*answer.entry.minion)
                .filter(|_| is_running)
            {
                busy.insert(*id);
            }
        })?;
    }
    Ok(busy)
}
