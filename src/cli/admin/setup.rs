//! `saltcellar setup`: manages a configuration file in `master.d` or `minion.d` that makes Salt use saltcellar.
//!
//! # Invariant
//!
//! Only `--write` and `--remove` change anything, atomically and only one file. Its first line contains a checksum of the
//! rest: a file with a wrong checksum or without one was edited or written by a person, and is rejected.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use crate::cli::doctor::SALT_CONFIG;
use crate::cli::format::output::{self, Output};
use crate::cli::{Global, finding};
use crate::config::python_glob::has_magic;
use crate::config::salt_master::{SaltMaster, same_file};
use crate::config::{Config, Environment, SYSTEM_SOCKET, SocketChoice};

pub(in crate::cli) const EXAMPLES: &str = "\
Without --write, --check or --remove, prints the file and its path.

Exit codes: 0 success, or the file is in place; 1 it is not in place, or was not written by setup.

Examples:
  saltcellar setup                                   show the master's file
  sudo saltcellar setup --write && sudo systemctl restart salt-master
  saltcellar setup --events event-return             use event_return, if the daemon cannot read the bus
  saltcellar setup --check --output json             check that the file is in place and in effect
  sudo saltcellar setup --remove                     undo it
  saltcellar setup --minion https://master.example:4580 --ca /etc/salt/pki/saltcellar-ca.pem";

/// The file's name in `master.d` or `minion.d`.
const NAME: &str = "saltcellar.conf";
/// Start of the first line; the CRC-32 of all following lines comes next, in hexadecimal.
const MARK: &str = "# Written by `saltcellar setup`, sum ";
/// Permissions of the file. It contains no secrets, and masters that do not run as root must read it.
const MODE: u32 = 0o644;

/// Flags of `setup`.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(in crate::cli) struct Args {
    /// Write the file; Salt reads it at its next start
    #[arg(long, group = "act")]
    write: bool,
    /// Check that the file is in place and in effect
    #[arg(long, group = "act")]
    check: bool,
    /// Remove the file
    #[arg(long, group = "act")]
    remove: bool,
    /// Source of events: the bus, Salt's event_return, or none
    #[arg(long, value_enum, default_value_t = Events::Bus)]
    events: Events,
    /// Do not change the master's job cache
    #[arg(long)]
    no_job_cache: bool,
    /// Manage the file for minions of other machines; URL is that of the daemon's HTTPS source
    #[arg(long, value_name = "URL", value_parser = https_url, conflicts_with_all = ["events", "no_job_cache"])]
    minion: Option<String>,
    /// With --minion: CA certificate of the daemon, in PEM [default: the CAs of the system]
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "minion")]
    ca: Option<PathBuf>,
    /// Salt's configuration directory, as for Salt's own -c
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
}

/// The source of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Events {
    /// `bus` in the daemon's configuration
    Bus,
    /// `event_return` in the master's
    EventReturn,
    /// No events
    None,
}

/// The file to manage.
struct Plan {
    path: PathBuf,
    /// The whole file.
    text: String,
    /// Options in `text` with their values.
    wanted: Vec<(&'static str, String)>,
    /// Notes for the reader before the file is written.
    remarks: Vec<String>,
    /// Steps after the file is written.
    next: Vec<String>,
}

/// State of the existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Nothing,
    /// Equal to the planned file.
    InPlace,
    /// Written by setup with other flags or by another version.
    Outdated,
    /// Written by setup and edited since.
    Changed,
    /// Not written by setup.
    Foreign,
}

impl FileState {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "absent",
            Self::InPlace => "in place",
            Self::Outdated => "outdated",
            Self::Changed => "changed by hand",
            Self::Foreign => "not written by setup",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::InPlace | Self::Outdated)
    }
}

