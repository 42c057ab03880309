//! Limits of the HTTP listener.

use std::time::Duration;

/// Connections on the network address, and on the unix socket. One more closes one without authentication on the network, or is closed.
pub const HTTP_PEERS_MAX: usize = 1024;

/// Connections of an address that are never kept by tokens: peers without a token, such as health
/// checks, always get in.
pub const HTTP_PEERS_RESERVED: usize = 32;

/// Connections of one token or user, on the network address and the unix socket together. The next
/// gets 429 and is closed.
pub const HTTP_PEERS_OF_ONE: usize = 128;

/// Open event streams, in total and per token or user. The next gets 503, because streams must
/// leave connections for other requests.
pub const HTTP_STREAMS_MAX: usize = 512;
/// See [`HTTP_STREAMS_MAX`].
pub const HTTP_STREAMS_OF_ONE: usize = 64;

const _: () =
    assert!(HTTP_STREAMS_OF_ONE < HTTP_PEERS_OF_ONE && HTTP_PEERS_OF_ONE * 4 <= HTTP_PEERS_MAX);

/// Bytes per second that a peer must read of a response, and the time over which they are measured.
pub const HTTP_READ_RATE_MIN: u64 = 8 * 1024;
/// See [`HTTP_READ_RATE_MIN`].
pub const HTTP_READ_WINDOW: Duration = Duration::from_secs(10);

/// Time for a connection to end by itself after its token was revoked.
pub const HTTP_REVOKED_TIME: Duration = Duration::from_secs(5);

/// Bytes and lines of the head of a request.
pub const HTTP_HEAD_BYTES_MAX: usize = 16 * 1024;
/// See [`HTTP_HEAD_BYTES_MAX`].
pub const HTTP_HEAD_LINES_MAX: usize = 64;

/// Timeout for the head of a request, and of an idle connection.
pub const HTTP_IDLE: Duration = Duration::from_secs(60);

/// Timeout for the body of a request.
pub const HTTP_BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of the body of a request to the API. A filter has at most a quarter.
pub const HTTP_BODY_BYTES_MAX: usize = 64 * 1024;

/// Bytes of the body of a request to a hook. The event must fit into Salt's `max_event_size`.
pub const HOOK_BODY_BYTES_MAX: usize = 1024 * 1024 - 64 * 1024;

/// Number of times that one event may pass through a hook and a sink of type `http`. A longer chain is a loop.
pub const HOOK_HOPS_MAX: u32 = 4;

/// Requests that are carried out at the same time, in total and per token or user; further requests
/// wait up to [`HTTP_BODY_TIMEOUT`].
pub const HTTP_CALLS_MAX: usize = 8;
/// See [`HTTP_CALLS_MAX`].
pub const HTTP_CALLS_OF_ONE: usize = 4;

/// Processor time of one request. A search ends by itself after 64 MiB, which take about a second.
pub const HTTP_PROCESSOR_TIME: Duration = Duration::from_secs(20);

/// Concurrent renderings of `/metrics`, in total and per token or user. They have separate threads
/// and memory.
pub const METRICS_CALLS_MAX: usize = 2;
/// See [`METRICS_CALLS_MAX`].
pub const METRICS_CALLS_OF_ONE: usize = 1;
/// Bytes of unread responses of `/metrics`; half of them for one token or user.
pub const METRICS_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Hooks that are fired at the same time, in total and per token or user. They wait for Salt's
/// master, so they have separate threads.
pub const HOOK_CALLS_MAX: usize = 4;
/// See [`HOOK_CALLS_MAX`].
pub const HOOK_CALLS_OF_ONE: usize = 2;
/// Bytes of bodies of hooks in flight; half of them for one token or user.
pub const HOOK_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of responses that wait for peers to read them, in total and per token or user. A further
/// request waits up to [`HTTP_BODY_TIMEOUT`] for room before it is carried out.
pub const HTTP_ANSWER_BYTES: usize = 128 * 1024 * 1024;
/// See [`HTTP_ANSWER_BYTES`].
pub const HTTP_ANSWER_BYTES_OF_ONE: usize = 48 * 1024 * 1024;

/// Bytes from which a response is compressed; less fits into a packet.
pub const HTTP_COMPRESSED_BYTES_MIN: usize = 1024;

/// Room that is reserved before a response is made, and before a piece of a stream is read. Most
/// are smaller.
pub const HTTP_ANSWER_RESERVE: usize = 1024 * 1024;
/// See [`HTTP_ANSWER_RESERVE`].
pub const HTTP_STREAM_RESERVE: usize = 16 * 1024;

/// Bytes of data in one piece of a stream, unless one event contains more. All pieces of one client fit into its share.
pub const HTTP_STREAM_PIECE_BYTES: usize = 256 * 1024;

const _: () = assert!(HTTP_STREAMS_OF_ONE * 2 * HTTP_STREAM_PIECE_BYTES < HTTP_ANSWER_BYTES_OF_ONE);

