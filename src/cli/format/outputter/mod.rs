//! Ports of Salt's outputters (`salt/output/`).
//!
//! `tests/data/outputters.jsonl` holds returns with the output of Salt 3008.3; a test compares.
//!
//! # Differences
//!
//! - Salt removes escape characters from some strings. Here all control and invisible characters are escaped (see
//!   [`plain`](crate::base::visible::plain)), except tabs and line ends.
//! - Line ends in a key are shown as `\n`, and further lines of a state's strings and of errors are indented, so that text of
//!   a minion cannot forge the heading of another one.
//! - Salt's `nested` omits dates and binary data. Here they are formatted as by Python.
//! - Salt also breaks long lines of `Warnings:` at hyphens.

mod colours;
mod escape;
mod highstate;
mod nested;
mod python;

pub(in crate::cli) use colours::Colours;
pub(in crate::cli) use highstate::{highstate, slowest_first};
pub(in crate::cli) use nested::nested;
