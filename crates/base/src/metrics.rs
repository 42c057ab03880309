//! The daemon's counters.
//!
//! Each way in which an entry can fail to reach the log has a separate counter: nothing is dropped
//! unnoticed. `saltcellar status` shows all counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Increases the counter by `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Log lines that could not be written to standard error. Global, because logging starts before any daemon.
pub static LOG_LINES_LOST: Counter = Counter(AtomicU64::new(0));

/// Upper bounds of the buckets of a [`Histogram`], in microseconds: from a lone commit to a stuck disk.
pub const BUCKETS_US: [u64; 12] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000, 2_000_000, 10_000_000,
];

/// Counts durations in fixed buckets, without a lock.
#[derive(Debug, Default)]
pub struct Histogram {
    /// By bucket; the last one is without an upper bound.
    buckets: [Counter; BUCKETS_US.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.add(1);
        }
        self.sum_us.add(us);
    }

    /// The sum in microseconds, and the counts by bucket.
    pub fn get(&self) -> (u64, [u64; BUCKETS_US.len() + 1]) {
        (
            self.sum_us.get(),
            std::array::from_fn(|n| self.buckets.get(n).map_or(0, Counter::get)),
        )
    }
}

/// Modules of Salt whose functions are counted separately. The list is fixed, because no minion may
/// add a series.
pub const FUNCTION_CLASSES: [&str; 20] = [
    "state", "cmd", "test", "saltutil", "pkg", "service", "file", "cp", "grains", "pillar", "mine",
    "network", "user", "status", "disk", "cron", "schedule", "runner", "wheel", "other",
];

/// Counters by class of function.
#[derive(Debug, Default)]
pub struct ByFunction([Counter; FUNCTION_CLASSES.len()]);

impl ByFunction {
    /// The class of a function: its place in [`FUNCTION_CLASSES`].
    pub fn class_of(fun: &str) -> usize {
        let module = fun.split('.').next().unwrap_or_default();
        FUNCTION_CLASSES
            .iter()
            .position(|class| *class == module)
            .unwrap_or(FUNCTION_CLASSES.len() - 1)
    }

    /// Counts `n` uses of functions of a class.
    pub fn count(&self, class: usize, n: u64) {
        if let Some(counter) = self.0.get(class) {
            counter.add(n);
        }
    }

    /// Classes and counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FUNCTION_CLASSES
            .into_iter()
            .zip(self.0.iter().map(Counter::get))
    }
}

/// Durations, and counts of jobs and returns.
#[derive(Debug, Default)]
pub struct Distributions {
    /// Commit duration: write, sync, index update.
    pub commits: Histogram,
    /// Time from a request on the local socket or over HTTP to its response; for writes, until the entry is stored. Without calls that wait for news.
    pub responses: Histogram,
    /// Jobs by class of function.
    pub jobs: ByFunction,
    /// Returns confirmed by a returner call: those that succeeded, and those that failed.
    pub confirmed_returns: [ByFunction; 2],
    /// Returns known from a bus only, at that time: those that succeeded, and those that failed.
    pub unconfirmed_returns: [ByFunction; 2],
}

