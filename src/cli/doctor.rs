//! `saltcellar doctor`: looks at everything that a daemon and its callers need, and says what is not as it should be.
//!
//! It asks the daemon and looks at files; it changes nothing, and works as well while no daemon answers. A *problem* means
//! that something is or may be lost, or that somebody cannot do their work; a *warning*, that it may come to that.
//!
//! The configuration of the Salt master beside it is read as Salt reads it (`doctor/master.rs`): what is missing there, or dangerous,
//! comes with the reason and with what to write.

mod access;
mod disk;
mod keys;
mod master;
mod options;
mod permissions;
mod python;
mod reactor;

use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::output::{Format, Output, plain};
use super::table::{Column, Table};
use super::{Global, ask};
use crate::api::client::{Client, ClientError};
use crate::clock::Clock;
use crate::config::salt_master::SaltMaster;
use crate::config::{Config, SocketChoice, Surroundings};
use crate::door;
use crate::ingest::spool::Spool;

pub(super) const EXAMPLES: &str = "\
Exit codes: 0 nothing is wrong (there may be warnings), 1 a problem was found, 69 no daemon answers.

Examples:
  saltcellar doctor
  saltcellar doctor --salt-config /srv/salt/etc
  saltcellar doctor --spool /srv/salt/cache/saltcellar
  saltcellar doctor --output json | jq '.checks[] | select(.verdict != \"ok\")'";

/// Entries that wait longer than this beside a daemon that answers are waiting for something else.
const WAITING_TOO_LONG_S: i64 = 300;

/// Where Salt's packages put the configuration.
pub(super) const SALT_CONFIG: &str = "/etc/salt";

/// Flags of `doctor`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Look into this spool of the extension, too (its `spool_dir`); may be given several times
    #[arg(long, value_name = "DIR")]
    spool: Vec<PathBuf>,
    /// Where the Salt master is configured, as Salt's own -c; there need not be one
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
    /// Look at the daemon alone, not at a Salt master
    #[arg(long, conflicts_with_all = ["salt_config", "salt_python"])]
    no_master: bool,
    /// The Python that Salt runs in [default: the one that salt-master names]
    #[arg(long, value_name = "PROGRAM")]
    salt_python: Option<PathBuf>,
}

/// Something was found.
#[derive(Debug, thiserror::Error)]
#[error("{}", summary(*.problems, *.checks))]
pub(super) struct Unwell {
    problems: usize,
    checks: usize,
    /// Does no daemon answer?
    pub(super) away: bool,
}

fn summary(problems: usize, checks: usize) -> String {
    format!("{problems} of {checks} checks failed")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Warning,
    Problem,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
struct Finding {
    check: &'static str,
    verdict: Verdict,
    words: String,
    advice: Option<Advice>,
}

/// Why a finding matters, and what would be right: words for a configuration file, or a command in backquotes.
struct Advice {
    why: String,
    write: String,
}

/// What has been found so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn say(&mut self, check: &'static str, verdict: Verdict, words: impl Into<String>) {
        self.0.push(Finding { check, verdict, words: words.into(), advice: None });
    }

    fn advise(&mut self, check: &'static str, verdict: Verdict, words: impl Into<String>, advice: Advice) {
        self.0.push(Finding { check, verdict, words: words.into(), advice: Some(advice) });
    }

    fn problems(&self) -> usize {
        self.0.iter().filter(|finding| finding.verdict == Verdict::Problem).count()
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let (given, surroundings) = (global.given(), Surroundings::of_process());
    let choice = SocketChoice::find(&given, &surroundings)?;
    let config = Config::load(&given, &surroundings)?;
    let mut found = Findings::default();
    look_at_socket(&mut found, &choice.path, &config);
    let status = ask_daemon(&mut found, &choice.path);
    let away = status.is_none();
    if let Some((mut client, status)) = status {
        reactor::look(&mut found, &mut client, &config);
        look_at_store(&mut found, &mut client, &status);
        look_at_buses(&mut found, &status);
        look_at_counters(&mut found, &status);
        keys::look(&mut found, &mut client, &status);
    }
    keys::redaction(&mut found, &config);
    disk::look(&mut found, &config, away);
    permissions::look(&mut found, &config, daemon_uid(&choice.path));
    let mut spools = args.spool.clone();
    let salt_master = SaltMaster::read(&args.salt_config.join("master"));
    if !args.no_master && is_there(&mut found, &salt_master, args) {
        look_at_master(&mut found, &salt_master, &config, &choice.path, args);
        let spool = master::setting(&salt_master, "spool_dir")
            .map_or_else(|| salt_master.cachedir.join("saltcellar"), PathBuf::from);
        if !config.spools.contains(&spool) && !spools.contains(&spool) && spool.exists() {
            spools.push(spool);
        }
    }
    look_at_spools(&mut found, &config.spools, &spools, !away);
    report(global, &found, away)
}

