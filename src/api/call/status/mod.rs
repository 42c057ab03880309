//! The status of the daemon: one typed response for the call `status`, the command line and HTTP.
//!
//! Every field has a default, with which a client can read the response of another release. Rates
//! are numbers per 1000 s, because responses contain no floats.

mod answer;
mod cluster;
mod growth;
mod health;
mod level;

pub(crate) use answer::{
    BusRow, ClassRow, ClockStep, ClusterRow, ConsumerRow, DamageRow, Disk, FileRow, LastFailure,
    ListenerPhase, ListenerRow, MasterKeys, MasterRow, Rates, ReactorRow, ReloadRow, RuleRow,
    ScriptRow, ScriptState, ShareRow, SinkRow, SpoolRow, Status, ZeromqRow,
};
pub(crate) use cluster::explains_outbox;
pub use health::loss_counters;
pub(crate) use health::{LossCounter, REACTOR_BEHIND_MAX, SPOOL_WAITS_MAX, health};
pub(crate) use level::{Health, Level, Reason};

use std::path::Path;

use self::cluster::cluster;
use self::growth::{ClassGrowth, days_left};
use super::reactor::ElectionRow;
use super::reading::{ReadArchive, ReadCtxParts, ReadEngines, ReadReacting, ReadTokens};
use super::running::Reload;
use super::{Call, Ctx, In, NoArgs, Process, Run, Whole, failed, no_events};
use crate::api::monitor::{ListenerMonitor, ListenerState, ListenerStatus, ZmqSocketStatus};
use crate::base::clock::Micros;
use crate::base::file_fault::FileFault;
use crate::base::limits::DAMAGE_ROWS_MAX;
use crate::engines::runtime::{Phase, SinkStatus};
use crate::engines::script::ScriptStatus;
use crate::ingest::bus::BusStatus;
use crate::ingest::spool::Spool;
use crate::model::word::Word as _;
use crate::policy::Policy;
use crate::store::damage::Damage;
use crate::store::read::ClassTotals;
use crate::store::stats::{ClassStats, StoreStats};
use crate::store::{ConsumerStatus, StoreError, StoreReader};
use crate::wire::call::CallError;
use crate::wire::msgpack::Time;

/// `status`.
pub(crate) struct Show;

impl Call for Show {
    const NAME: &'static str = "status";
    const DOC: &'static str = "Show the status of the daemon, its sources and its store";
    type Scope = Whole<Ctx>;
    type Args<'a> = NoArgs;
    type Answer = Status;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Status, CallError> {
        status(ctx).map_err(failed)
    }
}

/// Collects the status, with its health.
pub(crate) fn status(ctx: &ReadCtxParts<'_>) -> Result<Status, StoreError> {
    // Each row below gets the part that it is about.
    let ReadCtxParts {
        archive,
        policy,
        reacting,
        engines,
        tokens,
        process,
    } = ctx;
    let store = archive.store;

    let now = archive.clock.now();
    let stats = store.stats()?;
    let (known, unreadable) = policy.master_keys().counts();

    // The fields of the parts that are not configured are empty or absent.
    let mut status = Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        // Zero if the clock was set back since the start.
        uptime_s: u64::try_from(now.0.saturating_sub(process.started.0) / 1_000_000).unwrap_or(0),
        state_dir: archive.state_dir.to_string_lossy().into_owned(),
        socket: process.socket.to_string_lossy().into_owned(),
        slot: process.slot.show(),
        cluster: None,
        head: stats.head.0,
        durable: stats.durable.0,
        appender_seen_s: store.appender_seen_ago().as_secs(),
        health: Health::default(),
        rates: rates(&stats),
        disk: disk(&stats, now),
        last_failure: store.last_failed_return().map(|failed| LastFailure {
            time: Time(failed.at),
            jid: failed.jid,
            minion: failed.minion,
            fun: failed.fun,
            retcode: failed.retcode,
        }),
        clock_step: stats.clock_step.map(ClockStep::from),
        bus: reacting.buses().iter().map(bus).collect(),
        unread_bus: process
            .unread_bus
            .as_ref()
            .map(|dir| dir.to_string_lossy().into_owned()),
        reactor: reacting.handle.is_some(),
        reactions: reactor(reacting),
        consumers: store.consumer_states()?.iter().map(consumer).collect(),
        sinks: engines.list().iter().map(sink).collect(),
        scripts: scripts(process, *archive),
        rules: rules(policy),
        master_keys: MasterKeys {
            known: known as u64,
            unreadable,
        },
        damage: damage(store),
        spools: process
            .spools
            .iter()
            .filter_map(|dir| Some(spool(dir, Spool::inspect(dir).transpose()?)))
            .collect(),
        https: process.https.as_ref().map(listener),
        http: process.http.as_ref().map(listener),
        reload: reload(process.config.last_reload()),
        zeromq: process.zeromq.iter().map(zeromq).collect(),
        counters: archive
            .metrics
            .all()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        classes: classes(store, &stats)?,
        files: files(store, tokens, engines),
        shares: shares(store),
        minion_share: store.share_percent(),
    };

    status.cluster = archive.shared.map(|shared| cluster(shared, &status.sinks));

    // Last, from the fields above: nothing is looked up twice, so the health fits the rest.
    status.health = health(&status, now);
    Ok(status)
}

