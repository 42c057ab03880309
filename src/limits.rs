//! Every bound of the program: its unit, its value, and why that value.
//!
//! A number that limits something lives here and nowhere else; prose links to the constant.

mod reactor;
mod store;

use std::time::Duration;

pub use reactor::*;
pub use store::*;

/// Bytes of one frame on the local socket, header excluded.
///
/// The largest entry plus room for the call around it; a longer header is answered with an error before
/// a byte of it is allocated.
pub const WIRE_FRAME_BYTES_MAX: usize = ENTRY_BYTES_MAX + 64 * 1024;
/// Bytes of an answer that our own client takes: `get_jids` tells of every job at once, because Salt asks for that, some 136 bytes
/// each. It grows with what arrives.
pub const WIRE_ANSWER_BYTES_MAX: usize = 1 << 30;

/// Bytes of one entry's body. Salt trims events at 1 MiB by default, returns of `cp.push` and
/// `pkg.list_pkgs` on real fleets run to tens of MiB.
pub const ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Levels of nesting that a msgpack value may have, scalars included. As many as Salt's codec writes: Python's packer
/// stops there. Its unpacker stops at 1,024, and functions of Salt that recurse at less than 1,000.
pub const MSGPACK_DEPTH_MAX: usize = 512;

/// [`MSGPACK_DEPTH_MAX`] as `rmpv` counts: two for each level, and three more for what an ext consists of.
pub const RMPV_DEPTH_MAX: usize = 2 * MSGPACK_DEPTH_MAX + 3;

/// Levels that an answer of the daemon adds around a value from Salt: list, row, field.
pub const ENVELOPE_DEPTH_MAX: usize = 8;

/// Values that Salt's codec cannot read, in one answer, that are replaced by a text with the reason. Further ones become
/// nil, so that many small ones do not make the answer larger.
pub const UNREADABLE_SHOWN_MAX: usize = 1_000;

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

const _: () = assert!(WIRE_FRAME_BYTES_MAX > ENTRY_BYTES_MAX && WIRE_FRAME_BYTES_MAX < u32::MAX as usize);

/// Rows of jobs read from the store at once while listing.
pub const JOBS_READ_AT_ONCE: usize = 512;

/// Rows that one list call answers at most.
pub const LIST_ROWS_MAX: usize = 10_000;

/// Bytes of data that one `events_list` answers at most; it then says that there are more.
pub const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of frames that all peers of the local socket may have under way. A peer whose frame does not fit
/// waits before its first byte is read.
pub const SOCKET_BYTES_IN_FLIGHT: usize = 256 * 1024 * 1024;

/// Calls that one connection may have under way; further ones are read when an answer has left.
pub const PEER_CALLS_IN_FLIGHT: usize = 256;

/// Bytes read of each file of a spool: the head of the first record that waits, and the counters.
pub const SPOOL_LOOK_BYTES: usize = 4096;

/// Bytes that are read ahead of what is asked for: a small frame comes whole, header and all, with one read.
pub const PEER_READ_BYTES: usize = 4096;

/// Bytes of answers to one peer that go out with one write.
pub const ANSWERS_WRITTEN_AT_ONCE: usize = 64 * 1024;

/// How long a peer may take over a frame it has begun, or over taking an answer.
pub const PEER_PATIENCE: Duration = Duration::from_secs(30);

/// Connections of a unix socket that may wait to be accepted; the system has a bound of its own (`net.core.somaxconn`).
pub const LISTEN_BACKLOG: u32 = 1024;

/// How long a new peer may take over its preamble.
pub const PREAMBLE_PATIENCE: Duration = Duration::from_secs(10);

/// Greatest age of a time that a writing call names. A spool hands its entries over for a week (`saltcellar.spool_age_max`); an older time
/// is a broken clock, or an attempt to write into history.
pub const CALLER_TIME_AGE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// First and last time that an import may name, in microseconds since 1970: those that a jid can spell, up to the year 9999.
pub const IMPORT_TIMES: (i64, i64) = (0, 253_402_300_799_999_999);

/// How long a writing call waits for room in `intake` before it is answered `unavailable`.
pub const INTAKE_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes asked of a bus socket at once.
pub const BUS_READ_BYTES: usize = 256 * 1024;

