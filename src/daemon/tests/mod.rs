//! Calls over the local socket, against a daemon in process.

mod returner_calls;
mod rights;
