//! The state database: what is looked up across segments.
//!
//! Everything in it comes out of sealed segments and can be made again from them; nothing is only here.
//! Segments are applied when they are sealed; the order does not matter, and applying one again changes nothing.
//! There is no row per job or entry: a job lies in its segments, and their facts tell which of them to ask.
//!
//! # On disk
//!
//! ```text
//! state/               sled database; each tree is summed up (see `checked`). The mark of `latest` grows with each change,
//!                      and `segments` has the one that `latest` had then: so `latest` is never the older one
//!   tree "segments"    key    name of the class | 0 | first sequence number u64 BE
//!                      value  facts of the segment (see `index::facts`)
//!   tree "latest"      the last job per function and minion, in pages (see `index::latest`)
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::checked::CheckedTree;
use super::error::{StoreError, io_at};
use super::index::latest::{self, LatestJob};
use super::index::page::{PageWriter, Pages};
use super::index::{Facts, Latest, LatestRow, newness};
use super::sleds::{flush_and_sync, open_sled};
use crate::limits::STATE_CACHE_BYTES;
use crate::model::{JidKey, SeqNo};

/// The open database.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    db: sled::Db,
    segments: CheckedTree,
    latest: Pages,
    /// Held while `latest` is read, changed and written.
    changing: Mutex<()>,
}

/// A function and a minion.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// A row of the catalogue: the name of a class, a segment, and what is known of it.
pub type Known = (String, SeqNo, Facts);