/// Events of one piece of a stream.
pub const HTTP_STREAM_EVENTS: usize = 500;

/// Pause of a stream that has sent all events: the events of a busy log are sent in fewer, larger
/// writes. An event after a pause does not wait.
pub const HTTP_STREAM_PAUSE: Duration = Duration::from_millis(25);

/// Latest pieces of streams that are kept for other streams at the same position. They are searched one by one.
pub const HTTP_SHARED_PIECES: usize = 32;

/// Bytes of a piece that is kept. All kept pieces are a small part of [`HTTP_ANSWER_BYTES`].
pub const HTTP_SHARED_PIECE_BYTES: usize = 512 * 1024;

const _: () = assert!(HTTP_SHARED_PIECES * HTTP_SHARED_PIECE_BYTES <= HTTP_ANSWER_BYTES / 8);

/// Interval at which an idle event stream sends a comment, because only a write reveals a broken
/// connection.
pub const HTTP_STREAM_BEAT: Duration = Duration::from_secs(10);

/// Newest jobs that `jobs.list_jobs` of salt-api returns.
pub const SALT_API_JOBS: usize = 1000;
/// Bytes of the results of one request to salt-api, of all its chunks together. A page of the API can
/// have somewhat more than [`LIST_BYTES_MAX`](super::LIST_BYTES_MAX), and JSON is longer than msgpack.
pub const SALT_API_BYTES: usize = 2 * super::LIST_BYTES_MAX;

const _: () = assert!(SALT_API_BYTES < HTTP_ANSWER_BYTES_OF_ONE);

/// Pages of [`SALT_API_JOBS`] jobs that it searches.
pub const SALT_API_PAGES: usize = 20;
/// Chunks of low data in one request to salt-api.
pub const SALT_API_CHUNKS: usize = 16;
/// Seconds until a client of salt-api signs in again.
pub const SALT_API_EXPIRE: i64 = 12 * 3600;
/// Age in microseconds up to which a job with missing returns is active for salt-api, and the number of such jobs.
pub const SALT_API_ACTIVE: i64 = 3600 * 1_000_000;
/// See [`SALT_API_ACTIVE`].
pub const SALT_API_ACTIVE_JOBS: usize = 20;

/// Sessions of the web UI, in total and per token or user. A new session ends the session that was
/// unused for longest.
pub const HTTP_SESSIONS_MAX: usize = 1024;
/// See [`HTTP_SESSIONS_MAX`].
pub const HTTP_SESSIONS_OF_ONE: usize = 32;

/// Lifetime of a session of the page: a working day.
pub const HTTP_SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// Time after its last request in which a session stays valid. An open overview makes a request every few seconds.
pub const HTTP_SESSION_IDLE: Duration = Duration::from_secs(2 * 3600);

/// Lifetime of a one-time link to the web UI, which a person opens immediately.
pub const PAGE_LINK_LIFETIME: Duration = Duration::from_secs(120);

/// Links that nobody has opened yet. One more replaces the oldest.
pub const PAGE_LINKS_MAX: usize = 32;

/// Tokens of one daemon.
pub const TOKENS_MAX: usize = 256;

/// Bytes of a token's name and of each of its globs.
pub const TOKEN_TEXT_BYTES_MAX: usize = 128;

/// Log interval for rejected requests of one kind; all are counted.
pub const HTTP_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Age of the appender's last heartbeat from which the daemon is not healthy. It iterates at least once a second.
pub const HEALTH_STUCK: Duration = Duration::from_secs(10);

/// Values of an event, or of a return, that a tree on the page shows.
pub const PAGE_TREE_NODES_MAX: usize = 5000;

/// Levels of a value that a tree on the page shows. Browsers cut documents at 512 levels, and each level here has three elements.
pub const PAGE_TREE_DEPTH_MAX: usize = 100;

/// Characters of a value in one line of the page.
pub const PAGE_TEXT_MAX: usize = 200;

/// Rows of a list in the web UI, unless its address contains a `limit`.
pub const PAGE_ROWS: usize = 50;

/// Events per second that a view follows; it shows the number of the remaining events.
pub const PAGE_STREAM_RATE: usize = 100;

/// Age up to which the overview shows the list of minions of an earlier view, if entries were stored since then.
pub const PAGE_ATTENTION_AGE: Duration = Duration::from_secs(5);
/// Lists that are kept for views: one for each right and limits of a token.
pub const PAGE_ATTENTION_KEPT: usize = 8;

/// Minions that a search on the page lists.
pub const PAGE_FIND_ROWS: usize = 40;

/// Jobs with failures among which the overview finds those with most of them.
pub const PAGE_FAILED_READ: usize = 200;

/// Characters of a part of a title.
pub const PAGE_TITLE_PART_MAX: usize = 60;

/// Bytes of the way back in the address of a page of a list.
pub const PAGE_BACK_BYTES_MAX: usize = 1500;

/// Rows of a list on the overview.
pub const PAGE_OVERVIEW_ROWS: usize = 8;
