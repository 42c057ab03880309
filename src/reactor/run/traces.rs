//! The traces of calls in the log, and which of them are saltcellar's: starts of runners and wheel
//! functions, depths of jobs, and calls of another reactor.
//!
//! # Invariant
//!
//! The traces of a call are announced before it is sent, because its events can overtake the
//! master's response.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::SeqNo;
use super::depths::{ForeignCalls, JobDepths, event_of, orchestration_jid};
use super::events::{is_bus_event, is_of_interest};
use super::record;
use super::starts::Starts;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{REACTOR_DEPTHS_SEARCH, REACTOR_WAVE_BYTES};
use crate::base::shutdown::Drain;
use crate::model::Kind;
use crate::reactor::master::{Answer, Call, Client, MasterError};
use crate::reactor::shadow::{self, ObservedCall, SaltsCall};
use crate::store::{Followed, Store, StoreError};

pub(super) struct Traces {
    /// Lock order: no other lock is taken under it.
    starts: Mutex<Starts>,
    /// Calls of another reactor while saltcellar's is active. Lock order: before `depths`.
    foreign: Mutex<ForeignCalls>,
    /// Lock order: after `foreign`.
    depths: Mutex<JobDepths>,
    clock: Clock,
}

impl Traces {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            starts: Mutex::default(),
            foreign: Mutex::default(),
            depths: Mutex::default(),
            clock,
        }
    }

    /// Announces a call that is about to be sent, as a reaction to an event of this depth. `start`
    /// is the event by which a runner or wheel function is recognised.
    pub(super) fn announce(
        &self,
        call: &Call,
        start: Option<&ObservedCall>,
        jid: &str,
        depth: u32,
    ) {
        // Only the jids of jobs and orchestrations are chosen here. All others come with the
        // response.
        if call.client == Client::Local {
            self.depths.lock().note(jid, depth);
        } else if let Some(jid) = orchestration_jid(call) {
            self.depths.lock().note(jid, depth);
        }

        if let Some(start) = start {
            self.starts.lock().sent(start);
            self.depths.lock().announce(start, depth, self.clock.now());
        }
    }

    /// Notes the response to a call that was announced; `since` is the end of the log when it was
    /// first sent.
    pub(super) fn answered(
        &self,
        start: Option<&ObservedCall>,
        since: SeqNo,
        answer: &Result<Answer, MasterError>,
        depth: u32,
    ) {
        // From here on the call no longer reserves a start in `Starts::find`.
        if let Some(start) = start {
            let jid = match answer {
                Ok(Answer::Started { jid, .. } | Answer::Ran { jid, .. }) => Some(jid.as_str()),
                _ => None,
            };
            self.starts.lock().returned(start, since, jid);

            // A rejected call fires nothing; its announcement must not match the next equal call.
            if answer.as_ref().is_err_and(MasterError::was_not_done) {
                self.depths.lock().withdraw(start, self.clock.now());
            }
        }

        if let Ok(
            Answer::Started { jid, .. } | Answer::Ran { jid, .. } | Answer::Published { jid, .. },
        ) = answer
        {
            self.depths.lock().note(jid, depth);
        }
    }

    /// Notes a job of a reaction to an event of this depth, found without a response.
    pub(super) fn found(&self, jid: &str, depth: u32) {
        self.depths.lock().note(jid, depth);
    }

    /// Claims the start of a call without a response, and returns its jid.
    pub(super) fn find(&self, start: &ObservedCall, since: SeqNo) -> Option<String> {
        self.starts.lock().find(start, since)
    }

    /// Notes a call of a runner or wheel function by any reactor. `may_be_foreign` is false while
    /// Salt's reactor may act, whose calls are no sign of a mistake then.
    pub(super) fn saw(&self, seq: SeqNo, call: SaltsCall, may_be_foreign: bool) {
        if may_be_foreign {
            let now = self.clock.now();
            self.foreign.lock().note(&call.jid, &call.call.fun, now);
        }
        self.starts.lock().note(seq, &call.jid, call.call);
    }

    /// Evaluates an event of the bus about jobs that others started.
    pub(super) fn follow(&self, row: &Followed<'_>) {
        self.depths.lock().follow(row);
    }

    /// Notes the depths of jobs in a record of another master's reactor.
    pub(super) fn follow_record(&self, record: &[u8]) {
        let mut depths = self.depths.lock();
        record::jobs_of(record).for_each(|(jid, depth)| depths.note(jid, depth));
    }

    /// See [`JobDepths::depth_of`].
    pub(super) fn depth_of(&self, row: &Followed<'_>) -> u32 {
        self.depths.lock().depth_of(row)
    }

    /// Ignores calls of reactors for a while, because they may be saltcellar's without a known response.
    pub(super) fn suspend_foreign(&self) {
        self.foreign.lock().suspend(self.clock.now());
    }

    /// Checks the calls of reactors to which the master had enough time to respond.
    pub(super) fn settle_foreign(&self) {
        self.foreign
            .lock()
            .settle(&self.depths.lock(), self.clock.now());
    }

    /// The latest call of another reactor, if it was recent and saltcellar's is active.
    pub(super) fn foreign(&self) -> Option<(Micros, String)> {
        self.foreign.lock().seen(self.clock.now())
    }

    /// Reads the starts of runners and wheel functions between two positions of the log, and claims
    /// those that belong to calls in records.
    pub(super) fn restore_starts(
        &self,
        log: &Store,
        from: SeqNo,
        end: SeqNo,
        drain: &Drain,
    ) -> Result<(), StoreError> {
        let mut at = from;
        while at < end && !drain.is_stopping() {
            at = log.follow(is_of_interest, at, REACTOR_WAVE_BYTES, |row| {
                // Locked per entry, because workers must not wait for the disk.
                let mut starts = self.starts.lock();
                if row.kind == Kind::Reaction {
                    record::jids(row.body).for_each(|jid| starts.claim(jid));
                } else if row.seq < end
                    && is_bus_event(&row)
                    && row.origin.is_empty()
                    && let Some(start) = shadow::master_call(&row)
                {
                    starts.note(row.seq, &start.jid, start.call);
                }
            })?;
        }

        Ok(())
    }

    /// Restores the depths of jobs after a start, and returns those of the open events. Reads from
    /// [`REACTOR_DEPTHS_SEARCH`] entries before the oldest open event up to `cursor`.
    pub(super) fn restore_depths(
        &self,
        log: &Store,
        open: impl Iterator<Item = SeqNo>,
        cursor: SeqNo,
    ) -> Result<HashMap<SeqNo, u32>, StoreError> {
        // A jid contains the low 32 bits of its event's number, see `own_jid` in `calls`.
        let open: HashMap<u64, SeqNo> = open.map(|seq| (seq.0 % (1 << 32), seq)).collect();

        let oldest = open.values().min().copied().unwrap_or(cursor);
        let from = SeqNo(oldest.0.saturating_sub(REACTOR_DEPTHS_SEARCH).max(1));
        let mut depths = HashMap::new();

        // Held throughout: workers that send calls meanwhile wait instead of adding to half a
        // result.
        let mut job_depths = self.depths.lock();

        // Records first, because events caused by a runner may come before its record.
        let mut at = from;
        while at < cursor {
            let records = |kind, _| kind == Kind::Reaction;
            at = log.follow(records, at, REACTOR_WAVE_BYTES, |row| {
                // The last part may reach beyond the cursor, which is harmless: the depth of a jid
                // never changes.
                record::jobs_of(row.body).for_each(|(jid, depth)| job_depths.note(jid, depth));
            })?;
        }

        at = from;
        while at < cursor {
            at = log.follow(is_of_interest, at, REACTOR_WAVE_BYTES, |row| {
                // Entries from the cursor on are read by the follower, which evaluates them itself.
                if row.seq >= cursor || !is_bus_event(&row) {
                    return;
                }

                // A job that was published before the daemon ended without writing its record.
                if job_depths.depth(row.jid) == 0
                    && let Some(seq) = event_of(row.jid).and_then(|event| open.get(&event))
                    && *seq < row.seq
                {
                    job_depths.note(row.jid, depths.get(seq).copied().unwrap_or(0));
                }

                job_depths.follow(&row);
                if open.get(&(row.seq.0 % (1 << 32))) == Some(&row.seq) {
                    depths.insert(row.seq, job_depths.depth_of(&row));
                }
            })?;
        }

        Ok(depths)
    }
}

