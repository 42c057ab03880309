//! The verbs that configure and describe the program itself, and its sinks.

pub(super) mod check;
pub(super) mod completions;
pub(super) mod setup;
pub(super) mod sinks;
pub(super) mod status;
pub(super) mod top;
pub(super) mod version;
