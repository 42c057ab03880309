//! Options of the master that are about events and jobs: each check is named as its option.

use super::master::{Beside, Uses, said_at};
use super::{Advice, Findings, Verdict};
use crate::model::Age;
use crate::sls::Value;

/// Salt's own bound on an event (`max_event_size`).
const MAX_EVENT_SIZE: i64 = 1_048_576;
/// The queue that one batch of events is handed over from.
const EVENT_RETURN_QUEUE: i64 = 1000;

pub(super) fn ipc_write_buffer(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "ipc_write_buffer";
    let Beside { master, .. } = beside;
    // A number, or the word `dynamic`, of which Salt makes one.
    let is_set = match master.option(CHECK) {
        Some(Value::Int(bytes)) => *bytes != 0,
        Some(Value::Str(word)) => !word.is_empty() && word != "0",
        _ => false,
    };
    if is_set {
        let verdict = if uses.bus { Verdict::Problem } else { Verdict::Warning };
        found.advise(
            CHECK,
            verdict,
            format!("{CHECK} is set ({})", said_at(master, CHECK)),
            Advice {
                why: "on Salt 3006 a reader of the bus that pauses loses events then, without a word in any log; on 3008 it is \
                      disconnected and loses those in between"
                    .to_owned(),
                write: format!("{CHECK}: 0"),
            },
        );
    }
}

pub(super) fn ipc_mode(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "ipc_mode";
    let Beside { master, .. } = beside;
    if master.text(CHECK) == Some("tcp") {
        let verdict = if uses.bus { Verdict::Problem } else { Verdict::Warning };
        found.advise(
            CHECK,
            verdict,
            format!("{CHECK} is tcp ({})", said_at(master, CHECK)),
            Advice {
                why: "the master's bus is a port then, open to every user of this machine, and not a socket in sock_dir, which is \
                      what the daemon reads"
                    .to_owned(),
                write: format!("{CHECK}: ipc; or `event_return: saltcellar` instead of `bus` in the daemon's configuration"),
            },
        );
    }
}

/// Events: by which way, and how many calls it takes.
pub(super) fn event_return(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    let Beside { master, .. } = beside;
    match (uses.event_return, uses.bus) {
        (false, true) => found.say("event_return", Verdict::Ok, "the daemon reads the bus by itself"),
        (false, false) => {
            found.say("event_return", Verdict::Ok, "events are not archived: neither event_return nor the bus is used");
        }
        (true, true) => found.advise(
            "event_return",
            Verdict::Warning,
            format!("event_return ({}) stands beside the bus that the daemon reads", said_at(master, "event_return")),
            Advice {
                why: "each event is stored once, and arrives twice: Salt's process takes a hundred times the processor time for it"
                    .to_owned(),
                write: "take saltcellar out of event_return".to_owned(),
            },
        ),
        (true, false) => found.say("event_return", Verdict::Ok, "events come by event_return"),
    }
    if !uses.event_return {
        return;
    }
    let queue = master.int("event_return_queue").unwrap_or(0);
    let seconds = master.int("event_return_queue_max_seconds").unwrap_or(0);
    if queue < 2 {
        found.advise(
            "event_return_queue",
            Verdict::Warning,
            format!("event_return_queue is {queue}: a call for each event, and each waits for the disk"),
            Advice {
                why: "Salt's one process for events falls behind on a busy master; then the bus grows in memory (3006), or hangs up \
                      on it after 60 s (3007, 3008) and the events in between are lost"
                    .to_owned(),
                write: format!("event_return_queue: {EVENT_RETURN_QUEUE}, event_return_queue_max_seconds: 1"),
            },
        );
    } else if seconds == 0 {
        found.advise(
            "event_return_queue_max_seconds",
            Verdict::Warning,
            format!("event_return_queue is {queue}, and nothing bounds how long events wait in it"),
            Advice {
                why: "the queue is emptied when it is full, and lost if the master is killed".to_owned(),
                write: "event_return_queue_max_seconds: 1".to_owned(),
            },
        );
    }
}

pub(super) fn max_event_size(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "max_event_size";
    let Beside { master, config, .. } = beside;
    let Some(size) = master.int(CHECK) else { return };
    let taken = i64::try_from(config.store.entry_bytes_max).unwrap_or(i64::MAX);
    if size > taken {
        found.advise(
            CHECK,
            Verdict::Warning,
            format!(
                "{CHECK} is {size} ({}), and the store takes entries of {taken} bytes at most",
                said_at(master, CHECK)
            ),
            Advice {
                why: "a larger event or return is refused and counted (entries_too_large), not stored"
                    .to_owned(),
                write: format!(
                    "{CHECK}: {taken}, or a larger store.entry_bytes_max in the daemon's configuration"
                ),
            },
        );
    } else if size < MAX_EVENT_SIZE && (uses.bus || uses.event_return) {
        found.advise(
            CHECK,
            Verdict::Warning,
            format!("{CHECK} is {size} ({})", said_at(master, CHECK)),
            Advice {
                why: "Salt replaces what is large in an event with VALUE_TRIMMED before anybody can store it"
                    .to_owned(),
                write: format!("{CHECK}: {MAX_EVENT_SIZE}"),
            },
        );
    }
}

