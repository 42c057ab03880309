//! Limits of the program: unit, value, and the reason for the value.
//!
//! Every limiting number is defined here; prose links to the constant.

mod cluster;
mod consumers;
mod engines;
mod http;
mod reactor;
mod store;

use std::time::Duration;

pub use cluster::*;
pub use consumers::*;
pub use engines::*;
pub use http::*;
pub use reactor::*;
pub use store::*;

/// Bytes of one frame on the local socket, header excluded.
///
/// The largest entry plus room for the call around it. A longer header gets an error response
/// before any allocation.
pub const WIRE_FRAME_BYTES_MAX: usize = ENTRY_BYTES_MAX + 64 * 1024;
/// Bytes of a response that this program accepts as a client. `get_jids` lists all jobs in one
/// response, as Salt requires, at about 136 bytes each. The buffer grows with the received data.
pub const WIRE_ANSWER_BYTES_MAX: usize = 1 << 30;

/// Bytes of one entry's body. Salt trims events at 1 MiB by default; returns of `cp.push` and
/// `pkg.list_pkgs` on real fleets reach tens of MiB.
pub const ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Nesting depth of a msgpack value, scalars included: the limit of Python's packer in Salt's codec. Its unpacker stops
/// at 1,024, and recursive functions of Salt below 1,000.
pub const MSGPACK_DEPTH_MAX: usize = 512;

/// [`MSGPACK_DEPTH_MAX`] as `rmpv` counts: two for each level, and three more for the parts of an ext.
pub const RMPV_DEPTH_MAX: usize = 2 * MSGPACK_DEPTH_MAX + 3;

/// Nesting depth that a response of the daemon adds around a value from Salt: list, row, field.
pub const ENVELOPE_DEPTH_MAX: usize = 8;

/// Nesting depth of JSON text: of a response or an exported line, and the object of a tagged value.
pub const JSON_DEPTH_MAX: usize = MSGPACK_DEPTH_MAX + ENVELOPE_DEPTH_MAX + 4;

/// [`RMPV_DEPTH_MAX`] of a whole response.
pub const RMPV_ANSWER_DEPTH_MAX: usize = RMPV_DEPTH_MAX + 2 * (ENVELOPE_DEPTH_MAX + 1);

/// Unreadable values (for Salt's codec) in one response that are replaced by a string with the
/// reason. Further values become nil, because many small values would enlarge the response.
pub const UNREADABLE_SHOWN_MAX: usize = 1_000;

/// Bytes of an unhashable map key that is shown as a string. The string for a nil is six times as
/// long.
pub const UNREADABLE_KEY_BYTES_MAX: usize = 1024;

/// Concurrent connections on the local socket. One more gets `unavailable` and is closed. A master
/// has tens of workers with one connection each.
pub const SOCKET_PEERS_MAX: usize = 16_384;

/// Bytes of a unix socket's path: `sun_path` of Linux has 108 bytes with the terminating zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Masters that share the microseconds of job ids. With 64 masters a daemon gets one microsecond in
/// 128, which is more than a master publishes.
pub const CLUSTER_SLOTS_MAX: u16 = 64;

/// Longest name of a stream of several masters. NATS has file names made of it.
pub const CLUSTER_STREAM_BYTES_MAX: usize = 32;

/// Most replicas of a stream, a limit of NATS.
pub const CLUSTER_REPLICAS_MAX: u32 = 5;

/// In this time NATS recognises a message that is republished.
pub const CLUSTER_DUPLICATES: Duration = Duration::from_secs(120);

/// Shortest time for which a stream keeps messages: NATS accepts none below [`CLUSTER_DUPLICATES`].
pub const CLUSTER_WINDOW_MIN: Duration = CLUSTER_DUPLICATES;

/// Longest time for which a stream keeps messages.
pub const CLUSTER_WINDOW_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Bytes of a configuration file. Every key with its documentation fits a hundred times over; a longer
/// file is a different file, named by mistake.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of a file of Salt's configuration. Salt sets no limit, and generated node groups and
/// external pillars reach megabytes.
pub const SALT_CONFIG_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Files of Salt's configuration that are read, each counted as often as it is included. A file that
/// includes its own directory multiplies with each level.
pub const SALT_CONFIG_FILES_MAX: usize = 10_000;
/// Files in the directory `conf.d` next to the configuration file.
pub const CONFIG_FILES_MAX: usize = 1000;

