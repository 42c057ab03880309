//! The write path: ordering, deduplication, packing and commits.

pub mod appender;
pub mod committer;
pub mod dedupe;
pub(crate) mod packed;
pub(crate) mod refill;
pub mod seqno;
pub(crate) mod status;
