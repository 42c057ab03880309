//! What a Salt master's configuration says that is missing, dangerous or of no use beside saltcellar.
//!
//! Each check is a function of what was read, named as the option that it is about. None of them changes anything, and none
//! needs a daemon or a master to be running; what only a running one has, such as a socket, is passed over while it is not there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::access::{ENTER, READ, WRITE, Who};
use super::python::{Installed, single_file};
use super::{Advice, Findings, Verdict, options};
use crate::config::salt_master::{SaltMaster, same_place};
use crate::config::{Config, SYSTEM_SOCKET};
use crate::reactor::{Account, acting};
use crate::sls::Value;

/// What the checks look at.
pub(super) struct Beside<'a> {
    /// The master's configuration.
    pub(super) master: &'a SaltMaster,
    /// The daemon's.
    pub(super) config: &'a Config,
    /// The daemon's socket.
    pub(super) socket: &'a Path,
    /// Whom the daemon runs as, or would.
    pub(super) daemon: &'a Who,
    /// What Salt's Python has, or why that is not known.
    pub(super) python: &'a Result<Installed, String>,
}

/// Where the master uses saltcellar.
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct Uses {
    pub(super) job_cache: bool,
    pub(super) event_return: bool,
    pub(super) ext_job_cache: bool,
    /// The daemon reads this master's bus.
    pub(super) bus: bool,
}

impl Uses {
    fn of(beside: &Beside<'_>) -> Self {
        let master = beside.master;
        let several = master.texts("multi_returner");
        let names = |option: &str| {
            let given = master.texts(option);
            let given = given.iter().flat_map(|names| names.split(',')).map(str::trim);
            given.clone().any(|name| name == "saltcellar")
                || (given.clone().any(|name| name == "multi_returner") && several.contains(&"saltcellar"))
        };
        Self {
            job_cache: names("master_job_cache"),
            event_return: names("event_return"),
            ext_job_cache: names("ext_job_cache"),
            bus: beside.config.bus.iter().any(|dir| same_place(dir, &master.sock_dir)),
        }
    }
}

/// Goes through all of it.
pub(super) fn look(found: &mut Findings, beside: &Beside<'_>) {
    let uses = Uses::of(beside);
    configuration(found, beside);
    use_of_saltcellar(found, beside, &uses);
    extension(found, beside, &uses);
    extensions_socket(found, beside, &uses);
    options::ipc_write_buffer(found, beside, &uses);
    options::ipc_mode(found, beside, &uses);
    options::event_return(found, beside, &uses);
    options::max_event_size(found, beside, &uses);
    options::job_cache(found, beside, &uses);
    options::ext_job_cache(found, beside, &uses);
    options::job_cache_store_endtime(found, beside, &uses);
    options::keep_jobs_seconds(found, beside, &uses);
    sock_dir(found, beside, &uses);
    keys(found, beside);
    reactor(found, beside);
    helper(found, beside);
    nobody_reacts(found, beside);
}

/// The files themselves, in Salt's words where Salt has some.
fn configuration(found: &mut Findings, beside: &Beside<'_>) {
    const CHECK: &str = "master_config";
    let Beside { master, .. } = beside;
    for note in &master.notes {
        found.say(CHECK, Verdict::Warning, format!("Salt would say: {}", note.message));
    }
    if master.files.is_empty() {
        let words = format!("{} cannot be read: Salt's defaults are assumed", master.conf_file.display());
        found.say(CHECK, Verdict::Warning, words);
    } else {
        let files: Vec<_> = master.files.iter().map(|file| file.display().to_string()).collect();
        found.say(CHECK, Verdict::Ok, files.join(", "));
    }
}

