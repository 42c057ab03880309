//! A plan: steps with what each does, whether it is needed, and how it is undone.
//!
//! # Invariant
//!
//! Planning changes nothing. If a step fails, the steps before it are undone in reverse order, and
//! each undo is reported; so is a step that cannot be undone. A report that cannot be written ends
//! neither the steps nor their undoing.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::cli::{Form, Format, Global, Output, OutputError, finding, print_error};

/// A closure that changes something.
type Act<T> = Box<dyn FnOnce() -> anyhow::Result<T>>;

pub(super) struct Step {
    /// Its name in JSON.
    name: &'static str,
    /// Description: a phrase that starts with a verb in the imperative.
    does: String,
    /// Runs it; `None` if its result is in place already.
    act: Option<Act<Done>>,
}

pub(super) struct Done {
    /// The result, if it is more than the plan states.
    pub(super) result: Option<String>,
    undo: Option<Undo>,
}

struct Undo {
    does: String,
    act: Act<()>,
}

impl Done {
    /// A result that cannot be undone.
    pub(super) fn new() -> Self {
        Self {
            result: None,
            undo: None,
        }
    }

    pub(super) fn with_result(mut self, result: impl Into<String>) -> Self {
        self.result = Some(result.into());
        self
    }

    pub(super) fn undone_by(
        mut self,
        does: impl Into<String>,
        act: impl FnOnce() -> anyhow::Result<()> + 'static,
    ) -> Self {
        self.undo = Some(Undo {
            does: does.into(),
            act: Box::new(act),
        });
        self
    }
}

#[derive(Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    /// Notes, shown with the plan.
    pub(super) remarks: Vec<String>,
    /// Manual steps that remain, and parts that stay.
    pub(super) afterwards: Vec<String>,
}

impl Plan {
    /// Adds a step that is needed.
    pub(super) fn step(
        &mut self,
        name: &'static str,
        does: impl Into<String>,
        act: impl FnOnce() -> anyhow::Result<Done> + 'static,
    ) {
        self.steps.push(Step {
            name,
            does: does.into(),
            act: Some(Box::new(act)),
        });
    }

    /// Adds a step whose result is in place.
    pub(super) fn in_place(&mut self, name: &'static str, does: impl Into<String>) {
        self.steps.push(Step {
            name,
            does: does.into(),
            act: None,
        });
    }

    /// Names of the steps to make.
    pub(super) fn needed(&self) -> Vec<&'static str> {
        self.steps
            .iter()
            .filter(|step| step.act.is_some())
            .map(|step| step.name)
            .collect()
    }

    fn document(&self, more: &Json) -> Json {
        let step = |step: &Step| {
            let state = if step.act.is_some() {
                "needed"
            } else {
                "in place"
            };
            json!({ "step": step.name, "does": step.does, "state": state })
        };

        let mut document = json!({
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "remarks": self.remarks,
            "afterwards": self.afterwards,
        });

        // Both are objects.
        if let (Some(document), Some(more)) = (document.as_object_mut(), more.as_object()) {
            document.extend(more.clone());
        }
        document
    }

    /// Prints the steps. JSON output is a document that also contains the fields of `more`.
    pub(super) fn show(&self, form: Form, more: &Json) -> anyhow::Result<()> {
        Ok(self.print(&mut Output::new(form), more)?)
    }

    fn print(&self, out: &mut Output, more: &Json) -> Result<(), OutputError> {
        if out.format != Format::Table {
            out.json(&self.document(more))?;
            return out.flush();
        }

        for step in &self.steps {
            let state = if step.act.is_some() {
                "will   "
            } else {
                "in place"
            };
            out.line(&format!("{state:<9} {}", step.does))?;
        }

        // The whole file, because a person agrees to what is shown.
        if let Some(text) = more.get("text").and_then(Json::as_str) {
            text.lines()
                .try_for_each(|line| out.line(&format!("          | {line}")))?;
        }

        for remark in &self.remarks {
            out.line(&format!("note      {remark}"))?;
        }

        out.flush()
    }

    /// Makes the needed steps, after a question unless `yes`. Returns whether anything changed.
    pub(super) fn carry_out(self, global: &Global, yes: bool, more: &Json) -> anyhow::Result<bool> {
        self.carry_out_to(&mut Output::new(global.output), yes, more)
    }

    fn carry_out_to(self, out: &mut Output, yes: bool, more: &Json) -> anyhow::Result<bool> {
        let is_table = out.format == Format::Table;
        let needs_nothing = self.needed().is_empty();
        let mut report = Report::new(out);

        // JSON output is one document, printed at the end with the results.
        if is_table || needs_nothing {
            report.write(|out| self.print(out, more));
        }

        if needs_nothing {
            report.line("everything is in place, nothing was changed");
            report.finish()?;
            return Ok(false);
        }

        // Once for the whole plan, which was just shown.
        if !yes {
            // Nobody can agree to what could not be shown.
            if let Some(error) = &report.failed {
                return Err(finding(format!("nothing was changed: {error}")));
            }
            confirm(is_table)?;
        }

        // Made before the steps, which are consumed as they are carried out. It states the plan to
        // which the person agreed.
        let mut document = self.document(more);
        let mut undos = Vec::new();
        let mut results = Vec::new();

        for step in self.steps {
            let Some(act) = step.act else { continue };

            report.line(&format!("...       {}", step.does));

            match act() {
                Ok(done) => {
                    let result = done.result.unwrap_or_else(|| "done".to_owned());
                    report.line(&format!("done      {result}"));
                    results.push(json!({ "step": step.name, "result": result }));
                    undos.push((step.does, done.undo));
                }
                Err(error) => {
                    // The steps so far only make sense together with this one.
                    undo(undos);

                    return Err(error);
                }
            }
        }

        if is_table {
            for line in &self.afterwards {
                report.line(&format!("next      {line}"));
            }
        } else {
            if let Some(document) = document.as_object_mut() {
                document.insert("results".to_owned(), Json::Array(results));
            }
            report.write(|out| out.json(&document).and_then(|()| out.flush()));
        }

        report
            .finish()
            .context("report the steps, which were made")?;
        Ok(true)
    }
}

