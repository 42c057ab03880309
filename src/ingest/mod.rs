//! Doors for bytes that nobody waits for: event buses.

pub mod bus;
pub mod spool;
