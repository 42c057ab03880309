//! The daemon's settings: a file owned by setup, which the daemon reads in addition to its configuration
//! file.
//!
//! # Invariant
//!
//! The configuration file may belong to a package, and is never changed. A key that a person set to
//! another value is that person's decision: the plan fails and names the place.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use salt_sls::Value;

use super::choices::Choices;
use super::managed::{self, Before, FileState, marked, refuse_foreign, state_of};
use super::plan::{Done, Plan};
use super::service;
use crate::cli::yaml;
use crate::config::salt_master::same_file;
use crate::config::{CONFIG_DIR, Config};

/// The file's name.
const NAME: &str = "setup.yaml";

/// The settings that setup makes.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The master's `sock_dir`, to read its bus.
    pub(super) bus: Option<PathBuf>,
    /// The master's main file, to be its reactor.
    pub(super) reactor: Option<PathBuf>,
    /// Salt's Python, if the daemon would not find it itself.
    pub(super) python: Option<PathBuf>,
    /// The address of HTTP and the page.
    pub(super) listen: Option<String>,
}

/// The file of setup next to the configuration file.
pub(super) fn file_beside(config_file: &Path) -> PathBuf {
    let dir = config_file.parent().unwrap_or(Path::new("/"));
    dir.join(CONFIG_DIR).join(NAME)
}

/// The daemon's settings before this run.
pub(super) struct Settings {
    /// The file of setup.
    pub(super) path: PathBuf,
    main: PathBuf,
    /// Its contents; empty if there is none.
    text: String,
    /// The settings of all other files.
    others: Config,
}

impl Settings {
    pub(super) fn read(config_file: &Path) -> anyhow::Result<Self> {
        let path = file_beside(config_file);
        // Before the first run there is no file. Any other failure must not look the same, because
        // the recorded choices would be lost.
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read
                .map_err(managed::advised)
                .with_context(|| format!("read {}", path.display()))?,
        };

        // Without this file, because its settings from an earlier run would look like a person's,
        // and would be left out of the new file.
        let others =
            Config::load_files_with(config_file, &path, None).context("read the configuration")?;

        Ok(Self {
            path,
            main: config_file.to_owned(),
            text,
            others,
        })
    }

    pub(super) fn recorded(&self) -> Choices {
        Choices::recorded(&self.text)
    }

    /// The address of HTTP that an earlier run set.
    pub(super) fn listen(&self) -> Option<String> {
        let line = |line: &str| line.strip_prefix("http.listen: ").map(str::to_owned);
        self.text
            .lines()
            .find_map(line)
            .map(|text| text.trim_matches('"').to_owned())
    }

    /// Salt's Python, if a person named it.
    pub(super) fn python(&self) -> Option<&Path> {
        self.others.reactor.python.as_deref()
    }

    /// The settings of all other files, which setup does not repeat.
    pub(super) fn others(&self) -> &Config {
        &self.others
    }

    fn lines(&self, wanted: &Keys) -> anyhow::Result<Vec<String>> {
        let others = &self.others;

        let mut lines = Vec::new();

        // What another file sets already is not repeated.
        if let Some(bus) = &wanted.bus
            // Compared as files, because a link or another spelling of the path is the same bus.
            && !others.bus.iter().any(|dir| same_file(dir, bus))
        {
            lines.push(line("bus", &Value::List(vec![text(bus)?])));
        }

        if let Some(master) = &wanted.reactor {
            // A second spelling of the same path would be another value for the key, which the
            // daemon rejects.
            let named = others.reactor.master.as_deref();
            if !named.is_some_and(|file| same_file(file, master)) {
                lines.push(line("reactor.master", &text(master)?));
            }
            if let Some(python) = &wanted.python
                && others.reactor.python.is_none()
            {
                lines.push(line("reactor.python", &text(python)?));
            }
        }

        if let Some(listen) = &wanted.listen
            && others.http.listen.is_none()
        {
            lines.push(line("http.listen", &listen.as_str().into()));
        }

        Ok(lines)
    }
}

fn line(key: &str, value: &Value) -> String {
    format!("{key}: {}", yaml::inline(value))
}

/// A path as a value of YAML, which is Unicode.
fn text(path: &Path) -> anyhow::Result<Value> {
    let text = path
        .to_str()
        .with_context(|| format!("configure the daemon: {} is not UTF-8", path.display()))?;
    Ok(text.into())
}

