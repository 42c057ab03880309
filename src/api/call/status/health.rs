//! Health: the rules that decide from a [`Status`] whether all is well.
//!
//! A *problem* is a present state in which data is rejected, lost or long overdue. A *warning* needs attention, such as a master
//! that is down. Past losses are warnings: they remain until the next start. Losses that are found at start are problems.

use super::answer::{
    BusRow, ClassRow, ConsumerRow, DamageRow, ListenerPhase, ListenerRow, ReactorRow, ReloadRow,
    ScriptRow, ScriptState, SinkRow, SpoolRow, Status,
};
use super::cluster;
use super::level::Level::{Problem, Warning};
use super::level::{Health, LAG_S_MAX, Level, Reasons};
use crate::base::clock::Micros;
use crate::base::metrics::{CounterDefinition, Metrics, Severity};
use crate::base::units::{bytes, span};
use crate::cluster::OUTBOX;
use crate::engines::runtime::Phase;
use crate::model::OVERFLOW;
use crate::store::free_space::SpaceLevel;

/// A counter of damage, loss or rejection, and what it means when it is not zero.
pub struct LossCounter {
    pub name: &'static str,
    pub level: Level,
    pub meaning: &'static str,
}

/// The counters that are a reason against "all is well", the severest first: present problems, past
/// losses, other warnings. Each counter declares its meaning in its definition. Therefore none can
/// be missing here, and `status` and `doctor` agree.
pub fn loss_counters() -> Vec<LossCounter> {
    let of = |counter: &CounterDefinition| {
        let (rank, level, meaning) = match counter.severity {
            Severity::Harmless | Severity::ShownBy(_) => return None,
            Severity::Problem(meaning) => (0, Problem, meaning),
            Severity::Loss(meaning) => (1, Warning, meaning),
            Severity::Warning(meaning) => (2, Warning, meaning),
        };
        let name = counter.name;
        Some((
            rank,
            LossCounter {
                name,
                level,
                meaning,
            },
        ))
    };

    let mut all: Vec<_> = Metrics::COUNTERS.iter().filter_map(of).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, one)| one).collect()
}

/// Seconds after which a record in a spool is overdue while the daemon is reachable.
pub(crate) const SPOOL_WAITS_MAX: i64 = 300;
/// Seconds without an iteration after which the appender counts as blocked.
const APPENDER_BLOCKED_S: u64 = 10;
/// Lag of the reactor that needs attention, in entries.
pub(crate) const REACTOR_BEHIND_MAX: u64 = 10_000;
/// Validity of the certificate below which it must be renewed.
const CERTIFICATE_LEFT_US: i64 = 14 * 86_400 * 1_000_000;
/// Days of disk space below which it needs attention.
const DAYS_LEFT_MIN: u64 = 7;

