//! The user that Salt's Python runs as: that of the Salt master, or of the minion.
//!
//! Salt's daemons start as root and switch to the configured `user`. This daemon, if it runs as root, stays root and switches only its
//! helper processes: `setpriv` sets uid, gid and supplementary groups before it executes Python.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::base::users::User;

/// Absolute paths, because `PATH` is not trusted.
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];
/// For users of sources other than `/etc/passwd`.
const GETENT: [&str; 2] = ["/usr/bin/getent", "/bin/getent"];

/// A user to switch to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account(User);

impl Account {
    /// The account that a process with the effective user id `own` has to switch to in order to run as `user`; `None` if it is that
    /// user already.
    ///
    /// # Errors
    ///
    /// Fails if there is no such user, or if the process cannot switch.
    pub(crate) fn switch(user: &str, own: u32) -> Result<Option<Self>, String> {
        let account = User::named(user)
            .or_else(|| User::find(&getent(user)?, |found| found.name == user))
            .ok_or_else(|| {
                format!("no such user {user:?}, which is `user` in Salt's configuration")
            })?;
        if account.uid == own {
            return Ok(None);
        }
        if own != 0 {
            return Err(format!(
                "Salt runs as user {user}, and only root can start Salt's Python as another user; this process has uid {own}"
            ));
        }
        if setpriv().is_none() {
            return Err(format!(
                "cannot switch to user {user}: setpriv (util-linux) is not installed"
            ));
        }
        Ok(Some(Self(account)))
    }

    /// A command that runs `program` as this user. As in Salt's daemons, variables about the user are changed if they are set.
    pub(in crate::reactor) fn command(&self, program: &Path) -> Command {
        let User {
            name,
            gid,
            home,
            shell,
            ..
        } = &self.0;
        let mut command = Command::new(setpriv().unwrap_or("setpriv"));
        command.args([
            "--reuid",
            name,
            "--regid",
            &gid.to_string(),
            "--init-groups",
            "--",
        ]);
        command.arg(program);
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
