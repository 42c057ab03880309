//! Shadow mode: counts the differences between saltcellar's reactor and Salt's while the log grows.
//! `saltcellar reactor diff` computes them again from the log, so the state is not stored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Micros;
use crate::base::limits::REACTOR_SHADOW_DIFFERENCES;
use crate::base::metrics::Metrics;
use crate::base::named::named;
use crate::reactor::shadow::{Comparer, Comparison, OurCall, ShadowItem};
use crate::store::Followed;

pub(super) struct Watch {
    /// `None` unless in shadow mode. Lock order: before `differences`.
    comparer: Mutex<Option<Comparer>>,
    /// The latest differences, the latest first. Lock order: after `comparer`.
    differences: Mutex<VecDeque<ShadowDifference>>,
    metrics: Arc<Metrics>,
}

impl Watch {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            comparer: Mutex::default(),
            differences: Mutex::default(),
            metrics,
        }
    }

    /// The latest differences, the latest first.
    pub(super) fn differences(&self) -> Vec<ShadowDifference> {
        self.differences.lock().iter().cloned().collect()
    }

    /// Ends the comparison: calls are made from now on, so there is nothing to compare.
    pub(super) fn end(&self) {
        drop(self.comparer.lock().take());
    }

    pub(super) fn compare(&self, row: &Followed<'_>) {
        let items = ShadowItem::read(row);

        // Most entries belong to neither side and must not cost the lock.
        if items.is_empty() {
            return;
        }

        if let Some(comparer) = self.comparer.lock().as_mut() {
            for item in items {
                comparer
                    .take(item)
                    .iter()
                    .for_each(|comparison| self.count(comparison));
            }
        }
    }

    /// Creates the comparer, unless it exists with these settings. `since` is the time at which
    /// shadow mode or these settings began, not the time at which the follower comes to it: a
    /// follower that is behind must count the same as one that is not.
    pub(super) fn start(&self, window: Duration, workers: usize, since: Micros) {
        // Settings rarely change, and an existing comparer keeps what it has gathered.
        let mut kept = self.comparer.lock();
        if kept
            .as_ref()
            .is_some_and(|comparer| comparer.window() == window && comparer.workers() == workers)
        {
            return;
        }

        let comparer = kept.insert(Comparer::new(window, workers, since, Micros(i64::MAX)));
        // The entry with the mode may come later in the log than the first events of that mode.
        comparer.take(ShadowItem::Mode {
            at: since,
            shadow: true,
            started: true,
        });
    }

    /// Compares calls whose window is over.
    pub(super) fn pass(&self, now: Option<Micros>) {
        let Some(now) = now else { return };
        let mut kept = self.comparer.lock();
        let Some(comparer) = kept.as_mut() else {
            return;
        };

        comparer
            .pass(now)
            .iter()
            .for_each(|comparison| self.count(comparison));

        self.metrics
            .shadow_compared_early
            .add(std::mem::take(&mut comparer.compared_early));
    }

    fn count(&self, comparison: &Comparison) {
        let metrics = &self.metrics;
        match comparison {
            Comparison::Same(..) => &metrics.shadow_calls_same,
            Comparison::Differs(..) => &metrics.shadow_calls_different,
            Comparison::OnlyOurs(_) => &metrics.shadow_calls_only_saltcellar,
            Comparison::OnlySalts(..) => &metrics.shadow_calls_only_salt,
            Comparison::OursFailed(..) => &metrics.shadow_calls_saltcellar_failed,
            Comparison::Unseen(..) => &metrics.shadow_calls_not_comparable,
            Comparison::Unattributed(_) => &metrics.shadow_calls_unattributed,
        }
        .add(1);

        // Equal calls, and calls that cannot be attributed, are only counted.
        let Some(found) = ShadowDifference::of(comparison) else {
            return;
        };

        tracing::info!(
            event = found.event,
            tag = found.tag,
            fun = found.fun,
            jid = found.jid,
            details = found.details,
            "shadow: {}",
            found.kind.name()
        );

        // The caller holds the lock of the comparer.
        let mut kept = self.differences.lock();
        kept.truncate(REACTOR_SHADOW_DIFFERENCES - 1);
        kept.push_front(found);
    }
}

/// How the reactors differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DifferenceKind {
    #[default]
    Differs,
    OnlyOurs,
    OursFailed,
    OnlySalts,
}

named! {
    DifferenceKind {
        Differs: "Salt's reactor made a different call",
        OnlyOurs: "Salt's reactor made no similar call",
        OursFailed: "rendering by saltcellar failed",
        OnlySalts: "only Salt's reactor made this call",
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ShadowDifference {
    /// Time of the event, or of Salt's call.
    pub(crate) time: i64,
    pub(crate) kind: DifferenceKind,
    /// The event; absent if only Salt's side is known.
    pub(crate) event: Option<u64>,
    pub(crate) tag: Option<String>,
    pub(crate) fun: String,
    /// The job of Salt's call.
    pub(crate) jid: Option<String>,
    /// The fields that differ, the target, or the reason.
    pub(crate) details: String,
}

impl ShadowDifference {
    fn of(comparison: &Comparison) -> Option<Self> {
        let of_ours = |ours: &OurCall, kind, jid, details| Self {
            time: ours.at.0,
            kind,
            event: Some(ours.event.0),
            tag: Some(ours.tag.clone()),
            fun: ours.call.fun.clone(),
            jid,
            details,
        };

        match comparison {
            Comparison::Differs(ours, salts, fields) => {
                let fields: Vec<_> = fields.iter().map(|one| one.field.as_str()).collect();
                Some(of_ours(
                    ours,
                    DifferenceKind::Differs,
                    Some(salts.jid.clone()),
                    format!("different: {}", fields.join(", ")),
                ))
            }
            Comparison::OnlyOurs(ours) => {
                let details = format!("target {}", ours.call.target());
                Some(of_ours(ours, DifferenceKind::OnlyOurs, None, details))
            }
            Comparison::OursFailed(failed, salts) => Some(Self {
                time: failed.at.0,
                kind: DifferenceKind::OursFailed,
                event: Some(failed.event.0),
                tag: Some(failed.tag.clone()),
                fun: salts
                    .as_ref()
                    .map(|salts| salts.call.fun.clone())
                    // Without a call of Salt's no function is known, because nothing was rendered
                    // here.
                    .unwrap_or_default(),
                jid: salts.as_ref().map(|salts| salts.jid.clone()),
                details: failed.why(),
            }),
            Comparison::OnlySalts(salts, ours) => Some(Self {
                time: salts.at.0,
                kind: DifferenceKind::OnlySalts,
                // Known if saltcellar rendered an equal call that it would not have made.
                event: ours.as_ref().map(|ours| ours.event.0),
                tag: ours.as_ref().map(|ours| ours.tag.clone()),
                fun: salts.call.fun.clone(),
                jid: Some(salts.jid.clone()),
                details: ours.as_ref().map_or_else(
                    || format!("target {}", salts.call.target()),
                    |ours| ours.why(),
                ),
            }),
            Comparison::Same(..) | Comparison::Unseen(..) | Comparison::Unattributed(_) => None,
        }
    }
}
