//! `saltcellar check`: the effective configuration, or what is wrong with it.

use anyhow::Context;

use super::Global;
use super::output::{Format, Output};
use crate::config::{Config, Surroundings};

pub(super) const EXAMPLES: &str = "\
Reads flags, environment and file as `saltcellar serve` would, and starts nothing. The output is YAML that \
can serve as a configuration file; each value says in a comment where it comes from.

Examples:
  saltcellar check
  saltcellar check --config ./saltcellar.yaml && systemctl restart saltcellar
  saltcellar check --output json";

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let config =
        Config::load(&global.given(), &Surroundings::of_process()).context("read the configuration")?;
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => out.text(&config.to_yaml())?,
        Format::Json | Format::Jsonl => out.json(&config.to_json())?,
    }
    Ok(out.flush()?)
}