pub(super) fn job_cache(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "job_cache";
    let Beside { master, .. } = beside;
    if uses.job_cache && !master.flag(CHECK) {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("{CHECK} is False ({})", said_at(master, CHECK)),
            Advice {
                why: "Salt hands the job cache what is published, and none of the returns".to_owned(),
                write: format!("{CHECK}: True"),
            },
        );
    }
}

pub(super) fn ext_job_cache(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "ext_job_cache";
    let Beside { master, config, .. } = beside;
    let named = master.text(CHECK).unwrap_or_default();
    if named.is_empty() {
        return;
    }
    if !uses.ext_job_cache {
        if uses.job_cache {
            found.advise(
                CHECK,
                Verdict::Problem,
                format!("{CHECK} is {named} ({})", said_at(master, CHECK)),
                Advice {
                    why: "with it the master stores no returns in master_job_cache, and asks the other one first".to_owned(),
                    write: format!("remove {CHECK}, or {CHECK}: saltcellar"),
                },
            );
        }
        return;
    }
    let door = config.https.listen.is_some();
    found.advise(
        CHECK,
        Verdict::Warning,
        format!(
            "{CHECK} is saltcellar ({}): minions return by themselves, the master stores no returns",
            said_at(master, CHECK)
        ),
        Advice {
            why: if door {
                "a minion without the extension, or without saltcellar.url, has its returns stored nowhere"
                    .to_owned()
            } else {
                "and the daemon has no door for minions of other machines: https.listen is not set".to_owned()
            },
            write: "master_job_cache: saltcellar alone stores all returns, with nothing on the minions"
                .to_owned(),
        },
    );
}

pub(super) fn job_cache_store_endtime(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "job_cache_store_endtime";
    let Beside { master, .. } = beside;
    if uses.job_cache && master.flag(CHECK) {
        found.advise(
            CHECK,
            Verdict::Warning,
            format!("{CHECK} is on ({})", said_at(master, CHECK)),
            Advice {
                why: "a call more for every return; saltcellar knows when each return came without it"
                    .to_owned(),
                write: format!("{CHECK}: False, unless something reads EndTime from jobs.list_jobs"),
            },
        );
    }
}

/// Salt's word on how long jobs are kept, and the store's.
pub(super) fn keep_jobs_seconds(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "keep_jobs_seconds";
    let Beside { master, config, .. } = beside;
    let Some(keep) = config.store.classes.iter().find(|class| class.name == "jobs").map(|class| class.keep)
    else {
        return;
    };
    let bounded = keep.bytes.is_some() || keep.entries.is_some();
    let salts = master.int(CHECK).unwrap_or(86_400);
    match keep.age {
        Age::Salt if !uses.job_cache && !bounded => found.advise(
            CHECK,
            Verdict::Warning,
            "the store keeps jobs for as long as Salt says, and Salt does not say",
            Advice {
                why: "only a master whose job cache is saltcellar passes keep_jobs_seconds on: jobs are kept for ever".to_owned(),
                write: "store.classes: [{name: jobs, keep: {age: 30d}}] in the daemon's configuration".to_owned(),
            },
        ),
        Age::Salt if salts == 0 && !bounded => found.advise(
            CHECK,
            Verdict::Warning,
            format!("{CHECK} is 0 ({}): jobs are kept for ever", said_at(master, CHECK)),
            Advice {
                why: "the disk fills; then the oldest go for want of room, and nothing says in time".to_owned(),
                write: format!("{CHECK}: 2592000 (30 days), or bytes for the class jobs in store.classes"),
            },
        ),
        Age::Salt => found.say(CHECK, Verdict::Ok, format!("jobs are kept for {salts} s, as Salt says")),
        Age::For(age) if uses.job_cache && (salts == 0 || age.as_secs() < salts.unsigned_abs()) => found.advise(
            CHECK,
            Verdict::Warning,
            format!("Salt is to keep jobs for {}, the store keeps them for {} s", forever(salts), age.as_secs()),
            Advice {
                why: "the store's own word counts: jobs go sooner than the master's configuration says".to_owned(),
                write: "age: salt for the class jobs in store.classes, to have one word for both".to_owned(),
            },
        ),
        Age::For(age) => {
            found.say(CHECK, Verdict::Ok, format!("jobs are kept for {} s, as the store's class says", age.as_secs()));
        }
        Age::Forever if bounded => found.say(CHECK, Verdict::Ok, "jobs are kept until their class's bounds"),
        Age::Forever => found.say(CHECK, Verdict::Ok, "jobs are kept for ever, as the store's class says"),
    }
}

fn forever(seconds: i64) -> String {
    if seconds == 0 { "ever".to_owned() } else { format!("{seconds} s") }
}
