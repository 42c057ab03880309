//! The systemd units of the daemon and of Salt, managed with `systemctl` from `PATH`, which only
//! root may be able to replace.

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, anyhow, bail, ensure};

use super::managed;
use super::plan::{Done, Plan, ensure_undone};
use crate::base::trusted::{TrustedPath, TrustedProgram, Untrusted};

pub(super) const UNIT: &str = "saltcellar.service";
pub(super) const SOCKET_UNIT: &str = "saltcellar.socket";
/// The group that may use the daemon's socket.
pub(super) const GROUP: &str = "saltcellar";

/// The program of the units of packages; units that setup installs start this program instead.
const INSTALLED: &str = "/usr/bin/saltcellar";

/// Files of an unpackaged release, in `systemd` of its `share/saltcellar`, and their destinations.
const FILES: [(&str, &str); 4] = [
    (
        "saltcellar.service",
        "etc/systemd/system/saltcellar.service",
    ),
    ("saltcellar.socket", "etc/systemd/system/saltcellar.socket"),
    ("saltcellar.sysusers", "etc/sysusers.d/saltcellar.conf"),
    ("saltcellar.tmpfiles", "etc/tmpfiles.d/saltcellar.conf"),
];

fn output(program: &str, args: &[&str]) -> anyhow::Result<Output> {
    let what = || format!("run `{program} {}`", args.join(" "));
    let without = "is systemd running here? Without it, use --master-only and start `saltcellar serve` by other means";

    let found = TrustedProgram::in_path(program, own_uid()).map_err(|error| match error {
        Untrusted::Unknown { .. } => anyhow!("{}: {error}: {without}", what()),
        _ => anyhow!("{}: {error}", what()),
    })?;

    let mut command = found.command();
    command.args(args).output().with_context(what)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a query of `systemctl`, such as `is-active`, succeeds for a unit.
pub(super) fn is(question: &str, unit: &str) -> anyhow::Result<bool> {
    Ok(output("systemctl", &[question, unit])?.status.success())
}

/// Runs a program. If it fails, the error contains what it printed to standard error.
pub(super) fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = output(program, args)?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    bail!(
        "run `{program} {}`: {}: {}",
        args.join(" "),
        output.status,
        printed.trim()
    )
}

/// Runs `systemctl` with a verb and its flags. The error names the journal of the first unit.
pub(super) fn systemctl(verb: &str, units: &[&str]) -> anyhow::Result<()> {
    let args: Vec<&str> = verb.split(' ').chain(units.iter().copied()).collect();
    run("systemctl", &args).with_context(|| match units {
        [unit, ..] => format!("{verb} {unit} (see `journalctl -u {unit}`)"),
        [] => verb.to_owned(),
    })
}

/// Plans the installation of the units that a package would have installed.
pub(super) fn units(plan: &mut Plan, root: &Path, share: &[PathBuf]) -> anyhow::Result<()> {
    // Of a package, or installed by an earlier run.
    if is("cat", UNIT)? {
        plan.in_place("units", format!("install {UNIT}"));
        return Ok(());
    }

    let Some(dir) = share
        .iter()
        .map(|dir| dir.join("systemd"))
        .find(|dir| dir.join(UNIT).is_file())
    else {
        let dirs: Vec<_> = share
            .iter()
            .map(|dir| dir.join("systemd").display().to_string())
            .collect();
        bail!(
            "install {UNIT}: systemd knows no such unit, and {} does not contain it; install the package, or use --master-only where \
             systemd does not run",
            dirs.join(" or ")
        );
    };

    // systemd will run both as root at each boot.
    let unsafe_units =
        "install units that start this program; copy it to a place that only root can change";
    TrustedPath::check_tree(&dir, own_uid()).context(unsafe_units)?;

    // The program may be anywhere, unlike a package's, so it is checked before a unit of root's
    // names it.
    let program = std::env::current_exe().context("find this program")?;
    let program = TrustedProgram::check(&program, own_uid()).context(unsafe_units)?;
    let program = program
        .path()
        .to_str()
        .context("find this program: its path is not UTF-8")?
        .to_owned();

    // The units of a package start its program; these have to start this one.
    let mut files = Vec::new();
    for (name, to) in FILES {
        match std::fs::read_to_string(dir.join(name)) {
            Ok(text) => files.push((root.join(to), text.replace(INSTALLED, &program))),
            // Not every release has all of them.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("read {}", dir.join(name).display()));
            }
        }
    }

    let names: Vec<_> = files
        .iter()
        .map(|(to, _)| to.display().to_string())
        .collect();
    // The contents are read already, so the step installs what was checked.
    let does = format!("install {} from {}", names.join(", "), dir.display());

    plan.step("units", does, move || {
        let paths: Vec<_> = files.iter().map(|(to, _)| to.clone()).collect();
        let remove = move || {
            paths
                .iter()
                .try_for_each(|path| managed::remove(path))
                .context("remove the unit and its files")
        };

        match install(&files) {
            Ok(()) => Ok(
                Done::new().undone_by("remove the unit and its files", move || {
                    remove()?;
                    systemctl("daemon-reload", &[])
                }),
            ),
            Err(error) => {
                // Some of the files may be in place already.
                ensure_undone(&error, "remove the unit and its files", remove())?;
                Err(error)
            }
        }
    });
    Ok(())
}

