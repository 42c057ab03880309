//! Shadow mode: counts the differences between our reactor and Salt's while the log grows. `saltcellar reactor shadow` computes them again
//! from the log, so the state is not stored.

use std::time::Duration;

use super::engine::Shared;
use crate::base::clock::Micros;
use crate::reactor::shadow::{Comparer, Comparison, ShadowItem};
use crate::store::Followed;

impl Shared {
    /// Passes an entry of the log to the comparer.
    pub(super) fn compare(&self, row: &Followed<'_>) {
        let items = ShadowItem::read(row);
        if items.is_empty() {
            return;
        }
        if let Some(comparer) = self.comparer.lock().as_mut() {
            for item in items {
                comparer.take(item).iter().for_each(|comparison| self.count(comparison));
            }
        }
    }

    /// Creates the comparer, unless it exists with these settings.
    pub(super) fn start_comparing(&self, window: Duration, workers: usize) {
        let mut kept = self.comparer.lock();
        if kept.as_ref().is_some_and(|comparer| comparer.window() == window && comparer.workers() == workers)
        {
            return;
        }
        let now = self.clock.now();
        let comparer = kept.insert(Comparer::new(window, workers, now, Micros(i64::MAX)));
        // Our own entry with the mode may be in the part of the log that the comparer does not see.
        comparer.take(ShadowItem::Mode { at: now, shadow: true, started: true });
    }

    /// Compares calls whose window is over.
    pub(super) fn compare_due(&self, now: Option<Micros>) {
        let Some(now) = now else { return };
        let mut kept = self.comparer.lock();
        let Some(comparer) = kept.as_mut() else { return };
        comparer.pass(now).iter().for_each(|comparison| self.count(comparison));
        self.metrics.shadow_compared_early.add(std::mem::take(&mut comparer.compared_early));
    }

    fn count(&self, comparison: &Comparison) {
        let metrics = &self.metrics;
        match comparison {
            Comparison::Same(..) => &metrics.shadow_same,
            Comparison::Differs(..) => &metrics.shadow_differs,
            Comparison::OnlyOurs(_) => &metrics.shadow_only_ours,
            Comparison::OnlySalts(..) => &metrics.shadow_only_salts,
            Comparison::OursFailed(..) => &metrics.shadow_failed,
            Comparison::Unseen(..) => &metrics.shadow_unseen,
            Comparison::Unattributed(_) => &metrics.shadow_unattributed,
        }
        .add(1);
        match comparison {
            Comparison::Differs(ours, salts, fields) => {
                let fields: Vec<_> = fields.iter().map(|one| one.field.as_str()).collect();
                tracing::info!(
                    event = ours.event.0,
                    tag = ours.tag,
                    fun = ours.call.fun,
                    jid = salts.jid,
                    ?fields,
                    "shadow: Salt's reactor made a different call"
                );
            }
            Comparison::OnlyOurs(ours) => tracing::info!(
                event = ours.event.0,
                tag = ours.tag,
                fun = ours.call.fun,
                tgt = ours.call.target(),
                "shadow: Salt's reactor made no similar call"
            ),
            Comparison::OursFailed(failed, salts) => tracing::info!(
                event = failed.event.0,
                tag = failed.tag,
                rules = ?failed.rules,
                why = failed.why(),
                jid = salts.as_ref().map(|salts| &salts.jid),
                fun = salts.as_ref().map(|salts| &salts.call.fun),
                "shadow: our rendering failed"
            ),
            Comparison::OnlySalts(salts, ours) => tracing::info!(
                seq = salts.seq.0,
                jid = salts.jid,
                fun = salts.call.fun,
                tgt = salts.call.target(),
                rules = ?ours.as_ref().map(|ours| &ours.rules),
                why = ours.as_ref().map(|ours| ours.why()),
                "shadow: only Salt's reactor made this call"
            ),
            _ => {}
        }
    }
}
