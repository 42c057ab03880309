//! Queries: jobs assembled from their entries, and lists of jobs.
//!
//! Nothing is stored here. A job is computed from its entries in the order of their times, so the
//! result does not depend on their order of arrival, on duplicates or on rebuilt indexes.

mod answer;
mod arg_filter;
mod change;
mod content;
mod counts;
mod diff;
mod digest;
mod fleet;
mod job;
mod jobs;
mod links;
mod mask;
mod minions;
mod missing;
mod others;
mod parts;
mod progress;

pub(crate) use answer::Answer;
pub(crate) use arg_filter::ArgFilter;
pub(crate) use content::Answers;
pub(crate) use counts::StateCounts;
pub(crate) use diff::{DiffKind, Difference, StateDiff, diff, previous_run};
pub(crate) use digest::{Cause, DAY_US, Digest, DigestView, Failure, RunFailure, Spread, failures};
pub(crate) use fleet::{Fleet, FleetDay, MinionState, fleet, members, not_seen_since};
pub(crate) use job::{Behind, Job, load_of};
pub(crate) use jobs::{
    ChangedJobs, JobFilter, JobResult, ListedJob, PageLimits, each_job_before, jobs_before,
    last_jobs, row_load, settled,
};
pub(crate) use links::{Child, children, parent};
pub(crate) use mask::masked;
pub(crate) use minions::{
    Minion, MinionEvent, MinionRow, MinionRun, MinionsFilter, MinionsPage, MinionsSort, Moment,
    NotRead, minion, minions_list,
};
pub(crate) use missing::{
    MissingGroup, MissingMinion, Silence, missing_by_silence, missing_lately,
};
pub(crate) use others::Others;
pub(crate) use parts::Parts;
#[cfg(test)]
pub(crate) use parts::held;
pub(crate) use progress::{JobChanges, ProgressEvent, job_changes};
