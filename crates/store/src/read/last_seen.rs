//! The time at which each minion was last seen, from the newest blocks of each class, without their
//! bodies.

use std::collections::{BTreeSet, HashMap};

use crate::class::Class;
use crate::error::StoreError;
use crate::index::LatestJob;
use crate::index::latest::BUS_ONLY;
use crate::read::LogReader;
use crate::segment::with_same_numbers;
use saltcellar_base::clock::Micros;
use saltcellar_model::Kind;

/// The latest entry of a minion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// When it was stored here, or at that master.
    pub at: Micros,
    /// The master that it came from; empty for this daemon's master.
    pub origin: String,
}

/// The latest entries of minions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// The latest event or return of each minion.
    pub minions: HashMap<String, Seen>,
    /// Earlier entries were not examined; `None` if all were.
    pub since: Option<Micros>,
}

impl LogReader {
    /// The latest event or return of each minion, or of the `wanted` minions, among at most about
    /// `entries_max` of the newest entries.
    pub(crate) fn last_seen(
        &self,
        entries_max: usize,
        wanted: Option<&BTreeSet<&str>>,
    ) -> Result<LastSeen, StoreError> {
        with_same_numbers(|| self.last_seen_once(entries_max, wanted))
    }

    fn last_seen_once(
        &self,
        entries_max: usize,
        wanted: Option<&BTreeSet<&str>>,
    ) -> Result<LastSeen, StoreError> {
        let mut found = LastSeen::default();
        // Each class gets its part, because a busy class would otherwise use up the budget of all.
        let classes: Vec<Class> = self.classes.all().collect();
        for class in &classes {
            let entries = entries_max / classes.len().max(1);
            let since = self.last_seen_in(*class, entries, wanted, &mut found.minions)?;
            found.since = found.since.max(since);
        }
        Ok(found)
    }

    fn last_seen_in(
        &self,
        class: Class,
        entries_max: usize,
        wanted: Option<&BTreeSet<&str>>,
        minions: &mut HashMap<String, Seen>,
    ) -> Result<Option<Micros>, StoreError> {
        let mut left = entries_max;
        // A block that ends before this time adds nothing.
        let mut newer = None;
        for segment in self.segments.of(class).iter().rev() {
            let blocks = self
                .blocks
                .indexes()
                .ready(segment)?
                .blocks()
                .metas()
                .to_vec();
            for (number, meta) in blocks.iter().enumerate().rev() {
                // The budget is used up: how far back it reached is part of the result.
                if left == 0 {
                    return Ok(Some(meta.at_max));
                }
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                // All wanted minions are known to be later than this block.
                if newer.is_some_and(|newer| meta.at_max <= newer) {
                    left = left.saturating_sub(meta.count as usize);
                    continue;
                }
                // A damaged block shows no minion; other blocks may.
                let Some(view) = self.blocks.head(segment, number)? else {
                    continue;
                };

                let rows = view.rows();
                // For each text of the block first: it has fewer minions than entries. With the row
                // of each.
                let mut latest: Vec<Option<(Micros, usize)>> = vec![None; rows.texts_len() + 1];
                for (row, (number, at)) in rows.minions().into_iter().zip(rows.ats()).enumerate() {
                    let is_own =
                        matches!(rows.kind(row), Kind::Event | Kind::Return | Kind::SeenOnBus);
                    let number = usize::try_from(number)
                        .ok()
                        .filter(|number| is_own && *number > 0);
                    if let Some(known) = number.and_then(|number| latest.get_mut(number)) {
                        *known = (*known).max(Some((Micros(at), row)));
                    }
                }

                for (at, row) in latest.into_iter().flatten() {
                    let minion = rows.minion(row);
                    if wanted.is_some_and(|wanted| !wanted.contains(minion)) {
                        continue;
                    }
                    let seen = || Seen {
                        at,
                        origin: rows.origin(row).to_owned(),
                    };
                    match minions.get_mut(minion) {
                        Some(known) if known.at >= at => {}
                        Some(known) => *known = seen(),
                        None => drop(minions.insert(minion.to_owned(), seen())),
                    }
                }

                left = left.saturating_sub(rows.len());

                // With a list of wanted minions the search can end early, once all of them were
                // seen.
                newer = wanted
                    .filter(|wanted| wanted.len() == minions.len())
                    .and_then(|_| minions.values().map(|seen| seen.at).min());
            }
        }
        Ok(None)
    }

    /// The latest job of each function and minion that `wanted` selects, in no order; and whether
    /// its return is known only from a bus.
    pub(crate) fn latest_jobs(
        &self,
        wanted: &dyn Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Vec<(LatestJob, bool)>, StoreError> {
        let is_wanted = |fun: &[u8], minion: &[u8]| {
            wanted(fun.strip_prefix(&[BUS_ONLY as u8]).unwrap_or(fun), minion)
        };
        // Memory first: a segment sealed in between is then seen twice rather than missed.
        let mut rows = Vec::new();
        for segment in self.segments.all() {
            rows.extend(
                segment
                    .memory()
                    .into_iter()
                    .flat_map(|index| index.latest_with(&is_wanted)),
            );
        }

        // The rows of a dropped segment may still be in the database.
        let is_stored = self.segments.stored_seqs();
        let known = self
            .catalogue
            .query(|state| state.latest_with(&is_wanted))?;
        rows.extend(known.into_iter().filter(|row| is_stored(row.seq)));

        let with_source = |mut row: LatestJob| {
            let is_bus_only = row.fun.first() == Some(&(BUS_ONLY as u8));
            if is_bus_only {
                row.fun.remove(0);
            }
            (row, is_bus_only)
        };
        Ok(rows.into_iter().map(with_source).collect())
    }
}