/// Reports steps while they are made. After a failed write it is silent.
struct Report<'a> {
    out: &'a mut Output,
    failed: Option<OutputError>,
}

impl<'a> Report<'a> {
    fn new(out: &'a mut Output) -> Self {
        Self { out, failed: None }
    }

    fn write(&mut self, print: impl FnOnce(&mut Output) -> Result<(), OutputError>) {
        if self.failed.is_none() {
            self.failed = print(self.out).err();
        }
    }

    /// Reports progress, which only tables show.
    fn line(&mut self, text: &str) {
        if self.out.format == Format::Table {
            // Flushed, because the next step may take long.
            self.write(|out| out.line(text).and_then(|()| out.flush()));
        }
    }

    /// Fails if something could not be reported. A reader that has seen enough is no failure: the
    /// caller still has work to do.
    fn finish(self) -> Result<(), OutputError> {
        match self.failed {
            None | Some(OutputError::Closed) => Ok(()),
            Some(error) => Err(error),
        }
    }
}

/// Undoes steps, each with what it did, in reverse order, and reports each on standard error. A
/// failed undo does not prevent the others.
fn undo(steps: Vec<(String, Option<Undo>)>) {
    for (did, undo) in steps.into_iter().rev() {
        // Reported one by one: the caller's error says nothing about them.
        print_error(&undone(&did, undo));
    }
}

/// Undoes a step if it can be; returns the line that reports it.
fn undone(did: &str, undo: Option<Undo>) -> String {
    let Some(Undo { does, act }) = undo else {
        return format!("stays     {did}");
    };
    match act() {
        Ok(()) => format!("undone    {does}"),
        Err(error) => format!("NOT undone: {does}, do it by hand: {error:#}"),
    }
}

/// Asks for permission. A refusal is an error.
/// What a failed step had changed is undone, or else a person has to undo it: `what` is that, as in "cannot ...".
pub(super) fn ensure_undone(
    error: &anyhow::Error,
    what: &str,
    undone: anyhow::Result<()>,
) -> anyhow::Result<()> {
    undone.with_context(|| format!("{what} after a failed step ({error:#}); do it by hand"))
}

