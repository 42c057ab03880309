//! The daemon: its socket, its version, and what it reports of itself.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::check::{Check, Daemon, Run};
use super::finding::{CheckResult, Findings, is_denied};
use crate::api::call::status::{
    BusRow, ClockStep, Level, LossCounter, Reason, Status, loss_counters,
};
use crate::api::call::store::Space;
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::{Client, ClientError};
use crate::base::units::bytes;
use crate::base::users;
use crate::cli::store::tool::count;
use crate::config::Config;
use crate::store::free_space::SpaceLevel;
use crate::wire::unix_listener;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "socket",
        not_ok_when: "it does not exist, its mode is not the configured one, or other users can connect to it or replace it",
        run: Run::ByAnother,
    },
    Check {
        name: "daemon",
        not_ok_when: "no daemon responds, or its version differs",
        run: Run::ByAnother,
    },
    Check {
        name: "status",
        not_ok_when: "the daemon reports a reason of [its status](#reasons-of-status) that no other check covers",
        run: Run::ByAnother,
    },
    Check {
        name: "store",
        not_ok_when: "there is little room, or none",
        run: Run::Daemon(check_store),
    },
    Check {
        name: "clock",
        not_ok_when: "the system clock was set, or the daemon was stopped for more than a day: deletion by age does not trust the clock yet, see [STORE.md](STORE.md#after-the-clock-was-set)",
        run: Run::ByAnother,
    },
    Check {
        name: "bus",
        not_ok_when: "the daemon is not connected to a configured bus",
        run: Run::Daemon(check_buses),
    },
    Check {
        name: "counters",
        not_ok_when: "the daemon has counted losses, damage or rejections since its start",
        run: Run::Daemon(check_counters),
    },
];

pub(super) fn check_socket(found: &mut Findings, socket: &Path, config: &Config) {
    let mut found = found.of("socket");

    let at = socket.display();

    // Not followed, because the owner of a link decides where it leads.
    let file = match std::fs::symlink_metadata(socket) {
        Ok(file) if file.file_type().is_socket() => file,
        Ok(_) => {
            return found.problem(format!(
                "{at} is not a socket; remove it or configure another path"
            ));
        }
        Err(error) if is_denied(&error) => return found.needs_root(at),
        Err(error) => return found.problem(format!("{at}: {error}")),
    };

    // Who can replace the socket, or a directory above it, can receive the master's entries.
    let mode = file.mode() & 0o777;
    let gid = config.socket_group.as_deref().and_then(users::group_id);
    let dir = socket.parent().unwrap_or(Path::new("/"));

    let looked = unix_listener::directory_problems(dir, file.uid(), mode, gid).and_then(|of_dir| {
        Ok([
            of_dir,
            unix_listener::parent_problems(dir, "the socket's directory", file.uid())?,
        ]
        .concat())
    });

    let concerns = match looked {
        Ok(concerns) => concerns,
        Err(error) if is_denied(&error) => {
            return found.needs_root(format!("the directory of {at}"));
        }
        Err(error) => {
            return found.problem(format!("cannot inspect the directory of {at}: {error}"));
        }
    };

    let wanted = config.socket_mode.0;
    if mode != wanted {
        let message =
            format!("{at} has mode {mode:04o}, but {wanted:04o} is configured: restart the daemon");
        found.warn(message);
    }

    for concern in &concerns {
        let result = if concern.fatal {
            CheckResult::Problem
        } else {
            CheckResult::Warning
        };
        found.add(result, concern.to_string());
    }

    if concerns.is_empty() {
        let (uid, gid) = (file.uid(), file.gid());
        found.ok(format!("{at}, mode {mode:04o}, owner {uid}, group {gid}"));
    }
}

pub(super) fn ask(socket: &Path) -> Result<(Client, Status), ClientError> {
    let mut client = Client::connect(socket)?;
    let status = client.make::<calls::status::Show>(&NoArgs {})?;
    Ok((client, status))
}

/// Parts of the daemon with a check that shows more detail than the reasons of `status`: how the
/// part begins, and the names of the checks.
const CHECKED_PARTS: [(&str, &[&str]); 8] = [
    ("disk", &["store"]),
    ("bus ", &["bus"]),
    ("spool ", &["spool"]),
    ("reactor", &["reactor", "reactions"]),
    ("sink ", &["sinks"]),
    ("clock", &["clock"]),
    ("master keys", &["master_keys"]),
    ("since the start", &["counters"]),
];

