//! The doors: how programs talk to the daemon.

pub mod client;
