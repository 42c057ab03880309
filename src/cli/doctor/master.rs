//! Checks of a Salt master's configuration: options that are missing, dangerous or useless with
//! saltcellar.
//!
//! Each check is a function of the configuration, named after its option. Checks need no running
//! daemon or master: files that exist only at run time, such as sockets, are skipped while they are
//! missing.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use salt_sls::{Map, Value};

use super::access::{ENTER, READ, User, WRITE};
use super::check::{Check, Run};
use super::finding::{CheckResult, Findings, Reporter};
use super::master_use::{MasterContext, Uses, option_origin};
use super::python::{Installed, extras_with_extension, is_in_extras, module_file};

use crate::base::users;
use crate::cli::yaml;
use crate::config::salt_master::{AcceptedKeys, SaltMaster, python, same_file};
use crate::config::{Config, SYSTEM_SOCKET};
use crate::reactor::{Account, acting};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "salt",
        not_ok_when: "the running master was started with a Python that no longer exists; otherwise it shows the Salt that was found, and where",
        run: Run::Master(salt),
    },
    Check {
        name: "master_config",
        not_ok_when: "a file of it cannot be read, Salt would report an error in it, or the master's id is not known or not Salt's; types of options are checked by Salt itself, if its Python is found",
        run: Run::Master(configuration),
    },
    Check {
        name: "master_job_cache",
        not_ok_when: "the master sends nothing to saltcellar",
        run: Run::Master(use_of_saltcellar),
    },
    Check {
        name: "extension",
        not_ok_when: "Salt does not find it, it has another version, or is installed twice; an [upgrade of Salt](UPGRADE.md#upgrade-salt) will remove it",
        run: Run::Master(extension),
    },
    Check {
        name: "saltcellar.socket",
        not_ok_when: "the extension uses another socket than the daemon, the master's user may not open the socket, or the extension does not trust the daemon's user",
        run: Run::Master(extension_socket_access),
    },
    Check {
        name: "sock_dir",
        not_ok_when: "any user may write to it, or the daemon's user may not open the bus in it",
        run: Run::Master(sock_dir),
    },
    Check {
        name: "pki_dir",
        not_ok_when: "other users can read the master's private key; the minion listener trusts another master's keys, cannot read them, or the master keeps them in another form (`keys.cache_driver`)",
        run: Run::Master(keys),
    },
    Check {
        name: "engines",
        not_ok_when: "an engine in one file is not started, because another file replaces the list; a mapping keeps Salt's reactor on",
        run: Run::Master(engines),
    },
    Check {
        name: "reactor",
        not_ok_when: "Salt's reactor and saltcellar's are both on, or Salt's was handed over and the daemon has none",
        run: Run::Master(reactor),
    },
    Check {
        name: "reactor.python",
        not_ok_when: "Salt's Python is not found or does not exist; the master's `user` does not exist, or the daemon cannot start Salt's Python as that user: it is neither root nor that user",
        run: Run::Master(helper),
    },
];

/// The Salt that is installed, and whether the running one still is.
fn salt(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    let mut found = found.of("salt");

    if let Some(running) = context.vanished {
        found.warn_because(
            format!(
                "the master runs in {}, which no longer exists",
                running.display()
            ),
            "Salt was upgraded, and the old master still runs; its processes fail to load modules",
            "`systemctl restart salt-master`",
        );
    }

    // A Python that cannot be queried is reported by the check of the extension, if that matters.
    if let Ok(installed) = context.python
        && let Some(salt) = &installed.salt
    {
        let version = installed
            .version
            .as_deref()
            .map_or_else(String::new, |version| format!(" (Python {version})"));
        found.ok(format!(
            "{salt}, in {}{version}",
            installed.python.display()
        ));
    }
}