/// Decides whether all is well. The field `health` of the status is not read.
pub(crate) fn health(status: &Status, now: Micros) -> Health {
    let mut found = Reasons::default();
    disk(&mut found, status);
    status.bus.iter().for_each(|row| bus(&mut found, row));

    // Not a problem: the administrator may want no archive of this master.
    if let Some(dir) = &status.unread_bus {
        found.add(
            Warning,
            format!("bus {dir}"),
            "no event of this host's Salt master is archived: `saltcellar setup`, or `saltcellar setup --passive` to only watch".to_owned(),
        );
    }

    status
        .spools
        .iter()
        .for_each(|row| spool(&mut found, row, now));

    // A listener that is not configured has no row.
    if let Some(http) = &status.http {
        listener(&mut found, "http", http, now);
    }

    // With `http.minions`, it is the same address.
    let is_same = |row: &&ListenerRow| {
        status
            .http
            .as_ref()
            .is_some_and(|http| http.listen == row.listen)
    };
    if let Some(https) = status.https.as_ref().filter(|row| !is_same(row)) {
        listener(&mut found, "https", https, now);
    }

    for row in &status.zeromq {
        // At the start there is no process yet. Later there is none between two processes, or
        // because it cannot be started.
        if row.process.is_some() || row.restarts == 0 {
            continue;
        }

        let message = format!(
            "no process serves the socket, after {} restarts: see the daemon's log",
            row.restarts
        );
        found.add(Problem, format!("zeromq {}", row.path), message);
    }

    status
        .reload
        .iter()
        .for_each(|row| configuration(&mut found, row));
    status
        .reactions
        .iter()
        .for_each(|row| reactor(&mut found, row));
    cluster::reasons(&mut found, status);
    status
        .sinks
        .iter()
        // Part of the shared history.
        .filter(|row| !(status.cluster.is_some() && row.name == OUTBOX))
        .for_each(|row| sink(&mut found, row));
    status
        .scripts
        .iter()
        .for_each(|row| script(&mut found, row));
    for row in &status.consumers {
        let is_of_sink = status.sinks.iter().any(|sink| sink.name == row.name);
        consumer(&mut found, row, is_of_sink);
    }

    // Entries are kept for longer in the meantime, so nothing is lost.
    if let Some(step) = &status.clock_step {
        let direction = if step.ahead_s < 0 {
            "behind"
        } else {
            "ahead of"
        };
        let message = format!(
            "the system clock is {} s {direction} the expected time; deletion by age is suspended: see `saltcellar doctor`",
            step.ahead_s.unsigned_abs()
        );
        found.add(Warning, "clock", message);
    }

    // A shorter age of Salt waits for an administrator, and so is no problem.
    status.classes.iter().for_each(|row| class(&mut found, row));
    status
        .classes
        .iter()
        .for_each(|row| first_report(&mut found, row));

    for row in &status.shares {
        let message = format!(
            "minion {} exceeds its share of {} %; since the start {} of its entries ({}) were stored in {}{OVERFLOW}, which has its own limits (`store.minion_share`)",
            row.minion,
            status.minion_share,
            row.entries,
            bytes(row.bytes),
            row.class
        );
        found.add(Warning, format!("class {}", row.class), message);
    }

    // What a small file's fault means is decided by the part that reads it.
    for file in &status.files {
        found.add(
            file.level,
            format!("file {}", file.path),
            file.problem.clone(),
        );
    }

    if !status.master_keys.unreadable.is_empty() {
        let files = status.master_keys.unreadable.join(", ");
        found.add(
            Warning,
            "master keys",
            format!(
                "cannot read {files}: the keys in them are not redacted; give the daemon's user access, or correct `ingest.masters`"
            ),
        );
    }

    status.damage.iter().for_each(|row| damage(&mut found, row));

    for LossCounter {
        name,
        level,
        meaning,
    } in loss_counters()
    {
        let count = status.counters.get(name).copied().unwrap_or(0);
        if count > 0 {
            found.add(
                level,
                "since the start",
                format!("{name} is {count}: {meaning}"),
            );
        }
    }

    // The worst first, and in the order above within a level.
    let mut reasons = found.0;
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.level));

    Health {
        state: reasons
            .iter()
            .map(|reason| reason.level)
            .max()
            .unwrap_or_default(),
        reasons,
    }
}

fn damage(found: &mut Reasons, row: &DamageRow) {
    let lost = match row.entries {
        Some(entries) => format!("{entries} entries cannot be read"),
        None => "entries may be lost".to_owned(),
    };

    // A warning, because readers skip the place and nothing new is lost.
    let message = format!(
        "{} is damaged at byte {} ({} bytes, {}): {lost}; consumers and sinks skip them. Run `saltcellar store verify` and check the disk",
        row.path, row.offset, row.bytes, row.what
    );
    found.add(Warning, "log", message);
}

