//! `saltcellar setup`: a file among the master's configuration (`master.d`), or a minion's, that makes Salt use saltcellar.
//!
//! # Invariant
//!
//! Without `--write` or `--remove` nothing is changed. With them one file is, atomically, and only if it is not there or is as setup
//! left it: its first line names the sum of the rest. What a person wrote or changed is left alone and named.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use super::Global;
use super::doctor::SALT_CONFIG;
use super::output::{Format, Output, plain};
use crate::config::python_glob::has_magic;
use crate::config::salt_master::{SaltMaster, same_place};
use crate::config::{Config, SYSTEM_SOCKET, SocketChoice, Surroundings};

pub(super) const EXAMPLES: &str = "\
Without --write it only shows what it would write, and where.

Exit codes: 0 done, or in place; 1 it is not in place, or somebody else's file is in the way.

Examples:
  saltcellar setup                                   the file for the master: the job cache
  sudo saltcellar setup --write && sudo systemctl restart salt-master
  saltcellar setup --events event-return             events by Salt's own process, where the daemon cannot read the bus
  saltcellar setup --check --output json             is it in place, and does it take effect
  sudo saltcellar setup --remove                     as it was before
  saltcellar setup --minion https://master.example:4580 --ca /etc/salt/pki/saltcellar-ca.pem";

/// The file's name in `master.d` or `minion.d`.
const NAME: &str = "saltcellar.conf";
/// How its first line begins; the checksum of what follows that line comes next.
const MARK: &str = "# Written by `saltcellar setup`, sum ";
/// Its permissions: no secret is in it, and a master that is not root reads it too.
const MODE: u32 = 0o644;

/// Flags of `setup`.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct Args {
    /// Write the file; Salt takes it at its next start
    #[arg(long, group = "act")]
    write: bool,
    /// Say whether the file is in place and takes effect
    #[arg(long, group = "act")]
    check: bool,
    /// Remove the file
    #[arg(long, group = "act")]
    remove: bool,
    /// How events come: the daemon reads the bus, or Salt's event_return hands them over, or not at all
    #[arg(long, value_enum, default_value_t = Events::Bus)]
    events: Events,
    /// Leave the master's job cache as it is
    #[arg(long)]
    no_job_cache: bool,
    /// The file for minions of other machines instead: the URL of the daemon's HTTPS door
    #[arg(long, value_name = "URL", value_parser = door, conflicts_with_all = ["events", "no_job_cache"])]
    minion: Option<String>,
    /// With --minion: who vouches for the daemon's certificate, in PEM [default: whom the system trusts]
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "minion")]
    ca: Option<PathBuf>,
    /// Where Salt is configured, as Salt's own -c
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    salt_config: PathBuf,
}

/// How events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Events {
    /// `bus` in the daemon's configuration
    Bus,
    /// `event_return` in the master's
    EventReturn,
    /// Not archived
    None,
}

/// It is not as it should be; what was printed says why.
#[derive(Debug, thiserror::Error)]
#[error("find {} in place: {why}", path.display())]
pub(super) struct NotInPlace {
    path: PathBuf,
    why: String,
}

/// What is to be done, and to which file.
struct Plan {
    path: PathBuf,
    /// The file's whole text.
    text: String,
    /// Options that the text sets, as they are to read in the end.
    wanted: Vec<(&'static str, String)>,
    /// What else is worth knowing before it is written.
    remarks: Vec<String>,
    /// What is to be done after it is written.
    next: Vec<String>,
}

/// What stands at the file's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// What setup would write now.
    InPlace,
    /// What setup wrote with other options, or another version of it.
    Outdated,
    /// What setup wrote, changed since.
    Changed,
    /// Somebody else's.
    Foreign,
}

