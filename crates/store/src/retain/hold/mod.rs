//! Holds: jobs that are exempt from retention.
//!
//! Holds are set by an administrator, and are settings of the store (see `settings`). While a change
//! of the settings may be lost, or a hold cannot be read, every job counts as held: a job whose hold
//! is lost must not be deleted.
//!
//! # Invariant
//!
//! A held job outlives retention. While holds may be lost, every job counts as held.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::settings::{Save, Setting, Settings};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{HOLD_REASON_BYTES_MAX, HOLDS_MAX};
use saltcellar_model::JidKey;

/// A job that is exempt from retention.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The job id.
    pub jid: String,
    /// Time of the first hold.
    pub since: Micros,
    /// Why, as the administrator gave it.
    pub reason: String,
}

impl Setting for Hold {
    const KIND: &'static str = "hold";
}

#[derive(Debug)]
pub(crate) struct Holds {
    settings: Arc<Settings>,
    /// Held from the look at a hold to its change. Lock order: after a retention round, before
    /// those of the settings.
    changing: Mutex<()>,
}

impl Holds {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            changing: Mutex::default(),
        }
    }

    /// Whether any job may be held, because holds may be lost.
    pub(crate) fn may_be_any(&self) -> bool {
        let is_unreadable = |found: &crate::settings::Found<Hold>| found.value.is_none();
        self.settings.loss().is_some() || self.settings.all("").iter().any(is_unreadable)
    }

    /// All holds, sorted by jid.
    pub(crate) fn all(&self) -> Vec<Hold> {
        let found = self.settings.all("").into_iter();
        found.filter_map(|found| found.value).collect()
    }

    /// Holds a job; for a held job, changes the reason only. Durable on return.
    pub(crate) fn hold(&self, jid: &str, reason: &str, now: Micros) -> Result<Hold, StoreError> {
        let refused =
            |what: String| StoreError::Refused(format!("cannot hold the job {jid:?}: {what}"));
        // A table shows it in one line.
        if jid.is_empty() || jid.contains(['\t', '\n', '\r']) {
            return Err(refused(
                "a jid must not be empty or contain tabs or line breaks".to_owned(),
            ));
        }

        // A reason is text for people, so it is adjusted instead of refused.
        let reason: String = reason
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();

        if reason.len() > HOLD_REASON_BYTES_MAX {
            return Err(refused(format!(
                "a reason has at most {HOLD_REASON_BYTES_MAX} bytes"
            )));
        }

        let _one = self.changing.lock();
        let known = self.settings.get::<Hold>(jid);
        // A held job may change its reason at the limit.
        if known.is_none() && self.settings.all::<Hold>("").len() >= HOLDS_MAX {
            return Err(refused(format!(
                "the limit of {HOLDS_MAX} holds is reached; use a class with longer retention"
            )));
        }

        let since = known.and_then(|known| known.value).map(|hold| hold.since);
        let hold = Hold {
            jid: jid.to_owned(),
            since: since.unwrap_or(now),
            reason,
        };
        self.settings.put(jid, &hold, Save::Durable)?;
        Ok(hold)
    }

    /// Ends a hold; false if the job was not held. Durable on return.
    pub(crate) fn release(&self, jid: &str) -> Result<bool, StoreError> {
        let _one = self.changing.lock();
        self.settings.remove::<Hold>(jid)
    }

    /// Keys and jids of all held jobs.
    pub(crate) fn jids(&self) -> Vec<(JidKey, String)> {
        let jids = self.all().into_iter().map(|hold| hold.jid);
        jids.map(|jid| (JidKey::of(&jid), jid)).collect()
    }
}

#[cfg(test)]
mod tests;
