//! The Salt whose reactor is meant: its configuration, and its Python.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use salt_sls::Value;

use crate::cli::{Global, print_error};
use crate::config::salt_master::{Role, SALT_CONFIG, SALT_MASTER_FILE, SaltMaster, python};
use crate::config::{Config, Environment, ReactorConfig};
use crate::reactor::{Helper, HelperOptions, NoSalt, Salt};

#[derive(clap::Args)]
pub(super) struct SaltArgs {
    /// Salt's configuration directory, as for Salt's option -c [default: the file that reactor.master or reactor.minion
    /// names, or /etc/salt]
    #[arg(long, value_name = "DIR")]
    pub(super) salt_config: Option<PathBuf>,
    /// Read the file `minion` instead of `master`, for the reactor of a minion (reactor.minion)
    #[arg(long)]
    pub(super) masterless: bool,
    #[command(flatten)]
    pub(super) python: PythonArgs,
}

#[derive(clap::Args)]
pub(super) struct PythonArgs {
    /// A Python with Salt, for `#!py` files and functions of `salt` [default: reactor.python, or that of salt-master]
    #[arg(long, value_name = "PATH", env = "SALTCELLAR_SALT_PYTHON")]
    pub(super) salt_python: Option<PathBuf>,
}

/// The Salt configuration selected by flags, or by saltcellar's configuration.
pub(super) struct Chosen {
    pub(super) master: SaltMaster,
    /// `reactor.rules`, which replace the master's own.
    pub(super) rules: Option<Value>,
    pub(super) salt: Arc<dyn Salt>,
    /// The time limit of files that are programs.
    pub(super) program_time: Duration,
}

impl SaltArgs {
    /// Whose configuration of Salt, and the settings of saltcellar that apply to it.
    fn settings(&self, global: &Global) -> anyhow::Result<(Role, PathBuf, ReactorConfig)> {
        let config = Config::load(&global.overrides(), &Environment::of_process())
            .context("read the configuration")
            .map(|config| config.reactor);

        let dir = self.salt_config.as_deref();
        let named = if self.masterless {
            let dir = dir.unwrap_or(Path::new(SALT_CONFIG));
            Some((Role::Minion, dir.join("minion")))
        } else {
            dir.map(|dir| (Role::Master, dir.join("master")))
        };

        if let Some((role, path)) = named {
            let config = config.unwrap_or_else(|error| {
                // It is needed for little, and the file may be meant for another host.
                print_error(&format!(
                    "warning: the configuration contains an error and is not used: {error:#}"
                ));
                ReactorConfig::default()
            });

            // A named file is checked on its own, without rules of saltcellar's configuration. Salt
            // and its speed are a matter of this host.
            let mut own = ReactorConfig::default();
            own.python = config.python;
            own.helper_memory = config.helper_memory;
            own.helper_timeout = config.helper_timeout;
            own.program_timeout = config.program_timeout;

            return Ok((role, path, own));
        }

        let config = config?;
        let of_whom = config
            .of_whom()
            .map(|(role, path, _)| (role, path.to_owned()));
        // Salt's file is the best guess without a configuration.
        let (role, path) = of_whom.unwrap_or((Role::Master, PathBuf::from(SALT_MASTER_FILE)));
        Ok((role, path, config))
    }

    pub(super) fn choose(&self, global: &Global) -> anyhow::Result<Chosen> {
        let (role, path, config) = self.settings(global)?;

        let master = SaltMaster::read_as(&path, role);
        let salt = self.salt(&master, &config);

        Ok(Chosen {
            master,
            rules: config.rules(),
            salt,
            program_time: program_time(&config),
        })
    }

    pub(super) fn salt(&self, master: &SaltMaster, config: &ReactorConfig) -> Arc<dyn Salt> {
        let configured = self
            .python
            .salt_python
            .as_deref()
            .or(config.python.as_deref());

        let Some(python) = python::find(configured) else {
            // Files that need Salt's Python are reported instead.
            return Arc::new(NoSalt);
        };

        let mut options = HelperOptions::of_daemon(python, master);
        options.time = config.helper_timeout;
        options.program_time = config.program_timeout;

        // Nothing is sent, so users other than root may render files as themselves.
        options.user = options
            .user
            .filter(|_| rustix::process::geteuid().is_root());

        Arc::new(Helper::new(options))
    }
}

/// The time limit of files that are programs.
pub(super) fn program_time(config: &ReactorConfig) -> Duration {
    config.program_timeout.max(config.helper_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_directory_is_read_with_the_configured_python_and_without_the_configured_rules() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        let global = Global {
            config: Some(file.clone()),
            ..Global::with_json()
        };
        let settings = |salt_config: Option<&str>, masterless| {
            let args = SaltArgs {
                salt_config: salt_config.map(PathBuf::from),
                masterless,
                python: PythonArgs { salt_python: None },
            };
            args.settings(&global)
        };

        let text = "reactor: {master: /etc/salt/a, python: /opt/python3, program_timeout: 77s, rules: [{a: [/b.sls]}]}\n";
        std::fs::write(&file, text).unwrap();
        let (_, path, config) = settings(Some("/srv"), false).unwrap();
        assert_eq!(path, Path::new("/srv/master"));
        assert_eq!(config.python.as_deref(), Some(Path::new("/opt/python3")));
        assert_eq!(config.program_timeout, Duration::from_secs(77));
        assert!(config.rules().is_none(), "{config:?}");

        let (_, path, config) = settings(None, false).unwrap();
        assert_eq!(path, Path::new("/etc/salt/a"));
        assert!(config.rules().is_some());

        let (role, path, _) = settings(None, true).unwrap();
        assert_eq!((role, path), (Role::Minion, "/etc/salt/minion".into()));

        // The file can be checked although the configuration is invalid.
        std::fs::write(&file, "buss: 1\n").unwrap();
        assert_eq!(settings(Some("/srv"), false).unwrap().2.python, None);
        settings(None, false).map(|_| ()).unwrap_err();
    }
}
