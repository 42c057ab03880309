//! The verbs that run, configure and describe the program itself.

pub(super) mod check;
pub(super) mod completions;
pub(super) mod setup;
pub(super) mod status;
pub(super) mod version;
