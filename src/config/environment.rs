//! The user and environment of a process, and the default paths that follow from them.
//!
//! Root keeps state under `/var/lib` and listens under `/run`. Every other user stays within their own XDG directories, so
//! that a trial needs no privileges. Under systemd the directories are those that the unit created, for every user.

use std::path::{Path, PathBuf};

use super::{ConfigError, Origin};

/// State directory of the system's daemon.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/saltcellar";
/// Socket of the system's daemon.
pub const SYSTEM_SOCKET: &str = "/run/saltcellar/saltcellar.sock";
/// Configuration file of the system's daemon.
pub const SYSTEM_CONFIG: &str = "/etc/saltcellar/saltcellar.yaml";
/// Directory next to the configuration file, with further files of the same form.
pub const CONFIG_DIR: &str = "conf.d";

/// Names of environment variables that set a key.
pub(super) const ENV_STATE_DIR: &str = "SALTCELLAR_STATE_DIR";
pub(super) const ENV_SOCKET: &str = "SALTCELLAR_SOCKET";
pub(super) const ENV_LOG: &str = "SALTCELLAR_LOG";
pub(super) const ENV_CLUSTER_SLOT: &str = "SALTCELLAR_CLUSTER_SLOT";

/// The user and the relevant variables. Empty variables count as unset.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Whether the process runs as root.
    pub root: bool,
    /// `HOME`
    pub home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`
    pub xdg_config_home: Option<PathBuf>,
    /// `XDG_STATE_HOME`
    pub xdg_state_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`
    pub xdg_runtime_dir: Option<PathBuf>,
    /// `STATE_DIRECTORY`, its first item: the directory that systemd created for the service
    pub service_state_dir: Option<PathBuf>,
    /// `RUNTIME_DIRECTORY`, its first item
    pub service_runtime_dir: Option<PathBuf>,
    /// `SALTCELLAR_STATE_DIR`
    pub state_dir: Option<PathBuf>,
    /// `SALTCELLAR_SOCKET`
    pub socket: Option<PathBuf>,
    /// `SALTCELLAR_LOG`
    pub log_level: Option<String>,
    /// `SALTCELLAR_CLUSTER_SLOT`
    pub cluster_slot: Option<String>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        // The XDG specification takes an empty variable for a missing one.
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());

        // The XDG specification requires relative values to be ignored.
        let xdg = |name: &str| path(name).filter(|path| path.is_absolute());

        // systemd separates several directories by colons (systemd.exec(5)).
        let first = |name: &str| {
            let text = set(name)?.into_string().ok()?;
            absolute(text.split(':').next()?)
        };

        Self {
            service_state_dir: first("STATE_DIRECTORY"),
            service_runtime_dir: first("RUNTIME_DIRECTORY"),
            // The effective user, with whose rights paths are opened.
            root: rustix::process::geteuid().is_root(),
            home: path("HOME"),
            xdg_config_home: xdg("XDG_CONFIG_HOME"),
            xdg_state_home: xdg("XDG_STATE_HOME"),
            xdg_runtime_dir: xdg("XDG_RUNTIME_DIR"),
            state_dir: path(ENV_STATE_DIR),
            socket: path(ENV_SOCKET),
            log_level: text(ENV_LOG),
            cluster_slot: text(ENV_CLUSTER_SLOT),
        }
    }

    /// The default configuration file, which may be missing.
    pub(super) fn default_config_file(&self) -> Option<PathBuf> {
        // A service uses the system's file, whatever its user is.
        if self.root || self.service_state_dir.is_some() {
            return Some(PathBuf::from(SYSTEM_CONFIG));
        }

        let home = self
            .xdg_config_home
            .clone()
            .or_else(|| Some(self.home.as_ref()?.join(".config")))?;
        Some(home.join("saltcellar/saltcellar.yaml"))
    }

    pub(super) fn default_state_dir(&self) -> Result<PathBuf, ConfigError> {
        if let Some(dir) = &self.service_state_dir {
            return Ok(dir.clone());
        }
        if self.root {
            return Ok(PathBuf::from(SYSTEM_STATE_DIR));
        }

        self.state_home().ok_or_else(|| {
            homeless(
                "state_dir",
                &format!("give --state-dir or set {ENV_STATE_DIR} or XDG_STATE_HOME"),
            )
        })
    }

    pub(super) fn default_socket(&self) -> Result<PathBuf, ConfigError> {
        // A service has a directory of its own, whatever its user is.
        if let Some(dir) = &self.service_runtime_dir {
            return Ok(dir.join("saltcellar.sock"));
        }
        if self.root {
            return Ok(PathBuf::from(SYSTEM_SOCKET));
        }

        // A user without a login session, as in a cron job, has no runtime directory.
        let dir = match &self.xdg_runtime_dir {
            Some(dir) => Some(dir.join("saltcellar")),
            None => self.state_home(),
        };

        dir.map(|dir| dir.join("saltcellar.sock")).ok_or_else(|| {
            homeless(
                "socket",
                &format!("give --socket or set {ENV_SOCKET} or XDG_RUNTIME_DIR"),
            )
        })
    }

    fn state_home(&self) -> Option<PathBuf> {
        let home = self.xdg_state_home.clone();
        let home = home.or_else(|| Some(self.home.as_deref()?.join(Path::new(".local/state"))))?;
        Some(home.join("saltcellar"))
    }
}

fn absolute(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text)).filter(|path| path.is_absolute())
}

fn homeless(key: &str, accepted: &str) -> ConfigError {
    ConfigError {
        origin: Origin::Default,
        key: key.to_owned(),
        problem: format!("no default, because HOME is not set; {accepted}"),
    }
}
