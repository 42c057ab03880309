//! The response of the call `status`.

use std::collections::BTreeMap;

use super::level::{Health, Level};
use crate::api::call::reactor::ElectionRow;
use crate::api::monitor::ZmqKind;
use crate::base::named::named;
use crate::engines::runtime::Phase;
use crate::engines::script::ScriptPhase;
use crate::policy::RuleList;
use crate::store::Step;
use crate::store::free_space::SpaceLevel;
use crate::wire::frame::Framing;
use crate::wire::msgpack::Time;

answers! {
    /// The response of the call `status`.
    Status {
        version: String,
        pid: u32,
        /// Seconds since its start.
        uptime_s: u64,
        state_dir: String,
        socket: String,
        /// The slot of the job ids that it makes: `k/n`, number k of n masters.
        slot: Option<String>,
        /// The history that several masters share, with `cluster.nats`.
        cluster: Option<ClusterRow>,
        /// All entries below are readable.
        head: u64,
        /// All entries below survive a power loss.
        durable: u64,
        /// Seconds since the appender's last iteration; more than a few mean that disk I/O blocks it.
        appender_seen_s: u64,
        health: Health,
        rates: Rates,
        disk: Disk,
        /// The last failed return since the start.
        last_failure: Option<LastFailure>,
        /// A step of the system clock that retention does not trust yet.
        clock_step: Option<ClockStep>,
        bus: Vec<BusRow>,
        /// The socket directory of this host's Salt master, if no event of it arrives.
        unread_bus: Option<String>,
        reactor: bool,
        reactions: Option<ReactorRow>,
        /// Consumers, without those of sinks.
        consumers: Vec<ConsumerRow>,
        sinks: Vec<SinkRow>,
        scripts: Vec<ScriptRow>,
        rules: Vec<RuleRow>,
        master_keys: MasterKeys,
        /// Damaged places of logs found since the start, at most 8.
        damage: Vec<DamageRow>,
        spools: Vec<SpoolRow>,
        /// The address that serves minions, if configured.
        https: Option<ListenerRow>,
        /// The HTTP listener, if it has an address.
        http: Option<ListenerRow>,
        /// A reload that was rejected, or that left a restart pending.
        reload: Option<ReloadRow>,
        zeromq: Vec<ZeromqRow>,
        /// Counters since the start, by name.
        counters: BTreeMap<String, u64>,
        classes: Vec<ClassRow>,
        /// Small files of the state directory with content that is ignored.
        files: Vec<FileRow>,
        /// Minions that were over their share of a class within a day.
        shares: Vec<ShareRow>,
        /// The share of a class, in percent, that one minion may have.
        minion_share: u64,
    }
    /// Numbers per 1000 s over the last minutes, of entries of all kinds.
    #[expect(clippy::struct_field_names, reason = "the names on the wire have the unit")]
    Rates {
        entries_per_1000_s: u64,
        returns_per_1000_s: u64,
        failed_per_1000_s: u64,
    }
    /// Disk space.
    Disk {
        state: SpaceLevel,
        used_bytes: u64,
        free_bytes: u64,
        total_bytes: u64,
        /// Bytes of the entries of the last day, before deletions.
        bytes_per_day: u64,
        /// Days until retention drops segments early; absent if the limits of the classes prevent that.
        days_left: Option<u64>,
    }
    /// A failed return.
    LastFailure {
        /// When it was stored.
        time: Time,
        jid: String,
        minion: String,
        /// The function; empty for several.
        fun: String,
        retcode: i64,
    }
    /// A damaged place of a log, which readers skip.
    DamageRow {
        path: String,
        /// Offset of the first byte.
        offset: u64,
        bytes: u64,
        what: String,
        /// Entries that cannot be read because of it; absent if the number is unknown.
        entries: Option<u64>,
    }
    /// A step of the system clock.
    ClockStep {
        /// Seconds ahead of the expected time; negative for behind.
        ahead_s: i64,
        /// Seconds until it is trusted.
        wait_s: u64,
    }
    /// A bus.
    BusRow {
        /// The publisher's socket.
        path: String,
        connected: bool,
        /// The framing, once detected.
        framing: Option<Framing>,
        events: u64,
        waiting_events: u64,
        waiting_bytes: u64,
        spilled_events: u64,
        spilled_bytes: u64,
        lost: u64,
        gaps: u64,
        /// All events up to this time are stored.
        safe_until: Option<Time>,
    }
    /// The reactor.
    ReactorRow {
        /// Entries that it has not read yet.
        behind: u64,
        waiting: u64,
        /// Events without a finished reaction.
        open: u64,
        /// Why it does not act.
        blocked: Option<String>,
        /// Whether it compares itself with Salt's reactor only.
        shadow: bool,
        /// The master's cluster: the reactor acts only on events that this master fired. Absent in shadow mode.
        cluster_id: Option<String>,
        /// Matching events since the start that other masters of the cluster fired, whose daemons react.
        of_peers: u64,
        /// The election that decides whether this reactor acts.
        #[serde(skip_serializing_if = "Option::is_none")]
        election: Option<ElectionRow>,
        master_unreachable: bool,
        /// Why a new configuration is not in use.
        refused: Option<String>,
        /// Finished reactions since the start, by state.
        ended: BTreeMap<String, u64>,
        /// Reactions of the last day, since the start, that failed and were not replayed.
        failed: u64,
        /// The latest of them: the event's tag, and the rules.
        failed_last: Option<String>,
    }
    /// A consumer.
    ConsumerRow {
        name: String,
        /// Unprocessed entries at most, whether they match or not.
        lag_entries: u64,
        lag_s: u64,
        paused: bool,
        /// Entries that retention dropped before they were processed.
        lost: u64,
        error: Option<String>,
    }
    /// A sink.
    SinkRow {
        name: String,
        /// Current activity.
        state: Phase,
        /// Undelivered entries at most, whether they match or not.
        lag_entries: u64,
        lag_s: u64,
        /// Failed attempts since the last success.
        failures: u64,
        /// The last error; remains after a success.
        error: Option<String>,
        dead_letters: u64,
    }
    /// The history that several masters share. The sink `cluster` publishes this master's part of it.
    ClusterRow {
        /// The name of this master in it.
        name: String,
        /// The stream of NATS that has it.
        stream: String,
        /// The slot that the other masters know of this one: `k/n`.
        slot: Option<String>,
        /// Why the histories of the other masters are not read; absent while they are.
        not_reading: Option<String>,
        /// Stored entries that are not published at most, whether they are shared or not.
        unpublished_entries: u64,
        /// The age of the first of them, in seconds.
        unpublished_s: u64,
        /// What the stream keeps less than the settings say.
        differences: Vec<String>,
        /// Another node with the name of this master: a random number of its process.
        name_twin: Option<String>,
        /// Another master with the slot of this one.
        slot_twin: Option<String>,
        /// Messages of the stream since the start that are of no master.
        foreign: u64,
        /// The other masters.
        masters: Vec<MasterRow>,
    }
    /// Another master of the shared history.
    MasterRow {
        name: String,
        /// Whether all that it has published is here, and it was heard of within 10 s.
        complete: bool,
        /// Whether it was away for longer than `cluster.window`, and is taken for one that does not exist any more.
        gone: bool,
        /// How far its history here is behind it, in seconds; absent if nothing is known of it.
        behind_s: Option<u64>,
        /// Its history is here up to this time of its clock.
        complete_until: Option<Time>,
        /// Seconds since it was heard of; absent if it was not since the start.
        heard_s: Option<u64>,
        /// The time of this host minus that of the master, in seconds, if they differ by more than 5.
        skew_s: Option<i64>,
        slot: Option<String>,
        version: Option<String>,
        /// Entries received since the start.
        entries: u64,
        /// Messages rejected since the start.
        rejected: u64,
        /// Why the last of them was.
        rejection: Option<String>,
        /// Entries since the start that the stream did not have any more, at most.
        missing: u64,
    }
    /// A script.
    ScriptRow {
        name: String,
        /// `waiting` for its next start; `failed`: its thread could not be started.
        state: ScriptState,
        /// Failures in a row. 0 once it ran longer than its longest pause.
        failures: u64,
        /// The last failure; remains after a success.
        error: Option<String>,
        /// Lines that are not events.
        rejected_lines: u64,
    }
    /// A rule of the ingest policy.
    RuleRow {
        name: String,
        list: RuleList,
        entries: u64,
        /// Dropped ones among them.
        filtered: u64,
    }
    /// Salt masters' keys.
    MasterKeys {
        known: u64,
        unreadable: Vec<String>,
    }
    /// A spool of the extension.
    SpoolRow {
        dir: String,
        /// Bytes that wait for delivery.
        waiting_bytes: u64,
        /// Bytes of dead letters.
        dead_letter_bytes: u64,
        /// When the oldest record was spooled.
        oldest: Option<Time>,
        lost: BTreeMap<String, u64>,
        problem: Option<String>,
    }
    /// A network address.
    ListenerRow {
        listen: String,
        state: ListenerPhase,
        /// Why it is impaired or refuses connections.
        problem: Option<String>,
        peers: u64,
        certificate_until: Option<Time>,
    }
    /// The configuration file, if it differs from what the daemon runs with.
    ReloadRow {
        /// Why the file was rejected.
        problem: Option<String>,
        /// Changed keys that take effect after a restart.
        restart_keys: Vec<String>,
    }
    /// A ZeroMQ socket.
    ZeromqRow {
        source: ZmqKind,
        path: String,
        /// The process that serves it; none between two.
        process: Option<u32>,
        restarts: u64,
    }
    /// A minion over its share of a class.
    ShareRow {
        class: String,
        minion: String,
        /// Its entries since the start that were stored in the overflow of the class.
        entries: u64,
        bytes: u64,
    }
    /// A file with content that is ignored.
    FileRow {
        path: String,
        /// What is ignored, the consequence, and the remedy.
        problem: String,
        level: Level,
    }
    /// A class of the store.
    ClassRow {
        class: String,
        segments: u64,
        entries: u64,
        disk_bytes: u64,
        /// Bytes of the entries as received.
        raw_bytes: u64,
        /// When the oldest entry was stored; absent without entries.
        oldest: Option<Time>,
        /// The age limit in effect; absent for forever.
        keep_s: Option<u64>,
        /// The limit of bytes on disk.
        keep_bytes: Option<u64>,
        /// The limit of entries.
        keep_entries: Option<u64>,
        /// A shorter age that Salt reported, and that waits for an administrator.
        shorter_s: Option<u64>,
        /// The entries that the shorter age would delete now.
        shorter_drops: u64,
        /// The entries that the first report of Salt's default (24 hours) would delete now, if the class has `age: salt` and none was
        /// reported yet.
        first_report_drops: Option<u64>,
    }
}

/// The state of a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptState {
    Running,
    /// For its next start.
    #[default]
    Waiting,
    /// Its thread could not be started.
    Failed,
}

/// The state of a network address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ListenerPhase {
    #[default]
    Opening,
    Open,
    /// It serves, but not as configured.
    Impaired,
    /// It serves nobody.
    Refusing,
    Stopping,
}

named! {
    ScriptState {
        Running: "running",
        Waiting: "waiting",
        Failed: "failed",
    }
    ListenerPhase {
        Opening: "opening",
        Open: "open",
        Impaired: "impaired",
        Refusing: "refusing",
        Stopping: "stopping",
    }
}

impl From<ScriptPhase> for ScriptState {
    fn from(phase: ScriptPhase) -> Self {
        match phase {
            ScriptPhase::Waiting => Self::Waiting,
            ScriptPhase::Running { .. } => Self::Running,
            ScriptPhase::Failed => Self::Failed,
        }
    }
}

impl From<Step> for ClockStep {
    fn from(step: Step) -> Self {
        Self {
            ahead_s: step.ahead / 1_000_000,
            wait_s: step.left.as_secs(),
        }
    }
}
