//! Bounds of the store: blocks, segments, retention, the disk.

use std::time::Duration;

/// Raw bytes of a full block: tags and bodies before compression. zstd packs a window of this size within a
/// few percent of a larger one, and unpacking a whole block for one entry costs about 100 microseconds.
pub const BLOCK_RAW_BYTES: usize = 256 * 1024;

/// Entries of one block. Places within a block are 16 bits in the index.
pub const BLOCK_ENTRIES_MAX: usize = u16::MAX as usize;

/// zstd level of bodies: level 1 packs Salt's events 4.2 times at 585 MB/s on one core.
pub const ZSTD_LEVEL: i32 = 1;

/// zstd level of blocks that are merged when a segment is sealed.
pub const ZSTD_LEVEL_SEALED: i32 = 1;

/// A segment is rewritten when it is sealed if the blocks to be merged have one of this many parts of its log. For less
/// the copying is not worth it.
pub const REWRITE_SHARE: u64 = 8;

/// Bytes of a rewritten log that are written at once.
pub const REWRITE_PIECE_BYTES: usize = 1024 * 1024;

/// Packed bytes that wait for the committer at most; the appender then waits for it, too. About 16 full blocks.
pub const COMMIT_PACKED_BYTES: usize = 1024 * 1024;

/// In a flood, packed bytes that are worth a commit of their own. When nothing waits to be packed, everything is.
pub const COMMIT_WORTH_BYTES: usize = 192 * 1024;

/// A block that is not even half full goes with the fourth commit after its first entry came at the latest. In a flood of
/// one class the blocks of the others get some filling; when nothing waits, nothing is held back.
pub const BLOCK_WAITS_COMMITS: u64 = 4;

/// Sequence numbers set aside on disk at once. A crash passes over as many at most.
pub const NUMBERS_AHEAD: u64 = 1 << 20;

/// Bytes of batches waiting for the appender. Full: senders wait.
pub const INTAKE_BYTES: usize = 8 * 1024 * 1024;

/// Batches waiting for the appender. Full: senders wait, and the bus door keeps reading into its backlog.
pub const INTAKE_BATCHES: usize = 1024;

/// Bytes of one segment's log, by default. A segment is the unit of retention, and an unfinished one is read
/// through at start.
pub const SEGMENT_BYTES: u64 = 256 * 1024 * 1024;

/// Entries of one segment. Its index lies in memory until it is sealed, at some 15 to 60 bytes an entry, and one segment
/// of each class grows while others are sealed.
pub const SEGMENT_ENTRIES_MAX: u64 = 500_000;

/// Bytes of a class's name. It is the name of a directory, and stands in the header of each log file.
pub const CLASS_NAME_BYTES_MAX: usize = 28;

/// Classes that a configuration may have. Each has a growing segment, with its file, its index in memory and its
/// share of every commit.
pub const CLASSES_MAX: usize = 32;

/// Items in the `match` of a class. What they say about a function is remembered; tags are compared one by one.
pub const CLASS_RULES_MAX: usize = 256;

/// Shortest and longest age that a class may be bound to.
pub const KEEP_AGE_MIN: Duration = Duration::from_secs(1);
/// See [`KEEP_AGE_MIN`].
pub const KEEP_AGE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Functions whose class is remembered. Salt has some thousand; a fleet runs tens.
pub const FUNCTIONS_REMEMBERED: usize = 4096;

/// Jobs whose class is remembered because their function was taken by a rule, for entries that do not say the
/// function: some 40 bytes each.
pub const JOB_CLASSES_REMEMBERED: usize = 64 * 1024;

/// Free space below which nothing is taken, and below which retention tightens, where the configuration leaves it
/// to us: a part of the file system, and this at most, as the journal does it.
pub const FREE_BYTES_MIN: (u64, u64) = (20, 1024 * 1024 * 1024);
/// See [`FREE_BYTES_MIN`].
pub const FREE_BYTES_LOW: (u64, u64) = (10, 3 * 1024 * 1024 * 1024);

/// How often the guard asks for free space while entries are written, and how often it looks whether there is room again.
pub const GUARD_LOOK: Duration = Duration::from_millis(200);

/// How often the guard asks for free space while nothing is written: others may fill the disk.
pub const GUARD_LOOK_IDLE: Duration = Duration::from_secs(1);

/// How often it says that free space is low or was: at the bound each segment that is written makes room go and come.
pub const GUARD_SAYS: Duration = Duration::from_secs(60);

