//! `saltcellar check`: prints the effective configuration, or its errors.

use anyhow::Context;

use crate::api::call::config::ShownConfig;
use crate::cli::{Global, show};
use crate::config::{Config, Environment};
use crate::engines::script;
use crate::engines::settings::of_config;

pub(in crate::cli) const EXAMPLES: &str = "\
Reads flags, environment and file as `saltcellar serve` does, and starts nothing. The output is a valid \
configuration file; a comment on each value names its origin.

Examples:
  saltcellar check
  saltcellar check --config ./saltcellar.yaml && systemctl restart saltcellar
  saltcellar check --output json";

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let config = Config::load(&global.overrides(), &Environment::of_process())
        .context("read the configuration")?;

    // Sinks and scripts have rules of their own, which only `serve` would apply otherwise.
    of_config(&config).context("read the configuration")?;
    script::of_config(&config).context("read the configuration")?;

    show(global.output, &ShownConfig::of(&config), |out| {
        Ok(out.text(&config.to_yaml())?)
    })
}
