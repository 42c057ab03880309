//! What is looked up in, against what the log says, both ways.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::path::Path;

use crate::model::{JidKey, SeqNo};
use crate::store::StoreError;
use crate::store::index::sealed::SealedIndex;
use crate::store::index::summary::UNLISTED;
use crate::store::index::{Facts, LatestJob, MemIndex};
use crate::store::state::State;

/// Minions are compared in so many groups: all of a group at once.
const MINION_GROUPS: u64 = 64;

/// Shapes that have a bit of their own in a block's summary (see `index::summary`).
const OWN_BITS: usize = 48;

/// The first difference between the index of a sealed segment and its log, in words; none if both say the same. With it
/// comes what the index knows of the segment.
pub fn difference(index: &Path, log: &MemIndex) -> Result<(Facts, Option<String>), StoreError> {
    let sealed = SealedIndex::open(index)?;
    let facts = sealed.facts().clone();
    Ok((facts, first_difference(&sealed, log)?))
}

fn first_difference(sealed: &SealedIndex, log: &MemIndex) -> Result<Option<String>, StoreError> {
    let (found, expected) = (sealed.blocks(), log.blocks());
    if found.metas().len() != expected.metas().len() {
        let (found, expected) = (found.metas().len(), expected.metas().len());
        return Ok(Some(format!("it knows {found} blocks, the log has {expected}")));
    }
    let known: HashMap<&[u8], u64> = sealed.shapes().each().collect();
    for (n, (a, b)) in found.metas().iter().zip(expected.metas()).enumerate() {
        if a != b {
            return Ok(Some(format!("block {n} is {a:?} to it, and {b:?} in the log")));
        }
        if !covers(sealed, log, &known, n) {
            return Ok(Some(format!("block {n} has tags that it does not know of")));
        }
    }
    let jobs = log.jobs();
    let facts = log.facts(&jobs);
    if *sealed.facts() != facts {
        return Ok(Some(format!(
            "its sums are {:?}, those of the log {:?}",
            sealed.facts().sums,
            facts.sums
        )));
    }
    let mut n = 0;
    let mut first = None;
    sealed.each_job(|key, row, places| {
        if first.is_none() && jobs.key(n) != Some(key) {
            first = Some(format!("it has job {}, the log has another one there", row.jid));
        }
        if first.is_none() && log.row(key).as_ref() != Some(&row) {
            first = Some(format!("it has another row of job {} than the log", row.jid));
        }
        let in_log = if first.is_none() { log.places(key) } else { Vec::new() };
        if first.is_none() && in_log != places {
            let (found, expected) = (places.len(), in_log.len());
            first = Some(format!("job {} has {found} places to it, {expected} in the log", row.jid));
        }
        n += 1;
    })?;
    if first.is_some() || n != jobs.len() {
        return Ok(first.or_else(|| Some(format!("it knows {n} jobs, the log has {}", jobs.len()))));
    }
    let hasher = BuildHasherDefault::<std::collections::hash_map::DefaultHasher>::default();
    for group in 0..MINION_GROUPS {
        let wanted = |name: &[u8]| hasher.hash_one(name) % MINION_GROUPS == group;
        if sealed.blocks_with(wanted)? != log.blocks_with(wanted) {
            return Ok(Some("it has the minions in other blocks than the log".to_owned()));
        }
    }
    let expected: Vec<LatestJob> = log.latest().iter().map(LatestJob::from).collect();
    let found = sealed.latest()?;
    let same = found.len() == expected.len()
        && found.iter().zip(&expected).all(|(a, b)| a == b || was_stored_last(a, b, log));
    Ok((!same).then(|| "it has other last jobs per function than the log".to_owned()))
}

/// Before jids counted, of the jobs of a function and minion the one stored last was taken; such an index is as good as it was.
fn was_stored_last(found: &LatestJob, newest: &LatestJob, log: &MemIndex) -> bool {
    found.pair() == newest.pair()
        && found.seq > newest.seq
        && log.row(JidKey::of(&found.jid)).is_some_and(|row| row.jid == found.jid)
}

/// Does the index know every shape that the tags of a block have? Of shapes that share a bit nobody knows.
fn covers(sealed: &SealedIndex, log: &MemIndex, known: &HashMap<&[u8], u64>, block: usize) -> bool {
    let (found, expected) = (sealed.blocks().shapes(block), log.blocks().shapes(block));
    let own = log.shapes().each().take(OWN_BITS).filter(|(_, bit)| expected & bit != 0);
    found & UNLISTED != 0
        || own.into_iter().all(|(shape, _)| known.get(shape).is_some_and(|bit| found & bit != 0))
}

/// What the catalogue of a store says, against what the indexes say. Each difference comes with the name of a segment.
pub fn catalogue(
    state: &Path,
    segments: &[(String, SeqNo, Option<Facts>)],
) -> Result<Vec<(String, SeqNo, Difference)>, StoreError> {
    let mut found = Vec::new();
    for (class_name, first_seq, facts) in State::open(state)?.segments()? {
        let place = segments.iter().find(|(class, seq, _)| *class == class_name && *seq == first_seq);
        let difference = match place {
            None => Difference::Missing { entries: facts.sums.entries, last_seq: facts.sums.last_seq },
            Some((_, _, Some(known))) if *known != facts => Difference::Facts,
            Some(_) => continue,
        };
        found.push((class_name, first_seq, difference));
    }
    Ok(found)
}

/// How the catalogue differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The segment is not there.
    Missing {
        /// So many entries were in it.
        entries: u64,
        /// The last one.
        last_seq: SeqNo,
    },
    /// The segment's index says something else of it.
    Facts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{Entry, Flags, Kind, Source};
    use crate::store::log::BlockMeta;

    #[test]
    fn an_index_that_took_the_job_stored_last_is_as_good_as_it_was() {
        let (today, before) = ("20261121030955000000", "20261101120000000000");
        let mut log = MemIndex::new(SeqNo(1));
        let (first_seq, last_seq, at) = (SeqNo(1), SeqNo(2), Micros(0));
        let (offset, len, head_len, count) = (64, 100, 50, 2);
        log.add_block(
            BlockMeta { offset, len, head_len, count, first_seq, last_seq, at_min: at, at_max: at },
            &[],
        );
        for (at, jid) in [today, before].into_iter().enumerate() {
            let (kind, source, flags) = (Kind::Return, Source::Returner, Flags::default());
            let (minion, fun, body, tag) = ("web1", "test.ping", &b"\x80"[..], &b""[..]);
            let entry = Entry { kind, source, flags, at: Micros(0), tag, jid, minion, fun, retcode: 0, body };
            log.add(at, SeqNo(1 + at as u64), &entry, 1, || body).unwrap();
        }
        let newest = log.latest().first().map(LatestJob::from).unwrap();
        assert_eq!((newest.jid.as_str(), newest.seq), (today, SeqNo(1)));
        let found = |seq, jid: &str| LatestJob { seq: SeqNo(seq), jid: jid.to_owned(), ..newest.clone() };
        assert!(was_stored_last(&found(2, before), &newest, &log));
        assert!(!was_stored_last(&found(0, before), &newest, &log), "it was not the last");
        assert!(
            !was_stored_last(&found(2, "20261101120000000001"), &newest, &log),
            "the log has no such job"
        );
        let of_other = LatestJob { minion: b"web2".to_vec(), ..found(2, before) };
        assert!(!was_stored_last(&of_other, &newest, &log));
    }
}
