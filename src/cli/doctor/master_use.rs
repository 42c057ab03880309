//! What the checks of a master's configuration look at: the master, and for what it uses saltcellar.

use std::fs;
use std::path::Path;

use super::access::User;
use super::python::Installed;
use crate::config::Config;
use crate::config::salt_master::{SaltMaster, same_file};

pub(super) struct MasterContext<'a> {
    pub(super) master: &'a SaltMaster,
    pub(super) config: &'a Config,
    pub(super) socket: &'a Path,
    pub(super) daemon: &'a User,
    /// The Python that the master runs in, if it no longer exists.
    pub(super) vanished: Option<&'a Path>,
    /// Packages in Salt's Python, or the reason why they are unknown.
    pub(super) python: &'a Result<Installed, String>,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct Uses {
    pub(super) job_cache: bool,
    pub(super) event_return: bool,
    pub(super) ext_job_cache: bool,
    pub(super) bus: bool,
}

impl Uses {
    pub(super) fn of(context: &MasterContext<'_>) -> Self {
        let master = context.master;
        let several = master.texts("multi_returner");

        let names = |option: &str| {
            let given = master.texts(option);
            let given = given
                .iter()
                .flat_map(|names| names.split(','))
                .map(str::trim);
            // `multi_returner` stands for the returners that it names.
            given.clone().any(|name| name == "saltcellar")
                || (given.clone().any(|name| name == "multi_returner")
                    && several.contains(&"saltcellar"))
        };

        Self {
            job_cache: names("master_job_cache"),
            event_return: names("event_return"),
            ext_job_cache: names("ext_job_cache"),
            bus: context
                .config
                .bus
                .iter()
                .any(|dir| same_file(dir, &master.sock_dir)),
        }
    }

    /// Whether anything of this master goes to saltcellar.
    pub(super) fn any(&self) -> bool {
        self.job_cache || self.event_return || self.ext_job_cache || self.bus
    }
}

/// The file and line of a top-level option; the last file takes precedence.
pub(super) fn option_origin(master: &SaltMaster, key: &str) -> String {
    for path in master.files.iter().rev() {
        // A file that vanished meanwhile is passed over.
        let text = fs::read_to_string(path).unwrap_or_default();

        let line = text.lines().position(|line| {
            line.trim_start_matches(['"', '\''])
                .strip_prefix(key)
                .is_some_and(|rest| {
                    rest.trim_start_matches(['"', '\''])
                        .trim_start()
                        .starts_with(':')
                })
        });

        if let Some(line) = line {
            return format!("{}:{}", path.display(), line + 1);
        }
    }

    // The option does not begin a line: a mapping on one line, as in JSON.
    let file = master.option_by_file(key).pop();
    file.map_or_else(
        || "Salt's default".to_owned(),
        |(path, _)| path.display().to_string(),
    )
}
