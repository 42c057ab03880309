//! Integration tests: the program from outside, in one binary.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

/// A fake daemon for tests of the command line: it implements docs/WIRE.md with canned answers.
mod fake_daemon;

/// The real program as a child process with its own state directory, and a fake event bus.
mod harness;

/// Every verb, with a fake daemon.
mod cli_verbs;

/// The configuration of `serve`: files, flags, environment; errors of invalid ones.
mod configuration;

/// Start, stop, kill, and a second daemon.
mod lifecycle;

/// Syncs of the real file system before a response.
mod sync_order;

/// The daemon on a disk that is full, slow or failing.
mod bad_disks;

/// The daemon and the tools on a disk with unreadable sectors.
mod bad_sectors;

/// What is shown of the store id.
mod store_id;

/// The daemon on a real, full file system.
mod full_disk;

/// Failed writes of log lines and output.
mod log_output;

/// Salt's calls over the local socket: stored, rejected and read entries.
mod returner_calls;

/// Values that Salt's codec cannot read, by each source and in existing stores.
mod salt_codec;

/// Queries of jobs: lists, one job, states, comparisons, watching.
mod jobs;

/// Consumers of the event stream, and `events tail`.
mod consumers;
mod damage_matrix;

/// Sinks: delivery to files, HTTP services and programs.
mod sinks;

/// Rights of calls, by uid.
mod rights;

/// Peers that violate the protocol, stall, or send wrong sizes.
mod hostile_peers;

/// The minion listener: signed batches, and all kinds of invalid ones.
mod https_source;

/// The bus source against recorded buses of three releases.
mod bus_source;

/// Findings of `doctor`.
mod doctor;

/// `status` and `doctor` tell what is wrong; client commands beside a broken configuration.
mod told;

/// Every command that the program advises, found in its source and run.
mod advised;

/// Permissions of state directories and exports, and symbolic links.
mod permissions;

/// Findings of `doctor` about a Salt master's configuration.
mod doctor_master;

/// The ZeroMQ sockets: events in, events out, and invalid peers.
mod zeromq_sockets;

/// The ZeroMQ sockets with peers of the crate `zeromq`.
mod zeromq_crate;

/// The reactor, with a fake bus and a fake master.
mod reactor;

/// The reactors of masters of one cluster.
mod reactor_cluster;

/// Failures of reactions, and acting reactors of rules.
mod reactor_failures;

/// Firing events onto a bus.
mod events_send;

/// The bus source during outages of the store, the disk, the master and the daemon; malformed events; rules.
mod bus_outages;

/// The files in systemd/.
mod systemd_files;

/// The file that makes a Salt master or minion use saltcellar.
mod setup;

/// All of `setup`: extension, daemon, units, master, and removal, with a fake systemctl.
mod setup_system;

/// Verify, rebuild, salvage, backup, restore.
mod store_tools;

/// Filters and redaction, by every source of entries; masters' keys.
mod policy;

/// Import and export: Salt's job cache, JSON lines.
mod moving;

/// Patterns, compared with Python's own `fnmatch`.
mod fnmatch;

/// The fuzz targets, each for a few seconds.
mod fuzz_short;

/// The reactor: changes of configuration, acting reactors, shadow mode.
mod reactor_changes;

/// `saltcellar reactor render`, `lint`.
mod reactor_verbs;

/// The HTTP listener: access, health, metrics, hooks, API.
mod http;

/// The API of the HTTP listener, hooks and metrics.
mod http_api;

/// What one client of the HTTP listener may hold.
mod http_budget;

/// The web page.
mod http_page;
