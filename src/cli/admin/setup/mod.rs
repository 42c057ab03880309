//! `saltcellar setup`: sets up a Salt master, or a minion of another host, to use saltcellar,
//! and undoes it.
//!
//! A plan of steps ([`plan`]) is shown and, after a question, carried out: the extension
//! ([`extension`]), the daemon's settings ([`daemon`]), its units ([`service`]), and a file in
//! `master.d` ([`options`], [`managed`]). Each step is needed or in place, so a second run changes
//! nothing. It keeps the choices of earlier runs ([`choices`]).

mod args;
mod choices;
mod daemon;
mod estimate;
mod extension;
mod managed;
mod options;
mod plan;
mod remove;
mod restart;
mod retention;
mod service;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use salt_sls::Value;
use serde_json::{Value as Json, json};

pub(in crate::cli) use self::args::Args;
use self::args::Events;
use self::choices::Choices;
use self::extension::{Install, Salt};
use self::managed::{Before, FileState, refuse_foreign, state_of};
use self::options::{ENGINE, MasterOptions, NAME, minion_text};
use self::plan::{Done, Plan};
use self::restart::{MASTER_START_TIME, restarted_around, waited_for};
use crate::api::call::{self as calls, NoArgs};
use crate::cli::doctor;
use crate::cli::salt_python::{self, MASTER_UNIT};
use crate::cli::{Global, ask, finding, import, reactor, yaml};
use crate::config::python_glob::has_magic;
use crate::config::salt_master::{SaltMaster, python, same_file};
use crate::config::{Config, Environment, SYSTEM_CONFIG, SYSTEM_SOCKET, SocketChoice};

pub(in crate::cli) const EXAMPLES: &str = "\
Shows a plan and asks before it changes anything; without a terminal, --yes is required. A second run changes nothing. \
A step that fails undoes the ones before it. After changes, `doctor` checks the host; with --output json, it prints a document of its own.

Exit codes: 0 success, or everything is in place; 1 something is not in place, a step failed, or a file was not written by setup.

Examples:
  sudo saltcellar setup                              set up this master: extension, daemon, unit, master.d, doctor
  saltcellar setup --dry-run                         only show the plan
  sudo saltcellar setup --yes --reactor --import     take over Salt's reactor, and its job cache, without a question
  saltcellar setup --check --output json             check that everything is in place and in effect
  sudo saltcellar setup --passive                    only watch: read the bus, serve the web UI, leave the master as it is
  sudo saltcellar setup --remove                     undo it; no data is deleted
  sudo saltcellar setup --master-only --extension manual
                                                     only the file in master.d, without systemd
  saltcellar setup --minion-listener https://master.example:4580 --ca /etc/salt/pki/saltcellar-ca.pem";

const NO_SALT_PYTHON: &str = "find Salt's Python: no salt-master runs, is a unit of systemd, or is installed in PATH, /usr/bin, \
    /usr/local/bin or /opt/saltstack/salt; name it with --salt-python";
/// The address of HTTP and the page with `--passive`.
const PAGE_ADDRESS: &str = "127.0.0.1:4581";

pub(in crate::cli) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut plan = Plan::default();
    let document = match &args.minion_listener {
        Some(url) => for_minion(&mut plan, args, url)?,
        None => for_master(&mut plan, global, args)?,
    };

    if args.dry_run {
        return plan.show(global.output, &document);
    }

    if args.check {
        let needed = plan.needed();
        // Shown before the result, which is an error if anything is missing.
        plan.show(global.output, &document)?;
        return match needed.as_slice() {
            [] => Ok(()),
            needed => Err(finding(format!(
                "not in place: {} (`saltcellar setup`)",
                needed.join(", ")
            ))),
        };
    }

    let changed = plan.carry_out(global, args.yes, &document)?;
    // The rest needs a daemon that serves this master.
    if args.minion_listener.is_some() || args.remove || args.master_only {
        return Ok(());
    }

    // Its result is returned at the end: a file that was skipped must not hide what `doctor` finds.
    let imported = if args.import {
        let master = SaltMaster::read(&args.salt_config.join("master"));
        let jobs = master.cachedir.join("jobs");
        import::run(global, &import::Import::local_cache(jobs))
    } else {
        Ok(())
    };
    // Doctor checks what was changed; it can be run alone at any time.
    if !changed {
        return imported;
    }
    // A stopped master opens no bus.
    if service::is("is-active", MASTER_UNIT)? {
        wait_for_bus(global)?;
    }

    doctor::run(
        global,
        &doctor::Args::after_setup(&args.salt_config, args.salt_python.as_deref()),
    )?;
    imported
}

