//! Questions: a job put together from its entries, and lists of jobs.
//!
//! Nothing here is stored. A job is whatever its entries say, read in the order of the log, so the answer is
//! the same however often its pieces came in and however often the index was made again.

mod job;
mod jobs;

pub use job::{Answer, Job, Standing, load_of, rank};
pub use jobs::{JobFilter, Listed, jobs_before, row_load};