/// Is a master configured here? One that was named and is not there is a mistake.
fn is_there(found: &mut Findings, salt_master: &SaltMaster, args: &Args) -> bool {
    const CHECK: &str = "master_config";
    // A master needs no file: it may have `master.d` alone. Defaults alone are no sign of one.
    if salt_master.conf_file.exists() || !salt_master.files.is_empty() {
        return true;
    }
    let name = salt_master.conf_file.display();
    if args.salt_config == Path::new(SALT_CONFIG) {
        let words = format!(
            "no Salt master is configured here: there is no {name} (--salt-config names another place)"
        );
        found.say(CHECK, Verdict::Ok, words);
    } else {
        found.say(CHECK, Verdict::Problem, format!("there is no {name}"));
    }
    false
}

fn look_at_master(
    found: &mut Findings,
    salt_master: &SaltMaster,
    config: &Config,
    socket: &Path,
    args: &Args,
) {
    let python = match python::find(args.salt_python.as_deref()) {
        Some(path) => python::ask(&path).map_err(|why| format!("{} cannot be asked: {why}", path.display())),
        None => Err("no salt-master is on PATH that would name its Python".to_owned()),
    };
    if let Ok(installed) = &python
        && let Some(salt) = &installed.salt
    {
        found.say("salt", Verdict::Ok, format!("{salt}, in {}", installed.python.display()));
    }
    let daemon = access::Who::numbered(daemon_uid(socket));
    let beside = master::Beside { master: salt_master, config, socket, daemon: &daemon, python: &python };
    master::look(found, &beside);
}

/// Whom the daemon runs as: its socket's owner; without a socket, whom it would run as if it were started now.
fn daemon_uid(socket: &Path) -> u32 {
    std::fs::symlink_metadata(socket).map_or_else(|_| rustix::process::geteuid().as_raw(), |file| file.uid())
}

fn report(global: &Global, found: &Findings, away: bool) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            let mut table =
                Table::new([Column::left("VERDICT"), Column::left("CHECK"), Column::left("FOUND")]);
            let row = |f: &Finding| vec![f.verdict.name().to_owned(), f.check.to_owned(), f.words.clone()];
            let rows: Vec<_> = found.0.iter().map(row).collect();
            table
                .print_with(&mut out, &rows, |number| found.0.get(number).map_or_else(String::new, below))?;
            // With a problem it is what the program ends with.
            if found.problems() == 0 {
                out.line(&summary(0, found.0.len()))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let one = |f: &Finding| {
                let (why, write) = f.advice.as_ref().map(|advice| (&advice.why, &advice.write)).unzip();
                json!({"check": f.check, "verdict": f.verdict.name(), "found": f.words, "why": why, "write": write})
            };
            let checks: Vec<_> = found.0.iter().map(one).collect();
            let summary = summary(found.problems(), found.0.len());
            out.json(&json!({ "problems": found.problems(), "summary": summary, "checks": checks }))?;
        }
    }
    out.flush()?;
    match found.problems() {
        0 => Ok(()),
        problems => Err(Unwell { problems, checks: found.0.len(), away }.into()),
    }
}

/// The lines under a finding.
fn below(finding: &Finding) -> String {
    finding.advice.as_ref().map_or_else(String::new, |advice| {
        format!("         why    {}\n         write  {}\n", plain(&advice.why), plain(&advice.write))
    })
}

/// The socket's file and its directory.
fn look_at_socket(found: &mut Findings, socket: &Path, config: &Config) {
    const CHECK: &str = "socket";
    let at = socket.display();
    let file = match std::fs::symlink_metadata(socket) {
        Ok(file) if file.file_type().is_socket() => file,
        Ok(_) => return found.say(CHECK, Verdict::Problem, format!("{at} is no socket: move it away")),
        Err(error) => return found.say(CHECK, Verdict::Problem, format!("{at}: {error}")),
    };
    let mode = file.mode() & 0o777;
    let gid = config.socket_group.as_deref().and_then(door::group_id);
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let looked = door::concerns(dir, file.uid(), mode, gid)
        .and_then(|of_dir| Ok([of_dir, door::parents(dir, "the socket's directory", file.uid())?].concat()));
    let concerns = match looked {
        Ok(concerns) => concerns,
        Err(error) => {
            return found.say(
                CHECK,
                Verdict::Problem,
                format!("cannot look at the directory of {at}: {error}"),
            );
        }
    };
    if mode != config.socket_mode {
        let wanted = config.socket_mode;
        let words =
            format!("{at} has mode {mode:04o}; the configuration says {wanted:04o}: restart the daemon");
        found.say(CHECK, Verdict::Warning, words);
    }
    for concern in &concerns {
        let verdict = if concern.grave { Verdict::Problem } else { Verdict::Warning };
        found.say(CHECK, verdict, concern.to_string());
    }
    if concerns.is_empty() {
        let (uid, gid) = (file.uid(), file.gid());
        found.say(CHECK, Verdict::Ok, format!("{at}, mode {mode:04o}, owner {uid}, group {gid}"));
    }
}

