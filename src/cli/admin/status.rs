//! `saltcellar status`: shows on one screen whether all is well.

use crate::api::call::status::{
    ClassRow, ClusterRow, Level, MasterRow, Reason, ScriptState, Status,
};
use crate::api::call::{self as calls, NoArgs};
use crate::base::limits::CLUSTER_AWAY;
use crate::base::units::{bytes, rate, span};
use crate::cli::format::width::prefix;
use crate::cli::{
    Column, Global, Line, LongWords, Output, Table, Tone, ask, day_of, finding, plain, short_at,
    show, width_of, wrapped,
};
use crate::engines::runtime::Phase;
use crate::model::OVERFLOW;

pub(in crate::cli) const EXAMPLES: &str = "\
A problem is a present state in which data is rejected, lost or long overdue. A warning needs attention.
LAG is what waits in a source, or what a reader has not processed.

Exit codes: 0 no problems (warnings are possible), 1 problems, 69 daemon unreachable.

Examples:
  saltcellar status
  saltcellar status --counters
  saltcellar status --output json | jq .health";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Also print the counters that are not zero, by subject
    #[arg(long)]
    counters: bool,
}

impl Args {
    /// Whether it prints a table that is one at any width.
    pub(in crate::cli) fn has_rows(&self) -> bool {
        self.counters
    }
}

/// Size of the smallest terminal that the screen fits, in lines and columns.
const LINES: usize = 25;
const COLUMNS: usize = 80;
/// Lines of the smallest screen that reasons take, and that the rest needs.
const REASON_LINES: usize = 9;
const OTHER_LINES: usize = LINES - 1 - REASON_LINES;

pub(in crate::cli) fn run(global: &Global, flags: &Args) -> anyhow::Result<()> {
    let status = ask::answer::<calls::status::Show>(global, &NoArgs {}, "query the status")?;
    show(global.output, &status, |out| {
        // A pipe gets the width of a plain terminal.
        let width = out.width.unwrap_or(COLUMNS);

        // A smaller terminal scrolls, because fewer lines would hide what is wrong.
        let height = out.height.unwrap_or(LINES).max(LINES);

        // The terminal's last line contains the prompt.
        screen(&status, width, height - 1)
            .iter()
            .try_for_each(|line| out.styled(line))?;

        if flags.counters {
            counters(out, &status)?;
        }
        Ok(())
    })?;

    // Last, because the error that sets the exit code must follow a complete report.
    if status.health.state == Level::Problem {
        return Err(finding(summary(&status.health.reasons)));
    }
    Ok(())
}

/// `1 problem, 2 warnings`; or that there are none.
pub(in crate::cli) fn summary(reasons: &[Reason]) -> String {
    let counted =
        [(Level::Problem, "problem"), (Level::Warning, "warning")].map(|(level, name)| {
            let count = reasons
                .iter()
                .filter(|reason| reason.level == level)
                .count();
            (count > 0).then(|| format!("{count} {name}{}", if count == 1 { "" } else { "s" }))
        });

    let counted: Vec<String> = counted.into_iter().flatten().collect();

    if counted.is_empty() {
        "all is well".to_owned()
    } else {
        counted.join(", ")
    }
}

/// What a level of health says.
pub(in crate::cli) fn tone_of(level: Level) -> Tone {
    match level {
        Level::Ok => Tone::Good,
        Level::Warning => Tone::Warning,
        Level::Problem => Tone::Bad,
    }
}

/// The status in at most `height` lines of at most `width` columns.
fn screen(status: &Status, width: usize, height: usize) -> Vec<Line> {
    let health = &status.health;

    let name = format!(
        "saltcellar {}, up {}: ",
        status.version,
        span(status.uptime_s)
    );
    let mut lines = vec![Line::from(name).and(tone_of(health.state), summary(&health.reasons))];

    // What is wrong comes first: the lines below can be cut off.
    let left = height.saturating_sub(OTHER_LINES).max(REASON_LINES);
    lines.extend(reason_lines(
        &health.reasons,
        width,
        left,
        ", see --output json",
    ));

    lines.push(Line::default());

    for (name, text) in facts(status) {
        lines.extend(headed(
            Line::from(name),
            &broken(&plain(&text), room(width)),
        ));
    }

    // The blank line takes one.
    let left = height.saturating_sub(lines.len() + 1);
    let table = part_lines(status, width, left, ", see --output json");
    // Without room for a row there is no table, and nothing to separate.
    if table.len() > 1 {
        lines.push(Line::default());
    }
    lines.extend(table);

    // The minimum widths above may exceed a narrow terminal.
    lines.iter().map(|line| line.cut(width)).collect()
}