/// A read off a bus that brings less than this is followed by [`BUS_GATHER`].
pub const BUS_READ_LITTLE: usize = 16 * 1024;

/// How long events gather in the socket while little comes, so that a commit has more than one or two of them. Nobody waits
/// for an answer there; the first event after silence is read at once.
pub const BUS_GATHER: Duration = Duration::from_millis(25);

/// The same where reactions wait for what is read.
pub const BUS_GATHER_TO_REACT: Duration = Duration::from_millis(2);

/// Memory of events that one bus may have waiting for the store. Beyond it events are lost, and counted; but as long as
/// the disk takes anything, what exceeds [`SPILL_ABOVE_BYTES`] goes there.
pub const BUS_MEMORY_BYTES: usize = 8 * 1024 * 1024;
/// See [`BUS_MEMORY_BYTES`].
pub const SPILL_ABOVE_BYTES: usize = 3 * 1024 * 1024;

/// How long events wait in memory for a store that is busy before they go to disk.
pub const SPILL_AFTER: Duration = Duration::from_millis(100);

/// How long the reader of a bus waits in all, the store being stuck, for the mover to make room in that memory before it loses events; half of it
/// free again, and the reader may wait anew. Salt disconnects a subscriber after 60 s, or (3008) with 10,000 frames
/// waiting for it, which is two seconds of a bus at its limit, in which one who waits now and then reads on.
pub const BUS_WAITS_MAX: Duration = Duration::from_secs(3);

/// Room that there must be in that memory before events are kept again after some were lost.
pub const LOSING_ENDS_BYTES: usize = 2 * 1024 * 1024;

const _: () = assert!(SPILL_ABOVE_BYTES + LOSING_ENDS_BYTES < BUS_MEMORY_BYTES);

/// Bytes of one file of the spill. A file goes when all that is in it is stored.
pub const SPILL_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of events that are handed over from the spill at once.
pub const SPILL_READ_BYTES: usize = 256 * 1024;

/// Pause after the spill's disk failed, before it is tried again. While reading fails it doubles, up to
/// [`SPILL_RETRY_MAX`].
pub const SPILL_RETRY: Duration = Duration::from_secs(1);
/// See [`SPILL_RETRY`].
pub const SPILL_RETRY_MAX: Duration = Duration::from_secs(60);

/// How often reading a file of the spill may fail before what cannot be read of it counts as damaged.
pub const SPILL_READ_TRIES: u32 = 6;

/// Damaged files of a bus's spill that are kept; each has at most [`SPILL_FILE_BYTES`] and one batch.
pub const SPILL_DAMAGED_FILES: usize = 16;

/// Bytes that a disk reads at once: of a file with a read error those around it are tried one by one.
pub const SECTOR_BYTES: usize = 4096;

/// How often a bus door writes down the moment up to which everything is safe. A gap after `kill -9` begins so much too early
/// at most.
pub const SEEN_EVERY: Duration = Duration::from_secs(5);

/// First and longest pause after the store refused events of a bus, before they are offered again.
pub const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`REFUSED_PAUSE_MIN`].
pub const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How often a batch is offered while the store takes others, before it is given up.
pub const REFUSED_TIMES_MAX: u32 = 20;

/// How long stopping waits for a store that takes nothing; what it has not taken by then stays in the spill.
pub const SPILL_STOP_PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection to a bus must have lived, if no event came, to count as one.
pub const BUS_SETTLED: Duration = Duration::from_secs(1);

/// Bytes of an event's tag. Salt's are below 300; a longer one is refused and counted, for tags stand in dictionaries
/// and in every list.
pub const TAG_BYTES_MAX: usize = 64 * 1024;

/// Rules that one list of the configuration may have, and globs, paths or patterns in one list of a rule. Each is
/// compared with each entry.
pub const INGEST_RULES_MAX: usize = 64;

/// Memory that one compiled pattern may take.
pub const PATTERN_BYTES_MAX: usize = 1024 * 1024;

/// The largest n of "1 of n".
pub const SAMPLE_MAX: u32 = 1_000_000;