/// The configuration files, with Salt's warnings about them.
fn configuration(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    let mut found = found.of("master_config");
    let MasterContext { master, .. } = context;

    // Salt itself adds warnings about the types of options, which are not known here.
    let of_salt = context.python.iter().flat_map(|python| &python.warnings);

    for message in master.notes.iter().map(|note| &note.message).chain(of_salt) {
        found.warn(format!("Salt warns: {message}"));
    }

    let of_salt = context.python.as_ref().ok();
    let of_salt = of_salt.and_then(|python| python.id.as_ref());
    if master.id_is_of_function {
        found.warn_because(
            format!("the master's id is not known: id_function is set ({}), and id is not", option_origin(master, "id_function")),
            "only Salt can run that function, therefore the daemon shows events and jobs without the master that they come from",
            "`id` in the master's configuration, with what the function returns",
        );
    } else if let Some(id) = of_salt.filter(|id| **id != master.id) {
        found.warn_because(
            format!("the daemon takes {:?} for the master's id, and Salt takes {id:?}", master.id),
            "without an id in its configuration, Salt asks DNS for the name of this host; the daemon does not, and shows events and jobs with a master \
             that does not exist",
            format!("`id: {id}` in the master's configuration"),
        );
    }

    if master.files.is_empty() {
        // Salt also starts without a file.
        let message = format!(
            "{} is unreadable: Salt's defaults are assumed",
            master.conf_file.display()
        );
        found.warn(message);
    } else {
        let files: Vec<_> = master
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        found.ok(files.join(", "));
    }
}

fn use_of_saltcellar(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    let mut found = found.of("master_job_cache");

    let now = context
        .master
        .text("master_job_cache")
        .unwrap_or("local_cache");

    if uses.job_cache {
        found.ok("saltcellar is the master's job cache");
    // A choice: saltcellar can archive alongside another job cache.
    } else if uses.event_return || uses.ext_job_cache || uses.bus {
        let message = format!(
            "the master's job cache is {now}; saltcellar receives only events or minions' returns"
        );
        found.ok(message);
    } else {
        found.warn_because(
            format!("this master does not use saltcellar: its job cache is {now}"),
            "no option names saltcellar, and the daemon reads no bus of this master",
            "`saltcellar setup`",
        );
    }
}

/// Whether Salt's loader finds the returner, its version, and whether it remains after an upgrade
/// of Salt.
fn extension(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    const WHY: &str =
        "without its returner, the master cannot create job ids and publishes no jobs";

    let mut found = found.of("extension");
    // This master never calls the returner.
    if !(uses.job_cache || uses.event_return || uses.ext_job_cache) {
        return;
    }

    let master = context.master;
    // Salt finds files before packages, so the file is what counts if there are both.
    let file = module_file(&candidates(master));
    let packaged = context
        .python
        .as_ref()
        .ok()
        .and_then(|python| python.extension.clone());

    let install = "`saltcellar setup` (or `salt-pip install` its wheel), then restart the master";

    let version = match (&file, &packaged, context.python) {
        // A file is found without a query of Salt's Python, which may fail.
        (Some((path, version)), packaged, _) => {
            if packaged.is_some() {
                found.warn_because(
                    format!(
                        "the extension is installed twice: as {} and as a package",
                        path.display()
                    ),
                    "Salt loads the file, and updates of the package have no effect",
                    format!(
                        "remove {} from module_dirs, or uninstall the package",
                        path.ancestors().nth(2).unwrap_or(path).display()
                    ),
                );
            }

            version.clone().or_else(|| packaged.clone())
        }
        (None, Some(version), Ok(python)) => {
            lost_by_upgrade(&mut found, python);
            Some(version.clone())
        }
        // The query worked, so this is certain.
        (None, _, Ok(python)) => {
            let name = python.python.display();
            let elsewhere = extras_with_extension(&python.python);

            let message = match elsewhere.first() {
                Some(extras) => format!(
                    "Salt's Python ({name}) does not find the extension: it is installed for another Python, in {}",
                    extras.display()
                ),
                None => format!("Salt's Python ({name}) does not find the extension"),
            };
            return found.problem_because(message, WHY, install);
        }
        // A failed query proves nothing, so this is only a warning.
        (None, _, Err(why)) => {
            return found.warn_because(
                format!("cannot check whether Salt finds the extension: {why}"),
                WHY,
                "set Salt's Python with --salt-python, or check that the extension is installed",
            );
        }
    };

    let ours = env!("CARGO_PKG_VERSION");
    match version {
        Some(theirs) if theirs != ours => found.warn_because(
            format!("the extension has version {theirs}, this program {ours}"),
            "only equal versions are tested together; the older one may lack calls that the other needs",
            install,
        ),
        Some(theirs) => found.ok(format!("version {theirs}")),
        None => found.ok("installed, version unknown"),
    }
}