/// A table of the parts in at most `most` lines; `hint` says where those are that do not fit.
pub(in crate::cli) fn part_lines(
    status: &Status,
    width: usize,
    most: usize,
    hint: &str,
) -> Vec<Line> {
    let rows = parts(status);

    // The heading of the table takes a line.
    let hidden = rows.len().saturating_sub(most.saturating_sub(1));
    // One more row gives way to the line that counts hidden rows.
    let hidden = if hidden > 0 {
        (hidden + 1).min(rows.len())
    } else {
        0
    };

    let shown = rows
        .get(..rows.len().saturating_sub(hidden))
        .unwrap_or_default();

    let mut lines = Vec::new();
    if !shown.is_empty() {
        lines.extend(part_table(shown, width));
    }
    if hidden > 0 {
        lines.push(format!("and {hidden} more{hint}").into());
    }
    lines
}

/// A table of [`parts`].
fn part_table(rows: &[Vec<String>], width: usize) -> Vec<Line> {
    let columns = [
        Column::left("PART"),
        Column::middle_truncated("NAME"),
        Column::truncated("STATE").min_chars(9).toned(Tone::of_word),
        Column::truncated("LAG").min_chars(20),
    ];
    Table::new(columns).lines(rows, Some(width))
}

/// What is left of a line after its head, see [`headed`].
fn room(width: usize) -> usize {
    width.saturating_sub(9).max(20)
}

/// Lines with a head before the first of them.
fn headed(head: Line, lines: &[String]) -> impl Iterator<Item = Line> {
    let mut head = Some(head);
    lines.iter().map(move |text| {
        let head = head.take().unwrap_or_default();
        let padding = " ".repeat(9_usize.saturating_sub(width_of(&head.text())));
        head.and(Tone::Plain, padding)
            .and(Tone::Plain, text.as_str())
    })
}

/// The reasons, each broken into lines of at most `width` columns, as far as they fit into `most`
/// lines; `hint` says where the others are.
pub(in crate::cli) fn reason_lines(
    reasons: &[Reason],
    width: usize,
    most: usize,
    hint: &str,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for (n, reason) in reasons.iter().enumerate() {
        let level = if reason.level == Level::Problem {
            "PROBLEM"
        } else {
            "warning"
        };

        // Escaped before it is broken, because an escape is wider than the character that it
        // replaces.
        let text = plain(&format!("{}: {}", reason.part, reason.message)).into_owned();
        let broken = broken(&text, room(width));

        // Unless this is the last reason, a line stays free to count those that do not fit.
        let rest = reasons.len() - n;
        let left = most
            .saturating_sub(lines.len())
            .saturating_sub(usize::from(rest > 1));
        if broken.len() > left {
            lines.push(format!("         and {rest} more{hint}").into());
            break;
        }

        lines.extend(headed(Line::new(tone_of(reason.level), level), &broken));
    }

    lines
}

/// Breaks a string into at most three lines of at most `width` columns.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = wrapped(text, width, LongWords::Cut);

    // The rest of a long message is in the JSON output.
    if lines.len() > 3 {
        lines.truncate(3);
        if let Some(last) = lines.last_mut() {
            let cut = prefix(last.chars(), width.saturating_sub(1), usize::MAX);
            *last = cut.into_iter().chain(['\u{2026}']).collect();
        }
    }

    lines
}

