//! `saltcellar doctor`: diagnoses the daemon, its store and socket, the Salt master and the
//! extension.
//!
//! The checks query the daemon and read files. They change nothing, and work without a running
//! daemon. A *problem* is actual or possible loss of data, or a component that cannot work; a
//! *warning* is a risk of one.
//!
//! Checks of the Salt master (`doctor/master.rs`) read its configuration as Salt does. Their
//! findings include a reason and a fix.

mod access;
mod disk;
mod keys;
mod master;
mod master_use;
mod options;
mod permissions;
mod python;
mod reactor;
mod sinks;

pub(super) use self::master::setting as master_setting;

use std::fmt::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::api::call::status::{
    BusRow, ClockStep, Level, LossCounter, Reason, SPOOL_WAITS_MAX, Status, loss_counters,
};
use crate::api::call::store::Space;
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::{Client, ClientError};
use crate::base::clock::Clock;
use crate::base::users;
use crate::cli::{Column, Exit, Finding, Format, Global, Output, Table, plain, salt_python};
use crate::config::salt_master::SaltMaster;
use crate::config::{Config, ConfigError, Environment, Invalid, SocketChoice, read_options};
use crate::ingest::spool::Spool;
use crate::store::free_space::SpaceLevel;
use crate::wire::unix_listener;

pub(super) const EXAMPLES: &str = "\
Exit codes: 0 no problems (warnings are possible), 1 problems found, 69 daemon unreachable.

Examples:
  saltcellar doctor
  saltcellar doctor --salt-config /srv/salt/etc
  saltcellar doctor --spool /srv/salt/cache/saltcellar
  saltcellar doctor --output json | jq '.checks[] | select(.verdict != \"ok\")'";

/// Configuration directory of Salt's packages.
pub(super) const SALT_CONFIG: &str = "/etc/salt";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Also check this spool of the extension (its `spool_dir`); may be repeated
    #[arg(long, value_name = "DIR")]
    spool: Vec<PathBuf>,
    /// Salt's configuration directory, as for Salt's own -c
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
    /// Do not check the Salt master
    #[arg(long, conflicts_with_all = ["salt_config", "salt_python"])]
    no_master: bool,
    /// Salt's Python [default: that of the running salt-master, or of the installed one]
    #[arg(long, value_name = "PROGRAM")]
    salt_python: Option<PathBuf>,
}

fn summary(problems: usize, checks: usize) -> String {
    format!("{problems} of {checks} checks failed")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckResult {
    Ok,
    /// Not checked, because this user may not read what it needs.
    Skipped,
    Warning,
    Problem,
}

impl CheckResult {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

struct CheckFinding {
    check: &'static str,
    verdict: CheckResult,
    message: String,
    advice: Option<Advice>,
}

struct Advice {
    why: String,
    write: String,
}

#[derive(Default)]
struct Findings(Vec<CheckFinding>);

impl Findings {
    fn of(&mut self, check: &'static str) -> Check<'_> {
        Check { check, found: self }
    }

    fn problems(&self) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.verdict == CheckResult::Problem)
            .count()
    }
}

/// The findings of one check. The fix of a finding is text for a configuration file, or a command
/// in backquotes.
struct Check<'a> {
    check: &'static str,
    found: &'a mut Findings,
}

impl Check<'_> {
    fn ok(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Ok, message);
    }

    /// The check needs rights that this user lacks. It says nothing about what it could not read.
    fn needs_root(&mut self, what: impl std::fmt::Display) {
        self.add(
            CheckResult::Skipped,
            format!("not checked: needs root, {what} cannot be read"),
        );
    }

    fn warn(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Warning, message);
    }

    fn problem(&mut self, message: impl Into<String>) {
        self.add(CheckResult::Problem, message);
    }

    fn add(&mut self, verdict: CheckResult, message: impl Into<String>) {
        self.found.0.push(CheckFinding {
            check: self.check,
            verdict,
            message: message.into(),
            advice: None,
        });
    }

    fn warn_because(
        &mut self,
        message: impl Into<String>,
        why: impl Into<String>,
        write: impl Into<String>,
    ) {
        self.advise(CheckResult::Warning, message, why, write);
    }

    fn problem_because(
        &mut self,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.advise(CheckResult::Problem, what, why, fix);
    }

    fn advise(
        &mut self,
        verdict: CheckResult,
        message: impl Into<String>,
        why: impl Into<String>,
        write: impl Into<String>,
    ) {
        let advice = Some(Advice {
            why: why.into(),
            write: write.into(),
        });
        self.found.0.push(CheckFinding {
            check: self.check,
            verdict,
            message: message.into(),
            advice,
        });
    }
}

