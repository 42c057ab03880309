//! Starts of runners and wheel functions in the log, and their assignment to saltcellar's calls.
//!
//! The master chooses the jid of a runner. If its response is lost, only the start event
//! (`salt/run/<jid>/new`) proves that the call was executed. A start is claimed by one call: by the
//! call whose response contains its jid, or by an earlier call without a response that has the same
//! function and arguments.
//!
//! # Invariant
//!
//! No two calls claim one start of a runner.

use std::collections::VecDeque;

use crate::base::limits::REACTOR_STARTS_MAX;
use crate::model::SeqNo;
use crate::reactor::latest::LatestByJid;
use crate::reactor::shadow::ObservedCall;

/// See the module. Each list holds the latest [`REACTOR_STARTS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// Unclaimed starts, the earliest first.
    unclaimed: VecDeque<(SeqNo, String, ObservedCall)>,
    /// Claimed jids, because a start may be read after it was claimed.
    claimed: LatestByJid<(), REACTOR_STARTS_MAX>,
    /// Answered wheel functions whose start has not been read, with the position from which to
    /// search.
    answered_wheels: VecDeque<(SeqNo, ObservedCall)>,
    in_flight: Vec<ObservedCall>,
}

impl Starts {
    pub(crate) fn sent(&mut self, call: &ObservedCall) {
        self.in_flight.push(call.clone());
    }

    /// Ends a call in flight; `jid` is from the response.
    pub(crate) fn returned(&mut self, call: &ObservedCall, since: SeqNo, jid: Option<&str>) {
        if let Some(at) = self.in_flight.iter().position(|one| one == call) {
            self.in_flight.swap_remove(at);
        }
        let Some(jid) = jid else { return };

        // Read before `claim`, which removes it.
        let is_shown = self.unclaimed.iter().any(|(_, of, _)| of == jid);
        self.claim(jid);

        // 3006 and 3007 use one jid in the response to a wheel call, and another in the event with
        // its arguments.
        if call.client == "wheel" && !is_shown {
            match self.position(call, since) {
                Some(at) => drop(self.unclaimed.remove(at)),
                None => push(&mut self.answered_wheels, (since, call.clone())),
            }
        }
    }

    /// Adds a start. Starts without arguments are ignored, because they match any call.
    pub(crate) fn note(&mut self, seq: SeqNo, jid: &str, call: ObservedCall) {
        if call.args.is_none() || self.unclaimed.iter().any(|(_, of, _)| of == jid) {
            return;
        }

        let of_answered =
            |(since, one): &(SeqNo, ObservedCall)| seq >= *since && is_same(one, &call);
        if let Some(at) = self.answered_wheels.iter().position(of_answered) {
            self.answered_wheels.remove(at);
            return self.claim(jid);
        }
        if self.claimed.get(jid).is_some() {
            return;
        }
        push(&mut self.unclaimed, (seq, jid.to_owned(), call));
    }

    /// Claims a start by its jid.
    pub(crate) fn claim(&mut self, jid: &str) {
        self.unclaimed.retain(|(_, of, _)| of != jid);
        if !jid.is_empty() {
            self.claimed.insert(jid, ());
        }
    }

    /// Claims the earliest start from `since` on for a call without a response, and returns its
    /// jid. Reserves one start for each equal call in flight.
    pub(crate) fn find(&mut self, call: &ObservedCall, since: SeqNo) -> Option<String> {
        let others = self
            .in_flight
            .iter()
            .filter(|one| is_same(one, call))
            .count();

        let shown = self
            .unclaimed
            .iter()
            .filter(|(seq, _, one)| *seq >= since && is_same(call, one))
            .count();

        // Any equal call in flight may be the cause of one of these starts.
        if shown <= others {
            return None;
        }

        let (_, jid, _) = self.unclaimed.remove(self.position(call, since)?)?;
        self.claim(&jid);
        Some(jid)
    }

    fn position(&self, call: &ObservedCall, since: SeqNo) -> Option<usize> {
        self.unclaimed
            .iter()
            .position(|(seq, _, one)| *seq >= since && is_same(call, one))
    }
}

/// True for the same function and arguments, as far as events show them.
fn is_same(ours: &ObservedCall, shown: &ObservedCall) -> bool {
    ours.client == shown.client
        && ours.fun == shown.fun
        && ours.compare(shown).differences.is_empty()
}

fn push<T>(list: &mut VecDeque<T>, item: T) {
    list.push_back(item);
    if list.len() > REACTOR_STARTS_MAX {
        list.pop_front();
    }
}

#[cfg(test)]
mod tests;
