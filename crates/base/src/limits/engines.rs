//! Limits of the engines.

use std::time::Duration;

/// Bytes of a secret's file: a private key with its chain is far smaller.
pub const SINK_SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Number of sinks. Each has threads and a position in the log.
pub const SINKS_MAX: usize = 64;

/// Parallel deliveries of one sink.
pub const SINK_CONCURRENCY_MAX: usize = 16;

/// Events of one batch.
pub const SINK_BATCH_EVENTS_MAX: usize = 10_000;

/// Bytes of events that a sink reads in one step; a larger event is a batch by itself.
pub const SINK_BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of read and encoded events that are kept for other sinks with the same filter and
/// encoding: several batches, which lets sinks of unequal speed share them.
pub const SINK_SHARED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Parts of the log whose events a group of sinks keeps. On a quiet system this limits how many a
/// stalled sink keeps.
pub const SINK_SHARED_PIECES_MAX: usize = 256;

/// Dead letters of one sink. With more, the sink stops until some are retried or dropped: a destination that rejects everything must not
/// empty the log into them.
pub const DEAD_LETTERS_MAX: usize = 10_000;

/// Bytes of one sink's dead letters, as above.
pub const DEAD_LETTERS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Bytes of a reason or a response that a destination gave, in errors and dead letters.
pub const SINK_REASON_BYTES_MAX: usize = 1_024;

/// Bytes of an HTTP response that are read: the response to a bulk request contains a part for each
/// item.
pub const SINK_ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Longest pause that a destination may request (`Retry-After`).
pub const SINK_RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Wait of a sink for new events, after which it maintains idle connections and files.
pub const SINK_IDLE: Duration = Duration::from_secs(1);

/// Interval at which the lag of each sink is noted.
pub const SINK_LAG_INTERVAL: Duration = Duration::from_secs(60);

/// Values of a sink's lag that are kept: an hour.
pub const SINK_LAGS_KEPT: usize = 60;

/// Timeout for the last delivery of a sink at shutdown; the next start delivers it again.
pub const SINK_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Recursion of loops in a sink's template.
pub const SINK_TEMPLATE_RECURSION_MAX: usize = 64;

/// Operations in all `set` tags of a sink's template together: each may nest a value one level
/// deeper.
pub const SINK_TEMPLATE_ASSIGNED_MAX: usize = 300;

/// Instructions of a sink's template for one event.
pub const SINK_TEMPLATE_FUEL: u64 = 1_000_000;

/// Bytes of one item that a template makes.
pub const SINK_ITEM_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Timeout of a program's response to a stop, before it is killed.
pub const SINK_EXEC_STOP: Duration = Duration::from_secs(2);

/// Bytes of a request or a response that `saltcellar sinks test` shows.
pub const SINK_SHOWN_BYTES_MAX: usize = 64 * 1024;

/// Number of scripts. Each has two threads and a program.
pub const SCRIPTS_MAX: usize = 32;

/// Lines of a script that wait while an event cannot be fired; then the program waits.
pub const SCRIPT_LINES_WAITING: usize = 16;
