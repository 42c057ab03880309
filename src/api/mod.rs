//! The doors: how programs talk to the daemon.

pub mod call;
pub mod client;
pub mod https;
pub mod socket;
mod stream;
mod submit;
mod trust;
