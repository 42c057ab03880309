//! The verbs that configure and describe the program itself, its sinks and its tokens.

pub(super) mod completions;
pub(super) mod config;
pub(super) mod page;
pub(super) mod setup;
pub(super) mod sinks;
pub(super) mod status;
pub(super) mod tokens;
pub(super) mod top;
pub(super) mod version;
