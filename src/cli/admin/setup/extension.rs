//! The extension: where its files are, how Salt finds it, and the check that Salt loads it.
//!
//! By default Salt loads it from a directory of the package, by its option `module_dirs`. Nothing
//! is copied, so an upgrade of either program keeps it (docs/decisions/setup.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, anyhow, bail};
use salt_sls::json_form::encode_map;

use super::plan::{Done, Plan, ensure_undone};
use crate::base::trusted::TrustedPath;
use crate::config::salt_master::SaltMaster;
use crate::reactor::{SaltPython, memory_file};

/// Method of installing Salt's extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Install {
    /// Salt loads it from a directory of saltcellar's package (`module_dirs`); it survives upgrades of Salt
    ModuleDirs,
    /// Its wheel is installed into Salt's Python with pip; an upgrade of Salt may remove it
    Pip,
    /// It is installed by other means, such as `salt-pip install`
    Manual,
}

/// The returner below a directory of `module_dirs`. Salt treats both names alike.
const RETURNER: [&str; 2] = ["returners/saltcellar.py", "_returners/saltcellar.py"];

/// Directories that may contain the extension and the units: `given`, or the package's directory
/// and the directory next to this program.
pub(super) fn share(root: &Path, given: Option<&Path>) -> Vec<PathBuf> {
    // No other directory may take the place of a named one unnoticed.
    if let Some(given) = given {
        return vec![given.to_owned()];
    }

    let mut dirs = vec![root.join("usr/share/saltcellar")];

    // An unpacked release contains `bin` and `share` next to each other.
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.parent()?.join("share/saltcellar")));
    dirs.extend(beside.filter(|beside| !dirs.contains(beside)));

    dirs
}

fn names(dirs: &[PathBuf]) -> String {
    dirs.iter()
        .map(|dir| dir.display().to_string())
        .collect::<Vec<_>>()
        .join(" or ")
}

/// The directory for `module_dirs`. Only root, or this user, may be able to change what the master
/// will run.
pub(super) fn module_dir(share: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let file = |dir: &PathBuf| {
        RETURNER
            .iter()
            .map(|name| dir.join(name))
            .find(|file| file.is_file())
    };

    let Some(dir) = share.iter().find(|dir| file(dir).is_some()) else {
        bail!(
            "find the extension: there is no {} in {}; install the package saltcellar, or name its directory with --extension-dir",
            RETURNER[0],
            names(share)
        );
    };

    // The real path is what is checked below and what Salt will load; a link could point elsewhere
    // later.
    let dir = dir
        .canonicalize()
        .with_context(|| format!("find {}", dir.display()))?;

    TrustedPath::check_tree(&dir, own_uid()).with_context(|| {
        format!(
            "use the extension in {}; copy the directory to a place that only root can change, and name it with --extension-dir",
            dir.display()
        )
    })?;

    Ok(dir)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(super) fn wheel(share: &[PathBuf]) -> anyhow::Result<PathBuf> {
    // Older releases of setuptools keep the dot of the name.
    let is_wheel = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        ["saltext_saltcellar-", "saltext.saltcellar-"]
            .iter()
            .any(|start| name.starts_with(start))
            && path.extension().is_some_and(|extension| extension == "whl")
    };

    let wheels = |dir: &PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries.map(|entry| entry.path()).filter(is_wheel).collect()
    };

    // All directories: a second wheel anywhere makes the choice a person's.
    let found: Vec<_> = share.iter().flat_map(wheels).collect();

    match found.as_slice() {
        [one] => {
            // Salt will run what is in it.
            TrustedPath::check(one, own_uid()).with_context(|| format!("use {}", one.display()))?;
            Ok(one.clone())
        }
        [] => bail!(
            "find the extension: there is no saltext_saltcellar-*.whl in {}; install the package saltcellar, or name its directory with --extension-dir; \
             `--extension module-dirs` needs no wheel",
            names(share)
        ),
        [one, other, ..] => {
            bail!(
                "find the extension: there are several wheels, {} and {}; remove all but one",
                one.display(),
                other.display()
            )
        }
    }
}