fn damage(store: &StoreReader) -> Vec<DamageRow> {
    let row = |known: Damage| DamageRow {
        path: known.path.to_string_lossy().into_owned(),
        offset: known.offset,
        bytes: known.bytes,
        what: known.what,
        entries: known.entries,
    };
    let known = store.damage().into_iter();
    known.take(DAMAGE_ROWS_MAX).map(row).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate, not negative"
)]
pub(super) fn per_1000_s(per_second: f64) -> u64 {
    (per_second * 1000.0).round() as u64
}

fn rates(stats: &StoreStats) -> Rates {
    Rates {
        entries_per_1000_s: per_1000_s(stats.classes.iter().map(|class| class.rate).sum()),
        returns_per_1000_s: per_1000_s(stats.returns_rate),
        failed_per_1000_s: per_1000_s(stats.failed_rate),
    }
}

fn disk(stats: &StoreStats, now: Micros) -> Disk {
    let growth: Vec<ClassGrowth> = stats
        .classes
        .iter()
        .map(|class: &ClassStats| ClassGrowth::of(class, now))
        .collect();

    let space = &stats.space;

    Disk {
        state: space.room,
        used_bytes: stats
            .classes
            .iter()
            .map(|class| class.segment_usage.disk_bytes)
            .sum(),
        free_bytes: space.free,
        total_bytes: space.total,
        bytes_per_day: growth.iter().map(|class| class.per_day).sum(),
        // Below this mark the oldest segments are deleted early, therefore only the space above it
        // counts.
        days_left: days_left(&growth, space.free.saturating_sub(space.low)),
    }
}

fn files(store: &StoreReader, tokens: &ReadTokens<'_>, engines: &ReadEngines<'_>) -> Vec<FileRow> {
    let row = |FileFault {
                   path,
                   problem,
                   is_serious,
               }| FileRow {
        path: path.to_string_lossy().into_owned(),
        problem,
        level: if is_serious {
            Level::Problem
        } else {
            Level::Warning
        },
    };

    let of_store = store.file_faults().into_iter();
    of_store
        .chain(tokens.fault())
        .chain(engines.file_faults())
        .map(row)
        .collect()
}

fn shares(store: &StoreReader) -> Vec<ShareRow> {
    let over = store.over_share().into_iter();
    over.map(|(class, minion, over)| ShareRow {
        class: class.to_string(),
        minion,
        entries: over.entries,
        bytes: over.bytes,
    })
    .collect()
}

fn reload(last: Reload) -> Option<ReloadRow> {
    let Reload {
        problem,
        restart_keys,
    } = last;
    (problem.is_some() || !restart_keys.is_empty()).then_some(ReloadRow {
        problem,
        restart_keys,
    })
}

fn classes(store: &StoreReader, stats: &StoreStats) -> Result<Vec<ClassRow>, StoreError> {
    // Usage and limits are of two sources, so a class that is new may be in one of them only.
    let row = |class: ClassTotals| {
        let limits = stats.classes.iter().find(|one| one.name == class.name);

        ClassRow {
            class: class.name.to_string(),
            segments: class.segments as u64,
            entries: class.totals.entries,
            disk_bytes: class.totals.log_bytes,
            raw_bytes: class.totals.raw_bytes,
            oldest: (class.totals.entries > 0).then_some(Time(class.totals.at_min)),
            keep_s: limits.and_then(|one| Some(one.age?.as_secs())),
            keep_bytes: limits.and_then(|one| one.keep.bytes),
            keep_entries: limits.and_then(|one| one.keep.entries),
            shorter_s: limits.and_then(|one| Some(one.shorter?.0.as_secs())),
            shorter_drops: limits.and_then(|one| Some(one.shorter?.1)).unwrap_or(0),
            first_report_drops: limits.and_then(|one| one.first_report_drops),
        }
    };

    Ok(store.classes()?.into_iter().map(row).collect())
}

fn bus(bus: &BusStatus) -> BusRow {
    let waiting = &bus.waiting;

    BusRow {
        path: bus.path.to_string_lossy().into_owned(),
        connected: bus.connected,
        framing: bus.framing,
        events: bus.events,
        waiting_events: waiting.events,
        waiting_bytes: waiting.bytes,
        spilled_events: waiting.spilled_events,
        spilled_bytes: waiting.spilled_bytes,
        lost: waiting.lost,
        gaps: waiting.gaps,
        safe_until: waiting.seen.map(Time),
    }
}

