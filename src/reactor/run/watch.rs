//! In shadow: counting, as the log grows, in what we and Salt's own reactor differ. What was counted can be told again from the log,
//! by `saltcellar reactor shadow`; so nothing of this outlives the daemon.

use std::time::Duration;

use super::engine::Shared;
use super::lock;
use crate::clock::Micros;
use crate::reactor::shadow::{Comparer, Comparison, Item};
use crate::store::Followed;

impl Shared {
    /// Looks at an entry of the log.
    pub(super) fn compare(&self, row: &Followed<'_>) {
        let items = Item::read(row);
        if items.is_empty() {
            return;
        }
        if let Some(comparer) = lock(&self.comparer).as_mut() {
            for item in items {
                comparer.take(item, &mut |verdict| self.count(&verdict));
            }
        }
    }

    /// Begins, unless it has.
    pub(super) fn begin_comparing(&self, window: Duration, workers: usize) {
        let mut kept = lock(&self.comparer);
        if kept.as_ref().is_some_and(|comparer| comparer.window() == window && comparer.workers() == workers)
        {
            return;
        }
        let now = self.clock.now();
        let comparer = kept.insert(Comparer::new(window, workers, now, Micros(i64::MAX)));
        // Our own word may be in the log already, and was not looked at.
        comparer.take(Item::Mode { at: now, shadow: true, started: true }, &mut |_| {});
    }

    /// Judges what nothing can come for any more.
    pub(super) fn judge(&self, now: Option<Micros>) {
        let Some(now) = now else { return };
        let mut kept = lock(&self.comparer);
        let Some(comparer) = kept.as_mut() else { return };
        comparer.pass(now, &mut |verdict| self.count(&verdict));
        self.metrics.shadow_compared_early.add(std::mem::take(&mut comparer.hurried));
    }

    fn count(&self, verdict: &Comparison) {
        let metrics = &self.metrics;
        match verdict {
            Comparison::Same(..) => &metrics.shadow_same,
            Comparison::Differs(..) => &metrics.shadow_differs,
            Comparison::OnlyOurs(_) => &metrics.shadow_only_ours,
            Comparison::OnlySalts(..) => &metrics.shadow_only_salts,
            Comparison::OursFailed(..) => &metrics.shadow_failed,
            Comparison::Unseen(..) => &metrics.shadow_unseen,
            Comparison::Unattributed(_) => &metrics.shadow_unattributed,
        }
        .add(1);
        match verdict {
            Comparison::Differs(ours, salts, fields) => {
                let fields: Vec<_> = fields.iter().map(|one| one.field.as_str()).collect();
                tracing::info!(
                    event = ours.event.0,
                    tag = ours.tag,
                    fun = ours.act.fun,
                    jid = salts.jid,
                    ?fields,
                    "in shadow: Salt's reactor did it otherwise"
                );
            }
            Comparison::OnlyOurs(ours) => tracing::info!(
                event = ours.event.0,
                tag = ours.tag,
                fun = ours.act.fun,
                tgt = ours.act.target(),
                "in shadow: Salt's reactor did nothing like this"
            ),
            Comparison::OursFailed(failed, salts) => tracing::info!(
                event = failed.event.0,
                tag = failed.tag,
                rules = ?failed.rules,
                why = failed.why(),
                jid = salts.as_ref().map(|salts| &salts.jid),
                fun = salts.as_ref().map(|salts| &salts.act.fun),
                "in shadow: our rendering failed"
            ),
            Comparison::OnlySalts(salts, ours) => tracing::info!(
                seq = salts.seq.0,
                jid = salts.jid,
                fun = salts.act.fun,
                tgt = salts.act.target(),
                rules = ?ours.as_ref().map(|ours| &ours.rules),
                why = ours.as_ref().map(|ours| ours.why()),
                "in shadow: only Salt's reactor did this"
            ),
            _ => {}
        }
    }
}