fn use_of_saltcellar(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "master_job_cache";
    let now = beside.master.text("master_job_cache").unwrap_or("local_cache");
    if uses.job_cache {
        found.say(CHECK, Verdict::Ok, "saltcellar is the master's job cache");
    } else if uses.event_return || uses.ext_job_cache || uses.bus {
        let words =
            format!("the master keeps its jobs in {now}; saltcellar gets events or minions' returns only");
        found.say(CHECK, Verdict::Ok, words);
    } else {
        found.advise(
            CHECK,
            Verdict::Warning,
            format!("this master hands nothing to saltcellar: its job cache is {now}"),
            Advice {
                why: "no option names saltcellar, and the daemon reads no bus of this master".to_owned(),
                write: "run `saltcellar setup --write`, and restart the master".to_owned(),
            },
        );
    }
}

/// Whether Salt's loader finds the returner, and which.
fn extension(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "extension";
    if !(uses.job_cache || uses.event_return || uses.ext_job_cache) {
        return;
    }
    let file = single_file(&candidates(beside.master));
    let packaged = beside.python.as_ref().ok().and_then(|python| python.extension.clone());
    let install = "`salt-pip install` the wheel (`pip` where Salt came by pip), or put the single file into salt://_returners/ and \
                   run `salt-run saltutil.sync_returners`; then restart the master";
    let version = match (&file, &packaged, beside.python) {
        (Some((path, version)), packaged, _) => {
            if packaged.is_some() {
                found.advise(
                    CHECK,
                    Verdict::Warning,
                    format!("the extension is there twice: {}, and as a package", path.display()),
                    Advice {
                        why: "Salt takes the file, so an update of the package changes nothing".to_owned(),
                        write: format!("remove {}, or uninstall the package", path.display()),
                    },
                );
            }
            version.clone().or_else(|| packaged.clone())
        }
        (None, Some(version), _) => Some(version.clone()),
        (None, None, Ok(python)) => {
            return found.advise(
                CHECK,
                Verdict::Problem,
                format!("Salt's Python ({}) does not find the extension", python.python.display()),
                Advice {
                    why: "a master whose returner is missing cannot give a job its id: no job is sent"
                        .to_owned(),
                    write: install.to_owned(),
                },
            );
        }
        (None, None, Err(why)) => {
            return found.advise(
                CHECK,
                Verdict::Warning,
                format!("whether Salt finds the extension is not known: {why}"),
                Advice {
                    why: "a master whose returner is missing cannot give a job its id: no job is sent"
                        .to_owned(),
                    write: "name Salt's Python by --salt-python, or see that the extension is installed"
                        .to_owned(),
                },
            );
        }
    };
    let ours = env!("CARGO_PKG_VERSION");
    match version {
        Some(theirs) if theirs != ours => found.advise(
            CHECK,
            Verdict::Warning,
            format!("the extension is of version {theirs}, this program of {ours}"),
            Advice {
                why: "they are tested together; an older one may lack calls that the other makes".to_owned(),
                write: install.to_owned(),
            },
        ),
        Some(theirs) => found.say(CHECK, Verdict::Ok, format!("version {theirs} is found by Salt")),
        None => found.say(CHECK, Verdict::Ok, "it is found by Salt; it does not say its version"),
    }
}

/// Where a returner that is one file may lie, in the order in which Salt looks.
fn candidates(master: &SaltMaster) -> Vec<PathBuf> {
    const FILE: &str = "returners/saltcellar.py";
    let mut found: Vec<PathBuf> =
        master.texts("returner_dirs").iter().map(|dir| Path::new(dir).join("saltcellar.py")).collect();
    found.extend(master.texts("extension_modules").iter().map(|dir| Path::new(dir).join(FILE)));
    found.extend(master.texts("module_dirs").iter().map(|dir| Path::new(dir).join(FILE)));
    found
}