/// A package that `salt-pip` installed for one minor version of Python.
fn lost_by_upgrade(found: &mut Reporter<'_>, python: &Installed) {
    let Some(module) = python
        .module
        .as_deref()
        .filter(|module| is_in_extras(module))
    else {
        return;
    };

    found.warn_because(
        format!("the extension is installed for Python {} only: {}", python.version.as_deref().unwrap_or("?"), module.display()),
        "an upgrade of Salt to a release with another Python removes it, and the master then publishes no jobs",
        "`saltcellar setup`, which makes Salt load it from a separate directory; or rerun `salt-pip install` right after each upgrade",
    );
}

/// Possible paths of the returner in a directory of `module_dirs`, in the search order of Salt 3006 to 3008.
fn candidates(master: &SaltMaster) -> Vec<PathBuf> {
    // The last directory counts, and in each only one of the two forms.
    master
        .texts("module_dirs")
        .iter()
        .rev()
        .filter_map(|dir| {
            ["returners", "_returners"]
                .map(|sub| Path::new(dir).join(sub))
                .into_iter()
                .find(|dir| dir.is_dir())
        })
        .map(|dir| dir.join("saltcellar.py"))
        .collect()
}

/// The extension's socket, and whether the master's user has access to it.
fn extension_socket_access(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    let mut found = found.of("saltcellar.socket");
    // Minions with `ext_job_cache` do not use the master's socket.
    if !(uses.job_cache || uses.event_return) {
        return;
    }

    let MasterContext { master, socket, .. } = context;
    let configured = setting(master, "socket");

    // Without this socket, the extension of a user other than root falls back to one of that user,
    // which is unknown here.
    let extension_socket = configured
        .clone()
        .unwrap_or_else(|| SYSTEM_SOCKET.to_owned());

    // Only with a known path can the two differ.
    if (configured.is_some() || master.user == "root")
        && !same_file(Path::new(&extension_socket), socket)
    {
        return found.problem_because(
            format!(
                "the extension uses socket {extension_socket}, the daemon listens on {}",
                socket.display()
            ),
            "the master's entries go to the spool, and are lost once it is full",
            format!("saltcellar.socket: {}", yaml::inline_path(socket)),
        );
    }

    // A missing socket means that the daemon does not run, for which there is a separate finding.
    let Ok(file) = fs::metadata(socket) else {
        return;
    };

    // Rights of a user that `/etc/passwd` lacks cannot be computed.
    let Some(user) = User::named(&master.user) else {
        return;
    };

    if !extension_trusts(context, user.uid) {
        let name = &context.daemon.name;
        return found.problem_because(
            format!(
                "the extension does not trust {name}, the owner of {}, and sends nothing",
                socket.display()
            ),
            "the master's entries go to the spool, and are lost once it is full",
            format!("saltcellar.daemon_user: {name}"),
        );
    }

    let dir = socket.parent().and_then(|dir| fs::metadata(dir).ok());

    // What denies the access: a closed directory, or else the socket.
    let closed = dir
        .filter(|dir| !user.allows(dir, ENTER))
        .or_else(|| Some(file).filter(|file| !user.allows(file, READ | WRITE)));

    let Some(closed) = closed else {
        found.ok(format!(
            "{}, accessible to the master's user",
            socket.display()
        ));
        return;
    };

    // No group helps if the daemon runs as root without `socket_group`, or its members have no right.
    let has_right = closed.gid() != 0 && closed.mode() & 0o070 != 0;
    let group = users::group_name(closed.gid()).filter(|_| has_right);
    let name = &user.name;
    let remedy = match group {
        Some(group) => {
            format!(
                "`usermod -aG {group} {name}` and restart the master, or run the daemon as that user"
            )
        }
        None => format!(
            "set `socket_group` and a `socket_mode` of 0660 in the daemon's configuration and restart it, add {name} to that group, and restart the master; \
             or run the daemon as that user"
        ),
    };
    found.problem_because(
        format!(
            "the master's user {name} has no access to {}",
            socket.display()
        ),
        "the master's entries go to the spool, and are lost once it is full",
        remedy,
    );
}