/// Plans the change of the file; `before` is the state of the daemon now. Returns whether there is
/// one.
pub(super) fn configure(
    plan: &mut Plan,
    settings: &Settings,
    wanted: &Keys,
    choices: Choices,
    before: service::State,
) -> anyhow::Result<bool> {
    let path = &settings.path;
    let others = settings.others();

    // With Salt's reactor off and this one in shadow, nothing would react.
    if wanted.reactor.is_some() && others.reactor.shadow {
        bail!(
            "hand the reactor over: `reactor.shadow` is true in {}; remove it",
            others.origin("reactor.shadow")
        );
    }

    let lines = settings.lines(wanted)?;
    let head = "# Settings for this host's Salt master. To undo: `saltcellar setup --remove`.\n";
    let record = choices.comment();

    // Choices are recorded even if they need no setting of the daemon.
    let text = (!lines.is_empty() || !record.is_empty()).then(|| {
        marked(&format!(
            "{head}{record}{}",
            lines
                .iter()
                .flat_map(|line| [line.as_str(), "\n"])
                .collect::<String>()
        ))
    });

    let found = state_of(path, text.as_deref())?;
    refuse_foreign(path, found)?;

    let does = format!(
        "configure the daemon{}, in {}",
        wishes(wanted),
        path.display()
    );

    match (&text, found) {
        (None, FileState::Absent) | (Some(_), FileState::InPlace) => {
            // Settings that nobody wants are not mentioned in the plan.
            if !wishes(wanted).is_empty() {
                plan.in_place("configuration", does);
            }
            return Ok(false);
        }
        _ => {}
    }

    // As the daemon will read it: a person's other value for the same key is an error with both
    // places.
    Config::load_files_with(&settings.main, path, text.as_deref())
        .context("configure the daemon")?;

    let step = path.clone();

    match text {
        Some(text) => {
            let shown = if lines.is_empty() {
                String::new()
            } else {
                format!(": {}", lines.join(", "))
            };
            plan.step("configuration", format!("{does}{shown}"), move || {
                change(
                    step,
                    before,
                    |path| managed::write(path, text.as_bytes()),
                    "written",
                )
            });
        }
        None => plan.step(
            "configuration",
            format!("remove {}", path.display()),
            move || change(step, before, managed::remove, "removed"),
        ),
    }

    Ok(true)
}

/// Plans the removal of the file.
pub(super) fn remove(plan: &mut Plan, config_file: &Path) -> anyhow::Result<()> {
    let path = file_beside(config_file);
    let does = format!("remove {}", path.display());

    let found = state_of(&path, None)?;
    match found {
        FileState::Absent => plan.in_place("configuration", format!("{does}: it does not exist")),
        // Not an error, because the master can be given back to Salt without the loss of a person's
        // settings.
        FileState::Changed | FileState::Foreign => plan.afterwards.push(format!(
            "{} stays, because it is {}; remove it if nothing in it is needed",
            path.display(),
            found.name()
        )),
        FileState::InPlace | FileState::Outdated => plan.step("configuration", does, move || {
            managed::remove(&path).with_context(|| format!("remove {}", path.display()))?;
            Ok(Done::new())
        }),
    }
    Ok(())
}

fn wishes(wanted: &Keys) -> String {
    let mut wishes = Vec::new();

    if let Some(bus) = &wanted.bus {
        wishes.push(format!("to read the bus in {}", bus.display()));
    }

    if let Some(master) = &wanted.reactor {
        wishes.push(format!("to be the reactor of {}", master.display()));
    }

    if let Some(listen) = &wanted.listen {
        wishes.push(format!("to serve the web UI at http://{listen}/"));
    }

    if wishes.is_empty() {
        String::new()
    } else {
        format!(" {}", wishes.join(", and "))
    }
}

fn change(
    path: PathBuf,
    daemon: service::State,
    write: impl FnOnce(&Path) -> std::io::Result<()>,
    done: &str,
) -> anyhow::Result<Done> {
    // Read when the step is made, because a person may have changed the file since the plan was
    // shown.
    let before = Before::of(&path).with_context(|| format!("read {}", path.display()))?;
    write(&path).with_context(|| format!("change {}", path.display()))?;

    let result = format!("{} is {done}", path.display());
    let does = format!("restore {}", path.display());

    let back = move || {
        before
            .restore(&path)
            .with_context(|| format!("restore {}", path.display()))?;
        // It reads the restored file. One that did not run stays stopped.
        daemon.restart_if_active()
    };

    Ok(Done::new().with_result(result).undone_by(does, back))
}

#[cfg(test)]
mod tests;