fn reactor(reacting: &ReadReacting<'_>) -> Option<ReactorRow> {
    let handle = reacting.handle?;
    let status = handle.status();
    let buses = reacting.buses();

    let failed = handle.recently_failed();

    let last = failed
        .as_ref()
        .map(|(_, last)| format!("{} by {}", last.tag, last.rules.join(", ")));

    Some(ReactorRow {
        failed: failed.map_or(0, |(count, _)| count),
        failed_last: last,
        behind: status.behind,
        waiting: status.waiting as u64,
        open: status.open as u64,
        blocked: handle
            .blocked_by()
            .or_else(|| no_events(reacting.archive.store, &buses)),
        shadow: status.shadow,
        cluster_id: status.cluster_id,
        of_peers: reacting
            .archive
            .metrics
            .reactor_events_ignored_other_master
            .get(),
        election: status.election.map(ElectionRow::of),
        master_unreachable: status.master_unreachable,
        refused: status.refused.map(|(_, why)| why),
        ended: handle
            .ended()
            .into_iter()
            .map(|(state, count)| (state.name().to_owned(), count))
            .collect(),
    })
}

impl ReactorRow {
    /// Why it does not act, although it should.
    pub(crate) fn hindrance(&self) -> Option<&str> {
        // In shadow mode the reactor does not act, by choice.
        self.blocked.as_deref().filter(|_| !self.shadow)
    }
}

fn consumer(status: &ConsumerStatus) -> ConsumerRow {
    let record = &status.record;
    ConsumerRow {
        name: record.name.clone(),
        lag_entries: status.lag_entries,
        lag_s: status.lag.as_secs(),
        paused: record.paused,
        lost: record.lost.as_ref().map_or(0, |lost| lost.entries),
        error: record.error.as_ref().map(|error| error.message.clone()),
    }
}

fn sink(status: &SinkStatus) -> SinkRow {
    let SinkStatus {
        settings,
        last,
        progress,
        dead_letters,
        ..
    } = status;
    let progress = progress.as_ref();
    // Without a position the state of the thread still is known.
    let is_paused = progress.is_ok_and(|progress| progress.is_paused);

    SinkRow {
        name: settings.name.clone(),
        state: if is_paused { Phase::Paused } else { last.phase },
        lag_entries: progress.map_or(0, |progress| progress.lag_entries),
        lag_s: progress.map_or(0, |progress| progress.lag.as_secs()),
        failures: last.failures.into(),
        error: progress
            .err()
            .cloned()
            .or_else(|| last.error.as_ref().map(|(_, text)| text.clone())),
        dead_letters: *dead_letters as u64,
    }
}

fn scripts(process: &Process, archive: ReadArchive<'_>) -> Vec<ScriptRow> {
    let row = |(name, status): (String, ScriptStatus)| ScriptRow {
        name,
        state: status.phase.into(),
        failures: status.failures,
        error: status.error,
        rejected_lines: status.rejected_lines,
    };
    let now = archive.clock.monotonic();
    process.scripts.all(now).into_iter().map(row).collect()
}

fn rules(policy: &Policy) -> Vec<RuleRow> {
    let rows = policy.counts().into_iter();
    rows.map(|rule| RuleRow {
        name: rule.name.clone(),
        list: rule.list,
        entries: rule.entries,
        filtered: rule.dropped,
    })
    .collect()
}

fn spool(dir: &Path, spool: std::io::Result<Spool>) -> SpoolRow {
    let (spool, problem) = match spool {
        Ok(spool) => (spool, None),
        // A spool that cannot be read is shown with the reason, since its entries may wait.
        Err(error) => (Spool::default(), Some(error.to_string())),
    };

    SpoolRow {
        dir: dir.to_string_lossy().into_owned(),
        waiting_bytes: spool.waiting_bytes,
        dead_letter_bytes: spool.dead_letter_bytes,
        oldest: spool.oldest.map(Time),
        lost: spool.lost.into_iter().collect(),
        problem,
    }
}

fn listener(monitor: &ListenerMonitor) -> ListenerRow {
    let ListenerStatus {
        listen,
        state,
        certificate_until,
        peers,
    } = monitor.status();

    let (state, problem) = match state {
        ListenerState::Opening => (ListenerPhase::Opening, None),
        ListenerState::Open => (ListenerPhase::Open, None),
        ListenerState::Impaired(why) => (ListenerPhase::Impaired, Some(why)),
        ListenerState::Refusing(why) => (ListenerPhase::Refusing, Some(why)),
        ListenerState::Stopping => (ListenerPhase::Stopping, None),
    };

    ListenerRow {
        listen,
        state,
        problem,
        peers: peers as u64,
        certificate_until: certificate_until.map(Time),
    }
}

fn zeromq(socket: &ZmqSocketStatus) -> ZeromqRow {
    let process = socket.process();
    ZeromqRow {
        source: socket.kind,
        path: socket.path.to_string_lossy().into_owned(),
        process: process.pid,
        restarts: process.restarts,
    }
}
