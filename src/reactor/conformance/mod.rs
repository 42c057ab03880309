//! Conformance with Salt, by cases: a configuration, files, events, and the results of Salt's own
//! reactor.
//!
//! Each case is a JSON file; `tests/data/reactor-cases/README.md` describes the form.
//! `tests/lab/reactor_oracle.py` records the expected results with a real Salt. The program has no
//! exceptions for individual cases.

mod case;
mod check;
mod compare;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

pub use self::case::{Case, CaseError, read_cases};
pub use self::check::check_case;

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub struct ConformanceOptions {
    /// A Python with Salt, for cases that require it.
    pub salt_python: Option<PathBuf>,
    /// Signatures recorded with Salt: `{"runner": {function: signature}, "wheel": {..}}`. Python is
    /// asked for others only: its start takes longer than a case.
    pub signatures: Json,
}

/// A part of a case, in the order of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The case itself.
    Case,
    /// The option `reactor` as read.
    EffectiveReactor,
    /// Log records of reading the configuration.
    ConfigLogs,
    /// References that matched.
    Matched,
    /// Texts rendered by Jinja.
    Renders,
    /// Parsed and padded data.
    High,
    /// Chunks in order.
    Low,
    /// Calls in order.
    Calls,
    /// Functions called by templates.
    SaltCalls,
    /// Events that were fired.
    Fired,
    /// Log records.
    Logs,
}

impl Layer {
    /// The name in the case files.
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

/// A difference from Salt.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The event, from 1; 0 is the configuration.
    pub event: usize,
    /// The differing part.
    pub layer: Layer,
    /// The expected and the actual value.
    pub what: String,
    /// True if only a rendered text differs, with the same meaning.
    pub lesser: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.event > 0 {
            write!(f, "event {}: ", self.event)?;
        }
        write!(f, "{}: {}", self.layer.name(), self.what)?;
        if self.lesser {
            f.write_str(" (only the text differs)")
        } else {
            Ok(())
        }
    }
}

/// The result of a case.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// The case.
    pub id: String,
    /// Differences, by event and layer; empty if the case passed.
    pub differences: Vec<Difference>,
    /// Accepted differences, because the case marks a defect of Salt.
    pub excused: Vec<Difference>,
    /// The reason if the case needs Salt's own Python.
    pub needs_salt: Option<String>,
}

impl CaseResult {
    /// True without differences.
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.differences.first() else {
            return write!(f, "PASS {}", self.id);
        };
        write!(f, "FAIL {}: {first}", self.id)?;
        if let Some(why) = &self.needs_salt {
            write!(f, "; requires Salt's own Python (--salt-python): {why}")?;
        }
        match self.differences.len() - 1 {
            0 => Ok(()),
            more => write!(f, "; {more} more"),
        }
    }
}

/// The results of all cases.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One per case.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// The cases that did not pass.
    pub fn failing(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| !result.passed())
    }

    /// The form of `--output json`.
    pub fn to_json(&self) -> Json {
        // Excused differences do not make a case fail.
        let failing: Vec<&CaseResult> = self.failing().collect();

        json!({
            "passed": self.results.len() - failing.len(),
            "failed": failing.len(),
            "ids": failing.iter().map(|result| result.id.as_str()).collect::<Vec<_>>(),
            "need_salt": failing
                .iter()
                .filter(|result| result.needs_salt.is_some())
                .map(|result| result.id.as_str())
                .collect::<Vec<_>>(),
            "differences": failing
                .iter()
                .map(|result| {
                    let all = result.differences.iter().map(ToString::to_string).collect::<Vec<_>>();
                    (result.id.clone(), Json::from(all))
                })
                .collect::<serde_json::Map<_, _>>(),
        })
    }

    /// The last line of the output.
    pub fn summary(&self) -> String {
        let failing: Vec<&CaseResult> = self.failing().collect();
        let need_salt = failing
            .iter()
            .filter(|result| result.needs_salt.is_some())
            .count();

        let mut line = format!(
            "{} cases: {} passed, {} failed",
            self.results.len(),
            self.results.len() - failing.len(),
            failing.len()
        );

        // Without Salt's Python such a failure says nothing about saltcellar.
        if need_salt > 0 {
            let _ = write!(
                line,
                " ({need_salt} of them require Salt's own Python: --salt-python)"
            );
        }

        line
    }
}

/// Runs all cases of these directories, and passes each result to `tell`.
pub fn run(
    dirs: &[PathBuf],
    options: &ConformanceOptions,
    mut tell: impl FnMut(&CaseResult),
) -> Result<Report, CaseError> {
    let mut report = Report::default();
    for dir in dirs {
        for path in read_cases(Path::new(dir))? {
            let checked = Case::read(&path).and_then(|case| check_case(&case, options));
            // A case that cannot be read fails like any other, and the rest are run.
            let result = checked.unwrap_or_else(|error| CaseResult {
                id: path
                    .file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                differences: vec![Difference {
                    event: 0,
                    layer: Layer::Case,
                    what: error.to_string(),
                    lesser: false,
                }],
                excused: Vec::new(),
                needs_salt: None,
            });

            // Each at once, because all of them take a while.
            tell(&result);
            report.results.push(result);
        }
    }

    Ok(report)
}

#[cfg(test)]
mod tests;
