//! Conformance with Salt, judged by cases: a configuration, files and events, and what Salt's own reactor made of them.
//!
//! Cases are JSON files, one each; `tests/data/reactor-cases/README.md` says how they are written, and
//! `tests/lab/reactor_oracle.py` writes what they expect with a real Salt. No case is known to the program by name.

mod case;
mod check;
mod compare;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

pub use self::case::{Case, CaseError, read_cases};
pub use self::check::judge;

/// What is needed beside the cases.
#[derive(Debug, Clone, Default)]
pub struct ConformanceOptions {
    /// The Python with Salt in it, for cases that need it.
    pub salt_python: Option<PathBuf>,
}

/// A part of a case, in the order in which it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The case itself.
    Case,
    /// The option `reactor` as read.
    EffectiveReactor,
    /// What reading the configuration logged.
    ConfigLogs,
    /// References that matched.
    Matched,
    /// Texts that Jinja made.
    Renders,
    /// Parsed and padded data.
    High,
    /// Chunks in order.
    Low,
    /// Calls in order.
    Calls,
    /// Functions that templates called.
    SaltCalls,
    /// Events that were fired.
    Fired,
    /// Log records.
    Logs,
}

impl Layer {
    /// Its name in the case files.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Case => "case",
            Layer::EffectiveReactor => "effective_reactor",
            Layer::ConfigLogs => "config_logs",
            Layer::Matched => "matched",
            Layer::Renders => "renders",
            Layer::High => "high",
            Layer::Low => "low",
            Layer::Calls => "calls",
            Layer::SaltCalls => "salt_calls",
            Layer::Fired => "fired",
            Layer::Logs => "logs",
        }
    }
}

/// Something that is not as in Salt.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The event, from 1; 0 is the configuration.
    pub event: usize,
    /// Where.
    pub layer: Layer,
    /// What was expected and what came.
    pub what: String,
    /// Only the spelling of a rendered text differs; what it means is the same.
    pub lesser: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.event > 0 {
            write!(f, "event {}: ", self.event)?;
        }
        write!(f, "{}: {}", self.layer.name(), self.what)?;
        if self.lesser { f.write_str(" (only spelled differently)") } else { Ok(()) }
    }
}

/// How one case went.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// The case.
    pub id: String,
    /// What is not as in Salt, by event and layer; empty if the case passed.
    pub differences: Vec<Difference>,
    /// What is not as in Salt, and need not be: the case says that Salt is at fault there.
    pub excused: Vec<Difference>,
    /// It could not be judged without Salt's own Python.
    pub needs_salt: Option<String>,
}

impl CaseResult {
    /// Is everything as it should be?
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.differences.first() else { return write!(f, "PASS {}", self.id) };
        write!(f, "FAIL {}: {first}", self.id)?;
        if let Some(why) = &self.needs_salt {
            write!(f, "; it needs Salt's own Python (--salt-python): {why}")?;
        }
        match self.differences.len() - 1 {
            0 => Ok(()),
            more => write!(f, "; {more} more"),
        }
    }
}

/// How all cases went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Each case.
    pub verdicts: Vec<CaseResult>,
}

impl Report {
    /// The cases that did not pass.
    pub fn failing(&self) -> impl Iterator<Item = &CaseResult> {
        self.verdicts.iter().filter(|verdict| !verdict.passed())
    }

    /// As a program reads it.
    pub fn to_json(&self) -> Json {
        let failing: Vec<&CaseResult> = self.failing().collect();
        json!({
            "passed": self.verdicts.len() - failing.len(),
            "failed": failing.len(),
            "ids": failing.iter().map(|verdict| verdict.id.as_str()).collect::<Vec<_>>(),
            "need_salt": failing
                .iter()
                .filter(|verdict| verdict.needs_salt.is_some())
                .map(|verdict| verdict.id.as_str())
                .collect::<Vec<_>>(),
            "differences": failing
                .iter()
                .map(|verdict| {
                    let all = verdict.differences.iter().map(ToString::to_string).collect::<Vec<_>>();
                    (verdict.id.clone(), Json::from(all))
                })
                .collect::<serde_json::Map<_, _>>(),
        })
    }

    /// The closing line.
    pub fn summary(&self) -> String {
        let failing: Vec<&CaseResult> = self.failing().collect();
        let need_salt = failing.iter().filter(|verdict| verdict.needs_salt.is_some()).count();
        let mut line = format!(
            "{} cases: {} passed, {} failed",
            self.verdicts.len(),
            self.verdicts.len() - failing.len(),
            failing.len()
        );
        if need_salt > 0 {
            let _ = write!(line, " ({need_salt} of them for want of Salt's own Python: --salt-python)");
        }
        line
    }
}

/// Judges all cases of these directories, telling each verdict as it is reached.
pub fn run(
    dirs: &[PathBuf],
    options: &ConformanceOptions,
    mut tell: impl FnMut(&CaseResult),
) -> Result<Report, CaseError> {
    let mut report = Report::default();
    for dir in dirs {
        for path in read_cases(Path::new(dir))? {
            let verdict = match Case::read(&path) {
                Ok(case) => judge(&case, options),
                Err(error) => CaseResult {
                    id: path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
                    differences: vec![Difference {
                        event: 0,
                        layer: Layer::Case,
                        what: error.to_string(),
                        lesser: false,
                    }],
                    excused: Vec::new(),
                    needs_salt: None,
                },
            };
            tell(&verdict);
            report.verdicts.push(verdict);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
