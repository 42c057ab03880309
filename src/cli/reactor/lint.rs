//! `saltcellar reactor lint`: checks the master's rules and their files without an event.

use std::path::Path;
use std::sync::Arc;

use salt_sls::{Map, Value};
use serde_json::json;

use super::salt::{Chosen, PythonArgs, SaltArgs, program_time};
use crate::cli::{Global, finding, show};
use crate::config::ReactorConfig;
use crate::config::salt_master::SaltMaster;
use crate::model::word::Word as _;
use crate::model::{Note, NoteLevel};
use crate::reactor::{
    Body, Detail, Found, Pipeline, Rules, Salt, SaltChecked, SaltError, SaltFile, Template,
    Unusable, Worker, resolve,
};

pub(super) const EXAMPLES: &str = "\
Reads the configuration of the given or configured master (or minion) as Salt does; `reactor.rules` replace its rules. \
Finds the files that the rules refer to, and compiles each; files that do not depend on an event's data are rendered, \
and files for Salt's Python are checked by it. No function of `salt` is called, and no program (`#!py`) or renderer \
of the site is run. `reactor render` finds the errors that depend on an event, such as undefined variables or invalid YAML.

Examples:
  saltcellar reactor lint
  saltcellar reactor lint --salt-config /srv/test --output json

Exit codes: 0 no errors, 1 errors in the configuration or a file.";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    salt: SaltArgs,
}

/// The result for one file.
struct FileResult {
    rule: String,
    reference: String,
    file: String,
    state: State,
    is_program: bool,
}

enum State {
    Good,
    Broken(String),
    NotNative(Vec<String>),
}

impl State {
    fn name(&self) -> &'static str {
        match self {
            State::Good => "ok",
            State::Broken(_) => "broken",
            State::NotNative(_) => "not native",
        }
    }

    fn why(&self) -> String {
        match self {
            State::Good => String::new(),
            State::Broken(why) => why.clone(),
            State::NotNative(why) => why.join(", "),
        }
    }
}

/// What a check of a master's rules and their files found.
pub(super) struct Checked {
    rules: usize,
    notes: Vec<Note>,
    files: Vec<FileResult>,
}

impl Checked {
    pub(super) fn of(chosen: &Chosen) -> Self {
        let Chosen {
            master,
            rules,
            salt,
            program_time,
        } = chosen;

        let pipeline = Pipeline::new(master, salt.clone());
        // `reactor.rules` replace the master's rules.
        if let Some(rules) = rules {
            pipeline.set_rules(rules);
        }

        let mut notes = master.notes.clone();

        // Without its file a master has no rules, and no rules have no faults.
        if !master.files.contains(&master.conf_file) {
            let path = master.conf_file.display();
            notes.push(Note::error(
                "saltcellar",
                format!("{path} does not exist: set the master's file"),
            ));
        }

        let mut files = Vec::new();
        let mut count = 0;

        match pipeline.rules() {
            Ok(rules) => {
                notes.extend(rules.notes.iter().cloned());
                count = rules.len();

                // Other delimiters decide what counts as a template.
                let has_usual_tags = master
                    .option("jinja_env")
                    .and_then(Value::as_map)
                    .is_none_or(Map::is_empty);

                let mut checking = Checking {
                    pipeline: &pipeline,
                    // Another pipeline, because each rendering replaces the rules of this one.
                    worker: Worker::new(static_pipeline(chosen)),
                    salt,
                    has_salt: salt.grains().is_ok_and(|grains| grains.is_some()),
                    has_usual_tags,
                    notes: &mut notes,
                };

                files = checking.files(&rules);
            }
            Err(note) => notes.push(note),
        }

        // The time of a program is limited here, and not in Salt.
        let programs = files.iter().filter(|row| row.is_program).count();
        if programs > 0 {
            let (are, each) = if programs == 1 {
                ("1 file is a program".to_owned(), "it")
            } else {
                (format!("{programs} files are programs"), "each")
            };
            let message = format!(
                "{are}, for which Salt waits without limit: {each} may take {} here (reactor.program_timeout), \
                 and is killed then, whatever it has done",
                program_time.show().unwrap_or_default()
            );
            notes.push(Note::warning("saltcellar", message));
        }

        if let Some(beyond) = &pipeline.files().0.beyond_roots {
            let which = if beyond.roots_first {
                "`salt://` files outside file_roots"
            } else {
                "`salt://` files"
            };
            let message = format!("{}: Salt's Python fetches {which}", beyond.what);
            notes.push(Note::new(NoteLevel::Info, "saltcellar", message));
        }

        Self {
            rules: count,
            notes,
            files,
        }
    }