/// How often a door speaks of the same kind of bad input; in between it is only counted.
pub const DOOR_SAYS: Duration = Duration::from_secs(60);
/// Bytes of data that are fired onto a bus: Salt's own `max_event_size` unless configured, beyond which Salt would cut it.
pub const FIRE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a tag that is fired onto a bus.
pub const TAG_BYTES_FIRED_MAX: usize = 1024;

/// How long a bus may take over an event that is fired, or to let a probe out.
pub const FIRE_PATIENCE: Duration = Duration::from_secs(5);

/// How long a probe of a bus's framing is waited for at first, each time twice as long.
pub const FIRE_PROBE_PAUSE: Duration = Duration::from_millis(100);

/// First and longest pause between attempts to connect to a bus.
pub const BUS_RECONNECT_MIN: Duration = Duration::from_millis(50);
/// See [`BUS_RECONNECT_MIN`].
pub const BUS_RECONNECT_MAX: Duration = Duration::from_secs(2);

/// How long a thread sleeps at most before it looks whether it should stop.
pub const STOP_CHECK: Duration = Duration::from_millis(200);

/// How long stopping may take before the process ends anyway; systemd's default is 90 s.
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

const _: () = assert!(SOCKET_BYTES_IN_FLIGHT > WIRE_FRAME_BYTES_MAX);

/// Bytes of a name: a jid, a minion id, a function, an end time. Salt's are below 300; names stand in
/// dictionaries and index rows, which are not made for more.
pub const NAME_BYTES_MAX: usize = 16 * 1024;

/// Small enough a frame that its peer need not set bytes aside before sending it.
pub const TINY_FRAME_BYTES: usize = 64 * 1024;

/// Bytes of answers that may wait for peers to read them. A call whose answer does not fit is told `unavailable`.
pub const ANSWER_BYTES_WAITING: usize = 256 * 1024 * 1024;

/// How often a segment that could not be sealed is tried again.
pub const SEAL_RETRY: Duration = Duration::from_secs(30);

/// How long a sled database that is being closed may still be held, before opening it is given up.
pub const INDEX_BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a value in sled. Sixteen rows of a leaf stay below a quarter of sled's segment size (128 KiB), beyond which it
/// keeps them in files that it does not sync.
pub const INDEX_PAGE_BYTES: usize = 6 * 1024;

/// Bytes of a page of an index before compression. Looking up a job decodes a whole page.
pub const INDEX_PAGE_RAW_BYTES: usize = 24 * 1024;

/// Memory that sled may take for the index of a sealed segment while it is open.
pub const INDEX_CACHE_BYTES: u64 = 2 * 1024 * 1024;

/// Memory that sled may take while it writes the index of a segment.
pub const INDEX_WRITE_CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Stretches of time that tell which jobs a segment may hold. With ten bytes each they fit into a value of sled beside
/// the filter for free-form jids.
pub const JID_RUNS_MAX: usize = 384;

/// Bits that tell which free-form jids a segment may hold; with four bits each, 2,000 jids leave one wrong guess in 50.
pub const JID_FILTER_BITS: usize = 16 * 1024;

/// Distinct shapes of tags that a segment's summaries tell apart, and their bytes. Salt's own tags have some thirty shapes.
pub const SHAPES_MAX: u32 = 1_024;
/// See [`SHAPES_MAX`].
pub const SHAPE_BYTES_MAX: usize = 64 * 1024;

/// Jobs of a growing segment that are sorted in one go, in the path of a commit: some 50 microseconds.
pub const JOBS_SORTED_AT_ONCE: usize = 4_096;

/// Memory that sled may take for the state database.
pub const STATE_CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes that backup and restore copy at once.
pub const TOOL_COPY_BYTES: usize = 1024 * 1024;

/// Problems that `store verify` lists one by one; beyond them they are only counted.
pub const VERIFY_PROBLEMS_MAX: usize = 10_000;

/// Connections served at once on the HTTPS door. An idle one takes about 40 KB.
pub const HTTPS_PEERS_MAX: usize = 4096;

/// Connections of one minion on the HTTPS door. Each job on a minion that returns something has one of its own, for as long as its
/// process runs.
pub const HTTPS_PEERS_OF_ONE: usize = 32;

