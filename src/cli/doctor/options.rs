//! Checks of the master's options for events and jobs, each named after its option.

use salt_sls::Value;

use super::check::{Check, Run};
use super::finding::{CheckResult, Findings};
use super::master_use::{MasterContext, Uses, option_origin};

use crate::cli::yaml;
use crate::model::Age;
use crate::model::word::Word as _;

/// Salt's default of `max_event_size`, in bytes.
const MAX_EVENT_SIZE: i64 = 1_048_576;
/// Recommended `event_return_queue`, in events.
const EVENT_RETURN_QUEUE: i64 = 1000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "ipc_write_buffer",
        not_ok_when: "it is set: a reader of the bus that pauses then loses events",
        run: Run::Master(ipc_write_buffer),
    },
    Check {
        name: "ipc_mode",
        not_ok_when: "it is `tcp`: there is no socket for the daemon to read",
        run: Run::Master(ipc_mode),
    },
    Check {
        name: "event_return",
        not_ok_when: "events are archived neither by it nor from the bus; or it names saltcellar in addition to the bus that the daemon reads",
        run: Run::Master(event_return),
    },
    Check {
        name: "event_return_queue",
        not_ok_when: "`event_return` makes one call per event",
        run: Run::ByAnother,
    },
    Check {
        name: "event_return_queue_max_seconds",
        not_ok_when: "events wait in Salt's queue without limit",
        run: Run::ByAnother,
    },
    Check {
        name: "max_event_size",
        not_ok_when: "Salt trims events before they can be stored, or accepts larger ones than the store does",
        run: Run::Master(max_event_size),
    },
    Check {
        name: "job_cache",
        not_ok_when: "returns are not handed to the job cache",
        run: Run::Master(job_cache),
    },
    Check {
        name: "ext_job_cache",
        not_ok_when: "returns go elsewhere, or minions must deliver them",
        run: Run::Master(ext_job_cache),
    },
    Check {
        name: "job_cache_store_endtime",
        not_ok_when: "each return costs another call",
        run: Run::Master(job_cache_store_endtime),
    },
    Check {
        name: "keep_jobs_seconds",
        not_ok_when: "jobs are kept forever, or the store drops them sooner than Salt is configured to; otherwise for how long they are kept",
        run: Run::Master(keep_jobs_seconds),
    },
];

fn ipc_write_buffer(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "ipc_write_buffer";
    let mut found = found.of(CHECK);

    let MasterContext { master, .. } = context;

    // A number, or the word `dynamic`.
    let is_set = match master.option(CHECK) {
        Some(Value::Int(bytes)) => *bytes != 0,
        Some(Value::Str(word)) => !word.is_empty() && word != "0",
        _ => false,
    };

    if is_set {
        // Only readers of the bus lose events by it.
        let result = if uses.bus {
            CheckResult::Problem
        } else {
            CheckResult::Warning
        };
        found.advise(
            result,
            format!("{CHECK} is set ({})", option_origin(master, CHECK)),
            "on Salt 3006 a slow reader of the bus then loses events without a log message; on 3008 it is \
            disconnected and loses events until it reconnects",
            format!("{CHECK}: 0"),
        );
    }
}

fn ipc_mode(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "ipc_mode";
    let mut found = found.of(CHECK);
    let MasterContext { master, .. } = context;

    if master.text(CHECK) == Some("tcp") {
        // Without `bus` the daemon misses nothing, but the port is open to every user.
        let result = if uses.bus {
            CheckResult::Problem
        } else {
            CheckResult::Warning
        };
        found.advise(
            result,
            format!("{CHECK} is tcp ({})", option_origin(master, CHECK)),
            "the master's bus is then a TCP port, open to every user of this host, instead of the socket in sock_dir \
            that the daemon reads",
            format!("{CHECK}: ipc; or `event_return: saltcellar` instead of `bus` in the daemon's configuration"),
        );
    }
}