impl Found {
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

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let plan = match &args.minion {
        Some(url) => for_minion(args, url),
        None => for_master(global, args)?,
    };
    let found = look(&plan.path, &plan.text)?;
    if args.remove {
        return remove(global, &plan, found);
    }
    if args.write {
        refuse_foreign(&plan.path, found)?;
        if found != Found::InPlace {
            write(&plan.path, &plan.text).with_context(|| format!("write {}", plan.path.display()))?;
        }
        let overruled = overruled(args, &plan);
        report(global, &plan, Found::InPlace, &overruled, found != Found::InPlace)?;
        return in_place(&plan, Found::InPlace, &overruled);
    }
    if args.check {
        let overruled = if found == Found::InPlace { overruled(args, &plan) } else { Vec::new() };
        report(global, &plan, found, &overruled, false)?;
        return in_place(&plan, found, &overruled);
    }
    show(global, &plan, found)
}

/// The file for a master.
fn for_master(global: &Global, args: &Args) -> anyhow::Result<Plan> {
    let main = args.salt_config.join("master");
    let master = SaltMaster::read(&main);
    if !main.exists() && master.files.is_empty() {
        bail!("find a Salt master: there is no {} (name its directory by --salt-config)", main.display());
    }
    let (given, surroundings) = (global.given(), Surroundings::of_process());
    let socket = SocketChoice::find(&given, &surroundings).context("read the configuration")?.path;
    let config = Config::load(&given, &surroundings).context("read the configuration")?;
    let path = directory(&master, &args.salt_config)?.join(NAME);
    let mut wanted = Vec::new();
    let (mut remarks, mut next) = (Vec::new(), Vec::new());
    if !args.no_job_cache {
        let now = master.text("master_job_cache").unwrap_or("local_cache");
        if !matches!(now, "saltcellar" | "local_cache") {
            remarks.push(format!("master_job_cache is {now} now; its jobs stay where they are, and Salt asks saltcellar from then on"));
        }
        wanted.push(("master_job_cache", "saltcellar".to_owned()));
    }
    let reads = config.bus.iter().any(|dir| same_place(dir, &master.sock_dir));
    // Unless configured it is a text without anything in it.
    let others: Vec<_> =
        master.texts("event_return").into_iter().filter(|name| !matches!(*name, "" | "saltcellar")).collect();
    match args.events {
        Events::EventReturn => {
            // Salt takes a list here. What it has already stays in it.
            let names: Vec<_> = others.iter().copied().chain(["saltcellar"]).collect();
            wanted.push(("event_return", format!("[{}]", names.join(", "))));
            wanted.push(("event_return_queue", "1000".to_owned()));
            wanted.push(("event_return_queue_max_seconds", "1".to_owned()));
            if reads {
                remarks.push(
                    "the daemon reads this master's bus already: `--events bus` does with less".to_owned(),
                );
            }
        }
        Events::Bus if !reads => next.push(format!(
            "for events, add to /etc/saltcellar/saltcellar.yaml: `bus: [{}]`, and restart the daemon",
            master.sock_dir.display()
        )),
        Events::Bus | Events::None => {}
    }
    // Root's default is the system's socket; anybody else may have one of their own.
    if socket != Path::new(SYSTEM_SOCKET) || master.user != "root" {
        wanted.push(("saltcellar.socket", yaml_text(&socket.display().to_string())));
    }
    if wanted.is_empty() {
        bail!("write a file: nothing is to be in it with these flags");
    }
    next.push("restart the master (`systemctl restart salt-master`): its processes keep the job cache they began with".to_owned());
    next.push("`saltcellar doctor` says whether anything is missing".to_owned());
    let head =
        "# saltcellar beside this master. To undo it: `saltcellar setup --remove`, and restart the master.";
    Ok(Plan { path, text: marked(head, &wanted), wanted, remarks, next })
}

/// The file for a minion of another machine.
fn for_minion(args: &Args, url: &str) -> Plan {
    let mut wanted = vec![("saltcellar.url", yaml_text(url))];
    if let Some(ca) = &args.ca {
        wanted.push(("saltcellar.ca", yaml_text(&ca.display().to_string())));
    }
    let head = "# Where this minion's `--return saltcellar` goes. To undo it: `saltcellar setup --minion URL --remove`.";
    Plan {
        path: args.salt_config.join("minion.d").join(NAME),
        text: marked(head, &wanted),
        wanted,
        remarks: vec!["put the same file onto every minion that is to return by itself".to_owned()],
        next: vec![
            "the minion needs the extension: its package, or `salt '*' saltutil.sync_returners`".to_owned(),
            "restart the minion; then `salt MINION test.ping --return saltcellar`".to_owned(),
        ],
    }
}

