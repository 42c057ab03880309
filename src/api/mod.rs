//! The interfaces of the daemon: the local socket and HTTP, their calls and queries, clients, and ZeroMQ.

pub mod call;
pub mod client;
pub mod http;
pub mod query;
pub mod socket;
pub mod status;
mod stream;
mod submit;
mod trust;
pub mod zeromq;
