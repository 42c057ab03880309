//! The user that Salt's Python runs as: that of the Salt master, or of the minion.
//!
//! Salt's daemons start as root and switch to the configured `user`. A daemon here that runs as root stays root, and switches for its
//! helper processes, before Python is started: `setpriv` sets uid, gid and supplementary groups, and then executes Python.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that set uid, gid and supplementary groups, by their only paths: `PATH` is not trusted.
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];
/// Programs that look up users of other sources than `/etc/passwd`.
const GETENT: [&str; 2] = ["/usr/bin/getent", "/bin/getent"];

/// A user to switch to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

impl Account {
    /// The account that a process with the effective user id `own` has to switch to in order to run as `user`; `None` if it is that
    /// user already.
    ///
    /// # Errors
    ///
    /// Fails with one sentence if there is no such user, or if the process cannot switch.
    pub fn switch(user: &str, own: u32) -> Result<Option<Self>, String> {
        let found = Self::find(&fs::read_to_string("/etc/passwd").unwrap_or_default(), user);
        let account = found.or_else(|| Self::find(&getent(user)?, user)).ok_or_else(|| {
            format!("there is no user {user:?}, which Salt's configuration names as `user`")
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
            return Err(format!("cannot switch to user {user}: setpriv (util-linux) is not installed"));
        }
        Ok(Some(account))
    }

    fn find(passwd: &str, user: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
            (*name == user).then_some(())?;
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(Self {
                name: user.to_owned(),
                uid,
                gid,
                home: (*home).to_owned(),
                shell: (*shell).to_owned(),
            })
        })
    }

    /// A command that runs `program` as this user. The environment changes as Salt's daemons change theirs: variables about the user
    /// that are set, are set to this one.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(setpriv().unwrap_or("setpriv"));
        command.args(["--reuid", &self.name, "--regid", &self.gid.to_string(), "--init-groups", "--"]);
        command.arg(program);
        let Self { name, home, shell, .. } = self;
        for (variable, value) in [("HOME", home), ("SHELL", shell), ("USER", name), ("LOGNAME", name)] {
            if std::env::var_os(variable).is_some() {
                command.env(variable, value);
            }
        }
        command
    }
}

fn setpriv() -> Option<&'static str> {
    SETPRIV.into_iter().find(|path| Path::new(path).is_file())
}

/// A user's line as the system's other sources (LDAP and the like) have it.
fn getent(user: &str) -> Option<String> {
    let program = GETENT.into_iter().find(|path| Path::new(path).is_file())?;
    let output = Command::new(program).args(["passwd", "--", user]).stdin(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_switched_to_by_root_alone() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsalt:x:980:981::/opt/salt:/bin/false\nbroken:x:y:z\nodd:x:1:1:::\n";
        let salt = Account::find(passwd, "salt").unwrap();
        assert_eq!(
            (salt.uid, salt.gid, salt.home.as_str(), salt.shell.as_str()),
            (980, 981, "/opt/salt", "/bin/false")
        );
        assert_eq!((Account::find(passwd, "broken"), Account::find(passwd, "sal")), (None, None));
        assert_eq!(Account::find(passwd, "odd").unwrap().home, "");
        assert_eq!(Account::switch("root", 0), Ok(None));
        assert!(Account::switch("root", 1000).unwrap_err().contains("only root can"));
        assert!(
            Account::switch("no-such-user", 0).unwrap_err().contains("there is no user \"no-such-user\"")
        );
    }
}
