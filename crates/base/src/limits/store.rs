//! Limits of the store: blocks, segments, retention, free space.

use std::time::Duration;

/// Raw bytes of a full block: tags and bodies before compression. zstd compresses a window of this size within a
/// few percent of a larger one, and decompressing a whole block for one entry costs about 100 microseconds.
pub const BLOCK_RAW_BYTES: usize = 256 * 1024;

/// Entries of one block. Positions within a block are 16 bits in the index.
pub const BLOCK_ENTRIES_MAX: usize = u16::MAX as usize;

/// zstd level of bodies: level 1 compresses Salt's events 4.2 times at 585 MB/s on one core.
pub const ZSTD_LEVEL: i32 = 1;

/// Shortest repetition that zstd looks for in the log, in bytes; 6 by default at [`ZSTD_LEVEL`].
/// Measured: 7 takes 0.95 of the processor time of storing large returns, and 1.03 of the disk;
/// 0.95 of the disk of small events.
pub const ZSTD_MIN_MATCH: u32 = 7;

/// zstd level of blocks merged when a segment is sealed.
pub const ZSTD_LEVEL_SEALED: i32 = 1;

/// A segment is rewritten on sealing if the blocks to be merged are at least one of this many parts of its log. Less
/// is not worth the copying.
pub const REWRITE_SHARE: u64 = 8;

/// Bytes of a rewritten log in one write.
pub const REWRITE_PIECE_BYTES: usize = 1024 * 1024;

/// Compressed bytes that wait for the committer; then the appender also waits. About 16 full
/// blocks.
pub const COMMIT_PACKED_BYTES: usize = 1024 * 1024;

/// Compressed bytes worth a separate commit under full load. With an idle intake, everything is committed.
pub const COMMIT_WORTH_BYTES: usize = 192 * 1024;

/// A block that is less than half full is committed with the fourth commit after its first entry at
/// the latest. Under full load of one class the blocks of other classes fill up a little; with an
/// idle intake nothing is held back.
pub const BLOCK_WAITS_COMMITS: u64 = 4;

/// Sequence numbers reserved on disk in one step. A crash skips at most this many.
pub const NUMBERS_AHEAD: u64 = 1 << 20;

/// Bytes of batches waiting for the appender. Full: senders wait.
pub const INTAKE_BYTES: usize = 8 * 1024 * 1024;

/// Batches waiting for the appender. Full: senders wait, and the bus source keeps reading into its backlog.
pub const INTAKE_BATCHES: usize = 1024;

/// Bytes of one segment's log, by default. A segment is the unit of retention, and an unfinished one is read
/// completely at start.
pub const SEGMENT_BYTES: u64 = 256 * 1024 * 1024;

/// Entries of one segment. Its index is in memory until it is sealed, at about 15 to 60 bytes an
/// entry. One segment of each class grows while earlier segments are sealed.
pub const SEGMENT_ENTRIES_MAX: u64 = 500_000;

/// Bytes of a class's name, which is a directory name and part of the header of each log file.
pub const CLASS_NAME_BYTES_MAX: usize = 28;

/// Classes of a configuration. Each has an active segment, with its file, its index in memory and its
/// share of every commit.
pub const CLASSES_MAX: usize = 32;

/// Items in the `match` of a class. The result for a function is cached; tags are compared one by one.
pub const CLASS_RULES_MAX: usize = 256;

/// Shortest and longest `age` of a class.
pub const KEEP_AGE_MIN: Duration = Duration::from_secs(1);
/// See [`KEEP_AGE_MIN`].
pub const KEEP_AGE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Functions whose class is cached. Salt has a few thousand functions; a fleet runs tens.
pub const FUNCTIONS_REMEMBERED: usize = 4096;

/// Jobs whose class is cached because a rule matched their function, for entries without a
/// function: about 40 bytes each.
pub const JOB_CLASSES_REMEMBERED: usize = 64 * 1024;

/// Free space below which no entries are accepted, and below which retention deletes early, for `auto`: a fraction
/// of the file system, up to a number of bytes, as in systemd-journald.
pub const FREE_BYTES_MIN: (u64, u64) = (20, 1024 * 1024 * 1024);
/// See [`FREE_BYTES_MIN`].
pub const FREE_BYTES_LOW: (u64, u64) = (10, 3 * 1024 * 1024 * 1024);

/// Interval between checks of free space while entries are written, and while the disk is full.
pub const GUARD_POLL: Duration = Duration::from_millis(200);

/// Interval between checks of free space while idle: other programs can fill the disk.
pub const GUARD_POLL_IDLE: Duration = Duration::from_secs(1);

/// Log interval for low free space: at the limit it changes with each segment that is written.
pub const GUARD_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Growth of a segment of the settings before the next one begins, in addition to twice the size of its snapshot: about
/// 5,000 acknowledgements of consumers.
pub const SETTINGS_GROWTH: u64 = 2 * 1024 * 1024;

/// Margin above the lower limit within which free space is checked after each commit: a fast writer fills it in less
/// than a second.
pub const GUARD_NEAR: u64 = 1024 * 1024 * 1024;

/// Preallocated bytes of a growing log. Most syncs then have no new file size to make durable: on
/// ext4 a small append with its sync takes 0.087 ms, otherwise 0.127 ms.
pub const LOG_BYTES_AHEAD: u64 = 1024 * 1024;