/// Whether the extension trusts the daemon's user if the master runs as `master_uid`, by the rules
/// of its `peer.py`.
fn extension_trusts(context: &MasterContext<'_>, master_uid: u32) -> bool {
    let uid = context.daemon.uid;
    if uid == 0 || uid == master_uid {
        return true;
    }

    let map = context.master.option("saltcellar").and_then(Value::as_map);
    let user = context
        .master
        .option("saltcellar.daemon_user")
        .or_else(|| map?.get("daemon_user"));

    match user {
        Some(Value::Int(number)) => return *number == i64::from(uid),
        Some(Value::Str(name)) if !name.is_empty() => {
            // A number in quotes is also a uid.
            let named = name.parse().ok().or_else(|| Some(User::named(name)?.uid));
            return named == Some(uid);
        }
        _ => {}
    }

    // Without the option, the socket's directories must prove that nobody else could have put a
    // socket there.
    let Some(dir) = context
        .socket
        .parent()
        .and_then(|dir| dir.canonicalize().ok())
    else {
        // What cannot be inspected is not trusted.
        return false;
    };

    let is = |dir: &Path, fits: &dyn Fn(&fs::Metadata) -> bool| {
        fs::metadata(dir).is_ok_and(|dir| fits(&dir))
    };

    // Only the daemon may own the directory itself. Above it, root and the master's user may as
    // well, if nobody else can write there.
    is(&dir, &|dir| dir.uid() == uid)
        && dir.ancestors().skip(1).all(|above| {
            is(above, &|above| {
                [0, uid, master_uid].contains(&above.uid()) && above.mode() & 0o022 == 0
            })
        })
}

fn sock_dir(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    let mut found = found.of("sock_dir");
    let MasterContext { master, daemon, .. } = context;

    let name = master.sock_dir.display();
    // The master creates it when it starts.
    let Ok(dir) = fs::metadata(&master.sock_dir) else {
        return;
    };

    // With the sticky bit (0o1000) users cannot replace files of others.
    if dir.mode() & 0o002 != 0 && dir.mode() & 0o1000 == 0 {
        found.problem_because(
            format!(
                "{name} is world-writable (mode {:04o})",
                dir.mode() & 0o7777
            ),
            "any user can replace the bus's socket, which Salt and saltcellar trust",
            format!("`chmod o-w {name}`"),
        );
    }

    if !uses.bus {
        return;
    }

    let bus = master.sock_dir.join("master_event_pub.ipc");
    // The master does not run.
    let Ok(socket) = fs::symlink_metadata(&bus) else {
        return;
    };

    let mode = socket.mode() & 0o777;
    if daemon.allows(&socket, READ | WRITE) && daemon.allows(&dir, ENTER) {
        found.ok(format!(
            "{}, mode {mode:04o}, accessible to {}",
            bus.display(),
            daemon.name
        ));
    } else {
        found.problem_because(
            format!(
                "the daemon's user {} has no access to {} (mode {mode:04o})",
                daemon.name,
                bus.display()
            ),
            "no event is archived; up to Salt 3006 only the master's user has access to the socket",
            format!(
                "run the daemon as {} (`systemctl edit saltcellar`: User={})",
                master.user, master.user
            ),
        );
    }
}

/// The master's private key, and the minions' public keys.
fn keys(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    let mut found = found.of("pki_dir");
    let MasterContext {
        master,
        config,
        daemon,
        ..
    } = context;

    // Checked even if the daemon does not use keys, because it endangers every minion.
    let private = master.pki_dir.join("master.pem");
    if let Ok(key) = fs::metadata(&private)
        && key.mode() & 0o077 != 0
    {
        found.problem_because(
            format!(
                "{} is readable by other users (mode {:04o})",
                private.display(),
                key.mode() & 0o777
            ),
            "the private key lets its owner impersonate the master to all minions",
            format!("`chmod 0400 {}`", private.display()),
        );
    }

    // Nothing else in the daemon reads the minions' keys.
    if !config.serves_minions() {
        return;
    }

    let dir = match master.accepted_keys() {
        AcceptedKeys::Files(dir) => dir,
        AcceptedKeys::Driver(driver) => {
            return found.problem_because(
                format!("keys.cache_driver is {driver} ({})", option_origin(master, "keys.cache_driver")),
                "the master then keeps no files of accepted keys, which the minion listener needs to verify minions: it rejects all",
                "keys.cache_driver: localfs_key (Salt's default), or remove https.listen and http.minions from the daemon's configuration",
            );
        }
    };

    if !same_file(&config.https.pki_dir, &dir) {
        found.problem_because(
            format!(
                "the minion listener uses the keys in {}, but this master's are in {}",
                config.https.pki_dir.display(),
                dir.display()
            ),
            "minions without a key there are rejected",
            format!(
                "https.pki_dir: {} in the daemon's configuration",
                dir.display()
            ),
        );
    }

    let accepted = config.https.pki_dir.join("minions");
    // The master makes it when it first starts.
    if fs::metadata(&accepted).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return found.problem_because(
            format!("there is no directory {}", accepted.display()),
            "the minion listener needs the keys in it to verify minions, and rejects all without them",
            "start the master, which makes it, or correct https.pki_dir in the daemon's configuration",
        );
    }

    let readable = [config.https.pki_dir.as_path(), accepted.as_path()]
        .iter()
        .all(|dir| fs::metadata(dir).is_ok_and(|dir| daemon.allows(&dir, READ | ENTER)));

    if readable {
        found.ok(format!("{} can read {}", daemon.name, accepted.display()));
    } else {
        found.problem_because(
            format!(
                "the daemon's user {} cannot read {}",
                daemon.name,
                accepted.display()
            ),
            "the minion listener needs these keys to verify minions, and rejects all without them",
            format!("run the daemon as {}, the owner of the keys", master.user),
        );
    }
}

