//! Integration tests: the program from outside, in one binary.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail by panicking")]

/// A made-up daemon for tests of the command line alone: it speaks docs/WIRE.md and knows canned answers.
mod fake_daemon;

/// Deadlines and missing preconditions, shared with the tests inside the crate.
#[path = "../../src/testing.rs"]
mod testing;

/// The real program as a child process with a state directory of its own, and a made-up event bus.
mod harness;

/// Every verb, as a person or a script runs it.
mod cli_verbs;

/// What `serve` would run on: files, flags, environment; the messages for bad ones.
mod configuration;

/// Starting, stopping, being killed, being started twice.
mod lifecycle;

/// What the real file system is asked to make durable before an answer leaves.
mod sync_order;

/// The daemon on a disk that is full, slow or failing.
mod bad_disks;

/// The daemon on a real file system without a free block.
mod full_disk;

/// Log lines and output that cannot be written.
mod log_output;

/// Salt's calls over the local socket: what is stored, what is refused, what comes back.
mod returner_calls;

/// Values that Salt's codec cannot read, by each source and in existing stores.
mod salt_codec;

/// Jobs as people ask for them: lists, one job, states, comparisons, watching.
mod jobs;

/// Who may make which call, by uid.
mod rights;

/// Peers that break the protocol, stall, or lie about sizes.
mod hostile_peers;

/// The HTTPS door: signed batches, and all that is wrong with others.
mod https_door;

/// The bus door against recorded buses of three releases.
mod bus_door;

/// What `doctor` finds.
mod doctor;

/// Permissions of what is kept and exported, and links in the way.
mod permissions;

/// What `doctor` finds in a Salt master's configuration.
mod doctor_master;

/// The ZeroMQ doors: events in, events out, and peers that are none.
mod zeromq_doors;

/// The ZeroMQ doors with sockets of the crate `zeromq` as peers.
mod zeromq_crate;

/// The reactor, with a bus and a master that the test plays.
mod reactor;

/// What fails in a reaction, and who acts on a rule.
mod reactor_failures;

/// Firing events onto a bus.
mod events_send;

/// The bus door when the store, the disk, the master or the daemon is away; bad events; rules.
mod bus_outages;

/// The files under systemd/.
mod systemd_files;

/// The file that makes a Salt master use saltcellar.
mod setup;

/// Verify, rebuild, salvage, backup, restore.
mod store_tools;

/// Filters and redaction, by every source of entries; masters' keys.
mod policy;

/// Import and export: Salt's own job cache, pgjsonb, JSON lines.
mod moving;

/// What rendered SLS files mean, against what Salt made of them.
mod sls;
/// Jinja against what Salt rendered.
mod sls_jinja;

/// Patterns, beside Python's own `fnmatch`.
mod fnmatch;

/// The fuzz targets, each for a few seconds.
mod fuzz_short;

/// The reactor against what Salt made of the same configurations, files and events.
mod reactor_parity;

/// The reactor when its configuration changes, who reacts, shadow.
mod reactor_changes;

/// `saltcellar reactor test`, `check`, `parity`.
mod reactor_verbs;
