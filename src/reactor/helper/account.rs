//! The user that Salt's Python runs as, which is the user of the Salt master or of the minion.
//!
//! Salt's daemons start as root and switch to the configured `user`. This daemon, if it runs as
//! root, stays root and switches only its helper processes: `setpriv` sets uid, gid and
//! supplementary groups before it executes Python.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::base::trusted::{TrustedPath, TrustedProgram, Untrusted, clean_environment};
use crate::base::users::User;

/// Absolute paths, because `PATH` is not trusted.
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];
/// For users of sources other than `/etc/passwd`.
const GETENT: [&str; 2] = ["/usr/bin/getent", "/bin/getent"];

/// A user to switch to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account(User);

impl Account {
    /// The account that a process with the effective user id `own` has to switch to in order to run
    /// as `user`; `None` if it is that user already.
    ///
    /// # Errors
    ///
    /// Fails if there is no such user, or if the process cannot switch.
    pub(crate) fn switch(user: &str, own: u32) -> Result<Option<Self>, String> {
        let account = User::named(user)
            .or_else(|| User::find(&getent(user)?, |found| found.name == user))
            .ok_or_else(|| {
                format!("no such user {user:?}, which is `user` in Salt's configuration: create it, or correct `user`")
            })?;

        if account.uid == own {
            return Ok(None);
        }

        // With the rights of another user Salt's Python would read or write the wrong files.
        if own != 0 {
            return Err(format!(
                "Salt runs as user {user}, and only root can start Salt's Python as another user; this process has uid {own}: run it as {user} or root"
            ));
        }

        // `CommandExt::uid` is no substitute, because it drops the supplementary groups.
        if setpriv().is_none() {
            return Err(format!(
                "cannot switch to user {user}: setpriv is not installed; install util-linux"
            ));
        }

        Ok(Some(Self(account)))
    }

    /// A command that runs `program` as this user, in the directory `/`. As in Salt's daemons,
    /// variables about the user are changed if they are set.
    fn command(&self, program: &Path) -> Command {
        let User {
            name,
            gid,
            home,
            shell,
            ..
        } = &self.0;

        // Not `CommandExt::uid`, which drops the supplementary groups of the user.
        let mut command = Command::new(setpriv().unwrap_or("setpriv"));
        command.args([
            "--reuid",
            name,
            "--regid",
            &gid.to_string(),
            "--init-groups",
            "--",
        ]);
        command.arg(program).current_dir("/");

        for (variable, value) in [
            ("HOME", home),
            ("SHELL", shell),
            ("USER", name),
            ("LOGNAME", name),
        ] {
            if std::env::var_os(variable).is_some() {
                command.env(variable, value);
            }
        }

        command
    }

    /// Kills a process of this user.
    pub(in crate::reactor) fn kill(&self, pid: u32) -> io::Result<()> {
        // By a shell of that user, because this process may lack the right.
        let mut command = self.command(Path::new("/bin/sh"));
        command
            .args(["-c", "kill -9 \"$0\"", &pid.to_string()])
            .stdin(Stdio::null());

        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ))
    }
}

/// Salt's Python, which nobody but root and the user that runs it can replace, and that user.
#[derive(Debug, Clone)]
pub(crate) struct SaltPython {
    program: TrustedProgram,
    /// The user to switch to; `None` for the user of this process.
    account: Option<Account>,
}

impl SaltPython {
    /// Checks that Python, to be run as `user`, or as the user of this process. A name without a
    /// directory is searched in `PATH`.
    ///
    /// # Errors
    ///
    /// Fails if another user can replace it or its libraries, if there is no such user, or if this
    /// process cannot switch to it.
    pub(crate) fn new(python: &Path, user: Option<&str>) -> Result<Self, String> {
        let own = rustix::process::geteuid().as_raw();
        let account = match user {
            Some(user) => {
                Account::switch(user, own).map_err(|why| format!("{}: {why}", python.display()))?
            }
            None => None,
        };

        // The program may be replaceable only by root and by the user that runs it.
        let uid = account.as_ref().map_or(own, |Account(user)| user.uid);
        let checked = match python.to_str() {
            Some(name) if python.components().count() == 1 => TrustedProgram::in_path(name, uid),
            _ => TrustedProgram::check(python, uid),
        };

        let program = checked
            .and_then(|program| {
                libraries(program.path())
                    .iter()
                    .try_for_each(|dir| TrustedPath::check(dir, uid).map(drop))?;
                Ok(program)
            })
            .map_err(|error: Untrusted| error.to_string())?;

        Ok(Self { program, account })
    }

    /// For checks by the command line, which send nothing: as the Salt daemon's user if this
    /// process can switch, otherwise as its own.
    pub(crate) fn to_ask(python: &Path, user: Option<&str>) -> Result<Self, String> {
        let user = user.filter(|_| rustix::process::geteuid().is_root());
        Self::new(python, user)
    }

    /// The user to switch to.
    pub(in crate::reactor) fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// A command in the directory `/`, with the environment of this process.
    pub(in crate::reactor) fn command(&self) -> Command {
        match &self.account {
            Some(account) => account.command(self.program.path()),
            None => self.program.command(),
        }
    }

    /// A command in the directory `/`, without the environment of this process, and with Python's
    /// `-I`: no module of the current directory or of the user's home is imported.
    pub(crate) fn isolated(&self) -> Command {
        let mut command = self.command();
        let home = match &self.account {
            Some(Account(user)) => Some(PathBuf::from(&user.home)),
            None => std::env::var_os("HOME").map(PathBuf::from),
        };
        clean_environment(&mut command, home.as_deref());
        command.args(["-I", "-W", "ignore"]);
        command
    }
}

/// The directories from which an interpreter imports at its start: `lib/python3.*` with
/// `site-packages`, of its virtual environment and of the installation that its link leads to.
fn libraries(python: &Path) -> Vec<PathBuf> {
    let is_version = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("python3.")) && path.is_dir()
    };

    // A virtual environment and the installation behind its link each have libraries.
    let programs = [Some(python.to_owned()), python.canonicalize().ok()];
    programs
        .iter()
        .flatten()
        .filter_map(|program| program.parent()?.parent())
        .filter_map(|prefix| std::fs::read_dir(prefix.join("lib")).ok())
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(is_version)
        .flat_map(|dir| [dir.join("site-packages"), dir])
        .filter(|dir| dir.is_dir())
        .collect()
}

fn setpriv() -> Option<&'static str> {
    SETPRIV.into_iter().find(|path| Path::new(path).is_file())
}

/// A user's line from the system's other sources, such as LDAP.
fn getent(user: &str) -> Option<String> {
    let program = GETENT.into_iter().find(|path| Path::new(path).is_file())?;
    let output = Command::new(program)
        .args(["passwd", "--", user])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_can_switch() {
        assert_eq!(Account::switch("root", 0), Ok(None));
        assert!(
            Account::switch("root", 1000)
                .unwrap_err()
                .contains("only root can")
        );
        assert!(
            Account::switch("no-such-user", 0)
                .unwrap_err()
                .contains("no such user \"no-such-user\"")
        );
    }
}