/// A program for Salt's Python that loads the returners as a master does. Arguments: the master's
/// main file, then additional directories for `module_dirs`. Standard input: the configured
/// options, because the master's user may not be able to read the files.
const LOAD: &str = r#"
import json, sys
import salt.config, salt.loader, salt.version
def is_plain(value):
    return not (isinstance(value, dict) and any(key.startswith("$") for key in value))
given = {key: value for key, value in json.load(sys.stdin).items() if is_plain(value)}
opts = salt.config.apply_master_config({**given, "conf_file": sys.argv[1]}, salt.config.DEFAULT_MASTER_OPTS)
opts["module_dirs"] = [*opts.get("module_dirs", []), *sys.argv[2:]]
returners = salt.loader.returners(opts, {})
if "saltcellar.prep_jid" not in returners:
    if "saltcellar" in (opts.get("disable_returners") or []):
        sys.exit("remove saltcellar from disable_returners in the master's configuration")
    why = returners.missing_fun_string("saltcellar.prep_jid").rstrip(".")
    sys.exit(why + "; if the master runs in another Python, name it with --salt-python")
"#;
/// After [`LOAD`]: prints Salt's version.
const VERSION: &str = "print(salt.version.__version__)\n";
/// After [`LOAD`]: the master's maintenance, which also delivers spooled entries for some seconds.
const DELIVER: &str = "returners['saltcellar.clean_old_jobs']()\n";

/// Salt's Python, and the master whose configuration applies.
#[derive(Clone)]
pub(super) struct Salt {
    pub(super) python: PathBuf,
    pub(super) master: SaltMaster,
}

impl Salt {
    /// Runs [`LOAD`] followed by `what` as the master's user: Salt's loader imports modules of that
    /// user, which root must not execute.
    fn run(&self, what: &str, module_dir: Option<&Path>) -> anyhow::Result<String> {
        let python = SaltPython::to_ask(&self.python, self.master.configured_user())
            .map_err(|why| anyhow!("run Salt's Python: {why}"))?;

        // A file in memory appears neither in the list of processes nor on a disk: the options may
        // contain secrets. Unlike a pipe, it needs no thread that writes to it.
        let options = encode_map(self.master.given()).to_string();
        let options = memory_file(options.as_bytes()).context("pass the master's options")?;

        let output = python
            .isolated()
            .args(["-c", &format!("{LOAD}{what}")])
            .arg(&self.master.conf_file)
            .args(module_dir)
            .stdin(Stdio::from(options))
            .output()
            .with_context(|| format!("run {}", self.python.display()))?;

        let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();

        if output.status.success() {
            return Ok(printed(&output.stdout));
        }

        // The last line of a Python traceback names the error. The rest would hide it.
        let stderr = printed(&output.stderr);
        bail!(
            "{}: {}",
            output.status,
            stderr.lines().last().unwrap_or("it printed nothing")
        )
    }

    /// Salt's version, if its loader finds the returner.
    pub(super) fn loads(&self, module_dir: Option<&Path>) -> anyhow::Result<String> {
        self.run(VERSION, module_dir).with_context(|| {
            let user = match self.master.configured_user() {
                Some(user) => format!(" as user {user}"),
                None => String::new(),
            };
            format!(
                "load the extension in Salt's Python, {}{user}",
                self.python.display()
            )
        })
    }

    /// Delivers spooled entries, for some seconds.
    pub(super) fn deliver(&self, module_dir: Option<&Path>) -> anyhow::Result<()> {
        self.run(DELIVER, module_dir).map(drop)
    }

    /// Plans the check that Salt loads the extension from this directory. `changes` says that the
    /// master does not use it yet.
    pub(super) fn check(&self, plan: &mut Plan, dir: &Path, changes: bool) {
        let does = format!(
            "load the extension from {} in Salt's Python, {}",
            dir.display(),
            self.python.display()
        );

        if !changes {
            plan.in_place("extension", does);
            return;
        }

        // Salt is asked before the step that restarts the master. A master whose job cache cannot
        // be loaded publishes no job.
        let (salt, dir) = (self.clone(), dir.to_owned());
        plan.step("extension", does, move || {
            let version = salt.loads(Some(&dir))?;
            Ok(Done::new().with_result(format!("Salt {version} loads it")))
        });
    }

