//! Limits of the reactor, and of requests to a master.

use std::time::Duration;

use super::ENTRY_BYTES_MAX;

/// Idle connections kept to a master's request port. A master has five workers by default.
pub const MASTER_CONNECTIONS_KEPT: usize = 16;

/// Timeout for connecting to a master.
pub const MASTER_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a master's response. Salt's client waits as long for a publish
/// (`publish_timeout`).
pub const MASTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a master's response: a wheel's result can be a file.
pub const MASTER_ANSWER_BYTES_MAX: usize = ENTRY_BYTES_MAX;

/// Bytes read from a master in one step.
pub const MASTER_READ_BYTES: usize = 16 * 1024;

/// Bytes of a master's key file. A key has 76.
pub const MASTER_KEY_BYTES_MAX: u64 = 1024;

/// Keys of masters that are searched for in bodies. A master has one for each local user that `publisher_acl` permits to
/// publish: with a pattern such as `.*`, for every user of the system (`access_keys` of salt/daemons/masterapi.py).
pub const MASTER_KEYS_MAX: usize = 1024;

/// Interval between checks of the masters' key files.
pub const MASTER_KEYS_POLL: Duration = Duration::from_secs(1);

/// Threads that render reactions and send requests to the master. They mostly wait for its
/// responses.
pub const REACTOR_WORKERS: u32 = 16;

/// Reactions queued in memory with their events. Further reactions are queued as sequence numbers
/// and read from the log.
pub const REACTOR_TASKS_MAX: usize = 20_000;

/// Reactions queued in memory of one set of rules, and of one minion (or another queue) within it.
pub const REACTOR_RULE_TASKS_MAX: usize = 1_000;
/// See [`REACTOR_RULE_TASKS_MAX`].
pub const REACTOR_MINION_TASKS_MAX: usize = 16;

/// Queues of one set of rules, one per minion whose events wait independently. Events of further minions wait until one is free.
pub const REACTOR_QUEUES_MAX: usize = 10_000;

/// All queued reactions. Beyond it reading of the log pauses. Each takes about 70 bytes, including
/// its pending event.
pub const REACTOR_WAITING_MAX: usize = 4_000_000;

/// Bytes of their event data in memory. The rest stays in the log until its turn comes.
pub const REACTOR_BODIES_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of events that the reactor reads in one step.
pub const REACTOR_WAVE_BYTES: usize = 256 * 1024;

/// Attempts of a call for which the master returns an error. An unreachable master is waited for
/// without this limit.
pub const REACTOR_TRIES: u32 = 5;

/// The pause before the second attempt; it doubles, up to [`REACTOR_BACKOFF_MAX`].
pub const REACTOR_BACKOFF: Duration = Duration::from_secs(1);
/// See [`REACTOR_BACKOFF`].
pub const REACTOR_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Interval between attempts to reach an unreachable master.
pub const REACTOR_MASTER_RETRY: Duration = Duration::from_secs(1);

/// Age beyond which an event is skipped when its turn comes: a reaction an hour late may be wrong.
pub const REACTOR_EVENT_AGE_MAX: Duration = Duration::from_secs(3600);

/// Reactions to events of reactions: a longer chain is considered a loop.
pub const REACTOR_DEPTH_MAX: u32 = 8;

/// Minions whose first event is remembered per rule.
pub const REACTOR_ONCE_MAX: usize = 100_000;

/// Jobs remembered as reactions.
pub const REACTOR_DEPTHS_MAX: usize = 50_000;

/// Log entries before the oldest pending event that are read at start to find jobs of reactions.
pub const REACTOR_DEPTHS_SEARCH: u64 = 100_000;

/// Announced jobs, runner calls and events that have not been seen yet.
pub const REACTOR_ANNOUNCED_MAX: usize = 10_000;

/// Time between an announcement and its event on a busy master.
pub const REACTOR_ANNOUNCED_TTL: Duration = Duration::from_secs(60);

/// Default `budget` of a rule: reactions per hour. It limits loops that events do not reveal. A master that
/// was unreachable for hours can leave a million events of one rule, and Salt's reactor handles about 750 a second at most.
pub const REACTOR_BUDGET: u32 = 1_000_000;
/// See [`REACTOR_BUDGET`].
pub const REACTOR_BUDGET_PER: Duration = Duration::from_secs(3600);

/// Bytes of rendered text, of chunks, of a call's load and of a result in a record, and its number of minion names.
pub const REACTOR_TEXT_BYTES_MAX: usize = 64 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_CHUNKS_BYTES_MAX: usize = 256 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_RESULT_BYTES_MAX: usize = 64 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_NAMES_MAX: usize = 100;

/// Records that wait for the store. Beyond it no reaction starts.
pub const REACTOR_RECORDS_MAX: usize = 1_000;

/// Timeout for a record that must be durable first.
pub const REACTOR_RECORD_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which the checkpoint is written and failed records are retried.
pub const REACTOR_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout for running reactions at shutdown; the rest is done after the next start.
pub const REACTOR_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without an event after which a runner is considered unknown or called with wrong arguments: 3008 emits nothing then.
pub const REACTOR_RUNNER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which the log is searched for the start of a runner or wheel function after a request
/// without a response. A busy master works through its queue meanwhile; afterwards the outcome is
/// unknown.
pub const REACTOR_START_TIME: Duration = Duration::from_secs(60);