fn for_master(plan: &mut Plan, global: &Global, args: &Args) -> anyhow::Result<Json> {
    let main = args.salt_config.join("master");
    let master = SaltMaster::read(&main);

    let exists = main
        .try_exists()
        .map_err(managed::advised)
        .with_context(|| format!("inspect {}", main.display()))?;
    if !exists && master.files.is_empty() {
        bail!(
            "find a Salt master: {} does not exist (--salt-config sets its directory)",
            main.display()
        );
    }

    let config_file = global
        .config
        .clone()
        .unwrap_or_else(|| args.root.join(SYSTEM_CONFIG.trim_start_matches('/')));

    // Salt reads the file only from the directory that `default_include` names.
    let path = directory(&master, &args.salt_config)?.join(NAME);
    let mut options = MasterOptions::new(&main, path);

    let share = extension::share(&args.root, args.extension_dir.as_deref());

    let overrides = global.overrides();
    let environment = Environment::of_process();
    // Kept as a result, because a removal goes on without a valid configuration.
    let config = Config::load(&overrides, &environment).context("read the configuration");

    if args.remove {
        return for_removal(
            plan,
            global,
            args,
            (&master, &options),
            (&config_file, config),
        );
    }

    let config = config?;
    // Clients, and therefore Salt, find the socket by rules of their own.
    let socket = SocketChoice::find(&overrides, &environment)
        .context("read the configuration")?
        .path;

    let settings = daemon::Settings::read(&config_file)?;

    // Kept as a result: a setup with `--extension manual` works without Salt's Python.
    let salt = salt_of(args, settings.python(), &master);

    // Either file may be missing, so both record the choices.
    let recorded = match std::fs::read_to_string(&options.path) {
        Ok(text) => Choices::recorded(&text),
        // Whatever is wrong with the file is reported below.
        Err(_) => settings.recorded(),
    };

    let choices = Choices::of(args, recorded);

    let mut keys = daemon::Keys {
        bus: (choices.events == Events::Bus || args.passive).then(|| master.sock_dir.clone()),
        reactor: choices.reactor.then(|| main.clone()),
        // A plain run keeps the page that an earlier `--passive` opened.
        listen: settings.listen(),
        python: None,
    };

    // Recorded only if the daemon, which does not have this shell's PATH, would find another
    // Python.
    if choices.reactor
        && let Ok(salt) = &salt
        && python::found_by_a_service().as_ref() != Some(&salt.python)
    {
        keys.python = Some(salt.python.clone());
    }

    if args.passive {
        keys.listen = keys.listen.or_else(|| Some(PAGE_ADDRESS.to_owned()));
        service::units(plan, &args.root, &share)?;
        let before = service::State::of_daemon()?;
        let reconfigured = daemon::configure(plan, &settings, &keys, choices, before)?;
        service::start(plan, before, reconfigured);

        plan.remarks
            .push("the master is neither changed nor restarted".to_owned());
        plan.remarks
            .push(estimate::remark(global, &config, &master));
        plan.remarks
            .extend(doctor::of_several_masters(&master, &config, false));
        plan.afterwards
            .push("open the web UI: `saltcellar page` prints a link that signs in".to_owned());

        return Ok(json!({ "path": settings.path.display().to_string() }));
    }

    wanted(plan, args, choices, &mut options, &config);

    if choices.job_cache {
        plan.remarks
            .extend(retention::remark(global, &config, &master));
        plan.remarks
            .push(estimate::remark(global, &config, &master));
    }

    plan.remarks.extend(doctor::of_several_masters(
        &master,
        &config,
        choices.job_cache,
    ));

    let needs_options = !options.is_empty();

    let module_dir = match choices.install {
        Install::ModuleDirs if needs_options => Some(extension::module_dir(&share)?),
        Install::ModuleDirs | Install::Pip | Install::Manual => None,
    };

    if let Some(dir) = &module_dir {
        options.add("module_dirs", &dir.display().to_string());
    }

    // The default is the system's socket for root, but may be another for other users.
    if needs_options && (socket != Path::new(SYSTEM_SOCKET) || master.user != "root") {
        options.set("saltcellar.socket", socket.display().to_string());
    }

    let text = needs_options.then(|| options.text(&choices.comment()));
    let found = state_of(&options.path, text.as_deref())?;

    // Whatever can be known to fail is an error here, before the first step and before anybody is
    // asked.
    refuse_foreign(&options.path, found)?;
    options.ensure_effective()?;
    let changes = found != FileState::InPlace;

    if choices.reactor {
        options.ensure_no_salt_reactor()?;
        // Once the reactor is handed over, faults of its rules are for `reactor lint` to report.
        if changes {
            ensure_rules(&master, &config, salt.as_ref().ok())?;
        }
    }

    if needs_options {
        match (choices.install, module_dir) {
            (Install::ModuleDirs, Some(dir)) => salt?.check(plan, &dir, changes),
            (Install::Pip, _) => {
                let salt = salt?;
                let wheel = extension::wheel(&share)?;
                let installed = doctor::installed_extension(&salt.python, &master);
                // A wheel of another release is replaced, because only equal versions are tested
                // together.
                salt.install(plan, &wheel, installed.as_deref());
            }

            // The master would be restarted without its job cache, and then publish no job.
            (Install::Manual, _) if !args.master_only => {
                // Without Salt's Python there is nothing to check with.
                if let Ok(salt) = salt {
                    salt.loads(None).context(NOT_THERE)?;
                }
            }
            (Install::ModuleDirs | Install::Manual, _) => {}
        }
    }

    if !args.master_only {
        service::units(plan, &args.root, &share)?;
        // Asked while planning, before any step changes it: a failed setup returns the daemon to
        // this state.
        let before = service::State::of_daemon()?;
        let reconfigured = daemon::configure(plan, &settings, &keys, choices, before)?;
        service::start(plan, before, reconfigured);
        if needs_options {
            service::membership(plan, &master.user)?;
        }
    }

    // The master comes last: its restart needs the extension, the daemon and the group.
    master_file(plan, args, &options, text.as_deref(), found)?;
    Ok(json!({ "path": options.path.display().to_string(), "state": found.name(), "text": text }))
}

