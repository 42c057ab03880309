//! The options for Salt: the contents of the file in `master.d` or `minion.d`, and the check that
//! all of them take effect.
//!
//! # Merging, as in Salt 3006 to 3008
//!
//! A list in an included file replaces the list of the main file; lists of several included files
//! are merged; a mapping replaces a list. Therefore the file repeats items that it would otherwise
//! replace, and none that Salt merges.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use salt_sls::{Map, Value};

use super::managed::marked;
use crate::cli::yaml;
use crate::config::salt_master::SaltMaster;

/// The file's name in `master.d` or `minion.d`.
pub(super) const NAME: &str = "saltcellar.conf";
/// The engine that stands for saltcellar's reactor in the master's `engines`.
pub(super) const ENGINE: &str = "saltcellar_reactor";

/// The options of a master, with the contents of the file that sets them.
pub(super) struct MasterOptions {
    /// The main file.
    main: PathBuf,
    /// The file to write.
    pub(super) path: PathBuf,
    wanted: Vec<(&'static str, Value)>,
}

impl MasterOptions {
    pub(super) fn new(main: &Path, path: PathBuf) -> Self {
        Self {
            main: main.to_owned(),
            path,
            wanted: Vec::new(),
        }
    }

    /// The master's configuration without this file.
    pub(super) fn without(&self) -> SaltMaster {
        SaltMaster::read_with(&self.main, &self.path, None)
    }

