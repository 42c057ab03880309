//! Bounds of the reactor, and of asking a master.

use std::time::Duration;

use super::ENTRY_BYTES_MAX;

/// Connections to a master's request port that are kept while nothing is asked. A master has five workers by default.
pub const MASTER_CONNECTIONS_KEPT: usize = 16;

/// How long connecting to a master may take.
pub const MASTER_CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a master may take over an answer. Salt's own client waits as long for a publish (`publish_timeout`).
pub const MASTER_PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a master's answer: signatures of all runners have some 100 KB, a wheel's result may be a file.
pub const MASTER_ANSWER_BYTES_MAX: usize = ENTRY_BYTES_MAX;

/// Bytes that are read from a master at once.
pub const MASTER_READ_BYTES: usize = 16 * 1024;

/// Bytes of a master's key file. A key has 76.
pub const MASTER_KEY_BYTES_MAX: u64 = 1024;

/// Keys of masters that are searched for in bodies. A master has one for each user who may publish.
pub const MASTER_KEYS_MAX: usize = 64;

/// How often the key files of masters are looked at.
pub const MASTER_KEYS_POLL: Duration = Duration::from_secs(1);

/// Threads that render reactions and ask the master. Most of their time they wait for its answers.
pub const REACTOR_WORKERS: u32 = 16;

/// Reactions that wait in memory, with their events. Those beyond wait as sequence numbers: the log holds the rest.
pub const REACTOR_TASKS_MAX: usize = 20_000;

/// The same of one set of rules, and of one minion (or another queue) among them.
pub const REACTOR_RULE_TASKS_MAX: usize = 1_000;
/// See [`REACTOR_RULE_TASKS_MAX`].
pub const REACTOR_MINION_TASKS_MAX: usize = 16;

/// Queues of one set of rules: minions whose events may wait for different things. Events of others wait until one is free.
pub const REACTOR_QUEUES_MAX: usize = 10_000;

/// Reactions that wait at all. Beyond it the log is not read on. Each takes some 70 bytes, the events that are open included.
pub const REACTOR_WAITING_MAX: usize = 4_000_000;

/// Bytes of event data that wait with them. What does not fit stays in the log until its turn comes.
pub const REACTOR_BODIES_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of events that the reactor reads at once.
pub const REACTOR_WAVE_BYTES: usize = 256 * 1024;

/// How often a call is tried that the master answers with an error. A master that is away is waited for.
pub const REACTOR_TRIES: u32 = 5;

/// The pause before the second try; it doubles, up to [`REACTOR_BACKOFF_MAX`].
pub const REACTOR_BACKOFF: Duration = Duration::from_secs(1);
/// See [`REACTOR_BACKOFF`].
pub const REACTOR_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// How often a master that is away is looked for.
pub const REACTOR_MASTER_AWAY: Duration = Duration::from_secs(1);

/// Events older than this when their turn comes are not reacted to: what was right an hour ago may be wrong now.
pub const REACTOR_EVENT_AGE_MAX: Duration = Duration::from_secs(3600);

/// Reactions to events of reactions: a chain of more is taken for a loop.
pub const REACTOR_DEPTH_MAX: u32 = 8;

/// Minions whose first event a rule remembers.
pub const REACTOR_ONCE_MAX: usize = 100_000;

/// Jobs that are remembered as reactions.
pub const REACTOR_ORIGINS_MAX: usize = 50_000;

/// Entries of the log that are read at a start to find out again which jobs are reactions, before the oldest event that is open.
pub const REACTOR_ORIGINS_SEARCH: u64 = 100_000;

/// Jobs, runner calls and events that are announced and have not followed yet.
pub const REACTOR_ANNOUNCED_MAX: usize = 10_000;

/// How long after its announcement something may follow: a busy master takes its time.
pub const REACTOR_ANNOUNCED_TTL: Duration = Duration::from_secs(60);

/// Reactions of one rule, unless its `budget` says otherwise: so many in an hour. It bounds loops that no event shows. A master that
/// was unreachable for hours may leave a million events of one rule, and Salt's own reactor does some 750 a second at most.
pub const REACTOR_BUDGET: u32 = 1_000_000;
/// See [`REACTOR_BUDGET`].
pub const REACTOR_BUDGET_PER: Duration = Duration::from_secs(3600);

/// Bytes of rendered text, of chunks, of a call's load and of a result that a record keeps, and how many names of minions.
pub const REACTOR_TEXT_BYTES_MAX: usize = 64 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_CHUNKS_BYTES_MAX: usize = 256 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_RESULT_BYTES_MAX: usize = 64 * 1024;
/// See [`REACTOR_TEXT_BYTES_MAX`].
pub const REACTOR_NAMES_MAX: usize = 100;

/// Records that wait for the store. Beyond it nothing more is begun.
pub const REACTOR_RECORDS_MAX: usize = 1_000;

/// How long a record that must be on disk first may take.
pub const REACTOR_RECORD_PATIENCE: Duration = Duration::from_secs(30);

/// How often the place in the log is written down, and records offered again.
pub const REACTOR_KEEP: Duration = Duration::from_secs(1);