/// Whether the daemon answers, and speaks as this program does.
fn ask_daemon(found: &mut Findings, socket: &Path) -> Option<(Client, Json)> {
    const CHECK: &str = "daemon";
    let answer = Client::connect(socket).and_then(|mut client| {
        let status = ask::call(&mut client, "status", [])?;
        Ok((client, status))
    });
    match answer {
        Ok((client, status)) => {
            let (theirs, ours) = (text(&status, "version"), env!("CARGO_PKG_VERSION"));
            let (pid, up) = (number(&status, "pid"), number(&status, "uptime_s"));
            if theirs == ours {
                found.say(CHECK, Verdict::Ok, format!("version {theirs}, pid {pid}, up for {up} s"));
            } else {
                let words = format!(
                    "version {theirs}, this program {ours}: restart the daemon, or update the older one"
                );
                found.say(CHECK, Verdict::Warning, words);
            }
            Some((client, status))
        }
        Err(ClientError::Refused { code, message }) if code == "version" => {
            found.say(CHECK, Verdict::Problem, format!("{message}: update the older one"));
            None
        }
        Err(error) => {
            found.say(CHECK, Verdict::Problem, error.to_string());
            None
        }
    }
}

/// Room on the disk, as the daemon judges it.
fn look_at_store(found: &mut Findings, client: &mut Client, status: &Json) {
    const CHECK: &str = "store";
    let stats = match ask::call(client, "store_stats", []) {
        Ok(stats) => stats,
        Err(error) => return found.say(CHECK, Verdict::Problem, error.to_string()),
    };
    let space = stats.get("space").unwrap_or(&Json::Null);
    let (verdict, what) = match text(space, "state") {
        "ample" => (Verdict::Ok, "enough room"),
        "low" => (Verdict::Warning, "little room: old segments go before their time"),
        _ => (Verdict::Problem, "no room: nothing is taken, the extension spools"),
    };
    let dir = text(status, "state_dir");
    let (free, low, min) =
        (number(space, "free_bytes"), number(space, "low_bytes"), number(space, "min_bytes"));
    let words = format!("{dir}: {what} ({free} bytes free, low below {low}, full below {min})");
    found.say(CHECK, verdict, words);
    look_at_clock(found, &stats);
}

/// A wall clock that was set, as far as deletion by age is concerned.
fn look_at_clock(found: &mut Findings, stats: &Json) {
    const CHECK: &str = "clock";
    let Some(step) = stats.get("clock_step").filter(|step| !step.is_null()) else {
        return found.say(CHECK, Verdict::Ok, "deletion by age uses the system clock");
    };
    let ahead_s = step.get("ahead_s").and_then(Json::as_i64).unwrap_or(0);
    let (by, wait) = (duration(ahead_s.unsigned_abs()), duration(number(step, "wait_s")));
    let direction = if ahead_s < 0 { "behind" } else { "ahead of" };
    let words = format!(
        "the system clock is {by} {direction} the expected time: it was set, or the daemon was stopped for long; \
         deletion by age uses the earlier of both times for another {wait}"
    );
    let why = "if the clock is wrong, entries would be deleted that are not old".to_owned();
    let write = "if the clock is right: `saltcellar store prune`; if not, set the clock".to_owned();
    found.advise(CHECK, Verdict::Warning, words, Advice { why, write });
}

/// A length of time in its two largest units.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Buses that should be read and are not.
fn look_at_buses(found: &mut Findings, status: &Json) {
    for bus in status.get("bus").and_then(Json::as_array).into_iter().flatten() {
        let path = text(bus, "path");
        if bus.get("connected").and_then(Json::as_bool) == Some(true) {
            found.say("bus", Verdict::Ok, format!("{path}, {} events", number(bus, "events")));
        } else {
            let words =
                format!("{path} is not connected: does the master run, and may the daemon's user open it?");
            found.say("bus", Verdict::Warning, words);
        }
    }
}

