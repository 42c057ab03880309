//! The reaction depth of jobs and events, to stop loops of reactions.
//!
//! The depth of an event is the length of the chain of reactions that led to it. The log alone
//! determines it: records of reactions name their jobs, and announcements ([`announced`]) and
//! `__pub_jid` extend the chain.

pub(crate) mod announced;

use std::collections::VecDeque;

use salt_sls::Value;

use self::announced::Announced;
use crate::base::clock::Micros;
use crate::base::limits::{
    REACTOR_DEPTHS_MAX, REACTOR_FOREIGN_CALL_GRACE, REACTOR_FOREIGN_CALL_TTL,
    REACTOR_FOREIGN_CALLS_MAX,
};
use crate::reactor::latest::LatestByJid;
use crate::reactor::master::{Call, Client};
use crate::reactor::shadow::ObservedCall;
use crate::store::Followed;
use crate::wire::msgpack::{as_text, get};
use crate::wire::salt_event::job_tag;

/// The depths of jobs, the latest [`REACTOR_DEPTHS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct JobDepths {
    depths: LatestByJid<u32, REACTOR_DEPTHS_MAX>,
    announced: Announced,
}

impl JobDepths {
    /// Notes a job of a reaction to an event of this depth.
    pub(crate) fn note(&mut self, jid: &str, depth: u32) {
        self.set(jid, depth.saturating_add(1));
    }

    fn set(&mut self, jid: &str, depth: u32) {
        if !jid.is_empty() {
            self.depths.insert(jid, depth);
        }
    }

    /// The depth of events of a job; 0 for unknown jobs.
    pub(crate) fn depth(&self, jid: &str) -> u32 {
        self.depths.get(jid).copied().unwrap_or(0)
    }

    /// Announces a runner that a reaction to an event of this depth is about to call.
    pub(crate) fn announce(&mut self, call: &ObservedCall, depth: u32, now: Micros) {
        if let Some(start) = announced::by_call(call) {
            self.announced
                .add_start(start, depth.saturating_add(1), now);
        }
    }

    pub(crate) fn withdraw(&mut self, call: &ObservedCall, now: Micros) {
        if let Some(start) = announced::by_call(call) {
            self.announced.remove_start(start, now);
        }
    }

    /// Evaluates a bus entry about jobs and runner calls that others started.
    pub(crate) fn follow(&mut self, row: &Followed<'_>) {
        let is_run = row.tag.starts_with(b"salt/run/");
        // Job events matter only while something is announced.
        if !is_run && (self.announced.is_empty() || !row.tag.starts_with(b"salt/job/")) {
            return;
        }
        let Some(tag) = job_tag(row.tag) else { return };

        let depth = self.depth(tag.jid);
        match tag.about {
            "new" if !is_run => {
                let announced = announced::of_job(row.body).filter(|_| depth == 0);
                if let Some(depth) = announced.and_then(|key| self.announced.take(key, row.at)) {
                    self.set(tag.jid, depth);
                }
            }
            // The arms below are for runners.
            _ if !is_run => {}
            "args" if depth > 0 => {
                if let Some(start) = announced::by_orchestration(row.body) {
                    self.announced.add_start(start, depth, row.at);
                }
            }
            "new" if depth > 0 || !self.announced.is_empty() => {
                let Some(start) = announced::of_run(row.body) else {
                    return;
                };
                // Taken even if the depth is known, because the announcement must be used up.
                if let Some(announced) = self.announced.take(start.new, row.at) {
                    // The event that it sends was announced with it.
                    self.set(tag.jid, announced.max(depth));
                } else if let Some(key) = start.sends.filter(|_| depth > 0) {
                    self.announced.add(key, depth, row.at);
                }
            }
            _ => {}
        }
    }

