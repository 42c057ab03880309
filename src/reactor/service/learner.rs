//! Signatures of the master's own runners, fetched when a reaction in the old form names a runner that is not part of Salt.
//!
//! Salt's Python, if available, answers without side effects. Otherwise a job of the master answers, which appears in its job list.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{MASTER_TIMEOUT, REACTOR_SIGNATURES};
use crate::master::{Answer, Call, Master, pack, read_signatures};
use crate::reactor::{Salt, Signature, Signatures};
use crate::sls::value::Map;
use crate::store::Store;
use crate::wire::{msgpack, salt_event};

const FUN: &str = "sys.runner_argspec";

/// Interval between checks of the log for the master's answer.
const POLL: Duration = Duration::from_millis(100);

/// Fetches and caches signatures.
pub(super) struct Learner {
    store: Store,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    table: Option<Arc<Signatures>>,
    /// Nothing is fetched before.
    quiet_until: Option<Instant>,
}

impl Learner {
    pub(super) fn new(store: Store) -> Self {
        Self { store, learned: Mutex::default() }
    }

    /// The signatures fetched so far.
    pub(super) fn known(&self) -> Option<Arc<Signatures>> {
        self.learned.lock().table.clone()
    }

    /// Fetches the signatures, unless that was done recently. Blocks: one caller fetches, others wait for it.
    pub(super) fn learn(&self, salt: &dyn Salt, master: Option<&Master>) -> Option<Arc<Signatures>> {
        let mut learned = self.learned.lock();
        if learned.quiet_until.is_some_and(|until| Instant::now() < until) {
            return learned.table.clone();
        }
        let found = ask_salt(salt).or_else(|| self.ask_master(master?));
        let pause = if found.is_some() { REACTOR_SIGNATURES } else { REACTOR_SIGNATURES / 60 };
        learned.quiet_until = Some(Instant::now() + pause);
        if let Some(found) = found {
            tracing::debug!(runners = found.len(), "fetched the signatures of the master's runners");
            let of = |(name, reported): (String, _)| (name.clone(), signature(&name, reported));
            learned.table = Some(Arc::new(Signatures::with_runners(found.into_iter().map(of).collect())));
        }
        learned.table.clone()
    }

    /// Fetches by a job of the master, whose result arrives on the bus.
    fn ask_master(&self, master: &Master) -> Option<Reported> {
        let call = Call::runner("salt.cmd", vec![FUN.into(), "*".into()], Map::new());
        let jid = match master.ask(&call, "", MASTER_TIMEOUT) {
            Ok(Answer::Started { jid, .. }) => jid,
            Ok(_) => return None,
            Err(error) => return not_available("the master", &error),
        };
        let until = Instant::now() + MASTER_TIMEOUT;
        while Instant::now() < until {
            let before = self.store.durable();
            if let Some(found) = self.answer(&jid) {
                return Some(found);
            }
            self.store.wait_for(before, POLL);
        }
        tracing::warn!(jid, "timeout while fetching the signatures of the master's runners");
        None
    }

    fn answer(&self, jid: &str) -> Option<Reported> {
        let entries = self.store.job_entries(jid).unwrap_or_else(|error| {
            tracing::warn!(%error, jid, "cannot read the signatures of the master's runners");
            Vec::new()
        });
        let is_ret = |tag: &[u8]| salt_event::job_tag(tag).is_some_and(|tag| tag.about == "ret");
        let ret = entries.iter().find(|entry| is_ret(&entry.tag))?;
        some(read_signatures(msgpack::get(&ret.body, "return").unwrap_or_default()))
    }
}

type Reported = std::collections::HashMap<String, crate::master::Signature>;
fn some(found: Reported) -> Option<Reported> {
    Some(found).filter(|found| !found.is_empty())
}
/// Fetches from Salt's own Python, without a job or event.
fn ask_salt(salt: &dyn Salt) -> Option<Reported> {
    match salt.call(FUN, &["*".into()], &Map::new()) {
        Ok(answer) => match answer.result {
            Ok(value) => some(read_signatures(&pack::packed(&value))),
            Err((kind, text)) => not_available("Salt's Python", &format!("{kind}: {text}")),
        },
        Err(error) => not_available("Salt's Python", &error),
    }
}
fn not_available(from: &str, error: &impl std::fmt::Display) -> Option<Reported> {
    tracing::debug!(%error, from, "cannot fetch the signatures of the master's runners");
    None
}

/// The signature as Salt's own reactor sees it.
fn signature(name: &str, reported: crate::master::Signature) -> Signature {
    let known = Signatures::built_in().runner(name).map(|known| known.name.clone());
    let last = || name.rsplit('.').next().unwrap_or(name).to_owned();
    let required = reported.args.len().saturating_sub(reported.defaults.len());
    let (required, optional) = reported.args.split_at(required);
    Signature {
        name: known.unwrap_or_else(last),
        required: required.to_vec(),
        optional: optional.iter().cloned().zip(reported.defaults).collect(),
        any_keyword: reported.kwargs,
    }
}