/// The URL of an HTTPS door.
fn door(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").unwrap_or_default();
    let fits = !host.is_empty()
        && !host.starts_with([':', '/'])
        && text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'));
    fits.then(|| text.to_owned()).ok_or_else(|| {
        "give the URL of the daemon's HTTPS door, such as https://master.example:4580".to_owned()
    })
}

/// The path of a file on the minion.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("give an absolute path, that of the file on the minion".to_owned())
    }
}

/// The directory whose files the master includes.
fn directory(master: &SaltMaster, salt_config: &Path) -> anyhow::Result<PathBuf> {
    let include = master.text("default_include").unwrap_or("master.d/*.conf");
    let Some(dir) = include.strip_suffix("/*.conf").filter(|dir| !has_magic(dir)) else {
        bail!(
            "find where to write: default_include is {include:?}, and not a directory's *.conf; put the lines where it looks"
        );
    };
    Ok(salt_config.join(dir))
}

/// The whole file: its mark, what it is, the options.
fn marked(head: &str, wanted: &[(&'static str, String)]) -> String {
    let mut body = format!("{head}\n");
    for (option, value) in wanted {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{option}: {value}");
    }
    format!("{MARK}{:08x}\n{body}", crc32fast::hash(body.as_bytes()))
}

/// Text as YAML, in quotes where it is more than a path's usual characters.
fn yaml_text(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.starts_with('/') && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        json!(text).to_string()
    }
}

/// What is there now.
fn look(path: &Path, text: &str) -> anyhow::Result<Found> {
    match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Found::Nothing);
        }
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
        // A link is somebody's doing, whatever it leads to.
        Ok(found) if !found.is_file() => return Ok(Found::Foreign),
        Ok(_) => {}
    }
    let there = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    if there == text.as_bytes() {
        return Ok(Found::InPlace);
    }
    let there = String::from_utf8_lossy(&there);
    let Some((sum, body)) = there.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')) else {
        return Ok(Found::Foreign);
    };
    let is_whole = sum == format!("{:08x}", crc32fast::hash(body.as_bytes()));
    Ok(if is_whole { Found::Outdated } else { Found::Changed })
}

fn refuse_foreign(path: &Path, found: Found) -> anyhow::Result<()> {
    match found {
        Found::Changed | Found::Foreign => {
            bail!(
                "touch {}: it is {}; move it away first, or keep it and do without setup",
                path.display(),
                found.name()
            )
        }
        Found::Nothing | Found::InPlace | Found::Outdated => Ok(()),
    }
}

/// Puts the whole file there at once: whoever reads the directory meanwhile finds the old one or the new one. Salt's
/// patterns pass over names that begin with a dot.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let scratch = dir.join(format!(".{NAME}.{}", std::process::id()));
    // What a run that was killed left behind, where numbers of processes come again soon.
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
        // It is in nobody's way, if it is there at all.
        let _ = fs::remove_file(&scratch);
    })
}