/// Engines that no longer start because another file sets the option as well.
fn engines(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    const CHECK: &str = "engines";
    let mut found = found.of(CHECK);

    let master = context.master;
    let in_effect = master.option(CHECK).map(engine_names).unwrap_or_default();
    let files = master.option_by_file(CHECK);

    let Some((last, _)) = files.last() else {
        // No file sets the option.
        return;
    };

    let effective = format!("[{}]", in_effect.join(", "));

    for (file, value) in &files {
        let names = engine_names(value).into_iter();
        let lost: Vec<_> = names.filter(|name| !in_effect.contains(name)).collect();
        // Salt has merged this file's list with the others.
        if lost.is_empty() {
            continue;
        }

        let message = format!(
            "{} of {} are not started: another file replaces this value of `engines`, which is now {effective}",
            lost.join(", "),
            file.display()
        );

        // Without saltcellar's item Salt's reactor is on again, and two may act.
        let (result, why) = if lost.iter().any(|name| is_our_engine(name)) && master.runs_reactor()
        {
            (CheckResult::Problem, "Salt's reactor is therefore on")
        } else {
            (
                CheckResult::Warning,
                "the lists of included files are merged; they replace the main file's, and a mapping replaces all before it",
            )
        };

        // The last file that sets the option wins, so the complete list belongs there.
        let all: Vec<_> = in_effect.iter().chain(&lost).cloned().collect();
        found.advise(
            result,
            message,
            why,
            format!("engines: [{}] in {}", all.join(", "), last.display()),
        );
    }

    if master
        .option(CHECK)
        .is_some_and(|value| value.as_map().is_some())
        && in_effect.iter().any(|name| is_our_engine(name))
        && master.runs_reactor()
    {
        found.problem_because(
            format!("engines is a mapping ({})", option_origin(master, CHECK)),
            "with a mapping, the master adds Salt's reactor although saltcellar_reactor is configured",
            format!("engines: [{}], a list", in_effect.join(", ")),
        );
    }
}

fn engine_names(engines: &Value) -> Vec<String> {
    let names = |map: &Map| {
        map.keys()
            .filter_map(|name| name.0.as_str())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };

    match engines {
        Value::List(items) => items
            .iter()
            // An item with options is a map with the engine's name as its only key.
            .flat_map(|item| match item {
                Value::Str(name) => vec![name.clone()],
                Value::Map(map) => names(map),
                _ => Vec::new(),
            })
            .collect(),
        Value::Map(map) => names(map),
        _ => Vec::new(),
    }
}

fn is_our_engine(name: &str) -> bool {
    name.starts_with("saltcellar") && name.contains("reactor")
}