/// What an increase of a counter means. `status` and `doctor` follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Normal work, or what any stranger on the network can cause without a loss.
    Harmless,
    /// No separate reason: another counter, or another part of the status, shows the same.
    ShownBy(&'static str),
    /// Data was rejected or delayed, or something did not work; the string is the sentence for the user.
    Warning(&'static str),
    /// Data was lost. Past when it is noticed, and the counter stays until the next start: a warning, before the others.
    Loss(&'static str),
    /// Found at start and true until the next one: a problem.
    Problem(&'static str),
}

use Severity::{Harmless, Loss, Problem, ShownBy, Warning};

/// Counters that `/metrics` shows as one metric with a label: the label's value is what follows the
/// family's name in the name of the counter.
#[derive(Debug)]
pub struct CounterFamily {
    /// The metric, without the prefix and suffix of metrics.
    pub name: &'static str,
    /// What is counted.
    pub help: &'static str,
    /// The label that tells the counters apart.
    pub label: &'static str,
}

const fn family(name: &'static str, label: &'static str, help: &'static str) -> CounterFamily {
    CounterFamily { name, help, label }
}

/// All families of counters.
pub const COUNTER_FAMILIES: [CounterFamily; 9] = [
    family(
        "entries_rejected",
        "reason",
        "Entries rejected, by `reason`",
    ),
    family(
        "events_dropped",
        "reason",
        "Events dropped because they have no valid tag, by `reason` (all sources)",
    ),
    family(
        "socket_connections_closed",
        "reason",
        "Local connections closed or rejected, by `reason`",
    ),
    family(
        "https_rejected",
        "reason",
        "Requests to the minion listener rejected, by `reason`",
    ),
    family(
        "http_rejected",
        "reason",
        "Requests to the HTTP listener rejected, by `reason`",
    ),
    family(
        "reactor_events_ignored",
        "reason",
        "Matched events on which the reactor does not act, by `reason`",
    ),
    family(
        "reactions_skipped",
        "reason",
        "Reactions skipped, by `reason`",
    ),
    family(
        "shadow_calls",
        "result",
        "Shadow only: calls compared with Salt's reactor, by `result`",
    ),
    family(
        "helper_requests_failed",
        "reason",
        "Failed requests to the Salt renderer, by `reason`",
    ),
];

impl CounterDefinition {
    /// The family of the counter, and its value of the family's label.
    pub fn family(&self) -> Option<(&'static CounterFamily, &'static str)> {
        COUNTER_FAMILIES.iter().find_map(|family| {
            let value = self.name.strip_prefix(family.name)?.strip_prefix('_')?;
            Some((family, value))
        })
    }
}

/// The definition of a counter.
#[derive(Debug)]
pub struct CounterDefinition {
    /// Its name, without the prefix and suffix of metrics.
    pub name: &'static str,
    /// What is counted.
    pub help: &'static str,
    /// What an increase means.
    pub severity: Severity,
}

// A counter without a severity does not compile.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $severity:expr,)+) => {
        /// The counters of one daemon, all zero at start.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: Counter,)+
            /// Durations, and counts by class.
            pub distributions: Distributions,
        }

        impl Metrics {
            /// Name and value of each counter, in the order of this file.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$((stringify!($name), self.$name.get()),)+];
                all.push(("log_lines_lost", LOG_LINES_LOST.get()));
                all
            }

            /// The definition of each counter, in the order of [`Metrics::all`].
            pub const COUNTERS: &[CounterDefinition] = &[
                $(CounterDefinition {
                    name: stringify!($name),
                    help: concat!($($doc),+).trim_ascii(),
                    severity: $severity,
                },)+
                CounterDefinition {
                    name: "log_lines_lost",
                    help: "Log lines that could not be written to standard error.",
                    severity: Warning("lines of the daemon's log could not be written"),
                },
            ];
        }

        /// The names of the counters for those who read them in a response: a misspelt one does not compile.
        #[expect(non_upper_case_globals, reason = "a constant is named as its counter")]
        pub mod names {
            $($(#[doc = $doc])+ pub const $name: &str = stringify!($name);)+
        }
    };
}

counters! {
    /// Entries written to the log and synced.
    entries_stored: Harmless,
    /// Stored returns with a part that Salt's codec cannot read, replaced by the reason.
    returns_repaired: Warning("parts of returns could not be read by Salt's codec and were replaced by the reason"),
    /// Returns that were too large and are stored without their value.
    returns_without_value: Warning("returns were too large and are stored without their value"),
    /// Bytes of stored entries as received, tags and bodies.
    entry_bytes_stored: Harmless,
    /// Commits. Each is one write and one fdatasync per class.
    commits: Harmless,
    /// Events already stored from another source.
    duplicates_folded: Harmless,
    /// Returns stored; a return that a call delivered before the bus showed it counts twice.
    returns_stored: Harmless,
    /// Stored returns that failed: for one of their functions `success` is false, the exit code is not 0, or a state failed.
    returns_failed: Harmless,
    /// Returns that differ from the first return of the same jid and minion; stored as history.
    returns_differing: Harmless,
    /// Log blocks that could not be read while the dedupe window was refilled at start; duplicates of their entries are not recognised.
    blocks_unread_at_start: Loss("blocks of the log could not be read at start: see the log for the files, and `saltcellar store verify`"),
    /// Entries not stored because a write or sync failed; reported to their senders.
    entries_failed: Warning("writes of entries failed; their senders received an error"),
    /// Syncs that failed after their entries were acknowledged; only with durability `written`.
    delayed_syncs_failed: Loss("entries were acknowledged but their sync failed"),
    /// Entries rejected because free disk space was below `store.free_bytes_min`; reported to their senders.
    entries_rejected_disk_full: Warning("entries were rejected because the disk is full; their senders received an error"),
    /// Events and writing calls rejected because Salt's codec cannot read their msgpack. See docs/WIRE.md.
    entries_rejected_unreadable: Warning("events and calls that Salt's codec cannot read were rejected"),
    /// Entries rejected because they exceed `store.entry_bytes_max`, and events of a bus above 64 MiB.
    entries_rejected_too_large: Warning("entries over the size limit were rejected"),
    /// Segments deleted by retention.
    segments_dropped: Harmless,
    /// Entries in the segments deleted by retention.
    entries_dropped: Harmless,
    /// Failed deletions of a segment; the next round retries.
    segment_drops_failed: Warning("attempts to drop a segment failed"),
    /// Jumps of the wall clock against the monotonic clock or across a restart; deletion by age pauses after each. See docs/STORE.md.
    clock_steps: ShownBy("clock"),
    /// Bus events lost: memory and spill were full, or the store rejected them permanently.
    bus_events_lost: Loss("bus events were lost"),
    /// Gap records: periods in which bus events may have been missed.
    bus_gaps: Harmless,
    /// Bus events that the store rejected temporarily and that were retried.
    bus_events_retried: Harmless,
    /// Bus events written to the spill on disk.
    bus_events_spilled: Harmless,
    /// Bytes of bus events written to the spill on disk.
    bus_bytes_spilled: Harmless,
    /// Events found in the spill at start.
    spill_events_found: Harmless,
    /// Failed writes to the spill; the events stay in memory and the write is retried.
    spill_writes_failed: Warning("writes to the spill failed and are retried: check the disk for errors and free space"),
    /// Failed reads of the spill.
    spill_reads_failed: Warning("reads of the spill failed and are retried: check the disk for errors"),
    /// Bytes of torn records truncated from the spill at start.
    spill_bytes_truncated: Harmless,
    /// Damaged ranges in spill files. A gap record describes each loss, and the file is kept.
    spill_ranges_damaged: Loss("spill files were damaged; they are kept as spill/*/*.damaged in the state directory"),
    /// Files in a spill directory that are unknown, of another release, or may not be read; renamed.
    spill_files_quarantined: Warning("files in the spill that the daemon cannot read were renamed: see the log for their names and the reasons"),
    /// Malformed bus frames: not msgpack, no body, or over the limit without a header that tells the end. All but those without a body end the connection.
    bus_frames_malformed: Warning("frames of a bus were malformed"),
    /// Bus connections whose first bytes match no known framing.
    bus_framings_unknown: Warning("a bus speaks an unknown framing: does `bus` name Salt's publisher socket?"),
    /// Events without a tag, dropped (all sources).
    events_dropped_without_tag: Warning("events without a tag were dropped"),
    /// Events whose tag is too long, dropped (all sources).
    events_dropped_tag_too_long: Warning("events with a tag over the length limit were dropped"),
    /// Events whose data is not a map; stored unchanged.
    events_without_map: Harmless,
    /// Events whose `_stamp` differs by more than a day from their arrival.
    event_timestamps_off: Harmless,
    /// Events with a peer mark (`__peer_id`) although no master of the daemon is known to have a `cluster_id`; stored unchanged.
    event_peer_ids_ignored: Warning("events carry a peer mark, but no master with a `cluster_id` is known: check `ingest.masters`; otherwise the events are forged"),
    /// Entries dropped by a rule of `ingest.filter`.
    entries_filtered: Harmless,
    /// Entries dropped by a `sample N` rule of `ingest.filter`.
    entries_sampled_out: Harmless,
    /// Entries changed by a rule of `ingest.redact`.
    entries_redacted: Harmless,
    /// Entries in which a Salt master's key was redacted; needs no rule.
    master_keys_redacted: Harmless,
    /// Redacted entries whose data could not be parsed and was replaced as a whole.
    bodies_redacted_entirely: Warning("entries to redact could not be parsed, their data was replaced as a whole"),
    /// Gap records made for consumers that retention has overtaken.
    consumer_gaps: ShownBy("consumer_entries_lost"),
    /// Entries that retention dropped before a consumer had processed them, at most.
    consumer_entries_lost: Loss("entries expired before a consumer or sink read them: see `saltcellar consumers list`"),
    /// Events that a condition (`where`) could not be evaluated for, because that would take too long. They do not match.
    conditions_too_costly: Warning("conditions (`where`) took too long for events, which therefore do not match: simplify the condition"),
    /// Connections made to a bus.
    bus_connects: Harmless,
    /// Events read from buses.
    bus_events: Harmless,
    /// Connections to the ZeroMQ PULL that ended with an error.
    zmq_connections_dropped: Warning("connections to the ZeroMQ PULL ended with an error: see the log"),
    /// Restarts of ZeroMQ socket processes.
    zmq_restarts: Warning("ZeroMQ socket processes ended and were restarted: see the log"),
    /// Events received by the ZeroMQ PULL.
    zmq_events: Harmless,
    /// Events received by the ZeroMQ PULL and not stored: a disk error, or a shutdown while the disk was full.
    zmq_events_lost: Loss("events that the ZeroMQ PULL received were not stored: a disk error, or a stop while the disk was full"),
    /// Malformed ZeroMQ messages: no tag, no msgpack map, or more than two frames.
    zmq_messages_malformed: Warning("messages to the ZeroMQ PULL were malformed"),
    /// Events fired onto Salt's bus.
    events_fired: Harmless,
    /// Script lines that are not events, or that Salt's bus cannot carry.
    script_lines_rejected: Warning("script lines were not events and were skipped: see the log"),
    /// Restarts of failed scripts.
    script_failures: Warning("scripts failed and were restarted: see the log"),
    /// Events received through `event_return`.
    event_return_events: Harmless,
    /// Elements of an `event_return` batch without tag or data.
    event_return_malformed: Warning("elements of `event_return` batches were malformed"),
    /// Writing calls rejected by a rule: a jid of `req`, or a return whose `id` is missing or not a valid minion id.
    calls_rejected: Warning("returns without a valid minion id, or without a job id, were rejected; their senders received an error"),
    /// Calls on the local socket whose caller lacks the right to make them.
    calls_denied: Harmless,
    /// Entries of minions over their share of a class, stored in the overflow of the class (`store.minion_share`).
    entries_over_share: ShownBy("class"),
    /// Calls whose response is an error other than `refused`.
    calls_failed: Harmless,
    /// Calls received on the local socket.
    calls: Harmless,
    /// Connections accepted on the local socket.
    socket_connections: Harmless,
    /// Local connections closed because the peer broke the protocol.
    socket_connections_closed_protocol: Warning("connections violated the protocol: does another program use the socket?"),
    /// Local connections closed because the peer did not read the responses.
    socket_connections_closed_not_reading: Harmless,
    /// Local connections rejected because too many were open.
    socket_connections_closed_too_many: Warning("connections were rejected: too many were open"),
    /// Connections accepted by the minion listener (`https.listen`).
    https_connections: Harmless,
    /// HTTPS connections rejected because too many were open, or because the listener had no usable certificate.
    https_connections_rejected: Warning("connections of minions were rejected: too many were open, or the listener had no usable certificate"),
    /// HTTPS connections closed in favour of new ones: unauthenticated or idle.
    https_connections_evicted: Harmless,
    /// HTTPS connections whose TLS handshake failed or timed out.
    https_handshakes_failed: Harmless,
    /// Connections to the minion listener without TLS.
    https_rejected_without_tls: Harmless,
    /// HTTPS requests that are not a batch: wrong path or method, no envelope, or a truncated payload.
    https_rejected_malformed: Harmless,
    /// Batches of a minion whose key is not accepted: unknown, pending, rejected or denied.
    https_rejected_key_not_accepted: Harmless,
    /// HTTPS batches that could not be verified because the minion's key could not be read.
    https_rejected_key_unreadable: Warning("keys of minions could not be read, so their batches wait: can the daemon's user read `pki_dir`?"),
    /// HTTPS batches with an invalid signature or a payload that does not match it.
    https_rejected_bad_signature: Harmless,
    /// HTTPS batches of a minion whose clock differs too much from the daemon's.
    https_rejected_clock_skew: Harmless,
    /// HTTPS batches made for another connection, or sent twice.
    https_rejected_replayed: Harmless,
    /// HTTPS batches rejected because they exceed the size limit.
    https_rejected_too_large: Warning("batches of minions over the size limit were rejected"),
    /// HTTPS batches rejected for now because too many bytes were in flight; the minion retries.
    https_rejected_overloaded: Harmless,
    /// HTTPS batches with a valid signature.
    https_batches: Harmless,
    /// Returns of a minion other than the signer.
    https_returns_other_minion: Harmless,
    /// Calls that a minion may not make.
    https_calls_denied: Harmless,
    /// Failed attempts to read or use the certificate of a listener or its key.
    https_certificates_unusable: ShownBy("http, https"),
    /// Hourly checks that found the certificate of a listener expired.
    https_certificates_expired: ShownBy("http, https"),
    /// Connections accepted by the HTTP listener.
    http_connections: Harmless,
    /// Connections to the HTTP listener closed because too many were open, or because it had no usable certificate.
    http_connections_rejected: Warning("HTTP connections were rejected: too many were open, or the listener had no usable certificate"),
    /// Connections to the HTTP listener closed in favour of new ones: unauthenticated, or of a minion and idle.
    http_connections_evicted: Harmless,
    /// Connections to the HTTP listener whose TLS handshake failed or timed out.
    http_handshakes_failed: Harmless,
    /// Requests to the HTTP listener.
    http_requests: Harmless,
    /// HTTP requests without a valid token.
    http_rejected_unauthenticated: Harmless,
    /// HTTP requests for which the token or the caller lacks the right.
    http_rejected_denied: Harmless,
    /// HTTP requests from web pages of other sites, or with an unknown `Host`.
    http_rejected_cross_site: Harmless,
    /// HTTP requests rejected for their form: unknown path or parameter, malformed head, body too large.
    http_rejected_malformed: Harmless,
    /// Events fired through a hook.
    hook_events: Harmless,
    /// Requests to a hook rejected because their event passed through too many hooks before.
    hook_loops: Warning("requests to a hook were rejected because their events had passed through too many hooks"),
    /// Bytes truncated from active segments at start: writes interrupted by a crash.
    tail_bytes_truncated: Harmless,
    /// Log ranges that were skipped because of a checksum mismatch or an unreadable sector; each counts once.
    frames_damaged: Loss("blocks of the log are damaged: see `saltcellar store verify`"),
    /// Entries in damaged frames whose number is known; they cannot be read.
    entries_damaged: ShownBy("frames_damaged"),
    /// Bytes of logs that the disk could not read.
    log_bytes_unreadable: Loss("the disk cannot read parts of logs: check it, and see `saltcellar store verify`"),
    /// Segments whose index was rebuilt from their log.
    indexes_rebuilt: Warning("damaged indexes were rebuilt"),
    /// Segments in the catalogue but not on disk at start: lost.
    segments_missing: Problem("segments were missing at start"),
    /// Segments sealed.
    segments_sealed: Harmless,
    /// Sealed segments whose small blocks were merged.
    segments_rewritten: Harmless,
    /// Entries that were stored at the last clean stop and are missing since.
    entries_missing_at_start: Problem("entries that were stored at the last clean stop are missing: see the log for the files, and `saltcellar store verify`"),
    /// Files that cannot be rebuilt and were changed or removed while the daemon was stopped.
    files_changed_while_stopped: Problem("files that cannot be rebuilt were changed or removed while the daemon was stopped: see the log for their names"),
    /// Failed attempts to seal a segment; each is retried.
    seals_failed: Warning("attempts to seal a segment failed"),
    /// Connections made to a master's request port.
    master_connects: Harmless,
    /// Requests sent to a master's request port.
    master_requests: Harmless,
    /// Requests to a master without a usable response.
    master_requests_failed: ShownBy("reactor"),
    /// Events already stored from another source when the bus showed them; noted for the reactor.
    bus_events_already_stored: Harmless,
    /// Events matched by a rule of the reactor.
    reactor_events: Harmless,
    /// Matched events that the reactor itself caused.
    reactor_events_ignored_own: Harmless,
    /// Matched events that other masters of the cluster fired; their daemons react.
    reactor_events_ignored_other_master: Harmless,
    /// Matched events that the reactor already knew from another master, in an election.
    reactor_events_ignored_duplicate: Harmless,
    /// Events matched by a rule of the reactor that no reactor of the election handled within `reactor.age_max`.
    reactor_events_unhandled: Warning("events were handled by no reactor of the election: the leader lacks the rule, or does not receive the events (set `cluster.replicate: all`)"),
    /// Failed reads of pending events; the events stay pending and the read is retried.
    reactor_event_reads_failed: Warning("reads of events for the reactor failed and are retried: check the disk for errors"),
    /// Times the reactor paused reading the log because its queues were full.
    reactor_reads_paused: Harmless,
    /// Reactions completed.
    reactions_done: Harmless,
    /// Reactions that failed to render; no call was made.
    reactions_failed: ShownBy("reactor"),
    /// Reactions with some calls made and the rest failed to render or dead-lettered.
    reactions_partial: ShownBy("reactor"),
    /// Reactions with all calls dead-lettered.
    reactions_dead: ShownBy("reactor"),
    /// Reactions skipped because the event was too old (`reactor.age_max`).
    reactions_skipped_too_old: Warning("reactions were skipped because their events were older than `reactor.age_max`"),
    /// Reactions skipped because a later event of the minion arrived (`debounce`).
    reactions_skipped_debounced: Harmless,
    /// Reactions skipped because an earlier event of the minion counted (`once_per`).
    reactions_skipped_once_per: Harmless,
    /// Shadow only: reactions skipped because the rule's `rate` would have delayed them too long.
    reactions_skipped_rate: Harmless,
    /// Reactions skipped because the rule's `budget` was used up.
    reactions_skipped_budget: ShownBy("reactor"),
    /// Reactions skipped because the chain of reactions was too long (`reactor.depth_max`).
    reactions_skipped_depth: ShownBy("reactor"),
    /// Reactions skipped because no rule matches the event any more, or the event was deleted.
    reactions_skipped_no_rule: Harmless,
    /// Errors in rules and their files.
    reactor_errors: ShownBy("reactor"),
    /// Calls accepted by the master or executed on this host.
    reactor_calls: Harmless,
    /// Calls retried.
    reactor_calls_retried: Harmless,
    /// Calls dead-lettered.
    reactor_calls_dead: ShownBy("reactor"),
    /// Calls dead-lettered because `reactor.allow` does not permit them.
    reactor_calls_not_allowed: ShownBy("reactor"),
    /// Calls without a response whose outcome the log does not show.
    reactor_calls_unknown: Warning("reactor calls had no response, and the log does not show whether they were made: see `saltcellar reactor history`"),
    /// Runners that produced no event after the master accepted them.
    reactor_runners_without_events: Warning("runners of the reactor produced no event: see the daemon's log for the functions"),
    /// Runners considered finished although their result was not seen.
    reactor_runners_without_results: Warning("results of the reactor's runners were not seen: see the daemon's log for the functions"),
    /// Failed writes of reactor records; each is retried.
    reactor_record_writes_failed: Warning("writes of reactor records failed and are retried: check the disk for errors and free space"),
    /// Failed writes of the reactor's checkpoint.
    reactor_checkpoint_writes_failed: Warning("writes of the reactor's checkpoint failed; after a crash it rereads events"),
    /// Shadow only: calls that Salt's reactor made as well.
    shadow_calls_same: Harmless,
    /// Shadow only: calls that Salt's reactor made differently.
    shadow_calls_different: Harmless,
    /// Shadow only: calls that Salt's reactor did not make.
    shadow_calls_only_saltcellar: Harmless,
    /// Shadow only: calls that only Salt's reactor made.
    shadow_calls_only_salt: Harmless,
    /// Shadow only: calls that leave no trace of whether Salt's reactor made them.
    shadow_calls_not_comparable: Harmless,
    /// Shadow only: calls of Salt's reactor missing here because rendering failed, and rendering failures without a call by Salt.
    shadow_calls_saltcellar_failed: Harmless,
    /// Shadow only: jobs published by Salt's reactor or another user; the events do not show which.
    shadow_calls_unattributed: Harmless,
    /// Shadow only: calls compared before their window ended because too many were waiting.
    shadow_compared_early: Harmless,
    /// Successful reloads of the reactor's configuration.
    reactor_reloads: Harmless,
    /// Rejected reloads of the reactor's configuration; the previous one stays in use.
    reactor_reloads_rejected: ShownBy("reactor"),
    /// Functions of `caller` reactions that returned a code other than 0.
    reactor_callers_failed: Warning("functions of `caller` reactions returned a code other than 0: see the daemon's log"),
    /// Starts of the Salt renderer process; more than one means that a process ended or was killed.
    helper_starts: Harmless,
    /// Requests to the Salt renderer: files to render, functions to call, and questions whether a function exists.
    helper_requests: Harmless,
    /// Files that the Salt renderer was asked to render.
    helper_renders: Harmless,
    /// Requests to the Salt renderer that timed out; the process was killed.
    helper_requests_failed_timeout: ShownBy("reactor"),
    /// Requests to the Salt renderer whose process died or sent a malformed response.
    helper_requests_failed_broken: ShownBy("reactor"),
    /// Requests to the Salt renderer retried after its process died.
    helper_requests_retried: Harmless,
    /// Failed starts of the Salt renderer.
    helper_starts_failed: ShownBy("reactor"),
    /// Entries of this daemon's master published to the stream of the shared history.
    cluster_entries_sent: Harmless,
    /// Bytes of the tags and data of published entries.
    cluster_raw_bytes_sent: Harmless,
    /// Bytes of the blocks in which entries were published.
    cluster_bytes_sent: Harmless,
    /// Entries of other masters received and stored, or known already.
    cluster_entries_received: Harmless,
    /// Bytes of received messages, including messages with known entries.
    cluster_bytes_received: Harmless,
    /// Stream messages and heartbeats that were rejected: not from a master, damaged, or from another master than they claim.
    cluster_messages_rejected: ShownBy("cluster"),
    /// Entries of other masters that cannot be stored: a name or tag too long, or data that cannot be read.
    cluster_entries_rejected: Warning("entries of other masters could not be read and were not stored"),
    /// Upper bound of the entries of other masters that the stream had already deleted. A gap record describes each time.
    cluster_entries_missed: ShownBy("cluster"),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_listed_under_its_own_name() {
        let metrics = Metrics::default();
        metrics.commits.add(3);
        assert!(metrics.all().contains(&("commits", 3)));
        let names = |all: Vec<(&'static str, u64)>| {
            all.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let described: Vec<_> = Metrics::COUNTERS.iter().map(|one| one.name).collect();
        assert_eq!(names(metrics.all()), described);
    }

    #[test]
    fn each_family_of_counters_has_members_that_stand_together() {
        for family in &COUNTER_FAMILIES {
            let is_member = |counter: &CounterDefinition| {
                counter
                    .family()
                    .is_some_and(|(found, _)| found.name == family.name)
            };
            let runs = Metrics::COUNTERS
                .chunk_by(|a, b| is_member(a) == is_member(b))
                .filter(|run| run.iter().all(is_member));
            let sizes: Vec<_> = runs.map(<[_]>::len).collect();
            // OpenMetrics wants the samples of a metric in one place.
            assert!(
                matches!(sizes[..], [size] if size > 1),
                "{}: {sizes:?}",
                family.name
            );
        }
    }

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let times = Histogram::default();
        for us in [0, 100, 101, 10_000_000, 10_000_001] {
            times.observe(Duration::from_micros(us));
        }
        let (sum, buckets) = times.get();
        assert_eq!(
            (sum, buckets),
            (20_000_202, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
        );
    }

    #[test]
    fn functions_are_counted_by_their_module_and_unknown_ones_together() {
        let counts = ByFunction::default();
        for fun in [
            "state.apply",
            "state.highstate",
            "runner.jobs.list_job",
            "mymodule.f",
            "",
            "stateful.x",
        ] {
            counts.count(ByFunction::class_of(fun), 1);
        }
        let counted: Vec<_> = counts.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("state", 2), ("runner", 1), ("other", 3)]);
    }
}