/// How long reactions under way may take over it when the daemon stops; the rest is done after the next start.
pub const REACTOR_STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A runner of which no word has come for so long does not exist, or was not given what it needs: 3008 says nothing then.
pub const REACTOR_RUNNER_PATIENCE: Duration = Duration::from_secs(60);

/// How long the log is searched for the start of a runner or a wheel function after a request without an answer. A busy master
/// works through its queue meanwhile; afterwards the outcome is unknown.
pub const REACTOR_START_TIME: Duration = Duration::from_secs(60);

/// The same after a start of the daemon. What was started while it was down is not in the log, so there is less to wait for.
pub const REACTOR_START_TIME_RESUMED: Duration = Duration::from_secs(10);

/// Starts of runners and wheel functions that are remembered, each claimed or not.
pub const REACTOR_STARTS_MAX: usize = 10_000;

/// Bytes by which the file `REACTOR` may grow before it is written whole again, besides twice its size then.
pub const REACTOR_FILE_GROWTH: u64 = 256 * 1024;

/// How long a runner counts as under way without its result. Most take seconds; an orchestration that takes longer than this no longer
/// keeps others waiting.
pub const REACTOR_RUNNER_TIME: Duration = Duration::from_secs(3600);

/// Runners that may be under way at once, whatever the master's configuration says.
pub const REACTOR_RUNNERS_MAX: u32 = 10_000;

/// Bytes of records that are searched for the one about an event.
pub const REACTOR_SEARCH_BYTES: usize = 64 * 1024 * 1024;

/// Items under `reactor.options` and `reactor.allow`.
pub const REACTOR_OPTIONS_MAX: usize = 1_000;

/// Tries that a rule may ask for.
pub const REACTOR_TRIES_MAX: u32 = 1_000;

/// How long signatures of the master's runners hold; without an answer they are asked for again after a sixtieth of it.
pub const REACTOR_SIGNATURES: Duration = Duration::from_secs(3600);

/// How often the files of the master's configuration are looked at.
pub const REACTOR_RELOAD: Duration = Duration::from_secs(2);

/// How long a function of a `caller` reaction may take: a state run may take long, and Salt itself has no bound.
pub const REACTOR_CALLER_TIME: Duration = Duration::from_secs(3600);

/// How long a file that Salt fetched from its file server is trusted. A fetch takes some 10 ms, and what is behind it (git, S3) is
/// looked at by the master once a minute.
pub const REACTOR_FETCHED_TRUSTED: Duration = Duration::from_secs(2);

/// How many changes of `salt-run reactor.add` and `reactor.delete` outlive a configuration that is read again.
pub const REACTOR_CHANGES_MAX: usize = 1_000;

/// How long after an event Salt's own reactor may take over it, for a call of its to be held against one of ours. It works one event
/// after the other, and a master under load lags.
pub const REACTOR_SHADOW_WINDOW: Duration = Duration::from_secs(60);
/// See [`REACTOR_SHADOW_WINDOW`].
pub const REACTOR_SHADOW_WINDOW_MIN: Duration = Duration::from_secs(1);
/// See [`REACTOR_SHADOW_WINDOW`].
pub const REACTOR_SHADOW_WINDOW_MAX: Duration = Duration::from_secs(3600);

/// How much earlier than its event a call may be seen: one comes by the bus, the other perhaps by another door.
pub const REACTOR_SHADOW_EARLY: Duration = Duration::from_secs(1);

/// How long after the window our own record, and the load of a job, may take to get into the log.
pub const REACTOR_SHADOW_LATE: Duration = Duration::from_secs(2);

/// Calls of either side that wait for the end of their window, and the bytes of their arguments; beyond them the oldest are judged
/// before their time.
pub const REACTOR_SHADOW_WAITING_MAX: usize = 100_000;
/// See [`REACTOR_SHADOW_WAITING_MAX`].
pub const REACTOR_SHADOW_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of one value of a call that is compared; of a larger one it is said that it cannot be seen.
pub const REACTOR_SHADOW_ACT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the log that are searched for one page of what is compared.
pub const REACTOR_SHADOW_SEARCH_BYTES: usize = 64 * 1024 * 1024;

/// How often the reactor writes into the log whether it is in shadow, beside each start and change.
pub const REACTOR_MODE_TOLD: Duration = Duration::from_secs(3600);

const _: () = assert!(REACTOR_TASKS_MAX > REACTOR_WORKERS as usize);

/// Processes of Salt's Python that render at once. Each has some 70 MB, and starts when those before it are busy.
pub const REACTOR_HELPERS: usize = 4;

/// Calls by a reactor of which it is not known yet whose reactor made them.
pub const REACTOR_FOREIGN_CALLS_MAX: usize = 1_000;

/// How long the master may take to say that such a call is ours.
pub const REACTOR_FOREIGN_CALL_GRACE: Duration = Duration::from_secs(30);

/// How long a call by another reactor counts as a sign that it is on.
pub const REACTOR_FOREIGN_CALL_TTL: Duration = Duration::from_secs(3_600);