fn confirm(is_table: bool) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    // A question would corrupt the JSON document, or nobody would read it.
    if !is_table || !stdin.is_terminal() {
        return Err(finding(
            "nothing was changed: add --yes to make these steps without a question".to_owned(),
        ));
    }

    let mut out = std::io::stdout();
    write!(out, "Continue? [y/N] ")
        .and_then(|()| out.flush())
        .context("ask for permission (--yes needs none)")?;

    let mut answer = String::new();
    stdin
        .lock()
        .read_line(&mut answer)
        .context("read the response (--yes needs none)")?;

    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    // An error, because a script that goes on would expect a host that is set up.
    Err(finding("nothing was changed".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// What was made and undone.
    type Log = Arc<Mutex<Vec<String>>>;

    /// Adds the steps `one` and `two`, which log what they do; `undo` ends the undoing of each.
    fn two_steps(plan: &mut Plan, log: &Log, undo: fn(&str) -> anyhow::Result<()>) {
        for name in ["one", "two"] {
            let (act, back) = (log.clone(), log.clone());
            plan.step(name, format!("make {name}"), move || {
                act.lock().push(name.to_owned());
                Ok(Done::new().undone_by(format!("unmake {name}"), move || {
                    back.lock().push(format!("un{name}"));
                    undo(name)
                }))
            });
        }
    }

    #[test]
    fn a_failed_step_undoes_the_ones_before_it_in_reverse_order() {
        let log = Log::default();
        let mut plan = Plan::default();
        plan.in_place("zero", "do nothing");
        two_steps(&mut plan, &log, |name| {
            anyhow::ensure!(name != "two", "no way back");
            Ok(())
        });
        plan.step("three", "fail", || {
            anyhow::bail!("start the daemon: no disk")
        });
        let never = log.clone();
        plan.step("four", "never run", move || {
            never.lock().push("four".to_owned());
            Ok(Done::new())
        });
        assert_eq!(plan.needed(), ["one", "two", "three", "four"]);
        let error = plan
            .carry_out(&Global::with_json(), true, &Json::Null)
            .unwrap_err();
        assert_eq!(error.to_string(), "start the daemon: no disk");
        assert_eq!(*log.lock(), ["one", "two", "untwo", "unone"]);
    }

    #[test]
    fn a_step_that_stays_is_reported_as_well() {
        let line = |done: Done| undone("start the daemon", done.undo);
        assert_eq!(line(Done::new()), "stays     start the daemon");
        let stopped = Done::new().undone_by("stop it", || Ok(()));
        assert_eq!(line(stopped), "undone    stop it");
        let failed = Done::new().undone_by("stop it", || anyhow::bail!("no"));
        assert_eq!(line(failed), "NOT undone: stop it, do it by hand: no");
    }

    /// A writer that fails with this error after some bytes.
    struct Failing(usize, std::io::ErrorKind);

    impl std::io::Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or_else(|| std::io::Error::from(self.1))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_report_that_cannot_be_written_ends_neither_steps_nor_undoing() {
        use std::io::ErrorKind::{BrokenPipe, StorageFull};

        let made = |form: Form, yes: bool, writer: Failing, fails: bool| {
            let log = Log::default();
            let mut plan = Plan::default();
            two_steps(&mut plan, &log, |_| Ok(()));
            if fails {
                plan.step("three", "fail", || anyhow::bail!("start the daemon"));
            }

            let mut out = Output::to(form, Box::new(writer));
            let outcome = plan.carry_out_to(&mut out, yes, &Json::Null);
            let outcome = outcome.map_err(|error| format!("{error:#}"));
            let log = log.lock().clone();
            (outcome, log)
        };

        let both = vec!["one".to_owned(), "two".to_owned()];
        let undone = [both.clone(), vec!["untwo".to_owned(), "unone".to_owned()]].concat();
        // Closed from the start, after the plan, and within the report.
        for bytes in [0, 60, 100] {
            for form in [Form::Table, Form::Json] {
                assert_eq!(
                    made(form, true, Failing(bytes, BrokenPipe), false),
                    (Ok(true), both.clone()),
                    "{form:?} after {bytes} bytes"
                );
                assert_eq!(
                    made(form, true, Failing(bytes, BrokenPipe), true),
                    (Err("start the daemon".to_owned()), undone.clone()),
                    "{form:?} after {bytes} bytes"
                );
            }
        }

        let (outcome, log) = made(Form::Table, true, Failing(60, StorageFull), false);
        let error = outcome.unwrap_err();
        assert!(
            error.starts_with("report the steps, which were made: write the output"),
            "{error}"
        );
        assert_eq!(log, both);

        let (outcome, log) = made(Form::Table, false, Failing(0, BrokenPipe), false);
        assert!(outcome.unwrap_err().starts_with("nothing was changed: "));
        assert!(log.is_empty(), "{log:?}");
    }

    #[test]
    fn without_a_terminal_or_yes_nothing_is_changed() {
        let mut plan = Plan::default();
        plan.step("one", "make one", || panic!("made"));
        let error = plan
            .carry_out(&Global::with_json(), false, &Json::Null)
            .unwrap_err();
        assert!(error.to_string().contains("add --yes"), "{error}");
        assert!(
            !Plan::default()
                .carry_out(&Global::with_json(), false, &Json::Null)
                .unwrap(),
            "nothing to do"
        );
    }
}