fn remove(global: &Global, plan: &Plan, found: Found) -> anyhow::Result<()> {
    refuse_foreign(&plan.path, found)?;
    if found.is_ours() {
        let gone = || {
            fs::remove_file(&plan.path)?;
            File::open(plan.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        gone().with_context(|| format!("remove {}", plan.path.display()))?;
    }
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table if found.is_ours() => {
            out.line(&format!("removed {}; restart Salt", plain(&plan.path.display().to_string())))?;
        }
        Format::Table => out.line(&format!("{} is not there", plain(&plan.path.display().to_string())))?,
        Format::Json | Format::Jsonl => {
            out.json(&json!({ "path": plan.path.display().to_string(), "removed": found.is_ours() }))?;
        }
    }
    Ok(out.flush()?)
}

/// Options of the file that Salt will not take from it, because a later file says otherwise.
fn overruled(args: &Args, plan: &Plan) -> Vec<String> {
    if args.minion.is_some() {
        return Vec::new();
    }
    let master = SaltMaster::read(&args.salt_config.join("master"));
    let takes = |option: &str, value: &str| {
        let given = master.texts(option);
        match option {
            "event_return" => given.contains(&"saltcellar"),
            "saltcellar.socket" => given == [value.trim_matches('"')],
            _ => given == [value] || master.int(option).is_some_and(|n| n.to_string() == value),
        }
    };
    let lost = plan.wanted.iter().filter(|(option, value)| !takes(option, value));
    lost.map(|(option, value)| format!("{option}: {value}")).collect()
}

/// The verdict of `--check`, and of `--write` after it has written.
fn in_place(plan: &Plan, found: Found, overruled: &[String]) -> anyhow::Result<()> {
    let why = match found {
        Found::InPlace if overruled.is_empty() => return Ok(()),
        Found::InPlace => {
            format!("a later file of the master's configuration overrules {}", overruled.join(", "))
        }
        found => format!("it is {}", found.name()),
    };
    Err(NotInPlace { path: plan.path.clone(), why }.into())
}

/// What is so, and what is to be done next.
fn report(
    global: &Global,
    plan: &Plan,
    found: Found,
    overruled: &[String],
    written: bool,
) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            let state = if written { "written" } else { found.name() };
            out.line(&format!("{}: {state}", plain(&plan.path.display().to_string())))?;
            if written {
                for line in plan.remarks.iter().chain(&plan.next) {
                    out.line(&format!("- {}", plain(line)))?;
                }
            }
        }
        Format::Json | Format::Jsonl => out.json(&document(plan, found, overruled, written))?,
    }
    Ok(out.flush()?)
}

/// What would be written, as a file that holds it and says the rest in comments.
fn show(global: &Global, plan: &Plan, found: Found) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            out.text(&plan.text)?;
            let path = plan.path.display();
            out.line("")?;
            out.line(&format!("# {}: {}", plain(&path.to_string()), found.name()))?;
            if matches!(found, Found::Nothing | Found::Outdated) {
                out.line("# `saltcellar setup --write`, with the same flags, writes the lines above to it")?;
            }
            for line in plan.remarks.iter().chain(&plan.next) {
                out.line(&format!("# - {}", plain(line)))?;
            }
        }
        Format::Json | Format::Jsonl => out.json(&document(plan, found, &[], false))?,
    }
    Ok(out.flush()?)
}

fn document(plan: &Plan, found: Found, overruled: &[String], written: bool) -> serde_json::Value {
    json!({
        "path": plan.path.display().to_string(),
        "state": found.name(),
        "written": written,
        "text": plan.text,
        "overruled": overruled,
        "remarks": plan.remarks,
        "next": plan.next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_again_by_its_mark_and_nobody_elses_is_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let text = marked("# What it is.", &[("master_job_cache", "saltcellar".to_owned())]);
        let is = || look(&path, &text).unwrap();
        assert_eq!(is(), Found::Nothing);
        fs::write(dir.path().join(format!(".{NAME}.{}", std::process::id())), "torn").unwrap();
        write(&path, &text).unwrap();
        assert_eq!(is(), Found::InPlace);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME]);
        write(&path, &marked("# What it was.", &[("master_job_cache", "saltcellar".to_owned())])).unwrap();
        assert_eq!(is(), Found::Outdated);
        fs::write(&path, format!("{text}timeout: 5\n")).unwrap();
        assert_eq!(is(), Found::Changed);
        fs::write(&path, "master_job_cache: redis\n").unwrap();
        assert_eq!(is(), Found::Foreign);
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(is(), Found::Foreign);
        let real = dir.path().join("real");
        fs::rename(&path, &real).unwrap();
        fs::write(&real, &text).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        assert_eq!(is(), Found::Foreign, "a link");
    }

    #[test]
    fn values_are_yaml_whatever_is_in_them() {
        assert_eq!(yaml_text("/run/saltcellar/saltcellar.sock"), "/run/saltcellar/saltcellar.sock");
        assert_eq!(yaml_text("/a b: c"), r#""/a b: c""#);
        assert_eq!(yaml_text("https://master:4580"), r#""https://master:4580""#);
        assert_eq!(yaml_text("/a\"b"), r#""/a\"b""#);
    }
}
