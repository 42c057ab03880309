//! Starts of runners and wheel functions that the log shows, and which of our calls each of them belongs to.
//!
//! The master chooses the jid of a runner. If its answer is lost, only the event of the start (`salt/run/<jid>/new`) shows that the
//! call was carried out. A start belongs to one call: it is claimed by the answer that names its jid, or by a call without an answer
//! that has the same function and arguments and was sent before it.

use std::collections::{HashSet, VecDeque};

use crate::limits::REACTOR_STARTS_MAX;
use crate::model::SeqNo;
use crate::reactor::shadow::Act;

/// See the top of the file. Each list keeps the latest [`REACTOR_STARTS_MAX`].
#[derive(Debug, Default)]
pub struct Starts {
    /// Starts that no call has claimed, the earliest first.
    unclaimed: VecDeque<(SeqNo, String, Act)>,
    /// Jids that are claimed, so that a start that is read later is not offered again.
    claimed: HashSet<String>,
    claimed_order: VecDeque<String>,
    /// Wheel functions that were answered while their start was not read yet, and the place in the log from which it is looked for.
    answered_wheels: VecDeque<(SeqNo, Act)>,
    /// Calls that were sent and still wait for their answer.
    in_flight: Vec<Act>,
}

impl Starts {
    /// A call is about to be sent.
    pub fn sent(&mut self, act: &Act) {
        self.in_flight.push(act.clone());
    }

    /// Its wait for an answer is over; `jid` is the answer's.
    pub fn returned(&mut self, act: &Act, since: SeqNo, jid: Option<&str>) {
        if let Some(at) = self.in_flight.iter().position(|one| one == act) {
            self.in_flight.swap_remove(at);
        }
        let Some(jid) = jid else { return };
        let is_shown = self.unclaimed.iter().any(|(_, of, _)| of == jid);
        self.claim(jid);
        // 3006 and 3007 answer a wheel call with one jid, and show its arguments under another.
        if act.client == "wheel" && !is_shown {
            match self.position(act, since) {
                Some(at) => drop(self.unclaimed.remove(at)),
                None => push(&mut self.answered_wheels, (since, act.clone())),
            }
        }
    }

    /// The log shows a start. One without arguments can be anybody's.
    pub fn note(&mut self, seq: SeqNo, jid: &str, act: Act) {
        if act.args.is_none() || self.unclaimed.iter().any(|(_, of, _)| of == jid) {
            return;
        }
        let of_answered = |(since, one): &(SeqNo, Act)| seq >= *since && is_same(one, &act);
        if let Some(at) = self.answered_wheels.iter().position(of_answered) {
            self.answered_wheels.remove(at);
            return self.claim(jid);
        }
        if self.claimed.contains(jid) {
            return;
        }
        push(&mut self.unclaimed, (seq, jid.to_owned(), act));
    }

    /// A start belongs to a call of ours.
    pub fn claim(&mut self, jid: &str) {
        self.unclaimed.retain(|(_, of, _)| of != jid);
        if !jid.is_empty() && self.claimed.insert(jid.to_owned()) {
            self.claimed_order.push_back(jid.to_owned());
            if self.claimed_order.len() > REACTOR_STARTS_MAX
                && let Some(oldest) = self.claimed_order.pop_front()
            {
                self.claimed.remove(&oldest);
            }
        }
    }

    /// Claims the start of a call without an answer: the jid of the earliest one from `since` on. While equal calls still wait for their
    /// answers, as many starts are left to them.
    pub fn find(&mut self, act: &Act, since: SeqNo) -> Option<String> {
        let others = self.in_flight.iter().filter(|one| is_same(one, act)).count();
        let shown = self.unclaimed.iter().filter(|(seq, _, one)| *seq >= since && is_same(act, one)).count();
        if shown <= others {
            return None;
        }
        let (_, jid, _) = self.unclaimed.remove(self.position(act, since)?)?;
        self.claim(&jid);
        Some(jid)
    }

    fn position(&self, act: &Act, since: SeqNo) -> Option<usize> {
        self.unclaimed.iter().position(|(seq, _, one)| *seq >= since && is_same(act, one))
    }
}

/// The same function with the same arguments, as far as events show them.
fn is_same(ours: &Act, shown: &Act) -> bool {
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

    fn act(client: &str, arg: &str) -> Act {
        Act::on_master(client, "test.arg", Some(vec![arg.into()]))
    }

    #[test]
    fn an_equal_call_that_waits_for_its_answer_keeps_its_start() {
        let (mut starts, one) = (Starts::default(), act("runner", "1"));
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
    fn a_start_is_claimed_once_also_if_it_is_read_after_the_answer_or_twice() {
        let (mut starts, one) = (Starts::default(), act("runner", "1"));
        starts.sent(&one);
        starts.returned(&one, SeqNo(1), Some("5"));
        starts.note(SeqNo(5), "5", one.clone());
        starts.note(SeqNo(6), "6", Act::on_master("runner", "test.arg", None));
        starts.note(SeqNo(7), "7", act("runner", "2"));
        starts.note(SeqNo(8), "8", act("wheel", "1"));
        assert_eq!(starts.find(&one, SeqNo(1)), None);
        starts.note(SeqNo(9), "9", one.clone());
        starts.note(SeqNo(9), "9", one.clone());
        assert_eq!(starts.find(&one, SeqNo(1)).as_deref(), Some("9"));
        starts.note(SeqNo(9), "9", one.clone());
        assert_eq!(starts.find(&one, SeqNo(1)), None);
    }

    #[test]
    fn a_wheel_call_whose_arguments_are_shown_under_another_jid_left_a_start_that_another_call_claimed() {
        for answer_first in [true, false] {
            let (mut starts, one) = (Starts::default(), act("wheel", "1"));
            starts.sent(&one);
            if answer_first {
                starts.returned(&one, SeqNo(1), Some("4"));
            }
            starts.note(SeqNo(4), "4", Act::on_master("wheel", "test.arg", None));
            starts.note(SeqNo(5), "5", one.clone());
            if !answer_first {
                starts.returned(&one, SeqNo(1), Some("4"));
            }
            assert_eq!(starts.find(&one, SeqNo(1)), None);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut starts = Starts::default();
        for n in 0..REACTOR_STARTS_MAX + 5 {
            starts.note(SeqNo(n as u64), &n.to_string(), act("runner", "1"));
            starts.claim(&format!("c{n}"));
        }
        assert_eq!((starts.unclaimed.len(), starts.claimed.len()), (REACTOR_STARTS_MAX, REACTOR_STARTS_MAX));
    }
}
