//! What is known of the other masters of a shared history while a call is answered: whether an answer that is not here may be there.
//!
//! # Invariant
//!
//! A minion without an answer is missing only if no master that may have its answer is behind. Without a shared history none is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::job::{Behind, Job};
use crate::base::clock::Micros;
use crate::base::limits::{CLUSTER_SKEW_MAX, MINIONS_ENTRIES_SEEN};
use crate::cluster::peers::PeerView;
use crate::store::{Seen, StoreError, StoreView};

/// The other masters. Clones share the result of a lookup, therefore a call looks each thing up
/// only once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Others(Option<Arc<Known>>);

#[derive(Debug)]
struct Known {
    /// By master: its history is here up to this time of the local clock.
    complete: BTreeMap<String, Micros>,
    /// Beginning with the master that is furthest behind.
    behind: Vec<Behind>,
    /// The latest entry of each minion.
    seen: OnceLock<HashMap<String, Seen>>,
}

impl Others {
    /// `window`: the stream keeps messages for this time. A master that was away for longer counts as gone. Otherwise no answer
    /// would ever be missing again.
    pub(crate) fn of(masters: Vec<PeerView>, window: Duration) -> Self {
        let mut known = Known {
            complete: BTreeMap::new(),
            behind: Vec::new(),
            seen: OnceLock::new(),
        };
        for master in masters {
            let skew = master.skew.unwrap_or(0);
            // The other master's time in the time of this host.
            let here = Micros(master.complete.0.saturating_add(skew));
            known.complete.insert(master.name.clone(), here);

            let is_behind = !master.is_complete() && !master.is_gone(window);
            if let Some(behind) = master.behind.filter(|_| is_behind) {
                known.behind.push(Behind {
                    master: master.name,
                    behind,
                });
            }
        }
        known
            .behind
            .sort_by_key(|one| std::cmp::Reverse(one.behind));
        Self(Some(Arc::new(known)))
    }

    /// Says of a job what is known: which answers of peers their own masters did not confirm, and of which minions it is unknown whether they
    /// answered.
    pub(crate) fn judge(&self, store: &StoreView, job: &mut Job) -> Result<(), StoreError> {
        self.settle(job);
        let Some(known) = self.0.as_ref().filter(|known| !known.behind.is_empty()) else {
            return Ok(());
        };

        let missing: Vec<String> = job.missing().into_iter().map(str::to_owned).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let seen = known.seen(store)?;
        for minion in missing {
            let master = seen.get(&minion).map(|seen| seen.origin.as_str());
            if let Some(behind) = known.may_have(master, &job.origin) {
                job.unknown.insert(minion, behind.clone());
            }
        }
        Ok(())
    }

    /// The part of [`Others::judge`] that is about answers. Once the history of a peer is here, an answer that no call confirmed there is one
    /// that was seen on a bus only, as on that peer.
    pub(crate) fn settle(&self, job: &mut Job) {
        if let Some(known) = &self.0 {
            job.settle_peers(|master, at| known.has(master, at));
        }
    }
}

impl Known {
    /// Whether the history of a master is here beyond an entry of this time.
    fn has(&self, master: &str, at: Micros) -> bool {
        // The call that confirms an answer follows the event about it, and clocks that differ by less are not known to do so.
        let margin = i64::try_from(CLUSTER_SKEW_MAX.as_micros()).unwrap_or(i64::MAX);
        let upto = self.complete.get(master);
        upto.is_some_and(|upto| upto.0.saturating_sub(margin) > at.0)
    }

    /// The master that may have the answer of a minion and is behind. `master` is the minion's master, and `publisher` published the job. A
    /// minion with several masters answers the master that asked.
    fn may_have(&self, master: Option<&str>, publisher: &str) -> Option<&Behind> {
        let named = |name: &str| self.behind.iter().find(|one| one.master == name);
        match master {
            Some(master) => named(master).or_else(|| named(publisher)),
            None => self.behind.first(),
        }
    }

    fn seen(&self, store: &StoreView) -> Result<&HashMap<String, Seen>, StoreError> {
        if let Some(seen) = self.seen.get() {
            return Ok(seen);
        }
        let found = store.last_seen(MINIONS_ENTRIES_SEEN, None)?;
        Ok(self.seen.get_or_init(|| found.minions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(7 * 86_400);

    fn master(name: &str, behind_s: u64) -> PeerView {
        PeerView {
            name: name.to_owned(),
            behind: Some(Duration::from_secs(behind_s)),
            complete: Micros(100_000_000),
            is_heard: true,
            heard_ago: Some(Duration::ZERO),
            skew: None,
            slot: None,
            version: None,
            entries: 0,
            rejected: 0,
            rejection: None,
            missing: 0,
        }
    }

    fn known(masters: Vec<PeerView>) -> Arc<Known> {
        Others::of(masters, WINDOW).0.unwrap()
    }

    #[test]
    fn an_answer_may_be_at_the_master_of_its_minion_or_of_the_job_if_that_is_behind() {
        let all = known(vec![master("b", 240), master("c", 600), master("d", 2)]);
        let may_have = |of_minion: Option<&str>, publisher: &str| {
            let behind = all.may_have(of_minion, publisher);
            behind.map(|one| (one.master.as_str(), one.behind.as_secs()))
        };
        assert_eq!(may_have(Some("b"), ""), Some(("b", 240)));
        assert_eq!(may_have(Some("d"), ""), None, "all of it is here");
        assert_eq!(may_have(Some(""), ""), None, "it is one of this master");
        assert_eq!(may_have(Some(""), "b"), Some(("b", 240)));
        assert_eq!(may_have(None, ""), Some(("c", 600)), "any of them");
    }

    #[test]
    fn a_master_counts_as_behind_until_it_is_gone() {
        let of = |heard_s: u64, behind_s: u64| {
            let view = PeerView {
                is_heard: heard_s <= 10,
                heard_ago: Some(Duration::from_secs(heard_s)),
                ..master("b", behind_s)
            };
            known(vec![view]).behind.len()
        };
        let window_s = WINDOW.as_secs();
        assert_eq!(of(1, 9), 0);
        assert_eq!(of(11, 9), 1, "it may have stored more since");
        assert_eq!(of(window_s, window_s), 1);
        assert_eq!(of(1, window_s + 1), 1);
        assert_eq!(of(window_s + 1, window_s + 1), 0);
    }

    #[test]
    fn the_history_of_a_master_is_here_with_a_margin_by_the_own_clock() {
        let all = known(vec![
            master("b", 0),
            PeerView {
                skew: Some(60_000_000),
                ..master("c", 0)
            },
        ]);
        assert!(all.has("b", Micros(94_000_000)));
        assert!(!all.has("b", Micros(95_000_000)));
        assert!(all.has("c", Micros(154_000_000)));
        assert!(!all.has("x", Micros(0)));
    }
}