    /// A line for each error in the configuration or a file.
    pub(super) fn faults(&self) -> Vec<String> {
        let notes = self
            .notes
            .iter()
            .filter(|note| note.level == NoteLevel::Error)
            .map(ToString::to_string);

        let broken = self.files.iter().filter_map(|row| match &row.state {
            State::Broken(why) => Some(format!("{} ({}): {why}", row.file, row.rule)),
            State::Good | State::NotNative(_) => None,
        });

        notes.chain(broken).collect()
    }
}

/// A line for each error in a master's rules and their files, as `reactor lint` finds them with
/// this Python of Salt.
pub(in crate::cli) fn faults(
    master: &SaltMaster,
    config: &ReactorConfig,
    python: Option<&Path>,
) -> Vec<String> {
    let python = PythonArgs {
        salt_python: python.map(Path::to_owned),
    };

    let args = SaltArgs {
        salt_config: None,
        masterless: false,
        python,
    };

    // Not through `choose`: the caller has read the configuration.
    let chosen = Chosen {
        master: master.clone(),
        rules: config.rules(),
        salt: args.salt(master, config),
        program_time: program_time(config),
    };
    Checked::of(&chosen).faults()
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let checked = Checked::of(&args.salt.choose(global)?);
    let faults = checked.faults().len();
    let Checked {
        rules: rules_count,
        notes,
        files: rows,
    } = checked;

    let named = |note: &Note| json!({"level": note.level.name(), "message": note.to_string()});
    let file = |row: &FileResult| {
        json!({
            "rule": row.rule, "reference": row.reference, "file": row.file, "state": row.state.name(),
            "why": row.state.why(),
        })
    };

    let document = json!({
        "rules": rules_count,
        "faults": faults,
        "files": rows.iter().map(file).collect::<Vec<_>>(),
        "notes": notes.iter().map(named).collect::<Vec<_>>(),
    });

    show(global.output, &document, |out| {
        for note in &notes {
            out.line(&format!("{}: {note}", note.level.name()))?;
        }
        for row in &rows {
            // Only a fault comes with a reason.
            let why = row.state.why();
            let tail = if why.is_empty() {
                String::new()
            } else {
                format!(": {why}")
            };
            out.line(&format!(
                "{:<10}  {}  {}{tail}",
                row.state.name(),
                row.rule,
                row.file
            ))?;
        }
        Ok(out.line(&format!(
            "{rules_count} rules, {} files, {faults} faults",
            rows.len()
        ))?)
    })?;

    // After the report, which explains the exit code.
    if faults > 0 {
        Err(finding(format!("{faults} faults found")))
    } else {
        Ok(())
    }
}

/// A pipeline of its own, whose rules are replaced for each file that is rendered.
fn static_pipeline(chosen: &Chosen) -> Arc<Pipeline> {
    Arc::new(Pipeline::new(&chosen.master, chosen.salt.clone()))
}

/// A check of the files of all rules.
struct Checking<'a> {
    pipeline: &'a Pipeline,
    /// Renders files that do not depend on data.
    worker: Worker,
    salt: &'a Arc<dyn Salt>,
    /// Whether there is a Python with Salt.
    has_salt: bool,
    /// Whether Jinja has its usual delimiters.
    has_usual_tags: bool,
    notes: &'a mut Vec<Note>,
}