/// How long a new peer of the HTTPS door may take until a batch of it was found to be signed.
pub const HTTPS_STRANGER_PATIENCE: Duration = Duration::from_secs(20);

/// How long a TLS handshake may take.
pub const HTTPS_HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection of the HTTPS door may go without a batch whose signature holds, and how long the head of a request may take.
pub const HTTPS_IDLE: Duration = Duration::from_secs(60);

/// Bytes of the head of a request, and lines in it. The extension's has five lines and 200 bytes.
pub const HTTPS_HEAD_BYTES_MAX: usize = 8 * 1024;
/// See [`HTTPS_HEAD_BYTES_MAX`].
pub const HTTPS_HEAD_LINES_MAX: usize = 32;

/// How far a minion's clock may be from the daemon's. What it sends carries times of its own.
pub const HTTPS_CLOCK_OFF_MAX: Duration = Duration::from_secs(300);

/// Calls of one batch. The extension sends up to 64 out of its spool.
pub const HTTPS_CALLS_MAX: usize = 1024;

/// Bytes of batches under way, of those up to [`HTTPS_SMALL_BYTES`] and of larger ones. A batch that finds no room for
/// [`PEER_PATIENCE`] is told to come later.
pub const HTTPS_SMALL_BYTES_IN_FLIGHT: usize = 32 * 1024 * 1024;
/// See [`HTTPS_SMALL_BYTES_IN_FLIGHT`].
pub const HTTPS_LARGE_BYTES_IN_FLIGHT: usize = 96 * 1024 * 1024;
/// See [`HTTPS_SMALL_BYTES_IN_FLIGHT`].
pub const HTTPS_SMALL_BYTES: usize = 512 * 1024;

/// Batches of one minion under way: none can take all the room. Its further ones wait.
pub const HTTPS_BATCHES_OF_ONE: usize = 8;

/// Bytes a second that a large batch must come with, beyond [`PEER_PATIENCE`].
pub const HTTPS_BYTES_PER_S_MIN: usize = 64 * 1024;

/// Bytes of answers to minions that may be under way.
pub const HTTPS_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of answers after which the further questions of a batch are told to come in one of their own.
pub const HTTPS_ANSWERS_OF_ONE_BYTES: usize = 16 * 1024 * 1024;

/// Batches with questions that are answered at once; others wait.
pub const HTTPS_ASKING_MAX: usize = 4;

/// Bytes of a certificate file, of a private key and of a minion's public key. A longer one is another file.
pub const PEM_BYTES_MAX: u64 = 256 * 1024;

/// Minions whose key is kept at hand: some 600 bytes each.
pub const HTTPS_KEYS_REMEMBERED: usize = 16 * 1024;

/// How often the HTTPS door looks whether its certificate has changed, and tries again to open if it could not.
pub const HTTPS_LOOK: Duration = Duration::from_secs(2);

/// How often it says that its certificate is expired, or about to.
pub const HTTPS_SAYS_EXPIRED: Duration = Duration::from_secs(3600);

/// A certificate with less time than this is spoken of.
pub const HTTPS_EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// How often the same kind of bad batch is logged; each is counted.
pub const HTTPS_SAYS_BAD: Duration = Duration::from_secs(10);

const _: () = assert!(HTTPS_LARGE_BYTES_IN_FLIGHT > WIRE_FRAME_BYTES_MAX);

/// Connections that a ZeroMQ door serves at once; one more is closed, and libzmq tries again by itself.
pub const ZMQ_PEERS_MAX: usize = 512;

/// Frames of a ZeroMQ message. Events have one or two; more are a message that is passed over, many more are none.
pub const ZMTP_FRAMES_MAX: usize = 8;

/// Bytes asked of a ZeroMQ peer at once, and the most that an unfinished message may have before room is set aside for it.
pub const ZMQ_READ_BYTES: usize = 64 * 1024;

/// Bytes of unfinished large messages of all ZeroMQ peers. A message that does not fit is not read until others are done.
pub const ZMQ_BYTES_IN_FLIGHT: usize = 160 * 1024 * 1024;

/// How often the log speaks of what ZeroMQ peers do wrong.
pub const ZMQ_SAYS: Duration = Duration::from_secs(10);

