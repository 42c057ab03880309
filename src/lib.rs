//! saltcellar: job cache, event archive and reactor for a SaltStack master.
//!
//! Sources and listeners receive bytes, the appender gives entries their order, and a log stores them. Everything else
//! reads the log at its own pace. The reactor's records return through the same intake.
//!
//! ```text
//!    Salt master and its minions      other programs
//!         |  events, loads, returns        |               salt/: the Python extension
//!         v                                v
//!    sources   bus | local socket | HTTP | ZeroMQ PULL      bytes -> Entry, filtered and redacted
//!         |    queue `intake` (bounded)
//!         v
//!    store     appender: order, deduplicate, pack -> committer: write, fdatasync, index, acknowledge
//!         |    log of blocks (source of truth), an index for each segment
//!         |
//!         +--> api: queries -> local socket, HTTP -> command line, Salt's returner calls
//!         |         ZeroMQ PUB
//!         +--> reactor -> the master's request port
//!         +--> engines: sinks -> files, HTTP services, programs
//! ```
//!
//! What needs nothing of the daemon is in packages of its own, below `crates/`; those that it is made of have the names of modules here.
//! A file imports only from them, and from layers above its own in the list below; modules of a layer do not import each other.
//! `tests/tidy.rs` enforces this, `docs/ARCHITECTURE.md` describes the packages and modules.

pub use saltcellar_base as base;
pub use saltcellar_model as model;
pub use saltcellar_store as store;
pub use saltcellar_wire as wire;

#[cfg(test)]
pub(crate) use saltcellar_testkit as testkit;

// settings
pub mod config;

// clients
pub mod client;

// gates
pub mod bus;
pub mod cluster;
pub mod policy;

// services
pub mod engines;
pub mod ingest;
pub mod reactor;

// interfaces
pub mod api;

// process
pub mod daemon;

// commands
pub mod cli;