/// Reports the reasons of `status`, because `doctor` must never find less than `status`. Comes last:
/// a reason is left out only if the check of its part found something as bad.
pub(super) fn check_reasons(found: &mut Findings, status: &Status) {
    for Reason {
        level,
        part,
        message,
    } in &status.health.reasons
    {
        let result = match level {
            Level::Problem => CheckResult::Problem,
            Level::Warning => CheckResult::Warning,
            Level::Ok => CheckResult::Ok,
        };

        let checks = CHECKED_PARTS
            .iter()
            .find(|(start, _)| part.starts_with(start))
            .map_or(&[][..], |(_, checks)| checks);
        if checks
            .iter()
            .any(|check| found.worst(check) >= Some(result))
        {
            continue;
        }

        found.of("status").add(result, format!("{part}: {message}"));
    }
}

/// Checks that the daemon is reachable and of the same version as this program.
pub(super) fn check_daemon(
    found: &mut Findings,
    answer: Result<(Client, Status), ClientError>,
) -> Option<(Client, Status)> {
    let mut found = found.of("daemon");

    let (client, status): (_, Status) = match answer {
        Ok(answer) => answer,
        // Another protocol: nothing more can be requested.
        Err(ClientError::Refused { code, message }) if code == "version" => {
            found.problem(format!("{message}: update the older one"));
            return None;
        }
        // Not running, no access, or no response in time: the error says which.
        Err(error) => {
            found.problem(error.to_string());
            return None;
        }
    };

    // Only equal versions are tested together.
    let (theirs, ours) = (&status.version, env!("CARGO_PKG_VERSION"));
    if theirs == ours {
        let Status {
            pid,
            uptime_s,
            slot,
            ..
        } = &status;
        let slot = slot
            .as_ref()
            .map_or_else(String::new, |slot| format!(", slot {slot} of job ids"));
        found.ok(format!(
            "version {theirs}, pid {pid}, up for {uptime_s} s{slot}"
        ));
    } else {
        found.warn(format!(
            "the daemon has version {theirs}, this program {ours}: restart the daemon, or update the older one"
        ));
    }

    Some((client, status))
}

fn check_store(found: &mut Findings, daemon: &mut Daemon<'_>) {
    let client = &mut daemon.client;
    let mut found = found.of("store");
    // The daemon is asked instead of the file system, because it decides by its own limits.
    let stats = match client.make::<calls::store::Stats>(&NoArgs {}) {
        Ok(answer) => answer,
        Err(error) => return found.problem(error.to_string()),
    };

    let Space {
        state,
        free_bytes,
        low_bytes,
        min_bytes,
        ..
    } = &stats.space;

    let (result, what) = match state {
        SpaceLevel::Ample => (CheckResult::Ok, "enough free space"),
        SpaceLevel::Low => (
            CheckResult::Warning,
            "little free space: the oldest segments are deleted early; enlarge the disk or lower `keep` in `store.classes`",
        ),
        SpaceLevel::Full => (
            CheckResult::Problem,
            "no free space: entries are rejected and the extension spools them; free some space, or run `saltcellar store prune`",
        ),
    };

    let [free, low, min] = [*free_bytes, *low_bytes, *min_bytes].map(bytes);
    let numbers = format!("{free} free, low below {low}, full below {min}");
    found.add(result, format!("{}: {what} ({numbers})", stats.state_dir));

    check_clock(found.found, stats.clock_step.as_ref());
}

/// Steps of the system clock, which delay deletion by age.
fn check_clock(found: &mut Findings, step: Option<&ClockStep>) {
    let mut found = found.of("clock");
    let Some(&ClockStep { ahead_s, wait_s }) = step else {
        return found.ok("deletion by age uses the system clock");
    };

    let (by, wait) = (duration(ahead_s.unsigned_abs()), duration(wait_s));
    let direction = if ahead_s < 0 { "behind" } else { "ahead of" };

    found.warn_because(
        format!(
            "the system clock is {by} {direction} the expected time: it was set, or the daemon was stopped for long; \
             deletion by age uses the earlier of both times for another {wait}"
        ),
        "if the clock is wrong, entries would be deleted that are not old",
        "if the clock is right: `saltcellar store prune`; if not, set the clock",
    );
}