/// Free space for a change of the state database. With less, segments to be deleted are removed first.
pub const CATALOGUE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes by which a dropped log is truncated at a time.
pub const DROP_PIECE_BYTES: u64 = 1024 * 1024;
/// Pause between truncations while the disk has room: freeing much in one step delays syncs on some
/// file systems.
pub const DROP_PAUSE: Duration = Duration::from_millis(2);

/// Interval between retention rounds. A segment is deleted at most this late.
pub const RETENTION_ROUND: Duration = Duration::from_secs(5);

/// Minimum number of segments of a class at each of its limits: it exceeds them by a sixteenth at most.
pub const SEGMENTS_PER_BOUND: u64 = 16;

/// Minimum bytes and entries of a segment that is finished early because its class has narrow limits.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
/// See [`SEGMENT_BYTES_MIN`].
pub const SEGMENT_ENTRIES_MIN: u64 = 64;

/// Shortest and longest time after which an active segment is finished because its class is limited by age. A longer time would
/// only increase the data read at start and copied again by a backup.
pub const SEGMENT_AGE_MIN: Duration = Duration::from_secs(60);
/// See [`SEGMENT_AGE_MIN`].
pub const SEGMENT_AGE_MAX: Duration = Duration::from_secs(86_400);

/// Samples of the write rate, one a round: rates cover the last five minutes.
pub const RATE_SAMPLES: usize = 60;

/// Interval at which an idle committer checks whether a segment is old enough to be finished.
pub const SEGMENT_AGE_POLL: Duration = Duration::from_secs(10);

/// Time for which Salt's `keep_jobs_seconds` overrides a shorter one. Salt reports it every minute.
pub const SALT_KEEP_TTL: Duration = Duration::from_secs(3600);

/// Salt's default of `keep_jobs_seconds`.
pub const SALT_KEEP_DEFAULT: Duration = Duration::from_secs(86_400);

/// Steps in which the latest entries of a class slide that count for the share of a minion.
pub const SHARE_STEPS: usize = 16;

/// Minions that are counted for their share of a class.
pub const SHARE_MINIONS_MAX: usize = 100_000;

/// Minions over their share that `status` can name, and for how long, in microseconds.
pub const SHARE_NAMED_MAX: usize = 100;
/// See [`SHARE_NAMED_MAX`].
pub const SHARE_NAMED_AGE: i64 = 86_400_000_000;

/// Difference between wall clock and monotonic clock since the last check that counts as a clock step. Deletion by age can
/// be early by as much.
pub const CLOCK_STEP: Duration = Duration::from_secs(300);

/// Longest downtime that needs no confirmation: a later start looks like a clock step.
pub const CLOCK_OFF_MAX: Duration = Duration::from_secs(86_400);

/// Uptime after a clock step ahead before deletion by age trusts the clock.
pub const CLOCK_WAIT: Duration = Duration::from_secs(86_400);

/// Interval at which the time of deletion by age is saved, for comparison at the next start.
pub const CLOCK_SAVE_INTERVAL: Duration = Duration::from_secs(600);

/// Held jobs, and bytes of the reason for a hold. Each hold is looked up in each segment to be deleted.
pub const HOLDS_MAX: usize = 1000;
/// See [`HOLDS_MAX`].
pub const HOLD_REASON_BYTES_MAX: usize = 1000;

/// Held jobs of all masters that share a history: masters that were apart may each have held as many as one may.
pub const HOLDS_SHARED_MAX: usize = 4 * HOLDS_MAX;

/// Releases that are remembered. A master that was away for longer, and still holds such a job,
/// holds it again everywhere.
pub const RELEASES_MAX: usize = HOLDS_SHARED_MAX;

/// Finished segments waiting to be sealed. Full: the committer waits, because the index of each is in memory.
pub const SEALS_WAITING: usize = 2;

/// Event fingerprints kept to recognise duplicates from a second source: at least this many, at most
/// four times as many, 16 bytes each, in tables of which at most three quarters are used. Salt's EventReturn can lag behind the bus by this many events.
pub const DEDUPE_WINDOW: usize = 128 * 1024;

/// Bytes of the log read at start to restore them, because large entries must not delay it.
pub const DEDUPE_REFILL_BYTES: u64 = 128 * 1024 * 1024;

/// Bytes of decompressed blocks cached for readers.
pub const BLOCK_CACHE_BYTES: usize = 24 * 1024 * 1024;

/// Bytes that remember which entries limited readers may know: per limit four bits of each entry, and about 200 bytes of each block. Enough for
/// about 50 million entries.
pub const ALLOWED_BLOCKS_BYTES: usize = 48 * 1024 * 1024;

/// Open indexes of sealed segments; each has a file descriptor. A search opens the indexes of all
/// segments.
pub const INDEXES_OPEN: usize = 256;

/// Bytes of memory of the open indexes: about 50 KB each for segments of small events.
pub const INDEXES_OPEN_BYTES: usize = 24 * 1024 * 1024;

/// Bytes of a value in a job's row (arguments, metadata); a longer one is read from the log on demand.
pub const ROW_VALUE_BYTES_MAX: usize = 2048;

const _: () = assert!(BLOCK_ENTRIES_MAX <= u16::MAX as usize);

/// How long another process may take to release the lock of the state directory: a tool that looks
/// whether a daemon runs, or what is left of a killed daemon.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between attempts to take the lock of the state directory.
pub const LOCK_POLL: Duration = Duration::from_millis(5);
