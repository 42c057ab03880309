//! The daemon's configuration file: `bus`, and `reactor.master`.
//!
//! Keys are appended to the file, which otherwise stays as it is, with its comments. A key that has another value is a person's decision:
//! the plan fails and names it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::managed::{self, Before};
use super::plan::{Done, Plan};
use super::service;
use crate::config::salt_master::same_file;
use crate::config::{CliOverrides, Config, Environment};

pub(super) struct Keys<'a> {
    /// The master's `sock_dir`, to read its bus.
    pub(super) bus: Option<&'a Path>,
    /// The master's main file, to be its reactor.
    pub(super) reactor: Option<&'a Path>,
}

/// Plans the change of the file. True if there is one.
pub(super) fn configure(plan: &mut Plan, path: &Path, wanted: &Keys<'_>) -> anyhow::Result<bool> {
    let config = load(path)?;
    let mut lines = Vec::new();
    if let Some(bus) = wanted.bus
        && !config.bus.iter().any(|dir| same_file(dir, bus))
    {
        if !config.bus.is_empty() {
            bail!(
                "configure the bus: `bus` in {} has other directories; add {} to it",
                path.display(),
                bus.display()
            );
        }
        lines.push(format!("bus: [{}]", bus.display()));
    }
    if let Some(master) = wanted.reactor {
        let reactor = &config.reactor;
        if !reactor
            .master
            .as_deref()
            .is_some_and(|file| same_file(file, master))
        {
            lines.push(format!("reactor.master: {}", master.display()));
        }
        if reactor.shadow {
            bail!(
                "hand the reactor over: `reactor.shadow` is true in {}; remove it",
                path.display()
            );
        }
    }
    let wishes = match (wanted.bus, wanted.reactor) {
        (None, None) => return Ok(false),
        (Some(bus), None) => format!("to read the bus in {}", bus.display()),
        (None, Some(master)) => format!("to be the reactor of {}", master.display()),
        (Some(bus), Some(master)) => {
            format!(
                "to read the bus in {}, and to be the reactor of {}",
                bus.display(),
                master.display()
            )
        }
    };
    let does = format!("configure the daemon {wishes}, in {}", path.display());
    if lines.is_empty() {
        plan.in_place("configuration", does);
        return Ok(false);
    }
    let old = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("read {}", path.display()))?,
    };
    let text = appended(&old, &lines);
    check(path, &text, wanted, &lines)?;
    let path = path.to_owned();
    plan.step(
        "configuration",
        format!("{does}: {}", lines.join(", ")),
        move || write(path, &text),
    );
    Ok(true)
}

fn write(path: PathBuf, text: &str) -> anyhow::Result<Done> {
    let before = Before::of(&path).with_context(|| format!("read {}", path.display()))?;
    managed::write(&path, text.as_bytes())
        .with_context(|| format!("write {} (run setup as root)", path.display()))?;
    let result = format!("{} is written", path.display());
    let does = format!("restore {}", path.display());
    let back = move || {
        before
            .restore(&path)
            .with_context(|| format!("restore {}", path.display()))?;
        service::restart_if_enabled()
    };
    Ok(Done::new().with_result(result).undone_by(does, back))
}

/// The file's text with these lines, and without a line that is only an empty mapping.
fn appended(old: &str, lines: &[String]) -> String {
    let mut text = if old.trim() == "{}" {
        String::new()
    } else {
        old.to_owned()
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for line in lines {
        text += line;
        text.push('\n');
    }
    text
}

fn load(path: &Path) -> anyhow::Result<Config> {
    // A missing file is an empty one.
    let config = path.exists().then(|| path.to_owned());
    let overrides = CliOverrides {
        config,
        ..CliOverrides::default()
    };
    Config::load(
        &overrides,
        &Environment {
            home: Some("/nonexistent".into()),
            ..Environment::default()
        },
    )
    .context("read the configuration")
}

/// Checks that the new text is a valid configuration with the wanted keys.
fn check(path: &Path, text: &str, wanted: &Keys<'_>, lines: &[String]) -> anyhow::Result<()> {
    let draft = tempfile::NamedTempFile::new().context("make a temporary file")?;
    fs::write(draft.path(), text).context("write a temporary file")?;
    let is_right = load(draft.path()).is_ok_and(|config| {
        wanted
            .bus
            .is_none_or(|bus| config.bus.iter().any(|dir| same_file(dir, bus)))
            && wanted
                .reactor
                .is_none_or(|master| config.reactor.master.as_deref() == Some(master))
    });
    if is_right {
        return Ok(());
    }
    bail!(
        "change {}: its keys cannot be appended to; add by hand, and run setup again: {}",
        path.display(),
        lines.join(", ")
    )
}

#[cfg(test)]
mod tests;
