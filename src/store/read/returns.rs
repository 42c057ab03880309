//! Results of many jobs at once: their summaries, and returns without bodies. Each page of an index
//! and each block is decoded once, not once per job.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{JidKey, Kind};
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::index::EntryPosition;
use crate::store::read::job_summary::{JobSummary, is_of_cached_job};
use crate::store::read::{StoredEntry, without_body};

/// A job with some of its returns.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobReturns {
    pub(crate) summary: JobSummary,
    /// Whether it has an entry that occurs only in jobs that Salt stores through the extension.
    /// Unknown if no minions are wanted.
    pub(crate) is_cached: bool,
    /// The returns, without tags and bodies, by ascending sequence number.
    pub(crate) returns: Vec<StoredEntry>,
}

impl Store {
    /// The jobs with these ids, with the returns of the minions named for each. Unknown jobs are
    /// absent.
    pub(crate) fn returns_of(
        &self,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Result<BTreeMap<String, JobReturns>, StoreError> {
        // Sorted by key, as the pages of an index are: each page is decoded once.
        let mut asked: Vec<Asked<'_>> = wanted
            .iter()
            .map(|(jid, minions)| Asked::new(jid, minions))
            .collect();
        asked.sort_by_key(|one| one.key);
        // Keys of jids without a time may collide; only one of those jobs is looked up here.
        asked.dedup_by_key(|one| one.key);

        let number_of = |key: JidKey| asked.binary_search_by_key(&key, |one| one.key).ok();
        let mut jobs: Vec<Option<JobReturns>> = vec![None; asked.len()];

        for segment in self.0.all_segments() {
            let metadata = segment.metadata();
            let may_hold =
                |key: &JidKey| metadata.as_ref().is_none_or(|known| known.may_hold(*key));
            // Segments that cannot have any of the jobs are not opened.
            let keys: Vec<JidKey> = asked.iter().map(|one| one.key).filter(may_hold).collect();
            if keys.is_empty() {
                continue;
            }

            let found = self.0.query_index(
                &segment,
                |index| index.jobs_of(&keys),
                |index| index.jobs_of(&keys),
            )?;

            let mut positions: Vec<(EntryPosition, usize)> = Vec::new();
            for (key, summary, entries) in found {
                let Some(number) = number_of(key) else {
                    continue;
                };
                let (Some(one), Some(job)) = (asked.get(number), jobs.get_mut(number)) else {
                    continue;
                };
                // Another job with the same key.
                if one.jid != summary.jid {
                    continue;
                }
                // Without minions the summary is enough.
                if !one.minions.is_empty() {
                    positions.extend(entries.into_iter().map(|position| (position, number)));
                }

                let job = job.get_or_insert_default();
                let known = std::mem::take(&mut job.summary);
                job.summary = if known.jid.is_empty() {
                    summary
                } else {
                    known.joined(summary)
                };
            }

            // By position, so that each block is read once.
            positions.sort_unstable();
            for of_block in positions.chunk_by(|a, b| a.0.block == b.0.block) {
                let Some((first, _)) = of_block.first() else {
                    continue;
                };
                let Some(view) = self.0.head(&segment, first.block)? else {
                    continue;
                };

                // Once per block: this validates the archive.
                let rows = view.rows();
                for (position, number) in of_block {
                    let (Some(one), at) = (asked.get(*number), usize::from(position.at)) else {
                        continue;
                    };

                    let is_of_job = at < rows.len()
                        && if one.is_plain {
                            rows.jid_key(at) == Some(one.key)
                        } else {
                            rows.jid(at) == one.jid
                        };

                    let Some(Some(job)) = jobs.get_mut(*number).filter(|_| is_of_job) else {
                        continue;
                    };
                    job.is_cached |= is_of_cached_job(rows.kind(at));
                    if rows.kind(at) == Kind::Return && one.minions.contains(rows.minion(at)) {
                        job.returns
                            .push(without_body(rows, at, one.jid.to_owned(), false));
                    }
                }
            }
        }

        let sorted = |mut job: JobReturns| {
            job.returns.sort_by_key(|entry| entry.seq);
            job
        };

        let named = asked
            .iter()
            .zip(jobs)
            .filter_map(|(one, job)| Some((one.jid.to_owned(), sorted(job?))));
        Ok(named.collect())
    }
}

/// A job that is looked up.
struct Asked<'a> {
    key: JidKey,
    jid: &'a str,
    /// Whether the jid is derived from a time and so equals its key; keys of other jids may
    /// collide.
    is_plain: bool,
    minions: &'a BTreeSet<&'a str>,
}

impl<'a> Asked<'a> {
    fn new(jid: &'a str, minions: &'a BTreeSet<&'a str>) -> Self {
        let key = JidKey::of(jid);
        Self {
            key,
            jid,
            is_plain: key.text().as_deref() == Some(jid),
            minions,
        }
    }
}