/// Formats a duration in its two largest units.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn check_buses(found: &mut Findings, daemon: &mut Daemon<'_>) {
    let status = &daemon.status;
    let mut found = found.of("bus");

    for BusRow {
        path,
        connected,
        events,
        ..
    } in &status.bus
    {
        // Otherwise only a warning, because a master that is stopped on purpose has no bus.
        if *connected {
            found.ok(format!("{path}, {}", count(*events, "event", "events")));
        } else {
            found.warn(format!(
                "{path} is not connected: is the master running, and does the daemon's user have access?"
            ));
        }
    }
}

fn check_counters(found: &mut Findings, daemon: &mut Daemon<'_>) {
    losses(found, &daemon.status);
}

fn losses(found: &mut Findings, status: &Status) {
    // Only if nothing is added below, all is well.
    let before = found.0.len();

    for LossCounter {
        name,
        level,
        meaning,
    } in loss_counters()
    {
        // A daemon of another release may lack a counter.
        let n = status.counters.get(name).copied().unwrap_or(0);

        if n > 0 {
            let result = if level == Level::Problem {
                CheckResult::Problem
            } else {
                CheckResult::Warning
            };
            found
                .of("counters")
                .add(result, format!("{name} is {n}: {meaning}"));
        }
    }

    if found.0.len() == before {
        found
            .of("counters")
            .ok("no damage and no loss since the daemon started");
    }
}

/// The daemon's uid: the owner of its socket, or without a socket the uid of this process.
pub(super) fn daemon_uid(socket: &Path) -> u32 {
    std::fs::symlink_metadata(socket)
        .map_or_else(|_| rustix::process::geteuid().as_raw(), |file| file.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::status::health;
    use crate::base::clock::Micros;

    #[test]
    fn a_reason_of_status_is_left_out_only_if_the_check_of_its_part_found_as_much() {
        let reason = |level, part: &str| Reason {
            level,
            part: part.to_owned(),
            message: "stalled".to_owned(),
        };
        let reported = |reason: &Reason, check, result| {
            let mut status = Status::default();
            status.health.reasons = vec![reason.clone()];
            let mut found = Findings::default();
            found.of(check).add(result, "its own");
            check_reasons(&mut found, &status);
            found
                .0
                .iter()
                .skip(1)
                .map(|one| one.result)
                .collect::<Vec<_>>()
        };
        let problem = reason(Level::Problem, "disk");
        assert_eq!(reported(&problem, "store", CheckResult::Problem), []);
        for result in [CheckResult::Ok, CheckResult::Skipped, CheckResult::Warning] {
            assert_eq!(reported(&problem, "store", result), [CheckResult::Problem]);
        }
        assert_eq!(
            reported(&problem, "bus", CheckResult::Problem),
            [CheckResult::Problem],
            "another check"
        );

        let warning = reason(Level::Warning, "reactor");
        for (check, left_out) in [
            ("reactor", true),
            ("reactor.loops", true),
            ("reactors", false),
        ] {
            let reported = reported(&warning, check, CheckResult::Warning);
            assert_eq!(reported.is_empty(), left_out, "{check}");
        }

        let other = reason(Level::Warning, "log");
        assert_eq!(
            reported(&other, "log", CheckResult::Problem),
            [CheckResult::Warning],
            "no check is known"
        );
    }

    #[test]
    fn a_counter_of_loss_is_for_doctor_what_it_is_for_status() {
        for LossCounter { name, .. } in loss_counters() {
            let status = Status {
                counters: [(name.to_owned(), 1)].into(),
                ..Status::default()
            };
            let mut found = Findings::default();
            losses(&mut found, &status);
            let [finding] = found.0.as_slice() else {
                panic!("{name}: {} findings", found.0.len());
            };

            let reasons = health(&status, Micros(0)).reasons;
            let reason = reasons.iter().find(|one| one.message == finding.message);
            let expected = match reason.unwrap().level {
                Level::Problem => CheckResult::Problem,
                Level::Warning => CheckResult::Warning,
                Level::Ok => CheckResult::Ok,
            };
            assert_eq!(finding.result, expected, "{name}");
        }
    }
}
