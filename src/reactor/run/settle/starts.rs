//! Starts of runners and wheel functions in the log, and their assignment to our calls.
//!
//! The master chooses the jid of a runner. If its answer is lost, only the start event (`salt/run/<jid>/new`) proves that the call was
//! executed. A start is claimed by one call: by the call whose answer has its jid, or by an earlier call without an answer that has the
//! same function and arguments.

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
    /// Answered wheel functions whose start has not been read, with the position from which to search.
    answered_wheels: VecDeque<(SeqNo, ObservedCall)>,
    in_flight: Vec<ObservedCall>,
}

impl Starts {
    pub(crate) fn sent(&mut self, call: &ObservedCall) {
        self.in_flight.push(call.clone());
    }

    /// Ends a call in flight; `jid` is that of the answer.
    pub(crate) fn returned(&mut self, call: &ObservedCall, since: SeqNo, jid: Option<&str>) {
        if let Some(at) = self.in_flight.iter().position(|one| one == call) {
            self.in_flight.swap_remove(at);
        }
        let Some(jid) = jid else { return };
        let is_shown = self.unclaimed.iter().any(|(_, of, _)| of == jid);
        self.claim(jid);
        // 3006 and 3007 use one jid in the answer to a wheel call, and another in the event with its arguments.
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
        let of_answered = |(since, one): &(SeqNo, ObservedCall)| seq >= *since && is_same(one, &call);
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

    /// Claims the earliest start from `since` on for a call without an answer, and returns its jid. Reserves one start for each equal call
    /// in flight.
    pub(crate) fn find(&mut self, call: &ObservedCall, since: SeqNo) -> Option<String> {
        let others = self.in_flight.iter().filter(|one| is_same(one, call)).count();
        let shown = self.unclaimed.iter().filter(|(seq, _, one)| *seq >= since && is_same(call, one)).count();
        if shown <= others {
            return None;
        }
        let (_, jid, _) = self.unclaimed.remove(self.position(call, since)?)?;
        self.claim(&jid);
        Some(jid)
    }

    fn position(&self, call: &ObservedCall, since: SeqNo) -> Option<usize> {
        self.unclaimed.iter().position(|(seq, _, one)| *seq >= since && is_same(call, one))
    }
}

/// True for the same function and arguments, as far as events show them.
fn is_same(ours: &ObservedCall, shown: &ObservedCall) -> bool {
    ours.client == shown.client && ours.fun == shown.fun && ours.compare(shown).differences.is_empty()
}

fn push<T>(list: &mut VecDeque<T>, item: T) {
    list.push_back(item);
    if list.len() > REACTOR_STARTS_MAX {
        list.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(client: &str, arg: &str) -> ObservedCall {
        ObservedCall::on_master(client, "test.arg", Some(vec![arg.into()]))
    }

    #[test]
    fn a_start_is_reserved_for_an_equal_call_in_flight() {
        let (mut starts, one) = (Starts::default(), call("runner", "1"));
        starts.sent(&one);
        starts.sent(&one);
        starts.returned(&one, SeqNo(1), None);
        starts.note(SeqNo(5), "5", one.clone());
        assert_eq!(starts.find(&one, SeqNo(1)), None, "it may be the other's");
        starts.note(SeqNo(6), "6", one.clone());
        assert_eq!(starts.find(&one, SeqNo(6)), None, "one of the two came before the request");
        assert_eq!(starts.find(&one, SeqNo(1)).as_deref(), Some("5"));
        starts.returned(&one, SeqNo(1), Some("6"));
        assert_eq!(starts.find(&one, SeqNo(1)), None);
    }

    #[test]
    fn a_start_is_claimed_once_even_if_read_late_or_twice() {
        let (mut starts, one) = (Starts::default(), call("runner", "1"));
        starts.sent(&one);
        starts.returned(&one, SeqNo(1), Some("5"));
        starts.note(SeqNo(5), "5", one.clone());
        starts.note(SeqNo(6), "6", ObservedCall::on_master("runner", "test.arg", None));
        starts.note(SeqNo(7), "7", call("runner", "2"));
        starts.note(SeqNo(8), "8", call("wheel", "1"));
        assert_eq!(starts.find(&one, SeqNo(1)), None);
        starts.note(SeqNo(9), "9", one.clone());
        starts.note(SeqNo(9), "9", one.clone());
        assert_eq!(starts.find(&one, SeqNo(1)).as_deref(), Some("9"));
        starts.note(SeqNo(9), "9", one.clone());
        assert_eq!(starts.find(&one, SeqNo(1)), None);
    }

    #[test]
    fn both_jids_of_a_wheel_call_are_claimed() {
        for answer_first in [true, false] {
            let (mut starts, one) = (Starts::default(), call("wheel", "1"));
            starts.sent(&one);
            if answer_first {
                starts.returned(&one, SeqNo(1), Some("4"));
            }
            starts.note(SeqNo(4), "4", ObservedCall::on_master("wheel", "test.arg", None));
            starts.note(SeqNo(5), "5", one.clone());
            if !answer_first {
                starts.returned(&one, SeqNo(1), Some("4"));
            }
            assert_eq!(starts.find(&one, SeqNo(1)), None);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut starts = Starts::default();
        for n in 0..REACTOR_STARTS_MAX + 5 {
            starts.note(SeqNo(n as u64), &n.to_string(), call("runner", "1"));
            starts.claim(&format!("c{n}"));
        }
        assert_eq!(
            (starts.unclaimed.len(), starts.claimed.len().0),
            (REACTOR_STARTS_MAX, REACTOR_STARTS_MAX)
        );
    }
}