/// Nesting depth of a configuration file; the deepest known key has two levels.
pub const CONFIG_DEPTH_MAX: usize = 16;

/// Rows that the command line requests in one call; the page size of `--no-limit`.
pub const CLI_PAGE_ROWS: usize = 1_000;

/// Timeout of the command line for a response of the daemon.
pub const CLI_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

const _: () =
    assert!(WIRE_FRAME_BYTES_MAX > ENTRY_BYTES_MAX && WIRE_FRAME_BYTES_MAX < u32::MAX as usize);

/// Job rows read from the store in one step for a list.
pub const JOBS_READ_AT_ONCE: usize = 512;

/// Bytes of the arguments of a call with a filter.
pub const ARGS_BYTES_MAX: usize = 64 * 1024;
/// Nesting depth of arguments and results that are decoded into types, without the Salt values in
/// them.
pub const DECODE_DEPTH_MAX: usize = 64;

/// Rows in the response to one list call.
pub const LIST_ROWS_MAX: usize = 10_000;

/// Bytes of data in the response to one `events_list`, which then indicates that more follow.
pub const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of frames in flight of all peers of the local socket. A peer whose frame does not fit
/// waits before its first byte is read.
pub const SOCKET_BYTES_IN_FLIGHT: usize = 256 * 1024 * 1024;

/// Calls in flight of one connection; further calls are read after a response is sent.
pub const PEER_CALLS_IN_FLIGHT: usize = 256;

/// Bytes read from each file of a spool: the head of the first waiting record, and the counters.
pub const SPOOL_PEEK_BYTES: usize = 4096;

/// Bytes of read-ahead: a small frame arrives whole, with its header, in one read.
pub const PEER_READ_BYTES: usize = 4096;

/// Bytes of responses to one peer in one write.
pub const ANSWERS_WRITTEN_AT_ONCE: usize = 64 * 1024;

/// Reading calls of the local socket that are carried out at the same time, in total and per user.
/// A master and its administrators are often one user.
pub const SOCKET_CALLS_MAX: usize = 16;
/// See [`SOCKET_CALLS_MAX`].
pub const SOCKET_CALLS_OF_ONE: usize = 12;
/// Time that a reading call waits for its turn. Salt's timeouts are shorter.
pub const SOCKET_CALL_WAIT: Duration = Duration::from_secs(120);

/// Longest wait for a listener at the path of the daemon's socket. A listener that hangs longer is
/// using the path.
pub const SOCKET_IN_USE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a listener at the path of the daemon's socket may take to go away: systemd closes the
/// last daemon's socket some time after that daemon has ended.
pub const SOCKET_LEFT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between checks whether that listener has closed.
pub const SOCKET_LEFT_POLL: Duration = Duration::from_millis(50);

/// Timeout for the rest of a started frame, and for reading a response.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections of a unix socket that wait to be accepted; the system has its own limit (`net.core.somaxconn`).
pub const LISTEN_BACKLOG: u32 = 1024;

/// Timeout for the preamble of a new peer.
pub const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Greatest age of a caller's time in a writing call. A spool delivers entries for up to a week (`saltcellar.spool_age_max`); an older time
/// indicates a wrong clock or an attempt to forge history.
pub const CALLER_TIME_AGE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// First and last time in an import, in microseconds since 1970: the range of a jid, up to the year 9999.
pub const IMPORT_TIMES: (i64, i64) = (0, 253_402_300_799_999_999);

/// Timeout of a writing call for room in `intake`, after which it gets `unavailable`.
pub const INTAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes requested from a bus socket in one read.
pub const BUS_READ_BYTES: usize = 256 * 1024;

