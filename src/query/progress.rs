//! A job as it goes on: what came since somebody looked last.

use super::answer::{is_bus_only, tells_by_body};
use super::job::Job;
use crate::limits::LIST_ROWS_MAX;
use crate::model::{Kind, SeqNo};
use crate::store::{Store, StoreError, StoredEntry};
use crate::wire::msgpack;
use crate::wire::salt_event::job_tag;

/// What came of a job.
#[derive(Debug, Default)]
pub struct News {
    /// Loads, answers and end: the job as these entries alone tell it. `None` if nothing came.
    pub job: Option<Job>,
    /// States that ran, with `state_events`, and what runners report.
    pub steps: Vec<Step>,
    /// The runner or wheel has ended, or Salt has said when the job did.
    pub ended: bool,
    /// Where to go on.
    pub next: SeqNo,
}

/// A word about a job that is under way: an event `salt/job/<jid>/prog/..` or `salt/run/<jid>/progress`.
#[derive(Debug)]
pub struct Step {
    /// The event.
    pub entry: StoredEntry,
}

impl Step {
    /// What it says: a state's row as Salt returns it, or what a runner reports.
    pub fn value(&self) -> &[u8] {
        let ret = msgpack::get(&self.entry.body, "data").and_then(|data| msgpack::get(data, "ret"));
        ret.unwrap_or(&self.entry.body)
    }
}

/// What came of a job from `from` on.
pub fn news(store: &Store, jid: &str, from: SeqNo) -> Result<News, StoreError> {
    let upto = store.durable();
    let about = |entry: &StoredEntry| job_tag(&entry.tag).map_or("", |tag| tag.about).to_owned();
    let wanted = |e: &StoredEntry| match e.kind {
        Kind::Return => tells_by_body(e),
        Kind::Event => matches!(about(e).as_str(), "prog" | "progress" | "new"),
        _ => true,
    };
    let mut entries = store.job_entries_since(jid, from, wanted)?;
    entries.truncate(LIST_ROWS_MAX);
    let mut found = News { next: from.max(upto), ..News::default() };
    if let Some(last) = entries.last() {
        found.next = if entries.len() == LIST_ROWS_MAX { last.seq.next() } else { upto.max(last.seq.next()) };
    }
    // Its load may have come long before.
    let cached = store.job_row(jid)?.is_some_and(|row| row.is_cached_by_salt());
    let (mut of_job, mut runs) = (Vec::new(), false);
    for entry in entries {
        let of_master = ["runner.", "wheel."].iter().any(|kind| entry.fun.starts_with(kind));
        match (entry.kind, about(&entry).as_str()) {
            (Kind::Event, "prog" | "progress") => found.steps.push(Step { entry }),
            (Kind::Event, "ret") => runs |= entry.jid == jid,
            (Kind::Endtime, _) => {
                found.ended = true;
                of_job.push(entry);
            }
            _ => {
                runs |= entry.kind == Kind::Return && of_master && !(cached && is_bus_only(&entry));
                of_job.push(entry);
            }
        }
    }
    // A `.../ret` that is no minion's is a runner's or a wheel's.
    found.ended |= runs;
    found.job = Job::of_part(of_job, cached);
    Ok(found)
}