/// Salt: with the Python that a flag or the configuration names, or else a found one.
fn salt_of(args: &Args, configured: Option<&Path>, master: &SaltMaster) -> anyhow::Result<Salt> {
    salt_python::find(args.salt_python.as_deref().or(configured), master)
        .map(|python| Salt {
            python,
            master: master.clone(),
        })
        .context(NO_SALT_PYTHON)
}

/// Plans the removal. An invalid configuration of the daemon does not prevent it: it may be the
/// reason for the removal, and the file of setup a part of what is wrong.
fn for_removal(
    plan: &mut Plan,
    global: &Global,
    args: &Args,
    (master, options): (&SaltMaster, &MasterOptions),
    (config_file, config): (&Path, anyhow::Result<Config>),
) -> anyhow::Result<Json> {
    let found = state_of(&options.path, None)?;
    // The extension's default, unless the master's configuration sets another directory.
    let spool = master.cachedir.join("saltcellar");
    let spool = doctor::master_setting(master, "spool_dir").map_or(spool, PathBuf::from);

    if let Err(error) = &config {
        plan.remarks.push(format!(
            "the daemon's configuration contains an error and is not used: {error:#}"
        ));
    }

    let config = config.ok();
    let python = config
        .as_ref()
        .and_then(|config| config.reactor.python.as_deref());

    let removal = remove::Removal {
        options,
        found,
        config_file,
        spool,
        salt: salt_of(args, python, master),
        // A flag is known without the configuration.
        state_dir: config
            .as_ref()
            .map(|config| config.state_dir.clone())
            .or_else(|| global.state_dir.clone()),
        services: !args.master_only,
    };

    remove::plan(plan, removal)?;
    Ok(json!({ "path": options.path.display().to_string() }))
}

/// Remedy for a missing extension that is installed by other means.
const NOT_THERE: &str = "find the extension, which is installed by other means (`--extension manual`, in this run or an earlier one): \
     reinstall it, or let `saltcellar setup --extension module-dirs` do it";

