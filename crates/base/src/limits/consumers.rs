//! Limits of consumers and of the filter language.

use std::time::Duration;

/// Bytes of the source of a condition (`where`).
pub const FILTER_TEXT_BYTES_MAX: usize = 4 * 1024;

/// Items of `match` in a filter.
pub const FILTER_SCOPES_MAX: usize = 64;

/// Bytes of one event that a condition goes through, lookup by lookup: several times the largest
/// event, about 100 ms.
pub const FILTER_BYTES_MAX: usize = 4 * 64 * 1024 * 1024;

/// Consumers of one store. The record of each is in memory.
pub const CONSUMERS_MAX: usize = 256;

/// Bytes of a consumer's name, and of a holder's.
pub const CONSUMER_NAME_BYTES_MAX: usize = 128;

/// Bytes of the last error of a consumer; the rest is cut off.
pub const CONSUMER_ERROR_BYTES_MAX: usize = 1024;

/// Bytes of the filter of a consumer, as JSON.
pub const CONSUMER_FILTER_BYTES_MAX: usize = 16 * 1024;

/// Acknowledgements of this time are lost in a power loss, so their events are redelivered. A
/// killed daemon loses none.
pub const CONSUMER_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// A cursor that advances over this many entries without a match is saved.
pub const CONSUMER_SAVE_ENTRIES: u64 = 10_000;

/// Bytes on disk per class that pinned consumers keep beyond the limits of the class, by default.
pub const PIN_BYTES_MAX: u64 = 10 * 1024 * 1024 * 1024;

/// Events of one batch without a limit of the caller.
pub const CONSUMER_BATCH_EVENTS: usize = 500;
/// Bytes of events after which a batch ends.
pub const CONSUMER_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of entries that one read examines before it returns, with or without a match: about 100
/// ms.
pub const SCAN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that an entry which the reader may not know counts for, whatever its size, in the limit of
/// one read.
pub const HIDDEN_ENTRY_COST: usize = 64;

/// Time for which a holder keeps a consumer after its last call, by default.
pub const CONSUMER_LEASE: Duration = Duration::from_secs(30);
/// The longest lease.
pub const CONSUMER_LEASE_MAX: Duration = Duration::from_secs(3600);

/// After a follower has stopped waiting, sources still pass on events immediately for this time,
/// because it will wait again.
pub const FOLLOW_LINGER: Duration = Duration::from_secs(2);

/// New events within this time after the first one are delivered together with it.
pub const FOLLOW_GATHER: Duration = Duration::from_millis(10);