pub(in crate::cli) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let plan = match &args.minion {
        Some(url) => for_minion(args, url),
        None => for_master(global, args)?,
    };
    let found = state_of(&plan.path, &plan.text)?;
    if args.remove {
        return remove(global, &plan, found);
    }
    if args.write {
        refuse_foreign(&plan.path, found)?;
        if found != FileState::InPlace {
            write(&plan.path, &plan.text).with_context(|| format!("write {}", plan.path.display()))?;
        }
        let overridden = overridden(args, &plan);
        report(global, &plan, FileState::InPlace, &overridden, found != FileState::InPlace)?;
        return ensure_in_place(&plan, FileState::InPlace, &overridden);
    }
    if args.check {
        let overridden = if found == FileState::InPlace { overridden(args, &plan) } else { Vec::new() };
        report(global, &plan, found, &overridden, false)?;
        return ensure_in_place(&plan, found, &overridden);
    }
    show(global, &plan, found)
}

/// The file for a master.
fn for_master(global: &Global, args: &Args) -> anyhow::Result<Plan> {
    let main = args.salt_config.join("master");
    let master = SaltMaster::read(&main);
    if !main.exists() && master.files.is_empty() {
        bail!("find a Salt master: {} does not exist (--salt-config sets its directory)", main.display());
    }
    let (overrides, environment) = (global.overrides(), Environment::of_process());
    let socket = SocketChoice::find(&overrides, &environment).context("read the configuration")?.path;
    let config = Config::load(&overrides, &environment).context("read the configuration")?;
    let path = directory(&master, &args.salt_config)?.join(NAME);
    let mut wanted = Vec::new();
    let (mut remarks, mut next) = (Vec::new(), Vec::new());
    if !args.no_job_cache {
        let now = master.text("master_job_cache").unwrap_or("local_cache");
        if !matches!(now, "saltcellar" | "local_cache") {
            remarks.push(format!("master_job_cache is currently {now}; its jobs remain there, but Salt will read only from saltcellar"));
        }
        wanted.push(("master_job_cache", "saltcellar".to_owned()));
    }
    let reads = config.bus.iter().any(|dir| same_file(dir, &master.sock_dir));
    // Salt's default is an empty text.
    let others: Vec<_> =
        master.texts("event_return").into_iter().filter(|name| !matches!(*name, "" | "saltcellar")).collect();
    match args.events {
        Events::EventReturn => {
            // A list: keeps the returners that are already configured.
            let names: Vec<_> = others.iter().copied().chain(["saltcellar"]).collect();
            wanted.push(("event_return", format!("[{}]", names.join(", "))));
            wanted.push(("event_return_queue", "1000".to_owned()));
            wanted.push(("event_return_queue_max_seconds", "1".to_owned()));
            if reads {
                remarks
                    .push("the daemon already reads this master's bus: `--events bus` is cheaper".to_owned());
            }
        }
        Events::Bus if !reads => next.push(format!(
            "for events, add to /etc/saltcellar/saltcellar.yaml: `bus: [{}]`, and restart the daemon",
            master.sock_dir.display()
        )),
        Events::Bus | Events::None => {}
    }
    // The default is the system's socket for root, but may be another for other users.
    if socket != Path::new(SYSTEM_SOCKET) || master.user != "root" {
        wanted.push(("saltcellar.socket", yaml_text(&socket.display().to_string())));
    }
    if wanted.is_empty() {
        bail!("write a file: these flags leave it without options");
    }
    next.push(
        "restart the master (`systemctl restart salt-master`): its processes read the option only at start"
            .to_owned(),
    );
    next.push("run `saltcellar doctor` to check the result".to_owned());
    let head = "# Options for saltcellar. To undo: `saltcellar setup --remove`, then restart the master.";
    Ok(Plan { path, text: marked(head, &wanted), wanted, remarks, next })
}

/// The file for a minion of another machine.
fn for_minion(args: &Args, url: &str) -> Plan {
    let mut wanted = vec![("saltcellar.url", yaml_text(url))];
    if let Some(ca) = &args.ca {
        wanted.push(("saltcellar.ca", yaml_text(&ca.display().to_string())));
    }
    let head =
        "# Target of this minion's `--return saltcellar`. To undo: `saltcellar setup --minion URL --remove`.";
    Plan {
        path: args.salt_config.join("minion.d").join(NAME),
        text: marked(head, &wanted),
        wanted,
        remarks: vec!["copy the same file to every minion that sends its own returns".to_owned()],
        next: vec![
            "the minion needs the extension: its package, or `salt '*' saltutil.sync_returners`".to_owned(),
            "restart the minion, then test with `salt MINION test.ping --return saltcellar`".to_owned(),
        ],
    }
}