#[cfg(test)]
mod tests {
    use salt_sls::Map;

    use super::*;

    fn seen(seq: u64, jid: &str) -> (SeqNo, SaltsCall) {
        let call = SaltsCall {
            seq: SeqNo(seq),
            at: Micros(0),
            jid: jid.to_owned(),
            call: ObservedCall::of(&Call::runner("test.arg", vec!["x".into()], Map::default())),
            certain: true,
        };
        (SeqNo(seq), call)
    }

    #[test]
    fn a_call_is_foreign_unless_a_response_to_ours_has_its_jid() {
        let clock = Clock::manual(Micros(1_795_000_000_000_000));
        let traces = Traces::new(clock.clone());
        for (seq, jid) in [(1, "theirs"), (2, "ours")] {
            let (seq, call) = seen(seq, jid);
            traces.saw(seq, call, true);
        }
        let answer = Answer::Started {
            jid: "ours".to_owned(),
            tag: String::new(),
        };
        traces.answered(None, SeqNo(1), &Ok(answer), 0);

        clock.wind(60_000_000);
        let at = Micros(1_795_000_000_000_000);
        traces.settle_foreign();
        assert_eq!(traces.foreign(), Some((at, "test.arg".to_owned())));

        // In shadow, or without a lease, Salt's reactor may act.
        let traces = Traces::new(clock.clone());
        let (seq, call) = seen(1, "theirs");
        traces.saw(seq, call, false);
        clock.wind(60_000_000);
        traces.settle_foreign();
        assert_eq!(traces.foreign(), None);
    }

    #[test]
    fn a_start_proves_one_call_without_a_response() {
        let traces = Traces::new(Clock::manual(Micros(0)));
        let call = Call::runner("test.arg", vec!["x".into()], Map::default());
        let start = ObservedCall::of(&call);
        traces.announce(&call, Some(&start), "", 0);
        let (seq, shown) = seen(5, "7");
        traces.saw(seq, shown, false);
        assert_eq!(
            traces.find(&start, SeqNo(1)),
            None,
            "the call in flight may be its cause"
        );

        let lost = MasterError::NoAnswer {
            place: String::new(),
            why: String::new(),
        };
        traces.answered(Some(&start), SeqNo(1), &Err(lost), 0);
        assert_eq!(traces.find(&start, SeqNo(6)), None, "it came before");
        assert_eq!(traces.find(&start, SeqNo(1)).as_deref(), Some("7"));
        assert_eq!(traces.find(&start, SeqNo(1)), None, "it is claimed");
    }
}