fn disk(found: &mut Reasons, status: &Status) {
    let disk = &status.disk;
    match disk.state {
        // The extension spools, but the bus source can only spill, and other senders get errors.
        SpaceLevel::Full => found.add(
            Problem,
            "disk",
            "no free space: entries are rejected and the extension spools them; free some space, or run `saltcellar store prune`",
        ),
        SpaceLevel::Low => found.add(
            Warning,
            "disk",
            "little free space: the oldest segments are deleted early; enlarge the disk or lower `keep` in `store.classes`",
        ),
        // A forecast is only of use while there still is room.
        SpaceLevel::Ample => {
            if let Some(days) = disk.days_left.filter(|days| *days < DAYS_LEFT_MIN) {
                found.add(
                    Warning,
                    "disk",
                    match days {
                        0 => "the free space lasts less than a day at the current rate; enlarge the disk or lower `keep` in `store.classes`"
                            .to_owned(),
                        _ => {
                            format!("the free space lasts {days} days at the current rate; enlarge the disk or lower `keep` in `store.classes`")
                        }
                    },
                );
            }
        }
    }

    if status.appender_seen_s >= APPENDER_BLOCKED_S {
        let message = format!(
            "nothing was stored for {} s because disk I/O is blocked: look for disk errors in `dmesg`",
            status.appender_seen_s
        );
        found.add(Problem, "disk", message);
    }
}

fn class(found: &mut Reasons, row: &ClassRow) {
    if let Some(shorter) = row.shorter_s {
        let kept = row.keep_s.map_or("forever".to_owned(), span);
        let message = format!(
            "Salt's keep_jobs_seconds became shorter: entries are still kept {kept}; `saltcellar store prune --accept-salt` keeps them {} and deletes {} now",
            span(shorter),
            row.shorter_drops
        );
        found.add(Warning, format!("class {}", row.class), message);
    }
}

fn first_report(found: &mut Reasons, row: &ClassRow) {
    // Without older entries the report deletes nothing.
    let Some(drops @ 1..) = row.first_report_drops else {
        return;
    };

    let message = format!(
        "it has `age: salt` and no master has reported keep_jobs_seconds: until then all entries are kept, and the first report deletes older ones, {drops} now with Salt's default of 24h; `age: 90d or salt` keeps them"
    );
    found.add(Warning, format!("class {}", row.class), message);
}

fn bus(found: &mut Reasons, row: &BusRow) {
    let part = format!("bus {}", row.path);
    // A stopped master is common, and its events are not lost: it fires none.
    if !row.connected {
        let message =
            "not connected: is the master running, and does the daemon's user have access?";
        found.add(Warning, part.clone(), message);
    }

    if row.spilled_events > 0 {
        let message = format!(
            "{} events are in the spill and not stored yet; if the number does not fall, the disk is full or too slow",
            row.spilled_events
        );
        found.add(Warning, part, message);
    }
}

fn spool(found: &mut Reasons, row: &SpoolRow, now: Micros) {
    let part = format!("spool {}", row.dir);
    if let Some(problem) = &row.problem {
        found.add(
            Warning,
            part.clone(),
            format!(
                "cannot read the spool: {problem}; give the daemon's user access, or correct `spools`"
            ),
        );
    }

    let waits_s = row
        .oldest
        .map_or(0, |at| now.0.saturating_sub(at.0.0) / 1_000_000);
    // A short wait is normal: the spool is delivered with the next call of the extension.
    if row.waiting_bytes > 0 && waits_s > SPOOL_WAITS_MAX {
        let message = format!(
            "{} have waited for {} although the daemon is running: see `saltcellar doctor`",
            bytes(row.waiting_bytes),
            span(u64::try_from(waits_s).unwrap_or(0))
        );
        found.add(Problem, part.clone(), message);
    }

    if row.dead_letter_bytes > 0 {
        found.add(
            Warning,
            part.clone(),
            format!(
                "{} of dead letters: see `saltcellar doctor`",
                bytes(row.dead_letter_bytes)
            ),
        );
    }

    let lost = row
        .lost
        .values()
        .fold(0, |sum: u64, n| sum.saturating_add(*n));
    if lost > 0 {
        found.add(
            Warning,
            part,
            format!("{lost} entries were lost: see `saltcellar doctor`"),
        );
    }
}

