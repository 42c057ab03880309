//! The keeper of the checkpoint: its lock, what of it is saved, and the position of the follower.
//!
//! # Invariant
//!
//! What is saved never has a later position than the events that are open or done in it, and `read`
//! promises that the matching events before it are queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::RuleEngine;
use super::checkpoint::Checkpoint;
use super::checkpoint::saved::Saved;
use crate::base::metrics::Metrics;
use crate::model::{ListedRule, SeqNo};
use crate::store::Store;
use crate::store::settings::Save;

pub(super) struct Keeper {
    /// Lock order: after `saved`; no other lock is taken under it but the lock of the settings'
    /// view.
    checkpoint: Mutex<Checkpoint>,
    /// Lock order: before `checkpoint`.
    saved: Mutex<Saved>,
    /// Entries before this one have been handled: matched events are pending or done.
    read: AtomicU64,
    log: Store,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Reads what is saved. New rules, and calls after the end of shadow mode, apply from the end of the
    /// log on.
    pub(super) fn open(
        log: Store,
        metrics: Arc<Metrics>,
        rules: &dyn RuleEngine,
        shadow: bool,
    ) -> Self {
        let durable = log.durable();
        let (saved, mut checkpoint) = read(&log, &metrics, durable);
        set_rules(&mut checkpoint, &rules.all(), durable);
        checkpoint.set_mode(shadow, durable);

        Self {
            read: AtomicU64::new(checkpoint.cursor.0),
            checkpoint: Mutex::new(checkpoint),
            saved: Mutex::new(saved),
            log,
            metrics,
        }
    }

    pub(super) fn checkpoint(&self) -> MutexGuard<'_, Checkpoint> {
        self.checkpoint.lock()
    }

    /// The position up to which the log is in the checkpoint.
    pub(super) fn cursor(&self) -> SeqNo {
        self.checkpoint().cursor
    }

    /// The position up to which the follower has handled the log.
    pub(super) fn read(&self) -> SeqNo {
        SeqNo(self.read.load(Ordering::Acquire))
    }

    /// Notes that the matching events before `after` are queued.
    pub(super) fn has_read(&self, after: SeqNo) {
        self.checkpoint().cursor = after;
        self.read.store(after.0, Ordering::Release);
    }

    /// The rules that match an event and were configured when it arrived.
    pub(super) fn matching(&self, rules: &dyn RuleEngine, tag: &str, seq: SeqNo) -> Vec<Arc<str>> {
        let mut matched = rules.matching(tag);

        // Most tags match no rule and need no lock.
        if !matched.is_empty() {
            let checkpoint = self.checkpoint();
            matched.retain(|rule| checkpoint.takes(rule, seq));
        }
        matched
    }

    /// True for events from after the end of shadow mode: calls for earlier ones are not made.
    pub(super) fn acts_on(&self, event: SeqNo) -> bool {
        self.checkpoint()
            .acting_from()
            .is_some_and(|from| event >= from)
    }

    /// Replaces rules and mode, for events that are not in the log yet, even if the follower is
    /// behind.
    pub(super) fn replace_rules(
        &self,
        before: &dyn RuleEngine,
        rules: &dyn RuleEngine,
        shadow: bool,
    ) {
        let from = self.log.durable();
        // Listed first, because that locks the rules.
        let (before, rules) = (before.all(), rules.all());

        let mut checkpoint = self.checkpoint();
        // Rules added by `salt-run reactor.add` applied to all events read so far.
        set_rules(&mut checkpoint, &before, SeqNo(0));
        set_rules(&mut checkpoint, &rules, from);
        checkpoint.set_mode(shadow, from);
    }

    /// Saves the changes of the checkpoint since the last call.
    pub(super) fn save(&self) {
        // The checkpoint is unlocked before the write, because the follower must not wait for the
        // disk.
        let mut saved = self.saved.lock();
        let settings = self.log.settings();
        let changes = saved.changes(&mut self.checkpoint(), settings);
        let written = changes.and_then(|changes| match changes {
            None => Ok(()),
            Some(changes) => settings.commit(changes, Save::Durable),
        });

        if let Err(error) = written {
            // The next save writes everything.
            saved.failed();
            self.metrics.reactor_checkpoint_writes_failed.add(1);
            tracing::error!(%error, "cannot save the reactor's checkpoint, a restart rereads events: check the disk for errors and free space");
        }
    }
}

/// The checkpoint that is saved. Without a usable one the reactor begins at `durable`: earlier events
/// must not cause reactions.
fn read(log: &Store, metrics: &Metrics, durable: SeqNo) -> (Saved, Checkpoint) {
    let fresh = || (Saved::default(), Checkpoint::at(durable));
    match Saved::load(log.settings(), durable) {
        Ok(loaded) => loaded.unwrap_or_else(fresh),
        Err(problem) => {
            // Reading the whole log again would repeat old calls, so open reactions are given up.
            tracing::error!(
                problem,
                "reactor checkpoint lost, starting with the next event: repeat missed reactions with `saltcellar reactor replay`"
            );
            metrics.reactor_checkpoint_writes_failed.add(1);
            let what = format!(
                "the reactor's checkpoint is lost: {problem}; it began with the next event: reactions that were open then were not made"
            );
            log.report_settings(what);
            fresh()
        }
    }
}

/// Sets the rules; new rules apply to events from `from` on.
fn set_rules(checkpoint: &mut Checkpoint, rules: &[ListedRule], from: SeqNo) {
    checkpoint.set_rules(rules.iter().map(|rule| rule.pattern.as_str()), from);
}
