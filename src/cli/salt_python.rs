//! Finds Salt's Python for `setup` and `doctor`: of the running master, of its unit, or of an
//! installed Salt.

use std::path::{Path, PathBuf};

use crate::base::trusted::TrustedProgram;
use crate::base::users::User;
use crate::config::salt_master::{SaltMaster, python};

/// The unit of Salt's packages.
pub(super) const MASTER_UNIT: &str = "salt-master.service";

/// The Python of the master that runs now, which may no longer exist after an upgrade of Salt.
pub(super) fn running(master: &SaltMaster) -> Option<PathBuf> {
    python::of_running_master(User::named(&master.user).map(|user| user.uid))
}

/// Salt's Python: `given`, else the Python of the running master, of its unit, or of the installed
/// Salt. It is not checked yet.
pub(super) fn find(given: Option<&Path>, master: &SaltMaster) -> Option<PathBuf> {
    let exists = |python: &PathBuf| python.is_file();
    given
        .map(Path::to_owned)
        .or_else(|| running(master).filter(exists))
        .or_else(|| of_unit().filter(exists))
        .or_else(|| python::find(None))
}

/// The Python of the master's unit; `None` without systemd or such a unit.
fn of_unit() -> Option<PathBuf> {
    let systemctl =
        TrustedProgram::in_path("systemctl", rustix::process::geteuid().as_raw()).ok()?;
    let shown = systemctl
        .command()
        .args(["show", "--property=ExecStart", "--value", MASTER_UNIT])
        .output()
        .ok()?;
    python::of_unit(std::str::from_utf8(&shown.stdout).ok()?)
}