fn listener(found: &mut Reasons, kind: &str, row: &ListenerRow, now: Micros) {
    let part = format!("{kind} {}", row.listen);
    if let Some(problem) = &row.problem {
        // With its previous certificate the address still serves.
        let level = if row.state == ListenerPhase::Impaired {
            Warning
        } else {
            Problem
        };
        found.add(level, part.clone(), problem.clone());
    }

    let left = row
        .certificate_until
        .map(|until| until.0.0.saturating_sub(now.0));
    if let Some(left) = left.filter(|left| *left < CERTIFICATE_LEFT_US) {
        // Negative too: the daemon may have started with a certificate that is expired.
        let message = match left {
            ..=0 => "the certificate has expired, clients reject it: renew the files and run `systemctl reload saltcellar`".to_owned(),
            _ => format!(
                "the certificate expires in {} days: renew the files and run `systemctl reload saltcellar`",
                left / 86_400 / 1_000_000
            ),
        };

        found.add(if left > 0 { Warning } else { Problem }, part, message);
    }
}

fn configuration(found: &mut Reasons, row: &ReloadRow) {
    if let Some(problem) = &row.problem {
        found.add(
            Warning,
            "configuration",
            format!(
                "the last reload was rejected, the previous configuration stays in use: {problem}"
            ),
        );
    }

    if !row.restart_keys.is_empty() {
        let keys = row.restart_keys.join(", ");
        found.add(
            Warning,
            "configuration",
            format!("changed keys take effect after a restart: {keys}"),
        );
    }
}

fn reactor(found: &mut Reasons, row: &ReactorRow) {
    if let Some(why) = row.hindrance() {
        found.add(Warning, "reactor", format!("inactive: {why}"));
    }

    if row.master_unreachable {
        found.add(
            Warning,
            "reactor",
            "the master is unreachable and reactions wait: is salt-master running?",
        );
    }

    if let Some(why) = &row.refused {
        found.add(
            Warning,
            "reactor",
            format!("the new configuration was rejected, the previous one stays in use: {why}"),
        );
    }
    // In shadow nothing is carried out, so nothing of it has to be repeated.
    if row.failed > 0 && !row.shadow {
        let message = format!(
            "{} reactions of the last day failed, the latest to {}: see `saltcellar reactor history --state failed,partial,dead`",
            row.failed,
            row.failed_last.as_deref().unwrap_or("an unknown event")
        );
        found.add(Warning, "reactor", message);
    }

    if row.behind > REACTOR_BEHIND_MAX {
        found.add(
            Warning,
            "reactor",
            format!(
                "{} log entries behind; if the number does not fall, `saltcellar reactor history` shows slow rules",
                row.behind
            ),
        );
    }
}

fn sink(found: &mut Reasons, row: &SinkRow) {
    let part = format!("sink {}", row.name);
    let error = row.error.as_deref().unwrap_or("unknown error");
    // Nothing else of a failed thread is current.
    if row.state == Phase::Failed {
        found.add(
            Problem,
            part,
            format!("delivery thread crashed; restart the daemon: {error}"),
        );
        return;
    }

    if row.failures > 0 {
        let message = format!(
            "{} failed attempts, {} behind (`saltcellar sinks test {}` shows the request and the response): {error}",
            row.failures,
            span(row.lag_s),
            row.name
        );
        found.add(
            // Failing while it is hardly behind may end by itself; beyond the limit data is
            // overdue.
            if row.lag_s > LAG_S_MAX {
                Problem
            } else {
                Warning
            },
            part.clone(),
            message,
        );
    } else if row.lag_s > LAG_S_MAX && row.state != Phase::Paused {
        let message = format!(
            "{} behind, {} entries; if they do not fall, raise `batch` or `concurrency` of the sink",
            span(row.lag_s),
            row.lag_entries
        );
        found.add(Warning, part.clone(), message);
    }

    if row.dead_letters > 0 {
        let message = format!(
            "{} dead letters: see `saltcellar sinks dead-letters list {}`",
            row.dead_letters, row.name
        );
        found.add(Warning, part, message);
    }
}

