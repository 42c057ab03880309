//! `saltcellar reactor parity`: cases of what Salt does, played.

use std::path::PathBuf;

use anyhow::Context;

use super::super::Global;
use super::super::output::{Format, Output, plain};
use super::PythonArgs;
use crate::reactor::parity::{ParityOptions, run as judge_all};

pub(super) const EXAMPLES: &str = "\
Each DIR holds cases, one JSON file each: a master's configuration, files, events, and what Salt made of them. The \
program tests/lab/reactor_oracle.py of the source writes what a case expects, with a real Salt; so a shop can prove \
its own files the same way. No master is needed. Cases with `#!py` files or functions of Salt need --salt-python.

Examples:
  saltcellar reactor parity ./cases
  saltcellar reactor parity ./cases --salt-python /opt/saltstack/salt/bin/python3
  saltcellar reactor parity ./cases ./more --output json | jq .ids

Exit code 1 if a case fails.";

/// Flags of `reactor parity`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Directories of cases
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    python: PythonArgs,
}

/// Some cases are not as in Salt. They have been told.
#[derive(Debug, thiserror::Error)]
#[error("play all cases as Salt does: {0} differ")]
pub(in crate::cli) struct NotAsSalt(usize);

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let options = ParityOptions { salt_python: args.python.python() };
    let mut lines = Vec::new();
    let report = judge_all(&args.dirs, &options, |verdict| {
        if !verdict.passed() {
            lines.push(verdict.to_string());
        }
    })
    .context("read the cases")?;
    match out.format {
        Format::Table => {
            for line in lines {
                out.line(&plain(&line))?;
            }
            out.line(&report.summary())?;
        }
        Format::Json | Format::Jsonl => out.json(&report.to_json())?,
    }
    out.flush()?;
    match report.failing().count() {
        0 => Ok(()),
        failed => Err(NotAsSalt(failed).into()),
    }
}
