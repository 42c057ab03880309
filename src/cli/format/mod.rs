//! Input and output of the command line: calls to the daemon and their pages, tables, colours, JSON,
//! Salt's outputters, times, YAML arguments, progress, exit codes.

pub(super) mod ask;
pub(super) mod colour;
pub(super) mod exit;
pub(super) mod fields;
pub(super) mod global;
pub(super) mod nested;
pub(super) mod output;
pub(super) mod outputter;
pub(super) mod progress;
pub(super) mod streams;
pub(super) mod table;
pub(super) mod when;
pub(super) mod width;
pub(super) mod wrap;
pub(super) mod yaml;