impl Args {
    /// For a check after `setup`.
    pub(super) fn after_setup(salt_config: &Path, salt_python: Option<&Path>) -> Self {
        let (spool, salt_python) = (Vec::new(), salt_python.map(Path::to_owned));
        Self {
            spool,
            salt_config: salt_config.to_owned(),
            no_master: false,
            salt_python,
        }
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let (overrides, environment) = (global.overrides(), Environment::of_process());
    // Found separately: the daemon may run although its file is invalid by now.
    let choice = SocketChoice::find(&overrides, &environment).context("read the configuration")?;

    let mut found = Findings::default();

    // An invalid file is a finding among others, so its error is kept here.
    let file = Config::load(&overrides, &environment);

    let mut daemon = ask_daemon(&choice.path);
    let running = daemon.as_mut().ok().map(|(client, _)| running(client));

    // A file that is named on the command line is the one to check.
    let running = running.filter(|_| global.config.is_none() || file.is_err());

    let config = check_configuration(&mut found, file, running)?;

    check_socket(&mut found, &choice.path, &config);

    let status = check_daemon(&mut found, daemon);

    let unreachable = status.is_none();

    if let Some((mut client, status)) = status {
        // The daemon's own verdict comes first; the rest adds detail.
        check_reasons(&mut found, &status);
        reactor::check(&mut found, &mut client, &config);
        sinks::check(&mut found, &mut client);
        check_store(&mut found, &mut client);
        check_buses(&mut found, &status);
        check_counters(&mut found, &status);
        keys::check(&mut found, &status.master_keys);
    }

    // From here on nothing needs the daemon.
    keys::redaction(&mut found, &config);
    disk::check(&mut found, &config, unreachable);
    permissions::check(&mut found, &config, daemon_uid(&choice.path));

    let mut spools = args.spool.clone();
    let salt_master = SaltMaster::read(&args.salt_config.join("master"));

    if !args.no_master && master_exists(&mut found, &salt_master, args) {
        check_master(&mut found, &salt_master, &config, &choice.path, args);
        let spool = master::setting(&salt_master, "spool_dir")
            .map_or_else(|| salt_master.cachedir.join("saltcellar"), PathBuf::from);
        // The daemon's configuration or a flag may have named it already.
        if !config.spools.contains(&spool) && !spools.contains(&spool) && spool.exists() {
            spools.push(spool);
        }
    }

    check_spools(&mut found, &config.spools, &spools, !unreachable);

    report(global, &found, unreachable)
}

/// The version of the extension's package in Salt's Python.
pub(super) fn installed_extension(salt_python: &Path, master: &SaltMaster) -> Option<String> {
    python::ask(salt_python, master).ok()?.extension
}

/// Whether a master is configured here. A missing configuration is a problem only if its directory
/// was passed.
fn master_exists(found: &mut Findings, salt_master: &SaltMaster, args: &Args) -> bool {
    let mut found = found.of("master_config");

    let is_default = args.salt_config == Path::new(SALT_CONFIG);

    if let Some(what) = closed_to_this_user(salt_master, is_default) {
        found.needs_root(what);
        return false;
    }

    // A master may have only `master.d`.
    if salt_master.conf_file.exists() || !salt_master.files.is_empty() {
        return true;
    }

    let name = salt_master.conf_file.display();
    // Nobody asked for a master, so its absence is normal.
    if is_default {
        let message = format!(
            "no Salt master is configured here: {name} does not exist (--salt-config sets another directory)"
        );
        found.ok(message);
    } else {
        found.problem(format!("{name} does not exist"));
    }

    false
}

/// The part of the master that this user cannot read, if any. Checks without it would report false
/// findings: unread options would have Salt's defaults, and existing keys, modules and sockets
/// would look missing.
fn closed_to_this_user(master: &SaltMaster, is_default: bool) -> Option<String> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        return None;
    }

    let denied = |path: &Path| {
        std::fs::File::open(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };

    if denied(&master.conf_file) || master.files.iter().any(|file| denied(file)) {
        return Some(master.conf_file.display().to_string());
    }

    // The files of another user's master are closed even if its configuration is not.
    let is_own = users::User::numbered(own.as_raw()).is_some_and(|user| user.name == master.user);
    (is_default && master.conf_file.exists() && !is_own)
        .then(|| format!("what the master of user {} keeps", master.user))
}

