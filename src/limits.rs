//! Every bound of the program: its unit, its value, and why that value.
//!
//! A number that limits something lives here and nowhere else; prose links to the constant.

use std::time::Duration;

/// Bytes of one frame on the local socket, header excluded.
///
/// The largest entry plus room for the call around it; a longer header is answered with an error before
/// a byte of it is allocated.
pub const WIRE_FRAME_BYTES_MAX: usize = ENTRY_BYTES_MAX + 64 * 1024;

/// Bytes of one entry's body. Salt trims events at 1 MiB by default, returns of `cp.push` and
/// `pkg.list_pkgs` on real fleets run to tens of MiB.
pub const ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Levels of nesting that a msgpack value may have. Salt passes 100 (foreign events); its own recursion
/// limit is below 1,000.
pub const MSGPACK_DEPTH_MAX: usize = 512;

/// Connections served at once on the local socket; one more is answered `unavailable` and closed.
/// A master has tens of workers; each holds one.
pub const SOCKET_PEERS_MAX: usize = 16_384;

/// Bytes of a unix socket's path: `sun_path` of Linux is 108 bytes with its closing zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Bytes of a configuration file. Every key with its documentation fits a hundred times over; a longer
/// file is another file, named by mistake.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Levels of nesting in a configuration file; the deepest key known has two.
pub const CONFIG_DEPTH_MAX: usize = 16;

/// Rows that the command line asks for in one call; `--all` pages by this many.
pub const CLI_PAGE_ROWS: u64 = 1_000;

/// How long the command line waits for an answer of the daemon.
pub const CLI_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
