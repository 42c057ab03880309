//! `saltcellar reactor check`: checks the master's rules and their files without an event.

use serde_json::json;

use super::{Chosen, SaltArgs};
use crate::cli::{Global, finding, show};
use crate::model::word::Word as _;
use crate::model::{Note, NoteLevel};
use crate::reactor::{Pipeline, Rules, Salt, Unusable, resolve};
use crate::wire::python::Value;

pub(super) const EXAMPLES: &str = "\
Reads the configuration of the given or configured master (or minion) as Salt does; `reactor.rules` replace its rules. \
Finds the files that the rules refer to, and compiles each. `reactor test` finds the errors that depend on an event, \
such as undefined variables or invalid YAML.

Examples:
  saltcellar reactor check
  saltcellar reactor check --master-config /srv/test/master --output json

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
        if let Some(rules) = rules {
            pipeline.set_rules(rules);
        }
        let mut notes = master.notes.clone();
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
                files = check_files(&pipeline, &rules, &**salt);
            }
            Err(note) => notes.push(note),
        }
        let programs = files.iter().filter(|row| row.is_program).count();
        if programs > 0 {
            let message = format!(
                "{programs} files are programs, for which Salt waits without limit: each may take {} here \
                 (reactor.program_timeout), and is killed then, whatever it has done",
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
            let message = format!("{}: Salt's own Python fetches {which}", beyond.what);
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
    if faults > 0 {
        Err(finding(format!("{faults} faults found")))
    } else {
        Ok(())
    }
}

fn check_files(pipeline: &Pipeline, rules: &Rules, salt: &dyn Salt) -> Vec<FileResult> {
    let (settings, templates, engine) = pipeline.files();
    let mut rows = Vec::new();
    let has_salt = salt.grains().is_ok_and(|grains| grains.is_some());
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
                let why = "a reference must be text; otherwise the reactor drops every event of this rule"
                    .to_owned();
                rows.push(row(&shown, &shown, State::Broken(why)));
                continue;
            };
            let mut notes = Vec::new();
            let found = resolve(text, "TAG", settings, salt, &mut notes);
            if found.is_empty() {
                let why = notes.iter().find_map(|note| note.cause.clone());
                let problem = "file missing or not found";
                let why = why.map_or_else(|| problem.to_owned(), |why| format!("{problem}: {why}"));
                rows.push(row(text, text, State::Broken(why)));
            }
            for file in found {
                let template = templates.get(&file, &settings.renderers, salt);
                let is_program = template.as_ref().is_ok_and(|one| one.is_program());
                let state = match template {
                    Err(Unusable::Empty) => State::Good,
                    Err(Unusable::Reported(note)) => State::Broken(note.message),
                    Err(Unusable::Failed(why)) => State::Broken(why),
                    Ok(template) => match template.fault() {
                        Some(fault) => State::Broken(fault),
                        None => match template.not_native(engine, &file.path) {
                            [] => State::Good,
                            why if template.needs_salt() && !has_salt => State::Broken(format!(
                                "{}: not native, and Salt's Python was not found: set reactor.python",
                                why.join(", ")
                            )),
                            why => State::NotNative(why.to_vec()),
                        },
                    },
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