/// Parses the URL of an HTTPS source.
fn https_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").unwrap_or_default();
    let fits = !host.is_empty()
        && !host.starts_with([':', '/'])
        && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'));
    fits.then(|| text.to_owned()).ok_or_else(|| {
        "expected the URL of the daemon's HTTPS source, such as https://master.example:4580".to_owned()
    })
}

/// Parses the path of a file on the minion.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("expected the absolute path of a file on the minion".to_owned())
    }
}

/// The directory of `default_include`.
fn directory(master: &SaltMaster, salt_config: &Path) -> anyhow::Result<PathBuf> {
    let include = master.text("default_include").unwrap_or("master.d/*.conf");
    let Some(dir) = include.strip_suffix("/*.conf").filter(|dir| !has_magic(dir)) else {
        bail!(
            "find the directory of included files: default_include is {include:?}, expected DIR/*.conf; add the options by hand"
        );
    };
    Ok(salt_config.join(dir))
}

/// The whole file: [`MARK`] with the checksum, a comment, the options.
fn marked(head: &str, wanted: &[(&'static str, String)]) -> String {
    let mut body = format!("{head}\n");
    for (option, value) in wanted {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{option}: {value}");
    }
    format!("{MARK}{:08x}\n{body}", crc32fast::hash(body.as_bytes()))
}

/// Formats text as YAML, quoted unless it is a simple absolute path.
fn yaml_text(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.starts_with('/') && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        json!(text).to_string()
    }
}

fn state_of(path: &Path, text: &str) -> anyhow::Result<FileState> {
    match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(FileState::Nothing);
        }
        Err(error) => return Err(error).with_context(|| format!("inspect {}", path.display())),
        // Setup never creates links.
        Ok(found) if !found.is_file() => return Ok(FileState::Foreign),
        Ok(_) => {}
    }
    let there = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    if there == text.as_bytes() {
        return Ok(FileState::InPlace);
    }
    let there = String::from_utf8_lossy(&there);
    let Some((sum, body)) = there.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')) else {
        return Ok(FileState::Foreign);
    };
    let is_whole = sum == format!("{:08x}", crc32fast::hash(body.as_bytes()));
    Ok(if is_whole { FileState::Outdated } else { FileState::Changed })
}

fn refuse_foreign(path: &Path, found: FileState) -> anyhow::Result<()> {
    match found {
        FileState::Changed | FileState::Foreign => {
            bail!(
                "change {}: it is {}; move it away first, or keep it and do not use setup",
                path.display(),
                found.name()
            )
        }
        FileState::Nothing | FileState::InPlace | FileState::Outdated => Ok(()),
    }
}

/// Replaces the file atomically. The scratch file is hidden from Salt, whose patterns skip names that start with a dot.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let scratch = dir.join(format!(".{NAME}.{}", std::process::id()));
    // A killed run may have left one behind if process ids repeat.
    if let Err(error) = fs::remove_file(&scratch)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let put = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&scratch)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        file.sync_all()?;
        fs::rename(&scratch, path)?;
        File::open(dir)?.sync_all()
    };
    put().inspect_err(|_| {
        // A leftover is harmless.
        let _ = fs::remove_file(&scratch);
    })
}