    /// Plans the installation of the wheel; `installed` is the version that is there.
    pub(super) fn install(&self, plan: &mut Plan, wheel: &Path, installed: Option<&str>) {
        let does = format!(
            "install {} into Salt's Python, {}",
            wheel.display(),
            self.python.display()
        );

        if installed == Some(env!("CARGO_PKG_VERSION")) {
            plan.in_place("extension", does);
            return;
        }

        let (salt, wheel) = (self.clone(), wheel.to_owned());
        let replaced = installed.map(str::to_owned);
        plan.step("extension", does, move || {
            // Nothing is fetched, because Salt's Python contains all that the extension imports.
            salt.pip(&[
                "install",
                "--no-index",
                "--no-deps",
                "--force-reinstall",
                &wheel.to_string_lossy(),
            ])?;

            let python = salt.clone();
            let back = move || python.pip(&["uninstall", "--yes", "saltext.saltcellar"]);

            let found = salt.loads(None);
            // The replaced wheel is gone. Without any, a master that uses it would publish no jobs.
            if let Some(replaced) = replaced {
                let version = found.with_context(|| {
                    format!(
                        "install the extension, which replaced its version {replaced}; correct the cause, or reinstall {replaced}, before \
                         the master restarts"
                    )
                })?;
                return Ok(Done::new().with_result(format!("Salt {version} loads it")));
            }

            match found {
                Ok(version) => Ok(Done::new()
                    .with_result(format!("Salt {version} loads it"))
                    .undone_by("uninstall the extension", back)),
                Err(error) => {
                    // Left there, Salt would find an extension that it cannot load.
                    let what = "uninstall the extension, which Salt cannot load and still finds,";
                    ensure_undone(&error, what, back())?;
                    Err(error.context("install the extension, which was uninstalled"))
                }
            }
        });
    }

