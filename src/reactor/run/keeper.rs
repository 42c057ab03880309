//! The keeper of the checkpoint: its lock, its file, and the position of the follower.
//!
//! # Invariant
//!
//! The file never has a later position than the events that are open or done in it, and `read`
//! promises that the matching events before it are queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::RuleEngine;
use super::checkpoint::Checkpoint;
use super::checkpoint::file::{self, CheckpointFile, Update};
use crate::base::metrics::Metrics;
use crate::model::{ListedRule, SeqNo};
use crate::store::{Store, StoreError};

pub(super) struct Keeper {
    /// Lock order: after `file`; no other lock is taken under it.
    checkpoint: Mutex<Checkpoint>,
    /// Lock order: before `checkpoint`.
    file: Mutex<CheckpointFile>,
    /// Entries before this one have been handled: matched events are pending or done.
    read: AtomicU64,
    log: Store,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Reads the file. New rules, and calls after the end of shadow mode, apply from the end of the
    /// log on.
    pub(super) fn open(
        log: Store,
        metrics: Arc<Metrics>,
        rules: &dyn RuleEngine,
        shadow: bool,
    ) -> Result<Self, StoreError> {
        let durable = log.durable();
        let mut checkpoint = read(&log, &metrics, durable)?;
        set_rules(&mut checkpoint, &rules.all(), durable);
        checkpoint.set_mode(shadow, durable);

        Ok(Self {
            read: AtomicU64::new(checkpoint.cursor.0),
            checkpoint: Mutex::new(checkpoint),
            file: Mutex::default(),
            log,
            metrics,
        })
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

    /// Writes the changes of the checkpoint since the last call.
    pub(super) fn save(&self) {
        // The checkpoint is free again before the write, so that the follower does not wait for the
        // disk.
        let mut file = self.file.lock();
        let update = file.update(&mut self.checkpoint());
        let written = match update {
            None => Ok(()),
            Some(Update::Whole(checkpoint)) => self
                .log
                .replace_reactor_file(|put| file.write_whole(&checkpoint, put)),
            Some(Update::Append(offset, text)) => self.log.append_to_reactor_file(offset, &text),
        };

        if let Err(error) = written {
            // What the file contains now is unknown, so the next save rewrites it.
            file.failed();
            self.metrics.reactor_keeps_failed.add(1);
            tracing::error!(%error, "cannot write the reactor's checkpoint");
        }
    }
}

/// The checkpoint in the file. Without a usable file the reactor begins at `durable`: earlier
/// events must not cause reactions.
fn read(log: &Store, metrics: &Metrics, durable: SeqNo) -> Result<Checkpoint, StoreError> {
    let Some(bytes) = log.reactor_file()? else {
        return Ok(Checkpoint::at(durable));
    };

    match file::parse(&bytes, durable) {
        Ok((checkpoint, ignored)) => {
            // The valid batches are an earlier checkpoint and the log has the rest, so nothing is
            // lost.
            if ignored > 0 {
                let cursor = checkpoint.cursor.0;
                log.report_file(
                    "REACTOR",
                    "its end was incomplete or damaged at the start: the log was read again from the last valid position",
                );
                tracing::warn!(
                    ignored,
                    cursor,
                    "end of file REACTOR is incomplete or damaged, reading the log again from the last valid cursor"
                );
            }
            Ok(checkpoint)
        }
        Err(problem) => {
            // Reading the whole log again would repeat old calls, so open reactions are given up.
            tracing::error!(
                problem,
                "file REACTOR is invalid, starting with the next event"
            );
            metrics.reactor_keeps_failed.add(1);
            let what = format!(
                "{problem}; the reactor began with the next event: reactions that were open then were not made"
            );
            log.report_file("REACTOR", what);
            Ok(Checkpoint::at(durable))
        }
    }
}

/// Sets the rules; new rules apply to events from `from` on.
fn set_rules(checkpoint: &mut Checkpoint, rules: &[ListedRule], from: SeqNo) {
    checkpoint.set_rules(rules.iter().map(|rule| rule.pattern.as_str()), from);
}
