//! `saltcellar check`: prints the effective configuration, or its errors.

use anyhow::Context;

use crate::cli::Global;
use crate::cli::format::output::{Format, Output};
use crate::config::{Config, Environment};

pub(in crate::cli) const EXAMPLES: &str = "\
Reads flags, environment and file as `saltcellar serve` does, and starts nothing. The output is a valid \
configuration file; a comment on each value names its origin.

Examples:
  saltcellar check
  saltcellar check --config ./saltcellar.yaml && systemctl restart saltcellar
  saltcellar check --output json";

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let config =
        Config::load(&global.overrides(), &Environment::of_process()).context("read the configuration")?;
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => out.text(&config.to_yaml())?,
        Format::Json | Format::Jsonl => out.json(&config.to_json())?,
    }
    Ok(out.flush()?)
}