/// The same after a start of the daemon. Calls started while it was down are not in the log, so less can be found.
pub const REACTOR_START_TIME_RESUMED: Duration = Duration::from_secs(10);

/// Remembered starts of runners and wheel functions, claimed or not.
pub const REACTOR_STARTS_MAX: usize = 10_000;

/// Time for which a runner counts as in flight without a result. Most take seconds; a longer
/// orchestration no longer delays other runners.
pub const REACTOR_RUNNER_TIME: Duration = Duration::from_secs(3600);

/// Runners in flight, regardless of the master's configuration.
pub const REACTOR_RUNNERS_MAX: u32 = 10_000;

/// Bytes of records searched for the record of an event.
pub const REACTOR_SEARCH_BYTES: usize = 64 * 1024 * 1024;

/// Items under `reactor.options` and `reactor.allow`.
pub const REACTOR_OPTIONS_MAX: usize = 1_000;

/// The largest `tries` of a rule.
pub const REACTOR_TRIES_MAX: u32 = 1_000;

/// Cache time of the signature of a runner or wheel function; that a function is missing is valid for a sixtieth of it.
pub const REACTOR_SIGNATURES: Duration = Duration::from_secs(3600);

/// Interval between checks of the master's configuration files.
pub const REACTOR_RELOAD: Duration = Duration::from_secs(2);

/// Timeout of a function of a `caller` reaction. A state run can take long, and Salt itself sets no
/// limit.
pub const REACTOR_CALLER_TIME: Duration = Duration::from_secs(3600);

/// Cache time of a file fetched by Salt from its file server. A fetch takes about 10 ms; the master
/// polls its backends (git, S3) once a minute.
pub const REACTOR_FETCHED_TRUSTED: Duration = Duration::from_secs(2);

/// Changes by `salt-run reactor.add` and `reactor.delete` that are kept over a reload of the configuration.
pub const REACTOR_CHANGES_MAX: usize = 1_000;

/// Time after an event in which calls of Salt's reactor are matched with saltcellar's. Salt's reactor handles one event at a
/// time, and a master under load lags.
pub const REACTOR_SHADOW_WINDOW: Duration = Duration::from_secs(60);
/// See [`REACTOR_SHADOW_WINDOW`].
pub const REACTOR_SHADOW_WINDOW_MIN: Duration = Duration::from_secs(1);
/// See [`REACTOR_SHADOW_WINDOW`].
pub const REACTOR_SHADOW_WINDOW_MAX: Duration = Duration::from_secs(3600);

/// Time before its event at which a call may be seen: the two can arrive by different sources.
pub const REACTOR_SHADOW_EARLY: Duration = Duration::from_secs(1);

/// Time after the window for the reactor's record, and the load of a job, to reach the log.
pub const REACTOR_SHADOW_LATE: Duration = Duration::from_secs(2);

/// Calls of either reactor that wait for the end of their window, and the bytes of their arguments. Beyond them the oldest are
/// compared early.
pub const REACTOR_SHADOW_WAITING_MAX: usize = 100_000;
/// See [`REACTOR_SHADOW_WAITING_MAX`].
pub const REACTOR_SHADOW_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Latest differences that a status of the reactor shows.
pub const REACTOR_SHADOW_DIFFERENCES: usize = 50;

/// Bytes of one compared value of a call; a larger one is reported as not comparable.
pub const REACTOR_SHADOW_ACT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the log searched for one page of the comparison.
pub const REACTOR_SHADOW_SEARCH_BYTES: usize = 64 * 1024 * 1024;

/// Interval at which the reactor logs whether it is in shadow, besides each start and change.
pub const REACTOR_MODE_INTERVAL: Duration = Duration::from_secs(3600);

/// Time for which the reactor acts after a report of the master's engine `saltcellar_reactor`, if that may start Salt's reactor instead.
/// A call to the master that began in this time may end later.
pub const REACTOR_LEASE: Duration = Duration::from_secs(15);

const _: () = assert!(REACTOR_TASKS_MAX > REACTOR_WORKERS as usize);

/// Processes of Salt's Python that render concurrently. Each has about 70 MB, and starts when the
/// other processes are busy.
pub const REACTOR_HELPERS: usize = 4;

/// Calls by a reactor that are not yet attributed to saltcellar's reactor or another.
pub const REACTOR_FOREIGN_CALLS_MAX: usize = 1_000;

/// Time for the master to confirm that such a call is saltcellar's.
pub const REACTOR_FOREIGN_CALL_GRACE: Duration = Duration::from_secs(30);

/// Time for which a call by another reactor counts as evidence that it is running.
pub const REACTOR_FOREIGN_CALL_TTL: Duration = Duration::from_secs(3_600);

/// Failed reactions that `status` counts.
pub const REACTIONS_FAILED_KEPT: usize = 1000;
/// Age of a failed reaction up to which `status` reports it, in microseconds.
pub const REACTIONS_FAILED_AGE: i64 = 86_400_000_000;