impl State {
    /// Opens or creates it, and adds it up.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let db = open_sled(dir, STATE_CACHE_BYTES)?;
        let tree = |name: &str| CheckedTree::open(&db, dir, name);
        let (segments, latest) = (tree("segments")?, Pages(tree("latest")?));
        if !segments.is_new() && latest.0.is_new() {
            return Err(latest.0.damaged("it has lost everything"));
        }
        if latest.0.mark() < segments.mark() {
            return Err(latest.0.damaged("it is older than tree `segments`"));
        }
        Ok(Self { dir: dir.to_owned(), db, segments, latest, changing: Mutex::default() })
    }

    /// Takes over what a finished segment knows. Durable when it returns. Of what was known of the last jobs, rows whose
    /// return is no longer `there` are left out.
    pub fn apply(
        &self,
        class_name: &str,
        segment: SeqNo,
        facts: &Facts,
        fresh: &[LatestRow<'_>],
        there: impl Fn(SeqNo) -> bool,
    ) -> Result<(), StoreError> {
        let mark = self.take_latest(fresh, there)?;
        // The rows are durable before the segment counts as applied.
        flush_and_sync(&self.db, &self.dir)?;
        self.segments.put([(segment_key(class_name, segment), facts.to_bytes())], mark)?;
        flush_and_sync(&self.db, &self.dir)
    }

    /// The mark of `latest` thereafter.
    fn take_latest(&self, fresh: &[LatestRow<'_>], there: impl Fn(SeqNo) -> bool) -> Result<u64, StoreError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = latest::all(&self.latest)?;
        let mut rows: BTreeMap<Pair<'_>, (SeqNo, &str)> = BTreeMap::new();
        for LatestJob { fun, minion, seq, jid } in known.iter().filter(|row| there(row.seq)) {
            rows.insert((fun, minion), (*seq, jid));
        }
        for LatestRow { fun, minion, seq, jid } in fresh {
            let row = rows.entry((fun, minion)).or_insert((*seq, jid));
            if row.0 != *seq && newness(JidKey::of(row.1), row.0) < newness(JidKey::of(jid), *seq) {
                *row = (*seq, jid);
            }
        }
        let rows: Vec<LatestRow<'_>> = rows
            .into_iter()
            .map(|((fun, minion), (seq, jid))| LatestRow { fun, minion, seq, jid: jid.to_owned() })
            .collect();
        let mut writer = PageWriter::new().map_err(io_at("pack rows for", &self.dir))?;
        latest::write(&mut writer, &rows).map_err(io_at("pack rows for", &self.dir))?;
        let mark = self.latest.0.mark() + 1;
        self.latest.0.replace(writer.rows(), mark)?;
        Ok(mark)
    }

    /// Takes a segment out of the catalogue, before its directory goes. Durable when it returns.
    pub fn forget(&self, class_name: &str, segment: SeqNo) -> Result<(), StoreError> {
        self.segments.remove(&segment_key(class_name, segment))?;
        flush_and_sync(&self.db, &self.dir)
    }

    /// Gives up last jobs that are `gone`; where one was, the last of those that `stay` takes its place. Durable when it
    /// returns.
    pub fn forget_latest(&self, gone: &[LatestJob], stay: &[LatestJob]) -> Result<(), StoreError> {
        let gone: HashSet<SeqNo> = gone.iter().map(|row| row.seq).collect();
        let stay: Vec<LatestRow<'_>> = stay.iter().map(LatestJob::row).collect();
        let mark = self.take_latest(&stay, |seq| !gone.contains(&seq))?;
        flush_and_sync(&self.db, &self.dir)?;
        self.segments.put([], mark)?;
        flush_and_sync(&self.db, &self.dir)
    }

    /// The catalogue: every segment that has been applied.
    pub fn segments(&self) -> Result<Vec<Known>, StoreError> {
        let rows = self.segments.with_prefix(b"")?;
        let known = |(key, value): &super::checked::Row| {
            let (name, seq) = key.split_last_chunk::<8>()?;
            let name = std::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
            Some((name.to_owned(), SeqNo(u64::from_be_bytes(*seq)), Facts::from_bytes(value)?))
        };
        let known: Option<Vec<Known>> = rows.iter().map(known).collect();
        known.ok_or_else(|| self.segments.damaged("a row cannot be read"))
    }

    /// Per minion the last job that ran a function.
    pub fn latest_of(&self, fun: &str) -> Result<BTreeMap<String, Latest>, StoreError> {
        Ok(latest::of_function(&self.latest, fun)?.into_iter().collect())
    }

    /// Every function's every minion.
    pub fn latest(&self) -> Result<Vec<LatestJob>, StoreError> {
        latest::all(&self.latest)
    }
}

fn segment_key(class_name: &str, segment: SeqNo) -> Vec<u8> {
    [class_name.as_bytes(), &[0], &segment.0.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A damaged file of sled may give back a tree as it once was, and that one adds up.
    #[test]
    fn last_jobs_older_than_the_catalogue_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let row =
            |seq| LatestRow { fun: b"test.ping", minion: b"web1", seq: SeqNo(seq), jid: seq.to_string() };
        let state = State::open(dir.path()).unwrap();
        state.apply("jobs", SeqNo(1), &Facts::default(), &[row(1)], |_| true).unwrap();
        let old: Vec<_> = state.db.open_tree("latest").unwrap().iter().map(Result::unwrap).collect();
        state.apply("jobs", SeqNo(9), &Facts::default(), &[row(9)], |_| true).unwrap();
        drop(state);

        let state = State::open(dir.path()).unwrap();
        assert_eq!(state.latest_of("test.ping").unwrap()["web1"].seq, SeqNo(9));
        let raw = state.db.open_tree("latest").unwrap();
        raw.clear().unwrap();
        for (key, value) in old {
            raw.insert(key, value).unwrap();
        }
        raw.flush().unwrap();
        drop((raw, state));
        let error = State::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("older"), "{error}");
    }

    #[test]
    fn where_a_last_job_went_an_older_one_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let row = |minion: &str, seq| LatestJob {
            fun: b"test.ping".to_vec(),
            minion: minion.as_bytes().to_vec(),
            seq: SeqNo(seq),
            jid: seq.to_string(),
        };
        let state = State::open(dir.path()).unwrap();
        let known = [row("web1", 5), row("web2", 6), row("web3", 17)];
        let known: Vec<_> = known.iter().map(LatestJob::row).collect();
        state.apply("jobs", SeqNo(1), &Facts::default(), &known, |_| true).unwrap();
        let gone = [row("web1", 5), row("web2", 6), row("web3", 7)];
        state.forget_latest(&gone, &[row("web1", 2), row("web3", 3)]).unwrap();
        let latest = state.latest_of("test.ping").unwrap();
        let found: Vec<_> = latest.iter().map(|(minion, latest)| (minion.as_str(), latest.seq.0)).collect();
        assert_eq!(found, [("web1", 2), ("web3", 17)]);
    }
}