    fn pip(&self, args: &[&str]) -> anyhow::Result<()> {
        let what = format!("run `{} -m pip {}`", self.python.display(), args.join(" "));

        // Salt's packages give the directory to the user salt: pip then runs as that user.
        let python = SaltPython::new(&self.python, None)
            .or_else(|why| SaltPython::new(&self.python, Some(&self.master.user)).map_err(|_| why))
            .map_err(|why| anyhow!("run pip in Salt's Python: {why}"))?;

        // `-m pip` instead of a program `pip`, which could belong to another Python.
        let output = python
            .isolated()
            .args(["-m", "pip"])
            .args(args)
            .output()
            .with_context(|| what.clone())?;

        if output.status.success() {
            return Ok(());
        }

        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr
            .trim()
            .lines()
            .last()
            .unwrap_or("it printed nothing")
            .to_owned();
        bail!(
            "{what}: {}: {last}; `--extension module-dirs` needs no pip",
            output.status
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::Value as Json;

    use super::*;
    use crate::cli::Global;
    use crate::testkit::program;

    #[test]
    fn files_that_others_can_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let share = vec![dir.path().join("none"), dir.path().join("share")];
        let error = module_dir(&share).unwrap_err().to_string();
        let at = dir.path().display();
        assert!(
            error.starts_with(&format!(
                "find the extension: there is no returners/saltcellar.py in {at}/none or {at}/share;"
            )),
            "{error}"
        );
        for (name, mode) in [("returners", 0o755), ("_returners", 0o755)] {
            let sub = dir.path().join("share").join(name);
            fs::create_dir_all(&sub).unwrap();
            fs::set_permissions(&sub, fs::Permissions::from_mode(mode)).unwrap();
            fs::write(sub.join("saltcellar.py"), "").unwrap();
            fs::set_permissions(sub.join("saltcellar.py"), fs::Permissions::from_mode(0o644))
                .unwrap();
            assert_eq!(
                module_dir(&share).unwrap(),
                dir.path().join("share").canonicalize().unwrap()
            );
            fs::set_permissions(sub.join("saltcellar.py"), fs::Permissions::from_mode(0o666))
                .unwrap();
            let error = format!("{:#}", module_dir(&share).unwrap_err());
            assert!(
                error.starts_with("use the extension in ")
                    && error.contains("anyone can write to")
                    && error.contains("saltcellar.py"),
                "{error}"
            );
            fs::set_permissions(sub.join("saltcellar.py"), fs::Permissions::from_mode(0o644))
                .unwrap();
            fs::set_permissions(&sub, fs::Permissions::from_mode(0o777)).unwrap();
            let error = format!("{:#}", module_dir(&share).unwrap_err());
            assert!(error.contains("anyone can write to"), "{error}");
            fs::remove_dir_all(dir.path().join("share")).unwrap();
        }
    }

    /// Installs the wheel where `installed` is the version that is there, with a later step that
    /// fails. Salt's Python exits with `loads` when it is asked to load the extension. Returns the
    /// error, and the first argument of each call of pip.
    fn failed_install(installed: Option<&str>, loads: i32) -> (String, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let python = program(
            dir.path(),
            "python",
            &format!(
                "#!/bin/sh\n\
                 while [ $# -gt 0 ]; do\n\
                 [ \"$1 $2\" = \"-m pip\" ] && {{ echo \"$3\" >> {}; exit; }}\n\
                 shift\n\
                 done\n\
                 echo 3008.3\n\
                 exit {loads}\n",
                log.display()
            ),
        );
        let salt = Salt {
            python,
            master: SaltMaster::read(&dir.path().join("master")),
        };

        let mut plan = Plan::default();
        salt.install(&mut plan, &dir.path().join("x.whl"), installed);
        plan.step("later", "fail", || bail!("a later step"));
        let error = plan
            .carry_out(&Global::with_json(), true, &Json::Null)
            .unwrap_err();
        let calls = fs::read_to_string(log).unwrap();
        (
            format!("{error:#}"),
            calls.lines().map(str::to_owned).collect(),
        )
    }

    #[test]
    fn a_failed_upgrade_with_pip_does_not_uninstall_what_replaced_the_version_before() {
        let (error, calls) = failed_install(Some("0.0.1"), 0);
        assert_eq!(
            (&*error, calls),
            ("a later step", vec!["install".to_owned()])
        );
        let (error, calls) = failed_install(Some("0.0.1"), 3);
        assert!(
            error.starts_with("install the extension, which replaced its version 0.0.1; "),
            "{error}"
        );
        assert_eq!(calls, ["install"]);

        // Where none was before, none stays.
        let (error, calls) = failed_install(None, 0);
        assert_eq!(error, "a later step");
        assert_eq!(calls, ["install", "uninstall"]);
        let (error, calls) = failed_install(None, 3);
        assert!(
            error.starts_with("install the extension, which was uninstalled: "),
            "{error}"
        );
        assert_eq!(calls, ["install", "uninstall"]);
    }

    #[test]
    fn there_has_to_be_one_wheel() {
        let dir = tempfile::tempdir().unwrap();
        let share = vec![dir.path().to_owned()];
        assert!(
            wheel(&share)
                .unwrap_err()
                .to_string()
                .contains("there is no saltext_saltcellar-*.whl in ")
        );
        let one = dir.path().join("saltext_saltcellar-0.1.0-py3-none-any.whl");
        let dotted = dir.path().join("saltext.saltcellar-0.1.0-py3-none-any.whl");
        for wheel_of_a_setuptools in [dotted, one.clone()] {
            fs::write(&wheel_of_a_setuptools, "").unwrap();
            assert_eq!(wheel(&share).unwrap(), wheel_of_a_setuptools);
            fs::remove_file(wheel_of_a_setuptools).unwrap();
        }
        fs::write(&one, "").unwrap();
        fs::write(
            dir.path().join("saltext_saltcellar-0.2.0-py3-none-any.whl"),
            "",
        )
        .unwrap();
        assert!(
            wheel(&share)
                .unwrap_err()
                .to_string()
                .contains("there are several wheels")
        );
    }
}