fn check_master(
    found: &mut Findings,
    salt_master: &SaltMaster,
    config: &Config,
    socket: &Path,
    args: &Args,
) {
    let running = salt_python::running(salt_master);

    // A Python that is named explicitly is checked instead, whatever the master runs in.
    if let Some(running) = running
        .as_deref()
        .filter(|running| args.salt_python.is_none() && !running.exists())
    {
        found.of("salt").warn_because(
            format!(
                "the master runs in {}, which no longer exists",
                running.display()
            ),
            "Salt was upgraded, and the old master still runs; its processes fail to load modules",
            "`systemctl restart salt-master`",
        );
    }

    let python = match salt_python::find(args.salt_python.as_deref(), salt_master) {
        Some(path) => python::ask(&path, salt_master)
            .map_err(|why| format!("cannot query {}: {why}", path.display())),
        None => Err(
            "no salt-master is installed in PATH, /usr/bin, /usr/local/bin or /opt/saltstack/salt"
                .to_owned(),
        ),
    };

    if let Ok(installed) = &python
        && let Some(salt) = &installed.salt
    {
        let version = installed
            .version
            .as_deref()
            .map_or_else(String::new, |version| format!(" (Python {version})"));
        found.of("salt").ok(format!(
            "{salt}, in {}{version}",
            installed.python.display()
        ));
    }

    // The owner of the socket is the daemon's user, even if the daemon does not respond.
    let daemon = access::User::numbered(daemon_uid(socket));
    let context = master_use::MasterContext {
        master: salt_master,
        config,
        socket,
        daemon: &daemon,
        python: &python,
    };

    master::check(found, &context);
}

/// The daemon's uid: the owner of its socket, or without a socket the uid of this process.
fn daemon_uid(socket: &Path) -> u32 {
    std::fs::symlink_metadata(socket)
        .map_or_else(|_| rustix::process::geteuid().as_raw(), |file| file.uid())
}

fn report(global: &Global, found: &Findings, unreachable: bool) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);

    match out.format {
        Format::Table => {
            let mut table = Table::new([
                Column::left("VERDICT"),
                Column::left("CHECK"),
                Column::left("FOUND"),
            ]);

            let row = |f: &CheckFinding| {
                vec![
                    f.verdict.name().to_owned(),
                    f.check.to_owned(),
                    f.message.clone(),
                ]
            };

            // The row's number leads back to its finding, for the lines below it.
            let rows: Vec<_> = found.0.iter().map(row).collect();
            table.print_with(&mut out, &rows, |number| {
                found.0.get(number).map_or_else(String::new, below)
            })?;

            // With problems, the summary is the error that the program prints last.
            if found.problems() == 0 {
                out.line(&summary(0, found.0.len()))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let one = |f: &CheckFinding| {
                let (why, write) = f
                    .advice
                    .as_ref()
                    .map(|advice| (&advice.why, &advice.write))
                    .unzip();
                json!({"check": f.check, "verdict": f.verdict.name(), "found": f.message, "why": why, "write": write})
            };

            let checks: Vec<_> = found.0.iter().map(one).collect();
            let summary = summary(found.problems(), found.0.len());
            out.json(
                &json!({ "problems": found.problems(), "summary": summary, "checks": checks }),
            )?;
        }
    }

    out.flush()?;

    match found.problems() {
        0 => Ok(()),
        problems => {
            // Most other problems follow from an unreachable daemon, so the exit code names that.
            let exit = if unreachable {
                Exit::NoDaemon
            } else {
                Exit::Failed
            };
            Err(Finding {
                exit,
                message: summary(problems, found.0.len()),
            }
            .into())
        }
    }
}

