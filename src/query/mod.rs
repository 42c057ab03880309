//! Questions: a job put together from its entries, and lists of jobs.
//!
//! Nothing here is stored. A job is whatever its entries say, read in the order of the log, so the answer is
//! the same however often its pieces came in and however often the index was made again.

mod answer;
mod diff;
mod job;
mod jobs;
mod links;
mod progress;
mod states;

pub use answer::{Answer, Outcome, is_empty};
pub use diff::{Difference, StateDiff, What, diff, previous_run};
pub use job::{Job, Standing, Totals, is_of_cached_job, load_of, rank};
pub use jobs::{
    Bounds, JobFilter, JobResult, JobsPage, Listed, each_job_before, jobs_before, last_jobs, row_load,
};
pub use links::{Child, children, parent};
pub use progress::{News, Step, news};
pub use states::{StateRow, state_rows};