/// Longest pause between two reads of a bus, in which events accumulate in the socket, because one
/// read of many events is cheaper. No caller waits for a response; the first event after silence is
/// read immediately.
pub const BUS_GATHER: Duration = Duration::from_millis(25);
/// As [`BUS_GATHER`], if a reactor waits for the events.
pub const BUS_GATHER_TO_REACT: Duration = Duration::from_millis(2);
/// A shorter pause is not made, because it costs more than it saves.
pub const BUS_GATHER_MIN: Duration = Duration::from_millis(1);
/// Bytes of a socket's buffer that should be occupied at the next read: 70 % of what Linux gives a unix socket, 208 KiB
/// (`net.core.wmem_default`). A read of more has found the buffer full.
pub const BUS_GATHER_BYTES: usize = 144 * 1024;
/// See [`BUS_GATHER_BYTES`]. A message that does not fit into the rest waits, whatever its size.
pub const BUS_SOCKET_FULL_BYTES: usize = 192 * 1024;

/// Bytes and age at which events of a bus are stored while no reader waits for new events. Nothing acknowledges these events, and a
/// commit costs as much as hundreds of them.
pub const BUS_BATCH_BYTES: usize = 1024 * 1024;
/// See [`BUS_BATCH_BYTES`]. A `kill -9` loses at most the events of this time; a gap record marks them.
pub const BUS_BATCH_TIME: Duration = Duration::from_millis(250);

/// Memory of one stored batch of a bus that is kept for the next one: the largest usual one, with its metadata.
pub const SPARE_BATCH_BYTES: usize = 4 * BUS_BATCH_BYTES;

/// Memory for events of one bus that wait for the store. Beyond it events are lost and counted. While the disk accepts
/// writes, events beyond [`SPILL_ABOVE_BYTES`] are spilled to it.
pub const BUS_MEMORY_BYTES: usize = 8 * 1024 * 1024;
/// See [`BUS_MEMORY_BYTES`].
pub const SPILL_ABOVE_BYTES: usize = 3 * 1024 * 1024;

/// Time for which events wait in memory for a busy store before they are spilled to disk.
pub const SPILL_AFTER: Duration = Duration::from_millis(100);

/// Total time that a bus reader waits for the spill drainer to free memory while the store is stuck, before it drops events. The
/// time resets once half of the memory is free. Salt disconnects a subscriber after 60 s, or (3008) at 10,000 frames
/// in its queue, which takes two seconds on a saturated bus; a reader with short pauses stays connected.
pub const BUS_WAITS_MAX: Duration = Duration::from_secs(3);

/// Free memory required before events are kept again after a loss.
pub const BUS_RESUME_BYTES: usize = 2 * 1024 * 1024;

const _: () = assert!(SPILL_ABOVE_BYTES + BUS_RESUME_BYTES < BUS_MEMORY_BYTES);

/// Bytes of one spill file. A file is deleted once all its events are stored.
pub const SPILL_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of events delivered from the spill in one step.
pub const SPILL_READ_BYTES: usize = 256 * 1024;

/// Pause before a failed disk operation of the spill is retried. For reads it doubles with each failure, up to
/// [`SPILL_RETRY_MAX`].
pub const SPILL_RETRY: Duration = Duration::from_secs(1);
/// See [`SPILL_RETRY`].
pub const SPILL_RETRY_MAX: Duration = Duration::from_secs(60);

/// Failed reads of a spill file before its unreadable part counts as damaged.
pub const SPILL_READ_TRIES: u32 = 6;

/// Damaged spill files kept for each bus; each has at most [`SPILL_FILE_BYTES`] and one batch.
pub const SPILL_DAMAGED_FILES: usize = 16;

/// Bytes of a disk sector: after a read error the sectors around it are read one by one.
pub const SECTOR_BYTES: usize = 4096;

/// Damaged places of files that are remembered, to log each once.
pub const DAMAGE_PLACES_MAX: usize = 10_000;

/// Damaged places that the status names.
pub const DAMAGE_ROWS_MAX: usize = 8;

/// Interval at which a bus source records the time up to which all events are safe. After `kill -9` a gap starts at most this
/// much too early.
pub const SEEN_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest pause before bus events that the store rejected are retried.
pub const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`REFUSED_PAUSE_MIN`].
pub const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Attempts to store a batch while the store accepts other batches, before the batch is dropped.
pub const REFUSED_TIMES_MAX: u32 = 20;

/// Timeout at shutdown for a store that accepts nothing; the remaining events stay in the spill.
pub const SPILL_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Lifetime after which a bus connection without events counts as established.
pub const BUS_SETTLED: Duration = Duration::from_secs(1);