    /// The depth of an event: from its job, from the job that its data names, or from an
    /// announcement.
    pub(crate) fn depth_of(&mut self, row: &Followed<'_>) -> u32 {
        let of_data = |data: &[u8]| {
            get(data, "__pub_jid")
                .and_then(as_text)
                .map_or(0, |jid| self.depth(jid))
        };
        let mut depth = self.depth(row.jid);

        // Most bodies lack the name, and a search of their bytes is cheaper than a walk over them.
        if memchr::memmem::find(row.body, b"__pub_jid").is_some() {
            // The master wraps the event of a minion in another mapping.
            depth = depth
                .max(of_data(row.body))
                .max(get(row.body, "data").map_or(0, of_data));
        }

        // Last, because it decodes the body and uses the announcement up.
        if depth == 0 && !self.announced.is_empty() {
            let announced = announced::of_event(row.tag, row.body);
            depth = announced
                .and_then(|key| self.announced.take(key, row.at))
                .unwrap_or(0);
        }

        depth
    }
}

/// The jid in the announcements of an orchestration; `None` for other calls.
pub(crate) fn orchestration_jid(call: &Call) -> Option<&str> {
    call.load
        .get("kwarg")?
        .as_map()?
        .get("kwarg")?
        .as_map()?
        .get(ORCHESTRATION_JID)?
        .as_str()
}

/// Sets that jid in a call of an orchestration, as `salt-run` does. Otherwise the master generates
/// one, which cannot be linked to the runner call.
pub(crate) fn name_orchestration(call: &mut Call, jid: impl FnOnce() -> String) {
    let is_orchestration = matches!(
        call.fun.as_str(),
        "state.orchestrate" | "state.orch" | "state.sls"
    );
    if call.client != Client::Runner || !is_orchestration {
        return;
    }

    let Some(Value::Map(both)) = call.load.get_mut("kwarg") else {
        return;
    };

    // It is the eighth argument.
    let is_positional = both
        .get("arg")
        .and_then(Value::as_list)
        .is_some_and(|args| args.len() > 7);

    if let Some(Value::Map(words)) = both.get_mut("kwarg").filter(|_| !is_positional) {
        // A jid that the file sets is kept.
        words
            .entry(ORCHESTRATION_JID.into())
            .or_insert_with(|| jid().into());
    }
}

const ORCHESTRATION_JID: &str = "orchestration_jid";

/// The number of a reaction's event, from the jid of its job: see `own_jid` in `calls`.
pub(super) fn event_of(jid: &str) -> Option<u64> {
    jid.split_once('_')?.1.parse().ok()
}

/// Calls of runners and wheel functions by any reactor. A call is foreign if no response of the
/// master to a saltcellar call contains its jid; such a response may come later than the event.
#[derive(Debug, Default)]
pub(crate) struct ForeignCalls {
    waiting: VecDeque<(Micros, String, String)>,
    seen: Option<(Micros, String)>,
    /// Until then calls are ignored: a response to one of saltcellar's may be lost, or may have come before
    /// the start.
    quiet_until: Micros,
}

impl ForeignCalls {
    pub(crate) fn note(&mut self, jid: &str, fun: &str, now: Micros) {
        if now >= self.quiet_until && self.waiting.len() < REACTOR_FOREIGN_CALLS_MAX {
            self.waiting
                .push_back((now, jid.to_owned(), fun.to_owned()));
        }
    }

    /// Ignores calls for a while, because they may be saltcellar's without a known response.
    pub(crate) fn suspend(&mut self, now: Micros) {
        self.quiet_until = now.after(REACTOR_FOREIGN_CALL_GRACE);
        self.waiting.clear();
    }

    /// Checks the calls to which the master had enough time to respond.
    pub(crate) fn settle(&mut self, job_depths: &JobDepths, now: Micros) {
        while let Some((at, jid, fun)) = self.waiting.pop_front() {
            if now < at.after(REACTOR_FOREIGN_CALL_GRACE) {
                return self.waiting.push_front((at, jid, fun));
            }
            if job_depths.depth(&jid) == 0 {
                self.seen = Some((at, fun));
            }
        }
    }

