//! Queries: jobs assembled from their entries, and lists of jobs.
//!
//! Nothing is stored here. A job is computed from its entries in the order of the log, so the answer does not depend
//! on duplicates or on rebuilt indexes.

mod answer;
mod diff;
mod job;
mod jobs;
mod links;
mod minions;
mod progress;
mod states;

pub use answer::{Answer, Outcome, is_empty};
pub use diff::{DiffKind, Difference, StateDiff, diff, previous_run};
pub use job::{Job, Precedence, Totals, is_of_cached_job, load_of, rank};
pub use jobs::{
    JobFilter, JobResult, JobsPage, ListedJob, PageLimits, each_job_before, jobs_before, last_jobs, row_load,
};
pub use links::{Child, children, parent};
pub use minions::{
    LastRun, MinionDetails, MinionRow, MinionsFilter, MinionsPage, Seen, Skipped, StateCounts, TimelineEvent,
    minion, minions_list,
};
pub use progress::{JobChanges, ProgressEvent, job_changes};
pub use states::{StateRow, state_rows};