fn facts(status: &Status) -> Vec<(&'static str, String)> {
    let (rates, disk) = (&status.rates, &status.disk);
    let [entries, returns, failed] = [
        rates.entries_per_1000_s,
        rates.returns_per_1000_s,
        rates.failed_per_1000_s,
    ]
    .map(rate);

    // No forecast means that retention bounds the growth.
    let left = match disk.days_left {
        Some(0) => "less than a day left".to_owned(),
        Some(days) => format!("{days} days left"),
        None => "growth is limited".to_owned(),
    };

    let [used, free, total, growth] = [
        disk.used_bytes,
        disk.free_bytes,
        disk.total_bytes,
        disk.bytes_per_day,
    ]
    .map(bytes);

    // The daemon remembers it since its start, and does not search the archive for it.
    let last = status.last_failure.as_ref().map_or_else(
        || "none since the start".to_owned(),
        |last| {
            let time = short_at(last.time);
            format!(
                "{time}  {} on {}, exit code {}, job {}",
                last.fun, last.minion, last.retcode, last.jid
            )
        },
    );

    let slot = status
        .slot
        .as_ref()
        .map(|slot| ("slot", format!("{slot}, of the job ids of this master")));

    let facts = [
        (
            "rates",
            format!("{entries} entries/s, {returns} returns/s, {failed} failed/s (last 5 minutes)"),
        ),
        (
            "disk",
            format!("{used} used, {free} free of {total}, +{growth} a day: {left}"),
        ),
        ("keeps", keeps(status)),
        ("failure", last),
    ];
    let cluster = status.cluster.as_ref().map(|row| ("cluster", part_of(row)));
    facts.into_iter().chain(slot).chain(cluster).collect()
}

/// The part of this master in a shared history.
fn part_of(row: &ClusterRow) -> String {
    format!(
        "{} of the history on stream {}, with {} other masters",
        row.name,
        row.stream,
        row.masters.len()
    )
}

/// How long each class keeps its entries, and since when it contains any.
fn keeps(status: &Status) -> String {
    let class = |row: &ClassRow| {
        let age = row.keep_s.map_or("forever".to_owned(), whole_days);
        let bytes = row
            .keep_bytes
            .map(|limit| format!("up to {}", bytes(limit)));
        let entries = row
            .keep_entries
            .map(|limit| format!("up to {limit} entries"));

        let limits: Vec<String> = [Some(age), bytes, entries].into_iter().flatten().collect();
        let since = row.oldest.map_or("no entries".to_owned(), |at| {
            format!("oldest entry {}", day_of(at))
        });

        format!("{} {}, {since}", row.class, limits.join(" "))
    };

    // An overflow shares the limits of its class.
    let proper = status
        .classes
        .iter()
        .filter(|row| !row.class.ends_with(OVERFLOW));

    let classes: Vec<String> = proper.map(class).collect();
    format!("{}; less if the disk is nearly full", classes.join("; "))
}

/// An age limit: in days, if it is some, because that is how people count what they keep.
fn whole_days(seconds: u64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        _ => span(seconds),
    }
}

