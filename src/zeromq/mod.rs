//! ZeroMQ: a PULL that takes events from any program, and a PUB of all events stored.
//!
//! Both listen on `ipc://` alone, behind the permissions of a file, and speak ZMTP 3 themselves ([`crate::wire::zmtp`]): no
//! length that a peer announces is believed, none of its frames is unbounded, and none of its silences holds up another.
//! A message is an event as it is on Salt's bus: tag, two newlines, a msgpack map.
//!
//! # Invariant
//!
//! A peer can end its own connection and nothing else. Peers, their unfinished messages and what waits for them are bounded
//! (`limits.rs`), and whatever a bound takes has a counter.

pub mod publish;
pub mod pull;

mod peer;
mod subscriptions;