    /// The master's configuration with this file.
    pub(super) fn with(&self) -> SaltMaster {
        SaltMaster::read_with(&self.main, &self.path, Some(&self.text("")))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    pub(super) fn set(&mut self, option: &'static str, value: impl Into<Value>) {
        self.wanted.push((option, value.into()));
    }

    /// Adds an item to a list option, unless another file contains it already.
    pub(super) fn add(&mut self, option: &'static str, item: &str) {
        let present = items(self.without().option(option));
        if present.iter().any(|there| there.as_str() == Some(item)) {
            // Another file sets it, and removal has to leave it there.
            return;
        }

        // How Salt would read the file with this item alone shows which other items it would
        // replace.
        let text = marked(&line(option, &Value::List(vec![item.into()])));
        let alone =
            items(SaltMaster::read_with(&self.main, &self.path, Some(&text)).option(option));

        let replaced = present
            .into_iter()
            .filter(|there| !alone.iter().any(|kept| kept.python_eq(there)));

        let list = replaced.chain([item.into()]).collect();
        self.wanted.push((option, Value::List(list)));
    }

    /// The whole file, with a comment after its first lines.
    pub(super) fn text(&self, comment: &str) -> String {
        let head = "# Options for saltcellar. To undo: `saltcellar setup --remove`.\n";

        let lines: String = self
            .wanted
            .iter()
            .map(|(option, value)| line(option, value))
            .collect();

        marked(&format!("{head}{comment}{lines}"))
    }

    /// Fails if an option would have no effect, because a later file overrides it.
    pub(super) fn ensure_effective(&self) -> anyhow::Result<()> {
        // As Salt will read it, together with the file that is not written yet.
        let master = self.with();

        let in_effect = |(option, value): &&(&str, Value)| {
            let there = master.option(option);
            match value {
                // Salt merges lists, so other files may add items.
                Value::List(wanted) => {
                    let there = items(there);
                    wanted
                        .iter()
                        .all(|item| there.iter().any(|one| one.python_eq(item)))
                }
                _ => there.is_some_and(|there| there.python_eq(value)),
            }
        };

        let lost: Vec<_> = self
            .wanted
            .iter()
            .filter(|wanted| !in_effect(wanted))
            .collect();

        let Some((first, _)) = lost.first() else {
            return Ok(());
        };

        let lines: Vec<_> = lost
            .iter()
            .map(|(option, value)| line(option, value).trim_end().to_owned())
            .collect();

        // The last file that sets an option wins.
        let by = master
            .option_by_file(first)
            .last()
            .map(|(file, _)| file.display().to_string());

        bail!(
            "change the master's configuration: {} would have no effect, because {} is read later and overrides {}; remove it there",
            self.path.display(),
            by.as_deref().unwrap_or("another file"),
            lines.join(", ")
        )
    }

    /// Fails if Salt starts its own reactor despite this file.
    pub(super) fn ensure_no_salt_reactor(&self) -> anyhow::Result<()> {
        let master = self.with();

        let named = || {
            let of = |(file, value): (PathBuf, Value)| names_reactor(&value).then_some(file);
            master
                .option_by_file("engines")
                .into_iter()
                .rev()
                .find_map(of)
        };

        // Two reactors would make every reaction twice.
        ensure!(
            !master.runs_reactor(),
            "hand the reactor over: Salt's reactor would still run, because `engines` in {} names `reactor`; remove it there",
            named().map_or_else(
                || "the master's configuration".to_owned(),
                |file| file.display().to_string()
            )
        );
        Ok(())
    }
}

/// The items of a list option. Each key of a mapping is an item, as in Salt's reading of `engines`.
fn items(value: Option<&Value>) -> Vec<Value> {
    match value {
        Some(Value::List(items)) => items.clone(),
        Some(Value::Map(map)) => map
            .iter()
            .map(|(key, value)| Value::Map([(key.clone(), value.clone())].into_iter().collect()))
            .collect(),
        // Salt's default of `event_return` is an empty string.
        Some(Value::Str(one)) if !one.is_empty() => vec![one.as_str().into()],
        _ => Vec::new(),
    }
}

/// Whether a value of `engines` starts Salt's reactor by name.
fn names_reactor(engines: &Value) -> bool {
    let is_own = |map: &Map| map.contains_key("reactor");
    items(Some(engines))
        .iter()
        .any(|item| item.as_str() == Some("reactor") || item.as_map().is_some_and(is_own))
}

/// The contents of the file for a minion on another host.
pub(super) fn minion_text(url: &str, ca: Option<&Path>) -> String {
    let head = "# Target of this minion's `--return saltcellar`. To undo: `saltcellar setup --minion-listener URL --remove`.\n";
    let mut body = format!("{head}{}", line("saltcellar.url", &url.into()));

    if let Some(ca) = ca {
        body += &line("saltcellar.ca", &ca.display().to_string().into());
    }

    marked(&body)
}

fn line(option: &str, value: &Value) -> String {
    format!("{option}: {}\n", yaml::inline(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use salt_sls::yaml as salt_yaml;

    fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, MasterOptions) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("master.d")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let options = MasterOptions::new(
            &dir.path().join("master"),
            dir.path().join("master.d/saltcellar.conf"),
        );
        (dir, options)
    }

    #[test]
    fn a_list_keeps_the_items_that_it_would_replace_and_repeats_none_that_salt_merges() {
        let check = |files: &[(&str, &str)], expected: &str, in_effect: &str| {
            let (_dir, mut options) = place(files);
            options.add("engines", ENGINE);
            let text = options.text("");
            let line = text
                .lines()
                .find(|line| line.starts_with("engines"))
                .unwrap_or_default();
            assert_eq!(line, expected, "{files:?}");
            let there = options.with();
            assert_eq!(
                there.option("engines"),
                Some(&salt_yaml::load(in_effect).unwrap()),
                "{files:?}"
            );
            options.ensure_effective().unwrap();
        };
        let ours = "engines: [saltcellar_reactor]";
        check(&[], ours, "[saltcellar_reactor]");
        check(
            &[("master", "engines: [a, {b: {c: 1}}]\n")],
            "engines: [a, {b: {c: 1}}, saltcellar_reactor]",
            "[a, {b: {c: 1}}, saltcellar_reactor]",
        );
        check(
            &[("master", "engines: {a: {b: on}}\n")],
            "engines: [{a: {b: true}}, saltcellar_reactor]",
            "[{a: {b: true}}, saltcellar_reactor]",
        );
        check(
            &[("master.d/a.conf", "engines: [a]\n")],
            ours,
            "[a, saltcellar_reactor]",
        );
        check(
            &[
                ("master.d/z.conf", "engines: [z]\n"),
                ("master", "engines: [m]\n"),
            ],
            ours,
            "[saltcellar_reactor, z]",
        );
        check(
            &[("master.d/a.conf", "engines: {a: {}}\n")],
            "engines: [{a: {}}, saltcellar_reactor]",
            "[{a: {}}, saltcellar_reactor]",
        );
        // Another file has it: nothing to write.
        check(
            &[("master.d/z.conf", "engines: [saltcellar_reactor]\n")],
            "",
            "[saltcellar_reactor]",
        );
    }

    #[test]
    fn a_plan_that_a_later_file_defeats_is_an_error() {
        let (dir, mut options) = place(&[(
            "master.d/z.conf",
            "engines: {z: {}}\nmaster_job_cache: redis\n",
        )]);
        options.add("engines", ENGINE);
        options.set("master_job_cache", "saltcellar");
        let at = dir.path().join("master.d");
        assert_eq!(
            options.ensure_effective().unwrap_err().to_string(),
            format!(
                "change the master's configuration: {0}/saltcellar.conf would have no effect, because {0}/z.conf is read later and overrides \
                 engines: [saltcellar_reactor], master_job_cache: saltcellar; remove it there",
                at.display()
            )
        );
    }

    #[test]
    fn an_engine_that_names_salts_reactor_keeps_it_on() {
        let (dir, mut options) = place(&[("master", "reactor: [{a: [/a]}]\nengines: [reactor]\n")]);
        options.add("engines", ENGINE);
        let error = options.ensure_no_salt_reactor().unwrap_err().to_string();
        let file = dir.path().join("master");
        assert!(
            error.contains(&format!("`engines` in {} names `reactor`", file.display())),
            "{error}"
        );
        let (_dir, mut options) = place(&[("master", "reactor: [{a: [/a]}]\n")]);
        options.add("engines", ENGINE);
        options.ensure_no_salt_reactor().unwrap();
    }
}
