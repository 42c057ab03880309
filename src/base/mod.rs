//! Used by all modules: the time, every limit, every counter, the stop signal, connecting to unix sockets, short forms of numbers, unreadable files, text from bytes, users and groups,
//! programs that may be run as root.

pub mod clock;
pub(crate) mod connect;
pub(crate) mod file_fault;
pub mod limits;
pub mod metrics;
pub mod shutdown;
pub mod trusted;
pub mod units;
pub(crate) mod users;
pub(crate) mod utf8;
pub mod work;