/// One reactor has to act: two would execute every reaction twice, without any there are none.
fn reactor(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    const CHECK: &str = "reactor";
    let mut found = found.of(CHECK);
    let MasterContext { master, config, .. } = context;

    if master.runs_reactor() && reacts(config, &master.conf_file) {
        found.problem_because(format!(
                "Salt's reactor and saltcellar's are both enabled ({})",
                option_origin(master, CHECK)
            ),
            "to avoid executing reactions twice, saltcellar's runs in shadow mode",
            "`saltcellar setup --reactor`, which adds `saltcellar_reactor` to the master's list `engines` and so disables Salt's own; \
            or reactor.shadow: true in the daemon's configuration, to stay in shadow mode",
        );
    }

    let salts = acting::of_master(master);

    // Somebody acts, or there is nothing to act on.
    if salts.runs || salts.rules.is_empty() || has_reactor_of(config, &master.conf_file) {
        return;
    }

    let count = salts.rules.len();
    found.problem_because(format!(
            "no reactor acts on the {count} rules of `reactor` ({}): Salt's reactor is disabled ({}), and the daemon has none for this master",
            option_origin(master, CHECK),
            option_origin(master, "engines")
        ),
        "events that match these rules cause no reaction",
        format!(
            "`reactor: {{master: {}}}` in the daemon's configuration, then restart it; or remove `saltcellar_reactor` from the \
            master's `engines`, then restart the master",
            yaml::inline_path(&master.conf_file)
        ),
    );
}

/// Salt's Python must exist, and run as the master's user.
fn helper(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    const CHECK: &str = "reactor.python";
    let mut found = found.of(CHECK);
    let MasterContext {
        master,
        config,
        daemon,
        ..
    } = context;

    if !has_reactor_of(config, &master.conf_file) {
        // Files of this master are rendered only by its own reactor.
        return;
    }

    let configured = config.reactor.python.clone();
    let of_daemon = configured.or_else(python::found_by_a_service);

    if let Err(message) = ensure_found(of_daemon.as_deref(), python::find(None).as_deref()) {
        return found.warn_because(message,
            "files that are not rendered natively, grains, `caller` reactions, and runners and wheel functions without `args` fail",
            "`reactor: {python: PATH}` in the daemon's configuration, with the Python in which Salt is installed",
        );
    }

    let Some(user) = master.configured_user() else {
        // Salt runs as whoever starts it, so there is no user to switch to.
        return;
    };

    match Account::switch(user, daemon.uid) {
        Ok(_) => {
            found.ok(format!("Salt's Python runs as {user}, the master's user"));
        }
        Err(why) => found.problem_because(
            why,
            "reactor files that only Salt's Python can render (`#!py`, `salt[...]`) fail",
            format!("run the daemon as root or as {user}, and check that {user} exists"),
        ),
    }
}

/// Fails with a message if the daemon finds no Python of Salt. The `PATH` of this shell finds more
/// than a service does.
fn ensure_found(of_daemon: Option<&Path>, of_shell: Option<&Path>) -> Result<(), String> {
    const CHECK: &str = "reactor.python";

    match (of_daemon, of_shell) {
        (Some(python), _) if python.is_file() => Ok(()),
        (Some(python), _) => Err(format!(
            "there is no Python at {} ({CHECK})",
            python.display()
        )),
        (None, Some(python)) => Err(format!(
            "{CHECK} is not set, and a service does not find {}, which is in the PATH of this shell only",
            python.display()
        )),
        (None, None) => Err(format!(
            "{CHECK} is not set, and no salt-master is installed whose Python could be used"
        )),
    }
}

/// Whether the daemon has the reactor of the master with that file.
fn has_reactor_of(config: &Config, conf_file: &Path) -> bool {
    let master = config.reactor.master.as_deref();
    master.is_some_and(|path| same_file(path, conf_file))
}

/// Whether that reactor acts. With `shadow` it executes nothing.
fn reacts(config: &Config, conf_file: &Path) -> bool {
    has_reactor_of(config, conf_file) && !config.reactor.shadow
}

