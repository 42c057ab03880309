//! What entries of callers must be before they are stored, and the ids of new jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::archive::Archive;
use crate::base::clock::Micros;
use crate::model::{Entry, FrameBatch};
use crate::policy::{Policy, RejectReason};
use crate::wire::call::CallError;
use crate::wire::salt_codec::check_whole;
use crate::wire::salt_event::PLACEHOLDER_JIDS;

/// Accepts entries of callers.
///
/// # Invariant
///
/// An entry reaches a batch only if Salt can read it, it is not too large, and the policy has passed
/// and redacted it.
pub(crate) struct Acceptor {
    pub(crate) archive: Archive,
    pub(crate) policy: Arc<Policy>,
    pub(crate) jids: JidMaker,
    pub(crate) entry_bytes_max: usize,
}

pub(super) fn refused(why: &RejectReason) -> CallError {
    CallError::Refused(why.to_string())
}

impl Acceptor {
    pub(super) fn store_one(
        &self,
        entry: &Entry<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<(), CallError> {
        self.check_size(entry)?;
        check_whole(entry.body).map_err(|why| refused(&self.policy.reject(entry, why)))?;
        if let Some(accepted) = self.policy.pass(entry, None) {
            to.push(&accepted.entry(), accepted.fingerprints);
        }
        Ok(())
    }

    pub(super) fn check_size(&self, entry: &Entry<'_>) -> Result<(), CallError> {
        let len = entry.raw_len();
        let max = self.entry_bytes_max;
        if len > max {
            self.archive.metrics.entries_too_large.add(1);
            return Err(CallError::TooLarge { len, max });
        }
        Ok(())
    }

    pub(super) fn refuse(&self, why: String) -> CallError {
        self.archive.metrics.calls_refused.add(1);
        CallError::Refused(why)
    }

    pub(super) fn job_of(&self, jid: String) -> Result<String, CallError> {
        if PLACEHOLDER_JIDS.contains(&jid.as_str()) {
            return Err(self.refuse(format!(
                "`{jid}` is not a job id; nothing is stored under it"
            )));
        }
        Ok(jid)
    }
}
/// Generates jids: the current time, or the next unused microsecond.
///
/// # Invariant
///
/// Only even microseconds. The odd ones are reserved for the extension, which generates jids while
/// the daemon is unreachable (`local_jid` in `salt/`). So the two never generate the same jid, even
/// if clocks are set.
#[derive(Debug)]
pub(crate) struct JidMaker(AtomicI64);

impl JidMaker {
    /// A generator for jids after `last`.
    pub(crate) fn after(last: Micros) -> Self {
        Self(AtomicI64::new(last.0))
    }

    /// The time of a new jid.
    pub(crate) fn next(&self, now: Micros) -> Micros {
        let after = |last: i64| {
            let at = now.0.max(last.saturating_add(1));
            at.saturating_add(at & 1)
        };
        let advance = |last: i64| Some(after(last));
        let last = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, advance)
            .unwrap_or(now.0);
        Micros(after(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jids_are_unique_even_when_the_clock_stops_or_steps_back() {
        let maker = JidMaker::after(Micros(100));
        let made = [50, 50, 200, 200, 10, 207].map(|now| maker.next(Micros(now)).0);
        assert_eq!(
            made,
            [102, 104, 200, 202, 204, 208],
            "all even: odd ones are the extension's"
        );
    }
}
