//! The interfaces of the daemon: the local socket, HTTP, and HTTPS for minions, their calls and queries, clients, and ZeroMQ.

pub(crate) mod call;
pub mod client;
pub mod http;
pub mod https;
pub(crate) mod query;
pub(crate) mod socket;
pub(crate) mod status;
mod stream;
mod submit;
mod trust;
pub(crate) mod zeromq;

pub use call::CALLS;
pub use status::LOSS_COUNTERS;