fn below(finding: &CheckFinding) -> String {
    finding.advice.as_ref().map_or_else(String::new, |advice| {
        format!(
            "         why    {}\n         write  {}\n",
            plain(&advice.why),
            plain(&advice.write)
        )
    })
}

fn check_socket(found: &mut Findings, socket: &Path, config: &Config) {
    let mut found = found.of("socket");

    let at = socket.display();

    let file = match std::fs::symlink_metadata(socket) {
        Ok(file) if file.file_type().is_socket() => file,
        Ok(_) => {
            return found.problem(format!(
                "{at} is not a socket; remove it or configure another path"
            ));
        }
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
        let verdict = if concern.fatal {
            CheckResult::Problem
        } else {
            CheckResult::Warning
        };
        found.add(verdict, concern.to_string());
    }

    if concerns.is_empty() {
        let (uid, gid) = (file.uid(), file.gid());
        found.ok(format!("{at}, mode {mode:04o}, owner {uid}, group {gid}"));
    }
}

fn ask_daemon(socket: &Path) -> Result<(Client, Status), ClientError> {
    let mut client = Client::connect(socket)?;
    let status = client.make::<calls::status::Show>(&NoArgs {})?;
    Ok((client, status))
}

/// The configuration with which the daemon runs. Its file may differ from this program's, or be
/// unreadable for this user.
fn running(client: &mut Client) -> Result<Config, String> {
    let running = client
        .make::<calls::config::Show>(&NoArgs {})
        .map_err(|error| error.to_string())?;
    let mut config = running.config;
    remove_unset(&mut config);
    read_options(&config).map_err(|Invalid { path, problem }| format!("{path}: {problem}"))
}

/// Removes keys without a value, which no configuration file can express.
fn remove_unset(value: &mut Json) {
    if let Json::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(remove_unset);
    }
}

/// The configuration for the other checks: the running daemon's, or else the file's.
fn check_configuration(
    found: &mut Findings,
    file: Result<Config, ConfigError>,
    running: Option<Result<Config, String>>,
) -> anyhow::Result<Config> {
    let mut found = found.of("configuration");

    if let Err(error) = &file {
        found.problem_because(
            error.to_string(),
            "a running daemon keeps its previous configuration, and its next start fails",
            "correct that line; `saltcellar check` shows whether the file is accepted",
        );
    }

    match (running, file) {
        // What the daemon runs with counts more than what it would read next.
        (Some(Ok(running)), file) => {
            if file.is_ok() {
                found.ok("accepted; the checks below use what the running daemon uses");
            }
            Ok(running)
        }
        (Some(Err(why)), Ok(file)) => {
            found.warn(format!(
                "the running daemon's configuration is unknown, the checks below use that of this program: {why}"
            ));
            Ok(file)
        }
        (None, Ok(file)) => {
            found.ok("accepted");
            Ok(file)
        }

        // Nothing is known about the daemon's paths.
        (_, Err(error)) => Err(anyhow::Error::new(error).context("read the configuration")),
    }
}

/// Parts of the daemon that have checks of their own, with more detail than the reasons of
/// `status`.
const CHECKED_PARTS: [&str; 8] = [
    "disk",
    "bus ",
    "spool ",
    "reactor",
    "sink ",
    "clock",
    "master keys",
    "since the start",
];

/// Reports the reasons of `status`, so that `doctor` never finds less than `status`.
fn check_reasons(found: &mut Findings, status: &Status) {
    let mut found = found.of("status");

    for Reason {
        level,
        part,
        message,
    } in &status.health.reasons
    {
        // A check of its own reports the same with more detail.
        if CHECKED_PARTS.iter().any(|known| part.starts_with(known)) {
            continue;
        }

        let verdict = match level {
            Level::Problem => CheckResult::Problem,
            Level::Warning => CheckResult::Warning,
            Level::Ok => CheckResult::Ok,
        };
        found.add(verdict, format!("{part}: {message}"));
    }
}

/// Checks that the daemon is reachable and has the version of this program.
fn check_daemon(
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
        let Status { pid, uptime_s, .. } = &status;
        found.ok(format!("version {theirs}, pid {pid}, up for {uptime_s} s"));
    } else {
        found.warn(format!(
            "the daemon has version {theirs}, this program {ours}: restart the daemon, or update the older one"
        ));
    }

    Some((client, status))
}

