//! The renderers of a file: from its first line `#!jinja|yaml`, or the master's option `renderer`.

use std::sync::Arc;

use super::renderers::{NATIVE, Owner, Renderers, SiteRenderers};
use crate::model::Note;

const LOGGER: &str = "salt.template";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    /// `jinja`, `yaml`, `py` ...
    pub(crate) name: String,
    /// The text after the name.
    pub(crate) options: String,
    pub(crate) owner: Owner,
}

impl Stage {
    /// Whether it is rendered here. A site may have replaced a renderer of Salt.
    pub(crate) fn is_native(&self) -> bool {
        self.owner == Owner::Salt && NATIVE.contains(&self.name.as_str())
    }

    /// Whether the file is a program, which may take long.
    pub(crate) fn is_program(&self) -> bool {
        self.owner == Owner::Site || PROGRAMS.contains(&self.name.as_str())
    }

    /// The renderer, for people.
    pub(crate) fn shown(&self) -> String {
        match self.owner {
            Owner::Salt => format!("renderer \"{}\"", self.name),
            Owner::Site => format!("renderer \"{}\" of this site", self.name),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RendererSettings {
    /// The pipe of files without a `#!` line.
    pub(crate) default: String,
    /// If not empty, other renderers are skipped.
    pub(crate) whitelist: Vec<String>,
    /// Skipped renderers.
    pub(crate) blacklist: Vec<String>,
    pub(crate) site: Arc<SiteRenderers>,
}

/// Renderers whose files are programs.
const PROGRAMS: [&str; 3] = ["py", "pydsl", "pyobjects"];

/// Old names of pipes.
const OLD: [(&str, &str); 9] = [
    ("yaml_jinja", "jinja|yaml"),
    ("yaml_mako", "mako|yaml"),
    ("yaml_wempy", "wempy|yaml"),
    ("json_jinja", "jinja|json"),
    ("json_mako", "mako|json"),
    ("json_wempy", "wempy|json"),
    ("yamlex_jinja", "jinja|yamlex"),
    ("yamlexyamlex_mako", "mako|yamlexyamlex"),
    ("yamlexyamlex_wempy", "wempy|yamlexyamlex"),
];

/// The pipe in the first line, if there is one.
pub(in crate::reactor) fn shebang(text: &str) -> Option<&str> {
    let line = text.split(['\n', '\r']).next().unwrap_or_default();
    let pipe = line.strip_prefix("#!")?;
    (!pipe.starts_with('/')).then(|| pipe.trim_end())
}

/// The renderers of a file. Empty, with an ERROR, if Salt lacks one of them: nothing is rendered
/// then.
pub(in crate::reactor) fn stages(
    text: &str,
    settings: &RendererSettings,
    renderers: &Renderers,
    notes: &mut Vec<Note>,
) -> Vec<Stage> {
    // The first line of a file takes precedence over the master's option.
    let pipe = shebang(text).unwrap_or(&settings.default);
    let spelled = OLD
        .iter()
        .find(|(old, _)| *old == pipe)
        .map_or(pipe, |(_, new)| new);

    let mut stages = Vec::new();
    for part in spelled.split('|') {
        let part = part.trim();
        let (name, options) = part.split_once(' ').unwrap_or((part, ""));

        // As in Salt, a renderer that is not allowed is left out of the pipe.
        let allowed =
            settings.whitelist.is_empty() || settings.whitelist.iter().any(|known| known == name);
        if !allowed || settings.blacklist.iter().any(|known| known == name) {
            notes.push(Note::warning(
                LOGGER,
                format!(
                    "The renderer \"{name}\" is disallowed by configuration and will be skipped."
                ),
            ));
            continue;
        }

        // As in Salt, a pipe without one of its renderers renders nothing.
        let Some(owner) = renderers.owner(name) else {
            notes.push(Note::error(
                LOGGER,
                format!("The renderer \"{pipe}\" is not available"),
            ));
            return Vec::new();
        };

        stages.push(Stage {
            name: name.to_owned(),
            options: options.trim().to_owned(),
            owner,
        });
    }

    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        text: &str,
        settings: &RendererSettings,
        expected: &[(&str, &str)],
        expected_notes: &[&str],
    ) {
        let mut notes = Vec::new();
        let stages = stages(text, settings, &Renderers::default(), &mut notes);
        let stages: Vec<(&str, &str)> = stages
            .iter()
            .map(|s| (s.name.as_str(), s.options.as_str()))
            .collect();
        let notes: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
        assert_eq!(
            (stages.as_slice(), notes.as_slice()),
            (expected, expected_notes),
            "{text:?}"
        );
    }

    #[test]
    fn the_first_line_selects_the_pipe() {
        let plain = RendererSettings {
            default: "jinja|yaml".to_owned(),
            ..Default::default()
        };
        let usual = [("jinja", ""), ("yaml", "")];
        check("x: y", &plain, &usual, &[]);
        check("#!jinja|yaml\n", &plain, &usual, &[]);
        check("#! jinja | yaml \r\n", &plain, &usual, &[]);
        check("#!/bin/sh\n", &plain, &usual, &[]);
        check("\n#!py\n", &plain, &usual, &[]);
        check("\u{feff}#!py\n", &plain, &usual, &[]);
        check("#!yaml_jinja\n", &plain, &usual, &[]);
        check("#!yaml_jinja \n", &plain, &usual, &[]);
        check(
            "#!jinja -s|json\rx",
            &plain,
            &[("jinja", "-s"), ("json", "")],
            &[],
        );
        check(
            "#!jinja|nope\n",
            &plain,
            &[],
            &["The renderer \"jinja|nope\" is not available"],
        );
        check("#!\n", &plain, &[], &["The renderer \"\" is not available"]);
        check("#!py", &plain, &[("py", "")], &[]);
    }

    #[test]
    fn whitelist_and_blacklist_skip_renderers() {
        let skipped = |name: &str| {
            format!("The renderer \"{name}\" is disallowed by configuration and will be skipped.")
        };
        let white = RendererSettings {
            default: "jinja|yaml".to_owned(),
            whitelist: vec!["jinja".to_owned()],
            ..Default::default()
        };
        check("x", &white, &[("jinja", "")], &[&skipped("yaml")]);
        check(
            "#!nope|jinja",
            &white,
            &[("jinja", "")],
            &[&skipped("nope")],
        );
        let black = RendererSettings {
            default: "jinja|yaml".to_owned(),
            blacklist: vec!["jinja".to_owned()],
            ..Default::default()
        };
        check("x", &black, &[("yaml", "")], &[&skipped("jinja")]);
    }
}
