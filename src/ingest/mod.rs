//! Event buses, their spill and gap records, the ingest policy of all sources, and firing events onto a bus.

pub mod bus;
pub mod fire;
pub mod gap;
pub mod master_keys;
mod patience;
pub mod policy;
pub mod redact;
pub mod spill;
pub mod spool;