/// Bytes of an event's tag. Salt's tags are below 300. Longer tags are rejected and counted,
/// because tags are stored in dictionaries and appear in every list.
pub const TAG_BYTES_MAX: usize = 64 * 1024;

/// Rules in one list of the configuration; also globs, paths or patterns in one list of a rule. Each is
/// compared with each entry.
pub const INGEST_RULES_MAX: usize = 64;

/// Memory of one compiled pattern.
pub const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// The largest N of `sample N`.
pub const SAMPLE_MAX: u32 = 1_000_000;

/// Log interval of a source for the same kind of bad input; all occurrences are counted.
pub const SOURCE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of data fired onto a bus: Salt's default `max_event_size`, beyond which Salt would trim it.
pub const FIRE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a tag fired onto a bus.
pub const TAG_BYTES_FIRED_MAX: usize = 1024;

/// Timeout for firing an event, and for a probe of a bus.
pub const FIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after a timeout in which no event waits for the same master.
pub const FIRE_HUNG_PAUSE: Duration = Duration::from_secs(10);

/// Wait for room in the buffer of a socket when no time is left.
pub const FIRE_WRITE_STEP: Duration = Duration::from_millis(20);

/// Longest wait within the timeout before the stop of the daemon is noticed.
pub const FIRE_STEP: Duration = Duration::from_millis(250);

/// First timeout for a probe of a bus's framing; it doubles with each attempt.
pub const FIRE_PROBE_PAUSE: Duration = Duration::from_millis(100);

/// First and longest pause between attempts to connect to a bus.
pub const BUS_RECONNECT_MIN: Duration = Duration::from_millis(50);
/// See [`BUS_RECONNECT_MIN`].
pub const BUS_RECONNECT_MAX: Duration = Duration::from_secs(2);

/// Longest time without reading a bus that is logged as a restart, not as a loss: a master with many workers stops and starts in half of it.
pub const BUS_RESTART_MAX: Duration = Duration::from_secs(60);

/// Interval at which a sleeping thread checks for shutdown.
pub const STOP_CHECK: Duration = Duration::from_millis(200);

/// Timeout of a shutdown, after which the process exits anyway; systemd's default is 90 s.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

const _: () = assert!(SOCKET_BYTES_IN_FLIGHT > WIRE_FRAME_BYTES_MAX);

/// Bytes of a name: a jid, a minion id, a function, an end time. Salt's are below 300; names are
/// stored in dictionaries and index rows, which are designed for short names.
pub const NAME_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a frame that its peer may send without reserving memory first.
pub const TINY_FRAME_BYTES: usize = 64 * 1024;

/// Bytes of responses that wait for peers to read them. A call whose response does not fit gets
/// `unavailable`.
pub const ANSWER_BYTES_WAITING: usize = 256 * 1024 * 1024;

/// Interval between attempts to seal a segment.
pub const SEAL_RETRY: Duration = Duration::from_secs(30);

/// Timeout for opening a sled database that is still being closed.
pub const INDEX_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a page of a segment's index before compression. Looking up a job decodes a whole page.
pub const INDEX_PAGE_BYTES: usize = 24 * 1024;

/// Bytes of a page of the state database before compression. Sixteen rows of a leaf stay below a quarter of sled's segment
/// size (128 KiB), beyond which sled keeps them in files that it does not sync.
pub const STATE_PAGE_BYTES: usize = 6 * 1024;

/// Time ranges that summarise the jobs of a segment: 6 KiB, of which some ten bytes each are left once they are packed.
pub const JID_RUNS_MAX: usize = 384;

/// Bits of a segment's Bloom filter for free-form jids; with four bits each, 2,000 jids give one false positive in 50.
pub const JID_FILTER_BITS: usize = 16 * 1024;

/// Distinct tag templates in a segment's summaries, and their bytes. Salt's tags have about thirty
/// templates.
pub const TAG_TEMPLATES_MAX: u32 = 1_024;
/// See [`TAG_TEMPLATES_MAX`].
pub const TAG_TEMPLATE_BYTES_MAX: usize = 64 * 1024;

/// Jobs of an active segment sorted in one step, in the path of a commit: about 50 microseconds.
pub const JOBS_SORTED_AT_ONCE: usize = 4_096;

