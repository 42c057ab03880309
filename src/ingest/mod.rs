//! Doors for bytes that nobody waits for: event buses; and the gate that entries pass at every door.

pub mod bus;
pub mod gate;
pub mod redact;
pub mod spool;
