//! What the master's own runners take. Nothing is asked until a reaction in the old form names a runner that is not Salt's own.
//!
//! Salt's Python, where there is one, answers without a trace. The master is asked by a job, which stays in its job list.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::{MASTER_PATIENCE, REACTOR_SIGNATURES};
use crate::master::{Answer, Call, Master, pack, read_signatures};
use crate::reactor::{Salt, Signature, Signatures};
use crate::sls::value::Map;
use crate::store::Store;
use crate::wire::{msgpack, salt_event};

const FUN: &str = "sys.runner_argspec";

/// How often the log is looked at for the master's answer.
const LOOK: Duration = Duration::from_millis(100);

/// Asks, and remembers what was answered.
pub(super) struct Learner {
    store: Store,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    table: Option<Arc<Signatures>>,
    /// Nothing is asked again before.
    quiet_until: Option<Instant>,
}

impl Learner {
    pub(super) fn new(store: Store) -> Self {
        Self { store, learned: Mutex::default() }
    }

    /// What was learned so far.
    pub(super) fn known(&self) -> Option<Arc<Signatures>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner).table.clone()
    }

    /// Asks, unless that was done a moment ago. Blocks: one caller asks, others wait for its answer.
    pub(super) fn learn(&self, salt: &dyn Salt, master: Option<&Master>) -> Option<Arc<Signatures>> {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if learned.quiet_until.is_some_and(|until| Instant::now() < until) {
            return learned.table.clone();
        }
        let told = ask_salt(salt).or_else(|| self.ask_master(master?));
        let pause = if told.is_some() { REACTOR_SIGNATURES } else { REACTOR_SIGNATURES / 60 };
        learned.quiet_until = Some(Instant::now() + pause);
        if let Some(told) = told {
            tracing::debug!(runners = told.len(), "learned what the master's runners take");
            let of = |(name, told): (String, _)| (name.clone(), signature(&name, told));
            learned.table = Some(Arc::new(Signatures::with_runners(told.into_iter().map(of).collect())));
        }
        learned.table.clone()
    }

    /// By a job of the master; the answer comes over its bus.
    fn ask_master(&self, master: &Master) -> Option<Told> {
        let call = Call::runner("salt.cmd", vec![FUN.into(), "*".into()], Map::new());
        let jid = match master.ask(&call, "", MASTER_PATIENCE) {
            Ok(Answer::Started { jid, .. }) => jid,
            Ok(_) => return None,
            Err(error) => return not_asked("the master", &error),
        };
        let until = Instant::now() + MASTER_PATIENCE;
        while Instant::now() < until {
            let before = self.store.durable();
            if let Some(told) = self.answer(&jid) {
                return Some(told);
            }
            self.store.wait_for(before, LOOK);
        }
        tracing::warn!(jid, "the master did not answer in time what its runners take");
        None
    }

    fn answer(&self, jid: &str) -> Option<Told> {
        let entries = self.store.job_entries(jid).unwrap_or_else(|error| {
            tracing::warn!(%error, jid, "the master's answer about its runners could not be read");
            Vec::new()
        });
        let is_ret = |tag: &[u8]| salt_event::job_tag(tag).is_some_and(|tag| tag.about == "ret");
        let ret = entries.iter().find(|entry| is_ret(&entry.tag))?;
        some(read_signatures(msgpack::get(&ret.body, "return").unwrap_or_default()))
    }
}

type Told = std::collections::HashMap<String, crate::master::Signature>;

fn some(told: Told) -> Option<Told> {
    Some(told).filter(|told| !told.is_empty())
}

/// In Salt's own Python: no job, no event.
fn ask_salt(salt: &dyn Salt) -> Option<Told> {
    match salt.call(FUN, &["*".into()], &Map::new()) {
        Ok(answer) => match answer.result {
            Ok(value) => some(read_signatures(&pack::packed(&value))),
            Err((kind, text)) => not_asked("Salt's Python", &format!("{kind}: {text}")),
        },
        Err(error) => not_asked("Salt's Python", &error),
    }
}

fn not_asked(whom: &str, error: &impl std::fmt::Display) -> Option<Told> {
    tracing::debug!(%error, whom, "could not ask what the master's runners take");
    None
}

/// As Salt's own reactor would see it.
fn signature(name: &str, told: crate::master::Signature) -> Signature {
    let known = Signatures::built_in().runner(name).map(|known| known.name.clone());
    let last = || name.rsplit('.').next().unwrap_or(name).to_owned();
    let required = told.args.len().saturating_sub(told.defaults.len());
    let (required, optional) = told.args.split_at(required);
    Signature {
        name: known.unwrap_or_else(last),
        required: required.to_vec(),
        optional: optional.iter().cloned().zip(told.defaults).collect(),
        any_keyword: told.kwargs,
    }
}
