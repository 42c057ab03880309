//! Calls over the local socket, against a daemon in process.

mod hostile_peers;
mod reactions;
mod returner_calls;
mod rights;