/// Sources and readers, those with trouble first: part, name, state, lag.
fn parts(status: &Status) -> Vec<Vec<String>> {
    let mut rows: Vec<(bool, Vec<String>)> = Vec::new();
    let mut add = |is_bad: bool, part: &str, name: &str, state: &str, lag: String| {
        // Sorts rows with trouble first, because `false` comes before `true`.
        rows.push((
            !is_bad,
            vec![part.to_owned(), name.to_owned(), state.to_owned(), lag],
        ));
    };

    let behind = |entries: u64, seconds: u64| match entries {
        0 => "-".to_owned(),
        _ => format!("{entries} entries, {}", span(seconds)),
    };

    // Waiting events are a problem even on a connected bus: the store does not keep up.
    for bus in &status.bus {
        let waiting = bus.waiting_events + bus.spilled_events;
        let lag = if waiting == 0 {
            "-".to_owned()
        } else {
            format!("{waiting} events waiting")
        };
        let state = if bus.connected {
            "connected"
        } else {
            "not connected"
        };
        add(!bus.connected || waiting > 0, "bus", &bus.path, state, lag);
    }

    if let Some(https) = &status.https {
        let peers = format!("{} connections", https.peers);
        add(
            https.problem.is_some(),
            "https",
            &https.listen,
            https.state.name(),
            peers,
        );
    }

    if let Some(http) = &status.http {
        add(
            http.problem.is_some(),
            "http",
            &http.listen,
            http.state.name(),
            "-".to_owned(),
        );
    }

    // Restarts are shown, because a process that keeps ending looks well between two of them.
    for source in &status.zeromq {
        let state = if source.process.is_some() {
            source.source.name()
        } else {
            "not running"
        };
        add(
            source.process.is_none(),
            "zeromq",
            &source.path,
            state,
            format!("{} restarts", source.restarts),
        );
    }

    // Anything in a spool means that the extension could not reach the daemon.
    for spool in &status.spools {
        let state = if spool.problem.is_some() {
            "unreadable"
        } else {
            "ok"
        };
        let lag = match spool.waiting_bytes {
            0 => "-".to_owned(),
            n => format!("{} waiting", bytes(n)),
        };
        add(
            spool.problem.is_some() || spool.waiting_bytes > 0,
            "spool",
            &spool.dir,
            state,
            lag,
        );
    }

    // What matters more comes first: in shadow mode nothing acts, whatever else is wrong.
    if let Some(reactor) = &status.reactions {
        let state = if reactor.shadow {
            "shadow"
        } else if reactor.blocked.is_some() {
            "inactive"
        } else if reactor.master_unreachable {
            "waiting"
        } else if reactor.election.as_ref().is_some_and(|one| !one.leads) {
            "standby"
        } else {
            "active"
        };
        // In a cluster every master's bus carries all events.
        let leader = reactor
            .election
            .as_ref()
            .and_then(|election| election.leader.as_deref());
        let name = match leader {
            Some(leader) => format!("{} leads", plain(leader)),
            None if reactor.cluster_id.is_some() => "events of this master".to_owned(),
            None => String::new(),
        };
        let lag = format!("{} behind, {} open", reactor.behind, reactor.open);
        let is_hindered = reactor.hindrance().is_some() || reactor.master_unreachable;
        add(is_hindered, "reactor", &name, state, lag);
    }

    // Dead letters are trouble even while deliveries succeed: only a person can decide about them.
    for sink in &status.sinks {
        let lag = match (behind(sink.lag_entries, sink.lag_s), sink.dead_letters) {
            (lag, 0) => lag,
            (lag, dead) if lag == "-" => format!("{dead} dead letters"),
            (lag, dead) => format!("{lag}, {dead} dead letters"),
        };
        add(
            sink.failures > 0 || sink.dead_letters > 0 || sink.state == Phase::Failed,
            "sink",
            &sink.name,
            sink.state.name(),
            lag,
        );
    }

    if let Some(cluster) = &status.cluster {
        let state = if cluster.not_reading.is_some() {
            "not reading"
        } else {
            "reading"
        };
        let is_bad = cluster.not_reading.is_some();
        add(is_bad, "cluster", &cluster.stream, state, "-".to_owned());

        // Trouble until all of its entries are here, because lists of jobs are incomplete until
        // then.
        for master in &cluster.masters {
            let state = state_of(master);
            let lag = master.behind_s.map_or("-".to_owned(), |behind_s| {
                format!("{} behind", span(behind_s))
            });
            add(!master.complete, "master", &master.name, state, lag);
        }
    }

    for script in &status.scripts {
        add(
            script.failures > 0 || script.state == ScriptState::Failed,
            "script",
            &script.name,
            script.state.name(),
            format!("{} failures", script.failures),
        );
    }

    // A consumer reads when it likes, so only lost entries are trouble.
    for consumer in &status.consumers {
        let state = if consumer.paused { "paused" } else { "active" };
        add(
            consumer.lost > 0,
            "consumer",
            &consumer.name,
            state,
            behind(consumer.lag_entries, consumer.lag_s),
        );
    }

    // The sort is stable: rows keep the order above among their kind.
    rows.sort_by_key(|(is_well, _)| *is_well);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// What is known of another master of the shared history.
fn state_of(master: &MasterRow) -> &'static str {
    match master.heard_s {
        _ if master.complete => "complete",
        _ if master.gone => "gone",
        Some(heard_s) if heard_s <= CLUSTER_AWAY.as_secs() => "behind",
        _ => "not heard",
    }
}

