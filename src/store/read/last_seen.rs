//! When each minion was last seen: from the newest blocks of each class, without their bodies.

use std::collections::HashMap;

use crate::base::clock::Micros;
use crate::model::Kind;
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::index::LatestJob;
use crate::store::index::latest::BUS_ONLY;
use crate::store::write::class::Class;

/// The latest entries of minions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastSeen {
    /// Time of the latest event or return of each minion.
    pub minions: HashMap<String, Micros>,
    /// Earlier entries were not examined; `None` if all were.
    pub since: Option<Micros>,
}

impl Store {
    /// The latest event or return of each minion among at most about `entries_max` of the newest entries.
    pub fn last_seen(&self, entries_max: usize) -> Result<LastSeen, StoreError> {
        let mut found = LastSeen::default();
        let classes: Vec<Class> = self.0.classes.all().collect();
        for class in &classes {
            let since = self.last_seen_in(*class, entries_max / classes.len().max(1), &mut found.minions)?;
            found.since = found.since.max(since);
        }
        Ok(found)
    }

    fn last_seen_in(
        &self,
        class: Class,
        entries_max: usize,
        minions: &mut HashMap<String, Micros>,
    ) -> Result<Option<Micros>, StoreError> {
        let mut left = entries_max;
        for segment in self.0.segments(class).iter().rev() {
            let blocks = self.0.ready(segment)?.blocks().metas().to_vec();
            for (number, meta) in blocks.iter().enumerate().rev() {
                if left == 0 {
                    return Ok(Some(meta.at_max));
                }
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                let Some(view) = self.0.head(segment, number)? else { continue };
                let rows = view.rows();
                for row in 0..rows.len() {
                    let (minion, at) = (rows.minion(row), rows.at(row));
                    let is_own = matches!(rows.kind(row), Kind::Event | Kind::Return | Kind::SeenOnBus);
                    if !is_own || minion.is_empty() {
                        continue;
                    }
                    match minions.get_mut(minion) {
                        Some(known) => *known = (*known).max(at),
                        None => drop(minions.insert(minion.to_owned(), at)),
                    }
                }
                left = left.saturating_sub(rows.len());
            }
        }
        Ok(None)
    }

    /// The latest job of each function and minion, in no order; and whether its return is known only from a bus.
    pub fn latest_jobs(&self) -> Result<Vec<(LatestJob, bool)>, StoreError> {
        // Memory first: a segment sealed in between is then seen twice rather than missed.
        let mut rows = Vec::new();
        for segment in self.0.all_segments() {
            rows.extend(segment.memory().into_iter().flat_map(|index| index.latest()));
        }
        let is_stored = self.0.stored_seqs();
        let known = self.0.with_state(crate::store::index::state::StateDatabase::latest)?;
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