/// Counters that stand for damage or loss, and what they mean.
const TELLING: &[(&str, Verdict, &str)] = &[
    ("frames_damaged", Verdict::Problem, "blocks of the log are damaged: see `saltcellar store verify`"),
    (
        "blocks_unread_at_start",
        Verdict::Problem,
        "blocks of the log could not be read at start: see the log for the files, and `saltcellar store verify`",
    ),
    ("segments_missing", Verdict::Problem, "segments were gone at start"),
    ("bus_events_lost", Verdict::Problem, "events of the bus were lost"),
    (
        "spill_stretches_damaged",
        Verdict::Problem,
        "files of the spill were damaged; they are kept as spill/*/*.damaged in the state directory",
    ),
    (
        "spill_reads_failed",
        Verdict::Warning,
        "reading the spill failed and is tried again: look for errors of the disk",
    ),
    ("log_lines_lost", Verdict::Warning, "lines of the daemon's log could not be written"),
    ("late_syncs_failed", Verdict::Problem, "entries were answered and perhaps not synced"),
    ("entries_failed", Verdict::Warning, "entries could not be written; their senders were told"),
    (
        "entries_refused_disk_full",
        Verdict::Warning,
        "entries were refused for want of room; their senders were told",
    ),
    ("entries_too_large", Verdict::Warning, "entries were refused for their size"),
    ("event_return_malformed", Verdict::Warning, "elements of `event_return` batches were no events"),
    ("bus_frames_malformed", Verdict::Warning, "frames of a bus were no events"),
    ("indexes_rebuilt", Verdict::Warning, "indexes were damaged and have been made again"),
    ("seals_failed", Verdict::Warning, "attempts to seal a segment failed"),
    ("drops_failed", Verdict::Warning, "attempts to let go of a segment failed"),
    ("peers_turned_away", Verdict::Warning, "connections were turned away: too many were open"),
    (
        "peers_dropped",
        Verdict::Warning,
        "connections broke the protocol: is something else using the socket?",
    ),
];

/// What the daemon has counted since its start.
fn look_at_counters(found: &mut Findings, status: &Json) {
    let counters = status.get("counters").unwrap_or(&Json::Null);
    let before = found.0.len();
    for (name, verdict, meaning) in TELLING {
        let n = number(counters, name);
        if n > 0 {
            found.say("counters", *verdict, format!("{name} is {n}: {meaning}"));
        }
    }
    if found.0.len() == before {
        found.say("counters", Verdict::Ok, "no damage and no loss since the daemon's start");
    }
}

/// What the extension keeps for the daemon.
fn look_at_spools(found: &mut Findings, configured: &[PathBuf], named: &[PathBuf], daemon_answers: bool) {
    for dir in configured.iter().chain(named) {
        let name = dir.display();
        match Spool::look(dir) {
            Ok(None) if named.contains(dir) => {
                found.say("spool", Verdict::Ok, format!("{name}: nothing was ever spooled here"));
            }
            Ok(None) => {}
            Ok(Some(spool)) => look_at_spool(found, &spool, daemon_answers),
            Err(error) => found.say("spool", Verdict::Warning, format!("cannot look into {name}: {error}")),
        }
    }
}

fn look_at_spool(found: &mut Findings, spool: &Spool, daemon_answers: bool) {
    let name = spool.dir.display();
    let age = spool.oldest.map_or(0, |at| Clock::real().now().0.saturating_sub(at.0) / 1_000_000);
    let waiting = format!("{name}: {} bytes wait, the oldest for {age} s", spool.waiting_bytes);
    match spool.waiting_bytes {
        0 => found.say("spool", Verdict::Ok, format!("{name}: nothing waits")),
        _ if !daemon_answers => {
            let words = format!("{waiting}; they are handed over when a daemon answers");
            found.say("spool", Verdict::Warning, words);
        }
        _ if age > WAITING_TOO_LONG_S => {
            let words = format!(
                "{waiting}, although the daemon answers: does the master run, and is `saltcellar.socket` in its \
                 configuration this daemon's?"
            );
            found.say("spool", Verdict::Problem, words);
        }
        _ => {
            let words = format!("{waiting}; the next calls of Salt hand them over");
            found.say("spool", Verdict::Warning, words);
        }
    }
    if spool.aside_bytes > 0 {
        let words = format!(
            "{name}/spool.aside holds {} bytes of records that the daemon kept failing on: keep the file and report it",
            spool.aside_bytes
        );
        found.say("spool", Verdict::Warning, words);
    }
    if spool.lost_entries() > 0 {
        let mut words =
            format!("{name}: entries were not stored (spool.counters; remove the file once you know why):");
        for (reason, n) in &spool.lost {
            // Writing to a String cannot fail.
            let _ = write!(words, " {} {n}", plain(reason));
        }
        found.say("spool", Verdict::Warning, words);
    }
}

fn text<'a>(map: &'a Json, key: &str) -> &'a str {
    map.get(key).and_then(Json::as_str).unwrap_or("?")
}

fn number(map: &Json, key: &str) -> u64 {
    map.get(key).and_then(Json::as_u64).unwrap_or(0)
}
