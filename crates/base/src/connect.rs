//! Connecting to a unix socket, never without a time limit: a plain `connect` waits as long as the listener hangs with a full backlog.
//!
//! The only place that connects to one; tests/tidy.rs finds any other. To a TCP address
//! `TcpStream::connect_timeout` connects.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The shortest limit: the kernel takes zero for none.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Connects to a stream socket, and leaves `timeout` as the limit of each write. [`io::ErrorKind::TimedOut`] if the backlog stays full.
pub fn unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The limit of sends also limits the wait for room in the backlog.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(TIMEOUT_MIN)))?;

    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(UnixStream::from(socket)),
        // The kernel reports a full backlog like this once the time is over.
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listener_that_hangs_is_an_error_and_a_missing_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let kind = |timeout| unix(&path, timeout).map_err(|error| error.kind());
        let short = Duration::from_millis(10);
        assert_eq!(kind(short).unwrap_err(), io::ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The backlog of zero has room for one.
        let _waiting = kind(short).unwrap();
        assert_eq!(kind(short).unwrap_err(), io::ErrorKind::TimedOut);
        assert_eq!(kind(Duration::ZERO).unwrap_err(), io::ErrorKind::TimedOut);
        drop(listener);
        assert_eq!(kind(short).unwrap_err(), io::ErrorKind::ConnectionRefused);
    }
}