/// The path by which events arrive, and its cost in calls.
fn event_return(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    let MasterContext { master, .. } = context;

    match (uses.event_return, uses.bus) {
        (false, true) => found.of("event_return").ok("the daemon reads the bus directly"),
        // There is a separate finding for a master that does not use saltcellar at all.
        (false, false) if !uses.job_cache && !uses.ext_job_cache => {}
        (false, false) => found.of("event_return").warn_because(
            "events of this master are not archived: the daemon does not read its bus, and event_return does not name saltcellar",
            "only jobs and returns are stored; `saltcellar events list` shows no events, and the reactor receives none",
            format!("`bus: [{}]` in the daemon's configuration, then restart it", yaml::inline_path(&master.sock_dir)),
        ),
        (true, true) => found.of("event_return").warn_because(
            format!("event_return ({}) is redundant: the daemon reads the bus", option_origin(master, "event_return")),
            "each event is stored once but arrives twice: event_return needs a hundred times the CPU time of the bus",
            "remove saltcellar from event_return",
        ),
        (true, false) => found.of("event_return").ok("events arrive by event_return"),
    }

    if !uses.event_return {
        return;
    }

    // The defaults are Salt's.
    let queue = master.int("event_return_queue").unwrap_or(0);
    let seconds = master.int("event_return_queue_max_seconds").unwrap_or(0);
    // Zero and one both mean a call for each event.
    if queue < 2 {
        found.of("event_return_queue").warn_because(
            format!("event_return_queue is {queue}: one call per event, and each waits for the disk"),
            "Salt's only process for events falls behind on a busy master; then the bus buffers in memory (3006), or disconnects \
            it after 60 s (3007, 3008), and events are lost",
            format!("event_return_queue: {EVENT_RETURN_QUEUE}, event_return_queue_max_seconds: 1"),
        );
    } else if seconds == 0 {
        // Only the time bounds what a killed master loses.
        found.of("event_return_queue_max_seconds").warn_because(
            format!("event_return_queue is {queue}, without a limit on waiting time"),
            "the queue is flushed only when it is full, and lost if the master is killed",
            "event_return_queue_max_seconds: 1",
        );
    }
}

fn max_event_size(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "max_event_size";
    let mut found = found.of(CHECK);
    let MasterContext { master, config, .. } = context;

    // Unset means Salt's default, which the remedy below restores.
    let Some(size) = master.int(CHECK) else {
        return;
    };

    // A limit beyond `i64` cannot be exceeded by an option of Salt.
    let entry_max = i64::try_from(config.store.entry_bytes_max).unwrap_or(i64::MAX);

    if size > entry_max {
        found.warn_because(
            format!(
                "{CHECK} is {size} ({}), but the store's limit for an entry is {entry_max} bytes",
                option_origin(master, CHECK)
            ),
            "larger events and returns are rejected and counted (entries_rejected_too_large)",
            format!("{CHECK}: {entry_max}, or a larger store.entry_bytes_max in the daemon's configuration"),
        );
    } else if size < MAX_EVENT_SIZE && (uses.bus || uses.event_return) {
        found.warn_because(
            format!("{CHECK} is {size} ({})", option_origin(master, CHECK)),
            "Salt replaces large values of an event with VALUE_TRIMMED before it reaches the store",
            format!("{CHECK}: {MAX_EVENT_SIZE}"),
        );
    }
}

fn job_cache(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "job_cache";
    let mut found = found.of(CHECK);
    let MasterContext { master, .. } = context;

    if uses.job_cache && !master.flag(CHECK) {
        found.problem_because(
            format!("{CHECK} is False ({})", option_origin(master, CHECK)),
            "Salt then stores only published jobs in the job cache, not returns",
            format!("{CHECK}: True"),
        );
    }
}

fn ext_job_cache(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "ext_job_cache";
    let mut found = found.of(CHECK);
    let MasterContext { master, config, .. } = context;

    let named = master.text(CHECK).unwrap_or_default();
    if named.is_empty() {
        return;
    }

    if !uses.ext_job_cache {
        // Only a master with saltcellar as its job cache loses something by it.
        if uses.job_cache {
            found.problem_because(
                format!("{CHECK} is {named} ({})", option_origin(master, CHECK)),
                "the master then stores no returns in master_job_cache, and reads from ext_job_cache first",
                format!("remove {CHECK}, or {CHECK}: saltcellar"),
            );
        }

        return;
    }

    // It matters only to minions of other hosts whether the daemon accepts them.
    let source = config.serves_minions();
    found.warn_because(
        format!(
            "{CHECK} is saltcellar ({}): minions send their returns directly, the master stores none",
            option_origin(master, CHECK)
        ),
        if source {
            "returns of minions without the extension or without saltcellar.url are lost"
        } else {
            "the daemon does not accept minions of other machines: neither https.listen nor http.minions is set"
        },
        "master_job_cache: saltcellar alone, which stores all returns without setup on minions",
    );
}

fn job_cache_store_endtime(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "job_cache_store_endtime";
    let mut found = found.of(CHECK);
    let MasterContext { master, .. } = context;

    // A hint, not a fault: some programs read the time of the end.
    if uses.job_cache && master.flag(CHECK) {
        found.warn_because(
            format!("{CHECK} is on ({})", option_origin(master, CHECK)),
            "one more call per return; saltcellar records the time of each return anyway",
            format!("{CHECK}: False, unless something reads EndTime from jobs.list_jobs"),
        );
    }
}

