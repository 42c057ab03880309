//! `saltcellar reactor conformance`: runs cases recorded with Salt and compares the results.

use std::path::PathBuf;

use anyhow::Context;

use super::salt::PythonArgs;
use crate::cli::{Global, finding, show};
use crate::reactor::conformance::{ConformanceOptions, run as run_cases};

pub(super) const EXAMPLES: &str = "\
Each DIR holds cases, one JSON file each: a master's configuration, files, events, and Salt's results. The program \
tests/lab/reactor_oracle.py of the source tree records these results with a real Salt, also for your own files. No \
master is required. Cases with `#!py` files or functions of Salt require --salt-python.

Examples:
  saltcellar reactor conformance ./cases
  saltcellar reactor conformance ./cases --salt-python /opt/saltstack/salt/bin/python3
  saltcellar reactor conformance ./cases ./more --output json | jq .ids

Exit codes: 0 all cases pass, 1 a case fails.";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Directories of cases
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    python: PythonArgs,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let options = ConformanceOptions {
        salt_python: args.python.python(),
        ..ConformanceOptions::default()
    };

    let mut lines = Vec::new();
    let report = run_cases(&args.dirs, &options, |result| {
        // Passed cases are only counted.
        if !result.passed() {
            lines.push(result.to_string());
        }
    })
    .context("read the cases")?;

    show(global.output, &report.to_json(), |out| {
        lines.iter().try_for_each(|line| out.line(line))?;
        Ok(out.line(&report.summary())?)
    })?;

    match report.failing().count() {
        0 => Ok(()),
        failed => Err(finding(format!("{failed} cases differ from Salt"))),
    }
}
