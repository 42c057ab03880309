//! Conformance with Salt, by cases: a configuration, files, events, and the results of Salt's own
//! reactor.
//!
//! Each case is a JSON file; `tests/data/reactor-cases/README.md` describes the form.
//! `tests/lab/reactor_oracle.py` records the expected results with a real Salt. The program has no
//! exceptions for individual cases.

mod case;
mod check;
mod compare;
mod result;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub use self::case::{Case, CaseError, read_cases};
pub use self::check::{ConformanceOptions, check_case};
pub use self::result::{CaseResult, Difference, Layer};

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
                " ({need_salt} of them require Salt's Python: SALTCELLAR_SALT_PYTHON)"
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

            // Each immediately, because all of them take a while.
            tell(&result);
            report.results.push(result);
        }
    }

    Ok(report)
}

#[cfg(test)]
mod tests;