    /// The latest call of another reactor, if it was recent.
    pub(crate) fn seen(&self, now: Micros) -> Option<(Micros, String)> {
        self.seen
            .clone()
            .filter(|(at, _)| now < at.after(REACTOR_FOREIGN_CALL_TTL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_nested_reactions_and_memory_is_bounded() {
        let mut job_depths = JobDepths::default();
        job_depths.note("1", 0);
        job_depths.note("2", job_depths.depth("1"));
        assert_eq!(
            ["1", "2", "3", ""].map(|jid| job_depths.depth(jid)),
            [1, 2, 0, 0]
        );
        for n in 0..REACTOR_DEPTHS_MAX {
            job_depths.note(&format!("n{n}"), 0);
        }
        assert_eq!(
            (job_depths.depth("1"), job_depths.depths.len().0),
            (0, REACTOR_DEPTHS_MAX)
        );
    }

    #[test]
    fn calls_of_orchestrations_get_a_known_jid() {
        let named = |fun: &str, args: usize| {
            let mut call = Call::runner(fun, vec!["x".into(); args], salt_sls::Map::default());
            name_orchestration(&mut call, || "1_2".to_owned());
            name_orchestration(&mut call, || "3_4".to_owned());
            orchestration_jid(&call).map(str::to_owned)
        };
        for fun in ["state.orchestrate", "state.orch", "state.sls"] {
            assert_eq!(named(fun, 1).as_deref(), Some("1_2"));
        }
        assert_eq!(
            (named("state.orchestrate", 8), named("test.arg", 1)),
            (None, None)
        );
        let mut wheel = Call::wheel("state.orchestrate", Vec::new(), salt_sls::Map::default());
        name_orchestration(&mut wheel, || "1_2".to_owned());
        assert_eq!(orchestration_jid(&wheel), None);
    }

    #[test]
    fn a_call_is_foreign_if_no_answer_to_ours_has_its_jid() {
        let (mut foreign, mut job_depths) = (ForeignCalls::default(), JobDepths::default());
        let at = |seconds: i64| Micros(1_795_000_000_000_000 + seconds * 1_000_000);
        foreign.suspend(at(0));
        foreign.note("before", "state.orch", at(1));
        foreign.note("ours", "state.orch", at(40));
        foreign.settle(&job_depths, at(41));
        job_depths.note("ours", 0);
        foreign.settle(&job_depths, at(80));
        assert_eq!(foreign.seen(at(80)), None);
        foreign.note("theirs", "state.orch", at(81));
        foreign.settle(&job_depths, at(82));
        assert_eq!(foreign.seen(at(82)), None, "it may still become ours");
        foreign.settle(&job_depths, at(112));
        assert_eq!(
            foreign.seen(at(112)),
            Some((at(81), "state.orch".to_owned()))
        );
        assert_eq!(foreign.seen(at(3_700)), None);
    }

    #[test]
    fn a_jid_noted_twice_is_stored_once() {
        let mut job_depths = JobDepths::default();
        for _ in 0..REACTOR_DEPTHS_MAX + 5 {
            job_depths.note("1", 0);
        }
        job_depths.note("2", 0);
        assert_eq!(
            (
                job_depths.depths.len(),
                job_depths.depth("1"),
                job_depths.depth("2")
            ),
            ((2, 2), 1, 1)
        );
    }

    #[test]
    fn waiting_calls_are_bounded_and_dropped_when_some_may_be_ours() {
        let (mut foreign, job_depths) = (ForeignCalls::default(), JobDepths::default());
        let at = |seconds: i64| Micros(1_795_000_000_000_000 + seconds * 1_000_000);
        for n in 0..REACTOR_FOREIGN_CALLS_MAX + 5 {
            foreign.note(&n.to_string(), "state.orch", at(0));
        }
        assert_eq!(foreign.waiting.len(), REACTOR_FOREIGN_CALLS_MAX);
        foreign.suspend(at(1));
        foreign.settle(&job_depths, at(1_000));
        assert_eq!(foreign.seen(at(1_000)), None);
    }
}