/// Memory of sled for the state database.
pub const STATE_CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Sequence numbers that a restored or salvaged store leaves out, in addition to [`RENUMBER_PER_SECOND`]: its predecessor may have
/// assigned them after the backup.
pub const RENUMBER_AHEAD: u64 = 1 << 32;

/// Sequence numbers that a restored or salvaged store leaves out for each second since its newest
/// entry. More than a daemon can assign in that time: even a backup that is restored twice assigns
/// no number twice.
pub const RENUMBER_PER_SECOND: u64 = 1 << 20;

/// Bytes that backup and restore copy in one step.
pub const TOOL_COPY_BYTES: usize = 1024 * 1024;

/// Problems that `store verify` lists; further problems are only counted.
pub const VERIFY_PROBLEMS_MAX: usize = 10_000;

/// Concurrent connections of a separate minion listener. An idle one takes about 40 KB.
pub const HTTPS_PEERS_MAX: usize = 4096;

/// Connections of one minion. Each returning job on a minion has one, for the lifetime of its
/// process.
pub const HTTPS_PEERS_OF_ONE: usize = 32;

/// Timeout of a new connection to a separate minion listener for its first batch with a valid signature.
pub const HTTPS_AUTH_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout of a TLS handshake.
pub const HTTPS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of an HTTPS connection between batches with a valid signature, and for the head of a request.
pub const HTTPS_IDLE: Duration = Duration::from_secs(60);

/// Bytes and lines of the head of a request. The extension's has five lines and 200 bytes.
pub const HTTPS_HEAD_BYTES_MAX: usize = 8 * 1024;
/// See [`HTTPS_HEAD_BYTES_MAX`].
pub const HTTPS_HEAD_LINES_MAX: usize = 32;

/// Largest difference between a minion's clock and the daemon's. A minion's calls carry its own
/// timestamps.
pub const HTTPS_CLOCK_OFF_MAX: Duration = Duration::from_secs(300);

/// Calls of one batch. The extension sends up to 64 from its spool.
pub const HTTPS_CALLS_MAX: usize = 1024;

/// Bytes in flight of batches up to [`HTTPS_SMALL_BYTES`], and of larger batches. A batch without
/// room within [`PEER_TIMEOUT`] is rejected as overload.
pub const HTTPS_SMALL_BYTES_IN_FLIGHT: usize = 32 * 1024 * 1024;
/// See [`HTTPS_SMALL_BYTES_IN_FLIGHT`].
pub const HTTPS_LARGE_BYTES_IN_FLIGHT: usize = 96 * 1024 * 1024;
/// See [`HTTPS_SMALL_BYTES_IN_FLIGHT`].
pub const HTTPS_SMALL_BYTES: usize = 512 * 1024;

/// Batches in flight of one minion, which must not take all the room. Further batches wait.
pub const HTTPS_BATCHES_OF_ONE: usize = 8;

/// Minimum bytes per second of a large batch, in addition to [`PEER_TIMEOUT`].
pub const HTTPS_BYTES_PER_S_MIN: usize = 64 * 1024;

/// Bytes of responses to minions in flight.
pub const HTTPS_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of responses after which the remaining reading calls of a batch are deferred to a separate
/// batch.
pub const HTTPS_ANSWERS_OF_ONE_BYTES: usize = 16 * 1024 * 1024;

/// Batches with reading calls handled concurrently; further batches wait.
pub const HTTPS_ASKING_MAX: usize = 4;

/// Bytes of a certificate file, of a private key and of a minion's public key. A longer file is a different one.
pub const PEM_BYTES_MAX: u64 = 256 * 1024;

/// Minions whose key is cached, at about 600 bytes each.
pub const HTTPS_KEYS_REMEMBERED: usize = 16 * 1024;

/// Interval at which an HTTP listener checks its certificate for changes, and retries to open its socket.
pub const HTTPS_POLL: Duration = Duration::from_secs(2);

/// Log interval for a certificate that is expired or about to expire.
pub const HTTPS_EXPIRED_LOG_INTERVAL: Duration = Duration::from_secs(3600);

