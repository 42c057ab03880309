//! saltcellar: job cache, event archive, reactor and engines beside a SaltStack master.
//!
//! Bytes come in by one door, pass one thread that gives them an order, and land in a log.
//! Everything else reads the log at its own pace. Nothing flows backwards.
//!
//! ```text
//!    Salt master and its minions
//!         |  events, loads, returns               (salt/: the Python extension)
//!         v
//!    ingest   the bus | the local socket          one thread per source: bytes -> Entry
//!         |   queue `intake` (bounded)
//!         v
//!    store    appender: order, batch, write       one thread: Entry -> Block, fdatasync, then ack
//!         |   watermark `durable`
//!         v
//!    store    log of blocks; indexes in sled      read by anyone, never holding up the writer
//!         v
//!       query  ->  api  ->  local socket, CLI, Salt's returner calls
//! ```
//!
//! Modules stand in reading order; a file imports only from layers above its own in this list
//! (`tests/tidy.rs` holds the table).

// Layer 0: ground.
pub mod clock;
pub mod limits;
pub mod metrics;
pub mod shutdown;
#[cfg(test)]
mod testing;

// Layer 1: words.
pub mod channel;
pub mod door;
pub mod model;

// Layer 2: edges.
pub mod config;
pub mod sls;
pub mod wire;

// Layer 3: memory, and the master.
pub mod master;
pub mod store;

// Layer 4: rooms.
pub mod ingest;
pub mod query;
pub mod reactor;

// Layers 5, 6, 7: doors, wiring, hands.
pub mod api;
pub mod cli;
pub mod daemon;
pub mod zeromq;
