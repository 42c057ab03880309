//! Limits of the shared history of several masters.

use std::time::Duration;

/// Bytes of entries that are received together, and unpacked while the previous entries are stored.
pub const CLUSTER_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Time for which entries are gathered before they are published, unless there are many already:
/// each message costs the servers a sync, whatever its size.
pub const CLUSTER_GATHER: Duration = Duration::from_millis(20);

/// Bytes of entries that are published together, which takes two round trips.
pub const CLUSTER_PUBLISH_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of blocks that are published in one message. Measured with three servers that sync each message: a message takes them 0.4 ms of
/// processor time, whatever its size.
pub const CLUSTER_MESSAGE_BYTES: usize = 512 * 1024;

/// Messages of one block. The largest entry has 64 MiB, and a server of NATS accepts 1 MiB by default.
pub const CLUSTER_PARTS_MAX: u32 = 1024;

/// Messages that the server sends before they are read: at most 32 MiB of the usual size.
pub const CLUSTER_MESSAGES_AHEAD: usize = 64;

/// Interval of heartbeats.
pub const CLUSTER_BEAT: Duration = Duration::from_secs(2);

/// A master counts as away if nothing was heard from it for this time: one of five heartbeats may
/// be late.
pub const CLUSTER_AWAY: Duration = Duration::from_secs(10);

/// Another node with this daemon's name or slot counts as stopped after this time.
pub const CLUSTER_TWIN: Duration = CLUSTER_AWAY;

/// Difference of two machines' clocks that is reported: jobs of both are in a wrong order then.
pub const CLUSTER_SKEW_MAX: Duration = Duration::from_secs(5);

/// Longest pause between attempts to read the stream.
pub const CLUSTER_RETRY_MAX: Duration = Duration::from_secs(10);

/// Interval at which it is decided whether retention keeps what is not published.
pub const CLUSTER_PIN_CHECK: Duration = Duration::from_secs(30);

/// Entries of this daemon's log after which the place is saved again, although nothing was received: this many are read at a start.
pub const CLUSTER_SAVE_ENTRIES: u64 = 200_000;

/// Messages of the stream after which the rest of a block is not waited for any more: its sender
/// has stopped, and resends it if it returns.
pub const CLUSTER_OPEN_MESSAGES_MAX: u64 = 10_000;

/// Masters that are known by their messages; a slot is one of 64.
pub const CLUSTER_PEERS_MAX: usize = 256;

/// Numberings of one master whose marks are kept. A new one begins when a store is lost or set back.
pub const CLUSTER_NUMBERINGS_MAX: usize = 16;

/// Bytes of a word in a heartbeat, and of a reason, that are kept for the status. The longest token of a name has as many.
pub const CLUSTER_WORD_BYTES_MAX: usize = 255;

/// Bytes of the holds in a heartbeat. Servers of NATS accept 1 MiB by default, and some less.
pub const CLUSTER_HOLDS_BYTES: usize = 32 * 1024;

/// Interval at which all unchanged holds are sent to a master with other holds: an earlier message
/// may have been lost.
pub const CLUSTER_HOLDS_AGAIN: Duration = Duration::from_secs(10);

/// Longest time after a start in which retention waits for the holds of other masters: NATS may be away.
pub const CLUSTER_HOLDS_WAIT: Duration = Duration::from_secs(60);

/// The server drops the lease of a leader that has not renewed it for this time.
pub const ELECTION_EXPIRY: Duration = Duration::from_secs(10);

/// Time for which a leader acts after it asked for the lease; less than [`ELECTION_EXPIRY`] by what clocks of NATS servers may differ, and by
/// the time of a call to a master.
pub const ELECTION_VALID: Duration = Duration::from_secs(6);

/// Interval at which the lease is renewed, or asked for.
pub const ELECTION_RENEWAL: Duration = Duration::from_secs(2);

/// Longest expiry of an existing bucket of leases: after a leader has stopped, nobody acts for this
/// long.
pub const ELECTION_EXPIRY_MAX: Duration = Duration::from_secs(300);

/// Time in which an event reaches all masters to which its minion sends it. Measured: milliseconds
/// to 8 s.
pub const TWINS_WINDOW: Duration = Duration::from_secs(10);

/// Events of one tag and minion whose copies are known. A minion that sends more in a minute may have a copy handled twice, and costs no more.
pub const TWINS_PER_NAME_MAX: usize = 1000;

/// Time after which equal data are another event. A minion tries for 60 s to reach a master that is
/// down (`_fire_master` in Salt's `minion.py`).
pub const TWINS_WINDOW_EQUAL: Duration = Duration::from_secs(70);