fn install(files: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (to, text) in files {
        managed::write(to, text.as_bytes()).with_context(|| format!("write {}", to.display()))?;
    }

    // The group must exist before a directory is given to it, and both before the unit starts.
    run("systemd-sysusers", &[])?;
    run("systemd-tmpfiles", &["--create"])?;
    systemctl("daemon-reload", &[])
}

/// What systemd does with the daemon.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    /// It is started at boot.
    pub(super) is_enabled: bool,
    /// It runs.
    pub(super) is_active: bool,
}

impl State {
    pub(super) fn of_daemon() -> anyhow::Result<Self> {
        Ok(Self {
            is_enabled: is("is-enabled", UNIT)?,
            is_active: is("is-active", UNIT)?,
        })
    }

    /// How to return to this state from a daemon that is enabled and runs: a phrase, and the verb of
    /// `systemctl`. `None` if it is this state.
    fn way_back(self) -> Option<(&'static str, &'static str)> {
        match (self.is_enabled, self.is_active) {
            (false, false) => Some(("stop and disable the daemon", "disable --now")),
            (false, true) => Some(("disable the daemon", "disable")),
            (true, false) => Some(("stop the daemon", "stop")),
            (true, true) => None,
        }
    }

    /// Restarts a daemon that ran in this state, for instance with its restored configuration.
    pub(super) fn restart_if_active(self) -> anyhow::Result<()> {
        if self.is_active {
            systemctl("restart", &[UNIT])
        } else {
            Ok(())
        }
    }
}

/// Plans to enable and start the daemon, whose state is `before`. `changed` says that it has to read
/// a new configuration; the step that changed it restarts the daemon when it is undone.
///
/// The socket unit is not enabled: systemd keeps the daemon's own socket over a restart, and a
/// socket unit would start a daemon that was stopped on purpose (docs/decisions/systemd-unit.md).
/// One that an administrator enabled is left alone.
pub(super) fn start(plan: &mut Plan, before: State, changed: bool) {
    if before.is_enabled && before.is_active && !changed {
        plan.in_place("service", format!("enable {UNIT} and start it"));
        return;
    }

    let (does, result) = match (before.is_active, changed) {
        (false, _) => (format!("enable {UNIT} and start it"), "runs"),
        (true, true) => (format!("enable {UNIT} and restart it"), "is restarted"),
        (true, false) => (format!("enable {UNIT}"), "is enabled"),
    };

    plan.step("service", does, move || {
        // `enable` alone starts the daemon only at the next boot.
        let needs_start = changed || !before.is_active;
        let started = systemctl("enable", &[UNIT]).and_then(|()| {
            if needs_start {
                systemctl("restart", &[UNIT])
            } else {
                Ok(())
            }
        });

        let done = Done::new().with_result(format!("{UNIT} {result}"));

        // Only what this step did is undone.
        let Some((does, verb)) = before.way_back() else {
            return started.map(|()| done);
        };

        match started {
            Ok(()) => Ok(done.undone_by(does, move || systemctl(verb, &[UNIT]))),
            Err(error) => {
                let what = format!("{verb} {UNIT}");
                ensure_undone(&error, &what, systemctl(verb, &[UNIT]))?;
                Err(error)
            }
        }
    });
}

/// Whether a user is a member of [`GROUP`].
pub(super) fn is_member(user: &str) -> anyhow::Result<bool> {
    let groups = output("id", &["-nG", user])?;

    ensure!(
        groups.status.success(),
        "find user {user}, which is `user` in the master's configuration: {}; create it, or correct the option",
        String::from_utf8_lossy(&groups.stderr).trim()
    );

    Ok(String::from_utf8_lossy(&groups.stdout)
        .split_whitespace()
        .any(|group| group == GROUP))
}

/// Plans to give the master's user access to the daemon's socket. Salt's packages run the master as
/// `salt`.
pub(super) fn membership(plan: &mut Plan, user: &str) -> anyhow::Result<()> {
    // Root may use any socket.
    if user == "root" {
        return Ok(());
    }

    let does = format!(
        "add {user}, the master's user, to the group {GROUP}, which may use the daemon's socket"
    );

    if is_member(user)? {
        plan.in_place("group", does);
        return Ok(());
    }

    let user = user.to_owned();
    plan.step("group", does, move || {
        // Without `-a` the user would leave all other groups.
        run("usermod", &["-aG", GROUP, &user])?;

        Ok(
            Done::new().undone_by(format!("remove {user} from the group"), move || {
                run("gpasswd", &["-d", &user, GROUP])
            }),
        )
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoing_returns_the_daemon_to_the_state_before() {
        for (is_enabled, is_active, verb) in [
            (false, false, Some("disable --now")),
            (false, true, Some("disable")),
            (true, false, Some("stop")),
            (true, true, None),
        ] {
            let before = State {
                is_enabled,
                is_active,
            };
            assert_eq!(before.way_back().map(|(_, verb)| verb), verb, "{before:?}");
        }
    }
}