fn remove(global: &Global, plan: &Plan, found: FileState) -> anyhow::Result<()> {
    refuse_foreign(&plan.path, found)?;
    if found.is_ours() {
        let remove_file = || {
            fs::remove_file(&plan.path)?;
            File::open(plan.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        remove_file().with_context(|| format!("remove {}", plan.path.display()))?;
    }
    let path = plan.path.display().to_string();
    let outcome = if found.is_ours() {
        format!("removed {path}; restart Salt")
    } else {
        format!("{path} does not exist")
    };
    let document = json!({ "path": path, "removed": found.is_ours() });
    output::show(global.output, &document, |out| Ok(out.line(&outcome)?))
}

/// Options of the file that a later file overrides.
fn overridden(args: &Args, plan: &Plan) -> Vec<String> {
    if args.minion.is_some() {
        return Vec::new();
    }
    let master = SaltMaster::read(&args.salt_config.join("master"));
    let in_effect = |option: &str, value: &str| {
        let configured = master.texts(option);
        match option {
            "event_return" => configured.contains(&"saltcellar"),
            "saltcellar.socket" => configured == [value.trim_matches('"')],
            _ => configured == [value] || master.int(option).is_some_and(|n| n.to_string() == value),
        }
    };
    let lost = plan.wanted.iter().filter(|(option, value)| !in_effect(option, value));
    lost.map(|(option, value)| format!("{option}: {value}")).collect()
}

/// Fails unless the file is in place and in effect.
fn ensure_in_place(plan: &Plan, found: FileState, overridden: &[String]) -> anyhow::Result<()> {
    let why = match found {
        FileState::InPlace if overridden.is_empty() => return Ok(()),
        FileState::InPlace => {
            format!("a later file of the master's configuration overrides {}", overridden.join(", "))
        }
        found => format!("it is {}", found.name()),
    };
    Err(finding(format!("{} is not in effect: {why}", plan.path.display())))
}

fn report(
    global: &Global,
    plan: &Plan,
    found: FileState,
    overridden: &[String],
    written: bool,
) -> anyhow::Result<()> {
    output::show(global.output, &document(plan, found, overridden, written), |out| {
        let state = if written { "written" } else { found.name() };
        out.line(&format!("{}: {state}", plan.path.display()))?;
        if written {
            print_list(out, "- ", plan)?;
        }
        Ok(())
    })
}

/// Prints the planned file, followed by remarks as comments.
fn show(global: &Global, plan: &Plan, found: FileState) -> anyhow::Result<()> {
    output::show(global.output, &document(plan, found, &[], false), |out| {
        out.text(&plan.text)?;
        out.line("")?;
        out.line(&format!("# {}: {}", plan.path.display(), found.name()))?;
        if matches!(found, FileState::Nothing | FileState::Outdated) {
            out.line(
                "# `saltcellar setup --write`, with the same flags, writes the lines above to this file",
            )?;
        }
        print_list(out, "# - ", plan)
    })
}

fn print_list(out: &mut Output, mark: &str, plan: &Plan) -> anyhow::Result<()> {
    Ok(plan.remarks.iter().chain(&plan.next).try_for_each(|line| out.line(&format!("{mark}{line}")))?)
}

fn document(plan: &Plan, found: FileState, overridden: &[String], written: bool) -> serde_json::Value {
    json!({
        "path": plan.path.display().to_string(),
        "state": found.name(),
        "written": written,
        "text": plan.text,
        "overruled": overridden,
        "remarks": plan.remarks,
        "next": plan.next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_a_valid_checksum_are_recognised_as_written_by_setup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let text = marked("# New text.", &[("master_job_cache", "saltcellar".to_owned())]);
        let is = || state_of(&path, &text).unwrap();
        assert_eq!(is(), FileState::Nothing);
        fs::write(dir.path().join(format!(".{NAME}.{}", std::process::id())), "torn").unwrap();
        write(&path, &text).unwrap();
        assert_eq!(is(), FileState::InPlace);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME]);
        write(&path, &marked("# Old text.", &[("master_job_cache", "saltcellar".to_owned())])).unwrap();
        assert_eq!(is(), FileState::Outdated);
        fs::write(&path, format!("{text}timeout: 5\n")).unwrap();
        assert_eq!(is(), FileState::Changed);
        fs::write(&path, "master_job_cache: redis\n").unwrap();
        assert_eq!(is(), FileState::Foreign);
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(is(), FileState::Foreign);
        let real = dir.path().join("real");
        fs::rename(&path, &real).unwrap();
        fs::write(&real, &text).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        assert_eq!(is(), FileState::Foreign, "a link");
    }

    #[test]
    fn values_are_quoted_as_yaml_if_necessary() {
        assert_eq!(yaml_text("/run/saltcellar/saltcellar.sock"), "/run/saltcellar/saltcellar.sock");
        assert_eq!(yaml_text("/a b: c"), r#""/a b: c""#);
        assert_eq!(yaml_text("https://master:4580"), r#""https://master:4580""#);
        assert_eq!(yaml_text("/a\"b"), r#""/a\"b""#);
    }
}