/// Retention of jobs by Salt's option and by the store's classes.
fn keep_jobs_seconds(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const CHECK: &str = "keep_jobs_seconds";
    let mut found = found.of(CHECK);
    let MasterContext { master, config, .. } = context;

    let Some(keep) = config
        .store
        .classes
        .iter()
        .find(|class| class.name == "jobs")
        .map(|class| class.keep)
    else {
        // Nothing keeps jobs.
        return;
    };

    let is_bounded = keep.is_bounded();
    // Salt's default is a day.
    let salts = master.int(CHECK).unwrap_or(86_400);

    match keep.age {
        // Nothing reports Salt's option to the daemon, and nothing else bounds the class.
        Age::Salt if !uses.job_cache && !is_bounded => found.warn_because(
            "the store's retention of jobs follows Salt's, which is unknown",
            "only a master whose job cache is saltcellar reports keep_jobs_seconds: jobs are kept forever",
            "store.classes: [{name: jobs, keep: {age: 90d or salt}}] in the daemon's configuration",
        ),
        // Zero means forever in Salt.
        Age::Salt | Age::AtLeastSalt(_) if uses.job_cache && salts == 0 && !is_bounded => found.warn_because(
            format!("{CHECK} is 0 ({}): jobs are kept forever", option_origin(master, CHECK)),
            "the disk fills up, and the oldest jobs are then dropped without notice",
            format!("{CHECK}: 2592000 (30 days), or a byte limit for the class jobs in store.classes"),
        ),
        Age::For(age) if uses.job_cache && (salts == 0 || age.as_secs() < salts.unsigned_abs()) => found.warn_because(
            format!("{CHECK} is {}, but the store keeps jobs for {} s", forever(salts), age.as_secs()),
            "the store's setting takes precedence: jobs expire earlier than the master's configuration specifies",
            format!("age: {} or salt for the class jobs in store.classes, for the longer of both", age.show().unwrap_or_default()),
        ),
        age => {
            // Only a master whose job cache is saltcellar reports its option.
            let reported = uses.job_cache.then(|| salts.unsigned_abs());
            found.ok(kept(age, reported, is_bounded));
        }
    }
}

/// For how long jobs are kept, given the `keep_jobs_seconds` that the daemon knows.
fn kept(age: Age, reported: Option<u64>, is_bounded: bool) -> String {
    let by_class = "the class jobs in store.classes";

    let limit = match (age, reported) {
        // Zero means forever in Salt.
        (Age::Forever, _) | (Age::Salt, None | Some(0)) | (Age::AtLeastSalt(_), Some(0)) => None,
        (Age::For(age), _) | (Age::AtLeastSalt(age), None) => Some((age.as_secs(), by_class)),
        (Age::AtLeastSalt(age), Some(salts)) => Some((age.as_secs().max(salts), by_class)),
        (Age::Salt, Some(salts)) => Some((salts, "keep_jobs_seconds")),
    };

    match (limit, is_bounded) {
        (Some((seconds, by)), false) => format!("jobs are kept for {seconds} s, by {by}"),
        (Some((seconds, by)), true) => format!(
            "jobs are kept for {seconds} s, by {by}, or up to the other limits of their class"
        ),
        (None, true) => "jobs are kept up to the limits of their class".to_owned(),
        (None, false) => format!("jobs are kept forever, by {by_class}"),
    }
}

fn forever(seconds: i64) -> String {
    if seconds == 0 {
        "0 (forever)".to_owned()
    } else {
        format!("{seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_are_kept_by_the_limits_in_effect() {
        let class = "the class jobs in store.classes";
        let days = Age::AtLeastSalt(Duration::from_secs(90));
        let fixed = Age::For(Duration::from_secs(90));
        for (age, reported, alone, bounded) in [
            (
                Age::Salt,
                Some(60),
                "for 60 s, by keep_jobs_seconds".to_owned(),
                true,
            ),
            (days, Some(60), format!("for 90 s, by {class}"), true),
            (days, Some(100), format!("for 100 s, by {class}"), true),
            (days, None, format!("for 90 s, by {class}"), true),
            (fixed, Some(60), format!("for 90 s, by {class}"), true),
            (fixed, None, format!("for 90 s, by {class}"), true),
            // Without an age in effect, only the other limits count. Zero means forever.
            (
                Age::Forever,
                Some(60),
                format!("forever, by {class}"),
                false,
            ),
            (Age::Salt, None, format!("forever, by {class}"), false),
            (Age::Salt, Some(0), format!("forever, by {class}"), false),
            (days, Some(0), format!("forever, by {class}"), false),
        ] {
            assert_eq!(kept(age, reported, false), format!("jobs are kept {alone}"));

            let expected = if bounded {
                format!("jobs are kept {alone}, or up to the other limits of their class")
            } else {
                "jobs are kept up to the limits of their class".to_owned()
            };
            assert_eq!(kept(age, reported, true), expected, "{age:?} {reported:?}");
        }
    }
}