/// The socket that the extension asks at, and whether the master's user may open it.
fn extensions_socket(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "saltcellar.socket";
    if !(uses.job_cache || uses.event_return) {
        return;
    }
    let Beside { master, socket, .. } = beside;
    let said = setting(master, "socket");
    // A user other than root may take a socket of their own where this one is missing; then nobody can tell from here.
    let asked = said.clone().unwrap_or_else(|| SYSTEM_SOCKET.to_owned());
    if (said.is_some() || master.user == "root") && !same_place(Path::new(&asked), socket) {
        return found.advise(
            CHECK,
            Verdict::Problem,
            format!("the extension asks at {asked}, the daemon listens at {}", socket.display()),
            Advice {
                why: "all that the master stores goes to its spool, and is lost when that is full".to_owned(),
                write: format!("saltcellar.socket: {}", socket.display()),
            },
        );
    }
    let Ok(file) = fs::metadata(socket) else { return };
    let Some(user) = Who::named(&master.user) else { return };
    if !extension_trusts(beside, user.uid) {
        let name = &beside.daemon.name;
        return found.advise(
            CHECK,
            Verdict::Problem,
            format!(
                "the extension does not trust {name}, the user of {}, and sends nothing there",
                socket.display()
            ),
            Advice {
                why: "all that the master stores goes to its spool, and is lost when that is full".to_owned(),
                write: format!("saltcellar.daemon_user: {name}"),
            },
        );
    }
    let dir = socket.parent().and_then(|dir| fs::metadata(dir).ok());
    if user.may(&file, READ | WRITE) && dir.is_none_or(|dir| user.may(&dir, ENTER)) {
        found.say(CHECK, Verdict::Ok, format!("{}, which the master's user may open", socket.display()));
    } else {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("the master's user {} may not open {}", user.name, socket.display()),
            Advice {
                why: "all that the master stores goes to its spool, and is lost when that is full".to_owned(),
                write: format!("`usermod -aG saltcellar {}`, or run the daemon as that user", user.name),
            },
        );
    }
}

/// Would the extension in the process of a master with that user trust the daemon's? By the rules of its `peer.py`.
fn extension_trusts(beside: &Beside<'_>, master_uid: u32) -> bool {
    let uid = beside.daemon.uid;
    if uid == 0 || uid == master_uid {
        return true;
    }
    let map = beside.master.option("saltcellar").and_then(Value::as_map);
    let user = beside.master.option("saltcellar.daemon_user").or_else(|| map?.get("daemon_user"));
    match user {
        Some(Value::Int(number)) => return *number == i64::from(uid),
        Some(Value::Str(name)) if !name.is_empty() => {
            let named = name.parse().ok().or_else(|| Some(Who::named(name)?.uid));
            return named == Some(uid);
        }
        _ => {}
    }
    let Some(dir) = beside.socket.parent().and_then(|dir| dir.canonicalize().ok()) else { return false };
    let is = |dir: &Path, fits: &dyn Fn(&fs::Metadata) -> bool| fs::metadata(dir).is_ok_and(|dir| fits(&dir));
    is(&dir, &|dir| dir.uid() == uid)
        && dir.ancestors().skip(1).all(|above| {
            is(above, &|above| [0, uid, master_uid].contains(&above.uid()) && above.mode() & 0o022 == 0)
        })
}

/// The directory of the master's sockets, and the bus in it.
fn sock_dir(found: &mut Findings, beside: &Beside<'_>, uses: &Uses) {
    const CHECK: &str = "sock_dir";
    let Beside { master, daemon, .. } = beside;
    let name = master.sock_dir.display();
    let Ok(dir) = fs::metadata(&master.sock_dir) else { return };
    if dir.mode() & 0o002 != 0 && dir.mode() & 0o1000 == 0 {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("anyone may write to {name} (mode {:04o})", dir.mode() & 0o7777),
            Advice {
                why: "whoever puts a socket of their own in the bus's place is believed by Salt and by saltcellar".to_owned(),
                write: format!("`chmod o-w {name}`"),
            },
        );
    }
    if !uses.bus {
        return;
    }
    let bus = master.sock_dir.join("master_event_pub.ipc");
    let Ok(socket) = fs::symlink_metadata(&bus) else { return };
    let mode = socket.mode() & 0o777;
    if daemon.may(&socket, READ | WRITE) && daemon.may(&dir, ENTER) {
        found.say(
            CHECK,
            Verdict::Ok,
            format!("{}, mode {mode:04o}, which {} may open", bus.display(), daemon.name),
        );
    } else {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("the daemon's user {} may not open {} (mode {mode:04o})", daemon.name, bus.display()),
            Advice {
                why: "no event is archived; up to Salt 3006 the socket is open to the master's user alone"
                    .to_owned(),
                write: format!(
                    "run the daemon as {} (`systemctl edit saltcellar`: User={})",
                    master.user, master.user
                ),
            },
        );
    }
}