/// Bytes of one subscription, and of all of one subscriber. Tags of Salt have some 60 bytes.
pub const ZMQ_PREFIX_BYTES_MAX: usize = 4096;
/// See [`ZMQ_PREFIX_BYTES_MAX`].
pub const ZMQ_PREFIXES_BYTES_MAX: usize = 64 * 1024;

/// Bytes of events that are read from the log and handed to subscribers at once.
pub const ZMQ_WAVE_BYTES: usize = 256 * 1024;

/// Events and bytes that wait for one subscriber. Beyond them it is slow, and what would come next is dropped for it; an
/// event that is larger waits alone.
pub const ZMQ_QUEUE_EVENTS: u64 = 50_000;
/// See [`ZMQ_QUEUE_EVENTS`].
pub const ZMQ_QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// Bytes that wait for all subscribers together.
pub const ZMQ_QUEUES_BYTES: usize = 64 * 1024 * 1024;

/// How long subscribers may take over what waits for them when the daemon stops.
pub const ZMQ_STOP_PATIENCE: Duration = Duration::from_secs(2);

const _: () = assert!(ZMQ_BYTES_IN_FLIGHT > ENTRY_BYTES_MAX + 2 * ZMQ_READ_BYTES);

/// Bytes of a rendered SLS file, and of a text that a template reads as YAML or JSON. Salt takes any, a megabyte in some ten seconds.
pub const SLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Levels of nesting in YAML and JSON, each some stack. Salt's own recursion ends below 500, when it copies a chunk; files that
/// people write have ten.
pub const SLS_DEPTH_MAX: usize = 200;

/// Values, and bytes of text in them, that a YAML document may have beyond what stands in it, by aliases and merge keys. Salt
/// shares them, and then walks through all of them.
pub const YAML_ALIASED_VALUES_MAX: usize = 100_000;
/// See [`YAML_ALIASED_VALUES_MAX`].
pub const YAML_ALIASED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Digits of an integer in YAML and JSON, as in Python.
pub const INTEGER_DIGITS_MAX: usize = 4300;

/// Requisites between the chunks of one event, each pattern counting for all that it means. Salt walks through all pairs, too.
pub const REQUISITES_MAX: usize = 1_000_000;

/// Calls and bytes that an import has under way; the daemon takes [`PEER_CALLS_IN_FLIGHT`] of one connection.
pub const IMPORT_CALLS: usize = 192;
/// See [`IMPORT_CALLS`].
pub const IMPORT_BYTES: usize = 4 * 1024 * 1024;

/// Questions that an import or an export has under way. Each answer has up to [`LIST_BYTES_MAX`].
pub const IMPORT_QUESTIONS: usize = 32;

/// Items that an import looks up together before it stores them, and their bytes.
pub const IMPORT_CHUNK_ITEMS: usize = 1024;
/// See [`IMPORT_CHUNK_ITEMS`].
pub const IMPORT_CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Loads, minions and returns of jobs that an import remembers to be known, some 100 bytes each; beyond them only those of the jobs it is at.
/// Entries of a job lie close together in all that is imported.
pub const IMPORT_FACTS_REMEMBERED: usize = 100_000;

/// Jobs of a tree that `import local_cache` puts in order at once, some 110 bytes each; of a larger tree it walks over all directories once
/// per so many jobs.
pub const IMPORT_JOBS_SORTED: usize = 256 * 1024;

/// Events of one `event_return` of an import.
pub const IMPORT_EVENTS: usize = 256;

/// Things left out that an import or an export names one by one; beyond them they are only counted.
pub const IMPORT_BAD_NAMED: u64 = 1000;

/// Bytes of a line of JSON that is imported: the largest entry, its bytes in base64 or escaped.
pub const JSON_LINE_BYTES_MAX: u64 = 4 * ENTRY_BYTES_MAX as u64;

const _: () = assert!(IMPORT_CALLS < PEER_CALLS_IN_FLIGHT);

/// Other answers of one minion, that differ from the one that counts, kept to be shown; all are counted.
pub const ANSWERS_DIFFERING_SHOWN: usize = 16;

/// Rows that one call for a list of jobs looks at. The answer says where to go on.
pub const LIST_JOBS_SEEN: usize = 100_000;
/// Jobs whose entries one call for a list reads, for filters that ask what came of a job.
pub const LIST_JOBS_READ: usize = 5_000;

