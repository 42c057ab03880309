//! ZeroMQ: a PULL that accepts events from any program, and a PUB with all stored events.
//!
//! Both listen on `ipc://` only, protected by file permissions, and implement ZMTP 3 themselves ([`crate::wire::zmtp`]): announced
//! lengths are not trusted, frames are limited, and a stalled peer does not block others.
//! A message is an event as on Salt's bus: tag, two newlines, a msgpack map.
//!
//! # Invariant
//!
//! A peer can end only its own connection. Peers, their unfinished messages and their queues are limited
//! (`limits.rs`), and entries dropped by a limit are counted.

pub mod publish;
pub mod pull;

mod peer;
mod subscriptions;