/// With less free space than this above the lower bound the guard looks after each commit: a fast writer fills it in less
/// than a second.
pub const GUARD_NEAR: u64 = 1024 * 1024 * 1024;

/// A growing log is made so much longer than it has to be, so that most syncs have no new size to make durable: on ext4 a
/// small append with its sync takes 0.087 ms then, 0.127 ms otherwise.
pub const LOG_BYTES_AHEAD: u64 = 1024 * 1024;

/// Free space for a change of the state database. With less, segments that are dropped are removed first.
pub const CATALOGUE_BYTES: u64 = 8 * 1024 * 1024;

/// A log that is let go loses so many bytes at a time...
pub const TRASH_PIECE_BYTES: u64 = 1024 * 1024;
/// ...and then rests for so long, while the disk has room: a file system that frees much at once lets syncs wait for it.
pub const TRASH_REST: Duration = Duration::from_millis(2);

/// How often bounds are looked at. A segment goes at most so late.
pub const RETENTION_ROUND: Duration = Duration::from_secs(5);

/// A class is cut into at least so many segments at each of its bounds: it exceeds them by a sixteenth at most.
pub const SEGMENTS_PER_BOUND: u64 = 16;

/// Least bytes and entries of a segment that is finished early because its class has narrow bounds.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
/// See [`SEGMENT_BYTES_MIN`].
pub const SEGMENT_ENTRIES_MIN: u64 = 64;

/// Shortest and longest time after which a growing segment is finished because its class is bound by age. A longer time would
/// only make what is read through at start and what a backup copies again larger.
pub const SEGMENT_AGE_MIN: Duration = Duration::from_secs(60);
/// See [`SEGMENT_AGE_MIN`].
pub const SEGMENT_AGE_MAX: Duration = Duration::from_secs(86_400);

/// Samples of what was written, one a round: rates are those of the last five minutes.
pub const RATE_SAMPLES: usize = 60;

/// How often a quiet committer looks whether a segment is old enough to be finished.
pub const SEGMENT_AGE_LOOK: Duration = Duration::from_secs(10);

/// How long Salt's `keep_jobs_seconds` stands against a shorter one. Salt says it every minute.
pub const SALT_WORD_LASTS: Duration = Duration::from_secs(3600);

/// The wall clock was set if it differs from the monotonic clock by more than this since the last look. Deletion by age may
/// come early by as much.
pub const CLOCK_STEP: Duration = Duration::from_secs(300);

/// Longest time between two runs that needs no confirmation: a start later than that looks like a clock that was set.
pub const CLOCK_OFF_MAX: Duration = Duration::from_secs(86_400);

/// How long a daemon runs after the wall clock was set ahead until deletion by age trusts it.
pub const CLOCK_WAIT: Duration = Duration::from_secs(86_400);

/// How often the time that deletion by age goes by is written down, so that the next start can compare.
pub const CLOCK_SAVED_EVERY: Duration = Duration::from_secs(600);

/// Jobs that can be held, and bytes of the reason for one. Each hold is looked up in each segment that is to go.
pub const HOLDS_MAX: usize = 1000;
/// See [`HOLDS_MAX`].
pub const HOLD_REASON_BYTES_MAX: usize = 1000;

/// Finished segments waiting to be sealed. Full: the committer waits, for the index of each lies in memory.
pub const SEALS_WAITING: usize = 2;

/// Event fingerprints remembered to recognise what comes in by a second door: at least this many, at most
/// twice as many, 40 bytes each. Salt's EventReturn may lag behind the bus by so many events.
pub const DEDUPE_WINDOW: usize = 128 * 1024;

/// Bytes of the log that a start reads at most to remember them again, so that large entries do not hold it up.
pub const DEDUPE_REFILL_BYTES: u64 = 128 * 1024 * 1024;

/// Bytes of blocks kept unpacked for readers.
pub const BLOCK_CACHE_BYTES: usize = 24 * 1024 * 1024;

/// Sealed segments whose index is kept open. sled holds some hundred KiB for each.
pub const INDEXES_OPEN: usize = 16;

/// Bytes of a value in a job's row (arguments, metadata); a longer one is read from the log when asked for.
pub const ROW_VALUE_BYTES_MAX: usize = 2048;

const _: () = assert!(BLOCK_ENTRIES_MAX <= u16::MAX as usize);