/// Remaining validity below which a certificate is reported as expiring.
pub const HTTPS_EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// Log interval for the same kind of bad batch; all occurrences are counted.
pub const HTTPS_BAD_LOG_INTERVAL: Duration = Duration::from_secs(10);

const _: () = assert!(HTTPS_LARGE_BYTES_IN_FLIGHT > WIRE_FRAME_BYTES_MAX);

/// Frames of a ZeroMQ message. Events consist of one or two. A message with more frames is ignored;
/// a message beyond this limit ends the connection.
pub const ZMTP_FRAMES_MAX: usize = 8;

/// Memory of the process of a ZeroMQ socket. It holds a few copies of the largest event; a peer that makes it use more ends it.
pub const ZMQ_CHILD_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Pause before the process of a ZeroMQ socket is restarted; doubled each time that it ends soon after a start.
pub const ZMQ_RESTART_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
pub const ZMQ_RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Running time after which the process counts as stable.
pub const ZMQ_STABLE: Duration = Duration::from_secs(30);

/// Events of the ZeroMQ sockets that are passed on together.
pub const ZMQ_BATCH_EVENTS: usize = 1000;
/// Bytes of such events.
pub const ZMQ_BATCH_BYTES: usize = 512 * 1024;

/// Pause before the ZeroMQ PULL sends its events to a daemon with a full disk again.
pub const ZMQ_RETRY: Duration = Duration::from_millis(500);

/// Time for the daemon to store a batch of the ZeroMQ PULL. Longer than any disk hangs: a batch that is resent may be stored twice.
pub const ZMQ_ANSWER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Time without a message after which a stopping ZeroMQ socket has handled all that was written to it.
pub const ZMQ_QUIET: Duration = Duration::from_millis(100);

/// Interval at which the ZeroMQ PUB checks whether it shall stop.
pub const ZMQ_POLL: Duration = Duration::from_millis(250);

/// Time for subscribers to read their queues at a stop.
pub const ZMQ_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the process of a ZeroMQ socket to stop. Then it is killed.
pub const ZMQ_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Log interval for errors of ZeroMQ peers.
pub const ZMQ_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Calls and bytes in flight of an import; the daemon accepts [`PEER_CALLS_IN_FLIGHT`] on one connection.
pub const IMPORT_CALLS: usize = 192;
/// See [`IMPORT_CALLS`].
pub const IMPORT_BYTES: usize = 4 * 1024 * 1024;

/// Reading calls in flight of an import or an export. Each response has up to [`LIST_BYTES_MAX`].
pub const IMPORT_QUESTIONS: usize = 32;

/// Items, and their bytes, that an import looks up together before it stores them.
pub const IMPORT_CHUNK_ITEMS: usize = 1024;
/// See [`IMPORT_CHUNK_ITEMS`].
pub const IMPORT_CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Known loads, minions and returns that an import keeps in memory, about 100 bytes each; beyond
/// them only the entries of the current jobs. Entries of a job are close together in all import
/// formats.
pub const IMPORT_FACTS_REMEMBERED: usize = 100_000;

/// Jobs that `import local-cache` sorts in one pass, about 110 bytes each. A larger tree is walked
/// once per this many jobs.
pub const IMPORT_JOBS_SORTED: usize = 256 * 1024;

/// Events of one `event_return` of an import.
pub const IMPORT_EVENTS: usize = 256;

/// Skipped items that an import or export lists; further items are only counted.
pub const IMPORT_BAD_NAMED: u64 = 1000;

/// Bytes of a line of imported JSON: the largest entry in base64 or escaped.
pub const JSON_LINE_BYTES_MAX: u64 = 4 * ENTRY_BYTES_MAX as u64;

const _: () = assert!(IMPORT_CALLS < PEER_CALLS_IN_FLIGHT);

/// Differing later returns of one minion that are kept for display; all are counted.
pub const ANSWERS_DIFFERING_SHOWN: usize = 16;

/// Different events about a publish of one job that are compared with each other. Any program can fire them.
pub const PUBLISHES_DIFFERING_MAX: usize = 100;

/// Rows scanned by one call for a list of jobs. The response contains the position for the next
/// call.
pub const LIST_JOBS_SEEN: usize = 100_000;
/// Jobs whose entries one list call reads, for filters on the outcome of a job.
pub const LIST_JOBS_READ: usize = 5_000;
/// Jobs that a limited reader's list looks up together: each page of an index and each block is decoded once for all of them.
pub const ALLOWED_JOBS_AT_ONCE: usize = 64;

