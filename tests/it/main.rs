//! Integration tests: the program from outside, in one binary.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

/// A made-up daemon for tests of the command line alone: it speaks docs/WIRE.md and knows canned answers.
mod fake_daemon;

/// Every verb, as a person or a script runs it.
mod cli_verbs;

/// What `serve` would run on: files, flags, environment; the messages for bad ones.
mod configuration;

/// The files under systemd/.
mod systemd_files;