/// Jobs before another one that are looked at for the orchestration that started it, ...
pub const LINK_JOBS_SEEN: usize = 2_000;
/// ... orchestrations among them that are read, ...
pub const LINK_RUNS_READ: usize = 32;
/// ... and how much older than it they may be.
pub const LINK_SPAN: Duration = Duration::from_secs(86_400);

/// Jobs that are looked at for an earlier run of the same one.
pub const PREVIOUS_JOBS_SEEN: usize = 20_000;

/// Minions of a job whose returns are read at once for one page of an answer.
pub const PAGE_MINIONS: usize = 4_000;

/// Calls that may wait for news of a job at the same time. Each holds one of the threads for reading calls, of which there
/// are 16; others are answered at once.
pub const WATCHES_MAX: usize = 8;
/// How long one such call waits; who asks asks again.
pub const WATCH_WAIT_MAX: Duration = Duration::from_secs(10);
/// What comes this soon after the first news is told together with it.
pub const WATCH_GATHER: Duration = Duration::from_millis(50);

/// Templates of reactor files that are kept; one more lets the oldest go, which is read again when it is next wanted.
pub const REACTOR_TEMPLATES_MAX: usize = 4096;

/// Bytes of a reactor file. Those in the wild have some hundred.
pub const REACTOR_TEMPLATE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How long what a reference led to is trusted without a look at the disk. Salt looks for each event, which takes some 3 us; an edit
/// takes longer than this to become an event's.
pub const REACTOR_FILES_TRUSTED: Duration = Duration::from_millis(2);

/// How long Salt's own renderer may take for one file, or one of its functions for one call. It is killed then, and started anew.
pub const REACTOR_HELPER_TIME: Duration = Duration::from_secs(30);

/// How often a request to Salt's own renderer is made in all, if its process dies each time.
pub const REACTOR_HELPER_TRIES: u32 = 3;

/// Bytes of data that one process of Salt's own renderer may have, unless `reactor.helper_memory` says otherwise. With all of Salt
/// loaded it has some 150 MiB.
pub const REACTOR_HELPER_MEMORY: u64 = 1024 * 1024 * 1024;

/// The least that `reactor.helper_memory` may be: Salt has to fit.
pub const REACTOR_HELPER_MEMORY_MIN: u64 = 256 * 1024 * 1024;

/// How long a process of Salt's own renderer may take to end once its socket is closed. It is killed then.
pub const REACTOR_HELPER_EXIT_TIME: Duration = Duration::from_secs(2);

/// How long Salt's own renderer may take to start: it loads all of Salt.
pub const REACTOR_HELPER_START_TIME: Duration = Duration::from_secs(60);

/// Bytes of one answer of Salt's own renderer. Grains and options together have some 100 KiB.
pub const REACTOR_HELPER_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Steps that one rendering of a template may take: expressions, rounds of loops, members of values that are walked. A million take
/// some 50 ms.
pub const JINJA_STEPS_MAX: u64 = 2_000_000;

/// Bytes that the values of one rendering may take, let go or not, and its output.
pub const JINJA_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Levels of nesting of values that native templates walk. What nests deeper is left to Salt.
pub const JINJA_DEPTH_MAX: usize = 120;

/// Bytes of a text that a native template prints a collection to; longer ones are left to Salt.
pub const JINJA_VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Operators, brackets and names in one tag of a native template, and `elif` in one template: they nest in the syntax tree.
pub const JINJA_TAG_TOKENS_MAX: usize = 300;

/// Levels of nesting in an event's data that templates get to see. What nests deeper could not be printed.
pub const JINJA_DATA_DEPTH_MAX: usize = 100;

/// Members of a `range`, as Jinja's sandbox has it.
pub const JINJA_RANGE_MAX: usize = 100_000;

/// Bytes of text whose compiled templates are kept, and how many; with one more the engine begins anew.
pub const JINJA_CACHE_BYTES: usize = 16 * 1024 * 1024;
/// See [`JINJA_CACHE_BYTES`].
pub const JINJA_CACHE_TEMPLATES: usize = 4096;