/// Minions in one response. Larger than other pages, because each page re-examines jobs and events.
pub const MINIONS_ROWS_MAX: usize = 10_000;
/// Newest jobs that one call about minions examines for missing returns, and their returns and expected minions at most.
pub const MINIONS_JOBS_CHECKED: usize = 100;
/// See [`MINIONS_JOBS_CHECKED`].
pub const MINIONS_ENTRIES_CHECKED: usize = 100_000;
/// Newest entries that one list of minions examines for the time at which each was last seen.
pub const MINIONS_ENTRIES_SEEN: usize = 200_000;
/// Bytes of highstates that one list of minions reads; results of further highstates are known,
/// their states are not.
pub const MINIONS_STATE_BYTES: usize = 64 * 1024 * 1024;
/// Newest blocks of a class that are examined for entries by hour.
pub const HOURS_BLOCKS_MAX: usize = 200_000;
/// Hours of the statistics by hour.
pub const HOURS_SHOWN: usize = 24;
/// Events in the timeline of one minion.
pub const MINION_TIMELINE: usize = 20;
/// Failed and changed states that are named for one minion.
pub const MINION_STATES_SHOWN: usize = 50;

/// Failed states of one return that count as causes.
pub const CAUSES_PER_RETURN_MAX: usize = 50;
/// Characters of each text by which failures are grouped.
pub const CAUSE_MESSAGE_MAX: usize = 200;
/// Characters of the line that is an example of a cause.
pub const CAUSE_EXAMPLE_MAX: usize = 400;
/// Causes in one response.
pub const CAUSES_SHOWN_MAX: usize = 1_000;
/// Minions that are named for one cause.
pub const CAUSE_MINIONS_SHOWN: usize = 100;
/// Newest entries that one call examines for the time at which missing minions were heard last.
pub const MISSING_ENTRIES_SEEN: usize = 20_000;
/// Days of highstates that are counted for the fleet.
pub const FLEET_DAYS: i64 = 14;
/// Days of which durations of states are shown by default.
pub const DURATION_DAYS: i64 = 7;
/// Minions in the picture of a job.
pub const STRIP_MINIONS: usize = 100;
/// Days of a minion's results.
pub const MINION_RESULT_DAYS: i64 = 30;
/// Days of a minion's changes.
pub const MINION_CHANGE_DAYS: i64 = 7;
/// Runs of a minion in one response.
pub const MINION_RESULTS_SHOWN: usize = 1_000;
/// Changes of a minion in one response.
pub const MINION_CHANGES_SHOWN: usize = 200;
/// Characters of the line that shows what a state changed.
pub const CHANGE_SUMMARY_MAX: usize = 200;
/// Pages of states that the view of a job reads; of the returns behind them it shows none.
pub const PAGE_STATES_READ: usize = 4;
/// Causes in the view of a job.
pub const PAGE_CAUSES: usize = 25;
/// Latest events that are counted by kinds of tags.
pub const RATE_EVENTS_SEEN: usize = 5_000;
/// Kinds of tags in one response.
pub const RATE_TAGS_SHOWN: usize = 10;
/// Causes of which metrics show the number of minions.
pub const METRICS_CAUSES: usize = 10;
/// How far back the digest of runs reaches.
pub const DIGEST_WINDOW: Duration = Duration::from_secs(30 * 86_400);
/// Bytes of returns from which one call derives the digest; the next call continues.
pub const DIGEST_BYTES_AT_ONCE: usize = 256 * 1024 * 1024;
/// Runs in the digest; the oldest are left out.
pub const DIGEST_RUNS_MAX: usize = 500_000;
/// Functions of one return that are looked at; Salt's jobs of several functions have a few.
pub const RETURN_FUNCTIONS_MAX: usize = 1_000;
/// States of one return that are shown and counted.
pub const RETURN_STATES_MAX: usize = 100_000;
/// Different states of which the digest knows durations, by day.
pub const DIGEST_STATES_MAX: usize = 20_000;

