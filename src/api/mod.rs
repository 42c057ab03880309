//! The interfaces of the daemon: the local socket and HTTPS, their calls, and clients.

pub mod call;
pub mod client;
pub mod https;
pub mod socket;
mod stream;
mod submit;
mod trust;
