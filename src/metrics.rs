//! Every counter, named once.
//!
//! The promise "nothing is dropped without a counter" is kept here: each way in which an entry can fail to
//! reach the log has a counter of its own, and `saltcellar status` shows them all.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Log lines that could not be written to standard error. The log is there before any daemon.
pub static LOG_LINES_LOST: Counter = Counter(AtomicU64::new(0));

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters of one daemon, all zero at its start.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        impl Metrics {
            /// Name and value of each, in the order of this file.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$((stringify!($name), self.$name.get()),)+];
                all.push(("log_lines_lost", LOG_LINES_LOST.get()));
                all
            }
        }
    };
}

counters! {
    /// Entries written to the log and synced.
    entries_stored,
    /// Bytes of those entries as they came, tags and bodies.
    entry_bytes_stored,
    /// Commits: each one write and one fdatasync per class it touched.
    commits,
    /// Events that came a second time by another door and were already stored.
    duplicates_folded,
    /// Returns of one (jid, minion) that differ from the first one; they are stored as history.
    returns_differing,
    /// Blocks of the log that could not be read while the duplicate memory was refilled at start; copies of their entries are not recognised.
    blocks_unread_at_start,
    /// Entries not stored because a write or a sync failed; their senders were told.
    entries_failed,
    /// Syncs that failed after their entries had been answered; with durability `written` only.
    late_syncs_failed,
    /// Entries refused because the disk has less free space than is kept; their senders were told.
    entries_refused_disk_full,
    /// Segments that retention has let go of, and the entries in them.
    segments_dropped,
    /// See `segments_dropped`.
    entries_dropped,
    /// Attempts to let go of a segment that failed; the next round tries again.
    drops_failed,
    /// Steps of the wall clock against the monotonic clock, or across a restart; deletion by age waits after each. See docs/STORE.md.
    clock_steps,
    /// Events read off a bus and lost: memory and spill were full, or the store took others and never these.
    bus_events_lost,
    /// Gap records: stretches of time in which events of a bus may have been missed.
    bus_gaps,
    /// Events of a bus that the store refused for the time being and that are offered again.
    bus_events_offered_again,
    /// Events of a bus that waited on disk, and their bytes there.
    bus_events_spilled,
    /// See `bus_events_spilled`.
    bus_bytes_spilled,
    /// Events that were in the spill when the daemon started.
    spill_events_found,
    /// Writes to the spill that failed; what was to be written stays in memory and is tried again.
    spill_writes_failed,
    /// Reads of the spill that failed.
    spill_reads_failed,
    /// Bytes of torn records that were cut off the spill at start.
    spill_bytes_cut,
    /// Damaged stretches in files of the spill: a gap record says what was lost, and the file is kept.
    spill_stretches_damaged,
    /// Files in a spill's directory that were none of ours and got another name.
    spill_files_set_aside,
    /// Frames on a bus that were none: no msgpack, no body, over the limit. All but those without a body end the connection.
    bus_frames_malformed,
    /// Connections whose first bytes are in no framing that is known.
    bus_framings_unknown,
    /// Events by any door that have no tag in front of their data; they are left out.
    events_without_tag,
    /// Events by any door whose tag is longer than allowed; they are left out.
    events_tag_too_long,
    /// Events whose data is no map; they are stored as they are.
    events_no_map,
    /// Events and writing calls rejected because Salt's codec cannot read their msgpack. See docs/WIRE.md.
    entries_unreadable,
    /// Events whose stamp is more than a day from the time of their arrival.
    event_clocks_off,
    /// Entries that a rule of `ingest.filter` keeps out.
    entries_filtered,
    /// Entries that a rule of `ingest.filter` keeps out because it stores one of n.
    entries_sampled_out,
    /// Entries of which a rule of `ingest.redact` has replaced something.
    entries_redacted,
    /// Entries in which a Salt master's key was redacted, which needs no rule.
    master_keys_redacted,
    /// Of entries redacted, those whose data could not be searched and was replaced as a whole.
    redactions_blind,
    /// Times the daemon connected to a bus.
    bus_connects,
    /// Events read off the buses.
    bus_events,
    /// Connections accepted by the ZeroMQ doors.
    zmq_peers,
    /// ZeroMQ connections ended because the peer broke the protocol or a bound.
    zmq_peers_dropped,
    /// ZeroMQ connections turned away because too many were open.
    zmq_peers_turned_away,
    /// Events that came through the ZeroMQ PULL.
    zmq_events,
    /// Of those, events that were not stored: a disk error, or the daemon stopped while the disk was full.
    zmq_events_lost,
    /// ZeroMQ messages that were no event: no tag, no msgpack map, more than two frames.
    zmq_messages_malformed,
    /// ZeroMQ messages whose sender left in the middle of them.
    zmq_messages_cut,
    /// Events handed to subscribers of the ZeroMQ PUB, once for each.
    zmq_events_published,
    /// Events not sent to a subscriber of the ZeroMQ PUB because it was slow.
    zmq_events_dropped,
    /// Subscribers of the ZeroMQ PUB that took nothing for too long, and were disconnected.
    zmq_subscribers_dropped,
    /// Events fired onto Salt's bus.
    events_fired,
    /// Events that came through `event_return`.
    event_return_events,
    /// Elements of an `event_return` batch without tag or data.
    event_return_malformed,
    /// Writing calls refused by rule: a jid of `req`, a return without `id`, or with one that Salt lets no minion have.
    calls_refused,
    /// Calls on the local socket whose caller lacks the right that they need.
    calls_denied,
    /// Entries refused because they exceed the largest size allowed.
    entries_too_large,
    /// Calls answered with an error other than `refused`.
    calls_failed,
    /// Calls taken from the local socket.
    calls,
    /// Connections accepted on the local socket.
    peers,
    /// Connections closed because the peer broke the protocol.
    peers_dropped,
    /// Connections closed because the peer did not take its answers.
    peers_deaf,
    /// Connections turned away because too many were open.
    peers_turned_away,
    /// Connections accepted on the HTTPS door.
    https_peers,
    /// Connections to it closed because too many were open, or because it had no certificate to show.
    https_peers_turned_away,
    /// Of its connections, those that gave way to new ones: before they had shown a signature, or idle.
    https_peers_outwaited,
    /// Connections whose TLS handshake failed or did not end in time.
    https_handshakes_failed,
    /// Connections that spoke HTTP without TLS.
    https_without_tls,
    /// Requests that were no batch: another path or method, no envelope, a payload that is cut.
    https_malformed,
    /// Batches of a minion whose key is not accepted: unknown, pending, rejected or denied.
    https_keys_not_accepted,
    /// Batches that could not be judged because the minion's key could not be read.
    https_keys_unreadable,
    /// Batches whose signature does not hold, or whose payload is not the one that was signed.
    https_signatures_bad,
    /// Batches of a minion whose clock is too far from the daemon's.
    https_clocks_off,
    /// Batches made for another connection, or sent a second time.
    https_replayed,
    /// Batches refused because they exceed the largest size allowed.
    https_too_large,
    /// Batches told to come later: too much was under way.
    https_overloaded,
    /// Batches whose signature held.
    https_batches,
    /// Returns of another minion than the one that signed them.
    https_returns_of_others,
    /// Calls that a minion may not make.
    https_calls_denied,
    /// Times the certificate or its key could not be read or used.
    https_certificates_bad,
    /// Times the certificate was found to be expired, looked at once an hour.
    https_certificates_expired,
    /// Bytes cut off the end of an unfinished segment at start: a write that a crash left half done.
    tail_bytes_cut,
    /// Frames of a finished segment that failed their checksum and were skipped.
    frames_damaged,
    /// Segments whose index had to be built again from their log.
    indexes_rebuilt,
    /// Segments of the catalogue that were not on disk at start: they were lost.
    segments_missing,
    /// Segments sealed.
    segments_sealed,
    /// Of those, segments whose small blocks were merged.
    segments_rewritten,
    /// Attempts to seal a segment that failed; it is tried again.
    seals_failed,
    /// Connections made to a master's request port.
    master_connects,
    /// Requests sent to it.
    master_requests,
    /// Of those, requests without an answer that helped.
    master_requests_failed,
    /// Events that a bus told after another door had brought them, noted for the reactor.
    events_heard_again,
    /// Events that a rule of the reactor took.
    reactor_events,
    /// Events that the reactor passed over because a reactor caused them.
    reactor_events_own,
    /// Reads of open events that failed; the events stay open and are read again.
    reactor_events_unread,
    /// Times that the reactor stopped reading the log because enough was waiting.
    reactor_held_up,
    /// Reactions that were done.
    reactions_done,
    /// Reactions that failed to render, so that no call was made.
    reactions_failed,
    /// Reactions of which some calls were made, and the rest failed to render or was dead-lettered.
    reactions_partial,
    /// Reactions of which no call could be made: all were dead-lettered.
    reactions_dead,
    /// Reactions left out because their event was too old.
    reactions_left_old,
    /// Reactions left out because a later event of the minion came.
    reactions_left_quiet,
    /// Reactions left out because the minion's first one counts.
    reactions_left_once,
    /// Reactions left out, in shadow, because their rule's rate would have let them begin too late.
    reactions_left_rate,
    /// Reactions set aside because their rule had used up its budget.
    reactions_left_budget,
    /// Reactions set aside because too many reactions led to their event.
    reactions_left_depth,
    /// Reactions left out because no rule takes their event any more, or the event is gone.
    reactions_left_gone,
    /// Errors that rules and their files gave.
    reactor_errors,
    /// Calls that the master, or this machine, took.
    reactor_calls,
    /// Tries of calls that are made again.
    reactor_calls_again,
    /// Calls that were set aside.
    reactor_calls_dead,
    /// Of those, calls that `reactor.allow` does not allow.
    reactor_calls_not_allowed,
    /// Calls that were sent and got no answer, and of which the log does not show whether they were carried out.
    reactor_calls_unknown,
    /// Runners of which the master said nothing after it had started them.
    reactor_runners_silent,
    /// Runners that count as ended although their result was not seen.
    reactor_runners_lost,
    /// Records of the reactor that could not be written at once; they are offered again.
    reactor_records_failed,
    /// Times that the reactor's place in the log could not be written down.
    reactor_keeps_failed,
    /// In shadow, calls that Salt's own reactor made, too.
    shadow_same,
    /// In shadow, calls that Salt's own reactor made otherwise.
    shadow_differs,
    /// In shadow, calls that Salt's own reactor did not make.
    shadow_only_ours,
    /// In shadow, calls that Salt's own reactor alone made.
    shadow_only_salts,
    /// In shadow, calls of which it cannot be seen whether Salt's own reactor made them.
    shadow_unseen,
    /// In shadow, calls of Salt's own reactor that ours lacks because its rendering failed, and such failures beside which Salt did nothing.
    shadow_failed,
    /// In shadow, jobs that Salt's own reactor or somebody else published; nothing shows who.
    shadow_unattributed,
    /// In shadow, calls that were judged before the end of their window, because too many were waiting.
    shadow_hurried,
    /// Times that the reactor's configuration was read again and took effect.
    reactor_reloads,
    /// Times that it could not be used, and the reactor went on as it was.
    reactor_reloads_refused,
    /// Functions of `caller` reactions that ran and returned a code other than 0.
    reactor_callers_failed,
    /// Processes of Salt's own renderer that were started; more than one means that one ended or was killed.
    helper_starts,
    /// Requests to it: files to render, functions of Salt to call, questions whether there is one.
    helper_requests,
    /// Of those, the files that it was asked to render.
    helper_renders,
    /// Of those, the ones that took too long; their process was killed.
    helper_requests_too_long,
    /// Of those, the ones whose process died or answered nonsense.
    helper_requests_broken,
    /// Of those, the ones that repeat another one, whose process died.
    helper_requests_repeated,
    /// Times that Salt's own renderer could not be started.
    helper_starts_failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_shows_under_its_own_name() {
        let metrics = Metrics::default();
        metrics.commits.add(3);
        assert!(metrics.all().contains(&("commits", 3)));
    }
}