/// Groups that one call counts events by; events of further groups are counted together.
pub const COUNT_GROUPS_MAX: usize = 10_000;

/// Earlier jobs scanned to find the orchestration that started a job.
pub const LINK_JOBS_SEEN: usize = 2_000;
/// Orchestrations read among them.
pub const LINK_RUNS_READ: usize = 32;
/// Largest age difference between an orchestration and its job.
pub const LINK_SPAN: Duration = Duration::from_secs(86_400);

/// Jobs scanned for an earlier run of the same job.
pub const PREVIOUS_JOBS_SEEN: usize = 20_000;

/// Bytes of a job's returns that are in memory together; the returns of one minion in any case.
pub const PART_BYTES: usize = 16 * 1024 * 1024;
/// Minions of a job whose returns are read together, at most.
pub const PART_MINIONS: usize = 4_000;
/// The same, at least, unless their returns have more bytes.
pub const PART_MINIONS_MIN: usize = 16;

/// The longest wait of one polling call; the client repeats it.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Changes of a job within this time after the first one are reported together with it.
pub const WATCH_GATHER: Duration = Duration::from_millis(50);

/// Cached templates of reactor files. One more evicts the oldest, which is reread when it is next needed.
pub const REACTOR_TEMPLATES_MAX: usize = 4096;

/// Bytes of a reactor file. Real files have a few hundred.
pub const REACTOR_TEMPLATE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Time for which the files of a reference are cached without a check of the disk. Salt checks for
/// each event, which takes about 3 us; an edit takes longer than this to trigger an event.
pub const REACTOR_FILES_TRUSTED: Duration = Duration::from_millis(2);

/// Time for which the names of the master's own execution modules are cached without a check of the disk.
pub const REACTOR_MODULES_TRUSTED: Duration = Duration::from_secs(1);

/// Longest wait of a rendering for Salt's list of renderers, if the site has its own. The start of Salt's Python takes
/// a few seconds on a busy host; without the list a file may be rendered by the wrong renderer.
pub const REACTOR_RENDERERS_WAIT: Duration = Duration::from_secs(15);

/// Time between questions for Salt's list of renderers while its Python does not start.
pub const REACTOR_RENDERERS_RETRY: Duration = Duration::from_secs(60);

/// Timeout of Salt's renderer for one file, or for one function call, by default (`reactor.helper_timeout`), after which its
/// process is killed and restarted.
pub const REACTOR_HELPER_TIME: Duration = Duration::from_secs(30);

/// Timeout of a reactor file that is a program (`#!py`, or a renderer of the site), by default (`reactor.program_timeout`). Salt waits
/// without limit; one that never ends would take a helper process for ever.
pub const REACTOR_PROGRAM_TIME: Duration = Duration::from_secs(600);

/// The maximum of `reactor.program_timeout`: a program that takes a day blocks a helper process for as long.
pub const REACTOR_PROGRAM_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The minimum of `reactor.helper_timeout`: one file that calls a few functions.
pub const REACTOR_HELPER_TIME_MIN: Duration = Duration::from_secs(1);

/// The maximum of `reactor.helper_timeout`: each of the few helper processes is busy for that long.
pub const REACTOR_HELPER_TIME_MAX: Duration = Duration::from_secs(3600);

/// Attempts of a request to Salt's renderer whose process dies each time.
pub const REACTOR_HELPER_TRIES: u32 = 3;

/// Bytes of data of one process of Salt's renderer, by default (`reactor.helper_memory`). With
/// all of Salt loaded it has about 150 MiB.
pub const REACTOR_HELPER_MEMORY: u64 = 1024 * 1024 * 1024;

/// The minimum of `reactor.helper_memory`: Salt has to fit.
pub const REACTOR_HELPER_MEMORY_MIN: u64 = 256 * 1024 * 1024;

/// Time for a process of Salt's renderer to exit after its socket is closed, before it is killed.
pub const REACTOR_HELPER_EXIT_TIME: Duration = Duration::from_secs(2);

/// Timeout for the start of Salt's renderer, which loads all of Salt.
pub const REACTOR_HELPER_START_TIME: Duration = Duration::from_secs(60);

/// Bytes of one response of Salt's renderer. Grains and options together take about 100 KiB.
pub const REACTOR_HELPER_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