/// The counters that are not zero, grouped by the first word of their names.
fn counters(out: &mut Output, status: &Status) -> anyhow::Result<()> {
    let mut group = "";
    let mut rows = Vec::new();

    for (name, value) in status.counters.iter().filter(|(_, value)| **value > 0) {
        let own = name.split('_').next().unwrap_or_default();
        // A subject is shown only next to the first of its counters.
        let head = if own == group {
            String::new()
        } else {
            own.to_owned()
        };

        group = own;
        rows.push(vec![head, name.clone(), value.to_string()]);
    }

    out.line("")?;
    let columns = [
        Column::left("SUBJECT"),
        Column::left("COUNTER"),
        Column::right("VALUE"),
    ];
    Ok(Table::new(columns).print(out, &rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::status::{
        BusRow, ConsumerRow, Disk, Health, LastFailure, ReactorRow, SinkRow,
    };
    use crate::base::clock::Micros;
    use crate::wire::msgpack::Time;

    fn status(parts: usize, reasons: usize) -> Status {
        let long = "x".repeat(300);
        let reason = |n: usize| Reason {
            level: if n == 0 {
                Level::Problem
            } else {
                Level::Warning
            },
            part: format!("sink {n}"),
            message: format!("the destination refuses connections since yesterday {long}"),
        };
        let sink = |n: usize| SinkRow {
            name: format!("{n}-{long}"),
            state: Phase::Idle,
            lag_entries: 1,
            ..SinkRow::default()
        };
        let reasons: Vec<_> = (0..reasons).map(reason).collect();
        let state = reasons.first().map_or(Level::Ok, |reason| reason.level);
        Status {
            version: "0.1.0".to_owned(),
            health: Health { state, reasons },
            disk: Disk {
                days_left: Some(9),
                ..Disk::default()
            },
            last_failure: Some(LastFailure {
                fun: long.clone(),
                minion: "\x1b[2J".to_owned(),
                ..LastFailure::default()
            }),
            bus: vec![BusRow {
                path: "/run/salt/master".to_owned(),
                ..BusRow::default()
            }],
            sinks: (0..parts).map(sink).collect(),
            consumers: vec![ConsumerRow {
                name: "audit".to_owned(),
                ..ConsumerRow::default()
            }],
            ..Status::default()
        }
    }

    /// The lines without colours.
    fn screen(status: &Status, width: usize, height: usize) -> Vec<String> {
        let lines = super::screen(status, width, height);
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn any_status_fits_a_small_terminal() {
        for (parts, reasons) in [(0, 0), (3, 1), (5, 3), (200, 0), (200, 200)] {
            let lines = screen(&status(parts, reasons), 80, 24);
            assert!(lines.len() <= 24, "{} lines: {lines:#?}", lines.len());
            for line in &lines {
                assert!(
                    line.chars().count() <= 80 && !line.contains('\x1b'),
                    "{line}"
                );
            }
            assert!(
                lines.iter().any(|line| line.contains("/run/salt/master")),
                "{lines:#?}"
            );
        }
    }

    #[test]
    fn hidden_rows_and_reasons_are_counted() {
        let lines = screen(&status(200, 12), 80, 24);
        assert!(
            lines
                .first()
                .is_some_and(|line| line.ends_with(": 1 problem, 11 warnings")),
            "{lines:#?}"
        );
        let shown = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert!(
            lines.iter().any(|line| line.trim()
                == format!("and {} more, see --output json", 12 - shown("refuses")))
        );
        let is_row = |line: &&String| {
            ["sink ", "bus ", "consumer "]
                .iter()
                .any(|part| line.starts_with(part))
        };
        let rows = lines.iter().filter(is_row).count();
        assert!(
            lines
                .iter()
                .any(|line| *line == format!("and {} more, see --output json", 202 - rows)),
            "{lines:#?}"
        );
    }

    #[test]
    fn without_room_for_rows_all_of_them_are_counted() {
        let lines = screen(&status(1, 0), 80, 1);
        assert_eq!(
            lines.last().map(String::as_str),
            Some("and 3 more, see --output json"),
            "{lines:#?}"
        );
    }

    #[test]
    fn a_reactor_that_cannot_act_comes_before_parts_that_are_well() {
        let first = |shadow: bool| {
            let status = Status {
                bus: vec![BusRow {
                    connected: true,
                    ..BusRow::default()
                }],
                reactions: Some(ReactorRow {
                    blocked: Some("records cannot be written".to_owned()),
                    shadow,
                    ..ReactorRow::default()
                }),
                ..Status::default()
            };
            parts(&status).remove(0).remove(0)
        };
        assert_eq!(first(false), "reactor");
        assert_eq!(first(true), "bus", "shadow mode is a choice");
    }

    #[test]
    fn the_slot_of_one_of_several_masters_is_shown() {
        let mut status = status(0, 0);
        let shown = |status: &Status| {
            let lines = screen(status, 80, 24);
            lines.into_iter().find(|line| line.starts_with("slot"))
        };
        assert_eq!(shown(&status), None);
        status.slot = Some("2/3".to_owned());
        assert_eq!(
            shown(&status).as_deref(),
            Some("slot     2/3, of the job ids of this master")
        );
    }

    #[test]
    fn the_other_masters_of_a_shared_history_are_rows_those_behind_first() {
        let master = |name: &str, heard_s: u64, behind_s: u64| MasterRow {
            name: name.to_owned(),
            complete: behind_s <= 10,
            gone: heard_s > 9_000,
            heard_s: Some(heard_s),
            behind_s: Some(behind_s),
            ..MasterRow::default()
        };
        let cluster = ClusterRow {
            name: "a".to_owned(),
            stream: "s".to_owned(),
            masters: vec![
                master("b", 1, 2),
                master("c", 1, 240),
                master("d", 60, 60),
                master("e", 9_001, 9_001),
            ],
            ..ClusterRow::default()
        };
        let status = Status {
            cluster: Some(cluster),
            ..Status::default()
        };
        let rows: Vec<String> = parts(&status).iter().map(|row| row.join(" ")).collect();
        assert_eq!(
            rows,
            [
                "master c behind 4m behind",
                "master d not heard 60s behind",
                "master e gone 2h behind",
                "cluster s reading -",
                "master b complete 2s behind",
            ]
        );
        let facts = facts(&status);
        assert_eq!(
            facts.last(),
            Some(&(
                "cluster",
                "a of the history on stream s, with 4 other masters".to_owned()
            ))
        );
    }

    #[test]
    fn each_class_states_its_age_limit_and_its_oldest_entry() {
        let row = |class: &str, keep_s, oldest: Option<i64>| ClassRow {
            class: class.to_owned(),
            keep_s,
            oldest: oldest.map(|at| Time(Micros(at))),
            ..ClassRow::default()
        };
        let status = Status {
            classes: vec![
                row("jobs", Some(7_776_000), Some(1_788_220_800_000_000)),
                row("polling", Some(3_600), None),
                row("audit", None, Some(1_788_220_800_000_000)),
            ],
            ..Status::default()
        };
        assert_eq!(
            keeps(&status),
            "jobs 90 days, oldest entry 2026-09-01; polling 60m, no entries; audit forever, oldest entry 2026-09-01; less if the disk is nearly full"
        );
    }

    #[test]
    fn reasons_break_at_spaces() {
        assert_eq!(broken("one two three", 8), ["one two", "three"]);
        assert_eq!(broken("0123456789ab cd", 8), ["01234567", "89ab cd"]);
        assert_eq!(broken("a b c d e f", 1), ["a", "b", "\u{2026}"]);
    }
}
