//! The sources of event buses, their spill and gap records, and the spools of returners.

pub mod bus;
pub mod cluster;
pub mod gap;
pub mod gather;
pub mod join;
mod of_peers;
pub mod spill;
pub mod spool;
