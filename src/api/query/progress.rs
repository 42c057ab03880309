//! The progress of a job: changes since an earlier query.

use super::answer::{is_bus_only, names_jobs};
use super::job::Job;
use crate::base::limits::{LIST_BYTES_MAX, LIST_ROWS_MAX};
use crate::model::{Kind, SeqNo};
use crate::store::{JobPart, StoreError, StoreView, StoredEntry};
use crate::wire::msgpack;
use crate::wire::salt_event::job_tag;

#[derive(Debug, Default)]
pub(crate) struct JobChanges {
    /// Loads, answers and end: the job assembled from the new entries only. `None` without changes.
    pub(crate) job: Option<Job>,
    /// States that ran (with `state_events`), and progress reports of runners.
    pub(crate) steps: Vec<ProgressEvent>,
    /// The runner or wheel has ended, or Salt has reported the job's end time.
    pub(crate) ended: bool,
    /// The position for the next query.
    pub(crate) next: SeqNo,
}

/// A progress event of a running job: `salt/job/<jid>/prog/..` or `salt/run/<jid>/progress`.
#[derive(Debug)]
pub(crate) struct ProgressEvent {
    pub(crate) entry: StoredEntry,
}

impl ProgressEvent {
    /// The content: a state's row in Salt's form, or a runner's report.
    pub(crate) fn value(&self) -> &[u8] {
        let ret = msgpack::get(&self.entry.body, "data").and_then(|data| msgpack::get(data, "ret"));
        ret.unwrap_or(&self.entry.body)
    }
}

pub(crate) fn job_changes(
    store: &StoreView,
    jid: &str,
    from: SeqNo,
) -> Result<JobChanges, StoreError> {
    // Taken before the entries: what is stored in between is found by the next query.
    let upto = store.durable();

    let about = |entry: &StoredEntry| job_tag(&entry.tag).map_or("", |tag| tag.about).to_owned();
    let wanted = |e: &StoredEntry| match e.kind {
        Kind::Return => names_jobs(e),
        Kind::Event => matches!(about(e).as_str(), "prog" | "progress" | "new"),
        _ => true,
    };

    let part = JobPart {
        range: (from, SeqNo(u64::MAX)),
        entries_max: LIST_ROWS_MAX,
        bytes_max: LIST_BYTES_MAX,
    };
    let page = store.job_page_with(jid, part, wanted)?;
    let end = page.entries.last().map_or(from, |last| last.seq.next());

    let mut found = JobChanges {
        // With more entries to come, the next query continues at the end of the page and not at that of the log.
        next: page.next.unwrap_or(end.max(upto)),
        ..JobChanges::default()
    };

    // Its load may be older than `from`.
    let cached = store
        .job_row(jid)?
        .is_some_and(|row| row.is_cached_by_salt());

    let mut of_job = Vec::new();
    let mut runs = false;
    for entry in page.entries {
        let of_master = ["runner.", "wheel."]
            .iter()
            .any(|kind| entry.fun.starts_with(kind));
        match (entry.kind, about(&entry).as_str()) {
            (Kind::Event, "prog" | "progress") => found.steps.push(ProgressEvent { entry }),
            (Kind::Event, "ret") => runs |= entry.jid == jid,
            (Kind::Endtime, _) => {
                found.ended = true;
                of_job.push(entry);
            }
            _ => {
                // A return that any program may have fired does not end a job that Salt caches.
                runs |= entry.kind == Kind::Return && of_master && !(cached && is_bus_only(&entry));
                of_job.push(entry);
            }
        }
    }

    // A `.../ret` without a minion belongs to a runner or wheel.
    found.ended |= runs;
    found.job = Job::of_part(of_job, cached);
    Ok(found)
}