/// Fails, listing all faults, if rules or files of the reactor would fail after the handover.
fn ensure_rules(master: &SaltMaster, config: &Config, salt: Option<&Salt>) -> anyhow::Result<()> {
    let python = salt.map(|salt| salt.python.as_path());
    let faults = reactor::faults(master, &config.reactor, python);

    if faults.is_empty() {
        return Ok(());
    }

    bail!(
        "hand the reactor over: reactions would fail; repair these, then `saltcellar reactor lint` finds no fault:\n  {}",
        faults.join("\n  ")
    )
}

/// Sets the options that the master needs for these choices; none if it stays as it is.
fn wanted(
    plan: &mut Plan,
    args: &Args,
    choices: Choices,
    options: &mut MasterOptions,
    config: &Config,
) {
    // Without setup's file, whose settings from an earlier run would look like the administrator's.
    let master = options.without();

    if choices.job_cache {
        // `local_cache` is Salt's default.
        let now = master.text("master_job_cache").unwrap_or("local_cache");
        if !matches!(now, "saltcellar" | "local_cache") {
            plan.remarks.push(format!(
                "master_job_cache is currently {now}; its jobs remain there, but Salt will read only from saltcellar"
            ));
        }
        options.set("master_job_cache", "saltcellar");
    }

    let reads = config
        .bus
        .iter()
        .any(|dir| same_file(dir, &master.sock_dir));

    match choices.events {
        Events::EventReturn => {
            options.add("event_return", "saltcellar");
            // Without a queue, Salt would call the returner for each event alone.
            options.set("event_return_queue", Value::Int(1000));
            options.set("event_return_queue_max_seconds", Value::Int(1));
            if reads {
                plan.remarks.push(
                    "the daemon already reads this master's bus: `--events bus` is cheaper"
                        .to_owned(),
                );
            }
        }
        // Otherwise setup writes this setting itself.
        Events::Bus if !reads && args.master_only => plan.afterwards.push(format!(
            "for events, add to the daemon's configuration: `bus: [{}]`, and restart the daemon",
            yaml::inline_path(&master.sock_dir)
        )),
        Events::Bus | Events::None => {}
    }

    if choices.reactor {
        if !master.flag("reactor") {
            plan.remarks
                .push("the master has no rules (`reactor`) yet".to_owned());
        }
        // The item also turns Salt's reactor off.
        options.add("engines", ENGINE);
    }
}

/// Plans the change of the file in `master.d`, or its removal without `text`, and the master's
/// restart.
fn master_file(
    plan: &mut Plan,
    args: &Args,
    options: &MasterOptions,
    text: Option<&str>,
    found: FileState,
) -> anyhow::Result<()> {
    let path = options.path.clone();
    let does = match text {
        Some(_) => format!("write {}", path.display()),
        None => format!("remove {}", path.display()),
    };

    match (text, found) {
        (Some(_), FileState::InPlace) => {
            plan.in_place("master", does);
            return Ok(());
        }
        // The master stays as it is.
        (None, FileState::Absent) => return Ok(()),
        _ => {}
    }

    let text = text.map(str::to_owned);

    // The file changes while the master is stopped. Without systemd that is left to a person.
    if !args.master_only && service::is("is-active", MASTER_UNIT)? {
        // Read without this file, which sets none of the options that the address follows from.
        let address = waited_for(&options.without());
        plan.step(
            "master",
            format!("stop {MASTER_UNIT}, {does}, and start it"),
            move || {
                restarted_around(&path, address.as_ref(), |path| {
                    write_or_remove(path, text.as_deref())
                })
            },
        );
        return Ok(());
    }

    plan.afterwards
        .push("restart the master: its processes read the options only at start".to_owned());
    plan.step("master", does, move || {
        let before = Before::of(&path).with_context(|| format!("read {}", path.display()))?;
        write_or_remove(&path, text.as_deref())
            .with_context(|| format!("change {}", path.display()))?;

        let does = format!("restore {}", path.display());
        let done = if text.is_some() { "written" } else { "removed" };
        Ok(Done::new()
            .with_result(format!("{} is {done}", path.display()))
            .undone_by(does, move || Ok(before.restore(&path)?)))
    });
    Ok(())
}

fn write_or_remove(path: &Path, text: Option<&str>) -> std::io::Result<()> {
    match text {
        Some(text) => managed::write(path, text.as_bytes()),
        None => managed::remove(path),
    }
}

