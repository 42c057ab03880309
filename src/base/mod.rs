//! Used by all modules: the time, every limit, every counter, the stop signal, pauses between attempts, repeated lines of the log, connecting to unix sockets, short forms of numbers, names of variants, unreadable files, text from bytes, text that is safe to show, the umask, users and groups,
//! threads, programs that may be run as root.

pub(crate) mod backoff;
pub mod clock;
pub(crate) mod connect;
pub(crate) mod file_fault;
pub mod limits;
pub(crate) mod log_once;
pub mod metrics;
pub(crate) mod named;
pub mod shutdown;
pub(crate) mod threads;
pub mod trusted;
pub(crate) mod umask;
pub mod units;
pub(crate) mod users;
pub(crate) mod utf8;
pub(crate) mod visible;
pub mod work;