fn check_store(found: &mut Findings, client: &mut Client) {
    let mut found = found.of("store");
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

    let (verdict, what) = match state {
        SpaceLevel::Ample => (CheckResult::Ok, "enough free space"),
        SpaceLevel::Low => (
            CheckResult::Warning,
            "little free space: old segments are dropped early",
        ),
        SpaceLevel::Full => (
            CheckResult::Problem,
            "no free space: entries are rejected, the extension spools",
        ),
    };

    let numbers = format!("{free_bytes} bytes free, low below {low_bytes}, full below {min_bytes}");
    found.add(verdict, format!("{}: {what} ({numbers})", stats.state_dir));

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

fn check_buses(found: &mut Findings, status: &Status) {
    let mut found = found.of("bus");

    for BusRow {
        path,
        connected,
        events,
        ..
    } in &status.bus
    {
        if *connected {
            found.ok(format!("{path}, {events} events"));
        } else {
            found.warn(format!(
                "{path} is not connected: is the master running, and does the daemon's user have access?"
            ));
        }
    }
}

fn check_counters(found: &mut Findings, status: &Status) {
    // Only if nothing is added below, all is well.
    let before = found.0.len();

    for LossCounter {
        name,
        level,
        meaning,
    } in loss_counters()
    {
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

/// Whether this user may not read something that root may.
fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root()
}

fn check_spools(
    found: &mut Findings,
    configured: &[PathBuf],
    named: &[PathBuf],
    daemon_answers: bool,
) {
    for dir in configured.iter().chain(named) {
        let name = dir.display();

        match Spool::inspect(dir) {
            Ok(None) if named.contains(dir) => {
                found.of("spool").ok(format!("{name}: never used"));
            }
            // The extension creates its spool with the first entry that has to wait.
            Ok(None) => {}
            Ok(Some(spool)) => check_spool(found, &spool, daemon_answers),
            Err(error) if is_denied(&error) => found.of("spool").needs_root(name),
            Err(error) => found
                .of("spool")
                .warn(format!("cannot read {name}: {error}")),
        }
    }
}

fn check_spool(found: &mut Findings, spool: &Spool, daemon_answers: bool) {
    let name = spool.dir.display();

    let age = spool.oldest.map_or(0, |at| {
        Clock::real().now().0.saturating_sub(at.0) / 1_000_000
    });

    let waiting = format!(
        "{name}: {} bytes are waiting, the oldest for {age} s",
        spool.waiting_bytes
    );

    match spool.waiting_bytes {
        0 => found.of("spool").ok(format!("{name}: empty")),
        _ if !daemon_answers => {
            let message = format!("{waiting}; they are delivered once the daemon is reachable");
            found.of("spool").warn(message);
        }
        // Any call of a working extension would have delivered them by now.
        _ if age > SPOOL_WAITS_MAX => {
            let message = format!(
                "{waiting}, although the daemon is reachable: is the master running, and does its option \
                 `saltcellar.socket` name this daemon?"
            );
            found.of("spool").problem(message);
        }
        _ => {
            let message = format!("{waiting}; Salt's next calls deliver them");
            found.of("spool").warn(message);
        }
    }

    if spool.dead_letter_bytes > 0 {
        let message = format!(
            "{name}/spool.dead-letter holds {} bytes of records that the daemon failed to store repeatedly: keep the file and report a bug",
            spool.dead_letter_bytes
        );
        found.of("spool").warn(message);
    }

    if spool.lost_entries() > 0 {
        let mut message = format!(
            "{name}: entries were lost (spool.counters; remove the file once the cause is known):"
        );

        for (reason, n) in &spool.lost {
            // Writing to a String cannot fail.
            let _ = write!(message, " {} {n}", plain(reason));
        }
        found.of("spool").warn(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::status::health;
    use crate::base::clock::Micros;

    #[test]
    fn a_counter_of_loss_is_for_doctor_what_it_is_for_status() {
        for LossCounter { name, .. } in loss_counters() {
            let status = Status {
                counters: [(name.to_owned(), 1)].into(),
                ..Status::default()
            };
            let mut found = Findings::default();
            check_counters(&mut found, &status);
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
            assert_eq!(finding.verdict, expected, "{name}");
        }
    }
}
