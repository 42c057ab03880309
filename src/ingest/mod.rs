//! Doors for bytes that nobody waits for: event buses; the gate that entries pass at every door; and the way back, onto a bus.

pub mod bus;
pub mod fire;
pub mod gap;
pub mod gate;
pub mod master_keys;
pub mod redact;
pub mod spill;
pub mod spool;