/// An option of the extension: flat, or in the map `saltcellar`; the flat one takes precedence.
pub(in crate::cli) fn setting(master: &SaltMaster, key: &str) -> Option<String> {
    let map = master.option("saltcellar").and_then(Value::as_map);
    let configured = master
        .text(&format!("saltcellar.{key}"))
        .or_else(|| map?.get(key)?.as_str());
    configured
        .filter(|configured| !configured.is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_an_option_is_its_line_or_else_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        fs::write(
            &file,
            "{\"user\": \"root\", \"job_cache_store_endtime\": true}",
        )
        .unwrap();
        let master = SaltMaster::read(&file);
        assert_eq!(
            option_origin(&master, "job_cache_store_endtime"),
            file.display().to_string()
        );
        assert_eq!(
            option_origin(&master, "keep_jobs_seconds"),
            "Salt's default"
        );
        fs::write(&file, "user: root\njob_cache_store_endtime: true\n").unwrap();
        let line = format!("{}:2", file.display());
        assert_eq!(
            option_origin(&SaltMaster::read(&file), "job_cache_store_endtime"),
            line
        );
    }

    #[test]
    fn a_daemon_that_cannot_switch_to_the_masters_user_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        fs::write(&file, "user: root\n").unwrap();
        let master = SaltMaster::read(&file);
        let results = |uid: u32, reactor: bool, python: Option<PathBuf>| {
            let mut config = Config::for_state_dir(Path::new("/state"), "/s");
            config.reactor.master = reactor.then(|| file.clone());
            config.reactor.python = python;
            let (socket, daemon) = (Path::new("/s"), User::numbered(uid));
            let installed = Err(String::new());
            let context = MasterContext {
                master: &master,
                config: &config,
                socket,
                daemon: &daemon,
                vanished: None,
                python: &installed,
            };
            let mut found = Findings::default();
            helper(&mut found, &context, &Uses::of(&context));
            found
                .0
                .iter()
                .map(|finding| (finding.result, finding.message.clone()))
                .collect::<Vec<_>>()
        };
        // Any file.
        let python = Some(file.clone());
        assert_eq!(results(4_000_000, false, python.clone()), []);
        assert_eq!(results(0, true, python.clone())[0].0, CheckResult::Ok);
        let (result, message) = results(4_000_000, true, python).remove(0);
        assert_eq!(result, CheckResult::Problem);
        assert!(
            message.contains("Salt runs as user root") && message.contains("uid 4000000"),
            "{message}"
        );
        let (result, message) = results(0, true, Some("/no/such/python".into())).remove(0);
        assert_eq!(
            (result, message.as_str()),
            (
                CheckResult::Warning,
                "there is no Python at /no/such/python (reactor.python)"
            )
        );
    }

    #[test]
    fn an_id_that_only_salt_can_tell_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        let results = |options: &str, of_salt: Option<&str>| {
            let root = dir.path().display();
            fs::write(&file, format!("root_dir: {root}\n{options}\n")).unwrap();
            let config = Config::for_state_dir(Path::new("/state"), "/s");
            let context = MasterContext {
                master: &SaltMaster::read(&file),
                config: &config,
                socket: Path::new("/s"),
                daemon: &User::numbered(0),
                vanished: None,
                python: &Ok(Installed {
                    id: of_salt.map(str::to_owned),
                    ..Installed::default()
                }),
            };
            let mut found = Findings::default();
            configuration(&mut found, &context, &Uses::of(&context));
            let findings = found.0.into_iter();
            let warnings = findings.filter(|finding| finding.result == CheckResult::Warning);
            warnings.map(|finding| finding.message).collect::<Vec<_>>()
        };
        let unknown = format!(
            "the master's id is not known: id_function is set ({}:2), and id is not",
            file.display()
        );
        assert_eq!(results("id_function: grains.get_id", None), [unknown]);
        assert!(results("id_function: grains.get_id\nid: m", None).is_empty());

        assert!(results("", None).is_empty());
        let own = SaltMaster::read(&file).id;
        assert!(results("", Some(&own)).is_empty());
        let other =
            format!("the daemon takes {own:?} for the master's id, and Salt takes \"a.b_master\"");
        assert_eq!(results("", Some("a.b_master")), [other]);
    }

    #[test]
    fn a_python_that_only_this_shell_finds_is_not_the_daemons() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("python3");
        fs::write(&file, "").unwrap();
        assert_eq!(ensure_found(Some(&file), None), Ok(()));
        for (of_daemon, of_shell, why) in [
            (
                None,
                Some(file.as_path()),
                "which is in the PATH of this shell only",
            ),
            (None, None, "no salt-master is installed"),
            (
                Some(Path::new("/no/python3")),
                Some(file.as_path()),
                "there is no Python at /no/python3",
            ),
        ] {
            let message = ensure_found(of_daemon, of_shell).unwrap_err();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn a_reactor_in_shadow_mode_does_not_act() {
        let with = |master: Option<&str>, shadow| {
            let mut config = Config::for_state_dir(Path::new("/state"), "/s");
            config.reactor.master = master.map(PathBuf::from);
            config.reactor.shadow = shadow;
            reacts(&config, Path::new("/etc/salt/master"))
        };
        assert!(!with(None, false));
        assert!(with(Some("/etc/salt/master"), false));
        assert!(!with(Some("/etc/salt/master"), true));
        assert!(!with(Some("/srv/other/master"), false), "another master");
    }
}
