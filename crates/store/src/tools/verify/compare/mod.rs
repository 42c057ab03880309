//! Comparison of indexes and state database with the logs, in both directions.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::path::Path;

use crate::StoreError;
use crate::index::sealed::SealedIndex;
use crate::index::state::StateDatabase;
use crate::index::summary::{OWN_BITS, UNLISTED};
use crate::index::{MemIndex, MinionSelection, SegmentMetadata};
use saltcellar_model::SeqNo;

/// Number of groups in which minions are compared.
const MINION_GROUPS: u64 = 64;

/// Describes the first difference between the index of a sealed segment and its log; `None` if they
/// agree.
pub(crate) fn difference(
    sealed: &SealedIndex,
    log: &MemIndex,
) -> Result<Option<String>, StoreError> {
    let (found, expected) = (sealed.blocks(), log.blocks());
    if found.metas().len() != expected.metas().len() {
        let (found, expected) = (found.metas().len(), expected.metas().len());
        return Ok(Some(format!(
            "the index has {found} blocks, the log has {expected}"
        )));
    }

    let known: HashMap<&[u8], u64> = sealed.templates().each().collect();
    for (n, (a, b)) in found.metas().iter().zip(expected.metas()).enumerate() {
        if a != b {
            return Ok(Some(format!(
                "block {n} is {a:?} in the index and {b:?} in the log"
            )));
        }
        if !covers(sealed, log, &known, n) {
            return Ok(Some(format!("the index lacks tags of block {n}")));
        }
    }

    let jobs = log.jobs();
    // What could not be read when the index was made is no difference; that it lacks a block is.
    let mut metadata = log.metadata(&jobs);
    metadata
        .unreadable
        .clone_from(&sealed.metadata().unreadable);
    if *sealed.metadata() != metadata {
        return Ok(Some(format!(
            "the totals are {:?} in the index and {:?} in the log",
            sealed.metadata().totals,
            metadata.totals
        )));
    }

    let mut n = 0;
    let mut first = None;

    // The closure cannot end the walk, so the first difference is kept and the rest passed over.
    sealed.each_job(|key, row, positions| {
        if first.is_none() && jobs.key(n) != Some(key) {
            first = Some(format!(
                "the index shows job {} where the log contains another one",
                row.jid
            ));
        }
        if first.is_none() && log.row(key).as_ref() != Some(&row) {
            first = Some(format!(
                "the summaries of job {} differ between index and log",
                row.jid
            ));
        }
        let in_log = if first.is_none() {
            log.positions(key)
        } else {
            Vec::new()
        };
        if first.is_none() && in_log != positions {
            let (found, expected) = (positions.len(), in_log.len());
            first = Some(format!(
                "job {} has {found} entries in the index and {expected} in the log",
                row.jid
            ));
        }
        n += 1;
    })?;

    if first.is_some() || n != jobs.len() {
        return Ok(first.or_else(|| {
            Some(format!(
                "the index has {n} jobs, the log has {}",
                jobs.len()
            ))
        }));
    }

    let hasher = BuildHasherDefault::<std::collections::hash_map::DefaultHasher>::default();
    // By groups of minions: one selection per minion would read all pages again for each, and a
    // table of all minions and blocks would be large.
    for group in 0..MINION_GROUPS {
        let of_group = |name: &[u8]| hasher.hash_one(name) % MINION_GROUPS == group;
        let selection = MinionSelection::Passing(&of_group);
        if sealed.blocks_with(selection)? != log.blocks_with(selection) {
            return Ok(Some(
                "the index has minions in other blocks than the log".to_owned(),
            ));
        }
    }

    Ok((sealed.latest()? != log.latest())
        .then(|| "the latest jobs per function differ between index and log".to_owned()))
}

/// Whether the index contains every tag template of a block. Templates that share a bit cannot be
/// checked.
fn covers(sealed: &SealedIndex, log: &MemIndex, known: &HashMap<&[u8], u64>, block: usize) -> bool {
    let (found, expected) = (
        sealed.blocks().templates(block),
        log.blocks().templates(block),
    );
    let own = log
        .templates()
        .each()
        .take(OWN_BITS as usize)
        .filter(|(_, bit)| expected & bit != 0);
    // Templates beyond the list mark blocks instead of naming tags, so such a block lacks none.
    found & UNLISTED != 0
        || own
            .into_iter()
            .all(|(template, _)| known.get(template).is_some_and(|bit| found & bit != 0))
}

/// Compares the catalogue in the state database with the segment indexes; returns the segments that
/// differ.
pub(crate) fn catalogue(
    state: &Path,
    segments: &[(String, SeqNo, Option<SegmentMetadata>)],
) -> Result<Vec<(String, SeqNo, CatalogueDifference)>, StoreError> {
    let mut found = Vec::new();

    let rows = StateDatabase::open(state)?.segments()?;
    // A segment that is not sealed has no row.
    for (class_name, first_seq, _) in segments.iter().filter(|(.., known)| known.is_some()) {
        let is_row = |(class, seq, _): &(String, SeqNo, SegmentMetadata)| {
            class == class_name && seq == first_seq
        };
        if !rows.iter().any(is_row) {
            found.push((class_name.clone(), *first_seq, CatalogueDifference::Unknown));
        }
    }

    for (class_name, first_seq, metadata) in rows {
        let segment = segments
            .iter()
            .find(|(class, seq, _)| *class == class_name && *seq == first_seq);
        let difference = match segment {
            Some((_, _, Some(known))) if *known != metadata => CatalogueDifference::SegmentMetadata,
            // A missing segment is reported with its entries (`known`).
            _ => continue,
        };
        found.push((class_name, first_seq, difference));
    }
    Ok(found)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CatalogueDifference {
    /// The state database does not list the segment.
    Unknown,
    SegmentMetadata,
}
