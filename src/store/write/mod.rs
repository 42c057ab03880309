//! The write path: ordering, deduplication, packing and commits.

pub mod appender;
pub mod class;
pub mod committer;
pub mod dedupe;
mod reactor_file;
pub(in crate::store) mod refill;
pub mod seqno;
pub(crate) mod shares;