/// Keys: those that minions sign with, and the master's own.
fn keys(found: &mut Findings, beside: &Beside<'_>) {
    const CHECK: &str = "pki_dir";
    let Beside { master, config, daemon, .. } = beside;
    let private = master.pki_dir.join("master.pem");
    if let Ok(key) = fs::metadata(&private)
        && key.mode() & 0o077 != 0
    {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("{} may be read by others (mode {:04o})", private.display(), key.mode() & 0o777),
            Advice {
                why: "whoever has the master's private key is the master to every minion".to_owned(),
                write: format!("`chmod 0400 {}`", private.display()),
            },
        );
    }
    if config.https.listen.is_none() {
        return;
    }
    if !same_place(&config.https.pki_dir, &master.pki_dir) {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!(
                "the HTTPS door believes the keys in {}, this master's are in {}",
                config.https.pki_dir.display(),
                master.pki_dir.display()
            ),
            Advice {
                why: "no minion is let in whose key is not there".to_owned(),
                write: format!("https.pki_dir: {} in the daemon's configuration", master.pki_dir.display()),
            },
        );
    }
    let accepted = config.https.pki_dir.join("minions");
    let readable = [config.https.pki_dir.as_path(), accepted.as_path()]
        .iter()
        .all(|dir| fs::metadata(dir).is_ok_and(|dir| daemon.may(&dir, READ | ENTER)));
    if readable {
        found.say(CHECK, Verdict::Ok, format!("{} may read {}", daemon.name, accepted.display()));
    } else {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("the daemon's user {} cannot read {}", daemon.name, accepted.display()),
            Advice {
                why: "the HTTPS door verifies minions by the keys there, and lets nobody in without"
                    .to_owned(),
                write: format!("run the daemon as {}, whose keys they are", master.user),
            },
        );
    }
}

/// Two that react to one event do everything twice.
fn reactor(found: &mut Findings, beside: &Beside<'_>) {
    const CHECK: &str = "reactor";
    let Beside { master, config, .. } = beside;
    if master.runs_reactor() && reacts(config, &master.conf_file) {
        found.advise(
            CHECK,
            Verdict::Problem,
            format!("Salt's own reactor is on ({}), and saltcellar's too", said_at(master, CHECK)),
            Advice {
                why: "so that nothing is done twice, saltcellar's only watches".to_owned(),
                write: "`engines: [saltcellar-reactor]` into the master's configuration, which keeps Salt's own from starting, and \
                        restart the master; or reactor.shadow: true into the daemon's, to look on only"
                    .to_owned(),
            },
        );
    }
}

/// Salt's Python runs as the master's user, or not at all.
fn helper(found: &mut Findings, beside: &Beside<'_>) {
    const CHECK: &str = "reactor.python";
    let Beside { master, config, daemon, .. } = beside;
    let reactor = &config.reactor;
    let is_its_reactor = reactor.master.as_deref().is_some_and(|path| same_place(path, &master.conf_file));
    let (true, Some(user)) = (is_its_reactor, master.configured_user()) else { return };
    match Account::switch(user, daemon.uid) {
        Ok(_) => found.say(CHECK, Verdict::Ok, format!("Salt's Python runs as {user}, the master's user")),
        Err(why) => found.advise(
            CHECK,
            Verdict::Problem,
            why,
            Advice {
                why: "reactor files that only Salt's Python can render (`#!py`, `salt[...]`) fail".to_owned(),
                write: format!("run the daemon as root or as {user}, and see that {user} exists"),
            },
        ),
    }
}

