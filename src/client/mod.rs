//! Clients of other programs: values of secrets, TLS, connections to NATS, and a thread for a client that is asynchronous.
//!
//! Settings of connections are in `config`; what is sent over them is known to the modules above.

pub(crate) mod nats;
pub(crate) mod secret;
pub(crate) mod thread;
pub(crate) mod tls;
