//! Results of many jobs together: their summaries, and returns without bodies. Each page of an
//! index and each block is decoded once, not once per job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::StoreError;
use crate::index::EntryPosition;
use crate::index::job_summary::{JobSummary, is_of_cached_job};
use crate::log::block::{BlockView, Rows};
use crate::read::stored_entry::without_body;
use crate::read::{LogReader, StoredEntry};
use crate::segment::{Segment, with_same_numbers};
use saltcellar_model::{JidKey, Kind};

/// A job with some of its returns.
#[derive(Debug, Clone, Default)]
pub struct JobReturns {
    pub(crate) summary: JobSummary,
    /// Whether it has an entry that occurs only in jobs that Salt stores through the extension.
    /// Unknown if no minions are wanted.
    pub is_cached: bool,
    /// The returns, without tags and bodies, by ascending sequence number.
    pub returns: Vec<StoredEntry>,
}

impl LogReader {
    /// The jobs with these ids, with the returns of the minions named for each. Unknown jobs are
    /// absent.
    pub(crate) fn returns_of(
        &self,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Result<BTreeMap<String, JobReturns>, StoreError> {
        with_same_numbers(|| self.returns_once(wanted))
    }

    fn returns_once(
        &self,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Result<BTreeMap<String, JobReturns>, StoreError> {
        // Sorted by key, as the pages of an index are: each page is decoded once.
        let asked = Asked::of(wanted);
        let mut jobs: Vec<Option<JobReturns>> = vec![None; asked.len()];
        let mut kept: Vec<(usize, StoredEntry)> = Vec::new();
        let mut cached = vec![false; asked.len()];
        self.look_up(
            &asked,
            |segment, block| self.blocks.head(segment, block),
            |number, one, summary| {
                if let Some(job) = jobs.get_mut(number) {
                    let job = job.get_or_insert_default();
                    let known = std::mem::take(&mut job.summary);
                    job.summary = if known.jid.is_empty() {
                        summary
                    } else {
                        known.joined(summary)
                    };
                }
                // Without minions the summary is enough.
                !one.minions.is_empty()
            },
            |number, one, place| {
                let rows = place.rows;
                let at = place.at();
                if let Some(cached) = cached.get_mut(number) {
                    *cached |= is_of_cached_job(rows.kind(at), rows.flags(at));
                }
                if rows.kind(at) == Kind::Return && one.minions.contains(rows.minion(at)) {
                    let entry = without_body(rows, at, one.jid.to_owned(), false);
                    kept.push((number, entry));
                }
                Ok(())
            },
        )?;

        for (number, entry) in kept {
            if let Some(Some(job)) = jobs.get_mut(number) {
                job.returns.push(entry);
            }
        }
        let named = asked.iter().zip(jobs).zip(cached);
        let named = named.filter_map(|((one, job), is_cached)| {
            let mut job = job?;
            job.is_cached = is_cached;
            job.returns.sort_by_key(|entry| entry.seq);
            Some((one.jid.to_owned(), job))
        });
        Ok(named.collect())
    }

    /// Looks up jobs. `known` gets the summary of each in each segment; if it returns true, `each` gets the job's entries there, from blocks
    /// that `read` returns.
    fn look_up(
        &self,
        asked: &[Asked<'_>],
        read: impl Fn(&Arc<Segment>, u32) -> Result<Option<Arc<BlockView>>, StoreError>,
        known: impl FnMut(usize, &Asked<'_>, JobSummary) -> bool,
        each: impl FnMut(usize, &Asked<'_>, Place<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let places = self.places_of(asked, known)?;
        Self::each_place(asked, &places, read, each)
    }

    /// Where the entries of jobs are. `known` gets the summary of each in each segment; if it returns false, the entries there are left out.
    pub(super) fn places_of(
        &self,
        asked: &[Asked<'_>],
        mut known: impl FnMut(usize, &Asked<'_>, JobSummary) -> bool,
    ) -> Result<Vec<PlacesIn>, StoreError> {
        let number_of = |key: JidKey| asked.binary_search_by_key(&key, |one| one.key).ok();
        let mut places = Vec::new();
        for segment in self.segments.all() {
            let metadata = segment.metadata();
            let may_hold =
                |key: &JidKey| metadata.as_ref().is_none_or(|known| known.may_hold(*key));
            // Segments that cannot have any of the jobs are not opened.
            let keys: Vec<JidKey> = asked.iter().map(|one| one.key).filter(may_hold).collect();
            if keys.is_empty() {
                continue;
            }

            let found = self.blocks.indexes().query(
                &segment,
                |index| index.jobs_of(&keys),
                |index| index.jobs_of(&keys),
            )?;

            let mut positions: Vec<(EntryPosition, usize)> = Vec::new();
            for (key, summary, entries) in found {
                let Some(number) = number_of(key) else {
                    continue;
                };
                let Some(one) = asked.get(number).filter(|one| one.jid == summary.jid) else {
                    continue;
                };
                if known(number, one, summary) {
                    positions.extend(entries.into_iter().map(|position| (position, number)));
                }
            }

            // By position, because each block should be read once.
            positions.sort_unstable();
            if !positions.is_empty() {
                places.push((segment, positions));
            }
        }
        Ok(places)
    }

    /// Reads the entries of jobs from blocks that `read` returns.
    pub(super) fn each_place(
        asked: &[Asked<'_>],
        places: &[PlacesIn],
        read: impl Fn(&Arc<Segment>, u32) -> Result<Option<Arc<BlockView>>, StoreError>,
        mut each: impl FnMut(usize, &Asked<'_>, Place<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for (segment, positions) in places {
            for of_block in positions.chunk_by(|a, b| a.0.block == b.0.block) {
                let Some((first, _)) = of_block.first() else {
                    continue;
                };
                let Some(view) = read(segment, first.block)? else {
                    continue;
                };

                let rows = view.rows();
                for (position, number) in of_block {
                    let (Some(one), at) = (asked.get(*number), usize::from(position.at)) else {
                        continue;
                    };

                    // Positions are found by key, and keys of jids without a time may collide.
                    let is_of_job = at < rows.len()
                        && if one.is_plain {
                            rows.jid_key(at) == Some(one.key)
                        } else {
                            rows.jid(at) == one.jid
                        };
                    if is_of_job {
                        let place = Place {
                            segment,
                            position: *position,
                            rows,
                        };
                        each(*number, one, place)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A segment, and the positions of entries in it, ascending, each with the number of its job among those asked for.
pub(super) type PlacesIn = (Arc<Segment>, Vec<(EntryPosition, usize)>);

/// An entry of a job that was looked up.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) segment: &'a Arc<Segment>,
    pub(super) position: EntryPosition,
    /// Those of its block.
    pub(super) rows: Rows<'a>,
}

impl Place<'_> {
    /// The row of the entry.
    pub(super) fn at(&self) -> usize {
        usize::from(self.position.at)
    }
}

/// A job that is looked up.
pub(super) struct Asked<'a> {
    key: JidKey,
    pub(super) jid: &'a str,
    /// Whether the jid is derived from a time and so equals its key; keys of other jids may collide.
    pub(super) is_plain: bool,
    pub(super) minions: &'a BTreeSet<&'a str>,
}

impl<'a> Asked<'a> {
    /// The jobs to look up, sorted by key. Keys of jids without a time may collide; only one of those jobs is among them.
    pub(super) fn of(wanted: &'a BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Self> {
        let mut asked: Vec<Self> = wanted
            .iter()
            .map(|(jid, minions)| Self::new(jid, minions))
            .collect();
        asked.sort_by_key(|one| one.key);
        asked.dedup_by_key(|one| one.key);
        asked
    }

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