impl Checking<'_> {
    fn files(&mut self, rules: &Rules) -> Vec<FileResult> {
        let (settings, templates, _) = self.pipeline.files();
        let mut rows = Vec::new();
        for (rule, references) in rules.all() {
            for reference in references {
                let row = |reference: &str, file: &str, state| FileResult {
                    rule: rule.to_string(),
                    reference: reference.to_owned(),
                    file: file.to_owned(),
                    state,
                    is_program: false,
                };

                let Value::Str(text) = reference else {
                    let shown = reference.python_repr();
                    let why = "a reference must be a string; otherwise the reactor drops every event of this rule"
                        .to_owned();
                    rows.push(row(&shown, &shown, State::Broken(why)));
                    continue;
                };

                let mut notes = Vec::new();
                let found = resolve(text, "TAG", settings, &**self.salt, &mut notes);

                // Salt only logs this when an event arrives, and the rule does nothing
                // (`render_reaction`).
                if found.is_empty() {
                    let why = notes.iter().find_map(|note| note.cause.clone());
                    let problem = "file missing or not found";
                    let why =
                        why.map_or_else(|| problem.to_owned(), |why| format!("{problem}: {why}"));
                    rows.push(row(text, text, State::Broken(why)));
                }

                for file in found {
                    let template = templates.get(&file, &settings.renderers, self.salt);
                    let is_program = template.as_ref().is_ok_and(|one| one.is_program());
                    let state = match template {
                        // Salt accepts an empty file.
                        Err(Unusable::Empty) => State::Good,
                        Err(Unusable::Reported(note)) => State::Broken(note.message),
                        Err(Unusable::Failed(why)) => State::Broken(why),
                        Ok(template) => self.state(rule, &file, &template),
                    };
                    rows.push(FileResult {
                        is_program,
                        ..row(text, &file.path, state)
                    });
                }
            }
        }
        rows
    }

    fn state(&mut self, rule: &str, file: &Found, template: &Template) -> State {
        if let Some(fault) = template.fault() {
            return State::Broken(fault);
        }

        let is_static = template.is_static(self.has_usual_tags);

        let why = template.not_native(self.pipeline.files().2, &file.path);
        if why.is_empty() {
            // Without an event, only a file that ignores its data can be rendered.
            let fault = is_static.then(|| self.render(file)).flatten();
            return fault.map_or(State::Good, State::Broken);
        }

        let shown = why.join(", ");
        if template.needs_salt() && !self.has_salt {
            return State::Broken(format!(
                "{shown}: not native, and Salt's Python was not found: set reactor.python"
            ));
        }

        let (tag, data) = minimal_event(rule);

        // With a minimal event, because there is no real event in a check.
        let checked = self.salt.check(
            &SaltFile {
                path: &file.path,
                source: &file.source,
                reference: file
                    .remote
                    .as_ref()
                    .map(|(reference, _)| reference.as_str()),
                tag: &tag,
                data: &data,
                renderers: template.renderers,
                is_program: template.is_program(),
            },
            is_static,
        );

        match checked {
            Ok(SaltChecked::Rendered) => State::NotNative(why.to_vec()),
            Ok(SaltChecked::Compiled(what)) => State::NotNative([why, &[what]].concat()),
            // Most events contain more data, so this proves nothing.
            Ok(SaltChecked::Fails(cause)) => {
                self.warn(format!(
                    "{} ({rule}): it is compiled, but does not render with a minimal event, which may be for the lack of \
                     data: {cause}",
                    file.path
                ));
                State::NotNative(why.to_vec())
            }
            Ok(SaltChecked::Broken(cause)) => State::Broken(cause),
            // Nothing is known about the file, which is no fault of it.
            Err(SaltError::Absent(cause)) => {
                self.warn(format!(
                    "{} ({rule}): not checked, because {shown} is not native: {cause}",
                    file.path
                ));
                State::NotNative(why.to_vec())
            }
            // The file ended the process or took too long, as it would for an event.
            Err(error) => State::Broken(format!("{shown}: {error}")),
        }
    }

    fn warn(&mut self, what: String) {
        self.notes.push(Note::warning("saltcellar", what));
    }

    /// Renders a native file that does not depend on data; the first error.
    fn render(&mut self, file: &Found) -> Option<String> {
        let reference = file
            .remote
            .as_ref()
            .map_or(&file.path, |(reference, _)| reference);

        // A single rule for every tag, because only this file is to be rendered.
        let rule = Map::from_iter([("*".into(), Value::List(vec![reference.as_str().into()]))]);
        let rules = Value::List(vec![Value::Map(rule)]);
        self.worker.pipeline().set_rules(&rules);

        let (tag, data) = minimal_event("TAG");
        let outcome = self.worker.react(&tag, Body::Value(&data), Detail::Calls);

        // The pattern of a reference can name several files, so another one's error may be first.
        let error = outcome
            .notes
            .iter()
            .find(|note| note.level == NoteLevel::Error)?;
        Some(error.to_string())
    }
}

/// Tag and data of an event with only the fields that most events have.
fn minimal_event(rule: &str) -> (String, Value) {
    let data = Map::from_iter([
        ("id".into(), "minion".into()),
        ("_stamp".into(), "2026-01-01T00:00:00.000000".into()),
    ]);
    (rule.replace('*', "minion"), Value::Map(data))
}