fn script(found: &mut Reasons, row: &ScriptRow) {
    let part = format!("script {}", row.name);
    let error = row.error.as_deref().unwrap_or("unknown error");

    if row.state == ScriptState::Failed {
        let message = format!(
            "the script cannot be started; correct the cause and reload the daemon: {error}"
        );
        found.add(Problem, part, message);
    } else if row.failures > 0 {
        let message = format!(
            "the script failed {} times in a row: {error}; its messages are in the daemon's log",
            row.failures
        );
        found.add(Warning, part, message);
    }
}

/// What is wrong with a consumer. Of a sink's consumer, which has its name, only what the sink
/// does not tell.
fn consumer(found: &mut Reasons, row: &ConsumerRow, is_of_sink: bool) {
    let part = format!("consumer {}", row.name);
    if row.lost > 0 {
        found.add(
            Problem,
            part.clone(),
            format!(
                "{} entries expired before the consumer read them; raise `keep` of their class, or pin the consumer (`saltcellar consumers pin {}`)",
                row.lost, row.name
            ),
        );
    }

    // A paused consumer waits on purpose, and the lag of a sink is one of the sink's own reasons.
    if row.lag_s > LAG_S_MAX && !row.paused && !is_of_sink {
        let error = row
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!(": {error}"));
        found.add(
            Warning,
            part,
            format!(
                "{} behind, {} entries{error}; `saltcellar consumers show {}` shows who reads it",
                span(row.lag_s),
                row.lag_entries,
                row.name
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::status::{ClockStep, Disk};
    use crate::base::named::Named as _;
    use crate::wire::msgpack::Time;

    const NOW: Micros = Micros(1_795_230_637_000_000);

    fn ample() -> Disk {
        Disk {
            state: SpaceLevel::Ample,
            ..Disk::default()
        }
    }

    #[track_caller]
    fn check(status: &Status, expected: &[(Level, &str, &str)]) {
        let found = health(status, NOW);
        let reasons: Vec<_> = found
            .reasons
            .iter()
            .map(|one| (one.level, one.part.as_str(), one.message.as_str()))
            .collect();
        assert_eq!(reasons, expected);
        assert_eq!(
            found.state,
            expected.first().map_or(Level::Ok, |(level, ..)| *level)
        );
    }

    #[test]
    fn a_daemon_with_everything_connected_is_well() {
        let bus = BusRow {
            path: "/b".to_owned(),
            connected: true,
            ..BusRow::default()
        };
        let sink = SinkRow {
            name: "s".to_owned(),
            state: Phase::Idle,
            ..SinkRow::default()
        };
        let shadow = ReactorRow {
            shadow: true,
            blocked: Some("shadow".to_owned()),
            ..ReactorRow::default()
        };
        let status = Status {
            disk: ample(),
            bus: vec![bus],
            sinks: vec![sink],
            reactions: Some(shadow),
            ..Status::default()
        };
        check(&status, &[]);
    }

    #[test]
    fn a_daemon_beside_a_master_whose_events_do_not_arrive_is_not_well() {
        let status = Status {
            disk: ample(),
            unread_bus: Some("/run/m".to_owned()),
            ..Status::default()
        };
        let message = "no event of this host's Salt master is archived: `saltcellar setup`, or `saltcellar setup --passive` to only watch";
        check(&status, &[(Warning, "bus /run/m", message)]);
    }

    #[test]
    fn the_worst_reason_comes_first_and_decides() {
        let bus = BusRow {
            path: "/b".to_owned(),
            spilled_events: 3,
            ..BusRow::default()
        };
        let status = Status {
            disk: Disk {
                state: SpaceLevel::Full,
                ..Disk::default()
            },
            bus: vec![bus],
            clock_step: Some(ClockStep {
                ahead_s: -7,
                wait_s: 1,
            }),
            counters: [("bus_events_lost".to_owned(), 2), ("calls".to_owned(), 9)].into(),
            ..Status::default()
        };
        check(
            &status,
            &[
                (
                    Problem,
                    "disk",
                    "no free space: entries are rejected and the extension spools them; free some space, or run `saltcellar store prune`",
                ),
                (
                    Warning,
                    "bus /b",
                    "not connected: is the master running, and does the daemon's user have access?",
                ),
                (
                    Warning,
                    "bus /b",
                    "3 events are in the spill and not stored yet; if the number does not fall, the disk is full or too slow",
                ),
                (
                    Warning,
                    "clock",
                    "the system clock is 7 s behind the expected time; deletion by age is suspended: see `saltcellar doctor`",
                ),
                (
                    Warning,
                    "since the start",
                    "bus_events_lost is 2: bus events were lost",
                ),
            ],
        );
    }

    #[test]
    fn every_counter_of_loss_is_a_reason_and_what_another_part_shows_is_shown() {
        // As declared: losses are past, what is found at start is not.
        for (name, level) in [
            ("entries_missing_at_start", Problem),
            ("files_changed_while_stopped", Problem),
            ("zmq_events_lost", Warning),
            ("reactor_record_writes_failed", Warning),
        ] {
            let counters = [(name.to_owned(), 1)].into();
            let status = Status {
                disk: ample(),
                counters,
                ..Status::default()
            };
            assert_eq!(health(&status, NOW).state, level, "{name}");
        }

        let page = include_str!("../../../../docs/DOCTOR.md");
        for counter in Metrics::COUNTERS {
            let Severity::ShownBy(other) = counter.severity else {
                continue;
            };
            let is_counter = loss_counters().iter().any(|one| one.name == other);
            let is_part = page.contains(&format!("\n| {other} |"));
            assert!(is_counter || is_part, "{}: {other}", counter.name);
        }
    }

    #[test]
    fn a_script_that_fails_or_cannot_be_started_is_a_reason() {
        let with = |state: &str, failures| {
            let row = ScriptRow {
                name: "s".to_owned(),
                state: ScriptState::named(state).unwrap(),
                failures,
                error: Some("exit status: 3".to_owned()),
                ..ScriptRow::default()
            };
            Status {
                disk: ample(),
                scripts: vec![row],
                ..Status::default()
            }
        };
        check(&with("running", 0), &[]);
        let message = "the script failed 2 times in a row: exit status: 3; its messages are in the daemon's log";
        check(&with("waiting", 2), &[(Warning, "script s", message)]);
        let message =
            "the script cannot be started; correct the cause and reload the daemon: exit status: 3";
        check(&with("failed", 0), &[(Problem, "script s", message)]);
    }

    #[test]
    fn a_sink_that_fails_for_long_is_a_problem_and_a_paused_one_is_not() {
        let row = |state: &str, failures, lag_s| SinkRow {
            name: "s".to_owned(),
            state: Phase::named(state).unwrap(),
            failures,
            lag_s,
            lag_entries: 5,
            error: Some("refused".to_owned()),
            ..SinkRow::default()
        };
        let with = |row| Status {
            disk: ample(),
            sinks: vec![row],
            ..Status::default()
        };
        check(
            &with(row("retrying", 2, 9)),
            &[(
                Warning,
                "sink s",
                "2 failed attempts, 9s behind (`saltcellar sinks test s` shows the request and the response): refused",
            )],
        );
        check(
            &with(row("retrying", 2, 601)),
            &[(
                Problem,
                "sink s",
                "2 failed attempts, 10m behind (`saltcellar sinks test s` shows the request and the response): refused",
            )],
        );
        check(&with(row("paused", 0, 6_000)), &[]);
        check(
            &with(row("idle", 0, 6_000)),
            &[(
                Warning,
                "sink s",
                "100m behind, 5 entries; if they do not fall, raise `batch` or `concurrency` of the sink",
            )],
        );
        check(
            &with(row("failed", 0, 0)),
            &[(
                Problem,
                "sink s",
                "delivery thread crashed; restart the daemon: refused",
            )],
        );
    }

    #[test]
    fn a_certificate_warns_before_it_expires() {
        let https = |days: i64| {
            let until = Some(NOW.0 + days * 86_400 * 1_000_000);
            let row = ListenerRow {
                listen: "a:1".to_owned(),
                state: ListenerPhase::Open,
                certificate_until: until.map(|at| Time(Micros(at))),
                ..ListenerRow::default()
            };
            Status {
                disk: ample(),
                https: Some(row),
                ..Status::default()
            }
        };
        check(&https(15), &[]);
        check(
            &https(13),
            &[(
                Warning,
                "https a:1",
                "the certificate expires in 13 days: renew the files and run `systemctl reload saltcellar`",
            )],
        );
        let expired = "the certificate has expired, clients reject it: renew the files and run `systemctl reload saltcellar`";
        check(&https(0), &[(Problem, "https a:1", expired)]);
        // Same as for the HTTP listener.
        let http = Status {
            http: https(0).https,
            ..https(15)
        };
        check(&http, &[(Problem, "http a:1", expired)]);
    }

    #[test]
    fn a_sink_that_is_behind_is_told_once() {
        let sink = SinkRow {
            name: "s".to_owned(),
            state: Phase::Idle,
            lag_s: 601,
            ..SinkRow::default()
        };
        let consumer = |name: &str, lost| ConsumerRow {
            name: name.to_owned(),
            lag_s: 601,
            lost,
            ..ConsumerRow::default()
        };
        check(
            &Status {
                disk: ample(),
                sinks: vec![sink],
                consumers: vec![consumer("s", 4), consumer("other", 0)],
                ..Status::default()
            },
            &[
                (
                    Problem,
                    "consumer s",
                    "4 entries expired before the consumer read them; raise `keep` of their class, or pin the consumer (`saltcellar consumers pin s`)",
                ),
                (
                    Warning,
                    "sink s",
                    "10m behind, 0 entries; if they do not fall, raise `batch` or `concurrency` of the sink",
                ),
                (
                    Warning,
                    "consumer other",
                    "10m behind, 0 entries; `saltcellar consumers show other` shows who reads it",
                ),
            ],
        );
    }

    #[test]
    fn spools_consumers_and_the_reactor_have_limits() {
        let spool = |age_s: i64| {
            let oldest = Some(NOW.0 - age_s * 1_000_000);
            let row = SpoolRow {
                dir: "/s".to_owned(),
                waiting_bytes: 9,
                oldest: oldest.map(|at| Time(Micros(at))),
                ..SpoolRow::default()
            };
            Status {
                disk: ample(),
                spools: vec![row],
                ..Status::default()
            }
        };
        check(&spool(300), &[]);
        let overdue =
            "9B have waited for 5m although the daemon is running: see `saltcellar doctor`";
        check(&spool(301), &[(Problem, "spool /s", overdue)]);
        let row = ConsumerRow {
            name: "c".to_owned(),
            lost: 4,
            lag_s: 601,
            ..ConsumerRow::default()
        };
        check(
            &Status {
                disk: ample(),
                consumers: vec![row],
                ..Status::default()
            },
            &[
                (
                    Problem,
                    "consumer c",
                    "4 entries expired before the consumer read them; raise `keep` of their class, or pin the consumer (`saltcellar consumers pin c`)",
                ),
                (
                    Warning,
                    "consumer c",
                    "10m behind, 0 entries; `saltcellar consumers show c` shows who reads it",
                ),
            ],
        );
        let row = ReactorRow {
            master_unreachable: true,
            behind: 10_001,
            ..ReactorRow::default()
        };
        check(
            &Status {
                disk: ample(),
                reactions: Some(row),
                ..Status::default()
            },
            &[
                (
                    Warning,
                    "reactor",
                    "the master is unreachable and reactions wait: is salt-master running?",
                ),
                (
                    Warning,
                    "reactor",
                    "10001 log entries behind; if the number does not fall, `saltcellar reactor history` shows slow rules",
                ),
            ],
        );
    }

    #[test]
    fn an_address_that_serves_nobody_is_a_problem_on_each_listener() {
        let row = |state: &str, problem: Option<&str>| ListenerRow {
            listen: "a:1".to_owned(),
            state: ListenerPhase::named(state).unwrap(),
            problem: problem.map(str::to_owned),
            ..ListenerRow::default()
        };
        let refusing = row("refusing", Some("cannot listen: in use"));
        let status = Status {
            disk: ample(),
            http: Some(refusing.clone()),
            ..Status::default()
        };
        check(&status, &[(Problem, "http a:1", "cannot listen: in use")]);
        // `http.minions`: one address, one reason.
        let status = Status {
            https: Some(refusing.clone()),
            ..status
        };
        check(&status, &[(Problem, "http a:1", "cannot listen: in use")]);
        let status = Status {
            http: Some(row("opening", None)),
            https: Some(ListenerRow {
                listen: "b:2".to_owned(),
                ..row("impaired", Some("serves with its previous certificate: x"))
            }),
            ..status
        };
        check(
            &status,
            &[(
                Warning,
                "https b:2",
                "serves with its previous certificate: x",
            )],
        );
    }

    #[test]
    fn a_shorter_age_and_a_minion_over_its_share_are_reasons_of_their_class() {
        let class = ClassRow {
            class: "jobs".to_owned(),
            keep_s: Some(400 * 86_400),
            shorter_s: Some(86_400),
            shorter_drops: 7,
            ..ClassRow::default()
        };
        let share = crate::api::call::status::ShareRow {
            class: "jobs".to_owned(),
            minion: "web1".to_owned(),
            entries: 3,
            bytes: 2048,
        };
        let status = Status {
            disk: ample(),
            classes: vec![class],
            shares: vec![share],
            minion_share: 50,
            ..Status::default()
        };
        check(
            &status,
            &[
                (
                    Warning,
                    "class jobs",
                    "Salt's keep_jobs_seconds became shorter: entries are still kept 400d; `saltcellar store prune --accept-salt` keeps them 24h and deletes 7 now",
                ),
                (
                    Warning,
                    "class jobs",
                    "minion web1 exceeds its share of 50 %; since the start 3 of its entries (2.00K) were stored in jobs-over, which has its own limits (`store.minion_share`)",
                ),
            ],
        );
    }

    #[test]
    fn what_the_first_report_of_salt_would_delete_is_a_reason() {
        let with = |drops| {
            let class = ClassRow {
                class: "jobs".to_owned(),
                first_report_drops: drops,
                ..ClassRow::default()
            };
            Status {
                disk: ample(),
                classes: vec![class],
                ..Status::default()
            }
        };
        check(&with(None), &[]);
        check(&with(Some(0)), &[]);
        let message = "it has `age: salt` and no master has reported keep_jobs_seconds: until then all entries are kept, and the first report deletes older ones, 7 now with Salt's default of 24h; `age: 90d or salt` keeps them";
        check(&with(Some(7)), &[(Warning, "class jobs", message)]);
    }

    #[test]
    fn failed_reactions_a_pending_restart_and_ignored_files_are_reasons() {
        let reactions = ReactorRow {
            failed: 2,
            failed_last: Some("t/1 by r".to_owned()),
            ..ReactorRow::default()
        };
        let file = |level, problem: &str| crate::api::call::status::FileRow {
            path: "/s/settings".to_owned(),
            problem: problem.to_owned(),
            level,
        };
        let status = Status {
            disk: ample(),
            reactions: Some(reactions),
            reload: Some(ReloadRow {
                problem: Some("c.yaml:3: bus: no".to_owned()),
                restart_keys: vec!["bus".to_owned(), "http.listen".to_owned()],
            }),
            files: vec![file(Problem, "cannot be used"), file(Warning, "line 3")],
            ..Status::default()
        };
        check(
            &status,
            &[
                (Problem, "file /s/settings", "cannot be used"),
                (
                    Warning,
                    "configuration",
                    "the last reload was rejected, the previous configuration stays in use: c.yaml:3: bus: no",
                ),
                (
                    Warning,
                    "configuration",
                    "changed keys take effect after a restart: bus, http.listen",
                ),
                (
                    Warning,
                    "reactor",
                    "2 reactions of the last day failed, the latest to t/1 by r: see `saltcellar reactor history --state failed,partial,dead`",
                ),
                (Warning, "file /s/settings", "line 3"),
            ],
        );
    }
}
