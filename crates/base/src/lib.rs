//! What all parts of the daemon use, without anything of them: the time, every limit, every counter, the stop signal, pauses between
//! attempts, repeated lines of the log, connecting to unix sockets, short forms of numbers, names of variants, unreadable files, text from
//! bytes, text that is safe to show, the umask, users and groups, threads, programs that may be run as root, what an administrator
//! can do.

pub mod advice;
pub mod backoff;
pub mod clock;
pub mod connect;
pub mod file_fault;
pub mod limits;
pub mod log_once;
pub mod metrics;
pub mod named;
pub mod shutdown;
pub mod threads;
pub mod trusted;
pub mod umask;
pub mod units;
pub mod users;
pub mod utf8;
pub mod visible;
pub mod work;