/// A reactor that was handed over and that nobody took.
fn nobody_reacts(found: &mut Findings, beside: &Beside<'_>) {
    const CHECK: &str = "reactor";
    let Beside { master, config, .. } = beside;
    let salts = acting::of_master(master);
    let is_ours = config.reactor.master.as_deref().is_some_and(|path| same_place(path, &master.conf_file));
    if salts.runs || salts.rules.is_empty() || is_ours {
        return;
    }
    let count = salts.rules.len();
    found.advise(
        CHECK,
        Verdict::Problem,
        format!(
            "nobody acts on the {count} rules of `reactor` ({}): Salt's own reactor is off ({}), and the daemon has none for this master",
            said_at(master, CHECK),
            said_at(master, "engines")
        ),
        Advice {
            why: "events that these rules take cause nothing".to_owned(),
            write: format!(
                "`reactor: {{master: {}}}` into the daemon's configuration, and restart it; or take `saltcellar-reactor` out of the \
                 master's `engines`, and restart the master",
                master.conf_file.display()
            ),
        },
    );
}

/// Does the daemon react for the master of that file? With `shadow` it looks on and carries nothing out.
fn reacts(config: &Config, conf_file: &Path) -> bool {
    let reactor = &config.reactor;
    reactor.master.as_deref().is_some_and(|path| same_place(path, conf_file)) && !reactor.settings.shadow
}

/// A setting of the extension: flat, or in the map `saltcellar`; the flat one wins.
pub(super) fn setting(master: &SaltMaster, key: &str) -> Option<String> {
    let map = master.option("saltcellar").and_then(Value::as_map);
    let said = master.text(&format!("saltcellar.{key}")).or_else(|| map?.get(key)?.as_str());
    said.filter(|said| !said.is_empty()).map(str::to_owned)
}

/// The file and line that say an option at top level; the last file that does counts.
pub(super) fn said_at(master: &SaltMaster, key: &str) -> String {
    for path in master.files.iter().rev() {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().position(|line| {
            line.trim_start_matches(['"', '\''])
                .strip_prefix(key)
                .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
        });
        if let Some(line) = line {
            return format!("{}:{}", path.display(), line + 1);
        }
    }
    "Salt's default".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_cannot_run_salts_python_as_the_masters_user_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        fs::write(&file, "user: root\n").unwrap();
        let master = SaltMaster::read(&file);
        let verdicts = |uid: u32, reactor: bool| {
            let mut config = Config::for_state_dir(Path::new("/state"), "/s");
            config.reactor.master = reactor.then(|| file.clone());
            let (socket, daemon) = (Path::new("/s"), Who::numbered(uid));
            let python = Err(String::new());
            let beside =
                Beside { master: &master, config: &config, socket, daemon: &daemon, python: &python };
            let mut found = Findings::default();
            helper(&mut found, &beside);
            found.0.iter().map(|finding| (finding.verdict, finding.words.clone())).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(4_000_000, false), []);
        assert_eq!(verdicts(0, true)[0].0, Verdict::Ok);
        let (verdict, words) = verdicts(4_000_000, true).remove(0);
        assert_eq!(verdict, Verdict::Problem);
        assert!(words.contains("Salt runs as user root") && words.contains("uid 4000000"), "{words}");
    }

    #[test]
    fn a_daemon_reacts_for_a_master_unless_it_only_looks_on() {
        let with = |master: Option<&str>, shadow| {
            let mut config = Config::for_state_dir(Path::new("/state"), "/s");
            config.reactor.master = master.map(PathBuf::from);
            config.reactor.settings.shadow = shadow;
            reacts(&config, Path::new("/etc/salt/master"))
        };
        assert!(!with(None, false));
        assert!(with(Some("/etc/salt/master"), false));
        assert!(!with(Some("/etc/salt/master"), true));
        assert!(!with(Some("/srv/other/master"), false), "for another one");
    }
}