fn write_file(path: PathBuf, text: &str) -> anyhow::Result<Done> {
    let before = Before::of(&path).with_context(|| format!("read {}", path.display()))?;
    managed::write(&path, text.as_bytes()).with_context(|| format!("write {}", path.display()))?;

    let does = format!("restore {}", path.display());
    Ok(Done::new()
        .with_result(format!("{} is written", path.display()))
        .undone_by(does, move || Ok(before.restore(&path)?)))
}

/// Waits until the daemon has connected to the bus of a restarted master. A timeout is no error
/// here, because `doctor` reports it.
fn wait_for_bus(global: &Global) -> anyhow::Result<()> {
    let until = Instant::now() + MASTER_START_TIME;
    while Instant::now() < until {
        let status = ask::answer::<calls::status::Show>(global, &NoArgs {}, "query the daemon")?;
        if status.bus.iter().all(|bus| bus.connected) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Plans the file for a minion of another host.
fn for_minion(plan: &mut Plan, args: &Args, url: &str) -> anyhow::Result<Json> {
    let path = args.salt_config.join("minion.d").join(NAME);
    // Nothing is read from the minion's configuration, so the file can be made before Salt is
    // installed.
    let text = minion_text(url, args.ca.as_deref());
    let found = state_of(&path, Some(&text))?;

    let document =
        json!({ "path": path.display().to_string(), "state": found.name(), "text": text });

    refuse_foreign(&path, found)?;

    if args.remove {
        let does = format!("remove {}", path.display());
        if found == FileState::Absent {
            plan.in_place("minion", format!("{does}: it does not exist"));
        } else {
            plan.afterwards.push("restart the minion".to_owned());
            plan.step("minion", does, move || {
                managed::remove(&path).with_context(|| format!("remove {}", path.display()))?;
                Ok(Done::new())
            });
        }
        return Ok(document);
    }

    plan.remarks
        .push("copy the same file to every minion that sends its own returns".to_owned());
    plan.afterwards.push(
        "the minion needs the extension: its wheel, or the package's directory by `module_dirs`"
            .to_owned(),
    );
    plan.afterwards.push(
        "restart the minion, then test with `salt MINION test.ping --return saltcellar`".to_owned(),
    );

    let does = format!("write {}", path.display());
    if found == FileState::InPlace {
        plan.in_place("minion", does);
    } else {
        plan.step("minion", does, move || write_file(path, &text));
    }
    Ok(document)
}

fn directory(master: &SaltMaster, salt_config: &Path) -> anyhow::Result<PathBuf> {
    let include = master.text("default_include").unwrap_or("master.d/*.conf");

    // Only a plain directory of `*.conf` is certain to include a file of this name once. Salt
    // expands the pattern with `glob`.
    let Some(dir) = include
        .strip_suffix("/*.conf")
        .filter(|dir| !has_magic(dir))
    else {
        bail!(
            "find the directory of included files: default_include is {include:?}, expected DIR/*.conf; add the options by hand"
        );
    };

    Ok(salt_config.join(dir))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn an_invalid_configuration_does_not_prevent_the_removal() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("salt/master.d")).unwrap();
        std::fs::write(
            at("salt/master"),
            format!("root_dir: {}\n", dir.path().display()),
        )
        .unwrap();
        std::fs::write(
            at("salt/master.d/saltcellar.conf"),
            managed::marked("a: 1\n"),
        )
        .unwrap();
        std::fs::write(at("c.yaml"), "buss: 1\n").unwrap();

        let global = Global {
            config: Some(at("c.yaml")),
            ..Global::with_json()
        };
        let command_line = |more: &[&str]| {
            let root = dir.path().to_str().unwrap();
            let salt = format!("{root}/salt");
            let args = [
                "setup",
                "--root",
                root,
                "--salt-config",
                &salt,
                "--master-only",
            ];
            CommandLine::parse_from([&args, more].concat()).args
        };

        let mut plan = Plan::default();
        for_master(&mut plan, &global, &command_line(&["--remove"])).unwrap();
        assert_eq!(plan.needed(), ["master"]);
        let remarks = plan.remarks.join("\n");
        assert!(
            remarks.contains(
                "the daemon's configuration contains an error and is not used: read the configuration: "
            ) && remarks.contains("buss: unknown key"),
            "{remarks}"
        );

        // Everything else needs it.
        let error = for_master(&mut Plan::default(), &global, &command_line(&[])).unwrap_err();
        assert!(
            format!("{error:#}").contains("buss: unknown key"),
            "{error:#}"
        );
    }
}
